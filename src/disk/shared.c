// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that outlives the process: files in a tmpfs that are mapped as a whole. A file that
 * another user can access is refused. The claim is an flock(): exclusive, or shared for reading
 * only.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "disk/disk.h"

enum { LOCK_TRIES_MAX = 100, LOCK_PAUSE_NS = 10000000 };

static int disk_shared_refuse(const char *path, int result, const char *what, struct error *error)
{
	return error_set(error, result, "'%s' %s", path, what);
}

/* Checks that the file belongs to this user, that no other user can access it, and that it has only
 * one name. */
static int examine(const char *path, int fd, uint64_t *size_out, struct error *error)
{
	struct statfs system;
	struct stat status;

	if (fstat(fd, &status) < 0 || fstatfs(fd, &system) < 0) {
		return error_set(error, -errno, "cannot examine '%s': %s", path, strerror(errno));
	}
	if (!S_ISREG(status.st_mode) || status.st_nlink > 1) {
		return disk_shared_refuse(
			path, -EPERM, "is not a regular file with exactly one hard link", error);
	}
	if (status.st_uid != geteuid()) {
		return disk_shared_refuse(path, -EPERM, "belongs to another user", error);
	}
	if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
		return disk_shared_refuse(path, -EPERM, "is accessible to other users", error);
	}
	if (system.f_type != TMPFS_MAGIC) {
		return disk_shared_refuse(
			path, -ENOTSUP, "is not on a tmpfs, such as /dev/shm", error);
	}
	*size_out = (uint64_t)status.st_size;
	return 0;
}

int disk_shared_look(const char *folder, struct error *error)
{
	struct statfs system = { 0 };
	int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int result =
		fd < 0 || fstatfs(fd, &system) < 0 || access(folder, W_OK | X_OK) < 0 ? -errno : 0;

	if (fd >= 0) {
		close(fd);
	}
	if (result < 0) {
		return error_set(
			error, result, "cannot use the folder '%s': %s", folder, strerror(-result));
	}
	return system.f_type == TMPFS_MAGIC
		       ? 0
		       : error_set(error, -ENOTSUP,
				 "the folder '%s' is not on a tmpfs, such as /dev/shm", folder);
}

/* Checks the folder in which a file is to be created, like disk_shared_look(). */
static int look_above(char *path, struct error *error)
{
	char *slash = strrchr(path, '/');
	int result;

	if (slash == NULL || slash == path) {
		return disk_shared_look(slash == NULL ? "." : "/", error);
	}
	*slash = '\0';
	result = disk_shared_look(path, error);
	*slash = '/';
	return result;
}

/* Tries once to lock the file. -EAGAIN: other processes only read it. -EBUSY: another process
 * writes it. */
static int lock_once(int fd, uint32_t flags)
{
	int kind = (flags & DISK_SHARED_READ) != 0 ? LOCK_SH : LOCK_EX;

	if (flock(fd, kind | LOCK_NB) == 0) {
		return 0;
	}
	if (errno != EWOULDBLOCK) {
		return -errno;
	}
	if (kind == LOCK_SH || flock(fd, LOCK_SH | LOCK_NB) < 0) {
		return -EBUSY;
	}
	/* Unlocks the file before waiting. If two waiting processes kept their shared locks,
	 * neither could get an exclusive one. */
	(void)flock(fd, LOCK_UN);
	return -EAGAIN;
}

/* Locks the file; with DISK_SHARED_WAIT, waits for a process that is about to end. -ESTALE: that
 * process has removed the file, so path now names another file or none. */
static int disk_shared_lock(const char *path, int fd, uint32_t flags, struct error *error)
{
	const struct timespec pause = { .tv_nsec = LOCK_PAUSE_NS };
	int tries_max = (flags & DISK_SHARED_WAIT) != 0 ? LOCK_TRIES_MAX : 0;
	int result = lock_once(fd, flags);
	struct stat ours;
	struct stat named;

	for (int tries = 0; (result == -EBUSY || result == -EAGAIN) && tries < tries_max; tries++) {
		nanosleep(&pause, NULL);
		result = lock_once(fd, flags);
	}
	if (result < 0) {
		return disk_shared_refuse(path, result,
			result == -EAGAIN ? "is being read by another process; try again"
					  : "is used by another process",
			error);
	}
	if (fstat(fd, &ours) < 0 || lstat(path, &named) < 0) {
		return -ESTALE;
	}
	return ours.st_ino == named.st_ino && ours.st_dev == named.st_dev ? 0 : -ESTALE;
}

static int disk_shared_map(
	struct disk_shared *shared, uint64_t size, uint32_t flags, struct error *error)
{
	int protection = PROT_READ | ((flags & DISK_SHARED_READ) != 0 ? 0 : PROT_WRITE);
	void *bytes = mmap(NULL, size, protection, MAP_SHARED | MAP_POPULATE, shared->fd, 0);

	if (bytes == MAP_FAILED) {
		return error_set(
			error, -errno, "cannot map '%s': %s", shared->path, strerror(errno));
	}
	shared->bytes = bytes;
	shared->size = size;
	return 0;
}

/* Allocates the pages now, because a write to a page without space would kill the process. */
static int disk_shared_allocate(
	const struct disk_shared *shared, uint64_t size, struct error *error)
{
	int result;

	do {
		result = posix_fallocate(shared->fd, 0, (off_t)size);
	} while (result == EINTR);
	return result == 0 ? 0
			   : error_set(error, -result, "cannot allocate %llu bytes in '%s': %s",
				     (unsigned long long)size, shared->path, strerror(result));
}

/* Returns a descriptor, or a negative errno and sets *error. */
static int disk_shared_open_file(const char *path, uint32_t flags, struct error *error)
{
	int access = (flags & DISK_SHARED_READ) != 0 ? O_RDONLY : O_RDWR;
	int create = (flags & DISK_SHARED_CREATE) != 0 ? O_CREAT | O_EXCL : 0;
	int fd = open(path, access | create | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
		S_IRUSR | S_IWUSR);

	return fd >= 0 ? fd
		       : error_set(error, -errno, "cannot open '%s': %s", path,
				 errno == ELOOP ? "the path is a symbolic link" : strerror(errno));
}

static int disk_shared_open_once(
	const char *path, uint32_t flags, struct disk_shared *shared, struct error *error)
{
	uint64_t size = 0;
	int result;

	shared->fd = disk_shared_open_file(path, flags, error);
	if (shared->fd < 0) {
		return shared->fd;
	}
	result = examine(path, shared->fd, &size, error);
	result = result ?: disk_shared_lock(path, shared->fd, flags, error);
	/* Examines the file again, in case it changed before it was locked. */
	result = result ?: examine(path, shared->fd, &size, error);
	if (result == 0 && size > 0 && (flags & DISK_SHARED_READ) == 0) {
		result = disk_shared_allocate(shared, size, error);
	}
	if (result == 0 && size > 0) {
		result = disk_shared_map(shared, size, flags, error);
	}
	if (result < 0) {
		close(shared->fd);
		shared->fd = -1;
	}
	return result;
}

int disk_shared_peek(
	const char *path, void *bytes, size_t count, uint64_t *size_out, struct error *error)
{
	int fd = disk_shared_open_file(path, DISK_SHARED_READ, error);
	int result;

	memset(bytes, 0, count);
	if (fd < 0) {
		return fd;
	}
	result = examine(path, fd, size_out, error);
	if (result == 0 && pread(fd, bytes, count, 0) < 0) {
		result = error_set(error, -errno, "cannot read '%s': %s", path, strerror(errno));
	}
	close(fd);
	return result;
}

void disk_shared_list(const char *folder, const char *prefix,
	void (*found)(void *context, const char *path), void *context)
{
	DIR *directory = opendir(folder);
	const struct dirent *entry;
	char *path;

	while (directory != NULL && (entry = readdir(directory)) != NULL) {
		if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
			asprintf(&path, "%s/%s", folder, entry->d_name) >= 0) {
			found(context, path);
			free(path);
		}
	}
	if (directory != NULL) {
		closedir(directory);
	}
}

int disk_shared_open(
	const char *path, uint32_t flags, struct disk_shared *shared, struct error *error)
{
	int result = -ESTALE;

	*shared = (struct disk_shared){ .fd = -1, .path = strdup(path) };
	if (shared->path == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", path);
	}
	if ((flags & DISK_SHARED_CREATE) != 0) {
		int looked = look_above(shared->path, error);

		result = looked < 0 ? looked : result;
	}
	for (int tries = 0; result == -ESTALE && tries < LOCK_TRIES_MAX; tries++) {
		result = disk_shared_open_once(path, flags, shared, error);
	}
	if (result < 0) {
		if (result == -ESTALE) {
			result = disk_shared_refuse(
				path, -EBUSY, "is used by another process", error);
		}
		free(shared->path);
		shared->path = NULL;
	}
	return result;
}

int disk_shared_resize(struct disk_shared *shared, uint64_t size, struct error *error)
{
	int result;

	if (shared->bytes != NULL) {
		(void)munmap(shared->bytes, shared->size);
		shared->bytes = NULL;
		shared->size = 0;
	}
	if (ftruncate(shared->fd, 0) < 0 || ftruncate(shared->fd, (off_t)size) < 0) {
		return error_set(
			error, -errno, "cannot write to '%s': %s", shared->path, strerror(errno));
	}
	result = disk_shared_allocate(shared, size, error);
	if (result < 0) {
		int emptied = ftruncate(shared->fd, 0);

		GMB_UNUSED(emptied); /* ftruncate() can also fail; the first error is reported */
		return result;
	}
	return disk_shared_map(shared, size, 0, error);
}

void disk_shared_close(struct disk_shared *shared, bool remove)
{
	if (shared->path == NULL) {
		return;
	}
	if (shared->bytes != NULL) {
		(void)munmap(shared->bytes, shared->size);
	}
	/* Empties the file first, in case the folder does not permit removing it. */
	if (remove && ftruncate(shared->fd, 0) == 0) {
		(void)unlink(shared->path);
	}
	close(shared->fd);
	free(shared->path);
	*shared = (struct disk_shared){ .fd = -1 };
}

static bool parse_boot_id(const char *text, uint8_t id[DISK_BOOT_ID_BYTES])
{
	for (int i = 0; i < DISK_BOOT_ID_BYTES; i++) {
		unsigned int byte;

		text += *text == '-';
		if (sscanf(text, "%2x", &byte) != 1 || strlen(text) < 2) {
			return false;
		}
		id[i] = (uint8_t)byte;
		text += 2;
	}
	return true;
}

int disk_boot_id(uint8_t id[DISK_BOOT_ID_BYTES])
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	const char *told = getenv("GMBLOCK_BOOT_ID");
	char text[64] = "";

	if (file != NULL) {
		if (fgets(text, sizeof(text), file) == NULL) {
			text[0] = '\0';
		}
		fclose(file);
	} else if (told != NULL) {
		snprintf(text, sizeof(text), "%s", told);
	}
	return parse_boot_id(text, id) ? 0 : -ENOENT;
}
