// SPDX-License-Identifier: Apache-2.0
/*
 * What a flash store has on its disk: docs/protocol/flash.md. Encoding and checking, and what
 * follows from the sizes; no I/O.
 *
 *   disk     [anchor A][anchor B]...[segment 0][segment 1] ...
 *   segment  [record][record] ...
 *   record   [header][block] ...   up to FLASH_RECORD_ENTRIES entries, not all of which have a
 * block
 *
 *   cache    [head][entries of slots][slots]   a file of its own, in memory
 *
 *   anchor ─▶ level 2 ─▶ level 1 ─▶ level 0: pages of the map, and behind them those of the table
 *                                            of segments
 *
 * Nodes of level 1 and 2 are written twice. That is a tree. Tree 0 is the disk; each view (users
 * call it a snapshot) has one of its own, which begins as a copy of what the anchor has for tree 0.
 *
 * Threading: pure functions. Ownership: none. Errors: bytes may be anybody's; false or a sentence
 * says that they are not what they should be.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"

enum {
	FLASH_BLOCK_SHIFT = 12,
	FLASH_BLOCK_BYTES = 1 << FLASH_BLOCK_SHIFT,
	FLASH_ANCHORS = 2,
	FLASH_SEGMENTS_AT = 256, /* block of the first one */
	FLASH_SEGMENT_BLOCKS_MIN = 16,
	FLASH_SEGMENT_BLOCKS_MAX = 1 << 19, /* 2 GiB: a zone */
	FLASH_SEGMENT_BLOCKS_DEFAULT = 16384,
	FLASH_SEGMENTS_MIN = 16,
	FLASH_SEGMENTS_MAX = 1 << 20, /* 64 bytes of memory each */
	FLASH_RECORD_ENTRIES = 240,
	FLASH_NODE_ENTRIES = 512,
	FLASH_LEVELS = 3,
	FLASH_TOP_ENTRIES = 64, /* of the anchor, for each tree */
	FLASH_VIEWS = 2,	/* snapshots that there can be */
	FLASH_TREES = 1 + FLASH_VIEWS,
	FLASH_DETOURS = 8,
	FLASH_ANCHOR_VERSION = 5, /* from the first checkpoint on */
	FLASH_DETOUR_VERSION = 4, /* the least with detours */
	FLASH_OLDEST_VERSION = 3, /* that can be read */
	FLASH_TABLE_ENTRIES = 256,
	FLASH_DIRTY_MAX = 8192,
	FLASH_UUID_BYTES = 16,
	FLASH_BOOT_ID_BYTES = 16,
	FLASH_CACHE_SLOTS_MIN = 32,
	FLASH_CACHE_SLOTS_MAX = 1 << 24, /* 64 GiB */
	FLASH_LABEL_BYTES = 64,
	FLASH_FOLDER_BYTES = 256,
	FLASH_DISK_PATH_BYTES = 1024,
	FLASH_VIEW_NAME_BYTES = 64,
	FLASH_SPARE_MIN = 7, /* percent */
	FLASH_SPARE_MAX = 50,
	FLASH_SPARE_DEFAULT = 15,
};
#define FLASH_NO_SEGMENT UINT32_MAX

/* --- sizes ----------------------------------------------------------------------------------- */

struct flash_geometry {
	uint64_t disk_blocks; /* that clients see */
	uint32_t segment_count;
	uint32_t segment_blocks;

	/* What follows from them. */
	uint32_t leaf_count; /* pages of the map */
	uint32_t page_count; /* with those of the table: nodes of level 0 */
	uint32_t node_counts[FLASH_LEVELS];
	uint32_t dirty_max;	      /* pages that a checkpoint writes */
	uint32_t replay_max;	      /* the same of the first one behind a replay of the log */
	uint32_t checkpoint_segments; /* that a checkpoint may fill */
	uint32_t replay_segments;     /* that the first one behind a replay may fill */
	uint32_t reserve_segments;    /* that only the store itself writes to */
};

/* Fills in what follows. False: the sizes are out of range, or do not fit each other. */
GMB_MUST_CHECK bool flash_geometry_init(struct flash_geometry *geometry);
/* The largest disk for a device of so many blocks. -EINVAL with a sentence that does not name it.
 */
GMB_MUST_CHECK int flash_geometry_make(struct flash_geometry *geometry, uint64_t device_blocks,
	uint32_t segment_blocks, uint32_t spare_percent, struct error *error);

/* A durable write of so many blocks is one record. */
static inline uint32_t flash_atomic_blocks(const struct flash_geometry *geometry)
{
	return MIN((uint32_t)FLASH_RECORD_ENTRIES, geometry->segment_blocks - 1);
}

/* Blocks of a device that has all segments. */
static inline uint64_t flash_device_blocks(const struct flash_geometry *geometry)
{
	return FLASH_SEGMENTS_AT + (uint64_t)geometry->segment_count * geometry->segment_blocks;
}

/* The segment of a block of the device, which is in one. */
static inline uint32_t flash_segment_of(const struct flash_geometry *geometry, uint32_t block)
{
	return (block - FLASH_SEGMENTS_AT) / geometry->segment_blocks;
}

/* The first block of a segment. */
static inline uint32_t flash_segment_at(const struct flash_geometry *geometry, uint32_t segment)
{
	return FLASH_SEGMENTS_AT + segment * geometry->segment_blocks;
}

static inline bool flash_is_in_segment(const struct flash_geometry *geometry, uint32_t block)
{
	return block >= FLASH_SEGMENTS_AT && block < flash_device_blocks(geometry);
}

/* --- nodes ----------------------------------------------------------------------------------- */

/* Where a block is, and its checksum. As on disk: little-endian. Zeroes: there is none. */
struct flash_entry {
	uint32_t block;
	uint32_t crc;
};

struct flash_node {
	struct flash_entry entries[FLASH_NODE_ENTRIES];
};

/* In place of the erasures of a segment: a write to it has failed, and it is used last. */
#define FLASH_AVOIDED UINT32_MAX

/* Of the table of segments. As on disk: little-endian. */
struct flash_table_entry {
	uint64_t stamp;	 /* see store/flash/gc_policy.h */
	uint32_t valid;	 /* blocks of clients, not nodes */
	uint32_t erases; /* how often it was written from its beginning, or FLASH_AVOIDED */
};

_Static_assert(sizeof(struct flash_node) == FLASH_BLOCK_BYTES, "a block");
_Static_assert(FLASH_TABLE_ENTRIES * sizeof(struct flash_table_entry) == FLASH_BLOCK_BYTES, "too");

/* --- the anchor ------------------------------------------------------------------------------ */

/* Where records go on. */
struct flash_position {
	uint64_t seq;	   /* of the next record */
	uint32_t segment;  /* that it is in */
	uint32_t block;	   /* of that segment */
	uint32_t prev_crc; /* of the header before it */
};

/* The numbers of the records of one run of the store begin with the same bits. */
enum { FLASH_SEQ_SHIFT = 40 };

static inline uint64_t flash_next_run(uint64_t seq)
{
	return ((seq >> FLASH_SEQ_SHIFT) + 1) << FLASH_SEQ_SHIFT;
}

/* A view: tree 1 + its index. */
struct flash_view_anchor {
	char name[FLASH_VIEW_NAME_BYTES]; /* ends with a zero; empty: there is no view */
	uint64_t serial;		  /* of the anchor that it was made with */
	uint64_t created_s;		  /* since 1970 */
	bool is_temporary;		  /* see struct store_view */
	struct flash_entry top[FLASH_TOP_ENTRIES];
};

/* A write to the log has failed: from this record on the log goes on at the beginning of another
 * segment. */
struct flash_detour {
	uint64_t seq;
	uint32_t segment;
};

struct flash_anchor {
	uint32_t version; /* of the format: FLASH_OLDEST_VERSION to FLASH_ANCHOR_VERSION */
	uint8_t uuid[FLASH_UUID_BYTES];
	uint64_t serial; /* the greater is the newer */
	struct flash_geometry geometry;
	struct flash_position next; /* behind the checkpoint */
	uint64_t clock;		    /* see store/flash/gc_policy.h */
	uint64_t cache_tag;	    /* of the cache file with what the log has not; 0: none */
	uint64_t cache_losses;	    /* another random number after each one; 0: none yet */
	/* Of the cache file; ends with a zero. Empty: there is none, or the name is too long. */
	char cache_folder[FLASH_FOLDER_BYTES];
	uint8_t cache_boot_id[FLASH_BOOT_ID_BYTES]; /* of the machine that wrote it; 0: none */
	uint32_t spare_percent;
	char label[FLASH_LABEL_BYTES]; /* ends with a zero */
	uint32_t zone_blocks;	       /* from zone to zone; 0: the device has none */
	struct flash_entry top[FLASH_TOP_ENTRIES];
	struct flash_view_anchor views[FLASH_VIEWS];
	struct flash_detour detours[FLASH_DETOURS]; /* behind next, in the order of the log */
	uint32_t detour_count;
};

void flash_anchor_encode(const struct flash_anchor *anchor, uint8_t block[FLASH_BLOCK_BYTES]);
/* Adds a detour behind the others, or in place of the last one, if that has the same number. False:
 * there are as many as there can be. */
GMB_MUST_CHECK bool flash_detour_add(struct flash_anchor *anchor, uint64_t seq, uint32_t segment);
/* Leaves out those before the first record behind the checkpoint. */
void flash_detours_drop(struct flash_anchor *anchor);
/* The position of a record becomes that of its detour, if it has one. */
void flash_detour_follow(const struct flash_anchor *anchor, struct flash_position *position);
/* What a view may be called: 1 to 63 letters, digits, '.', '_' and '-', the first one a letter or a
 * digit. */
bool flash_view_name_is_sound(const char *name);
/* True when the block is meant to be an anchor, whatever is wrong with it. */
bool flash_anchor_is_ours(const uint8_t block[FLASH_BLOCK_BYTES]);
/* -EINVAL, or -ENOTSUP for another version; with the rest of a sentence about the anchor. */
GMB_MUST_CHECK int flash_anchor_decode(
	const uint8_t block[FLASH_BLOCK_BYTES], struct flash_anchor *anchor, struct error *error);

/* --- records --------------------------------------------------------------------------------- */

enum flash_entry_kind {
	FLASH_DATA = 1, /* lpn: block of the disk; source: in whose stead the collector wrote it */
	FLASH_COPY = 2, /* the same, moved from block source of the device */
	FLASH_TRIM = 3, /* source blocks from lpn on, all of one page of the map; without a block */
	FLASH_NODE = 4, /* node lpn of level source % FLASH_LEVELS, of tree source / FLASH_LEVELS */
	FLASH_TWIN = 5, /* the second copy of a node of level 1 or 2, in the record of the first */
	FLASH_KEPT = 6, /* as a copy, of what only views had */
	FLASH_KIND_COUNT
};

struct flash_record_entry {
	uint64_t lpn;
	uint32_t source;
	uint32_t crc; /* of the block */
	uint8_t kind; /* enum flash_entry_kind */
};

struct flash_record {
	uint64_t seq;
	uint64_t durable; /* all records before this one were durable when this one was made */
	uint64_t base;	  /* of the first record behind the last checkpoint before this one */
	uint64_t before; /* where the log of the run before ended: what it has from there on is void
			  */
	/* Its nodes are as of before this record, with which their checkpoint began. Also 0: it has
	 * none. */
	uint64_t nodes_at;
	uint32_t at; /* block of the device that the header is in */
	uint32_t prev_crc;
	uint32_t next_segment; /* where the next record begins; FLASH_NO_SEGMENT: behind this one */
	uint32_t entry_count;
	uint32_t moves;	      /* detours of its run when it was written: of two with one number the
				 one with more counts */
	uint32_t block_count; /* with the header */
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

/* Returns the header's own checksum: the prev_crc of the next one. block_count is not looked at. */
uint32_t flash_record_encode(const struct flash_record *record,
	const uint8_t uuid[FLASH_UUID_BYTES], uint8_t block[FLASH_BLOCK_BYTES]);
/* A record of the store, wherever it is in the log. */
GMB_MUST_CHECK bool flash_record_look(const uint8_t block[FLASH_BLOCK_BYTES],
	const struct flash_anchor *anchor, struct flash_record *record);
/* The record at that position; *next becomes the position behind it. False: there is none, the log
 * ends here. */
GMB_MUST_CHECK bool flash_record_decode(const uint8_t block[FLASH_BLOCK_BYTES],
	const struct flash_anchor *anchor, const struct flash_position *at,
	struct flash_record *record, struct flash_position *next);

/* --- the cache file -------------------------------------------------------------------------- */

struct flash_cache_head {
	uint8_t uuid[FLASH_UUID_BYTES];
	uint8_t boot_id[FLASH_BOOT_ID_BYTES]; /* of the machine that wrote it */
	uint64_t tag;			      /* random, not 0: of this file alone */
	uint64_t disk_blocks;
	uint32_t slot_count;
	/* All records with smaller numbers were written when its newest page came, or before. */
	uint64_t followed;
	uint64_t disk[2]; /* the one that it is of: struct disk_info, identity */
	char disk_path[FLASH_DISK_PATH_BYTES]; /* of that, for people; ends with a zero */
};

/* Of a slot. As in the file: little-endian. A page counts from the moment when commit is stored. */
struct flash_cache_entry {
	uint64_t lpn;
	uint64_t counter; /* of writes: of two pages of a block the one with the greater counts */
	uint64_t stamp;	  /* records from this number on that write the block are newer */
	uint64_t commit;  /* FLASH_CACHE_DIRTY << 32 | checksum; 0: the slot is free */
};

_Static_assert(sizeof(struct flash_cache_entry) == 32, "without gaps");
#define FLASH_CACHE_DIRTY UINT64_C(0x59545244) /* "DRTY" */

#define FLASH_CACHE_COUNTER_MAX (UINT64_MAX / 2)

struct flash_cache_page {
	uint64_t lpn;
	uint64_t counter;
	uint64_t stamp;
};

/* Where the entries are, and where the slots; and how long the file is. */
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
/* The first block of a file of so many bytes. False: it is no head, or of a file of another length.
 */
GMB_MUST_CHECK bool flash_cache_head_decode(
	const uint8_t block[FLASH_BLOCK_BYTES], uint64_t file_bytes, struct flash_cache_head *head);
/* Changes one of its fields in a file that is in use. */
void flash_cache_head_follow(uint8_t *block, uint64_t seq);
void flash_cache_head_give(uint8_t *block, const uint64_t disk[2]);
/* The checksum in commit: of the entry up to there, and of the page. */
uint32_t flash_cache_crc(const struct flash_cache_entry *entry, const uint8_t *page);
/* False: the slot has no page of that store, or not the one that was written. */
GMB_MUST_CHECK bool flash_cache_entry_decode(const struct flash_cache_entry *entry,
	const uint8_t *page, const struct flash_anchor *anchor, struct flash_cache_page *found);
