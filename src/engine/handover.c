// SPDX-License-Identifier: Apache-2.0
#include "engine/handover.h"

#include <errno.h>
#include <string.h>

#define STALL_NS (ENGINE_HANDOVER_STALL_MS * UINT64_C(1000000))
/* Time that a drained session gets to end. A long time does no harm, because the session holds no
 * resources for which others wait. */
#define DRAIN_NS UINT64_C(5000000000)

static bool can_be_handed_over(const struct session *session)
{
	return session->state == SESSION_READY && !session->stopping &&
	       session->kind->can_hand_over != NULL && session->kind->can_hand_over(session);
}

/* Returns whether a session is handed over. A session that has started to end since it was paused
 * is not handed over; it ends in this process. */
static bool engine_is_handing_over(const struct session *session)
{
	return session->handing_over && session->state == SESSION_READY;
}

static void count_end(struct engine_fate *fate, const struct session_kind *kind)
{
	uint32_t i = 0;

	while (fate->end[i].kind != kind) {
		i++;
	}
	fate->end[i].count++;
}

void engine_foresee(const struct engine *engine, struct engine_fate *fate)
{
	for (uint32_t i = 0; i < engine->options.kind_count; i++) {
		fate->end[i].kind = engine->options.kinds[i];
	}
	list_for_each(node, &engine->sessions)
	{
		const struct session *session = list_entry(node, struct session, node);

		if (session->state > SESSION_READY || session->stopping) {
			continue;
		}
		if (session->state < SESSION_READY) {
			fate->handshakes++;
		} else if (can_be_handed_over(session)) {
			fate->handed_over++;
		} else {
			count_end(fate, session->kind);
		}
	}
}

static void pause_session(struct session *session)
{
	session->handing_over = true;
	session->paused = true;
	session->kind->pause(session);
}

uint32_t engine_pause(struct engine *engine)
{
	uint64_t now_ns = ring_now_ns(engine->ring);
	uint32_t drained = 0;

	engine->paused = true;
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (session->paused) {
			continue;
		}
		session->handing_over = false;
		/* The time limit for a peer that does not receive (ENGINE_HANDOVER_STALL_MS) begins
		 * now. */
		session->progress_ns = now_ns;
		if (can_be_handed_over(session)) {
			pause_session(session);
		} else if (session->state <= SESSION_READY && !session->stopping) {
			drained++;
			engine_stop_session(session, DRAIN_NS);
		}
	}
	return drained;
}

static bool has_stalled(struct session *session, uint64_t now_ns)
{
	if (session->kind->peer_receives != NULL && session->kind->peer_receives(session)) {
		session->progress_ns = now_ns;
		return false;
	}
	return now_ns - session->progress_ns >= STALL_NS;
}

/* Returns the state of a session that is ending: not at rest while it has requests in the store or
 * at another server, or replies that its peer has not received. */
static enum session_rest rest_of_ending(struct session *session)
{
	if (session->kind->is_away != NULL && session->kind->is_away(session)) {
		return SESSION_IS_BUSY;
	}
	return session->inflight_count == 0	       ? SESSION_RESTS
	       : session->state == SESSION_TERMINATING ? SESSION_IS_BUSY
						       : SESSION_WAITS_FOR_PEER;
}

static enum session_rest rest_of(struct session *session)
{
	if (engine_is_handing_over(session)) {
		return session->paused ? session->kind->rest(session) : SESSION_RESTS;
	}
	/* A session that was accepted while others were served is not paused, but continues like
	 * them. */
	return session->state <= SESSION_READY && !session->stopping ? SESSION_RESTS
								     : rest_of_ending(session);
}

void engine_look(struct engine *engine, struct engine_rest *sum, bool may_end)
{
	uint64_t now_ns = ring_now_ns(engine->ring);

	GMB_ASSERT(engine->paused);
	sum->busy += engine->snapshot_requests;
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);
		enum session_rest rest = rest_of(session);

		sum->busy += rest == SESSION_IS_BUSY;
		if (rest != SESSION_WAITS_FOR_PEER) {
			continue;
		}
		sum->waiting++;
		memcpy(sum->peer, session->peer.text, sizeof(sum->peer));
		if (has_stalled(session, now_ns) && may_end) {
			sum->ended++;
			session_terminate(session, "disconnected for the upgrade, because the "
						   "client does not receive its replies");
		}
	}
}

static void engine_handover_go_on(struct session *session)
{
	session->paused = false;
	session->kind->resume(session);
}

void engine_serve(struct engine *engine)
{
	GMB_ASSERT(engine->paused);
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (engine_is_handing_over(session) && session->paused &&
			session->kind->rest(session) != SESSION_WAITS_FOR_PEER) {
			engine_handover_go_on(session);
		}
	}
}

void engine_resume(struct engine *engine)
{
	GMB_ASSERT(engine->paused);
	engine->paused = false;
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (engine_is_handing_over(session) && session->paused) {
			engine_handover_go_on(session);
		}
		session->handing_over = false;
		session->paused = false;
		session->was_told = false;
	}
}

static struct session_record record_of(const struct session *session)
{
	return (struct session_record){
		.id = session->peer.id,
		.kind = session->kind->name,
		.kind_bytes = (uint32_t)strlen(session->kind->name),
		.export = session->export->name,
		.export_bytes = session->export->name_bytes,
		.token = (const uint8_t *)session->member.token,
		.token_bytes = session->member.joined ? session->member.token_bytes : 0,
	};
}

int engine_hand_over(struct engine *engine,
	int (*take)(void *context, const struct session_record *record), void *context)
{
	uint8_t bytes[ENGINE_HANDOVER_BYTES_MAX];
	int rc = 0;

	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);
		struct session_record record;

		if (rc < 0 || !engine_is_handing_over(session) || session->was_told) {
			continue;
		}
		record = record_of(session);
		record.bytes = bytes;
		session->kind->hand_over(session, bytes, &record);
		rc = take(context, &record);
		session->was_told = rc == 0;
	}
	explicit_bzero(bytes, sizeof(bytes));
	return rc;
}

static void engine_quiesce_done(struct store_part *part, int result)
{
	struct engine_quiesce *quiesce = container_of(part, struct engine_quiesce, part);
	struct engine_export *entry = quiesce->entry;
	struct engine *engine = entry->engine;

	quiesce->done(quiesce, result);
	engine->closing_count--;
	engine_export_leave(engine, entry);
}

int engine_quiesce(struct engine *engine, struct engine_quiesce *quiesce, bool last)
{
	quiesce->entry =
		engine_export_find(engine, quiesce->export->name, quiesce->export->name_bytes);
	if (quiesce->entry == NULL || quiesce->entry->export != quiesce->export) {
		return -ENOENT;
	}
	quiesce->part = (struct store_part){
		.op = STORE_FLUSH,
		.flags = last ? STORE_QUIESCE : 0,
		.done = engine_quiesce_done,
	};
	quiesce->entry->session_count++;
	engine->closing_count++;
	store_submit(quiesce->entry->path.queue, &quiesce->part);
	return 0;
}

void engine_let_go(struct engine *engine)
{
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (engine_is_handing_over(session)) {
			session->handed_over = true;
			session_terminate(session, NULL);
		}
	}
}

int session_adopt(struct session *session, const struct session_record *record)
{
	struct engine_export *entry =
		session_export_find(session, record->export, record->export_bytes);
	int rc = entry != NULL ? session_choose(session, entry) : -ENOENT;

	if (rc == 0 && record->token_bytes > 0) {
		session_takeover_join(session, entry->export, record->token, record->token_bytes);
	}
	session->handing_over = rc == 0 && session->engine->paused;
	session->paused = session->handing_over;
	return rc;
}
