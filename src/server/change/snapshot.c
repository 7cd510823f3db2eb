// SPDX-License-Identifier: Apache-2.0
#include "server/change/snapshot.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "server/change/change_private.h"
#include "server/change/job.h"

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
	const struct export *parent, const char *snapshot, struct store_snapshot *about_out)
{
	struct store_snapshot list[STORE_SNAPSHOTS_MAX];
	uint32_t count = store_snapshots(parent->store, list);

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
static struct reactor *reactor_of(const struct jobs_options *options, const struct export *export)
{
	for (uint32_t i = 0; i < options->reactor_count; i++) {
		if (reactor_ring(options->reactors[i]) == export->start.ring) {
			return options->reactors[i];
		}
	}
	return NULL;
}

static int ask_store(const struct job *job, const struct served_export *parent,
	enum store_snapshot_action action, struct error *error)
{
	struct ask ask = {
		.task = { .run = change_snapshot_begin },
		.request = { .action = action, .done = change_snapshot_asked },
		.store = parent->export->store,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER,
	};

	if (strlen(job->snapshot) >= sizeof(ask.request.snapshot.name)) {
		return error_set(error, -EINVAL, "a snapshot name must have at most %d bytes",
			STORE_SNAPSHOT_NAME_BYTES - 1);
	}
	memcpy(ask.request.snapshot.name, job->snapshot, strlen(job->snapshot) + 1);
	ask.request.snapshot.created_s = (uint64_t)time(NULL);
	ask.task.context = &ask;
	if (!jobs_post(job->jobs, reactor_of(job->options, parent->export), &ask.task)) {
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
				 change_label(parent->about.name), ask.request.error.text);
}

/* --- jobs ------------------------------------------------------------------------------------ */

static int take_snapshot(struct job *job, const json_t *arguments, struct error *error)
{
	const char *export = json_string_value(json_object_get(arguments, "export"));
	const char *name = json_string_value(json_object_get(arguments, "name"));

	if (export == NULL || name == NULL) {
		return error_set(error, -EINVAL,
			"the arguments \"export\" and \"name\" (text) are required");
	}
	if (json_is_true(json_object_get(arguments, "now"))) {
		job->deadline_ns = 0;
	}
	job->name = strdup(export);
	job->snapshot = strdup(name);
	return job->name != NULL && job->snapshot != NULL ? 0 : error_oom(error);
}

/* Begins the change, and finds the exports of the disk and of the snapshot, which may be
 * NULL. */
static int begin_change(struct job *job, struct served_export **parent_out,
	struct served_export **served_out, struct error *error)
{
	const struct exports *exports = job->options->exports;
	int rc = job_change(job, error) ?: exports_need(exports, job->name, parent_out, error);

	if (rc == 0 && !store_has_snapshots((*parent_out)->export->store)) {
		rc = error_set(error, -EOPNOTSUPP,
			"%s cannot have snapshots; only flash stores (flash:PATH) support them",
			change_label((*parent_out)->about.name));
	}
	if (rc == 0) {
		*served_out = find_snapshot(exports, *parent_out, job->snapshot);
	}
	return rc;
}

/* Makes the store create the snapshot durably. If its export cannot be opened, the snapshot is
 * deleted. */
static int create_run(struct job *job, struct error *error)
{
	struct served_export *parent;
	struct served_export *dropped;
	struct error undone;
	int rc = begin_change(job, &parent, &dropped, error);

	if (rc == 0 && dropped != NULL && !has_snapshot(parent->export, job->snapshot, NULL)) {
		rc = error_set(error, -EEXIST,
			"%s was a snapshot that was dropped, and its clients are still being "
			"disconnected; try again",
			change_label(dropped->about.name));
	}
	rc = rc ?: ask_store(job, parent, STORE_SNAPSHOT_CREATE, error);
	if (rc < 0) {
		return rc;
	}
	rc = change_add_snapshot(job->change, parent, job->snapshot, NULL, error)
		     ?: job_open(job, error);
	if (rc < 0 && ask_store(job, parent, STORE_SNAPSHOT_DELETE, &undone) < 0) {
		log_warning("%s: the snapshot '%s' was not deleted, and is not served: %s",
			quote(job->name), quote(job->snapshot), undone.text);
	}
	return rc;
}

static int create_commit(struct job *job, struct error *error)
{
	int rc = job_commit(job, error);

	if (rc < 0) {
		error_prefix(error, "the snapshot was taken, but is not served");
	}
	return rc;
}

/* Makes the store delete the snapshot durably. */
static int delete_run(struct job *job, struct error *error)
{
	struct served_export *parent;
	struct served_export *served;
	struct store_snapshot about = { 0 };
	uint32_t clients = 0;
	bool is_there;
	int rc = begin_change(job, &parent, &served, error);

	if (rc < 0) {
		return rc;
	}
	is_there = has_snapshot(parent->export, job->snapshot, &about);
	if (served != NULL) { /* relaxed, because the number is only for a message */
		clients = atomic_load_explicit(&served->export->connections, memory_order_relaxed);
	}
	if (about.is_temporary && job->deadline_ns > 0) {
		return error_set(error, -EBUSY,
			"a push uses the snapshot '%s' of %s; end the push with --now or 'gmblock "
			"push --cancel'",
			job->snapshot, change_label(parent->about.name));
	}
	if (clients > 0 && job->deadline_ns > 0) {
		return error_set(error, -EBUSY,
			"%s is used by %u connection%s (see 'gmblock stats'); with --now, the "
			"snapshot is deleted nevertheless and its clients are disconnected",
			change_label(served->about.name), clients, clients == 1 ? "" : "s");
	}
	if (served == NULL || is_there) {
		rc = ask_store(job, parent, STORE_SNAPSHOT_DELETE, error);
	}
	if (rc == 0 && served != NULL) {
		rc = change_remove(job->change, served->about.name, error);
	}
	return rc ?: job_open(job, error);
}

static const struct job_kind job_create_snapshot = {
	.action = "create",
	.take = take_snapshot,
	.run = create_run,
	.commit = create_commit,
	.finish = job_log,
};

static const struct job_kind job_delete_snapshot = {
	.action = "delete",
	.take = take_snapshot,
	.run = delete_run,
	.commit = job_commit,
	.finish = job_log,
};

static const struct job_kind *const snapshot_kinds[] = { &job_create_snapshot, &job_delete_snapshot,
	NULL };

/* --- dropped snapshots ----------------------------------------------------------------------- */

/* Finds the next export of a snapshot that its store has deleted for lack of space. The search
 * begins at *index_inout. Returns NULL at the end. */
static const struct served_export *next_dropped(
	const struct exports *exports, uint32_t *index_inout)
{
	while (*index_inout < exports->count) {
		const struct served_export *served = exports->list[(*index_inout)++];

		if (served->parent != NULL &&
			!has_snapshot(served->parent, strrchr(served->about.name, '@') + 1, NULL)) {
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

static int drop_run(struct job *job, struct error *error)
{
	const struct served_export *dropped;
	uint32_t index = 0;
	int rc = job_change(job, error);

	while (rc == 0 && (dropped = next_dropped(job->options->exports, &index)) != NULL) {
		rc = change_remove(job->change, dropped->about.name, error);
	}
	return rc ?: job_open(job, error);
}

const struct job_kind job_drop_exports = {
	.run = drop_run,
	.commit = job_commit,
	.finish = job_log,
};

/* --- the command ----------------------------------------------------------------------------- */

static json_t *snapshot_json(const struct exports *exports, const struct served_export *parent,
	const struct store_snapshot *snapshot)
{
	const struct served_export *served = find_snapshot(exports, parent, snapshot->name);
	json_int_t clients = served == NULL
				     /* A temporary snapshot is not served, but the push that took
				      * it counts as a connection. */
				     ? snapshot->is_temporary
				     : (json_int_t)atomic_load_explicit(
					       &served->export->connections, memory_order_relaxed);

	return json_pack("{s:s, s:s, s:I, s:s?, s:I}", "export", parent->about.name, "name",
		snapshot->name, "created", (json_int_t)snapshot->created_s, "served_as",
		served != NULL ? served->about.name : NULL, "connections", clients);
}

/* Lists the snapshots of the named export, or of all exports if name is NULL, as an array that the
 * caller owns. -ENOENT: there is no such export. -EOPNOTSUPP: the export is itself a snapshot. */
static int snapshots_json(
	const struct exports *exports, const char *name, json_t **all_out, struct error *error)
{
	struct served_export *only = NULL;
	int rc = name != NULL ? exports_need(exports, name, &only, error) : 0;
	json_t *all;

	if (rc < 0) {
		return rc;
	}
	if (only != NULL && only->parent != NULL) {
		return error_set(error, -EOPNOTSUPP,
			"%s is a snapshot, and a snapshot cannot have snapshots",
			change_label(only->about.name));
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

static void begin_snapshot(void *context, struct control_client *client, const json_t *arguments)
{
	const char *action = json_string_value(json_object_get(arguments, "action"));

	if (action != NULL && strcmp(action, "list") == 0) {
		const char *name = json_string_value(json_object_get(arguments, "export"));
		struct error error;
		json_t *all = NULL;
		int rc = snapshots_json(jobs_options(context)->exports, name, &all, &error);

		if (rc < 0) {
			control_fail(client, rc, error.text);
		} else {
			control_reply(client, json_pack("{s:o}", "snapshots", all));
		}
	} else if (!jobs_add_action(context, client, snapshot_kinds, arguments)) {
		control_fail(client, -EINVAL, "\"action\" must be create, delete or list");
	}
}

const struct control_command snapshot_command = {
	.name = "snapshot",
	.right = CONTROL_CHANGE,
	.begin = begin_snapshot,
	.end = jobs_forget_client,
};

/* --- the start ------------------------------------------------------------------------------- */

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
			change_label(parent->about.name), error.text);
	}
	change_put(change);
}

void snapshots_serve(const struct change_options *options, struct exports *exports)
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
}
