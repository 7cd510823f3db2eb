// SPDX-License-Identifier: Apache-2.0
/*
 * The map: where each block of the disk, and of its views, is. Pages of it are in memory as far as
 * there is room; those above them always are.
 *
 * Threading: on the ring of the start; the recovery has the map for itself on its thread.
 * Ownership: the budget of the start holds it all; a page may leave when its caller returns, unless
 * it is dirty or pinned. Errors: negative errno, to who waits for a page.
 */
#pragma once

#include "store/flash/io.h"

#define FLASH_NO_PAGE UINT32_MAX

/* Somebody who waits for a page of the map. */
struct flash_wait {
	struct list_node node;
	void (*ready)(struct flash_wait *wait, int result);
};

enum flash_slot_state {
	FLASH_SLOT_FREE,
	FLASH_SLOT_LOADING,
	FLASH_SLOT_CLEAN,
	FLASH_SLOT_DIRTY,
	FLASH_SLOT_WRITTEN, /* dirty, not changed since a checkpoint appended it, and clean soon */
};

/* A page of the map in memory. A dirty one, and one with pins, stays. */
struct flash_slot {
	struct flash_node *node;
	uint32_t page; /* FLASH_NO_PAGE: of a view that has gone while it was read */
	int32_t chain; /* the next slot of the bucket */
	uint32_t pins;
	uint32_t round; /* dirty: that of the map when it was changed first */
	uint8_t state;
	struct list_node lru; /* clean and not pinned: the oldest first; or free */
	struct list_node waiting;
	struct flash_io io;
};

/* The disk (tree 0), or a view (tree 1 + its index). */
struct flash_tree {
	struct flash_entry *levels[FLASH_LEVELS]; /* [n]: where the nodes of level n are */
	bool *dirty[FLASH_LEVELS];		  /* nodes to be written, from level 1 on */
	bool *table_dirty;			  /* nodes of the table of segments */
	bool *table_begun;			  /* those that the checkpoint at hand writes */
};

/* Pages are numbered: page p of tree t has the number t * page_count + p. */
struct flash_map {
	struct flash_tree trees[FLASH_TREES];
	struct flash_slot *slots;
	int32_t *buckets;
	uint32_t slot_count;
	uint32_t bucket_mask;
	uint32_t round; /* checkpoints that were begun: what is dirty of an older one is old */
	uint32_t dirty_count; /* of this round */
	struct list_node lru;
};

/* Bytes that the map takes, and from where on. */
uint64_t flash_map_bytes(const struct flash_geometry *geometry, uint32_t slot_count);
void flash_map_init(struct flash *flash, uint8_t *memory);
/* The page if it is in memory, or NULL. It stays until the caller returns. */
struct flash_slot *flash_map_find(struct flash *flash, uint32_t page);
/* The same, of a page that has nothing on the disk as well: then a slot of zeroes. NULL: it is
 * being read, and wait->ready is called once, later; or, without a free slot, a checkpoint must end
 * first: wait is not used and *full becomes true. */
struct flash_slot *flash_map_get(
	struct flash *flash, uint32_t page, struct flash_wait *wait, bool *full);
/* A free slot that now is this page's, with zeroes; NULL: there is none. */
struct flash_slot *flash_map_take(struct flash *flash, uint32_t page);
void flash_map_release(struct flash *flash, struct flash_slot *slot);
/* The page will be changed. False: as many as can be are dirty, or what a checkpoint has to write
 * of it first finds no room in the log. */
bool flash_map_dirty(struct flash *flash, struct flash_slot *slot);
void flash_map_clean(struct flash *flash, struct flash_slot *slot);
void flash_map_pin(struct flash_slot *slot);
void flash_map_unpin(struct flash *flash, struct flash_slot *slot);
/* What a record that is written changes. */
void flash_map_apply(struct flash *flash, const struct flash_record_entry *entry, uint32_t block);
/* Where a node is now. */
void flash_map_set_node(struct flash *flash, uint32_t tree, uint32_t level, uint32_t index,
	struct flash_entry entry);
/* Adds the nodes of a tree, as its levels say, to those of their segments, or takes them away. */
void flash_map_count_nodes(struct flash *flash, uint32_t tree, int32_t each);
/* Forgets the pages of a tree, none of which is dirty. Who waits for one gets -ESTALE. */
void flash_map_forget(struct flash *flash, uint32_t tree);
