// SPDX-License-Identifier: Apache-2.0
/*
 * Polling instead of sleeping, and the choice between the two for a thread without a ring (a thread
 * with a ring uses ring/wait.h).
 *
 *   if (spinner_begin(&spinner, limit_ns)) {
 *           do {
 *                   look for an event; end the loop if there is one
 *           } while (spin_goes_on(&spinner.spin));
 *   }
 *   sleep if there is no event
 *
 * Threading: one object belongs to one thread. Ownership: plain data. Errors: none.
 */
#pragma once

#include <sched.h>

#include "base/clock.h"
#include "base/wait_policy.h"

enum {
	SPIN_LOOKS = 128, /* looks between two yields, for looks that only read memory */
	/* A yield that takes longer shows that another thread needs the CPU. Sleeping is then
	 * better, because a wake-up takes less time than this yield. */
	SPIN_CROWDED_NS = 400000,
};

struct spin {
	uint64_t now_ns; /* time of the last yield */
	uint64_t end_ns;
	uint64_t looks; /* unsuccessful looks since spin_begin() */
	uint32_t looks_between_yields;
	bool was_crowded; /* another thread has taken the CPU */
};

/* Begins to poll for up to limit_ns. looks_between_yields: number of polls between two yields,
 * greater than 0; it should be small if a poll is expensive. */
void spin_begin(struct spin *spin, uint64_t limit_ns, uint32_t looks_between_yields);

/* Called after an unsuccessful poll. Returns false if polling must end: the time has passed, or
 * another thread has taken the CPU. Yields the CPU regularly, because the peer might be waiting for
 * it. */
static inline bool spin_goes_on(struct spin *spin)
{
	uint64_t now_ns;

	cpu_relax();
	if (++spin->looks % spin->looks_between_yields != 0) {
		return true;
	}
	sched_yield();
	now_ns = clock_now_ns();
	spin->was_crowded = now_ns - spin->now_ns > SPIN_CROWDED_NS;
	spin->now_ns = now_ns;
	return !spin->was_crowded && now_ns < spin->end_ns;
}

/* How a thread without a ring waits. */
struct spinner {
	struct wait_policy policy;
	struct spin spin;
	uint32_t requests; /* messages received since the last spinner_begin() */
};

/* may_spin: false if the thread must never poll. */
void spinner_init(struct spinner *spinner, bool may_spin);

/* Called before each wait, when there is no event. Returns true if the thread must poll before it
 * sleeps. limit_ns: longest time of the wait. */
GMB_MUST_CHECK bool spinner_begin(
	struct spinner *spinner, uint64_t limit_ns, uint32_t looks_between_yields);
