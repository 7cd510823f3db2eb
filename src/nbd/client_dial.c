// SPDX-License-Identifier: Apache-2.0
#include "nbd/client_dial.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* An idle server whose machine is gone is noticed within a minute. */
static const struct stream_keep_alive keep_alive = { .idle_s = 30, .interval_s = 10, .probes = 3 };

static const uint32_t dial_edges[] = {
	[NBD_DIAL_IDLE] = BIT(NBD_DIAL_CONNECTING),
	[NBD_DIAL_CONNECTING] = BIT(NBD_DIAL_SHAKING) | BIT(NBD_DIAL_ENDING),
	[NBD_DIAL_SHAKING] = BIT(NBD_DIAL_ENDING),
	[NBD_DIAL_ENDING] = BIT(NBD_DIAL_IDLE),
};

static void set_state(struct nbd_dial *dial, enum nbd_dial_state state)
{
	GMB_ASSERT((dial_edges[dial->state] & BIT(state)) != 0);
	dial->state = state;
}

/* --- the end ------------------------------------------------------------------------------- */

static void ending_step(struct nbd_dial *dial)
{
	if (dial->io_op.in_flight || dial->timer_op.in_flight ||
		dial->connector.state != CONNECTOR_IDLE || !stream_is_idle(dial->stream)) {
		return;
	}
	if (dial->result != 0 || dial->goal != NBD_GOAL_GO) {
		stream_close(dial->stream);
	}
	set_state(dial, NBD_DIAL_IDLE);
	dial->done(dial, dial->result);
}

/* From inside a completion, which leaves the last step to its caller. */
static void end(struct nbd_dial *dial, int err)
{
	set_state(dial, NBD_DIAL_ENDING);
	dial->result = err;
	ring_cancel(dial->ring, &dial->timer_op);
	connector_cancel(&dial->connector);
	if (err != 0 && dial->stream->state != STREAM_CLOSED) {
		stream_shutdown(dial->stream);
	}
}

static void fail(struct nbd_dial *dial, int err)
{
	char label[EXPORT_URI_LABEL_BYTES];

	error_prefix(&dial->error, "%s", export_uri_label(label, dial->uri));
	end(dial, err);
}

static void fail_at(struct nbd_dial *dial, int err, const char *doing)
{
	fail(dial, error_set(&dial->error, err, "%s failed: %s", doing, strerror(-err)));
}

/* --- the handshake ------------------------------------------------------------------------- */

static void sent(struct ring_op *op, int result);
static void received(struct ring_op *op, int result);

static void send_rest(struct nbd_dial *dial)
{
	dial->message = (struct msghdr){ .msg_iov = &dial->iov, .msg_iovlen = 1 };
	stream_send(dial->stream, &dial->io_op, &dial->message, sent);
}

/* The next step: say, listen, or end. */
static void go_on(struct nbd_dial *dial)
{
	struct nbd_handshake *handshake = dial->handshake;
	const uint8_t *output;
	int took;
	int err;

	if (dial->received_at < dial->received_bytes && !nbd_handshake_is_finished(handshake)) {
		took = nbd_handshake_input(handshake, dial->received + dial->received_at,
			dial->received_bytes - dial->received_at, &dial->error);
		if (took < 0) {
			fail(dial, took);
			return;
		}
		dial->received_at += (size_t)took;
	}
	output = nbd_handshake_output(handshake, &dial->iov.iov_len);
	if (dial->iov.iov_len > 0) {
		dial->iov.iov_base = (void *)(uintptr_t)output;
		send_rest(dial);
		return;
	}
	if (!nbd_handshake_is_finished(handshake)) {
		stream_receive(dial->stream, &dial->io_op, dial->received, sizeof(dial->received),
			false, received);
		return;
	}
	err = nbd_handshake_outcome(handshake, &dial->error);
	if (err == 0 && dial->goal == NBD_GOAL_GO && dial->received_at < dial->received_bytes) {
		err = error_set(&dial->error, -EPROTO,
			"the server speaks after the handshake without being asked");
	}
	if (err != 0) {
		fail(dial, err);
	} else {
		end(dial, 0);
	}
}

static void sent(struct ring_op *op, int result)
{
	struct nbd_dial *dial = container_of(op, struct nbd_dial, io_op);

	/* A server that has closed is no error: receiving tells why. */
	if (result == -EPIPE || result == -ECONNRESET) {
		result = (int)dial->iov.iov_len;
	}
	if (dial->state == NBD_DIAL_ENDING) {
		/* Nothing more is sent. */
	} else if (result < 0 && result != -EINTR) {
		fail_at(dial, result, "sending");
	} else {
		size_t part = result > 0 ? (size_t)result : 0;

		dial->iov.iov_base = (uint8_t *)dial->iov.iov_base + part;
		dial->iov.iov_len -= part;
		if (dial->iov.iov_len > 0) {
			send_rest(dial);
		} else {
			nbd_handshake_sent(dial->handshake);
			go_on(dial);
		}
	}
	if (dial->state == NBD_DIAL_ENDING) {
		ending_step(dial);
	}
}

static void received(struct ring_op *op, int result)
{
	struct nbd_dial *dial = container_of(op, struct nbd_dial, io_op);
	bool is_end = result == 0 || result == -ECONNRESET;
	int err = 0;

	if (dial->state == NBD_DIAL_ENDING) {
		ending_step(dial);
		return;
	}
	if (is_end) {
		err = nbd_handshake_end_of_stream(dial->handshake, &dial->error);
	}
	dial->received_at = 0;
	dial->received_bytes = result > 0 ? (size_t)result : 0;
	if (err != 0) {
		fail(dial, err);
	} else if (result < 0 && !is_end && result != -EINTR && result != -EAGAIN) {
		fail_at(dial, result, "receiving");
	} else {
		go_on(dial);
	}
	if (dial->state == NBD_DIAL_ENDING) {
		ending_step(dial);
	}
}

/* --- connecting and time ------------------------------------------------------------------- */

static void timer_done(struct ring_op *op, int result)
{
	struct nbd_dial *dial = container_of(op, struct nbd_dial, timer_op);

	GMB_UNUSED(result);
	if (dial->state == NBD_DIAL_SHAKING) {
		/* A server that does not answer our farewell has told everything before. */
		bool is_leaving = nbd_handshake_end_of_stream(dial->handshake, NULL) == 0;
		int err = is_leaving ? nbd_handshake_outcome(dial->handshake, &dial->error)
				     : error_set(&dial->error, -ETIMEDOUT,
					       "no success within %.3g s while waiting for %s",
					       (double)dial->timeout_ns / 1e9,
					       nbd_handshake_awaits(dial->handshake));

		if (err != 0) {
			fail(dial, err);
		} else {
			end(dial, 0);
		}
		stream_shutdown(dial->stream); /* ends the operation in flight */
	}
	if (dial->state == NBD_DIAL_ENDING) {
		ending_step(dial);
	}
}

static void connected(struct connector *connector, int err)
{
	struct nbd_dial *dial = container_of(connector, struct nbd_dial, connector);
	uint64_t now_ns = ring_now_ns(dial->ring);

	if (err == 0) {
		stream_open(dial->stream, dial->ring, connector->fd, &keep_alive);
	}
	if (dial->state == NBD_DIAL_ENDING) {
		if (err == 0) {
			stream_shutdown(dial->stream);
		}
	} else if (err != 0) {
		dial->error = connector->error; /* the sentence has the address already */
		end(dial, err);
	} else {
		set_state(dial, NBD_DIAL_SHAKING);
		ring_timer(dial->ring, &dial->timer_op,
			now_ns < dial->end_ns ? dial->end_ns - now_ns : 1, timer_done);
		go_on(dial);
	}
	if (dial->state == NBD_DIAL_ENDING) {
		ending_step(dial);
	}
}

void nbd_dial_start(struct nbd_dial *dial, struct ring *ring, struct stream *stream,
	const struct nbd_dial_options *options, void (*done)(struct nbd_dial *dial, int err))
{
	struct nbd_handshake_options handshake = options->handshake;
	int err;

	GMB_ASSERT(dial->state == NBD_DIAL_IDLE && stream->state == STREAM_CLOSED);
	handshake.export_name = options->uri->export_name;
	dial->ring = ring;
	dial->stream = stream;
	dial->done = done;
	dial->goal = handshake.goal;
	dial->uri = options->uri;
	dial->timeout_ns = options->timeout_ns;
	dial->end_ns = ring_now_ns(ring) + options->timeout_ns;
	dial->received_at = 0;
	dial->received_bytes = 0;
	dial->handshake = NULL;
	dial->error = (struct error){ 0 };
	set_state(dial, NBD_DIAL_CONNECTING);
	err = nbd_handshake_create(&handshake, &dial->handshake, &dial->error);
	if (err != 0) {
		set_state(dial, NBD_DIAL_ENDING);
		dial->result = err;
		ring_defer(ring, &dial->timer_op, 0, timer_done); /* done is called later */
		return;
	}
	connector_start(&dial->connector, ring, options->uri, options->timeout_ns, connected);
}

void nbd_dial_cancel(struct nbd_dial *dial)
{
	if (dial->state == NBD_DIAL_CONNECTING || dial->state == NBD_DIAL_SHAKING) {
		fail(dial, error_set(&dial->error, -ECANCELED, "cancelled"));
	}
}

/* --- blocking ------------------------------------------------------------------------------ */

struct waiter {
	struct nbd_dial dial;
	struct ring_op cancel_op;
	bool is_done;
	int err;
};

static void waiter_done(struct nbd_dial *dial, int err)
{
	struct waiter *waiter = container_of(dial, struct waiter, dial);

	waiter->is_done = true;
	waiter->err = err;
	ring_cancel(dial->ring, &waiter->cancel_op);
}

static void cancel_done(struct ring_op *op, int result)
{
	struct waiter *waiter = container_of(op, struct waiter, cancel_op);

	if (result >= 0) {
		nbd_dial_cancel(&waiter->dial);
	}
}

/* The descriptor outlives the ring and its stream. */
static int take_socket(struct stream *stream, int *fd_out, struct error *error)
{
	int fd = fcntl(stream->file.fd, F_DUPFD_CLOEXEC, 0);
	int err = fd < 0 ? error_set(error, -errno, "no descriptor for a socket is left") : 0;

	*fd_out = fd;
	stream_close(stream);
	return err;
}

static int wait_on(struct ring *ring, struct waiter *waiter, struct stream *stream,
	const struct nbd_dial_options *options, int cancel_fd, struct error *error)
{
	nbd_dial_start(&waiter->dial, ring, stream, options, waiter_done);
	if (cancel_fd >= 0) {
		ring_poll(ring, &waiter->cancel_op, cancel_fd, POLLIN, cancel_done);
	}
	while (!waiter->is_done || waiter->cancel_op.in_flight) {
		(void)ring_turn(ring, true);
	}
	if (waiter->err != 0) {
		*error = waiter->dial.error;
	}
	return waiter->err;
}

int nbd_dial_wait(const struct nbd_dial_options *options, int cancel_fd, int *fd_out,
	struct nbd_handshake **handshake_out, struct error *error)
{
	struct ring_options ring_options = { .entries = 8, .files_max = 1, .buffers_max = 1 };
	struct waiter *waiter = calloc(1, sizeof(*waiter));
	struct stream stream = { 0 };
	struct ring *ring;
	int err;

	*handshake_out = NULL;
	if (waiter == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	err = ring_create(&ring_options, &ring, error);
	if (err == 0) {
		err = wait_on(ring, waiter, &stream, options, cancel_fd, error);
		if (err == 0 && options->handshake.goal == NBD_GOAL_GO) {
			err = take_socket(&stream, fd_out, error);
		}
		*handshake_out = waiter->dial.handshake;
		ring_destroy(ring);
	}
	free(waiter);
	return err;
}
