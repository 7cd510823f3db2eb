// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/quiesce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* The flush of one disk. */
struct disk {
	struct engine_quiesce base;
	struct quiesce *quiesce;
	int result; /* result of the flush; published by the release on busy_count */
};

struct quiesce {
	struct reactor *const *reactors;
	uint32_t reactor_count;
	struct disk *disks;
	uint32_t disk_count;
	_Atomic uint32_t busy_count;
};

struct quiesce *quiesce_create(struct reactor *const *reactors, uint32_t reactor_count)
{
	struct quiesce *quiesce = calloc(1, sizeof(*quiesce));

	if (quiesce != NULL) {
		quiesce->reactors = reactors;
		quiesce->reactor_count = reactor_count;
	}
	return quiesce;
}

/* Drops the references to the exports. Called when no flush is in progress. */
static void forget_disks(struct quiesce *quiesce)
{
	GMB_ASSERT(quiesce_is_over(quiesce));
	for (uint32_t i = 0; i < quiesce->disk_count; i++) {
		export_put(quiesce->disks[i].base.export);
	}
	free(quiesce->disks);
	quiesce->disks = NULL;
	quiesce->disk_count = 0;
}

void quiesce_destroy(struct quiesce *quiesce)
{
	if (quiesce != NULL) {
		forget_disks(quiesce);
		free(quiesce);
	}
}

bool quiesce_is_over(const struct quiesce *quiesce)
{
	/* Acquire, pairs with the release in disk_quiesced(). */
	return atomic_load_explicit(&quiesce->busy_count, memory_order_acquire) == 0;
}

static void disk_quiesced(struct engine_quiesce *base, int result)
{
	struct disk *disk = container_of(base, struct disk, base);

	disk->result = result;
	/* Release, because it publishes the result. When the count is 0, the main thread may free
	 * the disks. */
	atomic_fetch_sub_explicit(&disk->quiesce->busy_count, 1, memory_order_release);
}

/* Argument of begin_disks(), which is called on each reactor. With n reactors, reactor i flushes
 * the disks i, i + n, i + 2n and so on. */
struct quiesce_turn {
	struct quiesce *quiesce;
	uint32_t index; /* index of the reactor */
	bool last;
};

static void begin_disks(struct engine *engine, void *context)
{
	const struct quiesce_turn *turn = context;
	struct quiesce *quiesce = turn->quiesce;

	for (uint32_t i = turn->index; i < quiesce->disk_count; i += quiesce->reactor_count) {
		int rc = engine_quiesce(engine, &quiesce->disks[i].base, turn->last);

		if (rc < 0) {
			disk_quiesced(&quiesce->disks[i].base, rc);
		}
	}
}

/* Adds all disks with store_needs_quiesce(), before the first flush starts. */
static int add_disks(struct quiesce *quiesce, const struct exports *exports, struct error *error)
{
	quiesce->disks = calloc(MAX(exports->count, 1U), sizeof(*quiesce->disks));
	if (quiesce->disks == NULL) {
		return error_set(error, -ENOMEM, "out of memory to flush the disks");
	}
	for (uint32_t i = 0; i < exports->count; i++) {
		struct export *export = exports->exports[i];

		if (store_needs_quiesce(export->store)) {
			export_get(export);
			quiesce->disks[quiesce->disk_count++] = (struct disk){
				.base = { .export = export, .done = disk_quiesced },
				.quiesce = quiesce,
			};
		}
	}
	atomic_store_explicit(&quiesce->busy_count, quiesce->disk_count, memory_order_relaxed);
	return 0;
}

int quiesce_begin(
	struct quiesce *quiesce, const struct exports *exports, bool last, struct error *error)
{
	int rc;

	if (!quiesce_is_over(quiesce)) {
		return error_set(error, -EBUSY, "the disks are still being flushed");
	}
	forget_disks(quiesce);
	rc = add_disks(quiesce, exports, error);
	for (uint32_t i = 0; rc == 0 && i < MIN(quiesce->reactor_count, quiesce->disk_count); i++) {
		struct quiesce_turn turn = { quiesce, i, last };
		int called = reactor_call(quiesce->reactors[i], begin_disks, &turn);

		/* If reactor_call() failed, the function was not and will not be called, so this
		 * reactor's flushes are marked as failed here. */
		for (uint32_t k = i; called < 0 && k < quiesce->disk_count;
			k += quiesce->reactor_count) {
			disk_quiesced(&quiesce->disks[k].base, called);
		}
	}
	return rc;
}

int quiesce_result(const struct quiesce *quiesce, struct error *error)
{
	for (uint32_t i = 0; i < quiesce->disk_count; i++) {
		const struct disk *disk = &quiesce->disks[i];
		const struct export *export = disk->base.export;

		if (disk->result < 0) {
			return error_set(error, disk->result,
				"cannot flush the disk of export \"%s\": %s",
				quote_bytes(export->name, export->name_bytes),
				strerror(-disk->result));
		}
	}
	return 0;
}
