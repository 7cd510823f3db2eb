// SPDX-License-Identifier: Apache-2.0
/*
 * A store holds the blocks of a disk. It is opened once and shared by all reactors; each reactor
 * creates a queue on it and submits parts of requests. Kinds and filters are registered when the
 * program starts (kind.h). The kinds are file (a regular file or block device, through the page
 * cache or around it), memory, null and flash. The filters overlay, fault, delay and pace wrap a
 * store.
 *
 *   session ─▶ path ─▶ store_submit(queue, part) ─▶ [fault] ─▶ [delay] ─▶ [pace] ─▶ file | memory
 *                            part->done(part, result) ◀──────────────────────┘      | null
 *
 * Threading: open and close run on any one thread while no queue exists. A queue and its parts
 * belong to the ring's thread. store_info() is constant after open; values that change later have
 * their own functions: store_size(), store_epoch(). Ownership: the submitter owns the part and the
 * memory it points to; the store holds both from submit until done. Errors: done receives 0 for
 * complete success (a short transfer never reaches the submitter) or a negative errno: -EIO if the
 * disk failed or ended early, -ENOSPC, -EPERM if the store is read-only, -EOPNOTSUPP for a fast
 * zero that would be slow or a copy that the system cannot make. -EINVAL is never returned, because
 * the wrapper asserts the range. Submitting never fails, and done is never called from inside it.
 *
 * After a flush, or a part with STORE_FUA, has failed, every later flush or FUA part gets the same
 * error until the store is reopened, because the operating system may have dropped the data that it
 * could not write: a retry would only hide the loss. Other parts still run. A durable part that
 * failed for lack of space or support has lost no data and does not count, nor does a flush with
 * STORE_NOTHING_LOST.
 *
 * A store that knows how far a read has come before it is complete reports it by store_progress().
 * There are three sources of progress: completion (the default: only done reports anything),
 * counter (one of our producers counts the bytes it has put in place) and marker (experimental:
 * memory is watched while a device fills it).
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
	STORE_COPY,    /* from another store, by the system: see store_copy_ways() */
	STORE_OP_COUNT
};

/* A set of BIT(enum store_op): the operations that change data. */
#define STORE_CHANGES (BIT(STORE_WRITE) | BIT(STORE_TRIM) | BIT(STORE_ZERO) | BIT(STORE_COPY))

/* The name as users write it: "read", "write", "flush", "trim", "zero", "cache", "extents",
 * "copy". */
const char *store_op_name(enum store_op op);

enum store_flag {
	STORE_FUA = 1 << 0,	  /* done only when durable; write, trim, zero, copy */
	STORE_NO_HOLE = 1 << 1,	  /* zero: the range stays provisioned */
	STORE_FAST_ZERO = 1 << 2, /* zero: fails with -EOPNOTSUPP unless faster than writing */
	/* Read and write: counts towards the measured rate of the disk, see store_rate(). */
	STORE_MEASURED = 1 << 3,
	/* Read: reads of adjacent ranges follow, and each should complete separately. Without the
	 * flag, the block layer would merge all requests that it gets in one call
	 * (docs/design/0008). */
	STORE_APART = 1 << 4,
	/* Flush of a store for which store_needs_quiesce() is true: the last flush before another
	 * process may take over. It brings all state that the other process needs to the disk. */
	STORE_QUIESCE = 1 << 5,
	/* Set by the store on a flush that fails without losing anything: the data to be flushed is
	 * still in memory, and a later flush may succeed. */
	STORE_NOTHING_LOST = 1 << 6,
};

/* How soon written data will be overwritten or trimmed, as far as the writer knows. */
enum store_lifetime {
	STORE_LIFETIME_UNKNOWN,
	STORE_LIFETIME_SHORT,
	STORE_LIFETIME_MEDIUM,
	STORE_LIFETIME_LONG,
};

/* Hints about a request, for choosing an order or a location on the disk. Correctness never depends
 * on them. All zero: no hints. */
struct store_hints {
	uint64_t requester;   /* the requesting connection, as in struct peer */
	uint64_t deadline_ns; /* when it should be done, in the ring's time */
	/* stream of the requester; requests with the same number form a sequence */
	uint32_t stream;
	enum store_lifetime lifetime; /* of the written data */
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
	STORE_CAP_EXTENTS = 1 << 3,   /* can report holes; otherwise all is one data extent */
	STORE_CAP_ROTATIONAL = 1 << 4,
	STORE_CAP_CALLS = 1 << 5, /* trim and zero occupy a worker thread of the ring */
};

struct store_info {
	const char *kind; /* "file", "block device", "memory", "null", "overlay", "flash", ... */
	uint32_t caps;	  /* enum store_cap */
	/* Requests of any alignment are served. This is the smallest unit that is efficient,
	 * without read-modify-write: a power of two, 1 to 65536. */
	uint32_t block_min;
	uint32_t block_preferred; /* a power of two, >= max(512, block_min) */
	/* part memory with this alignment avoids a bounce copy; 1 = any */
	uint32_t memory_align;
	uint32_t offset_align; /* direct I/O transfers whole blocks of this size; 1 = any */
	/* enum mem_right: rights that the store needs on part memory; see store_rights(). */
	uint32_t memory_rights;
	bool read_direct; /* reads bypass the page cache */
	bool write_direct;
	/* As requested with mode=device: payload is in memory of a PCI device where possible. */
	bool read_device;
	bool write_device;
	bool device_cpu;       /* the CPU may move payload between sockets and this memory */
	uint32_t part_bytes;   /* requests are cut into parts of this size; 0: path decides */
	uint64_t io_max;       /* largest single device command, 0 = unknown */
	uint32_t stripe_chunk; /* bytes per member, 0 = not striped */
	uint32_t stripe_members;
	/* A write with STORE_FUA of at most this many bytes, whose offset and length are multiples
	 * of block_min, is atomic if it is submitted as one part: after a crash the disk has either
	 * the old or the new contents of the range. memory_rights then includes MEM_CPU_READ. 0:
	 * writes are not atomic. */
	uint32_t atomic_bytes;
	bool is_volatile; /* contents are lost when the process ends */
	/* The store's own epoch, see struct export. Valid after the start; 0: none. */
	uint64_t epoch;
	uint64_t budget_bytes; /* memory it requires, see struct store_start */
	bool has_progress;     /* reads can report progress, see store_has_progress() */
	/* Set to true when the progress source gives up; NULL: it never does. Lives as long as the
	 * store. */
	const _Atomic bool *progress_off;
};

struct store;
struct store_claim;
struct store_kind;
struct store_ops;
struct store_queue;
struct store_part;

/* Methods of copying between two stores in the system, without a program that moves the bytes. */
enum store_copy_way {
	STORE_COPY_CLONE = 1 << 0, /* both share the blocks afterwards: FICLONERANGE */
	STORE_COPY_RANGE = 1 << 1, /* the kernel moves the bytes: copy_file_range() */
};

/* Source of a STORE_COPY, and one of the methods returned by store_copy_ways(). */
struct store_copy {
	struct store *source;
	uint64_t offset;
	enum store_copy_way way;
};

/* Largest STORE_COPY. It is limited because the part occupies a worker thread and cannot be
 * cancelled. */
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
	/* Reads: called when more bytes at the start of the range are in place: zero or more times
	 * before done and never from inside submit; see store_progress(). NULL: no reports
	 * wanted. */
	store_progress_fn *progressed;
	/* Interval of the reports: the first after progress_first bytes, then one every
	 * progress_step bytes. A store may take larger steps. */
	uint64_t progress_first;
	uint64_t progress_step;

	/* STORE_EXTENTS: room for extent_max entries (> 0), set by the submitter. The store fills
	 * at least one. Adjacent entries differ in their flags. Together they cover at most length
	 * bytes from offset and may end early; the submitter continues from there with another
	 * part. */
	struct store_extent *extents;
	uint32_t extent_max;
	uint32_t extent_count;

	struct store_copy copy; /* STORE_COPY, set by the submitter */

	/* Set by the store until done, for memory that the CPU may not read (device memory). 0: the
	 * disk reached it. Otherwise the error with which the disk could not: the CPU has copied
	 * instead, or, with -ENODEV, could not copy either, and the part has failed. */
	int memory_error;

	/* Private to the stores while submitted. */
	struct ring_op io;
	struct list_node node;
	struct store_queue *queue; /* of the layer that works on the part */
	struct store_queue *top;   /* the queue to which it was submitted */
	uint64_t progress_bytes;
	int result;	      /* while it returns from the owner */
	bool progress_broken; /* its producer reported an impossible value */
	/* A slice for each layer, see kind.h. */
	alignas(8) uint8_t scratch[STORE_SCRATCH_BYTES];
};

/* Throughput of a disk, measured while it has requests in flight. */
struct store_rate {
	uint64_t bytes_per_second; /* 0 = unknown */

	/* Private. */
	uint64_t busy_since_ns;
	uint64_t busy_bytes;
	uint32_t inflight;
};

/* Count the beginning and the end of a transfer. */
void store_rate_begin(struct store_rate *rate, uint64_t now_ns);
void store_rate_end(struct store_rate *rate, uint64_t bytes, uint64_t now_ns);

/* Parts on their way to another ring. They are pushed one by one and taken together. While the
 * mailbox is not empty, its message is in flight or about to be posted. */
struct store_mailbox {
	struct ring_message message;
	_Atomic(struct list_node *) parts; /* last one pushed; linked by next */
};

/* First member of each implementation's own queue. */
struct store_queue {
	struct store *store;
	struct ring *ring;
	struct store_queue *inner; /* of a filter */
	struct store_queue *outer; /* of the filter that wraps the store, or NULL */
	uint32_t inflight_count;
	const struct store_part *submitting; /* private: detects a done from inside submit */
	struct store_mailbox to_owner;	     /* private */
	struct store_mailbox from_owner;     /* private */

	/* Private, used in the queue that the submitter has: see store_rate() and STORE_APART. */
	struct store_rate rates[2]; /* reads, writes */
	uint64_t apart_turn_ns;
	uint32_t apart_count; /* in this turn */
};

/* Parameters and result of store_start(), for a store that needs a ring or memory to start. */
struct store_start {
	/* Set by the caller, and held until done. */
	struct ring *ring;
	struct mem_ref memory; /* budget_bytes of RAM, all zero; kept while open */
	void (*done)(struct store_start *start); /* on that ring, not from inside the call */
	void *context;
	/* Nothing is written before the first part, because another process may still use the disk;
	 * see store_needs_quiesce(). */
	bool is_quiet;
	/* Set by any thread: the store stops the start soon, with -ECANCELED. */
	_Atomic bool cancelled;

	/* Set by the store. */
	int result;
	struct error error; /* if result is negative */
};

/* A callback for changes of the size of a store. */
struct store_watch {
	/* Set by its owner. Both functions are called on this ring. */
	struct ring *ring;
	void (*resized)(struct store_watch *watch);
	/* After store_watch_remove(), once, when the watch may be freed; possibly from inside
	 * it. */
	void (*removed)(struct store_watch *watch);

	/* Private. */
	struct store *store;
	struct store_watch *next; /* under the store's lock, as is posted */
	struct ring_message message;
	bool posted;
	bool is_removed;
};

/* First member of each implementation's own struct. */
struct store {
	const struct store_ops *ops;
	struct store *inner; /* of a filter */
	struct store_info info;
	uint32_t scratch_offset;  /* private: of this layer's slice of a part */
	bool page_cache_send_off; /* private: as requested */
	bool is_let_go;		  /* see store_let_go(); for close */
	bool is_snapshot;	  /* parts fail with -ESTALE when the snapshot is gone */
	_Atomic int broken;	  /* private: first error of a durable part, or 0 */

	/* Private, used in kinds only. */
	pthread_mutex_t watch_lock;
	void (*snapshot_dropped)(void *context); /* see store_snapshots_watch(); or NULL */
	void *snapshot_context;
	struct store_watch *watches;
	struct store_start *start;
	_Atomic uint32_t start_permille;
	/* Queue for parts of other rings. Its ring is NULL if the store has no owner. */
	struct store_queue owner;
};

enum store_mode {
	STORE_MODE_AUTO,   /* the default: the better method for each read; writes are cached */
	STORE_MODE_CACHED, /* through the page cache */
	STORE_MODE_DIRECT, /* around it */
	STORE_MODE_DEVICE, /* direct, in memory of a PCI device; see store_info.read_device */
};

/* True if this mode bypasses the page cache. */
static inline bool store_mode_is_direct(enum store_mode mode)
{
	return mode == STORE_MODE_DIRECT || mode == STORE_MODE_DEVICE;
}

enum { STORE_KINDS_MAX = 16 };

/* Damage that would make a start fail, and that the start may repair. */
enum store_repair {
	STORE_REPAIR_MAP = 1 << 0,  /* rebuilds a map that can no longer be found */
	STORE_REPAIR_LOSS = 1 << 1, /* continues without flushed changes that are lost */
};

/* Options for store_open(). The members below apply to all kinds; each kind and filter also has its
 * own configuration, which is allocated when one of its keys is set. Zeroes are the defaults.
 * store_options_fini() frees what store_options_set() has allocated. */
struct store_options {
	const char *path; /* a path, or one with the prefix of a kind; borrowed */
	bool read_only;
	/* With read_only: no server may write it while it is open, see disk_claim_reading(). */
	bool frozen;
	bool sole; /* no other store, in this process either, may write it */
	/* For a store on top of this one: accept a file of any format, and also a host-managed
	 * zoned device, to which the parts must write in the order of its zones. */
	bool any_format;
	bool page_cache_send_off; /* store_page_cache_ref() is always false */
	enum store_mode read_mode;
	enum store_mode write_mode; /* never STORE_MODE_CACHED: AUTO means cached for writes */
	uint32_t stripe_chunk;	    /* overrides the value of the disk; 0 = no override */
	uint32_t stripe_members;
	/* State of this disk from the previous process, for kinds whose disk is memory of a
	 * process; borrowed during store_open(). NULL: none. */
	const struct store_claim *inherited;
	uint32_t repairs;		/* enum store_repair, for kinds that can_repair */
	uint64_t keys_given;		/* private: a bit per option */
	void *configs[STORE_KINDS_MAX]; /* private: by kind; NULL = no key given */
};

/*
 * Registers a kind of store or a filter. Filters wrap a store in the order of their registration,
 * the first innermost. Called at start, before other threads exist. kind must stay valid. Keys and
 * names must be unique (asserted).
 */
void store_register(const struct store_kind *kind);

/* The keys of an export, in the order of registration, with the keys of all kinds first. */
const struct field *store_option_at(uint32_t idx);
/* Sets one key. value is copied or parsed; NULL: the key was given without a value. -EINVAL or
 * -ERANGE with a sentence that does not name the key; -ENOENT if the key does not exist;
 * -ENOMEM. */
GMB_MUST_CHECK int store_options_set(
	struct store_options *options, const char *key, const char *value, struct error *error);
void store_options_fini(struct store_options *options);
/* True if the option, one of store_option_at(), has the same value in both. An option that was not
 * set has its default. */
bool store_options_same(
	const struct store_options *a, const struct store_options *b, const struct field *option);
/* True if two paths name the same disk as far as the text shows: equal paths, or equal sizes
 * written differently. */
bool store_path_same(const char *a, const char *b);
/* True if path begins with the prefix of a kind, such as "memory:". */
bool store_path_has_kind(const char *path);
/* The value of store_needs_start() for a store opened with this path. */
bool store_path_needs_start(const char *path);
/* Returns -EINVAL if the path has to name a size, as memory:SIZE, and does not. Opens nothing. */
GMB_MUST_CHECK int store_path_check(const char *path, struct error *error);
/* The file or block device that a path names: the path itself, or the rest of it after the
 * prefix. */
const char *store_path_file(const char *path);
/* The same for the paths that store_create() and store_check() accept, such as overlay:FILE. */
const char *store_made_file(const char *path);
/* The idx-th file that the store opens in addition to path, writable unless read_only; NULL after
 * the last. */
const char *store_options_file(const struct store_options *options, uint32_t idx);
/* The tmpfs folder in which the store keeps memory that is to outlive the process; NULL: none. */
const char *store_options_memory_folder(const struct store_options *options);
/* True if path itself is never written. */
bool store_options_reads_only(const struct store_options *options);

/* Callbacks for the findings of store_check(), called in display order. Texts may contain any
 * bytes. */
struct store_check {
	/* Set by the caller. */
	const char *base; /* overlay: the base's current path; NULL: as recorded */
	void (*fact)(struct store_check *check, const char *name, const char *text);
	void (*amount)(struct store_check *check, const char *name, uint64_t bytes);
	/* Adds text to a list. text NULL: only creates the list. */
	void (*entry)(struct store_check *check, const char *list, const char *text);
	/* Reports a fault: a sentence without its full stop. */
	void (*fault)(struct store_check *check, const char *sentence);
};

/* Checks a file in one of our formats, without changing it. Faults are not errors: a negative errno
 * means that the file could not be read, or that it has another format (-EINVAL). Blocks. */
GMB_MUST_CHECK int store_check(const char *path, struct store_check *check, struct error *error);

/* Parameters for creating a disk in one of our formats. Zeroes are the defaults. */
struct store_create {
	uint64_t size; /* of the created file; 0: use all of an existing one */
	uint64_t segment_bytes;
	uint32_t spare_percent;
	const char *label; /* free text for users; or NULL */
	const char *base;  /* of an overlay; or NULL */
	bool force;	   /* overwrite existing contents */
};

/* Checks the parameters without accessing any file. -EINVAL: disks of the kind in path, which is
 * KIND:FILE, are not created, or the kind does not support one of the settings. */
GMB_MUST_CHECK int store_create_check(
	const char *path, const struct store_create *create, struct error *error);
/* Creates the disk or overlay that path names, after store_create_check(). -EEXIST: existing
 * contents would be lost. Blocks. */
GMB_MUST_CHECK int store_create(
	const char *path, const struct store_create *create, struct error *error);

/* Opens the store and wraps it in the requested filters; options are not needed afterwards. If the
 * file does not support mode "direct", that is an error with a sentence, never a silent
 * fallback. */
GMB_MUST_CHECK int store_open(
	const struct store_options *options, struct store **store_out, struct error *error);
/* Writes all state that is only in memory, as store_close() otherwise does. Returns the bytes of
 * acknowledged changes that remain in memory because the write failed or found no space. All queues
 * must be destroyed. Blocks. */
uint64_t store_end(struct store *store);
/* All queues must be destroyed. NULL is a no-op. */
void store_close(struct store *store);

static inline const struct store_info *store_info(const struct store *store)
{
	return &store->info;
}
/* Rights that the memory of a part must have. The memory of a write is only read. */
static inline uint32_t store_rights(const struct store *store, enum store_op op)
{
	return store->info.memory_rights &
	       (op == STORE_WRITE ? ~(uint32_t)MEM_CPU_WRITE : UINT32_MAX);
}
/* True while reads may report progress before they are done. Callable on any thread, and to be
 * called again each time, because it can turn false. */
static inline bool store_has_progress(const struct store *store)
{
	const _Atomic bool *off = store->info.progress_off;

	/* Relaxed: a read that misses the change only receives fewer reports. */
	return store->info.has_progress &&
	       (off == NULL || !atomic_load_explicit(off, memory_order_relaxed));
}
/* Exact size in bytes; detects growth and shrinking. Cheap enough to call per connection, not per
 * request. */
uint64_t store_size(struct store *store);

/*
 * Some stores must be started after store_open(), before the first part: for example, a log is
 * recovered or a map is read. The start runs on a ring, without blocking it, and reports its
 * progress. For some stores (has_owner in kind.h) that ring becomes their owner: all parts are
 * processed there, whichever queue they were submitted to, so that the store needs no locks. Parts
 * of other rings travel in both directions by messages, many parts in one message; their progress
 * is not reported. The owner's ring must not be destroyed before the last part of every queue is
 * done.
 */
bool store_needs_start(const struct store *store);
/* Called once, on start->ring, before or after queues are created. */
void store_start(struct store *store, struct store_start *start);
/* Progress of the start, 0 to 1000; 1000: parts may be submitted. Any thread. */
uint32_t store_start_permille(const struct store *store);
/* See store_info.epoch. Valid after the start. */
uint64_t store_epoch(const struct store *store);
/* See store_info.budget_bytes. */
uint64_t store_budget(const struct store *store);

/* From now on watch->resized is called some time after each detected change of size. Called on
 * watch->ring, to which the watch belongs until it is removed. */
void store_watch_add(struct store *store, struct store_watch *watch);
void store_watch_remove(struct store *store, struct store_watch *watch);

/*
 * Snapshots. A snapshot is a read-only store with a name. Its contents
 * are those of its store at one moment between the request and its completion: it includes a prefix
 * of the changes, by order of arrival. It survives the process and a crash. The store may have to
 * delete a snapshot for lack of space. Reads of a deleted snapshot fail with -ESTALE.
 */
enum { STORE_SNAPSHOTS_MAX = 2, STORE_SNAPSHOT_NAME_BYTES = 64 };

struct store_snapshot {
	char name[STORE_SNAPSHOT_NAME_BYTES]; /* zero-terminated */
	uint64_t created_s;		      /* since 1970 */
	/* Created by a job: it is deleted when the store is next opened for writing, and before
	 * other snapshots when space is short. */
	bool is_temporary;
};

enum store_snapshot_action { STORE_SNAPSHOT_CREATE, STORE_SNAPSHOT_DELETE };

struct store_snapshot_request {
	/* Set by the caller, and held until done. */
	enum store_snapshot_action action;
	struct store_snapshot snapshot;			      /* to delete: only its name */
	void (*done)(struct store_snapshot_request *request); /* on the ring of the store's start */
	void *context;

	/* Set by the store. -EEXIST, -ENOENT: the name; -EINVAL: not a valid name; -EMLINK: the
	 * maximum number exists already; -ENOSPC: not enough space; -EROFS; or the error of the
	 * disk. */
	int result;
	struct error error; /* if result is negative: the rest of a sentence about the store */

	/* Private. */
	struct store *store;
	struct ring_message message;
	struct list_node node; /* queued behind other requests */
};

/* True if the store, or the store below its filters, supports snapshots. */
bool store_has_snapshots(const struct store *store);
/* Creates or deletes a snapshot, in the order of the requests. When done is called, the change is
 * durable, or it has failed without effect. Any thread. The store must support snapshots and have
 * started; the ring of its start must not be destroyed before the request is done. */
void store_snapshot_ask(struct store *store, struct store_snapshot_request *request);
/* Lists the snapshots and returns their number; 0 if the store does not support them. Any thread,
 * after the start. */
uint32_t store_snapshots(struct store *store, struct store_snapshot list[STORE_SNAPSHOTS_MAX]);
/* dropped is called on the ring of the store's start when the store gives up a snapshot, but not
 * from store_close(). Called before the start, on a store that supports snapshots. */
void store_snapshots_watch(struct store *store, void (*dropped)(void *context), void *context);
/* Opens a snapshot. The store must stay open until it is closed. -ENOENT. Any thread. */
GMB_MUST_CHECK int store_snapshot_open(
	struct store *store, const char *name, struct store **snapshot_out, struct error *error);

enum store_barrier {
	STORE_BARRIER_OPEN,
	STORE_BARRIER_CLOSED,  /* operations of a process that has ended are still in flight */
	STORE_BARRIER_UNKNOWN, /* cannot be detected here (a network file system, FUSE) */
};
/*
 * Whether writes of a server that was killed may still reach the disk; while they may, no part is
 * to be submitted. A closed barrier opens or becomes unknown, and never closes again. look: while
 * it is closed, ask the operating system again, which may block; otherwise the last result is
 * returned. Any thread.
 */
enum store_barrier store_barrier(struct store *store, bool look);
/* "open", "closed", "unknown". */
const char *store_barrier_name(enum store_barrier barrier);

/* Location of a store's bytes: byte n of the store is byte at + n of the disk. Other stores, in
 * other processes too, may use the same disk. */
struct store_place {
	uint8_t machine[16]; /* that has the disk; zeroes: not known */
	uint64_t disk[2];    /* as in struct disk_info */
	uint64_t at;
};
/* False: the bytes are in no other store, or not in one contiguous range. */
bool store_place(struct store *store, struct store_place *place_out);
/* True if two ranges of length bytes, starting at these locations, overlap. */
bool store_places_meet(
	const struct store_place *one, const struct store_place *other, uint64_t length);

/*
 * Handing a disk over to another process, which serves it afterwards: docs/protocol/upgrade.md.
 * Both processes have the open file of the claim during the handover, so that the disk is never
 * unclaimed. The claim ends when both have closed it.
 *
 * Some stores keep state in memory that is not on the disk, or write it in an order of their own.
 * Such stores are quiesced before it: while no part is in flight, a flush with STORE_QUIESCE brings
 * all state to the disk. The other process has opened the store before, and reads that state only
 * after the flush:
 *
 *   here   flush, STORE_QUIESCE ──┐  store_let_go(), store_close()   or parts again, if it failed
 *   there  store_open()          └▶ store_take(), or store_start() ─▶ parts
 *
 * The other process only reads from the flush until its own first part. If parts are in flight, the
 * flush may fail with -EBUSY.
 */
enum store_hold {
	STORE_HOLD_NONE,   /* the store does not write, or has no contents */
	STORE_HOLD_CLAIM,  /* fd is the claim; -1: the disk cannot be claimed */
	STORE_HOLD_MEMORY, /* fd is the contents: memory that the other process also maps */
};
struct store_claim {
	uint64_t identity[2]; /* of the disk, valid until the machine reboots; zeroes: none */
	int fd;		      /* or -1 */
	enum store_hold hold; /* meaning of fd */
};
/* Returns NULL if the store can be handed over; *claim_out then describes how, and its descriptor
 * is borrowed. Otherwise returns the reason, as the rest of a sentence about its export. Main
 * thread. */
GMB_MUST_CHECK const char *store_handover(struct store *store, struct store_claim *claim_out);
/* True if the store must be quiesced before a handover. */
bool store_needs_quiesce(const struct store *store);
/* The other process now has the disk: from here on no byte of the disk is changed, not even by
 * closing the store. Nothing is in flight. */
void store_let_go(struct store *store);
/* Called in the other process after the first one has quiesced the store: reads the state that the
 * first left on the disk. Stores with a start of their own do so in store_start(), which must wait
 * until then. Blocks. No part has been submitted yet. */
GMB_MUST_CHECK int store_take(struct store *store, struct error *error);
/* Called in the other process for STORE_HOLD_CLAIM, before there are other threads. Takes
 * claim->fd: a store of the same disk that is opened before store_adopt_end() uses it as its claim.
 * The previous holder has no operation in flight then. -EINVAL: the descriptor does not refer to
 * the disk. */
GMB_MUST_CHECK int store_adopt(const struct store_claim *claim);
/* Releases all claims that no store has used. */
void store_adopt_end(void);

GMB_MUST_CHECK int store_queue_create(struct store *store, struct ring *ring,
	struct store_queue **queue_out, struct error *error);
void store_queue_destroy(struct store_queue *queue);
/* Counters of this queue's layer and their description; NULL: none. Called on the queue's thread.
 * queue->inner is the layer below. */
const void *store_queue_counters(
	const struct store_queue *queue, const struct counter_table **table_out);

/*
 * The only way to submit a part, and the dispatch point: asserts the contract, measures the disk,
 * decides which parts the kernel receives in one call, and calls the implementation. Requests are
 * not reordered; a scheduler would be added here and use part->hints.
 */
void store_submit(struct store_queue *queue, struct store_part *part);
/* The rate measured on this queue's parts with STORE_MEASURED. */
static inline struct store_rate *store_rate(struct store_queue *queue, enum store_op op)
{
	return &queue->rates[op != STORE_READ];
}

/* Shorter reads are never sent from the page cache, because the lookup costs as much as the
 * copy. */
enum { STORE_PAGE_CACHE_BYTES_MIN = 128 << 10 };
/* Rights of memory in the page cache: the program itself must not read it. */
#define STORE_PAGE_CACHE_RIGHTS ((uint32_t)(MEM_SOCKET | MEM_ADDRESS))

/*
 * Submits a read whose bytes are sent from the page cache (or from memory of the store) instead of
 * being copied to memory of the submitter. True: it was submitted, and part->memory refers to the
 * bytes until the queue is destroyed. They may be passed to the kernel but must not be read by the
 * program; a system call that reads them may fail with -EFAULT (see disk/disk.h). False: the part
 * was not submitted, and the caller submits it with its own memory. The part is as for
 * store_submit(), without memory. Ranges that may be all zeroes are refused, because sending a hole
 * is cheaper.
 */
GMB_MUST_CHECK bool store_page_cache_ref(struct store_queue *queue, struct store_part *part);

/*
 * The methods (a set of enum store_copy_way) that are worth trying for STORE_COPY from source to
 * target; 0: none, and STORE_COPY must not be submitted. Filters offer none, because the copied
 * data would not pass through them. CLONE requires offsets and lengths that are multiples of
 * *clone_align. A part may still fail with -EOPNOTSUPP: its range of the target is then undefined,
 * and the caller must use another method. Both stores must stay open until the part is done. Any
 * thread.
 */
uint32_t store_copy_ways(struct store *target, struct store *source, uint64_t *clone_align);

/*
 * The reason for which store_page_cache_ref() currently refuses every read, or NULL if it can
 * succeed. One of "page-cache-send=off" (as requested), "mode=direct" and "write-mode=direct"
 * (around the page cache), "shared" (another export writes around it), "network" (a network file
 * system, or FUSE), "overlay" (a file that is only read in an overlay file system, where a copy can
 * replace it), "foreign" (a file of another user that may only be read), "address-space" (not
 * enough to map the file), "empty", and the name of a kind or filter without support ("null",
 * "fault", "delay", "pace", "marker"). Static text.
 */
const char *store_page_cache_refusal(struct store *store);

/* Ends a part. Implementations and filters call it once for each part they were given. */
void store_finish(struct store_part *part, int result);

/*
 * Reports that the first bytes of a read's memory have their final value and will not be written
 * again. Called by implementations and filters between submit and finish. The count only grows and
 * stays below the length: the rest comes with store_finish(), so that the submitter never has all
 * bytes of a part before they are known to be good. A report that breaks these rules is not passed
 * on, and the part fails with -EIO. A part that fails in the end may have reported progress before.
 */
void store_progress(struct store_part *part, uint64_t bytes);
