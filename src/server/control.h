// SPDX-License-Identifier: Apache-2.0
/*
 * The control socket of a server (control/control.h) and the commands that it answers: "stats"
 * and "counters" (stats.h), "rate", "trace" (tracing.h), "reload"
 * (reload.h).
 *
 *   RUNTIME/gmblock/serve/PID.sock    RUNTIME: /run for root, else $XDG_RUNTIME_DIR
 *
 * Threading: the main thread; an answer waits for each reactor to finish its turn, but not long: if
 * one hangs, the answer is an error. Ownership: the control owns its socket and removes its path.
 * Errors: without the usual path a server runs without a control socket; a path that was asked for
 * and cannot be had is an error.
 */
#pragma once

#include "server/listen.h"
#include "server/reactor.h"

struct reload;
struct server_control;

/* What the commands look at. Borrowed, and valid until server_control_close(). */
struct server_view {
	struct export *const *exports;
	const char *const *paths; /* of the exports, as the user wrote them */
	uint32_t export_count;
	const struct listener *listeners;
	uint32_t listener_count;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	struct reload *reload;
	struct rate_rules *rate_rules; /* of identities, or NULL */
	const uint8_t *instance;       /* as in struct engine_options */
	uint64_t start_ns;	       /* CLOCK_MONOTONIC */
};

/* Listens, before the server gives up its privileges. path: of the socket; NULL: the usual one;
 * "none": no socket. The listener has no socket then, nor when the usual path cannot be used. */
GMB_MUST_CHECK int server_control_listen(
	const char *path, struct listener *listener, struct error *error);
/* Takes the listener, also on failure. *control_out is NULL when it has no socket. */
GMB_MUST_CHECK int server_control_open(struct listener *listener, const struct server_view *view,
	struct server_control **control_out, struct error *error);
/* The server stops: commands under way are answered with what there is, nothing is accepted any
 * more, and the socket's path is removed. Calls no reactor and waits for nobody. NULL is a no-op.
 */
void server_control_stop(struct server_control *control);
/* Stops, and waits a moment for clients that have not read all of their answer. After the reactors.
 * NULL is a no-op. */
void server_control_close(struct server_control *control);

/* To poll for input; -1 for NULL. */
int server_control_fd(const struct server_control *control);
/* Handles what has happened. Bounded, and waits for no client. */
void server_control_run(struct server_control *control);

/* The usual folder of control sockets, without a final slash: 0, or -ENOENT when there is none. */
GMB_MUST_CHECK int server_control_folder(char *out, size_t out_bytes);

/* The sentence for a reactor call that failed with code. */
const char *server_call_error(int code);
