// SPDX-License-Identifier: Apache-2.0
#include "server/config.h"

#include <stdio.h>
#include <string.h>

#include "server/config_yaml.h"

/* The file as libcyaml loads it: every value is text, checked by the same setters as the command
 * line's. NULL = not given. */
struct file_export {
	char *name;
	char *path;
	char *mode;
	char *write_mode;
	char *readonly;
	char *description;
	char *max_connections;
	char *overlap;
	char *stripe;
	char *page_cache_send;
	char *progress;
	char *pace;
	char **fault;
	unsigned int fault_count;
	char **delay;
	unsigned int delay_count;
};

struct file_limits {
	char *memory;
	char *threads;
	char *connections;
	char *handshakes;
	char *handshake_timeout;
	char *inflight;
	char *inflight_total;
	char *spin;
};

struct file_top {
	char **listen;
	unsigned int listen_count;
	struct file_limits *limits;
	struct file_export *exports;
	unsigned int exports_count;
};

#define TEXT_FIELD(key, owner, member)                                                             \
	CYAML_FIELD_STRING_PTR(                                                                    \
		key, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, owner, member, 0, CYAML_UNLIMITED)
#define NEEDED_TEXT_FIELD(key, owner, member)                                                      \
	CYAML_FIELD_STRING_PTR(key, CYAML_FLAG_POINTER, owner, member, 0, CYAML_UNLIMITED)
#define LIST_FIELD(key, owner, member, entry, max)                                                 \
	CYAML_FIELD_SEQUENCE(                                                                      \
		key, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, owner, member, entry, 0, max)

static const cyaml_schema_value_t text_schema = { CYAML_VALUE_STRING(
	CYAML_FLAG_POINTER, char, 0, CYAML_UNLIMITED) };

static const cyaml_schema_field_t export_fields[] = {
	NEEDED_TEXT_FIELD("name", struct file_export, name),
	NEEDED_TEXT_FIELD("path", struct file_export, path),
	TEXT_FIELD("mode", struct file_export, mode),
	TEXT_FIELD("write-mode", struct file_export, write_mode),
	TEXT_FIELD("readonly", struct file_export, readonly),
	TEXT_FIELD("description", struct file_export, description),
	TEXT_FIELD("max-connections", struct file_export, max_connections),
	TEXT_FIELD("overlap", struct file_export, overlap),
	TEXT_FIELD("stripe", struct file_export, stripe),
	TEXT_FIELD("page-cache-send", struct file_export, page_cache_send),
	TEXT_FIELD("progress", struct file_export, progress),
	TEXT_FIELD("pace", struct file_export, pace),
	LIST_FIELD("fault", struct file_export, fault, &text_schema, CYAML_UNLIMITED),
	LIST_FIELD("delay", struct file_export, delay, &text_schema, CYAML_UNLIMITED),
	CYAML_FIELD_END,
};
static const cyaml_schema_value_t export_schema = { CYAML_VALUE_MAPPING(
	CYAML_FLAG_DEFAULT, struct file_export, export_fields) };

static const cyaml_schema_field_t limit_fields[] = {
	TEXT_FIELD("memory", struct file_limits, memory),
	TEXT_FIELD("threads", struct file_limits, threads),
	TEXT_FIELD("connections", struct file_limits, connections),
	TEXT_FIELD("handshakes", struct file_limits, handshakes),
	TEXT_FIELD("handshake-timeout", struct file_limits, handshake_timeout),
	TEXT_FIELD("inflight", struct file_limits, inflight),
	TEXT_FIELD("inflight-total", struct file_limits, inflight_total),
	TEXT_FIELD("spin", struct file_limits, spin),
	CYAML_FIELD_END,
};

static const cyaml_schema_field_t top_fields[] = {
	LIST_FIELD("listen", struct file_top, listen, &text_schema, CYAML_UNLIMITED),
	CYAML_FIELD_MAPPING_PTR("limits", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct file_top,
		limits, limit_fields),
	LIST_FIELD("exports", struct file_top, exports, &export_schema, CYAML_UNLIMITED),
	CYAML_FIELD_END,
};
static const cyaml_schema_value_t top_schema = { CYAML_VALUE_MAPPING(
	CYAML_FLAG_POINTER, struct file_top, top_fields) };

/* A file being taken over into the configuration. */
struct loader {
	struct server_config *config;
	struct config_yaml *yaml;
	struct error *error;
};

/* Passes rc on; when it is an error, names the place it comes from. */
static int judged(struct loader *loader, int rc, const struct config_place *place)
{
	if (rc < 0) {
		config_yaml_blame(loader->yaml, place, loader->error);
	}
	return rc;
}

static int load_listens(struct loader *loader, const struct file_top *top)
{
	char origin[CONFIG_ORIGIN_BYTES];

	for (unsigned int i = 0; i < top->listen_count; i++) {
		struct config_place place = { "listen", (int)i, NULL, -1 };
		int rc = server_config_add_listen(loader->config, top->listen[i],
			config_yaml_origin(loader->yaml, &place, origin), loader->error);

		if (judged(loader, rc, &place) < 0) {
			return rc;
		}
	}
	return 0;
}

static int load_limits(struct loader *loader, const struct file_limits *file)
{
	const struct {
		const char *key;
		const char *value;
	} values[] = {
		{ "memory", file->memory },
		{ "threads", file->threads },
		{ "connections", file->connections },
		{ "handshakes", file->handshakes },
		{ "handshake-timeout", file->handshake_timeout },
		{ "inflight", file->inflight },
		{ "inflight-total", file->inflight_total },
		{ "spin", file->spin },
	};
	const struct config_place memory = { "limits", -1, "memory", -1 };
	char where[CONFIG_ORIGIN_BYTES];
	char origin[CONFIG_ORIGIN_BYTES + 32];
	struct server_limits limits = { 0 };

	for (size_t i = 0; i < ARRAY_COUNT(values); i++) {
		struct config_place place = { "limits", -1, values[i].key, -1 };
		int rc = 0;

		if (values[i].value != NULL) {
			rc = server_limits_set(
				&limits, values[i].key, values[i].value, loader->error);
		}
		if (judged(loader, rc, &place) < 0) {
			return rc;
		}
	}
	if (loader->config->limits.memory_bytes == 0 && limits.memory_bytes != 0) {
		int rc;

		snprintf(origin, sizeof(origin), "%s: limits, memory",
			config_yaml_origin(loader->yaml, &memory, where));
		rc = server_config_set_memory_origin(loader->config, origin, loader->error);
		if (rc < 0) {
			return rc;
		}
	}
	server_limits_merge(&loader->config->limits, &limits);
	return 0;
}

static int load_rules(struct loader *loader, struct server_export *entry, int export_idx,
	const char *key, char *const *values, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		struct config_place place = { "exports", export_idx, key, (int)i };
		int rc = server_export_set(entry, key, values[i], loader->error);

		if (judged(loader, rc, &place) < 0) {
			return rc;
		}
	}
	return 0;
}

static int load_export_keys(struct loader *loader, struct server_export *entry, int export_idx,
	const struct file_export *file)
{
	const struct {
		const char *key;
		const char *value;
	} values[] = {
		{ "mode", file->mode },
		{ "write-mode", file->write_mode },
		{ "readonly", file->readonly },
		{ "description", file->description },
		{ "max-connections", file->max_connections },
		{ "page-cache-send", file->page_cache_send },
		{ "overlap", file->overlap },
		{ "stripe", file->stripe },
		{ "progress", file->progress },
		{ "pace", file->pace },
	};
	struct config_place place = { "exports", export_idx, "name", -1 };
	int rc = server_export_set_name(entry, file->name, loader->error);

	if (judged(loader, rc, &place) < 0) {
		return rc;
	}
	place.inner_key = "path";
	rc = server_export_set_path(entry, file->path, loader->error);
	if (judged(loader, rc, &place) < 0) {
		return rc;
	}
	for (size_t i = 0; i < ARRAY_COUNT(values); i++) {
		if (values[i].value == NULL) {
			continue;
		}
		place.inner_key = values[i].key;
		rc = server_export_set(entry, values[i].key, values[i].value, loader->error);
		if (judged(loader, rc, &place) < 0) {
			return rc;
		}
	}
	rc = load_rules(loader, entry, export_idx, "fault", file->fault, file->fault_count);
	if (rc == 0) {
		rc = load_rules(loader, entry, export_idx, "delay", file->delay, file->delay_count);
	}
	return rc;
}

static int load_exports(struct loader *loader, const struct file_top *top)
{
	char origin[CONFIG_ORIGIN_BYTES];

	for (unsigned int i = 0; i < top->exports_count; i++) {
		struct config_place place = { "exports", (int)i, NULL, -1 };
		struct server_export entry;
		int rc;

		server_export_init(&entry);
		rc = load_export_keys(loader, &entry, (int)i, &top->exports[i]);
		if (rc < 0) {
			server_export_fini(&entry);
			return rc;
		}
		rc = server_config_add_export(loader->config, &entry,
			config_yaml_origin(loader->yaml, &place, origin), loader->error);
		if (judged(loader, rc, &place) < 0) {
			return rc;
		}
	}
	return 0;
}

int server_config_load(struct server_config *config, const char *path, struct error *error)
{
	struct loader loader = { .config = config, .error = error };
	void *data;
	const struct file_top *top;
	int rc = config_yaml_open(path, &top_schema, &loader.yaml, &data, error);

	if (rc < 0) {
		return rc;
	}
	top = data;
	if (top != NULL) {
		rc = load_listens(&loader, top);
		if (rc == 0 && top->limits != NULL) {
			rc = load_limits(&loader, top->limits);
		}
		if (rc == 0) {
			rc = load_exports(&loader, top);
		}
	}
	config_yaml_close(loader.yaml);
	return rc;
}
