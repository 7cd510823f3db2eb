// SPDX-License-Identifier: Apache-2.0
/* Credentials: what is loaded and what is not, whom a handshake believes, and who the peer is. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <gnutls/x509.h>

#include "tls_pair.h"
#include "unit.h"

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

TEST(test_load_errors_name_file_and_reason)
{
	static const struct {
		enum tls_role role;
		const char *folder, *file, *reason;
	} cases[] = {
		{ TLS_SERVER, "expired", "server-cert.pem", "expired on 2021-01-01" },
		{ TLS_SERVER, "not-yet", "server-cert.pem", "is not valid until 2090-01-01" },
		{ TLS_SERVER, "wrong-purpose", "server-cert.pem", "is not for TLS servers" },
		{ TLS_SERVER, "rsa-1024", "server-cert.pem", "a key of 1024 bits is too weak" },
		{ TLS_SERVER, "mismatch", "server-key.pem", "is not the key of" },
		{ TLS_SERVER, "host-b", "server-cert.pem", "No such file" },
		{ TLS_SERVER, "nowhere", "(tls-certificates)", "nowhere: No such file" },
		{ TLS_SERVER, "good/server-cert.pem", "server-cert.pem",
			"is not a folder of certificates" },
		{ TLS_CLIENT, "expired", "client-cert.pem", "expired on 2021-01-01" },
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

TEST(test_both_sides_know_each_other)
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

TEST(test_psk)
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

TEST(test_server_refuses_clients)
{
	static const struct {
		const char *server, *client; /* client: raw */
		const char *reason;
		int alert;
	} cases[] = {
		{ "good", NULL, "sent no certificate", GNUTLS_A_CERTIFICATE_REQUIRED },
		{ "good", "other-ca", "not signed by a trusted authority", GNUTLS_A_UNKNOWN_CA },
		{ "good", "expired", "has expired", GNUTLS_A_CERTIFICATE_EXPIRED },
		{ "good", "not-yet", "not yet valid", GNUTLS_A_CERTIFICATE_EXPIRED },
		{ "good", "wrong-purpose", "not issued for this purpose",
			GNUTLS_A_BAD_CERTIFICATE },
		{ "good", "rsa-1024", "too weak", GNUTLS_A_BAD_CERTIFICATE },
		{ "good", "mismatch", "does not have the private key", GNUTLS_A_DECRYPT_ERROR },
		{ "crl", "revoked", "revoked by its authority", GNUTLS_A_CERTIFICATE_REVOKED },
		{ "crl-old", "good", "revocation list of the authority has expired",
			GNUTLS_A_BAD_CERTIFICATE },
		{ "crl-old", "revoked", "revoked by its authority", GNUTLS_A_CERTIFICATE_REVOKED },
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

TEST(test_client_refuses_servers)
{
	static const struct {
		const char *server, *name; /* server: raw */
		const char *reason;
	} cases[] = {
		{ "other-ca", "localhost", "not signed by a trusted authority" },
		{ "expired", "localhost", "has expired" },
		{ "not-yet", "localhost", "not yet valid" },
		{ "wrong-purpose", "localhost", "not issued for this purpose" },
		{ "rsa-1024", "localhost", "too weak" },
		{ "mismatch", "localhost", "does not have the private key" },
		{ "wrong-host", "localhost", "not valid for 'localhost'" },
		{ "wrong-host", "other.example.org", "not valid for" },
		{ "good", "127.0.0.2", "not valid for" },
		{ "good", "::2", "not valid for" },
		{ "cn-only", "127.0.0.1", "not valid for" },
		{ "cn-email", "localhost", "not valid for" },
		{ "cn-uri", "localhost", "not valid for" },
		{ "ip-only", "localhost", "not valid for" },
		{ "ip-only", "server", "not valid for" },
		{ "good", "server", "not valid for" },
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

TEST(test_client_believes_servers)
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

/* --- strange identities ----------------------------------------------------------------------- */

/* A certificate of a client, signed by the authority of good. */
struct forge {
	gnutls_x509_privkey_t ca_key, key;
	gnutls_x509_crt_t ca, cert;
};

static void load_pem(const char *name, gnutls_datum_t *pem)
{
	assert_int_equal(gnutls_load_file(pair_path(name), pem), 0);
}

static void forge_begin(struct forge *forge)
{
	const time_t now = time(NULL);
	gnutls_datum_t pem;

	load_pem("authority/ca-key.pem", &pem);
	gnutls_x509_privkey_init(&forge->ca_key);
	assert_int_equal(
		gnutls_x509_privkey_import2(forge->ca_key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0), 0);
	gnutls_free(pem.data);
	load_pem("authority/ca-cert.pem", &pem);
	gnutls_x509_crt_init(&forge->ca);
	assert_int_equal(gnutls_x509_crt_import(forge->ca, &pem, GNUTLS_X509_FMT_PEM), 0);
	gnutls_free(pem.data);
	gnutls_x509_privkey_init(&forge->key);
	assert_int_equal(gnutls_x509_privkey_generate(forge->key, GNUTLS_PK_ECDSA,
				 GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
		0);
	gnutls_x509_crt_init(&forge->cert);
	gnutls_x509_crt_set_version(forge->cert, 3);
	gnutls_x509_crt_set_serial(forge->cert, "\1\2\3", 3);
	gnutls_x509_crt_set_activation_time(forge->cert, now - 100);
	gnutls_x509_crt_set_expiration_time(forge->cert, now + 1000);
	gnutls_x509_crt_set_key(forge->cert, forge->key);
}

static void forge_sign(struct forge *forge)
{
	assert_int_equal(
		gnutls_x509_crt_sign2(forge->cert, forge->ca, forge->ca_key, GNUTLS_DIG_SHA256, 0),
		0);
}

static void forge_end(struct forge *forge)
{
	gnutls_x509_crt_deinit(forge->cert);
	gnutls_x509_crt_deinit(forge->ca);
	gnutls_x509_privkey_deinit(forge->key);
	gnutls_x509_privkey_deinit(forge->ca_key);
}

/* The handshake of a raw client with the forged certificate, and what the server makes of it. */
static int forge_handshake(struct forge *forge, struct identity **identity, struct error *error)
{
	struct tls_options server = pair_options(TLS_SERVER, "good");
	struct pair pair;
	int rc;

	pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, NULL, NULL, NULL);
	assert_int_equal(gnutls_certificate_set_x509_key(
				 pair.client.raw_certificates, &forge->cert, 1, forge->key),
		0);
	pair_run(&pair);
	*identity = NULL;
	rc = pair.server.result == 0
		     ? tls_check_identity(&pair.server.check, pair.server.session, identity, error)
		     : tls_check_failed(
			       &pair.server.check, pair.server.session, pair.server.result, error);
	assert_int_equal(pair.server.check.alert != 0, rc == -EACCES);
	pair_fini(&pair);
	return rc;
}

/* DER of a string, which GnuTLS takes as it is. */
static void set_raw_attribute(
	struct forge *forge, const char *oid, int tag, const void *data, size_t bytes)
{
	uint8_t der[400] = { (uint8_t)tag };
	size_t header = bytes < 0x80 ? 2 : bytes < 0x100 ? 3 : 4;

	assert_true(bytes + header <= sizeof(der));
	if (header == 2) {
		der[1] = (uint8_t)bytes;
	} else {
		der[1] = (uint8_t)(0x80 + header - 2);
		der[header - 1] = (uint8_t)bytes;
		der[2] = header == 4 ? (uint8_t)(bytes >> 8) : der[2];
	}
	memcpy(der + header, data, bytes);
	assert_int_equal(
		gnutls_x509_crt_set_dn_by_oid(forge->cert, oid, 1, der, (unsigned)(bytes + header)),
		0);
}

TEST(test_attributes_of_the_subject)
{
	static const char long_value[257] = { [0 ... 256] = 'a' };
	static const struct {
		int tag;
		const char *data;
		size_t bytes;
		const char *cn, *reason; /* one of them */
	} cases[] = {
		{ 12, "host-c", 6, "host-c", NULL },
		{ 19, "host-c", 6, "host-c", NULL },
		{ 22, "host-c", 6, "host-c", NULL },
		{ 30, "\0h\0\xfc\x20\xac", 6, "h\xc3\xbc\xe2\x82\xac", NULL },
		{ 12, long_value, 256, NULL, NULL },
		{ 12, long_value, 257, NULL, "257 bytes" },
		{ 12, "host-c\0.example", 15, NULL, "zero byte" },
		{ 30, "\0a\0\0\0b", 6, NULL, "zero byte" },
		{ 12, "h\xfc", 2, NULL, "not valid UTF-8" },
		{ 30, "\xd8\x00\xdc\x00", 4, NULL, "not valid UTF-8" },
		{ 30, "\0ab", 3, NULL, "malformed" },
		{ 19, "h\xc3\xbc", 3, NULL, "bytes that its type" },
		{ 20, "h\xfc", 2, NULL, "bytes that its type" },
		{ 28, "\0\0\0a", 4, NULL, "unknown string type" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct identity *identity;
		struct forge forge;
		struct error error = { 0 };
		int rc;

		forge_begin(&forge);
		set_raw_attribute(&forge, GNUTLS_OID_X520_COMMON_NAME, cases[i].tag, cases[i].data,
			cases[i].bytes);
		forge_sign(&forge);
		rc = forge_handshake(&forge, &identity, &error);
		if (cases[i].reason == NULL) {
			assert_int_equal(rc, 0);
			assert_true(cases[i].cn == NULL ||
				    has_value(identity, IDENTITY_CERT_CN, cases[i].cn));
		} else {
			assert_int_equal(rc, -EACCES);
			assert_int_equal(error.code, -EACCES);
			assert_contains(error.text, cases[i].reason);
		}
		identity_put(identity);
		forge_end(&forge);
	}
}

TEST(test_two_common_names_are_none)
{
	struct identity *identity;
	struct forge forge;
	struct error error;

	forge_begin(&forge);
	set_raw_attribute(&forge, GNUTLS_OID_X520_COMMON_NAME, 12, "a", 1);
	set_raw_attribute(&forge, GNUTLS_OID_X520_COMMON_NAME, 12, "b", 1);
	forge_sign(&forge);
	assert_int_equal(forge_handshake(&forge, &identity, &error), 0);
	assert_null(value_of(identity, IDENTITY_CERT_CN));
	assert_true(has_value(identity, IDENTITY_CERT_DN, "CN=b,CN=a"));
	identity_put(identity);
	forge_end(&forge);
}

TEST(test_number_of_attributes)
{
	for (int count = IDENTITY_RDNS_MAX; count <= IDENTITY_RDNS_MAX + 1; count++) {
		struct identity *identity;
		struct forge forge;
		struct error error;
		int rc;

		forge_begin(&forge);
		for (int i = 0; i < count; i++) {
			set_raw_attribute(
				&forge, GNUTLS_OID_X520_ORGANIZATIONAL_UNIT_NAME, 12, "u", 1);
		}
		forge_sign(&forge);
		rc = forge_handshake(&forge, &identity, &error);
		assert_int_equal(rc, count <= IDENTITY_RDNS_MAX ? 0 : -EACCES);
		if (rc != 0) {
			assert_contains(error.text, "too many parts");
		}
		identity_put(identity);
		forge_end(&forge);
	}
}

/* Tags of alternative names, RFC 5280, section 4.2.1.6. */
enum { SAN_EMAIL = 0x81, SAN_DNS = 0x82, SAN_URI = 0x86, SAN_IP = 0x87 };

/* DER of one alternative name, as GnuTLS would not write it. */
static void set_raw_san(struct forge *forge, uint8_t tag, const void *data, size_t bytes)
{
	uint8_t der[400] = { 0x30, 0x82, 0, 0, tag, 0x82, (uint8_t)(bytes >> 8), (uint8_t)bytes };

	assert_true(bytes + 8 <= sizeof(der));
	der[2] = (uint8_t)((bytes + 4) >> 8);
	der[3] = (uint8_t)(bytes + 4);
	memcpy(der + 8, data, bytes);
	assert_int_equal(
		gnutls_x509_crt_set_extension_by_oid(forge->cert, "2.5.29.17", der, bytes + 8, 0),
		0);
}

TEST(test_alternative_names)
{
	static const char long_name[257] = { [0 ... 256] = 'a' };
	static const struct {
		uint8_t tag;
		const char *data;
		size_t bytes;
		enum identity_kind kind;
		const char *text, *reason; /* one of them, or none: it is no value */
	} cases[] = {
		{ SAN_DNS, "Host.Example", 12, IDENTITY_CERT_DNS, "host.example", NULL },
		{ SAN_DNS, "*.example", 9, IDENTITY_CERT_DNS, NULL, NULL },
		{ SAN_DNS, long_name, 256, IDENTITY_CERT_DNS, NULL, NULL },
		{ SAN_DNS, long_name, 257, IDENTITY_CERT_DNS, NULL, "longer than 256" },
		{ SAN_DNS, "a\0.example", 10, IDENTITY_CERT_DNS, NULL, "" },
		{ SAN_DNS, "h\xc3\xbc", 3, IDENTITY_CERT_DNS, NULL, "printable ASCII" },
		{ SAN_URI, "urn:x\xff", 6, IDENTITY_CERT_URI, NULL, "not UTF-8" },
		{ SAN_EMAIL, "a@b\0c", 5, IDENTITY_CERT_EMAIL, NULL, "" },
		{ SAN_IP, "\xc0\0\2\7", 4, IDENTITY_CERT_IP, "192.0.2.7", NULL },
		{ SAN_IP, "\xc0\0\2\7\xff\xff\xff\0", 8, IDENTITY_CERT_IP, NULL, "8 bytes" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct identity *identity;
		struct forge forge;
		struct error error = { 0 };
		int rc;

		forge_begin(&forge);
		set_raw_san(&forge, cases[i].tag, cases[i].data, cases[i].bytes);
		forge_sign(&forge);
		rc = forge_handshake(&forge, &identity, &error);
		if (cases[i].reason != NULL) {
			assert_int_equal(rc, -EACCES);
			assert_contains(error.text, cases[i].reason);
		} else {
			assert_int_equal(rc, 0);
			assert_string_equal(identity->text, "a certificate without a subject");
			assert_true(cases[i].text == NULL ||
				    has_value(identity, cases[i].kind, cases[i].text));
			assert_true(cases[i].data[0] != '*' ||
				    value_of(identity, cases[i].kind) == NULL);
		}
		identity_put(identity);
		forge_end(&forge);
	}
}

TEST(test_number_of_alternative_names)
{
	static const int counts[] = { 64, 65, 200 };

	for (size_t i = 0; i < ARRAY_COUNT(counts); i++) {
		struct identity *identity;
		struct forge forge;
		struct error error;
		int rc;

		forge_begin(&forge);
		for (int name = 0; name < counts[i]; name++) {
			char text[260];

			/* As large as they may be. */
			memset(text, 'x', sizeof(text));
			snprintf(text + 240, sizeof(text) - 240, "y%03d", name);
			assert_int_equal(
				gnutls_x509_crt_set_subject_alt_name(forge.cert, GNUTLS_SAN_DNSNAME,
					text, (unsigned)strlen(text), GNUTLS_FSAN_APPEND),
				0);
		}
		forge_sign(&forge);
		rc = forge_handshake(&forge, &identity, &error);
		if (counts[i] <= 64) {
			assert_int_equal(rc, 0);
			assert_int_equal(identity->value_count, 64 + 2);
		} else {
			/* 200 of them are longer than a message of the handshake may be. */
			assert_int_equal(rc, counts[i] == 65 ? -EACCES : -EPROTO);
		}
		identity_put(identity);
		forge_end(&forge);
	}
}

/* The same names are the same principal, whatever key and certificate; other names are not. */
TEST(test_principal_survives_a_renewal)
{
	static const struct {
		const char *cn, *dns;
		int tag;
		bool is_same;
	} cases[] = {
		{ "a", "x.example", 12, true },
		{ "a", "x.example", 19, true },
		{ "a", "X.example", 12, true },
		{ "b", "x.example", 12, false },
		{ "a", "y.example", 12, false },
	};
	uint8_t first[IDENTITY_DIGEST_BYTES], first_key[IDENTITY_DIGEST_BYTES];

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct identity *identity;
		struct forge forge;
		struct error error;

		forge_begin(&forge);
		set_raw_attribute(
			&forge, GNUTLS_OID_X520_COMMON_NAME, cases[i].tag, cases[i].cn, 1);
		set_raw_san(&forge, SAN_DNS, cases[i].dns, 9);
		forge_sign(&forge);
		assert_int_equal(forge_handshake(&forge, &identity, &error), 0);
		if (i == 0) {
			memcpy(first, identity->principal, sizeof(first));
			memcpy(first_key, value_of(identity, IDENTITY_KEY_FINGERPRINT)->data,
				sizeof(first_key));
		} else {
			assert_int_equal(memcmp(first, identity->principal, sizeof(first)) == 0,
				cases[i].is_same);
			assert_memory_not_equal(first_key,
				value_of(identity, IDENTITY_KEY_FINGERPRINT)->data,
				sizeof(first_key));
		}
		identity_put(identity);
		forge_end(&forge);
	}
}

/* What people copy from certtool and openssl. */
TEST(test_fingerprints_are_those_of_the_tools)
{
	struct tls_options server = pair_options(TLS_SERVER, "good");
	char command[700], text[200] = "sha256:";
	struct identity *identity;
	struct pair pair;
	FILE *tool;

	pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, NULL, NULL, "good");
	pair_run(&pair);
	identity = identity_of(&pair.server);
	for (int i = 0; i < 2; i++) {
		snprintf(command, sizeof(command), "certtool %s --hash=sha256 --infile %s",
			i == 0 ? "--fingerprint" : "--key-id", pair_path("good/client-cert.pem"));
		tool = popen(command, "r");
		assert_non_null(tool);
		assert_non_null(fgets(text + 7, sizeof(text) - 7, tool));
		assert_int_equal(pclose(tool), 0);
		text[strcspn(text, "\n")] = '\0';
		assert_true(has_value(identity,
			i == 0 ? IDENTITY_CERT_FINGERPRINT : IDENTITY_KEY_FINGERPRINT, text));
	}
	identity_put(identity);
	pair_fini(&pair);
}

/* --- chains ----------------------------------------------------------------------------------- */

/* GnuTLS finds the order of a chain only in certificates that it has parsed. */
static gnutls_x509_crt_t parsed(gnutls_x509_crt_t made)
{
	gnutls_x509_crt_t cert;
	gnutls_datum_t der;

	assert_int_equal(gnutls_x509_crt_export2(made, GNUTLS_X509_FMT_DER, &der), 0);
	gnutls_x509_crt_init(&cert);
	assert_int_equal(gnutls_x509_crt_import(cert, &der, GNUTLS_X509_FMT_DER), 0);
	gnutls_free(der.data);
	return cert;
}

TEST(test_long_chain_is_refused)
{
	static const int counts[] = { 5, 20 };

	for (size_t i = 0; i < ARRAY_COUNT(counts); i++) {
		struct tls_options server;
		gnutls_x509_crt_t certs[20];
		struct forge forges[20];
		struct pair pair;
		struct error error;
		int count = counts[i];

		for (int link = 0; link < count; link++) {
			struct forge *forge = &forges[link];
			char name[16];

			forge_begin(forge);
			snprintf(name, sizeof(name), "link%02d", link);
			set_raw_attribute(forge, GNUTLS_OID_X520_COMMON_NAME, 12, name, 6);
			gnutls_x509_crt_set_basic_constraints(forge->cert, link < count - 1, -1);
			gnutls_x509_crt_set_key_usage(
				forge->cert, link < count - 1 ? GNUTLS_KEY_KEY_CERT_SIGN
							      : GNUTLS_KEY_DIGITAL_SIGNATURE);
			if (link == 0) {
				forge_sign(forge);
			} else {
				assert_int_equal(
					gnutls_x509_crt_sign2(forge->cert, forges[link - 1].cert,
						forges[link - 1].key, GNUTLS_DIG_SHA256, 0),
					0);
			}
			certs[count - 1 - link] = parsed(forge->cert);
		}
		server = pair_options(TLS_SERVER, "good");
		pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
		pair_end_init(&pair.client, TLS_CLIENT, NULL, NULL, NULL);
		assert_int_equal(gnutls_certificate_set_x509_key(pair.client.raw_certificates,
					 certs, count, forges[count - 1].key),
			0);
		pair_run(&pair);
		if (count == 5) {
			if (pair.server.result != 0) {
				fail_msg("%s", why(&pair.server, -EACCES, &error));
			}
		} else {
			assert_contains(why(&pair.server, -EACCES, &error), "20 certificates");
		}
		pair_fini(&pair);
		for (int link = 0; link < count; link++) {
			gnutls_x509_crt_deinit(certs[link]);
			forge_end(&forges[link]);
		}
	}
}

/* --- pre-shared keys -------------------------------------------------------------------------- */

static const uint8_t alice_key[16] = { 0x5c, 0x0d, 0x6d, 0x3b, 0x0f, 0xb1, 0xa6, 0xe4, 0xd8, 0xa1,
	0xf9, 0xa2, 0x7e, 0x51, 0xc8, 0xb0 };

/* Unknown names and wrong keys are the same to a stranger. */
TEST(test_psk_strangers)
{
	static char long_name[60000];
	static const struct {
		const char *name;
		size_t bytes;
		uint8_t flip; /* of the key */
		int result;
		const char *reason;
	} cases[] = {
		{ "alice", 5, 0, 0, NULL },
		{ "alice", 5, 1, -EACCES, "a different key for the name 'alice'" },
		{ "mallory", 7, 0, -EACCES, "no pre-shared key with the name 'mallory'" },
		{ "", 0, 0, -EPROTO, "no common TLS parameters" },
		{ "alic", 4, 0, -EACCES, "no pre-shared key with the name 'alic'" },
		{ "alice2", 6, 0, -EACCES, "no pre-shared key with the name 'alice2'" },
		{ "alice\0", 6, 0, -EACCES, "no pre-shared key with the name 'alice\\x00'" },
		{ "alice\n", 6, 0, -EACCES, "no pre-shared key with the name 'alice\\x0a'" },
		{ "Alice", 5, 0, -EACCES, "no pre-shared key with the name 'Alice'" },
		{ long_name, 300, 0, -EACCES, "no pre-shared key with the name 'nnn" },
		/* The message is too long. */
		{ long_name, sizeof(long_name), 0, -EPROTO, "TLS" },
	};
	struct tls_options server = { .role = TLS_SERVER, .psk_file = pair_path("keys.psk") };

	memset(long_name, 'n', sizeof(long_name));
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		uint8_t key[sizeof(alice_key)];
		struct pair pair;
		struct error error;

		memcpy(key, alice_key, sizeof(key));
		key[0] ^= cases[i].flip;
		pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
		pair_end_init_psk(&pair.client, cases[i].name, cases[i].bytes, key, sizeof(key));
		pair_run(&pair);
		if (cases[i].reason == NULL) {
			assert_int_equal(pair.server.result, 0);
		} else {
			assert_contains(
				why(&pair.server, cases[i].result, &error), cases[i].reason);
			assert_int_equal(pair.client.result, GNUTLS_E_FATAL_ALERT_RECEIVED);
			if (cases[i].result == -EACCES) {
				assert_int_equal(gnutls_alert_get(pair.client.session),
					GNUTLS_A_ILLEGAL_PARAMETER);
			}
		}
		pair_fini(&pair);
	}
}

TEST(test_psk_client_is_told_apart)
{
	struct tls_options server = { .role = TLS_SERVER, .psk_file = pair_path("other.psk") };
	struct tls_options client = { .role = TLS_CLIENT,
		.psk_file = pair_path("keys.psk"),
		.use_psk = true,
		.user = "alice" };
	struct pair pair;
	struct error error;

	pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), NULL, NULL);
	pair_run(&pair);
	assert_contains(why(&pair.server, -EACCES, &error), "a different key");
	assert_contains(why(&pair.client, -EKEYREJECTED, &error), "a different pre-shared key");
	pair_fini(&pair);
}

/* A server with both; clients of each kind get in, by TLS 1.3 and 1.2. */
TEST(test_certificates_and_psk_side_by_side)
{
	static const char *const priorities[] = { NULL,
		"NORMAL:-VERS-ALL:+VERS-TLS1.2:+DHE-PSK:+ECDHE-PSK" };

	for (int i = 0; i < 4; i++) {
		struct tls_options server = pair_options(TLS_SERVER, "good");
		struct tls_options client = pair_options(TLS_CLIENT, "good");
		struct identity *identity;
		struct pair pair;

		server.psk_file = client.psk_file = pair_path("keys.psk");
		client.user = "bob";
		client.use_psk = i % 2 == 1;
		client.priority = priorities[i / 2];
		pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
		pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), "localhost", NULL);
		pair_run(&pair);
		assert_int_equal(pair.server.result, 0);
		assert_int_equal(pair.client.result, 0);
		identity = identity_of(&pair.server);
		assert_string_equal(identity->text, i % 2 == 1 ? "psk bob" : "CN=host-a,O=Example");
		identity_put(identity);
		identity_put(identity_of(&pair.client));
		pair_fini(&pair);
	}
}

TEST(test_nothing_in_common)
{
	struct tls_options server = { .role = TLS_SERVER, .psk_file = pair_path("keys.psk") };
	struct tls_options client = pair_options(TLS_CLIENT, "good");
	struct pair pair;
	struct error error;

	pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), "localhost", NULL);
	pair_run(&pair);
	assert_contains(why(&pair.server, -EPROTO, &error), "no common TLS parameters");
	assert_int_equal(tls_check_failed(&pair.client.check, pair.client.session,
				 pair.client.result, &error),
		-EPROTO);
	assert_contains(error.text, "both use certificates or both use pre-shared keys");
	pair_fini(&pair);
}

TEST(test_client_needs_a_name_to_verify)
{
	struct tls_options options = pair_options(TLS_CLIENT, "good");
	struct tls_check check = { .context = pair_load(&options) };
	gnutls_session_t session;
	struct error error;

	assert_int_equal(gnutls_init(&session, GNUTLS_CLIENT), 0);
	assert_int_equal(tls_context_prepare(&check, session, &error), -EINVAL);
	assert_contains(error.text, "tls-hostname");
	gnutls_deinit(session);
	tls_context_put(check.context);

	/* Not without verification. */
	options.verify_peer = false;
	check = (struct tls_check){ .context = pair_load(&options) };
	assert_int_equal(gnutls_init(&session, GNUTLS_CLIENT), 0);
	assert_int_equal(tls_context_prepare(&check, session, &error), 0);
	gnutls_deinit(session);
	tls_context_put(check.context);
}

TEST(test_priority_that_is_wrong)
{
	struct tls_options options = pair_options(TLS_SERVER, "good");
	struct tls_context *context;
	struct error error;

	options.priority = "NORMAL:+NONSENSE";
	assert_int_equal(tls_context_load(&options, &context, &error), -EINVAL);
	assert_contains(error.text, "+NONSENSE");
}

int main(int argc, char **argv)
{
	pair_folder = argv[1];
	return unit_run(NULL, NULL);
}
