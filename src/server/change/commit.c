// SPDX-License-Identifier: Apache-2.0
/* Carries out a change: opens its disks, prepares the engines and commits. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/change/change_private.h"

enum { PREPARE_STEP = 16 }; /* exports that a reactor prepares before it handles other work */

/* --- opening --------------------------------------------------------------------------------- */

static bool writes_direct(const struct export *export)
{
	const struct store_info *info = store_info(export->store);

	return info->write_direct && (info->caps & STORE_CAP_WRITE) != 0;
}

static bool commit_is_same_disk(const struct served_export *a, const struct served_export *b)
{
	struct stat one;
	struct stat other;

	if (stat(a->about.path, &one) < 0 || stat(b->about.path, &other) < 0) {
		return false;
	}
	return S_ISBLK(one.st_mode) ? S_ISBLK(other.st_mode) && one.st_rdev == other.st_rdev
				    : one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static bool goes(const struct change *change, const struct served_export *served)
{
	return served->item > 0 && change->items[served->item - 1].action >= CHANGE_REPLACE;
}

/* Rejects an export that would write directly to a disk to which other exports write only through
 * the page cache. Two stores can combine both kinds of writes only if they are registered with each
 * other before the writes start (store/file_gate.h), and writes through the cache may already be in
 * flight. */
static int check_writers(
	const struct change *change, const struct change_item *item, struct error *error)
{
	const struct exports *exports = change->options.exports;
	const struct served_export *other = NULL;

	for (uint32_t i = 0; writes_direct(item->after->export) && i < exports->count; i++) {
		const struct served_export *served = exports->list[i];

		if (!commit_is_same_disk(served, item->after) || goes(change, served)) {
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
		"the %s uses the same disk through the page cache, and direct writes cannot be "
		"added to that disk without a restart; use the same write-mode",
		change_label(other->about.name));
	served_export_blame(&item->after->about, error);
	return -EBUSY;
}

/* Rejects an export that needs device memory if the server was started without it. Adding device
 * memory to the configuration needs a restart. */
static int commit_check_device(
	const struct change *change, const struct change_item *item, struct error *error)
{
	const struct store_info *info = store_info(item->after->export->store);

	if (change->options.device != NULL || !(info->read_device || info->write_device)) {
		return 0;
	}
	error_set(error, -EINVAL,
		"mode=device needs the memory of a PCI device; start the server with --arena "
		"p2pmem:BDF");
	served_export_blame(&item->after->about, error);
	return -EINVAL;
}

/* Makes clients of the new export wait until removed exports with the same name or path (also from
 * earlier changes) are no longer in use, because writes to that disk may still be in flight. */
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
	for (const struct removed_export *removed = change->options.exports->removed;
		rc == 0 && removed != NULL; removed = removed->next) {
		if (strcmp(removed->path, path) == 0) {
			rc = export_replaces(export, removed->use, error);
		}
	}
	return rc;
}

static int open_item(struct change *change, struct change_item *item, struct error *error)
{
	struct access *rules = item->rules;
	int rc;

	item->rules = NULL;
	/* Check this before opening the disk. Opening would log warnings, which are useless if the
	 * export is rejected. */
	if (item->after->parent == NULL && store_path_needs_start(item->after->about.path)) {
		access_put(rules);
		rc = error_set(error, -ENOTSUP,
			"the disk can only be opened when the server starts; add the export to the "
			"configuration, then restart the server or run 'gmblock upgrade'");
		served_export_blame(&item->after->about, error);
		return rc;
	}
	rc = served_export_open(item->after, rules, error);
	rc = rc ?: commit_check_device(change, item, error);
	rc = rc ?: check_writers(change, item, error);
	if (rc < 0) {
		return rc;
	}
	served_export_choose_epoch(item->after, item->before);
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
			rc = removed_export_create(item->before, &item->removed, error);
		}
		change->closing_count += item->action >= CHANGE_REPLACE;
	}
	return rc;
}

/* --- preparing ------------------------------------------------------------------------------- */

/* A batch of items that one reactor prepares. */
struct step {
	struct change *change;
	uint32_t first;
	uint32_t done; /* items processed, counted from first */
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
		rc = reactors_call(&reactor, 1, prepare_step, &step, error) ?: step.result;
		step.first += step.done;
	}
	return rc;
}

/* Undoes engine_export_prepare() on one reactor. Skips exports that were not prepared there, for
 * which engine_export_measured() returns NULL. */
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
		/* Relaxed, because the caller's own reference keeps the change alive. */
		atomic_fetch_add_explicit(&change->references, 1, memory_order_relaxed);
		reactor_post(change->options.reactors[i], &change->tasks[i]);
	}
}

/* Returns whether the reactors have an export to prepare. If not, they are not called, because a
 * hanging reactor would delay the withdrawal of rights. */
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
		if (item->action == CHANGE_UPDATE) {
			engine_export_limits_changed(engine, item->old);
		}
	}
	if (change->rates != NULL) {
		engine_identity_limits_changed(engine);
	}
	change_put(change);
}

static void update(struct change_item *item)
{
	struct export *export = item->before->export;
	struct server_export *before = &item->before->about;
	struct server_export *after = &item->after->about;
	struct server_export swapped;

	/* rate_set() removes all bookings, so it is called only for a rate that differs. */
	if (memcmp(&before->rate, &after->rate, sizeof(after->rate)) != 0) {
		rate_set(&export->rate, &after->rate, clock_now_ns());
	}
	atomic_store_explicit(&export->memory_max, after->memory_max, memory_order_relaxed);
	atomic_store_explicit(
		&export->connections_max, after->connections_max, memory_order_relaxed);
	item->description = export_set_description(export, item->description);
	/* The entry stays in the table and gets the new settings. The old settings are freed with
	 * the change. */
	swapped = *before;
	*before = *after;
	*after = swapped;
}

/* Puts one item into effect. Returns the entry for the new table, or NULL if the export is
 * removed. */
static struct served_export *commit_item(struct change *change, struct change_item *item)
{
	struct served_export *after = item->after;
	struct served_export *before = item->before;

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
	if (before != NULL) { /* the old entry is freed; its export lives until no engine uses it */
		exports_remember(&change->next, item->removed);
		item->removed = NULL;
		before->export->closed = change->options.closed;
		before->export->closed_context = change->options.context;
		served_export_free(before);
		item->before = NULL;
	}
	if (after != NULL) {
		item->new = after->export;
		item->after = NULL;
	}
	return after;
}

static void commit_rates(const struct change *change)
{
	uint32_t count = change->rates != NULL ? change->rates->conditions.rule_count : 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct rate_rule *rule = &change->rates->rules[i];
		struct rate_rule now;
		uint32_t identities;

		rate_rules_look(change->options.rate_rules, i, &now, &identities);
		if (memcmp(&now.limits, &rule->limits, sizeof(now.limits)) != 0) {
			rate_rules_set(
				change->options.rate_rules, i, &rule->limits, clock_now_ns());
		}
		rate_rules_set_memory(change->options.rate_rules, i, rule->memory_max);
	}
}

void change_commit(struct change *change, struct exports *exports)
{
	struct exports *next = &change->next;

	next->removed = exports->removed;
	/* Entries that stay keep their order. */
	for (uint32_t i = 0; i < exports->count; i++) {
		struct served_export *served = exports->list[i];

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
	commit_rates(change);
	post_all(change, change->options.reactor_count, commit_items);
}
