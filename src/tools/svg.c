// SPDX-License-Identifier: Apache-2.0
#include "tools/svg.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum { TEXT_BYTES = 1024, QUOTE_BYTES = 256, TICKS_MAX = 5 };

void svg_text(FILE *out, const char *text)
{
	char escaped[TEXT_BYTES];

	log_escape(escaped, sizeof(escaped), text, strlen(text));
	for (const char *p = escaped; *p != '\0'; p++) {
		if (*p == '&') {
			fputs("&amp;", out);
		} else if (*p == '<') {
			fputs("&lt;", out);
		} else if (*p == '>') {
			fputs("&gt;", out);
		} else if (strncmp(p, "\xef\xbf\xbe", 3) == 0 ||
			   strncmp(p, "\xef\xbf\xbf", 3) == 0) {
			/* U+FFFE and U+FFFF are valid UTF-8 and no XML. */
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
	/* Requests are powers of two more often than of ten. */
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

static int explain(const struct svg_file *file, int err, struct error *error)
{
	char quoted[QUOTE_BYTES];

	return error_set(error, err, "cannot write the plot to %s: %s",
		log_escape(quoted, sizeof(quoted), file->path, strlen(file->path)), strerror(-err));
}

int svg_file_open(struct svg_file *file, const char *path, struct error *error)
{
	*file = (struct svg_file){ .path = path, .fd = -1 };
	file->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	file->is_new = file->fd >= 0;
	if (file->fd < 0 && errno == EEXIST) {
		file->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	}
	return file->fd < 0 ? explain(file, -errno, error) : 0;
}

int svg_file_write(
	struct svg_file *file, svg_draw_fn *draw, const void *context, struct error *error)
{
	struct stat stat;
	FILE *out = fdopen(file->fd, "w");
	int err;

	if (out == NULL) {
		return explain(file, -errno, error);
	}
	/* A pipe or a terminal has no length. */
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
		return explain(file, err, error);
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
