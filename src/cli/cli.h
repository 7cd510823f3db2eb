// SPDX-License-Identifier: Apache-2.0
/*
 * What all subcommands share: exit statuses and messages about wrong usage, so that they read the
 * same everywhere.
 *
 * Threading: the main thread. Ownership: borrows its arguments. Errors: none.
 */
#pragma once

#include "base/error.h"

enum { CLI_OK = 0, CLI_FAILURE = 1, CLI_USAGE = 2 };

/* Values for struct option of the options that only exist in their long form. */
enum { CLI_OPTION_FIRST = 256 };

/* Prints "gmblock COMMAND: sentence" and where to find help; returns CLI_USAGE. */
int cli_usage_error(const char *command, const char *format, ...) GMB_PRINTF(2, 3);

/* The same for what getopt_long() returned: '?' (unknown or ambiguous) or ':' (value missing; the
 * option string must begin with ':'). */
int cli_option_error(const char *command, int code, char **argv);

/* Prints "gmblock COMMAND: sentence"; returns CLI_FAILURE. */
int cli_failure(const char *command, const struct error *error);

/* Prints text on standard output; returns CLI_OK, or CLI_FAILURE when it cannot be written. */
int cli_print(const char *text);
