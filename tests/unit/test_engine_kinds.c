// SPDX-License-Identifier: Apache-2.0
/*
 * Two session kinds on the same engines, over real rings and sockets: NBD, and an echo protocol
 * that lives in the tests. Exports are added and removed on running reactors meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "echo_kind.h"
#include "nbd/server.h"
#include "nbd/wire.h"
#include "server/accept.h"
#include "stores.h"

enum {
	REACTORS = 2,
	SESSIONS = 8,
	ROUNDS = 100,
	BYTES = 100000,
	READ_BYTES = 4096,
	ANSWER_BYTES = sizeof(struct nbd_wire_simple_reply) + READ_BYTES,
};

#define SECOND_NS UINT64_C(1000000000)

static const struct session_kind *const kinds[] = { &nbd_session_kind, &echo_session_kind };

struct server {
	struct reactor *reactors[REACTORS];
	struct acceptor *acceptor;
	struct listener listeners[2]; /* of kinds[], same index */
	struct export *export;	      /* "" */
	_Atomic uint32_t connection_total;
	sem_t stopped; /* the acceptor, or one of the reactors */
};

/* --- the server ----------------------------------------------------------------------------- */

/* An abstract address that the kernel chooses. */
static int listen_anywhere(void)
{
	const struct sockaddr_un any = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&any, sizeof(sa_family_t)), 0);
	assert_int_equal(listen(fd, SESSIONS), 0);
	return fd;
}

static void has_stopped(void *context)
{
	struct server *server = context;

	sem_post(&server->stopped);
}

static struct export *create_export(const char *name)
{
	struct export_options about = { .name = name, .name_bytes = (uint32_t)strlen(name) };
	struct export *export;
	struct error error;

	assert_int_equal(
		store_open(&(struct store_options){ .path = "memory:1M" }, &about.store, &error),
		0);
	assert_int_equal(export_create(&about, &export, &error), 0);
	return export;
}

static void server_begin(struct server *server)
{
	struct reactor_options reactor_options = {
		.exports = &server->export,
		.export_count = 1,
		.kinds = kinds,
		.kind_count = ARRAY_COUNT(kinds),
		.connection_total = &server->connection_total,
		.drained = has_stopped,
		.context = server,
	};
	struct acceptor_options acceptor_options = {
		.listeners = server->listeners,
		.listener_count = ARRAY_COUNT(server->listeners),
		.reactors = server->reactors,
		.reactor_count = REACTORS,
		.connections_max = 100,
		.connection_total = &server->connection_total,
		.stopped = has_stopped,
		.context = server,
	};
	struct error error;

	log_set_level(LOG_LEVEL_ERROR);
	memset(server, 0, sizeof(*server));
	sem_init(&server->stopped, 0, 0);
	server->export = create_export("");
	engine_limits_default(&reactor_options.limits);
	reactor_options.limits.memory_bytes_max = ARENA_SLAB_BYTES;
	reactor_options.limits.inflight_max = 4; /* fewer than sessions: they wait in turn */
	for (uint32_t i = 0; i < ARRAY_COUNT(kinds); i++) {
		server->listeners[i].kind = kinds[i];
		server->listeners[i].fds[0] = listen_anywhere();
		server->listeners[i].fd_count = 1;
	}
	for (uint32_t i = 0; i < REACTORS; i++) {
		reactor_options.index = i;
		assert_int_equal(reactor_create(&reactor_options, &server->reactors[i], &error), 0);
	}
	assert_int_equal(acceptor_create(&acceptor_options, &server->acceptor, &error), 0);
	acceptor_start(server->acceptor);
}

static void server_end(struct server *server)
{
	acceptor_stop(server->acceptor);
	sem_wait(&server->stopped);
	for (uint32_t i = 0; i < REACTORS; i++) {
		reactor_drain(server->reactors[i], 10 * SECOND_NS);
		sem_wait(&server->stopped);
		assert_int_equal(reactor_session_count(server->reactors[i]), 0);
		reactor_destroy(server->reactors[i]);
	}
	assert_int_equal(server->connection_total, 0);
	acceptor_destroy(server->acceptor);
	for (uint32_t i = 0; i < ARRAY_COUNT(kinds); i++) {
		close(server->listeners[i].fds[0]);
	}
	assert_int_equal(server->export->references, 1); /* the engines have released theirs */
	export_put(server->export);
	sem_destroy(&server->stopped);
}

/* --- clients -------------------------------------------------------------------------------- */

static int dial(const struct server *server, uint32_t kind_idx)
{
	struct sockaddr_un address;
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(getsockname(server->listeners[kind_idx].fds[0],
				 (struct sockaddr *)&address, &bytes),
		0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, bytes), 0);
	return fd;
}

static void put(int fd, const void *bytes, size_t len)
{
	assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), len);
}

/* False: the server has closed. */
static bool take(int fd, void *bytes, size_t len)
{
	return recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len;
}

static int dial_echo(const struct server *server, char what)
{
	char greeting[64];
	char wanted[sizeof(greeting)];
	int fd = dial(server, 1);
	int len = snprintf(wanted, sizeof(wanted), "uid %lld\n", (long long)getuid());

	assert_true(take(fd, greeting, (size_t)len));
	assert_memory_equal(greeting, wanted, (size_t)len);
	put(fd, &what, 1);
	return fd;
}

static int dial_nbd(const struct server *server, const char *name)
{
	struct {
		struct be32 flags;
		struct nbd_wire_option option;
	} __attribute__((packed)) hello = {
		.flags = be32_make(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES),
		.option = { .magic = be64_make(NBD_OPTION_MAGIC),
			.option = be32_make(NBD_OPT_EXPORT_NAME),
			.length = be32_make((uint32_t)strlen(name)) },
	};
	uint8_t answer[sizeof(struct nbd_wire_greeting) + sizeof(struct nbd_wire_old_reply)];
	int fd = dial(server, 0);

	put(fd, &hello, sizeof(hello));
	put(fd, name, strlen(name));
	assert_true(take(fd, answer, sizeof(answer)));
	return fd;
}

static void ask_nbd(int fd)
{
	const struct nbd_wire_request request = {
		.magic = be32_make(NBD_REQUEST_MAGIC),
		.type = be16_make(NBD_CMD_READ),
		.length = be32_make(READ_BYTES),
	};

	put(fd, &request, sizeof(request));
}

static bool nbd_answers(int fd)
{
	static uint8_t answer[ANSWER_BYTES];

	return take(fd, answer, sizeof(answer));
}

/* --- tests ---------------------------------------------------------------------------------- */

static void test_echo_beside_nbd(void **state)
{
	static uint8_t bytes[BYTES];
	static uint8_t back[BYTES];
	struct server server;
	int echo[SESSIONS];
	int nbd[SESSIONS];
	int discard;

	(void)state;
	for (uint32_t i = 0; i < BYTES; i++) {
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	}
	server_begin(&server);
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
	server_end(&server);
	assert_false(take(discard, back, 1));
	close(discard);
}

static void sum(struct engine *engine, void *context)
{
	counter_table_add(&engine_counter_table, context, &engine->counters);
}

static void test_limits_and_counters_are_common(void **state)
{
	struct engine_counters counters = { 0 };
	struct server server;
	uint8_t byte;
	int echo;
	int nbd;

	(void)state;
	server_begin(&server);
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
	server_end(&server);
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

static void test_exports_on_running_reactors(void **state)
{
	struct server server;
	int steady;

	(void)state;
	server_begin(&server);
	steady = dial_nbd(&server, "");
	for (int round = 0; round < ROUNDS; round++) {
		struct export *export = create_export("comes");
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
	server_end(&server);
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

static void test_rights_change_on_running_reactors(void **state)
{
	struct server server;
	int fds[SESSIONS];

	(void)state;
	server_begin(&server);
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
	server_end(&server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_echo_beside_nbd),
		cmocka_unit_test(test_limits_and_counters_are_common),
		cmocka_unit_test(test_exports_on_running_reactors),
		cmocka_unit_test(test_rights_change_on_running_reactors),
	};

	stores_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
