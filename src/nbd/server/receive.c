// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nbd/server/session.h"

/*
 * Bytes arrive in one of three places:
 *
 * - rx_small, 8 KiB in the session: idle and light connections, requests without payload;
 * - rx_large, 256 KiB from the arena: many small writes at once, each written from where it lies;
 * - a stream of the path: payload of a large write, received straight into place.
 *
 * - rx_told: what the process before this one had received, when that is more than rx_small holds.
 *
 * A receive that fills rx_small is followed by one into rx_large. A session goes back to rx_small
 * as soon as everything received is parsed and the last receive was not full, so that an idle
 * connection holds no arena memory; and behind a payload that is longer than rx_large.
 */

static uint32_t available(const struct nbd_session *session)
{
	return session->rx_end - session->rx_start;
}

/* --- receive memory ------------------------------------------------------------------------ */

/* Moves what is not parsed yet to the front of another buffer, or of the same one. */
static void rx_move(struct nbd_session *session, struct rx_buf *to)
{
	uint8_t *data = to != NULL ? mem_cpu_write(to->buf.memory) : session->rx_small;
	uint32_t left = available(session);

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

/* Makes place for a message of want bytes from rx_start on. False when there is no memory for it.
 */
static bool rx_make_room(struct nbd_session *session, uint32_t want)
{
	bool fits = session->rx_bytes - session->rx_start >= want;
	/* Receiving into the last few bytes of a large buffer would cost a system call for little.
	 */
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

/* A receive that filled its buffer left something behind: make the next one worth its system call.
 */
static void rx_make_large(struct nbd_session *session)
{
	struct rx_buf *fresh;

	if (session->rx_large == NULL) {
		fresh = service_rx_get(session);
		if (fresh != NULL || available(session) == 0) {
			rx_move(session, fresh); /* without memory: the small one from its start */
		}
	} else if (available(session) == 0 && session->rx_large->refs == 1) {
		session->rx_start = 0;
		session->rx_end = 0;
	} else if (session->rx_end == session->rx_bytes && available(session) == 0) {
		fresh = service_rx_get(session);
		rx_move(session, fresh); /* or small again, when memory is short */
	}
}

/* A header without a byte of its payload holds no memory. */
static bool waits_for_first_byte(const struct nbd_session *session)
{
	return session->rx_request != NULL && session->rx_stream == NULL &&
	       session->rx_payload_left == session->rx_request->path.length &&
	       available(session) == 0;
}

/* It is the peer's turn from now on, but when a receive was only interrupted to see what came. */
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
		if (stream != NULL) { /* else progress comes when there is room */
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
	} else if (available(session) == 0) {
		if (session->rx_large != NULL || session->rx_told != NULL) {
			rx_move(session, NULL);
		}
		session->rx_start = 0;
		session->rx_end = 0;
	}
	if (available(session) > 0) {
		bool room = rx_make_room(session, session->rx_want);

		GMB_ASSERT(room); /* a header always fits; nbd_receive_gather() asked before */
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

/* Payload that nobody wants is taken all the same (P79), and the request is answered after it:
 * libnbd for one does not expect the answer to a request that it is still sending. */
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

/* The request failed: what is still to come of its payload is thrown away. */
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

/* False when it needs more bytes or more room. */
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
			request->path.copied_bytes = available(session);
			stream = path_write_open(&request->path);
			if (stream == NULL) {
				return false;
			}
			session->rx_stream = stream;
			session->rx_stream_got = 0;
		}
		length = MIN(available(session), stream->length - session->rx_stream_got);
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

/* Where the next bytes to be parsed are, when a write may be stored from there; or none. */
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
	if (request->path.length <= available(session) && request->received.memory.rights != 0) {
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

/* True when a short payload should be waited for in the receive buffer. */
static bool nbd_receive_gather(struct nbd_session *session, uint32_t head_bytes, uint64_t payload)
{
	uint32_t memory_align = store_info(session->base.export->store)->memory_align;
	uint64_t payload_max =
		memory_align == 1 ? RX_GATHER_BYTES_MAX : RX_GATHER_ALIGNED_BYTES_MAX;

	if (payload > payload_max || available(session) - head_bytes >= payload ||
		!rx_make_room(session, head_bytes + (uint32_t)payload)) {
		return false;
	}
	session->rx_want = head_bytes + (uint32_t)payload;
	return true;
}

/* A request that another process has begun, and whose header was told again. */
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
			text = "it failed before another process of the server took over";
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
	if (payload > 0) { /* of block status: it has been read */
		discard_payload(session, NULL, payload);
	}
	if (head->type == NBD_CMD_FLUSH) {
		request->path.offset = 0;
		request->path.length = 0;
	}
	path_start(service->path, &request->path);
}

/* Block status of no bytes, which is an error otherwise: the peer asks for the size of the export
 * when it is not the offset any more. One at a time. */
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

/* Takes the next request, whose header is there. False: it waits for its payload or a limit, or
 * nothing follows. */
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
			session_fail(session, "P79", "more of a payload was taken than it has");
			return false;
		}
		payload -= session->told->taken_bytes;
	}
	request_plan(session, &head);
	if (!engine_request_may(&session->base)) {
		return false;
	}
	if (!engine_request_may_move(&session->base, request_bytes(session, &head))) {
		reply_watch(session);
		return false;
	}
	if (payload > 0 && nbd_receive_gather(session, head_bytes, payload)) {
		return false;
	}
	session->rx_start += head_bytes;
	if (head.type == NBD_CMD_BLOCK_STATUS && payload > 0) {
		if (payload > available(session) ||
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
	uint64_t length = MIN(session->rx_discard_left, (uint64_t)available(session));

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
		return; /* receive_done() goes on, or who ends the pause */
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
		} else if (available(session) < session->head_bytes) {
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
	       available(session) == 0;
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
	GMB_ASSERT(session->rx_data == session->rx_small && available(session) == 0);
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
		session_terminate(&session->base, "it closed in the middle of a request's payload");
	} else {
		/* Perhaps only half closed: what it asked for is still answered (P130). */
		session->end_of_stream = true;
		session_drain(session);
	}
}

/* The stream goes on; -ECANCELED is of our own making. */
static bool nbd_receive_is_passing(int result)
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
		if (result > 0 || nbd_receive_is_passing(result)) {
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
	if (result < 0 && !nbd_receive_is_passing(result)) {
		if (result == -EFAULT && session->rx_into_stream) {
			path_memory_failed(session->rx_stream);
		}
		session_terminate(&session->base, NULL); /* reset by peer and the like: no news */
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
		/* What comes behind a long payload is perhaps another one: the less of it is
		 * received with its header, the less is copied. */
		session->rx_was_full &= session->rx_request->length <= RX_LARGE_BYTES;
	} else if (result > 0) {
		session->rx_end += (uint32_t)result;
		session->rx_was_full = session->rx_end == session->rx_bytes;
	}
	receive_continue(session);
}
