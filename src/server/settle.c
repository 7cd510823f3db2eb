// SPDX-License-Identifier: Apache-2.0
#include "server/settle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "server/control.h"

enum { NAME_SHOWN_BYTES = 120 };

/* Of one disk. */
struct disk {
	struct engine_settle base;
	struct settle *settle;
	bool last;
	int begun;  /* 0, or why it has not */
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

/* Nothing is under way. */
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
	/* Acquire pairs with the release in has_settled(). */
	return atomic_load_explicit(&settle->busy_count, memory_order_acquire) == 0;
}

static void has_settled(struct engine_settle *base, int result)
{
	struct disk *disk = container_of(base, struct disk, base);

	disk->result = result;
	/* Release: the result is there; with the last one the disk may be gone. */
	atomic_fetch_sub_explicit(&disk->settle->busy_count, 1, memory_order_release);
}

static void begin_disk(struct engine *engine, void *context)
{
	struct disk *disk = context;

	disk->begun = engine_settle(engine, &disk->base, disk->last);
}

/* The reactors take turns. */
static int begin_one(struct settle *settle, struct export *export, bool last)
{
	struct disk *disk = &settle->disks[settle->disk_count];
	int rc;

	export_get(export);
	*disk = (struct disk){
		.base = { .export = export, .done = has_settled },
		.settle = settle,
		.last = last,
	};
	atomic_fetch_add_explicit(&settle->busy_count, 1, memory_order_relaxed);
	rc = reactor_call(
		settle->reactors[settle->disk_count % settle->reactor_count], begin_disk, disk);
	rc = rc == 0 ? disk->begun : rc;
	if (rc < 0) {
		has_settled(&disk->base, rc);
	}
	settle->disk_count++;
	return rc;
}

int settle_begin(
	struct settle *settle, const struct exports *exports, bool last, struct error *error)
{
	int rc = 0;

	if (!settle_is_over(settle)) {
		return error_set(error, -EBUSY, "disks are still being flushed");
	}
	forget_disks(settle);
	settle->disks = calloc(MAX(exports->count, 1U), sizeof(*settle->disks));
	if (settle->disks == NULL) {
		return error_set(error, -ENOMEM, "no memory to flush the disks");
	}
	for (uint32_t i = 0; rc == 0 && i < exports->count; i++) {
		if (store_settles(exports->exports[i]->store)) {
			rc = begin_one(settle, exports->exports[i], last);
		}
	}
	return rc < 0 ? error_set(error, rc, "%s", server_call_error(rc)) : 0;
}

int settle_result(const struct settle *settle, struct error *error)
{
	char shown[NAME_SHOWN_BYTES];

	for (uint32_t i = 0; i < settle->disk_count; i++) {
		const struct disk *disk = &settle->disks[i];
		const struct export *export = disk->base.export;

		if (disk->result < 0) {
			return error_set(error, disk->result,
				"the disk of export \"%s\" has failed to flush: %s",
				log_escape(shown, sizeof(shown), export->name, export->name_bytes),
				strerror(-disk->result));
		}
	}
	return 0;
}
