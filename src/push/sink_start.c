// SPDX-License-Identifier: Apache-2.0
/* The start of a connection at the destination of a job: the ticket, the export to write, and the
 * staging memory; docs/protocol/push.md §4. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "engine/fence.h"
#include "push/sink.h"

static int sink_stage(struct push_sink *sink, const char **text)
{
	struct push_session *session = sink->session;
	uint64_t bytes;
	void *base;
	int result;

	sink->slot_count = push_staging_take(1, PUSH_SLOTS);
	if (sink->slot_count == 0) {
		*text = "the staging memory of the destination is exhausted";
		return -EBUSY;
	}
	bytes = (uint64_t)sink->slot_count * PUSH_SLOT_BYTES;
	*text = "the destination has no staging memory";
	result = clan_region_create(session->service->base.queue, bytes, 0, &sink->region, &base);
	if (result != 0) {
		return result;
	}
	if (sink->is_unix && (clan_conn_caps(session->in.conn) & CLAN_CAN_MAP) == 0) {
		sink->fetched = aligned_alloc(PUSH_SLOT_HEAD_BYTES, bytes);
		if (sink->fetched == NULL) {
			return -ENOMEM;
		}
	}
	sink->memory = (struct mem_region){
		.base = sink->fetched != NULL ? sink->fetched : base,
		.bytes = bytes,
		.rights = sink->fetched != NULL ? MEM_RAM : MEM_RAM & ~MEM_STABLE,
	};
	/* The registration only makes writes faster, so a failure is ignored. */
	(void)!ring_memory_add(session->base.engine->ring, &sink->memory);
	return clan_region_share(session->in.conn, sink->region, CLAN_READ | CLAN_WRITE);
}

static bool sink_is_onto_itself(struct push_sink *sink)
{
	const struct push_wire_ticket *ticket = &sink->claim->ticket;
	struct store_place to;

	if (!store_place(sink->session->base.chosen->export->store, &to)) {
		return false;
	}
	to.at += ticket->offset;
	return store_places_meet(&sink->source, &to, ticket->length);
}

/* Records the source's disk, if it can be compared with ours. Device numbers are comparable only on
 * one machine, or within one server process if the machine is unknown. */
static void sink_take_place(struct push_sink *sink, const struct push_wire_use *use)
{
	static const uint8_t nowhere[PUSH_MACHINE_BYTES];
	const uint8_t *own = sink->session->base.engine->options.instance;

	if (memcmp(use->machine, nowhere, sizeof(nowhere)) != 0 ||
		memcmp(use->instance, own, sizeof(use->instance)) == 0) {
		memcpy(sink->source.machine, use->machine, sizeof(use->machine));
		memcpy(sink->source.disk, use->disk, sizeof(use->disk));
		sink->source.at = use->at;
	}
}

/* Decides whether the job may start on the chosen export, and starts it. */
static int sink_admit(struct push_sink *sink, const char **text)
{
	struct push_session *session = sink->session;
	const struct push_wire_ticket *ticket = &sink->claim->ticket;
	uint32_t rights = ENGINE_RIGHT_WRITE | (ticket->flags != 0 ? ENGINE_RIGHT_READ : 0);
	struct push_job job = {
		.id = ticket->job,
		.role = PUSH_SINK,
		.owner = sink->claim->asker.identity,
		.name_bytes = sink->claim->name_bytes,
		.offset = ticket->offset,
		.length = ticket->length,
	};
	int result;

	session->rights = rights;
	if ((session->base.rights & rights) != rights) {
		*text = "the user who requested the ticket may no longer write the destination";
		return -EPERM;
	}
	if (!range_inside(ticket->offset, ticket->length, session->base.export_bytes)) {
		*text = "the destination is too small";
		return -ENOSPC;
	}
	if (sink_is_onto_itself(sink)) {
		*text = "source and destination are the same disk under two names, and the ranges "
			"overlap";
		return -EINVAL;
	}
	memcpy(job.name, sink->claim->name, sink->claim->name_bytes);
	snprintf(job.peer, sizeof(job.peer), "%s", session->base.peer.text);
	result = session->is_extra ? 0 : push_session_job(session, &job, text);
	result = result ?: sink_stage(sink, text);
	if (result == 0 && session->is_extra) {
		push_session_run(session, ticket->job);
	}
	return result;
}

void push_sink_choose(struct push_session *session)
{
	struct push_sink *sink = session->sink;
	const char *text = NULL;
	struct engine_export *entry =
		session_export_find(&session->base, sink->claim->name, sink->claim->name_bytes);
	int result = session->base.stopping ? -ESHUTDOWN
		     : entry == NULL	    ? -ENOENT
					    : session_choose(&session->base, entry);

	if (result == -EAGAIN) {
		session->held_type = PUSH_USE; /* also for JOIN */
		return;
	}
	if (result != 0) {
		text = session->base.stopping ? session_stop_text(&session->base)
					      : session_choose_text(&session->base, result);
	} else {
		result = sink_admit(sink, &text);
	}
	if (result != 0) {
		push_session_job_fail(session, result, text);
	}
}

static struct push_shower shower_of(
	const struct peer *peer, const uint8_t instance[PUSH_INSTANCE_BYTES])
{
	struct push_shower shower = {
		.has_uid = peer->has_credentials,
		.uid = peer->credentials.uid,
		.has_address = peer->has_address,
	};

	memcpy(shower.address, peer->address, sizeof(shower.address));
	memcpy(shower.instance, instance, sizeof(shower.instance));
	return shower;
}

static struct push_sink *sink_create(struct push_session *session)
{
	struct push_sink *sink = calloc(1, sizeof(*sink));

	if (sink == NULL) {
		session_terminate(&session->base, "out of memory for a job");
		return NULL;
	}
	sink->session = session;
	list_init(&sink->waiting);
	list_init(&sink->answers);
	for (uint32_t i = 0; i < WORKS; i++) {
		struct work *work = &sink->works[i];

		work->sink = sink;
		list_init(&work->node);
		work->kind = i >= FIRST_READ_BACK ? WORK_READ_BACK
			     : i >= FIRST_FLUSH	  ? WORK_FLUSH
			     : i >= FIRST_ZERO	  ? WORK_ZERO
			     : i >= FIRST_CHECK	  ? WORK_CHECK
						  : WORK_PIECE;
	}
	session->sink = sink;
	return sink;
}

/* Continues USE or JOIN. why: NULL, or the reason why the ticket was rejected. */
static void sink_begin(struct push_sink *sink, const char *why)
{
	struct push_session *session = sink->session;

	if (why != NULL) {
		session->base.engine->counters.push_refusals++;
		push_sink_failed(session, -EACCES, why);
		session_terminate(&session->base, why);
		return;
	}
	sink->claim = push_group_claim(sink->group);
	sink->is_unix = session->base.peer.family == AF_UNIX;
	/* the session gets the rights of the ticket's requester */
	session_act_for(&session->base, &sink->claim->asker);
	push_sink_choose(session);
}

void push_sink_begin(struct push_session *session, const uint8_t *bytes, uint32_t len)
{
	struct push_shower shower;
	struct push_claim claim;
	struct push_wire_use use;
	struct push_sink *sink;
	const char *why;
	const char *rule = push_parse(PUSH_USE, bytes, len, &use);

	if (rule != NULL) {
		push_session_fail(session, rule);
		return;
	}
	sink = sink_create(session);
	if (sink == NULL) {
		return;
	}
	sink_take_place(sink, &use);
	shower = shower_of(&session->base.peer, use.instance);
	why = push_ticket_use(
		&use.ticket, &shower, ring_now_ns(session->base.engine->ring), &claim);
	if (why == NULL) {
		sink->group = push_group_create(&claim);
		why = sink->group == NULL ? "the destination is out of memory" : NULL;
	}
	sink_begin(sink, why);
}

void push_sink_join_job(struct push_session *session, const uint8_t *bytes, uint32_t len)
{
	struct push_wire_join join;
	struct push_shower shower;
	struct push_sink *sink;
	const char *rule = push_parse(PUSH_JOIN, bytes, len, &join);

	if (rule != NULL) {
		push_session_fail(session, rule);
		return;
	}
	sink = sink_create(session);
	if (sink != NULL) {
		session->is_extra = true;
		sink->number = join.number;
		shower = shower_of(&session->base.peer, join.instance);
		sink_begin(sink, push_group_join(&join, &shower, &sink->group));
	}
}
