// SPDX-License-Identifier: Apache-2.0
/*
 * TLS of all listeners and push destinations. Each listener with TLS has a policy (tls/context.h),
 * whose context is loaded from the files that its settings name; all share one pool of handshake
 * workers. Each push destination with TLS has a struct tls_client, which re-reads its files itself
 * before a connection.
 *
 *   credentials_open() ─▶ listener->tls      credentials_load() ─▶ set ─▶ credentials_use()
 *
 * A set of new contexts is loaded completely before the first one is used, so that broken or
 * half-written files have no effect.
 *
 * Threading: the main thread, except for credentials_load() and credentials_are_stale(), which
 * block while they read files, on one thread at a time. Ownership: borrows the listeners and the
 * configuration's push destinations; owns their policies and clients. Errors: a negative errno and
 * an error message that names the address, the file and the reason.
 */
#pragma once

#include <jansson.h>

#include "sandbox/sandbox.h"
#include "server/listen/listen.h"

struct credentials;
struct credentials_set;
struct forecast;

/* Gives each listener with TLS its policy and each push destination with TLS its credentials. Logs
 * warnings for the operator. */
GMB_MUST_CHECK int credentials_open(struct server_config *config, struct listener *listeners,
	uint32_t listener_count, struct credentials **credentials_out, struct error *error);
/* Stops the handshake threads. Called when no connection is left, before the rings of the
 * connections are destroyed. NULL is a no-op. */
void credentials_synchronize(struct credentials *credentials);
/* Called when no connection is left; the listeners may be closed. NULL is a no-op. */
void credentials_close(struct credentials *credentials);

/* Makes the sandbox permit reading the files again, including files that replace them by
 * renaming. */
GMB_MUST_CHECK int credentials_allow(
	const struct credentials *credentials, struct sandbox *sandbox, struct error *error);
/* Returns the number of listeners with TLS. */
uint32_t credentials_count(const struct credentials *credentials);
/* Returns whether a file has changed since it was loaded. */
bool credentials_are_stale(const struct credentials *credentials);
GMB_MUST_CHECK int credentials_load(const struct credentials *credentials,
	struct credentials_set **set_out, struct error *error);
/* Puts the set into use for new handshakes, and takes ownership of it. Logs warnings for the
 * operator. */
void credentials_use(struct credentials *credentials, struct credentials_set *set);
/* credentials_foresee() adds the set's TLS files to the forecast, which predicts the connections
 * that these files would end. After the forecast has run, credentials_tell() adds a line for each
 * address whose files have changed or that would lose connections. */
GMB_MUST_CHECK int credentials_foresee(const struct credentials *credentials,
	const struct credentials_set *set, struct forecast *forecast, struct error *error);
void credentials_tell(const struct credentials *credentials, const struct credentials_set *set,
	const struct forecast *forecast, json_t *lines);
/* Frees a set that was not used. NULL is a no-op. */
void credentials_set_free(struct credentials_set *set);
