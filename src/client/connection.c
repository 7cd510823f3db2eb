// SPDX-License-Identifier: Apache-2.0
/*
 * One connection, from dialing to its end:
 *
 *   IDLE ─▶ (BACKOFF) ─▶ DIALING ─▶ READY ─▶ CLOSING ─▶ IDLE, or BACKOFF again
 *
 * CLOSING waits until the kernel has given back every buffer: only then may commands go elsewhere.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_private.h"

#define NS_PER_MS UINT64_C(1000000)

/* Receives in a row before others have their turn. */
enum { RECEIVES_MAX = 16 };

static void receive_next(struct connection *connection);

static const uint32_t connection_edges[] = {
	[CONNECTION_IDLE] = BIT(CONNECTION_BACKOFF) | BIT(CONNECTION_DIALING),
	[CONNECTION_BACKOFF] = BIT(CONNECTION_DIALING) | BIT(CONNECTION_CLOSING),
	[CONNECTION_DIALING] = BIT(CONNECTION_READY) | BIT(CONNECTION_CLOSING),
	[CONNECTION_READY] = BIT(CONNECTION_CLOSING),
	[CONNECTION_CLOSING] = BIT(CONNECTION_IDLE),
};

static void set_state(struct connection *connection, enum connection_state state)
{
	GMB_ASSERT((connection_edges[connection->state] & BIT(state)) != 0);
	connection->state = state;
}

int connection_create(struct gmb_client *client, struct connection **connection_out)
{
	struct connection *connection = calloc(1, sizeof(*connection));

	if (connection == NULL) {
		return -ENOMEM;
	}
	connection->client = client;
	*connection_out = connection;
	return 0;
}

void connection_destroy(struct connection *connection)
{
	if (connection != NULL) {
		GMB_ASSERT(connection->state == CONNECTION_IDLE);
		free(connection);
	}
}

static struct ring *ring_of(const struct connection *connection)
{
	return connection->client->queue->ring;
}

bool connection_has_room(const struct connection *connection)
{
	return connection->state == CONNECTION_READY && !connection->draining &&
	       connection->nbd.call_count < connection->client->options.depth;
}

void connection_add(struct connection *connection, struct command *command)
{
	if (connection->nbd.call_count == 0) {
		connection->heard_ns = ring_now_ns(ring_of(connection)); /* silence begins here */
	}
	nbd_client_add(&connection->nbd, &command->call);
	connection->client->stats.commands++;
}

/* --- the end ------------------------------------------------------------------------------- */

/* Commands that the server did not answer go back to the client, before those that wait. */
static void give_back_commands(struct connection *connection)
{
	struct gmb_client *client = connection->client;
	struct list_node *before = client->replays.next;
	struct nbd_call *call;
	bool was_sent;
	bool unanswered = false;

	while ((call = nbd_client_take_back(&connection->nbd, &was_sent)) != NULL) {
		struct command *command = container_of(call, struct command, call);

		request_command_again(command);
		client->stats.commands_replayed += was_sent;
		unanswered |= was_sent;
		list_insert_before(before, &command->node);
	}
	if (unanswered) {
		client_take_over(client, connection->number);
	}
	client->stats.bytes_moved += connection->nbd.moved_bytes;
	nbd_client_fini(&connection->nbd);
	memset(&connection->nbd, 0, sizeof(connection->nbd));
}

static bool anything_in_flight(const struct connection *connection)
{
	return connection->recv_op.in_flight || connection->send_op.in_flight ||
	       connection->timer_op.in_flight || connection->dial.state != NBD_DIAL_IDLE ||
	       !stream_is_idle(&connection->stream);
}

/* The last step of CLOSING. */
static void closing_step(struct connection *connection)
{
	GMB_ASSERT(connection->state == CONNECTION_CLOSING);
	if (anything_in_flight(connection)) {
		return;
	}
	stream_close(&connection->stream);
	if (connection->nbd.handler != NULL) {
		give_back_commands(connection);
	}
	connection->draining = false;
	set_state(connection, CONNECTION_IDLE);
	if (!connection->leaving) {
		client_connection_lost(connection->client, connection);
	}
	connection->leaving = false;
}

/* Ends whatever goes on; connection->reason says why. */
static void begin_closing(struct connection *connection)
{
	struct ring *ring = ring_of(connection);

	if (connection->state == CONNECTION_CLOSING || connection->state == CONNECTION_IDLE) {
		return;
	}
	if (connection->state == CONNECTION_READY) {
		/* Commands that are not at the server yet must not get there any more. */
		if (connection->nbd.call_count > 0) {
			stream_abort(&connection->stream);
		} else {
			stream_shutdown(&connection->stream);
		}
	}
	set_state(connection, CONNECTION_CLOSING);
	ring_cancel(ring, &connection->timer_op);
	if (connection->recv_op.in_flight && connection->recv_op.code == RING_POLL) {
		ring_cancel(ring, &connection->recv_op);
	}
	nbd_dial_cancel(&connection->dial);
	closing_step(connection);
}

static void lose(struct connection *connection, int err, const char *why)
{
	if (connection->state != CONNECTION_CLOSING) {
		char label[NBD_URI_LABEL_BYTES];

		error_set(&connection->reason, err, "%s: %s",
			nbd_uri_label(label, &connection->client->uri), why);
		begin_closing(connection);
	}
}

void connection_lose(struct connection *connection, const struct error *error)
{
	lose(connection, error->code, error->text);
}

/* --- time limits --------------------------------------------------------------------------- */

static void timer_done(struct ring_op *op, int result);

static void timer_set(struct connection *connection, uint64_t delay_ns)
{
	ring_timer(ring_of(connection), &connection->timer_op, delay_ns, timer_done);
}

static void silence_check(struct connection *connection)
{
	uint64_t limit_ns = connection->client->options.request_timeout_ms * NS_PER_MS;
	uint64_t silent_ns = ring_now_ns(ring_of(connection)) - connection->heard_ns;

	if (connection->nbd.call_count == 0) {
		return; /* set again when commands are sent */
	}
	if (silent_ns < limit_ns) {
		timer_set(connection, limit_ns - silent_ns);
	} else {
		lose(connection, -ETIMEDOUT, "the server has not answered for too long");
	}
}

static void dial(struct connection *connection);

static void timer_done(struct ring_op *op, int result)
{
	struct connection *connection = container_of(op, struct connection, timer_op);

	GMB_UNUSED(result);
	switch (connection->state) {
	case CONNECTION_CLOSING:
		closing_step(connection);
		break;
	case CONNECTION_BACKOFF:
		dial(connection);
		break;
	case CONNECTION_READY:
		silence_check(connection);
		break;
	case CONNECTION_IDLE:
	case CONNECTION_DIALING:
		break;
	}
}

/* --- receiving ----------------------------------------------------------------------------- */

static void poll_done(struct ring_op *op, int result)
{
	struct connection *connection = container_of(op, struct connection, recv_op);

	GMB_UNUSED(result);
	if (connection->state == CONNECTION_CLOSING) {
		closing_step(connection);
	} else {
		receive_next(connection);
	}
}

/* Takes the result of a receive into the last layout. False when there is nothing more to do. */
static bool received(struct connection *connection, ssize_t got)
{
	struct error error = { 0 };
	int err;

	if (got == -EINTR || got == -EAGAIN) {
		nbd_client_input_drop(&connection->nbd);
		return false;
	}
	if (got <= 0) {
		nbd_client_input_drop(&connection->nbd);
		lose(connection, got == 0 ? -ECONNRESET : (int)got,
			got == 0 ? "the server closed the connection" : strerror((int)-got));
		return false;
	}
	connection->heard_ns = ring_batch_ns(ring_of(connection));
	err = nbd_client_received(&connection->nbd, (size_t)got, &error);
	if (err != 0) {
		connection_lose(connection, &error);
		return false;
	}
	/* A full layout means that there may be more. */
	return (size_t)got == connection->in_bytes && connection->nbd.call_count > 0;
}

static bool lay_out(struct connection *connection)
{
	const struct iovec *iov;
	uint32_t count;
	bool whole;

	iov = nbd_client_input(&connection->nbd, &count, &connection->in_bytes, &whole);
	connection->in = (struct msghdr){
		.msg_iov = (struct iovec *)(uintptr_t)iov,
		.msg_iovlen = count,
	};
	return whole;
}

/* Receives what is there, without waiting. */
static void receive_next(struct connection *connection)
{
	for (int i = 0; i < RECEIVES_MAX; i++) {
		(void)lay_out(connection);
		if (!received(
			    connection, stream_receive_now(&connection->stream, &connection->in))) {
			break;
		}
	}
}

static void recv_done(struct ring_op *op, int result)
{
	struct connection *connection = container_of(op, struct connection, recv_op);

	if (connection->state == CONNECTION_CLOSING) {
		nbd_client_input_drop(&connection->nbd);
		closing_step(connection);
	} else if (received(connection, result)) {
		receive_next(connection);
	}
}

/* Sees to it that we hear of the next bytes. */
static void receive_arm(struct connection *connection)
{
	struct ring *ring = ring_of(connection);

	if (connection->recv_op.in_flight) {
		return;
	}
	if (connection->nbd.call_count == 0) {
		/* Where the next payload goes is not known yet. */
		ring_poll(
			ring, &connection->recv_op, connection->stream.file.fd, POLLIN, poll_done);
	} else {
		bool whole = lay_out(connection);

		stream_receive_message(&connection->stream, &connection->recv_op, &connection->in,
			whole, recv_done);
	}
}

/* --- sending ------------------------------------------------------------------------------- */

static void send_done(struct ring_op *op, int result)
{
	struct connection *connection = container_of(op, struct connection, send_op);

	if (connection->state == CONNECTION_CLOSING) {
		closing_step(connection);
	} else if (result >= 0) {
		/* The socket was full and has taken bytes again: the server is not silent. */
		connection->heard_ns = ring_batch_ns(ring_of(connection));
		nbd_client_sent(&connection->nbd, (size_t)result);
	} else if (result != -EINTR && result != -EAGAIN) {
		lose(connection, result, strerror(-result));
	}
}

static void send_some(struct connection *connection)
{
	while (connection->state == CONNECTION_READY && !connection->send_op.in_flight) {
		uint32_t count = nbd_client_output(
			&connection->nbd, connection->out_iov, NBD_CLIENT_IOV_MAX);
		ssize_t sent;

		if (count == 0) {
			break;
		}
		connection->out = (struct msghdr){
			.msg_iov = connection->out_iov,
			.msg_iovlen = count,
		};
		sent = stream_send_now(&connection->stream, &connection->out);
		if (sent >= 0) {
			nbd_client_sent(&connection->nbd, (size_t)sent);
		} else if (sent == -EAGAIN) {
			stream_send(&connection->stream, &connection->send_op, &connection->out,
				send_done);
		} else if (sent != -EINTR) {
			lose(connection, (int)sent, strerror((int)-sent));
		}
	}
}

void connection_flush(struct connection *connection)
{
	if (connection->state != CONNECTION_READY) {
		return;
	}
	if (connection->nbd.call_count > 0 && !connection->timer_op.in_flight) {
		timer_set(connection, connection->client->options.request_timeout_ms * NS_PER_MS);
	}
	send_some(connection);
	/* Here, because the last answer may have come before its request was sent. */
	if (connection->draining && connection->nbd.call_count == 0) {
		lose(connection, -ESHUTDOWN, "the server is shutting down");
	}
	if (connection->state == CONNECTION_READY) {
		receive_arm(connection);
	}
}

/* --- replies ------------------------------------------------------------------- */

static void call_done(struct nbd_client *nbd, struct nbd_call *call)
{
	struct connection *connection = container_of(nbd, struct connection, nbd);
	struct gmb_client *client = connection->client;
	struct command *command = container_of(call, struct command, call);

	if (call->result == -ESHUTDOWN && client->state == CLIENT_OPEN &&
		(client->options.flags & GMB_OPEN_NO_RECONNECT) == 0) {
		/* Another server, or this one after its restart, will do it (rule P127). */
		connection->draining = true;
		request_command_again(command);
		list_push_back(&client->replays, &command->node);
		return;
	}
	client_progress(client, connection);
	request_command_done(client, command, nbd->text);
}

static void call_hole(
	struct nbd_client *nbd, struct nbd_call *call, uint64_t offset, uint64_t length)
{
	GMB_UNUSED(nbd);
	request_hole(container_of(call, struct command, call), offset, length);
}

static void call_extent(
	struct nbd_client *nbd, struct nbd_call *call, uint64_t length, uint32_t flags)
{
	GMB_UNUSED(nbd);
	request_extent(container_of(call, struct command, call), length, flags);
}

static const struct nbd_client_handler nbd_client_handler = {
	.done = call_done,
	.hole = call_hole,
	.extent = call_extent,
};

/* --- handshake ----------------------------------------------------------------------------- */

static void become_ready(struct connection *connection)
{
	struct error error = { 0 };
	int err;

	nbd_client_init(&connection->nbd, &nbd_client_handler, &connection->facts,
		ring_random(ring_of(connection)) >> 16);
	set_state(connection, CONNECTION_READY);
	connection->was_ready = true;
	err = client_connection_ready(connection->client, connection, &error);
	if (err != 0) {
		connection_lose(connection, &error);
	}
}

/* --- dialing ------------------------------------------------------------------------------- */

static enum nbd_reply_style style_max(const struct gmb_client *client)
{
	if ((client->options.flags & GMB_OPEN_SIMPLE) != 0) {
		return NBD_REPLIES_SIMPLE;
	}
	return (client->options.flags & GMB_OPEN_NO_EXTENDED) != 0 ? NBD_REPLIES_STRUCTURED
								   : NBD_REPLIES_EXTENDED;
}

static void dialed(struct nbd_dial *dial, int err)
{
	struct connection *connection = container_of(dial, struct connection, dial);

	if (err == 0) {
		connection->facts = *nbd_handshake_facts(dial->handshake);
	}
	nbd_handshake_destroy(dial->handshake);
	dial->handshake = NULL;
	if (connection->state == CONNECTION_CLOSING) {
		closing_step(connection);
	} else if (err == 0) {
		become_ready(connection);
	} else {
		connection->reason = dial->error; /* the sentence has the address already */
		begin_closing(connection);
	}
}

/* Introduces the connection: which one it is, and which it replaces. */
static void dial(struct connection *connection)
{
	struct gmb_client *client = connection->client;
	char names[1 + CLIENT_LOST_MAX][NBD_HANDSHAKE_TOKEN_BYTES_MAX];
	const char *replaces[CLIENT_LOST_MAX];
	struct nbd_dial_options options = {
		.uri = &client->uri,
		.timeout_ns = client->options.connect_timeout_ms * NS_PER_MS,
		.handshake = {
			.goal = NBD_GOAL_GO,
			.style_max = style_max(client),
			.token = names[0],
			.replaces = replaces,
			.replaces_count = client->lost_count,
		},
	};

	connection->number = client->number_next++;
	snprintf(names[0], sizeof(names[0]), "%s.%u", client->token, connection->number);
	connection->replaces_count = client->lost_count;
	for (uint32_t i = 0; i < client->lost_count; i++) {
		connection->replaces[i] = client->lost[i];
		snprintf(names[1 + i], sizeof(names[0]), "%s.%u", client->token, client->lost[i]);
		replaces[i] = names[1 + i];
	}
	set_state(connection, CONNECTION_DIALING);
	nbd_dial_start(
		&connection->dial, ring_of(connection), &connection->stream, &options, dialed);
}

void connection_start(struct connection *connection, uint64_t delay_ns)
{
	GMB_ASSERT(connection->state == CONNECTION_IDLE);
	connection->leaving = false;
	if (delay_ns == 0) {
		dial(connection);
	} else {
		set_state(connection, CONNECTION_BACKOFF);
		timer_set(connection, delay_ns);
	}
}

void connection_leave(struct connection *connection)
{
	if (connection->state == CONNECTION_IDLE) {
		return;
	}
	connection->leaving = true;
	connection->was_ready = false;
	if (connection->state == CONNECTION_READY && connection->nbd.call_count == 0) {
		uint8_t bytes[NBD_CLIENT_FAREWELL_BYTES_MAX];
		struct iovec iov = { .iov_base = bytes };
		struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

		/* 32 bytes fit in the buffer of an idle connection, or it is not worth waiting. */
		iov.iov_len = nbd_client_farewell(connection->nbd.facts->style, bytes);
		(void)!stream_send_now(&connection->stream, &message);
		stream_shutdown_send(&connection->stream);
	}
	begin_closing(connection);
}
