// SPDX-License-Identifier: Apache-2.0
/*
 * The byte stream between a connection and the ring: everything that is done to a connected socket
 * once it is accepted or connected goes through here.
 *
 *   session, carrier ──▶ stream ──▶ ring            a plain socket: inline, nothing in between
 *                           └─▶ layer ──▶ ring      kernel TLS, a record layer: struct stream_ops
 *
 *   STREAM_PLAIN ── stream_upgrade() ──▶ STREAM_UPGRADING ── start() succeeded ──▶ STREAM_LAYERED
 *        │                                     │ start() failed                         │
 *        └──────────────────────────▶ STREAM_CLOSED ◀───────────────────────────────────┘
 *
 * A layer that another process has passed is put on a plain stream at once: stream_adopt().
 * A stream is upgraded at most once, before its first request. While it is upgraded (a handshake,
 * partly on a worker thread) it is paused: nothing is sent or received. No edge leads back to
 * STREAM_PLAIN.
 *
 * Threading: the ring's thread. Ownership: stream_open() takes the descriptor, stream_close()
 * closes it; the caller's operation, message, vector and buffers are held until done, as by the
 * ring. Errors: those of the ring: a count >= 0, or a negative errno; short counts and -EINTR are
 * the caller's to resume.
 */
#pragma once

#include "ring/ring.h"

struct stream;

/* A layer on top of a socket. Every member is required. Operations complete with
 * ring_op_complete(), never from inside the call. */
struct stream_ops {
	const char *name;
	uint32_t memory_rights; /* enum mem_right: what it needs of memory that it sends from and
				 * receives into */
	/* Makes the layer ready (a handshake); completes op with 0 or a negative errno. */
	void (*start)(struct stream *stream, struct ring_op *op);
	void (*receive)(
		struct stream *stream, struct ring_op *op, struct msghdr *message, bool whole);
	void (*send)(struct stream *stream, struct ring_op *op, const struct msghdr *message);
	ssize_t (*receive_now)(struct stream *stream, struct msghdr *message);
	ssize_t (*send_now)(struct stream *stream, const struct msghdr *message);
	/* What send_now took may still be on its way to the socket: true, and op, which is begun
	 * with done, completes when it is there, with 0 or a negative errno. False: nothing is. */
	bool (*flush)(struct stream *stream, struct ring_op *op, ring_done_fn *done);
	/* A receive should end soon, with -ECANCELED or what happened first. */
	void (*cancel)(struct stream *stream, struct ring_op *op);
	/* The socket is being shut down. What the layer waits for besides the socket ends soon,
	 * too.
	 */
	void (*shutdown)(struct stream *stream);
	/* Nothing more will be sent: the layer says so to its peer before the socket does. */
	void (*shutdown_send)(struct stream *stream);
	/* True when no operation of the layer's own is in flight. The socket was shut down. When it
	 * has become true and the caller may not know, the layer calls stream_became_idle(). */
	bool (*is_idle)(const struct stream *stream);
	/* Frees the layer; it is idle. The socket is closed afterwards. */
	void (*close)(struct stream *stream);
};

/* The last two carry bytes. */
enum stream_state { STREAM_CLOSED, STREAM_UPGRADING, STREAM_PLAIN, STREAM_LAYERED };

/* All zero: closed. */
struct stream {
	struct ring *ring;
	const struct stream_ops *ops; /* NULL: a plain socket */
	void *layer;		      /* what ops keep */
	struct ring_file file;
	enum stream_state state;
	/* enum mem_right: what payload memory must allow, to be known before it is chosen: a socket
	 * takes memory that the CPU may not use, a layer that encrypts does not. Changes with an
	 * upgrade only. Read only. */
	uint32_t memory_rights;
	/* What a layer has received of the socket: also a part of a record shows that the peer
	 * lives. Read only. */
	uint64_t raw_bytes;
	struct msghdr message; /* of a contiguous receive by a layer */
	struct iovec iov;
	struct ring_op upgrade_op;
	void (*upgraded)(struct stream *stream, int result);
	/* The owner's, set after stream_open(), or NULL: a layer's own operations have ended, so
	 * that an owner that waits to close the stream may look again. It may close it. */
	void (*idle)(struct stream *stream);
};

/* How long a peer that says nothing may be gone before the system ends the connection. A peer that
 * merely hangs is not gone: its system answers. */
struct stream_keep_alive {
	int idle_s;	/* without a byte, until the first question */
	int interval_s; /* between questions */
	int probes;	/* questions without an answer that end it */
};

/* Takes a connected stream socket (TCP or Unix) and sets it up: TCP sends at once (P2) and finds
 * out that its peer's machine is gone; a Unix socket gets room for a large reply. What the system
 * refuses keeps the system's defaults. */
void stream_open(struct stream *stream, struct ring *ring, int fd,
	const struct stream_keep_alive *keep_alive);

/*
 * Puts a layer on a plain stream on which nothing is in flight, and runs its start(). upgraded is
 * called later, from the ring, with 0 or a negative errno; after an error the stream can only be
 * shut down and closed. Not called if the stream is closed first.
 */
void stream_upgrade(struct stream *stream, const struct stream_ops *ops, void *layer,
	void (*upgraded)(struct stream *stream, int result));

/* Puts a layer that is ready on a plain stream on which nothing is in flight. memory_rights: those
 * of the stream from now on. */
void stream_adopt(
	struct stream *stream, const struct stream_ops *ops, void *layer, uint32_t memory_rights);

/* Before a shutdown of a stream whose last bytes went by stream_send_now(): true, and done is
 * called when a layer has passed on to the socket what it took (0, or a negative errno). False:
 * there is nothing to wait for. No send is in flight. */
GMB_MUST_CHECK static inline bool stream_flush(
	struct stream *stream, struct ring_op *op, ring_done_fn *done)
{
	return stream->ops != NULL && stream->ops->flush(stream, op, done);
}

/* Ends both directions now: operations in flight complete. */
void stream_shutdown(struct stream *stream);
/* The same in a hurry: what was sent and has not left this machine never will. */
void stream_abort(struct stream *stream);
/* Says that nothing more will be sent; receiving goes on. */
void stream_shutdown_send(struct stream *stream);
/* True when the stream may be closed, as far as the stream itself goes: the caller's operations are
 * the caller's to wait for. After stream_shutdown() or stream_abort() it becomes true by itself. */
bool stream_is_idle(const struct stream *stream);
/* For layers, as the last thing in the completion of an operation of their own that is not followed
 * by the caller's: the stream, and the layer, may be gone afterwards. */
static inline void stream_became_idle(struct stream *stream)
{
	if (stream->idle != NULL && stream_is_idle(stream)) {
		stream->idle(stream);
	}
}
/* Closes an idle stream. A closed one: no-op. */
void stream_close(struct stream *stream);

/* What the connection has carried since it was opened; see ring_socket_traffic(). */
static inline bool stream_traffic(struct stream *stream, struct ring_traffic *traffic)
{
	return ring_socket_traffic(stream->ring, stream->file, traffic);
}

/* Bytes that were sent and that the peer has not taken yet; see ring_socket_unacked(). */
static inline bool stream_unacked(struct stream *stream, uint64_t *bytes_out)
{
	return ring_socket_unacked(stream->ring, stream->file, bytes_out);
}

/* The process at the other end of a Unix socket. False: not known, or not a Unix socket. */
struct stream_credentials {
	int pid;
	uint32_t uid;
	uint32_t gid;
};
bool stream_peer_credentials(int fd, struct stream_credentials *credentials);

/* result: bytes, 0 at end of stream. whole: fewer than len only at end of stream or error. One
 * receive in flight per stream. */
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

/* The same into a scatter list. */
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

/* The one place that decides whether sends lend their memory to the network instead of being copied
 * (IORING_OP_SEND_ZC). They are copied: loopback and veth copy such sends as well, and no case has
 * been measured in which they gain. */
static inline bool stream_sends_zero_copy(void)
{
	return false;
}

/*
 * Sends some of the message: a short count is normal (the socket is full, memory of a page-cache
 * send went away) and the rest is sent by another call. One send in flight per stream.
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

/* Try at once, without an operation; see ring_recvmsg_now(). */
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

/* Asks a receive in flight to end soon. */
static inline void stream_cancel(struct stream *stream, struct ring_op *op)
{
	if (stream->ops == NULL) {
		ring_cancel(stream->ring, op);
	} else if (op->in_flight) {
		stream->ops->cancel(stream, op);
	}
}
