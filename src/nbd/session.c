// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nbd/session.h"

/* How long a peer may take to close after us: longer while nobody is in a hurry. */
#define LINGER_NS	   UINT64_C(2000000000)
#define LINGER_DRAINING_NS UINT64_C(200000000)

/* The place of a client whose machine died is free again after two minutes. */
static const struct stream_keep_alive keep_alive = { .idle_s = 60, .interval_s = 15, .probes = 4 };

static const uint32_t session_edges[SESSION_STATE_COUNT] = {
	[SESSION_NEGOTIATING] =
		BIT(SESSION_READY) | BIT(SESSION_DRAINING) | BIT(SESSION_TERMINATING),
	[SESSION_READY] = BIT(SESSION_DRAINING) | BIT(SESSION_LINGERING) | BIT(SESSION_TERMINATING),
	[SESSION_DRAINING] = BIT(SESSION_LINGERING) | BIT(SESSION_TERMINATING),
	[SESSION_LINGERING] = BIT(SESSION_TERMINATING),
	[SESSION_TERMINATING] = 0, /* freed by session_join() */
};

void session_set_state(struct nbd_session *session, enum session_state state)
{
	struct nbd_service *service = session->service;

	GMB_ASSERT((session_edges[session->state] & BIT(state)) != 0);
	list_remove(&session->deadline_node);
	if (session->state == SESSION_NEGOTIATING) {
		service->counters.handshakes--;
	}
	session->state = state;
}

void session_mark_dirty(struct nbd_session *session)
{
	if (!list_is_linked(&session->dirty_node)) {
		list_push_back(&session->service->dirty, &session->dirty_node);
	}
}

static void member_end(struct takeover_member *member)
{
	session_terminate(container_of(member, struct nbd_session, member), NULL);
}

static void member_wake(struct takeover_member *member)
{
	struct nbd_session *session = container_of(member, struct nbd_session, member);

	if (session->state == SESSION_NEGOTIATING) {
		handshake_resume(session);
	}
}

void session_open(struct nbd_service *service, int fd, const char *peer)
{
	struct nbd_session *session = calloc(1, sizeof(*session));

	if (session == NULL) {
		log_error("client %s: out of memory for a connection: closed", peer);
		ring_socket_close(service->ring, fd);
		service->counters.sessions_refused++;
		if (service->options.session_closed != NULL) {
			service->options.session_closed(service->options.context);
		}
		return;
	}
	session->service = service;
	session->member = (struct takeover_member){
		.ring = service->ring,
		.end = member_end,
		.wake = member_wake,
	};
	stream_open(&session->stream, service->ring, fd, &keep_alive);
	session->rx_data = session->rx_small;
	session->rx_bytes = RX_SMALL_BYTES;
	list_init(&session->deadline_node);
	list_init(&session->dirty_node);
	list_init(&session->blocked_node);
	list_init(&session->ending_node);
	list_init(&session->requests);
	list_init(&session->sendable);
	snprintf(session->peer, sizeof(session->peer), "%s", peer);
	session->progress_ns = ring_now_ns(service->ring);
	session->deadline_ns = session->progress_ns + service->options.limits.handshake_timeout_ns;
	session->state = SESSION_NEGOTIATING;
	list_push_back(&service->sessions, &session->service_node);
	list_push_back(&service->handshakes, &session->deadline_node);
	service->counters.sessions_accepted++;
	service->counters.sessions++;
	service->counters.handshakes++;
	if (handshake_begin(session) < 0) {
		session_terminate(session, "out of memory for the handshake");
	}
}

/* --- the ways to end ----------------------------------------------------------------------- */

static void begin_termination(struct nbd_session *session)
{
	session_set_state(session, SESSION_TERMINATING);
	takeover_give_up(&session->member);
	list_remove(&session->blocked_node);
	list_remove(&session->dirty_node);
	list_push_back(&session->service->ending, &session->ending_node);
	stream_shutdown(&session->stream);
	list_for_each(node, &session->requests)
	{
		struct nbd_request *request = list_entry(node, struct nbd_request, session_node);

		if (request->started) {
			(void)path_abandon(&request->path);
		}
	}
}

static void log_end(struct nbd_session *session, const char *what)
{
	struct nbd_service *service = session->service;
	uint32_t suppressed = 0;

	if (log_limit_pass(&service->log_limit, ring_batch_ns(service->ring), &suppressed)) {
		if (suppressed > 0) {
			log_warning("(%u similar lines about clients were left out)", suppressed);
		}
		log_warning("client %s: connection ended: %s", session->peer, what);
	}
}

void session_terminate(struct nbd_session *session, const char *reason)
{
	if (session->state == SESSION_TERMINATING) {
		return;
	}
	if (reason != NULL) {
		session->service->counters.sessions_failed++;
		log_end(session, reason);
	}
	begin_termination(session);
}

void session_fail(struct nbd_session *session, const char *rule, const char *format, ...)
{
	char text[256];
	char reason[sizeof(text) + 64];
	va_list args;

	if (session->state == SESSION_TERMINATING) {
		return;
	}
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	snprintf(reason, sizeof(reason), "it broke NBD rule %s: %s", rule, text);
	session_terminate(session, reason);
}

void session_drain(struct nbd_session *session)
{
	GMB_ASSERT(session->state == SESSION_READY);
	session_set_state(session, SESSION_DRAINING);
	session_drain_check(session);
}

void session_stop(struct nbd_session *session)
{
	if (session->state == SESSION_NEGOTIATING) {
		/* Options are answered with ERR_SHUTDOWN from now on (P18). */
		session->deadline_ns = MIN(session->deadline_ns,
			ring_now_ns(session->service->ring) + UINT64_C(1000000000));
	} else {
		/* Later requests get ESHUTDOWN until the last reply is out (P126). */
		session_drain_check(session);
	}
}

/*
 * Everything is answered. Closing now, with something of the peer's unread, would make the kernel
 * reset the connection, and a reset can overtake the last replies: so say that nothing more comes,
 * and close when the peer has done the same, or has had time to.
 */
static void linger(struct nbd_session *session)
{
	struct nbd_service *service = session->service;

	session_set_state(session, SESSION_LINGERING);
	list_remove(&session->blocked_node);
	if (session->end_of_stream) {
		begin_termination(session);
		return;
	}
	stream_shutdown_send(&session->stream);
	session->deadline_ns =
		ring_now_ns(service->ring) + (service->draining ? LINGER_DRAINING_NS : LINGER_NS);
	list_push_back(&service->lingering, &session->deadline_node);
	service_timer_arm(service);
	receive_discard(session);
}

void session_drain_check(struct nbd_session *session)
{
	bool ending = session->state == SESSION_DRAINING ||
		      (session->state == SESSION_READY && session->service->draining);

	if (ending && list_is_empty(&session->requests) && !session->send_op.in_flight) {
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

bool session_join(struct nbd_session *session)
{
	struct nbd_service *service = session->service;

	GMB_ASSERT(session->state == SESSION_TERMINATING);
	if (session->recv_op.in_flight || session->send_op.in_flight ||
		!stream_is_idle(&session->stream)) {
		return false;
	}
	GMB_ASSERT(session->sending == NULL);
	receive_release(session);
	if (!join_requests(session)) {
		return false;
	}
	GMB_ASSERT(session->inflight_count == 0 && session->held_bytes == 0);
	takeover_leave(&session->member);
	if (!takeover_may_go(&session->member)) {
		return false;
	}
	handshake_end(session);
	if (session->export != NULL) {
		atomic_fetch_sub_explicit(&session->export->connections, 1, memory_order_relaxed);
	}
	list_remove(&session->ending_node);
	list_remove(&session->service_node);
	list_remove(&session->dirty_node);
	stream_close(&session->stream);
	free(session);
	service->counters.sessions--;
	if (service->options.session_closed != NULL) {
		service->options.session_closed(service->options.context);
	}
	return true;
}
