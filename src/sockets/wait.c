// SPDX-License-Identifier: Apache-2.0
/*
 * Emulation of poll() and of blocking calls. A thread that waits for carried connections sleeps in
 * poll() with core.epoll_fd, and with the descriptors that only the kernel can report.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum { FDS_ON_STACK = 64 };
#define NS_PER_S UINT64_C(1000000000)

struct timespec wait_left(uint64_t deadline_ns)
{
	uint64_t now_ns = clock_now_ns();
	uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;

	return (struct timespec){ .tv_sec = (time_t)(left_ns / NS_PER_S),
		.tv_nsec = (long)(left_ns % NS_PER_S) };
}

/* Sleeps without the lock; takes it before it returns. */
static int sleep_in_poll(struct core_sleep *sleep, struct pollfd *fds, nfds_t count,
	const struct timespec *left, const sigset_t *mask)
{
	int result;

	pthread_cleanup_push(core_cancelled, sleep);
	result = REAL(ppoll)(fds, count, left, mask);
	result = result < 0 ? -errno : result;
	pthread_cleanup_pop(0);
	core_slept(sleep->epoch);
	return result;
}

uint64_t wait_deadline(const struct timespec *timeout)
{
	if (timeout == NULL || (uint64_t)timeout->tv_sec >= INT64_MAX / NS_PER_S) {
		return UINT64_MAX;
	}
	return timeout->tv_sec == 0 && timeout->tv_nsec == 0
		       ? 0
		       : clock_now_ns() + (uint64_t)timeout->tv_sec * NS_PER_S +
				 (uint64_t)timeout->tv_nsec;
}

static bool passed(uint64_t deadline_ns)
{
	return deadline_ns != 0 && clock_now_ns() >= deadline_ns;
}

/* See sockets.h. The connection is pinned while the lock is released, so that its memory is not
 * reused. */
int wait_conn(struct conn *conn, short events, uint64_t deadline_ns)
{
	struct pollfd fds[] = {
		{ .events = POLLIN },
		{ .fd = conn->fd, .events = events },
	};
	struct core_sleep sleep = { .conn = conn };
	struct core_poll polling = { 0 };
	struct timespec left = { 0 };
	bool woken = false;
	bool looked = false;
	int result;

	if (core_start() != 0) {
		return -ENOMEM;
	}
	while (events == 0 && core_polls(&polling, deadline_ns != 0 ? deadline_ns : UINT64_MAX)) {
		if (polling.news) {
			return 0;
		}
	}
	fds[0].fd = core.epoll_fd;
	if (deadline_ns != 0) {
		left = wait_left(deadline_ns);
	}
	atomic_fetch_add(&conn->pins, 1);
	result = core_sleep(&sleep.epoch);
	if (result == 0) {
		const struct timespec *limit = deadline_ns != 0 ? &left : NULL;

		result = events != 0 ? sleep_in_poll(&sleep, fds, ARRAY_COUNT(fds), limit, NULL)
				     : core_wait(&sleep, limit, NULL);
		woken = result > 0;
		looked = events == 0;
	}
	conn_count_off(&conn->pins);
	if (!looked) {
		core_look(true);
	}
	/* The connection might have been closed while the lock was released. */
	if (conn_state(conn) == CONN_FREE) {
		return conn->fd < 0 ? -EBADF : 0;
	}
	if (result < 0) {
		return result;
	}
	return !woken && passed(deadline_ns) ? -EAGAIN : 0;
}

void wait_moment(uint32_t ms)
{
	const struct timespec limit = { .tv_nsec = ms * 1000000L };
	struct pollfd one = { .fd = core.epoll_fd, .events = POLLIN };
	uint64_t epoch;

	if (core_sleep(&epoch) == 0) {
		syscall(SYS_ppoll, &one, 1, &limit, NULL, 0); /* not a cancellation point */
		core_slept(epoch);
	}
	core_look(true);
}

bool wait_is_ours(struct pollfd *fds, nfds_t count)
{
	for (nfds_t i = 0; i < count; i++) {
		struct object *object = object_at(fds[i].fd);

		if (object == NULL) {
			continue;
		}
		if (object->kind == OBJECT_CONN
				? conn_is_carried(conn_of(object))
				: object->kind == OBJECT_SET && set_has_core(set_at(fds[i].fd))) {
			return true;
		}
	}
	return false;
}

/* Returns the conditions that poll() reports, including those that are always reported. */
static short sockets_wait_asked(const struct pollfd *fd)
{
	return (short)(fd->events | POLLHUP | POLLERR | POLLNVAL);
}

/* Fills in the events of connections that use rings. The kernel must check the other descriptors,
 * which are stored in rest; *left is true if there are any. Returns the number of ready entries. */
static int look_at_ours(struct pollfd *fds, struct pollfd *rest, nfds_t count, bool *left)
{
	int ready = 0;

	*left = false;

	for (nfds_t i = 0; i < count; i++) {
		struct conn *conn = conn_at(fds[i].fd);
		struct set *set = set_at(fds[i].fd);

		fds[i].revents = 0;
		rest[i] = fds[i];
		if (conn != NULL && conn_is_carried(conn)) {
			short all = data_ready(conn);

			/* POLLRDNORM and POLLWRNORM mean the same as POLLIN and POLLOUT. */
			all = (short)(all | ((all & POLLIN) != 0 ? POLLRDNORM : 0) |
				      ((all & POLLOUT) != 0 ? POLLWRNORM : 0));
			fds[i].revents = (short)(all & sockets_wait_asked(&fds[i]));
			/* data_ready() might have returned the connection to TCP. */
			rest[i].fd = conn_is_carried(conn) ? -1 : fds[i].fd;
		} else if (set != NULL && set_has_core(set) && epoll_set_is_ready(set)) {
			fds[i].revents = (short)((POLLIN | POLLRDNORM) & fds[i].events);
		}
		*left = *left || rest[i].fd >= 0;
		ready += fds[i].revents != 0;
	}
	return ready;
}

/* Adds the kernel's results. Returns the number of ready entries. */
static int merge(struct pollfd *fds, const struct pollfd *rest, nfds_t count)
{
	int ready = 0;

	for (nfds_t i = 0; i < count; i++) {
		struct set *set = set_at(fds[i].fd);

		/* The kernel reports a set that contains core.epoll_fd as readable for events of
		 * the library itself. So the kernel's result for such a set is ignored. */
		if (rest[i].fd >= 0 && (set == NULL || !set_has_core(set))) {
			fds[i].revents = (short)(fds[i].revents | rest[i].revents);
		}
		ready += fds[i].revents != 0;
	}
	return ready;
}

/* Each round checks our own descriptors, then asks the kernel about the others, then sleeps in
 * poll() with core.epoll_fd as an additional entry. */
static int poll_locked(struct pollfd *fds, struct pollfd *rest, nfds_t count, uint64_t deadline_ns,
	const sigset_t *mask)
{
	const struct timespec now = { 0 };
	struct core_poll polling = { 0 };
	bool over = false;
	bool asks;
	int ready;

	if (core_start() != 0) {
		return -ENOMEM;
	}
	for (;;) {
		struct core_sleep sleep = { 0 };
		struct timespec left = { 0 };
		int result;

		core_look(over);
		ready = look_at_ours(fds, rest, count, &asks);
		if (ready > 0 || over || deadline_ns == 0) {
			if (asks) {
				result = REAL(ppoll)(rest, count, &now, NULL);
				ready = result < 0 ? -errno : merge(fds, rest, count);
			}
			/* ready can be 0 although the sleep has ended: a set of the program can be
			 * readable only because of our own descriptor. */
			if (ready != 0 || deadline_ns == 0 || passed(deadline_ns)) {
				return ready;
			}
		}
		if (!over && core_polls(&polling, deadline_ns)) {
			if (asks && !polling.news) {
				result = REAL(ppoll)(rest, count, &now, NULL);
				ready = result < 0 ? -errno : merge(fds, rest, count);
				if (ready != 0) {
					return ready;
				}
			}
			continue;
		}
		rest[count] = (struct pollfd){ .fd = core.epoll_fd, .events = POLLIN };
		if (deadline_ns != UINT64_MAX) {
			left = wait_left(deadline_ns);
		}
		result = core_sleep(&sleep.epoch);
		if (result < 0) {
			return result;
		}
		if (result > 0) {
			core_look(true);
			over = passed(deadline_ns);
			continue;
		}
		if (!asks) { /* all descriptors are ours */
			result = core_wait(&sleep, deadline_ns != UINT64_MAX ? &left : NULL, mask);
			if (result < 0) {
				return result;
			}
			over = result == 0;
			continue;
		}
		result = sleep_in_poll(
			&sleep, rest, count + 1, deadline_ns != UINT64_MAX ? &left : NULL, mask);
		if (result < 0) {
			return result;
		}
		core_look(true);
		/* The next round includes the kernel's results. */
		over = result > (rest[count].revents != 0) || result == 0;
	}
}

/* Delivers pending signals that the mask does not block. The kernel's ppoll() does this whenever no
 * descriptor is ready, even with a timeout of 0. Called without the lock, because such a signal
 * must not be deferred. */
static int let_in(const sigset_t *mask)
{
	const struct timespec now = { 0 };

	return REAL(ppoll)(NULL, 0, &now, mask) < 0 ? -errno : 0;
}

int wait_poll(
	struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	struct pollfd on_stack[FDS_ON_STACK];
	SOCKETS_AUTO_FREE struct pollfd *allocated = NULL;
	struct pollfd *rest = on_stack;
	uint64_t deadline_ns = wait_deadline(timeout);
	int saved = errno;
	int result;

	pthread_testcancel();
	if (count + 1 > FDS_ON_STACK) {
		allocated = malloc((count + 1) * sizeof(*rest));
		rest = allocated;
		if (rest == NULL) {
			return -ENOMEM;
		}
	}
	if (core_lock()) {
		result = poll_locked(fds, rest, count, deadline_ns, mask);
		core_unlock();
		errno = saved;
	} else {
		result = -EINTR;
	}
	return result == 0 && mask != NULL ? let_in(mask) : result;
}
