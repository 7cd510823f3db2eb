// SPDX-License-Identifier: Apache-2.0
/*
 * The event queue of <gmblock/clan.h>: events, deadlines, waking and sleeping;
 * docs/protocol/clan.md §7.
 *
 * Invariant: a source is linked in queue->events if and only if it has an event to give. So the
 * queue needs no memory for events, and its length is bounded by the number of objects.
 *
 * The program calls most functions of this file. The providers raise events with clan_fire(), and
 * set deadlines with clan_deadline_set().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/spin.h"
#include "clan/clan.h"

#define NS_PER_MS UINT64_C(1000000)

enum {
	/* Calls of clan_queue_look() between two checks of the descriptors, which need system
	 * calls. */
	LOOKS_BETWEEN_DESCRIPTORS = 16,
	/* Calls of clan_queue_look() between two calls of sched_yield() while spinning. Most
	 * answers of a peer on another processor arrive within this number. That avoids
	 * sched_yield(), which takes milliseconds if another program is busy. */
	LOOKS_BETWEEN_YIELDS = 64,
};

void clan_source_init(struct clan_source *source,
	bool (*give)(struct clan_source *source, struct clan_event *event))
{
	list_init(&source->node);
	source->give = give;
}

void clan_fire(struct clan_queue *queue, struct clan_source *source)
{
	if (!list_is_linked(&source->node)) {
		list_push_back(&queue->events, &source->node);
	}
}

const char *clan_version(void)
{
	return GMBLOCK_VERSION;
}

int clan_error_give(struct clan_error *error_out, const struct error *error)
{
	if (error_out != NULL && error->code != 0) {
		error_out->code = error->code;
		snprintf(error_out->text, sizeof(error_out->text), "%.507s", error->text);
	}
	return error->code;
}

/* --- providers ------------------------------------------------------------------------------ */

static bool clan_queue_uses(const struct clan_queue *queue, size_t provider)
{
	return queue->carriers[provider] != NULL;
}

static void clan_queue_publish(struct clan_queue *queue)
{
	for (size_t i = 0; i < CLAN_PROVIDER_COUNT; i++) {
		if (clan_queue_uses(queue, i)) {
			clan_providers[i]->publish(queue);
		}
	}
}

static void clan_queue_progress(struct clan_queue *queue)
{
	for (size_t i = 0; i < CLAN_PROVIDER_COUNT; i++) {
		if (clan_queue_uses(queue, i)) {
			clan_providers[i]->progress(queue);
		}
	}
}

static bool arm(struct clan_queue *queue)
{
	bool found = false;

	for (size_t i = 0; i < CLAN_PROVIDER_COUNT; i++) {
		found = (clan_queue_uses(queue, i) && clan_providers[i]->arm(queue)) || found;
	}
	return found;
}

/* --- deadlines ------------------------------------------------------------------------------ */

void clan_deadline_set(struct clan_queue *queue, struct clan_deadline *deadline, uint64_t after_ns)
{
	list_remove(&deadline->node);
	deadline->due_ns = clock_now_ns() + after_ns;
	list_push_back(&queue->deadlines, &deadline->node);
}

/* Sets the timer to the next deadline. The linear search is acceptable because the list is empty
 * most of the time: only handshakes, closing connections, strict revocations, muted bells and
 * retries have deadlines.
 */
static void set_timer(struct clan_queue *queue)
{
	struct itimerspec setting = { 0 };
	uint64_t next_ns = 0;

	list_for_each(node, &queue->deadlines)
	{
		uint64_t due_ns = list_entry(node, struct clan_deadline, node)->due_ns;

		next_ns = next_ns == 0 ? due_ns : MIN(next_ns, due_ns);
	}
	if (next_ns == queue->timer_ns) {
		return;
	}
	queue->timer_ns = next_ns;
	setting.it_value.tv_sec = (time_t)(next_ns / 1000000000);
	setting.it_value.tv_nsec = (long)(next_ns % 1000000000);
	timerfd_settime(queue->timer_file.fd, TFD_TIMER_ABSTIME, &setting, NULL);
}

static void timer_happened(struct waiter_file *file, uint32_t events)
{
	struct clan_queue *queue = container_of(file, struct clan_queue, timer_file);
	struct list_node expired;
	uint64_t expirations;
	ssize_t got = read(file->fd, &expirations, sizeof(expirations));
	uint64_t now_ns = clock_now_ns();

	GMB_UNUSED(got);
	queue->timer_ns = 0;
	list_init(&expired);
	list_for_each(node, &queue->deadlines)
	{
		/* Due deadlines are collected first, because expired() can set and clear any
		 * deadline, also those that are due. */
		if (list_entry(node, struct clan_deadline, node)->due_ns <= now_ns) {
			list_remove(node);
			list_push_back(&expired, node);
		}
	}
	while (!list_is_empty(&expired)) {
		struct clan_deadline *deadline =
			list_entry(list_pop_front(&expired), struct clan_deadline, node);

		deadline->expired(deadline);
	}
}

/* --- life ----------------------------------------------------------------------------------- */

static void wake_happened(struct waiter_file *file, uint32_t events)
{
	struct clan_queue *queue = container_of(file, struct clan_queue, wake_file);
	char bytes[64];
	/* Unread bytes make the pipe readable again. */
	ssize_t got = read(file->fd, bytes, sizeof(bytes));

	GMB_UNUSED(got);
	work_finish(&queue->results);
}

static int add_own_file(struct clan_queue *queue, struct waiter_file *file, int fd)
{
	int result;

	if (fd < 0) {
		return -errno;
	}
	result = waiter_file_add(queue->waiter, file, fd, EPOLLIN);
	if (result != 0) {
		close(fd);
	}
	return result;
}

/* Other threads wake the queue through a pipe. An eventfd would not work for programs that wait for
 * clan_queue_fd() with an io_uring that itself signals an eventfd: the kernel does not reliably
 * signal one eventfd from inside another (src/ring/calls.c). */
static int add_wake_file(struct clan_queue *queue)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) {
		return -errno;
	}
	queue->results.wake_fd = fds[1];
	return add_own_file(queue, &queue->wake_file, fds[0]);
}

/* Creates the waiter that the options select. With CLAN_BELL_AUTO, falls back from futex words to
 * sockets. Sets options.bell to the result. */
static int make_waiter(struct clan_queue *queue, struct error *error)
{
	bool must = queue->options.bell == CLAN_BELL_FUTEX;
	int result = -EOPNOTSUPP;

	if (queue->options.bell != CLAN_BELL_SOCKET && !clan_queue_is_passive(queue)) {
		result = waiter_create(WAITER_URING, &queue->waiter);
		if (result != 0 && must) {
			return error_set(error, result,
				"cannot wait for futex words: this requires io_uring and Linux "
				"6.7; use CLAN_BELL_AUTO");
		}
	}
	if (result == 0) {
		queue->options.bell = CLAN_BELL_FUTEX;
		return 0;
	}
	queue->options.bell = CLAN_BELL_SOCKET;
	result = waiter_create(WAITER_EPOLL, &queue->waiter);
	if (result != 0) {
		return error_set(
			error, result, "cannot create an epoll set: %s", strerror(-result));
	}
	return 0;
}

static int clan_queue_check_options(
	struct clan_queue *queue, const struct clan_queue_options *options, struct error *error)
{
	struct clan_queue_options *own = &queue->options;

	if (options != NULL) {
		if (options->size != sizeof(*options)) {
			return error_set(error, -EINVAL,
				"cannot create a queue: options.size is not the size of the "
				"structure");
		}
		*own = *options;
	}
	own->conns_max = own->conns_max == 0 ? CLAN_CONNS_DEFAULT : own->conns_max;
	if ((own->flags & ~(uint32_t)CLAN_QUEUE_PASSIVE) != 0 || own->bell > CLAN_BELL_SOCKET ||
		own->conns_max > CLAN_CONNS_MAX) {
		return error_set(error, -EINVAL, "cannot create a queue: invalid options");
	}
	if (clan_queue_is_passive(queue) && own->bell == CLAN_BELL_FUTEX) {
		return error_set(error, -EINVAL,
			"cannot create a queue: a passive queue supports only sockets");
	}
	return 0;
}

/* Frees a queue, even if its creation has failed: then descriptors that do not exist are -1. Files
 * are removed from the waiter before they are closed. */
static void queue_fini(struct clan_queue *queue)
{
	int fds[] = { queue->wake_file.fd, queue->results.wake_fd, queue->timer_file.fd };

	if (queue->waiter != NULL) {
		waiter_file_remove(queue->waiter, &queue->wake_file);
		waiter_file_remove(queue->waiter, &queue->timer_file);
		waiter_destroy(queue->waiter);
	}
	for (size_t i = 0; i < ARRAY_COUNT(fds); i++) {
		if (fds[i] >= 0) {
			close(fds[i]);
		}
	}
	pthread_mutex_destroy(&queue->results.lock);
	free(queue);
}

int clan_queue_create(const struct clan_queue_options *options, struct clan_queue **queue_out,
	struct clan_error *error_out)
{
	struct clan_queue *queue = calloc(1, sizeof(*queue));
	struct error error = { 0 };
	int result;

	if (queue == NULL) {
		error_set(&error, -ENOMEM, "cannot create a queue: not enough memory");
		return clan_error_give(error_out, &error);
	}
	queue->wake_file = (struct waiter_file){ .fd = -1, .happened = wake_happened };
	queue->timer_file = (struct waiter_file){ .fd = -1, .happened = timer_happened };
	queue->results.wake_fd = -1;
	list_init(&queue->events);
	list_init(&queue->deadlines);
	list_init(&queue->conns);
	list_init(&queue->listeners);
	list_init(&queue->regions);
	list_init(&queue->results.list);
	pthread_mutex_init(&queue->results.lock, NULL);
	result = clan_queue_check_options(queue, options, &error);
	if (result == 0) {
		result = make_waiter(queue, &error);
	}
	if (result == 0) {
		result = add_wake_file(queue);
		if (result == 0) {
			result = add_own_file(queue, &queue->timer_file,
				timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
		}
		if (result != 0) {
			error_set(&error, result, "cannot create a queue: %s", strerror(-result));
		}
	}
	if (result != 0) {
		queue_fini(queue);
		return clan_error_give(error_out, &error);
	}
	queue->results.in_caller = clan_queue_is_passive(queue);
	*queue_out = queue;
	return 0;
}

int clan_queue_destroy(struct clan_queue *queue)
{
	if (queue == NULL) {
		return 0;
	}
	if (queue->conn_count != 0 || queue->listener_count != 0 || queue->region_count != 0) {
		return -EBUSY;
	}
	for (size_t i = 0; i < CLAN_PROVIDER_COUNT; i++) {
		if (clan_queue_uses(queue, i)) {
			clan_providers[i]->queue_destroy(queue);
		}
	}
	queue_fini(queue);
	return 0;
}

/* Frees the private memory only: closing the child's copies of descriptors does not affect the
 * parent, but no shared memory and no kernel object may be modified. */
void clan_queue_after_fork(struct clan_queue *queue)
{
	list_for_each(node, &queue->conns)
	{
		struct clan_conn *conn = list_entry(node, struct clan_conn, node);

		list_for_each(share_node, &conn->shares)
		{
			free(list_entry(share_node, struct clan_share, conn_node));
		}
		free(conn->hello);
		conn->provider->after_fork(queue, conn, NULL);
	}
	list_for_each(node, &queue->listeners)
	{
		struct clan_listener *listener = list_entry(node, struct clan_listener, node);

		listener->provider->after_fork(queue, NULL, listener);
	}
	list_for_each(node, &queue->regions)
	{
		struct clan_region *region = list_entry(node, struct clan_region, node);

		if (region->fd >= 0) {
			close(region->fd);
		}
		free(region);
	}
	for (size_t i = 0; i < CLAN_PROVIDER_COUNT; i++) {
		if (clan_queue_uses(queue, i)) {
			clan_providers[i]->after_fork(queue, NULL, NULL);
		}
	}
	close(queue->wake_file.fd);
	close(queue->results.wake_fd);
	close(queue->timer_file.fd);
	waiter_after_fork(queue->waiter);
	free(queue);
}

/* --- waiting -------------------------------------------------------------------------------- */

void clan_queue_wake(struct clan_queue *queue)
{
	/* Release: clan_queue_wait() loads woken with acquire, so the caller's earlier writes are
	 * visible to the program that was woken. The store must come before work_wake(), because
	 * the sleeper checks woken after the pipe has become readable. */
	atomic_store_explicit(&queue->woken, true, memory_order_release);
	work_wake(&queue->results);
}

int clan_queue_fd(const struct clan_queue *queue)
{
	return waiter_fd(queue->waiter);
}

/* Requests a wake-up from every peer. Returns false if there is work already. May add waits for
 * futex words to queue->waiter, which must then be submitted with waiter_submit(). */
static bool ask_for_wake_ups(struct clan_queue *queue)
{
	clan_queue_publish(queue);
	if (arm(queue) || !list_is_empty(&queue->events) ||
		atomic_load_explicit(&queue->woken, memory_order_acquire)) {
		return false;
	}
	set_timer(queue);
	return true;
}

int clan_queue_arm(struct clan_queue *queue)
{
	if (!ask_for_wake_ups(queue)) {
		return 1;
	}
	waiter_submit(queue->waiter);
	queue->armed = true;
	return 0;
}

/* Gives one event of each source. The program can react to it, above all by setting a connection's
 * context, before the next event of the same source. Sources with another event go to the end of
 * the queue. */
static uint32_t give_events(struct clan_queue *queue, struct clan_event *events, uint32_t max)
{
	struct list_node again;
	uint32_t count = 0;

	list_init(&again);
	while (count < max && !list_is_empty(&queue->events)) {
		struct clan_source *source =
			list_entry(list_pop_front(&queue->events), struct clan_source, node);

		memset(&events[count], 0, sizeof(events[count]));
		if (source->give(source, &events[count])) {
			list_push_back(&again, &source->node);
		}
		count++;
	}
	list_move_all(&queue->events, &again);
	return count;
}

/* Makes progress once, without sleeping. all: also checks the descriptors. */
static void clan_queue_look(struct clan_queue *queue, bool all)
{
	clan_queue_publish(queue);
	clan_queue_progress(queue);
	/* A peer that keeps the queue busy must not prevent new connections and deadlines. */
	if (!all && ++queue->looks % LOOKS_BETWEEN_DESCRIPTORS == 0) {
		all = true;
	}
	if (all) {
		set_timer(queue);
	}
	waiter_wait(queue->waiter, 0, all);
	clan_queue_progress(queue);
}

/* Makes progress until there is an event or a wake-up, for up to limit_ns. */
static void clan_queue_spin(struct clan_queue *queue, uint64_t limit_ns)
{
	struct spin spin;

	spin_begin(&spin, limit_ns, LOOKS_BETWEEN_YIELDS);
	do {
		clan_queue_look(queue, false);
	} while (list_is_empty(&queue->events) &&
		 !atomic_load_explicit(&queue->woken, memory_order_acquire) && spin_goes_on(&spin));
}

/* Returns the remaining time, 0 when the time has come. */
static uint64_t time_left_ns(uint64_t until_ns)
{
	uint64_t now_ns;

	if (until_ns == UINT64_MAX) {
		return UINT64_MAX;
	}
	now_ns = clock_now_ns();
	return now_ns < until_ns ? until_ns - now_ns : 0;
}

static void sleep_until(struct clan_queue *queue, uint64_t until_ns)
{
	uint64_t left_ns = time_left_ns(until_ns);

	if (left_ns > 0 && ask_for_wake_ups(queue)) {
		waiter_wait(queue->waiter, left_ns, true);
	}
	clan_queue_progress(queue);
}

/* Looks for events without sleeping first. If there are none, it spins, and then sleeps. */
int clan_queue_wait(
	struct clan_queue *queue, struct clan_event *events, uint32_t max, int timeout_ms)
{
	uint64_t until_ns = UINT64_MAX;
	uint32_t count;

	if (max == 0 || timeout_ms < -1) {
		return -EINVAL;
	}
	clan_queue_look(queue, queue->armed);
	queue->armed = false;
	count = give_events(queue, events, max);
	if (count > 0 || timeout_ms == 0) {
		atomic_store_explicit(&queue->woken, false, memory_order_relaxed);
		return (int)count;
	}
	if (timeout_ms > 0) {
		until_ns = clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
	}
	if (queue->options.spin_us > 0) {
		clan_queue_spin(queue,
			MIN(time_left_ns(until_ns), queue->options.spin_us * UINT64_C(1000)));
	}
	do {
		count = give_events(queue, events, max);
		if (count > 0 ||
			atomic_exchange_explicit(&queue->woken, false, memory_order_acquire)) {
			break;
		}
		sleep_until(queue, until_ns);
	} while (time_left_ns(until_ns) > 0 || !list_is_empty(&queue->events));
	queue->armed = false;
	return (int)count;
}
