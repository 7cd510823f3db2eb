// SPDX-License-Identifier: Apache-2.0
/*
 * The overlay filter: clients' changes are written to an upper store; the base is only read. Only
 * overlay*.c include this header. The file format is described in docs/protocol/overlay.md, the
 * order of its writes in docs/design/0021-overlay.md.
 *
 *   part ─▶ overlay ─┬─ every block in the upper store ──▶ upper: a file, or memory
 *                    └─ no block in the upper store ─────▶ base
 *
 *   present   a bit per block: its contents are in the upper store. Bits are never cleared.
 *   busy      a bit per block: it is being written for the first time, and no other part may
 *             change it.
 *   saved     the bits of present that are in the file or being written to it.
 *   pages     a state per page of present: whether it equals the page in the file.
 *
 * Threading: any reactor. Reads, and changes of blocks that are present, use only present and
 * pages, which are atomic; everything else is protected by the lock. Every part continues on its
 * own ring: another ring passes it back by a message (struct overlay_port). Ownership: the store
 * owns the upper store, its descriptor and the maps. A queue owns its queue on the upper store, its
 * helpers and their buffers. Errors: as in store.h.
 */
#pragma once

#include "store/kind.h"

enum {
	OVERLAY_BLOCK_SHIFT = 12,
	OVERLAY_BLOCK_BYTES = 1 << OVERLAY_BLOCK_SHIFT,
	OVERLAY_HEAD_BYTES = 4096,
	OVERLAY_PAGE_BYTES = 4096, /* size of a page of the bitmap */
	OVERLAY_PAGE_BLOCKS = OVERLAY_PAGE_BYTES * 8,
	OVERLAY_WORD_BLOCKS = 64,
	OVERLAY_PAGE_WORDS = OVERLAY_PAGE_BLOCKS / OVERLAY_WORD_BLOCKS,
	OVERLAY_DATA_ALIGN = 1 << 20,
	OVERLAY_BASE_PATH_MAX = 3968,
	OVERLAY_HELPERS = 16,
};
/* 256 TiB. Each bitmap of such a disk takes 8 GiB of address space. */
#define OVERLAY_SIZE_MAX (UINT64_C(1) << 48)

/* --- overlay_file.c: the file ---------------------------------------------------------------- */

/* Layout of the file, derived from the size of the base. */
struct overlay_layout {
	uint64_t size;
	uint64_t block_count;
	uint64_t page_count;  /* number of pages of the bitmap, which follows the header */
	uint64_t data_offset; /* offset in the file at which the first byte of the disk is stored */
};

struct overlay_layout overlay_layout_of(uint64_t size);

/* Properties that identify the base. */
struct overlay_base {
	uint64_t size;
	int64_t changed_ns;   /* time of the last change, as in struct disk_info */
	uint64_t fingerprint; /* hash of samples of the base's contents */
	char path[OVERLAY_BASE_PATH_MAX + 1];
};

/* Reads the properties of a base. Returns 0, or a negative errno and a message. */
GMB_MUST_CHECK int overlay_base_look(
	const char *path, struct overlay_base *base, struct error *error);
/* Returns -ESTALE and a message if found is not the base that the overlay at path has recorded. */
GMB_MUST_CHECK int overlay_base_compare(const char *path, const struct overlay_base *recorded,
	const struct overlay_base *found, struct error *error);

void overlay_head_encode(const struct overlay_base *base, uint8_t head[OVERLAY_HEAD_BYTES]);

/* Reads and decodes the header of an open file, and checks that the file is complete. */
GMB_MUST_CHECK int overlay_head_read(
	int fd, const char *path, struct overlay_base *base, struct error *error);
/* Destination of overlay_bitmap_read(). */
struct overlay_bitmap {
	uint64_t *words;	   /* little-endian, as in the file; initially zeroes */
	_Atomic uint64_t *present; /* gets the same bits in host byte order; or NULL */
	uint64_t changed_bytes;	   /* result: size of the changed blocks */
};

/* Reads the bitmap. Returns -EINVAL if a block beyond the end of the disk has a bit. */
GMB_MUST_CHECK int overlay_bitmap_read(int fd, const char *path,
	const struct overlay_layout *layout, struct overlay_bitmap *bitmap, struct error *error);

/* Stores in *is_empty whether the file can become a new overlay on that base: it is empty, or a
 * crash during overlay_file_fill() has left it incomplete. */
GMB_MUST_CHECK int overlay_file_is_empty(int fd, const struct overlay_base *base, bool *is_empty);
/* Turns a file for which overlay_file_is_empty() is true into a new overlay, atomically. */
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

/* Returns the offset in the file of a page of the bitmap. */
static inline uint64_t overlay_page_offset(uint64_t page)
{
	return OVERLAY_HEAD_BYTES + page * OVERLAY_PAGE_BYTES;
}

/* --- the store ------------------------------------------------------------------------------- */

/* State of a page of the bitmap: the page in memory can have bits that the page in the file does
 * not have yet. */
enum overlay_page {
	OVERLAY_PAGE_SAVED,	     /* equal in memory and in the file */
	OVERLAY_PAGE_CHANGED,	     /* bits were set since the last commit */
	OVERLAY_PAGE_SAVING,	     /* a commit is writing the page */
	OVERLAY_PAGE_SAVING_CHANGED, /* being written, and bits were set since the commit began */
	OVERLAY_PAGE_STATE_COUNT,
};

struct overlay_store {
	struct store base;
	struct store *upper;
	struct overlay_layout layout;
	uint64_t data_offset; /* offset in the upper store of the first byte of the disk */
	char *path;
	/* Descriptor for header and bitmap. -1 with overlay=discard, where no page ever has the
	 * state OVERLAY_PAGE_CHANGED. */
	int fd;
	/* Memory of the next four members. With overlay=discard, present is in the memory of the
	 * upper store instead, so that another process can also map it. */
	void *maps;
	_Atomic uint64_t *present;
	uint64_t *saved; /* little-endian, as in the file */
	uint64_t *busy;
	_Atomic uint8_t *pages; /* enum overlay_page */

	/* Number of pages in a state other than OVERLAY_PAGE_SAVED. Written under the lock. */
	_Atomic uint64_t unsaved_count;
	/* A commit has succeeded since the file was opened. Before that, bits in the file might not
	 * be durable: a killed server might have written them only to the disk's cache. Written
	 * under the lock. */
	_Atomic bool has_committed;

	pthread_mutex_t lock; /* protects the following members, busy and saved */
	struct list_node blocked;
	struct list_node committing_next; /* parts that wait for the next commit */
	bool is_committing;
};

/* Passes parts from another ring to the ring of their queue. */
struct overlay_port {
	struct ring_message message;
	struct list_node parts; /* protected by the store's lock, like posted */
	bool posted;
};

/* Reads or writes on behalf of another part, its owner. */
struct overlay_helper {
	struct store_part part;
	struct overlay_queue *queue;
	struct store_part *owner;
	uint8_t *buffer; /* one block, aligned to the size of a block */
	struct list_node node;
};

struct overlay_queue {
	struct store_queue base;
	struct store_queue *upper;
	struct overlay_port port;
	struct overlay_helper helpers[OVERLAY_HELPERS];
	uint8_t *buffers;
	struct list_node idle;	 /* helpers that work for no part */
	struct list_node hoping; /* parts that wait for an idle helper */

	/* The part with which this queue runs a commit. */
	struct store_part commit;
	struct list_node committed; /* parts that are finished when the commit ends */
	uint64_t commit_page;
	uint64_t commit_run; /* number of bitmap pages in the write in flight */

	uint64_t split_reads; /* this member and the following ones are counters */
	uint64_t copied_blocks;
	uint64_t commits;
};

/* The next step of a part that comes back from another ring or gets a helper. */
enum overlay_step {
	OVERLAY_STEP_CHANGE, /* make the part's change: the part owns its blocks now */
	OVERLAY_STEP_COPY,   /* copy the rest of an edge block from the base */
	OVERLAY_STEP_SPLIT,  /* read the next runs of a split read */
	OVERLAY_STEP_LEAD,   /* run the next commit, for all parts that wait for it */
	OVERLAY_STEP_FINISH, /* finish the part with the result in its scratch */
};

enum overlay_edge { OVERLAY_EDGE_HEAD = 1 << 0, OVERLAY_EDGE_TAIL = 1 << 1 };

struct overlay_scratch {
	uint64_t offset; /* original offset of the part */
	uint64_t length;
	uint64_t done_bytes;
	struct store_extent *extents; /* original array of the part */
	uint32_t extent_max;
	uint32_t extent_count;
	int result;
	uint8_t step;	 /* enum overlay_step */
	uint8_t edges;	 /* enum overlay_edge: edge blocks still to be copied */
	uint8_t pending; /* number of helpers that read for this part */
	uint16_t runs;	 /* number of runs whose extents were requested */
	bool owns_blocks;
	bool commits; /* the part is a durable change that needs a commit */
	bool zeroes;  /* the part is a trim that is being forwarded as STORE_ZERO */
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

/* Returns the block that contains the byte at offset. */
static inline uint64_t overlay_first(uint64_t offset)
{
	return offset >> OVERLAY_BLOCK_SHIFT;
}

/* Returns the first block behind a range that ends at offset. */
static inline uint64_t overlay_end(uint64_t offset)
{
	return (offset + OVERLAY_BLOCK_BYTES - 1) >> OVERLAY_BLOCK_SHIFT;
}

/* --- overlay.c ------------------------------------------------------------------------------- */

bool overlay_has(const struct overlay_store *store, uint64_t block);
/* Returns the end of the run of blocks, starting with first, that are either all present or all
 * absent; at most end. */
uint64_t overlay_run(
	const struct overlay_store *store, uint64_t first, uint64_t end, bool *present);

/* Forwards the part, with its current offset and length, to the base or the upper store. */
void overlay_forward(struct store_part *part, bool upper);

/* Called under the lock: makes the part continue with this step on its own ring. */
void overlay_send(struct store_part *part, enum overlay_step step);
/* Returns an idle helper for the part. If there is none, returns NULL, and the part continues with
 * this step when a helper becomes idle. */
struct overlay_helper *overlay_helper_take(struct store_part *part, enum overlay_step step);
void overlay_helper_give(struct overlay_helper *helper);
/* Submits a read or write for the helper's owner; done() is called with the helper's part. */
void overlay_helper_submit(struct overlay_helper *helper, bool upper, enum store_op op,
	uint64_t offset, uint64_t length, struct mem_ref memory, store_done_fn *done);

/* --- overlay_change.c ------------------------------------------------------------------------ */

/* Processes a write, trim or zero. */
void overlay_change(struct store_part *part);
/* Called with the result of a part that overlay_change() has forwarded. */
void overlay_change_done(struct store_part *part, int result);
void overlay_change_resume(struct store_part *part, enum overlay_step step);

/* --- overlay_commit.c ------------------------------------------------------------------------ */

/* Called under the lock before blocks become present: records that their pages have changed. */
void overlay_pages_changed(struct overlay_store *store, uint64_t first, uint64_t end);
/* Returns whether the bits of the blocks are durable. */
bool overlay_is_saved(const struct overlay_store *store, uint64_t first, uint64_t end);
/* Makes all changes durable that were complete before this call, then finishes the part. */
void overlay_commit(struct store_part *part);
/* Runs the next commit. Called for the first part that waits for this commit, when the previous
 * commit has ended. */
void overlay_commit_lead(struct store_part *part);
/* Commits, and blocks until the commit is complete. Only while no queue exists. */
GMB_MUST_CHECK int overlay_commit_all(struct overlay_store *store);
