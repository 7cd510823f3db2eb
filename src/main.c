// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "lab/lab.h"
#include "store/kind.h"

#ifdef GMBLOCK_LAB
#define TRACE lab_trace
#else
#define TRACE cmd_trace
#endif

static const struct cli_subcommand commands[] = {
	{ "serve", cmd_serve, "serve disks and image files to NBD clients" },
	{ "list", cmd_list, "list the exports of a server" },
	{ "info", cmd_info, "show what a server offers or this machine supports" },
	{ "bench", cmd_bench, "measure an export: rates, latencies, processor time" },
	{ "stats", cmd_stats, "show what a running server does and where time goes" },
	{ "top", cmd_top, "watch a running server on the terminal" },
	{ "reload", cmd_reload, "make a running server reload its configuration" },
	{ "export", cmd_export, "add, change and remove exports of a running server" },
	{ "snapshot", cmd_snapshot, "take, list and delete snapshots of exports" },
	{ "fence", cmd_fence, "refuse a node of a cluster, and end what it does" },
	{ "unfence", cmd_unfence, "accept a node of a cluster again" },
	{ "lease", cmd_lease, "show and change which clients have an export for themselves" },
	{ "upgrade", cmd_upgrade, "replace a running server without errors for its clients" },
	{ "trace", TRACE, "show where the time of a read or request goes" },
	{ "check", cmd_check, "check an overlay or flash store for corruption" },
	{ "create", cmd_create, "create a flash store or an overlay" },
	{ "copy", cmd_copy, "copy a disk between servers, files, devices and pipes" },
#ifdef GMBLOCK_PUSH
	{ "push", cmd_push, "make one server send a disk to another" },
#endif
	{ "attach", cmd_attach, "attach a remote export as a local disk" },
	{ "detach", cmd_detach, "remove an attached disk" },
};

/* The kinds of stores, then the filters, the innermost first. */
static const struct store_kind *const store_kinds[] = {
	&file_store_kind,
	&memory_store_kind,
	&null_store_kind,
	&flash_store_kind,
	&overlay_store_kind,
	&pace_store_kind,
	&sched_store_kind,
	&delay_store_kind,
	&fault_store_kind,
	&failover_store_kind,
#ifdef GMBLOCK_LAB
	&knobs_store_kind,
#endif
};

static void print_usage(FILE *out)
{
	fprintf(out, "Usage: gmblock COMMAND [ARGUMENT]...\n"
		     "Network block storage.\n"
		     "\n"
		     "Commands:\n");
	for (size_t i = 0; i < ARRAY_COUNT(commands); i++) {
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].summary);
	}
	fprintf(out,
		"  %-8s %s\n"
		"\n"
		"'gmblock COMMAND --help' describes a command; 'gmblock --version' prints the "
		"version.\n"
		"Every command takes --log-level=error|warning|info|debug, the messages to "
		"print.\n",
		"help", "describe a command");
}

static const struct cli_subcommand *main_find_command(const char *name)
{
	for (size_t i = 0; i < ARRAY_COUNT(commands); i++) {
		if (strcmp(name, commands[i].name) == 0) {
			return &commands[i];
		}
	}
	return NULL;
}

static int unknown_command(const char *name)
{
	static const char *const options[] = { "--help", "--version" };
	bool is_option = name[0] == '-';
	char meant[NEAR_TEXT_BYTES];
	const char *habit = cli_habit("", name);
	struct near near;
	const char *shown = quote(name);

	if (habit != NULL) {
		fprintf(stderr, "gmblock: unknown %s '%s': %s\nTry 'gmblock --help'.\n",
			is_option ? "option" : "command", shown, habit);
		return CLI_USAGE;
	}
	near_begin(&near, name);
	for (size_t i = 0; is_option && i < ARRAY_COUNT(options); i++) {
		near_try(&near, options[i]);
	}
	for (size_t i = 0; !is_option && i < ARRAY_COUNT(commands); i++) {
		near_try(&near, commands[i].name);
	}
	fprintf(stderr, "gmblock: unknown %s '%s'%s\nTry 'gmblock --help'.\n",
		is_option ? "option" : "command", shown, near_text(&near, "", meant));
	return CLI_USAGE;
}

static const char help_usage[] = "Usage: gmblock help [COMMAND]\n"
				 "Describes a command, as 'gmblock COMMAND --help' does. Without a "
				 "command, lists them.\n"
				 "\n"
				 "  -h, --help  print this help\n"
				 "\n"
				 "The manual pages say more: man gmblock-COMMAND.\n";

static int finish_output(void)
{
	if (fflush(stdout) != 0) {
		fprintf(stderr, "gmblock: cannot write to standard output: %s\n", strerror(errno));
		return CLI_FAILURE;
	}
	return CLI_OK;
}

static int run_help(int argc, char **argv)
{
	static const struct cli_command self = { .name = "help", .usage = help_usage };
	char help[] = "--help";
	char *arguments[] = { NULL, help, NULL };
	const struct cli_subcommand *command;
	const char *wanted = NULL;
	int status = cli_parse(&self, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_operand(self.name, "command", argc, argv, &wanted);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (wanted == NULL) {
		print_usage(stdout);
		return finish_output();
	}
	if (strcmp(wanted, self.name) == 0) {
		return cli_print(help_usage);
	}
	command = main_find_command(wanted);
	arguments[0] = argv[optind];
	return command != NULL ? command->run(2, arguments) : unknown_command(wanted);
}

/* Opens the standard descriptors that are closed, because a disk that gets descriptor 2 would
 * receive our log. Standard input is opened only for writing, and the others only for reading, so
 * that using them still fails: a copy to a closed standard output must not succeed. */
static void occupy_standard_descriptors(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		int way = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;

		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", way | O_CLOEXEC) != fd) {
			abort();
		}
	}
}

int main(int argc, char **argv)
{
	const struct cli_subcommand *command;

	for (size_t i = 0; i < ARRAY_COUNT(store_kinds); i++) {
		store_register(store_kinds[i]);
	}
	occupy_standard_descriptors();
	log_init();
	if (argc < 2) {
		print_usage(stderr);
		return CLI_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		print_usage(stdout);
		return finish_output();
	}
	if (strcmp(argv[1], "help") == 0) {
		return run_help(argc - 1, argv + 1);
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
		return cli_print("gmblock " GMBLOCK_VERSION "\n");
	}
	if (strcmp(argv[1], "--completion") == 0) {
		return cli_completion(argc > 2 ? argv[2] : "", commands, ARRAY_COUNT(commands));
	}
	command = main_find_command(argv[1]);
	return command != NULL ? command->run(argc - 1, argv + 1) : unknown_command(argv[1]);
}
