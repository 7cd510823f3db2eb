// SPDX-License-Identifier: Apache-2.0
/*
 * The C library's names for waiting: poll, select and epoll.
 */
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/single_threaded.h>

#include "base/clock.h"
#include "sockets/hooks.h"
#include "sockets/kernel.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum { FDS_ON_STACK = 64 };

static int hooks_wait_give(int result)
{
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return result;
}

static const struct timespec *of_ms(int timeout_ms, struct timespec *timeout)
{
	if (timeout_ms < 0) {
		return NULL;
	}
	timeout->tv_sec = timeout_ms / 1000;
	timeout->tv_nsec = (long)(timeout_ms % 1000) * 1000000;
	return timeout;
}

/* --- poll() ----------------------------------------------------------------------------------- */

/* The connections in a poll() that waits in the kernel. The call is counted in plain_readers of
 * each connection. */
struct plain_poll {
	struct plain_call on_stack[FDS_ON_STACK];
	struct plain_call *allocated;
	struct plain_call *calls;
	nfds_t count;
};

static void plain_poll_leave(struct plain_poll *plain)
{
	int saved = errno;

	for (nfds_t i = 0; i < plain->count; i++) {
		plain_leave(&plain->calls[i]);
	}
	free(plain->allocated);
	errno = saved;
}

/* Counts the call in plain_readers of each connection, until plain_poll_leave(). */
static bool plain_poll_enter(struct plain_poll *plain, const struct pollfd *fds, nfds_t count)
{
	plain->count = 0;
	plain->allocated = count > FDS_ON_STACK ? calloc(count, sizeof(*plain->calls)) : NULL;
	plain->calls = count > FDS_ON_STACK ? plain->allocated : plain->on_stack;
	if (plain->calls == NULL) {
		return false;
	}
	for (nfds_t i = 0; i < count; i++) {
		struct conn *conn = conn_at(fds[i].fd);

		plain->calls[i] = (struct plain_call){ .conn = conn, .entered = conn != NULL };
		if (conn != NULL) {
			atomic_fetch_add(&conn->plain_readers, 1);
		}
		plain->count++;
	}
	return true;
}

/* A thread in the kernel's poll() does not see a ring. So while it waits, no MAY (the peer's
 * permission to use the ring) is sent for its connections. A single-threaded program need not
 * count, because no other thread can send MAY. *ours: the call must be emulated, and was not
 * begun. */
static int poll_plain(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
	const sigset_t *mask, bool *ours)
{
	__attribute__((cleanup(plain_poll_leave))) struct plain_poll plain;

	if (!plain_poll_enter(&plain, fds, count)) {
		errno = ENOMEM;
		return -1;
	}
	/* Another thread might have moved a connection to a ring in the meantime. */
	*ours = wait_is_ours(fds, count);
	return *ours ? 0 : REAL(ppoll)(fds, count, timeout, mask);
}

EXPORT int ppoll(
	struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	bool ours = wait_is_ours(fds, count);
	int result = 0;

	if (!ours && (__libc_single_threaded ||
			     !atomic_load_explicit(&core.active, memory_order_relaxed))) {
		return REAL(ppoll)(fds, count, timeout, mask);
	}
	if (!ours) {
		result = poll_plain(fds, count, timeout, mask, &ours);
	}
	return ours ? hooks_wait_give(wait_poll(fds, count, timeout, mask)) : result;
}

EXPORT int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	struct timespec timeout;

	return ppoll(fds, count, of_ms(timeout_ms, &timeout), NULL);
}

EXPORT int __poll_chk(struct pollfd *fds, nfds_t count, int timeout_ms, size_t room)
{
	GMB_ASSERT(room / sizeof(*fds) >= count);
	return poll(fds, count, timeout_ms);
}

EXPORT int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
	const sigset_t *mask, size_t room)
{
	GMB_ASSERT(room / sizeof(*fds) >= count);
	return ppoll(fds, count, timeout, mask);
}

/* --- select() --------------------------------------------------------------------------------- */

enum {
	SELECT_IN = POLLIN | POLLRDNORM | POLLHUP | POLLERR,
	SELECT_OUT = POLLOUT | POLLWRNORM | POLLERR,
};

/* Returns the number of descriptors to examine. A program can pass sets that are longer than an
 * fd_set, but it can also pass a count that is larger than its sets. The kernel permits this,
 * because it examines no descriptors beyond the end of the process's table. The library's own
 * descriptors have high numbers, so the table is longer with them. So the descriptors at its end
 * that the library owns, or that are not open, are not examined. */
static int hooks_wait_limit(int count)
{
	if (count > FD_SETSIZE && atomic_load_explicit(&core.active, memory_order_relaxed)) {
		count = MIN(count, kernel_table_end());
		while (count > FD_SETSIZE &&
			(core_owns(count - 1) || REAL(fcntl64)(count - 1, F_GETFD) < 0)) {
			count--;
		}
	}
	return count;
}

static bool is_in(int fd, const fd_set *set)
{
	const fd_mask *words = (const fd_mask *)set;

	return set != NULL && ((uint64_t)words[fd / NFDBITS] >> (fd % NFDBITS) & 1) != 0;
}

static bool select_is_ours(int count, const fd_set *in, const fd_set *out, const fd_set *except)
{
	for (int fd = 0; fd < MIN(count, core.fds_end); fd++) {
		struct pollfd one = { .fd = fd };

		/* If the program has several threads, poll() is emulated for every tracked
		 * connection, because another thread can move the connection to a ring during the
		 * wait. */
		if (object_at(fd) != NULL &&
			(is_in(fd, in) || is_in(fd, out) || is_in(fd, except)) &&
			((conn_at(fd) != NULL && !__libc_single_threaded) ||
				wait_is_ours(&one, 1))) {
			return true;
		}
	}
	return false;
}

static nfds_t to_poll(
	struct pollfd *fds, int count, const fd_set *in, const fd_set *out, const fd_set *except)
{
	nfds_t used = 0;

	for (int fd = 0; fd < count; fd++) {
		short events =
			(short)((is_in(fd, in) ? POLLIN : 0) | (is_in(fd, out) ? POLLOUT : 0) |
				(is_in(fd, except) ? POLLPRI : 0));

		if (events != 0) {
			fds[used++] = (struct pollfd){ .fd = fd, .events = events };
		}
	}
	return used;
}

/* Removes the descriptors that are not ready from the set. Returns the number of ready ones. */
static int from_poll(const struct pollfd *fds, nfds_t count, fd_set *set, short asked, short ready)
{
	fd_mask *words = (fd_mask *)set;
	int found = 0;

	if (set == NULL) {
		return 0;
	}
	for (nfds_t i = 0; i < count; i++) {
		int fd = fds[i].fd;

		if ((fds[i].events & asked) == 0) {
			continue;
		}
		if ((fds[i].revents & ready) != 0) {
			found++;
		} else {
			words[fd / NFDBITS] &= (fd_mask) ~(UINT64_C(1) << (fd % NFDBITS));
		}
	}
	return found;
}

/* Implements select() with poll(). fds has room for count entries. */
static int select_by_poll(struct pollfd *fds, int count, fd_set *in, fd_set *out, fd_set *except,
	const struct timespec *timeout, const sigset_t *mask)
{
	nfds_t used = to_poll(fds, count, in, out, except);
	int result = ppoll(fds, used, timeout, mask);

	if (result < 0) {
		return -errno;
	}
	for (nfds_t i = 0; i < used; i++) {
		if ((fds[i].revents & POLLNVAL) != 0) {
			return -EBADF;
		}
	}
	return from_poll(fds, used, in, POLLIN, SELECT_IN) +
	       from_poll(fds, used, out, POLLOUT, SELECT_OUT) +
	       from_poll(fds, used, except, POLLPRI, POLLPRI);
}

static int select_ours(int count, fd_set *in, fd_set *out, fd_set *except,
	const struct timespec *timeout, const sigset_t *mask)
{
	struct pollfd on_stack[FD_SETSIZE];
	SOCKETS_AUTO_FREE struct pollfd *allocated = NULL;
	struct pollfd *fds = on_stack;

	if (count > FD_SETSIZE) {
		allocated = malloc((size_t)count * sizeof(*fds));
		fds = allocated;
		if (fds == NULL) {
			return -ENOMEM;
		}
	}
	return select_by_poll(fds, count, in, out, except, timeout, mask);
}

EXPORT int pselect(int count, fd_set *in, fd_set *out, fd_set *except,
	const struct timespec *timeout, const sigset_t *mask)
{
	count = hooks_wait_limit(count);
	if (!select_is_ours(count, in, out, except)) {
		return REAL(pselect)(count, in, out, except, timeout, mask);
	}
	return hooks_wait_give(select_ours(count, in, out, except, timeout, mask));
}

EXPORT int select(int count, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	struct timespec left;
	uint64_t began_ns;
	uint64_t spent_us;
	uint64_t left_us;
	int result;

	count = hooks_wait_limit(count);
	if (!select_is_ours(count, in, out, except)) {
		return REAL(select)(count, in, out, except, timeout);
	}
	if (timeout == NULL) {
		return hooks_wait_give(select_ours(count, in, out, except, NULL, NULL));
	}
	if (timeout->tv_sec < 0 || timeout->tv_usec < 0) {
		return hooks_wait_give(-EINVAL);
	}
	left = (struct timespec){ .tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000,
		.tv_nsec = timeout->tv_usec % 1000000 * 1000 };
	began_ns = clock_now_ns();
	result = select_ours(count, in, out, except, &left, NULL);
	/* Linux returns the remaining time. */
	spent_us = (clock_now_ns() - began_ns) / 1000;
	left_us = (uint64_t)timeout->tv_sec * 1000000 + (uint64_t)timeout->tv_usec;
	left_us = left_us > spent_us ? left_us - spent_us : 0;
	timeout->tv_sec = (time_t)(left_us / 1000000);
	timeout->tv_usec = (suseconds_t)(left_us % 1000000);
	return hooks_wait_give(result);
}

/* --- epoll ------------------------------------------------------------------------------------ */

static int created(int fd)
{
	if (fd >= 0 && core_calls()) {
		return core_own(fd);
	}
	if (fd >= 0 && atomic_load_explicit(&core.active, memory_order_relaxed)) {
		epoll_track(fd);
	}
	return fd;
}

EXPORT int epoll_create(int size)
{
	return created(REAL(epoll_create)(size));
}

EXPORT int epoll_create1(int flags)
{
	return created(REAL(epoll_create1)(flags));
}

EXPORT int epoll_ctl(int set_fd, int op, int fd, struct epoll_event *event)
{
	struct set *set = set_at(set_fd);

	if (object_at(fd) == NULL || core_calls()) {
		return REAL(epoll_ctl)(set_fd, op, fd, event);
	}
	if (set == NULL) { /* the set was created by another program, or by a call that we did not
			      see */
		epoll_track(set_fd);
		set = set_at(set_fd);
	}
	if (set == NULL) {
		return REAL(epoll_ctl)(set_fd, op, fd, event);
	}
	return hooks_wait_give(epoll_control(set, op, fd, event));
}

/* Waits by the library, and leaves errno alone if that succeeds. */
static int wait_in_set(struct set *set, struct epoll_event *events, int max,
	const struct timespec *timeout, const sigset_t *mask)
{
	int saved = errno;
	int result = epoll_take(set, events, max, timeout, mask);

	errno = saved;
	return hooks_wait_give(result);
}

EXPORT int epoll_pwait2(int set_fd, struct epoll_event *events, int max,
	const struct timespec *timeout, const sigset_t *mask)
{
	struct set *set = set_at(set_fd);

	if (set == NULL) {
		return REAL(epoll_pwait2)(set_fd, events, max, timeout, mask);
	}
	return wait_in_set(set, events, max, timeout, mask);
}

EXPORT int epoll_pwait(
	int set_fd, struct epoll_event *events, int max, int timeout_ms, const sigset_t *mask)
{
	struct set *set = set_at(set_fd);
	struct timespec timeout;

	if (set == NULL) {
		return REAL(epoll_pwait)(set_fd, events, max, timeout_ms, mask);
	}
	return wait_in_set(set, events, max, of_ms(timeout_ms, &timeout), mask);
}

EXPORT int epoll_wait(int set_fd, struct epoll_event *events, int max, int timeout_ms)
{
	struct set *set = set_at(set_fd);
	struct timespec timeout;

	if (set == NULL) {
		return REAL(epoll_wait)(set_fd, events, max, timeout_ms);
	}
	return wait_in_set(set, events, max, of_ms(timeout_ms, &timeout), NULL);
}
