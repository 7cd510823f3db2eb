// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of <gmblock/clan.h> on connections. They check the arguments and the state of the
 * connection, and then call its provider.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/rights.h"
#include "clan/clan.h"

/* The table of providers. An address begins with a scheme of a provider and a colon. */
const struct clan_provider *const clan_providers[CLAN_PROVIDER_COUNT] = {
	[CLAN_SHM] = &clan_provider_shm,
	[CLAN_NET] = &clan_provider_net,
};

static const struct clan_provider *clan_conn_find_provider(const char *address, struct error *error)
{
	for (size_t i = 0; i < CLAN_PROVIDER_COUNT; i++) {
		for (size_t j = 0; j < ARRAY_COUNT(clan_providers[i]->schemes); j++) {
			const char *scheme = clan_providers[i]->schemes[j];
			size_t length = scheme == NULL ? 0 : strlen(scheme);

			if (scheme != NULL && strncmp(address, scheme, length) == 0 &&
				address[length] == ':') {
				return clan_providers[i];
			}
		}
	}
	error_set(error, -EPROTONOSUPPORT,
		"\"%s\": addresses begin with shm:, tcp: or ofi:", address);
	return NULL;
}

/* --- states ----------------------------------------------------------------------------------- */

/* The permitted transitions; docs/protocol/clan.md §3.2. */
static const uint32_t conn_edges[CLAN_STATE_COUNT] = {
	[CLAN_CONNECTING] = BIT(CLAN_OPEN) | BIT(CLAN_LOST) | BIT(CLAN_CLOSING),
	[CLAN_OPENING] = BIT(CLAN_OFFERED) | BIT(CLAN_LOST) | BIT(CLAN_CLOSING),
	[CLAN_OFFERED] = BIT(CLAN_OPEN) | BIT(CLAN_LOST) | BIT(CLAN_CLOSING),
	[CLAN_OPEN] = BIT(CLAN_LOST) | BIT(CLAN_CLOSING),
	[CLAN_LOST] = BIT(CLAN_CLOSING),
	[CLAN_CLOSING] = BIT(CLAN_CLOSED),
};

void clan_conn_set_state(struct clan_conn *conn, enum clan_state state)
{
	GMB_ASSERT((conn_edges[conn->state] & BIT(state)) != 0);
	conn->was_open |= state == CLAN_OPEN;
	conn->state = state;
}

/* Gives one event of a connection's source. CLAN_EVENT_CLOSED frees the connection, so the state is
 * checked first. */
static bool give_conn_event(struct clan_source *source, struct clan_event *event)
{
	struct clan_conn *conn = container_of(source, struct clan_conn, source);

	event->conn = conn;
	event->context = conn->context;
	if (conn->state == CLAN_CLOSED) {
		event->type = CLAN_EVENT_CLOSED;
		conn->provider->destroy(conn);
		return false;
	}
	/* The order matters: ARRIVED and CONNECT introduce the connection to the program, and the
	 * program closes the connection after LOST. */
	if (conn->arrived_pending) {
		conn->arrived_pending = false;
		event->type = CLAN_EVENT_ARRIVED;
	} else if (conn->connect_pending) {
		conn->connect_pending = false;
		event->type = conn->connector ? CLAN_EVENT_CONNECTED : CLAN_EVENT_CONNECT;
	} else if (conn->ready != 0) {
		event->type = CLAN_EVENT_READY;
		event->ready = conn->ready;
		conn->ready = 0;
	} else {
		GMB_ASSERT(conn->lost_pending);
		conn->lost_pending = false;
		event->type = CLAN_EVENT_LOST;
		event->status = conn->status;
	}
	return conn->connect_pending || conn->ready != 0 || conn->lost_pending;
}

void clan_conn_init(struct clan_conn *conn, const struct clan_provider *provider,
	struct clan_queue *queue, const struct clan_conn_options *options, enum clan_state state)
{
	conn->provider = provider;
	conn->queue = queue;
	conn->options = *options;
	conn->state = state;
	clan_source_init(&conn->source, give_conn_event);
	list_init(&conn->shares);
	list_init(&conn->deadline.node);
	list_push_back(&queue->conns, &conn->node);
	queue->conn_count++;
}

void clan_conn_fini(struct clan_conn *conn)
{
	GMB_ASSERT(conn->state == CLAN_CLOSED && list_is_empty(&conn->shares));
	clan_deadline_clear(&conn->deadline);
	list_remove(&conn->source.node);
	list_remove(&conn->node);
	conn->queue->conn_count--;
	free(conn->hello);
}

void clan_conn_lose(struct clan_conn *conn, int status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(conn->reason, sizeof(conn->reason), format, arguments);
	va_end(arguments);
	clan_conn_set_state(conn, CLAN_LOST);
	conn->status = status;
	conn->lost_pending = true;
	clan_fire(conn->queue, &conn->source);
}

/* Replaces the stored hello with a copy of the given one. A zero byte follows the copy, so that
 * text in it is terminated. */
int clan_conn_set_hello(struct clan_conn *conn, const void *hello, size_t bytes)
{
	uint8_t *copy = malloc(bytes + 1);

	if (copy == NULL) {
		return -ENOMEM;
	}
	if (bytes > 0) {
		memcpy(copy, hello, bytes);
	}
	copy[bytes] = '\0';
	free(conn->hello);
	conn->hello = copy;
	conn->hello_bytes = bytes;
	return 0;
}

void clan_conn_refused(struct clan_conn *conn, const void *text, size_t bytes, char *reason)
{
	char shown[CLAN_REASON_BYTES];

	/* If there is no memory for a copy of the text, it appears only in the reason. */
	if (clan_conn_set_hello(conn, text, bytes) != 0) {
		conn->hello_bytes = 0;
	}
	snprintf(reason, CLAN_REASON_BYTES, "the peer refused the connection%s%.*s",
		bytes > 0 ? ": " : "", CLAN_REASON_BYTES - 40,
		log_escape(shown, sizeof(shown), text, bytes));
}

/* See clan.h. Empty parts of the vector are skipped, so *index can advance without a copy. */
size_t clan_scatter(const struct iovec *iov, uint32_t iov_count, uint32_t *index, size_t *skip,
	const uint8_t *from, size_t bytes)
{
	size_t copied = 0;

	while (*index < iov_count && copied < bytes) {
		size_t part = MIN(iov[*index].iov_len - *skip, bytes - copied);

		if (part > 0) {
			memcpy((uint8_t *)iov[*index].iov_base + *skip, from + copied, part);
		}
		copied += part;
		*skip += part;
		if (*skip == iov[*index].iov_len) {
			(*index)++;
			*skip = 0;
		}
	}
	return copied;
}

void clan_conn_fire_ready(struct clan_conn *conn, uint32_t ready)
{
	ready &= conn->enabled;
	if (ready != 0) {
		conn->enabled &= ~ready;
		conn->ready |= ready;
		clan_fire(conn->queue, &conn->source);
	}
}

/* --- set-up ----------------------------------------------------------------------------------- */

static uint32_t clan_conn_or_default(uint32_t value, uint32_t standard)
{
	return value == 0 ? standard : value;
}

/* Fills in the defaults, and checks the values. */
static int clan_conn_check_options(const struct clan_conn_options *given,
	struct clan_conn_options *options, struct error *error)
{
	*options = (struct clan_conn_options){ .size = sizeof(*options) };
	if (given != NULL) {
		if (given->size != sizeof(*given)) {
			return error_set(
				error, -EINVAL, "options.size is not the size of the structure");
		}
		*options = *given;
	}
	options->bulk_slots = clan_conn_or_default(options->bulk_slots, CLAN_BULK_SLOTS_MIN);
	options->cookies = clan_conn_or_default(options->cookies, 64);
	options->tripwires = clan_conn_or_default(options->tripwires, 32);
	options->handshake_timeout_ms = clan_conn_or_default(options->handshake_timeout_ms, 10000);
	options->peer_slots_max =
		clan_conn_or_default(options->peer_slots_max, CLAN_BULK_SLOTS_MAX);
	options->peer_regions_max = clan_conn_or_default(options->peer_regions_max, 16);
	options->conns_max = clan_conn_or_default(options->conns_max, CLAN_CONNS_DEFAULT);
	options->handshakes_max =
		clan_conn_or_default(options->handshakes_max, CLAN_HANDSHAKES_DEFAULT);
	if (options->peer_region_bytes_max == 0) {
		options->peer_region_bytes_max = UINT64_C(64) << 20;
	}
	if (options->access > CLAN_ACCESS_WARY || !is_power_of_two(options->bulk_slots) ||
		options->bulk_slots < CLAN_BULK_SLOTS_MIN ||
		options->bulk_slots > CLAN_BULK_SLOTS_MAX || options->cookies > CLAN_TABLE_MAX ||
		options->tripwires > CLAN_TABLE_MAX ||
		options->peer_slots_max > CLAN_BULK_SLOTS_MAX ||
		options->peer_regions_max > CLAN_TABLE_MAX) {
		return error_set(error, -EINVAL, "invalid connection options");
	}
	return 0;
}

int clan_listen(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *given, struct clan_listener **listener_out,
	struct clan_error *error_out)
{
	struct clan_conn_options options;
	const struct clan_provider *provider = NULL;
	struct clan_listener *listener;
	struct error error = { 0 };

	if (clan_conn_check_options(given, &options, &error) == 0) {
		provider = clan_conn_find_provider(address, &error);
	}
	if (provider == NULL ||
		provider->listen(queue, address, &options, &listener, &error) != 0) {
		return clan_error_give(error_out, &error);
	}
	listener->provider = provider;
	listener->queue = queue;
	if (listener->address[0] == '\0') {
		snprintf(listener->address, sizeof(listener->address), "%s", address);
	}
	list_push_back(&queue->listeners, &listener->node);
	queue->listener_count++;
	*listener_out = listener;
	return 0;
}

const char *clan_listener_address(const struct clan_listener *listener)
{
	return listener->address;
}

void clan_listener_close(struct clan_listener *listener)
{
	if (listener != NULL) {
		list_remove(&listener->node);
		listener->queue->listener_count--;
		listener->provider->listener_close(listener);
	}
}

int clan_adopt(struct clan_queue *queue, int fd, const struct clan_conn_options *given,
	struct clan_conn **conn_out, struct clan_error *error_out)
{
	struct clan_conn_options options;
	struct error error = { 0 };

	/* Closing the socket can block if another user owns it, so a worker closes it, except for
	 * passive queues. */
	if (clan_conn_check_options(given, &options, &error) != 0 ||
		clan_providers[CLAN_SHM]->adopt(queue, fd, &options, conn_out, &error) != 0) {
		dispose_socket(fd, rights_owner(fd), clan_queue_is_passive(queue));
	} else {
		(*conn_out)->known = true;
	}
	return clan_error_give(error_out, &error);
}

int clan_connect(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *given, const void *hello, size_t hello_bytes,
	struct clan_conn **conn_out, struct clan_error *error_out)
{
	struct clan_conn_options options;
	const struct clan_provider *provider = NULL;
	struct error error = { 0 };

	if (hello_bytes > CLAN_HELLO_BYTES_MAX) {
		error_set(
			&error, -EINVAL, "the hello has more than %d bytes", CLAN_HELLO_BYTES_MAX);
	} else if (clan_conn_check_options(given, &options, &error) == 0) {
		provider = clan_conn_find_provider(address, &error);
	}
	if (provider != NULL) {
		provider->connect(queue, address, &options, hello, hello_bytes, conn_out, &error);
	}
	return clan_error_give(error_out, &error);
}

int clan_accept(struct clan_conn *conn, const void *hello, size_t hello_bytes)
{
	if (conn->state == CLAN_LOST) {
		return -ECONNRESET;
	}
	if (conn->state != CLAN_OFFERED || hello_bytes > CLAN_HELLO_BYTES_MAX) {
		return -EINVAL;
	}
	return conn->provider->accept(conn, hello, hello_bytes);
}

void clan_reject(struct clan_conn *conn, const char *text)
{
	if (conn->state == CLAN_OFFERED || (conn->state == CLAN_OPENING && conn->known)) {
		conn->provider->reject(conn, text);
	}
	clan_close(conn);
}

void clan_close(struct clan_conn *conn)
{
	GMB_ASSERT(conn->state < CLAN_CLOSING);
	clan_conn_set_state(conn, CLAN_CLOSING);
	conn->ready = 0;
	conn->arrived_pending = false;
	conn->connect_pending = false;
	conn->lost_pending = false;
	/* The program's handle ends here: pending events of the connection and of its shares are
	 * dropped. Only CLAN_EVENT_CLOSED follows. */
	list_remove(&conn->source.node);
	list_for_each(node, &conn->shares)
	{
		list_remove(&list_entry(node, struct clan_share, conn_node)->source.node);
	}
	conn->provider->close(conn);
}

/* --- facts ------------------------------------------------------------------------------------ */

void clan_conn_set_context(struct clan_conn *conn, void *context)
{
	conn->context = context;
}

void clan_conn_check_puts(struct clan_conn *conn, clan_put_check *check)
{
	conn->put_check = check;
}

void *clan_conn_context(const struct clan_conn *conn)
{
	return conn->context;
}

void clan_conn_peer(const struct clan_conn *conn, struct clan_peer *peer)
{
	*peer = conn->peer;
}

const void *clan_conn_hello(const struct clan_conn *conn, size_t *bytes_out)
{
	*bytes_out = conn->hello_bytes;
	return conn->hello;
}

const char *clan_conn_reason(const struct clan_conn *conn)
{
	return conn->reason;
}

uint32_t clan_conn_caps(const struct clan_conn *conn)
{
	return conn->provider->caps & ~(conn->is_wary ? (uint32_t)CLAN_CAN_MAP : 0);
}

void clan_conn_get_stats(const struct clan_conn *conn, struct clan_conn_stats *stats)
{
	size_t bytes = MIN(stats->size, sizeof(*stats));
	struct clan_conn_stats copy = conn->stats;

	conn->provider->get_stats(conn, &copy);
	copy.size = stats->size;
	memcpy(stats, &copy, bytes);
}

int clan_conn_socket(const struct clan_conn *conn)
{
	return conn->state == CLAN_OPEN && conn->provider->socket != NULL
		       ? conn->provider->socket(conn)
		       : -1;
}

/* --- messages --------------------------------------------------------------------------------- */

/* Adds up the lengths of a vector. Returns false if the sum exceeds max. */
static bool sum_iov(const struct iovec *iov, uint32_t iov_count, size_t max, size_t *bytes_out)
{
	size_t bytes = 0;

	for (uint32_t i = 0; i < iov_count; i++) {
		if (iov[i].iov_len > max - bytes) {
			return false;
		}
		bytes += iov[i].iov_len;
	}
	*bytes_out = bytes;
	return true;
}

int clan_sendv(struct clan_conn *conn, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count)
{
	size_t bytes;

	if ((cls != CLAN_CONTROL && cls != CLAN_BULK) || type == 0 || type >= CLAN_TYPE_STREAM ||
		iov_count > CLAN_IOV_MAX) {
		return -EINVAL;
	}
	if (!sum_iov(iov, iov_count,
		    cls == CLAN_CONTROL ? CLAN_CONTROL_BYTES_MAX : CLAN_BULK_BYTES_MAX, &bytes)) {
		return -EMSGSIZE;
	}
	if (conn->state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	return conn->provider->send(conn, cls, type, iov, iov_count, bytes);
}

int clan_send(struct clan_conn *conn, uint32_t cls, uint32_t type, const void *data, uint32_t bytes)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = bytes };

	return clan_sendv(conn, cls, type, &iov, 1);
}

ssize_t clan_writev(struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count)
{
	size_t bytes;

	if (iov_count > CLAN_STREAM_IOV_MAX || !sum_iov(iov, iov_count, INT32_MAX, &bytes) ||
		bytes == 0) {
		return -EINVAL;
	}
	if (conn->state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	return conn->provider->send(conn, CLAN_BULK, CLAN_TYPE_STREAM, iov, iov_count, bytes);
}

void clan_flush(struct clan_conn *conn)
{
	if (conn->state == CLAN_OPEN) {
		conn->provider->flush(conn);
	}
}

/* Returns true if the program can receive. Messages that the peer had published can also be
 * received after its end, but not after it broke a rule. */
static bool can_receive(const struct clan_conn *conn)
{
	return conn->state == CLAN_OPEN ||
	       (conn->state == CLAN_LOST && conn->was_open && conn->status == -ECONNRESET);
}

int clan_recv(struct clan_conn *conn, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes)
{
	if (classes == 0 || (classes & ~(uint32_t)CLAN_ANY) != 0) {
		return -EINVAL;
	}
	return can_receive(conn) ? conn->provider->recv(conn, classes, message, buffer, bytes)
				 : -ENOTCONN;
}

ssize_t clan_readv(
	struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count, uint32_t flags)
{
	size_t bytes;

	if (iov_count > CLAN_STREAM_IOV_MAX || (flags & ~(uint32_t)CLAN_READ_PEEK) != 0 ||
		!sum_iov(iov, iov_count, INT32_MAX, &bytes) || bytes == 0) {
		return -EINVAL;
	}
	return can_receive(conn) ? conn->provider->readv(conn, iov, iov_count, flags != 0)
				 : -ENOTCONN;
}

/* --- the peer's regions, puts and gets, tripwires, cookie queues ------------------------------ */

int clan_peer_region_info(
	const struct clan_conn *conn, uint32_t number, struct clan_peer_region *region)
{
	struct clan_peer_region copy = { .size = region->size };
	int result = conn->provider->peer_info(conn, number, &copy);

	if (result == 0) {
		memcpy(region, &copy, MIN(region->size, sizeof(copy)));
	}
	return result;
}

int clan_peer_region_get(struct clan_conn *conn, uint32_t number, uint32_t generation,
	uint32_t rights, uint64_t offset, uint64_t bytes, void **address_out)
{
	if (conn->state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	return conn->provider->peer_get(
		conn, number, generation, rights, offset, bytes, address_out);
}

void clan_peer_region_put(struct clan_conn *conn, uint32_t number)
{
	conn->provider->peer_put(conn, number);
}

static bool cookie_is_valid(const struct clan_cookie *cookie)
{
	return cookie->generation != 0 && cookie->bytes != 0 && cookie->reserved == 0;
}

int clan_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, uint32_t flags, uint32_t value, void *op)
{
	bool notify = (flags & CLAN_NOTIFY) != 0;

	if ((flags & ~(uint32_t)CLAN_NOTIFY) != 0 || from_count > CLAN_IOV_MAX ||
		value > (notify ? (uint32_t)CLAN_VALUE_MAX : 0) || !cookie_is_valid(cookie)) {
		return -EINVAL;
	}
	if (conn->state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	return conn->provider->put(conn, from, from_count, cookie, offset, notify, value, op);
}

int clan_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op)
{
	if (to_count > CLAN_IOV_MAX || !cookie_is_valid(cookie)) {
		return -EINVAL;
	}
	if (conn->state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	return conn->provider->get(conn, to, to_count, cookie, offset, op);
}

int clan_region_fetch(struct clan_conn *conn, const struct clan_region *region, uint64_t offset,
	void *to, size_t bytes, void *op)
{
	if (conn->queue != region->queue) {
		return -EINVAL;
	}
	if (!range_inside(offset, bytes, region->bytes)) {
		return -ERANGE;
	}
	return conn->state == CLAN_OPEN ? conn->provider->fetch(conn, region, offset, to, bytes, op)
					: -ENOTCONN;
}

int clan_rearm(struct clan_conn *conn, uint32_t number)
{
	return conn->state == CLAN_OPEN ? conn->provider->rearm(conn, number) : -ENOTCONN;
}

int clan_tripwire_remove(struct clan_conn *conn, uint32_t number)
{
	return conn->provider->tripwire_remove(conn, number);
}

int clan_cookie_queue_push(
	struct clan_conn *conn, uint32_t number, const struct clan_cookie *cookie)
{
	if (number >= CLAN_COOKIE_QUEUES || !cookie_is_valid(cookie)) {
		return -EINVAL;
	}
	return conn->state == CLAN_OPEN ? conn->provider->cookie_push(conn, number, cookie)
					: -ENOTCONN;
}

int clan_cookie_queue_pop(struct clan_conn *conn, uint32_t number, struct clan_cookie *cookie_out)
{
	if (number >= CLAN_COOKIE_QUEUES) {
		return -EINVAL;
	}
	return conn->state == CLAN_OPEN ? conn->provider->cookie_pop(conn, number, cookie_out)
					: -ENOTCONN;
}
