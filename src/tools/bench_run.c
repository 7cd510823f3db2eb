// SPDX-License-Identifier: Apache-2.0
/*
 * Runs "gmblock bench". Each worker is a thread with a completion queue, the connections on it and
 * their requests. The main thread starts the workers, waits for them and adds up their results.
 *
 * A worker frees everything except its results before its thread ends. If errors occur, it reports
 * the first one.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "client/guest.h"
#include "tools/bench.h"
#include "tools/bench_plan.h"
#include "tools/show.h"

enum bench_phase {
	BENCH_WARMUP,  /* requests run and are not counted */
	BENCH_MEASURE, /* requests run and are counted */
	BENCH_DRAIN,   /* no further requests are submitted; waits for those in flight */
};

/* The state that the workers of a run share. */
struct bench_shared {
	const struct bench_work *work;
	pthread_mutex_t gate_lock;
	pthread_cond_t gate_changed;
	/* under the lock: workers may start, because all have connected or the run has failed */
	bool gate_open;
	atomic_bool stop;    /* end as soon as possible */
	atomic_uint arrived; /* workers that have reached the gate */
	atomic_uint ended;   /* workers that have ended */
	int event_fd;	     /* written when one of the above changes */
};

/* Cumulative counters at one moment. */
struct bench_snapshot {
	uint64_t time_ns;
	struct bench_cpu cpu;
	struct gmb_stats stats;
};

struct bench_link;
struct bench_slot;

struct bench_worker {
	struct bench_shared *shared;
	uint32_t number;
	uint32_t link_count;
	uint32_t link_first; /* index of the worker's first link among all links */
	uint64_t quota;	     /* number of requests that the worker may still submit */

	pthread_t thread;
	pthread_mutex_t queue_lock; /* held while the queue is woken, set or destroyed */
	struct gmb_queue *queue;
	struct bench_link *links;

	enum bench_phase phase;
	uint64_t phase_end_ns;
	uint64_t random;
	uint32_t in_flight;
	struct bench_order order; /* order of the blocks, with work->once and random */

	/* The members below are used with a rate. */
	struct bench_schedule schedule;
	uint64_t sent;		      /* requests of the schedule that were submitted */
	struct bench_slot *idle;      /* slots that wait for the next due request, in order */
	struct bench_slot *idle_last; /* valid only if idle is not NULL */

	/* Results. */
	struct error failure;
	struct histogram latency_ns[BENCH_DIRECTIONS];
	struct histogram late_ns;
	uint64_t blocks_used; /* number of blocks used, with work->once */
	uint64_t hole_reads;
	struct bench_snapshot begin; /* time 0: measuring never started */
	struct bench_snapshot end;
	struct bench_range range;
	struct gmb_info info;
	char host[EXPORT_URI_LABEL_BYTES]; /* as in struct bench_result */
	uint32_t connections;
	/* number of completed requests, for the progress line; includes the warm-up */
	_Atomic uint64_t completed;
};

#define NS_PER_S UINT64_C(1000000000)

enum {
	BUFFER_ALIGNMENT = 4096,
	QUEUE_ENTRIES_MIN = 256,
	QUEUE_ENTRIES_MAX = 4096,
	RECONNECT_MS_MAX = 5000,
};

/* One request that is submitted again and again. */
struct bench_slot {
	struct gmb_request request;
	struct gmb_extent hole; /* first extent of a read's answer */
	struct bench_link *link;
	struct bench_slot *idle_next;
	void *buffer;
	uint64_t start_ns;
};

/* A connection (or a client with several connections) and its slots. */
struct bench_link {
	struct bench_worker *worker;
	struct gmb_client *client;
	struct bench_slot *slots;
	/* The blocks of this link, if the pattern is sequential or each block is used once:
	 * positions in the range, or in the worker's order. */
	uint64_t block_first;
	uint64_t block_end;
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

		/* The library might have opened more connections since the start. */
		gmb_get_info(worker->links[i].client, &info);
		worker->connections += info.connections;
		gmb_get_stats(worker->links[i].client, &stats);
		out->stats.commands += stats.commands;
		out->stats.bytes_read += stats.bytes_read;
		out->stats.bytes_written += stats.bytes_written;
		out->stats.bytes_moved += stats.bytes_moved;
		out->stats.connections_lost += stats.connections_lost;
		/* Not sums, because each client reports the numbers of the whole queue. */
		out->stats.system_calls = stats.system_calls;
		out->stats.polls = stats.polls;
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
	if (worker->phase == BENCH_DRAIN) {
		return;
	}
	if (worker->phase == BENCH_MEASURE) {
		snapshot(worker, &worker->end, now);
	}
	if (export_uri_count_hosts(worker->shared->work->uri) > 1) {
		snprintf(worker->host, sizeof(worker->host), "%s",
			gmb_server(worker->links[0].client));
	}
	worker->phase = BENCH_DRAIN;
	worker->phase_end_ns = now + worker->shared->work->timeout_ns;
	worker->idle = NULL;
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

	worker->schedule.begin_ns = now;
	if (worker->shared->work->warmup_ns > 0) {
		worker->phase = BENCH_WARMUP;
		worker->phase_end_ns = now + worker->shared->work->warmup_ns;
	} else {
		phase_measure(worker, now);
	}
}

/* Keeps the first error, and notifies the main thread, which stops the other workers. */
static void worker_fail(struct bench_worker *worker, const struct error *error)
{
	if (worker->failure.code == 0) {
		worker->failure = *error;
		atomic_store(&worker->shared->stop, true);
		eventfd_write(worker->shared->event_fd, 1);
	}
}

/* --- requests ------------------------------------------------------------------------------ */

/* Chooses the block of the next request. Returns false if the link has used all of its blocks. */
static bool pick_block(struct bench_link *link, uint64_t *block)
{
	struct bench_worker *worker = link->worker;
	const struct bench_work *work = worker->shared->work;

	if (work->random && !work->once) {
		unsigned __int128 wide = random_next(&worker->random);

		/* The deviation from a uniform distribution is below 2^-64 times the number of
		 * blocks. */
		*block = (uint64_t)((wide * worker->range.blocks) >> 64);
		return true;
	}
	if (link->block_next == link->block_end) {
		if (work->once) {
			return false;
		}
		link->block_next = link->block_first;
	}
	*block = link->block_next++;
	if (work->once) {
		worker->blocks_used++;
		*block = work->random ? bench_order_at(&worker->order, *block) : *block;
	}
	return true;
}

static bool pick_read(struct bench_worker *worker)
{
	uint32_t percent = worker->shared->work->read_percent;

	return percent == 100 || (percent > 0 && random_next(&worker->random) % 100 < percent);
}

/* Submits the slot's next request. Returns false if no request is left for it. */
static bool slot_submit(struct bench_slot *slot, uint64_t now)
{
	struct bench_worker *worker = slot->link->worker;
	const struct bench_work *work = worker->shared->work;
	uint64_t block;
	uint64_t offset;

	if (worker->quota == 0 || !pick_block(slot->link, &block)) {
		return false;
	}
	worker->quota--;
	worker->in_flight++;
	offset = worker->range.offset + block * work->block_bytes;
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
	return true;
}

/* Appends the slot to the queue of idle slots. */
static void slot_idle(struct bench_slot *slot)
{
	struct bench_worker *worker = slot->link->worker;

	slot->idle_next = NULL;
	if (worker->idle == NULL) {
		worker->idle = slot;
	} else {
		worker->idle_last->idle_next = slot;
	}
	worker->idle_last = slot;
}

/* Submits the requests that are due while there are idle slots. Returns the time at which the next
 * request is due, or UINT64_MAX if it must wait for a slot or there is no rate. */
static uint64_t submit_due(struct bench_worker *worker, uint64_t now)
{
	while (worker->idle != NULL) {
		struct bench_slot *slot = worker->idle;
		uint64_t due_ns = bench_schedule_due_ns(&worker->schedule, worker->sent);

		if (due_ns > now) {
			return due_ns;
		}
		worker->idle = slot->idle_next;
		if (slot_submit(slot, now)) {
			worker->sent++;
			if (worker->phase == BENCH_MEASURE) {
				histogram_record(&worker->late_ns, now - due_ns);
			}
		}
	}
	return UINT64_MAX;
}

/* Starts the slot's next request immediately, or queues the slot until one is due. */
static void slot_start(struct bench_slot *slot, uint64_t now)
{
	if (slot->link->worker->schedule.per_second > 0) {
		slot_idle(slot);
	} else {
		GMB_UNUSED(slot_submit(slot, now));
	}
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

static void bench_run_slot_done(struct gmb_request *request)
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
	/* Only this thread writes the counter, so a plain load and store suffice. */
	atomic_store_explicit(&worker->completed,
		atomic_load_explicit(&worker->completed, memory_order_relaxed) + 1,
		memory_order_relaxed);
	if (unlikely(now >= worker->phase_end_ns)) {
		/* The measurement can end in this call. The request was recorded before, so the
		 * measurement includes it. */
		phase_advance(worker, now);
	}
	if (likely(worker->phase != BENCH_DRAIN)) {
		slot_start(slot, now);
	}
}

/* --- preparing ----------------------------------------------------------------------------- */

static int buffers_make(struct bench_worker *worker, struct error *error)
{
	const struct bench_work *work = worker->shared->work;
	size_t stride = ((size_t)work->block_bytes + BUFFER_ALIGNMENT - 1) &
			~(size_t)(BUFFER_ALIGNMENT - 1);
	size_t bytes = stride * work->depth * worker->link_count;
	struct gmb_error theirs;
	uint8_t *next;
	void *base;
	int err = gmb_buffer_alloc(worker->queue, bytes, 0, &base, &theirs);

	if (err != 0) {
		return error_set(error, err, "%s", theirs.text);
	}
	next = base;
	/* Random data, which a store can neither compress nor deduplicate. */
	for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
		uint64_t value = random_next(&worker->random);

		memcpy(next + i, &value, sizeof(value));
	}
	for (uint32_t i = 0; i < worker->link_count; i++) {
		for (uint32_t j = 0; j < work->depth; j++) {
			struct bench_slot *slot = &worker->links[i].slots[j];

			slot->link = &worker->links[i];
			slot->buffer = next;
			slot->request.done = bench_run_slot_done;
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
		.flags = GMB_OPEN_URI_FILES | (bench_writes(work) ? 0 : GMB_OPEN_READ_ONLY),
		.connections = work->connections == 0 ? 0 : 1,
		.connect_timeout_ms = timeout_ms,
		.request_timeout_ms = timeout_ms,
		.slow_timeout_ms = timeout_ms,
		/* A server that is being replaced is back within this time. Otherwise it is assumed
		 * to have ended. */
		.reconnect_timeout_ms = MIN(timeout_ms, (uint32_t)RECONNECT_MS_MAX),
		.depth = work->depth,
		.event = show_silent,
	};
	struct gmb_info info = { .size = sizeof(info) };
	struct gmb_error theirs;
	int err;

	link->worker = worker;
	link->slots = calloc(work->depth, sizeof(*link->slots));
	if (link->slots == NULL) {
		return error_oom(error);
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

/* Gives the link its own part of the range or of the order. If there are more links than blocks,
 * some links share a block, or get none if each block is used once. */
static void link_place(struct bench_link *link, uint32_t number)
{
	const struct bench_work *work = link->worker->shared->work;
	uint64_t links = MAX(work->connections, work->threads);
	uint64_t blocks = link->worker->range.blocks;
	unsigned __int128 wide = blocks;

	link->block_first = (uint64_t)(wide * number / links);
	link->block_end = (uint64_t)(wide * (number + 1) / links);
	if (link->block_first == link->block_end && !work->once) {
		link->block_first = number % blocks;
		link->block_end = link->block_first + 1;
	}
	link->block_next = link->block_first;
}

static void queue_set(struct bench_worker *worker, struct gmb_queue *queue)
{
	pthread_mutex_lock(&worker->queue_lock);
	worker->queue = queue;
	pthread_mutex_unlock(&worker->queue_lock);
}

/* Makes the worker check shared->stop. Any thread. */
static void worker_wake(struct bench_worker *worker)
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
		.flags = work->spin == BENCH_SPIN_OFF ? GMB_QUEUE_NO_SPIN : 0,
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
		return error_oom(error);
	}
	for (uint32_t i = 0; i < worker->link_count && err == 0; i++) {
		err = link_open(worker, &worker->links[i], error);
	}
	/* The first worker checks the contents, while the others wait at the gate. */
	if (err == 0 && worker->number == 0 && bench_writes(work) && !work->force) {
		err = bench_contents_check(
			work, worker->links[0].client, &worker->info, &worker->range, error);
	}
	if (err != 0) {
		return err;
	}
	/* All workers have the same order, and each uses a different part of it. */
	bench_order_init(&worker->order, worker->range.blocks, work->seed);
	for (uint32_t i = 0; i < worker->link_count; i++) {
		link_place(&worker->links[i], worker->link_first + i);
	}
	return buffers_make(worker, error);
}

static void worker_fini(struct bench_worker *worker)
{
	struct gmb_queue *queue = worker->queue;
	int err;

	for (uint32_t i = 0; worker->links != NULL && i < worker->link_count; i++) {
		gmb_close(worker->links[i].client);
		free(worker->links[i].slots);
	}
	free(worker->links);
	worker->links = NULL;
	queue_set(worker, NULL);
	err = gmb_queue_destroy(queue); /* this also frees the buffers */
	GMB_ASSERT(err == 0);
}

/* --- the thread ---------------------------------------------------------------------------- */

/* Returns the time to wait for completions: until the end of the phase. */
static int wait_ms(const struct bench_worker *worker, uint64_t now)
{
	uint64_t left_ns = worker->phase_end_ns > now ? worker->phase_end_ns - now : 0;

	return (int)MIN(left_ns / 1000000 + 1, (uint64_t)INT32_MAX);
}

/* Sends submitted requests, and waits for completions until the phase ends or the next request is
 * due. Returns like gmb_queue_wait(). */
static int worker_wait(struct bench_worker *worker, uint64_t now, uint64_t due_ns)
{
	struct pollfd fd = { .events = POLLIN };
	struct timespec limit;
	uint64_t left_ns;
	int count;

	if (due_ns == UINT64_MAX) {
		return gmb_queue_wait(worker->queue, wait_ms(worker, now));
	}
	/* Only here, because a queue with a descriptor makes more system calls. */
	fd.fd = gmb_queue_fd(worker->queue);
	count = gmb_queue_wait(worker->queue, 0);
	now = clock_now_ns();
	due_ns = MIN(due_ns, worker->phase_end_ns);
	if (count != 0 || due_ns <= now) {
		return count;
	}
	/* Waits with poll(), because the timeout of gmb_queue_wait() is in whole milliseconds,
	 * which is too coarse. */
	left_ns = due_ns - now;
	limit.tv_sec = (time_t)(left_ns / NS_PER_S);
	limit.tv_nsec = (long)(left_ns % NS_PER_S);
	return ppoll(&fd, 1, &limit, NULL) < 0 ? -errno : 0;
}

/* Gives up after the time limit. If a server sends a byte now and then, the library's timeout does
 * not expire, and the program would wait forever. */
static void worker_abandon(struct bench_worker *worker)
{
	struct error error;

	error_set(&error, -ETIMEDOUT, "%u requests did not complete within %.3g s after the run",
		worker->in_flight, (double)worker->shared->work->timeout_ns / NS_PER_S);
	worker_fail(worker, &error);
	for (uint32_t i = 0; i < worker->link_count; i++) {
		client_end(worker->links[i].client);
	}
}

static void worker_run(struct bench_worker *worker)
{
	phase_begin(worker);
	if (worker->schedule.per_second > 0) {
		/* Otherwise the kernel may delay this thread's timers by 50 us. */
		GMB_UNUSED(prctl(PR_SET_TIMERSLACK, 1));
	}
	/* Starts the first slot of every link, then the second of every link, and so on, so that a
	 * rate is spread over all links. */
	for (uint32_t j = 0; j < worker->shared->work->depth; j++) {
		for (uint32_t i = 0; i < worker->link_count; i++) {
			slot_start(&worker->links[i].slots[j], clock_now_ns());
		}
	}
	for (;;) {
		uint64_t now = clock_now_ns();
		uint64_t due_ns;
		int count;

		if (now >= worker->phase_end_ns && worker->phase == BENCH_DRAIN) {
			worker_abandon(worker);
			return;
		}
		if (now >= worker->phase_end_ns) {
			phase_advance(worker, now);
		}
		if (worker->phase != BENCH_DRAIN &&
			atomic_load_explicit(&worker->shared->stop, memory_order_relaxed)) {
			phase_drain(worker, now);
		}
		due_ns = submit_due(worker, now);
		if (worker->in_flight == 0 && worker->idle == NULL) {
			break;
		}
		count = worker_wait(worker, now, due_ns);
		if (count < 0 && count != -EINTR) {
			struct error error;

			error_set(
				&error, count, "cannot wait for the server: %s", strerror(-count));
			worker_fail(worker, &error);
			/* The requests in flight are ended when the clients are closed. */
			phase_drain(worker, clock_now_ns());
			return;
		}
	}
	/* All requests or blocks of this worker are used. */
	if (worker->phase != BENCH_DRAIN) {
		phase_drain(worker, clock_now_ns());
	}
}

/* Waits until all workers can start together, because the handshakes of one worker would slow the
 * connections of another. */
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

/* The thread's function: connects, waits at the gate, and works. */
static void *worker_main(void *argument)
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

/* --- the run --------------------------------------------------------------------------------- */

enum { PROGRESS_MS = 1000 };

struct bench {
	struct bench_shared shared;
	struct bench_worker *workers;
	uint64_t begin_ns; /* time at which all workers were allowed to start, or 0 */
	uint32_t worker_count;
	uint32_t started; /* number of threads */
	int signal_fd;
	bool interrupted;
	sigset_t signals;
	sigset_t signals_before;
};

/* --- starting and ending ------------------------------------------------------------------- */

/* Routes signals to a descriptor. The threads inherit the blocked mask. */
static int bench_run_signals_take(struct bench *bench, struct error *error)
{
	int err;

	sigemptyset(&bench->signals);
	sigaddset(&bench->signals, SIGINT);
	sigaddset(&bench->signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &bench->signals, &bench->signals_before);
	bench->signal_fd = signalfd(-1, &bench->signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (bench->signal_fd < 0) {
		err = -errno;
		return error_set(error, err, "signalfd failed: %s", strerror(-err));
	}
	bench->shared.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (bench->shared.event_fd < 0) {
		err = -errno;
		return error_set(error, err, "eventfd failed: %s", strerror(-err));
	}
	return 0;
}

/* Distributes the connections and the requests over the workers. */
static void share_out(struct bench *bench)
{
	const struct bench_work *work = bench->shared.work;
	uint32_t links = MAX(work->connections, work->threads);

	for (uint32_t i = 0; i < bench->worker_count; i++) {
		struct bench_worker *worker = &bench->workers[i];

		worker->shared = &bench->shared;
		worker->number = i;
		worker->link_first = links * i / bench->worker_count;
		worker->link_count = links * (i + 1) / bench->worker_count - worker->link_first;
		worker->schedule.per_second =
			work->rate_bytes > 0 ? work->rate_bytes : work->rate_requests;
		worker->schedule.cost = work->rate_bytes > 0 ? work->block_bytes : 1;
		worker->schedule.first = i;
		worker->schedule.step = bench->worker_count;
		worker->quota = UINT64_MAX;
		if (work->requests_max > 0) {
			worker->quota = work->requests_max / bench->worker_count +
					(i < work->requests_max % bench->worker_count);
		}
		pthread_mutex_init(&worker->queue_lock, NULL);
	}
}

static int threads_start(struct bench *bench, struct error *error)
{
	for (; bench->started < bench->worker_count; bench->started++) {
		struct bench_worker *worker = &bench->workers[bench->started];
		int err = pthread_create(&worker->thread, NULL, worker_main, worker);

		if (err != 0) {
			return error_set(error, -err, "cannot start a thread: %s", strerror(err));
		}
	}
	return 0;
}

static int bench_init(struct bench *bench, const struct bench_work *work, struct error *error)
{
	int err;

	bench->shared.work = work;
	bench->shared.event_fd = -1;
	bench->signal_fd = -1;
	bench->worker_count = work->threads;
	pthread_mutex_init(&bench->shared.gate_lock, NULL);
	pthread_cond_init(&bench->shared.gate_changed, NULL);
	err = bench_run_signals_take(bench, error);
	if (err != 0) {
		return err;
	}
	bench->workers = calloc(bench->worker_count, sizeof(*bench->workers));
	if (bench->workers == NULL) {
		return error_oom(error);
	}
	share_out(bench);
	return 0;
}

static void bench_fini(struct bench *bench)
{
	for (uint32_t i = 0; bench->workers != NULL && i < bench->worker_count; i++) {
		pthread_mutex_destroy(&bench->workers[i].queue_lock);
	}
	free(bench->workers);
	pthread_cond_destroy(&bench->shared.gate_changed);
	pthread_mutex_destroy(&bench->shared.gate_lock);
	if (bench->shared.event_fd >= 0) {
		close(bench->shared.event_fd);
	}
	if (bench->signal_fd >= 0) {
		close(bench->signal_fd);
	}
	pthread_sigmask(SIG_SETMASK, &bench->signals_before, NULL);
}

/* --- waiting ------------------------------------------------------------------------------- */

static void gate_open(struct bench *bench)
{
	bench->begin_ns = bench->begin_ns == 0 ? clock_now_ns() : bench->begin_ns;
	pthread_mutex_lock(&bench->shared.gate_lock);
	bench->shared.gate_open = true;
	pthread_cond_broadcast(&bench->shared.gate_changed);
	pthread_mutex_unlock(&bench->shared.gate_lock);
}

static void stop_all(struct bench *bench)
{
	atomic_store(&bench->shared.stop, true);
	gate_open(bench);
	for (uint32_t i = 0; i < bench->started; i++) {
		worker_wake(&bench->workers[i]);
	}
}

/* Stops the run. The signals are unblocked, so that a second one ends the program. */
static void signals_handle(struct bench *bench)
{
	struct signalfd_siginfo info;

	if (read(bench->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		bench->interrupted = true;
		stop_all(bench);
		pthread_sigmask(SIG_UNBLOCK, &bench->signals, NULL);
	}
}

/* Prints a line once a second while requests run. */
static void progress_print(const struct bench *bench, uint64_t *last)
{
	const struct bench_work *work = bench->shared.work;
	uint64_t end_ns = bench->begin_ns + work->warmup_ns + work->duration_ns;
	uint64_t now_ns = clock_now_ns();
	uint64_t left_ns = end_ns > now_ns ? end_ns - now_ns : 0;
	bool may_end_before = work->once || work->requests_max > 0;
	char rate[UNITS_TEXT_BYTES];
	uint64_t total = 0;

	for (uint32_t i = 0; i < bench->worker_count; i++) {
		total += atomic_load_explicit(&bench->workers[i].completed, memory_order_relaxed);
	}
	fprintf(stderr,
		"\r%" PRIu64 " requests, %" PRIu64 " in the last second, %s/s, %s%" PRIu64
		" s left\033[K",
		total, total - *last, units_human_bytes(rate, (total - *last) * work->block_bytes),
		may_end_before ? "at most " : "", (left_ns + NS_PER_S - 1) / NS_PER_S);
	*last = total;
}

/* Opens the gate when all workers have arrived, and returns when all have ended. */
static void wait_for_workers(struct bench *bench, bool progress)
{
	struct pollfd fds[] = {
		{ .fd = bench->signal_fd, .events = POLLIN },
		{ .fd = bench->shared.event_fd, .events = POLLIN },
	};
	bool shown = false;
	uint64_t last = 0;

	while (atomic_load(&bench->shared.ended) < bench->started) {
		eventfd_t count;
		int ready = poll(fds, ARRAY_COUNT(fds), progress ? PROGRESS_MS : -1);

		if (ready == 0) {
			if (bench->begin_ns > 0) {
				progress_print(bench, &last);
				shown = true;
			}
			continue;
		}
		if (ready > 0 && fds[0].revents != 0) {
			signals_handle(bench);
		}
		if (ready > 0 && fds[1].revents != 0) {
			GMB_UNUSED(eventfd_read(bench->shared.event_fd, &count));
		}
		if (atomic_load(&bench->shared.stop)) {
			stop_all(bench);
		} else if (atomic_load(&bench->shared.arrived) == bench->worker_count) {
			gate_open(bench);
		}
	}
	if (shown) {
		fputs("\r\033[K", stderr);
	}
}

static void join_all(struct bench *bench)
{
	for (uint32_t i = 0; i < bench->started; i++) {
		pthread_join(bench->workers[i].thread, NULL);
	}
}

/* --- the result ---------------------------------------------------------------------------- */

static void add_worker(struct bench_result *result, const struct bench_worker *worker)
{
	const struct gmb_stats *begin = &worker->begin.stats;
	const struct gmb_stats *end = &worker->end.stats;

	for (int i = 0; i < BENCH_DIRECTIONS; i++) {
		histogram_merge(&result->latency_ns[i], &worker->latency_ns[i]);
	}
	histogram_merge(&result->late_ns, &worker->late_ns);
	result->blocks_used += worker->blocks_used;
	result->hole_reads += worker->hole_reads;
	result->connections += worker->connections;
	result->stats.commands += end->commands - begin->commands;
	result->stats.bytes_read += end->bytes_read - begin->bytes_read;
	result->stats.bytes_written += end->bytes_written - begin->bytes_written;
	result->stats.bytes_moved += end->bytes_moved - begin->bytes_moved;
	result->stats.connections_lost += end->connections_lost - begin->connections_lost;
	result->stats.system_calls += end->system_calls - begin->system_calls;
	result->stats.polls += end->polls - begin->polls;
}

/* Adds the processor time of the process. Workers start and end within microseconds of each other,
 * so the first worker's interval is used for all. */
static void add_time(const struct bench *bench, struct bench_result *result)
{
	const struct bench_worker *first = &bench->workers[0];
	const struct bench_cpu *begin = &first->begin.cpu;
	const struct bench_cpu *end = &first->end.cpu;

	result->cpu.user_ns = end->user_ns - begin->user_ns;
	result->cpu.system_ns = end->system_ns - begin->system_ns;
	result->cpu.switches_voluntary = end->switches_voluntary - begin->switches_voluntary;
	result->cpu.switches_involuntary = end->switches_involuntary - begin->switches_involuntary;
	for (uint32_t i = 0; i < bench->worker_count; i++) {
		const struct bench_worker *worker = &bench->workers[i];

		result->elapsed_ns =
			MAX(result->elapsed_ns, worker->end.time_ns - worker->begin.time_ns);
	}
}

static int bench_run_collect(struct bench *bench, struct bench_result *result, struct error *error)
{
	for (uint32_t i = 0; i < bench->worker_count; i++) {
		const struct bench_worker *worker = &bench->workers[i];

		if (worker->failure.code != 0) {
			*error = worker->failure;
			return error->code;
		}
		add_worker(result, worker);
	}
	add_time(bench, result);
	result->info = bench->workers[0].info;
	memcpy(result->host, bench->workers[0].host, sizeof(result->host));
	result->range = bench->workers[0].range;
	result->interrupted = bench->interrupted;
	if (bench_requests(result) > 0) {
		return 0;
	}
	if (bench->interrupted) {
		return error_set(error, -EINTR,
			"the measurement was interrupted before its first request was complete");
	}
	if (bench_covered(bench->shared.work, result)) {
		return error_set(error, -ENODATA,
			"the warm-up used every block, so no block is left to measure");
	}
	return error_set(error, -ENODATA,
		"no request completed in the measured %.3g s; increase --seconds",
		(double)bench->shared.work->duration_ns / 1e9);
}

int bench_run(const struct bench_work *work, bool progress, struct bench_result *result,
	struct error *error)
{
	struct bench bench = { 0 };
	int err = bench_init(&bench, work, error) ?: threads_start(&bench, error);

	if (err != 0) {
		stop_all(&bench);
		join_all(&bench);
	} else {
		wait_for_workers(&bench, progress);
		join_all(&bench);
		err = bench_run_collect(&bench, result, error);
	}
	bench_fini(&bench);
	return err;
}
