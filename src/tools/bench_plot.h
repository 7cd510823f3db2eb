// SPDX-License-Identifier: Apache-2.0
/*
 * Draws latencies as SVG: above, the share of requests at each latency; below, the share that took
 * no longer, on a scale that gives every nine of a percentile the same room. The latency axis is
 * logarithmic and common to both.
 *
 *   title, subtitle, legend
 *   ┌──────────────────────┐ share
 *   │      ▁▃█▅▂▁          │
 *   ├──────────────────────┤ 99.9 %
 *   │         ___----------│ 90 %
 *   └──────────────────────┘ 0 %
 *    20 µs  50 µs  100 µs
 *
 * Threading: the caller's. Ownership: borrows its arguments. Errors: a negative errno with a
 * sentence when the file cannot be written. The texts may hold any bytes: what XML cannot carry is
 * escaped.
 */
#pragma once

#include <stdio.h>

#include "base/error.h"
#include "base/histogram.h"

enum { BENCH_PLOT_SERIES_MAX = 2 };

struct bench_plot {
	const char *title;
	const char *subtitle;
	struct bench_plot_series {
		const char *name;
		const struct histogram *latency_ns; /* not empty */
	} series[BENCH_PLOT_SERIES_MAX];
	uint32_t series_count; /* at least 1 */
};

/* Writes the whole document and flushes out. */
GMB_MUST_CHECK int bench_plot_write(FILE *out, const struct bench_plot *plot, struct error *error);
