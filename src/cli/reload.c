// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>
#include <stdio.h>

#include "cli/cli.h"
#include "control/control.h"
#include "tools/show.h"

static const char name[] = "reload";

static const char help[] =
	"Usage: gmblock reload [SERVER]\n"
	"Makes a server on this machine read its TLS certificates, keys, revocation lists\n"
	"and rules of access again, as SIGHUP does, and waits until it has. New connections\n"
	"use them; those of clients that are not believed any more are ended. If anything is\n"
	"wrong with the files, nothing changes, and a message names the file and the reason.\n"
	"\n"
	"  SERVER         one of its URIs, its control socket, or its process id;\n"
	"                 optional if there is only one server\n"
	"  -h, --help     print this help\n"
	"\n"
	"Exit status: 1 failure, 2 usage error.\n";

enum { TIMEOUT_MS = 60000 };

static long long count_of(const json_t *result, const char *key)
{
	return (long long)json_integer_value(json_object_get(result, key));
}

int cmd_reload(int argc, char **argv)
{
	const struct cli_command command = { name, help, NULL, 0, NULL };
	struct error error = { 0 };
	char path[STATS_PATH_BYTES];
	char text[120];
	const char *server;
	json_t *result;
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_operand(name, "server", argc, argv, &server);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (stats_find(server, path, &error) != 0 ||
		control_ask(path, "reload", NULL, TIMEOUT_MS, &result, &error) != 0) {
		return cli_failure(name, &error);
	}
	snprintf(text, sizeof(text), "addresses with TLS: %lld, connections ended: %lld\n",
		count_of(result, "addresses"), count_of(result, "connections_ended"));
	json_decref(result);
	return cli_print(text);
}
