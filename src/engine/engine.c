// SPDX-License-Identifier: Apache-2.0
#include "engine/handover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/clients.h"
#include "engine/lease.h"

void engine_limits_default(struct engine_limits *limits)
{
	*limits = (struct engine_limits){
		.sessions_max = ENGINE_SESSIONS_MAX,
		.handshakes_max = ENGINE_HANDSHAKES_MAX,
		.handshake_timeout_ns = ENGINE_HANDSHAKE_TIMEOUT_NS,
		.inflight_per_session_max = ENGINE_INFLIGHT_PER_SESSION_MAX,
		.inflight_max = ENGINE_INFLIGHT_MAX,
		.payload_bytes_max = ENGINE_PAYLOAD_BYTES_MAX,
		.memory_bytes_max = ENGINE_MEMORY_BYTES_MAX,
		.engine_count = 1,
		.stall_timeout_ns = ENGINE_STALL_TIMEOUT_NS,
		.may_spin = true,
	};
}

#define SERVER(field, ...) COUNTER(struct engine_counters, field, __VA_ARGS__)

static const struct counter engine_counter_list[] = {
	SERVER(sessions, NOW, ITEMS, "connections", "Open connections"),
	SERVER(handshakes, NOW, ITEMS, "handshakes",
		"Connections that have not chosen an export yet"),
	SERVER(inflight, NOW, ITEMS, "inflight", "Requests in flight",
		.metric = "requests_in_flight"),
	SERVER(sessions_accepted, TOTAL, ITEMS, "connections_accepted", "Connections accepted"),
	SERVER(sessions_refused, TOTAL, ITEMS, "connections_refused",
		"Connections rejected because of a limit"),
	SERVER(sessions_failed, TOTAL, ITEMS, "connections_failed",
		"Connections ended by a network or client error", .metric = "connections_broken",
		.labels = "reason=\"error\"",
		.family = "Connections that the server ended, by reason"),
	SERVER(sessions_idle, TOTAL, ITEMS, "connections_idle",
		"Connections ended by the idle timeout", .metric = "connections_broken",
		.labels = "reason=\"idle\""),
	SERVER(sessions_adopted, TOTAL, ITEMS, "connections_taken_over",
		"Connections taken over from the previous process in an upgrade"),
	SERVER(requests, TOTAL, ITEMS, "requests", "Requests received",
		.metric = "requests_received"),
	SERVER(errors, TOTAL, ITEMS, "errors",
		"Requests answered with an error, including those refused before they reached a "
		"disk",
		.metric = "error_replies"),
	SERVER(polls, TOTAL, ITEMS, "polls",
		"Polls that found no request or completion, while a thread polled instead of "
		"sleeping"),
	SERVER(place_waits, TOTAL, ITEMS, "place_waits",
		"Requests that waited because the limit on requests in flight was reached"),
	SERVER(identity_memory_waits, TOTAL, ITEMS, "identity_memory_waits",
		"Times a client waited because the client's identity had reached its limit on "
		"payload memory"),
	SERVER(bytes_read, TOTAL, BYTES, "bytes_read", "Data sent to clients",
		.metric = "payload_bytes", .labels = "direction=\"sent\"",
		.family = "Payload sent to and received from clients"),
	SERVER(bytes_written, TOTAL, BYTES, "bytes_written",
		"Data received from clients and written", .metric = "payload_bytes",
		.labels = "direction=\"received\""),
	SERVER(bytes_copied[COPY_REFLINK], TOTAL, BYTES, "bytes_copied_reflink",
		"Data copied within the server by sharing blocks of files",
		.metric = "copied_bytes", .labels = "method=\"reflink\"",
		.family = "Data copied within the server, by method"),
	SERVER(bytes_copied[COPY_RANGE], TOTAL, BYTES, "bytes_copied_range",
		"Data copied within the server by the kernel", .metric = "copied_bytes",
		.labels = "method=\"range\""),
	SERVER(bytes_copied[COPY_DEVICE], TOTAL, BYTES, "bytes_copied_device",
		"Data copied within the server through the memory of a device",
		.metric = "copied_bytes", .labels = "method=\"device\""),
	SERVER(bytes_copied[COPY_RAM], TOTAL, BYTES, "bytes_copied_ram",
		"Data copied within the server through the server's memory",
		.metric = "copied_bytes", .labels = "method=\"ram\""),
	SERVER(bytes_copied[COPY_ZEROES], TOTAL, BYTES, "bytes_copied_zeroes",
		"Holes copied within the server", .metric = "copied_bytes",
		.labels = "method=\"zeroes\""),
	SERVER(push_tickets, TOTAL, ITEMS, "push_tickets", "Push tickets issued",
		.labels = "result=\"made\"",
		.family = "Push tickets issued by this server, or presented to it and rejected"),
	SERVER(push_refusals, TOTAL, ITEMS, "push_tickets_refused",
		"Presented push tickets that were not valid", .metric = "push_tickets",
		.labels = "result=\"refused\""),
	SERVER(pushes_done, TOTAL, ITEMS, "pushes_done",
		"Pushes completed, as source or destination", .metric = "pushes",
		.labels = "result=\"done\"",
		.family = "Finished pushes, as source or destination, by result"),
	SERVER(pushes_failed, TOTAL, ITEMS, "pushes_failed",
		"Pushes that failed or were cancelled, as source or destination",
		.metric = "pushes", .labels = "result=\"failed\""),
	SERVER(push_resent, TOTAL, ITEMS, "push_pieces_resent",
		"Pieces that were sent again after the loss of one of the connections of a push"),
	SERVER(tls_sessions, NOW, ITEMS, "tls_connections", "Connections with TLS"),
	SERVER(tls_sessions_kernel, NOW, ITEMS, "tls_connections_kernel",
		"Connections whose TLS records are handled by the kernel"),
	SERVER(tls_sessions_1_2, NOW, ITEMS, "tls_connections_1_2", "Connections with TLS 1.2"),
	SERVER(tls_upgrading, NOW, ITEMS, "tls_handshakes_waiting",
		"TLS handshakes in progress or waiting for a free slot"),
	SERVER(tls_handshakes, TOTAL, ITEMS, "tls_handshakes", "TLS handshakes that succeeded",
		.labels = "result=\"done\"", .family = "TLS handshakes, by result"),
	SERVER(tls_failed, TOTAL, ITEMS, "tls_handshakes_failed", "TLS handshakes that failed",
		.metric = "tls_handshakes", .labels = "result=\"failed\""),
	SERVER(tls_refused, TOTAL, ITEMS, "tls_handshakes_refused",
		"TLS handshakes rejected at the handshake limit", .metric = "tls_handshakes",
		.labels = "result=\"refused\""),
	SERVER(tls_failures[ENGINE_TLS_CLIENT_REFUSED], TOTAL, ITEMS, "tls_failures_client_refused",
		"Failed TLS handshakes: the client's certificate or key was not accepted",
		.metric = "tls_failures", .labels = "reason=\"client_refused\"",
		.family = "Failed TLS handshakes, by reason"),
	SERVER(tls_failures[ENGINE_TLS_SERVER_REFUSED], TOTAL, ITEMS, "tls_failures_server_refused",
		"Failed TLS handshakes: the client did not accept the server's credentials",
		.metric = "tls_failures", .labels = "reason=\"server_refused\""),
	SERVER(tls_failures[ENGINE_TLS_PROTOCOL], TOTAL, ITEMS, "tls_failures_protocol",
		"Failed TLS handshakes: no TLS, or no common version or cipher",
		.metric = "tls_failures", .labels = "reason=\"protocol\""),
	SERVER(tls_failures[ENGINE_TLS_CONNECTION], TOTAL, ITEMS, "tls_failures_connection",
		"Failed TLS handshakes: the connection ended, or the time limit expired",
		.metric = "tls_failures", .labels = "reason=\"connection\""),
	SERVER(tls_failures[ENGINE_TLS_OTHER], TOTAL, ITEMS, "tls_failures_other",
		"Failed TLS handshakes: no memory or no thread", .metric = "tls_failures",
		.labels = "reason=\"other\""),
};

const struct counter_table engine_counter_table = { "server", "", "", engine_counter_list,
	ARRAY_COUNT(engine_counter_list) };

/* --- end of a batch: work that callbacks have deferred --------------------------------------- */

/* Lets the next part of this turn (one round of the event loop) start up to ENGINE_TURN_REQUESTS
 * requests. */
static void engine_turn_part(struct engine *engine)
{
	engine->turn_requests_max = engine->counters.requests + ENGINE_TURN_REQUESTS;
}

static void resume_blocked(struct engine *engine)
{
	struct turns_round round;
	struct turn *turn;

	turns_round_init(&round);
	engine_turn_part(engine);
	while (!engine_turn_is_full(engine) && (turn = turns_next(&engine->blocked)) != NULL) {
		struct session *session = container_of(turn, struct session, blocked_turn);

		/* Each session owns one request slot. A request that starts in this slot does not
		 * use up the session's turn in the queue. */
		uint32_t before = MAX(session->inflight_count, 1U);
		bool waits = true;

		if (engine_has_place(session)) {
			session->kind->resume(session);
			waits = turn_is_waiting(turn);
		}
		if (session->inflight_count > before) {
			turns_had(&engine->blocked, turn, &round);
		} else if (waits) {
			turns_in_vain(turn, &round);
		}
	}
	turns_end(&engine->blocked, &round);
	engine->limits_released |= engine_turn_is_full(engine);
}

/* Lets sessions send replies, up to ENGINE_TURN_BYTES in total. Takes sessions from both lists
 * alternately, so that the reply of a sparse session does not wait for the replies of all other
 * sessions. The sessions that remain are first in the next batch. */
static void flush_dirty(struct engine *engine)
{
	struct list_node *lists[] = { &engine->dirty_sparse, &engine->dirty };
	bool alone = list_is_empty(lists[1])
			     ? lists[0]->next == lists[0]->prev
			     : list_is_empty(lists[0]) && lists[1]->next == lists[1]->prev;
	uint32_t empty = 0; /* lists that were found empty one after the other */

	for (uint32_t i = 0; empty < 2 && engine->turn_bytes < ENGINE_TURN_BYTES; i ^= 1) {
		struct list_node *node = list_pop_front(lists[i]);

		empty = node != NULL ? 0 : empty + 1;
		if (node != NULL) {
			struct session *session = list_entry(node, struct session, dirty_node);

			session->kind->flush(session, alone);
		}
	}
}

static void finish_drain(struct engine *engine)
{
	void (*drained)(void *context) = engine->drained;

	engine->drained = NULL;
	if (engine->timer.in_flight) {
		ring_cancel(engine->ring, &engine->timer);
	}
	rate_room_stop(&engine->rates);
	drained(engine->drained_context);
}

/* Closes and frees a session if it has no operation in flight, and returns whether it did. Called
 * only at the end of a batch, so that no callback still uses the session. */
static bool engine_join(struct session *session)
{
	struct engine *engine = session->engine;
	struct engine_export *chosen = session->chosen;
	struct export *takeover_export = session->takeover_export;
	struct peer peer = session->peer;
	bool is_part = session->is_part;

	GMB_ASSERT(session->state == SESSION_TERMINATING);
	if (!session->kind->join(session)) {
		return false;
	}
	GMB_ASSERT(session->inflight_count == 0);
	session_lease_leave(session); /* from now on no other session ends this one */
	/* Wakes the connections that replace this one. If a message to this session is still in
	 * flight, the session is freed later. */
	takeover_leave(&session->member);
	if (!takeover_may_go(&session->member)) {
		return false;
	}
	list_remove(&session->ending_node);
	list_remove(&session->node);
	list_remove(&session->dirty_node);
	list_remove(&session->review_node);
	if (session->was_ready && !session->handed_over) {
		session_log(session, "has left");
	}
	path_client_fini(&session->client);
	engine_client_leave(session);
	engine_node_leave(session);
	session_rates_leave(session);
	engine_peer_put(session->of_peer);
	session->kind->close(session);
	if (is_part) {
		engine_export_leave(engine, chosen);
		engine->part_count--;
		return true;
	}
	if (chosen != NULL) {
		atomic_fetch_sub_explicit(&chosen->export->connections, 1, memory_order_relaxed);
		engine_export_leave(engine, chosen);
	}
	if (takeover_export != NULL) {
		export_put_async(takeover_export, engine);
	}
	engine->counters.sessions--;
	if (engine->options.endpoint_closed != NULL) {
		engine->options.endpoint_closed(engine->options.context, &peer);
	}
	identity_put(peer.proved);
	return true;
}

/* Closes and frees the ending sessions that have no operation in flight. Returns true if a session
 * was freed. */
static bool join_ending(struct engine *engine)
{
	bool joined = false;

	list_for_each(node, &engine->ending)
	{
		joined |= engine_join(list_entry(node, struct session, ending_node));
	}
	return joined;
}

static void engine_again_done(struct ring_op *op, int result)
{
	GMB_UNUSED(op); /* the work is done at the end of the batch */
}

/*
 * Starts another turn if there is more work: a freed session or an ended request can release
 * resources for which another session waits, and there might be no other event on this ring. The
 * work is not done in the current turn, so that completions do not have to wait for all of it.
 */
static void engine_go_on(struct engine *engine, bool joined)
{
	bool can_resume = engine->limits_released && !turns_are_empty(&engine->blocked);

	engine->goes_on = joined || can_resume || path_is_to_serve(engine->path) ||
			  !list_is_empty(&engine->dirty_sparse) || !list_is_empty(&engine->dirty);
	if (engine->goes_on && !engine->again.in_flight) {
		ring_defer(engine->ring, &engine->again, 0, engine_again_done);
	}
}

/* Called at the end of each batch: does a limited share of the work that waits. If more work is
 * left, the engine asks for another turn. The ring can run such a turn without a system call, and
 * then the operations of the last share have not been submitted yet. So the next share begins only
 * after a system call, because otherwise one system call would get the operations of several
 * shares. */
static void engine_batch_end(struct ring_batch_end *end)
{
	struct engine *engine = container_of(end, struct engine, batch_end);
	bool released = engine->limits_released;
	uint64_t enters = engine->waiter.counters->enters;
	bool begins = !engine->goes_on || enters != engine->turn_enters;
	bool joined;

	engine->turn_enters = enters;
	if (begins) {
		/* Cleared before the work, so that a release during the work causes another
		 * turn. */
		engine->limits_released = false;
		engine->turn_bytes = 0;
		path_serve(engine->path);
		if (released && !turns_are_empty(&engine->blocked)) {
			resume_blocked(engine);
		}
	}
	flush_dirty(engine);
	joined = !list_is_empty(&engine->ending) && join_ending(engine);
	engine_go_on(engine, joined);
	if (begins) {
		engine_turn_part(engine);
	}
	if (path_is_short(engine->path)) {
		engine_timer_arm(engine);
	}
	ring_waiter_turn(&engine->waiter, engine->counters.requests, path_is_slow(engine->path));
	if (engine->drained != NULL && engine->counters.sessions + engine->part_count == 0) {
		finish_drain(engine);
	}
}

/* --- deadlines ----------------------------------------------------------------------------- */

/* Ends the sessions of a list whose deadline has passed; the list is sorted by deadline. reason:
 * for the log; NULL: not logged. */
static void engine_expire(struct list_node *sessions, uint64_t now_ns, const char *reason)
{
	struct list_node *node;

	while ((node = list_first(sessions)) != NULL) {
		struct session *session = list_entry(node, struct session, deadline_node);

		if (session->deadline_ns > now_ns) {
			return;
		}
		session_terminate(session, reason);
	}
}

/* Returns the earliest deadline of a list; UINT64_MAX for an empty list. */
static uint64_t first_deadline_ns(const struct list_node *sessions)
{
	struct list_node *oldest = list_first(sessions);

	return oldest == NULL ? UINT64_MAX
			      : list_entry(oldest, struct session, deadline_node)->deadline_ns;
}

/* Ends stalled sessions that hold memory for which others wait. A peer that neither sends nor
 * receives must not block other sessions. */
static void expire_stalls(struct engine *engine, uint64_t now_ns)
{
	if (!path_is_short(engine->path)) {
		return;
	}
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (session->state != SESSION_TERMINATING && session->kind->stalled != NULL &&
			now_ns - session->progress_ns >= engine->limits.stall_timeout_ns &&
			path_client_is_wanted(&session->client) &&
			session->kind->stalled(session)) {
			session_terminate(session, "the client made no progress while it held "
						   "memory that others waited for");
		}
	}
}

/* Ends sessions that are draining and have not finished in time. */
static void expire_stopping(struct engine *engine, uint64_t now_ns)
{
	if (now_ns < engine->stop_due_ns) {
		return;
	}
	engine->stop_due_ns = UINT64_MAX;
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (!session->stopping) {
			continue;
		}
		if (session->stop_deadline_ns <= now_ns) {
			session->overdue = true;
			session_terminate(
				session, engine->draining ? "the client's requests did not finish "
							    "before the server stopped"
					 : session->chosen != NULL && session->chosen->removed
						 ? "the client's requests did not finish before "
						   "the export was removed"
						 : "the client's requests did not finish in time "
						   "after it lost its rights");
			/* Now the session only waits until the kernel completes its operations. */
			session->stop_deadline_ns = now_ns + ENGINE_STOP_LOOK_NS;
		}
		engine->stop_due_ns = MIN(engine->stop_due_ns, session->stop_deadline_ns);
	}
}

/* Ends the session if it has been idle for the whole timeout. Otherwise lowers *due_ns to the
 * earliest time at which its timeout can expire. */
static void expire_if_idle(struct session *session, uint64_t now_ns, uint64_t *due_ns)
{
	struct engine *engine = session->engine;
	uint64_t idle_ns = session->progress_ns + engine->limits.idle_timeout_ns;

	if (session->state != SESSION_READY || session->inflight_count > 0 ||
		session_waits_to_move(session)) {
		return; /* not idle: it will make progress later */
	}
	if (idle_ns > now_ns) {
		*due_ns = MIN(*due_ns, idle_ns);
		return;
	}
	if (session->kind->peer_receives != NULL && session->kind->peer_receives(session)) {
		session->progress_ns = now_ns;
		return;
	}
	engine->counters.sessions_idle++;
	session_log(session, "reached the idle timeout and is disconnected from");
	session_terminate(session, NULL);
}

/* Ends idle sessions, and schedules the next check. A session that becomes idle after this check
 * cannot reach its timeout before the next one, which is at most one timeout later. */
static void expire_idle(struct engine *engine, uint64_t now_ns)
{
	uint64_t timeout_ns = engine->limits.idle_timeout_ns;
	uint64_t due_ns = now_ns + timeout_ns;

	if (timeout_ns == 0 || now_ns < engine->idle_due_ns) {
		return;
	}
	list_for_each(node, &engine->sessions)
	{
		expire_if_idle(list_entry(node, struct session, node), now_ns, &due_ns);
	}
	engine->idle_due_ns = MAX(due_ns, now_ns + timeout_ns / ENGINE_IDLE_LOOKS);
}

static void engine_timer_done(struct ring_op *op, int result)
{
	struct engine *engine = container_of(op, struct engine, timer);
	uint64_t now_ns = ring_now_ns(engine->ring);

	GMB_UNUSED(result); /* the timer has expired or was cancelled; both cause a check */
	engine_expire(
		&engine->handshakes, now_ns, "no export was chosen within the handshake timeout");
	engine_expire(&engine->lingering, now_ns, NULL);
	expire_stalls(engine, now_ns);
	expire_stopping(engine, now_ns);
	expire_idle(engine, now_ns);
	engine_timer_arm(engine);
}

void engine_timer_arm(struct engine *engine)
{
	uint64_t now_ns = ring_batch_ns(engine->ring);
	uint64_t lingering_ns = first_deadline_ns(&engine->lingering);
	uint64_t when_ns = first_deadline_ns(&engine->handshakes);

	when_ns = MIN(when_ns, lingering_ns);
	if (path_is_short(engine->path)) {
		when_ns = MIN(when_ns, now_ns + ENGINE_STALL_LOOK_NS);
	}
	if (engine->counters.sessions > 0) {
		when_ns = MIN(when_ns, engine->stop_due_ns);
		if (engine->limits.idle_timeout_ns > 0) {
			when_ns = MIN(when_ns, engine->idle_due_ns);
		}
	}
	if (when_ns == UINT64_MAX) {
		return; /* no deadline: an idle server sleeps without a timer */
	}
	if (engine->timer.in_flight) {
		if (when_ns < engine->timer_due_ns) {
			engine->timer_due_ns = when_ns;
			/* the timer completes now; engine_timer_done() then arms the earlier
			 * deadline */
			ring_cancel(engine->ring, &engine->timer);
		}
		return;
	}
	engine->timer_due_ns = when_ns;
	ring_timer(engine->ring, &engine->timer, when_ns > now_ns ? when_ns - now_ns : 1,
		engine_timer_done);
}

/* --- sessions ------------------------------------------------------------------------------ */

static void engine_refuse(struct engine *engine, const struct endpoint *endpoint)
{
	engine->counters.sessions_refused++;
	if (endpoint->fd >= 0) {
		ring_socket_close(engine->ring, endpoint->fd);
	}
	if (engine->options.endpoint_closed != NULL) {
		engine->options.endpoint_closed(engine->options.context, &endpoint->peer);
	}
}

void *engine_service(const struct engine *engine, const struct session_kind *kind)
{
	uint32_t i = 0;

	while (i < engine->service_count && engine->options.kinds[i] != kind) {
		i++;
	}
	GMB_ASSERT(i < engine->service_count);
	return engine->services[i];
}

/* Returns the peer's session with the least progress; among several, the oldest. */
static struct session *newcomer_to_end(const struct engine_peer *peer)
{
	struct list_node *oldest = NULL;

	for (int i = 0; oldest == NULL && i < NEWCOMER_COUNT; i++) {
		oldest = list_first(&peer->newcomers[i]);
	}
	GMB_ASSERT(oldest != NULL);
	return list_entry(oldest, struct session, handshake_node);
}

/* Returns the handshake to end in favour of a new one. It belongs to the peer with the most
 * handshakes, with the new one included. Among several, it is the one with the least progress, and
 * among those the oldest. */
static struct session *handshake_to_end(const struct engine *engine)
{
	struct session *found = NULL;
	uint32_t most = 0;

	list_for_each(node, &engine->peers)
	{
		const struct engine_peer *peer = list_entry(node, struct engine_peer, node);
		uint32_t count = peer->handshake_count + (peer == engine->accepted_peer);
		struct session *session;

		if (peer->handshake_count == 0 || count < most) {
			continue;
		}
		session = newcomer_to_end(peer);
		if (found == NULL || count > most ||
			(session->newcomer == found->newcomer
					? session->deadline_ns < found->deadline_ns
					: session->newcomer < found->newcomer)) {
			found = session;
			most = count;
		}
	}
	return found;
}

/* Creates a session for a connection. record: the session's state from another process; NULL: a new
 * connection. */
static void begin_session(
	struct engine *engine, const struct endpoint *endpoint, const struct session_record *record)
{
	const struct session_kind *kind = endpoint->kind;
	void *service = engine_service(engine, kind);
	int rc = -ENOMEM;

	if (engine->draining || engine->counters.sessions >= engine->limits.sessions_max) {
		engine_refuse(engine, endpoint);
		return;
	}
	engine->accepted_peer = engine_peer_get(engine, &endpoint->peer.identity);
	/* A flood of silent connections must not lock out clients that complete the handshake.
	 * Sessions from another process are not limited. */
	if (record == NULL && engine->counters.handshakes >= engine->limits.handshakes_max) {
		session_terminate(
			handshake_to_end(engine), "too many connections in the handshake");
	}
	if (engine->accepted_peer != NULL) {
		rc = record != NULL ? kind->adopt(service, endpoint, record)
				    : kind->accept(service, endpoint);
	}
	if (engine->accepted_peer != NULL) {
		engine_peer_put(engine->accepted_peer);
	}
	if (rc < 0) {
		log_error("client %s: connection closed: %s", endpoint->peer.text, strerror(-rc));
		engine_refuse(engine, endpoint);
		return;
	}
	engine->counters.sessions_adopted += record != NULL;
	engine_timer_arm(engine);
}

void engine_accept(struct engine *engine, const struct endpoint *endpoint)
{
	begin_session(engine, endpoint, NULL);
}

void engine_adopt(
	struct engine *engine, const struct endpoint *endpoint, const struct session_record *record)
{
	GMB_ASSERT(engine->paused);
	begin_session(engine, endpoint, record);
}

int engine_listen(struct engine *engine, const struct session_kind *kind, struct export_uri *uri,
	const struct engine_door *door, void **listener_out, struct error *error)
{
	return kind->listen(engine_service(engine, kind), uri, door, listener_out, error);
}

void engine_listen_end(struct engine *engine, const struct session_kind *kind, void *listener)
{
	kind->listen_end(engine_service(engine, kind), listener);
}

void engine_stop_session(struct session *session, uint64_t deadline_ns)
{
	struct engine *engine = session->engine;
	uint64_t now_ns = ring_now_ns(engine->ring);

	if (session->state == SESSION_TERMINATING && !engine->draining) {
		return;
	}
	session->stop_deadline_ns = session->stopping
					    ? MIN(session->stop_deadline_ns, now_ns + deadline_ns)
					    : now_ns + deadline_ns;
	engine->stop_due_ns = MIN(engine->stop_due_ns, session->stop_deadline_ns);
	/* Shorten the handshake's deadline only if all sessions stop, so that the list remains
	 * sorted by deadline. */
	if (engine->draining && session->state == SESSION_NEGOTIATING) {
		session->deadline_ns =
			MIN(session->deadline_ns, now_ns + ENGINE_HANDSHAKE_STOPPING_NS);
	}
	if (session->state == SESSION_TERMINATING) {
		session->stopping = true;
	} else if (!session->stopping) {
		session->stopping = true;
		if (session->state == SESSION_READY && session_waits_to_move(session)) {
			/* reject the request that waits */
			rate_give_up(&session->rate);
			list_remove(&session->barred_node);
			session->kind->resume(session);
		}
		session->kind->drain(session);
	}
	engine_timer_arm(engine);
}

void engine_drain(
	struct engine *engine, uint64_t deadline_ns, void (*drained)(void *context), void *context)
{
	GMB_ASSERT(!engine->draining);
	engine->draining = true;
	engine->drained = drained;
	engine->drained_context = context;
	list_for_each(node, &engine->sessions)
	{
		engine_stop_session(list_entry(node, struct session, node), deadline_ns);
	}
	if (engine->timer.in_flight) {
		/* the timer completes now and checks the deadlines */
		ring_cancel(engine->ring, &engine->timer);
	}
}

/* --- use of the ring by others --------------------------------------------------------------- */

void engine_hold(struct engine *engine)
{
	engine->closing_count++;
}

void engine_release(struct engine *engine)
{
	GMB_ASSERT(engine->closing_count > 0);
	engine->closing_count--;
}

/* --- reviews ------------------------------------------------------------------------------- */

static void review_post(struct engine *engine)
{
	if (!engine->review_posted) {
		engine->review_posted = true;
		ring_post(engine->ring, &engine->review_message);
	}
}

static void review_deliver(struct ring *ring, struct ring_message *message)
{
	struct engine *engine = container_of(message, struct engine, review_message);
	const struct engine_review *review = &engine->review;
	struct list_node *node = list_pop_front(&engine->to_review);
	struct session *session =
		node != NULL ? list_entry(node, struct session, review_node) : NULL;

	engine->review_posted = false;
	if (session != NULL && !session->stopping && session->state != SESSION_TERMINATING &&
		!review->may_stay(review->context, session)) {
		engine->review_ended++;
		engine_stop_session(session, review->deadline_ns);
	}
	if (!list_is_empty(&engine->to_review)) {
		review_post(engine);
	} else if (engine->reviewing) {
		engine->reviewing = false;
		review->done(review->context, review->number, engine->review_ended);
		engine->review_ended = 0;
	}
}

void engine_review(struct engine *engine, const struct engine_review *review)
{
	GMB_ASSERT(review->number >= engine->review.number);
	engine->review = *review;
	engine->reviewing = true;
	engine->review_ended += engine_export_rights(engine, NULL);
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (session->peer.proved != NULL) {
			list_remove(&session->review_node);
			list_push_back(&engine->to_review, &session->review_node);
		}
	}
	review_post(engine);
}

/* --- life ---------------------------------------------------------------------------------- */

static int create_memory(struct engine *engine, struct error *error)
{
	struct path_options path_options = { .ring = engine->ring,
		.device = engine->options.device,
		.device_waits = engine->options.device_waits };
	int rc = arena_ram_create(
		engine->ring, engine->limits.memory_bytes_max, &engine->arena, error);
	uint64_t sessions_max; /* with parts */

	if (rc < 0) {
		return rc;
	}
	engine->limits.sessions_max = MIN(
		engine->limits.sessions_max, engine_sessions_max(engine->limits.memory_bytes_max));
	sessions_max = engine->limits.sessions_max;
	if (engine->options.part_engine != NULL) {
		sessions_max += engine_parts_max(&engine->limits);
	}
	arena_reserve(engine->arena, sessions_max * PATH_RESERVE_BYTES);
	path_options.ram = engine->arena;
	return path_create(&path_options, &engine->path, error);
}

static int create_services(struct engine *engine, struct error *error)
{
	while (engine->service_count < engine->options.kind_count) {
		const struct session_kind *kind = engine->options.kinds[engine->service_count];
		void **service = &engine->services[engine->service_count];
		int rc;

		GMB_ASSERT((kind->create == NULL) == (kind->destroy == NULL));
		GMB_ASSERT(kind->accept != NULL && kind->resume != NULL);
		GMB_ASSERT(kind->flush != NULL && kind->drain != NULL);
		GMB_ASSERT(kind->abort != NULL && kind->join != NULL && kind->close != NULL);
		GMB_ASSERT((kind->pause == NULL) == (kind->adopt == NULL));
		GMB_ASSERT((kind->pause == NULL) == (kind->can_hand_over == NULL));
		*service = engine;
		rc = kind->create != NULL ? kind->create(engine, service, error) : 0;
		if (rc < 0) {
			return rc;
		}
		engine->service_count++;
	}
	return 0;
}

int engine_create(
	const struct engine_options *options, struct engine **engine_out, struct error *error)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	int rc;

	if (engine == NULL) {
		return error_oom_for(error, "an engine");
	}
	GMB_ASSERT(options->kind_count > 0 && options->kind_count <= ENGINE_KINDS_MAX);
	GMB_ASSERT(options->limits.inflight_max > 0);
	GMB_ASSERT(options->limits.inflight_per_session_max > 0);
	GMB_ASSERT(options->limits.engine_count > 0);
	GMB_ASSERT(options->limits.idle_timeout_ns == 0 ||
		   options->limits.idle_timeout_ns >= ENGINE_IDLE_TIMEOUT_NS_MIN);
	engine->options = *options;
	engine->ring = options->ring;
	engine->limits = options->limits;
	engine->stop_due_ns = UINT64_MAX;
	ring_waiter_init(&engine->waiter, engine->ring, true, options->limits.may_spin);
	list_init(&engine->sessions);
	list_init(&engine->parts);
	list_init(&engine->handshakes);
	list_init(&engine->lingering);
	list_init(&engine->dirty_sparse);
	list_init(&engine->dirty);
	list_init(&engine->peers);
	list_init(&engine->rate_identities);
	engine_clients_init(engine);
	list_init(&engine->nodes);
	turns_init(&engine->blocked);
	engine_turn_part(engine);
	rate_room_init(&engine->rates, engine->ring);
	list_init(&engine->ending);
	list_init(&engine->to_review);
	engine->review_message.deliver = review_deliver;
	engine->batch_end.call = engine_batch_end;
	ring_batch_end_add(engine->ring, &engine->batch_end);
	rc = create_memory(engine, error) ?: create_services(engine, error);
	if (rc < 0) {
		engine_destroy(engine);
		return rc;
	}
	*engine_out = engine;
	return 0;
}

void engine_destroy(struct engine *engine)
{
	if (engine == NULL) {
		return;
	}
	GMB_ASSERT(list_is_empty(&engine->sessions) && list_is_empty(&engine->peers));
	for (uint32_t i = 0; i < ENGINE_LISTENERS_MAX; i++) {
		log_limit_end(&engine->log_limits[i], LOG_LEVEL_WARNING);
	}
	ring_batch_end_remove(&engine->batch_end);
	ring_waiter_stop(&engine->waiter);
	while (engine->export_count > 0) {
		engine_export_remove(engine, engine->exports[engine->export_count - 1]->export, 0);
	}
	if (engine->timer.in_flight) {
		ring_cancel(engine->ring, &engine->timer);
	}
	rate_room_stop(&engine->rates);
	while (engine->timer.in_flight || engine->again.in_flight ||
		engine->rates.timer.in_flight || engine->closing_count > 0 ||
		engine->review_posted) {
		ring_turn(engine->ring, true);
	}
	while (engine->service_count > 0) {
		const struct session_kind *kind = engine->options.kinds[--engine->service_count];

		if (kind->destroy != NULL) {
			kind->destroy(engine->services[engine->service_count]);
		}
	}
	path_destroy(engine->path);
	arena_destroy(engine->arena);
	engine_clients_fini(engine);
	engine_nodes_fini(engine);
	free(engine->exports);
	free(engine);
}
