// SPDX-License-Identifier: Apache-2.0
#include "tools/trace_arrival.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NO_RUN = UINT32_MAX };

/* A moment with an amount of data or a place: what is sorted. */
struct event {
	uint64_t when;	/* a look or a time */
	uint32_t index; /* of a chunk or part */
};

struct run {
	uint32_t first_look;
	uint32_t last_look;
	uint32_t first_chunk;
	uint32_t last_chunk;
	uint16_t stream;
};

/* Where a stream has got to. */
struct stream {
	uint32_t last_look;
	uint32_t last_chunk;
	uint32_t chunks;
};

struct workspace {
	struct event *events; /* one a chunk */
	struct run *runs;
	uint32_t *run_of; /* by chunk */
};

static int compare_events(const void *a, const void *b)
{
	const struct event *left = a;
	const struct event *right = b;

	if (left->when != right->when) {
		return left->when < right->when ? -1 : 1;
	}
	return left->index < right->index ? -1 : left->index > right->index;
}

static void count_kinds(const struct trace_read *read, struct trace_analysis *analysis)
{
	analysis->first_ns = read->total_ns;
	for (uint32_t i = 0; i < read->chunk_count; i++) {
		const struct trace_arrival *arrival = &read->arrivals[i];

		GMB_ASSERT(arrival->time_ns <= read->total_ns);
		analysis->early += arrival->how == TRACE_EARLY;
		analysis->at_completion += arrival->how == TRACE_AT_COMPLETION;
		analysis->unseen += arrival->how == TRACE_UNSEEN;
		analysis->first_ns = MIN(analysis->first_ns, arrival->time_ns);
	}
}

/* --- runs and streams ---------------------------------------------------------------------- */

static uint32_t find_runs(const struct trace_read *read, struct workspace *space)
{
	uint32_t count = 0;
	uint32_t runs = 0;

	for (uint32_t i = 0; i < read->chunk_count; i++) {
		space->run_of[i] = NO_RUN;
		if (read->arrivals[i].how == TRACE_EARLY) {
			space->events[count++] = (struct event){ read->arrivals[i].look, i };
		}
	}
	qsort(space->events, count, sizeof(*space->events), compare_events);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t chunk = space->events[i].index;
		uint32_t look = (uint32_t)space->events[i].when;
		uint32_t run = chunk > 0 ? space->run_of[chunk - 1] : NO_RUN;

		if (run == NO_RUN) {
			run = runs++;
			space->runs[run] = (struct run){ .first_look = look, .first_chunk = chunk };
		}
		space->runs[run].last_look = look;
		space->runs[run].last_chunk = chunk;
		space->run_of[chunk] = run;
	}
	return runs;
}

/* The stream that the run goes on with: of those that ended below and before it, the one that
 * waits for the longest, as an idle member of a RAID would. */
static uint32_t find_stream(const struct stream *streams, uint32_t count, const struct run *run)
{
	uint32_t best = count;

	for (uint32_t i = 0; i < count; i++) {
		const struct stream *stream = &streams[i];

		if (stream->last_look > run->first_look || stream->last_chunk > run->first_chunk) {
			continue;
		}
		if (best == count || stream->last_look < streams[best].last_look ||
			(stream->last_look == streams[best].last_look &&
				stream->last_chunk < streams[best].last_chunk)) {
			best = i;
		}
	}
	return best < TRACE_STREAMS_MAX ? best : TRACE_STREAMS_MAX - 1;
}

static void find_streams(
	struct trace_read *read, struct workspace *space, struct trace_analysis *analysis)
{
	struct stream streams[TRACE_STREAMS_MAX] = { 0 };
	uint32_t largest = 0;

	/* Runs were numbered as they began. */
	for (uint32_t i = 0; i < analysis->runs; i++) {
		struct run *run = &space->runs[i];
		uint32_t found = find_stream(streams, analysis->streams, run);

		analysis->streams = MAX(analysis->streams, found + 1);
		streams[found].last_look = MAX(streams[found].last_look, run->last_look);
		streams[found].last_chunk = MAX(streams[found].last_chunk, run->last_chunk);
		run->stream = (uint16_t)(found + 1);
	}
	for (uint32_t i = 0; i < read->chunk_count; i++) {
		read->arrivals[i].stream = 0;
		if (space->run_of[i] != NO_RUN) {
			read->arrivals[i].stream = space->runs[space->run_of[i]].stream;
			streams[read->arrivals[i].stream - 1].chunks++;
		}
	}
	for (uint32_t i = 0; i < analysis->streams; i++) {
		largest = MAX(largest, streams[i].chunks);
	}
	analysis->largest_stream = analysis->early > 0 ? (double)largest / analysis->early : 0;
}

/* --- order --------------------------------------------------------------------------------- */

static void find_reordering(
	const struct trace_read *read, struct workspace *space, struct trace_analysis *analysis)
{
	uint32_t late = 0;
	uint32_t count = 0;
	uint32_t highest = 0; /* of the looks before the current one */
	uint32_t current = 0; /* of all so far */

	for (uint32_t i = 0; i < read->chunk_count; i++) {
		if (read->arrivals[i].how != TRACE_UNSEEN) {
			space->events[count++] = (struct event){ read->arrivals[i].look, i };
		}
	}
	qsort(space->events, count, sizeof(*space->events), compare_events);
	for (uint32_t i = 0; i < count; i++) {
		const struct event *event = &space->events[i];

		if (i > 0 && event->when != space->events[i - 1].when) {
			highest = current;
		}
		if (event->index < highest) {
			late++;
			analysis->reordered_distance = MAX(analysis->reordered_distance,
				(highest - event->index) * read->chunk_bytes);
		}
		current = MAX(current, event->index);
	}
	analysis->reordered = count > 0 ? (double)late / count : 0;
}

/* --- time ---------------------------------------------------------------------------------- */

static void find_quarters(const struct trace_read *read, struct trace_analysis *analysis)
{
	for (uint32_t quarter = 0; quarter < TRACE_QUARTERS; quarter++) {
		double limit = (double)read->total_ns * (quarter + 1) / 4;
		uint64_t bytes = 0;

		for (uint32_t i = 0; i < read->chunk_count; i++) {
			if ((double)read->arrivals[i].time_ns <= limit) {
				bytes += trace_chunk_bytes(read, i);
			}
		}
		analysis->arrived[quarter] = (double)bytes / read->bytes;
	}
}

/* A sender that needs the disk's time for all bytes, and is ready at "free": when it is ready again
 * after bytes more that are there at "when". */
static double send(const struct trace_read *read, double free, uint64_t when, uint32_t bytes)
{
	return fmax(free, (double)when) + (double)read->total_ns * bytes / read->bytes;
}

static double hidden(const struct trace_read *read, double end)
{
	double share = 2 - end / (double)read->total_ns;

	return fmin(fmax(share, 0), 1);
}

static void find_hidden(
	const struct trace_read *read, struct workspace *space, struct trace_analysis *analysis)
{
	double ascending = 0;
	double any = 0;
	double parts = 0;

	for (uint32_t i = 0; i < read->chunk_count; i++) {
		uint64_t when = read->arrivals[i].time_ns;

		ascending = send(read, ascending, when, trace_chunk_bytes(read, i));
		space->events[i] = (struct event){ when, i };
	}
	qsort(space->events, read->chunk_count, sizeof(*space->events), compare_events);
	for (uint32_t i = 0; i < read->chunk_count; i++) {
		const struct event *event = &space->events[i];

		any = send(read, any, event->when, trace_chunk_bytes(read, event->index));
	}
	for (uint32_t i = 0; i < read->part_count; i++) {
		space->events[i] = (struct event){ read->parts[i].completed_ns, i };
	}
	qsort(space->events, read->part_count, sizeof(*space->events), compare_events);
	for (uint32_t i = 0; i < read->part_count; i++) {
		const struct event *event = &space->events[i];

		parts = send(read, parts, event->when, read->parts[event->index].bytes);
	}
	analysis->hidden_any = hidden(read, any);
	analysis->hidden_ascending = hidden(read, ascending);
	analysis->hidden_parts = hidden(read, parts);
}

int trace_analyse(struct trace_read *read, struct trace_analysis *analysis)
{
	uint32_t events = MAX(read->chunk_count, read->part_count);
	struct workspace space = {
		.events = calloc(events, sizeof(*space.events)),
		.runs = calloc(read->chunk_count, sizeof(*space.runs)),
		.run_of = calloc(read->chunk_count, sizeof(*space.run_of)),
	};
	int err = 0;

	GMB_ASSERT(read->chunk_count > 0);
	GMB_ASSERT(read->part_count > 0);
	GMB_ASSERT(read->total_ns > 0);
	memset(analysis, 0, sizeof(*analysis));
	if (space.events == NULL || space.runs == NULL || space.run_of == NULL) {
		err = -ENOMEM;
	} else {
		count_kinds(read, analysis);
		analysis->runs = find_runs(read, &space);
		find_streams(read, &space, analysis);
		find_reordering(read, &space, analysis);
		find_quarters(read, analysis);
		find_hidden(read, &space, analysis);
	}
	free(space.run_of);
	free(space.runs);
	free(space.events);
	return err;
}
