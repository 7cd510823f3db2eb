// SPDX-License-Identifier: Apache-2.0
/*
 * The choice of how a thread waits for its peer: a reactor for requests, a client for replies.
 * There are three methods, each best for some traffic:
 *
 *   BLOCK  Sleep until something happens. An idle thread uses no CPU.
 *   BATCH  Sleep longer, until several completions have arrived. For connections with many requests
 *          in flight: each wake-up serves more requests.
 *   SPIN   Poll for a while before sleeping. For connections with few requests in flight: waking an
 *          idle CPU can take longer than everything else a request needs.
 *
 * The thread knows neither how many requests the peer keeps in flight, nor how long the peer thinks
 * between them, nor how long a wake-up takes on this machine. So the policy measures the methods:
 *
 *   HOLDING a method ── some windows later, or other traffic ──▶ TRYING all methods in turn
 *       ▲                                                              │
 *       └──────────────────────── the best one ◀───────────────────────┘
 *
 * In a trial, the methods take turns, each for a window (a short series of requests), because a
 * single measurement means little on a machine that also runs other programs. Polling takes CPU
 * time from other programs, so it is kept only if it gains at least as much speed as it costs CPU
 * time. If no method is better than BLOCK, the pause before the next trial is twice as long as
 * before, up to a limit. The result of a trial becomes void when requests take much more or much
 * less time than during the trial. For example, the cost of a wake-up changes by tens of
 * microseconds when the scheduler moves the thread and its peer to the same CPU or to different
 * ones. Polling ends as soon as another thread needs the CPU. The measurements are in
 * docs/design/0005-waiting.md.
 *
 * Threading: one object belongs to one thread. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum wait_way { WAIT_BLOCK, WAIT_BATCH, WAIT_SPIN, WAIT_WAY_COUNT };

enum {
	WAIT_BATCH_NS = 60000,	      /* longest time that BATCH waits for more completions */
	WAIT_BATCH_MAX = 64,	      /* number of completions that end the wait of BATCH */
	WAIT_SPIN_NS = 50000,	      /* maximum time of polling before sleeping */
	WAIT_WINDOW_NS = 1000000,     /* minimum duration of a window */
	WAIT_WINDOW_REQUESTS = 64,    /* minimum number of requests in a window */
	WAIT_WINDOW_REQUESTS_MIN = 8, /* enough for a window of at least 5 ms */
	WAIT_TRIAL_WINDOWS = 16,      /* windows of a trial for each method */
	WAIT_HOLD_WINDOWS = 2048,     /* windows with the winning method until the next trial */
	WAIT_CHANGED_WINDOWS =
		3, /* consecutive windows with changed traffic that void a trial's result */
	/* number of windows with BLOCK after the first trial that BLOCK has won */
	WAIT_BACKOFF_WINDOWS_MIN = 32,
	WAIT_BACKOFF_WINDOWS_MAX = 4096,
};

/* The result of one turn of the event loop. */
struct wait_turn {
	uint64_t now_ns;
	uint32_t requests; /* number of requests that arrived or were answered */
	/* The requests came from an event source (ring/ring.h), such as memory shared with the
	 * peer. One completion announces a whole batch of requests, so BATCH would only delay them.
	 */
	bool by_source;
	/* While the thread polled, another thread took its CPU. */
	bool was_crowded;
};

struct wait_policy {
	bool may_batch;
	bool may_spin;
	bool is_trying;
	enum wait_way way;     /* the method in use outside of trials */
	enum wait_way way_now; /* the method used in this window */
	bool in_trial[WAIT_WAY_COUNT];
	uint64_t chosen_ns; /* when the last trial ended; 0: none has, or wait_policy_retry() */
	uint64_t window_start_ns;
	uint64_t window_cpu_ns; /* the thread's CPU time when the window started; only in trials */
	uint32_t window_requests;
	uint32_t window_turns;	  /* number of turns with requests in this window */
	uint32_t source_turns;	  /* number of turns whose requests came from an event source */
	uint32_t windows_left;	  /* number of windows until the next decision */
	uint32_t changed_windows; /* consecutive windows with changed traffic, or with a pause */
	uint32_t backoff_windows;
	/* Totals of the trial's windows for each method. */
	uint64_t trial_ns[WAIT_WAY_COUNT];
	uint64_t trial_cpu_ns[WAIT_WAY_COUNT];
	uint64_t trial_requests[WAIT_WAY_COUNT];
	/* Time per request with the method `way` during the last trial; 0: unknown. */
	uint64_t kept_ns;
	uint64_t (*cpu_ns)(void);
};

/* may_batch, may_spin: the methods that may be tried. cpu_ns: returns the CPU time of the calling
 * thread. */
void wait_policy_init(
	struct wait_policy *policy, bool may_batch, bool may_spin, uint64_t (*cpu_ns)(void));

/* If the last trial has chosen BLOCK, begins another one soon. */
void wait_policy_retry(struct wait_policy *policy);

/* Called after every turn. Returns how to wait for the next one. */
enum wait_way wait_policy_turn(struct wait_policy *policy, const struct wait_turn *turn);
