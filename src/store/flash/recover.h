// SPDX-License-Identifier: Apache-2.0
/*
 * Opening: the anchors, the trees they refer to, the log behind them, and what is damaged of it.
 *
 * Threading: all of it blocks, on a worker thread that has the store for itself. Ownership: the
 * caller's. Errors: negative errno and a sentence; damage is in struct flash_damage.
 */
#pragma once

#include "base/error.h"
#include "store/flash/format.h"

struct flash;

enum { FLASH_HOLES_MAX = 16, FLASH_HOLE_TEXT_BYTES = 96, FLASH_LOSS_TEXT_BYTES = 192 };

/* Pages of the disk, in ranges. */
struct flash_hole {
	uint32_t first;
	uint32_t count;
};

struct flash_holes {
	struct flash_hole list[FLASH_HOLES_MAX];
	uint32_t count;
	uint32_t more; /* pages that are in no range of the list */
};

/* What the recovery has found. */
struct flash_damage {
	/* From this byte on, where the log ends: so many records that were durable; or the error
	 * with which it cannot be read. */
	uint64_t lost_at;
	uint64_t lost_records;
	int lost_error;
	uint32_t repairs;	  /* enum store_repair, what is wanted */
	uint32_t twins_used;	  /* nodes of which only the second copy could be read */
	bool is_table_damaged;	  /* the table of segments was, and is counted anew */
	struct flash_holes holes; /* pages of the disk that cannot be found or read */
	/* What a repair has done: pages that are linked again as they were, those that were put
	 * together from changes, and those of which there is nothing. */
	uint32_t linked_pages;
	struct flash_holes patched;
	struct flash_holes emptied;
};

/* What the table says of a segment, while the store is opened. */
struct flash_seen {
	uint64_t stamp;
	uint32_t valid;
	bool was_free; /* at the checkpoint */
	bool in_log;   /* behind the checkpoint */
};

/* --- recover.c ------------------------------------------------------------------------------- */

/* Reads the anchors of the disk whose fd and path are set. -EINVAL with a sentence. Blocks. */
GMB_MUST_CHECK int flash_anchors_read(struct flash *flash, struct error *error);
/* Restores map and tables; a view whose tree is damaged is marked. -EUCLEAN when the map of the
 * disk is damaged; and unless is_read_only, when flash_has_loss(): the map is that before the loss.
 * Blocks; on a worker thread. */
GMB_MUST_CHECK int flash_recover(struct flash *flash, struct error *error);

/* --- trees, and what is said of damage (tree.c) ---------------------------------------------- */

/* A node; zeroes when there is none. -EUCLEAN: it does not have its checksum. Blocks. */
GMB_MUST_CHECK int flash_node_read(struct flash *flash, struct flash_entry at, void *node);
/* The second copy of a node of level 1 or 2, which is somewhere behind the first in its record. */
GMB_MUST_CHECK int flash_twin_read(struct flash *flash, struct flash_entry at, void *node);
/* Where all nodes of a tree are. -EUCLEAN: both copies of one of the disk are damaged, and holes
 * are of no use; for a view *damaged becomes true. */
GMB_MUST_CHECK int flash_tree_read(
	struct flash *flash, uint32_t tree, const struct flash_entry *top, bool *damaged);
/* Its table of segments. -EUCLEAN: it is damaged, and so is a page that was to be counted. */
GMB_MUST_CHECK int flash_table_read(struct flash *flash, uint32_t tree, struct flash_seen *seen);
/* Nodes of level 1 and 2 of which one copy is damaged; of a view: that the disk has not as well. */
uint32_t flash_tree_single(struct flash *flash, uint32_t tree);
/* Its entries refer to blocks that there can be. index: of the page in its tree. */
bool flash_page_is_sound(const struct flash *flash, uint32_t index, const struct flash_node *node);
void flash_hole_add(struct flash_holes *holes, uint32_t page);
/* Names the number-th range, in the plural. False: there is none. */
bool flash_hole_text(const struct flash *flash, const struct flash_holes *holes, uint32_t number,
	char *text, size_t bytes);
/* Records that were durable are lost, or any may be, because the log cannot be read. */
bool flash_has_loss(const struct flash *flash);
/* Says it of the log, in a sentence without a subject that ends with the records. */
void flash_loss_text(const struct flash *flash, char *text, size_t bytes);
/* What was found, and what a repair has done. */
void flash_damage_tell(const struct flash *flash);

/* --- rebuild.c ------------------------------------------------------------------------------- */

/* After flash_tree_read() of the disk: finds pages that are lost from the headers of records, which
 * are linked again, or put together in memory. -EFBIG: they are more than can be changed between
 * two checkpoints. Blocks. */
GMB_MUST_CHECK int flash_rebuild(struct flash *flash);
