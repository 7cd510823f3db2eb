// SPDX-License-Identifier: Apache-2.0
#include "server/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/config/yaml.h"

/* The file as libcyaml loads it: every value is text, checked by the same setters as the command
 * line's. NULL = not given. */
struct file_value {
	char *text;
	char **list; /* of an option that can be repeated */
	unsigned int list_count;
};

enum { FILE_OPTIONS_MAX = 64 };

struct file_export {
	char *name;
	char *path;
	struct file_value values[FILE_OPTIONS_MAX]; /* as server_export_option() */
};

enum { FILE_LIMITS_MAX = 16, FILE_KEYS_MAX = 16, FILE_LISTS = 5 };

struct file_limits {
	char *values[FILE_LIMITS_MAX]; /* as server_limits_key() */
};

struct file_top {
	struct file_value keys[FILE_KEYS_MAX]; /* as server_config_file_key() */
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

/* What a file can have, put together when one is read: which options there are depends on the kinds
 * of stores. Must not be moved. */
struct schema {
	cyaml_schema_field_t export_fields[3 + FILE_OPTIONS_MAX + 1];
	cyaml_schema_value_t export_entry;
	cyaml_schema_field_t limit_fields[FILE_LIMITS_MAX + 1];
	cyaml_schema_field_t top_fields[FILE_LISTS + FILE_KEYS_MAX + 1];
	cyaml_schema_value_t top;
};

static const cyaml_schema_field_t end_field = CYAML_FIELD_END;

/* The idx-th of the values of a struct, which has them at that offset. */
static cyaml_schema_field_t value_field(
	const char *key, bool is_list, size_t values_offset, uint32_t idx)
{
	static const cyaml_schema_field_t text = TEXT_FIELD("", struct file_value, text);
	static const cyaml_schema_field_t list =
		LIST_FIELD("", struct file_value, list, &text_schema, CYAML_UNLIMITED);
	cyaml_schema_field_t field = is_list ? list : text;
	size_t offset = values_offset + idx * sizeof(struct file_value);

	field.key = key;
	field.data_offset += (uint32_t)offset;
	field.count_offset += (uint32_t)offset;
	return field;
}

static void export_schema_init(struct schema *schema)
{
	static const cyaml_schema_field_t access =
		CYAML_FIELD_IGNORE("access", CYAML_FLAG_OPTIONAL);
	const cyaml_schema_field_t name = NEEDED_TEXT_FIELD("name", struct file_export, name);
	const cyaml_schema_field_t path = NEEDED_TEXT_FIELD("path", struct file_export, path);
	const cyaml_schema_value_t entry = { CYAML_VALUE_MAPPING(
		CYAML_FLAG_DEFAULT, struct file_export, schema->export_fields) };
	cyaml_schema_field_t *field = schema->export_fields;
	const struct store_option *option;

	*field++ = name;
	*field++ = path;
	for (uint32_t i = 0; (option = server_export_option(i)) != NULL; i++) {
		GMB_ASSERT(i < FILE_OPTIONS_MAX);
		*field++ = value_field(option->key, (option->flags & STORE_OPTION_REPEATS) != 0,
			offsetof(struct file_export, values), i);
	}
	*field++ = access;
	*field = end_field;
	schema->export_entry = entry;
}

static void limit_schema_init(struct schema *schema)
{
	static const cyaml_schema_field_t text = TEXT_FIELD("", struct file_limits, values[0]);
	const char *key;
	uint32_t count = 0;

	for (; (key = server_limits_key(count)) != NULL; count++) {
		GMB_ASSERT(count < FILE_LIMITS_MAX);
		schema->limit_fields[count] = text;
		schema->limit_fields[count].key = key;
		schema->limit_fields[count].data_offset += count * (uint32_t)sizeof(char *);
	}
	schema->limit_fields[count] = end_field;
}

static void schema_init(struct schema *schema)
{
	static const cyaml_schema_field_t access =
		CYAML_FIELD_IGNORE("access", CYAML_FLAG_OPTIONAL);
	static const cyaml_schema_field_t rates = CYAML_FIELD_IGNORE("rates", CYAML_FLAG_OPTIONAL);
	static const cyaml_schema_field_t listen =
		CYAML_FIELD_IGNORE("listen", CYAML_FLAG_OPTIONAL);
	const cyaml_schema_field_t limits =
		CYAML_FIELD_MAPPING_PTR("limits", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
			struct file_top, limits, schema->limit_fields);
	const cyaml_schema_field_t exports = LIST_FIELD(
		"exports", struct file_top, exports, &schema->export_entry, CYAML_UNLIMITED);
	const cyaml_schema_value_t top = { CYAML_VALUE_MAPPING(
		CYAML_FLAG_POINTER, struct file_top, schema->top_fields) };
	const cyaml_schema_field_t lists[] = { listen, limits, exports, access, rates };
	cyaml_schema_field_t *field = schema->top_fields;
	const char *key;
	bool repeats;

	_Static_assert(ARRAY_COUNT(lists) == FILE_LISTS, "they have room");
	export_schema_init(schema);
	limit_schema_init(schema);
	memcpy(field, lists, sizeof(lists));
	field += ARRAY_COUNT(lists);
	for (uint32_t i = 0; (key = server_config_file_key(i, &repeats)) != NULL; i++) {
		GMB_ASSERT(i < FILE_KEYS_MAX);
		*field++ = value_field(key, repeats, offsetof(struct file_top, keys), i);
	}
	*field = end_field;
	schema->top = top;
}

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

static int load_listen(void *context, int entry, const char *const *values)
{
	struct loader *loader = context;
	struct config_place place = { "listen", entry, NULL, -1, NULL };
	char origin[CONFIG_ORIGIN_BYTES];
	struct server_tls tls = { 0 };
	const char *key;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && (key = server_tls_key(i)) != NULL; i++) {
		place.inner_key = key;
		if (values[1 + i] != NULL) {
			rc = server_tls_set(&tls, key, values[1 + i], loader->error);
		}
	}
	if (rc < 0) {
		server_tls_fini(&tls);
		return judged(loader, rc, &place);
	}
	place.inner_key = NULL;
	rc = server_config_add_listen(loader->config, values[0], &tls,
		config_yaml_origin(loader->yaml, &place, origin), loader->error);
	return judged(loader, rc, &place);
}

/* Addresses may be written with keys of TLS, or alone. */
static int load_listens(struct loader *loader)
{
	const struct config_place list = { "listen", -1, NULL, -1, NULL };
	cyaml_schema_field_t keys[CONFIG_KEYS_MAX + 1] = { { .key = "uri" } };
	int rc;

	for (uint32_t i = 0; server_tls_key(i) != NULL; i++) {
		GMB_ASSERT(1 + i < CONFIG_KEYS_MAX);
		keys[1 + i].key = server_tls_key(i);
	}
	rc = config_yaml_groups(loader->yaml, &list, keys, load_listen, loader, loader->error);
	return MIN(rc, 0);
}

static int load_limits(struct loader *loader, const struct file_limits *file)
{
	const struct config_place memory = { "limits", -1, "memory", -1, NULL };
	char where[CONFIG_ORIGIN_BYTES];
	char origin[CONFIG_ORIGIN_BYTES + 32];
	struct server_limits limits = { 0 };
	const char *key;

	for (uint32_t i = 0; (key = server_limits_key(i)) != NULL; i++) {
		struct config_place place = { "limits", -1, key, -1, NULL };
		int rc = 0;

		if (file->values[i] != NULL) {
			rc = server_limits_set(&limits, key, file->values[i], loader->error);
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

/* What the options of the command line set, too. */
static int load_keys(struct loader *loader, const struct file_top *top)
{
	const char *key;
	bool repeats;

	for (uint32_t i = 0; (key = server_config_file_key(i, &repeats)) != NULL; i++) {
		const struct file_value *value = &top->keys[i];
		unsigned int count = repeats ? value->list_count : value->text != NULL;

		for (unsigned int k = 0; k < count; k++) {
			struct config_place place = { key, repeats ? (int)k : -1, NULL, -1, NULL };
			int rc = server_config_file_option(loader->config, key,
				repeats ? value->list[k] : value->text, loader->error);

			if (judged(loader, rc, &place) < 0) {
				return rc;
			}
		}
	}
	return 0;
}

static int load_value(struct loader *loader, struct server_export *entry,
	const struct config_place *place, const char *value)
{
	int rc = server_export_set(entry, place->inner_key, value, loader->error);

	return judged(loader, rc, place);
}

/* A list of rules of access. */
struct access_loader {
	struct loader *loader;
	const struct config_place *list;
	struct server_access *access;
};

static int load_rule(void *context, int entry, const char *const *values)
{
	struct access_loader *access = context;
	struct loader *loader = access->loader;
	struct config_place place = *access->list;
	bool is_inner = place.inner_key != NULL;
	char origin[CONFIG_ORIGIN_BYTES];
	uint32_t failed;
	int rc;

	*(is_inner ? &place.inner_entry : &place.entry) = entry;
	rc = server_access_add(access->access, values,
		config_yaml_origin(loader->yaml, &place, origin), &failed, loader->error);
	*(is_inner ? &place.leaf_key : &place.inner_key) = server_access_key(failed);
	return judged(loader, rc, &place);
}

/* Nobody would read an empty list as what it means: that nobody is let in. */
static int load_access(
	struct loader *loader, const struct config_place *list, struct server_access *access)
{
	struct access_loader context = { loader, list, access };
	cyaml_schema_field_t keys[SERVER_ACCESS_KEYS + 1] = { { 0 } };
	int rc;

	_Static_assert((int)SERVER_ACCESS_KEYS < (int)CONFIG_KEYS_MAX, "a rule is such a group");
	for (uint32_t i = 0; i < SERVER_ACCESS_KEYS; i++) {
		keys[i].key = server_access_key(i);
	}
	rc = config_yaml_groups(loader->yaml, list, keys, load_rule, &context, loader->error);
	if (rc == 1 && access->rule_count == 0) {
		rc = error_set(loader->error, -EINVAL,
			"the list is empty; leave it out, or let nobody in by [{rights: none}]");
		return judged(loader, rc, list);
	}
	return MIN(rc, 0);
}

static int load_rate(void *context, int entry, const char *const *values)
{
	struct loader *loader = context;
	struct config_place place = { "rates", entry, NULL, -1, NULL };
	char origin[CONFIG_ORIGIN_BYTES];
	uint32_t failed;
	int rc = server_rate_add(&loader->config->rates, values,
		config_yaml_origin(loader->yaml, &place, origin), &failed, loader->error);

	place.inner_key = server_rate_key(failed);
	return judged(loader, rc, &place);
}

static int load_rates(struct loader *loader)
{
	const struct config_place list = { "rates", -1, NULL, -1, NULL };
	cyaml_schema_field_t keys[SERVER_RATE_KEYS + 1] = { { 0 } };
	int rc;

	_Static_assert((int)SERVER_RATE_KEYS < (int)CONFIG_KEYS_MAX, "a rule is such a group");
	for (uint32_t i = 0; i < SERVER_RATE_KEYS; i++) {
		keys[i].key = server_rate_key(i);
	}
	rc = config_yaml_groups(loader->yaml, &list, keys, load_rate, loader, loader->error);
	return MIN(rc, 0);
}

static int load_export_keys(struct loader *loader, struct server_export *entry, int export_idx,
	const struct file_export *file)
{
	struct config_place place = { "exports", export_idx, "name", -1 };
	const struct store_option *option;
	int rc = server_export_set_name(entry, file->name, loader->error);

	if (judged(loader, rc, &place) < 0) {
		return rc;
	}
	place.inner_key = "path";
	rc = server_export_set_path(entry, file->path, loader->error);
	if (judged(loader, rc, &place) < 0) {
		return rc;
	}
	place.inner_key = "access";
	rc = load_access(loader, &place, &entry->access);
	for (uint32_t i = 0; rc == 0 && (option = server_export_option(i)) != NULL; i++) {
		const struct file_value *value = &file->values[i];

		place.inner_key = option->key;
		place.inner_entry = -1;
		if (value->text != NULL) {
			rc = load_value(loader, entry, &place, value->text);
		}
		for (unsigned int k = 0; k < value->list_count && rc == 0; k++) {
			place.inner_entry = (int)k;
			rc = load_value(loader, entry, &place, value->list[k]);
		}
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
		entry.syntax = SERVER_SYNTAX_FILE;
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

static int note_file(struct server_config *config, const char *path, struct error *error)
{
	config->file_path = strdup(path);
	config->file_export_first = config->export_count;
	return config->file_path != NULL ? 0 : error_set(error, -ENOMEM, "no memory for a path");
}

int server_config_load(struct server_config *config, const char *path, struct error *error)
{
	const struct config_place access = { "access", -1, NULL, -1, NULL };
	struct loader loader = { .config = config, .error = error };
	void *data;
	const struct file_top *top;
	struct schema schema;
	int rc;

	schema_init(&schema);
	rc = note_file(config, path, error);
	if (rc < 0) {
		return rc;
	}
	rc = config_yaml_open(path, &schema.top, &loader.yaml, &data, error);
	if (rc < 0) {
		return rc;
	}
	top = data;
	if (top != NULL) {
		rc = load_listens(&loader);
		if (rc == 0 && top->limits != NULL) {
			rc = load_limits(&loader, top->limits);
		}
		if (rc == 0) {
			rc = load_access(&loader, &access, &config->access);
		}
		if (rc == 0) {
			rc = load_rates(&loader);
		}
		if (rc == 0) {
			rc = load_keys(&loader, top);
		}
		if (rc == 0) {
			rc = load_exports(&loader, top);
		}
	}
	config_yaml_close(loader.yaml);
	return rc;
}
