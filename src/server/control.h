// SPDX-License-Identifier: Apache-2.0
/*
 * The control socket of a server (control/control.h) and the commands that it answers: "stats"
 * and "counters" (stats.h), "metrics" (metrics.h), "rate", "trace" (tracing.h), "reload" and
 * "export" (reload.h), "upgrade" (upgrade.h).
 *
 *   /run/gmblock-serve/PID.sock             of root
 *   $RUNTIME_DIRECTORY/serve/PID.sock       of a service of systemd that has another user
 *   $XDG_RUNTIME_DIR/gmblock/serve/PID.sock of other users
 *
 * Threading: the main thread; an answer waits for each reactor to finish its turn, but not long: if
 * one hangs, the answer is an error. Ownership: the control owns its socket and removes its path.
 * Errors: without the usual path a server runs without a control socket; a path that was asked for
 * and cannot be had is an error.
 */
#pragma once

#include "server/listen/listen.h"
#include "server/reactor.h"

struct reload;
struct upgrade;
struct upgrade_take;
struct server_control;

/* What the commands look at. Borrowed, and valid until server_control_close(), or until there is
 * another view. */
struct server_view {
	struct export *const *exports;
	const char *const *paths; /* of the exports, as the user wrote them */
	uint32_t export_count;
	const struct listener *listeners;
	uint32_t listener_count;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	struct reload *reload;
	struct upgrade *upgrade;
	struct rate_rules *rate_rules; /* of identities, or NULL */
	const uint8_t *instance;       /* as in struct engine_options */
	uint64_t start_ns;	       /* CLOCK_MONOTONIC */
};

/* Listens, before the server gives up its privileges. path: of the socket; NULL: the usual one;
 * "none": no socket. take: may have it, or NULL. The listener has no socket then, nor when the
 * usual path cannot be used. */
GMB_MUST_CHECK int server_control_listen(const char *path, struct upgrade_take *take,
	struct listener *listener, struct error *error);
/* Takes the listener, also on failure. *control_out is NULL when it has no socket. */
GMB_MUST_CHECK int server_control_open(struct listener *listener, const struct server_view *view,
	struct server_control **control_out, struct error *error);
/* Accepts clients from now on. NULL is a no-op. */
void server_control_begin(struct server_control *control);
/* What is served has changed. NULL is a no-op. */
void server_control_look(struct server_control *control, const struct server_view *view);
/* The server stops: commands under way are answered with what there is, nothing is accepted any
 * more, and the socket's path is removed. Calls no reactor and waits for nobody. NULL is a no-op.
 */
void server_control_stop(struct server_control *control);
/* Stops, and waits a moment for clients that have not read all of their answer. After the reactors.
 * NULL is a no-op. */
void server_control_close(struct server_control *control);

/* NULL for NULL. */
struct listener *server_control_listener(struct server_control *control);
/* Another process answers what comes from now on; the path stays. NULL is a no-op. */
void server_control_let_go(struct server_control *control);
/* To poll for input; -1 for NULL. */
int server_control_fd(const struct server_control *control);
/* Handles what has happened. Bounded, and waits for no client. */
void server_control_run(struct server_control *control);

/* The idx-th of the usual folders of control sockets, without a final slash. The first is that of
 * this user's servers; root has those of the service and of other users, too. -ENOENT: there are no
 * more. */
GMB_MUST_CHECK int server_control_folder(uint32_t idx, char *out, size_t out_bytes);
/* Makes the first of them. */
GMB_MUST_CHECK int server_control_make_folder(void);
/* Files there that are no sockets: how a server was started (record.h). */
#define SERVER_RECORD_SUFFIX ".start"

/* The sentence for a reactor call that failed with code. */
const char *server_call_error(int code);
