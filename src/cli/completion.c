// SPDX-License-Identifier: Apache-2.0
/*
 * Completion scripts for shells, from the tables of options: each command is run once with
 * cli_watch(), which shows its table instead of parsing. What an option takes, and what it is for,
 * is read from the command's help text.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

enum shell { SHELL_BASH, SHELL_ZSH, SHELL_FISH, SHELL_COUNT };

enum { LINE_BYTES = 400, WORDS_BYTES = 120 };

/* What is written after an option, or as an operand. */
enum kind { KIND_NONE, KIND_ANYTHING, KIND_FILE, KIND_WORDS };

struct writer {
	enum shell shell;
	const char *command;
};

/* --- what is known of an option -------------------------------------------------------------- */

/* Words with bars between are a choice; names of places are files; the rest is anybody's guess. */
static enum kind completion_kind_of(const char *value)
{
	static const char *const files[] = { "FILE", "PATH", "DIR" };

	if (value[0] == '\0') {
		return KIND_NONE;
	}
	for (size_t i = 0; i < ARRAY_COUNT(files); i++) {
		if (strcmp(value, files[i]) == 0) {
			return KIND_FILE;
		}
	}
	if (strchr(value, '|') != NULL &&
		strspn(value, "abcdefghijklmnopqrstuvwxyz|-") == strlen(value)) {
		return KIND_WORDS;
	}
	return KIND_ANYTHING;
}

/* Operands that can be files: "Usage: gmblock serve [OPTION]... [PATH]". */
static bool operands_are_files(const char *usage)
{
	char first[LINE_BYTES];

	snprintf(first, sizeof(first), "%.*s", (int)strcspn(usage, "\n"), usage);
	return strstr(first, "PATH") != NULL || strstr(first, "FILE") != NULL ||
	       strstr(first, "SOURCE") != NULL;
}

/* The words of a choice, with spaces between. */
static const char *words_of(const char *value, char out[WORDS_BYTES])
{
	snprintf(out, WORDS_BYTES, "%s", value);
	for (char *bar = out; (bar = strchr(bar, '|')) != NULL;) {
		*bar = ' ';
	}
	return out;
}

static void print_escaped(const char *text, const char *special)
{
	for (; *text != '\0'; text++) {
		if (strchr(special, *text) != NULL) {
			putchar('\\');
		}
		putchar(*text);
	}
}

/* --- one option ------------------------------------------------------------------------------- */

static void bash_option(const struct cli_option *option, const struct cli_help *help)
{
	char words[WORDS_BYTES];

	if (completion_kind_of(help->value) == KIND_NONE || option->value == CLI_VALUE_OPTIONAL) {
		return;
	}
	printf("\t\t--%s", option->name);
	if (option->letter != 0) {
		printf(" | -%c", option->letter);
	}
	switch (completion_kind_of(help->value)) {
	case KIND_FILE:
		printf(") kind=files ;;\n");
		break;
	case KIND_WORDS:
		printf(") kind=words words=\"%s\" ;;\n", words_of(help->value, words));
		break;
	case KIND_NONE:
	case KIND_ANYTHING:
		printf(") kind=anything ;;\n");
		break;
	}
}

static void zsh_option(const struct cli_option *option, const struct cli_help *help)
{
	static const char special[] = "[]:\\";
	bool has_value = completion_kind_of(help->value) != KIND_NONE;
	char words[WORDS_BYTES];

	for (int letter = 0; letter <= (option->letter != 0); letter++) {
		printf("\t\t\t$'*");
		if (letter != 0) {
			printf("-%c+[", option->letter);
		} else {
			printf("--%s%s[", option->name,
				!has_value			      ? ""
				: option->value == CLI_VALUE_OPTIONAL ? "=-"
								      : "=");
		}
		/* In $'...' quotes and backslashes are escaped once more. */
		for (const char *c = help->text; *c != '\0'; c++) {
			printf("%s%s%c", strchr(special, *c) != NULL ? "\\\\" : "",
				*c == '\'' || *c == '\\' ? "\\" : "", *c);
		}
		printf("]");
		if (has_value) {
			printf(":%s", option->value == CLI_VALUE_OPTIONAL ? ":" : "");
			for (const char *c = help->value; *c != '\0'; c++) {
				printf("%s%c", strchr(special, *c) != NULL ? "\\\\" : "", *c);
			}
			printf(":%s", completion_kind_of(help->value) == KIND_FILE ? "_files" : "");
			if (completion_kind_of(help->value) == KIND_WORDS) {
				printf("(%s)", words_of(help->value, words));
			}
		}
		printf("' \\\n");
	}
}

static void fish_option(
	const char *command, const struct cli_option *option, const struct cli_help *help)
{
	char words[WORDS_BYTES];

	printf("complete -c gmblock -n '__fish_seen_subcommand_from %s' -l %s", command,
		option->name);
	if (option->letter != 0) {
		printf(" -s %c", option->letter);
	}
	switch (completion_kind_of(help->value)) {
	case KIND_NONE:
		break;
	case KIND_FILE:
		printf(" -r -F");
		break;
	case KIND_WORDS:
		printf(" -x -a '%s'", words_of(help->value, words));
		break;
	case KIND_ANYTHING:
		printf("%s", option->value == CLI_VALUE_OPTIONAL ? "" : " -x");
		break;
	}
	printf(" -d '");
	print_escaped(help->text, "'\\");
	printf("'\n");
}

static void write_option(
	const struct writer *writer, const struct cli_option *option, const struct cli_help *help)
{
	switch (writer->shell) {
	case SHELL_BASH:
		bash_option(option, help);
		break;
	case SHELL_ZSH:
		zsh_option(option, help);
		break;
	case SHELL_FISH:
	case SHELL_COUNT:
		fish_option(writer->command, option, help);
		break;
	}
}

/* --- one command ------------------------------------------------------------------------------ */

static void begin_command(const struct writer *writer, const struct cli_command *command)
{
	const struct field *field;
	bool files = operands_are_files(command->usage);

	switch (writer->shell) {
	case SHELL_BASH:
		printf("\t%s)\n\t\toptions=\"", command->name);
		for (uint32_t i = 0; (field = cli_field(command, i)) != NULL; i++) {
			printf("--%s ", field->key);
		}
		for (size_t i = 0; i < command->option_count; i++) {
			printf("--%s ", command->options[i].name);
		}
		printf("--log-level --help\"%s\n\t\tcase $before in\n",
			files ? "\n\t\tkind=files" : "");
		break;
	case SHELL_ZSH:
		printf("\t%s)\n\t\t_arguments -s \\\n", command->name);
		break;
	case SHELL_FISH:
	case SHELL_COUNT:
		if (files) {
			printf("complete -c gmblock -n '__fish_seen_subcommand_from %s' -F\n",
				command->name);
		}
		break;
	}
}

static void completion_end_command(const struct writer *writer, const struct cli_command *command)
{
	bool files = operands_are_files(command->usage);

	if (writer->shell == SHELL_BASH) {
		printf("\t\tesac\n\t\t;;\n");
	} else if (writer->shell == SHELL_ZSH) {
		printf("\t\t\t'*:operand:%s'\n\t\t;;\n", files ? "_files" : "");
	}
}

/* Called with the table of each command. */
static void write_command(const struct cli_command *command, void *context)
{
	static const struct cli_option common[] = {
		{ "log-level", .value = CLI_VALUE },
		{ "help", .value = CLI_NO_VALUE },
	};
	static const struct cli_help common_help[] = {
		{ "error|warning|info|debug", "messages to print" },
		{ "", "print this help" },
	};
	struct writer *writer = context;
	const struct field *field;
	struct cli_help help;

	writer->command = command->name;
	begin_command(writer, command);
	for (uint32_t i = 0; (field = cli_field(command, i)) != NULL; i++) {
		struct cli_option option = { field->key, .letter = field->letter };

		option.value = (field->flags & FIELD_BARE) != 0 ? CLI_VALUE_OPTIONAL : CLI_VALUE;
		cli_help_of(command, field->key, &help);
		write_option(writer, &option, &help);
	}
	for (size_t i = 0; i < command->option_count; i++) {
		cli_help_of(command, command->options[i].name, &help);
		write_option(writer, &command->options[i], &help);
	}
	for (size_t i = 0; i < ARRAY_COUNT(common); i++) {
		write_option(writer, &common[i], &common_help[i]);
	}
	completion_end_command(writer, command);
}

/* --- the whole ------------------------------------------------------------------------------- */

static void completion_write_head(
	enum shell shell, const struct cli_subcommand *commands, size_t count)
{
	static const char *const heads[SHELL_COUNT] = {
		[SHELL_BASH] =
			"# Completion of gmblock for bash; gmblock --completion bash prints it.\n"
			"_gmblock()\n{\n"
			"\tlocal current=${COMP_WORDS[COMP_CWORD]} options= kind= words=\n"
			"\tlocal before=${COMP_WORDS[COMP_CWORD - 1]}\n"
			"\t[ \"$current\" != = ] || current=\n"
			"\t[ \"$before\" != = ] || before=${COMP_WORDS[COMP_CWORD - 2]}\n"
			"\tlocal commands=\"",
		[SHELL_ZSH] =
			"#compdef gmblock\n"
			"# Completion of gmblock for zsh; gmblock --completion zsh prints it.\n"
			"_gmblock() {\n\tlocal -a commands=(\n",
		[SHELL_FISH] =
			("# Completion of gmblock for fish; gmblock --completion fish prints it.\n"
			 "complete -c gmblock -f\n"),
	};

	fputs(heads[shell], stdout);
	for (size_t i = 0; i < count; i++) {
		const char *name = commands[i].name;
		const char *summary = commands[i].summary;

		if (shell == SHELL_BASH) {
			printf("%s ", name);
		} else if (shell == SHELL_ZSH) {
			printf("\t\t$'%s:", name);
			print_escaped(summary, "'\\");
			printf("'\n");
		} else {
			printf("complete -c gmblock -n __fish_use_subcommand -a %s -d '", name);
			print_escaped(summary, "'\\");
			printf("'\n");
		}
	}
}

static void write_middle(enum shell shell)
{
	static const char *const middles[SHELL_COUNT] = {
		[SHELL_BASH] = "help\"\n"
			       "\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n"
			       "\t\twords=\"$commands --help --version\" kind=words\n"
			       "\tfi\n"
			       "\tcase ${COMP_WORDS[1]} in\n"
			       "\thelp) words=$commands kind=words ;;\n",
		[SHELL_ZSH] = "\t\t'help:describe a command'\n\t)\n"
			      "\tif ((CURRENT == 2)) || [[ $words[2] == help ]]; then\n"
			      "\t\t_describe command commands\n\t\treturn\n\tfi\n"
			      "\tlocal command=$words[2]\n"
			      "\tshift words\n\t((CURRENT--))\n\tcase $command in\n",
		[SHELL_FISH] = ("complete -c gmblock -n __fish_use_subcommand -a help "
				"-d 'describe a command'\n"),
	};

	fputs(middles[shell], stdout);
}

static void completion_write_end(enum shell shell)
{
	static const char *const ends[SHELL_COUNT] = {
		[SHELL_BASH] = "\tesac\n"
			       "\tif [ \"$COMP_CWORD\" -gt 1 ] && [[ $current == -* && $kind != "
			       "anything ]]; "
			       "then\n"
			       "\t\tkind=words words=$options\n"
			       "\tfi\n"
			       "\tcase $kind in\n"
			       "\twords) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- "
			       "\"$current\") ;;\n"
			       "\tfiles)\n"
			       "\t\tcompopt -o filenames\n"
			       "\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
			       "\t\t;;\n"
			       "\t*) COMPREPLY=() ;;\n"
			       "\tesac\n}\n"
			       "complete -F _gmblock gmblock\n",
		[SHELL_ZSH] = "\tesac\n}\n_gmblock \"$@\"\n",
		[SHELL_FISH] = "",
	};

	fputs(ends[shell], stdout);
}

int cli_completion(const char *name, const struct cli_subcommand *commands, size_t count)
{
	static const char *const names[SHELL_COUNT] = {
		[SHELL_BASH] = "bash",
		[SHELL_ZSH] = "zsh",
		[SHELL_FISH] = "fish",
	};
	struct writer writer = { .shell = SHELL_BASH };
	int status = CLI_OK;

	while (writer.shell < SHELL_COUNT && strcmp(name, names[writer.shell]) != 0) {
		writer.shell++;
	}
	if (writer.shell == SHELL_COUNT) {
		fprintf(stderr, "gmblock: --completion is for bash, zsh and fish\n"
				"Try 'gmblock --help'.\n");
		return CLI_USAGE;
	}
	completion_write_head(writer.shell, commands, count);
	write_middle(writer.shell);
	cli_watch(write_command, &writer);
	for (size_t i = 0; i < count && status == CLI_OK; i++) {
		char *arguments[] = { (char *)(uintptr_t)commands[i].name, NULL };

		status = commands[i].run(1, arguments);
	}
	cli_watch(NULL, NULL);
	completion_write_end(writer.shell);
	return status == CLI_OK ? cli_print("") : status;
}
