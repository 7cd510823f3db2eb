// SPDX-License-Identifier: Apache-2.0
/* The identity of a connection's peer, encoded for the process that continues the connection. That
 * process verifies it with its own credentials (docs/protocol/upgrade.md). */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "tls/context_private.h"

enum wire_kind { PEER_NOBODY, PEER_PSK, PEER_CHAIN };

/* Head of an encoded identity. The data of this kind follows. */
struct wire_peer {
	struct be32 kind;
} __attribute__((packed));

/* The name follows. */
struct wire_psk {
	uint8_t digest[IDENTITY_DIGEST_BYTES];
} __attribute__((packed));

/* The proof of an identity from certificates. The certificates follow, each preceded by its length,
 * struct be32. */
struct wire_chain {
	uint8_t digest[IDENTITY_DIGEST_BYTES];
	struct be64 from;
	struct be64 until;
} __attribute__((packed));

static const struct identity_value *psk_name(const struct identity *identity)
{
	return identity->is_proved && identity->values[0].kind == IDENTITY_PSK ? identity->values
									       : NULL;
}

uint32_t tls_peer_bytes(const struct identity *identity)
{
	const struct identity_value *psk = psk_name(identity);
	uint32_t bytes = (uint32_t)sizeof(struct wire_peer);

	if (psk != NULL) {
		bytes += (uint32_t)sizeof(struct wire_psk) + psk->bytes;
	} else if (identity->is_proved) {
		bytes += (uint32_t)(sizeof(struct wire_chain) - sizeof(struct tls_trust)) +
			 identity->proof_bytes;
	}
	return bytes;
}

/* Encodes the proof of an identity from a certificate chain. In memory, identity->proof is a struct
 * tls_trust followed by the certificates. */
static void put_chain(const struct identity *identity, uint8_t *out)
{
	struct tls_trust trust;
	struct wire_chain wire;

	memcpy(&trust, identity->proof, sizeof(trust));
	memcpy(wire.digest, trust.digest, sizeof(wire.digest));
	wire.from = be64_make((uint64_t)trust.from);
	wire.until = be64_make((uint64_t)trust.until);
	memcpy(out, &wire, sizeof(wire));
	memcpy(out + sizeof(wire), identity->proof + sizeof(trust),
		identity->proof_bytes - sizeof(trust));
}

uint32_t tls_peer_tell(const struct identity *identity, uint8_t *out)
{
	const struct identity_value *psk = psk_name(identity);
	enum wire_kind kind = !identity->is_proved ? PEER_NOBODY
			      : psk != NULL	   ? PEER_PSK
						   : PEER_CHAIN;
	struct wire_peer wire = { .kind = be32_make(kind) };
	uint8_t *rest = out + sizeof(wire);

	memcpy(out, &wire, sizeof(wire));
	if (kind == PEER_PSK) {
		memcpy(rest, identity->proof, sizeof(struct wire_psk));
		memcpy(rest + sizeof(struct wire_psk), psk->data, psk->bytes);
	} else if (kind == PEER_CHAIN) {
		put_chain(identity, rest);
	}
	return tls_peer_bytes(identity);
}

static int context_handover_malformed(struct error *error)
{
	return error_set(error, -EPROTO, "invalid TLS state from the other process");
}

static int take_psk(const struct tls_context *context, const uint8_t *bytes, uint32_t count,
	struct identity **identity_out, struct error *error)
{
	uint32_t name_bytes = count - (uint32_t)sizeof(struct wire_psk);
	uint8_t digest[IDENTITY_DIGEST_BYTES];
	const struct tls_psk *psk;

	if (count <= sizeof(struct wire_psk) || name_bytes > IDENTITY_STRING_BYTES_MAX) {
		return context_handover_malformed(error);
	}
	psk = tls_psk_find(context, bytes + sizeof(struct wire_psk), name_bytes);
	if (psk == NULL) {
		return error_set(error, -EACCES, "the pre-shared key was removed");
	}
	if (tls_psk_digest(psk, digest) != 0 || memcmp(digest, bytes, sizeof(digest)) != 0) {
		return error_set(error, -EACCES, "the pre-shared key has changed");
	}
	return tls_identity_of_psk(psk, identity_out, error);
}

static int take_chain(struct tls_context *context, const uint8_t *bytes, uint32_t count,
	struct identity **identity_out, struct error *error)
{
	gnutls_datum_t ders[TLS_CHAIN_COUNT_MAX];
	uint32_t at = (uint32_t)sizeof(struct wire_chain);
	uint32_t der_count = 0;
	struct wire_chain wire;
	struct tls_trust trust;
	int rc;

	if (count <= sizeof(wire)) {
		return context_handover_malformed(error);
	}
	memcpy(&wire, bytes, sizeof(wire));
	memcpy(trust.digest, wire.digest, sizeof(trust.digest));
	trust.from = (int64_t)be64_get(wire.from);
	trust.until = (int64_t)be64_get(wire.until);
	while (at < count) {
		uint32_t left = count - at;
		uint32_t der_bytes = left >= sizeof(struct be32) ? be32_load(bytes + at) : 0;

		if (der_count == TLS_CHAIN_COUNT_MAX || der_bytes == 0 ||
			der_bytes > left - sizeof(struct be32)) {
			return context_handover_malformed(error);
		}
		at += (uint32_t)sizeof(struct be32);
		/* The cast removes const: GnuTLS only reads the certificate. */
		ders[der_count].data = (uint8_t *)(uintptr_t)(bytes + at);
		ders[der_count++].size = der_bytes;
		at += der_bytes;
	}
	rc = tls_identity_of_chain(&trust, ders, der_count, identity_out, error);
	if (rc == 0) {
		rc = tls_context_recheck(context, *identity_out, error);
		if (rc < 0) {
			identity_put(*identity_out);
			*identity_out = NULL;
		}
	}
	return rc;
}

static int take_nobody(
	struct tls_context *context, struct identity **identity_out, struct error *error)
{
	struct identity *nobody = tls_identity_nobody();
	int rc = nobody == NULL ? error_oom(error) : tls_context_recheck(context, nobody, error);

	if (rc < 0) {
		identity_put(nobody);
		return rc;
	}
	*identity_out = nobody;
	return 0;
}

int tls_peer_take(struct tls_context *context, const uint8_t *bytes, uint32_t count,
	struct identity **identity_out, struct error *error)
{
	struct wire_peer wire;

	if (count < sizeof(wire)) {
		return context_handover_malformed(error);
	}
	memcpy(&wire, bytes, sizeof(wire));
	bytes += sizeof(wire);
	count -= (uint32_t)sizeof(wire);
	switch (be32_get(wire.kind)) {
	case PEER_NOBODY:
		return count == 0 ? take_nobody(context, identity_out, error)
				  : context_handover_malformed(error);
	case PEER_PSK:
		return take_psk(context, bytes, count, identity_out, error);
	case PEER_CHAIN:
		return take_chain(context, bytes, count, identity_out, error);
	default:
		return context_handover_malformed(error);
	}
}
