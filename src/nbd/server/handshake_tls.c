// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "nbd/server/session.h"
#include "tls/layer.h"

_Static_assert(sizeof(struct peer_identity) == TLS_SOURCE_BYTES,
	"TLS handshakes are limited by the same client identity as connections");

static enum tls_mode mode_of(const struct nbd_session *session)
{
	return tls_policy_mode(session->base.tls);
}

bool handshake_needs_tls(const struct nbd_session *session)
{
	return mode_of(session) == TLS_REQUIRE && !nbd_session_has_tls(session);
}

bool handshake_offers_tls(const struct nbd_session *session)
{
	return mode_of(session) == TLS_ON && !nbd_session_has_tls(session);
}

uint32_t handshake_tls_refusal(const struct nbd_session *session, const char **reason)
{
	if (session->handshake->option_bytes != 0) {
		*reason = "STARTTLS takes no data";
		return NBD_REP_ERR_INVALID;
	}
	if (nbd_session_has_tls(session)) {
		*reason = "TLS is already in use";
		return NBD_REP_ERR_INVALID;
	}
	if (mode_of(session) == TLS_OFF) {
		*reason = "this address does not offer TLS";
		return NBD_REP_ERR_POLICY;
	}
	if (!session->handshake->is_fixed) {
		*reason = "TLS needs fixed newstyle negotiation"; /* P9 */
		return NBD_REP_ERR_POLICY;
	}
	return 0;
}

/* Discards everything negotiated and received in cleartext, because an attacker on the network may
 * have injected it (P51, P56). The client flags stay, because they precede options. */
static void handshake_tls_forget(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;

	session->structured = false;
	session->extended = false;
	session->alive_ns = 0;
	session->says_size = false;
	handshake->context_selected = false;
	handshake->context_name_bytes = 0;
	GMB_ASSERT(session->rx_data == session->rx_small && session->rx_start == session->rx_end);
	session->rx_start = 0;
	session->rx_end = 0;
	explicit_bzero(session->rx_small, sizeof(session->rx_small));
	explicit_bzero(handshake->option_data, sizeof(handshake->option_data));
}

/* Adds (by = 1) or removes (by = -1) the session in the counts of TLS sessions. */
static void count_session(struct nbd_session *session, int by)
{
	struct engine_counters *counters = &session->base.engine->counters;
	struct tls_facts facts = tls_layer_facts(&session->stream);

	counters->tls_sessions += (uint64_t)by;
	counters->tls_sessions_1_2 += strcmp(facts.version, "TLS 1.2") == 0 ? (uint64_t)by : 0;
	counters->tls_sessions_kernel += strcmp(facts.records, "kernel") == 0 ? (uint64_t)by : 0;
}

static void log_tls(const struct nbd_session *session)
{
	struct tls_facts facts = tls_layer_facts(&session->stream);

	log_limited(session_connect_limit(&session->base), ring_batch_ns(session->service->ring),
		LOG_LEVEL_INFO, "client %s uses %s with cipher %s, TLS records: %s; identity: %s",
		session->base.peer.text, facts.version, facts.cipher, facts.records,
		session->base.peer.proved->text);
}

/* Returns the kind of failure that is counted for result, a negative errno of the TLS layer or the
 * socket. */
static enum engine_tls_failure failure_of(int result)
{
	switch (result) {
	case -EACCES:
		return ENGINE_TLS_CLIENT_REFUSED;
	case -EKEYREJECTED:
		return ENGINE_TLS_SERVER_REFUSED;
	case -EPROTO:
	case -EBADMSG:
		return ENGINE_TLS_PROTOCOL;
	case -ENOMEM:
	case -ENOBUFS:
		return ENGINE_TLS_OTHER;
	default:
		return ENGINE_TLS_CONNECTION;
	}
}

/* If the credentials were replaced during the handshake, checks that the client would also be
 * accepted with the new ones. */
static int check_again(struct nbd_session *session, struct error *error)
{
	struct tls_context *context = tls_policy_context(session->base.tls);
	int rc = 0;

	/* The TLS layer keeps its context alive, so a different context has a different address. */
	if (context != session->handshake->tls_context) {
		rc = tls_context_recheck(context, tls_layer_identity(&session->stream), error);
	}
	if (rc < 0) {
		error_prefix(error, "the credentials were replaced during the TLS handshake");
	}
	tls_context_put(context);
	return rc;
}

static void upgraded(struct stream *stream, int result)
{
	struct nbd_session *session = container_of(stream, struct nbd_session, stream);
	struct engine_counters *counters = &session->base.engine->counters;
	struct error error;

	counters->tls_upgrading--;
	if (result < 0) {
		error = *tls_layer_error(stream);
	} else {
		count_session(session, 1);
	}
	if (result == 0 && session->base.state != SESSION_TERMINATING) {
		result = check_again(session, &error);
	}
	if (result == -EAGAIN) {
		counters->tls_refused++;
		session_terminate(&session->base, error.text);
		return;
	}
	if (result < 0) {
		session_tls_failed(&session->base, failure_of(result), error.text);
		return;
	}
	counters->tls_handshakes++;
	if (session->base.state == SESSION_TERMINATING) {
		return;
	}
	session->base.progress_ns = ring_batch_ns(session->service->ring);
	session_identify(&session->base, tls_layer_identity(stream));
	log_tls(session);
	handshake_next_option(session);
}

void handshake_begin_tls(struct nbd_session *session)
{
	struct tls_layer_options options = {
		.context = tls_policy_context(session->base.tls),
		.pool = tls_policy_pool(session->base.tls),
	};
	struct tls_layer *layer;
	int rc;

	memcpy(options.source, &session->base.peer.identity, sizeof(options.source));
	rc = tls_layer_create(&options, &layer);
	tls_context_put(options.context);
	if (rc < 0) {
		session_tls_failed(&session->base, ENGINE_TLS_OTHER, "out of memory for TLS");
		return;
	}
	handshake_tls_forget(session);
	session->handshake->tls_context = options.context;
	session->handshake->state = HANDSHAKE_UPGRADING;
	session->base.engine->counters.tls_upgrading++;
	stream_upgrade(&session->stream, &tls_stream_ops, layer, upgraded);
}

int handshake_adopt_tls(
	struct nbd_session *session, const uint8_t *bytes, uint32_t count, struct error *error)
{
	struct tls_layer_options options = { .server_name = NULL };
	int rc;

	if (mode_of(session) == TLS_OFF) {
		return error_set(error, -EACCES,
			"the server address of this connection no longer offers TLS");
	}
	options.pool = tls_policy_pool(session->base.tls);
	options.context = tls_policy_context(session->base.tls);
	rc = tls_layer_adopt(&options, &session->stream, bytes, count, error);
	tls_context_put(options.context);
	if (rc == 0) {
		count_session(session, 1);
		session_identify(&session->base, tls_layer_identity(&session->stream));
	}
	return rc;
}

void handshake_tls_closed(struct nbd_session *session)
{
	if (nbd_session_has_tls(session)) {
		count_session(session, -1);
	}
}
