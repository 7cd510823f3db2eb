// SPDX-License-Identifier: Apache-2.0
#include "disk/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <linux/major.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"

enum {
	SECTOR_BYTES = 512,
	PROBE_BYTES_MAX = 65536,
	PREFERRED_BYTES_MAX = 1 << 20,
};

#define SECOND_NS INT64_C(1000000000)

/* --- opening ------------------------------------------------------------------------------- */

static const char *kind_refused(mode_t mode)
{
	if (S_ISDIR(mode)) {
		return "a directory";
	}
	if (S_ISCHR(mode)) {
		return "a character device";
	}
	if (S_ISFIFO(mode)) {
		return "a pipe";
	}
	if (S_ISSOCK(mode)) {
		return "a socket";
	}
	return NULL;
}

static int refuse_kind(const char *path, mode_t mode, struct error *error)
{
	const char *kind = kind_refused(mode);

	if (kind == NULL) {
		return 0;
	}
	return error_set(error, S_ISDIR(mode) ? -EISDIR : -ENOTSUP,
		"cannot open '%s': it is %s; name a regular file or a block device", path, kind);
}

static int explain_busy(const char *path, struct error *error)
{
	return error_advise(error, -EBUSY, "readonly",
		"'%s' is mounted or in use by another program; unmount it or stop that program",
		path);
}

int disk_explain_open(const char *path, bool read_only, bool direct, int code, struct error *error)
{
	switch (code) {
	case ENOENT:
		return error_set(error, -code, "cannot open '%s': it does not exist", path);
	case EINVAL:
		if (direct) {
			return error_advise(error, -code, "mode=cached",
				"cannot open '%s' for direct I/O: the filesystem does not support "
				"O_DIRECT",
				path);
		}
		break;
	case EACCES:
	case EPERM:
		if (!read_only) {
			return error_advise(error, -code, "readonly",
				"cannot open '%s' for writing: %s; change its permissions", path,
				strerror(code));
		}
		break;
	case EROFS:
		return error_advise(error, -code, "readonly",
			"cannot open '%s' for writing: it is on a read-only filesystem or device",
			path);
	case EBUSY: /* newer kernels can refuse to open a mounted device for writing */
		return explain_busy(path, error);
	case ETXTBSY:
		return error_set(error, -code,
			"cannot open '%s' for writing: it is in use as a swap file or a running "
			"program",
			path);
	default:
		break;
	}
	return error_set(error, -code, "cannot open '%s': %s", path, strerror(code));
}

int disk_open(const char *path, bool read_only, bool direct, int *fd_out, struct error *error)
{
	struct stat status;
	int flags =
		(read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOCTTY | (direct ? O_DIRECT : 0);
	int result;
	int fd;

	/* Checks the kind of file before opening it, because opening a pipe blocks, and opening a
	 * device can have side effects. */
	if (stat(path, &status) != 0) {
		return disk_explain_open(path, read_only, direct, errno, error);
	}
	result = refuse_kind(path, status.st_mode, error);
	if (result < 0) {
		return result;
	}
	do {
		fd = open(path, flags);
	} while (fd < 0 && errno == EINTR);
	if (fd < 0) {
		return disk_explain_open(path, read_only, direct, errno, error);
	}
	if (fstat(fd, &status) != 0) {
		result = error_set(error, -errno, "cannot examine '%s': %s", path, strerror(errno));
	} else {
		result = refuse_kind(path, status.st_mode, error);
	}
	if (result < 0) {
		close(fd);
		return result;
	}
	*fd_out = fd;
	return 0;
}

void disk_close(int fd)
{
	close(fd);
}

/* --- whole transfers and new files ---------------------------------------------------------- */

int disk_read(int fd, void *bytes, size_t count, uint64_t offset)
{
	while (count > 0) {
		ssize_t done = pread(fd, bytes, count, (off_t)offset);

		if (done < 0 && errno == EINTR) {
			continue;
		}
		if (done <= 0) {
			return done < 0 ? -errno : -EIO;
		}
		bytes = (uint8_t *)bytes + done;
		offset += (uint64_t)done;
		count -= (size_t)done;
	}
	return 0;
}

int disk_write(int fd, const void *bytes, size_t count, uint64_t offset)
{
	while (count > 0) {
		ssize_t done = pwrite(fd, bytes, count, (off_t)offset);

		if (done < 0 && errno == EINTR) {
			continue;
		}
		if (done <= 0) {
			return done < 0 ? -errno : -EIO;
		}
		bytes = (const uint8_t *)bytes + done;
		offset += (uint64_t)done;
		count -= (size_t)done;
	}
	return 0;
}

int disk_sync(int fd)
{
	int result;

	do {
		result = fdatasync(fd);
	} while (result != 0 && errno == EINTR);
	return result == 0 ? 0 : -errno;
}

/* Makes the name of a new file durable by syncing its folder. */
static int linux_sync_folder(const char *path)
{
	char *copy = strdup(path);
	int fd = copy != NULL ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	int result = fd < 0 ? -errno : fsync(fd) == 0 ? 0 : -errno;

	if (fd >= 0) {
		close(fd);
	}
	free(copy);
	return result;
}

/* Writes the contents of the draft file, makes them durable, and links the file to path. */
static int create_filled(int fd, const char *draft, const char *path, uint64_t size,
	const void *head, size_t head_bytes)
{
	int result = ftruncate(fd, (off_t)size) == 0 ? 0 : -errno;

	result = result ?: disk_write(fd, head, head_bytes, 0);
	if (result == 0) {
		result = fsync(fd) == 0 ? 0 : -errno;
	}
	if (result == 0 && link(draft, path) != 0) {
		result = -errno;
	}
	return result == 0 ? linux_sync_folder(path) : result;
}

int disk_create(
	const char *path, uint64_t size, const void *head, size_t head_bytes, struct error *error)
{
	char *draft;
	int result;
	int fd;

	if (disk_path_is_device(path) && access(path, F_OK) != 0) {
		return error_set(error, -ENOENT,
			"cannot create '%s': there is no such device; check its name", path);
	}
	if (asprintf(&draft, "%s.XXXXXX", path) < 0) {
		return error_set(error, -ENOMEM, "not enough memory to create '%s'", path);
	}
	fd = mkostemp(draft, O_CLOEXEC);
	result = fd < 0 ? -errno : create_filled(fd, draft, path, size, head, head_bytes);
	if (fd >= 0) {
		close(fd);
		unlink(draft);
	}
	free(draft);
	return result == 0 ? 0
	       : result == -ENOENT /* the folder does not exist */
		       ? error_set(
				 error, result, "cannot create '%s': create its folder first", path)
		       : error_set(
				 error, result, "cannot create '%s': %s", path, strerror(-result));
}

/* --- size ---------------------------------------------------------------------------------- */

/* A device can end inside a logical block, for example a loop device with blocks of 4 KiB over any
 * file. Commands cannot address that last part, so it is not counted. */
int disk_size(int fd, uint64_t *size)
{
	struct stat status;
	int sector = 0;

	if (fstat(fd, &status) != 0) {
		return -errno;
	}
	if (!S_ISBLK(status.st_mode)) {
		*size = (uint64_t)status.st_size;
		return 0;
	}
	if (ioctl(fd, BLKGETSIZE64, size) != 0) {
		return -errno;
	}
	if (ioctl(fd, BLKSSZGET, &sector) == 0 && sector > 0) {
		*size -= *size % (unsigned int)sector;
	}
	return 0;
}

uint64_t disk_room(int fd)
{
	struct statfs status;

	return fstatfs(fd, &status) == 0 && status.f_blocks > 0
		       ? (uint64_t)status.f_bavail * (uint64_t)status.f_bsize
		       : UINT64_MAX;
}

/* --- alignment of direct I/O --------------------------------------------------------------- */

/* Tries to read with exactly this alignment. Returns whether the kernel accepts it: only -EINVAL
 * means misaligned; other errors, such as a bad sector, do not matter here. */
static bool direct_read_works(int fd, uint8_t *memory, uint32_t align)
{
	ssize_t count;

	/* memory is aligned to twice PROBE_BYTES_MAX, so memory + align is aligned to align and to
	 * no higher power of two. */
	do {
		count = pread(fd, memory + align, align, 0);
	} while (count < 0 && errno == EINTR);
	return count >= 0 || errno != EINVAL;
}

/*
 * Returns the smallest alignment >= `first` with which a read works; 0 if there is none. told: the
 * system has reported the alignment `first`. Reading an empty file works with any alignment, so the
 * result for an empty file is `first`, or at least 4096 if `first` is only a guess.
 */
static uint32_t direct_probe(int fd, uint32_t first, bool told, uint64_t size)
{
	void *memory;
	uint32_t found = 0;

	if (size == 0) {
		return told ? first : MAX(first, UINT32_C(4096));
	}
	if (posix_memalign(&memory, 2 * PROBE_BYTES_MAX, 2 * PROBE_BYTES_MAX) != 0) {
		return 0;
	}
	for (uint32_t align = first; align < PROBE_BYTES_MAX; align *= 2) {
		if (direct_read_works(fd, memory, align)) {
			found = align;
			break;
		}
	}
	free(memory);
	return found;
}

/*
 * statx() reports the alignment since Linux 6.1, if the filesystem supports that. Otherwise, the
 * alignment for a device is its logical block size, and for a file it is unknown. With O_DIRECT,
 * test reads then find the smallest alignment that works, beginning with the known value or 512.
 * Without O_DIRECT, the result is the known value or 512.
 */
static void fill_direct(int fd, struct disk_info *info)
{
	struct statx statx_info;
	int flags = fcntl(fd, F_GETFL);
	bool told = false;
	int sector = 0;

	info->direct_offset_align = SECTOR_BYTES;
	info->direct_memory_align = SECTOR_BYTES;
	memset(&statx_info, 0, sizeof(statx_info));
	(void)!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN | STATX_BTIME, &statx_info);
	info->born_ns = statx_info.stx_btime.tv_sec * SECOND_NS + statx_info.stx_btime.tv_nsec;
	if ((statx_info.stx_mask & STATX_DIOALIGN) != 0) {
		info->direct_offset_align = statx_info.stx_dio_offset_align;
		info->direct_memory_align = statx_info.stx_dio_mem_align;
		told = true;
	} else if (info->is_block && ioctl(fd, BLKSSZGET, &sector) == 0 && sector > 0) {
		info->direct_offset_align = (uint32_t)sector;
		info->direct_memory_align = (uint32_t)sector;
		told = true;
	}
	if (!is_power_of_two(info->direct_offset_align) ||
		!is_power_of_two(info->direct_memory_align)) {
		info->direct_offset_align = 0; /* statx() reports 0 if the file has no direct I/O */
		info->direct_memory_align = 0;
		return;
	}
	info->direct_bypasses_cache = told;
	if (flags >= 0 && (flags & O_DIRECT) != 0) {
		uint32_t found = direct_probe(fd, info->direct_offset_align, told, info->size);

		if (!told || found != info->direct_offset_align) {
			info->direct_memory_align = MAX(found, info->direct_memory_align);
		}
		info->direct_offset_align = found;
	}
}

/* --- properties ---------------------------------------------------------------------------- */

static uint32_t preferred_block(uint64_t bytes)
{
	if (!is_power_of_two(bytes) || bytes < SECTOR_BYTES) {
		return 4096;
	}
	return (uint32_t)MIN(bytes, (uint64_t)PREFERRED_BYTES_MAX);
}

/* Returns the name of the file's image format, or NULL if the file is just the raw bytes of a
 * disk. */
static const char *image_format(int fd)
{
	static const struct {
		const char *name;
		const char *word;
		uint32_t offset;
	} formats[] = {
		{ "qcow2", "QFI\xfb", 0 },
		{ "VMDK", "KDMV", 0 },
		{ "VMDK", "COWD", 0 },
		{ "VMDK", "# Disk DescriptorFile", 0 },
		{ "VHDX", "vhdxfile", 0 },
		{ "VHD", "conectix", 0 },
		{ "VDI", "\x7f\x10\xda\xbe", 64 },
		{ DISK_FORMAT_OVERLAY, "GMBOVL\r\n", 0 },
		{ DISK_FORMAT_FLASH, "GMBFLA\r\n", 0 },
	};
	char begin[72] = "";

	if (pread(fd, begin, sizeof(begin), 0) < 0) {
		return NULL;
	}
	for (size_t i = 0; i < ARRAY_COUNT(formats); i++) {
		if (memcmp(begin + formats[i].offset, formats[i].word, strlen(formats[i].word)) ==
			0) {
			return formats[i].name;
		}
	}
	return NULL;
}

/* Finds the file or device behind a loop device. For other devices it does not call the ioctl,
 * because their drivers might give its number another meaning. */
static void find_backing(int fd, dev_t device, struct disk_info *info)
{
	unsigned int driver = major(device);
	struct loop_info64 loop;

	if ((driver != LOOP_MAJOR && driver != BLOCK_EXT_MAJOR) ||
		ioctl(fd, LOOP_GET_STATUS64, &loop) != 0) {
		return;
	}
	info->backing[0] = loop.lo_rdevice != 0 ? 0 : loop.lo_device;
	info->backing[1] = loop.lo_rdevice != 0 ? loop.lo_rdevice : loop.lo_inode;
	info->backing_at = loop.lo_offset;
}

int disk_info(int fd, struct disk_info *info)
{
	struct disk_sysfs sysfs;
	struct statfs system;
	struct stat status;
	uint64_t preferred;
	int result;

	memset(info, 0, sizeof(*info));
	if (fstat(fd, &status) != 0) {
		return -errno;
	}
	result = disk_size(fd, &info->size);
	if (result < 0) {
		return result;
	}
	info->is_block = S_ISBLK(status.st_mode);
	info->keeps_stale = info->is_block;
	preferred = (uint64_t)status.st_blksize;
	if (info->is_block) {
		unsigned int physical = 0;
		int read_only = 0;

		info->identity[1] = (uint64_t)status.st_rdev;
		find_backing(fd, status.st_rdev, info);
		if (ioctl(fd, BLKROGET, &read_only) == 0) {
			info->read_only = read_only != 0;
		}
		preferred = ioctl(fd, BLKPBSZGET, &physical) == 0 ? physical : SECTOR_BYTES;
		/* the page cache works in pages of at least 4 KiB */
		preferred = MAX(preferred, UINT64_C(4096));
	} else {
		info->format = image_format(fd);
		info->has_holes = (uint64_t)status.st_blocks * SECTOR_BYTES < info->size;
		info->identity[0] = (uint64_t)status.st_dev;
		info->identity[1] = (uint64_t)status.st_ino;
		info->changed_ns =
			(int64_t)status.st_mtim.tv_sec * SECOND_NS + status.st_mtim.tv_nsec;
		/* FUSE ignores RWF_DSYNC in asynchronous direct writes, and in all direct writes if
		 * its server requests direct I/O (Linux 6.18 and before). The other remote file
		 * systems were not examined. */
		info->ignores_dsync = disk_is_remote(fd);
		info->keeps_stale = info->ignores_dsync;
		info->in_memory = fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
	}
	info->block_preferred = preferred_block(preferred);
	fill_direct(fd, info);

	disk_sysfs_read(info->is_block ? status.st_rdev : status.st_dev, &sysfs);
	info->rotational = sysfs.rotational;
	info->zoned = info->is_block && sysfs.zoned;
	info->zone_bytes = info->zoned ? sysfs.zone_bytes : 0;
	info->active_zones_max = sysfs.active_zones_max;
	info->io_max = sysfs.io_max;
	info->stripe_chunk = sysfs.stripe_chunk;
	info->stripe_members = sysfs.stripe_members;
	info->discard_granularity = info->is_block ? sysfs.discard_granularity : 0;
	info->punches_holes = !info->is_block || sysfs.discards;
	return 0;
}

/* Uses SEEK_DATA and SEEK_HOLE for files. If they are not supported, reports the range as one data
 * extent. */
int disk_extent(
	int fd, uint64_t offset, uint64_t limit, enum disk_extent_kind *kind, uint64_t *length)
{
	struct stat status;
	uint64_t end;
	off_t data;

	GMB_ASSERT(limit > 0);
	if (fstat(fd, &status) != 0) {
		return -errno;
	}
	*kind = DISK_DATA;
	*length = limit;
	if (S_ISBLK(status.st_mode)) {
		return 0;
	}
	if (offset >= (uint64_t)status.st_size) {
		return -ENXIO;
	}
	end = MIN(offset + limit, (uint64_t)status.st_size);
	*length = end - offset;
	data = lseek(fd, (off_t)offset, SEEK_DATA);
	if (data < 0 && errno == ENXIO) { /* the rest of the file is a hole */
		*kind = DISK_HOLE;
		return 0;
	}
	if (data < 0) {
		return errno == EINVAL || errno == EOPNOTSUPP ? 0 : -errno;
	}
	if ((uint64_t)data > offset) {
		*kind = DISK_HOLE;
		*length = MIN((uint64_t)data, end) - offset;
		return 0;
	}
	data = lseek(fd, (off_t)offset, SEEK_HOLE);
	if (data > (off_t)offset) {
		*length = MIN((uint64_t)data, end) - offset;
	} else if (data < 0 && errno != ENXIO) {
		return -errno;
	}
	return 0;
}

/* --- freeing space and zeroing ------------------------------------------------------------- */

static int linux_allocate(int fd, int mode, uint64_t offset, uint64_t length)
{
	int result;

	do {
		result = fallocate(fd, mode, (off_t)offset, (off_t)length);
	} while (result != 0 && errno == EINTR);
	if (result == 0) {
		return 0;
	}
	return errno == ENOSYS ? -EOPNOTSUPP : -errno;
}

static int range_ioctl(int fd, unsigned long request, uint64_t offset, uint64_t length)
{
	uint64_t range[2] = { offset, length };
	int result;

	do {
		result = ioctl(fd, request, range);
	} while (result != 0 && errno == EINTR);
	if (result == 0) {
		return 0;
	}
	return errno == ENOTTY || errno == ENOSYS ? -EOPNOTSUPP : -errno;
}

int disk_discard(int fd, bool is_block, uint64_t offset, uint64_t length)
{
	if (is_block) {
		return range_ioctl(fd, BLKDISCARD, offset, length);
	}
	return linux_allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
}

/* Returns whether the device has a command for zeroing. Without one, the kernel would write pages
 * of zeroes. */
static bool device_zeroes_itself(int fd)
{
	struct stat status;

	return fstat(fd, &status) == 0 && disk_sysfs_write_zeroes(status.st_rdev);
}

int disk_zero(int fd, bool is_block, uint64_t offset, uint64_t length, bool may_unmap, bool fast)
{
	int result = -EOPNOTSUPP;

	/* For a device, PUNCH_HOLE means: zero, unmapping if possible, and never by writing zeroes
	 * (Linux 4.9). */
	if (may_unmap) {
		result = linux_allocate(
			fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
	}
	if (result != -EOPNOTSUPP) {
		return result;
	}
	if (!is_block) {
		return linux_allocate(
			fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, offset, length);
	}
	if (fast && !device_zeroes_itself(fd)) {
		return -EOPNOTSUPP;
	}
	return range_ioctl(fd, BLKZEROOUT, offset, length);
}

/* --- copies between files -------------------------------------------------------------------- */

static int copy_error(int code)
{
	switch (code) {
	case ENOTTY:
	case ENOSYS:
	case EOPNOTSUPP:
		return -EOPNOTSUPP;
	case EINVAL:
	case EXDEV:
	case ETXTBSY:
	case EPERM:
		return -EXDEV;
	default:
		return -code;
	}
}

int disk_clone(int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length)
{
	struct file_clone_range range = {
		.src_fd = source_fd,
		.src_offset = source_offset,
		.src_length = length,
		.dest_offset = offset,
	};

	return ioctl(fd, FICLONERANGE, &range) == 0 ? 0 : copy_error(errno);
}

int disk_copy(int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length)
{
	off_t from = (off_t)source_offset;
	off_t to = (off_t)offset;
	ssize_t bytes = copy_file_range(source_fd, &from, fd, &to, length, 0);

	return bytes >= 0 ? (int)bytes : copy_error(errno);
}
