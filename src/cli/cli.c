// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/text.h"

enum {
	SHOWN_BYTES = 120,
	URI_TEXT_BYTES = 256,
	OPTIONS_MAX = 40,
	/* getopt_long() returns OPTION_FIRST + the option's index in the table */
	OPTION_FIRST = 256,
};

/* --- habits of other programs ------------------------------------------------------------------
 */

#define UNIX_SOCKET "write --listen 'nbd+unix:///?socket=PATH'"
#define ADDRESS	    "write the whole address, as in --listen nbd://127.0.0.1:10809"
#define FOREGROUND                                                                                 \
	"the server stays in the foreground; start it with systemd, or run a command with --run"
#define FOREGROUND_OR_FORMAT                                                                       \
	"the server always stays in the foreground, and disks are always raw; omit -f"
#define EXPORT_NAME "write --export NAME=PATH"
#define URI_NAME    "the name of the export is part of the URI: nbd://HOST/NAME"

/* Words of nbdkit, qemu-nbd, nbd-server, nbd-client, nbdcopy, qemu-img and fio, with the
 * equivalents in gmblock. command: the subcommand that has got the word as an option; "": the word
 * was given in place of a subcommand. */
static const struct habit {
	const char *command;
	const char *word; /* word without dashes */
	const char *hint; /* hint without the final full stop */
} habits[] = {
	{ "", "mount", "'gmblock attach' attaches an export as a local disk" },
	{ "", "connect", "'gmblock attach' attaches an export as a local disk" },
	{ "", "umount", "'gmblock detach' removes an attached disk" },
	{ "", "unmount", "'gmblock detach' removes an attached disk" },
	{ "", "disconnect", "'gmblock detach' removes an attached disk" },
	{ "", "version", "'gmblock --version' prints the version" },
	{ "", "v", "'gmblock --version' prints the version" },
	{ "", "convert", "'gmblock copy' copies raw disks" },
	{ "", "ls", "'gmblock list' lists the exports of a server" },
	{ "", "status", "'gmblock stats' shows what a server does" },
	{ "", "rate", "'gmblock export set NAME rate=RATE' changes the rate limit of an export" },
	{ "", "plot", "the program gmblock-plot draws JSON of bench, stats and trace" },

	{ "serve", "r", "write --read-only" },
	{ "serve", "f", FOREGROUND_OR_FORMAT },
	{ "serve", "foreground", "the server always stays in the foreground" },
	{ "serve", "fork", FOREGROUND },
	{ "serve", "daemon", FOREGROUND },
	{ "serve", "P", FOREGROUND },
	{ "serve", "pidfile", FOREGROUND },
	{ "serve", "pid-file", FOREGROUND },
	{ "serve", "U", UNIX_SOCKET },
	{ "serve", "unix", UNIX_SOCKET },
	{ "serve", "k", UNIX_SOCKET },
	{ "serve", "socket", UNIX_SOCKET },
	{ "serve", "p", ADDRESS },
	{ "serve", "port", ADDRESS },
	{ "serve", "b", ADDRESS },
	{ "serve", "bind", ADDRESS },
	{ "serve", "i", ADDRESS },
	{ "serve", "ipaddr", ADDRESS },
	{ "serve", "x", EXPORT_NAME },
	{ "serve", "exportname", EXPORT_NAME },
	{ "serve", "export-name", EXPORT_NAME },
	{ "serve", "t", "the server always keeps running after clients disconnect" },
	{ "serve", "persistent", "the server always keeps running after clients disconnect" },
	{ "serve", "shared",
		"write --max-connections; by default, the server accepts several clients" },
	{ "serve", "format", "disks are always raw; format=raw is a key of --export NAME=PATH" },
	{ "serve", "cache", "write mode=cached or mode=direct, as in --export =PATH,mode=direct" },
	{ "serve", "tls-creds", "write --tls-certificates or --tls-psk" },

	{ "export", "read-only", "write the key readonly after PATH" },
	{ "export", "readonly", "write the key readonly after PATH" },
	{ "export", "export", "write 'gmblock export add NAME PATH'" },
	{ "export", "force", "write --now" },

	{ "stats", "interval", "write --json --watch=TIME, or use 'gmblock top'" },

	{ "bench", "runtime", "write --seconds" },
	{ "bench", "time", "write --seconds" },
	{ "bench", "time_based", "write --seconds" },
	{ "bench", "ramp_time", "write --warmup" },
	{ "bench", "numjobs", "write --connections and --threads" },
	{ "bench", "jobs", "write --connections and --threads" },
	{ "bench", "iodepth", "write --depth" },
	{ "bench", "blocksize", "write --bs" },
	{ "bench", "readwrite", "write --rw" },
	{ "bench", "rwmixread", "write --read-percent" },
	{ "bench", "randseed", "write --seed" },
	{ "bench", "number_ios", "write --requests" },
	{ "bench", "rate_iops", "write --rate requests=N" },
	{ "bench", "output-format", "write --json" },
	{ "bench", "filename", "give the URI of the export as an operand, without an option" },
	{ "bench", "uri", "give the URI of the export as an operand, without an option" },
	{ "bench", "ioengine",
		"bench always sends requests asynchronously; --depth sets the queue depth" },

	{ "copy", "p", "write --progress; on a terminal, progress is shown by default" },
	{ "copy", "C", "write --connections" },
	{ "copy", "R", "write --requests" },
	{ "copy", "S", "write --sparse" },
	{ "copy", "f", "disks are always copied as raw data" },
	{ "copy", "O", "disks are always copied as raw data" },
	{ "copy", "flush", "the target is always flushed at the end" },

	{ "attach", "r", "write --read-only" },
	{ "attach", "C", "write --connections" },
	{ "attach", "c", "the driver chooses the device; --device N selects one" },
	{ "attach", "d", "write 'gmblock detach'" },
	{ "attach", "disconnect", "write 'gmblock detach'" },
	{ "attach", "N", URI_NAME },
	{ "attach", "name", URI_NAME },
	{ "attach", "x", URI_NAME },
	{ "attach", "unix", "a Unix socket is part of the URI: nbd+unix:///NAME?socket=PATH" },
	{ "attach", "persist",
		"attached disks always reconnect; --reconnect-timeout limits the time" },
	{ "attach", "nofork", "write --foreground" },
};

const char *cli_habit(const char *command, const char *word)
{
	size_t len;

	word += strspn(word, "-");
	len = strcspn(word, "=");
	for (size_t i = 0; i < ARRAY_COUNT(habits); i++) {
		if (strcmp(habits[i].command, command) == 0 && strlen(habits[i].word) == len &&
			strncmp(habits[i].word, word, len) == 0) {
			return habits[i].hint;
		}
	}
	return NULL;
}

/* --- options ------------------------------------------------------------------------------- */

int cli_connections(const char *text, uint32_t max, uint32_t automatic, uint32_t *connections,
	struct error *error)
{
	if (strcmp(text, "auto") == 0) {
		*connections = automatic;
		return 0;
	}
	if (units_parse_count(text, 1, max, connections, error) != 0) {
		return error_set(error, -EINVAL, "'%s' is neither a number from 1 to %d nor auto",
			quote(text), (int)max);
	}
	return 0;
}

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

/* Lists the options that start with the word, separated by commas. Returns their number. */
static size_t candidates(
	const char *word, const struct option *table, char *names, size_t names_bytes)
{
	size_t len = strcspn(word, "=");
	size_t count = 0;
	size_t used = 0;

	names[0] = '\0';
	for (size_t i = 0; table[i].name != NULL; i++) {
		if (strncmp(table[i].name, word, len) != 0) {
			continue;
		}
		if (used < names_bytes) {
			used += (size_t)snprintf(names + used, names_bytes - used, "%s--%s",
				count > 0 ? ", " : "", table[i].name);
		}
		count++;
	}
	return count;
}

/* Returns a suggestion, formatted like near_text(): an option that is spelled similarly, or one
 * that was given with one dash only, such as "-json". */
static const char *meant(
	const char *word, char *const *argv, const struct option *table, char out[NEAR_TEXT_BYTES])
{
	const char *group = argv[optind];
	char name[SHOWN_BYTES];
	struct near near;

	if (word[0] == '-' && word[1] != '-' && group != NULL && group[0] == '-' &&
		group[1] == word[1]) {
		word = group;
	}
	word += strspn(word, "-");
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
	near_begin(&near, name);
	for (size_t i = 0; strlen(name) > 1 && table[i].name != NULL; i++) {
		near_try(&near, table[i].name);
	}
	return near_text(&near, "--", out);
}

/* Reports an option without its value. code: the option's code in the table. */
static int value_missing(
	const struct cli_command *command, int code, const char *shown, const struct option *table)
{
	char form[FIELD_FORM_BYTES];
	size_t idx = 0;

	while (table[idx].val != code) {
		idx++;
	}
	if (idx >= command->field_count) {
		return cli_usage_error(command->name, "the option %s needs a value", shown);
	}
	return cli_usage_error(command->name, "the option %s needs a value: --%s %s", shown,
		table[idx].name, field_form(&command->fields[idx], form));
}

/* Returns whether the last option's value is a separate word that looks like an option. Such a
 * value is probably missing; "--option=--value" gives it nevertheless. */
static bool is_value_missing(char *const *argv)
{
	return optarg != NULL && optarg == argv[optind - 1] && strncmp(optarg, "--", 2) == 0;
}

static int option_unknown(const struct cli_command *self, const char *word, const char *shown,
	char **argv, const struct option *table)
{
	char names[SHOWN_BYTES];
	char near[NEAR_TEXT_BYTES];
	const char *habit = cli_habit(self->name, word);

	if (habit != NULL) {
		return cli_usage_error(self->name, "unknown option %s: %s", shown, habit);
	}
	if (strncmp(word, "--", 2) == 0 && candidates(word + 2, table, names, sizeof(names)) > 0) {
		return cli_usage_error(
			self->name, "the option %s is incomplete: write %s", shown, names);
	}
	return cli_usage_error(
		self->name, "unknown option %s%s", shown, meant(word, argv, table, near));
}

/* Returns the word of the option that getopt_long() has read last. The option's value may be the
 * word after it. */
static const char *option_word(char *const *argv)
{
	return argv[optind - (optarg != NULL && optarg == argv[optind - 1] ? 2 : 1)];
}

/* Returns whether a long option is abbreviated. getopt_long() accepts that, but a script would
 * change its meaning when another option with the same beginning is added. */
static bool is_abbreviated(const char *word, const struct option *table)
{
	size_t len = strcspn(word, "=");

	for (; table->name != NULL; table++) {
		if (strncmp(word, "--", 2) != 0 ||
			(len == strlen(table->name) + 2 &&
				strncmp(word + 2, table->name, len - 2) == 0)) {
			return false;
		}
	}
	return true;
}

static int option_abbreviated(const struct cli_command *command, const char *word, char **argv,
	const struct option *table)
{
	const char *shown = quote(word);

	return option_unknown(command, word, shown, argv, table);
}

/* Reports an error that getopt_long() returned: '?' (unknown or ambiguous) or ':' (value
 * missing). */
static int option_error(
	const struct cli_command *self, int code, char **argv, const struct option *table)
{
	const char *command = self->name;
	const char *shown;
	char letter[3] = { '-', (char)optopt, '\0' };
	const char *word = argv[optind - 1];

	/* In a group of letters such as "-xy", getopt_long() increases optind only after the last
	 * letter, so `word` can be another word, and the letter is shown instead. Bytes that are
	 * not ASCII have codes below 0. */
	if (optopt != 0 && optopt < OPTION_FIRST && strncmp(word, "--", 2) != 0) {
		word = letter;
	}
	shown = quote(word);
	if (is_abbreviated(word, table)) {
		return option_abbreviated(self, word, argv, table);
	}
	if (code == ':') {
		return value_missing(self, optopt, shown, table);
	}
	if (optopt >= OPTION_FIRST) {
		return cli_usage_error(command, "the option %s takes no value", shown);
	}
	return option_unknown(self, word, shown, argv, table);
}

static int cli_set(const struct cli_command *command, const struct field *field)
{
	struct error error;
	int rc = command->set != NULL ? command->set(command->arguments, field, optarg, &error)
				      : field_set(field, command->arguments, optarg, &error);

	if (rc == 0) {
		return CLI_GO_ON;
	}
	if (command->set == NULL) {
		error_prefix(&error, "--%s", field->key);
	}
	return cli_usage_error(command->name, "%s", error.text);
}

static int take_log_level(const struct cli_command *command, const char *level)
{
	if (log_set_level_name(level) == 0) {
		return CLI_GO_ON;
	}
	return cli_usage_error(command->name,
		"--log-level: '%s' is not error, warning, info or debug", quote(level));
}

/* Builds the table for getopt_long(), with --help and --log-level after the command's options.
 * Returns the code of --help. The code of --log-level is one higher; -h has the code 'h'. */
static int table_make(const struct cli_command *command, struct option table[OPTIONS_MAX + 3],
	char letters[2 * OPTIONS_MAX + 3])
{
	size_t count = 0;

	*letters++ = ':'; /* makes getopt_long() report a missing value as ':' */
	for (; count < command->field_count; count++) {
		const struct field *field = &command->fields[count];
		bool has_value = field->form != NULL || field->words != NULL;
		int has_argument = (field->flags & FIELD_BARE) != 0 ? optional_argument
				   : has_value			    ? required_argument
								    : no_argument;

		GMB_ASSERT(count < OPTIONS_MAX && field->letter != 'h');
		table[count] = (struct option){ field->key, has_argument, NULL,
			field->letter != 0 ? field->letter : OPTION_FIRST + (int)count };
		if (field->letter != 0) {
			*letters++ = field->letter;
			*letters++ = ':';
		}
	}
	*letters++ = 'h';
	*letters = '\0';
	table[count] = (struct option){ "help", no_argument, NULL, OPTION_FIRST + (int)count };
	table[count + 1] = (struct option){ "log-level", required_argument, NULL,
		OPTION_FIRST + (int)count + 1 };
	table[count + 2] = (struct option){ 0 };
	return table[count].val;
}

static struct {
	cli_see *see; /* or NULL */
	void *context;
} watcher;

void cli_watch(cli_see *see, void *context)
{
	watcher.see = see;
	watcher.context = context;
}

static int print_help(const struct cli_command *command)
{
	const struct field *field = command->fields;
	size_t count = command->notes != NULL ? command->field_count : 0;

	fputs(command->usage, stdout);
	for (; field < command->fields + count; field++) {
		if (field->heading != NULL) {
			printf("\n%s\n", field->heading);
		}
		field_help_option(stdout, field);
	}
	if (command->keys != NULL) {
		printf("\nKeys%s%s:\n", command->keys_option != NULL ? " of --" : "",
			command->keys_option != NULL ? command->keys_option : "");
	}
	for (uint32_t i = 0; command->keys != NULL && (field = command->keys(i)) != NULL; i++) {
		field_help_key(stdout, field);
	}
	if (command->notes != NULL) {
		fputs(command->keys != NULL ? "\n" : "", stdout);
		field_help_line(stdout, "      --log-level LEVEL",
			"messages to print: error, warning, info (default) or debug");
		field_help_line(stdout, "  -h, --help", "print this help");
	}
	return cli_print(command->notes != NULL ? command->notes : "");
}

int cli_parse(const struct cli_command *command, int argc, char **argv)
{
	struct option table[OPTIONS_MAX + 3];
	char letters[2 * OPTIONS_MAX + 3];
	int help = table_make(command, table, letters);
	int status = CLI_GO_ON;
	int code;

	if (watcher.see != NULL) {
		watcher.see(command, watcher.context);
		return CLI_OK;
	}
	optind = 0; /* restarts getopt, which might have parsed other arguments before */
	opterr = 0;
	while (status == CLI_GO_ON &&
		(code = getopt_long(argc, argv, letters, table, NULL)) != -1) {
		if (code == '?' || code == ':') {
			status = option_error(command, code, argv, table);
		} else if (is_abbreviated(option_word(argv), table)) {
			status = option_abbreviated(command, option_word(argv), argv, table);
		} else if (is_value_missing(argv)) {
			status = value_missing(command, code, quote(option_word(argv)), table);
		} else if (code == help || code == 'h') {
			status = print_help(command);
		} else if (code == help + 1) {
			status = take_log_level(command, optarg);
		} else {
			size_t i = 0;

			while (table[i].val != code) {
				i++;
			}
			status = cli_set(command, &command->fields[i]);
		}
	}
	return status;
}

int cli_parse_action(const struct cli_command *command, int argc, char **argv, int *action)
{
	const char *const *actions = command->actions;
	int status = cli_parse(command, argc, argv);
	char list[SHOWN_BYTES] = "";
	char meant[NEAR_TEXT_BYTES];
	struct near near;
	size_t used = 0;

	if (status != CLI_GO_ON) {
		return status;
	}
	for (int i = 0; optind < argc && actions[i] != NULL; i++) {
		if (strcmp(argv[optind], actions[i]) == 0) {
			optind++;
			*action = i;
			return CLI_GO_ON;
		}
	}
	near_begin(&near, optind < argc ? argv[optind] : "");
	for (int i = 0; actions[i] != NULL && used < sizeof(list); i++) {
		const char *before = i == 0 ? "" : actions[i + 1] != NULL ? ", " : " or ";

		near_try(&near, actions[i]);
		used += (size_t)snprintf(
			list + used, sizeof(list) - used, "%s%s", before, actions[i]);
	}
	if (optind == argc) {
		return cli_usage_error(command->name, "give a command: %s", list);
	}
	near_text(&near, "", meant);
	return cli_usage_error(command->name, "unknown command '%s'%s%s", quote(argv[optind]),
		meant[0] != '\0' ? meant : "; write ", meant[0] != '\0' ? "" : list);
}

int cli_alone(const struct cli_command *command, const void *defaults, const char *const *options)
{
	for (size_t i = 0; i < command->field_count; i++) {
		const struct field *field = &command->fields[i];
		size_t k = 0;

		while (options[k] != NULL && strcmp(options[k], field->key) != 0) {
			k++;
		}
		if (options[k] == NULL && !field_same(field, command->arguments, defaults)) {
			return cli_usage_error(command->name, "--%s cannot be combined with --%s",
				field->key, options[0]);
		}
	}
	return CLI_GO_ON;
}

int cli_operand(const char *command, const char *noun, int argc, char **argv, const char **operand)
{
	if (argc - optind > 1) {
		const char *second = argv[optind + 1];

		return cli_usage_error(command,
			"only one %s can be given; unexpected argument '%s'", noun, quote(second));
	}
	*operand = optind < argc ? argv[optind] : NULL;
	return CLI_GO_ON;
}

bool cli_utf8(const char *command, const char *what, char **words, int count)
{
	for (int i = 0; i < count; i++) {
		if (!utf8_valid(words[i], strlen(words[i]))) {
			(void)cli_usage_error(command, "%s is not valid UTF-8", what);
			return false;
		}
	}
	return true;
}

int cli_server(const char *command, int argc, char **argv, const char **server)
{
	const char *operand;
	int status = cli_operand(command, "server", argc, argv, &operand);

	if (status == CLI_GO_ON && operand != NULL && *server != NULL) {
		return cli_usage_error(command,
			"give only one server, either with --server or as the last operand");
	}
	if (operand != NULL) {
		*server = operand;
	}
	return status;
}

/* Reports that the text is not a URI. If it is an existing file, suggests a correction. */
static int not_a_uri(const char *command, const char *text, const struct stat *status)
{
	struct export_uri uri = { .protocol = "nbd", .is_unix = true };
	char uri_text[URI_TEXT_BYTES];
	const char *quoted = quote(text);

	if (!S_ISSOCK(status->st_mode)) {
		return cli_usage_error(command,
			"'%s' is a %s, not a URI; serve it first with 'gmblock serve', which "
			"prints the URI",
			quoted, S_ISBLK(status->st_mode) ? "block device" : "file");
	}
	uri.socket_path = strdup(text);
	uri.socket_path_bytes = (uint32_t)strlen(text);
	if (uri.socket_path == NULL ||
		export_uri_format(&uri, "", 0, uri_text, sizeof(uri_text)) != 0) {
		snprintf(uri_text, sizeof(uri_text), "%s", "nbd+unix:///?socket=PATH");
	}
	export_uri_fini(&uri);
	return cli_usage_error(command,
		"'%s' is a Unix socket, not a URI; the URI of a server on that socket is %s",
		quoted, uri_text);
}

int cli_uri(const char *command, const char *text, struct export_uri *uri)
{
	struct stat status;
	struct error error;

	if (export_uri_parse(text, uri, &error) != 0) {
		if (strstr(text, "://") == NULL && stat(text, &status) == 0 &&
			(S_ISREG(status.st_mode) || S_ISBLK(status.st_mode) ||
				S_ISSOCK(status.st_mode))) {
			return not_a_uri(command, text, &status);
		}
		return cli_usage_error(command, "%s", error.text);
	}
	if (export_uri_check_client(uri, &error) != 0) {
		export_uri_fini(uri);
		return cli_usage_error(command, "%s", error.text);
	}
	if (uri->unknown_parameter != NULL) {
		log_warning("the unknown URI parameter \"%s\" is ignored",
			quote(uri->unknown_parameter));
	}
	return CLI_GO_ON;
}

int cli_failure(const char *command, const struct error *error)
{
	char shown[4 * ERROR_TEXT_BYTES];

	fprintf(stderr, "gmblock %s: %s\n", command,
		log_escape_sentence(shown, sizeof(shown), error->text));
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
