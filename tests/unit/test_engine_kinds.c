// SPDX-License-Identifier: Apache-2.0
/*
 * Two session kinds on the same engines, over real rings and sockets: NBD, and an echo protocol
 * that lives in the tests. Exports are added and removed on running reactors meanwhile.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "echo_kind.h"
#include "nbd/server/server.h"
#include "reactor_world.h"
#include "stores.h"
#include "unit.h"

enum { ROUNDS = 100, BYTES = 100000 };

static const struct session_kind *const kinds[] = { &nbd_session_kind, &echo_session_kind };

static void world_begin(struct reactor_world *world)
{
	reactor_world_begin(world, export_of_path("", "memory:1M"), kinds, ARRAY_COUNT(kinds));
	reactor_world_accept(world);
}

static int dial_echo(const struct reactor_world *world, char what)
{
	char greeting[64];
	char wanted[sizeof(greeting)];
	int fd = dial(world, 1);
	int len = snprintf(wanted, sizeof(wanted), "uid %lld\n", (long long)getuid());

	assert_true(take(fd, greeting, (size_t)len));
	assert_memory_equal(greeting, wanted, (size_t)len);
	put(fd, &what, 1);
	return fd;
}

/* --- tests ---------------------------------------------------------------------------------- */

TEST(test_echo_beside_nbd)
{
	static uint8_t bytes[BYTES];
	static uint8_t back[BYTES];
	struct reactor_world server;
	int echo[SESSIONS];
	int nbd[SESSIONS];
	int discard;

	for (uint32_t i = 0; i < BYTES; i++) {
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	}
	world_begin(&server);
	discard = dial_echo(&server, 'd');
	for (int i = 0; i < SESSIONS; i++) {
		echo[i] = dial_echo(&server, 'e');
		nbd[i] = dial_nbd(&server, "");
		assert_true(take(echo[i], back, 1)); /* of what to do */
		assert_int_equal(back[0], 'e');
	}
	for (int i = 0; i < SESSIONS; i++) {
		put(echo[i], bytes, sizeof(bytes));
		ask_nbd(nbd[i]);
		put(discard, bytes, sizeof(bytes));
	}
	for (int i = 0; i < SESSIONS; i++) {
		assert_true(nbd_answers(nbd[i]));
		memset(back, 0, sizeof(back));
		assert_true(take(echo[i], back, sizeof(back)));
		assert_memory_equal(back, bytes, sizeof(bytes));
		close(nbd[i]);
		close(echo[i]);
	}
	/* The discarding one is still there when the server stops: it is told the end in order. */
	reactor_world_end(&server);
	assert_false(take(discard, back, 1));
	close(discard);
}

static void sum(struct engine *engine, void *context)
{
	counter_table_add(&engine_counter_table, context, &engine->counters);
}

TEST(test_limits_and_counters_are_common)
{
	struct engine_counters counters = { 0 };
	struct reactor_world server;
	uint8_t byte;
	int echo;
	int nbd;

	world_begin(&server);
	echo = dial_echo(&server, 'e');
	assert_true(take(echo, &byte, 1));
	nbd = dial_nbd(&server, "");
	ask_nbd(nbd);
	assert_true(nbd_answers(nbd));
	for (uint32_t i = 0; i < REACTORS; i++) {
		assert_int_equal(reactor_call(server.reactors[i], sum, &counters), 0);
	}
	assert_int_equal(counters.sessions, 2);
	assert_int_equal(counters.sessions_accepted, 2);
	assert_int_equal(counters.handshakes, 0);
	assert_int_equal(counters.requests, 2);
	assert_int_equal(counters.bytes_read, READ_BYTES + 1);
	close(echo);
	close(nbd);
	reactor_world_end(&server);
}

static void add(struct engine *engine, void *context)
{
	struct error error;

	assert_int_equal(engine_export_add(engine, context, &error), 0);
}

static void take_away(struct engine *engine, void *context)
{
	engine_export_remove(engine, context, 10 * SECOND_NS);
}

TEST(test_exports_on_running_reactors)
{
	struct reactor_world server;
	int steady;

	world_begin(&server);
	steady = dial_nbd(&server, "");
	for (int round = 0; round < ROUNDS; round++) {
		struct export *export = export_of_path("comes", "memory:1M");
		int fds[SESSIONS];

		for (uint32_t i = 0; i < REACTORS; i++) {
			assert_int_equal(reactor_call(server.reactors[i], add, export), 0);
		}
		for (int i = 0; i < SESSIONS; i++) {
			fds[i] = dial_nbd(&server, "comes");
			ask_nbd(fds[i]);
			ask_nbd(steady);
		}
		for (uint32_t i = 0; i < REACTORS; i++) {
			assert_int_equal(reactor_call(server.reactors[i], take_away, export), 0);
		}
		export_put(export); /* the last session closes its store */
		for (int i = 0; i < SESSIONS; i++) {
			uint8_t byte;

			assert_true(nbd_answers(steady));
			(void)nbd_answers(fds[i]); /* unless it came after the removal */
			assert_false(take(fds[i], &byte, 1));
			close(fds[i]);
		}
	}
	close(steady);
	reactor_world_end(&server);
}

static void rights(struct engine *engine, void *context)
{
	engine_export_rights(engine, context);
}

static uint32_t write_nbd(int fd)
{
	const struct nbd_wire_request request = {
		.magic = be32_make(NBD_REQUEST_MAGIC),
		.type = be16_make(NBD_CMD_WRITE),
		.length = be32_make(READ_BYTES),
	};
	static const uint8_t payload[READ_BYTES];
	struct nbd_wire_simple_reply reply;

	put(fd, &request, sizeof(request));
	put(fd, payload, sizeof(payload));
	assert_true(take(fd, &reply, sizeof(reply)));
	return be32_get(reply.error);
}

TEST(test_rights_change_on_running_reactors)
{
	struct reactor_world server;
	int fds[SESSIONS];

	world_begin(&server);
	for (int i = 0; i < SESSIONS; i++) {
		fds[i] = dial_nbd(&server, "");
	}
	for (int round = 0; round < ROUNDS; round++) {
		bool read_only = round % 2 != 0;

		export_set_read_only(server.export, read_only);
		for (uint32_t i = 0; i < REACTORS; i++) {
			assert_int_equal(
				reactor_call(server.reactors[i], rights, server.export), 0);
		}
		for (int i = 0; i < SESSIONS; i++) {
			assert_int_equal(write_nbd(fds[i]), read_only ? NBD_EPERM : NBD_SUCCESS);
		}
	}
	for (int i = 0; i < SESSIONS; i++) {
		close(fds[i]);
	}
	reactor_world_end(&server);
}

/* --- slow readers --------------------------------------------------------------------------- */

/* From now on the first kind is reached by TCP. */
static void listen_by_tcp(struct reactor_world *world)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, SESSIONS), 0);
	close(world->listeners[0].fds[0]);
	world->listeners[0].fds[0] = fd;
}

/* Asks for far more than there is memory, and for more than fits into its receive buffer. */
static int dial_reader(const struct reactor_world *world)
{
	enum { RECEIVE_BYTES = 4096, READS = 64, LENGTH = 1 << 20 };
	const struct nbd_wire_request request = talk_request(NBD_CMD_READ, 0, LENGTH);
	const struct talk_hello hello = talk_hello("");
	struct sockaddr_in address;
	socklen_t bytes = sizeof(address);
	const int buffer = RECEIVE_BYTES;
	uint8_t answer[TALK_HELLO_BYTES];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(
		getsockname(world->listeners[0].fds[0], (struct sockaddr *)&address, &bytes), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)), 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, bytes), 0);
	put(fd, &hello, sizeof(hello));
	assert_true(take(fd, answer, sizeof(answer)));
	for (int i = 0; i < READS; i++) {
		put(fd, &request, sizeof(request));
	}
	return fd;
}

static void set_stall_timeout(struct engine *engine, void *context)
{
	engine->limits.stall_timeout_ns = 3 * SECOND_NS;
}

/* A peer that receives nothing does not see the end of its connection either. */
static uint32_t sessions(const struct reactor_world *world)
{
	uint32_t count = 0;

	for (int i = 0; i < REACTORS; i++) {
		count += reactor_session_count(world->reactors[i]);
	}
	return count;
}

/* Memory is short all the time. Who receives 30 KB a second is not ended, although a message to it
 * takes a minute; who receives nothing is. */
TEST(test_slow_readers)
{
	enum { SLOW = 3 * REACTORS, PIECE_BYTES = 1000, PIECE_MS = 33, TOTAL_BYTES = 200000 };
	uint8_t piece[PIECE_BYTES];
	struct reactor_world server;
	int slow[SLOW];
	int mute[REACTORS];
	uint32_t received = 0; /* the least of any */

	reactor_world_begin(&server, export_of_path("", "memory:1M"), kinds, ARRAY_COUNT(kinds));
	listen_by_tcp(&server);
	for (int i = 0; i < REACTORS; i++) {
		assert_int_equal(reactor_call(server.reactors[i], set_stall_timeout, NULL), 0);
	}
	reactor_world_accept(&server);
	for (int i = 0; i < SLOW; i++) {
		slow[i] = dial_reader(&server);
	}
	for (int i = 0; i < REACTORS; i++) {
		mute[i] = dial_reader(&server);
	}
	while (received < TOTAL_BYTES || sessions(&server) > SLOW) {
		for (int i = 0; i < SLOW; i++) {
			assert_true(take(slow[i], piece, sizeof(piece)));
		}
		received += PIECE_BYTES;
		poll(NULL, 0, PIECE_MS);
	}
	for (int i = 0; i < SLOW; i++) {
		close(slow[i]);
	}
	for (int i = 0; i < REACTORS; i++) {
		close(mute[i]);
	}
	reactor_world_end(&server);
}
