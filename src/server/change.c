// SPDX-License-Identifier: Apache-2.0
#include "server/change.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/control.h"

enum {
	LINE_BYTES = 1024,
	VALUE_BYTES = 120,
	PREPARE_STEP = 16, /* exports in one turn of a reactor */
};

enum change_action { CHANGE_STAY, CHANGE_ADD, CHANGE_UPDATE, CHANGE_REPLACE, CHANGE_REMOVE };

/* One export. */
struct change_item {
	enum change_action action;
	struct served *before; /* in the table; NULL: it is added */
	struct served *after;  /* owned until the commit; NULL: it goes, or stays as it is */
	struct access *rules;  /* owned, or NULL */
	bool has_rules;	       /* they take the place of those of before */
	bool tells_limits;     /* engines are to be told */
	struct gone *gone;     /* of one that goes, from change_open() until the commit */
	/* For the reactors, from the commit on: each engine has a reference until its part. */
	struct export *old;
	struct export *new;
	char *description; /* that no session reads once all reactors have committed */
};

struct change {
	struct change_options options;
	struct change_item *items;
	uint32_t item_count;
	struct exports next;
	uint32_t closing_count;
	json_t *lines;
	_Atomic uint32_t references;
	struct reactor_task tasks[]; /* one for each reactor */
};

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
		return error_set(error, -ENOMEM, "no memory for a change");
	}
	for (uint32_t i = 0; i < options->exports->count; i++) {
		options->exports->list[i]->item = 0;
	}
	*change_out = change;
	return 0;
}

static void item_fini(struct change_item *item)
{
	served_free(item->after);
	access_put(item->rules);
	gone_free(item->gone);
	free(item->description);
}

void change_put(struct change *change)
{
	/* Acquire and release: the last one sees all that the others have done. */
	if (change == NULL ||
		atomic_fetch_sub_explicit(&change->references, 1, memory_order_acq_rel) > 1) {
		return;
	}
	for (uint32_t i = 0; i < change->item_count; i++) {
		item_fini(&change->items[i]);
	}
	free(change->items);
	exports_free(&change->next);
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

/* --- the difference -------------------------------------------------------------------------- */

static void add_line(struct change *change, const char *format, ...) GMB_PRINTF(2, 3);

static void add_line(struct change *change, const char *format, ...)
{
	char line[LINE_BYTES];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	json_array_append_new(change->lines, json_string(line));
}

/* "export \"x\"", or "default export". */
static const char *label(const char *name, char out[VALUE_BYTES])
{
	char shown[VALUE_BYTES - 16];

	if (name[0] == '\0') {
		snprintf(out, VALUE_BYTES, "default export");
	} else {
		snprintf(out, VALUE_BYTES, "export \"%s\"",
			log_escape(shown, sizeof(shown), name, strlen(name)));
	}
	return out;
}

/* A value of a key as it was written, or "default". */
static const char *value_of(
	const struct server_export *entry, const char *key, char out[VALUE_BYTES])
{
	char text[VALUE_BYTES];

	server_settings_text(&entry->settings, key, text, sizeof(text));
	return text[0] == '\0' ? "default" : log_escape(out, VALUE_BYTES, text, strlen(text));
}

/* Adds "key=new (was old)" to a line. */
static void say_key(char line[LINE_BYTES], const char *key, const struct server_export *before,
	const struct server_export *after)
{
	size_t used = strlen(line);
	char new[VALUE_BYTES];
	char old[VALUE_BYTES];

	snprintf(line + used, LINE_BYTES - used, "%s%s=%s (was %s)", used > 0 ? ", " : "", key,
		value_of(after, key, new), value_of(before, key, old));
}

static void say_path(char line[LINE_BYTES], const struct server_export *before,
	const struct server_export *after)
{
	char new[VALUE_BYTES];
	char old[VALUE_BYTES];

	snprintf(line, LINE_BYTES, "path=%s (was %s)",
		log_escape(new, sizeof(new), after->path, strlen(after->path)),
		log_escape(old, sizeof(old), before->path, strlen(before->path)));
}

/* What has to be done to make one out of the other; line: the differences. */
static enum change_action compare(const struct server_export *before,
	const struct server_export *after, char line[LINE_BYTES])
{
	enum change_action action = CHANGE_STAY;
	const struct store_option *option;

	line[0] = '\0';
	if (strcmp(before->path, after->path) != 0) {
		say_path(line, before, after);
		action = CHANGE_REPLACE;
	}
	for (uint32_t i = 0; (option = server_export_option(i)) != NULL; i++) {
		if (!server_export_same(before, after, option->key)) {
			bool is_live = (option->flags & STORE_OPTION_LIVE) != 0;

			say_key(line, option->key, before, after);
			action = is_live && action != CHANGE_REPLACE ? CHANGE_UPDATE
								     : CHANGE_REPLACE;
		}
	}
	return action;
}

/* NULL: no memory. */
static struct change_item *add_item(struct change *change, struct error *error)
{
	struct change_item *items = change->items;

	if ((change->item_count & (change->item_count - 1)) == 0) {
		items = reallocarray(
			items, MAX(2 * (size_t)change->item_count, (size_t)1), sizeof(*items));
		if (items == NULL) {
			error_set(error, -ENOMEM, "no memory for a change");
			return NULL;
		}
		change->items = items;
	}
	items[change->item_count] = (struct change_item){ 0 };
	return &items[change->item_count++];
}

static int add_export(struct change *change, const struct server_export *about, bool is_added,
	struct access *rules, struct error *error)
{
	static const struct server_settings none;
	struct change_item *item = add_item(change, error);
	char shown[VALUE_BYTES];
	char path[VALUE_BYTES];
	int rc;

	if (item == NULL) {
		access_put(rules);
		return -ENOMEM;
	}
	item->action = CHANGE_ADD;
	item->rules = rules;
	rc = served_create(about, &none, &item->after, error);
	if (rc == 0) {
		item->after->is_added = is_added;
		add_line(change, "%s: added, %s", label(about->name, shown),
			log_escape(path, sizeof(path), about->path, strlen(about->path)));
	}
	return rc;
}

static int remove_export(struct change *change, struct served *before, struct error *error)
{
	struct change_item *item = add_item(change, error);
	char shown[VALUE_BYTES];

	if (item == NULL) {
		return -ENOMEM;
	}
	item->action = CHANGE_REMOVE;
	item->before = before;
	before->item = change->item_count;
	add_line(change, "%s: removed; its clients are disconnected",
		label(before->about.name, shown));
	return 0;
}

/* An overlay has one writer at a time, and one that is discarded at the end would be empty again,
 * as would a disk in memory. */
static int check_contents(const struct server_export *before, const struct server_export *after,
	const char *line, struct error *error)
{
	char overlay[VALUE_BYTES];
	char shown[VALUE_BYTES];

	if (strcmp(before->path, after->path) != 0) {
		return 0;
	}
	if (strncmp(before->path, "memory:", strlen("memory:")) == 0) {
		return error_set(error, -EBUSY,
			"%s: %s would open its disk anew, and what is in memory would be lost; "
			"remove the export, and add it again",
			label(after->name, shown), line);
	}
	server_settings_text(&before->settings, "overlay", overlay, sizeof(overlay));
	if (overlay[0] == '\0' || !server_export_same(before, after, "overlay")) {
		return 0;
	}
	return error_set(error, -EBUSY,
		"%s: %s would open its disk anew, which an overlay does not allow while it is "
		"served; remove the export, and add it again",
		label(after->name, shown), line);
}

/* rules: taken, also on failure; with has_rules they take the place of those that it has. */
static int change_export(struct change *change, struct served *before,
	const struct server_export *about, const struct server_settings *settings,
	struct access *rules, bool has_rules, struct error *error)
{
	struct change_item *item = add_item(change, error);
	char line[LINE_BYTES];
	char shown[VALUE_BYTES];
	int rc;

	if (item == NULL) {
		access_put(rules);
		return -ENOMEM;
	}
	item->before = before;
	before->item = change->item_count;
	item->rules = rules;
	item->has_rules = has_rules;
	rc = served_create(about, settings, &item->after, error);
	if (rc < 0) {
		return rc;
	}
	item->action = compare(&before->about, &item->after->about, line);
	if (item->action == CHANGE_REPLACE) {
		rc = check_contents(&before->about, &item->after->about, line, error);
	}
	if (rc < 0) {
		return rc;
	}
	item->after->is_added = before->is_added && !has_rules;
	item->tells_limits = !server_export_same(&before->about, &item->after->about, "rate") ||
			     !server_export_same(&before->about, &item->after->about, "max-memory");
	if (item->action != CHANGE_STAY) {
		add_line(change, "%s: %s%s", label(about->name, shown), line,
			item->action == CHANGE_REPLACE ? "; its clients are disconnected" : "");
	}
	if (item->action == CHANGE_REPLACE && !has_rules) {
		item->rules = access_slot_get(before->export->access);
	}
	return 0;
}

/* --- by name --------------------------------------------------------------------------------- */

static int compare_names(const void *left, const void *right)
{
	const struct served *const *a = left;
	const struct served *const *b = right;

	return strcmp((*a)->about.name, (*b)->about.name);
}

static int compare_name(const void *name, const void *entry)
{
	const struct served *const *served = entry;

	return strcmp(name, (*served)->about.name);
}

static struct served *find(const struct change *change, const char *name)
{
	const struct exports *exports = change->options.exports;

	for (uint32_t i = 0; i < exports->count; i++) {
		if (strcmp(exports->list[i]->about.name, name) == 0) {
			return exports->list[i];
		}
	}
	return NULL;
}

static int find_needed(const struct change *change, const char *name, struct served **served_out,
	struct error *error)
{
	char shown[VALUE_BYTES];

	*served_out = find(change, name);
	return *served_out != NULL
		       ? 0
		       : error_set(error, -ENOENT, "there is no %s", label(name, shown));
}

/* --- one export ------------------------------------------------------------------------------ */

int change_add(struct change *change, const struct server_export *about, struct error *error)
{
	struct access *rules;
	char shown[VALUE_BYTES];
	int rc;

	if (find(change, about->name) != NULL) {
		return error_set(error, -EEXIST, "there is already %s%s",
			about->name[0] == '\0' ? "a " : "an ", label(about->name, shown));
	}
	if (change->options.exports->count >= SERVER_EXPORTS_MAX) {
		return error_set(error, -EINVAL, "more than %d exports", SERVER_EXPORTS_MAX);
	}
	rc = server_access_common(change->options.configured, &rules, error);
	return rc < 0 ? rc : add_export(change, about, true, rules, error);
}

int change_set(struct change *change, const char *name, const struct server_settings *settings,
	struct error *error)
{
	static const char origin[] = "gmblock export set";
	struct served *served;
	struct server_export about;
	int rc = find_needed(change, name, &served, error);

	if (rc < 0) {
		return rc;
	}
	about = served->about; /* copied from */
	about.origin = (char *)(uintptr_t)origin;
	about.syntax = SERVER_SYNTAX_SET;
	return change_export(change, served, &about, settings, NULL, false, error);
}

int change_remove(struct change *change, const char *name, struct error *error)
{
	struct served *served;
	int rc = find_needed(change, name, &served, error);

	return rc < 0 ? rc : remove_export(change, served, error);
}

/* --- the configuration ----------------------------------------------------------------------- */

/* A line that is gone, or a file that is being written, lets nobody in. */
static int check_rules(const struct server_config *config, const struct served *before,
	const struct access *rules, struct error *error)
{
	struct access *had = access_slot_get(before->export->access);
	bool are_gone = had != NULL && rules == NULL;
	char shown[VALUE_BYTES];

	access_put(had);
	return are_gone ? error_set(error, -EINVAL,
				  "%s: the %s has rules of access, and here are none for it any "
				  "more; write access: [rw] if everybody may use it",
				  config->file_path, label(before->about.name, shown))
			: 0;
}

/* sorted: the table by name; seen: for each of them. */
static int configure_export(struct change *change, const struct server_config *config,
	uint32_t index, struct access *rules, struct served **sorted, bool *seen,
	struct error *error)
{
	static const struct server_settings none;
	const struct server_export *about = &config->exports[index];
	uint32_t count = change->options.exports->count;
	struct served **found = bsearch(about->name, sorted, count, sizeof(*sorted), compare_name);
	int rc;

	if (found == NULL) {
		return add_export(change, about, false, rules, error);
	}
	seen[found - sorted] = true;
	rc = check_rules(config, *found, rules, error);
	if (rc < 0) {
		access_put(rules);
		return rc;
	}
	return change_export(change, *found, about, &none, rules, true, error);
}

/* One that a command has added: the configuration knows only who may use it. */
static int configure_added(struct change *change, const struct server_config *config,
	struct served *served, struct error *error)
{
	static const struct server_settings none;
	struct access *rules;
	int rc = server_access_common(config, &rules, error);

	if (rc < 0) {
		return rc;
	}
	rc = check_rules(config, served, rules, error);
	if (rc < 0) {
		access_put(rules);
		return rc;
	}
	rc = change_export(change, served, &served->about, &none, rules, true, error);
	if (rc == 0) {
		change->items[served->item - 1].after->is_added = true;
	}
	return rc;
}

static int configure_exports(struct change *change, const struct server_config *config,
	struct access **sets, struct served **sorted, bool *seen, struct error *error)
{
	uint32_t count = change->options.exports->count;
	int rc = server_access_build(config, sets, error);

	for (uint32_t i = 0; rc == 0 && i < config->export_count; i++) {
		rc = configure_export(change, config, i, sets[i], sorted, seen, error);
		sets[i] = NULL;
	}
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		if (!seen[i]) {
			rc = sorted[i]->is_added ? configure_added(change, config, sorted[i], error)
						 : remove_export(change, sorted[i], error);
		}
	}
	return rc;
}

static bool same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool same_folders(const struct server_config *a, const struct server_config *b)
{
	bool same = a->export_folder_count == b->export_folder_count;

	for (uint32_t i = 0; same && i < a->export_folder_count; i++) {
		same = strcmp(a->export_folders[i], b->export_folders[i]) == 0;
	}
	return same;
}

static bool same_push_places(const struct server_config *a, const struct server_config *b)
{
	bool same = a->push_place_count == b->push_place_count;

	for (uint32_t i = 0; same && i < a->push_place_count; i++) {
		same = strcmp(a->push_places[i].text, b->push_places[i].text) == 0;
	}
	return same;
}

static bool has_listen(const struct server_config *config, const struct server_listen *entry)
{
	for (uint32_t i = 0; i < config->listen_count; i++) {
		const struct export_uri *uri = &config->listens[i].uri;

		if (strcmp(config->listens[i].text, entry->text) == 0 &&
			same_text(uri->socket_mode, entry->uri.socket_mode) &&
			same_text(uri->socket_group, entry->uri.socket_group) &&
			server_tls_equal(&config->listens[i].tls, &entry->tls)) {
			return true;
		}
	}
	return false;
}

static bool same_listens(const struct server_config *a, const struct server_config *b)
{
	bool same = a->listen_count == b->listen_count;

	for (uint32_t i = 0; same && i < a->listen_count; i++) {
		same = has_listen(b, &a->listens[i]);
	}
	return same;
}

/* What only a restart can change. */
static void note_rest(struct change *change, const struct server_config *config)
{
	const struct server_config *running = change->options.running;
	const struct {
		const char *key;
		bool same;
	} notes[] = {
		{ "listen", same_listens(running, config) },
		{ "limits",
			memcmp(&running->limits, &config->limits, sizeof(config->limits)) == 0 },
		{ "rates", running->rates.digest == config->rates.digest },
		{ "arena", running->arena.given == config->arena.given &&
				   running->arena.waits == config->arena.waits &&
				   running->arena.bytes == config->arena.bytes &&
				   strcmp(running->arena.bdf, config->arena.bdf) == 0 },
		{ "control", same_text(running->control_path, config->control_path) },
		{ "metrics", same_text(running->metrics, config->metrics) },
		{ "user", same_text(running->user, config->user) },
		{ "sandbox", running->sandbox == config->sandbox },
		{ "export-folder", same_folders(running, config) },
		{ "push-to", same_push_places(running, config) },
	};

	for (size_t i = 0; i < ARRAY_COUNT(notes); i++) {
		if (!notes[i].same) {
			add_line(change, "%s: changed, which takes effect at the next restart",
				notes[i].key);
		}
	}
}

int change_configure(struct change *change, const struct server_config *config, struct error *error)
{
	const struct exports *exports = change->options.exports;
	struct served **sorted = calloc(MAX(exports->count, 1U), sizeof(struct served *));
	bool *seen = calloc(MAX(exports->count, 1U), sizeof(*seen));
	struct access **sets = calloc(MAX(config->export_count, 1U), sizeof(struct access *));
	int rc;

	if (sorted == NULL || seen == NULL || sets == NULL) {
		rc = error_set(error, -ENOMEM, "no memory for a change");
	} else {
		memcpy(sorted, exports->list, exports->count * sizeof(struct served *));
		qsort(sorted, exports->count, sizeof(struct served *), compare_names);
		rc = configure_exports(change, config, sets, sorted, seen, error);
	}
	if (rc == 0) {
		note_rest(change, config);
	}
	if (sets != NULL) {
		server_access_drop(sets, config->export_count);
	}
	free(sets);
	free(seen);
	free(sorted);
	return rc;
}

/* --- opening --------------------------------------------------------------------------------- */

static bool writes_direct(const struct export *export)
{
	const struct store_info *info = store_info(export->store);

	return info->write_direct && (info->caps & STORE_CAP_WRITE) != 0;
}

static bool is_same_disk(const struct served *a, const struct served *b)
{
	struct stat one;
	struct stat other;

	if (stat(a->about.path, &one) < 0 || stat(b->about.path, &other) < 0) {
		return false;
	}
	return S_ISBLK(one.st_mode) ? S_ISBLK(other.st_mode) && one.st_rdev == other.st_rdev
				    : one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static bool goes(const struct change *change, const struct served *served)
{
	return served->item > 0 && change->items[served->item - 1].action >= CHANGE_REPLACE;
}

/* Writes around the page cache and through it keep apart when both know of each other before they
 * begin (store/file_gate.h); what is in flight now does not. */
static int check_writers(
	const struct change *change, const struct change_item *item, struct error *error)
{
	const struct exports *exports = change->options.exports;
	const struct served *other = NULL;
	char shown[VALUE_BYTES];

	for (uint32_t i = 0; writes_direct(item->after->export) && i < exports->count; i++) {
		const struct served *served = exports->list[i];

		if (!is_same_disk(served, item->after) || goes(change, served)) {
			continue;
		}
		if (writes_direct(served->export)) {
			return 0;
		}
		other = served;
	}
	if (other == NULL) {
		return 0;
	}
	error_set(error, -EBUSY,
		"its disk is that of the %s, which is used through the page cache: writes around "
		"it can be added by a restart only; use the same write-mode",
		label(other->about.name, shown));
	served_blame(&item->after->about, error);
	return -EBUSY;
}

/* The configuration that is read may have an arena that takes a restart. */
static int check_device(
	const struct change *change, const struct change_item *item, struct error *error)
{
	const struct store_info *info = store_info(item->after->export->store);

	if (change->options.device != NULL || !(info->read_device || info->write_device)) {
		return 0;
	}
	error_set(error, -EINVAL,
		"mode=device needs the memory of a PCI device, and the server was started without "
		"--arena p2pmem:BDF");
	served_blame(&item->after->about, error);
	return -EINVAL;
}

/* Waits for those that had its name or its path, and go or have gone: somebody's writes may be on
 * their way there. */
static int wait_for_old(
	const struct change *change, const struct change_item *item, struct error *error)
{
	struct export *export = item->after->export;
	const char *path = item->after->about.path;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < change->item_count; i++) {
		const struct change_item *other = &change->items[i];

		if (other == item ? item->before != NULL
				  : other->action >= CHANGE_REPLACE &&
					    strcmp(other->before->about.path, path) == 0) {
			rc = export_replaces(export, other->before->export->use, error);
		}
	}
	for (const struct gone *gone = change->options.exports->gone; rc == 0 && gone != NULL;
		gone = gone->next) {
		if (strcmp(gone->path, path) == 0) {
			rc = export_replaces(export, gone->use, error);
		}
	}
	return rc;
}

static int open_item(struct change *change, struct change_item *item, struct error *error)
{
	struct access *rules = item->rules;
	int rc;

	item->rules = NULL;
	rc = served_open(item->after, rules, error);
	if (rc == 0 && store_needs_start(item->after->export->store)) {
		rc = error_set(error, -ENOTSUP,
			"its disk has to be started, which happens with the server only: name it "
			"in the configuration and restart the server");
		served_blame(&item->after->about, error);
	}
	if (rc == 0) {
		rc = check_device(change, item, error);
	}
	if (rc == 0) {
		rc = check_writers(change, item, error);
	}
	if (rc < 0) {
		return rc;
	}
	served_choose_epoch(item->after, item->before);
	rc = wait_for_old(change, item, error);
	if (rc < 0) {
		return rc;
	}
	device_probe(change->options.device, &item->after->export, 1);
	return 0;
}

int change_open(struct change *change, struct error *error)
{
	const struct exports *exports = change->options.exports;
	int rc = exports_create(exports->count + change->item_count, &change->next, error);

	for (uint32_t i = 0; rc == 0 && i < change->item_count; i++) {
		struct change_item *item = &change->items[i];

		if (item->action == CHANGE_ADD || item->action == CHANGE_REPLACE) {
			rc = open_item(change, item, error);
		}
		if (rc == 0 && item->action >= CHANGE_REPLACE) {
			rc = gone_create(item->before, &item->gone, error);
		}
		change->closing_count += item->action >= CHANGE_REPLACE;
	}
	return rc;
}

/* --- preparing ------------------------------------------------------------------------------- */

/* A few items on one reactor. */
struct step {
	struct change *change;
	uint32_t first;
	uint32_t done; /* items from there that were looked at */
	int result;
	struct error *error;
};

static struct export *new_export(const struct change_item *item)
{
	return item->action == CHANGE_ADD || item->action == CHANGE_REPLACE ? item->after->export
									    : NULL;
}

static void prepare_step(struct engine *engine, void *context)
{
	struct step *step = context;
	struct change *change = step->change;

	while (step->result == 0 && step->done < PREPARE_STEP &&
		step->first + step->done < change->item_count) {
		struct export *export = new_export(&change->items[step->first + step->done]);

		if (export != NULL) {
			step->result = engine_export_prepare(engine, export, step->error);
		}
		step->done += step->result == 0;
	}
}

static int prepare_reactor(struct change *change, struct reactor *reactor, struct error *error)
{
	struct step step = { .change = change, .error = error };
	int rc = 0;

	while (rc == 0 && step.first < change->item_count) {
		step.done = 0;
		rc = reactor_call(reactor, prepare_step, &step);
		if (rc < 0) {
			error_set(error, rc, "%s", server_call_error(rc));
			break;
		}
		step.first += step.done;
		rc = step.result;
	}
	return rc;
}

static void drop_prepared(struct engine *engine, void *context)
{
	struct change *change = context;

	for (uint32_t i = 0; i < change->item_count; i++) {
		struct export *export = new_export(&change->items[i]);

		if (export != NULL && engine_export_measured(engine, export) != NULL) {
			engine_export_remove(engine, export, 0);
		}
	}
	change_put(change);
}

static void post_all(
	struct change *change, uint32_t count, void (*run)(struct engine *engine, void *context))
{
	for (uint32_t i = 0; i < count; i++) {
		change->tasks[i].run = run;
		change->tasks[i].context = change;
		/* Relaxed: the caller has a reference. */
		atomic_fetch_add_explicit(&change->references, 1, memory_order_relaxed);
		reactor_post(change->options.reactors[i], &change->tasks[i]);
	}
}

/* Whether the reactors have something to prepare. If not, one that hangs cannot keep rights from
 * being withdrawn. */
static bool has_new_export(const struct change *change)
{
	for (uint32_t i = 0; i < change->item_count; i++) {
		if (new_export(&change->items[i]) != NULL) {
			return true;
		}
	}
	return false;
}

int change_prepare(struct change *change, struct error *error)
{
	uint32_t touched = 0;
	int rc = 0;

	while (rc == 0 && has_new_export(change) && touched < change->options.reactor_count) {
		rc = prepare_reactor(change, change->options.reactors[touched], error);
		touched++;
	}
	if (rc < 0) {
		post_all(change, touched, drop_prepared);
	}
	return rc;
}

/* --- the commit ------------------------------------------------------------------------------ */

static void commit_items(struct engine *engine, void *context)
{
	struct change *change = context;

	for (uint32_t i = 0; i < change->item_count; i++) {
		const struct change_item *item = &change->items[i];

		if (item->action >= CHANGE_REPLACE) {
			engine_export_remove(engine, item->old, change->options.deadline_ns);
		}
		if (item->new != NULL) {
			engine_export_show(engine, item->new);
		}
		if (item->action == CHANGE_UPDATE && item->tells_limits) {
			engine_export_limits_changed(engine, item->old);
		}
	}
	change_put(change);
}

static void update(struct change_item *item)
{
	struct export *export = item->before->export;
	struct server_export *before = &item->before->about;
	struct server_export *after = &item->after->about;
	struct server_export swapped;

	if (!server_export_same(before, after, "rate")) {
		rate_set(&export->rate, &after->rate, clock_now_ns());
	}
	if (!server_export_same(before, after, "max-memory")) {
		atomic_store_explicit(&export->memory_max, after->memory_max, memory_order_relaxed);
	}
	if (!server_export_same(before, after, "max-connections")) {
		atomic_store_explicit(
			&export->connections_max, after->connections_max, memory_order_relaxed);
	}
	if (!server_export_same(before, after, "description")) {
		item->description = export_set_description(export, after->description);
		after->description = NULL;
	}
	swapped = *before;
	*before = *after;
	*after = swapped;
}

/* The entry of the new table, or NULL. */
static struct served *commit_item(struct change *change, struct change_item *item)
{
	struct served *after = item->after;
	struct served *before = item->before;

	if (before != NULL) {
		item->old = before->export;
	}
	if (item->action < CHANGE_REPLACE && before != NULL) {
		if (item->has_rules) {
			export_set_access(before->export, item->rules);
			item->rules = NULL;
			before->is_added = after->is_added;
		}
		if (item->action == CHANGE_UPDATE) {
			update(item);
		}
		return before;
	}
	if (before != NULL) { /* the engines have references */
		exports_remember(&change->next, item->gone);
		item->gone = NULL;
		before->export->closed = change->options.closed;
		before->export->closed_context = change->options.context;
		served_free(before);
		item->before = NULL;
	}
	if (after != NULL) {
		item->new = after->export;
		item->after = NULL;
	}
	return after;
}

void change_commit(struct change *change, struct exports *exports)
{
	struct exports *next = &change->next;

	next->gone = exports->gone;
	/* Those that stay keep their places. */
	for (uint32_t i = 0; i < exports->count; i++) {
		struct served *served = exports->list[i];

		if (served->item > 0) {
			served = commit_item(change, &change->items[served->item - 1]);
		}
		if (served != NULL) {
			exports_append(next, served);
		}
	}
	for (uint32_t i = 0; i < change->item_count; i++) {
		if (change->items[i].action == CHANGE_ADD) {
			exports_append(next, commit_item(change, &change->items[i]));
		}
	}
	exports_free(exports);
	*exports = *next;
	*next = (struct exports){ 0 };
	post_all(change, change->options.reactor_count, commit_items);
}
