// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

enum { SHOWN_BYTES = 120 };

int cli_usage_error(const char *command, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "gmblock %s: ", command);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\nTry 'gmblock %s --help'.\n", command);
	return CLI_USAGE;
}

int cli_option_error(const char *command, int code, char **argv)
{
	char shown[SHOWN_BYTES];
	char letter[3] = { '-', (char)optopt, '\0' };
	const char *word = argv[optind - 1];

	/* getopt stays on a group of letters ("-xy") until its last one is read. */
	if (optopt > 0 && optopt < CLI_OPTION_FIRST && strncmp(word, "--", 2) != 0) {
		word = letter;
	}
	log_escape(shown, sizeof(shown), word, strlen(word));
	if (code == ':') {
		return cli_usage_error(command, "the option %s needs a value", shown);
	}
	if (optopt >= CLI_OPTION_FIRST) {
		return cli_usage_error(command, "the option %s takes no value", shown);
	}
	return cli_usage_error(command, "the option %s is not known or not unique", shown);
}

int cli_failure(const char *command, const struct error *error)
{
	fprintf(stderr, "gmblock %s: %s\n", command, error->text);
	return CLI_FAILURE;
}

int cli_print(const char *text)
{
	if (fputs(text, stdout) < 0 || fflush(stdout) != 0) {
		fprintf(stderr, "gmblock: cannot write to standard output: %s\n", strerror(errno));
		return CLI_FAILURE;
	}
	return CLI_OK;
}
