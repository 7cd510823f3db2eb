// SPDX-License-Identifier: Apache-2.0
/*
 * Operations in flight on a disk that crashes at any moment, and what its sectors may hold then.
 * Each lane has one operation, on sectors that no other lane uses.
 *
 * Threading: one thread. Ownership: static data; the test allocates the memory of the lanes.
 * Errors: failed assertions.
 */
#pragma once

#include "store/store.h"

enum {
	SECTORS_MAX = 8192,
	LANES = 6,
	ENTRIES_MAX = 40,
};

/* What a sector may hold. The first entry is what it had at the last flush. */
struct entry {
	uint64_t tag;
	uint64_t done; /* when it was written, or 0 */
};

struct sector {
	struct entry entries[ENTRIES_MAX];
	uint32_t count;
};

struct lane {
	struct store_part part;
	uint8_t *memory;
	bool busy;
	uint64_t tag; /* of a change */
	uint64_t began;
	uint32_t first;
	uint32_t count;
};

extern struct sector model[SECTORS_MAX];
extern struct lane lanes[LANES];
extern uint64_t now; /* counts what happens */

/* Returns the index of the last entry that was done before that moment. */
uint32_t sector_last_done(const struct sector *sector, uint64_t before);
/* Fills in the lane's part for an operation on its sectors, which are at offset. Without sectors,
 * or if a sector has too many entries, it is a flush instead. tags: upper bits of the tag of a
 * write. The caller sets part.done. */
void lane_begin(struct lane *lane, enum store_op op, uint64_t offset, uint64_t tags);
/* Called when an operation other than a read has succeeded. sectors: number of sectors of the disk.
 */
void lane_done_well(const struct lane *lane, uint32_t sectors);
bool lanes_are_busy(void);
