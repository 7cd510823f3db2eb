// SPDX-License-Identifier: Apache-2.0
/* Threads that run a ring, see ring.h. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ring/ring.h"

/* Short, because the calling main thread also has to handle signals. */
enum { CALL_SECONDS_MAX = 2, NAME_BYTES = 16 };

struct ring_thread {
	struct ring_thread_options options;
	pthread_t thread;
	struct ring *ring;
	char name[NAME_BYTES];

	/* While starting: the thread sets code and error, then posts started. */
	sem_t started;
	int code;
	struct error error;

	sem_t stop_posted;
	struct ring_message stop_message;
};

static void thread_wait_for(sem_t *semaphore)
{
	while (sem_wait(semaphore) < 0) {
		GMB_ASSERT(errno == EINTR);
	}
}

static void *thread_main(void *context)
{
	struct ring_thread *thread = context;

	pthread_setname_np(pthread_self(), thread->name);
	thread->code =
		thread->options.begin(thread->options.context, &thread->ring, &thread->error);
	if (thread->code < 0) {
		sem_post(&thread->started);
		return NULL;
	}
	sem_post(&thread->started);
	ring_run(thread->ring);
	/* The stop message can be delivered while ring_post() still accesses the ring, so the ring
	 * can be destroyed only after ring_post() has returned. */
	thread_wait_for(&thread->stop_posted);
	thread->options.end(thread->options.context);
	return NULL;
}

static void thread_release(struct ring_thread *thread)
{
	sem_destroy(&thread->started);
	sem_destroy(&thread->stop_posted);
	free(thread);
}

int ring_thread_start(const struct ring_thread_options *options, struct ring_thread **thread_out,
	struct error *error)
{
	struct ring_thread *thread = calloc(1, sizeof(*thread));
	int rc;

	if (thread == NULL) {
		return error_set(error, -ENOMEM, "out of memory for a thread");
	}
	thread->options = *options;
	memcpy(thread->name, options->name, strnlen(options->name, NAME_BYTES - 1));
	sem_init(&thread->started, 0, 0);
	sem_init(&thread->stop_posted, 0, 0);
	rc = -pthread_create(&thread->thread, NULL, thread_main, thread);
	if (rc < 0) {
		error_set(error, rc, "cannot start the thread %s: %s", thread->name, strerror(-rc));
	} else {
		thread_wait_for(&thread->started);
		rc = thread->code;
		if (rc < 0) {
			*error = thread->error;
			pthread_join(thread->thread, NULL);
		}
	}
	if (rc < 0) {
		thread_release(thread);
		return rc;
	}
	*thread_out = thread;
	return 0;
}

static void thread_deliver_stop(struct ring *ring, struct ring_message *message)
{
	ring_stop(ring);
}

void ring_thread_stop(struct ring_thread *thread)
{
	thread->stop_message.deliver = thread_deliver_stop;
	ring_post(thread->ring, &thread->stop_message);
	sem_post(&thread->stop_posted);
	pthread_join(thread->thread, NULL);
	thread_release(thread);
}

/* A call that the ring's thread makes for the caller. The thread sets decided when it starts the
 * call, and the caller sets it when it gives up. If the thread comes second, it only frees this
 * object. If the caller comes second, it waits until the call has ended. */
struct thread_call {
	struct ring_message message;
	void (*call)(void *context);
	void *context;
	_Atomic bool decided;
	/* Only for ThreadSanitizer, which does not know that sem_clockwait() orders memory
	 * accesses: the caller sees everything that call() has written. */
	_Atomic bool ended;
	sem_t over;
};

static void call_destroy(struct thread_call *call)
{
	sem_destroy(&call->over);
	free(call);
}

static void thread_deliver_call(struct ring *ring, struct ring_message *message)
{
	struct thread_call *call = container_of(message, struct thread_call, message);

	/* From here on the caller cannot give up any more; if it has given up before, the call is
	 * not made. Acquire and release order: call() sees the data that the caller prepared. */
	if (atomic_exchange_explicit(&call->decided, true, memory_order_acq_rel)) {
		call_destroy(call);
		return;
	}
	call->call(call->context);
	atomic_store_explicit(&call->ended, true, memory_order_release);
	sem_post(&call->over);
}

/* Waits for at most CALL_SECONDS_MAX. Returns false if the semaphore was not posted. */
static bool wait_a_moment(sem_t *semaphore)
{
	struct timespec end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += CALL_SECONDS_MAX;
	while (sem_clockwait(semaphore, CLOCK_MONOTONIC, &end) < 0) {
		if (errno != EINTR) {
			return false;
		}
	}
	return true;
}

int ring_thread_call(struct ring_thread *thread, void (*call)(void *context), void *context)
{
	struct thread_call *posted = calloc(1, sizeof(*posted));

	if (posted == NULL) {
		return -ENOMEM;
	}
	posted->message.deliver = thread_deliver_call;
	posted->call = call;
	posted->context = context;
	sem_init(&posted->over, 0, 0);
	ring_post(thread->ring, &posted->message);
	if (!wait_a_moment(&posted->over)) {
		if (!atomic_exchange_explicit(&posted->decided, true, memory_order_acq_rel)) {
			return -ETIMEDOUT; /* the ring's thread frees the call */
		}
		thread_wait_for(&posted->over);
	}
	GMB_ASSERT(atomic_load_explicit(&posted->ended, memory_order_acquire));
	call_destroy(posted);
	return 0;
}
