// SPDX-License-Identifier: Apache-2.0
#include "clan_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "clan_sim_private.h"

enum {
	CONTROL_ROOM_BYTES = 4096,
	BULK_ROOM_MIN_BYTES = 8192, /* the longest message fits when nothing else is there */
	BULK_ROOM_MAX_BYTES = 32768,
};

bool clan_sim_maps;
static const struct connector_network *network;
static struct list_node waiters = { &waiters, &waiters };    /* struct waiter */
static struct list_node attempts = { &attempts, &attempts }; /* struct attempt */

/* --- waiting -------------------------------------------------------------------------------- */

/* A byte on a socket wakes who has armed the queue. */
struct waiter {
	struct list_node node; /* in waiters */
	int fd;
	int bell;
	bool armed;
};

int waiter_create(enum waiter_kind kind, struct waiter **waiter_out)
{
	struct waiter *waiter = calloc(1, sizeof(*waiter));

	GMB_ASSERT(waiter != NULL);
	sim_socket_pair(&waiter->fd, &waiter->bell);
	list_push_back(&waiters, &waiter->node);
	*waiter_out = waiter;
	return 0;
}

void waiter_destroy(struct waiter *waiter)
{
	sim_socket_leave(waiter->bell);
	sim_socket_leave(waiter->fd);
	list_remove(&waiter->node);
	free(waiter);
}

int waiter_fd(const struct waiter *waiter)
{
	return waiter->fd;
}

void waiter_submit(struct waiter *waiter)
{
	waiter->armed = true;
}

void waiter_wait(struct waiter *waiter, uint64_t timeout_ns, bool all)
{
	uint8_t bytes[64];

	GMB_ASSERT(timeout_ns == 0); /* rings wait, and poll the queue's descriptor */
	waiter->armed = false;
	while (sim_socket_read(waiter->fd, bytes, sizeof(bytes)) > 0) {
	}
}

static void ring_bell(struct waiter *waiter)
{
	if (waiter->armed) {
		waiter->armed = false;
		sim_socket_write(waiter->bell, "", 1);
	}
}

static void late_bell(void *arg)
{
	list_for_each(node, &waiters)
	{
		if (node == arg) { /* it still exists */
			ring_bell(list_entry(node, struct waiter, node));
		}
	}
}

void clan_sim_wake_later(struct clan_queue *queue, uint64_t delay_ns)
{
	sim_after(delay_ns, late_bell, &queue->waiter->node);
}

/* The queue's own eventfd and timerfd: nothing in the simulation uses them. */
int waiter_file_add(struct waiter *waiter, struct waiter_file *file, int fd, uint32_t events)
{
	file->fd = fd;
	return 0;
}

void waiter_file_events(struct waiter *waiter, struct waiter_file *file, uint32_t events)
{
}

void waiter_file_remove(struct waiter *waiter, struct waiter_file *file)
{
}

void waiter_after_fork(struct waiter *waiter)
{
	GMB_ASSERT(!"the simulation does not fork");
}

/* --- records -------------------------------------------------------------------------------- */

void clan_sim_add(struct buffer *buffer, const void *bytes, size_t count)
{
	if (buffer->max - buffer->used < count) {
		buffer->max = MAX(buffer->max * 2, buffer->used + count);
		buffer->bytes = realloc(buffer->bytes, buffer->max);
		GMB_ASSERT(buffer->bytes != NULL);
	}
	if (count > 0) {
		memcpy(buffer->bytes + buffer->used, bytes, count);
		buffer->used += count;
	}
}

static void buffer_drop(struct buffer *buffer, size_t count)
{
	if (count > 0) {
		buffer->used -= count;
		memmove(buffer->bytes, buffer->bytes + count, buffer->used);
	}
}

/* --- connections ---------------------------------------------------------------------------- */

static uint32_t class_of(uint32_t cls)
{
	return cls == CLAN_CONTROL ? 0 : 1;
}

static uint32_t bytes_in_ring(uint32_t bytes)
{
	return (uint32_t)align_up(bytes + 8, 64);
}

void clan_sim_write(struct end *end, const struct record *record, const void *payload)
{
	sim_socket_write(end->fd, record, sizeof(*record));
	sim_socket_write(end->fd, payload, record->bytes);
}

static void arrived(void *arg)
{
	struct end *end = arg;

	ring_bell(end->conn.queue->waiter);
}

static void attach(struct end *end, int fd)
{
	end->fd = fd;
	sim_socket_watch(fd, arrived, end);
}

static void greet(struct end *end, enum record_kind kind, const void *hello, size_t hello_bytes)
{
	struct record record = {
		.kind = kind,
		.bytes = (uint32_t)hello_bytes,
		.room = { CONTROL_ROOM_BYTES,
			(uint32_t)sim_between(BULK_ROOM_MIN_BYTES, BULK_ROOM_MAX_BYTES) },
	};

	clan_sim_write(end, &record, hello);
}

static const struct clan_provider moving;

static struct end *end_create(
	struct clan_queue *queue, const struct clan_conn_options *options, enum clan_state state)
{
	struct end *end = calloc(1, sizeof(*end));

	GMB_ASSERT(end != NULL);
	clan_conn_init(
		&end->conn, clan_sim_maps ? &clan_provider_shm : &moving, queue, options, state);
	clan_sim_memory_init(end);
	end->conn.known = true;
	end->fd = -1;
	for (uint32_t class = 0; class < 2; class ++) {
		list_init(&end->inbox[class]);
	}
	list_init(&end->late);
	/* The queue asks the provider for progress from now on; there is nothing to remember. */
	queue->carriers[CLAN_SHM] = &waiters;
	return end;
}

static void attempt_ended(void *arg)
{
	struct attempt *attempt = arg;
	struct end *end = attempt->end;
	int fd;

	if (end != NULL) {
		fd = attempt->error != 0 ? attempt->error
					 : network->connect(network->context, NULL);
		end->attempt = NULL;
		if (fd < 0) {
			end->attempt_error = fd;
		} else {
			attach(end, fd);
			greet(end, RECORD_HELLO, end->conn.hello, end->conn.hello_bytes);
		}
		ring_bell(end->conn.queue->waiter);
	}
	list_remove(&attempt->node);
	free(attempt);
}

static int sim_clan_connect(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
	struct clan_conn **conn_out, struct error *error)
{
	struct attempt *attempt;
	struct end *end;
	uint64_t delay_ns;
	int result;

	GMB_ASSERT(network != NULL);
	result = network->attempt(network->context, NULL,
		options->handshake_timeout_ms * UINT64_C(1000000), &delay_ns);
	if (result == -ECONNREFUSED && sim_random() % 2 == 0) {
		return error_set(error, result, "cannot connect to %s: nobody listens", address);
	}
	attempt = calloc(1, sizeof(*attempt));
	GMB_ASSERT(attempt != NULL);
	end = end_create(queue, options, CLAN_CONNECTING);
	end->conn.connector = true;
	/* Until the answer, what is to be said. */
	GMB_ASSERT(clan_conn_set_hello(&end->conn, hello, hello_bytes) == 0);
	end->attempt = attempt;
	attempt->end = end;
	attempt->error = result;
	list_push_back(&attempts, &attempt->node);
	sim_after(delay_ns, attempt_ended, attempt);
	*conn_out = &end->conn;
	return 0;
}

static int sim_clan_adopt(struct clan_queue *queue, int fd, const struct clan_conn_options *options,
	struct clan_conn **conn_out, struct error *error)
{
	struct end *end = end_create(queue, options, CLAN_OPENING);

	attach(end, fd);
	*conn_out = &end->conn;
	return 0;
}

static int sim_clan_accept(struct clan_conn *conn, const void *hello, size_t hello_bytes)
{
	greet(end_of(conn), RECORD_WELCOME, hello, hello_bytes);
	clan_conn_set_state(conn, CLAN_OPEN);
	return 0;
}

static void sim_clan_reject(struct clan_conn *conn, const char *text)
{
	struct record record = { .kind = RECORD_REFUSED, .bytes = (uint32_t)strlen(text) };

	clan_sim_write(end_of(conn), &record, text);
}

/* --- the end -------------------------------------------------------------------------------- */

/* CLOSING: is it CLOSED now? */
void clan_sim_join(struct end *end)
{
	if (end->conn.state == CLAN_CLOSING && end->region_count == 0) {
		clan_conn_set_state(&end->conn, CLAN_CLOSED);
		clan_fire(end->conn.queue, &end->conn.source);
	}
}

static void lose(struct end *end, int status, const char *reason)
{
	clan_conn_lose(&end->conn, status, "%s", reason);
	list_move_all(&end->inbox[class_of(CLAN_CONTROL)], &end->late);
	clan_sim_memory_lost(end);
}

static void sim_clan_close(struct clan_conn *conn)
{
	struct end *end = end_of(conn);

	if (end->attempt != NULL) {
		end->attempt->end = NULL;
	}
	clan_shares_drop(conn);
	clan_sim_read_puts(end);
	if (end->fd >= 0) {
		sim_socket_write(end->fd, end->out.bytes, end->out.used);
		sim_socket_leave(end->fd);
		end->fd = -1;
	}
	clan_sim_memory_close(end);
	clan_sim_join(end);
}

static void free_messages(struct list_node *list)
{
	struct list_node *node;

	while ((node = list_pop_front(list)) != NULL) {
		free(list_entry(node, struct message, node));
	}
}

static void sim_clan_destroy(struct clan_conn *conn)
{
	struct end *end = end_of(conn);

	clan_conn_fini(conn);
	free_messages(&end->inbox[0]);
	free_messages(&end->inbox[1]);
	free_messages(&end->late);
	free(end->in.bytes);
	free(end->out.bytes);
	clan_sim_memory_fini(end);
	free(end);
}

/* --- messages ------------------------------------------------------------------------------- */

static int sim_clan_send(struct clan_conn *conn, uint32_t cls, uint32_t type,
	const struct iovec *iov, uint32_t iov_count, size_t bytes)
{
	struct end *end = end_of(conn);
	uint32_t class = class_of(cls);
	struct record record = {
		.kind = RECORD_MESSAGE, .bytes = (uint32_t)bytes, .class = class, .type = type
	};

	if (end->room[class] < bytes_in_ring(record.bytes)) {
		conn->enabled |= class == 0 ? CLAN_READY_SEND_CONTROL : CLAN_READY_SEND_BULK;
		return -EAGAIN;
	}
	end->room[class] -= bytes_in_ring(record.bytes);
	clan_sim_add(&end->out, &record, sizeof(record));
	for (uint32_t i = 0; i < iov_count; i++) {
		clan_sim_add(&end->out, iov[i].iov_base, iov[i].iov_len);
	}
	return 0;
}

static void sim_clan_flush(struct clan_conn *conn)
{
	struct end *end = end_of(conn);
	struct record room = { .kind = RECORD_ROOM, .room = { end->owed[0], end->owed[1] } };

	if (end->owed[0] + end->owed[1] > 0) {
		end->owed[0] = end->owed[1] = 0;
		clan_sim_add(&end->out, &room, sizeof(room));
	}
	clan_sim_read_puts(end);
	if (end->out.used > 0) {
		sim_socket_write(end->fd, end->out.bytes, end->out.used);
		end->out.used = 0;
	}
}

static int sim_clan_recv(struct clan_conn *conn, uint32_t classes, struct clan_message *out,
	void *buffer, uint32_t bytes)
{
	struct end *end = end_of(conn);

	for (uint32_t class = 0; class < 2; class ++) {
		uint32_t cls = class == 0 ? CLAN_CONTROL : CLAN_BULK;
		struct list_node *node = list_first(&end->inbox[class]);
		struct message *message;

		if ((classes & cls) == 0 || node == NULL) {
			continue;
		}
		message = list_entry(node, struct message, node);
		*out = (struct clan_message){
			.cls = cls, .type = message->type, .bytes = message->bytes
		};
		if (message->bytes > bytes) {
			return -EMSGSIZE;
		}
		memcpy(buffer, message->payload, message->bytes);
		end->owed[class] += bytes_in_ring(message->bytes);
		list_remove(node);
		free(message);
		return 0;
	}
	if (conn->state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	conn->enabled |= classes & (CLAN_READY_CONTROL | CLAN_READY_BULK);
	return -EAGAIN;
}

static void take_message(struct end *end, const struct record *record, const uint8_t *payload)
{
	struct message *message = malloc(sizeof(*message) + record->bytes);

	GMB_ASSERT(message != NULL);
	message->type = record->type;
	message->bytes = record->bytes;
	memcpy(message->payload, payload, record->bytes);
	list_init(&message->node);
	if (record->class == class_of(CLAN_CONTROL) &&
		(!list_is_empty(&end->late) || sim_random() % 4 == 0)) {
		list_push_back(&end->late, &message->node);
		return;
	}
	list_push_back(&end->inbox[record->class], &message->node);
	clan_conn_fire_ready(&end->conn, record->class == 0 ? CLAN_READY_CONTROL : CLAN_READY_BULK);
}

static void take_room(struct end *end, const struct record *record)
{
	end->room[0] += record->room[0];
	end->room[1] += record->room[1];
	clan_conn_fire_ready(&end->conn, CLAN_READY_SEND_CONTROL | CLAN_READY_SEND_BULK);
}

/* --- progress ------------------------------------------------------------------------------- */

static void take_greeting(struct end *end, const struct record *record, const uint8_t *payload)
{
	struct clan_conn *conn = &end->conn;

	GMB_ASSERT(clan_conn_set_hello(conn, payload, record->bytes) == 0);
	if (record->kind == RECORD_REFUSED) {
		lose(end, -ECONNREFUSED, "the peer refused the connection");
		return;
	}
	end->room[0] = record->room[0];
	end->room[1] = record->room[1];
	clan_conn_set_state(conn, record->kind == RECORD_HELLO ? CLAN_OFFERED : CLAN_OPEN);
	conn->connect_pending = true;
	clan_fire(conn->queue, &conn->source);
}

static void take(struct end *end, const struct record *record, const uint8_t *payload)
{
	switch (record->kind) {
	case RECORD_HELLO:
	case RECORD_WELCOME:
	case RECORD_REFUSED:
		take_greeting(end, record, payload);
		break;
	case RECORD_MESSAGE:
		take_message(end, record, payload);
		break;
	case RECORD_ROOM:
		take_room(end, record);
		break;
	case RECORD_REGION:
		clan_sim_take_region(end, record);
		break;
	case RECORD_REGION_ANSWER:
	case RECORD_REGION_ENDED:
		clan_sim_take_share_answer(end, record);
		break;
	case RECORD_REGION_END:
		clan_sim_take_region_end(end, record);
		break;
	case RECORD_PUT:
	case RECORD_GET:
		clan_sim_take_move(end, record, payload);
		break;
	case RECORD_MOVED:
		clan_sim_take_moved(end, record, payload);
		break;
	}
}

static void take_records(struct end *end)
{
	size_t at = 0;

	while (end->conn.state < CLAN_LOST && end->in.used - at >= sizeof(struct record)) {
		struct record record;

		memcpy(&record, end->in.bytes + at, sizeof(record));
		if (end->in.used - at < sizeof(record) + record.bytes) {
			break;
		}
		take(end, &record, end->in.bytes + at + sizeof(record));
		at += sizeof(record) + record.bytes;
	}
	buffer_drop(&end->in, at);
}

/* True: something was there. */
static bool look_at_socket(struct end *end)
{
	uint8_t bytes[4096];
	size_t before = end->in.used;
	int got;

	while ((got = sim_socket_read(end->fd, bytes, sizeof(bytes))) > 0) {
		clan_sim_add(&end->in, bytes, (size_t)got);
	}
	if (end->in.used == before && got == 0) {
		return false;
	}
	take_records(end);
	if (got < 0 && end->conn.state < CLAN_LOST) {
		lose(end, -ECONNRESET, "the peer has ended the connection");
	}
	return true;
}

static bool look_at(struct end *end)
{
	bool found = clan_sim_memory_look(end);
	struct list_node *node;

	if (end->conn.state >= CLAN_LOST) {
		return found;
	}
	while ((node = list_pop_front(&end->late)) != NULL) {
		list_push_back(&end->inbox[class_of(CLAN_CONTROL)], node);
		clan_conn_fire_ready(&end->conn, CLAN_READY_CONTROL);
		found = true;
	}
	if (end->attempt_error != 0) {
		lose(end, end->attempt_error, "the simulated network does not let it connect");
		return true;
	}
	return (end->fd >= 0 && look_at_socket(end)) || found;
}

static bool sim_clan_progress(struct clan_queue *queue)
{
	bool found = false;

	list_for_each(node, &queue->conns)
	{
		found |= look_at(end_of(list_entry(node, struct clan_conn, node)));
	}
	return found;
}

static void sim_clan_publish(struct clan_queue *queue)
{
	list_for_each(node, &queue->conns)
	{
		struct clan_conn *conn = list_entry(node, struct clan_conn, node);

		if (conn->state == CLAN_OPEN) {
			sim_clan_flush(conn);
		}
	}
}

static void sim_clan_queue_destroy(struct clan_queue *queue)
{
}

static void sim_clan_get_stats(const struct clan_conn *conn, struct clan_conn_stats *stats)
{
}

static int sim_clan_socket(const struct clan_conn *conn)
{
	return ((const struct end *)(const void *)conn)->fd;
}

#define CALLS                                                                                      \
	.schemes = { "shm" }, .adopt = sim_clan_adopt, .connect = sim_clan_connect,                \
	.accept = sim_clan_accept, .reject = sim_clan_reject, .close = sim_clan_close,             \
	.destroy = sim_clan_destroy, .send = sim_clan_send, .flush = sim_clan_flush,               \
	.recv = sim_clan_recv, .get_stats = sim_clan_get_stats, .share = clan_sim_share,           \
	.unshare = clan_sim_unshare, .peer_info = clan_sim_peer_info,                              \
	.peer_get = clan_sim_peer_get, .peer_put = clan_sim_peer_put, .grant = clan_sim_grant,     \
	.void_cookies = clan_sim_void_cookies, .put = clan_sim_put, .get = clan_sim_get,           \
	.progress = sim_clan_progress, .publish = sim_clan_publish, .arm = sim_clan_progress,      \
	.queue_destroy = sim_clan_queue_destroy
const struct clan_provider clan_provider_shm = { .caps = CLAN_CAN_MAP, CALLS };
static const struct clan_provider moving = { .socket = sim_clan_socket, CALLS };

void clan_sim_use(const struct connector_network *used, bool can_map)
{
	struct list_node *node;

	network = used;
	clan_sim_maps = can_map;
	if (used != NULL) {
		return;
	}
	while ((node = list_pop_front(&attempts)) != NULL) {
		free(list_entry(node, struct attempt, node));
	}
	clan_sim_drop_parcels();
}
