// SPDX-License-Identifier: Apache-2.0
#include "sockets/compare.h"

static uint32_t compare_count(const struct compare *compare, enum compare_place place)
{
	return atomic_load_explicit(&compare->count[place], memory_order_relaxed);
}

static void compare_forget(struct compare *compare, enum compare_place place)
{
	atomic_store_explicit(&compare->count[place], 0, memory_order_relaxed);
	atomic_store_explicit(&compare->sum_ns[place], 0, memory_order_relaxed);
}

/* Measuring begins again, because the set of carried connections has changed. If it has more than
 * doubled since the last verdict, it is compared again. */
void compare_carried(struct compare *compare)
{
	uint32_t carried = atomic_load(&compare->carried) + 1;

	atomic_store(&compare->carried, carried);
	if (carried > 2 * compare->settled) {
		compare->settled = 0;
	}
	compare_forget(compare, COMPARE_RING);
}

void compare_returned(struct compare *compare)
{
	uint32_t carried = atomic_load(&compare->carried) - 1;

	GMB_ASSERT(carried != UINT32_MAX);
	if (carried == 0) {
		compare_forget(compare, COMPARE_TCP);
	}
	atomic_store(&compare->carried, carried);
}

void compare_sample(
	struct compare *compare, enum compare_place place, uint64_t begin_ns, uint64_t end_ns)
{
	if (place == COMPARE_TCP && atomic_load(&compare->carried) > 0) {
		return;
	}
	if (atomic_fetch_add_explicit(&compare->count[place], 1, memory_order_relaxed) == 0) {
		atomic_store_explicit(&compare->begin_ns[place], begin_ns, memory_order_relaxed);
	}
	atomic_fetch_add_explicit(&compare->sum_ns[place],
		MIN(end_ns - begin_ns, (uint64_t)COMPARE_NS_MAX), memory_order_relaxed);
	atomic_store_explicit(&compare->end_ns[place], end_ns, memory_order_relaxed);
}

/* The rate follows from the mean. The median would be misleading: with many threads, half of the
 * round trips by rings can be short, and the others very long. */
static uint64_t mean_ns(const struct compare *compare, enum compare_place place)
{
	return atomic_load_explicit(&compare->sum_ns[place], memory_order_relaxed) /
	       MAX(compare_count(compare, place), 1u);
}

static bool is_measured_long(const struct compare *compare, enum compare_place place)
{
	return atomic_load_explicit(&compare->end_ns[place], memory_order_relaxed) -
		       atomic_load_explicit(&compare->begin_ns[place], memory_order_relaxed) >=
	       (uint64_t)COMPARE_NS;
}

bool compare_is_due(struct compare *compare)
{
	if (compare->pause > 0) {
		compare->pause--;
		return false;
	}
	return compare->settled == 0;
}

/* If most round trips need no wake-up, they cost less than the system calls of TCP. */
static enum compare_verdict judge_wakes(
	struct compare *compare, const struct compare_costs *costs, uint32_t count)
{
	if (2 * compare->bells >= count ||
		2 * (costs->sleeps - compare->from.sleeps) >= costs->reads - compare->from.reads) {
		return COMPARE_UNKNOWN;
	}
	compare->pause = COMPARE_PAUSE;
	return COMPARE_GOES_ON;
}

/* If TCP was measured only for a short time, the rings must be much faster. Otherwise it is
 * measured again. */
static enum compare_verdict judge_times(struct compare *compare)
{
	uint64_t ring_ns = mean_ns(compare, COMPARE_RING);
	uint64_t tcp_ns = mean_ns(compare, COMPARE_TCP);

	if (ring_ns > tcp_ns) {
		return COMPARE_SLOW;
	}
	if (!is_measured_long(compare, COMPARE_TCP) && 3 * ring_ns > 2 * tcp_ns) {
		return COMPARE_UNKNOWN;
	}
	compare->settled = MAX(atomic_load(&compare->carried), 1u);
	return COMPARE_GOES_ON;
}

enum compare_verdict compare_judge(
	struct compare *compare, const struct compare_costs *costs, uint64_t bells)
{
	uint32_t count = compare_count(compare, COMPARE_RING);
	enum compare_verdict verdict;

	if (count <= 1) {
		compare->from = *costs;
		compare->bells = 0;
	} else {
		compare->bells += bells;
	}
	if (count < COMPARE_SAMPLES ||
		(count < COMPARE_SAMPLES_MAX && !is_measured_long(compare, COMPARE_RING))) {
		return COMPARE_GOES_ON;
	}
	verdict = compare_count(compare, COMPARE_TCP) < COMPARE_TCP_MIN
			  ? judge_wakes(compare, costs, count)
			  : judge_times(compare);
	compare_forget(compare, COMPARE_RING);
	return verdict;
}
