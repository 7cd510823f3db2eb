// SPDX-License-Identifier: Apache-2.0
/*
 * The log: records that are filled and written, and what is done when a write to it fails.
 *
 *   flash_log_room() ─▶ flash_log_append() ... ─▶ flash_log_close() ─▶ written ─▶ retired, in order
 *
 * Threading: on the ring of the start. Ownership: the budget of the start holds the buffers; a
 * record holds the memory that is appended as held until it is retired. Errors: after a write has
 * failed and could not be moved (flash_fail()), all changes fail until the store is opened anew:
 * what follows in the log would be cut off.
 */
#pragma once

#include "store/flash/io.h"

enum {
	FLASH_RECORDS = 8,
	FLASH_LOG_BLOCKS = 1 << 18, /* 1 GiB of log from checkpoint to checkpoint, and in one */
	FLASH_RECORD_SEGMENTS = 2,  /* that a record of a client may need, see flash_log_room() */
};

struct flash_buffer {
	struct flash_record record;
	uint8_t *bytes;	      /* the header and FLASH_RECORD_ENTRIES blocks */
	uint32_t block_count; /* of them that are used */
	uint32_t node_count;  /* entries that are nodes */
	/* The record: runs of those blocks, and of blocks that are held. The same when it is
	 * written as before. */
	struct iovec vector[FLASH_RECORD_ENTRIES + 1];
	uint32_t vector_count;
	struct flash_io io;
	struct flash *flash;
	struct list_node node;	/* idle or in flight, in the order of the log */
	struct list_node parts; /* done when it is */
	struct flash_position at;
	bool is_written;
	bool wants_durable; /* one of its parts does */
};

/* After a write to the log has failed, see move.c. */
enum flash_move_state {
	FLASH_MOVE_NONE,
	FLASH_MOVE_DRAIN,	 /* records in flight end */
	FLASH_MOVE_ANCHOR_FIRST, /* the detour is written and made durable */
	FLASH_MOVE_ANCHOR_SECOND,
	FLASH_MOVE_STATE_COUNT
};

struct flash_move {
	enum flash_move_state state;
	int error;	 /* of the write */
	uint32_t to;	 /* segment */
	uint32_t count;	 /* of this run */
	bool is_waiting; /* for the anchor or the sync */
	struct flash_io io;
	uint8_t *block;
};

struct flash_log {
	struct flash_position head;   /* where the record being filled will be */
	struct flash_buffer *filling; /* or NULL */
	struct list_node idle;
	struct list_node flying; /* closed, oldest first */
	uint32_t writing_count;	 /* of them whose writes have not ended */
	struct flash_move move;
	struct flash_buffer buffers[FLASH_RECORDS];
	uint32_t flying_count;
	/* Since the last checkpoint began, but for its nodes: blocks, and records. */
	uint64_t since_checkpoint;
	uint32_t records_since_checkpoint;
	uint64_t written_seq; /* all before it are written */
	uint64_t durable_seq; /* all before it are durable */
	uint64_t before;      /* where the log of the run before ended */
	/* Of records that no later one says to be durable, at most. */
	uint32_t untold_blocks;
};

/* --- records (log.c) ------------------------------------------------------------------------- */

void flash_log_init(struct flash *flash, uint8_t *memory);
uint64_t flash_log_bytes(void);
/* True: so many entries, each with a block, can be appended now to one record. is_own: the store's
 * own, for which there is always room. May close the record being filled. */
bool flash_log_room(struct flash *flash, uint32_t entries, bool is_own);
/* data: a block; NULL: zeroes, or there is none. It is copied, or, if is_held, written from where
 * it is: then it is memory that the disk can be written from, and stays as it is until the record
 * has been retired, which flash_log_add_part() tells. The page of the map is dirty. */
void flash_log_append(struct flash *flash, const struct flash_record_entry *entry,
	const uint8_t *data, bool is_held);
/* Entries with a block that go into the record being filled, or, without room there, into the next
 * one as long as it need not be in another segment than it would be. > 0. */
uint32_t flash_log_fit(const struct flash *flash);
/* The part is done when all that was appended before is written, or never will be. Its result is
 * that of its scratch, unless writing fails. */
void flash_log_add_part(struct flash *flash, struct store_part *part);
/* Writes what is being filled. */
void flash_log_close(struct flash *flash);
/* The same, if a part waits for it and it is not better to let more gather in it. */
void flash_log_kick(struct flash *flash);
/* More has become durable: says so in the log, if much depends on it and no other record will. */
void flash_log_tell(struct flash *flash);
/* A free segment, which is open then. FLASH_NO_SEGMENT: there is none. */
uint32_t flash_take_segment(struct flash *flash);
/* Writes a record that is closed and has its place. */
void flash_log_write(struct flash *flash, struct flash_buffer *buffer);
/* After flash_fail(): records that are not being written fail. */
void flash_log_abandon(struct flash *flash);

/* --- moves (move.c) -------------------------------------------------------------------------- */

/* The medium has failed at a place, as far as the kernel says; other places may do. */
bool flash_is_of_medium(int error);
/* True: it and all behind it will be written elsewhere. False: the log has failed. */
bool flash_move_begin(struct flash *flash, const struct flash_buffer *buffer, int error);
/* Returns true when something was done. */
bool flash_move_step(struct flash *flash);
void flash_move_synced(struct flash *flash, int result);
