// SPDX-License-Identifier: Apache-2.0
/* The simulation has no driver that lends pages, so no address is one of lent memory. */
#include "ring/lent.h"

void ring_lent_recv(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len, ring_done_fn *done)
{
	ring_lent_send(ring, op, file, lent, address, len, done);
}

void ring_lent_send(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len, ring_done_fn *done)
{
	ring_lent_zero(ring, op, lent, address, len, done);
}

void ring_lent_zero(struct ring *ring, struct ring_op *op, const struct ring_lent *lent,
	const void *address, size_t len, ring_done_fn *done)
{
	GMB_ASSERT(lent == NULL);
}
