// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
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
	"Has one server push a disk to another: no data comes through this command.\n"
	"\n"
	"  SOURCE, DESTINATION    push+unix:///EXPORT?socket=PATH or\n"
	"                         push://HOST[:PORT]/EXPORT; a DESTINATION without push:\n"
	"                         nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH, and\n"
	"                         over TLS nbds://... or nbds+unix://...\n"
	"  --range OFFSET+LENGTH  push this part of the source (default: all of it)\n"
	"  --to-offset OFFSET     where it goes in the destination (default: the offset in\n"
	"                         the source)\n"
	"  --rate BYTES           at most so many bytes a second\n"
	"  --resume               leave out what the destination has already, as an\n"
	"                         interrupted push has left it\n"
	"  --live                 of a flash store, push what clients write meanwhile as it\n"
	"                         comes, without a snapshot\n"
	"  --verify[=read]        read the destination back at the end, and compare\n"
	"  --detach               print the number of the job, and do not wait for it\n"
	"  --progress=WHEN        auto (on a terminal), on or off\n"
	"  --list                 show the jobs of a server\n"
	"  --status JOB           show one\n"
	"  --cancel JOB           end one\n"
	"  --json                 print JSON\n"
	"  --timeout TIME         give up when a server does not answer (default 10s)\n"
	"  -h, --help             print this help\n"
	"\n"
	"Examples:\n"
	"  gmblock push 'push+unix:///disk?socket=a.sock' push://backup/disk\n"
	"  gmblock push --list push://backup\n";

struct push_arguments {
	struct push_options options;
	bool has_to;
	bool list;
	uint64_t status; /* 0: not given */
	uint64_t cancel;
};

static int cli_push_take_range(void *context, const char *option, const char *text)
{
	struct push_arguments *arguments = context;
	const char *plus = strchr(text, '+');
	char offset[64];
	struct error error;

	if (plus == NULL || (size_t)(plus - text) >= sizeof(offset)) {
		return cli_usage_error(name, "--%s: write OFFSET+LENGTH, such as 0+64M", option);
	}
	memcpy(offset, text, (size_t)(plus - text));
	offset[plus - text] = '\0';
	if (units_parse_bytes(offset, &arguments->options.offset, &error) < 0 ||
		units_parse_bytes(plus + 1, &arguments->options.length, &error) < 0) {
		return cli_usage_error(name, "--%s: %s", option, error.text);
	}
	return arguments->options.length > 0
		       ? CLI_GO_ON
		       : cli_usage_error(name, "--%s: the length is 0", option);
}

static int take_to(void *context, const char *option, const char *text)
{
	struct push_arguments *arguments = context;
	struct error error;

	if (units_parse_bytes(text, &arguments->options.target_offset, &error) < 0) {
		return cli_usage_error(name, "--%s: %s", option, error.text);
	}
	arguments->has_to = true;
	return CLI_GO_ON;
}

static int take_verify(void *context, const char *option, const char *text)
{
	struct push_arguments *arguments = context;

	if (text != NULL && strcmp(text, "read") != 0) {
		return cli_usage_error(name,
			"--%s: '%s' is unknown; write --verify or --verify=read", option, text);
	}
	arguments->options.read_back = true;
	return CLI_GO_ON;
}

static int take_progress(void *context, const char *option, const char *text)
{
	static const char *const modes[] = { [COPY_PROGRESS_AUTO] = "auto",
		[COPY_PROGRESS_ON] = "on",
		[COPY_PROGRESS_OFF] = "off" };
	struct push_arguments *arguments = context;

	for (size_t i = 0; i < ARRAY_COUNT(modes); i++) {
		if (strcmp(text, modes[i]) == 0) {
			arguments->options.progress = (enum copy_progress_mode)i;
			return CLI_GO_ON;
		}
	}
	return cli_usage_error(name, "--%s can be auto, on or off", option);
}

static int take_job(uint64_t *job, const char *option, const char *text)
{
	char *end;

	errno = 0;
	*job = strtoull(text, &end, 16);
	if (errno != 0 || *end != '\0' || *job == 0 || strspn(text, "0123456789abcdef") == 0) {
		return cli_usage_error(name, "--%s: '%s' is not the number of a job", option, text);
	}
	return CLI_GO_ON;
}

static int cli_push_take_status(void *context, const char *option, const char *text)
{
	return take_job(&((struct push_arguments *)context)->status, option, text);
}

static int cli_push_take_cancel(void *context, const char *option, const char *text)
{
	return take_job(&((struct push_arguments *)context)->cancel, option, text);
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
	result = arguments->cancel != 0
			 ? push_cancel(uri, arguments->cancel, options->timeout_ns, &error)
			 : push_list(uri, arguments->status, options->json, options->timeout_ns,
				   &error);
	return result == 0 ? CLI_OK : cli_failure(name, &error);
}

int cmd_push(int argc, char **argv)
{
	struct push_arguments arguments = { .options.timeout_ns = TIMEOUT_DEFAULT_NS };
	const struct cli_option options[] = {
		{ "range", .take = cli_push_take_range },
		{ "to-offset", .take = take_to },
		{ "rate", .bytes = &arguments.options.rate, .min = 1 },
		{ "resume", .flag = &arguments.options.resume },
		{ "live", .flag = &arguments.options.live },
		{ "verify", .take = take_verify, .value = CLI_VALUE_OPTIONAL },
		{ "detach", .flag = &arguments.options.detach },
		{ "progress", .take = take_progress },
		{ "list", .flag = &arguments.list },
		{ "status", .take = cli_push_take_status },
		{ "cancel", .take = cli_push_take_cancel },
		{ "json", .flag = &arguments.options.json },
		{ "timeout", .time_ns = &arguments.options.timeout_ns },
	};
	const struct cli_command command = { name, help, options, ARRAY_COUNT(options),
		&arguments };
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
	if (!arguments.has_to) {
		arguments.options.target_offset = arguments.options.offset;
	}
	return push_run(&arguments.options, &error) == 0 ? CLI_OK : cli_failure(name, &error);
}
