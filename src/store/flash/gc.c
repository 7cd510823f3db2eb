// SPDX-License-Identifier: Apache-2.0
/*
 * Garbage collection: reads the records of a victim (a segment) and moves the blocks that a tree
 * still refers to. There is no table from device blocks to disk blocks in memory: the record
 * headers contain the disk block of each block, and the map shows whether it is still in use.
 *
 *   IDLE ─▶ HEADER ─▶ READING ─▶ SCAN ─▶ READING ─▶ COPY ─▶ HEADER ...  (next record)
 *                                 └▶ HEADER, if all live blocks came from the cache or none is live
 *
 * Invariants: a block is copied only if it has the checksum of the map, because a copy would give a
 * damaged block a valid checksum. The map is examined twice, before the read and before the copy,
 * because clients change it in between; a change after the copy is detected when the record takes
 * effect (flash_map_apply()).
 *
 * Called by flash_pump(), after everything else.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum {
	/* limit of victims (segments to collect) in a round while clients wait */
	VICTIMS_MAX = 12,
	ROUND_BLOCKS = 12 << 14, /* limit of the blocks in the victims of a round: 768 MiB */
	/* A round ends when this many segments more than begin_segments are free. With fewer,
	 * rounds and their checkpoints would be more frequent. */
	ENOUGH_SEGMENTS = 4,
	CREDIT = 4, /* blocks that may be examined for each block that clients write */
	/* Replaces CREDIT when the number of free segments is closer to the reserve than to
	 * begin_segments. */
	CREDIT_BEHIND = 16,
	/* If segments are small, a round might free only what its checkpoint takes. So the
	 * collector gives up after collecting VAIN_TURNS times the number of segments without a
	 * gain. */
	VAIN_TURNS = 2,
};

enum flash_gc_state {
	FLASH_GC_IDLE,
	FLASH_GC_HEADER,  /* the next header of the victim must be read */
	FLASH_GC_READING, /* a header or blocks are being read */
	FLASH_GC_SCAN,	  /* searching the record for live blocks */
	FLASH_GC_COPY,	  /* the live blocks of the record have been read */
	FLASH_GC_STATE_COUNT
};

struct flash_gc {
	struct flash *flash;
	enum flash_gc_state state;
	uint32_t victim;
	uint32_t block; /* block of the victim with the header of the current record */
	uint32_t entry; /* entry to examine next */
	/* Position, in the record, of the block of the entry to examine next. */
	uint32_t entry_block;
	uint32_t first; /* blocks first to end - 1 of the record are to be read */
	uint32_t end;
	bool is_waiting; /* the collection waits for a page of the map */
	uint32_t wait_tree;
	/* The read in flight is for blocks, not for a header. */
	bool reads_blocks;
	uint32_t begin_segments; /* collection begins when fewer segments than this are free */
	/* A round ends when this many segments are free, or will be free after the next
	 * checkpoint. */
	uint32_t enough_segments;
	/* free segments that the garbage collector leaves to checkpoints */
	uint32_t floor_segments;
	bool is_pressed; /* fewer than floor_segments were free after the last checkpoint */
	/* fewer segments than clients need were free after the last checkpoint */
	bool is_short;
	uint64_t credit; /* number of blocks that may be examined now */
	/* The next two members are reset when clients get room in the log, or a snapshot is
	 * deleted. */
	uint32_t most_free;  /* largest number of free segments after a checkpoint */
	uint32_t vain_count; /* number of victims since most_free was reached */
	struct flash_record record;
	/* is_moved[i]: the block of entry i was appended from the cache during the scan */
	bool is_moved[FLASH_RECORD_ENTRIES];
	struct flash_wait wait;
	struct flash_io io;
};

static const uint32_t gc_edges[FLASH_GC_STATE_COUNT] = {
	[FLASH_GC_IDLE] = BIT(FLASH_GC_HEADER),
	[FLASH_GC_HEADER] = BIT(FLASH_GC_READING) | BIT(FLASH_GC_IDLE),
	[FLASH_GC_READING] = BIT(FLASH_GC_SCAN) | BIT(FLASH_GC_COPY) | BIT(FLASH_GC_IDLE),
	[FLASH_GC_SCAN] = BIT(FLASH_GC_READING) | BIT(FLASH_GC_HEADER) | BIT(FLASH_GC_IDLE),
	[FLASH_GC_COPY] = BIT(FLASH_GC_HEADER) | BIT(FLASH_GC_IDLE),
};

static void walk_set_state(struct flash_gc *gc, enum flash_gc_state state)
{
	GMB_ASSERT((gc_edges[gc->state] & BIT(state)) != 0);
	gc->state = state;
	gc->entry = 0;
	gc->entry_block = 1;
}

/* True if clients need room in the log, and fewer segments are free than they need. */
static bool clients_wait(const struct flash *flash)
{
	return (!list_is_empty(&flash->changes) || flash_cache_wants_log(flash)) &&
	       flash_free_soon(flash) <
		       flash->anchor.geometry.reserve_segments + FLASH_RECORD_SEGMENTS;
}

void flash_gc_credit(struct flash *flash, uint32_t blocks)
{
	struct flash_gc *gc = flash->gc;
	uint32_t free_count = flash_free_soon(flash);
	uint32_t reserve = flash->anchor.geometry.reserve_segments;

	if (free_count < gc->begin_segments) {
		bool is_behind = free_count < (gc->begin_segments + reserve) / 2;
		uint64_t most = UINT64_C(4) * flash->anchor.geometry.segment_blocks;

		gc->credit += (uint64_t)blocks * (is_behind ? CREDIT_BEHIND : CREDIT);
		gc->credit = MIN(gc->credit, most);
	}
}

/* Resets the count of victims that freed no space, if clients have had room in the meantime, or a
 * snapshot was deleted. */
static void gc_hope(struct flash *flash)
{
	if (flash->has_hope) {
		flash->has_hope = false;
		flash->gc->most_free = 0;
		flash->gc->vain_count = 0;
	}
}

void flash_gc_checkpointed(struct flash *flash)
{
	struct flash_gc *gc = flash->gc;
	uint32_t free_count = flash_free_soon(flash);

	gc_hope(flash);
	gc->is_short = free_count < flash->anchor.geometry.reserve_segments + FLASH_RECORD_SEGMENTS;
	gc->is_pressed = free_count < gc->floor_segments;
	if (free_count > gc->most_free) {
		gc->most_free = free_count;
		gc->vain_count = 0;
	}
}

/* --- the victim ------------------------------------------------------------------------------ */

static uint32_t victim_block(const struct flash *flash, uint32_t block)
{
	return flash_segment_at(&flash->anchor.geometry, flash->gc->victim) + flash->gc->block +
	       block;
}

static void walk_end(struct flash *flash)
{
	flash->segments[flash->gc->victim].readers--;
	walk_set_state(flash->gc, FLASH_GC_IDLE);
}

static void gc_next_record(struct flash *flash)
{
	struct flash_gc *gc = flash->gc;

	gc->block += gc->record.block_count;
	if (gc->record.next_segment != FLASH_NO_SEGMENT ||
		flash->anchor.geometry.segment_blocks - gc->block < 2) {
		walk_end(flash);
	} else {
		walk_set_state(gc, FLASH_GC_HEADER);
	}
}

static uint32_t victims_max(const struct flash *flash)
{
	uint32_t count = MAX(ROUND_BLOCKS / flash->anchor.geometry.segment_blocks, 1U);

	return MIN(count, (uint32_t)VICTIMS_MAX);
}

/* Called when clients wait and no segment can be freed for them. Returns true if this changes,
 * because a snapshot is dropped or changes fail instead of waiting. */
static bool gc_give_up(struct flash *flash)
{
	if (flash_snapshots_relieve(flash)) {
		return true;
	}
	/* An operation in flight, or one that follows from it, might still free a segment. So the
	 * store fails only when io_count is 0. */
	flash->is_out = true;
	if (flash->io_count == 0) {
		flash_fail(flash, -ENOSPC, "the log is full");
	}
	return false;
}

/* Chooses a victim, or requests a checkpoint that frees the collected segments. Returns false if
 * there is no work. */
static bool gc_choose(struct flash *flash)
{
	struct flash_gc *gc = flash->gc;
	uint32_t free_count = flash_free_soon(flash);
	uint32_t victims = flash->table.state_counts[GC_VICTIM];
	bool urgent = clients_wait(flash);

	gc_hope(flash);
	flash->is_out = false;
	if (free_count >= gc->begin_segments || (!urgent && gc->credit == 0) ||
		flash->snapshots.is_stuck) {
		return false;
	}
	if (urgent && gc->vain_count / VAIN_TURNS >= flash->anchor.geometry.segment_count) {
		return gc_give_up(flash);
	}
	if (victims > 0 && (free_count + victims >= gc->enough_segments ||
				   (urgent && victims >= victims_max(flash)))) {
		flash_checkpoint_ask(flash);
		return true;
	}
	gc->victim = urgent ? GC_NO_SEGMENT : flash_wear_victim(flash);
	if (gc->victim == GC_NO_SEGMENT) {
		gc->victim = gc_victim(&flash->table, urgent && gc->is_short ? GC_SPACE : GC_CHEAP);
	}
	if (gc->victim == GC_NO_SEGMENT) {
		/* A segment written since the last checkpoint is not a candidate yet, but can
		 * become one by the next checkpoint. */
		if (victims > 0 || (urgent && flash->log.since_checkpoint > 0)) {
			flash_checkpoint_ask(flash);
			return true;
		}
		return urgent && gc_give_up(flash);
	}
	gc->vain_count++;
	gc_set_state(&flash->table, gc->victim, GC_VICTIM);
	/* The reader count keeps the victim from becoming free while it is being read. */
	if (!flash_segment_is_empty(flash, gc->victim)) {
		flash->segments[gc->victim].readers++;
		gc->block = 0;
		walk_set_state(gc, FLASH_GC_HEADER);
	}
	return true;
}

/* --- its records ----------------------------------------------------------------------------- */

static void read_done(struct flash_io *io, int result)
{
	struct flash *flash = io->flash;
	struct flash_gc *gc = flash->gc;

	if (result < 0) {
		flash->segments[gc->victim].is_bad = true;
		walk_end(flash);
	} else if (gc->reads_blocks) {
		walk_set_state(gc, FLASH_GC_COPY);
	} else if (!flash_record_look(flash->record_bytes, &flash->anchor, &gc->record) ||
		   gc->record.block_count > flash->anchor.geometry.segment_blocks - gc->block) {
		walk_end(flash); /* there is no record, because a crash has ended the log here */
	} else {
		gc->first = UINT32_MAX;
		gc->end = 0;
		memset(gc->is_moved, 0, sizeof(gc->is_moved));
		walk_set_state(gc, FLASH_GC_SCAN);
	}
}

static void read_blocks(struct flash *flash, uint32_t first, uint32_t end, bool reads_blocks)
{
	struct flash_gc *gc = flash->gc;

	gc->reads_blocks = reads_blocks;
	walk_set_state(gc, FLASH_GC_READING);
	flash_io_start(flash, &gc->io, false,
		mem_of(flash->record_bytes + (size_t)first * FLASH_BLOCK_BYTES),
		victim_block(flash, first), (size_t)(end - first) * FLASH_BLOCK_BYTES, read_done);
}

static void gc_page_ready(struct flash_wait *wait, int result)
{
	struct flash_gc *gc = container_of(wait, struct flash_gc, wait);
	struct flash *flash = gc->flash;

	gc->is_waiting = false;
	if (result >= 0 || result == -ESTALE) {
		return;
	}
	/* The blocks of an unreadable map page can neither be found nor moved, so the victim is not
	 * freed. -ESTALE: the snapshot was deleted, so its page is not needed. */
	walk_end(flash);
	if (gc->wait_tree == 0) {
		flash->segments[gc->victim].is_bad = true;
	} else {
		gc_set_state(&flash->table, gc->victim, GC_CANDIDATE);
		flash_snapshot_damaged(flash, gc->wait_tree - 1);
	}
}

/* Returns the map page, or NULL if it must be read first. The scan then continues later. */
static struct flash_slot *gc_page_get(struct flash *flash, uint32_t page)
{
	bool full;
	struct flash_slot *slot = flash_map_get(flash, page, &flash->gc->wait, &full);

	if (slot == NULL && full) {
		flash_checkpoint_ask(flash);
	}
	flash->gc->is_waiting = slot == NULL && !full;
	flash->gc->wait_tree = page / flash->anchor.geometry.page_count;
	return slot;
}

/* Returns the map page after marking it dirty, or NULL if it is not available yet. The scan then
 * continues later. */
static struct flash_slot *page_dirty(struct flash *flash, uint32_t page)
{
	struct flash_slot *slot = gc_page_get(flash, page);

	if (slot != NULL && !flash_map_dirty(flash, slot)) {
		flash_checkpoint_ask(flash);
		return NULL;
	}
	return slot;
}

/* Marks the pages that refer to a live node dirty, so that the next checkpoint writes the node to a
 * new position. Returns false if a page could not be marked yet. */
static bool scan_node(struct flash *flash, const struct flash_record_entry *entry, uint32_t block)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t level = entry->source % FLASH_LEVELS;
	uint32_t index = (uint32_t)entry->lpn;

	/* A node can belong to several trees. */
	for (uint32_t i = 0; i < FLASH_TREES; i++) {
		struct flash_tree *tree = &flash->map.trees[i];

		if (le32toh(tree->levels[level][index].block) != block) {
			continue;
		}
		if (level > 0) {
			tree->dirty[level][index] = true;
		} else if (index >= geometry->leaf_count) {
			tree->table_dirty[index - geometry->leaf_count] = true;
		} else if (page_dirty(flash, i * geometry->page_count + index) == NULL) {
			return false;
		}
	}
	return true;
}

static bool is_used(const struct flash_slot *slot, uint64_t lpn, uint32_t block)
{
	return le32toh(slot->node->entries[lpn % FLASH_NODE_ENTRIES].block) == block;
}

/* Finds the trees that refer to the block (as a bit set), and its checksum. dirty: also marks the
 * map pages dirty that refer to it. Returns false if not all pages are available yet. */
static bool find_users(struct flash *flash, uint64_t lpn, uint32_t block, bool dirty,
	uint32_t *users_out, uint32_t *crc_out)
{
	*users_out = 0;
	for (uint32_t tree = 0; tree < FLASH_TREES; tree++) {
		uint32_t page = flash_page_of(flash, tree, lpn);
		const struct flash_slot *slot;

		if (!flash_tree_is_live(flash, tree)) {
			continue;
		}
		slot = gc_page_get(flash, page);
		if (slot == NULL) {
			return false;
		}
		if (is_used(slot, lpn, block)) {
			*users_out |= BIT(tree);
			*crc_out = le32toh(slot->node->entries[lpn % FLASH_NODE_ENTRIES].crc);
			if (dirty && page_dirty(flash, page) == NULL) {
				return false;
			}
		}
	}
	return true;
}

/* Gets room for one block in the record being filled, and marks the disk's map page of the block
 * dirty. */
static bool make_room(struct flash *flash, uint64_t lpn)
{
	uint32_t floor;

	/* The disk's page is needed even if only snapshots have the block, because
	 * flash_map_apply() looks up the block in that page. */
	if (page_dirty(flash, flash_page_of(flash, 0, lpn)) == NULL) {
		return false;
	}
	/* Usually floor_segments stay free. After several crashes, fewer can be free (is_pressed).
	 * Then only half as many must stay free: the other half was meant for a recovery. */
	floor = flash->gc->is_pressed ? flash->gc->floor_segments / 2 : flash->gc->floor_segments;
	if (flash_free_soon(flash) < floor) {
		flash_checkpoint_ask(flash);
		return false;
	}
	return flash_log_room(flash, 1, true);
}

/* Moves a live block from the cache, or adds it to the range to be read. Returns false if there is
 * no room now. */
static bool scan_one(struct flash *flash, const struct flash_record_entry *from, uint32_t block,
	uint32_t users, uint32_t crc)
{
	struct flash_gc *gc = flash->gc;
	struct flash_record_entry entry = { .lpn = from->lpn, .source = block, .kind = FLASH_COPY };
	enum gc_way way = GC_FROM_FLASH;

	/* A block that a snapshot also has must be copied unchanged. The cache has only the disk's
	 * newer version. */
	if (users == BIT(0)) {
		way = flash_cache_gc_way(flash, from->lpn, gc->victim, crc);
	}
	if (way == GC_FROM_FLASH) {
		gc->first = MIN(gc->first, gc->entry_block);
		gc->end = gc->entry_block + 1;
		return true;
	}
	if (!make_room(flash, from->lpn)) {
		return false;
	}
	if (way == GC_WRITE_BACK) {
		entry.kind = FLASH_DATA;
	}
	/* A clean page is copied, because its slot can be reused at any time. A dirty one can be
	 * written from its slot, which stays until the record is retired. */
	flash_log_append(flash, &entry,
		flash_cache_page(&flash->cache, flash_cache_find(flash, from->lpn)),
		way == GC_WRITE_BACK && flash_cache_holds(flash));
	if (way == GC_WRITE_BACK) {
		flash_cache_written_back(flash, from->lpn);
	} else {
		flash->counters.cache_moved_blocks++;
	}
	gc->is_moved[gc->entry] = true;
	return true;
}

static bool is_data(uint8_t kind)
{
	return kind == FLASH_DATA || flash_kind_is_copy(kind);
}

/* Examines the entries of the record. Returns false if the scan must continue later, from gc->entry
 * on. */
static bool scan(struct flash *flash)
{
	struct flash_gc *gc = flash->gc;

	for (; gc->entry < gc->record.entry_count; gc->entry++) {
		const struct flash_record_entry *entry = &gc->record.entries[gc->entry];
		uint32_t block = victim_block(flash, gc->entry_block);

		if (entry->kind == FLASH_NODE) {
			if (!scan_node(flash, entry, block)) {
				return false;
			}
		} else if (is_data(entry->kind)) {
			uint32_t users;
			uint32_t crc;

			if (!find_users(flash, entry->lpn, block, false, &users, &crc)) {
				return false;
			}
			if (users != 0 && !scan_one(flash, entry, block, users, crc)) {
				return false;
			}
		}
		gc->entry_block += flash_kind_has_block(entry->kind);
	}
	gc->credit -= MIN(gc->credit, (uint64_t)gc->record.block_count);
	return true;
}

/* Moves a block that has been read. Returns false if there is no room now. */
static bool copy_one(struct flash *flash, const struct flash_record_entry *from, uint32_t block,
	const uint8_t *data)
{
	struct flash_record_entry entry = { .lpn = from->lpn, .source = block, .kind = FLASH_COPY };
	uint32_t users;
	uint32_t crc;

	if (!find_users(flash, from->lpn, block, true, &users, &crc)) {
		return false;
	}
	if (users == 0) {
		return true;
	}
	if (crc32c(0, data, FLASH_BLOCK_BYTES) != crc) {
		/* A damaged block is not copied, because the copy would have a valid checksum for
		 * wrong contents. */
		flash->counters.checksum_errors++;
		flash->segments[flash->gc->victim].is_bad = true;
		log_error("flash store '%s': block %llu of the disk is damaged; reads of it fail",
			flash->path, (unsigned long long)from->lpn);
		return true;
	}
	if (!make_room(flash, from->lpn)) {
		return false;
	}
	if ((users & BIT(0)) == 0) {
		entry.kind = FLASH_KEPT;
	}
	flash_log_append(flash, &entry, data, false);
	flash->counters.moved_blocks++;
	return true;
}

/* Appends the live blocks of the record that were read. */
static bool copy(struct flash *flash)
{
	struct flash_gc *gc = flash->gc;

	for (; gc->entry < gc->record.entry_count; gc->entry++) {
		const struct flash_record_entry *entry = &gc->record.entries[gc->entry];

		if (gc->entry_block >= gc->first && gc->entry_block < gc->end &&
			is_data(entry->kind) && !gc->is_moved[gc->entry] &&
			!copy_one(flash, entry, victim_block(flash, gc->entry_block),
				flash->record_bytes +
					(size_t)gc->entry_block * FLASH_BLOCK_BYTES)) {
			return false;
		}
		gc->entry_block += flash_kind_has_block(entry->kind);
	}
	return true;
}

/* Garbage collection pauses during checkpoints, because it would change pages of snapshots. The
 * pause delays no segment that is already empty: such a segment becomes free only with the next
 * checkpoint in any case. */
bool flash_gc_step(struct flash *flash)
{
	struct flash_gc *gc = flash->gc;

	if (flash->is_read_only || flash->is_starting || flash->failed != 0 ||
		(flash->is_closing &&
			(!flash->cache.is_draining || !flash_cache_is_dirty(&flash->cache))) ||
		gc->is_waiting || flash_checkpoint_runs(flash) || flash->checkpoint.is_asked) {
		return false;
	}
	switch (gc->state) {
	case FLASH_GC_IDLE:
		return gc_choose(flash);
	case FLASH_GC_HEADER:
		read_blocks(flash, 0, 1, false);
		return true;
	case FLASH_GC_READING:
		return false;
	case FLASH_GC_SCAN:
		if (!scan(flash)) {
			return false;
		}
		if (gc->end > 0) {
			read_blocks(flash, gc->first, gc->end, true);
		} else {
			gc_next_record(flash);
		}
		return true;
	case FLASH_GC_COPY:
		if (!copy(flash)) {
			return false;
		}
		gc_next_record(flash);
		return true;
	case FLASH_GC_STATE_COUNT:
		break;
	}
	return false;
}

bool flash_gc_walks(const struct flash *flash, uint32_t segment)
{
	return flash->gc->state != FLASH_GC_IDLE && flash->gc->victim == segment;
}

uint64_t flash_gc_bytes(void)
{
	return sizeof(struct flash_gc);
}

void flash_gc_init(struct flash *flash, uint8_t *memory)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	struct flash_gc *gc = (void *)memory;
	uint32_t waits = geometry->reserve_segments + FLASH_RECORD_SEGMENTS;

	memset(gc, 0, sizeof(*gc));
	gc->flash = flash;
	flash->gc = gc;
	gc->wait.ready = gc_page_ready;
	/* Clients wait if fewer than `waits` segments are free. Collection begins earlier. */
	gc->begin_segments = gc_begin_segments(&flash->table, waits);
	gc->enough_segments = gc->begin_segments + ENOUGH_SEGMENTS;
	/* Segments that garbage collection leaves to others: room for a checkpoint, and for the
	 * checkpoint of a recovery in its own segment. */
	gc->floor_segments = geometry->checkpoint_segments + geometry->replay_segments + 4;
}
