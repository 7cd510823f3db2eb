// SPDX-License-Identifier: Apache-2.0
/*
 * Opening a store: reading the anchors, the trees they refer to and the log after them, and finding
 * damage.
 *
 * Called when a store is opened (flash.c), and by `gmblock check` (create.c).
 *
 * Threading: functions that block run on a thread that has the store to itself. Ownership: the
 * caller's. Errors: negative errno and an error message; struct flash_damage describes damage.
 */
#pragma once

#include "base/error.h"
#include "store/flash/format.h"

struct flash;

enum { FLASH_HOLES_MAX = 16, FLASH_HOLE_TEXT_BYTES = 96, FLASH_LOSS_TEXT_BYTES = 192 };

/* A range of consecutive map pages of the disk. */
struct flash_hole {
	uint32_t first;
	uint32_t count;
};

struct flash_holes {
	struct flash_hole list[FLASH_HOLES_MAX];
	uint32_t count;
	uint32_t more; /* number of further pages, for which no entry of the list was free */
};

/* Results of recovery. */
struct flash_damage {
	/* Byte of the device at which the log ends. */
	uint64_t lost_at;
	/* Number of records that are lost from lost_at on. Counts records that were declared
	 * durable, and all records before dropped_end. */
	uint64_t lost_records;
	/* Number of the record at which the log ended before the page cache was dropped; 0: it was
	 * not dropped. */
	uint64_t dropped_end;
	/* Error of a read of the log at lost_at; 0: none. */
	int lost_error;
	uint32_t repairs;      /* enum store_repair, as requested */
	uint32_t twins_used;   /* number of nodes of which only the second copy could be read */
	bool is_table_damaged; /* the segment table was damaged; recomputed unless is_read_only */
	struct flash_holes holes; /* pages of the disk that are lost or damaged */
	/* Results of a repair: pages whose image was found and linked to the map again, pages
	 * reconstructed from changes, and pages of which no trace was found. */
	uint32_t linked_pages;
	struct flash_holes patched;
	struct flash_holes emptied;
};

/* A segment as the segment table and the log show it while the store is opened. */
struct flash_seen {
	uint64_t stamp;
	uint32_t valid;
	bool was_free; /* the segment had no live block at the checkpoint */
	bool in_log;   /* the segment contains records after the checkpoint */
};

/* --- recover.c ------------------------------------------------------------------------------- */

/* Reads the anchors of the device whose fd and path are set, through this fd. Returns -EINVAL and
 * an error message if neither is valid. Blocks. */
GMB_MUST_CHECK int flash_anchors_read(struct flash *flash, int fd, struct error *error);
/* Makes the log durable, unless is_read_only; then restores the map and all tables. Returns
 * -EUCLEAN if the map of the disk is damaged. Also returns -EUCLEAN, with the map before the loss,
 * if flash_has_loss() is true, unless is_read_only or a repair accepts the loss. If the log cannot
 * be made durable and a repair accepts the loss, drops the records that the device lacks. Marks
 * snapshots whose trees are damaged. Blocks; called on a worker thread. */
GMB_MUST_CHECK int flash_recover(struct flash *flash, struct error *error);

/* --- trees, and messages about damage (tree.c) ----------------------------------------------- */

/* Reads a node, or returns zeroes if there is none. Returns -EUCLEAN if its checksum does not
 * match. Blocks. */
GMB_MUST_CHECK int flash_node_read(struct flash *flash, struct flash_entry at, void *node);
/* Reads the addresses of all nodes of a tree. If both copies of a node are damaged: returns
 * -EUCLEAN for the disk, unless holes are accepted; sets *damaged for a snapshot. */
GMB_MUST_CHECK int flash_tree_read(
	struct flash *flash, uint32_t tree, const struct flash_entry *top, bool *damaged);
/* Reads the segment table of a tree. If it is damaged, counts the blocks of the segments in the map
 * instead. Returns -EUCLEAN if a map page that must be counted is damaged as well. */
GMB_MUST_CHECK int flash_table_read(struct flash *flash, uint32_t tree, struct flash_seen *seen);
/* Returns the number of nodes of levels 1 and 2 with one damaged copy. For a snapshot, nodes that
 * it shares with the disk are not counted. */
uint32_t flash_tree_single(struct flash *flash, uint32_t tree);
/* True if all entries of the page refer to valid blocks. index: number of the page in its tree. */
bool flash_page_is_sound(const struct flash *flash, uint32_t index, const struct flash_node *node);
/* Adds a page to the ranges, unless a range contains it already. */
void flash_hole_add(struct flash_holes *holes, uint32_t page);
/* Describes range `number`, for example as "bytes 0 to 4095 of the disk". The text can be the
 * subject of a sentence with a plural verb. Returns false if there is no such range. */
bool flash_hole_text(const struct flash *flash, const struct flash_holes *holes, uint32_t number,
	char *text, size_t bytes);
/* True if the log lacks records that were durable, or that it had before the page cache was
 * dropped. Also true if such records might be lost because the log cannot be read. */
bool flash_has_loss(const struct flash *flash);
/* Describes the loss as the predicate of a sentence about the log, such as "is damaged at byte
 * 8192: 2 flushed records from there on are lost". The lost records come last, so that the caller
 * can refer to them as "these records". */
void flash_loss_text(const struct flash *flash, char *text, size_t bytes);
/* Logs the damage that was found, and the results of a repair. */
void flash_damage_tell(const struct flash *flash);

/* --- rebuild.c ------------------------------------------------------------------------------- */

/* After flash_tree_read() of the disk: searches the record headers for lost pages, links them again
 * or reconstructs them in memory. Returns -EFBIG if more pages must be reconstructed than can
 * change between two checkpoints. Blocks. */
GMB_MUST_CHECK int flash_rebuild(struct flash *flash);
