// SPDX-License-Identifier: Apache-2.0
/*
 * The ring of a front end whose server writes what it likes. The first byte chooses the features;
 * then each step is an operation: add a chain, publish, take, arm, let the server do its work, or
 * write a byte anywhere in the shared memory.
 */
#include <errno.h>

#include "fuzz.h"
#include "vhost/client/client.h"

static struct front_area area;
static struct front_ring ring;
static uint8_t owners[FRONT_ENTRIES]; /* their addresses are the owners; 1: in flight */
static uint32_t in_flight;

static void add(uint8_t pieces)
{
	struct front_chain chain;

	if (!front_chain_begin(&ring, &chain)) {
		GMB_ASSERT(in_flight == ring.slot_count);
		return;
	}
	for (uint32_t i = 0; i < pieces; i++) {
		bool fits = front_chain_add(&chain, i << 12, 4096, i % 2 == 0);

		/* the head and the status need two */
		GMB_ASSERT(
			fits == (i + 2 < (ring.indirect ? FRONT_SEGMENTS_MAX + 2 : FRONT_DIRECT)));
	}
	GMB_ASSERT(owners[chain.slot_idx] == 0);
	owners[chain.slot_idx] = 1;
	front_chain_commit(&ring, &chain, &owners[chain.slot_idx]);
	in_flight++;
}

/* Returns false if the server has broken a rule. */
static bool take(void)
{
	const char *rule = NULL;
	uint8_t status = 0;
	void *owner = NULL;
	int result = front_ring_take(&ring, &owner, &status, &rule);

	if (result == 1) {
		uint8_t *mine = owner;

		GMB_ASSERT(mine >= owners && mine < owners + FRONT_ENTRIES && *mine == 1);
		GMB_ASSERT(status <= BLK_UNSUPPORTED);
		*mine = 0;
		in_flight--;
	}
	GMB_ASSERT(result >= 0 || (result == -EPROTO && rule != NULL));
	GMB_ASSERT(in_flight == ring.slot_count - ring.free_count);
	return result >= 0;
}

/* A server that completes the chain at this place of the avail ring. */
static void serve(uint8_t place, uint8_t status)
{
	struct vring_avail *avail = (struct vring_avail *)(void *)area.avail;
	struct vring_used *used = (struct vring_used *)(void *)area.used;
	uint32_t head = avail->ring[place % FRONT_ENTRIES];
	uint32_t slot = head / (ring.indirect ? 1 : FRONT_DIRECT);

	if (slot < FRONT_ENTRIES) {
		area.status[slot] = status;
	}
	used->ring[used->index % FRONT_ENTRIES].head = head;
	used->index++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t features;

	if (size == 0) {
		return 0;
	}
	features = ((data[0] & 1) != 0 ? VIRTIO_RING_INDIRECT : 0) |
		   ((data[0] & 2) != 0 ? VIRTIO_RING_EVENT_IDX : 0);
	memset(&area, 0, sizeof(area));
	memset(owners, 0, sizeof(owners));
	in_flight = 0;
	front_ring_init(&ring, &area, UINT64_C(1) << 40, features);
	for (size_t i = 1; i + 4 <= size; i += 4) {
		size_t anywhere = ((size_t)data[i + 1] << 8 | data[i + 2]) * 5 % sizeof(area);

		switch (data[i] % 6) {
		case 0:
			add(data[i + 1]);
			break;
		case 1:
			(void)!front_ring_publish(&ring);
			break;
		case 2:
			if (!take()) {
				return 0; /* the connection ends */
			}
			break;
		case 3:
			(void)front_ring_arm(&ring, data[i + 1] % 2 != 0);
			break;
		case 4:
			serve(data[i + 1], data[i + 2] % 4);
			break;
		default:
			((uint8_t *)&area)[anywhere] = data[i + 3];
			break;
		}
	}
	return 0;
}
