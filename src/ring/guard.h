// SPDX-License-Identifier: Apache-2.0
/*
 * Receiving from a Unix socket whose peer can send open files along (base/rights.h): with room for
 * them, so that none is closed by this thread. They are given to a worker, and the receive ends
 * with -EPERM, since nobody who receives bytes is owed files. The kernel is not asked to go on
 * until all has come (MSG_WAITALL): it would not tell of files in the middle.
 *
 * Threading: the ring's. Ownership: a guard is the ring's, and belongs to one receive at a time.
 */
#pragma once

#include "base/rights.h"
#include "ring/ring.h"

struct ring_guard {
	struct ring_guard *next; /* among those that are free */
	struct ring_file file;
	struct msghdr message;
	struct iovec iov; /* what has not come yet */
	size_t done;
	bool wait_all;
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
};

/* One for a receive; NULL: no memory. */
struct ring_guard *ring_guard_get(
	struct ring_guard **free_list, struct ring_file file, void *buf, size_t len, bool wait_all);
void ring_guard_put(struct ring_guard **free_list, struct ring_guard *guard);
void ring_guards_free(struct ring_guard *free_list);
/* The receive of guard->message has ended with the result. True: the whole has, with *result_inout;
 * false: the rest is to be received. */
GMB_MUST_CHECK bool ring_guard_take(struct ring_guard *guard, int *result_inout);
/* The receive is being cancelled: a part of it that has come is all. */
void ring_guard_cancel(struct ring_guard *guard);
/* recvmsg() at once, of a message without control data. */
ssize_t ring_guard_receive(int fd, struct msghdr *message);
