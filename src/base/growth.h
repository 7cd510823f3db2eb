// SPDX-License-Identifier: Apache-2.0
/*
 * Decides how many connections a transfer uses. One connection can be slower than its network: a
 * shaper, a processor at either end, or the TCP window can limit it. So the user measures its
 * throughput in windows, adds a connection, and measures again.
 *
 *   MEASURE ─▶ MEASURE ─▶ ... ─▶ CONNECT ─▶ TRIAL ─▶ CONFIRM ─▶ MEASURE
 *
 * Each state lasts one window. A connection that gains less than a tenth in one of its two windows
 * is removed, and the pause until the next trial doubles. There is no trial while the throughput
 * still rises without one, as at the start of a transfer, because this would look like a gain.
 *
 * Used by libgmblock and by the source of a push. Threading: the owner's thread. Ownership: the
 * caller's object, initialized to zero. Errors: none.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum growth_state {
	GROWTH_MEASURE,
	GROWTH_CONNECT, /* the new connection is being opened */
	GROWTH_TRIAL,
	GROWTH_CONFIRM,
};

enum growth_step {
	GROWTH_STAY,
	GROWTH_ADD,    /* open one more connection */
	GROWTH_REMOVE, /* close the connection of the trial when its requests have been answered */
};

struct growth {
	enum growth_state state;
	uint64_t rate;	 /* of the last valid window, in bytes per second; 0: none */
	uint32_t pauses; /* consecutive trials without a gain */
	uint64_t not_before_ns;
};

/* Shortest duration of a window. Only the simulation changes it. */
extern uint64_t growth_window_ns;

/* Ends a window with this rate. may_add: one more connection can be opened, and has enough to do.
 */
enum growth_step growth_window_end(
	struct growth *growth, uint64_t now_ns, uint64_t rate, bool may_add);
/* Called when the window is invalid, because there was too little to do, or because the connection
 * of GROWTH_ADD could not be opened. Returns GROWTH_REMOVE if a trial was running. */
enum growth_step growth_cancel(struct growth *growth);
