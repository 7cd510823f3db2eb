// SPDX-License-Identifier: Apache-2.0
/*
 * Writes that the store keeps as a whole reach it as one part: with little memory, none, several
 * segments, and an export that comes when all memory is in use. What becomes of them in a crash is
 * sim --atomic.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/arena.h"
#include "path/path.h"
#include "sim/sim.h"
#include "stores.h"
#include "unit.h"

enum {
	KIB = 1024,
	MIB = 1024 * KIB,
	PROMISE = 960 * KIB, /* of the store */
	SESSIONS = 64,	     /* with a block of the reserve each */
	BUFFERS_MAX = 4096,
	WRITES = 3,
};

struct world {
	struct ring *ring;
	struct ring_batch_end batch_end;
	struct arena *arena;
	struct path *path;
	struct store *store;
	struct late_writes late;
	struct path_export exports[2];
	struct path_peer peers[WRITES];
	struct path_client clients[WRITES];
	struct arena_buf others[BUFFERS_MAX]; /* somebody else's */
	uint32_t other_count;
	struct path_request requests[WRITES];
	struct path_stream *streams[WRITES]; /* to be filled and submitted */
};

static void batch_end(struct ring_batch_end *batch_end)
{
	path_serve(container_of(batch_end, struct world, batch_end)->path);
}

static struct world *world_open(uint64_t memory)
{
	struct world *world = calloc(1, sizeof(*world));
	struct store_options options = { .path = "memory:16M" };
	struct error error;

	assert_non_null(world);
	sim_start(&(struct sim_options){ .seed = 1 });
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &world->ring, &error), 0);
	assert_int_equal(arena_ram_create(world->ring, memory, &world->arena, &error), 0);
	arena_reserve(world->arena, SESSIONS * PATH_RESERVE_BYTES);
	assert_int_equal(
		path_create(&(struct path_options){ .ring = world->ring, .ram = world->arena },
			&world->path, &error),
		0);
	assert_int_equal(store_open(&options, &world->store, &error), 0);
	world->store->info.atomic_bytes = PROMISE; /* as if */
	late_writes_init(&world->late);
	for (size_t i = 0; i < ARRAY_COUNT(world->exports); i++) {
		struct path_export *export = &world->exports[i];

		export->store = world->store;
		path_export_init(export, PATH_OVERLAP_AUTO, &world->late, world->ring);
		assert_int_equal(
			store_queue_create(world->store, world->ring, &export->queue, &error), 0);
	}
	for (uint32_t i = 0; i < WRITES; i++) {
		path_peer_init(&world->peers[i]);
		path_client_init(&world->clients[i], world->path, &world->peers[i]);
	}
	world->batch_end.call = batch_end;
	ring_batch_end_add(world->ring, &world->batch_end);
	return world;
}

static void join(struct world *world, uint32_t idx)
{
	path_export_join(
		world->path, &world->exports[idx], path_atomic_bytes(world->path, world->store));
}

/* Others have all memory, in the smallest blocks. */
static void take_all(struct world *world)
{
	while (arena_get(world->arena, ARENA_BLOCK_BYTES_MIN, &world->others[world->other_count]) ==
		0) {
		world->other_count++;
	}
	assert_true(arena_free_bytes(world->arena) == 0);
}

static void give_all(struct world *world)
{
	while (world->other_count > 0) {
		arena_put(world->arena, &world->others[--world->other_count]);
	}
	path_admission(world->path)->released = true;
}

static void world_close(struct world *world)
{
	struct path_arena ram = { 0 };

	give_all(world);
	path_arenas_add(world->path, &ram, NULL);
	assert_int_equal(ram.used_bytes, 0); /* a block that is kept holds no payload */
	ring_batch_end_remove(&world->batch_end);
	for (uint32_t i = 0; i < WRITES; i++) {
		path_client_fini(&world->clients[i]);
	}
	for (size_t i = 0; i < ARRAY_COUNT(world->exports); i++) {
		store_queue_destroy(world->exports[i].queue);
		path_export_leave(world->path, &world->exports[i]);
		path_export_fini(&world->exports[i]);
	}
	assert_int_equal(arena_info(world->arena)->used_bytes, 0);
	late_writes_fini(&world->late);
	store_close(world->store);
	path_destroy(world->path);
	arena_destroy(world->arena);
	ring_destroy(world->ring);
	sim_stop();
	free(world);
}

static struct world *current;

/* As a session does: it asks for room, and fills it later. */
static void progress(struct path_request *request)
{
	struct path_stream **stream = &current->streams[request - current->requests];

	if (path_status(request) == PATH_PENDING && *stream == NULL &&
		request->started_bytes < request->length) {
		*stream = path_write_open(request);
	}
}

static void start_at(
	struct world *world, uint32_t idx, uint64_t offset, uint64_t length, uint32_t flags)
{
	struct path_request *request = &world->requests[idx];

	current = world;
	*request = (struct path_request){ .client = &world->clients[idx],
		.op = STORE_WRITE,
		.flags = flags,
		.offset = offset,
		.length = length,
		.window_bytes = PATH_WINDOW_BYTES,
		.memory_rights = MEM_CPU | MEM_ADDRESS,
		.export = &world->exports[0],
		.progress = progress };
	world->streams[idx] = NULL;
	path_start(world->path, request);
	progress(request);
}

static void start(struct world *world, uint32_t idx, uint64_t length, uint32_t flags)
{
	start_at(world, idx, idx * (uint64_t)MIB, length, flags);
}

static void finish(struct world *world, uint32_t idx)
{
	struct path_request *request = &world->requests[idx];

	while (path_status(request) == PATH_PENDING) {
		struct path_stream *stream = world->streams[idx];

		if (stream != NULL) {
			memset(mem_cpu_write(stream->memory), 1 + (int)idx, stream->length);
			world->streams[idx] = NULL;
			path_write_submit(stream);
			progress(request);
		}
		assert_true(sim_step());
	}
	assert_int_equal(path_status(request), PATH_COMMITTED);
	path_finish(request);
}

/* --- what is promised ------------------------------------------------------------------------ */

TEST(test_promise)
{
	static const struct {
		uint64_t memory;
		uint32_t first;
	} cases[] = { { 4 * MIB, 256 * KIB }, { 8 * MIB, 512 * KIB }, { 16 * MIB, PROMISE },
		{ UINT64_C(128) * MIB, PROMISE } };

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct world *world = world_open(cases[i].memory);
		uint64_t memory = cases[i].memory - SESSIONS * PATH_RESERVE_BYTES;
		struct path_export more[256];
		uint64_t kept = 0;
		uint32_t bytes;

		assert_int_equal(path_atomic_bytes(world->path, world->store), cases[i].first);
		/* However many there are, half of the memory is for all. */
		for (size_t k = 0; k < ARRAY_COUNT(more); k++) {
			more[k].store = world->store;
			path_export_init(&more[k], PATH_OVERLAP_AUTO, &world->late, world->ring);
			bytes = path_atomic_bytes(world->path, world->store);
			assert_true(bytes >= PATH_RESERVE_BYTES);
			path_export_join(world->path, &more[k], bytes);
			kept += more[k].atomic.memory.rights != 0 ? more[k].atomic.bytes : 0;
		}
		assert_int_equal(bytes, PATH_RESERVE_BYTES);
		assert_true(kept <= memory / 2 && kept > memory / 4);
		for (size_t k = 0; k < ARRAY_COUNT(more); k++) {
			path_export_leave(world->path, &more[k]);
			path_export_fini(&more[k]);
		}
		assert_int_equal(path_atomic_bytes(world->path, world->store), cases[i].first);
		world->store->info.atomic_bytes = 0;
		assert_int_equal(path_atomic_bytes(world->path, world->store), 0);
		world->store->info.atomic_bytes = 60 * KIB;
		assert_int_equal(path_atomic_bytes(world->path, world->store), 60 * KIB);
		world_close(world);
	}
}

/* --- short memory ---------------------------------------------------------------------------- */

/* One after the other, in the order in which they came; another write is cut as always. */
TEST(test_turns)
{
	struct world *world = world_open(16 * MIB);

	join(world, 0);
	take_all(world);
	start(world, 0, PROMISE, STORE_FUA);
	assert_non_null(world->streams[0]);
	assert_int_equal(world->streams[0]->length, PROMISE);
	start(world, 1, PROMISE, STORE_FUA);
	start(world, 2, 2 * PATH_RESERVE_BYTES, STORE_FUA);
	assert_null(world->streams[1]);
	assert_null(world->streams[2]);
	assert_true(path_client_holds(&world->clients[0]));
	assert_true(path_client_is_wanted(&world->clients[0]));
	finish(world, 0);
	while (world->streams[1] == NULL) {
		assert_true(sim_step());
	}
	assert_int_equal(world->streams[1]->length, PROMISE);
	assert_null(world->streams[2]);
	start(world, 0, PROMISE, 0);
	assert_int_equal(world->streams[0]->length, PATH_RESERVE_BYTES); /* not a durable one */
	finish(world, 1);
	finish(world, 2);
	finish(world, 0);
	for (uint32_t i = 1; i < WRITES; i++) {
		assert_int_equal(world->requests[i].parts_started, 1);
	}
	assert_true(world->requests[0].parts_started > 1);
	world_close(world);
}

TEST(test_one_block)
{
	struct world *world = world_open(16 * MIB);

	join(world, 0);
	take_all(world);
	start(world, 0, PROMISE, STORE_FUA);
	start(world, 1, PATH_RESERVE_BYTES, STORE_FUA); /* the client's own block is enough */
	assert_non_null(world->streams[1]);
	assert_int_equal(world->streams[1]->length, PATH_RESERVE_BYTES);
	finish(world, 1);
	finish(world, 0);
	world_close(world);
}

/* Where there is no room for a block of the export's own, the client's is enough at any offset. */
TEST(test_reserve)
{
	struct world *world = world_open(16 * MIB);

	path_export_join(world->path, &world->exports[0], PATH_RESERVE_BYTES);
	take_all(world);
	start_at(world, 0, 512, PATH_RESERVE_BYTES, STORE_FUA);
	assert_non_null(world->streams[0]);
	assert_int_equal(world->streams[0]->length, PATH_RESERVE_BYTES);
	finish(world, 0);
	world_close(world);
}

/* An export comes when others have all memory: its block is the first that becomes free. */
TEST(test_late_export)
{
	struct world *world = world_open(16 * MIB);

	take_all(world);
	join(world, 0);
	start(world, 0, PROMISE, STORE_FUA);
	assert_null(world->streams[0]);
	start(world, 1, PATH_RESERVE_BYTES, 0);
	assert_non_null(world->streams[1]);
	give_all(world);
	finish(world, 1);
	finish(world, 0);
	assert_int_equal(world->requests[0].parts_started, 1);
	assert_int_equal(world->exports[0].atomic.bytes, MIB);
	world_close(world);
}

/* --- memory of the requester's --------------------------------------------------------------- */

TEST(test_segments)
{
	struct world *world = world_open(16 * MIB);
	uint8_t *memory = aligned_alloc(4096, MIB);

	assert_non_null(memory);
	join(world, 0);
	take_all(world);
	memset(memory, 7, MIB);
	for (uint32_t count = 1; count <= 3; count += 2) {
		struct mem_segment segments[3];
		struct path_request request = { .client = &world->clients[0],
			.op = STORE_WRITE,
			.flags = STORE_FUA,
			.length = PROMISE,
			.window_bytes = PATH_WINDOW_BYTES,
			.memory_rights = MEM_CPU | MEM_ADDRESS,
			.placement = segments,
			.placement_count = count,
			.export = &world->exports[0],
			.progress = progress };

		for (uint32_t i = 0; i < count; i++) {
			segments[i] = (struct mem_segment){ mem_of(memory + i * (PROMISE / count)),
				PROMISE / count };
		}
		world->requests[0] = request;
		current = world;
		path_start(world->path, &world->requests[0]);
		while (path_status(&world->requests[0]) == PATH_PENDING) {
			assert_true(sim_step());
		}
		assert_int_equal(world->requests[0].parts_started, 1);
		assert_int_equal(world->exports[0].ram_bytes, count > 1 ? PROMISE : 0);
		path_finish(&world->requests[0]);
	}
	free(memory);
	world_close(world);
}
