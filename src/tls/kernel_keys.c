// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "base/bytes.h"
#include "tls/kernel.h"

/* Names of each cipher in GnuTLS and in the kernel, and its sizes. */
static const struct cipher {
	gnutls_cipher_algorithm_t gnutls;
	uint16_t kernel;
	uint8_t key_bytes;
	uint8_t salt_bytes;	    /* part of the 12-byte nonce that the kernel calls salt */
	gnutls_mac_algorithm_t mac; /* hash of the key schedule */
} ciphers[TLS_CIPHER_COUNT] = {
	[TLS_AES_128_GCM] = { GNUTLS_CIPHER_AES_128_GCM, TLS_CIPHER_AES_GCM_128, 16, 4,
		GNUTLS_MAC_SHA256 },
	[TLS_AES_256_GCM] = { GNUTLS_CIPHER_AES_256_GCM, TLS_CIPHER_AES_GCM_256, 32, 4,
		GNUTLS_MAC_SHA384 },
	[TLS_CHACHA20] = { GNUTLS_CIPHER_CHACHA20_POLY1305, TLS_CIPHER_CHACHA20_POLY1305, 32, 0,
		GNUTLS_MAC_SHA256 },
};

_Static_assert(sizeof(((union tls_crypto *)NULL)->aes_256.key) <= TLS_KEY_BYTES_MAX, "fits");

/* --- session keys ---------------------------------------------------------------------------- */

void tls_keys_keep_secrets(
	struct tls_keys *keys, const void *receive, const void *send, size_t secret_bytes)
{
	GMB_ASSERT(secret_bytes <= TLS_SECRET_BYTES_MAX);
	if (receive != NULL) {
		memcpy(keys->receive.secret, receive, secret_bytes);
		keys->receive.secret_bytes = (uint8_t)secret_bytes;
	}
	if (send != NULL) {
		memcpy(keys->send.secret, send, secret_bytes);
		keys->send.secret_bytes = (uint8_t)secret_bytes;
	}
}

static int find_cipher(gnutls_session_t session, enum tls_cipher *cipher_out)
{
	gnutls_cipher_algorithm_t used = gnutls_cipher_get(session);

	for (int i = 0; i < TLS_CIPHER_COUNT; i++) {
		if (ciphers[i].gnutls == used) {
			*cipher_out = (enum tls_cipher)i;
			return 0;
		}
	}
	return -EOPNOTSUPP;
}

static int take_key(gnutls_session_t session, bool is_receive, struct tls_key *key)
{
	const struct cipher *cipher = &ciphers[key->cipher];
	bool is_short = key->version == TLS_1_2 && cipher->salt_bytes > 0;
	size_t iv_bytes = is_short ? cipher->salt_bytes : TLS_IV_BYTES_MAX;
	gnutls_datum_t iv;
	gnutls_datum_t secret;
	unsigned char sequence[8];

	/* iv and secret point to memory of the session, which is only read. */
	if (gnutls_record_get_state(session, is_receive, NULL, &iv, &secret, sequence) != 0 ||
		iv.size != iv_bytes || secret.size != cipher->key_bytes ||
		(key->version == TLS_1_3 && key->secret_bytes == 0)) {
		return -EOPNOTSUPP;
	}
	memcpy(key->iv, iv.data, iv.size);
	memcpy(key->key, secret.data, secret.size);
	key->sequence = (uint64_t)be32_load(sequence) << 32 | be32_load(sequence + 4);
	return 0;
}

int tls_keys_of_session(struct tls_keys *keys, struct gnutls_session_int *session)
{
	gnutls_protocol_t protocol = gnutls_protocol_get_version(session);
	enum tls_cipher cipher;
	int rc = find_cipher(session, &cipher);

	if (rc != 0 || (protocol != GNUTLS_TLS1_2 && protocol != GNUTLS_TLS1_3)) {
		return -EOPNOTSUPP;
	}
	keys->receive.cipher = keys->send.cipher = cipher;
	keys->receive.version = keys->send.version = protocol == GNUTLS_TLS1_3 ? TLS_1_3 : TLS_1_2;
	rc = take_key(session, true, &keys->receive);
	return rc == 0 ? take_key(session, false, &keys->send) : rc;
}

void tls_keys_wipe(struct tls_keys *keys)
{
	explicit_bzero(keys, sizeof(*keys));
}

/* --- the next key ----------------------------------------------------------------------------- */

/* HKDF-Expand-Label of RFC 8446, 7.1, with an empty context. */
static int expand(const struct tls_key *key, const char *label, uint8_t *out, size_t out_bytes)
{
	static const char prefix[] = "tls13 ";
	size_t prefix_bytes = sizeof(prefix) - 1;
	size_t label_bytes = strlen(label);
	gnutls_datum_t secret = { .data = (void *)(uintptr_t)key->secret,
		.size = key->secret_bytes };
	uint8_t info[32] = { 0, (uint8_t)out_bytes, (uint8_t)(prefix_bytes + label_bytes) };
	/* The label is followed by one byte for the length of the context, which is empty. */
	gnutls_datum_t info_datum = { .data = info,
		.size = (unsigned)(3 + prefix_bytes + label_bytes + 1) };

	GMB_ASSERT(info_datum.size <= sizeof(info) && out_bytes <= UINT8_MAX);
	memcpy(info + 3, prefix, prefix_bytes);
	memcpy(info + 3 + prefix_bytes, label, label_bytes);
	return gnutls_hkdf_expand(ciphers[key->cipher].mac, &secret, &info_datum, out, out_bytes) ==
			       0
		       ? 0
		       : -EIO;
}

int tls_key_next(struct tls_key *key)
{
	struct tls_key next = *key;
	int rc;

	GMB_ASSERT(key->version == TLS_1_3);
	rc = expand(key, "traffic upd", next.secret, key->secret_bytes);
	rc = rc ?: expand(&next, "key", next.key, ciphers[key->cipher].key_bytes);
	rc = rc ?: expand(&next, "iv", next.iv, TLS_IV_BYTES_MAX);
	if (rc == 0) {
		next.sequence = 0;
		*key = next;
	}
	explicit_bzero(&next, sizeof(next));
	return rc;
}

/* --- installation in the kernel -------------------------------------------------------------- */

size_t tls_key_crypto(const struct tls_key *key, union tls_crypto *crypto_out)
{
	const struct cipher *cipher = &ciphers[key->cipher];
	struct be64 sequence = be64_make(key->sequence);
	/* The explicit part of the nonce in a TLS 1.2 record starts at the record number. */
	const uint8_t *iv = key->version == TLS_1_2 && cipher->salt_bytes > 0
				    ? (const uint8_t *)&sequence
				    : key->iv + cipher->salt_bytes;

	memset(crypto_out, 0, sizeof(*crypto_out));
	crypto_out->info.version = key->version == TLS_1_3 ? TLS_1_3_VERSION : TLS_1_2_VERSION;
	crypto_out->info.cipher_type = cipher->kernel;
	switch (key->cipher) {
	case TLS_AES_128_GCM:
		memcpy(crypto_out->aes_128.iv, iv, sizeof(crypto_out->aes_128.iv));
		memcpy(crypto_out->aes_128.key, key->key, sizeof(crypto_out->aes_128.key));
		memcpy(crypto_out->aes_128.salt, key->iv, sizeof(crypto_out->aes_128.salt));
		memcpy(crypto_out->aes_128.rec_seq, &sequence, sizeof(sequence));
		return sizeof(crypto_out->aes_128);
	case TLS_AES_256_GCM:
		memcpy(crypto_out->aes_256.iv, iv, sizeof(crypto_out->aes_256.iv));
		memcpy(crypto_out->aes_256.key, key->key, sizeof(crypto_out->aes_256.key));
		memcpy(crypto_out->aes_256.salt, key->iv, sizeof(crypto_out->aes_256.salt));
		memcpy(crypto_out->aes_256.rec_seq, &sequence, sizeof(sequence));
		return sizeof(crypto_out->aes_256);
	case TLS_CHACHA20:
	case TLS_CIPHER_COUNT:
	default:
		memcpy(crypto_out->chacha20.iv, iv, sizeof(crypto_out->chacha20.iv));
		memcpy(crypto_out->chacha20.key, key->key, sizeof(crypto_out->chacha20.key));
		memcpy(crypto_out->chacha20.rec_seq, &sequence, sizeof(sequence));
		return sizeof(crypto_out->chacha20);
	}
}

const char *tls_cipher_name(enum tls_cipher cipher)
{
	return gnutls_cipher_get_name(ciphers[cipher].gnutls);
}

bool tls_key_is_installed(const struct tls_key *key, int fd, int direction)
{
	struct tls_crypto_info info = { 0 };
	/* enough for version and cipher; the kernel returns a key only into a larger buffer */
	socklen_t bytes = sizeof(info);

	return getsockopt(fd, SOL_TLS, direction, &info, &bytes) == 0 &&
	       info.cipher_type == ciphers[key->cipher].kernel &&
	       info.version == (key->version == TLS_1_3 ? TLS_1_3_VERSION : TLS_1_2_VERSION);
}

void tls_key_adopt_secret(struct tls_key *key)
{
	key->secret_bytes = key->version == TLS_1_3
				    ? (uint8_t)gnutls_hmac_get_len(ciphers[key->cipher].mac)
				    : 0;
}

int tls_key_install(const struct tls_key *key, int fd, int direction)
{
	union tls_crypto crypto;
	size_t bytes = tls_key_crypto(key, &crypto);
	int rc = setsockopt(fd, SOL_TLS, direction, &crypto, (socklen_t)bytes) == 0 ? 0 : -errno;

	explicit_bzero(&crypto, sizeof(crypto));
	return rc;
}
