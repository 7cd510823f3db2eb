// SPDX-License-Identifier: Apache-2.0
/*
 * The overlay filter: what clients write goes to an upper store, the base below is only read. This
 * header is shared by overlay*.c. The file is described in docs/protocol/overlay.md, the order of
 * its writes in docs/design/0021-overlay.md.
 *
 *   part ─▶ overlay ─┬─ every block in the upper store ──▶ upper: a file, or memory
 *                    └─ none of them ────────────────────▶ base
 *
 *   present   a bit per block: its contents are in the upper store. Set when they are, never
 * cleared. busy      a block that is being written for the first time: nobody else changes it
 * meanwhile. saved     the bits of present as they are in the file, or about to be. pages whether a
 * page of present and the file say the same.
 *
 * Threading: any reactor. Reads, and changes of blocks that are present, look at present and pages
 * only, which are atomics; the rest is under the lock. Every part goes on on its own ring: what
 * another ring has for it comes by a message (struct overlay_port).
 * Ownership: the store owns the upper store, its descriptor and the maps; a queue owns its queue on
 * the upper store, its helpers and their buffers. Errors: as store.h.
 */
#pragma once

#include "store/kind.h"

enum {
	OVERLAY_BLOCK_SHIFT = 12,
	OVERLAY_BLOCK_BYTES = 1 << OVERLAY_BLOCK_SHIFT,
	OVERLAY_HEAD_BYTES = 4096,
	OVERLAY_PAGE_BYTES = 4096, /* of the bitmap */
	OVERLAY_PAGE_BLOCKS = OVERLAY_PAGE_BYTES * 8,
	OVERLAY_WORD_BLOCKS = 64,
	OVERLAY_PAGE_WORDS = OVERLAY_PAGE_BLOCKS / OVERLAY_WORD_BLOCKS,
	OVERLAY_DATA_ALIGN = 1 << 20,
	OVERLAY_BASE_PATH_MAX = 3968,
	OVERLAY_HELPERS = 16,
};
/* 256 TiB: its bitmap has 8 GiB of address space. */
#define OVERLAY_SIZE_MAX (UINT64_C(1) << 48)

/* --- overlay_file.c: the file ---------------------------------------------------------------- */

/* What follows from the size of the base. */
struct overlay_layout {
	uint64_t size;
	uint64_t block_count;
	uint64_t page_count;  /* of the bitmap, which begins behind the header */
	uint64_t data_offset; /* of the first byte of the disk */
};

struct overlay_layout overlay_layout_of(uint64_t size);

/* By what the base is known again. */
struct overlay_base {
	uint64_t size;
	int64_t changed_ns;   /* as in struct disk_info */
	uint64_t fingerprint; /* of samples of its bytes */
	char path[OVERLAY_BASE_PATH_MAX + 1];
};

/* Looks at a base. A negative errno and a sentence. */
GMB_MUST_CHECK int overlay_base_look(
	const char *path, struct overlay_base *base, struct error *error);
/* -ESTALE with a sentence when found is not the base that was recorded for the overlay at path. */
GMB_MUST_CHECK int overlay_base_compare(const char *path, const struct overlay_base *recorded,
	const struct overlay_base *found, struct error *error);

void overlay_head_encode(const struct overlay_base *base, uint8_t head[OVERLAY_HEAD_BYTES]);
/* The bytes may be anybody's. -EINVAL with a sentence. */
GMB_MUST_CHECK int overlay_head_decode(const uint8_t head[OVERLAY_HEAD_BYTES], const char *path,
	struct overlay_base *base, struct error *error);

/* Reads the header of an open file and checks that the rest of it is there. */
GMB_MUST_CHECK int overlay_head_read(
	int fd, const char *path, struct overlay_base *base, struct error *error);
/* Where a bitmap is read to. */
struct overlay_bitmap {
	uint64_t *words;	   /* as in the file; zeroes before */
	_Atomic uint64_t *present; /* the same as numbers of this machine; or NULL */
	uint64_t changed_bytes;	   /* of the disk: found */
};

/* -EINVAL: there is a block behind the end. */
GMB_MUST_CHECK int overlay_bitmap_read(int fd, const char *path,
	const struct overlay_layout *layout, struct overlay_bitmap *bitmap, struct error *error);

/* Whether the file is a new overlay on that base: empty, or as a crash has left one that
 * overlay_file_fill() was to make. */
GMB_MUST_CHECK int overlay_file_is_empty(int fd, const struct overlay_base *base, bool *is_empty);
/* Makes an overlay of such a file, as a whole or not at all. */
GMB_MUST_CHECK int overlay_file_fill(
	int fd, const char *path, const struct overlay_base *base, struct error *error);
/* See store_create_check(). */
GMB_MUST_CHECK int overlay_create_check(const struct store_create *create, struct error *error);
/* See store_create(). */
GMB_MUST_CHECK int overlay_create(
	const char *path, const struct store_create *create, struct error *error);
/* See store_check(). */
GMB_MUST_CHECK int overlay_check(
	const char *path, struct store_check *check, bool *recognized, struct error *error);

/* Where a page of the bitmap is in the file. */
static inline uint64_t overlay_page_offset(uint64_t page)
{
	return OVERLAY_HEAD_BYTES + page * OVERLAY_PAGE_BYTES;
}

/* --- the store ------------------------------------------------------------------------------- */

/* A page of the bitmap. What is in the file may be older than what is in memory. */
enum overlay_page {
	OVERLAY_PAGE_SAVED,	     /* both are the same */
	OVERLAY_PAGE_CHANGED,	     /* bits were set since */
	OVERLAY_PAGE_SAVING,	     /* a commit writes them */
	OVERLAY_PAGE_SAVING_CHANGED, /* and more were set since it began */
	OVERLAY_PAGE_STATE_COUNT,
};

struct overlay_store {
	struct store base;
	struct store *upper;
	struct overlay_layout layout;
	uint64_t data_offset; /* of the disk in the upper store */
	char *path;
	int fd;	    /* header and bitmap; -1: nothing is kept, and no page is ever changed */
	void *maps; /* the next four; present is in the memory of the upper store instead, when
		     * nothing is kept: another process maps it, too */
	_Atomic uint64_t *present;
	uint64_t *saved; /* little-endian, as in the file */
	uint64_t *busy;
	_Atomic uint8_t *pages; /* enum overlay_page */

	/* Pages that are not saved. Written under the lock. */
	_Atomic uint64_t unsaved_count;
	/* Since the file was opened: before, what a killed server wrote there may be in a cache
	 * only. Written under the lock. */
	_Atomic bool has_committed;

	pthread_mutex_t lock; /* for all below, and for what is said above */
	struct list_node blocked;
	struct list_node committing_next; /* parts that wait for the commit after this one */
	bool is_committing;
};

/* What carries parts to the ring of their queue. */
struct overlay_port {
	struct ring_message message;
	struct list_node parts; /* under the store's lock, as is posted */
	bool posted;
};

/* For what is read or written on behalf of a part beside it. */
struct overlay_helper {
	struct store_part part;
	struct overlay_queue *queue;
	struct store_part *owner;
	uint8_t *buffer; /* of a block, aligned to one */
	struct list_node node;
};

struct overlay_queue {
	struct store_queue base;
	struct store_queue *upper;
	struct overlay_port port;
	struct overlay_helper helpers[OVERLAY_HELPERS];
	uint8_t *buffers;
	struct list_node idle;	 /* helpers */
	struct list_node hoping; /* parts for which none was idle */

	/* While this queue commits. */
	struct store_part commit;
	struct list_node committed; /* parts that will hear of it */
	uint64_t commit_page;
	uint64_t commit_run; /* pages of the write in flight */

	uint64_t split_reads; /* counters */
	uint64_t copied_blocks;
	uint64_t commits;
};

/* What a part that comes back by a message, or finds a helper, goes on with. */
enum overlay_step {
	OVERLAY_STEP_CHANGE, /* the blocks are its own */
	OVERLAY_STEP_COPY,   /* of a block from the base */
	OVERLAY_STEP_SPLIT,  /* of a read */
	OVERLAY_STEP_LEAD,   /* the next commit */
	OVERLAY_STEP_FINISH, /* with its result */
};

enum overlay_edge { OVERLAY_EDGE_HEAD = 1 << 0, OVERLAY_EDGE_TAIL = 1 << 1 };

struct overlay_scratch {
	uint64_t offset; /* as it was submitted */
	uint64_t length;
	uint64_t done_bytes;
	struct store_extent *extents; /* as submitted */
	uint32_t extent_max;
	uint32_t extent_count;
	int result;
	uint8_t step;	 /* enum overlay_step */
	uint8_t edges;	 /* enum overlay_edge: blocks to copy before */
	uint8_t pending; /* helpers that read for it */
	uint16_t runs;	 /* of which extents were asked */
	bool owns_blocks;
	bool commits; /* it is durable, and that takes a commit */
	bool zeroes;  /* a trim that is forwarded as a zero */
};

static inline struct overlay_scratch *overlay_scratch_of(struct store_part *part)
{
	return store_scratch(part);
}

static inline struct overlay_store *overlay_of(const struct store_queue *queue)
{
	return container_of(queue->store, struct overlay_store, base);
}

static inline struct overlay_queue *overlay_queue_of(const struct store_part *part)
{
	return container_of(part->queue, struct overlay_queue, base);
}

/* The block of the byte at offset, and the one behind that of the byte before it. */
static inline uint64_t overlay_first(uint64_t offset)
{
	return offset >> OVERLAY_BLOCK_SHIFT;
}

static inline uint64_t overlay_end(uint64_t offset)
{
	return (offset + OVERLAY_BLOCK_BYTES - 1) >> OVERLAY_BLOCK_SHIFT;
}

/* --- overlay.c ------------------------------------------------------------------------------- */

bool overlay_has(const struct overlay_store *store, uint64_t block);
/* Where the blocks from first on stop to be all present, or all not; at most end. */
uint64_t overlay_run(
	const struct overlay_store *store, uint64_t first, uint64_t end, bool *present);

/* Gives the part, or what its fields say of it now, to the base or the upper store. */
void overlay_forward(struct store_part *part, bool upper);

/* Under the lock: has the part go on on its ring. */
void overlay_send(struct store_part *part, enum overlay_step step);
/* An idle helper for the part; NULL: the part goes on with its step when there is one. */
struct overlay_helper *overlay_helper_take(struct store_part *part, enum overlay_step step);
void overlay_helper_give(struct overlay_helper *helper);
/* The helper reads or writes for its owner; done gets its part. */
void overlay_helper_submit(struct overlay_helper *helper, bool upper, enum store_op op,
	uint64_t offset, uint64_t length, struct mem_ref memory, store_done_fn *done);

/* --- overlay_change.c ------------------------------------------------------------------------ */

/* Write, trim and zero. */
void overlay_change(struct store_part *part);
/* The part was forwarded, and that is its result. */
void overlay_change_done(struct store_part *part, int result);
void overlay_change_resume(struct store_part *part, enum overlay_step step);

/* --- overlay_commit.c ------------------------------------------------------------------------ */

/* Under the lock: blocks have become present. */
void overlay_pages_changed(struct overlay_store *store, uint64_t first, uint64_t end);
/* True when a crash would not lose that these blocks are present. */
bool overlay_is_saved(const struct overlay_store *store, uint64_t first, uint64_t end);
/* Makes everything that was done before durable, then finishes the part. */
void overlay_commit(struct store_part *part);
/* The part was first in line when the last commit ended. */
void overlay_commit_lead(struct store_part *part);
/* The same while no queue exists, blocking. */
GMB_MUST_CHECK int overlay_commit_all(struct overlay_store *store);
