// SPDX-License-Identifier: Apache-2.0
/*
 * Requests that keep the store busy for long: how many of them are in the store, and whose turn it
 * is. The store finishes a part when the test says so.
 */
#include <stdlib.h>
#include <string.h>

#include "path/path.h"
#include "sim/sim.h"
#include "store/kind.h"
#include "unit.h"

enum {
	STORE_BYTES = 1 << 30,
	LONG_BYTES = 1 << 20,
	EXPORTS = 12,
	CLIENTS = 16,
	REQUESTS = 256,
	EXTENTS_WANTED = 128,
};

struct world;

struct job {
	struct path_request request; /* first */
	struct world *world;
	bool live;
};

struct world {
	struct store store;
	struct late_writes late;
	struct ring *ring;
	struct arena *arena;
	struct path *path;
	struct path_peer peers[2]; /* the first client's, and that of all others */
	struct path_client clients[CLIENTS];
	struct path_export exports[EXPORTS];
	struct job jobs[REQUESTS];
	struct store_part *parts[REQUESTS]; /* in the store, oldest first */
	uint32_t part_count;
};

static struct path_request *request_of(struct store_part *part)
{
	return container_of(part, struct path_stream, part)->request;
}

static void store_takes(struct store_queue *queue, struct store_part *part)
{
	struct world *world = container_of(queue->store, struct world, store);

	assert_true(world->part_count < REQUESTS);
	world->parts[world->part_count++] = part;
}

static uint64_t store_bytes(struct store *store)
{
	return STORE_BYTES;
}

static const struct store_ops ops = {
	.name = "held",
	.submit = store_takes,
	.size = store_bytes,
};

static struct world *world_open(void)
{
	struct world *world = calloc(1, sizeof(*world));
	struct error error;

	assert_non_null(world);
	sim_start(&(struct sim_options){ .seed = 1 });
	late_writes_init(&world->late);
	world->store.ops = &ops;
	world->store.info = (struct store_info){ .kind = "held",
		.caps = STORE_CAP_WRITE | STORE_CAP_TRIM | STORE_CAP_EXTENTS,
		.block_min = 1,
		.block_preferred = 4096,
		.memory_align = 1,
		.offset_align = 1,
		.memory_rights = MEM_CPU | MEM_ADDRESS };
	if (ring_create(&(struct ring_options){ 0 }, &world->ring, &error) != 0 ||
		arena_ram_create(world->ring, 4 << 20, &world->arena, &error) != 0 ||
		path_create(&(struct path_options){ .ring = world->ring, .ram = world->arena },
			&world->path, &error) != 0) {
		fail_msg("%s", error.text);
	}
	path_peer_init(&world->peers[0]);
	path_peer_init(&world->peers[1]);
	for (int i = 0; i < CLIENTS; i++) {
		path_client_init(&world->clients[i], world->path, &world->peers[i > 0]);
	}
	for (int i = 0; i < EXPORTS; i++) {
		struct path_export *export = &world->exports[i];

		if (store_queue_create(&world->store, world->ring, &export->queue, &error) != 0) {
			fail_msg("%s", error.text);
		}
		export->store = &world->store;
		path_export_init(export, PATH_OVERLAP_OFF, &world->late, world->ring);
	}
	return world;
}

static void world_close(struct world *world)
{
	assert_int_equal(world->part_count, 0);
	assert_int_equal(arena_info(world->arena)->used_bytes, 0);
	for (int i = 0; i < REQUESTS; i++) {
		assert_false(world->jobs[i].live);
	}
	for (int i = 0; i < EXPORTS; i++) {
		assert_int_equal(world->exports[i].costly_count, 0);
		path_export_fini(&world->exports[i]);
		store_queue_destroy(world->exports[i].queue);
	}
	for (int i = 0; i < CLIENTS; i++) {
		path_client_fini(&world->clients[i]);
	}
	path_destroy(world->path);
	arena_destroy(world->arena);
	ring_destroy(world->ring);
	late_writes_fini(&world->late);
	sim_stop();
	free(world);
}

static void progress(struct path_request *request)
{
	struct job *job = (struct job *)request;

	if (job->live && (job->request.abandoned ? path_is_idle(request)
						 : path_status(request) != PATH_PENDING)) {
		path_finish(request);
		job->live = false;
	}
}

static struct job *start(
	struct world *world, uint32_t client, uint32_t export, enum store_op op, uint64_t length)
{
	struct job *job = world->jobs;

	while (job->live) {
		job++;
		assert_true(job < world->jobs + REQUESTS);
	}
	*job = (struct job){ .world = world, .live = true };
	job->request.client = &world->clients[client];
	job->request.op = op;
	job->request.length = length;
	job->request.extent_max = EXTENTS_WANTED;
	job->request.window_bytes = LONG_BYTES;
	job->request.memory_rights = MEM_CPU;
	job->request.export = &world->exports[export];
	job->request.progress = progress;
	path_start(world->path, &job->request);
	return job;
}

static void serve(struct world *world)
{
	do {
		while (sim_step()) {
		}
		path_serve(world->path);
	} while (path_is_to_serve(world->path));
}

/* The part leaves the store; nobody has been served yet. */
static void finish_part(struct world *world, uint32_t idx)
{
	struct store_part *part = world->parts[idx];

	world->part_count--;
	memmove(world->parts + idx, world->parts + idx + 1,
		(world->part_count - idx) * sizeof(struct store_part *));
	if (part->op == STORE_EXTENTS) {
		part->extents[0] = (struct store_extent){ .length = part->length };
		part->extent_count = 1;
	}
	store_finish(part, 0);
}

static void finish_all(struct world *world)
{
	serve(world);
	while (world->part_count > 0) {
		finish_part(world, 0);
		serve(world);
	}
}

static uint32_t in_store(
	struct world *world, const struct path_client *client, const struct path_export *export)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < world->part_count; i++) {
		const struct path_request *request = request_of(world->parts[i]);

		count += (client == NULL || request->client == client) &&
			 (export == NULL || request->export == export);
	}
	return count;
}

/* --- tests ---------------------------------------------------------------------------------- */

TEST(test_a_client_has_one_in_the_store)
{
	static const enum store_op costly[] = { STORE_EXTENTS, STORE_CACHE, STORE_TRIM,
		STORE_ZERO };
	struct world *world = world_open();
	uint32_t done = 0;

	for (uint32_t i = 0; i < 128; i++) {
		(void)start(world, 0, 0, costly[i % ARRAY_COUNT(costly)], LONG_BYTES);
	}
	serve(world);
	/* They keep nothing else of it waiting. */
	(void)start(world, 0, 0, STORE_READ, 4096);
	assert_int_equal(in_store(world, NULL, NULL), 2);
	(void)start(world, 0, 0, STORE_FLUSH, 0);
	assert_int_equal(in_store(world, NULL, NULL), 3);
	finish_part(world, 2);
	(void)path_abandon(request_of(world->parts[1]));
	finish_part(world, 1);
	for (; world->part_count > 0; done++) {
		assert_int_equal(world->part_count, 1);
		assert_int_equal(request_of(world->parts[0])->op, costly[done % 4]); /* in order */
		finish_part(world, 0);
		serve(world);
	}
	assert_int_equal(done, 128);
	world_close(world);
}

TEST(test_short_ones_are_not_costly)
{
	struct world *world = world_open();

	for (int i = 0; i < 32; i++) {
		(void)start(world, 0, 0, i % 2 == 0 ? STORE_TRIM : STORE_ZERO, PATH_CHEAP_BYTES);
	}
	assert_int_equal(world->part_count, 32);
	finish_all(world);
	world->store.info.caps |= STORE_CAP_CALLS; /* but for such a store */
	for (int i = 0; i < 32; i++) {
		(void)start(world, 0, 0, STORE_ZERO, 4096);
	}
	serve(world);
	assert_int_equal(world->part_count, 1);
	finish_all(world);
	world_close(world);
}

/* Exports that hang leave places for the others, however many they are. */
TEST(test_an_export_leaves_places_for_others)
{
	struct world *world = world_open();

	for (uint32_t i = 0; i < CLIENTS; i++) {
		(void)start(world, i, 0, STORE_EXTENTS, LONG_BYTES);
	}
	serve(world);
	assert_int_equal(world->part_count, PATH_COSTLY_MAX / 2);
	finish_all(world);
	for (uint32_t e = 0; e < EXPORTS; e++) { /* each with a client of its own */
		(void)start(world, e, e, STORE_ZERO, LONG_BYTES);
	}
	serve(world);
	for (uint32_t e = 0; e < EXPORTS; e++) {
		assert_int_equal(in_store(world, NULL, &world->exports[e]), 1);
	}
	finish_all(world);
	world_close(world);
}

/* All places of the export are taken by one peer, whose clients want more. */
TEST(test_turns_go_by_peer)
{
	struct world *world = world_open();
	struct job *good;

	for (uint32_t i = 0; i < 128; i++) {
		(void)start(world, 1 + i % (CLIENTS - 1), 0, STORE_EXTENTS, LONG_BYTES);
	}
	good = start(world, 0, 0, STORE_EXTENTS, LONG_BYTES);
	serve(world);
	assert_int_equal(in_store(world, NULL, NULL), PATH_COSTLY_MAX / 2);
	assert_int_equal(in_store(world, &world->clients[0], NULL), 0);
	finish_part(world, 0);
	serve(world);
	finish_part(world, 0);
	serve(world);
	assert_int_equal(in_store(world, &world->clients[0], NULL), 1);
	finish_all(world);
	assert_false(good->live);
	world_close(world);
}

/* Who comes when a place has just become free does not take it from who waits. */
TEST(test_a_newcomer_does_not_overtake)
{
	struct world *world = world_open();

	for (uint32_t i = 1; i <= PATH_COSTLY_MAX / 2; i++) {
		(void)start(world, i, 0, STORE_ZERO, LONG_BYTES);
	}
	(void)start(world, 0, 0, STORE_ZERO, LONG_BYTES);
	serve(world);
	finish_part(world, 0);
	(void)start(world, 1, 0, STORE_ZERO, LONG_BYTES); /* at once again */
	serve(world);
	assert_int_equal(in_store(world, &world->clients[0], NULL), 1);
	assert_int_equal(in_store(world, &world->clients[1], NULL), 0);
	finish_all(world);
	world_close(world);
}

TEST(test_a_connection_breaks_while_its_requests_wait)
{
	struct world *world = world_open();
	struct job *jobs[32];

	for (int i = 0; i < 32; i++) {
		jobs[i] = start(world, 0, 0, i % 2 == 0 ? STORE_EXTENTS : STORE_TRIM, LONG_BYTES);
	}
	serve(world);
	for (int i = 0; i < 32; i++) {
		/* All but the one in the store are idle at once. */
		assert_int_equal(path_abandon(&jobs[i]->request), i > 0);
		progress(&jobs[i]->request);
	}
	assert_int_equal(world->part_count, 1);
	(void)start(world, 1, 0, STORE_ZERO, LONG_BYTES);
	finish_all(world);
	world_close(world);
}

/* Changes that wait for one whose client has gone hold no place: the late one may need it. */
TEST(test_who_waits_for_a_late_change_holds_no_place)
{
	struct world *world = world_open();
	struct job *first = start(world, 0, 0, STORE_ZERO, LONG_BYTES);
	struct job *second = start(world, 0, 0, STORE_ZERO, LONG_BYTES);
	struct job *gone;

	path_orphan(&first->request);
	path_orphan(&second->request);
	for (uint32_t i = 1; i <= PATH_COSTLY_MAX; i++) {
		gone = start(world, i, 0, STORE_TRIM, LONG_BYTES);
	}
	serve(world);
	assert_int_equal(world->part_count, 1);
	(void)path_abandon(&gone->request);
	finish_part(world, 0);
	serve(world);
	assert_int_equal(in_store(world, &world->clients[0], NULL), 1);
	finish_all(world);
	world_close(world);
}

/* One that has had its turn, and waits for memory, does not wait awake for it, nor for a new turn.
 */
TEST(test_memory_is_short_when_its_turn_comes)
{
	enum { PASSES_MAX = 10, BLOCKS_MAX = 2048 };
	static struct arena_buf bufs[BLOCKS_MAX];
	struct world *world = world_open();
	uint32_t count = 0;
	uint32_t passes = 0;

	while (arena_get(world->arena, ARENA_BLOCK_BYTES_MIN, &bufs[count]) == 0) {
		count++;
		assert_true(count < BLOCKS_MAX);
	}
	for (uint32_t i = 1; i <= 2 + PATH_COSTLY_MAX / 2; i++) { /* two wait for places */
		(void)start(world, i, 0, STORE_ZERO, LONG_BYTES);
	}
	(void)start(world, 0, 1, STORE_EXTENTS, LONG_BYTES);
	(void)start(world, 0, 1, STORE_EXTENTS, LONG_BYTES);
	serve(world);
	assert_true(path_is_short(world->path));
	finish_part(world, 0);
	do {
		assert_true(passes++ < PASSES_MAX);
		path_serve(world->path);
	} while (path_is_to_serve(world->path));
	assert_true(path_is_short(world->path));
	assert_int_equal(world->part_count, PATH_COSTLY_MAX / 2);
	while (count > 0) {
		arena_put(world->arena, &bufs[--count]);
	}
	finish_all(world); /* what ends tells that there may be memory */
	world_close(world);
}
