// SPDX-License-Identifier: Apache-2.0
/*
 * The inside of a TLS context.
 *
 *   context.c          the object: from options to credentials, sessions, staleness, warnings
 *   context_files.c    files in memory that is wiped; pre-shared keys
 *   context_certs.c    a folder of certificates, checked while it is loaded
 *   context_verify.c   a peer's chain, in the handshake and later
 *   context_identity.c who a peer is: out of its certificate or its key
 *   context_pass.c     the same, told to another process
 *
 * Threading: a context is filled by one thread, then never changed. Ownership: see each. Errors:
 * sentences that name the file; never a key.
 */
#pragma once

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdatomic.h>
#include <time.h>

#include "tls/internal.h"

enum {
	TLS_FILE_BYTES_MAX = 16 << 20,
	TLS_FILES_MAX = 6,
	TLS_WARNINGS_MAX = 16,
	TLS_CHAIN_COUNT_MAX = 16, /* GnuTLS verifies no more */
	TLS_PSK_BYTES_MIN = 16,
	TLS_PSK_BYTES_MAX = 512,
	TLS_WARN_AHEAD_DAYS = 7,
};

/* The content of a file, terminated. */
struct tls_bytes {
	char *data;
	size_t len;
};

/* A file as it was when it was loaded. */
struct tls_file {
	char *path;
	bool is_there;
	uint8_t digest[IDENTITY_DIGEST_BYTES];
};

/* A key and its name, inside the content of its file. */
struct tls_psk {
	const char *name;
	const uint8_t *key;
	uint32_t name_bytes, key_bytes;
	uint32_t line;
};

/* By what a chain was verified: it would be again with the same, at a time between. */
struct tls_trust {
	uint8_t digest[IDENTITY_DIGEST_BYTES];
	int64_t from, until; /* seconds, both included */
};

struct tls_context {
	_Atomic uint32_t references;
	enum tls_role role;
	enum tls_records records;
	bool verify_peer;
	bool use_certificates;
	bool trusts_system; /* a client without a folder */

	gnutls_priority_t priority;
	gnutls_certificate_credentials_t certificates; /* NULL: none */
	/* Of those who may sign for peers, with the revocation lists. Belongs to certificates.
	 * NULL: peers are not verified. */
	gnutls_x509_trust_list_t trust;
	gnutls_x509_crl_t *crls; /* the array; its lists belong to trust */
	uint32_t crl_count;
	/* What trust was made of, and when all of it is valid. Unknown of the system's authorities:
	 * all zero. */
	struct tls_trust trusted;

	gnutls_psk_server_credentials_t psk_server; /* NULL: none */
	gnutls_psk_client_credentials_t psk_client; /* NULL: none */
	struct tls_bytes psk_bytes;		    /* what psks point into */
	struct tls_psk *psks;			    /* by name, see tls_psk_find() */
	uint32_t psk_count;
	const struct tls_psk *psk_own; /* client: the one to use */

	struct tls_file files[TLS_FILES_MAX];
	uint32_t file_count;
	char *warnings[TLS_WARNINGS_MAX + 1];
	uint32_t warning_count;
	time_t warn_at; /* when there will be another warning; 0: never */
};

/* --- context.c -------------------------------------------------------------------------------- */

/* One sentence; what is too much is dropped. */
void tls_context_warn(struct tls_context *context, const char *format, ...) GMB_PRINTF(2, 3);
/* Warns if a certificate that expires then does so within TLS_WARN_AHEAD_DAYS, and else sees to it
 * that the context is stale by then. -1: it never does. */
void tls_context_warn_expiry(struct tls_context *context, const char *what, time_t expires);
/* The same of a revocation list, and again when it has expired. A certificate of ours that has
 * expired is not loaded, so that the context would be stale for ever. */
void tls_context_warn_crl_expiry(struct tls_context *context, const char *what, time_t expires);

/* --- context_files.c -------------------------------------------------------------------------- */

enum tls_file_kind {
	TLS_FILE_PUBLIC,
	TLS_FILE_SECRET, /* others than its owner must not read it */
};

/* Reads folder/name, or name alone without a folder, and remembers its digest. is_optional: a file
 * that does not exist is no error, and gives data = NULL. */
GMB_MUST_CHECK int tls_context_read(struct tls_context *context, const char *folder,
	const char *name, enum tls_file_kind kind, bool is_optional, struct tls_bytes *out,
	struct error *error);
/* The path of the file that was read last. */
const char *tls_context_path(const struct tls_context *context);
/* Wipes and frees; empty: no-op. */
void tls_bytes_free(struct tls_bytes *bytes);
/* Whether the file differs from what was loaded. */
bool tls_file_is_stale(const struct tls_file *file);

/* Loads the keys of a file, or of keys.psk in a folder. */
GMB_MUST_CHECK int tls_psk_load(struct tls_context *context, const char *path, struct error *error);
/* NULL: no key has this name. */
const struct tls_psk *tls_psk_find(
	const struct tls_context *context, const void *name, size_t name_bytes);
/* One way, from name and key. */
GMB_MUST_CHECK int tls_psk_digest(const struct tls_psk *psk, uint8_t out[IDENTITY_DIGEST_BYTES]);

/* --- context_certs.c -------------------------------------------------------------------------- */

/* Loads certificate, key, authorities and revocation lists. folder NULL: a client without any, that
 * trusts the authorities of the system. */
GMB_MUST_CHECK int tls_certificates_load(
	struct tls_context *context, const char *folder, struct error *error);
/* "2026-11-22 13:37 UTC". */
enum { TLS_TIME_TEXT_BYTES = 32 };
const char *tls_time_text(time_t at, char out[TLS_TIME_TEXT_BYTES]);

/* --- context_verify.c ------------------------------------------------------------------------- */

/* The certificates that a peer showed, its own first. */
struct tls_chain {
	gnutls_x509_crt_t certs[TLS_CHAIN_COUNT_MAX];
	uint32_t count;
};

/* -EACCES: too many, or no certificates. Freed with tls_chain_fini(), also on failure. */
GMB_MUST_CHECK int tls_chain_init(
	struct tls_chain *chain, const gnutls_datum_t *ders, uint32_t count, struct error *error);
void tls_chain_fini(struct tls_chain *chain);
/* What the layer's session calls during the handshake: 0, or a GnuTLS error. */
int tls_verify_function(gnutls_session_t session);
/* Less of the time, where the certificate is valid for a part of it only. */
void tls_trust_narrow(struct tls_trust *trust, gnutls_x509_crt_t cert);
/* Whether name is written as an address. bytes_out: 4 or 16. */
bool tls_name_is_address(const char *name, uint8_t out[16], uint32_t *bytes_out);

/* --- context_identity.c ----------------------------------------------------------------------- */

/* ders: the chain as the peer showed it, kept for tls_context_recheck() with what it was verified
 * by. -EACCES: an identity beyond the bounds. */
GMB_MUST_CHECK int tls_identity_of_chain(const struct tls_trust *trust, const gnutls_datum_t *ders,
	uint32_t count, struct identity **identity_out, struct error *error);
GMB_MUST_CHECK int tls_identity_of_psk(
	const struct tls_psk *psk, struct identity **identity_out, struct error *error);
/* Of a peer that has proved nothing. NULL: no memory. */
struct identity *tls_identity_nobody(void);
/* The chain in an identity of a certificate, and what it was verified by, at times when all of the
 * chain is valid. Returns how many certificates. */
uint32_t tls_identity_chain(const struct identity *identity, struct tls_trust *trust,
	gnutls_datum_t ders[TLS_CHAIN_COUNT_MAX]);
