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
		 * nobody uses it any more. */
		*share = FRONT_SHARE_REFUSED;
		return;
	}
	*share = FRONT_SHARE_UNWANTED;
	front_control_turn(carrier);
}

/* Returns whether the server can access the buffer. If it cannot yet, and the server has room for
 * another one, the buffer is on its way and the command waits. */
static bool front_share(struct front_carrier *carrier, uint32_t number)
{
	uint8_t *share = &carrier->shares[number];
	uint64_t used = 1; /* the rings */

	if (carrier->hub->buffers[number].tainted || *share != FRONT_SHARE_NONE) {
		return *share == FRONT_SHARE_LIVE && !carrier->hub->buffers[number].tainted;
	}
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		used += carrier->shares[i] != FRONT_SHARE_NONE &&
			carrier->shares[i] != FRONT_SHARE_REFUSED && i != HUB_POOL;
	}
	/* One region is reserved for the pool. */
	*share = number == HUB_POOL || used + 1 < carrier->slots ? FRONT_SHARE_WANTED
								 : FRONT_SHARE_REFUSED;
	front_control_turn(carrier);
	return false;
}

/* --- payload --------------------------------------------------------------------------------- */

enum placing { PLACED, LATER, ELSEWHERE };

/* Adds descriptors for consecutive memory. Returns false if the chain has no room. */
static bool put_memory(const struct front_carrier *carrier, struct front_chain *chain,
	uint64_t address, uint64_t bytes, bool writable)
{
	while (bytes > 0) {
		uint32_t part = (uint32_t)MIN(bytes, (uint64_t)carrier->segment_bytes_max);

		if (chain->count > carrier->segments_max ||
			!front_chain_add(chain, address, part, writable)) {
			return false;
		}
		address += part;
		bytes -= part;
	}
	return true;
}

/* Adds the command's own memory. */
static enum placing place(struct front_carrier *carrier, const struct command *command,
	struct front_chain *chain, uint32_t *buffers)
{
	bool reads = command->operation == GMB_READ;
	struct hub_pieces pieces = hub_pieces_of(command);
	struct iovec piece;

	while (hub_next_piece(&pieces, &piece)) {
		struct hub_buffer *buffer = hub_find(carrier->hub, piece.iov_base, piece.iov_len);
		uint32_t number;

		/* A server may fill imported memory after the connection is lost. */
		if (buffer == NULL || (buffer->imported && reads)) {
			return ELSEWHERE;
		}
		number = (uint32_t)(buffer - carrier->hub->buffers);
		if (!front_share(carrier, number)) {
			return carrier->shares[number] == FRONT_SHARE_REFUSED ? ELSEWHERE : LATER;
		}
		if (!put_memory(carrier, chain,
			    front_address(
				    number, (uintptr_t)piece.iov_base - (uintptr_t)buffer->base),
			    piece.iov_len, reads)) {
			return ELSEWHERE;
		}
		*buffers |= BIT(number);
	}
	return PLACED;
}

/* Adds memory of the pool, and copies the data of a write there. */
static enum placing stage(struct front_carrier *carrier, struct front_call *call,
	struct front_chain *chain, uint32_t *buffers)
{
	const struct command *command = front_command_of(call);
	struct hub *hub = carrier->hub;
	uint8_t *run;
	bool fits;

	if (hub_pool_make(hub) != 0) {
		front_fail(carrier, -ENOMEM,
			"not enough memory to stage payload in memory that the server can access");
		return LATER;
	}
	if (!front_share(carrier, HUB_POOL)) {
		if (carrier->shares[HUB_POOL] == FRONT_SHARE_REFUSED) {
			front_fail(carrier, -ENOMEM,
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
	chain->count = 1;
	fits = put_memory(carrier, chain,
		front_address(HUB_POOL, (uint64_t)call->staged.page * HUB_PAGE_BYTES),
		command->length, command->operation == GMB_READ);
	GMB_ASSERT(fits); /* because of facts.payload_max */
	*buffers = BIT(HUB_POOL);
	return PLACED;
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
	uint32_t buffers = 0;
	enum placing placing = PLACED;

	if (!front_chain_begin(ring, &chain)) {
		return false;
	}
	chain.slot->head = (struct blk_head){
		.type = type_of(command),
		.sector = moves ? command->offset / BLK_SECTOR_BYTES : 0,
	};
	if (moves) {
		placing = place(carrier, command, &chain, &buffers);
		if (placing == ELSEWHERE) {
			placing = stage(carrier, call, &chain, &buffers);
		}
	} else if (command->operation != GMB_FLUSH) {
		put_range(carrier, ring, &chain, command);
	}
	if (placing != PLACED) {
		return false;
	}
	call->buffers = buffers;
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
	if (call->staged.pages > 0) {
		if (command->operation == GMB_READ && command->result == 0) {
			hub_copy(command, hub_pool_address(carrier->hub, &call->staged), false);
			carrier->base.moved_bytes += command->length;
		}
		hub_pool_put(carrier->hub, &call->staged);
	}
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
