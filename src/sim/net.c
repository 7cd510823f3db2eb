// SPDX-License-Identifier: Apache-2.0
/*
 * Simulated stream sockets. Each direction is a bounded pipe whose bytes arrive after a delay:
 *
 *      head                visible          used            capacity
 *       │ readable now       │ in flight      │ free for the   │
 *       └────────────────────┴────────────────┴─ sender ───────┘
 *
 * A send copies its bytes into the pipe in pieces, at random times. A receive takes readable bytes
 * out of the pipe in the same way. So both access their buffers late and in pieces. See sim.h for
 * the fault model.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "sim/sim_internal.h"

enum {
	SIM_SOCKET_BUFFER_MIN = 4096,
	SIM_SOCKET_BUFFER_MAX = 262144,
	SIM_SEGMENT_BYTES_MAX = 131072,
};

struct sim_pipe {
	uint8_t *bytes;
	size_t allocated;
	size_t capacity; /* limit for sends; sim_socket_write() may exceed the limit */
	size_t head;
	size_t used;
	size_t visible;
	bool finished; /* the end of the stream has arrived: the sender has closed its direction */
	bool dead;     /* no more data will arrive */
	bool held;     /* the link is down: no data arrives */
	size_t held_bytes;
	bool held_end;
	bool held_reset;
	uint64_t last_arrival_ns;
	uint64_t cut_left; /* bytes until the break that sim_socket_cut() has planned */
	bool cut_planned;
	enum sim_cut cut;
};

struct sim_socket {
	struct list_node node; /* in world.sockets */
	struct sim_socket *peer;
	int fd;
	bool open;
	bool shut_receive;
	bool shut_send;
	bool reset; /* a reset that the next operation reports */
	bool has_credentials;
	struct ucred credentials;
	bool recv_queued;
	bool send_queued;
	struct sim_pipe in; /* data from the peer to this socket */
	struct sim_op *recv;
	struct sim_op *send;
	struct list_node polls;
	void (*watch)(void *arg); /* see sim_socket_watch(); NULL: none */
	void *watch_arg;
};

struct sim_listener {
	struct list_node node; /* in world.listeners */
	int fd;
	int pending[SIM_LISTENER_QUEUE_MAX]; /* sockets that were not accepted yet */
	uint32_t pending_count;
	struct sim_op *accept;
};

static void recv_kick(struct sim_socket *socket);
static void send_kick(struct sim_socket *socket);
static void room_made(struct sim_socket *socket);
static void polls_kick(struct sim_socket *socket);

/* --- pipes ---------------------------------------------------------------------------------- */

static void pipe_reserve(struct sim_pipe *pipe, size_t bytes)
{
	size_t allocated = pipe->allocated;
	uint8_t *moved;

	if (bytes <= allocated) {
		return;
	}
	allocated = MAX(bytes, allocated * 2);
	moved = malloc(allocated);
	GMB_ASSERT(moved != NULL);
	for (size_t i = 0; i < pipe->used; i++) {
		moved[i] = pipe->bytes[(pipe->head + i) % pipe->allocated];
	}
	free(pipe->bytes);
	pipe->bytes = moved;
	pipe->allocated = allocated;
	pipe->head = 0;
}

/* Returns the contiguous free range behind the last byte, at most len bytes. */
static uint8_t *pipe_tail(const struct sim_pipe *pipe, size_t *len)
{
	size_t tail = (pipe->head + pipe->used) % pipe->allocated;

	*len = MIN(*len, pipe->allocated - tail);
	*len = MIN(*len, pipe->allocated - pipe->used);
	return pipe->bytes + tail;
}

static void pipe_drop(struct sim_pipe *pipe, size_t len)
{
	GMB_ASSERT(len <= pipe->visible);
	pipe->head = (pipe->head + len) % pipe->allocated;
	pipe->used -= len;
	pipe->visible -= len;
}

/* Discards all data in flight. */
static void pipe_kill(struct sim_pipe *pipe)
{
	pipe->dead = true;
	pipe->used = pipe->visible;
}

/* Returns the delay of the next arrival, which is not before earlier arrivals. */
static uint64_t pipe_arrival_delay(struct sim_pipe *pipe)
{
	uint64_t at = sim_world.now_ns + sim_delay_network();

	pipe->last_arrival_ns = MAX(at, pipe->last_arrival_ns);
	return pipe->last_arrival_ns - sim_world.now_ns;
}

static void both_reset(struct sim_socket *socket)
{
	struct sim_socket *sides[2] = { socket, socket->peer };

	for (int i = 0; i < 2; i++) {
		sides[i]->reset = true;
		pipe_kill(&sides[i]->in);
	}
	for (int i = 0; i < 2; i++) {
		recv_kick(sides[i]);
		send_kick(sides[i]);
		polls_kick(sides[i]);
	}
}

static void stream_ended(void *arg, uint64_t value)
{
	struct sim_socket *socket = arg;

	if (socket->in.held) {
		socket->in.held_end = true;
		return;
	}
	if (!socket->in.dead) {
		pipe_kill(&socket->in);
	}
	socket->in.finished = true;
	recv_kick(socket);
	polls_kick(socket);
}

/* Breaks the connection at the byte of the data to `socket` that sim_socket_cut() chose. */
static void cut_now(struct sim_socket *socket, enum sim_cut cut)
{
	sim_trace("cut", (uint64_t)socket->fd, (uint64_t)cut, 0);
	switch (cut) {
	case SIM_CUT_RESET:
		both_reset(socket);
		break;
	case SIM_CUT_CLOSE:
		stream_ended(socket, 0);
		stream_ended(socket->peer, 0);
		break;
	case SIM_CUT_HALF_CLOSE:
		stream_ended(socket, 0);
		break;
	}
}

static void bytes_arrive(void *arg, uint64_t value)
{
	struct sim_socket *socket = arg;
	struct sim_pipe *pipe = &socket->in;
	size_t bytes = (size_t)value;

	if (pipe->dead || !socket->open) {
		return;
	}
	if (pipe->held) {
		pipe->held_bytes += bytes;
		return;
	}
	bytes = MIN(bytes, pipe->used - pipe->visible);
	if (pipe->cut_planned && bytes >= pipe->cut_left) {
		pipe->visible += (size_t)pipe->cut_left;
		pipe->cut_planned = false;
		cut_now(socket, pipe->cut);
		return;
	}
	if (pipe->cut_planned) {
		pipe->cut_left -= bytes;
	}
	pipe->visible += bytes;
	recv_kick(socket);
	polls_kick(socket);
}

static void queue_end(struct sim_socket *to)
{
	sim_event_add(pipe_arrival_delay(&to->in), stream_ended, to, 0);
}

static int take_reset(struct sim_socket *socket)
{
	socket->reset = false;
	socket->shut_receive = true;
	socket->shut_send = true;
	return -ECONNRESET;
}

/* --- receiving ------------------------------------------------------------------------------ */

static void recv_finish(struct sim_socket *socket, int result)
{
	struct sim_op *sop = socket->recv;

	socket->recv = NULL;
	sim_op_complete(sop, result, sim_delay_short());
}

/* Completes a receive that cannot get more data. Returns false if it must wait. */
static bool recv_ended(struct sim_socket *socket)
{
	struct sim_op *sop = socket->recv;

	if (sop->cancelled) {
		recv_finish(socket, sop->moved > 0 ? (int)sop->moved : -ECANCELED);
		return true;
	}
	if (socket->reset) {
		recv_finish(socket, sop->moved > 0 ? (int)sop->moved : take_reset(socket));
		return true;
	}
	if (socket->in.finished || socket->shut_receive) {
		recv_finish(socket, (int)sop->moved);
		return true;
	}
	return false;
}

static void recv_pump(void *arg, uint64_t value)
{
	struct sim_socket *socket = arg;
	struct sim_op *sop = socket->recv;
	struct sim_pipe *pipe = &socket->in;
	size_t left;

	socket->recv_queued = false;
	if (sop == NULL) {
		return;
	}
	if (pipe->visible == 0 || sop->cancelled) {
		recv_ended(socket);
		return;
	}
	if (sop->planned_error != 0 && sop->moved == 0) {
		recv_finish(socket, sop->planned_error);
		return;
	}
	left = sim_partial(MIN(sop->len - sop->moved, pipe->visible));
	while (left > 0) {
		size_t bytes = MIN(left, pipe->allocated - pipe->head);

		sim_op_scatter(sop, sop->moved, pipe->bytes + pipe->head, bytes);
		pipe_drop(pipe, bytes);
		sop->moved += bytes;
		left -= bytes;
	}
	room_made(socket->peer);
	polls_kick(socket->peer);
	if (sop->moved == sop->len || !sop->wait_all) {
		recv_finish(socket, (int)sop->moved);
	} else {
		recv_kick(socket);
	}
}

static void recv_kick(struct sim_socket *socket)
{
	if (socket->recv != NULL && !socket->recv_queued) {
		socket->recv_queued = true;
		sim_event_add(sim_delay_short(), recv_pump, socket, 0);
	}
}

void sim_net_recv(struct sim_op *sop)
{
	struct sim_socket *socket = sim_fd_get(sop->fd, SIM_FD_SOCKET)->socket;

	GMB_ASSERT(socket->recv == NULL); /* there is no other receive in flight */
	if (sim_chance(sim_world.options.faults.interrupt_ppm)) {
		sop->planned_error = -EINTR;
	}
	socket->recv = sop;
	recv_kick(socket);
}

/* --- sending -------------------------------------------------------------------------------- */

static void send_finish(struct sim_socket *socket, int result)
{
	struct sim_op *sop = socket->send;

	socket->send = NULL;
	sim_op_complete(sop, result, sim_delay_short());
}

static bool send_ended(struct sim_socket *socket)
{
	struct sim_op *sop = socket->send;
	int error;

	if (socket->reset) {
		error = take_reset(socket);
	} else if (socket->shut_send) {
		error = -EPIPE;
	} else if (socket->peer->in.held && !socket->peer->open) {
		send_finish(socket, (int)sop->len); /* the link is down */
		return true;
	} else if (!socket->peer->open || socket->peer->in.dead) {
		/* The data is lost. By chance, the sender does not detect this yet. */
		if (sim_world.options.faults.jitter && sim_random() % 2 == 0) {
			send_finish(socket, (int)sop->len);
			return true;
		}
		socket->shut_send = true; /* all later sends also report the error */
		error = -EPIPE;
	} else {
		return false;
	}
	send_finish(socket, sop->moved > 0 ? (int)sop->moved : error);
	return true;
}

/* Copies the next piece of the send into the pipe, and returns its size. */
static size_t sim_net_send_piece(struct sim_socket *socket, size_t left)
{
	struct sim_op *sop = socket->send;
	struct sim_pipe *pipe = &socket->peer->in;
	size_t sent = 0;

	while (sent < left) {
		size_t bytes = left - sent;
		uint8_t *to = pipe_tail(pipe, &bytes);

		sim_op_gather(sop, sop->moved, to, bytes);
		pipe->used += bytes;
		sop->moved += bytes;
		sent += bytes;
	}
	sim_event_add(pipe_arrival_delay(pipe), bytes_arrive, socket->peer, sent);
	return sent;
}

static void send_pump(void *arg, uint64_t value)
{
	struct sim_socket *socket = arg;
	struct sim_op *sop = socket->send;
	struct sim_pipe *pipe = &socket->peer->in;
	size_t room;

	socket->send_queued = false;
	if (sop == NULL || send_ended(socket)) {
		return;
	}
	if (sop->planned_error == -EINTR && sop->moved == 0) {
		send_finish(socket, -EINTR);
		return;
	}
	if (pipe->used >= pipe->capacity) {
		return; /* the send continues when the receiver has made room */
	}
	room = pipe->capacity - pipe->used;
	if (sim_world.options.faults.jitter) {
		room = MIN(room, (size_t)sim_between(1, SIM_SEGMENT_BYTES_MAX));
	}
	room = MIN(room, sop->len - sop->moved);
	pipe_reserve(pipe, pipe->capacity);
	sim_net_send_piece(socket, sim_partial(room));
	send_finish(socket, (int)sop->moved);
}

static void send_kick(struct sim_socket *socket)
{
	if (socket->send != NULL && !socket->send_queued) {
		socket->send_queued = true;
		sim_event_add(sim_delay_short(), send_pump, socket, 0);
	}
}

/* As on Linux, a sender that found the pipe full is woken only when a third of it is free. */
static void room_made(struct sim_socket *socket)
{
	const struct sim_pipe *pipe = &socket->peer->in;

	if (pipe->used + (pipe->capacity + 2) / 3 <= pipe->capacity) {
		send_kick(socket);
	}
}

void sim_net_send(struct sim_op *sop)
{
	struct sim_socket *socket = sim_fd_get(sop->fd, SIM_FD_SOCKET)->socket;

	GMB_ASSERT(socket->send == NULL); /* only one send at a time: two would mix the stream */
	if (sim_chance(sim_world.options.faults.send_short_ppm)) {
		sop->planned_error = -EINTR;
	}
	socket->send = sop;
	send_kick(socket);
}

/* --- immediate transfers --------------------------------------------------------------------- */

/* Returns true in one of four calls, as if no transfer were possible yet. */
static bool not_now(void)
{
	return sim_world.options.faults.jitter && sim_random() % 4 == 0;
}

ssize_t sim_net_recv_now(int fd, const struct msghdr *message)
{
	struct sim_socket *socket = sim_fd_get(fd, SIM_FD_SOCKET)->socket;
	struct sim_pipe *pipe = &socket->in;
	size_t moved = 0;

	GMB_ASSERT(socket->recv == NULL);
	if (pipe->visible > 0 && not_now()) {
		return -EAGAIN;
	}
	for (size_t i = 0; i < message->msg_iovlen && pipe->visible > 0; i++) {
		uint8_t *to = sim_memory(message->msg_iov[i].iov_base);
		size_t left = message->msg_iov[i].iov_len;

		while (left > 0 && pipe->visible > 0) {
			size_t part = MIN(left, pipe->visible);

			part = sim_partial(MIN(part, pipe->allocated - pipe->head));
			memcpy(to, pipe->bytes + pipe->head, part);
			pipe_drop(pipe, part);
			to += part;
			left -= part;
			moved += part;
		}
	}
	if (moved > 0) {
		room_made(socket->peer);
		polls_kick(socket->peer);
		return (ssize_t)moved;
	}
	if (socket->reset) {
		return take_reset(socket);
	}
	return pipe->finished || socket->shut_receive ? 0 : -EAGAIN;
}

ssize_t sim_net_send_now(int fd, const struct msghdr *message)
{
	struct sim_socket *socket = sim_fd_get(fd, SIM_FD_SOCKET)->socket;
	struct sim_pipe *pipe = &socket->peer->in;
	size_t moved = 0;

	GMB_ASSERT(socket->send == NULL);
	if (socket->reset) {
		return take_reset(socket);
	}
	if (socket->shut_send || !socket->peer->open || pipe->dead) {
		return -EPIPE;
	}
	if (not_now()) {
		return -EAGAIN;
	}
	pipe_reserve(pipe, pipe->capacity);
	for (size_t i = 0; i < message->msg_iovlen; i++) {
		const uint8_t *from = message->msg_iov[i].iov_base;
		size_t left = message->msg_iov[i].iov_len;

		while (left > 0 && pipe->used < pipe->capacity) {
			size_t part = MIN(left, pipe->capacity - pipe->used);
			uint8_t *to = pipe_tail(pipe, &part);

			memcpy(to, sim_memory(from), part);
			pipe->used += part;
			from += part;
			left -= part;
			moved += part;
		}
	}
	if (moved == 0) {
		return -EAGAIN;
	}
	sim_event_add(pipe_arrival_delay(pipe), bytes_arrive, socket->peer, moved);
	return (ssize_t)moved;
}

/* --- polling and cancelling ----------------------------------------------------------------- */

static void polls_kick(struct sim_socket *socket)
{
	uint32_t ready = 0;

	if (socket->in.visible > 0 || socket->in.finished || socket->shut_receive ||
		socket->reset) {
		ready |= POLLIN;
	}
	if (socket->reset || socket->shut_send || !socket->peer->open || socket->peer->in.dead ||
		socket->peer->in.used < socket->peer->in.capacity) {
		ready |= POLLOUT;
	}
	if (socket->watch != NULL && socket->open) {
		socket->watch(socket->watch_arg);
	}
	list_for_each(node, &socket->polls)
	{
		struct sim_op *sop = list_entry(node, struct sim_op, poll);
		uint32_t events = (uint32_t)sop->mode & ready;

		if (sop->cancelled || events != 0) {
			list_remove(&sop->poll);
			sim_op_complete(
				sop, sop->cancelled ? -ECANCELED : (int)events, sim_delay_short());
		}
	}
}

void sim_net_poll(struct sim_op *sop)
{
	struct sim_socket *socket = sim_fd_get(sop->fd, SIM_FD_SOCKET)->socket;

	list_push_back(&socket->polls, &sop->poll);
	polls_kick(socket);
}

void sim_net_cancel(struct sim_op *sop)
{
	struct sim_listener *listener;

	switch (sop->code) {
	case RING_RECV:
	case RING_RECVMSG:
		recv_kick(sim_fd_get(sop->fd, SIM_FD_SOCKET)->socket);
		break;
	case RING_POLL:
		polls_kick(sim_fd_get(sop->fd, SIM_FD_SOCKET)->socket);
		break;
	default:
		listener = sim_fd_get(sop->fd, SIM_FD_LISTENER)->listener;
		listener->accept = NULL;
		sim_op_complete(sop, -ECANCELED, sim_delay_short());
		break;
	}
}

/* --- creating and closing ------------------------------------------------------------------- */

static struct sim_socket *socket_create(bool test_owned)
{
	struct sim_socket *socket = calloc(1, sizeof(*socket));

	GMB_ASSERT(socket != NULL);
	socket->open = true;
	socket->in.capacity = SIM_SOCKET_BUFFER_MAX;
	if (sim_world.options.faults.jitter) {
		socket->in.capacity =
			(size_t)sim_between(SIM_SOCKET_BUFFER_MIN, SIM_SOCKET_BUFFER_MAX);
	}
	list_init(&socket->polls);
	list_push_back(&sim_world.sockets, &socket->node);
	socket->fd = sim_fd_add(SIM_FD_SOCKET, socket, test_owned);
	return socket;
}

void sim_socket_pair(int *server_fd, int *client_fd)
{
	struct sim_socket *server = socket_create(false);
	struct sim_socket *client = socket_create(true);

	server->peer = client;
	client->peer = server;
	*server_fd = server->fd;
	*client_fd = client->fd;
}

void sim_net_shutdown(int fd, bool receive_too)
{
	struct sim_socket *socket = sim_fd_get(fd, SIM_FD_SOCKET)->socket;

	if (!socket->shut_send) {
		socket->shut_send = true;
		if (!socket->peer->in.dead) {
			queue_end(socket->peer);
		}
	}
	if (receive_too) {
		socket->shut_receive = true;
	}
	recv_kick(socket);
	send_kick(socket);
	polls_kick(socket);
}

static void reset_arrives(void *arg, uint64_t value)
{
	struct sim_socket *socket = arg;

	if (socket->in.held) {
		socket->in.held_reset = true;
		return;
	}
	socket->reset = true;
	pipe_kill(&socket->in);
	recv_kick(socket);
	send_kick(socket);
	polls_kick(socket);
}

void sim_net_abort(int fd)
{
	struct sim_socket *socket = sim_fd_get(fd, SIM_FD_SOCKET)->socket;
	struct sim_pipe *out = &socket->peer->in;

	sim_trace("abort", (uint64_t)fd, out->used, (int64_t)out->visible);
	socket->shut_send = true;
	socket->shut_receive = true;
	/* By chance, data that has already left still arrives before the reset. */
	if (!out->dead && (out->held || sim_random() % 2 == 0)) {
		out->used = out->visible;
		out->held_bytes = 0;
	}
	if (socket->peer->open) {
		sim_event_add(pipe_arrival_delay(out), reset_arrives, socket->peer, 0);
	}
	recv_kick(socket);
	send_kick(socket);
	polls_kick(socket);
}

uint64_t sim_net_unacked(int fd)
{
	return sim_fd_get(fd, SIM_FD_SOCKET)->socket->peer->in.used;
}

static void side_hold(struct sim_socket *socket, bool held)
{
	struct sim_pipe *pipe = &socket->in;
	size_t bytes = pipe->held_bytes;

	pipe->held = held;
	if (held) {
		return;
	}
	pipe->held_bytes = 0;
	if (bytes > 0) {
		sim_event_add(pipe_arrival_delay(pipe), bytes_arrive, socket, bytes);
	}
	if (pipe->held_reset) {
		sim_event_add(pipe_arrival_delay(pipe), reset_arrives, socket, 0);
	} else if (pipe->held_end) {
		sim_event_add(pipe_arrival_delay(pipe), stream_ended, socket, 0);
	}
	pipe->held_reset = false;
	pipe->held_end = false;
}

void sim_socket_hold(int fd, bool held)
{
	struct sim_fd *entry = &sim_world.fds[fd - SIM_FD_BASE];
	struct sim_socket *socket = entry->socket;

	/* The socket may already be closed, because its last data can still be in flight. */
	GMB_ASSERT(entry->kind == SIM_FD_SOCKET || entry->kind == SIM_FD_FREE);
	side_hold(socket, held);
	side_hold(socket->peer, held);
}

void sim_socket_kill(int fd)
{
	struct sim_socket *socket = sim_fd_get(fd, SIM_FD_SOCKET)->socket;

	if (!socket->shut_send && !socket->peer->in.dead) {
		if (sim_random() % 2 == 0) {
			queue_end(socket->peer);
		} else {
			sim_event_add(pipe_arrival_delay(&socket->peer->in), reset_arrives,
				socket->peer, 0);
		}
	}
	socket->shut_send = true;
	socket->shut_receive = true;
	socket->reset = true;
	socket->in.visible = 0;
	pipe_kill(&socket->in);
	recv_kick(socket);
	send_kick(socket);
	polls_kick(socket);
}

void sim_socket_give(int client_fd)
{
	(void)sim_fd_get(client_fd, SIM_FD_SOCKET);
	sim_world.fds[client_fd - SIM_FD_BASE].test_owned = false;
}

/* As with TCP, closing with unread data, or while data is still arriving, resets the connection.
 * Data that the peer has not received is lost. */
void sim_net_close(int fd)
{
	struct sim_socket *socket = sim_fd_get(fd, SIM_FD_SOCKET)->socket;
	bool unread = socket->in.used > 0;

	GMB_ASSERT(socket->recv == NULL);
	GMB_ASSERT(socket->send == NULL);
	GMB_ASSERT(list_is_empty(&socket->polls));
	sim_trace("close", (uint64_t)fd, unread, 0);
	sim_fd_remove(fd);
	socket->open = false;
	pipe_kill(&socket->in);
	if (socket->peer->open) {
		if (unread && !socket->peer->in.finished) {
			sim_event_add(sim_delay_network(), reset_arrives, socket->peer, 0);
		} else if (!socket->shut_send && !socket->peer->in.dead) {
			queue_end(socket->peer);
		}
		send_kick(socket->peer);
		polls_kick(socket->peer);
	}
}

void sim_socket_close(int client_fd)
{
	sim_net_close(client_fd);
}

void sim_socket_leave(int fd)
{
	struct sim_socket *socket = sim_fd_get(fd, SIM_FD_SOCKET)->socket;

	sim_net_shutdown(fd, true);
	socket->in.used = socket->in.visible = 0;
	sim_net_close(fd);
}

void sim_socket_watch(int fd, void (*watch)(void *arg), void *arg)
{
	struct sim_socket *socket = sim_fd_get(fd, SIM_FD_SOCKET)->socket;

	socket->watch = watch;
	socket->watch_arg = arg;
}

void sim_net_stop(void)
{
	while (!list_is_empty(&sim_world.sockets)) {
		struct sim_socket *socket =
			list_entry(list_pop_front(&sim_world.sockets), struct sim_socket, node);

		free(socket->in.bytes);
		free(socket);
	}
	while (!list_is_empty(&sim_world.listeners)) {
		free(list_entry(list_pop_front(&sim_world.listeners), struct sim_listener, node));
	}
}

/* --- listening ------------------------------------------------------------------------------ */

int sim_listener_create(void)
{
	struct sim_listener *listener = calloc(1, sizeof(*listener));

	GMB_ASSERT(listener != NULL);
	list_push_back(&sim_world.listeners, &listener->node);
	listener->fd = sim_fd_add(SIM_FD_LISTENER, listener, true);
	return listener->fd;
}

void sim_listener_close(int listener_fd)
{
	struct sim_listener *listener = sim_fd_get(listener_fd, SIM_FD_LISTENER)->listener;

	GMB_ASSERT(listener->accept == NULL);
	for (uint32_t i = 0; i < listener->pending_count; i++) {
		sim_net_close(listener->pending[i]);
	}
	listener->pending_count = 0;
	sim_fd_remove(listener_fd);
}

static void accept_pump(struct sim_listener *listener)
{
	static const int errors[] = { -ECONNABORTED, -EMFILE, -EINTR };
	struct sim_op *sop = listener->accept;
	int result;

	if (sop == NULL || listener->pending_count == 0) {
		return;
	}
	if (sim_chance(sim_world.options.faults.accept_error_ppm)) {
		result = errors[sim_random() % ARRAY_COUNT(errors)];
	} else {
		result = listener->pending[0];
		listener->pending_count--;
		memmove(listener->pending, listener->pending + 1,
			listener->pending_count * sizeof(listener->pending[0]));
		/* From now on the code under test must close the descriptor. */
		sim_world.fds[result - SIM_FD_BASE].test_owned = false;
	}
	listener->accept = NULL;
	sim_op_complete(sop, result, sim_delay_short());
}

void sim_net_accept(struct sim_op *sop)
{
	struct sim_listener *listener = sim_fd_get(sop->fd, SIM_FD_LISTENER)->listener;

	GMB_ASSERT(listener->accept == NULL);
	listener->accept = sop;
	accept_pump(listener);
}

int sim_connect(int listener_fd)
{
	struct sim_listener *listener = sim_fd_get(listener_fd, SIM_FD_LISTENER)->listener;
	int server_fd;
	int client_fd;

	GMB_ASSERT(listener->pending_count < ARRAY_COUNT(listener->pending));
	sim_socket_pair(&server_fd, &client_fd);
	sim_world.fds[server_fd - SIM_FD_BASE].test_owned = true;
	listener->pending[listener->pending_count++] = server_fd;
	accept_pump(listener);
	return client_fd;
}

uint32_t sim_listener_queue(int listener_fd)
{
	return sim_fd_get(listener_fd, SIM_FD_LISTENER)->listener->pending_count;
}

/* --- functions for tests -------------------------------------------------------------------- */

void sim_socket_write(int client_fd, const void *bytes, size_t len)
{
	struct sim_socket *socket = sim_fd_get(client_fd, SIM_FD_SOCKET)->socket;
	struct sim_pipe *pipe = &socket->peer->in;
	const uint8_t *from = bytes;

	if (pipe->dead || !socket->peer->open || socket->shut_send) {
		return;
	}
	pipe_reserve(pipe, pipe->used + len);
	while (len > 0) {
		size_t part = len;
		uint8_t *to = pipe_tail(pipe, &part);

		memcpy(to, from, part);
		pipe->used += part;
		from += part;
		len -= part;
		sim_event_add(pipe_arrival_delay(pipe), bytes_arrive, socket->peer, part);
	}
}

int sim_socket_read(int client_fd, void *buf, size_t len)
{
	struct sim_socket *socket = sim_fd_get(client_fd, SIM_FD_SOCKET)->socket;
	struct sim_pipe *pipe = &socket->in;
	uint8_t *to = buf;
	size_t taken = 0;

	GMB_ASSERT(socket->recv == NULL);
	while (taken < len && pipe->visible > 0) {
		size_t part = MIN(len - taken, pipe->visible);

		part = MIN(part, pipe->allocated - pipe->head);
		memcpy(to + taken, pipe->bytes + pipe->head, part);
		pipe_drop(pipe, part);
		taken += part;
	}
	if (taken > 0) {
		room_made(socket->peer);
		polls_kick(socket->peer);
		return (int)taken;
	}
	if (socket->reset) {
		return -ECONNRESET;
	}
	return pipe->finished ? -ENODATA : 0;
}

void sim_socket_finish(int client_fd)
{
	sim_net_shutdown(client_fd, false);
}

void sim_socket_reset(int client_fd)
{
	both_reset(sim_fd_get(client_fd, SIM_FD_SOCKET)->socket);
}

void sim_socket_cut(int client_fd, bool to_server, uint64_t bytes, enum sim_cut cut)
{
	struct sim_socket *socket = sim_fd_get(client_fd, SIM_FD_SOCKET)->socket;
	struct sim_pipe *pipe = to_server ? &socket->peer->in : &socket->in;

	GMB_ASSERT(bytes > 0);
	pipe->cut_planned = true;
	pipe->cut_left = bytes;
	pipe->cut = cut;
}

void sim_socket_set_credentials(int client_fd, const struct ucred *credentials)
{
	struct sim_socket *socket = sim_fd_get(client_fd, SIM_FD_SOCKET)->socket;

	socket->has_credentials = true;
	socket->credentials = *credentials;
}

bool ring_socket_credentials(int fd, struct ucred *credentials)
{
	const struct sim_socket *peer = sim_fd_get(fd, SIM_FD_SOCKET)->socket->peer;

	*credentials = peer->credentials;
	return peer->has_credentials;
}

void sim_socket_set_buffer(int fd, size_t bytes)
{
	GMB_ASSERT(bytes > 0);
	sim_fd_get(fd, SIM_FD_SOCKET)->socket->in.capacity = bytes;
}

int sim_socket_peer(int fd)
{
	return sim_fd_get(fd, SIM_FD_SOCKET)->socket->peer->fd;
}

bool sim_socket_peer_closed(int client_fd)
{
	return !sim_fd_get(client_fd, SIM_FD_SOCKET)->socket->peer->open;
}
