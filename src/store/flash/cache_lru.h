// SPDX-License-Identifier: Apache-2.0
/*
 * The order of a write cache's pages: which are cold, which is evicted next. Pure, no allocation
 * after the start; the pages themselves are the caller's. The flash store and the trace tool both
 * run on this code.
 *
 *            newest                                     oldest
 *   dirty    [ hot: 100 - x % of them ][ cold: x % of them ] -> cache_lru_oldest()
 *   clean    [ written, kept until a slot is needed        ] -> cache_lru_take()
 *   busy     taken for new data, or being written: on no list
 *   free
 *
 * An access moves its page to the front and at most one other page across the boundary, so every
 * operation takes constant time. A cold page counts in cold_dirty of the segment where its last
 * version on flash lies (its home), as long as it is cold. What becomes of cold pages is counted:
 * those that were evicted or flushed, of these and those that users wrote first or trimmed, are the
 * table's cold_weight. A count is halved when the sum is above the number of slots.
 *
 *   CACHE_FREE -> CACHE_BUSY <-> CACHE_HOT, CACHE_COLD
 *                 CACHE_BUSY -> CACHE_CLEAN -> CACHE_BUSY, CACHE_FREE
 *                 CACHE_HOT, CACHE_COLD -> CACHE_FREE (trimmed)
 *
 * Threading: the owner's ring. Ownership: the caller's memory for the slots, held until the end.
 * Errors: none; a broken rule is an assertion.
 */
#pragma once

#include "store/flash/gc_policy.h"

enum { CACHE_NO_SLOT = UINT32_MAX };

enum cache_state {
	CACHE_FREE,
	CACHE_BUSY, /* the caller fills it or writes it */
	CACHE_CLEAN,
	CACHE_HOT,
	CACHE_COLD,
	CACHE_STATE_COUNT,
};

struct cache_slot {
	uint32_t newer; /* neighbours in its list */
	uint32_t older;
	uint32_t home;	 /* segment, GC_NO_SEGMENT: not known, or not on flash */
	uint8_t state;	 /* enum cache_state */
	bool is_counted; /* in cold_dirty of its home */
};

struct cache_list {
	uint32_t newest;
	uint32_t oldest;
	uint32_t count;
};

struct cache_lru {
	struct gc_table *table;
	struct cache_slot *slots;
	uint32_t slot_count;
	uint32_t cold_percent;
	struct cache_list lists[CACHE_STATE_COUNT]; /* of CACHE_BUSY only the count */
	uint32_t cold_written;			    /* lately */
	uint32_t cold_rewritten;
};

/* All slots are free. Holds slots, an array of slot_count, and table. */
void cache_lru_init(struct cache_lru *lru, struct gc_table *table, uint32_t cold_percent,
	struct cache_slot *slots, uint32_t slot_count);

/* A slot to fill, which is busy then: a free one, else the oldest clean one, whose page is gone.
 * CACHE_NO_SLOT: all are dirty or busy, something must be written first. */
uint32_t cache_lru_take(struct cache_lru *lru);

/* The same of a slot that is free. */
void cache_lru_take_slot(struct cache_lru *lru, uint32_t slot);

/* What the busy slot has is newer than flash. It becomes the newest page. */
void cache_lru_set_dirty(struct cache_lru *lru, uint32_t slot, uint32_t home);

/* A dirty slot was written again, in place: it becomes the newest page. A caller that fills another
 * slot instead says cache_lru_set_dirty() for that and cache_lru_set_free() for this one. */
void cache_lru_touch(struct cache_lru *lru, uint32_t slot);

/* A dirty or clean slot is busy from now on: it is evicted, flushed, or filled again. */
void cache_lru_set_busy(struct cache_lru *lru, uint32_t slot);

/* The same for GC_WRITE_BACK, which does not say what would have become of the page. */
void cache_lru_write_back(struct cache_lru *lru, uint32_t slot);

/* What the busy slot has is on flash now. */
void cache_lru_set_clean(struct cache_lru *lru, uint32_t slot);

/* The page is gone; from any state but free. */
void cache_lru_set_free(struct cache_lru *lru, uint32_t slot);

/* The last version on flash is elsewhere now: moved, or (GC_NO_SEGMENT) dead. Any slot in use. */
void cache_lru_set_home(struct cache_lru *lru, uint32_t slot, uint32_t home);

/* The dirty slot to write next: the oldest cold one, else the oldest hot one; CACHE_NO_SLOT: none
 * is dirty. The next older to be written behind it: cache_lru_newer(). */
uint32_t cache_lru_oldest(const struct cache_lru *lru);

/* The next dirty slot after this dirty one, towards the newest; CACHE_NO_SLOT behind that. */
uint32_t cache_lru_newer(const struct cache_lru *lru, uint32_t slot);

/* Dirty pages, not counting busy ones. */
static inline uint32_t cache_lru_dirty_count(const struct cache_lru *lru)
{
	return lru->lists[CACHE_HOT].count + lru->lists[CACHE_COLD].count;
}

/* gc_way_of() for the slot that has a block's page; CACHE_NO_SLOT: none has. A busy slot is being
 * written by somebody else, who will make the block dead: it is copied from flash. */
enum gc_way cache_lru_gc_way(const struct cache_lru *lru, uint32_t slot);
