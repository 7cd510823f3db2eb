// SPDX-License-Identifier: Apache-2.0
/*
 * Writing the end of the log once more after it could not be made durable.
 *
 * In the page cache a write to the log succeeds, and fdatasync() reports later that something could
 * not be written back: not what, and only once. The kernel takes the pages for clean then, so the
 * next fdatasync() would succeed without them. So all records since the last successful sync are
 * read again, from the page cache as long as it has them, compared with their checksums and written
 * to the same places, and then there is another sync.
 *
 *   sync fails ─▶ anchors in flight end ─▶ header ─▶ its blocks, in pieces ─▶ ... ─▶ sync
 *                                          ▲ │ read, compared, written  │
 *                                          └─┴──────────────────────────┘
 *
 * Whoever waits for the failed sync waits for this one. Nothing is durable before, and changes go
 * on. An anchor whose sync has failed is written again afterwards. If a record is not there any
 * more or the device goes on to fail, the log has failed.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum {
	REDO_BLOCKS = 16,   /* that are read at a time */
	REDO_TRIES_MAX = 3, /* without a sync that succeeds */
	REDO_COUNT_MAX = 64 /* of one run, as with moves */
};

enum flash_redo_state {
	FLASH_REDO_NONE,
	FLASH_REDO_DRAIN,  /* an anchor in flight ends */
	FLASH_REDO_RECORD, /* the next one is chosen */
	FLASH_REDO_READ,
	FLASH_REDO_WRITE,
	FLASH_REDO_STATE_COUNT
};

struct flash_redo {
	struct flash *flash;
	enum flash_redo_state state;
	int error;
	uint32_t count; /* of this run */
	uint32_t tries;
	uint64_t end; /* the first record that need not be written again */
	struct flash_position at;
	struct flash_position behind; /* the record at hand */
	struct flash_record record;
	uint32_t first; /* blocks of it that are read or written; 0: the header alone */
	uint32_t blocks;
	uint32_t entry; /* of the first of them, or one before it */
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

	/* Zones are written directly and once. */
	if (flash->failed != 0 || flash_has_zones(flash) || !flash_is_of_medium(error) ||
		redo->tries == REDO_TRIES_MAX || redo->count == REDO_COUNT_MAX) {
		return false;
	}
	if (redo->tries == 0) {
		log_warning("flash store '%s': what was written to its log since the last flush "
			    "could not be made durable: %s; it is written once more",
			flash->path, strerror(-error));
	}
	redo->tries++;
	redo->count++;
	flash->counters.log_rewrites++;
	redo->error = error;
	/* The error may be that of a record whose write has not ended. */
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

/* The blocks that were read are those that were written. */
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
		redo_fail(io->flash, result, "cannot be made durable, nor be read again");
	} else if (!redo_is_sound(redo)) {
		redo_fail(io->flash, redo->error,
			"cannot be made durable, and memory has lost what was to be written");
	} else {
		redo_set_state(redo, FLASH_REDO_WRITE);
	}
}

static void redo_write_done(struct flash_io *io, int result)
{
	struct flash_redo *redo = container_of(io, struct flash_redo, io);

	redo->is_waiting = false;
	if (result < 0) {
		redo_fail(io->flash, result, "cannot be made durable");
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

/* True: something was done. */
static bool redo_choose(struct flash *flash)
{
	struct flash_redo *redo = flash->redo;

	if (redo->at.seq >= flash->log.written_seq && redo->at.seq < redo->end &&
		!flash_move_runs(flash)) {
		return false; /* it is being written */
	}
	/* What a move waits with is written after this sync. */
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
