// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "clan/segment.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
_Static_assert(SEGMENT_SEALED_SIZE == (F_SEAL_SHRINK | F_SEAL_GROW), "the kernel's numbers");
_Static_assert(
	SEGMENT_SEALED_WRITER == (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL), "the kernel's numbers");

size_t segment_page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

int segment_memfd(const char *name, size_t bytes)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL) { /* Linux before 6.3 */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	}
	if (fd < 0) {
		return -errno;
	}
	if (ftruncate(fd, (off_t)bytes) != 0) {
		int result = -errno;

		close(fd);
		return result;
	}
	return fd;
}

int segment_create(const char *name, size_t bytes, uint8_t **base_out, int *fd_out)
{
	int fd = segment_memfd(name, bytes);
	int result;

	if (fd < 0) {
		return fd;
	}
	result = segment_map(fd, 0, bytes, true, base_out);
	/* Sealed after our own mapping exists, because F_SEAL_FUTURE_WRITE forbids new writable
	 * mappings, including ours. */
	if (result == 0 &&
		fcntl(fd, F_ADD_SEALS, SEGMENT_SEALED_SIZE | SEGMENT_SEALED_WRITER) != 0) {
		result = -errno;
		munmap(*base_out, bytes);
	}
	if (result != 0) {
		close(fd);
		return result;
	}
	*fd_out = fd;
	return 0;
}

int segment_check(int fd, int seals, struct segment_identity *identity)
{
	int found = fcntl(fd, F_GET_SEALS);
	struct statfs filesystem;
	struct stat status;

	/* Only memfds have seals. All other descriptors are rejected here, because even fstat() can
	 * block on them (FUSE). */
	if (found < 0 || (found & seals) != seals) {
		return -EPERM;
	}
	if (fstatfs(fd, &filesystem) != 0 || fstat(fd, &status) != 0 ||
		filesystem.f_type == HUGETLBFS_MAGIC) {
		return -EPERM;
	}
	identity->device = status.st_dev;
	identity->inode = status.st_ino;
	identity->bytes = (uint64_t)status.st_size;
	return 0;
}

/* The pages are populated here, so that later accesses do not fault and cannot fail for lack of
 * memory. */
int segment_map(int fd, uint64_t offset, size_t bytes, bool writable, uint8_t **base_out)
{
	void *base = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd,
		(off_t)offset);

	if (base == MAP_FAILED) {
		return -errno;
	}
	if (madvise(base, bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) != 0 ||
		madvise(base, bytes, MADV_DONTFORK) != 0) {
		int result = -errno;

		munmap(base, bytes);
		return result == -EFAULT ? -ENOMEM : result;
	}
	*base_out = base;
	return 0;
}
