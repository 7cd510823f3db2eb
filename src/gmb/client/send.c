// SPDX-License-Identifier: Apache-2.0
/* A client connection: commands to its server, one message for each. A command that has to wait for
 * memory or for room in the ring also delays the later ones, because commands are sent in order. */
#include <errno.h>
#include <string.h>

#include "gmb/client/client.h"

/* A REQUEST message under construction. */
struct draft {
	struct hub_placement placement;
	struct native_carrier *carrier;
	struct native_wire_request head;
	struct native_wire_segment segments[NATIVE_SEGMENTS_MAX];
	uint8_t inlined[NATIVE_INLINE_BYTES_MAX];
};

/* Adds a segment. Returns false if the message has no room. */
static bool put_segment(struct hub_placement *placement, uint32_t number, uint64_t offset,
	uint64_t bytes, bool is_first)
{
	struct draft *draft = container_of(placement, struct draft, placement);
	const struct share *share = &draft->carrier->shares[number];

	draft->head.segment_count = is_first ? 0 : draft->head.segment_count;
	if (draft->head.segment_count == NATIVE_SEGMENTS_MAX) {
		return false;
	}
	draft->segments[draft->head.segment_count++] = (struct native_wire_segment){
		.region = (uint16_t)share->number,
		.generation = share->generation,
		.offset = offset,
		.bytes = bytes,
	};
	return true;
}

static bool piece_holds(const struct iovec *piece, const void *memory, size_t bytes)
{
	size_t at = (size_t)((const uint8_t *)memory - (const uint8_t *)piece->iov_base);

	return at < piece->iov_len && bytes <= piece->iov_len - at;
}

/* Returns whether the call reads into this memory. */
static bool reads_into(
	struct native_carrier *carrier, struct native_call *call, const void *memory, size_t bytes)
{
	const struct command *command = native_command_of(call);
	struct hub_pieces pieces = hub_pieces_of(command);
	struct iovec piece;

	if (command->operation != GMB_READ) {
		return false;
	}
	if (call->staged.pages > 0) {
		piece.iov_base = hub_pool_address(carrier->hub, &call->staged);
		piece.iov_len = command->length;
		return piece_holds(&piece, memory, bytes);
	}
	while (hub_next_piece(&pieces, &piece)) {
		if (piece_holds(&piece, memory, bytes)) {
			return true;
		}
	}
	return false;
}

/* A put belongs to one segment of one request, so it is within one piece of memory. */
int native_put_check(void *context, const void *memory, size_t bytes)
{
	struct native_carrier *carrier = native_carrier_of_user(context);

	list_for_each(node, &carrier->sent)
	{
		if (reads_into(
			    carrier, list_entry(node, struct native_call, node), memory, bytes)) {
			return 1;
		}
	}
	return 0;
}

/* Adds the data of a write, or the memory of the data. Returns false if the command has to wait. */
static bool gmb_send_payload(
	struct native_carrier *carrier, struct native_call *call, struct draft *draft)
{
	const struct command *command = native_command_of(call);

	if (command->operation == GMB_WRITE && command->length <= NATIVE_INLINE_BYTES_MAX) {
		hub_copy(command, draft->inlined, true);
		draft->head.inline_bytes = (uint16_t)command->length;
		return true;
	}
	draft->carrier = carrier;
	draft->placement = (struct hub_placement){
		.hub = carrier->hub,
		.user = &carrier->user,
		.carrier = &carrier->base,
		.command = command,
		.staged = &call->staged,
		.fills_imported = carrier->fills_imported,
		.put = put_segment,
	};
	return hub_place(&draft->placement);
}

/* Called when the message of a call is in the ring. */
static void gmb_send_sent(struct native_carrier *carrier, struct native_call *call, uint32_t tag)
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
	const struct command *command = native_command_of(call);
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
		return false; /* the carrier tries again when an event reports room in the ring */
	}
	gmb_send_sent(carrier, call, head.tag);
	return true;
}

/* Sends a command. Returns false if there is no room now, or the connection has ended. */
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
	const struct command *command = native_command_of(call);
	bool moves = command->operation == GMB_READ || command->operation == GMB_WRITE;
	struct iovec iov[3];
	struct draft draft;

	if (command->operation == GMB_COPY) {
		return send_copy(carrier, call);
	}
	draft.placement.buffers = 0;
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
	if (moves && !gmb_send_payload(carrier, call, &draft)) {
		return false;
	}
	iov[0] = (struct iovec){ .iov_base = &draft.head, .iov_len = sizeof(draft.head) };
	iov[1] = (struct iovec){ .iov_base = draft.segments,
		.iov_len = draft.head.segment_count * sizeof(draft.segments[0]) };
	iov[2] = (struct iovec){ .iov_base = draft.inlined, .iov_len = draft.head.inline_bytes };
	if (clan_sendv(carrier->conn, CLAN_BULK, NATIVE_REQUEST, iov, 3) != 0) {
		hub_pool_put(carrier->hub, &call->staged);
		return false; /* the carrier tries again when an event reports room in the ring */
	}
	call->buffers = draft.placement.buffers;
	gmb_send_sent(carrier, call, draft.head.tag);
	return true;
}

/* Clan makes these messages visible to the server when the ring next polls the clan queue or is
 * about to sleep, so that one wake-up covers all messages. */
void native_flush(struct carrier *base)
{
	struct native_carrier *carrier = native_carrier_of(base);
	struct list_node *node;

	while (carrier->state == NATIVE_READY && (node = list_first(&carrier->unsent)) != NULL) {
		if (!send_one(carrier, list_entry(node, struct native_call, node))) {
			break;
		}
	}
}

void native_add(struct carrier *base, struct command *command)
{
	struct native_call *call = native_call_of(command);
	uint32_t wanted = command->operation == GMB_STATUS ? command->request->extents_max : 0;

	*call = (struct native_call){ .extents_max = MIN(wanted, (uint32_t)NATIVE_EXTENTS_MAX) };
	if ((command->flags & GMB_STATUS_ONE) != 0) {
		call->extents_max = 1;
	}
	list_push_back(&native_carrier_of(base)->unsent, &call->node);
	base->command_count++;
}
