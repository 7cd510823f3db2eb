// SPDX-License-Identifier: Apache-2.0
#include <jansson.h>

#include "cli/cli.h"
#include "tools/show.h"

enum { NAME_COLUMNS = 11 };

static const char name[] = "check";

static const char help[] =
	"Usage: gmblock check [--base PATH] [--json] FILE\n"
	"Reads a file of a format of gmblock, an overlay or a flash store, and says what is in\n"
	"it and whether something is wrong. Nothing is changed.\n"
	"\n"
	"  --base PATH  where the base of the overlay is now (default: where it was)\n"
	"  --json       print JSON\n"
	"  -h, --help   print this help\n"
	"\n"
	"Exit status: 0 nothing is wrong, 1 something is, or it cannot be read, 2 usage error.\n"
	"\n"
	"Examples:\n"
	"  gmblock check vm1.overlay\n"
	"  gmblock check --base=/srv/golden.img vm1.overlay\n";

int cmd_check(int argc, char **argv)
{
	const char *base = NULL;
	bool json = false;
	const struct cli_option options[] = {
		{ "base", .path = &base },
		{ "json", .flag = &json },
	};
	const struct cli_command command = { name, help, options, ARRAY_COUNT(options), NULL };
	const char *path = NULL;
	struct error error;
	json_t *found;
	bool is_faulty;
	int status = cli_parse(&command, argc, argv);
	int rc;

	if (status == CLI_GO_ON) {
		status = cli_operand(name, "FILE", argc, argv, &path);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (path == NULL) {
		return cli_usage_error(name, "give the FILE to check");
	}
	found = check_file(path, base, &error);
	if (found == NULL) {
		return cli_failure(name, &error);
	}
	is_faulty = json_array_size(json_object_get(found, "faults")) > 0;
	if (json) {
		rc = print_json(found, &error);
	} else {
		check_print(found, NAME_COLUMNS);
		json_decref(found);
		rc = print_end(&error);
	}
	if (rc < 0) {
		return cli_failure(name, &error);
	}
	return is_faulty ? CLI_FAILURE : CLI_OK;
}
