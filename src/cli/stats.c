// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "tools/show.h"

#define NS_PER_S     UINT64_C(1000000000)
#define NS_PER_MS    UINT64_C(1000000)
#define WATCH_NS_MIN (100 * NS_PER_MS)
#define WATCH_NS_MAX (86400 * NS_PER_S)

enum { SCREEN_BYTES = 64 << 10 };

struct stats_arguments {
	const char *server; /* URI, socket, process id, or NULL */
	bool json;
	bool prometheus;
	bool redraws;	    /* in place: standard output is a terminal */
	uint64_t watch_ns;  /* 0 = once */
	bool watch_is_bare; /* without a time */
};

static const char usage_text[] =
	"Usage: gmblock stats [--json | --prometheus] [--watch[=TIME]] [--server SERVER]\n"
	"\n"
	"Shows what a server on this machine has done, and where the time of its requests went.\n"
	"\n"
	"  --server SERVER  one of its URIs, its control socket, or its process id;\n"
	"                 optional if there is only one server; SERVER alone as the last\n"
	"                 word is the same\n"
	"  --watch[=TIME] show again what happened meanwhile (default: every second)\n"
	"  --json         print JSON; one document per line with --watch\n"
	"  --prometheus   print metrics in the Prometheus text format\n"
	"  -h, --help     print this help\n"
	"\n"
	"Examples:\n"
	"  gmblock stats\n"
	"  gmblock stats --watch nbd://localhost/data\n"
	"  gmblock stats --json | jq '.exports[].operations'\n";

static int take_watch(void *context, const char *name, const char *text)
{
	struct stats_arguments *arguments = context;
	struct error error;

	arguments->watch_ns = NS_PER_S;
	arguments->watch_is_bare = text == NULL;
	if (text != NULL && units_parse_seconds(text, &arguments->watch_ns, &error) != 0) {
		return cli_usage_error("stats", "--%s: %s", name, error.text);
	}
	if (arguments->watch_ns < WATCH_NS_MIN || arguments->watch_ns > WATCH_NS_MAX) {
		return cli_usage_error("stats", "--%s: from 100ms to 24h", name);
	}
	return CLI_GO_ON;
}

/* True for what was probably meant to be the time of a --watch that has none. */
static bool is_watch_time(const struct stats_arguments *arguments, const char *operand)
{
	uint64_t ignored;

	return arguments->watch_is_bare && units_parse_seconds(operand, &ignored, NULL) == 0;
}

static int cli_stats_arguments_parse(int argc, char **argv, struct stats_arguments *arguments)
{
	const struct cli_option options[] = {
		{ "watch", .take = take_watch, .value = CLI_VALUE_OPTIONAL },
		{ "json", .flag = &arguments->json },
		{ "prometheus", .flag = &arguments->prometheus },
		{ "server", .text = &arguments->server },
	};
	const struct cli_command command = { "stats", usage_text, options, ARRAY_COUNT(options),
		arguments };
	int status = cli_parse(&command, argc, argv);

	for (int i = optind; status == CLI_GO_ON && argc - optind > 1 && i < argc; i++) {
		if (is_watch_time(arguments, argv[i])) {
			return cli_usage_error(
				"stats", "--watch: its time is written --watch=%s", argv[i]);
		}
	}
	if (status == CLI_GO_ON && arguments->prometheus &&
		(arguments->json || arguments->watch_ns > 0)) {
		return cli_usage_error("stats", "--prometheus goes with no other option");
	}
	arguments->watch_is_bare = arguments->watch_is_bare && arguments->server == NULL;
	return status == CLI_GO_ON ? cli_server("stats", argc, argv, &arguments->server) : status;
}

/* Adds to why the server could not be asked what the user may have wanted instead. */
static void cli_stats_advise(const struct stats_arguments *arguments, struct error *error)
{
	const struct error reason = *error;

	if (arguments->server != NULL && is_watch_time(arguments, arguments->server)) {
		error_set(error, reason.code,
			"%s. If %s is to be the time of --watch, write --watch=%s", reason.text,
			arguments->server, arguments->server);
	}
}

/* Of the terminal. */
static uint32_t cli_stats_columns_of(const struct stats_arguments *arguments)
{
	struct winsize size = { 0 };

	return arguments->redraws && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0
		       ? size.ws_col
		       : UINT32_MAX;
}

/* Shows a document, or how it differs from one before. */
static int cli_stats_show(const struct stats_arguments *arguments, json_t *document,
	const json_t *before, struct error *error)
{
	if (arguments->json) {
		return arguments->watch_ns > 0 ? print_json_line(json_incref(document), error)
					       : print_json(json_incref(document), error);
	}
	if (arguments->redraws) {
		printf("\033[H\033[J");
	}
	if (before == NULL) {
		stats_show(document);
	} else {
		stats_show_changes(document, before, cli_stats_columns_of(arguments));
		printf("%s", arguments->redraws ? "" : "\n");
	}
	return print_end(error);
}

static int show_all(const struct stats_arguments *arguments, const char *path, struct error *error)
{
	json_t *before = NULL;
	json_t *document;
	int err;

	for (;;) {
		document = stats_ask(path, error);
		if (document == NULL && before == NULL) {
			cli_stats_advise(arguments, error);
		}
		err = document == NULL ? error->code
				       : cli_stats_show(arguments, document, before, error);
		json_decref(before);
		before = document;
		if (err != 0 || arguments->watch_ns == 0) {
			break;
		}
		(void)poll(NULL, 0, (int)(arguments->watch_ns / NS_PER_MS));
	}
	json_decref(before);
	return err;
}

int cmd_stats(int argc, char **argv)
{
	struct stats_arguments arguments = { 0 };
	struct error error = { 0 };
	char path[STATS_PATH_BYTES];
	int status = cli_stats_arguments_parse(argc, argv, &arguments);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (stats_find(arguments.server, path, &error) != 0) {
		cli_stats_advise(&arguments, &error);
		return cli_failure("stats", &error);
	}
	arguments.redraws = arguments.watch_ns > 0 && !arguments.json && isatty(STDOUT_FILENO) == 1;
	if (arguments.redraws) { /* as a whole, without a flicker */
		(void)setvbuf(stdout, NULL, _IOFBF, SCREEN_BYTES);
	}
	if (arguments.prometheus) {
		return stats_print_metrics(path, &error) != 0 ? cli_failure("stats", &error)
							      : CLI_OK;
	}
	if (show_all(&arguments, path, &error) != 0) {
		return cli_failure("stats", &error);
	}
	return CLI_OK;
}
