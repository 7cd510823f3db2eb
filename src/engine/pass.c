// SPDX-License-Identifier: Apache-2.0
#include "engine/pass.h"

#include <errno.h>
#include <string.h>

#define STALL_NS (ENGINE_PASS_STALL_MS * UINT64_C(1000000))
/* A session that is drained, and has not ended by then, holds nothing that others wait for. */
#define DRAIN_NS UINT64_C(5000000000)

static bool can_be_passed(struct session *session)
{
	return session->state == SESSION_READY && !session->stopping &&
	       session->kind->pause != NULL && session->kind->pause(session);
}

/* Unless it has begun to end since it was paused: then it goes on doing so. */
static bool is_passing(const struct session *session)
{
	return session->passing && session->state == SESSION_READY;
}

uint32_t engine_pause(struct engine *engine)
{
	uint32_t drained = 0;

	GMB_ASSERT(!engine->paused);
	engine->paused = true;
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		session->passing = can_be_passed(session);
		if (!session->passing && session->state <= SESSION_READY) {
			drained++;
			engine_stop_session(session, DRAIN_NS);
		}
	}
	return drained;
}

static bool has_stalled(struct session *session, uint64_t now_ns)
{
	if (now_ns - session->progress_ns < STALL_NS) {
		return false;
	}
	if (session->kind->peer_receives != NULL && session->kind->peer_receives(session)) {
		session->progress_ns = now_ns;
		return false;
	}
	return true;
}

uint32_t engine_busy(struct engine *engine, uint32_t *ended)
{
	uint64_t now_ns = ring_now_ns(engine->ring);
	uint32_t busy = engine->counters.inflight > 0;

	GMB_ASSERT(engine->paused);
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);
		enum session_rest rest =
			is_passing(session) ? session->kind->rest(session) : SESSION_RESTS;

		busy += rest != SESSION_RESTS;
		if (rest == SESSION_WAITS_FOR_PEER && has_stalled(session, now_ns)) {
			*ended += 1;
			session_terminate(session,
				"another process takes over, and it stands still in the middle of "
				"a request");
		}
	}
	return busy;
}

void engine_resume(struct engine *engine)
{
	GMB_ASSERT(engine->paused);
	engine->paused = false;
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (is_passing(session)) {
			session->kind->resume(session);
		}
		session->passing = false;
	}
}

static struct session_record record_of(const struct session *session)
{
	return (struct session_record){
		.kind = session->kind->name,
		.kind_bytes = (uint32_t)strlen(session->kind->name),
		.export = session->export->name,
		.export_bytes = session->export->name_bytes,
		.token = (const uint8_t *)session->member.token,
		.token_bytes = session->member.joined ? session->member.token_bytes : 0,
	};
}

int engine_pass(struct engine *engine,
	int (*take)(void *context, const struct session_record *record), void *context)
{
	uint8_t bytes[ENGINE_PASS_BYTES_MAX];
	int rc = 0;

	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);
		struct session_record record;

		if (rc < 0 || !is_passing(session)) {
			continue;
		}
		record = record_of(session);
		record.bytes = bytes;
		record.byte_count = session->kind->pass(session, bytes, &record.fd);
		rc = take(context, &record);
	}
	explicit_bzero(bytes, sizeof(bytes));
	return rc;
}

static void settled(struct store_part *part, int result)
{
	struct engine_settle *settle = container_of(part, struct engine_settle, part);
	struct engine_export *entry = settle->entry;
	struct engine *engine = entry->engine;

	settle->done(settle, result);
	engine->closing_count--;
	engine_export_leave(engine, entry);
}

int engine_settle(struct engine *engine, struct engine_settle *settle, bool last)
{
	settle->entry =
		engine_export_find(engine, settle->export->name, settle->export->name_bytes);
	if (settle->entry == NULL || settle->entry->export != settle->export) {
		return -ENOENT;
	}
	settle->part = (struct store_part){
		.op = STORE_FLUSH,
		.flags = last ? STORE_SETTLE : 0,
		.done = settled,
	};
	settle->entry->session_count++;
	engine->closing_count++;
	store_submit(settle->entry->path.queue, &settle->part);
	return 0;
}

void engine_let_go(struct engine *engine)
{
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (is_passing(session)) {
			session->passed = true;
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
	return rc;
}
