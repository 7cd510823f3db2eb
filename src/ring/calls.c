// SPDX-License-Identifier: Apache-2.0
#include "ring/calls.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"

/* Stack of a worker thread. It is small, because a process with locked memory keeps all of it in
 * RAM. A call needs little stack: name lookups, which need more, run in a thread of glibc. */
enum { CALL_STACK_BYTES = 256 << 10 };

uint64_t ring_now_ns(const struct ring *ring)
{
	return clock_now_ns();
}

uint64_t ring_thread_cpu_ns(void)
{
	return clock_thread_cpu_ns();
}

bool ring_secret(struct ring *ring, void *bytes, size_t len)
{
	return getrandom(bytes, len, 0) == (ssize_t)len;
}

int ring_mailbox_init(struct ring_mailbox *mailbox)
{
	atomic_init(&mailbox->messages, NULL);
	atomic_init(&mailbox->returned, NULL);
	ring_op_queue_init(&mailbox->waiting);
	pthread_mutex_init(&mailbox->lock, NULL);
	pthread_cond_init(&mailbox->wake, NULL);
	mailbox->waiting_count = 0;
	mailbox->thread_count = 0;
	mailbox->idle_count = 0;
	mailbox->stopping = false;
	mailbox->wake_fd = eventfd(0, EFD_CLOEXEC);
	return mailbox->wake_fd < 0 ? -errno : 0;
}

void ring_mailbox_fini(struct ring_mailbox *mailbox)
{
	pthread_mutex_lock(&mailbox->lock);
	GMB_ASSERT(mailbox->waiting.head == NULL);
	mailbox->stopping = true;
	pthread_cond_broadcast(&mailbox->wake);
	pthread_mutex_unlock(&mailbox->lock);
	for (uint32_t i = 0; i < mailbox->thread_count; i++) {
		pthread_join(mailbox->threads[i], NULL);
	}
	pthread_cond_destroy(&mailbox->wake);
	pthread_mutex_destroy(&mailbox->lock);
	if (mailbox->wake_fd >= 0) {
		close(mailbox->wake_fd);
	}
}

static void wake(struct ring_mailbox *mailbox)
{
	uint64_t one = 1;
	ssize_t written;

	do {
		written = write(mailbox->wake_fd, &one, sizeof(one));
	} while (written < 0 && errno == EINTR);
}

/* --- messages ------------------------------------------------------------------------------ */

void ring_mailbox_post(struct ring_mailbox *mailbox, struct ring_message *message)
{
	struct ring_message *head = atomic_load_explicit(&mailbox->messages, memory_order_relaxed);

	/* The release order pairs with the acquire exchange in ring_mailbox_take(). */
	do {
		message->next = head;
	} while (!atomic_compare_exchange_weak_explicit(
		&mailbox->messages, &head, message, memory_order_release, memory_order_relaxed));
	if (head == NULL) {
		wake(mailbox);
	}
}

struct ring_message *ring_mailbox_take(struct ring_mailbox *mailbox)
{
	struct ring_message *stack =
		atomic_exchange_explicit(&mailbox->messages, NULL, memory_order_acquire);
	struct ring_message *ordered = NULL;

	while (stack != NULL) {
		struct ring_message *next = stack->next;

		stack->next = ordered;
		ordered = stack;
		stack = next;
	}
	return ordered;
}

/* --- calls --------------------------------------------------------------------------------- */

static void ring_calls_give_back(struct ring_mailbox *mailbox, struct ring_op *op)
{
	struct ring_op *head = atomic_load_explicit(&mailbox->returned, memory_order_relaxed);

	/* The release order pairs with the acquire exchange in ring_mailbox_collect(). */
	do {
		op->next = head;
	} while (!atomic_compare_exchange_weak_explicit(
		&mailbox->returned, &head, op, memory_order_release, memory_order_relaxed));
	if (head == NULL) {
		wake(mailbox);
	}
}

static void *call_thread(void *argument)
{
	struct ring_mailbox *mailbox = argument;

	/* affects only this thread; failure is harmless */
	(void)setpriority(PRIO_PROCESS, 0, RING_CALL_NICE);
	pthread_mutex_lock(&mailbox->lock);
	for (;;) {
		struct ring_op *op = ring_op_queue_pop(&mailbox->waiting);

		if (op == NULL) {
			if (mailbox->stopping) {
				break;
			}
			mailbox->idle_count++;
			pthread_cond_wait(&mailbox->wake, &mailbox->lock);
			mailbox->idle_count--;
			continue;
		}
		mailbox->waiting_count--;
		pthread_mutex_unlock(&mailbox->lock);
		op->result = op->call(op);
		ring_calls_give_back(mailbox, op);
		pthread_mutex_lock(&mailbox->lock);
	}
	pthread_mutex_unlock(&mailbox->lock);
	return NULL;
}

static bool call_thread_start(struct ring_mailbox *mailbox, pthread_t *thread)
{
	pthread_attr_t attributes;
	sigset_t all;
	sigset_t before;
	int err;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, CALL_STACK_BYTES);
	/* Blocks all signals in the new thread: they are for the program's own threads, and a
	 * handler that ran here would interrupt calls. Exception: SIGBUS reports an access of the
	 * thread itself (memory/mapping.h). */
	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(thread, &attributes, call_thread, mailbox);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return err == 0;
}

bool ring_mailbox_call(struct ring_mailbox *mailbox, struct ring_op *op)
{
	bool taken = true;

	pthread_mutex_lock(&mailbox->lock);
	ring_op_queue_push(&mailbox->waiting, op);
	mailbox->waiting_count++;
	/* A thread that was woken for another call might still be counted as idle. That call is
	 * then also counted as waiting, so the comparison is exact. */
	if (mailbox->idle_count >= mailbox->waiting_count) {
		pthread_cond_signal(&mailbox->wake);
	} else if (mailbox->thread_count < RING_CALL_THREADS_MAX) {
		pthread_t *thread = &mailbox->threads[mailbox->thread_count];

		if (call_thread_start(mailbox, thread)) {
			mailbox->thread_count++;
		} else if (mailbox->thread_count == 0) {
			/* No thread exists, so this call is the only one in the queue. */
			(void)ring_op_queue_pop(&mailbox->waiting);
			mailbox->waiting_count--;
			taken = false;
		}
	}
	pthread_mutex_unlock(&mailbox->lock);
	return taken;
}

void ring_mailbox_collect(struct ring_mailbox *mailbox, struct ring_op_queue *to)
{
	struct ring_op *stack =
		atomic_exchange_explicit(&mailbox->returned, NULL, memory_order_acquire);

	while (stack != NULL) {
		struct ring_op *next = stack->next;

		ring_op_queue_push(to, stack);
		stack = next;
	}
}
