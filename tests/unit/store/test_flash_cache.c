// SPDX-License-Identifier: Apache-2.0
/*
 * What a flash store finds in its cache file after its server was killed: its own pages, wherever
 * the kill came; and of a file that is damaged, forged, another's or an older machine's nothing,
 * which clients hear of by the epoch.
 */
#include <endian.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "flash_world.h"

#include "../stores.h"
#include "base/bytes.h"
#include "base/log.h"
#include "store/flash/flash.h"
#include "unit.h"

enum {
	BLOCKS = 20, /* of the disk, that the tests use */
	OLD = 1,     /* the first tag of what is in the log */
	NEW = 1001,  /* of what is in the cache */
	SLOTS = 32,
	SNAPSHOTS_MAX = 8,
	FILE_BYTES_MAX = 64 * FLASH_BLOCK_BYTES,
};

static struct world world; /* whose server is killed */
static uint64_t epoch_before;
static const char cache_path[] = "/copy/";

static void transfer(
	struct world *in, enum store_op op, uint32_t block, uint64_t tag, uint32_t flags)
{
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	struct store_part part = { .done = world_part_done,
		.op = op,
		.flags = flags,
		.offset = (uint64_t)block * FLASH_BLOCK_BYTES,
		.length = sizeof(bytes),
		.memory = mem_of(bytes) };

	for (int i = 0; op == STORE_WRITE && i < BLOCK_SECTORS; i++) {
		sector_fill(bytes + (size_t)i * SECTOR, tag);
	}
	world_submit(in, &part);
	if (op == STORE_READ) {
		assert_int_equal(sector_tag(bytes), tag);
	}
}

/* Blocks with old contents in the log and new ones in the cache. */
static void setup(void)
{
	sim_start(&(struct sim_options){ .seed = 1 });
	world_cache = "128K";
	world_make_disk();
	world_open(&world, "disk", false, NULL);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		transfer(&world, STORE_WRITE, i, OLD + i, STORE_FUA);
	}
	for (uint32_t i = 0; i < BLOCKS; i++) {
		transfer(&world, STORE_WRITE, i, NEW + i, 0);
	}
	epoch_before = store_epoch(world.store);
}

static void teardown(void)
{
	world_end(&world);
}

/* What a kill leaves. */
static uint8_t *take(uint64_t *size_out)
{
	if (sim_disk_find("copy") != NULL) {
		sim_disk_destroy(sim_disk_find("copy"));
	}
	world_kill_copy("disk", "copy");
	return sim_shared_find(cache_path, size_out);
}

static struct flash_cache_entry *entries_of(uint8_t *file)
{
	return (void *)(file + FLASH_BLOCK_BYTES);
}

static uint8_t *page_of(uint8_t *file, uint32_t slot)
{
	return file + flash_cache_slots_at(SLOTS) + (uint64_t)slot * FLASH_BLOCK_BYTES;
}

/* The slot of a block. */
static uint32_t find(uint8_t *file, uint32_t block)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		if (entries_of(file)[i].commit != 0 && le64toh(entries_of(file)[i].lpn) == block) {
			return i;
		}
	}
	fail();
	return 0;
}

static void commit(uint8_t *file, uint32_t slot)
{
	struct flash_cache_entry *entry = &entries_of(file)[slot];

	entry->commit =
		htole64(FLASH_CACHE_DIRTY << 32 | flash_cache_crc(entry, page_of(file, slot)));
}

/* Opens what a kill has left. lost: as many of the first blocks have their old contents. */
static void open_copy(struct world *copy, uint32_t lost, bool is_same_epoch)
{
	world_open(copy, "copy", false, NULL);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		transfer(copy, STORE_READ, i, i < lost ? OLD + i : NEW + i, 0);
	}
	assert_int_equal(store_epoch(copy->store) == epoch_before, is_same_epoch);
}

static void expect(uint32_t lost, bool is_same_epoch)
{
	struct world copy;

	open_copy(&copy, lost, is_same_epoch);
	world_close(&copy);
	/* The end in order has written all of it, and needs no file any more. */
	assert_null(sim_shared_find(cache_path, &(uint64_t){ 0 }));
}

TEST(test_a_killed_server_loses_nothing)
{
	uint64_t size;

	setup();
	(void)take(&size);
	assert_int_equal(size, flash_cache_file_bytes(SLOTS));
	expect(0, true);
	/* Of another size: the pages go out, then the file is made anew. */
	world_cache = "256K";
	(void)take(&size);
	expect(0, true);
	world_cache = "0";
	(void)take(&size);
	expect(0, true);
	teardown();
}

TEST(test_no_file_of_others_is_believed)
{
	struct flash_cache_head head;
	struct world copy;
	uint64_t size;
	uint8_t *file;

	setup();
	for (uint32_t at = 0; at < FLASH_BLOCK_BYTES; at++) {
		at = at == 72	 ? 96
		     : at == 100 ? FLASH_BLOCK_BYTES - 8
				 : at; /* of the disk; zeroes */
		file = take(&size);
		file[at] ^= 1;
		expect(BLOCKS, false);
	}
	for (int field = 0; field < 5; field++) {
		file = take(&size);
		assert_true(flash_cache_head_decode(file, size, &head));
		head.uuid[3] ^= field == 0;
		head.boot_id[3] ^= field == 1;
		head.tag += field == 2;
		head.disk_blocks += field == 3;
		head.slot_count -= field == 4;
		flash_cache_head_encode(&head, file);
		if (field == 2 || field == 3) { /* as that of a copy of the store */
			open_copy(&copy, BLOCKS, false);
			world_discard(&copy);
			sim_shared_remove(cache_path);
		} else {
			expect(BLOCKS, false);
		}
	}
	(void)take(&size);
	sim_shared_reboot();
	expect(BLOCKS, false);
	teardown();
}

/* Of the page of block 0: what it was before is in the log. */
TEST(test_a_damaged_page_is_not_believed)
{
	uint64_t size;
	uint8_t *file;

	setup();
	for (uint32_t at = 0; at < sizeof(struct flash_cache_entry); at++) {
		file = take(&size);
		((uint8_t *)&entries_of(file)[find(file, 0)])[at] ^= 1;
		expect(1, false);
	}
	for (uint32_t at = 0; at < FLASH_BLOCK_BYTES; at += 511) {
		file = take(&size);
		page_of(file, find(file, 0))[at] ^= 1;
		expect(1, false);
	}
	teardown();
}

/* With a checksum that fits. */
TEST(test_a_page_that_cannot_be_is_not_believed)
{
	uint64_t size;

	setup();
	for (int field = 0; field < 3; field++) {
		uint8_t *file = take(&size);
		uint32_t slot = find(file, 0);
		struct flash_cache_entry *entry = &entries_of(file)[slot];

		entry->lpn = field == 0 ? htole64(UINT64_MAX / 3) : entry->lpn;
		entry->counter = field == 1 ? htole64(UINT64_MAX - 1) : entry->counter;
		entry->stamp = field == 2 ? htole64(UINT64_MAX - 1) : entry->stamp;
		commit(file, slot);
		expect(1, false);
	}
	teardown();
}

TEST(test_of_two_pages_the_later_one_counts)
{
	uint64_t size;

	setup();
	for (int later = 0; later < 2; later++) {
		uint8_t *file = take(&size);
		uint32_t slot = find(file, 0);
		struct flash_cache_entry *entries = entries_of(file);
		uint32_t other = 0;

		while (entries[other].commit != 0) {
			other++;
		}
		entries[other] = entries[slot];
		entries[other].counter =
			htole64(le64toh(entries[slot].counter) + (later ? 1 : -1ULL));
		for (int i = 0; i < BLOCK_SECTORS; i++) {
			sector_fill(page_of(file, other) + (size_t)i * SECTOR, OLD);
		}
		commit(file, other);
		expect(later, true);
	}
	teardown();
}

TEST(test_a_store_that_is_only_read_says_what_it_lacks)
{
	struct store_options options = { .path = "flash:copy", .read_only = true };
	struct store *store;
	struct error error;
	uint64_t size;

	setup();
	(void)take(&size);
	stores_set(&options, "cache-dir", "/copy");
	assert_int_equal(store_open(&options, &store, &error), -EBUSY);
	assert_non_null(strstr(error.text, "20 changed blocks"));
	expect(0, true);
	assert_int_equal(store_open(&options, &store, &error), 0);
	store_close(store);
	store_options_fini(&options);
	teardown();
}

/* The file was lost: the epoch that is told from then on stays over further kills, and ends of all
 * kinds. */
TEST(test_a_loss_is_remembered)
{
	struct world copy;
	uint64_t size;
	uint64_t epoch;

	setup();
	(void)take(&size);
	sim_shared_remove(cache_path);
	world_open(&copy, "copy", false, NULL);
	epoch = store_epoch(copy.store);
	assert_true(epoch != epoch_before && epoch != 0);
	transfer(&copy, STORE_WRITE, 0, NEW, 0);
	world_close(&copy);
	world_open(&copy, "copy", false, NULL);
	assert_int_equal(store_epoch(copy.store), epoch);
	transfer(&copy, STORE_READ, 0, NEW, 0);
	transfer(&copy, STORE_READ, 1, OLD + 1, 0);
	world_close(&copy);
	teardown();
}

/* A copy of the store has its UUID: what the server of one has left is not lost to that of the
 * other. */
TEST(test_changes_of_a_copy_stay)
{
	static uint8_t before[FILE_BYTES_MAX];
	struct world copy;
	uint64_t size;
	uint8_t *file;

	setup();
	(void)take(&size);
	expect(0, true);
	for (int turn = 0; turn < 2; turn++) {
		sim_shared_copy("/disk/", cache_path);
		file = sim_shared_find(cache_path, &size);
		memcpy(before, file, size);
		world_cache = turn == 0 ? "128K" : "0";
		world_open(&copy, "copy", false, NULL);
		transfer(&copy, STORE_WRITE, 0, NEW + 500 + (uint64_t)turn, 0);
		transfer(&copy, STORE_READ, 1, NEW + 1, 0);
		world_discard(&copy);
		file = sim_shared_find(cache_path, &size);
		assert_non_null(file);
		assert_int_equal(size, flash_cache_file_bytes(SLOTS));
		assert_memory_equal(file, before, size);
		sim_shared_remove(cache_path);
	}
	teardown();
}

/* --- beside records in flight ---------------------------------------------------------------- */

enum { FLYING = 2, PARTS = FLYING + 2 };

static struct store_part parts[PARTS];
static uint8_t part_bytes[PARTS][FLASH_BLOCK_BYTES];

static void submit(uint32_t idx, enum store_op op, uint32_t block, uint64_t tag, uint32_t flags)
{
	parts[idx] = (struct store_part){ .done = world_part_done,
		.op = op,
		.flags = flags,
		.offset = (uint64_t)block * FLASH_BLOCK_BYTES,
		.length = op == STORE_FLUSH ? 0 : FLASH_BLOCK_BYTES,
		.memory = mem_of(part_bytes[idx]) };
	if (op == STORE_ZERO) {
		parts[idx].length = SECTOR; /* the block is written again */
	}
	for (int i = 0; i < BLOCK_SECTORS; i++) {
		sector_fill(part_bytes[idx] + (size_t)i * SECTOR, tag);
	}
	store_submit(world.queues[0], &parts[idx]);
}

static void wait_for(uint32_t idx)
{
	while (parts[idx].op != STORE_OP_COUNT) {
		assert_true(sim_step());
	}
}

/* As many records as let others gather. */
static void fly(void)
{
	for (uint32_t i = 0; i < FLYING; i++) {
		submit(i, STORE_WRITE, BLOCKS + i, OLD, STORE_FUA);
	}
}

/* The record that is being filled has an older version of the block. */
TEST(test_a_page_outlives_the_record_before_it)
{
	setup();
	fly();
	submit(FLYING, STORE_WRITE, 0, OLD, STORE_FUA);
	submit(FLYING + 1, STORE_WRITE, 0, NEW + 500, 0);
	for (uint32_t i = 0; i < FLYING + 2; i++) {
		wait_for(i);
	}
	transfer(&world, STORE_READ, 0, NEW + 500, 0);
	teardown();
}

/* The first of its pages of the map has no block that is cached. */
TEST(test_a_large_write_supersedes_all_its_pages)
{
	static uint8_t bytes[16 * FLASH_BLOCK_BYTES];
	struct store_part part = { .done = world_part_done,
		.op = STORE_WRITE,
		.offset = (FLASH_NODE_ENTRIES - 8) * FLASH_BLOCK_BYTES,
		.length = sizeof(bytes),
		.memory = mem_of(bytes) };

	sim_start(&(struct sim_options){ .seed = 1 });
	world_cache = "128K";
	world_make_disk();
	world_open(&world, "disk", false, NULL);
	transfer(&world, STORE_WRITE, FLASH_NODE_ENTRIES, NEW, 0);
	for (size_t i = 0; i < sizeof(bytes); i += SECTOR) {
		sector_fill(bytes + i, OLD);
	}
	store_submit(world.queues[0], &part);
	submit(0, STORE_FLUSH, 0, 0, 0); /* writes what is dirty behind it */
	wait_for(0);
	world_part_await(&part);
	transfer(&world, STORE_READ, FLASH_NODE_ENTRIES, OLD, 0);
	teardown();
}

/* What was answered is nowhere but in a record that is not yet written. */
TEST(test_a_flush_waits_for_what_supersedes_a_page)
{
	static struct world copy;
	static uint8_t bytes[SECTOR];
	struct store_part part = {
		.done = world_part_done, .offset = SECTOR, .length = SECTOR, .memory = mem_of(bytes)
	};

	setup();
	submit(0, STORE_FLUSH, 0, 0, 0);
	wait_for(0);
	transfer(&world, STORE_WRITE, 0, NEW + 500, 0);
	submit(0, STORE_ZERO, 0, 0, 0);
	submit(1, STORE_FLUSH, 0, 0, 0);
	wait_for(1);
	(void)sim_disk_crash_copy(sim_disk_find("disk"), "copy");
	world_open(&copy, "copy", false, NULL);
	world_submit(&copy, &part);
	assert_int_equal(sector_tag(bytes), NEW + 500);
	world_close(&copy);
	wait_for(0);
	teardown();
}

/* Its first blocks are in a record in flight, and the rest waits for another one, when there is
 * room beside the snapshots again and writes may go to the cache. */
TEST(test_a_write_that_has_begun_in_the_log_ends_there)
{
	enum { LONG_BLOCKS = 15, LONGS_MAX = 2 * FLASH_RECORDS };
	static uint8_t bytes[LONG_BLOCKS * FLASH_BLOCK_BYTES];
	static struct store_part longs[LONGS_MAX];
	static struct world copy;
	struct flash *flash;
	uint32_t count = 0;

	setup();
	flash = container_of(world.store, struct flash, base);
	submit(0, STORE_FLUSH, 0, 0, 0);
	wait_for(0);
	transfer(&world, STORE_WRITE, BLOCKS, OLD, STORE_FUA); /* so that writes are split */
	for (size_t i = 0; i < sizeof(bytes); i += SECTOR) {
		sector_fill(bytes + i, NEW);
	}
	while (list_is_empty(&flash->changes) && flash->counters.dirty_pages == 0) {
		assert_true(count < LONGS_MAX);
		longs[count] = (struct store_part){ .done = world_part_done,
			.op = STORE_WRITE,
			.offset = (uint64_t)count * LONG_BLOCKS << FLASH_BLOCK_SHIFT,
			.length = sizeof(bytes),
			.memory = mem_of(bytes) };
		flash->cache.is_tight = true;
		store_submit(world.queues[0], &longs[count++]);
	}
	flash->cache.is_tight = false;
	while (longs[count - 1].op != STORE_OP_COUNT) {
		assert_true(sim_step());
	}
	world_kill_copy("disk", "copy");
	world_freeze(&world, true);
	world_open(&copy, "copy", false, NULL);
	for (uint32_t i = 0; i < count * LONG_BLOCKS; i++) {
		transfer(&copy, STORE_READ, i, NEW, 0);
	}
	world_close(&copy);
	world_freeze(&world, false);
	teardown();
}

static int last_result;

static void result_done(struct store_part *part, int result)
{
	last_result = result;
	part->op = STORE_OP_COUNT;
}

/* As an image may have it that somebody has made up: writes end, and not the server. */
TEST(test_a_table_that_does_not_fit_the_map_ends_writes)
{
	struct flash *flash;

	for (uint32_t valid = 0; valid < 2; valid++) {
		setup();
		flash = container_of(world.store, struct flash, base);
		submit(0, STORE_FLUSH, 0, 0, 0);
		wait_for(0);
		for (uint32_t i = 0; i < WORLD_SEGMENTS; i++) {
			struct gc_segment *segment = &flash->table.segments[i];

			segment->valid = MIN(segment->valid, valid);
		}
		last_result = 0;
		for (uint32_t i = 0; last_result == 0; i++) {
			static uint8_t bytes[FLASH_BLOCK_BYTES];
			struct store_part part = { .op = i % 4 == 3 ? STORE_FLUSH : STORE_WRITE,
				.flags = i % 4 == 2 ? STORE_FUA : 0,
				.memory = mem_of(bytes),
				.done = result_done };

			assert_true(i < 4 * BLOCKS);
			if (part.op == STORE_WRITE) {
				part.offset = (uint64_t)(i * 7 % BLOCKS) << FLASH_BLOCK_SHIFT;
				part.length = sizeof(bytes);
			}
			world_submit(&world, &part);
		}
		assert_int_equal(last_result, -EUCLEAN);
		world_discard(&world);
		sim_shared_remove("/disk/");
		sim_stop();
	}
}

/* The server is killed when a record is written, and the slots of its blocks are not yet freed. */
TEST(test_a_newer_record_counts_more_than_a_page)
{
	static uint8_t before[FILE_BYTES_MAX];
	struct world copy;
	uint64_t size;

	setup();
	memcpy(before, sim_shared_find("/disk/", &size), flash_cache_file_bytes(SLOTS));
	transfer(&world, STORE_WRITE, 0, NEW + 500, STORE_FUA);
	transfer(&world, STORE_TRIM, 1, 0, 0);
	memcpy(take(&size), before, flash_cache_file_bytes(SLOTS));
	world_give_cache("copy");
	world_open(&copy, "copy", false, NULL);
	transfer(&copy, STORE_READ, 0, NEW + 500, 0);
	transfer(&copy, STORE_READ, 1, 0, 0);
	transfer(&copy, STORE_READ, 2, NEW + 2, 0);
	assert_int_equal(store_epoch(copy.store), epoch_before);
	world_close(&copy);
	teardown();
}

static void snapshot_done(struct store_snapshot_request *request)
{
	assert_int_equal(request->result, 0);
	request->context = NULL;
}

/* Wherever the checkpoint is that is being written meanwhile. */
TEST(test_a_quiesced_store_needs_no_file)
{
	enum { STEPS = 60 };
	uint8_t block[FLASH_BLOCK_BYTES];
	struct store_part part = {
		.done = world_part_done, .op = STORE_FLUSH, .flags = STORE_QUIESCE
	};
	struct flash_anchor anchor;
	struct error error;

	setup();
	for (int steps = 0; steps < STEPS; steps++) {
		struct store_snapshot_request request = { .store = world.store,
			.action = steps % 2 == 0 ? STORE_SNAPSHOT_CREATE : STORE_SNAPSHOT_DELETE,
			.snapshot.name = "one",
			.context = &request,
			.done = snapshot_done };

		transfer(&world, STORE_WRITE, 0, NEW, 0);
		submit(0, STORE_FLUSH, 0, 0, 0);
		wait_for(0);
		store_snapshot_ask(world.store, &request);
		for (int i = 0; i < steps && request.context != NULL; i++) {
			assert_true(sim_step());
		}
		part.op = STORE_FLUSH;
		world_submit(&world, &part);
		sim_disk_peek(sim_disk_find("disk"), 0, block, sizeof(block));
		assert_int_equal(flash_anchor_decode(block, &anchor, &error), 0);
		assert_int_equal(anchor.cache_tag, 0);
		while (request.context != NULL) {
			assert_true(sim_step());
		}
	}
	teardown();
}

/* An upgrade that was given up: clients go on, and the flush for it must end all the same. */
TEST(test_a_store_that_is_written_is_not_quiesced)
{
	enum { STEPS_MAX = 100000 };
	struct store_part part = { .done = result_done, .op = STORE_FLUSH, .flags = STORE_QUIESCE };

	setup();
	store_submit(world.queues[0], &part);
	parts[0].op = STORE_OP_COUNT;
	for (uint32_t i = 0; part.op != STORE_OP_COUNT; i++) {
		assert_true(i < STEPS_MAX);
		if (parts[0].op == STORE_OP_COUNT) {
			submit(0, STORE_WRITE, i % BLOCKS, NEW + i, 0);
		}
		assert_true(sim_step());
	}
	assert_int_equal(last_result, -EBUSY);
	wait_for(0);
	teardown();
}

/* --- another history, another disk ----------------------------------------------------------- */

/* The disk as it is now. */
static void copy_disk(void)
{
	if (sim_disk_find("copy") != NULL) {
		sim_disk_destroy(sim_disk_find("copy"));
	}
	(void)sim_disk_kill_copy(sim_disk_find("disk"), "copy");
}

/* is_its: the copy stands for the disk. */
static uint8_t *copy_file(bool is_its)
{
	static uint8_t before[FILE_BYTES_MAX];
	uint64_t size;

	sim_shared_copy("/disk/", cache_path);
	if (is_its) {
		world_give_cache("copy");
	}
	memcpy(before, sim_shared_find(cache_path, &size), flash_cache_file_bytes(SLOTS));
	return before;
}

static void expect_file(const uint8_t *before)
{
	uint64_t size;
	const uint8_t *file = sim_shared_find(cache_path, &size);

	assert_non_null(file);
	assert_int_equal(size, flash_cache_file_bytes(SLOTS));
	assert_memory_equal(file, before, size);
}

/* Opening, or starting, fails with this in its sentence. */
static void expect_refused(const char *told, bool read_only)
{
	struct store_options options = { .path = "flash:copy", .read_only = read_only };
	struct store *store;
	struct error error;

	stores_set(&options, "cache-dir", "/copy");
	stores_set(&options, "cache-file", world_cache_file);
	assert_int_equal(store_open(&options, &store, &error), -EEXIST);
	assert_non_null(strstr(error.text, told));
	store_options_fini(&options);
}

static void expect_not_started(int result, const char *told)
{
	struct world copy;

	world_begin(&copy, "copy", false, false);
	world_await(&copy);
	assert_int_equal(copy.start.result, result);
	assert_non_null(strstr(copy.start.error.text, told));
	world_discard(&copy);
}

/* An earlier copy of the disk was put back while the file is that of the kill. */
TEST(test_pages_of_a_later_history_are_refused)
{
	uint8_t *before;
	struct world copy;

	setup();
	copy_disk();
	for (uint32_t i = 0; i < BLOCKS; i++) {
		transfer(&world, STORE_WRITE, i, OLD + i, STORE_FUA);
	}
	transfer(&world, STORE_WRITE, 0, NEW, 0);
	before = copy_file(true);
	expect_not_started(-ESTALE, "the store was replaced by an earlier copy");
	expect_file(before);
	/* The remedies. */
	sim_shared_remove(cache_path);
	open_copy(&copy, BLOCKS, false);
	world_close(&copy);
	(void)take(&(uint64_t){ 0 });
	world_open(&copy, "copy", false, NULL);
	transfer(&copy, STORE_READ, 0, NEW, 0);
	transfer(&copy, STORE_READ, 1, OLD + 1, 0);
	assert_int_equal(store_epoch(copy.store), epoch_before);
	world_close(&copy);
	teardown();
}

/* What is gone with the records is told, even where the file has no page to refuse. */
TEST(test_an_earlier_disk_without_pages_is_a_loss)
{
	struct world copy;

	setup();
	copy_disk();
	for (uint32_t i = 0; i < BLOCKS; i++) {
		transfer(&world, STORE_WRITE, i, 2 * NEW, STORE_FUA);
	}
	(void)copy_file(true);
	open_copy(&copy, BLOCKS, false);
	world_close(&copy);
	teardown();
}

/* The position is that of what can be found: a kill at any time is no earlier copy. */
TEST(test_a_kill_at_any_step_is_no_earlier_copy)
{
	enum { STEPS = 400 };
	struct world copy;

	setup();
	parts[0].op = STORE_OP_COUNT;
	for (uint32_t i = 0; i < STEPS; i++) {
		if (parts[0].op == STORE_OP_COUNT) {
			submit(0, STORE_WRITE, i % BLOCKS, NEW + i, i % 3 == 0 ? STORE_FUA : 0);
		}
		assert_true(sim_step());
		(void)take(&(uint64_t){ 0 });
		world_open(&copy, "copy", false, i % 2 == 0 ? "again" : NULL);
		assert_int_equal(store_epoch(copy.store), epoch_before);
		world_close(&copy);
		if (sim_disk_find("again") != NULL && copy.again_killed) {
			world_open(&copy, "again", false, NULL);
			assert_int_equal(store_epoch(copy.store), epoch_before);
			world_close(&copy);
		}
		if (sim_disk_find("again") != NULL) {
			sim_disk_destroy(sim_disk_find("again"));
		}
	}
	wait_for(0);
	teardown();
}

/* The server was killed, and a copy of its disk is opened first. */
TEST(test_a_copy_takes_no_changes)
{
	const uint8_t *before;
	struct world copy;

	setup();
	copy_disk();
	before = copy_file(false);
	expect_refused("was copied or moved", false);
	expect_refused("without 'readonly'", true);
	expect_file(before);
	world_cache_file = "leave";
	for (int turn = 0; turn < 2; turn++) {
		world_cache = turn == 0 ? "128K" : "0";
		copy_disk();
		open_copy(&copy, BLOCKS, false);
		transfer(&copy, STORE_WRITE, 0, 2 * NEW, 0);
		world_discard(&copy);
		expect_file(before);
	}
	/* It was no copy. */
	world_cache_file = "take";
	copy_disk();
	expect(0, true);
	world_cache_file = "refuse";
	teardown();
}

/* Its server had written all: nobody has to be refused, and nobody loses anything. */
TEST(test_an_empty_file_of_another_disk_stays)
{
	const uint8_t *before;
	struct world copy;

	setup();
	submit(0, STORE_FLUSH, 0, 0, 0);
	wait_for(0);
	copy_disk();
	before = copy_file(false);
	open_copy(&copy, 0, true);
	transfer(&copy, STORE_WRITE, 0, 2 * NEW, 0);
	transfer(&copy, STORE_WRITE, 0, NEW, STORE_FUA);
	world_discard(&copy);
	expect_file(before);
	teardown();
}

/* The disk was copied while its server was running: as after a loss of power. */
TEST(test_a_copy_of_a_disk_that_is_served)
{
	struct store_options options = { .path = "flash:copy" };
	struct store *store;
	struct error error;

	setup();
	copy_disk();
	stores_set(&options, "cache-dir", "/disk");
	assert_int_equal(store_open(&options, &store, &error), 0);
	assert_true(store_epoch(store) != epoch_before);
	store_close(store);
	store_options_fini(&options);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		transfer(&world, STORE_READ, i, NEW + i, 0);
	}
	teardown();
}

/* After a restart of the machine the file cannot be there: whoever has its name stops nothing. */
TEST(test_a_name_of_before_the_restart_is_nothing)
{
	struct store_options options = { .path = "flash:copy" };
	struct store *store;
	struct error error;

	setup();
	(void)take(&(uint64_t){ 0 });
	sim_shared_give_away(cache_path);
	stores_set(&options, "cache-dir", "/copy");
	assert_int_equal(store_open(&options, &store, &error), -EPERM);
	sim_shared_reboot();
	assert_int_equal(store_open(&options, &store, &error), 0);
	assert_true(store_epoch(store) != epoch_before);
	store_close(store);
	store_options_fini(&options);
	teardown();
}

/* --- in the middle of a write ---------------------------------------------------------------- */

static uint8_t *watched;
static uint64_t watched_size;
static uint8_t snapshots[SNAPSHOTS_MAX][FILE_BYTES_MAX];
static uint32_t snapshot_count;

/* A page of the file is about to be written for the first time: a kill could come here. */
static void touched(int number, siginfo_t *info, void *context)
{
	uint8_t *page = (uint8_t *)((uintptr_t)info->si_addr & ~(uintptr_t)(FLASH_BLOCK_BYTES - 1));

	if (page < watched || page >= watched + watched_size || snapshot_count == SNAPSHOTS_MAX) {
		abort();
	}
	memcpy(snapshots[snapshot_count++], watched, watched_size);
	if (mprotect(page, FLASH_BLOCK_BYTES, PROT_READ | PROT_WRITE) != 0) {
		abort();
	}
}

/* Writes a block that is cached; snapshots are what a kill at each of these moments leaves. */
static void watch_write(uint64_t tag, uint32_t flags)
{
	struct sigaction action = { .sa_sigaction = touched, .sa_flags = SA_SIGINFO };
	struct sigaction before;

	watched = sim_shared_find("/disk/", &watched_size);
	snapshot_count = 0;
	assert_in_range(watched_size, 1, FILE_BYTES_MAX);
	assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
	assert_int_equal(mprotect(watched, watched_size, PROT_READ), 0);
	transfer(&world, STORE_WRITE, 0, tag, flags);
	assert_int_equal(mprotect(watched, watched_size, PROT_READ | PROT_WRITE), 0);
	assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
}

TEST(test_a_kill_in_a_write_leaves_the_old_or_the_new)
{
	setup();
	watch_write(OLD, 0);
	assert_true(snapshot_count >= 2); /* its slot, and the entries */
	for (uint32_t i = 0; i < snapshot_count; i++) {
		memcpy(take(&(uint64_t){ 0 }), snapshots[i], watched_size);
		world_give_cache("copy");
		expect(0, true);
	}
	(void)take(&(uint64_t){ 0 });
	expect(1, true);
	teardown();
}

/* Between the position and the entry of its page, and what it has written cannot be read. */
TEST(test_a_kill_behind_a_record_does_not_hide_it)
{
	const struct flash *flash;
	uint32_t at;

	setup();
	flash = container_of(world.store, struct flash, base);
	submit(0, STORE_FLUSH, 0, 0, 0);
	wait_for(0);
	transfer(&world, STORE_WRITE, 0, NEW, 0);
	at = flash_segment_at(&flash->anchor.geometry, flash->log.head.segment);
	at += flash->log.head.block;
	watch_write(NEW + 500, STORE_FUA);
	assert_int_equal(snapshot_count, 2);
	memcpy(take(&(uint64_t){ 0 }), snapshots[1], watched_size);
	world_give_cache("copy");
	sim_disk_set_bad(sim_disk_find("copy"), flash_block_offset(flash, at), FLASH_BLOCK_BYTES,
		true, false);
	expect_not_started(-EUCLEAN, "cannot be read");
	teardown();
}

/* Its record is written from there. */
TEST(test_a_slot_is_not_used_again_while_it_is_written)
{
	struct store_part flush = { .op = STORE_FLUSH, .done = world_part_done };
	struct world copy;

	setup();
	sim_disk_set_stalled(sim_disk_find("disk"), true);
	store_submit(world.queues[0], &flush);
	for (uint32_t i = 0; i < SLOTS - BLOCKS - 1; i++) {
		transfer(&world, STORE_WRITE, i, 2 * NEW + i, 0);
	}
	for (uint32_t i = 0; i < SLOTS; i++) { /* one slot is free each time */
		transfer(&world, STORE_WRITE, 0, 3 * NEW + i, 0);
	}
	sim_disk_set_stalled(sim_disk_find("disk"), false);
	world_part_await(&flush);
	(void)sim_disk_crash_copy(sim_disk_find("disk"), "copy");
	open_copy(&copy, 0, false); /* without later changes, which were not flushed */
	world_close(&copy);
	teardown();
}

int main(void)
{
	log_set_level(LOG_LEVEL_ERROR); /* losses are warnings */
	return unit_run(NULL, NULL);
}
