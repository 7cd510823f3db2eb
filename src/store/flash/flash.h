// SPDX-License-Identifier: Apache-2.0
/*
 * The flash store: a disk kept as a log on a file or a block device, and a collector of what is no
 * longer used in it. This header is shared by the files of this folder. The format is described in
 * docs/protocol/flash.md, the design in docs/design/0023-flash.md.
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
#include "store/flash/format.h"
#include "store/flash/gc_policy.h"
#include "store/kind.h"

enum {
	FLASH_RECORDS = 8,
	FLASH_HELPERS = 64,
	FLASH_RUN_BLOCKS = 256,
	FLASH_LOG_BLOCKS = 1 << 18, /* 1 GiB of log from checkpoint to checkpoint, and in one */
	FLASH_HELD_BYTES_MIN = 32 << 10, /* of a part whose memory is written without a copy */
	FLASH_SLOTS_MIN = 64,		 /* of the map cache, beside what a replay may change */
	FLASH_RECORD_SEGMENTS = 2, /* that a record of a client may need, see flash_log_room() */
	FLASH_WEAR_SEGMENTS = 128, /* for each that is moved because of wear: less than 1 % */
	FLASH_NO_SLOT = -1,
};
#define FLASH_NO_PAGE UINT32_MAX

struct disk_info;
struct flash;

/* --- transfers ------------------------------------------------------------------------------- */

/* A read or write of whole blocks. Short transfers and interruptions are resumed. */
struct flash_io {
	struct ring_op op;
	struct flash *flash;
	union {
		struct mem_ref memory;
		struct {		      /* of a record, see flash_io_write_record() */
			struct iovec *vector; /* the first run with something to write */
			uint32_t vector_count;
			size_t vector_used; /* bytes of that run that are written */
		};
	};
	uint32_t block;
	uint64_t offset;
	size_t bytes;
	size_t done_bytes;
	uint32_t retries;
	bool is_write;
	bool has_vector;
	bool is_durable;       /* FUA */
	struct list_node node; /* while it waits for others: flash_zone_write(), flash_io_block() */
	void (*done)(struct flash_io *io, int result);
};

/* Somebody who waits for a page of the map. */
struct flash_wait {
	struct list_node node;
	void (*ready)(struct flash_wait *wait, int result);
};

/* --- the map --------------------------------------------------------------------------------- */

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

/* --- the log --------------------------------------------------------------------------------- */

struct flash_buffer {
	struct flash_record record;
	uint8_t *bytes;	      /* the header and FLASH_RECORD_ENTRIES blocks */
	uint32_t block_count; /* of them that are used */
	uint32_t node_count;  /* entries that are nodes */
	/* The record: runs of those blocks, and of blocks that are held. The same when it is
	 * written as before. */
	struct iovec vector[FLASH_RECORD_ENTRIES + 1];
	uint32_t vector_count;
	struct flash_io io;
	struct flash *flash;
	struct list_node node;	/* idle or in flight, in the order of the log */
	struct list_node parts; /* done when it is */
	struct flash_position at;
	bool is_written;
	bool wants_durable; /* one of its parts does */
};

/* After a write to the log has failed, see move.c. */
enum flash_move_state {
	FLASH_MOVE_NONE,
	FLASH_MOVE_DRAIN,	 /* records in flight end */
	FLASH_MOVE_ANCHOR_FIRST, /* the detour is written and made durable */
	FLASH_MOVE_ANCHOR_SECOND,
	FLASH_MOVE_STATE_COUNT
};

struct flash_move {
	enum flash_move_state state;
	int error;	 /* of the write */
	uint32_t to;	 /* segment */
	uint32_t count;	 /* of this run */
	bool is_waiting; /* for the anchor or the sync */
	struct flash_io io;
	uint8_t *block;
};

struct flash_log {
	struct flash_position head;   /* where the record being filled will be */
	struct flash_buffer *filling; /* or NULL */
	struct list_node idle;
	struct list_node flying; /* closed, oldest first */
	uint32_t writing_count;	 /* of them whose writes have not ended */
	struct flash_move move;
	struct flash_buffer buffers[FLASH_RECORDS];
	uint32_t flying_count;
	/* Since the last checkpoint began, but for its nodes: blocks, and records. */
	uint64_t since_checkpoint;
	uint32_t records_since_checkpoint;
	uint64_t written_seq; /* all before it are written */
	uint64_t durable_seq; /* all before it are durable */
	uint64_t before;      /* where the log of the run before ended */
	/* Of records that no later one says to be durable, at most. */
	uint32_t untold_blocks;
};

struct flash_sync {
	struct ring_op op;
	struct list_node now;
	struct list_node next;
	uint64_t seq;
	uint32_t retries;
	bool is_busy;
	bool checkpoint_now;
	bool checkpoint_next;
	bool move_now;
	bool move_next;
};

/* --- the rest -------------------------------------------------------------------------------- */

/* What is kept of a segment beside struct gc_segment. */
struct flash_segment {
	uint32_t nodes;			  /* that the levels above point at, for each tree */
	uint32_t readers;		  /* of its blocks, in flight */
	uint32_t view_valid[FLASH_VIEWS]; /* blocks that pages of the view point at */
	uint32_t begin_valid;		  /* blocks of the disk when the checkpoint at hand began */
	bool was_closed;		  /* then */
	uint32_t erases;		  /* FLASH_AVOIDED: a write to it has failed */
	bool is_bad;	  /* has blocks that cannot be read; not collected until it is empty */
	bool is_kept;	  /* the same: a damaged view has, or may have, something there */
	uint8_t zone;	  /* enum disk_zone_state, when it was opened */
	uint32_t written; /* blocks of the zone, at that time */
};

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
	uint32_t settle_count;	     /* parts of flash->settling that came before */
	bool is_asked;		     /* another one is to begin */
	bool is_waiting;	     /* for the anchor or the sync */
	struct flash_io io;
	uint8_t *block;
};

enum flash_gc_state {
	FLASH_GC_IDLE,
	FLASH_GC_HEADER,  /* the next header of the victim is to be read */
	FLASH_GC_READING, /* it, or blocks */
	FLASH_GC_SCAN,	  /* which of its blocks are valid */
	FLASH_GC_COPY,	  /* those that are have been read */
	FLASH_GC_STATE_COUNT
};

struct flash_gc {
	enum flash_gc_state state;
	uint32_t victim;
	uint32_t block; /* of the victim: of the record at hand */
	uint32_t entry; /* of the record: to look at next */
	uint32_t entry_block;
	uint32_t first; /* blocks of the record that are read: from here on */
	uint32_t end;
	bool is_waiting; /* for a page of the map, of this tree: */
	uint32_t wait_tree;
	bool reads_blocks;
	uint32_t begin_segments; /* with fewer free ones it begins */
	uint32_t enough_segments;
	uint32_t floor_segments; /* that it leaves to checkpoints */
	bool is_pressed;	 /* the last checkpoint has left fewer */
	bool is_short;		 /* it has left fewer than clients need */
	bool is_out;		 /* clients wait, and there is no victim */
	uint64_t credit;	 /* blocks that it may look at before clients have written more */
	/* Since clients last had room in the log: */
	uint32_t most_free;  /* segments behind a checkpoint */
	uint32_t vain_count; /* victims since there were as many */
	struct flash_record record;
	bool is_moved[FLASH_RECORD_ENTRIES]; /* from the cache */
	struct flash_wait wait;
	struct flash_io io;
	uint8_t *bytes; /* a header and its blocks */
};

/* Reads one run of blocks for a part, or one block of which the part wants some. */
struct flash_helper {
	struct flash_io io;
	struct flash *flash;
	struct store_part *part;
	struct list_node node;
	uint32_t segment;
	uint32_t count;	 /* blocks */
	uint32_t skip;	 /* bytes of the only block that the part does not want */
	uint32_t bytes;	 /* that it wants of it */
	uint64_t at;	 /* in the part; with the bounce buffer */
	uint64_t block;	 /* of the disk, the first one */
	uint8_t *bounce; /* a block; used when bytes > 0 */
	uint32_t crcs[FLASH_RUN_BLOCKS];
};

/* A block of which the change at hand writes a part. */
struct flash_edge {
	uint8_t *bytes;
	uint32_t crc;
	uint32_t segment;
	bool is_ready;
	struct flash_io io;
};

/* Of a host-managed device, see zone.c. */
struct flash_zones {
	uint64_t bytes;			       /* from zone to zone; 0: the device has none */
	uint64_t first;			       /* where that of the first anchors begins */
	uint32_t count;			       /* that are alike, from that one on */
	uint32_t capacity;		       /* blocks that one has room for */
	uint32_t anchor_blocks[FLASH_ANCHORS]; /* written to their zones */
	uint32_t segment;		       /* whose zone is written to, or FLASH_NO_SEGMENT */
	uint32_t blocks;		       /* of it that are written */
	struct list_node writes; /* in their order; without the one that is under way: */
	struct flash_io *writing;
	struct ring_op op; /* that finishes or resets a zone before it */
	uint32_t ends;	   /* which zone, from that of the first anchors on */
};

struct flash_erase {
	struct ring_op op;
	uint32_t segment; /* that is erased, or was the last one */
	int fd;		  /* through which the device takes it */
	bool is_block;
	bool is_wanted; /* the device has, or may have, use for it */
	uint32_t taken; /* segments begun since one was moved because it was seldom erased */
};

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

/* What the table says of a segment, while the store is opened. */
struct flash_seen {
	uint64_t stamp;
	uint32_t valid;
	bool was_free; /* at the checkpoint */
	bool in_log;   /* behind the checkpoint */
};

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
	enum gc_policy policy;

	/* Of the start. */
	struct store_start *start;
	struct ring *ring;
	struct ring_op start_op;
	int start_result;
	bool is_starting;
	/* Started, and nothing is written before the first part, as struct store_start says. */
	bool is_quiet;
	bool is_closing;	   /* there is no ring any more */
	bool has_ended;		   /* flash_end() */
	struct list_node blocking; /* transfers of the end */
	bool start_has_ended;	   /* but for transfers in flight */

	struct flash_map map;
	struct flash_log log;
	struct flash_sync sync;
	struct flash_checkpoint checkpoint;
	struct flash_gc gc;
	struct flash_zones zones;
	struct flash_erase erase;
	struct gc_table table;
	struct flash_cache cache;
	struct flash_segment *segments;
	struct flash_views views;
	struct flash_helper helpers[FLASH_HELPERS];
	struct list_node helpers_idle;
	struct list_node hoping;   /* reads for which none was idle */
	struct list_node changes;  /* in the order of their arrival */
	struct list_node settling; /* flushes that wait for a checkpoint */
	struct flash_edge edges[2];
	struct flash_wait change_wait;
	bool change_waits;    /* for a page, or an edge */
	uint64_t changed_seq; /* all that changes have appended is in records before it */
	struct ring_op turn;  /* to go on with a change that is long */
	int failed;	      /* negative errno: changes fail */
	/* What recovery has found from this byte on, where the log ends: so many records that were
	 * durable; or the error with which it cannot be read. */
	uint64_t lost_at;
	uint64_t lost_records;
	int lost_error;
	uint32_t repairs;	  /* enum store_repair */
	uint32_t twins_used;	  /* nodes of which only the second copy could be read */
	bool is_table_damaged;	  /* the table of segments was, and is counted anew */
	struct flash_holes holes; /* pages of the disk that cannot be found or read */
	/* What a repair has done: pages that are linked again as they were, those that were put
	 * together from changes, and those of which there is nothing. */
	uint32_t linked_pages;
	struct flash_holes patched;
	struct flash_holes emptied;

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

/* A view as a store, which can only be read. Its parts are worked on with those of the disk. */
struct flash_view_store {
	struct store base;
	struct flash *flash; /* outlives it */
	uint32_t index;
	uint64_t serial; /* of the view; another one may have taken its place */
};

extern const struct store_ops flash_view_ops;
extern const struct store_kind flash_view_kind;

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
/* True while there is somebody to work for. */
static inline bool flash_may_work(const struct flash *flash)
{
	return flash->is_starting || flash->is_closing || flash->part_count > flash->held_count ||
	       (flash->views.request != NULL ? !flash->views.is_done
					     : !list_is_empty(&flash->views.waiting));
}

/* --- read.c ---------------------------------------------------------------------------------- */

/* Goes on with a read, or with extents, whose scratch is set. */
void flash_read_step(struct store_part *part);
void flash_extents_step(struct store_part *part);
/* Parts that waited for a helper or a slot try again. True: there was one. */
bool flash_reads_resume(struct flash *flash);

/* --- io.c ------------------------------------------------------------------------------------ */

/* The part is done, from the next batch on; perhaps it is held back. */
void flash_finish(struct store_part *part, int result);
/* Something that was counted in io_count has ended: parts that were held back for it are done. */
void flash_io_ended(struct flash *flash);
/* bytes and offset are whole blocks. done is called once, not from inside. */
void flash_io_start(struct flash *flash, struct flash_io *io, bool is_write, struct mem_ref memory,
	uint64_t block, size_t bytes, void (*done)(struct flash_io *io, int result));
/* Writes the runs of blocks at io->vector one after the other; they and the vector are held. The
 * vector is as before when done is called. */
void flash_io_write_record(struct flash *flash, struct flash_io *io, uint64_t block, size_t bytes,
	void (*done)(struct flash_io *io, int result));
/* For writes to zones, whose turn has come: starts it, or, with an error, lets it end with that. */
void flash_io_issue(struct flash *flash, struct flash_io *io, int error);
/* While the store is closed: what was started next, a transfer or a sync. Blocks. False: there is
 * nothing. */
bool flash_io_block(struct flash *flash);
/* The part is done when all that was written before is durable. */
void flash_sync_part(struct flash *flash, struct store_part *part);
/* The same for the checkpoint, which goes on. */
void flash_sync_checkpoint(struct flash *flash);
/* The same for a move of the log. */
void flash_sync_move(struct flash *flash);
/* The first of both anchors, or the second. The block is held. */
void flash_anchor_write(struct flash *flash, struct flash_io *io, uint8_t *block, bool is_first,
	void (*done)(struct flash_io *io, int result));

/* --- map.c ----------------------------------------------------------------------------------- */

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
/* What a record that is written changes. */
void flash_map_apply(struct flash *flash, const struct flash_record_entry *entry, uint32_t block);
/* Where a node is now. */
void flash_map_set_node(struct flash *flash, uint32_t tree, uint32_t level, uint32_t index,
	struct flash_entry entry);
/* Adds the nodes of a tree, as its levels say, to those of their segments, or takes them away. */
void flash_map_count_nodes(struct flash *flash, uint32_t tree, int32_t each);
/* Forgets the pages of a tree, none of which is dirty. Who waits for one gets -ESTALE. */
void flash_map_forget(struct flash *flash, uint32_t tree);

/* --- log.c ----------------------------------------------------------------------------------- */

void flash_log_init(struct flash *flash, uint8_t *memory);
uint64_t flash_log_bytes(void);
/* True: so many entries, each with a block, can be appended now to one record. is_own: the store's
 * own, for which there is always room. May close the record being filled. */
bool flash_log_room(struct flash *flash, uint32_t entries, bool is_own);
/* data: a block; NULL: zeroes, or there is none. It is copied, or, if is_held, written from where
 * it is: then it is memory that the disk can be written from, and stays as it is until the record
 * has been retired, which flash_log_add_part() tells. The page of the map is dirty. */
void flash_log_append(struct flash *flash, const struct flash_record_entry *entry,
	const uint8_t *data, bool is_held);
/* Entries with a block that go into the record being filled, or, without room there, into the next
 * one as long as it need not be in another segment than it would be. > 0. */
uint32_t flash_log_fit(const struct flash *flash);
/* The part is done when all that was appended before is written, or never will be. Its result is
 * that of its scratch, unless writing fails. */
void flash_log_add_part(struct flash *flash, struct store_part *part);
/* Writes what is being filled. */
void flash_log_close(struct flash *flash);
/* The same, if a part waits for it and it is not better to let more gather in it. */
void flash_log_kick(struct flash *flash);
/* More has become durable: says so in the log, if much depends on it and no other record will. */
void flash_log_tell(struct flash *flash);
/* A free segment, which is open then. FLASH_NO_SEGMENT: there is none. */
uint32_t flash_take_segment(struct flash *flash);
/* True when nothing is being filled or in flight. */
static inline bool flash_log_is_idle(const struct flash *flash)
{
	return flash->log.filling == NULL && flash->log.flying_count == 0;
}
/* Writes a record that is closed and has its place. */
void flash_log_write(struct flash *flash, struct flash_buffer *buffer);
/* After flash_fail(): records that are not being written fail. */
void flash_log_abandon(struct flash *flash);
/* From now on changes fail. */
void flash_fail(struct flash *flash, int error, const char *what);

/* --- move.c ---------------------------------------------------------------------------------- */

/* The medium has failed at a place, as far as the kernel says; other places may do. */
bool flash_is_of_medium(int error);
/* True: it and all behind it will be written elsewhere. False: the log has failed. */
bool flash_move_begin(struct flash *flash, const struct flash_buffer *buffer, int error);
/* Returns true when something was done. */
bool flash_move_step(struct flash *flash);
void flash_move_synced(struct flash *flash, int result);
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

/* --- change.c -------------------------------------------------------------------------------- */

/* Goes on with changes. Returns true when something was done. */
bool flash_changes_step(struct flash *flash);
void flash_changes_init(struct flash *flash);

/* --- checkpoint.c, gc.c ---------------------------------------------------------------------- */

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
/* Appends such a page. False: there is no room in the log at present. */
bool flash_checkpoint_append(struct flash *flash, struct flash_slot *slot);

void flash_gc_init(struct flash *flash);
/* Returns true when something was done. */
bool flash_gc_step(struct flash *flash);
/* Clients have written so many blocks. */
void flash_gc_credit(struct flash *flash, uint32_t blocks);
/* A checkpoint has ended, and segments have become free. */
void flash_gc_checkpointed(struct flash *flash);
/* Clients have room in the log, or there is more to win: what was in vain does not count. */
static inline void flash_gc_hope(struct flash *flash)
{
	flash->gc.most_free = 0;
	flash->gc.vain_count = 0;
}

/* --- erase.c --------------------------------------------------------------------------------- */

/* fd: what discards go through. is_read_only is known. */
void flash_erase_init(struct flash *flash, const struct disk_info *disk, int fd);
/* After recovery: has those of the free segments of a file erased that have something, but for its
 * spare space. Blocks. */
void flash_erase_found(struct flash *flash);
/* The victim is free, or will be when it is erased. Nothing durable refers to it. */
void flash_erase(struct flash *flash, uint32_t segment);
/* Returns true when something was done. */
bool flash_erase_step(struct flash *flash);
/* A segment that was erased so much less often than the others that what is in it should be moved,
 * or GC_NO_SEGMENT. At most one of FLASH_WEAR_SEGMENTS that are written. */
uint32_t flash_wear_victim(struct flash *flash);
/* After a checkpoint: how often segments were erased. */
void flash_wear_count(struct flash *flash);
/* Segments that are free, or will be without anybody's doing. */
static inline uint32_t flash_free_soon(const struct flash *flash)
{
	return flash->table.state_counts[GC_FREE] + flash->table.state_counts[GC_ERASING];
}

/* --- view.c ---------------------------------------------------------------------------------- */

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

/* --- zone.c ---------------------------------------------------------------------------------- */

static inline bool flash_has_zones(const struct flash *flash)
{
	return flash->zones.bytes > 0;
}

/* Finds the zones that a store would use; bytes is 0 on a device without any. Blocks. -ENOTSUP,
 * -EINVAL: they do not suit. */
GMB_MUST_CHECK int flash_zones_find(
	int fd, const char *path, struct flash_zones *zones, struct error *error);
/* Where the zone of a segment begins. */
uint64_t flash_zone_offset(const struct flash *flash, uint32_t segment);
/* Where a block is, of a segment if the device has zones. */
uint64_t flash_block_offset(const struct flash *flash, uint32_t block);
/* The last anchor that was written to the first or the second place; zeroes: none. Blocks. */
GMB_MUST_CHECK int flash_anchor_read(
	int fd, struct flash_zones *zones, uint32_t anchor, uint8_t *block);
/* Blocks of one segment, before the store is started; zeroes where a zone has not been written.
 * Blocks. */
GMB_MUST_CHECK int flash_read(struct flash *flash, uint32_t block, uint32_t count, void *bytes);
/* What the zones of the segments have; nothing without zones. Blocks. */
GMB_MUST_CHECK int flash_zones_load(struct flash *flash);
/* After recovery: finishes the zones that the log will not go on in, and resets free ones. Blocks.
 */
GMB_MUST_CHECK int flash_zones_prepare(struct flash *flash, struct error *error);
/* The same after another process has settled, which may still go on: nothing is written, the zones
 * are finished and reset when the log goes on. -EBUSY, -ENOSPC: it cannot be taken as it is. */
GMB_MUST_CHECK int flash_zones_take(struct flash *flash, struct error *error);
/* Writes in the order of these calls, one at a time. */
void flash_zone_write(struct flash *flash, struct flash_io *io);
/* One has ended; its done is called after this, and flash_zone_next() after that. */
void flash_zone_written(struct flash *flash, const struct flash_io *io);
void flash_zone_next(struct flash *flash);
/* While the store is closed: gives the write its place. Blocks. */
GMB_MUST_CHECK int flash_zone_write_now(struct flash *flash, struct flash_io *io);

/* --- recover.c ------------------------------------------------------------------------------- */

/* Reads the anchors of the disk whose fd and path are set. -EINVAL with a sentence. Blocks. */
GMB_MUST_CHECK int flash_anchors_read(struct flash *flash, struct error *error);
/* Restores map and tables; a view whose tree is damaged is marked. -EUCLEAN when the map of the
 * disk is damaged; and unless is_read_only, when flash_has_loss(): the map is that before the loss.
 * Blocks; on a worker thread. */
GMB_MUST_CHECK int flash_recover(struct flash *flash, struct error *error);

/* --- tree.c ---------------------------------------------------------------------------------- */

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

/* --- create.c -------------------------------------------------------------------------------- */

GMB_MUST_CHECK int flash_create_check(const struct store_create *create, struct error *error);
GMB_MUST_CHECK int flash_create(
	const char *path, const struct store_create *create, struct error *error);
GMB_MUST_CHECK int flash_check(
	const char *path, struct store_check *check, bool *recognized, struct error *error);
