// SPDX-License-Identifier: Apache-2.0
#include "tools/info.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/probe.h"

#define TIMEOUT_DEFAULT_NS UINT64_C(10000000000)

enum { QUOTE_BYTES = 256, OTHERS_MAX = 20 };

struct info_arguments {
	const char *uri;
	const char *path;
	uint64_t timeout_ns;
	bool json;
	bool list;
	bool local;
	bool map;
};

static const char usage_text[] =
	"Usage: gmblock info [--list | --map] [--json] [--timeout TIME] URI\n"
	"       gmblock info --local [--path PATH] [--json]\n"
	"\n"
	"Shows what an NBD server offers, or what this machine offers gmblock.\n"
	"\n"
	"  URI             nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH\n"
	"  --list          every export of the server\n"
	"  --map           which parts of the export are data, holes or zeroes\n"
	"  --timeout TIME  give up after so long (default 10s)\n"
	"  --local         which kernel features were probed and what is used\n"
	"  --path PATH     with --local: also what a file or block device can do\n"
	"  --json          for programs\n"
	"  --help          this text\n";

/* Exit status, or -1 to go on. */
static int arguments_check(int argc, char **argv, struct info_arguments *arguments)
{
	char quoted[QUOTE_BYTES];

	if (argc - optind > 1) {
		const char *second = argv[optind + 1];

		return cli_usage_error("info", "one URI at a time, and not also '%s'",
			log_escape(quoted, sizeof(quoted), second, strlen(second)));
	}
	arguments->uri = argv[optind]; /* NULL at the end */
	if (arguments->local && (arguments->uri != NULL || arguments->list || arguments->map)) {
		return cli_usage_error("info",
			"--local is about this machine: it takes no URI, no --list and no --map");
	}
	if (arguments->list && arguments->map) {
		return cli_usage_error(
			"info", "--map is about one export: it does not go with --list");
	}
	if (!arguments->local && arguments->path != NULL) {
		return cli_usage_error("info", "--path needs --local");
	}
	if (!arguments->local && arguments->uri == NULL) {
		return cli_usage_error("info", "which server? Give a URI, or --local");
	}
	return -1;
}

static int arguments_parse(int argc, char **argv, struct info_arguments *arguments)
{
	enum {
		OPT_JSON = CLI_OPTION_FIRST,
		OPT_LIST,
		OPT_LOCAL,
		OPT_MAP,
		OPT_PATH,
		OPT_TIMEOUT,
		OPT_HELP
	};
	static const struct option options[] = {
		{ "json", no_argument, NULL, OPT_JSON },
		{ "list", no_argument, NULL, OPT_LIST },
		{ "local", no_argument, NULL, OPT_LOCAL },
		{ "map", no_argument, NULL, OPT_MAP },
		{ "path", required_argument, NULL, OPT_PATH },
		{ "timeout", required_argument, NULL, OPT_TIMEOUT },
		{ "help", no_argument, NULL, OPT_HELP },
		{ 0 },
	};
	struct error error;
	int option;

	optind = 0; /* starts over, also after another parser has run */
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
		switch (option) {
		case OPT_JSON:
			arguments->json = true;
			break;
		case OPT_LIST:
			arguments->list = true;
			break;
		case OPT_LOCAL:
			arguments->local = true;
			break;
		case OPT_MAP:
			arguments->map = true;
			break;
		case OPT_PATH:
			arguments->path = optarg;
			break;
		case OPT_TIMEOUT:
			if (units_parse_time(optarg, &arguments->timeout_ns, &error) != 0) {
				return cli_usage_error("info", "--timeout: %s", error.text);
			}
			if (arguments->timeout_ns == 0) {
				return cli_usage_error(
					"info", "--timeout: it must be longer than nothing");
			}
			break;
		case OPT_HELP:
			return cli_print(usage_text);
		default:
			return cli_option_error("info", option, argv);
		}
	}
	return arguments_check(argc, argv, arguments);
}

/* The other exports, for somebody who asked for one that is not there. */
static void others_log(const struct nbd_offers *offers)
{
	char quoted[QUOTE_BYTES];

	if (offers->count <= 1) {
		fputs("The server lists no other export.\n", stderr);
		return;
	}
	fputs("The server's exports are:\n", stderr);
	for (uint32_t i = 1; i < offers->count; i++) {
		const char *name = offers->list[i].name;

		fprintf(stderr, "  \"%s\"\n",
			log_escape(quoted, sizeof(quoted), name, strlen(name)));
		if (i == OTHERS_MAX && i + 1 < offers->count) {
			fprintf(stderr, "and %u more, which --list shows.\n",
				offers->count - 1 - i);
			return;
		}
	}
}

static int refused(const struct info_arguments *arguments, const struct probe *probe,
	const struct error *refusal)
{
	struct error error;
	int status = cli_failure("info", refusal);

	if (probe == NULL || refusal->code != -ENOENT) {
		return status;
	}
	if (!arguments->json) {
		others_log(probe_offers(probe));
	} else if (info_show_json(arguments->uri, probe_offers(probe), false, refusal->text,
			   &error) != 0) {
		return cli_failure("info", &error);
	}
	return status;
}

static int show_map(const struct info_arguments *arguments)
{
	struct error error;
	int err = info_map(arguments->uri, arguments->timeout_ns, arguments->json, &error);

	return err != 0 ? cli_failure("info", &error) : CLI_OK;
}

static int show_server(const struct info_arguments *arguments, const struct nbd_uri *uri)
{
	struct probe_options options = {
		.timeout_ns = arguments->timeout_ns,
		.list = arguments->list,
	};
	struct probe *probe;
	struct error error;
	int err = probe_server(uri, &options, &probe, &error);

	if (err != 0) {
		int status = refused(arguments, probe, &error);

		probe_destroy(probe);
		return status;
	}
	if (arguments->json) {
		err = info_show_json(
			arguments->uri, probe_offers(probe), arguments->list, NULL, &error);
	} else {
		err = info_show_text(arguments->uri, probe_offers(probe), arguments->list, &error);
	}
	probe_destroy(probe);
	return err != 0 ? cli_failure("info", &error) : CLI_OK;
}

int cmd_info(int argc, char **argv)
{
	struct info_arguments arguments = { .timeout_ns = TIMEOUT_DEFAULT_NS };
	char quoted[QUOTE_BYTES];
	struct nbd_uri uri;
	struct error error;
	int status = arguments_parse(argc, argv, &arguments);

	if (status >= 0) {
		return status;
	}
	if (arguments.local) {
		return info_local(arguments.path, arguments.json, &error) != 0
			       ? cli_failure("info", &error)
			       : CLI_OK;
	}
	if (nbd_uri_parse(arguments.uri, &uri, &error) != 0) {
		return cli_usage_error("info", "%s", error.text);
	}
	if (uri.unknown_parameter != NULL) {
		log_warning("the URI's parameter \"%s\" means nothing here and is ignored",
			log_escape(quoted, sizeof(quoted), uri.unknown_parameter,
				strlen(uri.unknown_parameter)));
	}
	status = arguments.map ? show_map(&arguments) : show_server(&arguments, &uri);
	nbd_uri_fini(&uri);
	return status;
}
