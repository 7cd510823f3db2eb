// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <gnutls/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/text.h"
#include "tls/context_private.h"

enum { SANS_MAX = 64, VALUES_BYTES_MAX = IDENTITY_VALUE_BYTES_MAX + SANS_MAX * 256 + 512 };

_Static_assert(SANS_MAX + 4 <= IDENTITY_VALUES_MAX, "name, CN, two fingerprints");
_Static_assert(IDENTITY_STRING_BYTES_MAX == 256, "VALUES_BYTES_MAX is based on this");

/* Values collected from a certificate. */
struct collection {
	struct identity_value values[IDENTITY_VALUES_MAX];
	uint32_t count;
	uint8_t bytes[VALUES_BYTES_MAX];
	uint32_t used;
	struct identity_dn subject, issuer;
	gnutls_hash_hd_t principal;
};

/* Tags of ASN.1 strings, X.680 section 8.6. */
enum {
	TAG_UTF8 = 12,
	TAG_NUMERIC = 18,
	TAG_PRINTABLE = 19,
	TAG_TELETEX = 20,
	TAG_IA5 = 22,
	TAG_BMP = 30,
};

static void add_value(
	struct collection *all, enum identity_kind kind, const void *data, uint32_t bytes)
{
	uint8_t *to = all->bytes + all->used;

	GMB_ASSERT(all->count < IDENTITY_VALUES_MAX && bytes <= VALUES_BYTES_MAX - all->used);
	memcpy(to, data, bytes);
	all->used += bytes;
	all->values[all->count++] = (struct identity_value){ kind, bytes, to };
}

/* Adds a part to the principal, which takeover tokens are bound to. Each part includes its kind
 * and length, so different lists of parts never give the same bytes. */
static void hash_part(gnutls_hash_hd_t hash, uint8_t kind, const void *data, uint32_t bytes)
{
	struct be32 length = be32_make(bytes);

	gnutls_hash(hash, &kind, 1);
	gnutls_hash(hash, &length, sizeof(length));
	if (bytes > 0) {
		gnutls_hash(hash, data, bytes);
	}
}

/* --- names ------------------------------------------------------------------------------------ */

/* Converts UCS-2, big-endian. A surrogate becomes three bytes that are invalid UTF-8, which a
 * later check detects. -EINVAL: odd length, or too long. */
static int utf8_of_bmp(const gnutls_datum_t *from, uint8_t *out, size_t *bytes)
{
	size_t len = 0;

	if (from->size % 2 != 0 || from->size / 2 * 3 > IDENTITY_STRING_BYTES_MAX * 3) {
		return -EINVAL;
	}
	for (unsigned i = 0; i < from->size; i += 2) {
		unsigned c = (unsigned)from->data[i] << 8 | from->data[i + 1];

		if (c < 0x80) {
			out[len++] = (uint8_t)c;
		} else if (c < 0x800) {
			out[len++] = (uint8_t)(0xc0 | c >> 6);
			out[len++] = (uint8_t)(0x80 | (c & 0x3f));
		} else {
			out[len++] = (uint8_t)(0xe0 | c >> 12);
			out[len++] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
			out[len++] = (uint8_t)(0x80 | (c & 0x3f));
		}
	}
	*bytes = len;
	return 0;
}

static bool is_ascii(const gnutls_datum_t *text)
{
	for (unsigned i = 0; i < text->size; i++) {
		if (text->data[i] >= 0x80) {
			return false;
		}
	}
	return true;
}

static int add_attribute(
	struct identity_dn *dn, bool joins, const gnutls_x509_ava_st *ava, struct error *error)
{
	uint8_t utf8[IDENTITY_STRING_BYTES_MAX * 3];
	const void *value = ava->value.data;
	size_t bytes = ava->value.size;

	switch (ava->value_tag) {
	case TAG_UTF8:
		break;
	case TAG_NUMERIC:
	case TAG_PRINTABLE:
	case TAG_TELETEX:
	case TAG_IA5:
		if (!is_ascii(&ava->value)) {
			return error_set(error, -EINVAL,
				"an attribute of the name has bytes that its type does not allow");
		}
		break;
	case TAG_BMP:
		if (utf8_of_bmp(&ava->value, utf8, &bytes) != 0) {
			return error_set(error, -EINVAL,
				"an attribute of the name is malformed or too long");
		}
		value = utf8;
		break;
	default:
		return error_set(error, -EINVAL,
			"an attribute of the name has an unknown string type (%lu)",
			ava->value_tag);
	}
	/* GnuTLS includes the terminator in the OID's size. */
	return identity_dn_add(dn, joins, (const char *)ava->oid.data,
		strnlen((const char *)ava->oid.data, ava->oid.size), value, bytes, error);
}

/* Collects RDNs in reverse order: a certificate starts with the most general one, RFC 4514 with
 * the most specific one. */
static int collect_name(gnutls_x509_dn_t name, struct identity_dn *dn, struct error *error)
{
	gnutls_x509_ava_st ava;
	int count = 0;

	while (count <= IDENTITY_RDNS_MAX &&
		gnutls_x509_dn_get_rdn_ava(name, count, 0, &ava) >= 0) {
		count++;
	}
	for (int rdn = count - 1; rdn >= 0; rdn--) {
		for (int i = 0; gnutls_x509_dn_get_rdn_ava(name, rdn, i, &ava) >= 0; i++) {
			int rc = add_attribute(dn, i > 0, &ava, error);

			if (rc != 0) {
				return rc;
			}
		}
	}
	return 0;
}

/* Adds the common name if the canonical name contains exactly one. */
static void collect_cn(struct collection *all)
{
	static const char oid[] = "2.5.4.3";
	const uint8_t *at = all->subject.bytes, *end = at + all->subject.len;
	const uint8_t *found = NULL;
	uint32_t found_bytes = 0, count = 0;

	while (at < end) {
		for (uint32_t left = *at++; left > 0; left--) {
			uint32_t oid_bytes = at[0];
			uint32_t bytes = (uint32_t)at[1 + oid_bytes] << 8 | at[2 + oid_bytes];

			if (oid_bytes == strlen(oid) && memcmp(at + 1, oid, oid_bytes) == 0) {
				found = at + 3 + oid_bytes;
				found_bytes = bytes;
				count++;
			}
			at += 3 + oid_bytes + bytes;
		}
	}
	if (count == 1) {
		add_value(all, IDENTITY_CERT_CN, found, found_bytes);
	}
}

static int collect_names(struct collection *all, gnutls_x509_crt_t cert, struct error *error)
{
	gnutls_x509_dn_t subject, issuer;
	int rc;

	if (gnutls_x509_crt_get_subject(cert, &subject) < 0 ||
		gnutls_x509_crt_get_issuer(cert, &issuer) < 0) {
		return error_set(error, -EINVAL, "the names in the certificate cannot be read");
	}
	rc = collect_name(issuer, &all->issuer, error);
	rc = rc ?: collect_name(subject, &all->subject, error);
	if (rc != 0) {
		return rc;
	}
	hash_part(all->principal, 'i', all->issuer.bytes, all->issuer.len);
	hash_part(all->principal, IDENTITY_CERT_DN, all->subject.bytes, all->subject.len);
	if (all->subject.len > 0) {
		add_value(all, IDENTITY_CERT_DN, all->subject.bytes, all->subject.len);
		collect_cn(all);
	}
	return 0;
}

/* --- alternative names ------------------------------------------------------------------------ */

static int add_alternative(
	struct collection *all, int type, const uint8_t *data, size_t bytes, struct error *error)
{
	enum identity_kind kind;
	uint8_t out[IDENTITY_STRING_BYTES_MAX];
	bool is_wildcard = false;
	int rc = 0;

	if (type == GNUTLS_SAN_IPADDRESS) {
		if (bytes != 4 && bytes != 16) {
			return error_set(error, -EINVAL,
				"the alternative names of the certificate contain an IP address of "
				"%zu bytes instead of 4 or 16",
				bytes);
		}
		kind = IDENTITY_CERT_IP;
		identity_ip_canonical(data, bytes, out);
		bytes = 16;
	} else if (type == GNUTLS_SAN_DNSNAME) {
		kind = IDENTITY_CERT_DNS;
		rc = identity_dns_canonical(data, bytes, out, error);
		is_wildcard = rc == 0 && memchr(out, '*', bytes) != NULL;
	} else if (type == GNUTLS_SAN_RFC822NAME || type == GNUTLS_SAN_URI) {
		kind = type == GNUTLS_SAN_URI ? IDENTITY_CERT_URI : IDENTITY_CERT_EMAIL;
		if (bytes == 0 || memchr(data, 0, bytes) != NULL || !utf8_valid(data, bytes)) {
			return error_set(error, -EINVAL,
				"an alternative name is empty, has a zero byte or is not UTF-8");
		}
		memcpy(out, data, bytes);
	} else {
		/* Access rules cannot match other kinds of names, so such a name is only hashed
		 * into the principal. */
		hash_part(all->principal, 'o', data, (uint32_t)bytes);
		return 0;
	}
	if (rc == 0) {
		hash_part(all->principal, (uint8_t)kind, out, (uint32_t)bytes);
		/* A wildcard identifies no peer, so it is left out. */
		if (!is_wildcard) {
			add_value(all, kind, out, (uint32_t)bytes);
		}
	}
	return rc;
}

static int collect_alternatives(struct collection *all, gnutls_x509_crt_t cert, struct error *error)
{
	for (unsigned i = 0; i <= SANS_MAX; i++) {
		uint8_t data[IDENTITY_STRING_BYTES_MAX + 1]; /* GnuTLS adds a terminator to text */
		size_t bytes = sizeof(data);
		int type = gnutls_x509_crt_get_subject_alt_name(cert, i, data, &bytes, NULL);
		int rc;

		if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE) {
			return 0;
		}
		if (type == GNUTLS_E_SHORT_MEMORY_BUFFER || bytes > IDENTITY_STRING_BYTES_MAX) {
			return error_set(error, -EINVAL,
				"an alternative name is longer than %d bytes",
				IDENTITY_STRING_BYTES_MAX);
		}
		if (type < 0) {
			return error_set(error, -EINVAL,
				"the alternative names of the certificate are malformed: %s",
				gnutls_strerror(type));
		}
		if (i == SANS_MAX) {
			break;
		}
		rc = add_alternative(all, type, data, bytes, error);
		if (rc != 0) {
			return rc;
		}
	}
	return error_set(
		error, -EINVAL, "the certificate has more than %d alternative names", SANS_MAX);
}

static int collect_fingerprints(struct collection *all, gnutls_x509_crt_t cert,
	const gnutls_datum_t *der, struct error *error)
{
	uint8_t digest[IDENTITY_DIGEST_BYTES];
	size_t bytes = sizeof(digest);

	if (gnutls_hash_fast(GNUTLS_DIG_SHA256, der->data, der->size, digest) < 0) {
		return error_oom(error);
	}
	add_value(all, IDENTITY_CERT_FINGERPRINT, digest, sizeof(digest));
	if (gnutls_x509_crt_get_key_id(cert, GNUTLS_KEYID_USE_SHA256, digest, &bytes) < 0 ||
		bytes != sizeof(digest)) {
		return error_set(
			error, -EINVAL, "the public key of the certificate cannot be read");
	}
	add_value(all, IDENTITY_KEY_FINGERPRINT, digest, sizeof(digest));
	return 0;
}

/* --- proof ------------------------------------------------------------------------------------
 * A struct tls_trust, then each certificate, preceded by its length. */

static uint8_t *pack_chain(const struct tls_trust *trust, const gnutls_datum_t *ders,
	uint32_t count, uint32_t *bytes_out)
{
	uint32_t bytes = (uint32_t)sizeof(*trust);
	uint8_t *packed, *to;

	for (uint32_t i = 0; i < count; i++) {
		bytes += (uint32_t)sizeof(struct be32) + ders[i].size;
	}
	packed = to = malloc(bytes);
	if (packed == NULL) {
		return NULL;
	}
	memcpy(to, trust, sizeof(*trust));
	to += sizeof(*trust);
	for (uint32_t i = 0; i < count; i++) {
		struct be32 length = be32_make(ders[i].size);

		memcpy(to, &length, sizeof(length));
		memcpy(to + sizeof(length), ders[i].data, ders[i].size);
		to += sizeof(length) + ders[i].size;
	}
	*bytes_out = bytes;
	return packed;
}

uint32_t tls_identity_chain(const struct identity *identity, struct tls_trust *trust,
	gnutls_datum_t ders[TLS_CHAIN_COUNT_MAX])
{
	uint32_t at = (uint32_t)sizeof(*trust), count = 0;

	GMB_ASSERT(identity->proof_bytes >= sizeof(*trust));
	memcpy(trust, identity->proof, sizeof(*trust));
	while (at < identity->proof_bytes) {
		uint32_t bytes = be32_load(identity->proof + at);

		GMB_ASSERT(count < TLS_CHAIN_COUNT_MAX);
		at += (uint32_t)sizeof(struct be32);
		GMB_ASSERT(bytes <= identity->proof_bytes - at);
		/* The cast removes const: GnuTLS only reads the certificate. */
		ders[count].data = (uint8_t *)(uintptr_t)(identity->proof + at);
		ders[count++].size = bytes;
		at += bytes;
	}
	return count;
}

/* --- identities ------------------------------------------------------------------------------- */

static int context_identity_collect(struct collection *all, const struct tls_chain *chain,
	const gnutls_datum_t *der, struct error *error)
{
	int rc = collect_names(all, chain->certs[0], error);

	rc = rc ?: collect_alternatives(all, chain->certs[0], error);
	return rc == 0 ? collect_fingerprints(all, chain->certs[0], der, error) : rc;
}

static int create_of_chain(struct collection *all, const struct tls_trust *trust,
	const struct tls_chain *chain, const gnutls_datum_t *ders, struct identity **identity_out,
	struct error *error)
{
	uint8_t principal[IDENTITY_DIGEST_BYTES];
	struct identity_facts facts = {
		.is_proved = true, .principal = principal, .values = all->values
	};
	gnutls_datum_t text = { NULL, 0 };
	int rc = context_identity_collect(all, chain, &ders[0], error);
	struct tls_trust narrowed = *trust;
	uint8_t *proof = NULL;

	if (rc != 0) {
		/* Certificates have no size limit, but identities do. */
		rc = rc == -ENOMEM ? rc : -EACCES;
		if (error != NULL) {
			error->code = rc;
		}
		error_prefix(error, "the peer's certificate was rejected");
		return rc;
	}
	gnutls_hash_output(all->principal, principal);
	for (uint32_t i = 0; i < chain->count; i++) {
		tls_trust_narrow(&narrowed, chain->certs[i]);
	}
	proof = pack_chain(&narrowed, ders, chain->count, &facts.proof_bytes);
	if (all->subject.len == 0) {
		facts.text = "a certificate without a subject";
	} else if (gnutls_x509_crt_get_dn3(chain->certs[0], &text, 0) >= 0) {
		facts.text = (const char *)text.data;
	}
	if (proof != NULL && facts.text != NULL) {
		facts.value_count = all->count;
		facts.proof = proof;
		*identity_out = identity_create(&facts);
		rc = *identity_out == NULL ? -ENOMEM : 0;
	} else {
		rc = -ENOMEM;
	}
	gnutls_free(text.data);
	free(proof);
	return rc == 0 ? 0 : error_oom(error);
}

int tls_identity_of_chain(const struct tls_trust *trust, const gnutls_datum_t *ders, uint32_t count,
	struct identity **identity_out, struct error *error)
{
	struct collection *all = calloc(1, sizeof(*all));
	struct tls_chain chain = { .count = 0 };
	int rc;

	if (all == NULL || gnutls_hash_init(&all->principal, GNUTLS_DIG_SHA256) < 0) {
		free(all);
		return error_oom(error);
	}
	rc = tls_chain_init(&chain, ders, count, error);
	rc = rc ?: create_of_chain(all, trust, &chain, ders, identity_out, error);
	tls_chain_fini(&chain);
	gnutls_hash_deinit(all->principal, NULL);
	free(all);
	return rc;
}

struct identity *tls_identity_nobody(void)
{
	static const uint8_t no_principal[IDENTITY_DIGEST_BYTES];

	return identity_create(
		&(struct identity_facts){ .text = "nobody", .principal = no_principal });
}

int tls_identity_of_psk(
	const struct tls_psk *psk, struct identity **identity_out, struct error *error)
{
	const struct identity_value value = { IDENTITY_PSK, psk->name_bytes,
		(const uint8_t *)psk->name };
	uint8_t principal[IDENTITY_DIGEST_BYTES], proof[IDENTITY_DIGEST_BYTES];
	char text[IDENTITY_STRING_BYTES_MAX + 5];
	const struct identity_facts facts = { .is_proved = true,
		.text = text,
		.principal = principal,
		.values = &value,
		.value_count = 1,
		.proof = proof,
		.proof_bytes = sizeof(proof) };
	gnutls_hash_hd_t hash;

	if (tls_psk_digest(psk, proof) != 0 || gnutls_hash_init(&hash, GNUTLS_DIG_SHA256) < 0) {
		return error_oom(error);
	}
	hash_part(hash, IDENTITY_PSK, psk->name, psk->name_bytes);
	gnutls_hash_deinit(hash, principal);
	snprintf(text, sizeof(text), "psk %.*s", (int)psk->name_bytes, psk->name);
	*identity_out = identity_create(&facts);
	return *identity_out == NULL ? error_oom(error) : 0;
}
