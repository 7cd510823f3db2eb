// SPDX-License-Identifier: Apache-2.0
/* Requests of a coordinator: sizes, tickets, jobs; docs/protocol/push.md §3. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "push/session.h"

void push_control_answer(struct push_session *session, int status, const char *text)
{
	struct push_answer answer = { .head.status = (uint32_t)-status };

	push_control_send(session, &answer, text);
}

/* Answers are not queued. If the connection has no room for an answer, the peer has sent further
 * requests without receiving the answers, which violates rule H2. The session then ends. */
void push_control_send(struct push_session *session, struct push_answer *answer, const char *text)
{
	struct push_wire_answer *head = &answer->head;
	struct iovec parts[3] = {
		{ head, sizeof(*head) },
		{ (void *)(uintptr_t)text, text != NULL ? strlen(text) : 0 },
		{ &answer->ticket, answer->has_ticket ? sizeof(answer->ticket) : 0 },
	};

	head->text_bytes = (uint16_t)parts[1].iov_len;
	head->ticket_bytes = (uint16_t)parts[2].iov_len;
	if (session->in.conn != NULL && !session->in.is_closing &&
		clan_sendv(session->in.conn, CLAN_BULK, PUSH_ANSWER, parts, ARRAY_COUNT(parts)) ==
			-EAGAIN) {
		push_session_fail(session, "H2: the peer does not read its messages");
	}
}

static const char *refusal(const struct export *export, uint32_t rights)
{
	if ((rights & ENGINE_RIGHT_WRITE) == 0) {
		return "you may not read the source";
	}
	if (atomic_load_explicit(&export->read_only, memory_order_relaxed)) {
		return "the destination is served read-only";
	}
	return (rights & ENGINE_RIGHT_READ) != 0
		       ? "the access rules of the destination do not permit you both to write "
			 "and to read, which the comparison needs"
		       : "the access rules of the destination do not permit you to write";
}

/* Returns the export if the peer can see it and has these rights on it. Otherwise sends an error
 * answer and returns NULL. */
static struct engine_export *push_control_find(
	struct push_session *session, const struct message_text *name, uint32_t rights)
{
	struct engine_export *entry =
		session_export_find(&session->base, name->bytes, name->length);

	if (entry == NULL) {
		push_control_answer(
			session, -ENOENT, "no such export, or you have no access to it");
	} else if ((engine_rights(&session->base, entry->export) & rights) != rights) {
		push_control_answer(session, -EPERM, refusal(entry->export, rights));
		entry = NULL;
	}
	return entry;
}

static void take_look(struct push_session *session, const struct message_text *name)
{
	struct engine_export *entry = push_control_find(session, name, 0);
	struct push_answer answer = { 0 };
	uint32_t rights;

	if (entry == NULL) {
		return;
	}
	rights = engine_rights(&session->base, entry->export);
	answer.head.value = store_size(entry->export->store);
	answer.head.flags = ((rights & ENGINE_RIGHT_READ) != 0 ? (uint32_t)PUSH_LOOK_READ : 0) |
			    ((rights & ENGINE_RIGHT_WRITE) != 0 ? (uint32_t)PUSH_LOOK_WRITE : 0);
	push_control_send(session, &answer, NULL);
}

/* --- tickets --------------------------------------------------------------------------------- */

static bool push_control_is_onto_itself(
	const struct push_session *session, const struct push_grant *grant)
{
	const struct push_wire_grant *head = &grant->head;
	uint64_t distance = head->offset > head->source_offset ? head->offset - head->source_offset
							       : head->source_offset - head->offset;

	return memcmp(head->instance, session->base.engine->options.instance,
		       sizeof(head->instance)) == 0 &&
	       grant->name.length == grant->source_name.length &&
	       memcmp(grant->name.bytes, grant->source_name.bytes, grant->name.length) == 0 &&
	       distance < head->length;
}

/* Copies the ticket's permitted user from GRANT. PUSH_BOUND_ASKER is replaced by the peer's address
 * or user; returns false if the peer has neither. */
static bool bind_ticket(const struct push_session *session, const struct push_wire_grant *head,
	struct push_wire_ticket *ticket)
{
	const struct peer *peer = &session->base.peer;

	ticket->binding = head->binding;
	ticket->uid = head->uid;
	memcpy(ticket->address, head->address, sizeof(ticket->address));
	memcpy(ticket->instance, head->instance, sizeof(ticket->instance));
	if (head->binding == PUSH_BOUND_ASKER && peer->has_address) {
		ticket->binding = PUSH_BOUND_ADDRESS;
		memcpy(ticket->address, peer->address, sizeof(ticket->address));
	} else if (head->binding == PUSH_BOUND_ASKER && peer->has_credentials) {
		ticket->binding = PUSH_BOUND_UID;
		ticket->uid = peer->credentials.uid;
	}
	return ticket->binding != PUSH_BOUND_ASKER;
}

/* Checks the coordinator's rights, the range and the binding, then creates the ticket. The name of
 * the export is not in the ticket; the server keeps it in the claim. */
static void take_grant(struct push_session *session, const struct push_grant *grant)
{
	const struct push_wire_grant *head = &grant->head;
	struct engine *engine = session->base.engine;
	uint32_t rights = ENGINE_RIGHT_WRITE | (head->flags != 0 ? ENGINE_RIGHT_READ : 0);
	struct engine_export *entry = push_control_find(session, &grant->name, rights);
	struct push_answer answer = { .has_ticket = true };
	struct push_claim claim = {
		.ticket = {
			.flags = (uint16_t)head->flags,
			.offset = head->offset,
			.length = head->length,
		},
		.asker = session->base.peer,
		.name_bytes = grant->name.length,
	};
	char sizes[PUSH_TEXT_BYTES_MAX];
	const char *text = NULL;
	int result = 0;
	uint64_t bytes;

	if (entry == NULL) {
		return;
	}
	bytes = store_size(entry->export->store);
	if (!range_inside(head->offset, head->length, bytes)) {
		result = -ENOSPC;
		snprintf(sizes, sizeof(sizes),
			"the destination is too small: it has %" PRIu64
			" bytes, but the push ends at %" PRIu64,
			bytes, head->offset + head->length);
		text = sizes;
	} else if (push_control_is_onto_itself(session, grant)) {
		result = -EINVAL;
		text = "source and destination are the same, or overlap";
	} else if (!bind_ticket(session, head, &claim.ticket)) {
		result = -EINVAL;
		text = "the destination cannot identify the source";
	} else if (!ring_secret(engine->ring, &claim.ticket.job, sizeof(claim.ticket.job))) {
		result = -EIO;
		text = "the server cannot get random numbers";
	} else {
		memcpy(claim.name, grant->name.bytes, grant->name.length);
		result = push_ticket_make(&claim, ring_now_ns(engine->ring), &text);
	}
	if (result != 0) {
		push_control_answer(session, result, text);
		return;
	}
	engine->counters.push_tickets++;
	answer.head.value = claim.ticket.job;
	answer.ticket = claim.ticket;
	push_control_send(session, &answer, NULL);
}

/* --- jobs ------------------------------------------------------------------------------------ */

/* Sends JOB. Returns 0, -EAGAIN if the connection has no room for the message, or another negative
 * errno of clan_sendv(). */
static int send_job(struct push_session *session, const struct push_job *job)
{
	uint64_t now_ns = ring_now_ns(session->base.engine->ring);
	bool ended = job->state == PUSH_JOB_DONE || job->state == PUSH_JOB_FAILED;
	struct push_wire_job head = {
		.job = job->id,
		.cursor = job->serial,
		.offset = job->offset,
		.length = job->length,
		.done = job->progress.done,
		.zeroes = job->progress.zeroes,
		.skipped = job->progress.skipped,
		.durable = job->progress.durable,
		.digest = job->progress.digest,
		.age_ms = ((ended ? job->ended_ns : now_ns) - job->begun_ns) / 1000000,
		.status = (uint32_t)-job->status,
		.role = (uint8_t)job->role,
		.state = (uint8_t)job->state,
		.name_bytes = (uint16_t)job->name_bytes,
		.peer_bytes = (uint16_t)strlen(job->peer),
		.text_bytes = (uint16_t)strlen(job->text),
	};
	const struct iovec parts[] = {
		{ &head, sizeof(head) },
		{ (void *)(uintptr_t)job->name, head.name_bytes },
		{ (void *)(uintptr_t)job->peer, head.peer_bytes },
		{ (void *)(uintptr_t)job->text, head.text_bytes },
	};

	return clan_sendv(session->in.conn, CLAN_BULK, PUSH_JOB, parts, ARRAY_COUNT(parts));
}

static void take_jobs(struct push_session *session, uint64_t cursor)
{
	struct push_viewer viewer = push_viewer_of(session);
	struct push_job job;

	if (!push_job_next(cursor, &viewer, &job)) {
		push_control_answer(session, -ENOENT, NULL);
	} else if (send_job(session, &job) == -EAGAIN) {
		push_session_fail(session, "H2: the peer does not read its messages");
	}
}

static void push_control_take_cancel(struct push_session *session, uint64_t id)
{
	struct push_viewer viewer = push_viewer_of(session);
	int result = push_job_cancel(id, &viewer);

	push_control_answer(session, result,
		result == 0 ? NULL : "no job of yours with this number is running on this server");
}

/* A JOB message for which the connection has no room stays due, and is sent at READY or at the next
 * tick. Only the latest progress is sent, so one flag is sufficient. */
void push_control_note(struct push_session *session, bool again)
{
	struct push_job job;
	bool open = session->in.conn != NULL && !session->in.is_closing;

	session->note_due |= again;
	if (!session->note_due || session->is_opening || session->source == NULL) {
		return;
	}
	if (open && push_job_of(session->job != 0 ? session->job : session->noted_job, &job) &&
		send_job(session, &job) == -EAGAIN) {
		return; /* the message is sent again when there is room */
	}
	session->note_due = false;
	if (session->job == 0 && session->base.state == SESSION_READY) {
		session_terminate(&session->base, NULL); /* closing publishes the message */
	}
}

/* --- messages -------------------------------------------------------------------------------- */

/* A session that is stopping refuses each request, but still answers it. */
void push_control_take(
	struct push_session *session, uint32_t type, const uint8_t *bytes, uint32_t len)
{
	const char *rule = "H2: an unexpected message";
	struct push_wire_job_number number;
	struct push_look look;
	struct push_grant grant;

	if (session->base.stopping) {
		push_control_answer(session, -ESHUTDOWN, session_stop_text(&session->base));
		return;
	}
	if (type == PUSH_LOOK) {
		rule = push_parse(PUSH_LOOK, bytes, len, &look);
		if (rule == NULL) {
			take_look(session, &look.name);
		}
	} else if (type == PUSH_GRANT) {
		rule = push_parse(PUSH_GRANT, bytes, len, &grant);
		if (rule == NULL) {
			take_grant(session, &grant);
		}
	} else if (type == PUSH_JOBS || type == PUSH_CANCEL) {
		rule = push_parse(type, bytes, len, &number);
		if (rule == NULL && type == PUSH_JOBS) {
			take_jobs(session, number.job);
		} else if (rule == NULL) {
			push_control_take_cancel(session, number.job);
		}
	}
	if (rule != NULL) {
		push_session_fail(session, rule);
	}
}
