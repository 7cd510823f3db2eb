// SPDX-License-Identifier: Apache-2.0
/*
 * The log: filling and writing records, and moving the log when a write fails.
 *
 *   flash_log_room() ─▶ flash_log_append() ... ─▶ flash_log_close() ─▶ written ─▶ retired, in order
 *
 * Invariant: writes of several records are in flight at a time, but records take effect (are
 * retired) in log order, each when all earlier records are written. So memory never contains a
 * change that a crash could lose while a later one survives.
 *
 * Called by all producers of records: changes, cache, garbage collection and checkpoint.
 *
 * Threading: on the owner ring. Ownership: the buffers are in the memory that the start allocates.
 * Until it is retired, a record refers to memory that was appended with is_held. Errors: after a
 * write has failed and the log could not be moved, or a sync could not be repeated, flash_fail():
 * all changes fail until the store is opened again, because recovery would discard everything after
 * the gap.
 */
#pragma once

#include "store/flash/io.h"

enum {
	FLASH_RECORDS = 8,
	/* 1 GiB: a checkpoint begins after this amount of log. After the same amount again, it runs
	 * without pauses for changes. */
	FLASH_LOG_BLOCKS = 1 << 18,
	FLASH_RECORD_SEGMENTS = 2, /* free segments that a client's record can need */
};

struct flash_buffer {
	struct flash_record record;
	uint8_t *bytes;	      /* memory for the header and FLASH_RECORD_ENTRIES blocks */
	uint32_t block_count; /* number of blocks of `bytes` in use */
	uint32_t node_count;  /* number of entries that are nodes */
	/* The memory of the record, in the order of its blocks: parts of `bytes`, and the memory of
	 * blocks that were appended with is_held. A write leaves the vector unchanged, so the
	 * record can be written again. */
	struct iovec vector[FLASH_RECORD_ENTRIES + 1];
	uint32_t vector_count;
	struct flash_io io;
	struct flash *flash;
	struct list_node node;	/* link in the list `idle`, or in `flying` in log order */
	struct list_node parts; /* parts that complete when the record is retired */
	struct flash_position at;
	struct flash_position behind; /* position of the next record */
	bool is_written;
	bool wants_durable; /* a part of the record is a flush, or has FUA */
};

/* State of a log move after a failed write, see move.c. */
enum flash_move_state {
	FLASH_MOVE_NONE,
	FLASH_MOVE_DRAIN,	 /* the move waits for the writes in flight */
	FLASH_MOVE_ANCHOR_FIRST, /* the first anchor gets the new position and is synced */
	FLASH_MOVE_ANCHOR_SECOND,
	FLASH_MOVE_STATE_COUNT
};

struct flash_move {
	enum flash_move_state state;
	int error;	 /* error of the failed write */
	uint32_t to;	 /* destination segment */
	uint32_t count;	 /* number of moves of the log in this run */
	bool is_waiting; /* the move waits for the write or sync of an anchor */
	struct flash_io io;
	uint8_t *block;
};

struct flash_log {
	/* position of the record being filled, otherwise of the next one */
	struct flash_position head;
	struct flash_buffer *filling; /* or NULL */
	struct list_node idle;
	struct list_node flying; /* closed records, oldest first */
	uint32_t writing_count;	 /* number of closed records whose writes are in flight */
	struct flash_move move;
	struct flash_buffer buffers[FLASH_RECORDS];
	uint32_t flying_count;
	/* Number of blocks and records since the beginning of the last checkpoint, without nodes:
	 * what a replay reads. */
	uint64_t since_checkpoint;
	uint32_t records_since_checkpoint;
	uint64_t written_seq;		  /* all records with smaller numbers have been written */
	uint64_t durable_seq;		  /* all records with smaller numbers are durable */
	struct flash_position written_at; /* position after the written records */
	struct flash_position durable_at; /* position after the durable records */
	/* position after the records that the current sync covers */
	struct flash_position syncing_at;
	uint64_t before; /* record number at which the previous run's log ended */
	/* Upper bound on the blocks in records that no later record declares durable. */
	uint32_t untold_blocks;
};

/* --- records (log.c) ------------------------------------------------------------------------- */

void flash_log_init(struct flash *flash, uint8_t *memory);
uint64_t flash_log_bytes(void);
/* Reserves room for `entries` entries with a block each in one record. Returns true if
 * flash_log_append() can follow. Returns false if there is no room now; flash_pump() tries again.
 * is_own: the room is for the store itself, which may use the reserve. If that is used up as well
 * and no operation in flight can free a segment, the store fails with -ENOSPC. May close the record
 * being filled. */
bool flash_log_room(struct flash *flash, uint32_t entries, bool is_own);
/* Appends an entry to the record being filled, after flash_log_room(). data: its block; NULL for a
 * block of zeroes, or for a kind without a block. The block is copied unless is_held. With is_held,
 * the block must be suitable for writes to the device and must not change until the record is
 * retired; a part added by flash_log_add_part() completes after that. The map page of the entry
 * must be dirty. */
void flash_log_append(struct flash *flash, const struct flash_record_entry *entry,
	const uint8_t *data, bool is_held);
/* Returns how many entries with a block fit into the record being filled, or into the next one if
 * that is full. The end of the segment limits both. Always > 0. */
uint32_t flash_log_fit(const struct flash *flash);
/* Completes the part when everything that was appended before it has been written (for FUA and
 * flush: is durable), or can no longer be written. The result of the part is the one stored in its
 * scratch, or the error of the log. */
void flash_log_add_part(struct flash *flash, struct store_part *part);
/* Closes the record being filled, if there is one, and writes it. */
void flash_log_close(struct flash *flash);
/* Closes the record being filled if a part waits for it. While several records are in flight, the
 * record stays open, so that more small changes gather in it. */
void flash_log_kick(struct flash *flash);
/* Called when durable_seq has grown. If many blocks are not declared durable yet, and no other
 * record is about to be written, writes a record that declares them durable, possibly an empty
 * one. */
void flash_log_tell(struct flash *flash);
/* Takes the free segment with the fewest erases, which becomes open. Returns
 * FLASH_NO_SEGMENT if none is free. */
uint32_t flash_take_segment(struct flash *flash);
/* Writes a closed record at its position. */
void flash_log_write(struct flash *flash, struct flash_buffer *buffer);
/* After flash_fail(): retires the records in flight, whose parts fail. No write may be in
 * flight. */
void flash_log_abandon(struct flash *flash);

/* --- moves (move.c) -------------------------------------------------------------------------- */

/* True for the errors with which the kernel reports a bad block of the device. Other blocks might
 * still work. */
bool flash_is_of_medium(int error);
/* Called when the write of a record has failed. Returns true if flash_move_step() will try to write
 * the record and its successors elsewhere, false if the log must fail. */
bool flash_move_begin(struct flash *flash, int error);
/* Continues the move. Returns true if there was progress. */
bool flash_move_step(struct flash *flash);
/* Called when the sync that flash_sync_move() requested is complete. */
void flash_move_synced(struct flash *flash, int result);

/* --- rewriting the end of the log after a failed sync (redo.c) ------------------------------- */

uint64_t flash_redo_bytes(void);
void flash_redo_init(struct flash *flash, uint8_t *memory);
/* Called when a sync has failed. Returns true if the records that it covered will be written again,
 * followed by flash_sync_again(); false if the log must fail. */
bool flash_redo_begin(struct flash *flash, int error);
bool flash_redo_runs(const struct flash *flash);
/* Called when a sync has succeeded: resets the count of failed attempts. */
void flash_redo_succeeded(struct flash *flash);
/* Continues writing the records again after a failed sync. Returns true if there was progress. */
bool flash_redo_step(struct flash *flash);
