// SPDX-License-Identifier: Apache-2.0
/* A client connection: commands to its server, one message for each. A command that has to wait for
 * memory or for room in the ring also delays the later ones, because commands are sent in order. */
#include <errno.h>
#include <string.h>

#include "gmb/client/client.h"

/* A REQUEST message under construction. */
struct draft {
	struct native_wire_request head;
	struct native_wire_segment segments[NATIVE_SEGMENTS_MAX];
	uint8_t inlined[NATIVE_INLINE_BYTES_MAX];
	uint32_t buffers; /* bit mask of the buffers that it uses */
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

enum placing { PLACED, LATER, ELSEWHERE };

/* Fills in the segments of the command's own memory. Returns ELSEWHERE if the server cannot access
 * it, or LATER if it is not shared yet. */
static enum placing gmb_send_place(
	struct native_carrier *carrier, const struct command *command, struct draft *draft)
{
	struct hub_pieces pieces = hub_pieces_of(command);
	struct iovec piece;

	while (hub_next_piece(&pieces, &piece)) {
		struct hub_buffer *buffer = hub_find(carrier->hub, piece.iov_base, piece.iov_len);
		uint32_t number;

		if (buffer == NULL || draft->head.segment_count == NATIVE_SEGMENTS_MAX ||
			(buffer->imported && command->operation == GMB_READ &&
				!carrier->fills_imported)) {
			return ELSEWHERE;
		}
		number = (uint32_t)(buffer - carrier->hub->buffers);
		if (!native_share(carrier, number)) {
			return carrier->shares[number].state == SHARE_REFUSED ? ELSEWHERE : LATER;
		}
		put_segment(carrier, draft, buffer, piece.iov_base, piece.iov_len);
	}
	return PLACED;
}

/* Used for memory that the server cannot access: allocates memory of the pool, fills in its
 * segment, and copies the data of a write there. */
static enum placing gmb_send_stage(
	struct native_carrier *carrier, const struct command *command, struct draft *draft)
{
	struct native_call *call = native_call_of((struct command *)(uintptr_t)command);
	struct hub *hub = carrier->hub;
	struct hub_buffer *pool = &hub->buffers[HUB_POOL];
	uint8_t *run;

	draft->buffers = 0;
	draft->head.segment_count = 0;
	if (hub_pool_make(hub) != 0) {
		native_carrier_fail(carrier, -ENOMEM,
			"not enough memory to stage payload in memory that the server can access");
		return LATER;
	}
	if (!native_share(carrier, HUB_POOL)) {
		if (carrier->shares[HUB_POOL].state == SHARE_REFUSED) {
			native_carrier_fail(carrier, -ENOMEM,
				"the server does not map the memory of this client");
		}
		return LATER;
	}
	if (!hub_pool_get(hub, command->length, &call->staged)) {
		return LATER;
	}
	run = hub_pool_address(hub, &call->staged);
	if (command->operation == GMB_WRITE) {
		hub_copy(command, run, true);
		carrier->base.moved_bytes += command->length;
	}
	put_segment(carrier, draft, pool, run, command->length);
	return PLACED;
}

static enum placing gmb_send_carry(
	struct native_carrier *carrier, const struct command *command, struct draft *draft)
{
	enum placing placing;

	if (command->operation == GMB_WRITE && command->length <= NATIVE_INLINE_BYTES_MAX) {
		hub_copy(command, draft->inlined, true);
		draft->head.inline_bytes = (uint16_t)command->length;
		return PLACED;
	}
	placing = gmb_send_place(carrier, command, draft);
	return placing == ELSEWHERE ? gmb_send_stage(carrier, command, draft) : placing;
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
	if (moves && gmb_send_carry(carrier, command, &draft) != PLACED) {
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
		return false; /* the carrier tries again when an event reports room in the ring */
	}
	call->buffers = draft.buffers;
	gmb_send_sent(carrier, call, draft.head.tag);
	return true;
}

/* Clan makes these messages visible to the server when the ring next polls the clan queue or is
 * about to sleep, so that one wake-up covers all of them. */
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
