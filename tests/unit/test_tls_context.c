// SPDX-License-Identifier: Apache-2.0
/* Credentials: what is loaded and what is not, whom a handshake believes, and who the peer is. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tls_pair.h"

static const struct identity_value *value_of(
	const struct identity *identity, enum identity_kind kind)
{
	for (uint32_t i = 0; i < identity->value_count; i++) {
		if (identity->values[i].kind == kind) {
			return &identity->values[i];
		}
	}
	return NULL;
}

/* Whether a rule with this text would match. */
static bool has_value(const struct identity *identity, enum identity_kind kind, const char *text)
{
	uint8_t bytes[IDENTITY_VALUE_BYTES_MAX];
	struct error error;
	uint32_t len;

	if (identity_value_parse(kind, text, bytes, &len, &error) != 0) {
		fail_msg("%s", error.text);
	}
	for (uint32_t i = 0; i < identity->value_count; i++) {
		const struct identity_value *value = &identity->values[i];

		if (value->kind == kind && value->bytes == len &&
			memcmp(value->data, bytes, len) == 0) {
			return true;
		}
	}
	return false;
}

static struct identity *identity_of(struct pair_end *end)
{
	struct identity *identity = NULL;
	struct error error = { 0 };

	if (tls_check_identity(&end->check, end->session, &identity, &error) != 0) {
		fail_msg("%s", error.text);
	}
	return identity;
}

static const char *why(struct pair_end *end, int expected, struct error *error)
{
	assert_int_not_equal(end->result, 0);
	assert_int_equal(tls_check_failed(&end->check, end->session, end->result, error), expected);
	return error->text;
}

static void assert_contains(const char *text, const char *part)
{
	if (strstr(text, part) == NULL) {
		fail_msg("'%s' is not in '%s'", part, text);
	}
}

/* --- loading ---------------------------------------------------------------------------------- */

static void test_load_errors_name_file_and_reason(void **state)
{
	static const struct {
		enum tls_role role;
		const char *folder, *file, *reason;
	} cases[] = {
		{ TLS_SERVER, "expired", "server-cert.pem", "has expired on 2021-01-01" },
		{ TLS_SERVER, "not-yet", "server-cert.pem", "is not valid before 2090-01-01" },
		{ TLS_SERVER, "wrong-purpose", "server-cert.pem", "is not for TLS servers" },
		{ TLS_SERVER, "rsa-1024", "server-cert.pem", "a key of 1024 bits is too weak" },
		{ TLS_SERVER, "mismatch", "server-key.pem", "is not the key of" },
		{ TLS_SERVER, "host-b", "server-cert.pem", "No such file" },
		{ TLS_SERVER, "nowhere", "nowhere", "is not a folder" },
		{ TLS_CLIENT, "expired", "client-cert.pem", "has expired on 2021-01-01" },
		{ TLS_CLIENT, "wrong-purpose", "client-cert.pem", "is not for TLS clients" },
		{ TLS_CLIENT, "mismatch", "client-key.pem", "is not the key of" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct tls_options options = pair_options(cases[i].role, cases[i].folder);
		struct tls_context *context;
		struct error error;

		assert_true(tls_context_load(&options, &context, &error) < 0);
		assert_contains(error.text, cases[i].file);
		assert_contains(error.text, cases[i].reason);
	}
}

/* --- handshakes ------------------------------------------------------------------------------- */

static void test_both_sides_know_each_other(void **state)
{
	struct tls_options server = pair_options(TLS_SERVER, "good");
	struct tls_options client = pair_options(TLS_CLIENT, "good");
	struct pair pair;
	struct identity *identity;

	pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), "localhost", NULL);
	pair_run(&pair);
	assert_int_equal(pair.server.result, 0);
	assert_int_equal(pair.client.result, 0);
	assert_int_equal(gnutls_cipher_get(pair.client.session), GNUTLS_CIPHER_AES_128_GCM);

	identity = identity_of(&pair.server);
	assert_true(identity->is_proved);
	assert_string_equal(identity->text, "CN=host-a,O=Example");
	assert_true(has_value(identity, IDENTITY_CERT_DN, "CN = host-a, O = Example"));
	assert_false(has_value(identity, IDENTITY_CERT_DN, "O=Example,CN=host-a"));
	assert_true(has_value(identity, IDENTITY_CERT_CN, "host-a"));
	assert_true(has_value(identity, IDENTITY_CERT_DNS, "HOST-A.example"));
	assert_true(has_value(identity, IDENTITY_CERT_EMAIL, "host-a@example.com"));
	assert_true(has_value(identity, IDENTITY_CERT_URI, "urn:host:a"));
	assert_true(has_value(identity, IDENTITY_CERT_IP, "192.0.2.7"));
	assert_true(has_value(identity, IDENTITY_CERT_IP, "::ffff:192.0.2.7"));
	assert_null(value_of(identity, IDENTITY_PSK));
	assert_int_equal(identity->value_count, 8);
	assert_int_equal(tls_context_recheck(pair.server.context, identity, NULL), 0);
	identity_put(identity);

	identity = identity_of(&pair.client);
	assert_true(has_value(identity, IDENTITY_CERT_DNS, "server.example"));
	assert_true(has_value(identity, IDENTITY_CERT_IP, "::1"));
	identity_put(identity);
	pair_fini(&pair);
}

static void test_psk(void **state)
{
	struct tls_options server = { .role = TLS_SERVER, .psk_file = pair_path("keys.psk") };
	struct tls_options client = { .role = TLS_CLIENT,
		.psk_file = pair_path("keys.psk"),
		.use_psk = true,
		.user = "alice" };
	struct pair pair;
	struct identity *identity;

	pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), NULL, NULL);
	pair_run(&pair);
	assert_int_equal(pair.server.result, 0);
	assert_int_equal(pair.client.result, 0);
	assert_int_equal(gnutls_cipher_get(pair.client.session), GNUTLS_CIPHER_AES_128_GCM);
	identity = identity_of(&pair.server);
	assert_string_equal(identity->text, "psk alice");
	assert_true(has_value(identity, IDENTITY_PSK, "alice"));
	assert_int_equal(tls_context_recheck(pair.server.context, identity, NULL), 0);
	identity_put(identity);
	identity = identity_of(&pair.client);
	assert_true(has_value(identity, IDENTITY_PSK, "alice"));
	identity_put(identity);
	pair_fini(&pair);
}

static void test_server_refuses_clients(void **state)
{
	static const struct {
		const char *server, *client; /* client: raw */
		const char *reason;
		int alert;
	} cases[] = {
		{ "good", NULL, "showed no certificate", GNUTLS_A_CERTIFICATE_REQUIRED },
		{ "good", "other-ca", "no trusted authority", GNUTLS_A_UNKNOWN_CA },
		{ "good", "expired", "has expired", GNUTLS_A_CERTIFICATE_EXPIRED },
		{ "good", "not-yet", "not valid yet", GNUTLS_A_CERTIFICATE_EXPIRED },
		{ "good", "wrong-purpose", "not for this purpose", GNUTLS_A_BAD_CERTIFICATE },
		{ "good", "rsa-1024", "too weak", GNUTLS_A_BAD_CERTIFICATE },
		{ "crl", "revoked", "is revoked", GNUTLS_A_CERTIFICATE_REVOKED },
		{ "crl-old", "good", "revocation list of its authority has expired",
			GNUTLS_A_BAD_CERTIFICATE },
		{ "crl-old", "revoked", "is revoked", GNUTLS_A_CERTIFICATE_REVOKED },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct tls_options server = pair_options(TLS_SERVER, cases[i].server);
		struct pair pair;
		struct error error;

		pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
		pair_end_init(&pair.client, TLS_CLIENT, NULL, NULL, cases[i].client);
		pair_run(&pair);
		assert_contains(why(&pair.server, -EACCES, &error), cases[i].reason);
		assert_int_equal(pair.client.result, GNUTLS_E_FATAL_ALERT_RECEIVED);
		assert_int_equal(gnutls_alert_get(pair.client.session), cases[i].alert);
		pair_fini(&pair);
	}
}

static void test_client_refuses_servers(void **state)
{
	static const struct {
		const char *server, *name; /* server: raw */
		const char *reason;
	} cases[] = {
		{ "other-ca", "localhost", "no trusted authority" },
		{ "expired", "localhost", "has expired" },
		{ "not-yet", "localhost", "not valid yet" },
		{ "wrong-purpose", "localhost", "not for this purpose" },
		{ "rsa-1024", "localhost", "too weak" },
		{ "wrong-host", "localhost", "not that of 'localhost'" },
		{ "wrong-host", "other.example.org", "not that of" },
		{ "good", "127.0.0.2", "not that of" },
		{ "good", "::2", "not that of" },
		{ "cn-only", "127.0.0.1", "not that of" },
		{ "ip-only", "localhost", "not that of" },
		{ "ip-only", "server", "not that of" },
		{ "good", "server", "not that of" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct tls_options client = pair_options(TLS_CLIENT, "good");
		struct pair pair;
		struct error error;

		pair_end_init(&pair.server, TLS_SERVER, NULL, NULL, cases[i].server);
		pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), cases[i].name, NULL);
		pair_run(&pair);
		assert_contains(why(&pair.client, -EACCES, &error), cases[i].reason);
		assert_int_equal(pair.server.result, GNUTLS_E_FATAL_ALERT_RECEIVED);
		pair_fini(&pair);
	}
}

static void test_client_believes_servers(void **state)
{
	static const struct {
		const char *server, *name;
	} cases[] = {
		{ "good", "localhost" },
		{ "good", "SERVER.example" },
		{ "good", "127.0.0.1" },
		{ "good", "::1" },
		{ "ip-only", "127.0.0.1" },
		{ "cn-only", "localhost" },
		{ "wrong-host", "other.example" },
		{ "chain", "localhost" },
		{ "rsa", "localhost" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct tls_options client = pair_options(TLS_CLIENT, "no-client");
		struct pair pair;

		pair_end_init(&pair.server, TLS_SERVER, NULL, NULL, cases[i].server);
		pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), cases[i].name, NULL);
		pair_run(&pair);
		assert_int_equal(pair.client.result, 0);
		identity_put(identity_of(&pair.client));
		pair_fini(&pair);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_load_errors_name_file_and_reason),
		cmocka_unit_test(test_both_sides_know_each_other),
		cmocka_unit_test(test_psk),
		cmocka_unit_test(test_server_refuses_clients),
		cmocka_unit_test(test_client_refuses_servers),
		cmocka_unit_test(test_client_believes_servers),
	};

	pair_folder = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
