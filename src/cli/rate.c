// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "control/control.h"
#include "engine/rate_identity.h"
#include "tools/show.h"

static const char name[] = "rate";

static const char help[] =
	"Usage: gmblock rate [--export=NAME|--rule=N] RATE|memory=SIZE|memory=off\n"
	"       [--server SERVER]\n"
	"Changes the rate of an export of a running server on this machine, or that of\n"
	"identities, or how much memory their data may hold. Clients stay connected.\n"
	"\n"
	"  RATE           BYTES[:requests=N][:burst=TIME], requests=N[:burst=TIME] or off;\n"
	"                 BYTES and N are for each second\n"
	"  memory=SIZE    maximum memory for data, as the key max-memory of an export\n"
	"  --server SERVER  one of its URIs, its control socket, or its process id;\n"
	"                 optional if there is only one server; SERVER alone as the last\n"
	"                 word is the same\n"
	"  --export=NAME  the export (default: the default export)\n"
	"  --rule=N       the N-th of the rules of rates in its configuration file\n"
	"  -h, --help     print this help\n"
	"\n"
	"Examples:\n"
	"  gmblock rate --export=data 100M:requests=5000\n"
	"  gmblock rate --export=data off\n"
	"  gmblock rate --export=data memory=64M\n";

struct rate_arguments {
	const char *export; /* NULL: not given */
	uint32_t rule;	    /* from 1; 0: not given */
	const char *limit;  /* "rate" or "memory" */
	const char *value;
	const char *server; /* or NULL */
};

static json_t *wire_arguments(const struct rate_arguments *arguments)
{
	return arguments->rule > 0 ? json_pack("{s:I, s:s}", "rule", (json_int_t)arguments->rule,
					     arguments->limit, arguments->value)
				   : json_pack("{s:s, s:s}", "export",
					     arguments->export != NULL ? arguments->export : "",
					     arguments->limit, arguments->value);
}

/* Asks the server, and prints the limit as it has taken it. */
static int change(const struct rate_arguments *arguments, struct error *error)
{
	char path[STATS_PATH_BYTES];
	json_t *result = NULL;
	int rc = stats_find(arguments->server, path, error);

	if (rc == 0) {
		rc = control_ask(path, "rate", wire_arguments(arguments), CONTROL_TIMEOUT_MS,
			&result, error);
	}
	if (rc == 0) {
		printf("%s\n", json_string_value(json_object_get(result, arguments->limit)));
		json_decref(result);
		rc = print_end(error);
	}
	return rc;
}

static int check(const struct rate_arguments *arguments, struct error *error)
{
	struct rate_limits rate;
	uint64_t bytes;

	if (arguments->export != NULL && arguments->rule > 0) {
		return error_set(error, -EINVAL, "give either --export or --rule");
	}
	if (arguments->export != NULL &&
		!utf8_valid(arguments->export, strlen(arguments->export))) {
		return error_set(error, -EINVAL, "--export: the name is not valid UTF-8");
	}
	return strcmp(arguments->limit, "memory") == 0
		       ? rate_parse_memory(arguments->value, &bytes, error)
		       : rate_parse(arguments->value, &rate, error);
}

int cmd_rate(int argc, char **argv)
{
	struct rate_arguments arguments = { 0 };
	const struct cli_option options[] = {
		{ "export", .text = &arguments.export },
		{ "rule", .count = &arguments.rule, .min = 1, .max = RATE_RULES_MAX },
		{ "server", .text = &arguments.server },
	};
	const struct cli_command command = { name, help, options, ARRAY_COUNT(options), NULL };
	static const char memory_key[] = "memory=";
	struct error error = { 0 };
	bool is_memory;
	int status = cli_parse(&command, argc, argv);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (optind == argc) {
		return cli_usage_error(name, "give a rate or memory=SIZE");
	}
	is_memory = strncmp(argv[optind], memory_key, strlen(memory_key)) == 0;
	arguments.limit = is_memory ? "memory" : "rate";
	arguments.value = argv[optind++] + (is_memory ? strlen(memory_key) : 0);
	status = cli_server(name, argc, argv, &arguments.server);
	if (status != CLI_GO_ON) {
		return status;
	}
	if (check(&arguments, &error) < 0) {
		return cli_usage_error(name, "%s", error.text);
	}
	return change(&arguments, &error) == 0 ? CLI_OK : cli_failure(name, &error);
}
