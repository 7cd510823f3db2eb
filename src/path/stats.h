// SPDX-License-Identifier: Apache-2.0
/*
 * Measurements of the data path: statistics of all requests, and records of single requests on
 * demand. Statistics are kept by operation and size class, by operation and state, and by client
 * and operation. They are always on and cost a few additions per request.
 *
 * Latencies are counted in buckets whose width grows with the value: 8 per doubling, from 1 us to
 * over four minutes, so a quantile is at most 12.5 % too high. A bucket includes its upper limit
 * but not its lower one. Latencies are computed from the timestamps of a request's states, so the
 * clock is not read for them.
 *
 * Threading: the path's thread writes and reads the statistics. Ownership: plain data. Errors:
 * none; counters do not wrap in practice.
 */
#pragma once

#include "base/counter.h"
#include "store/store.h"

/* The states of a request. A request has a timestamp for the beginning of each state. */
enum path_state {
	PATH_STATE_WAIT,    /* decoded; waits for memory or for its turn */
	PATH_STATE_DISK,    /* the disk is working; no data can be sent yet */
	PATH_STATE_OVERLAP, /* some bytes are valid; disk and network overlap */
	PATH_STATE_NETWORK, /* the disk is done; the network still sends data */
	PATH_STATE_DONE,    /* all data is sent, and its resources are released */
	PATH_STATE_COUNT
};

enum {
	/* up to 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB, and more */
	PATH_SIZE_CLASS_COUNT = 8,
	PATH_LATENCY_PARTS = 8, /* buckets per doubling */
	PATH_LATENCY_BUCKETS = 26 * PATH_LATENCY_PARTS,
	PATH_ERROR_COUNT = 8, /* errors counted separately; the last entry counts all others */
};

/* Statistics of one operation and size class. */
struct path_stats {
	uint64_t count;
	uint64_t errors;
	uint64_t bytes;			     /* payload of successful requests */
	uint64_t state_ns[PATH_STATE_COUNT]; /* sum of the time spent in each state */
	uint64_t total_ns;
	uint64_t max_ns;
	uint64_t latency[PATH_LATENCY_BUCKETS];
};

extern const struct counter_table path_stats_counter_table; /* describes struct path_stats */

/* Statistics of one operation. */
struct path_operation {
	struct path_stats classes[PATH_SIZE_CLASS_COUNT];
	/* By state: durations of the requests that were in this state. */
	uint64_t phases[PATH_STATE_DONE][PATH_LATENCY_BUCKETS];
};

/* Returns "wait", "disk", "overlap", "network" or "done", as in statistics, metrics, traces and
 * plots. */
const char *path_state_name(enum path_state state);

/* Returns the size class of a request. */
uint32_t path_size_class(uint64_t length);
/* Returns the length of the longest request of a class; UINT64_MAX for the last class. */
uint64_t path_size_class_limit(uint32_t size_class);

/* Counts a request. edge_ns: time at which the request entered each state; 0: it has skipped the
 * state. The time of DONE is always set. */
void path_stats_add(struct path_stats *stats, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t bytes, bool failed);

void path_stats_merge(struct path_stats *into, const struct path_stats *from);

/* Returns the upper limit of a bucket; UINT64_MAX for the last one. */
uint64_t path_latency_limit_ns(uint32_t bucket);

/* Counts a request of length bytes for its operation. */
void path_operation_add(struct path_operation *operation, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t length, bool failed);
void path_operation_merge(struct path_operation *into, const struct path_operation *from);

/* For use in src/path only: counts a request that has ended, in its export and its client. */
struct path_request;
void path_account(const struct path_request *request);

/* path_error_slot() returns the index of a store error (a negative errno), 0 to PATH_ERROR_COUNT -
 * 1. path_error_name() returns the name of an index: "EIO", or "other" for all further errors. */
uint32_t path_error_slot(int error);
const char *path_error_name(uint32_t slot);

/* Returns the duration that parts_per_million of the requests did not exceed: the upper limit of
 * its bucket, or the maximum if that is lower. 0 if there were no requests. */
uint64_t path_stats_quantile_ns(const struct path_stats *stats, uint32_t parts_per_million);

/* --- single requests ------------------------------------------------------------------------ */

/*
 * A recorder of single requests: when each of their parts was submitted to the disk, was complete,
 * and was given to the network. A path has a recorder only while a client records ("gmblock trace
 * --request"). Without one, each of the events below costs one branch.
 *
 *   read:  begin ─▶ opened ─▶ submitted ─▶ progress ... done ─▶ handed ─▶ back ... ─▶ end
 *   write: begin ─▶ opened ─▶ (payload arrives) ─▶ submitted ─▶ done ─▶ end
 *
 * The recorder records the first requests that match, and then stops. All its memory except the
 * names of exports is allocated when it is created. Nothing is overwritten: parts beyond a limit
 * are only counted, and further marks and pieces of a part are merged with its last one.
 *
 * Threading: created and destroyed on any thread. All calls between begin and end are made on the
 * path's thread. Another thread can call path_trace_ended() at the same time, because a record does
 * not change after its request has ended. Ownership: the recorder owns the records. It is destroyed
 * after the last path has detached it. Errors: -ENOMEM at creation; none later.
 */
struct path_trace;

enum {
	PATH_TRACE_REQUESTS_MAX = 1000,
	PATH_TRACE_PARTS_MAX = 1024, /* maximum number of parts of one request */
	PATH_TRACE_POOL_MAX = 8192,  /* maximum number of parts of all requests together */
	/* Maximum numbers of marks (struct path_trace_mark) and pieces (struct path_trace_piece) of
	 * one part. Most parts have one piece and no mark; at most PATH_TRACE_MORE_MAX parts can
	 * have more. */
	PATH_TRACE_MARKS_MAX = 16,
	PATH_TRACE_PIECES_MAX = 16,
	PATH_TRACE_MORE_MAX = 1024,
};

/* Name of an export. The recorder copies it, because the export can be removed while its requests
 * are traced, and another export can then use the name. Not terminated; text NULL: no name. */
struct path_trace_name {
	const char *text;
	uint32_t bytes;
};

struct path_trace_options {
	uint32_t request_max; /* 1 to PATH_TRACE_REQUESTS_MAX */
	uint32_t ops;	      /* bit set of BIT(enum store_op) */
	uint64_t length_min;  /* shorter requests are ignored */
	/* only requests of this export; text NULL: of all exports; copied */
	struct path_trace_name export;
	/* Called on the path's thread each time a request has ended. */
	void (*ended)(void *context);
	void *context;
};

/* Times are from the ring's clock; 0: the event did not happen. */

/* A progress report of the store before a part was done. */
struct path_trace_mark {
	uint64_t progress_ns;
	uint64_t bytes; /* number of bytes that were valid at that time */
};

/* One piece of a part's data that was given to the network. */
struct path_trace_piece {
	uint64_t offset;
	uint64_t length;
	uint64_t handed_ns; /* time at which the piece's first byte was given to the network */
	uint64_t back_ns;   /* time at which the operating system had accepted its last byte */
};

struct path_trace_part {
	struct path_trace_part *next; /* list of parts; the part that was opened first is first */
	uint64_t offset;
	uint64_t length;
	const char *placement; /* place of the payload, PATH_PLACEMENT_*; NULL: none yet */
	uint64_t opened_ns;    /* time at which the part got its memory */
	/* time at which the part was submitted to the disk, after the payload of a write was
	 * complete */
	uint64_t submitted_ns;
	uint64_t done_ns;
	int result; /* 0, or a negative errno of the disk */
	/* If there are more marks or pieces than fit, the last mark describes the latest report,
	 * and the last piece includes all later pieces. */
	uint32_t mark_count;
	uint32_t piece_count;

	/* Private members: use path_trace_marks() and path_trace_pieces(). */
	struct path_trace_more *more;
	struct path_trace_mark mark;
	struct path_trace_piece piece;
};

struct path_trace_request {
	enum store_op op;
	/* valid as long as the trace; text NULL: no memory was left for the name */
	struct path_trace_name export;
	uint64_t offset;
	uint64_t length;
	int error;
	uint64_t edge_ns[PATH_STATE_COUNT]; /* see path_stats_add() */
	struct path_trace_part *parts;
	uint32_t part_count; /* number of parts in the list */
	uint32_t parts_more; /* number of parts that were not recorded */

	/* Private members. */
	struct path_trace *trace;
	struct path_trace_part **last; /* link to which the next part is appended */
	/* address of the owner's pointer to this record, until the request ends */
	struct path_trace_request **handle;
	struct path_trace_request *next; /* in the free list */
};

/* Creates a recorder and allocates its memory. */
GMB_MUST_CHECK int path_trace_create(
	const struct path_trace_options *options, struct path_trace **trace_out);
/* Frees the recorder. NULL is a no-op. */
void path_trace_destroy(struct path_trace *trace);

/* Called when a request starts: sets *handle to its record, or to NULL if the request does not
 * match or the limit is reached. */
void path_trace_begin(struct path_trace *trace, enum store_op op, struct path_trace_name export,
	uint64_t offset, uint64_t length, struct path_trace_request **handle);

/* Called when a part gets its memory. Never returns NULL: parts beyond the limit share a dummy
 * record. */
struct path_trace_part *path_trace_opened(
	struct path_trace_request *record, uint64_t offset, uint64_t length, uint64_t now_ns);
/* Record the events of a part. placement: NULL, or a text that outlives the trace. now_ns can be
 * the time of the batch of events, which can be before the part's previous event. The event is then
 * recorded with the time of the previous event. */
void path_trace_submitted(struct path_trace_part *part, const char *placement, uint64_t now_ns);
void path_trace_progress(struct path_trace_request *record, struct path_trace_part *part,
	uint64_t bytes, uint64_t now_ns);
void path_trace_done(struct path_trace_part *part, int result, uint64_t now_ns);
void path_trace_handed(struct path_trace_request *record, struct path_trace_part *part,
	uint64_t offset, uint64_t length, uint64_t now_ns);
void path_trace_back(struct path_trace_part *part, uint64_t offset, uint64_t now_ns);

/* Called when the request has ended. Sets *handle to NULL, like the next two functions. */
void path_trace_end(
	struct path_trace_request *record, int error, const uint64_t edge_ns[PATH_STATE_COUNT]);
/* Called when the request's peer has disconnected: discards the record. */
void path_trace_drop(struct path_trace_request *record);
/* Called when the path stops using the recorder. The path's requests have no records from then
 * on. */
void path_trace_detach(struct path_trace *trace);

/* Return the number of recorded requests that have ended, and the request with this index. A
 * request that ended earlier has a lower index. */
uint32_t path_trace_ended_count(const struct path_trace *trace);
const struct path_trace_request *path_trace_ended(const struct path_trace *trace, uint32_t index);

/* Return arrays of part->mark_count and part->piece_count elements. */
const struct path_trace_mark *path_trace_marks(const struct path_trace_part *part);
const struct path_trace_piece *path_trace_pieces(const struct path_trace_part *part);
