// SPDX-License-Identifier: Apache-2.0
/*
 * SVG drawing: text in a document, panels, the output file, and the plot of latencies.
 *
 * Threading: the main thread. Ownership: borrows its arguments. Errors: a negative errno with a
 * sentence that names the file. Texts can contain any bytes; those that XML cannot represent are
 * escaped.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/histogram.h"

/* Writes text between tags or in an attribute. Control bytes and invalid UTF-8 become \xNN. */
void svg_text(FILE *out, const char *text);
/* Writes a text element. */
void svg_label(FILE *out, double x, double y, const char *class_name, const char *text);

/* Formats a duration with its unit; at most three digits, without trailing zeroes. Returns out. */
enum { SVG_DURATION_BYTES = 32 };
const char *svg_duration(char out[SVG_DURATION_BYTES], double ns);

/* Returns the smallest step of 1, 2 or 5 times a power of ten that divides a span above 0 into at
 * most count_max parts. */
double svg_tick_step(double span, int count_max);

/* A panel with time on the horizontal axis, from 0, and bytes on the vertical axis (0: no such
 * axis). Positions are in pixels. */
struct svg_panel {
	double left;
	double right;
	double top;
	double bottom;
	double total_ns;
	uint64_t bytes;
};

/* Draws the panel's frame, and grid lines and labels at round values. */
void svg_panel_axes(FILE *out, const struct svg_panel *panel);

/* The beginning of a document: its size, title, subtitle, and style rules in addition to the common
 * ones of grids, frames and labels. Headings are at x. */
struct svg_head {
	int width;
	int height;
	int x;
	const char *title;
	const char *subtitle;
	const char *style;
};

void svg_begin(FILE *out, const struct svg_head *head);
/* Ends the document and flushes. The sentence of an error does not name the file. */
GMB_MUST_CHECK int svg_end(FILE *out, struct error *error);

/* An output file. It is opened before the work, so that a path that cannot be written is reported
 * immediately. An existing file is not changed before the drawing starts. */
struct svg_file {
	const char *path;
	int fd; /* -1: none */
	bool is_new;
};

GMB_MUST_CHECK int svg_file_open(struct svg_file *file, const char *path, struct error *error);

/* Truncates the file, lets draw write it, and closes it. */
typedef int svg_draw_fn(FILE *out, const void *context, struct error *error);
GMB_MUST_CHECK int svg_file_write(
	struct svg_file *file, svg_draw_fn *draw, const void *context, struct error *error);

/* Closes the file, and removes it if it was created here and not written. */
void svg_file_close(struct svg_file *file);

/* --- latencies -------------------------------------------------------------------------------- */

/*
 * Draws latencies as SVG. The upper panel shows the share of requests at each latency. The lower
 * one shows the share of requests up to that latency, on a scale with equal space for every nine of
 * a percentile. The latency axis is logarithmic and common to both.
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
