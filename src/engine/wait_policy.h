// SPDX-License-Identifier: Apache-2.0
/*
 * The choice of how a reactor waits for the next requests. There are three methods, each best for
 * some clients:
 *
 *   BLOCK  Sleep until something happens. An idle reactor uses no CPU.
 *   BATCH  Sleep a while longer, until several requests have arrived. For clients that keep many in
 *          flight: each wake-up serves more of them.
 *   SPIN   Poll for a while before sleeping. For clients that send one request and wait for it:
 *          waking an idle CPU can take longer than everything else a request needs.
 *
 * The reactor cannot see how many requests a client keeps in flight, how long it thinks, or what a
 * wake-up costs on this machine. So the policy measures each method:
 *
 *   BLOCKING ── a window of requests ──▶ TRYING a method ─ it pays ─▶ HOLDING it
 *       ▲                                     │ it does not             │ some windows later, or
 *       │◀── longer before the next trial ◀───┘                         │ other traffic: try again
 *       └◀───────────────────────── a pause in the traffic ◀────────────┘
 *
 * A trial alternates windows with and without the method, because the rate of a single window
 * means little on a machine that runs other programs, too. A lost trial becomes void when requests
 * take much longer than they did during it: a wake-up costs tens of microseconds more or less
 * depending on whether client and server share a CPU, and the scheduler moves them. Spinning takes
 * CPU time from others, so it must gain more to be held. Batching makes every request wait for
 * others, so a window without batches ends it, during a trial or later. The measurements are in
 * docs/design/0005-waiting.md.
 *
 * Threading: one object belongs to one reactor. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum wait_way { WAIT_BLOCK, WAIT_BATCH, WAIT_SPIN, WAIT_WAY_COUNT };

enum wait_policy_state { WAIT_POLICY_BLOCKING, WAIT_POLICY_TRYING, WAIT_POLICY_HOLDING };

enum {
	WAIT_BATCH_NS = 60000,	      /* longest time a request waits for others */
	WAIT_BATCH_MAX = 64,	      /* completions that end the wait immediately */
	WAIT_SPIN_NS = 50000,	      /* longest time to poll before sleeping */
	WAIT_WINDOW_REQUESTS = 64,    /* requests over which one rate is measured */
	WAIT_WINDOW_REQUESTS_MIN = 8, /* enough if they took at least 5 ms */
	WAIT_TRIAL_WINDOWS = 12,      /* half of them with the method on trial */
	WAIT_HOLD_WINDOWS = 2048,     /* between two trials of a method that pays */
	/* Batching gains less, and a wrong choice costs less. */
	WAIT_WINDOW_REQUESTS_BATCH = 256,
	WAIT_TRIAL_WINDOWS_BATCH = 32,
	WAIT_HOLD_WINDOWS_BATCH = 512,
	WAIT_BACKOFF_WINDOWS_MIN = 32, /* blocking, after the first lost trial */
	WAIT_BACKOFF_WINDOWS_MAX = 4096,
};

struct wait_policy {
	bool may_spin;
	enum wait_policy_state state;
	enum wait_way way;     /* on trial or held */
	enum wait_way way_now; /* until this window ends */
	uint64_t window_start_ns;
	uint32_t window_requests;
	uint32_t window_requests_full; /* requests that end a window */
	uint32_t window_requests_min;  /* ... or these after at least 5 ms */
	uint32_t window_turns;	       /* turns that brought requests */
	uint32_t windows_left;	       /* until the next decision */
	uint32_t backoff_windows;
	uint64_t trial_ns[2]; /* time of the trial's windows, without and with the method */
	uint64_t trial_requests[2];
	/* Time per request without the method when the last trial was lost, or 0. */
	uint64_t lost_ns;
};

/* may_spin false: spinning is never tried. */
void wait_policy_init(struct wait_policy *policy, bool may_spin);

/* Called after every turn with the number of requests it brought. Returns how to wait for the
 * next. */
enum wait_way wait_policy_turn(struct wait_policy *policy, uint64_t now_ns, uint32_t requests);
