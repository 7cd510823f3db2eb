// SPDX-License-Identifier: Apache-2.0
/*
 * The provider's addresses and listeners, and the life of its connections: docs/protocol/clan.md
 * §12.1 and §12.2.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "clan/ofi.h"

#define NS_PER_MS UINT64_C(1000000)

enum {
	LINGER_MS = 2000, /* for what was sent before clan_close() */
	HOST_BYTES = 256,
	PORT_BYTES = 6,
};

/* A name that is looked up. It outlives its connection only as long as the worker has it. */
struct ofi_resolve {
	struct work work;
	struct ofi_conn *conn;
	char provider[8];
	char host[HOST_BYTES];
	char port[PORT_BYTES];
	struct fi_info *info;
	struct error error;
};

/* --- addresses -------------------------------------------------------------------------------- */

static int address_error(struct error *error, const char *place)
{
	return error_set(error, -EINVAL,
		"\"ofi:%s\": the address is ofi:HOST:PORT, with IPv6 addresses in brackets, and "
		"?provider=tcp or ?provider=verbs behind it",
		place);
}

static bool copy_part(char *to, size_t room, const char *from, size_t length)
{
	if (length == 0 || length >= room) {
		return false;
	}
	memcpy(to, from, length);
	to[length] = '\0';
	return true;
}

/* Fills in what is looked up. */
static int parse_place(const char *place, struct ofi_resolve *resolve, struct error *error)
{
	const char *option = strchr(place, '?');
	const char *end = option != NULL ? option : place + strlen(place);
	const char *host_end = place[0] == '[' ? memchr(place, ']', (size_t)(end - place))
					       : memchr(place, ':', (size_t)(end - place));
	const char *host = place + (place[0] == '[');
	const char *provider = "tcp";
	const char *port;
	char *digits_end;

	if (host_end == NULL) {
		return address_error(error, place);
	}
	port = host_end + (place[0] == '[') + 1;
	if (port >= end || port[-1] != ':') {
		return address_error(error, place);
	}
	if (option != NULL) {
		if (strncmp(option, "?provider=", strlen("?provider=")) != 0) {
			return address_error(error, place);
		}
		provider = option + strlen("?provider=");
	}
	if ((strcmp(provider, "tcp") != 0 && strcmp(provider, "verbs") != 0) ||
		!copy_part(resolve->host, sizeof(resolve->host), host, (size_t)(host_end - host)) ||
		!copy_part(resolve->port, sizeof(resolve->port), port, (size_t)(end - port)) ||
		strspn(resolve->port, "0123456789") != strlen(resolve->port) ||
		strtoul(resolve->port, &digits_end, 10) > UINT16_MAX) {
		return address_error(error, place);
	}
	snprintf(resolve->provider, sizeof(resolve->provider), "%s", provider);
	return 0;
}

/* "HOST:PORT" of a socket address, numeric. */
static void format_address(const struct sockaddr *address, char *text, size_t text_bytes)
{
	char host[INET6_ADDRSTRLEN] = "?";

	if (address->sa_family == AF_INET6) {
		struct sockaddr_in6 in6;

		memcpy(&in6, address, sizeof(in6));
		inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof(host));
		snprintf(text, text_bytes, "[%s]:%u", host, ntohs(in6.sin6_port));
	} else {
		struct sockaddr_in in;

		memcpy(&in, address, sizeof(in));
		inet_ntop(AF_INET, &in.sin_addr, host, sizeof(host));
		snprintf(text, text_bytes, "%s:%u", host, ntohs(in.sin_port));
	}
}

static int queue_use(struct clan_queue *queue)
{
	struct ofi_queue *ofi;

	if (ofi_queue(queue) != NULL) {
		return 0;
	}
	ofi = calloc(1, sizeof(*ofi));
	if (ofi == NULL) {
		return -ENOMEM;
	}
	list_init(&ofi->nets);
	list_init(&ofi->dirty);
	list_init(&ofi->dying);
	list_init(&ofi->dead);
	list_init(&ofi->rmas);
	queue->carriers[CLAN_OFI] = ofi;
	return 0;
}

static void queue_destroy(struct clan_queue *queue)
{
	struct ofi_queue *ofi = ofi_queue(queue);

	list_for_each(node, &ofi->nets)
	{
		ofi_net_destroy(list_entry(node, struct ofi_net, node));
	}
	ofi_rma_free_all(ofi);
	free(ofi);
	queue->carriers[CLAN_OFI] = NULL;
}

/* --- life of a connection --------------------------------------------------------------------- */

static const uint32_t phase_edges[OFI_PHASE_COUNT] = {
	[OFI_RESOLVING] = BIT(OFI_DIALING) | BIT(OFI_GONE),
	[OFI_DIALING] = BIT(OFI_TALKING) | BIT(OFI_GONE),
	[OFI_TALKING] = BIT(OFI_GONE),
};

static void set_phase(struct ofi_conn *conn, enum ofi_phase phase)
{
	GMB_ASSERT((phase_edges[conn->phase] & BIT(phase)) != 0);
	conn->phase = phase;
}

static void deadline_passed(struct clan_deadline *deadline)
{
	struct ofi_conn *conn = container_of(deadline, struct ofi_conn, conn.deadline);

	if (conn->conn.state == CLAN_CLOSING) {
		conn->ending = false;
		ofi_conn_end(conn, 0, NULL);
	} else {
		ofi_conn_end(conn, -ETIMEDOUT, "the handshake took too long");
	}
}

static struct ofi_conn *conn_create(struct clan_queue *queue,
	const struct clan_conn_options *options, enum clan_state state, struct error *error)
{
	struct ofi_conn *conn;

	if (queue->conn_count >= queue->options.conns_max) {
		error_set(error, -EUSERS, "the queue has its %u connections already",
			queue->options.conns_max);
		return NULL;
	}
	conn = queue_use(queue) == 0 ? calloc(1, sizeof(*conn)) : NULL;
	if (conn == NULL) {
		error_set(error, -ENOMEM, "not enough memory for a connection");
		return NULL;
	}
	clan_conn_init(&conn->conn, &clan_provider_ofi, queue, options, state);
	conn->conn.deadline.passed = deadline_passed;
	conn->conn.peer.uid = (uid_t)-1; /* nobody knows */
	conn->conn.peer.gid = (gid_t)-1;
	list_init(&conn->dirty_node);
	list_init(&conn->dying_node);
	list_init(&conn->dead_node);
	list_init(&conn->free_sends);
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

static void handshake_ended(struct ofi_conn *conn)
{
	clan_deadline_clear(&conn->conn.deadline);
	if (conn->handshake_counted) {
		conn->handshake_counted = false;
		conn->listener->handshake_count--;
	}
}

static void listener_leave(struct ofi_conn *conn)
{
	if (conn->listener != NULL) {
		conn->listener->conn_count--;
		if (conn->listener->closed && conn->listener->conn_count == 0) {
			free(conn->listener);
		}
	}
}

static void conn_destroy(struct clan_conn *base)
{
	struct ofi_conn *conn = ofi_conn(base);

	GMB_ASSERT(conn->phase == OFI_GONE && conn->resolve == NULL);
	handshake_ended(conn);
	listener_leave(conn);
	list_remove(&conn->dirty_node);
	list_remove(&conn->dead_node);
	ofi_memory_free(conn);
	ofi_frames_free(conn);
	clan_conn_fini(base);
	free(conn);
}

/* Makes the endpoint that the info describes, and gives it receives. */
static int endpoint_open(struct ofi_conn *conn, struct fi_info *info)
{
	int result = ofi_net_get(conn->conn.queue, info, &conn->net);

	if (result != 0) {
		return result;
	}
	conn->net->conn_count++;
	conn->piece_bytes_max = info->ep_attr->max_msg_size;
	conn->piece_iov_max = MIN(info->tx_attr->iov_limit, (size_t)OFI_PIECE_IOV);
	result = fi_endpoint(conn->net->domain, info, &conn->ep, conn);
	if (result == 0) {
		result = fi_ep_bind(conn->ep, &conn->net->eq->fid, 0);
	}
	if (result == 0) {
		result = fi_ep_bind(conn->ep, &conn->net->cq->fid, FI_TRANSMIT | FI_RECV);
	}
	if (result == 0) {
		result = fi_enable(conn->ep);
	}
	return result != 0 ? ofi_errno(result) : ofi_frames_start(conn);
}

/* Nothing of the connection is anywhere but in its own memory. */
static void gone(struct ofi_conn *conn)
{
	struct clan_conn *base = &conn->conn;

	ofi_rma_end(conn);
	ofi_memory_end(conn);
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
			list_push_back(&ofi_queue(base->queue)->dead, &conn->dead_node);
		}
	}
}

/* Closes the endpoint, and takes what it leaves in the completion queue. */
static void endpoint_close(struct ofi_conn *conn)
{
	set_phase(conn, OFI_GONE);
	if (conn->ep != NULL) {
		fi_close(&conn->ep->fid);
		conn->ep = NULL;
	}
	if (conn->net != NULL) {
		ofi_net_reap(conn->net);
		conn->net->conn_count--;
		conn->net = NULL;
	}
}

void ofi_bury(struct clan_queue *queue)
{
	struct ofi_queue *ofi = ofi_queue(queue);

	while (!ofi->reaping && !list_is_empty(&ofi->dying)) {
		struct ofi_conn *conn =
			list_entry(list_pop_front(&ofi->dying), struct ofi_conn, dying_node);

		endpoint_close(conn);
		gone(conn);
	}
}

/* The endpoint is to be closed, by ofi_bury(). */
static void die(struct ofi_conn *conn)
{
	if (conn->phase != OFI_GONE && conn->resolve == NULL &&
		!list_is_linked(&conn->dying_node)) {
		list_push_back(&ofi_queue(conn->conn.queue)->dying, &conn->dying_node);
	}
}

void ofi_conn_end(struct ofi_conn *conn, int status, const char *reason)
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

/* What the provider tcp reports when its first message was answered by something else, or not. */
static bool is_no_answer(int code)
{
	return code == -ECANCELED || code == -EINPROGRESS || code == -ECONNRESET ||
	       code == -EPIPE || code == -EPROTO;
}

void ofi_conn_cut(struct ofi_conn *conn, int error)
{
	char reason[CLAN_REASON_BYTES];
	bool dialing = conn->phase == OFI_DIALING;
	int code = ofi_errno(error);
	const char *advice = uri_tcp_advice(code);

	conn->ending = false;
	if (dialing && is_no_answer(code)) {
		ofi_conn_end(conn, code,
			"cannot connect: what listens there closed the connection; is this the "
			"port of another protocol?");
	} else if (dialing && error != 0) {
		snprintf(reason, sizeof(reason), "cannot connect: %s%s%s", strerror(-code),
			advice != NULL ? "; " : "", advice != NULL ? advice : "");
		ofi_conn_end(conn, code, reason);
	} else {
		ofi_conn_end(conn, -ECONNRESET,
			"the peer has gone: its process has ended, or it cannot be reached");
	}
}

int ofi_broken(struct ofi_conn *conn, uint32_t rule, const char *what)
{
	char reason[CLAN_REASON_BYTES];

	snprintf(reason, sizeof(reason), "the peer broke rule O%u: %s", rule, what);
	conn->ending = false;
	ofi_conn_end(conn, -EPROTO, reason);
	return -EPROTO;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void write_end(struct ofi_conn *conn, struct ofi_owed *owed)
{
	struct ofi_refused record = { 0 };

	GMB_UNUSED(owed);
	ofi_append_system(conn, OFI_END, &record, sizeof(record));
}

/* The peer answers END by closing its end: then everything has arrived. So nothing is done here
 * but when it has ended first. */
void ofi_conn_drained(struct ofi_conn *conn)
{
	if (conn->ending && conn->peer_ended && conn->sends_posted == 0) {
		conn->ending = false;
		ofi_conn_end(conn, 0, NULL);
	}
}

static void conn_close(struct clan_conn *base)
{
	struct ofi_conn *conn = ofi_conn(base);
	bool talks = conn->phase == OFI_TALKING && !list_is_linked(&conn->dying_node);

	handshake_ended(conn);
	ofi_memory_close(conn);
	ofi_rma_close(conn);
	if (conn->phase == OFI_GONE) {
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
	ofi_owe(conn, &conn->end_owed, write_end);
	ofi_publish_conn(conn);
	clan_deadline_set(base->queue, &base->deadline, LINGER_MS * NS_PER_MS);
}

/* --- set-up ----------------------------------------------------------------------------------- */

static void send_hello(
	struct ofi_conn *conn, enum ofi_system_type type, const void *hello, size_t hello_bytes)
{
	struct ofi_hello head = {
		.magic = OFI_MAGIC,
		.version_min = OFI_VERSION,
		.version_max = OFI_VERSION,
		.bulk_slots = conn->conn.options.bulk_slots,
		.cookies = conn->conn.options.cookies,
		.hello_bytes = (uint32_t)hello_bytes,
	};
	struct iovec iov[2] = {
		{ .iov_base = &head, .iov_len = sizeof(head) },
		{ .iov_base = (void *)(uintptr_t)hello, .iov_len = hello_bytes },
	};
	bool had_room =
		ofi_append(conn, OFI_SYSTEM, (uint8_t)type, iov, sizeof(head) + hello_bytes);

	GMB_ASSERT(had_room);
	ofi_publish_conn(conn);
}

static void send_refused(struct ofi_conn *conn, int status, const char *text)
{
	size_t text_bytes = strnlen(text, CLAN_HELLO_BYTES_MAX);
	struct ofi_refused head = { .error = (uint32_t)-status,
		.text_bytes = (uint32_t)text_bytes };
	struct iovec iov[2] = {
		{ .iov_base = &head, .iov_len = sizeof(head) },
		{ .iov_base = (void *)(uintptr_t)text, .iov_len = text_bytes },
	};
	bool had_room = ofi_append(conn, OFI_SYSTEM, OFI_REFUSED, iov, sizeof(head) + text_bytes);

	GMB_ASSERT(had_room);
	ofi_publish_conn(conn);
}

void ofi_connected(struct ofi_conn *conn)
{
	char address[sizeof(struct sockaddr_storage)] __attribute__((aligned(8)));
	size_t length = sizeof(address);

	if (conn->phase != OFI_DIALING || list_is_linked(&conn->dying_node)) {
		return;
	}
	set_phase(conn, OFI_TALKING);
	if (fi_getpeer(conn->ep, address, &length) == 0) {
		format_address((const struct sockaddr *)(const void *)address,
			conn->conn.peer.address, sizeof(conn->conn.peer.address));
	}
	if (conn->conn.connector) {
		send_hello(conn, OFI_HELLO, conn->conn.hello, conn->conn.hello_bytes);
	}
}

static void opened(struct ofi_conn *conn)
{
	handshake_ended(conn);
	clan_conn_set_state(&conn->conn, CLAN_OPEN);
	conn->conn.enabled = CLAN_READY_CONTROL | CLAN_READY_BULK | CLAN_READY_COOKIES;
}

/* HELLO or WELCOME. */
static int hello_arrived(struct ofi_conn *conn, const uint8_t *data, uint32_t bytes)
{
	bool connector = conn->conn.connector;
	struct ofi_hello head;

	memcpy(&head, data, sizeof(head));
	if (head.magic != OFI_MAGIC || head.version_min > head.version_max ||
		!is_power_of_two(head.bulk_slots) || head.bulk_slots < CLAN_BULK_SLOTS_MIN ||
		head.bulk_slots > CLAN_BULK_SLOTS_MAX || head.cookies < 1 ||
		head.cookies > CLAN_TABLE_MAX || head.hello_bytes > CLAN_HELLO_BYTES_MAX ||
		head.hello_bytes != bytes - sizeof(head) ||
		conn->conn.state != (connector ? CLAN_CONNECTING : CLAN_OPENING)) {
		return ofi_broken(conn, 8, "what it says first is impossible");
	}
	if (head.version_min > OFI_VERSION || head.version_max < OFI_VERSION) {
		ofi_conn_end(conn, -EPROTONOSUPPORT, "the peer speaks no version that is known");
		return -EPROTO;
	}
	conn->ticket_count = head.cookies;
	if (clan_conn_set_hello(&conn->conn, data + sizeof(head), head.hello_bytes) != 0 ||
		ofi_rings_make(conn, head.bulk_slots) != 0) {
		ofi_conn_end(conn, -ENOMEM, "no memory for the connection");
		return -EPROTO;
	}
	if (connector) {
		opened(conn);
	} else {
		clan_conn_set_state(&conn->conn, CLAN_OFFERED);
		conn->conn.known = true;
	}
	conn->conn.connect_pending = true;
	clan_fire(conn->conn.queue, &conn->conn.source);
	return 0;
}

static int refused_arrived(struct ofi_conn *conn, const uint8_t *data, uint32_t bytes)
{
	char reason[CLAN_REASON_BYTES];
	struct ofi_refused head;

	memcpy(&head, data, sizeof(head));
	if (conn->conn.state != CLAN_CONNECTING || head.text_bytes != bytes - sizeof(head) ||
		head.text_bytes > CLAN_HELLO_BYTES_MAX || head.error != ECONNREFUSED) {
		return ofi_broken(conn, 8, "its refusal is impossible");
	}
	clan_conn_refused(&conn->conn, data + sizeof(head), head.text_bytes, reason);
	ofi_conn_end(conn, -ECONNREFUSED, reason);
	return -EPROTO;
}

int ofi_setup_arrived(
	struct ofi_conn *conn, enum ofi_system_type type, const uint8_t *data, uint32_t bytes)
{
	if (conn->conn.state == CLAN_CLOSING && type != OFI_END) {
		return 0; /* too late */
	}
	if (type == OFI_END) {
		struct ofi_refused end;

		memcpy(&end, data, sizeof(end));
		if (end.error != 0 || end.text_bytes != 0) {
			return ofi_broken(conn, 5, "reserved bytes of a record are not 0");
		}
		conn->peer_ended = true;
		if (conn->conn.state == CLAN_CLOSING) {
			ofi_conn_drained(conn);
		} else {
			ofi_conn_end(conn, -ECONNRESET, "the peer closed the connection");
		}
		return -EPROTO;
	}
	if (type == OFI_REFUSED) {
		return refused_arrived(conn, data, bytes);
	}
	if ((type == OFI_WELCOME) != conn->conn.connector) {
		return ofi_broken(conn, 8, "it says what the other side should");
	}
	return hello_arrived(conn, data, bytes);
}

/* --- connecting and accepting ----------------------------------------------------------------- */

static void run_look_up(struct work *work)
{
	struct ofi_resolve *resolve = container_of(work, struct ofi_resolve, work);

	if (ofi_look_up(resolve->provider, resolve->host, resolve->port, false, &resolve->info,
		    &resolve->error) != 0) {
		resolve->info = NULL;
	}
}

static void looked_up(struct work *work)
{
	struct ofi_resolve *resolve = container_of(work, struct ofi_resolve, work);
	struct ofi_conn *conn = resolve->conn;
	char reason[CLAN_REASON_BYTES];
	int result = resolve->error.code;

	conn->resolve = NULL;
	if (conn->conn.state != CLAN_CONNECTING) {
		die(conn);
	} else {
		if (result == 0) {
			set_phase(conn, OFI_DIALING);
			result = endpoint_open(conn, resolve->info);
			if (result == 0) {
				result = ofi_errno(
					fi_connect(conn->ep, resolve->info->dest_addr, NULL, 0));
			}
			if (result != 0) {
				error_set(&resolve->error, result, "%s", strerror(-result));
			}
		}
		if (result != 0) {
			snprintf(reason, sizeof(reason), "cannot connect: %.143s",
				resolve->error.text);
			ofi_conn_end(conn, result, reason);
		}
	}
	ofi_info_free(resolve->info);
	free(resolve);
}

static int ofi_connect(struct clan_queue *queue, const char *place,
	const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
	struct clan_conn **conn_out, struct error *error)
{
	struct ofi_resolve *resolve = calloc(1, sizeof(*resolve));
	struct ofi_conn *conn;
	int result;

	if (resolve == NULL) {
		return error_set(error, -ENOMEM, "not enough memory for a connection");
	}
	result = parse_place(place, resolve, error);
	conn = result == 0 ? conn_create(queue, options, CLAN_CONNECTING, error) : NULL;
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
		set_phase(conn, OFI_GONE);
		conn_destroy(&conn->conn);
		return error_set(error, -ENOMEM, "not enough memory for a connection");
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

static int ofi_accept(struct clan_conn *base, const void *hello, size_t hello_bytes)
{
	struct ofi_conn *conn = ofi_conn(base);

	send_hello(conn, OFI_WELCOME, hello, hello_bytes);
	if (base->state == CLAN_LOST) {
		return -ECONNRESET;
	}
	opened(conn);
	return 0;
}

static void ofi_reject(struct clan_conn *base, const char *text)
{
	send_refused(ofi_conn(base), -ECONNREFUSED, text);
}

static int ofi_adopt(struct clan_queue *queue, int fd, const struct clan_conn_options *options,
	struct clan_conn **conn_out, struct error *error)
{
	GMB_UNUSED(queue);
	GMB_UNUSED(fd);
	GMB_UNUSED(options);
	GMB_UNUSED(conn_out);
	return error_set(error, -EOPNOTSUPP, "libfabric takes no sockets");
}

void ofi_connection_requested(struct ofi_listener *listener, struct fi_info *info)
{
	const struct clan_conn_options *options = &listener->listener.options;
	struct ofi_conn *conn = NULL;
	struct error ignored = { 0 };
	int result;

	if (listener->conn_count < options->conns_max &&
		listener->handshake_count < options->handshakes_max) {
		conn = conn_create(listener->listener.queue, options, CLAN_OPENING, &ignored);
	}
	if (conn == NULL) {
		fi_reject(listener->pep, info->handle, NULL, 0);
		ofi_info_free(info);
		return;
	}
	conn->listener = listener;
	conn->handshake_counted = true;
	listener->conn_count++;
	listener->handshake_count++;
	set_phase(conn, OFI_DIALING);
	result = endpoint_open(conn, info);
	if (result == 0) {
		result = ofi_errno(fi_accept(conn->ep, NULL, 0));
	} else if (conn->ep == NULL) {
		fi_reject(listener->pep, info->handle, NULL, 0);
	}
	ofi_info_free(info);
	if (result != 0) {
		ofi_conn_end(conn, result, "");
	}
}

/* --- listeners -------------------------------------------------------------------------------- */

/* The address at which it listens: with the port that was found free. */
static int name_listener(struct ofi_listener *listener, const char *provider)
{
	char address[sizeof(struct sockaddr_storage)] __attribute__((aligned(8)));
	size_t length = sizeof(address);
	char text[INET6_ADDRSTRLEN + PORT_BYTES + 3];
	int result = fi_getname(&listener->pep->fid, address, &length);

	if (result != 0) {
		return ofi_errno(result);
	}
	format_address((const struct sockaddr *)(const void *)address, text, sizeof(text));
	snprintf(listener->listener.address, sizeof(listener->listener.address),
		"ofi:%s?provider=%s", text, provider);
	return 0;
}

static int listener_open(struct ofi_listener *listener, struct clan_queue *queue,
	struct fi_info *info, const char *provider)
{
	int result = ofi_net_get(queue, info, &listener->net);

	if (result != 0) {
		return result;
	}
	result = fi_passive_ep(listener->net->fabric, info, &listener->pep, listener);
	if (result == 0) {
		result = fi_pep_bind(listener->pep, &listener->net->eq->fid, 0);
	}
	if (result == 0) {
		result = fi_listen(listener->pep);
	}
	return result != 0 ? ofi_errno(result) : name_listener(listener, provider);
}

static int ofi_listen(struct clan_queue *queue, const char *place,
	const struct clan_conn_options *options, struct clan_listener **listener_out,
	struct error *error)
{
	struct ofi_listener *listener = NULL;
	struct ofi_resolve resolve = { 0 };
	int result = parse_place(place, &resolve, error);

	if (result != 0) {
		return result;
	}
	if (options->access != CLAN_ACCESS_ANY) {
		return error_set(error, -EINVAL,
			"cannot listen at \"ofi:%s\": nobody knows the users of other machines, so "
			"everybody must be admitted (CLAN_ACCESS_ANY)",
			place);
	}
	result = ofi_look_up(
		resolve.provider, resolve.host, resolve.port, true, &resolve.info, &resolve.error);
	if (result == 0) {
		listener = queue_use(queue) == 0 ? calloc(1, sizeof(*listener)) : NULL;
		result = listener == NULL
				 ? -ENOMEM
				 : listener_open(listener, queue, resolve.info, resolve.provider);
		if (result != 0) {
			error_set(&resolve.error, result, "%s", strerror(-result));
		}
	}
	ofi_info_free(resolve.info);
	if (result != 0) {
		if (listener != NULL && listener->pep != NULL) {
			fi_close(&listener->pep->fid);
		}
		free(listener);
		return error_set(error, result, "cannot listen at \"ofi:%s\": %s", place,
			resolve.error.text);
	}
	listener->listener.options = *options;
	*listener_out = &listener->listener;
	return 0;
}

static void listener_close(struct clan_listener *base)
{
	struct ofi_listener *listener = container_of(base, struct ofi_listener, listener);

	fi_close(&listener->pep->fid);
	list_for_each(node, &base->queue->conns)
	{
		struct clan_conn *conn = list_entry(node, struct clan_conn, node);

		if (conn->provider == &clan_provider_ofi && !conn->known &&
			ofi_conn(conn)->listener == listener) {
			ofi_conn_end(ofi_conn(conn), -ECONNRESET, "");
		}
	}
	listener->closed = true;
	if (listener->conn_count == 0) {
		free(listener);
	}
}

/* --- queues ----------------------------------------------------------------------------------- */

static void publish(struct clan_queue *queue)
{
	struct ofi_queue *ofi = ofi_queue(queue);
	struct list_node todo;

	/* What finds no room again comes back to the list, for the next turn. */
	list_init(&todo);
	while (!list_is_empty(&ofi->dirty)) {
		list_push_back(&todo, list_pop_front(&ofi->dirty));
	}
	while (!list_is_empty(&todo)) {
		ofi_publish_conn(list_entry(list_pop_front(&todo), struct ofi_conn, dirty_node));
	}
	ofi_bury(queue);
}

static bool progress(struct clan_queue *queue)
{
	struct ofi_queue *ofi = ofi_queue(queue);
	bool any = false;

	list_for_each(node, &ofi->nets)
	{
		any = ofi_net_reap(list_entry(node, struct ofi_net, node)) || any;
	}
	publish(queue);
	while (!list_is_empty(&ofi->dead)) {
		struct ofi_conn *conn =
			list_entry(list_pop_front(&ofi->dead), struct ofi_conn, dead_node);

		conn_destroy(&conn->conn);
	}
	return any;
}

static bool arm(struct clan_queue *queue)
{
	struct ofi_queue *ofi = ofi_queue(queue);
	bool found = !list_is_empty(&ofi->dirty);

	list_for_each(node, &ofi->nets)
	{
		found = !ofi_net_may_sleep(list_entry(node, struct ofi_net, node)) || found;
	}
	return found;
}

static void ofi_flush(struct clan_conn *base)
{
	ofi_publish_conn(ofi_conn(base));
}

static void get_stats(const struct clan_conn *base, struct clan_conn_stats *stats)
{
	stats->bell = base->queue->options.bell;
	stats->peer_bell = CLAN_BELL_SOCKET;
}

static int peer_get(struct clan_conn *base, uint32_t number, uint32_t generation, uint32_t rights,
	uint64_t offset, uint64_t bytes, void **address_out)
{
	GMB_UNUSED(base);
	GMB_UNUSED(number);
	GMB_UNUSED(generation);
	GMB_UNUSED(rights);
	GMB_UNUSED(offset);
	GMB_UNUSED(bytes);
	GMB_UNUSED(address_out);
	return -EOPNOTSUPP;
}

static void peer_put(struct clan_conn *base, uint32_t number)
{
	GMB_UNUSED(base);
	GMB_UNUSED(number);
	GMB_ASSERT(!"no region of the peer was held");
}

/* To close objects of libfabric in the child would shut the parent's connections down: they and
 * what they use stay until the child ends. */
static void after_fork(
	struct clan_queue *queue, struct clan_conn *base, struct clan_listener *listener)
{
	GMB_UNUSED(queue);
	GMB_UNUSED(base);
	GMB_UNUSED(listener);
}

const struct clan_provider clan_provider_ofi = {
	.scheme = "ofi",
	.listen = ofi_listen,
	.listener_close = listener_close,
	.adopt = ofi_adopt,
	.connect = ofi_connect,
	.accept = ofi_accept,
	.reject = ofi_reject,
	.close = conn_close,
	.destroy = conn_destroy,
	.after_fork = after_fork,
	.send = ofi_send,
	.flush = ofi_flush,
	.recv = ofi_recv,
	.readv = ofi_readv,
	.get_stats = get_stats,
	.share = ofi_share,
	.unshare = ofi_unshare,
	.peer_info = ofi_peer_info,
	.peer_get = peer_get,
	.peer_put = peer_put,
	.grant = ofi_grant,
	.revoke = ofi_revoke,
	.void_cookies = ofi_void_cookies,
	.put = ofi_put,
	.get = ofi_get,
	.tripwire = ofi_tripwire,
	.rearm = ofi_rearm,
	.tripwire_remove = ofi_tripwire_remove,
	.cookie_push = ofi_cookie_push,
	.cookie_pop = ofi_cookie_pop,
	.progress = progress,
	.publish = publish,
	.arm = arm,
	.queue_destroy = queue_destroy,
};
