// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>

#include "attach/attach.h"
#include "cli/cli.h"

static const char name[] = "detach";

static const char help[] =
	"Usage: gmblock detach [--force] [--timeout TIME] DEVICE|FILE|URI\n"
	"Removes a disk that gmblock attach created: flushes it to the server and stops the\n"
	"daemon. A disk in use is refused, and so is a URI of several disks.\n"
	"\n"
	"      --force                 even if it is in use or the server does not answer:\n"
	"                              unflushed data is lost\n"
	"      --timeout TIME          how long the server has to flush what was written; then\n"
	"                              the disk stays attached, and nothing is lost (default:\n"
	"                              the time limits of gmblock attach)\n"
	"  -h, --help                  print this help\n"
	"\n"
	"Examples:\n"
	"  gmblock detach /dev/ublkb0\n"
	"  gmblock detach disk.raw\n"
	"\n"
	"Exit status: 1 failure, 2 usage error.\n";

int cmd_detach(int argc, char **argv)
{
	bool force = false;
	uint64_t limit_ns = 0;
	const struct cli_option options[] = {
		{ "force", .flag = &force },
		{ "timeout", .time_ns = &limit_ns },
	};
	const struct cli_command command = { name, help, options, ARRAY_COUNT(options), NULL };
	struct error error = { 0 };
	int status = cli_parse(&command, argc, argv);

	if (status != CLI_GO_ON) {
		return status;
	}
	if (argc - optind != 1) {
		return cli_usage_error(name, "give one device, file or URI");
	}
	return attach_detach(argv[optind], force, limit_ns, &error) == 0
		       ? CLI_OK
		       : cli_failure(name, &error);
}
