// SPDX-License-Identifier: Apache-2.0
#include "server/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

enum { SHOWN_BYTES = 120, KEYS_BYTES = 400 };

void server_export_init(struct server_export *entry)
{
	*entry = (struct server_export){ 0 };
}

void server_export_fini(struct server_export *entry)
{
	free(entry->name);
	free(entry->path);
	free(entry->description);
	free(entry->origin);
	store_options_fini(&entry->store);
	server_access_fini(&entry->access);
	server_export_init(entry);
}

static int replace_text(char **field, const char *text, struct error *error)
{
	char *copy = strdup(text);

	if (copy == NULL) {
		return error_set(error, -ENOMEM, "no memory for an export");
	}
	free(*field);
	*field = copy;
	return 0;
}

/* What the protocol asks of every string that goes over the wire. */
static int check_wire_text(const char *text, const char *what, struct error *error)
{
	size_t len = strlen(text);
	char shown[SHOWN_BYTES];

	if (len > SERVER_NAME_BYTES_MAX) {
		return error_set(error, -EINVAL, "the %s is %zu bytes long; the protocol allows %d",
			what, len, SERVER_NAME_BYTES_MAX);
	}
	if (!utf8_valid(text, len)) {
		return error_set(error, -EINVAL,
			"the %s \"%s\" is not valid UTF-8, which the protocol demands", what,
			log_escape(shown, sizeof(shown), text, len));
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
	if (path[0] == '\0') {
		return error_set(error, -EINVAL,
			"the path is empty; name a file, a block device, memory:SIZE or null:SIZE");
	}
	return replace_text(&entry->path, path, error);
}

static int set_description(void *config, const char *value, struct error *error)
{
	struct server_export *entry = config;
	int rc = check_wire_text(value, "text", error);

	return rc < 0 ? rc : replace_text(&entry->description, value, error);
}

static int set_max_connections(void *config, const char *value, struct error *error)
{
	struct server_export *entry = config;
	return units_parse_count(value, 1, 1000000, &entry->connections_max, error);
}

static int set_max_memory(void *config, const char *value, struct error *error)
{
	struct server_export *entry = config;

	return rate_parse_memory(value, &entry->memory_max, error);
}

static int set_overlap(void *config, const char *value, struct error *error)
{
	struct server_export *entry = config;
	uint64_t bytes;

	if (strcmp(value, "auto") == 0) {
		entry->overlap = PATH_OVERLAP_AUTO;
		return 0;
	}
	if (strcmp(value, "off") == 0) {
		entry->overlap = PATH_OVERLAP_OFF;
		return 0;
	}
	if (units_parse_bytes(value, &bytes, NULL) < 0 || bytes < PATH_PART_SIZE_MIN ||
		bytes > PATH_PART_SIZE_MAX || bytes % PATH_PART_SIZE_MIN != 0) {
		char shown[SHOWN_BYTES];

		return error_set(error, -EINVAL,
			"'%s' is neither auto nor off, nor a size from 4K to 1M in steps of 4K",
			log_escape(shown, sizeof(shown), value, strlen(value)));
	}
	entry->overlap = (uint32_t)bytes;
	return 0;
}

static int set_rate(void *config, const char *value, struct error *error)
{
	struct server_export *entry = config;

	return rate_parse(value, &entry->rate, error);
}

static const struct store_option own_options[] = {
	{ "description", "TEXT", "shown to clients that list the exports", "TEXT",
		.set = set_description },
	{ "max-connections", "N", "maximum clients of this export", "4",
		.set = set_max_connections },
	{ "max-memory", "SIZE", "maximum memory for data of all clients of this export", "64M",
		.set = set_max_memory },
	{ "overlap", "auto|off|SIZE",
		"reply to large reads before the disk has finished,\n"
		"in parts of an automatic size (default), never, or\n"
		"in parts of SIZE (4K to 1M)",
		"64K", .set = set_overlap },
	{ "rate", "RATE[:requests=N][:burst=TIME]",
		"serve at most RATE bytes and N requests a second to\n"
		"all clients together, and at once what a pause of\n"
		"TIME (default: 100ms) has left",
		"100M:requests=5000", .set = set_rate },
};

const struct store_option *server_export_option(uint32_t idx)
{
	uint32_t count = 0;

	while (count < idx && store_option_at(count) != NULL) {
		count++;
	}
	if (store_option_at(count) != NULL) {
		return store_option_at(count);
	}
	return idx - count < ARRAY_COUNT(own_options) ? &own_options[idx - count] : NULL;
}

static int unknown_key(const char *key, struct error *error)
{
	const struct store_option *option;
	char meant[NEAR_TEXT_BYTES];
	char keys[KEYS_BYTES];
	size_t used = 0;
	struct near near;

	near_begin(&near, key);
	for (uint32_t i = 0; (option = server_export_option(i)) != NULL; i++) {
		const char *between = server_export_option(i + 1) == NULL ? " and " : ", ";

		near_try(&near, option->key);
		if (used < sizeof(keys)) {
			used += (size_t)snprintf(keys + used, sizeof(keys) - used, "%s%s",
				i == 0 ? "" : between, option->key);
		}
	}
	if (near.name != NULL) {
		return error_set(error, -EINVAL, "unknown key%s", near_text(&near, "", meant));
	}
	return error_set(error, -EINVAL,
		"unknown key; an export can have %s (a comma inside a value or path is "
		"written \\,)",
		keys);
}

int server_export_set(
	struct server_export *entry, const char *key, const char *value, struct error *error)
{
	int rc;

	if (key[0] == '\0') {
		return error_set(error, -EINVAL,
			"a key is missing behind a comma (a comma inside a value or path is "
			"written \\,)");
	}
	for (uint32_t i = 0; i < ARRAY_COUNT(own_options); i++) {
		bool given = (entry->keys_given & BIT(i)) != 0;

		if (strcmp(key, own_options[i].key) != 0) {
			continue;
		}
		entry->keys_given |= BIT(i);
		rc = store_option_check(&own_options[i], given, value, error);
		return rc < 0 ? rc : own_options[i].set(entry, value, error);
	}
	rc = store_options_set(&entry->store, key, value, error);
	return rc == -ENOENT ? unknown_key(key, error) : rc;
}

/*
 * Copies up to the first stop character that has no backslash before it; the backslash goes away
 * where it hides stop or another backslash. Returns where it stopped.
 */
static const char *unescape_until(const char *from, char stop, char *out)
{
	while (*from != '\0' && *from != stop) {
		if (from[0] == '\\' && from[1] != '\0' && (from[1] == stop || from[1] == '\\')) {
			from++;
		}
		*out++ = *from++;
	}
	*out = '\0';
	return from;
}

static int parse_keys(
	struct server_export *entry, const char *cursor, char *scratch, struct error *error)
{
	char shown[SHOWN_BYTES];

	while (*cursor == ',') {
		char *value;
		int rc;

		cursor = unescape_until(cursor + 1, ',', scratch);
		value = strchr(scratch, '=');
		if (value != NULL) {
			*value++ = '\0';
		}
		rc = server_export_set(entry, scratch, value, error);
		if (rc < 0 && scratch[0] != '\0') {
			error_prefix(error, "%s",
				log_escape(shown, sizeof(shown), scratch, strlen(scratch)));
		}
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

static int parse_with_scratch(
	struct server_export *entry, const char *text, char *scratch, struct error *error)
{
	const char *cursor = unescape_until(text, '=', scratch);
	int rc;

	if (*cursor != '=') {
		return error_set(error, -EINVAL,
			"it has no '=': write NAME=PATH, or =PATH for the default export");
	}
	rc = server_export_set_name(entry, scratch, error);
	if (rc < 0) {
		return rc;
	}
	cursor = unescape_until(cursor + 1, ',', scratch);
	rc = server_export_set_path(entry, scratch, error);
	if (rc < 0) {
		return rc;
	}
	return parse_keys(entry, cursor, scratch, error);
}

int server_export_parse(struct server_export *entry, const char *text, struct error *error)
{
	char *scratch = malloc(strlen(text) + 1);
	char shown[SHOWN_BYTES];
	int rc;

	if (scratch == NULL) {
		return error_set(error, -ENOMEM, "no memory for an export");
	}
	rc = parse_with_scratch(entry, text, scratch, error);
	free(scratch);
	if (rc < 0) {
		error_prefix(error, "\"%s\"", log_escape(shown, sizeof(shown), text, strlen(text)));
		server_export_fini(entry);
	}
	return rc;
}
