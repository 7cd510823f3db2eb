// SPDX-License-Identifier: Apache-2.0
/*
 * A flash store on a simulated disk that loses its power at any moment, or whose server is killed.
 * What was flushed is there, and after a kill all that was answered; every block has contents that
 * it had at some time since; a durable write that is one record is there as a whole or not at all.
 * Now and then the run goes on with what was recovered. The same of a disk that fails, for whose
 * server nothing is left but to end, and of one that does not take what is written to some places:
 * clients hear nothing of that. The arguments are how many crashes there are, and the first
 * seed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash_model.h"
#include "flash_world.h"

#include "../stores.h"
#include "base/bytes.h"
#include "base/log.h"
#include "store/flash/flash.h"
#include "unit.h"

enum {
	OPERATIONS = 700, /* of one seed */
	LENGTH_MAX = 160, /* sectors */
	CRASH_POINTS = 2000,
	FAILURE_PART = 20, /* of them: seeds with a disk that fails */
	MOVE_PART = 4,	   /* of them: crashes of a store whose log is moved */
	STEPS_MAX = 60,	   /* from crash to crash */
	SEED_CRASHES_MAX = 100,
};

static uint64_t found[SECTORS_MAX]; /* tags in an image */
static uint32_t sectors;
static bool may_fail; /* the disk may, and then all that is not done does */
static bool has_failed;
static uint64_t half_written; /* crashes while a checkpoint was, see is_half_written() */

/* --- what may be there ----------------------------------------------------------------------- */

static bool model_allows(const struct sector *sector, uint64_t tag, bool killed)
{
	for (uint32_t k = killed ? sector_last_done(sector, UINT64_MAX) : 0; k < sector->count;
		k++) {
		if (sector->entries[k].tag == tag) {
			return true;
		}
	}
	return false;
}

/* --- operations ------------------------------------------------------------------------------ */

static void check_read(const struct lane *lane)
{
	for (uint32_t i = 0; i < lane->count; i++) {
		const struct sector *sector = &model[lane->first + i];

		assert_true(sector_tag(lane->memory + (size_t)i * SECTOR) ==
			    sector->entries[sector->count - 1].tag);
	}
}

static void lane_done(struct store_part *part, int result)
{
	struct lane *lane = container_of(part, struct lane, part);

	lane->busy = false;
	if (result < 0 && may_fail) {
		has_failed = true;
		return;
	}
	assert_int_equal(result, 0);
	if (part->op == STORE_READ) {
		check_read(lane);
	} else {
		lane_done_well(lane, sectors);
	}
}

/* Most of them in a part of the disk, so that segments are emptied by what is written. */
static void lane_range(uint32_t idx)
{
	struct lane *lane = &lanes[idx];
	uint32_t end;

	lane->first = (uint32_t)sim_between(0, sectors - 1);
	if (sim_between(0, 3) != 0) {
		lane->first = (uint32_t)sim_between(0, sectors / 5);
	}
	end = MIN(sectors, lane->first + (uint32_t)sim_between(1, LENGTH_MAX));
	if (sim_between(0, 1) == 0) { /* whole blocks */
		lane->first = (uint32_t)align_down(lane->first, BLOCK_SECTORS);
		end = (uint32_t)MIN(align_up(end, BLOCK_SECTORS), (uint64_t)sectors);
	}
	for (uint32_t i = 0; i < LANES; i++) {
		if (i != idx && lanes[i].busy && lanes[i].first + lanes[i].count > lane->first) {
			end = lanes[i].first <= lane->first ? lane->first
							    : MIN(end, lanes[i].first);
		}
	}
	lane->count = end - lane->first;
}

/* Whole blocks: a trim does nothing to others. */
static void lane_align(struct lane *lane)
{
	uint32_t end = (uint32_t)align_down(lane->first + lane->count, BLOCK_SECTORS);

	lane->first = (uint32_t)align_up(lane->first, BLOCK_SECTORS);
	lane->count = end > lane->first ? end - lane->first : 0;
}

static void lane_start(struct world *world, uint32_t idx)
{
	static const enum store_op ops[] = { STORE_READ, STORE_READ, STORE_WRITE, STORE_WRITE,
		STORE_WRITE, STORE_WRITE, STORE_WRITE, STORE_WRITE, STORE_ZERO, STORE_TRIM,
		STORE_FLUSH };
	struct lane *lane = &lanes[idx];
	enum store_op op = ops[sim_between(0, ARRAY_COUNT(ops) - 1)];

	lane_range(idx);
	if (op == STORE_TRIM) {
		lane_align(lane);
	}
	lane_begin(lane, op, (uint64_t)lane->first * SECTOR, UINT64_C(0xf1a5) << 32);
	lane->part.done = lane_done;
	for (uint32_t i = 0; lane->part.op == STORE_WRITE && i < lane->count; i++) {
		sector_fill(lane->memory + (size_t)i * SECTOR, lane->tag);
	}
	store_submit(world->queues[sim_between(0, WORLD_RINGS - 1)], &lane->part);
}

/* --- crashes --------------------------------------------------------------------------------- */

static void read_image(struct world *world)
{
	static uint8_t bytes[LENGTH_MAX * SECTOR];
	struct store_part part = { .done = world_part_done };

	for (uint32_t first = 0, count; first < sectors; first += count) {
		count = MIN(sectors - first, (uint32_t)LENGTH_MAX);
		part.op = STORE_READ;
		part.offset = (uint64_t)first * SECTOR;
		part.length = (uint64_t)count * SECTOR;
		part.memory = mem_of(bytes);
		world_submit(world, &part);
		for (uint32_t i = 0; i < count; i++) {
			found[first + i] = sector_tag(bytes + (size_t)i * SECTOR);
		}
	}
}

/* Durable writes in flight that fit into one record. */
static void check_atomic(const char *name)
{
	for (uint32_t i = 0; i < LANES; i++) {
		const struct lane *lane = &lanes[i];
		uint32_t end = (lane->first + lane->count + BLOCK_SECTORS - 1) / BLOCK_SECTORS;
		uint32_t seen = 0;

		if (!lane->busy || lane->part.op != STORE_WRITE ||
			(lane->part.flags & STORE_FUA) == 0 ||
			end - lane->first / BLOCK_SECTORS > WORLD_SEGMENT_BLOCKS - 1) {
			continue;
		}
		for (uint32_t k = 0; k < lane->count; k++) {
			seen += found[lane->first + k] == lane->tag;
		}
		if (seen != 0 && seen != lane->count) {
			fail_msg(
				"%s: %u of %u sectors of a durable write", name, seen, lane->count);
		}
	}
}

static void check_image(struct world *world, bool killed)
{
	read_image(world);
	for (uint32_t i = 0; i < sectors; i++) {
		if (!model_allows(&model[i], found[i], killed)) {
			fail_msg("%s, %s: sector %u (block %u) has %llx, not %llx", world->name,
				killed ? "killed" : "power lost", i, i / BLOCK_SECTORS,
				(unsigned long long)found[i],
				(unsigned long long)model[i].entries[0].tag);
		}
	}
	check_atomic(world->name);
}

/* --- a run ----------------------------------------------------------------------------------- */

static const struct sim_faults faults = { .jitter = true,
	.partial_ppm = 50000,
	.interrupt_ppm = 20000,
	.again_ppm = 10000,
	.slow_ppm = 5000 };

/* The disk is full from the beginning, so that the collector has something to do. */
static void fill(struct world *world)
{
	struct store_part part = { .done = world_part_done };
	uint8_t *bytes = lanes[0].memory;

	for (uint32_t first = 0, length; first < sectors; first += length) {
		length = MIN(sectors - first, (uint32_t)LENGTH_MAX);
		for (uint32_t i = 0; i < length; i++) {
			sector_fill(bytes + (size_t)i * SECTOR, 1 + first);
			model[first + i] =
				(struct sector){ .count = 1, .entries[0] = { 1 + first, 1 } };
		}
		part.op = STORE_WRITE;
		part.flags = STORE_FUA;
		part.offset = (uint64_t)first * SECTOR;
		part.length = (uint64_t)length * SECTOR;
		part.memory = mem_of(bytes);
		world_submit(world, &part);
	}
}

static bool has_cache(void)
{
	return strcmp(world_cache, "0") != 0;
}

/* What may have been answered and is gone, clients must hear of. */
static void check_epoch(const struct world *before, const struct world *after, bool killed)
{
	assert_true(!killed || store_epoch(after->store) == store_epoch(before->store));
	assert_true(
		killed || !has_cache() || store_epoch(after->store) != store_epoch(before->store));
}

/* A checkpoint is half written, and the log behind its beginning has changes. */
static bool is_half_written(struct store *store)
{
	const struct flash *flash = container_of(store, struct flash, base);

	return flash->checkpoint.state > FLASH_CHECKPOINT_DRAIN &&
	       !flash_checkpoint_blocks(flash) && flash->log.since_checkpoint > 0;
}

/* True: the run is to go on with the image, whose contents are known now. */
static bool crash(struct world *world, struct world *image, uint32_t number, bool direct)
{
	bool killed = number % 2 == 0;
	bool goes_on = sim_between(0, 7) == 0;
	char name[32];
	char again[32];

	snprintf(name, sizeof(name), "crash-%u", number);
	snprintf(again, sizeof(again), "again-%u", number);
	half_written += is_half_written(world->store);
	if (killed) {
		world_kill_copy(world->name, name);
	} else {
		(void)sim_disk_crash_copy(sim_disk_find(world->name), name);
	}
	sim_set_faults(&(struct sim_faults){ 0 });
	world_freeze(world, true);
	world_open(image, name, direct, again);
	if (sim_disk_find(again) != NULL) {
		static struct world other;

		/* The power: what was not flushed before may be lost. */
		world_open(&other, again, direct, NULL);
		check_image(&other, killed && image->again_killed);
		check_epoch(world, &other, killed && image->again_killed);
		world_close(&other);
		sim_disk_destroy(sim_disk_find(again));
	}
	check_image(image, killed); /* the last one: the run may go on with what it finds */
	check_epoch(world, image, killed);
	if (!goes_on) {
		world_close(image);
		sim_disk_destroy(sim_disk_find(name));
	}
	world_freeze(world, false);
	sim_set_faults(&faults);
	return goes_on;
}

/* What was recovered is durable; of what is in the cache an older one may be. */
static void model_found(struct sector *sector, uint64_t tag, bool in_cache)
{
	uint32_t last = sector->count;

	while (in_cache && last > 0 && sector->entries[last - 1].tag != tag) {
		last--;
	}
	sector->count = in_cache ? last : 1;
	sector->entries[sector->count - 1] = (struct entry){ tag, ++now };
}

/* What is in flight in the old world ends, and is forgotten. */
static void change_worlds(struct world *world, struct world *image, bool killed)
{
	static struct sector at_crash[SECTORS_MAX];

	memcpy(at_crash, model, sizeof(model));
	world_freeze(image, true);
	while (lanes_are_busy()) {
		assert_true(sim_step());
	}
	world_close(world);
	world_freeze(image, false);
	*world = *image;
	world->store->start = &world->start; /* it has moved */
	for (uint32_t i = 0; i < sectors; i++) {
		model[i] = at_crash[i];
		model_found(&model[i], found[i], killed && has_cache());
	}
}

/* A full disk. Returns whether it is used directly. */
static bool begin(struct world *world, uint64_t seed)
{
	static const char *const caches[] = { "256K", "0", "128K" };
	bool direct = seed % 3 == WORLD_ZONED || seed % 2 == 0;

	now = 2;
	world_cache = caches[seed / 3 % ARRAY_COUNT(caches)];
	sim_start(&(struct sim_options){ .seed = seed });
	world_disk = (enum world_disk)(seed % 3);
	world_make_disk();
	world_open(world, "disk", direct, NULL);
	sectors = (uint32_t)(store_size(world->store) / SECTOR);
	assert_in_range(sectors, 513 * BLOCK_SECTORS, SECTORS_MAX); /* two pages of the map */
	fill(world);
	return direct;
}

static bool has_bad_places; /* on the disk: writes there fail */

/* Begins what may be begun, and does a step. False: there is nothing more to do. */
static bool go_on(struct world *world, uint32_t *started)
{
	bool busy = false;

	for (uint32_t i = 0; i < LANES; i++) {
		if (!lanes[i].busy && *started < OPERATIONS && !has_failed) {
			*started += 1;
			lane_start(world, i);
		}
		busy |= lanes[i].busy;
	}
	if (busy) {
		assert_true(sim_step());
	}
	return busy;
}

/* Returns how many crashes there were. */
static uint32_t run(uint64_t seed, uint32_t crashes_max)
{
	static struct world world;
	static struct world image;
	bool direct = begin(&world, seed);
	uint32_t started = 0;
	uint32_t steps = 0;
	uint32_t crash_at;
	uint32_t crashes = 0;
	bool busy = true;

	sim_set_faults(&faults);
	crash_at = (uint32_t)sim_between(1, STEPS_MAX);
	while (busy) {
		if (has_bad_places && sim_between(0, 9) == 0) {
			world_vary_bad_places(world.name);
		}
		busy = go_on(&world, &started);
		if (is_half_written(world.store) && sim_between(0, 3) == 0) {
			crash_at = steps;
		}
		if (++steps >= crash_at && crashes < crashes_max) {
			bool killed = crashes % 2 == 0;

			if (crash(&world, &image, crashes++, direct)) {
				change_worlds(&world, &image, killed);
				busy = true;
			}
			crash_at = steps + (uint32_t)sim_between(
						   1, sim_between(0, 1) == 0 ? 4 : STEPS_MAX * 4);
		}
	}
	sim_set_faults(&(struct sim_faults){ 0 });
	world_freeze(&world, false);
	sim_disk_set_bad(sim_disk_find(world.name), 0, 0, false, false);
	world_close(&world);
	/* Nothing is lost by an end in order, also by what is not flushed. */
	world_open(&image, world.name, direct, NULL);
	check_image(&image, true);
	world_end(&image);
	return crashes;
}

static void check_copy(const char *name, bool direct, bool killed)
{
	static struct world image;

	world_open(&image, name, direct, NULL);
	check_image(&image, killed);
	world_close(&image);
}

/* A write of the disk fails, it has no space any more, or cannot make durable what it has: in the
 * last case what was not flushed may be gone. The server is killed then, or ends in order. Returns
 * whether that happened. */
static bool fail_once(uint64_t seed)
{
	static struct world world;
	bool direct = begin(&world, seed);
	bool is_kept = seed / 9 % 3 != 0;
	struct sim_faults bad = faults;
	uint32_t started = 0;

	bad.flush_error_ppm = is_kept ? 0 : 400000; /* each is repeated three times */
	bad.write_error_ppm = seed / 9 % 3 == 1 ? 2000 : 0;
	bad.no_space_ppm = seed / 9 % 3 == 2 ? 2000 : 0;
	has_failed = false;
	may_fail = true;
	world_is_full = true; /* the file of the cache stays */
	sim_set_faults(&bad);
	while (go_on(&world, &started) && (!has_failed || sim_between(0, 3) != 0)) {
	}
	sim_set_faults(&(struct sim_faults){ 0 });
	world_kill_copy("disk", "copy");
	world_freeze(&world, true);
	check_copy("copy", direct, is_kept);
	world_freeze(&world, false);
	while (go_on(&world, &started)) {
	}
	world_close(&world);
	check_copy("disk", direct, is_kept);
	sim_stop();
	world_is_full = false;
	may_fail = false;
	return has_failed;
}

static uint64_t seed_first = 1;
static uint64_t crash_points = CRASH_POINTS;

TEST(test_a_disk_that_fails_keeps_what_it_has_taken)
{
	uint64_t count = crash_points / FAILURE_PART;
	uint64_t failed = 0;

	for (uint64_t seed = seed_first; seed < seed_first + count; seed++) {
		failed += fail_once(seed);
	}
	has_failed = false;
	print_message("%llu of %llu disks have failed\n", (unsigned long long)failed,
		(unsigned long long)count);
	assert_true(failed >= count / 2);
}

TEST(test_what_was_flushed_survives_and_nothing_else_appears)
{
	uint64_t crashes = 0;

	for (uint64_t seed = seed_first; crashes < crash_points; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		crashes += run(seed, SEED_CRASHES_MAX);
	}
	print_message("%llu crashes, %llu checkpoints, %llu blocks moved, %llu segments erased\n",
		(unsigned long long)crashes, (unsigned long long)world_totals.checkpoints,
		(unsigned long long)world_totals.moved_blocks,
		(unsigned long long)world_totals.erased_segments);
	assert_true(world_totals.erased_segments > crashes);
	print_message("%llu crashes while a checkpoint was half written, with changes behind its "
		      "beginning\n",
		(unsigned long long)half_written);
	assert_true(half_written > crashes / 100); /* seeds differ: 2 % of some 1500 */
	print_message("%llu blocks evicted, %llu flushed, %llu written back, %llu moved from the "
		      "cache\n",
		(unsigned long long)world_totals.evicted_blocks,
		(unsigned long long)world_totals.flushed_blocks,
		(unsigned long long)world_totals.written_back_blocks,
		(unsigned long long)world_totals.cache_moved_blocks);
	assert_true(world_totals.moved_blocks > crashes);
	assert_true(world_totals.checkpoints >
		    crashes + crashes / 5); /* one for each start, and others */
}

/* Files and devices that are written directly: on others an error is one of the store. */
TEST(test_a_write_that_fails_moves_the_log)
{
	uint64_t moves = world_totals.log_moves;
	uint64_t crashes = 0;

	has_bad_places = true;
	for (uint64_t seed = seed_first; crashes < crash_points / MOVE_PART; seed++) {
		if (seed % 2 == 0 && seed % 3 != WORLD_ZONED) {
			print_message("seed %llu\n", (unsigned long long)seed);
			crashes += run(seed, SEED_CRASHES_MAX);
		}
	}
	has_bad_places = false;
	moves = world_totals.log_moves - moves;
	print_message("%llu crashes, the log was moved %llu times\n", (unsigned long long)crashes,
		(unsigned long long)moves);
	assert_true(moves > crashes / 20);
}

static int setup(void **state)
{
	for (uint32_t i = 0; i < LANES; i++) {
		void *memory = NULL;

		if (posix_memalign(&memory, FLASH_BLOCK_BYTES, LENGTH_MAX * SECTOR + 8192) != 0) {
			return -1;
		}
		lanes[i].memory = memory;
	}
	return 0;
}

static int teardown(void **state)
{
	for (uint32_t i = 0; i < LANES; i++) {
		free(lanes[i].memory);
	}
	return 0;
}

int main(int argc, char **argv)
{
	log_set_level(LOG_LEVEL_ERROR); /* a loss of power is a warning */
	crash_points = argc > 1 ? strtoull(argv[1], NULL, 10) : CRASH_POINTS;
	seed_first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	return unit_run(setup, teardown);
}
