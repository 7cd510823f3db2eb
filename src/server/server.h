// SPDX-License-Identifier: Apache-2.0
/*
 * The server as a whole: opens every export, listens on every address, starts the reactors, serves
 * until a signal or the end of the --run commands, and stops cleanly.
 *
 *   open stores ─▶ listen ─▶ reactors ─▶ accept ─▶ ready ─▶ wait ─▶ stop accepting ─▶ drain ─▶
 * close
 *
 * Threading: the main thread of a process without other threads. Blocks until the server has
 * stopped, and handles SIGTERM, SIGINT, SIGCHLD and SIGHUP (unless SIGHUP is ignored) while it
 * runs. SIGHUP from a process reloads (reload.h); SIGHUP from the kernel, sent when the terminal
 * closes, stops the server. Ownership: borrows the configuration and the kinds. Errors: a failed
 * start is a negative errno with a sentence, and the server has not served any client.
 */
#pragma once

#include "engine/engine.h"
#include "server/config/config.h"

/* kinds: the protocols that the server can speak. When it takes over from another process, the
 * exports that commands added there are appended to config. Returns 0 after a clean stop.
 * *exit_status is then 0, or the status of the last --run command, or 1 when the stop was not
 * clean. */
GMB_MUST_CHECK int server_run(struct server_config *config, const struct session_kind *const *kinds,
	uint32_t kind_count, int *exit_status, struct error *error);
