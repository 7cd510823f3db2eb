// SPDX-License-Identifier: Apache-2.0
/* Lent memory of the simulation: the pages are lent->twin, which a test provides. */
#include "ring/lent.h"

#include <string.h>

static uint8_t *twin_of(const struct ring_lent *lent, const void *address, size_t len)
{
	uint64_t at = (uintptr_t)address - (uintptr_t)lent->base;

	GMB_ASSERT(ring_lent_has(lent, address));
	GMB_ASSERT(at % lent->slot_bytes + len <= lent->slot_bytes);
	return lent->twin + at;
}

void ring_lent_recv(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len, ring_done_fn *done)
{
	ring_recv(ring, op, file, twin_of(lent, address, len), len, true, done);
}

void ring_lent_send(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len, ring_done_fn *done)
{
	ring_send(ring, op, file, twin_of(lent, address, len), len, done);
}

void ring_lent_zero(struct ring *ring, struct ring_op *op, const struct ring_lent *lent,
	const void *address, size_t len, ring_done_fn *done)
{
	memset(twin_of(lent, address, len), 0, len);
	ring_defer(ring, op, (int)len, done);
}
