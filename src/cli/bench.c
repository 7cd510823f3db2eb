// SPDX-License-Identifier: Apache-2.0
#include "tools/bench.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "nbd/uri.h"
#include "tools/bench_plot.h"
#include "tools/svg.h"

enum { QUOTE_BYTES = 256, PERCENT_UNSET = UINT32_MAX };

#define SECONDS_MAX	   1e6
#define TIMEOUT_DEFAULT_NS UINT64_C(30000000000)

struct bench_arguments {
	struct bench_work work;
	uint32_t read_percent; /* PERCENT_UNSET */
	bool connections_set;
	const char *plot_path;
	struct svg_file plot;
	bool json;
};

static const char usage_text[] =
	"Usage: gmblock bench [OPTION]... URI\n"
	"\n"
	"Measures an export: requests a second, bytes a second, latencies, processor time.\n"
	"The patterns with write in their names, and rw, overwrite what is on the export.\n"
	"\n"
	"  URI               nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH\n"
	"  --rw PATTERN      read, write, randread, randwrite, rw or randrw (default randread)\n"
	"  --read-percent N  of rw and randrw: how many requests read (default 50)\n"
	"  --bs SIZE         bytes of a request (default 4K)\n"
	"  --depth N         requests in flight per connection (default 64)\n"
	"  --connections N   connections (default 1), or auto: as the library chooses\n"
	"  --threads N       threads that share the connections (default 1)\n"
	"  --seconds T       how long to measure (default 10)\n"
	"  --warmup T        seconds before that, which do not count (default 0)\n"
	"  --requests N      end after so many requests\n"
	"  --offset SIZE     where the range begins (default 0)\n"
	"  --size SIZE       how long it is (default: up to the end)\n"
	"  --seed N          of the random places and contents (default: another each time)\n"
	"  --fua             each write is durable before it is done\n"
	"  --timeout TIME    give up on a server that is silent for so long (default 30s)\n"
	"  --plot FILE       draw the latencies, as SVG\n"
	"  --json            for programs\n"
	"  --help            this text\n";

/* --- values: each returns an exit status, or -1 to go on ----------------------------------- */

static int take_pattern(struct bench_arguments *arguments, const char *text)
{
	static const struct {
		const char *name;
		bool random;
		uint32_t read_percent;
	} patterns[] = {
		{ "read", false, 100 },
		{ "write", false, 0 },
		{ "rw", false, 50 },
		{ "randread", true, 100 },
		{ "randwrite", true, 0 },
		{ "randrw", true, 50 },
	};
	char quoted[QUOTE_BYTES];

	for (size_t i = 0; i < ARRAY_COUNT(patterns); i++) {
		if (strcmp(text, patterns[i].name) == 0) {
			arguments->work.rw = patterns[i].name;
			arguments->work.random = patterns[i].random;
			arguments->work.read_percent = patterns[i].read_percent;
			return -1;
		}
	}
	return cli_usage_error("bench",
		"--rw: there is no pattern '%s'; there are read, write, randread, randwrite, rw "
		"and randrw",
		log_escape(quoted, sizeof(quoted), text, strlen(text)));
}

static int take_count(
	const char *option, const char *text, uint32_t min, uint32_t max, uint32_t *count)
{
	struct error error;

	if (units_parse_count(text, min, max, count, &error) != 0) {
		return cli_usage_error("bench", "%s: %s", option, error.text);
	}
	return -1;
}

static int take_connections(struct bench_arguments *arguments, const char *text)
{
	arguments->connections_set = true;
	if (strcmp(text, "auto") == 0) {
		arguments->work.connections = 0;
		return -1;
	}
	return take_count(
		"--connections", text, 1, BENCH_CONNECTIONS_MAX, &arguments->work.connections);
}

/* A size; none of them means anything when it is smaller than min. */
static int take_bytes(const char *option, const char *text, uint64_t min, uint64_t *bytes)
{
	struct error error;

	if (units_parse_bytes(text, bytes, &error) != 0) {
		return cli_usage_error("bench", "%s: %s", option, error.text);
	}
	if (*bytes < min) {
		return cli_usage_error("bench", "%s: it must not be 0", option);
	}
	return -1;
}

static int take_block(struct bench_arguments *arguments, const char *text)
{
	char most[UNITS_TEXT_BYTES];
	uint64_t bytes;
	int status = take_bytes("--bs", text, 1, &bytes);

	if (status < 0 && bytes > BENCH_BLOCK_BYTES_MAX) {
		return cli_usage_error("bench", "--bs: at most %s",
			units_format_bytes(most, BENCH_BLOCK_BYTES_MAX));
	}
	arguments->work.block_bytes = (uint32_t)bytes;
	return status;
}

/* Seconds, also parts of them. */
static int take_seconds(const char *option, const char *text, bool zero_allowed, uint64_t *ns)
{
	char quoted[QUOTE_BYTES];
	char *end;
	double seconds = strtod(text, &end);

	/* strtod() also knows signs, spaces, exponents and words. */
	if (text[0] == '\0' || strspn(text, "0123456789.") != strlen(text) || *end != '\0') {
		return cli_usage_error("bench", "%s: '%s' is not a number of seconds", option,
			log_escape(quoted, sizeof(quoted), text, strlen(text)));
	}
	if (seconds > SECONDS_MAX || (seconds < 1e-6 && !(zero_allowed && seconds == 0))) {
		return cli_usage_error(
			"bench", "%s: from 0.000001 to %.0f seconds", option, SECONDS_MAX);
	}
	*ns = (uint64_t)(seconds * 1e9);
	return -1;
}

static int take_number(const char *option, const char *text, uint64_t *number)
{
	char quoted[QUOTE_BYTES];
	char *end;

	errno = 0;
	*number = strtoull(text, &end, 10);
	if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text) || errno != 0 ||
		*number > INT64_MAX) {
		return cli_usage_error("bench", "%s: '%s' is not a number from 0 to 2^63 - 1",
			option, log_escape(quoted, sizeof(quoted), text, strlen(text)));
	}
	return -1;
}

static int take_requests(struct bench_arguments *arguments, const char *text)
{
	int status = take_number("--requests", text, &arguments->work.requests_max);

	if (status < 0 && arguments->work.requests_max == 0) {
		return cli_usage_error("bench", "--requests: at least 1");
	}
	return status;
}

static int take_timeout(struct bench_arguments *arguments, const char *text)
{
	struct error error;

	if (units_parse_time(text, &arguments->work.timeout_ns, &error) != 0) {
		return cli_usage_error("bench", "--timeout: %s", error.text);
	}
	if (arguments->work.timeout_ns == 0) {
		return cli_usage_error("bench", "--timeout: it must be longer than nothing");
	}
	return -1;
}

/* --- the command line ---------------------------------------------------------------------- */

enum {
	OPT_RW = CLI_OPTION_FIRST,
	OPT_READ_PERCENT,
	OPT_BS,
	OPT_DEPTH,
	OPT_CONNECTIONS,
	OPT_THREADS,
	OPT_SECONDS,
	OPT_WARMUP,
	OPT_REQUESTS,
	OPT_OFFSET,
	OPT_SIZE,
	OPT_SEED,
	OPT_FUA,
	OPT_TIMEOUT,
	OPT_PLOT,
	OPT_JSON,
	OPT_HELP,
};

static int option_take(struct bench_arguments *arguments, int option, const char *text)
{
	struct bench_work *work = &arguments->work;

	switch (option) {
	case OPT_RW:
		return take_pattern(arguments, text);
	case OPT_READ_PERCENT:
		return take_count("--read-percent", text, 0, 100, &arguments->read_percent);
	case OPT_BS:
		return take_block(arguments, text);
	case OPT_DEPTH:
		return take_count("--depth", text, 1, BENCH_DEPTH_MAX, &work->depth);
	case OPT_CONNECTIONS:
		return take_connections(arguments, text);
	case OPT_THREADS:
		return take_count("--threads", text, 1, BENCH_THREADS_MAX, &work->threads);
	case OPT_SECONDS:
		return take_seconds("--seconds", text, false, &work->duration_ns);
	case OPT_WARMUP:
		return take_seconds("--warmup", text, true, &work->warmup_ns);
	case OPT_REQUESTS:
		return take_requests(arguments, text);
	case OPT_OFFSET:
		return take_bytes("--offset", text, 0, &work->offset);
	case OPT_SIZE:
		return take_bytes("--size", text, 1, &work->size);
	case OPT_SEED:
		return take_number("--seed", text, &work->seed);
	case OPT_FUA:
		work->fua = true;
		return -1;
	case OPT_TIMEOUT:
		return take_timeout(arguments, text);
	case OPT_PLOT:
		arguments->plot_path = text;
		return -1;
	case OPT_JSON:
		arguments->json = true;
		return -1;
	default:
		GMB_ASSERT(option == OPT_HELP);
		return cli_print(usage_text);
	}
}

static int buffers_check(const struct bench_work *work)
{
	uint64_t slots = (uint64_t)work->depth * MAX(work->connections, work->threads);
	char most[UNITS_TEXT_BYTES];

	if (slots * work->block_bytes <= BENCH_BUFFERS_BYTES_MAX) {
		return -1;
	}
	return cli_usage_error("bench",
		"%llu requests of %u bytes in flight are more than %s of buffers: less --bs, "
		"--depth or --connections",
		(unsigned long long)slots, work->block_bytes,
		units_format_bytes(most, BENCH_BUFFERS_BYTES_MAX));
}

/* What only makes sense together. */
static int arguments_check(int argc, char **argv, struct bench_arguments *arguments)
{
	struct bench_work *work = &arguments->work;
	char quoted[QUOTE_BYTES];

	if (argc - optind > 1) {
		const char *second = argv[optind + 1];

		return cli_usage_error("bench", "one URI at a time, and not also '%s'",
			log_escape(quoted, sizeof(quoted), second, strlen(second)));
	}
	work->uri = argv[optind]; /* NULL at the end */
	if (work->uri == NULL) {
		return cli_usage_error("bench", "which export? Give a URI");
	}
	if (arguments->read_percent != PERCENT_UNSET) {
		if (strcmp(work->rw, "rw") != 0 && strcmp(work->rw, "randrw") != 0) {
			return cli_usage_error("bench", "--read-percent needs --rw rw or randrw");
		}
		work->read_percent = arguments->read_percent;
	}
	if (work->fua && !bench_writes(work)) {
		return cli_usage_error(
			"bench", "--fua is about writes: --rw %s has none", work->rw);
	}
	if (!arguments->connections_set) {
		work->connections = work->threads;
	} else if (work->connections > 0 && work->threads > work->connections) {
		return cli_usage_error("bench",
			"--threads: each needs a connection, and there are only %u",
			work->connections);
	}
	return buffers_check(work);
}

static int arguments_parse(int argc, char **argv, struct bench_arguments *arguments)
{
	static const struct option options[] = {
		{ "rw", required_argument, NULL, OPT_RW },
		{ "read-percent", required_argument, NULL, OPT_READ_PERCENT },
		{ "bs", required_argument, NULL, OPT_BS },
		{ "depth", required_argument, NULL, OPT_DEPTH },
		{ "connections", required_argument, NULL, OPT_CONNECTIONS },
		{ "threads", required_argument, NULL, OPT_THREADS },
		{ "seconds", required_argument, NULL, OPT_SECONDS },
		{ "warmup", required_argument, NULL, OPT_WARMUP },
		{ "requests", required_argument, NULL, OPT_REQUESTS },
		{ "offset", required_argument, NULL, OPT_OFFSET },
		{ "size", required_argument, NULL, OPT_SIZE },
		{ "seed", required_argument, NULL, OPT_SEED },
		{ "fua", no_argument, NULL, OPT_FUA },
		{ "timeout", required_argument, NULL, OPT_TIMEOUT },
		{ "plot", required_argument, NULL, OPT_PLOT },
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
			return cli_option_error("bench", option, argv);
		}
		status = option_take(arguments, option, optarg);
		if (status >= 0) {
			return status;
		}
	}
	return arguments_check(argc, argv, arguments);
}

/* --- the drawing --------------------------------------------------------------------------- */

static int draw_plot(FILE *out, const void *context, struct error *error)
{
	return bench_plot_write(out, context, error);
}

static int plot_write(
	struct bench_arguments *arguments, const struct bench_result *result, struct error *error)
{
	static const char *const names[BENCH_DIRECTIONS] = { "read", "write" };
	struct bench_plot plot = { .title = NULL };
	char title[BENCH_TITLE_BYTES];

	bench_title(title, &arguments->work, result->connections);
	plot.title = title;
	plot.subtitle = arguments->work.uri;
	for (int i = 0; i < BENCH_DIRECTIONS; i++) {
		if (result->latency_ns[i].count > 0) {
			plot.series[plot.series_count].name = names[i];
			plot.series[plot.series_count].latency_ns = &result->latency_ns[i];
			plot.series_count++;
		}
	}
	return svg_file_write(&arguments->plot, draw_plot, &plot, error);
}

/* --- the command --------------------------------------------------------------------------- */

static int measure(struct bench_arguments *arguments, struct bench_result *result)
{
	struct error error;
	int err;

	if (bench_writes(&arguments->work)) {
		log_warning("--rw %s overwrites what is on the export", arguments->work.rw);
	}
	err = bench_run(&arguments->work, isatty(STDERR_FILENO) == 1, result, &error);
	if (err == 0) {
		err = arguments->json ? bench_show_json(&arguments->work, result, &error)
				      : bench_show_text(&arguments->work, result, &error);
	}
	if (err == 0 && arguments->plot.fd >= 0) {
		err = plot_write(arguments, result, &error);
	}
	if (err == 0 && result->interrupted) {
		err = error_set(&error, -EINTR, "interrupted before the time was over");
	}
	return err != 0 ? cli_failure("bench", &error) : CLI_OK;
}

/* Good enough to differ from run to run. */
static uint64_t seed_of_the_moment(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return ((uint64_t)now.tv_sec << 30) ^ (uint64_t)now.tv_nsec;
}

int cmd_bench(int argc, char **argv)
{
	struct bench_arguments arguments = {
		.work = {
			.rw = "randread",
			.random = true,
			.read_percent = 100,
			.block_bytes = 4096,
			.depth = 64,
			.threads = 1,
			.duration_ns = UINT64_C(10000000000),
			.seed = seed_of_the_moment(),
			.timeout_ns = TIMEOUT_DEFAULT_NS,
		},
		.read_percent = PERCENT_UNSET,
		.plot = { .fd = -1 },
	};
	struct bench_result *result;
	struct nbd_uri uri;
	struct error error;
	int status = arguments_parse(argc, argv, &arguments);

	if (status >= 0) {
		return status;
	}
	if (nbd_uri_parse(arguments.work.uri, &uri, &error) != 0) {
		return cli_usage_error("bench", "%s", error.text);
	}
	nbd_uri_fini(&uri);
	if (arguments.plot_path != NULL &&
		svg_file_open(&arguments.plot, arguments.plot_path, &error) != 0) {
		return cli_failure("bench", &error);
	}
	result = calloc(1, sizeof(*result));
	if (result == NULL) {
		error_set(&error, -ENOMEM, "out of memory");
		status = cli_failure("bench", &error);
	} else {
		status = measure(&arguments, result);
	}
	free(result);
	svg_file_close(&arguments.plot);
	return status;
}
