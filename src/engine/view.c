// SPDX-License-Identifier: Apache-2.0
#include "engine/view.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SHOWN_BYTES = 120 };

static const uint32_t view_edges[ENGINE_VIEW_STATE_COUNT] = {
	[ENGINE_VIEW_NONE] = BIT(ENGINE_VIEW_MAKING),
	[ENGINE_VIEW_MAKING] = BIT(ENGINE_VIEW_MADE) | BIT(ENGINE_VIEW_NONE),
	[ENGINE_VIEW_MADE] = BIT(ENGINE_VIEW_DELETING),
	[ENGINE_VIEW_DELETING] = BIT(ENGINE_VIEW_DELETED),
	[ENGINE_VIEW_DELETED] = BIT(ENGINE_VIEW_NONE),
};

static void engine_view_set_state(struct engine_view *view, enum engine_view_state state)
{
	GMB_ASSERT((view_edges[view->state] & BIT(state)) != 0);
	view->state = state;
}

/* Writes "export \"x\"" for messages. Returns out. */
static const char *engine_view_label(const struct engine_view *view, char out[SHOWN_BYTES])
{
	const struct export *export = view->of->export;
	char shown[SHOWN_BYTES - 16];

	snprintf(out, SHOWN_BYTES, "export \"%s\"",
		log_escape(shown, sizeof(shown), export->name, export->name_bytes));
	return out;
}

/* Called on the ring on which the store was started, which can be another one. */
static void engine_view_answered(struct store_view_request *request)
{
	struct engine_view *view = container_of(request, struct engine_view, request);

	ring_post(view->of->engine->ring, &view->answer);
}

static void engine_view_ask(struct engine_view *view, enum store_view_action action,
	void (*deliver)(struct ring *ring, struct ring_message *message))
{
	view->of->engine->view_requests++;
	view->answer.deliver = deliver;
	view->request.action = action;
	view->request.done = engine_view_answered;
	store_view_ask(view->of->export->store, &view->request);
}

static void deleted(struct ring *ring, struct ring_message *message)
{
	struct engine_view *view = container_of(message, struct engine_view, answer);
	const struct store_view_request *request = &view->request;
	char shown[SHOWN_BYTES];

	GMB_UNUSED(ring);
	view->of->engine->view_requests--;
	if (request->result < 0 && request->result != -ENOENT) {
		log_warning("cannot delete the snapshot '%s' of a job, which remains until the "
			    "disk is opened again: %s %s",
			request->view.name, engine_view_label(view, shown), request->error.text);
	}
	engine_view_set_state(view, ENGINE_VIEW_DELETED);
}

void engine_view_delete(struct engine_view *view)
{
	if (view->state == ENGINE_VIEW_MAKING) {
		view->is_unwanted = true;
	} else if (view->state == ENGINE_VIEW_MADE) {
		engine_view_set_state(view, ENGINE_VIEW_DELETING);
		engine_view_ask(view, STORE_VIEW_DELETE, deleted);
	}
}

bool engine_view_join(struct engine_view *view)
{
	if (view->state == ENGINE_VIEW_DELETED) {
		struct engine *engine = view->of->engine;

		if (view->path != NULL) {
			view->path = NULL;
			engine_export_remove(engine, view->export, 0);
		}
		if (view->export != NULL) {
			export_put_async(view->export, engine);
			view->export = NULL;
		}
		engine_view_set_state(view, ENGINE_VIEW_NONE);
	}
	return view->state == ENGINE_VIEW_NONE;
}

/* Opens the snapshot as an export that stays prepared, so that no session can find it. */
static int open_view(struct engine_view *view, struct error *error)
{
	struct engine *engine = view->of->engine;
	struct export_options about = {
		.name = view->request.view.name,
		.name_bytes = (uint32_t)strlen(view->request.view.name),
		.parent = view->of->export,
		.overlap = view->of->export->overlap,
		.read_only = true,
	};
	int rc = store_view_open(
		view->of->export->store, view->request.view.name, &about.store, error);

	if (rc == 0) {
		rc = export_create(&about, &view->export, error);
	}
	if (rc == 0) {
		rc = engine_export_prepare(engine, view->export, error);
	}
	if (rc == 0) {
		view->path = &engine->exports[engine->export_count - 1]->path;
	}
	return rc;
}

static void engine_view_made(struct ring *ring, struct ring_message *message)
{
	struct engine_view *view = container_of(message, struct engine_view, answer);
	struct error error = view->request.error;
	int result = view->request.result;

	GMB_UNUSED(ring);
	view->of->engine->view_requests--;
	engine_view_set_state(view, result == 0 ? ENGINE_VIEW_MADE : ENGINE_VIEW_NONE);
	if (result == 0 && !view->is_unwanted) {
		result = open_view(view, &error);
		if (result < 0 && result != -ENOENT) { /* -ENOENT: it was dropped already */
			error_prefix(&error, "has an unreadable snapshot");
		}
	}
	if (result < 0 || view->is_unwanted) {
		engine_view_delete(view);
	}
	if (!view->is_unwanted) {
		view->made(view, result, error.text);
	}
}

bool engine_view_is_useful(const struct engine_export *of)
{
	const struct store *store = of->export->store;

	return store_has_views(store) && (store_info(store)->caps & STORE_CAP_WRITE) != 0;
}

void engine_view_make(struct engine_view *view, struct engine_export *of, const char *name,
	void (*made_cb)(struct engine_view *view, int result, const char *text))
{
	GMB_ASSERT(strlen(name) < sizeof(view->request.view.name));
	engine_view_set_state(view, ENGINE_VIEW_MAKING);
	view->of = of;
	view->made = made_cb;
	view->request.view.created_s = (uint64_t)time(NULL); /* wall-clock time, for lists */
	view->request.view.is_temporary = true;
	memcpy(view->request.view.name, name, strlen(name) + 1);
	engine_view_ask(view, STORE_VIEW_CREATE, engine_view_made);
}
