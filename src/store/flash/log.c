// SPDX-License-Identifier: Apache-2.0
/*
 * The log: records are filled, written in parallel, and retired in log order.
 *
 * Invariant: a record takes effect in memory only when it and all earlier records are written.
 * Recovery ends the log at the first missing record, so an earlier effect could be undone by a
 * crash. Record numbers (head.seq) have no gaps, and each header contains the checksum of the
 * previous one. Only one record is filled at a time: it gets the position and number of log->head
 * when it is begun, and its header is completed when it is closed.
 *
 * Called by change.c, cache.c, gc.c and checkpoint.c to append, and by io.c on completions.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum {
	BUFFER_BLOCKS = FLASH_RECORD_ENTRIES + 1,
	/* While this many records are in flight, small changes gather in one record. */
	FLYING_GATHER = 2,
	/* If a segment has fewer blocks left, the next record begins in another segment. */
	LINK_BLOCKS = 2,
	/* After this many durable blocks, a marker record declares them durable
	 * (docs/protocol/flash.md). */
	UNTOLD_BLOCKS = 64,
};

uint64_t flash_log_bytes(void)
{
	return (uint64_t)FLASH_RECORDS * BUFFER_BLOCKS * FLASH_BLOCK_BYTES;
}

void flash_log_init(struct flash *flash, uint8_t *memory)
{
	struct flash_log *log = &flash->log;

	list_init(&log->idle);
	list_init(&log->flying);
	for (uint32_t i = 0; i < FLASH_RECORDS; i++) {
		struct flash_buffer *buffer = &log->buffers[i];

		buffer->flash = flash;
		buffer->bytes = memory + (uint64_t)i * BUFFER_BLOCKS * FLASH_BLOCK_BYTES;
		list_init(&buffer->parts);
		list_push_back(&log->idle, &buffer->node);
	}
}

/* True if a segment cannot be collected because a block in it cannot be read or moved. */
static bool is_damaged(const struct flash *flash)
{
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		if (flash->segments[i].is_bad) {
			return true;
		}
	}
	return false;
}

void flash_fail(struct flash *flash, int error, const char *what)
{
	if (flash->failed == 0) {
		flash->failed = error;
		flash->pump_again = true;
		log_error("flash store '%s': %s: %s; the store is read-only until the server opens "
			  "it again%s",
			flash->path, what, strerror(-error),
			error != -ENOSPC ? ""
			: is_damaged(flash)
				? "; space next to unreadable blocks cannot be reused: copy "
				  "the disk to another store"
				: "; first free space in the filesystem that contains the store");
	}
}

/* --- segments -------------------------------------------------------------------------------- */

uint32_t flash_take_segment(struct flash *flash)
{
	uint32_t best = FLASH_NO_SEGMENT;

	/* The search is linear, but happens only once for each segment of log. */
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		if (flash->table.segments[i].state == GC_FREE &&
			(best == FLASH_NO_SEGMENT ||
				flash->segments[i].erases < flash->segments[best].erases)) {
			best = i;
		}
	}
	if (best != FLASH_NO_SEGMENT) {
		/* Checks whether snapshots leave enough space, once for each segment of log. */
		flash_snapshots_look(flash);
		gc_set_state(&flash->table, best, GC_OPEN);
		flash->segments[best].erases += !flash_is_avoided(flash, best);
		flash->erase.taken++;
		flash->map.trees[0].table_dirty[best / FLASH_TABLE_ENTRIES] = true;
	}
	return best;
}

/* --- retiring -------------------------------------------------------------------------------- */

/* Returns the map page that an entry changes, or NULL for a node. The page is dirty or pinned, so
 * it is in memory. */
static struct flash_slot *slot_of(struct flash *flash, const struct flash_record_entry *entry)
{
	return flash_kind_is_node(entry->kind)
		       ? NULL
		       : flash_map_find(flash, (uint32_t)(entry->lpn / FLASH_NODE_ENTRIES));
}

/* Called when a node of a checkpoint is written: makes the level above refer to its new position.
 * Second copies are skipped, because they are not referenced. */
static void apply_node(struct flash *flash, const struct flash_record_entry *entry, uint32_t block)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t tree = entry->source / FLASH_LEVELS;
	uint32_t level = entry->source % FLASH_LEVELS;
	uint32_t index = (uint32_t)entry->lpn;

	if (entry->kind == FLASH_TWIN) {
		return;
	}
	if (level == 0 && index < geometry->leaf_count) {
		struct flash_slot *slot =
			flash_map_find(flash, tree * geometry->page_count + index);

		/* A page that was changed again after it was appended has another state, and stays
		 * dirty. */
		if (slot->state == FLASH_SLOT_WRITTEN) {
			flash_map_clean(flash, slot);
		}
	}
	flash_map_set_node(flash, tree, level, index,
		(struct flash_entry){ htole32(block), htole32(entry->crc) });
}

/* Applies the entries in their order. The blocks follow the header in the same order. */
static void record_apply(struct flash *flash, const struct flash_buffer *buffer)
{
	uint32_t block = flash_segment_at(&flash->anchor.geometry, buffer->at.segment) +
			 buffer->at.block + 1;

	for (uint32_t i = 0; i < buffer->record.entry_count; i++) {
		const struct flash_record_entry *entry = &buffer->record.entries[i];
		struct flash_slot *slot = slot_of(flash, entry);

		if (slot == NULL) {
			apply_node(flash, entry, block);
		} else {
			flash_map_apply(flash, entry, block);
			flash_cache_written(flash, entry, buffer->at.seq);
			flash_map_unpin(flash, slot);
		}
		block += flash_kind_has_block(entry->kind);
	}
	flash_cache_retired(flash, buffer->at.seq);
	if (buffer->record.next_segment != FLASH_NO_SEGMENT) {
		gc_set_state(&flash->table, buffer->at.segment, GC_CLOSED);
	}
}

/* Releases the map pages that a record has pinned, for a record that takes no effect. */
static void record_forget(struct flash *flash, const struct flash_buffer *buffer)
{
	for (uint32_t i = 0; i < buffer->record.entry_count; i++) {
		struct flash_slot *slot = slot_of(flash, &buffer->record.entries[i]);

		if (slot != NULL) {
			flash_map_unpin(flash, slot);
		}
	}
}

static bool is_durable(const struct store_part *part)
{
	return (part->flags & STORE_FUA) != 0 || part->op == STORE_FLUSH;
}

/* Completes a part whose record is retired, or lets it wait for a sync if it must be durable. */
static void part_written(struct flash *flash, struct store_part *part)
{
	int result = flash->failed != 0 ? flash->failed : flash_scratch_of(part)->result;

	if (result < 0) {
		flash_finish(part, result);
	} else if (is_durable(part) && flash->log.durable_seq < flash->log.written_seq) {
		flash_sync_part(flash, part);
	} else {
		flash_finish(part, 0);
	}
}

/* Ends a record that has taken effect or never will. The parts of the record can then complete,
 * because the record no longer refers to their memory. */
static void retire(struct flash *flash, struct flash_buffer *buffer)
{
	struct flash_log *log = &flash->log;
	struct list_node *node;

	if (flash->failed != 0) {
		record_forget(flash, buffer);
	} else {
		/* First flash_cache_follow() stores in the cache file how far the log is written,
		 * then record_apply() frees slots. So a page disappears from the file only when
		 * this position covers its record, and a start detects a copy of the disk that
		 * lacks the record. */
		log->written_seq = buffer->at.seq + 1;
		log->written_at = buffer->behind;
		flash_cache_follow(flash);
		record_apply(flash, buffer);
		/* The write itself made this record durable, and all earlier ones were durable
		 * already. */
		if (buffer->io.is_durable && log->durable_seq == buffer->at.seq) {
			log->durable_seq = log->written_seq;
			log->durable_at = log->written_at;
			flash_log_tell(flash);
		}
	}
	/* Puts the buffer at the front of the idle list, so that it is reused while it is still in
	 * the processor's cache. */
	list_push_front(&log->idle, &buffer->node);
	while ((node = list_pop_front(&buffer->parts)) != NULL) {
		part_written(flash, list_entry(node, struct store_part, node));
	}
}

/* Retires written records in log order, up to the first one that is not written. */
static void retire_written(struct flash *flash)
{
	struct flash_log *log = &flash->log;

	while (!list_is_empty(&log->flying)) {
		struct flash_buffer *buffer =
			list_entry(list_first(&log->flying), struct flash_buffer, node);

		if (!buffer->is_written) {
			break;
		}
		list_remove(&buffer->node);
		log->flying_count--;
		retire(flash, buffer);
	}
}

void flash_log_abandon(struct flash *flash)
{
	list_for_each(node, &flash->log.flying)
	{
		list_entry(node, struct flash_buffer, node)->is_written = true;
	}
	retire_written(flash);
}

/* --- writing --------------------------------------------------------------------------------- */

/* A failed record also counts as written if the log cannot be moved to another segment: it is
 * retired with that error. */
static void record_done(struct flash_io *io, int result)
{
	struct flash_buffer *buffer = container_of(io, struct flash_buffer, io);
	struct flash *flash = io->flash;

	flash->log.writing_count--;
	buffer->is_written = result == 0 || !flash_move_begin(flash, result);
	if (result < 0 && buffer->is_written) {
		flash_fail(flash, result, "the log cannot be written");
	}
	retire_written(flash);
}

void flash_log_write(struct flash *flash, struct flash_buffer *buffer)
{
	/* FUA makes only this record durable, so it is used only if all earlier records are durable
	 * already. */
	buffer->io.is_durable = buffer->wants_durable && flash->has_dsync &&
				flash->log.durable_seq == buffer->at.seq;
	buffer->io.vector = buffer->vector;
	buffer->io.vector_count = buffer->vector_count;
	flash->log.writing_count++;
	flash_io_write_record(flash, &buffer->io, buffer->record.at,
		(size_t)buffer->record.block_count * FLASH_BLOCK_BYTES, record_done);
}

/* --- filling --------------------------------------------------------------------------------- */

/* Takes an idle buffer for the record at head. Returns false if all FLASH_RECORDS are in flight. */
static bool record_begin(struct flash *flash)
{
	struct flash_log *log = &flash->log;
	struct list_node *node = list_pop_front(&log->idle);
	struct flash_buffer *buffer;

	if (node == NULL) {
		return false;
	}
	buffer = list_entry(node, struct flash_buffer, node);
	buffer->record.entry_count = 0;
	buffer->record.block_count = 1;
	buffer->block_count = 1;
	buffer->node_count = 0;
	buffer->vector[0] = (struct iovec){ buffer->bytes, FLASH_BLOCK_BYTES };
	buffer->vector_count = 1;
	buffer->at = log->head;
	buffer->is_written = false;
	buffer->wants_durable = false;
	log->filling = buffer;
	return true;
}

/* Returns the number of blocks of the record that a replay must read. Nodes do not count, because
 * they are valid only with their checkpoint. */
static uint32_t replayed_blocks(const struct flash_buffer *buffer)
{
	bool has_changes = buffer->record.entry_count > buffer->node_count;

	return has_changes ? buffer->record.block_count - buffer->node_count : 0;
}

/* Completes the header and writes the record. From here on the number of the record is fixed, and
 * only a move of the log changes its position. leaves_segment: the next record begins in a new
 * segment although the current segment has room. */
static void close_record(struct flash *flash, bool leaves_segment)
{
	struct flash_log *log = &flash->log;
	struct flash_buffer *buffer = log->filling;
	struct flash_record *record = &buffer->record;
	uint32_t end = buffer->at.block + record->block_count;
	uint32_t replayed = replayed_blocks(buffer);

	log->filling = NULL;
	list_push_back(&log->flying, &buffer->node);
	log->flying_count++;
	if (flash->failed != 0) {
		/* The log has failed, so the record is not written. Marked as written, it is
		 * retired after the earlier ones, and its parts fail. */
		buffer->is_written = true;
		retire_written(flash);
		return;
	}
	record->seq = buffer->at.seq;
	record->durable = log->durable_seq;
	record->base = flash->anchor.next.seq;
	record->before = log->before;
	record->nodes_at =
		flash->checkpoint.state > FLASH_CHECKPOINT_DRAIN ? flash->checkpoint.begin.seq : 0;
	record->moves = log->move.count;
	record->at =
		flash_segment_at(&flash->anchor.geometry, buffer->at.segment) + buffer->at.block;
	record->prev_crc = buffer->at.prev_crc;
	record->next_segment = FLASH_NO_SEGMENT;
	if (leaves_segment || flash->anchor.geometry.segment_blocks - end < LINK_BLOCKS) {
		record->next_segment = flash_take_segment(flash);
		/* Ensured by flash_log_room(). */
		GMB_ASSERT(record->next_segment != FLASH_NO_SEGMENT);
	}
	log->head.seq++;
	log->head.prev_crc = flash_record_encode(record, flash->anchor.uuid, buffer->bytes);
	log->head.block = end;
	if (record->next_segment != FLASH_NO_SEGMENT) {
		log->head.segment = record->next_segment;
		log->head.block = 0;
	}
	buffer->behind = log->head;
	log->since_checkpoint += replayed;
	/* If the record declares all earlier ones durable, only its own blocks are left. */
	log->untold_blocks = replayed + (record->durable < record->seq ? log->untold_blocks : 0);
	log->records_since_checkpoint += replayed > 0;
	flash->counters.header_blocks++;
	/* While the log is being moved, closed records wait. At its end the move writes them all,
	 * at their new positions. */
	if (!flash_move_runs(flash)) {
		flash_log_write(flash, buffer);
	}
}

void flash_log_close(struct flash *flash)
{
	if (flash->log.filling != NULL) {
		close_record(flash, false);
	}
}

void flash_log_kick(struct flash *flash)
{
	const struct flash_buffer *buffer = flash->log.filling;

	/* A record of garbage collection for which no part waits is left open. It must fill up,
	 * because up to half of a victim's blocks can be headers, and copies with as many headers
	 * would free no space. */
	if (buffer != NULL && !list_is_empty(&buffer->parts) &&
		flash->log.flying_count < FLYING_GATHER) {
		flash_log_close(flash);
	}
}

static bool fits(const struct flash *flash, uint32_t entries)
{
	const struct flash_buffer *buffer = flash->log.filling;

	return buffer->record.entry_count + entries <= FLASH_RECORD_ENTRIES &&
	       buffer->at.block + buffer->record.block_count + entries <=
		       flash->anchor.geometry.segment_blocks;
}

/* Returns true if, after the record being filled is closed, there are segments for another record
 * with this many entries. kept: segments that must stay free. */
static bool has_segments(const struct flash *flash, uint32_t entries, uint32_t kept)
{
	const struct flash_buffer *buffer = flash->log.filling;
	uint32_t left = flash->anchor.geometry.segment_blocks - flash->log.head.block;
	uint32_t needed = kept;

	if (buffer != NULL) {
		left -= buffer->record.block_count;
		if (left < LINK_BLOCKS) {
			left = flash->anchor.geometry.segment_blocks;
			needed++;
		}
	}
	/* The record after the new one may need another segment. If the new record does not fit
	 * into the current segment, it needs one as well. */
	needed += entries < left ? 1 : 2;
	return flash->table.state_counts[GC_FREE] >= needed;
}

/* Closes the record being filled and begins one with room for this many entries. kept: segments
 * that must stay free. */
static bool record_next(struct flash *flash, uint32_t entries, uint32_t kept, bool is_own)
{
	if (!has_segments(flash, entries, kept)) {
		/* The record being filled is not closed for a client, because that gives the
		 * client no space. Besides, clients would close each record of garbage collection
		 * after its first block, and collection would free no space among all these
		 * headers.
		 */
		if (is_own) {
			flash_log_close(flash);
		}
		/* If no operation in flight can free a segment, the store's own record would wait
		 * forever. */
		if (is_own && flash_log_is_idle(flash) &&
			flash->table.state_counts[GC_ERASING] == 0) {
			flash_fail(flash, -ENOSPC, "the log is full");
		}
		return false;
	}
	flash_log_close(flash);
	if (!record_begin(flash)) {
		return false;
	}
	/* The entries do not fit into the rest of the segment: an empty record links to the next
	 * segment. */
	if (!fits(flash, entries)) {
		close_record(flash, true);
		return record_begin(flash);
	}
	return true;
}

bool flash_log_room(struct flash *flash, uint32_t entries, bool is_own)
{
	uint32_t kept = is_own ? 0 : flash->anchor.geometry.reserve_segments;

	GMB_ASSERT(entries > 0 && entries <= FLASH_RECORD_ENTRIES);
	if (flash->log.filling != NULL && fits(flash, entries)) {
		/* If garbage collection began this record, it can be in a segment of the reserve,
		 * which clients must not use. */
		if (flash->table.state_counts[GC_FREE] <= kept && !is_own) {
			return false;
		}
	} else if (!record_next(flash, entries, kept, is_own)) {
		return false;
	}
	if (!is_own) {
		flash->has_hope = true;
	}
	return true;
}

void flash_log_tell(struct flash *flash)
{
	struct flash_log *log = &flash->log;

	/* Every header declares earlier records durable. If changes are queued or a checkpoint is
	 * in progress, the next header is written soon. Otherwise the record being filled, or an
	 * empty one, is written now to declare them durable. */
	if (log->untold_blocks >= UNTOLD_BLOCKS && log->durable_seq == log->head.seq &&
		flash->failed == 0 && list_is_empty(&flash->changes) &&
		!flash_checkpoint_runs(flash) &&
		(log->filling != NULL || flash_log_room(flash, 1, false))) {
		flash_log_close(flash);
	}
}

/* Adds a block to the record's vector: to the last element if that ends where the block begins in
 * memory, otherwise as a new element. */
static void add_block(struct flash_buffer *buffer, const uint8_t *block)
{
	struct iovec *last = &buffer->vector[buffer->vector_count - 1];

	buffer->record.block_count++;
	if ((const uint8_t *)last->iov_base + last->iov_len == block) {
		last->iov_len += FLASH_BLOCK_BYTES;
	} else {
		buffer->vector[buffer->vector_count++] =
			(struct iovec){ (void *)(uintptr_t)block, FLASH_BLOCK_BYTES };
	}
}

void flash_log_append(struct flash *flash, const struct flash_record_entry *entry,
	const uint8_t *data, bool is_held)
{
	struct flash_buffer *buffer = flash->log.filling;
	struct flash_record_entry *into = &buffer->record.entries[buffer->record.entry_count++];
	struct flash_slot *slot = slot_of(flash, entry);

	GMB_ASSERT(slot == NULL ||
		   (slot->state == FLASH_SLOT_DIRTY && !flash_slot_is_old(flash, slot)));
	*into = *entry;
	buffer->node_count += flash_kind_is_node(entry->kind);
	if (slot != NULL) {
		flash_map_pin(slot);
	}
	if (!flash_kind_has_block(entry->kind)) {
		return;
	}
	if (!is_held) {
		uint8_t *copy = buffer->bytes + (size_t)buffer->block_count++ * FLASH_BLOCK_BYTES;

		if (data != NULL) {
			memcpy(copy, data, FLASH_BLOCK_BYTES);
		} else {
			memset(copy, 0, FLASH_BLOCK_BYTES);
		}
		data = copy;
	}
	into->crc = crc32c(0, data, FLASH_BLOCK_BYTES);
	add_block(buffer, data);
}

/* A part whose data is in several records is added to the last record. It completes after all of
 * them, because records retire in order. */
void flash_log_add_part(struct flash *flash, struct store_part *part)
{
	struct flash_log *log = &flash->log;
	struct flash_buffer *buffer = log->filling;

	if (buffer == NULL && log->flying_count > 0) {
		buffer = list_entry(log->flying.prev, struct flash_buffer, node);
	}
	if (buffer == NULL) {
		part_written(flash, part);
		return;
	}
	buffer->wants_durable |= is_durable(part);
	list_push_back(&buffer->parts, &part->node);
}

uint32_t flash_log_fit(const struct flash *flash)
{
	const struct flash_buffer *buffer = flash->log.filling;
	uint32_t segment_blocks = flash->anchor.geometry.segment_blocks;
	uint32_t begin = flash->log.head.block;
	uint32_t left;

	if (buffer != NULL) {
		uint32_t entries = FLASH_RECORD_ENTRIES - buffer->record.entry_count;

		begin = buffer->at.block + buffer->record.block_count;
		left = MIN(entries, segment_blocks - begin);
		if (left > 0) {
			return left;
		}
	}
	left = segment_blocks - begin;
	return MIN(
		(uint32_t)FLASH_RECORD_ENTRIES, (left < LINK_BLOCKS ? segment_blocks : left) - 1);
}
