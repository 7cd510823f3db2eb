// SPDX-License-Identifier: Apache-2.0
#include "tls/layer_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	LOOK_MS = 250, /* interval at which a waiter checks for silent holders */
};

#define NS_PER_MS UINT64_C(1000000)

static const uint32_t layer_edges[TLS_LAYER_STATE_COUNT] = {
	[TLS_LAYER_NEW] = BIT(TLS_LAYER_HEADER) | BIT(TLS_LAYER_PLACE),
	[TLS_LAYER_HEADER] = BIT(TLS_LAYER_PLACE) | BIT(TLS_LAYER_BODY) | BIT(TLS_LAYER_ENDED),
	[TLS_LAYER_PLACE] = BIT(TLS_LAYER_BODY) | BIT(TLS_LAYER_WORKER) | BIT(TLS_LAYER_ENDED),
	[TLS_LAYER_BODY] = BIT(TLS_LAYER_PLACE) | BIT(TLS_LAYER_WORKER) | BIT(TLS_LAYER_ENDED),
	[TLS_LAYER_WORKER] = BIT(TLS_LAYER_HEADER) | BIT(TLS_LAYER_SENDING) |
			     BIT(TLS_LAYER_REFUSING) | BIT(TLS_LAYER_OPEN) | BIT(TLS_LAYER_ENDED),
	[TLS_LAYER_SENDING] = BIT(TLS_LAYER_HEADER) | BIT(TLS_LAYER_OPEN) | BIT(TLS_LAYER_ENDED),
	[TLS_LAYER_REFUSING] = BIT(TLS_LAYER_ENDED),
};

static void layer_set_state(struct tls_layer *layer, enum tls_layer_state state)
{
	GMB_ASSERT((layer_edges[layer->state] & BIT(state)) != 0);
	layer->state = state;
}

/* --- end of a handshake ---------------------------------------------------------------------- */

static void handshake_free(struct tls_layer *layer)
{
	free(layer->handshake);
	layer->handshake = NULL;
	if (layer->stock == NULL) { /* with a stock, records.c uses these buffers */
		free(layer->out.data);
		layer->out = (struct tls_bytes){ 0 };
		layer->in = (struct tls_bytes){ 0 };
	}
}

/* Completes layer->starting, the operation of stream_ops.start(), when no part of the handshake is
 * in flight. */
static void start_step(struct tls_layer *layer)
{
	struct ring_op *op = layer->starting;

	if (op == NULL || layer->state < TLS_LAYER_OPEN || layer->timer_op.in_flight ||
		!tls_place_is_idle(&layer->place)) {
		return;
	}
	layer->starting = NULL;
	ring_op_complete(layer->stream->ring, op, layer->start_result);
}

static void layer_end(struct tls_layer *layer, int err)
{
	layer_set_state(layer, err == 0 ? TLS_LAYER_OPEN : TLS_LAYER_ENDED);
	layer->start_result = err;
	tls_place_give(&layer->place, err != 0 && layer->was_at_work);
	ring_cancel(layer->stream->ring, &layer->timer_op);
	handshake_free(layer);
	start_step(layer);
}

static void layer_fail(struct tls_layer *layer, int err, const char *why)
{
	if (layer->error.code == 0) {
		error_set(&layer->error, err, "the TLS handshake failed: %s", why);
	}
	layer_end(layer, err);
}

static void socket_failed(struct tls_layer *layer, int result)
{
	if (atomic_load_explicit(&layer->is_stopped, memory_order_relaxed)) {
		layer_fail(layer, -ECANCELED, "the connection is closed");
	} else if (layer->gives_way) {
		layer_fail(
			layer, -EAGAIN, "the peer sent nothing while other TLS handshakes waited");
	} else if (result == 0) {
		layer_fail(layer, -ECONNRESET, "the peer closed the connection");
	} else {
		layer_fail(layer, result, strerror(-result));
	}
}

/* Chooses where records are processed: in the kernel, or else in GnuTLS. */
static int choose_records(struct tls_layer *layer)
{
	enum tls_records records = tls_context_records(layer->context);
	struct stream *stream = layer->stream;
	int err = -EOPNOTSUPP;

	layer->facts = (struct tls_facts){
		.version = gnutls_protocol_get_version(layer->session) == GNUTLS_TLS1_3 ? "TLS 1.3"
											: "TLS 1.2",
		.cipher = gnutls_cipher_get_name(gnutls_cipher_get(layer->session)),
		.records = "user",
	};
	if (tls_kernel_is_wanted(records, stream->file.fd)) {
		err = tls_kernel_take(stream, tls_context_role(layer->context), records,
			layer->session, &layer->keys, &layer->error, &layer->kernel);
	}
	if (err == -EOPNOTSUPP) {
		return tls_records_open(layer);
	}
	if (err == 0) {
		free(layer->in_small);
		layer->in_small = NULL;
		layer->facts.records = "kernel";
		/* the kernel encrypts, so the stream sends files as a plain socket does */
		stream->memory_rights = MEM_SOCKET;
		gnutls_deinit(layer->session);
		layer->session = NULL;
	}
	return err;
}

/* Called when the last byte of the handshake was sent: prepares the processing of records, and
 * reports that the layer is open. */
static void open_layer(struct tls_layer *layer)
{
	int err;

	handshake_free(layer);
	err = choose_records(layer);
	if (err != 0) {
		layer_fail(layer, err, strerror(-err));
	} else {
		layer_end(layer, 0);
	}
}

/* --- worker ---------------------------------------------------------------------------------- */

static struct tls_layer *layer_of(gnutls_session_t session)
{
	return container_of(
		(struct tls_check *)gnutls_session_get_ptr(session), struct tls_layer, check);
}

/* Counts tickets, and verifies a certificate before the signature made with its key. With TLS 1.3,
 * GnuTLS would check the signature first, and an unverified key of 100,000 bits occupies a thread
 * for minutes. */
static int message_arrives(gnutls_session_t session, unsigned type, unsigned when,
	unsigned incoming, const gnutls_datum_t *message)
{
	struct tls_layer *layer = layer_of(session);

	if (incoming != 0 && type == GNUTLS_HANDSHAKE_NEW_SESSION_TICKET &&
		++layer->tickets > TLS_TICKETS_MAX) {
		return GNUTLS_E_TOO_MANY_HANDSHAKE_PACKETS;
	}
	return incoming != 0 && type == GNUTLS_HANDSHAKE_CERTIFICATE_VERIFY
		       ? tls_check_certificate(&layer->check, session)
		       : 0;
}

static int keep_secrets(gnutls_session_t session, gnutls_record_encryption_level_t level,
	const void *receive, const void *send, size_t bytes)
{
	struct tls_layer *layer = layer_of(session);

	if (level == GNUTLS_ENCRYPTION_LEVEL_APPLICATION) {
		tls_keys_keep_secrets(&layer->keys, receive, send, bytes);
	}
	return 0;
}

static int session_create(struct tls_layer *layer)
{
	/* A client has only one certificate. It presents the certificate even if the server does
	 * not list the certificate's authority. The server then reports an unknown authority, and
	 * not a missing certificate. */
	unsigned flags =
		GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS |
		(layer->is_server ? GNUTLS_SERVER : GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT);
	int err;

	if (gnutls_init(&layer->session, flags) < 0) {
		layer->session = NULL;
		return error_oom_for(&layer->error, "TLS");
	}
	layer->check.context = layer->context;
	layer->check.server_name = layer->server_name;
	err = tls_context_prepare(&layer->check, layer->session, &layer->error);
	if (err == 0) {
		tls_records_attach(layer);
		gnutls_handshake_set_timeout(layer->session, 0); /* the owner has a deadline */
		gnutls_handshake_set_hook_function(
			layer->session, GNUTLS_HANDSHAKE_ANY, GNUTLS_HOOK_PRE, message_arrives);
		if (tls_kernel_is_wanted(
			    tls_context_records(layer->context), layer->stream->file.fd)) {
			gnutls_handshake_set_secret_function(layer->session, keep_secrets);
		}
	}
	return err;
}

/* Returns whether the keys are bound to the handshake that created them. With TLS 1.2 this
 * requires an extension (RFC 7627). */
static bool is_bound(gnutls_session_t session)
{
	return gnutls_protocol_get_version(session) != GNUTLS_TLS1_2 ||
	       gnutls_session_ext_master_secret_status(session) != 0;
}

static int alert_for(const struct tls_layer *layer, int result)
{
	int level;

	if (layer->check.alert != 0) {
		return layer->check.alert;
	}
	return result == GNUTLS_E_FATAL_ALERT_RECEIVED || result == GNUTLS_E_PULL_ERROR ||
			       result == GNUTLS_E_PUSH_ERROR
		       ? -1
		       : gnutls_error_to_alert(result, &level);
}

static int shake_hands(struct tls_layer *layer)
{
	struct tls_handshake *handshake = layer->handshake;
	int result;

	do {
		result = gnutls_handshake(layer->session);
		if (result == GNUTLS_E_WARNING_ALERT_RECEIVED &&
			++handshake->warnings > TLS_WARNING_ALERTS_MAX) {
			result = GNUTLS_E_TOO_MANY_HANDSHAKE_PACKETS;
		}
	} while (result < 0 && result != GNUTLS_E_AGAIN && gnutls_error_is_fatal(result) == 0);
	if (result == 0 && !is_bound(layer->session)) {
		result = GNUTLS_E_INSUFFICIENT_SECURITY;
	}
	return result;
}

static enum tls_outcome work_out(struct tls_layer *layer)
{
	struct tls_handshake *handshake = layer->handshake;
	int result;
	int alert;

	if (layer->session == NULL) {
		handshake->result = session_create(layer);
		if (handshake->result != 0) {
			return TLS_OUTCOME_FAILED;
		}
	}
	result = shake_hands(layer);
	if (result == GNUTLS_E_AGAIN) {
		return TLS_OUTCOME_MORE;
	}
	if (result == 0) {
		handshake->result = tls_check_identity(
			&layer->check, layer->session, &layer->identity, &layer->error);
		if (handshake->result == 0) {
			return TLS_OUTCOME_DONE;
		}
		result = GNUTLS_E_INTERNAL_ERROR;
	} else {
		handshake->result =
			tls_check_failed(&layer->check, layer->session, result, &layer->error);
	}
	alert = alert_for(layer, result);
	if (alert >= 0) {
		(void)gnutls_alert_send(
			layer->session, GNUTLS_AL_FATAL, (gnutls_alert_description_t)alert);
	}
	return TLS_OUTCOME_FAILED;
}

static void layer_work(struct tls_job *job)
{
	struct tls_layer *layer = container_of(job, struct tls_layer, job);

	/* If the stream was shut down, the result is not needed. */
	if (!atomic_load_explicit(&layer->is_stopped, memory_order_relaxed)) {
		layer->handshake->outcome = work_out(layer);
	}
}

/* --- ring ------------------------------------------------------------------------------------ */

static void receive_header(struct tls_layer *layer);
static void receive_body(struct tls_layer *layer);
static void layer_take_place(struct tls_layer *layer);
static void layer_sent(struct ring_op *op, int result);

static void send_out(struct tls_layer *layer)
{
	tls_place_is_silent(&layer->place, true);
	ring_send(layer->stream->ring, &layer->out_op, layer->stream->file,
		layer->out.data + layer->out.at, layer->out.end - layer->out.at, layer_sent);
}

static void layer_sent_all(struct tls_layer *layer)
{
	layer->out.at = 0;
	layer->out.end = 0;
	if (layer->state == TLS_LAYER_REFUSING) {
		layer_end(layer, layer->handshake->result);
	} else if (layer->handshake->outcome == TLS_OUTCOME_DONE) {
		open_layer(layer);
	} else {
		receive_header(layer);
	}
}

static void layer_sent(struct ring_op *op, int result)
{
	struct tls_layer *layer = container_of(op, struct tls_layer, out_op);

	tls_place_is_silent(&layer->place, false);
	if (layer->state == TLS_LAYER_REFUSING && result <= 0 && result != -EINTR) {
		/* The alert could not be sent. The reason for the alert is reported, not this
		 * failure. */
		layer_end(layer, layer->handshake->result);
		return;
	}
	if (result <= 0 && result != -EINTR) {
		socket_failed(layer, result);
		return;
	}
	layer->out.at += result > 0 ? (uint32_t)result : 0;
	if (layer->out.at < layer->out.end) {
		send_out(layer);
	} else {
		layer_sent_all(layer);
	}
}

static void worked(struct tls_job *job)
{
	struct tls_layer *layer = container_of(job, struct tls_layer, job);
	struct tls_handshake *handshake = layer->handshake;
	bool has_output = layer->out.end > layer->out.at;

	if (atomic_load_explicit(&layer->is_stopped, memory_order_relaxed)) {
		socket_failed(layer, -ECANCELED);
	} else if (handshake->outcome == TLS_OUTCOME_FAILED && !has_output) {
		layer_end(layer, handshake->result);
	} else if (has_output) {
		layer_set_state(layer, handshake->outcome == TLS_OUTCOME_FAILED
					       ? TLS_LAYER_REFUSING
					       : TLS_LAYER_SENDING);
		send_out(layer);
	} else if (handshake->outcome == TLS_OUTCOME_DONE) {
		open_layer(layer);
	} else {
		receive_header(layer);
	}
}

static void go_to_work(struct tls_layer *layer)
{
	int err;

	layer_set_state(layer, TLS_LAYER_WORKER);
	tls_place_is_silent(&layer->place, false);
	layer->gives_way = false; /* the peer is no longer silent, so the slot is kept */
	layer->was_at_work = true;
	layer->job.ring = layer->stream->ring;
	layer->job.is_urgent = !layer->is_server;
	layer->job.run = layer_work;
	layer->job.done = worked;
	err = tls_workers_submit(tls_pool_workers(layer->pool), &layer->job);
	if (err != 0) {
		layer_fail(layer, err, "cannot start a thread");
	}
}

/* Checks a record header before GnuTLS sees it. Returns NULL, or what is wrong. */
static const char *check_header(const struct tls_layer *layer, const uint8_t *header)
{
	const struct tls_handshake *handshake = layer->handshake;
	uint32_t bytes = (uint32_t)header[3] << 8 | header[4];
	bool is_first = handshake == NULL;

	/* TLS 1.3 disguises encrypted handshake messages as data. */
	if (is_first ? header[0] != TLS_HANDSHAKE
		     : header[0] < TLS_CHANGE_CIPHER || header[0] > TLS_DATA) {
		return is_first ? "the peer does not speak TLS" : "an unknown kind of record";
	}
	if (header[1] != 3) {
		return "the peer does not speak TLS";
	}
	if (bytes == 0 || bytes > TLS_RECEIVED_BYTES_MAX) {
		return "a record of an invalid length";
	}
	if (!is_first && (handshake->records == TLS_HANDSHAKE_RECORDS_MAX ||
				 handshake->bytes + bytes > TLS_HANDSHAKE_IN_BYTES_MAX)) {
		return "the peer's messages are too long";
	}
	return NULL;
}

/* Receives never extend beyond the current record, because data after the handshake belongs to the
 * record layer, which might be the kernel. */
static void layer_received(struct ring_op *op, int result)
{
	struct tls_layer *layer = container_of(op, struct tls_layer, in_op);

	if (result <= 0 && result != -EINTR) {
		socket_failed(layer, result);
		return;
	}
	layer->in.end += result > 0 ? (uint32_t)result : 0;
	if (layer->state == TLS_LAYER_HEADER) {
		receive_header(layer);
	} else {
		receive_body(layer);
	}
}

static void receive_rest(struct tls_layer *layer, uint32_t want)
{
	if (layer->gives_way) {
		/* The slot must be given back, because others wait for it and the peer's message is
		 * still incomplete. */
		socket_failed(layer, -ECANCELED);
		return;
	}
	if (layer->handshake != NULL) {
		tls_place_is_silent(&layer->place, true);
	}
	ring_recv(layer->stream->ring, &layer->in_op, layer->stream->file,
		layer->in.data + layer->in.end, want - layer->in.end, false, layer_received);
}

static uint32_t record_bytes(const uint8_t *header)
{
	return TLS_HEADER_BYTES + ((uint32_t)header[3] << 8 | header[4]);
}

static void receive_body(struct tls_layer *layer)
{
	struct tls_handshake *handshake = layer->handshake;
	uint32_t bytes = record_bytes(layer->in.data);

	if (layer->in.end < bytes) {
		if (layer->state != TLS_LAYER_BODY) {
			layer_set_state(layer, TLS_LAYER_BODY);
		}
		receive_rest(layer, bytes);
	} else if (handshake == NULL) {
		layer_set_state(layer, TLS_LAYER_PLACE);
		layer_take_place(layer);
	} else {
		handshake->records++;
		handshake->bytes += bytes - TLS_HEADER_BYTES;
		go_to_work(layer);
	}
}

/* Called when the header of the first record has arrived. An ordinary hello is received without a
 * slot, so a peer that never sends the rest of it occupies none. A longer hello needs a slot
 * first. */
static void begin_hello(struct tls_layer *layer)
{
	if (record_bytes(layer->head) > TLS_IN_BYTES) {
		layer->place.is_slow = true;
		layer_set_state(layer, TLS_LAYER_PLACE);
		layer_take_place(layer);
		return;
	}
	layer->in_small = malloc(TLS_IN_BYTES);
	if (layer->in_small == NULL) {
		layer_fail(layer, -ENOMEM, "out of memory");
		return;
	}
	memcpy(layer->in_small, layer->head, TLS_HEADER_BYTES);
	layer->in = (struct tls_bytes){
		.data = layer->in_small, .end = TLS_HEADER_BYTES, .capacity = TLS_IN_BYTES
	};
	receive_body(layer);
}

/* --- slot ------------------------------------------------------------------------------------ */

static void layer_look(struct ring_op *op, int result);

static void have_place(struct tls_layer *layer)
{
	layer->handshake = calloc(1, sizeof(*layer->handshake));
	layer->out.data = malloc(TLS_HANDSHAKE_OUT_BYTES);
	layer->out.capacity = TLS_HANDSHAKE_OUT_BYTES;
	if (layer->handshake == NULL || layer->out.data == NULL) {
		layer_fail(layer, -ENOMEM, "out of memory");
		return;
	}
	if (layer->is_server) {
		memcpy(layer->handshake->in, layer->in.data, layer->in.end);
	}
	layer->in.data = layer->handshake->in;
	layer->in.capacity = sizeof(layer->handshake->in);
	if (layer->is_server) {
		receive_body(layer);
	} else {
		go_to_work(layer);
	}
}

static void place_done(struct tls_place *place, int result)
{
	struct tls_layer *layer = container_of(place, struct tls_layer, place);

	if (layer->state >= TLS_LAYER_OPEN) {
		start_step(layer); /* the handshake has already ended */
	} else if (layer->state != TLS_LAYER_PLACE) {
		GMB_ASSERT(result == -EAGAIN);
		layer->gives_way = layer->in_op.in_flight || layer->out_op.in_flight;
		ring_cancel(layer->stream->ring, &layer->in_op);
		/* A send cannot be cancelled, so the connection is aborted. */
		if (layer->out_op.in_flight) {
			ring_socket_abort(layer->stream->ring, layer->stream->file);
		}
	} else if (result != 0) {
		layer_fail(layer, result, "too many other TLS handshakes are waiting");
	} else {
		ring_cancel(layer->stream->ring, &layer->timer_op);
		have_place(layer);
	}
}

static void wait_a_while(struct tls_layer *layer, uint64_t wait_ns)
{
	ring_timer(layer->stream->ring, &layer->timer_op, wait_ns, layer_look);
}

/* Timer of a handshake that waits for a slot. If the peer's source has failed too often, tries to
 * take a slot again. Otherwise requests back the slot of a peer that has been silent for too
 * long. */
static void layer_look(struct ring_op *op, int result)
{
	struct tls_layer *layer = container_of(op, struct tls_layer, timer_op);

	if (layer->state >= TLS_LAYER_OPEN) {
		start_step(layer);
	} else if (layer->state == TLS_LAYER_PLACE) {
		if (tls_place_is_idle(&layer->place)) {
			layer_take_place(layer);
		} else {
			tls_pool_make_room(layer->pool, ring_now_ns(layer->stream->ring));
			wait_a_while(layer, LOOK_MS * NS_PER_MS);
		}
	}
}

static void layer_take_place(struct tls_layer *layer)
{
	uint64_t wait_ns = LOOK_MS * NS_PER_MS;
	int err = tls_place_take(layer->pool, &layer->place, &wait_ns);

	if (err == 0) {
		have_place(layer);
	} else if (err == -EINPROGRESS || err == -EBUSY) {
		wait_a_while(layer, wait_ns);
	} else {
		layer_fail(layer, err,
			err == -EAGAIN ? "too many other TLS handshakes are waiting"
				       : strerror(-err));
	}
}

static void receive_header(struct tls_layer *layer)
{
	const char *problem;

	if (layer->state != TLS_LAYER_HEADER) {
		layer->in.at = 0;
		layer->in.end = 0;
		layer_set_state(layer, TLS_LAYER_HEADER);
	}
	if (layer->in.end < TLS_HEADER_BYTES) {
		receive_rest(layer, TLS_HEADER_BYTES);
		return;
	}
	problem = check_header(layer, layer->in.data);
	if (problem != NULL) {
		layer_fail(layer, -EPROTO, problem);
	} else if (layer->handshake == NULL) {
		begin_hello(layer);
	} else {
		receive_body(layer);
	}
}

static void layer_start(struct stream *stream, struct ring_op *op)
{
	struct tls_layer *layer = stream->layer;

	layer->stream = stream;
	layer->starting = op;
	layer->place.ring = stream->ring;
	layer->place.source = layer->is_server ? layer->source : NULL;
	layer->place.done = place_done;
	if (layer->is_server) {
		layer->in =
			(struct tls_bytes){ .data = layer->head, .capacity = sizeof(layer->head) };
		receive_header(layer);
	} else {
		layer_set_state(layer, TLS_LAYER_PLACE);
		layer_take_place(layer);
	}
}

/* --- stream operations ----------------------------------------------------------------------- */

static void layer_shutdown(struct stream *stream)
{
	struct tls_layer *layer = stream->layer;

	atomic_store_explicit(&layer->is_stopped, true, memory_order_relaxed);
	if (layer->kernel != NULL) {
		tls_kernel_shutdown(layer->kernel);
	}
	/* In all other states no operation has to be ended here: those on the socket end with its
	 * shutdown, and a worker always ends. */
	if (layer->state == TLS_LAYER_PLACE) {
		layer_fail(layer, -ECANCELED, "the connection is closed");
	}
}

static void layer_receive(
	struct stream *stream, struct ring_op *op, struct msghdr *message, bool whole)
{
	struct tls_layer *layer = stream->layer;

	if (layer->kernel != NULL) {
		tls_kernel_receive(layer->kernel, op, message, whole);
	} else {
		tls_records_receive(layer, op, message, whole);
	}
}

static void layer_send(struct stream *stream, struct ring_op *op, const struct msghdr *message)
{
	struct tls_layer *layer = stream->layer;

	if (layer->kernel != NULL) {
		tls_kernel_send(layer->kernel, op, message);
	} else {
		tls_records_send(layer, op, message);
	}
}

static ssize_t layer_receive_now(struct stream *stream, struct msghdr *message)
{
	struct tls_layer *layer = stream->layer;

	return layer->kernel != NULL ? tls_kernel_receive_now(layer->kernel, message)
				     : tls_records_receive_now(layer, message);
}

static ssize_t layer_send_now(struct stream *stream, const struct msghdr *message)
{
	struct tls_layer *layer = stream->layer;

	return layer->kernel != NULL ? tls_kernel_send_now(layer->kernel, message)
				     : tls_records_send_now(layer, message);
}

static ssize_t layer_sendfile_now(struct stream *stream, struct mem_ref bytes, size_t count)
{
	struct tls_layer *layer = stream->layer;

	return tls_kernel_sendfile_now(layer->kernel, bytes, count);
}

/* If the kernel makes the records, all accepted data is in the socket, so a flush has no work. */
static bool layer_flush(struct stream *stream, struct ring_op *op, ring_done_fn *done)
{
	struct tls_layer *layer = stream->layer;

	return layer->state == TLS_LAYER_OPEN && layer->kernel == NULL &&
	       tls_records_flush(layer, op, done);
}

static void layer_cancel(struct stream *stream, struct ring_op *op)
{
	struct tls_layer *layer = stream->layer;

	if (layer->kernel != NULL) {
		tls_kernel_cancel(layer->kernel, op);
	} else if (op == layer->receiving) {
		tls_records_cancel(layer);
	}
}

static void layer_shutdown_send(struct stream *stream)
{
	struct tls_layer *layer = stream->layer;

	if (layer->kernel != NULL) {
		tls_kernel_shutdown_send(layer->kernel);
	} else if (layer->state == TLS_LAYER_OPEN) {
		tls_records_shutdown_send(layer);
	}
}

static bool layer_is_idle(const struct stream *stream)
{
	const struct tls_layer *layer = stream->layer;

	return layer->starting == NULL && !layer->in_op.in_flight && !layer->out_op.in_flight &&
	       (layer->kernel == NULL || tls_kernel_is_idle(layer->kernel));
}

static void layer_close(struct stream *stream)
{
	tls_layer_destroy(stream->layer);
	stream->layer = NULL;
}

const struct stream_ops tls_stream_ops = {
	.name = "tls",
	.memory_rights = MEM_CPU,
	.start = layer_start,
	.receive = layer_receive,
	.send = layer_send,
	.receive_now = layer_receive_now,
	.send_now = layer_send_now,
	.sendfile_now = layer_sendfile_now,
	.flush = layer_flush,
	.cancel = layer_cancel,
	.shutdown = layer_shutdown,
	.shutdown_send = layer_shutdown_send,
	.is_idle = layer_is_idle,
	.close = layer_close,
};

/* --- creation and properties ----------------------------------------------------------------- */

int tls_layer_create(const struct tls_layer_options *options, struct tls_layer **layer_out)
{
	struct tls_layer *layer = calloc(1, sizeof(*layer));

	if (layer == NULL) {
		return -ENOMEM;
	}
	if (options->server_name != NULL) {
		layer->server_name = strdup(options->server_name);
		if (layer->server_name == NULL) {
			free(layer);
			return -ENOMEM;
		}
	}
	layer->context = options->context;
	tls_context_get(layer->context);
	layer->pool = options->pool;
	layer->is_server = tls_context_role(layer->context) == TLS_SERVER;
	memcpy(layer->source, options->source, sizeof(layer->source));
	*layer_out = layer;
	return 0;
}

void tls_layer_destroy(struct tls_layer *layer)
{
	if (layer == NULL) {
		return;
	}
	GMB_ASSERT(layer->starting == NULL && !layer->in_op.in_flight && !layer->out_op.in_flight);
	GMB_ASSERT(tls_place_is_idle(&layer->place) && layer->handshake == NULL);
	tls_records_close(layer);
	tls_kernel_free(layer->kernel);
	tls_keys_wipe(&layer->keys);
	if (layer->session != NULL) {
		gnutls_deinit(layer->session);
	}
	identity_put(layer->identity);
	tls_context_put(layer->context);
	free(layer->server_name);
	free(layer);
}

struct identity *tls_layer_identity(const struct stream *stream)
{
	const struct tls_layer *layer = stream->layer;

	GMB_ASSERT(layer->identity != NULL);
	return layer->identity;
}

const struct error *tls_layer_error(const struct stream *stream)
{
	const struct tls_layer *layer = stream->layer;

	return &layer->error;
}

struct tls_facts tls_layer_facts(const struct stream *stream)
{
	const struct tls_layer *layer = stream->layer;

	return layer->facts;
}

bool tls_layer_was_cut(const struct stream *stream)
{
	const struct tls_layer *layer = stream->layer;

	return layer->kernel != NULL ? tls_kernel_was_cut(layer->kernel) : layer->was_cut;
}
