// SPDX-License-Identifier: Apache-2.0
#include <errno.h>

#include "base/text.h"
#include "cli/cli.h"
#include "tools/show.h"

#define NS_PER_S	UINT64_C(1000000000)
#define INTERVAL_NS_MIN (NS_PER_S / 10)
#define INTERVAL_NS_MAX (3600 * NS_PER_S)

static const char help[] =
	"Usage: gmblock top [--interval=TIME] [--server SERVER]\n"
	"Shows the activity of a server on this machine in full screen: exports and clients with\n"
	"their rates, latencies and data path.\n"
	"\n";

static const char notes[] = "\n"
			    "Keys: q quits, s changes the order, p pauses.\n"
			    "\n"
			    "Examples:\n"
			    "  gmblock top\n"
			    "  gmblock top --interval=5 nbd://localhost/data\n";

struct top_arguments {
	uint64_t interval_ns;
	const char *server;
};

static int take_interval(void *context, const char *text, struct error *error)
{
	uint64_t *interval_ns = &((struct top_arguments *)context)->interval_ns;
	int rc = units_parse_seconds(text, interval_ns, error);

	return rc == 0 && (*interval_ns < INTERVAL_NS_MIN || *interval_ns > INTERVAL_NS_MAX)
		       ? error_set(error, -ERANGE, "the time must be from 100ms to 1h")
		       : rc;
}

#define AT(member) FIELD_IN(struct top_arguments, member)

static const struct field fields[] = {
	{ "interval", "TIME", "time between updates of the screen (default: 1s)",
		.set = take_interval },
	CLI_SERVER_OR_OPERAND(struct top_arguments),
};

int cmd_top(int argc, char **argv)
{
	struct top_arguments arguments = { .interval_ns = NS_PER_S };
	const struct cli_command command = { .name = "top",
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = &arguments };
	char path[STATS_PATH_BYTES];
	struct error error = { 0 };
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_server("top", argc, argv, &arguments.server);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (stats_find(arguments.server, path, &error) != 0 ||
		top_show(path, arguments.interval_ns, &error) != 0) {
		return cli_failure("top", &error);
	}
	return CLI_OK;
}
