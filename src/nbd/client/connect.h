// SPDX-License-Identifier: Apache-2.0
/*
 * Connects a socket to the server of a URI without blocking the ring. A thread resolves the name,
 * then each address is tried in turn.
 *
 *   BEGIN ─▶ LOOKUP ─▶ ATTEMPT ─▶ (next address) ─▶ ENDING ─▶ done
 *
 * A lookup has no time limit and cannot be interrupted. If the attempt ends first, the lookup stays
 * with its thread, which frees it.
 *
 * Threading: the ring's thread. Ownership: the URI and the struct are borrowed until done(); then
 * the caller owns the socket. Errors: a negative errno, and an error message that begins with the
 * server's address: -EHOSTUNREACH for the name, -ETIMEDOUT, -ECANCELED, -ENOMEM, and the errors of
 * socket(2), connect(2) and of starting the thread.
 *
 * tests/sim/connector_sim.c is the simulated version, selected when a test is linked.
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

/* One connection attempt. All zero: idle. */
struct connector {
	struct error error; /* after a failure: the reason */
	int fd;		    /* after success: the socket, blocking and close-on-exec */

	/* Private. */
	struct ring *ring;
	const struct export_uri *uri;
	void (*done)(struct connector *connector, int err);
	enum connector_state state;
	int result;
	bool timed_out;
	uint64_t timeout_ns; /* timeout of the attempt, for the error message */
	uint64_t end_ns;     /* limit of all attempts */
	uint64_t step_end_ns;
	struct ring_op wait_op; /* waits until the lookup finishes or the socket is connected */
	struct ring_op timer_op;
	struct lookup *lookup;
	struct addrinfo *addresses;
	struct addrinfo *next;
};

/* Starts an attempt. done() is called once, later, with 0 or a negative errno. */
void connector_start(struct connector *connector, struct ring *ring, const struct export_uri *uri,
	uint64_t timeout_ns, void (*done)(struct connector *connector, int err));

/* Ends the attempt soon, with -ECANCELED or an earlier result. No effect if idle. */
void connector_cancel(struct connector *connector);
