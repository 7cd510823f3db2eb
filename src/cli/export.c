// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "control/control.h"
#include "server/config/config.h"
#include "tools/show.h"

static const char name[] = "export";

static const char help[] =
	"Usage: gmblock export add NAME PATH [KEY[=VALUE]]... [--server SERVER]\n"
	"       gmblock export set NAME KEY=VALUE... [--now|--deadline TIME] [--server SERVER]\n"
	"       gmblock export remove NAME [--now|--deadline TIME] [--server SERVER]\n"
	"       gmblock export list [--json] [--server SERVER]\n"
	"Changes the exports of a running server on this machine until the server restarts.\n"
	"Clients of other exports are not affected. The default export has the name \"\".\n"
	"\n"
	"  add            serve PATH as NAME, with the same keys as serve --export\n"
	"  set            change export keys; KEY=default restores the default.\n"
	"                 If only keys marked (live) below change, clients stay connected.\n"
	"                 Other keys, including path=PATH, disconnect clients after their\n"
	"                 requests in flight. size=auto, without other keys, tells clients\n"
	"                 that the disk has grown; size=SIZE also checks that the disk has\n"
	"                 this size\n"
	"  remove         stop serving the export after the requests in flight\n"
	"  list           show the exports with the keys that were set\n"
	"\n";

static const char notes[] =
	"\n"
	"Examples:\n"
	"  gmblock export add scratch /srv/scratch.img readonly max-connections=4\n"
	"  gmblock export set scratch rate=100M\n"
	"  gmblock export remove scratch --now\n"
	"\n"
	"Exit status: 1 failure, 2 usage error.\n";

enum { ANSWER_MS = 30000 }; /* time for the answer, in addition to the deadline */
#define DEADLINE_NS_MAX UINT64_C(3600000000000)

struct export_arguments {
	const char *server; /* or NULL */
	uint64_t deadline_ns;
	bool has_deadline;
	bool now;
	bool json;
};

/* Parses the time; 0, which --now sets, is valid. */
static int take_deadline(void *context, const char *text, struct error *error)
{
	struct export_arguments *arguments = context;
	int rc = units_parse_time(text, &arguments->deadline_ns, error);

	arguments->has_deadline = true;
	if (rc == 0 && arguments->deadline_ns > DEADLINE_NS_MAX) {
		rc = error_set(error, -ERANGE, "the time must be at most one hour");
	}
	return rc;
}

/* Returns a path that the server can open from its own folder; to be freed. The file need not
 * exist. A disk without a file, such as "memory:1G", is returned as it is. */
static char *cli_export_absolute(const char *path)
{
	bool is_file = path[strspn(path, "abcdefghijklmnopqrstuvwxyz")] != ':';
	char folder[PATH_MAX];
	char *real;

	if (path[0] == '/' || path[0] == '\0' || !is_file) {
		return strdup(path);
	}
	real = realpath(path, NULL);
	if (real == NULL && (getcwd(folder, sizeof(folder)) == NULL ||
				    asprintf(&real, "%s/%s", folder, path) < 0)) {
		return strdup(path);
	}
	return real;
}

/* Returns whether the value is one of the words that the field takes besides a path. */
static bool is_word(const struct field *field, const char *word)
{
	const char *at = field->form != NULL ? strchr(field->form, '|') : NULL;
	size_t bytes = strlen(word);

	for (; at != NULL; at = strchr(at + 1, '|')) {
		if (strcspn(at + 1, "|") == bytes && strncmp(at + 1, word, bytes) == 0) {
			return true;
		}
	}
	return false;
}

/* Returns a key and its value, from "KEY" or "KEY=VALUE". A path is made absolute, because the
 * server has another working folder. "path" is a key of `set` only, so it is not in the table. */
static json_t *pair(const char *word)
{
	size_t key_bytes = strcspn(word, "=");
	const char *value = word[key_bytes] == '=' ? word + key_bytes + 1 : NULL;
	char *key = strndup(word, key_bytes);
	const struct field *field = key != NULL ? field_find(server_export_field, key) : NULL;
	bool is_disk = key != NULL && strcmp(key, "path") == 0;
	bool is_path =
		value != NULL &&
		(is_disk || (field != NULL && field_is_path(field) && !is_word(field, value)));
	char *real = is_path ? cli_export_absolute(value) : NULL;
	json_t *made = json_pack("[s%, s?]", word, key_bytes, is_path ? real : value);

	free(key);
	free(real);
	return made;
}

static json_t *pairs(char **words, int count)
{
	json_t *all = json_array();

	for (int i = 0; i < count; i++) {
		json_array_append_new(all, pair(words[i]));
	}
	return all;
}

/* Checks an export's name, path, keys and values as the server does, so that a wrong one is an
 * error of usage. */
static int cli_export_check(char *export, char *path, char **words, int count, struct error *error)
{
	const struct server_export empty = { .name = export, .path = path, .origin = export };
	struct server_settings settings = { 0 };
	struct server_export made;
	int rc = 0;

	for (int i = 0; rc == 0 && i < count; i++) {
		const char *value = strchr(words[i], '=');
		char *key = strndup(words[i], strcspn(words[i], "="));

		rc = key == NULL ? error_oom(error)
				 : server_settings_add(
					   &settings, key, value != NULL ? value + 1 : NULL, error);
		free(key);
	}
	server_export_init(&made);
	rc = rc ?: server_export_copy(&empty, &settings, &made, error);
	server_export_fini(&made);
	server_settings_fini(&settings);
	return rc;
}

/* Builds the arguments of the control command from the words after the action. Returns NULL for
 * wrong usage, which has been reported; *status is then the exit status. */
static json_t *cli_export_make(const char *action, const struct export_arguments *arguments,
	char **words, int count, int *status)
{
	bool adds = strcmp(action, "add") == 0;
	bool sets = strcmp(action, "set") == 0;
	int needed = adds ? 2 : 1;
	char any_path[] = "/";
	struct error error = { 0 };
	bool resizes;
	json_t *all;

	*status = CLI_USAGE;
	if (!cli_utf8(name, "a name, path or value", words, count)) {
		return NULL;
	}
	if (count < needed || (sets && count == 1) || (!adds && !sets && count > 1)) {
		cli_usage_error(name, "%s",
			adds   ? "add needs a NAME and a PATH, as two words"
			: sets ? "set needs a NAME and at least one KEY=VALUE"
			       : "remove needs one NAME");
		return NULL;
	}
	/* `size` is a key only if it is the only one. */
	resizes = sets && count == 2 && strncmp(words[1], "size=", 5) == 0;
	if (!resizes && cli_export_check(words[0], adds ? words[1] : any_path, words + needed,
				count - needed, &error) < 0) {
		cli_usage_error(name, "%s", error.text);
		return NULL;
	}
	all = json_pack("{s:s, s:s, s:o}", "action", action, "name", words[0], "settings",
		pairs(words + needed, count - needed));
	if (adds) {
		char *path = cli_export_absolute(words[1]);

		json_object_set_new(all, "path", json_string(path));
		free(path);
	}
	if (arguments->now || arguments->has_deadline) {
		uint64_t ms = arguments->now ? 0 : arguments->deadline_ns / 1000000;

		json_object_set_new(all, "deadline_ms", json_integer((json_int_t)ms));
	}
	return all;
}

static int cli_export_print_list(json_t *result, bool json, struct error *error)
{
	json_t *entry;
	size_t i;

	if (json) {
		return print_json(json_incref(result), error);
	}
	json_array_foreach(json_object_get(result, "exports"), i, entry)
	{
		json_t *pair;
		size_t k;

		print_export_name(json_string_value(json_object_get(entry, "name")));
		printf("\t");
		print_peer_text(json_string_value(json_object_get(entry, "path")));
		json_array_foreach(json_object_get(entry, "settings"), k, pair)
		{
			const char *value = json_string_value(json_array_get(pair, 1));

			printf("%s", k == 0 ? "\t" : ",");
			print_peer_text(json_string_value(json_array_get(pair, 0)));
			printf("%s", value != NULL ? "=" : "");
			print_peer_text(value);
		}
		printf("\n");
	}
	return print_end(error);
}

/* Sends the command, and prints the answer. Takes ownership of wire, the command's arguments. */
static int cli_export_ask(const struct export_arguments *arguments, bool lists, json_t *wire)
{
	int timeout_ms = ANSWER_MS + (int)(arguments->deadline_ns / 1000000);
	struct error error = { 0 };
	json_t *result;
	int rc = server_ask(arguments->server, "export", wire, timeout_ms, &result, &error);

	if (rc == 0) {
		rc = lists ? cli_export_print_list(result, arguments->json, &error)
			   : cli_print_changes(result, "the command has changed nothing", &error);
		json_decref(result);
	}
	return rc < 0 ? cli_failure(name, &error) : CLI_OK;
}

#define AT(member) FIELD_IN(struct export_arguments, member)

static const struct field fields[] = {
	CLI_SERVER(struct export_arguments),
	{ "deadline", "TIME",
		"with set and remove: time limit for the requests in flight (default: 10s)",
		.set = take_deadline },
	{ "now", NULL, "with set and remove: do not wait for requests in flight",
		.type = FIELD_FLAG, AT(now) },
	{ "json", NULL, "with list: print JSON", .type = FIELD_FLAG, AT(json) },
};

int cmd_export(int argc, char **argv)
{
	static const char *const actions[] = { "add", "set", "remove", "list", NULL };
	struct export_arguments arguments = { 0 };
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.actions = actions,
		.keys = server_export_field,
		.arguments = &arguments };
	int idx;
	int status = cli_parse_action(&command, argc, argv, &idx);
	const char *action;
	bool lists;
	json_t *wire;

	if (status != CLI_GO_ON) {
		return status;
	}
	action = actions[idx];
	lists = strcmp(action, "list") == 0;
	if (lists ? argc > optind : arguments.json) {
		return cli_usage_error(
			name, lists ? "list takes no NAME; select a server with --server"
				    : "--json is for list only");
	}
	if ((arguments.now || arguments.has_deadline) && (lists || strcmp(action, "add") == 0)) {
		return cli_usage_error(name, "--now and --deadline are for set and remove only");
	}
	if (arguments.now && arguments.has_deadline) {
		return cli_usage_error(name, "give either --now or a --deadline");
	}
	wire = lists ? json_pack("{s:s}", "action", action)
		     : cli_export_make(action, &arguments, argv + optind, argc - optind, &status);
	return wire == NULL ? status : cli_export_ask(&arguments, lists, wire);
}
