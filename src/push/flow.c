// SPDX-License-Identifier: Apache-2.0
/*
 * The connections of a source to its destination, and the memory of its slots.
 *
 *   CLOSED ─▶ CONNECTING ─ USED ─▶ OPEN ─▶ LOST ─ DROPPED, closed ─▶ CLOSED
 *                  └─────────────────────▶ ┘
 *
 * Connection 0 begins the job with USE, and the job ends with it. The others (JOIN) only carry
 * pieces, and only over networks, where the pieces are in our own memory. So a piece can be put on
 * any connection that has a cookie.
 *
 * When another connection is lost, it is unknown which of its pieces were written. So the source
 * asks (DROP). The destination answers when the connection's session has ended, because a late
 * write must not follow the end of the job. Pieces that were not written are put again on the
 * remaining connections, from the memory in which they still are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "push/source.h"

enum {
	MESSAGES_MAX = 64,
	LOSSES_MAX = 5, /* the pause before a new attempt no longer doubles */
};

#define RETRY_NS UINT64_C(1000000000)

static const uint32_t flow_edges[FLOW_STATE_COUNT] = {
	[FLOW_CLOSED] = BIT(FLOW_CONNECTING),
	[FLOW_CONNECTING] = BIT(FLOW_OPEN) | BIT(FLOW_LOST),
	[FLOW_OPEN] = BIT(FLOW_LOST),
	[FLOW_LOST] = BIT(FLOW_CLOSED),
};

static void flow_set_state(struct push_flow *flow, enum push_flow_state state)
{
	GMB_ASSERT((flow_edges[flow->state] & BIT(state)) != 0);
	flow->state = state;
}

static uint32_t flow_index(const struct push_flow *flow)
{
	return (uint32_t)(flow - flow->source->flows);
}

static struct push_link *link_of(const struct push_flow *flow)
{
	return &flow->source->session->out[flow_index(flow)];
}

bool push_flow_tell(struct push_source *source, uint32_t type, const void *bytes, uint32_t len)
{
	return clan_send(source->session->out[0].conn, CLAN_BULK, type, bytes, len) == 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

struct mem_ref push_slot_memory(const struct push_slot *slot)
{
	uint32_t number = (uint32_t)(slot - slot->source->slots);

	return mem_at(&slot->source->flows[number / PUSH_SLOTS].memory,
		(uint64_t)(number % PUSH_SLOTS) * PUSH_SLOT_BYTES);
}

uint8_t *push_slot_data(const struct push_slot *slot)
{
	return (uint8_t *)mem_address(push_slot_memory(slot)) + PUSH_SLOT_HEAD_BYTES;
}

int push_flow_own_slots(
	struct push_flow *flow, uint32_t slots_min, uint32_t slots_max, void **base_out)
{
	flow->staged_slots = push_staging_take(slots_min, slots_max);
	if (flow->staged_slots == 0) {
		return -EBUSY;
	}
	return clan_region_create(flow->source->session->service->base.queue,
		(uint64_t)flow->staged_slots * PUSH_SLOT_BYTES, 0, &flow->region, base_out);
}

const char *push_memory_text(int result)
{
	return result == -EBUSY ? "other pushes use all of the server's staging memory; try again "
				  "when one of them has finished"
				: strerror(-result);
}

void push_flow_has_memory(struct push_flow *flow, void *base, uint32_t slots)
{
	struct push_source *source = flow->source;
	uint32_t first = flow_index(flow) * PUSH_SLOTS;

	flow->memory = (struct mem_region){
		.base = base,
		.bytes = (uint64_t)slots * PUSH_SLOT_BYTES,
		/* Lent slots are not stable memory, because the destination can change them. */
		.rights = source->maps ? MEM_RAM & ~MEM_STABLE : MEM_RAM,
	};
	/* The registration only makes reads faster, so a failure is ignored. */
	(void)!ring_memory_add(source->session->base.engine->ring, &flow->memory);
	source->slot_count = MAX(source->slot_count, first + slots);
	for (uint32_t i = first; !source->maps && i < first + slots; i++) {
		push_source_set_state(&source->slots[i], SLOT_FREE);
	}
}

void push_flow_release(struct push_source *source)
{
	for (uint32_t i = 0; i < PUSH_FLOWS_MAX; i++) {
		struct push_flow *flow = &source->flows[i];

		if (flow->memory.base != NULL) {
			ring_memory_remove(source->session->base.engine->ring, &flow->memory);
			flow->memory.base = NULL;
			if (source->maps) {
				clan_peer_region_put(
					source->session->out[0].conn, flow->region_number);
			}
		}
	}
}

void push_flow_free(struct push_source *source)
{
	for (uint32_t i = 0; i < PUSH_FLOWS_MAX; i++) {
		if (source->flows[i].region != NULL) {
			int result = clan_region_destroy(source->flows[i].region);

			GMB_ASSERT(result == 0);
		}
		push_staging_give(source->flows[i].staged_slots);
	}
	free(source->address);
}

/* --- loss ------------------------------------------------------------------------------------- */

static void set_retry(struct push_flow *flow)
{
	flow->retry_ns = ring_now_ns(flow->source->session->base.engine->ring) +
			 (RETRY_NS << flow->loss_count);
	flow->loss_count = MIN(flow->loss_count + 1, (uint32_t)LOSSES_MAX);
}

/* Decides about the pieces of a lost connection, when the destination has answered DROP and nothing
 * reads our memory for the connection any more. */
static void settle(struct push_flow *flow)
{
	if (flow->state != FLOW_LOST || !flow->has_answer || link_of(flow)->conn != NULL) {
		return;
	}
	for (uint32_t i = 0; i < PUSH_SLOTS; i++) {
		struct push_slot *slot = flow->users[i];

		if (slot == NULL) {
			continue;
		}
		flow->users[i] = NULL;
		slot->is_back = false;
		if (flow->answer.written[i] == slot->offset) {
			push_source_piece_done(slot, false);
		} else {
			flow->source->session->base.engine->counters.push_resent++;
			push_source_set_state(slot, SLOT_READ);
		}
	}
	flow_set_state(flow, FLOW_CLOSED);
	push_source_advance(flow->source->session);
}

/* Closes an additional connection. */
static void flow_close(struct push_flow *flow)
{
	push_link_close(link_of(flow));
	memset(flow->has_cookie, 0, sizeof(flow->has_cookie));
	flow->has_asked = false;
	flow->has_answer = false;
	flow_set_state(flow, FLOW_LOST);
}

/* Ends a connection because of an error. The error text is format, with its one %s replaced by
 * what. */
static void flow_lost(struct push_flow *flow, int status, const char *format, const char *what)
{
	struct session *base = &flow->source->session->base;
	/* The destination closes these connections when all is written, perhaps before its answer
	 * on connection 0 is read. */
	enum log_level level = flow->source->finishing ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING;
	char text[PUSH_TEXT_BYTES_MAX];

	if (flow_index(flow) == 0) {
		push_source_fail(flow->source, status, format, what);
	} else if (flow->state == FLOW_CONNECTING || flow->state == FLOW_OPEN) {
		snprintf(text, sizeof(text), format, what);
		log_limited(session_log_limit(base), ring_batch_ns(base->engine->ring), level,
			"push for %s: connection %u: %s; the others continue", base->peer.text,
			flow_index(flow) + 1, text);
		set_retry(flow);
		flow_close(flow);
		push_flow_advance(flow->source);
	}
}

static void flow_lost_rule(struct push_flow *flow, const char *rule)
{
	flow_lost(flow, -EPROTO, "the destination broke a push rule: %s", rule);
}

static void take_dropped(struct push_source *source, const struct push_wire_dropped *dropped)
{
	struct push_flow *flow = &source->flows[MIN(dropped->number, PUSH_FLOWS_MAX - 1U)];

	if (dropped->number >= PUSH_FLOWS_MAX || flow->state != FLOW_LOST || !flow->has_asked ||
		flow->has_answer) {
		flow_lost_rule(&source->flows[0], "H11: DROPPED without a request");
		return;
	}
	flow->answer = *dropped;
	flow->has_answer = true;
	settle(flow);
}

/* --- cookies ---------------------------------------------------------------------------------- */

/* Processes a cookie, with which the destination returns a slot. Returns false if it breaks a rule,
 * such as a slot that is free already. */
static bool take_cookie(struct push_flow *flow, const struct clan_cookie *cookie)
{
	struct push_source *source = flow->source;
	uint64_t number = cookie->offset / PUSH_SLOT_BYTES;
	struct push_slot *user;

	if (number >= flow->lent_count || cookie->offset % PUSH_SLOT_BYTES != 0 ||
		cookie->bytes != PUSH_SLOT_BYTES || cookie->region != flow->region_number ||
		flow->has_cookie[number]) {
		return false;
	}
	user = flow->users[number];
	if (user != NULL && user->is_back) {
		return false;
	}
	flow->cookies[number] = *cookie;
	if (user == NULL) {
		flow->has_cookie[number] = true;
		if (source->maps) {
			push_source_set_state(&source->slots[number], SLOT_FREE);
		}
	} else if (user->state == SLOT_PUTTING) {
		user->is_back = true;
	} else {
		push_source_put_done(user);
	}
	return true;
}

static void take_cookies(struct push_flow *flow)
{
	struct clan_cookie cookie;

	while (flow->state == FLOW_OPEN && !push_source_is_over(flow->source) &&
		clan_cookie_queue_pop(link_of(flow)->conn, 0, &cookie) == 0) {
		if (!take_cookie(flow, &cookie)) {
			flow_lost_rule(flow, "H8: a cookie without a slot");
		}
	}
}

static uint32_t count_cookies(const struct push_flow *flow)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < flow->lent_count; i++) {
		count += flow->has_cookie[i];
	}
	return count;
}

/* A mapped slot has its own lent slot. Otherwise the connection with most free lent slots is
 * chosen, and of several such connections the next one in turn, so that all are used. */
struct push_flow *push_flow_choose(const struct push_slot *slot, uint32_t *lent_out)
{
	struct push_source *source = slot->source;
	struct push_flow *chosen = NULL;
	uint32_t most = 0;
	uint32_t lent = 0;

	if (source->maps) {
		*lent_out = (uint32_t)(slot - source->slots);
		return &source->flows[0];
	}
	for (uint32_t i = 1; i <= PUSH_FLOWS_MAX; i++) {
		struct push_flow *flow = &source->flows[(source->flow_last + i) % PUSH_FLOWS_MAX];
		uint32_t count = flow->is_retiring ? 0 : count_cookies(flow);

		if (flow->state == FLOW_OPEN && count > most) {
			chosen = flow;
			most = count;
		}
	}
	while (chosen != NULL && !chosen->has_cookie[lent]) {
		lent++;
	}
	*lent_out = lent;
	return chosen;
}

/* --- opening ---------------------------------------------------------------------------------- */

int push_flow_dial(struct push_source *source, uint32_t index)
{
	const struct clan_conn_options options = {
		.size = sizeof(options),
		.access = CLAN_ACCESS_WARY,
		.tripwires = 1,
		.cookies = 1,
		.peer_regions_max = 1,
		.peer_region_bytes_max = (uint64_t)PUSH_SLOTS * PUSH_SLOT_BYTES,
	};
	struct push_session *session = source->session;
	struct push_flow *flow = &source->flows[index];
	struct push_link *link = &session->out[index];
	int result = clan_connect(session->service->base.queue, source->address, &options,
		&push_hello, sizeof(push_hello), &link->conn, NULL);

	if (result != 0) {
		link->conn = NULL;
		set_retry(flow);
		return result;
	}
	link->is_closing = false;
	clan_conn_set_context(link->conn, link);
	flow->lent_count = 0;
	flow->quiet_ticks = 0;
	flow->is_retiring = false;
	flow_set_state(flow, FLOW_CONNECTING);
	return 0;
}

/* Sends USE or JOIN. */
static bool introduce(struct push_flow *flow)
{
	struct push_source *source = flow->source;
	struct push_wire_join join = {
		.ticket = source->use.ticket,
		.number = flow_index(flow),
	};

	if (join.number == 0) {
		return push_flow_tell(source, PUSH_USE, &source->use, sizeof(source->use));
	}
	memcpy(join.instance, source->use.instance, sizeof(join.instance));
	return clan_send(link_of(flow)->conn, CLAN_BULK, PUSH_JOIN, &join, sizeof(join)) == 0;
}

static void flow_connected(struct push_flow *flow)
{
	struct push_source *source = flow->source;
	struct clan_conn *conn = link_of(flow)->conn;
	struct push_wire_welcome welcome;
	struct clan_peer peer;
	size_t bytes;
	const void *hello = clan_conn_hello(conn, &bytes);
	const char *rule = push_welcome_parse(hello, bytes, &welcome);

	if (rule != NULL) {
		flow_lost_rule(flow, rule);
		return;
	}
	if (flow_index(flow) == 0) {
		memcpy(source->target_instance, welcome.instance, sizeof(welcome.instance));
	}
	/* on a Unix socket, the identity is from SO_PEERCRED */
	clan_conn_peer(conn, &peer);
	if (source->target_uid != PUSH_UID_UNKNOWN && peer.uid != source->target_uid) {
		flow_lost(flow, -EXDEV, "%s",
			"a process of a different user listens at the address of the destination");
	} else if (memcmp(source->target_instance, welcome.instance, sizeof(welcome.instance)) !=
		   0) {
		flow_lost(flow, -EXDEV, "%s",
			"another server listens at the address of the destination");
	} else if (!introduce(flow)) {
		flow_lost_rule(flow, "H2: the peer does not read its messages");
	}
}

/* Connection 0: the destination lends its slots. If they cannot be mapped, as over a network,
 * pieces are read into our own memory, and clan_put() copies them to the slots. */
static int take_first_slots(struct push_flow *flow, const struct push_wire_used *used)
{
	struct push_source *source = flow->source;
	struct clan_conn *conn = link_of(flow)->conn;
	uint32_t slots = used->slots;
	void *base = NULL;
	int result;

	source->maps = (clan_conn_caps(conn) & CLAN_CAN_MAP) != 0;
	if (source->maps) {
		result = clan_peer_region_get(conn, used->region, used->generation,
			CLAN_READ | CLAN_WRITE, 0, (uint64_t)used->slots * PUSH_SLOT_BYTES, &base);
	} else {
		result = push_flow_own_slots(flow, 1, slots, &base);
		slots = flow->staged_slots;
	}
	if (result == 0) {
		push_flow_has_memory(flow, base, slots);
	}
	return result;
}

/* If there is no memory for more slots, the connection is useful nevertheless: it carries pieces
 * that are in the slots of the others. */
static void take_more_slots(struct push_flow *flow, const struct push_wire_used *used)
{
	void *base;

	if (flow->staged_slots == 0 && push_flow_own_slots(flow, 1, used->slots, &base) == 0) {
		push_flow_has_memory(flow, base, flow->staged_slots);
	}
}

static void take_used(struct push_flow *flow, const struct push_wire_used *used)
{
	struct push_source *source = flow->source;
	int result;

	if (flow->state != FLOW_CONNECTING || used->length != source->length ||
		used->offset != source->use.ticket.offset) {
		flow_lost_rule(flow, "H8: USED");
		return;
	}
	flow->region_number = used->region;
	flow->lent_count = used->slots;
	flow->loss_count = 0;
	flow_set_state(flow, FLOW_OPEN);
	if (flow_index(flow) != 0) {
		take_more_slots(flow, used);
		push_source_advance(source->session);
		return;
	}
	result = take_first_slots(flow, used);
	if (result != 0) {
		push_source_fail(source, result, "no staging memory: %s", push_memory_text(result));
		return;
	}
	push_source_lent(source, used->silence_ms);
}

/* --- messages --------------------------------------------------------------------------------- */

/* The answer to JOIN does not end the job. */
static void take_failed(struct push_flow *flow, const struct push_failed *failed)
{
	char shown[PUSH_TEXT_BYTES_MAX - 32];
	int status = failed->head.status <= INT16_MAX ? -(int)failed->head.status : -EIO;

	log_escape(shown, sizeof(shown), failed->text.bytes, failed->text.length);
	if (flow->state == FLOW_OPEN) {
		push_source_fail(flow->source, status, "the destination: %s", shown);
	} else {
		flow_lost(flow, status, "the destination: %s", shown);
	}
}

static void flow_take_message(
	struct push_flow *flow, const struct clan_message *message, const uint8_t *bytes)
{
	struct push_source *source = flow->source;
	const char *rule = NULL;
	uint32_t type = message->type;
	union {
		struct push_wire_used used;
		struct push_wire_range zeroed;
		struct push_wire_checked checked;
		struct push_wire_flush flushed;
		struct push_failed failed;
		struct push_wire_dropped dropped;
	} parsed;

	if (message->cls != CLAN_BULK) {
		rule = "H2: a message of the wrong class";
	} else if (type == PUSH_ALIVE) {
		rule = push_alive_parse(message->bytes);
	} else if (type < PUSH_USED || type > PUSH_DROPPED ||
		   (flow_index(flow) != 0 && type != PUSH_USED && type != PUSH_FAILED)) {
		rule = "H2: an unexpected message";
	} else {
		rule = push_parse(type, bytes, message->bytes, &parsed);
	}
	if (rule != NULL) {
		flow_lost_rule(flow, rule);
	} else if (type == PUSH_USED) {
		take_used(flow, &parsed.used);
	} else if (type == PUSH_ZEROED) {
		push_source_zeroed(source, &parsed.zeroed);
	} else if (type == PUSH_CHECKED) {
		push_source_checked(source, &parsed.checked);
	} else if (type == PUSH_FLUSHED) {
		push_source_flushed(source, &parsed.flushed);
	} else if (type == PUSH_FAILED) {
		take_failed(flow, &parsed.failed);
	} else if (type == PUSH_DROPPED) {
		take_dropped(source, &parsed.dropped);
	}
}

static void flow_take_messages(struct push_flow *flow)
{
	struct push_session *session = flow->source->session;
	struct push_link *link = link_of(flow);
	struct clan_message message;

	for (int i = 0; i < MESSAGES_MAX; i++) {
		if (push_source_is_over(flow->source) || link->is_closing ||
			clan_recv(link->conn, CLAN_ANY, &message, session->service->message,
				sizeof(session->service->message)) != 0) {
			return;
		}
		session->base.progress_ns = ring_batch_ns(session->base.engine->ring);
		flow->quiet_ticks = 0;
		if (flow_index(flow) == 0) {
			session->heard_ns = session->base.progress_ns;
		}
		flow_take_message(flow, &message, session->service->message);
	}
	flow_lost_rule(flow, "H2: more messages than may be in flight");
}

void push_source_event(
	struct push_session *session, struct push_link *link, const struct clan_event *event)
{
	struct push_flow *flow = &session->source->flows[link - session->out];

	if (event->type == CLAN_EVENT_CLOSED) {
		if (!push_source_is_over(session->source)) {
			settle(flow);
		}
	} else if (event->type == CLAN_EVENT_CONNECTED) {
		flow_connected(flow);
	} else if (event->type == CLAN_EVENT_READY) {
		flow_take_messages(flow);
		push_source_advance(session);
	} else if (event->type == CLAN_EVENT_LOST) {
		/* processes the messages sent before the end of the connection */
		flow_take_messages(flow);
		if (!push_source_is_over(session->source) && !link->is_closing) {
			flow_lost(flow, event->status,
				"the connection to the destination was lost: %s",
				clan_conn_reason(link->conn));
		}
	} else if (event->type == CLAN_EVENT_DONE && event->status == 0) {
		push_source_put_ended(event->op);
		push_source_advance(session);
	} else if (event->type == CLAN_EVENT_DONE) {
		flow_lost(flow, event->status, "cannot access the memory of the destination: %s",
			strerror(-event->status));
	}
}

/* --- progress --------------------------------------------------------------------------------- */

static bool is_unused(const struct push_flow *flow)
{
	for (uint32_t i = 0; i < PUSH_SLOTS; i++) {
		if (flow->users[i] != NULL) {
			return false;
		}
	}
	return true;
}

static void advance_one(struct push_flow *flow, uint64_t now_ns)
{
	struct push_source *source = flow->source;
	const struct push_wire_drop drop = { .number = flow_index(flow) };

	take_cookies(flow);
	if (flow->state == FLOW_OPEN && flow->is_retiring && is_unused(flow)) {
		flow_close(flow);
	}
	if (flow->state == FLOW_LOST && !flow->has_asked) {
		flow->has_asked = push_flow_tell(source, PUSH_DROP, &drop, sizeof(drop));
	}
	if (flow->state == FLOW_CLOSED && drop.number < source->flow_count &&
		now_ns >= flow->retry_ns && source->at < source->length) {
		/* if it fails, a later tick retries */
		(void)!push_flow_dial(source, drop.number);
	}
}

void push_flow_advance(struct push_source *source)
{
	uint64_t now_ns = ring_batch_ns(source->session->base.engine->ring);

	for (uint32_t i = 0; i < PUSH_FLOWS_MAX && source->flows[0].state == FLOW_OPEN &&
			     !push_source_is_over(source);
		i++) {
		advance_one(&source->flows[i], now_ns);
	}
}

/* Returns true if all connections work, and each has as many pieces as it can have. */
static bool are_full(const struct push_source *source)
{
	for (uint32_t i = 0; i < source->flow_count; i++) {
		const struct push_flow *flow = &source->flows[i];

		if (flow->state != FLOW_OPEN || count_cookies(flow) > 0) {
			return false;
		}
	}
	return true;
}

static uint64_t bytes_in_flight(const struct push_source *source)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < source->slot_count; i++) {
		bytes += source->slots[i].state >= SLOT_PUTTING ? source->slots[i].length : 0;
	}
	return bytes;
}

/* Ends a window if it is long enough. It covers the pieces in flight, because they can be
 * acknowledged in bursts. */
static void grow(struct push_source *source, uint64_t now_ns)
{
	const struct push_progress *progress = &source->session->progress;
	uint64_t moved = progress->done - progress->zeroes - progress->skipped;
	uint64_t bytes = moved - source->grown_bytes;
	uint64_t elapsed_ns = now_ns - source->grown_ns;
	const struct push_flow *next = &source->flows[MIN(source->flow_count, PUSH_FLOWS_MAX - 1U)];
	enum growth_step step;

	if (source->grown_ns != 0 &&
		(elapsed_ns < growth_window_ns || bytes < bytes_in_flight(source))) {
		return;
	}
	if (source->grown_ns != 0) {
		step = growth_window_end(&source->growth, now_ns,
			(uint64_t)((double)bytes * 1e9 / (double)elapsed_ns),
			source->flow_count < PUSH_FLOWS_MAX && next->state == FLOW_CLOSED &&
				are_full(source));
		if (step == GROWTH_ADD) {
			log_debug("push: trying %u connections", source->flow_count + 1);
			source->flows[source->flow_count++].retry_ns = 0;
		} else if (step == GROWTH_REMOVE) {
			source->flows[--source->flow_count].is_retiring = true;
		}
	}
	source->grown_ns = now_ns;
	source->grown_bytes = moved;
}

void push_flow_tick(struct push_source *source)
{
	struct push_session *session = source->session;

	for (uint32_t i = 1; i < PUSH_FLOWS_MAX && !push_source_is_over(source); i++) {
		struct push_flow *flow = &source->flows[i];

		/* Ticks are counted, so that a stall of this process does not count as silence. */
		if (++flow->quiet_ticks * PUSH_TICK_NS >= session->silence_ns) {
			flow_lost(flow, -ETIMEDOUT, "%s", "the destination does not respond");
		}
	}
	if (source->grows && source->slot_count > 0 && source->rate == 0) {
		grow(source, ring_now_ns(session->base.engine->ring));
	}
}

void push_source_say_alive(struct push_session *session)
{
	for (uint32_t i = 0; i < PUSH_FLOWS_MAX; i++) {
		if (session->source->flows[i].state == FLOW_OPEN) {
			push_link_say_alive(&session->out[i]);
		}
	}
}
