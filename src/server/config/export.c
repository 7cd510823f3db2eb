// SPDX-License-Identifier: Apache-2.0
#include "server/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

/* --- settings -------------------------------------------------------------------------------- */

int server_settings_add(
	struct server_settings *settings, const char *key, const char *value, struct error *error)
{
	struct server_setting setting = { strdup(key), value != NULL ? strdup(value) : NULL };

	if (setting.key == NULL || (value != NULL && setting.value == NULL) ||
		array_grow(&settings->list, settings->count, sizeof(setting)) < 0) {
		free(setting.key);
		free(setting.value);
		return error_oom_for(error, "a setting");
	}
	settings->list[settings->count++] = setting;
	return 0;
}

void server_settings_fini(struct server_settings *settings)
{
	for (uint32_t i = 0; i < settings->count; i++) {
		free(settings->list[i].key);
		free(settings->list[i].value);
	}
	free(settings->list);
	*settings = (struct server_settings){ 0 };
}

const char *server_settings_text(
	const struct server_settings *settings, const char *key, char *out, size_t out_bytes)
{
	size_t used = 0;

	out[0] = '\0';
	for (uint32_t i = 0; i < settings->count && used < out_bytes; i++) {
		const struct server_setting *setting = &settings->list[i];

		if (strcmp(setting->key, key) == 0) {
			used += (size_t)snprintf(out + used, out_bytes - used, "%s%s",
				used > 0 ? "," : "",
				setting->value != NULL ? setting->value : "yes");
		}
	}
	return out;
}

/* Returns the key's next value from settings[*at] on, and sets *at to the setting after it; "yes"
 * if the key was given without a value; NULL at the end. */
static const char *next_value(const struct server_settings *settings, const char *key, uint32_t *at)
{
	while (*at < settings->count) {
		const struct server_setting *setting = &settings->list[(*at)++];

		if (strcmp(setting->key, key) == 0) {
			return setting->value != NULL ? setting->value : "yes";
		}
	}
	return NULL;
}

bool server_settings_same_text(
	const struct server_settings *a, const struct server_settings *b, const char *key)
{
	uint32_t at_a = 0;
	uint32_t at_b = 0;
	const char *one;
	const char *other;

	do {
		one = next_value(a, key, &at_a);
		other = next_value(b, key, &at_b);
	} while (one != NULL && other != NULL && strcmp(one, other) == 0);
	return one == NULL && other == NULL;
}

static int replace_text(char **field, const char *text, struct error *error)
{
	char *copy = strdup(text);

	if (copy == NULL) {
		return error_oom_for(error, "an export");
	}
	free(*field);
	*field = copy;
	return 0;
}

/* Checks the protocol's rules for strings that are sent to clients. */
static int check_wire_text(const char *text, const char *what, struct error *error)
{
	size_t len = strlen(text);

	if (len > SERVER_NAME_BYTES_MAX) {
		return error_set(error, -EINVAL, "the %s is %zu bytes long; the protocol allows %d",
			what, len, SERVER_NAME_BYTES_MAX);
	}
	if (!utf8_valid(text, len)) {
		return error_set(error, -EINVAL,
			"the %s \"%s\" is not valid UTF-8, which the protocol requires", what,
			quote_bytes(text, len));
	}
	return 0;
}

int server_export_set_name(struct server_export *entry, const char *name, struct error *error)
{
	int rc = check_wire_text(name, "export name", error);

	return rc < 0 ? rc : replace_text(&entry->name, name, error);
}

int server_export_set_path(struct server_export *entry, const char *path, struct error *error)
{
	int rc;

	if (path[0] == '\0') {
		return error_set(error, -EINVAL,
			"the path is empty; give a file, a block device, memory:SIZE or null:SIZE");
	}
	rc = store_path_check(path, error);
	return rc < 0 ? rc : replace_text(&entry->path, path, error);
}

static int check_description(void *object, const char *value, struct error *error)
{
	return check_wire_text(value, "text", error);
}

static int set_max_memory(void *config, const char *value, struct error *error)
{
	struct server_export *entry = config;

	return rate_parse_memory(value, &entry->memory_max, error);
}

static int set_rate(void *config, const char *value, struct error *error)
{
	struct server_export *entry = config;

	return rate_parse(value, &entry->rate, error);
}

static const char *const overlap_words[] = {
	[PATH_OVERLAP_AUTO] = "auto", [PATH_OVERLAP_OFF] = "off", NULL
};
static const char *const writers_words[] = {
	[SERVER_WRITERS_ANY] = "any", [SERVER_WRITERS_ONE] = "one", NULL
};

#define AT(member) FIELD_AT(struct server_export, member, member)

static const struct field own_fields[] = {
	{ "description", "TEXT", "description that is shown to clients that list the exports",
		"TEXT", .type = FIELD_TEXT, .flags = FIELD_LIVE, AT(description),
		.check = check_description },
	{ "max-connections", "N", "maximum connections to this export", "4", .type = FIELD_COUNT,
		.flags = FIELD_LIVE, .min = 1, .max = 1000000, AT(connections_max) },
	{ "max-memory", "SIZE", "maximum memory for the payload of all clients of this export",
		"64M", .flags = FIELD_LIVE, .set = set_max_memory, AT(memory_max) },
	{ "overlap", NULL,
		"whether to send large reads in parts while the disk is still reading: auto "
		"(default) if this is faster, off never",
		"off", .type = FIELD_WORD, .words = overlap_words, AT(overlap) },
	{ "rate", "RATE[:requests=N][:burst=TIME]",
		"limit for all clients together: RATE bytes and N requests per second; after a "
		"pause, a burst can use the unused rate of up to TIME (default: 100ms)",
		"100M:requests=5000", .flags = FIELD_LIVE, .set = set_rate, AT(rate) },
	{ "writers", NULL,
		"how many clients may write at the same time: any (default), or one: the client "
		"that writes first, until its last connection ends",
		"one", .type = FIELD_WORD, .words = writers_words, AT(writers) },
};

/* Returns the number of store keys. Stores are registered before exports are parsed. */
static uint32_t store_field_count(void)
{
	uint32_t count = 0;

	while (store_option_at(count) != NULL) {
		count++;
	}
	return count;
}

const struct field *server_export_field(uint32_t idx)
{
	const struct field *field = store_option_at(idx);
	uint32_t own = field == NULL ? idx - store_field_count() : 0;

	return field != NULL ? field : own < ARRAY_COUNT(own_fields) ? &own_fields[own] : NULL;
}

static bool is_own(const struct field *field)
{
	return field >= own_fields && field < own_fields + ARRAY_COUNT(own_fields);
}

bool server_export_same(
	const struct server_export *a, const struct server_export *b, const struct field *field)
{
	return is_own(field) ? field_same(field, a, b)
			     : store_options_same(&a->store, &b->store, field);
}

void server_export_init(struct server_export *entry)
{
	*entry = (struct server_export){ 0 };
}

void server_export_fini(struct server_export *entry)
{
	free(entry->name);
	free(entry->path);
	free(entry->origin);
	store_options_fini(&entry->store);
	server_access_fini(&entry->access);
	server_settings_fini(&entry->settings);
	for (uint32_t i = 0; i < ARRAY_COUNT(own_fields); i++) {
		field_clear(&own_fields[i], entry);
	}
	server_export_init(entry);
}

static int set_own(struct server_export *entry, const struct field *field, const char *value,
	struct error *error)
{
	uint32_t bit = BIT(field - own_fields);
	int rc = field_check(field, (entry->keys_given & bit) != 0, value, error);

	entry->keys_given |= bit;
	return rc < 0 ? rc : field_set(field, entry, value, error);
}

int server_export_set(
	struct server_export *entry, const char *key, const char *value, struct error *error)
{
	const struct field *field = field_find(server_export_field, key);
	int rc;

	if (field == NULL) {
		field_unknown(server_export_field, key, error);
		return -ENOENT;
	}
	rc = is_own(field) ? set_own(entry, field, value, error)
			   : store_options_set(&entry->store, key, value, error);
	return rc < 0 ? rc : server_settings_add(&entry->settings, key, value, error);
}

/* Like server_export_set(), but every error names the key. */
static int set_named(
	struct server_export *entry, const char *key, const char *value, struct error *error)
{
	int rc = server_export_set(entry, key, value, error);

	if (rc == -ENOENT) {
		return -EINVAL;
	}
	if (rc < 0) {
		error_prefix(error, "%s", key);
	}
	return rc;
}

/* Applies a setting to `out`, the copy of an export. Every error names the key. */
static int copy_setting(
	struct server_export *out, const struct server_setting *setting, struct error *error)
{
	int rc;

	if (strcmp(setting->key, "path") == 0) {
		rc = setting->value != NULL ? server_export_set_path(out, setting->value, error)
					    : error_set(error, -EINVAL, "needs a value");
		if (rc < 0) {
			error_prefix(error, "path");
		}
		return rc;
	}
	if (setting->value == NULL || strcmp(setting->value, "default") != 0) {
		return set_named(out, setting->key, setting->value, error);
	}
	return field_find(server_export_field, setting->key) != NULL
		       ? 0
		       : field_unknown(server_export_field, setting->key, error);
}

int server_export_copy(const struct server_export *entry, const struct server_settings *settings,
	struct server_export *out, struct error *error)
{
	int rc = server_export_set_name(out, entry->name, error);

	rc = rc ?: server_export_set_path(out, entry->path, error);
	rc = rc ?: replace_text(&out->origin, entry->origin, error);
	out->syntax = entry->syntax;
	for (uint32_t i = 0; rc == 0 && i < entry->settings.count; i++) {
		const struct server_setting *setting = &entry->settings.list[i];
		uint32_t at = 0;

		if (next_value(settings, setting->key, &at) == NULL) {
			rc = server_export_set(out, setting->key, setting->value, error);
		}
	}
	for (uint32_t i = 0; rc == 0 && i < settings->count; i++) {
		rc = copy_setting(out, &settings->list[i], error);
	}
	if (rc < 0) {
		server_export_fini(out);
	}
	return rc;
}

static int parse_keys(
	struct server_export *entry, const char *cursor, char *scratch, struct error *error)
{
	int rc = 0;

	while (*cursor == ',' && rc == 0) {
		char *value;

		cursor = server_unescape(cursor + 1, ",", scratch);
		value = strchr(scratch, '=');
		if (value != NULL) {
			*value++ = '\0';
		}
		rc = scratch[0] == '\0'
			     ? error_set(error, -EINVAL, "a key is missing after a comma")
			     : set_named(entry, scratch, value, error);
		if (rc < 0 && field_find(server_export_field, scratch) == NULL) {
			error_add(error, " (a comma inside a value or path is written \\,)");
		}
	}
	return rc;
}

static int parse_with_scratch(
	struct server_export *entry, const char *text, char *scratch, struct error *error)
{
	const char *cursor = server_unescape(text, "=", scratch);
	int rc;

	if (*cursor != '=') {
		return error_set(error, -EINVAL,
			"'=' is missing; write NAME=PATH, or =PATH for the default export");
	}
	rc = server_export_set_name(entry, scratch, error);
	if (rc < 0) {
		return rc;
	}
	cursor = server_unescape(cursor + 1, ",", scratch);
	rc = server_export_set_path(entry, scratch, error);
	if (rc < 0) {
		return rc;
	}
	return parse_keys(entry, cursor, scratch, error);
}

int server_export_parse(struct server_export *entry, const char *text, struct error *error)
{
	char *scratch = malloc(strlen(text) + 1);
	int rc;

	if (scratch == NULL) {
		return error_oom_for(error, "an export");
	}
	rc = parse_with_scratch(entry, text, scratch, error);
	free(scratch);
	if (rc < 0) {
		error_prefix(error, "\"%s\"", quote(text));
		server_export_fini(entry);
	}
	return rc;
}
