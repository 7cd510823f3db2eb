// SPDX-License-Identifier: Apache-2.0
/*
 * The client library and slow servers: a command that takes longer than request_timeout is answered
 * all the same, by our server because it says that it lives, by others because slow commands have
 * longer; one that is dead is noticed. Over the real server on a simulated machine, whose clock
 * makes minutes cheap. GMB_OPEN_SIMPLE stands for other servers: without chunks ours cannot say
 * that it lives.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gmblock/gmblock.h>

#include "../unit/stores.h"
#include "base/log.h"
#include "connector_sim.h"
#include "nbd/server/server.h"
#include "sim/sim.h"
#include "unit.h"

#define SECOND_NS UINT64_C(1000000000)
#define GIB	  (UINT64_C(1) << 30)

enum { REQUEST_S = 30, WRITES = 64, BLOCK = 4096 };

struct world {
	struct ring *ring; /* the server's */
	struct engine *engine;
	struct export *export;
	bool drained;
	struct gmb_queue *queue;
	struct gmb_client *client;
	uint64_t lost_ns; /* when a connection was first lost, or 0 */
	uint64_t frozen_ns;
};

/* --- the server ------------------------------------------------------------------------------- */

struct arrival {
	struct ring_message message;
	struct world *world;
	int fd;
};

static void arrive(struct ring *ring, struct ring_message *message)
{
	struct arrival *arrival = container_of(message, struct arrival, message);

	engine_accept(arrival->world->engine, &(struct endpoint){ .kind = &nbd_session_kind,
						      .fd = arrival->fd,
						      .peer = { .text = "simulated" } });
	free(arrival);
}

static int network_attempt(void *context, const char *host, uint64_t timeout_ns, uint64_t *delay_ns)
{
	*delay_ns = 1000;
	return 0;
}

static int network_connect(void *context, const char *host)
{
	struct world *world = context;
	struct arrival *arrival = calloc(1, sizeof(*arrival));
	int client_fd;

	assert_non_null(arrival);
	sim_socket_pair(&arrival->fd, &client_fd);
	sim_socket_give(client_fd);
	arrival->message.deliver = arrive;
	arrival->world = world;
	ring_post(world->ring, &arrival->message);
	return client_fd;
}

/* delays: rules of the delay filter, separated by spaces. */
static void serve(struct world *world, const char *disk, const char *delays, uint32_t places)
{
	static const struct session_kind *const kinds[] = { &nbd_session_kind };
	static struct connector_network network;
	struct engine_options options = { .kinds = kinds, .kind_count = ARRAY_COUNT(kinds) };
	struct ring_options ring_options = { .files_max = 64, .buffers_max = 32 };
	struct export_options export = { .name = "", .epoch = 1 };
	struct store_options store = { .path = disk };
	char rules[128];
	struct error error;

	log_set_level(LOG_LEVEL_ERROR);
	*world = (struct world){ 0 };
	sim_start(&(struct sim_options){ .seed = 1 });
	snprintf(rules, sizeof(rules), "%s", delays);
	for (char *rest = rules, *rule; (rule = strtok_r(rest, " ", &rest)) != NULL;) {
		stores_set(&store, "delay", rule);
	}
	assert_int_equal(store_open(&store, &export.store, &error), 0);
	store_options_fini(&store);
	assert_int_equal(export_create(&export, &world->export, &error), 0);
	assert_int_equal(ring_create(&ring_options, &world->ring, &error), 0);
	options.ring = world->ring;
	engine_limits_default(&options.limits);
	options.limits.inflight_per_session_max = places;
	assert_int_equal(engine_create(&options, &world->engine, &error), 0);
	assert_int_equal(engine_export_add(world->engine, world->export, &error), 0);
	network = (struct connector_network){
		.attempt = network_attempt,
		.connect = network_connect,
		.context = world,
	};
	connector_sim_use(&network);
}

static void drained(void *context)
{
	struct world *world = context;

	world->drained = true;
}

static void stop(struct world *world)
{
	assert_int_equal(gmb_close(world->client), 0);
	assert_int_equal(gmb_queue_destroy(world->queue), 0);
	engine_drain(world->engine, SECOND_NS, drained, world);
	while (!world->drained) {
		assert_true(sim_step());
	}
	engine_destroy(world->engine);
	export_put(world->export);
	ring_destroy(world->ring);
	connector_sim_use(NULL);
	assert_int_equal(sim_open_count(), 0);
	sim_stop();
}

/* --- the client ------------------------------------------------------------------------------- */

static void client_event(void *context, enum gmb_event event, const char *text)
{
	struct world *world = context;

	if (event == GMB_EVENT_LOST && world->lost_ns == 0) {
		world->lost_ns = sim_now_ns();
	}
}

static void connect_to(struct world *world, uint32_t flags, uint32_t slow_s, uint32_t reconnect_s)
{
	struct gmb_options options = {
		.size = sizeof(options),
		.flags = flags,
		.connections = 1,
		.request_timeout_ms = REQUEST_S * 1000,
		.slow_timeout_ms = slow_s * 1000,
		.reconnect_timeout_ms = reconnect_s * 1000,
		.event = client_event,
		.context = world,
	};
	struct gmb_error error;

	assert_int_equal(gmb_queue_create(NULL, &world->queue, &error), 0);
	assert_int_equal(
		gmb_open(world->queue, "nbd://simulated", &options, &world->client, &error), 0);
}

/* Nothing was lost, and nothing sent twice. */
static void check_steady(struct world *world)
{
	struct gmb_stats stats = { .size = sizeof(stats) };

	gmb_get_stats(world->client, &stats);
	assert_int_equal(stats.connections_lost, 0);
	assert_int_equal(stats.commands_replayed, 0);
}

static double seconds_since(uint64_t then_ns)
{
	return (double)(sim_now_ns() - then_ns) / 1e9;
}

/* --- cases ------------------------------------------------------------------------------------ */

static const uint32_t styles[] = { 0, GMB_OPEN_NO_EXTENDED, GMB_OPEN_SIMPLE };

TEST(test_slow_commands)
{
	for (size_t i = 0; i < ARRAY_COUNT(styles); i++) {
		struct world world;
		uint64_t begin_ns;
		uint8_t block[BLOCK] = { 1 };

		serve(&world, "memory:1M", "flush:180s zero:40s trim:40s cache:40s", 128);
		connect_to(&world, styles[i], 0, 0);
		begin_ns = sim_now_ns();
		assert_int_equal(gmb_pwrite(world.client, block, sizeof(block), 0, 0), 0);
		assert_int_equal(gmb_zero(world.client, 0, BLOCK, 0), 0);
		assert_int_equal(gmb_trim(world.client, 0, BLOCK, 0), 0);
		assert_int_equal(gmb_cache(world.client, 0, BLOCK), 0);
		assert_int_equal(gmb_flush(world.client), 0);
		assert_true(seconds_since(begin_ns) >= 300);
		check_steady(&world);
		stop(&world);
	}
}

/* A read may take as long where the server can say that it lives, and where not it is lost. */
TEST(test_slow_reads)
{
	for (size_t i = 0; i < ARRAY_COUNT(styles); i++) {
		bool alive = styles[i] != GMB_OPEN_SIMPLE;
		uint8_t block[BLOCK];
		struct world world;
		uint64_t begin_ns;

		serve(&world, "memory:1M", "read:40s write:70s", 128);
		connect_to(&world, styles[i], 0, 60);
		begin_ns = sim_now_ns();
		assert_int_equal(
			gmb_pread(world.client, block, sizeof(block), 0), alive ? 0 : -ENOTCONN);
		if (alive) {
			assert_int_equal(gmb_pwrite(world.client, block, sizeof(block), 0, 0), 0);
			check_steady(&world);
		} else {
			assert_int_equal((world.lost_ns - begin_ns) / SECOND_NS, REQUEST_S);
		}
		stop(&world);
	}
}

/* The server does not read what is behind a request that has no place, and says that it lives all
 * the same. */
TEST(test_no_place_left)
{
	static struct gmb_request requests[WRITES];
	static uint8_t blocks[WRITES][BLOCK];
	struct world world;

	serve(&world, "memory:1M", "write:20s", 1);
	connect_to(&world, 0, 0, 0);
	for (size_t i = 0; i < WRITES; i++) {
		gmb_prepare_write(&requests[i], blocks[i], BLOCK, i * BLOCK);
		gmb_submit(world.client, &requests[i]);
	}
	assert_int_equal(gmb_flush(world.client), 0);
	for (size_t i = 0; i < WRITES; i++) {
		while (requests[i].in_flight != 0) {
			gmb_queue_wait(world.queue, -1);
		}
		assert_int_equal(requests[i].result, 0);
	}
	check_steady(&world);
	stop(&world);
	serve(&world, "memory:1M", "flush:180s", 1);
	connect_to(&world, 0, 0, 0);
	memset(requests, 0, sizeof(requests));
	gmb_prepare(&requests[0], GMB_FLUSH, 0, 0);
	gmb_submit(world.client, &requests[0]);
	for (size_t i = 1; i < WRITES; i++) {
		gmb_prepare_write(&requests[i], blocks[i], BLOCK, i * BLOCK);
		gmb_submit(world.client, &requests[i]);
	}
	for (size_t i = 0; i < WRITES; i++) {
		while (requests[i].in_flight != 0) {
			gmb_queue_wait(world.queue, -1);
		}
		assert_int_equal(requests[i].result, 0);
	}
	check_steady(&world);
	stop(&world);
}

static void freeze_event(void *context)
{
	struct world *world = context;

	world->frozen_ns = sim_now_ns();
	sim_freeze(world->ring, true);
}

static void unfreeze_event(void *context)
{
	struct world *world = context;

	sim_freeze(world->ring, false);
}

/* A server that stops in the middle of a slow command is dead after request_timeout where it could
 * say that it lives, and after slow_timeout where it could not. */
TEST(test_frozen_server)
{
	for (size_t i = 0; i < ARRAY_COUNT(styles); i++) {
		bool alive = styles[i] != GMB_OPEN_SIMPLE;
		struct gmb_stats stats = { .size = sizeof(stats) };
		struct world world;
		uint64_t begin_ns;

		serve(&world, "memory:1M", "flush:180s", 128);
		connect_to(&world, styles[i], 400, 1000);
		begin_ns = sim_now_ns();
		sim_after(100 * SECOND_NS, freeze_event, &world);
		sim_after(500 * SECOND_NS, unfreeze_event, &world);
		assert_int_equal(gmb_flush(world.client), 0);
		if (alive) {
			assert_in_range(world.lost_ns - world.frozen_ns, REQUEST_S * SECOND_NS / 2,
				REQUEST_S * SECOND_NS);
		} else {
			assert_int_equal((world.lost_ns - begin_ns) / SECOND_NS, 400);
		}
		gmb_get_stats(world.client, &stats);
		assert_int_equal(stats.connections_lost, 1);
		assert_int_equal(stats.commands_replayed, 1);
		stop(&world);
	}
}

/* That it lives is not enough for ever. */
TEST(test_alive_without_answers)
{
	struct world world;
	uint64_t begin_ns;

	serve(&world, "memory:1M", "flush:3600s", 128);
	connect_to(&world, 0, 100, 50);
	begin_ns = sim_now_ns();
	assert_int_equal(gmb_flush(world.client), -ENOTCONN);
	assert_int_equal((world.lost_ns - begin_ns) / SECOND_NS, 100);
	stop(&world);
}

struct timed_read {
	struct gmb_request request;
	uint64_t done_ns;
};

static void read_done(struct gmb_request *request)
{
	container_of(request, struct timed_read, request)->done_ns = sim_now_ns();
}

/* Long ranges are cut so that each command is short, whatever the disk takes for them. */
TEST(test_long_ranges)
{
	static const struct {
		const char *delays;
		uint64_t commands_min;
		uint64_t commands_max;
	} cases[] = {
		{ "", 16, 64 },		    /* as long as they may be, after a few */
		{ "zero:200ms", 257, 257 }, /* just right from the beginning */
		{ "zero:20s", 512, 65536 }  /* the shorter the better */
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct gmb_stats stats = { .size = sizeof(stats) };
		struct timed_read read = { .request = { .done = read_done } };
		struct gmb_request zero = { 0 };
		uint8_t block[BLOCK];
		struct world world;
		uint64_t begin_ns;

		serve(&world, "null:64G", cases[i].delays, 128);
		connect_to(&world, GMB_OPEN_SIMPLE, 0, 0);
		begin_ns = sim_now_ns();
		gmb_prepare(&zero, GMB_ZERO, BLOCK, 16 * GIB);
		gmb_submit(world.client, &zero);
		gmb_prepare_read(&read.request, block, sizeof(block), 0);
		gmb_submit(world.client, &read.request);
		while (zero.in_flight != 0) {
			gmb_queue_wait(world.queue, 100);
			assert_in_range(world.engine->counters.inflight, 0, 4 + 1);
		}
		assert_int_equal(zero.result, 0);
		assert_int_equal(read.request.result, 0);
		assert_true(read.done_ns - begin_ns < SECOND_NS); /* it did not wait for them */
		gmb_get_stats(world.client, &stats);
		assert_in_range(stats.commands - 1, cases[i].commands_min, cases[i].commands_max);
		check_steady(&world);
		stop(&world);
	}
}

/* With depth 1 a long range and other requests take turns. */
TEST(test_turns)
{
	struct gmb_options options = { .size = sizeof(options), .connections = 1, .depth = 1 };
	struct gmb_request zero = { 0 };
	uint8_t block[BLOCK];
	struct gmb_error error;
	struct world world;

	serve(&world, "null:64G", "zero:1s", 128);
	assert_int_equal(gmb_queue_create(NULL, &world.queue, &error), 0);
	assert_int_equal(
		gmb_open(world.queue, "nbd://simulated", &options, &world.client, &error), 0);
	gmb_prepare(&zero, GMB_ZERO, 0, 16 * GIB);
	gmb_submit(world.client, &zero);
	for (int i = 0; i < 4; i++) {
		uint64_t begin_ns = sim_now_ns();

		assert_int_equal(gmb_pread(world.client, block, sizeof(block), 0), 0);
		assert_true(sim_now_ns() - begin_ns < 3 * SECOND_NS);
		assert_int_not_equal(zero.in_flight, 0);
	}
	while (zero.in_flight != 0) {
		gmb_queue_wait(world.queue, -1);
	}
	assert_int_equal(zero.result, 0);
	stop(&world);
}
