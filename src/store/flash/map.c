// SPDX-License-Identifier: Apache-2.0
/*
 * The map: the position of each block of the disk. The nodes above level 0 are arrays in memory.
 * Pages of level 0 are read on demand; clean ones are evicted, the least recently used first. Only
 * checkpoints write dirty pages.
 *
 * Invariant: between calls, a slot is in the lru list if and only if it is free, or clean without
 * pins. Only these slots can be taken for another page.
 *
 * Called by reads, changes, the cache, the garbage collector and checkpoints; recovery uses the
 * same slots before the store has started.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum { MAP_NO_SLOT = -1 };

/* --- memory ---------------------------------------------------------------------------------- */

static uint32_t map_bucket_count(uint32_t slot_count)
{
	uint32_t count = 64;

	while (count < slot_count) {
		count *= 2;
	}
	return count;
}

/* Returns the size of a level's array of addresses. It consists of whole nodes, so that the nodes
 * can be written from the array without a copy. */
static uint64_t level_bytes(const struct flash_geometry *geometry, int level)
{
	uint64_t above = level + 1 < FLASH_LEVELS ? geometry->node_counts[level + 1] : 1;

	return above * FLASH_BLOCK_BYTES;
}

static uint8_t *map_carve(uint8_t **memory, uint64_t bytes)
{
	uint8_t *taken = *memory;

	*memory += align_up(bytes, FLASH_BLOCK_BYTES);
	return taken;
}

static void lay_out_tree(
	const struct flash_geometry *geometry, struct flash_tree *tree, uint8_t **memory)
{
	for (int level = 0; level < FLASH_LEVELS; level++) {
		tree->levels[level] = (void *)map_carve(memory, level_bytes(geometry, level));
		tree->dirty[level] =
			level > 0 ? (void *)map_carve(memory, geometry->node_counts[level]) : NULL;
	}
	tree->table_dirty = (void *)map_carve(memory, geometry->page_count - geometry->leaf_count);
	tree->table_begun = (void *)map_carve(memory, geometry->page_count - geometry->leaf_count);
}

/* Divides the memory into trees, buckets, slots and pages, and returns their total size. With
 * memory NULL, only the size is computed. */
static uint64_t map_lay_out(const struct flash_geometry *geometry, uint32_t slot_count,
	struct flash_map *map, uint8_t *memory)
{
	uint8_t *at = memory;
	uint8_t *nodes;

	for (uint32_t tree = 0; tree < FLASH_TREES; tree++) {
		lay_out_tree(geometry, &map->trees[tree], &at);
	}
	map->buckets =
		(void *)map_carve(&at, (uint64_t)map_bucket_count(slot_count) * sizeof(int32_t));
	map->slots = (void *)map_carve(&at, (uint64_t)slot_count * sizeof(struct flash_slot));
	nodes = map_carve(&at, (uint64_t)slot_count * FLASH_BLOCK_BYTES);
	for (uint32_t i = 0; memory != NULL && i < slot_count; i++) {
		map->slots[i].node = (void *)(nodes + (uint64_t)i * FLASH_BLOCK_BYTES);
	}
	return (uint64_t)(at - memory);
}

uint64_t flash_map_bytes(const struct flash_geometry *geometry, uint32_t slot_count)
{
	struct flash_map map;

	return map_lay_out(geometry, slot_count, &map, NULL);
}

void flash_map_init(struct flash *flash, uint8_t *memory)
{
	struct flash_map *map = &flash->map;

	(void)map_lay_out(&flash->anchor.geometry, flash->slot_count, map, memory);
	map->slot_count = flash->slot_count;
	map->bucket_mask = map_bucket_count(flash->slot_count) - 1;
	for (uint32_t i = 0; i <= map->bucket_mask; i++) {
		map->buckets[i] = MAP_NO_SLOT;
	}
	list_init(&map->lru);
	for (uint32_t i = 0; i < map->slot_count; i++) {
		list_init(&map->slots[i].waiting);
		list_push_back(&map->lru, &map->slots[i].lru);
	}
}

/* --- slots ----------------------------------------------------------------------------------- */

static int32_t *map_bucket_of(struct flash_map *map, uint32_t page)
{
	return &map->buckets[(page * UINT32_C(2654435761) >> 8) & map->bucket_mask];
}

struct flash_slot *flash_map_find(struct flash *flash, uint32_t page)
{
	struct flash_map *map = &flash->map;

	for (int32_t i = *map_bucket_of(map, page); i != MAP_NO_SLOT; i = map->slots[i].chain) {
		if (map->slots[i].page == page) {
			return &map->slots[i];
		}
	}
	return NULL;
}

static void unchain(struct flash_map *map, struct flash_slot *slot)
{
	int32_t *link = map_bucket_of(map, slot->page);

	while (&map->slots[*link] != slot) {
		link = &map->slots[*link].chain;
	}
	*link = slot->chain;
}

struct flash_slot *flash_map_take(struct flash *flash, uint32_t page)
{
	struct flash_map *map = &flash->map;
	struct list_node *node = list_pop_front(&map->lru);
	struct flash_slot *slot;
	int32_t *bucket = map_bucket_of(map, page);

	if (node == NULL) {
		return NULL;
	}
	slot = list_entry(node, struct flash_slot, lru);
	if (slot->state == FLASH_SLOT_CLEAN) {
		unchain(map, slot);
	}
	GMB_ASSERT(slot->pins == 0 && list_is_empty(&slot->waiting));
	slot->page = page;
	slot->state = FLASH_SLOT_CLEAN;
	slot->chain = *bucket;
	*bucket = (int32_t)(slot - map->slots);
	memset(slot->node, 0, sizeof(*slot->node));
	return slot;
}

/* Puts a slot into the lru list if it is clean and not pinned. */
static void slot_rest(struct flash_map *map, struct flash_slot *slot)
{
	if (slot->state == FLASH_SLOT_CLEAN && slot->pins == 0) {
		list_remove(&slot->lru);
		list_push_back(&map->lru, &slot->lru);
	}
}

static void slot_free(struct flash_map *map, struct flash_slot *slot)
{
	slot->state = FLASH_SLOT_FREE;
	list_push_front(&map->lru, &slot->lru);
}

void flash_map_release(struct flash *flash, struct flash_slot *slot)
{
	unchain(&flash->map, slot);
	slot_free(&flash->map, slot);
}

static bool node_is_sound(const struct flash *flash, const struct flash_node *node)
{
	for (uint32_t i = 0; i < FLASH_NODE_ENTRIES; i++) {
		uint32_t block = le32toh(node->entries[i].block);

		if (block != 0 && !flash_is_in_segment(&flash->anchor.geometry, block)) {
			return false;
		}
	}
	return true;
}

static void tell_damage(const struct flash *flash, uint32_t page)
{
	char hole[FLASH_HOLE_TEXT_BYTES];
	struct flash_holes holes = { 0 };
	uint32_t page_count = flash->anchor.geometry.page_count;

	flash_hole_add(&holes, page % page_count);
	(void)flash_hole_text(flash, &holes, 0, hole, sizeof(hole));
	log_error("flash store '%s': %s%s cannot be read: a page of the map is damaged%s",
		flash->path, hole, page < page_count ? "" : " in a snapshot",
		page < page_count ? "; 'gmblock check --rebuild' restores it from the log" : "");
}

/* The waiters are moved to a list of their own first, because ready() can request pages, and so
 * take this slot again. */
static void load_done(struct flash_io *io, int result)
{
	struct flash_slot *slot = container_of(io, struct flash_slot, io);
	struct flash *flash = io->flash;
	bool is_orphan = slot->page == FLASH_NO_PAGE;
	uint32_t block = io->block;
	struct list_node waiting;
	struct list_node *node;

	flash->segments[flash_segment_of(&flash->anchor.geometry, block)].readers--;
	/* flash_map_forget() has dropped the page while it was being read */
	if (is_orphan) {
		result = -ESTALE;
	} else if (result == 0 &&
		   (crc32c(0, slot->node, sizeof(*slot->node)) !=
				   le32toh(flash_page_entry(flash, slot->page).crc) ||
			   !node_is_sound(flash, slot->node))) {
		flash->counters.checksum_errors++;
		tell_damage(flash, slot->page);
		result = -EIO;
	}
	list_init(&waiting);
	list_move_all(&waiting, &slot->waiting);
	if (is_orphan) {
		slot_free(&flash->map, slot);
	} else if (result < 0) {
		flash_map_release(flash, slot);
	} else {
		slot->state = FLASH_SLOT_CLEAN;
		slot_rest(&flash->map, slot);
	}
	while ((node = list_pop_front(&waiting)) != NULL) {
		struct flash_wait *wait = list_entry(node, struct flash_wait, node);

		wait->ready(wait, result);
	}
}

struct flash_slot *flash_map_get(
	struct flash *flash, uint32_t page, struct flash_wait *wait, bool *full)
{
	struct flash_slot *slot = flash_map_find(flash, page);
	uint32_t block = le32toh(flash_page_entry(flash, page).block);

	*full = false;
	if (slot == NULL) {
		slot = flash_map_take(flash, page);
		if (slot == NULL) {
			*full = true;
			return NULL;
		}
		/* The page has no node on the device, so it consists of zeroes and is clean. */
		if (block == 0) {
			slot_rest(&flash->map, slot);
			return slot;
		}
		flash->counters.map_misses++;
		slot->state = FLASH_SLOT_LOADING;
		flash->segments[flash_segment_of(&flash->anchor.geometry, block)].readers++;
		flash_io_start(flash, &slot->io, false, mem_of(slot->node), block,
			FLASH_BLOCK_BYTES, load_done);
	}
	if (slot->state == FLASH_SLOT_LOADING) {
		list_push_back(&slot->waiting, &wait->node);
		return NULL;
	}
	slot_rest(&flash->map, slot);
	return slot;
}

/* Returns the limit of dirty pages. Before the first checkpoint of a run (round 0) it is higher: if
 * the killed server was writing a checkpoint, the replay applies the changes before that checkpoint
 * and also those made while it was being written. */
static uint32_t dirty_max(const struct flash *flash)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;

	return flash->map.round == 0 ? geometry->replay_max : geometry->dirty_max;
}

bool flash_map_dirty(struct flash *flash, struct flash_slot *slot)
{
	struct flash_map *map = &flash->map;

	if (slot->state == FLASH_SLOT_DIRTY && !flash_slot_is_old(flash, slot)) {
		return true;
	}
	/* An old page belongs to the checkpoint in progress, which must get its contents
	 * before this change. */
	if (map->dirty_count >= dirty_max(flash) ||
		(flash_slot_is_old(flash, slot) && !flash_checkpoint_append(flash, slot))) {
		return false;
	}
	GMB_ASSERT(slot->state == FLASH_SLOT_CLEAN || slot->state == FLASH_SLOT_WRITTEN);
	list_remove(&slot->lru);
	slot->state = FLASH_SLOT_DIRTY;
	slot->round = map->round;
	map->dirty_count++;
	return true;
}

void flash_map_clean(struct flash *flash, struct flash_slot *slot)
{
	GMB_ASSERT(slot->state == FLASH_SLOT_WRITTEN || flash_slot_is_old(flash, slot));
	slot->state = FLASH_SLOT_CLEAN;
	slot_rest(&flash->map, slot);
}

void flash_map_pin(struct flash_slot *slot)
{
	list_remove(&slot->lru);
	slot->pins++;
}

/* A page that stays dirty is put into the lru list later, by flash_map_clean(). */
void flash_map_unpin(struct flash *flash, struct flash_slot *slot)
{
	GMB_ASSERT(slot->pins > 0);
	slot->pins--;
	slot_rest(&flash->map, slot);
}

/* --- changes --------------------------------------------------------------------------------- */

/* Called when the disk no longer refers to a block: corrects the counts of its segment. */
static void block_dies(struct flash *flash, uint32_t block)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t segment = flash_segment_of(geometry, block);

	flash->map.trees[0].table_dirty[segment / FLASH_TABLE_ENTRIES] = true;
	if (flash->table.segments[segment].valid > flash->table.segments[segment].cold_dirty) {
		gc_dead(&flash->table, segment);
		flash_snapshots_block_dies(flash, segment);
	} else { /* the segment table on the device was wrong */
		flash_fail(flash, -EUCLEAN, "the segment table does not match the map of the disk");
	}
}

static void block_lives(struct flash *flash, uint32_t block, uint32_t from)
{
	uint32_t segment = flash_segment_of(&flash->anchor.geometry, block);

	flash->map.trees[0].table_dirty[segment / FLASH_TABLE_ENTRIES] = true;
	gc_append(&flash->table, segment, from);
}

/* The order matters: flash_cache_moved() comes before block_dies(), because a cached page might
 * count the old block in cold_dirty, see gc_dead(). */
void flash_map_apply(struct flash *flash, const struct flash_record_entry *entry, uint32_t block)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	struct flash_slot *slot =
		flash_map_find(flash, (uint32_t)(entry->lpn / FLASH_NODE_ENTRIES));
	struct flash_entry *at = &slot->node->entries[entry->lpn % FLASH_NODE_ENTRIES];
	uint32_t old = le32toh(at->block);
	uint32_t from = entry->kind == FLASH_TRIM || entry->source == 0
				? GC_NO_SEGMENT
				: flash_segment_of(geometry, entry->source);

	GMB_ASSERT(slot->state == FLASH_SLOT_DIRTY);
	if (entry->kind == FLASH_TRIM) {
		for (uint32_t i = 0; i < entry->source; i++) {
			if (at[i].block != 0) {
				flash_cache_moved(flash, entry->lpn + i, GC_NO_SEGMENT);
				block_dies(flash, le32toh(at[i].block));
			}
			at[i] = (struct flash_entry){ 0 };
		}
		return;
	}
	/* A client can overwrite a block after garbage collection has read it. Then the copy is
	 * garbage. */
	if (flash_kind_is_copy(entry->kind)) {
		flash_snapshots_move(flash, entry, block, old == entry->source);
		if (old != entry->source) {
			return;
		}
	}
	block_lives(flash, block, from);
	flash_cache_moved(flash, entry->lpn, flash_segment_of(geometry, block));
	if (old != 0) {
		block_dies(flash, old);
	}
	*at = (struct flash_entry){ htole32(block), htole32(entry->crc) };
}

void flash_map_set_node(struct flash *flash, uint32_t tree, uint32_t level, uint32_t index,
	struct flash_entry entry)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	struct flash_entry *at = &flash->map.trees[tree].levels[level][index];

	if (at->block != 0) {
		flash->segments[flash_segment_of(geometry, le32toh(at->block))].nodes--;
	}
	if (entry.block != 0) {
		struct flash_segment *segment =
			&flash->segments[flash_segment_of(geometry, le32toh(entry.block))];

		segment->nodes++;
		/* A segment with a node of a damaged snapshot is excluded from collection. */
		segment->is_kept |= tree > 0 && flash->snapshots.list[tree - 1].is_damaged;
	}
	*at = entry;
	if (level + 1 < FLASH_LEVELS) {
		flash->map.trees[tree].dirty[level + 1][index / FLASH_NODE_ENTRIES] = true;
	}
}

void flash_map_count_nodes(struct flash *flash, uint32_t tree, int32_t each)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;

	for (uint32_t level = 0; level < FLASH_LEVELS; level++) {
		for (uint32_t i = 0; i < geometry->node_counts[level]; i++) {
			uint32_t block = le32toh(flash->map.trees[tree].levels[level][i].block);

			if (block != 0) {
				flash->segments[flash_segment_of(geometry, block)].nodes +=
					(uint32_t)each;
			}
		}
	}
}

void flash_map_forget(struct flash *flash, uint32_t tree)
{
	uint32_t first = flash_page_of(flash, tree, 0);
	uint32_t end = flash_page_of(flash, tree + 1, 0);

	for (uint32_t i = 0; i < flash->map.slot_count; i++) {
		struct flash_slot *slot = &flash->map.slots[i];

		if (slot->state == FLASH_SLOT_FREE || slot->page < first || slot->page >= end) {
			continue;
		}
		GMB_ASSERT(slot->state != FLASH_SLOT_DIRTY && slot->state != FLASH_SLOT_WRITTEN &&
			   slot->pins == 0);
		if (slot->state == FLASH_SLOT_CLEAN) {
			list_remove(&slot->lru);
			flash_map_release(flash, slot);
		} else {
			/* The page is being read: load_done() frees the slot. */
			unchain(&flash->map, slot);
			slot->page = FLASH_NO_PAGE;
		}
	}
}
