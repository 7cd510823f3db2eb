// SPDX-License-Identifier: Apache-2.0
/*
 * The overlay filter: opening, and reads. If a read covers blocks of both stores, it consists of
 * runs of blocks of one store each. Helpers read these runs in parallel.
 */
#include "store/overlay.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/log.h"
#include "disk/disk.h"

enum {
	CONFIG_PATH_BYTES = 4096,
	EXTENT_RUNS_MAX = 256, /* limit of runs for one extents request */
};

static const char discard_word[] = "discard";

struct overlay_config {
	char path[CONFIG_PATH_BYTES]; /* path of the file, or discard_word for overlay=discard */
};

/* --- the map --------------------------------------------------------------------------------- */

static uint64_t present_word(const struct overlay_store *store, uint64_t block)
{
	/* The acquire order pairs with the release that set the bit: a thread that sees the bit
	 * also sees the state of its page. */
	return atomic_load_explicit(
		&store->present[block / OVERLAY_WORD_BLOCKS], memory_order_acquire);
}

bool overlay_has(const struct overlay_store *store, uint64_t block)
{
	return (present_word(store, block) >> block % OVERLAY_WORD_BLOCKS & 1) != 0;
}

uint64_t overlay_run(const struct overlay_store *store, uint64_t first, uint64_t end, bool *present)
{
	uint64_t at = first;

	*present = overlay_has(store, first);
	while (at < end) {
		uint64_t word = present_word(store, at);
		uint64_t others = (*present ? ~word : word) >> at % OVERLAY_WORD_BLOCKS;

		if (others != 0) {
			return MIN(at + (uint64_t)__builtin_ctzll(others), end);
		}
		at += OVERLAY_WORD_BLOCKS - at % OVERLAY_WORD_BLOCKS;
	}
	return end;
}

/* Returns the end of the run of blocks that contains offset, in bytes, at most end. */
static uint64_t overlay_run_bytes(
	const struct overlay_store *store, uint64_t offset, uint64_t end, bool *present)
{
	uint64_t stop = overlay_run(store, overlay_first(offset), overlay_end(end), present);

	return MIN(stop << OVERLAY_BLOCK_SHIFT, end);
}

/* --- forwarding to the stores below ---------------------------------------------------------- */

void overlay_forward(struct store_part *part, bool upper)
{
	struct overlay_queue *queue = overlay_queue_of(part);

	if (upper && part->op != STORE_FLUSH) {
		part->offset += overlay_of(part->queue)->data_offset;
	}
	store_forward_to(upper ? queue->upper : queue->base.inner, part);
}

void overlay_helper_submit(struct overlay_helper *helper, bool upper, enum store_op op,
	uint64_t offset, uint64_t length, struct mem_ref memory, store_done_fn *done)
{
	struct overlay_queue *queue = helper->queue;

	helper->part.op = op;
	helper->part.flags = 0;
	helper->part.offset = offset + (upper ? overlay_of(&queue->base)->data_offset : 0);
	helper->part.length = length;
	helper->part.memory = memory;
	helper->part.requester = helper->owner->requester;
	helper->part.done = done;
	store_submit(upper ? queue->upper : queue->base.inner, &helper->part);
}

/* --- helpers, and parts that come back from another ring or wait for a helper ---------------- */

static void split_next(struct store_part *part, struct overlay_helper *helper);

static void resume(struct store_part *part)
{
	switch ((enum overlay_step)overlay_scratch_of(part)->step) {
	case OVERLAY_STEP_CHANGE:
	case OVERLAY_STEP_COPY:
		overlay_change_resume(part, (enum overlay_step)overlay_scratch_of(part)->step);
		break;
	case OVERLAY_STEP_SPLIT:
		split_next(part, overlay_helper_take(part, OVERLAY_STEP_SPLIT));
		break;
	case OVERLAY_STEP_LEAD:
		overlay_commit_lead(part);
		break;
	case OVERLAY_STEP_FINISH:
		store_finish(part, overlay_scratch_of(part)->result);
		break;
	}
}

struct overlay_helper *overlay_helper_take(struct store_part *part, enum overlay_step step)
{
	struct overlay_queue *queue = overlay_queue_of(part);
	struct list_node *node = list_pop_front(&queue->idle);
	struct overlay_helper *helper;

	if (node == NULL) {
		overlay_scratch_of(part)->step = (uint8_t)step;
		list_push_back(&queue->hoping, &part->node);
		return NULL;
	}
	helper = list_entry(node, struct overlay_helper, node);
	helper->owner = part;
	return helper;
}

void overlay_helper_give(struct overlay_helper *helper)
{
	struct overlay_queue *queue = helper->queue;
	struct list_node *node;

	helper->owner = NULL;
	list_push_front(&queue->idle, &helper->node);
	node = list_pop_front(&queue->hoping);
	if (node != NULL) {
		resume(list_entry(node, struct store_part, node));
	}
}

static void overlay_port_deliver(struct ring *ring, struct ring_message *message)
{
	struct overlay_port *port = container_of(message, struct overlay_port, message);
	struct overlay_queue *queue = container_of(port, struct overlay_queue, port);
	struct overlay_store *store = overlay_of(&queue->base);
	struct list_node parts;
	struct list_node *node;

	GMB_ASSERT(ring == queue->base.ring);
	list_init(&parts);
	pthread_mutex_lock(&store->lock);
	list_move_all(&parts, &port->parts);
	port->posted = false;
	pthread_mutex_unlock(&store->lock);
	/* The queue must not be used from here on: the submitter of the last part may destroy
	 * it. */
	while ((node = list_pop_front(&parts)) != NULL) {
		resume(list_entry(node, struct store_part, node));
	}
}

void overlay_send(struct store_part *part, enum overlay_step step)
{
	struct overlay_queue *queue = overlay_queue_of(part);

	overlay_scratch_of(part)->step = (uint8_t)step;
	list_push_back(&queue->port.parts, &part->node);
	/* While the message is posted, a part of this queue is in flight, so the queue is not
	 * destroyed. */
	if (!queue->port.posted) {
		queue->port.posted = true;
		ring_post(queue->base.ring, &queue->port.message);
	}
}

/* --- reads ----------------------------------------------------------------------------------- */

/* Continues with the next runs. Finishes the part when its last helper is done. After an error, no
 * new run begins. */
static void split_done(struct store_part *helper_part, int result)
{
	struct overlay_helper *helper = container_of(helper_part, struct overlay_helper, part);
	struct store_part *part = helper->owner;
	struct overlay_scratch *scratch = overlay_scratch_of(part);

	scratch->pending--;
	if (result != 0 && scratch->result == 0) {
		scratch->result = result;
	}
	if (helper_part->memory_error != 0) {
		part->memory_error = helper_part->memory_error;
	}
	if (scratch->result == 0 && scratch->done_bytes < part->length) {
		split_next(part, helper);
		return;
	}
	result = scratch->result;
	if (scratch->pending > 0) {
		overlay_helper_give(helper);
		return;
	}
	overlay_helper_give(helper);
	store_finish(part, result);
}

/* Reads the next runs, one with this helper and one with each idle helper. */
static void split_next(struct store_part *part, struct overlay_helper *helper)
{
	struct overlay_queue *queue = overlay_queue_of(part);
	struct overlay_scratch *scratch = overlay_scratch_of(part);

	while (helper != NULL) {
		uint64_t offset = part->offset + scratch->done_bytes;
		bool present;
		uint64_t stop = overlay_run_bytes(
			overlay_of(part->queue), offset, part->offset + part->length, &present);
		struct mem_ref memory = mem_add(part->memory, scratch->done_bytes);

		scratch->pending++;
		scratch->done_bytes += stop - offset;
		overlay_helper_submit(
			helper, present, STORE_READ, offset, stop - offset, memory, split_done);
		helper = scratch->done_bytes < part->length && !list_is_empty(&queue->idle)
				 ? overlay_helper_take(part, OVERLAY_STEP_SPLIT)
				 : NULL;
	}
}

static void overlay_read(struct store_part *part)
{
	struct overlay_queue *queue = overlay_queue_of(part);
	uint64_t end = part->offset + part->length;
	bool present;

	if (overlay_run_bytes(overlay_of(part->queue), part->offset, end, &present) == end) {
		overlay_forward(part, present);
		return;
	}
	queue->split_reads++;
	split_next(part, overlay_helper_take(part, OVERLAY_STEP_SPLIT));
}

/* Returns false if the range has blocks in both stores. The caller then submits a normal read. */
static bool overlay_page_cache_ref(struct store_queue *base, struct store_part *part)
{
	struct overlay_queue *queue = container_of(base, struct overlay_queue, base);
	uint64_t offset = part->offset;
	uint64_t end = offset + part->length;
	struct overlay_store *store = overlay_of(base);
	struct store_queue *lower;
	bool present;
	bool done;

	if (end > store->layout.size || overlay_run_bytes(store, offset, end, &present) != end) {
		return false;
	}
	lower = present ? queue->upper : base->inner;
	if (lower->store->ops->page_cache_ref == NULL) {
		return false;
	}
	part->queue = lower;
	part->offset += present ? store->data_offset : 0;
	done = lower->store->ops->page_cache_ref(lower, part);
	part->offset = offset;
	part->queue = base;
	return done;
}

static const char *overlay_page_cache_refusal(struct store *base)
{
	return store_page_cache_refusal(base->inner);
}

/* --- extents --------------------------------------------------------------------------------- */

/* Appends the extents found in one run to those found before. Returns the number of bytes that they
 * cover. */
static uint64_t extents_append(struct overlay_scratch *scratch, const struct store_part *part)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < part->extent_count; i++) {
		struct store_extent extent = part->extents[i];
		uint32_t count = scratch->extent_count;

		bytes += extent.length;
		if (count > 0 && scratch->extents[count - 1].flags == extent.flags) {
			scratch->extents[count - 1].length += extent.length;
		} else {
			scratch->extents[scratch->extent_count++] = extent;
		}
	}
	return bytes;
}

static void extents_finish(struct store_part *part, int result)
{
	struct overlay_scratch *scratch = overlay_scratch_of(part);

	part->extents = scratch->extents;
	part->extent_max = scratch->extent_max;
	part->extent_count = scratch->extent_count;
	/* If some extents were found before the error, the submitter requests the rest and then
	 * gets the error. */
	store_finish(part, scratch->extent_count > 0 ? 0 : result);
}

static void extents_next(struct store_part *part)
{
	struct overlay_scratch *scratch = overlay_scratch_of(part);
	uint64_t offset = scratch->offset + scratch->done_bytes;
	bool present;
	uint64_t stop = overlay_run_bytes(
		overlay_of(part->queue), offset, scratch->offset + scratch->length, &present);

	part->offset = offset;
	part->length = stop - offset;
	part->extents = scratch->extents + scratch->extent_count;
	part->extent_max = scratch->extent_max - scratch->extent_count;
	part->extent_count = 0;
	overlay_forward(part, present);
}

/* Adds the extents of one run. Finishes the part if they do not cover the whole run, if the array
 * is full, or after EXTENT_RUNS_MAX runs. */
static void overlay_extents_done(struct store_part *part, int result)
{
	struct overlay_scratch *scratch = overlay_scratch_of(part);
	uint64_t run = part->length;
	uint64_t found = result == 0 ? extents_append(scratch, part) : 0;

	scratch->done_bytes += found;
	part->offset = scratch->offset;
	part->length = scratch->length;
	if (found < run || scratch->done_bytes == scratch->length ||
		scratch->extent_count == scratch->extent_max ||
		++scratch->runs == EXTENT_RUNS_MAX) {
		extents_finish(part, result);
	} else {
		extents_next(part);
	}
}

/* --- parts ----------------------------------------------------------------------------------- */

static void overlay_inner_done(struct store_part *part, int result)
{
	if (part->op == STORE_EXTENTS) {
		overlay_extents_done(part, result);
		return;
	}
	part->offset = overlay_scratch_of(part)->offset;
	part->length = overlay_scratch_of(part)->length;
	if ((BIT(part->op) & STORE_CHANGES) != 0) {
		overlay_change_done(part, result);
	} else {
		store_finish(part, result);
	}
}

static void overlay_submit(struct store_queue *base, struct store_part *part)
{
	struct overlay_store *store = overlay_of(base);
	struct overlay_scratch *scratch = overlay_scratch_of(part);

	*scratch = (struct overlay_scratch){ .offset = part->offset,
		.length = part->length,
		.extents = part->extents,
		.extent_max = part->extent_max };
	if (part->op != STORE_FLUSH && part->offset + part->length > store->layout.size) {
		store_finish_later(part, -EIO);
		return;
	}
	switch (part->op) {
	case STORE_READ:
		overlay_read(part);
		break;
	case STORE_CACHE: /* ignored, because CACHE is only a hint */
		overlay_forward(part, overlay_has(store, overlay_first(part->offset)));
		break;
	case STORE_EXTENTS:
		extents_next(part);
		break;
	case STORE_FLUSH:
		/* Acquire pairs with the release in page_set(): the flush covers all changes that
		 * were complete when it was submitted. */
		if (atomic_load_explicit(&store->unsaved_count, memory_order_acquire) > 0) {
			overlay_commit(part);
		} else {
			overlay_forward(part, true);
		}
		break;
	case STORE_WRITE:
	case STORE_TRIM:
	case STORE_ZERO:
		overlay_change(part);
		break;
	case STORE_COPY: /* the overlay offers no copy methods */
	case STORE_OP_COUNT:
		GMB_ASSERT(false);
	}
}

/* --- queues ---------------------------------------------------------------------------------- */

static int overlay_queue_init(struct store_queue *base, struct error *error)
{
	struct overlay_queue *queue = container_of(base, struct overlay_queue, base);
	void *buffers;
	int result = store_queue_create(overlay_of(base)->upper, base->ring, &queue->upper, error);

	if (result < 0) {
		return result;
	}
	if (posix_memalign(&buffers, OVERLAY_BLOCK_BYTES, OVERLAY_HELPERS * OVERLAY_BLOCK_BYTES) !=
		0) {
		store_queue_destroy(queue->upper);
		return error_set(error, -ENOMEM, "not enough memory for a queue of an overlay");
	}
	queue->buffers = buffers;
	queue->upper->outer = base;
	queue->port.message.deliver = overlay_port_deliver;
	list_init(&queue->port.parts);
	list_init(&queue->idle);
	list_init(&queue->hoping);
	list_init(&queue->committed);
	for (size_t i = 0; i < OVERLAY_HELPERS; i++) {
		queue->helpers[i].queue = queue;
		queue->helpers[i].buffer = queue->buffers + i * OVERLAY_BLOCK_BYTES;
		list_push_back(&queue->idle, &queue->helpers[i].node);
	}
	return 0;
}

static void overlay_queue_fini(struct store_queue *base)
{
	struct overlay_queue *queue = container_of(base, struct overlay_queue, base);

	GMB_ASSERT(!queue->port.posted);
	store_queue_destroy(queue->upper);
	free(queue->buffers);
}

/* --- opening --------------------------------------------------------------------------------- */

static uint64_t map_bytes(const struct overlay_store *store)
{
	return store->layout.page_count * OVERLAY_PAGE_BYTES;
}

/* Returns the size of the mapping, which reserves only address space: memory is used as bits are
 * set. */
static uint64_t maps_bytes(const struct overlay_store *store)
{
	return 3 * map_bytes(store) + store->layout.page_count;
}

/* Releases everything that open has acquired so far. */
static void overlay_release(struct overlay_store *store)
{
	if (store->fd >= 0) {
		disk_close(store->fd);
	}
	store_close(store->upper);
	if (store->maps != NULL) {
		(void)munmap(store->maps, maps_bytes(store));
	}
	pthread_mutex_destroy(&store->lock);
	free(store->path);
}

static void overlay_close(struct store *base)
{
	struct overlay_store *store = container_of(base, struct overlay_store, base);
	int result = base->is_let_go ? 0 : overlay_commit_all(store);

	if (result < 0) {
		log_error("overlay '%s': cannot make the last changes durable: %s; writes that "
			  "were not flushed are lost",
			quote(store->path), strerror(-result));
	}
	overlay_release(store);
}

static int open_maps(struct overlay_store *store, struct error *error)
{
	uint8_t *maps = mmap(NULL, maps_bytes(store), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (maps == MAP_FAILED) {
		return error_set(error, -ENOMEM, "not enough memory for the map of an overlay");
	}
	store->maps = maps;
	store->saved = store->maps;
	store->present = (void *)(maps + map_bytes(store));
	store->busy = (void *)(maps + 2 * map_bytes(store));
	store->pages = (void *)(maps + 3 * map_bytes(store));
	return 0;
}

static int open_upper(struct overlay_store *store, const struct store_options *options,
	const char *path, const struct store_claim *inherited, struct error *error)
{
	struct store_options upper = {
		.path = path,
		.inherited = inherited,
		.is_below = true,
		.read_only = options->read_only,
		.frozen = options->read_only,
		.sole = !options->read_only,
		.read_mode = options->read_mode,
		.write_mode = options->write_mode,
		.page_cache_send_off = options->page_cache_send_off,
	};
	/* The upper store opens the file as raw, because a file with the format of an overlay would
	 * be rejected. */
	int result = store->path != NULL ? store_options_set(&upper, "format", "raw", error) : 0;

	result = result ?: store_open(&upper, &store->upper, error);
	store_options_fini(&upper);
	return result;
}

static void log_made(const char *path, const struct overlay_base *base)
{
	log_info("created the overlay '%s' on '%s'", quote(path), quote(base->path));
}

/* Opens the file, creating it if it does not exist. */
static int open_or_make(const char *path, bool read_only, const struct overlay_base *base, int *fd,
	struct error *error)
{
	struct overlay_layout layout = overlay_layout_of(base->size);
	uint8_t head[OVERLAY_HEAD_BYTES];
	int result = disk_open(path, read_only, false, fd, error);

	if (result != -ENOENT || read_only) {
		return result;
	}
	overlay_head_encode(base, head);
	result = disk_create(path, layout.data_offset + layout.size, head, sizeof(head), error);
	if (result < 0 && result != -EEXIST) {
		return result;
	}
	if (result == 0) {
		log_made(path, base);
	}
	return disk_open(path, read_only, false, fd, error);
}

/* Turns an empty file into a new overlay. Used by sandboxed servers, which cannot create files. */
static int fill_if_empty(
	int fd, const char *path, const struct overlay_base *base, struct error *error)
{
	bool is_empty;
	int result = overlay_file_is_empty(fd, base, &is_empty);

	if (result < 0) {
		return error_set(
			error, result, "cannot read the overlay '%s': %s", path, strerror(-result));
	}
	if (is_empty) {
		result = overlay_file_fill(fd, path, base, error);
	}
	if (is_empty && result == 0) {
		log_made(path, base);
	}
	return result;
}

/* Opens the overlay file. Claims it before reading it. */
static int overlay_open_file(struct overlay_store *store, const struct store_options *options,
	const char *path, struct error *error)
{
	struct overlay_base recorded;
	struct overlay_base found;
	int result;

	if (store_kind_at(store_kind_of_path(options->path))->prefix != NULL) {
		return error_set(error, -EINVAL,
			"overlay: '%s' is neither a file nor a block device, so its changes cannot "
			"be written to a file; use overlay=%s",
			options->path, discard_word);
	}
	if (store_kind_at(store_kind_of_path(path))->prefix != NULL) {
		return error_set(error, -EINVAL,
			"overlay: '%s' is not the path of a file; to discard the changes when the "
			"server ends, use overlay=%s",
			path, discard_word);
	}
	if (strcmp(path, options->path) == 0) {
		return error_set(error, -EINVAL,
			"overlay: '%s' is the disk itself; name another file for the changes",
			path);
	}
	result = overlay_base_look(options->path, &found, error);
	result = result ?: open_or_make(path, options->read_only, &found, &store->fd, error);
	result = result ?: open_upper(store, options, path, NULL, error);
	if (result == 0 && !options->read_only) {
		result = fill_if_empty(store->fd, path, &found, error);
	}
	result = result ?: overlay_head_read(store->fd, path, &recorded, error);
	result = result ?: overlay_base_compare(path, &recorded, &found, error);
	result = result ?: open_maps(store, error);
	if (result == 0) {
		struct overlay_bitmap bitmap = { store->saved, store->present, 0 };

		result = overlay_bitmap_read(store->fd, path, &store->layout, &bitmap, error);
	}
	return result;
}

/* Returns whether the changes in memory (overlay=discard) belong to the base with this identity.
 * Called when a process takes the memory over. The memory has the layout of an overlay file, but
 * begins with the base's identity instead of a header. If the base itself is in memory, zeroes are
 * used instead of its identity, which is valid only in one process. All such bases contain only
 * zeroes, so they cannot differ. */
static bool is_on(const struct overlay_store *store, const uint64_t identity[2])
{
	return memcmp(memory_store_bytes(store->upper), identity, 2 * sizeof(*identity)) == 0;
}

static void find_base(struct overlay_store *store, uint64_t identity[2])
{
	struct store_claim claim;

	memset(identity, 0, 2 * sizeof(*identity));
	if (store_handover(store->base.inner, &claim) == NULL && claim.hold != STORE_HOLD_MEMORY) {
		memcpy(identity, claim.identity, sizeof(claim.identity));
	}
}

/* For overlay=discard: opens an upper store in memory, with the layout of an overlay file. */
static int open_memory(
	struct overlay_store *store, const struct store_options *options, struct error *error)
{
	uint64_t identity[2];
	char path[64];
	int result;

	snprintf(path, sizeof(path), "memory:%llu",
		(unsigned long long)(store->layout.data_offset + store->layout.size));
	find_base(store, identity);
	result = open_upper(store, options, path, options->inherited, error);
	if (result == 0 && options->inherited != NULL && !is_on(store, identity)) {
		store_close(store->upper);
		store->upper = NULL;
		result = open_upper(store, options, path, NULL, error);
	}
	result = result ?: open_maps(store, error);
	if (result == 0) {
		memcpy(memory_store_bytes(store->upper), identity, sizeof(identity));
		store->present =
			(void *)(memory_store_bytes(store->upper) + overlay_page_offset(0));
	}
	return result;
}

/* Takes the more restrictive value of each property of the two stores. */
static void overlay_fill_info(struct overlay_store *store)
{
	const struct store_info *upper = store_info(store->upper);
	struct store_info *info = &store->base.info;

	info->kind = "overlay";
	info->caps = (upper->caps & ~(uint32_t)STORE_CAP_CALLS) | STORE_CAP_EXTENTS |
		     (info->caps & STORE_CAP_ROTATIONAL);
	info->block_min = upper->block_min;
	info->block_preferred = MAX(info->block_preferred, upper->block_preferred);
	info->block_preferred = MAX(info->block_preferred, (uint32_t)OVERLAY_BLOCK_BYTES);
	info->memory_align = MAX(info->memory_align, upper->memory_align);
	info->offset_align = MAX(info->offset_align, upper->offset_align);
	info->memory_rights |= upper->memory_rights;
	info->page_cache_rights &= upper->page_cache_rights;
	info->write_direct = upper->write_direct;
	info->stripe_chunk = 0;
	info->stripe_members = 0;
	/* writing a new block is not atomic, because its data and its bit are two writes */
	info->atomic_bytes = 0;
	info->is_volatile = upper->is_volatile;
	info->has_progress = false;
	/* The epoch is random, so that it changes with each start: a killed server has not recorded
	 * where its last changes are, so they might be lost. */
	if (getrandom(&info->epoch, sizeof(info->epoch), 0) != sizeof(info->epoch)) {
		info->epoch = 0;
	}
}

static int overlay_open(struct store *base, const struct store_options *options,
	const void *config_bytes, struct error *error)
{
	struct overlay_store *store = container_of(base, struct overlay_store, base);
	const struct overlay_config *config = config_bytes;
	bool discards = strcmp(config->path, discard_word) == 0;
	uint64_t size = store_size(base->inner);
	int result;

	if (size == 0 || size > OVERLAY_SIZE_MAX) {
		return error_set(error, -EINVAL,
			"overlay: '%s' has %llu bytes; an overlay supports 1 byte to 256 TiB",
			options->path, (unsigned long long)size);
	}
	store->fd = -1;
	store->layout = overlay_layout_of(size);
	store->data_offset = store->layout.data_offset;
	pthread_mutex_init(&store->lock, NULL);
	list_init(&store->blocked);
	list_init(&store->committing_next);
	store->path = discards ? NULL : strdup(config->path);
	if (!discards && store->path == NULL) {
		result = error_set(error, -ENOMEM, "not enough memory for an overlay");
	} else {
		result = discards ? open_memory(store, options, error)
				  : overlay_open_file(store, options, config->path, error);
	}
	if (result < 0) {
		overlay_release(store);
		return result;
	}
	overlay_fill_info(store);
	/* This layer's slice of a part's scratch is behind the slices of both stores below. */
	base->scratch_offset = MAX(base->scratch_offset,
		store->upper->scratch_offset + store->upper->ops->scratch_bytes);
	return 0;
}

static uint64_t overlay_size(struct store *base)
{
	return container_of(base, struct overlay_store, base)->layout.size;
}

static enum store_barrier overlay_barrier(struct store *base, bool look)
{
	enum store_barrier upper =
		store_barrier(container_of(base, struct overlay_store, base)->upper, look);
	enum store_barrier lower = store_barrier(base->inner, look);

	return upper == STORE_BARRIER_CLOSED || lower == STORE_BARRIER_OPEN ? upper : lower;
}

static const struct counter counter_list[] = {
	STORE_COUNTER(struct overlay_queue, split_reads, ITEMS,
		"Reads that contain both changed and unchanged blocks"),
	STORE_COUNTER(struct overlay_queue, copied_blocks, ITEMS,
		"Blocks copied from the base because only a part of each was written"),
	STORE_COUNTER(struct overlay_queue, commits, ITEMS,
		"Flushes that also wrote the map of changed blocks"),
};

static const struct counter_table counters = { "overlay", "export", "store_overlay_", counter_list,
	ARRAY_COUNT(counter_list) };

/* Hands over only the upper store, because the base is only read. */
static const char *overlay_handover(struct store *base, struct store_claim *claim_out)
{
	return store_handover(container_of(base, struct overlay_store, base)->upper, claim_out);
}

/* Returns false, because the blocks are in two files. */
static bool overlay_place(struct store *base, struct store_place *place_out)
{
	return false;
}

/* Reads the bitmap again, because the other process can have made further blocks present since this
 * process opened the file. Blocks never become absent. */
static int overlay_take(struct store *base, struct error *error)
{
	struct overlay_store *store = container_of(base, struct overlay_store, base);
	struct overlay_bitmap bitmap = { store->saved, store->present, 0 };

	return store->fd < 0 ? 0
			     : overlay_bitmap_read(
				       store->fd, store->path, &store->layout, &bitmap, error);
}

static const struct store_ops overlay_ops = {
	.name = "overlay",
	.queue_bytes = sizeof(struct overlay_queue),
	.scratch_bytes = sizeof(struct overlay_scratch),
	.close = overlay_close,
	.queue_init = overlay_queue_init,
	.queue_fini = overlay_queue_fini,
	.submit = overlay_submit,
	.inner_done = overlay_inner_done,
	.page_cache_ref = overlay_page_cache_ref,
	.page_cache_refusal = overlay_page_cache_refusal,
	.size = overlay_size,
	.counters = &counters,
	.barrier = overlay_barrier,
	.handover = overlay_handover,
	.place = overlay_place,
	.needs_quiesce = true,
	.take = overlay_take,
};

static int set_overlay(void *config_bytes, const char *value, struct error *error)
{
	struct overlay_config *config = config_bytes;
	int bytes = snprintf(config->path, sizeof(config->path), "%s", value);

	if (bytes == 0 || (size_t)bytes >= sizeof(config->path)) {
		return error_set(error, -EINVAL,
			"the value is empty or too long for a path; name a file, or use %s",
			discard_word);
	}
	return 0;
}

static const char *config_file(const void *config_bytes)
{
	const struct overlay_config *config = config_bytes;

	return strcmp(config->path, discard_word) == 0 ? NULL : config->path;
}

static const struct field options[] = {
	{ "overlay", "FILE|discard",
		"destination of changes: FILE, which is created if it does not exist, or discard, "
		"which keeps them in memory until the server ends; PATH is never written, and many "
		"exports can share it",
		"discard", .set = set_overlay, FIELD_AT(struct overlay_config, path, path) },
};

const struct store_kind overlay_store_kind = {
	.name = "overlay",
	.is_filter = true,
	.freezes_inner = true,
	.file = config_file,
	.check = overlay_check,
	.create_check = overlay_create_check,
	.create = overlay_create,
	.options = options,
	.option_count = ARRAY_COUNT(options),
	.config_bytes = sizeof(struct overlay_config),
	.store_bytes = sizeof(struct overlay_store),
	.ops = &overlay_ops,
	.open = overlay_open,
};
