// SPDX-License-Identifier: Apache-2.0
#include "engine_world.h"

#include <sys/mman.h>

#include "stores.h"

static void endpoint_closed(void *context, const struct peer *peer)
{
	struct world *world = context;

	world->gone++;
}

static int device_map(void *context, uint64_t bytes, uint8_t **base_out)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(base, MAP_FAILED);
	*base_out = base;
	return 0;
}

static void device_unmap(void *context, uint8_t *base, uint64_t bytes)
{
	(void)munmap(base, bytes);
}

static void begin(struct world *world, uint32_t inflight_per_session, uint32_t inflight,
	uint64_t device_bytes, bool device_waits, struct lease_book *leases)
{
	static const struct arena_source source = { .kind = "device",
		.rights = MEM_SOCKET | MEM_ADDRESS,
		.map = device_map,
		.unmap = device_unmap };
	static const struct session_kind *const kinds[] = { &nbd_session_kind };
	struct engine_options options = {
		.kinds = kinds,
		.kind_count = ARRAY_COUNT(kinds),
		.endpoint_closed = endpoint_closed,
		.context = world,
		.leases = leases,
	};
	struct export_options export = { .name = "", .one_writer = leases != NULL };
	struct store_options store = { .path = "memory:65536" };
	struct error error;

	log_set_level(LOG_LEVEL_ERROR);
	memset(world, 0, sizeof(*world));
	world->ring = sim_ring_create_for_fuzz(1);
	stores_set(&store, "delay", "read:1000s:range=4096+512");
	assert_int_equal(store_open(&store, &export.store, &error), 0);
	store_options_fini(&store);
	assert_int_equal(export_create(&export, &world->export, &error), 0);
	options.ring = world->ring;
	engine_limits_default(&options.limits);
	options.limits.inflight_per_session_max = inflight_per_session;
	options.limits.inflight_max = inflight;
	options.limits.stall_timeout_ns = 5 * SECOND_NS;
	options.limits.memory_bytes_max = ARENA_SLAB_BYTES;
	if (device_bytes > 0) {
		assert_int_equal(arena_device_create(world->ring, &source, device_bytes,
					 &world->device, &error),
			0);
	}
	options.device = world->device;
	options.device_waits = device_waits;
	assert_int_equal(engine_create(&options, &world->engine, &error), 0);
	assert_int_equal(engine_export_add(world->engine, world->export, &error), 0);
}

void world_begin(struct world *world, uint32_t inflight_per_session, uint32_t inflight)
{
	begin(world, inflight_per_session, inflight, 0, false, NULL);
}

void world_begin_device(struct world *world, uint64_t device_bytes, bool device_waits)
{
	begin(world, 128, 1024, device_bytes, device_waits, NULL);
}

void world_begin_leases(struct world *world, struct lease_book *book)
{
	begin(world, 128, 1024, 0, false, book);
}

static void world_drained(void *context)
{
	struct world *world = context;

	world->drained = true;
}

void world_drain(struct world *world, uint64_t deadline_ns)
{
	engine_drain(world->engine, deadline_ns, world_drained, world);
}

void world_finish(struct world *world)
{
	while (!world->drained) {
		assert_true(sim_step());
	}
	assert_int_equal(world->engine->counters.inflight, 0);
	assert_int_equal(world->engine->counters.sessions, 0);
	assert_int_equal(world->gone, world->accepted);
	engine_destroy(world->engine);
	arena_destroy(world->device);
	export_put(world->export);
	ring_destroy(world->ring);
	assert_int_equal(sim_open_count(), 0);
	sim_stop();
}

void world_end(struct world *world)
{
	world_drain(world, SECOND_NS);
	world_finish(world);
}

void look(struct client *client)
{
	uint8_t bytes[4096];
	int got;

	while ((got = sim_socket_read(client->fd, bytes, sizeof(bytes))) > 0) {
		client->got += (uint64_t)got;
	}
	client->closed |= got < 0;
}

static void set_true(void *arg)
{
	*(bool *)arg = true;
}

void let_time_pass(uint64_t ns)
{
	bool over = false;

	sim_after(ns, set_true, &over);
	while (!over) {
		assert_true(sim_step());
	}
}

void wait_for(struct client *client, uint64_t bytes)
{
	look(client);
	for (int steps = 0; client->got < bytes && !client->closed; steps++) {
		assert_true(sim_step()); /* else nothing will ever come */
		assert_true(steps < STEPS_MAX);
		look(client);
	}
}

void wait_for_inflight(const struct world *world, uint32_t count)
{
	while (world->engine->counters.inflight < count) {
		assert_true(sim_step());
	}
	assert_int_equal(world->engine->counters.inflight, count);
}

uint64_t answers(struct client *client)
{
	look(client);
	return client->got / ANSWER_BYTES;
}

void client_connect(struct world *world, struct client *client)
{
	client_connect_from(world, client, 0);
}

void client_connect_from(struct world *world, struct client *client, uint8_t host)
{
	struct endpoint endpoint = { .kind = &nbd_session_kind,
		.peer = { .text = "client",
			.has_address = true,
			.address = { [ACCESS_ADDRESS_BYTES - 1] = host },
			.identity = { { host } } } };

	*client = (struct client){ 0 };
	sim_socket_pair(&endpoint.fd, &client->fd);
	world->accepted++;
	engine_accept(world->engine, &endpoint);
}

void client_choose(const struct client *client, const char *name)
{
	const struct talk_hello hello = talk_hello(name);

	sim_socket_write(client->fd, &hello, sizeof(hello));
	sim_socket_write(client->fd, name, strlen(name));
}

bool client_try(struct world *world, struct client *client, const char *name)
{
	return client_try_from(world, client, 0, name);
}

bool client_try_from(struct world *world, struct client *client, uint8_t host, const char *name)
{
	client_connect_from(world, client, host);
	client_choose(client, name);
	wait_for(client, TALK_HELLO_BYTES);
	if (client->closed) {
		return false;
	}
	assert_int_equal(client->got, TALK_HELLO_BYTES);
	client->got = 0;
	return true;
}

void client_open(struct world *world, struct client *client, const char *name)
{
	assert_true(client_try(world, client, name));
}

void client_ask(
	const struct client *client, enum nbd_command command, uint64_t offset, uint32_t length)
{
	const struct nbd_wire_request request = talk_request(command, offset, length);

	sim_socket_write(client->fd, &request, sizeof(request));
}
