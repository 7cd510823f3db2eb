// SPDX-License-Identifier: Apache-2.0
/*
 * A model of the flash store (docs/design/0025) for gmblock-flash-trace: log, map, write
 * cache and garbage collector without bytes, crashes or time. It counts the blocks that are
 * programmed. Victims and the order of the cache are the store's own code.
 *
 *   write ──▶ cache ── evicted, flushed ──▶ HOT segment
 *        └─── large, or no cache ─────────▶ HOT segment      every append makes a leaf dirty
 *   victim ── moved, or written back ─────▶ COLD segment     leaf ──▶ META segment
 *
 * A record is a header block and up to MODEL_RECORD_BLOCKS blocks; each batch begins a new one.
 *
 * Threading: one thread. Ownership: model_create() allocates everything. Errors: model_create()
 * returns NULL without memory; a log that cannot have as many free segments as it should ends the
 * program with a sentence; a broken count is an assertion.
 */
#pragma once

#include "lab/gc_rules.h"
#include "store/flash/cache_lru.h"

enum {
	MODEL_RECORD_BLOCKS = 240,
	MODEL_LEAF_BLOCKS = 512,
};

struct model_config {
	uint32_t blocks; /* of the disk */
	uint32_t segment_blocks;
	double spare; /* part of the log that is not for users' blocks, 0 to 1 */
	enum gc_policy policy;
	uint32_t cold_percent;
	uint32_t cache_blocks;	      /* 0: no cache */
	uint32_t batch_blocks;	      /* evicted at once */
	uint32_t direct_blocks;	      /* writes of at least that many blocks pass by the cache */
	uint32_t leaf_count;	      /* leaves of the map in memory */
	uint32_t checkpoint_segments; /* after so many segments of log */
	uint32_t begin_segments;      /* 0: gc_begin_segments() */
};

/* All in blocks, but for the last three. */
struct model_counts {
	uint64_t user; /* written by users */
	uint64_t evicted;
	uint64_t flushed;
	uint64_t direct;
	uint64_t moved;		   /* read from flash and appended */
	uint64_t moved_from_cache; /* clean in the cache */
	uint64_t written_back;	   /* cold and dirty in the cache */
	uint64_t leaf;
	uint64_t header;
	uint64_t victims;
	uint64_t victim_valid; /* of them all */
	uint64_t checkpoints;
};

struct model;

/* A disk whose every block is written once, in order. Valid until model_destroy(). */
struct model *model_create(const struct model_config *config);
void model_destroy(struct model *model);

/* Blocks are below config->blocks. durable: passes by the cache, as with FUA. */
void model_write(struct model *model, uint32_t block, uint32_t count, bool durable);
void model_trim(struct model *model, uint32_t block, uint32_t count);
void model_flush(struct model *model);

/* Since model_create(), which counts as well. */
const struct model_counts *model_counts(const struct model *model);
uint32_t model_segment_count(const struct model *model);

/* Counts everything anew, and asserts that the tables say the same. */
void model_verify(const struct model *model);
