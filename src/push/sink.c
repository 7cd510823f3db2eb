// SPDX-License-Identifier: Apache-2.0
/*
 * The destination of a job: lends slots to the source, and writes the pieces that arrive in them.
 *
 *   ticket ─▶ export ─▶ region shared ─▶ cookies ─▶ pieces, zeroes, checks ─▶ flush ─▶ read back
 *
 * Each request of the source is a work entry, which waits in order for the engine's limits, as
 * requests of other protocols do. There is an entry for every request that can be in flight: one
 * per slot for pieces. An entry is kept until its answer has been sent, because the connection
 * might have no room for it.
 *
 * Invariant: memory that the source can still change is either copied before it is used (the head
 * of a piece) or not interpreted (its bytes, which are data of the source's choice).
 *
 * A job can have further connections (JOIN, group.h), which only write pieces. Each of these has
 * its own session and slots.
 *
 * An untrusted user's source on a Unix socket could remove pages of the slots, which would stall
 * any thread that touches them. So its pieces are first copied to our own memory by helper threads.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "push/sink.h"

static const uint32_t work_edges[WORK_STATE_COUNT] = {
	[WORK_IDLE] = BIT(WORK_COMES) | BIT(WORK_WAITS) | BIT(WORK_ANSWERS),
	[WORK_COMES] = BIT(WORK_IDLE),
	[WORK_WAITS] = BIT(WORK_BUSY) | BIT(WORK_IDLE),
	[WORK_BUSY] = BIT(WORK_IDLE),
	[WORK_ANSWERS] = BIT(WORK_IDLE),
};

static const enum store_op operations[] = {
	[WORK_PIECE] = STORE_WRITE,
	[WORK_CHECK] = STORE_READ,
	[WORK_ZERO] = STORE_ZERO,
	[WORK_FLUSH] = STORE_FLUSH,
	[WORK_READ_BACK] = STORE_READ,
};

static void sink_set_state(struct work *work, enum work_state state)
{
	GMB_ASSERT((work_edges[work->state] & BIT(state)) != 0);
	work->state = state;
}

static bool sink_is_over(const struct push_sink *sink)
{
	return sink->session->base.state == SESSION_TERMINATING;
}

static void sink_fail(struct push_sink *sink, int status, const char *what)
{
	char text[PUSH_TEXT_BYTES_MAX];

	snprintf(text, sizeof(text), "%s: %s", what, strerror(-status));
	push_session_job_fail(sink->session, status, text);
}

void push_sink_failed(struct push_session *session, int status, const char *text)
{
	struct push_wire_failed head = {
		.status = (uint32_t)-status,
		.text_bytes = (uint16_t)MIN(strlen(text), (size_t)PUSH_TEXT_BYTES_MAX),
	};
	const struct iovec parts[] = {
		{ &head, sizeof(head) },
		{ (void *)(uintptr_t)text, head.text_bytes },
	};

	if (session->in.conn != NULL && !session->in.is_closing) {
		/* If there is no room, the source learns of the failure from the end of the
		 * connection. */
		(void)!clan_sendv(session->in.conn, CLAN_BULK, PUSH_FAILED, parts, 2);
	}
}

/* Sends a message. Returns false if the ring is full or the connection has ended; an event reports
 * room or the end. */
static bool sink_tell(struct push_sink *sink, uint32_t type, const void *bytes, uint32_t len)
{
	return clan_send(sink->session->in.conn, CLAN_BULK, type, bytes, len) == 0;
}

static bool lend(struct push_sink *sink, uint32_t slot)
{
	int result = clan_cookie_queue_push(sink->session->in.conn, 0, &sink->cookies[slot]);

	sink->lent[slot] = result == 0;
	if (result != 0 && result != -EAGAIN && result != -ENOTCONN) {
		sink_fail(sink, result, "cannot lend a staging slot to the source");
	}
	return result == 0;
}

/* --- answers --------------------------------------------------------------------------------- */

static bool tell_flushed(struct push_sink *sink, const struct push_wire_flush *flush)
{
	struct push_wire_flush flushed = *flush;
	bool finished = (flush->flags & PUSH_FLUSH_FINISH) != 0;

	if (finished) {
		flushed.flags = 0;
		flushed.digest = sink->session->progress.digest;
	}
	if (!sink_tell(sink, PUSH_FLUSHED, &flushed, sizeof(flushed))) {
		return false;
	}
	if (finished) {
		push_session_job_end(sink->session, 0, NULL); /* the source closes the connection */
	}
	return true;
}

/* Sends the answer to the source's request in a work entry. Returns false if there is no room or
 * the session has ended. */
static bool sink_answer(struct work *work)
{
	struct push_sink *sink = work->sink;
	const struct push_wire_range zeroed = { work->offset, work->length };
	const struct push_wire_checked checked = {
		.offset = work->offset,
		.same = work->found_crc == work->crc,
	};

	switch (work->kind) {
	case WORK_PIECE:
		return lend(sink, (uint32_t)(work - sink->works));
	case WORK_CHECK:
		return sink_tell(sink, PUSH_CHECKED, &checked, sizeof(checked));
	case WORK_ZERO:
		return sink_tell(sink, PUSH_ZEROED, &zeroed, sizeof(zeroed));
	case WORK_FLUSH:
		return tell_flushed(sink, &work->flush);
	case WORK_READ_BACK:
		break;
	}
	GMB_ASSERT(!"a read-back has no answer");
	return false;
}

static void send_answers(struct push_sink *sink)
{
	struct list_node *node;

	while (!sink_is_over(sink) && (node = list_first(&sink->answers)) != NULL) {
		struct work *work = list_entry(node, struct work, node);

		if (!sink_answer(work)) {
			return;
		}
		list_remove(&work->node);
		sink_set_state(work, WORK_IDLE);
	}
}

/* Queues the answer to the source's request in a work entry, and sends it when there is room. */
static void answer_add(struct work *work)
{
	sink_set_state(work, WORK_ANSWERS);
	list_push_back(&work->sink->answers, &work->node);
	send_answers(work->sink);
}

/* --- completed work -------------------------------------------------------------------------- */

static void read_back_begin(struct push_sink *sink);

static void sink_piece_done(struct work *work)
{
	struct push_sink *sink = work->sink;
	const struct push_progress more = {
		.done = work->length,
		.digest = push_digest(work->offset, (uint32_t)work->length, work->crc),
	};

	sink->session->base.engine->counters.bytes_written += work->length;
	push_group_written(
		sink->group, sink->number, (uint32_t)(work - sink->works), work->offset, &more);
	answer_add(work);
}

/* A faulty source might send a piece although it has sent CHECK for the same piece.
 * push_group_take() detects this and fails, so no piece is counted twice. */
static void check_done(struct work *work)
{
	struct push_sink *sink = work->sink;
	const struct push_progress more = {
		.done = work->length,
		.skipped = work->length,
		.digest = push_digest(work->offset, (uint32_t)work->length, work->crc),
	};

	if (work->found_crc == work->crc) {
		const char *rule = push_group_take(sink->group, work->offset, work->length);

		if (rule != NULL) {
			/* the source has also sent the piece, or has sent CHECK twice */
			push_session_fail(sink->session, rule);
			return;
		}
		push_group_count(sink->group, &more);
	}
	answer_add(work);
}

static void sink_zero_done(struct work *work)
{
	const struct push_progress more = {
		.done = work->length,
		.zeroes = work->length,
		.digest = push_digest_zeroes(work->offset, work->length),
	};

	push_group_count(work->sink->group, &more);
	answer_add(work);
}

static void sink_flush_done(struct work *work)
{
	struct push_sink *sink = work->sink;
	struct push_progress *progress = &sink->session->progress;
	uint64_t length = sink->claim->ticket.length;

	push_group_progress(sink->group, progress);
	progress->durable = MIN(work->flush.mark, progress->done);
	if ((work->flush.flags & PUSH_FLUSH_FINISH) == 0) {
		answer_add(work);
	} else if (progress->done != length) {
		push_session_fail(sink->session, "H9: the last FLUSH came before the whole "
						 "range of the ticket was received");
	} else if (progress->digest != work->flush.digest) {
		push_session_job_fail(sink->session, -EIO,
			"the received data differs from what the source has read");
	} else if ((sink->claim->ticket.flags & PUSH_READ_BACK) != 0) {
		sink->session->job_state = PUSH_JOB_FINISHES;
		read_back_begin(sink);
	} else {
		answer_add(work);
	}
}

static void read_back_done(struct work *work)
{
	struct push_sink *sink = work->sink;

	sink->read_back_done += work->length;
	sink->read_back_digest +=
		push_digest(work->offset, (uint32_t)work->length, work->found_crc);
	if (sink->read_back_done < sink->claim->ticket.length) {
		read_back_begin(sink);
	} else if (sink->read_back_digest != sink->session->progress.digest) {
		push_session_job_fail(sink->session, -EIO,
			"the data on the destination's disk differs from what was written");
	} else {
		answer_add(&sink->works[FIRST_FLUSH]);
	}
}

static void work_done(struct work *work, int error)
{
	static void (*const done[])(struct work * work) = {
		[WORK_PIECE] = sink_piece_done,
		[WORK_CHECK] = check_done,
		[WORK_ZERO] = sink_zero_done,
		[WORK_FLUSH] = sink_flush_done,
		[WORK_READ_BACK] = read_back_done,
	};
	static const char *const failed[] = {
		[WORK_PIECE] = "cannot write the destination",
		[WORK_CHECK] = "cannot read the destination",
		[WORK_ZERO] = "cannot zero the destination",
		[WORK_FLUSH] = "cannot make the destination durable",
		[WORK_READ_BACK] = "cannot read the destination",
	};

	if (error != 0) {
		sink_fail(work->sink, error, failed[work->kind]);
	} else {
		done[work->kind](work);
	}
}

/* --- requests to the store ------------------------------------------------------------------- */

/* Called when a piece is not written although it has arrived, because the session ends. The source
 * can send it on another connection of the job. */
static void lose(struct work *work)
{
	if (work->kind == WORK_PIECE) {
		push_group_give(work->sink->group, work->offset, work->length);
	}
}

static void path_ended(struct work *work)
{
	path_finish(&work->path);
	engine_request_end(&work->sink->session->base);
	sink_set_state(work, WORK_IDLE);
}

static void work_progress(struct path_request *request)
{
	struct work *work = container_of(request, struct work, path);
	struct push_sink *sink = work->sink;
	struct path_fragment fragment;
	int error;

	if (sink_is_over(sink)) { /* the session is ending, and the request was abandoned */
		if (path_is_idle(request)) {
			path_ended(work);
			lose(work);
		}
		return;
	}
	while (request->op == STORE_READ && path_next_fragment(request, UINT32_MAX, &fragment)) {
		work->found_crc =
			crc32c(work->found_crc, mem_cpu_read(fragment.memory), fragment.length);
		path_fragment_sent(&fragment);
	}
	if (path_status(request) == PATH_PENDING) {
		return;
	}
	error = request->error;
	path_ended(work);
	sink->session->base.progress_ns = ring_batch_ns(sink->session->base.engine->ring);
	work_done(work, error);
	if (!sink_is_over(sink)) {
		push_sink_advance(sink->session);
	}
}

static void work_begin(struct work *work)
{
	struct push_sink *sink = work->sink;
	struct session *base = &sink->session->base;
	struct path_request *request = &work->path;

	engine_request_begin(base);
	list_remove(&work->node);
	sink_set_state(work, WORK_BUSY);
	*request = (struct path_request){
		.client = &base->client,
		.op = operations[work->kind],
		.offset = work->kind == WORK_FLUSH ? 0 : sink->claim->ticket.offset + work->offset,
		.length = work->kind == WORK_FLUSH ? 0 : work->length,
		.requester = base->peer.id,
		.window_bytes = PATH_WINDOW_BYTES,
		.ascending = true,
		.internal = true,
		.memory_rights = MEM_CPU_READ,
		.export = base->path_export,
		.progress = work_progress,
	};
	if (work->kind == WORK_PIECE) {
		uint64_t at =
			(uint64_t)(work - sink->works) * PUSH_SLOT_BYTES + PUSH_SLOT_HEAD_BYTES;

		work->segment = (struct mem_segment){
			.memory = mem_at(&sink->memory, at),
			.bytes = work->length,
		};
		request->memory_rights = 0;
		request->placement = &work->segment;
		request->placement_count = 1;
	}
	path_start(base->engine->path, request);
	/* Every store can write directly from RAM, which the slot is, so path_start() has not set
	 * placement to NULL. */
	GMB_ASSERT(work->kind != WORK_PIECE || request->placement != NULL);
}

/* Starts waiting work in order, as far as the limits of the engine permit. */
void push_sink_advance(struct push_session *session)
{
	struct push_sink *sink = session->sink;
	struct session *base = &session->base;
	struct list_node *node;

	turns_remove(&base->blocked_turn);
	send_answers(sink);
	while (!sink_is_over(sink) && (node = list_first(&sink->waiting)) != NULL &&
		!session_waits_to_move(base)) {
		struct work *work = list_entry(node, struct work, node);
		uint64_t bytes =
			work->kind == WORK_FLUSH ? 0
			: work->kind == WORK_ZERO
				? engine_request_bytes(base, STORE_ZERO, 0,
					  sink->claim->ticket.offset + work->offset, work->length)
				: work->length;

		if (!engine_request_may(base) ||
			!engine_request_may_move(base, operations[work->kind], bytes)) {
			return;
		}
		if (base->lease_checked && (BIT(operations[work->kind]) & STORE_CHANGES) != 0) {
			push_session_job_fail(session, -EPERM, session_lease_text);
			return;
		}
		work_begin(work);
	}
}

static void work_add(struct work *work, uint64_t offset, uint64_t length, uint32_t crc)
{
	work->offset = offset;
	work->length = length;
	work->crc = crc;
	work->found_crc = 0;
	sink_set_state(work, WORK_WAITS);
	list_push_back(&work->sink->waiting, &work->node);
}

/* Returns an idle entry among `count` entries from `first` on. Returns NULL if there is none,
 * because the source exceeds the limit. */
static struct work *work_idle(struct push_sink *sink, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++) {
		if (sink->works[i].state == WORK_IDLE) {
			return &sink->works[i];
		}
	}
	return NULL;
}

static void read_back_begin(struct push_sink *sink)
{
	uint64_t length = sink->claim->ticket.length;
	struct work *work;

	while (sink->read_back_at < length &&
		(work = work_idle(sink, FIRST_READ_BACK, READ_BACKS)) != NULL) {
		uint64_t bytes = MIN(length - sink->read_back_at, (uint64_t)PUSH_PIECE_BYTES);

		work_add(work, sink->read_back_at, bytes, 0);
		sink->read_back_at += bytes;
	}
}

/* --- messages of the source ------------------------------------------------------------------ */

/* Processes a piece whose bytes are in memory. Returns NULL or the broken rule. */
static const char *piece_came(struct push_sink *sink, uint32_t slot)
{
	const uint8_t *data =
		sink->memory.base + (size_t)slot * PUSH_SLOT_BYTES + PUSH_SLOT_HEAD_BYTES;
	struct push_wire_piece head;
	const char *rule;

	memcpy(&head, data - sizeof(head), sizeof(head));
	rule = push_piece_check(&head, sink->claim->ticket.length);
	if (rule == NULL) {
		rule = push_group_take(sink->group, head.offset, head.length);
	}
	if (rule != NULL) {
		return rule;
	}
	/* If the source's disk writes directly into the slot, the source computed the checksum from
	 * the same memory, so comparing it is pointless. */
	if (!sink->is_mapped && crc32c(0, data, head.length) != head.crc) {
		push_session_job_fail(sink->session, -EIO, "a piece was corrupted in transit");
		return NULL;
	}
	work_add(&sink->works[slot], head.offset, head.length, head.crc);
	return NULL;
}

static const char *take_piece(struct push_sink *sink, uint32_t value)
{
	uint32_t slot = value & ((1U << PUSH_NOTIFY_SHIFT) - 1);
	uint64_t at = (uint64_t)slot * PUSH_SLOT_BYTES;
	int result;

	if (value >> PUSH_NOTIFY_SHIFT != PUSH_NOTIFY_PIECE || slot >= sink->slot_count ||
		!sink->lent[slot] || sink->works[slot].state != WORK_IDLE) {
		return "H10: a slot that was not lent to the source";
	}
	sink->lent[slot] = false;
	if (sink->fetched == NULL) {
		return piece_came(sink, slot);
	}
	result = clan_region_fetch(sink->session->in.conn, sink->region, at, sink->fetched + at,
		PUSH_SLOT_BYTES, &sink->works[slot]);
	if (result == 0) {
		sink_set_state(&sink->works[slot], WORK_COMES);
	} else {
		sink_fail(sink, result, "cannot fetch a piece");
	}
	return NULL;
}

static void fetched(struct push_sink *sink, struct work *work)
{
	const char *rule;

	sink_set_state(work, WORK_IDLE);
	if (sink->session->job == 0) {
		return; /* the job ended while the bytes were copied */
	}
	rule = piece_came(sink, (uint32_t)(work - sink->works));
	if (rule != NULL) {
		push_session_fail(sink->session, rule);
	} else if (!sink_is_over(sink)) {
		push_sink_advance(sink->session);
	}
}

/* The next functions process ZERO, CHECK and FLUSH. Each queues the work and returns NULL, or
 * returns the broken rule. */
static const char *take_zero(struct push_sink *sink, const uint8_t *bytes, uint32_t len)
{
	struct work *work = work_idle(sink, FIRST_ZERO, PUSH_ZEROES_MAX);
	struct push_wire_range zero;
	const char *rule = push_parse(PUSH_ZERO, bytes, len, &zero);

	if (rule == NULL) {
		rule = push_zero_check(&zero, sink->claim->ticket.length);
	}
	if (rule == NULL && work == NULL) {
		rule = "H9: more ZEROs than may be in flight";
	}
	if (rule == NULL) {
		rule = push_group_take(sink->group, zero.offset, zero.length);
	}
	if (rule == NULL) {
		work_add(work, zero.offset, zero.length, 0);
	}
	return rule;
}

static const char *take_check(struct push_sink *sink, const uint8_t *bytes, uint32_t len)
{
	struct work *work = work_idle(sink, FIRST_CHECK, PUSH_SLOTS);
	struct push_wire_check check;
	const char *rule = push_parse(PUSH_CHECK, bytes, len, &check);

	if (rule == NULL) {
		rule = push_check_check(&check, sink->claim->ticket.length);
	}
	if (rule == NULL && (work == NULL || (sink->claim->ticket.flags & PUSH_COMPARE) == 0)) {
		rule = "H9: a CHECK that the ticket does not allow, or too many";
	}
	if (rule == NULL && !push_group_lacks(sink->group, check.offset, check.length)) {
		rule = "H9: a CHECK of a piece that was already handled";
	}
	if (rule == NULL) {
		work_add(work, check.offset, check.length, check.crc);
	}
	return rule;
}

static const char *take_flush(struct push_sink *sink, const uint8_t *bytes, uint32_t len)
{
	struct work *work = &sink->works[FIRST_FLUSH];
	struct push_wire_flush flush;
	const char *rule = push_parse(PUSH_FLUSH, bytes, len, &flush);

	if (rule == NULL &&
		(work->state != WORK_IDLE || flush.mark > push_group_low(sink->group))) {
		rule = "H9: a second FLUSH, or one before all pieces arrived";
	}
	if (rule == NULL) {
		work->flush = flush;
		work_add(work, 0, 0, 0);
	}
	return rule;
}

/* Answers DROP for the connections that have ended. */
static void answer_drops(struct push_sink *sink)
{
	for (uint32_t i = 1; i < PUSH_FLOWS_MAX; i++) {
		struct push_wire_dropped dropped = { .number = i };

		if ((sink->drops & BIT(i)) != 0 && push_group_drop(sink->group, &dropped) &&
			sink_tell(sink, PUSH_DROPPED, &dropped, sizeof(dropped))) {
			sink->drops &= ~BIT(i);
		}
	}
}

static const char *take_drop(struct push_sink *sink, const uint8_t *bytes, uint32_t len)
{
	struct push_wire_drop drop;
	const char *rule = push_parse(PUSH_DROP, bytes, len, &drop);

	if (rule == NULL && (sink->drops & BIT(drop.number)) != 0) {
		rule = "H11: a second DROP of a connection";
	}
	if (rule == NULL) {
		sink->drops |= BIT(drop.number);
		answer_drops(sink);
	}
	return rule;
}

bool push_sink_tick(struct push_session *session)
{
	struct push_sink *sink = session->sink;
	char text[PUSH_TEXT_BYTES_MAX];
	int status;

	if (sink->number != 0) {
		if (push_group_goes_on(sink->group, sink->number)) {
			return true;
		}
		session->job = 0; /* the job continues without this connection */
		session_terminate(&session->base, NULL);
		return false;
	}
	push_group_progress(sink->group, &session->progress);
	answer_drops(sink);
	status = push_group_error(sink->group, text);
	if (status != 0) {
		push_session_job_fail(session, status, text);
	}
	return status == 0;
}

void push_sink_ended(struct push_session *session, int status, const char *text)
{
	struct push_sink *sink = session->sink;

	if (sink->group == NULL) {
		return;
	}
	if (sink->number == 0) {
		push_group_progress(sink->group, &session->progress);
		push_group_end(sink->group);
	} else if (status != 0 && sink->is_shared) {
		/* before, JOIN was refused, and the job continues with its other connections */
		push_group_fail(sink->group, status, text);
	}
}

void push_sink_take(
	struct push_session *session, const struct clan_message *message, const uint8_t *bytes)
{
	struct push_sink *sink = session->sink;
	const char *rule = "H2: an unexpected message";

	if (message->cls == CLAN_BULK && sink->is_shared && message->type == PUSH_ALIVE) {
		rule = push_alive_parse(message->bytes);
	} else if (message->cls == CLAN_BULK && sink->is_shared && message->type == PUSH_DROP &&
		   !session->is_extra) {
		/* also while the disk is read back, and after the end of the job */
		rule = take_drop(sink, bytes, message->bytes);
	} else if (message->cls == CLAN_BULK && sink->is_shared && session->job != 0 &&
		   sink->read_back_at == 0) {
		rule = message->type == CLAN_TYPE_NOTIFY ? take_piece(sink, message->value)
		       : session->is_extra		 ? rule
		       : message->type == PUSH_ZERO	 ? take_zero(sink, bytes, message->bytes)
		       : message->type == PUSH_CHECK	 ? take_check(sink, bytes, message->bytes)
		       : message->type == PUSH_FLUSH	 ? take_flush(sink, bytes, message->bytes)
							 : rule;
	}
	if (rule != NULL) {
		push_session_fail(session, rule);
	}
}

/* --- the start ------------------------------------------------------------------------------- */

/* Called when the source has accepted or refused the region. If it accepted, grants the cookies and
 * sends USED; otherwise the push fails. */
static void region_shared(struct push_sink *sink, const struct clan_event *event)
{
	struct push_session *session = sink->session;
	uint64_t handshake_ns = session->base.engine->limits.handshake_timeout_ns;
	uint64_t silence_ms =
		MIN(PUSH_ALIVE_DIVISOR * handshake_ns / 1000000, (uint64_t)PUSH_SILENCE_MS_MAX);
	const struct push_wire_used used = {
		.offset = sink->claim->ticket.offset,
		.length = sink->claim->ticket.length,
		.slots = sink->slot_count,
		.generation = event->generation,
		.region = (uint16_t)event->number,
		.silence_ms = MAX((uint32_t)silence_ms, (uint32_t)PUSH_SILENCE_MS_MIN),
	};
	int result = event->status;

	for (uint32_t i = 0; i < sink->slot_count && result == 0; i++) {
		result = clan_cookie_grant(session->in.conn, sink->region,
			(uint64_t)i * PUSH_SLOT_BYTES, PUSH_SLOT_BYTES, CLAN_WRITE, 0,
			&sink->cookies[i]);
	}
	if (result != 0) {
		sink_fail(sink, result, "the source does not accept staging memory");
		return;
	}
	sink->is_shared = true;
	sink->is_mapped = (clan_conn_caps(session->in.conn) & CLAN_CAN_MAP) != 0;
	push_session_begun(session, used.silence_ms);
	if (!sink_tell(sink, PUSH_USED, &used, sizeof(used))) {
		push_session_fail(session, "H2: the peer does not read its messages");
		return;
	}
	for (uint32_t i = 0; i < sink->slot_count && !sink_is_over(sink); i++) {
		/* lends the slot to the source, as after a written piece */
		answer_add(&sink->works[i]);
	}
}

void push_sink_event(struct push_session *session, const struct clan_event *event)
{
	struct push_sink *sink = session->sink;

	if (event->type == CLAN_EVENT_SHARED && session->base.state == SESSION_READY) {
		region_shared(sink, event);
	} else if (event->type == CLAN_EVENT_DONE) {
		fetched(sink, event->op);
	}
}

/* --- the end --------------------------------------------------------------------------------- */

void push_sink_abort(struct push_session *session)
{
	struct push_sink *sink = session->sink;

	for (uint32_t i = 0; i < WORKS; i++) {
		struct work *work = &sink->works[i];

		if (work->state == WORK_COMES) {
			/* The connection is not closed before a helper thread has finished its copy
			 * to this slot. */
			sink_set_state(work, WORK_IDLE);
		} else if (work->state == WORK_WAITS || work->state == WORK_ANSWERS) {
			if (work->state == WORK_WAITS) {
				lose(work);
			}
			list_remove(&work->node);
			sink_set_state(work, WORK_IDLE);
		} else if (work->state == WORK_BUSY && path_abandon(&work->path)) {
			path_ended(work);
			lose(work);
		}
	}
}

bool push_sink_join(struct push_session *session)
{
	struct push_sink *sink = session->sink;

	for (uint32_t i = 0; i < WORKS; i++) {
		if (sink->works[i].state != WORK_IDLE) {
			return false;
		}
	}
	if (sink->memory.base != NULL) {
		ring_memory_remove(session->base.engine->ring, &sink->memory);
		sink->memory.base = NULL;
	}
	return true;
}

void push_sink_free(struct push_session *session)
{
	struct push_sink *sink = session->sink;

	if (sink == NULL) {
		return;
	}
	if (sink->region != NULL) {
		int result = clan_region_destroy(sink->region);

		GMB_ASSERT(result == 0);
	}
	push_staging_give(sink->slot_count);
	if (sink->group != NULL) {
		push_group_leave(sink->group, sink->number);
	}
	free(sink->fetched);
	free(sink);
}
