// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/list.h"
#include "base/log.h"
#include "tools/copy.h"

/* Holes of the source below this size are read like data, because skipping a small hole costs more
 * requests than its bytes are worth. Their zeroes can still be detected in the data. */
#define SMALL_HOLE_BYTES (UINT64_C(64) << 10)
/* Upper bound on one request to zero, because some servers must write the zeroes before they
 * answer. */
#define ZERO_BYTES_MAX (UINT64_C(128) << 20)
#define CHECKPOINT_NS  (UINT64_C(5) * 1000000000)
/* Bytes of one request to copy within a server: a power of two. */
#define SERVER_COPY_BYTES (UINT64_C(64) << 20)

/* The number of pieces in flight adapts to the latency of the ends, so that the copy can reach
 * WINDOW_BYTES_PER_US. The latency is the shortest time of an answer, with empty queues. Few
 * pieces keep the buffers in the processor's caches (over TCP on loopback 4 to 6 pieces of 512 KiB
 * took a tenth to a sixth less time than 8, or than 16 of 256 KiB; over Unix sockets 6 to 8 were
 * best). Many pieces fill a connection with a long latency. */
enum { WINDOW_MIN = 4, WINDOW_BYTES_MIN = 3 << 20, WINDOW_SHORT = 16 };
#define WINDOW_BYTES_PER_US UINT64_C(2000)

enum task_state {
	TASK_FREE,
	TASK_READING,  /* waits for the source's bytes */
	TASK_RESCUING, /* reads the piece again in small blocks, to find the unreadable ones */
	TASK_TURN,     /* waits until all earlier pieces are written to a stream */
	TASK_WRITING,  /* waits for the target to write a run of data */
	TASK_ZEROING,  /* waits for the target to zero a run */
	TASK_COPYING,  /* waits for the server to copy the piece (COPY_FROM) */
	/* The rest of the piece is shorter than a block of the target: waits for the target's block
	 * to be read. */
	TASK_READ_EDGE,
	TASK_STATE_COUNT
};

/* A piece of the copy in flight. */
struct task {
	struct list_node node; /* in engine->tasks_free, or in engine->tasks, sorted by offset */
	struct engine *engine;
	enum task_state state;
	bool zero; /* the source reports only zeroes here, so the piece is not read */
	uint64_t offset;
	uint64_t length;
	uint64_t cursor;   /* bytes of the piece that the target has */
	uint64_t run;	   /* bytes of the operation in flight */
	uint64_t asked_ns; /* time at which the piece's read or write was submitted */
	uint8_t *buffer;
	struct copy_io io;
	struct copy_rescue rescue;
};

struct engine {
	const struct copy_engine_options *options;
	struct copy_end *source;
	struct copy_end *target;
	struct copy_counters *counters;
	struct list_node tasks_free;
	struct list_node tasks;
	struct task *all;
	uint64_t grain;	   /* pieces start at multiples of this size */
	uint64_t position; /* start of the next piece */
	uint64_t end;	   /* end of the copy; UINT64_MAX until the end of a stream */
	uint64_t torn;	   /* start of the first piece that was given up after an error */
	uint32_t active;   /* pieces in flight */
	uint32_t window;   /* limit of pieces in flight */
	uint64_t read_ns;  /* shortest time of an answer so far */
	uint64_t write_ns;
	bool reading; /* a stream is being read */
	/* Piece that the server copies, or NULL; other pieces wait while it is set. */
	struct task *copying;
	bool copies;	   /* the server copies the pieces (COPY_FROM) */
	bool begins_again; /* the copy must restart at position, which was moved back */
	bool cannot_zero;  /* the target does not support requests to zero */
	bool flush_failed; /* earlier writes may be lost, even if a later flush succeeds */
	bool stopping;
	struct error error;
	uint8_t *zeroes; /* request_bytes zero bytes */
	uint8_t *edge;	 /* one block of the target */

	struct copy_io flush;
	uint64_t flush_mark;	 /* offset below which the flush in flight makes data durable */
	uint64_t checkpoint_ns;	 /* time at which the last checkpoint started */
	uint64_t checkpoint_end; /* value of counters->done at which a checkpoint is due */
	struct copy_map map;
};

static void task_advance(struct task *task);

bool copy_is_zero(const uint8_t *buffer, size_t bytes)
{
	uint64_t first = 0;

	/* Data usually differs from zero in its first bytes. */
	memcpy(&first, buffer, MIN(bytes, sizeof(first)));
	return first == 0 && (bytes <= sizeof(first) || memcmp(buffer, buffer + sizeof(first),
								bytes - sizeof(first)) == 0);
}

/* Keeps the first error. Operations in flight complete on their own. */
static void engine_fail(struct engine *engine, const struct error *error)
{
	if (!engine->stopping) {
		engine->error = *error;
	}
	engine->stopping = true;
	copy_end_cancel(engine->source);
	copy_end_cancel(engine->target);
}

static uint64_t window_min(const struct copy_engine_options *options)
{
	uint64_t pieces = MAX(WINDOW_BYTES_MIN / options->request_bytes, (uint64_t)WINDOW_MIN);

	return MIN(pieces, (uint64_t)WINDOW_SHORT);
}

/* The shortest time of an answer is the latency of connection and disk. Longer answers have waited
 * in queues. */
static void window_learn(struct engine *engine, uint64_t asked_ns, uint64_t *quickest_ns)
{
	const struct copy_engine_options *options = engine->options;
	uint64_t passed = copy_loop_now_ns(options->loop) - asked_ns;
	uint64_t wanted;

	if (!options->adapts || passed >= *quickest_ns) {
		return;
	}
	*quickest_ns = passed;
	wanted = ((engine->read_ns == UINT64_MAX ? 0 : engine->read_ns) +
			 (engine->write_ns == UINT64_MAX ? 0 : engine->write_ns)) /
		 1000 * WINDOW_BYTES_PER_US / options->request_bytes;
	wanted = MAX(wanted, window_min(options));
	engine->window = (uint32_t)MIN(wanted, (uint64_t)options->requests);
}

/* --- tasks --------------------------------------------------------------------------------- */

static void task_set_state(struct task *task, enum task_state state)
{
	static const uint32_t edges[TASK_STATE_COUNT] = {
		[TASK_FREE] = BIT(TASK_READING) | BIT(TASK_TURN) | BIT(TASK_COPYING),
		[TASK_COPYING] = BIT(TASK_FREE),
		[TASK_READING] = BIT(TASK_TURN) | BIT(TASK_RESCUING) | BIT(TASK_FREE),
		[TASK_RESCUING] = BIT(TASK_TURN) | BIT(TASK_FREE),
		[TASK_TURN] = BIT(TASK_WRITING) | BIT(TASK_ZEROING) | BIT(TASK_READ_EDGE) |
			      BIT(TASK_FREE),
		[TASK_WRITING] = BIT(TASK_TURN) | BIT(TASK_FREE),
		[TASK_ZEROING] = BIT(TASK_TURN) | BIT(TASK_FREE),
		[TASK_READ_EDGE] = BIT(TASK_WRITING) | BIT(TASK_FREE),
	};

	GMB_ASSERT((edges[task->state] & BIT(state)) != 0);
	task->state = state;
}

static bool in_order(const struct engine *engine)
{
	return engine->target->kind == COPY_STREAM;
}

static void task_end(struct task *task)
{
	struct engine *engine = task->engine;

	if (task->cursor < task->length) {
		engine->torn = MIN(engine->torn, task->offset);
	}
	task_set_state(task, TASK_FREE);
	engine->active--;
	if (task->buffer != NULL) {
		copy_pool_put(engine->options->pool, task->buffer);
		task->buffer = NULL;
	}
	list_remove(&task->node);
	/* The last task is reused first, because it and its buffer are still in the caches. */
	list_push_front(&engine->tasks_free, &task->node);
}

static void task_fail(struct task *task, const struct copy_end *end)
{
	engine_fail(task->engine, &end->failure);
	task_end(task);
}

/* Returns the number of bytes from the cursor on that are uniformly data or zeroes. */
static uint64_t task_run(const struct task *task, uint64_t limit, bool *zero)
{
	const struct engine *engine = task->engine;
	uint64_t grain = MAX(engine->options->sparse_bytes, engine->grain);
	uint64_t at = task->cursor;
	bool first = true;

	*zero = task->zero;
	if (task->zero || engine->options->sparse_bytes == 0 || in_order(engine)) {
		return limit - at;
	}
	while (at < limit) {
		uint64_t next = MIN(align_up(task->offset + at + 1, grain) - task->offset, limit);
		bool is_zero = copy_is_zero(task->buffer + at, next - at);

		if (first) {
			*zero = is_zero;
		} else if (is_zero != *zero) {
			break;
		}
		first = false;
		at = next;
	}
	return at - task->cursor;
}

static void task_progress(struct task *task, uint64_t bytes)
{
	task->cursor += bytes;
	task->engine->counters->done += bytes;
	task->engine->counters->holes += task->zero ? bytes : 0;
}

/* Submits an operation of the task, at its cursor. */
static void task_submit(struct task *task, struct copy_end *end, enum copy_operation operation,
	uint64_t length, uint8_t *buffer, copy_done_fn *done)
{
	task->io.operation = operation;
	task->io.offset = task->offset + task->cursor;
	task->io.length = length;
	task->io.buffer = buffer;
	task->io.done = done;
	task->asked_ns = copy_loop_now_ns(task->engine->options->loop);
	copy_end_submit(end, &task->io);
}

static void copy_engine_written(struct copy_io *io)
{
	struct task *task = container_of(io, struct task, io);
	struct engine *engine = task->engine;

	if (io->result < 0) {
		task_fail(task, engine->target);
		return;
	}
	window_learn(engine, task->asked_ns, &engine->write_ns);
	engine->counters->written += task->run;
	task_progress(task, task->run);
	task_set_state(task, TASK_TURN);
	task_advance(task);
}

static void zeroed(struct copy_io *io)
{
	struct task *task = container_of(io, struct task, io);
	struct engine *engine = task->engine;

	if (io->result == -EOPNOTSUPP) {
		engine->cannot_zero = true; /* from now on zeroes are written as data */
	} else if (io->result < 0) {
		task_fail(task, engine->target);
		return;
	} else {
		engine->counters->zeroed += task->run;
		task_progress(task, task->run);
	}
	task_set_state(task, TASK_TURN);
	task_advance(task);
}

static void task_write(struct task *task, uint8_t *buffer, uint64_t bytes, uint64_t run)
{
	task->run = run;
	task_set_state(task, TASK_WRITING);
	task_submit(task, task->engine->target, COPY_WRITE, bytes, buffer, copy_engine_written);
}

static void task_zero(struct task *task, uint64_t run)
{
	task->run = run;
	task_set_state(task, TASK_ZEROING);
	task->io.allocate = task->engine->options->allocate;
	task_submit(task, task->engine->target, COPY_ZERO, run, NULL, zeroed);
}

/* Called when the target's block was read into engine->edge. Overwrites the beginning of the block
 * with the rest of the piece, and writes the block. */
static void edge_read(struct copy_io *io)
{
	struct task *task = container_of(io, struct task, io);
	struct engine *engine = task->engine;
	uint64_t part = task->length - task->cursor;

	if (io->result < 0) {
		task_fail(task, engine->target);
		return;
	}
	memcpy(engine->edge, task->buffer + task->cursor, part);
	task_write(task, engine->edge, engine->target->block_min, part);
}

static void task_edge(struct task *task)
{
	struct engine *engine = task->engine;

	GMB_ASSERT(!task->zero);
	task_set_state(task, TASK_READ_EDGE);
	task_submit(task, engine->target, COPY_READ, engine->target->block_min, engine->edge,
		edge_read);
}

/* Returns true when the rest of the task is shorter than a block of the target, which accepts only
 * whole blocks. */
static bool is_edge(const struct task *task)
{
	const struct copy_end *target = task->engine->target;
	uint64_t start = task->offset + task->cursor;

	return target->size_known && task->length - task->cursor < target->block_min &&
	       target->block_min <= target->bytes - start;
}

/* Continues a task whose bytes were read: sends the next run to the target, unless the target
 * already has it. */
static void task_advance(struct task *task)
{
	struct engine *engine = task->engine;
	uint64_t block = engine->target->block_min;

	while (task->cursor < task->length && !engine->stopping) {
		uint64_t whole = align_down(task->length, block);
		bool zero;
		uint64_t run;

		if (in_order(engine) && list_first(&engine->tasks) != &task->node) {
			return; /* the copy continues in take_turns() */
		}
		if (is_edge(task)) {
			task_edge(task);
			return;
		}
		/* If the last block is not complete, it is written separately. */
		run = task_run(task, task->cursor < whole ? whole : task->length, &zero);
		if (zero && engine->target->known_zero && !engine->options->allocate) {
			engine->counters->skipped += run;
			task_progress(task, run);
			continue;
		}
		if (zero && engine->target->can_zero && !engine->cannot_zero) {
			task_zero(task, run);
			return;
		}
		if (task->zero) {
			run = MIN(run, engine->options->request_bytes);
			task_write(task, engine->zeroes, run, run);
		} else {
			task_write(task, task->buffer + task->cursor, run, run);
		}
		return;
	}
	task_end(task);
}

static void take_turns(struct engine *engine)
{
	struct list_node *first;

	if (!in_order(engine)) {
		return;
	}
	while ((first = list_first(&engine->tasks)) != NULL &&
		list_entry(first, struct task, node)->state == TASK_TURN) {
		task_advance(list_entry(first, struct task, node));
	}
}

static void source_rescued(struct copy_rescue *rescue, const struct error *error)
{
	struct task *task = container_of(rescue, struct task, rescue);

	if (error != NULL) {
		engine_fail(task->engine, error);
	}
	task->engine->counters->read += rescue->read;
	task_set_state(task, TASK_TURN);
	task_advance(task);
}

static void source_read(struct copy_io *io)
{
	struct task *task = container_of(io, struct task, io);
	struct engine *engine = task->engine;

	engine->reading = false;
	if (copy_bad_takes(engine->options->bad, io->result) && !engine->stopping) {
		task_set_state(task, TASK_RESCUING);
		copy_rescue_begin(&task->rescue, io);
		return;
	}
	if (io->result < 0) {
		task_fail(task, engine->source);
		return;
	}
	window_learn(engine, task->asked_ns, &engine->read_ns);
	engine->counters->read += io->moved;
	if (io->moved < task->length) { /* end of the stream */
		task->length = io->moved;
		engine->end = task->offset + task->length;
		engine->position = engine->end;
		engine->counters->total = engine->end;
	}
	if (engine->target->size_known && !engine->stopping &&
		!range_inside(task->offset, task->length, engine->target->bytes)) {
		struct error error;

		error_set(&error, -ENOSPC,
			"the target %s is too small: it has %llu bytes, and %s has more",
			engine->target->name, (unsigned long long)engine->target->bytes,
			engine->source->name);
		engine_fail(engine, &error);
	}
	task_set_state(task, TASK_TURN);
	task_advance(task);
}

/* --- copies that the server makes ------------------------------------------------------------- */

/* Returns whether the error means that the server cannot copy, at the moment or in general. Then
 * the copy continues by reading and writing, which works or reports the actual error. */
static bool copy_engine_is_refused(int result)
{
	return result == -EOPNOTSUPP || result == -EXDEV || result == -ENOENT ||
	       result == -ESTALE || result == -EPERM;
}

static void server_copied(struct copy_io *io)
{
	struct task *task = container_of(io, struct task, io);
	struct engine *engine = task->engine;

	engine->copying = NULL;
	if (io->result == 0) {
		engine->counters->copied += task->length;
		task_progress(task, task->length);
		task_end(task);
	} else if (copy_engine_is_refused(io->result) && !engine->stopping) {
		log_info("the server can no longer copy the data itself: %s",
			engine->target->failure.text);
		engine->copies = false;
		engine->begins_again = true;
		engine->position = task->offset;
		task->length = 0; /* the server has copied the whole task */
		task_end(task);
	} else {
		task_fail(task, engine->target);
	}
}

static void task_copy(struct task *task)
{
	struct engine *engine = task->engine;

	engine->copying = task;
	task_set_state(task, TASK_COPYING);
	task->io.source = engine->source;
	task_submit(task, engine->target, COPY_FROM, task->length, NULL, server_copied);
}

/* --- the plan ------------------------------------------------------------------------------ */

struct piece {
	uint64_t length;
	bool zero;
};

/* Determines the piece that starts at engine->position. Returns 1, or 0 if no piece can start now:
 * at the end, while a stream is being read, or until the source has reported its extents there. */
static int copy_engine_piece_next(struct engine *engine, struct piece *piece)
{
	const struct copy_engine_options *options = engine->options;
	uint64_t request = options->request_bytes;
	uint64_t block = engine->target->block_min;
	int known;

	if (engine->position >= engine->end) {
		return 0;
	}
	if (engine->source->kind == COPY_STREAM) {
		*piece = (struct piece){ .length = request };
		return !engine->reading;
	}
	known = copy_map_peek(&engine->map, engine->position, &piece->length, &piece->zero);
	if (known <= 0) {
		if (known < 0) {
			engine_fail(engine, &engine->map.error);
		}
		return 0;
	}
	if (piece->zero && engine->end - engine->position == piece->length) {
		/* If the last block is not complete, it is copied as data. */
		uint64_t whole = align_down(engine->end, block);

		if (whole > engine->position) {
			piece->length = whole - engine->position;
		} else if (whole != engine->end) {
			piece->zero = false;
		}
	}
	if (!piece->zero) {
		request = engine->copies && engine->options->loop->rate == 0 ? SERVER_COPY_BYTES
									     : request;
		piece->length = MIN(piece->length, request - (engine->position & (request - 1)));
	} else if (!engine->target->known_zero || options->allocate) {
		piece->length = MIN(piece->length, ZERO_BYTES_MAX);
	}
	return 1;
}

static bool task_start(struct engine *engine, const struct piece *piece)
{
	struct task *task = list_entry(list_first(&engine->tasks_free), struct task, node);

	task->buffer = NULL;
	if (!piece->zero && !engine->copies) {
		task->buffer = copy_pool_get(engine->options->pool);
		if (task->buffer == NULL) {
			return false;
		}
	}
	list_remove(&task->node);
	list_push_back(&engine->tasks, &task->node);
	engine->active++;
	task->zero = piece->zero;
	task->offset = engine->position;
	task->length = piece->length;
	task->cursor = 0;
	engine->position += piece->length;
	if (piece->zero) {
		task_set_state(task, TASK_TURN);
		task_advance(task);
		return true;
	}
	if (engine->copies) {
		task_copy(task);
		return true;
	}
	task_set_state(task, TASK_READING);
	engine->reading = engine->source->kind == COPY_STREAM;
	task_submit(task, engine->source, COPY_READ, task->length, task->buffer, source_read);
	return true;
}

static void map_begin(struct engine *engine)
{
	copy_map_init(&engine->map, engine->source, engine->position, engine->end, engine->grain,
		MAX(engine->grain, SMALL_HOLE_BYTES));
	engine->map.bad = engine->options->bad;
}

static void engine_fill(struct engine *engine)
{
	struct piece piece;

	if (engine->begins_again) {
		/* The map cannot be started again while a query is in flight. */
		if (!copy_map_is_idle(&engine->map)) {
			return;
		}
		map_begin(engine);
		engine->begins_again = false;
	}
	while (!engine->stopping && engine->copying == NULL && engine->active < engine->window &&
		copy_loop_may_move(engine->options->loop) &&
		copy_engine_piece_next(engine, &piece) > 0) {
		if (piece.zero && engine->target->known_zero && !engine->options->allocate &&
			!in_order(engine)) {
			engine->counters->skipped += piece.length;
			engine->counters->done += piece.length;
			engine->counters->holes += piece.length;
			engine->position += piece.length;
			continue;
		}
		if (!task_start(engine, &piece)) {
			return;
		}
		copy_loop_moves(engine->options->loop, piece.zero ? 0 : piece.length);
	}
}

/* --- checkpoints --------------------------------------------------------------------------- */

/* Returns the offset below which the target has every byte of the copy. */
static uint64_t low_water(const struct engine *engine)
{
	struct list_node *first = list_first(&engine->tasks);
	uint64_t mark = MIN(engine->position, engine->torn);

	return first != NULL ? MIN(mark, list_entry(first, struct task, node)->offset) : mark;
}

static void checkpoint_flushed(struct copy_io *io)
{
	struct engine *engine = container_of(io, struct engine, flush);
	struct error error;

	if (io->result < 0) {
		engine->flush_failed = true;
		(void)!copy_end_failure(engine->target, &error);
		engine_fail(engine, &error);
		return;
	}
	if (engine->options->journal->fd >= 0 &&
		copy_journal_record(engine->options->journal, engine->flush_mark, &error) < 0) {
		engine_fail(engine, &error);
	}
}

/* Starts to flush the target, which has all bytes below the offset mark. When these are durable,
 * the journal, if there is one, records mark. */
static void copy_engine_flush_start(struct engine *engine, uint64_t mark)
{
	engine->flush_mark = mark;
	engine->flush.operation = COPY_FLUSH;
	engine->flush.done = checkpoint_flushed;
	copy_end_submit(engine->target, &engine->flush);
}

static void checkpoint(struct engine *engine)
{
	const struct copy_journal *journal = engine->options->journal;
	uint64_t mark = low_water(engine);

	/* After a failed flush the data may be lost, but the next flush would report success, so
	 * recording stops. */
	if (journal->fd < 0 || engine->flush.in_flight || engine->flush_failed ||
		mark <= journal->durable) {
		return;
	}
	engine->checkpoint_ns = copy_loop_now_ns(engine->options->loop);
	engine->checkpoint_end = engine->counters->done + engine->options->checkpoint_bytes;
	copy_engine_flush_start(engine, mark);
}

static void checkpoint_when_due(struct engine *engine)
{
	if (engine->options->journal->fd < 0 || engine->stopping) {
		return;
	}
	if (engine->counters->done >= engine->checkpoint_end ||
		copy_loop_now_ns(engine->options->loop) - engine->checkpoint_ns >= CHECKPOINT_NS) {
		checkpoint(engine);
	}
}

/* --- the run ------------------------------------------------------------------------------- */

static bool copy_engine_is_busy(const struct engine *engine)
{
	return !list_is_empty(&engine->tasks) || !copy_map_is_idle(&engine->map) ||
	       engine->flush.in_flight;
}

static void look_around(struct engine *engine)
{
	struct copy_end *const ends[] = { engine->source, engine->target };
	struct error error;

	engine->options->tick(engine->options->tick_context);
	if (copy_loop_check(engine->options->loop, &error) < 0 && !engine->stopping) {
		log_info("stopping the copy as soon as the requests in flight are complete; a "
			 "second signal ends the copy immediately");
		engine_fail(engine, &error);
	}
	for (size_t i = 0; i < ARRAY_COUNT(ends); i++) {
		if (ends[i]->shrunk && !engine->stopping) {
			error_set(&error, -ESTALE, "%s %s shrank during the copy", ends[i]->role,
				ends[i]->name);
			engine_fail(engine, &error);
		}
	}
}

/* Runs until everything is complete, or until it has stopped and all operations have ended. */
static void engine_loop(struct engine *engine)
{
	for (;;) {
		look_around(engine);
		engine_fill(engine);
		take_turns(engine);
		checkpoint_when_due(engine);
		if (!copy_engine_is_busy(engine) &&
			(engine->stopping || engine->position >= engine->end)) {
			return;
		}
		copy_loop_turn(engine->options->loop);
	}
}

/* Flushes at the end, so that what the target has received becomes durable. */
static void engine_flush(struct engine *engine)
{
	if (!engine->target->can_flush) {
		return;
	}
	if (engine->options->journal->fd >= 0 && engine->stopping) {
		/* A checkpoint is made also after an error, so that the next run can continue from
		 * here. */
		checkpoint(engine);
	} else if (!engine->stopping) {
		copy_engine_flush_start(engine, engine->end);
	}
	while (engine->flush.in_flight) {
		engine->options->tick(engine->options->tick_context);
		copy_loop_turn(engine->options->loop);
	}
}

static int engine_init(
	struct engine *engine, const struct copy_engine_options *options, struct error *error)
{
	const char *reason;
	uint64_t edge_bytes = MAX((uint64_t)options->target->block_min, UINT64_C(4096));

	engine->options = options;
	engine->source = options->source;
	engine->target = options->target;
	engine->counters = options->counters;
	engine->grain = MAX(options->source->block_min, options->target->block_min);
	engine->position = options->counters->start;
	engine->end = options->counters->total;
	engine->torn = UINT64_MAX;
	engine->read_ns = UINT64_MAX;
	engine->write_ns = UINT64_MAX;
	engine->window = options->adapts ? MIN((uint32_t)window_min(options), options->requests)
					 : options->requests;
	engine->checkpoint_ns = copy_loop_now_ns(options->loop);
	engine->checkpoint_end = options->counters->done + options->checkpoint_bytes;
	list_init(&engine->tasks);
	list_init(&engine->tasks_free);
	engine->all = calloc(options->requests, sizeof(*engine->all));
	engine->zeroes = calloc(1, options->request_bytes);
	engine->edge = aligned_alloc(4096, edge_bytes);
	if (engine->all == NULL || engine->zeroes == NULL || engine->edge == NULL) {
		return error_oom(error);
	}
	for (uint32_t i = 0; i < options->requests; i++) {
		engine->all[i].engine = engine;
		engine->all[i].rescue.bad = options->bad;
		engine->all[i].rescue.stopping = &engine->stopping;
		engine->all[i].rescue.done = source_rescued;
		list_push_back(&engine->tasks_free, &engine->all[i].node);
	}
	map_begin(engine);
	engine->copies = copy_end_can_copy(options->target, options->source, &reason);
	if (!options->by_server) {
		engine->copies = false;
		reason = "the options require a search for zeroes, the allocation of every block, "
			 "or the skipping of errors";
	}
	log_debug("%s%s",
		engine->copies ? "the server copies the data itself"
			       : "the server does not copy the data itself: ",
		engine->copies ? "" : reason);
	return 0;
}

int copy_engine_run(const struct copy_engine_options *options, struct error *error)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	int err;

	if (engine == NULL) {
		return error_oom(error);
	}
	err = engine_init(engine, options, error);
	if (err == 0) {
		engine_loop(engine);
		if (!engine->stopping) {
			err = copy_end_finish(engine->target, engine->end, &engine->error);
			engine->stopping = err < 0;
		}
		engine_flush(engine);
		/* After a failed flush, no part of the target is known to be durable. */
		options->bad->finished = engine->flush_failed ? 0 : low_water(engine);
		if (engine->stopping) {
			*error = engine->error;
			err = error->code;
		}
	}
	free(engine->edge);
	free(engine->zeroes);
	free(engine->all);
	free(engine);
	return err;
}

/* Allocates the memory of the pool. Returns NULL if there is none. */
static void *pool_memory(struct gmb_queue *queue, size_t bytes)
{
	void *memory;

	if (queue != NULL) {
		return gmb_buffer_alloc(queue, bytes, GMB_BUFFER_HUGE, &memory, NULL) == 0 ? memory
											   : NULL;
	}
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		return NULL;
	}
	/* reduces page faults where huge pages are supported */
	(void)madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

static void pool_memory_free(struct copy_pool *pool)
{
	if (pool->memory == NULL) {
		return;
	}
	if (pool->queue != NULL) {
		gmb_buffer_free(pool->queue, pool->memory);
	} else {
		munmap(pool->memory, pool->count * pool->buffer_bytes);
	}
	pool->memory = NULL;
}

int copy_pool_create(struct copy_pool *pool, struct gmb_queue *queue, uint32_t count,
	size_t buffer_bytes, struct error *error)
{
	memset(pool, 0, sizeof(*pool));
	pool->queue = queue;
	pool->count = count;
	pool->buffer_bytes = buffer_bytes;
	pool->free = calloc(count, sizeof(*pool->free));
	pool->memory = pool_memory(queue, count * buffer_bytes);
	if (pool->free == NULL || pool->memory == NULL) {
		pool_memory_free(pool);
		free(pool->free);
		pool->free = NULL;
		return error_set(error, -ENOMEM,
			"out of memory for %u buffers of %zu bytes; reduce --requests or "
			"--request-size",
			count, buffer_bytes);
	}
	for (uint32_t i = 0; i < count; i++) {
		copy_pool_put(pool, pool->memory + (count - 1 - i) * buffer_bytes);
	}
	return 0;
}

void copy_pool_destroy(struct copy_pool *pool)
{
	if (pool->memory == NULL) {
		return;
	}
	GMB_ASSERT(pool->free_count == pool->count);
	pool_memory_free(pool);
	free(pool->free);
	pool->free = NULL;
}

uint8_t *copy_pool_get(struct copy_pool *pool)
{
	return pool->free_count > 0 ? pool->free[--pool->free_count] : NULL;
}

void copy_pool_put(struct copy_pool *pool, uint8_t *buffer)
{
	GMB_ASSERT(pool->free_count < pool->count);
	pool->free[pool->free_count++] = buffer;
}
