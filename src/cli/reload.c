// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>

#include "cli/cli.h"
#include "control/control.h"
#include "tools/show.h"

static const char name[] = "reload";

static const char help[] =
	"Usage: gmblock reload [--dry-run] [--server SERVER]\n"
	"Makes a server on this machine read its configuration file, TLS certificates, keys and\n"
	"revocation lists again, like SIGHUP, and waits until the changes are in force. Clients\n"
	"of unchanged exports are not affected. Connections whose credentials are no longer\n"
	"valid are closed. The changes are printed. If there is an error, the server makes no\n"
	"change, and a message reports the location of the error.\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock reload\n"
			    "  gmblock reload nbd://localhost/data\n"
			    "\n"
			    "Exit status: 1 failure, 2 usage error.\n";

enum { TIMEOUT_MS = 60000 };

static long long cli_reload_count_of(const json_t *result, const char *key)
{
	return (long long)json_integer_value(json_object_get(result, key));
}

static int cli_reload_finish(const json_t *result, struct error *error)
{
	const char *text = json_string_value(json_object_get(result, "unfinished"));
	int rc = print_end(error);

	return rc < 0 || text == NULL ? rc : error_set(error, -ETIMEDOUT, "%s", text);
}

static void cli_reload_print_lines(const json_t *result, const char *none)
{
	json_t *line;
	size_t i;

	json_array_foreach(json_object_get(result, "changes"), i, line)
	{
		print_peer_text(json_string_value(line));
		printf("\n");
	}
	if (i == 0 && none != NULL) {
		printf("%s\n", none);
	}
}

int cli_print_changes(const json_t *result, const char *none, struct error *error)
{
	cli_reload_print_lines(result, none);
	return cli_reload_finish(result, error);
}

static int cli_reload_show(const json_t *result, bool dry_run, struct error *error)
{
	long long addresses = cli_reload_count_of(result, "addresses");
	long long ended = cli_reload_count_of(result, "connections_ended");

	cli_reload_print_lines(
		result, dry_run ? "nothing would change" : "the configuration has not changed");
	if (!dry_run && addresses > 0) {
		printf("addresses with TLS: %lld, connections ended: %lld\n", addresses, ended);
	} else if (!dry_run && ended > 0) {
		printf("connections ended: %lld\n", ended);
	}
	return cli_reload_finish(result, error);
}

struct reload_arguments {
	bool dry_run;
	const char *server;
};

#define AT(member) FIELD_IN(struct reload_arguments, member)

static const struct field fields[] = {
	{ "dry-run", NULL, "print the changes without making them", .type = FIELD_FLAG,
		AT(dry_run) },
	CLI_SERVER_OR_OPERAND(struct reload_arguments),
};

int cmd_reload(int argc, char **argv)
{
	struct reload_arguments arguments = { 0 };
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = &arguments };
	struct error error = { 0 };
	json_t *result;
	int status = cli_parse(&command, argc, argv);
	int rc;

	if (status == CLI_GO_ON) {
		status = cli_server(name, argc, argv, &arguments.server);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (server_ask(arguments.server, "reload", json_pack("{s:b}", "dry_run", arguments.dry_run),
		    TIMEOUT_MS, &result, &error) != 0) {
		return cli_failure(name, &error);
	}
	rc = cli_reload_show(result, arguments.dry_run, &error);
	json_decref(result);
	return rc < 0 ? cli_failure(name, &error) : CLI_OK;
}
