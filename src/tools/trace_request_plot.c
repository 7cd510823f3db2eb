// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tools/plot.h"
#include "tools/show.h"
#include "tools/trace_request.h"

enum {
	WIDTH = 860,
	LEFT = 80,
	RIGHT = 830,
	HEAD = 74,
	PANEL = 340,
	PANEL_TOP = 42, /* top of the frame in the panel */
	PANEL_BOTTOM = 290,
	FOOT = 34,
	LABEL_BYTES = 400,
};

struct panel {
	FILE *out;
	const struct trace_request *request;
	double top; /* top of the frame */
	double bottom;
};

static double trace_request_plot_x_of(const struct panel *panel, double us)
{
	double total = panel->request->total_us > 0 ? panel->request->total_us : 1;

	return LEFT + (double)(RIGHT - LEFT) * us / total;
}

static double trace_request_plot_y_of(const struct panel *panel, uint64_t offset)
{
	uint64_t length = MAX(panel->request->length, UINT64_C(1));
	uint64_t inside = offset - panel->request->offset;

	return panel->bottom - (panel->bottom - panel->top) * (double)inside / (double)length;
}

static void trace_request_plot_draw_axes(const struct panel *panel)
{
	const struct svg_panel axes = {
		.left = LEFT,
		.right = RIGHT,
		.top = panel->top,
		.bottom = panel->bottom,
		.total_ns = panel->request->total_us * 1000,
		.bytes = panel->request->length,
	};

	svg_panel_axes(panel->out, &axes);
}

/* Draws a bar between two times, as high as its range of bytes; a request without bytes uses the
 * full height. A bar has at least the width of a line, so that it is visible. */
static void draw_bar(const struct panel *panel, const char *class_name, double from_us,
	double to_us, uint64_t offset, uint64_t length)
{
	double left = trace_request_plot_x_of(panel, from_us);
	double right = trace_request_plot_x_of(panel, to_us);
	double low = panel->bottom;
	double high = panel->top;

	if (panel->request->length > 0) {
		low = trace_request_plot_y_of(panel, offset);
		high = trace_request_plot_y_of(panel, offset + length);
	}
	right = MAX(right, left + 1);
	fprintf(panel->out,
		"<rect class=\"%s\" x=\"%.1f\" y=\"%.2f\" width=\"%.1f\" height=\"%.2f\"/>\n",
		class_name, left, high, right - left, low - high);
}

/* Draws the progress of a part as reported by the store. */
static void draw_marks(const struct panel *panel, const struct trace_request_part *part)
{
	if (part->mark_count == 0) {
		return;
	}
	fprintf(panel->out, "<path class=\"marks\" d=\"M%.1f %.2f",
		trace_request_plot_x_of(panel, part->submitted_us),
		trace_request_plot_y_of(panel, part->offset));
	for (uint32_t i = 0; i < part->mark_count; i++) {
		const struct trace_request_mark *mark = &part->marks[i];

		fprintf(panel->out, "L%.1f %.2f", trace_request_plot_x_of(panel, mark->progress_us),
			trace_request_plot_y_of(panel, part->offset + mark->bytes));
	}
	fputs("\"/>\n", panel->out);
}

static void draw_part(const struct panel *panel, const struct trace_request_part *part)
{
	double total_us = panel->request->total_us;
	double done_us = part->done_us >= 0 ? part->done_us : total_us;
	bool submitted = part->submitted_us >= 0;

	if (strcmp(panel->request->operation, "write") == 0) {
		draw_bar(panel, "payload", part->opened_us,
			submitted ? part->submitted_us : total_us, part->offset, part->length);
	}
	if (submitted) {
		draw_bar(panel, part->error != NULL ? "failed" : "disk", part->submitted_us,
			done_us, part->offset, part->length);
	}
	for (uint32_t i = 0; i < part->piece_count; i++) {
		const struct trace_request_piece *piece = &part->pieces[i];
		double back_us = piece->back_us >= 0 ? piece->back_us : total_us;

		if (piece->handed_us > done_us) {
			draw_bar(panel, "waits", done_us, piece->handed_us, piece->offset,
				piece->length);
		}
		draw_bar(panel, "network", piece->handed_us, back_us, piece->offset, piece->length);
	}
	draw_marks(panel, part);
}

static void draw_panel(const struct panel *panel, double begin)
{
	const struct trace_request *request = panel->request;
	char title[TRACE_REQUEST_TITLE_BYTES];
	char figures[LABEL_BYTES];
	char times[PATH_STATE_DONE + 1][PRINT_US_BYTES];

	for (int i = 0; i < PATH_STATE_DONE; i++) {
		print_us(times[i], request->state_us[i]);
	}
	snprintf(figures, sizeof(figures), "%s in %s: wait %s, disk %s, overlap %s, network %s",
		request->error != NULL ? "failed" : "done",
		print_us(times[PATH_STATE_DONE], request->total_us), times[0], times[1], times[2],
		times[3]);
	svg_label(panel->out, LEFT, begin + 14, "sub", trace_request_title(title, request));
	svg_label(panel->out, LEFT, begin + 31, "sub", figures);
	trace_request_plot_draw_axes(panel);
	for (uint32_t i = 0; i < request->part_count; i++) {
		draw_part(panel, &request->parts[i]);
	}
}

int trace_request_plot(FILE *out, const void *context, struct error *error)
{
	const struct trace_requests *requests = context;
	uint32_t count = MIN(requests->count, (uint32_t)TRACE_REQUEST_PLOTS_MAX);
	int height = HEAD + PANEL * (int)count + FOOT;
	char subtitle[LABEL_BYTES];
	const struct svg_head head = {
		.width = WIDTH,
		.height = height,
		.x = LEFT,
		.title = "Time spent by individual requests",
		.subtitle = subtitle,
		.style = "rect { stroke: #fff; stroke-width: 0.4 }\n"
			 ".disk { fill: #1d5fa8 }\n"
			 ".waits { fill: #ccc }\n"
			 ".network { fill: #c2521a; fill-opacity: 0.85 }\n"
			 ".payload { fill: #2e8540 }\n"
			 ".failed { fill: #c71585 }\n"
			 ".marks { stroke: #222; fill: none }\n",
	};

	GMB_ASSERT(count >= 1);
	snprintf(subtitle, sizeof(subtitle), "%u of %u request%s, time to the right, offset upward",
		count, requests->count, requests->count == 1 ? "" : "s");
	svg_begin(out, &head);
	for (uint32_t i = 0; i < count; i++) {
		double begin = HEAD + (double)PANEL * i;
		struct panel panel = {
			.out = out,
			.request = &requests->requests[i],
			.top = begin + PANEL_TOP,
			.bottom = begin + PANEL_BOTTOM,
		};

		draw_panel(&panel, begin);
	}
	svg_label(out, LEFT, height - 14, "sub",
		"blue: disk; grey: ready and waiting; orange: being sent; green: write payload "
		"being received; magenta: the disk failed");
	return svg_end(out, error);
}
