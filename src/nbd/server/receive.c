// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nbd/server/session.h"

/*
 * Converts the byte stream to requests. Bytes are received into one of three buffers:
 *
 * - rx_small, 8 KiB in the session: idle and light connections, requests without payload
 * - rx_large, 256 KiB from the arena: a batch of small writes, each stored from the buffer
 * - a stream of the path: payload of a large write, received directly into its final buffer
 * - rx_told: bytes that the previous process received, if rx_small is too small for them
 *
 * A receive that fills rx_small is followed by one into rx_large. A session returns to rx_small
 * when everything received is parsed and the last receive did not fill its buffer, so an idle
 * connection holds no arena memory. It also returns after a payload that is longer than rx_large.
 */

/* --- receive memory ------------------------------------------------------------------------ */

/* Moves the unparsed bytes to the start of another buffer, or of the same one. The old buffer is
 * released. */
static void rx_move(struct nbd_session *session, struct rx_buf *to)
{
	uint8_t *data = to != NULL ? mem_cpu_write(to->buf.memory) : session->rx_small;
	uint32_t left = rx_available(session);

	memmove(data, session->rx_data + session->rx_start, left);
	if (session->rx_large != NULL && session->rx_large != to) {
		service_rx_put(session, session->rx_large);
	}
	if (unlikely(session->rx_told != NULL)) {
		free(session->rx_told);
		session->rx_told = NULL;
	}
	session->rx_large = to;
	session->rx_data = data;
	session->rx_bytes = to != NULL ? RX_LARGE_BYTES : RX_SMALL_BYTES;
	session->rx_start = 0;
	session->rx_end = left;
}

/* Makes room for a message of want bytes from rx_start on. Returns false if there is no memory. */
static bool rx_make_room(struct nbd_session *session, uint32_t want)
{
	bool fits = session->rx_bytes - session->rx_start >= want;
	/* A receive into the last few bytes of a large buffer would not be worth its system
	 * call. */
	bool roomy =
		session->rx_large == NULL || session->rx_bytes - session->rx_end >= RX_SMALL_BYTES;
	struct rx_buf *fresh;

	if (fits && roomy) {
		return true;
	}
	if (session->rx_large == NULL ? want <= RX_SMALL_BYTES : session->rx_large->refs == 1) {
		rx_move(session, session->rx_large);
		return true;
	}
	fresh = service_rx_get(session);
	if (fresh == NULL && (fits || want > RX_SMALL_BYTES)) {
		return fits;
	}
	rx_move(session, fresh);
	return true;
}

/* Called when the last receive filled its buffer, so that more data is waiting: makes the next
 * receive larger. */
static void rx_make_large(struct nbd_session *session)
{
	struct rx_buf *fresh;

	if (session->rx_large == NULL) {
		fresh = service_rx_get(session);
		if (fresh != NULL || rx_available(session) == 0) {
			/* if fresh is NULL, moves the bytes to the start of rx_small */
			rx_move(session, fresh);
		}
	} else if (rx_available(session) == 0 && session->rx_large->refs == 1) {
		session->rx_start = 0;
		session->rx_end = 0;
	} else if (session->rx_end == session->rx_bytes && rx_available(session) == 0) {
		fresh = service_rx_get(session);
		rx_move(session, fresh); /* if fresh is NULL, moves the bytes to rx_small */
	}
}

/* Returns whether no byte of the write's payload has arrived. Such a write holds no memory. */
static bool waits_for_first_byte(const struct nbd_session *session)
{
	return session->rx_request != NULL && session->rx_stream == NULL &&
	       session->rx_payload_left == session->rx_request->path.length &&
	       rx_available(session) == 0;
}

/* From now on the session waits for the peer, so its time limit starts. A receive that was
 * interrupted to count partial data does not restart it. */
static void begin_turn(struct nbd_session *session)
{
	if (!session->rx_probed) {
		session->base.progress_ns = ring_batch_ns(session->service->ring);
	}
}

static void nbd_receive_arm(struct nbd_session *session)
{
	struct path_stream *stream = session->rx_stream;

	if (session->recv_op.in_flight || session->base.state != SESSION_READY ||
		session_waits(&session->base)) {
		return;
	}
	if (session->rx_request != NULL && !waits_for_first_byte(session)) {
		if (stream !=
			NULL) { /* otherwise request_progress() continues when there is memory */
			session->rx_into_stream = true;
			begin_turn(session);
			stream_receive(&session->stream, &session->recv_op,
				mem_socket_ptr(mem_add(stream->memory, session->rx_stream_got)),
				stream->length - session->rx_stream_got, true, receive_done);
		}
		return;
	}
	if (session->rx_request != NULL) {
		rx_move(session, NULL);
	} else if (session->rx_was_full) {
		rx_make_large(session);
	} else if (rx_available(session) == 0) {
		if (session->rx_large != NULL || session->rx_told != NULL) {
			rx_move(session, NULL);
		}
		session->rx_start = 0;
		session->rx_end = 0;
	}
	if (rx_available(session) > 0) {
		bool room = rx_make_room(session, session->rx_want);

		/* a header always fits, and for a payload nbd_receive_gather() has made room */
		GMB_ASSERT(room);
	}
	session->rx_into_stream = false;
	begin_turn(session);
	stream_receive(&session->stream, &session->recv_op, session->rx_data + session->rx_end,
		session->rx_bytes - session->rx_end, false, receive_done);
}

void receive_release(struct nbd_session *session)
{
	if (session->rx_stream != NULL) {
		path_write_drop(session->rx_stream);
		session->rx_stream = NULL;
	}
	session->rx_request = NULL;
	session->rx_discard_request = NULL;
	free(session->told);
	session->told = NULL;
	if (session->rx_large != NULL || session->rx_told != NULL) {
		session->rx_end = session->rx_start;
		rx_move(session, NULL);
	}
}

/* --- payload of a write -------------------------------------------------------------------- */

static void discarded(struct nbd_session *session)
{
	struct nbd_request *request = session->rx_discard_request;

	session->rx_discard_request = NULL;
	if (request != NULL && (!request->started || path_status(&request->path) != PATH_PENDING)) {
		request_sendable(request);
	}
}

/* Unwanted payload is still received (P79), and the request is answered after it, because clients
 * such as libnbd do not expect a reply to a request that they are still sending. */
static void discard_payload(
	struct nbd_session *session, struct nbd_request *request, uint64_t payload)
{
	GMB_ASSERT(session->rx_discard_left == 0 && session->rx_discard_request == NULL);
	session->rx_discard_left = payload;
	session->rx_discard_request = request;
	if (payload == 0) {
		discarded(session);
	}
}

/* Called when the request has failed: discards the rest of its payload. */
static void give_up_payload(struct nbd_session *session)
{
	struct nbd_request *request = session->rx_request;

	if (session->rx_stream != NULL) {
		path_write_drop(session->rx_stream);
		session->rx_stream = NULL;
	}
	discard_payload(session, request, session->rx_payload_left);
	session->rx_payload_left = 0;
	session->rx_request = NULL;
}

/* Receives and stores the payload. Returns false if more bytes or more memory are needed. */
static bool nbd_receive_take_payload(struct nbd_session *session)
{
	struct nbd_request *request = session->rx_request;

	for (;;) {
		struct path_stream *stream = session->rx_stream;
		uint32_t length;

		if (request->path.error != 0) {
			give_up_payload(session);
			return true;
		}
		if (stream == NULL) {
			if (waits_for_first_byte(session)) {
				return false;
			}
			request->path.memory_rights = session->stream.memory_rights;
			request->path.copied_bytes = rx_available(session);
			stream = path_write_open(&request->path);
			if (stream == NULL) {
				return false;
			}
			session->rx_stream = stream;
			session->rx_stream_got = 0;
		}
		length = MIN(rx_available(session), stream->length - session->rx_stream_got);
		if (length > 0) {
			memcpy(mem_cpu_write(stream->memory) + session->rx_stream_got,
				session->rx_data + session->rx_start, length);
		}
		session->rx_start += length;
		session->rx_stream_got += length;
		session->rx_payload_left -= length;
		if (session->rx_stream_got < stream->length) {
			return false;
		}
		session->rx_stream = NULL;
		path_write_submit(stream);
		if (session->rx_payload_left == 0) {
			session->rx_request = NULL;
			return true;
		}
	}
}

/* Returns the memory of the next unparsed bytes if the payload of a write can be stored directly
 * from there, otherwise MEM_NONE. */
static struct mem_ref storable(const struct nbd_session *session)
{
	uint32_t memory_align = store_info(session->base.export->store)->memory_align;
	struct mem_ref memory = MEM_NONE;

	if (session->rx_large != NULL) {
		memory = mem_add(session->rx_large->buf.memory, session->rx_start);
	}
	return mem_is_aligned(memory, memory_align) ? memory : MEM_NONE;
}

static void start_write(struct nbd_session *session, struct nbd_request *request)
{
	request->received = (struct mem_segment){
		.memory = storable(session),
		.bytes = request->path.length,
	};
	if (request->path.length <= rx_available(session) && request->received.memory.rights != 0) {
		request->path.placement = &request->received;
		request->path.placement_count = 1;
	}
	path_start(session->service->path, &request->path);
	if (request->path.placement != NULL) {
		request->rx = session->rx_large;
		request->rx->refs++;
		session->rx_start += (uint32_t)request->path.length;
		return;
	}
	session->rx_request = request;
	session->rx_payload_left = request->path.length;
}

/* --- requests ------------------------------------------------------------------------------ */

/* Returns true if a short payload should be received completely into the receive buffer first. */
static bool nbd_receive_gather(struct nbd_session *session, uint32_t head_bytes, uint64_t payload)
{
	uint32_t memory_align = store_info(session->base.export->store)->memory_align;
	uint64_t payload_max =
		memory_align == 1 ? RX_GATHER_BYTES_MAX : RX_GATHER_ALIGNED_BYTES_MAX;

	if (payload > payload_max || rx_available(session) - head_bytes >= payload ||
		!rx_make_room(session, head_bytes + (uint32_t)payload)) {
		return false;
	}
	session->rx_want = head_bytes + (uint32_t)payload;
	return true;
}

/* Skips the part of the payload that was stored by the process that handed over the session. */
static void go_on_after(struct nbd_session *session, struct nbd_request *request)
{
	const struct told_payload *told = session->told;

	request->path.offset += told->taken_bytes;
	request->path.length -= MIN(told->taken_bytes, request->path.length);
	free(session->told);
	session->told = NULL;
}

static void dispatch(struct nbd_session *session, struct request_head *head, uint64_t payload,
	uint32_t error, const char *text)
{
	struct nbd_service *service = session->service;
	struct nbd_request *request = request_begin(session, head);

	if (unlikely(session->told != NULL)) {
		if (session->told->error != NBD_SUCCESS) {
			error = session->told->error;
			text = "the request failed in the previous server process, before the "
			       "upgrade";
		}
		go_on_after(session, request);
	}
	if (error == NBD_SUCCESS && session->base.stopping) {
		error = NBD_ESHUTDOWN;
		text = session_stop_text(&session->base);
	}
	if (error == NBD_SUCCESS) {
		error = request_check(session, head, &request->path, &text);
	}
	if (error != NBD_SUCCESS || (request->path.length == 0 && head->type != NBD_CMD_FLUSH)) {
		request->error = error;
		request->error_text = text;
		discard_payload(session, request, payload);
		return;
	}
	request->started = true;
	if (head->type == NBD_CMD_WRITE) {
		start_write(session, request);
		return;
	}
	if (payload > 0) { /* BLOCK_STATUS: the payload has been parsed, and is discarded */
		discard_payload(session, NULL, payload);
	}
	if (head->type == NBD_CMD_FLUSH) {
		request->path.offset = 0;
		request->path.length = 0;
	}
	path_start(service->path, &request->path);
}

/* Returns whether this is a request of x-gmblock:size: a BLOCK_STATUS of zero bytes, which is an
 * error without this extension. Its offset is the size that the peer knows. At most one such
 * request is outstanding. */
static bool asks_size(const struct nbd_session *session, const struct request_head *head)
{
	return session->says_size && !session->size_asked && head->type == NBD_CMD_BLOCK_STATUS &&
	       head->flags == 0 && head->length == 0;
}

static void take_size_request(struct nbd_session *session, const struct request_head *head)
{
	session->size_asked = true;
	session->size_due = false;
	session->size_known = head->offset;
	session->size_cookie = head->cookie;
	if (reply_size_is_due(session)) {
		session_mark_dirty(&session->base);
	}
}

/* Processes the next request, whose header is complete. Returns false if it waits for its payload
 * or a limit, or if the client sends no further requests. */
static bool nbd_receive_take_request(struct nbd_session *session)
{
	uint32_t head_bytes = session->head_bytes;
	uint32_t error = NBD_SUCCESS;
	const char *text = NULL;
	struct request_head head;
	uint64_t payload;

	session->rx_want = head_bytes;
	if (!request_head_parse(session->rx_data + session->rx_start, session->extended, &head)) {
		session_fail(session, "P120", "a request without the request magic");
		return false;
	}
	if (head.type == NBD_CMD_DISC) {
		session->base.lease_done = true;
		session->rx_start += head_bytes;
		session_drain(session);
		return false;
	}
	if (asks_size(session, &head)) {
		session->rx_start += head_bytes;
		take_size_request(session, &head);
		return true;
	}
	payload = head.payload_bytes;
	if (payload > session->service->engine->limits.payload_bytes_max) {
		session_fail(session, "P66, P112", "%s with a payload of %llu bytes",
			nbd_command_name(head.type), (unsigned long long)payload);
		return false;
	}
	if (unlikely(session->told != NULL)) {
		if (session->told->taken_bytes > payload) {
			session_fail(session, "P79",
				"the previous server process read more of "
				"the payload than the request has");
			return false;
		}
		payload -= session->told->taken_bytes;
	}
	request_plan(session, &head);
	if (!engine_request_may(&session->base)) {
		return false;
	}
	if (!request_may_move(session, &head)) {
		reply_watch(session);
		return false;
	}
	if (payload > 0 && nbd_receive_gather(session, head_bytes, payload)) {
		return false;
	}
	session->rx_start += head_bytes;
	if (head.type == NBD_CMD_BLOCK_STATUS && payload > 0) {
		if (payload > rx_available(session) ||
			payload > sizeof(struct be64) +
					  STATUS_PAYLOAD_IDS_MAX * sizeof(struct be32)) {
			error = NBD_EINVAL;
			text = "the payload of block status is too long";
		} else {
			error = request_check_status_payload(session,
				session->rx_data + session->rx_start, payload, &head, &text);
		}
	} else if (head.type != NBD_CMD_WRITE && payload > 0) {
		error = NBD_EINVAL;
		text = "the command takes no payload";
	}
	dispatch(session, &head, payload, error, text);
	return true;
}

static void discard(struct nbd_session *session)
{
	uint64_t length = MIN(session->rx_discard_left, (uint64_t)rx_available(session));

	session->rx_discard_left -= length;
	session->rx_start += (uint32_t)length;
	if (session->rx_discard_left == 0) {
		discarded(session);
	}
}

void receive_continue(struct nbd_session *session)
{
	if (session->base.state != SESSION_READY || session->recv_op.in_flight ||
		unlikely(session->base.paused)) {
		return; /* receive_done() or the end of the pause calls again */
	}
	turns_remove(&session->base.blocked_turn);
	while (session->base.state == SESSION_READY) {
		if (session->rx_discard_left > 0) {
			discard(session);
			if (session->rx_discard_left > 0) {
				session->rx_want = 1;
				break;
			}
		} else if (session->rx_request != NULL) {
			if (!nbd_receive_take_payload(session)) {
				break;
			}
		} else if (rx_available(session) < session->head_bytes) {
			session->rx_want = session->head_bytes;
			break;
		} else if (!nbd_receive_take_request(session)) {
			break;
		}
	}
	nbd_receive_arm(session);
}

void receive_discard(struct nbd_session *session)
{
	if (!session->recv_op.in_flight) {
		stream_receive(&session->stream, &session->recv_op, session->rx_small,
			RX_SMALL_BYTES, false, receive_done);
	}
}

bool receive_owes_nothing(const struct nbd_session *session)
{
	return session->base.state == SESSION_READY && !session->send_op.in_flight &&
	       session->rx_request == NULL && session->rx_discard_left == 0 &&
	       rx_available(session) == 0;
}

void receive_interrupt(struct nbd_session *session)
{
	stream_cancel(&session->stream, &session->recv_op);
}

void receive_pause(struct nbd_session *session)
{
	rate_give_up(&session->base.rate);
	turns_remove(&session->base.blocked_turn);
	if (session->rx_request != NULL && session->rx_stream == NULL) {
		path_write_pause(&session->rx_request->path);
	}
	receive_interrupt(session);
}

bool receive_told(struct nbd_session *session, uint32_t count)
{
	GMB_ASSERT(session->rx_data == session->rx_small && rx_available(session) == 0);
	if (count > RX_SMALL_BYTES) {
		session->rx_told = malloc(count);
		if (session->rx_told == NULL) {
			return false;
		}
		session->rx_data = session->rx_told;
		session->rx_bytes = count;
	}
	session->rx_start = 0;
	session->rx_end = count;
	return true;
}

static void received_end(struct nbd_session *session)
{
	if (session->base.state == SESSION_NEGOTIATING) {
		session_terminate(&session->base, NULL);
	} else if (session->rx_request != NULL || session->rx_discard_left > 0) {
		session_terminate(&session->base,
			"the client closed the connection in the middle of a request's payload");
	} else {
		/* The peer might have closed only its direction, so its requests are still answered
		 * (P130). */
		session->end_of_stream = true;
		session_drain(session);
	}
}

/* Returns whether the stream is still usable after a receive with this result. -ECANCELED is the
 * effect of receive_interrupt(). */
static bool nbd_receive_is_transient(int result)
{
	return result == -EINTR || result == -EAGAIN || result == -ECANCELED;
}

void receive_done(struct ring_op *op, int result)
{
	struct nbd_session *session = container_of(op, struct nbd_session, recv_op);

	if (session->base.state == SESSION_TERMINATING || session->base.state == SESSION_DRAINING) {
		return;
	}
	if (session->base.state == SESSION_LINGERING) {
		if (result > 0 || nbd_receive_is_transient(result)) {
			receive_discard(session);
		} else {
			session_ended(session);
		}
		return;
	}
	if (result == 0) {
		received_end(session);
		return;
	}
	if (result < 0 && !nbd_receive_is_transient(result)) {
		if (result == -EFAULT && session->rx_into_stream) {
			path_memory_failed(session->rx_stream);
		}
		/* reset by peer and similar: not worth a log line */
		session_terminate(&session->base, NULL);
		return;
	}
	if (result == -ECANCELED) {
		session->rx_was_full = false;
	}
	if (result > 0) {
		session->base.progress_ns = ring_batch_ns(session->service->ring);
		session->rx_probed = false;
	}
	if (session->base.state == SESSION_NEGOTIATING) {
		if (result > 0) {
			session->rx_end += (uint32_t)result;
			session_has_spoken(&session->base);
		}
		handshake_received(session);
		return;
	}
	if (result > 0 && session->rx_into_stream) {
		session->rx_stream_got += (uint32_t)result;
		session->rx_payload_left -= (uint32_t)result;
		session->rx_into_stream = false;
		/* After a long payload another long one is likely. The next receive should then be
		 * small, because payload received together with its header has to be copied. */
		session->rx_was_full &= session->rx_request->length <= RX_LARGE_BYTES;
	} else if (result > 0) {
		session->rx_end += (uint32_t)result;
		session->rx_was_full = session->rx_end == session->rx_bytes;
	}
	receive_continue(session);
}
