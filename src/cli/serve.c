// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "server/server.h"

static const char name[] = "serve";

static const char help[] =
	"Usage: gmblock serve [OPTION]... [PATH]\n"
	"Serves disks to any NBD client until SIGTERM, SIGINT or SIGHUP.\n"
	"\n"
	"PATH is an image file, a block device, memory:SIZE or null:SIZE; it becomes the\n"
	"default (unnamed) export.\n"
	"\n"
	"  -e, --export NAME=PATH[,KEY=VALUE]...   serve PATH under a name; =PATH is the\n"
	"                              default export. Write \\= for = in NAME and \\, for a\n"
	"                              comma in PATH or a value. Keys:\n"
	"        mode=cached|ram       through the page cache (default) or around it\n"
	"        write-mode=cached|ram the same for writes (default: as mode)\n"
	"        readonly              refuse writes\n"
	"        description=TEXT      shown to clients that list the exports\n"
	"        max-connections=N     clients of this export at a time\n"
	"        fault=OP:ERRNO[:nth=N|every=N|prob=P][:range=OFF+LEN]\n"
	"        delay=OP:TIME[:range=OFF+LEN]\n"
	"                              fail or slow down requests, for tests; OP is read,\n"
	"                              write, flush, trim, zero, cache, extents or any;\n"
	"                              both can be repeated\n"
	"        pace=RATE[:latency=TIME][:members=N][:chunk=SIZE]\n"
	"                              as slow as a disk of RATE bytes a second, or as N of\n"
	"                              them that take turns every SIZE bytes\n"
	"  -l, --listen URI            nbd://HOST[:PORT] or nbd+unix:///?socket=PATH; port 0\n"
	"                              takes any free one; can be repeated\n"
	"                              (default: nbd://127.0.0.1:10809)\n"
	"  -c, --config FILE           read exports, addresses and limits from a YAML file\n"
	"      --control PATH          where \"gmblock stats\" asks, or none (default: a socket\n"
	"                              in /run/gmblock/serve, or in $XDG_RUNTIME_DIR)\n"
	"      --run COMMAND           serve for the life of a shell command, with $uri (and\n"
	"                              $unixsocket) set; can be repeated, until one fails;\n"
	"                              its exit status is ours\n"
	"\n"
	"Limits:\n"
	"      --memory SIZE           memory for data on its way, such as 256M\n"
	"      --threads N             reactor threads (default: the CPUs we may use)\n"
	"      --max-connections N     connections at a time\n"
	"      --max-handshakes N      of them, those that have not chosen an export yet\n"
	"      --handshake-timeout TIME  how long they may take for it, such as 10s\n"
	"      --max-inflight N        requests at work per connection\n"
	"      --max-inflight-total N  requests at work in all\n"
	"\n"
	"      --help                  print this\n"
	"\n"
	"When everything is open the URI of each export is printed on standard output (not\n"
	"with --run) and the service manager is told. SIGTERM, SIGINT or SIGHUP finishes\n"
	"what is in flight and ends with status 0; another one, a second later or more, ends\n"
	"at once.\n"
	"Status 1: it could not be done; 2: wrong usage.\n";

enum {
	OPTION_RUN = CLI_OPTION_FIRST,
	OPTION_HELP,
	OPTION_CONTROL,
	OPTION_LIMIT, /* first of limit_keys, which is memory; the others follow */
};

static const char *const limit_keys[] = { "memory", "threads", "connections", "handshakes",
	"handshake-timeout", "inflight", "inflight-total" };

static const struct option options[] = {
	{ "export", required_argument, NULL, 'e' },
	{ "listen", required_argument, NULL, 'l' },
	{ "config", required_argument, NULL, 'c' },
	{ "run", required_argument, NULL, OPTION_RUN },
	{ "memory", required_argument, NULL, OPTION_LIMIT + 0 },
	{ "threads", required_argument, NULL, OPTION_LIMIT + 1 },
	{ "max-connections", required_argument, NULL, OPTION_LIMIT + 2 },
	{ "max-handshakes", required_argument, NULL, OPTION_LIMIT + 3 },
	{ "handshake-timeout", required_argument, NULL, OPTION_LIMIT + 4 },
	{ "max-inflight", required_argument, NULL, OPTION_LIMIT + 5 },
	{ "max-inflight-total", required_argument, NULL, OPTION_LIMIT + 6 },
	{ "control", required_argument, NULL, OPTION_CONTROL },
	{ "help", no_argument, NULL, OPTION_HELP },
	{ 0 },
};

static int add_export(struct server_config *config, const char *text, struct error *error)
{
	struct server_export entry;
	char shown[100];
	char origin[128];
	int rc;

	server_export_init(&entry);
	rc = server_export_parse(&entry, text, error);
	if (rc < 0) {
		error_prefix(error, "--export");
		return rc;
	}
	snprintf(origin, sizeof(origin), "--export %s",
		log_escape(shown, sizeof(shown), text, strlen(text)));
	return server_config_add_export(config, &entry, origin, error);
}

static int add_path(struct server_config *config, const char *path, struct error *error)
{
	struct server_export entry;
	char shown[100];
	int rc;

	server_export_init(&entry);
	rc = server_export_set_name(&entry, "", error);
	if (rc == 0) {
		rc = server_export_set_path(&entry, path, error);
	}
	if (rc < 0) {
		server_export_fini(&entry);
		return rc;
	}
	return server_config_add_export(
		config, &entry, log_escape(shown, sizeof(shown), path, strlen(path)), error);
}

static int set_limit(struct server_config *config, int option_idx, struct error *error)
{
	int limit_idx = options[option_idx].val - OPTION_LIMIT;
	int rc = server_limits_set(&config->limits, limit_keys[limit_idx], optarg, error);

	if (rc < 0) {
		error_prefix(error, "--%s", options[option_idx].name);
	} else if (options[option_idx].val == OPTION_LIMIT) {
		rc = server_config_set_memory_origin(config, "--memory", error);
	}
	return rc;
}

/* What is on the command line beside the configuration itself. */
struct arguments {
	const char *config_path;
	bool wants_help;
};

/* One option into the configuration; the result is an errno or 0, in words in *error. */
static int take_option(struct server_config *config, struct arguments *arguments, int code,
	int option_idx, struct error *error)
{
	int rc;

	switch (code) {
	case 'e':
		return add_export(config, optarg, error);
	case 'l':
		rc = server_config_add_listen(config, optarg, "--listen", error);
		if (rc < 0) {
			error_prefix(error, "--listen");
		}
		return rc;
	case 'c':
		if (arguments->config_path != NULL) {
			return error_set(error, -EINVAL, "--config can be given once only");
		}
		arguments->config_path = optarg;
		return 0;
	case OPTION_RUN:
		return server_config_add_command(config, optarg, error);
	case OPTION_CONTROL:
		rc = server_config_set_control(config, optarg, error);
		if (rc < 0) {
			error_prefix(error, "--control");
		}
		return rc;
	case OPTION_HELP:
		arguments->wants_help = true;
		return 0;
	default:
		return set_limit(config, option_idx, error);
	}
}

/* Fills the configuration from the command line and the file it names. CLI_OK to go on. */
static int parse_arguments(
	struct server_config *config, struct arguments *arguments, int argc, char **argv)
{
	struct error error = { 0 };
	int option_idx = 0;
	int code;
	int rc = 0;

	optind = 1;
	while ((code = getopt_long(argc, argv, ":e:l:c:", options, &option_idx)) != -1) {
		if (code == '?' || code == ':') {
			return cli_option_error(name, code, argv);
		}
		rc = take_option(config, arguments, code, option_idx, &error);
		if (rc < 0) {
			return cli_usage_error(name, "%s", error.text);
		}
		if (arguments->wants_help) {
			return CLI_OK;
		}
	}
	if (argc - optind > 1) {
		return cli_usage_error(name,
			"one PATH at most can be given like this; name the others with --export "
			"NAME=PATH");
	}
	if (optind < argc) {
		rc = add_path(config, argv[optind], &error);
		if (rc < 0) {
			return cli_usage_error(name, "%s", error.text);
		}
	}
	if (arguments->config_path != NULL) {
		rc = server_config_load(config, arguments->config_path, &error);
		if (rc < 0) {
			return cli_failure(name, &error);
		}
	}
	rc = server_config_finish(config, &error);
	return rc < 0 ? cli_usage_error(name, "%s", error.text) : CLI_OK;
}

int cmd_serve(int argc, char **argv)
{
	struct server_config config;
	struct arguments arguments = { 0 };
	struct error error = { 0 };
	int status;
	int rc;

	server_config_init(&config);
	status = parse_arguments(&config, &arguments, argc, argv);
	if (status == CLI_OK && arguments.wants_help) {
		status = cli_print(help);
	} else if (status == CLI_OK) {
		rc = server_run(&config, &status, &error);
		if (rc < 0) {
			status = cli_failure(name, &error);
		}
	}
	server_config_fini(&config);
	return status;
}
