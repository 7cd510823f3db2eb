// SPDX-License-Identifier: Apache-2.0
/*
 * "gmblock copy": the ends, the event loop, the engine that moves the bytes, the journal of a copy
 * that can be continued, the map of what cannot be read, progress and report.
 *
 *   copy_map ─▶ next piece ─▶ task: READ ─▶ runs of data and zeroes ─▶ WRITE / ZERO / skip
 *                              (bounded: one buffer each)      a stream takes them in order
 *                         or: COPY_FROM, where one server has both ends
 *
 * Threading: the thread of the loop. Ownership: callers own the structs; an end holds an operation
 * and its buffer from copy_end_submit() until done, and is closed when nothing is in flight.
 * Errors: a negative errno with a sentence. An operation's result is 0 or a negative errno, and
 * then end->failure names end, range and reason.
 */
#pragma once

#include <gmblock/gmblock.h>
#include <stdio.h>

#include "base/error.h"
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
	struct copy_end *source;    /* FROM: the same range of it; copy_end_can_copy() */
	struct gmb_extent *extents; /* MAP: room for the answer, as GMB_STATUS gives it */
	uint32_t extents_max;
	copy_done_fn *done;

	int result;
	uint32_t extent_count; /* MAP: at least 1 when result is 0 */
	uint64_t moved;	       /* READ: length, or less where a stream ends */

	/* Private to the end. */
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
	/* Before the first write: creates a file and gives it its size. bytes: of the copy, or
	 * UINT64_MAX when only the end of the stream shows it. resumed: what is there stays.
	 * Optional. */
	int (*prepare)(struct copy_end *end, uint64_t bytes, bool resumed, struct error *error);
	void (*submit)(struct copy_end *end, struct copy_io *io);
	/* Cancels an operation that waits for another process (a pipe). Optional. */
	void (*cancel)(struct copy_end *end);
	/* Everything is written and bytes is the size of the copy: gives a file its size.
	 * Optional. */
	int (*finish)(struct copy_end *end, uint64_t bytes, struct error *error);
	/* Drops its pages from the cache, so that reads come from the disk. Optional. */
	void (*forget)(struct copy_end *end);
	/* Frees the end. *error: what was noticed only now. */
	int (*close)(struct copy_end *end, struct error *error);
};

struct copy_end {
	const struct copy_end_ops *ops;
	struct copy_loop *loop;
	const char *role; /* "the source", "the target" */
	const char *text; /* as given; borrowed from the command line */
	char *name;	  /* for messages: escaped and quoted, cut when long */
	enum copy_kind kind;
	bool target;
	bool size_known;
	bool can_map;
	bool can_zero; /* without sending zeroes */
	bool can_flush;
	bool known_zero;      /* reads as zeroes where nothing was written yet */
	bool shrunk;	      /* it became smaller while it was copied */
	uint64_t bytes;	      /* when size_known */
	uint32_t block_min;   /* offsets and lengths are multiples of it; a power of two */
	uint64_t identity[4]; /* what distinguishes files and devices; 0: unknown */
	uint64_t backing[2];  /* a loop device: the identity of the file it is made of */
	uint64_t backing_at;  /* and where in it the device begins */
	struct error failure;
};

struct copy_end_options {
	const char *text; /* URI, path or "-" */
	bool target;
	bool direct;	      /* files and devices: around the page cache */
	uint32_t connections; /* remote: 0 = as the server's address suggests */
};

/* Says which kind of end the text names, without opening it. */
enum copy_kind copy_end_kind(const char *text);

/* Opens an end and changes nothing there. */
GMB_MUST_CHECK int copy_end_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);

/* True when the server of both copies from the one to the other by itself: COPY_FROM. Else *reason
 * says why not, static text. */
bool copy_end_can_copy(struct copy_end *target, struct copy_end *source, const char **reason);

/* True when both are known to be the same bytes. */
bool copy_end_is_same(const struct copy_end *a, const struct copy_end *b);

/* True when the descriptor is of the same file. */
bool copy_end_is_open(const struct copy_end *end, int fd);

GMB_MUST_CHECK int copy_end_prepare(
	struct copy_end *end, uint64_t bytes, bool resumed, struct error *error);
void copy_end_submit(struct copy_end *end, struct copy_io *io);
void copy_end_cancel(struct copy_end *end);
GMB_MUST_CHECK int copy_end_finish(struct copy_end *end, uint64_t bytes, struct error *error);
void copy_end_forget(struct copy_end *end);

/* Frees it; NULL is a no-op. */
GMB_MUST_CHECK int copy_end_close(struct copy_end *end, struct error *error);

/* --- for the kinds ------------------------------------------------------------------------- */

/* The fields that all kinds have in common. */
GMB_MUST_CHECK int copy_end_init(struct copy_end *end, const struct copy_end_ops *ops,
	struct copy_loop *loop, const struct copy_end_options *options, struct error *error);
void copy_end_fini(struct copy_end *end);

/* The operation is over: calls done. */
void copy_io_end(struct copy_io *io, int result);
/* The same with "cannot read the source 'x' at OFFSET (LENGTH bytes): reason" as the failure. */
void copy_io_fail(struct copy_io *io, int code);

GMB_MUST_CHECK int copy_remote_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);
GMB_MUST_CHECK int copy_file_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);
GMB_MUST_CHECK int copy_stream_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);

/* --- the event loop ----------------------------------------------------------------------------
 */

/* Waits for the ring (local ends), the library's completion queue (remote ends), the signals that
 * ask to stop, and a tick for the progress bar. The ring polls the queue's descriptor, so that one
 * wait covers both; with two remote ends the loop waits for the queue directly. The loop owns ring
 * and queue: nothing may be in flight on them when it is destroyed. */
struct copy_loop {
	struct ring *ring;
	struct gmb_queue *queue; /* NULL: nothing is remote */
	bool local;		 /* something waits on the ring */
	uint64_t rate;		 /* bytes a second, set by who has made it; 0: no limit */
	uint64_t rate_due_ns;	 /* nothing begins before */
	int signal_fd;		 /* -1 until copy_loop_watch_signals(); belongs to the process */
	int stop_signal;	 /* the signal that asked to stop, 0: none yet */
	struct ring_op queue_op;
	struct ring_op signal_op;
	struct ring_op tick_op;
};

/* The longest wait of a turn. */
enum { COPY_TICK_MS = 200 };

/* remote, local: which kinds of ends there are. */
GMB_MUST_CHECK int copy_loop_create(
	struct copy_loop *loop, bool remote, bool local, struct error *error);
void copy_loop_destroy(struct copy_loop *loop);

/* From here on the first SIGINT, SIGTERM or SIGHUP sets stop_signal instead of ending the process;
 * the next one ends it as always. Once in a process. */
GMB_MUST_CHECK int copy_loop_watch_signals(struct copy_loop *loop, struct error *error);

/* Sends and submits, waits for a completion, a signal or the tick, and runs what completed. */
void copy_loop_turn(struct copy_loop *loop);

/* -EINTR with a sentence once a signal has asked to stop. */
GMB_MUST_CHECK int copy_loop_check(const struct copy_loop *loop, struct error *error);

uint64_t copy_loop_now_ns(const struct copy_loop *loop);
/* Whether the rate lets another piece begin now; else a later turn does. */
bool copy_loop_may_move(const struct copy_loop *loop);
/* So many bytes are about to be read. */
void copy_loop_moves(struct copy_loop *loop, uint64_t bytes);

/* --- buffers -----------------------------------------------------------------------------------
 */

/* A fixed number of equal buffers, in memory that the queue's servers reach (gmb_buffer_alloc()).
 * The buffer that was returned last is taken next, because the processor's caches still hold it. */
struct copy_pool {
	struct gmb_queue *queue;
	uint8_t *memory;
	uint8_t **free;
	uint32_t free_count;
	uint32_t count;
	size_t buffer_bytes;
};

/* queue: NULL when nothing is remote. buffer_bytes: a multiple of the page size. */
GMB_MUST_CHECK int copy_pool_create(struct copy_pool *pool, struct gmb_queue *queue, uint32_t count,
	size_t buffer_bytes, struct error *error);
/* Every buffer must have been returned. */
void copy_pool_destroy(struct copy_pool *pool);

/* NULL when all are in use. */
uint8_t *copy_pool_get(struct copy_pool *pool);
void copy_pool_put(struct copy_pool *pool, uint8_t *buffer);

/* --- the map of the source ---------------------------------------------------------------------
 */

/*
 * Where an end holds data and where it reads as zeroes, asked ahead of the copy. Answers are
 * aligned to a grain: data grows and zeroes shrink to its multiples. Zero runs shorter than
 * zero_min count as data, and so does everything of an end that cannot map.
 *
 *   extents of the end ──▶ pending zeroes ──▶ runs (bounded) ──▶ copy_map_peek()
 *
 * Borrows the end, which holds map->io while it is asked: the map must stay until
 * copy_map_is_idle(). An end that fails sets error, and peek returns it.
 */
enum { COPY_MAP_EXTENTS = 256, COPY_MAP_RUNS = 4 * COPY_MAP_EXTENTS };

struct copy_map_run {
	uint64_t end;
	bool zero;
};

struct copy_map {
	struct copy_end *end;
	uint64_t limit; /* bytes there are */
	uint64_t grain; /* a power of two */
	uint64_t zero_min;
	uint64_t asked;	   /* up to here the end has answered */
	uint64_t pending;  /* where zeroes begin that may go on after asked; asked: none */
	uint64_t runs_end; /* where the last run ends */
	uint32_t run_first;
	uint32_t run_count;
	bool no_map;		    /* data everywhere */
	const struct copy_bad *bad; /* or NULL: errors that it takes are data, which is read */
	struct error error;
	struct copy_io io;
	struct gmb_extent extents[COPY_MAP_EXTENTS];
	struct copy_map_run runs[COPY_MAP_RUNS];
};

/* From start on; start is a multiple of grain. */
void copy_map_init(struct copy_map *map, struct copy_end *end, uint64_t start, uint64_t limit,
	uint64_t grain, uint64_t zero_min);

/*
 * What is at offset, which never goes back: 1 with *length > 0 and *zero, 0 when the answer is
 * still to come, or a negative errno (map->error).
 */
GMB_MUST_CHECK int copy_map_peek(
	struct copy_map *map, uint64_t offset, uint64_t *length, bool *zero);

bool copy_map_is_idle(const struct copy_map *map);

/* --- the journal -------------------------------------------------------------------------------
 */

/*
 * A text file that says what is copied where, and up to which byte the target is durable. Every
 * line begins with the CRC-32C of its rest.
 *
 *   9f1c2a03 gmblock copy journal 1
 *   5e70b1d4 source KIND BYTES ID ID ID ID URI-CRC NAME
 *   0c6f2e11 target KIND BYTES ID ID ID ID URI-CRC NAME
 *   77ab90fe options ALLOCATE KNOWN-ZERO
 *   1d33c8a9 durable OFFSET                  appended, each after a flush of the target
 *
 * A torn last line (the machine crashed while it was written) is ignored. Anything else that does
 * not fit is refused: a wrong guess would corrupt the copy. The calls block; the file is locked
 * while the journal is open.
 */
struct copy_journal {
	char *path;
	int fd; /* -1: there is no journal */
	bool resumed;
	bool target_zero; /* the target was known to read as zeroes when the copy began */
	uint64_t durable; /* every byte of the target below it is */
	uint64_t length;  /* where the next line goes */
};

/*
 * Opens or creates the file and locks it. When it holds a journal, resumed is set, and it must
 * describe this copy: -EINVAL (damaged, or not a journal), -ESTALE (of another copy),
 * -EBUSY (another process has it). path NULL: there is none, and the calls do nothing.
 */
GMB_MUST_CHECK int copy_journal_open(struct copy_journal *journal, const char *path,
	const struct copy_end *source, const struct copy_end *target, bool allocate,
	struct error *error);

/* Writes the head of a new journal, once the target has been prepared and made durable. */
GMB_MUST_CHECK int copy_journal_begin(struct copy_journal *journal, const struct copy_end *source,
	const struct copy_end *target, bool allocate, struct error *error);

/* Records that every byte of the target below offset is durable. */
GMB_MUST_CHECK int copy_journal_record(
	struct copy_journal *journal, uint64_t offset, struct error *error);

/* The copy is complete: removes the file. */
GMB_MUST_CHECK int copy_journal_remove(struct copy_journal *journal, struct error *error);

/* Closes the file; an empty one is removed. */
void copy_journal_close(struct copy_journal *journal);

/* --- what cannot be read -----------------------------------------------------------------------
 */

/*
 * The ranges of the source that are lost, in order and apart from each other, and the file with the
 * map of them, in the format of GNU ddrescue:
 *
 *   0x00000000  0x00100000  +    copied
 *   0x00100000  0x00001000  -    not readable: zero in the target
 *   0x00101000  0x000FF000  ?    not tried: the copy ended before
 *
 * Borrows the path. Until copy_bad_open() all is zero, and then every error ends a copy.
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
	uint64_t bytes;	    /* of all ranges */
	uint64_t finished;  /* the target has everything below it, but the ranges */
	struct error first; /* why the first range cannot be read */
	bool is_written;
};

/* Creates the file, so that one that cannot be had is known before the copy: -EEXIST when there is
 * one that is not empty. path NULL: errors are not skipped. */
GMB_MUST_CHECK int copy_bad_open(struct copy_bad *bad, const char *path,
	const struct copy_end *source, const struct copy_end *target, struct error *error);

/* Whether it is an error to go on after: of the data, and not of the way to it. */
bool copy_bad_takes(const struct copy_bad *bad, int result);

/* A range that overlaps no other. -E2BIG: there are too many. */
GMB_MUST_CHECK int copy_bad_add(struct copy_bad *bad, uint64_t start, uint64_t end,
	const struct error *reason, struct error *error);

/* Writes the map of a source of that size, once, and makes it durable. */
GMB_MUST_CHECK int copy_bad_write(struct copy_bad *bad, uint64_t total, struct error *error);

/* Closes the file, and removes one that was not written. */
void copy_bad_close(struct copy_bad *bad);

/*
 * A piece whose read failed is read again, one small block after the other: those that fail become
 * zeroes in its buffer and a range of bad. The owner sets the first fields.
 */
struct copy_rescue;
/* error: one that ends the copy, or NULL. */
typedef void copy_rescue_fn(struct copy_rescue *rescue, const struct error *error);

struct copy_rescue {
	struct copy_bad *bad;
	const bool *stopping; /* ends it early, as if all were read */
	copy_rescue_fn *done;

	uint64_t read; /* bytes, without the bad ones */
	/* Private. */
	struct copy_end *source;
	struct copy_io io;
	uint64_t end;
	uint64_t bad_start;  /* of a range that is not over; UINT64_MAX: there is none */
	struct error reason; /* of that range */
};

/* failed: the read; its buffer is used again. */
void copy_rescue_begin(struct copy_rescue *rescue, const struct copy_io *failed);

/* --- the engine --------------------------------------------------------------------------------
 */

/* Walks over the source in ascending order, keeps many pieces in flight, and decides for each run
 * of zeroes whether it is skipped, zeroed or written. From time to time the target is flushed and
 * the journal records how far it is durable. Borrows everything in the options. The first error
 * stops the copy, after what is in flight has ended. */

struct copy_counters {
	uint64_t start;	   /* bytes that an earlier run had copied */
	uint64_t done;	   /* bytes of the copy that are dealt with, start included */
	uint64_t total;	   /* UINT64_MAX: not known yet */
	uint64_t read;	   /* bytes read from the source */
	uint64_t written;  /* bytes written to the target */
	uint64_t copied;   /* bytes that the server of both copied by itself */
	uint64_t zeroed;   /* bytes that the target was asked to zero */
	uint64_t skipped;  /* zeroes that the target held already */
	uint64_t compared; /* bytes that were verified */
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
	copy_tick_fn *tick; /* called now and then, for the progress bar */
	void *tick_context;
	uint32_t requests;	   /* pieces in flight, at most */
	bool adapts;		   /* fewer where the ends answer quickly */
	uint64_t request_bytes;	   /* a power of two */
	uint64_t sparse_bytes;	   /* zeroes are looked for in blocks of this; 0 = not at all */
	uint64_t checkpoint_bytes; /* flush and journal after so many bytes at the latest */
	bool allocate;		   /* the target gets every block, zeroes too */
	bool by_server; /* COPY_FROM, where that can be: it looks for no zeroes in data */
};

/* Copies everything from counters->start on and flushes the target: 0, -EINTR when a signal asked
 * to stop, or the first error. counters->done says how far it came. */
GMB_MUST_CHECK int copy_engine_run(const struct copy_engine_options *options, struct error *error);

/* Reads both ends from the beginning to counters->total and compares: 0, -EINTR, -EILSEQ with the
 * first difference in *error, or another error. */
GMB_MUST_CHECK int copy_verify_run(const struct copy_engine_options *options, struct error *error);

/* True when every one of the bytes is zero. */
bool copy_is_zero(const uint8_t *buffer, size_t bytes);

/* --- progress ----------------------------------------------------------------------------------
 */

/* The progress bar on standard error: how far, how fast, how long still. A terminal gets one line
 * that is rewritten, anything else one line per second. Borrows the counters. */
struct copy_progress {
	bool wanted;
	bool terminal;
	bool line_open; /* the terminal's cursor stands behind the bar */
	const struct copy_counters *counters;
	const uint64_t *now; /* which of the counters is shown */
	const char *verb;
	uint64_t shown_ns; /* when it was shown last; 0: never */
	uint64_t mark_ns;  /* rates are since the mark, which follows at a distance */
	uint64_t mark_bytes;
	double rate; /* bytes a second, smoothed */
};

enum copy_progress_mode { COPY_PROGRESS_AUTO, COPY_PROGRESS_ON, COPY_PROGRESS_OFF };

void copy_progress_init(struct copy_progress *progress, enum copy_progress_mode mode,
	const struct copy_counters *counters);

/* What is counted from here on: "copying", "verifying". */
void copy_progress_phase(
	struct copy_progress *progress, const char *verb, const uint64_t *counter, uint64_t now_ns);

/* Shows the bar if it is due. */
void copy_progress_tick(struct copy_progress *progress, uint64_t now_ns);

/* Removes the bar, before anything else is written to the terminal. */
void copy_progress_clear(struct copy_progress *progress);

/* "1:02:03" or "0:07". Returns out. */
enum { COPY_TIME_BYTES = 24 };
const char *copy_human_time(char out[COPY_TIME_BYTES], double seconds);

/* "12 MiB of 16 MiB"; in bytes where that would look like all of it and is not. Returns out. */
enum { COPY_SHARE_BYTES = 72 };
const char *copy_share(char out[COPY_SHARE_BYTES], uint64_t done, uint64_t total);

/* --- the report --------------------------------------------------------------------------------
 */

/* What "gmblock copy" prints at its end: sentences, or JSON with stable keys (gmblock-copy(1)). */

enum copy_outcome { COPY_COMPLETE, COPY_INCOMPLETE, COPY_FAILED, COPY_INTERRUPTED };

enum copy_target_state {
	COPY_TARGET_UNCHANGED,
	COPY_TARGET_PARTIAL,
	COPY_TARGET_WHOLE,   /* every byte was written; that it is durable is not known */
	COPY_TARGET_DIFFERS, /* verification found it to be wrong */
	COPY_TARGET_GAPS,    /* durable, with zeroes where the source cannot be read */
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
	const struct error *error; /* why it is not complete */
	double seconds;
	bool verified;
};

/* One sentence about the target and how to go on; for a complete copy how much and how fast. */
void copy_report_sentence(const struct copy_report *report, char *out, size_t out_bytes);

/* What could not be read: how much, where it begins, and why; "" for nothing. */
void copy_report_bad(const struct copy_report *report, char *out, size_t out_bytes);

GMB_MUST_CHECK int copy_report_json(const struct copy_report *report, struct error *error);
