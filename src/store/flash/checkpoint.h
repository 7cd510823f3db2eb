// SPDX-License-Identifier: Apache-2.0
/*
 * Checkpoints: the map goes to the log, and anchors refer to it, so that a start need not read what
 * the log had before.
 *
 *   DRAIN ─▶ LEVEL_0 ─▶ LEVEL_1 ─▶ LEVEL_2 ─▶ SYNC ─▶ ANCHOR_FIRST ─▶ ANCHOR_SECOND ─▶ NONE
 *
 * Threading: on the ring of the start; the last one when the store is closed. Ownership: the budget
 * of the start holds the block. Errors: flash_fail().
 */
#pragma once

#include "store/flash/io.h"

struct flash_slot;

enum flash_checkpoint_state {
	FLASH_CHECKPOINT_NONE,
	FLASH_CHECKPOINT_DRAIN,	  /* records in flight end; no change is made */
	FLASH_CHECKPOINT_LEVEL_0, /* changed nodes are appended in steps, and written */
	FLASH_CHECKPOINT_LEVEL_1,
	FLASH_CHECKPOINT_LEVEL_2,
	FLASH_CHECKPOINT_SYNC,	       /* all that the anchor refers to */
	FLASH_CHECKPOINT_ANCHOR_FIRST, /* written and made durable */
	FLASH_CHECKPOINT_ANCHOR_SECOND,
	FLASH_CHECKPOINT_STATE_COUNT
};

struct flash_checkpoint {
	enum flash_checkpoint_state state;
	uint32_t next;		     /* node or slot to look at */
	bool is_appended;	     /* all of the level */
	uint64_t step_end;	     /* the records of the last step are before that one */
	uint32_t step_dirty;	     /* pages of this round that were dirty then */
	struct flash_position begin; /* what it has is all that was before */
	uint64_t clock;		     /* then */
	uint32_t settle_count;	     /* parts of settling that came before */
	struct list_node settling;   /* flushes that wait for one */
	bool is_asked;		     /* another one is to begin */
	bool is_waiting;	     /* for the anchor or the sync */
	struct flash_io io;
	uint8_t *block;
};

/* One that begins from now on. */
void flash_checkpoint_ask(struct flash *flash);
/* The end of one is waited for: asks, unless one runs. */
void flash_checkpoint_await(struct flash *flash);
bool flash_checkpoint_step(struct flash *flash);
void flash_checkpoint_synced(struct flash *flash, int result);
/* The part, a flush, is done when all is in a checkpoint, as after a close. */
void flash_settle(struct flash *flash, struct store_part *part);
/* See store_end(): the last one, when all parts are done. Blocks; without a ring. */
uint64_t flash_end(struct store *store);
/* Appends a page that is flash_slot_is_old(). False: there is no room in the log at present. */
bool flash_checkpoint_append(struct flash *flash, struct flash_slot *slot);
