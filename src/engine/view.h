// SPDX-License-Identifier: Apache-2.0
/*
 * A temporary snapshot of an export (store.h) for one job: the contents of the disk at one moment.
 * Only the job sees it, and it is deleted with the job.
 *
 *   engine_view_make() ─▶ made(): view->path is set ─▶ engine_view_delete() ─▶ engine_view_join()
 *
 * Requests on view->path belong to a session that has chosen the export itself, and use its
 * rights, rates and slots. Until the store has answered a request to create or delete a snapshot,
 * engine_look() reports the engine as busy, so that no other process takes the store over.
 *
 * Threading: the ring's thread. Ownership: the job holds the view from engine_view_make() until
 * engine_view_join() returns true, and its session holds the export. Errors: a negative errno and
 * a sentence. A snapshot that cannot be deleted is logged; it is removed when the store is next
 * opened.
 */
#pragma once

#include "engine/engine.h"

enum engine_view_state {
	ENGINE_VIEW_NONE,
	ENGINE_VIEW_MAKING,   /* waits for the store */
	ENGINE_VIEW_MADE,     /* waits for engine_view_delete() */
	ENGINE_VIEW_DELETING, /* waits for the store */
	ENGINE_VIEW_DELETED,  /* waits for the job's requests */
	ENGINE_VIEW_STATE_COUNT
};

struct engine_view {
	/* For requests of the job, see path_request.export; NULL: the snapshot cannot be read. */
	struct path_export *path;

	/* Private. */
	enum engine_view_state state;
	bool is_unwanted; /* MAKING: engine_view_delete() was called */
	struct engine_export *of;
	struct export *export; /* a reference, or NULL */
	void (*made)(struct engine_view *view, int result, const char *text);
	struct store_view_request request;
	struct ring_message answer;
};

/* Returns whether the export can change while it is read and its store supports snapshots. */
bool engine_view_is_useful(const struct engine_export *of);
/* Creates a snapshot; the struct is all zeroes. made is called once, later, unless
 * engine_view_delete() is called before: with 0, or with a negative errno and the rest of a
 * sentence about the export. name: as in struct store_view. */
void engine_view_make(struct engine_view *view, struct engine_export *of, const char *name,
	void (*made)(struct engine_view *view, int result, const char *text));
/* Deletes the snapshot, in any state. Further calls have no effect. Reads that start later fail. A
 * snapshot that is still being created is deleted once it exists. */
void engine_view_delete(struct engine_view *view);
/* Called after engine_view_delete(), when no request of the job on the snapshot is in flight.
 * Returns true when nothing of it is left. The caller should retry at the end of each batch. */
GMB_MUST_CHECK bool engine_view_join(struct engine_view *view);
