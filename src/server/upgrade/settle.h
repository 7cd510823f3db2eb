// SPDX-License-Identifier: Apache-2.0
/*
 * Flushes of the disks that settle before another process takes over (store/store.h).
 *
 *   settle_begin() ──▶ each on one of the reactors ──▶ settle_is_over() ──▶ settle_result()
 *
 * Threading: the main thread. Ownership: borrows reactors; has references to the exports until
 * their flushes are done, so that it must not be destroyed while a reactor runs that has one.
 * Errors: a sentence that names the export.
 */
#pragma once

#include "server/change/exports.h"
#include "server/reactor.h"

struct settle;

/* Nothing is under way. NULL: no memory. */
struct settle *settle_create(struct reactor *const *reactors, uint32_t reactor_count);
/* NULL is a no-op. */
void settle_destroy(struct settle *settle);

/* Flushes all disks that settle; last as in engine_settle(). What fails is told by settle_result().
 * -EBUSY: those of the last time are not over. -ENOMEM. */
GMB_MUST_CHECK int settle_begin(
	struct settle *settle, const struct exports *exports, bool last, struct error *error);
bool settle_is_over(const struct settle *settle);
/* When it is over: the first error. */
GMB_MUST_CHECK int settle_result(const struct settle *settle, struct error *error);
