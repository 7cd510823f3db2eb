// SPDX-License-Identifier: Apache-2.0
/*
 * Runs a trace: the reads, the thread that watches their memory, and the analysis of the observed
 * times.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "lab/lab.h"
#include "ring/ring.h"

enum {
	MARKER_BYTES = 8,
	LOOKS_BETWEEN_YIELDS = 64,
	HUGE_BYTES = 2 << 20,
	/* limit on tries: one second in total, with RETRY_NS between two tries */
	RETRIES_MAX = 1000,
	RETRY_NS = 1000000,
};

/* Global, because a signal handler has no argument for it. */
static volatile sig_atomic_t asked_to_stop;

struct tracer {
	const struct trace_work *work;
	const struct disk_info *disk;
	struct ring *ring;
	struct ring_file file;
	int fd;
	struct mem_region region; /* buffer as a region */
	uint8_t *buffer;
	size_t buffer_bytes;
	bool single_cpu;
	struct trace_read *read; /* the current read */
	struct ring_op op;
	bool is_done;
	uint32_t done_bytes;
	uint32_t retries; /* how often the read has returned -EINTR or -EAGAIN */
	uint64_t start_ns;
	struct error *error;
	int err;
	/* Used by the watching thread: the chunks that have not arrived yet, the last one first,
	 * and the chunks that were found to have arrived in the current check. */
	uint32_t *missing;
	uint32_t *found;
	atomic_bool watching; /* set by the watching thread before its first look */
	/* Set when the read is complete. Its release order pairs with the acquire in
	 * trace_run_watch(). */
	atomic_bool complete;
};

/* --- watching ------------------------------------------------------------------------------ */

static _Atomic uint64_t *marker_at(const struct tracer *tracer, uint32_t chunk)
{
	const struct trace_read *read = tracer->read;
	size_t end = (size_t)chunk * read->chunk_bytes + trace_chunk_bytes(read, chunk);

	return (_Atomic uint64_t *)(tracer->buffer + end - MARKER_BYTES);
}

/* Examines all missing chunks, from the last to the first. If a chunk is seen and a lower one is
 * not, the lower one has really arrived later, because it was examined later. The acquire order
 * keeps the loads in this order. */
static uint32_t look(struct tracer *tracer, uint32_t *missing_count)
{
	uint64_t marker = tracer->work->marker;
	uint32_t found = 0;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < *missing_count; i++) {
		uint32_t chunk = tracer->missing[i];
		uint64_t word =
			atomic_load_explicit(marker_at(tracer, chunk), memory_order_acquire);

		if (word == marker) {
			tracer->missing[kept++] = chunk;
		} else {
			tracer->found[found++] = chunk;
		}
	}
	*missing_count = kept;
	return found;
}

static void note(
	struct tracer *tracer, const uint32_t *chunks, uint32_t count, struct trace_arrival arrival)
{
	for (uint32_t i = 0; i < count; i++) {
		tracer->read->arrivals[chunks[i]] = arrival;
	}
}

/* Examines the memory repeatedly until the read is complete, and then once more. */
static void *trace_run_watch(void *context)
{
	struct tracer *tracer = context;
	uint32_t missing = tracer->read->chunk_count;
	uint32_t number = 0;
	uint64_t last_ns = clock_now_ns();

	for (uint32_t i = 0; i < missing; i++) {
		tracer->missing[i] = missing - 1 - i;
	}
	atomic_store_explicit(&tracer->watching, true, memory_order_release);
	for (;;) {
		bool complete = atomic_load_explicit(&tracer->complete, memory_order_acquire);
		uint32_t found = look(tracer, &missing);
		uint64_t now = clock_now_ns();
		struct trace_arrival arrival = {
			.time_ns = now,
			.look = ++number,
			.how = complete ? TRACE_AT_COMPLETION : TRACE_EARLY,
		};

		note(tracer, tracer->found, found, arrival);
		if (complete) {
			arrival.how = TRACE_UNSEEN;
			note(tracer, tracer->missing, missing, arrival);
			return NULL;
		}
		tracer->read->gap_max_ns = MAX(tracer->read->gap_max_ns, now - last_ns);
		last_ns = now;
		if (found == 0 && (tracer->single_cpu || number % LOOKS_BETWEEN_YIELDS == 0)) {
			sched_yield();
		}
	}
}

/* Converts the watching thread's times to times since submission. A chunk that was first seen after
 * the completion of the read is not TRACE_EARLY. */
static void convert_times(struct tracer *tracer)
{
	struct trace_read *read = tracer->read;

	for (uint32_t i = 0; i < read->chunk_count; i++) {
		struct trace_arrival *arrival = &read->arrivals[i];
		uint64_t time_ns = arrival->time_ns - MIN(arrival->time_ns, tracer->start_ns);

		if (arrival->how == TRACE_EARLY && time_ns >= read->total_ns) {
			arrival->how = TRACE_AT_COMPLETION;
		}
		arrival->time_ns = arrival->how == TRACE_EARLY ? time_ns : read->total_ns;
	}
}

/* --- reading ------------------------------------------------------------------------------- */

static void trace_run_submit(struct tracer *tracer);

static void read_failed(struct tracer *tracer, int code)
{
	tracer->is_done = true;
	tracer->err = error_set(tracer->error, code == 0 ? -EIO : code,
		"reading %u bytes at %llu of '%s': %s", tracer->read->bytes,
		(unsigned long long)tracer->read->offset, quote(tracer->work->path),
		code == 0 ? "the disk ends before this range" : strerror(-code));
}

static void read_again(struct ring_op *op, int result)
{
	GMB_UNUSED(result); /* always 0, because the timer is never cancelled */
	trace_run_submit(container_of(op, struct tracer, op));
}

static void trace_run_done(struct ring_op *op, int result)
{
	struct tracer *tracer = container_of(op, struct tracer, op);

	if ((result == -EINTR || result == -EAGAIN) && tracer->retries < RETRIES_MAX) {
		tracer->retries++;
		ring_timer(tracer->ring, op, result == -EAGAIN ? RETRY_NS : 0, read_again);
	} else if (result <= 0) {
		read_failed(tracer, result);
	} else if (tracer->done_bytes + (uint32_t)result < tracer->read->bytes) {
		tracer->done_bytes += (uint32_t)result;
		trace_run_submit(tracer);
	} else {
		tracer->is_done = true;
		tracer->read->total_ns = MAX(clock_now_ns() - tracer->start_ns, UINT64_C(1));
	}
}

static void trace_run_submit(struct tracer *tracer)
{
	ring_read(tracer->ring, &tracer->op, tracer->file,
		mem_at(&tracer->region, tracer->done_bytes),
		tracer->read->bytes - tracer->done_bytes, tracer->read->offset + tracer->done_bytes,
		trace_run_done);
}

static void trace_run_read_all(struct tracer *tracer)
{
	tracer->done_bytes = 0;
	tracer->retries = 0;
	tracer->is_done = false;
	tracer->start_ns = clock_now_ns();
	trace_run_submit(tracer);
	while (!tracer->is_done) {
		ring_turn(tracer->ring, true);
	}
}

static int trace_one(struct tracer *tracer, struct trace_read *read, struct error *error)
{
	pthread_t watcher;
	int result;

	tracer->read = read;
	tracer->error = error;
	for (uint32_t i = 0; i < read->chunk_count; i++) {
		atomic_store_explicit(
			marker_at(tracer, i), tracer->work->marker, memory_order_relaxed);
	}
	atomic_store_explicit(&tracer->watching, false, memory_order_relaxed);
	atomic_store_explicit(&tracer->complete, false, memory_order_relaxed);
	result = pthread_create(&watcher, NULL, trace_run_watch, tracer);
	if (result != 0) {
		return error_set(error, -result, "cannot start a thread: %s", strerror(result));
	}
	while (!atomic_load_explicit(&tracer->watching, memory_order_acquire)) {
		sched_yield();
	}
	trace_run_read_all(tracer);
	atomic_store_explicit(&tracer->complete, true, memory_order_release);
	pthread_join(watcher, NULL);
	convert_times(tracer);
	return tracer->err;
}

/* --- choosing the reads -------------------------------------------------------------------- */

static int read_init(
	const struct trace_work *work, uint32_t bytes, struct trace_read *read, struct error *error)
{
	read->bytes = bytes;
	read->chunk_bytes = work->chunk_bytes;
	read->chunk_count = (bytes + work->chunk_bytes - 1) / work->chunk_bytes;
	read->total_ns = 1;
	read->arrivals = calloc(read->chunk_count, sizeof(*read->arrivals));
	return read->arrivals == NULL ? error_oom(error) : 0;
}

/* Returns the offset of a read: reads are consecutive, and continue at the first offset after the
 * end of the disk. */
static uint64_t trace_run_place(const struct tracer *tracer, uint32_t bytes, uint32_t index)
{
	const struct trace_work *work = tracer->work;
	uint64_t places = (tracer->disk->size - work->offset) / bytes;

	return work->offset + index % places * bytes;
}

static int trace_run_compare_times(const void *a, const void *b, void *context)
{
	const struct trace_read *reads = context;
	uint64_t left = reads[*(const uint32_t *)a].total_ns;
	uint64_t right = reads[*(const uint32_t *)b].total_ns;

	return left < right ? -1 : left > right;
}

static int find_typical(struct trace_group *group, struct error *error)
{
	uint32_t *order = calloc(group->count, sizeof(*order));

	if (order == NULL) {
		return error_oom(error);
	}
	for (uint32_t i = 0; i < group->count; i++) {
		order[i] = i;
	}
	qsort_r(order, group->count, sizeof(*order), trace_run_compare_times, group->reads);
	group->typical = order[(group->count - 1) / 2];
	free(order);
	return 0;
}

static int trace_group(
	struct tracer *tracer, uint32_t bytes, struct trace_group *group, struct error *error)
{
	const struct trace_work *work = tracer->work;
	int err = 0;

	group->bytes = bytes;
	group->reads = calloc(work->count, sizeof(*group->reads));
	group->analyses = calloc(work->count, sizeof(*group->analyses));
	if (group->reads == NULL || group->analyses == NULL) {
		return error_oom(error);
	}
	/* The first read runs even after a signal, because the result needs at least one read. */
	for (uint32_t i = 0; i < work->count && err == 0 && (i == 0 || !asked_to_stop); i++) {
		struct trace_read *read = &group->reads[i];

		group->count = i + 1;
		err = read_init(work, bytes, read, error);
		if (err != 0) {
			break;
		}
		read->offset = trace_run_place(tracer, bytes, i);
		err = trace_one(tracer, read, error);
		if (err == 0 && trace_analyse(read, &group->analyses[i]) != 0) {
			err = error_oom(error);
		}
	}
	return err != 0 ? err : find_typical(group, error);
}

/* --- stopping ------------------------------------------------------------------------------ */

static const int stop_signals[] = { SIGINT, SIGTERM };

static void trace_run_signal_caught(int number)
{
	/* Restores the default action, so that a second signal ends the program. */
	if (asked_to_stop) {
		(void)signal(number, SIG_DFL);
		(void)raise(number);
	}
	asked_to_stop = 1;
}

static void trace_run_signals_take(struct sigaction before[ARRAY_COUNT(stop_signals)])
{
	const struct sigaction catch = { .sa_handler = trace_run_signal_caught };

	asked_to_stop = 0;
	for (size_t i = 0; i < ARRAY_COUNT(stop_signals); i++) {
		(void)sigaction(stop_signals[i], NULL, &before[i]);
		/* A signal that is ignored stays ignored: the parent could have started the program
		 * so that it survives the signal. */
		if (before[i].sa_handler != SIG_IGN) {
			(void)sigaction(stop_signals[i], &catch, NULL);
		}
	}
}

static void signals_give_back(const struct sigaction before[ARRAY_COUNT(stop_signals)])
{
	for (size_t i = 0; i < ARRAY_COUNT(stop_signals); i++) {
		(void)sigaction(stop_signals[i], &before[i], NULL);
	}
}

/* --- the disk ------------------------------------------------------------------------------ */

static int explain_no_direct(const struct trace_work *work, struct error *error)
{
	return error_set(error, -EOPNOTSUPP,
		"'%s' does not support direct I/O (O_DIRECT) because its filesystem does not; "
		"--cached reads through the page cache instead",
		quote(work->path));
}

static int disk_acquire(struct tracer *tracer, struct disk_info *disk, struct error *error)
{
	const struct trace_work *work = tracer->work;
	int err = disk_open(work->path, true, !work->cached, &tracer->fd, error);
	const char *quoted = quote(work->path);

	if (err == -EINVAL && !work->cached) {
		return explain_no_direct(work, error);
	}
	if (err == -ENOENT) {
		return error_set(error, err, "cannot open '%s': it does not exist", quoted);
	}
	if (err != 0) {
		return err;
	}
	err = disk_info(tracer->fd, disk);
	if (err != 0) {
		return error_set(error, err, "cannot examine '%s': %s", quoted, strerror(-err));
	}
	if (!work->cached && disk->direct_offset_align == 0) {
		return explain_no_direct(work, error);
	}
	return 0;
}

static int check_aligned(const struct trace_work *work, const struct disk_info *disk,
	const char *option, uint64_t value, struct error *error)
{
	uint32_t align = work->cached ? 1 : disk->direct_offset_align;
	char text[UNITS_TEXT_BYTES];

	if (value % align == 0) {
		return 0;
	}
	return error_set(error, -EINVAL,
		"%s %s is not a multiple of %u bytes, the unit of direct reads from this disk",
		option, units_format_bytes(text, value), align);
}

static int trace_run_disk_check(
	const struct trace_work *work, const struct disk_info *disk, struct error *error)
{
	int err = check_aligned(work, disk, "--offset", work->offset, error);

	for (uint32_t i = 0; i < work->size_count && err == 0; i++) {
		err = check_aligned(work, disk, "--size", work->sizes[i], error);
		if (err == 0 &&
			(work->offset > disk->size || work->sizes[i] > disk->size - work->offset)) {
			err = error_set(error, -ERANGE,
				"a read of %u bytes at %llu extends past the end of the disk, "
				"which has %llu bytes",
				work->sizes[i], (unsigned long long)work->offset,
				(unsigned long long)disk->size);
		}
	}
	return err;
}

/* Allocates memory in the same way as the server: aligned, in huge pages if possible, and
 * registered with the ring if possible. */
static int trace_run_memory_acquire(struct tracer *tracer, struct error *error)
{
	uint32_t bytes = 0;
	uint32_t chunks;

	for (uint32_t i = 0; i < tracer->work->size_count; i++) {
		bytes = MAX(bytes, tracer->work->sizes[i]);
	}
	chunks = (bytes + tracer->work->chunk_bytes - 1) / tracer->work->chunk_bytes;
	tracer->buffer_bytes = ((size_t)bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
	tracer->buffer = aligned_alloc(HUGE_BYTES, tracer->buffer_bytes);
	tracer->missing = calloc(chunks, sizeof(*tracer->missing));
	tracer->found = calloc(chunks, sizeof(*tracer->found));
	if (tracer->buffer == NULL || tracer->missing == NULL || tracer->found == NULL) {
		return error_oom(error);
	}
	/* Failure is ignored: the trace also works without huge pages. */
	(void)madvise(tracer->buffer, tracer->buffer_bytes, MADV_HUGEPAGE);
	memset(tracer->buffer, 0, tracer->buffer_bytes);
	tracer->region = (struct mem_region){
		.base = tracer->buffer, .bytes = tracer->buffer_bytes, .rights = MEM_RAM
	};
	/* without registration, reads are only slower */
	(void)!ring_memory_add(tracer->ring, &tracer->region);
	return 0;
}

static int tracer_init(struct tracer *tracer, struct disk_info *disk, struct error *error)
{
	cpu_set_t cpus;
	int err = disk_acquire(tracer, disk, error);

	err = err ?: trace_run_disk_check(tracer->work, disk, error);
	err = err ?: ring_create(&(struct ring_options){ 0 }, &tracer->ring, error);
	err = err ?: trace_run_memory_acquire(tracer, error);
	if (err != 0) {
		return err;
	}
	tracer->file = ring_file_add(tracer->ring, tracer->fd);
	tracer->single_cpu = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) < 2;
	return 0;
}

static void tracer_fini(struct tracer *tracer)
{
	ring_destroy(tracer->ring);
	free(tracer->found);
	free(tracer->missing);
	free(tracer->buffer);
	if (tracer->fd >= 0) {
		disk_close(tracer->fd);
	}
}

int trace_run(const struct trace_work *work, struct trace_result *result, struct error *error)
{
	struct tracer tracer = { .work = work, .disk = &result->disk, .fd = -1 };
	struct sigaction before[ARRAY_COUNT(stop_signals)];
	int err;

	trace_run_signals_take(before);
	err = tracer_init(&tracer, &result->disk, error);
	for (uint32_t i = 0; i < work->size_count && err == 0 && !asked_to_stop; i++) {
		result->group_count = i + 1;
		err = trace_group(&tracer, work->sizes[i], &result->groups[i], error);
		result->read_count += result->groups[i].count;
	}
	tracer_fini(&tracer);
	signals_give_back(before);
	result->interrupted = err == 0 && result->read_count < work->size_count * work->count;
	if (result->interrupted && result->read_count == 0) {
		err = error_set(error, -EINTR, "interrupted before any read was measured");
	}
	return err;
}

void trace_result_fini(struct trace_result *result)
{
	for (uint32_t i = 0; i < result->group_count; i++) {
		struct trace_group *group = &result->groups[i];

		for (uint32_t j = 0; group->reads != NULL && j < group->count; j++) {
			free(group->reads[j].arrivals);
		}
		free(group->reads);
		free(group->analyses);
	}
}

enum { NO_RUN = UINT32_MAX };

/* An item to be sorted: a chunk, with its look or time. */
struct event {
	uint64_t when;	/* number of a look, or a time */
	uint32_t index; /* index of a chunk */
};

struct run {
	uint32_t first_look;
	uint32_t last_look;
	uint32_t first_chunk;
	uint32_t last_chunk;
	uint16_t stream;
};

/* State of a stream in the analysis. */
struct stream {
	uint32_t last_look;
	uint32_t last_chunk;
	uint32_t chunks;
};

struct workspace {
	struct event *events; /* one per chunk */
	struct run *runs;
	uint32_t *run_of; /* by chunk: index of the chunk's run */
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

/* Returns the stream that the run continues, or a new one if there is none. The run can continue a
 * stream whose last chunk has a smaller index than the run's first chunk and was not seen later. If
 * there are several, the one that has not grown for the longest time is chosen, because the members
 * of a RAID take turns. */
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

	/* Runs are numbered in the order of their start. */
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
	uint32_t highest = 0; /* highest chunk that an earlier look has seen */
	uint32_t current = 0; /* highest chunk so far */

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

/* Models a network that needs total_ns to send all bytes of the read. It has sent the previous
 * bytes at the time `free`, and the next ones are in memory at `when`. Returns the time at which
 * these are sent. */
static double sender_free(const struct trace_read *read, double free, uint64_t when, uint32_t bytes)
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

	for (uint32_t i = 0; i < read->chunk_count; i++) {
		uint64_t when = read->arrivals[i].time_ns;

		ascending = sender_free(read, ascending, when, trace_chunk_bytes(read, i));
		space->events[i] = (struct event){ when, i };
	}
	qsort(space->events, read->chunk_count, sizeof(*space->events), compare_events);
	for (uint32_t i = 0; i < read->chunk_count; i++) {
		const struct event *event = &space->events[i];

		any = sender_free(read, any, event->when, trace_chunk_bytes(read, event->index));
	}
	analysis->hidden_any = hidden(read, any);
	analysis->hidden_ascending = hidden(read, ascending);
}

int trace_analyse(struct trace_read *read, struct trace_analysis *analysis)
{
	struct workspace space = {
		.events = calloc(read->chunk_count, sizeof(*space.events)),
		.runs = calloc(read->chunk_count, sizeof(*space.runs)),
		.run_of = calloc(read->chunk_count, sizeof(*space.run_of)),
	};
	int err = 0;

	GMB_ASSERT(read->chunk_count > 0);
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
