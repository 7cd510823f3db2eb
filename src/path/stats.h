// SPDX-License-Identifier: Apache-2.0
/*
 * Measurements of the data path: statistics of all requests by operation and size class, by
 * operation and state, and by client and operation; and records of single requests on demand. The
 * statistics are always on and cost a few additions per request.
 *
 * Latencies are counted in buckets whose width grows with the value: 8 per doubling, from 1 us to
 * over four minutes, so a quantile is at most 12.5 % too high. A bucket includes its upper limit
 * but not its lower one. Latencies are computed from the five timestamps that a request has
 * anyway, so no clock is read for them.
 *
 * Threading: the path's thread writes and reads the statistics. Ownership: plain data. Errors:
 * none; counters do not wrap in practice.
 */
#pragma once

#include "base/counter.h"
#include "store/store.h"

/* The five states of the thesis, with one timestamp per edge. */
enum path_state {
	PATH_STATE_WAIT,    /* decoded; waits for memory or for its turn */
	PATH_STATE_DISK,    /* the disk is working; no data can be sent yet */
	PATH_STATE_OVERLAP, /* some bytes are valid; disk and network overlap */
	PATH_STATE_NETWORK, /* the disk is done; the network time it did not hide */
	PATH_STATE_DONE,    /* everything is sent, resources are released */
	PATH_STATE_COUNT
};

enum {
	PATH_SIZE_CLASS_COUNT = 8, /* <= 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1, 4, 16 MiB, more */
	PATH_LATENCY_PARTS = 8,	   /* buckets per doubling */
	PATH_LATENCY_BUCKETS = 26 * PATH_LATENCY_PARTS,
	PATH_ERROR_COUNT = 8, /* errors counted separately; the last one counts all others */
};

/* The requests of one operation and size class. */
struct path_stats {
	uint64_t count;
	uint64_t errors;
	uint64_t bytes;			     /* of successful requests */
	uint64_t state_ns[PATH_STATE_COUNT]; /* sum of the time spent in each state */
	uint64_t total_ns;
	uint64_t max_ns;
	uint64_t latency[PATH_LATENCY_BUCKETS];
};

extern const struct counter_table path_stats_counter_table; /* of struct path_stats */

/* The requests of one operation. */
struct path_operation {
	struct path_stats classes[PATH_SIZE_CLASS_COUNT];
	/* Durations of each state, of the requests that were in it. */
	uint64_t phases[PATH_STATE_DONE][PATH_LATENCY_BUCKETS];
};

/* Returns "wait", "disk", "overlap", "network" or "done", as in statistics, metrics, traces and
 * plots. */
const char *path_state_name(enum path_state state);

/* Returns the size class of a request. */
uint32_t path_size_class(uint64_t length);
/* Returns the length of the longest request of a class; UINT64_MAX for the last class. */
uint64_t path_size_class_limit(uint32_t size_class);

/* Counts one request. edge_ns: when each state was entered, 0 = it was skipped. DONE is always
 * set. */
void path_stats_add(struct path_stats *stats, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t bytes, bool failed);

void path_stats_merge(struct path_stats *into, const struct path_stats *from);

/* Returns the longest time of a bucket; UINT64_MAX for the last one. */
uint64_t path_latency_limit_ns(uint32_t bucket);

/* Counts a request of length bytes for its operation. */
void path_operation_add(struct path_operation *operation, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t length, bool failed);
void path_operation_merge(struct path_operation *into, const struct path_operation *from);

/* Private to src/path: counts a request that has ended, for its export and its client. */
struct path_request;
void path_account(const struct path_request *request);

/* Returns the index for an error of a store, a negative errno: 0 to PATH_ERROR_COUNT - 1; and the
 * name of an index: "EIO", or "other" for all other errors. */
uint32_t path_error_slot(int error);
const char *path_error_name(uint32_t slot);

/* Returns the time that parts_per_million of the requests did not exceed: the end of its bucket,
 * or the maximum if that is lower. 0 if there were no requests. */
uint64_t path_stats_quantile_ns(const struct path_stats *stats, uint32_t parts_per_million);

/* --- single requests ------------------------------------------------------------------------ */

/*
 * A recorder of single requests: when each part was submitted to the disk, was complete, and was
 * given to the network. A path has a recorder while a client records ("gmblock trace --request").
 * Without one, each of the events below costs one branch.
 *
 *   read:  begin ─▶ opened ─▶ submitted ─▶ progress ... done ─▶ handed ─▶ back ... ─▶ end
 *   write: begin ─▶ opened ─▶ (payload arrives) ─▶ submitted ─▶ done ─▶ end
 *
 * It records the first requests that match, and then stops. All its memory except the names of
 * exports is allocated when it is created. Nothing is overwritten: data beyond a limit (more
 * parts, or the middle of many fragments of one part) is counted or merged.
 *
 * Threading: created and destroyed on any thread. All calls between begin and end are made on the
 * path's thread. Another thread can call path_trace_ended() at the same time, because a record
 * does not change after its request has ended. Ownership: the recorder owns the records. It is
 * destroyed after the last path has detached it. Errors: -ENOMEM at creation; none later.
 */
struct path_trace;

enum {
	PATH_TRACE_REQUESTS_MAX = 1000,
	PATH_TRACE_PARTS_MAX = 1024, /* limit of one request */
	PATH_TRACE_POOL_MAX = 8192,  /* limit of all requests together */
	/* Limits of one part. Most parts have one piece and no mark; the third is the limit of
	 * parts, over all requests, that can have more. */
	PATH_TRACE_MARKS_MAX = 16,
	PATH_TRACE_PIECES_MAX = 16,
	PATH_TRACE_MORE_MAX = 1024,
};

/* Name of an export. It is copied, because the export can be removed while its requests are
 * traced, and another export can then use the name. Without a terminator; text NULL: none. */
struct path_trace_name {
	const char *text;
	uint32_t bytes;
};

struct path_trace_options {
	uint32_t request_max;	       /* 1 to PATH_TRACE_REQUESTS_MAX */
	uint32_t ops;		       /* bit set of BIT(enum store_op) */
	uint64_t length_min;	       /* shorter requests are ignored */
	struct path_trace_name export; /* only requests of this export; copied; none = any */
	/* Called on the path's thread each time a request has ended. */
	void (*ended)(void *context);
	void *context;
};

/* Times are from the ring's clock; 0 = it did not happen. */

/* Progress that the store reported before a part was done. */
struct path_trace_mark {
	uint64_t progress_ns;
	uint64_t bytes; /* valid at that time */
};

/* One piece of data given to the network. */
struct path_trace_piece {
	uint64_t offset;
	uint64_t length;
	uint64_t handed_ns; /* time of its first byte */
	uint64_t back_ns;   /* the operating system accepted its last byte */
};

struct path_trace_part {
	struct path_trace_part *next; /* in the order of opening */
	uint64_t offset;
	uint64_t length;
	uint64_t opened_ns;    /* it got its memory */
	uint64_t submitted_ns; /* submitted to the disk; a write's payload is complete */
	uint64_t done_ns;
	int result; /* 0, or the disk's negative errno */
	/* If there were too many, the last mark is the latest one, and the last piece includes all
	 * later ones. */
	uint32_t mark_count;
	uint32_t piece_count;

	/* Private: see path_trace_marks() and path_trace_pieces(). */
	struct path_trace_more *more;
	struct path_trace_mark mark;
	struct path_trace_piece piece;
};

struct path_trace_request {
	enum store_op op;
	struct path_trace_name export; /* valid as long as the trace; none: out of memory */
	uint64_t offset;
	uint64_t length;
	int error;
	uint64_t edge_ns[PATH_STATE_COUNT]; /* as for path_stats_add() */
	struct path_trace_part *parts;
	uint32_t part_count; /* in the list */
	uint32_t parts_more; /* not recorded */

	/* Private. */
	struct path_trace *trace;
	struct path_trace_part **last;	    /* end of the list of parts */
	struct path_trace_request **handle; /* the owner's pointer, until the request ends */
	struct path_trace_request *next;    /* in the free list */
};

/* Creates a recorder and allocates its memory. */
GMB_MUST_CHECK int path_trace_create(
	const struct path_trace_options *options, struct path_trace **trace_out);
/* NULL is a no-op. */
void path_trace_destroy(struct path_trace *trace);

/* A request starts: sets *handle to its record, or to NULL if it does not match or the limit is
 * reached. */
void path_trace_begin(struct path_trace *trace, enum store_op op, struct path_trace_name export,
	uint64_t offset, uint64_t length, struct path_trace_request **handle);

/* A part got its memory. Never returns NULL: parts beyond the limit share a dummy record. */
struct path_trace_part *path_trace_opened(
	struct path_trace_request *record, uint64_t offset, uint64_t length, uint64_t now_ns);
/* The times can be batch times. An event of a part never gets an earlier time than the previous
 * event. */
void path_trace_submitted(struct path_trace_part *part, uint64_t now_ns);
void path_trace_progress(struct path_trace_request *record, struct path_trace_part *part,
	uint64_t bytes, uint64_t now_ns);
void path_trace_done(struct path_trace_part *part, int result, uint64_t now_ns);
void path_trace_handed(struct path_trace_request *record, struct path_trace_part *part,
	uint64_t offset, uint64_t length, uint64_t now_ns);
void path_trace_back(struct path_trace_part *part, uint64_t offset, uint64_t now_ns);

/* The request ended. Sets *handle to NULL, like the next two. */
void path_trace_end(
	struct path_trace_request *record, int error, const uint64_t edge_ns[PATH_STATE_COUNT]);
/* The request's peer is gone: discards the record. */
void path_trace_drop(struct path_trace_request *record);
/* The path stops using the recorder. Its requests no longer have records. */
void path_trace_detach(struct path_trace *trace);

/* Returns the number of requests that have ended, and one of these requests by the order of their
 * ends. */
uint32_t path_trace_ended_count(const struct path_trace *trace);
const struct path_trace_request *path_trace_ended(const struct path_trace *trace, uint32_t index);

/* Return arrays of part->mark_count and part->piece_count elements. */
const struct path_trace_mark *path_trace_marks(const struct path_trace_part *part);
const struct path_trace_piece *path_trace_pieces(const struct path_trace_part *part);
