// SPDX-License-Identifier: Apache-2.0
/*
 * Who a peer has proved to be: what TLS tells, and what rules of access ask for. Values are
 * compared as canonical bytes, never as text: two values of one kind are equal exactly when their
 * bytes are.
 *
 *   certificate, PSK name ── tls ──▶ struct identity ──▶ engine: rules, takeover
 *   text of a rule ── identity_value_parse() ──▶ canonical bytes ──▶ rules
 *
 * Threading: an identity is immutable once it is shared; references may be taken and dropped on any
 * thread. Ownership: counted references. Errors: -EINVAL with a sentence that names what is wrong
 * with the text.
 */
#pragma once

#include "base/error.h"

enum {
	/* Larger identities are refused. */
	IDENTITY_VALUES_MAX = 128,
	IDENTITY_VALUE_BYTES_MAX = 8192, /* of a canonical distinguished name */
	IDENTITY_STRING_BYTES_MAX = 256, /* of all others, and of one attribute of a name */
	IDENTITY_RDNS_MAX = 32,
	IDENTITY_OID_BYTES_MAX = 64, /* as text */
	IDENTITY_TEXT_BYTES = 160,
	IDENTITY_DIGEST_BYTES = 32,
};

enum identity_kind {
	IDENTITY_PSK,	     /* name of a pre-shared key, as it is */
	IDENTITY_CERT_DN,    /* subject: RDNs in order, each a type (OID) and a UTF-8 value */
	IDENTITY_CERT_CN,    /* only when the subject has exactly one */
	IDENTITY_CERT_DNS,   /* subject alternative names: lower-cased A-labels, no wildcard */
	IDENTITY_CERT_EMAIL, /* as it is */
	IDENTITY_CERT_URI,   /* as it is */
	IDENTITY_CERT_IP,    /* 16 bytes, IPv4 mapped */
	IDENTITY_CERT_FINGERPRINT, /* SHA-256 of the certificate */
	IDENTITY_KEY_FINGERPRINT,  /* SHA-256 of its public key (SubjectPublicKeyInfo) */
	IDENTITY_KIND_COUNT
};

struct identity_value {
	enum identity_kind kind;
	uint32_t bytes;
	const uint8_t *data;
};

/* Allocated in one piece with its values. */
struct identity {
	_Atomic uint32_t references;
	/* False: the connection is encrypted, and the peer has proved nothing. No values then. */
	bool is_proved;
	/* For logs, escaped and cut: "psk alice", "CN=host-a,O=Example", "nobody". */
	char text[IDENTITY_TEXT_BYTES];
	/* What a takeover token is bound to: SHA-256 of kind and name; of a certificate issuer,
	 * subject and alternative names, not the key, because renewals come between two
	 * connections. */
	uint8_t principal[IDENTITY_DIGEST_BYTES];
	/* For tls_context_recheck() alone: the chain of certificates, or a digest of the key. */
	const uint8_t *proof;
	uint32_t proof_bytes;
	uint32_t value_count;
	struct identity_value values[];
};

struct identity_facts {
	bool is_proved;
	const char *text;	  /* is escaped and cut */
	const uint8_t *principal; /* IDENTITY_DIGEST_BYTES */
	const struct identity_value *values;
	uint32_t value_count; /* none unless is_proved */
	const uint8_t *proof;
	uint32_t proof_bytes;
};

/* Copies everything. One reference, the caller's; NULL: no memory. */
struct identity *identity_create(const struct identity_facts *facts);

void identity_get(struct identity *identity);
/* NULL is a no-op. */
void identity_put(struct identity *identity);

/* The canonical bytes of a value as a rule writes it: "alice", "CN=backup,O=Example" (RFC 4514, the
 * order of `certtool -i`; spaces around '=', ',' and '+' are no part of it), "host-a.example",
 * "192.0.2.7", "sha256:9f86..." (hexadecimal, colons allowed). */
GMB_MUST_CHECK int identity_value_parse(enum identity_kind kind, const char *text,
	uint8_t out[IDENTITY_VALUE_BYTES_MAX], uint32_t *bytes_out, struct error *error);

/* --- canonical forms, for those who read certificates ----------------------------------------- */

/* A distinguished name, RDN by RDN in the order of RFC 4514: the most specific one first. All zero:
 * empty. */
struct identity_dn {
	uint32_t len, rdn_count;
	uint32_t rdn_at; /* private: where the last RDN begins */
	uint8_t bytes[IDENTITY_VALUE_BYTES_MAX];
};

/* Adds an attribute: to the last RDN (joins), in any order, or as a new one. oid: digits and
 * points. -EINVAL: beyond the bounds, a zero byte, not UTF-8. */
GMB_MUST_CHECK int identity_dn_add(struct identity_dn *dn, bool joins, const char *oid,
	size_t oid_bytes, const void *value, size_t value_bytes, struct error *error);
/* As many bytes as the name has go to out. -EINVAL: too long, or not ASCII. */
GMB_MUST_CHECK int identity_dns_canonical(
	const void *name, size_t bytes, uint8_t *out, struct error *error);
/* bytes: 4 or 16. */
void identity_ip_canonical(const void *address, size_t bytes, uint8_t out[16]);
