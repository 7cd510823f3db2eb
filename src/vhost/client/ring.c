// SPDX-License-Identifier: Apache-2.0
/* One split ring, as the driver's side of it. Chain n of the ring has slot n. With indirect
 * descriptors its table is in the slot, and descriptor n points to it; otherwise it owns the
 * descriptors from n * FRONT_DIRECT on. */
#include <errno.h>
#include <string.h>

#include "vhost/client/client.h"

/* Status before the server has written one. */
enum { STATUS_NONE = 0xff };

_Static_assert(sizeof(((struct front_area *)0)->avail) >= 4 + 2 * (FRONT_ENTRIES + 1), "avail");
_Static_assert(sizeof(((struct front_area *)0)->used) >= 4 + 8 * FRONT_ENTRIES + 2, "used");

static struct vring_avail *avail_of(const struct front_ring *ring)
{
	return (struct vring_avail *)(void *)ring->area->avail;
}

static struct vring_used *used_of(const struct front_ring *ring)
{
	return (struct vring_used *)(void *)ring->area->used;
}

void front_ring_init(
	struct front_ring *ring, struct front_area *area, uint64_t address, uint64_t features)
{
	*ring = (struct front_ring){
		.area = area,
		.address = address,
		.indirect = (features & VIRTIO_RING_INDIRECT) != 0,
		.event_idx = (features & VIRTIO_RING_EVENT_IDX) != 0,
		.kick_fd = -1,
	};
	ring->slot_count = ring->indirect ? FRONT_ENTRIES : FRONT_ENTRIES / FRONT_DIRECT;
	memset(area->status, STATUS_NONE, sizeof(area->status));
	for (uint32_t i = 0; i < ring->slot_count; i++) {
		ring->free_slots[ring->free_count++] = (uint16_t)(ring->slot_count - 1 - i);
	}
	(void)front_ring_arm(ring, false);
}

static uint64_t slot_address(const struct front_ring *ring, uint32_t slot, size_t member)
{
	return ring->address + offsetof(struct front_area, slots) +
	       (uint64_t)slot * sizeof(struct front_slot) + member;
}

bool front_chain_begin(struct front_ring *ring, struct front_chain *chain)
{
	uint32_t slot;

	if (ring->free_count == 0) {
		return false;
	}
	slot = ring->free_slots[ring->free_count - 1];
	*chain = (struct front_chain){
		.slot = &ring->area->slots[slot],
		.slot_idx = slot,
		.table = ring->indirect ? ring->area->slots[slot].table
					: &ring->area->desc[slot * FRONT_DIRECT],
		.count_max = ring->indirect ? FRONT_SEGMENTS_MAX + 2 : FRONT_DIRECT,
		.next_base = (uint16_t)(ring->indirect ? 0 : slot * FRONT_DIRECT),
	};
	return front_chain_add(chain, slot_address(ring, slot, offsetof(struct front_slot, head)),
		sizeof(struct blk_head), false);
}

static void chain_put(
	struct front_chain *chain, uint64_t address, uint32_t bytes, uint16_t flags, bool more)
{
	chain->table[chain->count] = (struct vring_desc){
		.address = address,
		.bytes = bytes,
		.flags = (uint16_t)(flags | (more ? VRING_DESC_NEXT : 0)),
		.next = (uint16_t)(more ? chain->next_base + chain->count + 1 : 0),
	};
	chain->count++;
}

bool front_chain_add(struct front_chain *chain, uint64_t address, uint32_t bytes, bool writable)
{
	if (chain->count + 1 >= chain->count_max) {
		return false;
	}
	chain_put(chain, address, bytes, writable ? VRING_DESC_WRITE : 0, true);
	return true;
}

uint64_t front_chain_range(const struct front_ring *ring, const struct front_chain *chain)
{
	return slot_address(ring, chain->slot_idx, offsetof(struct front_slot, range));
}

void front_chain_commit(struct front_ring *ring, struct front_chain *chain, void *owner)
{
	uint32_t slot = chain->slot_idx;
	uint32_t head = ring->indirect ? slot : slot * FRONT_DIRECT;

	GMB_ASSERT(ring->free_slots[ring->free_count - 1] == slot && ring->owners[slot] == NULL);
	chain_put(chain, ring->address + offsetof(struct front_area, status) + slot, 1,
		VRING_DESC_WRITE, false);
	if (ring->indirect) {
		ring->area->desc[head] = (struct vring_desc){
			.address = slot_address(ring, slot, offsetof(struct front_slot, table)),
			.bytes = chain->count * (uint32_t)sizeof(struct vring_desc),
			.flags = VRING_DESC_INDIRECT,
		};
	}
	ring->free_count--;
	ring->owners[slot] = owner;
	avail_of(ring)->ring[ring->avail_index++ % FRONT_ENTRIES] = (uint16_t)head;
}

bool front_ring_publish(struct front_ring *ring)
{
	const uint16_t *event = (const uint16_t *)(const void *)&used_of(ring)->ring[FRONT_ENTRIES];
	uint16_t before = ring->told_index;

	if (ring->avail_index == before) {
		return false;
	}
	/* Pairs with the server's load of the index, before it reads chains. */
	__atomic_store_n(&avail_of(ring)->index, ring->avail_index, __ATOMIC_RELEASE);
	ring->told_index = ring->avail_index;
	/* Pairs with the server, which asks for a notification before it looks at the index again:
	 * either it sees the new index, or we see that it has asked. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (ring->event_idx) {
		return vring_needs_event(
			__atomic_load_n(event, __ATOMIC_RELAXED), ring->told_index, before);
	}
	return (__atomic_load_n(&used_of(ring)->flags, __ATOMIC_RELAXED) & VRING_USED_NO_NOTIFY) ==
	       0;
}

int front_ring_take(
	struct front_ring *ring, void **owner_out, uint8_t *status_out, const char **rule)
{
	/* Pairs with the server's store, after it has written the element and the status. */
	uint16_t index = __atomic_load_n(&used_of(ring)->index, __ATOMIC_ACQUIRE);
	uint16_t count = (uint16_t)(index - ring->used_index);
	uint32_t stride = ring->indirect ? 1 : FRONT_DIRECT;
	uint32_t head;
	uint32_t slot;

	if (count == 0) {
		return 0;
	}
	if (count > ring->slot_count - ring->free_count) {
		*rule = "V24: more used chains than there are chains";
		return -EPROTO;
	}
	head = __atomic_load_n(
		&used_of(ring)->ring[ring->used_index % FRONT_ENTRIES].head, __ATOMIC_RELAXED);
	slot = head / stride;
	if (head % stride != 0 || slot >= ring->slot_count || ring->owners[slot] == NULL) {
		*rule = "V24: a used chain that is not in flight";
		return -EPROTO;
	}
	*status_out = __atomic_load_n(&ring->area->status[slot], __ATOMIC_RELAXED);
	__atomic_store_n(&ring->area->status[slot], STATUS_NONE, __ATOMIC_RELAXED);
	if (*status_out > BLK_UNSUPPORTED) {
		*rule = "V25: an unknown status, or none";
		return -EPROTO;
	}
	*owner_out = ring->owners[slot];
	ring->owners[slot] = NULL;
	ring->free_slots[ring->free_count++] = (uint16_t)slot;
	ring->used_index++;
	return 1;
}

bool front_ring_arm(struct front_ring *ring, bool arm)
{
	struct vring_avail *avail = avail_of(ring);

	if (ring->event_idx) {
		/* An event that lies behind the next element is reached after 2^16 elements. */
		__atomic_store_n(&avail->ring[FRONT_ENTRIES],
			(uint16_t)(arm ? ring->used_index : ring->used_index - 1),
			__ATOMIC_RELAXED);
	} else {
		__atomic_store_n(
			&avail->flags, arm ? 0 : VRING_AVAIL_NO_INTERRUPT, __ATOMIC_RELAXED);
	}
	if (!arm) {
		return true;
	}
	/* Pairs with the server, which adds an element before it looks whether we have asked. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n(&used_of(ring)->index, __ATOMIC_RELAXED) == ring->used_index;
}
