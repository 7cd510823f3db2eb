// SPDX-License-Identifier: Apache-2.0
#include "disk/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/bytes.h"

enum { RESIDENT_PAGES = 1024, BEYOND_BYTES = 1 << 30 };
#define MAP_BYTES_MAX (UINT64_C(1) << 46) /* half of the address space */

struct disk_map {
	int fd;
	uint8_t *base;
	uint64_t size; /* size of the mapping, in whole pages */
	uint32_t page_bytes;
	/* RWF_NOWAIT is not supported (tmpfs, where reads never wait) */
	_Atomic bool refuses_nowait;
};

/* Returns whether the kernel reports which pages are really cached. For users who neither own the
 * file nor may write to it, it reports all pages as cached. Capabilities and user namespaces also
 * matter. So the check queries a page that cannot be in the cache, because it is farther behind the
 * end of the file than any large page reaches. */
static bool is_told(int fd, uint64_t bytes, uint32_t page_bytes)
{
	void *page = mmap(NULL, page_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd,
		(off_t)(bytes + BEYOND_BYTES));
	unsigned char resident = 1;

	if (page == MAP_FAILED) {
		return false;
	}
	if (mincore(page, page_bytes, &resident) < 0) {
		resident = 1;
	}
	(void)munmap(page, page_bytes);
	return (resident & 1) == 0;
}

/*
 * Returns 0 if sendfile() on the file system can send cached data without waiting, otherwise a
 * negative errno, see disk_map_create():
 * - overlayfs: when any process opens a file of the lower layer for writing, the file is replaced
 *   by a copy, but a mapping still shows the old file. The layer below can be XFS.
 * - XFS: sendfile() waits for a lock that writes and trims hold, perhaps until the disk has
 *   written. A read-only export sees few of them.
 * - hugetlbfs has no sendfile().
 */
static int check_file_system(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	struct statfs status;

	if (flags < 0 || fstatfs(fd, &status) < 0) {
		return -EINVAL;
	}
	switch ((uint32_t)status.f_type) {
	case OVERLAYFS_SUPER_MAGIC:
		return -ESTALE;
	case XFS_SUPER_MAGIC:
		return (flags & O_ACCMODE) == O_RDONLY ? 0 : -EINVAL;
	case HUGETLBFS_MAGIC:
		return -EINVAL;
	default:
		return 0;
	}
}

int disk_map_create(int fd, uint64_t size, struct disk_map **map_out)
{
	uint32_t page_bytes = (uint32_t)sysconf(_SC_PAGESIZE);
	uint64_t bytes = align_up(size, page_bytes);
	struct disk_map *map;
	int rc;

	if (bytes > MAP_BYTES_MAX) {
		return -ENOMEM;
	}
	if (disk_is_remote(fd)) {
		return -EOPNOTSUPP;
	}
	rc = check_file_system(fd);
	if (rc < 0) {
		return rc;
	}
	if (!is_told(fd, bytes, page_bytes)) {
		return -EPERM;
	}
	map = calloc(1, sizeof(*map));
	if (map == NULL) {
		return -ENOMEM;
	}
	map->fd = fd;
	map->size = bytes;
	map->page_bytes = page_bytes;
	map->base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (map->base == MAP_FAILED) {
		int error = -errno;

		free(map);
		return error;
	}
	*map_out = map;
	return 0;
}

void disk_map_destroy(struct disk_map *map)
{
	if (map == NULL) {
		return;
	}
	(void)munmap(map->base, map->size);
	free(map);
}

bool disk_map_has(const struct disk_map *map, uint64_t offset, uint64_t length)
{
	unsigned char pages[RESIDENT_PAGES];
	uint64_t step = (uint64_t)RESIDENT_PAGES * map->page_bytes;
	uint64_t end = offset + length;

	if (end > map->size || end < offset) {
		return false;
	}
	for (uint64_t at = align_down(offset, map->page_bytes); at < end; at += step) {
		uint64_t bytes = MIN(step, end - at);
		uint64_t count = (bytes + map->page_bytes - 1) / map->page_bytes;

		if (mincore(map->base + at, bytes, pages) < 0) {
			return false;
		}
		for (uint64_t i = 0; i < count; i++) {
			if ((pages[i] & 1) == 0) {
				return false;
			}
		}
	}
	return true;
}

bool disk_map_peek(struct disk_map *map, uint64_t offset, void *bytes, size_t count)
{
	struct iovec iov = { .iov_base = bytes, .iov_len = count };
	ssize_t got;

	/* Relaxed order is enough: a thread that does not see the flag yet makes the same
	 * attempt. */
	if (!atomic_load_explicit(&map->refuses_nowait, memory_order_relaxed)) {
		got = preadv2(map->fd, &iov, 1, (off_t)offset, RWF_NOWAIT);
		if (got >= 0 || errno != EOPNOTSUPP) {
			return got == (ssize_t)count;
		}
		atomic_store_explicit(&map->refuses_nowait, true, memory_order_relaxed);
	}
	return pread(map->fd, bytes, count, (off_t)offset) == (ssize_t)count;
}

/* --- the page cache of a file -------------------------------------------------------------- */

void disk_set_random(int fd)
{
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

void disk_drop_cache(int fd, uint64_t offset, uint64_t length)
{
	(void)sync_file_range(fd, (off_t)offset, (off_t)length,
		SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
	(void)posix_fadvise(fd, (off_t)offset, (off_t)length, POSIX_FADV_DONTNEED);
}
