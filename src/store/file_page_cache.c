// SPDX-License-Identifier: Apache-2.0
/*
 * Reads that are sent from the page cache: the data is copied once, into the socket, instead of
 * twice. Only data that is already in the cache is sent in this way, because otherwise all clients
 * of the reactor would wait while the kernel reads from the disk.
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
	default:
		return "address-space";
	}
}

void file_page_cache_init(struct file_store *store, const struct store_options *options)
{
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

/* Reads the last byte of the range. The kernel then continues its readahead behind the range, as
 * after a normal read of the range. */
static bool touch_end(struct disk_map *map, uint64_t end)
{
	uint8_t last;

	return disk_map_peek(map, end - 1, &last, sizeof(last));
}

/* Returns false while another store of this process writes the disk directly, because direct writes
 * evict data from the cache. Checks the size on each call, because an error can no longer be
 * reported after the reply has begun. */
bool file_page_cache_ref(struct store_queue *base, struct store_part *part)
{
	struct file_store *store = container_of(base->store, struct file_store, base);
	const void *view;

	if (store->map == NULL) {
		return false;
	}
	if (file_gate_has_direct_writers(store->gate) ||
		file_auto_is_quiet(container_of(base, struct file_queue, base), part) ||
		part->offset + part->length > file_refresh_size(store)) {
		return false;
	}
	view = disk_map_view(store->map, part->offset, part->length);
	if (view == NULL) {
		return false;
	}
	part->memory = mem_limit(mem_of_const(view), STORE_PAGE_CACHE_RIGHTS);
	if (may_be_zeroes(store->map, part->offset, part->length) ||
		!touch_end(store->map, part->offset + part->length)) {
		return false;
	}
	file_auto_resident(part);
	return true;
}
