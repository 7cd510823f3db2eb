// SPDX-License-Identifier: Apache-2.0
/*
 * The network provider's addresses and listeners, and the life of its connections:
 * docs/protocol/clan.md §12.1 and §12.2.
 *
 * Invariant: an endpoint is closed only by net_bury(), which never runs while a transport's
 * function is on the stack. So a transport can end a connection and continue to use its memory
 * until the function returns.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/uri.h"
#include "clan/net.h"

#define NS_PER_MS UINT64_C(1000000)

enum {
	LINGER_MS = 2000, /* time limit for sending data after clan_close() */
};

/* A name that a worker resolves. The program can close the connection before the worker has
 * finished, but the connection is freed only after looked_up(). */
struct net_resolve {
	struct work work;
	struct net_conn *conn;
	struct net_place place;
	void *found;
	struct error error;
};

static const struct net_transport *const transports[NET_TRANSPORT_COUNT] = {
	[NET_TCP] = &net_transport_tcp,
#ifdef CLAN_FABRIC
	[NET_OFI] = &net_transport_ofi,
#endif
};

/* --- addresses -------------------------------------------------------------------------------- */

static int clan_net_address_error(struct error *error, const char *address)
{
	return error_set(error, -EINVAL,
		"\"%s\": the address must be tcp:HOST:PORT, or ofi:HOST:PORT, followed by "
		"?provider=verbs or ?provider=tcp; IPv6 addresses need brackets",
		address);
}

static bool clan_net_copy_part(char *to, size_t room, const char *from, size_t length)
{
	if (length == 0 || length >= room) {
		return false;
	}
	memcpy(to, from, length);
	to[length] = '\0';
	return true;
}

/* Returns the libfabric provider that an address selects; NULL if the name is unknown. */
static const char *clan_net_find_provider(const char *option)
{
	static const char *const providers[] = { "tcp", "verbs" };

	for (size_t i = 0; i < ARRAY_COUNT(providers); i++) {
		if (strncmp(option, "?provider=", strlen("?provider=")) == 0 &&
			strcmp(option + strlen("?provider="), providers[i]) == 0) {
			return providers[i];
		}
	}
	return NULL;
}

static int clan_net_parse_place(const char *address, struct net_place *parsed, struct error *error)
{
	const char *place = clan_place(address);
	const char *option = strchr(place, '?');
	const char *end = option != NULL ? option : place + strlen(place);
	const char *host_end = place[0] == '[' ? memchr(place, ']', (size_t)(end - place))
					       : memchr(place, ':', (size_t)(end - place));
	const char *host = place + (place[0] == '[');
	bool is_ofi = strncmp(address, "ofi:", strlen("ofi:")) == 0;
	const char *port;
	char *digits_end;

	if (host_end == NULL) {
		return clan_net_address_error(error, address);
	}
	port = host_end + (place[0] == '[') + 1;
	if (port >= end || port[-1] != ':') {
		return clan_net_address_error(error, address);
	}
	parsed->transport = transports[is_ofi ? NET_OFI : NET_TCP];
	if (parsed->transport == NULL) {
		return error_set(error, -EPROTONOSUPPORT,
			"\"%s\": this libclan was built without libfabric", address);
	}
	if (is_ofi) {
		parsed->provider = option != NULL ? clan_net_find_provider(option) : "tcp";
	}
	if (is_ofi ? parsed->provider == NULL : option != NULL) {
		return clan_net_address_error(error, address);
	}
	if (!clan_net_copy_part(
		    parsed->host, sizeof(parsed->host), host, (size_t)(host_end - host)) ||
		!clan_net_copy_part(
			parsed->port, sizeof(parsed->port), port, (size_t)(end - port)) ||
		strspn(parsed->port, "0123456789") != strlen(parsed->port) ||
		strtoul(parsed->port, &digits_end, 10) > UINT16_MAX) {
		return clan_net_address_error(error, address);
	}
	return 0;
}

/* Formats a socket address as "HOST:PORT", numeric. An IPv4-mapped IPv6 address is shown as
 * IPv4. */
static void format_address(const struct sockaddr *address, char *text, size_t text_bytes)
{
	char host[INET6_ADDRSTRLEN] = "?";

	if (address->sa_family == AF_INET6) {
		struct sockaddr_in6 in6;

		bool is_mapped;

		memcpy(&in6, address, sizeof(in6));
		is_mapped = IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr);
		inet_ntop(is_mapped ? AF_INET : AF_INET6,
			&in6.sin6_addr.s6_addr[is_mapped ? 12 : 0], host, sizeof(host));
		snprintf(text, text_bytes, is_mapped ? "%s:%u" : "[%s]:%u", host,
			ntohs(in6.sin6_port));
	} else {
		struct sockaddr_in in;

		memcpy(&in, address, sizeof(in));
		inet_ntop(AF_INET, &in.sin_addr, host, sizeof(host));
		snprintf(text, text_bytes, "%s:%u", host, ntohs(in.sin_port));
	}
}

static int clan_net_queue_use(struct clan_queue *queue)
{
	struct net_queue *net;

	if (net_queue(queue) != NULL) {
		return 0;
	}
	net = calloc(1, sizeof(*net));
	if (net == NULL) {
		return -ENOMEM;
	}
	net->queue = queue;
	list_init(&net->dirty);
	list_init(&net->dying);
	list_init(&net->dead);
	list_init(&net->rmas);
	queue->carriers[CLAN_NET] = net;
	return 0;
}

static bool clan_net_uses(const struct net_queue *net, size_t transport)
{
	return net->transports[transport] != NULL;
}

static void clan_net_queue_destroy(struct clan_queue *queue)
{
	struct net_queue *net = net_queue(queue);

	for (size_t i = 0; i < NET_TRANSPORT_COUNT; i++) {
		if (clan_net_uses(net, i)) {
			transports[i]->queue_destroy(net);
		}
	}
	net_rma_free_all(net);
	free(net);
	queue->carriers[CLAN_NET] = NULL;
}

/* --- life of a connection --------------------------------------------------------------------- */

static const uint32_t phase_edges[NET_PHASE_COUNT] = {
	[NET_RESOLVING] = BIT(NET_DIALING) | BIT(NET_CLOSED),
	[NET_DIALING] = BIT(NET_TALKING) | BIT(NET_CLOSED),
	[NET_TALKING] = BIT(NET_CLOSED),
};

static void clan_net_set_phase(struct net_conn *conn, enum net_phase phase)
{
	GMB_ASSERT((phase_edges[conn->phase] & BIT(phase)) != 0);
	conn->phase = phase;
}

static void deadline_expired(struct clan_deadline *deadline)
{
	struct net_conn *conn = container_of(deadline, struct net_conn, conn.deadline);

	if (conn->conn.state == CLAN_CLOSING) {
		conn->ending = false;
		net_conn_end(conn, 0, NULL);
	} else {
		net_conn_end(conn, -ETIMEDOUT, "the handshake timed out");
	}
}

/* Creates a connection in the given state, with the time limit of its handshake running. Fails with
 * -EUSERS at the queue's limit, or -ENOMEM. The socket of the transport does not exist yet. */
static struct net_conn *clan_net_conn_create(struct clan_queue *queue,
	const struct net_transport *transport, const struct clan_conn_options *options,
	enum clan_state state, struct error *error)
{
	struct net_conn *conn;

	if (queue->conn_count >= queue->options.conns_max) {
		error_set(error, -EUSERS, "the queue has reached its limit of %u connections",
			queue->options.conns_max);
		return NULL;
	}
	conn = clan_net_queue_use(queue) == 0 ? calloc(1, transport->conn_bytes) : NULL;
	if (conn != NULL) {
		conn->transport = transport;
		if (net_frames_start(conn) != 0) {
			free(conn);
			conn = NULL;
		}
	}
	if (conn == NULL) {
		error_oom_for(error, "a connection");
		return NULL;
	}
	clan_conn_init(&conn->conn, &clan_provider_net, queue, options, state);
	conn->conn.deadline.expired = deadline_expired;
	conn->conn.peer.uid = (uid_t)-1; /* unknown */
	conn->conn.peer.gid = (gid_t)-1;
	list_init(&conn->dirty_node);
	list_init(&conn->dying_node);
	list_init(&conn->dead_node);
	list_init(&conn->frames);
	list_init(&conn->owed);
	list_init(&conn->end_owed.node);
	list_init(&conn->regions);
	list_init(&conn->revocations);
	list_init(&conn->rmas);
	list_init(&conn->running);
	clan_deadline_set(queue, &conn->conn.deadline, options->handshake_timeout_ms * NS_PER_MS);
	return conn;
}

static void handshake_uncount(struct net_conn *conn)
{
	if (conn->handshake_counted) {
		conn->handshake_counted = false;
		conn->listener->handshake_count--;
	}
}

static void handshake_ended(struct net_conn *conn)
{
	clan_deadline_clear(&conn->conn.deadline);
	handshake_uncount(conn);
}

static void listener_leave(struct net_conn *conn)
{
	if (conn->listener != NULL) {
		conn->listener->refused_count -= conn->is_refused;
		conn->listener->conn_count--;
		if (conn->listener->closed && conn->listener->conn_count == 0) {
			free(conn->listener);
		}
	}
}

static void clan_net_conn_destroy(struct clan_conn *base)
{
	struct net_conn *conn = net_conn(base);

	GMB_ASSERT(conn->phase == NET_CLOSED && conn->resolve == NULL);
	handshake_ended(conn);
	listener_leave(conn);
	list_remove(&conn->dirty_node);
	list_remove(&conn->dead_node);
	net_memory_free(conn);
	conn->transport->conn_free(conn);
	net_frames_free(conn);
	clan_conn_fini(base);
	free(conn);
}

/* Called when the transport has closed the endpoint and no longer uses the connection's buffers.
 * Ends all operations of the connection, and completes its close. */
static void gone(struct net_conn *conn)
{
	struct clan_conn *base = &conn->conn;

	net_rma_end(conn);
	net_memory_end(conn);
	while (list_pop_front(&conn->owed) != NULL) {
	}
	list_remove(&conn->dirty_node);
	if (base->state == CLAN_CLOSING) {
		clan_shares_drop(base);
		handshake_ended(conn);
		clan_conn_set_state(base, CLAN_CLOSED);
		if (base->known) {
			clan_fire(base->queue, &base->source);
		} else {
			list_push_back(&net_queue(base->queue)->dead, &conn->dead_node);
		}
	}
}

/* Closes the endpoints of connections that have ended. */
static void net_bury(struct clan_queue *queue)
{
	struct net_queue *net = net_queue(queue);

	while (!net->reaping && !list_is_empty(&net->dying)) {
		struct net_conn *conn =
			list_entry(list_pop_front(&net->dying), struct net_conn, dying_node);

		clan_net_set_phase(conn, NET_CLOSED);
		conn->transport->close(conn);
		gone(conn);
	}
}

/* Schedules the endpoint for net_bury(). If a worker is still resolving the name, looked_up() does
 * this instead. */
static void die(struct net_conn *conn)
{
	if (conn->phase != NET_CLOSED && conn->resolve == NULL &&
		!list_is_linked(&conn->dying_node)) {
		list_push_back(&net_queue(conn->conn.queue)->dying, &conn->dying_node);
	}
}

/* If the connection still waits for the peer (CLOSING with ending set), this call has no effect.
 * Callers that end this wait clear ending first. */
void net_conn_end(struct net_conn *conn, int status, const char *reason)
{
	struct clan_conn *base = &conn->conn;

	if (base->state == CLAN_CLOSING && !conn->ending) {
		die(conn);
	}
	if (base->state >= CLAN_LOST) {
		return;
	}
	handshake_ended(conn);
	if (base->known) {
		clan_conn_lose(base, status, "%s", reason);
	} else {
		clan_conn_set_state(base, CLAN_CLOSING);
	}
	die(conn);
}

/* Returns true if a connector got no answer to HELLO: the port was open, but its service closed the
 * connection. libfabric's tcp provider reports this with various errors. */
static bool is_no_answer(const struct net_conn *conn, int error)
{
	return conn->conn.state == CLAN_CONNECTING && conn->phase >= NET_DIALING &&
	       (error == -ECANCELED || error == -EINPROGRESS || error == -ECONNRESET ||
		       error == -EPIPE || error == -EPROTO ||
		       (error == 0 && conn->phase == NET_TALKING));
}

/* The text of the reason depends on the phase: before HELLO was answered, the port probably belongs
 * to another service. */
void net_conn_cut(struct net_conn *conn, int error)
{
	char reason[CLAN_REASON_BYTES];
	const char *advice = uri_tcp_advice(error);

	conn->ending = false;
	if (is_no_answer(conn, error)) {
		net_conn_end(conn, error != 0 ? error : -ECONNRESET,
			"cannot connect: the listener closed the connection; check that the port "
			"is not that of another protocol");
	} else if (conn->phase == NET_DIALING && error != 0) {
		snprintf(reason, sizeof(reason), "cannot connect: %s%s%s", strerror(-error),
			advice != NULL ? "; " : "", advice != NULL ? advice : "");
		net_conn_end(conn, error, reason);
	} else {
		net_conn_end(conn, -ECONNRESET, "the peer has exited or cannot be reached");
	}
}

int net_broken(struct net_conn *conn, uint32_t rule, const char *what)
{
	char reason[CLAN_REASON_BYTES];

	snprintf(reason, sizeof(reason), "the peer broke rule O%u: %s", rule, what);
	conn->ending = false;
	net_conn_end(conn, -EPROTO, reason);
	return -EPROTO;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void clan_net_write_end(struct net_conn *conn, struct net_owed *owed)
{
	struct net_refused record = { 0 };

	net_append_system(conn, NET_END, &record, sizeof(record));
}

/* The peer normally answers END by closing its endpoint, which shows that everything has arrived.
 * This function covers the case that the peer has sent END as well. */
void net_conn_drained(struct net_conn *conn)
{
	if (conn->ending && conn->peer_ended && conn->sends_posted == 0) {
		conn->ending = false;
		net_conn_end(conn, 0, NULL);
	}
}

/* Closes the connection immediately if the peer cannot read END, because there is no endpoint or no
 * HELLO was sent. Otherwise sends END, and waits at most LINGER_MS for the peer to close its
 * endpoint or send END. */
static void clan_net_conn_close(struct clan_conn *base)
{
	struct net_conn *conn = net_conn(base);
	bool has_spoken = base->hello != NULL || base->connector || conn->is_refused;
	bool talks = conn->phase == NET_TALKING && has_spoken && !list_is_linked(&conn->dying_node);

	handshake_ended(conn);
	net_memory_close(conn);
	net_rma_close(conn);
	if (conn->phase == NET_CLOSED) {
		clan_shares_drop(base);
		clan_conn_set_state(base, CLAN_CLOSED);
		clan_fire(base->queue, &base->source);
		return;
	}
	if (!talks) {
		die(conn);
		return;
	}
	conn->ending = true;
	net_owe(conn, &conn->end_owed, clan_net_write_end);
	net_publish_conn(conn);
	clan_deadline_set(base->queue, &base->deadline, LINGER_MS * NS_PER_MS);
}

/* --- set-up ----------------------------------------------------------------------------------- */

/* Sends HELLO or WELCOME. The frame buffers are empty at that time, so there is always room. */
static void send_hello(
	struct net_conn *conn, enum net_system_type type, const void *hello, size_t hello_bytes)
{
	struct net_hello head = {
		.magic = conn->transport->magic,
		.version_min = NET_VERSION,
		.version_max = NET_VERSION,
		.bulk_slots = conn->conn.options.bulk_slots,
		.cookies = conn->conn.options.cookies,
		.hello_bytes = (uint32_t)hello_bytes,
	};
	struct iovec iov[2] = {
		{ .iov_base = &head, .iov_len = sizeof(head) },
		{ .iov_base = (void *)(uintptr_t)hello, .iov_len = hello_bytes },
	};
	bool had_room =
		net_append(conn, NET_SYSTEM, (uint8_t)type, iov, sizeof(head) + hello_bytes);

	GMB_ASSERT(had_room);
	net_publish_conn(conn);
}

static void send_refused(struct net_conn *conn, int status, const char *text)
{
	size_t text_bytes = strnlen(text, CLAN_HELLO_BYTES_MAX);
	struct net_refused head = { .error = (uint32_t)-status,
		.text_bytes = (uint32_t)text_bytes };
	struct iovec iov[2] = {
		{ .iov_base = &head, .iov_len = sizeof(head) },
		{ .iov_base = (void *)(uintptr_t)text, .iov_len = text_bytes },
	};
	bool had_room = net_append(conn, NET_SYSTEM, NET_REFUSED, iov, sizeof(head) + text_bytes);

	GMB_ASSERT(had_room);
	net_publish_conn(conn);
}

void net_connected(struct net_conn *conn, const struct sockaddr *peer)
{
	if (conn->phase != NET_DIALING || list_is_linked(&conn->dying_node)) {
		return;
	}
	clan_net_set_phase(conn, NET_TALKING);
	if (peer != NULL) {
		format_address(peer, conn->conn.peer.address, sizeof(conn->conn.peer.address));
	}
	if (conn->conn.connector) {
		send_hello(conn, NET_HELLO, conn->conn.hello, conn->conn.hello_bytes);
	} else if (conn->conn.options.handshakes_max == CLAN_HANDSHAKES_OWN) {
		handshake_uncount(conn); /* the program limits handshakes itself */
		conn->conn.known = true;
		conn->conn.arrived_pending = true;
		clan_fire(conn->conn.queue, &conn->conn.source);
	}
}

static void clan_net_opened(struct net_conn *conn)
{
	handshake_ended(conn);
	/* All receive classes are enabled from the start, so the first message raises READY. */
	clan_conn_set_state(&conn->conn, CLAN_OPEN);
	conn->conn.enabled = CLAN_READY_CONTROL | CLAN_READY_BULK | CLAN_READY_COOKIES;
}

static int clan_net_hello_arrived(struct net_conn *conn, const uint8_t *data, uint32_t bytes)
{
	bool connector = conn->conn.connector;
	struct net_hello head;

	memcpy(&head, data, sizeof(head));
	if (head.magic != conn->transport->magic || head.version_min > head.version_max ||
		!is_power_of_two(head.bulk_slots) || head.bulk_slots < CLAN_BULK_SLOTS_MIN ||
		head.bulk_slots > CLAN_BULK_SLOTS_MAX || head.cookies < 1 ||
		head.cookies > CLAN_TABLE_MAX || head.hello_bytes > CLAN_HELLO_BYTES_MAX ||
		head.hello_bytes != bytes - sizeof(head) ||
		conn->conn.state != (connector ? CLAN_CONNECTING : CLAN_OPENING)) {
		return net_broken(conn, 8, "the hello is invalid");
	}
	if (head.version_min > NET_VERSION || head.version_max < NET_VERSION) {
		net_conn_end(conn, -EPROTONOSUPPORT, "the peer has no supported version");
		return -EPROTO;
	}
	conn->ticket_count = head.cookies;
	if (clan_conn_set_hello(&conn->conn, data + sizeof(head), head.hello_bytes) != 0 ||
		net_rings_make(conn, head.bulk_slots) != 0) {
		net_conn_end(conn, -ENOMEM, "not enough memory for the connection");
		return -EPROTO;
	}
	if (connector) {
		clan_net_opened(conn);
	} else {
		clan_conn_set_state(&conn->conn, CLAN_OFFERED);
		conn->conn.known = true;
	}
	conn->conn.connect_pending = true;
	clan_fire(conn->conn.queue, &conn->conn.source);
	return 0;
}

static int clan_net_refused_arrived(struct net_conn *conn, const uint8_t *data, uint32_t bytes)
{
	char reason[CLAN_REASON_BYTES];
	struct net_refused head;

	memcpy(&head, data, sizeof(head));
	if (conn->conn.state != CLAN_CONNECTING || head.text_bytes != bytes - sizeof(head) ||
		head.text_bytes > CLAN_HELLO_BYTES_MAX || head.error != ECONNREFUSED) {
		return net_broken(conn, 8, "the refusal is invalid");
	}
	clan_conn_refused(&conn->conn, data + sizeof(head), head.text_bytes, reason);
	net_conn_end(conn, -ECONNREFUSED, reason);
	return -EPROTO;
}

int net_setup_arrived(
	struct net_conn *conn, enum net_system_type type, const uint8_t *data, uint32_t bytes)
{
	if (conn->conn.state == CLAN_CLOSING && type != NET_END) {
		return 0; /* ignored */
	}
	if (type == NET_END) {
		struct net_refused end;

		memcpy(&end, data, sizeof(end));
		if (end.error != 0 || end.text_bytes != 0) {
			return net_broken(conn, 5, "reserved bytes of a record are not 0");
		}
		conn->peer_ended = true;
		if (conn->conn.state == CLAN_CLOSING) {
			net_conn_drained(conn);
		} else {
			net_conn_end(conn, -ECONNRESET, "the peer closed the connection");
		}
		return -EPROTO;
	}
	if (type == NET_REFUSED) {
		return clan_net_refused_arrived(conn, data, bytes);
	}
	if ((type == NET_WELCOME) != conn->conn.connector) {
		return net_broken(conn, 8, "a record of a type that only the other side may send");
	}
	return clan_net_hello_arrived(conn, data, bytes);
}

/* --- connecting and accepting ----------------------------------------------------------------- */

static void run_look_up(struct work *work)
{
	struct net_resolve *resolve = container_of(work, struct net_resolve, work);

	if (resolve->place.transport->look_up(
		    &resolve->place, false, &resolve->found, &resolve->error) != 0) {
		resolve->found = NULL;
	}
}

/* Called when the name is resolved: starts to connect. If the program has closed the connection
 * before, die() completes the close. */
static void looked_up(struct work *work)
{
	struct net_resolve *resolve = container_of(work, struct net_resolve, work);
	struct net_conn *conn = resolve->conn;
	char reason[CLAN_REASON_BYTES];
	int result = resolve->error.code;

	conn->resolve = NULL;
	if (conn->conn.state != CLAN_CONNECTING) {
		die(conn);
	} else {
		if (result == 0) {
			clan_net_set_phase(conn, NET_DIALING);
			result = conn->transport->dial(conn, resolve->found);
			resolve->found = NULL;
			if (result != 0) {
				error_set(&resolve->error, result, "%s", strerror(-result));
			}
		}
		if (result != 0) {
			snprintf(reason, sizeof(reason), "cannot connect: %.143s",
				resolve->error.text);
			net_conn_end(conn, result, reason);
		}
	}
	resolve->place.transport->found_free(resolve->found);
	free(resolve);
}

static int net_connect(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
	struct clan_conn **conn_out, struct error *error)
{
	struct net_resolve *resolve = calloc(1, sizeof(*resolve));
	struct net_conn *conn;
	int result;

	if (resolve == NULL) {
		return error_oom_for(error, "a connection");
	}
	result = clan_net_parse_place(address, &resolve->place, error);
	conn = result == 0 ? clan_net_conn_create(queue, resolve->place.transport, options,
				     CLAN_CONNECTING, error)
			   : NULL;
	if (conn == NULL) {
		free(resolve);
		return error->code;
	}
	conn->conn.connector = true;
	conn->conn.known = true;
	if (clan_conn_set_hello(&conn->conn, hello, hello_bytes) != 0) {
		free(resolve);
		clan_conn_set_state(&conn->conn, CLAN_CLOSING);
		clan_conn_set_state(&conn->conn, CLAN_CLOSED);
		clan_net_set_phase(conn, NET_CLOSED);
		clan_net_conn_destroy(&conn->conn);
		return error_oom_for(error, "a connection");
	}
	conn->resolve = resolve;
	resolve->conn = conn;
	resolve->work.run = run_look_up;
	resolve->work.done = looked_up;
	work_start(&resolve->work, &queue->results);
	if (clan_queue_is_passive(queue)) {
		work_finish(&queue->results);
	}
	*conn_out = &conn->conn;
	return 0;
}

static int net_accept(struct clan_conn *base, const void *hello, size_t hello_bytes)
{
	struct net_conn *conn = net_conn(base);

	send_hello(conn, NET_WELCOME, hello, hello_bytes);
	if (base->state == CLAN_LOST) {
		return -ECONNRESET;
	}
	clan_net_opened(conn);
	return 0;
}

static void net_reject(struct clan_conn *base, const char *text)
{
	struct net_conn *conn = net_conn(base);

	if (base->state == CLAN_OFFERED) {
		send_refused(conn, -ECONNREFUSED, text);
	} else if (conn->phase == NET_TALKING && conn->listener != NULL &&
		   conn->listener->refused_count < CLAN_HANDSHAKES_DEFAULT) {
		/* The peer has not sent HELLO. The number of peers that receive a rejection text in
		 * this phase is limited, because each needs a connection until the text is sent. */
		conn->is_refused = true;
		conn->listener->refused_count++;
		send_refused(conn, -ECONNREFUSED, text);
	}
}

static int net_adopt(struct clan_queue *queue, int fd, const struct clan_conn_options *options,
	struct clan_conn **conn_out, struct error *error)
{
	return error_set(
		error, -EOPNOTSUPP, "a network listener does not accept sockets from the caller");
}

struct net_conn *net_arrived(struct net_listener *listener)
{
	const struct clan_conn_options *options = &listener->listener.options;
	uint32_t handshakes_max = options->handshakes_max != CLAN_HANDSHAKES_OWN
					  ? options->handshakes_max
					  : (uint32_t)CLAN_HANDSHAKES_DEFAULT;
	struct net_conn *conn = NULL;
	struct error ignored = { 0 };

	if (listener->conn_count < options->conns_max &&
		listener->handshake_count < handshakes_max) {
		conn = clan_net_conn_create(listener->listener.queue, listener->transport, options,
			CLAN_OPENING, &ignored);
	}
	if (conn != NULL) {
		conn->listener = listener;
		conn->handshake_counted = true;
		listener->conn_count++;
		listener->handshake_count++;
		clan_net_set_phase(conn, NET_DIALING);
	}
	return conn;
}

/* --- listeners -------------------------------------------------------------------------------- */

/* Sets the listener's address, with the actual port. */
static void name_listener(struct net_listener *listener, const struct net_place *place,
	const struct sockaddr_storage *address)
{
	char text[INET6_ADDRSTRLEN + NET_PORT_BYTES + 3];

	format_address((const struct sockaddr *)address, text, sizeof(text));
	snprintf(listener->listener.address, sizeof(listener->listener.address), "%s:%s%s%s",
		place->provider == NULL ? "tcp" : "ofi", text,
		place->provider == NULL ? "" : "?provider=",
		place->provider == NULL ? "" : place->provider);
}

static int listener_open(struct clan_queue *queue, const struct net_place *place, void *found,
	struct net_listener **listener_out)
{
	struct sockaddr_storage address = { 0 };
	struct net_listener *listener =
		clan_net_queue_use(queue) == 0 ? calloc(1, place->transport->listener_bytes) : NULL;
	int result;

	if (listener == NULL) {
		return -ENOMEM;
	}
	listener->transport = place->transport;
	listener->listener.queue = queue;
	result = place->transport->listen(listener, found, &address);
	if (result != 0) {
		free(listener);
		return result;
	}
	name_listener(listener, place, &address);
	*listener_out = listener;
	return 0;
}

static int net_listen(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *options, struct clan_listener **listener_out,
	struct error *error)
{
	struct net_listener *listener = NULL;
	struct net_place parsed = { 0 };
	struct error reason = { 0 };
	void *found;
	int result = clan_net_parse_place(address, &parsed, error);

	if (result != 0) {
		return result;
	}
	if (options->access == CLAN_ACCESS_OWNER) {
		return error_set(error, -EINVAL,
			"cannot listen on \"%s\": users of other machines cannot be identified, so "
			"the listener must admit all users (CLAN_ACCESS_ANY or CLAN_ACCESS_WARY)",
			address);
	}
	result = parsed.transport->look_up(&parsed, true, &found, &reason);
	if (result == 0) {
		result = listener_open(queue, &parsed, found, &listener);
		if (result != 0) {
			error_set(&reason, result, "%s", strerror(-result));
		}
		parsed.transport->found_free(found);
	}
	if (result != 0) {
		return error_set(
			error, result, "cannot listen on \"%s\": %s", address, reason.text);
	}
	listener->listener.options = *options;
	*listener_out = &listener->listener;
	return 0;
}

/* Closes the listener's socket and the connections whose handles the program does not have. The
 * listener is freed with the last of its connections, because each is counted in the listener. */
static void clan_net_listener_close(struct clan_listener *base)
{
	struct net_listener *listener = container_of(base, struct net_listener, listener);

	listener->transport->listener_close(listener);
	list_for_each(node, &base->queue->conns)
	{
		struct clan_conn *conn = list_entry(node, struct clan_conn, node);

		if (conn->provider == &clan_provider_net && !conn->known &&
			net_conn(conn)->listener == listener) {
			net_conn_end(net_conn(conn), -ECONNRESET, "");
		}
	}
	listener->closed = true;
	if (listener->conn_count == 0) {
		free(listener);
	}
}

/* --- queues ----------------------------------------------------------------------------------- */

static void clan_net_publish(struct clan_queue *queue)
{
	struct net_queue *net = net_queue(queue);
	struct list_node todo;

	/* A connection without room for all its records returns to the dirty list, to be published
	 * in the next turn. */
	list_init(&todo);
	list_move_all(&todo, &net->dirty);
	while (!list_is_empty(&todo)) {
		net_publish_conn(list_entry(list_pop_front(&todo), struct net_conn, dirty_node));
	}
	net_bury(queue);
}

/* Publishes after the progress of all transports, so records that they queue are sent now. */
static bool clan_net_progress(struct clan_queue *queue)
{
	struct net_queue *net = net_queue(queue);
	bool any = false;

	for (size_t i = 0; i < NET_TRANSPORT_COUNT; i++) {
		any = (clan_net_uses(net, i) && transports[i]->progress(net)) || any;
	}
	clan_net_publish(queue);
	while (!list_is_empty(&net->dead)) {
		struct net_conn *conn =
			list_entry(list_pop_front(&net->dead), struct net_conn, dead_node);

		clan_net_conn_destroy(&conn->conn);
	}
	return any;
}

static bool clan_net_arm(struct clan_queue *queue)
{
	struct net_queue *net = net_queue(queue);
	bool found = !list_is_empty(&net->dirty);

	for (size_t i = 0; i < NET_TRANSPORT_COUNT; i++) {
		found = (clan_net_uses(net, i) && transports[i]->arm(net)) || found;
	}
	return found;
}

static void net_flush(struct clan_conn *base)
{
	net_publish_conn(net_conn(base));
}

static void clan_net_get_stats(const struct clan_conn *base, struct clan_conn_stats *stats)
{
	stats->bell = base->queue->options.bell;
	stats->peer_bell = CLAN_BELL_SOCKET;
}

static int clan_net_socket(const struct clan_conn *base)
{
	const struct net_conn *conn = (const struct net_conn *)base;

	return conn->transport->socket != NULL ? conn->transport->socket(conn) : -1;
}

/* Copies within the call: a network peer cannot punch holes into the memory, so the copy never
 * stalls. */
static int fetch(struct clan_conn *base, const struct clan_region *region, uint64_t offset,
	void *to, size_t bytes, void *op)
{
	memcpy(to, region->base + offset, bytes);
	return net_rma_ended(net_conn(base), op);
}

static int clan_net_peer_get(struct clan_conn *base, uint32_t number, uint32_t generation,
	uint32_t rights, uint64_t offset, uint64_t bytes, void **address_out)
{
	return -EOPNOTSUPP;
}

static void clan_net_peer_put(struct clan_conn *base, uint32_t number)
{
	GMB_ASSERT(!"no region of the peer was held");
}

/* The connection's memory is not freed, because the transport's state in it can refer to objects of
 * the parent. */
static void clan_net_after_fork(
	struct clan_queue *queue, struct clan_conn *base, struct clan_listener *base_listener)
{
	if (base != NULL) {
		net_conn(base)->transport->after_fork(net_conn(base), NULL);
	} else if (base_listener != NULL) {
		struct net_listener *listener =
			container_of(base_listener, struct net_listener, listener);

		listener->transport->after_fork(NULL, listener);
	}
}

const struct clan_provider clan_provider_net = {
	.schemes = { "tcp", "ofi" },
	.listen = net_listen,
	.listener_close = clan_net_listener_close,
	.adopt = net_adopt,
	.connect = net_connect,
	.accept = net_accept,
	.reject = net_reject,
	.close = clan_net_conn_close,
	.destroy = clan_net_conn_destroy,
	.after_fork = clan_net_after_fork,
	.send = net_send,
	.flush = net_flush,
	.recv = net_recv,
	.readv = net_readv,
	.get_stats = clan_net_get_stats,
	.socket = clan_net_socket,
	.share = net_share,
	.unshare = net_unshare,
	.peer_info = net_peer_info,
	.peer_get = clan_net_peer_get,
	.peer_put = clan_net_peer_put,
	.grant = net_grant,
	.revoke = net_revoke,
	.void_cookies = net_void_cookies,
	.put = net_put,
	.get = net_get,
	.fetch = fetch,
	.tripwire = net_tripwire,
	.rearm = net_rearm,
	.tripwire_remove = net_tripwire_remove,
	.cookie_push = net_cookie_push,
	.cookie_pop = net_cookie_pop,
	.progress = clan_net_progress,
	.publish = clan_net_publish,
	.arm = clan_net_arm,
	.queue_destroy = clan_net_queue_destroy,
};
