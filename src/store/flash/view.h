// SPDX-License-Identifier: Apache-2.0
/*
 * Views: what the disk had at a checkpoint, under a name; users call them snapshots. Each has a
 * tree of the map and a place in the anchor.
 *
 * Threading: on the ring of the start, but for flash_views_list(). Ownership: a request is its
 * asker's until it is done. Errors: in the request, with a sentence.
 */
#pragma once

#include "store/flash/format.h"
#include "store/kind.h"

struct flash;

enum flash_view_state {
	FLASH_VIEW_NONE,
	FLASH_VIEW_CREATING, /* the checkpoint that runs makes it */
	FLASH_VIEW_LIVE,
	FLASH_VIEW_DELETING, /* the next checkpoint forgets it; it is not read any more */
	FLASH_VIEW_STATE_COUNT
};

_Static_assert((int)FLASH_VIEWS == STORE_VIEWS_MAX, "a list has room for all");
_Static_assert((int)FLASH_VIEW_NAME_BYTES == STORE_VIEW_NAME_BYTES, "and each entry for a name");

/* What is kept of a view beside its tree. */
struct flash_view {
	enum flash_view_state state;
	/* Nodes of its tree cannot be read. The collector leaves it alone, and nobody opens it. */
	bool is_damaged;
	struct flash_view_anchor about; /* top: as of the last checkpoint */
};

struct flash_views {
	struct flash_view list[FLASH_VIEWS];
	struct store_view_request *request; /* at hand, or NULL */
	struct list_node waiting;	    /* requests behind it */
	struct ring_op turn;		    /* on its way to be done */
	bool is_prepared; /* what was answered before it is in the log, or on the way there */
	bool holds;	  /* changes wait: what came before is written, and a view made of it */
	bool is_done;	  /* the request is, but for transfers in flight */
	bool refuses;	  /* on-full=refuse, else drop */
	bool is_full;	  /* refuses: changes fail that need space */
	/* Refuses: the collector wins nothing any more. All changes fail, and flushes of what is in
	 * the cache, until a view goes. */
	bool is_stuck;
	char dropped[FLASH_VIEW_NAME_BYTES]; /* the last one that went for want of room */
};

/* A view as a store, which can only be read. Its parts are worked on with those of the disk. */
struct flash_view_store {
	struct store base;
	struct flash *flash; /* outlives it */
	uint32_t index;
	uint64_t serial; /* of the view; another one may have taken its place */
};

extern const struct store_ops flash_view_ops;
extern const struct store_kind flash_view_kind;

void flash_views_init(struct flash *flash);
/* What the anchor says of the views. */
void flash_views_recovered(struct flash *flash);
/* Not all nodes of its tree can be read: the others, and the blocks that its table tells of, stay
 * where they are until it is deleted. */
void flash_view_damaged(struct flash *flash, uint32_t index);
/* The next checkpoint forgets those of jobs, which a process before this one has made. */
void flash_views_drop_temporary(struct flash *flash);
/* Goes on with the request at hand. True: something was done. */
bool flash_views_step(struct flash *flash);
/* True when the part is one of a view that is not there any more. */
bool flash_view_has_gone(const struct store_part *part);
uint32_t flash_views_list(struct store *store, struct store_view list[STORE_VIEWS_MAX]);
/* See store_view_ask(). */
void flash_view_ask(struct store *store, struct store_view_request *request);
/* A checkpoint is wanted for a view. */
bool flash_views_want_checkpoint(const struct flash *flash);
/* A checkpoint begins: all that was answered is in what it writes. */
void flash_views_begin(struct flash *flash);
/* Fills in what the anchor is to say. */
void flash_views_encode(struct flash *flash);
/* The checkpoint is durable, or has failed; segments have not become free yet. */
void flash_views_checkpointed(struct flash *flash, int result);
/* Something that was counted in io_count has ended. */
void flash_views_io_ended(struct flash *flash);
/* A block of the disk is no longer in this segment: a view may keep it. */
void flash_views_block_dies(struct flash *flash, uint32_t segment);
/* The same when the log has been replayed. */
void flash_views_restore(struct flash *flash, uint32_t segment);
/* A block of views has moved. is_mapped: the disk has it, too. */
void flash_views_move(struct flash *flash, const struct flash_record_entry *entry, uint32_t block,
	bool is_mapped);
/* The segments that can be written to are about to become too few: drops a view, or has changes
 * refused. */
void flash_views_look(struct flash *flash);
/* The collector wins nothing any more. True: something is done about it, or changes fail that would
 * wait. False: there is no view. */
bool flash_views_relieve(struct flash *flash);
/* True: a view leaves no space for this change, which has to fail with -ENOSPC. */
bool flash_views_refuse(struct flash *flash, enum store_op op);
