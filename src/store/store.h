// SPDX-License-Identifier: Apache-2.0
/*
 * Where blocks live. A store is opened once and shared by all reactors; each reactor creates a
 * queue on it and submits parts. Kinds and filters are registered at start (kind.h): file (regular
 * file or block device, through the page cache or around it), memory, null; the filters overlay,
 * fault, delay and pace wrap a store.
 *
 *   session ─▶ path ─▶ store_submit(queue, part) ─▶ [fault] ─▶ [delay] ─▶ [pace] ─▶ file | memory
 *                            part->done(part, result) ◀──────────────────────┘      | null
 *
 * Threading: open and close on any one thread while no queue exists; a queue and its parts belong
 * to the ring's thread. store_info() is constant after open; what changes later has a function of
 * its own: store_size(), store_epoch(). Ownership: the submitter owns the part and the memory it
 * points to; the store holds both from submit until done. Errors: done gets 0 for complete success
 * (a short transfer never reaches the submitter) or a negative errno: -EIO the disk failed or ended
 * early, -ENOSPC, -EPERM read-only, -EOPNOTSUPP a fast zero that would be slow, or a copy that the
 * system cannot make, -EINVAL never (the
 * wrapper asserts the range). Submitting never fails, and done is never called from inside it. Once
 * a flush, or a part with STORE_FUA, has failed, every later one gets the same error until the
 * store is opened anew: the operating system may have dropped what it could not write, so trying
 * again would only hide the loss. Other parts go on. (A durable part that failed for lack of space
 * or support has lost nothing and does not count, nor does a flush with STORE_NOTHING_LOST.)
 *
 * A store that knows how far a read has come before it is complete reports it by store_progress().
 * The sources: completion (the default: nothing but done), counter (a producer of ours, which
 * counts what it has put in place) and marker (experimental: memory is watched while a device fills
 * it).
 */
#pragma once

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "base/counter.h"
#include "base/error.h"
#include "base/list.h"
#include "base/schema.h"
#include "ring/ring.h"

enum store_op {
	STORE_READ,
	STORE_WRITE,
	STORE_FLUSH,
	STORE_TRIM,    /* contents undefined afterwards; advisory */
	STORE_ZERO,    /* reads as zeroes afterwards */
	STORE_CACHE,   /* hint: will be read soon */
	STORE_EXTENTS, /* which ranges are data, holes, zeroes */
	STORE_COPY,    /* from another store, which the system does by itself: store_copy_ways() */
	STORE_OP_COUNT
};

/* A set of BIT(enum store_op): those that change data. */
#define STORE_CHANGES (BIT(STORE_WRITE) | BIT(STORE_TRIM) | BIT(STORE_ZERO) | BIT(STORE_COPY))

/* As users write it: "read", "write", "flush", "trim", "zero", "cache", "extents", "copy". */
const char *store_op_name(enum store_op op);

enum store_flag {
	STORE_FUA = 1 << 0,	  /* done only when durable; write, trim, zero, copy */
	STORE_NO_HOLE = 1 << 1,	  /* zero: the range stays provisioned */
	STORE_FAST_ZERO = 1 << 2, /* zero: -EOPNOTSUPP at once unless faster than writing */
	/* Read and write: one of those by which the rate of the disk is measured. */
	STORE_MEASURED = 1 << 3,
	/* Read: its neighbours follow, and each is to complete on its own. The block layer would
	 * merge what it gets in one call (docs/design/0008). */
	STORE_APART = 1 << 4,
	/* Flush, of a store for which store_settles() is true: the last one before another process
	 * may take over, which finds on the disk whatever it needs. */
	STORE_SETTLE = 1 << 5,
	/* Set by the store with a flush that fails: all that it was for is still there, and a later
	 * one may succeed. */
	STORE_NOTHING_LOST = 1 << 6,
};

/* How soon what is written will be overwritten or trimmed, as far as its writer knows. */
enum store_lifetime {
	STORE_LIFETIME_UNKNOWN,
	STORE_LIFETIME_SHORT,
	STORE_LIFETIME_MEDIUM,
	STORE_LIFETIME_LONG,
};

/* What is known of a request beyond its bytes, for those who choose an order or a place. Nothing
 * depends on it for its correctness. Zeroes: nothing is known. */
struct store_hints {
	uint64_t requester;   /* the connection that asks, as struct peer has it */
	uint64_t deadline_ns; /* when it should be done, in time of the ring */
	uint32_t stream;      /* of the requester; its requests with that number form a sequence */
	enum store_lifetime lifetime; /* of what is written */
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
	STORE_CAP_CALLS = 1 << 5, /* trim and zero occupy a worker thread of the ring */
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
	/* As asked for with mode=device: payload is in memory of a PCI device, where that can be.
	 */
	bool read_device;
	bool write_device;
	bool device_cpu;       /* the processor may move it to and from sockets there */
	uint32_t part_bytes;   /* requests are cut into parts of this size; 0: as the path does */
	uint64_t io_max;       /* largest single device command, 0 = unknown */
	uint32_t stripe_chunk; /* bytes per member, 0 = not striped */
	uint32_t stripe_members;
	/* A write with STORE_FUA of at most so many bytes, whose offset and length are multiples of
	 * block_min, is there as a whole or not at all after a crash, if it is submitted as one
	 * part. memory_rights has MEM_CPU_READ then. 0: nothing is promised. */
	uint32_t atomic_bytes;
	bool is_volatile; /* what was written is lost with the process */
	uint64_t epoch;	  /* of its own, see struct export: known once it has started. 0: none */
	uint64_t budget_bytes;		  /* memory that it wants, see struct store_start */
	bool has_progress;		  /* reads can report progress, see store_has_progress() */
	const _Atomic bool *progress_off; /* turns true when that source gives up; NULL: it never
					   * does. Lives as long as the store */
};

struct store;
struct store_claim;
struct store_kind;
struct store_ops;
struct store_queue;
struct store_part;

/* How the system copies between two stores without a program that moves the bytes. */
enum store_copy_way {
	STORE_COPY_CLONE = 1 << 0, /* both share the blocks from then on: FICLONERANGE */
	STORE_COPY_RANGE = 1 << 1, /* the kernel moves the bytes: copy_file_range() */
};

/* From where a STORE_COPY takes its bytes, and by which of store_copy_ways(). */
struct store_copy {
	struct store *source;
	uint64_t offset;
	enum store_copy_way way;
};

/* What one part takes: it occupies a worker thread, and cannot be cancelled. */
enum { STORE_COPY_BYTES_MAX = 64 << 20 };

typedef void store_done_fn(struct store_part *part, int result);
typedef void store_progress_fn(struct store_part *part, uint64_t bytes);

enum { STORE_SCRATCH_BYTES = 128 };

struct store_part {
	/* Set by the submitter, unchanged until done. */
	enum store_op op;
	uint32_t flags;
	uint64_t offset;       /* bytes; flush: 0 */
	uint64_t length;       /* bytes, > 0 except for flush (0); read and write: <= 1 GiB */
	struct mem_ref memory; /* read and write only; store_page_cache_ref() sets it */
	struct store_hints hints;
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

	struct store_copy copy; /* STORE_COPY, set by the submitter */

	/* Set by the store until done, of memory that the CPU may not read (it is a device's): 0,
	 * or why the disk could not reach it: the processor has copied instead, or, with -ENODEV,
	 * could not either, and the part has failed. */
	int memory_error;

	/* Private to the stores while submitted. */
	struct ring_op io;
	struct list_node node;
	struct store_queue *queue; /* of the layer that works on it */
	struct store_queue *top;   /* it was submitted to */
	uint64_t progress_bytes;
	int result;	      /* on its way back from the owner */
	bool progress_broken; /* its producer reported the impossible */
	/* A slice for each layer, see kind.h. */
	alignas(8) uint8_t scratch[STORE_SCRATCH_BYTES];
};

/* How fast a disk is, measured while it has something to do. */
struct store_rate {
	uint64_t bytes_per_second; /* 0 = unknown */

	/* Private. */
	uint64_t busy_since_ns;
	uint64_t busy_bytes;
	uint32_t inflight;
};

/* A transfer begins; a transfer has ended. */
void store_rate_begin(struct store_rate *rate, uint64_t now_ns);
void store_rate_end(struct store_rate *rate, uint64_t bytes, uint64_t now_ns);

/* Parts on their way to another ring: pushed one by one, taken all at once. While there are any,
 * the message is on its way, or about to be. */
struct store_mailbox {
	struct ring_message message;
	_Atomic(struct list_node *) parts; /* the last one pushed; linked by next */
};

/* First member of every implementation's own queue. */
struct store_queue {
	struct store *store;
	struct ring *ring;
	struct store_queue *inner; /* of a filter */
	struct store_queue *outer; /* of the filter that wraps the store, or NULL */
	uint32_t inflight_count;
	const struct store_part *submitting; /* private: shows a done from inside submit */
	struct store_mailbox to_owner;	     /* private */
	struct store_mailbox from_owner;     /* private */

	/* Private, of a queue that the submitter has: see store_rate(), and STORE_APART. */
	struct store_rate rates[2]; /* reads, writes */
	uint64_t apart_turn_ns;
	uint32_t apart_count; /* in that turn */
};

/* The start of a store that needs a ring for it, or memory: see store_start(). */
struct store_start {
	/* Set by the caller, and held until done. */
	struct ring *ring;
	struct mem_ref memory; /* budget_bytes of RAM, all zero; kept while the store is open */
	void (*done)(struct store_start *start); /* on that ring, not from inside the call */
	void *context;
	/* Nothing is written before the first part: another process may go on with the disk, see
	 * store_settles(). */
	bool is_quiet;
	/* Any thread sets it: the store gives up soon, with -ECANCELED. */
	_Atomic bool cancelled;

	/* Set by the store. */
	int result;
	struct error error; /* with a negative result */
};

/* Somebody who wants to know that the size of a store has changed. */
struct store_watch {
	/* Set by its owner. Both are called on that ring. */
	struct ring *ring;
	void (*resized)(struct store_watch *watch);
	/* After store_watch_remove(), once, when the watch may be freed; perhaps from inside it. */
	void (*removed)(struct store_watch *watch);

	/* Private. */
	struct store *store;
	struct store_watch *next; /* under the store's lock, as is posted */
	struct ring_message message;
	bool posted;
	bool gone;
};

/* First member of every implementation's own struct. */
struct store {
	const struct store_ops *ops;
	struct store *inner; /* of a filter */
	struct store_info info;
	uint32_t scratch_offset;  /* private: of its slice */
	bool page_cache_send_off; /* private: as asked for */
	bool is_let_go;		  /* see store_let_go(); for close */
	bool is_view;		  /* parts fail with -ESTALE when the view has gone */
	_Atomic int
		broken; /* private: the error of the first failed flush or durable write, or 0 */

	/* Private, of a kind. */
	pthread_mutex_t watch_lock;
	void (*view_dropped)(void *context); /* see store_views_watch(); or NULL */
	void *view_context;
	struct store_watch *watches;
	struct store_start *start;
	_Atomic uint32_t start_permille;
	/* Of the parts of other rings. Its ring is NULL when the store has no owner. */
	struct store_queue owner;
};

enum store_mode {
	STORE_MODE_AUTO,   /* the default: for each read the way that suits it; writes are cached */
	STORE_MODE_CACHED, /* through the page cache */
	STORE_MODE_DIRECT, /* around it */
	STORE_MODE_DEVICE, /* the same, in memory of a PCI device; see store_info.read_device */
};

/* True when everything goes around the page cache. */
static inline bool store_mode_is_direct(enum store_mode mode)
{
	return mode == STORE_MODE_DIRECT || mode == STORE_MODE_DEVICE;
}

enum { STORE_KINDS_MAX = 16 };

/*
 * What a store is opened with. The members are for all kinds; each kind and filter has a
 * configuration of its own besides, made when one of its keys is set. Zeroes are the defaults.
 * store_options_fini() frees what store_options_set() has made.
 */
/* What a start may do about damage that it would refuse otherwise. */
enum store_repair {
	STORE_REPAIR_MAP = 1 << 0,  /* puts together what cannot be found any more */
	STORE_REPAIR_LOSS = 1 << 1, /* goes on without flushed changes that are lost */
};

struct store_options {
	const char *path; /* a path, or what the prefix of a kind begins; borrowed */
	bool read_only;
	bool frozen; /* with read_only: no server may write it meanwhile, see disk_claim_reading()
		      */
	bool sole;   /* no other store, of this process either, may write it meanwhile */
	/* For a store above: whatever the file begins with, and a host-managed device as well,
	 * which the parts that write must come to in the order of its zones. */
	bool any_format;
	bool page_cache_send_off; /* store_page_cache_ref() is always false */
	enum store_mode read_mode;
	enum store_mode write_mode; /* never STORE_MODE_CACHED: AUTO says that for writes */
	uint32_t stripe_chunk;	    /* overrides what the disk says; 0 = it does not */
	uint32_t stripe_members;
	/* What another process had of this disk, for kinds whose disk is the memory of a process;
	 * borrowed for the call of store_open(). NULL: nothing. */
	const struct store_claim *passed;
	uint32_t repairs;		/* enum store_repair, for kinds that can_repair */
	uint64_t keys_given;		/* private: a bit per option */
	void *configs[STORE_KINDS_MAX]; /* private: by kind; NULL = no key given */
};

/*
 * Adds a kind of store, or a filter. Filters wrap a store in the order of their registration, the
 * first innermost. At start, before any other thread; kind must stay. Keys and names are unique
 * (asserted).
 */
void store_register(const struct store_kind *kind);

/* The keys of an export, in the order of registration and those of all kinds first. */
const struct field *store_option_at(uint32_t idx);
/* Sets one key. value is copied or parsed; NULL: none was written. -EINVAL or -ERANGE with a
 * sentence that does not name the key; -ENOENT when there is no such key; -ENOMEM. */
GMB_MUST_CHECK int store_options_set(
	struct store_options *options, const char *key, const char *value, struct error *error);
void store_options_fini(struct store_options *options);
/* Whether the option, one of store_option_at(), has the same value in both: the one that was set,
 * or the default. */
bool store_options_same(
	const struct store_options *a, const struct store_options *b, const struct field *option);
/* Whether two paths name the same disk as far as their text can tell: the same file, or sizes that
 * are equal as numbers. */
bool store_path_same(const char *a, const char *b);
/* True when path begins with the prefix of a kind, such as "memory:". */
bool store_path_has_kind(const char *path);
/* store_needs_start() of the store that is opened for it. */
bool store_path_needs_start(const char *path);
/* The file or block device that a path names: the path itself, or what follows its prefix. */
const char *store_path_file(const char *path);
/* The idx-th file that the store opens beside path, as it opens path; NULL behind the last. */
const char *store_options_file(const struct store_options *options, uint32_t idx);
/* The folder of a tmpfs in which the store keeps what is to outlive the process; NULL: none. */
const char *store_options_memory_folder(const struct store_options *options);
/* True when path itself is never written. */
bool store_options_reads_only(const struct store_options *options);

/* What store_check() finds, in the order in which people read it. Text may have any bytes. */
struct store_check {
	/* Set by the caller. */
	const char *base; /* of an overlay: where it is now; NULL: where it was */
	void (*fact)(struct store_check *check, const char *name, const char *text);
	void (*amount)(struct store_check *check, const char *name, uint64_t bytes);
	/* Adds text to a list; NULL only makes the list. */
	void (*entry)(struct store_check *check, const char *list, const char *text);
	/* Something is wrong: a sentence without its full stop. */
	void (*fault)(struct store_check *check, const char *sentence);
};

/* Looks at a file of a format of ours, and changes nothing. Faults are no errors: a negative errno
 * says that the file could not be read, or is not of ours (-EINVAL). Blocks. */
GMB_MUST_CHECK int store_check(const char *path, struct store_check *check, struct error *error);

/* How a disk is made in a format of ours. Zeroes are the defaults. */
struct store_create {
	uint64_t size; /* of the file that is made; 0: what is there is used */
	uint64_t segment_bytes;
	uint32_t spare_percent;
	const char *label; /* for people; or NULL */
	const char *base;  /* of an overlay; or NULL */
	bool force;	   /* whatever is there is lost */
};

/* -EINVAL: there is nothing to be made for the kind in path, which is KIND:FILE, or the kind has
 * not all of these settings. Looks at no file. */
GMB_MUST_CHECK int store_create_check(
	const char *path, const struct store_create *create, struct error *error);
/* Makes the disk, or the overlay, that path names, after store_create_check(). -EEXIST: something
 * is there that would be lost. Blocks. */
GMB_MUST_CHECK int store_create(
	const char *path, const struct store_create *create, struct error *error);

/* Opens and wraps as asked; options are not needed afterwards. mode "direct" that the file cannot
 * do is an error that says so, never a silent fallback. */
GMB_MUST_CHECK int store_open(
	const struct store_options *options, struct store **store_out, struct error *error);
/* Writes what the store has in memory only, as store_close() does otherwise. Returns bytes of
 * changes that were answered and stay in memory: it has failed, or finds no room for them. All
 * queues are destroyed. Blocks. */
uint64_t store_end(struct store *store);
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

/*
 * Some stores must be started after store_open(), before the first part: a log is recovered, a map
 * is read. They do so on a ring, without blocking it, and say how far they are. For some that ring
 * becomes their owner: their parts are worked on there, whatever queue they were submitted to, so
 * that the store needs no locks. Parts of other rings travel in both directions by messages, many
 * in one; their progress is not reported. The owner's ring must not be destroyed before the last
 * part of any queue is done.
 */
bool store_needs_start(const struct store *store);
/* On start->ring, once; later queues exist or not. */
void store_start(struct store *store, struct store_start *start);
/* How much of the start is done, 0 to 1000; 1000: parts may be submitted. Any thread. */
uint32_t store_start_permille(const struct store *store);
/* See store_info.epoch. After the start. */
uint64_t store_epoch(const struct store *store);
/* See store_info.budget_bytes. */
uint64_t store_budget(const struct store *store);

/* From now on watch->resized is called some time after each change that somebody has noticed. On
 * watch->ring, to which the watch and its end belong. */
void store_watch_add(struct store *store, struct store_watch *watch);
void store_watch_remove(struct store *store, struct store_watch *watch);

/*
 * Views: what a store had at some moment, kept under a name while it goes on changing. Users call
 * them snapshots. A view is what the store had at one moment between the request for it and its
 * end, by the order in which changes came, and survives the process and a crash. It is a store of
 * its own that can only be read. The store may have to give one up for lack of space: reads of it
 * fail with -ESTALE then, as those of one that was deleted.
 */
enum { STORE_VIEWS_MAX = 2, STORE_VIEW_NAME_BYTES = 64 };

struct store_view {
	char name[STORE_VIEW_NAME_BYTES]; /* with a zero at its end */
	uint64_t created_s;		  /* since 1970 */
	/* Of a job: it goes when the store is opened again to be written, and before others when
	 * there is no room. */
	bool is_temporary;
};

enum store_view_action { STORE_VIEW_CREATE, STORE_VIEW_DELETE };

struct store_view_request {
	/* Set by the caller, and held until done. */
	enum store_view_action action;
	struct store_view view;				  /* deleting: its name alone */
	void (*done)(struct store_view_request *request); /* on the ring of the store's start */
	void *context;

	/* Set by the store. -EEXIST, -ENOENT: the name; -EINVAL: it is none; -EMLINK: there are as
	 * many as there can be; -ENOSPC: there is not enough space; -EROFS; or the error of the
	 * disk. */
	int result;
	struct error error; /* with a negative result: the rest of a sentence about the store */

	/* Private. */
	struct store *store;
	struct ring_message message;
	struct list_node node; /* behind others */
};

/* True when the store, or what its filters wrap, can have views. */
bool store_has_views(const struct store *store);
/* Makes or deletes one, in the order of the requests: durable when it is done, or nothing has
 * changed. Any thread, of a store that has views and has started; the ring of its start must not be
 * destroyed before it is done. */
void store_view_ask(struct store *store, struct store_view_request *request);
/* Those that there are; none for a store that cannot have any. Any thread, after the start. */
uint32_t store_views(struct store *store, struct store_view list[STORE_VIEWS_MAX]);
/* dropped is called on the ring of the store's start when the store gives one up, but not from
 * store_close(). Before the start, of a store that has views. */
void store_views_watch(struct store *store, void (*dropped)(void *context), void *context);
/* Opens one. The store must not be closed before it. -ENOENT. Any thread. */
GMB_MUST_CHECK int store_view_open(
	struct store *store, const char *name, struct store **view_out, struct error *error);

enum store_barrier {
	STORE_BARRIER_OPEN,
	STORE_BARRIER_CLOSED,  /* operations of a process that has ended are still under way */
	STORE_BARRIER_UNKNOWN, /* this cannot be known here (a network file system, FUSE) */
};
/*
 * Whether writes of a server that was killed may still land in the disk: while they may, no part is
 * to be submitted. A barrier that is closed opens, or becomes unknown, and never closes again.
 * look: asks the operating system again while it is closed, which may block; else it says what was
 * found last. Any thread.
 */
enum store_barrier store_barrier(struct store *store, bool look);
/* "open", "closed", "unknown". */
const char *store_barrier_name(enum store_barrier barrier);

/* Where the bytes of a store are: byte n of it is byte at + n of the disk, which other stores, also
 * of other processes, may have as well. */
struct store_place {
	uint8_t machine[16]; /* which has the disk; zeroes: nobody knows */
	uint64_t disk[2];    /* as in struct disk_info */
	uint64_t at;
};
/* False: they are nowhere else, or not in that order. */
bool store_place(struct store *store, struct store_place *place_out);
/* Whether two ranges of so many bytes, from these places on, have a byte in common. */
bool store_places_meet(
	const struct store_place *one, const struct store_place *other, uint64_t length);

/*
 * What another process needs to serve the same disk in the place of this one: docs/protocol/
 * upgrade.md. The claim is an open file of both then, so that the disk is in nobody's hands at no
 * time; it ends with the last of them.
 *
 * Some stores know more of the disk than what is on it, or keep it in an order of their own. They
 * settle: while nothing is in flight, a flush with STORE_SETTLE brings all of it to the disk, and
 * the other process, which has opened the store before, reads it then and not earlier:
 *
 *   here   flush, STORE_SETTLE ──┐  store_let_go(), store_close()   or parts again, if it has
 * failed there  store_open()          └▶ store_take(), or store_start() ─▶ parts
 *
 * From the flush until its own first part the other process only reads. With parts in flight the
 * flush may fail with -EBUSY.
 */
enum store_hold {
	STORE_HOLD_NONE,   /* the store does not write, or has no contents */
	STORE_HOLD_CLAIM,  /* fd is the claim; -1: nothing can hold the disk */
	STORE_HOLD_MEMORY, /* fd is the contents: memory that the other process maps, too */
};
struct store_claim {
	uint64_t identity[2]; /* of the disk, as long as the machine runs; zeroes: there is none */
	int fd;		      /* or -1 */
	enum store_hold hold; /* what fd is */
};
/* NULL: the store can be passed, and *claim_out, whose descriptor is borrowed, says with what. Else
 * why it cannot, as the rest of a sentence about its export. Main thread. */
GMB_MUST_CHECK const char *store_pass(struct store *store, struct store_claim *claim_out);
/* Whether the store has to settle. */
bool store_settles(const struct store *store);
/* The other process has the disk: whatever happens to the store from here on, closing included, no
 * byte of the disk is changed. Nothing is in flight. */
void store_let_go(struct store *store);
/* There, once the first process has settled: reads what it has left. Stores with a start of their
 * own do so in store_start(), which has to wait until then. Blocks; no part was submitted yet. */
GMB_MUST_CHECK int store_take(struct store *store, struct error *error);
/* In the other process, of STORE_HOLD_CLAIM: a store of that disk that is opened until
 * store_adopt_end() claims it with claim->fd, which is taken. No operation of whoever held it is
 * under way then. -EINVAL: the descriptor is not one of that disk. Before there are other threads.
 */
GMB_MUST_CHECK int store_adopt(const struct store_claim *claim);
/* Lets go of what no store has claimed. */
void store_adopt_end(void);

GMB_MUST_CHECK int store_queue_create(struct store *store, struct ring *ring,
	struct store_queue **queue_out, struct error *error);
void store_queue_destroy(struct store_queue *queue);
/* What the layer of this queue counts here, and how it is described; NULL: nothing. On the queue's
 * thread. The layer below has queue->inner. */
const void *store_queue_counters(
	const struct store_queue *queue, const struct counter_table **table_out);

/*
 * The only way to submit, and the dispatch point: asserts the contract, measures the disk, decides
 * what the kernel gets in one call, and calls the implementation. Requests are not reordered; who
 * wants to do so does it here, with part->hints.
 */
void store_submit(struct store_queue *queue, struct store_part *part);
/* What was measured on the parts with STORE_MEASURED of this queue. */
static inline struct store_rate *store_rate(struct store_queue *queue, enum store_op op)
{
	return &queue->rates[op != STORE_READ];
}

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
 * The ways (a set of enum store_copy_way) by which STORE_COPY is worth trying from one store to
 * another; 0: by none, and it must not be submitted. Filters offer none, because no part would pass
 * through them. CLONE takes offsets and lengths that are multiples of *clone_align only. A part may
 * still fail with -EOPNOTSUPP: then its range of the target is undefined, and another way is to be
 * taken. Both stores must stay open until it is done. Any thread.
 */
uint32_t store_copy_ways(struct store *target, struct store *source, uint64_t *clone_align);

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
