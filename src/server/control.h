// SPDX-License-Identifier: Apache-2.0
/*
 * The control socket of a server: who connects is told, as one JSON document, what the server
 * serves and what its requests took, and the connection is closed. "gmblock stats" reads it.
 *
 *   RUNTIME/gmblock/serve/PID.sock    RUNTIME: /run for root, else $XDG_RUNTIME_DIR
 *
 * Only the server's user (and root) may connect: names and paths of exports are nobody else's.
 *
 * Threading: the main thread; answering waits for each reactor to finish its turn. Ownership: the
 * control owns its socket and removes its path. Errors: a path that was asked for and cannot be had
 * is an error; without the usual one a server runs all the same.
 */
#pragma once

#include "server/listen.h"
#include "server/reactor.h"

struct control;

/* What is told about. Borrowed, and valid until control_close(). */
struct control_view {
	const struct nbd_export *exports;
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
/* NULL is a no-op. */
void control_close(struct control *control);

/* To poll for input; -1 for NULL. */
int control_fd(const struct control *control);
/* Answers whoever has connected. Bounded: one who does not read is left. */
void control_serve(struct control *control);

/* The usual folder of control sockets, without a final slash: 0, or -ENOENT when there is none. */
GMB_MUST_CHECK int control_folder(char *out, size_t out_bytes);
