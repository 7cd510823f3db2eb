// SPDX-License-Identifier: Apache-2.0
#include "tls_pair.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char *pair_folder;

const char *pair_path(const char *name)
{
	static char paths[4][512];
	static unsigned next;
	char *path = paths[next++ % 4];

	assert_true(snprintf(path, sizeof(paths[0]), "%s/%s", pair_folder, name) < 512);
	return path;
}

struct tls_options pair_options(enum tls_role role, const char *name)
{
	return (struct tls_options){ .role = role,
		.certificates = name == NULL ? NULL : pair_path(name),
		.verify_peer = true };
}

struct tls_context *pair_load(const struct tls_options *options)
{
	struct tls_context *context = NULL;
	struct error error;

	if (tls_context_load(options, &context, &error) != 0) {
		fail_msg("%s", error.text);
	}
	return context;
}

static ssize_t push(gnutls_transport_ptr_t ptr, const void *data, size_t bytes)
{
	struct pair_end *other = ((struct pair_end *)ptr)->other;

	other->in = realloc(other->in, other->in_bytes + bytes);
	assert_non_null(other->in);
	memcpy(other->in + other->in_bytes, data, bytes);
	other->in_bytes += bytes;
	return (ssize_t)bytes;
}

static ssize_t pull(gnutls_transport_ptr_t ptr, void *data, size_t bytes)
{
	struct pair_end *end = ptr;
	size_t left = end->in_bytes - end->in_at;

	if (left == 0) {
		gnutls_transport_set_errno(end->session, EAGAIN);
		return -1;
	}
	bytes = left < bytes ? left : bytes;
	memcpy(data, end->in + end->in_at, bytes);
	end->in_at += bytes;
	return (ssize_t)bytes;
}

static void open_session(struct pair_end *end, enum tls_role role)
{
	memset(end, 0, sizeof(*end));
	end->role = role;
	assert_int_equal(
		gnutls_init(&end->session, (role == TLS_SERVER ? GNUTLS_SERVER : GNUTLS_CLIENT) |
						   GNUTLS_NONBLOCK | GNUTLS_NO_TICKETS |
						   GNUTLS_FORCE_CLIENT_CERT),
		0);
	gnutls_transport_set_ptr(end->session, end);
	gnutls_transport_set_push_function(end->session, push);
	gnutls_transport_set_pull_function(end->session, pull);
}

static void open_raw(struct pair_end *end, const char *name)
{
	static const char *const roles[] = { "server", "client" };
	char cert[128], key[128];

	gnutls_certificate_allocate_credentials(&end->raw_certificates);
	if (name != NULL) {
		snprintf(cert, sizeof(cert), "%s/%s-cert.pem", name, roles[end->role]);
		snprintf(key, sizeof(key), "%s/%s-key.pem", name, roles[end->role]);
		/* Also a key that does not fit. */
		gnutls_certificate_set_flags(
			end->raw_certificates, GNUTLS_CERTIFICATE_SKIP_KEY_CERT_MATCH);
		assert_true(gnutls_certificate_set_x509_key_file(end->raw_certificates,
				    pair_path(cert), pair_path(key), GNUTLS_X509_FMT_PEM) >= 0);
	}
	gnutls_set_default_priority(end->session);
	gnutls_credentials_set(end->session, GNUTLS_CRD_CERTIFICATE, end->raw_certificates);
	if (end->role == TLS_SERVER) {
		gnutls_certificate_server_set_request(end->session, GNUTLS_CERT_REQUEST);
	}
}

void pair_end_init(struct pair_end *end, enum tls_role role, struct tls_context *context,
	const char *server_name, const char *raw_name)
{
	struct error error;

	open_session(end, role);
	if (context == NULL) {
		open_raw(end, raw_name);
		return;
	}
	end->context = context;
	end->check = (struct tls_check){ .context = context, .server_name = server_name };
	if (tls_context_prepare(&end->check, end->session, &error) != 0) {
		fail_msg("%s", error.text);
	}
}

void pair_end_init_psk(
	struct pair_end *end, const void *name, size_t name_bytes, const void *key, size_t bytes)
{
	const gnutls_datum_t name_datum = { (void *)(uintptr_t)name, (unsigned)name_bytes };
	const gnutls_datum_t key_datum = { (void *)(uintptr_t)key, (unsigned)bytes };

	open_session(end, TLS_CLIENT);
	gnutls_psk_allocate_client_credentials(&end->raw_psk);
	assert_int_equal(gnutls_psk_set_client_credentials2(
				 end->raw_psk, &name_datum, &key_datum, GNUTLS_PSK_KEY_RAW),
		0);
	gnutls_priority_set_direct(end->session, "NORMAL:-KX-ALL:+ECDHE-PSK:+DHE-PSK:+PSK", NULL);
	gnutls_credentials_set(end->session, GNUTLS_CRD_PSK, end->raw_psk);
}

static void step(struct pair_end *end)
{
	if (end->is_done) {
		return;
	}
	end->result = gnutls_handshake(end->session);
	end->is_done = end->result == 0 || gnutls_error_is_fatal(end->result);
	if (end->result == 0) {
		assert_int_equal(gnutls_record_send(end->session, "x", 1), 1);
	} else if (end->is_done) {
		int level, alert = end->check.alert;

		alert = alert != 0 ? alert : gnutls_error_to_alert(end->result, &level);
		gnutls_alert_send(end->session, GNUTLS_AL_FATAL, (gnutls_alert_description_t)alert);
	}
}

void pair_run(struct pair *pair)
{
	char byte;

	pair->server.other = &pair->client;
	pair->client.other = &pair->server;
	for (int i = 0; i < 20 && !(pair->server.is_done && pair->client.is_done); i++) {
		step(&pair->client);
		step(&pair->server);
	}
	for (int i = 0; i < 2; i++) {
		struct pair_end *end = i == 0 ? &pair->client : &pair->server;
		ssize_t got = end->result == 0 ? gnutls_record_recv(end->session, &byte, 1) : 1;

		if (got < 0 && gnutls_error_is_fatal((int)got)) {
			end->result = (int)got;
		}
	}
}

static void end_fini(struct pair_end *end)
{
	gnutls_deinit(end->session);
	tls_context_put(end->context);
	if (end->raw_certificates != NULL) {
		gnutls_certificate_free_credentials(end->raw_certificates);
	}
	if (end->raw_psk != NULL) {
		gnutls_psk_free_client_credentials(end->raw_psk);
	}
	free(end->in);
}

void pair_fini(struct pair *pair)
{
	end_fini(&pair->server);
	end_fini(&pair->client);
}
