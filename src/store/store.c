// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/kind.h"

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

static int layer_open(const struct store_kind *kind, const struct store_options *options,
	const void *config, struct store *inner, struct store **store_out, struct error *error)
{
	struct store *store = calloc(1, kind->store_bytes);
	int result;

	if (store == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", options->path);
	}
	store->ops = kind->ops;
	if (inner != NULL) {
		store->inner = inner;
		store->info = inner->info;
		store->scratch_offset = inner->scratch_offset + inner->ops->scratch_bytes;
	}
	GMB_ASSERT(store->scratch_offset + store->ops->scratch_bytes <= STORE_SCRATCH_BYTES);
	result = kind->open(store, options, config, error);
	if (result < 0) {
		free(store);
		return result;
	}
	*store_out = store;
	return 0;
}

int store_wrap(const struct store_kind *kind, const struct store_options *options,
	const void *config, struct store *inner, struct store **store_out, struct error *error)
{
	int result = layer_open(kind, options, config, inner, store_out, error);

	if (result < 0) {
		store_close(inner);
	}
	return result;
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

/* All filters that options ask for. Takes *store_inout on failure. */
static int wrap_all(
	const struct store_options *options, struct store **store_inout, struct error *error)
{
	int result = 0;

	for (uint32_t i = 0; i < STORE_KINDS_MAX && result == 0; i++) {
		const struct store_kind *kind = store_kind_at(i);

		if (kind != NULL && kind->is_filter &&
			(options->configs[i] != NULL || options->progress_filter == kind)) {
			result = store_wrap(kind, options, options->configs[i], *store_inout,
				store_inout, error);
		}
	}
	return result;
}

int store_open(const struct store_options *options, struct store **store_out, struct error *error)
{
	const struct store_kind *kind;
	struct store *store;
	uint32_t idx;
	int result;

	GMB_ASSERT(options->path != NULL);
	if (options->path[0] == '\0') {
		return error_set(error, -EINVAL,
			"no path given: expected a file, a block device, memory:SIZE or null:SIZE");
	}
	idx = store_kind_of_path(options->path);
	kind = store_kind_at(idx);
	result = layer_open(kind, options, options->configs[idx], NULL, &store, error);
	if (result == 0) {
		result = wrap_all(options, &store, error);
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
	while (store != NULL) {
		struct store *inner = store->inner;

		if (store->ops->close != NULL) {
			store->ops->close(store);
		}
		free(store);
		store = inner;
	}
}

uint64_t store_size(struct store *store)
{
	while (store->ops->size == NULL) {
		store = store->inner;
	}
	return store->ops->size(store);
}

static void queue_free(struct store_queue *queue)
{
	store_queue_destroy(queue->inner);
	free(queue);
}

int store_queue_create(
	struct store *store, struct ring *ring, struct store_queue **queue_out, struct error *error)
{
	struct store_queue *queue = calloc(1, MAX(store->ops->queue_bytes, sizeof(*queue)));
	int result = 0;

	if (queue == NULL) {
		return error_set(error, -ENOMEM, "not enough memory for a queue");
	}
	queue->store = store;
	queue->ring = ring;
	if (store->inner != NULL) {
		result = store_queue_create(store->inner, ring, &queue->inner, error);
	}
	if (result == 0 && store->ops->queue_init != NULL) {
		result = store->ops->queue_init(queue, error);
	}
	if (result < 0) {
		queue_free(queue);
		return result;
	}
	if (queue->inner != NULL) {
		queue->inner->outer = queue;
	}
	*queue_out = queue;
	return 0;
}

void store_queue_destroy(struct store_queue *queue)
{
	if (queue == NULL) {
		return;
	}
	GMB_ASSERT(queue->inflight_count == 0);
	if (queue->store->ops->queue_fini != NULL) {
		queue->store->ops->queue_fini(queue);
	}
	queue_free(queue);
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

static void prepare(struct store_queue *queue, struct store_part *part)
{
	part->io.in_flight = false;
	list_init(&part->node);
	part->top = queue;
	part->progress_bytes = 0;
	part->progress_broken = false;
	part->extent_count = 0;
}

void store_submit(struct store_queue *queue, struct store_part *part)
{
	int error;

	check_part(queue, part);
	if (part->op == STORE_READ || part->op == STORE_WRITE) {
		/* See store_rights(). */
		uint32_t rights =
			part->memory.rights | (part->op == STORE_WRITE ? MEM_CPU_WRITE : 0);

		GMB_ASSERT((queue->store->info.memory_rights & ~rights) == 0);
	}
	prepare(queue, part);
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
	prepare(queue, part);
	part->queue = queue;
	part->memory = MEM_NONE;
	if (!queue->store->ops->page_cache_ref(queue, part)) {
		return false;
	}
	GMB_ASSERT(part->memory.rights != 0);
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

void store_forward(struct store_part *part)
{
	GMB_ASSERT(part->queue->inner != NULL);
	queue_submit(part->queue->inner, part);
}

void store_finish(struct store_part *part, int result)
{
	struct store_queue *queue = part->queue;

	GMB_ASSERT(result <= 0);
	GMB_ASSERT(!part->io.in_flight);
	GMB_ASSERT(queue->submitting != part);
	GMB_ASSERT(queue->inflight_count > 0);
	queue->inflight_count--;
	if (queue != part->top) {
		part->queue = queue->outer;
		if (part->queue->store->ops->inner_done != NULL) {
			part->queue->store->ops->inner_done(part, result);
		} else {
			store_finish(part, result);
		}
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
