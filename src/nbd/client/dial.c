// SPDX-License-Identifier: Apache-2.0
#include "nbd/client/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define NS_PER_MS UINT64_C(1000000)

/* Detects within a minute that an idle server's host is gone. */
static const struct stream_keep_alive keep_alive = { .idle_s = 30, .interval_s = 10, .probes = 3 };

static const uint32_t dial_edges[] = {
	[NBD_DIAL_IDLE] = BIT(NBD_DIAL_LOADING) | BIT(NBD_DIAL_CONNECTING),
	[NBD_DIAL_LOADING] = BIT(NBD_DIAL_CONNECTING) | BIT(NBD_DIAL_ENDING),
	[NBD_DIAL_CONNECTING] = BIT(NBD_DIAL_SHAKING) | BIT(NBD_DIAL_ENDING),
	[NBD_DIAL_SHAKING] = BIT(NBD_DIAL_ENCRYPTING) | BIT(NBD_DIAL_ENDING),
	[NBD_DIAL_ENCRYPTING] = BIT(NBD_DIAL_SHAKING) | BIT(NBD_DIAL_ENDING),
	[NBD_DIAL_ENDING] = BIT(NBD_DIAL_IDLE),
};

static void dial_set_state(struct nbd_dial *dial, enum nbd_dial_state state)
{
	GMB_ASSERT((dial_edges[dial->state] & BIT(state)) != 0);
	dial->state = state;
}

/* --- the end ------------------------------------------------------------------------------- */

/* Calls done() when no operation is in flight. Closes the stream unless the caller gets it. */
static void dial_ending_step(struct nbd_dial *dial)
{
	if (dial->io_op.in_flight || dial->timer_op.in_flight ||
		dial->connector.state != CONNECTOR_IDLE) {
		return;
	}
	if (dial->result != 0 || dial->goal != NBD_GOAL_GO) {
		if (!stream_is_idle(&dial->stream)) {
			return;
		}
		stream_close(&dial->stream);
	}
	dial->stream.idle = NULL;
	tls_context_put(dial->tls_context);
	dial->tls_context = NULL;
	dial_set_state(dial, NBD_DIAL_IDLE);
	dial->done(dial, dial->result);
}

static void dial_stream_idle(struct stream *stream)
{
	struct nbd_dial *dial = container_of(stream, struct nbd_dial, stream);

	if (dial->state == NBD_DIAL_ENDING) {
		dial_ending_step(dial);
	}
}

/* Starts to end the attempt. Called only by handlers of completions, which call dial_ending_step()
 * afterwards. */
static void dial_end(struct nbd_dial *dial, int err)
{
	dial_set_state(dial, NBD_DIAL_ENDING);
	dial->result = err;
	ring_cancel(dial->ring, &dial->timer_op);
	connector_cancel(&dial->connector);
	if (dial->stream.state == STREAM_CLOSED || (err == 0 && dial->goal == NBD_GOAL_GO)) {
		return;
	}
	if (dial->stream.state == STREAM_LAYERED) {
		/* TLS is closed before the connection (P55) */
		stream_shutdown_send(&dial->stream);
	}
	stream_shutdown(&dial->stream);
}

static void dial_fail(struct nbd_dial *dial, int err)
{
	char label[EXPORT_URI_LABEL_BYTES];

	error_prefix(&dial->error, "%s", export_uri_label(label, dial->uri));
	dial_end(dial, err);
}

static void fail_at(struct nbd_dial *dial, int err, const char *doing)
{
	if (dial->stream.state == STREAM_LAYERED && tls_layer_error(&dial->stream)->code != 0) {
		dial->error = *tls_layer_error(&dial->stream);
		dial_fail(dial, err);
		return;
	}
	dial_fail(dial, error_set(&dial->error, err, "%s failed: %s", doing, strerror(-err)));
}

/* --- the handshake ------------------------------------------------------------------------- */

static void dial_sent(struct ring_op *op, int result);
static void dial_received(struct ring_op *op, int result);
static void dial_go_on(struct nbd_dial *dial);

/* Adds advice when the server closed without a reason. dial->error describes the event. */
static void dial_advise(struct nbd_dial *dial)
{
	char happened[ERROR_TEXT_BYTES];

	snprintf(happened, sizeof(happened), "%s", dial->error.text);
	error_set(&dial->error, dial->error.code, "%s; %s", happened, tls_client_advice(dial->tls));
}

static void encrypted(struct stream *stream, int result)
{
	struct nbd_dial *dial = container_of(stream, struct nbd_dial, stream);

	if (dial->state == NBD_DIAL_ENDING) {
		/* The attempt was cancelled or timed out. */
	} else if (result != 0) {
		dial->error = *tls_layer_error(stream);
		if (result == -ECONNRESET) {
			dial_advise(dial);
		}
		dial_fail(dial, result);
	} else {
		struct tls_facts facts = tls_layer_facts(stream);
		struct nbd_protection protection = {
			.version = facts.version,
			.cipher = facts.cipher,
			.verified = tls_client_verifies(dial->tls),
		};

		dial_set_state(dial, NBD_DIAL_SHAKING);
		nbd_handshake_encrypted(dial->handshake, &protection);
		dial_go_on(dial);
	}
	if (dial->state == NBD_DIAL_ENDING) {
		dial_ending_step(dial);
	}
}

/* The server has agreed to TLS. Cleartext is neither sent nor accepted from here on. */
static void encrypt(struct nbd_dial *dial)
{
	struct tls_layer_options options = {
		.context = dial->tls_context,
		.pool = tls_client_pool(dial->tls),
		.server_name = tls_client_server_name(dial->tls, dial->uri),
	};
	struct tls_layer *layer;
	int err;

	if (dial->received_at < dial->received_bytes) {
		dial_fail(dial, error_set(&dial->error, -EPROTO,
					"unencrypted data followed the agreement to use TLS; the "
					"data might not be from the server (rule P56)"));
		return;
	}
	err = tls_layer_create(&options, &layer);
	if (err != 0) {
		fail_at(dial, err, "TLS");
		return;
	}
	dial_set_state(dial, NBD_DIAL_ENCRYPTING);
	stream_upgrade(&dial->stream, &tls_stream_ops, layer, encrypted);
}

static void dial_send_rest(struct nbd_dial *dial)
{
	dial->message = (struct msghdr){ .msg_iov = &dial->iov, .msg_iovlen = 1 };
	stream_send(&dial->stream, &dial->io_op, &dial->message, dial_sent);
}

/* Passes received bytes to the handshake, and performs its next step: sends, receives, or ends. */
static void dial_go_on(struct nbd_dial *dial)
{
	struct nbd_handshake *handshake = dial->handshake;
	const uint8_t *output;
	int took;
	int err;

	if (dial->received_at < dial->received_bytes && !nbd_handshake_is_finished(handshake)) {
		took = nbd_handshake_input(handshake, dial->received + dial->received_at,
			dial->received_bytes - dial->received_at, &dial->error);
		if (took < 0) {
			dial_fail(dial, took);
			return;
		}
		dial->received_at += (size_t)took;
	}
	output = nbd_handshake_output(handshake, &dial->iov.iov_len);
	if (dial->iov.iov_len > 0) {
		dial->iov.iov_base = (void *)(uintptr_t)output;
		dial_send_rest(dial);
		return;
	}
	if (nbd_handshake_wants_tls(handshake)) {
		encrypt(dial);
		return;
	}
	if (!nbd_handshake_is_finished(handshake)) {
		stream_receive(&dial->stream, &dial->io_op, dial->received, sizeof(dial->received),
			false, dial_received);
		return;
	}
	err = nbd_handshake_outcome(handshake, &dial->error);
	if (err == 0 && dial->goal == NBD_GOAL_GO && dial->received_at < dial->received_bytes) {
		err = error_set(&dial->error, -EPROTO,
			"the server sent data after the handshake without a request");
	}
	if (err != 0) {
		dial_fail(dial, err);
	} else {
		dial_end(dial, 0);
	}
}

static void dial_sent(struct ring_op *op, int result)
{
	struct nbd_dial *dial = container_of(op, struct nbd_dial, io_op);

	/* A send that fails because the server has closed the connection is not an error here: the
	 * next receive reports the reason. */
	if (result == -EPIPE || result == -ECONNRESET) {
		result = (int)dial->iov.iov_len;
	}
	if (dial->state == NBD_DIAL_ENDING) {
		/* The attempt is ending, so the rest is not sent. */
	} else if (result < 0 && result != -EINTR) {
		fail_at(dial, result, "sending");
	} else {
		size_t part = result > 0 ? (size_t)result : 0;

		dial->iov.iov_base = (uint8_t *)dial->iov.iov_base + part;
		dial->iov.iov_len -= part;
		if (dial->iov.iov_len > 0) {
			dial_send_rest(dial);
		} else {
			nbd_handshake_sent(dial->handshake);
			dial_go_on(dial);
		}
	}
	if (dial->state == NBD_DIAL_ENDING) {
		dial_ending_step(dial);
	}
}

static void dial_received(struct ring_op *op, int result)
{
	struct nbd_dial *dial = container_of(op, struct nbd_dial, io_op);
	bool is_end = result == 0 || result == -ECONNRESET;
	int err = 0;

	if (dial->state == NBD_DIAL_ENDING) {
		dial_ending_step(dial);
		return;
	}
	if (is_end) {
		err = nbd_handshake_end_of_stream(dial->handshake, &dial->error);
	}
	/* With TLS 1.3 our side of the handshake ends before the server has checked our
	 * credentials, so the error may be the server's refusal. */
	if (err != 0 && dial->stream.state == STREAM_LAYERED && !dial->is_trusted) {
		error_set(&dial->error, err,
			"the server closed the connection after the TLS handshake");
		dial_advise(dial);
	}
	dial->is_trusted |= result > 0 && dial->stream.state == STREAM_LAYERED;
	dial->received_at = 0;
	dial->received_bytes = result > 0 ? (size_t)result : 0;
	if (err != 0) {
		dial_fail(dial, err);
	} else if (result < 0 && !is_end && result != -EINTR && result != -EAGAIN) {
		fail_at(dial, result, "receiving");
	} else {
		dial_go_on(dial);
	}
	if (dial->state == NBD_DIAL_ENDING) {
		dial_ending_step(dial);
	}
}

/* --- connecting and time ------------------------------------------------------------------- */

static void dial_timer_done(struct ring_op *op, int result)
{
	struct nbd_dial *dial = container_of(op, struct nbd_dial, timer_op);

	if (dial->state == NBD_DIAL_SHAKING || dial->state == NBD_DIAL_ENCRYPTING) {
		/* If only the answer to the final ABORT is missing, all information has been
		 * received, so the timeout is not an error. */
		bool is_leaving = nbd_handshake_end_of_stream(dial->handshake, NULL) == 0;
		int err = is_leaving ? nbd_handshake_outcome(dial->handshake, &dial->error)
				     : error_set(&dial->error, -ETIMEDOUT,
					       "timed out after %.3g s while waiting for %s",
					       (double)dial->timeout_ns / 1e9,
					       nbd_handshake_awaits(dial->handshake));

		if (err != 0) {
			dial_fail(dial, err);
		} else {
			dial_end(dial, 0);
		}
	}
	if (dial->state == NBD_DIAL_ENDING) {
		dial_ending_step(dial);
	}
}

static void dial_connected(struct connector *connector, int err)
{
	struct nbd_dial *dial = container_of(connector, struct nbd_dial, connector);
	uint64_t now_ns = ring_now_ns(dial->ring);

	if (err == 0) {
		stream_open(&dial->stream, dial->ring, connector->fd, &keep_alive);
		dial->stream.idle = dial_stream_idle;
	}
	if (dial->state == NBD_DIAL_ENDING) {
		if (err == 0) {
			stream_shutdown(&dial->stream);
		}
	} else if (err != 0) {
		/* the error message already begins with the address */
		dial->error = connector->error;
		dial_end(dial, err);
	} else {
		dial_set_state(dial, NBD_DIAL_SHAKING);
		ring_timer(dial->ring, &dial->timer_op,
			now_ns < dial->end_ns ? dial->end_ns - now_ns : 1, dial_timer_done);
		dial_go_on(dial);
	}
	if (dial->state == NBD_DIAL_ENDING) {
		dial_ending_step(dial);
	}
}

/* --- credentials ---------------------------------------------------------------------------- */

/* Loads the credentials, on a thread of the ring. */
static int dial_load(struct ring_op *op)
{
	struct nbd_dial *dial = container_of(op, struct nbd_dial, io_op);

	return tls_client_context(dial->tls, &dial->tls_context, &dial->load_error);
}

static void loaded(struct ring_op *op, int result)
{
	struct nbd_dial *dial = container_of(op, struct nbd_dial, io_op);

	if (dial->state == NBD_DIAL_ENDING) {
		/* The load was cancelled. */
	} else if (result != 0) {
		dial->error = dial->load_error;
		dial_end(dial, result);
	} else {
		dial_set_state(dial, NBD_DIAL_CONNECTING);
		connector_start(
			&dial->connector, dial->ring, dial->uri, dial->connect_ns, dial_connected);
	}
	if (dial->state == NBD_DIAL_ENDING) {
		dial_ending_step(dial);
	}
}

/* --- start ------------------------------------------------------------------------------------ */

void nbd_dial_start(struct nbd_dial *dial, struct ring *ring,
	const struct nbd_dial_options *options, void (*done)(struct nbd_dial *dial, int err))
{
	struct nbd_handshake_options handshake = options->handshake;
	int err;

	GMB_ASSERT(dial->state == NBD_DIAL_IDLE && dial->stream.state == STREAM_CLOSED);
	GMB_ASSERT(!options->uri->tls || options->tls != NULL);
	GMB_ASSERT(options->uri->other_count == 0);
	handshake.export_name = options->uri->export_name;
	handshake.tls = options->uri->tls;
	dial->ring = ring;
	dial->tls = options->tls;
	dial->tls_context = NULL;
	dial->is_trusted = false;
	dial->done = done;
	dial->goal = handshake.goal;
	dial->uri = options->uri;
	dial->timeout_ns = options->timeout_ns;
	dial->connect_ns = options->connect_ns != 0 ? options->connect_ns : options->timeout_ns;
	dial->end_ns = ring_now_ns(ring) + options->timeout_ns;
	dial->received_at = 0;
	dial->received_bytes = 0;
	dial->handshake = NULL;
	dial->error = (struct error){ 0 };
	dial_set_state(dial, handshake.tls ? NBD_DIAL_LOADING : NBD_DIAL_CONNECTING);
	err = nbd_handshake_create(&handshake, &dial->handshake, &dial->error);
	if (err != 0) {
		dial_set_state(dial, NBD_DIAL_ENDING);
		dial->result = err;
		ring_defer(ring, &dial->timer_op, 0, dial_timer_done); /* calls done() later */
		return;
	}
	if (handshake.tls) {
		ring_call(ring, &dial->io_op, dial_load, loaded);
		return;
	}
	connector_start(&dial->connector, ring, options->uri, dial->connect_ns, dial_connected);
}

void nbd_dial_cancel(struct nbd_dial *dial)
{
	if (dial->state != NBD_DIAL_IDLE && dial->state != NBD_DIAL_ENDING) {
		dial_fail(dial, error_set(&dial->error, -ECANCELED, "cancelled"));
	}
}

/* --- blocking ------------------------------------------------------------------------------ */

struct waiter {
	struct nbd_dial dial;
	struct ring_op cancel_op;
	struct ring_op warn_op;
	bool is_done;
	int err;
};

static void waiter_done(struct nbd_dial *dial, int err)
{
	struct waiter *waiter = container_of(dial, struct waiter, dial);

	waiter->is_done = true;
	waiter->err = err;
	ring_cancel(dial->ring, &waiter->cancel_op);
	ring_cancel(dial->ring, &waiter->warn_op);
}

static void warn_done(struct ring_op *op, int result)
{
	const struct waiter *waiter = container_of(op, struct waiter, warn_op);
	char label[EXPORT_URI_LABEL_BYTES];
	char text[EXPORT_URI_SILENT_BYTES];

	if (result == 0 && !waiter->is_done) {
		export_uri_label(label, waiter->dial.uri);
		log_warning(
			"%s", export_uri_silent(text, label, waiter->dial.timeout_ns / NS_PER_MS));
	}
}

static void cancel_done(struct ring_op *op, int result)
{
	struct waiter *waiter = container_of(op, struct waiter, cancel_op);

	if (result >= 0) {
		nbd_dial_cancel(&waiter->dial);
	}
}

/* Duplicates the socket, because the descriptor outlives the ring and its stream. */
static int take_socket(struct stream *stream, int *fd_out, struct error *error)
{
	int fd = fcntl(stream->file.fd, F_DUPFD_CLOEXEC, 0);
	int err = fd < 0 ? error_set(error, -errno, "no file descriptor left for a socket") : 0;

	*fd_out = fd;
	stream_close(stream);
	return err;
}

static int wait_on(struct ring *ring, struct waiter *waiter, const struct nbd_dial_options *options,
	int cancel_fd, struct error *error)
{
	waiter->is_done = false;
	nbd_dial_start(&waiter->dial, ring, options, waiter_done);
	if (cancel_fd >= 0) {
		ring_poll(ring, &waiter->cancel_op, cancel_fd, POLLIN, cancel_done);
	}
	if (options->warns && options->timeout_ns > EXPORT_URI_SILENT_MS * NS_PER_MS) {
		ring_timer(ring, &waiter->warn_op, EXPORT_URI_SILENT_MS * NS_PER_MS, warn_done);
	}
	while (!waiter->is_done || waiter->cancel_op.in_flight || waiter->warn_op.in_flight) {
		(void)ring_turn(ring, true);
	}
	if (waiter->err != 0) {
		*error = waiter->dial.error;
	}
	return waiter->err;
}

/* Tries the hosts of the URI until one answers. The handshake with the last one stays. */
static int wait_on_hosts(struct ring *ring, struct waiter *waiter,
	const struct nbd_dial_options *options, int cancel_fd, struct error *error)
{
	uint32_t hosts = export_uri_hosts(options->uri);
	uint64_t end_ns = ring_now_ns(ring) + options->timeout_ns;
	struct nbd_dial_options own = *options;
	struct error failures = { 0 };
	int err = 0;

	for (uint32_t i = 0; i < hosts; i++) {
		struct export_uri one = export_uri_at(options->uri, i);
		uint64_t now_ns = MIN(ring_now_ns(ring), end_ns);

		nbd_handshake_destroy(waiter->dial.handshake);
		waiter->dial.handshake = NULL;
		own.uri = &one;
		own.timeout_ns = (end_ns - now_ns) / (hosts - i);
		own.handshake.host = i;
		err = wait_on(ring, waiter, &own, cancel_fd, error);
		if (err == 0 || err == -ECANCELED) {
			return err;
		}
		error_join(&failures, error);
	}
	*error = failures;
	return err;
}

int nbd_dial_wait(const struct nbd_dial_options *options, int cancel_fd, int *fd_out,
	struct nbd_handshake **handshake_out, struct error *error)
{
	struct ring_options ring_options = { .entries = 8, .files_max = 1, .buffers_max = 1 };
	struct nbd_dial_options own = *options;
	struct waiter *waiter = calloc(1, sizeof(*waiter));
	struct ring *ring = NULL;
	int err = 0;

	/* A bare descriptor would be useless for a stream that is encrypted in user space. */
	GMB_ASSERT(!own.uri->tls || own.handshake.goal != NBD_GOAL_GO);
	*handshake_out = NULL;
	own.tls = NULL;
	if (waiter == NULL) {
		return error_oom(error);
	}
	if (own.uri->tls) {
		err = tls_client_create(own.uri, &own.tls, error);
	}
	err = err ?: ring_create(&ring_options, &ring, error);
	if (err == 0) {
		err = wait_on_hosts(ring, waiter, &own, cancel_fd, error);
		if (err == 0 && own.handshake.goal == NBD_GOAL_GO) {
			err = take_socket(&waiter->dial.stream, fd_out, error);
		}
		*handshake_out = waiter->dial.handshake;
	}
	/* The TLS client is destroyed first, because a TLS thread may still be in the call that
	 * notifies the ring about a handshake. */
	tls_client_destroy(own.tls);
	if (ring != NULL) {
		ring_destroy(ring);
	}
	free(waiter);
	return err;
}
