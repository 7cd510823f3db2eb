// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers of whole blocks, where blocks are on the device, and making what is written durable.
 *
 * Threading: on the ring of the start; what is said to block runs before it, on the thread of the
 * recovery, or when the store is closed. Ownership: who starts a transfer has its struct flash_io
 * and its memory until done is called. Errors: negative errno, as disk.h; those that a client must
 * not see as they are have become -EIO.
 */
#pragma once

#include "base/error.h"
#include "base/list.h"
#include "ring/ring.h"
#include "store/flash/format.h"
#include "store/store.h"

struct flash;

/* A read or write of whole blocks. Short transfers and interruptions are resumed. */
struct flash_io {
	struct ring_op op;
	struct flash *flash;
	union {
		struct mem_ref memory;
		struct {		      /* of a record, see flash_io_write_record() */
			struct iovec *vector; /* the first run with something to write */
			uint32_t vector_count;
			size_t vector_used; /* bytes of that run that are written */
		};
	};
	uint32_t block;
	uint64_t offset;
	size_t bytes;
	size_t done_bytes;
	uint32_t retries;
	bool is_write;
	bool has_vector;
	bool is_durable;       /* FUA */
	struct list_node node; /* while it waits for others: flash_zone_write(), flash_io_block() */
	void (*done)(struct flash_io *io, int result);
};

/* Of a host-managed device, see zone.c. */
struct flash_zones {
	uint64_t bytes;			       /* from zone to zone; 0: the device has none */
	uint64_t first;			       /* where that of the first anchors begins */
	uint32_t count;			       /* that are alike, from that one on */
	uint32_t capacity;		       /* blocks that one has room for */
	uint32_t anchor_blocks[FLASH_ANCHORS]; /* written to their zones */
	uint32_t segment;		       /* whose zone is written to, or FLASH_NO_SEGMENT */
	uint32_t blocks;		       /* of it that are written */
	struct list_node writes; /* in their order; without the one that is under way: */
	struct flash_io *writing;
	struct ring_op op; /* that finishes or resets a zone before it */
	uint32_t ends;	   /* which zone, from that of the first anchors on */
};

/* --- transfers (io.c) ------------------------------------------------------------------------ */

uint64_t flash_io_bytes(void);
void flash_io_init(struct flash *flash, uint8_t *memory);
/* bytes and offset are whole blocks. done is called once, not from inside. */
void flash_io_start(struct flash *flash, struct flash_io *io, bool is_write, struct mem_ref memory,
	uint64_t block, size_t bytes, void (*done)(struct flash_io *io, int result));
/* Writes the runs of blocks at io->vector one after the other; they and the vector are held. The
 * vector is as before when done is called. */
void flash_io_write_record(struct flash *flash, struct flash_io *io, uint64_t block, size_t bytes,
	void (*done)(struct flash_io *io, int result));
/* For writes to zones, whose turn has come: starts it, or, with an error, lets it end with that. */
void flash_io_issue(struct flash *flash, struct flash_io *io, int error);
/* While the store is closed: what was started next, a transfer or a sync. Blocks. False: there is
 * nothing. */
bool flash_io_block(struct flash *flash);
/* The part is done when all that was written before is durable. */
void flash_sync_part(struct flash *flash, struct store_part *part);
/* The same for the checkpoint, which goes on. */
void flash_sync_checkpoint(struct flash *flash);
/* The same for a move of the log. */
void flash_sync_move(struct flash *flash);
/* The first of both anchors, or the second. The block is held. */
void flash_anchor_write(struct flash *flash, struct flash_io *io, uint8_t *block, bool is_first,
	void (*done)(struct flash_io *io, int result));

/* --- places, and the zones of a host-managed device (zone.c) --------------------------------- */

/* Finds the zones that a store would use; bytes is 0 on a device without any. Blocks. -ENOTSUP,
 * -EINVAL: they do not suit. */
GMB_MUST_CHECK int flash_zones_find(
	int fd, const char *path, struct flash_zones *zones, struct error *error);
/* Where the zone of a segment begins. */
uint64_t flash_zone_offset(const struct flash *flash, uint32_t segment);
/* Where a block is, of a segment if the device has zones. */
uint64_t flash_block_offset(const struct flash *flash, uint32_t block);
/* The last anchor that was written to the first or the second place; zeroes: none. Blocks. */
GMB_MUST_CHECK int flash_anchor_read(
	int fd, struct flash_zones *zones, uint32_t anchor, uint8_t *block);
/* Blocks of one segment, before the store is started; zeroes where a zone has not been written.
 * Blocks. */
GMB_MUST_CHECK int flash_read(struct flash *flash, uint32_t block, uint32_t count, void *bytes);
/* What the zones of the segments have; nothing without zones. Blocks. */
GMB_MUST_CHECK int flash_zones_load(struct flash *flash);
/* After recovery: finishes the zones that the log will not go on in, and resets free ones. Blocks.
 */
GMB_MUST_CHECK int flash_zones_prepare(struct flash *flash, struct error *error);
/* The same after another process has settled, which may still go on: nothing is written, the zones
 * are finished and reset when the log goes on. -EBUSY, -ENOSPC: it cannot be taken as it is. */
GMB_MUST_CHECK int flash_zones_take(struct flash *flash, struct error *error);
/* Writes in the order of these calls, one at a time. */
void flash_zone_write(struct flash *flash, struct flash_io *io);
/* One has ended; its done is called after this, and flash_zone_next() after that. */
void flash_zone_written(struct flash *flash, const struct flash_io *io);
void flash_zone_next(struct flash *flash);
/* While the store is closed: gives the write its place. Blocks. */
GMB_MUST_CHECK int flash_zone_write_now(struct flash *flash, struct flash_io *io);
