// SPDX-License-Identifier: Apache-2.0
/*
 * The pieces of a range that have been handled: everything below the top, except for the gaps. A
 * source starts pieces in order and has few in flight, so there are few gaps, however long the
 * range is.
 *
 *   0 ──────────── gap ──────── gap ───── top ............ length
 *
 * Used by sink.c. Threading: pure functions. Ownership: the caller's object, initialized to zero.
 * Errors: push_pieces_take() returns NULL, or the broken rule of docs/protocol/push.md.
 */
#pragma once

#include "push/wire.h"

/* Each piece or ZERO in flight that a later one has overtaken leaves at most one gap. */
enum { PUSH_GAPS_MAX = PUSH_FLOWS_MAX * PUSH_SLOTS + PUSH_ZEROES_MAX };

struct push_pieces {
	uint64_t top;
	uint32_t gap_count;
	struct push_wire_range gaps[PUSH_GAPS_MAX]; /* unsorted */
};

/* Marks consecutive pieces as handled. Fails if any piece was handled before, or if there would
 * be too many gaps. */
const char *push_pieces_take(struct push_pieces *pieces, uint64_t offset, uint64_t length);
/* Marks pieces that were marked as handled as not handled again. Fails if there would be too many
 * gaps. */
const char *push_pieces_give(struct push_pieces *pieces, uint64_t offset, uint64_t length);
/* Returns whether all pieces of this range are still to be handled. */
bool push_pieces_lack(const struct push_pieces *pieces, uint64_t offset, uint64_t length);
/* Returns the offset below which everything has been handled. */
uint64_t push_pieces_low(const struct push_pieces *pieces);
