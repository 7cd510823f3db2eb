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

/* limit for the payload memory of each thread: half of the largest possible arena */
#define MEMORY_BYTES_MAX (UINT64_C(8) << 40)

void server_config_init(struct server_config *config)
{
	*config = (struct server_config){ 0 };
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
		server_listen_fini(&config->listens[i]);
	}
	for (uint32_t i = 0; i < config->command_count; i++) {
		free(config->commands[i]);
	}
	server_access_fini(&config->access);
	server_access_fini(&config->nodes);
	server_rates_fini(&config->rates);
	server_access_options_fini(config);
	for (uint32_t i = 0; i < config->export_folder_count; i++) {
		free(config->export_folders[i]);
	}
	free(config->export_folders);
	for (uint32_t i = 0; i < config->push_place_count; i++) {
		place_fini(&config->push_places[i]);
	}
	free(config->push_places);
	server_settings_fini(&config->options);
	server_config_clear_fields(config);
	free(config->memory_origin);
	free(config->file_path);
	free(config->exports);
	free(config->listens);
	free(config->commands);
	server_config_init(config);
}

/* Grows the array before an element is added. Capacities are powers of two, so the count shows when
 * the array is full. */
int array_grow(void *array_inout, uint32_t count, size_t element_bytes)
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

	free(entry->origin);
	entry->origin = strdup(origin);
	if (config->export_count == SERVER_EXPORTS_MAX) {
		rc = error_set(error, -EINVAL, "only %d exports are possible", SERVER_EXPORTS_MAX);
	} else if (entry->origin == NULL || array_grow(&config->exports, config->export_count,
						    sizeof(*config->exports)) < 0) {
		rc = error_oom_for(error, "an export");
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
	if (uri->export_name[0] != '\0' && !export_uri_has_one_export(uri)) {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': a listening URI has no export name, because each "
			"address serves all exports; name exports with --export",
			shown);
	}
	if (uri->other_count > 0) {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': a listening URI has one host; give each address "
			"its own --listen",
			shown);
	}
	if (uri->is_folder && uri->export_name[0] != '\0') {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': a folder has a socket for each export, so the URI "
			"has no export name; remove the name, or write socket=PATH",
			shown);
	}
	if (uri->is_folder && uri->socket_group != NULL) {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': the parameter 'socket-group' is not for folders; "
			"give the folder this group and the setgid bit (chgrp, chmod g+s)",
			shown);
	}
	if (uri->queues != NULL) {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': the parameter 'queues' is only for clients, which "
			"choose their number of queues; remove it",
			shown);
	}
	if (uri->user != NULL || uri->tls_type != NULL || uri->tls_hostname != NULL ||
		uri->tls_verify_peer != NULL || export_uri_has_files(uri)) {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': a user name and the tls- parameters are only for "
			"URIs of clients; use --tls and related options, or the keys of the "
			"address in the --config file",
			shown);
	}
	if (uri->unknown_parameter != NULL) {
		return error_set(error, -EINVAL,
			"cannot listen on '%s': unknown parameter '%s'; use socket=PATH, "
			"with vhost-user-blk also folder=PATH, and socket-mode=MODE or "
			"socket-group=GROUP, and with gmb:// and push:// also "
			"provider=tcp|verbs|ofi-tcp and insecure-network=yes",
			shown, uri->unknown_parameter);
	}
	return 0;
}

int server_config_check_mode(const char *text, struct error *error)
{
	char *end;
	unsigned long mode = strtoul(text, &end, 8);

	return *end == '\0' && (mode & ~0777UL) == 0 && (mode & 0600) == 0600
		       ? 0
		       : error_set(error, -EINVAL,
				 "'%s' is not a socket mode; use an octal number from 0600 to "
				 "0777, such as 0660",
				 quote(text));
}

int server_config_add_listen(struct server_config *config, struct server_listen *entry,
	const char *origin, struct error *error)
{
	const char *text = entry->text;
	int rc = export_uri_parse(text, &entry->uri, error);

	if (rc == 0) {
		entry->origin = strdup(origin);
		rc = check_listen_uri(&entry->uri, quote(text), error);
	}
	if (rc == 0 && entry->uri.socket_mode != NULL) {
		rc = server_config_check_mode(entry->uri.socket_mode, error);
	}
	if (rc == 0 && config->listen_count == SERVER_LISTENS_MAX) {
		rc = error_set(error, -EINVAL, "only %d listening addresses are possible",
			SERVER_LISTENS_MAX);
	}
	if (rc == 0 && (entry->origin == NULL || array_grow(&config->listens, config->listen_count,
							 sizeof(*config->listens)) < 0)) {
		rc = error_oom_for(error, "a listening address");
	}
	if (rc < 0) {
		server_listen_fini(entry);
		return rc;
	}
	config->listens[config->listen_count++] = *entry;
	*entry = (struct server_listen){ 0 };
	return 0;
}

/* --- the configuration as a whole ------------------------------------------------------------ */

static uint32_t cpus_allowed(void)
{
	cpu_set_t set;

	/* sched_getaffinity() fails if the machine has more CPUs than the set can hold. Such a
	 * machine has more than SERVER_THREADS_MAX CPUs. */
	if (sched_getaffinity(0, sizeof(set), &set) < 0) {
		return SERVER_THREADS_MAX;
	}
	return (uint32_t)MAX(CPU_COUNT(&set), 1);
}

/* Formats a size for an error message, such as "1K" or "1 byte". */
static const char *memory_text(char out[UNITS_TEXT_BYTES], uint64_t bytes)
{
	units_format_bytes(out, bytes);
	if (bytes < 1000) {
		snprintf(out, UNITS_TEXT_BYTES, "%u byte%s", (unsigned int)bytes,
			bytes == 1 ? "" : "s");
	}
	return out;
}

bool server_config_has_guests(const struct server_config *config)
{
	bool has_guests = false;

	for (uint32_t i = 0; i < config->listen_count; i++) {
		has_guests |= strcmp(config->listens[i].uri.protocol, EXPORT_URI_VHOST) == 0;
	}
	return has_guests;
}

/* Sets the number of threads. Guests' disks get as many threads for front ends of other users as
 * for all other connections, so that they are not slower because they are isolated. Without access
 * rules for them, other users have no rights. */
static void finish_threads(struct server_config *config)
{
	struct server_limits *limits = &config->limits;

	if (limits->threads == 0) {
		limits->threads = MIN(cpus_allowed(), (uint32_t)SERVER_THREADS_MAX);
	}
	if (server_config_has_guests(config) && server_access_admits_others(config)) {
		limits->threads = MIN(limits->threads, SERVER_THREADS_MAX - 1U);
		limits->isolated_threads =
			MIN(limits->threads, SERVER_THREADS_MAX - limits->threads);
	}
}

static int finish_limits(struct server_config *config, struct error *error)
{
	struct server_limits *limits = &config->limits;
	struct server_limits defaults = { 0 };
	struct engine_limits reactor;
	char memory[UNITS_TEXT_BYTES];
	char least[UNITS_TEXT_BYTES];
	uint64_t sessions_max;
	uint32_t threads;
	int rc;

	finish_threads(config);
	threads = limits->threads + limits->isolated_threads;
	defaults.threads = limits->threads;
	engine_limits_default(&reactor);
	defaults.memory_bytes = reactor.memory_bytes_max * threads;
	defaults.handshake_timeout_ns = reactor.handshake_timeout_ns;
	defaults.connections_max = reactor.sessions_max * limits->threads;
	defaults.inflight_max = reactor.inflight_per_session_max;
	sessions_max = limits->memory_bytes != 0 ? limits->memory_bytes : defaults.memory_bytes;
	sessions_max = (uint64_t)engine_sessions_max(sessions_max / threads) * limits->threads;
	defaults.connections_max = (uint32_t)MIN(sessions_max, (uint64_t)defaults.connections_max);
	rc = server_config_set_defaults(config, &defaults, error);
	if (rc < 0) {
		return rc;
	}
	if (limits->connections_per_peer_max == 0) {
		limits->connections_per_peer_max =
			MAX(limits->connections_max / SERVER_PEER_DIVISOR, 1U);
	}
	if (limits->memory_bytes / threads > MEMORY_BYTES_MAX) {
		return error_set(error, -EINVAL,
			"%s: %s of memory is too much for %u thread%s: a thread can use at most 8T",
			config->memory_origin, units_format_bytes(memory, limits->memory_bytes),
			threads, threads == 1 ? "" : "s");
	}
	if (limits->memory_bytes / threads < ARENA_SLAB_BYTES) {
		/* memory_bytes was given, because the default would be large enough */
		GMB_ASSERT(config->memory_origin != NULL);
		return error_set(error, -EINVAL,
			"%s: %s of memory is too little for %u thread%s%s: each thread needs at "
			"least %s; raise the memory limit or lower the number of threads",
			config->memory_origin, memory_text(memory, limits->memory_bytes), threads,
			threads == 1 ? "" : "s",
			limits->isolated_threads == 0
				? ""
				: ", some of them for virtual machines of other users",
			units_format_bytes(least, ARENA_SLAB_BYTES));
	}
	if (limits->connections_max > sessions_max) {
		return error_set(error, -EINVAL,
			"%u connections are too many for %s of memory: each connection needs %s; "
			"raise the memory limit or lower the connection limit",
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

	/* Entries with equal names keep their order, so the error names the second one. */
	return order != 0 ? order : (*a > *b) - (*a < *b);
}

static int check_export_names(const struct server_config *config, struct error *error)
{
	const struct server_export **sorted = calloc(config->export_count, sizeof(*sorted));
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
				"%s: the export name \"%s\" is already used by %s; choose another "
				"name",
				sorted[i]->origin, quote(name), sorted[i - 1]->origin);
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
	/* Two listeners with port 0 get different ports, so they are not the same address. */
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

/* Fills in mode and group of Unix sockets whose URIs do not set them. */
static int finish_sockets(struct server_config *config, struct error *error)
{
	for (uint32_t i = 0; i < config->listen_count; i++) {
		struct export_uri *uri = &config->listens[i].uri;
		/* the folder determines the group of its sockets */
		const struct {
			char **field;
			const char *common;
		} texts[] = {
			{ &uri->socket_mode, config->socket_mode },
			{ &uri->socket_group, config->socket_group },
		};

		for (size_t k = 0; uri->is_unix && k < ARRAY_COUNT(texts); k++) {
			if (*texts[k].field != NULL || texts[k].common == NULL ||
				(uri->is_folder && texts[k].field == &uri->socket_group)) {
				continue;
			}
			*texts[k].field = strdup(texts[k].common);
			if (*texts[k].field == NULL) {
				return error_oom_for(error, "an address");
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
			"nothing to serve; give a PATH or --export NAME=PATH, or list exports in a "
			"--config FILE");
	}
	if (config->sandbox == SANDBOX_ON && config->command_count > 0) {
		return error_set(error, -EINVAL,
			"--sandbox=on would also confine the commands of --run; leave out one of "
			"the two options");
	}
	rc = check_export_names(config, error);
	rc = rc ?: check_arena(config, error);
	rc = rc ?: check_listens(config, error);
	rc = rc ?: finish_sockets(config, error);
	rc = rc ?: server_tls_finish(config, error);
	rc = rc ?: server_access_finish(config, error);
	return rc ?: finish_limits(config, error);
}
