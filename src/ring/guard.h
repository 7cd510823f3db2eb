// SPDX-License-Identifier: Apache-2.0
/*
 * Receiving from a Unix socket whose peer can send file descriptors (base/rights.h). The receive
 * has room for them, so that this thread does not close them: a worker does, because closing can
 * block. The receive then ends with -EPERM, because no protocol here sends descriptors in the data
 * stream. MSG_WAITALL is not used, because the kernel would not report descriptors in the middle
 * of the data.
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
	struct iovec iov; /* memory not filled yet */
	size_t done;
	bool wait_all;
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
};

/* Returns a guard for a receive; NULL: out of memory. */
struct ring_guard *ring_guard_get(
	struct ring_guard **free_list, struct ring_file file, void *buf, size_t len, bool wait_all);
void ring_guard_put(struct ring_guard **free_list, struct ring_guard *guard);
void ring_guards_free(struct ring_guard *free_list);
/* The receive of guard->message has ended with *result_inout. Returns true if the whole receive is
 * complete, with its result in *result_inout; false if the rest must still be received. */
GMB_MUST_CHECK bool ring_guard_take(struct ring_guard *guard, int *result_inout);
/* The receive is being cancelled: it ends with whatever has arrived. */
void ring_guard_cancel(struct ring_guard *guard);
/* Calls recvmsg() immediately, for a message without control data. */
ssize_t ring_guard_receive(int fd, struct msghdr *message);
