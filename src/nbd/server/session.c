// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "nbd/server/session.h"

/* Detects after two minutes that a client's host has failed, which frees its slot. */
static const struct stream_keep_alive keep_alive = { .idle_s = 60, .interval_s = 15, .probes = 4 };

/* Called when the TLS layer has sent its end of stream, which can take a while if the socket is
 * full. */
static void nbd_session_stream_idle(struct stream *stream)
{
	struct nbd_session *session = container_of(stream, struct nbd_session, stream);

	if (session->base.state == SESSION_LINGERING && session->end_of_stream) {
		session_terminate(&session->base, NULL);
	}
}

struct nbd_session *nbd_session_create(void *context, const struct endpoint *endpoint)
{
	struct nbd_service *service = context;
	struct nbd_session *session = calloc(1, sizeof(*session));

	if (session == NULL) {
		return NULL;
	}
	session->service = service;
	stream_open(&session->stream, service->ring, endpoint->fd, &keep_alive);
	session->stream.idle = nbd_session_stream_idle;
	session->unacked_bytes = UINT64_MAX;
	session->rx_data = session->rx_small;
	session->rx_bytes = RX_SMALL_BYTES;
	list_init(&session->requests);
	list_init(&session->sendable);
	session_init(&session->base, service->engine, endpoint);
	return session;
}

int nbd_session_accept(void *context, const struct endpoint *endpoint)
{
	struct nbd_session *session = nbd_session_create(context, endpoint);

	if (session == NULL) {
		return -ENOMEM;
	}
	if (handshake_begin(session) < 0) {
		session_terminate(&session->base, "out of memory for the handshake");
	}
	return 0;
}

void nbd_session_resume(struct session *base)
{
	struct nbd_session *session = nbd_session_of(base);

	if (base->state != SESSION_NEGOTIATING) {
		receive_continue(session);
	} else if (session->told_choice != NULL) {
		nbd_session_choose_again(session);
	} else {
		handshake_resume(session);
	}
}

/* Returns whether the peer has acknowledged bytes since the last check. A slow receiver frees send
 * buffer space only after a long time, so acknowledged bytes are compared. */
static bool peer_has_received(struct nbd_session *session)
{
	uint64_t before = session->unacked_bytes;

	return stream_unacked(&session->stream, &session->unacked_bytes) &&
	       session->unacked_bytes != before;
}

bool nbd_session_peer_receives(struct session *base)
{
	/* Before the first check after a send, unacked_bytes is UINT64_MAX, so this check always
	 * finds a change. If all bytes are acknowledged, it does not show that the peer
	 * receives. */
	return peer_has_received(nbd_session_of(base)) && nbd_session_of(base)->unacked_bytes > 0;
}

/* Returns whether the peer occupies payload memory without making progress. Bytes that the peer has
 * acknowledged, or that arrived below TLS, are progress. A receive is interrupted once before it
 * counts as stalled, because it reports partial data only when it ends. If only an empty receive
 * buffer is occupied, it is released. */
bool nbd_session_stalled(struct session *base)
{
	struct nbd_session *session = nbd_session_of(base);
	bool sends = session->send_op.in_flight &&
		     (session->sending == NULL || !session->sending->is_alive);
	bool receives = session->recv_op.in_flight &&
			(session->rx_stream != NULL || session->rx_large != NULL);

	if (!path_client_holds(&base->client) || !(sends || receives)) {
		return false;
	}
	if (receive_owes_nothing(session)) {
		receive_interrupt(session);
		return false;
	}
	if (sends && peer_has_received(session)) {
		base->progress_ns = ring_batch_ns(session->service->ring);
		return false;
	}
	if (receives && session->rx_raw_bytes != session->stream.raw_bytes) {
		session->rx_raw_bytes = session->stream.raw_bytes;
		base->progress_ns = ring_batch_ns(session->service->ring);
		return false;
	}
	if (receives && !session->rx_probed) {
		session->rx_probed = true;
		receive_interrupt(session);
		return false;
	}
	return true;
}

/* --- the ways to end ----------------------------------------------------------------------- */

void nbd_session_abort(struct session *base)
{
	struct nbd_session *session = nbd_session_of(base);

	/* The requests end before the socket is closed, because the peer may reconnect as soon as
	 * it detects the close. */
	list_for_each(node, &session->requests)
	{
		struct nbd_request *request = list_entry(node, struct nbd_request, session_node);

		if (request->started) {
			(void)path_abandon(&request->path);
		}
	}
	if (!base->handed_over) {
		stream_shutdown(&session->stream);
	}
	ring_cancel(session->service->ring, &session->alive_op);
}

void session_fail(struct nbd_session *session, const char *rule, const char *format, ...)
{
	char text[256];
	char reason[sizeof(text) + 64];
	va_list args;

	if (session->base.state == SESSION_TERMINATING) {
		return;
	}
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	snprintf(reason, sizeof(reason), "the client broke NBD rule %s: %s", rule, text);
	session_terminate(&session->base, reason);
}

void session_drain(struct nbd_session *session)
{
	GMB_ASSERT(session->base.state == SESSION_READY);
	session_set_state(&session->base, SESSION_DRAINING);
	/* The x-gmblock:size request, which waits for a change of the size, is dropped, because it
	 * would keep the session open. */
	session->size_asked = false;
	list_for_each(node, &session->requests)
	{
		struct nbd_request *request = list_entry(node, struct nbd_request, session_node);

		if (request->started) {
			path_orphan(&request->path);
		}
	}
	session_drain_check(session);
}

void nbd_session_drain(struct session *base)
{
	/* Requests of a client are still accepted until the last reply is sent, but answered with
	 * ERR_SHUTDOWN (options, P18) or ESHUTDOWN (P126). */
	if (nbd_session_of(base)->size_asked) {
		session_mark_dirty(base);
	}
	if (base->state != SESSION_NEGOTIATING) {
		session_drain_check(nbd_session_of(base));
	} else if (nbd_session_of(base)->told_choice != NULL) { /* the session awaits its export */
		session_terminate(base, session_stop_text(base));
	}
}

void nbd_session_export_changed(struct session *base, enum export_change change)
{
	if (reply_size_is_due(nbd_session_of(base))) {
		session_mark_dirty(base);
	}
}

/*
 * Called when everything is answered. If the socket were closed now with unread data from the peer,
 * the kernel would reset the connection, and a reset can overtake the last replies. Therefore shuts
 * down our direction only. The socket is closed when the peer has also closed or its time limit has
 * passed.
 */
static void linger(struct nbd_session *session)
{
	stream_shutdown_send(&session->stream);
	session_linger(&session->base);
	if (session->end_of_stream) {
		session_ended(session);
	} else {
		receive_discard(session);
	}
}

void session_ended(struct nbd_session *session)
{
	session->end_of_stream = true;
	if (stream_is_idle(&session->stream)) {
		nbd_session_stream_idle(&session->stream);
	}
}

static void nbd_session_flushed(struct ring_op *op, int result)
{
	struct nbd_session *session = container_of(op, struct nbd_session, send_op);

	GMB_UNUSED(result); /* the next operation on the stream fails in the same way */
	if (session->base.state < SESSION_LINGERING) {
		/* requests that arrived during the flush are answered (P126) */
		session_mark_dirty(&session->base);
		session_drain_check(session);
	}
}

void session_drain_check(struct nbd_session *session)
{
	if (session->base.state < SESSION_LINGERING && list_is_empty(&session->requests) &&
		!session->size_asked && !session->send_op.in_flight &&
		!stream_flush(&session->stream, &session->send_op, nbd_session_flushed)) {
		linger(session);
	}
}

static bool join_requests(struct nbd_session *session)
{
	list_for_each(node, &session->requests)
	{
		struct nbd_request *request = list_entry(node, struct nbd_request, session_node);

		if (!request->started || path_is_idle(&request->path)) {
			request_end(request);
		}
	}
	return list_is_empty(&session->requests);
}

bool nbd_session_join(struct session *base)
{
	struct nbd_session *session = nbd_session_of(base);

	if (session->recv_op.in_flight || session->send_op.in_flight ||
		session->alive_op.in_flight || !stream_is_idle(&session->stream)) {
		return false;
	}
	GMB_ASSERT(session->sending == NULL);
	receive_release(session);
	return join_requests(session);
}

void nbd_session_close(struct session *base)
{
	struct nbd_session *session = nbd_session_of(base);

	handshake_end(session);
	handshake_tls_closed(session);
	free(session->told_choice);
	stream_close(&session->stream);
	free(session);
}
