// SPDX-License-Identifier: Apache-2.0
#include "server/change/exports.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"
#include "disk/disk.h"
#include "server/upgrade/take.h"

/* --- one disk -------------------------------------------------------------------------------- */

/* Returns whether the path is "flash:FILE@SNAPSHOT" and FILE exists. */
static bool is_snapshot_of_file(const char *path)
{
	const char *at = strrchr(path, '@');
	char *file = at != NULL ? strndup(path, (size_t)(at - path)) : NULL;
	bool is_there = file != NULL && access(store_path_file(file), F_OK) == 0;

	free(file);
	return is_there;
}

/* Returns whether the path begins with letters and a colon, such as "file:PATH". */
static bool has_prefix(const char *path)
{
	return path[strspn(path, "abcdefghijklmnopqrstuvwxyz")] == ':';
}

/* Returns a hint for a disk that does not exist. NULL for a device or a disk that is only read,
 * because a new file must not take its place. */
static const char *advice_for_absent(const struct server_export *entry)
{
	if (strstr(entry->path, "://") != NULL) {
		return "give a path (only copy and attach accept the URI of a server)";
	}
	if (strcmp(entry->path, "memory") == 0 || strcmp(entry->path, "null") == 0) {
		return "add the size: memory:SIZE or null:SIZE";
	}
	if (entry->syntax == SERVER_SYNTAX_PATH && strchr(entry->path, ',') != NULL) {
		return "to set export keys, write --export =PATH,KEY[=VALUE]";
	}
	if (entry->syntax == SERVER_SYNTAX_ADD && strchr(entry->path, ',') != NULL) {
		return "write export keys as separate arguments: NAME PATH KEY[=VALUE]";
	}
	if (strncmp(entry->path, "flash:", strlen("flash:")) == 0 &&
		is_snapshot_of_file(entry->path)) {
		return "leave out '@' and the snapshot name: a flash store is served with all its "
		       "snapshots, as EXPORT@NAME";
	}
	if (has_prefix(entry->path) && !store_path_has_kind(entry->path)) {
		return "leave out the word before the colon for a file or block device; other "
		       "disks are flash:PATH, memory:SIZE and null:SIZE";
	}
	if (entry->store.read_only || disk_path_is_device(entry->path)) {
		return NULL;
	}
	if (strncmp(entry->path, "flash:", strlen("flash:")) == 0) {
		return "create the flash store first, for example with 'gmblock create --size=SIZE "
		       "flash:FILE'";
	}
	return "create the file first, for example with 'truncate -s SIZE FILE'";
}

static void exports_advise(const struct server_export *entry, struct error *error)
{
	const char *advice = advice_for_absent(entry);
	struct error plain;

	/* -ENOENT can also be another file of the export, such as an overlay. */
	if (error == NULL || error->code != -ENOENT || advice == NULL ||
		access(store_path_file(entry->path), F_OK) == 0) {
		return;
	}
	plain = *error;
	error_set(error, plain.code, "%s; %s", plain.text, advice);
}

/* Appends the setting that avoids the error (error->key), in the syntax in which the export was
 * described. */
static void show_key(const struct server_export *entry, struct error *error)
{
	struct error plain;
	const char *key;
	size_t name_bytes;
	bool is_bare;
	bool is_read_only;
	char shown[120];

	if (error == NULL || error->key == NULL) {
		return;
	}
	plain = *error;
	key = plain.key;
	name_bytes = strcspn(key, "=");
	is_bare = key[name_bytes] == '\0';
	is_read_only = strcmp(key, "readonly") == 0;
	switch (entry->syntax) {
	case SERVER_SYNTAX_EXPORT:
		snprintf(shown, sizeof(shown), "--export %s=PATH,%s",
			entry->name[0] == '\0' ? "" : "NAME", key);
		break;
	case SERVER_SYNTAX_PATH:
		snprintf(shown, sizeof(shown), "%s%s",
			is_read_only ? "--read-only" : "--export =PATH,", is_read_only ? "" : key);
		break;
	case SERVER_SYNTAX_FILE:
		snprintf(shown, sizeof(shown), "%.*s: %s", (int)name_bytes, key,
			is_bare ? "yes" : key + name_bytes + 1);
		break;
	case SERVER_SYNTAX_ADD:
		snprintf(shown, sizeof(shown), "gmblock export add NAME PATH %s", key);
		break;
	case SERVER_SYNTAX_SET:
		snprintf(shown, sizeof(shown), "gmblock export set NAME %s%s", key,
			is_bare ? "=yes" : "");
		break;
	}
	error_set(error, plain.code, "%s%s with %s (%s)", plain.text,
		strncmp(key, "overlay=", strlen("overlay=")) == 0 ? ": export that"
		: strchr(plain.text, ';') != NULL		  ? ", or export the disk"
								  : "; export the disk",
		key, shown);
}

/* Returns a number for this boot of the machine, or 0 if it is not known. */
static uint64_t boot_epoch(void)
{
	uint8_t id[DISK_BOOT_ID_BYTES];
	struct be64 first;

	if (disk_boot_id(id) < 0) {
		return 0;
	}
	memcpy(&first, id, sizeof(first));
	return be64_get(first);
}

/* Chooses the epoch. A change of this number tells clients that acknowledged but unflushed data may
 * have been lost. Such data survives a restart of the server but not of the machine, so a file gets
 * the number of this boot. A disk in memory, and a disk that replaces another one, get a random
 * epoch. */
void served_export_choose_epoch(struct served_export *served, const struct served_export *replaces)
{
	struct export *export = served->export;
	bool is_other = replaces != NULL && strcmp(served->about.path, replaces->about.path) != 0;

	export->epoch = store_epoch(export->store);
	if (export->epoch == 0 && !export->is_volatile && !is_other) {
		export->epoch = boot_epoch();
	} else if (export->epoch == 0 &&
		   getrandom(&export->epoch, sizeof(export->epoch), 0) != sizeof(export->epoch)) {
		export->epoch = 0;
	}
}

void served_export_blame(const struct server_export *entry, struct error *error)
{
	bool says_more = strcmp(entry->origin, entry->path) != 0;

	show_key(entry, error);
	error_prefix(error, "cannot serve the export \"%s\"%s%s%s", quote(entry->name),
		says_more ? " (" : "", says_more ? entry->origin : "", says_more ? ")" : "");
}

/* If the disk, or one of its other files, cannot be opened because of the sandbox, appends this
 * reason and the remedy to the error text and returns true. */
static bool exports_explain(const struct server_export *entry, struct error *error)
{
	static const char remedy[] =
		"name the folder of this file with --export-folder when the server starts";
	/* The base of an overlay is only read. The other files of a disk are written, unless the
	 * export is read-only. */
	bool writes = !entry->store.read_only;
	bool is_explained = sandbox_explain(
		entry->path, !store_options_reads_only(&entry->store), remedy, error);
	const char *file;

	for (uint32_t i = 0; !is_explained && (file = store_options_file(&entry->store, i)) != NULL;
		i++) {
		is_explained = sandbox_explain(file, writes, remedy, error);
	}
	return is_explained;
}

int served_export_open(struct served_export *served, struct access *rules, struct error *error)
{
	const struct server_export *entry = &served->about;
	struct store_options options = entry->store;
	struct export_options about = {
		.name = entry->name,
		.name_bytes = (uint32_t)strlen(entry->name),
		.description = entry->description,
		.read_only = entry->store.read_only,
		.access = rules,
		.connections_max = entry->connections_max,
		.overlap = entry->overlap,
		.one_writer = entry->writers == SERVER_WRITERS_ONE,
		.rate = entry->rate,
		.memory_max = entry->memory_max,
	};
	int rc;

	options.path = entry->path;
	options.inherited = served->inherited;
	if (served->parent != NULL) {
		about.parent = served->parent;
		rc = store_snapshot_open(
			served->parent->store, strrchr(entry->name, '@') + 1, &about.store, error);
	} else {
		rc = store_open(&options, &about.store, error);
	}
	if (rc < 0) {
		access_put(rules);
		if (!exports_explain(entry, error)) {
			exports_advise(entry, error);
		}
		served_export_blame(entry, error);
		return rc;
	}
	about.is_volatile = store_info(about.store)->is_volatile;
	rc = export_create(&about, &served->export, error);
	served->size = rc == 0 ? store_size(served->export->store) : 0;
	if (rc == 0 && served->size == 0) {
		log_warning(
			"export \"%s\": '%s' is empty, so clients see a disk of 0 bytes; enlarge "
			"it, for example with 'truncate -s SIZE FILE', and run 'gmblock reload'",
			quote(entry->name), quote(entry->path));
	}
	return rc;
}

int served_export_check_size(struct served_export *served, const uint64_t *wanted,
	char line[SERVED_EXPORT_LINE_BYTES], struct error *error)
{
	const char *shown = quote(served->about.name);
	uint64_t before = served->size;
	uint64_t size = store_size(served->export->store);
	char old[UNITS_TEXT_BYTES];
	char new[UNITS_TEXT_BYTES];

	units_format_bytes(old, before);
	units_format_bytes(new, size);
	if (wanted != NULL && *wanted < size) {
		return error_set(error, -EINVAL,
			"the disk of export \"%s\" has %s, and an export cannot shrink while it is "
			"served; remove the export first",
			shown, new);
	}
	if (wanted != NULL && *wanted > size) {
		return error_set(error, -EINVAL,
			"the disk of export \"%s\" has only %s; make the disk larger first, for "
			"example with 'truncate -s SIZE FILE'",
			shown, new);
	}
	served->size = size;
	if (size < before) {
		return error_set(error, -EINVAL,
			"the disk of export \"%s\" has shrunk to %s (was %s): requests of "
			"connected clients beyond its end fail",
			shown, new, old);
	}
	snprintf(
		line, SERVED_EXPORT_LINE_BYTES, "export \"%s\": size=%s (was %s)", shown, new, old);
	return size > before;
}

void exports_look_at_sizes(const struct exports *exports)
{
	for (uint32_t i = 0; i < exports->count; i++) {
		char line[SERVED_EXPORT_LINE_BYTES];
		struct error error;
		int rc = served_export_check_size(exports->list[i], NULL, line, &error);

		if (rc < 0) {
			log_warning("%s", error.text);
		} else if (rc > 0) {
			log_info("%s", line);
		}
	}
}

int served_export_create(const struct server_export *entry, const struct server_settings *settings,
	struct served_export **served_out, struct error *error)
{
	struct served_export *served = calloc(1, sizeof(*served));
	int rc;

	if (served == NULL) {
		return error_oom_for(error, "an export");
	}
	server_export_init(&served->about);
	rc = server_export_copy(entry, settings, &served->about, error);
	if (rc < 0) {
		free(served);
		return rc;
	}
	*served_out = served;
	return 0;
}

void served_export_free(struct served_export *served)
{
	if (served != NULL) {
		export_put(served->export);
		server_export_fini(&served->about);
		free(served);
	}
}

/* --- the table ------------------------------------------------------------------------------- */

int exports_create(uint32_t room, struct exports *exports, struct error *error)
{
	*exports = (struct exports){
		.list = calloc(MAX(room, 1U), sizeof(struct served_export *)),
		.exports = calloc(MAX(room, 1U), sizeof(struct export *)),
	};
	if (exports->list == NULL || exports->exports == NULL) {
		exports_free(exports);
		return error_oom_for(error, "%u exports", room);
	}
	return 0;
}

void exports_append(struct exports *exports, struct served_export *served)
{
	exports->list[exports->count] = served;
	exports->exports[exports->count] = served->export;
	exports->count++;
}

void exports_free(struct exports *exports)
{
	free(exports->list);
	free(exports->exports);
	*exports = (struct exports){ 0 };
}

struct served_export *exports_find(const struct exports *exports, const char *name)
{
	for (uint32_t i = 0; i < exports->count; i++) {
		if (strcmp(exports->list[i]->about.name, name) == 0) {
			return exports->list[i];
		}
	}
	return NULL;
}

int exports_need(const struct exports *exports, const char *name, struct served_export **served_out,
	struct error *error)
{
	*served_out = exports_find(exports, name);
	return *served_out != NULL ? 0
				   : error_set(error, -ENOENT, EXPORTS_ABSENT_TEXT, quote(name));
}

bool exports_end(const struct exports *exports)
{
	uint64_t left = 0;

	for (uint32_t i = 0; i < exports->count; i++) {
		left += store_end(exports->exports[i]->store);
	}
	return left == 0;
}

int removed_export_create(const struct served_export *served, struct removed_export **removed_out,
	struct error *error)
{
	size_t path_bytes = strlen(served->about.path) + 1;
	struct removed_export *removed = malloc(sizeof(*removed) + path_bytes);

	if (removed == NULL) {
		return error_oom_for(error, "a change");
	}
	*removed = (struct removed_export){ .use = export_use_get(served->export) };
	memcpy(removed->path, served->about.path, path_bytes);
	*removed_out = removed;
	return 0;
}

void removed_export_free(struct removed_export *removed)
{
	if (removed != NULL) {
		export_use_put(removed->use);
		free(removed);
	}
}

void exports_remember(struct exports *exports, struct removed_export *removed)
{
	struct removed_export **link = &exports->removed;

	while (*link != NULL) {
		struct removed_export *old = *link;

		if (export_use_is_over(old->use)) {
			*link = old->next;
			removed_export_free(old);
		} else {
			link = &old->next;
		}
	}
	*link = removed;
}

static json_t *settings_json(const struct server_settings *settings)
{
	json_t *all = json_array();

	for (uint32_t i = 0; i < settings->count; i++) {
		json_array_append_new(
			all, json_pack("[s, s?]", settings->list[i].key, settings->list[i].value));
	}
	return all;
}

json_t *exports_json(const struct exports *exports)
{
	json_t *all = json_array();

	for (uint32_t i = 0; i < exports->count; i++) {
		const struct served_export *served = exports->list[i];
		const struct server_export *about = &served->about;
		char path[4 * PATH_MAX];

		/* Relaxed, because the number of connections is only informative. The size is the
		 * one last recorded, because querying the disk can take long. */
		json_array_append_new(all,
			json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "name", about->name, "path",
				log_escape(path, sizeof(path), about->path, strlen(about->path)),
				"from",
				served->parent != NULL ? "snapshot"
				: served->is_added     ? "command"
						       : "configuration",
				"size",
				(json_int_t)atomic_load_explicit(
					&served->size, memory_order_relaxed),
				"connections",
				(json_int_t)atomic_load_explicit(
					&served->export->connections, memory_order_relaxed),
				"settings", settings_json(&about->settings)));
	}
	return all;
}

void exports_close(struct exports *exports)
{
	struct removed_export *removed;

	while ((removed = exports->removed) != NULL) {
		exports->removed = removed->next;
		removed_export_free(removed);
	}
	for (uint32_t i = 0; i < exports->count; i++) {
		served_export_free(exports->list[i]);
	}
	exports_free(exports);
}

static int open_next(const struct server_export *entry, struct access *rules,
	const struct upgrade_take *take, struct exports *exports, struct error *error)
{
	static const struct server_settings none;
	struct served_export *served;
	int rc = served_export_create(entry, &none, &served, error);

	if (rc < 0) {
		access_put(rules);
		return rc;
	}
	served->is_added = entry->is_added;
	served->inherited = upgrade_take_disk(take, entry->name, exports->count);
	rc = served_export_open(served, rules, error);
	served->inherited = NULL;
	if (rc < 0) {
		served_export_free(served);
	} else {
		exports_append(exports, served);
	}
	return rc;
}

static int exports_open_all(const struct server_config *config, bool added,
	const struct upgrade_take *take, struct exports *exports, struct error *error)
{
	uint32_t count = config->export_count;
	struct access **sets = calloc(MAX(count, 1U), sizeof(*sets));
	int rc;

	if (sets == NULL) {
		return error_oom_for(error, "%u exports", count);
	}
	rc = server_access_build(config, sets, error);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		if (config->exports[i].is_added == added) {
			rc = open_next(&config->exports[i], sets[i], take, exports, error);
			sets[i] = NULL;
		}
	}
	server_access_drop(sets, count);
	free(sets);
	return rc;
}

int exports_open(const struct server_config *config, const struct upgrade_take *take,
	struct exports *exports, struct error *error)
{
	int rc = exports_create(config->export_count, exports, error);

	return rc ?: exports_open_all(config, false, take, exports, error);
}

int exports_open_added(const struct server_config *config, const struct upgrade_take *take,
	struct exports *exports, struct error *error)
{
	return take != NULL ? exports_open_all(config, true, take, exports, error) : 0;
}
