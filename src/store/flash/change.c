// SPDX-License-Identifier: Apache-2.0
/*
 * Writes, trims and zeroes, in the order of their arrival. A change that must wait stops all later
 * ones, so that the log has the changes of each block in that order. The map pages that later
 * changes need are read in the meantime.
 *
 * Invariant: only the first change in the queue is processed, and only one read is in flight for it
 * (of a map page, or of a block that it changes in part). `seq` is greater than the number of every
 * record that contains a change. So a block that is changed in part is read only after all its
 * earlier changes have taken effect in the map.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum {
	HELD_BYTES_MIN = 32 << 10, /* data of smaller parts is always copied */
	LOOKAHEAD = 16,		   /* queued changes whose pages are read ahead */
	EMPTY_PAGES_MAX = 4096 /* limit on empty map pages skipped before the ring's next batch */
};

/* Result of one step of processing the first change in the queue. */
enum step {
	STEP_WAIT, /* the change waits; an event will call flash_pump() */
	STEP_DONE, /* the change is complete, or there was progress */
};

/* The first or last block of the current change, if the change covers only a part of the block. */
struct flash_edge {
	uint8_t *bytes;
	uint32_t crc;
	uint32_t segment;
	bool is_ready;
	struct flash_io io;
};

struct flash_changes {
	struct flash *flash;
	struct flash_edge edges[2];
	struct flash_wait wait;
	/* the first change waits for a map page, or for a block that it changes in part */
	bool waits;
	uint64_t seq;	     /* the changes appended so far are in records with smaller numbers */
	struct ring_op turn; /* operation that continues a long change in the ring's next batch */
};

static uint64_t block_of(uint64_t offset)
{
	return offset >> FLASH_BLOCK_SHIFT;
}

static uint64_t end_of(const struct store_part *part)
{
	return part->offset + part->length;
}

/* Removes the part from the queue. The next change must read its own edges (partly changed
 * blocks). */
static void change_ended(struct flash *flash, struct store_part *part)
{
	list_remove(&part->node);
	list_remove(&flash_scratch_of(part)->wait.node);
	flash->change->edges[0].is_ready = false;
	flash->change->edges[1].is_ready = false;
}

static void change_failed(struct flash *flash, struct store_part *part, int error)
{
	change_ended(flash, part);
	/* Records might refer to the memory of the part, so it must complete after them. */
	flash_scratch_of(part)->result = error;
	flash_log_add_part(flash, part);
}

/* --- pages of the map ------------------------------------------------------------------------ */

/* If the map page cannot be read, the first change in the queue fails. The first change is the one
 * that has requested the page, because a change stays first while it waits. */
static void change_page_ready(struct flash_wait *wait, int result)
{
	struct flash *flash = container_of(wait, struct flash_changes, wait)->flash;

	flash->change->waits = false;
	if (result < 0 && !list_is_empty(&flash->changes)) {
		change_failed(flash,
			list_entry(list_first(&flash->changes), struct store_part, node), result);
	}
}

static void ahead_ready(struct flash_wait *wait, int result)
{
	/* an error is ignored: the change that needs the page reads it again */
}

/* Requests the first map page of each of the next LOOKAHEAD changes. wait->ready marks changes for
 * which this was done. */
static void change_look_ahead(struct flash *flash)
{
	uint32_t count = 0;

	list_for_each(node, &flash->changes)
	{
		struct store_part *part = list_entry(node, struct store_part, node);
		struct flash_wait *wait = &flash_scratch_of(part)->wait;
		bool full;

		if (count++ == LOOKAHEAD) {
			return;
		}
		if (wait->ready == NULL && count > 1) {
			wait->ready = ahead_ready;
			(void)flash_map_get(flash,
				(uint32_t)(block_of(part->offset) / FLASH_NODE_ENTRIES), wait,
				&full);
		}
	}
}

/* Returns the map page after marking it dirty, or NULL if the change must wait. */
static struct flash_slot *page_for_change(struct flash *flash, uint32_t page)
{
	bool full;
	struct flash_slot *slot;

	slot = flash_map_get(flash, page, &flash->change->wait, &full);
	if (slot == NULL && !full) {
		flash->change->waits = true;
		change_look_ahead(flash);
	} else if (slot == NULL || !flash_map_dirty(flash, slot)) {
		flash_checkpoint_await(flash);
		slot = NULL;
	}
	return slot;
}

/* --- partial blocks -------------------------------------------------------------------------- */

static void edge_done(struct flash_io *io, int result)
{
	struct flash_edge *edge = container_of(io, struct flash_edge, io);
	struct flash *flash = io->flash;

	flash->segments[edge->segment].readers--;
	if (result == 0 && crc32c(0, edge->bytes, FLASH_BLOCK_BYTES) != edge->crc) {
		flash->counters.checksum_errors++;
		log_error("flash store '%s': the block at byte %llu of the device is damaged: its "
			  "checksum is wrong",
			flash->path, (unsigned long long)io->offset);
		result = -EIO;
	}
	edge->is_ready = result == 0;
	change_page_ready(&flash->change->wait, result);
}

/* Gets the current contents of a block that the change covers only in part. */
static enum step edge_get(struct flash *flash, struct flash_edge *edge, uint64_t lpn)
{
	struct flash_log *log = &flash->log;
	const struct flash_slot *slot;
	struct flash_entry entry;
	uint32_t cached;

	if (edge->is_ready) {
		return STEP_DONE;
	}
	/* Earlier changes of this block must have taken effect in the map, else an old
	 * version would be read. */
	if (log->written_seq < flash->change->seq) {
		if (log->filling != NULL && log->filling->at.seq < flash->change->seq) {
			flash_log_close(flash);
		}
		return STEP_WAIT;
	}
	cached = flash_cache_find(flash, lpn);
	if (cached != CACHE_NO_SLOT) {
		memcpy(edge->bytes, flash_cache_page(&flash->cache, cached), FLASH_BLOCK_BYTES);
		edge->is_ready = true;
		return STEP_DONE;
	}
	slot = flash_map_find(flash, (uint32_t)(lpn / FLASH_NODE_ENTRIES));
	entry = slot->node->entries[lpn % FLASH_NODE_ENTRIES];
	if (entry.block == 0) {
		memset(edge->bytes, 0, FLASH_BLOCK_BYTES);
		edge->is_ready = true;
		return STEP_DONE;
	}
	edge->crc = le32toh(entry.crc);
	edge->segment = flash_segment_of(&flash->anchor.geometry, le32toh(entry.block));
	flash->segments[edge->segment].readers++;
	flash->change->waits = true;
	flash_io_start(flash, &edge->io, false, mem_of(edge->bytes), le32toh(entry.block),
		FLASH_BLOCK_BYTES, edge_done);
	return STEP_WAIT;
}

/* Applies the change to `bytes`, the contents of block lpn. */
static void edge_patch(const struct store_part *part, uint64_t lpn, uint8_t *bytes)
{
	uint64_t at = lpn << FLASH_BLOCK_SHIFT;
	uint64_t from = MAX(at, part->offset);
	uint64_t to = MIN(at + FLASH_BLOCK_BYTES, end_of(part));

	if (part->op == STORE_WRITE) {
		memcpy(bytes + (from - at), mem_cpu_read(part->memory) + (from - part->offset),
			to - from);
	} else {
		memset(bytes + (from - at), 0, to - from);
	}
}

/* Returns the edge of the change for block lpn, or NULL if the change covers the whole block. */
static struct flash_edge *edge_of(struct flash *flash, const struct store_part *part, uint64_t lpn)
{
	if (lpn << FLASH_BLOCK_SHIFT < part->offset) {
		return &flash->change->edges[0];
	}
	return (lpn + 1) << FLASH_BLOCK_SHIFT > end_of(part) ? &flash->change->edges[1] : NULL;
}

/* --- blocks ---------------------------------------------------------------------------------- */

/* Gets everything that is needed to append these blocks to one record: their map pages, marked
 * dirty; the current contents of a first or last block that is changed only in part; and room in
 * the record. */
static enum step blocks_prepare(
	struct flash *flash, const struct store_part *part, uint64_t first, uint32_t count)
{
	for (uint64_t page = first / FLASH_NODE_ENTRIES;
		page <= (first + count - 1) / FLASH_NODE_ENTRIES; page++) {
		if (page_for_change(flash, (uint32_t)page) == NULL) {
			return STEP_WAIT;
		}
	}
	for (uint64_t lpn = first; lpn < first + count; lpn += MAX(count - 1, 1U)) {
		struct flash_edge *edge = edge_of(flash, part, lpn);

		if (edge != NULL && edge_get(flash, edge, lpn) == STEP_WAIT) {
			return STEP_WAIT;
		}
	}
	return flash_log_room(flash, count, false) ? STEP_DONE : STEP_WAIT;
}

/* True if the part's blocks are written from its own memory. Memory that other processes can change
 * is copied instead: a change after the checksum was computed would leave a record that does not
 * match its checksum, and after a crash the log would end there, without later writes of other
 * clients. */
static bool is_held(const struct flash *flash, const struct store_part *part)
{
	uint64_t skip = (FLASH_BLOCK_BYTES - part->offset % FLASH_BLOCK_BYTES) % FLASH_BLOCK_BYTES;

	return part->op == STORE_WRITE && part->length >= HELD_BYTES_MIN &&
	       mem_may(part->memory, MEM_STABLE) &&
	       mem_is_aligned(mem_add(part->memory, skip), flash->memory_align);
}

static void blocks_append(
	struct flash *flash, const struct store_part *part, uint64_t first, uint32_t count)
{
	bool holds = is_held(flash, part);

	for (uint64_t lpn = first; lpn < first + count; lpn++) {
		struct flash_record_entry entry = { .lpn = lpn, .kind = FLASH_DATA };
		const struct flash_edge *edge = edge_of(flash, part, lpn);
		const uint8_t *data;

		if (edge != NULL) {
			edge_patch(part, lpn, edge->bytes);
			data = edge->bytes;
		} else {
			data = mem_cpu_read(part->memory) +
			       ((lpn << FLASH_BLOCK_SHIFT) - part->offset);
		}
		flash_log_append(flash, &entry, data, edge == NULL && holds);
	}
	flash_cache_supersede(flash, first, count);
	flash->counters.written_blocks += count;
	flash_gc_credit(flash, count);
	flash->change->seq = flash->log.filling->at.seq + 1;
}

/* --- writes ---------------------------------------------------------------------------------- */

/* A durable write of limited size goes into one record, so that a crash leaves all of it or
 * none. */
static bool is_atomic(const struct flash *flash, const struct store_part *part, uint64_t count)
{
	return (part->flags & STORE_FUA) != 0 &&
	       count <= flash_atomic_blocks(&flash->anchor.geometry);
}

static enum step write_step(struct flash *flash, struct store_part *part)
{
	struct flash_scratch *scratch = flash_scratch_of(part);
	uint64_t first = block_of(part->offset + scratch->done_bytes);
	uint64_t end = block_of(end_of(part) - 1) + 1;
	uint64_t count = end - first;
	enum step step;

	if (!is_atomic(flash, part, end - block_of(part->offset))) {
		count = MIN(count, (uint64_t)flash_log_fit(flash));
	}
	step = blocks_prepare(flash, part, first, (uint32_t)count);
	if (step == STEP_WAIT) {
		return step;
	}
	blocks_append(flash, part, first, (uint32_t)count);
	scratch->is_logged = true;
	scratch->done_bytes = ((first + count) << FLASH_BLOCK_SHIFT) - part->offset;
	if (first + count == end) {
		change_ended(flash, part);
		flash_log_add_part(flash, part);
	}
	return STEP_DONE;
}

/* --- writes to the cache --------------------------------------------------------------------- */

/* Gets the current contents of a block that the change covers only in part. If the block is not
 * cached, this includes getting its map page. */
static enum step cached_edge(struct flash *flash, struct flash_edge *edge, uint64_t lpn)
{
	bool full;

	if (flash_cache_find(flash, lpn) == CACHE_NO_SLOT && !edge->is_ready &&
		flash_map_get(flash, (uint32_t)(lpn / FLASH_NODE_ENTRIES), &flash->change->wait,
			&full) == NULL) {
		if (full) {
			flash_checkpoint_await(flash);
		} else {
			flash->change->waits = true;
			change_look_ahead(flash);
		}
		return STEP_WAIT;
	}
	return edge_get(flash, edge, lpn);
}

/* Writes the part to the cache and answers it: each block has its own slot, so there is no
 * record to wait for. */
static enum step cache_step(struct flash *flash, struct store_part *part)
{
	struct flash_scratch *scratch = flash_scratch_of(part);

	while (scratch->done_bytes < part->length) {
		uint64_t lpn = block_of(part->offset + scratch->done_bytes);
		struct flash_edge *edge = edge_of(flash, part, lpn);
		uint64_t end = MIN(end_of(part), (lpn + 1) << FLASH_BLOCK_SHIFT);
		const uint8_t *data;

		if (!flash_cache_has_room(flash)) {
			return STEP_WAIT;
		}
		if (edge == NULL) {
			data = mem_cpu_read(part->memory) + scratch->done_bytes;
		} else if (cached_edge(flash, edge, lpn) == STEP_WAIT) {
			return STEP_WAIT;
		} else {
			edge_patch(part, lpn, edge->bytes);
			data = edge->bytes;
		}
		flash_cache_put(flash, lpn, data);
		flash->counters.written_blocks++;
		flash->counters.cached_blocks++;
		scratch->done_bytes = end - part->offset;
	}
	change_ended(flash, part);
	flash_finish(part, 0);
	return STEP_DONE;
}

/* --- trim and zero --------------------------------------------------------------------------- */

static bool has_blocks(const struct flash_slot *slot, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < end; i++) {
		if (slot->node->entries[i % FLASH_NODE_ENTRIES].block != 0) {
			return true;
		}
	}
	return false;
}

/* Zeroes a part of a block. No-op if the block has no data and no record in flight. */
static enum step clear_edge(struct flash *flash, struct store_part *part, uint64_t lpn)
{
	const struct flash_slot *slot =
		page_for_change(flash, (uint32_t)(lpn / FLASH_NODE_ENTRIES));
	enum step step;

	if (slot == NULL) {
		return STEP_WAIT;
	}
	if (slot->pins == 0 && !has_blocks(slot, lpn, lpn + 1) &&
		flash_cache_find(flash, lpn) == CACHE_NO_SLOT) {
		return STEP_DONE;
	}
	step = blocks_prepare(flash, part, lpn, 1);
	if (step == STEP_DONE) {
		blocks_append(flash, part, lpn, 1);
	}
	return step;
}

/* Clears whole blocks of one map page. If the page has no data there, and no record in flight,
 * dropping the blocks from the cache is enough. */
static enum step clear_page(struct flash *flash, uint64_t first, uint64_t end)
{
	uint32_t page = (uint32_t)(first / FLASH_NODE_ENTRIES);
	struct flash_record_entry entry = {
		.lpn = first, .source = (uint32_t)(end - first), .kind = FLASH_TRIM
	};
	struct flash_slot *slot = page_for_change(flash, page);

	if (slot == NULL) {
		return STEP_WAIT;
	}
	if (slot->pins == 0 && !has_blocks(slot, first, end)) {
		flash_cache_drop(flash, first, (uint32_t)(end - first));
		return STEP_DONE;
	}
	if (!flash_log_room(flash, 1, false)) {
		return STEP_WAIT;
	}
	flash_log_append(flash, &entry, NULL, false);
	flash_cache_supersede(flash, first, (uint32_t)(end - first));
	flash->change->seq = flash->log.filling->at.seq + 1;
	return STEP_DONE;
}

static void change_turn_done(struct ring_op *op, int result)
{
	struct flash *flash = container_of(op, struct flash_changes, turn)->flash;

	flash_pump(flash);
	flash_io_ended(flash);
}

/* Trims or zeroes one map page after the other. Empty pages are skipped; after EMPTY_PAGES_MAX of
 * them the change continues in the ring's next batch, so that a large trim does not block the
 * ring. */
static enum step clear_step(struct flash *flash, struct store_part *part)
{
	struct flash_scratch *scratch = flash_scratch_of(part);
	uint64_t end = end_of(part);

	for (uint32_t empty = 0; scratch->done_bytes < part->length;) {
		uint64_t offset = part->offset + scratch->done_bytes;
		uint64_t lpn = block_of(offset);
		uint64_t page = lpn / FLASH_NODE_ENTRIES;
		uint64_t stop = MIN(end, (lpn + 1) << FLASH_BLOCK_SHIFT);
		enum step step = STEP_DONE;

		if (flash_map_is_empty(flash, (uint32_t)page) &&
			!flash_cache_has_page(&flash->cache, page)) {
			stop = MIN(end, ((page + 1) * FLASH_NODE_ENTRIES) << FLASH_BLOCK_SHIFT);
			if (++empty == EMPTY_PAGES_MAX) {
				if (!flash->change->turn.in_flight) {
					flash->io_count++;
					ring_defer(flash->ring, &flash->change->turn, 0,
						change_turn_done);
				}
				return STEP_WAIT;
			}
		} else if (edge_of(flash, part, lpn) != NULL) {
			/* A partial block may stay as it is when it is trimmed. */
			step = part->op == STORE_ZERO ? clear_edge(flash, part, lpn) : STEP_DONE;
		} else {
			stop = MIN(align_down(end, FLASH_BLOCK_BYTES),
				((page + 1) * FLASH_NODE_ENTRIES) << FLASH_BLOCK_SHIFT);
			step = clear_page(flash, lpn, block_of(stop));
		}
		if (step == STEP_WAIT) {
			return step;
		}
		scratch->done_bytes = stop - part->offset;
	}
	change_ended(flash, part);
	flash_log_add_part(flash, part);
	return STEP_DONE;
}

/* --- the queue ------------------------------------------------------------------------------- */

static enum step change_step(struct flash *flash, struct store_part *part)
{
	if (flash_cache_takes(flash, part)) {
		return cache_step(flash, part);
	}
	if (flash_checkpoint_blocks(flash) || flash_cache_must_drain(&flash->cache)) {
		return STEP_WAIT;
	}
	return part->op == STORE_WRITE ? write_step(flash, part) : clear_step(flash, part);
}

/* The loop ends at the first change that waits. Progress includes blocks of a change that
 * is not yet complete. */
bool flash_changes_step(struct flash *flash)
{
	bool progress = false;

	while (!list_is_empty(&flash->changes) && !flash->change->waits &&
		!flash->snapshots.holds) {
		struct store_part *part =
			list_entry(list_first(&flash->changes), struct store_part, node);
		uint64_t done_bytes = flash_scratch_of(part)->done_bytes;

		if (flash->failed != 0) {
			change_failed(flash, part, flash->failed);
		} else if (flash_snapshots_refuse(flash, part->op)) {
			change_failed(flash, part, -ENOSPC);
		} else if (change_step(flash, part) == STEP_WAIT) {
			return progress || flash_scratch_of(part)->done_bytes > done_bytes;
		}
		progress = true;
	}
	return progress;
}

uint64_t flash_changes_bytes(void)
{
	return align_up(sizeof(struct flash_changes), FLASH_BLOCK_BYTES) +
	       UINT64_C(2) * FLASH_BLOCK_BYTES;
}

void flash_changes_init(struct flash *flash, uint8_t *memory)
{
	struct flash_changes *change = (void *)memory;

	*change = (struct flash_changes){ .flash = flash, .wait.ready = change_page_ready };
	change->edges[0].bytes = memory + align_up(sizeof(*change), FLASH_BLOCK_BYTES);
	change->edges[1].bytes = change->edges[0].bytes + FLASH_BLOCK_BYTES;
	list_init(&change->wait.node);
	list_init(&flash->changes);
	flash->change = change;
}
