// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "nbd/server/session.h"

static const uint8_t zeroes[64 << 10];

/* --- pieces of a reply --------------------------------------------------------------------- */

static void put_iov(struct send_batch *send, const void *data, size_t length)
{
	GMB_ASSERT(send->file_bytes == 0);
	send->iov[send->iov_count++] =
		(struct iovec){ .iov_base = (void *)(uintptr_t)data, .iov_len = length };
	send->bytes += length;
}

/* Adds payload. Bytes of a file end the batch. */
static void put_payload(struct send_batch *send, const struct path_fragment *fragment)
{
	if (likely((fragment->memory.rights & MEM_ADDRESS) != 0)) {
		put_iov(send, mem_socket_ptr(fragment->memory), fragment->length);
		return;
	}
	send->file = fragment->memory;
	send->file_bytes = fragment->length;
	send->bytes += fragment->length;
}

static uint32_t put_simple_header(const struct nbd_request *request, uint8_t *out, uint32_t error)
{
	struct nbd_wire_simple_reply wire = {
		.magic = be32_make(NBD_SIMPLE_REPLY_MAGIC),
		.error = be32_make(error),
		.cookie = request->cookie,
	};

	memcpy(out, &wire, sizeof(wire));
	return (uint32_t)sizeof(wire);
}

/* Writes the header of a structured or extended chunk with payload bytes after the header. Returns
 * its size. */
static uint32_t put_chunk_header(const struct nbd_session *session, uint64_t cookie,
	uint64_t offset, uint8_t *out, enum nbd_reply_type type, bool done, uint64_t payload)
{
	uint16_t flags = done ? NBD_REPLY_FLAG_DONE : 0;

	if (session->extended) {
		struct nbd_wire_extended_reply wire = {
			.magic = be32_make(NBD_EXTENDED_REPLY_MAGIC),
			.flags = be16_make(flags),
			.type = be16_make((uint16_t)type),
			.cookie = cookie,
			.offset = be64_make(offset),
			.length = be64_make(payload),
		};

		memcpy(out, &wire, sizeof(wire));
		return (uint32_t)sizeof(wire);
	}
	struct nbd_wire_structured_reply wire = {
		.magic = be32_make(NBD_STRUCTURED_REPLY_MAGIC),
		.flags = be16_make(flags),
		.type = be16_make((uint16_t)type),
		.cookie = cookie,
		.length = be32_make((uint32_t)payload),
	};

	memcpy(out, &wire, sizeof(wire));
	return (uint32_t)sizeof(wire);
}

/* --- functions that add one answer --------------------------------------------------------- */

static void emit_success(struct send_batch *send, struct send_slot *slot)
{
	struct nbd_request *request = slot->request;
	struct nbd_session *session = request->session;
	uint32_t length;

	/* A simple reply is allowed for every request except READ (P88), and is four bytes shorter.
	 * It is not allowed after a chunk of the same request, and with x-gmblock:alive such a
	 * chunk might have been sent as a sign of life. */
	if (session->extended || (session->structured && (request->command == NBD_CMD_READ ||
								 session->alive_ns != 0))) {
		length = put_chunk_header(request->session, request->cookie, request->offset,
			slot->header, NBD_REPLY_TYPE_NONE, true, 0);
	} else {
		length = put_simple_header(request, slot->header, NBD_SUCCESS);
	}
	put_iov(send, slot->header, length);
	slot->ends_request = true;
}

/* Writes the single chunk of a reply that reports an error. text: at most SEND_HEADER_BYTES_MAX
 * less both headers. */
static uint32_t put_error_chunk(const struct nbd_session *session, uint64_t cookie, uint64_t offset,
	uint8_t *out, uint32_t error, const char *text)
{
	uint32_t text_length = (uint32_t)strlen(text);
	struct nbd_wire_error wire = {
		.error = be32_make(error),
		.text_length = be16_make((uint16_t)text_length),
	};
	uint32_t length = put_chunk_header(session, cookie, offset, out, NBD_REPLY_TYPE_ERROR, true,
		sizeof(wire) + text_length);

	GMB_ASSERT(length + sizeof(wire) + text_length <= SEND_HEADER_BYTES_MAX);
	memcpy(out + length, &wire, sizeof(wire));
	length += (uint32_t)sizeof(wire);
	memcpy(out + length, text, text_length);
	return length + text_length;
}

static void emit_error(
	struct send_batch *send, struct send_slot *slot, uint32_t error, const char *text)
{
	struct nbd_request *request = slot->request;
	struct nbd_service *service = request->session->service;
	uint32_t length;

	service->engine->counters.errors++;
	log_limited(&service->refusals, ring_batch_ns(service->ring), LOG_LEVEL_DEBUG,
		"nbd: connection %llu: request failed with error %u: %s (command %u, offset %llu, "
		"length %llu)",
		(unsigned long long)request->session->base.peer.id, error, text, request->command,
		(unsigned long long)request->offset, (unsigned long long)request->length);
	slot->ends_request = true;
	if (!request->session->structured) {
		length = put_simple_header(request, slot->header, error);
	} else {
		length = put_error_chunk(request->session, request->cookie, request->offset,
			slot->header, error, text);
	}
	put_iov(send, slot->header, length);
}

/* Reports a store's error to the client (P118), with an explanation. */
static void emit_path_error(struct send_batch *send, struct send_slot *slot)
{
	const struct nbd_request *request = slot->request;
	uint32_t error = request_disk_error(request);
	const char *text;

	switch (error) {
	case NBD_ENOSPC:
		text = "no space left on the server's disk";
		break;
	case NBD_EPERM:
		text = "the server's disk refused the operation";
		break;
	case NBD_ENOTSUP:
		text = "zeroing this range would not be faster than writing it";
		break;
	default:
		text = request->path.error == -ESTALE ? ENGINE_SNAPSHOT_DELETED_TEXT
						      : "the server's disk failed";
		break;
	}
	emit_error(send, slot, error, text);
}

/* A block of data usually differs from zero in its first word, so only blocks of zeroes are read
 * completely. Memory that the CPU may not read counts as data. */
static bool is_all_zero(const struct path_fragment *fragment)
{
	const uint8_t *data;
	uint32_t length = fragment->length;
	uint64_t first;

	if (length < 2 * sizeof(first) || !mem_may(fragment->memory, MEM_CPU_READ)) {
		return false;
	}
	data = mem_cpu_read(fragment->memory);
	memcpy(&first, data, sizeof(first));
	return first == 0 && memcmp(data, data + sizeof(first), length - sizeof(first)) == 0;
}

static void emit_structured_fragment(struct send_batch *send, struct send_slot *slot)
{
	struct nbd_request *request = slot->request;
	const struct path_fragment *fragment = &slot->fragment;
	struct be64 offset = be64_make(fragment->offset);
	uint32_t length;

	if (is_all_zero(fragment)) {
		struct nbd_wire_offset_hole hole = {
			.offset = offset,
			.length = be32_make(fragment->length),
		};

		request->session->network.hole_bytes += fragment->length;
		length = put_chunk_header(request->session, request->cookie, request->offset,
			slot->header, NBD_REPLY_TYPE_OFFSET_HOLE, fragment->last, sizeof(hole));
		memcpy(slot->header + length, &hole, sizeof(hole));
		put_iov(send, slot->header, length + sizeof(hole));
		return;
	}
	length = put_chunk_header(request->session, request->cookie, request->offset, slot->header,
		NBD_REPLY_TYPE_OFFSET_DATA, fragment->last,
		sizeof(offset) + (uint64_t)fragment->length);
	memcpy(slot->header + length, &offset, sizeof(offset));
	put_iov(send, slot->header, length + sizeof(offset));
	put_payload(send, fragment);
}

/* Sends the next bytes of a reply that must not be interrupted: a simple reply, or one chunk for
 * DF. */
static void emit_one_piece_fragment(struct send_batch *send, struct send_slot *slot)
{
	struct nbd_request *request = slot->request;
	struct be64 offset = be64_make(request->offset);
	uint32_t length;

	if (request->content_bytes == 0) {
		if (request->session->structured) {
			request->done_owed = path_status(&request->path) != PATH_COMMITTED;
			length = put_chunk_header(request->session, request->cookie,
				request->offset, slot->header, NBD_REPLY_TYPE_OFFSET_DATA,
				!request->done_owed, sizeof(offset) + request->length);
			memcpy(slot->header + length, &offset, sizeof(offset));
			length += (uint32_t)sizeof(offset);
		} else {
			length = put_simple_header(request, slot->header, NBD_SUCCESS);
		}
		put_iov(send, slot->header, length);
	}
	put_payload(send, &slot->fragment);
	if (slot->fragment.last && request->done_owed) {
		/* The header was sent with the first fragment, so the slot's header is free for
		 * another chunk. */
		GMB_ASSERT(request->content_bytes > 0);
		length = put_chunk_header(request->session, request->cookie, request->offset,
			slot->header, NBD_REPLY_TYPE_NONE, true, 0);
		put_iov(send, slot->header, length);
	}
	request->session->exclusive = slot->fragment.last ? NULL : request;
}

/* The disk failed inside a DF chunk that has begun: pads the chunk, then reports the error
 * (P91). */
static void emit_padding(struct send_batch *send, struct send_slot *slot)
{
	struct nbd_request *request = slot->request;
	uint64_t left = request->length - request->content_bytes;
	uint64_t length = MIN(left, (uint64_t)sizeof(zeroes));

	put_iov(send, zeroes, length);
	request->content_bytes += length;
}

static void emit_block_status(struct send_batch *send, struct send_slot *slot)
{
	struct nbd_request *request = slot->request;
	const struct store_extent *extents = request->path.extents;
	uint32_t count = request->path.extent_count;
	bool extended = request->session->extended;
	uint8_t *wire = (uint8_t *)request->path.extents;
	struct be32 words[2] = { be32_make(CONTEXT_ID_BASE_ALLOCATION), be32_make(count) };
	uint32_t words_bytes = (uint32_t)(extended ? sizeof(words) : sizeof(words[0]));
	uint32_t wire_bytes = 0;
	uint32_t length;

	/* Converted in place: an entry on the wire is never longer than a struct store_extent, so
	 * writing never overtakes reading. */
	_Static_assert(
		sizeof(struct nbd_wire_extent_ext) <= sizeof(struct store_extent), "in place");
	for (uint32_t i = 0; i < count; i++) {
		struct store_extent extent = extents[i];

		if (extended) {
			struct nbd_wire_extent_ext out = { .length = be64_make(extent.length),
				.flags = be64_make(extent.flags) };

			memcpy(wire + wire_bytes, &out, sizeof(out));
			wire_bytes += (uint32_t)sizeof(out);
		} else {
			/* Without extended headers, requests and therefore extents have at most
			 * 2^32 - 1 bytes (P107). */
			struct nbd_wire_extent out = { .length = be32_make((uint32_t)extent.length),
				.flags = be32_make(extent.flags) };

			memcpy(wire + wire_bytes, &out, sizeof(out));
			wire_bytes += (uint32_t)sizeof(out);
		}
	}
	length = put_chunk_header(request->session, request->cookie, request->offset, slot->header,
		extended ? NBD_REPLY_TYPE_BLOCK_STATUS_EXT : NBD_REPLY_TYPE_BLOCK_STATUS, true,
		(uint64_t)words_bytes + wire_bytes);
	memcpy(slot->header + length, words, words_bytes);
	put_iov(send, slot->header, length + words_bytes);
	put_iov(send, wire, wire_bytes);
	slot->ends_request = true;
}

/* Returns whether requests were read and not answered. */
static bool owes_answers(const struct nbd_session *session)
{
	return !list_is_empty(&session->requests) || session_waits_to_move(&session->base);
}

/* Writes a block status chunk of one of our own contexts. Only the flags of its extents have a
 * meaning: they carry value, upper half first if flags have 32 bits. */
static uint32_t put_own_status(const struct nbd_session *session, uint64_t cookie, uint64_t offset,
	uint8_t *out, uint32_t context, uint32_t count, uint64_t value, bool done)
{
	bool extended = session->extended;
	struct be32 words[2] = { be32_make(context), be32_make(count) };
	uint32_t words_bytes = (uint32_t)(extended ? sizeof(words) : sizeof(words[0]));
	struct nbd_wire_extent_ext wide = { .length = be64_make(1), .flags = be64_make(value) };
	uint32_t extent_bytes =
		(uint32_t)(extended ? sizeof(wide) : sizeof(struct nbd_wire_extent));
	uint32_t length = put_chunk_header(session, cookie, offset, out,
		extended ? NBD_REPLY_TYPE_BLOCK_STATUS_EXT : NBD_REPLY_TYPE_BLOCK_STATUS, done,
		words_bytes + (uint64_t)count * extent_bytes);

	memcpy(out + length, words, words_bytes);
	length += words_bytes;
	for (uint32_t i = 0; i < count; i++) {
		struct nbd_wire_extent narrow = {
			.length = be32_make(1),
			.flags = be32_make((uint32_t)(value >> 32 * (count - 1 - i))),
		};

		memcpy(out + length, extended ? (void *)&wide : (void *)&narrow, extent_bytes);
		length += extent_bytes;
	}
	return length;
}

/* Sends a sign of life: a chunk with NBD_CONTEXT_ID_ALIVE and one meaningless extent. The chunk
 * belongs to the oldest request, or to the request that waits for its rate limit. */
static void emit_alive(struct send_batch *send, struct nbd_session *session)
{
	struct send_slot *slot = &send->slots[send->slot_count++];
	struct request_head waiting;

	send->is_alive = true;
	*slot = (struct send_slot){ 0 };
	if (list_is_empty(&session->requests)) {
		bool parsed = request_head_parse(
			session->rx_data + session->rx_start, session->extended, &waiting);

		GMB_ASSERT(parsed); /* the request was checked when it began to wait */
	} else {
		const struct nbd_request *oldest = list_entry(
			list_first(&session->requests), struct nbd_request, session_node);

		waiting.cookie = oldest->cookie;
		waiting.offset = oldest->offset;
	}
	put_iov(send, slot->header,
		put_own_status(session, waiting.cookie, waiting.offset, slot->header,
			NBD_CONTEXT_ID_ALIVE, 1, 0, false));
}

bool reply_size_is_due(const struct nbd_session *session)
{
	return session->size_asked && (session->size_due || session->base.stopping ||
					      session->size_known != session->base.export_bytes);
}

static void emit_size(struct send_batch *send, struct nbd_session *session)
{
	struct send_slot *slot = &send->slots[send->slot_count++];
	uint32_t length;

	*slot = (struct send_slot){ 0 };
	if (session->base.stopping) {
		length = put_error_chunk(session, session->size_cookie, session->size_known,
			slot->header, NBD_ESHUTDOWN, session_stop_text(&session->base));
	} else {
		length = put_own_status(session, session->size_cookie, session->size_known,
			slot->header, NBD_CONTEXT_ID_SIZE, session->extended ? 1 : NBD_SIZE_EXTENTS,
			session->base.export_bytes, true);
	}
	put_iov(send, slot->header, length);
	session->size_asked = false;
}

/* --- next reply ------------------------------------------------------------------------------- */

enum emitted {
	EMITTED_NOTHING, /* the request waits; its slot is not used */
	EMITTED_MORE,	 /* more may be available immediately */
	EMITTED_END,
};

static enum emitted emit_failed_read(struct send_batch *send, struct send_slot *slot)
{
	struct nbd_request *request = slot->request;

	if (path_status(&request->path) == PATH_PENDING) {
		return EMITTED_NOTHING; /* some parts are not finished */
	}
	if (request->one_piece && request->content_bytes > 0) {
		if (!request->session->structured) {
			/* The header has reported success, so closing is the only correct way to
			 * report the error (P78). */
			session_terminate(&request->session->base,
				"the disk failed after a simple reply was started");
			return EMITTED_NOTHING;
		}
		if (request->content_bytes < request->length) {
			emit_padding(send, slot);
			return EMITTED_MORE;
		}
	}
	emit_path_error(send, slot);
	return EMITTED_END;
}

static enum emitted emit_read(struct send_batch *send, struct send_slot *slot)
{
	struct nbd_request *request = slot->request;

	if (request->path.error != 0) {
		return emit_failed_read(send, slot);
	}
	/* A reply that can report an error only at its beginning waits for all of its data, unless
	 * the request waits for memory that only sending can free. */
	if (request->path.whole && request->content_bytes == 0 &&
		path_status(&request->path) == PATH_PENDING && !path_is_stalled(&request->path)) {
		return EMITTED_NOTHING;
	}
	if (!path_next_fragment(&request->path, SEND_BYTES_MAX, &slot->fragment)) {
		slot->fragment.stream = NULL;
		return EMITTED_NOTHING;
	}
	if (request->one_piece) {
		emit_one_piece_fragment(send, slot);
	} else {
		emit_structured_fragment(send, slot);
	}
	request->content_bytes += slot->fragment.length;
	request->session->service->engine->counters.bytes_read += slot->fragment.length;
	slot->ends_request = slot->fragment.last;
	return slot->ends_request ? EMITTED_END : EMITTED_MORE;
}

static enum emitted emit(struct send_batch *send, struct send_slot *slot)
{
	struct nbd_request *request = slot->request;

	if (!request->started) {
		if (request->error != NBD_SUCCESS) {
			emit_error(send, slot, request->error, request->error_text);
		} else {
			emit_success(send, slot);
		}
		return EMITTED_END;
	}
	if (request->command == NBD_CMD_READ) {
		return emit_read(send, slot);
	}
	if (path_status(&request->path) == PATH_PENDING) {
		return EMITTED_NOTHING;
	}
	if (request->path.error != 0) {
		emit_path_error(send, slot);
	} else if (request->command == NBD_CMD_BLOCK_STATUS) {
		emit_block_status(send, slot);
	} else {
		if (request->command == NBD_CMD_WRITE) {
			request->session->service->engine->counters.bytes_written +=
				request->length;
		}
		emit_success(send, slot);
	}
	return EMITTED_END;
}

static void reply_fill(struct nbd_session *session, struct send_batch *send)
{
	while (send->slot_count < SEND_SLOTS_MAX && send->bytes < SEND_BYTES_MAX &&
		send->file_bytes == 0 && session->base.state != SESSION_TERMINATING) {
		/* No other reply may be sent before the one of the exclusive request has ended. If
		 * there is none, the first sendable request is next. */
		struct list_node *node = session->exclusive != NULL ? &session->exclusive->send_node
								    : session->sendable.next;
		struct nbd_request *request = list_entry(node, struct nbd_request, send_node);
		struct send_slot *slot = &send->slots[send->slot_count];

		if (!list_is_linked(node)) { /* not sendable, or the queue is empty */
			return;
		}
		list_remove(node);
		slot->request = request;
		slot->fragment.stream = NULL;
		slot->ends_request = false;
		switch (emit(send, slot)) {
		case EMITTED_NOTHING:
			break;
		case EMITTED_MORE:
			send->slot_count++;
			list_push_back(&session->sendable, &request->send_node);
			break;
		case EMITTED_END:
			send->slot_count++;
			request->replying = true;
			break;
		}
	}
}

static void send_possible(struct ring_op *op, int result);

/* Sends what the socket accepts now of a batch that ends with bytes of a file, for which the ring
 * has no operation. */
static void send_file(struct nbd_session *session)
{
	struct ring *ring = session->service->ring;
	struct send_batch *send = session->sending;
	size_t before_bytes = send->bytes - send->file_bytes;
	ssize_t sent = 0;

	if (before_bytes > 0) {
		send->message.msg_flags = MSG_MORE;
		sent = stream_send_now(&session->stream, &send->message);
	}
	if (sent == (ssize_t)before_bytes) {
		ssize_t more = stream_sendfile_now(&session->stream, send->file, send->file_bytes);

		if (sent == 0 || more > 0) { /* an error persists, so the next call reports it */
			sent += more;
		}
	}
	if (sent == -EAGAIN) {
		ring_poll(ring, &session->send_op, session->stream.file.fd, POLLOUT, send_possible);
	} else {
		ring_defer(ring, &session->send_op, (int)sent, reply_done);
	}
}

static void send_possible(struct ring_op *op, int result)
{
	struct nbd_session *session = container_of(op, struct nbd_session, send_op);

	if (result < 0) {
		reply_done(op, result);
	} else {
		send_file(session);
	}
}

/* Submits a send of all bytes of the batch that were not sent yet. */
static void reply_send_rest(struct nbd_session *session)
{
	struct send_batch *send = session->sending;

	if (send->file_bytes > 0) {
		send_file(session);
	} else {
		stream_send(&session->stream, &session->send_op, &send->message, reply_done);
	}
}

/* Removes the bytes that were sent from the front of the batch. */
static void send_advance(struct send_batch *send, size_t sent)
{
	struct msghdr *message = &send->message;

	GMB_ASSERT(sent < send->bytes);
	send->bytes -= sent;
	send->filled = true;
	while (message->msg_iovlen > 0 && sent >= message->msg_iov->iov_len) {
		sent -= message->msg_iov->iov_len;
		message->msg_iov++;
		message->msg_iovlen--;
	}
	if (message->msg_iovlen == 0) {
		send->file = mem_add(send->file, sent);
		send->file_bytes -= sent;
		return;
	}
	message->msg_iov->iov_base = (uint8_t *)message->msg_iov->iov_base + sent;
	message->msg_iov->iov_len -= sent;
}

/*
 * Sends without the ring, whose completion would cost another loop iteration. Used for a peer that
 * has one request in flight and waits for it; with more requests, replies and receives share system
 * calls and the ring is cheaper. Data that does not fit into the socket is sent by the ring.
 */
static void send_now(struct nbd_session *session)
{
	struct nbd_service *service = session->service;
	struct send_batch *send = session->sending;
	ssize_t sent = stream_send_now(&session->stream, &send->message);

	if (sent >= 0 && (size_t)sent < send->bytes) {
		send_advance(send, (size_t)sent);
		reply_send_rest(session);
	} else if (sent == -EAGAIN || sent == -EINTR) {
		reply_send_rest(session);
	} else {
		ring_defer(service->ring, &session->send_op, (int)sent, reply_done);
	}
}

void reply_flush(struct session *base, bool alone)
{
	struct nbd_session *session = nbd_session_of(base);
	struct nbd_service *service = session->service;
	struct send_batch *send;
	struct list_node *node;

	/* send_op is also used to flush the stream before a stop. When it completes, this function
	 * is called again. */
	if (session->send_op.in_flight || session->base.state == SESSION_TERMINATING ||
		(list_is_empty(&session->sendable) && !session->alive_due &&
			!reply_size_is_due(session))) {
		return;
	}
	node = list_pop_front(&service->sends_free);
	send = node != NULL ? list_entry(node, struct send_batch, node) : malloc(sizeof(*send));
	if (send == NULL) {
		session_terminate(&session->base, "out of memory for a reply");
		return;
	}
	send->slot_count = 0;
	send->iov_count = 0;
	send->is_alive = false;
	send->file_bytes = 0;
	send->bytes = 0;
	send->filled = false;
	session->sending = send;
	reply_fill(session, send);
	/* A sign of life must not interrupt a simple reply or a DF chunk. */
	if (send->slot_count == 0 && session->alive_due && session->exclusive == NULL &&
		owes_answers(session) && session->base.state != SESSION_TERMINATING) {
		emit_alive(send, session);
	}
	session->alive_due = false;
	if (send->slot_count < SEND_SLOTS_MAX && send->file_bytes == 0 &&
		session->exclusive == NULL && reply_size_is_due(session) &&
		session->base.state != SESSION_TERMINATING) {
		emit_size(send, session);
		send->is_alive = false;
	}
	if (send->slot_count == 0) {
		session->sending = NULL;
		list_push_front(&service->sends_free, &send->node);
		return;
	}
	if (session->base.state == SESSION_TERMINATING) {
		/* No byte of this batch was sent, so it ends like a failed send. */
		ring_defer(service->ring, &session->send_op, -ECANCELED, reply_done);
		return;
	}
	send->message = (struct msghdr){ .msg_iov = send->iov, .msg_iovlen = send->iov_count };
	if (!send->is_alive) {
		/* the time limit of the send starts */
		session->base.progress_ns = ring_batch_ns(service->ring);
	}
	session->base.engine->turn_bytes += send->bytes;
	if (alone && session->base.inflight_count == 1 && send->bytes <= SEND_NOW_BYTES_MAX &&
		send->file_bytes == 0) {
		send_now(session);
	} else {
		reply_send_rest(session);
	}
}

/* Returns whether the session is ready to be handed over to another process. If so, nothing may be
 * sent, because that process may own the connection at any time. */
static bool rests(struct nbd_session *session)
{
	return unlikely(session->base.paused) && nbd_session_rest(&session->base) == SESSION_RESTS;
}

static void reply_alive_done(struct ring_op *op, int result)
{
	struct nbd_session *session = container_of(op, struct nbd_session, alive_op);

	if (session->base.state == SESSION_TERMINATING || !owes_answers(session)) {
		return; /* the next request sets the timer again */
	}
	if (!session->has_sent && session->sending == NULL && !rests(session)) {
		session->alive_due = true;
		session_mark_dirty(&session->base);
	}
	reply_watch(session);
}

void reply_watch(struct nbd_session *session)
{
	if (session->alive_ns != 0 && !session->alive_op.in_flight) {
		session->has_sent = false;
		ring_timer(session->service->ring, &session->alive_op, session->alive_ns,
			reply_alive_done);
	}
}

/* Called when the batch has been sent, or cannot be sent. */
static void send_end(struct nbd_session *session)
{
	struct send_batch *send = session->sending;

	for (uint32_t i = 0; i < send->slot_count; i++) {
		struct send_slot *slot = &send->slots[i];

		if (slot->fragment.stream != NULL) {
			path_fragment_sent(&slot->fragment);
		}
		if (slot->ends_request && session->base.state != SESSION_TERMINATING) {
			if (slot->fragment.stream != NULL && slot->request->path.measured) {
				overlap_replied(&slot->request->path, &session->network,
					session->service->ring, session->stream.file);
			}
			request_end(slot->request);
		}
	}
	session->sending = NULL;
	list_push_front(&session->service->sends_free, &send->node);
}

static void memory_failed(const struct send_batch *send)
{
	for (uint32_t i = 0; i < send->slot_count; i++) {
		if (send->slots[i].fragment.stream != NULL) {
			path_memory_failed(send->slots[i].fragment.stream);
		}
	}
}

void reply_done(struct ring_op *op, int result)
{
	struct nbd_session *session = container_of(op, struct nbd_session, send_op);
	struct send_batch *send = session->sending;
	bool whole = result >= 0 && (size_t)result == send->bytes;

	if (!send->is_alive) {
		session->base.progress_ns = ring_batch_ns(session->service->ring);
	}
	session->has_sent = true;
	session->unacked_bytes = UINT64_MAX;
	if (!whole && session->base.state != SESSION_TERMINATING) {
		if (result > 0 || result == -EINTR) { /* partial send: send the rest */
			send_advance(send, result > 0 ? (size_t)result : 0);
			reply_send_rest(session);
			return;
		}
		/* With an error other than EFAULT the peer is gone. */
		if (result == -EFAULT) {
			memory_failed(send);
		}
		session_terminate(&session->base,
			result == -EFAULT
				? "the disk failed, shrank or lost its device memory after "
				  "the reply had begun"
				: NULL);
	}
	path_client_sent(&session->base.client, send->bytes, send->filled);
	send_end(session);
	if (session->base.state == SESSION_TERMINATING) {
		return;
	}
	if (!list_is_empty(&session->sendable) || reply_size_is_due(session)) {
		session_mark_dirty(&session->base);
	}
	if (unlikely(session->base.stopping || session->base.state == SESSION_DRAINING)) {
		session_drain_check(session);
	}
}
