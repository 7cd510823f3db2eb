// SPDX-License-Identifier: Apache-2.0
/*
 * What a memory store does in one turn of the loop has a bound, however many long operations are in
 * flight: between any two turns only so much has changed, and short ones need not wait for the end
 * of long ones.
 */
#include <string.h>

#include "../stores.h"
#include "sim/sim.h"
#include "store/store.h"
#include "unit.h"

#define GIB (UINT64_C(1) << 30)

enum {
	DISK_BYTES = 16 << 20,
	PAGE = 4096,
	LONG_COUNT = 32,
	LONG_BYTES = DISK_BYTES / LONG_COUNT,
	MAPS_COUNT = 16,
	/* What nobody minds waiting for. */
	WRITTEN_PER_TURN_MAX = 512 << 10,
	RELEASED_PER_TURN_MAX = 4 << 20,
	MAPPED_GIB_PER_TURN_MAX = 4,
};

struct world {
	struct ring *ring;
	struct ring *observer_ring;
	struct store *store;
	struct store_queue *queue;
	struct store_queue *observer;
	uint32_t done_count;
};

struct job {
	struct store_part part;
	struct world *world;
	struct job *next; /* submitted when this one is done */
	bool submitting;
	bool is_done;
	struct store_extent extents[4];
};

static uint8_t content[DISK_BYTES];

static void world_open(struct world *world, const char *path)
{
	struct store_options options = { .path = path };
	struct error error;

	memset(world, 0, sizeof(*world));
	sim_start(&(struct sim_options){ .seed = 1 });
	if (ring_create(&(struct ring_options){ 0 }, &world->ring, &error) != 0 ||
		ring_create(&(struct ring_options){ 0 }, &world->observer_ring, &error) != 0 ||
		store_open(&options, &world->store, &error) != 0 ||
		store_queue_create(world->store, world->ring, &world->queue, &error) != 0 ||
		store_queue_create(world->store, world->observer_ring, &world->observer, &error) !=
			0) {
		fail_msg("%s", error.text);
	}
}

static void world_close(struct world *world)
{
	store_queue_destroy(world->queue);
	store_queue_destroy(world->observer);
	store_close(world->store);
	ring_destroy(world->ring);
	ring_destroy(world->observer_ring);
	sim_stop();
}

static void job_submit(struct job *job)
{
	job->submitting = true;
	store_submit(job->world->queue, &job->part);
	job->submitting = false;
}

static void job_done(struct store_part *part, int result)
{
	struct job *job = container_of(part, struct job, part);

	assert_int_equal(result, 0);
	assert_false(job->submitting);
	assert_false(job->is_done);
	job->is_done = true;
	job->world->done_count++;
	if (job->next != NULL) {
		job_submit(job->next);
	}
}

static void job_init(
	struct job *job, struct world *world, enum store_op op, uint64_t offset, uint64_t length)
{
	memset(job, 0, sizeof(*job));
	job->world = world;
	job->part = (struct store_part){ .op = op,
		.offset = offset,
		.length = length,
		.done = job_done,
		.extents = job->extents,
		.extent_max = ARRAY_COUNT(job->extents) };
}

/* Reads and writes on a thread of its own, as it were: the turns of the first are not touched. */
static void observe(struct world *world, enum store_op op, uint64_t offset, uint64_t length)
{
	struct job job;

	job_init(&job, world, op, offset, length);
	job.part.memory = mem_of(content);
	store_submit(world->observer, &job.part);
	while (!job.is_done) {
		ring_turn(world->observer_ring, true);
	}
	world->done_count--;
}

static void fill(struct world *world)
{
	memset(content, 0xa5, sizeof(content));
	observe(world, STORE_WRITE, 0, DISK_BYTES);
}

static uint64_t zeroed_bytes(struct world *world)
{
	uint64_t bytes = 0;

	observe(world, STORE_READ, 0, DISK_BYTES);
	for (size_t at = 0; at < DISK_BYTES; at += PAGE) {
		bytes += content[at] == 0 ? PAGE : 0;
	}
	return bytes;
}

/* Clears all of the disk with operations that are in flight together. */
static void check_clearing(enum store_op op, uint32_t flags, uint64_t per_turn_max)
{
	static struct job jobs[LONG_COUNT];
	struct world world;
	uint64_t before = 0;

	world_open(&world, "memory:16M");
	fill(&world);
	for (uint32_t i = 0; i < LONG_COUNT; i++) {
		job_init(&jobs[i], &world, op, (uint64_t)i * LONG_BYTES, LONG_BYTES);
		jobs[i].part.flags = flags;
		job_submit(&jobs[i]);
	}
	while (world.done_count < LONG_COUNT) {
		uint64_t now;

		ring_turn(world.ring, true);
		now = zeroed_bytes(&world);
		assert_in_range(now - before, 0, per_turn_max);
		before = now;
	}
	assert_int_equal(before, DISK_BYTES);
	world_close(&world);
}

TEST(test_zeroes_that_stay_provisioned)
{
	check_clearing(STORE_ZERO, STORE_NO_HOLE, WRITTEN_PER_TURN_MAX);
}

TEST(test_zeroes_that_make_holes)
{
	check_clearing(STORE_ZERO, 0, RELEASED_PER_TURN_MAX);
}

TEST(test_trims)
{
	check_clearing(STORE_TRIM, 0, RELEASED_PER_TURN_MAX);
}

static uint64_t mapped_bytes(const struct job *job)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < job->part.extent_count; i++) {
		bytes += job->extents[i].length;
	}
	return bytes;
}

static void check_map(const struct job *job)
{
	static const struct store_extent expected[] = {
		{ .length = 5 * GIB, .flags = STORE_EXTENT_HOLE | STORE_EXTENT_ZERO },
		{ .length = 1 << 20, .flags = 0 },
		{ .length = 27 * GIB - (1 << 20), .flags = STORE_EXTENT_HOLE | STORE_EXTENT_ZERO },
	};

	assert_int_equal(job->part.extent_count, ARRAY_COUNT(expected));
	for (size_t i = 0; i < ARRAY_COUNT(expected); i++) {
		assert_int_equal(job->extents[i].length, expected[i].length);
		assert_int_equal(job->extents[i].flags, expected[i].flags);
	}
}

TEST(test_maps_of_a_huge_disk)
{
	static struct job jobs[MAPS_COUNT];
	struct world world;
	uint64_t before = 0;

	world_open(&world, "memory:32G");
	observe(&world, STORE_WRITE, 5 * GIB, 1 << 20);
	for (uint32_t i = 0; i < MAPS_COUNT; i++) {
		job_init(&jobs[i], &world, STORE_EXTENTS, 0, 32 * GIB);
		job_submit(&jobs[i]);
	}
	while (world.done_count < MAPS_COUNT) {
		uint64_t now = 0;

		ring_turn(world.ring, true);
		for (uint32_t i = 0; i < MAPS_COUNT; i++) {
			now += mapped_bytes(&jobs[i]);
		}
		assert_in_range(now - before, 0, MAPPED_GIB_PER_TURN_MAX * GIB);
		before = now;
	}
	for (uint32_t i = 0; i < MAPS_COUNT; i++) {
		check_map(&jobs[i]);
	}
	world_close(&world);
}

/* One at the beginning of each of the long ranges, all at once. */
static void submit_zeroes(struct job jobs[LONG_COUNT], struct world *world, uint64_t bytes)
{
	for (uint32_t i = 0; i < LONG_COUNT; i++) {
		job_init(&jobs[i], world, STORE_ZERO, (uint64_t)i * LONG_BYTES, bytes);
		jobs[i].part.flags = STORE_NO_HOLE;
		job_submit(&jobs[i]);
	}
}

TEST(test_a_short_zero_overtakes_long_ones)
{
	static struct job jobs[LONG_COUNT];
	struct job small;
	struct job following;
	struct world world;

	world_open(&world, "memory:16M");
	fill(&world);
	submit_zeroes(jobs, &world, LONG_BYTES);
	job_init(&small, &world, STORE_ZERO, 1, PAGE);
	job_init(&following, &world, STORE_TRIM, PAGE, PAGE);
	small.next = &following;
	job_submit(&small);
	while (!following.is_done) {
		ring_turn(world.ring, true);
	}
	assert_true(small.is_done);
	assert_int_equal(world.done_count, 2);
	while (world.done_count < LONG_COUNT + 2) {
		ring_turn(world.ring, true);
	}
	world_close(&world);
}

/* What is short enough is as quick as ever: nobody waits for more turns than one. */
TEST(test_short_ones_share_a_turn)
{
	static struct job jobs[LONG_COUNT];
	struct world world;

	world_open(&world, "memory:16M");
	fill(&world);
	submit_zeroes(jobs, &world, PAGE);
	ring_turn(world.ring, true);
	assert_int_equal(world.done_count, LONG_COUNT);
	assert_int_equal(zeroed_bytes(&world), (uint64_t)LONG_COUNT * PAGE);
	world_close(&world);
}
