// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <poll.h>

#include "base/text.h"
#include "cli/cli.h"
#include "server/observe/stats.h"
#include "tools/show.h"

#define NS_PER_S     UINT64_C(1000000000)
#define NS_PER_MS    UINT64_C(1000000)
#define WATCH_NS_MIN (100 * NS_PER_MS)
#define WATCH_NS_MAX (86400 * NS_PER_S)

struct stats_arguments {
	const char *server; /* URI, socket, process ID, or NULL */
	bool json;
	bool prometheus;
	bool describe;
	uint64_t watch_ns;  /* 0 = once */
	bool watch_is_bare; /* --watch was given without a time */
};

static const char usage_text[] =
	"Usage: gmblock stats [--json [--watch[=TIME]] | --prometheus] [--server SERVER]\n"
	"       gmblock stats --describe\n"
	"\n"
	"Shows the statistics of a server on this machine, including where its requests spend\n"
	"their time.\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock stats\n"
			    "  gmblock stats --json --watch nbd://localhost/data\n"
			    "  gmblock stats --json | jq '.exports[].operations'\n";

static int take_watch(void *context, const char *text, struct error *error)
{
	struct stats_arguments *arguments = context;
	int rc = 0;

	arguments->watch_ns = NS_PER_S;
	arguments->watch_is_bare = text == NULL;
	if (text != NULL) {
		rc = units_parse_seconds(text, &arguments->watch_ns, error);
	}
	if (rc == 0 && (arguments->watch_ns < WATCH_NS_MIN || arguments->watch_ns > WATCH_NS_MAX)) {
		rc = error_set(error, -ERANGE, "the time must be from 100ms to 24h");
	}
	return rc;
}

/* Returns whether the operand is probably the time of --watch, written as "--watch TIME" instead of
 * "--watch=TIME". */
static bool is_watch_time(const struct stats_arguments *arguments, const char *operand)
{
	uint64_t ignored;

	return arguments->watch_is_bare && units_parse_seconds(operand, &ignored, NULL) == 0;
}

#define AT(member) FIELD_IN(struct stats_arguments, member)

static const struct field fields[] = {
	{ "json", NULL, "print JSON", .type = FIELD_FLAG, AT(json) },
	{ "watch", "TIME",
		"with --json: print the statistics again after each TIME, as one JSON document per "
		"line (default: every second); on a terminal, use gmblock top",
		.set = take_watch, .flags = FIELD_BARE, AT(watch_ns) },
	{ "prometheus", NULL, "print metrics in the Prometheus text format", .type = FIELD_FLAG,
		AT(prometheus) },
	{ "describe", NULL, "describe all counters as JSON, without a server", .type = FIELD_FLAG,
		AT(describe) },
	CLI_SERVER_OR_OPERAND(struct stats_arguments),
};

static int cli_stats_arguments_parse(int argc, char **argv, struct stats_arguments *arguments)
{
	static const char *const with_prometheus[] = { "prometheus", "server", NULL };
	static const char *const with_describe[] = { "describe", NULL };
	const struct cli_command command = { .name = "stats",
		.usage = usage_text,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = arguments };
	int status = cli_parse(&command, argc, argv);

	for (int i = optind; status == CLI_GO_ON && argc - optind > 1 && i < argc; i++) {
		if (is_watch_time(arguments, argv[i])) {
			return cli_usage_error(
				"stats", "--watch: write the time as --watch=%s", argv[i]);
		}
	}
	if (status == CLI_GO_ON && arguments->prometheus) {
		status = cli_alone(&command, NULL, with_prometheus);
	}
	if (status == CLI_GO_ON && arguments->describe) {
		status = cli_alone(&command, NULL, with_describe);
	}
	if (status == CLI_GO_ON && arguments->describe && optind < argc) {
		return cli_usage_error("stats", "--describe takes no SERVER");
	}
	if (status == CLI_GO_ON && arguments->watch_ns > 0 && !arguments->json) {
		return cli_usage_error(
			"stats", "--watch needs --json; on a terminal, use \"gmblock top\"");
	}
	arguments->watch_is_bare = arguments->watch_is_bare && arguments->server == NULL;
	return status == CLI_GO_ON ? cli_server("stats", argc, argv, &arguments->server) : status;
}

/* Adds a hint about the user's probable intention to the error. */
static void cli_stats_advise(const struct stats_arguments *arguments, struct error *error)
{
	const struct error reason = *error;

	if (arguments->server != NULL && is_watch_time(arguments, arguments->server)) {
		error_set(error, reason.code, "%s. If %s is the time for --watch, write --watch=%s",
			reason.text, arguments->server, arguments->server);
	}
}

static int cli_stats_show(
	const struct stats_arguments *arguments, json_t *document, struct error *error)
{
	if (arguments->json) {
		return arguments->watch_ns > 0 ? print_json_line(json_incref(document), error)
					       : print_json(json_incref(document), error);
	}
	stats_show(document);
	return print_end(error);
}

static int show_all(const struct stats_arguments *arguments, const char *path, struct error *error)
{
	bool is_first = true;
	int err;

	for (;;) {
		json_t *document = stats_ask(path, error);

		if (document == NULL && is_first) {
			cli_stats_advise(arguments, error);
		}
		err = document == NULL ? error->code : cli_stats_show(arguments, document, error);
		json_decref(document);
		if (err != 0 || arguments->watch_ns == 0) {
			return err;
		}
		is_first = false;
		(void)poll(NULL, 0, (int)(arguments->watch_ns / NS_PER_MS));
	}
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
	if (arguments.describe) {
		return print_json(stats_counters(), &error) != 0 ? cli_failure("stats", &error)
								 : CLI_OK;
	}
	if (stats_find(arguments.server, path, &error) != 0) {
		cli_stats_advise(&arguments, &error);
		return cli_failure("stats", &error);
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
