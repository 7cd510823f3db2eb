// SPDX-License-Identifier: Apache-2.0
#include "attach/attach.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"

static const char name[] = "attach";

static const char help[] =
	"Usage: gmblock attach [OPTION]... URI\n"
	"       gmblock attach --list [--json]\n"
	"Attaches an export of a server as a local disk and prints its path. A daemon\n"
	"serves the disk until gmblock detach, and reconnects when the server is lost.\n"
	"\n"
	"      --ublk                  a block device through the ublk driver (/dev/ublkbN)\n"
	"      --nbd                   a block device through the nbd driver (/dev/nbdN)\n"
	"      --fuse FILE             a file, through FUSE, for losetup and others\n"
	"                              (default: ublk, or nbd where the kernel has no ublk)\n"
	"      --force                 with --fuse: also use a FILE with contents, which are\n"
	"                              hidden until gmblock detach\n"
	"      --device N              use the device with this number (default: any free one)\n"
	"      --read-only             refuse writes, whatever the server allows\n"
	"      --connections N         connections to the server, 1 to 16 (default: automatic)\n"
	"      --queues N              ublk: threads with their own connections, 1 to 16 (1)\n"
	"      --connect-timeout TIME  limit for the first connection (10s)\n"
	"      --request-timeout TIME  silence that counts as a lost connection (30s)\n"
	"      --slow-timeout TIME     the same for flushing, trimming and zeroing (10min)\n"
	"      --reconnect-timeout TIME  how long requests wait for a lost server\n"
	"                              before they fail (10min)\n"
	"      --tls-records WHERE     nbd with TLS: what the driver is given. kernel: the\n"
	"                              connection, encrypted by the kernel; user: a relay of\n"
	"                              the daemon; auto (default): the first that works\n"
	"      --foreground            do not start a daemon; for service managers\n"
	"      --list                  list the attached disks\n"
	"      --timings               report on standard error where the time went\n"
	"      --json                  with --list or --timings: as JSON\n"
	"      --log-level LEVEL       messages to print: error, warning, info (default) or\n"
	"                              debug\n"
	"  -h, --help                  print this help\n"
	"\n"
	"Examples:\n"
	"  gmblock attach nbd://storage/data\n"
	"  gmblock attach --fuse disk.raw nbd://storage/data\n"
	"  gmblock attach --list\n"
	"\n"
	"Exit status: 1 failure, 2 usage error.\n";

enum { CONNECTIONS_MAX = 16, DEVICE_MAX = (1 << 20) - 1, QUOTE_BYTES = 256 };

struct arguments {
	struct attach_options attach;
	bool ublk;
	bool nbd;
	bool list;
	bool json;
	bool measure;
	struct timings timings;
};

static int take_device(void *context, const char *option, const char *text)
{
	struct arguments *arguments = context;
	struct error error;
	uint32_t number;

	if (units_parse_count(text, 0, DEVICE_MAX, &number, &error) != 0) {
		return cli_usage_error(name, "--%s: %s", option, error.text);
	}
	arguments->attach.number = (int32_t)number;
	return CLI_GO_ON;
}

static int cli_attach_take_records(void *context, const char *option, const char *text)
{
	static const char *const names[] = {
		[TLS_RECORDS_AUTO] = "auto",
		[TLS_RECORDS_KERNEL] = "kernel",
		[TLS_RECORDS_USER] = "user",
	};
	struct arguments *arguments = context;

	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (strcmp(text, names[i]) == 0) {
			arguments->attach.tls_records = (enum tls_records)i;
			return CLI_GO_ON;
		}
	}
	return cli_usage_error(name, "--%s is auto, kernel or user", option);
}

static int set_kind(struct arguments *arguments)
{
	struct attach_options *attach = &arguments->attach;

	if (arguments->ublk + arguments->nbd + (attach->file != NULL) > 1) {
		return cli_usage_error(name, "only one of --ublk, --nbd and --fuse can be given");
	}
	attach->kind = arguments->ublk	      ? ATTACH_UBLK
		       : arguments->nbd	      ? ATTACH_NBD
		       : attach->file != NULL ? ATTACH_FUSE
					      : ATTACH_ANY;
	return CLI_GO_ON;
}

/* Nothing that is for attaching goes with --list. */
static int check_list(const struct arguments *arguments, int argc)
{
	const struct attach_options *attach = &arguments->attach;
	struct attach_options defaults;
	const struct {
		const char *name;
		bool given;
	} options[] = {
		{ "ublk", arguments->ublk },
		{ "nbd", arguments->nbd },
		{ "fuse", attach->file != NULL },
		{ "force", attach->cover },
		{ "device", attach->number >= 0 },
		{ "read-only", attach->read_only },
		{ "connections", attach->connections > 0 },
		{ "queues", attach->queues > 0 },
		{ "tls-records", attach->tls_records != TLS_RECORDS_AUTO },
		{ "foreground", attach->foreground },
		{ "timings", arguments->measure },
	};

	attach_options_init(&defaults);
	for (size_t i = 0; i < ARRAY_COUNT(options); i++) {
		if (options[i].given) {
			return cli_usage_error(
				name, "--%s is for attaching, not for --list", options[i].name);
		}
	}
	if (attach->connect_timeout_ns != defaults.connect_timeout_ns ||
		attach->request_timeout_ns != defaults.request_timeout_ns ||
		attach->slow_timeout_ns != defaults.slow_timeout_ns ||
		attach->reconnect_timeout_ns != defaults.reconnect_timeout_ns) {
		return cli_usage_error(name, "timeouts are for attaching, not for --list");
	}
	return argc == optind ? CLI_GO_ON : cli_usage_error(name, "--list takes no URI");
}

/* What makes no sense together. */
static int check_arguments(const struct arguments *arguments, int argc)
{
	const struct attach_options *attach = &arguments->attach;
	char quoted[QUOTE_BYTES];
	struct export_uri uri;
	int status;

	if (arguments->list) {
		return check_list(arguments, argc);
	}
	if (arguments->json && !arguments->measure) {
		return cli_usage_error(name, "--json needs --list or --timings");
	}
	if (arguments->measure && attach->foreground) {
		return cli_usage_error(name, "--timings cannot be combined with --foreground");
	}
	if (argc == optind && attach->file != NULL && strstr(attach->file, "://") != NULL) {
		return cli_usage_error(name,
			"--fuse needs a FILE to mount the disk on, before the URI: "
			"gmblock attach --fuse disk.raw %s",
			log_escape(quoted, sizeof(quoted), attach->file, strlen(attach->file)));
	}
	if (argc - optind != 1) {
		return cli_usage_error(name, "give one URI, such as nbd://host/export");
	}
	if (attach->kind != ATTACH_FUSE && attach->cover) {
		return cli_usage_error(name, "--force needs --fuse");
	}
	if (attach->kind == ATTACH_FUSE && attach->number >= 0) {
		return cli_usage_error(name, "--device is for block devices; a file has its name");
	}
	if (attach->queues > 0 && attach->kind != ATTACH_UBLK && attach->kind != ATTACH_ANY) {
		return cli_usage_error(name, "--queues is for ublk");
	}
	status = cli_uri(name, attach->uri, &uri);
	if (status != CLI_GO_ON) {
		return status;
	}
	if (attach->tls_records != TLS_RECORDS_AUTO && (attach->kind != ATTACH_NBD || !uri.tls)) {
		status = cli_usage_error(name, "--tls-records is for --nbd and a URI with TLS");
	}
	export_uri_fini(&uri);
	return status;
}

static int cli_attach_parse_arguments(struct arguments *arguments, int argc, char **argv)
{
	struct attach_options *attach = &arguments->attach;
	const struct cli_option options[] = {
		{ "ublk", .flag = &arguments->ublk },
		{ "nbd", .flag = &arguments->nbd },
		{ "fuse", .path = &attach->file },
		{ "force", .flag = &attach->cover },
		{ "device", .take = take_device },
		{ "read-only", .flag = &attach->read_only },
		{ "connections", .count = &attach->connections, .min = 1, .max = CONNECTIONS_MAX },
		{ "queues", .count = &attach->queues, .min = 1, .max = CONNECTIONS_MAX },
		{ "connect-timeout", .time_ns = &attach->connect_timeout_ns },
		{ "request-timeout", .time_ns = &attach->request_timeout_ns },
		{ "slow-timeout", .time_ns = &attach->slow_timeout_ns },
		{ "reconnect-timeout", .time_ns = &attach->reconnect_timeout_ns },
		{ "tls-records", .take = cli_attach_take_records },
		{ "foreground", .flag = &attach->foreground },
		{ "list", .flag = &arguments->list },
		{ "json", .flag = &arguments->json },
		{ "timings", .flag = &arguments->measure },
	};
	const struct cli_command command = { name, help, options, ARRAY_COUNT(options), arguments };
	int status;

	attach_options_init(attach);
	status = cli_parse(&command, argc, argv);
	if (status == CLI_GO_ON) {
		status = set_kind(arguments);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	attach->uri = argv[optind];
	return check_arguments(arguments, argc);
}

/* Attaches, and says where. */
static int attach(struct arguments *arguments, struct error *error)
{
	static char path[ATTACH_PATH_BYTES];
	int rc;

	timings_mark(&arguments->timings, TIMINGS_ARGUMENTS);
	arguments->attach.timings = arguments->measure ? &arguments->timings : NULL;
	rc = attach_run(&arguments->attach, path, error);
	if (rc != 0 || arguments->attach.foreground) {
		return rc;
	}
	if (!arguments->json && (printf("%s\n", path) < 0 || fflush(stdout) != 0)) {
		return error_set(error, -errno,
			"%s is attached, but that cannot be written to standard output: %s", path,
			strerror(errno));
	}
	if (arguments->measure) {
		rc = timings_print(&arguments->timings, path, arguments->json, error);
	}
	return rc;
}

int cmd_attach(int argc, char **argv)
{
	struct arguments arguments = { 0 };
	struct error error = { 0 };
	int status;
	int rc;

	if (argc == 3 && strcmp(argv[1], ATTACH_FLUSH_OPTION) == 0) {
		return attach_flush(argv[2]);
	}
	timings_begin(&arguments.timings);
	status = cli_attach_parse_arguments(&arguments, argc, argv);
	if (status != CLI_GO_ON) {
		return status;
	}
	rc = arguments.list ? attach_list(arguments.json, &error) : attach(&arguments, &error);
	return rc != 0 ? cli_failure(name, &error) : cli_print("");
}
