// SPDX-License-Identifier: Apache-2.0
#include "path/path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "path/overlap.h"

enum { LOGGED_NAME_BYTES = 128, LOGGED_RANGE_BYTES = 64 };

struct path {
	struct ring *ring;
	struct arena *ram;
	struct arena *device; /* device memory; NULL: none */
	/* Pool of streams. Only the first stream of each request is outside the pool. The pool has
	 * one stream for each block of the arenas, so that every buffer gets a stream, and
	 * PATH_PLACED_PARTS_MAX for requesters' memory. Unused pages of the pool use no memory. */
	struct path_stream *streams;
	uint64_t stream_count; /* number of streams that were used at least once */
	uint64_t stream_max;
	uint32_t placed_count;	       /* number of pool streams that use requesters' memory */
	struct list_node streams_free; /* streams that were used before and are free now */
	struct path_admission admission;
	uint64_t replaced_bytes;  /* size of the buffer just returned by the request in pump() */
	uint32_t slow_count;	  /* requests in flight for which a reactor should not spin */
	struct path_trace *trace; /* NULL: single requests are not recorded */
};

int path_create(const struct path_options *options, struct path **path_out, struct error *error)
{
	struct path *path = calloc(1, sizeof(*path));

	if (path == NULL) {
		return error_oom_for(error, "a data path");
	}
	path->ring = options->ring;
	path->ram = options->ram;
	path->device = options->device;
	GMB_ASSERT((arena_info(path->ram)->rights & MEM_RAM) == MEM_RAM);
	list_init(&path->streams_free);
	path->admission.ram = path->ram;
	path->admission.device = path->device;
	path->admission.device_waits = options->device_waits;
	turns_init(&path->admission.waiting);
	turns_init(&path->admission.costly);
	list_init(&path->admission.atomic_lacking);
	path->stream_max = arena_info(options->ram)->limit_bytes / ARENA_BLOCK_BYTES_MIN +
			   PATH_PLACED_PARTS_MAX;
	if (options->device != NULL) {
		path->stream_max +=
			arena_info(options->device)->limit_bytes / ARENA_BLOCK_BYTES_MIN;
	}
	/* Reserves only address space: pages that were never used are not backed by memory. */
	path->streams = mmap(NULL, path->stream_max * sizeof(*path->streams),
		PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (path->streams == MAP_FAILED) {
		free(path);
		return error_oom_for(error, "a data path's pools");
	}
	*path_out = path;
	return 0;
}

void path_destroy(struct path *path)
{
	if (path == NULL) {
		return;
	}
	GMB_ASSERT(!path_is_short(path));
	GMB_ASSERT(path->admission.atomic_bytes == 0);
	(void)munmap(path->streams, path->stream_max * sizeof(*path->streams));
	free(path);
}

bool path_is_short(const struct path *path)
{
	return path->admission.short_count > 0;
}

struct path_admission *path_admission(struct path *path)
{
	return &path->admission;
}

void path_set_trace(struct path *path, struct path_trace *trace)
{
	if (path->trace != NULL) {
		path_trace_detach(path->trace);
	}
	path->trace = trace;
}

bool path_is_slow(const struct path *path)
{
	return path->slow_count > 0;
}

/* --- states -------------------------------------------------------------------------------- */

static void path_set_state(struct path_request *request, enum path_state state)
{
	GMB_ASSERT(state > request->state || state == PATH_STATE_WAIT);
	request->state = state;
	/* The first two states get the time of the batch of completions, others the time now. */
	request->edge_ns[state] = state <= PATH_STATE_DISK ? ring_batch_ns(request->path->ring)
							   : ring_now_ns(request->path->ring);
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
	return request->parts_inflight == 0 && request->streams_live == (request->extents != NULL);
}

bool path_is_stalled(const struct path_request *request)
{
	return list_is_linked(&request->stalled_node) && request->costly != PATH_COSTLY_WAITS &&
	       request->client->is_short;
}

/* --- streams ------------------------------------------------------------------------------- */

/* Returns a free stream. There always is one: the pool has one for each block of memory, and the
 * caller has a block. */
static struct path_stream *stream_get(struct path *path, struct path_request *request)
{
	struct path_stream *stream;

	if (!request->first_used) {
		request->first_used = true;
		stream = &request->first;
	} else if (!list_is_empty(&path->streams_free)) {
		stream = list_entry(list_pop_front(&path->streams_free), struct path_stream, node);
	} else {
		GMB_ASSERT(path->stream_count < path->stream_max);
		stream = &path->streams[path->stream_count++];
	}
	list_init(&stream->node);
	stream->request = request;
	stream->valid = 0;
	stream->sent = 0;
	stream->done = 0;
	stream->length = 0;
	stream->room = 0;
	stream->unsent = 0;
	stream->in_store = false;
	stream->in_device = false;
	stream->in_place = false;
	stream->copied = false;
	stream->traced = NULL;
	stream->buf.memory = MEM_NONE;
	request->streams_live++;
	return stream;
}

static void stream_put(struct path_stream *stream)
{
	struct path_request *request = stream->request;
	struct path *path = request->path;

	GMB_ASSERT(request->streams_live > 0);
	if (stream->buf.memory.rights != 0) {
		admission_put(request, stream->in_device ? path->device : path->ram, &stream->buf);
	}
	list_remove(&stream->node);
	request->streams_live--;
	request->live_bytes -= stream->room;
	if (stream->unsent > 0) { /* not all data was given to the session */
		admission_end_unsent(request, stream->unsent);
	}
	if (stream != &request->first) {
		path->placed_count -= stream->in_place;
		list_push_front(&path->streams_free, &stream->node);
	}
	path->admission.released = true;
}

/* Releases a stream of a request that has failed or was abandoned. Data that the session still uses
 * remains until path_fragment_sent(). */
static void stream_drop(struct path_stream *stream)
{
	if (stream->in_store) {
		return; /* path_part_done() releases the stream */
	}
	if (stream->done == stream->sent) {
		stream_put(stream);
	} else { /* path_fragment_sent() frees the stream when the session has returned its data */
		stream->length = stream->sent;
		stream->valid = stream->sent;
	}
}

/* Releases valid data that will not be sent. */
static void drop_ready(struct path_request *request)
{
	list_for_each(node, &request->ready)
	{
		list_remove(node);
		stream_drop(list_entry(node, struct path_stream, node));
	}
}

/* --- placement of payload -------------------------------------------------------------------- */

/* Opens a stream with a buffer, and reduces *bytes if memory is short. NULL: no buffer. */
static struct path_stream *stream_open(struct path *path, struct path_request *request,
	struct arena *arena, uint64_t offset, uint64_t *bytes)
{
	struct path_stream *stream;
	struct arena_buf buf;

	if (!admission_get(request, &arena, offset, path->replaced_bytes, bytes, &buf)) {
		return NULL;
	}
	stream = stream_get(path, request);
	stream->buf = buf;
	stream->memory = buf.memory;
	if (unlikely(arena == path->device)) {
		stream->memory = mem_limit(buf.memory, request->device_rights);
		stream->in_device = true;
	}
	return stream;
}

/* Opens a stream that uses the requester's memory, or a buffer if the data has to be copied. */
static struct path_stream *stream_place(struct path *path, struct path_request *request,
	const struct cut_range *range, uint64_t *bytes)
{
	struct path_stream *stream;
	bool in_place = placement_run(request, range, bytes);

	if (unlikely(request->atomic) && *bytes < range->bytes) {
		in_place = false; /* copies an atomic write that spans several segments */
		*bytes = range->bytes;
	}
	if (!in_place) {
		stream = stream_open(path, request, path->ram, range->offset, bytes);
		if (stream != NULL) {
			stream->copied = true;
		}
		return stream;
	}
	if (request->first_used) {
		if (path->placed_count == PATH_PLACED_PARTS_MAX) {
			return NULL;
		}
		path->placed_count++;
	}
	stream = stream_get(path, request);
	stream->memory = placement_at(request, range->offset).memory;
	stream->in_place = true;
	/* A server-side copy can write from device memory, into which it has read. */
	stream->in_device = path->device != NULL && stream->memory.region != NULL &&
			    (stream->memory.region->rights & MEM_CPU) == 0;
	return stream;
}

/* Returns whether device memory permits the access that the session needs for the next part. */
static bool device_may(const struct path_request *request)
{
	uint32_t rights =
		request->memory_rights | (request->copied_bytes > 0 ? (uint32_t)MEM_CPU_WRITE : 0);

	return (rights & ~request->device_rights) == 0;
}

/* Opens a stream for the next part of the request. Returns NULL if memory is short. */
static struct path_stream *part_open(struct path *path, struct path_request *request)
{
	uint64_t left = request->length - request->started_bytes;
	struct cut_range range = { .offset = request->offset + request->started_bytes,
		.bytes = left,
		.progress_first = request->progress_step };
	struct path_stream *stream;
	uint64_t bytes;

	if (left > request->part_size || request->striped) {
		range = cut_next(request);
	}
	request->parts_started++;
	request->started_bytes += range.bytes;
	bytes = range.bytes;

	if (unlikely(request->placement != NULL)) {
		stream = stream_place(path, request, &range, &bytes);
	} else if (unlikely(request->arena != path->ram) && !device_may(request)) {
		if ((request->memory_rights & ~request->device_rights) == 0) {
			/* Only copied_bytes need RAM; the rest can use device memory. */
			bytes = MIN(
				bytes, align_up(range.offset + request->copied_bytes, SPLIT_ALIGN) -
					       range.offset);
		}
		stream = stream_open(path, request, path->ram, range.offset, &bytes);
		request->export->ram_for_session += stream != NULL;
	} else {
		stream = stream_open(path, request, request->arena, range.offset, &bytes);
	}
	if (unlikely(stream == NULL || bytes < range.bytes)) {
		cut_return(request, &range, stream == NULL ? 0 : bytes);
	}
	if (stream == NULL) {
		return NULL;
	}
	stream->offset = range.offset;
	stream->length = (uint32_t)bytes;
	stream->room = (uint32_t)bytes;
	stream->part.progress_first = range.progress_first;
	request->live_bytes += bytes;
	*(stream->in_device	   ? &request->export->device_bytes
		: stream->in_place ? &request->export->placed_bytes
				   : &request->export->ram_bytes) += bytes;
	if (request->op == STORE_READ && !stream->in_place) {
		stream->unsent = (uint32_t)bytes;
		admission_begin_unsent(request, bytes);
	}
	return stream;
}

static uint64_t next_bytes(const struct path_request *request)
{
	uint64_t left = request->length - request->started_bytes;
	uint64_t part = MIN(request->part_size, (uint32_t)PATH_PART_SIZE_MAX);

	return MIN(part, left);
}

static bool window_is_full(const struct path_request *request)
{
	return request->live_bytes > 0 &&
	       request->live_bytes + next_bytes(request) > request->window_bytes;
}

/* Returns whether a read must wait for other reads of its client. A read that has just returned a
 * buffer (replaced_bytes) does not wait, because it can take that memory again. */
static bool client_is_full(const struct path_request *request)
{
	return request->op == STORE_READ && request->placement == NULL &&
	       request->path->replaced_bytes == 0 &&
	       (admission_must_wait(request) ||
		       !admission_fits_window(request, next_bytes(request)));
}

/* --- parts --------------------------------------------------------------------------------- */

static void pump(struct path_request *request);
static void start_plain(struct path_request *request);

/* --- changes of connections that have ended -------------------------------------------------- */

/* Returns whether parts in the store can still change data for the request. */
static bool may_change(const struct path_request *request)
{
	bool ends = request->abandoned || request->error != 0;

	return request->parts_inflight > request->parts_waiting ||
	       (!ends && path_status(request) == PATH_PENDING);
}

void path_orphan(struct path_request *request)
{
	if (request->late.serial == 0 && (BIT(request->op) & STORE_CHANGES) != 0 &&
		may_change(request)) {
		request->late.offset = request->offset;
		request->late.length = request->length;
		late_writes_publish(request->export->late_writes_port.late, &request->late);
	}
}

static void late_end(struct path_request *request)
{
	if (unlikely(request->late.serial != 0) && !may_change(request)) {
		late_writes_withdraw(request->export->late_writes_port.late, &request->late);
	}
}

/* Records the first error of a request. After that, no part is started and no data is sent. */
static void path_fail(struct path_request *request, int error, uint64_t offset)
{
	if (request->error == 0) {
		request->error = error;
		request->error_offset = offset;
	}
	admission_wait_end(request);
	drop_ready(request);
}

static void ready_insert(struct path_request *request, struct path_stream *stream)
{
	struct list_node *position = &request->ready;

	if (list_is_linked(&stream->node)) {
		return;
	}
	if (request->ascending) {
		while (position->prev != &request->ready &&
			list_entry(position->prev, struct path_stream, node)->offset >
				stream->offset) {
			position = position->prev;
		}
	}
	list_insert_before(position, &stream->node);
}

/* Logs a disk error, but not a rejected fast zero or a write to an export made read-only. */
static void log_failure(struct path_request *request, const struct store_part *part, int result)
{
	struct path_export *export = request->export;
	char name[LOGGED_NAME_BYTES];
	char range[LOGGED_RANGE_BYTES] = "";
	const struct log_about about = { LOG_ID_DISK_ERROR, name, NULL, -result };

	if (result == -EOPNOTSUPP || result == -EPERM) {
		return;
	}
	if (part->length > 0) {
		snprintf(range, sizeof(range), " of %llu bytes at offset %llu",
			(unsigned long long)part->length, (unsigned long long)part->offset);
	}
	log_escape(name, sizeof(name), export->name, export->name_bytes);
	log_limited_about(&export->errors, ring_batch_ns(request->path->ring), LOG_LEVEL_ERROR,
		&about, "export \"%s\": %s%s failed: %s", name, store_op_name(part->op), range,
		strerror(-result));
}

static void path_part_done(struct store_part *part, int result)
{
	struct path_stream *stream = container_of(part, struct path_stream, part);
	struct path_request *request = stream->request;

	if (unlikely(part->memory_error != 0) && stream->in_device) {
		device_see_error(request, part->memory_error);
	}
	GMB_ASSERT(request->parts_inflight > 0);
	request->parts_inflight--;
	request->stored_bytes += part->length;
	(*request->client->operations)++;
	if (unlikely(request->record != NULL)) {
		path_trace_done(stream->traced, result, ring_batch_ns(request->path->ring));
	}
	if (result < 0) {
		log_failure(request, part, result);
		/* path_fail() does not release this stream, because it is still in the store. */
		path_fail(request, result, part->offset);
	}
	stream->in_store = false;
	if (unlikely(request->costly == PATH_COSTLY_BUSY)) {
		admission_costly_end(request);
	}
	late_end(request);
	if (request->measured) {
		cut_part_end(request, part->length, ring_batch_ns(request->path->ring));
	}
	if (request->op == STORE_READ && request->error == 0 && !request->abandoned) {
		if (unlikely(stream->copied)) {
			placement_copy(stream);
		}
		stream->valid = stream->length;
		ready_insert(request, stream);
		if (request->state < PATH_STATE_OVERLAP && !request->whole) {
			path_set_state(request, PATH_STATE_OVERLAP);
		}
	} else if (request->op == STORE_EXTENTS && result == 0 && !request->abandoned) {
		request->extents = part->extents; /* valid until path_finish() */
		request->extent_count = part->extent_count;
	} else {
		stream_drop(stream);
	}
	if (path_status(request) != PATH_PENDING) {
		path_set_state(request, PATH_STATE_NETWORK);
	} else if ((request->op == STORE_READ || request->placement != NULL) &&
		   request->error == 0 && !request->abandoned) {
		pump(request);
	}
	request->progress(request);
}

/* The store reports that the first bytes of a part are valid. */
static void part_progressed(struct store_part *part, uint64_t bytes)
{
	struct path_stream *stream = container_of(part, struct path_stream, part);
	struct path_request *request = stream->request;

	if (request->error != 0 || request->abandoned) {
		return;
	}
	if (unlikely(request->record != NULL)) {
		path_trace_progress(
			request->record, stream->traced, bytes, ring_batch_ns(request->path->ring));
	}
	stream->valid = (uint32_t)bytes;
	ready_insert(request, stream);
	if (request->state < PATH_STATE_OVERLAP) {
		path_set_state(request, PATH_STATE_OVERLAP);
	}
	request->progress(request);
}

/* Records in the trace that a part is submitted and, except for writes, that it gets its memory at
 * the same time. begins: the part is the request's first. Uses the exact time instead of the batch
 * time, so that the duration of the previous state is correct. */
static void trace_submitted(struct path_stream *stream, bool page_cache, bool begins)
{
	struct path_request *request = stream->request;
	uint64_t now_ns = ring_now_ns(request->path->ring);

	if (stream->traced == NULL) {
		stream->traced = path_trace_opened(
			request->record, stream->offset, stream->part.length, now_ns);
	}
	path_trace_submitted(stream->traced, placement_name(stream, page_cache), now_ns);
	if (begins) {
		request->edge_ns[PATH_STATE_DISK] = now_ns;
	}
}

/* Submits a part to the store. A part that overlaps a published change of an ended connection waits
 * instead (late_writes.h). page_cache: the data is to be sent from the page cache. Returns false
 * only if the store cannot do this; the stream is then unchanged. */
static bool path_part_submit(struct path_stream *stream, uint64_t length, bool page_cache)
{
	struct path_request *request = stream->request;
	struct store_part *part = &stream->part;
	struct late_writes *late = request->export->late_writes_port.late;
	bool begins = request->state == PATH_STATE_WAIT;

	part->op = request->op;
	part->flags = request->flags | (page_cache ? 0 : request->part_flags);
	part->offset = stream->offset;
	part->length = length;
	part->memory = stream->memory;
	part->requester = request->requester;
	part->done = path_part_done;
	part->progressed = request->progress_step > 0 && !stream->copied ? part_progressed : NULL;
	part->progress_step = request->progress_step;
	part->extents = request->op == STORE_EXTENTS ? (void *)mem_cpu_write(stream->memory) : NULL;
	part->extent_max = request->extent_max;
	part->copy = request->copy;
	if (page_cache && !store_page_cache_ref(request->export->queue, part)) {
		return false;
	}
	if ((BIT(request->op) & STORE_CHANGES) != 0 && unlikely(late_writes_any(late)) &&
		late_writes_wait(late, stream)) {
		/* Releases the slot for costly requests, which the awaited change might need. */
		if (request->costly == PATH_COSTLY_BUSY) {
			admission_costly_end(request);
		}
		request->parts_inflight++;
		request->parts_waiting++;
		request->export->late_waits++;
		return true; /* path_resume() continues */
	}
	if (begins) {
		path_set_state(request, PATH_STATE_DISK);
	}
	if (unlikely(request->record != NULL)) {
		trace_submitted(stream, page_cache, begins);
	}
	stream->in_store = true;
	request->parts_inflight++;
	if (!page_cache) {
		store_submit(request->export->queue, part);
	}
	return true;
}

void path_resume(struct path_stream *stream)
{
	struct path_request *request = stream->request;

	GMB_ASSERT(request->parts_waiting > 0);
	request->parts_inflight--;
	request->parts_waiting--;
	if (request->error == 0 && !request->abandoned) {
		if (request->op == STORE_WRITE) {
			(void)path_part_submit(stream, stream->part.length, false);
		} else { /* restarts the request, which might have to wait for a slot */
			stream_put(stream);
			request->first_used = false;
			start_plain(request);
		}
		return;
	}
	stream_drop(stream);
	if (path_status(request) != PATH_PENDING) {
		path_set_state(request, PATH_STATE_NETWORK);
	}
	request->progress(request);
}

/* Starts a read that is sent from the page cache, if the cache contains all its data. Such a read
 * is not cut. The client's window limits it like a read into buffers, because data that waits for a
 * slow peer could be evicted from the page cache before it is sent. */
static bool start_page_cache(struct path_request *request)
{
	struct path_stream *stream;

	if (request->cut || request->length > request->window_bytes || request->placement != NULL ||
		request->page_cache_missed ||
		!store_page_cache_has(request->export->store, request->memory_rights)) {
		return false;
	}
	stream = stream_get(request->path, request); /* the request's own first stream */
	stream->offset = request->offset;
	stream->length = (uint32_t)request->length;
	stream->part.progress_first = 0;
	if (!path_part_submit(stream, request->length, true)) {
		request->export->page_cache_send_misses++;
		request->page_cache_missed = true;
		request->first_used = false;
		request->streams_live--;
		return false;
	}
	stream->memory = stream->part.memory;
	stream->unsent = stream->length;
	admission_begin_unsent(request, stream->unsent);
	request->export->page_cache_send_bytes += request->length;
	request->started_bytes = request->length;
	request->parts_started = 1;
	return true;
}

/* Starts as many parts as the window and the available memory allow. */
static void pump(struct path_request *request)
{
	struct path *path = request->path;

	while (request->started_bytes < request->length && !window_is_full(request)) {
		struct path_stream *stream;

		if (client_is_full(request)) {
			admission_wait(request, false);
			return;
		}
		if (request->op == STORE_READ && request->length >= STORE_PAGE_CACHE_BYTES_MIN &&
			request->started_bytes == 0 && start_page_cache(request)) {
			break;
		}
		stream = part_open(path, request);
		path->replaced_bytes = 0;
		if (stream == NULL) {
			admission_wait(request, true);
			return;
		}
		if (unlikely(stream->copied) && request->op == STORE_WRITE) {
			placement_copy(stream);
		}
		(void)path_part_submit(stream, stream->length, false);
	}
	admission_wait_end(request);
}

/* Starts a block status request, or makes it wait. With less memory it returns fewer extents. */
static void start_extents(struct path_request *request)
{
	struct path *path = request->path;
	uint64_t bytes = request->extent_max * sizeof(struct store_extent);
	struct path_stream *stream;

	if (admission_must_wait(request) || !admission_fits_window(request, bytes)) {
		admission_wait(request, false);
		return;
	}
	if (admission_costly_waits(request)) {
		return;
	}
	stream = stream_open(path, request, path->ram, 0, &bytes);
	if (stream == NULL) {
		admission_wait(request, true);
		return;
	}
	admission_wait_end(request);
	admission_costly_begin(request);
	stream->unsent = (uint32_t)bytes;
	admission_begin_unsent(request, bytes);
	request->extent_max = (uint32_t)(bytes / sizeof(struct store_extent));
	stream->offset = request->offset;
	request->started_bytes = request->length;
	(void)path_part_submit(stream, request->length, false);
}

/* Starts a request that is neither a read nor a write. */
static void start_plain(struct path_request *request)
{
	struct path_stream *stream;

	if (request->op == STORE_EXTENTS) {
		start_extents(request);
		return;
	}
	if (admission_is_costly(request)) {
		if (admission_costly_waits(request)) {
			return;
		}
		admission_costly_begin(request);
	}
	stream = stream_get(request->path, request);
	stream->memory = MEM_NONE;
	stream->offset = request->offset;
	stream->length = 0;
	request->started_bytes = request->length;
	(void)path_part_submit(stream, request->length, false);
}

static void path_begin(struct path *path, struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);

	GMB_ASSERT(request->length > 0);
	if (request->placement != NULL) {
		placement_check(request);
	}
	request->arena = path->ram;
	if (unlikely(request->op == STORE_READ ? info->read_device : info->write_device) &&
		request->placement == NULL && !request->atomic) {
		request->arena = device_choose(request);
	}
	if (request->length >= OVERLAP_REQUEST_BYTES_MIN ||
		request->export->overlap > PATH_OVERLAP_OFF) {
		cut_begin(request);
		request->slow = (request->part_flags & STORE_MEASURED) != 0 &&
				cut_step_ns(request) > PATH_SLOW_NS;
		path->slow_count += request->slow;
	}
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
	request->live_bytes = 0;
	request->parts_time = 0;
	request->parts_started = 0;
	request->parts_inflight = 0;
	request->parts_waiting = 0;
	request->late.serial = 0;
	request->copied_bytes = 0;
	request->streams_live = 0;
	request->abandoned = false;
	request->first_used = false;
	request->measured = false;
	request->part_flags = 0;
	request->cut = false;
	request->striped = false;
	request->page_cache_missed = false;
	request->atomic = request->op == STORE_WRITE && (request->flags & STORE_FUA) != 0 &&
			  request->length <= request->export->atomic_bytes;
	request->atomic_held = false;
	request->costly = PATH_COSTLY_NOT;
	request->slow = false;
	request->part_size = PATH_PART_SIZE_MAX;
	request->progress_step = 0;
	for (int i = 0; i < PATH_STATE_COUNT; i++) {
		request->edge_ns[i] = 0;
	}
	list_init(&request->ready);
	list_init(&request->stalled_node);
	path_set_state(request, PATH_STATE_WAIT);
	request->record = NULL;
	if (unlikely(path->trace != NULL)) {
		const struct path_trace_name name = { request->export->name,
			request->export->name_bytes };

		path_trace_begin(path->trace, request->op, name, request->offset, request->length,
			&request->record);
	}
	switch (request->op) {
	case STORE_READ:
		path_begin(path, request);
		pump(request);
		break;
	case STORE_WRITE:
		path_begin(path, request);
		if (request->placement != NULL) {
			pump(request);
		}
		break;
	case STORE_EXTENTS:
	case STORE_FLUSH:
	case STORE_TRIM:
	case STORE_ZERO:
	case STORE_CACHE:
	case STORE_COPY:
		start_plain(request);
		break;
	case STORE_OP_COUNT:
	default:
		GMB_ASSERT(false);
	}
}

bool path_is_to_serve(const struct path *path)
{
	return path->admission.released && (path->admission.costly_waiting_count > 0 ||
						   !turns_are_empty(&path->admission.waiting) ||
						   !list_is_empty(&path->admission.atomic_lacking));
}

static void serve(struct path_request *request)
{
	if (request->op == STORE_EXTENTS) {
		start_extents(request);
	} else if (request->op == STORE_READ || request->placement != NULL) {
		pump(request);
		if (request->whole && path_is_stalled(request)) {
			request->progress(request); /* lets the session send other replies first */
		}
	} else { /* for a write, the session calls path_write_open() again */
		request->progress(request);
	}
}

void path_serve(struct path *path)
{
	path->admission.released = path_is_to_serve(path);
	if (path->admission.released) {
		admission_serve(&path->admission, serve, start_plain);
	}
}

/* --- fragments of a read ------------------------------------------------------------------- */

bool path_next_fragment(
	struct path_request *request, uint32_t max_bytes, struct path_fragment *fragment)
{
	struct path_stream *stream = list_entry(request->ready.next, struct path_stream, node);
	uint32_t length;

	if (list_is_empty(&request->ready) || request->error != 0) {
		return false;
	}
	if (request->ascending &&
		stream->offset + stream->sent != request->offset + request->handed_bytes) {
		return false;
	}
	length = MIN(stream->valid - stream->sent, max_bytes);
	GMB_ASSERT(length > 0);
	fragment->stream = stream;
	fragment->memory =
		request->placement == NULL ? mem_add(stream->memory, stream->sent) : MEM_NONE;
	fragment->offset = stream->offset + stream->sent;
	fragment->length = length;
	if (unlikely(request->record != NULL)) {
		path_trace_handed(request->record, stream->traced, fragment->offset, length,
			ring_now_ns(request->path->ring));
	}
	stream->sent += length;
	request->handed_bytes += length;
	fragment->last = request->handed_bytes == request->length;
	if (fragment->last && request->measured) {
		cut_handed(request);
	}
	if (stream->sent == stream->valid) {
		list_remove(&stream->node);
	}
	if (stream->sent == stream->length && stream->unsent > 0) {
		admission_end_unsent(request, stream->unsent);
		stream->unsent = 0;
	}
	return true;
}

void path_fragment_sent(const struct path_fragment *fragment)
{
	struct path_stream *stream = fragment->stream;
	struct path_request *request = stream->request;
	uint64_t bytes;

	if (unlikely(request->record != NULL)) {
		path_trace_back(stream->traced, fragment->offset, ring_now_ns(request->path->ring));
	}
	stream->done += fragment->length;
	GMB_ASSERT(stream->done <= stream->sent);
	if (stream->done < stream->length) {
		return;
	}
	bytes = stream->buf.memory.rights != 0 ? stream->buf.bytes : 0;
	stream_put(stream);
	if (request->error == 0 && !request->abandoned &&
		request->started_bytes < request->length) {
		/* An `ascending` reply is never interrupted. So its next part may take the buffer
		 * just returned: a request that waits for this reply must not get it. */
		if (request->ascending && request->streams_live == 0) {
			request->path->replaced_bytes = bytes;
		}
		pump(request);
		request->path->replaced_bytes = 0;
	}
}

/* --- writes -------------------------------------------------------------------------------- */

struct path_stream *path_write_open(struct path_request *request)
{
	struct path *path = request->path;
	struct path_stream *stream;

	GMB_ASSERT(request->op == STORE_WRITE && request->placement == NULL);
	GMB_ASSERT(request->error == 0);
	GMB_ASSERT(request->started_bytes < request->length);
	if (window_is_full(request)) {
		return NULL; /* path_part_done() calls progress when a stream is free again */
	}
	stream = part_open(path, request);
	if (stream == NULL) {
		admission_wait(request, true);
	} else {
		admission_wait_end(request);
		if (unlikely(request->record != NULL)) {
			stream->traced = path_trace_opened(request->record, stream->offset,
				stream->length, ring_now_ns(path->ring));
		}
	}
	return stream;
}

void path_write_submit(struct path_stream *stream)
{
	(void)path_part_submit(stream, stream->length, false);
}

void path_write_drop(struct path_stream *stream)
{
	stream_put(stream);
}

void path_write_pause(struct path_request *request)
{
	admission_wait_end(request);
}

bool path_write_rests(const struct path_request *request)
{
	return request->parts_inflight == 0;
}

/* --- end of a request ------------------------------------------------------------------------ */

static void trace_finish(struct path_request *request)
{
	if (request->abandoned) {
		path_trace_drop(request->record);
	} else {
		path_trace_end(request->record, request->error, request->edge_ns);
	}
}

void path_finish(struct path_request *request)
{
	GMB_ASSERT(request->parts_inflight == 0);
	if (request->extents != NULL) {
		stream_put(&request->first);
	}
	GMB_ASSERT(request->streams_live == 0);
	GMB_ASSERT(request->late.serial == 0);
	GMB_ASSERT(!list_is_linked(&request->stalled_node));
	if (request->measured) {
		cut_end(request, ring_batch_ns(request->path->ring));
	}
	request->path->slow_count -= request->slow;
	if (!request->abandoned) {
		path_set_state(request, PATH_STATE_DONE);
		path_account(request);
	}
	if (unlikely(request->record != NULL)) {
		trace_finish(request);
	}
}

bool path_abandon(struct path_request *request)
{
	request->abandoned = true;
	admission_wait_end(request);
	drop_ready(request);
	path_orphan(request);
	late_end(request);
	return path_is_idle(request);
}
