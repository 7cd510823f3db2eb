// SPDX-License-Identifier: Apache-2.0
#include "attach/nbd_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

enum {
	FLOW_BYTES = 256 << 10,
	FAREWELL_S = 2, /* seconds until the server must have closed, after the driver has closed */
};

#define NS_PER_S UINT64_C(1000000000)

/* One direction of a relay. */
struct flow {
	struct nbd_relay *relay;
	struct stream *from;
	struct stream *to;
	struct ring_op receive_op;
	struct ring_op send_op;
	struct iovec iov;
	struct msghdr message;
	uint8_t bytes[FLOW_BYTES];
};

struct nbd_relay {
	const struct nbd_relay_options *options; /* valid until dialing has ended */
	pthread_t thread;
	sem_t dialled;
	int result;
	int fd; /* socket for the driver */
	bool is_handed_over;

	/* Members used only by the relay's thread. */
	struct ring *ring;
	struct nbd_dial dial;
	bool has_dialled;
	struct stream driver;
	struct ring_op cancel_op;
	struct ring_op stop_op;
	struct ring_op timer_op;
	int stop_fd;
	_Atomic bool is_leaving; /* set by nbd_relay_leave() */
	bool is_ending;
	char label[EXPORT_URI_LABEL_BYTES];
	struct flow flows[2];
};

/* --- carrying bytes --------------------------------------------------------------------------- */

static void stop_waiting(struct nbd_relay *relay)
{
	relay->is_ending = true;
	ring_cancel(relay->ring, &relay->stop_op);
	ring_cancel(relay->ring, &relay->timer_op);
}

static void attach_nbd_relay_end(struct nbd_relay *relay)
{
	stop_waiting(relay);
	stream_shutdown(&relay->dial.stream);
	stream_shutdown(&relay->driver);
}

static void nbd_relay_fail(struct nbd_relay *relay, const struct stream *stream, int err)
{
	const struct error *error = &(const struct error){ 0 };

	if (relay->is_ending) {
		return;
	}
	if (stream == &relay->dial.stream) {
		error = tls_layer_error(stream);
		log_warning(
			"%s: %s", relay->label, error->code != 0 ? error->text : strerror(-err));
	}
	attach_nbd_relay_end(relay);
}

static void farewell_over(struct ring_op *op, int result)
{
	if (result == 0) {
		attach_nbd_relay_end(container_of(op, struct nbd_relay, timer_op));
	}
}

static void limit_farewell(struct nbd_relay *relay)
{
	if (!relay->timer_op.in_flight) {
		ring_timer(relay->ring, &relay->timer_op, FAREWELL_S * NS_PER_S, farewell_over);
	}
}

/* Called when one side sends no further data and its data was forwarded. If it is the server, the
 * relay ends; otherwise the server gets the end of the stream and a time limit to close. */
static void flow_end(struct flow *flow)
{
	struct nbd_relay *relay = flow->relay;

	if (relay->is_ending) {
		return;
	}
	if (flow->from == &relay->dial.stream) {
		attach_nbd_relay_end(relay);
	} else {
		stream_shutdown_send(flow->to);
		limit_farewell(relay);
	}
}

static void flow_receive(struct flow *flow);
static void flow_send(struct flow *flow);

static void flow_sent(struct ring_op *op, int result)
{
	struct flow *flow = container_of(op, struct flow, send_op);

	if (result < 0 && result != -EINTR && result != -EAGAIN) {
		nbd_relay_fail(flow->relay, flow->to, result);
		return;
	}
	flow->iov.iov_base = (uint8_t *)flow->iov.iov_base + MAX(result, 0);
	flow->iov.iov_len -= (size_t)MAX(result, 0);
	if (flow->iov.iov_len > 0) {
		flow_send(flow);
	} else {
		flow_receive(flow);
	}
}

static void flow_send(struct flow *flow)
{
	flow->message = (struct msghdr){ .msg_iov = &flow->iov, .msg_iovlen = 1 };
	stream_send(flow->to, &flow->send_op, &flow->message, flow_sent);
}

static void flow_received(struct ring_op *op, int result)
{
	struct flow *flow = container_of(op, struct flow, receive_op);

	if (result > 0) {
		flow->iov = (struct iovec){ .iov_base = flow->bytes, .iov_len = (size_t)result };
		flow_send(flow);
	} else if (result == 0) {
		flow_end(flow);
	} else if (result == -EINTR || result == -EAGAIN) {
		flow_receive(flow);
	} else {
		nbd_relay_fail(flow->relay, flow->from, result);
	}
}

static void flow_receive(struct flow *flow)
{
	if (!flow->relay->is_ending) {
		stream_receive(flow->from, &flow->receive_op, flow->bytes, FLOW_BYTES, false,
			flow_received);
	}
}

static void stop_asked(struct ring_op *op, int result)
{
	struct nbd_relay *relay = container_of(op, struct nbd_relay, stop_op);

	if (relay->is_ending || result < 0) {
		return;
	}
	if (atomic_load(&relay->is_leaving)) {
		/* data that the driver sent before can still be received */
		stream_shutdown(&relay->driver);
		limit_farewell(relay);
	} else {
		attach_nbd_relay_end(relay);
	}
}

static bool nbd_relay_is_busy(const struct nbd_relay *relay)
{
	for (size_t i = 0; i < ARRAY_COUNT(relay->flows); i++) {
		if (relay->flows[i].receive_op.in_flight || relay->flows[i].send_op.in_flight) {
			return true;
		}
	}
	return !relay->is_ending || relay->stop_op.in_flight || relay->timer_op.in_flight ||
	       !stream_is_idle(&relay->dial.stream) || !stream_is_idle(&relay->driver);
}

static void nbd_relay_carry(struct nbd_relay *relay)
{
	struct stream *ends[] = { &relay->driver, &relay->dial.stream };

	ring_poll(relay->ring, &relay->stop_op, relay->stop_fd, POLLIN, stop_asked);
	for (size_t i = 0; i < ARRAY_COUNT(ends); i++) {
		relay->flows[i].relay = relay;
		relay->flows[i].from = ends[i];
		relay->flows[i].to = ends[!i];
		flow_receive(&relay->flows[i]);
	}
	while (nbd_relay_is_busy(relay)) {
		(void)ring_turn(relay->ring, true);
	}
	stream_close(&relay->driver);
	stream_close(&relay->dial.stream);
}

/* --- dialling --------------------------------------------------------------------------------- */

static void dial_done(struct nbd_dial *dial, int err)
{
	struct nbd_relay *relay = container_of(dial, struct nbd_relay, dial);

	relay->has_dialled = true;
	relay->result = err;
	ring_cancel(relay->ring, &relay->cancel_op);
}

static void cancelled(struct ring_op *op, int result)
{
	if (result >= 0) {
		nbd_dial_cancel(&container_of(op, struct nbd_relay, cancel_op)->dial);
	}
}

static int hand_over(struct nbd_relay *relay, struct error *error)
{
	relay->fd = fcntl(relay->dial.stream.file.fd, F_DUPFD_CLOEXEC, 0);
	if (relay->fd < 0) {
		return error_set(error, -errno, "cannot duplicate the socket descriptor");
	}
	relay->is_handed_over = true;
	return 0;
}

static int make_pair(struct nbd_relay *relay, struct error *error)
{
	static const struct stream_keep_alive no_keep_alive = { 0 };
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
		return error_set(error, -errno, "cannot create a socket pair for the driver: %s",
			strerror(errno));
	}
	relay->fd = fds[0];
	stream_open(&relay->driver, relay->ring, fds[1], &no_keep_alive);
	return 0;
}

static int dial(struct nbd_relay *relay)
{
	const struct nbd_relay_options *options = relay->options;
	struct error *error = &relay->dial.error;
	struct stream *server = &relay->dial.stream;
	int rc;

	nbd_dial_start(&relay->dial, relay->ring, &options->dial, dial_done);
	if (options->cancel_fd >= 0) {
		ring_poll(relay->ring, &relay->cancel_op, options->cancel_fd, POLLIN, cancelled);
	}
	while (!relay->has_dialled || relay->cancel_op.in_flight) {
		(void)ring_turn(relay->ring, true);
	}
	if (relay->result != 0) {
		return relay->result;
	}
	options->prepare(server->file.fd, options->socket_options);
	rc = options->hands_over && strcmp(tls_layer_facts(server).records, "kernel") == 0
		     ? hand_over(relay, error)
		     : make_pair(relay, error);
	if (rc != 0 || relay->is_handed_over) {
		/* No operation is in flight. stream_close() sends no TLS alert, because the stream
		 * belongs to the driver now. */
		stream_close(server);
	}
	return rc;
}

static void *nbd_relay_run(void *argument)
{
	struct ring_options ring_options = { .entries = 16, .files_max = 2, .buffers_max = 1 };
	struct nbd_relay *relay = argument;
	bool carries;

	relay->result = ring_create(&ring_options, &relay->ring, &relay->dial.error);
	if (relay->result == 0) {
		relay->result = dial(relay);
	}
	carries = relay->result == 0 && !relay->is_handed_over;
	sem_post(&relay->dialled); /* the options are invalid from here on */
	if (carries) {
		nbd_relay_carry(relay);
	}
	if (relay->ring != NULL) {
		/* the pool itself stays, because other connections use it */
		tls_pool_synchronize(tls_client_pool(relay->dial.tls));
		ring_destroy(relay->ring);
	}
	return NULL;
}

/* --- life cycle ------------------------------------------------------------------------------- */

static void relay_free(struct nbd_relay *relay)
{
	close(relay->stop_fd);
	sem_destroy(&relay->dialled);
	free(relay);
}

int nbd_relay_dial(const struct nbd_relay_options *options, int *fd_out,
	struct nbd_relay **relay_out, struct nbd_handshake **handshake_out, struct error *error)
{
	struct nbd_relay *relay = calloc(1, sizeof(*relay));
	int rc;

	*handshake_out = NULL;
	*relay_out = NULL;
	if (relay == NULL) {
		return error_oom(error);
	}
	relay->options = options;
	export_uri_label(relay->label, options->dial.uri);
	sem_init(&relay->dialled, 0, 0);
	relay->stop_fd = eventfd(0, EFD_CLOEXEC);
	rc = relay->stop_fd < 0 ? error_set(error, -errno, "cannot create an event descriptor")
				: thread_start(&relay->thread, nbd_relay_run, relay, error);
	if (rc != 0) {
		relay_free(relay);
		return rc;
	}
	while (sem_wait(&relay->dialled) != 0) {
		GMB_ASSERT(errno == EINTR);
	}
	rc = relay->result;
	*handshake_out = relay->dial.handshake;
	if (rc == 0) {
		*fd_out = relay->fd;
	} else {
		*error = relay->dial.error;
	}
	if (rc == 0 && !relay->is_handed_over) {
		*relay_out = relay;
		return 0;
	}
	pthread_join(relay->thread, NULL);
	relay_free(relay);
	return rc;
}

void nbd_relay_leave(struct nbd_relay *relay)
{
	if (relay != NULL) {
		/* Stored before the event is signalled, so that stop_asked(), which reads it after
		 * the event, sees it. */
		atomic_store(&relay->is_leaving, true);
		(void)eventfd_write(relay->stop_fd, 1);
	}
}

void nbd_relay_end(struct nbd_relay *relay)
{
	if (relay != NULL) {
		if (!atomic_load(&relay->is_leaving)) {
			(void)eventfd_write(relay->stop_fd, 1);
		}
		pthread_join(relay->thread, NULL);
		relay_free(relay);
	}
}
