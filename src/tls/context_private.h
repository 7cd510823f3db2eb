// SPDX-License-Identifier: Apache-2.0
/*
 * Private parts of a TLS context.
 *
 *   context.c          the object: from options to credentials, sessions, staleness, warnings
 *   context_files.c    files in memory that is wiped; pre-shared keys
 *   context_certs.c    a folder of certificates, checked while it is loaded
 *   context_verify.c   verification of a peer's chain, in the handshake and later
 *   context_identity.c the identity of a peer, from its certificate or key
 *   context_handover.c     encoding of the identity for another process
 *
 * Threading: one thread fills in a context, which then never changes. Ownership: see each function.
 * Error messages name the file, and never contain a key.
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
	TLS_CHAIN_COUNT_MAX = 16, /* longest chain that GnuTLS verifies */
	TLS_PSK_BYTES_MIN = 16,
	TLS_PSK_BYTES_MAX = 512,
	TLS_WARN_AHEAD_DAYS = 7,
};

/* The contents of a file, with a terminator. */
struct tls_bytes {
	char *data;
	size_t len;
};

/* A file at the time it was loaded. */
struct tls_file {
	char *path;
	bool is_there;
	uint8_t digest[IDENTITY_DIGEST_BYTES];
};

/* A key and its name. Both are inside the contents of the file. */
struct tls_psk {
	const char *name;
	const uint8_t *key;
	uint32_t name_bytes, key_bytes;
	uint32_t line;
};

/* Conditions under which a chain was verified. With the same digest of authorities and lists, and
 * at a time between from and until, the result would be the same. */
struct tls_trust {
	uint8_t digest[IDENTITY_DIGEST_BYTES];
	int64_t from, until; /* seconds, both inclusive */
};

struct tls_context {
	_Atomic uint32_t references;
	enum tls_role role;
	enum tls_records records;
	bool verify_peer;
	bool use_certificates;
	bool trusts_system; /* a client without a folder: it trusts the system's authorities */

	gnutls_priority_t priority;
	gnutls_certificate_credentials_t certificates; /* NULL: none */
	/* Authorities that can sign certificates of peers, and their revocation lists. Belongs to
	 * certificates. NULL: peers are not verified. */
	gnutls_x509_trust_list_t trust;
	gnutls_x509_crl_t *crls; /* the array; the elements belong to trust */
	uint32_t crl_count;
	/* Digest of the authorities and revocation lists in `trust`, and the period in which all of
	 * them are valid. All zeroes for the system's authorities, which are not known here. */
	struct tls_trust trusted;

	gnutls_psk_server_credentials_t psk_server; /* NULL: none */
	gnutls_psk_client_credentials_t psk_client; /* NULL: none */
	struct tls_bytes psk_bytes;		    /* memory that psks refers to */
	struct tls_psk *psks;			    /* sorted by name, see tls_psk_find() */
	uint32_t psk_count;
	const struct tls_psk *psk_own; /* client: the key that it uses */

	struct tls_file files[TLS_FILES_MAX];
	uint32_t file_count;
	char *warnings[TLS_WARNINGS_MAX + 1];
	uint32_t warning_count;
	time_t warn_at; /* time at which the next warning is due; 0: never */
};

/* --- context.c -------------------------------------------------------------------------------- */

/* Adds a warning, one sentence. Warnings beyond TLS_WARNINGS_MAX are dropped. */
void tls_context_warn(struct tls_context *context, const char *format, ...) GMB_PRINTF(2, 3);
/* Adds a warning if a certificate expires within TLS_WARN_AHEAD_DAYS. If it expires later, makes
 * the context stale by then. expires -1: never. */
void tls_context_warn_expiry(struct tls_context *context, const char *what, time_t expires);
/* Like tls_context_warn_expiry(), for a revocation list. Also makes the context stale when the list
 * expires, so that it is loaded again with a second warning. tls_context_warn_expiry() must not do
 * this for our own certificates: an expired certificate cannot be loaded, so the context would stay
 * stale. */
void tls_context_warn_crl_expiry(struct tls_context *context, const char *what, time_t expires);

/* --- context_files.c -------------------------------------------------------------------------- */

enum tls_file_kind {
	TLS_FILE_PUBLIC,
	TLS_FILE_SECRET, /* only its owner, and users in its access control list, may have access */
};

/* Reads folder/name, or name alone without a folder, and stores its digest. is_optional: a missing
 * file is not an error, and gives data = NULL. */
GMB_MUST_CHECK int tls_context_read(struct tls_context *context, const char *folder,
	const char *name, enum tls_file_kind kind, bool is_optional, struct tls_bytes *out,
	struct error *error);
/* Returns the path of the file read last. */
const char *tls_context_path(const struct tls_context *context);
/* Wipes and frees the memory. Empty: no-op. */
void tls_bytes_free(struct tls_bytes *bytes);
/* Returns whether the file differs from what was loaded. */
bool tls_file_is_stale(const struct tls_file *file);

/* Loads keys from a file, or from keys.psk in a folder. */
GMB_MUST_CHECK int tls_psk_load(struct tls_context *context, const char *path, struct error *error);
/* Finds a key by its name. Returns NULL if there is none. */
const struct tls_psk *tls_psk_find(
	const struct tls_context *context, const void *name, size_t name_bytes);
/* Computes a one-way digest of name and key. */
GMB_MUST_CHECK int tls_psk_digest(const struct tls_psk *psk, uint8_t out[IDENTITY_DIGEST_BYTES]);

/* --- context_certs.c -------------------------------------------------------------------------- */

/* Loads certificate, key, authorities and revocation lists. folder NULL: for a client that trusts
 * the system's authorities. */
GMB_MUST_CHECK int tls_certificates_load(
	struct tls_context *context, const char *folder, struct error *error);
/* Formats a time as "2026-11-22 13:37 UTC". */
enum { TLS_TIME_TEXT_BYTES = 32 };
const char *tls_time_text(time_t at, char out[TLS_TIME_TEXT_BYTES]);

/* --- context_verify.c ------------------------------------------------------------------------- */

/* The certificates that a peer presented, its own first. */
struct tls_chain {
	gnutls_x509_crt_t certs[TLS_CHAIN_COUNT_MAX];
	uint32_t count;
};

/* Imports a chain from DER. -EACCES: too many certificates, malformed ones, or none. Call
 * tls_chain_fini() in any case, also after a failure. */
GMB_MUST_CHECK int tls_chain_init(
	struct tls_chain *chain, const gnutls_datum_t *ders, uint32_t count, struct error *error);
void tls_chain_fini(struct tls_chain *chain);
/* Called by the layer's session during the handshake: returns 0 or a GnuTLS error. */
int tls_verify_function(gnutls_session_t session);
/* Reduces the period of validity in trust to the part in which the certificate is valid. */
void tls_trust_narrow(struct tls_trust *trust, gnutls_x509_crt_t cert);
/* Returns whether name is an address. bytes_out: 4 or 16. */
bool tls_name_is_address(const char *name, uint8_t out[16], uint32_t *bytes_out);

/* --- context_identity.c ----------------------------------------------------------------------- */

/* Creates an identity. ders: the chain presented by the peer. The identity keeps the chain and the
 * conditions of its verification (trust) for tls_context_recheck(). -EACCES: the identity exceeds a
 * limit. */
GMB_MUST_CHECK int tls_identity_of_chain(const struct tls_trust *trust, const gnutls_datum_t *ders,
	uint32_t count, struct identity **identity_out, struct error *error);
GMB_MUST_CHECK int tls_identity_of_psk(
	const struct tls_psk *psk, struct identity **identity_out, struct error *error);
/* Returns the identity of a peer that has presented neither a certificate nor a pre-shared key.
 * NULL: out of memory. */
struct identity *tls_identity_nobody(void);
/* Returns the chain in a certificate's identity and the number of its certificates. trust: the
 * conditions under which the chain was verified, with a period in which all of its certificates are
 * valid. */
uint32_t tls_identity_chain(const struct identity *identity, struct tls_trust *trust,
	gnutls_datum_t ders[TLS_CHAIN_COUNT_MAX]);
