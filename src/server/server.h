// SPDX-License-Identifier: Apache-2.0
/*
 * The server as a whole: opens every export, listens on every address, starts the reactors, serves
 * until a signal or the end of the --run commands, and stops cleanly.
 *
 *   open stores ─▶ listen ─▶ reactors ─▶ accept ─▶ ready ─▶ wait ─▶ stop accepting ─▶ drain ─▶
 * close
 *
 * Threading: the main thread of a process without other threads; blocks until the server has
 * stopped, and handles SIGTERM, SIGINT, SIGHUP (unless it is ignored) and SIGCHLD meanwhile. SIGHUP
 * of a process reloads (reload.h), that of the kernel, when the terminal has gone, stops.
 * Ownership: borrows the configuration and the kinds.
 * Errors: a failed start is a negative errno with a sentence, and nothing was served.
 */
#pragma once

#include "engine/engine.h"
#include "server/config/config.h"

/* kinds: the protocols it can speak. In the place of another process, what commands have added
 * there is appended to config. Returns 0 after a clean stop; *exit_status is then 0, or that of the
 * last --run command, or 1 when the stop was not clean. */
GMB_MUST_CHECK int server_run(struct server_config *config, const struct session_kind *const *kinds,
	uint32_t kind_count, int *exit_status, struct error *error);
