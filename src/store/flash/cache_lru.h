// SPDX-License-Identifier: Apache-2.0
/*
 * The order of the pages in a write cache: which pages are cold, and which one is evicted next.
 * Pure, no allocation after the start; the pages themselves belong to the caller. The flash store
 * and the trace tool both use this code.
 *
 *             newest                                     oldest
 *    dirty    [ hot: 100 - x %         ][ cold: x %         ] -> cache_lru_oldest()
 *    clean    [ written, kept until a slot is needed        ] -> cache_lru_take()
 *    busy     taken for new data, or being written: on no list
 *    free
 *
 * x is cold_percent. An access moves its page to the newest end, and at most one other page across
 * the boundary between hot and cold. So every operation takes constant time.
 *
 * The home of a page is the segment with its last version on flash. While a page is cold, it is
 * counted in cold_dirty of its home. cold_weight of the table is the share of cold pages that were
 * evicted or flushed before users overwrote or trimmed them. The two counts behind this share,
 * cold_written and cold_rewritten, are halved when their sum exceeds the number of slots.
 *
 *    CACHE_FREE <-> CACHE_BUSY <-> CACHE_HOT, CACHE_COLD
 *                  CACHE_BUSY -> CACHE_CLEAN -> CACHE_BUSY, CACHE_FREE
 *                  CACHE_HOT, CACHE_COLD -> CACHE_FREE (trimmed)
 *
 * Threading: on the owner's ring. Ownership: the caller provides the memory for the slots, which
 * must exist as long as struct cache_lru. Errors: none; a violated precondition fails an assertion.
 */
#pragma once

#include "store/flash/gc_policy.h"

enum { CACHE_NO_SLOT = UINT32_MAX };

enum cache_state {
	CACHE_FREE,
	CACHE_BUSY, /* being filled or written by the caller */
	CACHE_CLEAN,
	CACHE_HOT,
	CACHE_COLD,
	CACHE_STATE_COUNT,
};

struct cache_slot {
	uint32_t newer; /* the slot's neighbours in the list of its state */
	uint32_t older;
	/* segment of the page's last version on flash; GC_NO_SEGMENT: unknown, or none */
	uint32_t home;
	uint8_t state;	 /* enum cache_state */
	bool is_counted; /* the page is counted in cold_dirty of its home */
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
	/* lists by state; for CACHE_BUSY only the count is used */
	struct cache_list lists[CACHE_STATE_COUNT];
	/* Counts cold pages that were recently evicted or flushed. */
	uint32_t cold_written;
	uint32_t cold_rewritten;
};

/* Initializes all slots as free. slots: an array of slot_count elements; slots and table must exist
 * as long as lru. */
void cache_lru_init(struct cache_lru *lru, struct gc_table *table, uint32_t cold_percent,
	struct cache_slot *slots, uint32_t slot_count);

/* Returns a slot to fill, which becomes busy: a free one, else the oldest clean one, whose page is
 * discarded. Returns CACHE_NO_SLOT if all are dirty or busy, so that a page must be written
 * first. */
uint32_t cache_lru_take(struct cache_lru *lru);

/* Takes a particular free slot. */
void cache_lru_take_slot(struct cache_lru *lru, uint32_t slot);

/* Called when the page in the busy slot is newer than its version on flash, which is in segment
 * home. The page becomes the newest dirty page. */
void cache_lru_set_dirty(struct cache_lru *lru, uint32_t slot, uint32_t home);

/* Called when a dirty slot was overwritten in place: its page becomes the newest. A caller that
 * fills another slot instead calls cache_lru_set_dirty() for the new slot and cache_lru_set_free()
 * for this one. */
void cache_lru_touch(struct cache_lru *lru, uint32_t slot);

/* Makes a dirty or clean slot busy, because it is evicted, flushed or filled again. A cold page
 * counts as written. */
void cache_lru_set_busy(struct cache_lru *lru, uint32_t slot);

/* Like cache_lru_set_busy(), but a cold page is not counted as written. For GC_WRITE_BACK: garbage
 * collection writes the page earlier than the cache would have done, and until then users might
 * have overwritten it. */
void cache_lru_write_back(struct cache_lru *lru, uint32_t slot);

/* Called when the page in the busy slot has been written to flash. */
void cache_lru_set_clean(struct cache_lru *lru, uint32_t slot);

/* Discards the page, from any state but free. A cold page counts as overwritten. */
void cache_lru_set_free(struct cache_lru *lru, uint32_t slot);

/* Called when the page's last version on flash has moved to segment home, or no longer exists
 * (GC_NO_SEGMENT). The slot must not be free. */
void cache_lru_set_home(struct cache_lru *lru, uint32_t slot, uint32_t home);

/* Returns the dirty slot to write next: the oldest cold one, else the oldest hot one, or
 * CACHE_NO_SLOT. cache_lru_newer() returns the one after it. */
uint32_t cache_lru_oldest(const struct cache_lru *lru);

/* Returns the next newer dirty slot after this dirty one; CACHE_NO_SLOT after the newest. */
uint32_t cache_lru_newer(const struct cache_lru *lru, uint32_t slot);

/* Number of dirty pages, without busy ones. */
static inline uint32_t cache_lru_dirty_count(const struct cache_lru *lru)
{
	return lru->lists[CACHE_HOT].count + lru->lists[CACHE_COLD].count;
}

/* Returns how garbage collection must move a block whose page is in this slot, see gc_way_of().
 * CACHE_NO_SLOT: the block is not cached. If the slot is busy, the block is copied from flash,
 * although the record that is being written from the slot will replace it. */
enum gc_way cache_lru_gc_way(const struct cache_lru *lru, uint32_t slot);
