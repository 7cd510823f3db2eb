// SPDX-License-Identifier: Apache-2.0
/*
 * The map: the position of each block of the disk and of its snapshots. Pages (nodes of level 0)
 * are cached in memory; the nodes above them are always in memory.
 *
 * Invariant: a dirty or pinned page stays in memory, and only checkpoints write pages. The limits
 * in struct flash_geometry bound the dirty pages, so that one checkpoint can write them all.
 *
 * Threading: on the owner ring; recovery has the map to itself on its worker thread. Ownership:
 * everything is in the memory that the start allocates. A page that is neither dirty nor pinned may
 * be evicted as soon as its user returns to the ring. Errors: negative errno to the waiters of a
 * page.
 */
#pragma once

#include "store/flash/io.h"

#define FLASH_NO_PAGE UINT32_MAX

/* A request to wait for a page of the map. ready is called once, on the ring. */
struct flash_wait {
	struct list_node node;
	void (*ready)(struct flash_wait *wait, int result);
};

enum flash_slot_state {
	FLASH_SLOT_FREE,
	FLASH_SLOT_LOADING,
	FLASH_SLOT_CLEAN,
	FLASH_SLOT_DIRTY,
	/* appended to a checkpoint and not changed since; becomes clean when the record with the
	 * page is retired */
	FLASH_SLOT_WRITTEN,
};

/* A page of the map in memory. It stays while it is dirty or has pins. */
struct flash_slot {
	struct flash_node *node;
	/* FLASH_NO_PAGE: the page's snapshot was deleted while the page was being read */
	uint32_t page;
	int32_t chain; /* next slot in the same bucket of the hash table */
	/* Number of entries that change the page, in records that are not retired. */
	uint32_t pins;
	uint32_t round; /* dirty: value of flash_map.round when the page became dirty */
	uint8_t state;
	/* Link in the map's lru list (oldest first) if the slot is free, or clean and not
	 * pinned. */
	struct list_node lru;
	struct list_node waiting;
	struct flash_io io;
};

/* The tree of the disk (tree 0) or of a snapshot (tree 1 + its index). */
struct flash_tree {
	/* by level: addresses of the nodes */
	struct flash_entry *levels[FLASH_LEVELS];
	/* nodes of level 1 and above that must be written */
	bool *dirty[FLASH_LEVELS];
	/* pages of the segment table that must be written */
	bool *table_dirty;
	/* Table pages that the checkpoint in progress writes. */
	bool *table_begun;
};

/* Page p of tree t has the number t * page_count + p. */
struct flash_map {
	struct flash_tree trees[FLASH_TREES];
	struct flash_slot *slots;
	int32_t *buckets;
	uint32_t slot_count;
	uint32_t bucket_mask;
	/* Number of the last checkpoint that has begun; dirty pages of earlier rounds are old. */
	uint32_t round;
	uint32_t dirty_count; /* number of pages that became dirty in the current round */
	struct list_node lru;
};

/* Returns the size of the map in bytes. */
uint64_t flash_map_bytes(const struct flash_geometry *geometry, uint32_t slot_count);
void flash_map_init(struct flash *flash, uint8_t *memory);
/* Returns the page if it is in memory or being read, else NULL. It can be evicted after the caller
 * returns to the ring. */
struct flash_slot *flash_map_find(struct flash *flash, uint32_t page);
/* Returns the page. A page without a node on the device gets a slot of zeroes. NULL: if *full is
 * set, no slot is free until a checkpoint has completed, and wait is not used; otherwise the page
 * is being read, and wait->ready is called once, later. */
struct flash_slot *flash_map_get(
	struct flash *flash, uint32_t page, struct flash_wait *wait, bool *full);
/* Takes a free slot, or the least recently used clean one, for the page and fills it with zeroes.
 * Returns NULL if there is none. */
struct flash_slot *flash_map_take(struct flash *flash, uint32_t page);
/* Frees the slot of a page whose contents are not valid. */
void flash_map_release(struct flash *flash, struct flash_slot *slot);
/* Marks the page dirty before it is changed. A page that belongs to the checkpoint in progress is
 * first appended to it. Returns false if the limit of dirty pages is reached, or the log has no
 * room. */
bool flash_map_dirty(struct flash *flash, struct flash_slot *slot);
/* Makes a page clean after the checkpoint has written it, or has unlinked it because it is
 * empty. */
void flash_map_clean(struct flash *flash, struct flash_slot *slot);
/* Keeps the page in memory until flash_map_unpin(), for a record that changes it. */
void flash_map_pin(struct flash_slot *slot);
void flash_map_unpin(struct flash *flash, struct flash_slot *slot);
/* Applies an entry of a written record to the map and to the segment counts. block: position of the
 * entry's block on the device. */
void flash_map_apply(struct flash *flash, const struct flash_record_entry *entry, uint32_t block);
/* Sets the address of a node, and marks the node above it dirty. */
void flash_map_set_node(struct flash *flash, uint32_t tree, uint32_t level, uint32_t index,
	struct flash_entry entry);
/* For each node of the tree, adds `each` (1 or -1) to the node count of the node's segment. */
void flash_map_count_nodes(struct flash *flash, uint32_t tree, int32_t each);
/* Drops all pages of a tree, which must be clean. Waiters for a page get -ESTALE. */
void flash_map_forget(struct flash *flash, uint32_t tree);
