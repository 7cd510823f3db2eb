// SPDX-License-Identifier: Apache-2.0
/*
 * The log: records are filled, written side by side, and take effect in their order, each when all
 * before it are written. A record behind one that is not written would be cut off by a crash.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum {
	BUFFER_BLOCKS = FLASH_RECORD_ENTRIES + 1,
	FLYING_GATHER = 2, /* while so many are in flight, small changes gather in a record */
	LINK_BLOCKS = 2,   /* with fewer left in a segment, the next record is in another one */
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
		log_error("flash store '%s': its log %s: %s; it can only be read until the server "
			  "opens it again%s",
			flash->path, what, strerror(-error),
			error != -ENOSPC    ? ""
			: is_damaged(flash) ? "; what cannot be read keeps the space around it: "
					      "copy the disk to another store"
					    : ": first make room in the filesystem below it");
	}
}

/* --- segments -------------------------------------------------------------------------------- */

uint32_t flash_take_segment(struct flash *flash)
{
	uint32_t best = FLASH_NO_SEGMENT;

	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		if (flash->table.segments[i].state == GC_FREE &&
			(best == FLASH_NO_SEGMENT ||
				flash->segments[i].erases < flash->segments[best].erases)) {
			best = i;
		}
	}
	if (best != FLASH_NO_SEGMENT) {
		flash_views_look(flash);
		gc_set_state(&flash->table, best, GC_OPEN);
		flash->segments[best].erases += !flash_is_avoided(flash, best);
		flash->erase.taken++;
		flash->map.trees[0].table_dirty[best / FLASH_TABLE_ENTRIES] = true;
	}
	return best;
}

/* --- what is written ------------------------------------------------------------------------- */

static struct flash_slot *slot_of(struct flash *flash, const struct flash_record_entry *entry)
{
	return flash_kind_is_node(entry->kind)
		       ? NULL
		       : flash_map_find(flash, (uint32_t)(entry->lpn / FLASH_NODE_ENTRIES));
}

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

		if (slot->state == FLASH_SLOT_WRITTEN) { /* else it is to be changed again */
			flash_map_clean(flash, slot);
		}
	}
	flash_map_set_node(flash, tree, level, index,
		(struct flash_entry){ htole32(block), htole32(entry->crc) });
}

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

/* It has taken effect, or never will: what it was written from is not held any more. */
static void retire(struct flash *flash, struct flash_buffer *buffer)
{
	struct flash_log *log = &flash->log;
	struct list_node *node;

	if (flash->failed != 0) {
		record_forget(flash, buffer);
	} else {
		/* First the position: when slots are free, it says that the record was written. */
		log->written_seq = buffer->at.seq + 1;
		flash_cache_follow(flash);
		record_apply(flash, buffer);
		if (buffer->io.is_durable && log->durable_seq == buffer->at.seq) {
			log->durable_seq = log->written_seq;
			flash_log_tell(flash);
		}
	}
	list_push_front(&log->idle, &buffer->node); /* it is in the processor's cache */
	while ((node = list_pop_front(&buffer->parts)) != NULL) {
		part_written(flash, list_entry(node, struct store_part, node));
	}
}

/* In the order of the log. */
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

static void record_done(struct flash_io *io, int result)
{
	struct flash_buffer *buffer = container_of(io, struct flash_buffer, io);
	struct flash *flash = io->flash;

	flash->log.writing_count--;
	buffer->is_written = result == 0 || !flash_move_begin(flash, buffer, result);
	if (result < 0 && buffer->is_written) {
		flash_fail(flash, result, "cannot be written");
	}
	retire_written(flash);
}

void flash_log_write(struct flash *flash, struct flash_buffer *buffer)
{
	/* The record alone is durable with its write, so all before it must be already. */
	buffer->io.is_durable = buffer->wants_durable && !flash->ignores_dsync &&
				flash->log.durable_seq == buffer->at.seq;
	buffer->io.vector = buffer->vector;
	buffer->io.vector_count = buffer->vector_count;
	flash->log.writing_count++;
	flash_io_write_record(flash, &buffer->io, buffer->record.at,
		(size_t)buffer->record.block_count * FLASH_BLOCK_BYTES, record_done);
}

/* --- filling --------------------------------------------------------------------------------- */

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

/* What replay has to read of it: nodes belong to a checkpoint, and mean nothing without that. */
static uint32_t replayed_blocks(const struct flash_buffer *buffer)
{
	bool has_changes = buffer->record.entry_count > buffer->node_count;

	return has_changes ? buffer->record.block_count - buffer->node_count : 0;
}

/* The header gets its last words, and the record goes. */
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
		GMB_ASSERT(record->next_segment != FLASH_NO_SEGMENT); /* flash_log_room() */
	}
	log->head.seq++;
	log->head.prev_crc = flash_record_encode(record, flash->anchor.uuid, buffer->bytes);
	log->head.block = end;
	if (record->next_segment != FLASH_NO_SEGMENT) {
		log->head.segment = record->next_segment;
		log->head.block = 0;
	}
	log->since_checkpoint += replayed;
	log->untold_blocks = replayed + (record->durable < record->seq ? log->untold_blocks : 0);
	log->records_since_checkpoint += replayed > 0;
	flash->counters.header_blocks++;
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

	/* Nobody waits for what the collector moves. It must gather: a victim may be half headers,
	 * and no space would be won if its copies had as many. */
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

/* So many entries would find segments for their record once that being filled is closed. */
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
	/* Each record may be the last one of its segment. */
	needed += entries < left ? 1 : 2;
	return flash->table.state_counts[GC_FREE] >= needed;
}

/* Begins a record with room for so many entries, beside segments that are kept. */
static bool record_next(struct flash *flash, uint32_t entries, uint32_t kept, bool is_own)
{
	if (!has_segments(flash, entries, kept)) {
		/* A client that waits leaves the collector's record open: it would get nothing by
		 * closing it, and records of one block win no space. */
		if (is_own) {
			flash_log_close(flash);
		}
		if (is_own && flash_log_is_idle(flash) &&
			flash->table.state_counts[GC_ERASING] == 0) {
			flash_fail(flash, -ENOSPC, "is full");
		}
		return false;
	}
	flash_log_close(flash);
	if (!record_begin(flash)) {
		return false;
	}
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
		/* The collector may have begun it in the reserve, which is not for clients. */
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

	if (log->untold_blocks >= UNTOLD_BLOCKS && log->durable_seq == log->head.seq &&
		flash->failed == 0 && list_is_empty(&flash->changes) &&
		!flash_checkpoint_runs(flash) &&
		(log->filling != NULL || flash_log_room(flash, 1, false))) {
		flash_log_close(flash);
	}
}

/* One more block of the record. */
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
