// SPDX-License-Identifier: Apache-2.0
/*
 * Peers of the provider clan of libfabric that break its rules (F1 to F6, src/fi/stream.c), made by
 * hand on libclan. They lose their connection, and harm no other.
 */
#include "fi_world.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gmblock/clan.h>

#include "base/clock.h"
#include "unit.h"

enum { REGION_BYTES = 1 << 20 };

/* As in src/fi: written again, since a peer has only the bytes. */
struct raw_hello {
	uint64_t magic;
	uint32_t ops;
	uint32_t bytes;
	uint16_t port;
	uint16_t reserved[3];
	struct sockaddr_in from;
	uint8_t rest[12];
	uint32_t reserved2;
};

struct raw_record {
	uint8_t kind;
	uint8_t flags;
	uint16_t reserved;
	uint32_t op;
	uint64_t bytes;
	uint64_t data;
	uint64_t address;
	uint64_t key;
};

enum { SEND = 1, WRITE, READ, PIECE, ANSWER };

struct raw {
	struct clan_queue *queue;
	struct clan_conn *conn;
	bool is_connected;
};

static struct raw_hello good_hello(uint16_t port)
{
	struct raw_hello hello = {
		.ops = 2,
		.port = port,
		.from = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) },
	};

	memcpy(&hello.magic, "clan-fi1", sizeof(hello.magic));
	return hello;
}

static void raw_connect(struct raw *raw, uint16_t port, const void *hello, size_t bytes)
{
	const struct clan_queue_options options = {
		.size = sizeof(options),
		.flags = CLAN_QUEUE_PASSIVE,
	};
	char address[64];

	assert_int_equal(clan_queue_create(&options, &raw->queue, NULL), 0);
	snprintf(address, sizeof(address), "shm:@clan-fi/%u", port);
	assert_int_equal(
		clan_connect(raw->queue, address, NULL, hello, bytes, &raw->conn, NULL), 0);
}

static struct raw *connecting;

/* Sends the first message of the raw peer again until the listener has accepted it. */
static void raw_drive(void)
{
	struct clan_event event;

	if (!connecting->is_connected && clan_queue_wait(connecting->queue, &event, 1, 0) == 1) {
		assert_int_equal(event.type, CLAN_EVENT_CONNECTED);
		assert_int_equal(event.status, 0);
		connecting->is_connected = true;
	}
}

/* Waits for an event of the raw peer while the side runs. Returns its status. */
static int raw_await(struct raw *raw, struct side *side, uint32_t type)
{
	uint64_t until_ns = clock_now_ns() + UINT64_C(60) * 1000000000;
	struct clan_event event;

	while (clock_now_ns() < until_ns) {
		if (clan_queue_wait(raw->queue, &event, 1, 0) == 1 && event.type == type) {
			return event.status;
		}
		drive(side);
	}
	fail_msg("no event came");
	return 0;
}

static void raw_close(struct raw *raw, struct side *side)
{
	clan_close(raw->conn);
	raw_await(raw, side, CLAN_EVENT_CLOSED);
	assert_int_equal(clan_queue_destroy(raw->queue), 0);
}

static void raw_write(struct raw *raw, struct side *side, const void *data, size_t bytes)
{
	const uint8_t *at = data;

	while (bytes > 0) {
		const struct iovec iov = { (void *)(uintptr_t)at, bytes };
		ssize_t count = clan_writev(raw->conn, &iov, 1);
		struct clan_event event;

		if (count == -ENOTCONN) {
			return;
		}
		if (count == -EAGAIN) {
			clan_queue_wait(raw->queue, &event, 1, 0);
			drive(side);
			continue;
		}
		assert_true(count > 0);
		at += count;
		bytes -= (size_t)count;
	}
	clan_flush(raw->conn);
}

static void raw_record(struct raw *raw, struct side *side, const struct raw_record *record)
{
	raw_write(raw, side, record, record->kind == WRITE || record->kind == READ ? 40 : 24);
}

/* A server with a connection to the raw peer (ep) and one to a client that keeps the rules. */
struct world {
	struct side server;
	struct side client;
	struct fid_ep *good;
	struct raw raw;
	struct fid_mr *mr;
	uint8_t *memory; /* registered, and as many bytes behind it that are not */
	uint16_t port;
};

static void accept_one(struct world *world, struct side *other)
{
	struct fi_eq_cm_entry entry;

	assert_int_equal(
		await_event(&world->server, other, &entry, sizeof(entry), NULL), FI_CONNREQ);
	side_make_ep(&world->server, entry.info);
	fi_freeinfo(entry.info);
	assert_int_equal(fi_accept(world->server.ep, NULL, 0), 0);
	assert_int_equal(
		await_event(&world->server, other, &entry, sizeof(entry), NULL), FI_CONNECTED);
}

static void world_open(struct world *world)
{
	struct raw_hello hello;
	struct fi_eq_cm_entry entry;

	side_open(&world->server, FI_WAIT_NONE);
	side_open(&world->client, FI_WAIT_NONE);
	world->port = side_listen(&world->server);
	world->memory = calloc(2, REGION_BYTES);
	assert_int_equal(fi_mr_reg(world->server.domain, world->memory, REGION_BYTES,
				 FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &world->mr, NULL),
		0);
	side_make_ep(&world->client, NULL);
	assert_int_equal(side_connect(&world->client, world->port, NULL, 0), 0);
	accept_one(world, &world->client);
	assert_int_equal(await_event(&world->client, &world->server, &entry, sizeof(entry), NULL),
		FI_CONNECTED);
	world->good = world->server.ep;
	hello = good_hello(world->port);
	raw_connect(&world->raw, world->port, &hello, sizeof(hello));
	connecting = &world->raw;
	connecting->is_connected = false;
	drive_also = raw_drive;
	accept_one(world, &world->server);
	while (!connecting->is_connected) {
		drive(&world->server);
	}
	drive_also = NULL;
}

/* The connection that kept the rules still works. */
static void world_close(struct world *world)
{
	uint8_t message[8] = { 0 };
	struct fi_cq_data_entry entry;

	raw_close(&world->raw, &world->server);
	while (fi_cq_read(world->server.cq, &entry, 1) != -FI_EAGAIN) {
		struct fi_cq_err_entry error;

		fi_cq_readerr(world->server.cq, &error, 0);
	}
	assert_int_equal(fi_recv(world->good, message, 8, NULL, 0, message), 0);
	assert_int_equal(fi_inject(world->client.ep, "still ok", 8, 0), 0);
	await_done(&world->server, &world->client, message);
	assert_memory_equal(message, "still ok", 8);
	for (size_t i = REGION_BYTES; i < 2 * REGION_BYTES; i++) {
		assert_int_equal(world->memory[i], 0);
	}
	assert_int_equal(fi_close(&world->mr->fid), 0);
	assert_int_equal(fi_close(&world->good->fid), 0);
	side_close(&world->client);
	side_close(&world->server);
	free(world->memory);
}

static void await_end(struct world *world)
{
	struct fi_eq_cm_entry entry;

	assert_int_equal(
		await_event(&world->server, NULL, &entry, sizeof(entry), NULL), FI_SHUTDOWN);
	assert_ptr_equal(entry.fid, &world->server.ep->fid);
	assert_int_equal(raw_await(&world->raw, &world->server, CLAN_EVENT_LOST), -ECONNRESET);
}

/* --- records -----------------------------------------------------------------------------------
 */

TEST(rules_of_records)
{
	/* What the victim has under way: nothing, a read or a write of 100 bytes. It is number 0.
	 */
	static const struct {
		const char *rule;
		int under_way;
		struct raw_record record;
	} cases[] = {
		{ "F1 kind 0", 0, { .kind = 0 } },
		{ "F1 kind 6", 0, { .kind = 6 } },
		{ "F1 kind 255", 0, { .kind = 255 } },
		{ "F1 reserved", 0, { .kind = SEND, .reserved = 1 } },
		{ "F1 flag", 0, { .kind = SEND, .flags = 2 } },
		{ "F1 flag of a read", 0, { .kind = READ, .flags = 1 } },
		{ "F3 answer to nothing", 0, { .kind = ANSWER } },
		{ "F3 answer to no number", 0, { .kind = ANSWER, .op = UINT32_MAX } },
		{ "F3 answer to another", READ, { .kind = ANSWER, .op = 1, .data = 5 } },
		{ "F3 piece of nothing", 0, { .kind = PIECE, .bytes = 1 } },
		{ "F3 piece of a write", WRITE, { .kind = PIECE, .bytes = 1 } },
		{ "F4 piece elsewhere", READ, { .kind = PIECE, .bytes = 1, .data = 1 } },
		{ "F4 piece too long", READ, { .kind = PIECE, .bytes = 101 } },
		{ "F4 piece much too long", READ, { .kind = PIECE, .bytes = UINT64_MAX } },
		{ "F4 empty piece", READ, { .kind = PIECE } },
		{ "F5 too early", READ, { .kind = ANSWER } },
		{ "F5 no errno", WRITE, { .kind = ANSWER, .data = UINT64_C(1) << 32 } },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		uint8_t own[100];
		struct world world;

		world_open(&world);
		if (cases[i].under_way == READ) {
			assert_int_equal(fi_read(world.server.ep, own, 100, NULL, 0, 0, 0, own), 0);
		} else if (cases[i].under_way == WRITE) {
			assert_int_equal(
				fi_write(world.server.ep, own, 100, NULL, 0, 0, 0, own), 0);
		}
		raw_record(&world.raw, &world.server, &cases[i].record);
		await_end(&world);
		if (cases[i].under_way != 0) {
			struct fi_cq_data_entry entry;

			assert_int_equal(
				await_completion(&world.server, NULL, &entry, NULL), FI_ECONNRESET);
		}
		world_close(&world);
	}
}

/* The peer announced two operations, and takes no answers. */
TEST(more_operations_than_announced)
{
	for (int kind = WRITE; kind <= READ; kind++) {
		struct world world;
		struct raw_record record;

		world_open(&world);
		record = (struct raw_record){
			.kind = READ,
			.bytes = REGION_BYTES,
			.address = (uintptr_t)world.memory,
			.key = fi_mr_key(world.mr),
		};
		raw_record(&world.raw, &world.server, &record);
		raw_record(&world.raw, &world.server, &record);
		drive(&world.server);
		record.kind = (uint8_t)kind;
		record.bytes = 0;
		raw_record(&world.raw, &world.server, &record);
		await_end(&world);
		world_close(&world);
	}
}

TEST(messages_that_are_no_stream)
{
	struct world world;

	world_open(&world);
	assert_int_equal(clan_send(world.raw.conn, CLAN_CONTROL, 1, "x", 1), 0);
	clan_flush(world.raw.conn);
	drive(&world.server);
	assert_int_equal(clan_send(world.raw.conn, CLAN_BULK, 1, "x", 1), 0);
	clan_flush(world.raw.conn);
	await_end(&world);
	world_close(&world);
}

/* Lengths beyond all reason are only lengths: what does not fit is thrown away as it comes. */
TEST(messages_without_end)
{
	enum { BYTES = 300000 };
	struct raw_record record = { .kind = SEND, .bytes = UINT64_MAX };
	uint8_t *junk = malloc(BYTES);
	uint8_t in[128];
	struct fi_cq_data_entry entry;
	struct world world;

	world_open(&world);
	memset(junk, 0x5a, BYTES);
	memset(in, 0, sizeof(in));
	assert_int_equal(fi_recv(world.server.ep, in, 64, NULL, 0, in), 0);
	raw_record(&world.raw, &world.server, &record);
	raw_write(&world.raw, &world.server, junk, BYTES);
	for (int i = 0; i < 100; i++) {
		drive(&world.server);
	}
	assert_int_equal(in[63], 0x5a);
	assert_int_equal(in[64], 0);
	assert_int_equal(fi_close(&world.server.ep->fid), 0);
	world.server.ep = NULL;
	assert_int_equal(await_completion(&world.server, NULL, &entry, NULL), FI_ECANCELED);
	world_close(&world);
	free(junk);
}

/* Records with likely fields, and junk between them. Whatever happens, it happens to the peer. */
TEST(random_records)
{
	uint64_t random = 88172645463325252u;

	for (int seed = 0; seed < 40; seed++) {
		struct fi_cq_data_entry entry;
		struct fi_cq_err_entry error;
		uint8_t in[512];
		struct world world;

		world_open(&world);
		for (int i = 0; i < 8; i++) {
			assert_int_equal(fi_recv(world.server.ep, in, sizeof(in), NULL, 0, in), 0);
		}
		assert_int_equal(fi_read(world.server.ep, in, 100, NULL, 0, 0, 0, in), 0);
		for (int i = 0; i < 60; i++) {
			struct raw_record record = { 0 };
			uint8_t junk[64];

			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			record.kind = (uint8_t)(1 + random % 5);
			record.flags = (random >> 8) % 16 == 0;
			record.bytes = (random >> 16) % 64;
			record.address =
				(uintptr_t)world.memory + REGION_BYTES - (random >> 24) % 80;
			record.key = fi_mr_key(world.mr) + ((random >> 32) % 8 == 0);
			memset(junk, (int)random | 1, sizeof(junk));
			raw_record(&world.raw, &world.server, &record);
			raw_write(&world.raw, &world.server, junk,
				(random >> 40) % 32 == 0		       ? 13
				: record.kind == READ || record.kind == ANSWER ? 0
									       : record.bytes);
			drive(&world.server);
			while (fi_cq_read(world.server.cq, &entry, 1) != -FI_EAGAIN) {
				fi_cq_readerr(world.server.cq, &error, 0);
			}
		}
		assert_int_equal(fi_close(&world.server.ep->fid), 0);
		world.server.ep = NULL;
		world_close(&world);
	}
}

/* --- connecting --------------------------------------------------------------------------------
 */

TEST(bad_hellos)
{
	enum { CASES = 9 };

	for (int i = 0; i < CASES; i++) {
		struct {
			struct raw_hello hello;
			uint8_t data[300];
		} said = { 0 };
		size_t bytes = sizeof(said.hello);
		struct fi_eq_cm_entry entry;
		struct raw raw;
		struct side side;
		uint32_t type;

		side_open(&side, FI_WAIT_NONE);
		said.hello = good_hello(side_listen(&side));
		switch (i) {
		case 0:
			bytes = 0;
			break;
		case 1:
			bytes--;
			break;
		case 2:
			said.hello.magic++;
			break;
		case 3:
			said.hello.ops = 0;
			break;
		case 4:
			said.hello.ops = 1 << 20;
			break;
		case 5:
			said.hello.bytes = 257;
			bytes += 257;
			break;
		case 6:
			said.hello.bytes = 8; /* which do not come */
			break;
		case 7:
			said.hello.port++;
			break;
		default:
			said.hello.from.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1 */
			break;
		}
		raw_connect(&raw, (uint16_t)(said.hello.port - (i == 7)), &said, bytes);
		assert_int_equal(raw_await(&raw, &side, CLAN_EVENT_LOST), -ECONNREFUSED);
		assert_int_equal(fi_eq_read(side.eq, &type, &entry, sizeof(entry), 0), -FI_EAGAIN);
		raw_close(&raw, &side);
		side_close(&side);
	}
}

/* Somebody listens at the port who is not this provider. */
TEST(a_listener_that_is_another)
{
	const struct clan_queue_options options = {
		.size = sizeof(options),
		.flags = CLAN_QUEUE_PASSIVE,
	};
	struct fi_eq_err_entry error = { 0 };
	struct fi_eq_cm_entry entry;
	struct clan_listener *listener;
	struct clan_event event;
	struct raw raw;
	struct side side;

	assert_int_equal(clan_queue_create(&options, &raw.queue, NULL), 0);
	assert_int_equal(clan_listen(raw.queue, "shm:@clan-fi/7", NULL, &listener, NULL), 0);
	side_open(&side, FI_WAIT_NONE);
	side_make_ep(&side, NULL);
	assert_int_equal(side_connect(&side, 7, NULL, 0), 0);
	while (clan_queue_wait(raw.queue, &event, 1, 10) == 0) {
		drive(&side);
	}
	assert_int_equal(event.type, CLAN_EVENT_CONNECT);
	raw.conn = event.conn;
	assert_int_equal(clan_accept(raw.conn, "who?", 4), 0);
	assert_int_equal(await_event(&side, NULL, &entry, sizeof(entry), &error), 0);
	assert_int_equal(error.err, FI_ECONNREFUSED);
	clan_listener_close(listener);
	raw_close(&raw, &side);
	side_close(&side);
}
