// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "disk/disk.h"

enum {
	/* limit on tries, with CLAIM_PAUSE_NS between two tries: one second in total */
	CLAIM_TRIES_MAX = 40,
	CLAIM_PAUSE_NS = 25000000,
	/* limit on queries about the uses of a disk; each process needs two or three */
	USE_QUERIES_MAX = 10000,
};

/* A write lock on this byte means "a gmblock server writes this file". It is the last byte that a
 * file can have, where no program stores data or sets locks. */
#define CLAIM_OFFSET (INT64_MAX - 1)
/* A read lock on this byte means "a gmblock server reads this file". For a block device, the lock
 * is on the device node through which the device was opened. */
#define READER_OFFSET (INT64_MAX - 2)
/* A read lock on this byte means "a gmblock server writes through this open file". */
#define WRITER_OFFSET (INT64_MAX - 3)
/* Each process has a random number N. A read lock on byte USE_OFFSET + N means "process N reads or
 * writes through this open file", and a read lock on byte ALIVE_OFFSET + N of a claim "process N
 * exists". */
#define USE_OFFSET   (INT64_C(1) << 62)
#define USE_COUNT    (INT64_C(1) << 40)
#define ALIVE_OFFSET (USE_OFFSET + USE_COUNT)

/* --- claims --------------------------------------------------------------------------------- */

/* A claim is opened for reading and writing. The write lock requires this, and so does discarding:
 * while the claim holds a device, the kernel permits discards only through the claim. */
static int claim_flags(const struct stat *status)
{
	return O_CLOEXEC | O_NOCTTY | O_RDWR | (S_ISBLK(status->st_mode) ? O_EXCL : 0);
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
	if ((a->st_mode & S_IFMT) != (b->st_mode & S_IFMT)) {
		return false;
	}
	return S_ISBLK(a->st_mode) ? a->st_rdev == b->st_rdev
				   : a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Calls fcntl() for a lock. order: such as F_OFD_SETLK; F_OFD_GETLK updates *lock. */
static int lock_ask(int fd, int order, off_t offset, off_t bytes, struct flock *lock)
{
	int result;

	lock->l_whence = SEEK_SET;
	lock->l_start = offset;
	lock->l_len = bytes;
	do {
		result = fcntl(fd, order, lock);
	} while (result != 0 && errno == EINTR);
	return result;
}

/* Locks one byte. Returns 0, -EBUSY, or another errno if this filesystem has no such locks. The
 * lock belongs to the open file, not to the process, so closing others does not release it. */
static int lock_byte(int fd, short type, off_t offset)
{
	struct flock lock = { .l_type = type };
	int result = lock_ask(fd, F_OFD_SETLK, offset, 1, &lock);

	if (result == 0) {
		return 0;
	}
	return errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
}

/* Opens path again. Returns -ESTALE if path no longer leads to the wanted file. */
static int open_again(const char *path, int flags, const struct stat *wanted, int *fd_out)
{
	struct stat status;
	int result = 0;
	int fd;

	do {
		fd = open(path, flags);
	} while (fd < 0 && errno == EINTR);
	if (fd < 0) {
		return -errno;
	}
	if (fstat(fd, &status) != 0) {
		result = -errno;
	} else if (!is_same_file(&status, wanted)) {
		result = -ESTALE;
	}
	if (result < 0) {
		close(fd);
		return result;
	}
	*fd_out = fd;
	return 0;
}

/* Tries once to claim the disk. Returns 0 and a descriptor (-1: the filesystem has no locks), or a
 * negative errno. */
static int claim_once(const char *path, const struct stat *wanted, int *claim_out)
{
	int fd;
	int result = open_again(path, claim_flags(wanted), wanted, &fd);

	if (result < 0) {
		return result;
	}
	if (!S_ISBLK(wanted->st_mode)) {
		result = lock_byte(fd, F_WRLCK, CLAIM_OFFSET);
	}
	if (result < 0) {
		close(fd);
		fd = -1;
	}
	*claim_out = fd;
	return result == -EBUSY ? result : 0;
}

static int explain_claim(const char *path, bool read_only, int result, struct error *error)
{
	if (result == -ESTALE) {
		return error_set(error, result,
			"'%s' was replaced by another file while it was being opened", path);
	}
	return disk_explain_open(path, read_only, false, -result, error);
}

bool disk_is_frozen(int fd)
{
	struct flock lock = { .l_type = F_WRLCK };

	return lock_ask(fd, F_OFD_GETLK, CLAIM_OFFSET, 1, &lock) == 0 && lock.l_type == F_RDLCK;
}

/* Retries, because a server that was just killed may still hold the disk, and udev opens devices
 * briefly. */
int disk_claim(const char *path, int fd, int *claim_out, struct error *error)
{
	const struct timespec pause = { .tv_nsec = CLAIM_PAUSE_NS };
	struct stat wanted;
	int result;

	if (fstat(fd, &wanted) != 0) {
		return error_set(error, -errno, "cannot examine '%s': %s", path, strerror(errno));
	}
	result = claim_once(path, &wanted, claim_out);
	for (int tries = 1; result == -EBUSY && tries < CLAIM_TRIES_MAX; tries++) {
		nanosleep(&pause, NULL);
		result = claim_once(path, &wanted, claim_out);
	}
	if (result == -EBUSY && disk_is_frozen(fd)) {
		return error_advise(error, result, "readonly",
			"'%s' is the base of an overlay that a gmblock server serves, so it must "
			"not be written; stop that server",
			path);
	}
	if (result == -EBUSY && !S_ISBLK(wanted.st_mode)) {
		return error_advise(error, result, "readonly",
			"'%s' is already served for writing by a gmblock server; stop that server "
			"(gmblock list --local shows the servers of this machine)",
			path);
	}
	if (result < 0) {
		return explain_claim(path, false, result, error);
	}
	if (*claim_out >= 0) {
		disk_adopt_claim(*claim_out);
	}
	return 0;
}

/* Takes a read lock on CLAIM_OFFSET, which excludes the write lock of a claim for writing. Returns
 * -EBUSY if there is such a claim after one second. */
static int freeze(int claim)
{
	const struct timespec pause = { .tv_nsec = CLAIM_PAUSE_NS };
	int result = lock_byte(claim, F_RDLCK, CLAIM_OFFSET);

	for (int tries = 1; result == -EBUSY && tries < CLAIM_TRIES_MAX; tries++) {
		nanosleep(&pause, NULL);
		result = lock_byte(claim, F_RDLCK, CLAIM_OFFSET);
	}
	return result;
}

int disk_claim_reading(const char *path, int fd, bool frozen, int *claim_out, struct error *error)
{
	struct stat wanted;
	int claim;
	int result;

	if (fstat(fd, &wanted) != 0) {
		return error_set(error, -errno, "cannot examine '%s': %s", path, strerror(errno));
	}
	result = open_again(path, O_RDONLY | O_CLOEXEC | O_NOCTTY, &wanted, &claim);
	if (result < 0) {
		return explain_claim(path, true, result, error);
	}
	if (frozen && freeze(claim) == -EBUSY) {
		close(claim);
		return error_set(error, -EBUSY,
			"'%s' is served for writing by a gmblock server, but must not change while "
			"it is the base of an overlay, or a flash store that is served read-only; "
			"stop that server, or add readonly to the export there",
			path);
	}
	/* Without the lock there is no claim, but reading is permitted: the filesystem might have
	 * no locks, or another program might have locked the whole file. */
	if (lock_byte(claim, F_RDLCK, READER_OFFSET) < 0 && !frozen) {
		close(claim);
		claim = -1;
	} else {
		disk_adopt_claim(claim);
	}
	*claim_out = claim;
	return 0;
}

/* Queries the lock without taking it, so that a server that starts at this moment does not find the
 * byte locked. */
static bool has_readers(int fd)
{
	struct flock lock = { .l_type = F_WRLCK };

	return lock_ask(fd, F_OFD_GETLK, READER_OFFSET, 1, &lock) == 0 && lock.l_type == F_RDLCK;
}

int disk_check_readers(int fd)
{
	const struct timespec pause = { .tv_nsec = CLAIM_PAUSE_NS };
	bool found = has_readers(fd);

	for (int tries = 1; found && tries < CLAIM_TRIES_MAX; tries++) {
		nanosleep(&pause, NULL);
		found = has_readers(fd);
	}
	return found ? -EBUSY : 0;
}

/* --- marks ---------------------------------------------------------------------------------- */

/* Returns an error on remote filesystems. Another machine or a FUSE server manages the locks there,
 * so a lock can end before the last operation in flight. */
int disk_mark_writer(int fd)
{
	return disk_is_remote(fd) ? -EOPNOTSUPP : lock_byte(fd, F_RDLCK, WRITER_OFFSET);
}

int disk_check_writers(int fd)
{
	struct flock lock = { .l_type = F_WRLCK };

	if (disk_is_remote(fd)) {
		return -EOPNOTSUPP;
	}
	if (lock_ask(fd, F_OFD_GETLK, WRITER_OFFSET, 1, &lock) != 0) {
		return -errno;
	}
	if (lock.l_type == F_UNLCK) {
		return 0;
	}
	/* A lock on more than this byte belongs to another program. It is not a mark, but
	 * F_OFD_GETLK reports it instead of a mark. */
	return lock.l_type == F_RDLCK && lock.l_start == WRITER_OFFSET && lock.l_len == 1
		       ? -EBUSY
		       : -EOPNOTSUPP;
}

/* Returns the number of this process, at least 1. */
static off_t own_number(void)
{
	static _Atomic off_t number;
	off_t before = 0;
	uint64_t chosen;

	if (getrandom(&chosen, sizeof(chosen), 0) != sizeof(chosen)) {
		chosen = (uint64_t)getpid();
	}
	chosen = chosen % (uint64_t)(USE_COUNT - 1) + 1;
	/* Sets the number once. Relaxed order: it publishes no other data. */
	return atomic_compare_exchange_strong_explicit(
		       &number, &before, (off_t)chosen, memory_order_relaxed, memory_order_relaxed)
		       ? (off_t)chosen
		       : before;
}

static bool is_alive(int fd, off_t number)
{
	struct flock lock = { .l_type = F_WRLCK };

	return lock_ask(fd, F_OFD_GETLK, ALIVE_OFFSET + number, 1, &lock) == 0 &&
	       lock.l_type != F_UNLCK;
}

/* A failure is detected by disk_mark_use(). */
void disk_adopt_claim(int claim)
{
	(void)lock_byte(claim, F_RDLCK, ALIVE_OFFSET + own_number());
}

int disk_mark_use(int fd)
{
	off_t number = own_number();

	return disk_is_remote(fd) || !is_alive(fd, number)
		       ? -EOPNOTSUPP
		       : lock_byte(fd, F_RDLCK, USE_OFFSET + number);
}

/* The kernel reports any one of the locks in the range [from, to). If its process exists, the
 * search continues before the lock, and behind it when there are no more. */
int disk_check_uses(int fd)
{
	off_t from = USE_OFFSET;
	off_t to = ALIVE_OFFSET;

	if (disk_is_remote(fd)) {
		return -EOPNOTSUPP;
	}
	for (int tries = 0; from < ALIVE_OFFSET; tries++) {
		struct flock lock = { .l_type = F_WRLCK };

		if (from == to) {
			from++;
			to = ALIVE_OFFSET;
			continue;
		}
		if (lock_ask(fd, F_OFD_GETLK, from, to - from, &lock) != 0) {
			return -errno;
		}
		if (lock.l_type == F_UNLCK) {
			from = to;
			continue;
		}
		if (lock.l_type != F_RDLCK || lock.l_start < from || lock.l_len != 1 ||
			tries >= USE_QUERIES_MAX) {
			return -EOPNOTSUPP; /* a lock of another program */
		}
		if (!is_alive(fd, lock.l_start - USE_OFFSET)) {
			return -EBUSY;
		}
		to = lock.l_start;
	}
	return 0;
}
