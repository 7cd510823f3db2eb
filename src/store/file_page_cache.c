// SPDX-License-Identifier: Apache-2.0
/*
 * Reads that are sent from the page cache: the socket refers to the cached pages, and the server
 * copies nothing. Only data that is already in the cache is sent in this way, because otherwise all
 * clients of the reactor would wait while the kernel reads from the disk.
 */
#include "store/file.h"

#include <errno.h>

#include "store/kind.h"

/* Creates the map and returns NULL. On failure, returns the reason. */
static const char *map_create(struct file_store *store, const struct store_options *options)
{
	if (store_mode_is_direct(options->read_mode)) {
		return "mode=direct";
	}
	if (options->read_mode == STORE_MODE_CACHED && store_mode_is_direct(options->write_mode) &&
		!options->read_only) {
		return "write-mode=direct";
	}
	if (store->disk.size == 0) {
		return "empty";
	}
	switch (disk_map_create(store->fd, store->disk.size, &store->map)) {
	case 0:
		return NULL;
	case -EPERM:
		return "foreign";
	case -EOPNOTSUPP:
		return "network";
	case -ESTALE:
		return "overlay";
	case -EINVAL:
		return "filesystem";
	default:
		return "address-space";
	}
}

void file_page_cache_init(struct file_store *store, const struct store_options *options)
{
	store->pages = (struct mem_region){ .fd = store->fd, .rights = MEM_SOCKET };
	store->map_refusal = map_create(store, options);
	if (store->map_refusal != NULL) {
		store->map = NULL;
	}
}

const char *file_page_cache_refusal(struct store *base)
{
	const struct file_store *store = container_of(base, struct file_store, base);

	if (store->map_refusal != NULL) {
		return store->map_refusal;
	}
	if (store->base.info.write_direct) {
		return "write-mode=direct";
	}
	return file_gate_has_direct_writers(store->gate) ? "shared" : NULL;
}

static bool may_be_zeroes(struct disk_map *map, uint64_t offset, uint64_t length)
{
	for (uint64_t at = 0; at < length; at += STORE_PAGE_CACHE_LOOK_BYTES) {
		uint64_t word = 0;
		size_t count = MIN(sizeof(word), (size_t)(length - at));

		if (!disk_map_peek(map, offset + at, &word, count) || word == 0) {
			return true;
		}
	}
	return false;
}

/* Returns false while another store of this process writes the disk directly, because direct writes
 * evict data from the cache. Checks the size on each call, because an error can no longer be
 * reported after the reply has begun. */
bool file_page_cache_ref(struct store_queue *base, struct store_part *part)
{
	struct file_store *store = container_of(base->store, struct file_store, base);
	struct file_queue *queue = container_of(base, struct file_queue, base);
	uint64_t end = part->offset + part->length;

	/* The last page is checked first: it is missing in data that is not cached or is being read
	 * ahead, and a check of all pages takes up to 0.1 us for each missing page. */
	if (store->map == NULL || file_gate_has_direct_writers(store->gate) ||
		file_auto_is_quiet(queue, part) || !disk_map_has(store->map, end - 1, 1) ||
		!disk_map_has(store->map, part->offset, part->length) ||
		end > file_refresh_size(store) ||
		may_be_zeroes(store->map, part->offset, part->length)) {
		return false;
	}
	part->memory = mem_at(&store->pages, part->offset);
	file_auto_resident(part);
	return true;
}
