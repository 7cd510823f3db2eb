// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>

#include "attach/attach.h"
#include "cli/cli.h"
#include "cli/commands.h"

static const char name[] = "detach";

static const char help[] =
	"Usage: gmblock detach [--force] DEVICE|FILE|URI\n"
	"Removes a disk that gmblock attach made: what was written is flushed to the server,\n"
	"and the daemon ends. A disk in use is refused.\n"
	"\n"
	"      --force                 also when it is in use, or the server does not answer:\n"
	"                              what was not flushed is lost\n"
	"      --help                  print this\n"
	"\n"
	"Status 1: it could not be done; 2: wrong usage.\n";

enum { OPTION_FORCE = CLI_OPTION_FIRST, OPTION_HELP };

static const struct option options[] = {
	{ "force", no_argument, NULL, OPTION_FORCE },
	{ "help", no_argument, NULL, OPTION_HELP },
	{ 0 },
};

int cmd_detach(int argc, char **argv)
{
	struct error error = { 0 };
	bool force = false;
	int code;

	optind = 1;
	while ((code = getopt_long(argc, argv, ":", options, NULL)) != -1) {
		if (code == OPTION_HELP) {
			return cli_print(help);
		}
		if (code != OPTION_FORCE) {
			return cli_option_error(name, code, argv);
		}
		force = true;
	}
	if (argc - optind != 1) {
		return cli_usage_error(name, "give one device, file or URI");
	}
	return attach_detach(argv[optind], force, &error) == 0 ? CLI_OK : cli_failure(name, &error);
}
