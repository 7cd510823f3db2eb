// SPDX-License-Identifier: Apache-2.0
/*
 * Which segment of a log is collected next, and what happens to its blocks. Pure: no I/O, no clock,
 * no allocation after the start. The flash store and the trace tool (bench/flash_trace.c) both run
 * on this code.
 *
 *   valid        blocks of the segment that the map points at
 *   cold_dirty   those of them whose newer version lies in the cold part of the write cache
 *                (store/flash/cache_lru.h). They are written once more anyway, unless users write
 *                them first, so that copying them costs nothing:
 *   net          valid + kept - weight * cold_dirty, kept: blocks that have to be moved for views;
 * weight: the part of cold pages that was written before users wrote them again, as the cache has
 * seen it lately age          blocks that users appended to the log since the segment's data was
 * new
 *
 * The rule is gc_rule_auto: the cost-benefit rule of Rosenblum and Ousterhout (LFS, SOSP 1991,
 * section 3.6), (blocks - net) * age / (2 * net), on net cost. Others, to compare with, are in
 * lab/gc_rules.h. Without its weight, it programs more than a rule that does not know the cache
 * where that holds all that is dirty: nothing is evicted then, and cold pages are written back in
 * vain.
 *
 *   GC_FREE -> GC_OPEN -> GC_CLOSED <-> GC_CANDIDATE <-> GC_VICTIM -> GC_FREE
 *                                                            or -> GC_ERASING -> GC_FREE
 *
 * docs/design/0025 has the reasons and the figures.
 *
 * gc_victim() looks at every segment: 16,384 of them (1 TiB of 64 MiB segments) take 0.1 ms,
 * against the tens of milliseconds in which the blocks of one are moved. Buckets by valid count
 * would be faster, but the score has three terms, and one of them changes with every append.
 *
 * Threading: the owner's ring. Ownership: the caller's memory for the table of segments, held until
 * the end. Errors: none; a broken rule is an assertion.
 */
#pragma once

#include "base/compiler.h"

struct gc_rule {
	const char *name;
	bool knows_cache;
	bool cost_benefit;
	bool weighs_cold;     /* cold_dirty counts as much as the cache has seen, else fully */
	uint8_t cold_percent; /* the default size of the cold part */
};

extern const struct gc_rule gc_rule_auto;

enum gc_state {
	GC_FREE,      /* has no data */
	GC_OPEN,      /* is being appended to */
	GC_CLOSED,    /* full, but must stay as it is: a checkpoint or a view needs it */
	GC_CANDIDATE, /* may be collected */
	GC_VICTIM,    /* is being collected; its last block may be gone, it is not free yet */
	GC_ERASING,   /* has no data, and is free once the device has discarded it */
	GC_STATE_COUNT,
};

enum { GC_NO_SEGMENT = UINT32_MAX, GC_WEIGHT_ONE = 1 << 16 };

struct gc_segment {
	uint64_t stamp; /* the table's clock when its data was new; a checkpoint may keep it */
	uint32_t valid;
	uint32_t cold_dirty; /* at most valid */
	uint32_t kept;	     /* beside valid: blocks that only views point at, about */
	uint8_t state;	     /* enum gc_state; gc_set_state() */
};

struct gc_table {
	const struct gc_rule *rule;
	struct gc_segment *segments;
	uint32_t segment_count;
	uint32_t segment_blocks; /* that a segment can hold */
	uint64_t clock;		 /* blocks that users appended */
	uint32_t cold_weight;	 /* of GC_WEIGHT_ONE; the cache keeps it */
	uint32_t state_counts[GC_STATE_COUNT];
};

/* The higher, the better a victim. blocks: that it can hold; net <= blocks, for cost_benefit alone
 * with age. HUGE_VAL when collecting it costs nothing. */
double gc_score(const struct gc_rule *rule, uint32_t blocks, uint32_t net, uint64_t age);

/* All segments are free. Holds rule and segments, an array of segment_count. */
void gc_init(struct gc_table *table, const struct gc_rule *rule, struct gc_segment *segments,
	uint32_t segment_count, uint32_t segment_blocks);

/* The only place where a state changes. A segment that becomes free, or is erased, must
 * have no valid block. */
void gc_set_state(struct gc_table *table, uint32_t segment, enum gc_state state);

/* The map points at one more block of this open segment. from is GC_NO_SEGMENT for a user's block,
 * which is new and lets the clock tick, else the victim it was moved from, whose age it has. */
void gc_append(struct gc_table *table, uint32_t segment, uint32_t from);

/* The map no longer points at a block of the segment: it was overwritten, trimmed, or moved. When
 * a cached page counts the block in cold_dirty, cache_lru_set_home() goes first. */
void gc_dead(struct gc_table *table, uint32_t segment);

/* When a log is opened: what the map and the checkpoint say of a segment that is GC_FREE. */
void gc_restore(struct gc_table *table, uint32_t segment, uint32_t valid, uint64_t stamp);

enum { GC_RESERVE_SEGMENTS = 3 }; /* of the model: one for each stream of its log */

/*
 * Collecting begins when fewer segments than that are free: the reserve, without which users wait,
 * one to write to, and some for bursts. More are no safety but a loss, for what is free is spare
 * space that the log does not use. With 15 % spare space 1.3 % more of the segments kept free cost
 * 5 % more programs, 6.5 % cost 37 %; with 7 % spare space that much is not even there
 * (bench/results/flash-policy.md).
 */
static inline uint32_t gc_begin_segments(const struct gc_table *table, uint32_t reserve)
{
	return reserve + 1 + table->segment_count / 256;
}

enum gc_need {
	GC_CHEAP, /* the best score: programs are what counts */
	GC_SPACE, /* the fewest valid blocks: somebody waits for free segments */
};

/*
 * The best candidate, the older one of equals; GC_NO_SEGMENT when no candidate is worth it. With
 * GC_CHEAP a segment may be chosen whose blocks are all valid, if some of them are cold and dirty:
 * that saves writes and frees no space. GC_SPACE never chooses such a one.
 */
uint32_t gc_victim(const struct gc_table *table, enum gc_need need);

enum gc_way {
	GC_FROM_FLASH,	     /* read it, append the copy */
	GC_FROM_CLEAN_CACHE, /* append it from the cache, which has the same */
	GC_WRITE_BACK, /* append the newer version from the cache as new data; it is clean then */
};

/* What is done with a valid block of a victim. */
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
