// SPDX-License-Identifier: Apache-2.0
/*
 * The on-disk format of a flash store, which docs/protocol/flash.md describes: encoding, validation
 * and sizes. No I/O.
 *
 *   disk     [anchor A][anchor B]...[segment 0][segment 1] ...
 *   segment  [record][record] ...
 *   record   [header][block] ...   up to FLASH_RECORD_ENTRIES entries, some without a block
 *
 *   cache    [head][slot entries][slots]   a separate file, in memory
 *
 *   anchor ─▶ level 2 ─▶ level 1 ─▶ level 0: pages of the map, then pages of the segment table
 *
 * The nodes of levels 2, 1 and 0 form a tree. Nodes of levels 1 and 2 are written twice. Tree 0 is
 * the disk. Each snapshot has its own tree, which begins as a copy of tree 0.
 *
 * Invariant: every decoder accepts arbitrary bytes, and a decoded value is within its limits: block
 * and segment numbers, counts and names need no further check.
 *
 * Threading: pure functions. Only flash_cache_head_follow() stores atomically, because its block is
 * in a file that other processes read. Ownership: no function keeps a pointer. Errors: false, or a
 * negative errno and an error message.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"

enum {
	FLASH_BLOCK_SHIFT = 12,
	FLASH_BLOCK_BYTES = 1 << FLASH_BLOCK_SHIFT,
	FLASH_ANCHORS = 2,
	FLASH_SEGMENTS_AT = 256, /* first block of segment 0 */
	FLASH_SEGMENT_BLOCKS_MIN = 16,
	FLASH_SEGMENT_BLOCKS_MAX = 1 << 19, /* 2 GiB, the largest supported zone */
	FLASH_SEGMENT_BLOCKS_DEFAULT = 16384,
	FLASH_SEGMENTS_MIN = 16,
	FLASH_SEGMENTS_MAX = 1 << 20, /* each segment takes 64 bytes of memory */
	FLASH_RECORD_ENTRIES = 240,
	FLASH_NODE_ENTRIES = 512,
	FLASH_LEVELS = 3,
	FLASH_TOP_ENTRIES = 64, /* number of top entries of each tree, which are in the anchor */
	FLASH_SNAPSHOTS = 2,	/* limit of snapshots */
	FLASH_TREES = 1 + FLASH_SNAPSHOTS,
	FLASH_DETOURS = 8,
	FLASH_ANCHOR_VERSION = 5, /* version of the anchors that checkpoints write */
	FLASH_DETOUR_VERSION = 4, /* oldest version with detours */
	FLASH_OLDEST_VERSION = 3, /* oldest version that can be read */
	FLASH_TABLE_ENTRIES = 256,
	FLASH_DIRTY_MAX = 8192,
	FLASH_UUID_BYTES = 16,
	FLASH_BOOT_ID_BYTES = 16,
	FLASH_CACHE_SLOTS_MIN = 32,
	FLASH_CACHE_SLOTS_MAX = 1 << 24, /* a cache of 64 GiB */
	FLASH_LABEL_BYTES = 64,
	FLASH_FOLDER_BYTES = 256,
	FLASH_DISK_PATH_BYTES = 1024,
	FLASH_SNAPSHOT_NAME_BYTES = 64,
	FLASH_SPARE_MIN = 7, /* percent */
	FLASH_SPARE_MAX = 50,
	FLASH_SPARE_DEFAULT = 15,
};
#define FLASH_NO_SEGMENT UINT32_MAX

/* --- sizes ----------------------------------------------------------------------------------- */

struct flash_geometry {
	uint64_t disk_blocks; /* size of the disk that clients see */
	uint32_t segment_count;
	uint32_t segment_blocks;

	/* Members derived by flash_geometry_init(). */
	uint32_t leaf_count; /* number of pages of the map */
	/* number of nodes of level 0: pages of the map and of the segment table */
	uint32_t page_count;
	uint32_t node_counts[FLASH_LEVELS];
	uint32_t dirty_max; /* maximum number of dirty pages, which one checkpoint can write */
	/* maximum number of dirty pages for the first checkpoint after a replay */
	uint32_t replay_max;
	uint32_t checkpoint_segments; /* maximum number of segments that a checkpoint fills */
	/* Maximum number of segments that the first checkpoint after a replay fills. */
	uint32_t replay_segments;
	uint32_t reserve_segments; /* number of free segments that clients cannot use */
};

/* Derives the other members from disk_blocks, segment_count and segment_blocks. Returns false if
 * a value is out of range or the disk does not fit into the segments. */
GMB_MUST_CHECK bool flash_geometry_init(struct flash_geometry *geometry);
/* Finds the largest disk for a device of device_blocks blocks. Returns -EINVAL, with a sentence in
 * which "it" is the device, if the device is too small or too large. */
GMB_MUST_CHECK int flash_geometry_make(struct flash_geometry *geometry, uint64_t device_blocks,
	uint32_t segment_blocks, uint32_t spare_percent, struct error *error);

/* Returns the number of blocks of a segment that are not headers. The last record of a segment can
 * be short and leave one block unused. */
uint64_t flash_usable_blocks(const struct flash_geometry *geometry);
/* Returns the maximum number of blocks of a durable write that is one record, and therefore
 * atomic. */
static inline uint32_t flash_atomic_blocks(const struct flash_geometry *geometry)
{
	return MIN((uint32_t)FLASH_RECORD_ENTRIES, geometry->segment_blocks - 1);
}

/* Returns the number of blocks that a device needs for all segments. */
static inline uint64_t flash_device_blocks(const struct flash_geometry *geometry)
{
	return FLASH_SEGMENTS_AT + (uint64_t)geometry->segment_count * geometry->segment_blocks;
}

/* Returns the segment of a block of the device. The block must be in a segment. */
static inline uint32_t flash_segment_of(const struct flash_geometry *geometry, uint32_t block)
{
	return (block - FLASH_SEGMENTS_AT) / geometry->segment_blocks;
}

/* Returns the first block of a segment. */
static inline uint32_t flash_segment_at(const struct flash_geometry *geometry, uint32_t segment)
{
	return FLASH_SEGMENTS_AT + segment * geometry->segment_blocks;
}

static inline bool flash_is_in_segment(const struct flash_geometry *geometry, uint32_t block)
{
	return block >= FLASH_SEGMENTS_AT && block < flash_device_blocks(geometry);
}

/* --- nodes ----------------------------------------------------------------------------------- */

/* Position of a block on the device, and its checksum. Little-endian, as on disk. Zeroes: no
 * block. */
struct flash_entry {
	uint32_t block;
	uint32_t crc;
};

struct flash_node {
	struct flash_entry entries[FLASH_NODE_ENTRIES];
};

/* Stored instead of the erase count of a segment after a write to it has failed: such segments are
 * used last. */
#define FLASH_AVOIDED UINT32_MAX

/* Entry of the segment table. Little-endian, as on disk. */
struct flash_table_entry {
	uint64_t stamp; /* see gc_segment.stamp */
	uint32_t valid; /* number of live blocks of data, without nodes */
	/* number of times the segment was written from its beginning, or FLASH_AVOIDED */
	uint32_t erases;
};

_Static_assert(sizeof(struct flash_node) == FLASH_BLOCK_BYTES, "a block");
_Static_assert(FLASH_TABLE_ENTRIES * sizeof(struct flash_table_entry) == FLASH_BLOCK_BYTES, "too");

/* --- the anchor ------------------------------------------------------------------------------ */

/* Position in the log. */
struct flash_position {
	uint64_t seq;	   /* number of the next record */
	uint32_t segment;  /* segment of the next record */
	uint32_t block;	   /* block of the record's header within `segment` */
	uint32_t prev_crc; /* checksum of the previous record's header */
};

/* Record numbers of one run of the store have the same bits from FLASH_SEQ_SHIFT on. */
enum { FLASH_SEQ_SHIFT = 40 };

static inline uint64_t flash_next_run(uint64_t seq)
{
	return ((seq >> FLASH_SEQ_SHIFT) + 1) << FLASH_SEQ_SHIFT;
}

/* A snapshot as the anchor describes it. Snapshot i has tree 1 + i. */
struct flash_snapshot_anchor {
	char name[FLASH_SNAPSHOT_NAME_BYTES]; /* zero-terminated; empty: unused slot */
	/* Serial number of the anchor with which the snapshot was created. */
	uint64_t serial;
	uint64_t created_s; /* seconds since 1970 */
	bool is_temporary;  /* see struct store_snapshot */
	struct flash_entry top[FLASH_TOP_ENTRIES];
};

/* A place where the log continues in another segment because a write failed: record seq is at the
 * beginning of `segment`, and the records after it follow there. */
struct flash_detour {
	uint64_t seq;
	uint32_t segment;
};

struct flash_anchor {
	uint32_t version; /* format, FLASH_OLDEST_VERSION to FLASH_ANCHOR_VERSION */
	uint8_t uuid[FLASH_UUID_BYTES];
	uint64_t serial; /* serial number; the anchor with the greater one is newer */
	struct flash_geometry geometry;
	struct flash_position next; /* first record that a replay must read */
	uint64_t clock;		    /* number of blocks written by clients, see gc_policy.h */
	/* Tag of the cache file with changes that are not in the log; 0: none. */
	uint64_t cache_tag;
	/* random number, new after each loss of cached changes; 0: no loss yet */
	uint64_t cache_losses;
	/* Folder of the cache file, zero-terminated. Empty: no file, or the path is too long. */
	char cache_folder[FLASH_FOLDER_BYTES];
	/* Boot ID of the machine with the cache file; 0: none. */
	uint8_t cache_boot_id[FLASH_BOOT_ID_BYTES];
	uint32_t spare_percent;
	char label[FLASH_LABEL_BYTES]; /* zero-terminated */
	/* distance between the beginnings of two zones; 0: a device without zones */
	uint32_t zone_blocks;
	struct flash_entry top[FLASH_TOP_ENTRIES];
	struct flash_snapshot_anchor snapshots[FLASH_SNAPSHOTS];
	/* Detours of the log from `next` on, in log order. */
	struct flash_detour detours[FLASH_DETOURS];
	uint32_t detour_count;
};

void flash_anchor_encode(const struct flash_anchor *anchor, uint8_t block[FLASH_BLOCK_BYTES]);
/* Adds a detour, or replaces the last one if it is for the same record number. Returns false if all
 * FLASH_DETOURS entries are in use. */
GMB_MUST_CHECK bool flash_detour_add(struct flash_anchor *anchor, uint64_t seq, uint32_t segment);
/* Removes the detours of records before anchor->next. A replay begins at anchor->next, so it does
 * not need these detours. */
void flash_detours_drop(struct flash_anchor *anchor);
/* If the anchor has a detour for the position's record, sets the position to the record's new
 * place. */
void flash_detour_follow(const struct flash_anchor *anchor, struct flash_position *position);
/* True for a valid snapshot name: 1 to 63 letters, digits, '.', '_' and '-', starting with
 * a letter or a digit. */
bool flash_snapshot_name_is_sound(const char *name);
/* True if the block begins like an anchor; it may be damaged. */
bool flash_anchor_is_ours(const uint8_t block[FLASH_BLOCK_BYTES]);
/* Returns -EINVAL, or -ENOTSUP for an unsupported version. *error is then the predicate of a
 * sentence whose subject is the anchor. */
GMB_MUST_CHECK int flash_anchor_decode(
	const uint8_t block[FLASH_BLOCK_BYTES], struct flash_anchor *anchor, struct error *error);

/* --- records --------------------------------------------------------------------------------- */

enum flash_entry_kind {
	/* lpn: block of the disk; source: 0, or the device block that a cached page replaces. */
	FLASH_DATA = 1,
	FLASH_COPY = 2, /* block lpn, moved by garbage collection from block source of the device */
	/* The `source` blocks from lpn on become zeroes. All blocks are in one map page. The entry
	 * has no data block. */
	FLASH_TRIM = 3,
	FLASH_NODE = 4, /* node lpn of level source % FLASH_LEVELS in tree source / FLASH_LEVELS */
	FLASH_TWIN = 5, /* second copy of a node of level 1 or 2, in the record of the first */
	FLASH_KEPT = 6, /* like FLASH_COPY, for a block that only snapshots have */
	FLASH_KIND_COUNT
};

struct flash_record_entry {
	uint64_t lpn;
	uint32_t source;
	uint32_t crc; /* checksum of the entry's block */
	uint8_t kind; /* enum flash_entry_kind */
};

struct flash_record {
	uint64_t seq;
	uint64_t durable; /* all records with smaller numbers were durable when this one was made */
	/* first record after the checkpoint that was the newest when this record was made */
	uint64_t base;
	/* End of the previous run's log: its records from this number on are invalid. */
	uint64_t before;
	/* Number of the first record after the beginning of the checkpoint in progress: the nodes
	 * in this record contain the changes before that number. 0: no checkpoint was in
	 * progress. */
	uint64_t nodes_at;
	uint32_t at; /* block of the record's header on the device */
	uint32_t prev_crc;
	/* Segment in which the next record begins; FLASH_NO_SEGMENT: right after this record. */
	uint32_t next_segment;
	uint32_t entry_count;
	/* Number of times that the record's run had moved the log after a failed write. Of two
	 * records with the same number, the one with more moves is valid. */
	uint32_t moves;
	uint32_t block_count; /* number of blocks of the record, including the header */
	struct flash_record_entry entries[FLASH_RECORD_ENTRIES];
};

static inline bool flash_kind_has_block(uint8_t kind)
{
	return kind != FLASH_TRIM;
}

static inline bool flash_kind_is_copy(uint8_t kind)
{
	return kind == FLASH_COPY || kind == FLASH_KEPT;
}

static inline bool flash_kind_is_node(uint8_t kind)
{
	return kind == FLASH_NODE || kind == FLASH_TWIN;
}

/* Encodes the header. Returns its checksum, which is prev_crc of the next record.
 * Ignores block_count. */
uint32_t flash_record_encode(const struct flash_record *record,
	const uint8_t uuid[FLASH_UUID_BYTES], uint8_t block[FLASH_BLOCK_BYTES]);
/* Decodes the header of a record without comparing its position, number or prev_crc. Returns false
 * if the block is no valid header of this store. */
GMB_MUST_CHECK bool flash_record_look(const uint8_t block[FLASH_BLOCK_BYTES],
	const struct flash_anchor *anchor, struct flash_record *record);
/* Decodes the record at the position *at, and sets *next to the position after it. Returns false if
 * there is no such record: the log ends here. */
GMB_MUST_CHECK bool flash_record_decode(const uint8_t block[FLASH_BLOCK_BYTES],
	const struct flash_anchor *anchor, const struct flash_position *at,
	struct flash_record *record, struct flash_position *next);

/* --- the cache file -------------------------------------------------------------------------- */

struct flash_cache_head {
	uint8_t uuid[FLASH_UUID_BYTES];
	uint8_t boot_id[FLASH_BOOT_ID_BYTES]; /* boot ID of the machine that created the file */
	uint64_t tag;			      /* random, not 0, unique to this file */
	uint64_t disk_blocks;
	uint32_t slot_count;
	/* All records with smaller numbers are in the log. Updated after each record. */
	uint64_t followed;
	uint64_t disk[2]; /* identity of the file's disk, see struct disk_info */
	char disk_path[FLASH_DISK_PATH_BYTES]; /* informative; zero-terminated */
};

/* Entry of a slot. Little-endian, as in the file. The page in the slot is valid once commit is
 * stored. */
struct flash_cache_entry {
	uint64_t lpn;
	/* Write counter: of two pages of a block, the one with the greater counter is valid. */
	uint64_t counter;
	uint64_t stamp;	 /* records with this or a greater number contain the page or newer data */
	uint64_t commit; /* FLASH_CACHE_DIRTY << 32 | checksum; 0: free slot */
};

_Static_assert(sizeof(struct flash_cache_entry) == 32, "without gaps");
#define FLASH_CACHE_DIRTY UINT64_C(0x59545244) /* "DRTY" */

#define FLASH_CACHE_COUNTER_MAX (UINT64_MAX / 2)

struct flash_cache_page {
	uint64_t lpn;
	uint64_t counter;
	uint64_t stamp;
};

/* Returns the offset of the first slot in the cache file. The entries before it begin at
 * FLASH_BLOCK_BYTES. */
static inline uint64_t flash_cache_slots_at(uint32_t slot_count)
{
	uint64_t bytes = (uint64_t)slot_count * sizeof(struct flash_cache_entry);

	return FLASH_BLOCK_BYTES +
	       (bytes + FLASH_BLOCK_BYTES - 1) / FLASH_BLOCK_BYTES * FLASH_BLOCK_BYTES;
}

static inline uint64_t flash_cache_file_bytes(uint32_t slot_count)
{
	return flash_cache_slots_at(slot_count) + (uint64_t)slot_count * FLASH_BLOCK_BYTES;
}

void flash_cache_head_encode(const struct flash_cache_head *head, uint8_t block[FLASH_BLOCK_BYTES]);
/* Decodes the first block of a file of file_bytes bytes. Returns false if it is not a valid head,
 * or is wrong for a file of this size. */
GMB_MUST_CHECK bool flash_cache_head_decode(
	const uint8_t block[FLASH_BLOCK_BYTES], uint64_t file_bytes, struct flash_cache_head *head);
/* Change the head of a file that is in use: flash_cache_head_follow() stores `followed`, with
 * release order, and flash_cache_head_give() the identity of the disk. */
void flash_cache_head_follow(uint8_t *block, uint64_t seq);
void flash_cache_head_give(uint8_t *block, const uint64_t disk[2]);
/* Returns the checksum for commit, over the other fields of the entry and the page. */
uint32_t flash_cache_crc(const struct flash_cache_entry *entry, const uint8_t *page);
/* Returns false if the entry or its page is invalid for this store. */
GMB_MUST_CHECK bool flash_cache_entry_decode(const struct flash_cache_entry *entry,
	const uint8_t *page, const struct flash_anchor *anchor, struct flash_cache_page *found);
