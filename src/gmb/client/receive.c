// SPDX-License-Identifier: Apache-2.0
/* A client connection: messages from its server. Called by the hub when messages arrive. It ends
 * the connection at the first broken rule. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "gmb/client/client.h"

_Static_assert(CARRIER_TEXT_BYTES_MAX >= (int)NATIVE_TEXT_BYTES_MAX, "texts");
_Static_assert(CARRIER_NAME_BYTES_MAX > (int)NATIVE_NAME_BYTES_MAX, "names");

enum {
	/* Limit on consecutive messages of a server, after which other connections get a turn. It
	 * is more than the rings can hold. */
	MESSAGES_MAX = 512,
	/* The same while the thread polls: the server then has the program's next commands while
	 * the program still works on other replies (0005, few messages per turn). */
	MESSAGES_SPINNING_MAX = 8,
};

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

static void gmb_receive_call_done(
	struct native_carrier *carrier, struct native_call *call, const struct native_reply *reply)
{
	struct command *command = native_command_of(call);
	char text[CARRIER_TEXT_BYTES_MAX];

	command->result = native_status_to_errno(reply->head.status);
	hub_unstage(carrier->hub, &carrier->base, command, &call->staged);
	if (command->operation == GMB_STATUS && command->result == 0) {
		take_extents(command, reply);
	} else if (command->operation == GMB_COPY) {
		/* the offset of the first byte that was not copied */
		uint64_t first = MAX(reply->head.value, command->offset);

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

/* Processes a REPLY. Returns the broken rule, or NULL. */
static const char *gmb_receive_take_reply(struct native_carrier *carrier, uint32_t len)
{
	struct native_reply reply;
	struct native_call *call;
	const char *rule;
	uint32_t tag;

	if (!native_reply_tag(carrier->message, len, &tag)) {
		return "G3: invalid length of REPLY";
	}
	call = carrier->calls[tag % CARRIER_DEPTH_MAX];
	if (call == NULL || call->tag != tag) {
		return "G14: a REPLY without a request";
	}
	rule = native_reply_parse(carrier->message, len, reply_kind(native_command_of(call)),
		call->extents_max, native_command_of(call)->length, &reply);
	if (rule == NULL) {
		carrier->base.answered_ns = carrier->base.heard_ns;
		gmb_receive_call_done(carrier, call, &reply);
	}
	return rule;
}

static const char *gmb_receive_take_event(struct native_carrier *carrier, uint32_t len)
{
	struct native_wire_event event;
	const char *rule = native_parse(NATIVE_EVENT, carrier->message, len, &event);

	if (rule == NULL && event.bytes != carrier->base.facts.bytes) {
		carrier->base.facts.bytes = event.bytes;
		carrier_resized(&carrier->base);
	}
	return rule;
}

static uint32_t gmb_receive_capabilities_of(uint32_t flags, const struct carrier_facts *facts)
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

static void put_text(char out[CARRIER_NAME_BYTES_MAX], struct message_text text)
{
	memcpy(out, text.bytes, text.length);
	out[text.length] = '\0';
}

static const char *gmb_receive_take_export(struct native_carrier *carrier, uint32_t len)
{
	struct carrier_facts *facts = &carrier->base.facts;
	struct native_export export;
	const char *rule = native_parse(NATIVE_EXPORT, carrier->message, len, &export);
	char text[CARRIER_TEXT_BYTES_MAX];

	if (rule != NULL) {
		return rule;
	}
	if (export.head.status != 0) {
		log_escape(text, sizeof(text), export.text.bytes, export.text.length);
		native_carrier_fail(carrier, native_status_to_errno(export.head.status), text);
		return NULL;
	}
	facts->bytes = export.head.bytes;
	facts->capabilities = gmb_receive_capabilities_of(export.head.flags, facts);
	facts->identity = export.head.flags & ~(uint32_t)NATIVE_EXPORT_DISK;
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
	memset(facts->disk, 0, sizeof(facts->disk));
	if (export.disk.length > 0) {
		memcpy(facts->disk, export.disk.bytes, sizeof(facts->disk));
	}
	carrier->fills_imported = carrier->waits_for_ends && facts->can_take_over &&
				  (export.head.flags & NATIVE_EXPORT_ENDS) != 0;
	put_text(facts->name, export.name);
	put_text(facts->description, export.text);
	ring_cancel(carrier->base.ring, &carrier->timer_op);
	native_carrier_set_state(carrier, NATIVE_READY);
	carrier_ready(&carrier->base);
	return NULL;
}

static const char *gmb_receive_take_message(
	struct native_carrier *carrier, const struct clan_message *message)
{
	bool ready = carrier->state == NATIVE_READY;

	if (message->cls == CLAN_BULK && message->type == NATIVE_REPLY && ready) {
		return gmb_receive_take_reply(carrier, message->bytes);
	}
	if (message->cls == CLAN_BULK && message->type == NATIVE_EVENT && ready) {
		return gmb_receive_take_event(carrier, message->bytes);
	}
	if (message->cls == CLAN_BULK && message->type == NATIVE_ALIVE && ready) {
		return message->bytes == 0 ? NULL : "G3: invalid length of ALIVE";
	}
	if (message->cls == CLAN_BULK && message->type == NATIVE_EXPORT && !ready) {
		return gmb_receive_take_export(carrier, message->bytes);
	}
	return "G2: an unexpected message";
}

static void gmb_receive_take(struct native_carrier *carrier, int messages_max)
{
	struct clan_message message;

	list_remove(&carrier->user.hungry_node);
	for (int i = 0; i < messages_max; i++) {
		const char *rule;

		if (carrier->state != NATIVE_READY && carrier->state != NATIVE_DIALING) {
			return;
		}
		if (clan_recv(carrier->conn, CLAN_ANY, &message, carrier->message,
			    sizeof(carrier->message)) != 0) {
			/* an event reports further messages, or the end of the connection */
			return;
		}
		carrier->base.heard_ns = ring_batch_ns(carrier->base.ring);
		rule = gmb_receive_take_message(carrier, &message);
		if (rule != NULL) {
			char text[160];

			snprintf(text, sizeof(text), "the server broke a gmb rule: %s", rule);
			native_carrier_fail(carrier, -EPROTO, text);
			return;
		}
	}
	if (carrier->state != NATIVE_CLOSING) {
		list_push_back(&carrier->hub->hungry, &carrier->user.hungry_node);
	}
}

void native_carrier_take(struct native_carrier *carrier)
{
	gmb_receive_take(
		carrier, queue_spins(carrier->hub->queue) ? MESSAGES_SPINNING_MAX : MESSAGES_MAX);
}

void native_carrier_drain(struct native_carrier *carrier)
{
	gmb_receive_take(carrier, MESSAGES_MAX);
}
