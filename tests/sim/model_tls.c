// SPDX-License-Identifier: Apache-2.0
/* The model client's TLS: GnuTLS over memory, with a pre-shared key. It changes its keys now and
 * then, and asks the server for new ones. */
#include <errno.h>
#include <gnutls/gnutls.h>
#include <stdlib.h>
#include <string.h>

#include "model_private.h"

#define PRIORITY "NORMAL:-VERS-ALL:+VERS-TLS1.3:+ECDHE-PSK:+PSK"

/* As many changes of keys as one second may have: GnuTLS measures in real time, here there is
 * none. They come after each power of two of sends. */
enum { UPDATES_MAX = 8 };

struct model_tls {
	struct model_client *client;
	gnutls_session_t session;
	gnutls_psk_client_credentials_t credentials;
	const uint8_t *in; /* what has come; borrowed while it is read */
	size_t in_len;
	bool is_open;
	bool at_end; /* the server has said that nothing follows */
	uint64_t sends;
	uint32_t updates;
};

static ssize_t push(gnutls_transport_ptr_t context, const void *bytes, size_t len)
{
	struct model_tls *tls = context;

	model_send_raw(tls->client, bytes, len);
	return (ssize_t)len;
}

static ssize_t pull(gnutls_transport_ptr_t context, void *buf, size_t len)
{
	struct model_tls *tls = context;
	size_t bytes = MIN(len, tls->in_len);

	if (bytes == 0) {
		gnutls_transport_set_errno(tls->session, EAGAIN);
		return -1;
	}
	memcpy(buf, tls->in, bytes);
	tls->in += bytes;
	tls->in_len -= bytes;
	return (ssize_t)bytes;
}

static int pull_timeout(gnutls_transport_ptr_t context, unsigned ms)
{
	return 1;
}

static void check(const struct model_tls *tls, const char *what, int result)
{
	if (result < 0 && result != GNUTLS_E_AGAIN && !tls->client->forgive) {
		model_fail(
			"client %u: TLS, %s: %s", tls->client->id, what, gnutls_strerror(result));
	}
}

static void shake(struct model_tls *tls)
{
	int result = gnutls_handshake(tls->session);

	check(tls, "handshake", result);
	if (result == 0) {
		tls->is_open = true;
		model_handshake_next(tls->client);
	}
}

void model_tls_begin(struct model_client *client)
{
	static const gnutls_datum_t key = { (unsigned char *)MODEL_TLS_KEY,
		sizeof(MODEL_TLS_KEY) - 1 };
	struct model_tls *tls = calloc(1, sizeof(*tls));

	GMB_ASSERT(tls != NULL);
	tls->client = client;
	client->tls = tls;
	if (gnutls_init(&tls->session, GNUTLS_CLIENT | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) != 0 ||
		gnutls_priority_set_direct(tls->session, PRIORITY, NULL) != 0 ||
		gnutls_psk_allocate_client_credentials(&tls->credentials) != 0 ||
		gnutls_psk_set_client_credentials(
			tls->credentials, MODEL_TLS_USER, &key, GNUTLS_PSK_KEY_HEX) != 0 ||
		gnutls_credentials_set(tls->session, GNUTLS_CRD_PSK, tls->credentials) != 0) {
		model_fail("GnuTLS gives no session");
	}
	gnutls_transport_set_ptr(tls->session, tls);
	gnutls_transport_set_push_function(tls->session, push);
	gnutls_transport_set_pull_function(tls->session, pull);
	gnutls_transport_set_pull_timeout_function(tls->session, pull_timeout);
	shake(tls);
}

void model_tls_receive(struct model_client *client, const uint8_t *bytes, size_t len)
{
	struct model_tls *tls = client->tls;
	uint8_t plain[16384];
	ssize_t got = 1;

	tls->in = bytes;
	tls->in_len = len;
	if (!tls->is_open) {
		shake(tls);
	}
	/* After new keys GnuTLS wants to be asked again. */
	while (tls->is_open && !tls->at_end && (got > 0 || tls->in_len > 0)) {
		got = gnutls_record_recv(tls->session, plain, sizeof(plain));
		check(tls, "receive", (int)got);
		if (got > 0) {
			model_received(client, plain, (size_t)got);
		}
		tls->at_end = got == 0;
		if (got < 0 && gnutls_error_is_fatal((int)got) != 0) {
			return;
		}
	}
}

void model_tls_send(struct model_client *client, const uint8_t *bytes, size_t len)
{
	struct model_tls *tls = client->tls;

	while (len > 0) {
		ssize_t sent = gnutls_record_send(tls->session, bytes, len);

		check(tls, "send", (int)sent);
		if (sent <= 0) {
			return;
		}
		bytes += sent;
		len -= (size_t)sent;
	}
	tls->sends++;
	if ((tls->sends & (tls->sends - 1)) == 0 && tls->updates < UPDATES_MAX) {
		check(tls, "new key",
			gnutls_session_key_update(
				tls->session, ++tls->updates % 2 == 0 ? GNUTLS_KU_PEER : 0));
	}
}

void model_tls_say_end(struct model_client *client)
{
	check(client->tls, "end", gnutls_bye(client->tls->session, GNUTLS_SHUT_WR));
}

bool model_tls_is_cut(const struct model_client *client)
{
	return !client->tls->at_end;
}

void model_tls_finish(struct model_client *client)
{
	if (client->tls != NULL) {
		gnutls_deinit(client->tls->session);
		gnutls_psk_free_client_credentials(client->tls->credentials);
		free(client->tls);
		client->tls = NULL;
	}
}
