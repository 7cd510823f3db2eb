// SPDX-License-Identifier: Apache-2.0
/*
 * The client's side of gmb against a server that breaks no rule and still does harm, spoken over
 * clan as such a server would. Both are in one thread, so that nothing depends on time.
 */

#include <errno.h>
#include <gmblock/clan.h>
#include <gmblock/gmblock.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/compiler.h"
#include "gmb/wire.h"
#include "unit.h"

enum {
	EXPORT_BYTES = 1 << 20,
	EVENTS_ENOUGH = 100000, /* many times what one turn should take */
	TURNS_MAX = 10000,
};

struct server {
	struct clan_queue *queue;
	struct clan_listener *listener;
	struct clan_conn *conn;
	char uri[96];
	uint32_t atomic_bytes; /* that it promises */
	uint16_t version;      /* of gmb */
	uint32_t sent;	       /* EVENTs */
	uint32_t copies;       /* that it was asked for, and does not answer */
	uint32_t reconnects;
	uint32_t resizes; /* that the client has reported */
	/* READs that it was asked for, whose answers are the test's business */
	uint32_t reads;
	struct native_wire_request read;
	struct native_wire_segment segment; /* of the last READ */
	struct clan_cookie cookie;	    /* of the client's memory */
	char reason[512];		    /* why the client says that it has lost a connection */
	/* Answers to LIST: one export after the other without end, or a status. */
	uint32_t list_status;
	uint64_t cursor;
	uint32_t conns; /* that it has accepted, and that are not closed yet */
	bool moves;	/* by put and get: the connection is over TCP */
};

static void server_open(struct server *server)
{
	static unsigned count;
	struct clan_error error;
	char address[64];

	memset(server, 0, sizeof(*server));
	server->version = NATIVE_VERSION_MIN;
	snprintf(address, sizeof(address), "shm:@gmb-client-%d-%u", getpid(), count);
	snprintf(server->uri, sizeof(server->uri), "gmb+unix:///disk?socket=%%00gmb-client-%d-%u",
		getpid(), count++);
	assert_int_equal(clan_queue_create(NULL, &server->queue, &error), 0);
	assert_int_equal(clan_listen(server->queue, address, NULL, &server->listener, &error), 0);
}

static void welcome(struct server *server, struct clan_conn *conn)
{
	const struct {
		struct native_wire_welcome head;
		struct native_wire_instance instance;
	} hello = { { .magic = NATIVE_MAGIC,
			    .version = server->version,
			    .flags = server->moves ? NATIVE_WELCOME_MOVES : 0 },
		{ { 1 } } };

	server->conn = conn;
	server->conns++;
	assert_int_equal(clan_accept(conn, &hello,
				 server->version >= NATIVE_VERSION_COPY ? sizeof(hello)
									: sizeof(hello.head)),
		0);
}

static void answer_list(struct server *server)
{
	const struct native_wire_export export = {
		.status = server->list_status,
		.bytes = EXPORT_BYTES,
		.payload_max = 1 << 20,
		.block_preferred = 4096,
		.cursor = ++server->cursor,
	};
	int result = clan_send(server->conn, CLAN_BULK, NATIVE_EXPORT, &export, sizeof(export));

	assert_true(result == 0 || result == -ENOTCONN); /* the client may have left */
}

/* Answers OPEN, whatever it says, LIST, and no COPY. */
static void receive(struct server *server)
{
	const struct native_wire_export export = {
		.flags = NATIVE_EXPORT_WRITABLE,
		.bytes = EXPORT_BYTES,
		.payload_max = 1 << 20,
		.block_preferred = 4096,
		.atomic_bytes = server->atomic_bytes,
	};
	uint8_t bytes[NATIVE_MESSAGE_BYTES_MAX];
	struct clan_message message;

	while (clan_recv(server->conn, CLAN_ANY, &message, bytes, sizeof(bytes)) == 0) {
		if (message.type == NATIVE_COPY) {
			server->copies++;
			continue;
		}
		if (message.type == NATIVE_LIST) {
			answer_list(server);
			continue;
		}
		if (message.type == NATIVE_REGION) {
			memcpy(&server->cookie, bytes, sizeof(server->cookie));
			continue;
		}
		if (message.type == NATIVE_REQUEST) {
			server->reads++;
			memcpy(&server->read, bytes, sizeof(server->read));
			memcpy(&server->segment, bytes + sizeof(server->read),
				sizeof(server->segment));
			continue;
		}
		assert_int_equal(message.type, NATIVE_OPEN);
		assert_int_equal(
			clan_send(server->conn, CLAN_BULK, NATIVE_EXPORT, &export, sizeof(export)),
			0);
	}
}

static void hang_up(struct server *server)
{
	if (server->conn != NULL) {
		clan_close(server->conn);
		server->conn = NULL;
	}
}

static void server_wait(struct server *server, int timeout_ms)
{
	struct clan_event events[16];
	int count = clan_queue_wait(server->queue, events, 16, timeout_ms);

	for (int i = 0; i < count; i++) {
		if (events[i].type == CLAN_EVENT_CONNECT) {
			welcome(server, events[i].conn);
		} else if (events[i].type == CLAN_EVENT_READY) {
			receive(server);
		} else if (events[i].type == CLAN_EVENT_LOST) {
			/* The client's next connection can be there already. */
			if (events[i].conn == server->conn) {
				server->conn = NULL;
			}
			clan_close(events[i].conn);
		} else if (events[i].type == CLAN_EVENT_CLOSED) {
			server->conns--;
		}
	}
}

static void server_turn(struct server *server)
{
	server_wait(server, 0);
}

static void server_close(struct server *server)
{
	clan_listener_close(server->listener);
	hang_up(server);
	while (server->conns > 0) {
		server_turn(server);
	}
	assert_int_equal(clan_queue_destroy(server->queue), 0);
}

/* For each size that the client hears of, it is told another one. */
static void resize(struct server *server)
{
	const struct native_wire_event event = { .bytes =
							 EXPORT_BYTES + ++server->sent % 2 * 4096 };

	assert_int_equal(
		clan_send(server->conn, CLAN_BULK, NATIVE_EVENT, &event, sizeof(event)), 0);
	clan_flush(server->conn);
}

static void heard(void *context, enum gmb_event event, const char *text)
{
	struct server *server = context;

	if (event == GMB_EVENT_LOST) {
		snprintf(server->reason, sizeof(server->reason), "%s", text);
	}
	server->reconnects += event == GMB_EVENT_RECONNECTED;
	server->resizes += event == GMB_EVENT_RESIZED;
	if (event == GMB_EVENT_RESIZED && server->sent < EVENTS_ENOUGH) {
		resize(server);
	}
}

static void both_turn(struct gmb_queue *queue, struct server *server, int count)
{
	assert_true(count < TURNS_MAX);
	assert_true(gmb_queue_wait(queue, 1) >= 0);
	server_turn(server);
}

static struct gmb_client *client_open(struct gmb_queue *queue, struct server *server)
{
	const struct gmb_options options = { .size = sizeof(options),
		.connections = 1,
		.reconnect_timeout_ms = 2000,
		.event = heard,
		.context = server };
	struct gmb_client *client;
	struct gmb_error error;

	assert_int_equal(gmb_open_start(queue, server->uri, &options, &client, &error), 0);
	for (int i = 0; gmb_open_result(client, &error) != 0; i++) {
		both_turn(queue, server, i);
	}
	return client;
}

TEST(test_a_server_that_never_stops_talking)
{
	struct gmb_client *client;
	struct gmb_queue *queue;
	struct gmb_error error;
	struct server server;
	uint32_t before;

	server_open(&server);
	assert_int_equal(gmb_queue_create(NULL, &queue, &error), 0);
	client = client_open(queue, &server);
	resize(&server);
	/* Every turn ends, and the next one goes on where it ended. */
	for (int i = 0; i < 10; i++) {
		before = server.sent;
		assert_true(gmb_queue_wait(queue, 0) >= 0);
		assert_true(server.sent > before);
		assert_true(server.sent < EVENTS_ENOUGH);
	}
	server.sent = EVENTS_ENOUGH;
	assert_int_equal(gmb_close(client), 0);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_close(&server);
}

/* The linker calls it in place of queue_spins() (tests/unit/meson.build). */
bool __wrap_queue_spins(const struct gmb_queue *queue);
static bool spins;

bool __wrap_queue_spins(const struct gmb_queue *queue)
{
	return spins;
}

/* All messages arrive, even if the server has closed the connection meanwhile. */
TEST(test_a_client_that_polls_processes_few_messages_per_turn)
{
	enum { MESSAGES = 40 };
	struct gmb_client *client;
	struct gmb_queue *queue;
	struct gmb_error error;
	struct server server;

	for (int i = 0; i < 2; i++) {
		spins = i == 1;
		server_open(&server);
		assert_int_equal(gmb_queue_create(NULL, &queue, &error), 0);
		client = client_open(queue, &server);
		server.sent = EVENTS_ENOUGH; /* heard() sends no messages */
		for (int j = 0; j < MESSAGES; j++) {
			resize(&server);
		}
		assert_true(gmb_queue_wait(queue, 0) >= 0);
		if (spins) {
			assert_in_range(server.resizes, 1, MESSAGES / 2);
		} else {
			assert_int_equal(server.resizes, MESSAGES);
		}
		hang_up(&server);
		for (int j = 0; server.reconnects == 0; j++) {
			both_turn(queue, &server, j);
		}
		assert_int_equal(server.resizes, MESSAGES);
		assert_int_equal(gmb_close(client), 0);
		assert_int_equal(gmb_queue_destroy(queue), 0);
		server_close(&server);
	}
	spins = false;
}

/* The connection ends, and the next one is to a server that knows no COPY. */
static void downgrade(struct server *server)
{
	hang_up(server);
	server->version = NATIVE_VERSION_MIN;
}

/* A server that comes back without COPY does only for who has a copy in flight. */
TEST(test_a_server_that_copies_no_more)
{
	struct gmb_request request = { 0 };
	struct gmb_client *client;
	struct gmb_queue *queue;
	struct gmb_error error;
	struct server server;
	char text[512];

	server_open(&server);
	server.version = NATIVE_VERSION_COPY;
	assert_int_equal(gmb_queue_create(NULL, &queue, &error), 0);
	client = client_open(queue, &server);
	assert_int_equal(gmb_can_copy(client, client), 1);
	downgrade(&server);
	for (int i = 0; server.reconnects == 0; i++) {
		both_turn(queue, &server, i);
	}
	assert_int_equal(gmb_can_copy(client, client), 0);
	assert_int_equal(gmb_close(client), 0);
	while (server.conns > 0) {
		server_turn(&server);
	}

	server.version = NATIVE_VERSION_COPY;
	client = client_open(queue, &server);
	gmb_prepare_copy(&request, 4096, client, 0, 4096);
	gmb_submit(client, &request);
	for (int i = 0; server.copies == 0; i++) {
		both_turn(queue, &server, i);
	}
	downgrade(&server);
	for (int i = 0; request.in_flight != 0; i++) {
		both_turn(queue, &server, i);
	}
	assert_int_equal(request.result, -ENOTCONN);
	gmb_explain(client, &request, text, sizeof(text));
	assert_non_null(strstr(text, "offers less than before"));
	assert_int_equal(gmb_close(client), 0);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_close(&server);
}

/* What a program was told about its writes does not become less without its knowledge. */
TEST(test_a_server_that_promises_less)
{
	struct gmb_info info = { .size = sizeof(info) };
	struct gmb_request request = { .operation = GMB_FLUSH };
	struct gmb_client *client;
	struct gmb_queue *queue;
	struct gmb_error error;
	struct server server;
	char text[512];

	server_open(&server);
	server.version = NATIVE_VERSION_ATOMIC;
	server.atomic_bytes = 64 << 10;
	assert_int_equal(gmb_queue_create(NULL, &queue, &error), 0);
	client = client_open(queue, &server);
	gmb_get_info(client, &info);
	assert_int_equal(info.atomic_bytes, 64 << 10);
	hang_up(&server);
	server.atomic_bytes *= 2;
	for (int i = 0; server.reconnects == 0; i++) {
		both_turn(queue, &server, i);
	}
	gmb_get_info(client, &info);
	assert_int_equal(info.atomic_bytes, 128 << 10);
	hang_up(&server);
	server.atomic_bytes--;
	gmb_submit(client, &request);
	for (int i = 0; request.in_flight != 0; i++) {
		both_turn(queue, &server, i);
	}
	assert_int_equal(request.result, -ENOTCONN);
	gmb_explain(client, &request, text, sizeof(text));
	assert_non_null(strstr(text, "offers less than before"));
	assert_int_equal(gmb_close(client), 0);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_close(&server);
}

/* --- memory ----------------------------------------------------------------------------------- */

enum { BUFFER_BYTES = 64 << 10, READ_BYTES = 4096, ASKED = 8192 };

static void server_open_tcp(struct server *server)
{
	const struct clan_conn_options options = { .size = sizeof(options),
		.access = CLAN_ACCESS_ANY };
	struct clan_error error;

	memset(server, 0, sizeof(*server));
	server->version = NATIVE_VERSION_MIN;
	server->moves = true;
	assert_int_equal(clan_queue_create(NULL, &server->queue, &error), 0);
	assert_int_equal(
		clan_listen(server->queue, "tcp:127.0.0.1:0", &options, &server->listener, &error),
		0);
	snprintf(server->uri, sizeof(server->uri), "gmb://%s/disk",
		clan_listener_address(server->listener) + strlen("tcp:"));
}

/* Puts bytes that are not 0 to an offset of the client's memory. */
static void put(struct server *server, uint64_t offset, size_t bytes)
{
	static uint8_t data[BUFFER_BYTES];
	const struct iovec iov = { data, bytes };

	memset(data, 'x', sizeof(data));
	assert_int_equal(clan_put(server->conn, &iov, 1, &server->cookie, offset, 0, 0, NULL), 0);
}

static void answer(struct server *server)
{
	const struct native_wire_reply reply = { .tag = server->read.tag };

	assert_int_equal(
		clan_send(server->conn, CLAN_BULK, NATIVE_REPLY, &reply, sizeof(reply)), 0);
}

struct hostile_put {
	int64_t from; /* relative to the read's memory */
	size_t bytes;
	bool late; /* after the REPLY */
};

/* A server that has the cookie of a whole buffer puts where no read of the client is in flight. The
 * read itself is of this buffer, or of memory that the library stages in its pool. */
static void put_elsewhere(const struct hostile_put *way, bool staged)
{
	static uint8_t own[READ_BYTES];
	struct gmb_stats stats = { .size = sizeof(stats) };
	struct gmb_request request = { 0 };
	struct gmb_client *client;
	struct gmb_queue *queue;
	struct gmb_error error;
	struct server server;
	uint8_t *target = own;
	void *base;

	server_open_tcp(&server);
	assert_int_equal(gmb_queue_create(NULL, &queue, &error), 0);
	assert_int_equal(gmb_buffer_alloc(queue, BUFFER_BYTES, 0, &base, &error), 0);
	memset(base, 0, BUFFER_BYTES);
	memset(own, 0, sizeof(own));
	client = client_open(queue, &server);
	if (!staged) {
		target = (uint8_t *)base + ASKED;
	}
	gmb_prepare_read(&request, target, READ_BYTES, 0);
	gmb_submit(client, &request);
	for (int i = 0; server.reads == 0; i++) {
		both_turn(queue, &server, i);
	}
	/* What was asked for is taken. */
	put(&server, server.segment.offset + 1, READ_BYTES - 1);
	if (way->late) {
		answer(&server);
		for (int i = 0; request.in_flight != 0; i++) {
			both_turn(queue, &server, i);
		}
		assert_int_equal(request.result, 0);
		assert_int_equal(target[READ_BYTES - 1], 'x');
		memset(base, 0, BUFFER_BYTES);
		memset(own, 0, sizeof(own));
	}
	put(&server, (uint64_t)((int64_t)server.segment.offset + way->from), way->bytes);
	for (int i = 0; server.reason[0] == '\0'; i++) {
		both_turn(queue, &server, i);
	}
	if (strstr(server.reason, "O18") == NULL) {
		fail_msg("not O18: %s", server.reason);
	}
	for (size_t i = 0; i < BUFFER_BYTES; i++) {
		uint8_t *byte = (uint8_t *)base + i;

		if (byte <= target || byte >= target + READ_BYTES || way->late) {
			assert_int_equal(*byte, 0);
		}
	}
	gmb_get_stats(client, &stats);
	assert_int_equal(stats.connections_lost, 1);
	/* The client repeats a read that was not answered; gmb_close() would wait for it. */
	for (int i = 0; request.in_flight != 0; i++) {
		both_turn(queue, &server, i);
		if (server.reads == 2) {
			server.reads++;
			answer(&server);
		}
	}
	assert_int_equal(gmb_close(client), 0);
	gmb_buffer_free(queue, base);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_close(&server);
}

TEST(test_a_server_that_puts_elsewhere)
{
	static const struct hostile_put ways[] = {
		{ .from = -1, .bytes = 1 },
		{ .from = -1, .bytes = READ_BYTES },
		{ .from = 1, .bytes = READ_BYTES },
		{ .from = READ_BYTES, .bytes = 1 },
		{ .from = -ASKED, .bytes = BUFFER_BYTES },
		{ .from = 0, .bytes = 1, .late = true },
		{ .from = 0, .bytes = READ_BYTES, .late = true },
	};

	for (size_t i = 0; i < ARRAY_COUNT(ways); i++) {
		put_elsewhere(&ways[i], false);
	}
	put_elsewhere(&(struct hostile_put){ .from = READ_BYTES, .bytes = 1 }, true);
	put_elsewhere(&(struct hostile_put){ .from = 0, .bytes = 1, .late = true }, true);
}

/* --- lists ------------------------------------------------------------------------------------ */

/* gmb_list_exports() blocks, so this server has a thread. */
struct lister {
	struct server server;
	pthread_t thread;
	sem_t is_up;
	atomic_bool stop;
	uint32_t status;
};

static void *lister_main(void *context)
{
	struct lister *lister = context;

	server_open(&lister->server);
	lister->server.list_status = lister->status;
	sem_post(&lister->is_up);
	while (!atomic_load(&lister->stop)) {
		server_wait(&lister->server, -1);
	}
	server_close(&lister->server);
	return NULL;
}

static void count_one(void *context, const struct gmb_export *exported)
{
	assert_string_equal(exported->name, "");
	++*(uint64_t *)context;
}

/* Returns what gmb_list_exports() returned. */
static int list_from(uint32_t status, uint32_t timeout_ms, uint64_t *count_out)
{
	const struct gmb_options options = { .size = sizeof(options),
		.connect_timeout_ms = timeout_ms };
	struct lister lister = { .status = status };
	int result;

	*count_out = 0;
	sem_init(&lister.is_up, 0, 0);
	assert_int_equal(pthread_create(&lister.thread, NULL, lister_main, &lister), 0);
	sem_wait(&lister.is_up);
	result = gmb_list_exports(lister.server.uri, &options, count_one, count_out, NULL);
	atomic_store(&lister.stop, true);
	clan_queue_wake(lister.server.queue);
	pthread_join(lister.thread, NULL);
	sem_destroy(&lister.is_up);
	return result;
}

TEST(test_a_list_without_end)
{
	uint64_t count;
	int result;

	assert_int_equal(list_from(0, 20, &count), -ETIMEDOUT);
	/* Either limit ends it, whichever a machine reaches first. */
	result = list_from(0, 10000, &count);
	assert_true(result == -E2BIG || result == -ETIMEDOUT);
	assert_true(count <= 65536);
}

TEST(test_a_list_that_is_refused)
{
	uint64_t count;

	assert_int_equal(list_from(native_status_from_errno(-ENOENT), 60000, &count), 0);
	assert_int_equal(count, 0);
	assert_int_equal(list_from(native_status_from_errno(-EPERM), 60000, &count), -EPERM);
	assert_int_equal(count, 0);
}
