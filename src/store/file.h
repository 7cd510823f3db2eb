// SPDX-License-Identifier: Apache-2.0
/*
 * The file store: a regular file or a block device, accessed through the page cache ("cached") or
 * around it ("direct", O_DIRECT), chosen per direction. Only file*.c include this header.
 *
 *   file_store ─ fd          buffered: cached mode, everything unaligned, trim, zero, extents
 *              ├ direct_fd   O_DIRECT, only when a direction is "direct"
 *              └ file_gate   one per file and process: keeps unaligned and direct writes apart
 *   file_queue ─ the same descriptors in the ring's table, and one more, only for flushing
 *
 * Size: requests beyond the last known size fail. The size is checked again when a request does not
 * fit, when a read reaches the end of the file, and by store_size(). If another program truncates
 * the file and the size has not been checked since, a write into the removed range can extend the
 * file again. From the next check on, such writes fail with -EIO.
 *
 * Flushing: each queue has its own open file for flushes, because the kernel reports a failed
 * write-back once per open file. So no other operation and no other reactor can receive the report
 * instead of the flush. After a failed flush or FUA write, all later flushes and FUA writes fail
 * (file_gate.h).
 *
 * Threading: see store.h. Ownership: the store owns its descriptors and its reference to the gate.
 * Errors: negative errno; -EIO if the disk ends early.
 */
#pragma once

#include <stdatomic.h>

#include "base/trial.h"
#include "disk/disk.h"
#include "store/file_gate.h"
#include "store/store.h"

enum file_unsupported {
	FILE_NO_TRIM = 1 << 0,
	/* PUNCH_HOLE: zeroing that may free the space */
	FILE_NO_PUNCH = 1 << 1,
	FILE_NO_ZERO_RANGE = 1 << 2, /* ZERO_RANGE: zeroing that keeps the space allocated */
	FILE_NO_DEVICE_ZERO = 1 << 3,
	FILE_NO_CLONE = 1 << 4,
	FILE_NO_COPY_RANGE = 1 << 5,
};

/* A descriptor that is closed together with the store. Allocated together with its queue, so that
 * destroying a queue cannot fail. */
struct file_retired {
	struct file_retired *next;
	int fd;
};

struct file_store {
	struct store base;
	char *path;
	struct disk_info disk;
	uint8_t machine[DISK_BOOT_ID_BYTES]; /* the machine that has the disk; zeroes: unknown */
	int fd;
	int direct_fd;	       /* -1: none */
	bool read_auto;	       /* mode=auto applies: the store has a direct_fd and a map */
	uint32_t offset_align; /* alignment required for direct I/O */
	uint32_t memory_align;
	uint64_t unit; /* page or filesystem block: granularity of trim and zero */
	/* map of the page cache; NULL: cannot find out which data is in the page cache */
	struct disk_map *map;
	struct mem_region pages; /* the file, for reads that are sent from the page cache */
	const char *map_refusal; /* reason why map is NULL, see store_page_cache_refusal() */
	struct file_gate *gate;
	/* this store writes and has claimed the disk; the gate holds the claim */
	bool is_claimed;
	int read_claim_fd; /* descriptor that marks the disk as served for reading; -1: none */
	struct file_gate_member member;
	_Atomic uint64_t size; /* last known size */
	/* enum file_unsupported: operations that the disk does not support */
	_Atomic uint32_t unsupported;
	/* Descriptors of destroyed queues. They are closed together with the store, because closing
	 * a file can block. */
	_Atomic(struct file_retired *) retired;
};

/* See file_auto.c. */
enum file_way { FILE_WAY_CACHED, FILE_WAY_DIRECT, FILE_WAY_COUNT };

struct file_auto {
	/* bitmaps of blocks that were read, two generations; NULL: not mode=auto */
	uint64_t *seen[2];
	uint64_t block_count;
	uint64_t young_count; /* number of bits set in the younger generation */
	bool young;	      /* index (0 or 1) of the younger generation */
	struct trial trial;   /* of the methods; its ways are enum file_way */
	uint64_t window_offset;
	uint64_t window_bytes; /* bytes read in this window; 0: the next read begins a window */
	uint64_t window_ns;    /* duration of its timed part without the clients' pauses */
	bool window_paused;    /* window_ns contains only a part of a pause */
	uint64_t last_ns;
	/* bytes still to be read directly even if they are in the page cache, see file_auto.c */
	uint64_t quiet_bytes;
};

struct file_queue {
	struct store_queue base;
	struct ring_file file;
	struct ring_file direct; /* fd is -1 if the store has no direct_fd */
	struct ring_file sync;
	struct file_gate_port port;
	uint64_t inline_again_ns; /* time until which no transfer is made on this thread */
	uint32_t inline_slow_count;
	struct ring_op sync_op;
	/* flushes that arrived during the current system call and wait for the next one */
	struct list_node sync_waiting;
	struct list_node sync_riding; /* flushes that the current system call completes */
	struct file_retired *retired;
	uint64_t direct_transfers; /* this member and the following ones are counters */
	uint64_t blocked_writes;
	struct file_auto ways;
	uint64_t auto_bytes[FILE_WAY_COUNT];
	uint64_t auto_again_bytes;
};

/* The store's private data in a part. This store is the innermost layer, so it is at the start of
 * the scratch. */
struct file_scratch {
	uint64_t done_bytes; /* bytes already transferred */
	uint64_t piece;	     /* length of the transfer in flight */
	uint32_t phase;	     /* state of file_zero.c */
	uint32_t retries;
	uint32_t gate; /* enum file_gate_class with which the part has entered the gate */
	bool around;   /* the part is a read that should bypass the page cache */
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

/* Leaves the gate and finishes the part, mapping the result to one that store.h allows. */
void file_finish(struct store_part *part, int result);
/* Queries the size from the system, stores and returns it. */
uint64_t file_refresh_size(struct file_store *store);
/*
 * Returns true if the operation must be retried (-EINTR, -EAGAIN); again is then called,
 * immediately or a little later. Returns false for other results, and after RETRIES_MAX retries.
 */
bool file_retry(struct store_part *part, int result, ring_done_fn *again);
/* Returns whether the transfer has the alignment and memory that direct I/O requires. */
bool file_fits_direct(
	const struct file_store *store, uint64_t offset, struct mem_ref memory, uint64_t length);
/* Puts the part into the gate class that a direct or buffered write requires, and takes it out of
 * another class. Returns false if the part has to wait; file_resume() is then called after the gate
 * has admitted it. */
bool file_write_enter(struct store_part *part, bool direct);
/* Called on the part's ring after the gate has admitted a part that had to wait. */
void file_resume(struct store_part *part);

/* file_sync.c */

void file_flush(struct store_part *part);
void file_sync_init(struct file_queue *queue);
/* Finishes a part that has changed data: immediately, or with STORE_FUA after making it durable. */
void file_finish_durable(struct store_part *part);

/* file_zero.c */

void file_trim(struct store_part *part);
void file_zero(struct store_part *part);
void file_zero_resume(struct store_part *part);

/* file_page_cache.c */

/* Prepares for sending from the page cache, if possible, and for mode=auto. */
void file_page_cache_init(struct file_store *store, const struct store_options *options);
bool file_page_cache_ref(struct store_queue *queue, struct store_part *part);
const char *file_page_cache_refusal(struct store *store);

/* file_copy.c */

uint32_t file_copy_ways(struct store *target, struct store *source, uint64_t *clone_align);
/* Starts a copy, or continues one that waited at the gate. */
void file_copy(struct store_part *part);

/* file_auto.c: functions for stores with read_auto, without effect on others */

/* Returns false if there is not enough memory. */
GMB_MUST_CHECK bool file_auto_init(struct file_queue *queue);
void file_auto_fini(struct file_queue *queue);
/* Returns whether the read that begins should bypass the page cache. Called once for each read. */
bool file_auto_goes_direct(struct store_part *part);
/* Returns whether a large read like this one must bypass the page cache even if the data is in
 * it. */
bool file_auto_is_quiet(const struct file_queue *queue, const struct store_part *part);
/* Records a read that is sent from the page cache. */
void file_auto_resident(struct store_part *part);
/* Records that a client will read length bytes from the part's offset. The page cache may then keep
 * them. */
void file_auto_announced(struct store_part *part, uint64_t length);

/* file_extents.c */

void file_cache(struct store_part *part);
void file_extents(struct store_part *part);
