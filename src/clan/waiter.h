// SPDX-License-Identifier: Apache-2.0
/*
 * How a queue sleeps: on descriptors (an epoll set) and on futex words of peers (io_uring, Linux
 * 6.7) at the same time. Without io_uring, or if it cannot wait for futex words, the waiter is the
 * epoll set alone.
 *
 *   descriptors ──▶ epoll set ──▶ (poll) ──┐
 *   futex words ─────────────▶ (FUTEX_WAIT) ┴▶ io_uring: waiter_fd(), waiter_wait()
 *
 * Called by queue.c and by the providers of the queue. Threading: the queue's thread. Ownership:
 * the waiter borrows a waiter_file from add to remove. The kernel uses a waiter_futex from
 * waiter_futex_start() until happened() is called; the caller destroys it before the waiter.
 * Errors: negative errno.
 */
#pragma once

#include <stdatomic.h>

#include "base/compiler.h"

struct waiter;

/* A watched descriptor. happened() receives epoll's events. It may remove other files but must not
 * free any, because the current batch of epoll events can still refer to them. */
struct waiter_file {
	int fd; /* -1: not added */
	void (*happened)(struct waiter_file *file, uint32_t events);
};

/* A watched futex word. */
struct waiter_futex {
	void (*happened)(struct waiter_futex *futex);
	void *owner; /* for use by happened() */
	const _Atomic(uint32_t) *word;
	uint32_t expected;
	bool in_flight; /* the kernel waits for the word; set only by the waiter */
	bool orphaned;	/* private: the futex was destroyed with a wait in flight */
};

enum waiter_kind { WAITER_EPOLL, WAITER_URING };

/* Creates a waiter. WAITER_URING fails with -EOPNOTSUPP if the kernel cannot wait for futex
 * words. */
GMB_MUST_CHECK int waiter_create(enum waiter_kind kind, struct waiter **waiter_out);
void waiter_destroy(struct waiter *waiter);
/* In the child after fork(): frees the waiter without touching kernel objects that the parent
 * uses. */
void waiter_after_fork(struct waiter *waiter);

/* Returns a descriptor that polls readable when waiter_wait() has work to do, provided that all
 * requests have been submitted with waiter_submit(). */
int waiter_fd(const struct waiter *waiter);

GMB_MUST_CHECK int waiter_file_add(
	struct waiter *waiter, struct waiter_file *file, int fd, uint32_t events);
void waiter_file_events(struct waiter *waiter, struct waiter_file *file, uint32_t events);
void waiter_file_remove(struct waiter *waiter, struct waiter_file *file);

/* Creates a futex. Returns NULL if there is no memory. */
struct waiter_futex *waiter_futex_create(void (*happened)(struct waiter_futex *futex));
/* Cancels a wait in flight, if there is one, and frees the futex; happened() is not called. The
 * word can be unmapped when this returns. */
void waiter_futex_destroy(struct waiter *waiter, struct waiter_futex *futex);
/* Starts to wait until the word no longer has the expected value, or until the peer wakes the word.
 * The futex must not be in flight. WAITER_URING only. */
void waiter_futex_start(struct waiter *waiter, struct waiter_futex *futex,
	const _Atomic(uint32_t) *word, uint32_t expected);

/* Submits the queued requests to the kernel. */
void waiter_submit(struct waiter *waiter);

/* Calls happened() for the events that have occurred, of at most 32 descriptors per call. If no
 * event has occurred, first waits for one for up to timeout_ns (0 = does not wait, UINT64_MAX = no
 * limit). all: also check sources whose check costs a system call. */
void waiter_wait(struct waiter *waiter, uint64_t timeout_ns, bool all);
