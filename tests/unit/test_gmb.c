// SPDX-License-Identifier: Apache-2.0
/*
 * gmb on the server against clients that break its rules, spoken over clan as such a client would
 * (docs/protocol/gmb.md; rules in the names). Real rings, sockets and shared memory.
 *
 * With TEST_MOVES over a network that cannot map the client's memory: moving_clan.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <gmblock/clan_memory.h>
#include <semaphore.h>
#include <unistd.h>

#include "base/log.h"
#include "clan_hostile.h"
#include "gmb/server/server.h"
#include "gmb/wire.h"
#include "server/listen/accept.h"
#include "stores.h"
#include "unit.h"

enum {
	REGION_BYTES = 64 << 10,
	EXPORT_BYTES = 1 << 20,
	ATOMIC_BYTES = 64 << 10,
	WAIT_MS = 20000,
	SLOW_AT = 512 << 10, /* reads there take a while */
};

#define SECOND_NS UINT64_C(1000000000)

static const struct session_kind *const kinds[] = { &native_session_kind };

#ifdef TEST_MOVES
static const bool moves = true;
#define TEST_MOVING(name) TEST_WITH(name, server_begin, server_end)
#else
static const bool moves = false;
#define TEST_MOVING(name) __attribute__((unused)) static void name(void **state)
#endif

struct server {
	struct reactor *reactor;
	struct acceptor *acceptor;
	struct listener listener;
	struct export *export;
	_Atomic uint32_t connection_total;
	sem_t stopped;
	char address[HOSTILE_ADDRESS_BYTES]; /* as clan_connect() takes it */
};

static void has_stopped(void *context)
{
	sem_post(&((struct server *)context)->stopped);
}

static int server_begin_with(void **state, uint64_t idle_timeout_ns)
{
	struct server *server = calloc(1, sizeof(*server));
	struct store_options store = { .path = "memory:1M" };
	struct export_options about = { .name = "disk", .name_bytes = 4, .epoch = 7 };
	struct reactor_options reactor_options = {
		.exports = &server->export,
		.export_count = 1,
		.instance = { 0x1d },
		.kinds = kinds,
		.kind_count = 1,
		.connection_total = &server->connection_total,
		.drained = has_stopped,
		.context = server,
	};
	struct acceptor_options acceptor_options = {
		.listeners = &server->listener,
		.listener_count = 1,
		.reactors = &server->reactor,
		.reactor_count = 1,
		.connections_max = 100,
		.connections_per_peer_max = 100,
		.connection_total = &server->connection_total,
		.stopped = has_stopped,
		.context = server,
	};
	struct error error;

	log_set_level(LOG_LEVEL_ERROR);
	sem_init(&server->stopped, 0, 0);
	stores_set(&store, "delay", "read:200ms:range=512K+8K");
	assert_int_equal(store_open(&store, &about.store, &error), 0);
	store_options_fini(&store);
	about.store->info.atomic_bytes = ATOMIC_BYTES; /* as if: memory keeps nothing */
	assert_int_equal(export_create(&about, &server->export, &error), 0);
	engine_limits_default(&reactor_options.limits);
	reactor_options.limits.idle_timeout_ns = idle_timeout_ns;
	server->listener.kind = kinds[0];
	server->listener.fds[0] = hostile_listen(server->address);
	server->listener.fd_count = 1;
	assert_int_equal(reactor_create(&reactor_options, &server->reactor, &error), 0);
	assert_int_equal(acceptor_create(&acceptor_options, &server->acceptor, &error), 0);
	acceptor_start(server->acceptor);
	*state = server;
	return 0;
}

static int server_begin(void **state)
{
	return server_begin_with(state, 0);
}

static int server_begin_impatient(void **state)
{
	return server_begin_with(state, ENGINE_IDLE_TIMEOUT_NS_MIN);
}

static int server_end(void **state)
{
	struct server *server = *state;

	acceptor_stop(server->acceptor);
	sem_wait(&server->stopped);
	reactor_drain(server->reactor, 10 * SECOND_NS);
	sem_wait(&server->stopped);
	assert_int_equal(reactor_session_count(server->reactor), 0);
	reactor_destroy(server->reactor);
	assert_int_equal(server->connection_total, 0);
	acceptor_destroy(server->acceptor);
	close(server->listener.fds[0]);
	assert_int_equal(server->export->references, 1);
	export_put(server->export);
	sem_destroy(&server->stopped);
	free(server);
	return 0;
}

/* --- a client that says what it likes -------------------------------------------------------- */

struct client {
	struct clan_queue *queue;
	struct clan_conn *conn;
	struct clan_region *region;
	uint8_t *memory;
	bool connected;
	bool lost;
	bool closed;
	uint32_t number; /* of the region */
	uint32_t generation;
	struct clan_cookie cookie; /* moves */
	uint8_t message[NATIVE_MESSAGE_BYTES_MAX];
	struct clan_message head;
};

/* One turn of its queue. */
static void turn(struct client *client)
{
	struct clan_event events[16];
	int count = clan_queue_wait(client->queue, events, 16, WAIT_MS);

	assert_true(count > 0);
	for (int i = 0; i < count; i++) {
		client->connected |= events[i].type == CLAN_EVENT_CONNECTED;
		client->lost |= events[i].type == CLAN_EVENT_LOST;
		client->closed |= events[i].type == CLAN_EVENT_CLOSED;
		if (events[i].type == CLAN_EVENT_SHARED && events[i].status == 0) {
			client->number = events[i].number;
			client->generation = events[i].generation;
		}
	}
}

static struct client *dial(const struct server *server, const void *hello, size_t bytes)
{
	struct client *client = calloc(1, sizeof(*client));
	struct clan_error error;

	assert_int_equal(clan_queue_create(NULL, &client->queue, &error), 0);
	assert_int_equal(clan_connect(client->queue, server->address, NULL, hello, bytes,
				 &client->conn, &error),
		0);
	while (!client->connected && !client->lost) {
		turn(client);
	}
	return client;
}

static struct client *dial_well(const struct server *server)
{
	const struct message_hello hello = { NATIVE_MAGIC, 1, NATIVE_VERSION, 0 };
	struct client *client = dial(server, &hello, sizeof(hello));

	assert_true(client->connected);
	return client;
}

static void hang_up(struct client *client)
{
	clan_close(client->conn);
	while (!client->closed) {
		turn(client);
	}
	assert_int_equal(clan_region_destroy(client->region), 0);
	assert_int_equal(clan_queue_destroy(client->queue), 0);
	free(client);
}

/* The next message; false: the server has ended the connection. */
static bool hear(struct client *client)
{
	for (;;) {
		int result = clan_recv(client->conn, CLAN_ANY, &client->head, client->message,
			sizeof(client->message));

		if (result == 0) {
			return true;
		}
		if (client->lost) {
			return false;
		}
		/* The event that tells of the end may come behind that of the last message. */
		assert_true(result == -EAGAIN || result == -ENOTCONN);
		turn(client);
	}
}

static void say(struct client *client, uint32_t type, const void *bytes, size_t len)
{
	assert_int_equal(clan_send(client->conn, CLAN_BULK, type, bytes, (uint32_t)len), 0);
}

/* alive_units: see struct native_wire_open. */
static void open_disk(struct client *client, uint8_t alive_units)
{
	const uint8_t message[] = { 0, 0, 4, 0, 0, 0, alive_units, 0, 'd', 'i', 's', 'k' };
	struct native_export export;

	say(client, NATIVE_OPEN, message, sizeof(message));
	assert_true(hear(client));
	assert_int_equal(client->head.type, NATIVE_EXPORT);
	assert_null(native_parse(NATIVE_EXPORT, client->message, client->head.bytes, &export));
	assert_int_equal(export.head.status, 0);
	assert_int_equal(export.head.bytes, EXPORT_BYTES);
	assert_int_equal(export.head.epoch, 7);
	assert_int_equal(export.name.length, 4);
	assert_memory_equal(export.name.bytes, "disk", 4);
}

static void share_region(struct client *client, uint32_t rights)
{
	void *base;

	assert_int_equal(
		clan_region_create(client->queue, REGION_BYTES, 0, &client->region, &base), 0);
	client->memory = base;
	assert_int_equal(clan_region_share(client->conn, client->region, rights), 0);
	while (client->generation == 0) {
		turn(client);
	}
	if (moves) {
		assert_int_equal(clan_cookie_grant(client->conn, client->region, 0, REGION_BYTES,
					 rights, 0, &client->cookie),
			0);
		client->generation = client->cookie.generation;
		say(client, NATIVE_REGION, &client->cookie, sizeof(client->cookie));
	}
}

static struct client *dial_ready(const struct server *server)
{
	struct client *client = dial_well(server);

	open_disk(client, 0);
	share_region(client, CLAN_READ | CLAN_WRITE);
	return client;
}

/* The status of the reply to a request. */
static uint32_t ask(struct client *client, const void *request, size_t len)
{
	struct native_wire_reply reply;

	say(client, NATIVE_REQUEST, request, len);
	assert_true(hear(client));
	assert_int_equal(client->head.type, NATIVE_REPLY);
	assert_true(client->head.bytes >= sizeof(reply));
	memcpy(&reply, client->message, sizeof(reply));
	assert_int_equal(reply.tag, 0x1234);
	return reply.status;
}

/* --- good and bad requests ------------------------------------------------------------------- */

struct good {
	struct native_wire_request head;
	struct native_wire_segment segments[2];
};

static struct good good_read(const struct client *client)
{
	struct good request = {
		.head = { .tag = 0x1234,
			.operation = NATIVE_READ,
			.offset = 512,
			.length = 8192,
			.segment_count = 2 },
	};

	for (uint32_t i = 0; i < 2; i++) {
		request.segments[i] = (struct native_wire_segment){
			.region = (uint16_t)client->number,
			.generation = client->generation,
			.offset = 4096 + i * 8192,
			.bytes = 4096,
		};
	}
	return request;
}

/* The server still serves, and another client's connection is untouched by what was said. */
static void check_good(struct client *client)
{
	struct good request = good_read(client);

	memset(client->memory, 0xee, REGION_BYTES);
	request.head.operation = NATIVE_WRITE;
	assert_int_equal(ask(client, &request, sizeof(request)), 0);
	memset(client->memory, 0, REGION_BYTES);
	request.head.operation = NATIVE_READ;
	assert_int_equal(ask(client, &request, sizeof(request)), 0);
	for (uint32_t i = 0; i < REGION_BYTES; i++) {
		bool inside = (i >= 4096 && i < 8192) || (i >= 12288 && i < 16384);

		assert_int_equal(client->memory[i], inside ? 0xee : 0);
	}
}

TEST_WITH(test_segments_are_filled_and_nothing_else, server_begin, server_end)
{
	struct client *client = dial_ready(*state);

	check_good(client);
	hang_up(client);
}

TEST_WITH(test_the_welcome, server_begin, server_end)
{
	for (uint16_t version = 1; version <= NATIVE_VERSION; version++) {
		struct message_hello hello = { NATIVE_MAGIC, 1, version, 0 };
		struct client *client = dial(*state, &hello, sizeof(hello));
		const struct native_wire_list list = { .cursor = 0 };
		struct native_welcome parsed;
		struct native_export export;
		size_t bytes;
		const void *welcome = clan_conn_hello(client->conn, &bytes);

		assert_null(native_welcome_parse(welcome, bytes, &parsed));
		assert_int_equal(parsed.version, version);
		assert_int_equal(parsed.flags, moves ? NATIVE_WELCOME_MOVES : 0);
		assert_int_equal(parsed.instance[0], version == 1 ? 0 : 0x1d);
		say(client, NATIVE_LIST, &list, sizeof(list));
		assert_true(hear(client));
		assert_null(
			native_parse(NATIVE_EXPORT, client->message, client->head.bytes, &export));
		assert_int_equal(export.head.atomic_bytes, version < 3 ? 0 : ATOMIC_BYTES);
		hang_up(client);
	}
}

TEST_WITH(test_G1_hellos, server_begin, server_end)
{
	const struct message_hello good = { NATIVE_MAGIC, 1, 1, 0 };
	struct message_hello bad[] = { good, good, good, good };

	bad[0].magic++;
	bad[1].version_min = NATIVE_VERSION + 1;
	bad[1].version_max = NATIVE_VERSION + 1;
	bad[2].version_min = 2;
	bad[3].zero = 1;
	for (uint32_t i = 0; i < ARRAY_COUNT(bad); i++) {
		struct client *client = dial(*state, &bad[i], sizeof(bad[i]));

		assert_true(client->lost);
		hang_up(client);
	}
	for (size_t len = 0; len < sizeof(good); len++) {
		struct client *client = dial(*state, &good, len);

		assert_true(client->lost);
		hang_up(client);
	}
}

static void check_breaks(struct server *server, bool ready, uint32_t class, uint32_t type,
	const void *bytes, size_t len)
{
	struct client *client = ready ? dial_ready(server) : dial_well(server);

	assert_int_equal(clan_send(client->conn, class, type, bytes, (uint32_t)len), 0);
	assert_false(hear(client));
	hang_up(client);
}

TEST_WITH(test_G2_messages_that_do_not_belong_there, server_begin, server_end)
{
	static const uint8_t zeroes[64];

	for (uint32_t type = 1; type < 10; type++) {
		bool early = type == NATIVE_LIST || type == NATIVE_OPEN;

		if (!early) {
			check_breaks(*state, false, CLAN_BULK, type, zeroes, sizeof(zeroes));
		}
		if (type != NATIVE_REQUEST) {
			check_breaks(*state, true, CLAN_BULK, type, zeroes, sizeof(zeroes));
		}
		check_breaks(*state, early, CLAN_CONTROL, type, zeroes, sizeof(zeroes));
	}
}

TEST_WITH(test_G3_lengths, server_begin, server_end)
{
	static const uint8_t open_message[] = { 0, 0, 4, 0, 0, 0, 0, 0, 'd', 'i', 's', 'k', 0 };
	/* Its name is no text (G19). */
	static const uint8_t copy[42] = { [6] = 2, [40] = 'a', [41] = 0xff };

	for (size_t len = 0; len <= sizeof(open_message); len++) {
		if (len != sizeof(open_message) - 1) {
			check_breaks(*state, false, CLAN_BULK, NATIVE_OPEN, open_message, len);
		}
	}
	check_breaks(*state, false, CLAN_BULK, NATIVE_LIST, copy, 7);
	check_breaks(*state, false, CLAN_BULK, NATIVE_LIST, copy, 9);
	for (size_t len = 0; len <= sizeof(copy); len++) {
		check_breaks(*state, true, CLAN_BULK, NATIVE_COPY, copy, len);
	}
}

TEST_WITH(test_G4_openings, server_begin, server_end)
{
	static const struct {
		uint8_t bytes[24];
		size_t len;
	} bad[] = {
		{ { 2 }, 8 },		  /* flags */
		{ { 0, 0, 1, 0x10 }, 8 }, /* a name of 4097 bytes */
		{ { 0, 0, 1, 0, 0, 0, 0, 0, 0 }, 9 },
		{ { 0, 0, 1, 0, 0, 0, 0, 0, 0xff }, 9 },
		{ { 0, 0, 0, 0, 65 }, 8 },
		{ { 0, 0, 0, 0, 0, 33 }, 8 },
		{ { 0, 0, 0, 0, 0, 1, 0, 0 }, 8 },
		{ { 0, 0, 0, 0, 0, 1, 0, 0, 0 }, 9 },
		{ { 0, 0, 0, 0, 0, 1, 0, 0, 2, 'a' }, 10 },
		{ { 0, 0, 0, 0, 0, 1, 0, 0, 1, 'a', 'b' }, 11 },
	};

	for (uint32_t i = 0; i < ARRAY_COUNT(bad); i++) {
		check_breaks(*state, false, CLAN_BULK, NATIVE_OPEN, bad[i].bytes, bad[i].len);
	}
}

static void change_operation(struct good *request)
{
	request->head.operation = NATIVE_FLUSH;
}
static void change_zero(struct good *request)
{
	request->head.zero = 1;
}
static void change_count(struct good *request)
{
	request->head.segment_count = 65;
}
static void change_count_down(struct good *request)
{
	request->head.segment_count = 1;
}
static void change_inline(struct good *request)
{
	request->head.inline_bytes = 513;
}
static void change_sum(struct good *request)
{
	request->head.length = 8191;
}
static void change_empty(struct good *request)
{
	request->segments[0].bytes = 0;
	request->segments[1].bytes = 8192;
}
static void change_overflow(struct good *request)
{
	request->segments[0].bytes = UINT64_MAX;
	request->segments[1].bytes = 8193;
}
static void change_region(struct good *request)
{
	request->segments[1].region++;
}
static void change_region_wildly(struct good *request)
{
	request->segments[1].region = 0xffff;
}
static void change_generation(struct good *request)
{
	request->segments[0].generation++;
}
static void change_offset(struct good *request)
{
	request->segments[1].offset = REGION_BYTES - 4095;
}
static void change_offset_wildly(struct good *request)
{
	request->segments[1].offset = UINT64_MAX - 4095;
}
static void change_reserved(struct good *request)
{
	request->segments[1].zero = 1;
}

TEST_WITH(test_G5_to_G7_requests, server_begin, server_end)
{
	static void (*const changes[])(struct good * request) = {
		change_operation,
		change_zero,
		change_count,
		change_count_down,
		change_inline,
		change_sum,
		change_empty,
		change_overflow,
		change_region,
		change_region_wildly,
		change_generation,
		change_offset,
		change_offset_wildly,
		change_reserved,
	};
	struct client *witness = dial_ready(*state);

	for (uint32_t i = 0; i < ARRAY_COUNT(changes); i++) {
		struct client *client = dial_ready(*state);
		struct good request = good_read(client);

		changes[i](&request);
		say(client, NATIVE_REQUEST, &request, sizeof(request));
		assert_false(hear(client));
		hang_up(client);
		check_good(witness);
	}
	hang_up(witness);
}

TEST_WITH(test_G7_rights, server_begin, server_end)
{
	static const struct {
		uint32_t rights;
		uint8_t allowed;
		uint8_t forbidden;
	} cases[] = {
		{ CLAN_READ, NATIVE_WRITE, NATIVE_READ },
		{ CLAN_WRITE, NATIVE_READ, NATIVE_WRITE },
	};

	for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct client *client = dial_well(*state);
		struct good request;

		open_disk(client, 0);
		share_region(client, cases[i].rights);
		request = good_read(client);
		request.head.operation = cases[i].allowed;
		assert_int_equal(ask(client, &request, sizeof(request)), 0);
		request.head.operation = cases[i].forbidden;
		say(client, NATIVE_REQUEST, &request, sizeof(request));
		assert_false(hear(client));
		hang_up(client);
	}
}

TEST_WITH(test_G8_and_G9_refusals_keep_the_connection, server_begin, server_end)
{
	static const struct {
		struct native_wire_request head;
		uint32_t status;
	} cases[] = {
		{ { .operation = NATIVE_OPERATION_COUNT, .offset = 4096 }, 22 },
		{ { .operation = NATIVE_FLUSH, .flags = NATIVE_FUA }, 22 },
		{ { .operation = NATIVE_TRIM, .flags = 0x8000, .length = 1 }, 22 },
		{ { .operation = NATIVE_TRIM, .offset = EXPORT_BYTES, .length = 1 }, 22 },
		{ { .operation = NATIVE_ZERO, .offset = UINT64_MAX, .length = 2 }, 28 },
		{ { .operation = NATIVE_STATUS, .length = 4096 }, 22 },
		{ { .operation = NATIVE_STATUS, .extents_max = 1 }, 22 },
		{ { .operation = NATIVE_READ }, 0 },
		{ { .operation = NATIVE_WRITE }, 0 },
		{ { .operation = NATIVE_CACHE }, 0 },
		{ { .operation = NATIVE_FLUSH }, 0 },
		{ { .operation = NATIVE_STATUS, .length = 4096, .extents_max = 1 }, 0 },
		{ { .operation = NATIVE_STATUS, .length = 4096, .extents_max = UINT32_MAX }, 0 },
	};
	struct client *client = dial_ready(*state);

	for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct native_wire_request head = cases[i].head;
		struct native_wire_reply reply;

		head.tag = 0x1234;
		assert_int_equal(ask(client, &head, sizeof(head)), cases[i].status);
		memcpy(&reply, client->message, sizeof(reply));
		assert_true(reply.status == 0 || reply.value == head.offset);
	}
	check_good(client);
	hang_up(client);
}

TEST_WITH(test_lists_and_looks, server_begin, server_end)
{
	static const uint8_t unknown[] = { 0, 0, 4, 0, 0, 0, 0, 0, 'd', 'i', 's', 'c' };
	static const uint8_t look[] = { 1, 0, 4, 0, 0, 0, 0, 0, 'd', 'i', 's', 'k' };
	struct client *client = dial_well(*state);
	struct native_wire_list list = { .cursor = 0 };
	struct native_export export;

	say(client, NATIVE_LIST, &list, sizeof(list));
	assert_true(hear(client));
	assert_null(native_parse(NATIVE_EXPORT, client->message, client->head.bytes, &export));
	assert_int_equal(export.head.status, 0);
	list.cursor = export.head.cursor;
	say(client, NATIVE_LIST, &list, sizeof(list));
	assert_true(hear(client));
	assert_null(native_parse(NATIVE_EXPORT, client->message, client->head.bytes, &export));
	assert_int_equal(export.head.status, 2);
	say(client, NATIVE_OPEN, unknown, sizeof(unknown));
	assert_true(hear(client));
	assert_null(native_parse(NATIVE_EXPORT, client->message, client->head.bytes, &export));
	assert_int_equal(export.head.status, 2);
	say(client, NATIVE_OPEN, look, sizeof(look));
	assert_true(hear(client));
	assert_null(native_parse(NATIVE_EXPORT, client->message, client->head.bytes, &export));
	assert_int_equal(export.head.bytes, EXPORT_BYTES);
	open_disk(client, 0); /* looking has not chosen it */
	hang_up(client);
}

/* The answers are those for an unknown name, but for that. A cursor says what was listed. */
TEST_WITH(test_a_hidden_export_is_unknown, server_begin, server_end)
{
	const struct native_wire_list wrong = { .cursor = 1 };
	uint8_t open[] = { 0, 0, 4, 0, 0, 0, 0, 0, 'd', 'i', 's', 'k' };
	struct client *client = dial_well(*state);
	struct export *export = ((struct server *)*state)->export;
	struct access *nobody;
	uint8_t answers[2][128] = { { 0 } };

	assert_int_equal(access_create(NULL, 0, &nobody), 0);
	export_set_access(export, nobody);
	for (open[0] = 0; open[0] < 2; open[0]++) { /* look, too */
		for (int i = 0; i < 2; i++) {
			open[sizeof(open) - 1] = "kc"[i];
			say(client, NATIVE_OPEN, open, sizeof(open));
			assert_true(hear(client) && client->head.bytes <= sizeof(answers[i]));
			memcpy(answers[i], client->message, client->head.bytes);
		}
		((uint8_t *)memmem(answers[1], sizeof(answers[1]), "disc", 4))[3] = 'k';
		assert_memory_equal(answers[0], answers[1], sizeof(answers[0]));
	}
	say(client, NATIVE_LIST, &wrong, sizeof(wrong));
	assert_false(hear(client));
	export_set_access(export, NULL);
	hang_up(client);
}

static void do_nothing(struct engine *engine, void *context)
{
}

/* More than a ring holds: the server stops when there is no room for an answer, and goes on. */
TEST_WITH(test_lists_before_answers_are_taken, server_begin, server_end)
{
	/* More answers than fit into a ring, which stop the server; and so few that there is room
	 * for all questions when it has told of half a ring that it has taken. */
	enum { LISTS = 256 + 128 };
	const struct native_wire_list list = { .cursor = 0 };
	struct server *server = *state;
	struct client *client = dial_well(server);

	for (uint32_t i = 0; i < LISTS; i++) {
		while (clan_send(client->conn, CLAN_BULK, NATIVE_LIST, &list, sizeof(list)) != 0) {
			turn(client);
		}
		clan_flush(client->conn);
	}
	for (int i = 0; i < 3; i++) { /* turns of the server, which finds no room */
		assert_int_equal(reactor_call(server->reactor, do_nothing, NULL), 0);
	}
	for (uint32_t i = 0; i < LISTS; i++) {
		assert_true(hear(client));
		assert_int_equal(client->head.type, NATIVE_EXPORT);
	}
	open_disk(client, 0);
	hang_up(client);
}

/* Asks and asks, and never takes an answer: its requests wait, and others are served. */
TEST_WITH(test_a_client_that_takes_no_answers, server_begin, server_end)
{
	struct native_wire_request head = { .tag = 1, .operation = NATIVE_FLUSH };
	struct client *client = dial_ready(*state);
	struct client *witness = dial_ready(*state);
	uint32_t sent = 0;

	while (sent < 100000 &&
		clan_send(client->conn, CLAN_BULK, NATIVE_REQUEST, &head, sizeof(head)) == 0) {
		clan_flush(client->conn);
		sent++;
	}
	for (int i = 0; i < 100; i++) {
		check_good(witness);
	}
	hang_up(client);
	hang_up(witness);
}

/* Regions come and go while requests are in flight. */
TEST_WITH(test_G13_regions_that_are_wanted_back, server_begin, server_end)
{
	for (int round = 0; round < 50; round++) {
		struct client *client = dial_ready(*state);
		struct good request = good_read(client);
		struct clan_event events[16];
		bool back = false;

		for (int i = 0; i < 20; i++) {
			say(client, NATIVE_REQUEST, &request, sizeof(request));
		}
		if (round % 2 == 0) {
			clan_flush(client->conn);
			for (int i = 0; i < 20; i++) {
				assert_true(hear(client));
			}
			assert_int_equal(clan_region_unshare(client->conn, client->region), 0);
			while (!back) {
				int count = clan_queue_wait(client->queue, events, 16, WAIT_MS);

				assert_true(count > 0);
				for (int i = 0; i < count; i++) {
					back |= events[i].type == CLAN_EVENT_UNSHARED;
				}
			}
		}
		hang_up(client);
	}
}

/* Cookies that grant nothing, or not enough. Puts and gets find that, the server does not. */
static void check_cookie(struct server *server, struct clan_cookie cookie, uint8_t operation)
{
	struct client *client = dial_ready(server);
	struct good request = good_read(client);

	request.head.operation = operation;
	say(client, NATIVE_REGION, &cookie, sizeof(cookie));
	request.segments[0].generation = cookie.generation;
	request.segments[1].generation = cookie.generation;
	say(client, NATIVE_REQUEST, &request, sizeof(request));
	assert_false(hear(client));
	hang_up(client);
}

TEST_MOVING(test_G18_cookies)
{
	struct client *witness = dial_ready(*state);
	const struct clan_cookie good = witness->cookie;
	struct clan_cookie bad[] = { good, good, good, good, good, good, good };

	bad[0].region = NATIVE_REGIONS_MAX;
	bad[1].generation = 0;
	bad[2].bytes = 0;
	bad[3].rights = 4;
	bad[4].reserved = 1;
	bad[5].flags = CLAN_COOKIE_ONCE;
	bad[6].region = 0xffff;
	for (uint32_t i = 0; i < ARRAY_COUNT(bad); i++) {
		check_breaks(*state, true, CLAN_BULK, NATIVE_REGION, &bad[i], sizeof(bad[i]));
	}
	bad[6] = good;
	bad[6].rights = 0;
	check_breaks(*state, true, CLAN_BULK, NATIVE_REGION, &bad[6], sizeof(bad[6]));
	check_breaks(*state, true, CLAN_BULK, NATIVE_REGION, &good, sizeof(good) - 1);
	check_breaks(*state, false, CLAN_BULK, NATIVE_REGION, &good, sizeof(good));
	for (uint8_t operation = NATIVE_READ; operation <= NATIVE_WRITE; operation++) {
		struct clan_cookie wrong[] = { good, good, good, good };

		wrong[0].generation += 1000; /* never granted */
		wrong[1].slot = 1;
		wrong[2].slot = 0xffff;
		wrong[3].bytes = 4096; /* less than the request needs */
		for (uint32_t i = 0; i < ARRAY_COUNT(wrong); i++) {
			check_cookie(*state, wrong[i], operation);
			check_good(witness);
		}
	}
	hang_up(witness);
}

/* Both messages are there when the server looks. */
TEST_MOVING(test_G18_a_region_that_is_in_use)
{
	struct client *client = dial_ready(*state);
	struct good request = good_read(client);

	say(client, NATIVE_REQUEST, &request, sizeof(request));
	say(client, NATIVE_REGION, &client->cookie, sizeof(client->cookie));
	assert_false(hear(client));
	hang_up(client);
}

/* A cookie is revoked while requests use it: they end with the connection, and no other does. */
TEST_MOVING(test_G18_a_cookie_that_is_taken_back)
{
	struct client *witness = dial_ready(*state);

	for (int round = 0; round < 50; round++) {
		struct client *client = dial_ready(*state);
		struct good request = good_read(client);
		int result;

		for (int i = 0; i < 20; i++) {
			request.head.operation = i % 2 == 0 ? NATIVE_READ : NATIVE_WRITE;
			say(client, NATIVE_REQUEST, &request, sizeof(request));
		}
		clan_flush(client->conn);
		if (round % 2 == 0) {
			assert_true(hear(client));
		}
		result = clan_cookie_revoke(client->conn, &client->cookie, 0, NULL);
		assert_int_equal(result, 0);
		say(client, NATIVE_REQUEST, &request, sizeof(request));
		while (hear(client)) {
			continue;
		}
		hang_up(client);
		check_good(witness);
	}
	hang_up(witness);
}

static void resize(struct engine *engine, void *context)
{
	engine_export_resized(engine, context);
}

TEST_WITH(test_events, server_begin, server_end)
{
	struct server *server = *state;
	struct client *client = dial_ready(server);
	struct native_wire_event event;

	assert_int_equal(reactor_call(server->reactor, resize, server->export), 0);
	assert_true(hear(client));
	/* Behind EXPORT, also where nobody has received that yet. */
	assert_int_equal(client->head.cls, CLAN_BULK);
	assert_int_equal(client->head.type, NATIVE_EVENT);
	assert_null(native_parse(NATIVE_EVENT, client->message, client->head.bytes, &event));
	assert_int_equal(event.bytes, EXPORT_BYTES);
	assert_int_equal(event.flags & NATIVE_EXPORT_WRITABLE, NATIVE_EXPORT_WRITABLE);
	check_good(client);
	hang_up(client);
}

/* While requests wait and nothing else comes, as often as the client wishes. */
TEST_WITH(test_signs_of_life, server_begin, server_end)
{
	struct client *client = dial_well(*state);
	struct good request;
	uint32_t signs = 0;

	open_disk(client, 1);
	share_region(client, CLAN_READ | CLAN_WRITE);
	check_good(client);
	request = good_read(client);
	request.head.offset = SLOW_AT;
	say(client, NATIVE_REQUEST, &request, sizeof(request));
	while (hear(client) && client->head.type == NATIVE_ALIVE) {
		assert_int_equal(client->head.cls, CLAN_BULK);
		assert_int_equal(client->head.bytes, 0);
		signs++;
	}
	assert_int_equal(client->head.type, NATIVE_REPLY);
	assert_true(signs > 0);
	check_good(client);
	hang_up(client);
}

/* It is told by the end of its connection; who comes next is served. */
TEST_WITH(test_the_idle_timeout, server_begin_impatient, server_end)
{
	struct client *client = dial_well(*state);

	open_disk(client, 0);
	assert_false(hear(client));
	hang_up(client);
	client = dial_well(*state);
	open_disk(client, 0);
	hang_up(client);
}

static bool take_nobody(void *context, const struct session_kind *kind, const char *address)
{
	return false;
}

/* It has connected before the listener was closed, and says who it is when the engine ends. */
TEST(test_a_hello_after_the_end)
{
	static const struct engine_door door = { .take = take_nobody };
	struct engine_options options = { .kinds = kinds, .kind_count = 1 };
	struct export_uri uri = { .is_unix = true };
	char name[32];
	char address[64];
	struct hostile hostile;
	struct engine *engine;
	struct error error;
	struct ring *ring;
	void *listener;

	snprintf(name, sizeof(name), "gmb-end-%d", getpid());
	snprintf(address, sizeof(address), "shm:@%s", name);
	uri.socket_path_bytes = strlen(name) + 1;
	uri.socket_path = calloc(1, uri.socket_path_bytes + 1);
	assert_non_null(uri.socket_path);
	memcpy(uri.socket_path + 1, name, strlen(name));
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &ring, &error), 0);
	options.ring = ring;
	engine_limits_default(&options.limits);
	assert_int_equal(engine_create(&options, &engine, &error), 0);
	assert_int_equal(engine_listen(engine, kinds[0], &uri, &door, &listener, &error), 0);
	hostile_open(&hostile, address);
	for (int i = 0; i < 100; i++) {
		(void)ring_turn(ring, false);
	}
	engine_listen_end(engine, kinds[0], listener);
	hostile_seal(&hostile);
	hostile_send_hello(&hostile);
	engine_destroy(engine);
	assert_false(hostile_welcomed(&hostile));
	hostile_close(&hostile);
	ring_destroy(ring);
	free(uri.socket_path);
}
