// SPDX-License-Identifier: Apache-2.0
/*
 * The data path: the life of one request between a session (which speaks a protocol) and a store
 * (which moves blocks), and the memory in between.
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
 * A read is a transfer of several streams {offset, length, valid, sent}, each with its own buffer;
 * the store only ever raises valid (at the end of a part, or as it reports progress), the session
 * asks for the next fragment and gets one from any stream that has bytes, or none: it never waits
 * inside. A write is the mirror image: the session asks for room (path_write_open), fills it from
 * the network, and submits it while later bytes are still arriving. Everything else is one part
 * without payload. A read whose bytes are in the page cache is one stream, too: they are sent from
 * there, and no memory is needed. How a transfer is cut: overlap.h; on a striped disk no
 * part goes over the end of a chunk, and all members get work from the beginning.
 *
 * Where payload lies. Most requests are staged: their parts have buffers of an arena, which is RAM,
 * or memory of a PCI device where the export asks for that (store_info.read_device). They have RAM
 * all the same, and the export counts why, when the store or the session would use the memory in a
 * way that it does not allow, when there is none left (path_options.device_waits), and from the
 * moment on when the disk could not reach it. A request may also bring a placement, a
 * scatter list of its own: a read goes straight there and a write comes straight from there, part
 * by part, but for blocks that direct I/O cannot do so because a segment's memory is not aligned or
 * a segment ends within them: those are staged, and copied.
 *
 * Exactly one end: COMMITTED or ABORTED. The requester treats nothing as read before COMMITTED.
 *
 * Threading: the ring's thread. Ownership: the session owns the request (embedded in its own); the
 * path holds it from path_start() until path_finish(), or until it is idle after path_abandon().
 * Errors: request->error, a negative errno from the store, once the status is ABORTED.
 * Changes wait for those that an ended connection has left in the store: late.h.
 * When memory is short a request waits for its turn (share.h); nothing fails for lack of memory.
 * A write that the store keeps as a whole is not cut for that: path_export_join().
 * Extents lie in RAM that is shared in the same way.
 */
#pragma once

#include "base/list.h"
#include "base/log.h"
#include "memory/arena.h"
#include "path/late.h"
#include "path/overlap.h"
#include "path/share.h"
#include "path/stats.h"
#include "ring/ring.h"
#include "store/store.h"

struct path;
struct path_request;

enum path_status { PATH_PENDING, PATH_COMMITTED, PATH_ABORTED };

enum {
	PATH_OVERLAP_AUTO = 0,	   /* chosen from what is measured */
	PATH_OVERLAP_OFF = 1,	   /* no part is sent before all are there */
	PATH_PART_SIZE_MIN = 4096, /* a part size is a multiple of it */
	PATH_PART_SIZE_MAX = ARENA_BLOCK_BYTES_MAX,
};

/* An export as one reactor sees it. */
struct path_export {
	struct store *store;
	struct store_queue *queue;
	const char *name; /* for messages, or NULL; without a terminator, held until fini */
	uint32_t name_bytes;
	struct log_limit errors;    /* of the disk */
	struct late_port late_port; /* to what the export's reactors share; see late.h */
	uint32_t overlap;	    /* PATH_OVERLAP_AUTO, PATH_OVERLAP_OFF, or bytes of a part */
	uint32_t atomic_bytes;	    /* see path_export_join() */
	struct arena_buf atomic;    /* kept for one of those writes; none: there is none yet */
	bool atomic_used;
	struct list_node atomic_node; /* while it lacks that */
	struct overlap reads;
	struct overlap writes;
	/* Buffers of all its requests, but for the reserve's: in RAM, and of the device. */
	uint64_t held_bytes;
	uint64_t device_held_bytes;
	uint32_t costly_count;		/* costly requests in the store */
	uint64_t page_cache_send_bytes; /* of reads that were sent from memory of the store's own */
	uint64_t page_cache_send_misses; /* reads of which the store was asked for that, and would
					    not */
	/* Bytes of reads and writes by where they lay, besides page_cache_send_bytes. */
	uint64_t ram_bytes;
	uint64_t placed_bytes; /* in the placement of their request */
	uint64_t device_bytes;
	/* Of exports with mode=device, in RAM all the same: requests because the store needs the
	 * CPU (they are not whole blocks, for example) or because there is no device memory that
	 * can be used; parts because the session needs the CPU, or because there was no room. */
	uint64_t ram_for_store;
	uint64_t ram_for_trouble;
	uint64_t ram_for_session;
	uint64_t ram_for_room;
	int device_error; /* why the disk cannot reach the device memory; 0: nobody has seen that */
	uint64_t staged_parts;	     /* of requests with a placement */
	uint64_t placements_refused; /* not memory that the store can use */
	uint64_t late_waits; /* parts that waited for a change of a requester that had gone */
	uint64_t error_counts[PATH_ERROR_COUNT]; /* requests that failed, see path_error_slot() */
	/* Made with the first request, NULL before. */
	struct path_operation *operations[STORE_OP_COUNT];
};

/* The metric of the counters of payload by where it lay. */
#define PATH_PLACEMENT_METRIC "export_placement_bytes"

extern const struct counter_table path_export_counter_table; /* of struct path_export */

/* Sets all but the store, its queue and its name. late: shared with the other reactors, held until
 * fini. */
void path_export_init(struct path_export *path_export, uint32_t overlap, struct late_writes *late,
	struct ring *ring);
/* Frees the statistics. */
void path_export_fini(struct path_export *path_export);
/*
 * How long a write with STORE_FUA may be that the path gives to the store as one part, however
 * short memory is, so that what the store keeps as a whole (store_info.atomic_bytes) is kept: what
 * the store promises; or less, down to PATH_RESERVE_BYTES, where a block of that size would be more
 * than an eighth of the memory that requests have, or all of these more than half of it. 0: the
 * store promises nothing.
 */
uint32_t path_atomic_bytes(struct path *path, const struct store *store);
/* The export's requests will be this path's, and a write as above of at most atomic_bytes is never
 * cut: for those a block of memory is kept. atomic_bytes: of path_atomic_bytes(), of this path or
 * of another one with the same memory. Once, after path_export_init(). */
void path_export_join(struct path *path, struct path_export *path_export, uint32_t atomic_bytes);
/* No request of it exists, and none will. */
void path_export_leave(struct path *path, struct path_export *path_export);

/* One run of bytes on its way, with its own buffer. 0 <= sent <= valid <= length. */
struct path_stream {
	struct list_node node; /* in request->ready while valid > sent, in the path's free list, or
				* with a change that its part waits for */
	struct path_request *request;
	struct arena_buf buf;
	struct mem_ref memory; /* the buffer's, or memory that the session or the store lent */
	uint64_t offset;       /* on the export */
	uint32_t length;
	uint32_t room;	 /* counted in request->live_bytes */
	uint32_t unsent; /* counted in client->unsent_bytes */
	uint32_t valid;
	uint32_t sent;			/* handed to the session */
	uint32_t done;			/* of sent, given back by it */
	bool in_store;			/* its part is submitted and not done */
	bool page_cache;		/* the memory belongs to the store */
	bool in_device;			/* its memory is of path->device */
	bool in_place;			/* its memory is the requester's */
	bool copied;			/* its buffer stands for memory of the requester's */
	struct path_trace_part *traced; /* NULL until it is; only with request->record */
	struct store_part part;
};

struct path_fragment {
	struct path_stream *stream;
	struct mem_ref memory; /* none: the bytes are in place, see path_request.placement */
	uint64_t offset;       /* on the export */
	uint32_t length;
	bool last;	 /* nothing else of this request will follow */
	bool page_cache; /* sending it may fail with -EFAULT, see store_page_cache_ref() */
};

/* Where a costly request is; see share.h. */
enum path_costly { PATH_COSTLY_NOT, PATH_COSTLY_WAITS, PATH_COSTLY_BUSY };

struct path_request {
	/* Set by the session before path_start(). */
	struct path_client *client; /* whose request it is */
	enum store_op op;
	uint32_t flags; /* enum store_flag */
	uint64_t offset;
	uint64_t length;
	struct store_hints hints;
	uint32_t extent_max;	/* STORE_EXTENTS: at most so many, 1 to PATH_EXTENTS_MAX */
	struct store_copy copy; /* STORE_COPY: its source is open until the request is idle */
	uint64_t window_bytes;	/* payload memory it may hold at once; one part it always may */
	bool ascending;		/* fragments in order of their offset */
	bool whole;		/* no fragment is wanted before all bytes are valid */
	bool internal; /* no network moves it: overlap neither cuts it nor learns from it */
	uint32_t memory_rights; /* enum mem_right: what the session needs of payload memory */
	/*
	 * The requester's memory, length bytes in all, or NULL. Held until the request ends or is
	 * idle after path_abandon(). A read fills it, and fragments only say what has come; a write
	 * begins with path_start(), and path_write_open() is not called. path_start() sets it to
	 * NULL when the store cannot use that memory: then the request is like any other.
	 */
	const struct mem_segment *placement;
	uint32_t placement_count;
	struct path_export *export;
	/* Something changed: a fragment is ready, room for a write was found, the request ended, or
	 * an abandoned request became idle. Never called from inside a call of the session. */
	void (*progress)(struct path_request *request);

	/* Read by the session. */
	int error;		      /* 0 or why it was aborted */
	uint64_t error_offset;	      /* first byte of the part that failed */
	struct store_extent *extents; /* of a committed STORE_EXTENTS, until path_finish() */
	uint32_t extent_count;

	/* Set by the session before each path_write_open(): so many of the next bytes have come
	 * already, and the processor will copy them. 0 after path_start(). */
	uint32_t copied_bytes;

	/* Private. */
	struct path *path;
	struct arena *arena;	/* where its buffers come from, if the session can use that */
	uint32_t device_rights; /* enum mem_right: of buffers of the device's */
	uint32_t segment;	/* of the placement: the one looked at last, and where it begins */
	uint64_t segment_begin;
	struct path_trace_request *record; /* NULL: nobody asked for it */
	enum path_state state;
	uint64_t edge_ns[PATH_STATE_COUNT];
	uint64_t started_bytes; /* parts created */
	uint64_t stored_bytes;	/* parts the store has finished */
	uint64_t handed_bytes;	/* given out as fragments */
	uint64_t live_bytes;	/* in streams */
	uint64_t row_offset;	/* striped reads: where the next part is, see overlap.h */
	uint64_t row_step;
	struct cut_range rest;	/* of a range for whose part there was too little memory */
	struct late_range late; /* what it changes, once its requester has gone */
	uint64_t parts_time;	/* sum over parts of bytes * time until they were there */
	uint32_t part_size;
	uint32_t part_flags;	/* enum store_flag, added to flags */
	uint32_t progress_step; /* fragments may begin before a part is done; 0 = they may not */
	uint32_t parts_started;
	uint32_t parts_inflight;
	uint32_t parts_waiting; /* of these, for changes of requesters that have gone */
	uint32_t streams_live;
	bool abandoned;
	bool first_used;
	bool measured; /* counted in the export's struct overlap */
	bool slow;     /* counted in path->slow_count */
	bool cut;      /* into parts, or with progress in between */
	bool counted;  /* in overlap->request_bytes */
	bool alone;    /* no other was counted at the same time */
	bool striped;  /* parts in an order that keeps all members busy */
	bool stages;   /* blocks of a placement that are not aligned are copied */
	bool page_cache_missed;
	bool atomic;	  /* a write that is one part, whatever there is */
	bool atomic_held; /* it has the block that is kept for those */
	enum path_costly costly;
	struct list_node ready;
	struct list_node stalled_node; /* in client->stalled, or client->costly_waiting */
	struct path_stream first;      /* most requests need only one */
};

enum {
	/* Through the page cache there is nothing to overlap with: a part is a copy, made at once.
	 */
	PATH_CACHED_PART_BYTES = 512 << 10,
	/* With less memory than a part wants, it takes less, down to here. */
	PATH_PART_BYTES_MIN = 64 << 10,
	PATH_PLACED_BYTES_MAX = 1 << 30, /* of a write from a placement, in one part */
	/* Parts under way that have memory of the requester's, of all requests. */
	PATH_PLACED_PARTS_MAX = 1024,
	PATH_EXTENTS_MAX = 1024, /* fewer, where memory is short */
	PATH_SLOW_NS = 50000,	 /* see path_is_slow() */
};

_Static_assert((int)ARENA_DEVICE_BYTES_MIN / (int)PATH_CLIENT_DIVISOR >= (int)PATH_PART_BYTES_MIN,
	"the smallest arena of a device has room for a part");

struct path_options {
	struct ring *ring;
	struct arena *ram;
	struct arena *device; /* memory of a device; NULL: there is none */
	bool device_waits;    /* what does not fit there waits for it, and does not have RAM */
};

GMB_MUST_CHECK int path_create(
	const struct path_options *options, struct path **path_out, struct error *error);
/* No request may exist. NULL is a no-op. */
void path_destroy(struct path *path);

/* From now on trace records the requests that begin; NULL: none does any more. Held until the next
 * call. */
void path_set_trace(struct path *path, struct path_trace *trace);

/* Retries what waits for memory, in turn. Called once per batch, and again while
 * path_is_to_serve(). */
void path_serve(struct path *path);
bool path_is_to_serve(const struct path *path);
/* True when somebody waits for memory that others hold. */
bool path_is_short(const struct path *path);
/* Adds the state of its memory; device: nothing where there is none. */
void path_arenas_add(struct path *path, struct path_arena *ram, struct path_arena *device);
/* Private to src/path. */
struct path_share *path_share(struct path *path);
/* Where the buffers of a request come from whose export asks for device memory: there, or RAM. What
 * is not whole blocks would be copied by the processor. */
struct arena *device_choose(struct path_request *request);
/* A part had store_part.memory_error: the disk is given up for device memory, or that memory. */
void device_see_error(struct path_request *request, int error);
/* True while a request is under way whose next bytes the disk will not bring within the time for
 * which it is worth while to wait awake. */
bool path_is_slow(const struct path *path);

/* Begins the request. Cannot fail; progress is called for all that follows. A write without a
 * placement does nothing before path_write_open(). */
void path_start(struct path *path, struct path_request *request);

enum path_status path_status(const struct path_request *request);

/* Reads: the next fragment of at most max_bytes, from any stream (or the next in order). False when
 * there is none now. The memory is valid until path_fragment_sent(). */
bool path_next_fragment(
	struct path_request *request, uint32_t max_bytes, struct path_fragment *fragment);
/* The session needs the fragment's memory no longer (sent, or given up). */
void path_fragment_sent(const struct path_fragment *fragment);

/* A socket operation with the stream's memory failed with -EFAULT. Where that is memory of a
 * device, it has gone, and nobody gets any of it from now on. */
void path_memory_failed(const struct path_stream *stream);

/* Writes: room for the next piece: stream->memory, stream->length bytes. NULL when there is none
 * now: progress will be called. The memory has the request's memory_rights, which may change from
 * piece to piece, and the processor may write to it if copied_bytes are to be copied there; a piece
 * that is in RAM for that reason alone is no longer than those, up to the end of their last block.
 * Not to be called once request->error is set or all room was opened. */
struct path_stream *path_write_open(struct path_request *request);
/* The room is filled: off to the store. */
void path_write_submit(struct path_stream *stream);
/* The room will not be filled (the request failed or the peer is gone). */
void path_write_drop(struct path_stream *stream);
/* The session asks for no room until it does so again: others need not wait for that. */
void path_write_pause(struct path_request *request);
/* Whether the store has all that was submitted. */
bool path_write_rests(const struct path_request *request);

/* The session's last word on a request that ended (its reply is out) or is idle after
 * path_abandon(). Extents are gone afterwards. */
void path_finish(struct path_request *request);

/* The peer asks nothing more, and may be gone already; what it has asked goes on. Changes to the
 * same bytes that others ask for wait until this one is done, see late.h. */
void path_orphan(struct path_request *request);
/* The peer is gone, as above: no more parts, unsent fragments are dropped. Returns true when the
 * request is idle now; false: progress will be called when it is. Fragments handed out must still
 * be given back first. */
bool path_abandon(struct path_request *request);
bool path_is_idle(const struct path_request *request);
/* True while the request waits for memory that others hold: it can make no room by itself but by
 * being sent. */
bool path_is_stalled(const struct path_request *request);

/* Called by late.c on the request's ring: the part may be tried again. */
void path_resume(struct path_stream *stream);
