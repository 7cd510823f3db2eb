// SPDX-License-Identifier: Apache-2.0
/*
 * A message authentication code for data that only this server creates: HMAC-SHA-256 (RFC 2104).
 *
 * Threading: pure functions. Ownership: none. Errors: -EIO if GnuTLS fails.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

enum { TLS_MAC_BYTES = 32 };

GMB_MUST_CHECK int tls_mac(const uint8_t *key, size_t key_bytes, const void *bytes, size_t len,
	uint8_t mac_out[TLS_MAC_BYTES]);
/* Compares in constant time. */
bool tls_mac_equal(const uint8_t a[TLS_MAC_BYTES], const uint8_t b[TLS_MAC_BYTES]);
