// SPDX-License-Identifier: Apache-2.0
#include "server/reactor.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

/* The main thread must handle signals, too. */
enum { CALL_SECONDS_MAX = 2 };

struct reactor {
	struct reactor_options options;
	pthread_t thread;
	struct ring *ring;
	struct engine *engine;
	_Atomic uint32_t session_count;

	/* Start: the thread fills code and error, then posts started. */
	sem_t started;
	int code;
	struct error error;

	sem_t stop_posted;
	uint64_t drain_deadline_ns;
	struct ring_message drain_message;
	struct ring_message stop_message;
};

/* A connection on its way to its reactor. */
struct handover {
	struct ring_message message;
	struct reactor *reactor;
	struct endpoint endpoint;
};

static void endpoint_gone(void *context)
{
	struct reactor *reactor = context;

	/* Relaxed: they only steer placement and the limit, nothing is published with them. */
	atomic_fetch_sub_explicit(&reactor->session_count, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(reactor->options.connection_total, 1, memory_order_relaxed);
}

static int create_engine(struct reactor *reactor, struct error *error)
{
	const struct reactor_options *options = &reactor->options;
	const struct engine_options engine_options = {
		.ring = reactor->ring,
		.kinds = options->kinds,
		.kind_count = options->kind_count,
		.limits = options->limits,
		.endpoint_gone = endpoint_gone,
		.context = reactor,
	};
	int rc = engine_create(&engine_options, &reactor->engine, error);

	for (uint32_t i = 0; rc == 0 && i < options->export_count; i++) {
		rc = engine_export_add(reactor->engine, options->exports[i], error);
	}
	if (rc < 0) {
		engine_destroy(reactor->engine);
	}
	return rc;
}

static int create_parts(struct reactor *reactor, struct error *error)
{
	const struct ring_options ring_options = { 0 };
	int rc = ring_create(&ring_options, &reactor->ring, error);

	if (rc < 0) {
		return rc;
	}
	rc = create_engine(reactor, error);
	if (rc < 0) {
		ring_destroy(reactor->ring);
	}
	return rc;
}

static void wait_for(sem_t *semaphore)
{
	while (sem_wait(semaphore) < 0) {
		GMB_ASSERT(errno == EINTR);
	}
}

static void *reactor_main(void *context)
{
	struct reactor *reactor = context;
	char name[16];

	snprintf(name, sizeof(name), "gmblock/%u", reactor->options.index % 1000);
	pthread_setname_np(pthread_self(), name);
	reactor->code = create_parts(reactor, &reactor->error);
	if (reactor->code < 0) {
		sem_post(&reactor->started);
		return NULL;
	}
	sem_post(&reactor->started);
	ring_run(reactor->ring);
	/* The stop message can arrive while ring_post() still looks at the ring. */
	wait_for(&reactor->stop_posted);
	engine_destroy(reactor->engine);
	ring_destroy(reactor->ring);
	return NULL;
}

static void release(struct reactor *reactor)
{
	sem_destroy(&reactor->started);
	sem_destroy(&reactor->stop_posted);
	free(reactor);
}

int reactor_create(
	const struct reactor_options *options, struct reactor **reactor_out, struct error *error)
{
	struct reactor *reactor = calloc(1, sizeof(*reactor));
	int rc;

	if (reactor == NULL) {
		return error_set(error, -ENOMEM, "no memory for a reactor");
	}
	reactor->options = *options;
	sem_init(&reactor->started, 0, 0);
	sem_init(&reactor->stop_posted, 0, 0);
	rc = -pthread_create(&reactor->thread, NULL, reactor_main, reactor);
	if (rc < 0) {
		error_set(error, rc, "cannot start thread %u: %s", options->index, strerror(-rc));
	} else {
		wait_for(&reactor->started);
		rc = reactor->code;
		if (rc < 0) {
			*error = reactor->error;
			pthread_join(reactor->thread, NULL);
		}
	}
	if (rc < 0) {
		release(reactor);
		return rc;
	}
	*reactor_out = reactor;
	return 0;
}

static void deliver_stop(struct ring *ring, struct ring_message *message)
{
	GMB_UNUSED(message);
	ring_stop(ring);
}

void reactor_destroy(struct reactor *reactor)
{
	if (reactor == NULL) {
		return;
	}
	reactor->stop_message.deliver = deliver_stop;
	ring_post(reactor->ring, &reactor->stop_message);
	sem_post(&reactor->stop_posted);
	pthread_join(reactor->thread, NULL);
	release(reactor);
}

struct ring *reactor_ring(struct reactor *reactor)
{
	return reactor->ring;
}

uint32_t reactor_session_count(const struct reactor *reactor)
{
	return atomic_load_explicit(&reactor->session_count, memory_order_relaxed);
}

static void deliver_handover(struct ring *ring, struct ring_message *message)
{
	struct handover *handover = container_of(message, struct handover, message);

	GMB_UNUSED(ring);
	engine_accept(handover->reactor->engine, &handover->endpoint);
	free(handover);
}

void reactor_hand_over(struct reactor *reactor, const struct endpoint *endpoint)
{
	struct handover *handover = malloc(sizeof(*handover));

	atomic_fetch_add_explicit(&reactor->session_count, 1, memory_order_relaxed);
	if (handover == NULL) {
		log_error("no memory for the connection from %s: closed it", endpoint->peer.text);
		close(endpoint->fd);
		endpoint_gone(reactor);
		return;
	}
	*handover = (struct handover){
		.message.deliver = deliver_handover,
		.reactor = reactor,
		.endpoint = *endpoint,
	};
	ring_post(reactor->ring, &handover->message);
}

static void deliver_drain(struct ring *ring, struct ring_message *message)
{
	struct reactor *reactor = container_of(message, struct reactor, drain_message);

	GMB_UNUSED(ring);
	engine_drain(reactor->engine, reactor->drain_deadline_ns, reactor->options.drained,
		reactor->options.context);
}

void reactor_drain(struct reactor *reactor, uint64_t deadline_ns)
{
	reactor->drain_deadline_ns = deadline_ns;
	reactor->drain_message.deliver = deliver_drain;
	ring_post(reactor->ring, &reactor->drain_message);
}

/* A call on the reactor's thread. The second one to set `decided` finds it true: the reactor then
 * only frees the call, the caller has to wait for its end. */
struct reactor_call {
	struct ring_message message;
	struct reactor *reactor;
	void (*call)(struct engine *engine, void *context);
	void *context;
	_Atomic bool decided;
	sem_t over;
};

static void call_destroy(struct reactor_call *call)
{
	sem_destroy(&call->over);
	free(call);
}

static void deliver_call(struct ring *ring, struct ring_message *message)
{
	struct reactor_call *call = container_of(message, struct reactor_call, message);

	GMB_UNUSED(ring);
	/* Acquire and release: what the caller prepared is seen, and nothing after it gave up. */
	if (atomic_exchange_explicit(&call->decided, true, memory_order_acq_rel)) {
		call_destroy(call);
		return;
	}
	call->call(call->reactor->engine, call->context);
	sem_post(&call->over);
}

/* False: it did not come in time. */
static bool wait_a_moment(sem_t *semaphore)
{
	struct timespec end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += CALL_SECONDS_MAX;
	while (sem_clockwait(semaphore, CLOCK_MONOTONIC, &end) < 0) {
		if (errno != EINTR) {
			return false;
		}
	}
	return true;
}

int reactor_call(
	struct reactor *reactor, void (*call)(struct engine *engine, void *context), void *context)
{
	struct reactor_call *posted = calloc(1, sizeof(*posted));

	if (posted == NULL) {
		return -ENOMEM;
	}
	posted->message.deliver = deliver_call;
	posted->reactor = reactor;
	posted->call = call;
	posted->context = context;
	sem_init(&posted->over, 0, 0);
	ring_post(reactor->ring, &posted->message);
	if (!wait_a_moment(&posted->over)) {
		if (!atomic_exchange_explicit(&posted->decided, true, memory_order_acq_rel)) {
			return -ETIMEDOUT; /* the reactor frees it */
		}
		wait_for(&posted->over);
	}
	call_destroy(posted);
	return 0;
}
