// SPDX-License-Identifier: Apache-2.0
/*
 * Checkpoints write the map to the log and let the anchors refer to it, so that a start need not
 * read the log before the checkpoint.
 *
 *   DRAIN ─▶ LEVEL_0 ─▶ LEVEL_1 ─▶ LEVEL_2 ─▶ SYNC ─▶ ANCHOR_FIRST ─▶ ANCHOR_SECOND ─▶ NONE
 *
 * Invariant: the first anchor is durable before the second one is written, and both before a
 * segment becomes free.
 *
 * Threading: on the owner ring; the last checkpoint runs without a ring when the store is closed.
 * Ownership: `block` is in the memory that the start allocates. Errors: flash_fail().
 */
#pragma once

#include "store/flash/io.h"

struct flash_slot;

enum flash_checkpoint_state {
	FLASH_CHECKPOINT_NONE,
	/* waits until the records in flight are complete; changes wait as well */
	FLASH_CHECKPOINT_DRAIN,
	FLASH_CHECKPOINT_LEVEL_0, /* changed nodes are appended to the log in steps */
	FLASH_CHECKPOINT_LEVEL_1,
	FLASH_CHECKPOINT_LEVEL_2,
	FLASH_CHECKPOINT_SYNC,	       /* everything that the anchor refers to is made durable */
	FLASH_CHECKPOINT_ANCHOR_FIRST, /* the first anchor is written and made durable */
	FLASH_CHECKPOINT_ANCHOR_SECOND,
	FLASH_CHECKPOINT_STATE_COUNT
};

struct flash_checkpoint {
	enum flash_checkpoint_state state;
	uint32_t next;	   /* map slot or node to examine next */
	bool is_appended;  /* all nodes of the level are appended */
	uint64_t step_end; /* all records of the last step have smaller numbers */
	/* number of pages that had become dirty in this round when the last step began */
	uint32_t step_dirty;
	/* Log position at which the checkpoint began. The checkpoint contains the changes of all
	 * records before this position. */
	struct flash_position begin;
	uint64_t clock; /* gc_table.clock when the checkpoint began */
	/* number of flushes in `quiescing` that arrived before the checkpoint began */
	uint32_t quiesce_count;
	struct list_node quiescing; /* STORE_QUIESCE flushes that wait for a checkpoint */
	/* a new checkpoint was requested, which must begin after the request */
	bool is_asked;
	/* the checkpoint waits for the write of an anchor, or for a sync */
	bool is_waiting;
	struct flash_io io;
	uint8_t *block;
};

/* Requests a checkpoint that begins after this call. */
void flash_checkpoint_ask(struct flash *flash);
/* Requests a checkpoint unless one is in progress. For callers that can continue after any
 * checkpoint. */
void flash_checkpoint_await(struct flash *flash);
/* Continues the checkpoint. Returns true if there was progress. */
bool flash_checkpoint_step(struct flash *flash);
/* Called when the sync that flash_sync_checkpoint() requested is complete. */
void flash_checkpoint_synced(struct flash *flash, int result);
/* Repeats the step (the write of an anchor, or a sync) for which the checkpoint waits. */
void flash_checkpoint_again(struct flash *flash);
/* Completes a STORE_QUIESCE flush when a checkpoint contains all changes, as after a clean
 * shutdown. */
void flash_quiesce(struct flash *flash, struct store_part *part);
/* Implements store_end(): writes the cache and a last checkpoint. All parts must be done. Returns
 * the bytes of changes that remain in the cache file. Blocks; uses no ring. */
uint64_t flash_end(struct store *store);
/* Appends a page for which flash_slot_is_old() is true, or unlinks it if it is empty. Returns false
 * if the log has no room now. */
bool flash_checkpoint_append(struct flash *flash, struct flash_slot *slot);
