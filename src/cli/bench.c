// SPDX-License-Identifier: Apache-2.0
#include "tools/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"

enum { REQUESTS_PER_S_MAX = 100000000, PERCENT_UNSET = UINT32_MAX };

#define SECONDS_MAX	   UINT64_C(1000000)
#define NS_PER_S	   UINT64_C(1000000000)
#define NS_PER_US	   UINT64_C(1000)
#define RATE_BYTES_MAX	   (UINT64_C(1) << 40)
#define TIMEOUT_DEFAULT_NS UINT64_C(30000000000)

struct bench_arguments {
	struct bench_work work;
	uint32_t read_percent; /* 0 to 100, or PERCENT_UNSET */
	uint64_t block_bytes;
	bool connections_set;
	bool json;
};

static const char usage_text[] =
	"Usage: gmblock bench [OPTION]... URI\n"
	"\n"
	"Measures an export: requests and bytes per second, latencies, processor time.\n"
	"The patterns write, randwrite, rw and randrw overwrite the export. They need --force if\n"
	"the export has contents.\n"
	"\n"
	"  URI               nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH,\n"
	"                    gmb+unix:///EXPORT?socket=PATH, gmb://HOST[:PORT]/EXPORT\n"
	"                    or vhost-user-blk+unix:///?socket=PATH;\n"
	"                    with TLS nbds or nbds+unix (see gmblock(1))\n"
	"\n";

static const char notes[] =
	"\n"
	"Examples:\n"
	"  gmblock bench nbd://storage/data\n"
	"  gmblock bench --rw read --bs 1M --depth 8 --connections 4 nbd://storage/data\n"
	"  gmblock bench --rw write --bs 1M --size 1G --json nbd://storage/scratch\n"
	"  gmblock bench --depth 1 --json nbd://storage/data | gmblock-plot -o latency.svg\n";

/* --- values -------------------------------------------------------------------------------- */

static int take_pattern(void *context, const char *text, struct error *error)
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
	struct bench_arguments *arguments = context;

	for (size_t i = 0; i < ARRAY_COUNT(patterns); i++) {
		if (strcmp(text, patterns[i].name) == 0) {
			arguments->work.rw = patterns[i].name;
			arguments->work.random = patterns[i].random;
			arguments->work.read_percent = patterns[i].read_percent;
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"unknown pattern '%s'; the patterns are read, write, randread, randwrite, rw "
		"and randrw",
		quote(text));
}

static int take_connections(void *context, const char *text, struct error *error)
{
	struct bench_arguments *arguments = context;
	uint32_t *connections = &arguments->work.connections;

	arguments->connections_set = true;
	if (strcmp(text, "auto") == 0) {
		*connections = 0;
		return 0;
	}
	return units_parse_count(text, 1, BENCH_CONNECTIONS_MAX, connections, error);
}

static int take_seconds(const char *text, bool zero_allowed, uint64_t *ns, struct error *error)
{
	int rc = units_parse_seconds(text, ns, error);

	if (rc == 0 && (*ns > SECONDS_MAX * NS_PER_S ||
			       (*ns < NS_PER_US && !(zero_allowed && *ns == 0)))) {
		rc = error_set(error, -ERANGE, "the time must be from 0.000001 to %llu seconds",
			(unsigned long long)SECONDS_MAX);
	}
	return rc;
}

static int take_duration(void *context, const char *text, struct error *error)
{
	struct bench_arguments *arguments = context;

	return take_seconds(text, false, &arguments->work.duration_ns, error);
}

static int take_warmup(void *context, const char *text, struct error *error)
{
	struct bench_arguments *arguments = context;

	return take_seconds(text, true, &arguments->work.warmup_ns, error);
}

static int take_number(const char *text, uint64_t *number, struct error *error)
{
	char *end;

	errno = 0;
	*number = strtoull(text, &end, 10);
	if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text) || errno != 0 ||
		*number > INT64_MAX) {
		return error_set(
			error, -EINVAL, "'%s' is not a number from 0 to 2^63 - 1", quote(text));
	}
	return 0;
}

static int take_seed(void *context, const char *text, struct error *error)
{
	struct bench_arguments *arguments = context;

	return take_number(text, &arguments->work.seed, error);
}

static int take_requests(void *context, const char *text, struct error *error)
{
	struct bench_arguments *arguments = context;
	int rc = take_number(text, &arguments->work.requests_max, error);

	return rc == 0 && arguments->work.requests_max == 0
		       ? error_set(error, -ERANGE, "the number must be at least 1")
		       : rc;
}

/* Parses "100M" (bytes per second) or "requests=5000". */
static int take_rate(void *context, const char *text, struct error *error)
{
	static const char prefix[] = "requests=";
	struct bench_arguments *arguments = context;
	struct bench_work *work = &arguments->work;
	uint32_t requests = 0;
	int err;

	work->rate_bytes = 0;
	if (strncmp(text, prefix, sizeof(prefix) - 1) == 0) {
		err = units_parse_count(
			text + sizeof(prefix) - 1, 1, REQUESTS_PER_S_MAX, &requests, error);
	} else {
		err = units_parse_bytes(text, &work->rate_bytes, error);
		if (err == 0 && (work->rate_bytes == 0 || work->rate_bytes > RATE_BYTES_MAX)) {
			err = error_set(
				error, -EINVAL, "the rate must be from 1 byte to 1T per second");
		}
	}
	work->rate_requests = requests;
	return err;
}

/* --- the command line ---------------------------------------------------------------------- */

static int buffers_check(const struct bench_work *work)
{
	uint64_t slots = (uint64_t)work->depth * MAX(work->connections, work->threads);
	char most[UNITS_TEXT_BYTES];
	char block[UNITS_TEXT_BYTES];

	if (slots * work->block_bytes <= BENCH_BUFFERS_BYTES_MAX) {
		return CLI_GO_ON;
	}
	return cli_usage_error("bench",
		"%llu requests of %s in flight need more than %s of buffers; reduce --bs, --depth "
		"or --connections",
		(unsigned long long)slots, units_format_bytes(block, work->block_bytes),
		units_format_bytes(most, BENCH_BUFFERS_BYTES_MAX));
}

static int bench_arguments_check(struct bench_arguments *arguments)
{
	struct bench_work *work = &arguments->work;
	char most[UNITS_TEXT_BYTES];

	if (arguments->block_bytes > BENCH_BLOCK_BYTES_MAX) {
		return cli_usage_error("bench", "--bs: the request size must be at most %s",
			units_format_bytes(most, BENCH_BLOCK_BYTES_MAX));
	}
	work->block_bytes = (uint32_t)arguments->block_bytes;
	if (work->uri == NULL) {
		return cli_usage_error("bench", "give the URI of an export");
	}
	if (arguments->read_percent != PERCENT_UNSET) {
		if (strcmp(work->rw, "rw") != 0 && strcmp(work->rw, "randrw") != 0) {
			return cli_usage_error("bench", "--read-percent needs --rw rw or randrw");
		}
		work->read_percent = arguments->read_percent;
	}
	if ((work->fua || work->force) && !bench_writes(work)) {
		return cli_usage_error("bench", "--%s needs a pattern with writes, unlike --rw %s",
			work->fua ? "fua" : "force", work->rw);
	}
	if (!arguments->connections_set) {
		work->connections = work->threads;
	} else if (work->connections > 0 && work->threads > work->connections) {
		return cli_usage_error("bench",
			"--threads: each thread needs a connection, but --connections is only %u",
			work->connections);
	}
	return buffers_check(work);
}

#define AT(member) FIELD_IN(struct bench_arguments, member)

static const char *const spin_words[] = { "auto", "off", NULL };

static const struct field fields[] = {
	{ "rw", "PATTERN",
		"access pattern: read, write, randread, randwrite, rw or randrw (default randread)",
		.set = take_pattern },
	{ "read-percent", "N", "percentage of reads in the patterns rw and randrw (default 50)",
		.type = FIELD_COUNT, .max = 100, AT(read_percent) },
	{ "bs", "SIZE", "request size (default 4K)", .type = FIELD_BYTES, .min = 1,
		AT(block_bytes) },
	{ "depth", "N", "number of requests in flight per connection (default 64)",
		.type = FIELD_COUNT, .min = 1, .max = BENCH_DEPTH_MAX, AT(work.depth) },
	{ "connections", "N",
		"number of connections (default: one per thread), or auto: the library chooses the "
		"number",
		.set = take_connections },
	{ "threads", "N", "number of threads that share the connections (default 1)",
		.type = FIELD_COUNT, .min = 1, .max = BENCH_THREADS_MAX, AT(work.threads) },
	{ "seconds", "T", "duration of the measurement, in seconds or with a unit (default 10)",
		.set = take_duration },
	{ "warmup", "T",
		"duration of the warm-up before the measurement, in seconds or with a unit "
		"(default 0)",
		.set = take_warmup },
	{ "requests", "N", "stop after N requests, including those of the warm-up",
		.set = take_requests },
	{ "rate", "RATE",
		"send requests at a fixed rate per second: bytes, such as 100M, or requests=N "
		"(default: as fast as possible)",
		.set = take_rate },
	{ "once", NULL,
		"access each block at most once, and stop when all blocks have been accessed",
		.type = FIELD_FLAG, AT(work.once) },
	{ "offset", "SIZE", "start of the accessed range of the export (default 0)",
		.type = FIELD_BYTES, AT(work.offset) },
	{ "size", "SIZE",
		"length of the accessed range of the export (default: up to the end of the export)",
		.type = FIELD_BYTES, .min = 1, AT(work.size) },
	{ "seed", "N", "seed for random offsets and random data (default: random)",
		.set = take_seed },
	{ "fua", NULL, "make each write durable before it completes", .type = FIELD_FLAG,
		AT(work.fua) },
	{ "force", NULL, "allow writes to an export that contains data, which they overwrite",
		.type = FIELD_FLAG, AT(work.force) },
	{ "spin", NULL,
		"auto (default): poll for replies for up to 50 us before sleeping, if this makes "
		"requests faster; off: do not poll",
		.type = FIELD_WORD, .words = spin_words, AT(work.spin) },
	{ "timeout", "TIME", "give up if the server does not respond for this time (default 30s)",
		.type = FIELD_TIME, .min = 1, AT(work.timeout_ns) },
	{ "json", NULL, "print JSON", .type = FIELD_FLAG, AT(json) },
};

static int bench_arguments_parse(int argc, char **argv, struct bench_arguments *arguments)
{
	struct bench_work *work = &arguments->work;
	const struct cli_command command = { .name = "bench",
		.usage = usage_text,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = arguments };
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_operand("bench", "URI", argc, argv, &work->uri);
	}
	return status == CLI_GO_ON ? bench_arguments_check(arguments) : status;
}

/* --- the command --------------------------------------------------------------------------- */

static int measure(const struct bench_arguments *arguments, struct bench_result *result)
{
	struct error error;
	int err;

	err = bench_run(&arguments->work, isatty(STDERR_FILENO) == 1, result, &error);
	if (err == 0) {
		err = arguments->json ? bench_show_json(&arguments->work, result, &error)
				      : bench_show_text(&arguments->work, result, &error);
	}
	if (err == 0 && result->interrupted) {
		err = error_set(&error, -EINTR, "the measurement was interrupted before its end");
	}
	return err != 0 ? cli_failure("bench", &error) : CLI_OK;
}

/* Returns a seed that differs from run to run. It has at most 53 bits, so that programs that read
 * JSON numbers as doubles get it exactly. */
static uint64_t seed_of_the_moment(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (((uint64_t)now.tv_sec << 30) ^ (uint64_t)now.tv_nsec) & ((UINT64_C(1) << 53) - 1);
}

int cmd_bench(int argc, char **argv)
{
	struct bench_arguments arguments = {
		.work = {
			.rw = "randread",
			.random = true,
			.read_percent = 100,
			.depth = 64,
			.threads = 1,
			.duration_ns = UINT64_C(10000000000),
			.seed = seed_of_the_moment(),
			.timeout_ns = TIMEOUT_DEFAULT_NS,
		},
		.read_percent = PERCENT_UNSET,
		.block_bytes = 4096,
	};
	struct bench_result *result;
	struct export_uri uri;
	struct error error;
	int status = bench_arguments_parse(argc, argv, &arguments);

	if (status == CLI_GO_ON) {
		status = cli_uri("bench", arguments.work.uri, &uri);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	export_uri_fini(&uri);
	result = calloc(1, sizeof(*result));
	if (result == NULL) {
		error_oom(&error);
		status = cli_failure("bench", &error);
	} else {
		status = measure(&arguments, result);
	}
	free(result);
	return status;
}
