// SPDX-License-Identifier: Apache-2.0
#include "server/starts.h"

#include <errno.h>

#include "server/control.h"

/* Returns whether the disk's contents belong to the other process until it has settled. */
static bool starts_is_late(const struct starts *starts, const struct export *export)
{
	return starts->is_taking && store_settles(export->store);
}

/* --- one store ------------------------------------------------------------------------------- */

static void has_started(struct store_start *start)
{
	struct starts *starts = start->context;

	if (start->result < 0) {
		atomic_store_explicit(&starts->failed, true, memory_order_relaxed);
	}
	/* Release, pairs with the acquire in starts_are_over(), because it publishes the result. */
	atomic_fetch_add_explicit(&starts->ended_count, 1, memory_order_release);
	starts->wake(starts->context);
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
static int begin_store(struct starts *starts, uint32_t index, struct error *error)
{
	struct export *export = starts->exports->exports[index];
	int rc;

	export->start.done = has_started;
	export->start.context = starts;
	export->start.is_quiet = starts_is_late(starts, export);
	rc = reactor_call(starts->reactors[index % starts->reactor_count], start_store, export);
	return rc < 0 ? error_set(error, rc, "%s", server_call_error(rc)) : 0;
}

/* --- all stores ------------------------------------------------------------------------------ */

int starts_begin(struct starts *starts, bool late, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < starts->exports->count; i++) {
		const struct export *export = starts->exports->exports[i];

		if (store_needs_start(export->store) && starts_is_late(starts, export) == late) {
			rc = begin_store(starts, i, error);
			starts->begun_count += rc == 0;
		}
	}
	if (rc < 0) {
		starts_cancel(starts);
	}
	return rc;
}

void starts_cancel(struct starts *starts)
{
	for (uint32_t i = 0; i < starts->exports->count; i++) {
		/* Relaxed, because the flag publishes no other data. */
		atomic_store_explicit(
			&starts->exports->exports[i]->start.cancelled, true, memory_order_relaxed);
	}
}

bool starts_are_over(struct starts *starts)
{
	if (atomic_load_explicit(&starts->failed, memory_order_relaxed)) {
		starts_cancel(starts);
	}
	return atomic_load_explicit(&starts->ended_count, memory_order_acquire) ==
	       starts->begun_count;
}

uint32_t starts_percent(const struct starts *starts)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < starts->exports->count; i++) {
		sum += store_start_permille(starts->exports->exports[i]->store);
	}
	return (uint32_t)(sum / 10 / starts->exports->count);
}

int starts_end(const struct starts *starts, bool late, struct error *error)
{
	for (uint32_t i = 0; i < starts->exports->count; i++) {
		const struct store_start *start = &starts->exports->exports[i]->start;

		if (start->result < 0 && start->result != -ECANCELED) {
			*error = start->error;
			served_blame(&starts->exports->list[i]->about, error);
			return start->result;
		}
	}
	for (uint32_t i = 0; i < starts->exports->count; i++) {
		if (starts_is_late(starts, starts->exports->exports[i]) == late) {
			served_choose_epoch(starts->exports->list[i], NULL);
		}
	}
	return 0;
}
