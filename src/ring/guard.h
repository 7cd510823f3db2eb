// SPDX-License-Identifier: Apache-2.0
/*
 * Receiving from a Unix socket whose peer can send file descriptors (base/rights.h). The receive
 * buffer has room for the descriptors, so that a worker thread can close them: the kernel would
 * close them on this thread, and closing can block. The receive then fails with -EPERM, because no
 * protocol here sends descriptors in the data stream. MSG_WAITALL is not used, because the kernel
 * would not report descriptors in the middle of the data.
 *
 * Threading: the ring's thread. Ownership: the ring owns its guards, and one receive uses a guard
 * at a time.
 */
#pragma once

#include "base/rights.h"
#include "ring/ring.h"

struct ring_guard {
	struct ring_guard *next; /* in the free list */
	struct ring_file file;
	struct msghdr message;
	struct iovec iov; /* part of the buffer that is not filled yet */
	size_t done;
	bool wait_all;
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
};

/* Returns a guard for one receive, or NULL if there is no memory. */
struct ring_guard *ring_guard_get(
	struct ring_guard **free_list, struct ring_file file, void *buf, size_t len, bool wait_all);
void ring_guard_put(struct ring_guard **free_list, struct ring_guard *guard);
void ring_guards_free(struct ring_guard *free_list);
/* Processes the result of receiving guard->message, which is in *result_inout. Returns true if the
 * whole receive is complete; *result_inout is then its result. Returns false if the rest must still
 * be received. */
GMB_MUST_CHECK bool ring_guard_take(struct ring_guard *guard, int *result_inout);
/* Makes a receive that is being cancelled complete with the data that has arrived. */
void ring_guard_cancel(struct ring_guard *guard);
/* Calls recvmsg() immediately, without waiting. message has no control buffer. Returns the number
 * of bytes or a negative errno: -EPERM if the peer sent descriptors, which are closed. */
ssize_t ring_guard_receive(int fd, struct msghdr *message);
