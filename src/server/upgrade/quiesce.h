// SPDX-License-Identifier: Apache-2.0
/*
 * Flushes the disks with store_needs_quiesce() before another process takes over (store/store.h).
 *
 *   quiesce_begin() ──▶ each on one of the reactors ──▶ quiesce_is_over() ──▶ quiesce_result()
 *
 * Threading: the main thread. Ownership: borrows reactors. Has references to the exports until the
 * next quiesce_begin() or quiesce_destroy(), which must not come while a flush is in progress.
 * Errors: an error message that names the export.
 */
#pragma once

#include "server/change/exports.h"
#include "server/reactor.h"

struct quiesce;

/* Returns NULL if there is no memory. */
struct quiesce *quiesce_create(struct reactor *const *reactors, uint32_t reactor_count);
/* NULL is a no-op. */
void quiesce_destroy(struct quiesce *quiesce);

/* Starts to flush all disks with store_needs_quiesce(). last: as in engine_quiesce().
 * quiesce_result() reports failed flushes. -EBUSY: earlier flushes are still in progress. -ENOMEM.
 */
GMB_MUST_CHECK int quiesce_begin(
	struct quiesce *quiesce, const struct exports *exports, bool last, struct error *error);
bool quiesce_is_over(const struct quiesce *quiesce);
/* Returns the first error; only after quiesce_is_over(). */
GMB_MUST_CHECK int quiesce_result(const struct quiesce *quiesce, struct error *error);
