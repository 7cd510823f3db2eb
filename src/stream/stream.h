// SPDX-License-Identifier: Apache-2.0
/*
 * The byte stream between a connection and the ring. All operations on a socket after it is
 * accepted or connected go through here.
 *
 *   session, carrier ──▶ stream ──▶ ring            a plain socket: inline, without a layer
 *                           └─▶ layer ──▶ ring      kernel TLS, a record layer: struct stream_ops
 *
 *   STREAM_PLAIN ── stream_upgrade() ──▶ STREAM_UPGRADING ── start() succeeded ──▶ STREAM_LAYERED
 *        │                                     │ start() failed                         │
 *        └──────────────────────────▶ STREAM_CLOSED ◀───────────────────────────────────┘
 *
 * A layer that another process has handed over is put on a plain stream directly, with
 * stream_adopt(). A stream is upgraded at most once, before its first request. During the upgrade
 * (a handshake, partly on a worker thread) the stream is paused: no data is sent or received. A
 * stream never returns to STREAM_PLAIN.
 *
 * Threading: the ring's thread. Ownership: stream_open() takes the descriptor, stream_close()
 * closes it. The caller's operation, message, vector and buffers are used until done is called, as
 * by the ring. Errors: those of the ring: a count >= 0, or a negative errno. The caller continues
 * after short counts and -EINTR.
 */
#pragma once

#include "ring/ring.h"

struct stream;

/* A layer on top of a socket. Every member is required. Operations complete with
 * ring_op_complete(), never from inside the call. */
struct stream_ops {
	const char *name;
	/* enum mem_right: rights that the layer needs on memory from which it sends and into which
	 * it receives. */
	uint32_t memory_rights;
	/* Prepares the layer (a handshake); completes op with 0 or a negative errno. */
	void (*start)(struct stream *stream, struct ring_op *op);
	void (*receive)(
		struct stream *stream, struct ring_op *op, struct msghdr *message, bool whole);
	void (*send)(struct stream *stream, struct ring_op *op, const struct msghdr *message);
	ssize_t (*receive_now)(struct stream *stream, struct msghdr *message);
	ssize_t (*send_now)(struct stream *stream, const struct msghdr *message);
	/* Called only if memory_rights is MEM_SOCKET. */
	ssize_t (*sendfile_now)(struct stream *stream, struct mem_ref bytes, size_t count);
	/* Returns false if the socket has all data that send_now() has accepted. Otherwise returns
	 * true; done is then called with 0 or a negative errno when the socket has the data. */
	bool (*flush)(struct stream *stream, struct ring_op *op, ring_done_fn *done);
	/* Requests that a receive end soon, with -ECANCELED or with whatever result comes first. */
	void (*cancel)(struct stream *stream, struct ring_op *op);
	/* Called when the socket is being shut down. Anything else for which the layer waits must
	 * end soon as well. */
	void (*shutdown)(struct stream *stream);
	/* Called when all data was sent: the layer notifies its peer before the socket is
	 * closed for sending. */
	void (*shutdown_send)(struct stream *stream);
	/* Called after the socket was shut down. Returns true if all of the layer's own operations
	 * have completed. If the last one completes later, the layer calls
	 * stream_became_idle(). */
	bool (*is_idle)(const struct stream *stream);
	/* Frees the layer, which is idle. The socket is closed afterwards. */
	void (*close)(struct stream *stream);
};

/* Data can be transferred only in the last two states. */
enum stream_state { STREAM_CLOSED, STREAM_UPGRADING, STREAM_PLAIN, STREAM_LAYERED };

/* All zero: closed. */
struct stream {
	struct ring *ring;
	const struct stream_ops *ops; /* NULL: a plain socket */
	void *layer;		      /* private to ops */
	struct ring_file file;
	enum stream_state state;
	/* enum mem_right: rights that payload memory of this stream must have. The owner reads them
	 * before it chooses memory. For example, a socket accepts memory that the CPU cannot
	 * access; a layer that encrypts does not. Without MEM_ADDRESS, the stream can also send
	 * bytes of files (stream_sendfile_now()). The rights change only with an upgrade. Read-only
	 * for the owner. */
	uint32_t memory_rights;
	/* Bytes that a layer has received from the socket: even a partial record shows that the
	 * peer is alive. Read-only for the owner. */
	uint64_t raw_bytes;
	struct msghdr message; /* message of a contiguous receive by a layer */
	struct iovec iov;
	struct ring_op upgrade_op;
	void (*upgraded)(struct stream *stream, int result);
	/* Set by the owner after stream_open(); can be NULL. Called when the layer's own operations
	 * have completed, so that an owner that waits to close the stream checks again. The
	 * callback may close the stream. */
	void (*idle)(struct stream *stream);
};

/* TCP keep-alive settings, which define when the kernel closes the connection of a silent peer. A
 * peer program that hangs is not detected, because its kernel still answers. */
struct stream_keep_alive {
	int idle_s;	/* seconds without a byte until the first probe */
	int interval_s; /* seconds between probes */
	int probes;	/* unanswered probes that close the connection */
};

/* Takes a connected stream socket (TCP or Unix) and configures it: TCP sends without Nagle's delay,
 * probes a silent peer (keep_alive), and within this machine does not pace what it sends; a Unix
 * socket gets a buffer for a large reply. Settings
 * that the system refuses keep the system's defaults. */
void stream_open(struct stream *stream, struct ring *ring, int fd,
	const struct stream_keep_alive *keep_alive);

/*
 * Puts a layer on a plain stream that has no operation in flight, and runs the layer's start().
 * upgraded is called later, from the ring, with 0 or a negative errno. Until then stream_is_idle()
 * is false, so the stream cannot be closed. After an error the stream can only be shut down and
 * closed.
 */
void stream_upgrade(struct stream *stream, const struct stream_ops *ops, void *layer,
	void (*upgraded)(struct stream *stream, int result));

/* Puts a layer whose handshake is complete on a plain stream that has no operation in flight.
 * memory_rights replaces stream->memory_rights. */
void stream_adopt(
	struct stream *stream, const struct stream_ops *ops, void *layer, uint32_t memory_rights);

/* Called before the shutdown of a stream whose last bytes were sent with stream_send_now(). Returns
 * false if no data is pending. Otherwise returns true, and done is called with 0 or a negative
 * errno when the layer has passed all accepted data to the socket. No send may be in flight. */
GMB_MUST_CHECK static inline bool stream_flush(
	struct stream *stream, struct ring_op *op, ring_done_fn *done)
{
	return stream->ops != NULL && stream->ops->flush(stream, op, done);
}

/* Ends both directions immediately: operations in flight complete. */
void stream_shutdown(struct stream *stream);
/* Like stream_shutdown(), but discards data that was sent and has not left this machine. */
void stream_abort(struct stream *stream);
/* Ends the sending direction; receiving continues. */
void stream_shutdown_send(struct stream *stream);
/* True if the stream can be closed once the caller's own operations have completed. After
 * stream_shutdown() or stream_abort() it becomes true without further calls. */
bool stream_is_idle(const struct stream *stream);
/* Called by a layer when an operation that it started itself has completed, because the owner might
 * be waiting to close the stream. The call must be the layer's last step, because it may free the
 * stream and the layer. */
static inline void stream_became_idle(struct stream *stream)
{
	if (stream->idle != NULL && stream_is_idle(stream)) {
		stream->idle(stream);
	}
}
/* Closes an idle stream. No-op on a closed stream. */
void stream_close(struct stream *stream);

/* Returns in *bytes_out the number of sent bytes that the peer has not acknowledged yet; see
 * ring_socket_unacked(). */
static inline bool stream_unacked(struct stream *stream, uint64_t *bytes_out)
{
	return ring_socket_unacked(stream->ring, stream->file, bytes_out);
}

/* Identifies the process at the other end of a Unix socket. stream_peer_credentials() returns false
 * if the process is unknown, or if the socket is not a Unix socket. */
struct stream_credentials {
	int pid;
	uint32_t uid;
	uint32_t gid;
};
bool stream_peer_credentials(int fd, struct stream_credentials *credentials);

/* Receives at most len bytes. done gets the number of bytes, or 0 at the end of the stream. whole:
 * the number is less than len only at the end of the stream or after an error. At most one receive
 * can be in flight per stream. */
static inline void stream_receive(struct stream *stream, struct ring_op *op, void *buf, size_t len,
	bool whole, ring_done_fn *done)
{
	GMB_ASSERT(stream->state >= STREAM_PLAIN);
	if (stream->ops == NULL) {
		ring_recv(stream->ring, op, stream->file, buf, len, whole, done);
		return;
	}
	stream->iov = (struct iovec){ .iov_base = buf, .iov_len = len };
	stream->message = (struct msghdr){ .msg_iov = &stream->iov, .msg_iovlen = 1 };
	ring_op_begin(op, done);
	stream->ops->receive(stream, op, &stream->message, whole);
}

/* Like stream_receive(), into the vector of message. */
static inline void stream_receive_message(struct stream *stream, struct ring_op *op,
	struct msghdr *message, bool whole, ring_done_fn *done)
{
	GMB_ASSERT(stream->state >= STREAM_PLAIN);
	if (stream->ops == NULL) {
		ring_recvmsg(stream->ring, op, stream->file, message, whole, done);
		return;
	}
	ring_op_begin(op, done);
	stream->ops->receive(stream, op, message, whole);
}

/*
 * Sends some of the message. The network copies its memory (no IORING_OP_SEND_ZC): loopback and
 * veth copy lent memory as well, and no measured case gains from lending. A short count is normal
 * (the socket is full, or the file was truncated while its page cache was sent); the caller sends
 * the rest with another call. At most one send in flight per stream.
 */
static inline void stream_send(
	struct stream *stream, struct ring_op *op, const struct msghdr *message, ring_done_fn *done)
{
	GMB_ASSERT(stream->state >= STREAM_PLAIN);
	if (stream->ops == NULL) {
		ring_sendmsg(stream->ring, op, stream->file, message, done);
		return;
	}
	ring_op_begin(op, done);
	stream->ops->send(stream, op, message);
}

/* Receives what is available immediately, without an operation; see ring_recvmsg_now(). */
GMB_MUST_CHECK static inline ssize_t stream_receive_now(
	struct stream *stream, struct msghdr *message)
{
	GMB_ASSERT(stream->state >= STREAM_PLAIN);
	return stream->ops == NULL ? ring_recvmsg_now(stream->ring, stream->file, message)
				   : stream->ops->receive_now(stream, message);
}

GMB_MUST_CHECK static inline ssize_t stream_send_now(
	struct stream *stream, const struct msghdr *message)
{
	GMB_ASSERT(stream->state >= STREAM_PLAIN);
	return stream->ops == NULL ? ring_sendmsg_now(stream->ring, stream->file, message)
				   : stream->ops->send_now(stream, message);
}

/* Sends bytes of a file; see ring_sendfile_now(). The stream's memory_rights are MEM_SOCKET. */
GMB_MUST_CHECK static inline ssize_t stream_sendfile_now(
	struct stream *stream, struct mem_ref bytes, size_t count)
{
	GMB_ASSERT(stream->state >= STREAM_PLAIN);
	return stream->ops == NULL ? ring_sendfile_now(stream->ring, stream->file, bytes, count)
				   : stream->ops->sendfile_now(stream, bytes, count);
}

/* Requests that a receive in flight end soon; see stream_ops.cancel. */
static inline void stream_cancel(struct stream *stream, struct ring_op *op)
{
	if (stream->ops == NULL) {
		ring_cancel(stream->ring, op);
	} else if (op->in_flight) {
		stream->ops->cancel(stream, op);
	}
}
