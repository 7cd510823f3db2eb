// SPDX-License-Identifier: Apache-2.0
#include "server/reactor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct reactor {
	struct reactor_options options;
	struct ring_thread *thread;
	struct ring *ring;
	struct arena *device; /* NULL: no device memory */
	struct engine *engine;
	_Atomic uint32_t session_count;

	uint64_t drain_deadline_ns;
	struct ring_message drain_message;
	struct ring_message resume_message;

	/* The functions of a review. Set before the first review is posted; later reviews differ
	 * only in review_number. */
	struct engine_review review;
	_Atomic uint64_t review_number;
	atomic_bool review_posted;
	struct ring_message review_message;
};

/* A connection on its way to its reactor. */
struct dispatch {
	struct ring_message message;
	struct reactor *reactor;
	struct endpoint endpoint;
	char export_name[]; /* copy: the listener can be closed before the message arrives */
};

static void endpoint_closed(void *context, const struct peer *peer)
{
	struct reactor *reactor = context;

	/* Relaxed, because the counters are used only to place and limit connections; they publish
	 * no other data. */
	atomic_fetch_sub_explicit(&reactor->session_count, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(reactor->options.connection_total, 1, memory_order_relaxed);
	/* Release, because the thread that reads 0 frees the entry that contains the count. */
	atomic_fetch_sub_explicit(peer->connections, 1, memory_order_release);
}

/* The parts of a session are on the reactors that follow its own. */
static struct engine *part_engine(void *context, uint32_t part)
{
	const struct reactor *reactor = context;
	const struct reactor_options *options = &reactor->options;

	return part < options->group_count
		       ? options->group[(options->group_index + part) % options->group_count]
				 ->engine
		       : NULL;
}

static int create_engine(struct reactor *reactor, struct error *error)
{
	const struct reactor_options *options = &reactor->options;
	struct engine_options engine_options = {
		.ring = reactor->ring,
		.kinds = options->kinds,
		.kind_count = options->kind_count,
		.limits = options->limits,
		.rate_rules = options->rate_rules,
		.fence = options->fence,
		.leases = options->leases,
		.places = options->places,
		.place_count = options->place_count,
		.device = reactor->device,
		.device_waits = options->device_waits,
		.part_engine = options->group_count > 1 ? part_engine : NULL,
		.endpoint_closed = endpoint_closed,
		.context = reactor,
	};
	int rc;

	memcpy(engine_options.instance, options->instance, sizeof(engine_options.instance));
	rc = engine_create(&engine_options, &reactor->engine, error);

	for (uint32_t i = 0; rc == 0 && i < options->export_count; i++) {
		rc = engine_export_add(reactor->engine, options->exports[i], error);
	}
	if (rc < 0) {
		engine_destroy(reactor->engine);
	}
	return rc;
}

static int create_device(struct reactor *reactor, struct error *error)
{
	const struct reactor_options *options = &reactor->options;
	struct arena_source source;

	if (options->device_bytes == 0) {
		return 0;
	}
	source = p2pmem_source(options->device);
	return arena_device_create(
		reactor->ring, &source, options->device_bytes, &reactor->device, error);
}

/* Sets up the ring and the engine. Called on the reactor's thread. */
static int reactor_begin(void *context, struct ring **ring_out, struct error *error)
{
	const struct ring_options ring_options = { .is_restricted = true };
	struct reactor *reactor = context;
	int rc = ring_create(&ring_options, &reactor->ring, error);

	if (rc < 0) {
		return rc;
	}
	rc = ring_check_restricted(reactor->ring, error);
	rc = rc ?: create_device(reactor, error);
	rc = rc ?: create_engine(reactor, error);
	if (rc < 0) {
		arena_destroy(reactor->device);
		ring_destroy(reactor->ring);
		return rc;
	}
	*ring_out = reactor->ring;
	return 0;
}

static void reactor_end(void *context)
{
	struct reactor *reactor = context;

	engine_destroy(reactor->engine);
	arena_destroy(reactor->device);
	ring_destroy(reactor->ring);
}

int reactor_create(
	const struct reactor_options *options, struct reactor **reactor_out, struct error *error)
{
	struct reactor *reactor = calloc(1, sizeof(*reactor));
	char name[32];
	const struct ring_thread_options thread = {
		.name = name, .begin = reactor_begin, .end = reactor_end, .context = reactor
	};
	int rc;

	if (reactor == NULL) {
		return error_oom_for(error, "a reactor");
	}
	reactor->options = *options;
	snprintf(name, sizeof(name), "gmblock/%u", options->index % 1000);
	rc = ring_thread_start(&thread, &reactor->thread, error);
	if (rc < 0) {
		free(reactor);
		return rc;
	}
	*reactor_out = reactor;
	return 0;
}

void reactor_destroy(struct reactor *reactor)
{
	if (reactor != NULL) {
		ring_thread_stop(reactor->thread);
		free(reactor);
	}
}

struct ring *reactor_ring(struct reactor *reactor)
{
	return reactor->ring;
}

uint32_t reactor_session_count(const struct reactor *reactor)
{
	return atomic_load_explicit(&reactor->session_count, memory_order_relaxed);
}

static void deliver_endpoint(struct ring *ring, struct ring_message *message)
{
	struct dispatch *dispatch = container_of(message, struct dispatch, message);

	engine_accept(dispatch->reactor->engine, &dispatch->endpoint);
	free(dispatch);
}

void reactor_dispatch(struct reactor *reactor, const struct endpoint *endpoint)
{
	const char *name = endpoint->export_name;
	size_t name_bytes = name != NULL ? strlen(name) + 1 : 0;
	struct dispatch *dispatch = malloc(sizeof(*dispatch) + name_bytes);

	atomic_fetch_add_explicit(&reactor->session_count, 1, memory_order_relaxed);
	if (dispatch == NULL) {
		log_error("closed the connection from %s: out of memory", endpoint->peer.text);
		ring_socket_close(reactor->ring, endpoint->fd);
		endpoint_closed(reactor, &endpoint->peer);
		return;
	}
	*dispatch = (struct dispatch){
		.message.deliver = deliver_endpoint,
		.reactor = reactor,
		.endpoint = *endpoint,
	};
	if (name != NULL) {
		memcpy(dispatch->export_name, name, name_bytes);
		dispatch->endpoint.export_name = dispatch->export_name;
	}
	ring_post(reactor->ring, &dispatch->message);
}

void reactor_accept(struct reactor *reactor, const struct endpoint *endpoint)
{
	atomic_fetch_add_explicit(&reactor->session_count, 1, memory_order_relaxed);
	engine_accept(reactor->engine, endpoint);
}

struct adoption {
	const struct endpoint *endpoint;
	const struct session_record *record;
};

static void server_reactor_adopt(struct engine *engine, void *context)
{
	const struct adoption *adoption = context;

	engine_adopt(engine, adoption->endpoint, adoption->record);
}

void reactor_adopt(struct reactor *reactor, const struct endpoint *endpoint,
	const struct session_record *record)
{
	struct adoption adoption = { endpoint, record };

	atomic_fetch_add_explicit(&reactor->session_count, 1, memory_order_relaxed);
	if (reactor_call(reactor, server_reactor_adopt, &adoption) < 0) {
		log_error("closed the connection from %s: the server thread for the connection "
			  "does not respond",
			endpoint->peer.text);
		ring_socket_close(reactor->ring, endpoint->fd);
		endpoint_closed(reactor, &endpoint->peer);
	}
}

static void deliver_resume(struct ring *ring, struct ring_message *message)
{
	engine_resume(container_of(message, struct reactor, resume_message)->engine);
}

void reactor_resume(struct reactor *reactor)
{
	reactor->resume_message.deliver = deliver_resume;
	ring_post(reactor->ring, &reactor->resume_message);
}

static void deliver_drain(struct ring *ring, struct ring_message *message)
{
	struct reactor *reactor = container_of(message, struct reactor, drain_message);

	engine_drain(reactor->engine, reactor->drain_deadline_ns, reactor->options.drained,
		reactor->options.context);
}

void reactor_drain(struct reactor *reactor, uint64_t deadline_ns)
{
	reactor->drain_deadline_ns = deadline_ns;
	reactor->drain_message.deliver = deliver_drain;
	ring_post(reactor->ring, &reactor->drain_message);
}

static void deliver_review(struct ring *ring, struct ring_message *message)
{
	struct reactor *reactor = container_of(message, struct reactor, review_message);
	struct engine_review review = reactor->review;

	/* Acquire-release order: a thread that finds the flag still set posts no message of its
	 * own, so the review below must see what that thread changed before. */
	atomic_exchange_explicit(&reactor->review_posted, false, memory_order_acq_rel);
	review.number = atomic_load_explicit(&reactor->review_number, memory_order_relaxed);
	engine_review(reactor->engine, &review);
}

void reactor_review(struct reactor *reactor, const struct engine_review *review)
{
	if (reactor->review_message.deliver == NULL) {
		reactor->review_message.deliver = deliver_review;
		reactor->review = *review;
	}
	atomic_store_explicit(&reactor->review_number, review->number, memory_order_relaxed);
	/* Pairs with the exchange in deliver_review(). If the flag was still set, an earlier
	 * message has not been delivered yet, and deliver_review() will read the new number. */
	if (!atomic_exchange_explicit(&reactor->review_posted, true, memory_order_acq_rel)) {
		ring_post(reactor->ring, &reactor->review_message);
	}
}

static void deliver_task(struct ring *ring, struct ring_message *message)
{
	struct reactor_task *task = container_of(message, struct reactor_task, message);

	task->run(task->reactor->engine, task->context);
}

void reactor_post(struct reactor *reactor, struct reactor_task *task)
{
	task->reactor = reactor;
	task->message.deliver = deliver_task;
	ring_post(reactor->ring, &task->message);
}

struct reactor_call {
	struct reactor *reactor;
	void (*call)(struct engine *engine, void *context);
	void *context;
};

static void call_engine(void *context)
{
	const struct reactor_call *call = context;

	call->call(call->reactor->engine, call->context);
}

int reactor_call(
	struct reactor *reactor, void (*call)(struct engine *engine, void *context), void *context)
{
	struct reactor_call posted = { reactor, call, context };

	return ring_thread_call(reactor->thread, call_engine, &posted);
}

const char *reactor_call_text(int code)
{
	return code == -ETIMEDOUT ? "a thread of the server does not respond; a disk may hang"
				  : "out of memory";
}

int reactors_call(struct reactor *const *reactors, uint32_t count,
	void (*call)(struct engine *engine, void *context), void *context, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		rc = reactor_call(reactors[i], call, context);
	}
	return rc < 0 ? error_set(error, rc, "%s", reactor_call_text(rc)) : 0;
}
