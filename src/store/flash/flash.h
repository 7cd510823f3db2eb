// SPDX-License-Identifier: Apache-2.0
/*
 * The flash store: a disk kept as a log on a file or a block device, and a collector of what is no
 * longer used in it. The format is described in docs/protocol/flash.md, the design in
 * docs/design/0023-flash.md. This header has the store as a whole, and its parts; each of these has
 * what others need of one thing, and the rest is in the .c files:
 *
 *   format.h      what is on the device         cache.h    the write cache
 *   io.h          transfers, zones, syncs       gc.h       segments: collecting, erasing, wear
 *   log.h         records, and moves of them    view.h     snapshots
 *   map.h         where each block is           recover.h  opening, and damage
 *   checkpoint.h  the map goes to the log
 *
 *   write, trim ─▶ changes ─▶ record being filled ─▶ records in flight ─▶ map, done
 *   small write ─▶ changes ─▶ write cache, done
 *   read        ─▶ map ─▶ helpers, one for each run of blocks ─▶ checksums ─▶ done
 *   flush, FUA  ─▶ sync: one fdatasync for all that wait
 *   collector   ─▶ a victim's headers, its valid blocks ─▶ record being filled
 *   checkpoint  ─▶ changed nodes ─▶ records ─▶ sync ─▶ both anchors ─▶ erase ─▶ free segments
 *
 * Work goes on only while a part is in the store: the last one is held back until nothing is in
 * flight, so that queues and rings can end as soon as all parts are done. flash_pump() looks what
 * can go on, and is called after everything that happens.
 *
 * Threading: all on the ring of the start, but for the recovery, which has the store for itself on
 * a worker thread. Ownership: the budget of the start holds all tables and buffers; the file store
 * below holds the descriptors and the claim. Errors: as store.h. After a write to the log has
 * failed, and could not be moved (move.c), all changes fail until the store is opened anew: what
 * follows in the log would be cut off.
 */
#pragma once

#include "store/flash/cache.h"
#include "store/flash/checkpoint.h"
#include "store/flash/format.h"
#include "store/flash/gc.h"
#include "store/flash/io.h"
#include "store/flash/log.h"
#include "store/flash/map.h"
#include "store/flash/recover.h"
#include "store/flash/view.h"
#include "store/kind.h"

struct flash_counters {
	uint64_t written_blocks; /* by clients */
	uint64_t cached_blocks;	 /* of those, to the cache */
	uint64_t moved_blocks;	 /* read from the disk */
	uint64_t cache_moved_blocks;
	uint64_t written_back_blocks;
	uint64_t evicted_blocks;
	uint64_t flushed_blocks;
	uint64_t dirty_pages;
	uint64_t node_blocks;
	uint64_t header_blocks;
	uint64_t checkpoints;
	uint64_t map_misses;
	uint64_t checksum_errors;
	uint64_t erased_segments;
	uint64_t erases_min; /* of all segments, as of the last checkpoint */
	uint64_t erases_mean;
	uint64_t erases_max;
	uint64_t free_segments;
	uint64_t log_moves;
	uint64_t avoided_segments;
	uint64_t snapshot_blocks;
	uint64_t snapshots_dropped;
};

struct flash {
	struct store base;
	struct store *below;
	struct ring_file file;
	int fd;
	char *path;
	uint64_t identity[2]; /* of the disk, see struct disk_info */
	uint32_t memory_align;
	bool is_read_only;
	bool ignores_dsync; /* as in struct disk_info */
	struct flash_anchor anchor;
	uint32_t good_anchor; /* the one that it was read from */
	uint32_t slot_count;
	const struct gc_rule *rule; /* NULL: gc_rule_auto */

	/* Of the start. */
	struct store_start *start;
	struct ring *ring;
	struct ring_op start_op;
	int start_result;
	bool is_starting;
	/* Started, and nothing is written before the first part, as struct store_start says. */
	bool is_quiet;
	bool is_closing;      /* there is no ring any more */
	bool has_ended;	      /* flash_end() */
	bool start_has_ended; /* but for transfers in flight */

	/* What the headers of these files show to others. */
	struct flash_map map;
	struct flash_log log;
	struct flash_checkpoint checkpoint;
	struct flash_zones zones;
	struct flash_segment *segments;
	struct gc_table table;
	struct flash_erase erase;
	struct flash_cache cache;
	struct flash_views views;
	struct flash_damage damage;
	/* What no other file knows: of change.c, gc.c, io.c and read.c. */
	struct flash_changes *change;
	struct flash_gc *gc;
	struct flash_sync *sync;
	struct flash_reads *reads;
	uint8_t *record_bytes; /* a header and its blocks: of the recovery, and of the collector */

	struct list_node changes; /* parts, in the order of their arrival */
	int failed;		  /* negative errno: changes fail */
	bool has_hope; /* clients have room in the log, or there is more to win: what the collector
			* has done in vain does not count */
	bool is_out;   /* clients wait, and the collector finds no victim */
	uint32_t part_count;
	uint32_t held_count;
	uint32_t io_count;
	struct list_node held;
	bool is_pumping;
	bool pump_again;
	struct flash_counters counters;
};

/* Of a part. */
struct flash_scratch {
	uint64_t done_bytes;
	uint64_t counter; /* flush: that of the last page that it is for */
	struct flash_wait wait;
	int result;
	uint32_t tree;
	uint32_t pending; /* helpers that read for it; pages that were read for its extents */
	bool is_waiting;  /* for a page, a slot or a helper */
	bool is_logged;	  /* a write: its first blocks are in records, which hold its memory */
};

static inline struct flash_scratch *flash_scratch_of(struct store_part *part)
{
	return (struct flash_scratch *)(void *)part->scratch;
}

static inline struct flash *flash_of(const struct store_part *part)
{
	struct store *store = part->queue->store;

	return store->ops == &flash_view_ops
		       ? container_of(store, struct flash_view_store, base)->flash
		       : container_of(store, struct flash, base);
}

/* Nothing refers to what is in it: neither a tree nor, as of the last checkpoint, the log. */
static inline bool flash_segment_is_empty(const struct flash *flash, uint32_t index)
{
	const struct flash_segment *segment = &flash->segments[index];

	return flash->table.segments[index].valid == 0 && segment->nodes == 0 &&
	       segment->view_valid[0] == 0 && segment->view_valid[1] == 0;
}

static inline bool flash_is_avoided(const struct flash *flash, uint32_t index)
{
	return flash->segments[index].erases == FLASH_AVOIDED;
}

/* --- flash.c --------------------------------------------------------------------------------- */

/* Looks what can go on. Anywhere on the ring. */
void flash_pump(struct flash *flash);
/* A flush whose scratch is set. */
void flash_flush(struct flash *flash, struct store_part *part);
/* Before a part, or what else is asked of the store: from here on it writes. */
void flash_wake(struct flash *flash);
/* How many pages of the map are kept with so much memory; 0: the default. */
uint32_t flash_slot_count(const struct flash_geometry *geometry, uint64_t map_memory);
/* Bytes of memory that flash_init() divides; anchor and slot_count are known. */
uint64_t flash_budget(struct flash *flash);
void flash_init(struct flash *flash, uint8_t *memory);
/* The part is done, from the next batch on; perhaps it is held back. */
void flash_finish(struct store_part *part, int result);
/* Something that was counted in io_count has ended: parts that were held back for it are done. */
void flash_io_ended(struct flash *flash);
/* From now on changes fail. */
void flash_fail(struct flash *flash, int error, const char *what);

/* --- read.c, change.c ------------------------------------------------------------------------ */

uint64_t flash_reads_bytes(void);
void flash_reads_init(struct flash *flash, uint8_t *memory);
/* Goes on with a read, or with extents, whose scratch is set. */
void flash_read_step(struct store_part *part);
void flash_extents_step(struct store_part *part);
/* Parts that waited for a helper or a slot try again. True: there was one. */
bool flash_reads_resume(struct flash *flash);
uint64_t flash_changes_bytes(void);
void flash_changes_init(struct flash *flash, uint8_t *memory);
/* Goes on with changes. Returns true when something was done. */
bool flash_changes_step(struct flash *flash);

/* --- create.c -------------------------------------------------------------------------------- */

GMB_MUST_CHECK int flash_create_check(const struct store_create *create, struct error *error);
GMB_MUST_CHECK int flash_create(
	const char *path, const struct store_create *create, struct error *error);
GMB_MUST_CHECK int flash_check(
	const char *path, struct store_check *check, bool *recognized, struct error *error);

/* --- short questions ------------------------------------------------------------------------- */

/* True while there is somebody to work for. */
static inline bool flash_may_work(const struct flash *flash)
{
	return flash->is_starting || flash->is_closing || flash->part_count > flash->held_count ||
	       (flash->views.request != NULL ? !flash->views.is_done
					     : !list_is_empty(&flash->views.waiting));
}
/* True while the view is there, and can be read and moved. */
static inline bool flash_view_is_live(const struct flash *flash, uint32_t index)
{
	const struct flash_view *view = &flash->views.list[index];

	return view->state == FLASH_VIEW_LIVE && !view->is_damaged;
}
/* The same of a tree; that of the disk is always there. */
static inline bool flash_tree_is_live(const struct flash *flash, uint32_t tree)
{
	return tree == 0 || flash_view_is_live(flash, tree - 1);
}
static inline bool flash_has_zones(const struct flash *flash)
{
	return flash->zones.bytes > 0;
}
/* The number of the page that has this block of the disk. */
static inline uint32_t flash_page_of(const struct flash *flash, uint32_t tree, uint64_t lpn)
{
	return tree * flash->anchor.geometry.page_count + (uint32_t)(lpn / FLASH_NODE_ENTRIES);
}
/* Where the page is on the disk. */
static inline struct flash_entry flash_page_entry(const struct flash *flash, uint32_t page)
{
	uint32_t count = flash->anchor.geometry.page_count;

	return page < count ? flash->map.trees[0].levels[0][page]
			    : flash->map.trees[page / count].levels[0][page % count];
}
/* Nothing of the page is on the disk, nor in memory. */
static inline bool flash_map_is_empty(struct flash *flash, uint32_t page)
{
	return flash_page_entry(flash, page).block == 0 && flash_map_find(flash, page) == NULL;
}
/* True when nothing is being filled or in flight. */
static inline bool flash_log_is_idle(const struct flash *flash)
{
	return flash->log.filling == NULL && flash->log.flying_count == 0;
}
/* Records that are closed wait for the move. */
static inline bool flash_move_runs(const struct flash *flash)
{
	return flash->log.move.state != FLASH_MOVE_NONE;
}
/* It writes anchors. */
static inline bool flash_move_anchors(const struct flash *flash)
{
	return flash->log.move.state == FLASH_MOVE_ANCHOR_FIRST ||
	       flash->log.move.state == FLASH_MOVE_ANCHOR_SECOND;
}
static inline bool flash_checkpoint_runs(const struct flash *flash)
{
	return flash->checkpoint.state != FLASH_CHECKPOINT_NONE;
}
/* Changes wait: for records before the checkpoint, or for the first one of a run, without which a
 * start would not find them. */
static inline bool flash_checkpoint_blocks(const struct flash *flash)
{
	return flash->checkpoint.state == FLASH_CHECKPOINT_DRAIN ||
	       (flash_checkpoint_runs(flash) && flash->counters.checkpoints == 0);
}
/* The page was changed before the checkpoint at hand began, which has not appended it yet. */
static inline bool flash_slot_is_old(const struct flash *flash, const struct flash_slot *slot)
{
	return slot->state == FLASH_SLOT_DIRTY && slot->round != flash->map.round;
}
/* Segments that are free, or will be without anybody's doing. */
static inline uint32_t flash_free_soon(const struct flash *flash)
{
	return flash->table.state_counts[GC_FREE] + flash->table.state_counts[GC_ERASING];
}
