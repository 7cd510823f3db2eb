// SPDX-License-Identifier: Apache-2.0
/*
 * Snapshots: the contents of the disk at a checkpoint, under a name. Each has a tree of the map and
 * a slot in the anchor.
 *
 * Invariant: a snapshot is created and deleted by a checkpoint, so it is durable with all of its
 * contents or does not exist.
 *
 * Threading: on the owner ring, except flash_snapshots_list() and opening, which run on any thread
 * and take the store's watch_lock. Ownership: a request belongs to its caller again once it is
 * done. Errors: in the request, with an error message.
 */
#pragma once

#include "store/flash/format.h"
#include "store/kind.h"

struct flash;

enum flash_snapshot_state {
	FLASH_SNAPSHOT_NONE,
	FLASH_SNAPSHOT_CREATING, /* the checkpoint in progress creates it */
	FLASH_SNAPSHOT_LIVE,
	FLASH_SNAPSHOT_DELETING, /* the next checkpoint deletes it; reads fail already */
	FLASH_SNAPSHOT_STATE_COUNT
};

_Static_assert((int)FLASH_SNAPSHOTS == STORE_SNAPSHOTS_MAX, "a list has room for all");
_Static_assert(
	(int)FLASH_SNAPSHOT_NAME_BYTES == STORE_SNAPSHOT_NAME_BYTES, "and each entry for a name");

/* State of a snapshot. Its tree is in struct flash_map. */
struct flash_snapshot {
	enum flash_snapshot_state state;
	/* Nodes of the snapshot's tree cannot be read. Its blocks are not collected, and it cannot
	 * be opened. */
	bool is_damaged;
	struct flash_snapshot_anchor about; /* `about.top` is from the last checkpoint */
};

struct flash_snapshots {
	struct flash_snapshot list[FLASH_SNAPSHOTS];
	struct store_snapshot_request *request; /* the request being processed, or NULL */
	struct list_node waiting;		/* requests that wait for the current one */
	struct ring_op turn; /* completes the request in a later batch of the ring */
	bool is_prepared;    /* changes answered before the request are being written, or are in the
				log */
	/* changes wait until the checkpoint that creates the snapshot begins */
	bool holds;
	bool is_done; /* the request is complete, except that transfers are in flight */
	bool refuses; /* true: on-full=refuse; false: drop */
	bool is_full; /* set with on-full=refuse: changes that need space fail */
	/* Set with on-full=refuse if garbage collection frees no space any more. All changes, and
	 * flushes of cached pages, fail until a snapshot is deleted. */
	bool is_stuck;
	/* Name of the last snapshot dropped for lack of space. */
	char dropped[FLASH_SNAPSHOT_NAME_BYTES];
};

/* A snapshot as a read-only store. Its parts are processed on the ring of the disk's store. */
struct flash_snapshot_store {
	struct store base;
	struct flash *flash; /* the store of the disk, which outlives this one */
	uint32_t index;
	uint64_t serial; /* serial number of the snapshot; its slot may be reused by another one */
};

extern const struct store_ops flash_snapshot_ops;
extern const struct store_kind flash_snapshot_kind;

void flash_snapshots_init(struct flash *flash);
/* Initializes the snapshots from the anchor. */
void flash_snapshots_recovered(struct flash *flash);
/* Marks a snapshot whose tree is damaged. Its known nodes, and the segments that its table names,
 * stay untouched until it is deleted. */
void flash_snapshot_damaged(struct flash *flash, uint32_t index);
/* Makes the next checkpoint delete the snapshots that jobs of earlier processes have left. */
void flash_snapshots_drop_temporary(struct flash *flash);
/* Continues the current request. Returns true if there was progress. */
bool flash_snapshots_step(struct flash *flash);
/* True if the part belongs to a snapshot that no longer exists. */
bool flash_snapshot_is_deleted(const struct store_part *part);
/* Implements store_snapshots(). Any thread. */
uint32_t flash_snapshots_list(struct store *store, struct store_snapshot list[STORE_SNAPSHOTS_MAX]);
/* Implements store_snapshot_ask(). */
void flash_snapshot_ask(struct store *store, struct store_snapshot_request *request);
/* True if a request or a deletion needs a checkpoint. */
bool flash_snapshots_want_checkpoint(const struct flash *flash);
/* Called when a checkpoint begins. Creates the requested snapshot if its contents are in the
 * log. */
void flash_snapshots_begin(struct flash *flash);
/* Fills in the snapshots in the anchor. */
void flash_snapshots_encode(struct flash *flash);
/* Called when the checkpoint is durable or has failed, before segments become free. */
void flash_snapshots_checkpointed(struct flash *flash, int result);
/* Called when an operation that was counted in io_count has ended: completes the current request
 * when it is done. */
void flash_snapshots_io_ended(struct flash *flash);
/* Called when the disk has one live block fewer in the segment: corrects the estimate of blocks
 * that only snapshots have. */
void flash_snapshots_block_dies(struct flash *flash, uint32_t segment);
/* Recomputes the estimate of blocks that only snapshots have, after the log has been replayed. */
void flash_snapshots_restore(struct flash *flash, uint32_t segment);
/* Makes the trees of the snapshots that have a moved block refer to its new position. is_mapped:
 * the disk has the block as well. */
void flash_snapshots_move(struct flash *flash, const struct flash_record_entry *entry,
	uint32_t block, bool is_mapped);
/* Drops a snapshot, or lets writes fail, if too few segments can be written. */
void flash_snapshots_look(struct flash *flash);
/* Called when garbage collection cannot free further space. Drops a snapshot or, with
 * on-full=refuse, makes changes fail instead of waiting, and returns true. Returns false if there
 * is no snapshot. */
bool flash_snapshots_relieve(struct flash *flash);
/* True if this change must fail with -ENOSPC because a snapshot leaves no space for it. */
bool flash_snapshots_refuse(struct flash *flash, enum store_op op);
