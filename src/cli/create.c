// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"
#include "store/store.h"

static const char name[] = "create";

static const char help[] =
	"Usage: gmblock create [OPTION]... flash:PATH\n"
	"       gmblock create --base PATH [--force] overlay:FILE\n"
	"Creates a flash store on a block device or in a file, or an overlay, which holds the\n"
	"changes to a base disk.\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock create --size=20G flash:/srv/disk1.flash\n"
			    "  gmblock create --spare=7 flash:/dev/nvme1n1\n"
			    "  gmblock create --base=golden.img overlay:vm1.overlay\n";

#define AT(member) FIELD_IN(struct store_create, member)

static const struct field fields[] = {
	{ "size", "SIZE", "create a new file of this size; the disk in it is smaller",
		.type = FIELD_BYTES, .min = 1, AT(size) },
	{ "spare", "PERCENT",
		"percentage of the space that is reserved for garbage collection, 7 to 50 (default "
		"15)",
		.type = FIELD_COUNT, .min = 7, .max = 50, AT(spare_percent) },
	{ "segment", "SIZE",
		"segment size of the flash store, 64K to 256M (default 64M, less on small devices)",
		.type = FIELD_BYTES, .min = 65536, AT(segment_bytes) },
	{ "label", "TEXT", "label of the flash store, which 'gmblock check' shows",
		.type = FIELD_ARGUMENT, AT(label) },
	{ "base", "PATH", "path of the base disk of an overlay", .type = FIELD_ARGUMENT, AT(base) },
	{ "force", NULL,
		"overwrite an existing device or file; the changes in an existing overlay are "
		"discarded",
		.type = FIELD_FLAG, AT(force) },
};

int cmd_create(int argc, char **argv)
{
	struct store_create create = { 0 };
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = &create };
	const char *path = NULL;
	struct error error;
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_operand(name, "flash:PATH or overlay:FILE", argc, argv, &path);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (path == NULL) {
		return cli_usage_error(name, "give flash:PATH or overlay:FILE");
	}
	if (store_create_check(path, &create, &error) < 0) {
		return cli_usage_error(name, "%s", error.text);
	}
	if (store_create(path, &create, &error) < 0) {
		return cli_failure(name, &error);
	}
	return CLI_OK;
}
