// SPDX-License-Identifier: Apache-2.0
/*
 * A store that must be started and that one ring owns, with queues on two rings and a filter above
 * it. Linked with either ring.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "keeper_kind.h"
#include "stores.h"
#include "unit.h"

enum { RINGS = 2, BYTES = 64 << 10, PARTS = 64, BLOCK = 512, TURN_NS = 1000000 };

struct job {
	struct store_part part;
	struct world *world;
	uint32_t ring_idx;
	uint64_t number;
	uint8_t data[BLOCK];
	bool done;
	int result;
};

struct world {
	struct ring *rings[RINGS]; /* the first one is the owner's */
	struct store *store;
	struct store_queue *queues[RINGS];
	struct store_start start;
	void *memory;
	bool started;
	uint32_t running; /* jobs */
	uint32_t last[RINGS];
	bool destroys; /* the queue of the last job, from inside its done */
	struct job jobs[RINGS][PARTS];
};

static void has_started(struct store_start *start)
{
	struct world *world = container_of(start, struct world, start);

	assert_false(world->started);
	world->started = true;
}

static void turn(struct world *world)
{
	for (uint32_t i = 0; i < RINGS; i++) {
		ring_turn_limited(world->rings[i], TURN_NS);
	}
}

static void create_queue(struct world *world, uint32_t ring_idx)
{
	struct error error;

	assert_int_equal(store_queue_create(world->store, world->rings[ring_idx],
				 &world->queues[ring_idx], &error),
		0);
}

static struct world *world_open(const char *fault)
{
	struct world *world = calloc(1, sizeof(*world));
	struct store_options options = { .path = "keeper:64K" };
	struct error error;

	assert_non_null(world);
	if (fault != NULL) {
		stores_set(&options, "fault", fault);
	}
	assert_int_equal(store_open(&options, &world->store, &error), 0);
	store_options_fini(&options);
	for (uint32_t i = 0; i < RINGS; i++) {
		assert_int_equal(
			ring_create(&(struct ring_options){ 0 }, &world->rings[i], &error), 0);
	}
	assert_true(store_needs_start(world->store));
	assert_int_equal(store_start_permille(world->store), 0);
	assert_int_equal(store_epoch(world->store), 0);
	assert_int_equal(store_budget(world->store), BYTES);
	world->memory = calloc(1, BYTES);
	world->start.ring = world->rings[0];
	world->start.memory = mem_of(world->memory);
	world->start.done = has_started;
	return world;
}

static void world_start(struct world *world)
{
	uint32_t before = 0;
	uint32_t steps = 0;

	create_queue(world, 1); /* before and after are the same */
	store_start(world->store, &world->start);
	while (!world->started) {
		uint32_t permille = store_start_permille(world->store);

		assert_true(permille >= before && permille < 1000);
		steps += permille > before;
		before = permille;
		turn(world);
	}
	assert_true(steps > 0);
	assert_int_equal(world->start.result, 0);
	assert_int_equal(store_start_permille(world->store), 1000);
	assert_true(store_epoch(world->store) == KEEPER_EPOCH);
	create_queue(world, 0);
}

static void world_close(struct world *world)
{
	for (uint32_t i = 0; i < RINGS; i++) {
		store_queue_destroy(world->queues[i]);
		ring_destroy(world->rings[i]);
	}
	store_close(world->store);
	free(world->memory);
	free(world);
}

static void job_done(struct store_part *part, int result)
{
	struct job *job = container_of(part, struct job, part);
	struct world *world = job->world;

	assert_false(job->done);
	job->done = true;
	job->result = result;
	/* Of one queue, in order, but for those that the filter answers. */
	assert_true(job->number == world->last[job->ring_idx]++ || part->op == STORE_READ);
	if (--world->running == 0 && world->destroys) {
		store_queue_destroy(world->queues[job->ring_idx]);
		world->queues[job->ring_idx] = NULL;
	}
}

static struct job *submit(
	struct world *world, uint32_t ring_idx, uint32_t number, enum store_op op, uint64_t offset)
{
	struct job *job = &world->jobs[ring_idx][number];

	job->world = world;
	job->ring_idx = ring_idx;
	job->number = number;
	job->done = false;
	job->part = (struct store_part){ .op = op,
		.offset = offset,
		.length = op == STORE_FLUSH ? 0 : BLOCK,
		.memory = op == STORE_FLUSH ? MEM_NONE : mem_of(job->data),
		.requester = 1,
		.done = job_done };
	world->running++;
	store_submit(world->queues[ring_idx], &job->part);
	assert_false(job->done);
	return job;
}

static void finish(struct world *world)
{
	while (world->running > 0) {
		turn(world);
	}
	memset(world->last, 0, sizeof(world->last));
}

TEST(test_parts_of_all_rings_go_to_the_owner)
{
	struct world *world = world_open("read:EIO:nth=5");
	const struct keeper_counters *counters;
	uint32_t failed = 0;

	world_start(world);
	/* All of a ring in the same block, where the last one counts, and each in one of its own.
	 */
	for (uint32_t i = 0; i < PARTS; i++) {
		for (uint32_t k = 0; k < RINGS; k++) {
			memset(world->jobs[k][i].data, (int)(i + 1 + k * PARTS), BLOCK);
			submit(world, k, i, STORE_WRITE,
				(uint64_t)BLOCK * (i % 2 == 0 ? k : 2 + 2 * (i / 2) + k));
		}
		if (i % 8 == 7) {
			turn(world);
		}
	}
	finish(world);
	for (uint32_t i = 0; i < PARTS / 2; i++) {
		for (uint32_t k = 0; k < RINGS; k++) {
			submit(world, 1 - k, i, STORE_READ,
				(uint64_t)BLOCK * (i == 0 ? k : 2 + 2 * i + k));
		}
	}
	finish(world);
	for (uint32_t i = 0; i < PARTS / 2; i++) {
		for (uint32_t k = 0; k < RINGS; k++) {
			const struct job *job = &world->jobs[1 - k][i];
			uint32_t wanted = (i == 0 ? PARTS - 1 : 2 * i + 2) + k * PARTS;

			assert_true(job->result == 0 || job->result == -EIO);
			failed += job->result != 0;
			if (job->result == 0) {
				assert_int_equal(job->data[0], wanted);
				assert_int_equal(job->data[BLOCK - 1], wanted);
			}
		}
	}
	assert_int_equal(failed, 1);
	/* Parts that the filter keeps are seen by nobody else; the owner's do not travel. */
	assert_null(keeper_counters(world->queues[1]->inner));
	counters = keeper_counters(world->queues[0]->inner);
	assert_non_null(counters);
	assert_int_equal(counters->parts, 2 * PARTS + PARTS - 1);
	assert_in_range(counters->sent, PARTS + PARTS / 2 - 1, PARTS + PARTS / 2);
	assert_int_equal(counters->anonymous, 0);
	world_close(world);
}

TEST(test_a_queue_may_go_with_its_last_part)
{
	for (uint32_t count = 1; count <= PARTS; count *= 2) {
		struct world *world = world_open(NULL);

		world_start(world);
		world->destroys = true;
		for (uint32_t i = 0; i < count; i++) {
			submit(world, 1, i, i % 2 == 0 ? STORE_FLUSH : STORE_READ, 0);
		}
		finish(world);
		assert_null(world->queues[1]);
		world_close(world);
	}
}

TEST(test_a_start_is_given_up)
{
	struct world *world = world_open("any:EIO");

	store_start(world->store, &world->start);
	turn(world);
	atomic_store(&world->start.cancelled, true);
	while (!world->started) {
		turn(world);
	}
	assert_int_equal(world->start.result, -ECANCELED);
	assert_string_equal(world->start.error.text, "it was not waited for");
	assert_true(store_start_permille(world->store) < 1000);
	world_close(world);
}

int main(void)
{
	store_register(&keeper_store_kind);
	return unit_run(NULL, NULL);
}
