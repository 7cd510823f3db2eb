// SPDX-License-Identifier: Apache-2.0
/*
 * Moving the end of the log after a failed write: the failed record and all later ones, none of
 * which has been answered, are written again with the same numbers. Records in the failed record's
 * segment go to the beginning of a free segment; records in other segments keep their positions.
 * The anchors get a detour, a record number with a segment, which leads recovery there.
 *
 *   error ─▶ writes in flight complete ─▶ both anchors have the detour ─▶ the records are written
 *                                                                      └▶ a checkpoint: no detours
 *
 * Invariant: the new position is written only after both anchors refer to it. So a crash
 * finds either the old end of the log, where no record was answered, or the new one, and recovery
 * never has to choose.
 *
 * A move can come between the steps of a checkpoint. It then moves only records after the beginning
 * of the checkpoint. The anchors of this checkpoint contain the detour, and the next checkpoint
 * drops the detour.
 *
 * The failed segment keeps its older blocks. When it has become empty it is free again, but is used
 * last (FLASH_AVOIDED).
 *
 * Called by log.c when a write fails, and by flash_pump().
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "store/flash/flash.h"

enum {
	MOVES_MAX = 64, /* limit for one run: a device that fails more often is not reliable */
	/* Segments that must stay free when the log moves to a new segment, because the record
	 * being filled might need them. */
	FREE_MIN = FLASH_RECORD_SEGMENTS + 1,
};

static const uint32_t move_edges[FLASH_MOVE_STATE_COUNT] = {
	[FLASH_MOVE_NONE] = BIT(FLASH_MOVE_DRAIN),
	[FLASH_MOVE_DRAIN] = BIT(FLASH_MOVE_ANCHOR_FIRST) | BIT(FLASH_MOVE_NONE),
	[FLASH_MOVE_ANCHOR_FIRST] = BIT(FLASH_MOVE_ANCHOR_SECOND) | BIT(FLASH_MOVE_NONE),
	[FLASH_MOVE_ANCHOR_SECOND] = BIT(FLASH_MOVE_NONE),
};

static void move_set_state(struct flash_move *move, enum flash_move_state state)
{
	GMB_ASSERT((move_edges[move->state] & BIT(state)) != 0);
	move->state = state;
}

/* --- whether to move ------------------------------------------------------------------------- */

bool flash_is_of_medium(int error)
{
	return error == -EIO || error == -ENODATA || error == -EREMOTEIO || error == -EILSEQ;
}

bool flash_move_begin(struct flash *flash, int error)
{
	struct flash_move *move = &flash->log.move;

	/* On zoned devices the log is not moved: a zone that has failed cannot be written any more,
	 * and zones are written in order. */
	if (flash->failed != 0 || flash_has_zones(flash) || !flash_is_of_medium(error)) {
		return false;
	}
	move->error = error;
	if (move->state == FLASH_MOVE_NONE) {
		move_set_state(move, FLASH_MOVE_DRAIN);
	}
	return true;
}

/* --- the new position ------------------------------------------------------------------------ */

/* Returns the failed record. It is the oldest one in flight, because earlier ones have been
 * retired. */
static struct flash_buffer *first_of(const struct flash *flash)
{
	return list_entry(list_first(&flash->log.flying), struct flash_buffer, node);
}

/* Closes the failed segment and marks it in the segment table. Its older blocks can be
 * collected. */
static void avoid(struct flash *flash, uint32_t segment)
{
	gc_set_state(&flash->table, segment, GC_CLOSED);
	flash->counters.avoided_segments += !flash_is_avoided(flash, segment);
	flash->segments[segment].erases = FLASH_AVOIDED;
	flash->map.trees[0].table_dirty[segment / FLASH_TABLE_ENTRIES] = true;
}

/* Adapts a position to the move. `from` is the position of the failed record, which moves to the
 * beginning of segment `to`. A position in another segment than the failed one keeps its place and
 * only gets the new prev_crc. */
static void move_place(struct flash_position *at, const struct flash_position *from, uint32_t to,
	uint32_t prev_crc)
{
	if (at->segment == from->segment) {
		at->segment = to;
		at->block -= from->block;
	}
	at->prev_crc = prev_crc;
}

/* Gives the records in flight their new positions and encodes their headers again, each with the
 * checksum of the previous one. */
static void place_records(struct flash *flash, const struct flash_position *from)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	struct flash_log *log = &flash->log;
	uint32_t prev_crc = from->prev_crc;

	list_for_each(node, &log->flying)
	{
		struct flash_buffer *buffer = list_entry(node, struct flash_buffer, node);
		struct flash_record *record = &buffer->record;

		move_place(&buffer->at, from, log->move.to, prev_crc);
		record->at = flash_segment_at(geometry, buffer->at.segment) + buffer->at.block;
		record->prev_crc = prev_crc;
		record->moves = log->move.count;
		prev_crc = flash_record_encode(record, flash->anchor.uuid, buffer->bytes);
		move_place(&buffer->behind, from, log->move.to, prev_crc);
		buffer->is_written = false;
	}
	move_place(&log->head, from, log->move.to, prev_crc);
	if (log->filling != NULL) {
		/* The record being filled has no header yet; only its position changes. */
		log->filling->at = log->head;
	}
	log->written_at = first_of(flash)->at;
	if (log->durable_at.seq == from->seq) {
		log->durable_at = log->written_at;
	}
	if (log->syncing_at.seq == from->seq) {
		log->syncing_at = log->written_at;
	}
}

/* Writes the records at their new positions. Requests a checkpoint, which removes the detour. */
static void relocate(struct flash *flash)
{
	struct flash_log *log = &flash->log;
	struct flash_position from = first_of(flash)->at;

	log->move.count++;
	flash->counters.log_moves++;
	place_records(flash, &from);
	avoid(flash, from.segment);
	move_set_state(&log->move, FLASH_MOVE_NONE);
	list_for_each(node, &log->flying)
	{
		flash_log_write(flash, list_entry(node, struct flash_buffer, node));
	}
	flash_checkpoint_ask(flash);
}

/* --- the detour ------------------------------------------------------------------------------ */

static void move_anchor_written(struct flash_io *io, int result)
{
	struct flash *flash = io->flash;

	if (result < 0) {
		flash->log.move.is_waiting = false;
		flash_fail(flash, result, "the anchor of the log cannot be written");
	} else {
		flash_sync_move(flash);
	}
}

static void move_write_anchor(struct flash *flash)
{
	struct flash_move *move = &flash->log.move;
	bool is_first = move->state == FLASH_MOVE_ANCHOR_FIRST;

	move->is_waiting = true;
	flash_anchor_write(flash, &move->io, move->block, is_first, move_anchor_written);
}

void flash_move_synced(struct flash *flash, int result)
{
	struct flash_move *move = &flash->log.move;

	move->is_waiting = false;
	if (result < 0) {
		return; /* the log has failed, so flash_move_step() ends the move */
	}
	if (move->state == FLASH_MOVE_ANCHOR_FIRST) {
		move_set_state(move, FLASH_MOVE_ANCHOR_SECOND);
	} else {
		relocate(flash);
	}
}

/* True if a recovery from the current anchors would read the records of this run. Before the run's
 * first checkpoint, the anchors lead only to the log of the previous run. A move of the log then
 * needs no detour in the anchors. */
static bool is_anchored(const struct flash *flash)
{
	return flash->anchor.next.seq >> FLASH_SEQ_SHIFT == flash->log.head.seq >> FLASH_SEQ_SHIFT;
}

/* Called when no write is in flight: chooses the segment in which the log continues. Encodes an
 * anchor with a detour (struct flash_detour) to this segment, unless recovery from the anchors
 * would not read this run's log anyway (is_anchored()). */
static void move_choose(struct flash *flash)
{
	struct flash_move *move = &flash->log.move;
	struct flash_anchor *anchor = &flash->anchor;
	const struct flash_buffer *first = first_of(flash);

	if (move->count == MOVES_MAX || flash->table.state_counts[GC_FREE] <= FREE_MIN) {
		flash_fail(flash, move->error, "the log cannot be written");
		return;
	}
	move->to = flash_take_segment(flash);
	if (is_anchored(flash) && !flash_detour_add(anchor, first->at.seq, move->to)) {
		flash_fail(flash, move->error, "the log cannot be written");
		return;
	}
	log_warning("flash store '%s': cannot write its log at byte %llu: %s; the log continues in "
		    "another segment, and the segment with the error is avoided from now on",
		flash->path, (unsigned long long)flash_block_offset(flash, first->record.at),
		strerror(-move->error));
	if (!is_anchored(flash)) {
		relocate(flash);
		return;
	}
	anchor->serial++;
	flash_anchor_encode(anchor, move->block);
	move_set_state(move, FLASH_MOVE_ANCHOR_FIRST);
}

bool flash_move_step(struct flash *flash)
{
	struct flash_move *move = &flash->log.move;

	if (move->state == FLASH_MOVE_NONE || move->is_waiting || flash->log.writing_count > 0) {
		return false;
	}
	if (flash->failed != 0) {
		move_set_state(move, FLASH_MOVE_NONE);
		flash_log_abandon(flash);
		return true;
	}
	if (move->state == FLASH_MOVE_DRAIN) {
		/* If a checkpoint is writing its anchors, the move waits until the checkpoint is
		 * complete: both use flash->anchor, so the anchors of the move would describe that
		 * checkpoint as well. Like the move, the checkpoint continues even if no part
		 * waits. */
		if (flash->checkpoint.state >= FLASH_CHECKPOINT_ANCHOR_FIRST) {
			return flash_checkpoint_step(flash);
		}
		move_choose(flash);
		return true;
	}
	move_write_anchor(flash);
	return false;
}
