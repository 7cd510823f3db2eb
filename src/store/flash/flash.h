// SPDX-License-Identifier: Apache-2.0
/*
 * The flash store: a disk that is stored as a log in a file or on a block device, with garbage
 * collection of the blocks that are no longer in use. docs/protocol/flash.md describes the format,
 * docs/design/0023-flash.md the design.
 *
 * This header declares the store as a whole and includes its parts. The header of a part declares
 * the functions and state that other files of this folder need; everything else is private to a .c
 * file:
 *
 *   format.h      encoding of the disk       cache.h    write cache
 *   io.h          transfers, zones, syncs    gc.h       garbage collection, erasing, wear
 *   log.h         records, log moves         snapshot.h     snapshots
 *   map.h         position of each block     recover.h  opening, damage
 *   checkpoint.h  writing the map to the log
 *
 *   write, trim ─▶ changes ─▶ record being filled ─▶ records in flight ─▶ map, done
 *   small write ─▶ changes ─▶ write cache, done
 *   read        ─▶ map ─▶ one helper for each run of blocks ─▶ checksums ─▶ done
 *   flush, FUA  ─▶ sync: one fdatasync for all waiting parts
 *   collector   ─▶ headers and live blocks of a victim ─▶ record being filled
 *   checkpoint  ─▶ changed nodes ─▶ records ─▶ sync ─▶ both anchors ─▶ erase ─▶ free segments
 *
 * Invariant: the store starts I/O only while flash_may_work(), or to move or rewrite the end of the
 * log. The last part completes only when no I/O is in flight, because queues and rings may be
 * destroyed as soon as all parts are done. flash_pump() runs the work that has become possible;
 * call it after every event.
 *
 * Threading: everything runs on the owner ring, except recovery, which has the store to itself on a
 * worker thread. Ownership: all tables and buffers are in the memory that the start allocates; the
 * file store below holds the descriptors and the claim. Errors: as in store.h. If a write to the
 * log fails and the log cannot be moved (move.c), all changes fail until the store is opened again,
 * because recovery would discard everything after the gap in the log.
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
#include "store/flash/snapshot.h"
#include "store/kind.h"

struct flash_counters {
	uint64_t written_blocks; /* written by clients */
	uint64_t cached_blocks;	 /* the part of written_blocks that was written to the cache */
	/* number of blocks that garbage collection read from the device and moved */
	uint64_t moved_blocks;
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
	uint64_t erases_min; /* erase counts of all segments at the last checkpoint */
	uint64_t erases_mean;
	uint64_t erases_max;
	uint64_t free_segments;
	uint64_t log_moves;
	uint64_t log_rewrites;
	uint64_t avoided_segments;
	uint64_t snapshot_blocks;
	uint64_t snapshots_dropped;
};

struct flash {
	struct store base;
	struct store *below;
	struct ring_file file;
	int fd;
	/* Descriptor for reads past the page cache, open until the store has started. Equal to fd
	 * if such reads are impossible or not needed. */
	int disk_fd;
	char *path;
	uint64_t identity[2]; /* identity of the disk, see struct disk_info */
	uint32_t memory_align;
	bool is_read_only;
	/* True if durable writes use RWF_DSYNC. False with the page cache: if a write and an
	 * fdatasync overlap there, the first one that ends receives the error of both. */
	bool has_dsync;
	struct flash_anchor anchor;
	/* number of the anchor that was read (0 or 1), which is overwritten last */
	uint32_t good_anchor;
	uint32_t slot_count;
	const struct gc_rule *rule; /* NULL until flash_init(): gc_rule_auto */

	/* State of the start, see store_start(). */
	struct store_start *start;
	struct ring *ring;
	struct ring_op start_op;
	int start_result;
	bool is_starting;
	/* The store has started, but must not write before its first part
	 * (store_start.is_quiet). */
	bool is_quiet;
	bool is_closing;      /* flash_end() is running, without a ring: all I/O blocks */
	bool has_ended;	      /* flash_end() has run */
	bool start_has_ended; /* the first checkpoint is complete, transfers may be in flight */

	/* State of the other files of this folder, declared in their headers. */
	struct flash_map map;
	struct flash_log log;
	struct flash_checkpoint checkpoint;
	struct flash_zones zones;
	struct flash_segment *segments;
	struct gc_table table;
	struct flash_erase erase;
	struct flash_cache cache;
	struct flash_snapshots snapshots;
	struct flash_damage damage;
	/* State that is private to change.c, gc.c, io.c, redo.c and read.c. */
	struct flash_changes *change;
	struct flash_gc *gc;
	struct flash_sync *sync;
	struct flash_redo *redo;
	struct flash_reads *reads;
	/* Buffer for one record: used by recovery, later by the garbage collector. */
	uint8_t *record_bytes;

	struct list_node changes; /* queued writes, trims and zeroes, in order of arrival */
	int failed;		  /* negative errno with which all changes fail; 0: none */
	/* Set when a client gets room in the log or a snapshot is deleted: the garbage collector
	 * then resets its count of victims that freed no space. */
	bool has_hope;
	bool is_out; /* clients wait for space, and the garbage collector finds no victim */
	/* Number of parts in the store, including those in `held`. */
	uint32_t part_count;
	/* Number of parts in `held`. */
	uint32_t held_count;
	/* Number of operations in flight: transfers, syncs, calls on worker threads, deferred
	 * turns. */
	uint32_t io_count;
	/* Finished parts that complete when io_count is 0, see flash_finish(). */
	struct list_node held;
	bool is_pumping;
	bool pump_again;
	struct flash_counters counters;
};

/* The flash store's private data in a part (store_part.scratch). */
struct flash_scratch {
	uint64_t done_bytes;
	uint64_t counter; /* flush: counter of the newest page that the flush covers */
	struct flash_wait wait;
	int result;
	uint32_t tree;
	/* read: number of helpers (struct flash_helper) that work for the part; extents: number of
	 * map pages that are being read for it */
	uint32_t pending;
	bool is_waiting; /* the part waits for a map page, a free slot for one, or an idle helper */
	/* write: the first blocks are in records that refer to the part's memory */
	bool is_logged;
};

static inline struct flash_scratch *flash_scratch_of(struct store_part *part)
{
	return (struct flash_scratch *)(void *)part->scratch;
}

static inline struct flash *flash_of(const struct store_part *part)
{
	struct store *store = part->queue->store;

	return store->ops == &flash_snapshot_ops
		       ? container_of(store, struct flash_snapshot_store, base)->flash
		       : container_of(store, struct flash, base);
}

/* True if no tree refers to a block of the segment: neither data nor nodes, of the disk or a
 * snapshot. Such a segment may still be needed by the log since the last checkpoint. */
static inline bool flash_segment_is_empty(const struct flash *flash, uint32_t index)
{
	const struct flash_segment *segment = &flash->segments[index];

	return flash->table.segments[index].valid == 0 && segment->nodes == 0 &&
	       segment->snapshot_valid[0] == 0 && segment->snapshot_valid[1] == 0;
}

static inline bool flash_is_avoided(const struct flash *flash, uint32_t index)
{
	return flash->segments[index].erases == FLASH_AVOIDED;
}

/* --- flash.c --------------------------------------------------------------------------------- */

/* Runs all steps that can make progress, until none can. Called on the ring after every event. A
 * nested call makes the running one start again with the first step. */
void flash_pump(struct flash *flash);
/* Runs a flush whose scratch is initialized. flash_finish() completes the flush. Called again for a
 * STORE_QUIESCE flush once the cache is clean. */
void flash_flush(struct flash *flash, struct store_part *part);
/* Ends the phase in which the store must not write (is_quiet), if it is in this phase: begins the
 * log with a checkpoint. Called before the first request that is not a flush. Without a free
 * segment the store fails with -ENOSPC. */
void flash_wake(struct flash *flash);
/* Returns the number of map pages that map_memory bytes can hold, within the limits of the
 * geometry. map_memory == 0: the default. */
uint32_t flash_slot_count(const struct flash_geometry *geometry, uint64_t map_memory);
/* Returns the size of the memory that flash_init() divides. anchor and slot_count must be set. */
uint64_t flash_budget(struct flash *flash);
void flash_init(struct flash *flash, uint8_t *memory);
/* Completes the part in the ring's next batch. The last part in the store is held back
 * while I/O is in flight. */
void flash_finish(struct store_part *part, int result);
/* Ends one operation that was counted in io_count. Completes the start and the parts in `held` once
 * no operation is in flight. */
void flash_io_ended(struct flash *flash);
/* Logs error and makes all later changes fail with it. Later calls have no effect. what: the
 * clause of the message that names the fault. */
void flash_fail(struct flash *flash, int error, const char *what);

/* --- read.c, change.c ------------------------------------------------------------------------ */

uint64_t flash_reads_bytes(void);
void flash_reads_init(struct flash *flash, uint8_t *memory);
/* Continues a read, or an extents part, whose scratch is initialized. */
void flash_read_step(struct store_part *part);
void flash_extents_step(struct store_part *part);
/* Retries parts that waited for a helper or a map slot. Returns true if there were any
 * and a helper is idle. */
bool flash_reads_resume(struct flash *flash);
uint64_t flash_changes_bytes(void);
void flash_changes_init(struct flash *flash, uint8_t *memory);
/* Continues the queued changes. Returns true if there was progress. */
bool flash_changes_step(struct flash *flash);

/* --- create.c -------------------------------------------------------------------------------- */

GMB_MUST_CHECK int flash_create_check(const struct store_create *create, struct error *error);
GMB_MUST_CHECK int flash_create(
	const char *path, const struct store_create *create, struct error *error);
GMB_MUST_CHECK int flash_check(
	const char *path, struct store_check *check, bool *recognized, struct error *error);

/* --- predicates and lookups ------------------------------------------------------------------ */

/* True while a part, a start, a shutdown or a snapshot request needs work. Otherwise only moves and
 * rewrites of the end of the log may start operations. */
static inline bool flash_may_work(const struct flash *flash)
{
	return flash->is_starting || flash->is_closing || flash->part_count > flash->held_count ||
	       (flash->snapshots.request != NULL ? !flash->snapshots.is_done
						 : !list_is_empty(&flash->snapshots.waiting));
}
/* True if the snapshot exists, and its blocks can be read and moved. */
static inline bool flash_snapshot_is_live(const struct flash *flash, uint32_t index)
{
	const struct flash_snapshot *snapshot = &flash->snapshots.list[index];

	return snapshot->state == FLASH_SNAPSHOT_LIVE && !snapshot->is_damaged;
}
/* True if the tree's blocks can be read and moved. Always true for the disk (tree 0). */
static inline bool flash_tree_is_live(const struct flash *flash, uint32_t tree)
{
	return tree == 0 || flash_snapshot_is_live(flash, tree - 1);
}
static inline bool flash_has_zones(const struct flash *flash)
{
	return flash->zones.bytes > 0;
}
/* Returns the number of the map page that covers block lpn, in this tree. */
static inline uint32_t flash_page_of(const struct flash *flash, uint32_t tree, uint64_t lpn)
{
	return tree * flash->anchor.geometry.page_count + (uint32_t)(lpn / FLASH_NODE_ENTRIES);
}
/* Returns the address and checksum of the page's node on the device; zeroes without a node. */
static inline struct flash_entry flash_page_entry(const struct flash *flash, uint32_t page)
{
	uint32_t count = flash->anchor.geometry.page_count;

	return page < count ? flash->map.trees[0].levels[0][page]
			    : flash->map.trees[page / count].levels[0][page % count];
}
/* True if the page is neither on the device nor in memory: its whole range reads as zeroes. */
static inline bool flash_map_is_empty(struct flash *flash, uint32_t page)
{
	return flash_page_entry(flash, page).block == 0 && flash_map_find(flash, page) == NULL;
}
/* True if no record is being filled or in flight. */
static inline bool flash_log_is_idle(const struct flash *flash)
{
	return flash->log.filling == NULL && flash->log.flying_count == 0;
}
/* True while the log is being moved to another segment after a failed write. Closed records are
 * written when the move is complete. */
static inline bool flash_move_runs(const struct flash *flash)
{
	return flash->log.move.state != FLASH_MOVE_NONE;
}
/* True while a move of the log writes anchors; a checkpoint must not write its own at the same
 * time. */
static inline bool flash_move_anchors(const struct flash *flash)
{
	return flash->log.move.state == FLASH_MOVE_ANCHOR_FIRST ||
	       flash->log.move.state == FLASH_MOVE_ANCHOR_SECOND;
}
static inline bool flash_checkpoint_runs(const struct flash *flash)
{
	return flash->checkpoint.state != FLASH_CHECKPOINT_NONE;
}
/* True if changes must wait. When a checkpoint begins, they wait for the records in flight. In the
 * first checkpoint of a run they wait until it is complete, because before that, recovery would not
 * find their records. */
static inline bool flash_checkpoint_blocks(const struct flash *flash)
{
	return flash->checkpoint.state == FLASH_CHECKPOINT_DRAIN ||
	       (flash_checkpoint_runs(flash) && flash->counters.checkpoints == 0);
}
/* True if the page was changed before the checkpoint in progress began, and that checkpoint has
 * not appended it yet. */
static inline bool flash_slot_is_old(const struct flash *flash, const struct flash_slot *slot)
{
	return slot->state == FLASH_SLOT_DIRTY && slot->round != flash->map.round;
}
/* Number of segments that are free, or will be as soon as their discard completes. */
static inline uint32_t flash_free_soon(const struct flash *flash)
{
	return flash->table.state_counts[GC_FREE] + flash->table.state_counts[GC_ERASING];
}
