// SPDX-License-Identifier: Apache-2.0
/*
 * Regular files and block devices as an end of a copy. Reads and writes go through the ring, and
 * bypass the page cache with --direct. Parts that are not aligned for that (the end of an image of
 * odd size) use a second, ordinary descriptor. Holes are searched for and created on the ring's
 * worker threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "disk/disk.h"
#include "tools/copy.h"

enum {
	WRITERS_TRIES_MAX = 500, /* limit on tries, five seconds in total */
	WRITERS_PAUSE_NS = 10000000,
};

struct file_end {
	struct copy_end end;
	char *path;
	int fd;
	int direct_fd; /* -1: all I/O goes through the page cache */
	int claim_fd;  /* -1: no claim */
	struct ring_file file;
	struct ring_file direct_file;
	uint32_t direct_align;
	bool direct;
	bool is_block;
	bool absent; /* the target does not exist yet */
};

static struct file_end *copy_file_of(struct copy_io *io)
{
	return container_of(io->end, struct file_end, end);
}

/* --- reading and writing ------------------------------------------------------------------- */

static bool is_direct(const struct file_end *file, const struct copy_io *io, uint64_t done)
{
	return file->direct_fd >= 0 && is_aligned(io->offset + done, file->direct_align) &&
	       is_aligned(io->length - done, file->direct_align);
}

static void transfer_done(struct ring_op *op, int result);

static void transfer(struct copy_io *io)
{
	struct file_end *file = copy_file_of(io);
	struct ring *ring = io->end->loop->ring;
	struct ring_file target = is_direct(file, io, io->moved) ? file->direct_file : file->file;
	struct mem_ref memory = mem_of(io->buffer + io->moved);
	size_t left = (size_t)(io->length - io->moved);
	uint64_t offset = io->offset + io->moved;

	if (io->operation == COPY_READ) {
		ring_read(ring, &io->ring_op, target, memory, left, offset, transfer_done);
	} else {
		ring_write(ring, &io->ring_op, target, memory, left, offset, false, transfer_done);
	}
}

static void transfer_done(struct ring_op *op, int result)
{
	struct copy_io *io = container_of(op, struct copy_io, ring_op);

	if (result == -EINTR || result == -EAGAIN) {
		transfer(io);
		return;
	}
	if (result < 0) {
		copy_io_fail(io, result);
		return;
	}
	if (result == 0 && io->operation == COPY_READ) {
		error_set(&io->end->failure, -ESTALE,
			"%s %s ends at byte %llu: it shrank during the copy", io->end->role,
			io->end->name, (unsigned long long)(io->offset + io->moved));
		copy_io_end(io, -ESTALE);
		return;
	}
	if (result == 0) {
		copy_io_fail(io, -EIO);
		return;
	}
	io->moved += (uint64_t)result;
	if (io->moved < io->length) {
		transfer(io);
		return;
	}
	copy_io_end(io, 0);
}

/* --- calls on worker threads --------------------------------------------------------------- */

static int call_zero(struct ring_op *op)
{
	struct copy_io *io = container_of(op, struct copy_io, ring_op);
	const struct file_end *file = copy_file_of(io);
	/* A device that is claimed accepts discards only over the claim's descriptor. */
	int fd = file->is_block && file->claim_fd >= 0 ? file->claim_fd : file->fd;

	return disk_zero(fd, file->is_block, io->offset, io->length, !io->allocate, false);
}

static int call_map(struct ring_op *op)
{
	struct copy_io *io = container_of(op, struct copy_io, ring_op);
	const struct file_end *file = copy_file_of(io);
	uint64_t offset = io->offset;
	uint64_t end = io->offset + io->length;
	uint32_t count = 0;

	while (offset < end && count < io->extents_max) {
		enum disk_extent_kind kind;
		uint64_t length;
		int err = disk_extent(file->fd, offset, end - offset, &kind, &length);

		if (err < 0) {
			return err;
		}
		io->extents[count++] = (struct gmb_extent){
			.offset = offset,
			.bytes = length,
			.flags = kind == DISK_HOLE ? GMB_EXTENT_HOLE | GMB_EXTENT_ZERO : 0,
		};
		offset += length;
	}
	return (int)count;
}

static void copy_file_call_done(struct ring_op *op, int result)
{
	struct copy_io *io = container_of(op, struct copy_io, ring_op);

	if (result < 0) {
		copy_io_fail(io, result);
		return;
	}
	io->extent_count = io->operation == COPY_MAP ? (uint32_t)result : 0;
	copy_io_end(io, 0);
}

static void copy_file_submit(struct copy_end *end, struct copy_io *io)
{
	struct file_end *file = container_of(end, struct file_end, end);
	struct ring *ring = end->loop->ring;

	memset(&io->ring_op, 0, sizeof(io->ring_op));
	switch (io->operation) {
	case COPY_READ:
	case COPY_WRITE:
		transfer(io);
		break;
	case COPY_ZERO:
		ring_call(ring, &io->ring_op, call_zero, copy_file_call_done);
		break;
	case COPY_MAP:
		ring_call(ring, &io->ring_op, call_map, copy_file_call_done);
		break;
	case COPY_FLUSH:
		ring_fsync(ring, &io->ring_op, file->file, copy_file_call_done);
		break;
	case COPY_FROM: /* see copy_end_can_copy() */
		GMB_ASSERT(false);
	}
}

static void file_forget(struct copy_end *end)
{
	struct file_end *file = container_of(end, struct file_end, end);

	(void)posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* --- life ---------------------------------------------------------------------------------- */

static int copy_file_close(struct copy_end *end, struct error *error)
{
	struct file_end *file = container_of(end, struct file_end, end);
	int result = 0;

	if (file->direct_fd >= 0) {
		ring_file_remove(end->loop->ring, &file->direct_file);
		close(file->direct_fd);
	}
	if (file->fd >= 0) {
		ring_file_remove(end->loop->ring, &file->file);
		/* Network file systems may report write errors only on close. */
		if (close(file->fd) != 0 && end->target) {
			result = error_set(error, -errno, "cannot close %s %s: %s", end->role,
				end->name, strerror(errno));
		}
	}
	if (file->claim_fd >= 0) {
		disk_close(file->claim_fd);
	}
	copy_end_fini(end);
	free(file->path);
	free(file);
	return result;
}

static int open_error(const struct file_end *file, int code, struct error *error)
{
	return error_set(error, -code, "cannot open %s %s: %s", file->end.role, file->end.name,
		code == EISDIR ? "it is a directory; name a file in it" : strerror(code));
}

/* Adds the birth time, because a file that was removed and created again can have the same inode
 * number. Not every file system supports it. */
static void find_birth(struct file_end *file)
{
	struct statx born = { 0 };

	if (statx(file->fd, "", AT_EMPTY_PATH, STATX_BTIME, &born) == 0 &&
		(born.stx_mask & STATX_BTIME) != 0) {
		file->end.identity[2] = (uint64_t)born.stx_btime.tv_sec;
		file->end.identity[3] = born.stx_btime.tv_nsec;
	}
}

static int file_examine(struct file_end *file, struct error *error)
{
	struct copy_end *end = &file->end;
	struct disk_info info;
	struct stat status;
	int err = disk_info(file->fd, &info);

	if (err < 0 || fstat(file->fd, &status) != 0) {
		return open_error(file, err < 0 ? -err : errno, error);
	}
	if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
		return error_set(error, S_ISDIR(status.st_mode) ? -EISDIR : -ENOTSUP, "%s %s is %s",
			end->role, end->name,
			S_ISDIR(status.st_mode) ? "a directory"
						: "neither a file nor a block device");
	}
	file->is_block = info.is_block;
	end->kind = info.is_block ? COPY_DEVICE : COPY_FILE;
	end->size_known = !end->target || info.is_block;
	end->bytes = info.size;
	end->can_map = !info.is_block;
	end->can_zero = true;
	end->can_flush = true;
	end->identity[0] = info.identity[0];
	end->identity[1] = info.identity[1];
	if (info.is_block) {
		end->backing[0] = info.backing[0];
		end->backing[1] = info.backing[1];
		end->backing_at = info.backing_at;
	} else if (!end->target) {
		/* A source that was modified has another identity, so an interrupted copy of it is
		 * not continued. */
		end->identity[2] = (uint64_t)status.st_mtim.tv_sec;
		end->identity[3] = (uint64_t)status.st_mtim.tv_nsec;
	} else {
		find_birth(file);
	}
	if (!end->target && info.format != NULL) {
		log_warning("%s looks like a %s image: copying the image file itself, not the disk "
			    "in it%s",
			end->name, info.format,
			strcmp(info.format, DISK_FORMAT_OVERLAY) == 0
				? "; to copy the disk, serve the overlay with its base and copy "
				  "from the server"
			: strcmp(info.format, DISK_FORMAT_FLASH) == 0
				? "; to copy the disk, serve the store as flash:PATH and copy from "
				  "the server"
				: "; to copy the disk, use 'qemu-img convert'");
	}
	if (end->target && info.is_block && info.read_only) {
		return error_set(error, -EROFS, "the target %s is read-only", end->name);
	}
	return 0;
}

/* Waits for writes of a killed server or copy, which may still be in flight and would overwrite the
 * copy. If it is not known whether there are any, the target is accepted. */
static int await_writers(struct file_end *file, struct error *error)
{
	const struct timespec pause = { .tv_nsec = WRITERS_PAUSE_NS };
	int result = disk_check_writers(file->fd);

	if (result == -EBUSY) {
		log_warning("requests of a process that has exited are still in flight on the "
			    "target %s; waiting for them to complete",
			file->end.name);
	}
	for (int tries = 1; result == -EBUSY && tries < WRITERS_TRIES_MAX; tries++) {
		nanosleep(&pause, NULL);
		result = disk_check_writers(file->fd);
	}
	if (result != -EBUSY) {
		return 0;
	}
	return error_set(error, result,
		"requests of a process that has exited are still in flight on the target %s, and "
		"could overwrite the copy; try again when its disk has completed them",
		file->end.name);
}

/* Marks the target, so that its next server waits for the writes of a killed copy. */
static void mark_writer(const struct file_end *file, int fd)
{
	int err = disk_mark_writer(fd);

	if (err < 0) {
		log_debug("the target %s: cannot set the lock that marks requests in flight: %s",
			file->end.name, strerror(-err));
	}
}

/* Claims the target, which must not be in use elsewhere, nor be part of the source. */
static int file_claim(struct file_end *file, struct error *error)
{
	int err = disk_claim(file->path, file->fd, &file->claim_fd, error);

	if (err == -EBUSY && disk_is_frozen(file->fd)) {
		return error_set(error, err,
			"the target %s is the base of an overlay that a gmblock server serves; "
			"stop that server, or copy to another file",
			file->end.name);
	}
	if (err == -EBUSY) {
		return error_set(error, err,
			"the target %s is mounted or in use by another program, such as a server; "
			"unmount the target or stop the program first",
			file->end.name);
	}
	if (err < 0) {
		return err;
	}
	if (disk_check_readers(file->fd) != 0) {
		return error_set(error, -EBUSY,
			"the target %s is served read-only by a gmblock server, whose clients "
			"still need its contents; stop that server, or copy to another %s",
			file->end.name, file->is_block ? "device" : "file");
	}
	err = await_writers(file, error);
	if (err == 0) {
		mark_writer(file, file->fd);
	}
	return err;
}

static int file_go_direct(struct file_end *file, struct error *error)
{
	struct disk_info info;
	int flags = (file->end.target ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_DIRECT;
	int err;

	file->direct_fd = open(file->path, flags);
	err = file->direct_fd < 0 ? -errno : disk_info(file->direct_fd, &info);
	if (err < 0 || info.direct_offset_align == 0) {
		return error_set(error, err < 0 ? err : -EINVAL,
			"%s %s cannot be used with --direct: its filesystem does not support "
			"direct I/O",
			file->end.role, file->end.name);
	}
	if (file->end.target) {
		mark_writer(file, file->direct_fd);
	}
	file->direct_align = MAX(info.direct_offset_align, info.direct_memory_align);
	file->direct_file = ring_file_add(file->end.loop->ring, file->direct_fd);
	return 0;
}

static int copy_file_file_open(struct file_end *file, struct error *error)
{
	int flags = (file->end.target ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY;
	int err;

	do {
		file->fd = open(file->path, flags);
	} while (file->fd < 0 && errno == EINTR);
	if (file->fd < 0 && errno == ENOENT && file->end.target) {
		file->absent = true; /* created after everything else has been checked */
		file->end.kind = COPY_FILE;
		file->end.can_zero = true;
		file->end.can_flush = true;
		return 0;
	}
	if (file->fd < 0) {
		return open_error(file, errno, error);
	}
	file->file = ring_file_add(file->end.loop->ring, file->fd);
	err = file_examine(file, error);
	if (err == 0 && file->end.target) {
		err = file_claim(file, error);
	}
	if (err == 0 && file->direct) {
		err = file_go_direct(file, error);
	}
	return err;
}

/* Flushes the folder, which makes the name of a created file durable. */
static int copy_file_sync_folder(struct file_end *file, struct error *error)
{
	char *copy = strdup(file->path);
	int result = 0;
	int fd;

	if (copy == NULL) {
		return error_oom(error);
	}
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* It is not an error if the folder cannot be opened or flushed. */
	if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL) {
		result = error_set(error, -errno, "cannot flush the folder of %s: %s",
			file->end.name, strerror(errno));
	}
	if (fd >= 0) {
		close(fd);
	}
	free(copy);
	return result;
}

/* Reports that the folder of the target does not exist, which can also be a host without a scheme.
 */
static int file_no_folder(const struct file_end *file, struct error *error)
{
	bool is_host = file->path[0] != '/' && file->path[0] != '.' &&
		       memchr(file->path, ':', strcspn(file->path, "/")) != NULL;

	return error_set(error, -ENOENT, "cannot create the target %s: create its folder first%s%s",
		file->end.name, is_host ? "; for an export of a server, write nbd://" : "",
		is_host ? quote(file->path) : "");
}

static int file_create(struct file_end *file, struct error *error)
{
	struct stat status;
	int err;

	if (disk_path_is_device(file->path)) {
		return error_set(error, -ENOENT,
			"cannot open the target %s: there is no such device; check its name",
			file->end.name);
	}
	file->fd = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
	if (file->fd < 0) {
		err = -errno;
		return err == -ENOENT ? file_no_folder(file, error)
				      : error_set(error, err, "cannot create the target %s: %s",
						file->end.name, strerror(-err));
	}
	file->absent = false;
	file->end.can_map = true;
	file->file = ring_file_add(file->end.loop->ring, file->fd);
	if (fstat(file->fd, &status) == 0) {
		file->end.identity[0] = (uint64_t)status.st_dev;
		file->end.identity[1] = (uint64_t)status.st_ino;
		find_birth(file);
	}
	err = file_claim(file, error);
	if (err == 0 && file->direct) {
		err = file_go_direct(file, error);
	}
	err = err ?: copy_file_sync_folder(file, error);
	if (err < 0) {
		(void)unlink(file->path); /* undoes the creation */
	}
	return err;
}

static int file_resize(struct file_end *file, uint64_t bytes, struct error *error)
{
	if (bytes > INT64_MAX || ftruncate(file->fd, (off_t)bytes) != 0) {
		int code = bytes > INT64_MAX ? EFBIG : errno;

		return error_set(error, -code,
			"cannot set the size of the target %s to %llu bytes: %s", file->end.name,
			(unsigned long long)bytes, strerror(code));
	}
	return 0;
}

/* Empties the file, because old contents must not remain in parts that are not written. Before
 * that, tests whether the file system supports the new size. */
static int file_empty(struct file_end *file, uint64_t bytes, struct error *error)
{
	int err = 0;

	if (bytes != UINT64_MAX && bytes > file->end.bytes) {
		err = file_resize(file, bytes, error);
	}
	if (err == 0) {
		err = file_resize(file, 0, error);
		file->end.known_zero = true;
	}
	return err;
}

static int file_prepare(struct copy_end *end, uint64_t bytes, bool resumed, struct error *error)
{
	struct file_end *file = container_of(end, struct file_end, end);
	bool created = file->absent;
	int err = 0;

	if (resumed && file->absent) {
		return error_set(error, -ENOENT,
			"cannot resume: the partial target %s no longer exists; remove the journal "
			"to start again",
			end->name);
	}
	if (file->absent) {
		err = file_create(file, error);
	}
	if (err < 0 || file->is_block) {
		return err;
	}
	if (resumed && file->end.bytes != bytes) {
		return error_set(error, -ESTALE,
			"cannot resume: the target %s now has %llu bytes instead of %llu; remove "
			"the journal to start again",
			end->name, (unsigned long long)end->bytes, (unsigned long long)bytes);
	}
	if (!resumed) {
		err = file_empty(file, bytes, error);
		if (err < 0 && created) {
			(void)unlink(file->path); /* undoes the creation */
		}
	}
	if (err == 0 && bytes != UINT64_MAX) {
		err = file_resize(file, bytes, error);
		end->size_known = true;
		end->bytes = bytes;
	}
	return err;
}

static int file_finish(struct copy_end *end, uint64_t bytes, struct error *error)
{
	struct file_end *file = container_of(end, struct file_end, end);
	int err;

	if (file->is_block || end->size_known) {
		return 0;
	}
	err = file_resize(file, bytes, error);
	if (err == 0) {
		end->size_known = true;
		end->bytes = bytes;
	}
	return err;
}

static const struct copy_end_ops file_ops = {
	.prepare = file_prepare,
	.submit = copy_file_submit,
	.finish = file_finish,
	.forget = file_forget,
	.close = copy_file_close,
};

int copy_file_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error)
{
	struct file_end *file = calloc(1, sizeof(*file));
	int err;

	if (file == NULL) {
		return error_oom(error);
	}
	file->fd = -1;
	file->direct_fd = -1;
	file->claim_fd = -1;
	file->file = (struct ring_file){ .fd = -1, .slot = -1 };
	file->direct_file = file->file;
	file->direct = options->direct;
	err = copy_end_init(&file->end, &file_ops, loop, options, error);
	file->path = strdup(options->text);
	if (err == 0 && file->path == NULL) {
		err = error_oom(error);
	}
	err = err ?: copy_file_file_open(file, error);
	if (err < 0) {
		(void)copy_file_close(&file->end, NULL);
		return err;
	}
	*end_out = &file->end;
	return 0;
}
