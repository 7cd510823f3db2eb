// SPDX-License-Identifier: Apache-2.0
/*
 * What the data path measures: statistics of all requests by operation and size class, by operation
 * and state, and by client and operation, always on, at a few additions per request; and records of
 * single requests on demand.
 *
 * Latencies are counted in buckets whose width grows with the value: 8 per doubling, from 1 us to
 * over four minutes, so that a quantile is at most 12.5 % too high. A bucket has its upper limit,
 * not its lower one. They are made from the five times that a request has anyway: no clock is read
 * for them.
 *
 * Threading: the path's thread writes and reads the statistics. Ownership: plain data.
 * Errors: none; counters do not wrap in practice.
 */
#pragma once

#include "base/counter.h"
#include "store/store.h"

/* The five states of the thesis; one timestamp per edge. */
enum path_state {
	PATH_STATE_WAIT,    /* decoded; waits for memory or for its turn */
	PATH_STATE_DISK,    /* the disk works, nothing can be sent yet */
	PATH_STATE_OVERLAP, /* some bytes are valid; disk and network overlap */
	PATH_STATE_NETWORK, /* the disk is done; network time that it did not hide */
	PATH_STATE_DONE,    /* everything is sent, resources are back */
	PATH_STATE_COUNT
};

enum {
	PATH_SIZE_CLASS_COUNT = 8, /* <= 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1, 4, 16 MiB, more */
	PATH_LATENCY_PARTS = 8,	   /* buckets for each doubling */
	PATH_LATENCY_BUCKETS = 26 * PATH_LATENCY_PARTS,
	PATH_ERROR_COUNT = 8, /* kinds of errors that are told apart, all others as one */
};

/* The requests of one operation and size class. */
struct path_stats {
	uint64_t count;
	uint64_t errors;
	uint64_t bytes;			     /* of those without an error */
	uint64_t state_ns[PATH_STATE_COUNT]; /* sum of the time spent in each state */
	uint64_t total_ns;
	uint64_t max_ns;
	uint64_t latency[PATH_LATENCY_BUCKETS];
};

extern const struct counter_table path_stats_counter_table; /* of struct path_stats */

/* The requests of one operation. */
struct path_operation {
	struct path_stats classes[PATH_SIZE_CLASS_COUNT];
	/* How long those that were in a state were in it. */
	uint64_t phases[PATH_STATE_DONE][PATH_LATENCY_BUCKETS];
};

/* "wait", "disk", "overlap", "network", "done": in statistics, metrics, traces and plots. */
const char *path_state_name(enum path_state state);

/* The size class of a request. */
uint32_t path_size_class(uint64_t length);
/* The longest request of a class; UINT64_MAX for the last. */
uint64_t path_size_class_limit(uint32_t size_class);

/* Counts one request. edge_ns: when each state was entered, 0 = it was skipped; DONE is set. */
void path_stats_add(struct path_stats *stats, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t bytes, bool failed);

void path_stats_merge(struct path_stats *into, const struct path_stats *from);

/* The longest time of a bucket; UINT64_MAX for the last. */
uint64_t path_latency_limit_ns(uint32_t bucket);

/* The same for a request of length bytes among those of its operation. */
void path_operation_add(struct path_operation *operation, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t length, bool failed);
void path_operation_merge(struct path_operation *into, const struct path_operation *from);

/* Private to src/path: counts a request that has ended, for its export and its client. */
struct path_request;
void path_account(const struct path_request *request);

/* Where an error of a store, a negative errno, is counted, 0 to PATH_ERROR_COUNT - 1; and its name,
 * "EIO", of all others "other". */
uint32_t path_error_slot(int error);
const char *path_error_name(uint32_t slot);

/* The time that parts_per_million of the requests did not exceed: the end of its bucket, or the
 * maximum if that is less. 0 when there were none. */
uint64_t path_stats_quantile_ns(const struct path_stats *stats, uint32_t parts_per_million);

/* --- single requests ------------------------------------------------------------------------ */

/*
 * A recorder of single requests: when each part was submitted to the disk, was complete, and was
 * handed to the network. A path has one while a client records ("gmblock trace --request");
 * otherwise each of the moments below costs one branch.
 *
 *   begin ─▶ opened ─▶ submitted ─▶ progress ... done ─▶ handed ─▶ back ... ─▶ end     a read's
 * part opened ─▶ (payload comes in) ─▶ submitted ─▶ done                     a write's
 *
 * It records the first requests that match and stops. All its memory is allocated when it is
 * created; nothing is overwritten. What does not fit (parts beyond a limit, the middle of many
 * fragments of one part) is counted or merged.
 *
 * Threading: created and destroyed on any thread; everything between begin and end on the path's.
 * Another thread may call path_trace_ended() meanwhile: a record that ended does not change again.
 * Ownership: the recorder owns the records. It is destroyed after the last path has detached it.
 * Errors: -ENOMEM at creation; afterwards none.
 */
struct path_trace;

enum {
	PATH_TRACE_REQUESTS_MAX = 1000,
	PATH_TRACE_PARTS_MAX = 1024, /* remembered of one request */
	PATH_TRACE_POOL_MAX = 8192,  /* remembered of all requests together */
	/* Of one part; of most parts there is one piece and no mark, and only so many of all parts
	 * together may have more. */
	PATH_TRACE_MARKS_MAX = 16,
	PATH_TRACE_PIECES_MAX = 16,
	PATH_TRACE_MORE_MAX = 1024,
};

/* The name of an export: it may be removed while its requests are traced, and another one may have
 * that name later. Without a terminator; text NULL: none. */
struct path_trace_name {
	const char *text;
	uint32_t bytes;
};

struct path_trace_options {
	uint32_t request_max;	       /* 1 to PATH_TRACE_REQUESTS_MAX */
	uint32_t ops;		       /* bit set of BIT(enum store_op) */
	uint64_t length_min;	       /* shorter requests are not looked at */
	struct path_trace_name export; /* only requests for it; copied; none = any */
	/* Called on the path's thread each time a request has ended. */
	void (*ended)(void *context);
	void *context;
};

/* Times are those of the ring's clock; 0 = it did not happen. */

/* Progress that the store reported before a part was done. */
struct path_trace_mark {
	uint64_t progress_ns;
	uint64_t bytes; /* that were there */
};

/* What was handed to the network. */
struct path_trace_piece {
	uint64_t offset;
	uint64_t length;
	uint64_t handed_ns; /* its first byte */
	uint64_t back_ns;   /* its last byte was taken by the operating system */
};

struct path_trace_part {
	struct path_trace_part *next; /* in the order in which they were opened */
	uint64_t offset;
	uint64_t length;
	uint64_t opened_ns;    /* it had its memory */
	uint64_t submitted_ns; /* given to the disk; of a write: its payload is in */
	uint64_t done_ns;
	int result; /* 0, or the disk's negative errno */
	/* The last mark is the latest, and stands for all that did not fit; the last piece has
	 * grown by all that did not fit. */
	uint32_t mark_count;
	uint32_t piece_count;

	/* Private: see path_trace_marks() and path_trace_pieces(). */
	struct path_trace_more *more;
	struct path_trace_mark mark;
	struct path_trace_piece piece;
};

struct path_trace_request {
	enum store_op op;
	struct path_trace_name export; /* as long as the trace; none: there was no memory */
	uint64_t offset;
	uint64_t length;
	int error;
	uint64_t edge_ns[PATH_STATE_COUNT]; /* as path_stats_add() takes them */
	struct path_trace_part *parts;
	uint32_t part_count; /* in the list */
	uint32_t parts_more; /* were not remembered */

	/* Private. */
	struct path_trace *trace;
	struct path_trace_part **last;	    /* where the next part is put */
	struct path_trace_request **handle; /* the owner's pointer, while it is not ended */
	struct path_trace_request *next;    /* while it is free */
};

/* Takes the memory. */
GMB_MUST_CHECK int path_trace_create(
	const struct path_trace_options *options, struct path_trace **trace_out);
/* NULL is a no-op. */
void path_trace_destroy(struct path_trace *trace);

/* A request begins: *handle gets its record, or NULL when it is none that is asked for. */
void path_trace_begin(struct path_trace *trace, enum store_op op, struct path_trace_name export,
	uint64_t offset, uint64_t length, struct path_trace_request **handle);

/* A part of it has memory. Never NULL: parts that there is no room for share one that nobody reads.
 */
struct path_trace_part *path_trace_opened(
	struct path_trace_request *record, uint64_t offset, uint64_t length, uint64_t now_ns);
/* Times may be those of the batch: no moment of a part gets one before the moment that it follows.
 */
void path_trace_submitted(struct path_trace_part *part, uint64_t now_ns);
void path_trace_progress(struct path_trace_request *record, struct path_trace_part *part,
	uint64_t bytes, uint64_t now_ns);
void path_trace_done(struct path_trace_part *part, int result, uint64_t now_ns);
void path_trace_handed(struct path_trace_request *record, struct path_trace_part *part,
	uint64_t offset, uint64_t length, uint64_t now_ns);
void path_trace_back(struct path_trace_part *part, uint64_t offset, uint64_t now_ns);

/* The request ended; *handle is NULL afterwards, as below. */
void path_trace_end(
	struct path_trace_request *record, int error, const uint64_t edge_ns[PATH_STATE_COUNT]);
/* Its peer is gone: as if it had never been. */
void path_trace_drop(struct path_trace_request *record);
/* The path lets go of the recorder: no request of it has a record any more. */
void path_trace_detach(struct path_trace *trace);

/* How many requests ended so far; and one of them, in the order of their ends. */
uint32_t path_trace_ended_count(const struct path_trace *trace);
const struct path_trace_request *path_trace_ended(const struct path_trace *trace, uint32_t index);

/* Arrays of part->mark_count and part->piece_count. */
const struct path_trace_mark *path_trace_marks(const struct path_trace_part *part);
const struct path_trace_piece *path_trace_pieces(const struct path_trace_part *part);
