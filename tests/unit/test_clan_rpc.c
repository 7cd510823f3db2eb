// SPDX-License-Identifier: Apache-2.0
/*
 * What <gmblock/clan_rpc.h> promises, between nodes of one process, against peers that break its
 * rules, and against one that is killed. Carriers are added to the table.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmblock/clan_memory.h>
#include <gmblock/clan_rpc.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "unit.h"

#define TIMEOUT_NS UINT64_C(60000000000)

enum { BUFFER_BYTES = 8192, KEPT_MAX = 256, KEPT_BYTES = 16, REQUEST_TYPE = 7, REPLY_TYPE = 9 };

struct kind {
	const char *name;
	struct clan_queue_options queue;
	const char *network; /* where it listens; NULL: shm */
};

static const struct kind kinds[] = {
	{ "futex", { .size = sizeof(struct clan_queue_options), .bell = CLAN_BELL_FUTEX } },
	{ "socket", { .size = sizeof(struct clan_queue_options), .bell = CLAN_BELL_SOCKET } },
	{ "passive", { .size = sizeof(struct clan_queue_options), .flags = CLAN_QUEUE_PASSIVE } },
	{ "tcp", { .size = sizeof(struct clan_queue_options) }, .network = "tcp:127.0.0.1:0" },
	{ "ofi", { .size = sizeof(struct clan_queue_options) }, .network = "ofi:127.0.0.1:0" },
};

/* One node of several in this thread, with events that nobody asked for yet. */
struct side {
	struct clan_rpc *rpc;
	struct clan_rpc_event kept[KEPT_MAX];
	uint8_t bytes[KEPT_MAX][KEPT_BYTES];
	unsigned count;
};

static uint8_t buffer[BUFFER_BYTES]; /* the message of the event that was taken last */

static bool is_network(void **state)
{
	return ((const struct kind *)*state)->network != NULL;
}

static void make(void **state, struct side *side, const struct clan_rpc_options *options)
{
	const struct kind *kind = *state;
	struct clan_rpc_options own = { .size = sizeof(own), .node = CLAN_RPC_NO_NODE };
	int result;

	if (options != NULL) {
		own = *options;
	}
	own.access = kind->network != NULL ? CLAN_ACCESS_ANY : CLAN_ACCESS_OWNER;
	result = clan_rpc_create(&kind->queue, &own, &side->rpc, NULL);
	if (result == -EOPNOTSUPP) {
		skip(); /* the kernel has no such bell */
	}
	assert_int_equal(result, 0);
	side->count = 0;
}

/* Listens where nobody else does, and says where. */
static void listen_anywhere(void **state, struct side *side, char address[CLAN_ADDRESS_BYTES])
{
	static unsigned count;
	struct clan_error error;
	int result;

	if (is_network(state)) {
		snprintf(address, CLAN_ADDRESS_BYTES, "%s", ((const struct kind *)*state)->network);
	} else {
		snprintf(address, CLAN_ADDRESS_BYTES, "shm:@clan-rpc-%d-%u", getpid(), count++);
	}
	result = clan_rpc_listen(side->rpc, address, &error);
	if (result == -EPROTONOSUPPORT) {
		print_message("[  NOTE    ] not tested: %s\n", error.text);
		clan_rpc_destroy(side->rpc);
		skip();
	}
	assert_int_equal(result, 0);
	snprintf(address, CLAN_ADDRESS_BYTES, "%s", clan_rpc_address(side->rpc));
}

static void look(struct side *side)
{
	struct clan_rpc_event event;

	while (clan_rpc_next(side->rpc, &event, buffer, sizeof(buffer), 1) == 1) {
		assert_true(side->count < KEPT_MAX);
		memcpy(side->bytes[side->count], buffer, KEPT_BYTES);
		side->kept[side->count++] = event;
	}
}

/* The next event of that type on one of two sides; both make progress. */
static struct clan_rpc_event wait_for(struct side *side, struct side *other, uint32_t type)
{
	uint64_t until_ns = clock_now_ns() + TIMEOUT_NS;

	for (;;) {
		for (unsigned i = 0; i < side->count; i++) {
			struct clan_rpc_event event = side->kept[i];

			if (event.type == type) {
				memcpy(buffer, side->bytes[i], KEPT_BYTES);
				side->count--;
				memmove(&side->kept[i], &side->kept[i + 1],
					(side->count - i) * sizeof(event));
				memmove(side->bytes[i], side->bytes[i + 1],
					(size_t)(side->count - i) * KEPT_BYTES);
				return event;
			}
		}
		if (clock_now_ns() > until_ns) {
			fail_msg("no event %u", type);
		}
		look(other);
		look(side);
	}
}

struct pair {
	struct side server;
	struct side client;
	char address[CLAN_ADDRESS_BYTES];
	uint32_t client_node; /* as the server numbers it */
};

static void pair_open(void **state, struct pair *pair, const struct clan_rpc_options *server,
	const struct clan_rpc_options *client)
{
	struct clan_error error;

	make(state, &pair->server, server);
	listen_anywhere(state, &pair->server, pair->address);
	make(state, &pair->client, client);
	assert_int_equal(clan_rpc_dial(pair->client.rpc, 5, pair->address, &error), 0);
	assert_int_equal(wait_for(&pair->client, &pair->server, CLAN_RPC_UP).node, 5);
	pair->client_node = wait_for(&pair->server, &pair->client, CLAN_RPC_UP).node;
}

/* Over a network the end of a connection waits for the peer, which is in this thread. */
static void part(struct side *side, uint32_t number, struct side *other)
{
	assert_int_equal(clan_rpc_hang_up(side->rpc, number), 0);
	wait_for(side, other, CLAN_RPC_DOWN);
	wait_for(other, side, CLAN_RPC_DOWN);
}

static void pair_close(struct pair *pair)
{
	part(&pair->client, 5, &pair->server);
	clan_rpc_destroy(pair->client.rpc);
	clan_rpc_destroy(pair->server.rpc);
}

/* Replies with the request's bytes, each one more. */
static void answer(struct side *side, const struct clan_rpc_event *event)
{
	for (uint32_t i = 0; i < MIN(event->bytes, (uint32_t)KEPT_BYTES); i++) {
		buffer[i]++;
	}
	assert_int_equal(
		clan_rpc_reply(side->rpc, &event->request, REPLY_TYPE, buffer, event->bytes), 0);
}

/* --- nodes that keep the rules -----------------------------------------------------------------
 */

TEST(a_call_and_its_reply)
{
	struct clan_rpc_event event;
	struct pair pair;
	int op;

	pair_open(state, &pair, NULL, NULL);
	assert_int_equal(clan_rpc_call(pair.client.rpc, 5, REQUEST_TYPE, "abc", 3, &op), 0);
	event = wait_for(&pair.server, &pair.client, CLAN_RPC_REQUEST);
	assert_int_equal(event.node, pair.client_node);
	assert_int_equal(event.kind, REQUEST_TYPE);
	assert_int_equal(event.bytes, 3);
	assert_memory_equal(buffer, "abc", 3);
	answer(&pair.server, &event);
	assert_int_equal(clan_rpc_reply(pair.server.rpc, &event.request, 1, NULL, 0), -ENOENT);
	event = wait_for(&pair.client, &pair.server, CLAN_RPC_REPLY);
	assert_ptr_equal(event.op, &op);
	assert_int_equal(event.status, 0);
	assert_int_equal(event.kind, REPLY_TYPE);
	assert_int_equal(event.bytes, 3);
	assert_memory_equal(buffer, "bcd", 3);

	/* The other way, over the same connection, without bytes. */
	assert_int_equal(
		clan_rpc_call(pair.server.rpc, pair.client_node, CLAN_RPC_TYPE_MAX, NULL, 0, &op),
		0);
	event = wait_for(&pair.client, &pair.server, CLAN_RPC_REQUEST);
	assert_int_equal(event.kind, CLAN_RPC_TYPE_MAX);
	assert_int_equal(event.bytes, 0);
	assert_int_equal(clan_rpc_reply(pair.client.rpc, &event.request, 0, NULL, 0), 0);
	assert_ptr_equal(wait_for(&pair.server, &pair.client, CLAN_RPC_REPLY).op, &op);
	pair_close(&pair);
}

TEST(arguments_are_checked)
{
	struct clan_rpc_options odd = { .size = sizeof(odd), .bytes_max = 100 };
	struct clan_rpc_options small = {
		.size = sizeof(small), .node = CLAN_RPC_NO_NODE, .bytes_max = 64
	};
	struct clan_rpc_event event;
	struct clan_error error;
	struct clan_rpc *rpc;
	struct pair pair;

	assert_int_equal(clan_rpc_create(NULL, &odd, &rpc, &error), -EINVAL);
	pair_open(state, &pair, NULL, &small);
	assert_int_equal(clan_rpc_next(pair.server.rpc, &event, buffer, 4095, 0), -EINVAL);
	assert_int_equal(clan_rpc_call(pair.client.rpc, 5, 256, NULL, 0, NULL), -EINVAL);
	assert_int_equal(clan_rpc_call(pair.client.rpc, 6, 1, NULL, 0, NULL), -ENOTCONN);
	/* The smaller area counts on both sides. */
	assert_int_equal(clan_rpc_call(pair.client.rpc, 5, 1, buffer, 65, NULL), -EMSGSIZE);
	assert_int_equal(
		clan_rpc_call(pair.server.rpc, pair.client_node, 1, buffer, 65, NULL), -EMSGSIZE);
	assert_int_equal(clan_rpc_call(pair.client.rpc, 5, 1, buffer, 64, NULL), 0);
	event = wait_for(&pair.server, &pair.client, CLAN_RPC_REQUEST);
	assert_int_equal(clan_rpc_reply(pair.server.rpc, &event.request, 1, buffer, 65), -EMSGSIZE);
	assert_int_equal(clan_rpc_reply(pair.server.rpc, &event.request, 256, NULL, 0), -EINVAL);
	assert_int_equal(clan_rpc_dial(pair.client.rpc, 5, pair.address, &error), -EALREADY);
	assert_int_equal(
		clan_rpc_dial(pair.client.rpc, CLAN_RPC_NODES_MAX, pair.address, &error), -EINVAL);
	assert_int_equal(clan_rpc_listen(pair.server.rpc, pair.address, &error), -EALREADY);
	pair_close(&pair);
}

/* Every slot of every connection is used, in both directions, again and again. */
TEST(all_calls_at_once)
{
	struct clan_rpc_options options = {
		.size = sizeof(options), .node = CLAN_RPC_NO_NODE, .calls = 8, .conns = 3
	};
	enum { CALLS = 24, ROUNDS = 40 };
	struct pair pair;

	pair_open(state, &pair, &options, &options);
	for (unsigned round = 0; round < ROUNDS; round++) {
		bool seen[CALLS] = { false };

		for (uintptr_t i = 0; i < CALLS; i++) {
			uint8_t byte = (uint8_t)(i + round);

			assert_int_equal(clan_rpc_call(pair.client.rpc, 5, REQUEST_TYPE, &byte, 1,
						 (void *)(i + 1)),
				0);
			assert_int_equal(clan_rpc_call(pair.server.rpc, pair.client_node,
						 REQUEST_TYPE, &byte, 1, NULL),
				0);
		}
		assert_int_equal(clan_rpc_call(pair.client.rpc, 5, 1, NULL, 0, NULL), -EAGAIN);
		for (unsigned i = 0; i < CALLS; i++) {
			struct clan_rpc_event event =
				wait_for(&pair.server, &pair.client, CLAN_RPC_REQUEST);

			answer(&pair.server, &event);
			event = wait_for(&pair.client, &pair.server, CLAN_RPC_REQUEST);
			answer(&pair.client, &event);
		}
		for (unsigned i = 0; i < CALLS; i++) {
			struct clan_rpc_event event =
				wait_for(&pair.client, &pair.server, CLAN_RPC_REPLY);
			uintptr_t op = (uintptr_t)event.op - 1;

			assert_true(op < CALLS && !seen[op]);
			seen[op] = true;
			assert_int_equal(buffer[0], (uint8_t)(op + round + 1));
			wait_for(&pair.server, &pair.client, CLAN_RPC_REPLY);
		}
	}
	pair_close(&pair);
}

TEST(hanging_up_ends_calls)
{
	struct clan_rpc_event event, request;
	struct clan_error error;
	struct pair pair;
	int op;

	pair_open(state, &pair, NULL, NULL);
	assert_int_equal(clan_rpc_call(pair.client.rpc, 5, 1, NULL, 0, &op), 0);
	request = wait_for(&pair.server, &pair.client, CLAN_RPC_REQUEST);
	assert_int_equal(clan_rpc_hang_up(pair.client.rpc, 5), 0);
	assert_int_equal(clan_rpc_hang_up(pair.client.rpc, 5), -ENOENT);
	event = wait_for(&pair.client, &pair.server, CLAN_RPC_REPLY);
	assert_ptr_equal(event.op, &op);
	assert_int_equal(event.status, -ECONNRESET);
	assert_int_equal(wait_for(&pair.client, &pair.server, CLAN_RPC_DOWN).status, 0);
	event = wait_for(&pair.server, &pair.client, CLAN_RPC_DOWN);
	assert_int_equal(event.status, -ECONNRESET);
	assert_int_equal(event.node, pair.client_node);
	assert_int_equal(clan_rpc_reply(pair.server.rpc, &request.request, 1, NULL, 0), -ENOENT);

	/* The number is free again. */
	assert_int_equal(clan_rpc_dial(pair.client.rpc, 5, pair.address, &error), 0);
	wait_for(&pair.client, &pair.server, CLAN_RPC_UP);
	wait_for(&pair.server, &pair.client, CLAN_RPC_UP);
	pair_close(&pair);
}

TEST(nobody_listens)
{
	struct clan_error error;
	struct side side;

	make(state, &side, NULL);
	assert_int_equal(clan_rpc_dial(side.rpc, 1, "shm:@clan-rpc-nobody", &error), -ECONNREFUSED);
	assert_string_equal(
		error.text, "cannot connect to \"shm:@clan-rpc-nobody\": Connection refused");
	assert_int_equal(clan_rpc_dial(side.rpc, 1, "shm:@clan-rpc-nobody", NULL), -ECONNREFUSED);
	clan_rpc_destroy(side.rpc);
}

/* Those that do not listen yet are counted, and dialled again. */
TEST(a_mesh_of_late_nodes)
{
	const char *const names[] = { "shm:@clan-rpc-late-0", "shm:@clan-rpc-late-1" };
	struct side sides[2];

	for (uint32_t i = 2; i-- > 0;) {
		struct clan_rpc_options options = { .size = sizeof(options), .node = i };
		char own[2][64];
		const char *addresses[2];

		for (int j = 0; j < 2; j++) {
			snprintf(own[j], sizeof(own[j]), "%s-%d", names[j], getpid());
			addresses[j] = own[j];
		}
		assert_int_equal(clan_rpc_create(NULL, &options, &sides[i].rpc, NULL), 0);
		sides[i].count = 0;
		assert_int_equal(clan_rpc_mesh(sides[i].rpc, addresses, 2, NULL), i);
		if (i == 0) {
			assert_int_equal(clan_rpc_mesh(sides[1].rpc, addresses, 2, NULL), 0);
		}
	}
	assert_int_equal(wait_for(&sides[0], &sides[1], CLAN_RPC_UP).node, 1);
	assert_int_equal(wait_for(&sides[1], &sides[0], CLAN_RPC_UP).node, 0);
	clan_rpc_destroy(sides[0].rpc);
	clan_rpc_destroy(sides[1].rpc);
}

TEST(a_mesh_of_all)
{
	enum { NODES = 4, CONNS = 2 };
	struct side sides[NODES];
	char addresses[NODES][CLAN_ADDRESS_BYTES];
	const char *names[NODES];
	unsigned ups = 0;

	for (uint32_t i = 0; i < NODES; i++) {
		struct clan_rpc_options options = {
			.size = sizeof(options), .node = i, .conns = CONNS, .calls = 4
		};

		make(state, &sides[i], &options);
		listen_anywhere(state, &sides[i], addresses[i]);
		names[i] = addresses[i];
	}
	for (uint32_t i = 0; i < NODES; i++) {
		assert_int_equal(clan_rpc_mesh(sides[i].rpc, names, NODES, NULL), 0);
		assert_int_equal(clan_rpc_mesh(sides[i].rpc, names, NODES, NULL), 0);
	}
	while (ups < NODES * (NODES - 1)) {
		ups = 0;
		for (uint32_t i = 0; i < NODES; i++) {
			look(&sides[i]);
			ups += sides[i].count;
		}
	}
	for (uint32_t i = 0; i < NODES; i++) {
		bool seen[NODES] = { false };

		for (unsigned j = 0; j < sides[i].count; j++) {
			assert_int_equal(sides[i].kept[j].type, CLAN_RPC_UP);
			assert_true(sides[i].kept[j].node < NODES && sides[i].kept[j].node != i);
			assert_false(seen[sides[i].kept[j].node]);
			seen[sides[i].kept[j].node] = true;
		}
	}
	for (uint32_t i = 0; i < NODES; i++) {
		for (uint32_t j = 0; j < NODES; j++) {
			struct clan_rpc_event event;

			if (i == j) {
				continue;
			}
			assert_int_equal(clan_rpc_call(sides[i].rpc, j, 1, &i, sizeof(i), NULL), 0);
			event = wait_for(&sides[j], &sides[i], CLAN_RPC_REQUEST);
			assert_int_equal(event.node, i);
			assert_memory_equal(buffer, &i, sizeof(i));
			assert_int_equal(
				clan_rpc_reply(sides[j].rpc, &event.request, 1, NULL, 0), 0);
			assert_int_equal(wait_for(&sides[i], &sides[j], CLAN_RPC_REPLY).node, j);
		}
	}
	for (uint32_t i = 0; i < NODES; i++) {
		for (uint32_t j = i + 1; j < NODES; j++) {
			part(&sides[i], j, &sides[j]);
		}
		clan_rpc_destroy(sides[i].rpc);
	}
}

/* --- others ------------------------------------------------------------------------------------
 */

/* A peer that speaks plain clan. */
struct rogue {
	struct clan_queue *queue;
	struct clan_conn *conn;
	struct clan_region *region;
	uint8_t setup[48]; /* the node's */
};

/* As src/clan/rpc.c has them. */
struct hello {
	uint64_t magic;
	uint64_t key;
	uint32_t version;
	uint32_t node;
	uint16_t index;
	uint16_t conns;
	uint32_t reserved;
};
struct setup {
	uint32_t version;
	uint32_t calls;
	uint32_t bytes_max;
	uint32_t reserved;
	struct clan_cookie cookie;
};

static const struct hello good_hello = {
	.magic = UINT64_C(0x316370726e616c63), .key = 77, .version = 1, .node = 3, .conns = 1
};

static struct clan_event rogue_event(struct rogue *rogue, struct side *side, uint32_t type)
{
	uint64_t until_ns = clock_now_ns() + TIMEOUT_NS;
	struct clan_event event;

	for (;;) {
		look(side);
		if (clan_queue_wait(rogue->queue, &event, 1, 1) == 1 && event.type == type) {
			return event;
		}
		if (clock_now_ns() > until_ns) {
			fail_msg("the rogue got no event %u", type);
		}
	}
}

static void rogue_dial(struct rogue *rogue, const char *address, const void *hello, size_t bytes)
{
	assert_int_equal(clan_queue_create(NULL, &rogue->queue, NULL), 0);
	rogue->region = NULL;
	assert_int_equal(
		clan_connect(rogue->queue, address, NULL, hello, bytes, &rogue->conn, NULL), 0);
}

static void rogue_recv(struct rogue *rogue, struct side *side, struct clan_message *message)
{
	int result;

	while ((result = clan_recv(rogue->conn, CLAN_ANY, message, rogue->setup,
			sizeof(rogue->setup))) == -EAGAIN) {
		rogue_event(rogue, side, CLAN_EVENT_READY);
	}
	assert_int_equal(result, 0);
}

/* Set up as a node would be, with another setup where given. */
static void rogue_open(
	struct rogue *rogue, struct side *side, const char *address, const struct setup *setup)
{
	struct setup own = { .version = 1, .calls = 4, .bytes_max = 64 };
	struct clan_message message;
	void *base;

	rogue_dial(rogue, address, &good_hello, sizeof(good_hello));
	rogue_event(rogue, side, CLAN_EVENT_CONNECTED);
	assert_int_equal(clan_region_create(rogue->queue, 4096, 0, &rogue->region, &base), 0);
	assert_int_equal(clan_region_share(rogue->conn, rogue->region, CLAN_READ | CLAN_WRITE), 0);
	rogue_event(rogue, side, CLAN_EVENT_SHARED);
	assert_int_equal(
		clan_cookie_grant(rogue->conn, rogue->region, 0, 1024, CLAN_WRITE, 0, &own.cookie),
		0);
	if (setup != NULL) {
		struct clan_cookie cookie = own.cookie;

		own = *setup;
		own.cookie = cookie;
	}
	rogue_recv(rogue, side, &message);
	assert_int_equal(message.type, 1);
	assert_int_equal(clan_send(rogue->conn, CLAN_CONTROL, 1, &own, sizeof(own)), 0);
	clan_flush(rogue->conn);
	if (setup == NULL) {
		assert_int_equal(wait_for(side, side, CLAN_RPC_UP).node, 3);
	}
}

static void rogue_notify(struct rogue *rogue, uint32_t value)
{
	struct clan_cookie cookie;

	memcpy(&cookie, rogue->setup + 16, sizeof(cookie));
	assert_int_equal(clan_put(rogue->conn, NULL, 0, &cookie, 0, CLAN_NOTIFY, value, NULL), 0);
	clan_flush(rogue->conn);
}

static void rogue_close(struct rogue *rogue, struct side *side)
{
	clan_close(rogue->conn);
	rogue_event(rogue, side, CLAN_EVENT_CLOSED);
	assert_int_equal(clan_region_destroy(rogue->region), 0);
	assert_int_equal(clan_queue_destroy(rogue->queue), 0);
}

TEST(wrong_hellos_are_refused)
{
	struct hello hellos[] = { good_hello, good_hello, good_hello, good_hello, good_hello,
		good_hello };
	char address[CLAN_ADDRESS_BYTES];
	struct side side;

	hellos[0].magic++;
	hellos[1].version++;
	hellos[2].conns = 0;
	hellos[3].conns = CLAN_RPC_CONNS_MAX + 1;
	hellos[4].index = 1;
	hellos[5].node = CLAN_RPC_NODES_MAX;
	make(state, &side, NULL);
	listen_anywhere(state, &side, address);
	for (unsigned i = 0; i <= ARRAY_COUNT(hellos); i++) {
		struct rogue rogue;

		rogue_dial(&rogue, address, &hellos[i % ARRAY_COUNT(hellos)],
			i == ARRAY_COUNT(hellos) ? 8 : sizeof(hellos[i]));
		assert_int_equal(rogue_event(&rogue, &side, CLAN_EVENT_LOST).status, -ECONNREFUSED);
		rogue_close(&rogue, &side);
	}
	assert_int_equal(side.count, 0);
	clan_rpc_destroy(side.rpc);
}

TEST(a_number_has_one_owner)
{
	struct hello second = good_hello;
	struct rogue first, other;
	char address[CLAN_ADDRESS_BYTES];
	struct side side;

	make(state, &side, NULL);
	listen_anywhere(state, &side, address);
	rogue_open(&first, &side, address, NULL);
	second.key++;
	rogue_dial(&other, address, &second, sizeof(second));
	assert_int_equal(rogue_event(&other, &side, CLAN_EVENT_LOST).status, -ECONNREFUSED);
	rogue_close(&other, &side);
	/* Nor does its own key let it in again. */
	rogue_dial(&other, address, &good_hello, sizeof(good_hello));
	assert_int_equal(rogue_event(&other, &side, CLAN_EVENT_LOST).status, -ECONNREFUSED);
	rogue_close(&other, &side);
	rogue_close(&first, &side);
	clan_rpc_destroy(side.rpc);
}

/* Each breaks one rule, which ends its node and no other. */
TEST(broken_rules_end_the_node)
{
	static const struct setup setups[] = {
		{ .version = 2, .calls = 4, .bytes_max = 64 },
		{ .version = 1, .calls = 0, .bytes_max = 64 },
		{ .version = 1, .calls = CLAN_RPC_CALLS_MAX + 1, .bytes_max = 64 },
		{ .version = 1, .calls = 4, .bytes_max = 0 },
		{ .version = 1, .calls = 4, .bytes_max = 65 },
		{ .version = 1, .calls = 4, .bytes_max = 8192 },
		{ .version = 1, .calls = 4, .bytes_max = 128 }, /* not what the cookie has */
		{ .version = 1, .calls = 4, .bytes_max = 64, .reserved = 1 },
	};
	static const uint32_t values[][2] = {
		{ 4, 0 },			/* a slot that it does not have */
		{ 1 << 9, 0 },			/* a reply to nothing */
		{ 65u << 18, 0 },		/* longer than agreed */
		{ 2 | 3u << 18, 2 | 3u << 18 }, /* a slot that is in use */
	};
	struct clan_rpc_event event;
	struct pair pair;

	pair_open(state, &pair, NULL, NULL);
	for (unsigned i = 0; i < ARRAY_COUNT(setups) + ARRAY_COUNT(values) + 1; i++) {
		unsigned value = i - (unsigned)ARRAY_COUNT(setups);
		struct rogue rogue;

		rogue_open(&rogue, &pair.server, pair.address,
			i < ARRAY_COUNT(setups) ? &setups[i] : NULL);
		if (i >= ARRAY_COUNT(setups) && value < ARRAY_COUNT(values)) {
			rogue_notify(&rogue, values[value][0]);
			rogue_notify(&rogue, values[value][1]);
		} else if (value == ARRAY_COUNT(values)) { /* a message that there is none of */
			assert_int_equal(clan_send(rogue.conn, CLAN_BULK, 1, "x", 1), 0);
			clan_flush(rogue.conn);
		}
		rogue_event(&rogue, &pair.server, CLAN_EVENT_LOST);
		rogue_close(&rogue, &pair.server);
		/* Only those that were up are known to the program. */
		if (i >= ARRAY_COUNT(setups)) {
			assert_int_equal(wait_for(&pair.server, &pair.client, CLAN_RPC_DOWN).status,
				-EPROTO);
		}
	}
	pair.server.count = 0;
	assert_int_equal(clan_rpc_call(pair.client.rpc, 5, 1, "ok", 2, NULL), 0);
	event = wait_for(&pair.server, &pair.client, CLAN_RPC_REQUEST);
	answer(&pair.server, &event);
	assert_int_equal(wait_for(&pair.client, &pair.server, CLAN_RPC_REPLY).status, 0);
	pair_close(&pair);
}

/* It uses a slot again though it has taken no reply: what waits for room stays bounded. */
TEST(a_peer_that_takes_no_replies)
{
	enum { REQUESTS_MAX = 2000 };
	char address[CLAN_ADDRESS_BYTES];
	struct clan_cookie cookie;
	struct rogue rogue;
	struct side side;
	bool down = false;

	make(state, &side, NULL);
	listen_anywhere(state, &side, address);
	rogue_open(&rogue, &side, address, NULL);
	memcpy(&cookie, rogue.setup + 16, sizeof(cookie));
	for (unsigned i = 0; i < REQUESTS_MAX && !down; i++) {
		struct clan_event event;
		int result = clan_put(rogue.conn, NULL, 0, &cookie, 0, CLAN_NOTIFY, 0, NULL);

		do { /* each is answered before the next one */
			clan_queue_wait(rogue.queue, &event, 1, 0);
			look(&side);
		} while (result == 0 && side.count == 0);
		for (unsigned j = 0; j < side.count; j++) {
			if (side.kept[j].type == CLAN_RPC_DOWN) {
				assert_int_equal(side.kept[j].status, -EPROTO);
				down = true;
			} else {
				answer(&side, &side.kept[j]);
			}
		}
		side.count = 0;
	}
	assert_true(down);
	rogue_close(&rogue, &side);
	clan_rpc_destroy(side.rpc);
}

/* --- a node that is killed ----------------------------------------------------------------------
 */

static void serve_until_killed(void **state, int ready)
{
	char address[CLAN_ADDRESS_BYTES] = { 0 };
	struct clan_rpc_event event;
	struct side side;

	make(state, &side, NULL);
	listen_anywhere(state, &side, address);
	if (write(ready, address, sizeof(address)) != sizeof(address)) {
		_exit(1);
	}
	while (clan_rpc_next(side.rpc, &event, buffer, sizeof(buffer), -1) >= 0) {
		if (event.type == CLAN_RPC_REQUEST &&
			clan_rpc_reply(side.rpc, &event.request, 1, buffer, event.bytes) != 0) {
			_exit(2);
		}
	}
	_exit(3);
}

/* Some have connected, some say hello meanwhile: the end waits for nobody's good will. */
TEST(ends_while_others_connect)
{
	const struct clan_rpc_options many = {
		.size = sizeof(many), .node = CLAN_RPC_NO_NODE, .conns = CLAN_RPC_CONNS_MAX
	};

	for (int turns = 0; turns < 4; turns++) {
		char address[CLAN_ADDRESS_BYTES];
		struct clan_rpc_event event;
		struct side server, client;

		make(state, &server, NULL);
		listen_anywhere(state, &server, address);
		make(state, &client, &many);
		for (uint32_t node = 0; node < 3; node++) {
			assert_int_equal(clan_rpc_dial(client.rpc, node, address, NULL), 0);
		}
		for (int i = 0; i < turns; i++) {
			look(&client);
			(void)clan_rpc_next(server.rpc, &event, buffer, sizeof(buffer), 0);
		}
		clan_rpc_destroy(server.rpc);
		for (uint32_t node = 0; node < 3; node++) {
			wait_for(&client, &client, CLAN_RPC_DOWN);
		}
		clan_rpc_destroy(client.rpc);
	}
}

#ifdef __SANITIZE_ADDRESS__
/* AddressSanitizer's allocator has locks of its own, which a worker of ours may hold at fork();
 * passive queues have no workers. */
static bool can_fork(void **state)
{
	return (((const struct kind *)*state)->queue.flags & CLAN_QUEUE_PASSIVE) != 0;
}
#else
static bool can_fork(void **state)
{
	return true;
}
#endif

/* Every call gets one reply, however the server ends. */
TEST(a_killed_server)
{
	enum { KILLS = 20, CALLS = 32 };
	char address[CLAN_ADDRESS_BYTES];
	struct side side;
	int ready[2];

	if (is_network(state) || !can_fork(state)) {
		skip(); /* libfabric cannot be used after fork(); test_clan_ofi.c kills such peers
			 */
	}
	make(state, &side, NULL);
	assert_int_equal(pipe(ready), 0);
	for (unsigned kill_at = 0; kill_at < KILLS; kill_at++) {
		struct clan_rpc_event event;
		unsigned under_way = 0, replies = 0;
		bool down = false;
		pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0) {
			clan_queue_after_fork(clan_rpc_queue(side.rpc));
			serve_until_killed(state, ready[1]);
		}
		assert_int_equal(read(ready[0], address, sizeof(address)), sizeof(address));
		assert_int_equal(clan_rpc_dial(side.rpc, 1, address, NULL), 0);
		while (!down) {
			assert_int_equal(
				clan_rpc_next(side.rpc, &event, buffer, sizeof(buffer), 10000), 1);
			down = event.type == CLAN_RPC_DOWN;
			if (event.type == CLAN_RPC_REPLY) {
				under_way--;
				if (++replies == kill_at * 50 + 1) {
					assert_int_equal(kill(child, SIGKILL), 0);
				}
			}
			while (clan_rpc_call(side.rpc, 1, 1, "x", 1, NULL) == 0) {
				under_way++;
			}
			assert_true(under_way <= CALLS);
		}
		assert_int_equal(under_way, 0);
		assert_int_equal(event.status, -ECONNRESET);
		assert_int_equal(waitpid(child, NULL, 0), child);
	}
	close(ready[0]);
	close(ready[1]);
	clan_rpc_destroy(side.rpc);
}

int main(void)
{
	return unit_run_kinds(kinds, sizeof(kinds[0]), ARRAY_COUNT(kinds));
}
