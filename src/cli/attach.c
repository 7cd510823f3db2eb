// SPDX-License-Identifier: Apache-2.0
#include "attach/attach.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"

static const char name[] = "attach";

static const char help[] =
	"Usage: gmblock attach [OPTION]... URI\n"
	"       gmblock attach --list [--json]\n"
	"Attaches a server's export as a local disk and prints the path of the disk. A daemon\n"
	"serves the disk until 'gmblock detach' stops it, and reconnects to the server if the\n"
	"connection is lost.\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock attach nbd://storage/data\n"
			    "  gmblock attach --fuse disk.raw nbd://storage/data\n"
			    "  gmblock attach --list\n"
			    "\n"
			    "Exit status: 1 failure, 2 usage error.\n";

#define NS_PER_MS UINT64_C(1000000)

enum { QUEUES_MAX = 16, DEVICE_MAX = (1 << 20) - 1, READAHEAD_BYTES_MAX = 1 << 30 };

struct arguments {
	struct attach_options attach;
	bool ublk;
	bool nbd;
	bool exclusive;
	bool shared;
	bool list;
	bool json;
	bool measure;
	struct timings timings;
};

static int take_device(void *context, const char *text, struct error *error)
{
	struct arguments *arguments = context;
	uint32_t number = 0;
	int rc = units_parse_count(text, 0, DEVICE_MAX, &number, error);

	arguments->attach.number = (int32_t)number;
	return rc;
}

static int take_attach_connections(void *context, const char *text, struct error *error)
{
	struct arguments *arguments = context;

	return cli_connections(text, CLI_CONNECTIONS_MAX, 0, &arguments->attach.connections, error);
}

static int take_readahead(void *context, const char *text, struct error *error)
{
	struct arguments *arguments = context;
	uint64_t *bytes = &arguments->attach.readahead_bytes;
	int rc;

	if (strcmp(text, "auto") == 0) {
		*bytes = READAHEAD_AUTO;
		return 0;
	}
	rc = units_parse_bytes(text, bytes, error);
	if (rc == 0 && (*bytes % 1024 != 0 || *bytes > READAHEAD_BYTES_MAX)) {
		rc = error_set(error, -EINVAL,
			"must be auto, or a multiple of 1K from 0 to 1G, not %s", quote(text));
	}
	return rc;
}

static int take_lease_timeout(void *context, const char *text, struct error *error)
{
	struct arguments *arguments = context;
	uint64_t ns = 0;
	int rc = units_parse_time(text, &ns, error);

	if (rc == 0 && (ns < LEASE_MS_MIN * NS_PER_MS || ns > LEASE_MS_MAX * NS_PER_MS)) {
		rc = error_set(error, -ERANGE, "the time must be 100ms to 1h");
	}
	arguments->attach.lease.ms = (uint32_t)(ns / NS_PER_MS);
	return rc;
}

static const char *const records_words[] = { [TLS_RECORDS_AUTO] = "auto",
	[TLS_RECORDS_KERNEL] = "kernel",
	[TLS_RECORDS_USER] = "user",
	NULL };

static int set_lease(struct arguments *arguments)
{
	struct lease_want *lease = &arguments->attach.lease;

	if (arguments->exclusive && arguments->shared) {
		return cli_usage_error(name, "give either --exclusive or --shared");
	}
	lease->mode = arguments->exclusive ? LEASE_EXCLUSIVE
		      : arguments->shared  ? LEASE_SHARED
					   : LEASE_NONE;
	if (lease->mode == LEASE_NONE && (lease->preempt || lease->ms != LEASE_MS_DEFAULT)) {
		return cli_usage_error(name, "--%s needs --exclusive or --shared",
			lease->preempt ? "preempt" : "lease-timeout");
	}
	if (lease->mode != LEASE_NONE &&
		lease->ms * NS_PER_MS <= arguments->attach.request_timeout_ns) {
		log_warning("--lease-timeout is not longer than --request-timeout: if the server "
			    "does not respond, the disk loses its lease before it reconnects");
	}
	return CLI_GO_ON;
}

/* Gives the disk a random name. The server uses it to recognize the disk as the holder of its
 * lease. */
static int name_lease(struct arguments *arguments, struct error *error)
{
	uint8_t *id = arguments->attach.lease.id;

	return getrandom(id, LEASE_ID_BYTES, 0) == LEASE_ID_BYTES
		       ? 0
		       : error_set(error, -EIO, "cannot get random numbers from the system");
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

static int check_list(const struct cli_command *command, int argc)
{
	static const char *const with_list[] = { "list", "json", NULL };
	struct arguments defaults = { 0 };
	int status;

	attach_options_init(&defaults.attach);
	status = cli_alone(command, &defaults, with_list);
	if (status != CLI_GO_ON) {
		return status;
	}
	return argc == optind ? CLI_GO_ON : cli_usage_error(name, "--list takes no URI");
}

static int check_arguments(
	const struct cli_command *command, const struct arguments *arguments, int argc)
{
	const struct attach_options *attach = &arguments->attach;
	struct export_uri uri;
	int status;

	if (arguments->list) {
		return check_list(command, argc);
	}
	if (arguments->json && !arguments->measure) {
		return cli_usage_error(name, "--json needs --list or --timings");
	}
	if (arguments->measure && attach->foreground) {
		return cli_usage_error(name, "--timings cannot be combined with --foreground");
	}
	if (argc == optind && attach->file != NULL && strstr(attach->file, "://") != NULL) {
		return cli_usage_error(name,
			"--fuse needs a FILE as mount point, before the URI: gmblock attach --fuse "
			"disk.raw %s",
			quote(attach->file));
	}
	if (argc - optind != 1) {
		return cli_usage_error(name, "give one URI, such as nbd://host/export");
	}
	if (attach->kind != ATTACH_FUSE && attach->cover) {
		return cli_usage_error(name, "--force needs --fuse");
	}
	if (attach->kind == ATTACH_FUSE && attach->number >= 0) {
		return cli_usage_error(
			name, "--device can be used only for block devices, not with --fuse");
	}
	if (attach->queues > 0 && attach->kind != ATTACH_UBLK && attach->kind != ATTACH_ANY) {
		return cli_usage_error(name, "--queues can be used only with the ublk driver");
	}
	status = cli_uri(name, attach->uri, &uri);
	if (status != CLI_GO_ON) {
		return status;
	}
	if (attach->tls_records != TLS_RECORDS_AUTO && (attach->kind != ATTACH_NBD || !uri.tls)) {
		status = cli_usage_error(
			name, "--tls-records can be used only with --nbd and a URI with TLS");
	}
	export_uri_fini(&uri);
	return status;
}

#define AT(member) FIELD_IN(struct arguments, member)

static const struct field fields[] = {
	{ "ublk", NULL, "attach as a block device of the ublk driver (/dev/ublkbN)",
		.type = FIELD_FLAG, AT(ublk) },
	{ "nbd", NULL, "attach as a block device of the nbd driver (/dev/nbdN)", .type = FIELD_FLAG,
		AT(nbd) },
	{ "fuse", "FILE",
		"attach as the regular file FILE through FUSE, for example for losetup (default: "
		"as a block device of ublk, or of nbd if the kernel has no ublk)",
		.type = FIELD_ARGUMENT, AT(attach.file) },
	{ "force", NULL,
		"with --fuse: accept a FILE that is not empty; its contents are hidden until the "
		"disk is detached",
		.type = FIELD_FLAG, AT(attach.cover) },
	{ "device", "N", "use the block device with this number (default: any free number)",
		.set = take_device, AT(attach.number) },
	{ "read-only", NULL, "reject writes to the disk, even if the server allows them",
		.type = FIELD_FLAG, AT(attach.read_only) },
	{ "exclusive", NULL,
		"attach only if no other client has a lease of the export, and refuse others",
		.type = FIELD_FLAG, AT(exclusive) },
	{ "shared", NULL,
		"attach only if no other client has an exclusive lease, and refuse such leases",
		.type = FIELD_FLAG, AT(shared) },
	{ "preempt", NULL,
		"with --exclusive or --shared: take the lease from the clients that have it",
		.type = FIELD_FLAG, AT(attach.lease.preempt) },
	{ "lease-timeout", "TIME",
		"with --exclusive or --shared: time without a connection after which the lease "
		"ends (default: 60s); longer than --request-timeout",
		.set = take_lease_timeout, AT(attach.lease.ms) },
	{ "connections", "N",
		"number of connections to the server, 1 to 16, or auto: as many as make the disk "
		"faster (default)",
		.set = take_attach_connections, AT(attach.connections) },
	{ "queues", "N",
		"number of ublk threads, each with its own connections, 1 to 16 (default: 1)",
		.type = FIELD_COUNT, .min = 1, .max = QUEUES_MAX, AT(attach.queues) },
	{ "readahead", "SIZE",
		"how much the kernel reads in advance for sequential reads through its cache, up "
		"to 1G, or auto: 512K to 8M, measured (default)",
		.set = take_readahead, AT(attach.readahead_bytes) },
	{ "connect-timeout", "TIME",
		"time limit for the first connection to the server (default: 10s)",
		.type = FIELD_TIME, .min = 1, AT(attach.connect_timeout_ns) },
	{ "request-timeout", "TIME",
		"time without a response of the server after which a connection counts as lost "
		"(default: 30s)",
		.type = FIELD_TIME, .min = 1, AT(attach.request_timeout_ns) },
	{ "slow-timeout", "TIME",
		"like --request-timeout, but for flush, trim, zero and durable write requests "
		"(default: 10min; with nbd and several hosts 1min)",
		.type = FIELD_TIME, .min = 1, AT(attach.slow_timeout_ns) },
	{ "reconnect-timeout", "TIME",
		"time that requests wait for a reconnection before they fail (default: 10min)",
		.type = FIELD_TIME, .min = 1, AT(attach.reconnect_timeout_ns) },
	{ "tls-records", NULL,
		"with --nbd and TLS: encrypt in the kernel (kernel), or in the daemon, which then "
		"relays all data (user); auto (default) uses the kernel if it can",
		.type = FIELD_WORD, .words = records_words, AT(attach.tls_records) },
	{ "foreground", NULL,
		"serve the disk in the foreground instead of in a daemon; for service managers",
		.type = FIELD_FLAG, AT(attach.foreground) },
	{ "list", NULL, "list the attached disks", .type = FIELD_FLAG, AT(list) },
	{ "json", NULL, "with --list or --timings: print JSON", .type = FIELD_FLAG, AT(json) },
	{ "timings", NULL, "report the duration of each step of attaching on standard error",
		.type = FIELD_FLAG, AT(measure) },
};

static int cli_attach_parse_arguments(struct arguments *arguments, int argc, char **argv)
{
	struct attach_options *attach = &arguments->attach;
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = arguments };
	int status;

	attach_options_init(attach);
	status = cli_parse(&command, argc, argv);
	if (status == CLI_GO_ON) {
		status = set_kind(arguments);
	}
	if (status == CLI_GO_ON) {
		status = set_lease(arguments);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	attach->uri = argv[optind];
	return check_arguments(&command, arguments, argc);
}

static int attach(struct arguments *arguments, struct error *error)
{
	static char path[ATTACH_PATH_BYTES];
	int rc;

	timings_mark(&arguments->timings, TIMINGS_ARGUMENTS);
	arguments->attach.timings = arguments->measure ? &arguments->timings : NULL;
	rc = name_lease(arguments, error) ?: attach_run(&arguments->attach, path, error);
	if (rc != 0 || arguments->attach.foreground) {
		return rc;
	}
	if (!arguments->json && (printf("%s\n", path) < 0 || fflush(stdout) != 0)) {
		return error_set(error, -errno,
			"%s is attached, but its path cannot be written to standard output: %s",
			path, strerror(errno));
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
	if (rc != 0 && (strstr(error.text, " has the exclusive lease") != NULL ||
			       strstr(error.text, " has a shared lease") != NULL)) {
		error_add(&error, "; --preempt takes the lease from this client");
	}
	return rc != 0 ? cli_failure(name, &error) : cli_print("");
}
