// SPDX-License-Identifier: Apache-2.0
/*
 * Generates shell completion scripts from the option tables: each command is run once with
 * cli_watch(), which passes its table to a callback instead of parsing.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

enum shell { SHELL_BASH, SHELL_ZSH, SHELL_FISH, SHELL_COUNT };

enum { LINE_BYTES = 400, SUMMARY_BYTES = 64 };

/* The kind of an option's value or of an operand, which determines its completion. */
enum kind { KIND_NONE, KIND_ANYTHING, KIND_FILE, KIND_WORDS };

struct writer {
	enum shell shell;
	const char *command;
};

/* --- properties of an option ----------------------------------------------------------------- */

/* Returns how values of the field are completed. A form such as "yes|no" is a choice of words. A
 * form that names files or folders is completed with files. Other values cannot be completed. */
static enum kind completion_kind_of(const struct field *field)
{
	char form[FIELD_FORM_BYTES];

	field_form(field, form);
	if (form[0] == '\0') {
		return KIND_NONE;
	}
	if (field_is_path(field)) {
		return KIND_FILE;
	}
	return strspn(form, "abcdefghijklmnopqrstuvwxyz|-") == strlen(form) ? KIND_WORDS
									    : KIND_ANYTHING;
}

static bool may_be_bare(const struct field *field)
{
	return (field->flags & FIELD_BARE) != 0;
}

/* Returns whether operands can be files, as in "Usage: gmblock serve [OPTION]... [PATH]". */
static bool operands_are_files(const char *usage)
{
	char first[LINE_BYTES];

	snprintf(first, sizeof(first), "%.*s", (int)strcspn(usage, "\n"), usage);
	return strstr(first, "PATH") != NULL || strstr(first, "FILE") != NULL ||
	       strstr(first, "SOURCE") != NULL;
}

/* Returns the words of a choice, separated by spaces. */
static const char *words_of(const struct field *field, char out[FIELD_FORM_BYTES])
{
	field_form(field, out);
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

static void bash_option(const struct field *field)
{
	enum kind kind = completion_kind_of(field);
	char words[FIELD_FORM_BYTES];

	if (kind == KIND_NONE || may_be_bare(field)) {
		return;
	}
	printf("\t\t--%s", field->key);
	if (field->letter != 0) {
		printf(" | -%c", field->letter);
	}
	if (kind == KIND_WORDS) {
		printf(") kind=words words=\"%s\" ;;\n", words_of(field, words));
	} else {
		printf(") kind=%s ;;\n", kind == KIND_FILE ? "files" : "anything");
	}
}

static void zsh_option(const struct field *field)
{
	static const char special[] = "[]:\\";
	enum kind kind = completion_kind_of(field);
	char text[FIELD_FORM_BYTES];
	char summary[SUMMARY_BYTES];

	field_summary(field, summary, sizeof(summary));
	for (int letter = 0; letter <= (field->letter != 0); letter++) {
		printf("\t\t\t$'*");
		if (letter != 0) {
			printf("-%c+[", field->letter);
		} else {
			printf("--%s%s[", field->key,
				kind == KIND_NONE    ? ""
				: may_be_bare(field) ? "=-"
						     : "=");
		}
		/* Inside $'...', quotes and backslashes must be escaped once more. */
		for (const char *c = summary; *c != '\0'; c++) {
			printf("%s%s%c", strchr(special, *c) != NULL ? "\\\\" : "",
				*c == '\'' || *c == '\\' ? "\\" : "", *c);
		}
		printf("]");
		if (kind != KIND_NONE) {
			printf(":%s", may_be_bare(field) ? ":" : "");
			for (const char *c = field_form(field, text); *c != '\0'; c++) {
				printf("%s%c", strchr(special, *c) != NULL ? "\\\\" : "", *c);
			}
			printf(":%s", kind == KIND_FILE ? "_files" : "");
			if (kind == KIND_WORDS) {
				printf("(%s)", words_of(field, text));
			}
		}
		printf("' \\\n");
	}
}

static void fish_option(const char *command, const struct field *field)
{
	char words[FIELD_FORM_BYTES];
	char summary[SUMMARY_BYTES];

	printf("complete -c gmblock -n '__fish_seen_subcommand_from %s' -l %s", command,
		field->key);
	if (field->letter != 0) {
		printf(" -s %c", field->letter);
	}
	switch (completion_kind_of(field)) {
	case KIND_NONE:
		break;
	case KIND_FILE:
		printf(" -r -F");
		break;
	case KIND_WORDS:
		printf(" -x -a '%s'", words_of(field, words));
		break;
	case KIND_ANYTHING:
		printf("%s", may_be_bare(field) ? "" : " -x");
		break;
	}
	printf(" -d '");
	print_escaped(field_summary(field, summary, sizeof(summary)), "'\\");
	printf("'\n");
}

static void write_option(const struct writer *writer, const struct field *field)
{
	switch (writer->shell) {
	case SHELL_BASH:
		bash_option(field);
		break;
	case SHELL_ZSH:
		zsh_option(field);
		break;
	case SHELL_FISH:
	case SHELL_COUNT:
		fish_option(writer->command, field);
		break;
	}
}

/* --- one command ------------------------------------------------------------------------------ */

/* Prints the keys that operands can have, as "key=", separated by spaces. */
static void print_keys(const struct cli_command *command)
{
	const struct field *field;
	char form[FIELD_FORM_BYTES];

	for (uint32_t i = 0; command->keys != NULL && (field = command->keys(i)) != NULL; i++) {
		printf("%s%s%s", i > 0 ? " " : "", field->key,
			field_form(field, form)[0] != '\0' ? "=" : "");
	}
}

static void print_actions(const struct cli_command *command)
{
	for (size_t i = 0; command->actions != NULL && command->actions[i] != NULL; i++) {
		printf("%s ", command->actions[i]);
	}
}

static bool has_keys(const struct cli_command *command)
{
	return command->keys != NULL && command->keys_option == NULL;
}

static void begin_command(const struct writer *writer, const struct cli_command *command)
{
	bool files = operands_are_files(command->usage);

	switch (writer->shell) {
	case SHELL_BASH:
		printf("\t%s)\n\t\toptions=\"", command->name);
		for (size_t i = 0; i < command->field_count; i++) {
			printf("--%s ", command->fields[i].key);
		}
		printf("--log-level --help\"%s\n", files ? "\n\t\tkind=files" : "");
		if (command->actions != NULL) {
			printf("\t\t[ \"$COMP_CWORD\" -ne 2 ] || kind=words words=\"");
			print_actions(command);
			printf("\"\n");
		}
		if (has_keys(command)) {
			/* after "set NAME" or "add NAME PATH", words are keys */
			printf("\t\t[[ ${COMP_WORDS[2]}$COMP_CWORD != @(set[4-9]|add[5-9]) ]] || "
			       "kind=keys words=\"");
			print_keys(command);
			printf("\"\n");
		}
		printf("\t\tcase $before in\n");
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
		if (command->actions != NULL || has_keys(command)) {
			printf("complete -c gmblock -n '__fish_seen_subcommand_from %s' -a '",
				command->name);
			print_actions(command);
			print_keys(command);
			printf("'\n");
		}
		break;
	}
}

static void completion_end_command(const struct writer *writer, const struct cli_command *command)
{
	bool files = operands_are_files(command->usage);

	if (writer->shell == SHELL_BASH) {
		printf("\t\tesac\n\t\t;;\n");
	} else if (writer->shell == SHELL_ZSH && command->actions != NULL) {
		printf("\t\t\t'1:action:(");
		print_actions(command);
		printf(")' \\\n\t\t\t'2:name:' '*:operand:(");
		print_keys(command);
		printf(")'\n\t\t;;\n");
	} else if (writer->shell == SHELL_ZSH) {
		printf("\t\t\t'*:operand:%s'\n\t\t;;\n", files ? "_files" : "");
	}
}

/* Called with the table of each command. */
static void write_command(const struct cli_command *command, void *context)
{
	static const struct field common[] = {
		{ "log-level", "error|warning|info|debug", "messages to print" },
		{ "help", NULL, "print this help" },
	};
	struct writer *writer = context;

	writer->command = command->name;
	begin_command(writer, command);
	for (size_t i = 0; i < command->field_count; i++) {
		write_option(writer, &command->fields[i]);
	}
	for (size_t i = 0; i < ARRAY_COUNT(common); i++) {
		write_option(writer, &common[i]);
	}
	completion_end_command(writer, command);
}

/* --- the script as a whole ------------------------------------------------------------------- */

static void completion_write_head(
	enum shell shell, const struct cli_subcommand *commands, size_t count)
{
	static const char *const heads[SHELL_COUNT] = {
		[SHELL_BASH] =
			"# Bash completion for gmblock; gmblock --completion bash prints it.\n"
			"_gmblock()\n"
			"{\n"
			"\tlocal current=${COMP_WORDS[COMP_CWORD]} options= kind= words=\n"
			"\tlocal before=${COMP_WORDS[COMP_CWORD - 1]}\n"
			"\t[ \"$current\" != = ] || current=\n"
			"\t[ \"$before\" != = ] || before=${COMP_WORDS[COMP_CWORD - 2]}\n"
			"\tlocal commands=\"",
		[SHELL_ZSH] = "#compdef gmblock\n"
			      "# Zsh completion for gmblock; gmblock --completion zsh prints it.\n"
			      "_gmblock() {\n"
			      "\tlocal -a commands=(\n",
		[SHELL_FISH] =
			("# Fish completion for gmblock; gmblock --completion fish prints it.\n"
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
			       "\tkeys) compopt -o nospace ;&\n"
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
		fprintf(stderr, "gmblock: --completion supports bash, zsh and fish\n"
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
