// SPDX-License-Identifier: Apache-2.0
/*
 * Wear of a flash store: half of the disk is written once, the other half again and again. All
 * segments must be erased about as often, and moving what never changes must cost next to nothing.
 * And a store that finds much to erase does not keep its clients waiting for that.
 */

#include "flash_world.h"

#include "../stores.h"
#include "store/flash/flash.h"
#include "unit.h"

enum {
	WRITE_BLOCKS = WORLD_SEGMENT_BLOCKS - 1, /* a record that fills a segment */
	ERASES_MEAN = 300,
	SPREAD_MAX =
		220, /* 32 below the mean a segment may be moved, one of 128 that are written */
};

static uint8_t bytes[WRITE_BLOCKS * FLASH_BLOCK_BYTES];

static void write_at(struct world *world, uint64_t block)
{
	struct store_part part = { .op = STORE_WRITE,
		.flags = STORE_FUA,
		.offset = block * FLASH_BLOCK_BYTES,
		.length = sizeof(bytes),
		.memory = mem_of(bytes),
		.done = world_part_done };

	world_submit(world, &part);
}

TEST(test_all_segments_are_erased_about_as_often)
{
	static struct world world;
	const struct flash *flash;
	uint64_t first;
	uint64_t blocks;
	uint64_t cold_moved = 0;

	world_start(&world, 1);
	flash = container_of(world.store, struct flash, base);
	blocks = flash->anchor.geometry.disk_blocks / WRITE_BLOCKS * WRITE_BLOCKS;
	for (uint64_t block = 0; block < blocks; block += WRITE_BLOCKS) {
		write_at(&world, block);
	}
	first = flash->counters.moved_blocks;
	for (uint64_t i = 0; flash->counters.erases_mean < ERASES_MEAN; i++) {
		/* In turn: segments of this half are empty when they are collected. */
		write_at(&world, i * WRITE_BLOCKS % (blocks / 2 / WRITE_BLOCKS * WRITE_BLOCKS));
	}
	cold_moved = flash->counters.moved_blocks - first;
	print_message("erased %llu to %llu times, mean %llu; %llu blocks written, %llu moved\n",
		(unsigned long long)flash->counters.erases_min,
		(unsigned long long)flash->counters.erases_max,
		(unsigned long long)flash->counters.erases_mean,
		(unsigned long long)flash->counters.written_blocks, (unsigned long long)cold_moved);
	assert_true(flash->counters.erases_min + SPREAD_MAX > ERASES_MEAN);
	assert_true(flash->counters.erases_max < ERASES_MEAN + SPREAD_MAX);
	assert_in_range(cold_moved * 100, 1, flash->counters.written_blocks);
	world_end(&world);
}

TEST(test_a_start_does_not_wait_for_all_that_is_to_be_erased)
{
	static struct world world;
	struct store_part part = { .op = STORE_TRIM, .done = world_part_done };
	const struct flash *flash;
	uint64_t left;

	world_start(&world, 1);
	part.length = store_size(world.store);
	for (uint64_t at = 0; at + sizeof(bytes) <= part.length; at += sizeof(bytes)) {
		write_at(&world, at / FLASH_BLOCK_BYTES);
	}
	world_submit(&world, &part);
	world_close(&world); /* its checkpoint empties the segments, and nobody erases them */
	world_open(&world, "disk", false, NULL);
	flash = container_of(world.store, struct flash, base);
	left = flash->table.state_counts[GC_ERASING];
	print_message("%llu segments erased by the start, %llu left\n",
		(unsigned long long)flash->counters.erased_segments, (unsigned long long)left);
	assert_true(left > 0);
	for (uint64_t i = 0; flash->table.state_counts[GC_ERASING] > 0; i++) {
		assert_true(i < 2 * left); /* each write leaves time for one */
		write_at(&world, 0);
	}
	world_end(&world);
}
