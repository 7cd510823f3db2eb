// SPDX-License-Identifier: Apache-2.0
/* A connection: commands as chains of descriptors, and the buffers that its server can access. A
 * command that has to wait for memory or for a free chain also delays the later ones. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "vhost/client/client.h"

/* --- buffers --------------------------------------------------------------------------------- */

bool front_shares(struct hub_user *user, uint32_t number, bool end)
{
	struct front_carrier *carrier = container_of(user, struct front_carrier, user);
	uint8_t share = carrier->shares[number];

	if (carrier->front.fd < 0 || share == FRONT_SHARE_NONE || share == FRONT_SHARE_WANTED ||
		share == FRONT_SHARE_REFUSED) {
		return false;
	}
	if (end) {
		front_fail(carrier, -ECONNRESET,
			"closed because another connection that shares its memory was lost");
	}
	return carrier->front.fd >= 0;
}

void front_unshare(struct hub_user *user, uint32_t number)
{
	struct front_carrier *carrier = container_of(user, struct front_carrier, user);
	uint8_t *share = &carrier->shares[number];

	if (carrier->state != FRONT_READY || *share != FRONT_SHARE_LIVE) {
		return;
	}
	if (carrier->slots == 0) {
		/* The server keeps the old memory mapped until the end of the connection, and
		 * it is no longer used. */
		*share = FRONT_SHARE_REFUSED;
		return;
	}
	*share = FRONT_SHARE_UNWANTED;
	front_control_turn(carrier);
}

enum hub_access front_share(struct hub_user *user, uint32_t number)
{
	struct front_carrier *carrier = container_of(user, struct front_carrier, user);
	uint8_t *share = &carrier->shares[number];
	uint64_t used = 1; /* the rings */

	if (*share == FRONT_SHARE_REFUSED) {
		return HUB_ACCESS_NEVER;
	}
	if (carrier->hub->buffers[number].tainted || *share != FRONT_SHARE_NONE) {
		return *share == FRONT_SHARE_LIVE && !carrier->hub->buffers[number].tainted
			       ? HUB_ACCESS_YES
			       : HUB_ACCESS_LATER;
	}
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		used += carrier->shares[i] != FRONT_SHARE_NONE &&
			carrier->shares[i] != FRONT_SHARE_REFUSED && i != HUB_POOL;
	}
	/* One region is reserved for the pool. */
	*share = number == HUB_POOL || used + 1 < carrier->slots ? FRONT_SHARE_WANTED
								 : FRONT_SHARE_REFUSED;
	front_control_turn(carrier);
	return *share == FRONT_SHARE_REFUSED ? HUB_ACCESS_NEVER : HUB_ACCESS_LATER;
}

/* --- payload --------------------------------------------------------------------------------- */

struct placement {
	struct hub_placement base;
	const struct front_carrier *carrier;
	struct front_chain *chain;
};

/* Adds descriptors for consecutive memory. Returns false if the chain has no room. */
static bool put_memory(
	struct hub_placement *base, uint32_t number, uint64_t offset, uint64_t bytes, bool is_first)
{
	struct placement *placement = container_of(base, struct placement, base);
	const struct front_carrier *carrier = placement->carrier;
	struct front_chain *chain = placement->chain;
	bool writable = base->command->operation == GMB_READ;

	chain->count = is_first ? 1 : chain->count; /* the head */
	while (bytes > 0) {
		uint32_t part = (uint32_t)MIN(bytes, (uint64_t)carrier->segment_bytes_max);

		if (chain->count > carrier->segments_max ||
			!front_chain_add(chain, front_address(number, offset), part, writable)) {
			return false;
		}
		offset += part;
		bytes -= part;
	}
	return true;
}

/* Adds the memory of a command to its chain. Returns false if it has to wait. */
static bool front_put_payload(
	struct front_carrier *carrier, struct front_chain *chain, struct front_call *call)
{
	struct placement placement = {
		.base = {
			.hub = carrier->hub,
			.user = &carrier->user,
			.carrier = &carrier->base,
			.command = front_command_of(call),
			.staged = &call->staged,
			/* The server may fill it after the connection is lost. */
			.fills_imported = false,
			.put = put_memory,
		},
		.carrier = carrier,
		.chain = chain,
	};

	if (!hub_place(&placement.base)) {
		return false;
	}
	call->buffers = placement.base.buffers;
	return true;
}

/* --- commands -------------------------------------------------------------------------------- */

static uint32_t type_of(const struct command *command)
{
	static const uint8_t types[] = {
		[GMB_READ] = BLK_READ,
		[GMB_WRITE] = BLK_WRITE,
		[GMB_FLUSH] = BLK_FLUSH,
		[GMB_TRIM] = BLK_DISCARD,
		[GMB_ZERO] = BLK_WRITE_ZEROES,
	};

	/* The facts allow no other operation. */
	GMB_ASSERT(command->operation < ARRAY_COUNT(types));
	return types[command->operation];
}

static void put_range(const struct front_carrier *carrier, struct front_ring *ring,
	struct front_chain *chain, const struct command *command)
{
	bool unmaps = command->operation == GMB_ZERO && (command->flags & GMB_NO_HOLE) == 0 &&
		      carrier->config.zero_may_unmap != 0;
	bool fits = front_chain_add(
		chain, front_chain_range(ring, chain), sizeof(chain->slot->range), false);

	GMB_ASSERT(fits);
	chain->slot->range = (struct blk_range){
		.sector = command->offset / BLK_SECTOR_BYTES,
		.sectors = (uint32_t)(command->length / BLK_SECTOR_BYTES),
		.flags = unmaps ? BLK_RANGE_UNMAP : 0,
	};
}

/* Adds a command to a ring. Returns false if it has to wait, or if the connection has failed. */
static bool front_send_one(
	struct front_carrier *carrier, struct front_ring *ring, struct front_call *call)
{
	const struct command *command = front_command_of(call);
	bool moves = command->operation == GMB_READ || command->operation == GMB_WRITE;
	struct front_chain chain;

	if (!front_chain_begin(ring, &chain)) {
		return false;
	}
	chain.slot->head = (struct blk_head){
		.type = type_of(command),
		.sector = moves ? command->offset / BLK_SECTOR_BYTES : 0,
	};
	call->buffers = 0;
	if (moves && !front_put_payload(carrier, &chain, call)) {
		return false;
	}
	if (!moves && command->operation != GMB_FLUSH) {
		put_range(carrier, ring, &chain, command);
	}
	front_chain_commit(ring, &chain, call);
	list_remove(&call->node);
	list_push_back(&carrier->sent, &call->node);
	return true;
}

static struct front_ring *ring_with_room(struct front_carrier *carrier)
{
	for (uint32_t i = 0; i < carrier->queue_count; i++) {
		struct front_ring *ring =
			&carrier->rings[carrier->queue_next++ % carrier->queue_count];

		if (ring->free_count > 0) {
			return ring;
		}
	}
	return NULL;
}

void front_flush(struct carrier *base)
{
	const uint64_t one = 1;
	struct front_carrier *carrier = front_carrier_of(base);
	struct list_node *node;

	while (carrier->state == FRONT_READY && (node = list_first(&carrier->unsent)) != NULL) {
		struct front_ring *ring = ring_with_room(carrier);

		if (ring == NULL ||
			!front_send_one(carrier, ring, list_entry(node, struct front_call, node))) {
			break;
		}
	}
	for (uint32_t i = 0; i < carrier->queue_count && carrier->state == FRONT_READY; i++) {
		struct front_ring *ring = &carrier->rings[i];

		if (front_ring_publish(ring)) {
			(void)!write(ring->kick_fd, &one, sizeof(one)); /* full: it is readable */
		}
	}
}

void front_add(struct carrier *base, struct command *command)
{
	struct front_call *call = front_call_of(command);

	*call = (struct front_call){ 0 };
	list_push_back(&front_carrier_of(base)->unsent, &call->node);
	base->command_count++;
}

void front_call_done(struct front_carrier *carrier, struct front_call *call, uint8_t status)
{
	static const int results[] = {
		[BLK_OK] = 0,
		[BLK_IO_ERROR] = -EIO,
		[BLK_UNSUPPORTED] = -EOPNOTSUPP,
	};
	struct command *command = front_command_of(call);

	command->result = results[status];
	hub_unstage(carrier->hub, &carrier->base, command, &call->staged);
	list_remove(&call->node);
	carrier->base.command_count--;
	carrier_done(&carrier->base, command, "");
}

uint32_t front_buffers_in_use(const struct front_carrier *carrier)
{
	uint32_t used = 0;

	list_for_each(node, &carrier->sent)
	{
		used |= list_entry(node, struct front_call, node)->buffers;
	}
	return used;
}
