// SPDX-License-Identifier: Apache-2.0
#include <jansson.h>

#include "cli/cli.h"
#include "store/store.h"
#include "tools/show.h"

enum { NAME_COLUMNS = 11 };

static const char name[] = "check";

static const char help[] =
	"Usage: gmblock check [OPTION]... FILE\n"
	"Checks an overlay or a flash store for corruption and describes its contents. FILE is\n"
	"changed only with --rebuild or --accept-loss.\n"
	"\n";

static const char notes[] =
	"\n"
	"Exit status: 0 no errors found, 1 errors found or FILE unreadable, 2 usage error.\n"
	"\n"
	"Examples:\n"
	"  gmblock check vm1.overlay\n"
	"  gmblock check --base=/srv/golden.img vm1.overlay\n"
	"  gmblock check --rebuild disk1.flash\n";

struct check_arguments {
	const char *base;
	bool json;
	bool rebuilds;
	bool accepts_loss;
};

#define AT(member) FIELD_IN(struct check_arguments, member)

static const struct field fields[] = {
	{ "base", "PATH", "current path of the overlay's base (default: the recorded path)",
		.type = FIELD_ARGUMENT, AT(base) },
	{ "rebuild", NULL, "rebuild the map of a flash store from its log before the check",
		.type = FIELD_FLAG, AT(rebuilds) },
	{ "accept-loss", NULL,
		"before the check, truncate the log of a flash store where it is damaged; flushed "
		"changes after that point are lost",
		.type = FIELD_FLAG, AT(accepts_loss) },
	{ "json", NULL, "print JSON", .type = FIELD_FLAG, AT(json) },
};

int cmd_check(int argc, char **argv)
{
	struct check_arguments arguments = { 0 };
	uint32_t repairs;
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = &arguments };
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
	repairs = (arguments.rebuilds ? STORE_REPAIR_MAP : 0U) |
		  (arguments.accepts_loss ? STORE_REPAIR_LOSS : 0U);
	if (repairs != 0 && check_repair(path, repairs, &error) < 0) {
		return cli_failure(name, &error);
	}
	found = check_file(path, arguments.base, &error);
	if (found == NULL) {
		return cli_failure(name, &error);
	}
	is_faulty = json_array_size(json_object_get(found, "faults")) > 0;
	if (arguments.json) {
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
