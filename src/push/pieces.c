// SPDX-License-Identifier: Apache-2.0
#include "push/pieces.h"

/* Returns the index of the gap that contains all bytes; gap_count: no gap does. */
static uint32_t find_gap(const struct push_pieces *pieces, uint64_t offset, uint64_t length)
{
	uint32_t i = 0;

	while (i < pieces->gap_count &&
		(offset < pieces->gaps[i].offset ||
			offset + length > pieces->gaps[i].offset + pieces->gaps[i].length)) {
		i++;
	}
	return i;
}

static const char *add_gap(struct push_pieces *pieces, uint64_t offset, uint64_t length)
{
	if (length > 0) {
		if (pieces->gap_count == PUSH_GAPS_MAX) {
			return "H9: more pieces are skipped than may be in flight";
		}
		pieces->gaps[pieces->gap_count++] = (struct push_wire_range){ offset, length };
	}
	return NULL;
}

/* If the run begins above the top, the range between the top and the run becomes a gap. A run below
 * the top must lie in one gap, and splits it. */
const char *push_pieces_take(struct push_pieces *pieces, uint64_t offset, uint64_t length)
{
	uint32_t i = find_gap(pieces, offset, length);
	struct push_wire_range gap;
	const char *rule;

	if (offset >= pieces->top) {
		rule = add_gap(pieces, pieces->top, offset - pieces->top);
		pieces->top = offset + length;
		return rule;
	}
	if (i == pieces->gap_count) {
		return "H9: a piece that was already handled";
	}
	gap = pieces->gaps[i];
	pieces->gaps[i] = pieces->gaps[--pieces->gap_count];
	rule = add_gap(pieces, gap.offset, offset - gap.offset);
	return rule != NULL ? rule
			    : add_gap(pieces, offset + length,
				      gap.offset + gap.length - offset - length);
}

const char *push_pieces_give(struct push_pieces *pieces, uint64_t offset, uint64_t length)
{
	return add_gap(pieces, offset, length);
}

bool push_pieces_lack(const struct push_pieces *pieces, uint64_t offset, uint64_t length)
{
	return offset >= pieces->top || find_gap(pieces, offset, length) < pieces->gap_count;
}

uint64_t push_pieces_low(const struct push_pieces *pieces)
{
	uint64_t low = pieces->top;

	for (uint32_t i = 0; i < pieces->gap_count; i++) {
		low = MIN(low, pieces->gaps[i].offset);
	}
	return low;
}
