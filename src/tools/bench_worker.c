// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"

#define NS_PER_S UINT64_C(1000000000)

enum { BUFFER_ALIGNMENT = 4096, QUEUE_ENTRIES_MIN = 256, QUEUE_ENTRIES_MAX = 4096 };

/* One request that is always on its way. */
struct bench_slot {
	struct gmb_request request;
	struct gmb_extent hole; /* the first one of a read */
	struct bench_link *link;
	void *buffer;
	uint64_t start_ns;
};

/* A connection (or a client that has several) and its slots. */
struct bench_link {
	struct bench_worker *worker;
	struct gmb_client *client;
	struct bench_slot *slots;
	uint64_t block_first; /* sequential patterns: the part of the range that is this link's */
	uint64_t block_count;
	uint64_t block_next;
};

static uint64_t time_ns(struct timeval time)
{
	return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_usec * 1000;
}

/* --- the phases ---------------------------------------------------------------------------- */

static void snapshot(struct bench_worker *worker, struct bench_snapshot *out, uint64_t now)
{
	struct rusage usage;

	memset(out, 0, sizeof(*out));
	out->time_ns = now;
	getrusage(RUSAGE_SELF, &usage);
	out->cpu.user_ns = time_ns(usage.ru_utime);
	out->cpu.system_ns = time_ns(usage.ru_stime);
	out->cpu.switches_voluntary = (uint64_t)usage.ru_nvcsw;
	out->cpu.switches_involuntary = (uint64_t)usage.ru_nivcsw;
	worker->connections = 0;
	for (uint32_t i = 0; i < worker->link_count; i++) {
		struct gmb_stats stats = { .size = sizeof(stats) };
		struct gmb_info info = { .size = sizeof(info) };

		/* The library may have opened more since the beginning. */
		gmb_get_info(worker->links[i].client, &info);
		worker->connections += info.connections;
		gmb_get_stats(worker->links[i].client, &stats);
		out->stats.commands += stats.commands;
		out->stats.bytes_read += stats.bytes_read;
		out->stats.bytes_written += stats.bytes_written;
		out->stats.bytes_moved += stats.bytes_moved;
		/* Every client of a queue tells the number of the queue. */
		out->stats.system_calls = stats.system_calls;
	}
}

static void phase_measure(struct bench_worker *worker, uint64_t now)
{
	worker->phase = BENCH_MEASURE;
	worker->phase_end_ns = now + worker->shared->work->duration_ns;
	snapshot(worker, &worker->begin, now);
}

static void phase_drain(struct bench_worker *worker, uint64_t now)
{
	if (worker->phase == BENCH_MEASURE) {
		snapshot(worker, &worker->end, now);
	}
	worker->phase = BENCH_DRAIN;
	worker->phase_end_ns = UINT64_MAX;
}

static void phase_advance(struct bench_worker *worker, uint64_t now)
{
	if (worker->phase == BENCH_WARMUP) {
		phase_measure(worker, now);
	} else {
		phase_drain(worker, now);
	}
}

static void phase_begin(struct bench_worker *worker)
{
	uint64_t now = clock_now_ns();

	if (worker->shared->work->warmup_ns > 0) {
		worker->phase = BENCH_WARMUP;
		worker->phase_end_ns = now + worker->shared->work->warmup_ns;
	} else {
		phase_measure(worker, now);
	}
}

/* Keeps the first error, and tells the thread that waits, which stops the others. */
static void worker_fail(struct bench_worker *worker, const struct error *error)
{
	if (worker->failure.code == 0) {
		worker->failure = *error;
		atomic_store(&worker->shared->stop, true);
		eventfd_write(worker->shared->event_fd, 1);
	}
}

/* --- requests ------------------------------------------------------------------------------ */

static uint64_t pick_block(struct bench_link *link)
{
	struct bench_worker *worker = link->worker;
	uint64_t block;

	if (worker->shared->work->random) {
		unsigned __int128 wide = random_next(&worker->random);

		/* Uniform to within 2^-64 times the number of blocks. */
		return (uint64_t)((wide * worker->range.blocks) >> 64);
	}
	block = link->block_next++;
	if (link->block_next == link->block_first + link->block_count) {
		link->block_next = link->block_first;
	}
	return block;
}

static bool pick_read(struct bench_worker *worker)
{
	uint32_t percent = worker->shared->work->read_percent;

	return percent == 100 || (percent > 0 && random_next(&worker->random) % 100 < percent);
}

static void slot_submit(struct bench_slot *slot, uint64_t now)
{
	struct bench_worker *worker = slot->link->worker;
	const struct bench_work *work = worker->shared->work;
	uint64_t offset;

	if (worker->quota == 0) {
		return;
	}
	worker->quota--;
	worker->in_flight++;
	offset = worker->range.offset + pick_block(slot->link) * work->block_bytes;
	if (pick_read(worker)) {
		gmb_prepare_read(&slot->request, slot->buffer, work->block_bytes, offset);
		slot->request.extents = &slot->hole;
		slot->request.extents_max = 1;
	} else {
		gmb_prepare_write(&slot->request, slot->buffer, work->block_bytes, offset);
		slot->request.flags = work->fua ? GMB_FUA : 0;
	}
	slot->start_ns = now;
	gmb_submit(slot->link->client, &slot->request);
}

static void slot_failed(struct bench_slot *slot)
{
	struct bench_worker *worker = slot->link->worker;
	char text[ERROR_TEXT_BYTES];
	struct error error;

	if (worker->failure.code == 0) {
		error_set(&error, slot->request.result, "%s",
			gmb_explain(slot->link->client, &slot->request, text, sizeof(text)));
		worker_fail(worker, &error);
	}
	phase_drain(worker, clock_now_ns());
}

static void slot_done(struct gmb_request *request)
{
	struct bench_slot *slot = request->context;
	struct bench_worker *worker = slot->link->worker;
	uint64_t now = clock_now_ns();

	worker->in_flight--;
	if (unlikely(request->result != 0)) {
		slot_failed(slot);
		return;
	}
	if (likely(worker->phase == BENCH_MEASURE)) {
		uint32_t direction = request->operation == GMB_READ ? BENCH_READ : BENCH_WRITE;

		histogram_record(&worker->latency_ns[direction], now - slot->start_ns);
		worker->hole_reads += request->extent_count;
	}
	/* Written by this thread only: a plain load and store. */
	atomic_store_explicit(&worker->completed,
		atomic_load_explicit(&worker->completed, memory_order_relaxed) + 1,
		memory_order_relaxed);
	if (unlikely(now >= worker->phase_end_ns)) {
		/* After recording: as many completions as intervals between them. */
		phase_advance(worker, now);
	}
	if (likely(worker->phase != BENCH_DRAIN)) {
		slot_submit(slot, now);
	}
}

/* --- preparing ----------------------------------------------------------------------------- */

static int buffers_make(struct bench_worker *worker, struct error *error)
{
	const struct bench_work *work = worker->shared->work;
	size_t stride = ((size_t)work->block_bytes + BUFFER_ALIGNMENT - 1) &
			~(size_t)(BUFFER_ALIGNMENT - 1);
	uint8_t *next;

	worker->buffers_bytes = stride * work->depth * worker->link_count;
	next = mmap(NULL, worker->buffers_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (next == MAP_FAILED) {
		int err = -errno;

		return error_set(error, err, "no memory for %zu bytes of buffers: %s",
			worker->buffers_bytes, strerror(-err));
	}
	worker->buffers = next;
	/* Every page is there before the clock runs, and no store can compress or elide it. */
	for (size_t i = 0; i < worker->buffers_bytes; i += sizeof(uint64_t)) {
		uint64_t value = random_next(&worker->random);

		memcpy(next + i, &value, sizeof(value));
	}
	for (uint32_t i = 0; i < worker->link_count; i++) {
		for (uint32_t j = 0; j < work->depth; j++) {
			struct bench_slot *slot = &worker->links[i].slots[j];

			slot->link = &worker->links[i];
			slot->buffer = next;
			slot->request.done = slot_done;
			slot->request.context = slot;
			next += stride;
		}
	}
	return 0;
}

static int link_open(struct bench_worker *worker, struct bench_link *link, struct error *error)
{
	const struct bench_work *work = worker->shared->work;
	uint32_t timeout_ms = clock_milliseconds(work->timeout_ns);
	struct gmb_options options = {
		.size = sizeof(options),
		/* A connection that is lost in the middle would only falsify the figures. */
		.flags = GMB_OPEN_NO_RECONNECT | (bench_writes(work) ? 0 : GMB_OPEN_READ_ONLY),
		.connections = work->connections == 0 ? 0 : 1,
		.connect_timeout_ms = timeout_ms,
		.request_timeout_ms = timeout_ms,
		.depth = work->depth,
	};
	struct gmb_info info = { .size = sizeof(info) };
	struct gmb_error theirs;
	int err;

	link->worker = worker;
	link->slots = calloc(work->depth, sizeof(*link->slots));
	if (link->slots == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	err = gmb_open(worker->queue, work->uri, &options, &link->client, &theirs);
	if (err != 0) {
		return error_set(error, err, "%s", theirs.text);
	}
	gmb_get_info(link->client, &info);
	if (link == worker->links) {
		worker->info = info;
		err = bench_range(work, &info, &worker->range, error);
	}
	return err;
}

/* Sequential patterns: each link has a part of the range to itself, as long as there are blocks. */
static void link_place(struct bench_link *link, uint32_t number)
{
	const struct bench_work *work = link->worker->shared->work;
	uint64_t links = MAX(work->connections, work->threads);
	uint64_t blocks = link->worker->range.blocks;
	unsigned __int128 wide = blocks;

	link->block_first = (uint64_t)(wide * number / links);
	link->block_count = (uint64_t)(wide * (number + 1) / links) - link->block_first;
	if (link->block_count == 0) {
		link->block_first = number % blocks;
		link->block_count = 1;
	}
	link->block_next = link->block_first;
}

static void queue_set(struct bench_worker *worker, struct gmb_queue *queue)
{
	pthread_mutex_lock(&worker->queue_lock);
	worker->queue = queue;
	pthread_mutex_unlock(&worker->queue_lock);
}

void bench_worker_wake(struct bench_worker *worker)
{
	pthread_mutex_lock(&worker->queue_lock);
	if (worker->queue != NULL) {
		gmb_queue_wake(worker->queue);
	}
	pthread_mutex_unlock(&worker->queue_lock);
}

static int worker_prepare(struct bench_worker *worker, struct error *error)
{
	const struct bench_work *work = worker->shared->work;
	uint64_t requests = (uint64_t)work->depth * worker->link_count;
	uint64_t entries = MAX(requests, (uint64_t)QUEUE_ENTRIES_MIN);
	struct gmb_queue_options options = {
		.size = sizeof(options),
		.entries = (uint32_t)MIN(entries, (uint64_t)QUEUE_ENTRIES_MAX),
	};
	struct gmb_queue *queue;
	struct gmb_error theirs;
	int err = gmb_queue_create(&options, &queue, &theirs);

	if (err != 0) {
		return error_set(error, err, "%s", theirs.text);
	}
	queue_set(worker, queue);
	worker->links = calloc(worker->link_count, sizeof(*worker->links));
	if (worker->links == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	for (uint32_t i = 0; i < worker->link_count && err == 0; i++) {
		err = link_open(worker, &worker->links[i], error);
	}
	if (err != 0) {
		return err;
	}
	for (uint32_t i = 0; i < worker->link_count; i++) {
		link_place(&worker->links[i], worker->link_first + i);
	}
	return buffers_make(worker, error);
}

static void worker_fini(struct bench_worker *worker)
{
	struct gmb_queue *queue = worker->queue;

	for (uint32_t i = 0; worker->links != NULL && i < worker->link_count; i++) {
		gmb_close(worker->links[i].client);
		free(worker->links[i].slots);
	}
	free(worker->links);
	worker->links = NULL;
	queue_set(worker, NULL);
	GMB_ASSERT(gmb_queue_destroy(queue) == 0);
	if (worker->buffers != NULL) {
		munmap(worker->buffers, worker->buffers_bytes);
		worker->buffers = NULL;
	}
}

/* --- the thread ---------------------------------------------------------------------------- */

/* How long to wait for completions: until the phase is over. */
static int wait_ms(const struct bench_worker *worker, uint64_t now)
{
	uint64_t left_ns;

	if (worker->phase_end_ns == UINT64_MAX) {
		return -1;
	}
	left_ns = worker->phase_end_ns > now ? worker->phase_end_ns - now : 0;
	return (int)MIN(left_ns / 1000000 + 1, (uint64_t)INT32_MAX);
}

static void worker_run(struct bench_worker *worker)
{
	phase_begin(worker);
	for (uint32_t i = 0; i < worker->link_count; i++) {
		for (uint32_t j = 0; j < worker->shared->work->depth; j++) {
			slot_submit(&worker->links[i].slots[j], clock_now_ns());
		}
	}
	while (worker->in_flight > 0) {
		uint64_t now = clock_now_ns();
		int count;

		if (now >= worker->phase_end_ns) {
			phase_advance(worker, now);
		}
		if (worker->phase != BENCH_DRAIN &&
			atomic_load_explicit(&worker->shared->stop, memory_order_relaxed)) {
			phase_drain(worker, now);
		}
		count = gmb_queue_wait(worker->queue, wait_ms(worker, now));
		if (count < 0 && count != -EINTR) {
			struct error error;

			error_set(&error, count, "waiting for the server failed: %s",
				strerror(-count));
			worker_fail(worker, &error);
			/* Closing the clients ends what is still in flight. */
			phase_drain(worker, clock_now_ns());
			return;
		}
	}
	/* The quota is used up. */
	if (worker->phase != BENCH_DRAIN) {
		phase_drain(worker, clock_now_ns());
	}
}

/* All begin together: the connections of one worker must not be slow because another one still
 * shakes hands. */
static void gate_pass(struct bench_shared *shared)
{
	atomic_fetch_add(&shared->arrived, 1);
	eventfd_write(shared->event_fd, 1);
	pthread_mutex_lock(&shared->gate_lock);
	while (!shared->gate_open) {
		pthread_cond_wait(&shared->gate_changed, &shared->gate_lock);
	}
	pthread_mutex_unlock(&shared->gate_lock);
}

void *bench_worker_main(void *argument)
{
	struct bench_worker *worker = argument;
	struct error error;

	worker->random = worker->shared->work->seed + worker->number * UINT64_C(0xd1342543de82ef95);
	if (worker_prepare(worker, &error) != 0) {
		worker_fail(worker, &error);
	}
	gate_pass(worker->shared);
	if (!atomic_load(&worker->shared->stop)) {
		worker_run(worker);
	}
	worker_fini(worker);
	atomic_fetch_add(&worker->shared->ended, 1);
	eventfd_write(worker->shared->event_fd, 1);
	return NULL;
}
