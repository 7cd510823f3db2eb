// SPDX-License-Identifier: Apache-2.0
/*
 * What the cipher alone costs on one processor, for the bound of bench/tls: AES-128-GCM of GnuTLS,
 * one TLS 1.3 record after the other.
 *
 *   tls_cipher SECONDS
 *
 * Prints one JSON object: microseconds of processor time for 1 MiB in records of 16 KiB, and for
 * one record of 4 KiB and the header of a reply. Threading: one thread. Errors: exit status 1.
 */
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

enum {
	RECORD_BYTES = 16384,
	SMALL_BYTES = 4096 + 16,
	TAG_BYTES = 16,
	BATCH = 64,
	NONCE_BYTES = 12
};

static _Noreturn void fail(const char *what, int code)
{
	fprintf(stderr, "tls_cipher: %s: %s\n", what, gnutls_strerror(code));
	exit(1);
}

/* Microseconds for each record of so many bytes. */
static double record_us(gnutls_aead_cipher_hd_t cipher, size_t bytes, double seconds)
{
	static uint8_t plain[RECORD_BYTES + 1];
	static uint8_t sealed[RECORD_BYTES + 1 + TAG_BYTES];
	uint8_t nonce[NONCE_BYTES] = { 0 };
	uint8_t header[5] = { 23, 3, 3, 0, 0 };
	double begin = control_cpu_s();
	double used;
	uint64_t count = 0;

	do {
		for (int i = 0; i < BATCH; i++) {
			size_t sealed_bytes = sizeof(sealed);
			int rc;

			memcpy(nonce, &count, sizeof(count));
			rc = gnutls_aead_cipher_encrypt(cipher, nonce, sizeof(nonce), header,
				sizeof(header), TAG_BYTES, plain, bytes + 1, sealed, &sealed_bytes);
			if (rc < 0) {
				fail("encrypt", rc);
			}
			count++;
		}
		used = control_cpu_s() - begin;
	} while (used < seconds);
	return used / (double)count * 1e6;
}

int main(int argc, char **argv)
{
	uint8_t key_bytes[16] = { 1 };
	const gnutls_datum_t key = { key_bytes, sizeof(key_bytes) };
	double seconds = argc == 2 ? strtod(argv[1], NULL) : 0;
	gnutls_aead_cipher_hd_t cipher;
	double large;
	double small;
	int rc;

	if (!(seconds > 0)) {
		fprintf(stderr, "Usage: tls_cipher SECONDS\n");
		return 2;
	}
	rc = gnutls_aead_cipher_init(&cipher, GNUTLS_CIPHER_AES_128_GCM, &key);
	if (rc < 0) {
		fail("the cipher cannot be used", rc);
	}
	large = record_us(cipher, RECORD_BYTES, seconds / 2);
	small = record_us(cipher, SMALL_BYTES, seconds / 2);
	gnutls_aead_cipher_deinit(cipher);
	printf("{\"us_per_mib\": %.3f, \"us_per_4k\": %.4f}\n", large * ((1 << 20) / RECORD_BYTES),
		small);
	return 0;
}
