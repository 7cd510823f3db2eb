// SPDX-License-Identifier: Apache-2.0
/*
 * The choice between two ways of doing the same work, by their measured throughput.
 *
 * The caller divides its work into windows. All work that begins in a window is done in the same
 * way. First, both ways take turns. After that, the better way is used, and the slower way is tried
 * again from time to time. A decision can be wrong, so the first tries can follow soon: the number
 * of windows from one try to the next doubles up to a maximum, and starts again when the other way
 * becomes the better one:
 *
 *   0 1 0 1 │ b b b s │ b b b b b b b s │ b b b b …      b: the better way, s: the slower way
 *
 * Threading: one object belongs to one thread. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum { TRIAL_WAYS = 2 };

struct trial_rule {
	/* Windows of each way before the first decision; > 0. */
	uint32_t first_windows;
	/* Windows from a decision to the first try, and at most from one try to the next, with the
	 * try itself; powers of two, > 1. */
	uint32_t try_first;
	uint32_t try_every;
	/* Way 1 is better only if its throughput is higher by more than 1/margin. UINT32_MAX: by
	 * any amount. */
	uint32_t margin;
};

struct trial {
	uint32_t way; /* 0 or 1: the way of the current window; the caller chooses the first one */
	uint32_t windows; /* number of windows that have ended */
	/* rule->try_first plus the number of windows since the better way has changed. At each
	 * power of two, and at each multiple of rule->try_every, the slower way is tried. */
	uint32_t count;
	/* Average throughput of each way, in KiB per second; 0 = unknown. */
	uint64_t rates[TRIAL_WAYS];
};

/* Ends the current window, in which bytes were transferred in ns, and chooses the way of the
 * next one. */
void trial_end_window(
	struct trial *trial, const struct trial_rule *rule, uint64_t bytes, uint64_t ns);
