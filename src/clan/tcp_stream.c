// SPDX-License-Identifier: Apache-2.0
/*
 * The stream of a socket: docs/protocol/clan.md §12.9.
 *
 * Invariant: a head determines the destination of its payload, and is checked before a byte of the
 * payload is received. Payload that does not arrive together with its head is received directly
 * into its destination.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "clan/tcp.h"

enum {
	SEND_PARTS = 128,
	RECEIVE_PARTS = 16,
	/* Limit on the bytes per direction and turn, so that other connections get their turn. */
	TURN_BYTES = 4 << 20,
	/* Limit on receive calls per turn. A peer that sends small heads and frames reaches it
	 * before TURN_BYTES. */
	TURN_CALLS = 64,
	/* Limit on checked puts per turn, apart from those that one call receives. The program's
	 * check can take much longer than the transfer of a small put. */
	TURN_CHECKS = 256,
};

/* Returns true if the connection has ended, so its data must not be processed. */
static bool tcp_stream_is_over(const struct tcp_conn *conn)
{
	return conn->net.phase != NET_TALKING || list_is_linked(&conn->net.dying_node);
}

/* --- sending ---------------------------------------------------------------------------------- */

static struct tcp_out *out_next(struct tcp_conn *conn)
{
	GMB_ASSERT(conn->out_write - conn->out_read < TCP_OUT_COUNT);
	return &conn->out[conn->out_write++ % TCP_OUT_COUNT];
}

int tcp_post_frame(struct net_conn *base, struct net_buffer *buffer)
{
	*out_next(tcp_conn(base)) = (struct tcp_out){
		.kind = TCP_FRAME,
		.head.head = { .kind = TCP_FRAME, .bytes = buffer->bytes },
		.head_bytes = sizeof(struct tcp_head),
		.head_left = sizeof(struct tcp_head),
		.left = buffer->bytes,
		.from = buffer->data,
		.op = &buffer->op,
	};
	return 0;
}

/* Queues one message for the complete put or get; the payload of a put is the payload of the
 * message. */
int tcp_post_rma(struct net_conn *base, struct net_rma *rma)
{
	enum tcp_kind kind = rma->put ? TCP_WRITE : TCP_READ;

	*out_next(tcp_conn(base)) = (struct tcp_out){
		.kind = kind,
		.head = { .head = { .kind = (uint8_t)kind,
				  .slot = rma->slot,
				  .bytes = (uint32_t)rma->left },
			.generation = rma->generation,
			.offset = rma->offset },
		.head_bytes = sizeof(struct tcp_access_head),
		.head_left = sizeof(struct tcp_access_head),
		.left = rma->put ? rma->left : 0,
		.op = &rma->op,
	};
	rma->left = 0;
	rma->pieces++;
	base->pieces++;
	return 0;
}

static struct net_rma *rma_of(const struct tcp_out *out)
{
	return container_of(out->op, struct net_rma, op);
}

/* Appends the unsent part of an entry to a vector. Returns the number of bytes. */
static size_t out_parts(struct tcp_out *out, struct iovec *iov, size_t *count, size_t bytes_max)
{
	size_t bytes = 0;

	if (out->head_left > 0) {
		uint8_t *head = (uint8_t *)&out->head;

		iov[(*count)++] =
			(struct iovec){ head + out->head_bytes - out->head_left, out->head_left };
		bytes += out->head_left;
	}
	if (out->kind == TCP_WRITE) {
		const struct net_rma *rma = rma_of(out);
		size_t skip = rma->skip;

		for (uint32_t i = rma->index;
			i < rma->iov_count && *count < SEND_PARTS && bytes < bytes_max; i++) {
			size_t part = MIN(rma->iov[i].iov_len - skip, bytes_max - bytes);

			iov[(*count)++] =
				(struct iovec){ (uint8_t *)rma->iov[i].iov_base + skip, part };
			bytes += part;
			skip = 0;
		}
	} else if (out->left > 0 && *count < SEND_PARTS) {
		size_t part = MIN(out->left, bytes_max);

		iov[(*count)++] = (struct iovec){ (void *)(uintptr_t)out->from, part };
		bytes += part;
	}
	return bytes;
}

/* Called when an entry is sent completely. A READ then waits in gets[] for its ANSWER. */
static void out_sent(struct tcp_conn *conn, struct tcp_out *out)
{
	switch (out->kind) {
	case TCP_FRAME:
		net_frame_sent(&conn->net, container_of(out->op, struct net_buffer, op));
		break;
	case TCP_WRITE:
		net_rma_done(rma_of(out), 0);
		break;
	case TCP_READ:
		conn->gets[conn->gets_write++ % TCP_READS] = rma_of(out);
		break;
	case TCP_ANSWER:
		conn->answers--;
		out->grant->reads--;
		break;
	}
}

/* Accounts for bytes that the socket has accepted, and completes entries. */
static void tcp_stream_sent(struct tcp_conn *conn, size_t bytes)
{
	while (bytes > 0) {
		struct tcp_out *out = &conn->out[conn->out_read % TCP_OUT_COUNT];
		size_t head = MIN(bytes, (size_t)out->head_left);
		size_t part = MIN(bytes - head, out->left);

		out->head_left -= (uint32_t)head;
		out->left -= part;
		bytes -= head + part;
		if (out->kind == TCP_WRITE) {
			net_rma_advance(rma_of(out), part);
		} else if (part > 0) {
			out->from += part;
		}
		if (out->head_left == 0 && out->left == 0) {
			/* Copied, because out_sent() can add an entry to the queue, which can reuse
			 * this one. */
			struct tcp_out done = *out;

			conn->out_read++;
			out_sent(conn, &done);
		}
	}
}

/* Sends once. Returns the number of bytes that the socket accepted, possibly 0. */
static size_t send_some(struct tcp_conn *conn)
{
	struct iovec iov[SEND_PARTS];
	struct msghdr message = { .msg_iov = iov };
	size_t bytes = 0;
	ssize_t result;

	for (uint32_t i = conn->out_read;
		i != conn->out_write && bytes < TURN_BYTES && message.msg_iovlen + 2 <= SEND_PARTS;
		i++) {
		struct tcp_out *out = &conn->out[i % TCP_OUT_COUNT];
		size_t part =
			out_parts(out, iov, &message.msg_iovlen, TURN_BYTES + sizeof(out->head));

		bytes += part;
		if (part < out->head_left + out->left) {
			break; /* the rest of this entry must be sent before the next entry */
		}
	}
	result = sendmsg(conn->file.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (result < 0) {
		if (errno == EINTR) {
			return 0;
		}
		conn->writable = false;
		if (errno != EAGAIN) {
			/* Data that the peer sent before it ended can still be received. The error
			 * is reported when it has been read. */
			conn->error = -errno;
			conn->readable = true;
			conn->hung_up = true;
			tcp_ready(conn);
		}
		return 0;
	}
	conn->writable = (size_t)result == bytes;
	tcp_stream_sent(conn, (size_t)result);
	return (size_t)result;
}

void tcp_flush(struct net_conn *base)
{
	struct tcp_conn *conn = tcp_conn(base);
	size_t turn = 0;

	while (conn->writable && conn->out_read != conn->out_write && !tcp_stream_is_over(conn)) {
		if (turn >= TURN_BYTES) {
			tcp_ready(conn);
			return;
		}
		turn += send_some(conn);
	}
}

/* --- receiving -------------------------------------------------------------------------------- */

static void payload_done(struct tcp_conn *conn)
{
	if (conn->target != NULL) {
		net_put_arrived(&conn->net, &conn->write);
	} else {
		net_rma_done(conn->gets[conn->gets_read++ % TCP_READS], 0);
	}
}

static void payload_received(struct tcp_conn *conn, size_t bytes)
{
	conn->payload_left -= bytes;
	if (conn->target != NULL) {
		conn->target += bytes;
	} else {
		net_rma_advance(conn->gets[conn->gets_read % TCP_READS], bytes);
	}
	if (conn->payload_left == 0) {
		payload_done(conn);
	}
}

/* Returns whether the program expects the rest of the current put; if not, ends the connection.
 * Checked before every transfer, because the program can have stopped to expect it since the
 * last one. */
static bool payload_is_expected(struct tcp_conn *conn)
{
	struct clan_conn *base = &conn->net.conn;

	if (conn->target == NULL || base->put_check == NULL) {
		return true;
	}
	conn->checks++;
	if (base->put_check(base->context, conn->target, conn->payload_left)) {
		return true;
	}
	(void)!net_broken(&conn->net, 18, "a put that was not requested");
	return false;
}

/* Fills the vector with the destination of the current payload, as far as there is room. Returns
 * the number of bytes. */
static size_t payload_parts(const struct tcp_conn *conn, struct iovec *iov, size_t *count)
{
	size_t left = MIN(conn->payload_left, (uint64_t)TURN_BYTES);
	const struct net_rma *rma;
	size_t bytes = 0;
	size_t skip;

	if (conn->target != NULL) {
		iov[(*count)++] = (struct iovec){ conn->target, left };
		return left;
	}
	rma = conn->gets[conn->gets_read % TCP_READS];
	skip = rma->skip;
	for (uint32_t i = rma->index; bytes < left && *count < RECEIVE_PARTS - 1; i++) {
		size_t part = MIN(rma->iov[i].iov_len - skip, left - bytes);

		iov[(*count)++] = (struct iovec){ (uint8_t *)rma->iov[i].iov_base + skip, part };
		bytes += part;
		skip = 0;
	}
	return bytes;
}

/* Copies payload that was received into in[] together with its head. */
static void tcp_stream_take_payload(struct tcp_conn *conn)
{
	size_t bytes = MIN(conn->payload_left, (uint64_t)(conn->in_end - conn->in_at));
	const uint8_t *from = conn->in + conn->in_at;

	if (!payload_is_expected(conn)) {
		return;
	}
	if (conn->target != NULL) {
		memcpy(conn->target, from, bytes);
	} else {
		const struct net_rma *rma = conn->gets[conn->gets_read % TCP_READS];
		uint32_t index = rma->index;
		size_t skip = rma->skip;

		clan_scatter(rma->iov, rma->iov_count, &index, &skip, from, bytes);
	}
	conn->in_at += (uint32_t)bytes;
	payload_received(conn, bytes);
}

/* Processes WRITE or READ. Returns 0 or -EPROTO. */
static int access_arrived(struct tcp_conn *conn, const struct tcp_access_head *head)
{
	struct net_conn *net = &conn->net;
	bool write = head->head.kind == TCP_WRITE;
	struct net_access access = {
		.slot = head->head.slot,
		.generation = head->generation,
		.right = write ? CLAN_WRITE : CLAN_READ,
		.offset = head->offset,
		.bytes = head->head.bytes,
	};

	if (head->reserved != 0) {
		return net_broken(net, 14, "reserved bytes of a header are not 0");
	}
	if (!net_access_find(net, &access)) {
		return net_broken(net, 15, "the use of a cookie that was not granted");
	}
	if (write) {
		conn->target = access.memory;
		conn->payload_left = access.bytes;
		conn->write = (struct net_put){ .region = access.region,
			.offset = access.region_offset,
			.bytes = access.bytes };
		return 0;
	}
	if (conn->answers == TCP_READS) {
		return net_broken(net, 16, "more reads in progress than allowed");
	}
	conn->answers++;
	access.grant->reads++;
	*out_next(conn) = (struct tcp_out){
		.kind = TCP_ANSWER,
		.head.head = { .kind = TCP_ANSWER, .bytes = (uint32_t)access.bytes },
		.head_bytes = sizeof(struct tcp_head),
		.head_left = sizeof(struct tcp_head),
		.left = access.bytes,
		.from = access.memory,
		.grant = access.grant,
	};
	return 0;
}

static int tcp_stream_answer_arrived(struct tcp_conn *conn, const struct tcp_head *head)
{
	if (conn->gets_read == conn->gets_write ||
		conn->gets[conn->gets_read % TCP_READS]->record.bytes != head->bytes) {
		return net_broken(&conn->net, 17, "a reply without a request");
	}
	conn->target = NULL;
	conn->payload_left = head->bytes;
	return 0;
}

static int bad_head(struct tcp_conn *conn)
{
	if (conn->net.conn.state == CLAN_CONNECTING) {
		net_conn_end(&conn->net, -EPROTO,
			"cannot connect: the listener uses another protocol; check the port");
		return -EPROTO;
	}
	return net_broken(&conn->net, 14, "an invalid header");
}

/* Processes the next head in in[], or the next complete frame. Returns false if the head or the
 * frame is incomplete, or the connection has ended. */
static bool tcp_stream_take_head(struct tcp_conn *conn)
{
	size_t there = conn->in_end - conn->in_at;
	const uint8_t *from = conn->in + conn->in_at;
	struct tcp_access_head head;
	bool has_access;

	if (there < sizeof(head.head)) {
		return false;
	}
	memcpy(&head.head, from, sizeof(head.head));
	has_access = head.head.kind == TCP_WRITE || head.head.kind == TCP_READ;
	if (head.head.kind < TCP_FRAME || head.head.kind > TCP_ANSWER || head.head.reserved != 0 ||
		(!has_access && head.head.slot != 0) || head.head.bytes == 0 ||
		(head.head.kind == TCP_FRAME && head.head.bytes > NET_FRAME_BYTES)) {
		return bad_head(conn) == 0;
	}
	if (has_access) {
		if (there < sizeof(head)) {
			return false;
		}
		memcpy(&head, from, sizeof(head));
		conn->in_at += sizeof(head);
		return access_arrived(conn, &head) == 0;
	}
	if (head.head.kind == TCP_ANSWER) {
		conn->in_at += sizeof(head.head);
		return tcp_stream_answer_arrived(conn, &head.head) == 0;
	}
	if (there < sizeof(head.head) + head.head.bytes) {
		return false;
	}
	conn->in_at += (uint32_t)sizeof(head.head) + head.head.bytes;
	return net_frame_received(&conn->net, from + sizeof(head.head), head.head.bytes) == 0;
}

static void tcp_stream_take_messages(struct tcp_conn *conn)
{
	bool more = true;

	while (more && !tcp_stream_is_over(conn)) {
		if (conn->payload_left > 0) {
			tcp_stream_take_payload(conn);
			more = conn->payload_left == 0;
		} else {
			more = tcp_stream_take_head(conn);
		}
	}
	conn->in_end -= conn->in_at;
	memmove(conn->in, conn->in + conn->in_at, conn->in_end);
	conn->in_at = 0;
}

/* The socket has no data now, or has reached its end. */
static void nothing_received(struct tcp_conn *conn, ssize_t result)
{
	int error = result < 0 ? -errno : 0;

	if (error == -EINTR) {
		return;
	}
	conn->readable = false;
	if (error != -EAGAIN) {
		net_conn_cut(&conn->net, error);
	} else if (conn->error != 0) {
		net_conn_cut(&conn->net, conn->error);
	}
}

/* Receives once: the rest of the current payload to its destination, and further bytes into
 * in[]. */
static size_t receive_some(struct tcp_conn *conn)
{
	struct iovec iov[RECEIVE_PARTS];
	struct msghdr message = { .msg_iov = iov };
	size_t payload = 0;
	size_t room = TCP_IN_BYTES - conn->in_end;
	ssize_t result;

	if (conn->payload_left > 0 && !payload_is_expected(conn)) {
		return 0;
	}
	if (conn->payload_left > 0) {
		payload = payload_parts(conn, iov, &message.msg_iovlen);
	}
	if (payload < conn->payload_left) {
		room = 0;
	} else {
		iov[message.msg_iovlen++] = (struct iovec){ conn->in + conn->in_end, room };
	}
	result = recvmsg(conn->file.fd, &message, MSG_DONTWAIT);
	if (result <= 0) {
		nothing_received(conn, result);
		return 0;
	}
	/* After a short read, epoll announces further data with a new edge. If epoll has announced
	 * the end of the stream, no new edge comes, so reading continues up to the end. */
	conn->readable = (size_t)result == payload + room || conn->hung_up;
	if (payload > 0) {
		payload_received(conn, MIN((size_t)result, payload));
	}
	if ((size_t)result > payload) {
		conn->in_end += (uint32_t)((size_t)result - payload);
		tcp_stream_take_messages(conn);
	}
	return (size_t)result;
}

void tcp_receive(struct tcp_conn *conn)
{
	size_t turn = 0;

	conn->checks = 0;
	for (int calls = 0; conn->readable && !tcp_stream_is_over(conn); calls++) {
		if (turn >= TURN_BYTES || calls == TURN_CALLS || conn->checks >= TURN_CHECKS) {
			tcp_ready(conn);
			return;
		}
		turn += receive_some(conn);
	}
}
