// SPDX-License-Identifier: Apache-2.0
/*
 * Private to src/server: snapshots of the disks of exports (store/store.h).
 * Each is served as a separate read-only export, NAME@SNAPSHOT.
 *
 *   "snapshot" ─▶ reload thread: snapshot_change() ─▶ the store, on its reactor
 *        ─▶ an export is added or removed, as by "export" (change.h)
 *
 * Threading: as stated for each function. Ownership: borrows what it is given. Errors: an error
 * message that names the export.
 */
#pragma once

#include "server/change/request.h"

/* For REQUEST_SNAPSHOT_CREATE and _DELETE. Makes the store create or delete the snapshot durably,
 * and adds to the change that the snapshot's export is added or removed. Reload thread; blocks. */
GMB_MUST_CHECK int snapshot_change(const struct reload_options *options,
	struct reload_request *request, struct change *change, struct error *error);
/* Deletes the snapshot that the request created, because its export could not be opened. Reload
 * thread; blocks. */
void snapshot_undo(const struct reload_options *options, struct reload_request *request);
/* Returns whether there are exports of snapshots that their stores have dropped. Reload thread,
 * while no change is in progress. */
bool snapshots_were_dropped(const struct exports *exports);
/* Adds to the change that exports of dropped snapshots are removed. Reload thread, while no other
 * change is in progress. */
GMB_MUST_CHECK int snapshots_remove_dropped(
	const struct exports *exports, struct change *change, struct error *error);
/* Lists the snapshots of the named export, or of all exports if name is NULL, as an array that the
 * caller owns. -ENOENT: there is no such export. -EOPNOTSUPP: the export is itself a snapshot. Main
 * thread. */
GMB_MUST_CHECK int snapshots_json(
	const struct exports *exports, const char *name, json_t **all_out, struct error *error);
/* Serves the snapshots that the disks already had before the start; failures are logged. Returns
 * true if *exports has changed. Main thread, with all stores started. */
bool snapshots_serve(const struct change_options *options, struct exports *exports);
