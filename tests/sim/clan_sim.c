// SPDX-License-Identifier: Apache-2.0
#include "clan_sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "clan/clan.h"
#include "clan/segment.h"
#include "sim/sim.h"

enum {
	CONTROL_ROOM_BYTES = 4096,
	BULK_ROOM_MIN_BYTES = 8192, /* the longest message fits when nothing else is there */
	BULK_ROOM_MAX_BYTES = 32768,
	REGION_LATE_MAX_NS = 2000000,
};

static const struct connector_network *network;
static struct list_node waiters;  /* struct waiter */
static struct list_node attempts; /* struct attempt */
static struct list_node parcels;  /* struct parcel */
static uint64_t parcel_last;

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

	GMB_UNUSED(kind);
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
	GMB_UNUSED(all);
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

/* The queue's own eventfd and timerfd: nothing in the simulation uses them. */
int waiter_file_add(struct waiter *waiter, struct waiter_file *file, int fd, uint32_t events)
{
	GMB_UNUSED(waiter);
	GMB_UNUSED(events);
	file->fd = fd;
	return 0;
}

void waiter_file_remove(struct waiter *waiter, struct waiter_file *file)
{
	GMB_UNUSED(waiter);
	GMB_UNUSED(file);
}

void waiter_after_fork(struct waiter *waiter)
{
	GMB_UNUSED(waiter);
	GMB_ASSERT(!"the simulation does not fork");
}

/* --- records -------------------------------------------------------------------------------- */

enum record_kind {
	RECORD_HELLO,
	RECORD_WELCOME,
	RECORD_REFUSED,
	RECORD_MESSAGE,
	RECORD_ROOM,
	RECORD_REGION,
	RECORD_REGION_ANSWER,
	RECORD_REGION_END,
	RECORD_REGION_ENDED,
};

struct record {
	enum record_kind kind;
	uint32_t bytes; /* that follow */
	uint32_t class;
	uint32_t type;
	uint32_t room[2]; /* HELLO, WELCOME, ROOM: what may be sent from now on, by class */
	uint32_t number;
	uint32_t generation;
	uint32_t rights;
	int error;
	uint64_t region_bytes;
	uint64_t region_offset;
	uint64_t parcel;
};

struct buffer {
	uint8_t *bytes;
	size_t used;
	size_t max;
};

static void buffer_add(struct buffer *buffer, const void *bytes, size_t count)
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
	buffer->used -= count;
	memmove(buffer->bytes, buffer->bytes + count, buffer->used);
}

/* A descriptor on its way, as SCM_RIGHTS carries it. */
struct parcel {
	struct list_node node; /* in parcels */
	uint64_t id;
	int fd;
};

static uint64_t parcel_send(int fd)
{
	struct parcel *parcel = calloc(1, sizeof(*parcel));

	GMB_ASSERT(parcel != NULL);
	parcel->id = ++parcel_last;
	parcel->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	GMB_ASSERT(parcel->fd >= 0);
	list_push_back(&parcels, &parcel->node);
	return parcel->id;
}

static int parcel_take(uint64_t id)
{
	list_for_each(node, &parcels)
	{
		struct parcel *parcel = list_entry(node, struct parcel, node);
		int fd = parcel->fd;

		if (parcel->id == id) {
			list_remove(&parcel->node);
			free(parcel);
			return fd;
		}
	}
	GMB_ASSERT(!"each parcel is taken once");
}

/* --- connections ---------------------------------------------------------------------------- */

struct message {
	struct list_node node;
	uint32_t type;
	uint32_t bytes;
	uint8_t payload[];
};

/* A region of the peer. */
struct peer_region {
	struct clan_source source;
	struct end *end;
	uint8_t *base; /* NULL: there is none of that number */
	uint64_t bytes;
	uint32_t number;
	uint32_t generation;
	uint32_t rights;
	uint32_t holds;
	uint64_t late_ns; /* its events are given from then on */
	bool give_live;
	bool give_leaving;
	bool leaving;
	bool asked_back;
};

/* One end of a connection. */
struct end {
	struct clan_conn conn;
	struct attempt *attempt; /* to connect; NULL: it has ended */
	int attempt_error;
	int fd; /* -1: none yet, or closed */
	struct buffer in;
	struct buffer out; /* not published yet */
	struct list_node inbox[2];
	struct list_node late; /* of the control class: they arrive with the next look */
	uint32_t room[2];
	uint32_t owed[2]; /* was taken, and the peer does not know yet */
	struct peer_region *regions;
	uint32_t region_count;
	uint64_t region_bytes;
};

/* To connect; it outlives a connection that is closed meanwhile. */
struct attempt {
	struct list_node node; /* in attempts */
	struct end *end;
	int error;
};

static struct end *end_of(struct clan_conn *conn)
{
	return container_of(conn, struct end, conn);
}

static uint32_t class_of(uint32_t cls)
{
	return cls == CLAN_CONTROL ? 0 : 1;
}

static uint32_t bytes_in_ring(uint32_t bytes)
{
	return (uint32_t)align_up(bytes + 8, 64);
}

static void write_now(struct end *end, const struct record *record, const void *payload)
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

	write_now(end, &record, hello);
}

static void lose(struct end *end, int status, const char *reason);

static struct end *end_create(
	struct clan_queue *queue, const struct clan_conn_options *options, enum clan_state state)
{
	struct end *end = calloc(1, sizeof(*end));

	GMB_ASSERT(end != NULL);
	end->regions = calloc(options->peer_regions_max, sizeof(end->regions[0]));
	GMB_ASSERT(end->regions != NULL);
	clan_conn_init(&end->conn, &clan_provider_shm, queue, options, state);
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
		fd = attempt->error != 0 ? attempt->error : network->connect(network->context);
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

static int sim_clan_connect(struct clan_queue *queue, const char *place,
	const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
	struct clan_conn **conn_out, struct error *error)
{
	struct attempt *attempt;
	struct end *end;
	uint64_t delay_ns;
	int result;

	GMB_ASSERT(network != NULL);
	result = network->attempt(
		network->context, options->handshake_timeout_ms * UINT64_C(1000000), &delay_ns);
	if (result == -ECONNREFUSED && sim_random() % 2 == 0) {
		return error_set(error, result, "cannot connect to %s: nobody listens", place);
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

	GMB_UNUSED(error);
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

	write_now(end_of(conn), &record, text);
}

/* --- the end -------------------------------------------------------------------------------- */

/* CLOSING: is it CLOSED now? */
static void join(struct end *end)
{
	if (end->conn.state == CLAN_CLOSING && end->region_count == 0) {
		clan_conn_set_state(&end->conn, CLAN_CLOSED);
		clan_fire(end->conn.queue, &end->conn.source);
	}
}

static void region_settle(struct peer_region *region)
{
	struct end *end = region->end;

	if (region->base == NULL || !region->leaving || region->holds > 0 || region->give_live ||
		region->give_leaving) {
		return;
	}
	list_remove(&region->source.node);
	munmap(region->base, region->bytes);
	region->base = NULL;
	end->region_count--;
	end->region_bytes -= region->bytes;
	if (region->asked_back && end->conn.state == CLAN_OPEN) {
		struct record record = { .kind = RECORD_REGION_ENDED,
			.number = region->number,
			.generation = region->generation };

		write_now(end, &record, NULL);
	}
	join(end);
}

/* Its events are due, unless they are late. */
static bool region_fire(struct peer_region *region)
{
	if ((!region->give_live && !region->give_leaving) || list_is_linked(&region->source.node) ||
		sim_now_ns() < region->late_ns) {
		return false;
	}
	clan_fire(region->end->conn.queue, &region->source);
	return true;
}

static void region_leaves(struct peer_region *region)
{
	if (region->base != NULL && !region->leaving) {
		region->leaving = true;
		region->give_leaving = true;
		region_fire(region);
	}
}

static void lose(struct end *end, int status, const char *reason)
{
	struct list_node *node;

	clan_conn_lose(&end->conn, status, "%s", reason);
	while ((node = list_pop_front(&end->late)) != NULL) {
		list_push_back(&end->inbox[class_of(CLAN_CONTROL)], node);
	}
	for (uint32_t i = 0; i < end->conn.options.peer_regions_max; i++) {
		region_leaves(&end->regions[i]);
	}
}

static void sim_clan_close(struct clan_conn *conn)
{
	struct end *end = end_of(conn);

	if (end->attempt != NULL) {
		end->attempt->end = NULL;
	}
	if (end->fd >= 0) {
		sim_socket_write(end->fd, end->out.bytes, end->out.used);
		sim_socket_leave(end->fd);
		end->fd = -1;
	}
	for (uint32_t i = 0; i < conn->options.peer_regions_max; i++) {
		struct peer_region *region = &end->regions[i];

		if (region->base != NULL) {
			list_remove(&region->source.node);
			region->give_live = false;
			region->give_leaving = false;
			region->leaving = true;
			region_settle(region);
		}
	}
	join(end);
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
	free(end->regions);
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
	buffer_add(&end->out, &record, sizeof(record));
	for (uint32_t i = 0; i < iov_count; i++) {
		buffer_add(&end->out, iov[i].iov_base, iov[i].iov_len);
	}
	return 0;
}

static void sim_clan_flush(struct clan_conn *conn)
{
	struct end *end = end_of(conn);
	struct record room = { .kind = RECORD_ROOM, .room = { end->owed[0], end->owed[1] } };

	if (end->owed[0] + end->owed[1] > 0) {
		end->owed[0] = end->owed[1] = 0;
		buffer_add(&end->out, &room, sizeof(room));
	}
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

/* --- regions -------------------------------------------------------------------------------- */

static bool give_region_event(struct clan_source *source, struct clan_event *event)
{
	struct peer_region *region = container_of(source, struct peer_region, source);

	event->type = region->give_live ? CLAN_EVENT_REGION : CLAN_EVENT_REGION_ENDING;
	event->conn = &region->end->conn;
	event->context = region->end->conn.context;
	event->number = region->number;
	event->generation = region->generation;
	if (region->give_live) {
		region->give_live = false;
		return region->give_leaving;
	}
	region->give_leaving = false;
	region_settle(region);
	return false;
}

static int sim_clan_share(struct clan_conn *conn, struct clan_share *share)
{
	struct record record = {
		.kind = RECORD_REGION,
		.number = share->number,
		.generation = share->generation,
		.rights = share->rights,
		.region_bytes = share->region->bytes,
		.region_offset = share->region->offset,
		.parcel = parcel_send(share->region->fd),
	};

	write_now(end_of(conn), &record, NULL);
	return 0;
}

static int sim_clan_unshare(struct clan_conn *conn, struct clan_share *share)
{
	struct record record = {
		.kind = RECORD_REGION_END, .number = share->number, .generation = share->generation
	};

	write_now(end_of(conn), &record, NULL);
	return 0;
}

static int region_map(struct end *end, const struct record *record, int fd)
{
	const struct clan_conn_options *options = &end->conn.options;
	struct peer_region *region = &end->regions[record->number];
	uint8_t *base;
	int result;

	if (record->number >= options->peer_regions_max ||
		record->region_bytes > options->peer_region_bytes_max - end->region_bytes) {
		return -EDQUOT;
	}
	GMB_ASSERT(region->base == NULL);
	result = segment_map(fd, record->region_offset, record->region_bytes,
		(record->rights & CLAN_WRITE) != 0, &base);
	if (result != 0) {
		return result;
	}
	*region = (struct peer_region){
		.end = end,
		.base = base,
		.bytes = record->region_bytes,
		.number = record->number,
		.generation = record->generation,
		.rights = record->rights,
		.give_live = true,
	};
	clan_source_init(&region->source, give_region_event);
	end->region_count++;
	end->region_bytes += region->bytes;
	if (sim_random() % 4 == 0) {
		uint64_t delay_ns = sim_between(0, REGION_LATE_MAX_NS);

		region->late_ns = sim_now_ns() + delay_ns;
		sim_after(delay_ns + 1, late_bell, &end->conn.queue->waiter->node);
	}
	region_fire(region);
	return 0;
}

static void take_region(struct end *end, const struct record *record)
{
	struct record answer = { .kind = RECORD_REGION_ANSWER,
		.number = record->number,
		.generation = record->generation };
	int fd = parcel_take(record->parcel);

	answer.error = region_map(end, record, fd);
	close(fd);
	write_now(end, &answer, NULL);
}

static void take_share_answer(struct end *end, const struct record *record)
{
	struct clan_share *share = clan_share_find(&end->conn, record->number);

	GMB_ASSERT(share != NULL && share->generation == record->generation);
	if (record->kind == RECORD_REGION_ENDED) {
		clan_share_returned(share);
	} else {
		clan_share_answered(share, record->error);
	}
}

static struct peer_region *find_region(const struct clan_conn *conn, uint32_t number)
{
	const struct end *end = (const struct end *)(const void *)conn;

	_Static_assert(offsetof(struct end, conn) == 0, "it begins with the connection");
	return number < conn->options.peer_regions_max && end->regions[number].base != NULL
		       ? &end->regions[number]
		       : NULL;
}

static int sim_clan_peer_info(
	const struct clan_conn *conn, uint32_t number, struct clan_peer_region *info)
{
	const struct peer_region *region = find_region(conn, number);

	if (region == NULL) {
		return -ENOENT;
	}
	info->base = region->base;
	info->bytes = region->bytes;
	info->rights = region->rights;
	info->generation = region->generation;
	info->holds = region->holds;
	return 0;
}

static int sim_clan_peer_get(struct clan_conn *conn, uint32_t number, uint32_t generation,
	uint32_t rights, uint64_t offset, uint64_t bytes, void **address_out)
{
	struct peer_region *region = find_region(conn, number);

	if (region == NULL) {
		return -ENOENT;
	}
	if (region->generation != generation || region->leaving) {
		return -ESTALE;
	}
	if ((rights & ~region->rights) != 0) {
		return -EACCES;
	}
	if (!range_inside(offset, bytes, region->bytes)) {
		return -ERANGE;
	}
	region->holds++;
	*address_out = region->base + offset;
	return 0;
}

static void sim_clan_peer_put(struct clan_conn *conn, uint32_t number)
{
	struct peer_region *region = find_region(conn, number);

	GMB_ASSERT(region != NULL && region->holds > 0);
	region->holds--;
	region_settle(region);
}

static void sim_clan_void_cookies(struct clan_conn *conn, const struct clan_share *share)
{
	GMB_UNUSED(conn); /* none is ever granted */
	GMB_UNUSED(share);
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
		take_region(end, record);
		break;
	case RECORD_REGION_ANSWER:
	case RECORD_REGION_ENDED:
		take_share_answer(end, record);
		break;
	case RECORD_REGION_END:
		end->regions[record->number].asked_back = true;
		region_leaves(&end->regions[record->number]);
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
		buffer_add(&end->in, bytes, (size_t)got);
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
	struct list_node *node;
	bool found = false;

	for (uint32_t i = 0; i < end->conn.options.peer_regions_max; i++) {
		found |= end->regions[i].base != NULL && region_fire(&end->regions[i]);
	}
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
	GMB_UNUSED(queue);
}

static void sim_clan_get_stats(const struct clan_conn *conn, struct clan_conn_stats *stats)
{
	GMB_UNUSED(conn);
	GMB_UNUSED(stats);
}

const struct clan_provider clan_provider_shm = {
	.scheme = "shm",
	.caps = CLAN_CAN_MAP,
	.adopt = sim_clan_adopt,
	.connect = sim_clan_connect,
	.accept = sim_clan_accept,
	.reject = sim_clan_reject,
	.close = sim_clan_close,
	.destroy = sim_clan_destroy,
	.send = sim_clan_send,
	.flush = sim_clan_flush,
	.recv = sim_clan_recv,
	.get_stats = sim_clan_get_stats,
	.share = sim_clan_share,
	.unshare = sim_clan_unshare,
	.peer_info = sim_clan_peer_info,
	.peer_get = sim_clan_peer_get,
	.peer_put = sim_clan_peer_put,
	.void_cookies = sim_clan_void_cookies,
	.progress = sim_clan_progress,
	.publish = sim_clan_publish,
	.arm = sim_clan_progress,
	.queue_destroy = sim_clan_queue_destroy,
};

void clan_sim_use(const struct connector_network *used)
{
	struct list_node *node;

	network = used;
	if (waiters.next == NULL) {
		list_init(&waiters);
		list_init(&attempts);
		list_init(&parcels);
	}
	if (used != NULL) {
		parcel_last = 0;
		return;
	}
	while ((node = list_pop_front(&attempts)) != NULL) {
		free(list_entry(node, struct attempt, node));
	}
	while ((node = list_pop_front(&parcels)) != NULL) {
		struct parcel *parcel = list_entry(node, struct parcel, node);

		close(parcel->fd);
		free(parcel);
	}
}
