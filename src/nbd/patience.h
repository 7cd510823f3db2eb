// SPDX-License-Identifier: Apache-2.0
/*
 * When a busy reactor should let requests gather before it wakes.
 *
 * A client that keeps many requests in flight sends each with a system call of its own; a server
 * that sleeps in between is woken by every few of them, which costs the client more than the
 * request does (on two virtual CPUs, 4 KiB reads at depth 64: 74 k IOPS with a wake-up for every
 * fifth request, 93 k with waits of 50 to 80 µs). With few requests in flight the same wait would
 * only add latency. How many there are cannot be seen from here, so it is tried:
 *
 *   IMPATIENT ── a window of requests, some of them together ──▶ TRIAL ── not slower ──▶ PATIENT
 *       ▲                                                         │ slower
 *       │◀────────────── wait longer before the next trial ◀──────┘
 *       └◀────────────── after some windows: look again ◀─────────────────────────────── PATIENT
 *
 * A trial alternates windows with and without waiting, because the rate of one window says little
 * on a machine that does other things, too.
 *
 * Threading: one object belongs to one reactor. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum patience_state { PATIENCE_IMPATIENT, PATIENCE_TRIAL, PATIENCE_PATIENT };

enum {
	PATIENCE_WAIT_NS = 60000,	   /* the longest a request waits for company */
	PATIENCE_GATHER_MAX = 64,	   /* completions that end the wait at once */
	PATIENCE_WINDOW_REQUESTS = 256,	   /* what one rate is measured over */
	PATIENCE_TRIAL_WINDOWS = 32,	   /* half of them with waiting */
	PATIENCE_HOLD_WINDOWS = 512,	   /* between two trials while waiting pays */
	PATIENCE_BACKOFF_WINDOWS_MIN = 16, /* ... and after the first that it lost */
	PATIENCE_BACKOFF_WINDOWS_MAX = 1024,
};

struct patience {
	enum patience_state state;
	uint64_t window_start_ns;
	uint32_t window_requests;
	uint32_t window_turns; /* turns that brought requests */
	uint32_t windows_left; /* until the state is questioned */
	uint32_t backoff_windows;
	uint64_t trial_ns[2]; /* time of the trial's windows, without and with waiting */
};

void patience_init(struct patience *patience);

/* Told after every turn how many requests it brought. Returns how long the next waits may let work
 * gather, in ns; 0: not at all. */
uint64_t patience_turn(struct patience *patience, uint64_t now_ns, uint32_t requests);
