// SPDX-License-Identifier: Apache-2.0
#include "engine/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SHOWN_BYTES = 120 };

static const uint32_t snapshot_edges[ENGINE_SNAPSHOT_STATE_COUNT] = {
	[ENGINE_SNAPSHOT_NONE] = BIT(ENGINE_SNAPSHOT_MAKING),
	[ENGINE_SNAPSHOT_MAKING] = BIT(ENGINE_SNAPSHOT_MADE) | BIT(ENGINE_SNAPSHOT_NONE),
	[ENGINE_SNAPSHOT_MADE] = BIT(ENGINE_SNAPSHOT_DELETING),
	[ENGINE_SNAPSHOT_DELETING] = BIT(ENGINE_SNAPSHOT_DELETED),
	[ENGINE_SNAPSHOT_DELETED] = BIT(ENGINE_SNAPSHOT_NONE),
};

static void engine_snapshot_set_state(
	struct engine_snapshot *snapshot, enum engine_snapshot_state state)
{
	GMB_ASSERT((snapshot_edges[snapshot->state] & BIT(state)) != 0);
	snapshot->state = state;
}

/* Formats "export \"x\"" for messages. Returns out. */
static const char *engine_snapshot_label(
	const struct engine_snapshot *snapshot, char out[SHOWN_BYTES])
{
	const struct export *export = snapshot->of->export;
	char shown[SHOWN_BYTES - 16];

	snprintf(out, SHOWN_BYTES, "export \"%s\"",
		log_escape(shown, sizeof(shown), export->name, export->name_bytes));
	return out;
}

/* Called on the ring on which the store was started, which can belong to another engine. */
static void engine_snapshot_answered(struct store_snapshot_request *request)
{
	struct engine_snapshot *snapshot = container_of(request, struct engine_snapshot, request);

	ring_post(snapshot->of->engine->ring, &snapshot->answer);
}

static void engine_snapshot_ask(struct engine_snapshot *snapshot, enum store_snapshot_action action,
	void (*deliver)(struct ring *ring, struct ring_message *message))
{
	snapshot->of->engine->snapshot_requests++;
	snapshot->answer.deliver = deliver;
	snapshot->request.action = action;
	snapshot->request.done = engine_snapshot_answered;
	store_snapshot_ask(snapshot->of->export->store, &snapshot->request);
}

static void deleted(struct ring *ring, struct ring_message *message)
{
	struct engine_snapshot *snapshot = container_of(message, struct engine_snapshot, answer);
	const struct store_snapshot_request *request = &snapshot->request;
	char shown[SHOWN_BYTES];

	snapshot->of->engine->snapshot_requests--;
	if (request->result < 0 && request->result != -ENOENT) {
		log_warning("cannot delete the snapshot '%s' of a push job; it remains until "
			    "the disk is opened again: %s %s",
			request->snapshot.name, engine_snapshot_label(snapshot, shown),
			request->error.text);
	}
	engine_snapshot_set_state(snapshot, ENGINE_SNAPSHOT_DELETED);
}

void engine_snapshot_delete(struct engine_snapshot *snapshot)
{
	if (snapshot->state == ENGINE_SNAPSHOT_MAKING) {
		snapshot->is_unwanted = true;
	} else if (snapshot->state == ENGINE_SNAPSHOT_MADE) {
		engine_snapshot_set_state(snapshot, ENGINE_SNAPSHOT_DELETING);
		engine_snapshot_ask(snapshot, STORE_SNAPSHOT_DELETE, deleted);
	}
}

bool engine_snapshot_join(struct engine_snapshot *snapshot)
{
	if (snapshot->state == ENGINE_SNAPSHOT_DELETED) {
		struct engine *engine = snapshot->of->engine;

		if (snapshot->path != NULL) {
			snapshot->path = NULL;
			engine_export_remove(engine, snapshot->export, 0);
		}
		if (snapshot->export != NULL) {
			export_put_async(snapshot->export, engine);
			snapshot->export = NULL;
		}
		engine_snapshot_set_state(snapshot, ENGINE_SNAPSHOT_NONE);
	}
	return snapshot->state == ENGINE_SNAPSHOT_NONE;
}

/* Opens the snapshot as an export that is only prepared (engine_export_prepare()), so that no
 * session can choose it. */
static int open_snapshot(struct engine_snapshot *snapshot, struct error *error)
{
	struct engine *engine = snapshot->of->engine;
	struct export_options about = {
		.name = snapshot->request.snapshot.name,
		.name_bytes = (uint32_t)strlen(snapshot->request.snapshot.name),
		.parent = snapshot->of->export,
		.overlap = snapshot->of->export->overlap,
		.read_only = true,
	};
	int rc = store_snapshot_open(
		snapshot->of->export->store, snapshot->request.snapshot.name, &about.store, error);

	if (rc == 0) {
		rc = export_create(&about, &snapshot->export, error);
	}
	if (rc == 0) {
		rc = engine_export_prepare(engine, snapshot->export, error);
	}
	if (rc == 0) {
		snapshot->path = &engine->exports[engine->export_count - 1]->path;
	}
	return rc;
}

static void engine_snapshot_made(struct ring *ring, struct ring_message *message)
{
	struct engine_snapshot *snapshot = container_of(message, struct engine_snapshot, answer);
	struct error error = snapshot->request.error;
	int result = snapshot->request.result;

	snapshot->of->engine->snapshot_requests--;
	engine_snapshot_set_state(
		snapshot, result == 0 ? ENGINE_SNAPSHOT_MADE : ENGINE_SNAPSHOT_NONE);
	if (result == 0 && !snapshot->is_unwanted) {
		result = open_snapshot(snapshot, &error);
		/* -ENOENT: the store has already deleted the snapshot for lack of space */
		if (result < 0 && result != -ENOENT) {
			error_prefix(&error, "has an unreadable snapshot");
		}
	}
	if (result < 0 || snapshot->is_unwanted) {
		engine_snapshot_delete(snapshot);
	}
	if (!snapshot->is_unwanted) {
		snapshot->made(snapshot, result, error.text);
	}
}

bool engine_snapshot_is_useful(const struct engine_export *of)
{
	const struct store *store = of->export->store;

	return store_has_snapshots(store) && (store_info(store)->caps & STORE_CAP_WRITE) != 0;
}

void engine_snapshot_make(struct engine_snapshot *snapshot, struct engine_export *of,
	const char *name,
	void (*made_cb)(struct engine_snapshot *snapshot, int result, const char *text))
{
	GMB_ASSERT(strlen(name) < sizeof(snapshot->request.snapshot.name));
	engine_snapshot_set_state(snapshot, ENGINE_SNAPSHOT_MAKING);
	snapshot->of = of;
	snapshot->made = made_cb;
	snapshot->request.snapshot.created_s =
		(uint64_t)time(NULL); /* wall-clock time, shown in lists */
	snapshot->request.snapshot.is_temporary = true;
	memcpy(snapshot->request.snapshot.name, name, strlen(name) + 1);
	engine_snapshot_ask(snapshot, STORE_SNAPSHOT_CREATE, engine_snapshot_made);
}
