// SPDX-License-Identifier: Apache-2.0
/*
 * Starts the stores that need it (store_start()), each on a reactor.
 *
 *   starts_begin() ─▶ store_start() on the reactors ─▶ wake() ... starts_are_over() ─▶ starts_end()
 *
 * Stores that settle (store_settles()) must wait when the server takes over from another process,
 * which still writes to their disks. They are the late ones.
 *
 * Threading: the main thread; wake() on any. Ownership: borrows what it is given. Errors: a
 * sentence that names the export.
 */
#pragma once

#include "server/change/exports.h"
#include "server/reactor.h"

struct starts {
	/* Set by the owner. */
	const struct exports *exports;
	struct reactor *const *reactors; /* may be set later, before starts_begin() */
	uint32_t reactor_count;
	bool is_taking; /* takes over from another process, which still has the disks that settle */
	void (*wake)(void *context);
	void *context;

	/* Private. */
	uint32_t begun_count;
	_Atomic uint32_t ended_count; /* incremented before wake() */
	_Atomic bool failed;	      /* a start has failed, so the others may stop */
};

/* Starts the late stores, whose disks the other process has released (late), or all others. On
 * failure the starts already in progress are cancelled. */
GMB_MUST_CHECK int starts_begin(struct starts *starts, bool late, struct error *error);
/* Makes all starts in progress give up soon. */
void starts_cancel(struct starts *starts);
/* Returns false while a start is in progress. Cancels the rest after one has failed. */
bool starts_are_over(struct starts *starts);
/* Returns the progress in percent: the average over all exports. */
uint32_t starts_percent(const struct starts *starts);
/* Called when all starts are over. Returns the error of the start that made the others stop. If it
 * returns 0, the exports have their epochs. */
GMB_MUST_CHECK int starts_end(const struct starts *starts, bool late, struct error *error);
