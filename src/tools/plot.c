// SPDX-License-Identifier: Apache-2.0
#include "tools/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum { TEXT_BYTES = 1024, TICKS_MAX = 5 };

void svg_text(FILE *out, const char *text)
{
	char escaped[TEXT_BYTES];

	log_escape_sentence(escaped, sizeof(escaped), text);
	for (const char *p = escaped; *p != '\0'; p++) {
		if (*p == '&') {
			fputs("&amp;", out);
		} else if (*p == '<') {
			fputs("&lt;", out);
		} else if (*p == '>') {
			fputs("&gt;", out);
		} else if (*p == '"') {
			fputs("&quot;", out);
		} else if (strncmp(p, "\xef\xbf\xbe", 3) == 0 ||
			   strncmp(p, "\xef\xbf\xbf", 3) == 0) {
			/* U+FFFE and U+FFFF are valid UTF-8 but not permitted in XML. */
			fputs("&#xfffd;", out);
			p += 2;
		} else {
			putc(*p, out);
		}
	}
}

void svg_label(FILE *out, double x, double y, const char *class_name, const char *text)
{
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class_name);
	svg_text(out, text);
	fputs("</text>\n", out);
}

const char *svg_duration(char out[SVG_DURATION_BYTES], double ns)
{
	static const char *const units[] = { "ns", "\xc2\xb5s", "ms", "s" };
	size_t unit = 0;

	while (ns >= 999.5 && unit + 1 < ARRAY_COUNT(units)) {
		ns /= 1000;
		unit++;
	}
	snprintf(out, SVG_DURATION_BYTES, "%.3g %s", ns, units[unit]);
	return out;
}

double svg_tick_step(double span, int count_max)
{
	static const double steps[] = { 1, 2, 5 };
	double power = pow(10, floor(log10(span / count_max) + 1e-9));

	for (size_t i = 0; i < ARRAY_COUNT(steps); i++) {
		if (steps[i] * power * count_max >= span * (1 - 1e-9)) {
			return steps[i] * power;
		}
	}
	return 10 * power;
}

void svg_panel_axes(FILE *out, const struct svg_panel *panel)
{
	double total_ns = fmax(panel->total_ns, 1);
	double step_ns = svg_tick_step(total_ns, TICKS_MAX);
	double step_bytes = 1024;
	char label[SVG_DURATION_BYTES];

	for (int i = 0; i * step_ns <= total_ns * (1 + 1e-9); i++) {
		double x = panel->left + (panel->right - panel->left) * i * step_ns / total_ns;

		fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", x, panel->top,
			panel->bottom);
		svg_label(out, x, panel->bottom + 18, "middle",
			i == 0 ? "0" : svg_duration(label, i * step_ns));
	}
	/* Sizes of requests are usually powers of two, so the ticks are powers of two. */
	while (step_bytes * TICKS_MAX < (double)panel->bytes) {
		step_bytes *= 2;
	}
	for (int i = 0; panel->bytes > 0 && i * step_bytes <= (double)panel->bytes; i++) {
		double y = panel->bottom -
			   (panel->bottom - panel->top) * i * step_bytes / (double)panel->bytes;

		fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", panel->left, y,
			panel->right);
		snprintf(label, sizeof(label), "%.0f KiB", i * step_bytes / 1024);
		svg_label(out, panel->left - 8, y + 4, "end", label);
	}
	fprintf(out,
		"<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
		panel->left, panel->top, panel->right - panel->left, panel->bottom - panel->top);
}

void svg_begin(FILE *out, const struct svg_head *head)
{
	fprintf(out,
		"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
		"viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
		head->width, head->height, head->width, head->height);
	svg_text(out, head->title);
	fprintf(out,
		"</title>\n"
		"<style>\n"
		"text { font: 12px sans-serif; fill: #222 }\n"
		".head { font-size: 16px; font-weight: bold }\n"
		".end { text-anchor: end }\n"
		".middle { text-anchor: middle }\n"
		".grid { stroke: #ddd; fill: none }\n"
		".frame { stroke: #888; fill: none }\n"
		"%s"
		"</style>\n"
		"<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
		head->style, head->width, head->height);
	svg_label(out, head->x, 28, "head", head->title);
	svg_label(out, head->x, 48, "sub", head->subtitle);
}

int svg_end(FILE *out, struct error *error)
{
	int err;

	fputs("</svg>\n", out);
	if (fflush(out) == 0 && !ferror(out)) {
		return 0;
	}
	err = errno != 0 ? -errno : -EIO;
	return error_set(error, err, "%s", strerror(-err));
}

static int plot_explain(const struct svg_file *file, int err, struct error *error)
{
	return error_set(
		error, err, "cannot write the plot to %s: %s", quote(file->path), strerror(-err));
}

int svg_file_open(struct svg_file *file, const char *path, struct error *error)
{
	*file = (struct svg_file){ .path = path, .fd = -1 };
	file->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	file->is_new = file->fd >= 0;
	if (file->fd < 0 && errno == EEXIST) {
		file->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	}
	return file->fd < 0 ? plot_explain(file, -errno, error) : 0;
}

int svg_file_write(
	struct svg_file *file, svg_draw_fn *draw, const void *context, struct error *error)
{
	struct stat stat;
	FILE *out = fdopen(file->fd, "w");
	int err;

	if (out == NULL) {
		return plot_explain(file, -errno, error);
	}
	/* A pipe or a terminal cannot be truncated. */
	if (fstat(file->fd, &stat) == 0 && S_ISREG(stat.st_mode) && ftruncate(file->fd, 0) != 0) {
		err = -errno;
	} else {
		err = draw(out, context, error);
	}
	file->fd = -1;
	if (fclose(out) != 0 && err == 0) {
		err = -errno;
	}
	if (err != 0) {
		return plot_explain(file, err, error);
	}
	file->is_new = false;
	return 0;
}

void svg_file_close(struct svg_file *file)
{
	if (file->fd >= 0) {
		close(file->fd);
	}
	if (file->is_new) {
		unlink(file->path);
	}
	*file = (struct svg_file){ .fd = -1 };
}

enum {
	WIDTH = 860,
	HEIGHT = 640,
	LEFT = 80,
	RIGHT = 830,
	SHARES_TOP = 112,
	SHARES_BOTTOM = 310,
	CDF_TOP = 350,
	CDF_BOTTOM = 580,
	BINS = 75,
	NINES_MAX = 6,
	SHARE_TICKS_MAX = 5,
};

static const char *const colours[BENCH_PLOT_SERIES_MAX] = { "#1d5fa8", "#c2521a" };

/* The drawing and its scales. */
struct canvas {
	FILE *out;
	const struct bench_plot *plot;
	double log_low; /* ends of the latency axis, as powers of ten of a nanosecond */
	double log_high;
	double nines; /* upper end of the lower panel: 3 is 99.9 % */
	double bins[BENCH_PLOT_SERIES_MAX][BINS];
	double share_max; /* upper end of the upper panel, a multiple of share_step */
	double share_step;
};

/* --- coordinates --------------------------------------------------------------------------- */

static double log_of(uint64_t ns)
{
	return log10((double)MAX(ns, UINT64_C(1)));
}

static double x_of_log(const struct canvas *canvas, double log_ns)
{
	double part = (log_ns - canvas->log_low) / (canvas->log_high - canvas->log_low);

	return LEFT + (RIGHT - LEFT) * part;
}

static double y_of_share(const struct canvas *canvas, double share)
{
	return SHARES_BOTTOM - (SHARES_BOTTOM - SHARES_TOP) * share / canvas->share_max;
}

static double y_of_nines(const struct canvas *canvas, double nines)
{
	return CDF_BOTTOM - (CDF_BOTTOM - CDF_TOP) * fmin(nines, canvas->nines) / canvas->nines;
}

/* Rounds the time of 10^log_ns nanoseconds down or up to 1, 2 or 5 times a power of ten, and
 * returns the logarithm of the result. */
static double round_125(double log_ns, bool up)
{
	static const double steps[] = { 0, 0.30102999566, 0.69897000434, 1 };
	double decade = floor(log_ns + 1e-9);
	double rest = log_ns - decade;

	for (size_t i = 0; i < ARRAY_COUNT(steps); i++) {
		if (up && steps[i] >= rest - 1e-9) {
			return decade + steps[i];
		}
		if (!up && (i + 1 == ARRAY_COUNT(steps) || steps[i + 1] > rest + 1e-9)) {
			return decade + steps[i];
		}
	}
	return decade + 1;
}

static void canvas_measure(struct canvas *canvas)
{
	const struct bench_plot *plot = canvas->plot;
	uint64_t low = UINT64_MAX;
	uint64_t high = 0;
	uint64_t count = 0;

	for (uint32_t i = 0; i < plot->series_count; i++) {
		low = MIN(low, plot->series[i].latency_ns->minimum);
		high = MAX(high, plot->series[i].latency_ns->maximum);
		count = MAX(count, plot->series[i].latency_ns->count);
	}
	canvas->log_low = round_125(log_of(low), false);
	canvas->log_high = round_125(log_of(high), true);
	if (canvas->log_high - canvas->log_low < 0.5) {
		canvas->log_low = round_125(canvas->log_low - 0.15, false);
		canvas->log_high = round_125(canvas->log_high + 0.15, true);
	}
	/* The scale ends where one request is still a visible step. */
	canvas->nines = fmax(1, fmin(NINES_MAX, ceil(log10((double)count))));
}

/* Adds a bucket to the bins that it overlaps, in proportion to the overlap. If each bucket went to
 * one bin, the plot would show a comb, because buckets and bins have different limits. */
static void bin_add(struct canvas *canvas, double bins[BINS], uint32_t bucket, double share)
{
	double scale = BINS / (canvas->log_high - canvas->log_low);
	double from = (log_of(histogram_lowest(bucket)) - canvas->log_low) * scale;
	double to =
		from + log10(1 + (double)(histogram_highest(bucket) - histogram_lowest(bucket)) /
					 (double)MAX(histogram_lowest(bucket), UINT64_C(1))) *
			       scale;
	uint32_t first = (uint32_t)fmin(fmax(from, 0), BINS - 1);
	uint32_t last = (uint32_t)fmin(fmax(to, 0), BINS - 1);

	for (uint32_t i = first; i <= last; i++) {
		double part = first == last ? 1 : (fmin(to, i + 1.0) - fmax(from, i)) / (to - from);

		bins[i] += share * fmax(part, 0);
		canvas->share_max = fmax(canvas->share_max, bins[i]);
	}
}

static void canvas_bin(struct canvas *canvas)
{
	for (uint32_t i = 0; i < canvas->plot->series_count; i++) {
		const struct histogram *latency = canvas->plot->series[i].latency_ns;

		for (uint32_t j = 0; j < HISTOGRAM_BUCKETS; j++) {
			if (latency->buckets[j] > 0) {
				bin_add(canvas, canvas->bins[i], j,
					(double)latency->buckets[j] / (double)latency->count);
			}
		}
	}
	canvas->share_step = svg_tick_step(canvas->share_max, SHARE_TICKS_MAX);
	canvas->share_max =
		ceil(canvas->share_max / canvas->share_step - 1e-9) * canvas->share_step;
}

/* --- drawing ------------------------------------------------------------------------------- */

static void draw_legend(const struct canvas *canvas)
{
	for (uint32_t i = 0; i < canvas->plot->series_count; i++) {
		const struct bench_plot_series *series = &canvas->plot->series[i];
		const struct histogram *latency = series->latency_ns;
		double y = 68 + 18 * (double)i;
		char median[SVG_DURATION_BYTES];
		char tail[SVG_DURATION_BYTES];
		char most[SVG_DURATION_BYTES];
		char text[TEXT_BYTES];

		fprintf(canvas->out,
			"<rect x=\"%d\" y=\"%.1f\" width=\"14\" height=\"10\" fill=\"%s\"/>\n",
			LEFT, y - 9, colours[i]);
		snprintf(text, sizeof(text), "%s: median %s, 99 %% within %s, longest %s",
			series->name,
			svg_duration(median, (double)histogram_quantile(latency, 500000)),
			svg_duration(tail, (double)histogram_quantile(latency, 990000)),
			svg_duration(most, (double)latency->maximum));
		svg_label(canvas->out, LEFT + 20, y, "key", text);
	}
}

static void draw_line(FILE *out, double x1, double y1, double x2, double y2)
{
	fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", x1, y1, x2, y2);
}

static void draw_frames(const struct canvas *canvas)
{
	fprintf(canvas->out,
		"<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n"
		"<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
		LEFT, SHARES_TOP, RIGHT - LEFT, SHARES_BOTTOM - SHARES_TOP, LEFT, CDF_TOP,
		RIGHT - LEFT, CDF_BOTTOM - CDF_TOP);
}

static void draw_latency_axis(const struct canvas *canvas)
{
	/* Labels at 1-2-5 steps if there is room, otherwise at powers of ten. */
	bool all = canvas->log_high - canvas->log_low <= 4;
	double log_ns = round_125(canvas->log_low, true);

	while (log_ns <= canvas->log_high + 1e-6) {
		double x = x_of_log(canvas, log_ns);
		char label[SVG_DURATION_BYTES];

		if (all || fabs(log_ns - floor(log_ns + 0.5)) < 1e-6) {
			draw_line(canvas->out, x, SHARES_TOP, x, SHARES_BOTTOM);
			draw_line(canvas->out, x, CDF_TOP, x, CDF_BOTTOM);
			svg_label(canvas->out, x, CDF_BOTTOM + 18, "middle",
				svg_duration(label, pow(10, log_ns)));
			svg_label(canvas->out, x, SHARES_BOTTOM + 18, "middle", label);
		}
		log_ns = round_125(log_ns + 0.01, true);
	}
	svg_label(canvas->out, (LEFT + RIGHT) / 2.0, CDF_BOTTOM + 42, "middle",
		"latency, from submit to completion");
}

static void draw_share_axis(const struct canvas *canvas)
{
	char label[SVG_DURATION_BYTES];

	for (int i = 0; i * canvas->share_step <= canvas->share_max * (1 + 1e-9); i++) {
		double y = y_of_share(canvas, i * canvas->share_step);

		draw_line(canvas->out, LEFT, y, RIGHT, y);
		snprintf(label, sizeof(label), "%.3g %%", 100 * i * canvas->share_step);
		svg_label(canvas->out, LEFT - 8, y + 4, "end", label);
	}
	svg_label(canvas->out, LEFT, SHARES_TOP - 4, "axis", "share of requests");
}

static void draw_nines_axis(const struct canvas *canvas)
{
	double median = y_of_nines(canvas, log10(2));
	char label[SVG_DURATION_BYTES];

	if (canvas->nines <= 4) {
		draw_line(canvas->out, LEFT, median, RIGHT, median);
		svg_label(canvas->out, LEFT - 8, median + 4, "end", "50 %");
	}
	for (int i = 0; i <= (int)canvas->nines; i++) {
		double y = y_of_nines(canvas, i);

		draw_line(canvas->out, LEFT, y, RIGHT, y);
		snprintf(label, sizeof(label), "%.*f %%", MAX(0, i - 2), 100 - pow(10, 2 - i));
		svg_label(canvas->out, LEFT - 8, y + 4, "end", label);
	}
	svg_label(canvas->out, LEFT, CDF_TOP - 4, "axis",
		"share of requests that completed within this latency");
}

static void draw_shares(const struct canvas *canvas, uint32_t which)
{
	double step = (canvas->log_high - canvas->log_low) / BINS;

	fprintf(canvas->out, "<path class=\"area\" fill=\"%s\" stroke=\"%s\" d=\"M%d %d",
		colours[which], colours[which], LEFT, SHARES_BOTTOM);
	for (uint32_t i = 0; i < BINS; i++) {
		fprintf(canvas->out, "V%.1fH%.1f", y_of_share(canvas, canvas->bins[which][i]),
			x_of_log(canvas, canvas->log_low + step * (i + 1)));
	}
	fprintf(canvas->out, "V%dZ\"/>\n", SHARES_BOTTOM);
}

static void draw_curve(const struct canvas *canvas, uint32_t which)
{
	const struct histogram *latency = canvas->plot->series[which].latency_ns;
	double x_last = x_of_log(canvas, log_of(latency->minimum));
	double y_last = CDF_BOTTOM;
	uint64_t seen = 0;

	fprintf(canvas->out, "<path class=\"curve\" stroke=\"%s\" d=\"M%.1f %.1f", colours[which],
		x_last, y_last);
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS && seen < latency->count; i++) {
		uint64_t left;
		double x;
		double y;

		if (latency->buckets[i] == 0) {
			continue;
		}
		seen += latency->buckets[i];
		left = latency->count - seen;
		x = x_of_log(canvas, log_of(MIN(histogram_highest(i), latency->maximum)));
		y = left == 0 ? CDF_TOP
			      : y_of_nines(canvas, log10((double)latency->count / (double)left));
		/* Skips points that cannot be distinguished from the last one, to keep the file
		 * short. */
		if (left == 0 || fabs(x - x_last) >= 0.5 || fabs(y - y_last) >= 0.5) {
			fprintf(canvas->out, "L%.1f %.1f", x, y);
			x_last = x;
			y_last = y;
		}
	}
	fputs("\"/>\n", canvas->out);
}

int bench_plot_write(FILE *out, const struct bench_plot *plot, struct error *error)
{
	struct canvas canvas = { .out = out, .plot = plot };
	const struct svg_head head = {
		.width = WIDTH,
		.height = HEIGHT,
		.x = LEFT,
		.title = plot->title,
		.subtitle = plot->subtitle,
		.style = ".area { fill-opacity: 0.35; stroke-width: 1 }\n"
			 ".curve { fill: none; stroke-width: 2; stroke-linejoin: round }\n",
	};

	GMB_ASSERT(plot->series_count >= 1);
	GMB_ASSERT(plot->series_count <= BENCH_PLOT_SERIES_MAX);
	canvas_measure(&canvas);
	canvas_bin(&canvas);
	svg_begin(out, &head);
	draw_legend(&canvas);
	draw_latency_axis(&canvas);
	draw_share_axis(&canvas);
	draw_nines_axis(&canvas);
	for (uint32_t i = 0; i < plot->series_count; i++) {
		draw_shares(&canvas, i);
		draw_curve(&canvas, i);
	}
	draw_frames(&canvas);
	return svg_end(out, error);
}
