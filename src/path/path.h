// SPDX-License-Identifier: Apache-2.0
/*
 * The data path: processes requests between a session, which implements a protocol, and a store,
 * which reads and writes blocks, and manages the memory for their data.
 *
 *   session                     path                                   store         arena
 *   path_start(request) ─────▶ WAIT
 *                              DISK       parts, each of part size ───▶ submit ◀── buffer
 *   progress(request) ◀─────── OVERLAP    first stream has valid bytes ◀── done
 *   path_next_fragment() ◀───  ...        any stream, in any order
 *   path_fragment_sent() ─────▶           buffer returned, next part ──────────────▶ buffer
 *   path_status() == COMMITTED  NETWORK   every part is done: only now has the request succeeded
 *   path_finish(request) ─────▶ DONE
 *
 * A read is transferred by several streams. A stream is a range of the request with its own buffer:
 * {offset, length, valid, sent}. Its first `valid` bytes have arrived; this number increases when
 * the store reports progress or completes the part. The session requests the next fragment and gets
 * one from any stream with unsent valid bytes, or none; the call never blocks. For a write, the
 * session requests memory (path_write_open()), fills the memory from the network and submits it to
 * the store, while later bytes are still arriving. Every other request is one part without payload.
 * If all data of a read is in the page cache, the read is one stream that is sent from there and
 * needs no memory. overlap.h explains how a transfer is cut. On a striped disk, no part crosses the
 * end of a chunk, and all members have work from the beginning.
 *
 * Placement of payload: most requests are staged, which means that their parts have buffers of an
 * arena. The arena is RAM, or memory of a PCI device if the export requests it
 * (store_info.read_device). Such an export still uses RAM in some cases, which the members
 * ram_for_* of struct path_export count.
 *
 * A request can also bring a placement, a scatter list of memory of the requester. Its parts are
 * then read and written there directly. Blocks that direct I/O cannot transfer, because a segment
 * is not aligned in memory or ends inside the block, are staged and copied.
 *
 * A request ends exactly once, as COMMITTED or ABORTED. The requester must not use data before
 * COMMITTED. If an ended connection has left changes in the store, a change that overlaps them
 * waits until they are done (late_writes.h). When memory is short, a request waits for its turn
 * (admission.h); no request fails for lack of memory. If the store keeps a write atomic, the write
 * is not cut to save memory (path_export_join()). The extents of a block status request are stored
 * in RAM to which the same limits apply.
 *
 * Threading: the ring's thread. Ownership: the session owns the request (embedded in its own). The
 * path uses it from path_start() until path_finish(), or until it is idle after path_abandon().
 * Errors: request->error is a negative errno from the store once the status is ABORTED.
 */
#pragma once

#include "base/list.h"
#include "base/log.h"
#include "memory/arena.h"
#include "path/admission.h"
#include "path/late_writes.h"
#include "path/overlap.h"
#include "path/stats.h"
#include "ring/ring.h"
#include "store/store.h"

struct path;
struct path_request;

enum path_status { PATH_PENDING, PATH_COMMITTED, PATH_ABORTED };

enum {
	PATH_OVERLAP_AUTO = 0, /* the part size is chosen from measurements */
	/* requests are not cut: the largest parts, and a read of up to 4 MiB is sent only when it
	 * is complete */
	PATH_OVERLAP_OFF = 1,
	PATH_PART_SIZE_MIN = 4096, /* part sizes are multiples of this */
	PATH_PART_SIZE_MAX = ARENA_BLOCK_BYTES_MAX,
};

/* An export as used by one reactor. */
struct path_export {
	struct store *store;
	struct store_queue *queue;
	/* name for messages; not terminated; borrowed until path_export_fini(); can be NULL */
	const char *name;
	uint32_t name_bytes;
	struct log_limit errors;		  /* rate limit for log lines about disk errors */
	struct late_writes_port late_writes_port; /* link to the shared state; see late_writes.h */
	/* PATH_OVERLAP_AUTO, PATH_OVERLAP_OFF, or the part size in bytes */
	uint32_t overlap;
	uint32_t atomic_bytes;	 /* see path_export_join() */
	struct arena_buf atomic; /* block reserved for atomic writes; MEM_NONE: not allocated yet */
	bool atomic_used;
	/* in admission->atomic_lacking until the block is allocated */
	struct list_node atomic_node;
	struct overlap reads;
	struct overlap writes;
	/* Size of all buffers of the export's requests, in RAM and in device memory, without the
	 * clients' reserves. */
	uint64_t held_bytes;
	uint64_t device_held_bytes;
	uint32_t costly_count;		/* number of costly requests in the store (admission.h) */
	uint64_t page_cache_send_bytes; /* bytes of reads sent from the page cache */
	/* Number of reads for which the store could not provide the data in the page cache. */
	uint64_t page_cache_send_misses;
	/* Bytes of reads and writes, except those sent from the page cache, by the place of their
	 * payload. */
	uint64_t ram_bytes;
	uint64_t placed_bytes; /* payload in the requester's memory (placement) */
	uint64_t device_bytes;
	/* Uses of RAM despite mode=device, by reason. */
	/* number of requests for which the store needs the CPU, for example for partial blocks */
	uint64_t ram_for_store;
	/* number of requests that found no device memory which the disk can reach */
	uint64_t ram_for_trouble;
	/* number of parts whose memory the session must access with the CPU */
	uint64_t ram_for_session;
	uint64_t ram_for_room; /* number of parts that found the device memory full */
	/* Error because of which the disk cannot use the device memory; 0: no error so far. */
	int device_error;
	/* number of parts that waited for the change of an ended connection */
	uint64_t late_waits;
	/* numbers of failed requests, see path_error_slot() */
	uint64_t error_counts[PATH_ERROR_COUNT];
	/* Statistics by operation; NULL before the operation's first request. */
	struct path_operation *operations[STORE_OP_COUNT];
};

/* Name of the metric of payload by its place, and the values of its label "placement". Traced parts
 * have the same values. */
#define PATH_PLACEMENT_METRIC	  "export_placement_bytes"
#define PATH_PLACEMENT_RAM	  "ram"
#define PATH_PLACEMENT_REQUESTER  "requester"
#define PATH_PLACEMENT_DEVICE	  "device"
#define PATH_PLACEMENT_PAGE_CACHE "page_cache"

extern const struct counter_table path_export_counter_table; /* describes struct path_export */

/* Initializes all members except the store and its queue; the name is set to NULL. late: shared by
 * all reactors; must exist until path_export_fini(). */
void path_export_init(struct path_export *path_export, uint32_t overlap, struct late_writes *late,
	struct ring *ring);
/* Frees the statistics. */
void path_export_fini(struct path_export *path_export);
/*
 * Returns the maximum length of an atomic write: up to this length, the path submits a write with
 * STORE_FUA as one part, even if memory is short. The maximum is store_info.atomic_bytes, or less
 * if the path has little memory, down to PATH_RESERVE_BYTES: a block of this length must not exceed
 * an eighth of the memory available to requests, and all such blocks together half of it. 0: the
 * store has no atomic writes.
 */
uint32_t path_atomic_bytes(struct path *path, const struct store *store);
/* Adds the export to the path, once, after path_export_init(). Atomic writes of at most
 * atomic_bytes are never cut, because a block of memory is reserved for them. atomic_bytes: result
 * of path_atomic_bytes() for this path, or for another one with the same memory. */
void path_export_join(struct path *path, struct path_export *path_export, uint32_t atomic_bytes);
/* Removes the export, which must not have requests. */
void path_export_leave(struct path *path, struct path_export *path_export);

/* A range of a request that is being transferred, with its own buffer. 0 <= sent <= valid <=
 * length. */
struct path_stream {
	/* Link in request->ready while valid > sent, in the path's free list, or in
	 * late_writes_range.waiting. */
	struct list_node node;
	struct path_request *request;
	struct arena_buf buf;
	struct mem_ref memory; /* the stream's buffer, or memory of the requester or the store */
	uint64_t offset;       /* in the export */
	uint32_t length;
	uint32_t room;	 /* the stream's share of request->live_bytes */
	uint32_t unsent; /* the stream's share of client->unsent_bytes */
	uint32_t valid;
	uint32_t sent;	/* number of bytes given to the session */
	uint32_t done;	/* number of bytes that the session has sent and returned */
	bool in_store;	/* the stream's part was submitted and is not done */
	bool in_device; /* the memory is device memory */
	bool in_place;	/* the memory is the requester's */
	/* the buffer is copied from or to the requester's memory */
	bool copied;
	struct path_trace_part *traced; /* the part's record in a trace; NULL: none */
	struct store_part part;
};

struct path_fragment {
	struct path_stream *stream;
	struct mem_ref memory; /* MEM_NONE: the bytes are in the placement */
	uint64_t offset;       /* in the export */
	uint32_t length;
	bool last; /* the last fragment of this request */
};

/* State of a costly request; see admission.h. */
enum path_costly { PATH_COSTLY_NOT, PATH_COSTLY_WAITS, PATH_COSTLY_BUSY };

struct path_request {
	/* Set by the session before path_start(). */
	struct path_client *client; /* the client's share of the path's memory, see admission.h */
	enum store_op op;
	uint32_t flags; /* enum store_flag */
	uint64_t offset;
	uint64_t length;
	/* the connection, see struct peer: its requests can form a sequence; 0: unknown */
	uint64_t requester;
	uint32_t extent_max; /* STORE_EXTENTS: maximum number of extents, 1 to PATH_EXTENTS_MAX */
	/* STORE_COPY: the source must stay open until the request is idle */
	struct store_copy copy;
	/* maximum size of the request's buffers; one part is always allowed */
	uint64_t window_bytes;
	bool ascending; /* fragments must be in the order of their offsets */
	bool whole;	/* fragments are needed only when all bytes of the request are valid */
	/* data is not sent over a network, so the request is neither cut nor measured */
	bool internal;
	/* enum mem_right: the session's access to payload memory */
	uint32_t memory_rights;
	/*
	 * Memory of the requester, length bytes in total, or NULL. Used until the request ends or
	 * is idle after path_abandon(). A read fills it, and fragments only report which bytes have
	 * arrived. A write does not need path_write_open(). If the store cannot use the memory,
	 * path_start() sets this to NULL, and the request uses buffers.
	 */
	const struct mem_segment *placement;
	uint32_t placement_count;
	struct path_export *export;
	/* Called after each change: a fragment is ready, memory for a write is available, the
	 * request has ended, or an abandoned request is idle. Never called from inside a function
	 * that the session calls. */
	void (*progress)(struct path_request *request);

	/* Results for the session. */
	int error;		      /* 0, or the error that aborted the request */
	uint64_t error_offset;	      /* first byte of the part that failed */
	struct store_extent *extents; /* result of a committed STORE_EXTENTS, until path_finish() */
	uint32_t extent_count;

	/* Set by the session before each path_write_open(): how many of the next bytes have already
	 * arrived and will be copied by the CPU. path_start() sets it to 0. */
	uint32_t copied_bytes;

	/* Private members. */
	struct path *path;
	struct arena *arena; /* arena of the request's buffers */
	/* enum mem_right: rights of the request's buffers in device memory */
	uint32_t device_rights;
	uint32_t segment; /* placement: index and first byte of the segment used last */
	uint64_t segment_begin;
	struct path_trace_request *record; /* the request's record in a trace; NULL: none */
	enum path_state state;
	uint64_t edge_ns[PATH_STATE_COUNT];
	uint64_t started_bytes; /* number of bytes for which parts were created */
	uint64_t stored_bytes;	/* number of bytes of the parts that the store has finished */
	uint64_t handed_bytes;	/* number of bytes given to the session as fragments */
	uint64_t live_bytes;	/* number of bytes in open streams */
	/* striped reads: offset of the row that contains the next part, see overlap.h */
	uint64_t row_offset;
	uint64_t row_step;
	/* rest of a range that was started only in part, for lack of memory */
	struct cut_range rest;
	/* the request's range, published after its connection has ended */
	struct late_writes_range late;
	uint64_t parts_time; /* sum over all parts of bytes * time until completion */
	uint32_t part_size;
	/* enum store_flag: flags of the request's parts, in addition to `flags` */
	uint32_t part_flags;
	/* interval of progress reports within a part; 0 = none */
	uint32_t progress_step;
	uint32_t parts_started;
	uint32_t parts_inflight;
	uint32_t parts_waiting; /* number of parts in parts_inflight that wait, see late_writes.h */
	uint32_t streams_live;
	bool abandoned;
	bool first_used;
	bool measured;	 /* the request is included in the measurements of struct overlap */
	bool slow;	 /* the request is included in path->slow_count */
	bool cut;	 /* the request is cut into parts, or reported in steps */
	bool counted;	 /* the request is included in overlap->request_bytes */
	bool compared;	 /* overlap_begin() was called for the request; read-only for sessions */
	bool striped;	 /* the parts are in an order that keeps all members busy */
	bool stages;	 /* blocks of the placement that are not aligned are copied */
	bool stages_all; /* all blocks of the placement are copied */
	bool unstable;	 /* others can change or remove the memory of the placement */
	bool page_cache_missed;
	bool atomic;	  /* the request is a write that must be a single part */
	bool atomic_held; /* the request uses the export's block for atomic writes */
	enum path_costly costly;
	struct list_node ready;
	struct list_node stalled_node; /* in client->stalled or client->costly_waiting */
	struct path_stream first;      /* the only stream of most requests */
};

enum {
	/* Part size of reads through the page cache, and of single reads with mode=auto. Larger
	 * parts need more CPU time if the data is not in the page cache. */
	PATH_CACHED_PART_BYTES = 512 << 10,
	/* If memory is short, a part gets a smaller buffer: this much, or the client's reserve. */
	PATH_PART_BYTES_MIN = 64 << 10,
	PATH_PLACED_BYTES_MAX = 1 << 30, /* largest part of a write from a placement */
	/* Largest part of a durable write from memory that its owner can remove. The kernel reports
	 * with EFAULT that such memory is gone, but in a direct write of more than 256 pages to a
	 * block device as an error of the disk. */
	PATH_UNSTABLE_BYTES_MAX = 255 << 12,
	/* Limit on parts in flight in requesters' memory. The first part of each request is not
	 * counted. */
	PATH_PLACED_PARTS_MAX = 1024,
	PATH_EXTENTS_MAX = 1024, /* maximum number of extents; fewer if memory is short */
	PATH_SLOW_NS = 50000,	 /* see path_is_slow() */
};

_Static_assert((int)ARENA_DEVICE_BYTES_MIN / (int)PATH_CLIENT_DIVISOR >= (int)PATH_PART_BYTES_MIN,
	"the smallest device arena can hold a part");

struct path_options {
	struct ring *ring;
	struct arena *ram;
	struct arena *device; /* device memory; NULL: none */
	/* If the device memory is full, requests wait for it instead of using RAM. */
	bool device_waits;
};

GMB_MUST_CHECK int path_create(
	const struct path_options *options, struct path **path_out, struct error *error);
/* Destroys the path, which must not have requests. NULL is a no-op. */
void path_destroy(struct path *path);

/* Makes trace record requests that start from now on; NULL: stops recording. trace must exist until
 * the next call. */
void path_set_trace(struct path *path, struct path_trace *trace);

/* Retries requests that wait for memory, in turn. Called once per batch of completions, and again
 * while path_is_to_serve() returns true. */
void path_serve(struct path *path);
bool path_is_to_serve(const struct path *path);
/* Returns whether a client waits for memory that others hold. */
bool path_is_short(const struct path *path);
/* Adds the state of the path's memory to *ram and *device. *device does not change if the path has
 * no device memory. */
void path_arenas_add(struct path *path, struct path_arena *ram, struct path_arena *device);
/* For use in src/path only. */
struct path_admission *path_admission(struct path *path);
/* Returns the arena for a request of an export with mode=device: device memory, or RAM if the CPU
 * would have to access it, for example to copy partial blocks. */
struct arena *device_choose(struct path_request *request);
/* Called if a part has failed with store_part.memory_error: stops using device memory, for this
 * disk or for all disks. */
void device_see_error(struct path_request *request, int error);
/* Returns whether some request in flight needs more time for its next bytes than a reactor should
 * spin. */
bool path_is_slow(const struct path *path);

/* Starts the request, which cannot fail; later events are reported by request->progress. A write
 * without a placement waits for path_write_open(). */
void path_start(struct path *path, struct path_request *request);

enum path_status path_status(const struct path_request *request);

/* Reads: stores the next fragment of at most max_bytes in *fragment. It comes from any stream; with
 * request->ascending, fragments are in the order of their offsets. Returns false if no fragment is
 * ready. The fragment's memory is valid until path_fragment_sent(). */
bool path_next_fragment(
	struct path_request *request, uint32_t max_bytes, struct path_fragment *fragment);
/* Gives back the memory of a fragment that was sent or discarded. */
void path_fragment_sent(const struct path_fragment *fragment);

/* Called if a socket operation with the stream's memory failed with -EFAULT. If this is device
 * memory, the device has been removed, and its memory is not used any more. */
void path_memory_failed(const struct path_stream *stream);

/*
 * Writes: returns a stream with memory for the next bytes: stream->memory, stream->length. NULL: no
 * memory is available, and progress will be called. The memory permits request->memory_rights,
 * which the session can change between calls. If copied_bytes > 0, the CPU can also write to the
 * memory. If only the copied bytes need RAM, the stream ends behind their last block, so that the
 * next stream can use device memory. Must not be called if request->error is set or all bytes have
 * memory.
 */
struct path_stream *path_write_open(struct path_request *request);
/* Submits the stream, whose memory must be filled, to the store. */
void path_write_submit(struct path_stream *stream);
/* Releases the stream without submitting it, because the request has failed or the peer has
 * disconnected. */
void path_write_drop(struct path_stream *stream);
/* Declares that the session does not need memory until its next path_write_open(): the request
 * leaves the queue for memory. */
void path_write_pause(struct path_request *request);
/* Returns whether the store has finished all parts that were submitted to it. */
bool path_write_rests(const struct path_request *request);

/* Ends the use of a request: after its reply was sent, or when it is idle after path_abandon(). Its
 * extents become invalid. */
void path_finish(struct path_request *request);

/* Called if the peer has stopped sending and may be disconnected. The request continues. Until it
 * has ended, overlapping changes of other requests wait, see late_writes.h. */
void path_orphan(struct path_request *request);
/* Called if the peer has disconnected: like path_orphan(), but also starts no further parts and
 * drops unsent fragments. Returns true if the request is idle. Otherwise progress is called when
 * the request has become idle, which requires that the session returns its fragments
 * (path_fragment_sent()). */
bool path_abandon(struct path_request *request);
bool path_is_idle(const struct path_request *request);
/* Returns whether the request waits for memory that others use. While the request waits, it can
 * free memory only by sending its own data. */
bool path_is_stalled(const struct path_request *request);

/* Called by late_writes.c on the request's ring when the part no longer has to wait. */
void path_resume(struct path_stream *stream);
