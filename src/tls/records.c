// SPDX-License-Identifier: Apache-2.0
/*
 * Records in user space: GnuTLS's record layer, which reads and writes ciphertext in memory.
 *
 * A send becomes one batch of records. Contiguous data that fills a record is encrypted from where
 * it is; other data is gathered first. No data waits for a record to become full. A receive
 * takes whatever the socket has, and GnuTLS writes the plain bytes directly to their destination.
 * It delivers only authenticated bytes.
 *
 *   copies of each byte sent:     encrypted, copied to the batch, copied to the socket
 *   copies of each byte received: copied from the socket, copied to GnuTLS, decrypted, copied to
 *                                 its destination
 *
 * The memory of a batch comes from the ring's pool of buffers (struct tls_stock). A connection has
 * such a buffer only while it contains data. An idle connection receives into its own buffer of
 * TLS_IN_BYTES.
 */
#include "tls/layer_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Limit on consecutive calls of GnuTLS that neither return nor consume a byte: the number of
 * messages in one record, because GnuTLS processes one per call. */
enum { SILENT_CALLS_MAX = TLS_CONTENT_BYTES_MAX / 4 };

/* --- transport functions of GnuTLS ----------------------------------------------------------- */

/* Returns whether a record header is valid, because GnuTLS does not check all of it. With TLS 1.3
 * every record has the type of data; with TLS 1.2 no ChangeCipherSpec follows the handshake. */
static bool is_possible(const struct tls_layer *layer)
{
	const uint8_t *header = layer->head;
	uint32_t bytes = (uint32_t)header[3] << 8 | header[4];

	return header[0] >= (layer->is_disguised ? TLS_DATA : TLS_ALERT) && header[0] <= TLS_DATA &&
	       header[1] == 3 && header[2] == 3 && bytes > 0 && bytes <= TLS_RECEIVED_BYTES_MAX;
}

/* Finds the record headers in the bytes that GnuTLS reads. Returns false at an invalid header. */
static bool records_follow(struct tls_layer *layer, const uint8_t *bytes, size_t count)
{
	while (count > 0) {
		size_t passed = MIN(count, (size_t)layer->body_left);

		if (passed > 0) {
			layer->body_left -= (uint32_t)passed;
		} else {
			passed = MIN(count, (size_t)(TLS_HEADER_BYTES - layer->head_bytes));
			memcpy(layer->head + layer->head_bytes, bytes, passed);
			layer->head_bytes += (uint32_t)passed;
			if (layer->head_bytes == TLS_HEADER_BYTES) {
				if (!is_possible(layer)) {
					return false;
				}
				layer->head_bytes = 0;
				layer->body_left = (uint32_t)layer->head[3] << 8 | layer->head[4];
			}
		}
		bytes += passed;
		count -= passed;
	}
	return true;
}

static ssize_t pull(gnutls_transport_ptr_t context, void *buf, size_t len)
{
	struct tls_layer *layer = context;
	uint32_t bytes = (uint32_t)MIN(len, (size_t)(layer->in.end - layer->in.at));

	if (bytes == 0) {
		gnutls_transport_set_errno(layer->session, EAGAIN);
		return -1;
	}
	if (layer->handshake == NULL &&
		!records_follow(layer, layer->in.data + layer->in.at, bytes)) {
		gnutls_transport_set_errno(layer->session, EPROTO);
		return -1;
	}
	memcpy(buf, layer->in.data + layer->in.at, bytes);
	layer->in.at += bytes;
	return (ssize_t)bytes;
}

/* Never waits: the ring receives missing data. */
static int pull_timeout(gnutls_transport_ptr_t context, unsigned ms)
{
	return 1;
}

/* Makes room in layer->out. The buffer can grow only during a handshake, for a long chain of
 * certificates. For records it is always large enough. */
static bool records_make_room(struct tls_layer *layer, size_t bytes)
{
	struct tls_bytes *out = &layer->out;
	uint8_t *data;

	if (bytes <= out->capacity - out->end) {
		return true;
	}
	if (layer->handshake == NULL || bytes > TLS_HANDSHAKE_OUT_BYTES_MAX - out->end) {
		return false;
	}
	data = realloc(out->data, TLS_HANDSHAKE_OUT_BYTES_MAX);
	if (data == NULL) {
		return false;
	}
	out->data = data;
	out->capacity = TLS_HANDSHAKE_OUT_BYTES_MAX;
	return true;
}

static ssize_t records_push(gnutls_transport_ptr_t context, const giovec_t *pieces, int count)
{
	struct tls_layer *layer = context;
	size_t bytes = 0;

	for (int i = 0; i < count; i++) {
		bytes += pieces[i].iov_len;
	}
	if (!records_make_room(layer, bytes)) {
		gnutls_transport_set_errno(layer->session, ENOBUFS);
		return -1;
	}
	for (int i = 0; i < count; i++) {
		memcpy(layer->out.data + layer->out.end, pieces[i].iov_base, pieces[i].iov_len);
		layer->out.end += (uint32_t)pieces[i].iov_len;
	}
	return (ssize_t)bytes;
}

void tls_records_attach(struct tls_layer *layer)
{
	gnutls_transport_set_ptr(layer->session, layer);
	gnutls_transport_set_pull_function(layer->session, pull);
	gnutls_transport_set_pull_timeout_function(layer->session, pull_timeout);
	gnutls_transport_set_vec_push_function(layer->session, records_push);
}

/* --- memory ----------------------------------------------------------------------------------- */

int tls_records_open(struct tls_layer *layer)
{
	if (layer->in_small == NULL) {
		layer->in_small = malloc(TLS_IN_BYTES);
	}
	if (layer->in_small == NULL) {
		return -ENOMEM;
	}
	layer->stock = tls_stock_get(layer->pool, layer->stream->ring);
	if (layer->stock == NULL) {
		return -ENOMEM;
	}
	layer->in = (struct tls_bytes){ .data = layer->in_small, .capacity = TLS_IN_BYTES };
	layer->is_disguised = gnutls_protocol_get_version(layer->session) == GNUTLS_TLS1_3;
	return 0;
}

/* Returns the receive buffer to the ring's stock, if it comes from there and all of its bytes were
 * used. */
static void in_release(struct tls_layer *layer)
{
	if (layer->in.at == layer->in.end && layer->in.data != layer->in_small) {
		tls_stock_give(layer->stock, layer->in.data);
		layer->in.data = layer->in_small;
		layer->in.capacity = TLS_IN_BYTES;
	}
	if (layer->in.at == layer->in.end) {
		layer->in.at = 0;
		layer->in.end = 0;
	}
}

static void in_enlarge(struct tls_layer *layer)
{
	uint8_t *batch;

	if (layer->in.data == layer->in_small) {
		batch = tls_stock_take(layer->stock);
		if (batch != NULL) {
			layer->in.data = batch;
			layer->in.capacity = TLS_BATCH_BYTES;
		}
	}
}

static bool out_take(struct tls_layer *layer)
{
	struct tls_bytes *out = &layer->out;

	GMB_ASSERT(out->data == NULL);
	*out = (struct tls_bytes){ .data = tls_stock_take(layer->stock),
		.capacity = TLS_BATCH_BYTES };
	if (out->data == NULL) {
		out->data = malloc(TLS_SINGLE_BYTES);
		out->capacity = TLS_SINGLE_BYTES;
	}
	return out->data != NULL;
}

static void out_release(struct tls_layer *layer)
{
	if (layer->out.capacity == TLS_BATCH_BYTES) {
		tls_stock_give(layer->stock, layer->out.data);
	} else {
		free(layer->out.data);
	}
	layer->out = (struct tls_bytes){ 0 };
}

void tls_records_close(struct tls_layer *layer)
{
	if (layer->stock != NULL) {
		layer->in.at = layer->in.end;
		in_release(layer);
		if (layer->out.data != NULL) {
			out_release(layer);
		}
		tls_stock_put(layer->pool, layer->stock);
	}
	free(layer->in_small);
}

/* --- the end ---------------------------------------------------------------------------------- */

static int records_describe(struct tls_layer *layer, int result)
{
	struct error *error = &layer->error;

	switch (result) {
	case GNUTLS_E_DECRYPTION_FAILED:
		return error_set(error, -EBADMSG,
			"a TLS record could not be authenticated: the record was forged or "
			"damaged");
	case GNUTLS_E_FATAL_ALERT_RECEIVED:
		return tls_check_failed(&layer->check, layer->session, result, error);
	case GNUTLS_E_MEMORY_ERROR:
		return error_oom_for(error, "TLS");
	case GNUTLS_E_PULL_ERROR:
		return error_set(error, -EPROTO, "the peer sent an invalid TLS record");
	case GNUTLS_E_REHANDSHAKE:
		return error_set(error, -EPROTO, "the peer requested TLS renegotiation");
	default:
		return error_set(error, -EPROTO, "TLS: %s", gnutls_strerror(result));
	}
}

/* Ends both directions. The peer receives an alert if its socket has room. */
static void break_off(struct tls_layer *layer, int result)
{
	struct ring *ring = layer->stream->ring;

	layer->broken = records_describe(layer, result);
	if (!layer->out_op.in_flight && result != GNUTLS_E_FATAL_ALERT_RECEIVED &&
		(layer->out.data != NULL || out_take(layer))) {
		struct iovec iov;
		struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

		layer->out.at = 0;
		layer->out.end = 0;
		(void)gnutls_alert_send_appropriate(layer->session,
			result == GNUTLS_E_PULL_ERROR ? GNUTLS_E_UNEXPECTED_PACKET : result);
		iov = (struct iovec){ .iov_base = layer->out.data, .iov_len = layer->out.end };
		if (iov.iov_len > 0) {
			(void)!ring_sendmsg_now(ring, layer->stream->file, &message);
		}
		out_release(layer);
	}
	ring_socket_shutdown(ring, layer->stream->file);
}

/* --- receiving -------------------------------------------------------------------------------- */

enum opened {
	OPENED_ALL,  /* the receiver's message is full */
	OPENED_DRY,  /* all data that has arrived is decrypted */
	OPENED_LAST, /* the connection has ended */
};

static void into_begin(struct tls_layer *layer, struct msghdr *message, bool whole)
{
	layer->into = message;
	layer->into_idx = 0;
	layer->into_at = 0;
	layer->got = 0;
	layer->whole = whole;
}

/* Returns the next memory to receive into; empty: the message is full. */
static struct iovec into_next(struct tls_layer *layer)
{
	const struct msghdr *into = layer->into;

	while (layer->into_idx < into->msg_iovlen) {
		const struct iovec *iov = &into->msg_iov[layer->into_idx];

		if (layer->into_at < iov->iov_len) {
			return (struct iovec){ .iov_base =
						       (uint8_t *)iov->iov_base + layer->into_at,
				.iov_len = iov->iov_len - layer->into_at };
		}
		layer->into_idx++;
		layer->into_at = 0;
	}
	return (struct iovec){ 0 };
}

/* Returns whether the result is a warning alert, which is ignored. Returns false after
 * TLS_WARNING_ALERTS_MAX warnings, so a further one ends the connection. */
static bool is_tolerable(struct tls_layer *layer, int result)
{
	return result == GNUTLS_E_WARNING_ALERT_RECEIVED &&
	       ++layer->warnings <= TLS_WARNING_ALERTS_MAX;
}

static enum opened open_records(struct tls_layer *layer)
{
	uint32_t silent = 0; /* calls that neither returned nor consumed a byte */

	for (;;) {
		struct iovec iov = into_next(layer);
		uint32_t at = layer->in.at;
		ssize_t result;

		if (iov.iov_len == 0) {
			return OPENED_ALL;
		}
		if (layer->broken != 0 || layer->ended) {
			return OPENED_LAST;
		}
		result = gnutls_record_recv(layer->session, iov.iov_base, iov.iov_len);
		if (result > 0) {
			layer->into_at += (size_t)result;
			layer->got += (size_t)result;
		} else if (result == 0) {
			layer->ended = true;
		} else if (result == GNUTLS_E_AGAIN || result == GNUTLS_E_INTERRUPTED) {
			silent = layer->in.at == at ? silent + 1 : 0;
			if (layer->in.at == layer->in.end) {
				return OPENED_DRY;
			}
			/* a bug in GnuTLS must not become an endless loop */
			if (silent > SILENT_CALLS_MAX) {
				break_off(layer, GNUTLS_E_INTERNAL_ERROR);
			}
		} else if (!is_tolerable(layer, (int)result)) {
			break_off(layer, (int)result);
		}
	}
}

/* Returns the result of a receive that has ended. If bytes were received before an error, returns
 * the bytes. The next receive returns the error. */
static ssize_t received_bytes(struct tls_layer *layer)
{
	in_release(layer);
	return layer->got > 0 ? (ssize_t)layer->got : layer->broken;
}

static void receive_complete(struct tls_layer *layer, int result)
{
	struct ring_op *op = layer->receiving;

	layer->receiving = NULL;
	ring_op_complete(layer->stream->ring, op, result);
}

/* Returns whether the message has more than TLS_IN_LARGE_BYTES of room left. */
static bool into_is_large(const struct tls_layer *layer)
{
	const struct msghdr *into = layer->into;
	size_t room = 0;

	for (size_t i = layer->into_idx; i < into->msg_iovlen; i++) {
		room += into->msg_iov[i].iov_len - (i == layer->into_idx ? layer->into_at : 0);
		if (room > TLS_IN_LARGE_BYTES) {
			return true;
		}
	}
	return false;
}

static void in_ended(struct tls_layer *layer)
{
	layer->ended = true;
	layer->was_cut = !atomic_load_explicit(&layer->is_stopped, memory_order_relaxed);
}

/* Receives what the socket has. -EAGAIN: it is empty. */
static ssize_t fill_now(struct tls_layer *layer)
{
	struct iovec iov;
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t result;

	in_release(layer);
	in_enlarge(layer);
	iov = (struct iovec){ .iov_base = layer->in.data, .iov_len = layer->in.capacity };
	result = ring_recvmsg_now(layer->stream->ring, layer->stream->file, &message);
	if (result > 0) {
		layer->in.end = (uint32_t)result;
		layer->stream->raw_bytes += (uint64_t)result;
	} else if (result == 0) {
		in_ended(layer);
	}
	return result;
}

static void filled(struct ring_op *op, int result);

static void records_fill(struct tls_layer *layer)
{
	in_release(layer);
	if (into_is_large(layer)) {
		in_enlarge(layer);
	}
	ring_recv(layer->stream->ring, &layer->in_op, layer->stream->file, layer->in.data,
		layer->in.capacity, false, filled);
}

static void records_receive_step(struct tls_layer *layer, enum opened opened)
{
	if (opened == OPENED_DRY && (layer->got == 0 || layer->whole)) {
		records_fill(layer);
	} else {
		receive_complete(layer, (int)received_bytes(layer));
	}
}

static void filled(struct ring_op *op, int result)
{
	struct tls_layer *layer = container_of(op, struct tls_layer, in_op);
	enum opened opened;

	if (result < 0 && result != -EINTR) {
		in_release(layer);
		receive_complete(layer, layer->got > 0	     ? (int)layer->got
					: layer->broken != 0 ? layer->broken
							     : result);
		return;
	}
	if (result == 0) {
		in_ended(layer);
	}
	layer->in.end = result > 0 ? (uint32_t)result : 0;
	layer->stream->raw_bytes += layer->in.end;
	opened = open_records(layer);
	/* The small buffer was full, so the socket has more data. */
	if (opened == OPENED_DRY && result == TLS_IN_BYTES && fill_now(layer) > 0) {
		opened = open_records(layer);
	}
	records_receive_step(layer, opened);
}

void tls_records_receive(
	struct tls_layer *layer, struct ring_op *op, struct msghdr *message, bool whole)
{
	GMB_ASSERT(layer->receiving == NULL);
	layer->receiving = op;
	into_begin(layer, message, whole);
	records_receive_step(layer, open_records(layer));
}

ssize_t tls_records_receive_now(struct tls_layer *layer, struct msghdr *message)
{
	ssize_t result = TLS_BATCH_BYTES;

	GMB_ASSERT(layer->receiving == NULL);
	into_begin(layer, message, false);
	/* Receives until there is data. Then continues only if the last receive has filled the
	 * batch, because otherwise the socket is empty. */
	while (open_records(layer) == OPENED_DRY &&
		(layer->got == 0 || result == TLS_BATCH_BYTES)) {
		result = fill_now(layer);
		if (result < 0) {
			in_release(layer);
			return layer->got > 0 ? (ssize_t)layer->got : result;
		}
	}
	return received_bytes(layer);
}

void tls_records_cancel(struct tls_layer *layer)
{
	ring_cancel(layer->stream->ring, &layer->in_op);
}

/* --- sending ---------------------------------------------------------------------------------- */

/* A position in a message. */
struct cursor {
	const struct msghdr *message;
	size_t idx;
	size_t at;
};

static struct iovec cursor_run(struct cursor *cursor)
{
	while (cursor->idx < cursor->message->msg_iovlen) {
		const struct iovec *iov = &cursor->message->msg_iov[cursor->idx];

		if (cursor->at < iov->iov_len) {
			return (struct iovec){ .iov_base = (uint8_t *)iov->iov_base + cursor->at,
				.iov_len = iov->iov_len - cursor->at };
		}
		cursor->idx++;
		cursor->at = 0;
	}
	return (struct iovec){ 0 };
}

/* Returns the content of the next record: in place if contiguous data fills it, otherwise
 * gathered. */
static struct iovec next_content(struct tls_layer *layer, struct cursor *cursor)
{
	struct iovec run = cursor_run(cursor);
	size_t gathered = 0;

	if (run.iov_len >= TLS_CONTENT_BYTES_MAX) {
		cursor->at += TLS_CONTENT_BYTES_MAX;
		run.iov_len = TLS_CONTENT_BYTES_MAX;
		return run;
	}
	while (run.iov_len > 0 && gathered < TLS_CONTENT_BYTES_MAX) {
		size_t bytes = MIN(run.iov_len, TLS_CONTENT_BYTES_MAX - gathered);

		memcpy(layer->stock->scratch + gathered, run.iov_base, bytes);
		gathered += bytes;
		cursor->at += bytes;
		run = cursor_run(cursor);
	}
	return (struct iovec){ .iov_base = layer->stock->scratch, .iov_len = gathered };
}

/* Fills layer->out with records of as much of the message as fits. A peer can request short records
 * (RFC 8449), so one content can become several records. */
static ssize_t seal_all(struct tls_layer *layer, const struct msghdr *message)
{
	const struct tls_bytes *out = &layer->out;
	struct cursor cursor = { .message = message };
	ssize_t taken = 0;

	while (out->end == 0 ||
		out->capacity - out->end >= TLS_CONTENT_BYTES_MAX + TLS_SEALED_EXTRA_BYTES) {
		struct iovec content = next_content(layer, &cursor);
		const uint8_t *at = content.iov_base;
		size_t left = content.iov_len;

		if (left == 0) {
			break;
		}
		while (left > 0) {
			ssize_t result;

			if (out->capacity - out->end < left + TLS_SEALED_EXTRA_BYTES) {
				return taken;
			}
			result = gnutls_record_send(layer->session, at, left);
			if (result < 0) {
				return result;
			}
			at += result;
			left -= (size_t)result;
			taken += result;
		}
	}
	return taken;
}

/* Encrypts a part of the message into layer->out. Returns the length of the part, or a negative
 * errno; layer->out is then empty. */
static ssize_t seal(struct tls_layer *layer, const struct msghdr *message)
{
	ssize_t taken;

	if (layer->broken != 0 || layer->send_error != 0) {
		return layer->broken != 0 ? layer->broken : layer->send_error;
	}
	if (!out_take(layer)) {
		return -ENOMEM;
	}
	taken = seal_all(layer, message);
	if (taken < 0) {
		break_off(layer, (int)taken);
		taken = layer->broken;
	}
	return taken;
}

static void send_complete(struct tls_layer *layer, int result)
{
	struct ring_op *op = layer->sending;

	layer->sending = NULL;
	ring_op_complete(layer->stream->ring, op, result);
}

static void pushed(struct ring_op *op, int result);

static void push_out(struct tls_layer *layer)
{
	ring_send(layer->stream->ring, &layer->out_op, layer->stream->file,
		layer->out.data + layer->out.at, layer->out.end - layer->out.at, pushed);
}

/* Tries to send without the ring. Returns true if everything was sent, or sending has failed
 * (send_error). */
static bool push_out_now(struct tls_layer *layer)
{
	struct iovec iov = { .iov_base = layer->out.data + layer->out.at,
		.iov_len = layer->out.end - layer->out.at };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t result = ring_sendmsg_now(layer->stream->ring, layer->stream->file, &message);

	if (result < 0 && result != -EAGAIN && result != -EINTR) {
		layer->send_error = (int)result;
		out_release(layer);
		return true;
	}
	layer->out.at += result > 0 ? (uint32_t)result : 0;
	if (layer->out.at == layer->out.end) {
		out_release(layer);
		return true;
	}
	return false;
}

static void records_finish(struct tls_layer *layer)
{
	layer->is_finishing = false;
	if (layer->broken == 0 && layer->send_error == 0 && out_take(layer)) {
		(void)gnutls_bye(layer->session, GNUTLS_SHUT_WR);
		if (!push_out_now(layer)) {
			layer->is_closing = true;
			push_out(layer);
			return;
		}
	}
	ring_socket_shutdown_send(layer->stream->ring, layer->stream->file);
}

static void records_send_step(struct tls_layer *layer)
{
	ssize_t taken = seal(layer, layer->message);

	if (taken < 0) {
		send_complete(layer, (int)taken);
		return;
	}
	layer->taken = (size_t)taken;
	push_out(layer);
}

static void pushed(struct ring_op *op, int result)
{
	struct tls_layer *layer = container_of(op, struct tls_layer, out_op);
	size_t taken = layer->taken;

	layer->out.at += result > 0 ? (uint32_t)result : 0;
	if (layer->out.at < layer->out.end && (result > 0 || result == -EINTR)) {
		push_out(layer);
		return;
	}
	if (layer->out.at < layer->out.end) {
		layer->send_error = result;
	}
	out_release(layer);
	layer->taken = 0;
	if (layer->sending != NULL && layer->message == NULL) {
		send_complete(layer, layer->send_error);
	} else if (layer->sending != NULL && layer->send_error != 0) {
		send_complete(layer, layer->broken != 0 ? layer->broken : layer->send_error);
	} else if (layer->sending != NULL && taken > 0) {
		send_complete(layer, (int)taken);
	} else if (layer->sending != NULL) {
		records_send_step(layer); /* a send that waited until the previous data was sent */
	}
	if (!layer->out_op.in_flight && layer->is_finishing) {
		records_finish(layer);
	} else if (!layer->out_op.in_flight && layer->is_closing) {
		ring_socket_shutdown_send(layer->stream->ring, layer->stream->file);
	}
	stream_became_idle(layer->stream);
}

void tls_records_send(struct tls_layer *layer, struct ring_op *op, const struct msghdr *message)
{
	GMB_ASSERT(layer->sending == NULL);
	layer->sending = op;
	layer->message = message;
	if (!layer->out_op.in_flight) {
		records_send_step(layer);
	}
}

ssize_t tls_records_send_now(struct tls_layer *layer, const struct msghdr *message)
{
	ssize_t taken;

	GMB_ASSERT(layer->sending == NULL);
	if (layer->out_op.in_flight) {
		return -EAGAIN;
	}
	taken = seal(layer, message);
	if (taken < 0) {
		return taken;
	}
	if (!push_out_now(layer)) {
		/* The rest is already encrypted, so it counts as sent. push_out() starts an
		 * operation that sends it. */
		push_out(layer);
	}
	return layer->send_error != 0 ? layer->send_error : taken;
}

bool tls_records_flush(struct tls_layer *layer, struct ring_op *op, ring_done_fn *done)
{
	GMB_ASSERT(layer->sending == NULL);
	if (!layer->out_op.in_flight) {
		return false;
	}
	ring_op_begin(op, done);
	layer->sending = op;
	layer->message = NULL;
	return true;
}

void tls_records_shutdown_send(struct tls_layer *layer)
{
	layer->is_finishing = true;
	if (!layer->out_op.in_flight) {
		records_finish(layer);
	}
}
