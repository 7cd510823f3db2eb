// SPDX-License-Identifier: Apache-2.0
/*
 * The choice of how a reactor waits for the next requests. There are three methods, each best for
 * some clients:
 *
 *   BLOCK  Sleep until something happens. An idle reactor uses no CPU.
 *   BATCH  Sleep longer, until several requests have arrived. For clients that keep many in flight:
 *          each wake-up serves more requests.
 *   SPIN   Poll for a while before sleeping. For clients that send one request and wait for it:
 *          waking an idle CPU can take longer than everything else a request needs.
 *
 * The reactor does not know how many requests a client keeps in flight, how long the client waits
 * between requests, or how long a wake-up takes on this machine. So the policy measures each
 * method:
 *
 *   BLOCKING ── a window of requests ──▶ TRYING a method ─ faster ──▶ HOLDING it
 *       ▲                                     │ not faster              │ some windows later, or
 *       │◀── longer wait until next trial ◀───┘                         │ other traffic: try again
 *       └◀───────────────────────── a pause in the traffic ◀────────────┘
 *
 * A trial alternates windows with and without the method, because a single measurement means little
 * on a machine that also runs other programs. If requests later take much longer than during a lost
 * trial, its result is void: the cost of a wake-up changes by tens of microseconds when the
 * scheduler moves client and server to the same CPU or to different ones. Spinning takes CPU time
 * from other programs, so it must gain more to be kept. Batching makes every request wait for
 * others, so a window without batches ends it, in a trial or later. The measurements are in
 * docs/design/0005-waiting.md.
 *
 * Threading: one object belongs to one reactor. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum wait_way { WAIT_BLOCK, WAIT_BATCH, WAIT_SPIN, WAIT_WAY_COUNT };

enum wait_policy_state { WAIT_POLICY_BLOCKING, WAIT_POLICY_TRYING, WAIT_POLICY_HOLDING };

enum {
	WAIT_BATCH_NS = 60000,	      /* maximum time for which a request waits for others */
	WAIT_BATCH_MAX = 64,	      /* number of completions that end the wait immediately */
	WAIT_SPIN_NS = 50000,	      /* maximum time of polling before sleeping */
	WAIT_WINDOW_REQUESTS = 64,    /* number of requests in a measurement */
	WAIT_WINDOW_REQUESTS_MIN = 8, /* sufficient number if they took at least 5 ms */
	WAIT_TRIAL_WINDOWS = 12,      /* windows of a trial, half of them with the method */
	WAIT_HOLD_WINDOWS = 2048,     /* windows until a method that is kept is tried again */
	/* For batching: more requests and windows, because its gain is smaller, and fewer trials,
	 * because a wrong choice costs less. */
	WAIT_WINDOW_REQUESTS_BATCH = 256,
	WAIT_TRIAL_WINDOWS_BATCH = 32,
	WAIT_HOLD_WINDOWS_BATCH = 512,
	WAIT_BACKOFF_WINDOWS_MIN = 32, /* windows of blocking after the first lost trial */
	WAIT_BACKOFF_WINDOWS_MAX = 4096,
};

struct wait_policy {
	bool may_spin;
	enum wait_policy_state state;
	enum wait_way way; /* the method of the current or last trial, or the one that is kept */
	enum wait_way way_now; /* the method until the end of this window */
	uint64_t window_start_ns;
	uint32_t window_requests;
	uint32_t window_requests_full; /* number of requests that ends a window */
	uint32_t window_requests_min;  /* number of requests that ends a window after 5 ms */
	uint32_t window_turns;	       /* number of turns with requests in this window */
	uint32_t windows_left;	       /* number of windows until the next decision */
	uint32_t backoff_windows;
	/* duration of the trial's windows: [0] without, [1] with the method */
	uint64_t trial_ns[2];
	uint64_t trial_requests[2];
	/* Time per request without the method during the last lost trial; 0: none. */
	uint64_t lost_ns;
};

/* may_spin: spinning may be tried. */
void wait_policy_init(struct wait_policy *policy, bool may_spin);

/* Called after every turn with its number of new requests. Returns how to wait for the next
 * ones. */
enum wait_way wait_policy_turn(struct wait_policy *policy, uint64_t now_ns, uint32_t requests);
