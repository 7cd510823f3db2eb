// SPDX-License-Identifier: Apache-2.0
/*
 * Checkpoints. The changed nodes of the map go to the log, the anchors refer to them, and only then
 * can segments that are no longer in use be written again.
 *
 *   log  ... changes │ nodes │ changes │ nodes │ changes │ nodes │ changes ...
 *                    └ begin: a recovery from these anchors replays the log from here on
 *
 * Nodes are written in steps, and changes continue between them. The checkpoint contains the state
 * at its beginning: a page is appended before a change if it has not been written yet, the counts
 * of segments are frozen, and only segments that were closed and empty at the beginning become
 * free. No page is copied: pages in memory change only when a record has been written, and records
 * take effect in order. The garbage collector pauses.
 *
 * Invariant: a segment becomes free only by a checkpoint. So at any time, the anchor that a
 * recovery would use refers to nothing in a free segment, and the log from that anchor on has no
 * record in a free segment. Many rules follow from this invariant (docs/design/0023-flash.md).
 *
 * Called by flash_pump(), and by flash_end() without a ring.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "store/flash/flash.h"

enum {
	/* A checkpoint begins after this many records, even if they are small, because each costs a
	 * replay one read. */
	RECORDS_MAX = 1 << 14,
	STEP_BLOCKS = 64, /* nodes per step: bounds the time that a change waits */
	/* A step is at most a segment divided by STEP_PART, because small stores have few nodes. */
	STEP_PART = 16,
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

static void checkpoint_set_state(
	struct flash_checkpoint *checkpoint, enum flash_checkpoint_state state)
{
	GMB_ASSERT((checkpoint_edges[checkpoint->state] & BIT(state)) != 0);
	checkpoint->state = state;
	checkpoint->next = 0;
	checkpoint->is_appended = false;
}

void flash_checkpoint_ask(struct flash *flash)
{
	flash->checkpoint.is_asked = true;
	flash->pump_again = true;
}

void flash_checkpoint_await(struct flash *flash)
{
	if (!flash_checkpoint_runs(flash)) {
		flash_checkpoint_ask(flash);
	}
}

static bool checkpoint_page_is_zero(const void *block)
{
	static const uint8_t zeroes[FLASH_BLOCK_BYTES];

	return memcmp(block, zeroes, sizeof(zeroes)) == 0;
}

/* --- the beginning --------------------------------------------------------------------------- */

static bool is_closed(enum gc_state state)
{
	return state == GC_CLOSED || state == GC_CANDIDATE || state == GC_VICTIM;
}

/* Freezes the block counts of all segments at the beginning of the checkpoint. They go into the
 * segment table, and free_segments() uses them. */
static void freeze_segments(struct flash *flash)
{
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		const struct gc_segment *entry = &flash->table.segments[i];
		struct flash_segment *segment = &flash->segments[i];

		segment->begin_valid = entry->valid;
		segment->was_closed = is_closed(entry->state);
	}
}

/* Moves table_dirty to table_begun, which this checkpoint writes. From here on, table_dirty
 * collects the changes for the next checkpoint. */
static void freeze_tables(struct flash *flash)
{
	uint32_t count = flash->anchor.geometry.page_count - flash->anchor.geometry.leaf_count;

	for (uint32_t i = 0; i < FLASH_TREES; i++) {
		struct flash_tree *tree = &flash->map.trees[i];

		memcpy(tree->table_begun, tree->table_dirty, count * sizeof(bool));
		memset(tree->table_dirty, 0, count * sizeof(bool));
	}
}

/* Begins a checkpoint when no record is in flight. All later records are after it in the log. */
static void checkpoint_begin(struct flash *flash)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;

	checkpoint->begin = flash->log.head;
	checkpoint->clock = flash->table.clock;
	checkpoint->step_end = flash->log.head.seq;
	checkpoint->step_dirty = 0;
	checkpoint->is_asked = false;
	checkpoint->quiesce_count = 0;
	list_for_each(node, &flash->checkpoint.quiescing)
	{
		checkpoint->quiesce_count++;
	}
	flash->log.since_checkpoint = 0;
	flash->log.records_since_checkpoint = 0;
	/* From here on, pages that became dirty in earlier rounds are "old": they belong to this
	 * checkpoint. */
	flash->map.round++;
	flash->map.dirty_count = 0;
	freeze_segments(flash);
	freeze_tables(flash);
	checkpoint_set_state(checkpoint, FLASH_CHECKPOINT_LEVEL_0);
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

/* Appends a node. Returns false if the log has no room now. stays: the memory does not change until
 * the node is written, so it is not copied. */
static bool write_node(struct flash *flash, uint32_t tree, uint32_t level, uint32_t index,
	const void *node, bool stays)
{
	if (!flash_log_room(flash, 1, true)) {
		return false;
	}
	append_node(flash, FLASH_NODE, tree, level, index, node, stays);
	return true;
}

/* Encodes a page of the segment table with the state at the beginning of the checkpoint. Stamps are
 * only hints, but are limited to the anchor's clock, because a decoder rejects later stamps. */
static void table_encode(const struct flash *flash, uint32_t tree, uint32_t index, uint8_t *block)
{
	struct flash_table_entry entries[FLASH_TABLE_ENTRIES] = { 0 };
	uint32_t first = index * FLASH_TABLE_ENTRIES;

	for (uint32_t i = 0; i < FLASH_TABLE_ENTRIES; i++) {
		if (first + i < flash->anchor.geometry.segment_count) {
			const struct flash_segment *segment = &flash->segments[first + i];
			uint64_t stamp = flash->table.segments[first + i].stamp;

			entries[i].stamp = htole64(MIN(stamp, flash->checkpoint.clock));
			entries[i].valid = htole32(tree == 0 ? segment->begin_valid
							     : segment->snapshot_valid[tree - 1]);
			entries[i].erases = htole32(segment->erases);
		}
	}
	memcpy(block, entries, sizeof(entries));
}

bool flash_checkpoint_append(struct flash *flash, struct flash_slot *slot)
{
	uint32_t page_count = flash->anchor.geometry.page_count;
	uint32_t tree = slot->page / page_count;
	uint32_t index = slot->page % page_count;

	/* An empty page is not written: the tree gets a zero entry instead of a node. */
	if (checkpoint_page_is_zero(slot->node)) {
		flash_map_set_node(flash, tree, 0, index, (struct flash_entry){ 0 });
		flash_map_clean(flash, slot);
		return true;
	}
	if (!write_node(flash, tree, 0, index, slot->node, true)) {
		return false;
	}
	slot->state = FLASH_SLOT_WRITTEN;
	return true;
}

/* Appends pages that belong to this checkpoint ("old" pages), at most *blocks blocks. Returns false
 * if some remain for a later step. */
static bool write_pages(struct flash *flash, uint32_t *blocks)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;
	struct flash_map *map = &flash->map;

	for (; checkpoint->next < map->slot_count; checkpoint->next++) {
		struct flash_slot *slot = &map->slots[checkpoint->next];

		if (!flash_slot_is_old(flash, slot)) {
			continue;
		}
		if (*blocks == 0 || !flash_checkpoint_append(flash, slot)) {
			return false;
		}
		/* A page of zeroes needs no block, so *blocks decreases only if the page was
		 * written. */
		*blocks -= slot->state == FLASH_SLOT_WRITTEN;
	}
	return true;
}

/* Appends at most *blocks changed pages of the segment table. Returns false if some
 * remain. */
static bool write_tables(struct flash *flash, uint32_t *blocks)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;
	uint32_t leaf_count = flash->anchor.geometry.leaf_count;
	uint32_t table_count = flash->anchor.geometry.page_count - leaf_count;
	uint32_t first = flash->map.slot_count; /* table pages are numbered after the map slots */

	for (; checkpoint->next < first + FLASH_TREES * table_count; checkpoint->next++) {
		uint32_t tree = (checkpoint->next - first) / table_count;
		uint32_t index = (checkpoint->next - first) % table_count;

		if (!flash->map.trees[tree].table_begun[index]) {
			continue;
		}
		table_encode(flash, tree, index, checkpoint->block);
		if (*blocks == 0 ||
			!write_node(flash, tree, 0, leaf_count + index, checkpoint->block, false)) {
			return false;
		}
		--*blocks;
	}
	return true;
}

/* A node of level 1 or 2. The nodes of all trees are numbered consecutively. */
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

/* Appends at most max dirty nodes from number to end - 1. The first copies of all
 * these nodes come first, then their second copies. Both copies of a node are in one record, and so
 * in one segment. */
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

/* Appends the dirty nodes of a level, at most *blocks blocks. A node without entries is unlinked
 * from the level above, which is written later. Returns false if some remain. */
static bool write_level(struct flash *flash, uint32_t level, uint32_t *blocks)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;
	uint32_t end = FLASH_TREES * flash->anchor.geometry.node_counts[level];

	while (checkpoint->next < end) {
		uint32_t most = MIN(*blocks, flash_atomic_blocks(&flash->anchor.geometry));
		/* A node takes two blocks, one for each copy. At least one node is appended, even
		 * if its two blocks exceed the limit. */
		uint32_t max = MAX(most / 2, 1U);
		uint32_t count = 0;
		uint32_t number = checkpoint->next;

		for (; number < end && count < max; number++) {
			struct upper upper = upper_at(flash, level, number);

			if (upper.is_dirty && checkpoint_page_is_zero(upper.node)) {
				flash_map_set_node(flash, upper.tree, level, upper.index,
					(struct flash_entry){ 0 });
				flash->map.trees[upper.tree].dirty[level][upper.index] = false;
			} else {
				count += upper.is_dirty;
			}
		}
		if (*blocks == 0 || (count > 0 && !flash_log_room(flash, 2 * count, true))) {
			return false;
		}
		append_twice(flash, level, checkpoint->next, number, count);
		for (; checkpoint->next < number; checkpoint->next++) {
			struct upper upper = upper_at(flash, level, checkpoint->next);

			flash->map.trees[upper.tree].dirty[level][upper.index] = false;
		}
		*blocks -= MIN(*blocks, 2 * count);
	}
	return true;
}

/* --- steps of a level ------------------------------------------------------------------------ */

/* True if changes can run between the steps of the checkpoint: there are free segments for clients,
 * and the log since the beginning of the checkpoint is not too long for a replay. */
static bool may_share(const struct flash *flash)
{
	return !flash_checkpoint_blocks(flash) && !flash->is_closing &&
	       flash->log.since_checkpoint < FLASH_LOG_BLOCKS &&
	       flash->table.state_counts[GC_FREE] >=
		       flash->anchor.geometry.reserve_segments + FLASH_RECORD_SEGMENTS;
}

/* Returns the number of blocks of the next step: at least the number of pages that became dirty
 * since the last step, so that pages are written at least as fast as they become dirty. */
static uint32_t step_blocks(const struct flash *flash)
{
	uint32_t part = flash->anchor.geometry.segment_blocks / STEP_PART;
	uint32_t least = MIN((uint32_t)STEP_BLOCKS, part);

	return may_share(flash) ? MAX(least, flash->map.dirty_count - flash->checkpoint.step_dirty)
				: UINT32_MAX;
}

/* Level 0 consists of the map pages and, after them, the pages of the segment table. */
static bool append_level(struct flash *flash, uint32_t level, uint32_t *blocks)
{
	return level == 0 ? write_pages(flash, blocks) && write_tables(flash, blocks)
			  : write_level(flash, level, blocks);
}

static bool is_step_written(const struct flash *flash)
{
	return flash->log.written_seq >= flash->checkpoint.step_end;
}

static void checkpoint_write_step(struct flash *flash, uint32_t level)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;
	uint32_t blocks = step_blocks(flash);
	bool is_bounded = blocks != UINT32_MAX;

	checkpoint->step_dirty = flash->map.dirty_count;
	checkpoint->is_appended = append_level(flash, level, &blocks);
	if (checkpoint->is_appended || is_bounded) {
		flash_log_close(flash);
		checkpoint->step_end = flash->log.head.seq;
	}
}

/* Performs the steps of a level. A step begins when the previous one is written, or immediately if
 * no change can run between them. The next level begins when all nodes of this one are written,
 * because its nodes contain their positions. */
static bool level_step(struct flash *flash, uint32_t level, enum flash_checkpoint_state next)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;

	if (!checkpoint->is_appended && (is_step_written(flash) || !may_share(flash))) {
		checkpoint_write_step(flash, level);
	}
	if (!checkpoint->is_appended || !is_step_written(flash)) {
		return false;
	}
	checkpoint_set_state(checkpoint, next);
	return true;
}

/* Begins the checkpoint when all earlier records have taken effect in the map. Returns false until
 * then. */
static bool drain_log(struct flash *flash)
{
	flash_log_close(flash);
	if (!flash_log_is_idle(flash)) {
		return false;
	}
	checkpoint_begin(flash);
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

/* Frees the segments to which neither the anchors nor the log after them refer, and makes closed
 * segments candidates for collection. */
static void free_segments(struct flash *flash)
{
	bool has_changes = flash->log.since_checkpoint > 0;

	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		const struct gc_segment *entry = &flash->table.segments[i];
		struct flash_segment *segment = &flash->segments[i];
		bool was_empty = segment->was_closed && segment->begin_valid == 0;
		bool is_empty = flash_segment_is_empty(flash, i);
		bool is_walked = !flash_gc_walks(flash, i);

		/* A closed segment becomes a candidate if it was closed when the checkpoint began,
		 * or if the log has had no changes since then. So every block that garbage
		 * collection moves has existed at a checkpoint, which rebuild_apply() relies on. A
		 * bad segment can be used again when it is empty, but a bad zone cannot. */
		if (entry->state == GC_CLOSED && (segment->was_closed || !has_changes) &&
			!segment->is_kept &&
			(!segment->is_bad || (is_empty && !flash_has_zones(flash)))) {
			gc_set_state(&flash->table, i, GC_CANDIDATE);
		}
		if (entry->state != GC_CANDIDATE && entry->state != GC_VICTIM) {
			continue;
		}
		if (was_empty && is_empty && segment->readers == 0) {
			free_segment(flash, i);
		} else if (entry->state == GC_VICTIM && !is_empty && is_walked) {
			/* Some blocks of the segment could not be moved, so it is not collected
			 * again. */
			segment->is_bad = true;
			gc_set_state(&flash->table, i, GC_CANDIDATE);
			gc_set_state(&flash->table, i, GC_CLOSED);
		}
	}
	flash->counters.free_segments = flash_free_soon(flash);
	flash_wear_count(flash);
}

/* Adds a remedy to an error of the start: serve the disk read-only, or first have the changes in
 * its cache file written. */
static void tell_way_out(const struct flash *flash, struct error *error)
{
	uint32_t left = flash_cache_left(flash);

	if (left == 0) {
		error_add(error, ", or serve it with 'readonly'");
	} else {
		error_add(error,
			": %u changed block%s in the store's cache file '%s' must be written to "
			"the disk first, also before the store can be served with 'readonly'",
			left, left == 1 ? "" : "s", flash->cache.file.path);
	}
}

/* Records the result of the start. flash_io_ended() reports it when all transfers have
 * completed. */
static void start_ended(struct flash *flash, int result)
{
	struct store_start *start = flash->start;

	if (result < 0) {
		(void)error_set(&start->error, result, "cannot write the checkpoint of '%s': %s",
			flash->path, strerror(-result));
		if (result == -ENOSPC) {
			error_add(&start->error, "; free space in the filesystem of the store");
			tell_way_out(flash, &start->error);
		}
	}
	flash->start_result = result;
	flash->start_has_ended = true;
}

/* Completes the first count STORE_QUIESCE flushes. */
static void flash_quiesced(struct flash *flash, uint32_t count, int result)
{
	for (; count > 0 && !list_is_empty(&flash->checkpoint.quiescing); count--) {
		struct list_node *node = list_pop_front(&flash->checkpoint.quiescing);

		flash_finish(list_entry(node, struct store_part, node), result);
	}
}

/* Ends a checkpoint with its result. The order matters: flash_snapshots_checkpointed() gives a new
 * snapshot its counts of blocks before free_segments() examines them, and flash_cache_follow()
 * stores a position only if is_recorded is set. */
static void end(struct flash *flash, int result)
{
	checkpoint_set_state(&flash->checkpoint, FLASH_CHECKPOINT_NONE);
	flash->checkpoint.is_waiting = false;
	flash_snapshots_checkpointed(flash, result);
	if (result == 0) {
		flash->cache.is_recorded = flash->anchor.cache_tag == flash->cache.tag;
		flash_cache_follow(flash);
		flash->log.untold_blocks = (uint32_t)MIN(
			(uint64_t)flash->log.untold_blocks, flash->log.since_checkpoint);
		flash->counters.checkpoints++;
		free_segments(flash);
		flash_gc_checkpointed(flash);
		flash_snapshots_look(flash);
		/* The checkpoint's syncs made records durable: declare that in the
		 * log. */
		flash_log_tell(flash);
	}
	/* A STORE_QUIESCE flush needs an anchor without a cache file, written by a checkpoint that
	 * began after its arrival. */
	if (result < 0 || flash->anchor.cache_tag == 0) {
		flash_quiesced(
			flash, result < 0 ? UINT32_MAX : flash->checkpoint.quiesce_count, result);
	}
	if (!list_is_empty(&flash->checkpoint.quiescing)) {
		/* flushes that arrived during the checkpoint need another one */
		flash_checkpoint_ask(flash);
	}
	if (flash->is_starting) {
		start_ended(flash, result);
	}
}

static void checkpoint_anchor_written(struct flash_io *io, int result)
{
	struct flash *flash = io->flash;

	if (result < 0) {
		flash_fail(flash, result, "the anchor of the log cannot be written");
		end(flash, result);
		return;
	}
	flash_sync_checkpoint(flash);
}

/*
 * Returns the position at which a recovery begins to read the log. This is the position after the
 * checkpoint's nodes if only nodes have been written since the checkpoint began, and no record is
 * in flight; otherwise it is the beginning of the checkpoint.
 *
 * A recovery skips nodes anyway. It could not find the nodes of a run's first checkpoint if the log
 * was moved without a detour (move.c). While a record is in flight, the position after it is not
 * final, because a move of the log could still change its prev_crc.
 */
static struct flash_position log_behind(const struct flash *flash)
{
	bool has_more = flash->log.since_checkpoint > 0 || flash->log.flying_count > 0;

	return has_more ? flash->checkpoint.begin : flash->log.head;
}

static void checkpoint_write_anchor(struct flash *flash)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;
	bool is_first = checkpoint->state == FLASH_CHECKPOINT_ANCHOR_FIRST;

	if (is_first) {
		flash->anchor.version = FLASH_ANCHOR_VERSION;
		/* The anchor is encoded once: the second one has the same contents. */
		flash->anchor.serial++;
		flash->anchor.next = log_behind(flash);
		flash_detours_drop(&flash->anchor);
		flash->anchor.clock = checkpoint->clock;
		flash->anchor.cache_tag = flash_cache_tag(flash);
		flash_cache_tell_place(flash);
		memcpy(flash->anchor.top, flash->map.trees[0].levels[FLASH_LEVELS - 1],
			sizeof(flash->anchor.top));
		flash_snapshots_encode(flash);
		flash_anchor_encode(&flash->anchor, checkpoint->block);
	}
	checkpoint->is_waiting = true;
	flash_anchor_write(
		flash, &checkpoint->io, checkpoint->block, is_first, checkpoint_anchor_written);
}

void flash_checkpoint_synced(struct flash *flash, int result)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;

	checkpoint->is_waiting = false;
	if (result < 0) {
		end(flash, result);
	} else if (checkpoint->state == FLASH_CHECKPOINT_SYNC) {
		checkpoint_set_state(checkpoint, FLASH_CHECKPOINT_ANCHOR_FIRST);
	} else if (checkpoint->state == FLASH_CHECKPOINT_ANCHOR_FIRST) {
		checkpoint_set_state(checkpoint, FLASH_CHECKPOINT_ANCHOR_SECOND);
	} else {
		end(flash, 0);
	}
}

void flash_checkpoint_again(struct flash *flash)
{
	flash->checkpoint.is_waiting = false;
}

/* --- the sequence ---------------------------------------------------------------------------- */

static bool is_due(const struct flash *flash)
{
	return flash->checkpoint.is_asked || flash_snapshots_want_checkpoint(flash) ||
	       flash->log.since_checkpoint >= FLASH_LOG_BLOCKS ||
	       flash->log.records_since_checkpoint >= RECORDS_MAX;
}

bool flash_checkpoint_step(struct flash *flash)
{
	struct flash_checkpoint *checkpoint = &flash->checkpoint;

	if (checkpoint->is_waiting) {
		return false;
	}
	/* After a failure of the log, a running checkpoint ends with the log's error, and so do all
	 * flushes that wait for one. */
	if (flash->failed != 0) {
		if (flash_checkpoint_runs(flash)) {
			end(flash, flash->failed);
		} else {
			flash_snapshots_checkpointed(flash, flash->failed);
		}
		flash_quiesced(flash, UINT32_MAX, flash->failed);
		return false;
	}
	switch (checkpoint->state) {
	case FLASH_CHECKPOINT_NONE:
		if (!is_due(flash)) {
			return false;
		}
		flash_snapshots_begin(flash);
		checkpoint_set_state(checkpoint, FLASH_CHECKPOINT_DRAIN);
		return true;
	case FLASH_CHECKPOINT_DRAIN:
		return drain_log(flash);
	case FLASH_CHECKPOINT_LEVEL_0:
		return level_step(flash, 0, FLASH_CHECKPOINT_LEVEL_1);
	case FLASH_CHECKPOINT_LEVEL_1:
		return level_step(flash, 1, FLASH_CHECKPOINT_LEVEL_2);
	case FLASH_CHECKPOINT_LEVEL_2:
		return level_step(flash, 2, FLASH_CHECKPOINT_SYNC);
	case FLASH_CHECKPOINT_SYNC:
		checkpoint->is_waiting = true;
		flash_sync_checkpoint(flash);
		return true;
	case FLASH_CHECKPOINT_ANCHOR_FIRST:
	case FLASH_CHECKPOINT_ANCHOR_SECOND:
		/* A move of the log also writes the anchors. The two writes must not overlap. */
		if (flash_move_anchors(flash)) {
			return false;
		}
		checkpoint_write_anchor(flash);
		return true;
	case FLASH_CHECKPOINT_STATE_COUNT:
		break;
	}
	return false;
}

void flash_quiesce(struct flash *flash, struct store_part *part)
{
	list_push_back(&flash->checkpoint.quiescing, &part->node);
	flash_checkpoint_ask(flash);
}

/* Performs steps and blocking transfers in turn until all are done. */
static void work(struct flash *flash)
{
	do {
		flash_pump(flash);
	} while (flash_io_block(flash));
}

/* Writes the cached pages first, then a checkpoint. Its anchor refers to no cache file if
 * all pages are written. */
static void write_at_end(struct flash *flash)
{
	flash->is_closing = true;
	flash->cache.is_draining = true;
	work(flash);
	flash->cache.is_draining = false;
	flash_checkpoint_ask(flash);
	work(flash);
}

/* Logs the changes that remain in the cache file: after an error no write is possible, and a
 * snapshot with on-full=refuse can leave no room. */
static void tell_left(const struct flash *flash, uint32_t left)
{
	if (flash->failed == 0) {
		log_warning("flash store '%s' has no space for the blocks in its cache: they "
			    "remain in the cache file until the store is served again",
			flash->path);
	} else {
		log_error("flash store '%s': %u changed block%s only in its cache file '%s', which "
			  "is in memory, because writing the log has failed: %s; correct the error "
			  "and serve the store again before the machine is shut down",
			flash->path, left, left == 1 ? " is" : "s are", flash->cache.file.path,
			strerror(-flash->failed));
	}
}

static bool has_to_write(const struct flash *flash)
{
	return !flash->is_read_only && flash->failed == 0 && flash->counters.checkpoints > 0 &&
	       (flash->log.since_checkpoint > 0 || flash->anchor.cache_tag != 0 ||
		       flash_checkpoint_runs(flash));
}

uint64_t flash_end(struct store *store)
{
	struct flash *flash = container_of(store, struct flash, base);
	uint32_t left = 0;

	if (!flash->has_ended && has_to_write(flash)) {
		write_at_end(flash);
	}
	/* A store that has neither failed nor completed a checkpoint was not served, and the
	 * contents of its cache file do not matter. */
	if (flash->failed != 0 || flash->counters.checkpoints > 0) {
		left = flash_cache_left(flash);
	}
	if (!flash->has_ended && left > 0) {
		tell_left(flash, left);
	}
	flash->has_ended = true;
	return (uint64_t)left << FLASH_BLOCK_SHIFT;
}
