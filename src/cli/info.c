// SPDX-License-Identifier: Apache-2.0
#include "tools/show.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "nbd/client/dial.h"

#define TIMEOUT_DEFAULT_NS UINT64_C(10000000000)
#define MAP_DEFAULT_NS	   UINT64_C(600000000000)

enum { OTHERS_MAX = 20 };

struct info_arguments {
	const char *uri;
	const char *path;
	uint64_t timeout_ns; /* 0: not given */
	uint64_t map_ns;     /* limit for the whole map */
	bool json;
	bool list;
	bool local;
	bool map;
};

static const char usage_text[] =
	"Usage: gmblock info [--list | --map] [--json] [--timeout TIME] URI\n"
	"       gmblock info --local [--path PATH] [--json]\n"
	"\n"
	"Shows the features of a server and its exports, or the features of this machine that\n"
	"gmblock uses.\n"
	"\n"
	"  URI             nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH,\n"
	"                  gmb+unix:///EXPORT?socket=PATH, gmb://HOST[:PORT]/EXPORT\n"
	"                  or vhost-user-blk+unix:///?socket=PATH;\n"
	"                  with TLS nbds or nbds+unix (see gmblock(1))\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock info nbd://storage/data\n"
			    "  gmblock info --map nbd://storage/data\n"
			    "  gmblock info --local\n";

static int cli_info_arguments_check(const struct info_arguments *arguments)
{
	if (arguments->local && (arguments->uri != NULL || arguments->list || arguments->map)) {
		return cli_usage_error(
			"info", "--local cannot be combined with a URI, --list or --map");
	}
	if (arguments->local && arguments->timeout_ns > 0) {
		return cli_usage_error("info", "--timeout cannot be combined with --local");
	}
	if (arguments->list && arguments->map) {
		return cli_usage_error("info", "--map cannot be combined with --list");
	}
	if (!arguments->local && arguments->path != NULL) {
		return cli_usage_error("info", "--path needs --local");
	}
	if (!arguments->local && arguments->uri == NULL) {
		return cli_usage_error("info", "give the URI of a server, or --local");
	}
	return CLI_GO_ON;
}

#define AT(member) FIELD_IN(struct info_arguments, member)

static const struct field fields[] = {
	{ "json", NULL, "print JSON", .type = FIELD_FLAG, AT(json) },
	{ "list", NULL, "show all exports of the server instead of one", .type = FIELD_FLAG,
		AT(list) },
	{ "local", NULL,
		"show which of the kernel features that gmblock uses are available on this machine",
		.type = FIELD_FLAG, AT(local) },
	{ "map", NULL, "show which ranges of the export are data, holes or zeroes",
		.type = FIELD_FLAG, AT(map) },
	{ "path", "PATH", "with --local: also show what a file or block device supports",
		.type = FIELD_ARGUMENT, AT(path) },
	{ "timeout", "TIME",
		"time limit for connecting and for the responses of the server (default 10s; with "
		"--map, 10min for the map)",
		.type = FIELD_TIME, .min = 1, AT(timeout_ns) },
};

static int cli_info_arguments_parse(int argc, char **argv, struct info_arguments *arguments)
{
	const struct cli_command command = { .name = "info",
		.usage = usage_text,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = arguments };
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_operand("info", "URI", argc, argv, &arguments->uri);
	}
	if (status == CLI_GO_ON) {
		status = cli_info_arguments_check(arguments);
	}
	arguments->map_ns = arguments->timeout_ns > 0 ? arguments->timeout_ns : MAP_DEFAULT_NS;
	if (arguments->timeout_ns == 0) {
		arguments->timeout_ns = TIMEOUT_DEFAULT_NS;
	}
	return status;
}

/* Lists the other exports after the requested one was not found. */
static void others_log(const struct nbd_offers *offers)
{
	if (offers->count <= 1) {
		fputs("The server lists no other export.\n", stderr);
		return;
	}
	fputs("The server's exports are:\n", stderr);
	for (uint32_t i = 1; i < offers->count; i++) {
		const char *name = offers->list[i].name;

		fprintf(stderr, "  \"%s\"\n", quote(name));
		if (i == OTHERS_MAX && i + 1 < offers->count) {
			fprintf(stderr, "and %u more; --list shows them.\n", offers->count - 1 - i);
			return;
		}
	}
}

static int cli_info_refused(const struct info_arguments *arguments, const struct nbd_offers *offers,
	const struct error *refusal)
{
	struct error error;
	int status = cli_failure("info", refusal);

	if (offers == NULL || !offers->listed || refusal->code != -ENOENT) {
		return status;
	}
	if (!arguments->json) {
		others_log(offers);
	} else if (info_show_json(arguments->uri, offers, false, refusal->text, &error) != 0) {
		return cli_failure("info", &error);
	}
	return status;
}

static int show_map(const struct info_arguments *arguments)
{
	struct error error;
	int err = info_map(
		arguments->uri, arguments->timeout_ns, arguments->map_ns, arguments->json, &error);

	return err != 0 ? cli_failure("info", &error) : CLI_OK;
}

static int show_server(const struct info_arguments *arguments, const struct export_uri *uri)
{
	struct nbd_dial_options options = {
		.uri = uri,
		.timeout_ns = arguments->timeout_ns,
		.warns = true,
		.handshake.goal = arguments->list ? NBD_GOAL_LIST : NBD_GOAL_INFO,
	};
	const struct nbd_offers *offers;
	struct nbd_handshake *answers;
	struct error error;
	int status = CLI_OK;
	int err = nbd_dial_wait(&options, -1, NULL, &answers, &error);

	offers = answers != NULL ? nbd_handshake_offers(answers) : NULL;
	if (err != 0) {
		status = cli_info_refused(arguments, offers, &error);
	} else if (arguments->json) {
		err = info_show_json(arguments->uri, offers, arguments->list, NULL, &error);
	} else {
		err = info_show_text(arguments->uri, offers, arguments->list, &error);
	}
	nbd_handshake_destroy(answers);
	return status == CLI_OK && err != 0 ? cli_failure("info", &error) : status;
}

static int show_other(const struct info_arguments *arguments, const struct export_uri *uri)
{
	struct nbd_offers offers;
	struct error error;
	int err = info_probe(uri->protocol, arguments->uri, arguments->list, arguments->timeout_ns,
		&offers, &error);

	if (err == 0) {
		err = arguments->json
			      ? info_show_json(
					arguments->uri, &offers, arguments->list, NULL, &error)
			      : info_show_text(arguments->uri, &offers, arguments->list, &error);
	}
	nbd_offers_fini(&offers);
	return err != 0 ? cli_failure("info", &error) : CLI_OK;
}

int cmd_info(int argc, char **argv)
{
	struct info_arguments arguments = { .uri = NULL };
	struct export_uri uri;
	struct error error;
	int status = cli_info_arguments_parse(argc, argv, &arguments);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (arguments.local) {
		return info_local(arguments.path, arguments.json, &error) != 0
			       ? cli_failure("info", &error)
			       : CLI_OK;
	}
	status = cli_uri("info", arguments.uri, &uri);
	if (status == CLI_GO_ON) {
		status = arguments.map			    ? show_map(&arguments)
			 : strcmp(uri.protocol, "nbd") == 0 ? show_server(&arguments, &uri)
							    : show_other(&arguments, &uri);
		export_uri_fini(&uri);
	}
	return status;
}
