// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>

#include "base/text.h"
#include "cli/cli.h"
#include "tools/show.h"

#define NS_PER_S	UINT64_C(1000000000)
#define INTERVAL_NS_MIN (NS_PER_S / 10)
#define INTERVAL_NS_MAX (3600 * NS_PER_S)

static const char help[] =
	"Usage: gmblock top [--interval=TIME] [--server SERVER]\n"
	"Shows what a server on this machine does, on the whole terminal: exports and clients\n"
	"with their rates, latencies and the path that data takes.\n"
	"\n"
	"  --server SERVER  one of its URIs, its control socket, or its process id;\n"
	"                 optional if there is only one server; SERVER alone as the last\n"
	"                 word is the same\n"
	"  --interval=TIME how often to look (default: 1s)\n"
	"  -h, --help      print this help\n"
	"\n"
	"Keys: q quits, s changes the order, p pauses.\n"
	"\n"
	"Examples:\n"
	"  gmblock top\n"
	"  gmblock top --interval=5 nbd://localhost/data\n";

static int take_interval(void *context, const char *name, const char *text)
{
	uint64_t *interval_ns = context;
	struct error error;

	if (units_parse_seconds(text, interval_ns, &error) != 0) {
		return cli_usage_error("top", "--%s: %s", name, error.text);
	}
	if (*interval_ns < INTERVAL_NS_MIN || *interval_ns > INTERVAL_NS_MAX) {
		return cli_usage_error("top", "--%s: from 100ms to 1h", name);
	}
	return CLI_GO_ON;
}

int cmd_top(int argc, char **argv)
{
	uint64_t interval_ns = NS_PER_S;
	const char *server = NULL;
	const struct cli_option options[] = {
		{ "interval", .take = take_interval },
		{ "server", .text = &server },
	};
	const struct cli_command command = { "top", help, options, ARRAY_COUNT(options),
		&interval_ns };
	char path[STATS_PATH_BYTES];
	struct error error = { 0 };
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_server("top", argc, argv, &server);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (stats_find(server, path, &error) != 0 || top_show(path, interval_ns, &error) != 0) {
		return cli_failure("top", &error);
	}
	return CLI_OK;
}
