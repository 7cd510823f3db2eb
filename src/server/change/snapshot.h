// SPDX-License-Identifier: Apache-2.0
/*
 * Private to src/server: snapshots of the disks of exports, which stores call views
 * (store/store.h). Each is served as an export of its own, NAME@SNAPSHOT, that can only be read.
 *
 *   "snapshot" ─▶ reload's thread: snapshot_change() ─▶ the store, on its reactor
 *        ─▶ an export is added or removed, as by "export" (change.h)
 *
 * Threading: as each function says. Ownership: borrows what it is given. Errors: a sentence that
 * names the export.
 */
#pragma once

#include "server/change/request.h"

/* REQUEST_SNAPSHOT_CREATE or _DELETE: the store makes or deletes it, which is durable then, and the
 * change gets what is to be served. Reload's thread; blocks. */
GMB_MUST_CHECK int snapshot_change(const struct reload_options *options,
	struct reload_request *request, struct change *change, struct error *error);
/* The export of the one that was made could not be opened: it is deleted again. The same. */
void snapshot_undo(const struct reload_options *options, struct reload_request *request);
/* Whether there are exports of snapshots that their stores have dropped. While no change is under
 * way, on reload's thread. */
bool snapshots_have_gone(const struct exports *exports);
/* The change removes them. The same. */
GMB_MUST_CHECK int snapshots_remove_gone(
	const struct exports *exports, struct change *change, struct error *error);
/* What there is, of the export of that name, or with NULL of all: an array, which is the caller's.
 * -ENOENT: there is no such export. -EOPNOTSUPP: it is a snapshot itself. Main thread. */
GMB_MUST_CHECK int snapshots_json(
	const struct exports *exports, const char *name, json_t **all_out, struct error *error);
/* Serves those that disks have since before the start; what cannot be served is logged. Main
 * thread, with all stores started; true: *exports has changed. */
bool snapshots_serve(const struct change_options *options, struct exports *exports);
