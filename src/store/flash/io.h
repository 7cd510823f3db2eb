// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers of whole blocks, their position on the device, and syncs.
 *
 * Called by all other files of the store. While the store runs, only io.c and zone.c issue reads,
 * writes and fdatasync on the device's descriptors.
 *
 * Threading: on the owner ring. Functions that block run on the recovery's thread before the store
 * has started, or while the store is closed. Ownership: the caller of a transfer owns struct
 * flash_io, and keeps it and the memory unchanged until done is called. Errors: negative errno as
 * in disk.h; errors that would mislead a client (such as -EAGAIN) are reported as -EIO.
 */
#pragma once

#include "base/error.h"
#include "base/list.h"
#include "ring/ring.h"
#include "store/flash/format.h"
#include "store/store.h"

struct flash;

/* A read or write of whole blocks. Short transfers and interruptions are continued internally. */
struct flash_io {
	struct ring_op op;
	struct flash *flash;
	union {
		struct mem_ref memory;
		struct {		      /* vector of a record, see flash_io_write_record() */
			struct iovec *vector; /* first run that is not completely written */
			uint32_t vector_count;
			size_t vector_used; /* bytes of the first run already written */
		};
	};
	/* block: position in the log; offset: position on the device in bytes. */
	uint32_t block;
	uint64_t offset;
	size_t bytes;
	size_t done_bytes;
	uint32_t retries;
	bool is_write;
	bool has_vector;
	bool is_durable;       /* the write uses RWF_DSYNC */
	struct list_node node; /* entry of the queue of flash_zone_write() or flash_io_block() */
	void (*done)(struct flash_io *io, int result);
};

/* Zones of a host-managed device, see zone.c. */
struct flash_zones {
	/* distance between the beginnings of two zones; 0: the device has no zones */
	uint64_t bytes;
	uint64_t first;			       /* byte offset of the zone of anchors A */
	uint32_t count;			       /* number of equal zones, from `first` on */
	uint32_t capacity;		       /* number of blocks in each zone */
	uint32_t anchor_blocks[FLASH_ANCHORS]; /* number of blocks written to each anchor zone */
	/* Segment whose zone is being written, or FLASH_NO_SEGMENT. */
	uint32_t segment;
	uint32_t blocks;	 /* number of blocks of this segment that have been written */
	struct list_node writes; /* queued writes, in order */
	/* The write in flight, or NULL. */
	struct flash_io *writing;
	struct ring_op op; /* operation that finishes or resets a zone before the write */
	/* number of the zone to finish or reset, counted from the zone of anchors A */
	uint32_t ends;
};

/* --- transfers (io.c) ------------------------------------------------------------------------ */

uint64_t flash_io_bytes(void);
void flash_io_init(struct flash *flash, uint8_t *memory);
/* Starts a transfer of bytes, a multiple of the block size. done is called once, after this
 * function has returned. */
void flash_io_start(struct flash *flash, struct flash_io *io, bool is_write, struct mem_ref memory,
	uint64_t block, size_t bytes, void (*done)(struct flash_io *io, int result));
/* Writes the buffers in io->vector one after the other. The buffers and the vector must not change
 * until done is called. The vector then has its original contents. */
void flash_io_write_record(struct flash *flash, struct flash_io *io, uint64_t block, size_t bytes,
	void (*done)(struct flash_io *io, int result));
/* Issues the next write to a zone. With error < 0, completes it with that error instead. */
void flash_io_issue(struct flash *flash, struct flash_io *io, int error);
/* While the store is closed: performs the next transfer or sync. Returns false if
 * there is none. Blocks. */
bool flash_io_block(struct flash *flash);
/* Completes the part when everything that was written before is durable. */
void flash_sync_part(struct flash *flash, struct store_part *part);
/* Calls flash_checkpoint_synced() when everything that was written before is durable. */
void flash_sync_checkpoint(struct flash *flash);
/* Calls flash_move_synced() when everything that was written before is durable. */
void flash_sync_move(struct flash *flash);
/* Repeats the sync that has failed, see flash_redo_begin(). */
void flash_sync_again(struct flash *flash);
/* True while the write of an anchor is in flight. */
bool flash_sync_has_anchor(const struct flash *flash);
/* Writes an anchor. is_first selects the anchor that was not read when the store was opened;
 * it must be durable before the anchor that was read is overwritten. The block must stay
 * until done is called. */
void flash_anchor_write(struct flash *flash, struct flash_io *io, uint8_t *block, bool is_first,
	void (*done)(struct flash_io *io, int result));

/* --- positions, and zones of a host-managed device (zone.c) ---------------------------------- */

/* Finds the zones that a store would use. bytes is 0 on a device without zones. Returns -ENOTSUP or
 * -EINVAL if the zones are not suitable. Blocks. */
GMB_MUST_CHECK int flash_zones_find(
	int fd, const char *path, struct flash_zones *zones, struct error *error);
/* Returns the offset of a segment's zone on the device. */
uint64_t flash_zone_offset(const struct flash *flash, uint32_t segment);
/* Returns the offset of a block on the device. With zones the block must be in a segment. */
uint64_t flash_block_offset(const struct flash *flash, uint32_t block);
/* Reads an anchor: the newest one in zone `anchor`, or without zones the one in block `anchor`.
 * Returns zeroes if none was written. Blocks. */
GMB_MUST_CHECK int flash_anchor_read(
	int fd, struct flash_zones *zones, uint32_t anchor, uint8_t *block);
/* Reads count blocks of one segment before the store has started, and waits for them. Blocks after
 * the write pointer of a zone are returned as zeroes. */
GMB_MUST_CHECK int flash_read(struct flash *flash, uint32_t block, uint32_t count, void *bytes);
/* Reads the state of the segments' zones. No effect without zones. Blocks. */
GMB_MUST_CHECK int flash_zones_load(struct flash *flash);
/* Called after recovery. Finishes all active zones, because the log does not continue in them.
 * Resets the zones of free segments, except full zones that are not needed soon: their segments
 * become GC_ERASING, and erase.c resets them later. Blocks. */
GMB_MUST_CHECK int flash_zones_prepare(struct flash *flash, struct error *error);
/* Replaces flash_zones_prepare() in a start that must not write yet, because the previous process
 * might continue. Zones are finished and reset when the log continues. Returns -EBUSY or -ENOSPC if
 * the state of the zones does not allow that. */
GMB_MUST_CHECK int flash_zones_take(struct flash *flash, struct error *error);
/* Queues a write. Writes are issued in call order, one at a time. */
void flash_zone_write(struct flash *flash, struct flash_io *io);
/* Called when a write has completed: flash_zone_written() before its done(), flash_zone_next()
 * after it. */
void flash_zone_written(struct flash *flash, const struct flash_io *io);
void flash_zone_next(struct flash *flash);
/* While the store is closed: sets the offset of the write, and finishes or resets the zone
 * if necessary. Blocks. */
GMB_MUST_CHECK int flash_zone_write_now(struct flash *flash, struct flash_io *io);
