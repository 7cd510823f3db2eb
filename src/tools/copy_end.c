// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/guest.h"
#include "tools/copy.h"

enum { NAME_BYTES = 300 };

enum copy_kind copy_end_kind(const char *text)
{
	struct stat status;

	if (strcmp(text, "-") == 0) {
		return COPY_STREAM;
	}
	if (strstr(text, "://") != NULL) {
		return COPY_REMOTE;
	}
	if (stat(text, &status) != 0) {
		return COPY_FILE;
	}
	if (S_ISBLK(status.st_mode)) {
		return COPY_DEVICE;
	}
	return S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode) ? COPY_STREAM : COPY_FILE;
}

int copy_end_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error)
{
	switch (copy_end_kind(options->text)) {
	case COPY_REMOTE:
		return copy_remote_open(loop, options, end_out, error);
	case COPY_STREAM:
		return copy_stream_open(loop, options, end_out, error);
	case COPY_FILE:
	case COPY_DEVICE:
		break;
	}
	return copy_file_open(loop, options, end_out, error);
}

int copy_end_init(struct copy_end *end, const struct copy_end_ops *ops, struct copy_loop *loop,
	const struct copy_end_options *options, struct error *error)
{
	char shown[NAME_BYTES - 2];

	end->ops = ops;
	end->loop = loop;
	end->text = options->text;
	end->target = options->target;
	end->role = options->target ? "the target" : "the source";
	end->block_min = 1;
	end->name = malloc(NAME_BYTES);
	if (end->name == NULL) {
		return error_oom(error);
	}
	if (strcmp(options->text, "-") == 0) {
		snprintf(end->name, NAME_BYTES, "%s",
			options->target ? "standard output" : "standard input");
	} else {
		snprintf(end->name, NAME_BYTES, "'%s'",
			log_escape(shown, sizeof(shown), options->text, strlen(options->text)));
	}
	return 0;
}

void copy_end_fini(struct copy_end *end)
{
	free(end->name);
	end->name = NULL;
}

static bool is_file(const uint64_t a[2], const uint64_t b[2])
{
	return a[1] != 0 && a[0] == b[0] && a[1] == b[1];
}

bool copy_end_is_same(const struct copy_end *a, const struct copy_end *b)
{
	if (a->kind == COPY_REMOTE || b->kind == COPY_REMOTE) {
		return a->kind == b->kind && strcmp(a->text, b->text) == 0;
	}
	return is_file(a->identity, b->identity) || is_file(a->identity, b->backing) ||
	       is_file(a->backing, b->identity) ||
	       (is_file(a->backing, b->backing) && a->backing_at == b->backing_at);
}

bool copy_end_is_open(const struct copy_end *end, int fd)
{
	struct stat status;

	return end->kind != COPY_REMOTE && fstat(fd, &status) == 0 &&
	       end->identity[0] == (uint64_t)status.st_dev &&
	       end->identity[1] == (uint64_t)status.st_ino;
}

int copy_end_prepare(struct copy_end *end, uint64_t bytes, bool resumed, struct error *error)
{
	GMB_ASSERT(end->target);
	return end->ops->prepare != NULL ? end->ops->prepare(end, bytes, resumed, error) : 0;
}

void copy_end_submit(struct copy_end *end, struct copy_io *io)
{
	GMB_ASSERT(!io->in_flight);
	GMB_ASSERT(io->done != NULL);
	GMB_ASSERT(end->target || io->operation == COPY_READ || io->operation == COPY_MAP);
	GMB_ASSERT(!end->size_known || range_inside(io->offset, io->length, end->bytes));
	io->in_flight = true;
	io->end = end;
	io->result = 0;
	io->moved = 0;
	io->extent_count = 0;
	end->ops->submit(end, io);
}

void copy_end_cancel(struct copy_end *end)
{
	if (end->ops->cancel != NULL) {
		end->ops->cancel(end);
	}
}

int copy_end_failure(const struct copy_end *end, struct error *error)
{
	int err = end->failure.code == -ENOTCONN ? copy_loop_check(end->loop, error) : 0;

	if (err == 0) {
		*error = end->failure;
	}
	return error->code;
}

int copy_end_finish(struct copy_end *end, uint64_t bytes, struct error *error)
{
	return end->ops->finish != NULL ? end->ops->finish(end, bytes, error) : 0;
}

void copy_end_forget(struct copy_end *end)
{
	if (end->ops->forget != NULL) {
		end->ops->forget(end);
	}
}

int copy_end_close(struct copy_end *end, struct error *error)
{
	return end != NULL ? end->ops->close(end, error) : 0;
}

void copy_io_end(struct copy_io *io, int result)
{
	GMB_ASSERT(io->in_flight);
	io->in_flight = false;
	io->result = result;
	io->done(io);
}

void copy_io_fail(struct copy_io *io, int code)
{
	static const char *const verbs[] = {
		[COPY_READ] = "read",
		[COPY_WRITE] = "write",
		[COPY_ZERO] = "zero",
		[COPY_FLUSH] = "flush",
		[COPY_MAP] = "find the holes of",
	};
	struct copy_end *end = io->end;

	GMB_ASSERT(code < 0);
	if (io->operation == COPY_FLUSH) {
		error_set(&end->failure, code, "cannot flush %s %s: %s", end->role, end->name,
			strerror(-code));
	} else if (end->kind == COPY_STREAM) {
		error_set(&end->failure, code, "cannot %s %s %s at byte %llu: %s",
			verbs[io->operation], end->role, end->name, (unsigned long long)io->offset,
			strerror(-code));
	} else {
		error_set(&end->failure, code, "cannot %s %s %s at byte %llu (%llu bytes): %s",
			verbs[io->operation], end->role, end->name, (unsigned long long)io->offset,
			(unsigned long long)io->length, strerror(-code));
	}
	copy_io_end(io, code);
}

enum { RING_ENTRIES = 256 };
#define TICK_NS (UINT64_C(1000000) * COPY_TICK_MS)
/* The rate limit lets the copy catch up this much unused time, because ticks can be late. */
#define RATE_BACK_NS (2 * TICK_NS)

int copy_loop_create(struct copy_loop *loop, bool remote, bool local, struct error *error)
{
	static const struct ring_options options = {
		.entries = RING_ENTRIES,
		.files_max = 16,
		.buffers_max = 16,
	};
	struct gmb_error reason;
	int err;

	memset(loop, 0, sizeof(*loop));
	loop->signal_fd = -1;
	loop->local = local;
	list_init(&loop->remotes);
	err = ring_create(&options, &loop->ring, error);
	if (err < 0) {
		return err;
	}
	if (!remote) {
		return 0;
	}
	err = gmb_queue_create(NULL, &loop->queue, &reason);
	if (err < 0) {
		ring_destroy(loop->ring);
		loop->ring = NULL;
		return error_set(error, err, "%s", reason.text);
	}
	return 0;
}

/* Static data of the signal handler, which has no argument and can run on any thread. */
static const int stop_signals[] = { SIGINT, SIGTERM, SIGHUP };
static volatile sig_atomic_t caught_signal;
static volatile sig_atomic_t caught_fd = -1;
static _Atomic uint64_t caught_ns;

static void copy_end_signal_caught(int number)
{
	static const uint64_t one = 1;
	int saved_errno = errno;

	if (caught_signal == 0) {
		/* Stored first, because the loop reads it when it sees caught_signal. */
		caught_ns = clock_now_ns();
		caught_signal = number;
		if (caught_fd >= 0) {
			(void)!write(caught_fd, &one, sizeof(one));
		}
	} else if (clock_now_ns() - caught_ns >= CLOCK_SAME_SIGNAL_NS) {
		/* The second signal ends the process: it is delivered with the default action when
		 * this handler returns. */
		(void)signal(number, SIG_DFL);
		(void)raise(number);
	}
	errno = saved_errno;
}

static void signal_done(struct ring_op *op, int result)
{
	struct copy_loop *loop = container_of(op, struct copy_loop, signal_op);

	loop->stop_signal = caught_signal;
}

/* Called for events of the queue and for the tick. A no-op: the event has already ended the
 * wait in copy_loop_turn(), and the next turn processes the queue. */
static void turn_ends(struct ring_op *op, int result)
{
}

void copy_stop_watch(int fd)
{
	struct sigaction catch = { .sa_handler = copy_end_signal_caught };

	caught_fd = fd;
	for (size_t i = 0; i < ARRAY_COUNT(stop_signals); i++) {
		struct sigaction before;

		/* A signal that was ignored at the start (nohup) stays ignored. */
		if (sigaction(stop_signals[i], NULL, &before) == 0 &&
			before.sa_handler != SIG_IGN) {
			(void)sigaction(stop_signals[i], &catch, NULL);
		}
	}
}

int copy_stop_signal(void)
{
	return caught_signal;
}

int copy_loop_watch_signals(struct copy_loop *loop, struct error *error)
{
	GMB_ASSERT(loop->signal_fd < 0);
	loop->signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop->signal_fd < 0) {
		return error_set(error, -errno, "cannot receive signals: %s", strerror(errno));
	}
	copy_stop_watch(loop->signal_fd);
	return 0;
}

static void copy_end_arm(struct copy_loop *loop)
{
	if (loop->queue != NULL && !loop->queue_op.in_flight) {
		ring_poll(
			loop->ring, &loop->queue_op, gmb_queue_fd(loop->queue), POLLIN, turn_ends);
	}
	if (loop->signal_fd >= 0 && loop->stop_signal == 0 && !loop->signal_op.in_flight) {
		ring_poll(loop->ring, &loop->signal_op, loop->signal_fd, POLLIN, signal_done);
	}
	if (!loop->tick_op.in_flight) {
		ring_timer(loop->ring, &loop->tick_op, TICK_NS, turn_ends);
	}
}

struct remote_end {
	struct copy_end end;
	struct gmb_client *client;
	struct list_node node; /* in loop->remotes while the end is open */
	bool lost;	       /* a connection was lost after the signal to stop */
	bool ended;
};

/* Called after the signal to stop. Ends the clients without a connection, so that their requests
 * fail instead of waiting for a server that might never return. */
static void remotes_end_lost(struct copy_loop *loop)
{
	list_for_each(node, &loop->remotes)
	{
		struct remote_end *remote = list_entry(node, struct remote_end, node);
		struct gmb_info info = { .size = sizeof(info) };

		gmb_get_info(remote->client, &info);
		if (!remote->ended && (remote->lost || info.connections == 0)) {
			remote->ended = true;
			client_end(remote->client);
		}
	}
}

void copy_loop_turn(struct copy_loop *loop)
{
	int finished = 0;

	if (loop->stop_signal != 0) {
		remotes_end_lost(loop);
	}
	if (!loop->local) {
		(void)gmb_queue_wait(loop->queue, COPY_TICK_MS);
		loop->stop_signal = caught_signal;
		return;
	}
	if (loop->queue != NULL) {
		finished = gmb_queue_wait(loop->queue, 0);
	}
	copy_end_arm(loop);
	(void)ring_turn(loop->ring, finished <= 0);
}

int copy_loop_check(const struct copy_loop *loop, struct error *error)
{
	return loop->stop_signal == 0 ? 0
				      : error_set(error, -EINTR, "the copy was stopped by SIG%s",
						sigabbrev_np(loop->stop_signal));
}

uint64_t copy_loop_now_ns(const struct copy_loop *loop)
{
	return ring_now_ns(loop->ring);
}

bool copy_loop_may_move(const struct copy_loop *loop)
{
	return loop->rate == 0 || copy_loop_now_ns(loop) >= loop->rate_due_ns;
}

void copy_loop_moves(struct copy_loop *loop, uint64_t bytes)
{
	uint64_t now_ns = copy_loop_now_ns(loop);

	if (loop->rate == 0) {
		return;
	}
	/* Unused time can be caught up, but not more than RATE_BACK_NS. */
	if (loop->rate_due_ns + RATE_BACK_NS < now_ns) {
		loop->rate_due_ns = now_ns - RATE_BACK_NS;
	}
	loop->rate_due_ns += (uint64_t)((double)bytes * 1e9 / (double)loop->rate);
}

void copy_loop_destroy(struct copy_loop *loop)
{
	if (loop->ring == NULL) {
		return;
	}
	ring_cancel(loop->ring, &loop->queue_op);
	ring_cancel(loop->ring, &loop->signal_op);
	ring_cancel(loop->ring, &loop->tick_op);
	while (loop->queue_op.in_flight || loop->signal_op.in_flight || loop->tick_op.in_flight) {
		(void)ring_turn(loop->ring, true);
	}
	(void)gmb_queue_destroy(loop->queue);
	ring_destroy(loop->ring);
	loop->ring = NULL;
}

enum {
	/* Several connections fill a network with a long latency, and occupy several threads of a
	 * server. Unix sockets need several connections because their buffers are small. Over
	 * loopback, four connections slow each other down less than two do. */
	CONNECTIONS_DEFAULT = 4,
	RECONNECT_MS_MAX = 600000,
	SLOW_MS_MAX = 300000,
};

static void copy_end_request_done(struct gmb_request *request)
{
	struct copy_io *io = container_of(request, struct copy_io, request);
	struct remote_end *remote = container_of(io->end, struct remote_end, end);
	char text[ERROR_TEXT_BYTES];

	if (request->result < 0) {
		(void)gmb_explain(remote->client, request, text, sizeof(text));
		error_set(&io->end->failure, request->result, "%s: %s", io->end->role, text);
		copy_io_end(io, request->result);
		return;
	}
	io->extent_count = request->extent_count;
	io->moved = io->length;
	copy_io_end(io, 0);
}

static void remote_submit(struct copy_end *end, struct copy_io *io)
{
	struct remote_end *remote = container_of(end, struct remote_end, end);
	struct gmb_request *request = &io->request;

	memset(request, 0, sizeof(*request));
	switch (io->operation) {
	case COPY_READ:
		gmb_prepare_read(request, io->buffer, io->length, io->offset);
		break;
	case COPY_WRITE:
		gmb_prepare_write(request, io->buffer, io->length, io->offset);
		break;
	case COPY_ZERO:
		gmb_prepare(request, GMB_ZERO, io->offset, io->length);
		request->flags = io->allocate ? GMB_NO_HOLE : 0;
		break;
	case COPY_FLUSH:
		gmb_prepare(request, GMB_FLUSH, 0, 0);
		break;
	case COPY_FROM:
		gmb_prepare_copy(request, io->offset,
			container_of(io->source, struct remote_end, end)->client, io->offset,
			io->length);
		break;
	case COPY_MAP:
		gmb_prepare_status(request, io->extents, io->extents_max, io->offset, io->length);
		break;
	}
	request->done = copy_end_request_done;
	gmb_submit(remote->client, request);
}

bool copy_end_can_copy(struct copy_end *target, struct copy_end *source, const char **reason)
{
	struct gmb_info from = { .size = sizeof(from) };
	struct gmb_info to = { .size = sizeof(to) };
	bool can = false;

	if (target->kind == COPY_REMOTE && source->kind == COPY_REMOTE) {
		const struct gmb_client *target_client =
			container_of(target, struct remote_end, end)->client;
		const struct gmb_client *source_client =
			container_of(source, struct remote_end, end)->client;

		can = gmb_can_copy(target_client, source_client) != 0;
		gmb_get_info(target_client, &to);
		gmb_get_info(source_client, &from);
	}
	*reason = (from.capabilities & to.capabilities & GMB_CAN_COPY) != 0
			  ? "source and target are on different servers"
			  : "source and target do not both use gmb";
	return can;
}

static int remote_close(struct copy_end *end, struct error *error)
{
	struct remote_end *remote = container_of(end, struct remote_end, end);

	list_remove(&remote->node);
	(void)gmb_close(remote->client);
	copy_end_fini(end);
	free(remote);
	return 0;
}

static const struct copy_end_ops remote_ops = {
	.submit = remote_submit,
	.close = remote_close,
};

static void copy_end_remote_event(void *context, enum gmb_event event, const char *text)
{
	struct remote_end *remote = context;
	struct copy_end *end = &remote->end;
	struct gmb_info info = { .size = sizeof(info) };

	remote->lost |= event == GMB_EVENT_LOST && end->loop->stop_signal != 0;
	if (event == GMB_EVENT_RESIZED && remote->client != NULL) {
		gmb_get_info(remote->client, &info);
		end->shrunk |= end->size_known && info.bytes < end->bytes;
	}
	/* the text of RECONNECTED is only the URI */
	log_warning(
		"%s: %s%s", end->role, text, event == GMB_EVENT_RECONNECTED ? ": reconnected" : "");
}

/* Fills in the properties of the end from the export. -EROFS: the target cannot be written. */
static int remote_describe(struct remote_end *remote, struct error *error)
{
	struct copy_end *end = &remote->end;
	struct gmb_info info = { .size = sizeof(info) };

	gmb_get_info(remote->client, &info);
	end->kind = COPY_REMOTE;
	end->size_known = true;
	end->bytes = info.bytes;
	end->block_min = info.block_minimum;
	end->can_map = (info.capabilities & GMB_CAN_STATUS) != 0;
	end->can_zero = (info.capabilities & GMB_CAN_ZERO) != 0;
	end->can_flush = (info.capabilities & GMB_CAN_FLUSH) != 0;
	if (end->target && (info.capabilities & GMB_CAN_WRITE) == 0) {
		return error_set(error, -EROFS,
			"the target %s is read-only: its server does not allow writes", end->name);
	}
	return 0;
}

int copy_remote_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error)
{
	struct remote_end *remote = calloc(1, sizeof(*remote));
	struct gmb_options open = {
		.size = sizeof(open),
		.flags = GMB_OPEN_URI_FILES | (options->target ? 0 : GMB_OPEN_READ_ONLY),
		.connections = options->connections == COPY_CONNECTIONS_AUTO ? 0
			       : options->connections != 0		     ? options->connections
									     : CONNECTIONS_DEFAULT,
		.reconnect_timeout_ms = RECONNECT_MS_MAX,
		.slow_timeout_ms = SLOW_MS_MAX,
		.event = copy_end_remote_event,
		.context = remote,
	};
	struct gmb_error reason;
	int err;

	if (remote == NULL) {
		return error_oom(error);
	}
	list_init(&remote->node);
	err = copy_end_init(&remote->end, &remote_ops, loop, options, error);
	if (err == 0) {
		err = gmb_open(loop->queue, options->text, &open, &remote->client, &reason);
		if (err < 0) {
			error_set(error, err, "%s: %s", remote->end.role, reason.text);
		}
	}
	err = err ?: remote_describe(remote, error);
	if (err < 0) {
		(void)remote_close(&remote->end, NULL);
		return err;
	}
	client_end_if_refused(remote->client);
	list_push_back(&loop->remotes, &remote->node);
	*end_out = &remote->end;
	return 0;
}

/*
 * A stream: pipes, terminals, sockets and others without offsets. One operation at a time. The
 * descriptor is polled before a read or write, so that waiting for the other side can be canceled,
 * and so that a non-blocking descriptor works as well.
 */

enum { PIPE_BYTES = 1 << 20 };
/* Reads and writes use the descriptor's own offset, in case it is a regular file. */
#define OFFSET_CURRENT UINT64_MAX

struct stream_end {
	struct copy_end end;
	struct ring_file file;
	struct copy_io *active; /* the operation in flight */
	bool cancelled;
	bool borrowed; /* standard input or output, which we do not close */
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

/* A stream that is a regular file can be flushed; a pipe cannot, which is not an error. */
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
		return error_oom(error);
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
	/* In a larger pipe, each read or write moves more bytes. Without permission the pipe keeps
	 * its size. */
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
