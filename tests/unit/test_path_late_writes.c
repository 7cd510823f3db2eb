// SPDX-License-Identifier: Apache-2.0
/*
 * Changes whose requester has gone while they were in the store, on two reactors that share an
 * export: nothing that others ask for later gets into the store beside them, and everything that
 * waits goes on in the end. The store finishes a part when the test says so.
 */
#include <errno.h>
#include <stdlib.h>

#include "path/path.h"
#include "sim/sim.h"
#include "store/kind.h"
#include "unit.h"

enum {
	KIB = 1024,
	STORE_BYTES = 1 << 20,
	REACTORS = 2,
	REQUESTS = 24,
	PARTS_MAX = 256,
	SEEDS = 300,
	STEPS = 400,
};

struct world;

struct job {
	struct path_request request; /* first */
	struct world *world;
	bool live;
	bool abandoned;
	uint64_t gone; /* when its requester went, in the order of such events; 0 = it is there */
};

struct reactor {
	struct ring *ring;
	struct arena *arena;
	struct path *path;
	struct path_peer peer;
	struct path_client client;
	struct path_export export;
};

struct world {
	struct store store;
	struct late_writes late;
	struct reactor reactors[REACTORS];
	struct job jobs[REQUESTS];
	struct store_part *parts[PARTS_MAX]; /* in the store */
	uint32_t part_count;
	uint64_t gone_count;
	uint64_t random;
	uint64_t overtaken;
};

/* --- the store ----------------------------------------------------------------------------- */

static struct job *job_of(struct store_part *part)
{
	struct path_stream *stream = container_of(part, struct path_stream, part);

	return (struct job *)stream->request;
}

static bool changes(const struct store_part *part)
{
	return part->op != STORE_READ;
}

static bool overlap(const struct store_part *a, const struct store_part *b)
{
	return a->offset < b->offset + b->length && b->offset < a->offset + a->length;
}

/* The rule: nobody gets in beside the change of one who has gone, unless he has gone earlier. */
static void store_takes(struct store_queue *queue, struct store_part *part)
{
	struct world *world = container_of(queue->store, struct world, store);
	uint64_t mine = job_of(part)->gone;

	for (uint32_t i = 0; i < world->part_count && changes(part); i++) {
		struct store_part *other = world->parts[i];
		uint64_t theirs = job_of(other)->gone;

		world->overtaken += changes(other) && overlap(part, other) &&
				    job_of(other) != job_of(part) && theirs != 0 &&
				    (mine == 0 || theirs < mine);
	}
	assert_true(world->part_count < PARTS_MAX);
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

/* --- the world ----------------------------------------------------------------------------- */

static uint64_t below(struct world *world, uint64_t limit)
{
	uint64_t bits = world->random += UINT64_C(0x9e3779b97f4a7c15);

	bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (bits ^ (bits >> 31)) % limit;
}

static struct world *world_open(uint64_t seed)
{
	struct world *world = calloc(1, sizeof(*world));
	struct error error;

	assert_non_null(world);
	world->random = seed;
	sim_start(&(struct sim_options){ .seed = seed, .faults = { .jitter = true } });
	late_writes_init(&world->late);
	world->store.ops = &ops;
	world->store.info = (struct store_info){ .kind = "held",
		.caps = STORE_CAP_WRITE | STORE_CAP_TRIM,
		.block_min = 1,
		.block_preferred = 4096,
		.memory_align = 1,
		.offset_align = 1,
		.memory_rights = MEM_CPU | MEM_ADDRESS };
	for (uint32_t i = 0; i < REACTORS; i++) {
		struct reactor *reactor = &world->reactors[i];

		if (ring_create(&(struct ring_options){ 0 }, &reactor->ring, &error) != 0 ||
			arena_ram_create(reactor->ring, 4 << 20, &reactor->arena, &error) != 0 ||
			path_create(
				&(struct path_options){
					.ring = reactor->ring,
					.ram = reactor->arena,
				},
				&reactor->path, &error) != 0 ||
			store_queue_create(&world->store, reactor->ring, &reactor->export.queue,
				&error) != 0) {
			fail_msg("%s", error.text);
		}
		path_peer_init(&reactor->peer);
		path_client_init(&reactor->client, reactor->path, &reactor->peer);
		reactor->export.store = &world->store;
		path_export_init(&reactor->export, 16 * KIB, &world->late, reactor->ring);
	}
	return world;
}

static void world_close(struct world *world)
{
	assert_int_equal(world->overtaken, 0);
	assert_int_equal(world->part_count, 0);
	for (uint32_t i = 0; i < REACTORS; i++) {
		struct reactor *reactor = &world->reactors[i];

		assert_int_equal(arena_info(reactor->arena)->used_bytes, 0);
		path_export_fini(&reactor->export);
		store_queue_destroy(reactor->export.queue);
		path_client_fini(&reactor->client);
		path_destroy(reactor->path);
		arena_destroy(reactor->arena);
		ring_destroy(reactor->ring);
	}
	assert_false(late_writes_any(&world->late));
	late_writes_fini(&world->late);
	sim_stop();
	free(world);
}

static void fill(struct job *job)
{
	while (job->request.op == STORE_WRITE && job->request.error == 0 && !job->abandoned &&
		job->request.started_bytes < job->request.length) {
		struct path_stream *stream = path_write_open(&job->request);

		if (stream == NULL) {
			return;
		}
		path_write_submit(stream);
	}
}

static void finish_if_over(struct job *job)
{
	bool over = job->abandoned ? path_is_idle(&job->request)
				   : path_status(&job->request) != PATH_PENDING;

	if (job->live && over) {
		path_finish(&job->request);
		job->live = false;
	}
}

static void progress(struct path_request *request)
{
	fill((struct job *)request);
}

static struct job *start(
	struct world *world, uint32_t reactor, enum store_op op, uint64_t offset, uint64_t length)
{
	struct job *job = world->jobs;

	while (job->live) {
		job++;
		assert_true(job < world->jobs + REQUESTS);
	}
	*job = (struct job){ .world = world, .live = true };
	job->request.client = &world->reactors[reactor].client;
	job->request.op = op;
	job->request.offset = offset;
	job->request.length = length;
	job->request.window_bytes = 64 * KIB;
	job->request.memory_rights = MEM_CPU;
	job->request.export = &world->reactors[reactor].export;
	job->request.progress = progress;
	path_start(world->reactors[reactor].path, &job->request);
	fill(job);
	return job;
}

/* Its connection is broken. */
static void abandon(struct job *job)
{
	job->abandoned = true;
	if (job->gone == 0) {
		job->gone = ++job->world->gone_count;
	}
	(void)path_abandon(&job->request);
	finish_if_over(job);
}

/* Its connection has said that nothing more comes. */
static void orphan(struct job *job)
{
	if (job->gone == 0) {
		job->gone = ++job->world->gone_count;
	}
	path_orphan(&job->request);
}

static void run(struct world *world)
{
	do {
		while (sim_step()) {
		}
		for (uint32_t i = 0; i < REACTORS; i++) {
			path_serve(world->reactors[i].path);
		}
	} while (path_is_to_serve(world->reactors[0].path) ||
		 path_is_to_serve(world->reactors[1].path));
	for (uint32_t i = 0; i < REQUESTS; i++) {
		finish_if_over(&world->jobs[i]);
	}
}

static bool is_in_store(const struct world *world, const struct job *job)
{
	for (uint32_t i = 0; i < world->part_count; i++) {
		if (job_of(world->parts[i]) == job) {
			return true;
		}
	}
	return false;
}

static void finish_part(struct world *world, uint32_t idx, int result)
{
	struct store_part *part = world->parts[idx];

	world->parts[idx] = world->parts[--world->part_count];
	store_finish(part, result);
}

/* All parts of the job that are in the store. */
static void finish(struct world *world, const struct job *job, int result)
{
	for (uint32_t i = world->part_count; i-- > 0;) {
		if (job_of(world->parts[i]) == job) {
			finish_part(world, i, result);
		}
	}
	run(world);
}

/* --- what waits, and for what -------------------------------------------------------------- */

TEST(test_changes_wait_for_those_of_a_broken_connection)
{
	static const enum store_op later[] = { STORE_WRITE, STORE_TRIM, STORE_ZERO };

	for (uint32_t i = 0; i < 2 * ARRAY_COUNT(later); i++) {
		struct world *world = world_open(1);
		uint32_t elsewhere = i / ARRAY_COUNT(later);
		struct job *gone = start(world, 0, later[i % ARRAY_COUNT(later)], 8 * KIB, 4 * KIB);
		struct job *overlapping;
		struct job *beside;
		struct job *reader;

		abandon(gone);
		overlapping = start(world, elsewhere, later[(i + 1) % 3], 11 * KIB, 4 * KIB);
		beside = start(world, elsewhere, later[(i + 2) % 3], 12 * KIB, 4 * KIB);
		reader = start(world, elsewhere, STORE_READ, 8 * KIB, 4 * KIB);
		run(world);
		assert_false(is_in_store(world, overlapping));
		assert_true(is_in_store(world, beside));
		assert_true(is_in_store(world, reader));
		assert_int_equal(world->reactors[elsewhere].export.late_waits, 1);
		finish(world, gone, -EIO);
		assert_true(is_in_store(world, overlapping));
		finish(world, overlapping, 0);
		finish(world, beside, 0);
		abandon(reader);
		finish(world, reader, 0);
		world_close(world);
	}
}

TEST(test_a_request_whose_client_asks_nothing_more_is_waited_for_until_it_is_stored)
{
	struct world *world = world_open(1);
	struct job *gone = start(world, 0, STORE_ZERO, 0, 64 * KIB);
	struct job *next;

	orphan(gone);
	next = start(world, 1, STORE_WRITE, 60 * KIB, 4 * KIB);
	run(world);
	assert_false(is_in_store(world, next));
	/* That its reply is never taken keeps nobody waiting. */
	store_finish(world->parts[--world->part_count], 0);
	assert_int_equal(path_status(&gone->request), PATH_COMMITTED);
	run(world);
	assert_true(is_in_store(world, next));
	finish(world, next, 0);
	world_close(world);
}

TEST(test_those_who_have_gone_wait_in_turn)
{
	struct world *world = world_open(1);
	struct job *first = start(world, 0, STORE_ZERO, 0, 8 * KIB);
	struct job *second;
	struct job *third;

	abandon(first);
	second = start(world, 1, STORE_WRITE, 4 * KIB, 8 * KIB);
	orphan(second);
	third = start(world, 0, STORE_WRITE, 0, 16 * KIB);
	orphan(third);
	run(world);
	assert_int_equal(world->part_count, 1);
	finish(world, first, 0);
	assert_true(is_in_store(world, second));
	assert_false(is_in_store(world, third));
	finish(world, second, 0);
	assert_true(is_in_store(world, third));
	finish(world, third, 0);
	world_close(world);
}

TEST(test_what_waits_is_never_started_when_its_connection_breaks)
{
	struct world *world = world_open(1);
	struct job *first = start(world, 0, STORE_ZERO, 0, 8 * KIB);
	struct job *second;
	struct job *third;

	abandon(first);
	second = start(world, 1, STORE_WRITE, 0, 12 * KIB);
	abandon(second);
	/* Nothing of it is in the store: it keeps nobody waiting. */
	third = start(world, 0, STORE_WRITE, 8 * KIB, 4 * KIB);
	assert_true(is_in_store(world, third));
	finish(world, third, 0);
	assert_true(second->live);
	finish(world, first, 0);
	assert_false(second->live);
	assert_int_equal(world->part_count, 0);
	world_close(world);
}

TEST(test_a_failed_request_does_not_start_what_waits)
{
	struct world *world = world_open(1);
	struct job *first = start(world, 0, STORE_ZERO, 16 * KIB, 4 * KIB);
	struct job *second;

	abandon(first);
	second = start(world, 1, STORE_WRITE, 0, 32 * KIB); /* two parts, of which one waits */
	run(world);
	assert_true(is_in_store(world, second));
	finish(world, second, -EIO);
	assert_int_equal(path_status(&second->request), PATH_PENDING);
	finish(world, first, 0);
	assert_false(second->live);
	assert_int_equal(second->request.error, -EIO);
	assert_int_equal(world->part_count, 0);
	world_close(world);
}

static void random_step(struct world *world)
{
	static const enum store_op all[] = { STORE_WRITE, STORE_WRITE, STORE_TRIM, STORE_ZERO };
	struct job *job = &world->jobs[below(world, REQUESTS)];
	uint64_t offset = below(world, 64) * KIB;

	switch (below(world, 6)) {
	case 0:
	case 1:
		if (!job->live) {
			(void)start(world, (uint32_t)below(world, REACTORS),
				all[below(world, ARRAY_COUNT(all))], offset,
				(1 + below(world, 48)) * KIB);
		}
		break;
	case 2:
		if (job->live && !job->abandoned) {
			abandon(job);
		}
		break;
	case 3:
		if (job->live && job->request.started_bytes == job->request.length) {
			orphan(job);
		}
		break;
	default:
		if (world->part_count > 0) {
			finish_part(world, (uint32_t)below(world, world->part_count),
				below(world, 20) == 0 ? -EIO : 0);
		}
		break;
	}
	if (below(world, 2) == 0) {
		run(world);
	}
}

TEST(test_nothing_is_overtaken_and_everything_ends)
{
	uint64_t waits = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct world *world = world_open(seed);

		if (seed % 2 == 0) { /* trims and zeroes take turns */
			world->store.info.caps |= STORE_CAP_CALLS;
		}
		for (int i = 0; i < STEPS; i++) {
			random_step(world);
		}
		run(world);
		while (world->part_count > 0) {
			finish_part(world, (uint32_t)below(world, world->part_count), 0);
			run(world);
		}
		for (uint32_t i = 0; i < REQUESTS; i++) {
			assert_false(world->jobs[i].live);
		}
		waits += world->reactors[0].export.late_waits;
		waits += world->reactors[1].export.late_waits;
		world_close(world);
	}
	assert_true(waits > SEEDS);
}
