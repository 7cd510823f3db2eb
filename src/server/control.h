// SPDX-License-Identifier: Apache-2.0
/*
 * The control socket of a server: who connects asks one thing and is told it as JSON; then the
 * connection is closed. "gmblock stats" and "gmblock trace --request" ask.
 *
 *   RUNTIME/gmblock/serve/PID.sock    RUNTIME: /run for root, else $XDG_RUNTIME_DIR
 *
 *   "stats", nothing, or silence for a moment   what the server serves and what its requests took
 *   "trace {...}" (see tracing.h)               {"armed": true}, and a line with single requests
 *                                               once enough have ended or the client has shut down
 *                                               its sending side; a client that is gone ends it too
 *   on a question that is none                  {"error": "a sentence"}, in which names are
 *                                               escaped already (base/log.h)
 *
 * Only the server's user (and root) may connect: names and paths of exports are nobody else's.
 *
 * Threading: the main thread; an answer waits for each reactor to finish its turn, but not long: of
 * one that hangs the answer is an error. Ownership: the control owns its socket and removes its
 * path. Errors: a path that was asked for and cannot be had is an error; without the usual one a
 * server runs all the same.
 */
#pragma once

#include "server/listen.h"
#include "server/reactor.h"

struct control;

/* What is told about. Borrowed, and valid until control_close(). */
struct control_view {
	struct export *const *exports;
	const char *const *paths; /* of the exports, as the user wrote them */
	uint32_t export_count;
	const struct listener *listeners;
	uint32_t listener_count;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	uint64_t start_ns; /* CLOCK_MONOTONIC */
};

/* path: where; NULL is the usual place; "none" is nowhere. *control_out is NULL when there is to be
 * none, or when the usual place cannot be used. */
GMB_MUST_CHECK int control_open(const char *path, const struct control_view *view,
	struct control **control_out, struct error *error);
/* The server stops: who waits is told what there is, nobody is accepted any more, and the socket's
 * path is gone. Visits no reactor and waits for nobody. NULL is a no-op. */
void control_stop(struct control *control);
/* Stops, and gives those a moment who have not taken all of their answer. After the reactors. NULL
 * is a no-op. */
void control_close(struct control *control);

/* To poll for input; -1 for NULL. */
int control_fd(const struct control *control);
/* Does what there is to do for those who have connected. Bounded, and waits for none of them. */
void control_serve(struct control *control);

/* The usual folder of control sockets, without a final slash: 0, or -ENOENT when there is none. */
GMB_MUST_CHECK int control_folder(char *out, size_t out_bytes);
