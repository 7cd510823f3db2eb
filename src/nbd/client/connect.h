// SPDX-License-Identifier: Apache-2.0
/*
 * Connects a socket to the server that a URI names, without blocking the ring: the name is resolved
 * on a thread, then each address is tried in turn.
 *
 *   LOOKUP ─▶ ATTEMPT ─▶ (next address) ─▶ ENDING ─▶ done
 *
 * A lookup has no time limit and cannot be interrupted. When the attempt ends before it, the lookup
 * is left to its thread, which frees it.
 *
 * Threading: the ring's thread. Ownership: the URI and the struct are held until done; the socket
 * is the caller's then. Errors: a negative errno, with a sentence that begins with the server's
 * address in error: -EHOSTUNREACH name, -ETIMEDOUT, -ECANCELED, those of
 * connect(2).
 *
 * tests/sim/connector_sim.c is the simulated twin, chosen when a test is linked.
 */
#pragma once

#include "base/export_uri.h"
#include "ring/ring.h"

enum connector_state {
	CONNECTOR_IDLE,
	CONNECTOR_BEGIN,
	CONNECTOR_LOOKUP,
	CONNECTOR_ATTEMPT,
	CONNECTOR_ENDING
};

struct addrinfo;
struct lookup;

/* One connection that is being made. All zero: idle. */
struct connector {
	struct error error; /* after a failure: why */
	int fd;		    /* after a success: non-blocking, close-on-exec */

	/* Private. */
	struct ring *ring;
	const struct export_uri *uri;
	void (*done)(struct connector *connector, int err);
	enum connector_state state;
	int result;
	bool timed_out;
	uint64_t timeout_ns; /* for the message */
	uint64_t end_ns;     /* of all attempts */
	uint64_t step_end_ns;
	struct ring_op wait_op; /* until the lookup or the socket is ready */
	struct ring_op timer_op;
	struct lookup *lookup;
	struct addrinfo *addresses;
	struct addrinfo *next;
};

/* done is called once, later, with 0 or a negative errno. */
void connector_start(struct connector *connector, struct ring *ring, const struct export_uri *uri,
	uint64_t timeout_ns, void (*done)(struct connector *connector, int err));

/* Makes it end soon, with -ECANCELED or what happened first. Idle: no-op. */
void connector_cancel(struct connector *connector);
