// SPDX-License-Identifier: Apache-2.0
/*
 * The choice of the next segment to collect, and of the way to move its blocks. Pure: no I/O, no
 * clock, no allocation after the start. The flash store and the trace tool (bench/flash_trace.c)
 * both use this code. docs/design/0025 has the reasons and the figures.
 *
 *   valid        blocks of the segment that the map refers to
 *   kept         further blocks that only snapshots refer to
 *   cold_dirty   valid blocks with a newer version in the cold part of the write cache
 *                (store/flash/cache_lru.h). The cache will write them in any case, unless users
 *                overwrite them first, so writing them now has no extra cost.
 *   weight       recent share of cold pages that were written before users overwrote them
 *   net          blocks that collecting the segment writes in addition to those that are written
 *                in any case: valid + kept - weight * cold_dirty
 *   age          blocks that users have appended to the log since the segment's data was new
 *
 * The rule is gc_rule_auto: the cost-benefit rule of Rosenblum and Ousterhout (LFS, SOSP 1991,
 * section 3.6), with the net cost: (blocks - net) * age / (2 * net). lab/gc_rules.h has other rules
 * for comparison. Without the weight, auto would write more blocks to flash than a rule without
 * cache information if the cache holds all dirty data: no page is evicted then, and writing cold
 * pages back is wasted.
 *
 *   GC_FREE -> GC_OPEN -> GC_CLOSED <-> GC_CANDIDATE <-> GC_VICTIM -> GC_FREE
 *                                                            or -> GC_ERASING -> GC_FREE
 *
 * gc_victim() examines every segment: 16,384 segments (1 TiB of 64 MiB segments) take 0.1 ms, while
 * moving the blocks of one takes tens of milliseconds. Buckets by valid count would be faster, but
 * the score has three terms, and the age changes with every append.
 *
 * Threading: on the owner's ring. Ownership: the caller provides the memory for the segments, which
 * must exist as long as struct gc_table. Errors: none; a violated precondition fails an assertion.
 */
#pragma once

#include "base/compiler.h"

struct gc_rule {
	const char *name;
	bool knows_cache;
	bool cost_benefit;
	/* true: cold_dirty is multiplied by gc_table.cold_weight; false: it counts in full */
	bool weighs_cold;
	uint8_t cold_percent; /* default share of cold pages in percent */
};

extern const struct gc_rule gc_rule_auto;

enum gc_state {
	GC_FREE,      /* contains no data */
	GC_OPEN,      /* is being written */
	GC_CLOSED,    /* written, cannot be collected: a checkpoint or snapshot needs it */
	GC_CANDIDATE, /* can be collected */
	GC_VICTIM,    /* being collected; not free yet, even without live blocks */
	GC_ERASING,   /* contains no data; free when the discard is complete */
	GC_STATE_COUNT,
};

enum { GC_NO_SEGMENT = UINT32_MAX, GC_WEIGHT_ONE = 1 << 16 };

struct gc_segment {
	uint64_t stamp; /* value of gc_table.clock when the segment's newest data was written */
	uint32_t valid;
	uint32_t cold_dirty; /* never more than valid */
	uint32_t kept;	     /* estimate of the blocks that only snapshots refer to */
	uint8_t state;	     /* enum gc_state, changed by gc_set_state() only */
};

struct gc_table {
	const struct gc_rule *rule;
	struct gc_segment *segments;
	uint32_t segment_count;
	uint32_t segment_blocks; /* number of blocks in a segment */
	uint64_t clock;		 /* number of blocks that users have appended to the log */
	/* Share of cold pages that were evicted, in units of 1 / GC_WEIGHT_ONE. */
	uint32_t cold_weight;
	uint32_t state_counts[GC_STATE_COUNT];
};

/* Initializes the table with all segments free. segments: an array of segment_count elements; rule
 * and segments must exist as long as the table. */
void gc_init(struct gc_table *table, const struct gc_rule *rule, struct gc_segment *segments,
	uint32_t segment_count, uint32_t segment_blocks);

/* The only function that changes a state. A segment that becomes free, or is erased, must have no
 * valid or kept block. */
void gc_set_state(struct gc_table *table, uint32_t segment, enum gc_state state);

/* Called when the map refers to one more block of this segment, which is open. from: GC_NO_SEGMENT
 * for a new block of a user, which advances the clock. For a block that garbage collection has
 * moved, `from` is the victim, whose age the block keeps. */
void gc_append(struct gc_table *table, uint32_t segment, uint32_t from);

/* Called when the map no longer refers to a block of the segment, because it was overwritten,
 * trimmed or moved. If a cached page counts the block in cold_dirty, call cache_lru_set_home()
 * first. */
void gc_dead(struct gc_table *table, uint32_t segment);

/* Called when a log is opened, for each segment that is not free: makes it GC_CLOSED. valid and
 * stamp come from the map and the checkpoint. */
void gc_restore(struct gc_table *table, uint32_t segment, uint32_t valid, uint64_t stamp);

/* for bench/flash_model.c: one segment for each stream of its log */
enum { GC_RESERVE_SEGMENTS = 3 };

/*
 * Garbage collection begins when fewer segments than this are free: the reserve (with only the
 * reserve free, users wait), one segment to write to, and some for bursts. A greater number costs
 * more writes to flash, because a free segment is spare space that the log does not use
 * (bench/results/flash-policy.md).
 */
static inline uint32_t gc_begin_segments(const struct gc_table *table, uint32_t reserve)
{
	return reserve + 1 + table->segment_count / 256;
}

enum gc_need {
	GC_CHEAP, /* choose the best score, for the fewest writes to flash */
	GC_SPACE, /* choose the fewest valid blocks, because a client waits for free segments */
};

/*
 * Returns the best candidate (of two equal ones, the older), or GC_NO_SEGMENT if no candidate is
 * worth collecting. GC_CHEAP can choose a segment whose blocks are all valid, if some blocks are
 * cold and dirty: that saves writes and frees no space. GC_SPACE never does.
 */
uint32_t gc_victim(const struct gc_table *table, enum gc_need need);

enum gc_way {
	GC_FROM_FLASH,	     /* read the block from flash and append a copy */
	GC_FROM_CLEAN_CACHE, /* append the identical page from the cache */
	GC_WRITE_BACK, /* append the newer version from the cache as new data; it becomes clean */
};

/* The way to move a valid block of a victim. */
static inline enum gc_way gc_way_of(
	const struct gc_rule *rule, bool in_cache, bool is_dirty, bool is_cold)
{
	if (!in_cache) {
		return GC_FROM_FLASH;
	}
	if (!is_dirty) {
		return GC_FROM_CLEAN_CACHE;
	}
	return rule->knows_cache && is_cold ? GC_WRITE_BACK : GC_FROM_FLASH;
}
