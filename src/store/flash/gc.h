// SPDX-License-Identifier: Apache-2.0
/*
 * Segments: which of them are collected, erased and written to next. What is decided by numbers
 * alone is in gc_policy.h.
 *
 * Threading: on the ring of the start, where nothing else is said. Ownership: the budget of the
 * start holds tables and buffers. Errors: a device that erases nothing is not asked again; without
 * a segment that can be won, flash_fail().
 */
#pragma once

#include "ring/ring.h"
#include "store/flash/format.h"
#include "store/flash/gc_policy.h"

struct disk_info;
struct flash;

/* What is kept of a segment beside struct gc_segment. */
struct flash_segment {
	uint32_t nodes;			  /* that the levels above point at, for each tree */
	uint32_t readers;		  /* of its blocks, in flight */
	uint32_t view_valid[FLASH_VIEWS]; /* blocks that pages of the view point at */
	uint32_t begin_valid;		  /* blocks of the disk when the checkpoint at hand began */
	bool was_closed;		  /* then */
	uint32_t erases;		  /* FLASH_AVOIDED: a write to it has failed */
	bool is_bad;	  /* has blocks that cannot be read; not collected until it is empty */
	bool is_kept;	  /* the same: a damaged view has, or may have, something there */
	uint8_t zone;	  /* enum disk_zone_state, when it was opened */
	uint32_t written; /* blocks of the zone, at that time */
};

struct flash_erase {
	struct ring_op op;
	uint32_t segment; /* that is erased, or was the last one */
	int fd;		  /* through which the device takes it */
	bool is_block;
	bool is_wanted; /* the device has, or may have, use for it */
	uint32_t taken; /* segments begun since one was moved because it was seldom erased */
};

/* --- the collector (gc.c) -------------------------------------------------------------------- */

uint64_t flash_gc_bytes(void);
void flash_gc_init(struct flash *flash, uint8_t *memory);
/* Returns true when something was done. */
bool flash_gc_step(struct flash *flash);
/* Clients have written so many blocks. */
void flash_gc_credit(struct flash *flash, uint32_t blocks);
/* A checkpoint has ended, and segments have become free. */
void flash_gc_checkpointed(struct flash *flash);
/* It reads the segment. */
bool flash_gc_walks(const struct flash *flash, uint32_t segment);

/* --- erasing and wear (erase.c) -------------------------------------------------------------- */

/* fd: what discards go through. is_read_only is known. */
void flash_erase_init(struct flash *flash, const struct disk_info *disk, int fd);
/* After recovery: has those of the free segments of a file erased that have something, but for its
 * spare space. Blocks. */
void flash_erase_found(struct flash *flash);
/* The victim is free, or will be when it is erased. Nothing durable refers to it. */
void flash_erase(struct flash *flash, uint32_t segment);
/* Returns true when something was done. */
bool flash_erase_step(struct flash *flash);
/* A segment that was erased so much less often than the others that what is in it should be moved,
 * or GC_NO_SEGMENT. At most one of 128 that are written. */
uint32_t flash_wear_victim(struct flash *flash);
/* After a checkpoint: how often segments were erased. */
void flash_wear_count(struct flash *flash);
