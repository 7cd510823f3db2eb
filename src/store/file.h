// SPDX-License-Identifier: Apache-2.0
/*
 * The file store: a regular file or a block device, through the page cache ("cached") or around it
 * ("direct", O_DIRECT), chosen per direction. This header is shared by file*.c only.
 *
 *   file_store ─ fd          buffered: cached mode, everything unaligned, trim, zero, extents
 *              ├ direct_fd   O_DIRECT, only when a direction is "direct"
 *              └ file_gate   one per file and process: keeps unaligned and direct writes apart
 *   file_queue ─ the same descriptors in the ring's table, and one more, only for flushing
 *
 * What is guaranteed about size: no request reaches beyond the size last seen. The size is asked
 * again when a request does not fit, when a read meets the end of the file, and by store_size(). A
 * file that another program has cut and nobody has looked at since can grow again by a write into
 * the range that was there; every look from then on makes such writes fail with -EIO.
 *
 * Flushing uses a descriptor of its own in every queue, because the kernel reports a failed
 * write-back once to each open file: so no other operation, and no other reactor, can take the
 * report away from a flush. One failed flush or FUA stays an error for every later one (file_gate).
 *
 * Threading: as store.h. Ownership: the store owns descriptors and its share of the gate.
 * Errors: negative errno; -EIO when the disk ends early.
 */
#pragma once

#include <stdatomic.h>

#include "disk/disk.h"
#include "store/file_gate.h"
#include "store/store.h"

enum file_unsupported {
	FILE_NO_TRIM = 1 << 0,
	FILE_NO_PUNCH = 1 << 1,	     /* zero by making a hole; devices: fast */
	FILE_NO_ZERO_RANGE = 1 << 2, /* zero that stays provisioned; devices: fast */
	FILE_NO_DEVICE_ZERO = 1 << 3,
	FILE_NO_CLONE = 1 << 4,
	FILE_NO_COPY_RANGE = 1 << 5,
};

/* A descriptor to be closed; allocated with its queue, so that destroying cannot fail. */
struct file_retired {
	struct file_retired *next;
	int fd;
};

struct file_store {
	struct store base;
	char *path;
	struct disk_info disk;
	uint8_t machine[DISK_BOOT_ID_BYTES]; /* zeroes: not known */
	int fd;
	int direct_fd;	       /* or -1 */
	bool read_auto;	       /* there is a direct_fd, and a map */
	uint32_t offset_align; /* of direct I/O */
	uint32_t memory_align;
	uint64_t unit;		 /* page or filesystem block: what trim and zero work in */
	struct disk_map *map;	 /* NULL = it is not known what is in the page cache */
	const char *map_refusal; /* why, see store_page_cache_refusal() */
	struct file_gate *gate;
	bool is_claimed;   /* through the gate, by a store that writes */
	int read_claim_fd; /* of a store that only reads; -1 = nothing to hold */
	struct file_gate_member member;
	_Atomic uint64_t size;	      /* last seen */
	_Atomic uint32_t unsupported; /* enum file_unsupported, found out by trying */
	/* Descriptors of destroyed queues. They are closed together with the store: closing may
	 * block, which a ring's thread must not. */
	_Atomic(struct file_retired *) retired;
};

/* See file_auto.c. */
enum file_way { FILE_WAY_DIRECT, FILE_WAY_CACHED, FILE_WAY_COUNT };

struct file_auto {
	uint64_t *seen[2]; /* bits of blocks, in two generations; NULL: not mode=auto */
	uint64_t block_count;
	uint64_t young_count;	       /* bits set in the younger generation */
	bool young;		       /* which one that is */
	enum file_way way;	       /* of the reads of this window */
	uint64_t rate[FILE_WAY_COUNT]; /* bytes a second; 0 = unknown */
	uint64_t window_offset;
	uint64_t window_bytes; /* 0: the next read begins one */
	uint64_t window_ns;    /* without pauses */
	uint64_t last_ns;
	uint64_t window_count;
	uint64_t quiet_bytes; /* so many more go direct even when they are in the page cache */
};

struct file_queue {
	struct store_queue base;
	struct ring_file file;
	struct ring_file direct; /* fd -1 = none */
	struct ring_file sync;
	struct file_gate_port port;
	uint64_t inline_again_ns; /* until then, cached writes go to worker threads */
	uint32_t inline_slow_count;
	struct ring_op sync_op;
	struct list_node sync_waiting; /* for the flush after the one in flight */
	struct list_node sync_riding;  /* on the flush in flight */
	struct file_retired *retired;
	uint64_t direct_transfers; /* counters */
	uint64_t blocked_writes;
	struct file_auto ways;
	uint64_t auto_bytes[FILE_WAY_COUNT];
	uint64_t auto_again_bytes;
};

/* A part's scratch; the store is the innermost layer, so it is at the beginning. */
struct file_scratch {
	uint64_t done_bytes; /* by earlier transfers */
	uint64_t piece;	     /* bytes of the transfer in flight */
	uint32_t phase;	     /* of file_zero.c */
	uint32_t retries;
	uint32_t gate; /* enum file_gate_class: what the part holds */
	bool around;   /* a read that goes around the page cache where it can */
};

_Static_assert(sizeof(struct file_scratch) <= STORE_SCRATCH_BYTES, "fits a part");

static inline struct file_scratch *file_scratch_of(struct store_part *part)
{
	return (struct file_scratch *)(void *)part->scratch;
}

static inline struct file_store *file_store_of(const struct store_part *part)
{
	return container_of(part->queue->store, struct file_store, base);
}

static inline struct file_queue *file_queue_of(const struct store_part *part)
{
	return container_of(part->queue, struct file_queue, base);
}

static inline struct store_part *file_part_of(struct ring_op *op)
{
	return container_of(op, struct store_part, io);
}

/* file.c */

/* Leaves the gate and ends the part with a result that the contract allows. */
void file_finish(struct store_part *part, int result);
/* Asks for the size again and remembers it. */
uint64_t file_refresh_size(struct file_store *store);
/*
 * True when the result only means "again": then again is called, at once or a little later.
 * Not for ever: a descriptor that answers nothing else is an error in the end.
 */
bool file_retry(struct store_part *part, int result, ring_done_fn *again);
/* True when the transfer can bypass the page cache. */
bool file_fits_direct(
	const struct file_store *store, uint64_t offset, struct mem_ref memory, uint64_t length);
/* Enters the gate as a write of this kind must, leaving what is held. False: it waits, and
 * file_resume() is called when it is inside. */
bool file_write_enter(struct store_part *part, bool direct);
/* Called by the gate on the part's ring: the part is inside now. */
void file_resume(struct store_part *part);

/* file_sync.c */

void file_flush(struct store_part *part);
void file_sync_init(struct file_queue *queue);
/* Ends a change: at once, or durable first when it was asked with FUA. */
void file_finish_durable(struct store_part *part);

/* file_zero.c */

void file_trim(struct store_part *part);
void file_zero(struct store_part *part);
void file_zero_resume(struct store_part *part);

/* file_page_cache.c */

/* Prepares the store for it, where that can be, and for mode=auto. */
void file_page_cache_init(struct file_store *store, const struct store_options *options);
bool file_page_cache_ref(struct store_queue *queue, struct store_part *part);
const char *file_page_cache_refusal(struct store *store);

/* file_copy.c */

uint32_t file_copy_ways(struct store *target, struct store *source, uint64_t *clone_align);
/* Also where a piece goes on that had to wait for the gate. */
void file_copy(struct store_part *part);

/* file_auto.c: of a store with read_auto; else without effect */

/* False: no memory. */
GMB_MUST_CHECK bool file_auto_init(struct file_queue *queue);
void file_auto_fini(struct file_queue *queue);
/* A read begins: true when it is to go around the page cache. Called once for each. */
bool file_auto_goes_direct(struct store_part *part);
/* True while a read like this one, a large one, leaves the page cache alone, whatever is in it. */
bool file_auto_is_quiet(const struct file_queue *queue, const struct store_part *part);
/* A read is sent from the page cache. */
void file_auto_resident(struct store_part *part);
/* A client has said that it will read length bytes from there: they may be kept. */
void file_auto_announced(struct store_part *part, uint64_t length);

/* file_extents.c */

void file_cache(struct store_part *part);
void file_extents(struct store_part *part);
