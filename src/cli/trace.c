// SPDX-License-Identifier: Apache-2.0
#include "tools/trace.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "tools/svg.h"
#include "tools/trace_plot.h"

enum { QUOTE_BYTES = 256, MARKER_DIGITS_MAX = 16 };

struct trace_arguments {
	struct trace_work work;
	const char *svg_path;
	bool marker_set;
	bool json;
};

static const char usage_text[] =
	"Usage: gmblock trace [OPTION]... DEVICE|FILE\n"
	"\n"
	"Reads from a disk and shows when each piece of the data arrives in memory: how many\n"
	"places fill at a time, in which order, and how early a sender could begin. Never writes\n"
	"to the disk. Keeps one processor busy while it reads.\n"
	"\n"
	"  --size SIZE    bytes of a read, a multiple of 512 (default 1M); repeat for more sizes\n"
	"  --count N      reads of each size (default 8)\n"
	"  --offset SIZE  where to begin (default 0)\n"
	"  --random       at random places from there on, instead of one after the other\n"
	"  --chunk SIZE   bytes of a piece that is watched, a multiple of 512 (default 4K)\n"
	"  --parts SIZE   split each read into parts, submitted one by one as the server does\n"
	"  --together     submit the parts with one system call: the kernel may merge them\n"
	"  --cached       read through the page cache instead of directly\n"
	"  --marker HEX   what is put into the memory before (default: random)\n"
	"  --svg FILE     draw the typical read of each size\n"
	"  --json         for programs\n"
	"  --help         this text\n";

/* --- values: each returns an exit status, or -1 to go on ----------------------------------- */

static int take_bytes(const char *option, const char *text, uint64_t max, uint64_t *bytes)
{
	struct error error;
	char most[UNITS_TEXT_BYTES];

	if (units_parse_bytes(text, bytes, &error) != 0) {
		return cli_usage_error("trace", "%s: %s", option, error.text);
	}
	if (*bytes > max) {
		return cli_usage_error(
			"trace", "%s: at most %s", option, units_format_bytes(most, max));
	}
	if (*bytes % TRACE_UNIT_BYTES != 0) {
		return cli_usage_error("trace", "%s: %s is not a multiple of %d", option,
			units_format_bytes(most, *bytes), TRACE_UNIT_BYTES);
	}
	return -1;
}

static int take_length(const char *option, const char *text, uint32_t *length)
{
	uint64_t bytes = 0;
	int status = take_bytes(option, text, TRACE_BYTES_MAX, &bytes);

	if (status < 0 && bytes == 0) {
		return cli_usage_error("trace", "%s: it must not be 0", option);
	}
	*length = (uint32_t)bytes;
	return status;
}

static int take_size(struct trace_work *work, const char *text)
{
	if (work->size_count == TRACE_SIZES_MAX) {
		return cli_usage_error("trace", "--size: at most %d of them", TRACE_SIZES_MAX);
	}
	return take_length("--size", text, &work->sizes[work->size_count++]);
}

static int take_count(struct trace_work *work, const char *text)
{
	struct error error;

	if (units_parse_count(text, 1, TRACE_COUNT_MAX, &work->count, &error) != 0) {
		return cli_usage_error("trace", "--count: %s", error.text);
	}
	return -1;
}

static int take_marker(struct trace_arguments *arguments, const char *text)
{
	char quoted[QUOTE_BYTES];
	size_t length = strlen(text);

	if (length == 0 || length > MARKER_DIGITS_MAX ||
		strspn(text, "0123456789abcdefABCDEF") != length) {
		return cli_usage_error("trace",
			"--marker: '%s' is not a number of 1 to %d hex "
			"digits",
			log_escape(quoted, sizeof(quoted), text, length), MARKER_DIGITS_MAX);
	}
	arguments->work.marker = strtoull(text, NULL, 16);
	arguments->marker_set = true;
	return -1;
}

/* --- the command line ---------------------------------------------------------------------- */

enum {
	OPT_SIZE = CLI_OPTION_FIRST,
	OPT_COUNT,
	OPT_OFFSET,
	OPT_RANDOM,
	OPT_CHUNK,
	OPT_PARTS,
	OPT_TOGETHER,
	OPT_CACHED,
	OPT_MARKER,
	OPT_SVG,
	OPT_JSON,
	OPT_HELP,
};

static int option_take(struct trace_arguments *arguments, int option, const char *text)
{
	struct trace_work *work = &arguments->work;

	switch (option) {
	case OPT_SIZE:
		return take_size(work, text);
	case OPT_COUNT:
		return take_count(work, text);
	case OPT_OFFSET:
		return take_bytes("--offset", text, INT64_MAX, &work->offset);
	case OPT_RANDOM:
		work->random = true;
		return -1;
	case OPT_CHUNK:
		return take_length("--chunk", text, &work->chunk_bytes);
	case OPT_PARTS:
		return take_length("--parts", text, &work->part_bytes);
	case OPT_TOGETHER:
		work->together = true;
		return -1;
	case OPT_CACHED:
		work->cached = true;
		return -1;
	case OPT_MARKER:
		return take_marker(arguments, text);
	case OPT_SVG:
		arguments->svg_path = text;
		return -1;
	case OPT_JSON:
		arguments->json = true;
		return -1;
	default:
		GMB_ASSERT(option == OPT_HELP);
		return cli_print(usage_text);
	}
}

static int sizes_check(const struct trace_work *work)
{
	uint64_t chunks = 0;

	for (uint32_t i = 0; i < work->size_count; i++) {
		uint32_t size = work->sizes[i];

		chunks += (uint64_t)work->count *
			  ((size + work->chunk_bytes - 1) / work->chunk_bytes);
		if (work->part_bytes > 0 && size > (uint64_t)work->part_bytes * TRACE_PARTS_MAX) {
			return cli_usage_error("trace",
				"--parts: they would be more than %d parts of one read",
				TRACE_PARTS_MAX);
		}
	}
	if (chunks > TRACE_CHUNKS_MAX) {
		return cli_usage_error("trace",
			"%llu chunks are too many to remember: a larger --chunk, or less --count "
			"or --size",
			(unsigned long long)chunks);
	}
	return -1;
}

/* What only makes sense together. */
static int arguments_check(int argc, char **argv, struct trace_arguments *arguments)
{
	struct trace_work *work = &arguments->work;
	char quoted[QUOTE_BYTES];

	if (argc - optind > 1) {
		const char *second = argv[optind + 1];

		return cli_usage_error("trace", "one disk at a time, and not also '%s'",
			log_escape(quoted, sizeof(quoted), second, strlen(second)));
	}
	work->path = argv[optind]; /* NULL at the end */
	if (work->path == NULL) {
		return cli_usage_error("trace", "which disk? Give a block device or a file");
	}
	if (work->together && work->part_bytes == 0) {
		return cli_usage_error("trace", "--together needs --parts");
	}
	if (work->size_count == 0) {
		work->sizes[work->size_count++] = 1 << 20;
	}
	return sizes_check(work);
}

static int arguments_parse(int argc, char **argv, struct trace_arguments *arguments)
{
	static const struct option options[] = {
		{ "size", required_argument, NULL, OPT_SIZE },
		{ "count", required_argument, NULL, OPT_COUNT },
		{ "offset", required_argument, NULL, OPT_OFFSET },
		{ "random", no_argument, NULL, OPT_RANDOM },
		{ "chunk", required_argument, NULL, OPT_CHUNK },
		{ "parts", required_argument, NULL, OPT_PARTS },
		{ "together", no_argument, NULL, OPT_TOGETHER },
		{ "cached", no_argument, NULL, OPT_CACHED },
		{ "marker", required_argument, NULL, OPT_MARKER },
		{ "svg", required_argument, NULL, OPT_SVG },
		{ "json", no_argument, NULL, OPT_JSON },
		{ "help", no_argument, NULL, OPT_HELP },
		{ 0 },
	};
	int option;

	optind = 0; /* starts over, also after another parser has run */
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
		int status;

		if (option == '?' || option == ':') {
			return cli_option_error("trace", option, argv);
		}
		status = option_take(arguments, option, optarg);
		if (status >= 0) {
			return status;
		}
	}
	return arguments_check(argc, argv, arguments);
}

/* --- the command --------------------------------------------------------------------------- */

/* What disks hold must not be able to guess it. */
static int choose_marker(struct trace_work *work, struct error *error)
{
	if (getrandom(&work->marker, sizeof(work->marker), 0) != sizeof(work->marker)) {
		return error_set(error, -errno, "cannot get random bytes: %s", strerror(errno));
	}
	return 0;
}

static int draw_plot(FILE *out, const void *context, struct error *error)
{
	return trace_plot_write(out, context, error);
}

static int write_svg(struct svg_file *file, const struct trace_work *work,
	const struct trace_result *result, struct error *error)
{
	char titles[TRACE_PLOT_PANELS_MAX][TRACE_TITLE_BYTES];
	struct trace_plot plot = {
		.title = "When the data of a read arrive in memory",
		.subtitle = work->path,
		.panel_count = result->group_count,
	};

	for (uint32_t i = 0; i < result->group_count; i++) {
		const struct trace_group *group = &result->groups[i];

		trace_title(titles[i], work, group->bytes);
		plot.panels[i].title = titles[i];
		plot.panels[i].read = &group->reads[group->typical];
	}
	return svg_file_write(file, draw_plot, &plot, error);
}

static int trace(const struct trace_arguments *arguments, struct svg_file *svg)
{
	const struct trace_work *work = &arguments->work;
	struct trace_result result = { .group_count = 0 };
	struct error error;
	int err = trace_run(work, &result, &error);

	if (err == 0) {
		err = arguments->json ? trace_show_json(work, &result, &error)
				      : trace_show_text(work, &result, &error);
	}
	if (err == 0 && svg->fd >= 0) {
		err = write_svg(svg, work, &result, &error);
	}
	trace_result_fini(&result);
	return err != 0 ? cli_failure("trace", &error) : CLI_OK;
}

int cmd_trace(int argc, char **argv)
{
	struct trace_arguments arguments = { .work = { .count = 8, .chunk_bytes = 4096 } };
	struct svg_file svg = { .fd = -1 };
	struct error error;
	int status = arguments_parse(argc, argv, &arguments);

	if (status >= 0) {
		return status;
	}
	if (!arguments.marker_set && choose_marker(&arguments.work, &error) != 0) {
		return cli_failure("trace", &error);
	}
	if (arguments.svg_path != NULL && svg_file_open(&svg, arguments.svg_path, &error) != 0) {
		return cli_failure("trace", &error);
	}
	status = trace(&arguments, &svg);
	svg_file_close(&svg);
	return status;
}
