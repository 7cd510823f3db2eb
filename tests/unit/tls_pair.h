// SPDX-License-Identifier: Apache-2.0
/*
 * Two ends of a TLS handshake in memory, each with a context of ours or with credentials that the
 * test has made with GnuTLS, which believes and shows everything. Credentials come from the folder
 * of tests/functional/tls_tool.py, the first argument of the test program.
 *
 * Threading: one. Ownership: pair_fini() frees what pair_init() made, and the credentials of raw
 * ends. Errors: asserted by cmocka.
 */
#pragma once

#include "tls/internal.h"

/* Where the credentials are; set by main(). */
extern const char *pair_folder;

struct pair_end {
	enum tls_role role;
	struct tls_check check;	     /* of an end of ours */
	struct tls_context *context; /* NULL: raw */
	gnutls_certificate_credentials_t raw_certificates;
	gnutls_psk_client_credentials_t raw_psk;
	gnutls_session_t session;
	struct pair_end *other;
	uint8_t *in; /* what the other has sent */
	size_t in_bytes, in_at;
	int result; /* of its handshake */
	bool is_done;
};

struct pair {
	struct pair_end server, client;
};

/* Options of a context: certificates of pair_folder/NAME (or none), verification on. */
struct tls_options pair_options(enum tls_role role, const char *name);
/* A path below pair_folder; static memory, the last four are good. */
const char *pair_path(const char *name);
/* Loads; it must succeed. */
struct tls_context *pair_load(const struct tls_options *options);

/* An end of ours takes the context; NULL makes it raw: it shows the certificate of pair_folder/NAME
 * unless raw_name is NULL, and verifies nothing. */
void pair_end_init(struct pair_end *end, enum tls_role role, struct tls_context *context,
	const char *server_name, const char *raw_name);
/* A raw client with a pre-shared key. */
void pair_end_init_psk(
	struct pair_end *end, const void *name, size_t name_bytes, const void *key, size_t bytes);
/* Both to their ends: results in result; a fatal error sends its alert. Data flows once after the
 * handshake, so that a client of TLS 1.3 hears that its certificate was refused. */
void pair_run(struct pair *pair);
void pair_fini(struct pair *pair);
