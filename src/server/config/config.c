// SPDX-License-Identifier: Apache-2.0
#include "server/config/config.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/text.h"
#include "memory/arena.h"
#include "nbd/server/server.h"
#include "server/observe/scrape.h"

enum { SHOWN_BYTES = 120 };
#define MEMORY_BYTES_MAX (UINT64_C(8) << 40) /* of a thread; the arena could take twice as much */

void server_config_init(struct server_config *config)
{
	*config = (struct server_config){ 0 };
}

static void listen_fini(struct server_listen *entry)
{
	export_uri_fini(&entry->uri);
	free(entry->text);
	free(entry->origin);
	server_tls_fini(&entry->tls);
}

void server_config_fini(struct server_config *config)
{
	for (uint32_t i = 0; i < config->export_count; i++) {
		server_export_fini(&config->exports[i]);
	}
	for (uint32_t i = 0; i < config->snapshot_count; i++) {
		server_export_fini(&config->snapshots[i]);
	}
	free(config->snapshots);
	for (uint32_t i = 0; i < config->listen_count; i++) {
		listen_fini(&config->listens[i]);
	}
	for (uint32_t i = 0; i < config->command_count; i++) {
		free(config->commands[i]);
	}
	server_access_fini(&config->access);
	server_rates_fini(&config->rates);
	server_access_options_fini(config);
	server_tls_fini(&config->tls);
	for (uint32_t i = 0; i < config->export_folder_count; i++) {
		free(config->export_folders[i]);
	}
	free(config->export_folders);
	for (uint32_t i = 0; i < config->push_place_count; i++) {
		place_fini(&config->push_places[i]);
	}
	free(config->push_places);
	server_settings_fini(&config->options);
	free(config->memory_origin);
	free(config->control_path);
	free(config->metrics);
	free(config->user);
	free(config->socket_mode);
	free(config->socket_group);
	free(config->file_path);
	free(config->exports);
	free(config->listens);
	free(config->commands);
	server_config_init(config);
}

/* Makes room for one more element; capacities are the powers of two, so count alone tells when. */
static int config_grow(void *array_inout, uint32_t count, size_t element_bytes)
{
	void **array = array_inout;
	void *bigger;

	if ((count & (count - 1)) != 0) {
		return 0;
	}
	bigger = reallocarray(*array, count == 0 ? 1 : 2 * (size_t)count, element_bytes);
	if (bigger == NULL) {
		return -ENOMEM;
	}
	*array = bigger;
	return 0;
}

int server_config_add_export(struct server_config *config, struct server_export *entry,
	const char *origin, struct error *error)
{
	int rc = 0;

	entry->origin = strdup(origin);
	if (config->export_count == SERVER_EXPORTS_MAX) {
		rc = error_set(error, -EINVAL, "more than %d exports", SERVER_EXPORTS_MAX);
	} else if (entry->origin == NULL || config_grow(&config->exports, config->export_count,
						    sizeof(*config->exports)) < 0) {
		rc = error_set(error, -ENOMEM, "no memory for another export");
	}
	if (rc < 0) {
		server_export_fini(entry);
		return rc;
	}
	config->exports[config->export_count++] = *entry;
	server_export_init(entry);
	return 0;
}

static int check_listen_uri(const struct export_uri *uri, const char *shown, struct error *error)
{
	if (uri->export_name[0] != '\0') {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': a listening URI names no export, because all "
			"exports are served there; name them with --export",
			shown);
	}
	if (uri->user != NULL || uri->tls_type != NULL || uri->tls_hostname != NULL ||
		uri->tls_verify_peer != NULL || export_uri_has_files(uri)) {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': a user and tls- parameters are for clients; an "
			"address has --tls and its like, or keys of its own in the file of "
			"--config",
			shown);
	}
	if (uri->unknown_parameter != NULL) {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': unknown parameter '%s'; socket=PATH, "
			"socket-mode=MODE and socket-group=GROUP are known, and with gmb:// "
			"and push:// provider=tcp|verbs|ofi-tcp and insecure-network=yes",
			shown, uri->unknown_parameter);
	}
	return 0;
}

static int check_mode(const char *text, struct error *error)
{
	char shown[SHOWN_BYTES];
	char *end;
	unsigned long mode = strtoul(text, &end, 8);

	return *end == '\0' && (mode & ~0777UL) == 0 && (mode & 0600) == 0600
		       ? 0
		       : error_set(error, -EINVAL,
				 "'%s' is not a mode for a socket; it is octal, from 0600 to 0777, "
				 "such as 0660",
				 log_escape(shown, sizeof(shown), text, strlen(text)));
}

int server_config_add_listen(struct server_config *config, const char *text, struct server_tls *tls,
	const char *origin, struct error *error)
{
	struct server_listen entry = { .tls = *tls };
	char shown[SHOWN_BYTES];
	int rc = export_uri_parse(text, &entry.uri, error);

	*tls = (struct server_tls){ 0 };
	if (rc < 0) {
		listen_fini(&entry);
		return rc;
	}
	entry.text = strdup(text);
	entry.origin = strdup(origin);
	rc = check_listen_uri(
		&entry.uri, log_escape(shown, sizeof(shown), text, strlen(text)), error);
	if (rc == 0 && entry.uri.socket_mode != NULL) {
		rc = check_mode(entry.uri.socket_mode, error);
	}
	if (rc == 0 && config->listen_count == SERVER_LISTENS_MAX) {
		rc = error_set(
			error, -EINVAL, "more than %d addresses to listen on", SERVER_LISTENS_MAX);
	}
	if (rc == 0 && (entry.text == NULL || entry.origin == NULL ||
			       config_grow(&config->listens, config->listen_count,
				       sizeof(*config->listens)) < 0)) {
		rc = error_set(error, -ENOMEM, "no memory for another listening address");
	}
	if (rc < 0) {
		listen_fini(&entry);
		return rc;
	}
	config->listens[config->listen_count++] = entry;
	return 0;
}

static int add_command(
	struct server_config *config, const char *name, const char *command, struct error *error)
{
	char *copy;

	GMB_UNUSED(name);
	if (command[0] == '\0') {
		return error_set(error, -EINVAL,
			"the command is empty; give one such as 'nbdinfo \"$uri\"'");
	}
	copy = strdup(command);
	if (copy == NULL || config_grow(&config->commands, config->command_count,
				    sizeof(*config->commands)) < 0) {
		free(copy);
		return error_set(error, -ENOMEM, "no memory for another command");
	}
	config->commands[config->command_count++] = copy;
	return 0;
}

static int set_control(
	struct server_config *config, const char *name, const char *path, struct error *error)
{
	GMB_UNUSED(name);
	if (config->control_path != NULL) {
		return error_set(error, -EINVAL, "a server has one control socket");
	}
	if (path[0] == '\0') {
		return error_set(error, -EINVAL, "the path is empty; \"none\" is for no socket");
	}
	config->control_path = strdup(path);
	if (config->control_path == NULL) {
		return error_set(error, -ENOMEM, "no memory for a path");
	}
	return 0;
}

static int set_metrics(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	struct export_uri uri;
	int rc;

	GMB_UNUSED(name);
	if (config->metrics != NULL) {
		return error_set(error, -EINVAL, "metrics are served at one address");
	}
	rc = scrape_uri_parse(text, &uri, error);
	if (rc < 0) {
		return rc;
	}
	export_uri_fini(&uri);
	config->metrics = strdup(text);
	return config->metrics != NULL ? 0 : error_set(error, -ENOMEM, "no memory for a URI");
}

static int set_sandbox(
	struct server_config *config, const char *name, const char *value, struct error *error)
{
	static const char *const names[] = {
		[SANDBOX_AUTO] = "auto", [SANDBOX_ON] = "on", [SANDBOX_OFF] = "off"
	};
	char shown[SHOWN_BYTES];

	GMB_UNUSED(name);
	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (strcmp(value, names[i]) == 0) {
			config->sandbox = (enum sandbox_mode)i;
			return 0;
		}
	}
	return error_set(error, -EINVAL, "'%s' is none of auto, on and off",
		log_escape(shown, sizeof(shown), value, strlen(value)));
}

static int set_arena_key(struct server_arena *arena, const char *text, struct error *error)
{
	char shown[SHOWN_BYTES];

	if (strncmp(text, "size=", 5) == 0) {
		int rc = units_parse_bytes(text + 5, &arena->bytes, error);

		return rc == 0 && arena->bytes < ARENA_DEVICE_BYTES_MIN
			       ? error_set(error, -ERANGE, "a size of less than 256K is too little")
			       : rc;
	}
	if (strcmp(text, "spill=ram") == 0 || strcmp(text, "spill=wait") == 0) {
		arena->waits = strcmp(text, "spill=wait") == 0;
		return 0;
	}
	return error_set(error, -EINVAL, "'%s' is neither size=SIZE, nor spill=ram, nor spill=wait",
		log_escape(shown, sizeof(shown), text, strlen(text)));
}

static int set_arena(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	static const char prefix[] = "p2pmem:";
	struct server_arena arena = { .given = true };
	char shown[SHOWN_BYTES];
	char *copy;
	char *rest;
	char *word;
	int rc;

	GMB_UNUSED(name);
	if (config->arena.given) {
		return error_set(error, -EINVAL, "a server has memory of one device");
	}
	if (strncmp(text, prefix, strlen(prefix)) != 0) {
		return error_set(error, -EINVAL,
			"'%s' is not an arena; it is written "
			"p2pmem:BDF[,size=SIZE][,spill=ram|wait], "
			"with the address of a PCI device. Memory of network cards (dma-buf) "
			"cannot be "
			"used: disks take no such memory",
			log_escape(shown, sizeof(shown), text, strlen(text)));
	}
	copy = strdup(text + strlen(prefix));
	if (copy == NULL) {
		return error_set(error, -ENOMEM, "no memory for an arena");
	}
	rest = copy;
	word = strsep(&rest, ",");
	rc = p2pmem_parse_bdf(word, arena.bdf, error);
	while (rc == 0 && (word = strsep(&rest, ",")) != NULL) {
		rc = set_arena_key(&arena, word, error);
	}
	free(copy);
	if (rc == 0) {
		config->arena = arena;
	}
	return rc;
}

static int set_user(
	struct server_config *config, const char *name, const char *user, struct error *error)
{
	GMB_UNUSED(name);
	if (config->user != NULL) {
		return error_set(error, -EINVAL, "a server runs as one user");
	}
	config->user = strdup(user);
	return config->user != NULL ? 0 : error_set(error, -ENOMEM, "no memory for a name");
}

static int set_socket(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	bool is_mode = strcmp(name, "socket-mode") == 0;
	char **field = is_mode ? &config->socket_mode : &config->socket_group;
	int rc = is_mode ? check_mode(text, error) : 0;

	if (rc == 0 && *field != NULL) {
		rc = error_set(error, -EINVAL, "it is given twice");
	}
	if (rc == 0) {
		*field = strdup(text);
		rc = *field != NULL ? 0 : error_set(error, -ENOMEM, "no memory for an option");
	}
	return rc;
}

/* Of a folder that does not exist nothing could be added later, and the sandbox is entered once. */
static int add_export_folder(
	struct server_config *config, const char *name, const char *path, struct error *error)
{
	char *real = realpath(path, NULL);

	GMB_UNUSED(name);
	if (real == NULL) {
		char shown[SHOWN_BYTES];

		return error_set(error, -errno, "%s: %s",
			log_escape(shown, sizeof(shown), path, strlen(path)), strerror(errno));
	}
	if (config_grow(&config->export_folders, config->export_folder_count,
		    sizeof(*config->export_folders)) < 0) {
		free(real);
		return error_set(error, -ENOMEM, "no memory for a folder");
	}
	config->export_folders[config->export_folder_count++] = real;
	return 0;
}

static int add_push_place(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	struct place place;
	int rc = place_parse(text, &place, error);

	GMB_UNUSED(name);
	if (rc == 0 && config_grow(&config->push_places, config->push_place_count,
			       sizeof(*config->push_places)) < 0) {
		place_fini(&place);
		rc = error_set(error, -ENOMEM, "no memory for a place");
	}
	if (rc == 0) {
		config->push_places[config->push_place_count++] = place;
	}
	return rc;
}

int server_config_set_memory_origin(
	struct server_config *config, const char *origin, struct error *error)
{
	char *copy = strdup(origin);

	if (copy == NULL) {
		return error_set(error, -ENOMEM, "no memory for a limit");
	}
	free(config->memory_origin);
	config->memory_origin = copy;
	return 0;
}

static int set_spin(struct server_limits *limits, const char *value, struct error *error)
{
	char shown[SHOWN_BYTES];

	if (strcmp(value, "auto") == 0) {
		limits->spin = SERVER_SPIN_AUTO;
	} else if (strcmp(value, "off") == 0) {
		limits->spin = SERVER_SPIN_OFF;
	} else {
		return error_set(error, -EINVAL, "'%s' is neither auto nor off",
			log_escape(shown, sizeof(shown), value, strlen(value)));
	}
	return 0;
}

static int set_idle_timeout(struct server_limits *limits, const char *value, struct error *error)
{
	int rc;

	if (strcmp(value, "off") == 0) {
		limits->idle_timeout_ns = SERVER_IDLE_OFF;
		return 0;
	}
	rc = units_parse_time(value, &limits->idle_timeout_ns, error);
	if (rc == 0 && limits->idle_timeout_ns < ENGINE_IDLE_TIMEOUT_NS_MIN) {
		rc = error_set(error, -ERANGE,
			"a connection needs 100ms at least; \"off\" is for no limit");
	}
	return rc;
}

int server_limits_set(
	struct server_limits *limits, const char *key, const char *value, struct error *error)
{
	const struct {
		const char *key;
		uint32_t *count;
		uint32_t max;
	} counts[] = {
		{ "threads", &limits->threads, SERVER_THREADS_MAX },
		{ "max-connections", &limits->connections_max, 1000000 },
		{ "max-connections-per-peer", &limits->connections_per_peer_max, 1000000 },
		{ "max-handshakes", &limits->handshakes_max, 1000000 },
		{ "max-inflight", &limits->inflight_max, 65536 },
		{ "max-inflight-total", &limits->inflight_total_max, 16777216 },
	};
	int rc;

	for (size_t i = 0; i < ARRAY_COUNT(counts); i++) {
		if (strcmp(key, counts[i].key) == 0) {
			return units_parse_count(value, 1, counts[i].max, counts[i].count, error);
		}
	}
	if (strcmp(key, "spin") == 0) {
		return set_spin(limits, value, error);
	}
	if (strcmp(key, "memory") == 0) {
		rc = units_parse_bytes(value, &limits->memory_bytes, error);
		if (rc == 0 && limits->memory_bytes == 0) {
			rc = error_set(error, -ERANGE, "a server cannot work without memory");
		}
		return rc;
	}
	if (strcmp(key, "idle-timeout") == 0) {
		return set_idle_timeout(limits, value, error);
	}
	GMB_ASSERT(strcmp(key, "handshake-timeout") == 0);
	rc = units_parse_time(value, &limits->handshake_timeout_ns, error);
	if (rc == 0 && limits->handshake_timeout_ns == 0) {
		rc = error_set(error, -ERANGE,
			"the handshake deadline cannot be turned off: silent connections would "
			"never go away");
	}
	return rc;
}

void server_limits_merge(struct server_limits *limits, const struct server_limits *fallback)
{
#define FILL(field) limits->field = limits->field != 0 ? limits->field : fallback->field
	FILL(memory_bytes);
	FILL(handshake_timeout_ns);
	FILL(idle_timeout_ns);
	FILL(threads);
	FILL(connections_max);
	FILL(connections_per_peer_max);
	FILL(handshakes_max);
	FILL(inflight_max);
	FILL(inflight_total_max);
	FILL(spin);
#undef FILL
}

/* --- options --------------------------------------------------------------------------------- */

static int config_add_export(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	struct server_export entry;
	char shown[100];
	char origin[128];
	int rc;

	server_export_init(&entry);
	rc = server_export_parse(&entry, text, error);
	if (rc < 0) {
		return rc;
	}
	snprintf(origin, sizeof(origin), "--%s %s", name,
		log_escape(shown, sizeof(shown), text, strlen(text)));
	return server_config_add_export(config, &entry, origin, error);
}

static int config_add_path(
	struct server_config *config, const char *name, const char *path, struct error *error)
{
	struct server_export entry;
	char shown[100];
	int rc;

	GMB_UNUSED(name);
	server_export_init(&entry);
	rc = server_export_set_name(&entry, "", error);
	if (rc == 0) {
		rc = server_export_set_path(&entry, path, error);
	}
	entry.syntax = SERVER_SYNTAX_PATH;
	if (rc == 0 && config->path_read_only) {
		rc = server_export_set(&entry, "readonly", NULL, error);
	}
	if (rc < 0) {
		server_export_fini(&entry);
		return rc;
	}
	return server_config_add_export(
		config, &entry, log_escape(shown, sizeof(shown), path, strlen(path)), error);
}

static int set_read_only(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	GMB_UNUSED(name);
	GMB_UNUSED(text);
	GMB_UNUSED(error);
	config->path_read_only = true;
	return 0;
}

static int add_listen(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	struct server_tls tls = { 0 };

	GMB_UNUSED(name);
	return server_config_add_listen(config, text, &tls, "--listen", error);
}

static int add_access(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	GMB_UNUSED(name);
	return server_config_add_access(config, text, error);
}

static int config_set_tls(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	return server_tls_set(&config->tls, name, text, error);
}

static int config_set_limit(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	int rc = server_limits_set(&config->limits, name, text, error);

	return rc == 0 && strcmp(name, "memory") == 0
		       ? server_config_set_memory_origin(config, "--memory", error)
		       : rc;
}

enum option_place { OF_COMMAND_LINE, OF_FILE_TOO };

static const struct server_option {
	const char *name;
	int (*set)(struct server_config *config, const char *name, const char *text,
		struct error *error);
	enum option_place place;
} options[] = {
	{ "export", config_add_export, OF_COMMAND_LINE },
	{ "listen", add_listen, OF_COMMAND_LINE },
	{ "access", add_access, OF_COMMAND_LINE },
	{ "run", add_command, OF_COMMAND_LINE },
	{ "tls", config_set_tls, OF_COMMAND_LINE },
	{ "tls-certificates", config_set_tls, OF_COMMAND_LINE },
	{ "tls-psk", config_set_tls, OF_COMMAND_LINE },
	{ "tls-verify-peer", config_set_tls, OF_COMMAND_LINE },
	{ "tls-priority", config_set_tls, OF_COMMAND_LINE },
	{ "tls-records", config_set_tls, OF_COMMAND_LINE },
	{ "memory", config_set_limit, OF_COMMAND_LINE },
	{ "threads", config_set_limit, OF_COMMAND_LINE },
	{ "max-connections", config_set_limit, OF_COMMAND_LINE },
	{ "max-connections-per-peer", config_set_limit, OF_COMMAND_LINE },
	{ "max-handshakes", config_set_limit, OF_COMMAND_LINE },
	{ "handshake-timeout", config_set_limit, OF_COMMAND_LINE },
	{ "idle-timeout", config_set_limit, OF_COMMAND_LINE },
	{ "max-inflight", config_set_limit, OF_COMMAND_LINE },
	{ "max-inflight-total", config_set_limit, OF_COMMAND_LINE },
	{ "spin", config_set_limit, OF_COMMAND_LINE },
	{ "control", set_control, OF_FILE_TOO },
	{ "metrics", set_metrics, OF_FILE_TOO },
	{ "arena", set_arena, OF_FILE_TOO },
	{ "user", set_user, OF_FILE_TOO },
	{ "sandbox", set_sandbox, OF_FILE_TOO },
	{ "socket-mode", set_socket, OF_FILE_TOO },
	{ "socket-group", set_socket, OF_FILE_TOO },
	{ "export-folder", add_export_folder, OF_FILE_TOO },
	{ "push-to", add_push_place, OF_FILE_TOO },
	{ "read-only", set_read_only, OF_COMMAND_LINE },
	{ "path", config_add_path, OF_COMMAND_LINE },
};

static const struct server_option *find_option(const char *name)
{
	const struct server_option *option = options;

	while (strcmp(option->name, name) != 0) {
		option++;
		GMB_ASSERT(option < options + ARRAY_COUNT(options));
	}
	return option;
}

/* Whether it can be given several times. */
static bool adds(const struct server_option *option)
{
	return option->set == add_export_folder || option->set == add_push_place;
}

const char *server_limits_key(uint32_t idx)
{
	for (size_t i = 0; i < ARRAY_COUNT(options); i++) {
		if (options[i].set == config_set_limit && idx-- == 0) {
			return options[i].name;
		}
	}
	return NULL;
}

const char *server_config_file_key(uint32_t idx, bool *repeats)
{
	for (size_t i = 0; i < ARRAY_COUNT(options); i++) {
		if (options[i].place == OF_FILE_TOO && idx-- == 0) {
			*repeats = adds(&options[i]);
			return options[i].name;
		}
	}
	return NULL;
}

int server_config_option(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	const struct server_option *option = find_option(name);
	int rc = option->set(config, name, text, error);

	if (rc < 0 && option->set != config_add_path) {
		error_prefix(error, "--%s", name);
	}
	return rc < 0 ? rc : server_settings_add(&config->options, name, text, error);
}

/* Whether the command line has it. */
static bool is_given(const struct server_config *config, const char *name)
{
	for (uint32_t i = 0; i < config->options.count; i++) {
		if (strcmp(config->options.list[i].key, name) == 0) {
			return true;
		}
	}
	return false;
}

int server_config_file_option(
	struct server_config *config, const char *name, const char *text, struct error *error)
{
	const struct server_option *option = find_option(name);

	GMB_ASSERT(option->place == OF_FILE_TOO);
	return is_given(config, name) && !adds(option) ? 0 : option->set(config, name, text, error);
}

int server_config_again(
	const struct server_config *config, struct server_config *again, struct error *error)
{
	int rc = 0;

	server_config_init(again);
	for (uint32_t i = 0; rc == 0 && i < config->options.count; i++) {
		const struct server_setting *option = &config->options.list[i];

		rc = server_config_option(again, option->key, option->value, error);
	}
	if (rc == 0 && config->file_path != NULL) {
		rc = server_config_load(again, config->file_path, error);
	}
	if (rc == 0) {
		rc = server_config_finish(again, error);
	}
	if (rc < 0) {
		server_config_fini(again);
	}
	return rc;
}

/* --- the whole ------------------------------------------------------------------------------- */

static uint32_t cpus_allowed(void)
{
	cpu_set_t set;

	/* A machine with more CPUs than the set holds has more than the most threads we start. */
	if (sched_getaffinity(0, sizeof(set), &set) < 0) {
		return SERVER_THREADS_MAX;
	}
	return (uint32_t)MAX(CPU_COUNT(&set), 1);
}

/* As a person writes it in a sentence: 1K, but 1 byte. */
static const char *memory_text(char out[UNITS_TEXT_BYTES], uint64_t bytes)
{
	units_format_bytes(out, bytes);
	if (bytes < 1000) {
		snprintf(out, UNITS_TEXT_BYTES, "%u byte%s", (unsigned int)bytes,
			bytes == 1 ? "" : "s");
	}
	return out;
}

static int finish_limits(struct server_config *config, struct error *error)
{
	struct server_limits *limits = &config->limits;
	struct server_limits defaults = { 0 };
	struct engine_limits reactor;
	char memory[UNITS_TEXT_BYTES];
	char least[UNITS_TEXT_BYTES];
	uint64_t sessions_max;

	if (limits->threads == 0) {
		limits->threads = MIN(cpus_allowed(), (uint32_t)SERVER_THREADS_MAX);
	}
	engine_limits_default(&reactor);
	defaults.memory_bytes = reactor.memory_bytes_max * limits->threads;
	defaults.handshake_timeout_ns = reactor.handshake_timeout_ns;
	defaults.idle_timeout_ns = SERVER_IDLE_OFF;
	defaults.connections_max = reactor.sessions_max * limits->threads;
	defaults.handshakes_max = reactor.handshakes_max * limits->threads;
	defaults.inflight_max = reactor.inflight_per_session_max;
	defaults.inflight_total_max = reactor.inflight_max * limits->threads;
	defaults.spin = SERVER_SPIN_AUTO;
	sessions_max = limits->memory_bytes != 0 ? limits->memory_bytes : defaults.memory_bytes;
	sessions_max =
		(uint64_t)engine_sessions_max(sessions_max / limits->threads) * limits->threads;
	defaults.connections_max = (uint32_t)MIN(sessions_max, (uint64_t)defaults.connections_max);
	server_limits_merge(limits, &defaults);
	if (limits->connections_per_peer_max == 0) {
		limits->connections_per_peer_max =
			MAX(limits->connections_max / SERVER_PEER_DIVISOR, 1U);
	}
	if (limits->memory_bytes / limits->threads > MEMORY_BYTES_MAX) {
		return error_set(error, -EINVAL,
			"%s: %s of memory is too much for %u thread%s: each can use at most 8T",
			config->memory_origin, units_format_bytes(memory, limits->memory_bytes),
			limits->threads, limits->threads == 1 ? "" : "s");
	}
	if (limits->memory_bytes / limits->threads < ARENA_SLAB_BYTES) {
		GMB_ASSERT(config->memory_origin != NULL); /* the default is enough */
		return error_set(error, -EINVAL,
			"%s: %s of memory is too little for %u thread%s: each needs at least %s; "
			"raise the limit or lower the number of threads",
			config->memory_origin, memory_text(memory, limits->memory_bytes),
			limits->threads, limits->threads == 1 ? "" : "s",
			units_format_bytes(least, ARENA_SLAB_BYTES));
	}
	if (limits->connections_max > sessions_max) {
		return error_set(error, -EINVAL,
			"%u connections are too many for %s of memory: each needs a share of its "
			"own, %s; raise the limit on memory or lower that on connections",
			limits->connections_max, units_format_bytes(memory, limits->memory_bytes),
			units_format_bytes(least, ENGINE_SESSION_BYTES));
	}
	return 0;
}

static int check_arena(const struct server_config *config, struct error *error)
{
	for (uint32_t i = 0; i < config->export_count && !config->arena.given; i++) {
		const struct server_export *entry = &config->exports[i];

		if (entry->store.read_mode == STORE_MODE_DEVICE ||
			entry->store.write_mode == STORE_MODE_DEVICE) {
			return error_set(error, -EINVAL,
				"%s: mode=device needs the memory of a PCI device; name one with "
				"--arena "
				"p2pmem:BDF",
				entry->origin);
		}
	}
	return 0;
}

static int config_compare_names(const void *left, const void *right)
{
	const struct server_export *const *a = left;
	const struct server_export *const *b = right;
	int order = strcmp((*a)->name, (*b)->name);

	/* Equal names stay in the order in which they were given. */
	return order != 0 ? order : (*a > *b) - (*a < *b);
}

static int check_export_names(const struct server_config *config, struct error *error)
{
	const struct server_export **sorted = calloc(config->export_count, sizeof(*sorted));
	char shown[SHOWN_BYTES];
	int rc = 0;

	if (sorted == NULL) {
		return error_set(error, -ENOMEM, "no memory to compare export names");
	}
	for (uint32_t i = 0; i < config->export_count; i++) {
		sorted[i] = &config->exports[i];
	}
	qsort(sorted, config->export_count, sizeof(*sorted), config_compare_names);
	for (uint32_t i = 1; i < config->export_count && rc == 0; i++) {
		const char *name = sorted[i]->name;

		if (strcmp(sorted[i - 1]->name, name) == 0) {
			rc = error_set(error, -EINVAL,
				"%s: the export name \"%s\" is already used by %s; every export "
				"needs a name of its own",
				sorted[i]->origin,
				log_escape(shown, sizeof(shown), name, strlen(name)),
				sorted[i - 1]->origin);
		}
	}
	free(sorted);
	return rc;
}

static bool same_address(const struct export_uri *a, const struct export_uri *b)
{
	if (a->is_unix != b->is_unix) {
		return false;
	}
	if (a->is_unix) {
		return a->socket_path_bytes == b->socket_path_bytes &&
		       memcmp(a->socket_path, b->socket_path, a->socket_path_bytes) == 0;
	}
	/* Port 0 asks for a port of its own each time. */
	return a->port == b->port && a->port != 0 && strcasecmp(a->host, b->host) == 0;
}

static int check_listens(const struct server_config *config, struct error *error)
{
	for (uint32_t i = 0; i < config->listen_count; i++) {
		for (uint32_t k = 0; k < i; k++) {
			const struct server_listen *entry = &config->listens[i];

			if (same_address(&entry->uri, &config->listens[k].uri)) {
				return error_set(error, -EINVAL,
					"%s: the address %s is already given by %s; remove one",
					entry->origin, entry->text, config->listens[k].origin);
			}
		}
	}
	return 0;
}

/* What Unix sockets do not say themselves. */
static int finish_sockets(struct server_config *config, struct error *error)
{
	for (uint32_t i = 0; i < config->listen_count; i++) {
		struct export_uri *uri = &config->listens[i].uri;
		const struct {
			char **field;
			const char *common;
		} texts[] = {
			{ &uri->socket_mode, config->socket_mode },
			{ &uri->socket_group, config->socket_group },
		};

		for (size_t k = 0; uri->is_unix && k < ARRAY_COUNT(texts); k++) {
			if (*texts[k].field != NULL || texts[k].common == NULL) {
				continue;
			}
			*texts[k].field = strdup(texts[k].common);
			if (*texts[k].field == NULL) {
				return error_set(error, -ENOMEM, "no memory for an address");
			}
		}
	}
	return 0;
}

int server_config_finish(struct server_config *config, struct error *error)
{
	int rc;

	if (config->export_count == 0) {
		return error_set(error, -EINVAL,
			"nothing to serve: no export is named; give a PATH or --export NAME=PATH, "
			"or list exports in the file of --config FILE");
	}
	if (config->sandbox == SANDBOX_ON && config->command_count > 0) {
		return error_set(error, -EINVAL,
			"--sandbox=on would bind the commands of --run, too; leave one of them "
			"out");
	}
	rc = check_export_names(config, error);
	if (rc == 0) {
		rc = check_arena(config, error);
	}
	if (rc == 0) {
		rc = check_listens(config, error);
	}
	if (rc == 0) {
		rc = finish_sockets(config, error);
	}
	if (rc == 0) {
		rc = server_tls_finish(config, error);
	}
	if (rc == 0) {
		rc = server_access_finish(config, error);
	}
	if (rc == 0) {
		rc = finish_limits(config, error);
	}
	return rc;
}
