// SPDX-License-Identifier: Apache-2.0
/*
 * TLS of all listeners: each has a policy (tls/context.h) whose context is loaded from the files
 * that its settings name, and a pool of workers that all share. TLS of places to push to: each has
 * a struct tls_client, which reads its files again by itself before a connection.
 *
 *   credentials_open() ─▶ listener->tls      credentials_load() ─▶ set ─▶ credentials_use()
 *
 * A set of new contexts is loaded completely before any of them is used, so that a set of files
 * that is broken, or half-written, changes nothing.
 *
 * Threading: the main thread, but for credentials_load() and credentials_are_stale(), which block
 * while they read files, on any one thread. Ownership: borrows the listeners, and owns their
 * policies; the same of the configuration's places. Errors: a negative errno and a sentence that
 * names the address, the file and the reason.
 */
#pragma once

#include <jansson.h>

#include "sandbox/sandbox.h"
#include "server/listen/listen.h"

struct credentials;
struct credentials_set;
struct forecast;

/* Gives each listener with TLS its policy, and each place with TLS its credentials, and logs what
 * an operator should know. */
GMB_MUST_CHECK int credentials_open(struct server_config *config, struct listener *listeners,
	uint32_t listener_count, struct credentials **credentials_out, struct error *error);
/* Before the rings of connections are destroyed, none of which is left. NULL is a no-op. */
void credentials_settle(struct credentials *credentials);
/* No connection is left, the listeners may be closed. NULL is a no-op. */
void credentials_close(struct credentials *credentials);

/* The files will be read again, and others may take their place. */
GMB_MUST_CHECK int credentials_allow(
	const struct credentials *credentials, struct sandbox *sandbox, struct error *error);
/* How many listeners have TLS. */
uint32_t credentials_count(const struct credentials *credentials);
/* Whether a file has changed since it was loaded. */
bool credentials_are_stale(const struct credentials *credentials);
GMB_MUST_CHECK int credentials_load(const struct credentials *credentials,
	struct credentials_set **set_out, struct error *error);
/* Takes the set: new handshakes use it. Logs what an operator should know. */
void credentials_use(struct credentials *credentials, struct credentials_set *set);
/* Has the forecast check connections with the set, and then, when it has run, adds a line for each
 * address whose files are others, or some of whose connections end. */
GMB_MUST_CHECK int credentials_foresee(const struct credentials *credentials,
	const struct credentials_set *set, struct forecast *forecast, struct error *error);
void credentials_tell(const struct credentials *credentials, const struct credentials_set *set,
	const struct forecast *forecast, json_t *lines);
/* Drops a set that is not used. NULL is a no-op. */
void credentials_set_free(struct credentials_set *set);
