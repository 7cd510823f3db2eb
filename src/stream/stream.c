// SPDX-License-Identifier: Apache-2.0
#include "stream/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/kernel.h"

/* The send buffer of Unix sockets. The kernel doubles it, to the size that TCP reaches
 * automatically. */
enum { UNIX_BUFFER_BYTES = 2 << 20 };

static const uint32_t stream_edges[] = {
	[STREAM_CLOSED] = BIT(STREAM_PLAIN),
	[STREAM_PLAIN] = BIT(STREAM_UPGRADING) | BIT(STREAM_LAYERED) | BIT(STREAM_CLOSED),
	[STREAM_UPGRADING] = BIT(STREAM_LAYERED) | BIT(STREAM_CLOSED),
	[STREAM_LAYERED] = BIT(STREAM_CLOSED),
};

static void stream_set_state(struct stream *stream, enum stream_state state)
{
	GMB_ASSERT((stream_edges[stream->state] & BIT(state)) != 0);
	stream->state = state;
}

/* Unlike a TCP buffer, a Unix socket's buffer does not grow with use, and a sender that found it
 * full wakes only when three quarters of it are free. With a small buffer, a client that reads
 * large blocks and its server would take turns instead of working in parallel. The system's limit
 * (wmem_max) applies. */
static void widen_unix_socket(int fd)
{
	const int bytes = UNIX_BUFFER_BYTES;

	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

/* Returns whether both ends of the connection have the same address, so that its data never leaves
 * this machine. */
static bool is_within_machine(int fd)
{
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} own = { 0 }, peer = { 0 };
	socklen_t own_bytes = sizeof(own);
	socklen_t peer_bytes = sizeof(peer);

	if (getsockname(fd, &own.any, &own_bytes) < 0 ||
		getpeername(fd, &peer.any, &peer_bytes) < 0 ||
		own.any.sa_family != peer.any.sa_family) {
		return false;
	}
	return own.any.sa_family == AF_INET
		       ? own.in.sin_addr.s_addr == peer.in.sin_addr.s_addr
		       : own.any.sa_family == AF_INET6 &&
				 IN6_ARE_ADDR_EQUAL(&own.in6.sin6_addr, &peer.in6.sin6_addr);
}

/* Congestion control with pacing, such as BBR, sends small pieces by timers. Within a machine
 * there is no congestion, and pacing doubles the processor time of large replies. Every kernel
 * has Reno, which does not pace. */
static void set_no_pacing(int fd)
{
	static const char name[] = "reno";

	(void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name) - 1);
}

static void set_up_tcp(struct stream *stream, int fd, const struct stream_keep_alive *keep_alive)
{
	const int on = 1;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keep_alive->idle_s, sizeof(int));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &keep_alive->interval_s, sizeof(int));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &keep_alive->probes, sizeof(int));
	if (is_within_machine(fd)) {
		set_no_pacing(fd);
		/* The peer copies slowly from the small pieces in which TCP passes cached pages
		 * on. */
		stream->memory_rights |= MEM_ADDRESS;
	}
}

void stream_open(struct stream *stream, struct ring *ring, int fd,
	const struct stream_keep_alive *keep_alive)
{
	int domain = 0;
	socklen_t bytes = sizeof(domain);

	*stream = (struct stream){ .ring = ring, .memory_rights = MEM_SOCKET };
	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX) {
		widen_unix_socket(fd);
		/* Before Linux 6.5, sendfile() waits for a lock that the peer holds while it copies
		 * to its memory. The peer can extend that as long as it likes. */
		if (!kernel_is_at_least(6, 5)) {
			stream->memory_rights |= MEM_ADDRESS;
		}
	} else {
		set_up_tcp(stream, fd, keep_alive);
	}
	stream->file = ring_file_add(ring, fd);
	stream_set_state(stream, STREAM_PLAIN);
}

bool stream_peer_credentials(int fd, struct stream_credentials *credentials)
{
	struct ucred found = { 0 };

	if (!ring_socket_credentials(fd, &found)) {
		return false;
	}
	*credentials = (struct stream_credentials){
		.pid = found.pid,
		.uid = found.uid,
		.gid = found.gid,
	};
	return true;
}

static void upgrade_done(struct ring_op *op, int result)
{
	struct stream *stream = container_of(op, struct stream, upgrade_op);

	GMB_ASSERT(result <= 0);
	if (result == 0) {
		stream_set_state(stream, STREAM_LAYERED);
	}
	stream->upgraded(stream, result);
}

void stream_upgrade(struct stream *stream, const struct stream_ops *ops, void *layer,
	void (*upgraded)(struct stream *stream, int result))
{
	stream_set_state(stream, STREAM_UPGRADING);
	stream->ops = ops;
	stream->memory_rights = ops->memory_rights;
	stream->layer = layer;
	stream->upgraded = upgraded;
	ring_op_begin(&stream->upgrade_op, upgrade_done);
	ops->start(stream, &stream->upgrade_op);
}

void stream_adopt(
	struct stream *stream, const struct stream_ops *ops, void *layer, uint32_t memory_rights)
{
	stream_set_state(stream, STREAM_LAYERED);
	stream->ops = ops;
	stream->memory_rights = memory_rights;
	stream->layer = layer;
}

static void shut_layer(struct stream *stream)
{
	if (stream->ops != NULL) {
		stream->ops->shutdown(stream);
	}
}

void stream_shutdown(struct stream *stream)
{
	ring_socket_shutdown(stream->ring, stream->file);
	shut_layer(stream);
}

void stream_abort(struct stream *stream)
{
	ring_socket_abort(stream->ring, stream->file);
	shut_layer(stream);
}

void stream_shutdown_send(struct stream *stream)
{
	if (stream->ops != NULL) {
		stream->ops->shutdown_send(stream);
	} else {
		ring_socket_shutdown_send(stream->ring, stream->file);
	}
}

bool stream_is_idle(const struct stream *stream)
{
	return !stream->upgrade_op.in_flight &&
	       (stream->ops == NULL || stream->ops->is_idle(stream));
}

void stream_close(struct stream *stream)
{
	int fd = stream->file.fd;

	if (stream->state == STREAM_CLOSED) {
		return;
	}
	GMB_ASSERT(stream_is_idle(stream));
	if (stream->ops != NULL) {
		stream->ops->close(stream);
		stream->ops = NULL;
		stream->layer = NULL;
	}
	ring_file_remove(stream->ring, &stream->file);
	ring_socket_close(stream->ring, fd);
	stream_set_state(stream, STREAM_CLOSED);
}
