// SPDX-License-Identifier: Apache-2.0
/*
 * One place of the device under a flash store cannot be written, and not be read either once a
 * write to it has failed. The log goes on in another segment: no write fails, and all that was
 * answered is there after a kill, a loss of power and an end in order, wherever that place is. A
 * device without any good place, and one that fails too often, leave a store that can be read.
 *
 * Through the page cache a flush fails instead, and what it was for may be lost with the power: it
 * is written once more, and nothing fails.
 */
#include <errno.h>
#include <string.h>

#include "flash_world.h"

#include "../stores.h"
#include "base/bytes.h"
#include "base/log.h"
#include "unit.h"

enum {
	BLOCKS_MAX = WORLD_SEGMENTS * WORLD_SEGMENT_BLOCKS,
	RUN_MAX = 20, /* blocks: more than a segment has */
	WRITES = 30,
	BLOCKS_USED = 200, /* of the device, that these writes reach */
	TOGETHER = 4,
	SEEDS = 24,
	RESTARTS = 60,
	REDO_STEPS_MAX = 20,
	NO_BLOCK = 0, /* no place is bad */
};

static uint64_t expected[BLOCKS_MAX];
static uint64_t flushed[BLOCKS_MAX];
static uint64_t read_tags[BLOCKS_MAX]; /* by read_all() */
static uint64_t now;
static uint32_t blocks;
static const char *watched = "disk";
static bool has_failed; /* a write to the bad place of the watched disk */

static void note_fault(void *context, struct sim_disk *disk, enum sim_fault_kind kind,
	uint64_t offset, uint64_t length, int error)
{
	has_failed |= kind == SIM_FAULT_WRITE && disk == sim_disk_find(watched);
}

static void set_bad(const char *name, uint32_t block)
{
	sim_disk_set_bad(sim_disk_find(name), (uint64_t)block * FLASH_BLOCK_BYTES,
		FLASH_BLOCK_BYTES, has_failed, true);
}

static int result_of_write;

static void write_done(struct store_part *part, int result)
{
	part->op = STORE_OP_COUNT;
	result_of_write = MIN(result_of_write, result);
}

/* Several writes at a time, each to a part of the disk of its own. What is written with FUA is
 * durable then. */
static int write_some(struct world *world, enum store_op op, uint32_t flags)
{
	static uint8_t bytes[TOGETHER][RUN_MAX * FLASH_BLOCK_BYTES];
	struct store_part parts[TOGETHER] = { 0 };
	bool busy = true;

	result_of_write = 0;
	for (uint32_t i = 0; i < TOGETHER; i++) {
		uint32_t count = (uint32_t)sim_between(1, RUN_MAX);
		uint32_t part_blocks = blocks / TOGETHER;
		uint32_t first = i * part_blocks + (uint32_t)sim_between(0, part_blocks - RUN_MAX);

		now++;
		for (uint32_t k = 0; op == STORE_WRITE && k < count * BLOCK_SECTORS; k++) {
			sector_fill(bytes[i] + (size_t)k * SECTOR, now);
			expected[first + k / BLOCK_SECTORS] = now;
		}
		parts[i] = (struct store_part){ .op = op,
			.flags = flags,
			.offset = op == STORE_FLUSH ? 0 : (uint64_t)first * FLASH_BLOCK_BYTES,
			.length = op == STORE_FLUSH ? 0 : (uint64_t)count * FLASH_BLOCK_BYTES,
			.memory = mem_of(bytes[i]),
			.done = write_done };
		store_submit(world->queues[0], &parts[i]);
	}
	while (busy) {
		busy = false;
		for (uint32_t i = 0; i < TOGETHER; i++) {
			busy |= parts[i].op != STORE_OP_COUNT;
		}
		assert_true(!busy || sim_step());
	}
	for (uint32_t i = 0; i < TOGETHER && (flags & STORE_FUA) != 0; i++) {
		uint64_t first = parts[i].offset / FLASH_BLOCK_BYTES;
		uint64_t count = parts[i].length / FLASH_BLOCK_BYTES;

		memcpy(flushed + first, expected + first, count * sizeof(*flushed));
	}
	return result_of_write;
}

/* The number-th round. */
static bool is_durable_round(uint32_t number)
{
	return number % 4 == 3 || number % 5 == 4;
}

/* The writes of some rounds have FUA. After others there is a flush. */
static void write_round(struct world *world, uint32_t number)
{
	assert_int_equal(write_some(world, STORE_WRITE, number % 4 == 3 ? STORE_FUA : 0), 0);
	if (number % 5 == 4) {
		assert_int_equal(write_some(world, STORE_FLUSH, 0), 0);
		memcpy(flushed, expected, sizeof(flushed));
	}
}

static void read_all(struct world *world, const uint64_t *least, const uint64_t *most)
{
	enum { AT_ONCE = 64 };
	static uint8_t bytes[AT_ONCE * FLASH_BLOCK_BYTES];
	struct store_part part = { .done = world_part_done, .memory = mem_of(bytes) };

	for (uint32_t i = 0; i < blocks; i++) {
		uint64_t tag;

		if (i % AT_ONCE == 0) {
			part.op = STORE_READ;
			part.offset = (uint64_t)i * FLASH_BLOCK_BYTES;
			part.length =
				(uint64_t)MIN((uint32_t)AT_ONCE, blocks - i) * FLASH_BLOCK_BYTES;
			world_submit(world, &part);
		}
		tag = sector_tag(bytes + (size_t)(i % AT_ONCE) * FLASH_BLOCK_BYTES);
		read_tags[i] = tag;
		if (tag < least[i] || tag > most[i]) {
			fail_msg("%s: block %u has %llu, not %llu", world->name, i,
				(unsigned long long)tag, (unsigned long long)most[i]);
		}
	}
}

/* What is there is read, can be changed, and is there again after an end in order. */
static void check(const char *name, uint32_t bad, const uint64_t *least)
{
	static uint64_t before[BLOCKS_MAX];
	static uint64_t flushed_before[BLOCKS_MAX];
	static struct world world;

	memcpy(before, expected, sizeof(before));
	memcpy(flushed_before, flushed, sizeof(flushed_before));
	if (bad != NO_BLOCK) {
		set_bad(name, bad);
	}
	world_open(&world, name, true, NULL);
	read_all(&world, least, expected);
	assert_int_equal(write_some(&world, STORE_WRITE, STORE_FUA), 0);
	world_close(&world);
	world_open(&world, name, true, NULL);
	read_all(&world, least, expected);
	world_close(&world);
	memcpy(expected, before, sizeof(before));
	memcpy(flushed, flushed_before, sizeof(flushed_before));
	sim_disk_destroy(sim_disk_find(name));
}

static bool is_direct = true;

static void begin(struct world *world, uint64_t seed)
{
	sim_start(&(struct sim_options){
		.seed = seed, .faults = { .jitter = true }, .fault = note_fault });
	has_failed = false;
	memset(expected, 0, sizeof(expected));
	memset(flushed, 0, sizeof(flushed));
	world_disk = (enum world_disk)(seed % 2);
	world_cache = seed % 4 < 2 ? "0" : "128K";
	world_make_disk();
	world_open(world, "disk", is_direct, NULL);
	blocks = (uint32_t)(store_size(world->store) / FLASH_BLOCK_BYTES);
}

/* Returns whether the log was moved. */
static bool try_place(uint64_t seed, uint32_t bad)
{
	static struct world world;
	uint64_t moves = world_totals.log_moves;
	uint32_t crash_at;

	begin(&world, seed);
	crash_at = (uint32_t)sim_between(0, WRITES - 1);
	for (uint32_t i = 0; i < WRITES; i++) {
		bool had_failed = has_failed;

		set_bad("disk", bad);
		write_round(&world, i);
		if (i == crash_at || has_failed != had_failed) {
			world_kill_copy("disk", "killed");
			(void)sim_disk_crash_copy(sim_disk_find("disk"), "lost");
			world_freeze(&world, true);
			check("killed", bad, expected);
			check("lost", bad, flushed);
			world_freeze(&world, false);
		}
	}
	world_close(&world);
	check("disk", bad, expected);
	sim_stop();
	return world_totals.log_moves > moves;
}

TEST(test_each_place_in_turn)
{
	uint32_t moved = 0;

	for (uint32_t i = 0; i < BLOCKS_USED; i++) {
		moved += try_place(i, FLASH_SEGMENTS_AT + i);
	}
	print_message("%u of %u places moved the log\n", moved, BLOCKS_USED);
	assert_true(moved > BLOCKS_USED / 2);
}

/* Nothing can be written any more, but for anchors. */
TEST(test_a_device_without_a_good_place_can_be_read)
{
	static struct world world;

	begin(&world, 4);
	write_round(&world, 0);
	sim_disk_set_bad(sim_disk_find("disk"), FLASH_SEGMENTS_AT * FLASH_BLOCK_BYTES,
		BLOCKS_MAX * FLASH_BLOCK_BYTES, false, true);
	memcpy(flushed, expected, sizeof(flushed));
	assert_int_equal(write_some(&world, STORE_WRITE, 0), -EIO);
	assert_int_equal(write_some(&world, STORE_FLUSH, 0), -EIO);
	read_all(&world, flushed, flushed);
	world_is_full = true;
	world_close(&world);
	world_is_full = false;
	sim_stop();
}

/* Each time at another place. */
TEST(test_a_device_that_fails_too_often_is_given_up)
{
	static struct world world;
	uint64_t moves = world_totals.log_moves;
	uint32_t rounds = 0;

	begin(&world, 1);
	while (write_some(&world, STORE_WRITE, STORE_FUA) == 0) {
		assert_true(rounds++ < BLOCKS_MAX);
		world_vary_bad_places("disk");
	}
	world_close(&world);
	moves = world_totals.log_moves - moves;
	print_message("%llu moves in %u rounds\n", (unsigned long long)moves, rounds);
	assert_in_range(moves, 8, 64);
	sim_stop();
}

static uint64_t rewrites;

/* Flushes fail now and then, and lose what was not durable. */
static void try_flushes(uint64_t seed, const struct sim_faults *faults)
{
	static struct world world;

	begin(&world, seed);
	for (uint32_t i = 0; i < WRITES; i++) {
		sim_set_faults(faults);
		write_round(&world, i);
		sim_set_faults(&(struct sim_faults){ .jitter = true });
		if (is_durable_round(i)) {
			(void)sim_disk_crash_copy(sim_disk_find("disk"), "lost");
			world_freeze(&world, true);
			check("lost", NO_BLOCK, flushed);
			world_freeze(&world, false);
		}
	}
	rewrites += world_counter(&world, "log_rewrites");
	sim_set_faults(faults);
	world_close(&world); /* its last checkpoint, too */
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	(void)sim_disk_crash_copy(sim_disk_find("disk"), "lost");
	check("lost", NO_BLOCK, expected);
	check("disk", NO_BLOCK, expected);
	sim_stop();
}

TEST(test_a_flush_that_fails_is_repeated)
{
	rewrites = 0;
	is_direct = false;
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		try_flushes(seed, &(struct sim_faults){ .flush_error_ppm = 50000, .jitter = true });
	}
	is_direct = true;
	print_message("written once more %llu times\n", (unsigned long long)rewrites);
	assert_true(rewrites > SEEDS / 2);
}

/* All that was answered is there, and durable: a start must have made it so. */
static void check_started(struct world *world)
{
	static uint64_t before[BLOCKS_MAX];
	static struct world lost;

	memcpy(before, expected, sizeof(before));
	read_all(world, before, before);
	(void)sim_disk_crash_copy(sim_disk_find(world->name), "lost");
	world_freeze(world, true);
	world_open(&lost, "lost", false, NULL);
	read_all(&lost, before, before);
	world_close(&lost);
	world_freeze(world, false);
	world_discard(world);
}

/* Starts the killed server's store, in the same mode or the other one, with what the page cache has
 * after a flush has failed, and the device does not. */
static void start_killed(bool direct)
{
	static struct world world;

	world_open(&world, "killed", direct, NULL);
	check_started(&world);
}

/* A start whose syncs fail now and then succeeds, or is refused and drops nothing. */
static bool start_killed_with_errors(bool direct)
{
	static struct world world;

	sim_set_faults(&(struct sim_faults){ .flush_error_ppm = 500000, .jitter = true });
	world_begin(&world, "killed", direct, false);
	world_await(&world);
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	if (world.start.result == 0) {
		check_started(&world);
		return true;
	}
	assert_int_equal(world.start.result, -EIO);
	world_discard(&world);
	start_killed(direct);
	return false;
}

/* A server that is killed while it repeats a flush. */
static void kill_in_redo(uint64_t seed)
{
	static struct world world;
	struct store_part flush = { .op = STORE_FLUSH, .done = world_part_done };

	begin(&world, seed);
	for (uint32_t i = 0; i < 5; i++) {
		write_round(&world, i);
	}
	assert_int_equal(write_some(&world, STORE_WRITE, 0), 0);
	sim_set_faults(&(struct sim_faults){ .flush_error_ppm = 1000000, .jitter = true });
	store_submit(world.queues[0], &flush);
	while (world_counter(&world, "log_rewrites") == 0) {
		assert_true(sim_step());
	}
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	for (uint64_t steps = sim_between(0, REDO_STEPS_MAX); steps > 0; steps--) {
		(void)sim_step();
	}
	world_kill_copy("disk", "killed");
	world_part_await(&flush);
	world_close(&world);
}

TEST(test_a_restart_keeps_what_only_the_page_cache_has)
{
	uint32_t started = 0;

	is_direct = false;
	for (uint64_t seed = 0; seed < RESTARTS; seed++) {
		bool direct = seed / 4 % 2 == 1;

		world_lacks_direct = seed % 3 == 2;
		world_direct_uses_cache = seed % 3 == 1;
		kill_in_redo(seed);
		if (seed % 2 == 0) {
			start_killed(direct);
		} else {
			started += start_killed_with_errors(direct);
		}
		sim_stop();
	}
	world_lacks_direct = false;
	world_direct_uses_cache = false;
	is_direct = true;
	print_message("%u of %u starts with errors succeeded\n", started, RESTARTS / 2);
	assert_in_range(started, 1, RESTARTS / 2 - 1);
}

/* Returns the end of the device's part that has ever been written, in blocks. */
static uint64_t find_end(const char *name)
{
	static const uint8_t zeroes[FLASH_BLOCK_BYTES];
	uint8_t block[FLASH_BLOCK_BYTES];
	uint64_t end = BLOCKS_MAX;

	do {
		end--;
		sim_disk_peek(sim_disk_find(name), end * FLASH_BLOCK_BYTES, block, sizeof(block));
	} while (memcmp(block, zeroes, sizeof(block)) == 0);
	return end + 1;
}

/* Starts while writes to these blocks, in which the log is, fail. */
static void start_without_writes(const char *name, uint64_t from, uint64_t end)
{
	static struct world world;

	watched = name;
	has_failed = false;
	sim_disk_set_bad(sim_disk_find(name), from * FLASH_BLOCK_BYTES,
		(end - from) * FLASH_BLOCK_BYTES, false, true);
	world_open(&world, name, false, NULL);
	assert_false(has_failed);
	read_all(&world, flushed, expected);
	world_discard(&world);
	watched = "disk";
}

TEST(test_a_start_overwrites_nothing_that_the_disk_has)
{
	static struct world world;

	is_direct = false;
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		uint64_t from;
		uint64_t end;

		begin(&world, seed);
		from = find_end("disk");
		for (uint32_t i = 0; i < 5; i++) {
			write_round(&world, i);
		}
		end = find_end("disk"); /* what has been flushed */
		assert_int_equal(write_some(&world, STORE_WRITE, 0), 0);
		(void)sim_disk_crash_copy(sim_disk_find("disk"), "lost");
		world_kill_copy("disk", "killed");
		world_freeze(&world, true);
		start_without_writes("lost", from, end);
		start_without_writes("killed", from, find_end("killed"));
		world_freeze(&world, false);
		world_end(&world);
	}
	is_direct = true;
}

/* Starts the killed server's store, and expects to be refused for this reason. Returns false if it
 * is not. */
static bool is_refused(int result, const char *reason)
{
	static struct world world;
	bool refused;

	world_begin(&world, "killed", false, false);
	world_await(&world);
	refused = world.start.result < 0;
	if (refused) {
		assert_int_equal(world.start.result, result);
		assert_non_null(strstr(world.start.error.text, reason));
	}
	world_discard(&world);
	return refused;
}

/* What the device lacks is given up, and stays so. */
static void give_up(void)
{
	static uint64_t before[BLOCKS_MAX];
	static struct world world;
	static struct world lost;
	uint64_t epoch;

	world_repairs = STORE_REPAIR_LOSS;
	if (is_refused(-ESTALE, "remove the cache file")) {
		sim_shared_remove("/killed/");
	}
	world_open(&world, "killed", false, NULL);
	world_repairs = 0;
	epoch = store_info(world.store)->epoch;
	assert_int_not_equal(epoch, 0);
	read_all(&world, flushed, expected);
	memcpy(before, read_tags, sizeof(before));
	(void)sim_disk_crash_copy(sim_disk_find("killed"), "lost");
	world_freeze(&world, true);
	world_open(&lost, "lost", false, NULL);
	assert_int_equal(store_info(lost.store)->epoch, epoch);
	read_all(&lost, before, before);
	world_close(&lost);
	world_freeze(&world, false);
	world_close(&world);
	world_open(&world, "killed", false, NULL);
	assert_int_equal(store_info(world.store)->epoch, epoch);
	read_all(&world, before, before);
	world_discard(&world);
}

/* No place of the log can be written again. The page cache need not be dropped if it can be read
 * past. */
TEST(test_a_start_gives_up_what_cannot_be_written_if_told_to)
{
	uint32_t given_up = 0;

	is_direct = false;
	for (uint64_t seed = 0; seed < RESTARTS; seed++) {
		world_lacks_direct = seed % 3 == 2;
		world_keeps_cache = !world_lacks_direct;
		kill_in_redo(seed);
		sim_disk_set_bad(sim_disk_find("killed"),
			(uint64_t)FLASH_ANCHORS * FLASH_BLOCK_BYTES,
			(find_end("killed") - FLASH_ANCHORS) * FLASH_BLOCK_BYTES, false, true);
		if (is_refused(-EIO, "--accept-loss")) {
			give_up();
			given_up++;
		}
		sim_stop();
	}
	world_lacks_direct = false;
	world_keeps_cache = false;
	is_direct = true;
	print_message("%u of %u starts gave up what the device lacked\n", given_up, RESTARTS);
	assert_true(given_up > RESTARTS / 3);
}

/* Overwrites the anchors in the page cache. Returns whether the disk has lost that. */
static bool spoil_anchors(void)
{
	static const uint8_t zeroes[SECTOR];
	uint8_t found[FLASH_ANCHORS][SECTOR];
	struct sim_disk *lost;
	struct error error;
	bool is_lost = true;
	int fd;

	assert_int_equal(disk_open("disk", false, false, &fd, &error), 0);
	for (uint64_t i = 0; i < FLASH_ANCHORS; i++) {
		assert_int_equal(disk_write(fd, zeroes, SECTOR, i * FLASH_BLOCK_BYTES), 0);
	}
	sim_set_faults(&(struct sim_faults){ .flush_error_ppm = 1000000, .jitter = true });
	assert_int_equal(disk_sync(fd), -EIO);
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	disk_close(fd);
	lost = sim_disk_crash_copy(sim_disk_find("disk"), "lost");
	for (uint64_t i = 0; i < FLASH_ANCHORS; i++) {
		sim_disk_peek(lost, i * FLASH_BLOCK_BYTES, found[i], SECTOR);
		is_lost = is_lost && memcmp(found[i], zeroes, SECTOR) != 0;
	}
	sim_disk_destroy(lost);
	return is_lost;
}

TEST(test_a_start_reads_the_anchors_of_the_disk)
{
	static struct world world;
	uint32_t tried = 0;

	for (uint64_t seed = 0; seed < RESTARTS; seed++) {
		world_lacks_direct = seed % 3 == 2;
		world_keeps_cache = !world_lacks_direct; /* it need not be dropped */
		begin(&world, seed);
		write_round(&world, 0);
		world_close(&world);
		if (spoil_anchors()) {
			tried++;
			check("disk", NO_BLOCK, expected);
		}
		sim_stop();
	}
	world_lacks_direct = false;
	world_keeps_cache = false;
	assert_true(tried > RESTARTS / 10);
}

/* Flushes fail while an anchor is to be made durable. Those of the records in between succeed. */
TEST(test_a_bad_anchor_fails_the_log)
{
	static struct world world;
	struct store_part flush = { .op = STORE_FLUSH, .flags = STORE_QUIESCE };

	is_direct = false;
	begin(&world, 4);
	is_direct = true;
	write_round(&world, 0);
	sim_disk_set_bad_flushes(sim_disk_find("disk"), 0, FLASH_ANCHORS * FLASH_BLOCK_BYTES);
	flush.done = write_done;
	result_of_write = 0;
	store_submit(world.queues[0], &flush);
	world_part_await(&flush);
	assert_int_equal(result_of_write, -EIO);
	assert_int_equal(world_counter(&world, "log_rewrites"), 3);
	memcpy(flushed, expected, sizeof(flushed));
	assert_int_equal(write_some(&world, STORE_WRITE, 0), -EIO);
	read_all(&world, flushed, flushed);
	world_is_full = true;
	world_close(&world);
	world_is_full = false;
	sim_stop();
}

TEST(test_a_device_that_makes_nothing_durable_can_be_read)
{
	static struct world world;

	is_direct = false;
	begin(&world, 5);
	is_direct = true;
	write_round(&world, 0);
	sim_set_faults(&(struct sim_faults){ .flush_error_ppm = 1000000, .jitter = true });
	assert_int_equal(write_some(&world, STORE_FLUSH, 0), -EIO);
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	assert_int_equal(world_counter(&world, "log_rewrites"), 3);
	memcpy(flushed, expected, sizeof(flushed));
	assert_int_equal(write_some(&world, STORE_WRITE, 0), -EIO);
	read_all(&world, flushed, flushed);
	world_is_full = true;
	world_close(&world);
	world_is_full = false;
	sim_stop();
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		cmocka_set_test_filter(argv[1]);
	}
	log_set_level(LOG_LEVEL_ERROR); /* each move is a warning */
	return unit_run(NULL, NULL);
}
