// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "control/control.h"
#include "tools/show.h"

static const char name[] = "snapshot";

static const char help[] =
	"Usage: gmblock snapshot create EXPORT NAME [--server SERVER]\n"
	"       gmblock snapshot list [EXPORT] [--json] [--server SERVER]\n"
	"       gmblock snapshot delete EXPORT NAME [--now] [--server SERVER]\n"
	"Manages point-in-time snapshots of an export, for backups and consistent copies.\n"
	"Clients can keep writing the export, which must be a flash store. The same server\n"
	"serves each snapshot read-only as EXPORT@NAME. An export can have at most two\n"
	"snapshots. The default export has the name \"\".\n"
	"\n"
	"  create         take a snapshot, which survives restarts and crashes\n"
	"  list           show each snapshot, its creation time and the number of its clients\n"
	"  delete         delete a snapshot and free the space that only it uses\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock snapshot create disk monday\n"
			    "  gmblock snapshot list disk\n"
			    "  gmblock snapshot delete disk monday\n"
			    "\n"
			    "Exit status: 1 failure, 2 usage error.\n";

enum { ANSWER_MS = 120000, TIME_BYTES = 32 }; /* a snapshot on a slow disk can take long */

/* Formats the local time, as "2026-11-23 08:15:00". */
static const char *cli_snapshot_time_text(const json_t *entry, char out[TIME_BYTES])
{
	time_t created = (time_t)json_integer_value(json_object_get(entry, "created"));
	struct tm parts;

	if (localtime_r(&created, &parts) == NULL ||
		strftime(out, TIME_BYTES, "%Y-%m-%d %H:%M:%S", &parts) == 0) {
		snprintf(out, TIME_BYTES, "?");
	}
	return out;
}

static int cli_snapshot_print_list(const json_t *result, bool json, struct error *error)
{
	json_t *all = json_object_get(result, "snapshots");
	json_t *entry;
	size_t i;

	if (json) {
		return print_json(json_pack("{s:O?}", "snapshots", all), error);
	}
	json_array_foreach(all, i, entry)
	{
		char text[TIME_BYTES];

		print_export_name(json_string_value(json_object_get(entry, "export")));
		printf("\t");
		print_peer_text(json_string_value(json_object_get(entry, "name")));
		printf("\t%s\t%lld\n", cli_snapshot_time_text(entry, text),
			(long long)json_integer_value(json_object_get(entry, "connections")));
	}
	return print_end(error);
}

/* Sends the command and prints the answer. Takes ownership of wire, the command's arguments.
 * listed: the export whose snapshots were requested, or NULL. */
static int cli_snapshot_ask(
	const char *server, json_t *wire, bool lists, const char *listed, bool json)
{
	struct error error = { 0 };
	json_t *result;
	int rc = server_ask(server, "snapshot", wire, ANSWER_MS, &result, &error);

	if (rc == -ENOENT && listed != NULL && strchr(listed, '/') != NULL) {
		error_add(&error, "; 'gmblock snapshot list' takes the name of an export; to "
				  "select a server, use --server");
	}
	if (rc == 0) {
		rc = lists ? cli_snapshot_print_list(result, json, &error)
			   : cli_print_changes(result, NULL, &error);
		json_decref(result);
	}
	return rc < 0 ? cli_failure(name, &error) : CLI_OK;
}

struct snapshot_arguments {
	const char *server;
	bool now;
	bool json;
};

#define AT(member) FIELD_IN(struct snapshot_arguments, member)

static const struct field fields[] = {
	CLI_SERVER(struct snapshot_arguments),
	{ "now", NULL,
		"with delete: delete the snapshot even if clients use it, and disconnect these "
		"clients",
		.type = FIELD_FLAG, AT(now) },
	{ "json", NULL, "with list: print JSON", .type = FIELD_FLAG, AT(json) },
};

int cmd_snapshot(int argc, char **argv)
{
	enum { CREATE, LIST, DELETE };
	static const char *const actions[] = { "create", "list", "delete", NULL };
	struct snapshot_arguments arguments = { 0 };
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.actions = actions,
		.arguments = &arguments };
	int action;
	int status = cli_parse_action(&command, argc, argv, &action);
	bool lists;
	json_t *wire;
	int count;

	if (status != CLI_GO_ON) {
		return status;
	}
	argv += optind;
	count = argc - optind;
	lists = action == LIST;
	if (lists ? count > 1 : count != 2) {
		return cli_usage_error(name,
			lists ? "'list' takes at most one EXPORT"
			      : "'%s' needs an EXPORT and a NAME",
			actions[action]);
	}
	if (arguments.json && !lists) {
		return cli_usage_error(name, "--json is for list only");
	}
	if (arguments.now && action != DELETE) {
		return cli_usage_error(name, "--now is for delete only");
	}
	if (!cli_utf8(name, "the name of an export or snapshot", argv, count)) {
		return CLI_USAGE;
	}
	wire = json_pack("{s:s}", "action", actions[action]);
	if (count > 0) {
		json_object_set_new(wire, "export", json_string(argv[0]));
	}
	if (!lists) {
		json_object_set_new(wire, "name", json_string(argv[1]));
		json_object_set_new(wire, "now", json_boolean(arguments.now));
	}
	return cli_snapshot_ask(
		arguments.server, wire, lists, lists && count > 0 ? argv[0] : NULL, arguments.json);
}
