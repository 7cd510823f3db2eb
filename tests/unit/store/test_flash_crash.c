// SPDX-License-Identifier: Apache-2.0
/*
 * A flash store on a simulated disk that loses its power at any moment, or whose server is killed.
 * What was flushed is there, and after a kill all that was answered; every block has contents that
 * it had at some time since; a durable write that is one record is there as a whole or not at all.
 * Now and then the run goes on with what was recovered. The arguments are how many crashes there
 * are, and the first seed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "../stores.h"
#include "base/bytes.h"
#include "sim/sim.h"
#include "store/flash/format.h"

enum {
	SECTOR = 512,
	SECTORS_MAX = 8192,
	BLOCK_SECTORS = FLASH_BLOCK_BYTES / SECTOR,
	LANES = 6, /* operations in flight together, each on sectors of its own */
	ENTRIES_MAX = 40,
	OPERATIONS = 700, /* of one seed */
	RINGS = 2,	  /* the first one is the owner's */
	LENGTH_MAX = 96,  /* sectors */
	CRASH_POINTS = 2000,
	SEGMENT_BLOCKS = 16,
	SEGMENTS = 64,
	STEPS_MAX = 60, /* from crash to crash */
	SEED_CRASHES_MAX = 100,
	START_STEPS_MAX = 15,
	START_PAGES = 700,
	SINGLE_STEPS_MAX = 50000, /* of a write of one block */
	ROT_WRITES = 15,
	ROT_BLOCKS_MAX = 24, /* of one of them */
	ROT_LAST_BLOCKS = 70,
};

/* What a sector may hold. The first is what it had at the last flush. */
struct entry {
	uint64_t tag;
	uint64_t done; /* when it was written, or 0 */
};

struct sector {
	struct entry entries[ENTRIES_MAX];
	uint32_t count;
};

static struct sector model[SECTORS_MAX];
static uint64_t found[SECTORS_MAX]; /* tags in an image */
static uint32_t sectors;
static uint64_t now; /* counts what happens */

struct world {
	struct ring *rings[RINGS];
	struct store *store;
	struct store_start start;
	struct store_queue *queues[RINGS];
	void *budget;
	bool started;
	char name[32];
};

struct lane {
	struct store_part part;
	uint8_t *memory;
	bool busy;
	uint64_t tag; /* of a change */
	uint64_t began;
	uint32_t first;
	uint32_t count;
};

static struct lane lanes[LANES];

/* --- the disk ------------------------------------------------------------------------------- */

static void sector_fill(uint8_t *bytes, uint64_t tag)
{
	for (int i = 0; i < SECTOR; i += 8) {
		memcpy(bytes + i, &tag, sizeof(tag));
	}
}

/* The tag of a sector that is whole. */
static uint64_t sector_tag(const uint8_t *bytes)
{
	uint8_t whole[SECTOR];
	uint64_t tag;

	memcpy(&tag, bytes, sizeof(tag));
	sector_fill(whole, tag);
	assert_int_equal(memcmp(bytes, whole, SECTOR), 0); /* assert_memory_equal() is slow */
	return tag;
}

static struct sim_disk_options disk_options(void)
{
	return (struct sim_disk_options){ .size = (FLASH_SEGMENTS_AT + SEGMENTS * SEGMENT_BLOCKS) *
						  (uint64_t)FLASH_BLOCK_BYTES,
		.direct_offset_align = 512 };
}

static void start_done(struct store_start *start)
{
	container_of(start, struct world, start)->started = true;
}

/* Opens the store, and begins to start it. */
static void world_begin(struct world *world, const char *name, bool direct, bool read_only)
{
	enum store_mode mode = direct ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
	char path[64];
	struct store_options options = {
		.path = path, .read_only = read_only, .read_mode = mode, .write_mode = mode
	};
	struct error error;

	memset(world, 0, sizeof(*world));
	snprintf(world->name, sizeof(world->name), "%s", name);
	snprintf(path, sizeof(path), "flash:%s", name);
	if (store_open(&options, &world->store, &error) < 0) {
		fail_msg("%s", error.text);
	}
	for (int i = 0; i < RINGS; i++) {
		assert_int_equal(
			ring_create(&(struct ring_options){ 0 }, &world->rings[i], &error), 0);
		assert_int_equal(store_queue_create(
					 world->store, world->rings[i], &world->queues[i], &error),
			0);
	}
	world->budget = mmap(NULL, store_budget(world->store), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(world->budget != MAP_FAILED);
	world->start.ring = world->rings[0];
	world->start.memory = mem_of(world->budget);
	world->start.done = start_done;
	store_start(world->store, &world->start);
}

/* again: the power fails once more while the store is started; what is left then, or NULL. */
static void world_open(struct world *world, const char *name, bool direct, const char *again)
{
	uint64_t steps = sim_between(0, START_STEPS_MAX);

	world_begin(world, name, direct, false);
	while (!world->started) {
		if (again != NULL && steps-- == 0) {
			(void)sim_disk_crash_copy(sim_disk_find(name), again);
		}
		assert_true(sim_step());
	}
	if (world->start.result < 0) {
		fail_msg("%s: %s", name, world->start.error.text);
	}
}

static uint64_t moved_blocks; /* by all collectors */
static uint64_t checkpoints;

static void count(const struct world *world)
{
	const struct counter_table *table;
	const void *values = store_queue_counters(world->queues[0], &table);

	for (size_t i = 0; i < table->count; i++) {
		uint64_t value = counter_value(&table->counters[i], values);

		if (strcmp(table->counters[i].name, "moved_blocks") == 0) {
			moved_blocks += value;
		} else if (strcmp(table->counters[i].name, "checkpoints") == 0) {
			checkpoints += value;
		} else if (strcmp(table->counters[i].name, "checksum_errors") == 0) {
			assert_int_equal(value, 0);
		}
	}
}

static void world_discard(struct world *world)
{
	uint64_t budget = store_budget(world->store);

	for (int i = 0; i < RINGS; i++) {
		store_queue_destroy(world->queues[i]);
		ring_destroy(world->rings[i]);
	}
	store_close(world->store);
	(void)munmap(world->budget, budget);
}

static void world_close(struct world *world)
{
	count(world);
	world_discard(world);
}

static void world_freeze(const struct world *world, bool frozen)
{
	for (int i = 0; i < RINGS; i++) {
		sim_freeze(world->rings[i], frozen);
	}
}

/* --- what may be there ----------------------------------------------------------------------- */

static void model_begin(const struct lane *lane)
{
	for (uint32_t i = lane->first; i < lane->first + lane->count; i++) {
		struct sector *sector = &model[i];

		assert_true(sector->count < ENTRIES_MAX);
		sector->entries[sector->count++] = (struct entry){ lane->tag, 0 };
	}
}

static void model_done(const struct lane *lane)
{
	for (uint32_t i = lane->first; i < lane->first + lane->count; i++) {
		model[i].entries[model[i].count - 1].done = ++now;
	}
}

static uint32_t last_done(const struct sector *sector, uint64_t before)
{
	uint32_t last = 0;

	for (uint32_t k = 0; k < sector->count; k++) {
		if (sector->entries[k].done != 0 && sector->entries[k].done < before) {
			last = k;
		}
	}
	return last;
}

/* Of what was done before that moment only the last is left. */
static void model_flushed(uint32_t first, uint32_t count, uint64_t began)
{
	for (uint32_t i = first; i < first + count; i++) {
		struct sector *sector = &model[i];
		uint32_t last = last_done(sector, began);

		sector->count -= last;
		memmove(sector->entries, sector->entries + last,
			sector->count * sizeof(struct entry));
	}
}

static bool model_allows(const struct sector *sector, uint64_t tag, bool killed)
{
	for (uint32_t k = killed ? last_done(sector, UINT64_MAX) : 0; k < sector->count; k++) {
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

	assert_int_equal(result, 0);
	lane->busy = false;
	if (part->op == STORE_READ) {
		check_read(lane);
	} else if (part->op == STORE_FLUSH) {
		model_flushed(0, sectors, lane->began);
	} else {
		model_done(lane);
		if ((part->flags & STORE_FUA) != 0) {
			model_flushed(lane->first, lane->count, now + 1);
		}
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

static bool is_full(const struct lane *lane)
{
	for (uint32_t i = lane->first; i < lane->first + lane->count; i++) {
		if (model[i].count == ENTRIES_MAX) {
			return true;
		}
	}
	return false;
}

static void lane_start(struct world *world, uint32_t idx)
{
	static const enum store_op ops[] = { STORE_READ, STORE_READ, STORE_WRITE, STORE_WRITE,
		STORE_WRITE, STORE_WRITE, STORE_WRITE, STORE_WRITE, STORE_ZERO, STORE_TRIM,
		STORE_FLUSH };
	struct lane *lane = &lanes[idx];
	enum store_op op = ops[sim_between(0, ARRAY_COUNT(ops) - 1)];

	memset(&lane->part, 0, sizeof(lane->part));
	lane_range(idx);
	if (op == STORE_TRIM) {
		lane_align(lane);
	}
	if (op == STORE_FLUSH || lane->count == 0 || is_full(lane)) {
		op = STORE_FLUSH;
		lane->count = 0;
	}
	lane->part.op = op;
	lane->part.flags =
		op != STORE_READ && op != STORE_FLUSH && sim_between(0, 5) == 0 ? STORE_FUA : 0;
	lane->part.offset = op == STORE_FLUSH ? 0 : (uint64_t)lane->first * SECTOR;
	lane->part.length = (uint64_t)lane->count * SECTOR;
	lane->part.memory = mem_of(lane->memory);
	lane->part.done = lane_done;
	lane->tag = op == STORE_WRITE ? UINT64_C(0xf1a5) << 32 | ++now : 0;
	lane->began = ++now;
	lane->busy = true;
	for (uint32_t i = 0; op == STORE_WRITE && i < lane->count; i++) {
		sector_fill(lane->memory + (size_t)i * SECTOR, lane->tag);
	}
	if ((BIT(op) & STORE_CHANGES) != 0) {
		model_begin(lane);
	}
	store_submit(world->queues[sim_between(0, RINGS - 1)], &lane->part);
}

/* --- crashes --------------------------------------------------------------------------------- */

static void one_done(struct store_part *part, int result)
{
	assert_int_equal(result, 0);
	part->op = STORE_OP_COUNT;
}

static void read_image(const struct world *world)
{
	static uint8_t bytes[LENGTH_MAX * SECTOR];
	struct store_part part = { .done = one_done };

	for (uint32_t first = 0, count; first < sectors; first += count) {
		count = MIN(sectors - first, (uint32_t)LENGTH_MAX);
		part.op = STORE_READ;
		part.offset = (uint64_t)first * SECTOR;
		part.length = (uint64_t)count * SECTOR;
		part.memory = mem_of(bytes);
		store_submit(world->queues[0], &part);
		while (part.op == STORE_READ) {
			assert_true(sim_step());
		}
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
			end - lane->first / BLOCK_SECTORS > SEGMENT_BLOCKS - 1) {
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

static void check_image(const struct world *world, bool killed)
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

/* The page cache of a killed server stays. */
static void kill_copy(struct sim_disk *disk, const char *name)
{
	struct sim_disk_options options = disk_options();
	struct sim_disk *copy = sim_disk_create(name, &options);
	static uint8_t bytes[64 * 1024];

	for (uint64_t at = 0; at < options.size; at += sizeof(bytes)) {
		size_t count = (size_t)MIN(options.size - at, (uint64_t)sizeof(bytes));

		sim_disk_peek(disk, at, bytes, count);
		if (bytes[0] != 0 || memcmp(bytes, bytes + 1, count - 1) != 0) {
			sim_disk_poke(copy, at, bytes, count);
		}
	}
}

/* --- a run ----------------------------------------------------------------------------------- */

static const struct sim_faults faults = { .jitter = true,
	.partial_ppm = 50000,
	.interrupt_ppm = 20000,
	.again_ppm = 10000,
	.slow_ppm = 5000 };

static void make_disk(void)
{
	struct sim_disk_options options = disk_options();
	struct store_create create = { .segment_bytes =
					       (uint64_t)SEGMENT_BLOCKS * FLASH_BLOCK_BYTES };
	struct error error;

	(void)sim_disk_create("disk", &options);
	if (store_create("flash:disk", &create, &error) < 0) {
		fail_msg("%s", error.text);
	}
}

/* The disk is full from the beginning, so that the collector has something to do. */
static void fill(struct world *world)
{
	struct store_part part = { .done = one_done };
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
		store_submit(world->queues[0], &part);
		while (part.op == STORE_WRITE) {
			assert_true(sim_step());
		}
	}
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
	if (killed) {
		kill_copy(sim_disk_find(world->name), name);
	} else {
		(void)sim_disk_crash_copy(sim_disk_find(world->name), name);
	}
	sim_set_faults(&(struct sim_faults){ 0 });
	world_freeze(world, true);
	world_open(image, name, direct, again);
	check_image(image, killed);
	if (sim_disk_find(again) != NULL) {
		static struct world other;

		world_open(&other, again, direct, NULL);
		check_image(&other, killed);
		world_close(&other);
		sim_disk_destroy(sim_disk_find(again));
	}
	if (!goes_on) {
		world_close(image);
		sim_disk_destroy(sim_disk_find(name));
	}
	world_freeze(world, false);
	sim_set_faults(&faults);
	return goes_on;
}

/* What is in flight in the old world ends, and is forgotten. */
static void change_worlds(struct world *world, struct world *image)
{
	bool busy = true;

	world_freeze(image, true);
	while (busy) {
		busy = false;
		for (uint32_t i = 0; i < LANES; i++) {
			busy |= lanes[i].busy;
		}
		if (busy) {
			assert_true(sim_step());
		}
	}
	world_close(world);
	world_freeze(image, false);
	*world = *image;
	world->store->start = &world->start; /* it has moved */
	for (uint32_t i = 0; i < sectors; i++) {
		model[i] = (struct sector){ .count = 1, .entries[0] = { found[i], ++now } };
	}
}

/* Returns how many crashes there were. */
static uint32_t run(uint64_t seed, uint32_t crashes_max)
{
	static struct world world;
	static struct world image;
	bool direct = seed % 3 == 0;
	uint32_t started = 0;
	uint32_t steps = 0;
	uint32_t crash_at;
	uint32_t crashes = 0;
	bool busy = true;

	now = 2;
	sim_start(&(struct sim_options){ .seed = seed });
	make_disk();
	world_open(&world, "disk", direct, NULL);
	sectors = (uint32_t)(store_size(world.store) / SECTOR);
	assert_in_range(sectors, 513 * BLOCK_SECTORS, SECTORS_MAX); /* two pages of the map */
	fill(&world);
	sim_set_faults(&faults);
	crash_at = (uint32_t)sim_between(1, STEPS_MAX);
	while (busy) {
		busy = false;
		for (uint32_t i = 0; i < LANES; i++) {
			if (!lanes[i].busy && started < OPERATIONS) {
				started++;
				lane_start(&world, i);
			}
			busy |= lanes[i].busy;
		}
		if (busy) {
			assert_true(sim_step());
		}
		if (++steps >= crash_at && crashes < crashes_max) {
			if (crash(&world, &image, crashes++, direct)) {
				change_worlds(&world, &image);
				busy = true;
			}
			crash_at = steps + (uint32_t)sim_between(
						   1, sim_between(0, 1) == 0 ? 4 : STEPS_MAX * 4);
		}
	}
	sim_set_faults(&(struct sim_faults){ 0 });
	world_freeze(&world, false);
	world_close(&world);
	/* Nothing is lost by an end in order, also by what is not flushed. */
	world_open(&image, world.name, direct, NULL);
	check_image(&image, true);
	world_close(&image);
	sim_stop();
	return crashes;
}

/* Each block in a record of its own, so that half of the log is headers: there is room for all of
 * them only because the collector writes longer records. */
static void test_single_blocks_fill_the_disk(void **state)
{
	static struct world world;
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	struct store_part part = { .done = one_done };
	uint64_t blocks;

	GMB_UNUSED(state);
	sim_start(&(struct sim_options){ .seed = 1 });
	make_disk();
	world_open(&world, "disk", false, NULL);
	blocks = store_size(world.store) >> FLASH_BLOCK_SHIFT;
	for (uint64_t i = 0; i < 3 * blocks; i++) {
		uint32_t steps = 0;

		part.op = STORE_WRITE;
		part.flags = STORE_FUA;
		part.offset = (i * 7 % blocks) << FLASH_BLOCK_SHIFT;
		part.length = sizeof(bytes);
		part.memory = mem_of(bytes);
		store_submit(world.queues[0], &part);
		while (part.op == STORE_WRITE) {
			assert_true(sim_step());
			assert_true(++steps < SINGLE_STEPS_MAX);
		}
	}
	world_close(&world);
	sim_stop();
}

static uint64_t seed_first = 1;
static uint64_t crash_points = CRASH_POINTS;

static void test_what_was_flushed_survives_and_nothing_else_appears(void **state)
{
	uint64_t crashes = 0;

	GMB_UNUSED(state);
	for (uint32_t i = 0; i < LANES; i++) {
		void *memory = NULL;

		assert_int_equal(
			posix_memalign(&memory, FLASH_BLOCK_BYTES, LENGTH_MAX * SECTOR + 8192), 0);
		lanes[i].memory = memory;
	}
	for (uint64_t seed = seed_first; crashes < crash_points; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		crashes += run(seed, SEED_CRASHES_MAX);
	}
	print_message("%llu crashes, %llu checkpoints, %llu blocks moved\n",
		(unsigned long long)crashes, (unsigned long long)checkpoints,
		(unsigned long long)moved_blocks);
	assert_true(moved_blocks > crashes);
	assert_true(checkpoints > crashes + crashes / 5); /* one for each start, and others */
	for (uint32_t i = 0; i < LANES; i++) {
		free(lanes[i].memory);
	}
}

/* A crash has torn one anchor. One more, while the store is started, must not tear the other. */
static void test_one_good_anchor_is_not_written_first(void **state)
{
	static struct world world;
	static const uint8_t torn[SECTOR] = { 1 };

	GMB_UNUSED(state);
	for (uint64_t seed = 1; seed <= 120; seed++) {
		sim_start(&(struct sim_options){ .seed = seed });
		make_disk();
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

/* Its checkpoint needs several records, which cannot be written. */
static void test_a_start_that_fails_leaves_nothing_in_flight(void **state)
{
	static struct world world;
	static uint8_t bytes[FLASH_BLOCK_BYTES];
	struct sim_disk_options options = { .size = UINT64_C(1) << 31 };
	struct store_create create = { 0 };
	struct store_part part = { .done = one_done };
	struct error error;

	GMB_UNUSED(state);
	sim_start(&(struct sim_options){ .seed = 1 });
	(void)sim_disk_create("disk", &options);
	assert_int_equal(store_create("flash:disk", &create, &error), 0);
	world_open(&world, "disk", false, NULL);
	for (uint64_t page = 0; page < START_PAGES; page++) {
		part.op = STORE_WRITE;
		part.offset = page * FLASH_NODE_ENTRIES * FLASH_BLOCK_BYTES;
		part.length = sizeof(bytes);
		part.memory = mem_of(bytes);
		store_submit(world.queues[0], &part);
		while (part.op == STORE_WRITE) {
			assert_true(sim_step());
		}
	}
	world_close(&world);
	sim_disk_set_bad(sim_disk_find("disk"), FLASH_SEGMENTS_AT * FLASH_BLOCK_BYTES, options.size,
		false, true);
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	world_begin(&world, "disk", false, false);
	while (!world.started) {
		assert_true(sim_step());
	}
	assert_int_equal(world.start.result, -EIO);
	assert_non_null(strstr(world.start.error.text, "cannot write the checkpoint of 'disk'"));
	world_close(&world);
	sim_stop();
}

/* --- damage ---------------------------------------------------------------------------------- */

static uint64_t expected[SECTORS_MAX / BLOCK_SECTORS];

static void rot_submit(struct world *world, enum store_op op, uint32_t first, uint32_t count)
{
	static uint8_t bytes[ROT_LAST_BLOCKS * FLASH_BLOCK_BYTES];
	struct store_part part = { .done = one_done, .op = op, .memory = mem_of(bytes) };

	part.offset = (uint64_t)first * FLASH_BLOCK_BYTES;
	part.length = (uint64_t)count * FLASH_BLOCK_BYTES;
	now++;
	for (uint32_t i = 0; op == STORE_WRITE && i < count * BLOCK_SECTORS; i++) {
		sector_fill(bytes + (size_t)i * SECTOR, now);
		expected[first + i / BLOCK_SECTORS] = now;
	}
	store_submit(world->queues[0], &part);
	while (part.op == op) {
		assert_true(sim_step());
	}
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

static int read_result;

static void read_done(struct store_part *part, int result)
{
	read_result = result;
	part->op = STORE_OP_COUNT;
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
	while (!world.started) {
		assert_true(sim_step());
	}
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

static void check_fact(struct store_check *check, const char *key, const char *value)
{
	GMB_UNUSED(check);
	GMB_UNUSED(key);
	GMB_UNUSED(value);
}

static void check_amount(struct store_check *check, const char *key, uint64_t bytes)
{
	GMB_UNUSED(check);
	GMB_UNUSED(key);
	GMB_UNUSED(bytes);
}

static struct rot_found *rot_checked;

static void check_fault(struct store_check *check, const char *text)
{
	GMB_UNUSED(check);
	rot_checked->faults++;
	rot_checked->lost |= strstr(text, "were flushed, are lost") != NULL;
}

static void rot_check(struct rot_found *rot, const char *name)
{
	struct store_check check = {
		.fact = check_fact, .amount = check_amount, .fault = check_fault
	};
	struct error error;

	rot_checked = rot;
	assert_int_equal(store_check(name, &check, &error), 0);
}

static void expect_refused(const char *name)
{
	static struct world world;

	world_begin(&world, name, false, false);
	while (!world.started) {
		assert_true(sim_step());
	}
	assert_int_equal(world.start.result, -EUCLEAN);
	assert_non_null(strstr(world.start.error.text, "were flushed, are lost"));
	world_discard(&world);
}

/* Each block of a log is damaged in turn: what is read is right, or an error, or what was flushed
 * is said to be lost, and the store refused. */
static void test_damage_to_what_was_flushed_is_told(void **state)
{
	static struct world world;
	uint64_t size = disk_options().size;
	uint32_t refused = 0;
	uint32_t errors = 0;
	uint32_t blocks;

	GMB_UNUSED(state);
	sim_start(&(struct sim_options){ .seed = 1 });
	make_disk();
	world_open(&world, "disk", false, NULL);
	kill_copy(sim_disk_find("disk"), "before");
	blocks = (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES);
	rot_write(&world, blocks);
	kill_copy(sim_disk_find("disk"), "rot");
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
			expect_refused("rot");
		}
		refused += rot.lost;
		errors += rot.errors;
		after[300] ^= 4;
		sim_disk_poke(sim_disk_find("rot"), at, after, sizeof(after));
	}
	print_message("%u headers, %u blocks\n", refused, errors);
	assert_true(refused >= ROT_WRITES && errors >= ROT_LAST_BLOCKS);
	world_close(&world);
	sim_stop();
}

/* Where the headers of the first and the last two records behind the checkpoint are. */
static void rot_headers(uint64_t headers[3])
{
	uint64_t seq = 0;
	struct flash_anchor anchor;
	struct error error;
	uint8_t block[FLASH_BLOCK_BYTES];

	sim_disk_peek(sim_disk_find("rot"), 0, block, sizeof(block));
	assert_int_equal(flash_anchor_decode(block, &anchor, &error), 0);
	headers[0] = flash_segment_at(&anchor.geometry, anchor.next.segment) + anchor.next.block;
	headers[0] *= FLASH_BLOCK_BYTES;
	for (uint64_t at = FLASH_SEGMENTS_AT * FLASH_BLOCK_BYTES; at < disk_options().size;
		at += FLASH_BLOCK_BYTES) {
		struct flash_record record;

		sim_disk_peek(sim_disk_find("rot"), at, block, sizeof(block));
		if (flash_record_look(block, &anchor, &record) && record.seq > seq) {
			seq = record.seq;
			headers[1] = headers[2];
			headers[2] = at;
		}
	}
}

/* A block that cannot be read hides no record around it, nor what a later one says of another. */
static void test_a_bad_block_hides_no_records(void **state)
{
	static struct world world;
	static const uint8_t torn[SECTOR] = { 1 };
	uint64_t headers[3] = { 0 };

	GMB_UNUSED(state);
	sim_start(&(struct sim_options){ .seed = 1 });
	make_disk();
	world_open(&world, "disk", false, NULL);
	rot_write(&world, (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES));
	kill_copy(sim_disk_find("disk"), "rot");
	rot_headers(headers);
	assert_in_range(headers[2] - headers[1], 3 * FLASH_BLOCK_BYTES, 15 * FLASH_BLOCK_BYTES);
	for (int i = 0; i < 2; i++) {
		struct rot_found rot = { 0 };

		sim_disk_set_bad(sim_disk_find("rot"), headers[i] + FLASH_BLOCK_BYTES,
			FLASH_BLOCK_BYTES, true, false);
		rot_read(&rot, "rot", (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES));
		assert_true(rot.wrong == 0 && rot.errors <= 1);
	}
	sim_disk_poke(sim_disk_find("rot"), headers[1], torn, sizeof(torn));
	expect_refused("rot");
	world_close(&world);
	sim_stop();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_good_anchor_is_not_written_first),
		cmocka_unit_test(test_single_blocks_fill_the_disk),
		cmocka_unit_test(test_damage_to_what_was_flushed_is_told),
		cmocka_unit_test(test_a_bad_block_hides_no_records),
		cmocka_unit_test(test_a_start_that_fails_leaves_nothing_in_flight),
		cmocka_unit_test(test_what_was_flushed_survives_and_nothing_else_appears),
	};

	stores_register();
	crash_points = argc > 1 ? strtoull(argv[1], NULL, 10) : CRASH_POINTS;
	seed_first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
