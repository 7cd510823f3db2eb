// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "control/control.h"
#include "tools/show.h"

static const char name[] = "lease";

static const char help[] =
	"Usage: gmblock lease list [EXPORT] [--json]\n"
	"       gmblock lease offer EXPORT NODE\n"
	"       gmblock lease release EXPORT [NODE]\n"
	"Shows and changes which clients have a lease of an export of a running server on this\n"
	"machine.\n"
	"\n"
	"  list     show the clients that have a lease\n"
	"  offer    let NODE open the export in addition to the client that has the lease; the\n"
	"           node gets the lease when it first writes, and the other client loses it\n"
	"  release  end the leases of an export, or only those of NODE, and withdraw the offer\n"
	"\n";

static const char notes[] =
	"\n"
	"NODE is a name under \"nodes\" in the configuration file of the server.\n"
	"\n"
	"Examples:\n"
	"  gmblock lease list\n"
	"  gmblock lease offer vm1 host-b\n"
	"  gmblock lease release vm1\n";

enum { LEASE_ANSWER_MS = 60000 };

struct lease_arguments {
	const char *server;
	bool json;
};

#define AT(member) FIELD_IN(struct lease_arguments, member)

static const struct field fields[] = {
	CLI_SERVER(struct lease_arguments),
	{ "json", NULL, "with list: print JSON", .type = FIELD_FLAG, AT(json) },
};

static void show_lease(const json_t *lease)
{
	print_export_name(json_string_value(json_object_get(lease, "export")));
	printf("\t");
	print_lease(lease, "\t");
	printf("\n");
}

static int print_leases(const json_t *result, const char *export, bool as_json, struct error *error)
{
	const json_t *all = json_object_get(result, "leases");
	json_t *shown = json_array();
	json_t *lease;
	size_t i;

	json_array_foreach(all, i, lease)
	{
		const char *of = json_string_value(json_object_get(lease, "export"));

		if (export == NULL || (of != NULL && strcmp(of, export) == 0)) {
			json_array_append(shown, lease);
		}
	}
	if (as_json) {
		return print_json(shown, error);
	}
	json_array_foreach(shown, i, lease)
	{
		show_lease(lease);
	}
	json_decref(shown);
	return print_end(error);
}

/* Sends the command and prints the answer of list. Takes ownership of wire. */
static int ask_leases(
	const struct lease_arguments *arguments, json_t *wire, bool lists, const char *export)
{
	struct error error = { 0 };
	json_t *result;
	int rc = server_ask(arguments->server, "lease", wire, LEASE_ANSWER_MS, &result, &error);

	if (rc == 0 && lists) {
		rc = print_leases(result, export, arguments->json, &error);
	}
	json_decref(result);
	return rc < 0 ? cli_failure(name, &error) : CLI_OK;
}

int cmd_lease(int argc, char **argv)
{
	static const char *const actions[] = { "list", "offer", "release", NULL };
	static const struct {
		int least;
		int most;
		const char *usage;
	} operands[] = {
		{ 0, 1, "'list' takes at most one EXPORT" },
		{ 2, 2, "'offer' needs an EXPORT and a NODE" },
		{ 1, 2, "'release' needs an EXPORT and takes at most one NODE" },
	};
	struct lease_arguments arguments = { 0 };
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.actions = actions,
		.arguments = &arguments };
	int action;
	int status = cli_parse_action(&command, argc, argv, &action);
	json_t *wire;
	int count;

	if (status != CLI_GO_ON) {
		return status;
	}
	argv += optind;
	count = argc - optind;
	if (count < operands[action].least || count > operands[action].most) {
		return cli_usage_error(name, "%s", operands[action].usage);
	}
	if (arguments.json && action != 0) {
		return cli_usage_error(name, "--json is for list only");
	}
	if (!cli_utf8(name, "the name of an export or node", argv, count)) {
		return CLI_USAGE;
	}
	wire = json_pack("{s:s}", "action", actions[action]);
	if (count > 0) {
		json_object_set_new(wire, "export", json_string(argv[0]));
	}
	if (count > 1) {
		json_object_set_new(wire, "node", json_string(argv[1]));
	}
	return ask_leases(&arguments, wire, action == 0, count > 0 ? argv[0] : NULL);
}
