// SPDX-License-Identifier: Apache-2.0
#include "attach/attach.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/commands.h"

static const char name[] = "attach";

static const char help[] =
	"Usage: gmblock attach [OPTION]... URI\n"
	"       gmblock attach --list [--json]\n"
	"Makes an export of an NBD server a disk of this machine, and prints its path. A\n"
	"daemon stays, which reconnects when the server was away. gmblock detach ends it.\n"
	"\n"
	"      --ublk                  a block device through the ublk driver (/dev/ublkbN)\n"
	"      --nbd                   a block device through the nbd driver (/dev/nbdN)\n"
	"      --fuse FILE             a file, through FUSE; losetup makes a disk of it\n"
	"                              (default: ublk, or nbd where the kernel has no ublk)\n"
	"      --device N              take the device with this number, not any free one\n"
	"      --read-only             refuse writes, whatever the server allows\n"
	"      --connections N         connections to the server, 1 to 16 (default: chosen)\n"
	"      --queues N              ublk: threads, each with connections, 1 to 16 (1)\n"
	"      --connect-timeout TIME  for the first connection (10s)\n"
	"      --request-timeout TIME  silence that counts as a lost connection (30s)\n"
	"      --reconnect-timeout TIME  how long a lost server is waited for before\n"
	"                              requests fail (10min)\n"
	"      --foreground            stay, do not start a daemon; for service managers\n"
	"      --list                  show what is attached\n"
	"      --json                  with --list: as JSON\n"
	"      --help                  print this\n"
	"\n"
	"Status 1: it could not be done; 2: wrong usage.\n";

enum {
	OPTION_UBLK = CLI_OPTION_FIRST,
	OPTION_NBD,
	OPTION_FUSE,
	OPTION_DEVICE,
	OPTION_READ_ONLY,
	OPTION_CONNECTIONS,
	OPTION_QUEUES,
	OPTION_CONNECT_TIMEOUT,
	OPTION_REQUEST_TIMEOUT,
	OPTION_RECONNECT_TIMEOUT,
	OPTION_FOREGROUND,
	OPTION_LIST,
	OPTION_JSON,
	OPTION_HELP,
};

enum { CONNECTIONS_MAX = 16, DEVICE_MAX = (1 << 20) - 1 };

static const struct option options[] = {
	{ "ublk", no_argument, NULL, OPTION_UBLK },
	{ "nbd", no_argument, NULL, OPTION_NBD },
	{ "fuse", required_argument, NULL, OPTION_FUSE },
	{ "device", required_argument, NULL, OPTION_DEVICE },
	{ "read-only", no_argument, NULL, OPTION_READ_ONLY },
	{ "connections", required_argument, NULL, OPTION_CONNECTIONS },
	{ "queues", required_argument, NULL, OPTION_QUEUES },
	{ "connect-timeout", required_argument, NULL, OPTION_CONNECT_TIMEOUT },
	{ "request-timeout", required_argument, NULL, OPTION_REQUEST_TIMEOUT },
	{ "reconnect-timeout", required_argument, NULL, OPTION_RECONNECT_TIMEOUT },
	{ "foreground", no_argument, NULL, OPTION_FOREGROUND },
	{ "list", no_argument, NULL, OPTION_LIST },
	{ "json", no_argument, NULL, OPTION_JSON },
	{ "help", no_argument, NULL, OPTION_HELP },
	{ 0 },
};

struct arguments {
	struct attach_options attach;
	bool list;
	bool json;
	bool help;
};

static int set_kind(struct attach_options *attach, enum attach_kind kind, struct error *error)
{
	if (attach->kind != ATTACH_ANY && attach->kind != kind) {
		return error_set(
			error, -EINVAL, "only one of --ublk, --nbd and --fuse can be given");
	}
	attach->kind = kind;
	return 0;
}

static int set_timeout(uint64_t *timeout_ns, struct error *error)
{
	int rc = units_parse_time(optarg, timeout_ns, error);

	if (rc == 0 && *timeout_ns == 0) {
		rc = error_set(error, -EINVAL, "a timeout of 0 is no time at all");
	}
	return rc;
}

static int set_number(struct attach_options *attach, struct error *error)
{
	uint32_t number;
	int rc = units_parse_count(optarg, 0, DEVICE_MAX, &number, error);

	if (rc == 0) {
		attach->number = (int32_t)number;
	}
	return rc;
}

static int take_option(struct arguments *arguments, int code, struct error *error)
{
	struct attach_options *attach = &arguments->attach;

	switch (code) {
	case OPTION_UBLK:
		return set_kind(attach, ATTACH_UBLK, error);
	case OPTION_NBD:
		return set_kind(attach, ATTACH_NBD, error);
	case OPTION_FUSE:
		attach->file = optarg;
		return set_kind(attach, ATTACH_FUSE, error);
	case OPTION_DEVICE:
		return set_number(attach, error);
	case OPTION_READ_ONLY:
		attach->read_only = true;
		return 0;
	case OPTION_CONNECTIONS:
		return units_parse_count(optarg, 1, CONNECTIONS_MAX, &attach->connections, error);
	case OPTION_QUEUES:
		return units_parse_count(optarg, 1, CONNECTIONS_MAX, &attach->queues, error);
	case OPTION_CONNECT_TIMEOUT:
		return set_timeout(&attach->connect_timeout_ns, error);
	case OPTION_REQUEST_TIMEOUT:
		return set_timeout(&attach->request_timeout_ns, error);
	case OPTION_RECONNECT_TIMEOUT:
		return set_timeout(&attach->reconnect_timeout_ns, error);
	case OPTION_FOREGROUND:
		attach->foreground = true;
		return 0;
	case OPTION_LIST:
		arguments->list = true;
		return 0;
	case OPTION_JSON:
		arguments->json = true;
		return 0;
	default:
		arguments->help = true;
		return 0;
	}
}

/* What makes no sense together. */
static int check_arguments(const struct arguments *arguments, int argc)
{
	const struct attach_options *attach = &arguments->attach;

	if (arguments->list) {
		return argc == optind ? CLI_OK : cli_usage_error(name, "--list takes no URI");
	}
	if (arguments->json) {
		return cli_usage_error(name, "--json goes with --list");
	}
	if (argc - optind != 1) {
		return cli_usage_error(name, "give one URI, such as nbd://host/export");
	}
	if (attach->kind == ATTACH_FUSE && attach->number >= 0) {
		return cli_usage_error(name, "--device is for block devices; a file has its name");
	}
	if (attach->queues > 0 && attach->kind != ATTACH_UBLK && attach->kind != ATTACH_ANY) {
		return cli_usage_error(name, "--queues is for ublk");
	}
	return CLI_OK;
}

static int parse_arguments(struct arguments *arguments, int argc, char **argv)
{
	struct error error = { 0 };
	int option_idx = 0;
	int code;

	attach_options_init(&arguments->attach);
	optind = 1;
	while ((code = getopt_long(argc, argv, ":", options, &option_idx)) != -1) {
		if (code == '?' || code == ':') {
			return cli_option_error(name, code, argv);
		}
		if (take_option(arguments, code, &error) < 0) {
			return cli_usage_error(
				name, "--%s: %s", options[option_idx].name, error.text);
		}
		if (arguments->help) {
			return CLI_OK;
		}
	}
	arguments->attach.uri = argv[optind];
	return check_arguments(arguments, argc);
}

int cmd_attach(int argc, char **argv)
{
	static char path[ATTACH_PATH_BYTES];
	struct arguments arguments = { 0 };
	struct error error = { 0 };
	int status = parse_arguments(&arguments, argc, argv);
	int rc;

	if (status != CLI_OK) {
		return status;
	}
	if (arguments.help) {
		return cli_print(help);
	}
	rc = arguments.list ? attach_list(arguments.json, &error)
			    : attach_run(&arguments.attach, path, &error);
	if (rc != 0) {
		return cli_failure(name, &error);
	}
	if (!arguments.list && !arguments.attach.foreground) {
		printf("%s\n", path);
	}
	return cli_print("");
}
