// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "cli/cli.h"
#include "store/store.h"

static const char name[] = "create";

static const char help[] =
	"Usage: gmblock create [OPTION]... flash:PATH\n"
	"       gmblock create --base PATH [--force] overlay:FILE\n"
	"Makes a flash store on a block device, or in a file; or an overlay, which keeps what\n"
	"is changed of a disk.\n"
	"\n"
	"  --size SIZE     make a file of this size, which must not exist; the disk in it\n"
	"                  is smaller\n"
	"  --spare PERCENT part that is kept for the collector, 7 to 50 (default 15)\n"
	"  --segment SIZE  what is written and collected as one, 64K to 256M\n"
	"                  (default 64M, less on small devices)\n"
	"  --label TEXT    a name for people, which 'gmblock check' shows\n"
	"  --base PATH     the disk below an overlay\n"
	"  --force         whatever is on the device or in the file is lost; an overlay is\n"
	"                  made anew, without its changes\n"
	"  -h, --help      print this help\n"
	"\n"
	"Examples:\n"
	"  gmblock create --size=20G flash:/srv/disk1.flash\n"
	"  gmblock create --spare=7 flash:/dev/nvme1n1\n"
	"  gmblock create --base=golden.img overlay:vm1.overlay\n";

int cmd_create(int argc, char **argv)
{
	struct store_create create = { 0 };
	const struct cli_option options[] = {
		{ "size", .bytes = &create.size, .min = 1 },
		{ "spare", .count = &create.spare_percent, .min = 7, .max = 50 },
		{ "segment", .bytes = &create.segment_bytes, .min = 65536 },
		{ "label", .text = &create.label },
		{ "base", .text = &create.base },
		{ "force", .flag = &create.force },
	};
	const struct cli_command command = { name, help, options, ARRAY_COUNT(options), NULL };
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
