// SPDX-License-Identifier: Apache-2.0
/*
 * The starts of the stores that have to be started (store_start()), each on a reactor.
 *
 *   starts_begin() ─▶ store_start() on the reactors ─▶ wake() ... starts_are_over() ─▶ starts_end()
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
	struct reactor *const *reactors; /* may be set later: before starts_begin() */
	uint32_t reactor_count;
	bool is_taking; /* in the place of another process, which has the disks that settle */
	void (*wake)(void *context);
	void *context;

	/* Private. */
	uint32_t begun_count;
	_Atomic uint32_t ended_count; /* set before wake() */
	_Atomic bool failed;	      /* one of them: the others need not go on */
};

/* Begins those of the disks that settle (late), which the other process has left, or of the others.
 * On failure those that have begun are cancelled. */
GMB_MUST_CHECK int starts_begin(struct starts *starts, bool late, struct error *error);
/* Has all those that have begun give up soon. */
void starts_cancel(struct starts *starts);
/* False: at least one has not ended. Cancels the rest when one has failed. */
bool starts_are_over(struct starts *starts);
/* How much is done: the average of all exports. */
uint32_t starts_percent(const struct starts *starts);
/* All are over: the error of the one that ended the others, or 0, and the exports have their
 * epochs. */
GMB_MUST_CHECK int starts_end(const struct starts *starts, bool late, struct error *error);
