// SPDX-License-Identifier: Apache-2.0
#include "base/growth.h"

#include "base/compiler.h"

enum { PAUSE_WINDOWS_FIRST = 12, PAUSE_DOUBLINGS_MAX = 8 };

uint64_t growth_window_ns = UINT64_C(300000000);

/* Returns true if the rate is more than a tenth higher. */
static bool is_gain(uint64_t rate, uint64_t before)
{
	return rate > before + before / 10;
}

enum growth_step growth_window_end(
	struct growth *growth, uint64_t now_ns, uint64_t rate, bool may_add)
{
	uint64_t before = growth->rate;

	if (growth->state == GROWTH_MEASURE) {
		growth->rate = rate;
		if (now_ns < growth->not_before_ns || before == 0 || !may_add ||
			is_gain(rate, before)) {
			return GROWTH_STAY;
		}
		/* the better one of two windows, so that chance does not look like a gain */
		growth->rate = MAX(rate, before);
		growth->state = GROWTH_CONNECT;
		return GROWTH_ADD;
	}
	if (growth->state == GROWTH_CONNECT) {
		growth->state = GROWTH_TRIAL;
		return GROWTH_STAY;
	}
	if (growth->state == GROWTH_TRIAL && is_gain(rate, before)) {
		growth->state = GROWTH_CONFIRM;
		return GROWTH_STAY;
	}
	growth->state = GROWTH_MEASURE;
	growth->rate = 0;
	if (is_gain(rate, before)) {
		growth->pauses = 0;
		return GROWTH_STAY;
	}
	growth->not_before_ns = now_ns + (PAUSE_WINDOWS_FIRST * growth_window_ns << growth->pauses);
	growth->pauses = MIN(growth->pauses + 1, (uint32_t)PAUSE_DOUBLINGS_MAX);
	return GROWTH_REMOVE;
}

enum growth_step growth_cancel(struct growth *growth)
{
	bool is_trial = growth->state != GROWTH_MEASURE;

	growth->state = GROWTH_MEASURE;
	growth->rate = 0;
	return is_trial ? GROWTH_REMOVE : GROWTH_STAY;
}
