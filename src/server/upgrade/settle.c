// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/settle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { NAME_SHOWN_BYTES = 120 };

/* The flush of one disk. */
struct disk {
	struct engine_settle base;
	struct settle *settle;
	int result; /* published by busy_count */
};

struct settle {
	struct reactor *const *reactors;
	uint32_t reactor_count;
	struct disk *disks;
	uint32_t disk_count;
	_Atomic uint32_t busy_count;
};

struct settle *settle_create(struct reactor *const *reactors, uint32_t reactor_count)
{
	struct settle *settle = calloc(1, sizeof(*settle));

	if (settle != NULL) {
		settle->reactors = reactors;
		settle->reactor_count = reactor_count;
	}
	return settle;
}

/* Called when no flush is in progress. */
static void forget_disks(struct settle *settle)
{
	GMB_ASSERT(settle_is_over(settle));
	for (uint32_t i = 0; i < settle->disk_count; i++) {
		export_put(settle->disks[i].base.export);
	}
	free(settle->disks);
	settle->disks = NULL;
	settle->disk_count = 0;
}

void settle_destroy(struct settle *settle)
{
	if (settle != NULL) {
		forget_disks(settle);
		free(settle);
	}
}

bool settle_is_over(const struct settle *settle)
{
	/* Acquire, pairs with the release in has_settled(). */
	return atomic_load_explicit(&settle->busy_count, memory_order_acquire) == 0;
}

static void has_settled(struct engine_settle *base, int result)
{
	struct disk *disk = container_of(base, struct disk, base);

	disk->result = result;
	/* Release, because it publishes the result. After the last one, the disks may be freed. */
	atomic_fetch_sub_explicit(&disk->settle->busy_count, 1, memory_order_release);
}

/* The disks of one reactor; disks are distributed over the reactors in turn. */
struct settle_turn {
	struct settle *settle;
	uint32_t index; /* of the reactor */
	bool last;
};

static void begin_disks(struct engine *engine, void *context)
{
	const struct settle_turn *turn = context;
	struct settle *settle = turn->settle;

	for (uint32_t i = turn->index; i < settle->disk_count; i += settle->reactor_count) {
		int rc = engine_settle(engine, &settle->disks[i].base, turn->last);

		if (rc < 0) {
			has_settled(&settle->disks[i].base, rc);
		}
	}
}

/* Adds the disks; no flush has started yet. */
static int add_disks(struct settle *settle, const struct exports *exports, struct error *error)
{
	settle->disks = calloc(MAX(exports->count, 1U), sizeof(*settle->disks));
	if (settle->disks == NULL) {
		return error_set(error, -ENOMEM, "no memory to flush the disks");
	}
	for (uint32_t i = 0; i < exports->count; i++) {
		struct export *export = exports->exports[i];

		if (store_settles(export->store)) {
			export_get(export);
			settle->disks[settle->disk_count++] = (struct disk){
				.base = { .export = export, .done = has_settled },
				.settle = settle,
			};
		}
	}
	atomic_store_explicit(&settle->busy_count, settle->disk_count, memory_order_relaxed);
	return 0;
}

int settle_begin(
	struct settle *settle, const struct exports *exports, bool last, struct error *error)
{
	int rc;

	if (!settle_is_over(settle)) {
		return error_set(error, -EBUSY, "the disks are still being flushed");
	}
	forget_disks(settle);
	rc = add_disks(settle, exports, error);
	for (uint32_t i = 0; rc == 0 && i < MIN(settle->reactor_count, settle->disk_count); i++) {
		struct settle_turn turn = { settle, i, last };
		int called = reactor_call(settle->reactors[i], begin_disks, &turn);

		/* A failed call was not and will not be made (reactor_call()), so its disks are
		 * ended here. */
		for (uint32_t k = i; called < 0 && k < settle->disk_count;
			k += settle->reactor_count) {
			has_settled(&settle->disks[k].base, called);
		}
	}
	return rc;
}

int settle_result(const struct settle *settle, struct error *error)
{
	char shown[NAME_SHOWN_BYTES];

	for (uint32_t i = 0; i < settle->disk_count; i++) {
		const struct disk *disk = &settle->disks[i];
		const struct export *export = disk->base.export;

		if (disk->result < 0) {
			return error_set(error, disk->result,
				"cannot flush the disk of export \"%s\": %s",
				log_escape(shown, sizeof(shown), export->name, export->name_bytes),
				strerror(-disk->result));
		}
	}
	return 0;
}
