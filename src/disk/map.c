// SPDX-License-Identifier: Apache-2.0
#include "disk/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/bytes.h"

/*
 * The kernel frees page tables only together with the mapping. To limit them, a map consists of
 * windows. If too many windows are in use, the one that has been in use longest is mapped again at
 * the same address, which frees its page tables. This is atomic for all threads: a thread that is
 * sending from the window only has more page faults.
 */
enum {
	/* a window has 128 KiB of page tables, which are freed in a fraction of a ms */
	WINDOW_BYTES = 64 << 20,
	WINDOWS_MAX = 256,
	RESIDENT_PAGES = 1024,
	BEYOND_BYTES = 1 << 30,
};
#define MAP_BYTES_MAX (UINT64_C(1) << 46) /* half of the address space */

struct disk_map {
	int fd;
	uint8_t *base;
	uint64_t size; /* size of the mapping, in whole pages */
	uint32_t page_bytes;
	/* RWF_NOWAIT is not supported (tmpfs, where reads never wait) */
	_Atomic bool refuses_nowait;
	/* for each window: 1 if in use; changed under the lock, read by any thread */
	_Atomic uint8_t looked_at[];
};

/*
 * The windows in use of all maps, because the limit applies to the process. Changed when a view
 * needs a window that is not in use, which is rare.
 */
static struct {
	pthread_mutex_t lock;
	uint32_t count;
	uint32_t oldest;
	struct {
		struct disk_map *map; /* NULL: the map was destroyed */
		uint32_t idx;
	} slots[WINDOWS_MAX];
} windows = { .lock = PTHREAD_MUTEX_INITIALIZER };

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

/* Returns whether fd is open for reading only on an overlay file system. When any process opens a
 * file of the lower layer for writing, the file is copied to the upper layer. Later reads return
 * the copy, but a mapping still shows the old file. */
static bool may_be_copied_up(int fd)
{
	struct statfs status;
	int flags = fcntl(fd, F_GETFL);

	if (flags >= 0 && (flags & O_ACCMODE) == O_RDWR) {
		return false;
	}
	return fstatfs(fd, &status) < 0 || (uint32_t)status.f_type == OVERLAYFS_SUPER_MAGIC;
}

int disk_map_create(int fd, uint64_t size, struct disk_map **map_out)
{
	uint32_t page_bytes = (uint32_t)sysconf(_SC_PAGESIZE);
	uint64_t bytes = align_up(size, page_bytes);
	uint64_t window_count = (bytes + WINDOW_BYTES - 1) / WINDOW_BYTES;
	struct disk_map *map;

	if (bytes > MAP_BYTES_MAX) {
		return -ENOMEM;
	}
	if (disk_is_remote(fd)) {
		return -EOPNOTSUPP;
	}
	if (may_be_copied_up(fd)) {
		return -ESTALE;
	}
	if (!is_told(fd, bytes, page_bytes)) {
		return -EPERM;
	}
	map = calloc(1, sizeof(*map) + window_count * sizeof(map->looked_at[0]));
	if (map == NULL) {
		return -ENOMEM;
	}
	map->fd = fd;
	map->size = bytes;
	map->page_bytes = page_bytes;
	map->base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
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
	pthread_mutex_lock(&windows.lock);
	for (uint32_t i = 0; i < windows.count; i++) {
		if (windows.slots[i].map == map) {
			windows.slots[i].map = NULL;
		}
	}
	pthread_mutex_unlock(&windows.lock);
	(void)munmap(map->base, map->size);
	free(map);
}

/* --- windows ------------------------------------------------------------------------------- */

/* Frees the page tables of a window. If mmap() fails, the old mapping may be gone, and other memory
 * could be mapped there later and be sent to clients. So a failure aborts the process. */
static void disk_map_forget(struct disk_map *map, uint32_t idx)
{
	uint64_t begin = (uint64_t)idx * WINDOW_BYTES;
	uint64_t bytes = MIN((uint64_t)WINDOW_BYTES, map->size - begin);
	uint8_t *at = map->base + begin;
	void *anew;

	atomic_store_explicit(&map->looked_at[idx], 0, memory_order_relaxed);
	anew = mmap(at, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, map->fd,
		(off_t)begin);
	GMB_ASSERT(anew == at);
}

static void enter_window(struct disk_map *map, uint32_t idx)
{
	uint32_t slot;

	/* Relaxed order is enough: a thread that does not see the flag yet takes the lock and
	 * checks again. */
	if (atomic_load_explicit(&map->looked_at[idx], memory_order_relaxed) != 0) {
		return;
	}
	pthread_mutex_lock(&windows.lock);
	if (atomic_load_explicit(&map->looked_at[idx], memory_order_relaxed) == 0) {
		if (windows.count < WINDOWS_MAX) {
			slot = windows.count++;
		} else {
			slot = windows.oldest;
			windows.oldest = (windows.oldest + 1) % WINDOWS_MAX;
			if (windows.slots[slot].map != NULL) {
				disk_map_forget(windows.slots[slot].map, windows.slots[slot].idx);
			}
		}
		windows.slots[slot].map = map;
		windows.slots[slot].idx = idx;
		atomic_store_explicit(&map->looked_at[idx], 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&windows.lock);
}

/* --- views --------------------------------------------------------------------------------- */

static bool disk_map_is_resident(const struct disk_map *map, uint64_t begin, uint64_t end)
{
	unsigned char pages[RESIDENT_PAGES];
	uint64_t step = (uint64_t)RESIDENT_PAGES * map->page_bytes;

	for (; begin < end; begin += step) {
		uint64_t bytes = MIN(step, end - begin);
		uint64_t count = (bytes + map->page_bytes - 1) / map->page_bytes;

		if (mincore(map->base + begin, bytes, pages) < 0) {
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

const void *disk_map_view(struct disk_map *map, uint64_t offset, uint64_t length)
{
	uint64_t end = offset + length;

	if (end > map->size || end < offset) {
		return NULL;
	}
	if (!disk_map_is_resident(map, align_down(offset, map->page_bytes), end)) {
		return NULL;
	}
	for (uint64_t at = offset / WINDOW_BYTES; at <= (end - 1) / WINDOW_BYTES; at++) {
		enter_window(map, (uint32_t)at);
	}
	return map->base + offset;
}

bool disk_map_has(const struct disk_map *map, uint64_t offset)
{
	return offset < map->size &&
	       disk_map_is_resident(map, align_down(offset, map->page_bytes), offset + 1);
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
