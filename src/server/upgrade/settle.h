// SPDX-License-Identifier: Apache-2.0
/*
 * Flushes the disks that settle, before another process takes over (store/store.h).
 *
 *   settle_begin() ──▶ each on one of the reactors ──▶ settle_is_over() ──▶ settle_result()
 *
 * Threading: the main thread. Ownership: borrows reactors. Has references to the exports until
 * their flushes are done, so it must not be destroyed while a reactor with such a flush runs.
 * Errors: a sentence that names the export.
 */
#pragma once

#include "server/change/exports.h"
#include "server/reactor.h"

struct settle;

/* NULL: no memory. */
struct settle *settle_create(struct reactor *const *reactors, uint32_t reactor_count);
/* NULL is a no-op. */
void settle_destroy(struct settle *settle);

/* Starts flushing all disks that settle; last as in engine_settle(). settle_result() reports
 * failures of the flushes. -EBUSY: earlier flushes are still in progress. -ENOMEM. */
GMB_MUST_CHECK int settle_begin(
	struct settle *settle, const struct exports *exports, bool last, struct error *error);
bool settle_is_over(const struct settle *settle);
/* Returns the first error; only after settle_is_over(). */
GMB_MUST_CHECK int settle_result(const struct settle *settle, struct error *error);
