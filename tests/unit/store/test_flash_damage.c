// SPDX-License-Identifier: Apache-2.0
/*
 * A flash store whose disk was damaged, is full, or cannot be written; and whose clients change
 * what they write.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "flash_world.h"

#include "../stores.h"
#include "unit.h"

enum {
	BLOCKS_MAX = WORLD_SEGMENTS * WORLD_SEGMENT_BLOCKS,
	START_PAGES = 700,
	SINGLE_STEPS_MAX = 50000, /* of a write of one block */
	HELD_BLOCKS = 15,  /* a record of a small segment; enough to be written without a copy */
	HELD_RECORDS = 12, /* more than are in flight at once */
	ROT_WRITES = 15,
	ROT_BLOCKS_MAX = 24, /* of one of them */
	ROT_LAST_BLOCKS = 70,
};

static uint64_t now; /* counts writes */

/* A crash has torn one anchor. One more, while the store is started, must not tear the other. */
TEST(test_one_good_anchor_is_not_written_first)
{
	static struct world world;
	static const uint8_t torn[SECTOR] = { 1 };

	for (uint64_t seed = 1; seed <= 120; seed++) {
		sim_start(&(struct sim_options){ .seed = seed });
		world_make_disk();
		sim_disk_poke(sim_disk_find("disk"), seed % 2 * FLASH_BLOCK_BYTES + SECTOR, torn,
			sizeof(torn));
		world_open(&world, "disk", false, "again");
		world_close(&world);
		if (sim_disk_find("again") != NULL) {
			world_open(&world, "again", false, NULL);
			world_close(&world);
		}
		sim_stop();
	}
}

TEST(test_one_unreadable_anchor)
{
	static struct world world;

	for (uint64_t i = 0; i < FLASH_ANCHORS; i++) {
		struct sim_disk *disk;

		sim_start(&(struct sim_options){ .seed = i });
		world_make_disk();
		disk = sim_disk_find("disk");
		sim_disk_set_bad(disk, i * FLASH_BLOCK_BYTES, FLASH_BLOCK_BYTES, true, false);
		world_open(&world, "disk", false, NULL);
		world_end(&world);
	}
}

/* Its checkpoint needs several records, which cannot be written. */
TEST(test_a_start_that_fails_leaves_nothing_in_flight)
{
	static struct world world;
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	struct sim_disk_options options = { .size = UINT64_C(1) << 31 };
	struct store_create create = { 0 };
	struct store_part part = { .done = world_part_done };
	struct error error;

	sim_start(&(struct sim_options){ .seed = 1 });
	(void)sim_disk_create("disk", &options);
	assert_int_equal(store_create("flash:disk", &create, &error), 0);
	world_open(&world, "disk", false, NULL);
	for (uint64_t page = 0; page < START_PAGES; page++) {
		part.op = STORE_WRITE;
		part.offset = page * FLASH_NODE_ENTRIES * FLASH_BLOCK_BYTES;
		part.length = sizeof(bytes);
		part.memory = mem_of(bytes);
		world_submit(&world, &part);
	}
	world_close(&world);
	sim_disk_set_bad(sim_disk_find("disk"), FLASH_SEGMENTS_AT * FLASH_BLOCK_BYTES, options.size,
		false, true);
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	world_begin(&world, "disk", false, false);
	world_await(&world);
	assert_int_equal(world.start.result, -EIO);
	assert_non_null(strstr(world.start.error.text, "cannot write the checkpoint of 'disk'"));
	world_end(&world);
}

static void write_durably(struct world *world, uint64_t block, uint32_t count)
{
	static uint8_t bytes[HELD_BLOCKS * FLASH_BLOCK_BYTES];
	struct store_part part = { .op = STORE_WRITE,
		.flags = STORE_FUA,
		.offset = block << FLASH_BLOCK_SHIFT,
		.length = (uint64_t)count << FLASH_BLOCK_SHIFT,
		.memory = mem_of(bytes),
		.done = world_part_done };
	uint32_t steps = 0;

	store_submit(world->queues[0], &part);
	while (part.op == STORE_WRITE) {
		assert_true(sim_step());
		assert_true(++steps < SINGLE_STEPS_MAX);
	}
}

/* Each block in a record of its own, so that half of the log is headers: there is room for all of
 * them only because the collector writes longer records. */
TEST(test_single_blocks_fill_the_disk)
{
	static struct world world;
	uint64_t blocks;

	world_start(&world, 1);
	blocks = store_size(world.store) >> FLASH_BLOCK_SHIFT;
	for (uint64_t i = 0; i < 3 * blocks; i++) {
		write_durably(&world, i * 7 % blocks, 1);
	}
	world_end(&world);
}

/* It does so also while a write waits that needs a record of its own. There is nothing to win but
 * headers: each block was written once. */
TEST(test_a_write_of_one_record_gets_the_space_of_headers)
{
	static struct world world;
	uint64_t blocks;

	world_start(&world, 1);
	blocks = store_size(world.store) >> FLASH_BLOCK_SHIFT;
	for (uint64_t i = 0; i < blocks / 2; i++) {
		write_durably(&world, i, 1);
	}
	for (uint64_t i = blocks / 2; i + HELD_BLOCKS <= blocks; i += HELD_BLOCKS) {
		write_durably(&world, i, HELD_BLOCKS);
	}
	world_end(&world);
}

static void write_ended(struct store_part *part, int result)
{
	assert_true(result == 0 || result == -ENOSPC);
	part->op = result == 0 ? STORE_OP_COUNT : STORE_FLUSH;
}

/* What cannot be read cannot be moved, and keeps its segment: writes fail, and do not wait. */
TEST(test_a_disk_that_damage_has_filled_refuses_writes)
{
	static struct world world;
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	struct store_part part = { .done = write_ended, .memory = mem_of(bytes) };
	uint64_t blocks;
	uint64_t i = 0;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		sim_start(&(struct sim_options){ .seed = seed, .faults = { .jitter = true } });
		world_make_disk();
		world_open(&world, "disk", seed % 2 == 0, NULL);
		blocks = store_size(world.store) >> FLASH_BLOCK_SHIFT;
		for (i = 0, part.op = STORE_OP_COUNT; part.op == STORE_OP_COUNT; i++) {
			if (i == blocks) {
				sim_disk_set_bad(sim_disk_find("disk"),
					FLASH_SEGMENTS_AT * FLASH_BLOCK_BYTES, UINT64_C(1) << 40,
					true, false);
			}
			assert_true(i < 4 * blocks);
			part.op = STORE_WRITE;
			part.offset = (i < blocks ? i : sim_between(0, blocks - 1))
				      << FLASH_BLOCK_SHIFT;
			part.length = sizeof(bytes);
			store_submit(world.queues[0], &part);
			while (part.op == STORE_WRITE) {
				assert_true(sim_step());
			}
		}
		assert_true(i > blocks);
		world_end(&world);
	}
}

/* Half of each segment in turn cannot be read for some time. When all that was there has been
 * overwritten, the segment is free, and collected again after its next use. */
TEST(test_segments_are_used_again_after_damage)
{
	static struct world world;
	uint64_t blocks;

	world_start(&world, 1);
	blocks = store_size(world.store) >> FLASH_BLOCK_SHIFT;
	for (uint64_t i = 0; i < 2 * WORLD_SEGMENTS; i++) {
		uint64_t segment = FLASH_SEGMENTS_AT + i % WORLD_SEGMENTS * WORLD_SEGMENT_BLOCKS;

		sim_disk_set_bad(sim_disk_find("disk"),
			(segment + WORLD_SEGMENT_BLOCKS / 2) * FLASH_BLOCK_BYTES,
			WORLD_SEGMENT_BLOCKS / 2 * FLASH_BLOCK_BYTES, true, false);
		for (uint64_t k = 0; k < blocks / 4; k++) {
			write_durably(&world, sim_between(0, blocks - 2), 2);
		}
		for (uint64_t k = 0; k + HELD_BLOCKS <= blocks; k += HELD_BLOCKS) {
			write_durably(&world, k, HELD_BLOCKS);
		}
	}
	world_end(&world);
}

/* Another process goes on with the disk if this one fails before it serves. It has opened the store
 * before the first one wrote so much that segments came round again. */
TEST(test_a_quiet_start_writes_nothing)
{
	enum { BYTES = (FLASH_SEGMENTS_AT + BLOCKS_MAX) * FLASH_BLOCK_BYTES, ROUNDS = 3 };
	static struct world worlds[ROUNDS + 1];
	static uint8_t before[BYTES];
	static uint8_t after[BYTES];
	static uint8_t bytes[HELD_BLOCKS * FLASH_BLOCK_BYTES];
	struct store_part part = { .done = world_part_done, .memory = mem_of(bytes) };
	struct sim_disk *disks[ROUNDS + 1];
	uint64_t written = 0;
	char name[32];

	sim_start(&(struct sim_options){ .seed = 3, .faults = { .jitter = true } });
	world_make_disk();
	world_open(&worlds[0], "disk", false, NULL);
	disks[0] = sim_disk_find("disk");
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct world *next = &worlds[i + 1];

		/* Two stores of one disk are not for one process: that of the next one has the
		 * same bytes, then and later. */
		snprintf(name, sizeof(name), "disk%u", i);
		disks[i + 1] = sim_disk_kill_copy(disks[i], name);
		world_prepare(next, name, false, false);
		for (uint32_t k = 0; k < 2 * BLOCKS_MAX / HELD_BLOCKS; k++) {
			part.op = STORE_WRITE;
			part.offset = k % ROUNDS * sizeof(bytes);
			part.length = sizeof(bytes);
			for (size_t at = 0; at < sizeof(bytes); at += SECTOR) {
				sector_fill(bytes + at, written + 1);
			}
			written++;
			world_submit(&worlds[i], &part);
		}
		part.op = STORE_FLUSH;
		part.flags = STORE_QUIESCE;
		part.offset = 0;
		part.length = 0;
		world_submit(&worlds[i], &part);
		part.flags = 0;
		sim_disk_peek(disks[i], 0, before, BYTES);
		sim_disk_poke(disks[i + 1], 0, before, BYTES);
		next->start.is_quiet = true;
		store_start(next->store, &next->start);
		world_await(next);
		assert_int_equal(next->start.result, 0);
		store_let_go(worlds[i].store);
		world_close(&worlds[i]);
		(void)sim_run_until_idle(1000);
		for (uint32_t k = i; k <= i + 1; k++) {
			sim_disk_peek(disks[k], 0, after, BYTES);
			assert_int_equal(memcmp(before, after, BYTES), 0);
		}
		for (uint64_t k = 0; k < ROUNDS; k++) {
			part.op = STORE_READ;
			part.offset = (written - 1 - k) % (2 * BLOCKS_MAX / HELD_BLOCKS) % ROUNDS *
				      sizeof(bytes);
			part.length = sizeof(bytes);
			world_submit(next, &part);
			assert_int_equal(sector_tag(bytes), written - k);
		}
	}
	world_end(&worlds[ROUNDS]);
}

/* A client that shares its memory changes it before the write has ended. Its checksums would not
 * fit what is on the disk, and the log would end there. */
TEST(test_memory_that_changes_harms_no_other_write)
{
	static struct world world;
	static uint8_t shared[HELD_BLOCKS * FLASH_BLOCK_BYTES];
	static uint8_t own[FLASH_BLOCK_BYTES];
	struct store_part part = { .done = world_part_done };

	sim_start(&(struct sim_options){ .seed = 1, .faults = { .jitter = true } });
	world_make_disk();
	world_open(&world, "disk", false, NULL);
	part.op = STORE_WRITE;
	part.length = sizeof(shared);
	part.memory = mem_limit(mem_of(shared), ~(uint32_t)MEM_STABLE);
	sector_fill(shared, 1);
	store_submit(world.queues[0], &part);
	memset(shared, 0xee, sizeof(shared));
	world_part_await(&part);
	sector_fill(own, 2);
	part.op = STORE_WRITE;
	part.offset = sizeof(shared);
	part.length = sizeof(own);
	part.memory = mem_of(own);
	world_submit(&world, &part);
	world_kill_copy("disk", "killed");
	world_close(&world);
	world_open(&world, "killed", false, NULL);
	part.op = STORE_READ;
	memset(own, 0, sizeof(own));
	world_submit(&world, &part);
	assert_int_equal(sector_tag(own), 2);
	part.op = STORE_READ;
	part.offset = 0;
	part.length = sizeof(shared);
	part.memory = mem_of(shared);
	world_submit(&world, &part);
	world_end(&world);
}

static int read_result;

static void read_done(struct store_part *part, int result)
{
	read_result = result;
	part->op = STORE_OP_COUNT;
}

/* Who waits for a write that fails may use the memory again: no record is written from it any more,
 * or the simulation would notice that the read changes it. */
TEST(test_memory_is_not_held_after_an_error)
{
	static struct world world;
	static uint8_t bytes[HELD_RECORDS * HELD_BLOCKS * FLASH_BLOCK_BYTES];
	struct store_part part = { .done = world_part_done, .memory = mem_of(bytes) };
	static uint8_t block[FLASH_BLOCK_BYTES];
	uint32_t failed = 0;

	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct store_part other = { .op = STORE_WRITE,
			.length = FLASH_BLOCK_BYTES,
			.memory = mem_of(block),
			.done = read_done };

		sim_start(&(struct sim_options){ .seed = seed, .faults = { .jitter = true } });
		world_make_disk();
		world_open(&world, "disk", seed % 2 == 0, NULL);
		part.done = world_part_done;
		part.op = STORE_WRITE;
		part.offset = sizeof(bytes);
		part.length = sizeof(bytes);
		world_submit(&world, &part);
		sim_set_faults(&(struct sim_faults){ .jitter = true, .no_space_ppm = 100000 });
		part.done = read_done;
		part.op = STORE_WRITE;
		part.offset = 0;
		/* The last part in a store is held back in any case. */
		store_submit(world.queues[0], &part);
		store_submit(world.queues[0], &other);
		world_part_await(&part);
		sim_set_faults(&(struct sim_faults){ .jitter = true });
		part.op = STORE_READ;
		part.offset = sizeof(bytes);
		world_submit(&world, &part);
		part.op = STORE_FLUSH;
		part.offset = 0;
		part.length = 0;
		world_submit(&world, &part);
		failed += read_result < 0;
		world_part_await(&other);
		world_end(&world);
	}
	assert_in_range(failed, 1, 59);
}

static uint64_t expected[BLOCKS_MAX];

static void rot_submit(struct world *world, enum store_op op, uint32_t first, uint32_t count)
{
	static uint8_t bytes[ROT_LAST_BLOCKS * FLASH_BLOCK_BYTES];
	struct store_part part = { .done = world_part_done, .op = op, .memory = mem_of(bytes) };

	part.offset = (uint64_t)first * FLASH_BLOCK_BYTES;
	part.length = (uint64_t)count * FLASH_BLOCK_BYTES;
	now++;
	for (uint32_t i = 0; op == STORE_WRITE && i < count * BLOCK_SECTORS; i++) {
		sector_fill(bytes + (size_t)i * SECTOR, now);
		expected[first + i / BLOCK_SECTORS] = now;
	}
	world_submit(world, &part);
}

/* A log behind a checkpoint, all of it flushed. */
static void rot_write(struct world *world, uint32_t blocks)
{
	memset(expected, 0, sizeof(expected));
	for (uint32_t i = 0; i < ROT_WRITES; i++) {
		uint32_t count = (uint32_t)sim_between(1, ROT_BLOCKS_MAX);

		rot_submit(world, STORE_WRITE, (uint32_t)sim_between(0, blocks - count), count);
		if (i % 3 == 2) {
			rot_submit(world, STORE_FLUSH, 0, 0);
		}
	}
	/* As much as is followed by an empty record. */
	rot_submit(world, STORE_WRITE, 0, ROT_LAST_BLOCKS);
	rot_submit(world, STORE_FLUSH, 0, 0);
}

struct rot_found {
	uint32_t faults; /* of a check */
	bool lost;	 /* one of them says so */
	uint32_t wrong;	 /* blocks */
	uint32_t errors;
};

/* What a client reads. */
static void rot_read(struct rot_found *rot, const char *name, uint32_t blocks)
{
	static struct world world;
	static uint8_t bytes[ROT_BLOCKS_MAX * FLASH_BLOCK_BYTES];

	world_begin(&world, name, false, true);
	world_await(&world);
	assert_int_equal(world.start.result, 0);
	for (uint32_t first = 0, count, single = 0; first < blocks;) {
		struct store_part part = { .done = read_done, .memory = mem_of(bytes) };

		count = first < single ? 1 : MIN((uint32_t)ROT_BLOCKS_MAX, blocks - first);
		part.offset = (uint64_t)first * FLASH_BLOCK_BYTES;
		part.length = (uint64_t)count * FLASH_BLOCK_BYTES;
		store_submit(world.queues[0], &part);
		while (part.op == STORE_READ) {
			assert_true(sim_step());
		}
		if (read_result < 0 && count > 1) {
			single = first + count; /* which of them is it? */
			continue;
		}
		rot->errors += read_result < 0;
		for (uint32_t i = 0; read_result == 0 && i < count; i++) {
			rot->wrong += sector_tag(bytes + (size_t)i * FLASH_BLOCK_BYTES) !=
				      expected[first + i];
		}
		first += count;
	}
	world_discard(&world);
}

static struct rot_found *rot_checked;

static void take_fault(const char *text)
{
	rot_checked->faults++;
	rot_checked->lost |= strstr(text, "flushed records from there on are lost") != NULL;
}

static void rot_check(struct rot_found *rot, const char *name)
{
	rot_checked = rot;
	world_check(name, take_fault);
}

static void expect_refused(const char *name, const char *reason)
{
	static struct world world;

	world_begin(&world, name, false, false);
	world_await(&world);
	assert_int_equal(world.start.result, -EUCLEAN);
	assert_non_null(strstr(world.start.error.text, reason));
	world_discard(&world);
}

/* Each block of a log is damaged in turn: what is read is right, or an error, or what was flushed
 * is said to be lost, and the store refused. */
TEST(test_damage_to_what_was_flushed_is_told)
{
	static struct world world;
	uint64_t size = world_disk_options().size;
	uint32_t refused = 0;
	uint32_t errors = 0;
	uint32_t blocks;

	world_start(&world, 1);
	world_kill_copy("disk", "before");
	blocks = (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES);
	rot_write(&world, blocks);
	world_kill_copy("disk", "rot");
	for (uint64_t at = FLASH_SEGMENTS_AT * FLASH_BLOCK_BYTES; at < size;
		at += FLASH_BLOCK_BYTES) {
		uint8_t before[FLASH_BLOCK_BYTES];
		uint8_t after[FLASH_BLOCK_BYTES];
		struct rot_found rot = { 0 };

		sim_disk_peek(sim_disk_find("before"), at, before, sizeof(before));
		sim_disk_peek(sim_disk_find("rot"), at, after, sizeof(after));
		if (memcmp(before, after, sizeof(after)) == 0) {
			continue;
		}
		after[300] ^= 4;
		sim_disk_poke(sim_disk_find("rot"), at, after, sizeof(after));
		rot_check(&rot, "rot");
		rot_read(&rot, "rot", blocks);
		if ((rot.wrong > 0 && !rot.lost) || (rot.errors > 0 && rot.faults == 0)) {
			fail_msg("block %llu: %u blocks are wrong, %u errors, %u faults",
				(unsigned long long)at / FLASH_BLOCK_BYTES, rot.wrong, rot.errors,
				rot.faults);
		}
		if (rot.lost) {
			expect_refused("rot", "flushed records from there on are lost");
		}
		refused += rot.lost;
		errors += rot.errors;
		after[300] ^= 4;
		sim_disk_poke(sim_disk_find("rot"), at, after, sizeof(after));
	}
	print_message("%u headers, %u blocks\n", refused, errors);
	assert_true(refused >= ROT_WRITES && errors >= ROT_LAST_BLOCKS);
	world_end(&world);
}

/* --- snapshots ------------------------------------------------------------------------------- */

enum {
	SNAPSHOT_NODES = 5
}; /* of a disk of two pages: two of level 2 and 1, two pages, the table */

static void snapshot_change(struct world *world, uint32_t blocks, uint32_t seed)
{
	for (uint32_t i = 0; i < blocks; i += ROT_BLOCKS_MAX) {
		uint32_t first = (i + seed) % blocks;

		rot_submit(
			world, STORE_WRITE, first, MIN((uint32_t)ROT_BLOCKS_MAX, blocks - first));
	}
	rot_submit(world, STORE_FLUSH, 0, 0);
}

/* The nodes that only the snapshot has, in the order of levels. */
static uint32_t snapshot_nodes(const char *name, uint64_t nodes[SNAPSHOT_NODES])
{
	struct sim_disk *disk = sim_disk_find(name);
	struct flash_anchor anchor;
	struct flash_node node;
	struct error error;
	uint8_t block[FLASH_BLOCK_BYTES];
	uint64_t top;
	uint32_t count = 2;

	sim_disk_peek(disk, 0, block, sizeof(block));
	assert_int_equal(flash_anchor_decode(block, &anchor, &error), 0);
	top = (uint64_t)le32toh(anchor.snapshots[0].top[0].block) << FLASH_BLOCK_SHIFT;
	assert_true(top != 0 && anchor.snapshots[0].top[0].block != anchor.top[0].block);
	nodes[0] = top;
	sim_disk_peek(disk, top, &node, sizeof(node));
	nodes[1] = (uint64_t)le32toh(node.entries[0].block) << FLASH_BLOCK_SHIFT;
	sim_disk_peek(disk, nodes[1], &node, sizeof(node));
	for (uint32_t i = 0; i < anchor.geometry.page_count; i++) {
		nodes[count++] = (uint64_t)le32toh(node.entries[i].block) << FLASH_BLOCK_SHIFT;
	}
	assert_int_equal(count, SNAPSHOT_NODES);
	return anchor.geometry.leaf_count;
}

static bool snapshot_opens(struct world *world)
{
	struct store *snapshot;
	struct error error;
	int result = store_snapshot_open(world->store, "v", &snapshot, &error);

	if (result == 0) {
		store_close(snapshot);
		return true;
	}
	assert_int_equal(result, -EUCLEAN);
	assert_non_null(strstr(error.text, "gmblock snapshot delete"));
	return false;
}

/* A disk with the damaged snapshot is read and written as before, the snapshot can be deleted, and
 * then all is as if it had never been there. */
static void snapshot_damaged(uint32_t blocks, bool refuses, bool is_needed)
{
	static struct world world;
	struct rot_found rot = { 0 };

	world_on_full = refuses ? "refuse" : "drop";
	rot_check(&rot, "rot");
	assert_true(rot.faults > 0);
	rot = (struct rot_found){ 0 };
	rot_read(&rot, "rot", blocks);
	assert_true(rot.wrong == 0 && rot.errors == 0);
	world_open(&world, "rot", false, NULL);
	assert_int_equal(snapshot_opens(&world), !is_needed);
	for (uint32_t i = 0; i < 4; i++) {
		rot_submit(&world, STORE_WRITE, i * 7, 3);
	}
	world_kill_copy("rot", "rot-killed");
	world_discard(&world);
	rot_read(&rot, "rot", blocks);
	rot_read(&rot, "rot-killed", blocks);
	assert_true(rot.wrong == 0 && rot.errors == 0);
	world_open(&world, "rot", false, NULL);
	sim_disk_set_bad(
		sim_disk_find("rot"), 0, 0, false, false); /* what is written can be read */
	if (!refuses) {					   /* it goes when there is no room */
		for (uint32_t i = 0; i < 6; i++) {
			snapshot_change(&world, blocks, i * 5);
		}
	}
	assert_true(world_snapshot(&world, STORE_SNAPSHOT_DELETE, "v") == 0 || !refuses);
	for (uint32_t i = 0; i < 6; i++) {
		snapshot_change(&world, blocks, i * 11);
	}
	world_discard(&world);
	rot_check(&rot, "rot");
	assert_int_equal(rot.faults, 0);
	rot_read(&rot, "rot", blocks);
	assert_true(rot.wrong == 0 && rot.errors == 0);
	world_on_full = "drop";
}

TEST(test_damage_to_a_snapshot_is_not_one_to_the_disk)
{
	for (uint32_t i = 0; i < SNAPSHOT_NODES * 4; i++) {
		static struct world world;
		uint64_t nodes[SNAPSHOT_NODES];
		uint64_t at;
		uint32_t blocks;
		uint32_t leafs;
		uint8_t bytes[SECTOR];
		bool is_needed; /* to open it */
		uint32_t count; /* blocks that are damaged */

		sim_start(&(struct sim_options){ .seed = i + 1 });
		world_make_disk();
		world_open(&world, "disk", false, NULL);
		blocks = (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES);
		memset(expected, 0, sizeof(expected));
		snapshot_change(&world, blocks * 3 / 5, 0);
		rot_submit(&world, STORE_WRITE, blocks - 4, 4);
		assert_int_equal(world_snapshot(&world, STORE_SNAPSHOT_CREATE, "v"), 0);
		rot_submit(&world, STORE_WRITE, 1, 20);
		rot_submit(&world, STORE_WRITE, blocks - 3, 2);
		world_close(&world);
		leafs = snapshot_nodes("disk", nodes);
		is_needed = i % SNAPSHOT_NODES < 2; /* with its second copy; the table is counted */
		count = is_needed ? 2 : 1;
		assert_int_equal(leafs, SNAPSHOT_NODES - 3);
		at = nodes[i % SNAPSHOT_NODES];
		(void)sim_disk_kill_copy(sim_disk_find("disk"), "rot");
		if (i / SNAPSHOT_NODES % 2 == 1) {
			sim_disk_set_bad(
				sim_disk_find("rot"), at, count * FLASH_BLOCK_BYTES, true, false);
		}
		for (; i / SNAPSHOT_NODES % 2 == 0 && count > 0; count--, at += FLASH_BLOCK_BYTES) {
			sim_disk_peek(sim_disk_find("rot"), at + SECTOR, bytes, sizeof(bytes));
			bytes[77] ^= 1;
			sim_disk_poke(sim_disk_find("rot"), at + SECTOR, bytes, sizeof(bytes));
		}
		snapshot_damaged(blocks, i / SNAPSHOT_NODES / 2 == 0, is_needed);
		sim_stop();
	}
}

/* Where the headers of the first and the last two records behind the checkpoint are, and the place
 * of the next one. */
static void rot_headers(uint64_t headers[4])
{
	uint64_t seq = 0;
	struct flash_anchor anchor;
	struct error error;
	uint8_t block[FLASH_BLOCK_BYTES];

	sim_disk_peek(sim_disk_find("rot"), 0, block, sizeof(block));
	assert_int_equal(flash_anchor_decode(block, &anchor, &error), 0);
	headers[0] = flash_segment_at(&anchor.geometry, anchor.next.segment) + anchor.next.block;
	headers[0] *= FLASH_BLOCK_BYTES;
	for (uint64_t at = FLASH_SEGMENTS_AT * FLASH_BLOCK_BYTES; at < world_disk_options().size;
		at += FLASH_BLOCK_BYTES) {
		struct flash_record record;

		sim_disk_peek(sim_disk_find("rot"), at, block, sizeof(block));
		if (flash_record_look(block, &anchor, &record) && record.seq > seq) {
			seq = record.seq;
			headers[1] = headers[2];
			headers[2] = at;
			headers[3] = at / FLASH_BLOCK_BYTES + record.block_count;
			if (record.next_segment != FLASH_NO_SEGMENT) {
				headers[3] =
					flash_segment_at(&anchor.geometry, record.next_segment);
			}
			headers[3] *= FLASH_BLOCK_BYTES;
		}
	}
}

/* A log that is flushed, whose server was killed: the store "rot". Returns its blocks. */
static uint32_t rot_make(struct world *world, uint64_t headers[4])
{
	uint32_t blocks;

	world_start(world, 1);
	blocks = (uint32_t)(store_size(world->store) / FLASH_BLOCK_BYTES);
	rot_write(world, blocks);
	world_kill_copy("disk", "rot");
	rot_headers(headers);
	return blocks;
}

static void rot_hide(uint64_t at)
{
	sim_disk_set_bad(sim_disk_find("rot"), at, FLASH_BLOCK_BYTES, true, false);
}

/* A block that cannot be read hides no record around it, nor what a later one says of another. */
TEST(test_a_bad_block_hides_no_records)
{
	static struct world world;
	static const uint8_t torn[SECTOR] = { 1 };
	uint64_t headers[4] = { 0 };

	(void)rot_make(&world, headers);
	assert_in_range(headers[2] - headers[1], 3 * FLASH_BLOCK_BYTES, 15 * FLASH_BLOCK_BYTES);
	for (int i = 0; i < 2; i++) {
		struct rot_found rot = { 0 };

		rot_hide(headers[i] + FLASH_BLOCK_BYTES);
		rot_read(&rot, "rot", (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES));
		assert_true(rot.wrong == 0 && rot.errors <= 1);
	}
	sim_disk_poke(sim_disk_find("rot"), headers[1], torn, sizeof(torn));
	expect_refused("rot", "flushed records from there on are lost");
	world_end(&world);
}

/* Where a header cannot be read there may have been a record, or none. Who opens the store is told
 * what is known, and can read what came before, or go on from there. */
TEST(test_a_header_that_cannot_be_read_ends_the_log)
{
	static struct world world;
	static const char *const reasons[] = { "cannot be read",
		"flushed records from there on are lost", "unless its server ended before",
		"unless its server ended before" };
	uint64_t headers[4] = { 0 };
	uint32_t blocks;

	blocks = rot_make(&world, headers);
	for (int i = 0; i < 4; i++) {
		struct rot_found rot = { 0 };

		rot_hide(headers[i]);
		expect_refused("rot", "cannot be read");
		expect_refused("rot", reasons[i]);
		rot_check(&rot, "rot");
		assert_true(rot.faults > 0 && rot.lost == (i < 2));
		rot_read(&rot, "rot", blocks);
		/* The last record is empty. */
		assert_true(rot.errors == 0 && (rot.wrong == 0) == (i >= 2));
	}
	world_close(&world);
	world_repairs = STORE_REPAIR_LOSS;
	world_open(&world, "rot", false, NULL);
	world_repairs = 0;
	rot_submit(&world, STORE_WRITE, 0, 1);
	world_close(&world);
	rot_read(&(struct rot_found){ 0 }, "rot", blocks);
	sim_stop();
}

/* The cache file of a killed server says which records it had written: nothing was answered where
 * the next one would be, but what it had written is needed. */
TEST(test_the_end_that_a_cache_file_tells_need_not_be_read)
{
	static struct world world;
	uint64_t headers[4] = { 0 };
	struct rot_found rot = { 0 };
	uint32_t blocks;

	world_cache = "128K";
	blocks = rot_make(&world, headers);
	rot_hide(headers[2]);
	expect_refused("rot", "cannot be read");
	rot_hide(headers[3]);
	world_close(&world);
	world_open(&world, "rot", false, NULL);
	world_close(&world);
	rot_read(&rot, "rot", blocks);
	assert_true(rot.wrong == 0 && rot.errors == 0);
	world_cache = "0";
	sim_stop();
}
