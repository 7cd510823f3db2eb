// SPDX-License-Identifier: Apache-2.0
/*
 * Lent memory: pages that a driver lends to the ring for the duration of a request, such as the
 * pages of a ublk request. They are entries of the ring's buffer table and have no address. To name
 * them, this process reserves addresses at which there is no memory:
 *
 *   base ─▶ ┌ slot 0 ┐┌ slot 1 ┐ ...     addresses without memory: an access is a fault
 *               │         │
 *   table ─▶ entry 0   entry 1  ...      pages, while the driver lends them
 *
 * If a send of ring_sendmsg_now() is followed by one from lent memory, MSG_MORE in the flags of its
 * message keeps both in one segment.
 *
 * Only the operations below can transfer to and from these addresses. Any other system call with
 * such an address fails with EFAULT.
 *
 * Threading: the ring's thread. Ownership: ring_lent_create() reserves the addresses until
 * ring_lent_destroy(). The pages belong to the driver. Errors: as in ring.h; -EFAULT: the slot has
 * no pages, or pages for the other direction, or fewer than the range.
 */
#pragma once

#include "ring/ring.h"

struct ring_lent {
	uint8_t *base; /* NULL: not reserved */
	uint32_t slot_bytes;
	uint32_t slot_count; /* slot i is entry i of the buffer table */
	int zero_fd;	     /* /dev/zero */
};

/* Reserves addresses. -ENOMEM, or an error of opening /dev/zero. */
GMB_MUST_CHECK int ring_lent_create(
	struct ring_lent *lent, uint32_t slot_bytes, uint32_t slot_count);
void ring_lent_destroy(struct ring_lent *lent);

/* Returns whether the address is one of lent memory. lent can be NULL. */
static inline bool ring_lent_has(const struct ring_lent *lent, const void *address)
{
	return lent != NULL && (uintptr_t)address - (uintptr_t)lent->base <
				       (uint64_t)lent->slot_bytes * lent->slot_count;
}

/* Returns whether the kernel can receive from a socket into entries of the ring's buffer table
 * (Linux 7.2), by doing so with a page of this process. Runs turns of the ring. */
bool ring_lent_probe(struct ring *ring);

/* Transfer between a socket and a range of one slot. Receives len bytes, fewer only at the end of
 * the stream or after an error. Sends what the socket accepts, like ring_send(). */
void ring_lent_recv(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len, ring_done_fn *done);
void ring_lent_send(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len, ring_done_fn *done);
/* Zeroes a range of one slot. result: number of bytes. */
void ring_lent_zero(struct ring *ring, struct ring_op *op, const struct ring_lent *lent,
	const void *address, size_t len, ring_done_fn *done);

/* Sends a command to the driver of a file (IORING_OP_URING_CMD) with its 16 bytes of parameters,
 * which are copied, and the value of the entry's member addr. result: the driver's. */
void ring_command(struct ring *ring, struct ring_op *op, struct ring_file file, uint32_t command,
	const uint8_t parameters[16], uint64_t addr, ring_done_fn *done);
