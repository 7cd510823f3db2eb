// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated page cache as memory. disk_map_view() copies the cached contents to an area as
 * large as the disk, in which each byte has a fixed place. A later view of the same bytes therefore
 * changes the memory of an earlier view.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "disk/disk.h"
#include "ring/ring.h"
#include "sim/sim_internal.h"

struct disk_map {
	struct list_node node; /* in maps */
	struct sim_disk *disk;
	uint8_t *area;
	uint64_t size;
};

static struct list_node maps = { .next = &maps, .prev = &maps };

int disk_map_create(int fd, uint64_t size, struct disk_map **map_out)
{
	struct disk_map *map = calloc(1, sizeof(*map));

	GMB_ASSERT(map != NULL);
	map->disk = sim_disk_file(fd)->disk;
	map->size = size;
	map->area = mmap(NULL, size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map->area == MAP_FAILED) {
		free(map);
		return -ENOMEM;
	}
	list_push_back(&maps, &map->node);
	*map_out = map;
	return 0;
}

void disk_map_destroy(struct disk_map *map)
{
	if (map != NULL) {
		list_remove(&map->node);
		(void)munmap(map->area, map->size);
		free(map);
	}
}

static bool sim_map_is_resident(const struct disk_map *map, uint64_t offset, uint64_t end)
{
	for (uint64_t at = align_down(offset, SIM_PAGE_BYTES); at < end; at += SIM_PAGE_BYTES) {
		const struct sim_page *page = sim_page_find(map->disk, at / SIM_PAGE_BYTES);

		if (page == NULL || page->cache == NULL) {
			return false;
		}
	}
	return true;
}

const void *disk_map_view(struct disk_map *map, uint64_t offset, uint64_t length)
{
	if (!range_inside(offset, length, MIN(map->size, map->disk->size)) ||
		!sim_map_is_resident(map, offset, offset + length)) {
		return NULL;
	}
	sim_cache_read(map->disk, offset, map->area + offset, length);
	return map->area + offset;
}

bool disk_map_has(const struct disk_map *map, uint64_t offset)
{
	return offset < map->size && sim_map_is_resident(map, offset, offset + 1);
}

size_t sim_map_readable(const void *at, size_t len)
{
	list_for_each(node, &maps)
	{
		const struct disk_map *map = list_entry(node, struct disk_map, node);
		uintptr_t offset = (uintptr_t)at - (uintptr_t)map->area;
		uint64_t end = align_up(map->disk->size, SIM_PAGE_BYTES);

		if (offset < map->size) { /* below the area, offset wraps around */
			return offset < end ? MIN(len, (size_t)(end - offset)) : 0;
		}
	}
	return len;
}

bool disk_map_peek(struct disk_map *map, uint64_t offset, void *bytes, size_t count)
{
	sim_cache_read(map->disk, offset, bytes, count);
	return true;
}

/* --- confinement ----------------------------------------------------------------------------- */

int ring_check_restricted(struct ring *ring, struct error *error)
{
	GMB_UNUSED(ring);
	GMB_UNUSED(error);
	return 0;
}
