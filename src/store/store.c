// SPDX-License-Identifier: Apache-2.0
/*
 * Opening, starting, handing over and closing stores, their snapshots and size watches, and
 * creating queues. Parts are in dispatch.c, the registry of kinds is in options.c.
 *
 * A store is a chain of layers linked by inner: filters outside, the kind innermost. Functions here
 * use either the innermost layer, to which the owner, the start and the watches belong, or the
 * outermost layer that implements an operation.
 */
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/kind.h"

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
		[STORE_COPY] = "copy",
	};

	GMB_ASSERT(op < STORE_OP_COUNT);
	return names[op];
}

enum { START_DONE = 1000 };

/* Returns the innermost layer, which belongs to the kind. */
static struct store *innermost(const struct store *store)
{
	while (store->inner != NULL) {
		store = store->inner;
	}
	return (struct store *)(uintptr_t)store;
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
	pthread_mutex_init(&store->watch_lock, NULL);
	store->owner.store = store;
	atomic_init(&store->start_permille, kind->ops->start == NULL ? START_DONE : 0);
	if (inner != NULL) {
		store->inner = inner;
		store->info = inner->info;
		store->scratch_offset = inner->scratch_offset + inner->ops->scratch_bytes;
	}
	GMB_ASSERT(store->scratch_offset + store->ops->scratch_bytes <= STORE_SCRATCH_BYTES);
	result = kind->open(store, options, config, error);
	if (result < 0) {
		pthread_mutex_destroy(&store->watch_lock);
		free(store);
		return result;
	}
	*store_out = store;
	return 0;
}

/* Opens a filter around inner. The filter owns inner from then on; on failure, inner is closed. */
static int store_wrap(const struct store_kind *kind, const struct store_options *options,
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
	GMB_ASSERT(is_aligned(info->atomic_bytes, info->block_min));
	GMB_ASSERT(info->atomic_bytes == 0 || (info->memory_rights & MEM_CPU_READ) != 0);
}

/* Requested settings override the properties that the disk reports, and those that filters set. */
static void override_info(struct store_info *info, const struct store_options *options)
{
	info->read_device = options->read_mode == STORE_MODE_DEVICE;
	info->write_device =
		options->write_mode == STORE_MODE_DEVICE && (info->caps & STORE_CAP_WRITE) != 0;
	if (options->stripe_chunk > 0) {
		info->stripe_chunk = options->stripe_chunk;
		info->stripe_members = options->stripe_members;
	}
}

static bool kind_wraps(const struct store_kind *kind, const struct store_options *options,
	const void *config, const struct store *store)
{
	if (kind->wraps != NULL) {
		return !options->is_below && kind->wraps(&store->info, config);
	}
	return config != NULL;
}

/* Wraps the store in all filters that options request or that its disk needs, innermost first. On
 * failure, *store_inout is closed. */
static int wrap_all(
	const struct store_options *options, struct store **store_inout, struct error *error)
{
	int result = 0;

	for (uint32_t i = 0; i < STORE_KINDS_MAX && result == 0; i++) {
		const struct store_kind *kind = store_kind_at(i);

		if (kind != NULL && kind->is_filter &&
			kind_wraps(kind, options, options->configs[i], *store_inout)) {
			result = store_wrap(kind, options, options->configs[i], *store_inout,
				store_inout, error);
		}
	}
	return result;
}

int store_open(const struct store_options *options, struct store **store_out, struct error *error)
{
	struct store_options below = *options;
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
	below.frozen = options->frozen || store_options_freezes(options);
	below.read_only = store_options_reads_only(options);
	/* State of the previous process belongs to the upper store of an overlay, not to its
	 * base. */
	below.inherited = store_options_freezes(options) ? NULL : options->inherited;
	result = store_options_fit(options, kind, error);
	if (result == 0 && options->repairs != 0 && !kind->can_repair) {
		result = error_set(error, -ENOTSUP,
			"'%s' is not a flash store; only flash stores can be repaired",
			options->path);
	}
	result = result ?: layer_open(kind, &below, options->configs[idx], NULL, &store, error);
	if (result == 0) {
		override_info(&store->info, options); /* for filters that depend on it */
		result = wrap_all(options, &store, error);
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

uint64_t store_end(struct store *store)
{
	store = innermost(store);
	return store->ops->end != NULL && !store->is_let_go ? store->ops->end(store) : 0;
}

void store_close(struct store *store)
{
	while (store != NULL) {
		struct store *inner = store->inner;

		GMB_ASSERT(store->watches == NULL);
		if (store->ops->close != NULL) {
			store->ops->close(store);
		}
		pthread_mutex_destroy(&store->watch_lock);
		free(store);
		store = inner;
	}
}

/* For a path KIND:FILE: returns the kind if its disks can be created, otherwise NULL. */
static const struct store_kind *made_kind(const char *path)
{
	size_t name_bytes = strcspn(path, ":");
	const struct store_kind *kind;

	for (uint32_t i = 0; path[name_bytes] == ':' && (kind = store_kind_at(i)) != NULL; i++) {
		if (kind->create != NULL && strlen(kind->name) == name_bytes &&
			memcmp(path, kind->name, name_bytes) == 0) {
			return kind;
		}
	}
	return NULL;
}

const char *store_made_file(const char *path)
{
	const struct store_kind *kind = made_kind(path);

	return kind != NULL ? path + strlen(kind->name) + 1 : store_path_file(path);
}

int store_check(const char *path, struct store_check *check, struct error *error)
{
	path = store_made_file(path);
	for (uint32_t i = 0; store_kind_at(i) != NULL; i++) {
		bool recognized = false;
		int result = store_kind_at(i)->check != NULL
				     ? store_kind_at(i)->check(path, check, &recognized, error)
				     : 0;

		if (result < 0 || recognized) {
			return result;
		}
	}
	return error_set(error, -EINVAL,
		"'%s' is neither an overlay nor a flash store; only these can be checked, because "
		"a raw disk has no checksums",
		path);
}

int store_create_check(const char *path, const struct store_create *create, struct error *error)
{
	const struct store_kind *kind = made_kind(path);

	if (kind == NULL) {
		return error_set(
			error, -EINVAL, "cannot create '%s': use flash:FILE or overlay:FILE", path);
	}
	if (path[strlen(kind->name) + 1] == '\0') {
		return error_set(error, -EINVAL, "'%s' does not name a file", path);
	}
	return kind->create_check(create, error);
}

int store_create(const char *path, const struct store_create *create, struct error *error)
{
	const struct store_kind *kind = made_kind(path);
	int result = store_create_check(path, create, error);

	return result < 0 ? result : kind->create(path + strlen(kind->name) + 1, create, error);
}

uint64_t store_size(struct store *store)
{
	while (store->ops->size == NULL) {
		store = store->inner;
	}
	return store->ops->size(store);
}

/* --- starting ------------------------------------------------------------------------------ */

bool store_needs_start(const struct store *store)
{
	return innermost(store)->ops->start != NULL;
}

uint32_t store_start_permille(const struct store *store)
{
	/* Relaxed order: only the number is needed. start->done tells submitters that parts can be
	 * submitted. */
	return atomic_load_explicit(&innermost(store)->start_permille, memory_order_relaxed);
}

uint64_t store_epoch(const struct store *store)
{
	while (store->info.epoch == 0 && store->inner != NULL) {
		store = store->inner;
	}
	return store->info.epoch;
}

const uint8_t *store_identity(const struct store *store)
{
	static const uint8_t none[STORE_IDENTITY_BYTES];

	for (; store != NULL; store = store->inner) {
		if (memcmp(store->info.identity, none, sizeof(none)) != 0) {
			return store->info.identity;
		}
	}
	return NULL;
}

uint64_t store_budget(const struct store *store)
{
	return innermost(store)->info.budget_bytes;
}

void store_start(struct store *store, struct store_start *start)
{
	store = innermost(store);
	GMB_ASSERT(store->ops->start != NULL && store->start == NULL);
	GMB_ASSERT(start->memory.rights != 0 || store->info.budget_bytes == 0);
	store->start = start;
	if (store->ops->has_owner) {
		store->owner.ring = start->ring;
	}
	store->ops->start(store, start);
}

void store_start_progress(struct store *store, uint32_t permille)
{
	GMB_ASSERT(permille < START_DONE);
	atomic_store_explicit(&store->start_permille, permille, memory_order_relaxed);
}

void store_started(struct store *store, int result)
{
	struct store_start *start = store->start;

	GMB_ASSERT(result <= 0);
	GMB_ASSERT(result != -ECANCELED ||
		   atomic_load_explicit(&start->cancelled, memory_order_relaxed));
	if (result == 0) {
		atomic_store_explicit(&store->start_permille, START_DONE, memory_order_relaxed);
	}
	start->result = result;
	start->done(start);
}

/* --- copies between stores ------------------------------------------------------------------ */

uint32_t store_copy_ways(struct store *target, struct store *source, uint64_t *clone_align)
{
	target = store_copied(target);
	source = store_copied(source);
	if (target->ops != source->ops || target->ops->copy_ways == NULL) {
		return 0;
	}
	return target->ops->copy_ways(target, source, clone_align);
}

bool store_place(struct store *store, struct store_place *place_out)
{
	while (store->ops->place == NULL && store->inner != NULL) {
		store = store->inner;
	}
	*place_out = (struct store_place){ 0 };
	return store->ops->place != NULL && store->ops->place(store, place_out);
}

bool store_places_meet(
	const struct store_place *one, const struct store_place *other, uint64_t length)
{
	uint64_t distance = one->at > other->at ? one->at - other->at : other->at - one->at;

	return memcmp(one->machine, other->machine, sizeof(one->machine)) == 0 &&
	       one->disk[1] != 0 && memcmp(one->disk, other->disk, sizeof(one->disk)) == 0 &&
	       distance < length;
}

/* --- handing over to another process ------------------------------------------------------- */

const char *store_handover(struct store *store, struct store_claim *claim_out)
{
	*claim_out = (struct store_claim){ .fd = -1 };
	if (store_barrier(store, false) == STORE_BARRIER_CLOSED) {
		return "still waits for disk operations of a process that has exited";
	}
	for (const char *refusal; store != NULL; store = store->inner) {
		/* The acquire order pairs with the release in dispatch_judge(). */
		if (atomic_load_explicit(&store->broken, memory_order_acquire) != 0) {
			return "has reported a failed flush, which another process could not "
			       "detect";
		}
		if (store->ops->handover == NULL) {
			return "is of a kind that another process cannot take over";
		}
		refusal = store->ops->handover(store, claim_out);
		if (refusal != NULL) {
			return refusal;
		}
		if (claim_out->hold != STORE_HOLD_NONE || claim_out->identity[1] != 0) {
			break; /* the base of an overlay is only read */
		}
	}
	return NULL;
}

bool store_needs_quiesce(const struct store *store)
{
	while (store != NULL && !store->ops->needs_quiesce) {
		store = store->inner;
	}
	return store != NULL;
}

void store_let_go(struct store *store)
{
	for (; store != NULL; store = store->inner) {
		store->is_let_go = true;
	}
}

int store_take(struct store *store, struct error *error)
{
	int result = 0;

	for (; store != NULL && result == 0; store = store->inner) {
		result = store->ops->take != NULL ? store->ops->take(store, error) : 0;
	}
	return result;
}

const char *store_handover_nothing(struct store *store, struct store_claim *claim_out)
{
	return NULL;
}

/* --- the barrier --------------------------------------------------------------------------- */

enum store_barrier store_barrier(struct store *store, bool look)
{
	while (store->ops->barrier == NULL && store->inner != NULL) {
		store = store->inner;
	}
	return store->ops->barrier != NULL ? store->ops->barrier(store, look) : STORE_BARRIER_OPEN;
}

const char *store_barrier_name(enum store_barrier barrier)
{
	static const char *const names[] = { "open", "closed", "unknown" };

	return names[barrier];
}

/* --- snapshots ----------------------------------------------------------------------------- */

bool store_has_snapshots(const struct store *store)
{
	return innermost(store)->ops->snapshot_kind != NULL;
}

static void snapshot_deliver(struct ring *ring, struct ring_message *message)
{
	struct store_snapshot_request *request =
		container_of(message, struct store_snapshot_request, message);

	GMB_ASSERT(ring == request->store->owner.ring);
	request->store->ops->snapshot_ask(request->store, request);
}

void store_snapshot_ask(struct store *store, struct store_snapshot_request *request)
{
	request->store = innermost(store);
	GMB_ASSERT(request->store->ops->snapshot_ask != NULL);
	request->message.deliver = snapshot_deliver;
	ring_post(request->store->owner.ring, &request->message);
}

uint32_t store_snapshots(struct store *store, struct store_snapshot list[STORE_SNAPSHOTS_MAX])
{
	store = innermost(store);
	return store->ops->snapshots != NULL ? store->ops->snapshots(store, list) : 0;
}

void store_snapshots_watch(struct store *store, void (*dropped)(void *context), void *context)
{
	store = innermost(store);
	GMB_ASSERT(store->ops->snapshot_kind != NULL && store->start == NULL);
	store->snapshot_dropped = dropped;
	store->snapshot_context = context;
}

int store_snapshot_open(
	struct store *store, const char *name, struct store **snapshot_out, struct error *error)
{
	struct store_options options = { .path = name, .read_only = true };
	int result;

	store = innermost(store);
	GMB_ASSERT(store->ops->snapshot_kind != NULL && store->ops->has_owner);
	result = layer_open(store->ops->snapshot_kind, &options, store, NULL, snapshot_out, error);
	if (result == 0) {
		(*snapshot_out)->is_snapshot = true;
		(*snapshot_out)->owner.ring = store->owner.ring;
		check_info(&(*snapshot_out)->info);
	}
	return result;
}

/* --- changes of size, and loss
 * ----------------------------------------------------------------------- */

static void watch_deliver(struct ring *ring, struct ring_message *message)
{
	struct store_watch *watch = container_of(message, struct store_watch, message);

	GMB_ASSERT(ring == watch->ring);
	pthread_mutex_lock(&watch->store->watch_lock);
	watch->posted = false;
	pthread_mutex_unlock(&watch->store->watch_lock);
	if (watch->is_removed) {
		watch->removed(watch);
	} else if (!watch->knows_loss && store_is_lost(watch->store)) {
		watch->knows_loss = true;
		watch->lost(watch);
	} else {
		watch->resized(watch);
	}
}

void store_watch_add(struct store *store, struct store_watch *watch)
{
	store = innermost(store);
	watch->store = store;
	watch->message.deliver = watch_deliver;
	watch->posted = false;
	watch->is_removed = false;
	watch->knows_loss = false;
	pthread_mutex_lock(&store->watch_lock);
	watch->next = store->watches;
	store->watches = watch;
	pthread_mutex_unlock(&store->watch_lock);
}

/* A watch must stay valid until its posted message is delivered; watch_deliver() then calls
 * removed(). If no message is posted, removed() is called here. */
void store_watch_remove(struct store *store, struct store_watch *watch)
{
	struct store_watch **link = &innermost(store)->watches;
	bool posted;

	pthread_mutex_lock(&watch->store->watch_lock);
	while (*link != watch) {
		link = &(*link)->next;
	}
	*link = watch->next;
	posted = watch->posted;
	pthread_mutex_unlock(&watch->store->watch_lock);
	watch->is_removed = true;
	if (!posted) {
		watch->removed(watch);
	}
}

/* Called under the lock, because after a watch is removed, its ring may be destroyed. */
static void post_watches(struct store *store)
{
	for (struct store_watch *watch = store->watches; watch != NULL; watch = watch->next) {
		if (!watch->posted) {
			watch->posted = true;
			ring_post(watch->ring, &watch->message);
		}
	}
}

void store_resized(struct store *store)
{
	pthread_mutex_lock(&store->watch_lock);
	post_watches(store);
	pthread_mutex_unlock(&store->watch_lock);
}

bool store_is_lost(const struct store *store)
{
	return atomic_load_explicit(&innermost(store)->is_lost, memory_order_acquire);
}

bool store_lost(struct store *store)
{
	bool is_first;

	store = innermost(store);
	pthread_mutex_lock(&store->watch_lock);
	is_first = !store_is_lost(store);
	if (is_first) {
		/* Release order: pairs with the acquire in store_is_lost(). */
		atomic_store_explicit(&store->is_lost, true, memory_order_release);
		post_watches(store);
	}
	pthread_mutex_unlock(&store->watch_lock);
	return is_first;
}

/* --- queues -------------------------------------------------------------------------------- */

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
		return error_oom_for(error, "a queue");
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

const void *store_queue_counters(
	const struct store_queue *queue, const struct counter_table **table_out)
{
	const struct store *store = queue->store;

	*table_out = store->ops->counters;
	if (*table_out == NULL || (store->ops->has_owner && store->owner.ring != queue->ring)) {
		return NULL;
	}
	return store->ops->has_owner ? (const void *)store : queue;
}
