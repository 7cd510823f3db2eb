// SPDX-License-Identifier: Apache-2.0
/*
 * The control command "trace": records single requests of a running server (path/stats.h) with a
 * recorder in each reactor, one recording at a time. docs/protocol/control.md defines its arguments
 * and its answer.
 *
 * Threading: the main thread; starting and ending a recording call each reactor. Ownership: borrows
 * the view and the server. Owns the recorders until it is destroyed, which must come after the
 * reactors if tracing_stop() ended a recording. Errors: a command's errors are sent to its client.
 */
#pragma once

#include "control/control.h"
#include "server/control.h"

struct tracing;

/* Registers the command. */
GMB_MUST_CHECK int tracing_create(const struct server_view *view, struct control_server *server,
	struct tracing **tracing_out, struct error *error);
/* NULL is a no-op. */
void tracing_destroy(struct tracing *tracing);

/* Called when the server stops: answers a waiting client with the requests recorded so far. Does
 * not call a reactor, which could hang, so the reactors keep their recorders. */
void tracing_stop(struct tracing *tracing);
