// SPDX-License-Identifier: Apache-2.0
#include "crash_model.h"

#include <string.h>

#include "sim/sim.h"
#include "unit.h"

enum { SECTOR_BYTES = 512 };

struct sector model[SECTORS_MAX];
struct lane lanes[LANES];
uint64_t now;

uint32_t sector_last_done(const struct sector *sector, uint64_t before)
{
	uint32_t last = 0;

	for (uint32_t k = 0; k < sector->count; k++) {
		if (sector->entries[k].done != 0 && sector->entries[k].done < before) {
			last = k;
		}
	}
	return last;
}

static bool is_full(const struct lane *lane)
{
	for (uint32_t i = lane->first; i < lane->first + lane->count; i++) {
		if (model[i].count == ENTRIES_MAX) {
			return true;
		}
	}
	return false;
}

void lane_begin(struct lane *lane, enum store_op op, uint64_t offset, uint64_t tags)
{
	if (op == STORE_FLUSH || lane->count == 0 || is_full(lane)) {
		op = STORE_FLUSH;
		lane->count = 0;
		offset = 0;
	}
	lane->part = (struct store_part){
		.op = op,
		.flags = op != STORE_READ && op != STORE_FLUSH && sim_between(0, 5) == 0 ? STORE_FUA
											 : 0,
		.offset = offset,
		.length = (uint64_t)lane->count * SECTOR_BYTES,
		.memory = mem_of(lane->memory),
	};
	lane->tag = op == STORE_WRITE ? tags | ++now : 0;
	lane->began = ++now;
	lane->busy = true;
	for (uint32_t i = lane->first;
		(BIT(op) & STORE_CHANGES) != 0 && i < lane->first + lane->count; i++) {
		model[i].entries[model[i].count++] = (struct entry){ lane->tag, 0 };
	}
}

/* Of what was done before that moment only the last is left. */
static void model_flushed(uint32_t first, uint32_t count, uint64_t began)
{
	for (uint32_t i = first; i < first + count; i++) {
		struct sector *sector = &model[i];
		uint32_t last = sector_last_done(sector, began);

		sector->count -= last;
		memmove(sector->entries, sector->entries + last,
			sector->count * sizeof(struct entry));
	}
}

void lane_done_well(const struct lane *lane, uint32_t sectors)
{
	if (lane->part.op == STORE_FLUSH) {
		model_flushed(0, sectors, lane->began);
		return;
	}
	for (uint32_t i = lane->first; i < lane->first + lane->count; i++) {
		model[i].entries[model[i].count - 1].done = ++now;
	}
	if ((lane->part.flags & STORE_FUA) != 0) {
		model_flushed(lane->first, lane->count, now + 1);
	}
}

bool lanes_are_busy(void)
{
	bool busy = false;

	for (uint32_t i = 0; i < LANES; i++) {
		busy |= lanes[i].busy;
	}
	return busy;
}
