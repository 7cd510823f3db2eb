// SPDX-License-Identifier: Apache-2.0
/*
 * The transport tcp: plain sockets, docs/protocol/clan.md §12.9. This file has its addresses and
 * listeners, and schedules the sockets; tcp_stream.c sends and receives.
 *
 * Sockets are in the queue's epoll set with edge triggers. So readable and writable stay set until
 * the kernel reports EAGAIN or a short transfer, and a connection with work to do is in the ready
 * list. Invariant: a connection that is not in the list waits for an edge.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clan/tcp.h"

#define NS_PER_MS UINT64_C(1000000)

enum {
	LISTEN_BACKLOG = 128,
	ACCEPT_MAX = 16, /* limit on connections accepted per turn */
	ACCEPT_RETRY_MS = 100,
	/* An idle connector detects after one minute that the peer's machine is off. */
	KEEP_IDLE_S = 30,
	KEEP_INTERVAL_S = 10,
	KEEP_PROBES = 3,
};

static struct tcp_queue *tcp_queue_of(const struct net_conn *conn)
{
	return net_queue(conn->conn.queue)->transports[NET_TCP];
}

/* Returns the transport's state of a queue, creating it if necessary; NULL if there is no
 * memory. */
static struct tcp_queue *tcp_queue_use(struct clan_queue *queue)
{
	struct net_queue *net = net_queue(queue);
	struct tcp_queue *tcp = net->transports[NET_TCP];

	if (tcp == NULL) {
		tcp = calloc(1, sizeof(*tcp));
		if (tcp != NULL) {
			list_init(&tcp->ready);
			net->transports[NET_TCP] = tcp;
		}
	}
	return tcp;
}

/* --- addresses -------------------------------------------------------------------------------- */

static int tcp_look_up(
	const struct net_place *place, bool listen, void **found_out, struct error *error)
{
	const struct addrinfo hints = {
		.ai_flags = AI_NUMERICSERV | (listen ? AI_PASSIVE : 0),
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
	};
	struct addrinfo *list;
	int result = getaddrinfo(place->host, place->port, &hints, &list);

	if (result != 0) {
		return error_set(error,
			result == EAI_MEMORY ? -ENOMEM
			: listen	     ? -EADDRNOTAVAIL
					     : -EHOSTUNREACH,
			"the host is unknown: %s",
			result == EAI_SYSTEM ? strerror(errno) : gai_strerror(result));
	}
	*found_out = list;
	return 0;
}

static void tcp_found_free(void *found)
{
	if (found != NULL) {
		freeaddrinfo(found);
	}
}

/* --- sockets ---------------------------------------------------------------------------------- */

void tcp_ready(struct tcp_conn *conn)
{
	if (!list_is_linked(&conn->ready_node)) {
		list_push_back(&tcp_queue_of(&conn->net)->ready, &conn->ready_node);
	}
}

static void socket_happened(struct waiter_file *file, uint32_t events)
{
	struct tcp_conn *conn = container_of(file, struct tcp_conn, file);

	conn->hung_up |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
	conn->readable |= (events & EPOLLIN) != 0 || conn->hung_up;
	conn->writable |= (events & EPOLLOUT) != 0;
	tcp_ready(conn);
}

/* Attaches a socket to a connection. Takes ownership of fd. */
static int socket_add(struct tcp_conn *conn, int fd)
{
	const int on = 1;
	int result;

	conn->file = (struct waiter_file){ .fd = -1, .happened = socket_happened };
	conn->readable = false;
	conn->writable = false;
	conn->hung_up = false;
	/* Frames are gathered before they are sent, so Nagle's algorithm would only delay them. */
	result = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0
			 ? waiter_file_add(conn->net.conn.queue->waiter, &conn->file, fd,
				   EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)
			 : -errno;
	if (result != 0) {
		close(fd);
	}
	return result;
}

/* Lets the kernel of a connector end the connection of a silent peer, as in nbd/client/dial.c.
 * Without this it only takes longer, so errors are ignored. */
static void keep_alive(int fd)
{
	const int on = 1;
	const int idle_s = KEEP_IDLE_S;
	const int interval_s = KEEP_INTERVAL_S;
	const int probes = KEEP_PROBES;

	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

static void socket_close(struct tcp_conn *conn)
{
	int fd = conn->file.fd;

	if (fd >= 0) {
		waiter_file_remove(conn->net.conn.queue->waiter, &conn->file);
		close(fd);
	}
}

static int tcp_conn_start(struct tcp_conn *conn)
{
	conn->file.fd = -1;
	list_init(&conn->ready_node);
	conn->in = malloc(TCP_IN_BYTES);
	return conn->in == NULL || tcp_queue_use(conn->net.conn.queue) == NULL ? -ENOMEM : 0;
}

static void tcp_close(struct net_conn *base)
{
	struct tcp_conn *conn = tcp_conn(base);

	if (conn->in != NULL) { /* tcp_conn_start() was called */
		list_remove(&conn->ready_node);
		socket_close(conn);
	}
}

static void tcp_conn_free(struct net_conn *base)
{
	struct tcp_conn *conn = tcp_conn(base);

	tcp_found_free(conn->addresses);
	free(conn->in);
}

/* --- connecting ------------------------------------------------------------------------------- */

/* Starts to connect to the next address. Returns 0, or the error of the last address that was
 * tried. error: the error of the previous address, which is returned if there is no next address.
 */
static int dial_next(struct tcp_conn *conn, int error)
{
	socket_close(conn);
	for (; conn->next != NULL; conn->next = conn->next->ai_next) {
		int fd = socket(
			conn->next->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

		if (fd < 0) {
			error = -errno;
		} else if (connect(fd, conn->next->ai_addr, conn->next->ai_addrlen) != 0 &&
			   errno != EINPROGRESS) {
			error = -errno;
			close(fd);
		} else {
			keep_alive(fd);
			error = socket_add(conn, fd);
			if (error == 0) {
				conn->next = conn->next->ai_next;
				return 0;
			}
		}
	}
	return error;
}

/* A failure is reported in the next turn, because net_conn_cut() must not be called within
 * dial(). */
static int tcp_dial(struct net_conn *base, void *found)
{
	struct tcp_conn *conn = tcp_conn(base);

	conn->addresses = found;
	conn->next = found;
	if (tcp_conn_start(conn) != 0) {
		return -ENOMEM;
	}
	conn->error = dial_next(conn, -EHOSTUNREACH);
	if (conn->error != 0) {
		tcp_ready(conn);
	}
	return 0;
}

/* In DIALING, after an event of the socket: reports the connection, or tries the next address. */
static void dial_look(struct tcp_conn *conn)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);
	socklen_t error_bytes = sizeof(int);
	int error = 0;

	if (conn->error == 0) {
		if (getpeername(conn->file.fd, (struct sockaddr *)&address, &length) == 0) {
			net_connected(&conn->net, (struct sockaddr *)&address);
			return;
		}
		if (getsockopt(conn->file.fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) {
			error = errno;
		}
		if (error == 0) {
			return; /* the connection attempt has not been decided yet */
		}
		conn->error = dial_next(conn, -error);
	}
	if (conn->error != 0) {
		net_conn_cut(&conn->net, conn->error);
	}
}

/* --- listeners -------------------------------------------------------------------------------- */

/* net_arrived() checks the limits of the listener. A connection beyond them is closed without an
 * answer. */
static void tcp_accept_one(struct tcp_listener *listener, int fd, const struct sockaddr *peer)
{
	struct net_conn *base = net_arrived(&listener->net);
	int result;

	if (base == NULL) {
		close(fd);
		return;
	}
	result = tcp_conn_start(tcp_conn(base));
	if (result == 0) {
		result = socket_add(tcp_conn(base), fd);
	} else {
		close(fd);
	}
	if (result == 0) {
		net_connected(base, peer);
	} else {
		net_conn_end(base, result, "");
	}
}

static void tcp_listener_happened(struct waiter_file *file, uint32_t events)
{
	struct tcp_listener *listener = container_of(file, struct tcp_listener, file);
	struct clan_queue *queue = listener->net.listener.queue;

	for (int i = 0; i < ACCEPT_MAX; i++) {
		struct sockaddr_storage peer;
		socklen_t length = sizeof(peer);
		int fd = accept4(
			file->fd, (struct sockaddr *)&peer, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			tcp_accept_one(listener, fd, (struct sockaddr *)&peer);
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
			   errno == ENOMEM) {
			/* The listener stays readable, which would cause a busy loop. Try again
			 * later, when descriptors might be free. */
			waiter_file_events(queue->waiter, file, 0);
			clan_deadline_set(queue, &listener->retry, ACCEPT_RETRY_MS * NS_PER_MS);
			return;
		} else if (errno == EAGAIN) {
			return;
		}
	}
}

static void tcp_listen_again(struct clan_deadline *deadline)
{
	struct tcp_listener *listener = container_of(deadline, struct tcp_listener, retry);

	waiter_file_events(listener->net.listener.queue->waiter, &listener->file, EPOLLIN);
}

static int tcp_open_listener(const struct addrinfo *entry, struct sockaddr_storage *address)
{
	int fd = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t length = sizeof(*address);
	const int on = 1;
	int result;

	if (fd < 0) {
		return -errno;
	}
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
		bind(fd, entry->ai_addr, entry->ai_addrlen) != 0 ||
		listen(fd, LISTEN_BACKLOG) != 0 ||
		getsockname(fd, (struct sockaddr *)address, &length) != 0) {
		result = -errno;
		close(fd);
		return result;
	}
	return fd;
}

static int tcp_listen(struct net_listener *base, void *found, struct sockaddr_storage *address)
{
	struct tcp_listener *listener = container_of(base, struct tcp_listener, net);
	int fd = tcp_open_listener(found, address);
	int result;

	if (fd < 0) {
		return fd;
	}
	listener->retry.expired = tcp_listen_again;
	list_init(&listener->retry.node);
	listener->file.happened = tcp_listener_happened;
	result = tcp_queue_use(base->listener.queue) == NULL
			 ? -ENOMEM
			 : waiter_file_add(
				   base->listener.queue->waiter, &listener->file, fd, EPOLLIN);
	if (result != 0) {
		close(fd);
	}
	return result;
}

static void tcp_listener_close(struct net_listener *base)
{
	struct tcp_listener *listener = container_of(base, struct tcp_listener, net);
	int fd = listener->file.fd;

	waiter_file_remove(base->listener.queue->waiter, &listener->file);
	clan_deadline_clear(&listener->retry);
	close(fd);
}

/* --- queues ----------------------------------------------------------------------------------- */

static void tcp_look(struct net_conn *base)
{
	struct tcp_conn *conn = tcp_conn(base);

	conn->readable = true; /* epoll reports new data only between turns */
	tcp_receive(conn);
}

static int tcp_conn_socket(const struct net_conn *base)
{
	return ((const struct tcp_conn *)base)->file.fd;
}

/* Processes the connections that were ready at the start of the turn. Each receives before it
 * sends, because received frames can contain credits and answers. */
static bool tcp_progress(struct net_queue *net)
{
	struct tcp_queue *tcp = net->transports[NET_TCP];
	struct list_node todo;
	bool any = !list_is_empty(&tcp->ready);

	/* A connection that has reached its limit per turn returns to the list. */
	list_init(&todo);
	list_move_all(&todo, &tcp->ready);
	while (!list_is_empty(&todo)) {
		struct tcp_conn *conn =
			list_entry(list_pop_front(&todo), struct tcp_conn, ready_node);

		if (conn->net.phase == NET_DIALING) {
			dial_look(conn);
		}
		tcp_receive(conn);
		tcp_flush(&conn->net);
	}
	return any;
}

static bool tcp_arm(struct net_queue *net)
{
	const struct tcp_queue *tcp = net->transports[NET_TCP];

	return !list_is_empty(&tcp->ready);
}

static void tcp_queue_destroy(struct net_queue *net)
{
	free(net->transports[NET_TCP]);
}

static void tcp_after_fork(struct net_conn *conn, struct net_listener *listener)
{
	if (listener != NULL) {
		close(container_of(listener, struct tcp_listener, net)->file.fd);
	} else if (tcp_conn(conn)->in != NULL && tcp_conn(conn)->file.fd >= 0) {
		close(tcp_conn(conn)->file.fd);
	}
}

/* --- members of the table that sockets do not need -------------------------------------------- */

static int tcp_rma_hold(struct net_rma *rma)
{
	return 0;
}

static void tcp_rma_release(struct net_rma *rma)
{
}

static int tcp_share(struct net_conn *conn, struct net_key *key)
{
	return 0;
}

static void tcp_unshare(struct net_key *key)
{
}

const struct net_transport net_transport_tcp = {
	.number = NET_TCP,
	.magic = TCP_MAGIC,
	.sees_puts = true,
	.conn_bytes = sizeof(struct tcp_conn),
	.listener_bytes = sizeof(struct tcp_listener),
	.look_up = tcp_look_up,
	.found_free = tcp_found_free,
	.listen = tcp_listen,
	.listener_close = tcp_listener_close,
	.dial = tcp_dial,
	.close = tcp_close,
	.conn_free = tcp_conn_free,
	.post_frame = tcp_post_frame,
	.post_rma = tcp_post_rma,
	.flush = tcp_flush,
	.look = tcp_look,
	.socket = tcp_conn_socket,
	.rma_hold = tcp_rma_hold,
	.rma_release = tcp_rma_release,
	.share = tcp_share,
	.unshare = tcp_unshare,
	.progress = tcp_progress,
	.arm = tcp_arm,
	.queue_destroy = tcp_queue_destroy,
	.after_fork = tcp_after_fork,
};
