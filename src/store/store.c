// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/marker.h"
#include "store/store_private.h"

enum { PART_BYTES_MAX = 1 << 30 };

/* A flag that means nothing for an operation is ignored: protocols let FUA go with any command. */
#define PART_FLAGS_KNOWN ((uint32_t)(STORE_FUA | STORE_NO_HOLE | STORE_FAST_ZERO))

const char *store_op_name(enum store_op op)
{
	static const char *const names[STORE_OP_COUNT] = {
		[STORE_READ] = "read",
		[STORE_WRITE] = "write",
		[STORE_FLUSH] = "flush",
		[STORE_TRIM] = "trim",
		[STORE_ZERO] = "zero",
		[STORE_CACHE] = "cache",
		[STORE_EXTENTS] = "extents",
	};

	GMB_ASSERT(op < STORE_OP_COUNT);
	return names[op];
}

/* --- opening ------------------------------------------------------------------------------- */

static int base_open(
	const struct store_options *options, struct store **store_out, struct error *error)
{
	static const char memory_prefix[] = "memory:";
	static const char null_prefix[] = "null:";
	const char *path = options->path;

	if (strncmp(path, memory_prefix, sizeof(memory_prefix) - 1) == 0) {
		return memory_store_open(
			options, path + sizeof(memory_prefix) - 1, store_out, error);
	}
	if (strncmp(path, null_prefix, sizeof(null_prefix) - 1) == 0) {
		return null_store_open(options, path + sizeof(null_prefix) - 1, store_out, error);
	}
	return file_store_open(options, store_out, error);
}

/* Takes inner, also on failure. */
static int marker_open(struct store *inner, const struct store_options *options,
	struct store **store_out, struct error *error)
{
	int result = file_store_check_marker(inner, options->path, error);

	if (result == 0 && options->pace.rate > 0) {
		result = error_set(error, -ENOTSUP,
			"'%s' cannot have progress=marker and a pace: a disk with a pace counts by "
			"itself how far a read has come",
			options->path);
	}
	if (result < 0) {
		store_close(inner);
		return result;
	}
	return marker_store_open(inner, options->path, store_out, error);
}

static int check_options(const struct store_options *options, struct error *error)
{
	GMB_ASSERT(options->path != NULL);
	if (options->path[0] == '\0') {
		return error_set(error, -EINVAL,
			"no path given: expected a file, a block device, memory:SIZE or null:SIZE");
	}
	if (options->fault_count > STORE_RULES_MAX || options->delay_count > STORE_RULES_MAX) {
		return error_set(error, -E2BIG,
			"too many fault or delay rules for '%s': at most %d of each can be given",
			options->path, STORE_RULES_MAX);
	}
	return 0;
}

static void check_info(const struct store_info *info)
{
	GMB_ASSERT(info->kind != NULL);
	GMB_ASSERT(is_power_of_two(info->block_min));
	GMB_ASSERT(info->block_min <= 65536);
	GMB_ASSERT(is_power_of_two(info->block_preferred));
	GMB_ASSERT(info->block_preferred >= MAX(info->block_min, UINT32_C(512)));
	GMB_ASSERT(is_power_of_two(info->memory_align));
	GMB_ASSERT(is_power_of_two(info->offset_align));
	GMB_ASSERT(info->memory_rights != 0);
	GMB_ASSERT((info->stripe_chunk == 0) == (info->stripe_members == 0));
}

/* What was asked for goes over what the disk says of itself. */
static void override_info(struct store_info *info, const struct store_options *options)
{
	if (options->stripe_chunk > 0) {
		info->stripe_chunk = options->stripe_chunk;
		info->stripe_members = options->stripe_members;
	}
	if (options->progress == STORE_PROGRESS_COMPLETION) {
		info->has_progress = false;
	}
}

int store_open(const struct store_options *options, struct store **store_out, struct error *error)
{
	struct store *store = NULL;
	int result = check_options(options, error);

	if (result < 0) {
		return result;
	}
	result = base_open(options, &store, error);
	if (result == 0 && options->progress == STORE_PROGRESS_MARKER) {
		result = marker_open(store, options, &store, error);
	}
	/* The pace is innermost: it stands for the disk, and what comes on top of it adds to it. */
	if (result == 0 && options->pace.rate > 0) {
		result = pace_store_open(store, &options->pace, &store, error);
	}
	if (result == 0 && options->delay_count > 0) {
		result = delay_store_open(
			store, options->delays, options->delay_count, &store, error);
	}
	/* Faults are outermost: a part that is to fail does not reach the disk, nor wait. */
	if (result == 0 && options->fault_count > 0) {
		result = fault_store_open(
			store, options->faults, options->fault_count, &store, error);
	}
	if (result == 0 && options->progress == STORE_PROGRESS_COUNTER &&
		!store->info.has_progress) {
		store_close(store);
		result = error_set(error, -EOPNOTSUPP,
			"'%s' cannot count how far a read has come: progress=counter is for "
			"memory:SIZE and for disks with a pace; use progress=auto",
			options->path);
	}
	if (result < 0) {
		return result;
	}
	store->page_cache_send_off = options->page_cache_send_off;
	override_info(&store->info, options);
	check_info(&store->info);
	*store_out = store;
	return 0;
}

void store_close(struct store *store)
{
	if (store != NULL) {
		store->ops->close(store);
	}
}

uint64_t store_size(struct store *store)
{
	return store->ops->size(store);
}

int store_plain_queue_create(
	struct store *store, struct ring *ring, struct store_queue **queue_out, struct error *error)
{
	struct store_queue *queue = calloc(1, sizeof(*queue));

	GMB_UNUSED(store);
	GMB_UNUSED(ring);
	if (queue == NULL) {
		return error_set(error, -ENOMEM, "not enough memory for a queue");
	}
	*queue_out = queue;
	return 0;
}

void store_plain_queue_destroy(struct store_queue *queue)
{
	free(queue);
}

int store_queue_create(
	struct store *store, struct ring *ring, struct store_queue **queue_out, struct error *error)
{
	struct store_queue *queue = NULL;
	int result = store->ops->queue_create(store, ring, &queue, error);

	if (result < 0) {
		return result;
	}
	queue->store = store;
	queue->ring = ring;
	queue->inflight_count = 0;
	queue->submitting = NULL;
	*queue_out = queue;
	return 0;
}

void store_queue_destroy(struct store_queue *queue)
{
	if (queue != NULL) {
		GMB_ASSERT(queue->inflight_count == 0);
		queue->store->ops->queue_destroy(queue);
	}
}

/* --- parts --------------------------------------------------------------------------------- */

static void check_part(const struct store_queue *queue, const struct store_part *part)
{
	uint64_t end = 0;

	GMB_ASSERT(part->op < STORE_OP_COUNT);
	GMB_ASSERT(part->done != NULL);
	GMB_ASSERT((part->flags & ~PART_FLAGS_KNOWN) == 0);
	GMB_ASSERT(checked_add_u64(part->offset, part->length, &end));
	GMB_ASSERT(end <= INT64_MAX);
	GMB_ASSERT((part->length == 0) == (part->op == STORE_FLUSH));
	if (part->op == STORE_READ || part->op == STORE_WRITE) {
		GMB_ASSERT(part->length <= PART_BYTES_MAX);
	}
	if (part->op == STORE_EXTENTS) {
		GMB_ASSERT(part->extents != NULL);
		GMB_ASSERT(part->extent_max > 0);
	}
	GMB_ASSERT(queue->submitting == NULL);
}

static bool changes_data(enum store_op op)
{
	return op == STORE_WRITE || op == STORE_TRIM || op == STORE_ZERO;
}

/* True when success is a promise that something will survive a crash. */
static bool promises(const struct store_part *part)
{
	return part->op == STORE_FLUSH ||
	       ((part->flags & STORE_FUA) != 0 && changes_data(part->op));
}

bool store_result_breaks(const struct store_part *part, int result)
{
	if (result == 0 || !promises(part)) {
		return false;
	}
	return part->op == STORE_FLUSH ||
	       (result != -ENOSPC && result != -EDQUOT && result != -EFBIG && result != -EPERM &&
		       result != -EOPNOTSUPP);
}

/* The result of a part that promises, in the light of all that happened to the store. */
static int judge(struct store *store, const struct store_part *part, int result)
{
	int broken = 0;

	if (!promises(part)) {
		return result;
	}
	if (store_result_breaks(part, result)) {
		/* Release pairs with the acquire loads here and in store_submit(). */
		atomic_compare_exchange_strong_explicit(&store->broken, &broken, result,
			memory_order_release, memory_order_relaxed);
		return result;
	}
	broken = atomic_load_explicit(&store->broken, memory_order_acquire);
	return result == 0 ? broken : result;
}

static void queue_submit(struct store_queue *queue, struct store_part *part)
{
	part->queue = queue;
	queue->inflight_count++;
	queue->submitting = part;
	queue->store->ops->submit(queue, part);
	queue->submitting = NULL;
}

/* The error of a part that need not be tried, or 0. */
static int refuse(struct store *store, const struct store_part *part)
{
	if (changes_data(part->op) && (store->info.caps & STORE_CAP_WRITE) == 0) {
		return -EPERM;
	}
	return promises(part) ? atomic_load_explicit(&store->broken, memory_order_acquire) : 0;
}

static void prepare(struct store_part *part)
{
	part->io.in_flight = false;
	list_init(&part->node);
	part->progress = 0;
	part->piece = 0;
	part->phase = 0;
	part->retries = 0;
	part->gate = 0;
	part->progress_bytes = 0;
	part->progress_broken = false;
	part->frame_count = 0;
	part->extent_count = 0;
}

void store_submit(struct store_queue *queue, struct store_part *part)
{
	int error;

	check_part(queue, part);
	if (part->op == STORE_READ || part->op == STORE_WRITE) {
		GMB_ASSERT(mem_may(part->memory, store_rights(queue->store, part->op)));
	}
	prepare(part);
	error = refuse(queue->store, part);
	if (error != 0) {
		part->queue = queue;
		queue->inflight_count++;
		store_finish_later(part, error);
		return;
	}
	queue_submit(queue, part);
}

bool store_page_cache_ref(struct store_queue *queue, struct store_part *part)
{
	if (queue->store->ops->page_cache_ref == NULL || queue->store->page_cache_send_off ||
		part->length < STORE_PAGE_CACHE_BYTES_MIN) {
		return false;
	}
	check_part(queue, part);
	GMB_ASSERT(part->op == STORE_READ);
	prepare(part);
	part->queue = queue;
	part->memory = mem_none();
	if (!queue->store->ops->page_cache_ref(queue, part)) {
		return false;
	}
	GMB_ASSERT(!mem_is_none(part->memory));
	GMB_ASSERT(!mem_may(part->memory, MEM_CPU_READ));
	queue->inflight_count++;
	store_finish_later(part, 0);
	return true;
}

const char *store_page_cache_refusal(struct store *store)
{
	if (store->page_cache_send_off) {
		return "page-cache-send=off";
	}
	if (store->ops->page_cache_ref == NULL) {
		return store->ops->name;
	}
	return store->ops->page_cache_refusal != NULL ? store->ops->page_cache_refusal(store)
						      : NULL;
}

void store_forward(struct store_queue *filter_queue, struct store_queue *inner_queue,
	struct store_part *part, store_done_fn *done)
{
	GMB_ASSERT(part->queue == filter_queue);
	GMB_ASSERT(part->frame_count < STORE_FILTERS_MAX);
	part->frames[part->frame_count].done = done;
	part->frames[part->frame_count].queue = filter_queue;
	part->frame_count++;
	queue_submit(inner_queue, part);
}

void store_finish(struct store_part *part, int result)
{
	struct store_queue *queue = part->queue;

	GMB_ASSERT(result <= 0);
	GMB_ASSERT(!part->io.in_flight);
	GMB_ASSERT(part->gate == 0);
	GMB_ASSERT(queue->submitting != part);
	GMB_ASSERT(queue->inflight_count > 0);
	queue->inflight_count--;
	if (part->frame_count > 0) {
		part->frame_count--;
		part->queue = part->frames[part->frame_count].queue;
		part->frames[part->frame_count].done(part, result);
		return;
	}
	if (part->op == STORE_EXTENTS && result == 0) {
		GMB_ASSERT(part->extent_count > 0);
		GMB_ASSERT(part->extent_count <= part->extent_max);
	}
	part->queue = NULL;
	if (part->progress_broken && result == 0) {
		result = -EIO;
	}
	part->done(part, judge(queue->store, part, result));
}

void store_progress(struct store_part *part, uint64_t bytes)
{
	GMB_ASSERT(part->queue->submitting != part);
	if (part->op != STORE_READ || bytes <= part->progress_bytes || bytes >= part->length) {
		part->progress_broken = true;
		return;
	}
	if (part->progress_broken) {
		return;
	}
	part->progress_bytes = bytes;
	if (part->progressed != NULL) {
		part->progressed(part, bytes);
	}
}

static void finish_later_done(struct ring_op *op, int result)
{
	store_finish(container_of(op, struct store_part, io), result);
}

void store_finish_later(struct store_part *part, int result)
{
	ring_defer(part->queue->ring, &part->io, result, finish_later_done);
}
