// SPDX-License-Identifier: Apache-2.0
#include "tls/mac.h"

#include <errno.h>
#include <gnutls/crypto.h>

int tls_mac(const uint8_t *key, size_t key_bytes, const void *bytes, size_t len,
	uint8_t mac_out[TLS_MAC_BYTES])
{
	return gnutls_hmac_fast(GNUTLS_MAC_SHA256, key, key_bytes, bytes, len, mac_out) == 0 ? 0
											     : -EIO;
}

bool tls_mac_equal(const uint8_t a[TLS_MAC_BYTES], const uint8_t b[TLS_MAC_BYTES])
{
	return gnutls_memcmp(a, b, TLS_MAC_BYTES) == 0;
}
