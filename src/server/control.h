// SPDX-License-Identifier: Apache-2.0
/*
 * The control socket of a server (control/control.h) and the commands that it answers: "stats" and
 * "counters" (stats.h), "metrics" (metrics.h), "trace" (tracing.h), "reload", "export" and
 * "snapshot" (change/jobs.h), "upgrade" (upgrade.h).
 *
 *   /run/gmblock-serve/PID.sock                 root
 *   $RUNTIME_DIRECTORY/serve/PID.sock           a systemd service with another user
 *   $XDG_RUNTIME_DIR/gmblock/serve/PID.sock     other users
 *
 * Threading: the main thread. An answer waits for each reactor to finish its turn, but only for a
 * limited time: if a reactor hangs, the answer is an error. Ownership: the control owns its socket
 * and removes its path. Errors: if the usual path is not available, the server runs without a
 * control socket; if a path that was requested is not available, the start fails.
 */
#pragma once

#include "server/change/exports.h"
#include "server/listen/listen.h"
#include "server/reactor.h"

struct fencing;
struct leases;
struct jobs;
struct upgrade;
struct upgrade_take;
struct server_control;

/* The data that the commands show and change. Borrowed until server_control_close(), scrape_close()
 * and upgrade_destroy(). */
struct server_view {
	const struct exports *exports; /* the served exports */
	struct listener *listeners;
	const uint32_t *listener_count; /* changes with the exports (listen/folder.h) */
	struct reactor *const *reactors;
	uint32_t reactor_count;
	struct jobs *jobs;
	struct upgrade *upgrade;
	struct rate_rules *rate_rules; /* rates of identities, or NULL */
	struct fencing *fencing;       /* NULL: the configuration has no nodes */
	struct leases *leases;
	const uint8_t *instance; /* identifies this process, see engine_options */
	uint64_t start_ns;	 /* CLOCK_MONOTONIC */
};

/* Opens the listening socket, before the server drops its privileges. path: where to listen; NULL:
 * at the usual path; "none": nowhere. take: process that may already have the socket, or NULL. The
 * listener has no socket for "none", and if the usual path cannot be used. */
GMB_MUST_CHECK int server_control_listen(const char *path, struct upgrade_take *take,
	struct listener *listener, struct error *error);
/* Creates a server_control. Takes ownership of the listener, even on failure. *control_out is NULL
 * if the listener has no socket. */
GMB_MUST_CHECK int server_control_open(struct listener *listener, const struct server_view *view,
	struct server_control **control_out, struct error *error);
/* Starts accepting clients. NULL is a no-op. */
void server_control_begin(struct server_control *control);
/* Called when the server stops: commands in progress are answered with the data available, new
 * clients are not accepted, and the socket's path is removed. Does not call a reactor and does not
 * wait. NULL is a no-op. */
void server_control_stop(struct server_control *control);
/* Stops, and waits a moment for clients that have not read all of their answer. Called after the
 * reactors are destroyed. NULL is a no-op. */
void server_control_close(struct server_control *control);

/* Returns the listener of the control socket; NULL if control is NULL. */
struct listener *server_control_listener(struct server_control *control);
/* Called when another process has taken over the socket, so that this one does not remove its path
 * at the end. NULL is a no-op. */
void server_control_let_go(struct server_control *control);
/* Returns the descriptor to poll for input; -1 if control is NULL. */
int server_control_fd(const struct server_control *control);
/* Handles pending events. The work is bounded and does not wait for a client. */
void server_control_run(struct server_control *control);

/* Writes the idx-th of the usual folders of control sockets, without a final slash. Folder 0 is for
 * this user's own servers. For root, the others are for the systemd service and for other users.
 * -ENOENT: idx is too large, or (0) the environment of a user names no folder. */
GMB_MUST_CHECK int server_control_folder(uint32_t idx, char *out, size_t out_bytes);
/* Creates the first folder of server_control_folder(), and the one above it. */
GMB_MUST_CHECK int server_control_make_folder(void);
/* Suffix of the files, in the folders of control sockets, that record how a server was started
 * (record.h). */
#define SERVER_RECORD_SUFFIX ".start"
