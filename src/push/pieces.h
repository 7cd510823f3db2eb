// SPDX-License-Identifier: Apache-2.0
/*
 * What of a range was dealt with: all below the top, but for the gaps. A source begins with pieces
 * in order and has few under way, so the gaps are few, however long the range is.
 *
 *   0 ──────────── gap ──────── gap ───── top ............ length
 *
 * Threading: pure functions. Ownership: the caller's object, which begins as zeroes. Errors: NULL,
 * or the broken rule of docs/protocol/push.md.
 */
#pragma once

#include "push/wire.h"

/* Each piece and each ZERO that is under way, and was overtaken, leaves one gap at most. */
enum { PUSH_GAPS_MAX = PUSH_SLOTS + PUSH_ZEROES_MAX };

struct push_pieces {
	uint64_t top;
	uint32_t gap_count;
	struct push_wire_range gaps[PUSH_GAPS_MAX]; /* in no order */
};

/* This run of pieces is dealt with: now, and not again. */
const char *push_pieces_take(struct push_pieces *pieces, uint64_t offset, uint64_t length);
/* Whether none of the run was dealt with. */
bool push_pieces_lack(const struct push_pieces *pieces, uint64_t offset, uint64_t length);
/* All below was dealt with. */
uint64_t push_pieces_low(const struct push_pieces *pieces);
