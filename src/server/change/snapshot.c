// SPDX-License-Identifier: Apache-2.0
#include "server/change/snapshot.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"

enum { SHOWN_BYTES = 120 };

/* "export \"x\"" */
static const char *change_snapshot_label(const struct served_export *served, char out[SHOWN_BYTES])
{
	const char *name = served->about.name;
	char shown[SHOWN_BYTES - 16];

	snprintf(out, SHOWN_BYTES, "export \"%s\"",
		log_escape(shown, sizeof(shown), name, strlen(name)));
	return out;
}

/* Returns the export that serves the snapshot, or NULL. */
static struct served_export *find_snapshot(
	const struct exports *exports, const struct served_export *parent, const char *snapshot)
{
	for (uint32_t i = 0; i < exports->count; i++) {
		struct served_export *served = exports->list[i];

		if (served->parent == parent->export &&
			strcmp(strrchr(served->about.name, '@') + 1, snapshot) == 0) {
			return served;
		}
	}
	return NULL;
}

/* Returns whether the snapshot exists. about_out: NULL, or receives the store's description of
 * it. */
static bool has_snapshot(
	const struct served_export *parent, const char *snapshot, struct store_snapshot *about_out)
{
	struct store_snapshot list[STORE_SNAPSHOTS_MAX];
	uint32_t count = store_snapshots(parent->export->store, list);

	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(list[i].name, snapshot) == 0) {
			if (about_out != NULL) {
				*about_out = list[i];
			}
			return true;
		}
	}
	return false;
}

/* --- the store ------------------------------------------------------------------------------- */

/* A request to a store on its reactor. Another thread waits for its result. */
struct ask {
	struct reactor_task task;
	struct store_snapshot_request request;
	struct store *store;
	struct engine *engine;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_done; /* protected by the lock */
};

static void change_snapshot_asked(struct store_snapshot_request *request)
{
	struct ask *ask = container_of(request, struct ask, request);

	engine_release(ask->engine);
	pthread_mutex_lock(&ask->lock);
	ask->is_done = true;
	pthread_cond_signal(&ask->changed);
	pthread_mutex_unlock(&ask->lock);
}

static void change_snapshot_begin(struct engine *engine, void *context)
{
	struct ask *ask = context;

	ask->engine = engine;
	engine_hold(engine);
	store_snapshot_ask(ask->store, &ask->request);
}

/* Returns the reactor on which the store was started. */
static struct reactor *reactor_of(const struct reload_options *options, const struct export *export)
{
	for (uint32_t i = 0; i < options->reactor_count; i++) {
		if (reactor_ring(options->reactors[i]) == export->start.ring) {
			return options->reactors[i];
		}
	}
	return NULL;
}

static int ask_store(const struct reload_options *options, struct reload *reload,
	const struct served_export *parent, enum store_snapshot_action action, const char *snapshot,
	struct error *error)
{
	struct ask ask = {
		.task = { .run = change_snapshot_begin },
		.request = { .action = action, .done = change_snapshot_asked },
		.store = parent->export->store,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER,
	};
	char shown[SHOWN_BYTES];

	if (strlen(snapshot) >= sizeof(ask.request.snapshot.name)) {
		return error_set(error, -EINVAL, "a snapshot name must have at most %d bytes",
			STORE_SNAPSHOT_NAME_BYTES - 1);
	}
	memcpy(ask.request.snapshot.name, snapshot, strlen(snapshot) + 1);
	ask.request.snapshot.created_s = (uint64_t)time(NULL);
	ask.task.context = &ask;
	if (!reload_post(reload, reactor_of(options, parent->export), &ask.task)) {
		return error_set(error, -ESHUTDOWN, "the server is stopping");
	}
	pthread_mutex_lock(&ask.lock);
	while (!ask.is_done) {
		pthread_cond_wait(&ask.changed, &ask.lock);
	}
	pthread_mutex_unlock(&ask.lock);
	return ask.request.result == 0
		       ? 0
		       : error_set(error, ask.request.result, "%s %s",
				 change_snapshot_label(parent, shown), ask.request.error.text);
}

/* --- changes --------------------------------------------------------------------------------- */

static int find_parent(const struct exports *exports, const char *name,
	struct served_export **parent_out, struct error *error)
{
	int rc = exports_need(exports, name, parent_out, error);
	char shown[SHOWN_BYTES];

	if (rc == 0 && !store_has_snapshots((*parent_out)->export->store)) {
		rc = error_set(error, -EOPNOTSUPP,
			"%s cannot have snapshots; only flash stores (flash:PATH) support them",
			change_snapshot_label(*parent_out, shown));
	}
	return rc;
}

static int change_snapshot_create(const struct reload_options *options,
	struct reload_request *request, const struct served_export *parent, struct change *change,
	struct error *error)
{
	const struct served_export *dropped =
		find_snapshot(options->exports, parent, request->snapshot);
	char shown[SHOWN_BYTES];
	int rc;

	if (dropped != NULL && !has_snapshot(parent, request->snapshot, NULL)) {
		return error_set(error, -EEXIST,
			"the snapshot of %s was dropped and its clients are being disconnected; "
			"try again",
			change_snapshot_label(dropped, shown));
	}
	rc = ask_store(
		options, request->reload, parent, STORE_SNAPSHOT_CREATE, request->snapshot, error);
	if (rc == 0) {
		rc = change_add_snapshot(change, parent, request->snapshot, NULL, error);
		if (rc < 0) {
			snapshot_undo(options, request);
		}
	}
	return rc;
}

static int delete_one(const struct reload_options *options, struct reload_request *request,
	const struct served_export *parent, struct change *change, struct error *error)
{
	const struct served_export *served =
		find_snapshot(options->exports, parent, request->snapshot);
	/* Relaxed, because the number is only for a message. */
	uint32_t clients = served == NULL ? 0
					  : atomic_load_explicit(&served->export->connections,
						    memory_order_relaxed);
	struct store_snapshot about = { 0 };
	bool is_there = has_snapshot(parent, request->snapshot, &about);
	char shown[SHOWN_BYTES];
	int rc = 0;

	if (about.is_temporary && request->deadline_ns > 0) {
		return error_set(error, -EBUSY,
			"a push uses the snapshot '%s' of %s; end the push with --now or 'gmblock "
			"push --cancel'",
			request->snapshot, change_snapshot_label(parent, shown));
	}
	if (clients > 0 && request->deadline_ns > 0) {
		return error_set(error, -EBUSY,
			"%s is used by %u connection%s (see 'gmblock stats'); --now closes them",
			change_snapshot_label(served, shown), clients, clients == 1 ? "" : "s");
	}
	if (served == NULL || is_there) {
		rc = ask_store(options, request->reload, parent, STORE_SNAPSHOT_DELETE,
			request->snapshot, error);
	}
	return rc == 0 && served != NULL ? change_remove(change, served->about.name, error) : rc;
}

int snapshot_change(const struct reload_options *options, struct reload_request *request,
	struct change *change, struct error *error)
{
	struct served_export *parent;
	int rc = find_parent(options->exports, request->name, &parent, error);

	if (rc < 0) {
		return rc;
	}
	return request->action == REQUEST_SNAPSHOT_CREATE
		       ? change_snapshot_create(options, request, parent, change, error)
		       : delete_one(options, request, parent, change, error);
}

void snapshot_undo(const struct reload_options *options, struct reload_request *request)
{
	const struct served_export *parent = exports_find(options->exports, request->name);
	struct error error;

	if (ask_store(options, request->reload, parent, STORE_SNAPSHOT_DELETE, request->snapshot,
		    &error) < 0) {
		log_warning("%s: the snapshot '%s' was not deleted, and is not served: %s",
			request->name, request->snapshot, error.text);
	}
}

/* --- dropped snapshots ----------------------------------------------------------------------- */

/* Returns the next export, from *index_inout on, of a snapshot that its store has dropped; NULL at
 * the end. */
static const struct served_export *next_dropped(
	const struct exports *exports, uint32_t *index_inout)
{
	while (*index_inout < exports->count) {
		const struct served_export *served = exports->list[(*index_inout)++];
		const char *snapshot = strrchr(served->about.name, '@');
		struct store_snapshot list[STORE_SNAPSHOTS_MAX];
		uint32_t count;
		bool is_there = served->parent == NULL;

		count = is_there ? 0 : store_snapshots(served->parent->store, list);
		for (uint32_t i = 0; i < count; i++) {
			is_there |= strcmp(list[i].name, snapshot + 1) == 0;
		}
		if (!is_there) {
			return served;
		}
	}
	return NULL;
}

bool snapshots_were_dropped(const struct exports *exports)
{
	uint32_t index = 0;

	return next_dropped(exports, &index) != NULL;
}

int snapshots_remove_dropped(
	const struct exports *exports, struct change *change, struct error *error)
{
	const struct served_export *dropped;
	uint32_t index = 0;
	int rc = 0;

	while (rc == 0 && (dropped = next_dropped(exports, &index)) != NULL) {
		rc = change_remove(change, dropped->about.name, error);
	}
	return rc;
}

/* --- all snapshots --------------------------------------------------------------------------- */

static json_t *snapshot_json(const struct exports *exports, const struct served_export *parent,
	const struct store_snapshot *snapshot)
{
	const struct served_export *served = find_snapshot(exports, parent, snapshot->name);
	json_int_t clients = served == NULL
				     /* A temporary snapshot is not served, but the job that took it
				      * counts as a connection. */
				     ? snapshot->is_temporary
				     : (json_int_t)atomic_load_explicit(
					       &served->export->connections, memory_order_relaxed);

	return json_pack("{s:s, s:s, s:I, s:s?, s:I}", "export", parent->about.name, "name",
		snapshot->name, "created", (json_int_t)snapshot->created_s, "served_as",
		served != NULL ? served->about.name : NULL, "connections", clients);
}

int snapshots_json(
	const struct exports *exports, const char *name, json_t **all_out, struct error *error)
{
	struct served_export *only = NULL;
	int rc = name != NULL ? exports_need(exports, name, &only, error) : 0;
	char shown[SHOWN_BYTES];
	json_t *all;

	if (rc < 0) {
		return rc;
	}
	if (only != NULL && only->parent != NULL) {
		return error_set(error, -EOPNOTSUPP, "%s is a snapshot and has no snapshots",
			change_snapshot_label(only, shown));
	}
	all = json_array();
	for (uint32_t i = 0; i < exports->count; i++) {
		const struct served_export *served = exports->list[i];
		struct store_snapshot list[STORE_SNAPSHOTS_MAX];
		uint32_t count = only == NULL || served == only
					 ? store_snapshots(served->export->store, list)
					 : 0;

		for (uint32_t k = 0; k < count; k++) {
			json_array_append_new(all, snapshot_json(exports, served, &list[k]));
		}
	}
	*all_out = all;
	return 0;
}

/* Returns the settings that the snapshot had in the process that this one replaced, or NULL. */
static const struct server_export *find_keys(const struct change_options *options,
	const struct served_export *parent, const char *snapshot)
{
	const struct server_config *config = options->running;
	size_t bytes = strlen(parent->about.name);

	for (uint32_t i = 0; i < config->snapshot_count; i++) {
		const char *name = config->snapshots[i].name;

		if (strncmp(name, parent->about.name, bytes) == 0 && name[bytes] == '@' &&
			strcmp(name + bytes + 1, snapshot) == 0) {
			return &config->snapshots[i];
		}
	}
	return NULL;
}

static void serve_snapshot(const struct change_options *options, const struct served_export *parent,
	const char *snapshot, struct exports *exports)
{
	struct change *change = NULL;
	struct error error;
	char shown[SHOWN_BYTES];
	int rc = change_create(options, &change, &error);

	if (rc == 0) {
		rc = change_add_snapshot(
			change, parent, snapshot, find_keys(options, parent, snapshot), &error);
	}
	rc = rc ?: change_open(change, &error);
	rc = rc ?: change_prepare(change, &error);
	if (rc == 0) {
		change_commit(change, exports);
	} else {
		log_warning("the snapshot '%s' of %s is not served: %s", snapshot,
			change_snapshot_label(parent, shown), error.text);
	}
	change_put(change);
}

bool snapshots_serve(const struct change_options *options, struct exports *exports)
{
	uint32_t before = exports->count;

	for (uint32_t i = 0; i < before; i++) {
		const struct served_export *parent = exports->list[i];
		struct store_snapshot list[STORE_SNAPSHOTS_MAX];
		uint32_t count = store_snapshots(parent->export->store, list);

		for (uint32_t k = 0; k < count; k++) {
			if (!list[k].is_temporary &&
				find_snapshot(exports, parent, list[k].name) == NULL) {
				serve_snapshot(options, parent, list[k].name, exports);
			}
		}
	}
	return exports->count > before;
}
