// SPDX-License-Identifier: Apache-2.0
#include <errno.h>

#include "base/bytes.h"
#include "engine/engine.h"

static const uint32_t session_edges[SESSION_STATE_COUNT] = {
	[SESSION_NEGOTIATING] =
		BIT(SESSION_READY) | BIT(SESSION_DRAINING) | BIT(SESSION_TERMINATING),
	[SESSION_READY] = BIT(SESSION_DRAINING) | BIT(SESSION_LINGERING) | BIT(SESSION_TERMINATING),
	[SESSION_DRAINING] = BIT(SESSION_LINGERING) | BIT(SESSION_TERMINATING),
	[SESSION_LINGERING] = BIT(SESSION_TERMINATING),
	[SESSION_TERMINATING] = 0, /* freed at the end of a batch */
};

void session_log(struct session *session, const char *what)
{
	const struct export *export = session->export;
	char name[128];

	if (export == NULL || !log_enabled(LOG_LEVEL_INFO)) {
		return;
	}
	log_limited(&session->engine->connect_limit, ring_batch_ns(session->engine->ring),
		LOG_LEVEL_INFO, "client %s %s export \"%s\"%s", session->peer.text, what,
		log_escape(name, sizeof(name), export->name, export->name_bytes),
		(session->rights & ENGINE_RIGHT_WRITE) != 0 ? "" : ", read only");
}

void session_set_state(struct session *session, enum session_state state)
{
	GMB_ASSERT((session_edges[session->state] & BIT(state)) != 0);
	if (state == SESSION_READY) {
		session_log(session, "uses");
	}
	list_remove(&session->deadline_node);
	if (session->state == SESSION_NEGOTIATING) {
		session->engine->counters.handshakes--;
		session->of_peer->handshake_count--;
		list_remove(&session->handshake_node);
	}
	session->state = state;
}

void session_identify(struct session *session, struct identity *identity)
{
	GMB_ASSERT(session->state == SESSION_NEGOTIATING && session->peer.proved == NULL);
	identity_get(identity);
	session->peer.proved = identity;
}

void session_has_spoken(struct session *session)
{
	GMB_ASSERT(session->state == SESSION_NEGOTIATING);
	if (!session->has_spoken) {
		session->has_spoken = true;
		list_remove(&session->handshake_node);
		list_push_back(&session->of_peer->spoken, &session->handshake_node);
	}
}

static void member_end(struct takeover_member *member)
{
	session_terminate(container_of(member, struct session, member), NULL);
}

static void member_wake(struct takeover_member *member)
{
	struct session *session = container_of(member, struct session, member);

	if (session->state != SESSION_TERMINATING) {
		session->kind->resume(session);
	}
}

void session_init(struct session *session, struct engine *engine, const struct endpoint *endpoint)
{
	session->kind = endpoint->kind;
	session->engine = engine;
	session->peer = endpoint->peer;
	session->member = (struct takeover_member){
		.ring = engine->ring,
		.peer = endpoint->peer.identity,
		.end = member_end,
		.wake = member_wake,
	};
	list_init(&session->dirty_node);
	session->of_peer = engine->accepted_peer;
	session->of_peer->session_count++;
	session->export_inflight_count = &engine->inflight_without_export;
	turn_init(&session->blocked_turn, &session->of_peer->blocked);
	path_client_init(&session->client, engine->path, &session->of_peer->path);
	list_init(&session->ending_node);
	list_init(&session->barred_node);
	session->progress_ns = ring_now_ns(engine->ring);
	session->deadline_ns = session->progress_ns + engine->limits.handshake_timeout_ns;
	session->state = SESSION_NEGOTIATING;
	list_push_back(&engine->sessions, &session->node);
	list_push_back(&engine->handshakes, &session->deadline_node);
	session->of_peer->handshake_count++;
	list_push_back(&session->of_peer->silent, &session->handshake_node);
	engine->counters.sessions_accepted++;
	engine->counters.sessions++;
	engine->counters.handshakes++;
}

uint32_t engine_rights(const struct peer *peer, const struct export *export)
{
	bool read_only = atomic_load_explicit(&export->read_only, memory_order_relaxed);

	GMB_UNUSED(peer); /* everybody who can connect has the rights of the export */
	return ENGINE_RIGHT_READ | (read_only ? 0U : (uint32_t)ENGINE_RIGHT_WRITE);
}

int session_choose(struct session *session, struct engine_export *entry)
{
	struct export *export = entry->export;
	int rc = engine_export_barrier(entry, session);
	uint32_t before;

	GMB_ASSERT(session->chosen == NULL);
	if (rc < 0) {
		return rc;
	}
	/* Relaxed: a count, nothing is published with it. */
	before = atomic_fetch_add_explicit(&export->connections, 1, memory_order_relaxed);
	if (export->connections_max != 0 && before >= export->connections_max) {
		atomic_fetch_sub_explicit(&export->connections, 1, memory_order_relaxed);
		return -EBUSY;
	}
	entry->session_count++;
	session->chosen = entry;
	session->export_inflight_count = &entry->inflight_count;
	session->export = export;
	session->path_export = &entry->path;
	session->rights = engine_rights(&session->peer, export);
	session->export_bytes = store_size(export->store);
	return 0;
}

int session_admit(
	const struct session *session, const struct path_request *request, const char **text)
{
	bool moves = request->op == STORE_READ || request->op == STORE_WRITE;

	if ((BIT(request->op) & STORE_CHANGES) != 0 &&
		(session->rights & ENGINE_RIGHT_WRITE) == 0) {
		*text = "the export is read-only";
		return -EPERM;
	}
	if (request->op == STORE_FLUSH) {
		return 0;
	}
	if (moves && request->length > session->engine->limits.payload_bytes_max) {
		*text = "it is longer than this server moves in one request";
		return -EOVERFLOW;
	}
	if (request->op == STORE_EXTENTS && request->length == 0) {
		*text = "block status of no bytes";
		return -EINVAL;
	}
	if (!range_inside(request->offset, request->length, session->export_bytes)) {
		*text = "the range runs past the end of the export";
		return request->op == STORE_WRITE || request->op == STORE_ZERO ? -ENOSPC : -EINVAL;
	}
	return 0;
}

/* --- takeover ------------------------------------------------------------------------------ */

/* A member refers to its group, which must outlive it. */
static void hold_group(struct session *session, struct export *export)
{
	if (session->takeover_export == NULL && session->member.takeover == &export->takeover) {
		export_get(export);
		session->takeover_export = export;
	}
}

void session_takeover_join(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes)
{
	takeover_join(&export->takeover, &session->member, token, bytes);
	hold_group(session, export);
}

bool session_takeover_replace(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes)
{
	bool waits = takeover_replace(&export->takeover, &session->member, token, bytes);

	hold_group(session, export);
	return waits;
}

/* --- the ways to end ----------------------------------------------------------------------- */

void session_terminate(struct session *session, const char *reason)
{
	if (session->state == SESSION_TERMINATING) {
		return;
	}
	if (reason != NULL) {
		session->engine->counters.sessions_failed++;
		log_limited(&session->engine->log_limit, ring_batch_ns(session->engine->ring),
			LOG_LEVEL_WARNING, "client %s: connection ended: %s", session->peer.text,
			reason);
	}
	session_set_state(session, SESSION_TERMINATING);
	takeover_give_up(&session->member);
	turns_remove(&session->blocked_turn);
	list_remove(&session->barred_node);
	list_remove(&session->dirty_node);
	list_push_back(&session->engine->ending, &session->ending_node);
	session->kind->abort(session);
}

void session_linger(struct session *session)
{
	struct engine *engine = session->engine;

	session_set_state(session, SESSION_LINGERING);
	turns_remove(&session->blocked_turn);
	session->deadline_ns = ring_now_ns(engine->ring) +
			       (session->stopping ? ENGINE_LINGER_STOPPING_NS : ENGINE_LINGER_NS);
	list_push_back(&engine->lingering, &session->deadline_node);
	engine_timer_arm(engine);
}
