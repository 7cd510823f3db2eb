// SPDX-License-Identifier: Apache-2.0
#include "ring/wait.h"

void ring_waiter_init(struct ring_waiter *waiter, struct ring *ring, bool may_batch, bool may_spin)
{
	*waiter = (struct ring_waiter){ .ring = ring, .counters = ring_counters(ring) };
	wait_policy_init(&waiter->policy, may_batch, may_spin, ring_thread_cpu_ns);
}

static void ring_waiter_set(struct ring_waiter *waiter, enum wait_way way)
{
	waiter->way = way;
	ring_set_batch(waiter->ring, WAIT_BATCH_MAX, way == WAIT_BATCH ? WAIT_BATCH_NS : 0);
	ring_set_spin(waiter->ring, way == WAIT_SPIN ? WAIT_SPIN_NS : 0);
}

void ring_waiter_turn(struct ring_waiter *waiter, uint64_t requests, bool is_slow)
{
	const struct ring_counters *counters = waiter->counters;
	const struct wait_turn turn = {
		.now_ns = ring_batch_ns(waiter->ring),
		.requests = (uint32_t)(requests - waiter->requests),
		.by_source = counters->events != waiter->events || waiter->has_many,
		.was_crowded = counters->crowded != waiter->crowded,
	};
	enum wait_way way = wait_policy_turn(&waiter->policy, &turn);

	waiter->requests = requests;
	waiter->events = counters->events;
	waiter->has_many = false;
	waiter->crowded = counters->crowded;
	way = way == WAIT_SPIN && is_slow ? WAIT_BLOCK : way;
	if (way != waiter->way) {
		ring_waiter_set(waiter, way);
	}
}

void ring_waiter_stop(struct ring_waiter *waiter)
{
	ring_waiter_set(waiter, WAIT_BLOCK);
}
