// SPDX-License-Identifier: Apache-2.0
#include "echo_kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct echo_session {
	struct session base;
	struct stream stream;
	struct ring_op recv_op;
	struct ring_op send_op;
	bool discards;
	bool has_request; /* bytes of data are one that has begun */
	uint32_t bytes;	  /* in data */
	uint32_t sent;	  /* of them */
	struct iovec iov;
	struct msghdr message;
	uint8_t data[4096];
};

static void received(struct ring_op *op, int result);

static struct echo_session *of(struct session *base)
{
	return container_of(base, struct echo_session, base);
}

static void receive(struct echo_session *session)
{
	stream_receive(&session->stream, &session->recv_op, session->data, sizeof(session->data),
		false, received);
}

static void echo_drain(struct session *base)
{
	if (base->state == SESSION_READY && !of(base)->has_request) {
		stream_shutdown_send(&of(base)->stream);
		session_linger(base);
	}
}

static void end_request(struct echo_session *session)
{
	session->has_request = false;
	engine_request_end(&session->base);
	receive(session);
	if (session->base.stopping) {
		echo_drain(&session->base);
	}
}

static void sent(struct ring_op *op, int result)
{
	struct echo_session *session = container_of(op, struct echo_session, send_op);

	if (session->base.state == SESSION_TERMINATING) {
		return;
	}
	if (result < 0 && result != -EINTR) {
		session_terminate(&session->base, NULL);
		return;
	}
	session->sent += result > 0 ? (uint32_t)result : 0;
	session->base.progress_ns = ring_batch_ns(session->base.engine->ring);
	if (session->sent < session->bytes) {
		session_mark_dirty(&session->base);
	} else if (session->has_request) {
		session->base.engine->counters.bytes_read += session->bytes;
		end_request(session);
	} else { /* the greeting */
		receive(session);
	}
}

static void echo_flush(struct session *base, bool alone)
{
	struct echo_session *session = of(base);

	session->iov.iov_base = session->data + session->sent;
	session->iov.iov_len = session->bytes - session->sent;
	session->message = (struct msghdr){ .msg_iov = &session->iov, .msg_iovlen = 1 };
	stream_send(&session->stream, &session->send_op, &session->message, sent);
}

/* What was received is a request as soon as there is a place for it. */
static void echo_resume(struct session *base)
{
	struct echo_session *session = of(base);

	if (!engine_request_may(base)) {
		return;
	}
	engine_request_begin(base);
	session->has_request = true;
	if (session->discards) {
		base->engine->counters.bytes_written += session->bytes;
		end_request(session);
	} else {
		session->sent = 0;
		session_mark_dirty(base);
	}
}

static void received(struct ring_op *op, int result)
{
	struct echo_session *session = container_of(op, struct echo_session, recv_op);
	struct session *base = &session->base;

	if (base->state == SESSION_TERMINATING) {
		return;
	}
	if (result <= 0 && result != -EINTR && result != -EAGAIN) {
		session_terminate(base, NULL);
		return;
	}
	base->progress_ns = ring_batch_ns(base->engine->ring);
	if (result < 0 || base->state == SESSION_LINGERING) {
		receive(session);
		return;
	}
	session->bytes = (uint32_t)result;
	if (base->state == SESSION_NEGOTIATING) {
		session->discards = session->data[0] == 'd';
		if (!session->discards && session->data[0] != 'e') {
			session_terminate(base, "it asked for neither echo nor discard");
			return;
		}
		session_set_state(base, SESSION_READY);
	}
	echo_resume(base);
}

static int echo_accept(void *service, const struct endpoint *endpoint)
{
	static const struct stream_keep_alive keep_alive = { 60, 15, 4 };
	struct echo_session *session = calloc(1, sizeof(*session));
	struct engine *engine = service;

	if (session == NULL) {
		return -ENOMEM;
	}
	stream_open(&session->stream, engine->ring, endpoint->fd, &keep_alive);
	session_init(&session->base, engine, endpoint);
	session->bytes = (uint32_t)snprintf((char *)session->data, sizeof(session->data),
		"uid %lld\n",
		endpoint->peer.has_credentials ? (long long)endpoint->peer.credentials.uid : -1);
	session_mark_dirty(&session->base);
	return 0;
}

static bool echo_stalled(struct session *base)
{
	return of(base)->has_request && of(base)->send_op.in_flight;
}

static void echo_abort(struct session *base)
{
	stream_shutdown(&of(base)->stream);
}

static bool echo_join(struct session *base)
{
	struct echo_session *session = of(base);

	if (session->recv_op.in_flight || session->send_op.in_flight ||
		!stream_is_idle(&session->stream)) {
		return false;
	}
	if (session->has_request) {
		session->has_request = false;
		engine_request_end(base);
	}
	return true;
}

static void echo_close(struct session *base)
{
	stream_close(&of(base)->stream);
	free(of(base));
}

static const char *const schemes[] = { "echo+unix", NULL };

const struct session_kind echo_session_kind = {
	.name = "echo",
	.schemes = schemes,
	.accept = echo_accept,
	.resume = echo_resume,
	.flush = echo_flush,
	.drain = echo_drain,
	.stalled = echo_stalled,
	.abort = echo_abort,
	.join = echo_join,
	.close = echo_close,
};
