// SPDX-License-Identifier: Apache-2.0
#include "tls_sessions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <gnutls/x509.h>

static const char *const version_words[TLS_VERSION_COUNT] = { "+VERS-TLS1.2", "+VERS-TLS1.3" };
static const char *const cipher_words[TLS_CIPHER_COUNT] = { "+AES-128-GCM", "+AES-256-GCM",
	"+CHACHA20-POLY1305" };

static int keep_secrets(gnutls_session_t session, gnutls_record_encryption_level_t level,
	const void *receive, const void *send, size_t bytes)
{
	if (level == GNUTLS_ENCRYPTION_LEVEL_APPLICATION) {
		tls_keys_keep_secrets(gnutls_session_get_ptr(session), receive, send, bytes);
	}
	return 0;
}

static void make_certificate(gnutls_certificate_credentials_t credentials)
{
	const unsigned char serial = 1;
	gnutls_x509_privkey_t key;
	gnutls_x509_crt_t certificate;

	assert_int_equal(gnutls_x509_privkey_init(&key), 0);
	assert_int_equal(gnutls_x509_privkey_generate(key, GNUTLS_PK_EC,
				 GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
		0);
	assert_int_equal(gnutls_x509_crt_init(&certificate), 0);
	assert_int_equal(gnutls_x509_crt_set_version(certificate, 3), 0);
	assert_int_equal(gnutls_x509_crt_set_serial(certificate, &serial, 1), 0);
	assert_int_equal(gnutls_x509_crt_set_activation_time(certificate, time(NULL) - 60), 0);
	assert_int_equal(gnutls_x509_crt_set_expiration_time(certificate, time(NULL) + 3600), 0);
	assert_int_equal(gnutls_x509_crt_set_key(certificate, key), 0);
	assert_int_equal(
		gnutls_x509_crt_sign2(certificate, certificate, key, GNUTLS_DIG_SHA256, 0), 0);
	assert_int_equal(gnutls_certificate_set_x509_key(credentials, &certificate, 1, key), 0);
	gnutls_x509_crt_deinit(certificate);
	gnutls_x509_privkey_deinit(key);
}

void tls_ends_begin(struct tls_ends *ends, enum tls_version version, enum tls_cipher cipher)
{
	char priority[128];

	*ends = (struct tls_ends){ 0 };
	snprintf(priority, sizeof(priority), "NORMAL:-VERS-ALL:%s:-CIPHER-ALL:%s",
		version_words[version], cipher_words[cipher]);
	for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		gnutls_session_t *session = &ends->sessions[role];
		unsigned flags = role == TLS_SERVER ? GNUTLS_SERVER : GNUTLS_CLIENT;

		assert_int_equal(
			gnutls_certificate_allocate_credentials(&ends->credentials[role]), 0);
		assert_int_equal(gnutls_init(session, flags | GNUTLS_NONBLOCK | GNUTLS_NO_TICKETS |
							      GNUTLS_NO_SIGNAL),
			0);
		assert_int_equal(gnutls_priority_set_direct(*session, priority, NULL), 0);
		assert_int_equal(gnutls_credentials_set(
					 *session, GNUTLS_CRD_CERTIFICATE, ends->credentials[role]),
			0);
		gnutls_session_set_ptr(*session, &ends->keys[role]);
		gnutls_handshake_set_secret_function(*session, keep_secrets);
	}
	make_certificate(ends->credentials[TLS_SERVER]);
}

void tls_ends_shake(struct tls_ends *ends)
{
	int results[2] = { GNUTLS_E_AGAIN, GNUTLS_E_AGAIN };

	while (results[TLS_SERVER] != 0 || results[TLS_CLIENT] != 0) {
		for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
			if (results[role] != 0) {
				results[role] = gnutls_handshake(ends->sessions[role]);
				assert_int_equal(gnutls_error_is_fatal(results[role]), 0);
			}
		}
	}
}

void tls_ends_end(struct tls_ends *ends)
{
	for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		if (ends->sessions[role] != NULL) {
			gnutls_deinit(ends->sessions[role]);
		}
		gnutls_certificate_free_credentials(ends->credentials[role]);
		tls_keys_wipe(&ends->keys[role]);
	}
}
