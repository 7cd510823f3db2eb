// SPDX-License-Identifier: Apache-2.0
#include "tls_peer.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <gnutls/x509.h>

#ifdef TEST_ON_SIM
#include "sim/sim.h"
#endif

/* --- bytes ------------------------------------------------------------------------------------ */

static void bytes_add(struct peer_bytes *bytes, const void *data, size_t count)
{
	if (bytes->end + count > bytes->capacity) {
		bytes->capacity = (bytes->end + count) * 2;
		bytes->data = realloc(bytes->data, bytes->capacity);
		assert_non_null(bytes->data);
	}
	memcpy(bytes->data + bytes->end, data, count);
	bytes->end += count;
}

static ssize_t peer_push(gnutls_transport_ptr_t context, const void *data, size_t count)
{
	struct peer *peer = context;

	bytes_add(&peer->out, data, count);
	if (peer->heard != NULL) {
		bytes_add(peer->heard, data, count);
	}
	return (ssize_t)count;
}

static ssize_t peer_pull(gnutls_transport_ptr_t context, void *data, size_t count)
{
	struct peer *peer = context;
	size_t bytes = MIN(count, peer->in.end - peer->in.at);

	if (bytes == 0) {
		gnutls_transport_set_errno(peer->session, EAGAIN);
		return peer->at_end ? 0 : -1;
	}
	memcpy(data, peer->in.data + peer->in.at, bytes);
	peer->in.at += bytes;
	return (ssize_t)bytes;
}

static int peer_pull_timeout(gnutls_transport_ptr_t context, unsigned ms)
{
	return 1;
}

/* --- the socket ------------------------------------------------------------------------------- */

static void connect_ends(int fds[2])
{
#ifdef TEST_ON_SIM
	sim_socket_pair(&fds[0], &fds[1]);
#else
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
#endif
}

void peer_send_bytes(struct peer *peer, const void *bytes, size_t count)
{
#ifdef TEST_ON_SIM
	sim_socket_write(peer->fd, bytes, count);
#else
	const uint8_t *at = bytes;

	while (count > 0) {
		ssize_t sent = send(peer->fd, at, count, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0 && errno == EAGAIN) {
			peer_turn(peer);
			continue;
		}
		if (sent < 0) {
			return; /* the layer has closed */
		}
		at += sent;
		count -= (size_t)sent;
	}
#endif
}

void peer_cut(struct peer *peer)
{
#ifdef TEST_ON_SIM
	sim_socket_finish(peer->fd);
#else
	assert_int_equal(shutdown(peer->fd, SHUT_WR), 0);
#endif
}

void peer_fetch(struct peer *peer)
{
	uint8_t data[4096];
	ssize_t got;

	do {
#ifdef TEST_ON_SIM
		got = sim_socket_read(peer->fd, data, sizeof(data));
		peer->at_end = peer->at_end || got < 0;
#else
		got = recv(peer->fd, data, sizeof(data), MSG_DONTWAIT);
		peer->at_end = peer->at_end || got == 0 || (got < 0 && errno == ECONNRESET);
#endif
		if (got > 0) {
			bytes_add(&peer->in, data, (size_t)got);
		}
	} while (got > 0);
}

/* As much as the socket takes. */
static void flush(struct peer *peer)
{
#ifdef TEST_ON_SIM
	if (peer->out.at < peer->out.end) {
		peer_send_bytes(peer, peer->out.data + peer->out.at, peer->out.end - peer->out.at);
		peer->out.at = peer->out.end;
	}
#else
	while (peer->out.at < peer->out.end) {
		ssize_t sent = send(peer->fd, peer->out.data + peer->out.at,
			peer->out.end - peer->out.at, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0) {
			if (errno != EAGAIN) {
				peer->out.at = peer->out.end; /* the layer has closed */
			}
			break;
		}
		peer->out.at += (size_t)sent;
	}
#endif
	if (peer->out.at == peer->out.end) {
		peer->out.at = 0;
		peer->out.end = 0;
		peer->is_sending = false;
	}
}

void peer_send(struct peer *peer)
{
	peer->is_sending = true;
	flush(peer);
}

void peer_turn(struct peer *peer)
{
	if (peer->is_sending) {
		flush(peer);
	}
	(void)ring_turn_limited(peer->ring, UINT64_C(2000000));
}

/* --- the layer -------------------------------------------------------------------------------- */

static void upgraded(struct stream *stream, int result)
{
	container_of(stream, struct peer, stream)->upgraded = result;
}

static void recv_done(struct ring_op *op, int result)
{
	container_of(op, struct peer, recv_op)->recv_result = result;
}

void peer_begin(struct peer *peer, struct tls_world *world, struct ring *ring, enum tls_role role,
	enum tls_proof proof, uint8_t source)
{
	static const struct stream_keep_alive keep_alive = { 60, 15, 4 };
	int fds[2];

	*peer = (struct peer){
		.world = world, .ring = ring, .upgraded = 1, .is_server = role == TLS_CLIENT
	};
	connect_ends(fds);
	stream_open(&peer->stream, ring, fds[0], &keep_alive);
	peer->fd = fds[1];
	peer->context = tls_world_context(world, role, proof, NULL);
	stream_upgrade(&peer->stream, &tls_stream_ops,
		tls_world_layer(world, peer->context, source), upgraded);
}

void peer_settle(struct peer *peer)
{
	while (peer->recv_op.in_flight || peer->send_op.in_flight ||
		!stream_is_idle(&peer->stream)) {
		peer_turn(peer);
	}
}

void peer_end(struct peer *peer)
{
	stream_shutdown(&peer->stream);
	peer_settle(peer);
	stream_close(&peer->stream);
	peer_end_closed(peer);
}

void peer_end_closed(struct peer *peer)
{
	if (peer->session != NULL) {
		gnutls_deinit(peer->session);
		gnutls_certificate_free_credentials(peer->certificates);
		gnutls_psk_free_client_credentials(peer->keys);
		gnutls_psk_free_server_credentials(peer->server_keys);
	}
#ifdef TEST_ON_SIM
	sim_socket_close(peer->fd);
#else
	close(peer->fd);
#endif
	tls_context_put(peer->context);
	free(peer->in.data);
	free(peer->out.data);
}

/* --- GnuTLS ----------------------------------------------------------------------------------- */

static void use_certificates(struct peer *peer, bool is_server)
{
	char certificate[128];
	char key[128];

	snprintf(certificate, sizeof(certificate), "%s/%s-cert.pem", peer->world->folder,
		is_server ? "server" : "client");
	snprintf(key, sizeof(key), "%s/%s-key.pem", peer->world->folder,
		is_server ? "server" : "client");
	assert_int_equal(gnutls_certificate_set_x509_key_file(
				 peer->certificates, certificate, key, GNUTLS_X509_FMT_PEM),
		0);
	gnutls_credentials_set(peer->session, GNUTLS_CRD_CERTIFICATE, peer->certificates);
}

static void use_keys(struct peer *peer, bool is_server, bool wrong)
{
	const gnutls_datum_t key = {
		.data = (unsigned char *)(uintptr_t)(wrong ? "00000000000000000000000000000000"
							   : "0123456789abcdef0123456789abcdef"),
		.size = 32,
	};
	char file[128];

	if (is_server) {
		snprintf(file, sizeof(file), "%s/keys.psk", peer->world->folder);
		assert_int_equal(
			gnutls_psk_set_server_credentials_file(peer->server_keys, file), 0);
		gnutls_credentials_set(peer->session, GNUTLS_CRD_PSK, peer->server_keys);
		return;
	}
	assert_int_equal(gnutls_psk_set_client_credentials(
				 peer->keys, TLS_WORLD_USER, &key, GNUTLS_PSK_KEY_HEX),
		0);
	gnutls_credentials_set(peer->session, GNUTLS_CRD_PSK, peer->keys);
}

void peer_session(struct peer *peer, enum tls_proof proof, const char *priority)
{
	bool is_server = peer->is_server;

	assert_int_equal(gnutls_init(&peer->session, (is_server ? GNUTLS_SERVER : GNUTLS_CLIENT) |
							     GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL),
		0);
	assert_int_equal(gnutls_priority_set_direct(peer->session,
				 priority != NULL	       ? priority
				 : proof == TLS_BY_CERTIFICATE ? "NORMAL"
							       : "NORMAL:+ECDHE-PSK:+DHE-PSK:+PSK",
				 NULL),
		0);
	gnutls_certificate_allocate_credentials(&peer->certificates);
	gnutls_psk_allocate_client_credentials(&peer->keys);
	gnutls_psk_allocate_server_credentials(&peer->server_keys);
	if (proof == TLS_BY_CERTIFICATE) {
		use_certificates(peer, is_server);
	} else {
		use_keys(peer, is_server, proof == TLS_BY_WRONG_KEY);
	}
	gnutls_transport_set_ptr(peer->session, peer);
	gnutls_transport_set_push_function(peer->session, peer_push);
	gnutls_transport_set_pull_function(peer->session, peer_pull);
	gnutls_transport_set_pull_timeout_function(peer->session, peer_pull_timeout);
}

static gnutls_x509_privkey_t new_key(void)
{
	gnutls_x509_privkey_t key;

	assert_int_equal(gnutls_x509_privkey_init(&key), 0);
	assert_int_equal(gnutls_x509_privkey_generate(key, GNUTLS_PK_EC,
				 GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
		0);
	return key;
}

void peer_forge(struct peer *peer)
{
	gnutls_x509_privkey_t shown = new_key(), used = new_key();
	gnutls_x509_crt_t certificate;

	assert_int_equal(gnutls_x509_crt_init(&certificate), 0);
	gnutls_x509_crt_set_version(certificate, 3);
	gnutls_x509_crt_set_serial(certificate, "\7", 1);
	gnutls_x509_crt_set_activation_time(certificate, time(NULL) - 3600);
	gnutls_x509_crt_set_expiration_time(certificate, time(NULL) + 3600);
	gnutls_x509_crt_set_dn_by_oid(certificate, GNUTLS_OID_X520_COMMON_NAME, 0, "ca", 2);
	gnutls_x509_crt_set_key(certificate, shown);
	assert_int_equal(
		gnutls_x509_crt_sign2(certificate, certificate, shown, GNUTLS_DIG_SHA256, 0), 0);
	gnutls_certificate_free_credentials(peer->certificates);
	gnutls_certificate_allocate_credentials(&peer->certificates);
	gnutls_certificate_set_flags(peer->certificates, GNUTLS_CERTIFICATE_SKIP_KEY_CERT_MATCH);
	assert_int_equal(
		gnutls_certificate_set_x509_key(peer->certificates, &certificate, 1, used), 0);
	gnutls_credentials_set(peer->session, GNUTLS_CRD_CERTIFICATE, peer->certificates);
	gnutls_x509_crt_deinit(certificate);
	gnutls_x509_privkey_deinit(shown);
	gnutls_x509_privkey_deinit(used);
}

int peer_shake(struct peer *peer)
{
	int result = GNUTLS_E_AGAIN;

	while (peer->upgraded == 1 || (peer->upgraded == 0 && result == GNUTLS_E_AGAIN)) {
		peer_fetch(peer);
		if (result < 0 && gnutls_error_is_fatal(result) == 0) {
			result = gnutls_handshake(peer->session);
			if (gnutls_error_is_fatal(result) != 0) {
				(void)gnutls_alert_send_appropriate(peer->session, result);
			}
		}
		peer_send(peer);
		peer_turn(peer);
	}
	return peer->upgraded;
}

/* --- talk ------------------------------------------------------------------------------------- */

void peer_receive(struct peer *peer, void *buf, size_t len, bool whole)
{
	stream_receive(&peer->stream, &peer->recv_op, buf, len, whole, recv_done);
}

int peer_await_receive(struct peer *peer)
{
	while (peer->recv_op.in_flight) {
		peer_turn(peer);
	}
	return peer->recv_result;
}

int peer_await_send(struct peer *peer)
{
	while (peer->send_op.in_flight) {
		peer_turn(peer);
		peer_fetch(peer);
	}
	return peer->send_result;
}

void peer_say(struct peer *peer, const void *bytes, size_t count)
{
	const uint8_t *at = bytes;

	while (count > 0) {
		ssize_t said = gnutls_record_send(peer->session, at, count);

		assert_true(said > 0);
		at += said;
		count -= (size_t)said;
	}
}

void peer_hear(struct peer *peer, void *bytes, size_t count)
{
	uint8_t *at = bytes;

	while (count > 0) {
		ssize_t heard = gnutls_record_recv(peer->session, at, count);

		if (heard == GNUTLS_E_AGAIN || heard == GNUTLS_E_INTERRUPTED) {
			peer_turn(peer);
			peer_fetch(peer);
			continue;
		}
		assert_true(heard > 0);
		at += heard;
		count -= (size_t)heard;
	}
}
