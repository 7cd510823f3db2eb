// SPDX-License-Identifier: Apache-2.0
/*
 * What the server gives up while it starts: root (--user), then everything that serving does not
 * need (--sandbox). Commands of --run are programs of the operator's, started later by the server
 * and bound by all that binds it: with them the sandbox is off.
 *
 * Threading: the main thread; confine_user() and confine() before there are others. Errors: a
 * sentence for the user.
 */
#pragma once

#include "server/config/config.h"
#include "server/listen/credentials.h"

/* Becomes the user of the configuration, if it names one, to whom the sockets of the listeners are
 * given: the kernel names this user to those who connect. */
GMB_MUST_CHECK int confine_user(const struct server_config *config,
	const struct listener *listeners, uint32_t listener_count, const struct listener *control,
	const struct listener *metrics, struct error *error);

/* Enters the sandbox: what stays is what the configuration names, and what the start needs. The
 * exports are open and the credentials loaded. record: the file that says how the server was
 * started, which it may remove, not change; or "". */
GMB_MUST_CHECK int confine(const struct server_config *config,
	const struct credentials *credentials, const struct listener *listeners,
	uint32_t listener_count, const struct listener *control, const struct listener *metrics,
	const char *record, struct error *error);
/* Gives up what only the start needed. Everything listens, all rings are there, and nobody was
 * accepted. */
GMB_MUST_CHECK int confine_seal(const struct server_config *config, struct error *error);
