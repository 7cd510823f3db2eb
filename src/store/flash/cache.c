// SPDX-License-Identifier: Apache-2.0
/*
 * The write cache: slots and the pages in them, eviction, flushes, and how garbage collection moves
 * cached blocks. cache_file.c finds and opens the file, cache_lru.c has the order of eviction.
 *
 * Invariants: at most one slot contains a page of a block (whose number is lpn), and
 * flash_cache_find() returns this slot. A slot whose page was replaced while a record was being
 * written from it contains no page, but stays busy, in the held list, until the write has ended.
 * The dirty pages form a list from `first` to `last`, ordered by `since`. An entry in the file is
 * committed exactly while its slot contains a change that is in no written record.
 *
 * Called by change.c (put, supersede, drop), log.c (written, retired), gc.c, read.c (find) and
 * flash_pump() (step).
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "store/flash/flash.h"

enum {
	DIRECT_BYTES = 64 << 10, /* writes of this size and more bypass the cache */
	PICKS_MAX = FLASH_RECORD_ENTRIES,
	LOADS_MAX = 32,	   /* limit on map pages that are read at a time */
	ROOM_DIVISOR = 16, /* one slot out of this many is kept available for new pages */
};

/* A read of a map page for pages that will be written. */
struct flash_cache_load {
	struct flash_wait wait;
	struct flash *flash;
};

/* --- memory ---------------------------------------------------------------------------------- */

static uint32_t cache_bucket_count(uint32_t slot_count)
{
	uint32_t count = 64;

	while (count < slot_count) {
		count *= 2;
	}
	return count;
}

static uint8_t *cache_carve(uint8_t **memory, uint64_t bytes)
{
	uint8_t *taken = *memory;

	*memory += align_up(bytes, FLASH_BLOCK_BYTES);
	return taken;
}

/* Divides the memory into the tables, or, with memory NULL, only adds up the sizes. */
static uint64_t cache_lay_out(const struct flash *flash, struct flash_cache *cache, uint8_t *memory)
{
	uint32_t count = cache->slot_count;
	uint8_t *at = memory;

	if (count == 0) {
		return 0;
	}
	cache->lru_slots = (void *)cache_carve(&at, (uint64_t)count * sizeof(*cache->lru_slots));
	cache->slots = (void *)cache_carve(&at, (uint64_t)count * sizeof(*cache->slots));
	cache->page_counts = (void *)cache_carve(
		&at, (uint64_t)flash->anchor.geometry.leaf_count * sizeof(*cache->page_counts));
	cache->buckets =
		(void *)cache_carve(&at, (uint64_t)cache_bucket_count(count) * sizeof(uint32_t));
	cache->picks = (void *)cache_carve(&at, PICKS_MAX * sizeof(*cache->picks));
	cache->loads = (void *)cache_carve(&at, LOADS_MAX * sizeof(*cache->loads));
	return (uint64_t)(at - memory);
}

uint64_t flash_cache_bytes(const struct flash *flash)
{
	struct flash_cache cache = { .slot_count = flash->cache.slot_count };

	return cache_lay_out(flash, &cache, NULL);
}

static void load_ready(struct flash_wait *wait, int result);

void flash_cache_init(struct flash *flash, uint8_t *memory)
{
	struct flash_cache *cache = &flash->cache;

	list_init(&cache->flushing);
	if (cache->slot_count == 0) {
		return;
	}
	(void)cache_lay_out(flash, cache, memory);
	cache->entries = (void *)(cache->file.bytes + FLASH_BLOCK_BYTES);
	cache->pages = cache->file.bytes + flash_cache_slots_at(cache->slot_count);
	cache->bucket_mask = cache_bucket_count(cache->slot_count) - 1;
	for (uint32_t i = 0; i <= cache->bucket_mask; i++) {
		cache->buckets[i] = CACHE_NO_SLOT;
	}
	for (uint32_t i = 0; i < cache->slot_count; i++) {
		cache->slots[i].lpn = FLASH_CACHE_NONE;
	}
	cache->first = CACHE_NO_SLOT;
	cache->last = CACHE_NO_SLOT;
	cache->held = CACHE_NO_SLOT;
	for (uint32_t i = 0; i < LOADS_MAX; i++) {
		cache->loads[i] = (struct flash_cache_load){ { .ready = load_ready }, flash };
		list_init(&cache->loads[i].wait.node);
	}
	cache_lru_init(&cache->lru, &flash->table, flash->rule->cold_percent, cache->lru_slots,
		cache->slot_count);
}

/* --- lookup ---------------------------------------------------------------------------------- */

static uint32_t *cache_bucket_of(const struct flash_cache *cache, uint64_t lpn)
{
	return &cache->buckets[(lpn * UINT64_C(0x9e3779b97f4a7c15) >> 32) & cache->bucket_mask];
}

uint32_t flash_cache_find(const struct flash *flash, uint64_t lpn)
{
	const struct flash_cache *cache = &flash->cache;
	uint32_t slot;

	if (!flash_cache_has_page(cache, lpn / FLASH_NODE_ENTRIES)) {
		return CACHE_NO_SLOT;
	}
	slot = *cache_bucket_of(cache, lpn);
	while (slot != CACHE_NO_SLOT && cache->slots[slot].lpn != lpn) {
		slot = cache->slots[slot].chain;
	}
	return slot;
}

uint32_t flash_cache_run(
	const struct flash *flash, uint64_t lpn, uint32_t count, bool *is_cached_out)
{
	uint32_t run = 1;

	*is_cached_out = false;
	if (!flash_cache_has_page(&flash->cache, lpn / FLASH_NODE_ENTRIES)) {
		return count;
	}
	*is_cached_out = flash_cache_find(flash, lpn) != CACHE_NO_SLOT;
	while (run < count &&
		(flash_cache_find(flash, lpn + run) != CACHE_NO_SLOT) == *is_cached_out) {
		run++;
	}
	return run;
}

/* Inserts a slot into the list of dirty pages in flush order. A new version of a dirty page takes
 * the position of the older one, whose contents were only in the cache: a flush that waited for
 * them must wait for the new ones. */
static void order_enter(struct flash_cache *cache, uint32_t slot, uint32_t before, uint32_t behind)
{
	cache->slots[slot].before = before;
	cache->slots[slot].behind = behind;
	*(before == CACHE_NO_SLOT ? &cache->first : &cache->slots[before].behind) = slot;
	*(behind == CACHE_NO_SLOT ? &cache->last : &cache->slots[behind].before) = slot;
}

static void order_leave(struct flash_cache *cache, uint32_t slot)
{
	uint32_t before = cache->slots[slot].before;
	uint32_t behind = cache->slots[slot].behind;

	*(before == CACHE_NO_SLOT ? &cache->first : &cache->slots[before].behind) = behind;
	*(behind == CACHE_NO_SLOT ? &cache->last : &cache->slots[behind].before) = before;
}

/* Enters a page into the lookup tables. */
static void enter(struct flash_cache *cache, uint32_t slot, const struct flash_cache_page *page)
{
	uint32_t *bucket = cache_bucket_of(cache, page->lpn);

	cache->slots[slot] = (struct flash_cache_slot){
		.lpn = page->lpn, .counter = page->counter, .stamp = page->stamp, .chain = *bucket
	};
	*bucket = slot;
	cache->page_counts[page->lpn / FLASH_NODE_ENTRIES]++;
}

/* Removes a page from the lookup tables. Its record in flight no longer counts in writing_count. */
static void leave(struct flash_cache *cache, uint32_t slot)
{
	uint64_t lpn = cache->slots[slot].lpn;
	uint32_t *link = cache_bucket_of(cache, lpn);

	while (*link != slot) {
		link = &cache->slots[*link].chain;
	}
	*link = cache->slots[slot].chain;
	cache->slots[slot].lpn = FLASH_CACHE_NONE;
	cache->page_counts[lpn / FLASH_NODE_ENTRIES]--;
	cache->writing_count -= cache->slots[slot].writing != 0;
	cache->slots[slot].writing = 0;
}

/* Stores the word that makes the slot's entry valid, or invalid (0), for the next process after a
 * kill. */
static void commit(struct flash_cache *cache, uint32_t slot, uint64_t value)
{
	/* Release order: a later process that sees this word also sees the entry and the page. */
	__atomic_store_n(&cache->entries[slot].commit, htole64(value), __ATOMIC_RELEASE);
}

static bool is_dirty(const struct flash_cache *cache, uint32_t slot)
{
	return cache->lru_slots[slot].state == CACHE_HOT ||
	       cache->lru_slots[slot].state == CACHE_COLD;
}

/* Removes the page of a slot, also from the file. If a record in flight is written from the slot,
 * the slot cannot be reused yet and joins the held list. */
static void cache_release(struct flash_cache *cache, uint32_t slot)
{
	struct flash_cache_slot *found = &cache->slots[slot];
	uint64_t held_by = found->is_superseded ? 0 : found->writing;

	if (is_dirty(cache, slot)) {
		order_leave(cache, slot);
	}
	commit(cache, slot, 0);
	leave(cache, slot);
	if (held_by == 0) {
		cache_lru_set_free(&cache->lru, slot);
	} else { /* flash_cache_retired() frees the slot */
		found->writing = held_by;
		found->chain = cache->held;
		cache->held = slot;
	}
}

static void cache_count_dirty(struct flash *flash)
{
	flash->counters.dirty_pages =
		cache_lru_dirty_count(&flash->cache.lru) + flash->cache.writing_count;
}

/* Records that the page in the slot, or newer contents of its block, are in the record being
 * filled. */
static void set_writing(struct flash *flash, uint32_t slot)
{
	struct flash_cache *cache = &flash->cache;

	cache->slots[slot].writing = flash->log.filling->at.seq;
	cache->writing_count++;
	cache_count_dirty(flash);
}

/* --- new pages ------------------------------------------------------------------------------- */

bool flash_cache_takes(struct flash *flash, struct store_part *part)
{
	const struct flash_cache *cache = &flash->cache;

	if (cache->slot_count == 0 || cache->is_leaving || cache->is_tight ||
		part->op != STORE_WRITE || (part->flags & STORE_FUA) != 0 ||
		part->length >= DIRECT_BYTES || flash_scratch_of(part)->is_logged ||
		!list_is_empty(&flash->checkpoint.quiescing)) {
		return false;
	}
	/* A start searches for the file only if the anchor refers to it. Until a checkpoint has
	 * written such an anchor, changes go to the log. */
	if (!cache->is_recorded && !flash->checkpoint.is_asked) {
		flash_checkpoint_await(flash);
	}
	return cache->is_recorded;
}

/* Number of slots that a new page can use immediately, without a write to the log. */
static uint32_t cache_room_of(const struct flash_cache *cache)
{
	return cache->lru.lists[CACHE_FREE].count + cache->lru.lists[CACHE_CLEAN].count;
}

bool flash_cache_has_room(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;

	if (cache_room_of(cache) > 0) {
		return true;
	}
	/* The busy slots might be in the record being filled. If only garbage collection fills this
	 * record, no part waits for it, and it stays open. Closing it writes it and frees the
	 * slots. */
	if (flash->log.flying_count == 0 && cache->lru.lists[CACHE_BUSY].count > 0) {
		flash_log_close(flash);
	}
	return false;
}

/* True if the record being filled has an entry for the block. The map page of such a block is
 * pinned. */
static bool is_being_filled(struct flash *flash, uint64_t lpn)
{
	const struct flash_buffer *buffer = flash->log.filling;
	const struct flash_slot *page = flash_map_find(flash, (uint32_t)(lpn / FLASH_NODE_ENTRIES));

	if (buffer == NULL || page == NULL || page->pins == 0) {
		return false;
	}
	for (uint32_t i = 0; i < buffer->record.entry_count; i++) {
		const struct flash_record_entry *entry = &buffer->record.entries[i];
		uint64_t count = entry->kind == FLASH_TRIM ? entry->source : 1;

		if (!flash_kind_is_node(entry->kind) && lpn >= entry->lpn &&
			lpn < entry->lpn + count) {
			return true;
		}
	}
	return false;
}

/* Returns the segment with the block's version on the device, or GC_NO_SEGMENT if it is not there
 * or its map page is not in memory. */
static uint32_t home_of(struct flash *flash, uint64_t lpn)
{
	const struct flash_slot *page = flash_map_find(flash, (uint32_t)(lpn / FLASH_NODE_ENTRIES));
	uint32_t block = 0;

	if (page != NULL && page->state != FLASH_SLOT_LOADING) {
		block = le32toh(page->node->entries[lpn % FLASH_NODE_ENTRIES].block);
	}
	return block == 0 ? GC_NO_SEGMENT : flash_segment_of(&flash->anchor.geometry, block);
}

/* Gives the page to the busy slot, which becomes dirty. Frees the block's old slot, if any. If the
 * old page was dirty, the new one takes over its position in flush order. */
static void replace(struct flash_cache *cache, uint32_t old, uint32_t slot,
	const struct flash_cache_page *page, uint32_t home)
{
	uint32_t before = cache->last;
	uint32_t behind = CACHE_NO_SLOT;
	uint64_t since = page->counter;

	if (old != CACHE_NO_SLOT) {
		if (is_dirty(cache, old)) {
			since = cache->slots[old].since;
			before = cache->slots[old].before;
			behind = cache->slots[old].behind;
		}
		cache_release(cache, old);
		/* cache_release() has removed `old` from the list. If `old` was the last slot, the
		 * new one goes behind the slot that is the last one now. */
		before = behind == CACHE_NO_SLOT ? cache->last : before;
	}
	enter(cache, slot, page);
	cache->slots[slot].since = since;
	order_enter(cache, slot, before, behind);
	cache_lru_set_dirty(&cache->lru, slot, home);
}

void flash_cache_put(struct flash *flash, uint64_t lpn, const uint8_t *data)
{
	struct flash_cache *cache = &flash->cache;
	struct flash_cache_page page = { .lpn = lpn, .counter = ++cache->counter };
	uint32_t slot = cache_lru_take(&cache->lru);
	struct flash_cache_entry *entry = &cache->entries[slot];
	uint8_t *bytes = cache->pages + (size_t)slot * FLASH_BLOCK_BYTES;
	uint32_t home = home_of(flash, lpn);
	uint32_t old;

	GMB_ASSERT(slot != CACHE_NO_SLOT);
	if (cache->slots[slot].lpn != FLASH_CACHE_NONE) {
		leave(cache, slot); /* the slot had a clean page */
	}
	old = flash_cache_find(flash, lpn);
	/* The page gets the number of the record being filled as its stamp. If that record
	 * contained an older version of the block, recovery would take the record for newer than
	 * the page. So that record is closed first, and the stamp is the next number. */
	if (is_being_filled(flash, lpn)) {
		flash_log_close(flash);
	}
	page.stamp = flash->log.head.seq;
	memcpy(bytes, data, FLASH_BLOCK_BYTES);
	entry->lpn = htole64(page.lpn);
	entry->counter = htole64(page.counter);
	entry->stamp = htole64(page.stamp);
	/* If the process is killed before this commit, only the old page is valid. After it, both
	 * pages are valid, and the next process uses the one with the greater counter. */
	commit(cache, slot, FLASH_CACHE_DIRTY << 32 | flash_cache_crc(entry, bytes));
	if (old != CACHE_NO_SLOT) {
		home = home == GC_NO_SEGMENT ? cache->lru_slots[old].home : home;
	}
	replace(cache, old, slot, &page, home);
	cache_count_dirty(flash);
}

void flash_cache_restore(struct flash *flash, uint32_t slot, const struct flash_cache_page *page)
{
	struct flash_cache *cache = &flash->cache;
	uint32_t old = flash_cache_find(flash, page->lpn);

	cache_lru_take_slot(&cache->lru, slot);
	replace(cache, old, slot, page, GC_NO_SEGMENT);
	cache->counter = MAX(cache->counter, page->counter);
	cache_count_dirty(flash);
}

/* --- records with newer contents ------------------------------------------------------------- */

/* Marks the dirty pages of the blocks as superseded by the record being filled. */
void flash_cache_supersede(struct flash *flash, uint64_t lpn, uint32_t count)
{
	struct flash_cache *cache = &flash->cache;

	for (uint64_t end = lpn + count; cache->slot_count > 0 && lpn < end; lpn++) {
		uint32_t slot = flash_cache_find(flash, lpn);

		/* The record being filled has newer contents, so the page must not be written after
		 * that record. The slot is freed when the record is written. */
		if (slot != CACHE_NO_SLOT && is_dirty(cache, slot)) {
			order_leave(cache, slot);
			cache_lru_touch(&cache->lru, slot);
			cache_lru_write_back(&cache->lru, slot);
			cache->slots[slot].is_superseded = true;
			set_writing(flash, slot);
		}
	}
	if (cache->slot_count > 0) {
		cache_count_dirty(flash);
	}
}

void flash_cache_drop(struct flash *flash, uint64_t lpn, uint32_t count)
{
	struct flash_cache *cache = &flash->cache;

	for (uint64_t end = lpn + count;
		lpn < end && flash_cache_has_page(cache, lpn / FLASH_NODE_ENTRIES); lpn++) {
		uint32_t slot = flash_cache_find(flash, lpn);

		if (slot != CACHE_NO_SLOT) {
			cache_release(cache, slot);
		}
	}
	if (cache->slot_count > 0) {
		cache_count_dirty(flash);
	}
}

/* A page with a later stamp is newer than the record and stays dirty. */
void flash_cache_written(struct flash *flash, const struct flash_record_entry *entry, uint64_t seq)
{
	struct flash_cache *cache = &flash->cache;
	uint64_t end = entry->lpn + (entry->kind == FLASH_TRIM ? entry->source : 1);

	if (entry->kind != FLASH_DATA && entry->kind != FLASH_TRIM) {
		return;
	}
	for (uint64_t lpn = entry->lpn;
		lpn < end && flash_cache_has_page(cache, lpn / FLASH_NODE_ENTRIES); lpn++) {
		uint32_t slot = flash_cache_find(flash, lpn);

		if (slot == CACHE_NO_SLOT || cache->slots[slot].stamp > seq) {
			continue;
		}
		/* The record has newer contents than the page, so the page is obsolete. */
		if (cache->slots[slot].writing != seq || cache->slots[slot].is_superseded) {
			cache_release(cache, slot);
			continue;
		}
		/* The record contains the page: it becomes clean, and is not needed after a
		 * kill. */
		commit(cache, slot, 0);
		cache->slots[slot].writing = 0;
		cache->writing_count--;
		cache_lru_set_clean(&cache->lru, slot);
	}
	if (cache->slot_count > 0) {
		cache_count_dirty(flash);
	}
}

void flash_cache_retired(struct flash *flash, uint64_t seq)
{
	struct flash_cache *cache = &flash->cache;
	uint32_t *link = &cache->held;

	while (cache->slot_count > 0 && *link != CACHE_NO_SLOT) {
		uint32_t slot = *link;

		if (cache->slots[slot].writing == seq) {
			*link = cache->slots[slot].chain;
			cache->slots[slot].writing = 0;
			cache_lru_set_free(&cache->lru, slot);
		} else {
			link = &cache->slots[slot].chain;
		}
	}
}

void flash_cache_replayed(struct flash *flash, uint64_t lpn, uint32_t count, uint64_t seq)
{
	struct flash_cache *cache = &flash->cache;

	for (uint64_t end = lpn + count; lpn < end; lpn++) {
		uint32_t slot = flash_cache_find(flash, lpn);

		if (slot != CACHE_NO_SLOT && cache->slots[slot].stamp <= seq) {
			cache_release(cache, slot);
			cache_count_dirty(flash);
		}
	}
}

void flash_cache_moved(struct flash *flash, uint64_t lpn, uint32_t segment)
{
	uint32_t slot = flash_cache_find(flash, lpn);

	if (slot != CACHE_NO_SLOT) {
		cache_lru_set_home(&flash->cache.lru, slot, segment);
	}
}

/* --- pages that are written ------------------------------------------------------------------ */

/* Returns the slot of a picked block, or CACHE_NO_SLOT if the block need no longer be written. An
 * eviction skips a page that was changed after it was picked, because the page is in use again. */
static uint32_t picked(const struct flash *flash, const struct flash_cache_pick *pick)
{
	const struct flash_cache *cache = &flash->cache;
	uint32_t slot = flash_cache_find(flash, pick->lpn);

	return slot != CACHE_NO_SLOT && is_dirty(cache, slot) &&
			       (cache->picks_for_all || cache->slots[slot].counter == pick->counter)
		       ? slot
		       : CACHE_NO_SLOT;
}

/* Sorts by block, so that blocks that will be read together are adjacent. Shell sort, because
 * it needs no memory. */
static void sort(struct flash_cache_pick *picks, uint32_t count)
{
	static const uint32_t gaps[] = { 132, 57, 23, 10, 4, 1 };

	for (size_t g = 0; g < ARRAY_COUNT(gaps); g++) {
		for (uint32_t i = gaps[g]; i < count; i++) {
			struct flash_cache_pick pick = picks[i];
			uint32_t at = i;

			while (at >= gaps[g] && picks[at - gaps[g]].lpn > pick.lpn) {
				picks[at] = picks[at - gaps[g]];
				at -= gaps[g];
			}
			picks[at] = pick;
		}
	}
}

static void pick(struct flash_cache *cache, uint32_t slot)
{
	cache->picks[cache->pick_count++] =
		(struct flash_cache_pick){ .lpn = cache->slots[slot].lpn,
			.counter = cache->slots[slot].counter };
}

/* Picks the pages that were changed least recently, for an eviction. */
static void pick_cold(struct flash_cache *cache, uint32_t count)
{
	uint32_t slot = cache_lru_oldest(&cache->lru);

	cache->picks_for_all = false;
	for (; slot != CACHE_NO_SLOT && cache->pick_count < count;
		slot = cache_lru_newer(&cache->lru, slot)) {
		pick(cache, slot);
	}
	sort(cache->picks, cache->pick_count);
}

/* Picks pages in flush order: those with an unwritten change up to this counter. */
static void pick_all(struct flash_cache *cache, uint64_t counter)
{
	uint32_t slot = cache->first;

	cache->picks_for_all = true;
	for (; slot != CACHE_NO_SLOT && cache->pick_count < PICKS_MAX &&
		cache->slots[slot].since <= counter;
		slot = cache->slots[slot].behind) {
		pick(cache, slot);
	}
	sort(cache->picks, cache->pick_count);
}

static void load_ready(struct flash_wait *wait, int result)
{
	struct flash *flash = container_of(wait, struct flash_cache_load, wait)->flash;

	if (result < 0) { /* the cached blocks of this map page could never be written to the log */
		flash_fail(flash, result, "the map of the disk cannot be read");
	}
}

/* Requests a page of the map. Returns false if too many reads are in flight, or no slot is free. */
static bool load(struct flash *flash, uint32_t page)
{
	for (uint32_t i = 0; i < LOADS_MAX; i++) {
		struct flash_wait *wait = &flash->cache.loads[i].wait;
		bool full;

		if (list_is_empty(&wait->node)) {
			if (flash_map_get(flash, page, wait, &full) == NULL && full) {
				flash_checkpoint_await(flash);
				return false;
			}
			return true;
		}
	}
	return false;
}

/* Makes sure that the map pages of all picked blocks are in memory and dirty. Returns false if some
 * are not ready yet. The picks are sorted, so blocks of one page are adjacent. */
static bool make_ready(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;
	uint32_t last = UINT32_MAX;
	bool all = true;

	for (uint32_t i = 0; i < cache->pick_count; i++) {
		uint32_t page = (uint32_t)(cache->picks[i].lpn / FLASH_NODE_ENTRIES);
		struct flash_slot *slot;

		if (page == last) {
			continue;
		}
		last = page;
		slot = flash_map_find(flash, page);
		if (slot == NULL) {
			if (!load(flash, page)) {
				return false;
			}
			slot = flash_map_find(flash, page);
		}
		if (slot->state == FLASH_SLOT_LOADING) {
			all = false;
		} else if (!flash_map_dirty(flash, slot)) {
			flash_checkpoint_await(flash);
			return false;
		}
	}
	return all;
}

bool flash_cache_holds(const struct flash *flash)
{
	return store_barrier(flash->below, false) == STORE_BARRIER_OPEN;
}

/* Appends the picked pages to the log, up to one record. Returns false if they must
 * wait. */
static bool write_picks(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;
	uint64_t *counter = cache->picks_for_all ? &flash->counters.flushed_blocks
						 : &flash->counters.evicted_blocks;
	uint32_t count = 0;

	for (uint32_t i = 0; i < cache->pick_count; i++) {
		if (picked(flash, &cache->picks[i]) != CACHE_NO_SLOT) {
			cache->picks[count++] = cache->picks[i];
		}
	}
	cache->pick_count = count;
	if (count == 0) {
		return true;
	}
	count = MIN(count, flash_log_fit(flash));
	if (!make_ready(flash) || !flash_log_room(flash, count, false)) {
		return false;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint32_t slot = picked(flash, &cache->picks[i]);
		struct flash_record_entry entry = { .lpn = cache->picks[i].lpn,
			.kind = FLASH_DATA };

		flash_log_append(
			flash, &entry, flash_cache_page(cache, slot), flash_cache_holds(flash));
		order_leave(cache, slot);
		cache_lru_set_busy(&cache->lru, slot);
		set_writing(flash, slot);
	}
	*counter += count;
	flash_gc_credit(flash, count);
	/* The remaining picks go into the next record. */
	cache->pick_count -= count;
	memmove(cache->picks, cache->picks + count, cache->pick_count * sizeof(*cache->picks));
	if (cache->pick_count == 0) {
		/* closed although it is not full: slots become free only when it is written */
		flash_log_close(flash);
	}
	return true;
}

/* --- flushes --------------------------------------------------------------------------------- */

void flash_cache_flush(struct flash *flash, struct store_part *part)
{
	flash_scratch_of(part)->counter = flash->cache.counter;
	list_push_back(&flash->cache.flushing, &part->node);
}

void flash_cache_want_written(struct flash *flash)
{
	flash->cache.wanted = flash->cache.counter;
}

bool flash_cache_has_written(const struct flash *flash)
{
	const struct flash_cache *cache = &flash->cache;

	return cache->slot_count == 0 || cache->first == CACHE_NO_SLOT ||
	       cache->slots[cache->first].since > cache->wanted;
}

/* Fails a flush. No data is lost, because the pages stay in the cache. */
static void flush_refused(struct store_part *part, int error)
{
	part->flags |= STORE_NOTHING_LOST;
	flash_finish(part, error);
}

/* Completes the first flush when its pages are in the log. Returns true if there was progress. */
static bool flush_step(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;
	struct store_part *part;

	if (list_is_empty(&cache->flushing)) {
		return false;
	}
	part = list_entry(list_first(&cache->flushing), struct store_part, node);
	if (flash->failed == 0 && cache->first != CACHE_NO_SLOT &&
		cache->slots[cache->first].since <= flash_scratch_of(part)->counter) {
		/* Pages of the flush are not written yet. If snapshots leave no room for these
		 * pages, the flush fails. */
		if (flash->snapshots.is_stuck) {
			list_remove(&part->node);
			flush_refused(part, -ENOSPC);
		}
		return flash->snapshots.is_stuck;
	}
	if (flash->failed == 0 && (part->flags & STORE_QUIESCE) != 0 && cache->writing_count > 0) {
		flash_log_close(flash);
		/* The anchor of this flush must not refer to the cache file. So the flush waits
		 * until no page is in a record that is still being written. */
		return false;
	}
	list_remove(&part->node);
	if (flash->failed != 0) {
		flash_finish(part, flash->failed);
	} else if ((part->flags & STORE_QUIESCE) != 0 && flash_cache_is_dirty(cache)) {
		/* The flush fails instead of waiting, because the cache might never become clean
		 * while clients continue to write. */
		flush_refused(part, -EBUSY);
	} else if ((part->flags & STORE_QUIESCE) != 0) {
		flash_flush(flash, part);
	} else {
		flash_log_add_part(flash, part);
	}
	return true;
}

/* --- steps ----------------------------------------------------------------------------------- */

/* Picks pages to write. In order of urgency: for all flushes, for a snapshot, to empty the cache,
 * to make room. Returns true if pages are picked. */
static bool cache_choose(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;
	uint32_t room = MIN(cache->slot_count / ROOM_DIVISOR, (uint32_t)PICKS_MAX);

	if (!list_is_empty(&cache->flushing)) {
		struct store_part *part = list_entry(cache->flushing.prev, struct store_part, node);

		pick_all(cache, flash_scratch_of(part)->counter);
	} else if (!flash_cache_has_written(flash)) {
		pick_all(cache, cache->wanted);
	} else if (cache->is_draining || cache->is_leaving || cache->is_tight) {
		pick_all(cache, UINT64_MAX);
	} else if (cache_room_of(cache) + cache->lru.lists[CACHE_BUSY].count < room) {
		pick_cold(cache, MIN(room * 2, (uint32_t)PICKS_MAX));
	}
	return cache->pick_count > 0;
}

bool flash_cache_step(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;

	if (cache->slot_count == 0 || flash->is_starting) {
		return false;
	}
	if (flush_step(flash)) {
		return true;
	}
	if (cache->is_draining && cache_lru_dirty_count(&cache->lru) == 0) {
		/* The record being filled can contain dirty pages that garbage collection appended.
		 * It is closed, because the cache is clean only when they are written. */
		flash_log_close(flash);
	}
	if (flash->failed != 0 || flash_checkpoint_blocks(flash) ||
		(cache->pick_count == 0 && !cache_choose(flash))) {
		return false;
	}
	return write_picks(flash);
}

bool flash_cache_wants_log(const struct flash *flash)
{
	const struct flash_cache *cache = &flash->cache;

	return cache->slot_count > 0 &&
	       (cache->pick_count > 0 || !list_is_empty(&cache->flushing) ||
		       !flash_cache_has_written(flash) ||
		       (cache->is_draining && flash_cache_is_dirty(cache)));
}

/* --- the collector --------------------------------------------------------------------------- */

enum gc_way flash_cache_gc_way(struct flash *flash, uint64_t lpn, uint32_t victim, uint32_t crc)
{
	struct flash_cache *cache = &flash->cache;
	uint32_t slot = flash_cache_find(flash, lpn);
	enum gc_way way;

	if (slot == CACHE_NO_SLOT) {
		return GC_FROM_FLASH;
	}
	if (cache->lru_slots[slot].home == GC_NO_SEGMENT) {
		cache_lru_set_home(&cache->lru, slot, victim);
	}
	way = cache_lru_gc_way(&cache->lru, slot);
	/* A page that was damaged in memory must not be copied, because the copy would get a valid
	 * checksum. */
	return way == GC_FROM_CLEAN_CACHE &&
			       crc32c(0, flash_cache_page(cache, slot), FLASH_BLOCK_BYTES) != crc
		       ? GC_FROM_FLASH
		       : way;
}

void flash_cache_written_back(struct flash *flash, uint64_t lpn)
{
	struct flash_cache *cache = &flash->cache;
	uint32_t slot = flash_cache_find(flash, lpn);

	order_leave(cache, slot);
	cache_lru_write_back(&cache->lru, slot);
	set_writing(flash, slot);
	flash->counters.written_back_blocks++;
}
