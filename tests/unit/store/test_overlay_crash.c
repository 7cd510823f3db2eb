// SPDX-License-Identifier: Apache-2.0
/*
 * An overlay over a simulated disk that loses its power at any moment, or whose server is killed:
 * what was flushed is there, and every sector has contents that it had at some time since. The
 * argument is how many seeds are tried, and the first of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash_model.h"

#include "../stores.h"
#include "base/bytes.h"
#include "sim/sim.h"
#include "unit.h"

enum {
	SECTOR = 512,
	SECTORS =
		4200, /* the disk ends inside a block; two pages of bits are not needed for that */
	OPERATIONS = 250,
	CRASHES = 40,
	RINGS = 2,	 /* two reactors */
	LENGTH_MAX = 64, /* sectors */
	SEEDS = 16,
};
#define DISK_BYTES ((uint64_t)SECTORS * SECTOR)
#define SPREAD	   (UINT64_C(160) << 20) /* between the halves of the disk: bits of two pages */

static struct sector at_crash[SECTORS];
struct world {
	struct ring *rings[RINGS];
	struct store *store;
	struct store_queue *queues[RINGS];
	struct sim_disk *upper;
};

/* --- the disk ------------------------------------------------------------------------------- */

/* The sectors lie in two places far apart. */
static uint64_t offset_of(uint32_t sector)
{
	return (uint64_t)sector * SECTOR + (sector >= SECTORS / 2 ? SPREAD : 0);
}

static uint64_t base_tag(uint32_t sector)
{
	return UINT64_C(0xba5e) << 32 | sector;
}

static void sector_fill(uint8_t *bytes, uint64_t tag)
{
	for (int i = 0; i < SECTOR; i += 8) {
		memcpy(bytes + i, &tag, sizeof(tag));
	}
}

static bool sector_is(const uint8_t *bytes, uint64_t tag)
{
	uint8_t whole[SECTOR];

	sector_fill(whole, tag);
	return memcmp(bytes, whole, SECTOR) == 0;
}

static void make_disks(void)
{
	struct sim_disk *base =
		sim_disk_create("base", &(struct sim_disk_options){ .size = DISK_BYTES + SPREAD,
						.direct_offset_align = 512 });
	uint8_t bytes[SECTOR];

	for (uint32_t i = 0; i < SECTORS; i++) {
		sector_fill(bytes, base_tag(i));
		sim_disk_poke(base, offset_of(i), bytes, SECTOR);
		model[i] = (struct sector){ .count = 1, .entries[0] = { base_tag(i), 1 } };
	}
}

static struct store *overlay_open(const char *path, bool direct)
{
	enum store_mode mode = direct ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
	struct store_options options = { .path = "base", .read_mode = mode, .write_mode = mode };
	struct store *store;
	struct error error;

	stores_set(&options, "overlay", path);
	if (store_open(&options, &store, &error) < 0) {
		fail_msg("%s", error.text);
	}
	store_options_fini(&options);
	return store;
}

/* --- what may be there ----------------------------------------------------------------------- */

/* While a sector is being written, it may be that of two writes. */
static bool model_allows(const struct sector *sector, const uint8_t *bytes)
{
	uint64_t tag;
	bool torn = false;
	int matches = 0;

	for (uint32_t k = 0; k < sector->count; k++) {
		if (sector_is(bytes, sector->entries[k].tag)) {
			return true;
		}
		torn |= sector->entries[k].done == 0;
	}
	for (int i = 0; torn && i < SECTOR; i++) {
		bool found = false;

		for (uint32_t k = 0; k < sector->count && !found; k++) {
			tag = sector->entries[k].tag;
			found = bytes[i] == ((const uint8_t *)&tag)[i % 8];
		}
		matches += found;
	}
	return matches == SECTOR;
}

/* --- operations ------------------------------------------------------------------------------ */

static void check_read(const struct lane *lane)
{
	const uint8_t *bytes = (const uint8_t *)mem_address(lane->part.memory);

	for (uint32_t i = 0; i < lane->count; i++) {
		const struct sector *sector = &model[lane->first + i];

		assert_true(sector_is(
			bytes + (size_t)i * SECTOR, sector->entries[sector->count - 1].tag));
	}
}

static void lane_done(struct store_part *part, int result)
{
	struct lane *lane = container_of(part, struct lane, part);

	assert_int_equal(result, 0);
	lane->busy = false;
	if (part->op == STORE_READ) {
		check_read(lane);
	} else {
		lane_done_well(lane, SECTORS);
	}
}

/* Whole blocks: a trim does nothing to others. The last sectors of the disk are a block. */
static void lane_align(struct lane *lane)
{
	uint32_t end = lane->first + lane->count;

	lane->first = (uint32_t)align_up(lane->first, 8);
	end = end == SECTORS ? end : (uint32_t)align_down(end, 8);
	lane->count = end > lane->first ? end - lane->first : 0;
}

/* Half of them are beside another one that is in flight, in the same block perhaps. */
static void lane_range(uint32_t idx)
{
	const struct lane *other = &lanes[sim_between(0, LANES - 1)];
	struct lane *lane = &lanes[idx];
	uint32_t end;

	lane->first = (uint32_t)sim_between(0, SECTORS - 1);
	if (other->busy && sim_between(0, 1) == 0) {
		lane->first = MIN(other->first + other->count, (uint32_t)SECTORS - 1);
	}
	end = lane->first < SECTORS / 2 ? SECTORS / 2 : SECTORS;
	end = MIN(end, lane->first + (uint32_t)sim_between(1, LENGTH_MAX));
	for (uint32_t i = 0; i < LANES; i++) {
		if (i != idx && lanes[i].busy && lanes[i].first + lanes[i].count > lane->first) {
			end = lanes[i].first < lane->first ? lane->first : MIN(end, lanes[i].first);
		}
	}
	lane->count = end - lane->first;
}

static void lane_start(struct world *world, uint32_t idx)
{
	static const enum store_op ops[] = { STORE_READ, STORE_READ, STORE_WRITE, STORE_WRITE,
		STORE_WRITE, STORE_WRITE, STORE_ZERO, STORE_TRIM, STORE_FLUSH };
	struct lane *lane = &lanes[idx];
	enum store_op op = ops[sim_between(0, ARRAY_COUNT(ops) - 1)];

	lane_range(idx);
	if (op == STORE_TRIM) {
		lane_align(lane);
	}
	lane_begin(lane, op, offset_of(lane->first), UINT64_C(0x3217e) << 32);
	lane->part.done = lane_done;
	for (uint32_t i = 0; lane->part.op == STORE_WRITE && i < lane->count; i++) {
		sector_fill(lane->memory + (size_t)i * SECTOR, lane->tag);
	}
	store_submit(world->queues[sim_between(0, RINGS - 1)], &lane->part);
}

/* --- crashes --------------------------------------------------------------------------------- */

static void one_done(struct store_part *part, int result)
{
	assert_int_equal(result, 0);
	part->op = STORE_OP_COUNT;
}

/* What is seen through the overlay in that file. */
static void check_image(const char *path)
{
	struct store *store = overlay_open(path, false);
	struct store_queue *queue;
	struct store_part part = { .done = one_done };
	struct ring *ring;
	struct error error;
	uint8_t bytes[LENGTH_MAX * SECTOR];

	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &ring, &error), 0);
	assert_int_equal(store_queue_create(store, ring, &queue, &error), 0);
	for (uint32_t first = 0, count; first < SECTORS; first += count) {
		count = (first < SECTORS / 2 ? SECTORS / 2 : SECTORS) - first;
		count = MIN(count, (uint32_t)LENGTH_MAX);
		part.op = STORE_READ;
		part.offset = offset_of(first);
		part.length = (uint64_t)count * SECTOR;
		part.memory = mem_of(bytes);
		store_submit(queue, &part);
		while (part.op == STORE_READ) {
			assert_true(sim_step());
		}
		for (uint32_t i = 0; i < count; i++) {
			uint64_t word;

			memcpy(&word, bytes + (size_t)i * SECTOR, sizeof(word));
			if (!model_allows(&at_crash[first + i], bytes + (size_t)i * SECTOR)) {
				fail_msg("%s: sector %u begins with %llx", path, first + i,
					(unsigned long long)word);
			}
		}
	}
	store_queue_destroy(queue);
	store_close(store);
	ring_destroy(ring);
}

/* --- a run ----------------------------------------------------------------------------------- */

static void world_open(struct world *world, bool direct)
{
	struct error error;

	make_disks();
	world->store = overlay_open("changes", direct);
	world->upper = sim_disk_find("changes");
	for (int i = 0; i < RINGS; i++) {
		assert_int_equal(
			ring_create(&(struct ring_options){ 0 }, &world->rings[i], &error), 0);
		assert_int_equal(store_queue_create(
					 world->store, world->rings[i], &world->queues[i], &error),
			0);
	}
	for (int i = 0; i < LANES; i++) {
		void *memory = NULL;

		assert_int_equal(posix_memalign(&memory, 4096, LENGTH_MAX * SECTOR), 0);
		lanes[i].memory = memory;
		lanes[i].busy = false;
	}
}

static void world_close(struct world *world)
{
	for (int i = 0; i < RINGS; i++) {
		store_queue_destroy(world->queues[i]);
		ring_destroy(world->rings[i]);
	}
	store_close(world->store);
	for (int i = 0; i < LANES; i++) {
		free(lanes[i].memory);
	}
}

static void run(uint64_t seed)
{
	struct sim_faults faults = { .jitter = true,
		.partial_ppm = 100000,
		.interrupt_ppm = 20000,
		.again_ppm = 10000,
		.slow_ppm = 10000 };
	struct world world;
	uint32_t crash_at;
	uint32_t started = 0;
	uint32_t steps = 0;
	uint32_t crashes = 0;
	bool busy = true;
	char name[32];

	now = 1;
	sim_start(&(struct sim_options){ .seed = seed });
	world_open(&world, seed % 3 == 0);
	sim_set_faults(&faults);
	crash_at = (uint32_t)sim_between(5, 60);
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
		if (++steps == crash_at && crashes < CRASHES) {
			snprintf(name, sizeof(name), "crash-%u", crashes++);
			memcpy(at_crash, model, sizeof(at_crash));
			if (crashes % 2 == 0) {
				(void)sim_disk_kill_copy(world.upper, name);
			} else {
				(void)sim_disk_crash_copy(world.upper, name);
			}
			sim_set_faults(&(struct sim_faults){ 0 });
			sim_freeze(world.rings[0], true);
			sim_freeze(world.rings[1], true);
			check_image(name);
			sim_freeze(world.rings[0], false);
			sim_freeze(world.rings[1], false);
			sim_set_faults(&faults);
			crash_at = steps + (uint32_t)sim_between(5, 60);
		}
	}
	assert_true(crashes > 0);
	sim_set_faults(&(struct sim_faults){ 0 });
	world_close(&world);
	/* Nothing is lost by an end in order, also by what is not flushed. */
	memcpy(at_crash, model, sizeof(at_crash));
	for (uint32_t i = 0; i < SECTORS; i++) {
		at_crash[i].entries[0] = at_crash[i].entries[at_crash[i].count - 1];
		at_crash[i].count = 1;
	}
	check_image("changes");
	sim_stop();
}

static uint64_t seed_first = 1;
static uint64_t seed_count = SEEDS;

TEST(test_what_was_flushed_survives_and_nothing_else_appears)
{
	for (uint64_t seed = seed_first; seed < seed_first + seed_count; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		run(seed);
	}
}

/* --- a kill, and then the power ----------------------------------------------------------------
 */

struct opened {
	struct store *store;
	struct ring *ring;
	struct store_queue *queue;
};

static void image_open(struct opened *image, const char *path)
{
	struct error error;

	image->store = overlay_open(path, false);
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &image->ring, &error), 0);
	assert_int_equal(store_queue_create(image->store, image->ring, &image->queue, &error), 0);
}

static void image_close(struct opened *image)
{
	store_queue_destroy(image->queue);
	store_close(image->store);
	ring_destroy(image->ring);
}

static void image_do(const struct opened *image, enum store_op op, uint32_t flags, uint8_t *bytes)
{
	struct store_part part = { .op = op, .flags = flags, .done = one_done };

	part.length = op == STORE_FLUSH ? 0 : SECTOR;
	part.memory = op == STORE_FLUSH ? MEM_NONE : mem_of(bytes);
	store_submit(image->queue, &part);
	while (part.op != STORE_OP_COUNT) {
		assert_true(sim_step());
	}
}

/* The server is killed that many steps after a flush was begun, and the next one is asked for a
 * durable write. False: the flush was over before. */
static bool durable_after_kill(uint32_t steps, uint64_t seed)
{
	struct store_part flush = { .op = STORE_FLUSH, .done = one_done };
	struct opened image;
	uint8_t bytes[SECTOR];
	bool was_killed;

	sim_start(&(struct sim_options){ .seed = seed });
	make_disks();
	image_open(&image, "changes");
	sector_fill(bytes, 1);
	image_do(&image, STORE_WRITE, 0, bytes);
	store_submit(image.queue, &flush);
	while (steps-- > 0 && flush.op != STORE_OP_COUNT) {
		assert_true(sim_step());
	}
	was_killed = flush.op != STORE_OP_COUNT;
	(void)sim_disk_kill_copy(sim_disk_find("changes"), "killed");
	while (flush.op != STORE_OP_COUNT) {
		assert_true(sim_step());
	}
	image_close(&image);
	image_open(&image, "killed");
	sector_fill(bytes, 2);
	image_do(&image, STORE_WRITE, STORE_FUA, bytes);
	(void)sim_disk_crash_copy(sim_disk_find("killed"), "lost");
	image_close(&image);
	image_open(&image, "lost");
	image_do(&image, STORE_READ, 0, bytes);
	assert_true(sector_is(bytes, 2));
	image_close(&image);
	sim_stop();
	return was_killed;
}

TEST(test_a_durable_write_after_a_kill_survives_the_power)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		uint32_t steps = 0;

		while (durable_after_kill(steps, seed)) {
			steps++;
		}
		assert_true(steps > 2);
	}
}

int main(int argc, char **argv)
{
	seed_count = argc > 1 ? strtoull(argv[1], NULL, 10) : SEEDS;
	seed_first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	return unit_run(NULL, NULL);
}
