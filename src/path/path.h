// SPDX-License-Identifier: Apache-2.0
/*
 * The data path: the life of one request between a session, which implements a protocol, and a
 * store, which moves blocks, and the memory between them.
 *
 *   session                     path                                   store         arena
 *   path_start(request) ─────▶ WAIT
 *                              DISK       parts, each of part size ───▶ submit ◀── buffer
 *   progress(request) ◀─────── OVERLAP    first stream has valid bytes ◀── done
 *   path_next_fragment() ◀───  ...        any stream, in any order
 *   path_fragment_sent() ─────▶           buffer back, next part ──────────────────▶ buffer
 *   path_status() == COMMITTED  NETWORK   every part is done: only now is the request a success
 *   path_finish(request) ─────▶ DONE
 *
 * A read is a transfer of several streams {offset, length, valid, sent}, each with its own buffer.
 * The store only ever raises valid, at the end of a part or as it reports progress. The session
 * asks for the next fragment and gets one from any stream that has bytes, or none; the call never
 * blocks. A write is the reverse: the session asks for room (path_write_open), fills it from the
 * network, and submits it while later bytes are still arriving. Every other request is one part
 * without payload. A read whose data is in the page cache is one stream, too: it is sent from
 * there and needs no memory. overlap.h explains how a transfer is cut. On a striped disk no part
 * crosses the end of a chunk, and all members get work from the start.
 *
 * Placement of payload: most requests are staged, which means that their parts have buffers of an
 * arena. The arena is RAM, or memory of a PCI device if the export requests it
 * (store_info.read_device). Such an export still uses RAM, and counts the reason, if
 * - the store or the session needs an access that the device memory does not permit,
 * - the device memory is full (path_options.device_waits), or
 * - the disk turned out to be unable to reach it.
 *
 * A request can also bring a placement, a scatter list of its own memory. Its parts are then read
 * and written there directly. The exceptions are blocks that direct I/O cannot transfer because a
 * segment's memory is not aligned or a segment ends within them: these are staged and copied.
 *
 * A request ends exactly once, as COMMITTED or ABORTED. The requester treats nothing as read
 * before COMMITTED. Changes wait for those that an ended connection has left in the store:
 * late_writes.h. When memory is short, a request waits for its turn (admission.h); no request fails
 * for lack of memory. A write that the store keeps atomic is not cut to save memory:
 * path_export_join(). Extents are kept in RAM that is shared in the same way.
 *
 * Threading: the ring's thread. Ownership: the session owns the request (embedded in its own). The
 * path holds it from path_start() until path_finish(), or until it is idle after path_abandon().
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
	PATH_OVERLAP_AUTO = 0,	   /* chosen from measurements */
	PATH_OVERLAP_OFF = 1,	   /* no part is sent before all have arrived */
	PATH_PART_SIZE_MIN = 4096, /* part sizes are multiples of it */
	PATH_PART_SIZE_MAX = ARENA_BLOCK_BYTES_MAX,
};

/* An export as used by one reactor. */
struct path_export {
	struct store *store;
	struct store_queue *queue;
	const char *name; /* for messages; without a terminator, held until fini; can be NULL */
	uint32_t name_bytes;
	struct log_limit errors;		  /* of the disk */
	struct late_writes_port late_writes_port; /* link to the shared state; see late_writes.h */
	/* PATH_OVERLAP_AUTO, PATH_OVERLAP_OFF, or the part size in bytes */
	uint32_t overlap;
	uint32_t atomic_bytes;	 /* see path_export_join() */
	struct arena_buf atomic; /* block reserved for such a write; none: not allocated yet */
	bool atomic_used;
	struct list_node atomic_node; /* in admission->atomic_lacking until it is allocated */
	struct overlap reads;
	struct overlap writes;
	/* Buffers of all its requests in RAM and of the device. The clients' reserves do not
	 * count. */
	uint64_t held_bytes;
	uint64_t device_held_bytes;
	uint32_t costly_count;		/* costly requests in the store */
	uint64_t page_cache_send_bytes; /* of reads sent from the store's page-cache memory */
	/* Reads for which the store refused a page-cache reference. */
	uint64_t page_cache_send_misses;
	/* Bytes of reads and writes by placement, besides page_cache_send_bytes. */
	uint64_t ram_bytes;
	uint64_t placed_bytes; /* in the placement of their request */
	uint64_t device_bytes;
	/* Uses of RAM despite mode=device. The first two count requests: the store needs the CPU
	 * (for example, for partial blocks), or no device memory is usable. The last two count
	 * parts: the session needs the CPU, or the device memory is full. */
	uint64_t ram_for_store;
	uint64_t ram_for_trouble;
	uint64_t ram_for_session;
	uint64_t ram_for_room;
	/* Why the disk cannot reach the device memory; 0: no error so far. */
	int device_error;
	uint64_t staged_parts;	     /* of requests with a placement */
	uint64_t placements_refused; /* the store cannot use their memory */
	uint64_t late_waits;	     /* parts that waited for a change of an ended connection */
	uint64_t error_counts[PATH_ERROR_COUNT]; /* failed requests, see path_error_slot() */
	/* Allocated with the first request of each kind, NULL before. */
	struct path_operation *operations[STORE_OP_COUNT];
};

/* Metric of the payload counters by placement. */
#define PATH_PLACEMENT_METRIC "export_placement_bytes"

extern const struct counter_table path_export_counter_table; /* of struct path_export */

/* Initializes all members except the store, its queue and its name. late: shared with the other
 * reactors, held until path_export_fini(). */
void path_export_init(struct path_export *path_export, uint32_t overlap, struct late_writes *late,
	struct ring *ring);
/* Frees the statistics. */
void path_export_fini(struct path_export *path_export);
/*
 * Returns the length up to which the path gives a write with STORE_FUA to the store as one part,
 * even if memory is short, so that it stays atomic (store_info.atomic_bytes). This is the store's
 * own limit, or less, down to PATH_RESERVE_BYTES: a block of this length must not exceed an eighth
 * of the memory available to requests, and all such blocks together not half of it. 0: the store
 * has no atomic writes.
 */
uint32_t path_atomic_bytes(struct path *path, const struct store *store);
/* Adds the export to the path, once, after path_export_init(). Atomic writes of at most
 * atomic_bytes are never cut, because a block of memory is reserved for them. atomic_bytes: result
 * of path_atomic_bytes() for this path, or for another one with the same memory. */
void path_export_join(struct path *path, struct path_export *path_export, uint32_t atomic_bytes);
/* Removes the export. It has no requests, and gets none. */
void path_export_leave(struct path *path, struct path_export *path_export);

/* One run of bytes being transferred, with its own buffer. 0 <= sent <= valid <= length. */
struct path_stream {
	/* In request->ready while valid > sent, in the path's free list, or in the list of a late
	 * range that its part waits for. */
	struct list_node node;
	struct path_request *request;
	struct arena_buf buf;
	struct mem_ref memory; /* the buffer's, or memory lent by the session or the store */
	uint64_t offset;       /* on the export */
	uint32_t length;
	uint32_t room;	 /* counted in request->live_bytes */
	uint32_t unsent; /* counted in client->unsent_bytes */
	uint32_t valid;
	uint32_t sent;	 /* given to the session */
	uint32_t done;	 /* the part of sent that the session has given back */
	bool in_store;	 /* its part is submitted and not done */
	bool page_cache; /* the memory belongs to the store */
	bool in_device;	 /* its memory is in path->device */
	bool in_place;	 /* its memory is the requester's */
	/* its buffer is copied from or to the requester's memory */
	bool copied;
	struct path_trace_part *traced; /* NULL until recorded; only with request->record */
	struct store_part part;
};

struct path_fragment {
	struct path_stream *stream;
	struct mem_ref memory; /* none: the bytes are in place, see path_request.placement */
	uint64_t offset;       /* on the export */
	uint32_t length;
	bool last;	 /* the last fragment of this request */
	bool page_cache; /* sending it can fail with -EFAULT, see store_page_cache_ref() */
};

/* State of a costly request; see admission.h. */
enum path_costly { PATH_COSTLY_NOT, PATH_COSTLY_WAITS, PATH_COSTLY_BUSY };

struct path_request {
	/* Set by the session before path_start(). */
	struct path_client *client; /* the session's part of the shared memory */
	enum store_op op;
	uint32_t flags; /* enum store_flag */
	uint64_t offset;
	uint64_t length;
	struct store_hints hints;
	uint32_t extent_max;	/* STORE_EXTENTS: limit, 1 to PATH_EXTENTS_MAX */
	struct store_copy copy; /* STORE_COPY: its source stays open until the request is idle */
	uint64_t window_bytes;	/* upper bound on payload memory; one part is always allowed */
	bool ascending;		/* fragments in order of their offset */
	bool whole;		/* fragments are needed only when all bytes are valid */
	bool internal; /* no network transfer: overlap neither cuts it nor learns from it */
	/* enum mem_right: access to payload memory that the session needs */
	uint32_t memory_rights;
	/*
	 * Memory of the requester, length bytes in total, or NULL. It is held until the request
	 * ends or is idle after path_abandon(). A read fills it, and fragments only report which
	 * bytes have arrived. A write starts with path_start(), without path_write_open(). If the
	 * store cannot use the memory, path_start() sets this to NULL and the request is an
	 * ordinary one.
	 */
	const struct mem_segment *placement;
	uint32_t placement_count;
	struct path_export *export;
	/* Reports a change: a fragment is ready, memory for a write is available, the request
	 * ended, or an abandoned request became idle. Never called from inside a call of the
	 * session. */
	void (*progress)(struct path_request *request);

	/* Read by the session. */
	int error;		      /* 0 or the reason for the abort */
	uint64_t error_offset;	      /* first byte of the part that failed */
	struct store_extent *extents; /* of a committed STORE_EXTENTS, until path_finish() */
	uint32_t extent_count;

	/* Set by the session before each path_write_open(): number of the next bytes that have
	 * already arrived and will be copied by the CPU. path_start() sets it to 0. */
	uint32_t copied_bytes;

	/* Private. */
	struct path *path;
	struct arena *arena;	/* source of its buffers, if the session can use it */
	uint32_t device_rights; /* enum mem_right: of buffers in device memory */
	uint32_t segment;	/* of the placement: the last one used, and where it begins */
	uint64_t segment_begin;
	struct path_trace_request *record; /* NULL: not recorded */
	enum path_state state;
	uint64_t edge_ns[PATH_STATE_COUNT];
	uint64_t started_bytes; /* parts created */
	uint64_t stored_bytes;	/* parts the store has finished */
	uint64_t handed_bytes;	/* given to the session as fragments */
	uint64_t live_bytes;	/* in streams */
	uint64_t row_offset;	/* striped reads: position of the next part, see overlap.h */
	uint64_t row_step;
	/* rest of a range that was only started in part for lack of memory */
	struct cut_range rest;
	struct late_writes_range late; /* its changes, after its requester has gone */
	uint64_t parts_time;	       /* sum over parts of bytes * time until they arrived */
	uint32_t part_size;
	uint32_t part_flags; /* enum store_flag, added to flags */
	/* granularity of progress within a part; 0 = no progress reports */
	uint32_t progress_step;
	uint32_t parts_started;
	uint32_t parts_inflight;
	uint32_t parts_waiting; /* the part of parts_inflight that waits for late writes */
	uint32_t streams_live;
	bool abandoned;
	bool first_used;
	bool measured; /* counted in the export's struct overlap */
	bool slow;     /* counted in path->slow_count */
	bool cut;      /* into parts, or by progress reports */
	bool counted;  /* in overlap->request_bytes */
	bool alone;    /* no other request was counted at the same time */
	bool striped;  /* parts in an order that keeps all members busy */
	bool stages;   /* unaligned blocks of a placement are copied */
	bool page_cache_missed;
	bool atomic;	  /* a write that must stay one part */
	bool atomic_held; /* it uses the export's block for such writes */
	enum path_costly costly;
	struct list_node ready;
	struct list_node stalled_node; /* in client->stalled, or client->costly_waiting */
	struct path_stream first;      /* most requests need only one */
};

enum {
	/* A read through the page cache is a copy that completes immediately, so it cannot overlap
	 * with the network. */
	PATH_CACHED_PART_BYTES = 512 << 10,
	/* If memory is short, a part gets less than it wants, down to this size. */
	PATH_PART_BYTES_MIN = 64 << 10,
	PATH_PLACED_BYTES_MAX = 1 << 30, /* of a write from a placement, in one part */
	/* Limit of parts in flight that use requesters' memory, over all requests. */
	PATH_PLACED_PARTS_MAX = 1024,
	PATH_EXTENTS_MAX = 1024, /* fewer if memory is short */
	PATH_SLOW_NS = 50000,	 /* see path_is_slow() */
};

_Static_assert((int)ARENA_DEVICE_BYTES_MIN / (int)PATH_CLIENT_DIVISOR >= (int)PATH_PART_BYTES_MIN,
	"the smallest device arena can hold a part");

struct path_options {
	struct ring *ring;
	struct arena *ram;
	struct arena *device; /* device memory; NULL: none */
	/* requests wait for device memory that is full, instead of using RAM */
	bool device_waits;
};

GMB_MUST_CHECK int path_create(
	const struct path_options *options, struct path **path_out, struct error *error);
/* No request exists. NULL is a no-op. */
void path_destroy(struct path *path);

/* Makes trace record the requests that start from now on; NULL: stops recording. trace is held
 * until the next call. */
void path_set_trace(struct path *path, struct path_trace *trace);

/* Retries requests that wait for memory, in turn. Called once per batch, and again while
 * path_is_to_serve() returns true. */
void path_serve(struct path *path);
bool path_is_to_serve(const struct path *path);
/* Returns whether a client waits for memory that others hold. */
bool path_is_short(const struct path *path);
/* Adds the state of the path's memory. device is unchanged if there is no device memory. */
void path_arenas_add(struct path *path, struct path_arena *ram, struct path_arena *device);
/* Private to src/path. */
struct path_admission *path_admission(struct path *path);
/* Returns the arena for a request whose export asks for device memory: the device's, or RAM,
 * because partial blocks would be copied by the CPU. */
struct arena *device_choose(struct path_request *request);
/* A part had store_part.memory_error: stops using device memory, for this disk or for all. */
void device_see_error(struct path_request *request, int error);
/* Returns whether a request is in flight whose next bytes will take the disk longer than a reactor
 * should spin for. */
bool path_is_slow(const struct path *path);

/* Starts the request. It cannot fail; progress is called for all later events. A write without a
 * placement does nothing before path_write_open(). */
void path_start(struct path *path, struct path_request *request);

enum path_status path_status(const struct path_request *request);

/* Reads: returns the next fragment of at most max_bytes, from any stream (or the next in order).
 * False: none is ready. The memory is valid until path_fragment_sent(). */
bool path_next_fragment(
	struct path_request *request, uint32_t max_bytes, struct path_fragment *fragment);
/* The session no longer needs the fragment's memory (sent or discarded). */
void path_fragment_sent(const struct path_fragment *fragment);

/* A socket operation with the stream's memory failed with -EFAULT. If it is device memory, the
 * device is gone, and its memory is not used from now on. */
void path_memory_failed(const struct path_stream *stream);

/*
 * Writes: returns memory for the next piece: stream->memory, stream->length bytes. NULL: none is
 * available, and progress will be called. The memory has the request's memory_rights, which can
 * change from piece to piece. If copied_bytes > 0, the CPU can write to it, too. A piece that is
 * in RAM for this reason alone ends with the last block of the copied bytes. Not called once
 * request->error is set or all room was opened.
 */
struct path_stream *path_write_open(struct path_request *request);
/* The room is filled: submits it to the store. */
void path_write_submit(struct path_stream *stream);
/* The room will not be filled (the request failed or the peer is gone). */
void path_write_drop(struct path_stream *stream);
/* The session does not ask for room until it calls path_write_open() again, so others need not
 * wait for it. */
void path_write_pause(struct path_request *request);
/* Returns whether the store has finished all that was submitted. */
bool path_write_rests(const struct path_request *request);

/* Last call for a request that ended, after its reply was sent, or is idle after path_abandon().
 * Its extents become invalid. */
void path_finish(struct path_request *request);

/* The peer has stopped sending requests and might be gone; the request continues. Changes to the
 * same bytes by others wait until it has ended, see late_writes.h. */
void path_orphan(struct path_request *request);
/* The peer is gone: as path_orphan(), starts no more parts and drops unsent fragments. Returns
 * true if the request is idle; otherwise progress is called when it is. Fragments that were given
 * to the session must still be given back first. */
bool path_abandon(struct path_request *request);
bool path_is_idle(const struct path_request *request);
/* Returns whether the request waits for memory that others hold. Only sending its data releases
 * memory of its own. */
bool path_is_stalled(const struct path_request *request);

/* Called by late_writes.c on the request's ring: retries the part. */
void path_resume(struct path_stream *stream);
