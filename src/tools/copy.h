// SPDX-License-Identifier: Apache-2.0
/*
 * "gmblock copy": the ends, the event loop, the engine that moves the bytes, the journal of a
 * resumable copy, the map of unreadable ranges, progress and report.
 *
 *   copy_map ─▶ next piece ─▶ task: READ ─▶ runs of data and zeroes ─▶ WRITE / ZERO / skip
 *                              (bounded: one buffer each)      a stream takes them in order
 *                         or: COPY_FROM, where one server has both ends
 *
 * Threading: the thread of the loop. Ownership: callers own the structs; an end holds an operation
 * and its buffer from copy_end_submit() until done, and is closed when no operation is in flight.
 * Errors: a negative errno and an error message. An operation's result is 0 or a negative errno;
 * then end->failure names the end, the range and the reason.
 */
#pragma once

#include <gmblock/gmblock.h>
#include <stdio.h>

#include "base/error.h"
#include "base/list.h"
#include "ring/ring.h"

struct copy_end;
struct copy_io;

typedef void copy_done_fn(struct copy_io *io);

enum copy_operation { COPY_READ, COPY_WRITE, COPY_ZERO, COPY_FLUSH, COPY_MAP, COPY_FROM };

struct copy_io {
	enum copy_operation operation;
	bool allocate; /* ZERO: the range stays or becomes allocated */
	uint64_t offset;
	uint64_t length;
	uint8_t *buffer;	    /* READ, WRITE */
	struct copy_end *source;    /* FROM: end whose range is copied; see copy_end_can_copy() */
	struct gmb_extent *extents; /* MAP: room for the answer, in the form of GMB_STATUS */
	uint32_t extents_max;
	copy_done_fn *done;

	int result;
	uint32_t extent_count; /* MAP: number of extents; at least 1 when result is 0 */
	uint64_t moved;	       /* READ: bytes read; fewer than length at the end of a stream */

	/* The members below are private to the end. */
	bool in_flight;
	struct copy_end *end;
	struct iovec iov;
	union {
		struct gmb_request request;
		struct ring_op ring_op;
	};
};

enum copy_kind { COPY_REMOTE, COPY_FILE, COPY_DEVICE, COPY_STREAM };

struct copy_end_ops {
	/* Called before the first write: creates a file and sets its size. bytes: size of the copy,
	 * or UINT64_MAX if it is not known before the end of the stream. resumed: keep the existing
	 * contents. Optional. */
	int (*prepare)(struct copy_end *end, uint64_t bytes, bool resumed, struct error *error);
	void (*submit)(struct copy_end *end, struct copy_io *io);
	/* Cancels an operation that waits for another process (a pipe). Optional. */
	void (*cancel)(struct copy_end *end);
	/* Called when everything is written: sets a file's size to bytes, the size of the copy.
	 * Optional. */
	int (*finish)(struct copy_end *end, uint64_t bytes, struct error *error);
	/* Drops the pages of the end from the page cache, so that reads come from the disk.
	 * Optional. */
	void (*forget)(struct copy_end *end);
	/* Frees the end. *error: a failure that is detected only now. */
	int (*close)(struct copy_end *end, struct error *error);
};

struct copy_end {
	const struct copy_end_ops *ops;
	struct copy_loop *loop;
	const char *role; /* "the source", "the target" */
	const char *text; /* text of the end as given; borrowed from the command line */
	char *name;	  /* for messages: escaped, quoted, and cut if long */
	enum copy_kind kind;
	bool target;
	bool size_known;
	bool can_map;
	bool can_zero; /* the end can write zeroes without payload */
	bool can_flush;
	bool known_zero; /* unwritten parts of the end read as zeroes */
	bool shrunk;	 /* the end became smaller during the copy */
	uint64_t bytes;	 /* valid if size_known */
	/* offsets and lengths must be multiples of this size; a power of two */
	uint32_t block_min;
	uint64_t identity[4]; /* identifies files and devices; 0: unknown */
	uint64_t backing[2];  /* identity of the file behind a loop device */
	uint64_t backing_at;  /* offset of the device in that file */
	struct error failure;
};

/* The library chooses the number of connections by measurement. */
#define COPY_CONNECTIONS_AUTO UINT32_MAX

struct copy_end_options {
	const char *text; /* URI, path or "-" */
	bool target;
	bool direct;	      /* files and devices: bypass the page cache */
	uint32_t connections; /* remote: 0 = the default, or COPY_CONNECTIONS_AUTO */
};

/* Returns the kind of end that the text names, without opening it. */
enum copy_kind copy_end_kind(const char *text);

/* Opens an end without changing anything there. */
GMB_MUST_CHECK int copy_end_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);

/* Returns true when one server serves both ends and can copy between them with COPY_FROM. Otherwise
 * *reason is set to the reason, a static text. */
bool copy_end_can_copy(struct copy_end *target, struct copy_end *source, const char **reason);

/* Returns true when both ends are known to be the same file, device or export. */
bool copy_end_is_same(const struct copy_end *a, const struct copy_end *b);

/* Returns true when the descriptor refers to the end's file. */
bool copy_end_is_open(const struct copy_end *end, int fd);

GMB_MUST_CHECK int copy_end_prepare(
	struct copy_end *end, uint64_t bytes, bool resumed, struct error *error);
void copy_end_submit(struct copy_end *end, struct copy_io *io);
void copy_end_cancel(struct copy_end *end);
/* Returns the error of the end's last failed operation: -EINTR if it did not wait for the server
 * because of a stop signal, otherwise end->failure. */
GMB_MUST_CHECK int copy_end_failure(const struct copy_end *end, struct error *error);
GMB_MUST_CHECK int copy_end_finish(struct copy_end *end, uint64_t bytes, struct error *error);
void copy_end_forget(struct copy_end *end);

/* Frees the end; NULL is a no-op. */
GMB_MUST_CHECK int copy_end_close(struct copy_end *end, struct error *error);

/* --- for the implementations --------------------------------------------------------------- */

/* Initializes the fields that all kinds have in common. */
GMB_MUST_CHECK int copy_end_init(struct copy_end *end, const struct copy_end_ops *ops,
	struct copy_loop *loop, const struct copy_end_options *options, struct error *error);
void copy_end_fini(struct copy_end *end);

/* Completes the operation: calls done. */
void copy_io_end(struct copy_io *io, int result);
/* Completes the operation with the error `code`, and describes it in end->failure: "cannot read the
 * source 'x' at byte OFFSET (LENGTH bytes): reason". */
void copy_io_fail(struct copy_io *io, int code);

GMB_MUST_CHECK int copy_remote_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);
GMB_MUST_CHECK int copy_file_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);
GMB_MUST_CHECK int copy_stream_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);

/* --- the event loop ----------------------------------------------------------------------------
 */

/* Waits for the ring (local ends), the library's completion queue (remote ends), stop signals, and
 * a tick for the progress bar. The ring polls the queue's descriptor, so that one wait covers both;
 * with two remote ends the loop waits for the queue directly. The loop owns ring and queue, which
 * must be idle when it is destroyed. */
struct copy_loop {
	struct ring *ring;
	struct gmb_queue *queue;  /* NULL: no remote end */
	bool local;		  /* there are operations on the ring */
	uint64_t rate;		  /* bytes per second, set by the creator; 0: no limit */
	uint64_t rate_due_ns;	  /* earliest start of the next piece */
	int signal_fd;		  /* -1 until copy_loop_watch_signals(); owned by the process */
	int stop_signal;	  /* the signal that requested a stop; 0: none yet */
	struct list_node remotes; /* open remote ends */
	struct ring_op queue_op;
	struct ring_op signal_op;
	struct ring_op tick_op;
};

/* Maximum time that one turn of the loop waits. */
enum { COPY_TICK_MS = 200 };

/* Creates a loop. remote, local: the kinds of ends in use. */
GMB_MUST_CHECK int copy_loop_create(
	struct copy_loop *loop, bool remote, bool local, struct error *error);
void copy_loop_destroy(struct copy_loop *loop);

/* From here on the first SIGINT, SIGTERM or SIGHUP sets copy_stop_signal() instead of ending the
 * process; the second one ends it as usual. fd: an eventfd to which the signal is written, or -1.
 * Called once per process. */
void copy_stop_watch(int fd);
/* Returns the signal, or 0. */
int copy_stop_signal(void);

/* copy_stop_watch(), for a loop: the signal also ends its turn, and sets stop_signal. */
GMB_MUST_CHECK int copy_loop_watch_signals(struct copy_loop *loop, struct error *error);

/* Performs one turn: sends and submits operations, waits for a completion, a signal or the tick,
 * and calls done of completed operations. After a stop signal, the operations of an end that has
 * lost its server fail. */
void copy_loop_turn(struct copy_loop *loop);

/* Returns -EINTR and an error message after a signal has requested a stop. */
GMB_MUST_CHECK int copy_loop_check(const struct copy_loop *loop, struct error *error);

uint64_t copy_loop_now_ns(const struct copy_loop *loop);
/* Returns whether the rate limit permits another piece now. If not, ask again in a later turn. */
bool copy_loop_may_move(const struct copy_loop *loop);
/* Counts bytes that are about to be read, for the rate limit. */
void copy_loop_moves(struct copy_loop *loop, uint64_t bytes);

/* --- buffers -----------------------------------------------------------------------------------
 */

/* A fixed number of buffers of equal size. With a queue, they are in memory that the servers on the
 * queue can access (gmb_buffer_alloc()). The buffer that was returned last is used next, because it
 * is still in the processor's caches. */
struct copy_pool {
	struct gmb_queue *queue;
	uint8_t *memory;
	uint8_t **free;
	uint32_t free_count;
	uint32_t count;
	size_t buffer_bytes;
};

/* Allocates the buffers. queue: NULL without a remote end. buffer_bytes: a multiple of the page
 * size. */
GMB_MUST_CHECK int copy_pool_create(struct copy_pool *pool, struct gmb_queue *queue, uint32_t count,
	size_t buffer_bytes, struct error *error);
/* Frees the buffers, all of which must have been returned. */
void copy_pool_destroy(struct copy_pool *pool);

/* Returns a free buffer, or NULL when all are in use. */
uint8_t *copy_pool_get(struct copy_pool *pool);
void copy_pool_put(struct copy_pool *pool, uint8_t *buffer);

/* --- the map of the source ---------------------------------------------------------------------
 */

/*
 * The ranges of an end that hold data, and those that read as zeroes. They are queried ahead of the
 * copy. Answers are aligned to a grain: data is extended, and zeroes shortened, to multiples of it.
 * Zeroes shorter than zero_min count as data, as does everything of an end that cannot report
 * extents.
 *
 *   extents of the end ──▶ pending zeroes ──▶ runs (bounded) ──▶ copy_map_peek()
 *
 * Borrows the end, which holds map->io during a query, so the map must stay until
 * copy_map_is_idle(). If a query fails, error is set, and copy_map_peek() returns it.
 */
enum { COPY_MAP_EXTENTS = 256, COPY_MAP_RUNS = 4 * COPY_MAP_EXTENTS };

struct copy_map_run {
	uint64_t end;
	bool zero;
};

struct copy_map {
	struct copy_end *end;
	uint64_t limit; /* size in bytes */
	uint64_t grain; /* a power of two */
	uint64_t zero_min;
	uint64_t asked; /* the extents below this offset were received */
	/* start of the zeroes that end at `asked` and may continue after it; equal to `asked` if
	 * there are none */
	uint64_t pending;
	uint64_t runs_end; /* end of the last run */
	uint32_t run_first;
	uint32_t run_count;
	bool no_map; /* treat everything as data */
	/* If set, an error for which copy_bad_takes() is true does not make a query fail: its range
	 * counts as data, and the read of the range finds what is unreadable. */
	const struct copy_bad *bad;
	struct error error;
	struct copy_io io;
	struct gmb_extent extents[COPY_MAP_EXTENTS];
	struct copy_map_run runs[COPY_MAP_RUNS];
};

/* Starts the map at start, a multiple of grain. */
void copy_map_init(struct copy_map *map, struct copy_end *end, uint64_t start, uint64_t limit,
	uint64_t grain, uint64_t zero_min);

/*
 * Reports whether the end has data or zeroes at offset, which must not decrease from call to call.
 * Returns 1, with *zero, and *length > 0 bytes to which this applies; 0 when the end has not
 * answered the query yet; or a negative errno (map->error).
 */
GMB_MUST_CHECK int copy_map_peek(
	struct copy_map *map, uint64_t offset, uint64_t *length, bool *zero);

bool copy_map_is_idle(const struct copy_map *map);

/* --- the journal -------------------------------------------------------------------------------
 */

/*
 * A text file that identifies source and target, and records the offset up to which the target is
 * durable. Every line starts with the CRC-32C of its rest.
 *
 *   9f1c2a03 gmblock copy journal 1
 *   5e70b1d4 source KIND BYTES ID ID ID ID URI-CRC NAME
 *   0c6f2e11 target KIND BYTES ID ID ID ID URI-CRC NAME
 *   77ab90fe options ALLOCATE KNOWN-ZERO
 *   1d33c8a9 durable OFFSET                  appended, each after a flush of the target
 *
 * A torn last line (the machine crashed during its write) is ignored. Any other mismatch is
 * rejected, because a wrong guess would corrupt the copy. The calls block; the file is locked while
 * the journal is open.
 */
struct copy_journal {
	char *path;
	int fd; /* -1: no journal */
	bool resumed;
	bool target_zero; /* the target was known to read as zeroes when the copy started */
	uint64_t durable; /* every byte of the target below this offset is durable */
	uint64_t length;  /* offset of the next line */
};

/*
 * Opens or creates the file and locks it. If it contains a journal, resumed is set, and the journal
 * must describe this copy: -EINVAL (damaged, or not a journal), -ESTALE (of another copy), -EBUSY
 * (another process has it). path NULL: no journal is kept, and the calls are no-ops.
 */
GMB_MUST_CHECK int copy_journal_open(struct copy_journal *journal, const char *path,
	const struct copy_end *source, const struct copy_end *target, bool allocate,
	struct error *error);

/* Writes the head of a new journal after the target has been prepared and made durable. */
GMB_MUST_CHECK int copy_journal_begin(struct copy_journal *journal, const struct copy_end *source,
	const struct copy_end *target, bool allocate, struct error *error);

/* Records that every byte of the target below offset is durable. */
GMB_MUST_CHECK int copy_journal_record(
	struct copy_journal *journal, uint64_t offset, struct error *error);

/* Removes the file, because the copy is complete. */
GMB_MUST_CHECK int copy_journal_remove(struct copy_journal *journal, struct error *error);

/* Closes the file, and removes it if it is empty. */
void copy_journal_close(struct copy_journal *journal);

/* --- unreadable ranges ---------------------------------------------------------------------- */

/*
 * The unreadable ranges of the source, sorted and disjoint, and the file for their map in the
 * format of GNU ddrescue:
 *
 *   0x00000000  0x00100000  +    copied
 *   0x00100000  0x00001000  -    not readable: zero in the target
 *   0x00101000  0x000FF000  ?    not tried: the copy ended before
 *
 * Borrows the path. The struct is zeroed before copy_bad_open(). A zeroed struct skips no errors:
 * each error ends the copy.
 */
struct copy_bad_range {
	uint64_t start;
	uint64_t end;
};

struct copy_bad {
	const char *path;
	FILE *file; /* NULL: errors are not skipped */
	struct copy_bad_range *ranges;
	size_t count;
	size_t room;
	uint64_t bytes;	    /* total of all ranges */
	uint64_t finished;  /* the copy is complete below this offset, except for `ranges` */
	struct error first; /* error of the first unreadable range */
	bool is_written;
};

/* Creates the file before the copy, so that a failure is detected early. -EEXIST: it exists and is
 * not empty. path NULL: errors are not skipped. */
GMB_MUST_CHECK int copy_bad_open(struct copy_bad *bad, const char *path,
	const struct copy_end *source, const struct copy_end *target, struct error *error);

/* Returns whether the copy continues after the error. It does if data is lost, and not if the
 * source cannot be reached. */
bool copy_bad_takes(const struct copy_bad *bad, int result);

/* Adds a range that overlaps no other. -E2BIG: there are too many. */
GMB_MUST_CHECK int copy_bad_add(struct copy_bad *bad, uint64_t start, uint64_t end,
	const struct error *reason, struct error *error);

/* Writes the map of a source of `total` bytes, and makes it durable. Called once. */
GMB_MUST_CHECK int copy_bad_write(struct copy_bad *bad, uint64_t total, struct error *error);

/* Closes the file, and removes it if the map was not written. */
void copy_bad_close(struct copy_bad *bad);

/*
 * Repeats the failed read of a piece in small blocks, one after the other. A block that fails again
 * is zeroed in the buffer and added to a range of `bad`. The owner sets the members before
 * "Private".
 */
struct copy_rescue;
/* Called when the rescue has ended. error: an error that ends the copy, or NULL. */
typedef void copy_rescue_fn(struct copy_rescue *rescue, const struct error *error);

struct copy_rescue {
	struct copy_bad *bad;
	/* if *stopping becomes true, the rescue ends early, as if everything had been read */
	const bool *stopping;
	copy_rescue_fn *done;

	uint64_t read; /* bytes read, without unreadable ones */
	/* Private. */
	struct copy_end *source;
	struct copy_io io;
	uint64_t end;
	uint64_t bad_start;  /* start of the current run of unreadable blocks; UINT64_MAX: none */
	struct error reason; /* error of the first block of the run */
};

/* Starts a rescue. failed: the read that failed; its buffer is reused. */
void copy_rescue_begin(struct copy_rescue *rescue, const struct copy_io *failed);

/* --- the engine --------------------------------------------------------------------------------
 */

/* Copies the source in ascending order with many pieces in flight, and decides for each run of
 * zeroes whether it is skipped, zeroed or written. At intervals the target is flushed, and the
 * journal records how far it is durable. Borrows everything in the options. The first error stops
 * the copy, after the operations in flight have ended. */

struct copy_counters {
	uint64_t start;	   /* bytes copied by an earlier run */
	uint64_t done;	   /* bytes of the copy that are complete, including those in start */
	uint64_t total;	   /* UINT64_MAX: not known yet */
	uint64_t read;	   /* bytes read from the source */
	uint64_t written;  /* bytes written to the target */
	uint64_t copied;   /* bytes that the server copied (COPY_FROM) */
	uint64_t zeroed;   /* bytes that the target zeroed on request */
	uint64_t skipped;  /* zeroes that the target already had */
	uint64_t compared; /* bytes verified */
	/* part of `done` that was not read, because the source has no data there */
	uint64_t holes;
};

typedef void copy_tick_fn(void *context);

struct copy_engine_options {
	struct copy_loop *loop;
	struct copy_end *source;
	struct copy_end *target;
	struct copy_pool *pool;
	struct copy_journal *journal;
	struct copy_bad *bad;
	struct copy_counters *counters;
	copy_tick_fn *tick; /* called at intervals, for the progress bar */
	void *tick_context;
	uint32_t requests;	/* limit of pieces in flight */
	bool adapts;		/* use fewer requests if the ends answer quickly */
	uint64_t request_bytes; /* a power of two */
	/* Block size for detecting zeroes in data; 0 = do not detect them. */
	uint64_t sparse_bytes;
	/* Maximum number of bytes between flushes with a journal record. */
	uint64_t checkpoint_bytes;
	bool allocate;	/* write every block of the target, including zeroes */
	bool by_server; /* use COPY_FROM if possible; zeroes in data are not detected then */
};

/* Copies everything from counters->start on and flushes the target. Returns 0, -EINTR when a signal
 * requested a stop, or the first error. counters->done is the progress. */
GMB_MUST_CHECK int copy_engine_run(const struct copy_engine_options *options, struct error *error);

/* Reads both ends up to counters->total and compares them. Returns 0, -EINTR, -EILSEQ with the
 * first difference in *error, or another error. */
GMB_MUST_CHECK int copy_verify_run(const struct copy_engine_options *options, struct error *error);

/* Returns true when all bytes are zero. */
bool copy_is_zero(const uint8_t *buffer, size_t bytes);

/* --- progress ----------------------------------------------------------------------------------
 */

/* The progress bar on standard error: share, speed and remaining time. A terminal gets one line
 * that is rewritten; other outputs get one line per second. Borrows the counters. */
struct copy_progress {
	bool wanted;
	bool terminal;
	bool line_open; /* the terminal's cursor is at the end of the bar */
	const struct copy_counters *counters;
	const uint64_t *now; /* the counter of the phase */
	const char *verb;
	uint64_t shown_ns; /* time of the last update; 0: never */
	uint64_t mark_ns;  /* start of the interval over which the rate is measured */
	uint64_t mark_bytes;
	uint64_t mark_moved; /* part of mark_bytes that was data, not holes */
	double rate;	     /* bytes of data per second, smoothed */
	double pace;	     /* bytes of data and holes per second, smoothed */
};

enum copy_progress_mode { COPY_PROGRESS_AUTO, COPY_PROGRESS_ON, COPY_PROGRESS_OFF };

void copy_progress_init(struct copy_progress *progress, enum copy_progress_mode mode,
	const struct copy_counters *counters);

/* Starts a phase with its counter: "copying", "verifying". */
void copy_progress_phase(
	struct copy_progress *progress, const char *verb, const uint64_t *counter, uint64_t now_ns);

/* Updates the bar if it is due. */
void copy_progress_tick(struct copy_progress *progress, uint64_t now_ns);

/* Removes the bar before other output to the terminal. */
void copy_progress_clear(struct copy_progress *progress);

/* Formats "1:02:03" or "0:07". Returns out. */
enum { COPY_TIME_BYTES = 24 };
const char *copy_human_time(char out[COPY_TIME_BYTES], double seconds);

/* Formats "12 MiB of 16 MiB". If rounding would make an incomplete copy look complete, formats
 * bytes. Returns out. */
enum { COPY_SHARE_BYTES = 72 };
const char *copy_share(char out[COPY_SHARE_BYTES], uint64_t done, uint64_t total);

/* --- the report --------------------------------------------------------------------------------
 */

/* The final output of "gmblock copy": sentences, or JSON with stable keys (gmblock-copy(1)). */

enum copy_outcome { COPY_COMPLETE, COPY_INCOMPLETE, COPY_FAILED, COPY_INTERRUPTED };

enum copy_target_state {
	COPY_TARGET_UNCHANGED,
	COPY_TARGET_PARTIAL,
	COPY_TARGET_WHOLE,   /* every byte was written, but possibly not durably */
	COPY_TARGET_DIFFERS, /* verification found a difference */
	COPY_TARGET_GAPS,    /* durable, with zeroes in place of unreadable ranges */
	COPY_TARGET_COMPLETE,
};

struct copy_report {
	enum copy_outcome outcome;
	enum copy_target_state state;
	const char *source_text;
	const char *target_text;
	const struct copy_end *source; /* NULL: could not be opened */
	const struct copy_end *target;
	const struct copy_counters *counters;
	const struct copy_journal *journal;
	const struct copy_bad *bad;
	const struct error *error; /* reason of an incomplete copy */
	double seconds;
	bool verified;
};

/* Writes one sentence: for a complete copy, its amount and speed; otherwise the state of the target
 * and how to continue. */
void copy_report_sentence(const struct copy_report *report, char *out, size_t out_bytes);

/* Writes the amount, start and reason of unreadable ranges; "" if there are none. */
void copy_report_bad(const struct copy_report *report, char *out, size_t out_bytes);

GMB_MUST_CHECK int copy_report_json(const struct copy_report *report, struct error *error);
