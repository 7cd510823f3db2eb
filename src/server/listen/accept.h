// SPDX-License-Identifier: Apache-2.0
/*
 * Accepts connections of all listeners on one ring and hands each one over to the reactor with the
 * fewest connections. Some reactors are only for connections that can hold their reactor up. A
 * session kind with its own listeners has them on the first reactor, and their connections stay
 * there. Enforces the server's connection limits, in total and per peer.
 *
 * Threading: create, adopt, add, remove and destroy on the main thread; start and stop on any
 * thread (they post a message); everything else runs on the first reactor's thread. Ownership:
 * borrows the reactors, and the listeners until acceptor_start(); the listeners' descriptors must
 * stay open until stopped() was called. acceptor_create() fills in their ports. Errors: a failed
 * accept is logged, with a rate limit, and its socket pauses for a moment. If only the new
 * connection is lost, the socket does not pause, and no message is logged.
 */
#pragma once

#include "server/listen/listen.h"
#include "server/reactor.h"

struct acceptor;

struct acceptor_options {
	struct listener *listeners;
	uint32_t listener_count;
	struct reactor *const *reactors; /* reactors; the first one runs the acceptor */
	uint32_t reactor_count;
	/* The last reactors serve only connections that can hold their reactor up
	 * (session_kind.holds_thread), which the others then do not serve. Below reactor_count. */
	uint32_t isolated_count;
	uint32_t connections_max;
	uint32_t connections_per_peer_max;
	_Atomic uint32_t *connection_total;
	/* Called on the first reactor's thread, once after each acceptor_stop(). */
	void (*stopped)(void *context);
	void *context;
};

GMB_MUST_CHECK int acceptor_create(const struct acceptor_options *options,
	struct acceptor **acceptor_out, struct error *error);
/* Destroys an acceptor that was never started or has stopped, after all of its connections are
 * closed. NULL is a no-op. */
void acceptor_destroy(struct acceptor *acceptor);

/* Adopts a connection of another process (engine/handover.h), and takes ownership of fd. The limits
 * do not apply, because the connection already exists. Called before the acceptor is started, while
 * the reactors are paused. */
void acceptor_adopt(struct acceptor *acceptor, const struct session_kind *kind,
	const struct session_record *record, int fd);

/* Adds a listener of a folder (listen/folder.h), and sets listener->door. Its descriptor must stay
 * open until acceptor_remove(). index: number of the listener. */
GMB_MUST_CHECK int acceptor_add(
	struct acceptor *acceptor, struct listener *listener, uint32_t index, struct error *error);
/* Stops accepting at such a listener, and takes ownership of its descriptor. */
void acceptor_remove(struct acceptor *acceptor, struct listener *listener);

/* Starts to accept. Can be called again after stopped(), unless a session kind has its own
 * listeners. */
void acceptor_start(struct acceptor *acceptor);
/* Stops accepting; stopped() is called later. A connection that was accepted before is still handed
 * over to its reactor. */
void acceptor_stop(struct acceptor *acceptor);
