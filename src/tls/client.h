// SPDX-License-Identifier: Apache-2.0
/*
 * TLS for connections of a client to one server: the credentials named by its URI. They are loaded
 * again when their files have changed, so that renewing a certificate needs no restart.
 *
 *   URI ── tls_client_create() ──▶ struct tls_client
 *            ── tls_client_context(), before each connection ──▶ context, for its layer
 *
 * tls_client_create_for_place() creates a struct tls_client from the options of a push destination
 * (struct place) instead of a URI, for all servers of this destination.
 *
 * Threading: any thread; shared by the connections to a server. Ownership: the caller owns a struct
 * tls_client, which does not refer to the URI. Errors: a negative errno and an error message that
 * names the parameter or file, and never a key.
 */
#pragma once

#include "base/place.h"
#include "tls/layer.h"

struct tls_client;

/* Prepares TLS for the server of a URI. Reads no files. Relative paths are resolved against the
 * current working directory. -EINVAL: conflicting parameters. */
GMB_MUST_CHECK int tls_client_create(
	const struct export_uri *uri, struct tls_client **tls_out, struct error *error);
/* As tls_client_create(), for connections that the kernel's nbd driver continues: TLS 1.2 only,
 * because the driver cannot change keys, with ciphers that the kernel supports. */
GMB_MUST_CHECK int tls_client_create_for_driver(
	const struct export_uri *uri, struct tls_client **tls_out, struct error *error);
/* Called when credentials can no longer be read, to complete the error message. context: the latest
 * usable credentials. Any thread. */
typedef void tls_client_explain(const struct tls_context *context, struct error *error);
/* As tls_client_create(), for connections to any server of a destination with TLS. The
 * destination's credentials are used. The only setting used from a server's URI is tls-hostname, if
 * the destination has no name. */
GMB_MUST_CHECK int tls_client_create_for_place(const struct place *place,
	tls_client_explain *explain, struct tls_client **tls_out, struct error *error);
/* Frees the object, which no connection may be using. NULL is a no-op. */
void tls_client_destroy(struct tls_client *tls);

/* Returns the current credentials, with a reference for the caller. Blocks to read files. If new
 * credentials are not usable, perhaps because a file is being written, the previous ones stay in
 * use. */
GMB_MUST_CHECK int tls_client_context(
	struct tls_client *tls, struct tls_context **context_out, struct error *error);

/* Returns false if the context matches the files. Otherwise text says why the changed files are not
 * in use. */
bool tls_client_is_behind(struct tls_client *tls, char text[ERROR_TEXT_BYTES]);

/* Returns the pool of the connections to the server. Its one thread starts with the first
 * handshake. */
struct tls_pool *tls_client_pool(const struct tls_client *tls);
/* Returns the name or address that must be in the certificate of the server at that URI; NULL: the
 * name is not checked. */
const char *tls_client_server_name(const struct tls_client *tls, const struct export_uri *uri);
/* Returns what to check when the server closes the connection without giving a reason; static. */
const char *tls_client_advice(const struct tls_client *tls);
/* Returns whether a server that completes the handshake has proved its identity. */
bool tls_client_verifies(const struct tls_client *tls);
