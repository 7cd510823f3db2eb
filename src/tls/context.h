// SPDX-License-Identifier: Apache-2.0
/*
 * TLS credentials, ready for handshakes: certificates, revocation list, pre-shared keys and cipher
 * order of a listener or a client. A context never changes. A reload creates a new one and replaces
 * the old one.
 *
 *   options ── tls_context_load() ──▶ struct tls_context ──▶ layers (tls/layer.h), one each
 *                                          ▲
 *   listener: struct tls_policy { mode, context } ── tls_policy_replace()
 *
 * Files of a folder, with the names used by QEMU, nbdkit and libnbd: ca-cert.pem, ca-crl.pem
 * (optional); server-cert.pem, server-key.pem; client-cert.pem, client-key.pem (optional, both or
 * none). A file of pre-shared keys has lines NAME:HEX (psktool). If psk_file names a folder, its
 * file keys.psk is used.
 *
 * Threading: loading blocks, on any thread. A context can be used on any thread. Ownership:
 * references are counted. Errors: a negative errno and an error message that names file, line and
 * reason, and never a key. No secret is left in freed memory.
 */
#pragma once

#include "base/error.h"
#include "base/identity.h"

enum tls_role { TLS_SERVER, TLS_CLIENT };

/* Where records are processed after the handshake. Auto: in the kernel, if it can change keys. */
enum tls_records { TLS_RECORDS_AUTO, TLS_RECORDS_KERNEL, TLS_RECORDS_USER };

/* For GnuTLS priority strings. The peer chooses the key exchange group. Finite-field groups of 3072
 * to 8192 bits are left out, because they cost 50 to 380 ms (GnuTLS 3.7.9; X25519 costs 0.3 ms) and
 * all peers have a curve. The group of 2048 bits (18 ms) is kept for TLS 1.2 with DHE-PSK. */
#define TLS_PRIORITY_GROUPS "-GROUP-FFDHE3072:-GROUP-FFDHE4096:-GROUP-FFDHE6144:-GROUP-FFDHE8192"

struct tls_options {
	enum tls_role role;
	/* Folder. NULL: /etc/pki/gmblock for root, otherwise the first that exists of
	 * ~/.pki/gmblock and ~/.config/pki/gmblock. Without a folder, a client trusts the system's
	 * authorities, and a server uses psk_file alone. */
	const char *certificates;
	const char *psk_file; /* can be NULL */
	/* Server: request a client certificate and verify it. Client: verify the server's chain,
	 * purpose and name. */
	bool verify_peer;
	const char *user; /* client with PSK: the name of the key; NULL: the login name */
	/* Client: use PSK only; otherwise certificates only. A server ignores it and offers both
	 * if it has both. */
	bool use_psk;
	/* GnuTLS priority string instead of the default; NULL: the default */
	const char *priority;
	enum tls_records records;
};

struct tls_context;

GMB_MUST_CHECK int tls_context_load(
	const struct tls_options *options, struct tls_context **context_out, struct error *error);
void tls_context_get(struct tls_context *context);
/* Releases one reference. NULL is a no-op. */
void tls_context_put(struct tls_context *context);

/* Returns whether the context should be loaded again: the contents of a file have changed (not only
 * its time), or a warning about an expiry date is due. Blocks. */
bool tls_context_is_stale(const struct tls_context *context);
/* Returns the path of a file that the context was loaded from, or of an optional one that did not
 * exist; NULL after the last. */
const char *tls_context_file(const struct tls_context *context, uint32_t idx);
/* Compares the files of two contexts. Returns the path of the next file of `after`, from index *idx
 * on, that `before` does not have or has with other contents. Sets *idx to the following index.
 * NULL: there is no further such file. */
const char *tls_context_changed_file(
	const struct tls_context *before, const struct tls_context *after, uint32_t *idx);
/* Checks whether a peer accepted earlier would still be accepted. 0, or -EACCES and the reason:
 * its certificate is revoked or expired, or its pre-shared key was removed or changed. */
GMB_MUST_CHECK int tls_context_recheck(
	struct tls_context *context, const struct identity *identity, struct error *error);
/* Returns a warning for the operator, one sentence: "ca-crl.pem expires in 6 days, on ...", "an RSA
 * key of 3072 bits makes handshakes 15 times as expensive as ECDSA". NULL after the last. */
const char *tls_context_warning(const struct tls_context *context, uint32_t idx);

/* --- TLS policy of a listener ---------------------------------------------------------------- */

enum tls_mode {
	TLS_OFF,     /* NOTLS: STARTTLS is rejected */
	TLS_ON,	     /* SELECTIVETLS: clients can use TLS; access rules can require TLS */
	TLS_REQUIRE, /* FORCEDTLS: clients must start TLS before any other request */
};

struct tls_pool;
struct tls_policy;

/* Creates a policy with a context, which may be NULL only with TLS_OFF. The policy takes over the
 * caller's reference, also on failure (-ENOMEM). pool: for its handshakes, borrowed. */
GMB_MUST_CHECK int tls_policy_create(enum tls_mode mode, struct tls_context *context,
	struct tls_pool *pool, struct tls_policy **policy_out);
/* Frees a policy, which no connection may be using. NULL is a no-op. */
void tls_policy_destroy(struct tls_policy *policy);
/* NULL: returns TLS_OFF. */
enum tls_mode tls_policy_mode(const struct tls_policy *policy);
struct tls_pool *tls_policy_pool(const struct tls_policy *policy);
/* Returns the context with a reference for the caller. Any thread. */
struct tls_context *tls_policy_context(struct tls_policy *policy);
/* Replaces the context, and takes over the caller's reference. Handshakes in progress keep the old
 * one. Any thread. */
void tls_policy_replace(struct tls_policy *policy, struct tls_context *context);
