// SPDX-License-Identifier: Apache-2.0
/*
 * Flash stores of a few small segments: what the collector wins with one is little, beside what its
 * checkpoints write. Random changes of a nearly full disk with snapshots end, one after the other,
 * and what is read is what was written. Each store is of another geometry; the arguments are how
 * many there are, and the first seed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flash_world.h"

#include "../stores.h"
#include "base/bytes.h"
#include "base/log.h"
#include "unit.h"

enum {
	SEEDS = 60,
	BLOCKS_MAX = 8192,
	WRITE_MAX = 24,		 /* blocks */
	OPERATIONS = 400,	 /* of one seed */
	STEPS_MAX = 1000 * 1000, /* of one operation: many times the whole store */
};

/* Seeds that have failed. */
static const uint64_t known_seeds[] = {
	1216, /* nodes of a checkpoint alone fill what has to be collected next */
};

static uint64_t model[BLOCKS_MAX];

static uint32_t block_count;
static uint64_t last_tag;
static bool refuses;
static struct {
	uint32_t refused;
	uint32_t made;
	uint32_t deleted;
} totals;

static uint8_t memory[WRITE_MAX * FLASH_BLOCK_BYTES];

static int last_result;

static void part_done(struct store_part *part, int result)
{
	last_result = result;
	part->op = STORE_OP_COUNT;
}

static int submit(struct world *world, struct store_part *part)
{
	part->done = part_done;
	part->memory = mem_of(memory);
	store_submit(world->queues[0], part);
	for (uint64_t steps = 0; part->op != STORE_OP_COUNT; steps++) {
		if (steps == STEPS_MAX || !sim_step()) {
			fail_msg("a part does not end");
		}
	}
	return last_result;
}

static void change(struct world *world)
{
	static const enum store_op ops[] = { STORE_WRITE, STORE_WRITE, STORE_WRITE, STORE_WRITE,
		STORE_WRITE, STORE_WRITE, STORE_WRITE, STORE_TRIM, STORE_FLUSH };
	uint32_t most = sim_between(0, 1) == 0 ? 1 : WRITE_MAX;
	uint32_t first = (uint32_t)sim_between(0, block_count - 1);
	uint32_t count = MIN((uint32_t)sim_between(1, most), block_count - first);
	struct store_part part = { .op = ops[sim_between(0, ARRAY_COUNT(ops) - 1)],
		.flags = sim_between(0, 2) == 0 ? STORE_FUA : 0 };
	uint64_t tag = part.op == STORE_WRITE ? ++last_tag : 0;
	int result;

	if (part.op == STORE_FLUSH) {
		part.flags = 0;
		count = 0;
	}
	part.offset = count == 0 ? 0 : (uint64_t)first << FLASH_BLOCK_SHIFT;
	part.length = (uint64_t)count << FLASH_BLOCK_SHIFT;
	for (uint32_t i = 0; i < count * BLOCK_SECTORS; i++) {
		sector_fill(memory + (size_t)i * SECTOR, tag);
	}
	result = submit(world, &part);
	if (result == -ENOSPC && refuses) {
		totals.refused++;
		/* Some of it may be there. */
		part = (struct store_part){ .op = STORE_READ,
			.offset = (uint64_t)first << FLASH_BLOCK_SHIFT,
			.length = (uint64_t)count << FLASH_BLOCK_SHIFT };
		assert_int_equal(count > 0 ? submit(world, &part) : 0, 0);
		for (uint32_t i = 0; i < count; i++) {
			uint64_t was = sector_tag(memory + (size_t)i * FLASH_BLOCK_BYTES);

			assert_true(was == tag || was == model[first + i]);
			model[first + i] = was;
		}
		return;
	}
	assert_int_equal(result, 0);
	for (uint32_t i = first; i < first + count; i++) {
		model[i] = tag;
	}
}

static void check(struct store_queue *queue, const uint64_t *tags)
{
	for (uint32_t first = 0, count; first < block_count; first += count) {
		struct store_part part = {
			.op = STORE_READ, .done = part_done, .memory = mem_of(memory)
		};

		count = MIN(block_count - first, (uint32_t)WRITE_MAX);
		part.offset = (uint64_t)first << FLASH_BLOCK_SHIFT;
		part.length = (uint64_t)count << FLASH_BLOCK_SHIFT;
		store_submit(queue, &part);
		world_part_await(&part);
		assert_int_equal(last_result, 0);
		for (uint32_t i = 0; i < count; i++) {
			assert_true(sector_tag(memory + (size_t)i * FLASH_BLOCK_BYTES) ==
				    tags[first + i]);
		}
	}
}

/* --- snapshots ------------------------------------------------------------------------------- */

static uint32_t snapshot_count(struct world *world)
{
	struct store_snapshot list[STORE_SNAPSHOTS_MAX];

	return store_snapshots(world->store, list);
}

/* --- a run ----------------------------------------------------------------------------------- */

static void make_disk(void)
{
	uint32_t segments = (uint32_t)sim_between(40, 140);
	uint32_t blocks = (uint32_t)sim_between(16, sim_between(0, 1) == 0 ? 17 : 40);
	struct sim_disk_options options = { .size = (FLASH_SEGMENTS_AT + segments * blocks) *
						    (uint64_t)FLASH_BLOCK_BYTES,
		.direct_offset_align = 512 };
	struct store_create create = { .segment_bytes = (uint64_t)blocks * FLASH_BLOCK_BYTES,
		.spare_percent = sim_between(0, 1) == 0 ? 7 : 15 };
	struct error error;

	printf("%u segments of %u blocks, %u%%\n", segments, blocks, create.spare_percent);
	(void)sim_disk_create("disk", &options);
	if (store_create("flash:disk", &create, &error) < 0) {
		fail_msg("%u segments of %u blocks: %s", segments, blocks, error.text);
	}
}

static void delete_first(struct world *world)
{
	struct store_snapshot list[STORE_SNAPSHOTS_MAX];

	assert_true(store_snapshots(world->store, list) > 0);
	assert_int_equal(world_snapshot(world, STORE_SNAPSHOT_DELETE, list[0].name), 0);
	totals.deleted++;
}

static void write_all(struct world *world)
{
	enum { COUNT = 8 };

	for (uint32_t first = 0, count; first < block_count; first += count) {
		struct store_part part = { .op = STORE_WRITE, .flags = STORE_FUA };

		count = MIN((uint32_t)COUNT, block_count - first);
		part.offset = (uint64_t)first << FLASH_BLOCK_SHIFT;
		part.length = (uint64_t)count << FLASH_BLOCK_SHIFT;
		last_tag++;
		for (uint32_t k = 0; k < count * BLOCK_SECTORS; k++) {
			sector_fill(memory + (size_t)k * SECTOR, last_tag);
		}
		for (uint32_t k = 0; k < count; k++) {
			model[first + k] = last_tag;
		}
		assert_int_equal(submit(world, &part), 0);
	}
}

/* All is there; and without snapshots there is room for everything. */
static void reopen(const char *name)
{
	static uint64_t kept[BLOCKS_MAX];
	static struct world world;

	memcpy(kept, model, sizeof(kept));
	world_open(&world, name, false, NULL);
	check(world.queues[0], model);
	while (snapshot_count(&world) > 0) {
		delete_first(&world);
	}
	write_all(&world);
	check(world.queues[0], model);
	world_close(&world);
	memcpy(model, kept, sizeof(kept));
}

static void run(uint64_t seed)
{
	static struct world world;
	uint32_t snapshots = 0;

	sim_start(&(struct sim_options){ .seed = seed, .faults = { .jitter = true } });
	refuses = seed % 2 == 0;
	world_on_full = refuses ? "refuse" : "drop";
	world_cache = seed / 2 % 2 == 0 ? "128K" : "0";
	make_disk();
	world_open(&world, "disk", false, NULL);
	block_count = (uint32_t)(store_size(world.store) >> FLASH_BLOCK_SHIFT);
	assert_in_range(block_count, 1, BLOCKS_MAX);
	memset(model, 0, sizeof(model));
	last_tag = 0;
	write_all(&world);
	for (uint32_t i = 0; i < OPERATIONS; i++) {
		if (sim_between(0, 40) == 0 && snapshot_count(&world) < STORE_SNAPSHOTS_MAX) {
			char name[16];
			int result;

			snprintf(name, sizeof(name), "v%u", snapshots++);
			result = world_snapshot(&world, STORE_SNAPSHOT_CREATE, name);
			assert_true(result == 0 || result == -ENOSPC || result == -EMLINK);
			totals.made += result == 0;
		} else if (refuses && last_result == -ENOSPC && sim_between(0, 4) == 0) {
			assert_true(snapshot_count(&world) > 0);
			delete_first(&world);
		}
		change(&world);
	}
	check(world.queues[0], model);
	world_kill_copy("disk", "killed");
	world_discard(&world);
	reopen("killed");
	reopen("disk");
	sim_stop();
}

/* --- two cases that random changes seldom reach ---------------------------------------------- */

static void open_small(struct world *world, const char *cache)
{
	struct sim_disk_options options = { .size = 60ULL * 16 * FLASH_BLOCK_BYTES,
		.direct_offset_align = 512 };
	struct store_create create = { .segment_bytes = 16 * FLASH_BLOCK_BYTES,
		.spare_percent = 15 };
	struct error error;

	sim_start(&(struct sim_options){ .seed = 1 });
	(void)sim_disk_create("disk", &options);
	assert_int_equal(store_create("flash:disk", &create, &error), 0);
	refuses = true;
	world_on_full = "refuse";
	world_cache = cache;
	world_open(world, "disk", false, NULL);
	block_count = (uint32_t)(store_size(world->store) >> FLASH_BLOCK_SHIFT);
	assert_in_range(block_count, 1, BLOCKS_MAX);
	last_tag = 0;
	write_all(world);
}

static void close_small(struct world *world)
{
	check(world->queues[0], model);
	world_end(world);
}

/* A checkpoint ends although several of its steps have only pages without a block. Such a page is
 * not written, so the end of a write does not start the next step. */
TEST(test_a_checkpoint_of_pages_of_zeroes_ends)
{
	static struct world world;
	struct store_part trim = { .op = STORE_TRIM };

	open_small(&world, "0");
	assert_int_equal(world_snapshot(&world, STORE_SNAPSHOT_CREATE, "full"), 0);
	trim.length = (uint64_t)block_count << FLASH_BLOCK_SHIFT;
	assert_int_equal(submit(&world, &trim), 0);
	memset(model, 0, sizeof(model));
	assert_int_equal(world_snapshot(&world, STORE_SNAPSHOT_CREATE, "empty"), 0);
	close_small(&world);
}

static int write_block(struct world *world, uint32_t block)
{
	struct store_part part = { .op = STORE_WRITE,
		.offset = (uint64_t)block << FLASH_BLOCK_SHIFT,
		.length = FLASH_BLOCK_BYTES };

	last_tag++;
	for (uint32_t k = 0; k < BLOCK_SECTORS; k++) {
		sector_fill(memory + (size_t)k * SECTOR, last_tag);
	}
	model[block] = last_tag;
	return submit(world, &part);
}

/* A flush that empties the cache fails because writes continue. They stay in the cache, so the next
 * flush succeeds. */
TEST(test_a_flush_succeeds_after_a_refused_one)
{
	static struct world world;
	struct store_part quiesce = {
		.op = STORE_FLUSH, .flags = STORE_QUIESCE, .done = part_done
	};

	open_small(&world, "128K");
	assert_int_equal(write_block(&world, 0), 0);
	store_submit(world.queues[0], &quiesce);
	assert_int_equal(write_block(&world, 1), 0);
	assert_int_equal(quiesce.op, STORE_FLUSH); /* still in flight */
	world_part_await(&quiesce);
	assert_int_equal(last_result, -EBUSY);
	assert_int_equal(submit(&world, &(struct store_part){ .op = STORE_FLUSH }), 0);
	close_small(&world);
}

/* --- the tests ------------------------------------------------------------------------------- */

static uint64_t seeds = SEEDS;
static uint64_t first_seed = 1;

TEST(test_changes_of_small_stores_end)
{
	for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++) {
		printf("seed %llu: ", (unsigned long long)seed);
		run(seed);
	}
	for (size_t i = 0; i < ARRAY_COUNT(known_seeds); i++) {
		printf("seed %llu: ", (unsigned long long)known_seeds[i]);
		run(known_seeds[i]);
	}
	printf("%u snapshots made, %u deleted, %u changes refused\n", totals.made, totals.deleted,
		totals.refused);
	/* Else there was room enough. */
	assert_true(totals.made > seeds && totals.refused > seeds);
}

int main(int argc, char **argv)
{
	log_set_level(LOG_LEVEL_ERROR);
	seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : SEEDS;
	first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	return unit_run(NULL, NULL);
}
