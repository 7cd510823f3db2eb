// SPDX-License-Identifier: Apache-2.0
#include "engine/wait_policy.h"

/* A method is kept if the time per request with it is at most this percentage of the time without
 * it. Measurements are noisy. Batching may seem slightly slower, because it costs no CPU time. */
static const uint32_t trial_percent_max[WAIT_WAY_COUNT] = {
	[WAIT_BATCH] = 106,
	[WAIT_SPIN] = 90,
};

/* If the time per request exceeds this percentage of its value during the last lost trial, the
 * result of the trial is void. */
enum { LOST_PERCENT_MAX = 150 };

/* Batching is tried only if turns have at least this many tenths of a request on average. */
enum { BATCHES_TENTHS_MIN = 11 };

/* Minimum duration of a window with WAIT_WINDOW_REQUESTS_MIN requests. */
static const uint64_t window_ns_min = 5000000;
/* Maximum duration of a window. A longer one contains a pause in the traffic, so its rate is
 * meaningless. */
static const uint64_t window_ns_max = 200000000;

static void wait_policy_become(
	struct wait_policy *policy, enum wait_policy_state state, uint32_t windows)
{
	bool batches = state != WAIT_POLICY_BLOCKING && policy->way == WAIT_BATCH;

	policy->state = state;
	policy->windows_left = windows;
	policy->window_requests_full = batches ? WAIT_WINDOW_REQUESTS_BATCH : WAIT_WINDOW_REQUESTS;
	policy->window_requests_min =
		batches ? WAIT_WINDOW_REQUESTS_BATCH : WAIT_WINDOW_REQUESTS_MIN;
}

void wait_policy_init(struct wait_policy *policy, bool may_spin)
{
	*policy = (struct wait_policy){ .may_spin = may_spin,
		.backoff_windows = WAIT_BACKOFF_WINDOWS_MIN };
	wait_policy_become(policy, WAIT_POLICY_BLOCKING, 0);
}

static bool fills_batches(const struct wait_policy *policy)
{
	return (uint64_t)policy->window_requests * 10 >=
	       (uint64_t)policy->window_turns * BATCHES_TENTHS_MIN;
}

/* Returns whether the method is used in the current window: a trial uses it in every second
 * window. */
static bool uses_way(const struct wait_policy *policy)
{
	return policy->state == WAIT_POLICY_HOLDING ||
	       (policy->state == WAIT_POLICY_TRYING && policy->windows_left % 2 == 1);
}

static void sleep_on(struct wait_policy *policy)
{
	policy->way = WAIT_BLOCK;
	policy->lost_ns = 0;
	wait_policy_become(policy, WAIT_POLICY_BLOCKING, WAIT_BACKOFF_WINDOWS_MIN);
}

static void try_way(struct wait_policy *policy, enum wait_way way)
{
	policy->way = way;
	for (int i = 0; i < 2; i++) {
		policy->trial_ns[i] = 0;
		policy->trial_requests[i] = 0;
	}
	wait_policy_become(policy, WAIT_POLICY_TRYING,
		way == WAIT_BATCH ? WAIT_TRIAL_WINDOWS_BATCH : WAIT_TRIAL_WINDOWS);
}

static void judge_trial(struct wait_policy *policy)
{
	/* No division by 0, because a window ends only if it has requests. */
	uint64_t without = policy->trial_ns[false] / policy->trial_requests[false];
	uint64_t with = policy->trial_ns[true] / policy->trial_requests[true];

	if (with * 100 <= without * trial_percent_max[policy->way]) {
		policy->backoff_windows = WAIT_BACKOFF_WINDOWS_MIN;
		wait_policy_become(policy, WAIT_POLICY_HOLDING,
			policy->way == WAIT_BATCH ? WAIT_HOLD_WINDOWS_BATCH : WAIT_HOLD_WINDOWS);
	} else {
		policy->lost_ns = without;
		wait_policy_become(policy, WAIT_POLICY_BLOCKING, policy->backoff_windows);
		policy->backoff_windows =
			MIN(policy->backoff_windows * 2, (uint32_t)WAIT_BACKOFF_WINDOWS_MAX);
	}
}

/* Returns the method to try next. WAIT_BLOCK: none. Spinning is tried after batching has lost a
 * trial. */
static enum wait_way candidate(const struct wait_policy *policy)
{
	bool batch_lost = policy->state == WAIT_POLICY_BLOCKING && policy->way == WAIT_BATCH;

	if (!policy->may_spin) {
		return fills_batches(policy) ? WAIT_BATCH : WAIT_BLOCK;
	}
	return fills_batches(policy) && !batch_lost ? WAIT_BATCH : WAIT_SPIN;
}

/* Returns whether the traffic has changed, so that the result of the last or current trial is
 * meaningless. Batching also ends if turns do not have several requests, because it then only
 * delays requests. */
static bool verdict_is_void(const struct wait_policy *policy, uint64_t request_ns)
{
	if (policy->state == WAIT_POLICY_BLOCKING) {
		return policy->lost_ns > 0 && request_ns * 100 > policy->lost_ns * LOST_PERCENT_MAX;
	}
	if (policy->way == WAIT_BATCH) {
		return uses_way(policy) && !fills_batches(policy);
	}
	return policy->state == WAIT_POLICY_HOLDING && fills_batches(policy);
}

static void window_done(struct wait_policy *policy, uint64_t elapsed_ns)
{
	bool is_void = verdict_is_void(policy, elapsed_ns / policy->window_requests);
	enum wait_way way;

	if (policy->state == WAIT_POLICY_TRYING) {
		policy->trial_ns[uses_way(policy)] += elapsed_ns;
		policy->trial_requests[uses_way(policy)] += policy->window_requests;
	}
	if (policy->windows_left > 0) {
		policy->windows_left--;
	}
	if (is_void) {
		policy->windows_left = 0;
	}
	if (policy->windows_left > 0) {
		return;
	}
	if (policy->state == WAIT_POLICY_TRYING && !is_void) {
		judge_trial(policy);
		return;
	}
	way = candidate(policy);
	if (way == WAIT_BLOCK) {
		sleep_on(policy);
	} else {
		try_way(policy, way);
	}
}

enum wait_way wait_policy_turn(struct wait_policy *policy, uint64_t now_ns, uint32_t requests)
{
	uint64_t elapsed_ns = now_ns - policy->window_start_ns;

	if (requests == 0) {
		return elapsed_ns > window_ns_max ? WAIT_BLOCK : policy->way_now;
	}
	policy->window_requests += requests;
	policy->window_turns++;
	if (elapsed_ns > window_ns_max) {
		policy->lost_ns = 0;
		wait_policy_become(policy, WAIT_POLICY_BLOCKING, 1);
	} else if (policy->window_requests >= policy->window_requests_full ||
		   (elapsed_ns >= window_ns_min &&
			   policy->window_requests >= policy->window_requests_min)) {
		window_done(policy, elapsed_ns);
	} else {
		return policy->way_now;
	}
	policy->window_start_ns = now_ns;
	policy->window_requests = 0;
	policy->window_turns = 0;
	policy->way_now = uses_way(policy) ? policy->way : WAIT_BLOCK;
	return policy->way_now;
}
