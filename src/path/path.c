// SPDX-License-Identifier: Apache-2.0
#include "path/path.h"

#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"

enum {
	STREAMS_MIN = 64,
	/* Parts end on this boundary of the export, so that only the first and the last part of a
	 * request can be unaligned. */
	PART_ALIGN = 4096,
};

struct path {
	struct ring *ring;
	struct arena *arena;
	uint32_t piece_bytes;
	struct path_stream *streams; /* pool for all but each request's first */
	struct list_node streams_free;
	struct list_node stalled; /* requests that wait for memory, first come first served */
	bool released;		  /* memory or a stream came back since the last path_serve() */
};

int path_create(const struct path_options *options, struct path **path_out, struct error *error)
{
	struct path *path = calloc(1, sizeof(*path));
	struct arena_info info;
	uint64_t stream_count;

	if (path == NULL) {
		return error_set(error, -ENOMEM, "out of memory for a data path");
	}
	path->ring = options->ring;
	path->arena = options->arena;
	path->piece_bytes =
		options->piece_bytes != 0 ? options->piece_bytes : PATH_PIECE_BYTES_DEFAULT;
	GMB_ASSERT(is_power_of_two(path->piece_bytes));
	GMB_ASSERT(path->piece_bytes >= PART_ALIGN && path->piece_bytes <= ARENA_BLOCK_BYTES_MAX);
	list_init(&path->streams_free);
	list_init(&path->stalled);
	arena_info(options->arena, &info);
	stream_count = MAX(info.limit_bytes / path->piece_bytes, (uint64_t)STREAMS_MIN);
	path->streams = calloc(stream_count, sizeof(*path->streams));
	if (path->streams == NULL) {
		free(path);
		return error_set(error, -ENOMEM, "out of memory for a data path's streams");
	}
	for (uint64_t i = 0; i < stream_count; i++) {
		list_push_back(&path->streams_free, &path->streams[i].node);
	}
	*path_out = path;
	return 0;
}

void path_destroy(struct path *path)
{
	if (path == NULL) {
		return;
	}
	GMB_ASSERT(list_is_empty(&path->stalled));
	free(path->streams);
	free(path);
}

uint32_t path_piece_bytes(
	const struct path *path, const struct path_export *export, enum store_op op)
{
	const struct store_info *info = store_info(export->store);
	bool direct = op == STORE_READ ? info->read_direct : info->write_direct;
	uint32_t bytes = direct ? path->piece_bytes
				: path->piece_bytes * (uint32_t)PATH_PIECES_PER_CACHED_PIECE;

	return MIN(bytes, (uint32_t)ARENA_BLOCK_BYTES_MAX);
}

bool path_is_short(const struct path *path)
{
	return !list_is_empty(&path->stalled);
}

/* --- states -------------------------------------------------------------------------------- */

static void set_state(struct path_request *request, enum path_state state)
{
	GMB_ASSERT(state > request->state || state == PATH_STATE_INIT);
	request->state = state;
	/* The first two edges belong to the batch in which the request was taken. */
	request->edge_ns[state] = state <= PATH_STATE_READ ? ring_batch_ns(request->path->ring)
							   : ring_now_ns(request->path->ring);
}

static void account(struct path_request *request)
{
	struct path_stats **stats = &request->export->stats[request->op];

	if (*stats == NULL) {
		*stats = calloc(PATH_SIZE_CLASS_COUNT, sizeof(**stats));
		if (*stats == NULL) {
			return; /* not counted; the next one tries again */
		}
	}
	path_stats_add(*stats + path_size_class(request->length), request->edge_ns, request->length,
		request->error != 0);
}

void path_export_fini(struct path_export *path_export)
{
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		free(path_export->stats[op]);
		path_export->stats[op] = NULL;
	}
}

enum path_status path_status(const struct path_request *request)
{
	if (request->error != 0) {
		return request->parts_inflight == 0 ? PATH_ABORTED : PATH_PENDING;
	}
	if (request->parts_inflight == 0 && request->started_bytes == request->length &&
		request->stored_bytes == request->length && request->first_used) {
		return PATH_COMMITTED;
	}
	return PATH_PENDING;
}

bool path_is_idle(const struct path_request *request)
{
	return request->parts_inflight == 0 &&
	       request->streams_live == (request->extents != NULL ? 1U : 0U);
}

bool path_is_stalled(const struct path_request *request)
{
	return list_is_linked(&request->stalled_node);
}

/* --- streams ------------------------------------------------------------------------------- */

static struct path_stream *stream_get(struct path *path, struct path_request *request)
{
	struct path_stream *stream;

	if (!request->first_used) {
		request->first_used = true;
		stream = &request->first;
	} else {
		struct list_node *node = list_pop_front(&path->streams_free);

		if (node == NULL) {
			return NULL;
		}
		stream = list_entry(node, struct path_stream, node);
	}
	list_init(&stream->node);
	stream->request = request;
	stream->valid = 0;
	stream->sent = 0;
	stream->done = 0;
	stream->buf.data = NULL;
	stream->buf.buf_idx = -1;
	request->streams_live++;
	return stream;
}

static void stream_put(struct path_stream *stream)
{
	struct path_request *request = stream->request;
	struct path *path = request->path;

	GMB_ASSERT(request->streams_live > 0);
	if (stream->buf.data != NULL) {
		arena_put(path->arena, &stream->buf);
	}
	list_remove(&stream->node);
	request->streams_live--;
	if (stream != &request->first) {
		list_push_front(&path->streams_free, &stream->node);
	}
	path->released = true;
}

/* Releases valid data that nobody will send. */
static void drop_ready(struct path_request *request)
{
	list_for_each(node, &request->ready)
	{
		struct path_stream *stream = list_entry(node, struct path_stream, node);

		list_remove(node);
		if (stream->done == stream->sent) {
			stream_put(stream);
		} else { /* the rest is with the session: path_fragment_sent() ends it */
			stream->length = stream->sent;
			stream->valid = stream->sent;
		}
	}
}

/* A new stream for the next piece of the request, with memory; NULL when either is short. */
static struct path_stream *piece_open(struct path *path, struct path_request *request)
{
	uint64_t offset = request->offset + request->started_bytes;
	uint64_t left = request->length - request->started_bytes;
	uint64_t bytes = path_piece_bytes(path, request->export, request->op);
	struct path_stream *stream;
	struct arena_buf buf;

	if (left > bytes) {
		bytes = align_down(offset + bytes, PART_ALIGN) - offset;
	} else {
		bytes = left;
	}
	if (arena_get(path->arena, (uint32_t)bytes, &buf) < 0) {
		return NULL;
	}
	stream = stream_get(path, request);
	if (stream == NULL) {
		arena_put(path->arena, &buf);
		return NULL;
	}
	stream->buf = buf;
	stream->data = buf.data;
	stream->offset = offset;
	stream->length = (uint32_t)bytes;
	request->started_bytes += bytes;
	return stream;
}

static void stall(struct path *path, struct path_request *request)
{
	if (!list_is_linked(&request->stalled_node)) {
		list_push_back(&path->stalled, &request->stalled_node);
	}
}

/* A newcomer must not overtake those who wait. Who waits may take back what its own fragments gave
 * up, wherever it is in the queue: replies that wait behind a long one that has begun would else
 * take all its memory, and neither could go on. */
static bool must_queue(const struct path *path, const struct path_request *request)
{
	return !list_is_empty(&path->stalled) && !list_is_linked(&request->stalled_node);
}

/* --- parts --------------------------------------------------------------------------------- */

static void pump_read(struct path_request *request);

/* The first error decides the request; nothing more of it is started or sent. */
static void fail(struct path_request *request, int error, uint64_t offset)
{
	if (request->error == 0) {
		request->error = error;
		request->error_offset = offset;
	}
	list_remove(&request->stalled_node);
	drop_ready(request);
}

static void ready_insert(struct path_request *request, struct path_stream *stream)
{
	struct list_node *position = &request->ready;

	if (request->ascending) {
		while (position->prev != &request->ready &&
			list_entry(position->prev, struct path_stream, node)->offset >
				stream->offset) {
			position = position->prev;
		}
	}
	list_insert_before(position, &stream->node);
}

static void part_done(struct store_part *part, int result)
{
	struct path_stream *stream = container_of(part, struct path_stream, part);
	struct path_request *request = stream->request;

	GMB_ASSERT(request->parts_inflight > 0);
	request->parts_inflight--;
	request->stored_bytes += part->length;
	if (result < 0) {
		fail(request, result, part->offset);
	}
	if (request->op == STORE_READ && request->error == 0 && !request->abandoned) {
		stream->valid = stream->length;
		ready_insert(request, stream);
		if (request->state < PATH_STATE_SEND_INIT) {
			set_state(request, PATH_STATE_SEND_INIT);
		}
	} else if (request->op == STORE_EXTENTS && request->error == 0) {
		request->extents = (struct store_extent *)(void *)stream->data;
		request->extent_count = part->extent_count;
	} else {
		stream_put(stream);
	}
	if (path_status(request) != PATH_PENDING) {
		set_state(request, PATH_STATE_SEND);
	} else if (request->op == STORE_READ && request->error == 0 && !request->abandoned) {
		pump_read(request);
	}
	request->progress(request);
}

static void part_submit(struct path_stream *stream, enum store_op op, uint64_t length)
{
	struct path_request *request = stream->request;
	struct store_part *part = &stream->part;

	part->op = op;
	part->flags = request->flags;
	part->offset = stream->offset;
	part->length = length;
	part->data = stream->data;
	part->buf_idx = stream->buf.buf_idx;
	part->done = part_done;
	part->extents = op == STORE_EXTENTS ? (struct store_extent *)(void *)stream->data : NULL;
	part->extent_max = op == STORE_EXTENTS ? request->extent_max : 0;
	part->extent_count = 0;
	if (request->state == PATH_STATE_INIT) {
		set_state(request, PATH_STATE_READ);
	}
	request->parts_inflight++;
	store_submit(request->export->queue, part);
}

/* Starts as many parts as the window and the memory allow. */
static void pump_read(struct path_request *request)
{
	struct path *path = request->path;
	/* Neighbours handed over together are merged by the block layer into one command that
	 * completes as a whole: nothing could be sent before all of it is there. */
	bool split = request->length > path->piece_bytes &&
		     store_info(request->export->store)->read_direct;

	while (request->started_bytes < request->length &&
		request->streams_live < request->window) {
		struct path_stream *stream =
			must_queue(path, request) ? NULL : piece_open(path, request);

		if (stream == NULL) {
			stall(path, request);
			return;
		}
		part_submit(stream, STORE_READ, stream->length);
		if (split) {
			ring_flush(path->ring);
		}
	}
	list_remove(&request->stalled_node);
}

static void start_extents(struct path_request *request)
{
	struct path *path = request->path;
	struct path_stream *stream;
	struct arena_buf buf;

	GMB_ASSERT(request->extent_max > 0 && request->extent_max <= PATH_EXTENTS_MAX);
	if (must_queue(path, request) ||
		arena_get(path->arena, request->extent_max * (uint32_t)sizeof(struct store_extent),
			&buf) < 0) {
		stall(path, request);
		return;
	}
	list_remove(&request->stalled_node);
	stream = stream_get(path, request); /* the first: always there */
	stream->buf = buf;
	stream->data = buf.data;
	stream->offset = request->offset;
	stream->length = 0;
	request->started_bytes = request->length;
	part_submit(stream, STORE_EXTENTS, request->length);
}

/* One part without payload: flush, trim, zero, cache hint. */
static void start_plain(struct path_request *request)
{
	struct path_stream *stream = stream_get(request->path, request);

	stream->data = NULL;
	stream->offset = request->offset;
	stream->length = 0;
	request->started_bytes = request->length;
	part_submit(stream, request->op, request->length);
}

void path_start(struct path *path, struct path_request *request)
{
	GMB_ASSERT(request->progress != NULL && request->export != NULL);
	request->path = path;
	request->error = 0;
	request->error_offset = 0;
	request->extents = NULL;
	request->extent_count = 0;
	request->started_bytes = 0;
	request->stored_bytes = 0;
	request->handed_bytes = 0;
	request->parts_inflight = 0;
	request->streams_live = 0;
	request->abandoned = false;
	request->first_used = false;
	for (int i = 0; i < PATH_STATE_COUNT; i++) {
		request->edge_ns[i] = 0;
	}
	list_init(&request->ready);
	list_init(&request->stalled_node);
	set_state(request, PATH_STATE_INIT);
	switch (request->op) {
	case STORE_READ:
		GMB_ASSERT(request->length > 0);
		GMB_ASSERT(request->window > 0 && request->window <= PATH_WINDOW_MAX);
		pump_read(request);
		break;
	case STORE_WRITE:
		GMB_ASSERT(request->length > 0);
		GMB_ASSERT(request->window > 0 && request->window <= PATH_WINDOW_MAX);
		break;
	case STORE_EXTENTS:
		start_extents(request);
		break;
	case STORE_FLUSH:
	case STORE_TRIM:
	case STORE_ZERO:
	case STORE_CACHE:
		start_plain(request);
		break;
	case STORE_OP_COUNT:
	default:
		GMB_ASSERT(false);
	}
}

void path_memory_released(struct path *path)
{
	path->released = true;
}

void path_serve(struct path *path)
{
	struct list_node *node;

	if (!path->released) {
		return;
	}
	path->released = false;
	while ((node = list_first(&path->stalled)) != NULL) {
		struct path_request *request = list_entry(node, struct path_request, stalled_node);

		if (request->op == STORE_READ) {
			pump_read(request);
		} else if (request->op == STORE_EXTENTS) {
			start_extents(request);
		} else { /* a write: the session asks again, and is the first in the queue */
			request->progress(request);
		}
		if (list_first(&path->stalled) == node) { /* still short */
			return;
		}
	}
}

/* --- fragments of a read ------------------------------------------------------------------- */

bool path_next_fragment(
	struct path_request *request, uint32_t max_bytes, struct path_fragment *fragment)
{
	struct list_node *node = list_first(&request->ready);
	struct path_stream *stream;
	uint32_t length;

	if (node == NULL || request->error != 0) {
		return false;
	}
	stream = list_entry(node, struct path_stream, node);
	if (request->ascending &&
		stream->offset + stream->sent != request->offset + request->handed_bytes) {
		return false;
	}
	length = MIN(stream->valid - stream->sent, max_bytes);
	GMB_ASSERT(length > 0);
	fragment->stream = stream;
	fragment->data = stream->data + stream->sent;
	fragment->offset = stream->offset + stream->sent;
	fragment->length = length;
	stream->sent += length;
	request->handed_bytes += length;
	fragment->last = request->handed_bytes == request->length;
	if (stream->sent == stream->valid) {
		list_remove(node);
	}
	return true;
}

void path_fragment_sent(const struct path_fragment *fragment)
{
	struct path_stream *stream = fragment->stream;
	struct path_request *request = stream->request;

	stream->done += fragment->length;
	GMB_ASSERT(stream->done <= stream->sent);
	if (stream->done < stream->length) {
		return;
	}
	stream_put(stream);
	if (request->error == 0 && !request->abandoned &&
		request->started_bytes < request->length) {
		pump_read(request);
	}
}

/* --- writes -------------------------------------------------------------------------------- */

struct path_stream *path_write_open(struct path_request *request)
{
	struct path *path = request->path;
	struct path_stream *stream;

	GMB_ASSERT(request->op == STORE_WRITE && request->error == 0);
	GMB_ASSERT(request->started_bytes < request->length);
	if (request->streams_live >= request->window) {
		return NULL; /* part_done() tells when a stream is free again */
	}
	stream = must_queue(path, request) ? NULL : piece_open(path, request);
	if (stream == NULL) {
		stall(path, request);
	} else {
		list_remove(&request->stalled_node);
	}
	return stream;
}

void path_write_submit(struct path_stream *stream)
{
	part_submit(stream, STORE_WRITE, stream->length);
}

void path_write_drop(struct path_stream *stream)
{
	stream_put(stream);
}

void path_write_lent(struct path_request *request, void *data, int buf_idx)
{
	struct path_stream *stream;

	GMB_ASSERT(request->op == STORE_WRITE && request->started_bytes == 0);
	GMB_ASSERT(request->length <= UINT32_MAX);
	stream = stream_get(request->path, request);
	stream->data = data;
	stream->offset = request->offset;
	stream->length = (uint32_t)request->length;
	request->started_bytes = request->length;
	stream->buf.buf_idx = buf_idx;
	part_submit(stream, STORE_WRITE, request->length);
}

/* --- the end ------------------------------------------------------------------------------- */

void path_finish(struct path_request *request)
{
	GMB_ASSERT(request->parts_inflight == 0);
	if (request->extents != NULL) {
		request->extents = NULL;
		stream_put(&request->first);
	}
	GMB_ASSERT(request->streams_live == 0);
	GMB_ASSERT(!list_is_linked(&request->stalled_node));
	if (!request->abandoned) {
		set_state(request, PATH_STATE_FIN);
		account(request);
	}
}

bool path_abandon(struct path_request *request)
{
	request->abandoned = true;
	list_remove(&request->stalled_node);
	drop_ready(request);
	return path_is_idle(request);
}
