// SPDX-License-Identifier: Apache-2.0
#include "nbd/patience.h"

/* What a request may take with the way, in percent of what it takes without, for the way to be
 * held. Rates are noisy: gathering, which costs nothing, has not lost if it seems to lose a little.
 */
static const uint32_t trial_percent_max[PATIENCE_WAY_COUNT] = {
	[PATIENCE_GATHER] = 106,
	[PATIENCE_SPIN] = 90,
};

/* What a request may take, in percent of what it took when a trial was lost, before we try again.
 */
enum { LOST_PERCENT_MAX = 150 };

/* Requests per turn, in tenths, from which on there is something to gather. */
enum { GATHERS_TENTHS_MIN = 11 };

/* A window with enough requests may end after this. */
static const uint64_t window_ns_min = 5000000;
/* A pause in the traffic says nothing about the rate. */
static const uint64_t window_ns_max = 200000000;

void patience_init(struct patience *patience, bool may_spin)
{
	*patience = (struct patience){ .may_spin = may_spin,
		.state = PATIENCE_SLEEPING,
		.way = PATIENCE_SLEEP,
		.backoff_windows = PATIENCE_BACKOFF_WINDOWS_MIN };
}

static void become(struct patience *patience, enum patience_state state, uint32_t windows)
{
	patience->state = state;
	patience->windows_left = windows;
}

static bool gathers(const struct patience *patience)
{
	return (uint64_t)patience->window_requests * 10 >=
	       (uint64_t)patience->window_turns * GATHERS_TENTHS_MIN;
}

/* Of a trial's windows every second one uses the way. */
static bool uses_way(const struct patience *patience)
{
	return patience->state == PATIENCE_HOLDING ||
	       (patience->state == PATIENCE_TRYING && patience->windows_left % 2 == 1);
}

static enum patience_way current_way(const struct patience *patience)
{
	return uses_way(patience) ? patience->way : PATIENCE_SLEEP;
}

static void sleep_on(struct patience *patience)
{
	patience->way = PATIENCE_SLEEP;
	patience->lost_ns = 0;
	become(patience, PATIENCE_SLEEPING, PATIENCE_BACKOFF_WINDOWS_MIN);
}

static void try_way(struct patience *patience, enum patience_way way)
{
	patience->way = way;
	for (int i = 0; i < 2; i++) {
		patience->trial_ns[i] = 0;
		patience->trial_requests[i] = 0;
	}
	become(patience, PATIENCE_TRYING,
		way == PATIENCE_GATHER ? PATIENCE_TRIAL_WINDOWS_GATHER : PATIENCE_TRIAL_WINDOWS);
}

static void judge_trial(struct patience *patience)
{
	/* Both have requests: windows without any do not end. */
	uint64_t without = patience->trial_ns[false] / patience->trial_requests[false];
	uint64_t with = patience->trial_ns[true] / patience->trial_requests[true];

	if (with * 100 <= without * trial_percent_max[patience->way]) {
		patience->backoff_windows = PATIENCE_BACKOFF_WINDOWS_MIN;
		become(patience, PATIENCE_HOLDING,
			patience->way == PATIENCE_GATHER ? PATIENCE_HOLD_WINDOWS_GATHER
							 : PATIENCE_HOLD_WINDOWS);
	} else {
		patience->lost_ns = without;
		become(patience, PATIENCE_SLEEPING, patience->backoff_windows);
		patience->backoff_windows =
			MIN(patience->backoff_windows * 2, (uint32_t)PATIENCE_BACKOFF_WINDOWS_MAX);
	}
}

/* What to try next: where gathering was the last to lose, spinning gets its chance. Sleeping: there
 * is nothing to try. */
static enum patience_way candidate(const struct patience *patience)
{
	bool gather_lost = patience->state == PATIENCE_SLEEPING && patience->way == PATIENCE_GATHER;

	if (!patience->may_spin) {
		return gathers(patience) ? PATIENCE_GATHER : PATIENCE_SLEEP;
	}
	return gathers(patience) && !gather_lost ? PATIENCE_GATHER : PATIENCE_SPIN;
}

/* The traffic is not what the last trial was, or this one is, about. Where nothing comes together
 * although we gather, every request waits for company in vain. */
static bool verdict_is_void(const struct patience *patience, uint64_t request_ns)
{
	if (patience->state == PATIENCE_SLEEPING) {
		return patience->lost_ns > 0 &&
		       request_ns * 100 > patience->lost_ns * LOST_PERCENT_MAX;
	}
	if (patience->way == PATIENCE_GATHER) {
		return uses_way(patience) && !gathers(patience);
	}
	return patience->state == PATIENCE_HOLDING && gathers(patience);
}

static void window_done(struct patience *patience, uint64_t elapsed_ns)
{
	bool is_void = verdict_is_void(patience, elapsed_ns / patience->window_requests);
	enum patience_way way;

	if (patience->state == PATIENCE_TRYING) {
		patience->trial_ns[uses_way(patience)] += elapsed_ns;
		patience->trial_requests[uses_way(patience)] += patience->window_requests;
	}
	if (patience->windows_left > 0) {
		patience->windows_left--;
	}
	if (is_void) {
		patience->windows_left = 0;
	}
	if (patience->windows_left > 0) {
		return;
	}
	if (patience->state == PATIENCE_TRYING && !is_void) {
		judge_trial(patience);
		return;
	}
	way = candidate(patience);
	if (way == PATIENCE_SLEEP) {
		sleep_on(patience);
	} else {
		try_way(patience, way);
	}
}

static bool window_is_full(const struct patience *patience, uint64_t elapsed_ns)
{
	bool sleeps = patience->state == PATIENCE_SLEEPING;
	uint32_t full = !sleeps && patience->way == PATIENCE_GATHER
				? (uint32_t)PATIENCE_WINDOW_REQUESTS_GATHER
				: (uint32_t)PATIENCE_WINDOW_REQUESTS;

	return patience->window_requests >= full ||
	       (full == PATIENCE_WINDOW_REQUESTS && elapsed_ns >= window_ns_min &&
		       patience->window_requests >= PATIENCE_WINDOW_REQUESTS_MIN);
}

enum patience_way patience_turn(struct patience *patience, uint64_t now_ns, uint32_t requests)
{
	uint64_t elapsed_ns = now_ns - patience->window_start_ns;

	if (requests == 0) {
		return elapsed_ns > window_ns_max ? PATIENCE_SLEEP : current_way(patience);
	}
	patience->window_requests += requests;
	patience->window_turns++;
	if (elapsed_ns > window_ns_max) {
		patience->lost_ns = 0;
		become(patience, PATIENCE_SLEEPING, 1);
	} else if (window_is_full(patience, elapsed_ns)) {
		window_done(patience, elapsed_ns);
	} else {
		return current_way(patience);
	}
	patience->window_start_ns = now_ns;
	patience->window_requests = 0;
	patience->window_turns = 0;
	return current_way(patience);
}
