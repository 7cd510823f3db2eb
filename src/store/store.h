// SPDX-License-Identifier: Apache-2.0
/*
 * Where blocks live. A store is opened once and shared by all reactors; each reactor creates a
 * queue on it and submits parts. Implementations: file (regular file or block device, through the
 * page cache or around it), memory, null; fault, delay and pace wrap another store.
 *
 *   session ─▶ path ─▶ store_submit(queue, part) ─▶ [fault] ─▶ [delay] ─▶ [pace] ─▶ file | memory
 *                            part->done(part, result) ◀──────────────────────┘      | null
 *
 * Threading: open and close on any one thread while no queue exists; a queue and its parts belong
 * to the ring's thread. store_info() is constant after open but for size (store_size()). Ownership:
 * the submitter owns the part and the memory it points to; the store holds both from submit until
 * done. Errors: done gets 0 for complete success (a short transfer never reaches the submitter) or
 * a negative errno: -EIO the disk failed or ended early, -ENOSPC, -EPERM read-only, -EOPNOTSUPP a
 * fast zero that would be slow, -EINVAL never (the wrapper asserts the range). Submitting never
 * fails, and done is never called from inside it. Once a flush, or a part with STORE_FUA, has
 * failed, every later one gets the same error until the store is opened anew: the operating system
 * may have dropped what it could not write, so trying again would only hide the loss. Other parts
 * go on. (A durable part that failed for lack of space or support has lost nothing and does not
 * count.)
 *
 * A store that knows how far a read has come before it is complete reports it by store_progress().
 * The sources: completion (the default: nothing but done), counter (a producer of ours, which
 * counts what it has put in place) and marker (experimental: memory is watched while a device fills
 * it).
 */
#pragma once

#include <stdatomic.h>

#include "base/error.h"
#include "base/list.h"
#include "ring/ring.h"

enum store_op {
	STORE_READ,
	STORE_WRITE,
	STORE_FLUSH,
	STORE_TRIM,    /* contents undefined afterwards; advisory */
	STORE_ZERO,    /* reads as zeroes afterwards */
	STORE_CACHE,   /* hint: will be read soon */
	STORE_EXTENTS, /* which ranges are data, holes, zeroes */
	STORE_OP_COUNT
};

/* As users write it: "read", "write", "flush", "trim", "zero", "cache", "extents". */
const char *store_op_name(enum store_op op);

enum store_flag {
	STORE_FUA = 1 << 0,	  /* done only when durable; write, trim, zero */
	STORE_NO_HOLE = 1 << 1,	  /* zero: the range stays provisioned */
	STORE_FAST_ZERO = 1 << 2, /* zero: -EOPNOTSUPP at once unless faster than writing */
};

/* Extent flags have the values of NBD base:allocation, which every block protocol shares. */
enum store_extent_flag { STORE_EXTENT_HOLE = 1 << 0, STORE_EXTENT_ZERO = 1 << 1 };

struct store_extent {
	uint64_t length; /* bytes, > 0 */
	uint32_t flags;	 /* enum store_extent_flag */
};

enum store_cap {
	STORE_CAP_WRITE = 1 << 0, /* clear: read-only, writes are never submitted */
	STORE_CAP_TRIM = 1 << 1,
	STORE_CAP_FAST_ZERO = 1 << 2, /* some ranges can be zeroed faster than written */
	STORE_CAP_EXTENTS = 1 << 3,   /* can tell holes; else everything is one data extent */
	STORE_CAP_ROTATIONAL = 1 << 4,
};

struct store_info {
	const char *kind;   /* "file", "block device", "memory", "null" */
	uint32_t caps;	    /* enum store_cap */
	uint32_t block_min; /* requests of any alignment are served; this is the smallest efficient
			     * unit without read-modify-write, a power of two, 1 to 65536 */
	uint32_t block_preferred; /* a power of two, >= max(512, block_min) */
	uint32_t memory_align;	  /* part memory aligned to this avoids a bounce copy; 1 = any */
	uint32_t offset_align;	  /* direct I/O is made of whole blocks of this; 1 = any */
	/* enum mem_right: what it needs of part memory; see store_rights(). */
	uint32_t memory_rights;
	bool read_direct; /* reads bypass the page cache */
	bool write_direct;
	uint64_t io_max;       /* largest single device command, 0 = unknown */
	uint32_t stripe_chunk; /* bytes per member, 0 = not striped */
	uint32_t stripe_members;
	bool has_progress;		  /* reads can report progress, see store_has_progress() */
	const _Atomic bool *progress_off; /* turns true when that source gives up; NULL: it never
					   * does. Lives as long as the store */
};

struct store;
struct store_queue;
struct store_part;

typedef void store_done_fn(struct store_part *part, int result);
typedef void store_progress_fn(struct store_part *part, uint64_t bytes);

enum { STORE_FILTERS_MAX = 4 };

struct store_part {
	/* Set by the submitter, unchanged until done. */
	enum store_op op;
	uint32_t flags;
	uint64_t offset;       /* bytes; flush: 0 */
	uint64_t length;       /* bytes, > 0 except for flush (0); read and write: <= 1 GiB */
	struct mem_ref memory; /* read and write only; store_page_cache_ref() sets it */
	store_done_fn *done;
	/* Reads: called when more of the first bytes are in place, zero or more times before done
	 * and never from inside submit; see store_progress(). NULL = not wanted. */
	store_progress_fn *progressed;
	/* How often: after the first so many bytes, then after each so many more. A store may take
	 * larger steps. */
	uint64_t progress_first;
	uint64_t progress_step;

	/* STORE_EXTENTS: room for extent_max entries (> 0), set by the submitter; the store fills
	 * at least one, neighbours differ, and together they cover at most length bytes from offset
	 * (they may stop early: ask again from there). */
	struct store_extent *extents;
	uint32_t extent_max;
	uint32_t extent_count;

	/* Private to the stores while submitted. */
	struct ring_op io;
	struct list_node node;
	struct store_queue *queue;
	uint64_t progress; /* bytes already done by earlier transfers */
	uint64_t piece;	   /* bytes of the transfer in flight */
	uint32_t phase;
	uint32_t retries;
	uint32_t gate; /* what the part holds of its file's gate */
	uint64_t progress_bytes;
	bool progress_broken; /* its producer reported the impossible */
	struct {
		store_done_fn *done;
		struct store_queue *queue;
		store_progress_fn
			*progressed; /* the submitter's, of a filter that reports itself */
		uint64_t arrived_ns; /* the filter's own use */
	} frames[STORE_FILTERS_MAX]; /* what each filter must restore, innermost last */
	uint32_t frame_count;
};

struct store_ops {
	const char *name;
	void (*close)(struct store *store);
	int (*queue_create)(struct store *store, struct ring *ring, struct store_queue **queue_out,
		struct error *error);
	void (*queue_destroy)(struct store_queue *queue); /* nothing in flight on it */
	void (*submit)(struct store_queue *queue, struct store_part *part);
	/* Sets part->memory when it can; store_page_cache_ref() does the rest. NULL: it
	 * never can. */
	bool (*page_cache_ref)(struct store_queue *queue, struct store_part *part);
	/* See store_page_cache_refusal(). Any thread. NULL: there is no reason. */
	const char *(*page_cache_refusal)(struct store *store);
	/* Current size in bytes; re-asks the operating system. Any thread. */
	uint64_t (*size)(struct store *store);
};

/* First member of every implementation's own struct. */
struct store {
	const struct store_ops *ops;
	struct store_info info;
	bool page_cache_send_off; /* private: as asked for */
	_Atomic int
		broken; /* private: the error of the first failed flush or durable write, or 0 */
};

/* First member of every implementation's own queue. */
struct store_queue {
	struct store *store;
	struct ring *ring;
	uint32_t inflight_count;
	const struct store_part *submitting; /* private: shows a done from inside submit */
};

enum store_mode { STORE_MODE_CACHED, STORE_MODE_DIRECT };

enum store_progress_source {
	STORE_PROGRESS_AUTO,	   /* counters, where that pays */
	STORE_PROGRESS_COMPLETION, /* done and nothing else */
	STORE_PROGRESS_COUNTER,	   /* counters; who has none is refused */
	STORE_PROGRESS_MARKER,	   /* markers; only on disks where that can be right */
};

/* A fault or delay rule, see gmblock-serve(1). Parsed by store_fault_parse()
 * and store_delay_parse(). */
struct store_rule {
	uint32_t ops;	       /* bit set of BIT(enum store_op) */
	int error;	       /* negative errno (fault) */
	uint64_t delay_ns;     /* delay */
	uint64_t nth;	       /* exactly the nth matching part (1-based), 0 = off */
	uint64_t every;	       /* every n-th matching part, 0 = off */
	double probability;    /* 0..1; used when nth and every are 0; default 1 */
	uint64_t range_offset; /* only parts that touch the range; length 0 = all */
	uint64_t range_length;
};

enum { STORE_RULES_MAX = 16 };

/* As slow as a disk, or as a stripe of several; see gmblock-serve(1). Parsed by store_pace_parse().
 */
struct store_pace {
	uint64_t rate;	     /* bytes a second of one member; 0 = as fast as the store is */
	uint64_t latency_ns; /* of a member, before each part */
	uint32_t members;    /* 1 to STORE_PACE_MEMBERS_MAX */
	uint32_t chunk;	     /* bytes on one member before the next; more than one member only */
};

enum { STORE_PACE_MEMBERS_MAX = 64 };

struct store_options {
	const char *path; /* a path, "memory:SIZE" or "null:SIZE" */
	bool read_only;
	enum store_mode read_mode;
	enum store_mode write_mode;
	const struct store_rule *faults; /* borrowed during open */
	uint32_t fault_count;
	const struct store_rule *delays;
	uint32_t delay_count;
	struct store_pace pace;
	uint32_t stripe_chunk; /* overrides what the disk says; 0 = it does not */
	uint32_t stripe_members;
	enum store_progress_source progress;
	bool page_cache_send_off; /* store_page_cache_ref() is always false */
};

/* "OP:ERRNO[:nth=N|every=N|prob=P][:range=OFF+LEN]"; -EINVAL with the reason in *error,
 * which can be shown as it is and leaves it to the caller to say that it is about a fault. */
GMB_MUST_CHECK int store_fault_parse(
	const char *text, struct store_rule *rule, struct error *error);
/* "OP:TIME[:range=OFF+LEN]", the same. */
GMB_MUST_CHECK int store_delay_parse(
	const char *text, struct store_rule *rule, struct error *error);
/* "RATE[:latency=TIME][:members=K][:chunk=SIZE]", the same. */
GMB_MUST_CHECK int store_pace_parse(const char *text, struct store_pace *pace, struct error *error);

/* True when this build has the marker source. */
bool store_has_markers(void);

/* Opens and wraps as asked. mode "direct" that the file cannot do is an error that says so, never a
 * silent fallback. */
GMB_MUST_CHECK int store_open(
	const struct store_options *options, struct store **store_out, struct error *error);
/* All queues must be destroyed. NULL is a no-op. */
void store_close(struct store *store);

static inline const struct store_info *store_info(const struct store *store)
{
	return &store->info;
}
/* What the memory of a part must allow: of a write it is only read. */
static inline uint32_t store_rights(const struct store *store, enum store_op op)
{
	return store->info.memory_rights &
	       (op == STORE_WRITE ? ~(uint32_t)MEM_CPU_WRITE : UINT32_MAX);
}
/* True while reads may report progress before they are done. Any thread, each time it matters. */
static inline bool store_has_progress(const struct store *store)
{
	const _Atomic bool *off = store->info.progress_off;

	/* Relaxed: a read that misses the change only gets fewer reports. */
	return store->info.has_progress &&
	       (off == NULL || !atomic_load_explicit(off, memory_order_relaxed));
}
/* Bytes, exactly; grows and shrinks are seen. Cheap enough for a connection, not for a request. */
uint64_t store_size(struct store *store);

GMB_MUST_CHECK int store_queue_create(struct store *store, struct ring *ring,
	struct store_queue **queue_out, struct error *error);
void store_queue_destroy(struct store_queue *queue);

/* The only way to submit: asserts the contract, counts, and calls the implementation. */
void store_submit(struct store_queue *queue, struct store_part *part);

/* Shorter reads are never sent from the page cache: looking it up costs as much as the copy. */
enum { STORE_PAGE_CACHE_BYTES_MIN = 128 << 10 };
/* What may be done with the page cache: it must not be read by a program. */
#define STORE_PAGE_CACHE_RIGHTS ((uint32_t)(MEM_SOCKET | MEM_ADDRESS))

/*
 * Submits a read whose bytes will be sent from the page cache (or memory of the store) instead of
 * being copied to memory of the submitter. True: submitted; part->memory refers to the bytes until
 * the queue is destroyed. They may be given to the kernel but must not be read, and a system call
 * that reads them may fail with -EFAULT (see disk/disk.h). False: nothing has happened; submit the
 * part with memory. The part is as for store_submit(), without memory. Ranges that may be all
 * zeroes are refused: a hole is cheaper to send.
 */
GMB_MUST_CHECK bool store_page_cache_ref(struct store_queue *queue, struct store_part *part);

/*
 * Why store_page_cache_ref() is false for every read at present, or NULL: it can be true. One of
 * "page-cache-send=off" (as asked for), "mode=direct" and "write-mode=direct" (around the page
 * cache), "shared" (another export writes around it), "network" (a network file system, or FUSE),
 * "overlay" (a file that is only read in an overlay file system, where a copy can take its place),
 * "foreign" (a file of another user that may only be read), "address-space" (too little to map the
 * file), "empty", and the name of a kind or filter that cannot ("null", "fault", "delay", "pace",
 * "marker"). Static text.
 */
const char *store_page_cache_refusal(struct store *store);

/* Ends a part: called by implementations and filters, once per part they were given. */
void store_finish(struct store_part *part, int result);

/*
 * Says that the first bytes of a read's memory have their final value and will not be written
 * again. Called by implementations and filters between submit and finish. It only grows, and stays
 * below the length: the rest comes with store_finish(), so that nobody has all bytes of a part
 * before it is known that they are good. Who breaks that is refused: nothing is passed on, and the
 * part will fail with -EIO. A part that fails in the end may have reported progress before.
 */
void store_progress(struct store_part *part, uint64_t bytes);
