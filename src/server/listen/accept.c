// SPDX-License-Identifier: Apache-2.0
#include "server/listen/accept.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rights.h"
#include "base/work.h"
#include "server/listen/address.h"

#define ACCEPT_PAUSE_NS UINT64_C(100000000)

/* The number of connections of one peer. */
struct peer_count {
	struct list_node node;
	struct peer_identity identity;
	_Atomic uint32_t connections; /* connections of the peer; decremented by reactors */
};

/* One listening socket. `op` either accepts a connection, or times a pause. */
struct door {
	struct list_node node; /* in acceptor->doors */
	struct acceptor *acceptor;
	const struct session_kind *kind;
	struct tls_policy *tls;
	char *export_name; /* see struct endpoint */
	int fd;		   /* descriptor, owned by the listener unless is_removed */
	bool is_removed;   /* the door is freed when op is done */
	uint32_t listener; /* index of the listener */
	struct ring_file file;
	struct ring_op op;
	struct ring_message add_message;
	struct ring_message remove_message;
};

/* A listener that a session kind handles itself, on the first reactor. */
struct inner_listener {
	const struct session_kind *kind;
	void *listener;
	uint32_t number;
};

/* Returns the listener's number for struct peer, which selects the rate limit of its log lines.
 * Passed sockets can exceed the number of addresses of a configuration; the excess ones share one
 * limit. */
static uint32_t listen_accept_number_of(uint32_t listener)
{
	return listener % ENGINE_LISTENERS_MAX;
}

struct acceptor {
	struct acceptor_options options;
	struct engine *engine; /* the first reactor's engine; set when inner listeners are opened */
	struct engine_door inner_door;
	struct inner_listener inner[SERVER_LISTENS_MAX];
	uint32_t inner_count;
	struct ring *ring;
	struct log_limit failures;
	struct log_limit refusals[ENGINE_LISTENERS_MAX];
	uint64_t accepted;
	/* entries without connections are freed when the list is searched the next time */
	struct list_node peers;
	bool is_running;
	bool stopping;
	uint32_t active_count; /* listening sockets with an operation in flight */
	struct list_node doors;
	struct ring_message start_message;
	struct ring_message stop_message;
};

static void listen_accept_done(struct ring_op *op, int result);

static void door_free(struct door *door)
{
	list_remove(&door->node);
	if (door->is_removed) {
		close(door->fd);
	}
	free(door->export_name);
	free(door);
}

void acceptor_destroy(struct acceptor *acceptor)
{
	struct list_node *node;

	if (acceptor == NULL) {
		return;
	}
	while ((node = list_pop_front(&acceptor->peers)) != NULL) {
		free(list_entry(node, struct peer_count, node));
	}
	while ((node = list_first(&acceptor->doors)) != NULL) {
		door_free(list_entry(node, struct door, node));
	}
	free(acceptor);
}

static void pause_done(struct ring_op *op, int result);

/* Accepts at a listening socket. If too many descriptors from clients wait to be closed, and the
 * kernel cannot make this socket refuse further ones, pauses instead (base/work.h). */
static void open_door(struct door *door)
{
	struct acceptor *acceptor = door->acceptor;

	if (dispose_may_accept(door->fd)) {
		ring_accept(acceptor->ring, &door->op, door->file, listen_accept_done);
		return;
	}
	log_limited(&acceptor->failures, ring_batch_ns(acceptor->ring), LOG_LEVEL_WARNING, "%s",
		"accepting no connections on Unix sockets for a moment: clients have sent too many "
		"file descriptors that are slow to close");
	ring_timer(acceptor->ring, &door->op, ACCEPT_PAUSE_NS, pause_done);
}

/* Stops using a listening socket. If the acceptor stops and none is left, it has stopped. */
static void shut_door(struct door *door)
{
	struct acceptor *acceptor = door->acceptor;

	ring_file_remove(acceptor->ring, &door->file);
	acceptor->active_count--;
	if (door->is_removed) {
		door_free(door);
	}
	if (acceptor->stopping && acceptor->active_count == 0) {
		acceptor->options.stopped(acceptor->options.context);
	}
}

static void pause_done(struct ring_op *op, int result)
{
	struct door *door = container_of(op, struct door, op);

	if (door->acceptor->stopping || door->is_removed) {
		shut_door(door);
	} else {
		open_door(door);
	}
}

/* Returns the reactor with the fewest connections, among those that may serve this one. */
static struct reactor *choose_reactor(
	const struct acceptor *acceptor, const struct endpoint *endpoint)
{
	const struct acceptor_options *options = &acceptor->options;
	uint32_t common_count = options->reactor_count - options->isolated_count;
	bool isolated = options->isolated_count > 0 && endpoint->kind->holds_thread &&
			!peer_is_trusted(&endpoint->peer);
	uint32_t first = isolated ? common_count : 0;
	uint32_t end = isolated ? options->reactor_count : common_count;
	struct reactor *best = options->reactors[first];
	uint32_t best_count = reactor_session_count(best);

	for (uint32_t i = first + 1; i < end && best_count > 0; i++) {
		uint32_t count = reactor_session_count(options->reactors[i]);

		if (count < best_count) {
			best = options->reactors[i];
			best_count = count;
		}
	}
	return best;
}

/* Returns the entry of the peer, which is added if it is missing; NULL: no memory. Frees entries
 * without connections while it searches. Acquire pairs with the release in endpoint_closed(), after
 * which the reactor does not use the entry. */
static struct peer_count *listen_accept_count_of(
	struct acceptor *acceptor, const struct peer_identity *identity)
{
	struct peer_count *found = NULL;

	list_for_each(node, &acceptor->peers)
	{
		struct peer_count *peer = list_entry(node, struct peer_count, node);

		if (memcmp(&peer->identity, identity, sizeof(*identity)) == 0) {
			found = peer;
		} else if (atomic_load_explicit(&peer->connections, memory_order_acquire) == 0) {
			list_remove(&peer->node);
			free(peer);
		}
	}
	if (found == NULL) {
		found = calloc(1, sizeof(*found));
		if (found != NULL) {
			found->identity = *identity;
			list_push_front(&acceptor->peers, &found->node);
		}
	}
	return found;
}

static bool listen_accept_refuse(
	struct acceptor *acceptor, const struct peer *peer, uint32_t limit, const char *of_what)
{
	log_limited(&acceptor->refusals[peer->listener], ring_batch_ns(acceptor->ring),
		LOG_LEVEL_WARNING, "connection from %s rejected: limit of %u connections%s reached",
		peer->text, limit, of_what);
	return false;
}

static void count_connection(struct acceptor *acceptor, struct peer_count *count, struct peer *peer)
{
	atomic_fetch_add_explicit(acceptor->options.connection_total, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&count->connections, 1, memory_order_relaxed);
	peer->connections = &count->connections;
}

/* Counts the connection and returns true if the limits permit it. */
static bool listen_accept_admit(struct acceptor *acceptor, struct peer *peer)
{
	const struct acceptor_options *options = &acceptor->options;
	struct peer_count *count;

	peer->id = ++acceptor->accepted;
	/* The check and the increment need not be atomic, because only this thread increments the
	 * counts. */
	if (atomic_load_explicit(options->connection_total, memory_order_relaxed) >=
		options->connections_max) {
		return listen_accept_refuse(acceptor, peer, options->connections_max, "");
	}
	count = listen_accept_count_of(acceptor, &peer->identity);
	if (count == NULL) {
		log_error("closed the connection from %s: out of memory", peer->text);
		return false;
	}
	if (atomic_load_explicit(&count->connections, memory_order_relaxed) >=
		options->connections_per_peer_max) {
		return listen_accept_refuse(
			acceptor, peer, options->connections_per_peer_max, " per address or user");
	}
	count_connection(acceptor, count, peer);
	return true;
}

static void place_connection(const struct door *door, int fd)
{
	struct acceptor *acceptor = door->acceptor;
	struct endpoint endpoint = {
		.kind = door->kind, .fd = fd, .tls = door->tls, .export_name = door->export_name
	};

	listener_peer(fd, &endpoint.peer);
	endpoint.peer.listener = door->listener;
	if (listen_accept_admit(acceptor, &endpoint.peer)) {
		reactor_dispatch(choose_reactor(acceptor, &endpoint), &endpoint);
	} else {
		ring_socket_close(acceptor->ring, fd);
	}
}

void acceptor_adopt(struct acceptor *acceptor, const struct session_kind *kind,
	const struct session_record *record, int fd)
{
	const struct listener *listener = listen_address_find(
		acceptor->options.listeners, acceptor->options.listener_count, fd);
	struct endpoint endpoint = { .kind = kind, .fd = fd };
	struct peer_count *count;

	listener_peer(fd, &endpoint.peer);
	if (listener != NULL) {
		endpoint.tls = listener->tls;
		endpoint.export_name = listener->uri.export_name;
		endpoint.peer.listener =
			listen_accept_number_of((uint32_t)(listener - acceptor->options.listeners));
	}
	endpoint.peer.id = ++acceptor->accepted;
	endpoint.peer.previous_id = record->id;
	count = listen_accept_count_of(acceptor, &endpoint.peer.identity);
	if (count == NULL) {
		log_error("closed the connection from %s: out of memory", endpoint.peer.text);
		close(fd);
		return;
	}
	count_connection(acceptor, count, &endpoint.peer);
	reactor_adopt(choose_reactor(acceptor, &endpoint), &endpoint, record);
}

/* Called for a new connection that a session kind has accepted itself (struct inner_listener).
 * Returns whether the limits admit it. */
static bool listen_accept_take(void *context, const struct session_kind *kind, const char *address)
{
	struct acceptor *acceptor = context;
	struct endpoint endpoint = { .kind = kind, .fd = -1 };

	listener_peer_at(address, &endpoint.peer);
	for (uint32_t i = 0; i < acceptor->inner_count; i++) {
		if (acceptor->inner[i].kind == kind) {
			endpoint.peer.listener = acceptor->inner[i].number;
			break;
		}
	}
	if (acceptor->stopping || !listen_accept_admit(acceptor, &endpoint.peer)) {
		return false;
	}
	reactor_accept(acceptor->options.reactors[0], &endpoint);
	return true;
}

static bool peer_went_away(int result)
{
	/* Linux reports pending network errors of the new connection through accept. */
	return result == -ECONNABORTED || result == -EINTR || result == -EPROTO ||
	       result == -ENETDOWN || result == -ENETUNREACH || result == -EHOSTDOWN ||
	       result == -EHOSTUNREACH || result == -ENONET || result == -EOPNOTSUPP ||
	       result == -ENOPROTOOPT;
}

/* Pauses a listening socket after an error such as a lack of descriptors or memory. The connection
 * stays in the kernel's queue, so an immediate retry would fail again and again. */
static void pause_door(struct door *door, int result)
{
	struct acceptor *acceptor = door->acceptor;

	log_limited(&acceptor->failures, ring_batch_ns(acceptor->ring), LOG_LEVEL_ERROR,
		"cannot accept connections, retrying: %s%s", strerror(-result),
		result == -EMFILE || result == -ENFILE
			? "; raise the limit on open files (LimitNOFILE=, ulimit -n)"
			: "");
	ring_timer(acceptor->ring, &door->op, ACCEPT_PAUSE_NS, pause_done);
}

static void listen_accept_done(struct ring_op *op, int result)
{
	struct door *door = container_of(op, struct door, op);
	struct acceptor *acceptor = door->acceptor;

	if (result >= 0) {
		place_connection(door, result);
	}
	if (acceptor->stopping || door->is_removed) {
		shut_door(door);
	} else if (result >= 0) {
		open_door(door);
	} else if (peer_went_away(result)) {
		open_door(door);
	} else {
		pause_door(door, result);
	}
}

struct opening {
	struct acceptor *acceptor;
	struct listener *listener;
	int result;
	struct error *error;
};

/* Opens the listener of a session kind that accepts its connections itself (struct inner_listener).
 * Called on the first reactor's thread. */
static void open_inner(struct engine *engine, void *context)
{
	struct opening *opening = context;
	struct acceptor *acceptor = opening->acceptor;
	struct inner_listener *inner = &acceptor->inner[acceptor->inner_count];

	acceptor->engine = engine;
	inner->kind = opening->listener->kind;
	inner->number = listen_accept_number_of(
		(uint32_t)(opening->listener - acceptor->options.listeners));
	opening->result = engine_listen(engine, inner->kind, &opening->listener->uri,
		&acceptor->inner_door, &inner->listener, opening->error);
	acceptor->inner_count += opening->result == 0;
	if (opening->result == -EADDRINUSE || opening->result == -EADDRNOTAVAIL ||
		opening->result == -EACCES) {
		(void)listener_tcp_error(&opening->listener->uri, opening->result, opening->error);
	}
}

static void close_inner(struct engine *engine, void *context)
{
	struct acceptor *acceptor = context;

	while (acceptor->inner_count > 0) {
		struct inner_listener *inner = &acceptor->inner[--acceptor->inner_count];

		engine_listen_end(engine, inner->kind, inner->listener);
	}
}

static int open_all_inner(
	struct acceptor *acceptor, const struct acceptor_options *options, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < options->listener_count; i++) {
		struct opening opening = { acceptor, &options->listeners[i], 0, error };

		if (options->listeners[i].fd_count > 0) {
			continue;
		}
		rc = reactor_call(options->reactors[0], open_inner, &opening);
		if (rc != 0) {
			error_set(error, rc, "the first reactor thread does not respond");
		} else if (opening.result != 0) {
			rc = opening.result;
		} else {
			listener_is_bound(&options->listeners[i]);
		}
	}
	if (rc != 0 && acceptor->inner_count > 0 &&
		reactor_call(options->reactors[0], close_inner, acceptor) != 0) {
		log_error("%s", "listeners stay open: the first reactor thread does not respond");
	}
	return rc;
}

/* Creates the door of a listening socket. -ENOMEM. */
static int door_create(struct acceptor *acceptor, const struct listener *listener, int fd,
	uint32_t index, struct door **door_out, struct error *error)
{
	const char *name = listener->uri.export_name;
	struct door *door = calloc(1, sizeof(*door));
	char *copy = name != NULL ? strdup(name) : NULL;

	if (door == NULL || (name != NULL && copy == NULL)) {
		free(door);
		free(copy);
		return error_set(error, -ENOMEM, "no memory to accept connections");
	}
	*door = (struct door){
		.acceptor = acceptor,
		.kind = listener->kind,
		.tls = listener->tls,
		.export_name = copy,
		.fd = fd,
		.listener = listen_accept_number_of(index),
	};
	*door_out = door;
	return 0;
}

/* Creates the doors of all listeners, except those in folders. */
static int create_doors(struct acceptor *acceptor, struct error *error)
{
	const struct acceptor_options *options = &acceptor->options;
	struct door *door;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < options->listener_count; i++) {
		const struct listener *listener = &options->listeners[i];

		for (uint32_t k = 0; rc == 0 && k < listener->fd_count && listener->folder == 0;
			k++) {
			rc = door_create(acceptor, listener, listener->fds[k], i, &door, error);
			if (rc == 0) {
				list_push_back(&acceptor->doors, &door->node);
			}
		}
	}
	return rc;
}

int acceptor_create(
	const struct acceptor_options *options, struct acceptor **acceptor_out, struct error *error)
{
	struct acceptor *acceptor = calloc(1, sizeof(*acceptor));
	int rc;

	if (acceptor == NULL) {
		return error_set(error, -ENOMEM, "no memory to accept connections");
	}
	acceptor->options = *options;
	acceptor->inner_door =
		(struct engine_door){ .take = listen_accept_take, .context = acceptor };
	list_init(&acceptor->peers);
	list_init(&acceptor->doors);
	acceptor->ring = reactor_ring(options->reactors[0]);
	rc = create_doors(acceptor, error) ?: open_all_inner(acceptor, options, error);
	if (rc != 0) {
		acceptor_destroy(acceptor);
		return rc;
	}
	*acceptor_out = acceptor;
	return 0;
}

static void start_door(struct door *door)
{
	struct acceptor *acceptor = door->acceptor;

	door->file = ring_file_add(acceptor->ring, door->fd);
	/* The connections accepted here also refuse file descriptors. shm_adopt() permits them for
	 * a session that shares memory with its peer. */
	rights_refuse(door->fd);
	acceptor->active_count++;
	open_door(door);
}

static void deliver_add(struct ring *ring, struct ring_message *message)
{
	struct door *door = container_of(message, struct door, add_message);

	list_push_back(&door->acceptor->doors, &door->node);
	if (door->acceptor->is_running) {
		start_door(door);
	}
}

int acceptor_add(
	struct acceptor *acceptor, struct listener *listener, uint32_t index, struct error *error)
{
	int rc = door_create(acceptor, listener, listener->fds[0], index, &listener->door, error);

	if (rc == 0) {
		listener->door->add_message.deliver = deliver_add;
		ring_post(acceptor->ring, &listener->door->add_message);
	}
	return rc;
}

static void deliver_remove(struct ring *ring, struct ring_message *message)
{
	struct door *door = container_of(message, struct door, remove_message);

	door->is_removed = true;
	if (door->op.in_flight) {
		ring_cancel(ring, &door->op);
	} else {
		door_free(door);
	}
}

void acceptor_remove(struct acceptor *acceptor, struct listener *listener)
{
	struct door *door = listener->door;

	listener->door = NULL;
	listener->fd_count = 0;
	door->remove_message.deliver = deliver_remove;
	ring_post(acceptor->ring, &door->remove_message);
}

static void deliver_start(struct ring *ring, struct ring_message *message)
{
	struct acceptor *acceptor = container_of(message, struct acceptor, start_message);

	acceptor->stopping = false;
	acceptor->is_running = true;
	list_for_each(node, &acceptor->doors)
	{
		start_door(list_entry(node, struct door, node));
	}
}

void acceptor_start(struct acceptor *acceptor)
{
	acceptor->start_message.deliver = deliver_start;
	ring_post(acceptor->ring, &acceptor->start_message);
}

static void listen_accept_deliver_stop(struct ring *ring, struct ring_message *message)
{
	struct acceptor *acceptor = container_of(message, struct acceptor, stop_message);

	acceptor->stopping = true;
	acceptor->is_running = false;
	if (acceptor->inner_count > 0) {
		close_inner(acceptor->engine, acceptor);
	}
	if (acceptor->active_count == 0) {
		acceptor->options.stopped(acceptor->options.context);
	}
	list_for_each(node, &acceptor->doors)
	{
		struct door *door = list_entry(node, struct door, node);

		if (door->op.in_flight) {
			ring_cancel(ring, &door->op);
		}
	}
}

void acceptor_stop(struct acceptor *acceptor)
{
	acceptor->stop_message.deliver = listen_accept_deliver_stop;
	ring_post(acceptor->ring, &acceptor->stop_message);
}
