// SPDX-License-Identifier: Apache-2.0
#include "base/wait_policy.h"

#include <string.h>

enum {
	/* Polling is kept only if it reduces the time per request to at most this percentage of the
	 * time with BLOCK. */
	SPIN_PERCENT_MAX = 90,
	/* Batching is kept if the time per request is at most this percentage of the time without
	 * batching. The limit is above 100 because measurements are noisy and batching costs no CPU
	 * time. */
	BATCH_PERCENT_MAX = 106,
	/* The time per request, in percent of the time during the trial, above which (SLOW) or
	 * below which (FAST) the traffic has changed and the result of the trial is void. */
	SLOW_PERCENT = 150,
	FAST_PERCENT = 50,
	/* Batching is tried only if a turn of the event loop has, on average, at least this many
	 * tenths of a request. */
	BATCHES_TENTHS_MIN = 11,
};

/* Minimum duration of a window with WAIT_WINDOW_REQUESTS_MIN requests. */
static const uint64_t window_ns_min = 5000000;
/* Maximum duration of a window. A longer one contains a pause in the traffic. */
static const uint64_t window_ns_max = 200000000;

static void hold(struct wait_policy *policy, enum wait_way way, uint32_t windows)
{
	policy->is_trying = false;
	policy->way = way;
	policy->windows_left = windows;
	policy->changed_windows = 0;
}

void wait_policy_init(
	struct wait_policy *policy, bool may_batch, bool may_spin, uint64_t (*cpu_ns)(void))
{
	*policy = (struct wait_policy){ .may_batch = may_batch,
		.may_spin = may_spin,
		.backoff_windows = WAIT_BACKOFF_WINDOWS_MIN,
		.cpu_ns = cpu_ns };
	hold(policy, WAIT_BLOCK, 1);
}

/* Returns whether a longer sleep could gather more completions: most turns of the window had no
 * requests from event sources, and the turns had at least BATCHES_TENTHS_MIN / 10 requests on
 * average. */
static bool fills_batches(const struct wait_policy *policy)
{
	return 2 * policy->source_turns < policy->window_turns &&
	       (uint64_t)policy->window_requests * 10 >=
		       (uint64_t)policy->window_turns * BATCHES_TENTHS_MIN;
}

static void block_for_a_while(struct wait_policy *policy)
{
	hold(policy, WAIT_BLOCK, policy->backoff_windows);
	policy->backoff_windows =
		MIN(policy->backoff_windows * 2, (uint32_t)WAIT_BACKOFF_WINDOWS_MAX);
}

static uint32_t ways_in_trial(const struct wait_policy *policy)
{
	uint32_t ways = 0;

	for (enum wait_way way = 0; way < WAIT_WAY_COUNT; way++) {
		ways += policy->in_trial[way];
	}
	return ways;
}

/* A trial begins with a window with BLOCK, which shows what else is worth trying. */
static void start_trial(struct wait_policy *policy)
{
	memset(policy->in_trial, 0, sizeof(policy->in_trial));
	memset(policy->trial_ns, 0, sizeof(policy->trial_ns));
	memset(policy->trial_cpu_ns, 0, sizeof(policy->trial_cpu_ns));
	memset(policy->trial_requests, 0, sizeof(policy->trial_requests));
	policy->in_trial[WAIT_BLOCK] = true;
	policy->is_trying = true;
	policy->windows_left = WAIT_TRIAL_WINDOWS;
}

/* Chooses the methods of a trial after its first window. */
static void choose_ways(struct wait_policy *policy)
{
	policy->in_trial[WAIT_BATCH] = policy->may_batch && fills_batches(policy);
	policy->in_trial[WAIT_SPIN] = policy->may_spin;
	policy->windows_left = ways_in_trial(policy) * WAIT_TRIAL_WINDOWS;
	if (policy->windows_left == WAIT_TRIAL_WINDOWS) {
		policy->kept_ns = 0;
		hold(policy, WAIT_BLOCK, WAIT_BACKOFF_WINDOWS_MIN);
	}
}

static uint64_t trial_mean_ns(const struct wait_policy *policy, const uint64_t *totals, int way)
{
	return totals[way] / MAX(policy->trial_requests[way], UINT64_C(1));
}

/* Returns whether the speed that polling gains is worth the CPU time that it costs. */
static bool spin_pays(const struct wait_policy *policy)
{
	uint64_t block_ns = trial_mean_ns(policy, policy->trial_ns, WAIT_BLOCK);
	uint64_t spin_ns = trial_mean_ns(policy, policy->trial_ns, WAIT_SPIN);
	uint64_t block_cpu_ns = trial_mean_ns(policy, policy->trial_cpu_ns, WAIT_BLOCK);
	uint64_t spin_cpu_ns = trial_mean_ns(policy, policy->trial_cpu_ns, WAIT_SPIN);

	return spin_ns * 100 <= block_ns * SPIN_PERCENT_MAX &&
	       spin_ns * spin_cpu_ns <= block_ns * block_cpu_ns;
}

static void judge_trial(struct wait_policy *policy)
{
	enum wait_way best = WAIT_BLOCK;
	uint64_t limit_ns = trial_mean_ns(policy, policy->trial_ns, WAIT_BLOCK) * BATCH_PERCENT_MAX;

	if (policy->in_trial[WAIT_SPIN] && spin_pays(policy)) {
		best = WAIT_SPIN;
		limit_ns = trial_mean_ns(policy, policy->trial_ns, WAIT_SPIN) * 100;
	}
	if (policy->in_trial[WAIT_BATCH] &&
		trial_mean_ns(policy, policy->trial_ns, WAIT_BATCH) * 100 <= limit_ns) {
		best = WAIT_BATCH;
	}
	policy->kept_ns = trial_mean_ns(policy, policy->trial_ns, best);
	if (best == WAIT_BLOCK) {
		block_for_a_while(policy);
	} else {
		hold(policy, best, WAIT_HOLD_WINDOWS);
	}
}

/* Called once per window. Returns true if the time per request has differed too much from the
 * last trial for WAIT_CHANGED_WINDOWS consecutive windows: the result of the trial is then void. */
static bool result_is_void(struct wait_policy *policy, uint64_t request_ns)
{
	bool has_changed =
		policy->kept_ns > 0 && (request_ns * 100 > policy->kept_ns * SLOW_PERCENT ||
					       request_ns * 100 < policy->kept_ns * FAST_PERCENT);

	has_changed |= policy->way == WAIT_BATCH && !fills_batches(policy);
	policy->changed_windows = has_changed ? policy->changed_windows + 1 : 0;
	return policy->changed_windows == WAIT_CHANGED_WINDOWS;
}

/* Removes a method from the current trial, with its remaining windows. */
static void leave_out(struct wait_policy *policy, enum wait_way way)
{
	policy->windows_left -= policy->windows_left / ways_in_trial(policy);
	policy->in_trial[way] = false;
}

static void trial_window_done(struct wait_policy *policy, uint64_t elapsed_ns)
{
	bool is_first = policy->trial_requests[WAIT_BLOCK] == 0;

	policy->trial_ns[policy->way_now] += elapsed_ns;
	policy->trial_cpu_ns[policy->way_now] += policy->cpu_ns() - policy->window_cpu_ns;
	policy->trial_requests[policy->way_now] += policy->window_requests;
	policy->changed_windows = 0;
	if (is_first) {
		choose_ways(policy);
		return;
	}
	policy->windows_left--;
	if (policy->way_now == WAIT_BATCH && !fills_batches(policy)) {
		leave_out(policy, WAIT_BATCH); /* batching only delays these requests */
	}
	if (policy->windows_left == 0) {
		judge_trial(policy);
	}
}

static void held_window_done(struct wait_policy *policy, uint64_t elapsed_ns)
{
	bool is_void = result_is_void(policy, elapsed_ns / policy->window_requests);

	policy->windows_left--;
	if (policy->windows_left == 0 && policy->way != WAIT_BLOCK) {
		policy->backoff_windows = WAIT_BACKOFF_WINDOWS_MIN;
	}
	if (is_void || policy->windows_left == 0) {
		start_trial(policy);
	}
}

/* Called when another thread has taken the CPU while this thread polled: stops polling. */
static void make_way(struct wait_policy *policy)
{
	if (!policy->is_trying) {
		policy->kept_ns = 0;
		block_for_a_while(policy);
	} else if (policy->in_trial[WAIT_SPIN]) {
		leave_out(policy, WAIT_SPIN);
	}
}

/* Called for a window that contains a pause of the traffic. The time per request of such a window
 * cannot be used. After several such windows in a row, requests are so rare that BLOCK is best. A
 * trial then ends, because it might not get any usable window. */
static void paused_window_done(struct wait_policy *policy)
{
	policy->changed_windows++;
	if (policy->changed_windows == WAIT_CHANGED_WINDOWS) {
		policy->kept_ns = 0;
		hold(policy, WAIT_BLOCK, 1);
	}
}

/* Returns the method of the next window: during a trial each method in turn. */
static enum wait_way next_way(const struct wait_policy *policy)
{
	enum wait_way way = policy->way_now;

	if (!policy->is_trying) {
		return policy->way;
	}
	do {
		way = (way + 1) % WAIT_WAY_COUNT;
	} while (!policy->in_trial[way]);
	return way;
}

static void start_window(struct wait_policy *policy, uint64_t now_ns)
{
	policy->way_now = next_way(policy);
	policy->window_start_ns = now_ns;
	policy->window_cpu_ns = policy->is_trying ? policy->cpu_ns() : 0;
	policy->window_requests = 0;
	policy->window_turns = 0;
	policy->source_turns = 0;
}

void wait_policy_retry(struct wait_policy *policy)
{
	if (!policy->is_trying && policy->way == WAIT_BLOCK) {
		policy->chosen_ns = 0;
		policy->backoff_windows = WAIT_BACKOFF_WINDOWS_MIN;
		hold(policy, WAIT_BLOCK, 1);
	}
}

enum wait_way wait_policy_turn(struct wait_policy *policy, const struct wait_turn *turn)
{
	uint64_t elapsed_ns = turn->now_ns - policy->window_start_ns;
	uint32_t requests_min = elapsed_ns < window_ns_min ? (uint32_t)WAIT_WINDOW_REQUESTS
							   : WAIT_WINDOW_REQUESTS_MIN;
	bool was_trying = policy->is_trying;

	policy->window_requests += turn->requests;
	policy->window_turns += turn->requests > 0;
	policy->source_turns += turn->requests > 0 && turn->by_source;
	if (turn->was_crowded && policy->way_now == WAIT_SPIN) {
		make_way(policy);
	} else if (turn->requests == 0) {
		return elapsed_ns > window_ns_max ? WAIT_BLOCK : policy->way_now;
	} else if (elapsed_ns > window_ns_max) {
		paused_window_done(policy);
	} else if (elapsed_ns < WAIT_WINDOW_NS || policy->window_requests < requests_min) {
		return policy->way_now;
	} else if (policy->is_trying) {
		trial_window_done(policy, elapsed_ns);
	} else {
		held_window_done(policy, elapsed_ns);
	}
	if (was_trying && !policy->is_trying) {
		policy->chosen_ns = turn->now_ns;
	}
	start_window(policy, turn->now_ns);
	return policy->way_now;
}
