// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "tools/push.h"

static const char name[] = "push";

#define TIMEOUT_DEFAULT_NS UINT64_C(10000000000)

static const char help[] =
	"Usage: gmblock push [OPTION]... SOURCE DESTINATION\n"
	"       gmblock push --list|--status JOB|--cancel JOB URI\n"
	"Makes one server push a disk directly to another server; no data passes through this\n"
	"command.\n"
	"\n"
	"  SOURCE, DESTINATION    push+unix:///EXPORT?socket=PATH or\n"
	"                         push://HOST[:PORT]/EXPORT; a DESTINATION without push:\n"
	"                         nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH, and\n"
	"                         over TLS nbds://... or nbds+unix://...\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock push 'push+unix:///disk?socket=a.sock' push://backup/disk\n"
			    "  gmblock push --list push://backup\n";

enum { EXIT_SIGNAL = 128 }; /* exit status of a command that was stopped: 128 + signal */

struct push_arguments {
	struct push_options options;
	bool has_to;
	bool list;
	uint64_t status; /* 0: not given */
	uint64_t cancel;
};

static int cli_push_take_range(void *context, const char *text, struct error *error)
{
	struct push_arguments *arguments = context;
	const char *plus = strchr(text, '+');
	char offset[64];
	int rc;

	if (plus == NULL || (size_t)(plus - text) >= sizeof(offset)) {
		return error_set(error, -EINVAL, "write the range as OFFSET+LENGTH, such as 0+64M");
	}
	memcpy(offset, text, (size_t)(plus - text));
	offset[plus - text] = '\0';
	rc = units_parse_bytes(offset, &arguments->options.offset, error);
	rc = rc ?: units_parse_bytes(plus + 1, &arguments->options.length, error);
	return rc == 0 && arguments->options.length == 0
		       ? error_set(error, -EINVAL, "the length of the range must not be 0")
		       : rc;
}

static int take_to(void *context, const char *text, struct error *error)
{
	struct push_arguments *arguments = context;

	arguments->has_to = true;
	return units_parse_bytes(text, &arguments->options.target_offset, error);
}

static int take_push_connections(void *context, const char *text, struct error *error)
{
	struct push_arguments *arguments = context;

	return cli_connections(text, PUSH_CONNECTIONS_MAX, PUSH_CONNECTIONS_AUTO,
		&arguments->options.connections, error);
}

static int take_verify(void *context, const char *text, struct error *error)
{
	struct push_arguments *arguments = context;

	arguments->options.read_back = true;
	return text == NULL || strcmp(text, "read") == 0
		       ? 0
		       : error_set(error, -EINVAL,
				 "unknown value '%s'; write --verify or --verify=read", text);
}

static const char *const progress_words[] = {
	[COPY_PROGRESS_AUTO] = "auto", [COPY_PROGRESS_ON] = "on", [COPY_PROGRESS_OFF] = "off", NULL
};

static int take_job(uint64_t *job, const char *text, struct error *error)
{
	char *end;

	errno = 0;
	*job = strtoull(text, &end, 16);
	if (errno != 0 || *end != '\0' || *job == 0 || strspn(text, "0123456789abcdef") == 0) {
		return error_set(error, -EINVAL, "'%s' is not a job number", text);
	}
	return 0;
}

static int cli_push_take_status(void *context, const char *text, struct error *error)
{
	return take_job(&((struct push_arguments *)context)->status, text, error);
}

static int cli_push_take_cancel(void *context, const char *text, struct error *error)
{
	return take_job(&((struct push_arguments *)context)->cancel, text, error);
}

/* Returns CLI_GO_ON if the text is the address of a server; otherwise reports wrong usage. */
static int check_address(const char *text, bool is_target)
{
	struct error error;

	return push_address_check(text, is_target, &error) == 0
		       ? CLI_GO_ON
		       : cli_usage_error(name, "%s", error.text);
}

static int run_jobs(const struct push_arguments *arguments, int argc, char **argv)
{
	const struct push_options *options = &arguments->options;
	struct error error = { 0 };
	const char *uri;
	int status = cli_operand(name, "URI", argc, argv, &uri);
	int result;

	if (status != CLI_GO_ON) {
		return status;
	}
	if (uri == NULL) {
		return cli_usage_error(name, "give the URI of a server");
	}
	status = check_address(uri, false);
	if (status != CLI_GO_ON) {
		return status;
	}
	result = arguments->cancel != 0
			 ? push_cancel(uri, arguments->cancel, options->timeout_ns, &error)
			 : push_list(uri, arguments->status, options->json, options->timeout_ns,
				   &error);
	return result == 0 ? CLI_OK : cli_failure(name, &error);
}

#define AT(member) FIELD_IN(struct push_arguments, member)

static const struct field fields[] = {
	{ "range", "OFFSET+LENGTH", "range of the source to push (default: the whole source)",
		.set = cli_push_take_range },
	{ "to-offset", "OFFSET",
		"offset of the range in the destination (default: the offset in the source)",
		.set = take_to },
	{ "rate", "BYTES", "maximum number of bytes that are pushed per second",
		.type = FIELD_BYTES, .min = 1, AT(options.rate) },
	{ "connections", "N",
		"number of connections between the servers, 1 to 8 (default: 1), or auto: as many "
		"as make the push faster",
		.set = take_push_connections },
	{ "resume", NULL,
		"skip the data that an interrupted push has already written to the destination",
		.type = FIELD_FLAG, AT(options.resume) },
	{ "live", NULL,
		"do not take a snapshot of a source that is a flash store; writes that clients "
		"make during the push can also be pushed",
		.type = FIELD_FLAG, AT(options.live) },
	{ "verify", "read", "at the end, read the destination and compare it with the source",
		.set = take_verify, .flags = FIELD_BARE },
	{ "detach", NULL, "print the job number, and do not wait until the push is complete",
		.type = FIELD_FLAG, AT(options.detach) },
	{ "progress", NULL, "progress display: auto (default: only on a terminal), on or off",
		.type = FIELD_WORD, .words = progress_words, AT(options.progress) },
	{ "list", NULL, "list the push jobs of a server", .type = FIELD_FLAG, AT(list) },
	{ "status", "JOB", "show this push job of a server", .set = cli_push_take_status },
	{ "cancel", "JOB", "end this push job of a server", .set = cli_push_take_cancel },
	{ "json", NULL, "print JSON", .type = FIELD_FLAG, AT(options.json) },
	{ "timeout", "TIME", "give up if a server does not respond for this time (default 10s)",
		.type = FIELD_TIME, .min = 1, AT(options.timeout_ns) },
};

int cmd_push(int argc, char **argv)
{
	struct push_arguments arguments = {
		.options = { .timeout_ns = TIMEOUT_DEFAULT_NS, .connections = 1 },
	};
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = &arguments };
	struct error error = { 0 };
	int status = cli_parse(&command, argc, argv);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (arguments.list + (arguments.status != 0) + (arguments.cancel != 0) > 1) {
		return cli_usage_error(name, "give one of --list, --status and --cancel");
	}
	if (arguments.list || arguments.status != 0 || arguments.cancel != 0) {
		return run_jobs(&arguments, argc, argv);
	}
	if (argc - optind != 2) {
		return cli_usage_error(name, "give a SOURCE and a DESTINATION");
	}
	arguments.options.source = argv[optind];
	arguments.options.target = argv[optind + 1];
	status = check_address(arguments.options.source, false);
	status = status == CLI_GO_ON ? check_address(arguments.options.target, true) : status;
	if (status != CLI_GO_ON) {
		return status;
	}
	if (!arguments.has_to) {
		arguments.options.target_offset = arguments.options.offset;
	}
	status = push_run(&arguments.options, &error) == 0 ? CLI_OK : cli_failure(name, &error);
	return status != CLI_OK && error.code == -EINTR ? EXIT_SIGNAL + copy_stop_signal() : status;
}
