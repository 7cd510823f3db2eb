// SPDX-License-Identifier: Apache-2.0
/*
 * Drops the server's privileges while it starts: first root (--user), then everything that serving
 * does not need (--sandbox). The sandbox is off when there are --run commands, because the server
 * starts them later and they would inherit the restrictions.
 *
 * Threading: the main thread; server_sandbox_become() and server_sandbox_enter() run before other
 * threads exist. Errors: an error message for the user.
 */
#pragma once

#include "server/config/config.h"
#include "server/listen/credentials.h"

/* If the configuration names a user, the process continues as that user. If it was started by root,
 * it first makes that user the owner of the socket files. The kernel then reports this user to
 * clients as the peer of a Unix socket, except for sockets that a service manager has passed. */
GMB_MUST_CHECK int server_sandbox_become(const struct server_config *config,
	const struct listener *listeners, uint32_t listener_count, const struct listener *control,
	const struct listener *metrics, struct error *error);

/* Enters the sandbox, which keeps access to what the configuration names and what the rest of the
 * start needs. The exports are open and the credentials loaded. record: file that records how the
 * server was started, or "". It can be removed but not changed inside the sandbox. state: the state
 * folder, or NULL. */
GMB_MUST_CHECK int server_sandbox_enter(const struct server_config *config,
	const struct credentials *credentials, const struct listener *listeners,
	uint32_t listener_count, const struct listener *control, const struct listener *metrics,
	const char *record, const char *state, struct error *error);
/* Drops the rights that only the start needed. Called when all sockets listen and all rings exist,
 * before a connection is accepted. */
GMB_MUST_CHECK int server_sandbox_seal(const struct server_config *config, struct error *error);
