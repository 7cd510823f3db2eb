// SPDX-License-Identifier: Apache-2.0
/*
 * The source of a job: reads pieces of its export and puts them into slots that the destination
 * lends.
 *
 *   AWAY ─ cookie ─▶ FREE ─▶ READING ─▶ READ ─▶ PUTTING ─▶ SENT ─ cookie ─▶ FREE
 *                     ▲         │       │  ▲
 *                     │         │       ▼  │ differs
 *                     └ zeroes ─┴── CHECKING
 *                                 equal
 *
 * In the diagram, "zeroes" is a piece that was read and contains only zeroes. It is sent as a
 * message, which needs no slot. CHECKING asks the destination to compare a piece with its own data,
 * and ends with "equal" or "differs". A piece is put by copying it into the destination's memory
 * with clan_put(). If this memory is mapped, our disk reads directly into it, and only the head of
 * a piece is put. Otherwise each slot has a counterpart in our own memory, from which the complete
 * piece is put. When the destination returns a cookie, the piece of its slot is written. For a
 * destination without push, nbd.c takes the role of the destination, with slots in our own memory.
 * The connection sends messages only after earlier puts, so it can run out of room for messages. A
 * message that found no room is sent again when there is room.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "push/source.h"

enum {
	/* After this many consecutive pieces that differ, pieces are sent without being compared.
	 * An interrupted job can leave fewer than PUSH_SOURCE_SLOTS pieces unwritten between
	 * written ones, which must not end the comparison of a repeated job. */
	DIFFER_MAX = PUSH_SOURCE_SLOTS,
};

#define NS_PER_S      UINT64_C(1000000000)
#define FLUSH_BYTES   ((uint64_t)256 << 20)
#define FLUSH_NS      NS_PER_S
#define MAP_BYTES_MAX ((uint64_t)1 << 30)
/* A late tick delays a job with a rate limit. The job may send faster afterwards to make up for
 * this much lost time. */
#define RATE_BACK_NS (2 * PUSH_TICK_NS)

static const uint32_t slot_edges[SLOT_STATE_COUNT] = {
	[SLOT_AWAY] = BIT(SLOT_FREE),
	[SLOT_FREE] = BIT(SLOT_READING),
	[SLOT_READING] = BIT(SLOT_READ) | BIT(SLOT_FREE),
	[SLOT_READ] = BIT(SLOT_CHECKING) | BIT(SLOT_PUTTING),
	[SLOT_CHECKING] = BIT(SLOT_READ) | BIT(SLOT_FREE),
	/* READ and FREE from PUTTING, and READ from SENT: the connection was lost */
	[SLOT_PUTTING] = BIT(SLOT_SENT) | BIT(SLOT_READ) | BIT(SLOT_FREE),
	[SLOT_SENT] = BIT(SLOT_FREE) | BIT(SLOT_READ),
};

void push_source_set_state(struct push_slot *slot, enum push_slot_state state)
{
	GMB_ASSERT((slot_edges[slot->state] & BIT(state)) != 0);
	slot->state = state;
}

void push_source_fail(struct push_source *source, int status, const char *format, const char *what)
{
	char text[PUSH_TEXT_BYTES_MAX];

	snprintf(text, sizeof(text), format, what);
	push_session_job_fail(source->session, status, text);
}

static void source_fail_rule(struct push_source *source, const char *rule)
{
	push_source_fail(source, -EPROTO, "the destination broke a push rule: %s", rule);
}

bool push_source_is_over(const struct push_source *source)
{
	return source->session->base.state == SESSION_TERMINATING || source->session->job == 0;
}

/* --- pieces ---------------------------------------------------------------------------------- */

void push_source_piece_done(struct push_slot *slot, bool skipped)
{
	struct push_progress *progress = &slot->source->session->progress;

	progress->done += slot->length;
	progress->skipped += skipped ? slot->length : 0;
	progress->digest += push_digest(slot->offset, slot->length, slot->crc);
	push_source_set_state(slot, SLOT_FREE);
}

void push_source_put_done(struct push_slot *slot)
{
	struct push_flow *flow = slot->flow;

	flow->users[slot->lent] = NULL;
	flow->has_cookie[slot->lent] = true;
	push_source_piece_done(slot, false);
}

void push_source_put_ended(struct push_slot *slot)
{
	push_source_set_state(slot, SLOT_SENT);
	if (slot->is_back) {
		slot->is_back = false;
		push_source_put_done(slot);
	}
}

void push_source_written(struct push_slot *slot)
{
	push_source_set_state(slot, SLOT_SENT);
	push_source_piece_done(slot, false);
}

/* Copies a piece to the destination's memory with clan_put(). If that memory is mapped, only the
 * head of the piece is copied. Returns false if no lent slot is free or the connection has no
 * room. */
static bool source_put(struct push_slot *slot)
{
	struct push_source *source = slot->source;
	uint32_t lent;
	struct push_flow *flow = push_flow_choose(slot, &lent);
	const struct push_wire_piece head = {
		.magic = PUSH_PIECE_MAGIC,
		.crc = slot->crc,
		.offset = slot->offset,
		.length = slot->length,
	};
	uint8_t *own = push_slot_data(slot) - sizeof(head);
	struct iovec from = { &slot->head, sizeof(head) };
	int result;

	if (flow == NULL) {
		return false;
	}
	if (source->maps) {
		slot->head = head;
	} else {
		memcpy(own, &head, sizeof(head));
		from = (struct iovec){ own, sizeof(head) + slot->length };
	}
	result = clan_put(source->session->out[flow - source->flows].conn, &from, 1,
		&flow->cookies[lent], PUSH_SLOT_HEAD_BYTES - sizeof(head), CLAN_NOTIFY,
		PUSH_NOTIFY_PIECE << PUSH_NOTIFY_SHIFT | lent, slot);
	if (result == 0) {
		flow->has_cookie[lent] = false;
		flow->users[lent] = slot;
		source->flow_last = (uint32_t)(flow - source->flows);
		slot->flow = flow;
		slot->lent = lent;
		push_source_set_state(slot, SLOT_PUTTING);
		if (source->maps) {
			push_source_put_ended(slot); /* otherwise CLAN_EVENT_DONE reports the end */
		}
		return true;
	}
	if (result != -EAGAIN && result != -ENOTCONN) {
		push_source_fail(source, result, "cannot access the memory of the destination: %s",
			strerror(-result));
	}
	return false;
}

/* Returns true if one more CHECK may be in flight. */
static bool may_check(const struct push_source *source)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < source->slot_count; i++) {
		count += source->slots[i].state == SLOT_CHECKING;
	}
	return count < PUSH_SLOTS;
}

/* Sends a piece that was read: only its checksum (CHECK) if slot->asks is set, otherwise its bytes
 * with a put. Returns false if there is no room. */
static bool piece_send(struct push_slot *slot)
{
	const struct push_wire_check check = {
		.offset = slot->offset, .length = slot->length, .crc = slot->crc
	};

	if (slot->source->nbd != NULL) {
		push_nbd_send(slot);
		push_source_set_state(slot, slot->asks ? SLOT_CHECKING : SLOT_PUTTING);
		return true;
	}
	if (!slot->asks) {
		return source_put(slot);
	}
	if (!may_check(slot->source) ||
		!push_flow_tell(slot->source, PUSH_CHECK, &check, sizeof(check))) {
		return false;
	}
	push_source_set_state(slot, SLOT_CHECKING);
	return true;
}

static void send_what_was_read(struct push_source *source)
{
	for (uint32_t i = 0; i < source->slot_count && !push_source_is_over(source); i++) {
		if (source->slots[i].state == SLOT_READ) {
			(void)piece_send(&source->slots[i]); /* if it waits, an event follows */
		}
	}
}

static bool source_is_zero(const uint8_t *bytes, uint32_t len)
{
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0;
}

/* Sends ZERO. Returns false if too many ZEROs are in flight or the connection has no room. */
static bool send_zeroes(struct push_source *source, uint64_t offset, uint64_t length)
{
	const struct push_wire_range zeroes = { offset, length };

	for (uint32_t i = 0; i < PUSH_ZEROES_MAX; i++) {
		if (source->zeroes[i].length == 0) {
			if (source->nbd != NULL) {
				push_nbd_zero(source, i, &zeroes);
			} else if (!push_flow_tell(source, PUSH_ZERO, &zeroes, sizeof(zeroes))) {
				return false;
			}
			source->zeroes[i] = zeroes;
			return true;
		}
	}
	return false;
}

static void piece_read(struct push_slot *slot)
{
	struct push_source *source = slot->source;
	const uint8_t *data = push_slot_data(slot);

	if (!source->no_zeroes && source_is_zero(data, slot->length) &&
		send_zeroes(source, slot->offset, slot->length)) {
		push_source_set_state(slot, SLOT_FREE);
		return;
	}
	slot->crc = crc32c(0, data, slot->length);
	slot->asks = (source->flags & PUSH_COMPARE) != 0 && source->differ_count < DIFFER_MAX;
	push_source_set_state(slot, SLOT_READ);
}

static void source_read_progress(struct path_request *request)
{
	struct push_slot *slot = container_of(request, struct push_slot, read);
	struct push_source *source = slot->source;
	struct push_session *session = source->session;
	struct path_fragment fragment;
	int error;

	/* the session is ending, and the request was abandoned */
	if (session->base.state == SESSION_TERMINATING) {
		if (path_is_idle(request)) {
			path_finish(request);
			engine_request_end(&session->base);
			push_source_set_state(slot, SLOT_FREE);
		}
		return;
	}
	while (path_next_fragment(request, UINT32_MAX, &fragment)) {
		path_fragment_sent(&fragment); /* the disk has read directly into the slot */
	}
	if (path_status(request) == PATH_PENDING) {
		return;
	}
	error = request->error;
	path_finish(request);
	engine_request_end(&session->base);
	if (error != 0) {
		push_source_set_state(slot, SLOT_FREE);
		push_source_fail(source, error, "cannot read the source: %s",
			error == -ESTALE ? "the snapshot of the source was deleted, or dropped to "
					   "make space for writes"
					 : strerror(-error));
		return;
	}
	session->base.engine->counters.bytes_read += slot->length;
	piece_read(slot);
	push_source_advance(session);
}

static void request_init(struct push_source *source, struct path_request *request, enum store_op op)
{
	struct session *base = &source->session->base;

	request->client = &base->client;
	request->op = op;
	request->flags = 0;
	request->requester = base->peer.id;
	request->extent_max = PUSH_EXTENTS_MAX;
	request->window_bytes = PATH_WINDOW_BYTES;
	request->ascending = false;
	request->whole = true;
	request->internal = true;
	request->memory_rights = 0;
	request->placement = NULL;
	request->placement_count = 0;
	request->export = source->snapshot.path != NULL ? source->snapshot.path : base->path_export;
}

/* Reads the next piece directly into its slot. */
static void read_begin(struct push_slot *slot, uint32_t length)
{
	struct push_source *source = slot->source;
	struct session *base = &source->session->base;
	struct path_request *request = &slot->read;

	engine_request_begin(base);
	push_source_set_state(slot, SLOT_READING);
	slot->offset = source->at;
	slot->length = length;
	slot->segment = (struct mem_segment){
		.memory = mem_add(push_slot_memory(slot), PUSH_SLOT_HEAD_BYTES),
		.bytes = length,
	};
	source->at += length;
	request_init(source, request, STORE_READ);
	request->offset = source->source_offset + slot->offset;
	request->length = length;
	request->placement = &slot->segment;
	request->placement_count = 1;
	request->progress = source_read_progress;
	path_start(base->engine->path, request);
	GMB_ASSERT(request->placement != NULL); /* every store can read into RAM */
}

/* --- the map of extents ---------------------------------------------------------------------- */

static void source_map_progress(struct path_request *map)
{
	struct push_source *source = container_of(map, struct push_source, map);

	if (path_status(map) == PATH_PENDING && !(map->abandoned && path_is_idle(map))) {
		return;
	}
	source->mapping = false;
	if (map->error != 0) {
		/* The job continues without the map of the extents. If the store has failed,
		 * reading the data fails with the same error. */
		source->no_map = true;
	} else if (!map->abandoned) {
		source->extent_count = map->extent_count;
		memcpy(source->extents, map->extents,
			map->extent_count * sizeof(source->extents[0]));
		source->map_begin = map->offset - source->source_offset;
		source->map_end = source->map_begin;
		for (uint32_t i = 0; i < source->extent_count; i++) {
			source->map_end += source->extents[i].length;
		}
	}
	path_finish(map);
	if (!push_source_is_over(source)) {
		push_source_advance(source->session);
	}
}

static void source_map_ask(struct push_source *source)
{
	struct path_request *map = &source->map;

	request_init(source, map, STORE_EXTENTS);
	map->offset = source->source_offset + source->at;
	map->length = MIN(source->length - source->at, MAP_BYTES_MAX);
	map->progress = source_map_progress;
	source->mapping = true;
	path_start(source->session->base.engine->path, map);
}

/* Returns the number of zero bytes from source->at on, according to the map of the extents. */
static uint64_t zeroes_at(const struct push_source *source)
{
	uint64_t end = source->map_begin;
	uint64_t zeroes = 0;

	for (uint32_t i = 0; i < source->extent_count; i++) {
		uint64_t begin = end;

		end += source->extents[i].length;
		if (end <= source->at) {
			continue;
		}
		if ((source->extents[i].flags & STORE_EXTENT_ZERO) == 0) {
			break;
		}
		zeroes += end - MAX(begin, source->at);
	}
	return zeroes;
}

/* --- progress -------------------------------------------------------------------------------- */

/* Returns the offset below which everything has been written. */
static uint64_t source_mark(const struct push_source *source)
{
	uint64_t lowest = source->at;

	for (uint32_t i = 0; i < source->slot_count; i++) {
		if (source->slots[i].state > SLOT_FREE) {
			lowest = MIN(lowest, source->slots[i].offset);
		}
	}
	for (uint32_t i = 0; i < PUSH_ZEROES_MAX; i++) {
		if (source->zeroes[i].length > 0) {
			lowest = MIN(lowest, source->zeroes[i].offset);
		}
	}
	return lowest;
}

/* Sends FLUSH. If there is no room, flush_if_due() sends it at a later tick. */
static void source_flush(struct push_source *source, bool finish)
{
	struct push_session *session = source->session;
	const struct push_wire_flush message = {
		.mark = source_mark(source),
		.digest = session->progress.digest,
		.flags = finish ? (uint32_t)PUSH_FLUSH_FINISH : 0,
	};

	if (source->nbd != NULL) {
		push_nbd_flush(source, &message);
	} else if (!push_flow_tell(source, PUSH_FLUSH, &message, sizeof(message))) {
		return;
	}
	source->flushing = true;
	source->finishing = finish;
	source->flush_mark = message.mark;
	source->flush_ns = ring_now_ns(session->base.engine->ring);
	session->job_state = finish ? PUSH_JOB_FINISHES : PUSH_JOB_MOVES;
}

static void flush_if_due(struct push_source *source)
{
	struct push_session *session = source->session;
	uint64_t now = source_mark(source);

	if (source->slot_count == 0 || source->flushing) {
		return;
	}
	if (now == source->length) {
		source_flush(source, true);
	} else if (now - session->progress.durable >= FLUSH_BYTES ||
		   (now > session->progress.durable &&
			   ring_now_ns(session->base.engine->ring) - source->flush_ns >=
				   FLUSH_NS)) {
		source_flush(source, false);
	}
}

/* Returns the time that the job's rate limit allots to that many bytes. */
static uint64_t rate_time_ns(const struct push_source *source, uint64_t bytes)
{
	return source->rate == 0
		       ? 0
		       : (uint64_t)((double)bytes * (double)NS_PER_S / (double)source->rate);
}

/* Returns true if the job's rate limit permits that many bytes now. Otherwise the next tick
 * retries. */
static bool rate_is_open(struct push_source *source, uint64_t bytes)
{
	uint64_t now_ns = ring_now_ns(source->session->base.engine->ring);
	uint64_t time_ns = rate_time_ns(source, bytes);
	uint64_t back_ns = MIN(now_ns, time_ns + RATE_BACK_NS);

	source->rate_ns = MAX(source->rate_ns, now_ns - back_ns);
	return source->rate_ns + time_ns <= now_ns;
}

static struct push_slot *free_slot(struct push_source *source)
{
	for (uint32_t i = 0; i < source->slot_count; i++) {
		if (source->slots[i].state == SLOT_FREE) {
			return &source->slots[i];
		}
	}
	return NULL;
}

/* Starts the next piece or run of zeroes. Returns false if it has to wait. */
static bool begin_next(struct push_source *source)
{
	struct session *base = &source->session->base;
	uint64_t left = source->length - source->at;
	uint32_t length = (uint32_t)MIN(left, (uint64_t)PUSH_PIECE_BYTES);
	struct push_slot *slot;
	uint64_t zeroes;

	if (!source->no_map && (source->at < source->map_begin || source->at >= source->map_end)) {
		source_map_ask(source);
		return false;
	}
	zeroes = source->no_map ? 0 : MIN(zeroes_at(source), left);
	if (zeroes >= length) {
		uint64_t run = zeroes == left ? left : align_down(zeroes, PUSH_PIECE_BYTES);

		run = MIN(run, PUSH_ZERO_BYTES_MAX);
		if (!send_zeroes(source, source->at, run)) {
			return false;
		}
		source->at += run;
		return true;
	}
	slot = free_slot(source);
	if (slot == NULL || !rate_is_open(source, length) || !engine_request_may(base) ||
		!engine_request_may_move(base, STORE_READ, length)) {
		return false;
	}
	source->rate_ns += rate_time_ns(source, length);
	read_begin(slot, length);
	return true;
}

void push_source_advance(struct push_session *session)
{
	struct push_source *source = session->source;

	if (source->slot_count == 0 || push_source_is_over(source)) {
		return;
	}
	turns_remove(&session->base.blocked_turn);
	if (source->nbd == NULL) {
		push_flow_advance(source);
	}
	send_what_was_read(source);
	while (!push_source_is_over(source) && source->at < source->length && !source->mapping &&
		!rate_waits(&session->base.rate)) {
		if (!begin_next(source)) {
			break;
		}
	}
	if (!push_source_is_over(source)) {
		flush_if_due(source);
	}
}

void push_source_tick(struct push_session *session)
{
	uint64_t now_ns = ring_batch_ns(session->base.engine->ring);

	if (session->source->rate > 0 || session->source->nbd != NULL) {
		/* A job that waits for its rate limit or its NBD destination must not count as
		 * stalled. So each tick counts as progress. */
		session->base.progress_ns = now_ns;
	}
	/* There is no silence to detect: without a connection there is no peer yet, and over NBD
	 * libgmblock detects it. */
	if (session->source->uri != NULL || session->source->nbd != NULL) {
		session->heard_ns = now_ns;
	}
	push_control_note(session, true);
	push_flow_tick(session->source);
	push_source_advance(session);
}

void push_source_lent(struct push_source *source, uint32_t silence_ms)
{
	struct push_session *session = source->session;

	source->flush_ns = ring_now_ns(session->base.engine->ring);
	source->rate_ns = source->flush_ns;
	push_session_begun(session, silence_ms);
	push_source_advance(session);
}

/* --- answers of the destination --------------------------------------------------------------- */

void push_source_zeroed(struct push_source *source, const struct push_wire_range *zeroed)
{
	struct push_progress *progress = &source->session->progress;

	for (uint32_t i = 0; i < PUSH_ZEROES_MAX; i++) {
		struct push_wire_range *zeroes = &source->zeroes[i];

		if (zeroes->length > 0 && zeroes->offset == zeroed->offset &&
			zeroes->length == zeroed->length) {
			progress->done += zeroes->length;
			progress->zeroes += zeroes->length;
			progress->digest += push_digest_zeroes(zeroes->offset, zeroes->length);
			zeroes->length = 0;
			return;
		}
	}
	source_fail_rule(source, "H9: ZEROED without a request");
}

void push_source_checked(struct push_source *source, const struct push_wire_checked *checked)
{
	for (uint32_t i = 0; i < source->slot_count; i++) {
		struct push_slot *slot = &source->slots[i];

		if (slot->state != SLOT_CHECKING || slot->offset != checked->offset) {
			continue;
		}
		if (checked->same != 0) {
			source->differ_count = 0;
			push_source_piece_done(slot, true);
		} else {
			source->differ_count++;
			slot->asks = false;
			push_source_set_state(slot, SLOT_READ);
		}
		return;
	}
	source_fail_rule(source, "H9: CHECKED without a request");
}

static void source_close_connections(struct push_session *session)
{
	for (uint32_t i = 0; i < PUSH_FLOWS_MAX; i++) {
		push_link_close(&session->out[i]);
	}
}

void push_source_flushed(struct push_source *source, const struct push_wire_flush *flushed)
{
	struct push_session *session = source->session;

	if (!source->flushing || flushed->mark != source->flush_mark) {
		source_fail_rule(source, "H9: FLUSHED without a request");
		return;
	}
	source->flushing = false;
	session->progress.durable = source->flush_mark;
	if (source->finishing && flushed->digest != session->progress.digest) {
		push_source_fail(source, -EIO, "%s has a different digest", "the destination");
	} else if (source->finishing) {
		source_close_connections(session);
		push_session_job_end(session, 0, NULL); /* the call may end the session */
	}
}

/* --- the end --------------------------------------------------------------------------------- */

void push_source_abort(struct push_session *session)
{
	struct push_source *source = session->source;

	if (source->nbd != NULL) {
		push_nbd_abort(source->nbd);
	}
	if (source->mapping && path_abandon(&source->map)) {
		source->mapping = false;
		path_finish(&source->map);
	}
	for (uint32_t i = 0; i < source->slot_count; i++) {
		struct push_slot *slot = &source->slots[i];

		if (slot->state == SLOT_READING && path_abandon(&slot->read)) {
			path_finish(&slot->read);
			engine_request_end(&session->base);
			push_source_set_state(slot, SLOT_FREE);
		}
	}
}

void push_source_ended(struct push_session *session)
{
	engine_snapshot_delete(&session->source->snapshot);
}

bool push_source_join(struct push_session *session)
{
	struct push_source *source = session->source;

	for (uint32_t i = 0; i < source->slot_count; i++) {
		if (source->slots[i].state == SLOT_READING) {
			return false;
		}
	}
	if (source->mapping || (source->nbd != NULL && !push_nbd_join(source->nbd))) {
		return false;
	}
	push_flow_release(source);
	return engine_snapshot_join(&source->snapshot);
}

void push_source_free(struct push_session *session)
{
	struct push_source *source = session->source;

	if (source == NULL) {
		return;
	}
	push_flow_free(source);
	push_nbd_free(source->nbd);
	free(source->uri);
	free(source);
}
