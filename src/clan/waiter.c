// SPDX-License-Identifier: Apache-2.0
/*
 * How a queue sleeps; see waiter.h.
 *
 * If io_uring is used, the ring polls the epoll set. The poll is one-shot: its completion sets
 * set_ready, the set is checked, and poll_wanted requests the next one. So at most one poll is in
 * flight.
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clan/waiter.h"

/* Missing in the headers of the oldest supported system (io_uring.h, futex.h). */
enum { OP_FUTEX_WAIT = 51, FUTEX_SIZE_U32 = 2 };
#define FUTEX_MATCH_ANY UINT64_C(0xffffffff)

enum {
	RING_ENTRIES = 64,
	EVENTS_MAX = 32, /* limit on descriptors processed in one turn */
};

struct waiter {
	int epoll_fd;
	bool uring;
	bool poll_in_flight; /* the ring polls the epoll set */
	bool poll_wanted;
	bool set_ready;	  /* the poll has completed: the epoll set has events */
	uint32_t cancels; /* cancelled waits of destroyed futexes, without a completion so far */
	struct io_uring ring;
};

/* Values of user_data for completions that belong to no struct waiter_futex. */
enum { ABOUT_SET = 1, ABOUT_CANCEL = 2 };

static struct io_uring_sqe *waiter_get_sqe(struct waiter *waiter)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&waiter->ring);

	if (sqe == NULL) {
		waiter_submit(waiter);
		sqe = io_uring_get_sqe(&waiter->ring);
		GMB_ASSERT(sqe != NULL); /* submitting frees all entries */
	}
	memset(sqe, 0, sizeof(*sqe));
	return sqe;
}

static void put_futex_wait(
	struct io_uring_sqe *sqe, const _Atomic(uint32_t) *word, uint32_t expected, void *data)
{
	sqe->opcode = OP_FUTEX_WAIT;
	sqe->fd = FUTEX_SIZE_U32;
	sqe->addr = (uint64_t)(uintptr_t)word;
	sqe->off = expected;
	sqe->addr3 = FUTEX_MATCH_ANY;
	sqe->user_data = (uint64_t)(uintptr_t)data;
}

/* Tests the operation with a real wait, whose expected value differs from the word. A kernel with
 * the operation ends this wait with EAGAIN. */
static bool futex_works(struct waiter *waiter)
{
	static const _Atomic(uint32_t) word = 1;
	struct io_uring_cqe *cqe;
	int result;

	put_futex_wait(waiter_get_sqe(waiter), &word, 2, NULL);
	result = io_uring_submit_and_wait(&waiter->ring, 1);
	if (result < 0 || io_uring_peek_cqe(&waiter->ring, &cqe) != 0) {
		return false;
	}
	result = cqe->res;
	io_uring_cqe_seen(&waiter->ring, cqe);
	return result == -EAGAIN;
}

/* Creates the ring. Returns -EOPNOTSUPP if the kernel lacks the flags or the futex operations. The
 * memory of the ring is not mapped in a child after fork(), because the child must not use the
 * ring. */
static int waiter_make_ring(struct waiter *waiter)
{
	struct io_uring_params parameters = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN |
			 IORING_SETUP_TASKRUN_FLAG,
	};
	int result = io_uring_queue_init_params(RING_ENTRIES, &waiter->ring, &parameters);

	if (result != 0) {
		return -EOPNOTSUPP;
	}
	waiter->uring = true;
	io_uring_ring_dontfork(&waiter->ring);
	return futex_works(waiter) ? 0 : -EOPNOTSUPP;
}

int waiter_create(enum waiter_kind kind, struct waiter **waiter_out)
{
	struct waiter *waiter = calloc(1, sizeof(*waiter));
	int result = 0;

	if (waiter == NULL) {
		return -ENOMEM;
	}
	waiter->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (waiter->epoll_fd < 0) {
		result = -errno;
	} else if (kind == WAITER_URING) {
		result = waiter_make_ring(waiter);
		waiter->poll_wanted = true;
	}
	if (result != 0) {
		waiter_destroy(waiter);
		return result;
	}
	*waiter_out = waiter;
	return 0;
}

void waiter_destroy(struct waiter *waiter)
{
	if (waiter == NULL) {
		return;
	}
	/* The kernel still has the user_data of cancelled waits, so they must end before the ring
	 * does. */
	while (waiter->cancels > 0) {
		waiter_wait(waiter, UINT64_MAX, true);
	}
	if (waiter->uring) {
		io_uring_queue_exit(&waiter->ring);
	}
	if (waiter->epoll_fd >= 0) {
		close(waiter->epoll_fd);
	}
	free(waiter);
}

void waiter_after_fork(struct waiter *waiter)
{
	/* Only the descriptor is closed, because the ring's memory is not mapped in the child, and
	 * its entries belong to the parent. */
	if (waiter->uring) {
		close(waiter->ring.ring_fd);
	}
	close(waiter->epoll_fd);
	free(waiter);
}

int waiter_fd(const struct waiter *waiter)
{
	return waiter->uring ? waiter->ring.ring_fd : waiter->epoll_fd;
}

/* --- descriptors --------------------------------------------------------------------------- */

int waiter_file_add(struct waiter *waiter, struct waiter_file *file, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = file };

	if (epoll_ctl(waiter->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
		return -errno;
	}
	file->fd = fd;
	return 0;
}

void waiter_file_events(struct waiter *waiter, struct waiter_file *file, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = file };

	if (file->fd >= 0) {
		int result = epoll_ctl(waiter->epoll_fd, EPOLL_CTL_MOD, file->fd, &event);

		GMB_ASSERT(result == 0);
	}
}

void waiter_file_remove(struct waiter *waiter, struct waiter_file *file)
{
	if (file->fd >= 0) {
		int result = epoll_ctl(waiter->epoll_fd, EPOLL_CTL_DEL, file->fd, NULL);

		GMB_ASSERT(result == 0);
		file->fd = -1;
	}
}

static void look_at_set(struct waiter *waiter, int timeout_ms)
{
	struct epoll_event events[EVENTS_MAX];
	int count = epoll_wait(waiter->epoll_fd, events, EVENTS_MAX, timeout_ms);

	waiter->set_ready = false;
	for (int i = 0; i < count; i++) {
		struct waiter_file *file = events[i].data.ptr;

		if (file->fd >= 0) { /* not removed by an earlier callback */
			file->happened(file, events[i].events);
		}
	}
}

/* --- futex words --------------------------------------------------------------------------- */

struct waiter_futex *waiter_futex_create(void (*happened)(struct waiter_futex *futex))
{
	struct waiter_futex *futex = calloc(1, sizeof(*futex));

	if (futex != NULL) {
		futex->happened = happened;
	}
	return futex;
}

void waiter_futex_start(struct waiter *waiter, struct waiter_futex *futex,
	const _Atomic(uint32_t) *word, uint32_t expected)
{
	GMB_ASSERT(waiter->uring && !futex->in_flight);
	futex->word = word;
	futex->expected = expected;
	futex->in_flight = true;
	put_futex_wait(waiter_get_sqe(waiter), word, expected, futex);
}

void waiter_futex_destroy(struct waiter *waiter, struct waiter_futex *futex)
{
	struct io_uring_sqe *sqe;

	if (futex == NULL) {
		return;
	}
	if (!futex->in_flight) {
		free(futex);
		return;
	}
	/* The word can be unmapped immediately, because the kernel holds its own reference to the
	 * page. The struct is freed by the completion of the wait; the cancellation has its own
	 * completion, which is ignored. */
	futex->orphaned = true;
	waiter->cancels++;
	sqe = waiter_get_sqe(waiter);
	sqe->opcode = IORING_OP_ASYNC_CANCEL;
	sqe->fd = -1;
	sqe->addr = (uint64_t)(uintptr_t)futex;
	sqe->user_data = ABOUT_CANCEL;
	waiter_submit(waiter);
}

/* --- the ring ------------------------------------------------------------------------------ */

/* Requests a poll of the epoll set, if none is in flight. */
static void ask_for_set(struct waiter *waiter)
{
	struct io_uring_sqe *sqe;

	if (waiter->poll_wanted && !waiter->poll_in_flight) {
		sqe = io_uring_get_sqe(&waiter->ring);
		if (sqe != NULL) { /* if the ring is full, the next submission requests the poll */
			memset(sqe, 0, sizeof(*sqe));
			sqe->opcode = IORING_OP_POLL_ADD;
			sqe->fd = waiter->epoll_fd;
			sqe->poll32_events = POLLIN;
			sqe->user_data = ABOUT_SET;
			waiter->poll_in_flight = true;
			waiter->poll_wanted = false;
		}
	}
}

void waiter_submit(struct waiter *waiter)
{
	if (!waiter->uring) {
		return;
	}
	ask_for_set(waiter);
	while (io_uring_sq_ready(&waiter->ring) > 0) {
		int result = io_uring_submit(&waiter->ring);

		GMB_ASSERT(
			result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY);
	}
}

/* Dispatches a completion. An orphaned wait has been cancelled, and its struct is freed here. */
static void take_completion(struct waiter *waiter, const struct io_uring_cqe *cqe)
{
	if (cqe->user_data == ABOUT_SET) {
		waiter->poll_in_flight = false;
		waiter->set_ready = true;
	} else if (cqe->user_data != ABOUT_CANCEL) {
		struct waiter_futex *futex = (struct waiter_futex *)(uintptr_t)cqe->user_data;

		futex->in_flight = false;
		if (futex->orphaned) {
			waiter->cancels--;
			free(futex);
		} else {
			futex->happened(futex);
		}
	}
}

static bool waiter_take_completions(struct waiter *waiter)
{
	struct io_uring_cqe *cqe;
	bool any = false;

	while (io_uring_peek_cqe(&waiter->ring, &cqe) == 0) {
		/* Copied first, because happened() can start a new wait, which uses the ring. */
		struct io_uring_cqe copy = { .user_data = cqe->user_data, .res = cqe->res };

		io_uring_cqe_seen(&waiter->ring, cqe);
		take_completion(waiter, &copy);
		any = true;
	}
	return any;
}

/* Sleeps until a completion arrives. An event of the epoll set causes a completion as well, because
 * ask_for_set() lets the ring poll the set. If all is true, prepared operations are submitted even
 * if timeout_ns is 0. */
static void wait_on_ring(struct waiter *waiter, uint64_t timeout_ns, bool all)
{
	struct __kernel_timespec limit = {
		.tv_sec = (int64_t)(timeout_ns / 1000000000),
		.tv_nsec = (int64_t)(timeout_ns % 1000000000),
	};
	struct io_uring_cqe *cqe;

	if (waiter_take_completions(waiter)) {
		return;
	}
	if (timeout_ns > 0) {
		ask_for_set(waiter);
		io_uring_submit_and_wait_timeout(
			&waiter->ring, &cqe, 1, timeout_ns == UINT64_MAX ? NULL : &limit, NULL);
	} else if (all) {
		waiter_submit(waiter);
	}
	waiter_take_completions(waiter);
}

static int milliseconds_up(uint64_t ns)
{
	return ns == UINT64_MAX ? -1 : (int)MIN(ns / 1000000 + (ns % 1000000 != 0), 86400000u);
}

void waiter_wait(struct waiter *waiter, uint64_t timeout_ns, bool all)
{
	if (!waiter->uring) {
		if (timeout_ns > 0 || all) {
			look_at_set(waiter, milliseconds_up(timeout_ns));
		}
		return;
	}
	wait_on_ring(waiter, timeout_ns, all);
	if (waiter->set_ready) {
		look_at_set(waiter, 0);
		waiter->poll_wanted = true;
	}
}
