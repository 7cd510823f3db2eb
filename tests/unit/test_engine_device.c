// SPDX-License-Identifier: Apache-2.0
/*
 * Payload in memory of a device: what of it is in RAM all the same, and who is ended for the sake
 * of those who wait for it.
 */
#include "engine_world.h"
#include "unit.h"

enum {
	BLOCK_BYTES = 4096,
	WRITE_BYTES = 1 << 20,
	WRITES = 4,
	RECEIVE_BYTES = 8192, /* of a receive that may begin with a header */
	SOCKET_BYTES = 100,   /* of who takes nothing */
	STALL_NS = 20 * 1000000000LL,
};

/* A disk whose export has device memory, and lets the kernel copy between that and sockets. */
static struct export *add(struct world *world, const char *name)
{
	const struct sim_disk_options disk = { .size = WRITES * WRITE_BYTES,
		.direct_offset_align = BLOCK_BYTES };
	struct store_options options = {
		.path = name, .read_mode = STORE_MODE_DEVICE, .write_mode = STORE_MODE_DEVICE
	};
	struct export_options about = { .name = name, .name_bytes = (uint32_t)strlen(name) };
	struct export *export;
	struct error error;

	(void)sim_disk_create(name, &disk);
	assert_int_equal(store_open(&options, &about.store, &error), 0);
	about.store->info.device_cpu = true;
	assert_int_equal(export_create(&about, &export, &error), 0);
	assert_int_equal(engine_export_add(world->engine, export, &error), 0);
	return export;
}

static const struct path_export *measured(const struct world *world, const struct export *export)
{
	return engine_export_measured(world->engine, export);
}

static void drop(struct world *world, struct export *export)
{
	engine_export_remove(world->engine, export, 0);
	export_put(export);
}

/* Of a write, only what has come with its header is copied, and lies in RAM. */
TEST(test_writes)
{
	static uint8_t payload[WRITE_BYTES];
	static uint8_t got[WRITE_BYTES];
	const struct path_export *counts;
	struct export *export;
	struct client client;
	struct world world;

	world_begin_device(&world, 8 << 20, false);
	export = add(&world, "disk");
	counts = measured(&world, export);
	client_open(&world, &client, "disk");
	for (uint32_t i = 0; i < WRITES; i++) {
		for (uint32_t at = 0; at < WRITE_BYTES; at++) {
			payload[at] = (uint8_t)(at * 31 + at / 251 + i);
		}
		client_ask(&client, NBD_CMD_WRITE, (uint64_t)i * WRITE_BYTES, WRITE_BYTES);
		sim_socket_write(client.fd, payload, sizeof(payload));
		wait_for(&client, (i + 1) * sizeof(struct nbd_wire_simple_reply));
		assert_false(client.closed);
		sim_disk_peek(sim_disk_find("disk"), (uint64_t)i * WRITE_BYTES, got, sizeof(got));
		assert_memory_equal(got, payload, sizeof(got));
	}
	assert_int_equal(counts->ram_bytes + counts->device_bytes, WRITES * WRITE_BYTES);
	assert_in_range(counts->ram_for_session, 1, WRITES);
	assert_in_range(counts->ram_bytes, 1, WRITES * (RECEIVE_BYTES + BLOCK_BYTES));
	sim_socket_close(client.fd);
	drop(&world, export);
	world_end(&world);
}

static void set_true(void *arg)
{
	*(bool *)arg = true;
}

/* With spill=wait: who holds memory of the device and takes nothing is ended when others wait for
 * it, but nobody who holds only RAM. */
TEST(test_who_is_ended)
{
	enum { DEVICE_BYTES = 256 << 10, READS = 8, READ_LONG_BYTES = 64 << 10 };
	struct export *null;
	struct export *export;
	struct client bystander;
	struct client clients[3];
	struct path_arena device = { 0 };
	struct path_arena ram = { 0 };
	struct world world;
	struct error error;
	bool over = false;

	world_begin_device(&world, DEVICE_BYTES, true);
	null = export_of_path("null", "null:8M");
	assert_int_equal(engine_export_add(world.engine, null, &error), 0);
	export = add(&world, "disk");
	client_open(&world, &bystander, "null");
	sim_socket_set_buffer(bystander.fd, SOCKET_BYTES);
	client_ask(&bystander, NBD_CMD_READ, 0, DEVICE_BYTES);
	for (size_t i = 0; i < ARRAY_COUNT(clients); i++) {
		client_open(&world, &clients[i], "disk");
		sim_socket_set_buffer(clients[i].fd, SOCKET_BYTES);
		for (uint32_t read = 0; read < READS; read++) {
			client_ask(&clients[i], NBD_CMD_READ, 0, READ_LONG_BYTES);
		}
	}
	sim_after(STALL_NS, set_true, &over);
	while (!over) {
		assert_true(sim_step());
	}
	assert_true(measured(&world, export)->device_bytes > 0);
	assert_int_equal(measured(&world, export)->ram_for_room, 0);
	path_arenas_add(world.engine->path, &ram, &device);
	assert_int_equal(ram.waits + device.spills, 0);
	assert_true(device.waits > 0);
	assert_int_equal(device.limit_bytes, DEVICE_BYTES);
	look(&bystander);
	assert_false(bystander.closed);
	assert_in_range(world.engine->counters.sessions_failed, 1, ARRAY_COUNT(clients));
	sim_socket_close(bystander.fd);
	for (size_t i = 0; i < ARRAY_COUNT(clients); i++) {
		sim_socket_close(clients[i].fd);
	}
	drop(&world, null);
	drop(&world, export);
	world_end(&world);
}
