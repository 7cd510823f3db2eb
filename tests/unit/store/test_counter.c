// SPDX-License-Identifier: Apache-2.0
/*
 * A memory store that was asked to counts how far its reads have come: what it told of is there and
 * stays, and nobody else pays for it.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../stores.h"
#include "lab/lab.h"
#include "sim/sim.h"
#include "store/store.h"

enum { STORE_BYTES = 4 << 20, READ_OFFSET = 12345 };

struct counted {
	struct store_part part;
	bool submitting;
	bool is_done;
	int result;
	uint32_t progress_count;
	uint64_t reported;
};

struct world {
	struct ring *ring;
	struct store *store;
	struct store_queue *queue;
};

static uint8_t content[STORE_BYTES];
static uint8_t memory[STORE_BYTES];

static void world_open(struct world *world, const struct store_options *options)
{
	struct error error;

	memset(content, 0, sizeof(content));
	sim_start(&(struct sim_options){ .seed = 1 });
	if (ring_create(&(struct ring_options){ 0 }, &world->ring, &error) != 0 ||
		store_open(options, &world->store, &error) != 0 ||
		store_queue_create(world->store, world->ring, &world->queue, &error) != 0) {
		fail_msg("%s", error.text);
	}
}

static void world_close(struct world *world)
{
	store_queue_destroy(world->queue);
	store_close(world->store);
	ring_destroy(world->ring);
	sim_stop();
}

static void counted_done(struct store_part *part, int result)
{
	struct counted *counted = container_of(part, struct counted, part);

	assert_false(counted->submitting);
	assert_false(counted->is_done);
	counted->is_done = true;
	counted->result = result;
}

static void counted_progressed(struct store_part *part, uint64_t bytes)
{
	struct counted *counted = container_of(part, struct counted, part);

	assert_false(counted->submitting);
	assert_false(counted->is_done);
	assert_true(bytes > counted->reported && bytes < part->length);
	counted->progress_count++;
	counted->reported = bytes;
	assert_memory_equal(mem_cpu_read(part->memory), content + part->offset, bytes);
}

/* Runs one part; returns after how many turns of the loop it was done. */
static uint32_t run(struct world *world, struct counted *counted, enum store_op op, uint64_t offset,
	uint64_t length, bool wants_progress)
{
	uint32_t turns = 0;

	memset(counted, 0, sizeof(*counted));
	counted->part.op = op;
	counted->part.offset = offset;
	counted->part.length = length;
	counted->part.memory = mem_of(op == STORE_WRITE ? content + offset : memory);
	counted->part.done = counted_done;
	counted->part.progressed = wants_progress ? counted_progressed : NULL;
	counted->submitting = true;
	store_submit(world->queue, &counted->part);
	counted->submitting = false;
	while (!counted->is_done) {
		assert_int_equal(ring_turn(world->ring, true), 1);
		turns++;
	}
	return turns;
}

static void fill(struct world *world)
{
	struct counted counted;

	/* From the middle to the end: what was never written reads as zeroes. */
	for (size_t i = STORE_BYTES / 2; i < STORE_BYTES; i++) {
		content[i] = (uint8_t)(i * 7 + i / 4096);
	}
	run(world, &counted, STORE_WRITE, STORE_BYTES / 2, STORE_BYTES / 2, false);
	assert_int_equal(counted.result, 0);
}

static void test_steps_are_told_and_right(void **state)
{
	struct store_options options = { .path = "memory:4M" };
	struct world world;
	struct counted counted;

	GMB_UNUSED(state);
	stores_set(&options, "progress", "counter");
	world_open(&world, &options);
	store_options_fini(&options);
	assert_true(store_info(world.store)->has_progress);
	fill(&world);
	memset(memory, 0xee, sizeof(memory));
	run(&world, &counted, STORE_READ, READ_OFFSET, STORE_BYTES - READ_OFFSET, true);
	assert_int_equal(counted.result, 0);
	assert_true(counted.progress_count >= 16);
	assert_memory_equal(memory, content + READ_OFFSET, STORE_BYTES - READ_OFFSET);
	run(&world, &counted, STORE_READ, 0, 4096, true);
	assert_int_equal(counted.progress_count, 0);
	world_close(&world);
}

static void test_others_can_work_between_the_steps(void **state)
{
	struct store_options options = { .path = "memory:4M" };
	struct world world;
	struct counted counted;

	GMB_UNUSED(state);
	stores_set(&options, "progress", "counter");
	world_open(&world, &options);
	store_options_fini(&options);
	assert_true(run(&world, &counted, STORE_READ, 0, STORE_BYTES, true) > 16);
	/* Who does not want to know gets all of it in one go, and so does a write. */
	assert_int_equal(run(&world, &counted, STORE_READ, 0, STORE_BYTES, false), 1);
	assert_int_equal(counted.progress_count, 0);
	assert_int_equal(run(&world, &counted, STORE_WRITE, 0, STORE_BYTES, true), 1);
	assert_int_equal(counted.progress_count, 0);
	world_close(&world);
}

static void test_an_impossible_read_is_told_nothing_of(void **state)
{
	struct store_options options = { .path = "memory:4M" };
	struct world world;
	struct counted counted;

	GMB_UNUSED(state);
	stores_set(&options, "progress", "counter");
	world_open(&world, &options);
	store_options_fini(&options);
	run(&world, &counted, STORE_READ, 1, STORE_BYTES, true);
	assert_int_equal(counted.result, -EIO);
	assert_int_equal(counted.progress_count, 0);
	world_close(&world);
}

/* What is in memory already has not come from the disk that the pace stands for. */
static void test_a_pace_hides_the_counter_below(void **state)
{
	struct store_options options = { .path = "memory:4M" };
	struct world world;
	struct counted counted;
	uint64_t begin_ns;

	GMB_UNUSED(state);
	stores_set(&options, "pace", "1M");
	stores_set(&options, "progress", "counter");
	world_open(&world, &options);
	store_options_fini(&options);
	begin_ns = sim_now_ns();
	run(&world, &counted, STORE_READ, 0, 1 << 20, true);
	assert_int_equal(counted.result, 0);
	assert_int_equal(counted.progress_count, 63);
	assert_true(sim_now_ns() - begin_ns >= UINT64_C(1000000000));
	world_close(&world);
}

static void test_only_who_is_asked_counts(void **state)
{
	struct store_options options = { .path = "memory:4M" };
	struct store *store = NULL;
	struct error error;

	GMB_UNUSED(state);
	assert_int_equal(store_open(&options, &store, &error), 0);
	assert_false(store_info(store)->has_progress);
	store_close(store);
	store = NULL;
	stores_set(&options, "progress", "counter");
	options.path = "null:4M";
	assert_int_equal(store_open(&options, &store, &error), -EOPNOTSUPP);
	assert_null(store);
	assert_non_null(strstr(error.text, "'null:4M' cannot count"));
	stores_set(&options, "pace", "1M");
	assert_int_equal(store_open(&options, &store, &error), 0);
	assert_true(store_info(store)->has_progress);
	store_options_fini(&options);
	store_close(store);
}

/* Also of a store that counts by itself. */
static void test_nothing_is_told_when_that_is_wanted(void **state)
{
	static const char *const paces[] = { NULL, "1M" };
	struct store *store;

	GMB_UNUSED(state);
	for (size_t i = 0; i < ARRAY_COUNT(paces); i++) {
		struct store_options options = { .path = "memory:4M" };

		stores_set(&options, "progress", "completion");
		if (paces[i] != NULL) {
			stores_set(&options, "pace", paces[i]);
		}
		assert_int_equal(store_open(&options, &store, NULL), 0);
		assert_false(store_info(store)->has_progress);
		store_options_fini(&options);
		store_close(store);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_steps_are_told_and_right),
		cmocka_unit_test(test_others_can_work_between_the_steps),
		cmocka_unit_test(test_an_impossible_read_is_told_nothing_of),
		cmocka_unit_test(test_a_pace_hides_the_counter_below),
		cmocka_unit_test(test_only_who_is_asked_counts),
		cmocka_unit_test(test_nothing_is_told_when_that_is_wanted),
	};

	stores_register();
	store_register(&knobs_store_kind);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
