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

/* Takes the value of the option --name into the command's arguments (text: NULL where there is
 * none). Returns CLI_GO_ON or an exit status. */
typedef int cli_take(void *arguments, const char *name, const char *text);

enum cli_value { CLI_VALUE, CLI_VALUE_OPTIONAL, CLI_NO_VALUE };

/* One option of a command, and where its value goes: exactly one of the pointers is set. */
struct cli_option {
	const char *name;     /* without the dashes */
	char letter;	      /* its short form, which has a value too; not h; or 0 */
	bool *flag;	      /* has no value: becomes true */
	const char **text;    /* any value */
	const char **path;    /* of a file: any value but an empty one */
	uint32_t *count;      /* a number from min to max */
	uint64_t *bytes;      /* a size of at least min */
	uint64_t *time_ns;    /* a time longer than nothing */
	cli_take *take;	      /* what the command makes of it */
	enum cli_value value; /* with take */
	uint32_t min;
	uint32_t max;
};

/* A command's name and its options, beside those of every command: -h and --help, which print
 * usage, and --log-level. */
struct cli_command {
	const char *name;
	const char *usage; /* with fields: what stands before them in the help text */
	const struct cli_option *options;
	size_t option_count;
	void *arguments;   /* for take; with fields: what they are set in */
	field_at *fields;  /* in place of options */
	const char *notes; /* behind the fields in the help text */
	/* Optional: sets a field, in place of field_set(). Its sentence names the option. */
	int (*set)(
		void *arguments, const struct field *field, const char *text, struct error *error);
	/* Optional: what the value of the option keys_option, or the operands, can have. */
	field_at *keys;
	const char *keys_option;
};

/* Parses the options. CLI_GO_ON: optind is the index of the first operand. Otherwise an exit
 * status, also after -h or --help. */
GMB_MUST_CHECK int cli_parse(const struct cli_command *command, int argc, char **argv);

/* What the help text says of an option: how its value is written, "" for none, and the first line
 * of what it is for. Both are "" where the text does not have the option. */
struct cli_help {
	char value[80];
	char text[80];
};
void cli_help_of(const struct cli_command *command, const char *name, struct cli_help *help);

/* The idx-th of the command's fields that is an option; NULL behind the last. */
const struct field *cli_field(const struct cli_command *command, uint32_t idx);

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
/* The part of its usage that the lab's command of the same name shows as well. */
#define CLI_TRACE_REQUEST_USAGE                                                                    \
	"waits for requests to a server on this machine, and shows where the time of\n"            \
	"each went.\n"                                                                             \
	"\n"                                                                                       \
	"  --count N          number of requests (default 1)\n"                                    \
	"  --min-size SIZE    only requests of at least this size\n"                               \
	"  --operation OP     only read, write, flush, trim, zero, cache or extents;\n"            \
	"                     repeat for more\n"                                                   \
	"  --export NAME      only requests for this export; \"\" is the default\n"                \
	"  --timeout TIME     stop waiting after this time\n"                                      \
	"  --server SERVER    one of its URIs, its control socket, or its process id;\n"           \
	"                     optional if there is only one server; SERVER alone as the last\n"    \
	"                     word is the same\n"

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
