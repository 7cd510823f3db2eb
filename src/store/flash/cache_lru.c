// SPDX-License-Identifier: Apache-2.0
/*
 * The order of the pages in a write cache, see cache_lru.h.
 *
 * Invariant: after each function the cold list has exactly cold_percent of the dirty pages, rounded
 * down. is_counted is true if the page counts in cold_dirty of its home segment, which never
 * exceeds the segment's valid.
 */
#include "store/flash/cache_lru.h"

static const uint32_t state_edges[CACHE_STATE_COUNT] = {
	[CACHE_FREE] = BIT(CACHE_BUSY),
	[CACHE_BUSY] = BIT(CACHE_FREE) | BIT(CACHE_CLEAN) | BIT(CACHE_HOT),
	[CACHE_CLEAN] = BIT(CACHE_FREE) | BIT(CACHE_BUSY),
	[CACHE_HOT] = BIT(CACHE_FREE) | BIT(CACHE_BUSY) | BIT(CACHE_HOT) | BIT(CACHE_COLD),
	[CACHE_COLD] = BIT(CACHE_FREE) | BIT(CACHE_BUSY) | BIT(CACHE_HOT),
};

static struct cache_slot *slot_at(struct cache_lru *lru, uint32_t slot)
{
	GMB_ASSERT(slot < lru->slot_count);
	return &lru->slots[slot];
}

/* Returns the place that contains the link to a slot: its newer neighbour, or the list if the slot
 * is the newest one. */
static uint32_t *link_from_newer(struct cache_lru *lru, struct cache_list *list, uint32_t newer)
{
	return newer == CACHE_NO_SLOT ? &list->newest : &lru->slots[newer].older;
}

static uint32_t *link_from_older(struct cache_lru *lru, struct cache_list *list, uint32_t older)
{
	return older == CACHE_NO_SLOT ? &list->oldest : &lru->slots[older].newer;
}

static void list_leave(struct cache_lru *lru, struct cache_list *list, struct cache_slot *slot)
{
	*link_from_newer(lru, list, slot->newer) = slot->older;
	*link_from_older(lru, list, slot->older) = slot->newer;
}

/* Inserts a slot between `newer` and its older neighbour; CACHE_NO_SLOT: at the newest end. */
static void list_enter(
	struct cache_lru *lru, struct cache_list *list, uint32_t slot, uint32_t newer)
{
	struct cache_slot *found = &lru->slots[slot];
	uint32_t *link = link_from_newer(lru, list, newer);

	found->newer = newer;
	found->older = *link;
	*link = slot;
	*link_from_older(lru, list, found->older) = slot;
}

static void uncount_home(struct cache_lru *lru, struct cache_slot *slot)
{
	if (slot->is_counted) {
		lru->table->segments[slot->home].cold_dirty--;
		slot->is_counted = false;
	}
}

/* A damaged or forged segment table can count fewer valid blocks than exist, so cold_dirty is
 * limited to valid. */
static void count_home(struct cache_lru *lru, struct cache_slot *slot)
{
	if (slot->state == CACHE_COLD && slot->home != GC_NO_SEGMENT) {
		struct gc_segment *home = &lru->table->segments[slot->home];

		slot->is_counted = home->cold_dirty < home->valid;
		home->cold_dirty += slot->is_counted;
	}
}

/* The only function that changes a state. The slot enters the list of its new state at the
 * newest or the oldest end. */
static void lru_set_state(struct cache_lru *lru, uint32_t slot, enum cache_state state, bool newest)
{
	struct cache_slot *found = slot_at(lru, slot);
	struct cache_list *list = &lru->lists[state];

	GMB_ASSERT(state_edges[found->state] & BIT(state));
	uncount_home(lru, found);
	if (found->state != CACHE_BUSY) {
		list_leave(lru, &lru->lists[found->state], found);
	}
	lru->lists[found->state].count--;
	found->state = (uint8_t)state;
	if (state != CACHE_BUSY) {
		list_enter(lru, list, slot, newest ? CACHE_NO_SLOT : list->oldest);
	}
	list->count++;
	count_home(lru, found);
}

/* Moves the boundary between hot and cold pages until the cold list has cold_percent of the dirty
 * pages. Called after each access and each change of their number, so it moves by at most one
 * page. */
static void keep_boundary(struct cache_lru *lru)
{
	uint32_t dirty = cache_lru_dirty_count(lru);
	uint32_t cold = (uint32_t)((uint64_t)dirty * lru->cold_percent / 100);

	if (lru->lists[CACHE_COLD].count < cold) {
		lru_set_state(lru, lru->lists[CACHE_HOT].oldest, CACHE_COLD, true);
	} else if (lru->lists[CACHE_COLD].count > cold) {
		lru_set_state(lru, lru->lists[CACHE_COLD].newest, CACHE_HOT, false);
	}
	GMB_ASSERT(lru->lists[CACHE_COLD].count == cold);
}

/* If the page is cold, increments *count (cold_written or cold_rewritten) and updates the weight.
 * The two + 1 below make the weight 1 at the start. */
static void count_cold(struct cache_lru *lru, uint32_t slot, uint32_t *count)
{
	if (slot_at(lru, slot)->state != CACHE_COLD) {
		return;
	}
	++*count;
	if (lru->cold_written + lru->cold_rewritten > lru->slot_count) {
		lru->cold_written /= 2;
		lru->cold_rewritten /= 2;
	}
	lru->table->cold_weight = (uint32_t)((lru->cold_written + UINT64_C(1)) * GC_WEIGHT_ONE /
					     (lru->cold_written + lru->cold_rewritten + 1));
}

void cache_lru_init(struct cache_lru *lru, struct gc_table *table, uint32_t cold_percent,
	struct cache_slot *slots, uint32_t slot_count)
{
	GMB_ASSERT(cold_percent <= 100);
	*lru = (struct cache_lru){
		.table = table,
		.slots = slots,
		.slot_count = slot_count,
		.cold_percent = cold_percent,
	};
	for (uint32_t state = 0; state < CACHE_STATE_COUNT; state++) {
		lru->lists[state].newest = lru->lists[state].oldest = CACHE_NO_SLOT;
	}
	for (uint32_t i = 0; i < slot_count; i++) {
		slots[i] = (struct cache_slot){ .home = GC_NO_SEGMENT, .state = CACHE_FREE };
		list_enter(lru, &lru->lists[CACHE_FREE], i, CACHE_NO_SLOT);
	}
	lru->lists[CACHE_FREE].count = slot_count;
}

uint32_t cache_lru_take(struct cache_lru *lru)
{
	uint32_t slot = lru->lists[CACHE_FREE].oldest;

	if (slot == CACHE_NO_SLOT) {
		slot = lru->lists[CACHE_CLEAN].oldest;
	}
	if (slot != CACHE_NO_SLOT) {
		lru_set_state(lru, slot, CACHE_BUSY, true);
	}
	return slot;
}

void cache_lru_take_slot(struct cache_lru *lru, uint32_t slot)
{
	GMB_ASSERT(slot_at(lru, slot)->state == CACHE_FREE);
	lru_set_state(lru, slot, CACHE_BUSY, true);
}

void cache_lru_set_dirty(struct cache_lru *lru, uint32_t slot, uint32_t home)
{
	slot_at(lru, slot)->home = home;
	lru_set_state(lru, slot, CACHE_HOT, true);
	keep_boundary(lru);
}

void cache_lru_touch(struct cache_lru *lru, uint32_t slot)
{
	count_cold(lru, slot, &lru->cold_rewritten);
	lru_set_state(lru, slot, CACHE_HOT, true);
	keep_boundary(lru);
}

void cache_lru_write_back(struct cache_lru *lru, uint32_t slot)
{
	lru_set_state(lru, slot, CACHE_BUSY, true);
	keep_boundary(lru);
}

void cache_lru_set_busy(struct cache_lru *lru, uint32_t slot)
{
	count_cold(lru, slot, &lru->cold_written);
	cache_lru_write_back(lru, slot);
}

void cache_lru_set_clean(struct cache_lru *lru, uint32_t slot)
{
	lru_set_state(lru, slot, CACHE_CLEAN, true);
}

void cache_lru_set_free(struct cache_lru *lru, uint32_t slot)
{
	count_cold(lru, slot, &lru->cold_rewritten);
	lru_set_state(lru, slot, CACHE_FREE, true);
	keep_boundary(lru);
}

void cache_lru_set_home(struct cache_lru *lru, uint32_t slot, uint32_t home)
{
	struct cache_slot *found = slot_at(lru, slot);

	uncount_home(lru, found);
	found->home = home;
	count_home(lru, found);
}

uint32_t cache_lru_oldest(const struct cache_lru *lru)
{
	uint32_t slot = lru->lists[CACHE_COLD].oldest;

	return slot != CACHE_NO_SLOT ? slot : lru->lists[CACHE_HOT].oldest;
}

uint32_t cache_lru_newer(const struct cache_lru *lru, uint32_t slot)
{
	uint32_t newer = lru->slots[slot].newer;

	return newer == CACHE_NO_SLOT && lru->slots[slot].state == CACHE_COLD
		       ? lru->lists[CACHE_HOT].oldest
		       : newer;
}

enum gc_way cache_lru_gc_way(const struct cache_lru *lru, uint32_t slot)
{
	enum cache_state state;

	if (slot == CACHE_NO_SLOT) {
		return GC_FROM_FLASH;
	}
	state = lru->slots[slot].state;
	return gc_way_of(
		lru->table->rule, state != CACHE_BUSY, state != CACHE_CLEAN, state == CACHE_COLD);
}
