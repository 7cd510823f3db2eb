// SPDX-License-Identifier: Apache-2.0
/*
 * One thread with its ring and its engine. A connection handed over to a reactor stays there until
 * it closes.
 *
 *   main: reactor_create ... reactor_drain ──▶ drained() ... reactor_destroy
 *   any:  reactor_dispatch(endpoint)                      (not after reactor_destroy)
 *
 * Threading: create, call and destroy on the main thread; dispatch, drain and session_count on any
 * thread; ring only for ring_post() or on the reactor's own thread. Ownership: the reactor owns its
 * thread, ring, engine and the endpoints passed to it; its engine holds references to the exports.
 * Errors: create fails with an error message, and releases everything.
 */
#pragma once

#include <stdatomic.h>

#include "engine/handover.h"
#include "memory/p2pmem.h"

struct reactor;

struct reactor_options {
	uint32_t index; /* index in names for logs and debuggers */
	/* The reactors that can serve the same connections, with this one. They exist when the
	 * first session begins, and until all have drained. Borrowed. */
	struct reactor *const *group;
	uint32_t group_index; /* of this reactor */
	uint32_t group_count;
	struct export *const *exports;
	uint32_t export_count;
	const struct session_kind *const *kinds; /* borrowed while the reactor exists */
	uint32_t kind_count;
	struct engine_limits limits;
	struct rate_rules *rate_rules; /* rates of identities; borrowed; or NULL */
	struct lease_book *leases;     /* see engine_options */
	struct fence *fence;	       /* nodes and fences; borrowed; or NULL */
	const struct place *places;    /* permitted destinations, see engine_options */
	uint32_t place_count;
	uint8_t instance[ENGINE_INSTANCE_BYTES]; /* identifies this process, see engine_options */
	/* connections of the server; decremented when one is closed */
	_Atomic uint32_t *connection_total;
	struct p2pmem *device; /* borrowed; used if device_bytes > 0 */
	uint64_t device_bytes; /* share of this reactor */
	bool device_waits;     /* see engine_options */
	/* Called once on the reactor's thread after reactor_drain(), when no session is left. */
	void (*drained)(void *context);
	void *context;
};

/* Starts the thread and returns when its ring and engine are ready, or have failed. */
GMB_MUST_CHECK int reactor_create(
	const struct reactor_options *options, struct reactor **reactor_out, struct error *error);
/* Stops the thread and waits for it. All sessions must have ended. NULL is a no-op. */
void reactor_destroy(struct reactor *reactor);

struct ring *reactor_ring(struct reactor *reactor);

/* Returns the number of connections handed over and not yet closed. */
uint32_t reactor_session_count(const struct reactor *reactor);

/* Hands the connection over to the reactor, which owns the endpoint from then on. *connection_total
 * already includes it. */
void reactor_dispatch(struct reactor *reactor, const struct endpoint *endpoint);

/* Like reactor_dispatch(), but called on this reactor's thread, for a connection that its session
 * kind has accepted there. */
void reactor_accept(struct reactor *reactor, const struct endpoint *endpoint);

/* Calls engine_adopt() on the reactor's thread. Takes ownership of the endpoint; *connection_total
 * already includes it. */
void reactor_adopt(struct reactor *reactor, const struct endpoint *endpoint,
	const struct session_record *record);
/* Calls engine_resume() on the reactor's thread in its next turn. Must not be repeated before the
 * next engine_pause(). */
void reactor_resume(struct reactor *reactor);

/* Completes the requests in flight and ends all sessions; after deadline_ns, ends them by force.
 * Called once. */
void reactor_drain(struct reactor *reactor, uint64_t deadline_ns);

/* Calls engine_review() on the reactor's thread in its next turn; a reactor that hangs does it when
 * it continues. If a review is requested again before that, only the last one is done. Always
 * called from the same thread, with the same functions and context. */
void reactor_review(struct reactor *reactor, const struct engine_review *review);

/* Calls run(engine, context) on the reactor's thread in its next turn. The reactor does not touch
 * the task after run has started, so run may free it. Tasks and reactor_review() are delivered in
 * order. */
struct reactor_task {
	/* The caller sets these members. */
	void (*run)(struct engine *engine, void *context);
	void *context;

	/* Private members. */
	struct reactor *reactor;
	struct ring_message message;
};
void reactor_post(struct reactor *reactor, struct reactor_task *task);

/* Calls call(engine, context) on the reactor's thread, in one of its turns, and waits for it.
 * -ETIMEDOUT: the current turn takes too long, because a disk hangs; the call was not and will not
 * be made. -ENOMEM: no memory for the message. */
GMB_MUST_CHECK int reactor_call(
	struct reactor *reactor, void (*call)(struct engine *engine, void *context), void *context);
/* Returns the error message for a reactor_call() that failed with code. */
const char *reactor_call_text(int code);
/* Calls reactor_call() for each reactor, one after the other. Stops at the first one that fails,
 * and sets the error message. */
GMB_MUST_CHECK int reactors_call(struct reactor *const *reactors, uint32_t count,
	void (*call)(struct engine *engine, void *context), void *context, struct error *error);
