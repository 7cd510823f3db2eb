// SPDX-License-Identifier: Apache-2.0
#include "tools/trace_plot.h"

#include <math.h>

#include "base/text.h"
#include "tools/svg.h"

enum {
	WIDTH = 860,
	LEFT = 80,
	RIGHT = 830,
	HEAD = 74,
	PANEL = 320,
	PANEL_TOP = 24, /* of the frame, in the panel */
	PANEL_BOTTOM = 270,
	FOOT = 34,
};

/* By stream; the streams beyond share the last one. */
static const char *const colours[] = { "#1d5fa8", "#c2521a", "#2e8540", "#8a3ab9", "#b8860b",
	"#008b8b", "#c71585", "#666666" };

struct panel {
	FILE *out;
	const struct trace_read *read;
	double top; /* of the frame */
	double bottom;
};

static double x_of(const struct panel *panel, uint64_t time_ns)
{
	return LEFT + (double)(RIGHT - LEFT) * (double)time_ns / (double)panel->read->total_ns;
}

static double y_of(const struct panel *panel, double offset)
{
	return panel->bottom - (panel->bottom - panel->top) * offset / panel->read->bytes;
}

static uint32_t colour_of(const struct trace_arrival *arrival)
{
	return MIN((uint32_t)arrival->stream, (uint32_t)ARRAY_COUNT(colours)) - 1;
}

static void draw_axes(const struct panel *panel)
{
	const struct svg_panel axes = {
		.left = LEFT,
		.right = RIGHT,
		.top = panel->top,
		.bottom = panel->bottom,
		.total_ns = (double)panel->read->total_ns,
		.bytes = panel->read->bytes,
	};

	svg_panel_axes(panel->out, &axes);
}

/* All dots of one colour in one path: a line of no length with round ends is a dot. Dots that
 * nobody could tell apart only make the file longer. */
static void draw_dots(const struct panel *panel, uint32_t colour)
{
	const struct trace_read *read = panel->read;
	double x_last = -1;
	double y_last = -1;

	for (uint32_t i = 0; i < read->chunk_count; i++) {
		const struct trace_arrival *arrival = &read->arrivals[i];
		double middle = (double)i * read->chunk_bytes + trace_chunk_bytes(read, i) / 2.0;
		double x;
		double y;

		if (arrival->how != TRACE_EARLY || colour_of(arrival) != colour) {
			continue;
		}
		x = x_of(panel, arrival->time_ns);
		y = y_of(panel, middle);
		if (x_last < 0) {
			fprintf(panel->out, "<path class=\"dots\" stroke=\"%s\" d=\"",
				colours[colour]);
		} else if (fabs(x - x_last) < 0.5 && fabs(y - y_last) < 0.5) {
			continue;
		}
		fprintf(panel->out, "M%.1f %.1fh0", x, y);
		x_last = x;
		y_last = y;
	}
	if (x_last >= 0) {
		fputs("\"/>\n", panel->out);
	}
}

static void draw_parts(const struct panel *panel)
{
	const struct trace_read *read = panel->read;

	for (uint32_t i = 0; i < read->part_count; i++) {
		const struct trace_part *part = &read->parts[i];
		double x = x_of(panel, part->completed_ns);
		double from = y_of(panel, part->offset);
		double to = y_of(panel, (double)part->offset + part->bytes);

		fprintf(panel->out, "<path class=\"part\" d=\"M%.1f %.1fh%.1fM%.1f %.1fV%.1f\"/>\n",
			x_of(panel, part->submitted_ns), from, x - x_of(panel, part->submitted_ns),
			x, from, to);
	}
}

int trace_plot_write(FILE *out, const struct trace_plot *plot, struct error *error)
{
	int height = HEAD + PANEL * (int)plot->panel_count + FOOT;
	const struct svg_head head = {
		.width = WIDTH,
		.height = height,
		.x = LEFT,
		.title = plot->title,
		.subtitle = plot->subtitle,
		.style = ".part { stroke: #bbb; stroke-width: 1.5; fill: none }\n"
			 ".dots { stroke-width: 3; stroke-linecap: round; fill: none }\n",
	};

	GMB_ASSERT(plot->panel_count >= 1);
	GMB_ASSERT(plot->panel_count <= TRACE_PLOT_PANELS_MAX);
	svg_begin(out, &head);
	for (uint32_t i = 0; i < plot->panel_count; i++) {
		double begin = HEAD + (double)PANEL * i;
		struct panel panel = {
			.out = out,
			.read = plot->panels[i].read,
			.top = begin + PANEL_TOP,
			.bottom = begin + PANEL_BOTTOM,
		};

		svg_label(out, LEFT, begin + 14, "sub", plot->panels[i].title);
		draw_axes(&panel);
		draw_parts(&panel);
		for (uint32_t j = 0; j < ARRAY_COUNT(colours); j++) {
			draw_dots(&panel, j);
		}
	}
	svg_label(out, LEFT, height - 14, "sub",
		"dots: chunks when they were seen in memory, one colour per stream; grey: parts "
		"from "
		"submission to completion");
	return svg_end(out, error);
}
