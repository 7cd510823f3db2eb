// SPDX-License-Identifier: Apache-2.0
/*
 * A view of an export (store.h) for one job: what the disk had at one moment, which nobody but the
 * job sees, and which is deleted with it.
 *
 *   engine_view_make() ─▶ made(): view->path is there ─▶ engine_view_delete() ─▶ engine_view_join()
 *
 * Requests on view->path are those of a session that has chosen the export itself: its rights,
 * rates and places count. While the store is asked for something, the engine does not come to rest
 * (engine_busy()): another process must not have the disk then.
 *
 * Threading: the ring's thread. Ownership: the job holds the view from engine_view_make() until
 * engine_view_join() is true, and its session holds the export. Errors: a negative errno and a
 * sentence; a view that cannot be deleted is logged, and goes when the store is opened again.
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
	/* For requests of the job, see path_request.export; NULL: the view cannot be read. */
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

/* Whether an export changes while it is read, and its store can have a view of it. */
bool engine_view_is_useful(const struct engine_export *of);
/* The view is all zeroes. made is called once, later, unless engine_view_delete() comes before:
 * with 0, or a negative errno and the rest of a sentence about the export. name: as in struct
 * store_view. */
void engine_view_make(struct engine_view *view, struct engine_export *of, const char *name,
	void (*made)(struct engine_view *view, int result, const char *text));
/* In any state; more than once does no harm. What is read from now on fails. A view that is made
 * after the call has its place. */
void engine_view_delete(struct engine_view *view);
/* After engine_view_delete(), with none of the job's requests on the view in flight: true when
 * nothing is left of it. It is worth to ask again at the end of each batch. */
GMB_MUST_CHECK bool engine_view_join(struct engine_view *view);
