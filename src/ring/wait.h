// SPDX-License-Identifier: Apache-2.0
/*
 * Applies the wait policy (base/wait_policy.h) to a ring: passes the requests of each turn to the
 * policy, and sets the ring to the method that the policy chooses.
 *
 * Threading: the ring's thread. Ownership: borrows the ring. Errors: none.
 */
#pragma once

#include "base/wait_policy.h"
#include "ring/ring.h"

struct ring_waiter {
	struct ring *ring;
	const struct ring_counters *counters;
	struct wait_policy policy;
	enum wait_way way; /* the ring's current method of waiting */
	/* numbers at the last turn */
	uint64_t requests;
	uint64_t events;
	uint64_t crowded;
	bool has_many; /* set by ring_waiter_count_many(), until the end of the turn */
};

/* may_batch, may_spin: the methods that may be tried. */
void ring_waiter_init(struct ring_waiter *waiter, struct ring *ring, bool may_batch, bool may_spin);

/* Called after every turn. requests: total number of requests so far; a server counts those that
 * have arrived, a client those that were answered. is_slow: the thread waits for something that
 * takes longer than the time for which it would poll. */
void ring_waiter_turn(struct ring_waiter *waiter, uint64_t requests, bool is_slow);

/* Called when requests arrive of which one completion announces many, like those in a queue in
 * memory. For the policy, they come from an event source: completions are not gathered. */
static inline void ring_waiter_count_many(struct ring_waiter *waiter)
{
	waiter->has_many = true;
}

/* Makes the ring's thread sleep without polling or gathering completions, until the next
 * ring_waiter_turn(). */
void ring_waiter_stop(struct ring_waiter *waiter);
