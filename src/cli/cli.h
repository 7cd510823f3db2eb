// SPDX-License-Identifier: Apache-2.0
/*
 * What all subcommands share: their options as a table, exit statuses, and messages about wrong
 * usage, so that they read the same everywhere.
 *
 * Threading: the main thread. Ownership: borrows its arguments; texts that were taken from the
 * command line stay there. Errors: exit statuses; the message is printed already.
 */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "base/export_uri.h"
#include "base/schema.h"

enum {
	CLI_GO_ON = -1, /* no exit status: nothing is wrong so far */
	CLI_OK = 0,
	CLI_FAILURE = 1,
	CLI_USAGE = 2,
};

/* A command's name and its options, beside those of every command: -h and --help, which print the
 * help text, and --log-level. */
struct cli_command {
	const char *name;
	const char *usage;	    /* what stands before the options in the help text */
	const char *notes;	    /* what stands behind them; NULL: usage is the whole text */
	const struct field *fields; /* an option each */
	size_t field_count;
	void *arguments; /* in which they are set */
	/* Optional: sets a field, in place of field_set(). Its sentence names the option. */
	int (*set)(
		void *arguments, const struct field *field, const char *text, struct error *error);
	const char *const *actions; /* optional: of which the first operand is one; NULL behind */
	/* Optional: the keys that the option keys_option has in its value, or that are operands
	 * (NULL). */
	field_at *keys;
	const char *keys_option;
};

/* For a command's table, and for its field "server". */
#define CLI_FIELDS(table) .fields = (table), .field_count = ARRAY_COUNT(table)
#define CLI_SERVER_HELP                                                                            \
	"one of its URIs, its control socket, or its process id; optional if there is only one "   \
	"server"
#define CLI_SERVER(object)                                                                         \
	{                                                                                          \
		"server", "SERVER", CLI_SERVER_HELP, .type = FIELD_ARGUMENT,                       \
						     FIELD_IN(object, server)                      \
	}
#define CLI_SERVER_OR_OPERAND(object)                                                              \
	{                                                                                          \
		"server", "SERVER", CLI_SERVER_HELP "; SERVER alone as the last word is the same", \
			.type = FIELD_ARGUMENT, FIELD_IN(object, server)                           \
	}

/* Parses the options. CLI_GO_ON: optind is the index of the first operand. Otherwise an exit
 * status, also after -h or --help. */
GMB_MUST_CHECK int cli_parse(const struct cli_command *command, int argc, char **argv);

/* From now on cli_parse() shows a command to see() and returns CLI_OK, in place of parsing; NULL:
 * no more. */
typedef void cli_see(const struct cli_command *command, void *context);
void cli_watch(cli_see *see, void *context);

/* The only operand, which is a noun ("URI"), or NULL for none; more are wrong usage. */
GMB_MUST_CHECK int cli_operand(
	const char *command, const char *noun, int argc, char **argv, const char **operand);

/* The server on this machine that a command is for: what --server named (*server; NULL: it did
 * not), or else the only operand, or NULL for none. Both are wrong usage. */
GMB_MUST_CHECK int cli_server(const char *command, int argc, char **argv, const char **server);

/* What is written here in place of a word that other programs know: an option of the command, or a
 * command, for "". A sentence without its full stop, or NULL. Dashes before the word, and "=" with
 * what follows, do not count. */
const char *cli_habit(const char *command, const char *word);

/* A server's URI, to be freed with export_uri_fini(); warns about an unknown parameter. */
GMB_MUST_CHECK int cli_uri(const char *command, const char *text, struct export_uri *uri);

/* Prints "gmblock COMMAND: sentence" and where to find help; returns CLI_USAGE. */
int cli_usage_error(const char *command, const char *format, ...) GMB_PRINTF(2, 3);

/* Prints "gmblock COMMAND: sentence", whose names may have any bytes; returns CLI_FAILURE. */
int cli_failure(const char *command, const struct error *error);

/* Prints text on standard output; returns CLI_OK, or CLI_FAILURE when it cannot be written. */
int cli_print(const char *text);

/* --- completion.c --------------------------------------------------------------------------- */

struct cli_subcommand {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
};

/* Prints the completion script for a shell: bash, zsh or fish. Returns an exit status. */
int cli_completion(const char *shell, const struct cli_subcommand *commands, size_t count);

/* --- the subcommands ------------------------------------------------------------------------- */

/* Each parses its arguments (argv[0] is its name), calls the floors below and prints. Returns the
 * exit status: 0 success, 1 failure, 2 wrong usage; the message is on standard error already. */

/* Prints the lines that a server has answered with after a change; none: what to print if there are
 * none, or NULL. -ETIMEDOUT and the server's sentence when the change holds, but something of it
 * has not ended. In reload.c. */
GMB_MUST_CHECK int cli_print_changes(const json_t *result, const char *none, struct error *error);

int cmd_serve(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_copy(int argc, char **argv);
int cmd_create(int argc, char **argv);
int cmd_stats(int argc, char **argv);
int cmd_rate(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_push(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_attach(int argc, char **argv);
int cmd_detach(int argc, char **argv);
int cmd_reload(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_snapshot(int argc, char **argv);
int cmd_upgrade(int argc, char **argv);
