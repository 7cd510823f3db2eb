// SPDX-License-Identifier: Apache-2.0
/*
 * Pipes, terminals, sockets and whatever else has no offsets. One operation at a time. It is polled
 * for before it is read or written, so that a wait for the other side can be ended, and so that a
 * descriptor somebody made non-blocking works as well.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/copy_end.h"

enum { PIPE_BYTES = 1 << 20 };
/* Where the descriptor stands: an offset for those that are regular files after all. */
#define OFFSET_CURRENT UINT64_MAX

struct stream_end {
	struct copy_end end;
	struct ring_file file;
	struct copy_io *active; /* the operation in flight */
	bool cancelled;
	bool borrowed; /* standard input or output: not ours to close */
};

static void stream_wait(struct stream_end *stream);

static void stream_moved(struct ring_op *op, int result)
{
	struct copy_io *io = container_of(op, struct copy_io, ring_op);
	struct stream_end *stream = container_of(io->end, struct stream_end, end);

	if (result == -EINTR || result == -EAGAIN) {
		stream_wait(stream);
		return;
	}
	if (result < 0 || (result == 0 && io->operation == COPY_WRITE)) {
		stream->active = NULL;
		copy_io_fail(io, result < 0 ? result : -EIO);
		return;
	}
	io->moved += (uint64_t)result;
	if (result == 0 || io->moved == io->length) {
		stream->active = NULL;
		copy_io_end(io, 0);
		return;
	}
	stream_wait(stream);
}

static void stream_ready(struct ring_op *op, int result)
{
	struct copy_io *io = container_of(op, struct copy_io, ring_op);
	struct stream_end *stream = container_of(io->end, struct stream_end, end);
	struct ring *ring = stream->end.loop->ring;
	size_t left = (size_t)(io->length - io->moved);

	if (stream->cancelled) {
		stream->active = NULL;
		copy_io_fail(io, -ECANCELED);
		return;
	}
	if (result < 0 && result != -EINTR) {
		stream->active = NULL;
		copy_io_fail(io, result);
		return;
	}
	if (io->operation == COPY_READ) {
		ring_read(ring, &io->ring_op, stream->file, mem_of(io->buffer + io->moved), left,
			OFFSET_CURRENT, stream_moved);
	} else {
		ring_write(ring, &io->ring_op, stream->file, mem_of(io->buffer + io->moved), left,
			OFFSET_CURRENT, false, stream_moved);
	}
}

static void stream_wait(struct stream_end *stream)
{
	struct copy_io *io = stream->active;

	ring_poll(stream->end.loop->ring, &io->ring_op, stream->file.fd,
		io->operation == COPY_READ ? POLLIN : POLLOUT, stream_ready);
}

/* A regular file behind the stream can be made durable; a pipe has nothing of the kind. */
static void stream_synced(struct ring_op *op, int result)
{
	struct copy_io *io = container_of(op, struct copy_io, ring_op);

	if (result < 0 && result != -EINVAL && result != -EOPNOTSUPP) {
		copy_io_fail(io, result);
	} else {
		copy_io_end(io, 0);
	}
}

static void stream_submit(struct copy_end *end, struct copy_io *io)
{
	struct stream_end *stream = container_of(end, struct stream_end, end);

	memset(&io->ring_op, 0, sizeof(io->ring_op));
	if (io->operation == COPY_FLUSH) {
		ring_fsync(end->loop->ring, &io->ring_op, stream->file, stream_synced);
		return;
	}
	GMB_ASSERT(io->operation == COPY_READ || io->operation == COPY_WRITE);
	GMB_ASSERT(stream->active == NULL);
	stream->active = io;
	stream_wait(stream);
}

static void stream_cancel(struct copy_end *end)
{
	struct stream_end *stream = container_of(end, struct stream_end, end);

	stream->cancelled = true;
	if (stream->active != NULL) {
		ring_cancel(end->loop->ring, &stream->active->ring_op);
	}
}

static int stream_close(struct copy_end *end, struct error *error)
{
	struct stream_end *stream = container_of(end, struct stream_end, end);
	int result = 0;

	ring_file_remove(end->loop->ring, &stream->file);
	if (!stream->borrowed && close(stream->file.fd) != 0) {
		result = error_set(error, -errno, "cannot close %s %s: %s", end->role, end->name,
			strerror(errno));
	}
	copy_end_fini(end);
	free(stream);
	return result;
}

static const struct copy_end_ops stream_ops = {
	.submit = stream_submit,
	.cancel = stream_cancel,
	.close = stream_close,
};

static int stream_descriptor(struct stream_end *stream, const struct copy_end_options *options)
{
	int flags = (options->target ? O_WRONLY : O_RDONLY) | O_CLOEXEC | O_NOCTTY;
	int fd;

	if (strcmp(options->text, "-") == 0) {
		stream->borrowed = true;
		return options->target ? STDOUT_FILENO : STDIN_FILENO;
	}
	do {
		fd = open(options->text, flags);
	} while (fd < 0 && errno == EINTR);
	return fd < 0 ? -errno : fd;
}

int copy_stream_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error)
{
	struct stream_end *stream = calloc(1, sizeof(*stream));
	struct stat status;
	int err;
	int fd = -1;

	if (stream == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	err = copy_end_init(&stream->end, &stream_ops, loop, options, error);
	if (err == 0) {
		fd = stream_descriptor(stream, options);
		if (fd < 0) {
			err = error_set(error, fd, "cannot open %s %s: %s", stream->end.role,
				stream->end.name, strerror(-fd));
		}
	}
	if (err < 0) {
		copy_end_fini(&stream->end);
		free(stream);
		return err;
	}
	/* Fewer turns a MiB; where it is not allowed the pipe stays as it is. */
	(void)fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES);
	stream->end.kind = COPY_STREAM;
	stream->end.can_flush = true;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
		stream->end.identity[0] = (uint64_t)status.st_dev;
		stream->end.identity[1] = (uint64_t)status.st_ino;
	}
	stream->file = ring_file_add(loop->ring, fd);
	*end_out = &stream->end;
	return 0;
}
