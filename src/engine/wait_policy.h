// SPDX-License-Identifier: Apache-2.0
/*
 * How a reactor should wait for the next requests. Three ways, none of which is the best for all:
 *
 *   BLOCK  Sleep until something happens. Costs nothing while nothing does.
 *   BATCH  Sleep a while longer, until several requests are there. For clients that keep many in
 *          flight: each wake-up serves more of them.
 *   SPIN   Poll for a while before sleeping. For clients that send one request and wait for it:
 *          waking an idle CPU can take longer than everything else a request needs.
 *
 * How many requests a client keeps in flight, how long it thinks and what a wake-up costs on this
 * machine cannot be seen from here, so it is tried:
 *
 *   BLOCKING ── a window of requests ──▶ TRYING a way ── it pays ──▶ HOLDING it
 *       ▲                                     │ it does not             │ some windows later, or
 *       │◀── longer before the next trial ◀───┘                         │ other traffic: try again
 *       └◀───────────────────────── a pause in the traffic ◀────────────┘
 *
 * A trial alternates windows with and without the way, because the rate of one window says little
 * on a machine that does other things, too. A trial that was lost is void as soon as requests take
 * much longer than they did then: whether client and server share a CPU changes what a wake-up
 * costs by tens of microseconds, and the scheduler moves them. Spinning takes processor time from
 * others, so it must gain more to be held. Batching makes every request wait for others: a window
 * without any ends it, tried or held. docs/design/0005-waiting.md has the measurements.
 *
 * Threading: one object belongs to one reactor. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum wait_way { WAIT_BLOCK, WAIT_BATCH, WAIT_SPIN, WAIT_WAY_COUNT };

enum wait_policy_state { WAIT_POLICY_BLOCKING, WAIT_POLICY_TRYING, WAIT_POLICY_HOLDING };

enum {
	WAIT_BATCH_NS = 60000,	      /* the longest a request waits for others */
	WAIT_BATCH_MAX = 64,	      /* completions that end that wait at once */
	WAIT_SPIN_NS = 50000,	      /* the longest look before sleeping */
	WAIT_WINDOW_REQUESTS = 64,    /* what one rate is measured over */
	WAIT_WINDOW_REQUESTS_MIN = 8, /* ... or these, if they took long enough */
	WAIT_TRIAL_WINDOWS = 12,      /* half of them with the way that is tried */
	WAIT_HOLD_WINDOWS = 2048,     /* between two trials of a way that pays */
	/* Batching: its gain is smaller, and so is the cost of a wrong choice. */
	WAIT_WINDOW_REQUESTS_BATCH = 256,
	WAIT_TRIAL_WINDOWS_BATCH = 32,
	WAIT_HOLD_WINDOWS_BATCH = 512,
	WAIT_BACKOFF_WINDOWS_MIN = 32, /* blocking, after the first trial that was lost */
	WAIT_BACKOFF_WINDOWS_MAX = 4096,
};

struct wait_policy {
	bool may_spin;
	enum wait_policy_state state;
	enum wait_way way;     /* being tried or held */
	enum wait_way way_now; /* until this window ends */
	uint64_t window_start_ns;
	uint32_t window_requests;
	uint32_t window_requests_full; /* end it, ... */
	uint32_t window_requests_min;  /* or these once it took long enough */
	uint32_t window_turns;	       /* turns that brought requests */
	uint32_t windows_left;	       /* until the state is questioned */
	uint32_t backoff_windows;
	uint64_t trial_ns[2]; /* time of the trial's windows, without and with the way */
	uint64_t trial_requests[2];
	uint64_t lost_ns; /* a request's time without the way when the last trial was lost, or 0 */
};

/* may_spin false: spinning is never tried. */
void wait_policy_init(struct wait_policy *policy, bool may_spin);

/* Told after every turn how many requests it brought. Returns how to wait for the next. */
enum wait_way wait_policy_turn(struct wait_policy *policy, uint64_t now_ns, uint32_t requests);
