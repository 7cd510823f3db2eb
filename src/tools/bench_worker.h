// SPDX-License-Identifier: Apache-2.0
/*
 * One thread of "gmblock bench": a completion queue, the connections on it and their requests.
 *
 * Threading: bench_worker_main() is the thread; bench_worker_wake() and the atomic members are for
 * the thread that waits for it. Ownership: the worker frees what it made before its thread ends,
 * except its results. Errors: kept in the worker (failure), first one wins.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "tools/bench.h"

enum bench_phase {
	BENCH_WARMUP,  /* requests run and are not counted */
	BENCH_MEASURE, /* requests run and are counted */
	BENCH_DRAIN,   /* nothing is submitted, what is in flight ends */
};

/* What the workers of a run have in common. */
struct bench_shared {
	const struct bench_work *work;
	pthread_mutex_t gate_lock;
	pthread_cond_t gate_changed;
	bool gate_open;	     /* under the lock: all are connected, or nothing will come of it */
	atomic_bool stop;    /* end as soon as possible */
	atomic_uint arrived; /* workers that stand at the gate or went through */
	atomic_uint ended;   /* workers that have */
	int event_fd;	     /* written to when one of these changes */
};

/* What grows, at one moment. */
struct bench_snapshot {
	uint64_t time_ns;
	struct bench_cpu cpu;
	struct gmb_stats stats;
};

struct bench_link;

struct bench_worker {
	struct bench_shared *shared;
	uint32_t number;
	uint32_t link_count;
	uint32_t link_first; /* number of its first link among all */
	uint64_t quota;	     /* requests that it may still submit */

	pthread_t thread;
	pthread_mutex_t queue_lock; /* held while the queue is woken, or appears or goes */
	struct gmb_queue *queue;
	struct bench_link *links;
	uint8_t *buffers;
	size_t buffers_bytes;

	enum bench_phase phase;
	uint64_t phase_end_ns;
	uint64_t random;
	uint32_t in_flight;

	/* Results. */
	struct error failure;
	struct histogram latency_ns[BENCH_DIRECTIONS];
	uint64_t hole_reads;
	struct bench_snapshot begin; /* time 0: never began to measure */
	struct bench_snapshot end;
	struct bench_range range;
	struct gmb_info info;
	uint32_t connections;
	_Atomic uint64_t completed; /* for the progress line; warm-up included */
};

/* The thread's function; the argument is the worker. It connects, waits for the gate, works. */
void *bench_worker_main(void *argument);

/* Makes the worker look at shared->stop. Any thread. */
void bench_worker_wake(struct bench_worker *worker);
