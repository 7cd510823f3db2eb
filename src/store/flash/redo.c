// SPDX-License-Identifier: Apache-2.0
/*
 * Writing the end of the log again after a sync has failed.
 *
 * A write through the page cache succeeds, and fdatasync() reports later that a page could not be
 * written back: not which one, and only once. The kernel then marks the pages clean, so the next
 * fdatasync() would succeed without them. So all records since the last successful sync are read
 * again (from the page cache, while it has them), compared with their checksums and written to the
 * same positions. Then another sync follows.
 *
 *   sync fails ─▶ anchors in flight end ─▶ header ─▶ its blocks, in pieces ─▶ ... ─▶ sync
 *                                          ▲ │ read, compared, written  │
 *                                          └─┴──────────────────────────┘
 *
 * Parts that waited for the failed sync now wait for the second one, and no record counts as
 * durable until the second sync has succeeded. Changes continue in the meantime. An anchor whose
 * sync has failed is written again after the second sync. If a record can no longer be read intact,
 * or the device continues to fail, the log fails.
 */
#include <string.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum {
	REDO_BLOCKS = 16,   /* number of blocks read at a time */
	REDO_TRIES_MAX = 3, /* maximum number of attempts without a successful sync */
	REDO_COUNT_MAX = 64 /* maximum number of rewrites in one run of the store */
};

enum flash_redo_state {
	FLASH_REDO_NONE,
	FLASH_REDO_DRAIN,  /* waits until no anchor is in flight */
	FLASH_REDO_RECORD, /* chooses the next record */
	FLASH_REDO_READ,
	FLASH_REDO_WRITE,
	FLASH_REDO_STATE_COUNT
};

struct flash_redo {
	struct flash *flash;
	enum flash_redo_state state;
	int error;
	uint32_t count; /* number of rewrites in this run of the store */
	uint32_t tries;
	uint64_t end; /* number of the first record that need not be written again */
	struct flash_position at;
	struct flash_position behind; /* position of the record after the current one */
	struct flash_record record;
	uint32_t first; /* first block of the record being read or written; 0: its header */
	uint32_t blocks;
	/* index of the entry to which block `first` belongs, or of an earlier entry that has no
	 * block */
	uint32_t entry;
	bool is_waiting;
	struct flash_io io;
	uint8_t bytes[REDO_BLOCKS * FLASH_BLOCK_BYTES] __attribute__((aligned(FLASH_BLOCK_BYTES)));
};

static const uint32_t redo_edges[FLASH_REDO_STATE_COUNT] = {
	[FLASH_REDO_NONE] = BIT(FLASH_REDO_DRAIN),
	[FLASH_REDO_DRAIN] = BIT(FLASH_REDO_RECORD) | BIT(FLASH_REDO_NONE),
	[FLASH_REDO_RECORD] = BIT(FLASH_REDO_READ) | BIT(FLASH_REDO_NONE),
	[FLASH_REDO_READ] = BIT(FLASH_REDO_WRITE) | BIT(FLASH_REDO_NONE),
	[FLASH_REDO_WRITE] = BIT(FLASH_REDO_READ) | BIT(FLASH_REDO_RECORD) | BIT(FLASH_REDO_NONE),
};

static void redo_set_state(struct flash_redo *redo, enum flash_redo_state state)
{
	GMB_ASSERT((redo_edges[redo->state] & BIT(state)) != 0);
	redo->state = state;
}

uint64_t flash_redo_bytes(void)
{
	return sizeof(struct flash_redo);
}

void flash_redo_init(struct flash *flash, uint8_t *memory)
{
	flash->redo = (void *)memory;
	memset(flash->redo, 0, sizeof(*flash->redo));
	flash->redo->flash = flash;
}

bool flash_redo_runs(const struct flash *flash)
{
	return flash->redo->state != FLASH_REDO_NONE;
}

void flash_redo_succeeded(struct flash *flash)
{
	flash->redo->tries = 0;
}

bool flash_redo_begin(struct flash *flash, int error)
{
	struct flash_redo *redo = flash->redo;

	/* Writing again cannot help on zoned devices: they are written without the page cache, and
	 * no block can be written twice. */
	if (flash->failed != 0 || flash_has_zones(flash) || !flash_is_of_medium(error) ||
		redo->tries == REDO_TRIES_MAX || redo->count == REDO_COUNT_MAX) {
		return false;
	}
	if (redo->tries == 0) {
		log_warning("flash store '%s': the log records since the last flush could not "
			    "be made durable: %s; they are written again",
			flash->path, strerror(-error));
	}
	redo->tries++;
	redo->count++;
	flash->counters.log_rewrites++;
	redo->error = error;
	/* The error may belong to a record whose write is still in flight. So the records in flight
	 * are written again as well. */
	redo->end = flash->log.writing_count > 0 ? flash->log.head.seq : flash->log.written_seq;
	redo_set_state(redo, FLASH_REDO_DRAIN);
	flash->pump_again = true;
	return true;
}

static void redo_end(struct flash *flash)
{
	redo_set_state(flash->redo, FLASH_REDO_NONE);
	flash_sync_again(flash);
}

static void redo_fail(struct flash *flash, int error, const char *what)
{
	flash_fail(flash, error, what);
	redo_end(flash);
}

/* --- a record -------------------------------------------------------------------------------- */

/* Returns true if the blocks that were read match the checksums of the record. */
static bool redo_is_sound(struct flash_redo *redo)
{
	const uint8_t *block = redo->bytes;

	if (redo->first == 0) {
		redo->entry = 0;
		return flash_record_decode(
			block, &redo->flash->anchor, &redo->at, &redo->record, &redo->behind);
	}
	for (const uint8_t *end = block + (size_t)redo->blocks * FLASH_BLOCK_BYTES; block < end;
		redo->entry++) {
		const struct flash_record_entry *entry = &redo->record.entries[redo->entry];

		GMB_ASSERT(redo->entry < redo->record.entry_count);
		if (!flash_kind_has_block(entry->kind)) {
			continue;
		}
		if (crc32c(0, block, FLASH_BLOCK_BYTES) != entry->crc) {
			return false;
		}
		block += FLASH_BLOCK_BYTES;
	}
	return true;
}

static void redo_read_done(struct flash_io *io, int result)
{
	struct flash_redo *redo = container_of(io, struct flash_redo, io);

	redo->is_waiting = false;
	if (result < 0) {
		redo_fail(io->flash, result, "the log cannot be made durable or read again");
	} else if (!redo_is_sound(redo)) {
		redo_fail(io->flash, redo->error,
			"the log cannot be made durable, and its latest records cannot be read "
			"again");
	} else {
		redo_set_state(redo, FLASH_REDO_WRITE);
	}
}

static void redo_write_done(struct flash_io *io, int result)
{
	struct flash_redo *redo = container_of(io, struct flash_redo, io);

	redo->is_waiting = false;
	if (result < 0) {
		redo_fail(io->flash, result, "the log cannot be made durable");
		return;
	}
	redo->first += redo->blocks;
	if (redo->first < redo->record.block_count) {
		redo->blocks = MIN(redo->record.block_count - redo->first, (uint32_t)REDO_BLOCKS);
		redo_set_state(redo, FLASH_REDO_READ);
	} else {
		redo->at = redo->behind;
		redo_set_state(redo, FLASH_REDO_RECORD);
	}
}

static void redo_transfer(struct flash *flash, bool is_write)
{
	struct flash_redo *redo = flash->redo;
	uint64_t block = flash_segment_at(&flash->anchor.geometry, redo->at.segment) +
			 redo->at.block + redo->first;

	redo->is_waiting = true;
	redo->io.is_durable = false;
	flash_io_start(flash, &redo->io, is_write, mem_of(redo->bytes), block,
		(size_t)redo->blocks * FLASH_BLOCK_BYTES,
		is_write ? redo_write_done : redo_read_done);
}

/* Chooses the next record, or ends the rewrite. Returns true if there was progress. */
static bool redo_choose(struct flash *flash)
{
	struct flash_redo *redo = flash->redo;

	if (redo->at.seq >= flash->log.written_seq && redo->at.seq < redo->end &&
		!flash_move_runs(flash)) {
		return false; /* the write of this record is in flight */
	}
	/* While the log is being moved, the rewrite ends before the records that the move holds
	 * back: they are written after this sync. */
	if (redo->at.seq >= redo->end || redo->at.seq >= flash->log.written_seq) {
		redo_end(flash);
		return true;
	}
	flash_detour_follow(&flash->anchor, &redo->at);
	redo->first = 0;
	redo->blocks = 1;
	redo_set_state(redo, FLASH_REDO_READ);
	return true;
}

bool flash_redo_step(struct flash *flash)
{
	struct flash_redo *redo = flash->redo;

	if (redo->is_waiting || redo->state == FLASH_REDO_NONE) {
		return false;
	}
	if (flash->failed != 0) {
		redo_end(flash);
		return true;
	}
	switch (redo->state) {
	case FLASH_REDO_DRAIN:
		if (flash_sync_has_anchor(flash)) {
			return false;
		}
		redo->at = flash->log.durable_at;
		redo_set_state(redo, FLASH_REDO_RECORD);
		return true;
	case FLASH_REDO_RECORD:
		return redo_choose(flash);
	case FLASH_REDO_READ:
	case FLASH_REDO_WRITE:
		redo_transfer(flash, redo->state == FLASH_REDO_WRITE);
		return true;
	case FLASH_REDO_NONE:
	case FLASH_REDO_STATE_COUNT:
		break;
	}
	return false;
}
