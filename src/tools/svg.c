// SPDX-License-Identifier: Apache-2.0
#include "tools/svg.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum { TEXT_BYTES = 1024, QUOTE_BYTES = 256 };

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
