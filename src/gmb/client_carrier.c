// SPDX-License-Identifier: Apache-2.0
/*
 * gmb as a carrier of libgmblock: one connection, from connecting to its end.
 *
 *   IDLE ─▶ DIALING ─▶ READY ─▶ CLOSING ─▶ IDLE
 *
 * CLOSING waits until nothing of the connection runs, and until what its commands used has fresh
 * pages: only then may they go elsewhere.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/export_uri.h"
#include "base/log.h"
#include "base/uri.h"
#include "gmb/client.h"

_Static_assert(CARRIER_REPLACES_MAX <= (int)NATIVE_REPLACES_MAX, "replaced connections");
_Static_assert(CARRIER_TOKEN_BYTES_MAX <= (int)NATIVE_TOKEN_BYTES_MAX, "tokens");
_Static_assert(CARRIER_TEXT_BYTES_MAX >= (int)NATIVE_TEXT_BYTES_MAX, "texts");
_Static_assert(CARRIER_NAME_BYTES_MAX > (int)NATIVE_NAME_BYTES_MAX, "names");
_Static_assert((int)CARRIER_LABEL_BYTES_MAX >= (int)EXPORT_URI_LABEL_BYTES, "labels");

/* Messages of a server in a row before others have their turn; more than its rings hold, so that
 * what it had published before its end is taken at once. */
enum { MESSAGES_MAX = 512 };

static const uint32_t carrier_edges[] = {
	[NATIVE_IDLE] = BIT(NATIVE_DIALING),
	[NATIVE_DIALING] = BIT(NATIVE_READY) | BIT(NATIVE_CLOSING),
	[NATIVE_READY] = BIT(NATIVE_CLOSING),
	[NATIVE_CLOSING] = BIT(NATIVE_IDLE),
};

static struct native_carrier *of(struct carrier *base)
{
	return container_of(base, struct native_carrier, base);
}

static struct native_call *call_of(struct command *command)
{
	return (struct native_call *)(void *)command->space;
}

static struct command *command_of(struct native_call *call)
{
	return container_of((void *)call, struct command, space);
}

static void set_state(struct native_carrier *carrier, enum native_carrier_state state)
{
	GMB_ASSERT((carrier_edges[carrier->state] & BIT(state)) != 0);
	carrier->state = state;
}

/* --- the end --------------------------------------------------------------------------------- */

void native_carrier_step(struct native_carrier *carrier)
{
	uint32_t used = 0;

	if (carrier->state != NATIVE_CLOSING || carrier->conn != NULL ||
		carrier->timer_op.in_flight || carrier->fail_op.in_flight) {
		return;
	}
	list_for_each(node, &carrier->sent)
	{
		used |= list_entry(node, struct native_call, node)->buffers;
	}
	for (; used != 0; used &= used - 1) {
		if (carrier->hub->buffers[__builtin_ctz(used)].tainted) {
			return; /* hub_settle() comes back */
		}
	}
	list_remove(&carrier->node);
	set_state(carrier, NATIVE_IDLE);
	carrier_stopped(&carrier->base);
}

static void native_lose(struct carrier *base)
{
	struct native_carrier *carrier = of(base);

	bool maps = carrier->conn != NULL && (clan_conn_caps(carrier->conn) & CLAN_CAN_MAP) != 0;

	if (carrier->state == NATIVE_IDLE) {
		carrier_stopped(base);
		return;
	}
	list_for_each(node, &carrier->sent)
	{
		uint32_t used = list_entry(node, struct native_call, node)->buffers;

		for (; maps && used != 0; used &= used - 1) {
			struct hub_buffer *buffer = &carrier->hub->buffers[__builtin_ctz(used)];

			buffer->tainted = !buffer->imported;
			carrier->hub->unsettled = true;
		}
	}
	set_state(carrier, NATIVE_CLOSING);
	list_remove(&carrier->hungry_node);
	if (carrier->conn != NULL) {
		clan_close(carrier->conn);
	}
	ring_cancel(base->ring, &carrier->timer_op);
	native_carrier_step(carrier);
}

static void fail(struct native_carrier *carrier, int code, const char *text)
{
	struct error error;

	error_set(&error, code, "%s: %s", carrier->target->label, text);
	carrier_failed(&carrier->base, &error);
}

static struct command *native_take_back(struct carrier *base, bool *was_sent)
{
	struct native_carrier *carrier = of(base);
	struct list_node *node = list_pop_front(&carrier->sent);
	struct native_call *call;

	*was_sent = node != NULL;
	if (node == NULL) {
		node = list_pop_front(&carrier->unsent);
	}
	if (node == NULL) {
		return NULL;
	}
	base->command_count--;
	call = list_entry(node, struct native_call, node);
	if (call->staged.pages > 0) {
		hub_pool_put(carrier->hub, &call->staged);
	}
	return command_of(call);
}

/* --- buffers --------------------------------------------------------------------------------- */

bool native_carrier_shares(struct native_carrier *carrier, uint32_t buffer, bool end)
{
	enum share_state state = carrier->shares[buffer].state;

	if (carrier->conn == NULL || state == SHARE_NONE || state == SHARE_REFUSED) {
		return false;
	}
	if (end && carrier->state != NATIVE_CLOSING) {
		fail(carrier, -ECONNRESET,
			"ended, because another connection was lost that shares its memory");
	}
	return true;
}

void native_carrier_unshare(struct native_carrier *carrier, uint32_t buffer)
{
	enum share_state state = carrier->shares[buffer].state;

	if (carrier->state == NATIVE_READY && (state == SHARE_LIVE || state == SHARE_GRANTED)) {
		/* UNSHARED follows; asked again before, it says so. */
		(void)!clan_region_unshare(carrier->conn, carrier->hub->buffers[buffer].region);
	}
}

/* Tells the server how to reach a region. */
static void tell(struct native_carrier *carrier, struct share *share)
{
	/* Else there is no room now, or an event tells of the end. */
	if (clan_send(carrier->conn, CLAN_BULK, NATIVE_REGION, &share->cookie,
		    sizeof(share->cookie)) == 0) {
		share->state = SHARE_LIVE;
	}
}

/* True when the server has it. False: it is asked for, or nobody may have it now; refused is set
 * when the server does not want it. */
static bool share(struct native_carrier *carrier, uint32_t number)
{
	struct hub_buffer *buffer = &carrier->hub->buffers[number];
	struct share *share = &carrier->shares[number];
	int result;

	if (buffer->tainted) {
		return false;
	}
	if (share->state == SHARE_NONE) {
		result = clan_region_share(carrier->conn, buffer->region, CLAN_READ | CLAN_WRITE);
		share->state = result == 0 ? SHARE_ASKED : SHARE_REFUSED;
	}
	if (share->state == SHARE_GRANTED) {
		tell(carrier, share);
	}
	return share->state == SHARE_LIVE;
}

/* The server does not map regions: it gets a cookie for all of this one. */
static void grant(struct native_carrier *carrier, uint32_t number)
{
	const struct hub_buffer *buffer = &carrier->hub->buffers[number];
	struct share *share = &carrier->shares[number];
	int result = -EFBIG;

	if (buffer->bytes <= UINT32_MAX) {
		result = clan_cookie_grant(carrier->conn, buffer->region, 0,
			(uint32_t)buffer->bytes, CLAN_READ | CLAN_WRITE, 0, &share->cookie);
	}
	share->state = result == 0 ? SHARE_GRANTED : SHARE_REFUSED;
	if (result == 0) {
		share->generation = share->cookie.generation;
		tell(carrier, share);
	}
}

static void shared(struct native_carrier *carrier, const struct clan_event *event)
{
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		struct share *share = &carrier->shares[i];

		if (share->state == SHARE_ASKED &&
			carrier->hub->buffers[i].region == event->region) {
			share->state = event->status == 0 ? SHARE_LIVE : SHARE_REFUSED;
			share->number = event->number;
			share->generation = event->generation;
			if (event->status == 0 && carrier->needs_cookies) {
				grant(carrier, i);
			}
		}
	}
}

static void unshared(struct native_carrier *carrier, const struct clan_event *event)
{
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		if (carrier->hub->buffers[i].region == event->region) {
			carrier->shares[i].state = SHARE_NONE;
		}
	}
}

/* --- sending --------------------------------------------------------------------------------- */

/* A REQUEST while it is put together. */
struct draft {
	struct native_wire_request head;
	struct native_wire_segment segments[NATIVE_SEGMENTS_MAX];
	uint8_t inlined[NATIVE_INLINE_BYTES_MAX];
	uint32_t buffers; /* a bit for each that it uses */
};

static void put_segment(const struct native_carrier *carrier, struct draft *draft,
	const struct hub_buffer *buffer, const void *address, size_t bytes)
{
	uint32_t number = (uint32_t)(buffer - carrier->hub->buffers);
	const struct share *share = &carrier->shares[number];

	draft->buffers |= BIT(number);
	draft->segments[draft->head.segment_count++] = (struct native_wire_segment){
		.region = (uint16_t)share->number,
		.generation = share->generation,
		.offset = (uintptr_t)address - (uintptr_t)buffer->base,
		.bytes = bytes,
	};
}

/* A command's memory, piece by piece. */
struct pieces {
	const struct command *command;
	uint32_t idx;
	uint64_t skip;
	uint64_t left;
};

static struct pieces pieces_of(const struct command *command)
{
	return (struct pieces){
		.command = command, .skip = command->iov_skip, .left = command->length
	};
}

static bool next_piece(struct pieces *pieces, struct iovec *piece)
{
	while (pieces->left > 0) {
		const struct iovec *iov = &pieces->command->iov[pieces->idx++];
		uint64_t skipped = MIN(pieces->skip, (uint64_t)iov->iov_len);

		pieces->skip -= skipped;
		if (iov->iov_len > skipped) {
			piece->iov_base = (uint8_t *)iov->iov_base + skipped;
			piece->iov_len = (size_t)MIN(iov->iov_len - skipped, pieces->left);
			pieces->left -= piece->iov_len;
			return true;
		}
	}
	return false;
}

/* Copies between a command's memory and one run of bytes. */
static void copy(const struct command *command, uint8_t *run, bool to_run)
{
	struct pieces pieces = pieces_of(command);
	struct iovec piece;

	while (next_piece(&pieces, &piece)) {
		if (to_run) {
			memcpy(run, piece.iov_base, piece.iov_len);
		} else {
			memcpy(piece.iov_base, run, piece.iov_len);
		}
		run += piece.iov_len;
	}
}

enum placing { PLACED, LATER, ELSEWHERE };

/* Whether the server reaches the command's own memory; fills in the segments. */
static enum placing place(
	struct native_carrier *carrier, const struct command *command, struct draft *draft)
{
	struct pieces pieces = pieces_of(command);
	struct iovec piece;

	while (next_piece(&pieces, &piece)) {
		struct hub_buffer *buffer = hub_find(carrier->hub, piece.iov_base, piece.iov_len);
		uint32_t number;

		if (buffer == NULL || draft->head.segment_count == NATIVE_SEGMENTS_MAX ||
			(buffer->imported && command->operation == GMB_READ &&
				!carrier->fills_imported)) {
			return ELSEWHERE;
		}
		number = (uint32_t)(buffer - carrier->hub->buffers);
		if (!share(carrier, number)) {
			return carrier->shares[number].state == SHARE_REFUSED ? ELSEWHERE : LATER;
		}
		put_segment(carrier, draft, buffer, piece.iov_base, piece.iov_len);
	}
	return PLACED;
}

/* The same by way of the pool. */
static enum placing stage(
	struct native_carrier *carrier, const struct command *command, struct draft *draft)
{
	struct native_call *call = call_of((struct command *)(uintptr_t)command);
	struct hub *hub = carrier->hub;
	struct hub_buffer *pool = &hub->buffers[HUB_POOL];
	uint8_t *run;

	draft->buffers = 0;
	draft->head.segment_count = 0;
	if (hub_pool_make(hub) != 0) {
		fail(carrier, -ENOMEM, "no memory for what the server has to reach");
		return LATER;
	}
	if (!share(carrier, HUB_POOL)) {
		if (carrier->shares[HUB_POOL].state == SHARE_REFUSED) {
			fail(carrier, -ENOMEM, "the server does not map this client's memory");
		}
		return LATER;
	}
	if (!hub_pool_get(hub, command->length, &call->staged)) {
		return LATER;
	}
	run = pool->base + (size_t)call->staged.page * HUB_PAGE_BYTES;
	if (command->operation == GMB_WRITE) {
		copy(command, run, true);
		carrier->base.moved_bytes += command->length;
	}
	put_segment(carrier, draft, pool, run, command->length);
	return PLACED;
}

static enum placing carry(
	struct native_carrier *carrier, const struct command *command, struct draft *draft)
{
	enum placing placing;

	if (command->operation == GMB_WRITE && command->length <= NATIVE_INLINE_BYTES_MAX) {
		copy(command, draft->inlined, true);
		draft->head.inline_bytes = (uint16_t)command->length;
		return PLACED;
	}
	placing = place(carrier, command, draft);
	return placing == ELSEWHERE ? stage(carrier, command, draft) : placing;
}

/* A message about a call is in the ring. */
static void sent(struct native_carrier *carrier, struct native_call *call, uint32_t tag)
{
	uint32_t slot = carrier->free_slots[--carrier->free_count];

	GMB_ASSERT(tag % CARRIER_DEPTH_MAX == slot);
	call->tag = tag;
	carrier->turn++;
	carrier->calls[slot] = call;
	list_remove(&call->node);
	list_push_back(&carrier->sent, &call->node);
}

static uint32_t next_tag(const struct native_carrier *carrier)
{
	return carrier->turn * CARRIER_DEPTH_MAX + carrier->free_slots[carrier->free_count - 1];
}

static bool send_copy(struct native_carrier *carrier, struct native_call *call)
{
	const struct command *command = command_of(call);
	const struct native_wire_copy head = {
		.tag = next_tag(carrier),
		.flags = (command->flags & GMB_FUA) != 0 ? NATIVE_FUA : 0,
		.name_bytes = (uint16_t)strlen(command->source->name),
		.offset = command->offset,
		.length = command->length,
		.source_offset = command->source_offset,
		.source_epoch = command->source->epoch,
	};
	struct iovec iov[2] = {
		{ .iov_base = (void *)(uintptr_t)&head, .iov_len = sizeof(head) },
		{ .iov_base = (void *)(uintptr_t)command->source->name,
			.iov_len = head.name_bytes },
	};

	if (clan_sendv(carrier->conn, CLAN_BULK, NATIVE_COPY, iov, 2) != 0) {
		return false; /* an event tells of room, or of the end */
	}
	sent(carrier, call, head.tag);
	return true;
}

/* False: there is no room for it now, or the connection has ended. */
static bool send_one(struct native_carrier *carrier, struct native_call *call)
{
	static const uint8_t operations[] = {
		[GMB_READ] = NATIVE_READ,
		[GMB_WRITE] = NATIVE_WRITE,
		[GMB_FLUSH] = NATIVE_FLUSH,
		[GMB_TRIM] = NATIVE_TRIM,
		[GMB_ZERO] = NATIVE_ZERO,
		[GMB_CACHE] = NATIVE_CACHE,
		[GMB_STATUS] = NATIVE_STATUS,
	};
	const struct command *command = command_of(call);
	bool moves = command->operation == GMB_READ || command->operation == GMB_WRITE;
	struct iovec iov[3];
	struct draft draft;

	if (command->operation == GMB_COPY) {
		return send_copy(carrier, call);
	}
	draft.buffers = 0;
	draft.head = (struct native_wire_request){
		.tag = next_tag(carrier),
		.operation = operations[command->operation],
		.flags = (uint16_t)(((command->flags & GMB_FUA) != 0 ? NATIVE_FUA : 0) |
				    ((command->flags & GMB_NO_HOLE) != 0 ? NATIVE_NO_HOLE : 0) |
				    ((command->flags & GMB_FAST_ZERO) != 0 ? NATIVE_FAST_ZERO : 0)),
		.offset = command->offset,
		.length = command->length,
		.extents_max = call->extents_max,
	};
	if (moves && carry(carrier, command, &draft) != PLACED) {
		return false;
	}
	iov[0] = (struct iovec){ .iov_base = &draft.head, .iov_len = sizeof(draft.head) };
	iov[1] = (struct iovec){ .iov_base = draft.segments,
		.iov_len = draft.head.segment_count * sizeof(draft.segments[0]) };
	iov[2] = (struct iovec){ .iov_base = draft.inlined, .iov_len = draft.head.inline_bytes };
	if (clan_sendv(carrier->conn, CLAN_BULK, NATIVE_REQUEST, iov, 3) != 0) {
		if (call->staged.pages > 0) {
			hub_pool_put(carrier->hub, &call->staged);
		}
		return false; /* an event tells of room, or of the end */
	}
	call->buffers = draft.buffers;
	sent(carrier, call, draft.head.tag);
	return true;
}

/* What is sent is published when the ring arms the clan queue or polls it, one wake-up for all. */
static void native_flush(struct carrier *base)
{
	struct native_carrier *carrier = of(base);
	struct list_node *node;

	while (carrier->state == NATIVE_READY && (node = list_first(&carrier->unsent)) != NULL) {
		if (!send_one(carrier, list_entry(node, struct native_call, node))) {
			break;
		}
	}
}

static void native_add(struct carrier *base, struct command *command)
{
	struct native_call *call = call_of(command);
	uint32_t wanted = command->operation == GMB_STATUS ? command->request->extents_max : 0;

	*call = (struct native_call){ .extents_max = MIN(wanted, (uint32_t)NATIVE_EXTENTS_MAX) };
	if ((command->flags & GMB_STATUS_ONE) != 0) {
		call->extents_max = 1;
	}
	list_push_back(&of(base)->unsent, &call->node);
	base->command_count++;
}

/* --- receiving ------------------------------------------------------------------------------- */

static void take_extents(struct command *command, const struct native_reply *reply)
{
	uint64_t described = 0;

	for (uint32_t i = 0; i < reply->head.value; i++) {
		struct native_wire_extent extent = native_extent_at(reply, i);

		command_extent(command, described, extent.bytes,
			extent.flags & (GMB_EXTENT_HOLE | GMB_EXTENT_ZERO));
		described += extent.bytes;
	}
}

static void call_done(
	struct native_carrier *carrier, struct native_call *call, const struct native_reply *reply)
{
	struct command *command = command_of(call);
	char text[CARRIER_TEXT_BYTES_MAX];

	command->result = native_status_to_errno(reply->head.status);
	if (call->staged.pages > 0) {
		if (command->operation == GMB_READ && command->result == 0) {
			copy(command,
				carrier->hub->buffers[HUB_POOL].base +
					(size_t)call->staged.page * HUB_PAGE_BYTES,
				false);
			carrier->base.moved_bytes += command->length;
		}
		hub_pool_put(carrier->hub, &call->staged);
	}
	if (command->operation == GMB_STATUS && command->result == 0) {
		take_extents(command, reply);
	} else if (command->operation == GMB_COPY) {
		uint64_t first = MAX(reply->head.value, command->offset); /* that is not done */

		command->copied.bytes = MIN(first - command->offset, command->length);
		memcpy(command->copied.by_way, reply->copied.bytes, sizeof(reply->copied.bytes));
	}
	carrier->calls[call->tag % CARRIER_DEPTH_MAX] = NULL;
	carrier->free_slots[carrier->free_count++] = (uint16_t)(call->tag % CARRIER_DEPTH_MAX);
	list_remove(&call->node);
	carrier->base.command_count--;
	log_escape(text, sizeof(text), reply->text.bytes, reply->text.length);
	carrier_done(&carrier->base, command, text);
}

static enum native_reply_kind reply_kind(const struct command *command)
{
	return command->operation == GMB_STATUS ? NATIVE_REPLY_EXTENTS
	       : command->operation == GMB_COPY ? NATIVE_REPLY_COPIED
						: NATIVE_REPLY_BARE;
}

/* The broken rule, or NULL. */
static const char *take_reply(struct native_carrier *carrier, uint32_t len)
{
	struct native_reply reply;
	struct native_call *call;
	const char *rule;
	uint32_t tag;

	if (!native_reply_tag(carrier->message, len, &tag)) {
		return "G3: the length of REPLY";
	}
	call = carrier->calls[tag % CARRIER_DEPTH_MAX];
	if (call == NULL || call->tag != tag) {
		return "G14: a REPLY to nothing that was asked";
	}
	rule = native_reply_parse(carrier->message, len, reply_kind(command_of(call)),
		call->extents_max, command_of(call)->length, &reply);
	if (rule == NULL) {
		carrier->base.answered_ns = carrier->base.heard_ns;
		call_done(carrier, call, &reply);
	}
	return rule;
}

static const char *take_event(struct native_carrier *carrier, uint32_t len)
{
	struct native_wire_event event;
	const char *rule = native_event_parse(carrier->message, len, &event);

	if (rule == NULL && event.bytes != carrier->base.facts.bytes) {
		carrier->base.facts.bytes = event.bytes;
		carrier_resized(&carrier->base);
	}
	return rule;
}

static uint32_t capabilities_of(uint32_t flags, const struct carrier_facts *facts)
{
	static const uint8_t unknown[CARRIER_INSTANCE_BYTES];
	const uint32_t always = GMB_CAN_FLUSH | GMB_CAN_FUA | GMB_CAN_CACHE | GMB_CAN_STATUS |
				GMB_CAN_DF | GMB_CAN_MULTI_CONN;
	const uint32_t changes = GMB_CAN_WRITE | GMB_CAN_TRIM | GMB_CAN_ZERO | GMB_CAN_FAST_ZERO;

	bool copies = memcmp(facts->instance, unknown, sizeof(unknown)) != 0;

	return always | (copies ? (uint32_t)GMB_CAN_COPY : 0) |
	       ((flags & NATIVE_EXPORT_WRITABLE) != 0 ? changes : 0) |
	       ((flags & NATIVE_EXPORT_ROTATIONAL) != 0 ? (uint32_t)GMB_IS_ROTATIONAL : 0);
}

static void put_text(char out[CARRIER_NAME_BYTES_MAX], struct native_text text)
{
	memcpy(out, text.bytes, text.length);
	out[text.length] = '\0';
}

static const char *take_export(struct native_carrier *carrier, uint32_t len)
{
	struct carrier_facts *facts = &carrier->base.facts;
	struct native_export export;
	const char *rule = native_export_parse(carrier->message, len, &export);
	char text[CARRIER_TEXT_BYTES_MAX];

	if (rule != NULL) {
		return rule;
	}
	if (export.head.status != 0) {
		log_escape(text, sizeof(text), export.text.bytes, export.text.length);
		fail(carrier, native_status_to_errno(export.head.status), text);
		return NULL;
	}
	facts->bytes = export.head.bytes;
	facts->capabilities = capabilities_of(export.head.flags, facts);
	facts->identity = export.head.flags;
	facts->request_block = 1;
	facts->block_minimum = 1;
	facts->block_preferred = export.head.block_preferred;
	facts->payload_max = MIN(export.head.payload_max, (uint32_t)HUB_COMMAND_BYTES_MAX);
	facts->atomic_bytes = MIN(export.head.atomic_bytes, facts->payload_max);
	facts->range_max = UINT64_MAX;
	facts->replies = GMB_REPLIES_PLACED;
	facts->can_take_over = true;
	facts->says_alive = carrier->asks_alive;
	facts->is_volatile = (export.head.flags & NATIVE_EXPORT_VOLATILE) != 0;
	facts->epoch = export.head.epoch;
	carrier->fills_imported = carrier->waits_for_ends && facts->can_take_over &&
				  (export.head.flags & NATIVE_EXPORT_ENDS) != 0;
	put_text(facts->name, export.name);
	put_text(facts->description, export.text);
	ring_cancel(carrier->base.ring, &carrier->timer_op);
	set_state(carrier, NATIVE_READY);
	carrier_ready(&carrier->base);
	return NULL;
}

static const char *take_message(struct native_carrier *carrier, const struct clan_message *message)
{
	bool ready = carrier->state == NATIVE_READY;

	if (message->cls == CLAN_BULK && message->type == NATIVE_REPLY && ready) {
		return take_reply(carrier, message->bytes);
	}
	if (message->cls == CLAN_BULK && message->type == NATIVE_EVENT && ready) {
		return take_event(carrier, message->bytes);
	}
	if (message->cls == CLAN_BULK && message->type == NATIVE_ALIVE && ready) {
		return message->bytes == 0 ? NULL : "G3: the length of ALIVE";
	}
	if (message->cls == CLAN_BULK && message->type == NATIVE_EXPORT && !ready) {
		return take_export(carrier, message->bytes);
	}
	return "G2: a message that does not belong here";
}

void native_carrier_take(struct native_carrier *carrier)
{
	struct clan_message message;

	list_remove(&carrier->hungry_node);
	for (int i = 0; i < MESSAGES_MAX; i++) {
		const char *rule;

		if (carrier->state != NATIVE_READY && carrier->state != NATIVE_DIALING) {
			return;
		}
		if (clan_recv(carrier->conn, CLAN_ANY, &message, carrier->message,
			    sizeof(carrier->message)) != 0) {
			return; /* an event tells of more, or of the end */
		}
		carrier->base.heard_ns = ring_batch_ns(carrier->base.ring);
		rule = take_message(carrier, &message);
		if (rule != NULL) {
			char text[160];

			snprintf(text, sizeof(text), "the server broke a rule of gmb: %s", rule);
			fail(carrier, -EPROTO, text);
			return;
		}
	}
	if (carrier->state != NATIVE_CLOSING) {
		list_push_back(&carrier->hub->hungry, &carrier->hungry_node);
	}
}

/* --- events ---------------------------------------------------------------------------------- */

static void connected(struct native_carrier *carrier)
{
	size_t bytes;
	const void *welcome = clan_conn_hello(carrier->conn, &bytes);
	struct native_welcome parsed;
	const char *rule = native_welcome_parse(welcome, bytes, &parsed);

	if (rule != NULL) {
		fail(carrier, -EPROTO, rule);
		return;
	}
	carrier->needs_cookies = (parsed.flags & NATIVE_WELCOME_MOVES) != 0;
	memcpy(carrier->base.facts.instance, parsed.instance, sizeof(carrier->base.facts.instance));
	/* A ring that was never used has room. */
	if (clan_send(carrier->conn, CLAN_BULK, NATIVE_OPEN, carrier->open, carrier->open_bytes) ==
		0) {
		native_carrier_take(carrier);
	}
}

static void lost(struct native_carrier *carrier, const struct clan_event *event)
{
	native_carrier_take(carrier); /* what was published before */
	if (carrier->state != NATIVE_CLOSING) {
		fail(carrier, event->status, clan_conn_reason(carrier->conn));
	}
}

void native_carrier_event(struct native_carrier *carrier, const struct clan_event *event)
{
	if (event->type == CLAN_EVENT_CLOSED) {
		carrier->conn = NULL;
		native_carrier_step(carrier);
		return;
	}
	if (carrier->state == NATIVE_CLOSING) {
		return; /* it came in the same batch */
	}
	switch ((enum clan_event_type)event->type) {
	case CLAN_EVENT_CONNECTED:
		connected(carrier);
		break;
	case CLAN_EVENT_READY:
		native_carrier_take(carrier);
		break;
	case CLAN_EVENT_LOST:
		lost(carrier, event);
		break;
	case CLAN_EVENT_SHARED:
		shared(carrier, event);
		break;
	case CLAN_EVENT_UNSHARED:
		unshared(carrier, event);
		break;
	case CLAN_EVENT_ARRIVED:
	case CLAN_EVENT_CONNECT:
	case CLAN_EVENT_CLOSED:
	case CLAN_EVENT_REGION:
	case CLAN_EVENT_REGION_ENDING:
	case CLAN_EVENT_REVOKED:
	case CLAN_EVENT_TRIPPED:
	case CLAN_EVENT_DONE:
	default:
		break; /* of what a client does not do */
	}
}

/* --- the beginning --------------------------------------------------------------------------- */

static void timer_done(struct ring_op *op, int result)
{
	struct native_carrier *carrier = container_of(op, struct native_carrier, timer_op);

	GMB_UNUSED(result);
	if (carrier->state == NATIVE_CLOSING) {
		native_carrier_step(carrier);
	} else if (carrier->state == NATIVE_DIALING) {
		fail(carrier, -ETIMEDOUT, "the server did not answer in time");
	}
}

static void fail_done(struct ring_op *op, int result)
{
	struct native_carrier *carrier = container_of(op, struct native_carrier, fail_op);

	GMB_UNUSED(result);
	if (carrier->state == NATIVE_CLOSING) {
		native_carrier_step(carrier);
	} else {
		carrier_failed(&carrier->base, &carrier->failure);
	}
}

static void put_token(struct native_carrier *carrier, const char *token)
{
	uint32_t bytes = (uint32_t)strlen(token);

	memcpy(carrier->open + carrier->open_bytes, token, bytes);
	carrier->open_bytes += bytes;
}

static void make_open(struct native_carrier *carrier, const struct carrier_start *start)
{
	struct native_wire_open head = {
		.name_bytes = (uint16_t)strlen(carrier->target->name),
		.token_bytes = (uint8_t)strlen(start->token),
		.replaces_count = (uint8_t)start->replaces_count,
		.alive_units =
			(uint16_t)MIN(start->alive_ms / NATIVE_ALIVE_UNIT_MS, (uint32_t)UINT16_MAX),
	};

	carrier->asks_alive = head.alive_units != 0;
	carrier->waits_for_ends = (start->open_flags & GMB_OPEN_NO_RECONNECT) == 0;
	memcpy(carrier->open, &head, sizeof(head));
	carrier->open_bytes = sizeof(head);
	put_token(carrier, carrier->target->name);
	put_token(carrier, start->token);
	for (uint32_t i = 0; i < start->replaces_count; i++) {
		carrier->open[carrier->open_bytes++] = (uint8_t)strlen(start->replaces[i]);
		put_token(carrier, start->replaces[i]);
	}
}

int native_connect(struct clan_queue *queue, const struct native_target *target,
	const struct clan_conn_options *options, struct clan_conn **conn_out, struct error *error)
{
	static const struct native_wire_hello hello = {
		.magic = NATIVE_MAGIC,
		.version_min = NATIVE_VERSION_MIN,
		.version_max = NATIVE_VERSION,
	};
	int result = clan_connect(
		queue, target->address, options, &hello, sizeof(hello), conn_out, NULL);
	const char *advice =
		target->socket_path != NULL ? uri_unix_advice(target->socket_path, result) : NULL;

	if (result != 0) {
		*conn_out = NULL;
		error_set(error, result, "cannot connect: %s%s%s", strerror(-result),
			advice != NULL ? "; " : "", advice != NULL ? advice : "");
	}
	return result;
}

static int dial(struct native_carrier *carrier, const struct carrier_start *start)
{
	struct clan_conn_options options = {
		.size = sizeof(options),
		.cookies = HUB_BUFFERS_MAX,
		.tripwires = 1,
		.handshake_timeout_ms = (uint32_t)(start->timeout_ns / 1000000 + 1),
		.peer_regions_max = 1, /* servers share nothing */
	};
	int result = hub_get(carrier->base.queue, &carrier->hub, &carrier->failure);

	if (result == 0) {
		hub_start(carrier->hub);
		result = native_connect(carrier->hub->clan, carrier->target, &options,
			&carrier->conn, &carrier->failure);
	}
	if (result != 0) {
		error_prefix(&carrier->failure, "%s", carrier->target->label);
		return result;
	}
	clan_conn_set_context(carrier->conn, carrier);
	list_push_back(&carrier->hub->carriers, &carrier->node);
	return 0;
}

static void native_start(struct carrier *base, const struct carrier_start *start)
{
	struct native_carrier *carrier = of(base);

	set_state(carrier, NATIVE_DIALING);
	base->moved_bytes = 0;
	carrier->free_count = CARRIER_DEPTH_MAX;
	for (uint32_t i = 0; i < CARRIER_DEPTH_MAX; i++) {
		carrier->calls[i] = NULL;
		carrier->free_slots[i] = (uint16_t)i;
	}
	memset(carrier->shares, 0, sizeof(carrier->shares));
	make_open(carrier, start);
	if (dial(carrier, start) != 0) {
		ring_defer(base->ring, &carrier->fail_op, 0, fail_done);
	} else {
		ring_timer(base->ring, &carrier->timer_op, start->timeout_ns, timer_done);
	}
}

/* --- targets --------------------------------------------------------------------------------- */

static void native_target_destroy(struct carrier_target *base)
{
	struct native_target *target = (struct native_target *)(void *)base;

	if (target != NULL) {
		free(target->address);
		free(target->socket_path);
		free(target->name);
		free(target);
	}
}

static int check_uri(const struct export_uri *uri, const char *text, struct error *error)
{
	char shown[CARRIER_LABEL_BYTES_MAX];

	if (uri->user == NULL && uri->unknown_parameter == NULL) {
		return 0;
	}
	return error_set(error, -EINVAL, "the URI '%s' cannot be used: gmb has no %s%s",
		log_escape(shown, sizeof(shown), text, strlen(text)),
		uri->user != NULL ? "users" : "parameter ",
		uri->user != NULL ? "" : uri->unknown_parameter);
}

static int native_target_create(const char *text, uint32_t open_flags, struct tls_client *tls,
	char label[CARRIER_LABEL_BYTES_MAX], struct carrier_target **target_out,
	struct error *error)
{
	struct native_target *target = calloc(1, sizeof(*target));
	struct export_uri uri = { 0 };
	int result = export_uri_parse(text, &uri, error);

	GMB_UNUSED(open_flags);
	GMB_ASSERT(tls == NULL);
	if (result == 0) {
		result = check_uri(&uri, text, error);
	}
	if (result == 0 && target != NULL) {
		export_uri_label(label, &uri);
		memcpy(target->label, label, CARRIER_LABEL_BYTES_MAX);
		target->address = export_uri_clan_address(&uri);
		target->socket_path = uri.socket_path;
		target->name = uri.export_name;
		uri.socket_path = NULL;
		uri.export_name = NULL;
	}
	if (result == 0 && (target == NULL || target->address == NULL)) {
		result = error_set(error, -ENOMEM, "out of memory");
	}
	export_uri_fini(&uri);
	if (result != 0) {
		native_target_destroy((struct carrier_target *)(void *)target);
		return result;
	}
	*target_out = (struct carrier_target *)(void *)target;
	return 0;
}

static struct carrier *native_create(const struct carrier_target *target)
{
	struct native_carrier *carrier = calloc(1, sizeof(*carrier));

	if (carrier == NULL) {
		return NULL;
	}
	carrier->target = (const struct native_target *)(const void *)target;
	list_init(&carrier->node);
	list_init(&carrier->hungry_node);
	list_init(&carrier->unsent);
	list_init(&carrier->sent);
	return &carrier->base;
}

static void native_destroy(struct carrier *base)
{
	GMB_ASSERT(of(base)->state == NATIVE_IDLE);
	free(of(base));
}

static const char *const schemes[] = { "gmb", "gmb+unix", NULL };

const struct carrier_ops native_carrier = {
	.name = "gmb",
	.schemes = schemes,
	.command_bytes = sizeof(struct native_call),
	/* One thread on each side moves more than two do, since neither is woken as long as the
	 * other works. */
	.connections = 1,
	.target_create = native_target_create,
	.target_destroy = native_target_destroy,
	.create = native_create,
	.destroy = native_destroy,
	.start = native_start,
	.add = native_add,
	.flush = native_flush,
	.lose = native_lose,
	.leave = native_lose, /* closing is saying goodbye */
	.take_back = native_take_back,
};
