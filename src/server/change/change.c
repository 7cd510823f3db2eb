// SPDX-License-Identifier: Apache-2.0
#include "server/change/change_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "server/change/forecast.h"

enum { LINE_BYTES = 1024 };

int change_create(
	const struct change_options *options, struct change **change_out, struct error *error)
{
	struct change *change =
		calloc(1, sizeof(*change) + options->reactor_count * sizeof(change->tasks[0]));

	if (change != NULL) {
		change->options = *options;
		change->lines = json_array();
		change->references = 1;
	}
	if (change == NULL || change->lines == NULL) {
		free(change);
		return error_oom_for(error, "a change");
	}
	for (uint32_t i = 0; i < options->exports->count; i++) {
		options->exports->list[i]->item = 0;
	}
	*change_out = change;
	return 0;
}

static void item_fini(struct change_item *item)
{
	served_export_free(item->after);
	access_put(item->rules);
	removed_export_free(item->removed);
	free(item->description);
	free(item->rules_text);
}

void change_put(struct change *change)
{
	/* Acquire-release order: the thread that drops the last reference, and frees the change,
	 * must see the writes of all other threads. */
	if (change == NULL ||
		atomic_fetch_sub_explicit(&change->references, 1, memory_order_acq_rel) > 1) {
		return;
	}
	for (uint32_t i = 0; i < change->item_count; i++) {
		item_fini(&change->items[i]);
	}
	free(change->items);
	exports_free(&change->next);
	access_put(change->rules_before);
	access_put(change->rules_after);
	json_decref(change->lines);
	free(change);
}

uint32_t change_closing(const struct change *change)
{
	return change->closing_count;
}

json_t *change_lines(const struct change *change)
{
	return json_incref(change->lines);
}

/* --- differences ----------------------------------------------------------------------------- */

static void change_add_line(struct change *change, const char *format, ...) GMB_PRINTF(2, 3);

static void change_add_line(struct change *change, const char *format, ...)
{
	char line[LINE_BYTES];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	json_array_append_new(change->lines, json_string(line));
}

const char *change_label_into(char out[CHANGE_LABEL_BYTES], const char *name)
{
	char shown[CHANGE_LABEL_BYTES - 16];

	snprintf(out, CHANGE_LABEL_BYTES, "export \"%s\"",
		log_escape(shown, sizeof(shown), name, strlen(name)));
	return out;
}

/* Returns the value of a key as it was written, or "default". */
static const char *change_value_of(
	const struct server_export *entry, const char *key, char out[CHANGE_LABEL_BYTES])
{
	char text[CHANGE_LABEL_BYTES];

	server_settings_text(&entry->settings, key, text, sizeof(text));
	return text[0] == '\0' ? "default"
			       : log_escape(out, CHANGE_LABEL_BYTES, text, strlen(text));
}

/* Appends "key=new (was old)" to the line, unless the key has the same text in both exports. The
 * same text can have another meaning if another key has changed: write-mode, for example, depends
 * on mode. Long texts are cut, so the two values shown may look equal. */
static void say_key(char line[LINE_BYTES], const char *key, const struct server_export *before,
	const struct server_export *after)
{
	size_t used = strlen(line);
	char new[CHANGE_LABEL_BYTES];
	char old[CHANGE_LABEL_BYTES];

	if (!server_settings_same_text(&after->settings, &before->settings, key)) {
		snprintf(line + used, LINE_BYTES - used, "%s%s=%s (was %s)", used > 0 ? ", " : "",
			key, change_value_of(after, key, new), change_value_of(before, key, old));
	}
}

static void say_path(char line[LINE_BYTES], const struct server_export *before,
	const struct server_export *after)
{
	snprintf(line, LINE_BYTES, "path=%s (was %s)", quote(after->path), quote(before->path));
}

/* Compares two versions of an export. Returns the action that turns `before` into `after`, and
 * writes the differences to `line`. */
static enum change_action change_compare(const struct server_export *before,
	const struct server_export *after, char line[LINE_BYTES])
{
	enum change_action action = CHANGE_STAY;
	const struct field *field;

	line[0] = '\0';
	if (!store_path_same(before->path, after->path)) {
		say_path(line, before, after);
		action = CHANGE_REPLACE;
	}
	for (uint32_t i = 0; (field = server_export_field(i)) != NULL; i++) {
		if (!server_export_same(before, after, field)) {
			bool is_live = (field->flags & FIELD_LIVE) != 0;

			say_key(line, field->key, before, after);
			action = is_live && action != CHANGE_REPLACE ? CHANGE_UPDATE
								     : CHANGE_REPLACE;
		}
	}
	return action;
}

/* Appends an empty item to the change. Returns NULL if there is no memory. */
static struct change_item *add_item(struct change *change, struct error *error)
{
	if (array_grow(&change->items, change->item_count, sizeof(*change->items)) < 0) {
		error_oom_for(error, "a change");
		return NULL;
	}
	change->items[change->item_count] = (struct change_item){ 0 };
	return &change->items[change->item_count++];
}

/* Returns the key whose value is the file of an overlay, or "discard". */
static const struct field *overlay_field(void)
{
	return field_find(server_export_field, "overlay");
}

static int change_add_export(struct change *change, const struct server_export *about,
	bool is_added, struct access *rules, struct error *error)
{
	static const struct server_settings none;
	struct change_item *item = add_item(change, error);
	char overlay[CHANGE_LABEL_BYTES];
	int rc;

	if (item == NULL) {
		access_put(rules);
		return -ENOMEM;
	}
	item->action = CHANGE_ADD;
	item->rules = rules;
	rc = served_export_create(about, &none, &item->after, error);
	if (rc == 0) {
		item->after->is_added = is_added;
		server_settings_text(
			&about->settings, overlay_field()->key, overlay, sizeof(overlay));
		change_add_line(change, "%s: added, %s%s%s", change_label(about->name),
			quote(about->path), overlay[0] != '\0' ? ", overlay " : "",
			overlay[0] != '\0' ? quote(overlay) : "");
	}
	return rc;
}

static int remove_snapshots(
	struct change *change, const struct served_export *parent, struct error *error);

/* Returns a clause for messages, or "" if the export has no clients. Relaxed, because the text need
 * not be exact: a client that connects now is also disconnected. */
static const char *its_clients(const struct served_export *served)
{
	return atomic_load_explicit(&served->export->connections, memory_order_relaxed) > 0
		       ? "; the clients of the export are disconnected"
		       : "";
}

/* Adds the removal of the export and of its snapshots' exports to the change. */
static int remove_export(struct change *change, struct served_export *before, struct error *error)
{
	struct change_item *item = add_item(change, error);

	if (item == NULL) {
		return -ENOMEM;
	}
	item->action = CHANGE_REMOVE;
	item->before = before;
	before->item = change->item_count;
	change_add_line(
		change, "%s: removed%s", change_label(before->about.name), its_clients(before));
	return remove_snapshots(change, before, error);
}

static int remove_snapshots(
	struct change *change, const struct served_export *parent, struct error *error)
{
	const struct exports *exports = change->options.exports;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < exports->count; i++) {
		if (exports->list[i]->parent == parent->export) {
			rc = remove_export(change, exports->list[i], error);
		}
	}
	return rc;
}

/* Rejects a replacement that would lose data or need two writers. A disk in memory, or an overlay
 * that is discarded at the end, would be empty afterwards. Overlays and flash stores allow only one
 * writer at a time. */
static int check_contents(const struct server_export *before, const struct server_export *after,
	const char *line, struct error *error)
{
	const struct field *overlay = overlay_field();
	char text[CHANGE_LABEL_BYTES];
	bool is_flash = strncmp(before->path, "flash:", strlen("flash:")) == 0;

	if (!store_path_same(before->path, after->path)) {
		return 0;
	}
	if (strncmp(before->path, "memory:", strlen("memory:")) == 0) {
		return error_set(error, -EBUSY,
			"%s: %s would reopen the disk of the export and lose the data in memory; "
			"remove the export and add it again",
			change_label(after->name), line);
	}
	server_settings_text(&before->settings, overlay->key, text, sizeof(text));
	if (text[0] != '\0' ? !server_export_same(before, after, overlay)
			    : !is_flash || (before->store.read_only && after->store.read_only)) {
		return 0;
	}
	return error_set(error, -EBUSY,
		"%s: %s would reopen the disk of the export, which %s does not allow while it is "
		"served; %s",
		change_label(after->name), line, is_flash ? "a flash store" : "an overlay",
		is_flash ? "change the key in the configuration, then restart the server or run "
			   "'gmblock upgrade'"
			 : "remove the export and add it again");
}

/* --- access rules ---------------------------------------------------------------------------- */

static void rules_words(char *out, size_t bytes, const char *text, uint32_t count)
{
	char shown[CHANGE_LABEL_BYTES];

	text = text != NULL ? text : "";
	snprintf(out, bytes, "\"%s\"", log_escape(shown, sizeof(shown), text, strlen(text)));
	if (count > 1) {
		size_t used = strlen(out);

		snprintf(out + used, bytes - used, " and %u more", count - 1);
	}
}

/* Describes the difference of the two rule sets in change->rules_text. Keeps both sets and the
 * text, because the next export compared often has the same rules. */
static void compare_rules(struct change *change, struct access *before, struct access *after)
{
	struct access_difference difference;
	char added[CHANGE_LABEL_BYTES + 40];
	char removed[CHANGE_LABEL_BYTES + 40];
	char *text = change->rules_text;

	if (before == change->rules_before && after == change->rules_after) {
		return;
	}
	access_put(change->rules_before);
	access_put(change->rules_after);
	change->rules_before = before;
	change->rules_after = after;
	if (before != NULL) {
		access_get(before);
	}
	if (after != NULL) {
		access_get(after);
	}
	text[0] = '\0';
	if (!access_differ(before, after, &difference)) {
		return;
	}
	rules_words(added, sizeof(added), difference.added, difference.added_count);
	rules_words(removed, sizeof(removed), difference.removed, difference.removed_count);
	if (difference.removed_count == 0) {
		snprintf(text, CHANGE_RULES_BYTES, "%s added", added);
	} else if (difference.added_count == 0) {
		snprintf(text, CHANGE_RULES_BYTES, "%s removed", removed);
	} else {
		snprintf(text, CHANGE_RULES_BYTES, "%s (was %s)", added, removed);
	}
}

/* Records the difference between the old and the new access rules of an export that stays or is
 * replaced. */
static int note_rules(struct change *change, struct change_item *item, struct error *error)
{
	struct access *before = access_slot_get(item->before->export->access);

	compare_rules(change, before, item->rules);
	access_put(before);
	if (change->rules_text[0] == '\0') {
		return 0;
	}
	item->rules_text = strdup(change->rules_text);
	return item->rules_text != NULL ? 0 : error_oom_for(error, "a change");
}

int change_foresee(const struct change *change, struct forecast *forecast, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < change->item_count; i++) {
		const struct change_item *item = &change->items[i];

		if (item->rules_text != NULL && item->action < CHANGE_REPLACE) {
			rc = forecast_rules(forecast, item->before->export, item->rules);
		}
	}
	return rc < 0 ? error_set(error, rc, "out of memory for a change of the configuration") : 0;
}

void change_tell(struct change *change, const struct forecast *forecast)
{
	for (uint32_t i = 0; i < change->item_count; i++) {
		const struct change_item *item = &change->items[i];
		char text[FORECAST_TEXT_BYTES];
		struct forecast_counts counts;

		if (item->rules_text == NULL) {
			continue;
		}
		counts = forecast_of_export(forecast, item->before->export);
		change_add_line(change, "%s: access: %s%s%s",
			change_label(item->before->about.name), item->rules_text,
			item->action < CHANGE_REPLACE ? "; " : "",
			item->action < CHANGE_REPLACE ? forecast_text(&counts, text) : "");
	}
}

/* --- keys ------------------------------------------------------------------------------------ */

/* Adds an item that changes an export's keys and rules. Takes ownership of rules, even on failure.
 * If has_rules is set, they replace the export's rules. */
static int change_change_export(struct change *change, struct served_export *before,
	const struct server_export *about, const struct server_settings *settings,
	struct access *rules, bool has_rules, struct error *error)
{
	struct change_item *item = add_item(change, error);
	char line[LINE_BYTES];
	int rc;

	if (item == NULL) {
		access_put(rules);
		return -ENOMEM;
	}
	item->before = before;
	before->item = change->item_count;
	item->rules = rules;
	item->has_rules = has_rules;
	rc = served_export_create(about, settings, &item->after, error);
	if (rc < 0) {
		return rc;
	}
	rc = has_rules ? note_rules(change, item, error) : 0;
	if (rc < 0) {
		return rc;
	}
	item->action = change_compare(&before->about, &item->after->about, line);
	item->after->parent = before->parent;
	if (item->action == CHANGE_REPLACE && before->parent != NULL) {
		rc = error_set(error, -EINVAL,
			"%s is a snapshot; only description, max-connections, max-memory and rate "
			"can be changed",
			change_label(about->name));
	} else if (item->action == CHANGE_REPLACE) {
		rc = check_contents(&before->about, &item->after->about, line, error);
	}
	if (rc < 0) {
		return rc;
	}
	item->after->is_added = before->is_added && !has_rules;
	if (item->action == CHANGE_UPDATE && item->after->about.description != NULL) {
		item->description = strdup(item->after->about.description);
		if (item->description == NULL) {
			return error_oom_for(error, "a change");
		}
	}
	if (item->action != CHANGE_STAY) {
		change_add_line(change, "%s: %s%s", change_label(about->name), line,
			item->action == CHANGE_REPLACE ? its_clients(before) : "");
	}
	if (item->action == CHANGE_REPLACE && !has_rules) {
		item->rules = access_slot_get(before->export->access);
	}
	return item->action == CHANGE_REPLACE ? remove_snapshots(change, before, error) : 0;
}

/* --- by name --------------------------------------------------------------------------------- */

static int change_compare_names(const void *left, const void *right)
{
	const struct served_export *const *a = left;
	const struct served_export *const *b = right;

	return strcmp((*a)->about.name, (*b)->about.name);
}

static int compare_name(const void *name, const void *entry)
{
	const struct served_export *const *served = entry;

	return strcmp(name, (*served)->about.name);
}

/* --- one export ------------------------------------------------------------------------------ */

/* Checks that an export with the name can be added. */
static int check_room(const struct change *change, const char *name, struct error *error)
{

	if (exports_find(change->options.exports, name) != NULL) {
		return error_set(error, -EEXIST,
			"there is already an %s; use another name, or change it with 'gmblock "
			"export set'",
			change_label(name));
	}
	return change->options.exports->count < SERVER_EXPORTS_MAX
		       ? 0
		       : error_set(error, -EINVAL, "the server can have at most %d exports",
				 SERVER_EXPORTS_MAX);
}

int change_add(struct change *change, const struct server_export *about, struct error *error)
{
	struct access *rules;
	int rc = check_room(change, about->name, error);

	if (rc < 0) {
		return rc;
	}
	rc = server_access_common(change->options.configured, &rules, error);
	return rc < 0 ? rc : change_add_export(change, about, true, rules, error);
}

int change_add_snapshot(struct change *change, const struct served_export *parent,
	const char *snapshot, const struct server_export *keys, struct error *error)
{
	static const char origin[] = "a snapshot";
	char name[EXPORT_NAME_BYTES_MAX + 1];
	char path[2 * EXPORT_NAME_BYTES_MAX];
	struct server_export about = {
		.name = name, .path = path, .origin = (char *)(uintptr_t)origin
	};
	int rc;

	if (snprintf(name, sizeof(name), "%s@%s", parent->about.name, snapshot) >=
			(int)sizeof(name) ||
		snprintf(path, sizeof(path), "%s@%s", parent->about.path, snapshot) >=
			(int)sizeof(path)) {
		return error_set(error, -ENAMETOOLONG,
			"the name of %s is too long: it must leave room for '@' and the name of a "
			"snapshot",
			change_label(parent->about.name));
	}
	if (keys != NULL) { /* the settings are borrowed from keys */
		about.settings = keys->settings;
		about.syntax = SERVER_SYNTAX_SET;
	}
	rc = check_room(change, name, error);
	if (rc == 0) {
		rc = change_add_export(
			change, &about, true, access_slot_get(parent->export->access), error);
	}
	if (rc == 0) {
		change->items[change->item_count - 1].after->parent = parent->export;
	}
	return rc;
}

int change_set(struct change *change, const char *name, const struct server_settings *settings,
	struct error *error)
{
	static const char origin[] = "gmblock export set";
	struct served_export *served;
	struct server_export about;
	int rc = exports_need(change->options.exports, name, &served, error);

	if (rc < 0) {
		return rc;
	}
	about = served->about; /* the copied texts still belong to the entry */
	about.origin = (char *)(uintptr_t)origin;
	about.syntax = SERVER_SYNTAX_SET;
	return change_change_export(change, served, &about, settings, NULL, false, error);
}

int change_remove(struct change *change, const char *name, struct error *error)
{
	struct served_export *served;
	int rc = exports_need(change->options.exports, name, &served, error);

	return rc < 0 ? rc : remove_export(change, served, error);
}

/* --- the configuration ----------------------------------------------------------------------- */

/* Rejects a configuration in which the rules of an export have disappeared: a deleted line, or a
 * file that is just being written, must not open the export to all clients. */
static int change_check_rules(const struct server_config *config,
	const struct served_export *before, const struct access *rules, struct error *error)
{
	struct access *had = access_slot_get(before->export->access);
	bool are_removed = had != NULL && rules == NULL;

	access_put(had);
	return are_removed
		       ? error_set(error, -EINVAL,
				 "%s: the configuration no longer contains access rules for the "
				 "%s; to open the export to all clients, write access: [rw]",
				 config->file_path, change_label(before->about.name))
		       : 0;
}

/* Adds or changes an export of the configuration. sorted: the table, ordered by name. seen: marks
 * the entries of the table that the configuration contains. */
static int configure_export(struct change *change, const struct server_config *config,
	uint32_t index, struct access *rules, struct served_export **sorted, bool *seen,
	struct error *error)
{
	static const struct server_settings none;
	const struct server_export *about = &config->exports[index];
	uint32_t count = change->options.exports->count;
	struct served_export **found =
		bsearch(about->name, sorted, count, sizeof(*sorted), compare_name);
	int rc;

	if (found == NULL) {
		return change_add_export(change, about, false, rules, error);
	}
	if ((*found)->parent != NULL) {
		access_put(rules);
		return error_set(error, -EEXIST,
			"%s: the %s already exists as a snapshot; give the export another name",
			config->file_path, change_label(about->name));
	}
	seen[found - sorted] = true;
	rc = change_check_rules(config, *found, rules, error);
	if (rc < 0) {
		access_put(rules);
		return rc;
	}
	return change_change_export(change, *found, about, &none, rules, true, error);
}

/* Returns the configuration's rules for an export that is not in the configuration. A snapshot has
 * the rules of its parent export, all others have the rules for exports without their own. */
static int added_rules(const struct change *change, const struct server_config *config,
	const struct served_export *served, struct access **rules_out, struct error *error)
{
	const struct exports *exports = change->options.exports;

	if (served->parent == NULL) {
		return server_access_common(config, rules_out, error);
	}
	*rules_out = access_slot_get(served->parent->access);
	for (uint32_t i = 0; i < exports->count; i++) {
		const struct served_export *parent = exports->list[i];

		if (parent->export == served->parent && parent->item > 0 &&
			change->items[parent->item - 1].has_rules) {
			access_put(*rules_out);
			*rules_out = change->items[parent->item - 1].rules;
			if (*rules_out != NULL) {
				access_get(*rules_out);
			}
		}
	}
	return 0;
}

/* Compares the access rules of an export that a command has added. The configuration determines
 * nothing else about it. */
static int configure_added(struct change *change, const struct server_config *config,
	struct served_export *served, struct error *error)
{
	static const struct server_settings none;
	struct access *rules;
	int rc = added_rules(change, config, served, &rules, error);

	if (rc < 0) {
		return rc;
	}
	rc = change_check_rules(config, served, rules, error);
	if (rc < 0) {
		access_put(rules);
		return rc;
	}
	rc = change_change_export(change, served, &served->about, &none, rules, true, error);
	if (rc == 0) {
		change->items[served->item - 1].after->is_added = true;
	}
	return rc;
}

static int configure_exports(struct change *change, const struct server_config *config,
	struct access **sets, struct served_export **sorted, bool *seen, struct error *error)
{
	uint32_t count = change->options.exports->count;
	int rc = server_access_build(config, sets, error);

	for (uint32_t i = 0; rc == 0 && i < config->export_count; i++) {
		rc = configure_export(change, config, i, sets[i], sorted, seen, error);
		sets[i] = NULL;
	}
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		if (!seen[i] && sorted[i]->item == 0) {
			rc = sorted[i]->is_added ? configure_added(change, config, sorted[i], error)
						 : remove_export(change, sorted[i], error);
		}
	}
	return rc;
}

/* Compares the rates and memory limits of identities. These can change while clients are connected
 * if the rules are otherwise the same. */
static void compare_rates(struct change *change, const struct server_config *config)
{
	struct rate_rules *rules = change->options.rate_rules;

	for (uint32_t i = 0; i < config->rates.conditions.rule_count; i++) {
		const struct rate_rule *rule = &config->rates.rules[i];
		struct rate_rule now;
		uint32_t identities;
		char new[RATE_TEXT_BYTES];
		char old[RATE_TEXT_BYTES];

		rate_rules_look(rules, i, &now, &identities);
		if (memcmp(&now.limits, &rule->limits, sizeof(now.limits)) != 0) {
			change_add_line(change, "rate rule %u: rate=%s (was %s)", i + 1,
				rate_format(&rule->limits, new), rate_format(&now.limits, old));
			change->rates = &config->rates;
		}
		if (now.memory_max != rule->memory_max) {
			change_add_line(change, "rate rule %u: memory=%s (was %s)", i + 1,
				rate_format_memory(rule->memory_max, new),
				rate_format_memory(now.memory_max, old));
			change->rates = &config->rates;
		}
	}
}

/* Compares the settings that do not belong to an export. */
static void compare_rest(struct change *change, const struct server_config *config)
{
	const struct server_config *running = change->options.running;
	const struct field *field;

	for (uint32_t i = 0; (field = server_config_field(i)) != NULL; i++) {
		if ((field->flags & FIELD_RESTART) != 0 &&
			!server_config_same(running, config, field)) {
			change_add_line(change, "%s: changed; takes effect at the next restart",
				field->key);
		}
	}
	if (server_rates_same(&running->rates, &config->rates)) {
		compare_rates(change, config);
	}
}

int change_configure(struct change *change, const struct server_config *config, struct error *error)
{
	const struct exports *exports = change->options.exports;
	struct served_export **sorted =
		calloc(MAX(exports->count, 1U), sizeof(struct served_export *));
	bool *seen = calloc(MAX(exports->count, 1U), sizeof(*seen));
	struct access **sets = calloc(MAX(config->export_count, 1U), sizeof(struct access *));
	int rc;

	if (sorted == NULL || seen == NULL || sets == NULL) {
		rc = error_oom_for(error, "a change");
	} else {
		memcpy(sorted, exports->list, exports->count * sizeof(struct served_export *));
		qsort(sorted, exports->count, sizeof(struct served_export *), change_compare_names);
		rc = configure_exports(change, config, sets, sorted, seen, error);
	}
	if (rc == 0) {
		compare_rest(change, config);
	}
	if (sets != NULL) {
		server_access_drop(sets, config->export_count);
	}
	free(sets);
	free(seen);
	free(sorted);
	return rc;
}
