// SPDX-License-Identifier: Apache-2.0
#include "tls_world.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <gnutls/x509.h>

static const char *const file_names[] = { "ca-cert.pem", "server-cert.pem", "server-key.pem",
	"client-cert.pem", "client-key.pem", "keys.psk", "wrong.psk" };

static void write_file(struct tls_world *world, const char *name, const void *bytes, size_t count)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", world->folder, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, count), count);
	close(fd);
}

static void write_text(struct tls_world *world, const char *name, const char *text)
{
	write_file(world, name, text, strlen(text));
}

/* --- certificates ----------------------------------------------------------------------------- */

struct signer {
	gnutls_x509_crt_t certificate;
	gnutls_x509_privkey_t key;
};

static void make(struct tls_world *world, const char *name, unsigned char serial,
	const char *purpose, const struct signer *signer, struct signer *made)
{
	gnutls_datum_t pem;
	char file[64];

	assert_int_equal(gnutls_x509_privkey_init(&made->key), 0);
	assert_int_equal(gnutls_x509_privkey_generate(made->key, GNUTLS_PK_EC,
				 GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
		0);
	assert_int_equal(gnutls_x509_crt_init(&made->certificate), 0);
	gnutls_x509_crt_set_version(made->certificate, 3);
	gnutls_x509_crt_set_serial(made->certificate, &serial, 1);
	gnutls_x509_crt_set_activation_time(made->certificate, time(NULL) - 3600);
	gnutls_x509_crt_set_expiration_time(made->certificate, time(NULL) + 90 * 86400);
	gnutls_x509_crt_set_dn_by_oid(
		made->certificate, GNUTLS_OID_X520_COMMON_NAME, 0, name, (unsigned)strlen(name));
	gnutls_x509_crt_set_key(made->certificate, made->key);
	if (purpose == NULL) {
		gnutls_x509_crt_set_basic_constraints(made->certificate, 1, -1);
		gnutls_x509_crt_set_key_usage(
			made->certificate, GNUTLS_KEY_KEY_CERT_SIGN | GNUTLS_KEY_CRL_SIGN);
	} else {
		gnutls_x509_crt_set_basic_constraints(made->certificate, 0, -1);
		gnutls_x509_crt_set_key_purpose_oid(made->certificate, purpose, 0);
		gnutls_x509_crt_set_key_usage(made->certificate, GNUTLS_KEY_DIGITAL_SIGNATURE);
		gnutls_x509_crt_set_subject_alt_name(made->certificate, GNUTLS_SAN_DNSNAME,
			TLS_WORLD_HOST, sizeof(TLS_WORLD_HOST) - 1, GNUTLS_FSAN_SET);
	}
	if (signer == NULL) {
		signer = made;
	}
	assert_int_equal(gnutls_x509_crt_sign2(made->certificate, signer->certificate, signer->key,
				 GNUTLS_DIG_SHA256, 0),
		0);
	assert_int_equal(gnutls_x509_crt_export2(made->certificate, GNUTLS_X509_FMT_PEM, &pem), 0);
	snprintf(file, sizeof(file), "%s-cert.pem", name);
	write_file(world, file, pem.data, pem.size);
	gnutls_free(pem.data);
	if (purpose != NULL) {
		assert_int_equal(
			gnutls_x509_privkey_export2(made->key, GNUTLS_X509_FMT_PEM, &pem), 0);
		snprintf(file, sizeof(file), "%s-key.pem", name);
		write_file(world, file, pem.data, pem.size);
		gnutls_free(pem.data);
	}
}

static void free_signer(struct signer *signer)
{
	gnutls_x509_crt_deinit(signer->certificate);
	gnutls_x509_privkey_deinit(signer->key);
}

/* --- the world -------------------------------------------------------------------------------- */

void tls_world_begin(struct tls_world *world, uint32_t places)
{
	struct signer authority;
	struct signer server;
	struct signer client;
	struct error error;

	snprintf(world->folder, sizeof(world->folder), "/tmp/gmblock-tls.XXXXXX");
	assert_non_null(mkdtemp(world->folder));
	make(world, "ca", 1, NULL, NULL, &authority);
	make(world, "server", 2, GNUTLS_KP_TLS_WWW_SERVER, &authority, &server);
	make(world, "client", 3, GNUTLS_KP_TLS_WWW_CLIENT, &authority, &client);
	free_signer(&client);
	free_signer(&server);
	free_signer(&authority);
	write_text(world, "keys.psk", "alice:0123456789abcdef0123456789abcdef\n");
	write_text(world, "wrong.psk", "alice:ffffffffffffffffffffffffffffffff\n");
	assert_int_equal(tls_pool_create(&(struct tls_pool_options){ .handshakes = places },
				 &world->pool, &error),
		0);
}

void tls_world_end(struct tls_world *world)
{
	char path[128];

	tls_pool_destroy(world->pool);
	for (uint32_t i = 0; i < ARRAY_COUNT(file_names); i++) {
		snprintf(path, sizeof(path), "%s/%s", world->folder, file_names[i]);
		assert_int_equal(unlink(path), 0);
	}
	assert_int_equal(rmdir(world->folder), 0);
}

struct tls_context *tls_world_context(
	struct tls_world *world, enum tls_role role, enum tls_proof proof, const char *priority)
{
	struct tls_context *context = NULL;
	struct error error;
	char psk[128];
	int err;

	snprintf(psk, sizeof(psk), "%s/%s", world->folder,
		proof == TLS_BY_WRONG_KEY ? "wrong.psk" : "keys.psk");
	err = tls_context_load(
		&(struct tls_options){
			.role = role,
			.certificates = proof == TLS_BY_CERTIFICATE ? world->folder : NULL,
			.psk_file = proof == TLS_BY_CERTIFICATE ? NULL : psk,
			.verify_peer = proof == TLS_BY_CERTIFICATE,
			.user = TLS_WORLD_USER,
			.use_psk = proof != TLS_BY_CERTIFICATE,
			.priority = priority,
		},
		&context, &error);
	if (err != 0) {
		fail_msg("%s", error.text);
	}
	return context;
}

struct tls_layer *tls_world_layer(
	struct tls_world *world, struct tls_context *context, uint8_t source)
{
	struct tls_layer *layer = NULL;

	assert_int_equal(tls_layer_create(
				 &(struct tls_layer_options){
					 .context = context,
					 .pool = world->pool,
					 .server_name = TLS_WORLD_HOST,
					 .source = { 10, [TLS_SOURCE_BYTES - 1] = source },
				 },
				 &layer),
		0);
	return layer;
}

void tls_world_upgrade(struct tls_world *world, struct stream *stream, struct tls_context *context,
	void (*upgraded)(struct stream *stream, int result))
{
	stream_upgrade(stream, &tls_stream_ops, tls_world_layer(world, context, 0), upgraded);
	tls_context_put(context);
}
