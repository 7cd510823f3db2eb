// SPDX-License-Identifier: Apache-2.0
/*
 * How a queue sleeps: on descriptors (epoll), and on futex words of peers (io_uring, Linux 6.7),
 * together. Without io_uring, or where it cannot wait for futex words, it is the epoll set alone.
 *
 *   descriptors ──▶ epoll set ──▶ (poll) ──┐
 *   futex words ─────────────▶ (FUTEX_WAIT) ┴▶ io_uring: waiter_fd(), waiter_wait()
 *
 * Threading: the queue's thread. Ownership: the waiter holds a waiter_file from add to remove, and
 * a waiter_futex from the time its wait begins until happened() is called or the waiter is
 * destroyed. Errors: negative errno.
 */
#pragma once

#include <stdatomic.h>

#include "base/compiler.h"

struct waiter;

/* A descriptor that is waited for. happened() gets epoll's events. It may remove other files, but
 * must not free any: an event of it may be at hand. */
struct waiter_file {
	int fd; /* -1: not added */
	void (*happened)(struct waiter_file *file, uint32_t events);
};

/* A futex word that is waited for. */
struct waiter_futex {
	void (*happened)(struct waiter_futex *futex);
	void *owner; /* for happened() */
	const _Atomic(uint32_t) *word;
	uint32_t expected;
	bool in_flight; /* read only: the kernel has it */
	bool orphaned;	/* private: its owner has gone */
};

enum waiter_kind { WAITER_EPOLL, WAITER_URING };

/* Makes one of the kind, WAITER_URING only where the kernel waits for futex words (else
 * -EOPNOTSUPP). */
GMB_MUST_CHECK int waiter_create(enum waiter_kind kind, struct waiter **waiter_out);
void waiter_destroy(struct waiter *waiter);
/* In the child after fork(): gives up without touching what the parent uses. */
void waiter_after_fork(struct waiter *waiter);

/* Polls readable when waiter_wait() has something to do; everything that was asked for must have
 * been submitted by waiter_submit(). */
int waiter_fd(const struct waiter *waiter);

GMB_MUST_CHECK int waiter_file_add(
	struct waiter *waiter, struct waiter_file *file, int fd, uint32_t events);
void waiter_file_events(struct waiter *waiter, struct waiter_file *file, uint32_t events);
void waiter_file_remove(struct waiter *waiter, struct waiter_file *file);

/* Allocates one; NULL when there is no memory. */
struct waiter_futex *waiter_futex_create(void (*happened)(struct waiter_futex *futex));
/* Ends a wait in flight, if any, without happened(), and frees it. The word may be unmapped when
 * this returns. */
void waiter_futex_destroy(struct waiter *waiter, struct waiter_futex *futex);
/* Waits until the word is not expected any more, or a wake-up. Not in flight. Only with
 * WAITER_URING. */
void waiter_futex_start(struct waiter *waiter, struct waiter_futex *futex,
	const _Atomic(uint32_t) *word, uint32_t expected);

/* Hands what was asked for to the kernel. */
void waiter_submit(struct waiter *waiter);

/* Calls happened() for what has happened, after waiting for at most timeout_ns (0 = not at all,
 * UINT64_MAX = no limit) if nothing has. all: also look where looking costs a system call. */
void waiter_wait(struct waiter *waiter, uint64_t timeout_ns, bool all);
