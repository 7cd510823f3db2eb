// SPDX-License-Identifier: Apache-2.0
/*
 * Who gets the places for requests of a service when there are fewer than its clients want: all of
 * them in turn, and none of them keeps one that it does nothing with.
 *
 * A service on a simulated machine; the clients write bytes and count what comes back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "memory/arena.h"
#include "nbd/server.h"
#include "nbd/wire.h"
#include "sim/sim.h"

enum {
	DISK_BYTES = 65536,
	DELAYED_OFFSET = 4096, /* reads from there take 1000 s */
	READ_BYTES = 512,
	/* What comes back on a simple read. */
	ANSWER_BYTES = sizeof(struct nbd_wire_simple_reply) + READ_BYTES,
	HELLO_BYTES = sizeof(struct nbd_wire_greeting) + sizeof(struct nbd_wire_old_reply),
	STEPS_MAX = 1000000,
};

#define SECOND_NS UINT64_C(1000000000)

struct world {
	struct ring *ring;
	struct export *export;
	struct engine *engine;
	bool drained;
};

struct client {
	int fd;
	uint64_t got;  /* bytes of answers */
	uint32_t owed; /* bytes of a payload */
	bool closed;   /* by the server */
};

/* --- the world ------------------------------------------------------------------------------ */

static void world_begin(struct world *world, uint32_t inflight_per_session, uint32_t inflight)
{
	static const struct session_kind *const kinds[] = { &nbd_session_kind };
	struct engine_options options = { .kinds = kinds, .kind_count = ARRAY_COUNT(kinds) };
	struct export_options export = { .name = "" };
	struct store_options store = { .path = "memory:65536", .delay_count = 1 };
	struct store_rule delay;
	struct error error;

	log_set_level(LOG_LEVEL_ERROR);
	memset(world, 0, sizeof(*world));
	world->ring = sim_ring_create_for_fuzz(1);
	assert_int_equal(store_delay_parse("read:1000s:range=4096+512", &delay, &error), 0);
	store.delays = &delay;
	assert_int_equal(store_open(&store, &export.store, &error), 0);
	assert_int_equal(export_create(&export, &world->export, &error), 0);
	options.ring = world->ring;
	engine_limits_default(&options.limits);
	options.limits.inflight_per_session_max = inflight_per_session;
	options.limits.inflight_max = inflight;
	options.limits.stall_timeout_ns = 5 * SECOND_NS;
	options.limits.memory_bytes_max = ARENA_SLAB_BYTES;
	assert_int_equal(engine_create(&options, &world->engine, &error), 0);
	assert_int_equal(engine_export_add(world->engine, world->export, &error), 0);
}

static void world_drained(void *context)
{
	struct world *world = context;

	world->drained = true;
}

static void world_end(struct world *world)
{
	engine_drain(world->engine, SECOND_NS, world_drained, world);
	while (!world->drained) {
		assert_true(sim_step());
	}
	assert_int_equal(world->engine->counters.inflight, 0);
	engine_destroy(world->engine);
	export_put(world->export);
	ring_destroy(world->ring);
	assert_int_equal(sim_open_count(), 0);
	sim_stop();
}

/* --- clients -------------------------------------------------------------------------------- */

static void look(struct client *client)
{
	uint8_t bytes[4096];
	int got;

	while ((got = sim_socket_read(client->fd, bytes, sizeof(bytes))) > 0) {
		client->got += (uint64_t)got;
	}
	client->closed |= got < 0;
}

/* Until so many bytes of answers have come, or the server has closed. */
static void wait_for(struct client *client, uint64_t bytes)
{
	look(client);
	for (int steps = 0; client->got < bytes && !client->closed; steps++) {
		assert_true(sim_step()); /* else nothing will ever come */
		assert_true(steps < STEPS_MAX);
		look(client);
	}
}

static void client_open(struct world *world, struct client *client)
{
	struct {
		struct be32 flags;
		struct nbd_wire_option option;
	} __attribute__((packed)) hello = {
		.flags = be32_make(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES),
		.option = { .magic = be64_make(NBD_OPTION_MAGIC),
			.option = be32_make(NBD_OPT_EXPORT_NAME) },
	};
	int server_fd;

	*client = (struct client){ 0 };
	sim_socket_pair(&server_fd, &client->fd);
	engine_accept(world->engine,
		&(struct endpoint){
			.kind = &nbd_session_kind, .fd = server_fd, .peer = { .text = "client" } });
	sim_socket_write(client->fd, &hello, sizeof(hello));
	wait_for(client, HELLO_BYTES);
	assert_int_equal(client->got, HELLO_BYTES);
	client->got = 0;
}

/* Until the service works on so many requests. */
static void wait_for_inflight(const struct world *world, uint32_t count)
{
	while (world->engine->counters.inflight < count) {
		assert_true(sim_step());
	}
	assert_int_equal(world->engine->counters.inflight, count);
}

static void client_ask(
	const struct client *client, enum nbd_command command, uint64_t offset, uint32_t length)
{
	const struct nbd_wire_request request = {
		.magic = be32_make(NBD_REQUEST_MAGIC),
		.type = be16_make((uint16_t)command),
		.offset = be64_make(offset),
		.length = be32_make(length),
	};

	sim_socket_write(client->fd, &request, sizeof(request));
}

static uint64_t answers(struct client *client)
{
	look(client);
	return client->got / ANSWER_BYTES;
}

/* --- tests ---------------------------------------------------------------------------------- */

/* Some that always want more than they may have take each place that becomes free before it comes
 * to who asked later, unless they must stand in line again. */
static void test_a_modest_client_among_greedy_ones(void **state)
{
	enum { GREEDY = 3, EACH = 4, WANTED = 2000 };
	struct client greedy[GREEDY];
	struct client modest;
	struct world world;
	uint64_t before = 0;
	uint64_t after = 0;

	(void)state;
	world_begin(&world, EACH, GREEDY * EACH);
	for (int i = 0; i < GREEDY; i++) {
		client_open(&world, &greedy[i]);
	}
	client_open(&world, &modest);
	for (int i = 0; i < GREEDY * WANTED; i++) {
		client_ask(&greedy[i % GREEDY], NBD_CMD_READ, 0, READ_BYTES);
	}
	wait_for(&greedy[0], ANSWER_BYTES);
	for (int round = 0; round < 20; round++) {
		before = 0;
		after = 0;
		for (int i = 0; i < GREEDY; i++) {
			before += answers(&greedy[i]);
		}
		client_ask(&modest, NBD_CMD_READ, 0, READ_BYTES);
		wait_for(&modest, (uint64_t)(round + 1) * ANSWER_BYTES);
		for (int i = 0; i < GREEDY; i++) {
			after += answers(&greedy[i]);
		}
		/* A turn each, some of them on their way already. */
		assert_in_range(after - before, 0, 10 * GREEDY * EACH);
	}
	for (int i = 0; i < GREEDY; i++) {
		wait_for(&greedy[i], (uint64_t)WANTED * ANSWER_BYTES);
		assert_int_equal(answers(&greedy[i]), WANTED);
		sim_socket_close(greedy[i].fd);
	}
	sim_socket_close(modest.fd);
	world_end(&world);
}

static void leave(void *arg)
{
	const struct client *client = arg;

	sim_socket_close(client->fd);
}

static void ask_small(void *arg)
{
	client_ask(arg, NBD_CMD_READ, 0, READ_BYTES);
}

/* Sends what is left of a payload, a byte a second. */
static void trickle(void *arg)
{
	struct client *client = arg;
	const uint8_t byte = 1;

	sim_socket_write(client->fd, &byte, sizeof(byte));
	if (--client->owed > 0) {
		sim_after(SECOND_NS, trickle, client);
	}
}

/* A write that is refused has its place until its payload is taken. Who keeps that back keeps the
 * place as long as others let him, and who is only slow is let. */
static void test_refused_writes_whose_payload_stays_away(void **state)
{
	/* A short one would be waited for before there is a request. */
	enum { PAYLOAD = (64 << 10) + 1, AT_ONCE = PAYLOAD - 8, SILENT = 2 };
	static const uint8_t payload[AT_ONCE];
	struct client silent[SILENT];
	struct client slow;
	struct client other;
	struct world world;

	(void)state;
	world_begin(&world, SILENT + 1, SILENT + 1);
	for (int i = 0; i < SILENT; i++) {
		client_open(&world, &silent[i]);
	}
	client_open(&world, &slow);
	client_open(&world, &other);
	for (int i = 0; i < SILENT; i++) {
		client_ask(&silent[i], NBD_CMD_WRITE, DISK_BYTES, PAYLOAD);
		sim_socket_write(silent[i].fd, payload, AT_ONCE);
	}
	client_ask(&slow, NBD_CMD_WRITE, DISK_BYTES, PAYLOAD);
	sim_socket_write(slow.fd, payload, AT_ONCE);
	slow.owed = PAYLOAD - AT_ONCE;
	trickle(&slow);
	wait_for_inflight(&world, SILENT + 1);
	client_ask(&other, NBD_CMD_READ, 0, READ_BYTES);
	wait_for(&other, ANSWER_BYTES);
	assert_int_equal(answers(&other), 1);
	for (int i = 0; i < SILENT; i++) {
		wait_for(&silent[i], 1);
		assert_true(silent[i].closed);
		assert_int_equal(silent[i].got, 0);
		sim_socket_close(silent[i].fd);
	}
	wait_for(&slow, sizeof(struct nbd_wire_simple_reply));
	assert_int_equal(slow.got, sizeof(struct nbd_wire_simple_reply));
	sim_socket_close(slow.fd);
	sim_socket_close(other.fd);
	world_end(&world);
}

static void send_owed(void *arg)
{
	static const uint8_t bytes[128 << 10];
	const struct client *client = arg;

	sim_socket_write(client->fd, bytes, client->owed);
}

/* The time in which he had to wait for a place is not held against a client whose turn it is. */
static void test_a_refused_write_that_had_to_wait(void **state)
{
	/* A short one would be waited for before there is a request. */
	enum { PAYLOAD = (64 << 10) + 1 };
	struct client holder;
	struct client held;
	struct client other;
	struct world world;

	(void)state;
	world_begin(&world, 1, 1);
	client_open(&world, &holder);
	client_open(&world, &held);
	client_open(&world, &other);
	client_ask(&holder, NBD_CMD_READ, DELAYED_OFFSET, READ_BYTES);
	wait_for_inflight(&world, 1);
	client_ask(&held, NBD_CMD_WRITE, DISK_BYTES, PAYLOAD);
	held.owed = PAYLOAD;
	sim_after(1003 * SECOND_NS, send_owed, &held);
	sim_after(SECOND_NS, ask_small, &other);
	wait_for(&holder, ANSWER_BYTES);
	wait_for(&held, sizeof(struct nbd_wire_simple_reply));
	assert_false(held.closed);
	assert_int_equal(held.got, sizeof(struct nbd_wire_simple_reply));
	wait_for(&other, ANSWER_BYTES);
	assert_int_equal(answers(&other), 1);
	sim_socket_close(holder.fd);
	sim_socket_close(held.fd);
	sim_socket_close(other.fd);
	world_end(&world);
}

/* A large receive buffer stays with who has filled a small one to the last byte and is silent
 * since: he has done nothing wrong, and is not ended when memory is short. */
static void test_an_idle_client_when_memory_is_short(void **state)
{
	enum { HEAD = sizeof(struct nbd_wire_request), RX_SMALL = 8192, HUNGRY = 8 };
	static const uint8_t payload[RX_SMALL - HEAD];
	struct client idle;
	struct client hungry[HUNGRY];
	struct client other;
	struct world world;

	(void)state;
	world_begin(&world, 128, 1024);
	client_open(&world, &idle);
	client_open(&world, &other);
	client_ask(&idle, NBD_CMD_WRITE, 0, sizeof(payload));
	sim_socket_write(idle.fd, payload, sizeof(payload));
	wait_for(&idle, sizeof(struct nbd_wire_simple_reply));
	for (int i = 0; i < HUNGRY; i++) {
		client_open(&world, &hungry[i]);
		sim_socket_set_buffer(hungry[i].fd, 100);
		for (int k = 0; k < 100; k++) { /* and take none of it */
			client_ask(&hungry[i], NBD_CMD_READ, 0, DISK_BYTES);
		}
	}
	sim_after(SECOND_NS, ask_small, &other);
	wait_for(&other, ANSWER_BYTES);
	assert_int_equal(answers(&other), 1);
	assert_in_range(sim_now_ns(), 5 * SECOND_NS, UINT64_MAX); /* he had to wait */
	client_ask(&idle, NBD_CMD_READ, 0, READ_BYTES);
	wait_for(&idle, sizeof(struct nbd_wire_simple_reply) + ANSWER_BYTES);
	assert_false(idle.closed);
	for (int i = 0; i < HUNGRY; i++) {
		sim_socket_close(hungry[i].fd);
	}
	sim_socket_close(idle.fd);
	sim_socket_close(other.fd);
	world_end(&world);
}

/* The places of a client that went are free one by one, however long its last request takes, and
 * at once. */
static void test_places_of_a_client_that_is_going(void **state)
{
	struct client going;
	struct client other;
	struct world world;
	uint64_t left_ns;

	(void)state;
	world_begin(&world, 2, 2);
	client_open(&world, &going);
	client_open(&world, &other);
	client_ask(&going, NBD_CMD_READ, DELAYED_OFFSET, READ_BYTES);
	client_ask(&going, NBD_CMD_WRITE, 0, DISK_BYTES + 1); /* its payload never comes */
	wait_for_inflight(&world, 2);
	client_ask(&other, NBD_CMD_READ, 0, READ_BYTES);
	left_ns = sim_now_ns() + SECOND_NS / 10;
	sim_after(left_ns - sim_now_ns(), leave, &going);
	wait_for(&other, ANSWER_BYTES);
	assert_int_equal(answers(&other), 1);
	assert_in_range(sim_now_ns() - left_ns, 0, SECOND_NS / 2);
	sim_socket_close(other.fd);
	world_end(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_modest_client_among_greedy_ones),
		cmocka_unit_test(test_refused_writes_whose_payload_stays_away),
		cmocka_unit_test(test_a_refused_write_that_had_to_wait),
		cmocka_unit_test(test_an_idle_client_when_memory_is_short),
		cmocka_unit_test(test_places_of_a_client_that_is_going),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
