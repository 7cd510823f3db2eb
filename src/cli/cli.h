// SPDX-License-Identifier: Apache-2.0
/*
 * The parts that all subcommands share: option tables, exit statuses, and messages about wrong
 * usage, so that these are uniform.
 *
 * Threading: the main thread. Ownership: borrows its arguments; texts from the command line are not
 * copied. Errors: exit statuses; the message has already been printed.
 */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "base/export_uri.h"
#include "base/schema.h"

enum {
	CLI_GO_ON = -1, /* not an exit status: no error so far */
	CLI_OK = 0,
	CLI_FAILURE = 1,
	CLI_USAGE = 2,
};

/* A command's name and options. Every command also has -h and --help, which print the help text,
 * and --log-level. */
struct cli_command {
	const char *name;
	const char *usage; /* text before the options in the help text */
	const char *notes; /* text after the options; NULL: the help text is only `usage` */
	const struct field *fields; /* one per option */
	size_t field_count;
	void *arguments; /* the object that the fields set */
	/* Optional: sets a field instead of field_set(). An error message names the
	 * option. */
	int (*set)(
		void *arguments, const struct field *field, const char *text, struct error *error);
	const char *const *actions; /* optional: values of the first operand; NULL-terminated */
	/* Optional: keys that are completed in the value of the option keys_option, or in operands
	 * if keys_option is NULL. */
	field_at *keys;
	const char *keys_option;
};

/* The fields of a table as members of struct cli_command, and the table row of the field
 * "server". */
#define CLI_FIELDS(table) .fields = (table), .field_count = ARRAY_COUNT(table)
#define CLI_SERVER_HELP                                                                            \
	"the server: one of its URIs, its control socket, or its process ID; optional if the "     \
	"user runs only one server"
#define CLI_SERVER(object)                                                                         \
	{                                                                                          \
		"server", "SERVER", CLI_SERVER_HELP, .type = FIELD_ARGUMENT,                       \
						     FIELD_IN(object, server)                      \
	}
#define CLI_SERVER_OR_OPERAND(object)                                                              \
	{                                                                                          \
		"server", "SERVER",                                                                \
			CLI_SERVER_HELP "; SERVER can also be the last operand, without --server", \
			.type = FIELD_ARGUMENT, FIELD_IN(object, server)                           \
	}

/* Parses the options. Returns CLI_GO_ON with optind at the first operand. Otherwise returns an exit
 * status, also after -h or --help. */
GMB_MUST_CHECK int cli_parse(const struct cli_command *command, int argc, char **argv);

/* Like cli_parse(), and sets *action to the index of the first operand in command->actions. Other
 * operands are wrong usage. optind is at the operand after it. */
GMB_MUST_CHECK int cli_parse_action(
	const struct cli_command *command, int argc, char **argv, int *action);

/* Makes cli_parse() call see() with the command and return CLI_OK instead of parsing. If `see` is
 * NULL, cli_parse() parses again from now on. */
typedef void cli_see(const struct cli_command *command, void *context);
void cli_watch(cli_see *see, void *context);

/* Rejects options[0] together with any option that is not in the list `options`, which ends with
 * NULL. An option was given if the value of its field is not that in `defaults`; NULL: zero. */
GMB_MUST_CHECK int cli_alone(
	const struct cli_command *command, const void *defaults, const char *const *options);

/* Sets *operand to the only operand. noun is its name in messages ("URI"); NULL: no operand is
 * permitted. More operands are wrong usage. */
GMB_MUST_CHECK int cli_operand(
	const char *command, const char *noun, int argc, char **argv, const char **operand);

/* Returns false, and reports wrong usage, unless all words are valid UTF-8. what: what the words
 * are, as the subject of the message. */
GMB_MUST_CHECK bool cli_utf8(const char *command, const char *what, char **words, int count);

/* Determines the server on this machine to which a command applies: the value of --server (*server;
 * NULL: not given), otherwise the only operand, otherwise NULL. Giving both is wrong usage. */
GMB_MUST_CHECK int cli_server(const char *command, int argc, char **argv, const char **server);

/* Returns gmblock's equivalent of a word that other programs use, as a sentence without a full
 * stop; NULL: there is none. The word is an option of the command, or if command is "", a command.
 * Dashes before the word, and "=" with the text after it, are ignored. */
const char *cli_habit(const char *command, const char *word);

/* Parses a server's URI, to be freed with export_uri_fini(); warns about an unknown parameter. */
GMB_MUST_CHECK int cli_uri(const char *command, const char *text, struct export_uri *uri);

/* Parses a number of connections: 1 to max, or "auto", which is stored as `automatic`. */
enum { CLI_CONNECTIONS_MAX = 16 }; /* to a server */
GMB_MUST_CHECK int cli_connections(const char *text, uint32_t max, uint32_t automatic,
	uint32_t *connections, struct error *error);

/* Prints "gmblock COMMAND: MESSAGE" and a hint to the help; returns CLI_USAGE. */
int cli_usage_error(const char *command, const char *format, ...) GMB_PRINTF(2, 3);

/* Prints "gmblock COMMAND: MESSAGE", in which names can contain any bytes; returns CLI_FAILURE. */
int cli_failure(const char *command, const struct error *error);

/* Prints text on standard output; returns CLI_OK, or CLI_FAILURE if writing fails. */
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

/* The subcommands. Each parses its arguments (argv[0] is its name), calls the layers below and
 * prints. Returns the exit status: 0 success, 1 failure, 2 wrong usage. The message has already
 * been printed on standard error. */

/* Prints the lines of a server's answer to a change. none: text to print if there are no lines, or
 * NULL. Returns -ETIMEDOUT with the server's error message if the change is in effect, but not
 * complete. Defined in reload.c. */
GMB_MUST_CHECK int cli_print_changes(const json_t *result, const char *none, struct error *error);

int cmd_serve(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_copy(int argc, char **argv);
int cmd_create(int argc, char **argv);
int cmd_stats(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_push(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_attach(int argc, char **argv);
int cmd_detach(int argc, char **argv);
int cmd_reload(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_snapshot(int argc, char **argv);
int cmd_upgrade(int argc, char **argv);
int cmd_fence(int argc, char **argv);
int cmd_unfence(int argc, char **argv);
int cmd_lease(int argc, char **argv);
