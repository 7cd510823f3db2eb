// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "control/control.h"
#include "engine/rate.h"
#include "tools/show.h"

static const char name[] = "rate";

static const char help[] =
	"Usage: gmblock rate [--export=NAME] RATE [SERVER]\n"
	"Changes the rate of an export of a running server on this machine. Its clients stay\n"
	"connected.\n"
	"\n"
	"  RATE           BYTES[:requests=N][:burst=TIME], requests=N[:burst=TIME] or off;\n"
	"                 BYTES and N are for each second\n"
	"  SERVER         one of its URIs, its control socket, or its process id;\n"
	"                 optional if there is only one server\n"
	"  --export=NAME  the export (default: the default export)\n"
	"  -h, --help     print this help\n";

/* Asks the server, and prints the rate as it has taken it. */
static int change(const char *server, const char *export, const char *rate, struct error *error)
{
	char path[STATS_PATH_BYTES];
	json_t *result = NULL;
	int rc = stats_find(server, path, error);

	if (rc == 0) {
		rc = control_ask(path, "rate",
			json_pack("{s:s, s:s}", "export", export, "rate", rate), CONTROL_TIMEOUT_MS,
			&result, error);
	}
	if (rc == 0) {
		printf("%s\n", json_string_value(json_object_get(result, "rate")));
		json_decref(result);
		rc = print_end(error);
	}
	return rc;
}

int cmd_rate(int argc, char **argv)
{
	const char *export = "";
	const struct cli_option options[] = { { "export", .text = &export } };
	const struct cli_command command = { name, help, options, ARRAY_COUNT(options), NULL };
	struct error error = { 0 };
	struct rate_limits limits;
	int status = cli_parse(&command, argc, argv);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (argc - optind < 1 || argc - optind > 2) {
		return cli_usage_error(name, "give a rate, and one server at most");
	}
	if (!utf8_valid(export, strlen(export))) {
		return cli_usage_error(name, "--export: the name is not valid UTF-8");
	}
	if (rate_parse(argv[optind], &limits, &error) < 0) {
		return cli_usage_error(name, "%s", error.text);
	}
	return change(argv[optind + 1], export, argv[optind], &error) == 0
		       ? CLI_OK
		       : cli_failure(name, &error);
}
