// SPDX-License-Identifier: Apache-2.0
/*
 * Drawing as SVG: text in a document, panels, the file that it goes to, and the plot of latencies.
 *
 * Threading: the main thread. Ownership: borrows its arguments. Errors: a negative errno with a
 * sentence that names the file. Texts may hold any bytes: what XML cannot carry is escaped.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/histogram.h"

/* Text between tags or in an attribute. Control bytes and broken UTF-8 become \xNN. */
void svg_text(FILE *out, const char *text);
/* A text element. */
void svg_label(FILE *out, double x, double y, const char *class_name, const char *text);

/* A duration with its unit; up to three digits and no trailing zeroes. Returns out. */
enum { SVG_DURATION_BYTES = 32 };
const char *svg_duration(char out[SVG_DURATION_BYTES], double ns);

/* The smallest step of 1, 2 or 5 times a power of ten that divides a span above 0 into at most so
 * many. */
double svg_tick_step(double span, int count_max);

/* A panel with time across, from 0, and bytes upwards (0: no such axis), in pixels. */
struct svg_panel {
	double left;
	double right;
	double top;
	double bottom;
	double total_ns;
	uint64_t bytes;
};

/* Its frame, and grid lines and labels at round values. */
void svg_panel_axes(FILE *out, const struct svg_panel *panel);

/* The beginning of a document: its size, its title and a line below that, and rules of style beyond
 * those of grids, frames and labels that all have. Headings are at x. */
struct svg_head {
	int width;
	int height;
	int x;
	const char *title;
	const char *subtitle;
	const char *style;
};

void svg_begin(FILE *out, const struct svg_head *head);
/* The end of it. Flushes; the error's sentence does not name the file. */
GMB_MUST_CHECK int svg_end(FILE *out, struct error *error);

/* A file that is opened before the work, so that a path that cannot be written is reported at once;
 * an existing file stays as it is until there is something to draw. */
struct svg_file {
	const char *path;
	int fd; /* -1: none */
	bool is_new;
};

GMB_MUST_CHECK int svg_file_open(struct svg_file *file, const char *path, struct error *error);

/* Empties the file, has draw write it, and closes it. */
typedef int svg_draw_fn(FILE *out, const void *context, struct error *error);
GMB_MUST_CHECK int svg_file_write(
	struct svg_file *file, svg_draw_fn *draw, const void *context, struct error *error);

/* Closes it, and removes it if it was created here and never written. */
void svg_file_close(struct svg_file *file);

/* --- latencies -------------------------------------------------------------------------------- */

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
 */

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
