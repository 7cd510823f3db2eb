// SPDX-License-Identifier: Apache-2.0
/*
 * The progress bar of a copy on standard error: how far, how fast, how long still. On a terminal it
 * is one line that is written again, elsewhere a line a second.
 *
 * Threading: one thread. Ownership: borrows the counters. Errors: what cannot be shown is not.
 */
#pragma once

#include "tools/copy_engine.h"

struct copy_progress {
	bool wanted;
	bool terminal;
	bool line_open; /* the terminal's cursor stands behind the bar */
	const struct copy_counters *counters;
	const uint64_t *now; /* which of the counters is shown */
	const char *verb;
	uint64_t shown_ns; /* when it was shown last; 0: never */
	uint64_t mark_ns;  /* rates are since the mark, which follows at a distance */
	uint64_t mark_bytes;
	double rate; /* bytes a second, smoothed */
};

enum copy_progress_mode { COPY_PROGRESS_AUTO, COPY_PROGRESS_ON, COPY_PROGRESS_OFF };

void copy_progress_init(struct copy_progress *progress, enum copy_progress_mode mode,
	const struct copy_counters *counters);

/* What is counted from here on: "copying", "verifying". */
void copy_progress_phase(
	struct copy_progress *progress, const char *verb, const uint64_t *counter, uint64_t now_ns);

/* Shows it when it is time to. */
void copy_progress_tick(struct copy_progress *progress, uint64_t now_ns);

/* Removes the bar, before anything else is written to the terminal. */
void copy_progress_clear(struct copy_progress *progress);

/* "1:02:03" or "0:07". Returns out. */
enum { COPY_TIME_BYTES = 24 };
const char *copy_human_time(char out[COPY_TIME_BYTES], double seconds);

/* "12 MiB of 16 MiB"; in bytes where that would look like all of it and is not. Returns out. */
enum { COPY_SHARE_BYTES = 72 };
const char *copy_share(char out[COPY_SHARE_BYTES], uint64_t done, uint64_t total);
