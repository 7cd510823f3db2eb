// SPDX-License-Identifier: Apache-2.0
/*
 * A store contains the blocks of a disk. It is opened once and shared by all reactors. Each reactor
 * creates a queue for the store, and submits its requests to this queue in parts. Kinds and filters
 * are registered when the program starts (kind.h). The kinds are file (a regular file or block
 * device, through the page cache or around it), memory, null and flash. The filters fault, delay,
 * sched, pace, overlay and failover wrap a store.
 *
 *   session ─▶ path ─▶ store_submit(queue, part) ─▶ [fault] ─▶ [delay] ─▶ [pace] ─▶ file | memory
 *                            part->done(part, result) ◀──────────────────────┘      | null
 *
 * Threading: open and close run on any one thread while no queue exists. A queue and its parts
 * belong to the ring's thread. store_info() is constant after open; values that change later have
 * their own functions: store_size(), store_epoch(). Ownership: the submitter owns the part and the
 * memory it points to; the store uses both from submit until done. Errors: done receives 0 for
 * complete success (a short transfer never reaches the submitter) or a negative errno: -EIO if the
 * disk failed or ended early, -ENOSPC, -EPERM if the store is read-only, -EOPNOTSUPP for a fast
 * zero that would be slow or a copy that the system cannot make. -EINVAL is never returned, because
 * store_submit() asserts the range. Submitting never fails, and done is never called from inside
 * it.
 *
 * After a flush, or a part with STORE_FUA, has failed, every later flush or FUA part gets the same
 * error until the store is reopened, because the operating system could have dropped the data that
 * it could not write: a retry would only hide the loss. Other parts still run. Failures that lose
 * no data have no such effect: durable parts that fail for lack of space or support, and flushes
 * with STORE_NOTHING_LOST.
 *
 * A store can report the progress of a read that is not complete by store_progress(). There are
 * two sources of progress: completion (the default: no report before done) and counter (a producer
 * in this program counts the bytes that it has written).
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
	STORE_TRIM,    /* makes the contents undefined; the store can ignore it */
	STORE_ZERO,    /* makes the range read as zeroes */
	STORE_CACHE,   /* hint: the range will be read soon */
	STORE_EXTENTS, /* query: which ranges are data, holes or zeroes */
	STORE_COPY,    /* copy from another store by the kernel: see store_copy_ways() */
	STORE_OP_COUNT
};

/* The operations that change data, as a set of BIT(enum store_op). */
#define STORE_CHANGES (BIT(STORE_WRITE) | BIT(STORE_TRIM) | BIT(STORE_ZERO) | BIT(STORE_COPY))

/* Returns the name that users write: "read", "write", "flush", "trim", "zero", "cache", "extents",
 * "copy". */
const char *store_op_name(enum store_op op);

enum store_flag {
	STORE_FUA = 1 << 0,	/* write, trim, zero, copy: done only when durable */
	STORE_NO_HOLE = 1 << 1, /* zero: the range stays allocated */
	/* zero: fails with -EOPNOTSUPP if it would have to write zeroes */
	STORE_FAST_ZERO = 1 << 2,
	/* Read and write: include the part in the measured rate of the disk, see store_rate(). */
	STORE_MEASURED = 1 << 3,
	/* Read: reads of adjacent ranges follow, and each should complete on its own. Without the
	 * flag, the block layer would merge all requests that it gets in one call
	 * (docs/design/0008). */
	STORE_APART = 1 << 4,
	/* Flush, only if store_needs_quiesce(): the last flush before another process takes over.
	 * It writes to the disk all state that the other process needs. */
	STORE_QUIESCE = 1 << 5,
	/* Set by the store on a flush that has failed without losing data: the data is still in
	 * memory, and a later flush may succeed. */
	STORE_NOTHING_LOST = 1 << 6,
	/* Write, zero; set by filters on the way to the disk: done only when durable, like
	 * STORE_FUA, but a failure has no effect on later parts. */
	STORE_THROUGH = 1 << 7,
};

/* Extent flags, with the values of NBD base:allocation, which all block protocols here use. */
enum store_extent_flag { STORE_EXTENT_HOLE = 1 << 0, STORE_EXTENT_ZERO = 1 << 1 };

struct store_extent {
	uint64_t length; /* bytes, > 0 */
	uint32_t flags;	 /* enum store_extent_flag */
};

enum store_cap {
	/* writable; otherwise read-only, and store_submit() fails changes with -EPERM */
	STORE_CAP_WRITE = 1 << 0,
	STORE_CAP_TRIM = 1 << 1,
	STORE_CAP_FAST_ZERO = 1 << 2, /* some ranges can be zeroed faster than by writing zeroes */
	STORE_CAP_EXTENTS = 1 << 3,   /* can report holes; otherwise reports one data extent */
	STORE_CAP_ROTATIONAL = 1 << 4,
	STORE_CAP_CALLS = 1 << 5, /* trim and zero block a worker thread of the ring */
};

enum { STORE_IDENTITY_BYTES = 16 };

struct store_info {
	const char *kind; /* "file", "block device", "memory", "null", "overlay", "flash", ... */
	uint32_t caps;	  /* enum store_cap */
	/* The smallest unit that is written without read-modify-write: a power of two, 1 to 65536.
	 * Requests of any alignment work. */
	uint32_t block_min;
	uint32_t block_preferred; /* a power of two, >= max(512, block_min) */
	/* alignment of part memory that avoids a bounce copy; 1 = any */
	uint32_t memory_align;
	uint32_t offset_align; /* direct I/O transfers whole blocks of this size; 1 = any */
	/* enum mem_right: rights that part memory must have; see store_rights(). */
	uint32_t memory_rights;
	/* enum mem_right: rights of the bytes of store_page_cache_ref(); 0 = it always returns
	 * false */
	uint32_t page_cache_rights;
	bool read_direct; /* reads bypass the page cache */
	bool write_direct;
	/* Reads or writes go to a disk with heads in the order of their submission, so that their
	 * duration depends on the distance between their offsets. */
	bool read_seeks;
	bool write_seeks;
	/* mode=device was requested: payload is in the memory of a PCI device where possible. */
	bool read_device;
	bool write_device;
	/* with mode=device: the CPU may copy payload between sockets and the device's memory */
	bool device_cpu;
	uint32_t part_bytes; /* fixed size of the parts of requests; 0: the path chooses it */
	uint64_t io_max;     /* largest single device command; 0 = unknown */
	/* striped disk (RAID 0): consecutive bytes on one member; 0 = not striped */
	uint32_t stripe_chunk;
	uint32_t stripe_members;
	/* Largest atomic write: after a crash, the disk has either the old or the new contents of
	 * its range. The write must be one part with STORE_FUA, whose offset and length are
	 * multiples of block_min. memory_rights then includes MEM_CPU_READ. 0: writes are not
	 * atomic. */
	uint32_t atomic_bytes;
	bool is_volatile; /* contents are lost when the process ends */
	/* Epoch: a number that changes when unflushed writes might have been lost, see struct
	 * export. Valid after the start; 0: the store does not have one. */
	uint64_t epoch;
	/* Identity of the disk: equal only in stores, also of other servers, that have the same
	 * bytes. Zeroes: none of its own. */
	uint8_t identity[STORE_IDENTITY_BYTES];
	uint64_t budget_bytes; /* size of the memory that the start needs, see struct store_start */
	bool has_progress;     /* reads report progress before they are done */
};

struct store;
struct store_claim;
struct store_kind;
struct store_ops;
struct store_queue;
struct store_part;

/* Methods of copying between two stores in the kernel, so that no program moves the bytes. */
enum store_copy_way {
	STORE_COPY_CLONE = 1 << 0, /* FICLONERANGE: both share the blocks afterwards */
	STORE_COPY_RANGE = 1 << 1, /* copy_file_range(): the kernel copies the bytes */
};

/* Source and method of a STORE_COPY. store_copy_ways() returns the possible methods. */
struct store_copy {
	struct store *source;
	uint64_t offset;
	enum store_copy_way way;
};

/* Maximum length of a STORE_COPY. Limited because the part blocks a worker thread and cannot be
 * cancelled. */
enum { STORE_COPY_BYTES_MAX = 64 << 20 };

typedef void store_done_fn(struct store_part *part, int result);
typedef void store_progress_fn(struct store_part *part, uint64_t bytes);

enum { STORE_SCRATCH_BYTES = 128 };

struct store_part {
	/* Set by the submitter; must not change until done. */
	enum store_op op;
	uint32_t flags;
	uint64_t offset; /* in bytes; 0 for a flush */
	uint64_t length; /* in bytes; 0 for a flush, otherwise > 0; read and write: <= 1 GiB */
	/* used for reads and writes only; also set by store_page_cache_ref() */
	struct mem_ref memory;
	/* the connection, see struct peer: its requests can form a sequence; 0: unknown */
	uint64_t requester;
	store_done_fn *done;
	/* Reads: called before done, any number of times, when more bytes at the start of the range
	 * have arrived; never from inside submit. See store_progress(). NULL: no reports. */
	store_progress_fn *progressed;
	/* Requested interval of the reports: the first after progress_first bytes, then one after
	 * every progress_step bytes. A store may use larger steps. */
	uint64_t progress_first;
	uint64_t progress_step;

	/* STORE_EXTENTS: array of extent_max entries (> 0), set by the submitter. The store fills
	 * at least one entry. Adjacent extents differ in their flags. The extents begin at offset
	 * and cover at most length bytes. If they cover less, the submitter continues with another
	 * part. */
	struct store_extent *extents;
	uint32_t extent_max;
	uint32_t extent_count;

	struct store_copy copy; /* STORE_COPY, set by the submitter */

	/* Set by the store. 0: the disk could access the memory. In memory that the CPU may not
	 * read (device memory): -ENODEV: neither the disk nor the CPU could access it, and the part
	 * has failed; other values: the disk's error; the kernel has then copied the data with the
	 * CPU. In other memory, -EFAULT: a write has failed because the memory does not exist any
	 * more. */
	int memory_error;

	/* Private to the stores until done. */
	struct ring_op io;
	struct list_node node;
	struct store_queue *queue; /* queue of the layer that currently works on the part */
	struct store_queue *top;   /* queue to which the part was submitted */
	uint64_t progress_bytes;
	int result;	      /* result on the way back from the owner's ring */
	bool progress_broken; /* a store has reported impossible progress */
	/* A slice for the private data of each layer, see kind.h. */
	alignas(8) uint8_t scratch[STORE_SCRATCH_BYTES];
};

/* Throughput of a disk, measured while it has requests in flight. */
struct store_rate {
	uint64_t bytes_per_second; /* 0 = unknown */

	/* Private members. */
	uint64_t busy_since_ns;
	uint64_t busy_bytes;
	uint32_t inflight;
};

/* Record the beginning and the end of a transfer. */
void store_rate_begin(struct store_rate *rate, uint64_t now_ns);
void store_rate_end(struct store_rate *rate, uint64_t bytes, uint64_t now_ns);

/* Parts on their way to another ring. They are added one by one and removed all together. While the
 * mailbox is not empty, its message is posted or about to be posted. */
struct store_mailbox {
	struct ring_message message;
	/* stack of parts, linked by next: the last one added is first */
	_Atomic(struct list_node *) parts;
};

/* First member of the queue struct of each kind and filter. */
struct store_queue {
	struct store *store;
	struct ring *ring;
	struct store_queue *inner; /* filters: the queue on the store below */
	struct store_queue *outer; /* queue of the filter around this store, or NULL */
	uint32_t inflight_count;
	/* With mode=auto: large reads that are not in the page cache currently bypass it. */
	bool reads_around;
	/* private: the part being submitted, which must not complete before submit returns */
	const struct store_part *submitting;
	struct store_mailbox to_owner;	 /* private */
	struct store_mailbox from_owner; /* private */

	/* Private, used in the queue to which the submitter submits: see store_rate() and
	 * STORE_APART. */
	struct store_rate rates[2]; /* [0]: reads, [1]: writes */
	uint64_t apart_turn_ns;
	uint32_t apart_count; /* number of STORE_APART parts submitted in this turn */
};

/* Parameters and result of store_start(), for a store that needs a ring or memory to start. */
struct store_start {
	/* Set by the caller; must be valid until done. */
	struct ring *ring;
	struct mem_ref memory; /* budget_bytes of RAM, all zero; used until the store is closed */
	/* Called on `ring`, never from inside store_start(). */
	void (*done)(struct store_start *start);
	void *context;
	/* Nothing may be written before the first part, because another process may still use the
	 * disk; see store_needs_quiesce(). */
	bool is_quiet;
	/* Any thread can set it: the start then soon ends with -ECANCELED. */
	_Atomic bool cancelled;

	/* Set by the store before done. */
	int result;
	struct error error; /* set if result is negative */
};

/* Callbacks for changes of the size of a store, and for its loss. */
struct store_watch {
	/* Set by the owner. The functions are called on this ring. */
	struct ring *ring;
	void (*resized)(struct store_watch *watch);
	void (*lost)(struct store_watch *watch); /* see store_is_lost() */
	/* Called once after store_watch_remove(), possibly from inside it. The watch may be freed
	 * then. */
	void (*removed)(struct store_watch *watch);

	/* Private members. */
	struct store *store;
	struct store_watch *next; /* protected by the store's lock, like posted */
	struct ring_message message;
	bool posted;
	bool is_removed;
	bool knows_loss; /* lost() was called */
};

/* First member of the struct of each kind and filter. */
struct store {
	const struct store_ops *ops;
	struct store *inner; /* filters: the store below */
	struct store_info info;
	uint32_t scratch_offset;  /* private: offset of this layer's slice in a part's scratch */
	bool page_cache_send_off; /* private: as requested */
	bool is_let_go;		  /* set by store_let_go(): close must not change the disk */
	/* the store is a snapshot: its parts fail with -ESTALE after it was deleted */
	bool is_snapshot;
	_Atomic int broken; /* private: error of the first failed durable part, or 0 */

	/* Private, used only in the innermost layer. */
	pthread_mutex_t watch_lock;
	void (*snapshot_dropped)(void *context); /* see store_snapshots_watch(); or NULL */
	void *snapshot_context;
	struct store_watch *watches;
	_Atomic bool is_lost; /* see store_is_lost() */
	struct store_start *start;
	_Atomic uint32_t start_permille;
	/* Queue for parts from other rings. Its ring is NULL if the store has no owner. */
	struct store_queue owner;
};

enum store_mode {
	STORE_MODE_AUTO,   /* the default: reads use the faster method, writes use the page cache */
	STORE_MODE_CACHED, /* through the page cache */
	STORE_MODE_DIRECT, /* bypassing the page cache (O_DIRECT) */
	/* direct, with payload in memory of a PCI device; see store_info.read_device */
	STORE_MODE_DEVICE,
};

/* Returns whether this mode bypasses the page cache. */
static inline bool store_mode_is_direct(enum store_mode mode)
{
	return mode == STORE_MODE_DIRECT || mode == STORE_MODE_DEVICE;
}

enum { STORE_KINDS_MAX = 16 };

/* Kinds of damage with which a start fails unless the user permits their repair. */
enum store_repair {
	STORE_REPAIR_MAP = 1 << 0,  /* rebuild a map with lost parts */
	STORE_REPAIR_LOSS = 1 << 1, /* continue although flushed changes are lost */
};

/* Options for store_open(). The members below apply to all kinds; each kind and filter also has its
 * own configuration, which is allocated when one of its keys is set. Zeroes are the defaults.
 * store_options_fini() frees what store_options_set() has allocated. */
struct store_options {
	/* path of the disk, which can begin with the prefix of a kind; borrowed */
	const char *path;
	bool read_only;
	/* With read_only: no server may write the store while it is open, see
	 * disk_claim_reading(). */
	bool frozen;
	bool sole; /* no other store may write the disk, not even one of this process */
	/* Set by a store that uses this one as its disk: no filter wraps it. */
	bool is_below;
	/* Set by a store that uses this one as its disk. A file of any format is then accepted, and
	 * so is a host-managed zoned device, to which writes must be in the order that the zones
	 * require. */
	bool any_format;
	bool page_cache_send_off; /* store_page_cache_ref() always returns false */
	enum store_mode read_mode;
	enum store_mode write_mode; /* AUTO means cached writes; never STORE_MODE_CACHED */
	uint32_t stripe_chunk;	    /* overrides the value of the disk; 0 = no override */
	uint32_t stripe_members;
	/* State that the previous process has handed over, for kinds that keep the disk in memory;
	 * borrowed by store_open(). NULL: none. */
	const struct store_claim *inherited;
	uint32_t repairs;    /* enum store_repair: permitted repairs, for kinds with can_repair */
	uint64_t keys_given; /* private: one bit per option */
	/* private: configurations by kind; NULL: no option of the kind was given */
	void *configs[STORE_KINDS_MAX];
};

/*
 * Registers a kind of store or a filter, before other threads exist. Filters wrap a store in the
 * order of their registration: the first one is innermost. kind must stay valid. Keys and names
 * must be unique (asserted).
 */
void store_register(const struct store_kind *kind);

/* Returns the idx-th option of an export: first the options of all kinds, then each kind's own in
 * the order of registration. */
const struct field *store_option_at(uint32_t idx);
/* Sets the option with that key. value is copied or parsed; NULL: the key was given without a
 * value. Returns -EINVAL or -ERANGE with a message that does not name the key, -ENOENT if the key
 * does not exist, or -ENOMEM. */
GMB_MUST_CHECK int store_options_set(
	struct store_options *options, const char *key, const char *value, struct error *error);
void store_options_fini(struct store_options *options);
/* Returns whether an option, which store_option_at() has returned, has the same value in both. An
 * option that was not set has its default value. */
bool store_options_same(
	const struct store_options *a, const struct store_options *b, const struct field *option);
/* Returns whether two paths name the same disk according to their texts: the texts are equal, or
 * name equal sizes. */
bool store_path_same(const char *a, const char *b);
/* Returns whether path begins with the prefix of a kind, such as "memory:". */
bool store_path_has_kind(const char *path);
/* Returns whether a store opened with this path needs a start, see store_needs_start(). */
bool store_path_needs_start(const char *path);
/* Returns -EINVAL if the path must contain a size, as in memory:SIZE, and does not. Does not open
 * the store. */
GMB_MUST_CHECK int store_path_check(const char *path, struct error *error);
/* Returns the file or block device that a path names: the path without the prefix of a kind. */
const char *store_path_file(const char *path);
/* Like store_path_file() for the paths of store_create() and store_check(), such as
 * overlay:FILE. */
const char *store_made_file(const char *path);
/* Returns the idx-th file that the store opens in addition to path, for writing unless read_only;
 * NULL after the last. */
const char *store_options_file(const struct store_options *options, uint32_t idx);
/* Returns the tmpfs folder for memory that survives the process; NULL: no folder. */
const char *store_options_memory_folder(const struct store_options *options);
/* Returns whether path itself is never written, for example because it is the base of an
 * overlay. */
bool store_options_reads_only(const struct store_options *options);

/* Callbacks for what store_check() finds, called in the order of display. Texts can contain any
 * bytes. */
struct store_check {
	/* Members set by the caller. */
	const char *base; /* overlay: the base's current path; NULL: the recorded path */
	void (*fact)(struct store_check *check, const char *name, const char *text);
	void (*amount)(struct store_check *check, const char *name, uint64_t bytes);
	/* Adds text to a list. text NULL: creates an empty list. */
	void (*entry)(struct store_check *check, const char *list, const char *text);
	/* Reports damage that was found. sentence: without its full stop. */
	void (*fault)(struct store_check *check, const char *sentence);
};

/* Checks a file in one of our formats, without changing it. Returns 0 even if it is damaged, or a
 * negative errno if it cannot be read or has another format (-EINVAL). Blocks. */
GMB_MUST_CHECK int store_check(const char *path, struct store_check *check, struct error *error);

/* Parameters for creating a disk in one of our formats. Zeroes are the defaults. */
struct store_create {
	uint64_t size; /* size of the new file; 0: use all of an existing one */
	uint64_t segment_bytes;
	uint32_t spare_percent;
	const char *label; /* text for users, stored in the disk; or NULL */
	const char *base;  /* base of the overlay; or NULL */
	bool force;	   /* overwrite existing contents */
};

/* Checks the parameters without accessing any file. Returns -EINVAL if disks of the kind in path
 * (KIND:FILE) cannot be created, or if the kind does not support one of the parameters. */
GMB_MUST_CHECK int store_create_check(
	const char *path, const struct store_create *create, struct error *error);
/* Creates the disk or overlay that path names, after store_create_check(). Returns -EEXIST if
 * existing contents would be lost. Blocks. */
GMB_MUST_CHECK int store_create(
	const char *path, const struct store_create *create, struct error *error);

/* Opens the store and wraps it in the requested filters; options are not needed afterwards. Fails
 * if the requested mode is direct and the file does not support it. */
GMB_MUST_CHECK int store_open(
	const struct store_options *options, struct store **store_out, struct error *error);
/* Writes all state that is only in memory to the disk. Without this call, store_close() writes it.
 * Returns how many bytes of acknowledged changes could not be written. All queues must be
 * destroyed. Blocks. */
uint64_t store_end(struct store *store);
/* Closes the store, whose queues must be destroyed. NULL is a no-op. */
void store_close(struct store *store);

static inline const struct store_info *store_info(const struct store *store)
{
	return &store->info;
}
/* Returns the rights that the memory of a part must have. The memory of a write is only read. */
static inline uint32_t store_rights(const struct store *store, enum store_op op)
{
	return store->info.memory_rights &
	       (op == STORE_WRITE ? ~(uint32_t)MEM_CPU_WRITE : UINT32_MAX);
}
/* Returns the current size in bytes, which can change. Fast enough to call for each connection, but
 * not for each request. */
uint64_t store_size(struct store *store);

/*
 * Some stores must be started after store_open(), before the first part, for example to recover a
 * log or to read a map. The start runs on a ring, without blocking it, and reports its progress.
 * For some stores (has_owner in kind.h), this ring becomes their owner: all parts of all queues are
 * processed there, so that the store needs no locks. Parts of other rings are passed to it and back
 * by messages, many parts in one message; their progress is not reported. The owner's ring must not
 * be destroyed before the last part of every queue is done.
 */
bool store_needs_start(const struct store *store);
/* Starts the store. Called once, on start->ring, before or after queues are created. */
void store_start(struct store *store, struct store_start *start);
/* Returns the progress of the start, 0 to 1000. 1000: parts can be submitted. Any thread. */
uint32_t store_start_permille(const struct store *store);
/* Returns store_info.epoch of the outermost layer that has one; valid after the start. */
uint64_t store_epoch(const struct store *store);
/* Returns store_info.identity of the outermost layer that has one, or NULL: unknown. */
const uint8_t *store_identity(const struct store *store);
/* Returns store_info.budget_bytes. */
uint64_t store_budget(const struct store *store);

/* Makes the store call watch->resized after each detected change of its size, and watch->lost once
 * when it is lost. The calls are made on watch->ring, to which the watch belongs until it is
 * removed. */
void store_watch_add(struct store *store, struct store_watch *watch);
void store_watch_remove(struct store *store, struct store_watch *watch);

/* Returns whether the disk refuses changes of this server, because another one has taken it over.
 * Such a store must not be served any more: requests that failed must not be answered, so that
 * clients repeat them at the other server. Final. Any thread. */
bool store_is_lost(const struct store *store);

/*
 * Snapshots. A snapshot is a read-only store with a name. It has the contents that the store had at
 * one moment between the request and its completion. It survives the process and a crash. If space
 * is short, the store can delete snapshots. Reads of a deleted snapshot fail with -ESTALE.
 */
enum { STORE_SNAPSHOTS_MAX = 2, STORE_SNAPSHOT_NAME_BYTES = 64 };

struct store_snapshot {
	char name[STORE_SNAPSHOT_NAME_BYTES]; /* zero-terminated */
	uint64_t created_s;		      /* seconds since 1970 */
	/* The snapshot was created for a job. It is deleted when the store is opened for writing
	 * again, and if space is short, before other snapshots. */
	bool is_temporary;
};

enum store_snapshot_action { STORE_SNAPSHOT_CREATE, STORE_SNAPSHOT_DELETE };

struct store_snapshot_request {
	/* Set by the caller; must be valid until done. */
	enum store_snapshot_action action;
	struct store_snapshot snapshot; /* to delete a snapshot, only the name is used */
	/* called on the ring of the store's start */
	void (*done)(struct store_snapshot_request *request);
	void *context;

	/* Set by the store: 0, -EEXIST or -ENOENT (a snapshot with the name exists, or does not),
	 * -EINVAL (invalid name), -EMLINK (maximum number reached), -ENOSPC, -EROFS, or the error
	 * of the disk. */
	int result;
	/* if result is negative: an error message without a subject, to be put after the name of
	 * the store */
	struct error error;

	/* Private members. */
	struct store *store;
	struct ring_message message;
	struct list_node node; /* in the store's queue of requests */
};

/* Returns whether the innermost store supports snapshots. */
bool store_has_snapshots(const struct store *store);
/* Creates or deletes a snapshot. Requests are processed in order. When done is called, the change
 * is durable, or it has failed without effect. Any thread. The store must support snapshots and be
 * started; the ring of its start must not be destroyed before the request is done. */
void store_snapshot_ask(struct store *store, struct store_snapshot_request *request);
/* Lists the snapshots and returns their number; 0 if the store does not support them. Any thread,
 * after the start. */
uint32_t store_snapshots(struct store *store, struct store_snapshot list[STORE_SNAPSHOTS_MAX]);
/* Makes the store call dropped, on the ring of its start, when it deletes a snapshot for lack of
 * space; never from store_close(). Call it before the start, on a store that supports snapshots. */
void store_snapshots_watch(struct store *store, void (*dropped)(void *context), void *context);
/* Opens a snapshot. Returns -ENOENT if there is none with that name. The store must stay open as
 * long as the snapshot. Any thread. */
GMB_MUST_CHECK int store_snapshot_open(
	struct store *store, const char *name, struct store **snapshot_out, struct error *error);

enum store_barrier {
	STORE_BARRIER_OPEN,
	STORE_BARRIER_CLOSED, /* operations of a process that has ended are still in flight */
	/* unknown: such operations cannot be detected here (network file system, FUSE) */
	STORE_BARRIER_UNKNOWN,
};
/*
 * Returns whether operations of a killed server may still reach the disk, or memory that the server
 * shared with its clients. If so, the barrier is closed, and no part may be submitted. Later it
 * opens or becomes unknown, and closes again only when another store of the disk is opened. look:
 * if it is closed, query the operating system again, which can block; otherwise return the last
 * result. Any thread.
 */
enum store_barrier store_barrier(struct store *store, bool look);
/* Returns "open", "closed" or "unknown". */
const char *store_barrier_name(enum store_barrier barrier);

/* Location of a store's bytes: byte n of the store is byte at + n of the disk. Other stores, also
 * in other processes, may use the same disk. */
struct store_place {
	uint8_t machine[16]; /* identifies the machine that has the disk; zeroes: unknown */
	uint64_t disk[2];    /* identity of the disk, see struct disk_info */
	uint64_t at;
};
/* Returns false if the bytes cannot belong to another store as well, or if they are not in one
 * contiguous range. */
bool store_place(struct store *store, struct store_place *place_out);
/* Returns whether two ranges of length bytes that start at these locations overlap. */
bool store_places_meet(
	const struct store_place *one, const struct store_place *other, uint64_t length);

/*
 * Handover of a disk to another process, which serves it afterwards: docs/protocol/upgrade.md.
 * During the handover, both processes have the open file of the claim, so that the disk is always
 * claimed. The claim ends when both have closed it.
 *
 * Some stores keep state in memory that is not on the disk. They must be quiesced before the
 * handover: while no other part is in flight, a flush with STORE_QUIESCE writes all state to the
 * disk. The other process opens the store before this flush, but reads the state only after it:
 *
 *   here   flush, STORE_QUIESCE ──┐  store_let_go(), store_close(); if it fails, more parts
 *   there  store_open()          └▶ store_take() or store_start() ─▶ parts
 *
 * The other process does not write before its first part. If other parts are in flight, the flush
 * with STORE_QUIESCE can fail with -EBUSY.
 */
enum store_hold {
	STORE_HOLD_NONE,  /* there is no fd: the store does not write, or has no contents */
	STORE_HOLD_CLAIM, /* fd is the claim; -1: the disk cannot be claimed */
	/* fd is the memory with the contents; the other process also maps it */
	STORE_HOLD_MEMORY,
};
struct store_claim {
	/* identity of the disk, valid until the machine reboots; zeroes: none */
	uint64_t identity[2];
	int fd;		      /* -1: none */
	enum store_hold hold; /* meaning of fd */
};
/* If the store can be handed over, returns NULL and stores in *claim_out the claim to pass on,
 * whose descriptor is borrowed. Otherwise returns the reason: a text to be put after the name of
 * the store's export. Main thread. */
GMB_MUST_CHECK const char *store_handover(struct store *store, struct store_claim *claim_out);
/* Returns whether the store must be quiesced before a handover. */
bool store_needs_quiesce(const struct store *store);
/* Called when the other process has taken over: the store must not change any byte of the disk any
 * more, not even when it is closed. No part may be in flight. */
void store_let_go(struct store *store);
/* Called in the other process after the first one has quiesced the store, before any part is
 * submitted: reads the state that the first one has written to the disk. Stores that need a start
 * do this in store_start(), which must not be called earlier either. Blocks. */
GMB_MUST_CHECK int store_take(struct store *store, struct error *error);
/* Called in the other process for STORE_HOLD_CLAIM, before other threads exist. The store layer
 * owns claim->fd from then on. If a store of the same disk is opened before store_adopt_end(),
 * claim->fd becomes its claim; the first process must not have operations in flight at that time.
 * Returns -EINVAL if the descriptor does not refer to the disk, or -ENOMEM. */
GMB_MUST_CHECK int store_adopt(const struct store_claim *claim);
/* Closes all claims of store_adopt() that no store uses. */
void store_adopt_end(void);

GMB_MUST_CHECK int store_queue_create(struct store *store, struct ring *ring,
	struct store_queue **queue_out, struct error *error);
void store_queue_destroy(struct store_queue *queue);
/* Returns the counters of this queue's layer and their description; NULL: none, or the store has an
 * owner on another ring. Called on the queue's thread. The layer below is queue->inner. */
const void *store_queue_counters(
	const struct store_queue *queue, const struct counter_table **table_out);

/*
 * Submits a part. Every part passes through this function, which asserts that the part is valid,
 * measures the disk, decides which parts the kernel receives in one call, and calls the
 * implementation.
 */
void store_submit(struct store_queue *queue, struct store_part *part);
/* Returns the rate measured with this queue's STORE_MEASURED parts. */
static inline struct store_rate *store_rate(struct store_queue *queue, enum store_op op)
{
	return &queue->rates[op != STORE_READ];
}

/* Shorter reads are never sent from the page cache, because the system calls for this cost as much
 * as a copy. */
enum { STORE_PAGE_CACHE_BYTES_MIN = 512 << 10 };

/* Returns whether the bytes of store_page_cache_ref() have these rights (enum mem_right). Any
 * thread. */
static inline bool store_page_cache_has(const struct store *store, uint32_t rights)
{
	return (rights & ~store->info.page_cache_rights) == 0;
}

/*
 * Submits a read whose bytes are sent from the page cache (or from memory of the store) instead of
 * being copied to memory of the submitter. The part is as for store_submit(), without memory.
 * Returns true if the part was submitted: it will succeed, and part->memory refers to the bytes
 * until the queue is destroyed. The program must not read them. Without MEM_ADDRESS they are bytes
 * of a file, see ring_sendfile_now(). Returns false if this is not possible, or if the range may be
 * all zeroes, because sending a hole is cheaper. The caller then submits the part with its own
 * memory.
 */
GMB_MUST_CHECK bool store_page_cache_ref(struct store_queue *queue, struct store_part *part);

/*
 * Returns the methods, a set of enum store_copy_way, that may work for STORE_COPY from source to
 * target; 0: none, and STORE_COPY must not be submitted. There are none if one of the stores has a
 * filter other than sched, because the copied data would not pass through the filter.
 * STORE_COPY_CLONE requires offsets and lengths that are multiples of *clone_align. A part can
 * still fail with -EOPNOTSUPP: the contents of its range are then undefined, and the caller must
 * use another method. Both stores must stay open until the part is done. Any thread.
 */
uint32_t store_copy_ways(struct store *target, struct store *source, uint64_t *clone_align);

/*
 * Returns why store_page_cache_ref() currently returns false for every read, or NULL if it can
 * succeed. The reason is one of "page-cache-send=off" (as requested), "mode=direct" and
 * "write-mode=direct" (these bypass the page cache), "shared" (another export writes directly),
 * "network" (a network file system, or FUSE), "overlay" (a file in an overlay file system, where a
 * copy can replace it), "filesystem" (sendfile() on it waits for writes, or fails), "foreign" (a
 * file of another user that may only be read), "address-space" (not enough to map the file),
 * "empty", and the name of a kind or filter without support ("null", "fault", "delay", "pace").
 * Static text.
 */
const char *store_page_cache_refusal(struct store *store);

/* Finishes a part. Each layer calls it once for each part that it was given. */
void store_finish(struct store_part *part, int result);

/*
 * Reports that the first bytes of a read's memory have their final values and will not be written
 * again. Called by kinds and filters between submit and store_finish(). bytes must increase and
 * stay below the part's length: the last bytes are reported only by store_finish(), because the
 * part can still fail. If a report breaks these rules, it is dropped, and the part fails with -EIO.
 */
void store_progress(struct store_part *part, uint64_t bytes);
