// SPDX-License-Identifier: Apache-2.0
#include "base/spin.h"

void spin_begin(struct spin *spin, uint64_t limit_ns, uint32_t looks_between_yields)
{
	uint64_t now_ns = clock_now_ns();

	*spin = (struct spin){ .now_ns = now_ns,
		.end_ns = limit_ns < UINT64_MAX - now_ns ? now_ns + limit_ns : UINT64_MAX,
		.looks_between_yields = looks_between_yields };
}

void spinner_init(struct spinner *spinner, bool may_spin)
{
	*spinner = (struct spinner){ 0 };
	wait_policy_init(&spinner->policy, false, may_spin, clock_thread_cpu_ns);
}

bool spinner_begin(struct spinner *spinner, uint64_t limit_ns, uint32_t looks_between_yields)
{
	const struct wait_turn turn = {
		.now_ns = clock_now_ns(),
		.requests = spinner->requests,
		.by_source = true,
		.was_crowded = spinner->spin.was_crowded,
	};
	bool spins = wait_policy_turn(&spinner->policy, &turn) == WAIT_SPIN;

	spinner->requests = 0;
	spinner->spin.was_crowded = false;
	if (spins) {
		spin_begin(&spinner->spin, MIN(limit_ns, (uint64_t)WAIT_SPIN_NS),
			looks_between_yields);
	}
	return spins;
}
