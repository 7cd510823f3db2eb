// SPDX-License-Identifier: Apache-2.0
/*
 * Draws traced reads as SVG, one panel a read: time to the right, offset upwards, a dot for each
 * chunk at the moment it was seen, coloured by stream; a line for each part at the moment it was
 * complete, over the bytes it holds.
 *
 * Threading: the caller's. Ownership: borrows its arguments. Errors: a negative errno with a
 * sentence when the file cannot be written. The texts may hold any bytes.
 */
#pragma once

#include <stdio.h>

#include "base/error.h"
#include "tools/trace_arrival.h"

enum { TRACE_PLOT_PANELS_MAX = 8 };

struct trace_plot {
	const char *title;
	const char *subtitle;
	struct trace_plot_panel {
		const char *title;
		const struct trace_read *read; /* analysed */
	} panels[TRACE_PLOT_PANELS_MAX];
	uint32_t panel_count; /* at least 1 */
};

/* Writes the whole document and flushes out. */
GMB_MUST_CHECK int trace_plot_write(FILE *out, const struct trace_plot *plot, struct error *error);
