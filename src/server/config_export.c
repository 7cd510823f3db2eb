// SPDX-License-Identifier: Apache-2.0
#include "server/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

enum { SHOWN_BYTES = 120, STRIPE_CHUNK_BYTES_MAX = 1 << 30, STRIPE_MEMBERS_MAX = 1024 };

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

static int parse_mode(const char *value, enum store_mode *mode, struct error *error)
{
	char shown[SHOWN_BYTES];

	if (strcmp(value, "cached") == 0) {
		*mode = STORE_MODE_CACHED;
	} else if (strcmp(value, "direct") == 0) {
		*mode = STORE_MODE_DIRECT;
	} else {
		return error_set(error, -EINVAL,
			"'%s' is not a mode; it can be cached (through the page cache) or direct "
			"(around it)",
			log_escape(shown, sizeof(shown), value, strlen(value)));
	}
	return 0;
}

enum export_key {
	KEY_MODE,
	KEY_WRITE_MODE,
	KEY_READONLY,
	KEY_DESCRIPTION,
	KEY_MAX_CONNECTIONS,
	KEY_PAGE_CACHE_SEND,
	KEY_OVERLAP,
	KEY_STRIPE,
	KEY_PROGRESS,
	KEY_PACE,
	KEY_FAULT,
	KEY_DELAY,
	KEY_COUNT
};

static int set_mode(struct server_export *entry, const char *value, struct error *error)
{
	int rc = parse_mode(value, &entry->read_mode, error);

	if (rc == 0 && (entry->keys_given & BIT(KEY_WRITE_MODE)) == 0) {
		entry->write_mode = entry->read_mode;
	}
	return rc;
}

static int set_write_mode(struct server_export *entry, const char *value, struct error *error)
{
	return parse_mode(value, &entry->write_mode, error);
}

static int set_readonly(struct server_export *entry, const char *value, struct error *error)
{
	static const struct {
		const char *text;
		bool value;
	} words[] = { { "yes", true }, { "true", true }, { "on", true }, { "no", false },
		{ "false", false }, { "off", false } };
	char shown[SHOWN_BYTES];

	if (value == NULL) {
		entry->read_only = true;
		return 0;
	}
	for (size_t i = 0; i < ARRAY_COUNT(words); i++) {
		if (strcmp(value, words[i].text) == 0) {
			entry->read_only = words[i].value;
			return 0;
		}
	}
	return error_set(error, -EINVAL, "'%s' is neither yes nor no",
		log_escape(shown, sizeof(shown), value, strlen(value)));
}

static int set_description(struct server_export *entry, const char *value, struct error *error)
{
	int rc = check_wire_text(value, "text", error);

	return rc < 0 ? rc : replace_text(&entry->description, value, error);
}

static int set_max_connections(struct server_export *entry, const char *value, struct error *error)
{
	return units_parse_count(value, 1, 1000000, &entry->connections_max, error);
}

static int set_page_cache_send(struct server_export *entry, const char *value, struct error *error)
{
	char shown[SHOWN_BYTES];

	entry->page_cache_send_off = strcmp(value, "off") == 0;
	if (!entry->page_cache_send_off && strcmp(value, "auto") != 0) {
		return error_set(error, -EINVAL, "'%s' is neither auto nor off",
			log_escape(shown, sizeof(shown), value, strlen(value)));
	}
	return 0;
}

static int set_overlap(struct server_export *entry, const char *value, struct error *error)
{
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

/* CHUNK:MEMBERS */
static int set_stripe(struct server_export *entry, const char *value, struct error *error)
{
	const char *colon = strchr(value, ':');
	char shown[SHOWN_BYTES];
	char chunk_text[UNITS_TEXT_BYTES];
	uint64_t chunk = 0;

	if (colon != NULL && (size_t)(colon - value) < sizeof(chunk_text)) {
		memcpy(chunk_text, value, (size_t)(colon - value));
		chunk_text[colon - value] = '\0';
		if (units_parse_bytes(chunk_text, &chunk, NULL) < 0) {
			chunk = 0;
		}
	}
	if (chunk < PATH_PART_SIZE_MIN || chunk > STRIPE_CHUNK_BYTES_MAX ||
		chunk % PATH_PART_SIZE_MIN != 0 ||
		units_parse_count(colon + 1, 2, STRIPE_MEMBERS_MAX, &entry->stripe_members, NULL) <
			0) {
		return error_set(error, -EINVAL,
			"'%s' is not a stripe; it is written CHUNK:MEMBERS, such as 64K:4, with a "
			"chunk of 4K to 1G in steps of 4K and 2 to %d members",
			log_escape(shown, sizeof(shown), value, strlen(value)), STRIPE_MEMBERS_MAX);
	}
	entry->stripe_chunk = (uint32_t)chunk;
	return 0;
}

static int set_progress(struct server_export *entry, const char *value, struct error *error)
{
	static const char *const names[] = {
		[STORE_PROGRESS_AUTO] = "auto",
		[STORE_PROGRESS_COMPLETION] = "completion",
		[STORE_PROGRESS_COUNTER] = "counter",
		[STORE_PROGRESS_MARKER] = "marker",
	};
	char shown[SHOWN_BYTES];

	if (strcmp(value, names[STORE_PROGRESS_MARKER]) == 0 && !store_has_markers()) {
		return error_set(
			error, -EINVAL, "this build has no marker source; use auto or completion");
	}
	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (strcmp(value, names[i]) == 0) {
			entry->progress = (enum store_progress_source)i;
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"'%s' is not a source of progress; it can be auto, completion, counter or "
		"marker",
		log_escape(shown, sizeof(shown), value, strlen(value)));
}

static int set_pace(struct server_export *entry, const char *value, struct error *error)
{
	return store_pace_parse(value, &entry->pace, error);
}

static int set_fault(struct server_export *entry, const char *value, struct error *error)
{
	if (entry->fault_count == STORE_RULES_MAX) {
		return error_set(
			error, -EINVAL, "an export can have at most %d faults", STORE_RULES_MAX);
	}
	return store_fault_parse(value, &entry->faults[entry->fault_count], error);
}

static int set_delay(struct server_export *entry, const char *value, struct error *error)
{
	if (entry->delay_count == STORE_RULES_MAX) {
		return error_set(
			error, -EINVAL, "an export can have at most %d delays", STORE_RULES_MAX);
	}
	return store_delay_parse(value, &entry->delays[entry->delay_count], error);
}

static const struct {
	const char *name;
	const char *example;
	int (*set)(struct server_export *entry, const char *value, struct error *error);
} export_keys[KEY_COUNT] = {
	[KEY_MODE] = { "mode", "cached", set_mode },
	[KEY_WRITE_MODE] = { "write-mode", "direct", set_write_mode },
	[KEY_READONLY] = { "readonly", "yes", set_readonly },
	[KEY_DESCRIPTION] = { "description", "TEXT", set_description },
	[KEY_MAX_CONNECTIONS] = { "max-connections", "4", set_max_connections },
	[KEY_PAGE_CACHE_SEND] = { "page-cache-send", "off", set_page_cache_send },
	[KEY_OVERLAP] = { "overlap", "64K", set_overlap },
	[KEY_STRIPE] = { "stripe", "64K:4", set_stripe },
	[KEY_PROGRESS] = { "progress", "completion", set_progress },
	[KEY_PACE] = { "pace", "100M", set_pace },
	[KEY_FAULT] = { "fault", "read:EIO", set_fault },
	[KEY_DELAY] = { "delay", "read:10ms", set_delay },
};

static int unknown_key(const char *key, struct error *error)
{
	char meant[NEAR_TEXT_BYTES];
	struct near near;

	near_begin(&near, key);
	for (uint32_t i = 0; i < KEY_COUNT; i++) {
		near_try(&near, export_keys[i].name);
	}
	if (near.name != NULL) {
		return error_set(
			error, -EINVAL, "this is not a known key%s", near_text(&near, "", meant));
	}
	return error_set(error, -EINVAL,
		"this is not a known key; an export can have mode, write-mode, readonly, "
		"description, max-connections, page-cache-send, overlap, stripe, progress, pace, "
		"fault and delay (a comma inside a value or path is written \\,)");
}

int server_export_set(
	struct server_export *entry, const char *key, const char *value, struct error *error)
{
	uint32_t i;
	int rc;

	if (key[0] == '\0') {
		return error_set(error, -EINVAL,
			"a key is missing behind a comma (a comma inside a value or path is "
			"written \\,)");
	}
	for (i = 0; i < KEY_COUNT && strcmp(key, export_keys[i].name) != 0; i++) {
	}
	if (i == KEY_COUNT) {
		return unknown_key(key, error);
	}
	if (value == NULL && i != KEY_READONLY) {
		return error_set(error, -EINVAL, "this key needs a value, such as %s=%s", key,
			export_keys[i].example);
	}
	if (i != KEY_FAULT && i != KEY_DELAY && (entry->keys_given & BIT(i)) != 0) {
		return error_set(error, -EINVAL, "this key is given twice");
	}
	entry->keys_given |= BIT(i);
	rc = export_keys[i].set(entry, value, error);
	if (rc < 0) {
		return rc;
	}
	entry->fault_count += i == KEY_FAULT;
	entry->delay_count += i == KEY_DELAY;
	return 0;
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
