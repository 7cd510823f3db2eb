// SPDX-License-Identifier: Apache-2.0
/*
 * What a client needs for TLS with one server: the credentials that its URI names, read anew when
 * their files have changed, so that a certificate that is renewed needs no restart.
 *
 *   URI ── tls_client_create() ──▶ struct tls_client
 *            ── tls_client_context(), before each connection ──▶ context, for its layer
 *
 * Or of all servers in a place that an operator names: tls_client_create_for_place().
 *
 * Threading: any thread; shared by the connections to a server. Ownership: the caller's; it holds
 * no reference of the URI. Errors: a negative errno and a sentence that says which parameter or
 * file, and never a key.
 */
#pragma once

#include "base/place.h"
#include "tls/layer.h"

struct tls_client;

/* For a URI with tls. Reads no file; names of files are taken from the folder that the process is
 * in now. -EINVAL: parameters that do not fit together. */
GMB_MUST_CHECK int tls_client_create(
	const struct export_uri *uri, struct tls_client **tls_out, struct error *error);
/* The same for connections that the kernel's nbd driver carries on with: TLS 1.2 only, because the
 * driver cannot follow a change of keys, with ciphers that the kernel has. */
GMB_MUST_CHECK int tls_client_create_for_driver(
	const struct export_uri *uri, struct tls_client **tls_out, struct error *error);
/* Completes the sentence about credentials that cannot be read any more; context: the latest ones
 * that could be used. Any thread. */
typedef void tls_client_explain(const struct tls_context *context, struct error *error);
/* The same for connections to any server in a place with tls, whose credentials are the place's;
 * of what their URIs say, only tls-hostname counts, and only if the place has none. */
GMB_MUST_CHECK int tls_client_create_for_place(const struct place *place,
	tls_client_explain *explain, struct tls_client **tls_out, struct error *error);
/* No connection uses it any more. NULL is a no-op. */
void tls_client_destroy(struct tls_client *tls);

/* The credentials as they are now, a reference for the caller. Blocks: it reads files. When new
 * ones cannot be used, perhaps because they are half written, those that were read before stay. */
GMB_MUST_CHECK int tls_client_context(
	struct tls_client *tls, struct tls_context **context_out, struct error *error);

/* False: the context is that of the files. Else a sentence says why it is an older one. */
bool tls_client_is_behind(struct tls_client *tls, char text[ERROR_TEXT_BYTES]);

/* Of the connections to the server: its one thread starts with the first handshake. */
struct tls_pool *tls_client_pool(const struct tls_client *tls);
/* The name or address that the certificate of the server at that URI must have; NULL: none is asked
 * for. */
const char *tls_client_server_name(const struct tls_client *tls, const struct export_uri *uri);
/* What to look at when the server closes the connection instead of saying what it misses; static.
 */
const char *tls_client_advice(const struct tls_client *tls);
/* Whether a server that gets through the handshake has proved who it is. */
bool tls_client_verifies(const struct tls_client *tls);
