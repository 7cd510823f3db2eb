// SPDX-License-Identifier: Apache-2.0
/*
 * TLS credentials, ready for handshakes: certificates, revocation list, pre-shared keys and cipher
 * order of a listener or a client. A context is never changed: a reload makes a new one and swaps.
 *
 *   options ── tls_context_load() ──▶ struct tls_context ──▶ layers (tls/layer.h), one each
 *                                          ▲
 *   listener: struct tls_policy { mode, context } ── tls_policy_replace()
 *
 * Files of a folder (as QEMU, nbdkit and libnbd name them): ca-cert.pem, ca-crl.pem (optional);
 * server-cert.pem, server-key.pem; client-cert.pem, client-key.pem (optional, both or none). A file
 * of pre-shared keys has lines NAME:HEX (psktool); a folder stands for its file keys.psk.
 *
 * Threading: loading blocks, on any thread; a context may be used on any thread. Ownership: counted
 * references. Errors: a negative errno and a sentence that names file, line and reason, and never a
 * key. Nothing secret is left in freed memory.
 */
#pragma once

#include "base/error.h"
#include "base/identity.h"

enum tls_role { TLS_SERVER, TLS_CLIENT };

/* Who does the records after the handshake. Auto: the kernel where it knows how to change keys. */
enum tls_records { TLS_RECORDS_AUTO, TLS_RECORDS_KERNEL, TLS_RECORDS_USER };

/* For priority strings of GnuTLS. The peer chooses the group: finite fields of 3072 to 8192 bits
 * cost 50 to 380 ms (GnuTLS 3.7.9; X25519 0.3 ms), and there is a curve that everybody has. The one
 * of 2048 bits, 18 ms, is for TLS 1.2 with DHE-PSK. */
#define TLS_PRIORITY_GROUPS "-GROUP-FFDHE3072:-GROUP-FFDHE4096:-GROUP-FFDHE6144:-GROUP-FFDHE8192"

struct tls_options {
	enum tls_role role;
	/* Folder. NULL: the first that exists of /etc/pki/gmblock for root, ~/.pki/gmblock and
	 * ~/.config/pki/gmblock for others; a client without any trusts the system's authorities,
	 * a server does with psk_file alone. */
	const char *certificates;
	const char *psk_file; /* or NULL */
	/* Server: demand a certificate of the client and verify it. Client: verify the server's
	 * chain, purpose and name. */
	bool verify_peer;
	const char *user;     /* client with PSK: the name to use; NULL: of the login */
	bool use_psk;	      /* client: PSK only, or else certificates only. Server: unused, it
			       * offers what it has */
	const char *priority; /* GnuTLS priority string in place of ours; NULL: ours */
	enum tls_records records;
};

struct tls_context;

GMB_MUST_CHECK int tls_context_load(
	const struct tls_options *options, struct tls_context **context_out, struct error *error);
void tls_context_get(struct tls_context *context);
/* NULL is a no-op. */
void tls_context_put(struct tls_context *context);

/* Whether loading again would give something else: the files differ from what was loaded (their
 * content, not their time), or something that expires is due for a warning. Blocks. */
bool tls_context_is_stale(const struct tls_context *context);
/* The files it was loaded from, and those that may come to exist; NULL behind the last. */
const char *tls_context_file(const struct tls_context *context, uint32_t idx);
/* The next file, from *idx on, that is not as it was when before was loaded; *idx is behind it
 * then. NULL: there is no more. */
const char *tls_context_changed_file(
	const struct tls_context *before, const struct tls_context *after, uint32_t *idx);
/* Whether a peer that was let in earlier would still be: 0, or -EACCES and the reason (revoked,
 * expired, the pre-shared key is gone or another one). */
GMB_MUST_CHECK int tls_context_recheck(
	struct tls_context *context, const struct identity *identity, struct error *error);
/* Things that an operator should know, one sentence each: "ca-crl.pem expires in 6 days", "an RSA
 * key of 3072 bits makes handshakes 15 times as costly as ECDSA". NULL behind the last. */
const char *tls_context_warning(const struct tls_context *context, uint32_t idx);

/* --- what a listener does about TLS ----------------------------------------------------------- */

enum tls_mode {
	TLS_OFF,     /* NOTLS: STARTTLS is refused */
	TLS_ON,	     /* SELECTIVETLS: who wants may, rules of access say who must */
	TLS_REQUIRE, /* FORCEDTLS: nothing is answered before */
};

struct tls_pool;
struct tls_policy;

/* Takes the context, also on failure (-ENOMEM); NULL with TLS_OFF only. pool: for its handshakes,
 * borrowed. */
GMB_MUST_CHECK int tls_policy_create(enum tls_mode mode, struct tls_context *context,
	struct tls_pool *pool, struct tls_policy **policy_out);
/* No connection uses it any more. NULL is a no-op. */
void tls_policy_destroy(struct tls_policy *policy);
/* NULL: TLS_OFF. */
enum tls_mode tls_policy_mode(const struct tls_policy *policy);
struct tls_pool *tls_policy_pool(const struct tls_policy *policy);
/* With a reference for the caller. Any thread. */
struct tls_context *tls_policy_context(struct tls_policy *policy);
/* Takes the context; handshakes that have begun keep theirs. Any thread. */
void tls_policy_replace(struct tls_policy *policy, struct tls_context *context);
