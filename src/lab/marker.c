// SPDX-License-Identifier: Apache-2.0
/*
 * The marker source of progress: a filter directly above the file store that detects how far a
 * device has come with a read, by watching the memory that it fills. Experimental: no disk
 * guarantees that this works (docs/design/0009-progress-sources.md), so every observation is
 * checked when the read ends.
 *
 *   the part's memory   |■■■■■■■■■■■■■■■■|                        |  reported, and sent from here
 *                         ▲ copied         ▲ progress_bytes
 *   the slot's memory   |■■■■■■■■■■■■■■■■|■■■■■■■■     |         M|  the device writes here
 *                        ◀── chunk ──▶ M  ◀── chunk ──▶ M
 *
 * prepare   The slot's memory is zeroed, so that no byte of another request can ever leave. A
 *           random marker, new for each read, is stored at the end of each chunk. The disk reads
 *           into the slot's memory, never into the part's.
 * send      While reads are in flight, a timer examines the markers in ascending order. If the
 *           markers of a chunk and of all chunks before it are overwritten, the chunk is
 *           copied to the part's memory and reported. Exactly this copy leaves the machine early.
 *           The last chunk is never reported before the end. A chunk whose data equals the marker
 *           is not reported early either, nor are the chunks after it.
 * finalize  The read is complete. The reported bytes are compared with the slot's memory. If they
 *           are equal, the rest is copied and the part is done. If they differ, the device wrote
 *           them again: the part fails, so that no client uses the bytes that were sent, and the
 *           source is off for this store from now on.
 *
 * Parts that are forwarded without watching: those that are not reads, reads without progress,
 * reads that do not consist of whole chunks, that have only one chunk or more than a slot can hold,
 * and reads for which no slot is free.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"
#include "disk/disk.h"
#include "lab/lab.h"

enum { SLOT_COUNT = 4, SLOT_BYTES = 1 << 20, HUGE_BYTES = 2 << 20 };

struct marker_store {
	struct store base;
	char *path;
	_Atomic bool is_off; /* a byte changed after it was reported */
	/* All in relaxed order: the numbers are only logged. */
	_Atomic uint64_t watched_count;
	_Atomic uint64_t watched_bytes;
	_Atomic uint64_t progress_bytes;
	_Atomic uint64_t changed_count;
};

/* A read in flight that is watched. */
struct marker_slot {
	struct list_node node;	/* in queue->free or queue->busy */
	struct store_part part; /* the read into the slot's memory */
	struct store_part *outer;
	uint8_t *data;
	uint64_t marker;
	uint64_t reported; /* number of bytes reported, whole chunks */
};

struct marker_queue {
	struct store_queue base;
	uint8_t *memory;
	struct mem_region region; /* the queue's memory as a region */
	struct ring_op timer;
	struct list_node free;
	struct list_node busy;
	struct marker_slot slots[SLOT_COUNT];
};

static struct marker_store *marker_store_of(struct store *store)
{
	return container_of(store, struct marker_store, base);
}

static struct marker_queue *marker_queue_of(struct store_queue *queue)
{
	return container_of(queue, struct marker_queue, base);
}

/* --- prepare ------------------------------------------------------------------------------- */

static uint64_t *marker_of(const struct marker_slot *slot, uint64_t chunk_end)
{
	return (uint64_t *)(void *)(slot->data + chunk_end - sizeof(slot->marker));
}

static void marker_prepare(struct marker_slot *slot, uint64_t length, uint64_t marker)
{
	slot->marker = marker;
	slot->reported = 0;
	memset(slot->data, 0, length);
	for (uint64_t end = MARKER_CHUNK_BYTES; end <= length; end += MARKER_CHUNK_BYTES) {
		__atomic_store_n(marker_of(slot, end), marker, __ATOMIC_RELAXED);
	}
}

/* --- send ---------------------------------------------------------------------------------- */

/* Returns the number of bytes that the device has written, according to the markers. Acquire order:
 * the bytes before a marker are read after the marker. This is sufficient only if the device writes
 * these bytes before it overwrites the marker. */
static uint64_t marker_look(const struct marker_slot *slot)
{
	uint64_t limit = slot->part.length - MARKER_CHUNK_BYTES;
	uint64_t valid = slot->reported;

	while (valid < limit && __atomic_load_n(marker_of(slot, valid + MARKER_CHUNK_BYTES),
					__ATOMIC_ACQUIRE) != slot->marker) {
		valid += MARKER_CHUNK_BYTES;
	}
	return valid;
}

static void marker_tell(struct marker_slot *slot)
{
	struct store_part *outer = slot->outer;
	uint64_t valid = marker_look(slot);
	uint64_t fresh = valid - slot->reported;

	if (fresh == 0 || fresh < outer->progress_step) {
		return;
	}
	memcpy(mem_cpu_write(outer->memory) + slot->reported, slot->data + slot->reported, fresh);
	slot->reported = valid;
	store_progress(outer, valid);
}

static void marker_arm(struct marker_queue *queue);

static void marker_look_again(struct ring_op *op, int result)
{
	struct marker_queue *queue = container_of(op, struct marker_queue, timer);
	struct marker_store *store = marker_store_of(queue->base.store);

	GMB_UNUSED(result); /* the timer is cancelled only if no slot is busy */
	/* Relaxed order: examining the markers once more is harmless, because each read is verified
	 * at its end. */
	if (atomic_load_explicit(&store->is_off, memory_order_relaxed)) {
		return;
	}
	list_for_each(node, &queue->busy)
	{
		marker_tell(list_entry(node, struct marker_slot, node));
	}
	if (!list_is_empty(&queue->busy)) {
		marker_arm(queue);
	}
}

static void marker_arm(struct marker_queue *queue)
{
	if (!queue->timer.in_flight) {
		ring_timer(queue->base.ring, &queue->timer, MARKER_LOOK_NS, marker_look_again);
	}
}

/* --- finalize ------------------------------------------------------------------------------ */

static void switch_off(struct marker_store *store, const struct store_part *part)
{
	atomic_fetch_add_explicit(&store->changed_count, 1, memory_order_relaxed);
	if (atomic_exchange_explicit(&store->is_off, true, memory_order_relaxed)) {
		return;
	}
	log_error("the disk '%s' changed data of a read (%llu bytes at %llu) after the server had "
		  "sent it: do not use the key marker with this disk; the read fails, and marker "
		  "is off until the disk is opened again",
		quote(store->path), (unsigned long long)part->length,
		(unsigned long long)part->offset);
}

static int finalize(struct marker_store *store, const struct marker_slot *slot)
{
	struct store_part *outer = slot->outer;
	uint8_t *data = mem_cpu_write(outer->memory);

	atomic_fetch_add_explicit(&store->watched_count, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&store->watched_bytes, outer->length, memory_order_relaxed);
	atomic_fetch_add_explicit(&store->progress_bytes, slot->reported, memory_order_relaxed);
	if (memcmp(data, slot->data, slot->reported) != 0) {
		switch_off(store, outer);
		return -EIO;
	}
	memcpy(data + slot->reported, slot->data + slot->reported, outer->length - slot->reported);
	return 0;
}

static void marker_slot_done(struct store_part *part, int result)
{
	struct marker_slot *slot = container_of(part, struct marker_slot, part);
	struct store_part *outer = slot->outer;
	struct marker_queue *queue = marker_queue_of(outer->queue);

	result = result ?: finalize(marker_store_of(outer->queue->store), slot);
	slot->outer = NULL;
	list_remove(&slot->node);
	list_push_front(&queue->free, &slot->node);
	store_finish(outer, result);
}

/* --- submitting ---------------------------------------------------------------------------- */

static bool can_watch(struct marker_store *store, const struct store_part *part)
{
	return part->op == STORE_READ && part->progressed != NULL &&
	       is_aligned(part->offset | part->length, MARKER_CHUNK_BYTES) &&
	       part->length > MARKER_CHUNK_BYTES && part->length <= SLOT_BYTES &&
	       !atomic_load_explicit(&store->is_off, memory_order_relaxed);
}

static void marker_submit(struct store_queue *base, struct store_part *part)
{
	struct marker_queue *queue = marker_queue_of(base);
	struct marker_slot *slot;

	if (list_is_empty(&queue->free) || !can_watch(marker_store_of(base->store), part)) {
		store_forward(part);
		return;
	}
	slot = list_entry(list_pop_front(&queue->free), struct marker_slot, node);
	list_push_back(&queue->busy, &slot->node);
	marker_prepare(slot, part->length, ring_random(base->ring));
	slot->outer = part;
	slot->part = (struct store_part){
		.op = STORE_READ,
		.hints = part->hints,
		.offset = part->offset,
		.length = part->length,
		.memory = mem_at(&queue->region, (uint64_t)(slot->data - queue->memory)),
		.done = marker_slot_done,
	};
	store_submit(queue->base.inner, &slot->part);
	marker_arm(queue);
}

/* --- queues -------------------------------------------------------------------------------- */

static int marker_memory_acquire(struct marker_queue *queue, const struct store_info *info)
{
	queue->memory = aligned_alloc(MAX((size_t)info->memory_align, (size_t)HUGE_BYTES),
		(size_t)SLOT_COUNT * SLOT_BYTES);
	if (queue->memory == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < SLOT_COUNT; i++) {
		struct marker_slot *slot = &queue->slots[i];

		slot->data = queue->memory + (size_t)i * SLOT_BYTES;
		list_push_back(&queue->free, &slot->node);
	}
	return 0;
}

static int marker_queue_init(struct store_queue *base, struct error *error)
{
	struct marker_queue *queue = marker_queue_of(base);

	list_init(&queue->free);
	list_init(&queue->busy);
	if (marker_memory_acquire(queue, &base->store->info) < 0) {
		return error_oom_for(
			error, "marker: %d MiB for each thread", SLOT_COUNT * SLOT_BYTES >> 20);
	}
	queue->region = (struct mem_region){
		.base = queue->memory, .bytes = (uint64_t)SLOT_COUNT * SLOT_BYTES, .rights = MEM_RAM
	};
	/* without registration, reads are only slower */
	(void)!ring_memory_add(base->ring, &queue->region);
	return 0;
}

static void marker_queue_fini(struct store_queue *base)
{
	struct marker_queue *queue = marker_queue_of(base);

	GMB_ASSERT(list_is_empty(&queue->busy));
	ring_cancel(base->ring, &queue->timer);
	while (queue->timer.in_flight) { /* the cancelled timer completes in the next turn */
		ring_turn(base->ring, true);
	}
	ring_memory_remove(base->ring, &queue->region);
	free(queue->memory);
}

/* --- opening and closing ------------------------------------------------------------------- */

static void log_life(struct marker_store *store)
{
	char early[UNITS_TEXT_BYTES];
	char bytes[UNITS_TEXT_BYTES];
	uint64_t count = atomic_load_explicit(&store->watched_count, memory_order_relaxed);

	if (count == 0) {
		return;
	}
	units_format_bytes(
		early, atomic_load_explicit(&store->progress_bytes, memory_order_relaxed));
	units_format_bytes(
		bytes, atomic_load_explicit(&store->watched_bytes, memory_order_relaxed));
	log_info("marker on '%s': %llu reads watched; %s of their %s detected before the reads "
		 "completed; %llu reads failed because data changed after the server had sent it",
		quote(store->path), (unsigned long long)count, early, bytes,
		(unsigned long long)atomic_load_explicit(
			&store->changed_count, memory_order_relaxed));
}

static void marker_close(struct store *base)
{
	struct marker_store *store = marker_store_of(base);

	log_life(store);
	free(store->path);
}

/* Accepts only raw disks that are read with direct I/O. */
static int check_disk(struct store *inner, const struct store_options *options, struct error *error)
{
	const char *reason = "the path is not a disk";
	int fd = file_store_direct_fd(inner);

	if (strcmp(inner->ops->name, file_store_kind.name) == 0 && fd < 0) {
		return error_set(error, -ENOTSUP,
			"marker does not work with '%s' in mode=cached: it needs direct I/O, with "
			"which the disk fills the watched memory; add mode=direct, or omit marker",
			options->path);
	}
	if (fd >= 0) {
		reason = disk_marker_refusal(fd);
	}
	if (reason != NULL) {
		return error_set(error, -ENOTSUP,
			"marker does not work with '%s': %s; use a raw NVMe or virtio disk or a "
			"partition of one, or omit marker",
			options->path, reason);
	}
	if (store_options_has(options, &pace_store_kind)) {
		return error_set(error, -ENOTSUP,
			"'%s' cannot have both marker and a pace: a disk with a pace counts the "
			"progress of reads itself",
			options->path);
	}
	return 0;
}

static int watch_open(struct store *base, const struct store_options *options, const void *config,
	struct error *error)
{
	struct marker_store *store = marker_store_of(base);

	GMB_UNUSED(config);
	store->path = strdup(options->path);
	if (store->path == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", options->path);
	}
	base->info.has_progress = true;
	base->info.memory_rights |= MEM_CPU;
	base->info.progress_off = &store->is_off;
	return 0;
}

static int marker_open(struct store *base, const struct store_options *options, const void *config,
	struct error *error)
{
	int result = check_disk(base->inner, options, error);

	return result < 0 ? result : watch_open(base, options, config, error);
}

static const struct store_ops marker_ops = {
	.name = "marker",
	.queue_bytes = sizeof(struct marker_queue),
	.close = marker_close,
	.queue_init = marker_queue_init,
	.queue_fini = marker_queue_fini,
	.submit = marker_submit,
	.handover = store_handover_nothing,
};

struct marker_config {
	bool is_wanted;
};

static int set_marker(void *config, const char *value, struct error *error)
{
	struct marker_config *marker = config;

	marker->is_wanted = true;
	return value == NULL || strcmp(value, "yes") == 0
		       ? 0
		       : error_set(error, -EINVAL, "the value must be 'yes'");
}

static const struct field marker_options[] = {
	{ "marker", NULL,
		"lab: detect, while a raw disk is reading, which data has already arrived in "
		"memory",
		"yes", .flags = FIELD_BARE, .set = set_marker,
		FIELD_AT(struct marker_config, is_wanted, is_wanted) },
};

const struct store_kind marker_store_kind = {
	.name = "marker",
	.is_filter = true,
	.options = marker_options,
	.option_count = ARRAY_COUNT(marker_options),
	.config_bytes = sizeof(struct marker_config),
	.store_bytes = sizeof(struct marker_store),
	.ops = &marker_ops,
	.open = marker_open,
};

const struct store_kind marker_unchecked_kind = {
	.name = "marker on any disk",
	.is_filter = true,
	.store_bytes = sizeof(struct marker_store),
	.ops = &marker_ops,
	.open = watch_open,
};
