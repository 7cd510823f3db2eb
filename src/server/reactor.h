// SPDX-License-Identifier: Apache-2.0
/*
 * One thread with its ring and its NBD service. A connection given to a reactor lives there until
 * it closes.
 *
 *   main: reactor_create ... reactor_drain ──▶ drained() ... reactor_destroy
 *   any:  reactor_give(fd)                                 (not after drained())
 *
 * Threading: create and destroy on the main thread; give, drain and session_count on any; ring only
 * for ring_post() or on the reactor's own thread. Ownership: the reactor owns its thread, ring and
 * service, and takes the descriptors it is given; it borrows the exports.
 * Errors: create fails with a sentence and leaves nothing behind.
 */
#pragma once

#include <stdatomic.h>

#include "nbd/server.h"

struct reactor;

struct reactor_options {
	uint32_t index; /* for names in logs and debuggers */
	struct nbd_export *exports;
	uint32_t export_count;
	struct nbd_limits limits;
	_Atomic uint32_t *connection_total; /* counted down when a session is gone */
	/* Called once on the reactor's thread after reactor_drain(), when no session is left. */
	void (*drained)(void *context);
	void *context;
};

/* Starts the thread; returns when its ring and service work, or did not. */
GMB_MUST_CHECK int reactor_create(
	const struct reactor_options *options, struct reactor **reactor_out, struct error *error);
/* Stops the thread and waits for it. Drained, or never given a connection. NULL is a no-op. */
void reactor_destroy(struct reactor *reactor);

struct ring *reactor_ring(struct reactor *reactor);

/* Sessions given and not yet gone. */
uint32_t reactor_session_count(const struct reactor *reactor);

/* Hands a connected socket over; peer is copied. *connection_total already counts it. */
void reactor_give(struct reactor *reactor, int fd, const char *peer);

/* Finishes what is in flight and ends all sessions, after deadline_ns by force. Once. */
void reactor_drain(struct reactor *reactor, uint64_t deadline_ns);

/* Calls visit on the reactor's thread, between two of its turns, and waits for it. Main thread; not
 * after reactor_destroy(). -ETIMEDOUT: a turn takes very long (a disk hangs), and visit was not and
 * will not be called; -ENOMEM. */
GMB_MUST_CHECK int reactor_visit(struct reactor *reactor,
	void (*visit)(struct nbd_service *service, void *context), void *context);
