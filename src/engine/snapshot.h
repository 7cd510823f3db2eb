// SPDX-License-Identifier: Apache-2.0
/*
 * A temporary snapshot of an export (store.h) for one job, such as a push: the contents of the disk
 * at one moment. Only the job can use it, and it is deleted when the job ends.
 *
 *   engine_snapshot_make() ─▶ made(): snapshot->path is set
 *     ─▶ engine_snapshot_delete() ─▶ engine_snapshot_join()
 *
 * Requests on snapshot->path belong to a session that uses the export of the disk, and use that
 * session's rights, rates and slots. Until the store has answered a request to create or delete a
 * snapshot, engine_look() reports the engine as busy, so that no other process takes the store
 * over.
 *
 * Threading: the ring's thread. Ownership: the job must keep the struct from engine_snapshot_make()
 * until engine_snapshot_join() returns true; until then, its session uses the export. Errors: a
 * negative errno and an error message. A snapshot that cannot be deleted is logged; it is removed
 * when the store is next opened.
 */
#pragma once

#include "engine/engine.h"

enum engine_snapshot_state {
	ENGINE_SNAPSHOT_NONE,
	ENGINE_SNAPSHOT_MAKING,	  /* the store is creating the snapshot */
	ENGINE_SNAPSHOT_MADE,	  /* the snapshot exists */
	ENGINE_SNAPSHOT_DELETING, /* the store is deleting the snapshot */
	ENGINE_SNAPSHOT_DELETED,  /* deleted, or not possible; waits for engine_snapshot_join() */
	ENGINE_SNAPSHOT_STATE_COUNT
};

struct engine_snapshot {
	/* For the job's requests, see path_request.export. NULL: the snapshot cannot be read. */
	struct path_export *path;

	/* Private members. */
	enum engine_snapshot_state state;
	bool is_unwanted; /* in ENGINE_SNAPSHOT_MAKING: engine_snapshot_delete() was called */
	struct engine_export *of;
	struct export *export; /* a reference, or NULL */
	void (*made)(struct engine_snapshot *snapshot, int result, const char *text);
	struct store_snapshot_request request;
	struct ring_message answer;
};

/* Returns whether a snapshot of the export is useful and possible: the export can change, and its
 * store supports snapshots. */
bool engine_snapshot_is_useful(const struct engine_export *of);
/* Creates a snapshot with that name (see struct store_snapshot). *snapshot must be all zeroes.
 * made() is called later, once, with 0 or with a negative errno and the predicate of a sentence
 * about the export. made() is not called if engine_snapshot_delete() is called before. */
void engine_snapshot_make(struct engine_snapshot *snapshot, struct engine_export *of,
	const char *name,
	void (*made)(struct engine_snapshot *snapshot, int result, const char *text));
/* Deletes the snapshot, in any state; one that is still being created is deleted when it exists.
 * Further calls have no effect. Later reads fail. */
void engine_snapshot_delete(struct engine_snapshot *snapshot);
/* Called after engine_snapshot_delete(), when no request of the job for the snapshot is in flight.
 * Returns true when the snapshot is completely gone; until then the caller should call it at the
 * end of each batch. */
GMB_MUST_CHECK bool engine_snapshot_join(struct engine_snapshot *snapshot);
