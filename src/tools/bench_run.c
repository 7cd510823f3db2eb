// SPDX-License-Identifier: Apache-2.0
#include "tools/bench.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "tools/bench_worker.h"

enum { PROGRESS_MS = 1000 };

struct bench {
	struct bench_shared shared;
	struct bench_worker *workers;
	uint32_t worker_count;
	uint32_t started; /* threads */
	int signal_fd;
	bool interrupted;
	sigset_t signals;
	sigset_t signals_before;
};

int bench_range(const struct bench_work *work, const struct gmb_info *info,
	struct bench_range *range, struct error *error)
{
	uint64_t size = work->size;

	if (bench_writes(work) && (info->capabilities & GMB_CAN_WRITE) == 0) {
		return error_set(error, -EROFS,
			"the server offers the export read-only: --rw %s cannot write to it",
			work->rw);
	}
	if (work->block_bytes % info->block_minimum != 0 ||
		work->offset % info->block_minimum != 0) {
		return error_set(error, -EINVAL,
			"the server takes requests in multiples of %" PRIu32
			" bytes: --bs and --offset must be such",
			info->block_minimum);
	}
	if (info->bytes == 0) {
		return error_set(error, -ERANGE, "the export is empty: it has no byte to measure");
	}
	if (work->offset >= info->bytes) {
		return error_set(error, -ERANGE,
			"the offset %" PRIu64 " is not inside the export, which has %" PRIu64
			" bytes",
			work->offset, info->bytes);
	}
	if (size > info->bytes - work->offset) {
		return error_set(error, -ERANGE,
			"the range of %" PRIu64 " bytes at %" PRIu64
			" is not inside the export, which has %" PRIu64 " bytes",
			size, work->offset, info->bytes);
	}
	if (size == 0) {
		size = info->bytes - work->offset;
	}
	if (size < work->block_bytes) {
		return error_set(error, -ERANGE,
			"the range has %" PRIu64 " bytes: not one block of %" PRIu32 " bytes", size,
			work->block_bytes);
	}
	range->offset = work->offset;
	range->blocks = size / work->block_bytes;
	return 0;
}

/* --- starting and ending ------------------------------------------------------------------- */

/* Signals arrive at a descriptor; the threads inherit that they are blocked. */
static int signals_take(struct bench *bench, struct error *error)
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

/* Gives every worker its share of the connections and of the requests. */
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
		int err = pthread_create(&worker->thread, NULL, bench_worker_main, worker);

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
	err = signals_take(bench, error);
	if (err != 0) {
		return err;
	}
	bench->workers = calloc(bench->worker_count, sizeof(*bench->workers));
	if (bench->workers == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
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
		bench_worker_wake(&bench->workers[i]);
	}
}

/* The second signal finds nobody who holds it back. */
static void signals_handle(struct bench *bench)
{
	struct signalfd_siginfo info;

	if (read(bench->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		bench->interrupted = true;
		stop_all(bench);
		pthread_sigmask(SIG_UNBLOCK, &bench->signals, NULL);
	}
}

static void progress_print(const struct bench *bench, uint64_t *last)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i < bench->worker_count; i++) {
		total += atomic_load_explicit(&bench->workers[i].completed, memory_order_relaxed);
	}
	fprintf(stderr, "\r%" PRIu64 " requests, %" PRIu64 " in the last second   ", total,
		total - *last);
	*last = total;
}

/* Opens the gate when all are there, and returns when all have ended. */
static void wait_for_workers(struct bench *bench, bool progress)
{
	struct pollfd fds[] = {
		{ .fd = bench->signal_fd, .events = POLLIN },
		{ .fd = bench->shared.event_fd, .events = POLLIN },
	};
	uint64_t last = 0;

	while (atomic_load(&bench->shared.ended) < bench->started) {
		eventfd_t count;
		int ready = poll(fds, ARRAY_COUNT(fds), progress ? PROGRESS_MS : -1);

		if (ready == 0) {
			progress_print(bench, &last);
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
	if (progress && last > 0) {
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
	result->hole_reads += worker->hole_reads;
	result->connections += worker->connections;
	result->stats.commands += end->commands - begin->commands;
	result->stats.bytes_read += end->bytes_read - begin->bytes_read;
	result->stats.bytes_written += end->bytes_written - begin->bytes_written;
	result->stats.bytes_moved += end->bytes_moved - begin->bytes_moved;
	result->stats.system_calls += end->system_calls - begin->system_calls;
}

/* The workers begin and end within microseconds of each other: the process's own figures over the
 * first one's time stand for all. */
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

static int collect(struct bench *bench, struct bench_result *result, struct error *error)
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
	result->range = bench->workers[0].range;
	result->interrupted = bench->interrupted;
	if (bench_requests(result) > 0) {
		return 0;
	}
	if (bench->interrupted) {
		return error_set(error, -EINTR, "interrupted before a request was measured");
	}
	return error_set(error, -ENODATA,
		"no request was completed in the %.3g s that were measured: give it more --seconds",
		(double)bench->shared.work->duration_ns / 1e9);
}

int bench_run(const struct bench_work *work, bool progress, struct bench_result *result,
	struct error *error)
{
	struct bench bench = { 0 };
	int err = bench_init(&bench, work, error);

	if (err == 0) {
		err = threads_start(&bench, error);
	}
	if (err != 0) {
		stop_all(&bench);
		join_all(&bench);
	} else {
		wait_for_workers(&bench, progress);
		join_all(&bench);
		err = collect(&bench, result, error);
	}
	bench_fini(&bench);
	return err;
}
