// SPDX-License-Identifier: Apache-2.0
/*
 * The server as a whole: listens on every address, opens every export, starts the reactors, serves
 * until a signal or the end of the --run commands, and stops cleanly.
 *
 *   listen ─▶ open stores ─▶ reactors ─▶ start stores ─▶ accept ─▶ ready ─▶ wait
 *        ─▶ stop accepting ─▶ drain ─▶ close
 *
 * Threading: the main thread of a process without other threads. Blocks until the server has
 * stopped, and handles SIGTERM, SIGINT, SIGCHLD and SIGHUP (unless SIGHUP is ignored) while it
 * runs. SIGHUP from a process reloads (change/jobs.h); SIGHUP from the kernel, sent when the
 * terminal closes, stops the server. Ownership: borrows the configuration and session kinds.
 * Errors: a failed start is a negative errno with an error message, and the server has not served
 * any client.
 */
#pragma once

#include "engine/engine.h"
#include "server/config/config.h"

/* Runs the server. kinds: the protocols that it can speak. When it takes over from another process,
 * the exports that commands added there are appended to config. Returns 0 if the server was started
 * and has stopped. *exit_status is then the status of the last --run command, 1 if a command could
 * not be started or data not be written at the end, otherwise 0. */
GMB_MUST_CHECK int server_run(struct server_config *config, const struct session_kind *const *kinds,
	uint32_t kind_count, int *exit_status, struct error *error);
