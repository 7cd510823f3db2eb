// SPDX-License-Identifier: Apache-2.0
/*
 * Segments: garbage collection, erasing, and the choice of the segment to write next. gc_policy.h
 * contains the decisions that depend on numbers alone.
 *
 * Invariant: a segment becomes free only by a checkpoint. So at any time, a recovery after a crash
 * would find no reference to a free segment, neither in the map nor in the log.
 *
 * Threading: on the owner ring unless stated otherwise. Ownership: tables and buffers are in the
 * memory that the start allocates. Errors: after a refused discard, no further discards are sent;
 * if no segment can be freed, flash_fail().
 */
#pragma once

#include "ring/ring.h"
#include "store/flash/format.h"
#include "store/flash/gc_policy.h"

struct disk_info;
struct flash;

/* State of a segment in addition to struct gc_segment. */
struct flash_segment {
	/* number of live nodes in the segment, of all trees */
	uint32_t nodes;
	/* number of reads of the segment's blocks that are in flight */
	uint32_t readers;
	uint32_t snapshot_valid[FLASH_SNAPSHOTS]; /* number of live blocks of each snapshot */
	/* Number of live blocks of the disk when the checkpoint in progress began. */
	uint32_t begin_valid;
	bool was_closed; /* the segment was closed when the checkpoint in progress began */
	uint32_t erases; /* see flash_table_entry.erases */
	/* A block of the segment cannot be read or moved, so the segment is not collected until it
	 * is empty. */
	bool is_bad;
	/* not collected, because a damaged snapshot has, or might have, blocks in the segment */
	bool is_kept;
	uint8_t zone;	  /* enum disk_zone_state when the store was opened */
	uint32_t written; /* number of blocks of the zone written when the store was opened */
};

struct flash_erase {
	struct ring_op op;
	uint32_t segment; /* segment being erased, or erased last */
	int fd;		  /* descriptor for discards and zone resets */
	bool is_block;
	bool is_wanted; /* free segments are discarded, or their zones reset */
	/* number of segments taken for writing since the last search for a segment to move */
	uint32_t taken;
};

/* --- garbage collection (gc.c) --------------------------------------------------------------- */

uint64_t flash_gc_bytes(void);
void flash_gc_init(struct flash *flash, uint8_t *memory);
/* Continues garbage collection. Returns true if there was progress. */
bool flash_gc_step(struct flash *flash);
/* Called when clients have written `blocks` blocks: lets the garbage collector examine a multiple
 * of this number. */
void flash_gc_credit(struct flash *flash, uint32_t blocks);
/* Called when a checkpoint is complete and has freed segments. */
void flash_gc_checkpointed(struct flash *flash);
/* True while the garbage collector reads the segment. */
bool flash_gc_walks(const struct flash *flash, uint32_t segment);

/* --- erasing and wear (erase.c) -------------------------------------------------------------- */

/* Initializes erasing. fd: descriptor for discards and zone resets. is_read_only must be set. */
void flash_erase_init(struct flash *flash, const struct disk_info *disk, int fd);
/* Called after recovery of a store in a file. Queues discards of the free segments that have space
 * allocated. Some keep their space, because they are written again soon: the number that would
 * be free if the disk were full. Blocks. */
void flash_erase_found(struct flash *flash);
/* Frees a collected segment at the end of a checkpoint, immediately or after a discard. No anchor
 * may refer to it. */
void flash_erase(struct flash *flash, uint32_t segment);
/* Continues erasing. Returns true if there was progress. */
bool flash_erase_step(struct flash *flash);
/* Returns a candidate with far fewer erases than the mean, whose data should be moved, or
 * GC_NO_SEGMENT. Returns at most one for each 128 segments written. */
uint32_t flash_wear_victim(struct flash *flash);
/* Updates the counters of erases after a checkpoint. */
void flash_wear_count(struct flash *flash);
