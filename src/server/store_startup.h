// SPDX-License-Identifier: Apache-2.0
/*
 * Starts the stores that need it (store_start()), each on a reactor.
 *
 *   store_startup_begin() ─▶ store_start() on the reactors ─▶ wake() ...
 *     ─▶ store_startup_is_over() ─▶ store_startup_end()
 *
 * When the server takes over from another process, stores with store_needs_quiesce() are started
 * late: only after that process has flushed them and no longer writes to their disks.
 *
 * Threading: the main thread; wake() on any. Ownership: borrows what it is given. Errors: an error
 * message that names the export.
 */
#pragma once

#include "server/change/exports.h"
#include "server/reactor.h"

struct store_startup {
	/* The owner sets these members. */
	const struct exports *exports;
	struct reactor *const *reactors; /* may be set later, before store_startup_begin() */
	uint32_t reactor_count;
	/* this server takes over from another process, which still uses the disks of the deferred
	 * stores */
	bool is_taking;
	void (*wake)(void *context);
	void *context;

	/* Private members. */
	uint32_t begun_count;
	_Atomic uint32_t ended_count; /* incremented before wake() */
	_Atomic bool failed;	      /* a start has failed, so the others may stop */
};

/* Starts the deferred stores, whose disks the old process has released by now, or all others. On
 * failure the starts already in progress are cancelled. */
GMB_MUST_CHECK int store_startup_begin(
	struct store_startup *startup, bool deferred, struct error *error);
/* Makes all starts in progress give up soon. */
void store_startup_cancel(struct store_startup *startup);
/* Returns false while a start is in progress. After a start has failed, cancels the others. */
bool store_startup_is_over(struct store_startup *startup);
/* Returns the progress in percent: the average over all exports. */
uint32_t store_startup_percent(const struct store_startup *startup);
/* Called when all starts are over. Returns the error of the first start that failed. After success
 * the exports have their epochs. */
GMB_MUST_CHECK int store_startup_end(
	const struct store_startup *startup, bool deferred, struct error *error);
