// SPDX-License-Identifier: Apache-2.0
#include "path/trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct path_trace {
	struct path_trace_options options;
	struct path_trace_request *requests;
	uint32_t request_count; /* ever used, from the first on */
	struct path_trace_request *requests_free;
	struct path_trace_part *parts; /* a pool; what was never used is never touched */
	uint32_t part_count;	       /* ever used */
	uint32_t part_max;
	struct path_trace_part *parts_free;
	struct path_trace_part beyond; /* stands for all parts that there is no room for */
	const struct path_trace_request **ended;
	/* Release with each end, acquire by who reads: an entry below it is complete. */
	_Atomic uint32_t ended_count;
};

int path_trace_create(const struct path_trace_options *options, struct path_trace **trace_out)
{
	struct path_trace *trace = calloc(1, sizeof(*trace));
	uint32_t request_max = options->request_max;

	GMB_ASSERT(request_max >= 1);
	GMB_ASSERT(request_max <= PATH_TRACE_REQUESTS_MAX);
	if (trace == NULL) {
		return -ENOMEM;
	}
	trace->options = *options;
	trace->part_max = MIN(request_max, (uint32_t)(PATH_TRACE_POOL_MAX / PATH_TRACE_PARTS_MAX)) *
			  PATH_TRACE_PARTS_MAX;
	trace->requests = calloc(request_max, sizeof(*trace->requests));
	trace->ended = calloc(request_max, sizeof(*trace->ended));
	trace->parts = calloc(trace->part_max, sizeof(*trace->parts));
	if (trace->requests == NULL || trace->ended == NULL || trace->parts == NULL) {
		path_trace_destroy(trace);
		return -ENOMEM;
	}
	*trace_out = trace;
	return 0;
}

void path_trace_destroy(struct path_trace *trace)
{
	if (trace != NULL) {
		free(trace->requests);
		free(trace->ended);
		free(trace->parts);
		free(trace);
	}
}

/* --- places -------------------------------------------------------------------------------- */

static struct path_trace_request *request_get(struct path_trace *trace)
{
	struct path_trace_request *record = trace->requests_free;

	if (record != NULL) {
		trace->requests_free = record->next;
	} else if (trace->request_count < trace->options.request_max) {
		record = &trace->requests[trace->request_count++];
	}
	return record;
}

static struct path_trace_part *part_get(struct path_trace *trace)
{
	struct path_trace_part *part = trace->parts_free;

	if (part != NULL) {
		trace->parts_free = part->next;
	} else if (trace->part_count < trace->part_max) {
		part = &trace->parts[trace->part_count++];
	}
	return part;
}

/* --- a request ----------------------------------------------------------------------------- */

void path_trace_begin(struct path_trace *trace, enum store_op op, const struct store *store,
	uint64_t offset, uint64_t length, struct path_trace_request **handle)
{
	const struct path_trace_options *options = &trace->options;
	struct path_trace_request *record = NULL;

	if ((options->ops & BIT(op)) != 0 && length >= options->length_min &&
		(options->store == NULL || options->store == store)) {
		record = request_get(trace);
	}
	*handle = record;
	if (record != NULL) {
		*record = (struct path_trace_request){
			.op = op,
			.store = store,
			.offset = offset,
			.length = length,
			.trace = trace,
			.last = &record->parts,
			.handle = handle,
		};
	}
}

void path_trace_end(
	struct path_trace_request *record, int error, const uint64_t edge_ns[PATH_STATE_COUNT])
{
	struct path_trace *trace = record->trace;
	uint32_t count = atomic_load_explicit(&trace->ended_count, memory_order_relaxed);

	*record->handle = NULL;
	record->handle = NULL;
	record->error = error;
	for (int state = 0; state < PATH_STATE_COUNT; state++) {
		record->edge_ns[state] = edge_ns[state];
	}
	trace->ended[count] = record;
	atomic_store_explicit(&trace->ended_count, count + 1, memory_order_release);
	trace->options.ended(trace->options.context);
}

void path_trace_drop(struct path_trace_request *record)
{
	struct path_trace *trace = record->trace;

	*record->handle = NULL;
	record->handle = NULL;
	if (record->parts != NULL) {
		*record->last = trace->parts_free;
		trace->parts_free = record->parts;
	}
	record->next = trace->requests_free;
	trace->requests_free = record;
}

void path_trace_detach(struct path_trace *trace)
{
	for (uint32_t i = 0; i < trace->request_count; i++) {
		struct path_trace_request *record = &trace->requests[i];

		if (record->handle != NULL) {
			*record->handle = NULL;
			record->handle = NULL;
		}
	}
}

/* --- its parts ----------------------------------------------------------------------------- */

struct path_trace_part *path_trace_opened(
	struct path_trace_request *record, uint64_t offset, uint64_t length, uint64_t now_ns)
{
	struct path_trace *trace = record->trace;
	struct path_trace_part *part =
		record->part_count < PATH_TRACE_PARTS_MAX ? part_get(trace) : NULL;

	if (part == NULL) {
		record->parts_more++;
		part = &trace->beyond;
	} else {
		record->part_count++;
		*record->last = part;
		record->last = &part->next;
	}
	/* The marks and pieces are written before they are read. */
	part->next = NULL;
	part->offset = offset;
	part->length = length;
	part->opened_ns = now_ns;
	part->submitted_ns = 0;
	part->done_ns = 0;
	part->result = 0;
	part->mark_count = 0;
	part->piece_count = 0;
	return part;
}

void path_trace_submitted(struct path_trace_part *part, uint64_t now_ns)
{
	part->submitted_ns = now_ns;
}

void path_trace_told(struct path_trace_part *part, uint64_t bytes, uint64_t now_ns)
{
	uint32_t index = MIN(part->mark_count, (uint32_t)PATH_TRACE_MARKS_MAX - 1);

	part->marks[index] = (struct path_trace_mark){ .told_ns = now_ns, .bytes = bytes };
	part->mark_count = index + 1;
}

void path_trace_done(struct path_trace_part *part, int result, uint64_t now_ns)
{
	part->done_ns = now_ns;
	part->result = result;
}

void path_trace_handed(
	struct path_trace_part *part, uint64_t offset, uint64_t length, uint64_t now_ns)
{
	if (part->piece_count == PATH_TRACE_PIECES_MAX) {
		part->pieces[PATH_TRACE_PIECES_MAX - 1].length += length;
		return;
	}
	part->pieces[part->piece_count++] = (struct path_trace_piece){
		.offset = offset,
		.length = length,
		.handed_ns = now_ns,
	};
}

void path_trace_back(struct path_trace_part *part, uint64_t offset, uint64_t now_ns)
{
	/* A stream hands its bytes out in order: the last piece that begins there or before. */
	for (uint32_t i = part->piece_count; i > 0; i--) {
		if (part->pieces[i - 1].offset <= offset) {
			part->pieces[i - 1].back_ns = now_ns;
			return;
		}
	}
}

/* --- asking -------------------------------------------------------------------------------- */

uint32_t path_trace_ended_count(const struct path_trace *trace)
{
	return atomic_load_explicit(&trace->ended_count, memory_order_acquire);
}

const struct path_trace_request *path_trace_ended(const struct path_trace *trace, uint32_t index)
{
	GMB_ASSERT(index < path_trace_ended_count(trace));
	return trace->ended[index];
}
