// SPDX-License-Identifier: Apache-2.0
/*
 * Identities of peers, which TLS authenticates and access rules match. Values are compared in their
 * canonical form: two values of one kind are equal if and only if their canonical bytes are equal.
 *
 *   certificate, PSK name ── tls ──▶ struct identity ──▶ engine: rules, takeover
 *   text of a rule ── identity_value_parse() ──▶ canonical bytes ──▶ rules
 *
 * Threading: an identity is immutable after it is shared; any thread can take and drop references.
 * Ownership: counted references. Errors: -EINVAL with an error message that says what is wrong with
 * the text.
 */
#pragma once

#include "base/error.h"

enum {
	/* An identity that exceeds a limit is rejected. */
	IDENTITY_VALUES_MAX = 128,
	IDENTITY_VALUE_BYTES_MAX = 8192, /* longest canonical form of a distinguished name */
	/* maximum size of all other values, and of one attribute of a distinguished name */
	IDENTITY_STRING_BYTES_MAX = 256,
	IDENTITY_RDNS_MAX = 32,
	IDENTITY_OID_BYTES_MAX = 64, /* longest OID as text */
	IDENTITY_TEXT_BYTES = 160,
	IDENTITY_DIGEST_BYTES = 32,
};

enum identity_kind {
	IDENTITY_PSK, /* name of a pre-shared key, unchanged */
	/* Subject: the RDNs in the order of RFC 4514. Each consists of one or more attributes,
	 * which have a type (OID) and a UTF-8 value. */
	IDENTITY_CERT_DN,
	IDENTITY_CERT_CN,    /* CN of the subject, only if it has exactly one */
	IDENTITY_CERT_DNS,   /* subject alternative names: lower-cased A-labels, no wildcard */
	IDENTITY_CERT_EMAIL, /* e-mail address, unchanged */
	IDENTITY_CERT_URI,   /* URI, unchanged */
	IDENTITY_CERT_IP,    /* IP address: 16 bytes, IPv4 mapped */
	IDENTITY_CERT_FINGERPRINT, /* SHA-256 of the certificate */
	/* SHA-256 of the certificate's public key (SubjectPublicKeyInfo) */
	IDENTITY_KEY_FINGERPRINT,
	IDENTITY_KIND_COUNT
};

struct identity_value {
	enum identity_kind kind;
	uint32_t bytes;
	const uint8_t *data;
};

/* An identity, allocated together with its values. */
struct identity {
	_Atomic uint32_t references;
	/* False if the connection is encrypted but the peer is not authenticated. The identity then
	 * has no values. */
	bool is_proved;
	/* For logs, escaped and truncated: "psk alice", "CN=host-a,O=Example", "nobody". */
	char text[IDENTITY_TEXT_BYTES];
	/* Binds takeover tokens to the peer: SHA-256 of kind and name. For a certificate it covers
	 * issuer, subject and alternative names, but not the key, because the certificate might be
	 * renewed between two connections. */
	uint8_t principal[IDENTITY_DIGEST_BYTES];
	/* Only for tls_context_recheck(): the certificate chain, or a digest of the key. */
	const uint8_t *proof;
	uint32_t proof_bytes;
	uint32_t value_count;
	struct identity_value values[];
};

struct identity_facts {
	bool is_proved;
	const char *text;	  /* will be escaped and truncated */
	const uint8_t *principal; /* IDENTITY_DIGEST_BYTES */
	const struct identity_value *values;
	uint32_t value_count; /* 0 unless is_proved */
	const uint8_t *proof;
	uint32_t proof_bytes;
};

/* Creates an identity with copies of all facts and one reference, which the caller owns. NULL: no
 * memory. */
struct identity *identity_create(const struct identity_facts *facts);

void identity_get(struct identity *identity);
/* NULL is a no-op. */
void identity_put(struct identity *identity);

/* Converts a value as written in a rule to its canonical bytes. Examples: "alice",
 * "CN=backup,O=Example" (RFC 4514, the order of `certtool -i`; spaces around '=', ',' and '+' are
 * ignored), "host-a.example", "192.0.2.7", "sha256:9f86..." (hexadecimal, can contain colons). */
GMB_MUST_CHECK int identity_value_parse(enum identity_kind kind, const char *text,
	uint8_t out[IDENTITY_VALUE_BYTES_MAX], uint32_t *bytes_out, struct error *error);

/* --- canonical forms, for code that reads certificates ---------------------------------------- */

/* A distinguished name, RDN by RDN in the order of RFC 4514: the most specific RDN first. All zero:
 * an empty name. */
struct identity_dn {
	uint32_t len, rdn_count;
	uint32_t rdn_at; /* private: offset of the last RDN */
	uint8_t bytes[IDENTITY_VALUE_BYTES_MAX];
};

/* Adds an attribute. If joins is set, it is added to the last RDN, whose attributes can come in any
 * order. Otherwise it starts a new RDN. oid: digits and points. Returns -EINVAL if a limit is
 * exceeded, or if the value has a zero byte or is not UTF-8. */
GMB_MUST_CHECK int identity_dn_add(struct identity_dn *dn, bool joins, const char *oid,
	size_t oid_bytes, const void *value, size_t value_bytes, struct error *error);
/* Stores the canonical form of the name in `out`. The canonical form has the same length as the
 * name. Returns -EINVAL if the name is too long or not ASCII. */
GMB_MUST_CHECK int identity_dns_canonical(
	const void *name, size_t bytes, uint8_t *out, struct error *error);
/* Stores the canonical form of an IPv4 or IPv6 address. bytes: 4 or 16. */
void identity_ip_canonical(const void *address, size_t bytes, uint8_t out[16]);
