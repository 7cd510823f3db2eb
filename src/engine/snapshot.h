// SPDX-License-Identifier: Apache-2.0
/*
 * A temporary snapshot of an export (store.h) for one job: the contents of the disk at one moment.
 * Only the job sees it, and it is deleted with the job.
 *
 *   engine_snapshot_make() ─▶ made(): snapshot->path is set
 *     ─▶ engine_snapshot_delete() ─▶ engine_snapshot_join()
 *
 * Requests on snapshot->path belong to a session that has chosen the export itself, and use its
 * rights, rates and slots. Until the store has answered a request to create or delete a snapshot,
 * engine_look() reports the engine as busy, so that no other process takes the store over.
 *
 * Threading: the ring's thread. Ownership: the job holds the snapshot from engine_snapshot_make()
 * until engine_snapshot_join() returns true, and its session holds the export. Errors: a negative
 * errno and a sentence. A snapshot that cannot be deleted is logged; it is removed when the store
 * is next opened.
 */
#pragma once

#include "engine/engine.h"

enum engine_snapshot_state {
	ENGINE_SNAPSHOT_NONE,
	ENGINE_SNAPSHOT_MAKING,	  /* waits for the store */
	ENGINE_SNAPSHOT_MADE,	  /* waits for engine_snapshot_delete() */
	ENGINE_SNAPSHOT_DELETING, /* waits for the store */
	ENGINE_SNAPSHOT_DELETED,  /* waits for the job's requests */
	ENGINE_SNAPSHOT_STATE_COUNT
};

struct engine_snapshot {
	/* For requests of the job, see path_request.export; NULL: the snapshot cannot be read. */
	struct path_export *path;

	/* Private. */
	enum engine_snapshot_state state;
	bool is_unwanted; /* MAKING: engine_snapshot_delete() was called */
	struct engine_export *of;
	struct export *export; /* a reference, or NULL */
	void (*made)(struct engine_snapshot *snapshot, int result, const char *text);
	struct store_snapshot_request request;
	struct ring_message answer;
};

/* Returns whether the export can change while it is read and its store supports snapshots. */
bool engine_snapshot_is_useful(const struct engine_export *of);
/* Creates a snapshot; the struct is all zeroes. made is called once, later, unless
 * engine_snapshot_delete() is called before: with 0, or with a negative errno and the rest of a
 * sentence about the export. name: as in struct store_snapshot. */
void engine_snapshot_make(struct engine_snapshot *snapshot, struct engine_export *of,
	const char *name,
	void (*made)(struct engine_snapshot *snapshot, int result, const char *text));
/* Deletes the snapshot, in any state. Further calls have no effect. Reads that start later fail. A
 * snapshot that is still being created is deleted once it exists. */
void engine_snapshot_delete(struct engine_snapshot *snapshot);
/* Called after engine_snapshot_delete(), when no request of the job on the snapshot is in flight.
 * Returns true when nothing of it is left. The caller should retry at the end of each batch. */
GMB_MUST_CHECK bool engine_snapshot_join(struct engine_snapshot *snapshot);
