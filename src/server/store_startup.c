// SPDX-License-Identifier: Apache-2.0
#include "server/store_startup.h"

#include <errno.h>

/* Returns whether the store must be started late, because the process that this one replaces still
 * writes to its disk. */
static bool store_startup_is_deferred(
	const struct store_startup *startup, const struct export *export)
{
	return startup->is_taking && store_needs_quiesce(export->store);
}

/* --- one store ------------------------------------------------------------------------------- */

static void has_started(struct store_start *start)
{
	struct store_startup *startup = start->context;

	if (start->result < 0) {
		atomic_store_explicit(&startup->failed, true, memory_order_relaxed);
	}
	/* Release, pairs with the acquire in store_startup_is_over(), because it publishes the
	 * result. */
	atomic_fetch_add_explicit(&startup->ended_count, 1, memory_order_release);
	startup->wake(startup->context);
}

static void start_store(struct engine *engine, void *context)
{
	struct export *export = context;

	export->start.result = export_start(export, engine);
	if (export->start.result < 0) {
		has_started(&export->start);
	}
}

/* Distributes the stores over the reactors in turn. */
static int begin_store(struct store_startup *startup, uint32_t index, struct error *error)
{
	struct export *export = startup->exports->exports[index];

	export->start.done = has_started;
	export->start.context = startup;
	export->start.is_quiet = store_startup_is_deferred(startup, export);
	return reactors_call(
		&startup->reactors[index % startup->reactor_count], 1, start_store, export, error);
}

/* --- all stores ------------------------------------------------------------------------------ */

int store_startup_begin(struct store_startup *startup, bool deferred, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < startup->exports->count; i++) {
		const struct export *export = startup->exports->exports[i];

		if (store_needs_start(export->store) &&
			store_startup_is_deferred(startup, export) == deferred) {
			rc = begin_store(startup, i, error);
			startup->begun_count += rc == 0;
		}
	}
	if (rc < 0) {
		store_startup_cancel(startup);
	}
	return rc;
}

void store_startup_cancel(struct store_startup *startup)
{
	for (uint32_t i = 0; i < startup->exports->count; i++) {
		/* Relaxed, because the flag publishes no other data. */
		atomic_store_explicit(
			&startup->exports->exports[i]->start.cancelled, true, memory_order_relaxed);
	}
}

bool store_startup_is_over(struct store_startup *startup)
{
	if (atomic_load_explicit(&startup->failed, memory_order_relaxed)) {
		store_startup_cancel(startup);
	}
	return atomic_load_explicit(&startup->ended_count, memory_order_acquire) ==
	       startup->begun_count;
}

uint32_t store_startup_percent(const struct store_startup *startup)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < startup->exports->count; i++) {
		sum += store_start_permille(startup->exports->exports[i]->store);
	}
	return (uint32_t)(sum / 10 / startup->exports->count);
}

int store_startup_end(const struct store_startup *startup, bool deferred, struct error *error)
{
	for (uint32_t i = 0; i < startup->exports->count; i++) {
		const struct store_start *start = &startup->exports->exports[i]->start;

		if (start->result < 0 && start->result != -ECANCELED) {
			*error = start->error;
			served_export_blame(&startup->exports->list[i]->about, error);
			return start->result;
		}
	}
	for (uint32_t i = 0; i < startup->exports->count; i++) {
		if (store_startup_is_deferred(startup, startup->exports->exports[i]) == deferred) {
			served_export_choose_epoch(startup->exports->list[i], NULL);
		}
	}
	return 0;
}
