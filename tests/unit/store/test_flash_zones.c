// SPDX-License-Identifier: Apache-2.0
/*
 * A flash store on a simulated zoned device: which devices it takes, and what becomes of damaged
 * anchors, of a zone that cannot be reset, and of a copy on a device without zones. What crashes do
 * is in test_flash_crash.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "flash_world.h"

#include "../stores.h"
#include "disk/disk.h"
#include "store/flash/flash.h"
#include "unit.h"

enum { ZONES = 30, ZONE_BLOCKS = 32, BLOCKS_MAX = ZONES * ZONE_BLOCKS };

static struct sim_disk_options zoned(void)
{
	const uint64_t zone_bytes = ZONE_BLOCKS * FLASH_BLOCK_BYTES;

	return (struct sim_disk_options){ .size = ZONES * zone_bytes,
		.direct_offset_align = 512,
		.is_block = true,
		.zone_bytes = zone_bytes };
}

static void begin(const struct sim_disk_options *options)
{
	sim_start(&(struct sim_options){ .seed = 1 });
	(void)sim_disk_create("disk", options);
}

static void make(bool force)
{
	struct store_create create = { .force = force, .spare_percent = 7 };
	struct error error;

	if (store_create("flash:disk", &create, &error) < 0) {
		fail_msg("%s", error.text);
	}
}

static void expect_refusal(
	const struct sim_disk_options *options, uint64_t segment_bytes, const char *words)
{
	struct store_create create = { .segment_bytes = segment_bytes };
	struct error error;

	begin(options);
	assert_true(store_create("flash:disk", &create, &error) < 0);
	if (strstr(error.text, words) == NULL) {
		fail_msg("'%s' is not in: %s", words, error.text);
	}
	sim_stop();
}

TEST(test_zones_that_do_not_suit_are_refused_with_the_reason)
{
	struct sim_disk_options options = zoned();

	options.zone_capacity = 15 * FLASH_BLOCK_BYTES;
	expect_refusal(&options, 0, "have a capacity of 60 KiB each; a flash store needs");
	options.zone_bytes = UINT64_C(4) << 30;
	options.zone_capacity = 0;
	options.size = ZONES * options.zone_bytes;
	expect_refusal(&options, 0, "a flash store needs zones of 64 KiB to 2 GiB");
	options = zoned();
	options.zone_capacity = ZONE_BLOCKS * FLASH_BLOCK_BYTES - 512;
	expect_refusal(&options, 0, "in whole blocks of 4 KiB");
	options = zoned();
	options.active_zones_max = 2;
	expect_refusal(&options, 0, "only 2 zones of 'disk' can be active at a time");
	options = zoned();
	options.conventional_zones = 13;
	expect_refusal(&options, 0, "has 17 equal zones in a row; a flash store needs at least 18");
	options.conventional_zones = ZONES;
	expect_refusal(&options, 0, "has no zones for sequential writes");
	options = zoned();
	expect_refusal(&options, 65536,
		"the zones of the device have a capacity of 128 KiB, and each zone must be one "
		"segment");
}

static void write_block(struct world *world, uint64_t block, uint64_t tag)
{
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	struct store_part part = { .op = STORE_WRITE,
		.flags = STORE_FUA,
		.offset = block * FLASH_BLOCK_BYTES,
		.length = sizeof(bytes),
		.memory = mem_of(bytes),
		.done = world_part_done };

	for (int i = 0; i < BLOCK_SECTORS; i++) {
		sector_fill(bytes + (size_t)i * SECTOR, tag);
	}
	world_submit(world, &part);
}

static uint64_t read_block(struct world *world, uint64_t block)
{
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	struct store_part part = { .op = STORE_READ,
		.offset = block * FLASH_BLOCK_BYTES,
		.length = sizeof(bytes),
		.memory = mem_of(bytes),
		.done = world_part_done };

	world_submit(world, &part);
	return sector_tag(bytes);
}

static void expect_unopened(const char *path, enum store_mode mode, const char *words)
{
	struct store_options options = { .path = path, .read_mode = mode, .write_mode = mode };
	struct store *store;
	struct error error;

	assert_true(store_open(&options, &store, &error) < 0);
	if (strstr(error.text, words) == NULL) {
		fail_msg("'%s' is not in: %s", words, error.text);
	}
}

TEST(test_what_is_there_is_not_lost_unasked)
{
	struct sim_disk_options options = zoned();
	struct store_create create = { 0 };
	static struct world world;
	struct error error;

	begin(&options);
	make(false);
	assert_int_equal(store_create("flash:disk", &create, &error), -EEXIST);
	assert_non_null(strstr(error.text, "already contains a flash store"));
	expect_unopened(
		"flash:disk", STORE_MODE_CACHED, "cannot be written through the page cache");
	expect_unopened("disk", STORE_MODE_DIRECT, "export flash:disk");
	world_open(&world, "disk", true, NULL);
	write_block(&world, 3, 7);
	world_close(&world);
	make(true);
	world_open(&world, "disk", true, NULL);
	assert_int_equal(read_block(&world, 3), 0);
	world_end(&world);
}

/* Without a mode writes are direct. */
TEST(test_the_mode_is_direct_unless_said)
{
	struct sim_disk_options options = zoned();
	struct store_options how = { .path = "flash:disk" };
	struct store *store;
	struct error error;

	begin(&options);
	make(false);
	assert_int_equal(store_open(&how, &store, &error), 0);
	assert_true(store_info(store)->write_direct && store_info(store)->read_direct);
	store_close(store);
	sim_stop();
}

/* Where the last anchor of a zone is. */
static uint64_t last_anchor(const struct world *world, uint32_t anchor)
{
	const struct flash *flash = container_of(world->store, struct flash, base);

	return flash->zones.first + anchor * flash->zones.bytes +
	       ((uint64_t)(flash->zones.anchor_blocks[anchor] - 1) << FLASH_BLOCK_SHIFT);
}

/* It has opened the store before the first process has quiesced it, and looks for the anchors
 * again. */
TEST(test_another_process_goes_on_to_read)
{
	static struct world world;
	struct sim_disk_options options = zoned();

	begin(&options);
	make(false);
	world_open(&world, "disk", true, NULL);
	write_block(&world, 1, 7);
	world_close(&world);
	world_prepare(&world, "disk", true, true);
	world.start.is_quiet = true;
	store_start(world.store, &world.start);
	world_await(&world);
	assert_int_equal(world.start.result, 0);
	assert_int_equal(read_block(&world, 1), 7);
	world_end(&world);
}

static uint64_t expected[BLOCKS_MAX]; /* that were written last, all of them durable */
static uint64_t tag_last;

static void write_some(struct world *world, uint32_t count, uint64_t blocks)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t block = sim_between(0, blocks - 1);

		write_block(world, block, ++tag_last);
		expected[block] = tag_last;
	}
}

static void expect_all(struct world *world, uint64_t blocks)
{
	for (uint64_t i = 0; i < blocks; i++) {
		assert_int_equal(read_block(world, i), expected[i]);
	}
}

/* As a server does it before another one takes over. */
static void settle(struct world *world)
{
	struct store_part part = {
		.op = STORE_FLUSH, .flags = STORE_QUIESCE, .done = world_part_done
	};

	world_submit(world, &part);
}

static void look_at_zones(const char *disk, uint64_t seen[ZONES][2])
{
	struct disk_zone zones[ZONES];
	struct error error;
	int fd;

	assert_int_equal(disk_open(disk, true, false, &fd, &error), 0);
	assert_int_equal(disk_zones(fd, 0, zones, ZONES), ZONES);
	disk_close(fd);
	for (uint32_t i = 0; i < ZONES; i++) {
		seen[i][0] = zones[i].written;
		seen[i][1] = zones[i].state;
	}
}

static void start_quietly(struct world *world)
{
	world->start.is_quiet = true;
	store_start(world->store, &world->start);
	world_await(world);
	assert_int_equal(world->start.result, 0);
}

/* The power fails at some steps of its first writes. */
static void expect_no_loss(struct world *world, uint64_t blocks)
{
	static struct world image;
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	struct store_part part = { .op = STORE_WRITE,
		.length = sizeof(bytes),
		.memory = mem_of(bytes),
		.done = world_part_done };

	store_submit(world->queues[0], &part);
	while (part.op == STORE_WRITE) {
		if (sim_between(0, 3) == 0) {
			uint64_t tag = expected[0];

			(void)sim_disk_crash_copy(sim_disk_find(world->name), "image");
			world_freeze(world, true);
			world_open(&image, "image", true, NULL);
			expected[0] = read_block(&image, 0);
			assert_true(expected[0] == tag || expected[0] == 0);
			expect_all(&image, blocks);
			expected[0] = tag;
			world_close(&image);
			sim_disk_destroy(sim_disk_find("image"));
			world_freeze(world, false);
		}
		assert_true(sim_step());
	}
	expected[0] = 0;
}

/* It has opened the store before, and may still fail when it has read it: then the first process
 * goes on. Its log begins in another zone, while no more may be active than before. */
TEST(test_another_process_goes_on_to_write)
{
	enum { ROUNDS = 12 };
	static struct world worlds[ROUNDS + 1];
	struct sim_disk_options options = zoned();
	uint64_t before[ZONES][2];
	uint64_t after[ZONES][2];
	struct store_claim claim;
	uint64_t blocks;
	char name[32];

	options.active_zones_max = 3;
	options.zone_capacity = (ZONE_BLOCKS - 4) * FLASH_BLOCK_BYTES;
	begin(&options);
	make(false);
	world_open(&worlds[0], "disk", true, NULL);
	blocks = store_size(worlds[0].store) >> FLASH_BLOCK_SHIFT;
	assert_in_range(blocks, 1, BLOCKS_MAX);
	assert_null(store_handover(worlds[0].store, &claim));
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct world *next = &worlds[i + 1];

		/* Two stores of one disk are not for one process: the next one has another disk
		 * with the same. */
		snprintf(name, sizeof(name), "disk%u", i);
		for (int tries = 0; tries < 2; tries++) {
			(void)sim_disk_kill_copy(sim_disk_find(worlds[i].name), name);
			world_prepare(next, name, true, false);
			write_some(&worlds[i], i * 13, blocks);
			settle(&worlds[i]);
			(void)sim_disk_kill_copy(sim_disk_find(worlds[i].name), name);
			look_at_zones(name, before);
			start_quietly(next);
			look_at_zones(name, after);
			assert_memory_equal(before, after, sizeof(before));
			expect_all(&worlds[i], blocks);
			if (tries == 0) { /* it fails */
				world_discard(next);
				write_some(&worlds[i], i % 3, blocks);
			}
		}
		store_let_go(worlds[i].store);
		world_close(&worlds[i]);
		if (i % 4 < 3) { /* else the one after it takes what this one has not touched */
			expect_no_loss(next, blocks);
		}
	}
	expect_all(&worlds[ROUNDS], blocks);
	world_end(&worlds[ROUNDS]);
}

/* As real devices have them: 2 GiB from one to the next, with room for 1077 MiB. Each start takes
 * another one, so that they have to be collected. */
TEST(test_zones_of_a_real_size)
{
	enum { STARTS = 60, BLOCKS = 90 };
	struct sim_disk_options options = zoned();
	static struct world world;
	uint64_t moved = world_totals.moved_blocks;
	char name[2][32] = { "disk" };

	options.zone_bytes = UINT64_C(2) << 30;
	options.zone_capacity = UINT64_C(1077) << 20;
	options.size = ZONES * options.zone_bytes;
	options.active_zones_max = 3;
	begin(&options);
	make(false);
	memset(expected, 0, sizeof(expected));
	for (uint32_t i = 0; i < STARTS; i++) {
		world_open(&world, name[i % 2], true, NULL);
		assert_in_range(store_size(world.store) >> 30, 4, ZONES);
		expect_all(&world, BLOCKS);
		write_some(&world, BLOCKS / 10, BLOCKS);
		snprintf(name[(i + 1) % 2], sizeof(name[0]), "disk-%u", i);
		(void)sim_disk_kill_copy(sim_disk_find(name[i % 2]), name[(i + 1) % 2]);
		world_close(&world);
		sim_disk_destroy(sim_disk_find(name[i % 2]));
	}
	assert_true(world_totals.moved_blocks > moved + STARTS / 4); /* zones came round */
	sim_stop();
}

TEST(test_one_anchor_of_two_is_enough_and_an_older_one_is_never_used)
{
	static const uint8_t damage[SECTOR] = { 1 };
	struct sim_disk_options options = zoned();
	static struct world world;
	uint64_t places[FLASH_ANCHORS];

	begin(&options);
	make(false);
	for (uint64_t round = 1; round < 3 * ZONE_BLOCKS; round++) {
		world_open(&world, "disk", true, NULL);
		assert_int_equal(read_block(&world, 0), round - 1);
		write_block(&world, 0, round);
		world_close(&world);
		/* What that has written at its end is behind what was there now. */
		world_begin(&world, "disk", false, true);
		world_await(&world);
		for (uint32_t i = 0; i < FLASH_ANCHORS; i++) {
			struct flash *flash = container_of(world.store, struct flash, base);
			uint8_t block[FLASH_BLOCK_BYTES];

			assert_int_equal(flash_anchor_read(flash->fd, &flash->zones, i, block), 0);
			places[i] = last_anchor(&world, i);
		}
		world_discard(&world);
		if (round % 3 > 0) {
			sim_disk_poke(sim_disk_find("disk"), places[round % 3 - 1] + SECTOR, damage,
				sizeof(damage));
		}
	}
	sim_disk_poke(sim_disk_find("disk"), places[0] + SECTOR, damage, sizeof(damage));
	sim_disk_poke(sim_disk_find("disk"), places[1] + SECTOR, damage, sizeof(damage));
	expect_unopened("flash:disk", STORE_MODE_DIRECT, "cannot be opened: anchor A is");
	sim_stop();
}

/* The first anchors that it had are at its beginning, where a device without zones has its own. */
TEST(test_a_copy_without_zones_is_refused)
{
	struct sim_disk_options options = zoned();
	uint8_t block[FLASH_BLOCK_BYTES];

	begin(&options);
	make(false);
	sim_disk_peek(sim_disk_find("disk"), 0, block, sizeof(block));
	options.zone_bytes = 0;
	sim_disk_poke(sim_disk_create("copy", &options), 0, block, sizeof(block));
	expect_unopened("flash:copy", STORE_MODE_DIRECT, "zones of 128 KiB");
	sim_stop();
}

TEST(test_a_zone_that_cannot_be_reset_is_not_used_any_more)
{
	struct sim_disk_options options = zoned();
	static struct world world;
	uint64_t blocks;
	const struct flash *flash;
	uint64_t tags = 0;

	options.size *= 3; /* so that there is room without that zone */
	begin(&options);
	make(false);
	world_open(&world, "disk", true, NULL);
	flash = container_of(world.store, struct flash, base);
	blocks = flash->anchor.geometry.disk_blocks;
	for (uint64_t i = 0; i < 4 * blocks; i++) {
		write_block(&world, i % blocks, ++tags);
		if (flash->segments[0].erases == 1 && flash->table.segments[0].valid > 0 &&
			flash->zones.segment != 0) { /* its zone is full */
			sim_disk_set_bad(sim_disk_find("disk"), 2 * options.zone_bytes,
				options.zone_bytes, false, true);
		}
	}
	assert_true(flash->segments[0].is_bad);
	assert_int_equal(flash->table.segments[0].state, GC_CLOSED);
	for (uint64_t i = 0; i < blocks; i++) {
		assert_int_equal(read_block(&world, i), tags - blocks + 1 + i);
	}
	world_end(&world);
}

static uint32_t failed_count;
static uint32_t done_count;

static void count_done(struct store_part *part, int result)
{
	failed_count += result == -EIO;
	done_count++;
}

/* Those that wait in line behind the write that fails fail as well, also the first of a zone. */
TEST(test_a_failed_write_fails_all_behind_it_and_loses_nothing_before)
{
	enum { PARTS = 40 };
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	static struct store_part parts[PARTS];
	struct sim_disk_options options = zoned();
	static struct world world;
	const struct flash *flash;

	begin(&options);
	make(false);
	world_open(&world, "disk", true, NULL);
	flash = container_of(world.store, struct flash, base);
	write_block(&world, 1, 11);
	sim_disk_set_bad(sim_disk_find("disk"), flash->zones.first, options.size, false, true);
	for (uint32_t i = 0; i < PARTS; i++) {
		parts[i] = (struct store_part){ .op = STORE_WRITE,
			.flags = STORE_FUA,
			.offset = (i + 1) * FLASH_BLOCK_BYTES,
			.length = sizeof(bytes),
			.memory = mem_of(bytes),
			.done = count_done };
		store_submit(world.queues[0], &parts[i]);
	}
	while (done_count < PARTS) {
		assert_true(sim_step());
	}
	assert_int_equal(failed_count, PARTS);
	assert_int_equal(read_block(&world, 1), 11);
	world_close(&world);
	sim_disk_set_bad(sim_disk_find("disk"), 0, 0, false, false);
	world_open(&world, "disk", true, NULL);
	assert_int_equal(read_block(&world, 1), 11);
	write_block(&world, 2, 12);
	assert_int_equal(read_block(&world, 2), 12);
	world_end(&world);
}
