// SPDX-License-Identifier: Apache-2.0
/*
 * Private to src/server: snapshots of the disks of exports (store/store.h).
 * Each is served as a separate read-only export, NAME@SNAPSHOT.
 *
 *   "snapshot" ─▶ a job (job.h) ─▶ the store, on its reactor
 *        ─▶ an export is added or removed, as by "export" (change.h)
 *
 * Threading: as stated for each function. Ownership: borrows what it is given. Errors: logged.
 */
#pragma once

#include "server/change/change.h"

/* Returns whether there are exports of snapshots that their stores have deleted for lack of space.
 * Called on the jobs' thread, while no change is in progress. */
bool snapshots_were_dropped(const struct exports *exports);
/* Serves the snapshots that the disks already had before the start; failures are logged. Main
 * thread, with all stores started. */
void snapshots_serve(const struct change_options *options, struct exports *exports);
