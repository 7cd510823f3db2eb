// SPDX-License-Identifier: Apache-2.0
/*
 * Checkpoints. What is in memory only goes to the log, the anchors refer to it, and only then may
 * segments be used again that nothing refers to any more. Changes wait meanwhile; reads do not.
 *
 * That a segment becomes free by a checkpoint alone replaces many rules: the anchor that counts
 * after a crash refers to nothing in it, and the log from that anchor on has no record in it.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "store/flash/flash.h"

enum {
	BLOCKS_MAX = 1 << 18, /* 1 GiB of log, from checkpoint to checkpoint */
	RECORDS_MAX = 1 << 14,
};

static const uint32_t checkpoint_edges[FLASH_CHECKPOINT_STATE_COUNT] = {
	[FLASH_CHECKPOINT_NONE] = BIT(FLASH_CHECKPOINT_DRAIN),
	[FLASH_CHECKPOINT_DRAIN] = BIT(FLASH_CHECKPOINT_LEVEL_0) | BIT(FLASH_CHECKPOINT_NONE),
	[FLASH_CHECKPOINT_LEVEL_0] = BIT(FLASH_CHECKPOINT_LEVEL_1) | BIT(FLASH_CHECKPOINT_NONE),
	[FLASH_CHECKPOINT_LEVEL_1] = BIT(FLASH_CHECKPOINT_LEVEL_2) | BIT(FLASH_CHECKPOINT_NONE),
	[FLASH_CHECKPOINT_LEVEL_2] = BIT(FLASH_CHECKPOINT_SYNC) | BIT(FLASH_CHECKPOINT_NONE),
	[FLASH_CHECKPOINT_SYNC] = BIT(FLASH_CHECKPOINT_ANCHOR_FIRST) | BIT(FLASH_CHECKPOINT_NONE),
	[FLASH_CHECKPOINT_ANCHOR_FIRST] =
		BIT(FLASH_CHECKPOINT_ANCHOR_SECOND) | BIT(FLASH_CHECKPOINT_NONE),
	[FLASH_CHECKPOINT_ANCHOR_SECOND] = BIT(FLASH_CHECKPOINT_NONE),
};

static void set_state(struct flash_checkpoint *checkpoint, enum flash_checkpoint_state state)
{
	GMB_ASSERT((checkpoint_edges[checkpoint->state] & BIT(state)) != 0);
	checkpoint->state = state;
	checkpoint->next = 0;
}

void flash_checkpoint_ask(struct flash *flash)
{
	flash->checkpoint.is_asked = true;
	flash->pump_again = true;
}

static bool is_zero(const void *block)
{
	static const uint8_t zeroes[FLASH_BLOCK_BYTES];

	return memcmp(block, zeroes, sizeof(zeroes)) == 0;
}

/* --- nodes ----------------------------------------------------------------------------------- */

static void append_node(struct flash *flash, enum flash_entry_kind kind, uint32_t tree,
	uint32_t level, uint32_t index, const void *node, bool stays)
{
	struct flash_record_entry entry = {
		.lpn = index, .source = tree * FLASH_LEVELS + level, .kind = (uint8_t)kind
	};

	flash_log_append(flash, &entry, node, stays);
	flash->counters.node_blocks++;
}

/* False: there is no room in the log at present. stays: until the next level is begun. */
static bool write_node(struct flash *flash, uint32_t tree, uint32_t level, uint32_t index,
	const void *node, bool stays)
{
	if (!flash_log_room(flash, 1, true)) {
		return false;
	}
	append_node(flash, FLASH_NODE, tree, level, index, node, stays);
	return true;
}

void flash_table_encode(const struct flash *flash, uint32_t tree, uint32_t index, uint8_t *block)
{
	struct flash_table_entry entries[FLASH_TABLE_ENTRIES] = { 0 };
	uint32_t first = index * FLASH_TABLE_ENTRIES;

	for (uint32_t i = 0; i < FLASH_TABLE_ENTRIES; i++) {
		if (first + i < flash->anchor.geometry.segment_count) {
			const struct gc_segment *segment = &flash->table.segments[first + i];

			entries[i].stamp = htole64(segment->stamp);
			entries[i].valid = htole32(
				tree == 0 ? segment->valid
					  : flash->segments[first + i].view_valid[tree - 1]);
			entries[i].erases = htole32(flash->segments[first + i].erases);
		}
	}
	memcpy(block, entries, sizeof(entries));
}

/* Pages of the map first, those of the table behind them. */
static bool write_pages(struct flash *flash)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;
	struct flash_map *map = &flash->map;
	uint32_t tree;
	uint32_t leaf_count = flash->anchor.geometry.leaf_count;
	uint32_t page_count = flash->anchor.geometry.page_count;
	uint32_t table_count = page_count - leaf_count;
	uint32_t count = map->slot_count + FLASH_TREES * table_count;

	for (; checkpoint->next < map->slot_count; checkpoint->next++) {
		struct flash_slot *slot = &map->slots[checkpoint->next];

		if (slot->state != FLASH_SLOT_DIRTY) {
			continue;
		}
		tree = slot->page / page_count;
		if (is_zero(slot->node)) {
			flash_map_set_node(
				flash, tree, 0, slot->page % page_count, (struct flash_entry){ 0 });
			flash_map_clean(flash, slot);
		} else if (!write_node(flash, tree, 0, slot->page % page_count, slot->node, true)) {
			return false;
		}
	}
	for (; checkpoint->next < count; checkpoint->next++) {
		uint32_t index = (checkpoint->next - map->slot_count) % table_count;

		tree = (checkpoint->next - map->slot_count) / table_count;
		if (map->trees[tree].table_dirty[index]) {
			flash_table_encode(flash, tree, index, checkpoint->block);
			if (!write_node(
				    flash, tree, 0, leaf_count + index, checkpoint->block, false)) {
				return false;
			}
			map->trees[tree].table_dirty[index] = false;
		}
	}
	return true;
}

/* Nodes of a level, numbered across the trees. */
struct upper {
	uint32_t tree;
	uint32_t index;
	const void *node;
	bool is_dirty;
};

static struct upper upper_at(const struct flash *flash, uint32_t level, uint32_t number)
{
	uint32_t node_count = flash->anchor.geometry.node_counts[level];
	struct upper upper = { .tree = number / node_count, .index = number % node_count };
	const struct flash_tree *tree = &flash->map.trees[upper.tree];

	upper.node = tree->levels[level - 1] + (size_t)upper.index * FLASH_NODE_ENTRIES;
	upper.is_dirty = tree->dirty[level][upper.index];
	return upper;
}

/* Changed nodes from number on, before end and at most max, with first and second copies, which
 * are in one record and so in one segment. */
static void append_twice(
	struct flash *flash, uint32_t level, uint32_t number, uint32_t end, uint32_t max)
{
	static const enum flash_entry_kind kinds[] = { FLASH_NODE, FLASH_TWIN };

	for (size_t k = 0; k < ARRAY_COUNT(kinds); k++) {
		uint32_t count = 0;

		for (uint32_t i = number; i < end && count < max; i++) {
			struct upper upper = upper_at(flash, level, i);

			if (upper.is_dirty) {
				append_node(flash, kinds[k], upper.tree, level, upper.index,
					upper.node, true);
				count++;
			}
		}
	}
}

static bool write_level(struct flash *flash, uint32_t level)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;
	uint32_t end = FLASH_TREES * flash->anchor.geometry.node_counts[level];
	uint32_t max = flash_atomic_blocks(&flash->anchor.geometry) / 2;

	while (checkpoint->next < end) {
		uint32_t count = 0;
		uint32_t number = checkpoint->next;

		for (; number < end && count < max; number++) {
			struct upper upper = upper_at(flash, level, number);

			if (upper.is_dirty && is_zero(upper.node)) {
				flash_map_set_node(flash, upper.tree, level, upper.index,
					(struct flash_entry){ 0 });
				flash->map.trees[upper.tree].dirty[level][upper.index] = false;
			} else {
				count += upper.is_dirty;
			}
		}
		if (count > 0 && !flash_log_room(flash, 2 * count, true)) {
			return false;
		}
		append_twice(flash, level, checkpoint->next, number, count);
		for (; checkpoint->next < number; checkpoint->next++) {
			struct upper upper = upper_at(flash, level, checkpoint->next);

			flash->map.trees[upper.tree].dirty[level][upper.index] = false;
		}
	}
	return true;
}

/* All of a level is appended and has its place: the next one. */
static bool end_level(struct flash *flash, bool all_appended, enum flash_checkpoint_state next)
{
	if (!all_appended) {
		return false;
	}
	flash_log_close(flash);
	if (!flash_log_is_idle(flash)) {
		return false;
	}
	set_state(&flash->checkpoint, next);
	return true;
}

/* --- the end --------------------------------------------------------------------------------- */

static void free_segment(struct flash *flash, uint32_t index)
{
	if (flash->table.segments[index].state == GC_CANDIDATE) {
		gc_set_state(&flash->table, index, GC_VICTIM);
	}
	flash_erase(flash, index);
}

/* Nothing that a crash may bring back refers to what is free from now on. */
static void free_segments(struct flash *flash)
{
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		const struct gc_segment *entry = &flash->table.segments[i];
		struct flash_segment *segment = &flash->segments[i];
		bool is_empty = flash_segment_is_empty(flash, i);
		bool is_walked = flash->gc.state == FLASH_GC_IDLE || flash->gc.victim != i;

		/* A bad zone cannot be used again, other places can. */
		if (entry->state == GC_CLOSED && !segment->is_kept &&
			(!segment->is_bad || (is_empty && !flash_has_zones(flash)))) {
			gc_set_state(&flash->table, i, GC_CANDIDATE);
		}
		if (entry->state != GC_CANDIDATE && entry->state != GC_VICTIM) {
			continue;
		}
		if (is_empty && segment->readers == 0) {
			free_segment(flash, i);
		} else if (entry->state == GC_VICTIM && !is_empty && is_walked) {
			/* Not all of it could be moved. It stays as it is. */
			segment->is_bad = true;
			gc_set_state(&flash->table, i, GC_CANDIDATE);
			gc_set_state(&flash->table, i, GC_CLOSED);
		}
	}
	flash->counters.free_segments = flash_free_soon(flash);
	flash_wear_count(flash);
}

/* Changes in the cache file have to be written before anybody may read the disk. */
static void tell_way_out(const struct flash *flash, struct error *error)
{
	uint32_t left = flash_cache_left(flash);

	if (left == 0) {
		error_add(error, ", or serve it with 'readonly'");
	} else {
		error_add(error,
			": %u changed blocks in its cache file '%s' have to be written, also "
			"before it can be served with 'readonly'",
			left, flash->cache.file.path);
	}
}

/* Its transfers may not: flash_io_ended() tells who has started it. */
static void start_ended(struct flash *flash, int result)
{
	struct store_start *start = flash->start;

	if (result < 0) {
		(void)error_set(&start->error, result, "cannot write the checkpoint of '%s': %s",
			flash->path, strerror(-result));
		if (result == -ENOSPC) {
			error_add(&start->error, "; make room in the filesystem below it");
			tell_way_out(flash, &start->error);
		}
	}
	flash->start_result = result;
	flash->start_has_ended = true;
}

static void settled(struct flash *flash, int result)
{
	struct list_node *node;

	while ((node = list_pop_front(&flash->settling)) != NULL) {
		flash_finish(list_entry(node, struct store_part, node), result);
	}
}

static void end(struct flash *flash, int result)
{
	set_state(&flash->checkpoint, FLASH_CHECKPOINT_NONE);
	flash->checkpoint.is_asked = false;
	flash->checkpoint.is_waiting = false;
	flash_views_checkpointed(flash, result);
	if (result == 0) {
		flash->cache.is_recorded = flash->anchor.cache_tag == flash->cache.tag;
		flash_cache_follow(flash);
		flash->log.since_checkpoint = 0;
		flash->log.records_since_checkpoint = 0;
		flash->log.untold_blocks = 0;
		flash->counters.checkpoints++;
		free_segments(flash);
		flash_gc_checkpointed(flash);
		flash_views_look(flash);
	}
	if (result == 0 && flash->anchor.cache_tag != 0 && !list_is_empty(&flash->settling)) {
		flash_checkpoint_ask(flash); /* this one was begun before they came */
	} else {
		settled(flash, result);
	}
	if (flash->is_starting) {
		start_ended(flash, result);
	}
}

static void anchor_written(struct flash_io *io, int result)
{
	struct flash *flash = io->flash;

	if (result < 0) {
		flash_fail(flash, result, "cannot be anchored");
		end(flash, result);
		return;
	}
	flash_sync_checkpoint(flash);
}

static void write_anchor(struct flash *flash)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;
	bool is_first = checkpoint->state == FLASH_CHECKPOINT_ANCHOR_FIRST;

	if (is_first) {
		flash->anchor.serial++;
		flash->anchor.next = flash->log.head;
		flash_detours_drop(&flash->anchor);
		flash->anchor.clock = flash->table.clock;
		flash->anchor.cache_tag = flash_cache_tag(flash);
		flash_cache_tell_place(flash);
		memcpy(flash->anchor.top, flash->map.trees[0].levels[FLASH_LEVELS - 1],
			sizeof(flash->anchor.top));
		flash_views_encode(flash);
		flash_anchor_encode(&flash->anchor, checkpoint->block);
	}
	checkpoint->is_waiting = true;
	flash_anchor_write(flash, &checkpoint->io, checkpoint->block, is_first, anchor_written);
}

void flash_checkpoint_synced(struct flash *flash, int result)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;

	checkpoint->is_waiting = false;
	if (result < 0) {
		end(flash, result);
	} else if (checkpoint->state == FLASH_CHECKPOINT_SYNC) {
		set_state(checkpoint, FLASH_CHECKPOINT_ANCHOR_FIRST);
	} else if (checkpoint->state == FLASH_CHECKPOINT_ANCHOR_FIRST) {
		set_state(checkpoint, FLASH_CHECKPOINT_ANCHOR_SECOND);
	} else {
		end(flash, 0);
	}
}

/* --- steps ----------------------------------------------------------------------------------- */

static bool is_due(const struct flash *flash)
{
	return flash->checkpoint.is_asked || flash_views_want_checkpoint(flash) ||
	       flash->log.since_checkpoint >= BLOCKS_MAX ||
	       flash->log.records_since_checkpoint >= RECORDS_MAX;
}

bool flash_checkpoint_step(struct flash *flash)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;

	if (checkpoint->is_waiting) {
		return false;
	}
	if (flash->failed != 0) {
		if (flash_checkpoint_runs(flash)) {
			end(flash, flash->failed);
		} else {
			flash_views_checkpointed(flash, flash->failed);
		}
		settled(flash, flash->failed);
		return false;
	}
	switch (checkpoint->state) {
	case FLASH_CHECKPOINT_NONE:
		if (!is_due(flash)) {
			return false;
		}
		flash_views_begin(flash);
		set_state(checkpoint, FLASH_CHECKPOINT_DRAIN);
		return true;
	case FLASH_CHECKPOINT_DRAIN:
		return end_level(flash, true, FLASH_CHECKPOINT_LEVEL_0);
	case FLASH_CHECKPOINT_LEVEL_0:
		return end_level(flash, write_pages(flash), FLASH_CHECKPOINT_LEVEL_1);
	case FLASH_CHECKPOINT_LEVEL_1:
		return end_level(flash, write_level(flash, 1), FLASH_CHECKPOINT_LEVEL_2);
	case FLASH_CHECKPOINT_LEVEL_2:
		return end_level(flash, write_level(flash, 2), FLASH_CHECKPOINT_SYNC);
	case FLASH_CHECKPOINT_SYNC:
		checkpoint->is_waiting = true;
		flash_sync_checkpoint(flash);
		return true;
	case FLASH_CHECKPOINT_ANCHOR_FIRST:
	case FLASH_CHECKPOINT_ANCHOR_SECOND:
		if (flash_move_anchors(flash)) {
			return false;
		}
		write_anchor(flash);
		return true;
	case FLASH_CHECKPOINT_STATE_COUNT:
		break;
	}
	return false;
}

void flash_settle(struct flash *flash, struct store_part *part)
{
	list_push_back(&flash->settling, &part->node);
	flash_checkpoint_ask(flash);
}

/* Writes what is in the cache. What finds no room beside snapshots stays in the file. */
static void drain(struct flash *flash)
{
	flash->cache.is_draining = true;
	do {
		flash_pump(flash);
	} while (flash_io_block(flash));
	flash->cache.is_draining = false;
	if (flash->failed == 0 && flash_cache_is_dirty(&flash->cache)) {
		log_warning(
			"flash store '%s' has no room for what is in its cache: it stays in the "
			"cache file until the store is served again",
			flash->path);
	}
}

/* After an error nothing of the cache can be written. */
static void tell_left(const struct flash *flash)
{
	uint64_t left = flash_left((struct store *)(uintptr_t)&flash->base);

	if (left > 0) {
		log_error("flash store '%s': %llu changed blocks are only in its cache file '%s', "
			  "in memory, since its log has failed: %s; serve the store again, with "
			  "that put right, before the machine stops",
			flash->path, (unsigned long long)(left >> FLASH_BLOCK_SHIFT),
			flash->cache.file.path, strerror(-flash->failed));
	}
}

uint64_t flash_left(struct store *store)
{
	const struct flash *flash = container_of(store, struct flash, base);

	return flash->failed == 0 ? 0 : (uint64_t)flash_cache_left(flash) << FLASH_BLOCK_SHIFT;
}

void flash_checkpoint_last(struct flash *flash)
{
	tell_left(flash);
	if (flash->is_read_only || flash->failed != 0 || flash->counters.checkpoints == 0 ||
		(flash->log.since_checkpoint == 0 && flash->anchor.cache_tag == 0)) {
		return;
	}
	flash->is_closing = true;
	drain(flash);
	flash_checkpoint_ask(flash);
	do {
		flash_pump(flash);
	} while (flash_io_block(flash));
}
