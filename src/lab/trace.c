// SPDX-License-Identifier: Apache-2.0
/*
 * Options of "gmblock trace" in builds with the lab. Options that are only for requests are
 * recognized here, and parsed by cmd_trace().
 */
#include "lab/lab.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"

enum { COUNT_DEFAULT = 8, CHUNK_BYTES_DEFAULT = 4096 };

struct trace_arguments {
	struct trace_work work;
	uint32_t count; /* 0: not given */
	/* name of the first given option that is only for requests; NULL: none */
	const char *for_request;
	bool request;
	bool json;
};

static const char usage_text[] =
	"Usage: gmblock trace [OPTION]... DEVICE|FILE\n"
	"       gmblock trace --request [OPTION]... [--server SERVER]\n"
	"\n"
	"Reads from a disk and shows when each chunk of the data arrives in memory: how many\n"
	"streams fill at a time, in which order, and how early a sender could start. Never writes\n"
	"to the disk. Keeps one processor busy while it reads.\n"
	"\n"
	"With --request, waits for requests to a server on this machine, and shows where the\n"
	"time of each was spent.\n";

static const char notes[] =
	"\n"
	"Examples:\n"
	"  gmblock trace --size 1M --json /dev/nvme0n1 | gmblock-plot -o arrivals.svg\n"
	"  gmblock trace --request --min-size 256K --timeout 10s nbd://localhost/data\n";

/* --- values -------------------------------------------------------------------------------- */

static int take_bytes(const char *text, uint64_t max, uint64_t *bytes, struct error *error)
{
	char most[UNITS_TEXT_BYTES];
	int rc = units_parse_bytes(text, bytes, error);

	if (rc == 0 && *bytes > max) {
		rc = error_set(error, -ERANGE, "the value must be at most %s",
			units_format_bytes(most, max));
	}
	if (rc == 0 && *bytes % TRACE_UNIT_BYTES != 0) {
		rc = error_set(error, -EINVAL, "%s is not a multiple of %d bytes",
			units_format_bytes(most, *bytes), TRACE_UNIT_BYTES);
	}
	return rc;
}

static int take_length(const char *text, uint32_t *length, struct error *error)
{
	uint64_t bytes = 0;
	int rc = take_bytes(text, TRACE_BYTES_MAX, &bytes, error);

	*length = (uint32_t)bytes;
	return rc == 0 && bytes == 0 ? error_set(error, -ERANGE, "the size must not be 0") : rc;
}

static int lab_trace_take_size(void *context, const char *text, struct error *error)
{
	struct trace_work *work = &((struct trace_arguments *)context)->work;

	return work->size_count == TRACE_SIZES_MAX
		       ? error_set(error, -EINVAL, "at most %d sizes can be given", TRACE_SIZES_MAX)
		       : take_length(text, &work->sizes[work->size_count++], error);
}

static int take_offset(void *context, const char *text, struct error *error)
{
	struct trace_arguments *arguments = context;

	return take_bytes(text, INT64_MAX, &arguments->work.offset, error);
}

static int lab_trace_take_chunk(void *context, const char *text, struct error *error)
{
	struct trace_arguments *arguments = context;

	return take_length(text, &arguments->work.chunk_bytes, error);
}

/* --- the command line ---------------------------------------------------------------------- */

static int lab_trace_sizes_check(const struct trace_work *work)
{
	uint64_t chunks = 0;

	for (uint32_t i = 0; i < work->size_count; i++) {
		uint32_t size = work->sizes[i];

		chunks += (uint64_t)work->count *
			  ((size + work->chunk_bytes - 1) / work->chunk_bytes);
	}
	if (chunks > TRACE_CHUNKS_MAX) {
		return cli_usage_error("trace",
			"%llu chunks are too many to record: use a larger --chunk, or a smaller "
			"--count or --size",
			(unsigned long long)chunks);
	}
	return CLI_GO_ON;
}

/* Checks the combination of options, and sets defaults. */
static int lab_trace_disk_check(struct trace_arguments *arguments, const char *path)
{
	struct trace_work *work = &arguments->work;

	work->path = path;
	if (work->path == NULL) {
		return cli_usage_error("trace", "no disk given: name a block device or a file");
	}
	if (strstr(work->path, "://") != NULL && access(work->path, F_OK) != 0) {
		return cli_usage_error("trace",
			"'%s' is a URI, but this command reads disks of this machine; to trace "
			"requests to a server: gmblock trace --request %s",
			quote(work->path), quote(work->path));
	}
	if (work->path[0] != '\0' && strspn(work->path, "0123456789") == strlen(work->path) &&
		access(work->path, F_OK) != 0) {
		return cli_usage_error("trace",
			"no disk '%s'; to trace requests to the server with this process ID: "
			"gmblock trace --request %s",
			work->path, work->path);
	}
	if (work->size_count == 0) {
		work->sizes[work->size_count++] = 1 << 20;
	}
	for (uint32_t i = 0; i < work->size_count; i++) {
		if (work->chunk_bytes > work->sizes[i]) {
			return cli_usage_error("trace",
				"--chunk: a chunk must not be larger than a read (--size)");
		}
	}
	if (work->chunk_bytes == 0) {
		work->chunk_bytes = CHUNK_BYTES_DEFAULT;
	}
	work->count = arguments->count > 0 ? arguments->count : COUNT_DEFAULT;
	return lab_trace_sizes_check(work);
}

/* Returns the first given option that is only for disks, or NULL. */
static const char *disk_option(const struct trace_arguments *arguments)
{
	const struct trace_work *work = &arguments->work;
	const struct {
		const char *name;
		bool given;
	} options[] = {
		{ "size", work->size_count > 0 },
		{ "offset", work->offset > 0 },
		{ "chunk", work->chunk_bytes > 0 },
		{ "cached", work->cached },
	};

	for (size_t i = 0; i < ARRAY_COUNT(options); i++) {
		if (options[i].given) {
			return options[i].name;
		}
	}
	return NULL;
}

#define AT(member) FIELD_IN(struct trace_arguments, member)

static const struct field fields[] = {
	{ "size", "SIZE", "size of a read, a multiple of 512 (default 1M); can be repeated",
		.heading = "Of disks:", .set = lab_trace_take_size },
	{ "offset", "SIZE", "offset on the disk at which the reads begin (default 0)",
		.set = take_offset },
	{ "chunk", "SIZE",
		"size of the chunks whose arrival is watched, a multiple of 512 (default 4K)",
		.set = lab_trace_take_chunk },
	{ "cached", NULL, "read through the page cache instead of with direct I/O",
		.type = FIELD_FLAG, AT(work.cached) },
	/* These options are parsed by cmd_trace(). */
	{ "request", NULL, "trace requests to a server instead of reads from a disk",
		.heading = "Of requests:", .type = FIELD_FLAG, AT(request) },
	{ "min-size", "SIZE", "smallest size of the requests to trace", .type = FIELD_ARGUMENT,
		AT(for_request) },
	{ "operation", "OP",
		"operation to trace: read, write, flush, trim, zero, cache or extents; can be "
		"repeated (default: all)",
		.type = FIELD_ARGUMENT, AT(for_request) },
	{ "export", "NAME",
		"export whose requests are traced; \"\" is the default export (default: all "
		"exports)",
		.type = FIELD_ARGUMENT, AT(for_request) },
	{ "timeout", "TIME", "time after which to stop waiting for requests",
		.type = FIELD_ARGUMENT, AT(for_request) },
	{ "server", "SERVER",
		CLI_SERVER_HELP "; the last argument can also be SERVER, without --server",
		.type = FIELD_ARGUMENT, AT(for_request) },
	{ "count", "N",
		"number of reads of each size (default 8), or with --request the number of "
		"requests (default 1)",
		.heading = "Of both:", .type = FIELD_COUNT, .min = 1, .max = TRACE_COUNT_MAX,
		AT(count) },
	{ "json", NULL, "print JSON", .type = FIELD_FLAG, AT(json) },
};

/* Records the name of an option that is only for requests, if it is the first one. */
static int set_field(
	void *context, const struct field *field, const char *text, struct error *error)
{
	struct trace_arguments *arguments = context;
	bool is_for_request = field->offset == offsetof(struct trace_arguments, for_request) &&
			      field->type == FIELD_ARGUMENT;
	int rc = 0;

	if (is_for_request && arguments->for_request == NULL) {
		arguments->for_request = field->key;
	}
	if (!is_for_request) {
		rc = field_set(field, context, text, error);
	}
	if (rc < 0) {
		error_prefix(error, "--%s", field->key);
	}
	return rc;
}

static int lab_trace_arguments_parse(int argc, char **argv, struct trace_arguments *arguments)
{
	const struct cli_command command = { .name = "trace",
		.usage = usage_text,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = arguments,
		.set = set_field };
	const char *path = NULL;
	int status = cli_parse(&command, argc, argv);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (arguments->request) {
		const char *name = disk_option(arguments);

		return name == NULL ? CLI_GO_ON
				    : cli_usage_error("trace",
					      "--%s is only for a disk, not for --request", name);
	}
	if (arguments->for_request != NULL) {
		return cli_usage_error("trace", "--%s needs --request", arguments->for_request);
	}
	status = cli_operand("trace", "disk", argc, argv, &path);
	return status == CLI_GO_ON ? lab_trace_disk_check(arguments, path) : status;
}

/* --- the command --------------------------------------------------------------------------- */

/* Chooses a random marker, so that data on the disk cannot be prepared to contain it. */
static int choose_marker(struct trace_work *work, struct error *error)
{
	if (getrandom(&work->marker, sizeof(work->marker), 0) != sizeof(work->marker)) {
		return error_set(error, -errno, "cannot get random bytes: %s", strerror(errno));
	}
	return 0;
}

static int trace(const struct trace_arguments *arguments)
{
	const struct trace_work *work = &arguments->work;
	struct trace_result result = { .group_count = 0 };
	struct error error;
	int err = trace_run(work, &result, &error);

	if (err == 0) {
		err = arguments->json ? trace_show_json(work, &result, &error)
				      : trace_show_text(work, &result, &error);
	}
	if (err == 0 && result.interrupted) {
		err = error_set(&error, -EINTR, "interrupted after %u of %u reads",
			result.read_count, work->size_count * work->count);
	}
	trace_result_fini(&result);
	return err != 0 ? cli_failure("trace", &error) : CLI_OK;
}

static int lab_trace_run(struct trace_arguments *arguments)
{
	struct error error;

	if (choose_marker(&arguments->work, &error) != 0) {
		return cli_failure("trace", &error);
	}
	return trace(arguments);
}

int lab_trace(int argc, char **argv)
{
	struct trace_arguments arguments = { .request = false };
	int status = lab_trace_arguments_parse(argc, argv, &arguments);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (arguments.request) {
		optind = 0; /* restarts getopt() */
		return cmd_trace(argc, argv);
	}
	return lab_trace_run(&arguments);
}
