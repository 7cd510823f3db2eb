// SPDX-License-Identifier: Apache-2.0
/*
 * A queue of the library whose ring also serves a driver. The driver can lend the pages of its
 * requests to the ring, and the library then transfers payload between these pages and its socket
 * without a copy in this process.
 *
 *   driver ── command completes ──▶ gmb_submit(address in lent memory) ──▶ done() ──▶ next command
 *
 * Only NBD over plain TCP can use lent memory.
 *
 * Threading: the queue's thread. Ownership: the caller owns the lent memory and keeps it until the
 * queue is destroyed. Errors: none.
 */
#pragma once

#include <gmblock/gmblock.h>

#include "ring/lent.h"

enum { QUEUE_LENT_SLOTS_MAX = 64 };

/* Returns the queue's ring, for commands to a driver: gmb_queue_wait() runs their callbacks, which
 * may submit requests. lent: memory that requests can use from now on; NULL: none. Called before
 * the first request. */
struct ring *queue_lend(struct gmb_queue *queue, const struct ring_lent *lent);
