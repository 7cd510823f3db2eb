// SPDX-License-Identifier: Apache-2.0
#include "nbd/patience.h"

/* A trial that loses less has not lost: rates are noisy, and with few requests in flight waiting
 * loses much. In percent of the time without waiting. */
enum { TRIAL_TIME_PERCENT_MAX = 106 };

/* Requests per turn, in tenths, below which nothing runs in parallel and a trial is pointless. */
enum { GATHERED_WORTH_A_TRIAL_TENTHS = 11 };

/* A pause in the traffic says nothing about the rate. */
static const uint64_t WINDOW_NS_MAX = 200000000;

void patience_init(struct patience *patience)
{
	*patience = (struct patience){ .state = PATIENCE_IMPATIENT,
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
	       (uint64_t)patience->window_turns * GATHERED_WORTH_A_TRIAL_TENTHS;
}

/* Of a trial's windows every second one waits. */
static bool waits(const struct patience *patience)
{
	return patience->state == PATIENCE_PATIENT ||
	       (patience->state == PATIENCE_TRIAL && patience->windows_left % 2 == 1);
}

static void judge_trial(struct patience *patience)
{
	if (patience->trial_ns[true] <= patience->trial_ns[false] / 100 * TRIAL_TIME_PERCENT_MAX) {
		patience->backoff_windows = PATIENCE_BACKOFF_WINDOWS_MIN;
		become(patience, PATIENCE_PATIENT, PATIENCE_HOLD_WINDOWS);
	} else {
		become(patience, PATIENCE_IMPATIENT, patience->backoff_windows);
		patience->backoff_windows =
			MIN(patience->backoff_windows * 2, (uint32_t)PATIENCE_BACKOFF_WINDOWS_MAX);
	}
}

static void window_done(struct patience *patience, uint64_t elapsed_ns)
{
	if (patience->state == PATIENCE_TRIAL) {
		patience->trial_ns[waits(patience)] += elapsed_ns;
	}
	if (patience->windows_left > 0) {
		patience->windows_left--;
	}
	if (patience->windows_left > 0) {
		return;
	}
	if (patience->state == PATIENCE_TRIAL) {
		judge_trial(patience);
	} else if (gathers(patience)) {
		become(patience, PATIENCE_TRIAL, PATIENCE_TRIAL_WINDOWS);
		patience->trial_ns[false] = 0;
		patience->trial_ns[true] = 0;
	} else {
		become(patience, PATIENCE_IMPATIENT, 1);
	}
}

uint64_t patience_turn(struct patience *patience, uint64_t now_ns, uint32_t requests)
{
	uint64_t elapsed_ns = now_ns - patience->window_start_ns;

	if (requests > 0) {
		patience->window_requests += requests;
		patience->window_turns++;
		if (elapsed_ns > WINDOW_NS_MAX) {
			become(patience, PATIENCE_IMPATIENT, 1);
		} else if (patience->window_requests >= PATIENCE_WINDOW_REQUESTS) {
			window_done(patience, elapsed_ns);
		} else {
			return waits(patience) ? PATIENCE_WAIT_NS : 0;
		}
		patience->window_start_ns = now_ns;
		patience->window_requests = 0;
		patience->window_turns = 0;
	}
	return waits(patience) ? PATIENCE_WAIT_NS : 0;
}
