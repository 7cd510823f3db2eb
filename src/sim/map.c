// SPDX-License-Identifier: Apache-2.0
/* The simulated page cache: what it contains, and sends from it. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "disk/disk.h"
#include "ring/ring.h"
#include "sim/sim_internal.h"

struct disk_map {
	struct sim_disk *disk;
	uint64_t size;
};

int disk_map_create(int fd, uint64_t size, struct disk_map **map_out)
{
	struct disk_map *map = calloc(1, sizeof(*map));

	GMB_ASSERT(map != NULL);
	map->disk = sim_disk_file(fd)->disk;
	map->size = size;
	*map_out = map;
	return 0;
}

void disk_map_destroy(struct disk_map *map)
{
	free(map);
}

bool disk_map_has(const struct disk_map *map, uint64_t offset, uint64_t length)
{
	uint64_t end = offset + length;

	if (!range_inside(offset, length, MIN(map->size, map->disk->size))) {
		return false;
	}
	for (uint64_t at = align_down(offset, SIM_PAGE_BYTES); at < end; at += SIM_PAGE_BYTES) {
		const struct sim_page *page = sim_page_find(map->disk, at / SIM_PAGE_BYTES);

		if (page == NULL || page->cache == NULL) {
			return false;
		}
	}
	return true;
}

bool disk_map_peek(struct disk_map *map, uint64_t offset, void *bytes, size_t count)
{
	sim_cache_read(map->disk, offset, bytes, count);
	return true;
}

/* The peer gets the bytes that the file has now, although a kernel's socket would refer to them. */
ssize_t ring_sendfile_now(
	struct ring *ring, struct ring_file file, struct mem_ref bytes, size_t count)
{
	struct sim_disk *disk = sim_disk_file(bytes.region->fd)->disk;
	uint64_t offset = mem_offset(bytes);
	struct iovec iov = { 0 };
	ssize_t sent = -EFAULT;

	if (offset < disk->size) {
		iov.iov_len = MIN(count, (size_t)(disk->size - offset));
		iov.iov_base = malloc(iov.iov_len);
		GMB_ASSERT(iov.iov_base != NULL);
		sim_cache_read(disk, offset, iov.iov_base, iov.iov_len);
		sent = sim_net_send_now(sim_ring_fd(ring, file),
			&(struct msghdr){ .msg_iov = &iov, .msg_iovlen = 1 });
		free(iov.iov_base);
	} else {
		sim_world.send_faults++;
		sim_trace("send fault", (uint64_t)file.fd, 0, -EFAULT);
	}
	return sent;
}

/* --- confinement ----------------------------------------------------------------------------- */

int ring_check_restricted(struct ring *ring, struct error *error)
{
	return 0;
}
