// SPDX-License-Identifier: Apache-2.0
/* The table of the options of the whole server. Some can also be set in the configuration file. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/text.h"
#include "engine/engine.h"
#include "memory/arena.h"
#include "server/config/config.h"
#include "server/observe/scrape.h"

enum { ORIGIN_BYTES = 64, CONNECTIONS_MAX = 1000000 };

/* --- setting --------------------------------------------------------------------------------- */

static int add_export(void *object, const char *text, struct error *error)
{
	struct server_config *config = object;
	struct server_export entry;
	char origin[ORIGIN_BYTES + QUOTE_BYTES];
	int rc;

	server_export_init(&entry);
	rc = server_export_parse(&entry, text, error);
	if (rc < 0) {
		return rc;
	}
	snprintf(origin, sizeof(origin), "%s %s", config->origin, quote(text));
	return server_config_add_export(config, &entry, origin, error);
}

static int add_path(void *object, const char *path, struct error *error)
{
	struct server_config *config = object;
	struct server_export entry;
	int rc;

	server_export_init(&entry);
	rc = server_export_set_name(&entry, "", error);
	rc = rc ?: server_export_set_path(&entry, path, error);
	entry.syntax = SERVER_SYNTAX_PATH;
	if (rc == 0 && config->path_read_only) {
		rc = server_export_set(&entry, "readonly", NULL, error);
	}
	if (rc < 0) {
		server_export_fini(&entry);
		return rc;
	}
	return server_config_add_export(config, &entry, quote(path), error);
}

static int add_listen(void *object, const char *text, struct error *error)
{
	struct server_config *config = object;
	struct server_listen entry = { .text = strdup(text) };

	return entry.text == NULL ? error_oom_for(error, "an address")
				  : server_config_add_listen(config, &entry, config->origin, error);
}

static int add_access(void *object, const char *text, struct error *error)
{
	return server_config_add_access(object, text, error);
}

static int add_command(void *object, const char *command, struct error *error)
{
	struct server_config *config = object;
	char *copy;

	if (command[0] == '\0') {
		return error_set(error, -EINVAL,
			"the command is empty; give one such as 'nbdinfo \"$uri\"'");
	}
	copy = strdup(command);
	if (copy == NULL || array_grow(&config->commands, config->command_count,
				    sizeof(*config->commands)) < 0) {
		free(copy);
		return error_oom_for(error, "a command");
	}
	config->commands[config->command_count++] = copy;
	return 0;
}

/* Rejects a folder that does not exist, because a folder created later could not be added to the
 * sandbox. */
static int add_export_folder(void *object, const char *path, struct error *error)
{
	struct server_config *config = object;
	char *real = realpath(path, NULL);

	if (real == NULL) {
		return error_set(error, -errno, "%s: %s", quote(path), strerror(errno));
	}
	if (array_grow(&config->export_folders, config->export_folder_count,
		    sizeof(*config->export_folders)) < 0) {
		free(real);
		return error_oom_for(error, "a folder");
	}
	config->export_folders[config->export_folder_count++] = real;
	return 0;
}

static int add_push_place(void *object, const char *text, struct error *error)
{
	struct server_config *config = object;
	struct place place;
	int rc = place_parse(text, &place, error);

	if (rc == 0 && array_grow(&config->push_places, config->push_place_count,
			       sizeof(*config->push_places)) < 0) {
		place_fini(&place);
		rc = error_oom_for(error, "a destination");
	}
	if (rc == 0) {
		config->push_places[config->push_place_count++] = place;
	}
	return rc;
}

static int set_arena_key(struct server_arena *arena, const char *text, struct error *error)
{
	if (strncmp(text, "size=", 5) == 0) {
		int rc = units_parse_bytes(text + 5, &arena->bytes, error);

		return rc == 0 && arena->bytes < ARENA_DEVICE_BYTES_MIN
			       ? error_set(error, -ERANGE, "the size must be at least 256K")
			       : rc;
	}
	if (strcmp(text, "spill=ram") == 0 || strcmp(text, "spill=wait") == 0) {
		arena->waits = strcmp(text, "spill=wait") == 0;
		return 0;
	}
	return error_set(error, -EINVAL, "'%s' is neither size=SIZE, nor spill=ram, nor spill=wait",
		quote(text));
}

static int set_arena(void *object, const char *text, struct error *error)
{
	static const char prefix[] = "p2pmem:";
	struct server_config *config = object;
	struct server_arena arena = { .given = true };
	char *copy;
	char *rest;
	char *word;
	int rc;

	if (strncmp(text, prefix, strlen(prefix)) != 0) {
		return error_set(error, -EINVAL,
			"'%s' is not an arena; write p2pmem:BDF[,size=SIZE][,spill=ram|wait] with "
			"the address of a PCI device (memory of network cards, dma-buf, cannot be "
			"used, because disks do not accept it)",
			quote(text));
	}
	copy = strdup(text + strlen(prefix));
	if (copy == NULL) {
		return error_oom_for(error, "an arena");
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

static int set_idle_timeout(void *object, const char *value, struct error *error)
{
	uint64_t *idle_timeout_ns = &((struct server_config *)object)->limits.idle_timeout_ns;
	int rc;

	if (strcmp(value, "off") == 0) {
		*idle_timeout_ns = 0;
		return 0;
	}
	rc = units_parse_time(value, idle_timeout_ns, error);
	if (rc == 0 && *idle_timeout_ns < ENGINE_IDLE_TIMEOUT_NS_MIN) {
		rc = error_set(error, -ERANGE,
			"the time must be at least 100ms; use \"off\" for no limit");
	}
	return rc;
}

/* --- checks of text values ------------------------------------------------------------------- */

static int check_metrics(void *object, const char *text, struct error *error)
{
	struct export_uri uri;
	int rc = scrape_uri_parse(text, &uri, error);

	if (rc == 0) {
		export_uri_fini(&uri);
	}
	return rc;
}

static int check_socket_mode(void *object, const char *text, struct error *error)
{
	return server_config_check_mode(text, error);
}

/* Records where the limit was given, for errors about it from server_config_finish(). */
static int note_memory_origin(void *object, const char *text, struct error *error)
{
	struct server_config *config = object;
	char *copy = strdup(config->origin);

	if (copy == NULL) {
		return error_oom_for(error, "a limit");
	}
	free(config->memory_origin);
	config->memory_origin = copy;
	return 0;
}

/* --- comparing: "660" and "0660" are one mode; the order of addresses does not matter ------- */

/* Compares texts; NULL means the default. */
static bool same_or_default(const char *a, const char *b, const char *standard)
{
	return strcmp(a != NULL ? a : standard, b != NULL ? b : standard) == 0;
}

static bool same_mode(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strtoul(a, NULL, 8) == strtoul(b, NULL, 8);
}

/* Compares host names or addresses. An IPv6 address can be written in several ways. */
static bool same_name(const char *a, const char *b)
{
	struct in6_addr one;
	struct in6_addr other;

	return strcasecmp(a, b) == 0 ||
	       (inet_pton(AF_INET6, a, &one) == 1 && inet_pton(AF_INET6, b, &other) == 1 &&
		       memcmp(&one, &other, sizeof(one)) == 0);
}

static bool same_host(const struct export_uri *a, const struct export_uri *b)
{
	if (a->is_unix || b->is_unix) {
		return a->is_unix == b->is_unix && a->is_folder == b->is_folder &&
		       a->socket_path_bytes == b->socket_path_bytes &&
		       memcmp(a->socket_path, b->socket_path, a->socket_path_bytes) == 0;
	}
	return a->port == b->port && same_name(a->host, b->host);
}

static bool same_uri(const struct export_uri *a, const struct export_uri *b)
{
	return same_or_default(a->protocol, b->protocol, "") && a->tls == b->tls &&
	       same_host(a, b) && same_or_default(a->provider, b->provider, "tcp") &&
	       same_or_default(a->insecure_network, b->insecure_network, "no") &&
	       same_mode(a->socket_mode, b->socket_mode) &&
	       same_or_default(a->socket_group, b->socket_group, "");
}

static bool has_listen(const void *object, const void *element)
{
	const struct server_config *config = object;
	const struct server_listen *entry = element;
	bool found = false;

	for (uint32_t i = 0; i < config->listen_count && !found; i++) {
		found = same_uri(&config->listens[i].uri, &entry->uri) &&
			server_tls_equal(&config->listens[i].tls, &entry->tls);
	}
	return found;
}

static bool same_listens(const void *one, const void *other)
{
	const struct server_config *a = one;
	const struct server_config *b = other;
	bool same = a->listen_count == b->listen_count;

	for (uint32_t i = 0; same && i < a->listen_count; i++) {
		same = has_listen(b, &a->listens[i]);
	}
	return same;
}

static bool same_users(const void *one, const void *other)
{
	const char *a = ((const struct server_config *)one)->user;
	const char *b = ((const struct server_config *)other)->user;

	return a == NULL || b == NULL
		       ? a == b
		       : strcmp(a, b) == 0 || (sandbox_is_user(a) && sandbox_is_user(b));
}

static bool same_arena(const void *one, const void *other)
{
	const struct server_arena *a = &((const struct server_config *)one)->arena;
	const struct server_arena *b = &((const struct server_config *)other)->arena;

	return a->given == b->given && a->waits == b->waits && a->bytes == b->bytes &&
	       strcmp(a->bdf, b->bdf) == 0;
}

static bool same_metrics(const void *one, const void *other)
{
	const char *a = ((const struct server_config *)one)->metrics;
	const char *b = ((const struct server_config *)other)->metrics;
	struct export_uri a_uri = { 0 };
	struct export_uri b_uri = { 0 };
	bool same = a == NULL || b == NULL ? a == b
					   : scrape_uri_parse(a, &a_uri, NULL) == 0 &&
						     scrape_uri_parse(b, &b_uri, NULL) == 0 &&
						     same_uri(&a_uri, &b_uri);

	export_uri_fini(&a_uri);
	export_uri_fini(&b_uri);
	return same;
}

static bool has_folders(const struct server_config *config, const struct server_config *other)
{
	bool found = true;

	for (uint32_t i = 0; i < other->export_folder_count && found; i++) {
		found = false;
		for (uint32_t k = 0; k < config->export_folder_count && !found; k++) {
			found = strcmp(config->export_folders[k], other->export_folders[i]) == 0;
		}
	}
	return found;
}

static bool same_folders(const void *a, const void *b)
{
	return has_folders(a, b) && has_folders(b, a);
}

static bool has_places(const struct server_config *config, const struct server_config *other)
{
	bool found = true;

	for (uint32_t i = 0; i < other->push_place_count && found; i++) {
		found = false;
		for (uint32_t k = 0; k < config->push_place_count && !found; k++) {
			found = place_same(&config->push_places[k], &other->push_places[i]);
		}
	}
	return found;
}

/* Returns the next push destination with TLS credentials from *idx on, and sets *idx to the one
 * after it; NULL at the end. */
static const struct place *next_tls_place(const struct server_config *config, uint32_t *idx)
{
	while (*idx < config->push_place_count) {
		const struct place *place = &config->push_places[(*idx)++];

		if (place->tls) {
			return place;
		}
	}
	return NULL;
}

/* Compares in order, because a push uses the credentials of the first destination in the list that
 * matches. */
static bool same_tls_places(const struct server_config *a, const struct server_config *b)
{
	uint32_t a_idx = 0;
	uint32_t b_idx = 0;
	const struct place *one;
	const struct place *other;

	do {
		one = next_tls_place(a, &a_idx);
		other = next_tls_place(b, &b_idx);
	} while (one != NULL && other != NULL && place_same(one, other));
	return one == NULL && other == NULL;
}

static bool same_places(const void *a, const void *b)
{
	return has_places(a, b) && has_places(b, a) && same_tls_places(a, b);
}

static bool same_rates(const void *a, const void *b)
{
	return server_rates_same(&((const struct server_config *)a)->rates,
		&((const struct server_config *)b)->rates);
}

/* --- the table ------------------------------------------------------------------------------- */

static const char *const sandbox_words[] = {
	[SANDBOX_AUTO] = "auto", [SANDBOX_ON] = "on", [SANDBOX_OFF] = "off", NULL
};
static const char *const spin_words[] = {
	[SERVER_SPIN_AUTO] = "auto", [SERVER_SPIN_OFF] = "off", NULL
};

#define AT(member)    FIELD_IN(struct server_config, member)
#define LIMIT(member) FIELD_IN(struct server_config, limits.member)

static const struct field fields[] = {
	{ "export", "NAME=PATH[,KEY=VALUE]...",
		"serve PATH as export NAME (=PATH: as the default export). Write \\= for = in "
		"NAME, and \\, for a comma in PATH or a value. The keys are listed below",
		.letter = 'e', .flags = FIELD_REPEATS, .set = add_export },
	{ "listen", "URI",
		"address to listen on: nbd://HOST[:PORT] or nbd+unix:///?socket=PATH (nbds and "
		"nbds+unix: like --tls=require); gmb://HOST[:PORT][?provider=tcp|verbs|ofi-tcp] "
		"(add insecure-network=yes beyond loopback) or gmb+unix:///?socket=PATH; for "
		"virtual machines, vhost-user-blk+unix:///EXPORT?socket=PATH or "
		"vhost-user-blk+unix:///?folder=FOLDER (a socket for each export); for "
		"gmblock push, push and push+unix in the same form; port 0 picks a free port; can "
		"be repeated (default: nbd://127.0.0.1:10809)",
		.letter = 'l', .flags = FIELD_REPEATS | FIELD_RESTART, .set = add_listen,
		.same = same_listens },
	{ "access", "RULE",
		"access rule: [NAME:] [CONDITION]... rights=rw|ro|none; the first rule that "
		"matches decides; conditions are node=NODE, psk=NAME, cert-cn=NAME, cert-dn=DN, "
		"cert-san=TYPE:VALUE, cert-fingerprint=HASH, key-fingerprint=HASH, uid=N, "
		"address=NETWORK and tls=true|false; can be repeated (default: all clients have "
		"access)",
		.flags = FIELD_REPEATS, .set = add_access },
	{ "config", "FILE",
		"read exports, addresses, access rules and limits from a YAML file; \"gmblock "
		"reload\" re-reads it",
		.letter = 'c', .type = FIELD_TEXT, .flags = FIELD_ONCE, AT(config_path) },
	{ "check", "FILE", "check a configuration file and exit", .type = FIELD_TEXT,
		.flags = FIELD_ONCE, AT(check_path) },
	{ "export-folder", "FOLDER",
		"folder below which \"gmblock export add\" can serve files; can be repeated",
		.flags = FIELD_REPEATS | FIELD_RESTART | FIELD_IN_FILE, .set = add_export_folder,
		.same = same_folders },
	{ "push-to", "PLACE",
		"permit pushes to this destination: a Unix socket, a folder of sockets (ending "
		"in /), or ADDRESS[/BITS][,port=N|any]; nbd:PLACE for servers that support only "
		"NBD; nbds:PLACE,CREDENTIALS for NBD over TLS, with "
		"tls-certificates=FOLDER[,tls-hostname=NAME] or "
		"tls-psk-file=FILE,tls-username=NAME; "
		"root and the server's user need this only for nbd: over TCP and for nbds:; can be "
		"repeated",
		.flags = FIELD_REPEATS | FIELD_RESTART | FIELD_IN_FILE, .set = add_push_place,
		.same = same_places },
	{ "arena", "p2pmem:BDF[,size=SIZE][,spill=ram|wait]",
		"memory of a PCI device for the payload of exports with mode=device; if it is "
		"full, requests use RAM or wait",
		.flags = FIELD_ONCE | FIELD_RESTART | FIELD_IN_FILE, .set = set_arena,
		.same = same_arena },
	{ "control", "PATH",
		"control socket for \"gmblock stats\", \"reload\", \"export\" and other "
		"commands; \"none\" for no socket (default: in /run/gmblock-serve or "
		"$XDG_RUNTIME_DIR)",
		.type = FIELD_TEXT, .flags = FIELD_ONCE | FIELD_RESTART | FIELD_IN_FILE,
		AT(control_path) },
	{ "metrics", "URI",
		"serve metrics for Prometheus at http://HOST:PORT (add insecure-network=yes beyond "
		"loopback) or http+unix:///?socket=PATH",
		.type = FIELD_TEXT, .flags = FIELD_ONCE | FIELD_RESTART | FIELD_IN_FILE,
		AT(metrics), .check = check_metrics, .same = same_metrics },
	{ "run", "COMMAND",
		"run a shell command with $uri (and $unixsocket) set, serve until it ends, and "
		"exit with its status; can be repeated: commands run in order until one fails",
		.flags = FIELD_REPEATS, .set = add_command },
	{ "socket-mode", "MODE", "mode of Unix sockets, such as 0660 (also socket-mode= in a URI)",
		.type = FIELD_TEXT, .flags = FIELD_ONCE | FIELD_IN_FILE, AT(socket_mode),
		.check = check_socket_mode },
	{ "socket-group", "GROUP", "group that owns Unix sockets (or socket-group= in a URI)",
		.type = FIELD_TEXT, .flags = FIELD_ONCE | FIELD_NOT_EMPTY | FIELD_IN_FILE,
		AT(socket_group) },
	{ "read-only", .help = "serve PATH read-only", .type = FIELD_FLAG, AT(path_read_only) },
	{ "user", "USER[:GROUP]", "listen as root, then switch to this user before opening disks",
		.type = FIELD_TEXT,
		.flags = FIELD_ONCE | FIELD_NOT_EMPTY | FIELD_RESTART | FIELD_IN_FILE, AT(user),
		.same = same_users },
	{ "state-folder", "FOLDER",
		"folder for the list of fenced nodes and for leases; each server needs its own "
		"(default: $STATE_DIRECTORY, or /var/lib/gmblock if the configuration file has "
		"nodes)",
		.type = FIELD_TEXT,
		.flags = FIELD_ONCE | FIELD_NOT_EMPTY | FIELD_RESTART | FIELD_IN_FILE,
		AT(state_folder) },
	{ "sandbox",
		.help = "after the start, deny access to files and system calls that the "
			"server does not need (auto: as far as the kernel supports it, and not "
			"with --run)",
		.type = FIELD_WORD, .flags = FIELD_RESTART | FIELD_IN_FILE, .words = sandbox_words,
		AT(sandbox) },
	SERVER_TLS_FIELDS(offsetof(struct server_config, tls)),
	{ "memory", "SIZE", "maximum memory for payload (default: 128M per thread)",
		.type = FIELD_BYTES, .flags = FIELD_LIMIT | FIELD_RESTART, .min = 1,
		.low = "a server cannot work without memory", .check = note_memory_origin,
		.heading = "Limits:", LIMIT(memory_bytes) },
	{ "threads", "N", "number of threads (default: one per available CPU)", .type = FIELD_COUNT,
		.flags = FIELD_LIMIT | FIELD_RESTART, .min = 1, .max = SERVER_THREADS_MAX,
		LIMIT(threads) },
	{ "max-connections", "N", "maximum number of connections (default: 1024 per thread)",
		.type = FIELD_COUNT, .flags = FIELD_LIMIT | FIELD_RESTART, .min = 1,
		.max = CONNECTIONS_MAX, LIMIT(connections_max) },
	{ "max-connections-per-peer", "N",
		"maximum connections per address or Unix user (default: half of max-connections)",
		.type = FIELD_COUNT, .flags = FIELD_LIMIT | FIELD_RESTART, .min = 1,
		.max = CONNECTIONS_MAX, LIMIT(connections_per_peer_max) },
	{ "handshake-timeout", "TIME", "time limit for a client to choose an export (default: 10s)",
		.type = FIELD_TIME, .flags = FIELD_LIMIT | FIELD_RESTART, .min = 1,
		.low = "the handshake timeout cannot be turned off: silent connections would never "
		       "be closed",
		LIMIT(handshake_timeout_ns) },
	{ "idle-timeout", "TIME|off",
		"close connections that send no request for this time (default: off)",
		.flags = FIELD_LIMIT | FIELD_RESTART, .set = set_idle_timeout,
		LIMIT(idle_timeout_ns) },
	{ "max-inflight", "N", "maximum number of requests in flight per connection (default: 128)",
		.type = FIELD_COUNT, .flags = FIELD_LIMIT | FIELD_RESTART, .min = 1, .max = 65536,
		LIMIT(inflight_max) },
	{ "spin",
		.help = "auto (default): poll for requests for up to 50 us before sleeping, if "
			"this makes requests faster; off: do not poll",
		.type = FIELD_WORD, .flags = FIELD_LIMIT | FIELD_RESTART, .words = spin_words,
		LIMIT(spin) },
	{ "path", .flags = FIELD_HIDDEN, .set = add_path }, /* the operand, after the options */
	{ "rates", .flags = FIELD_HIDDEN | FIELD_RESTART, .same = same_rates },
};
_Static_assert(ARRAY_COUNT(fields) <= 64, "each has a bit of server_config.given");

const struct field *server_config_field(uint32_t idx)
{
	return idx < ARRAY_COUNT(fields) ? &fields[idx] : NULL;
}

uint32_t server_config_option_count(void)
{
	uint32_t count = 0;

	while ((fields[count].flags & FIELD_HIDDEN) == 0) {
		count++;
	}
	return count;
}

static uint64_t bit_of(const struct field *field)
{
	return UINT64_C(1) << (field - fields);
}

bool server_config_has(const struct server_config *config, const struct field *field)
{
	return (config->given & bit_of(field)) != 0;
}

bool server_config_same(
	const struct server_config *a, const struct server_config *b, const struct field *field)
{
	/* If the limit was given in neither configuration, both use its default. A default can
	 * depend on another option, but that option is compared separately. */
	bool is_default = (field->flags & FIELD_LIMIT) != 0 && !server_config_has(a, field) &&
			  !server_config_has(b, field);

	return is_default || field_same(field, a, b);
}

void server_config_clear_fields(struct server_config *config)
{
	for (uint32_t i = 0; i < ARRAY_COUNT(fields); i++) {
		field_clear(&fields[i], config);
	}
}

int server_config_set_defaults(
	struct server_config *config, const struct server_limits *limits, struct error *error)
{
	const struct server_config defaults = { .limits = *limits };
	int rc = 0;

	for (uint32_t i = 0; i < ARRAY_COUNT(fields) && rc == 0; i++) {
		bool has = (fields[i].flags & FIELD_LIMIT) == 0 ||
			   server_config_has(config, &fields[i]);

		if (!has && fields[i].type != FIELD_OWN) {
			rc = field_copy(&fields[i], config, &defaults, error);
		}
	}
	return rc;
}

int server_config_option(
	struct server_config *config, const char *key, const char *text, struct error *error)
{
	const struct field *field = field_find(server_config_field, key);
	char origin[ORIGIN_BYTES];
	int rc = 0;

	GMB_ASSERT(field != NULL);
	snprintf(origin, sizeof(origin), "--%s", key);
	config->origin = origin;
	if ((field->flags & FIELD_ONCE) != 0 && server_config_has(config, field)) {
		rc = error_set(error, -EINVAL, "the option can be given only once");
	}
	rc = rc ?: field_set(field, config, text, error);
	config->origin = NULL;
	if (rc < 0) {
		if ((field->flags & FIELD_HIDDEN) == 0) {
			error_prefix(error, "%s", origin);
		}
		return rc;
	}
	config->given |= bit_of(field);
	return server_settings_add(&config->options, key, text, error);
}

int server_config_file_option(struct server_config *config, const struct field *field,
	const char *text, const char *origin, struct error *error)
{
	struct server_config unused;
	bool repeats = (field->flags & FIELD_REPEATS) != 0;
	bool has = server_config_has(config, field) && !repeats;
	struct server_config *into = has ? &unused : config;
	int rc;

	/* A value that the command line overrides is checked too: it is stored in a configuration
	 * that is not used. */
	server_config_init(&unused);
	into->origin = origin;
	rc = field_set(field, into, text, error);
	into->origin = NULL;
	server_config_fini(&unused);
	config->given |= rc == 0 && !has ? bit_of(field) : 0;
	return rc;
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
	rc = rc ?: server_config_finish(again, error);
	if (rc < 0) {
		server_config_fini(again);
	}
	return rc;
}
