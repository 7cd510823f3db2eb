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
	"Usage: gmblock rate EXPORT RATE|memory=SIZE|memory=off [--server SERVER]\n"
	"       gmblock rate --rule=N RATE|memory=SIZE|memory=off [--server SERVER]\n"
	"Changes the rate limit or the memory limit of an export, or of each identity that\n"
	"matches a rate rule, on a running server on this machine. The change lasts until the\n"
	"configuration is read again. Clients stay connected. The default export has the name\n"
	"\"\".\n"
	"\n"
	"  RATE           BYTES[:requests=N][:burst=TIME], requests=N[:burst=TIME] or off;\n"
	"                 BYTES and N are per second\n"
	"  memory=SIZE    maximum memory for data, like the key max-memory of an export\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock rate data 100M:requests=5000\n"
			    "  gmblock rate data off\n"
			    "  gmblock rate data memory=64M\n";

enum { TIMEOUT_MS = 60000 };

struct rate_arguments {
	const char *export; /* export to change; NULL: a rule is changed */
	uint32_t rule;	    /* number of the rule to change, from 1; 0: not given */
	bool is_memory;
	const char *value;
	const char *server; /* or NULL */
};

/* Changes an export with the control command that "gmblock export set" uses. */
static int cli_rate_change_export(const struct rate_arguments *arguments, struct error *error)
{
	json_t *result;
	int rc = server_ask(arguments->server, "export",
		json_pack("{s:s, s:s, s:[[s, s]]}", "action", "set", "name", arguments->export,
			"settings", arguments->is_memory ? "max-memory" : "rate", arguments->value),
		TIMEOUT_MS, &result, error);

	if (rc == 0) {
		rc = cli_print_changes(result, "the command has changed nothing", error);
		json_decref(result);
	}
	return rc;
}

/* Changes the limit of a rule, and prints it as the server has applied it. */
static int cli_rate_change_rule(const struct rate_arguments *arguments, struct error *error)
{
	const char *limit = arguments->is_memory ? "memory" : "rate";
	json_t *result;
	int rc = server_ask(arguments->server, "rate",
		json_pack(
			"{s:I, s:s}", "rule", (json_int_t)arguments->rule, limit, arguments->value),
		CONTROL_TIMEOUT_MS, &result, error);

	if (rc == 0) {
		print_peer_text(json_string_value(json_object_get(result, limit)));
		printf("\n");
		json_decref(result);
		rc = print_end(error);
	}
	return rc;
}

static int change(const struct rate_arguments *arguments, struct error *error)
{
	return arguments->export != NULL ? cli_rate_change_export(arguments, error)
					 : cli_rate_change_rule(arguments, error);
}

static int cli_rate_check(const struct rate_arguments *arguments, struct error *error)
{
	struct rate_limits rate;
	uint64_t bytes;

	if (arguments->export != NULL &&
		!utf8_valid(arguments->export, strlen(arguments->export))) {
		return error_set(error, -EINVAL, "the export name is not valid UTF-8");
	}
	return arguments->is_memory ? rate_parse_memory(arguments->value, &bytes, error)
				    : rate_parse(arguments->value, &rate, error);
}

#define AT(member) FIELD_IN(struct rate_arguments, member)

static const struct field fields[] = {
	{ "rule", "N",
		"number of a rate rule: its position, from 1, in the configuration file of the "
		"server",
		.type = FIELD_COUNT, .min = 1, .max = RATE_RULES_MAX, AT(rule) },
	CLI_SERVER_OR_OPERAND(struct rate_arguments),
};

int cmd_rate(int argc, char **argv)
{
	struct rate_arguments arguments = { 0 };
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = &arguments };
	static const char memory_key[] = "memory=";
	struct error error = { 0 };
	int status = cli_parse(&command, argc, argv);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (argc - optind < (arguments.rule > 0 ? 1 : 2)) {
		return cli_usage_error(name, arguments.rule > 0
						     ? "give a rate or memory=SIZE"
						     : "give an EXPORT, and a rate or memory=SIZE; "
						       "'gmblock stats' shows the limits");
	}
	arguments.export = arguments.rule > 0 ? NULL : argv[optind++];
	arguments.is_memory = strncmp(argv[optind], memory_key, strlen(memory_key)) == 0;
	arguments.value = argv[optind++] + (arguments.is_memory ? strlen(memory_key) : 0);
	if (cli_rate_check(&arguments, &error) < 0) {
		return cli_usage_error(name, "%s%s", error.text,
			arguments.rule > 0 && optind < argc
				? "; with --rule, give the rate without an export"
				: "");
	}
	status = cli_server(name, argc, argv, &arguments.server);
	if (status != CLI_GO_ON) {
		return status;
	}
	return change(&arguments, &error) == 0 ? CLI_OK : cli_failure(name, &error);
}
