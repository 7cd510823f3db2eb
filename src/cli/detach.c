// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>

#include "attach/attach.h"
#include "cli/cli.h"

static const char name[] = "detach";

static const char help[] =
	"Usage: gmblock detach [--force] [--timeout TIME] DEVICE|FILE|URI\n"
	"Removes a disk that gmblock attach created: flushes it to the server and stops the\n"
	"daemon. Fails if the disk is in use or several disks have the URI.\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock detach /dev/ublkb0\n"
			    "  gmblock detach disk.raw\n"
			    "\n"
			    "Exit status: 1 failure, 2 usage error.\n";

struct detach_arguments {
	bool force;
	uint64_t limit_ns;
};

#define AT(member) FIELD_IN(struct detach_arguments, member)

static const struct field fields[] = {
	{ "force", NULL,
		"detach even if the disk is in use or the server does not respond; unflushed data "
		"is lost",
		.type = FIELD_FLAG, AT(force) },
	{ "timeout", "TIME",
		"time limit for the flush; if it expires, the disk stays attached and no data is "
		"lost (default: the time limits of gmblock attach)",
		.type = FIELD_TIME, .min = 1, AT(limit_ns) },
};

int cmd_detach(int argc, char **argv)
{
	struct detach_arguments arguments = { 0 };
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = &arguments };
	struct error error = { 0 };
	int status = cli_parse(&command, argc, argv);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (argc - optind != 1) {
		return cli_usage_error(name, "give one device, file or URI");
	}
	return attach_detach(argv[optind], arguments.force, arguments.limit_ns, &error) == 0
		       ? CLI_OK
		       : cli_failure(name, &error);
}
