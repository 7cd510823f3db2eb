// SPDX-License-Identifier: Apache-2.0
/*
 * mode=auto on a simulated disk, where it is the test that says how long a read takes: which reads
 * go around the page cache, which come back to it, and which way is found to be the faster one.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../stores.h"
#include "base/bytes.h"
#include "sim/sim.h"
#include "unit.h"

enum {
	MIB = 1 << 20,
	BLOCK_BYTES = 256 << 10, /* the smallest large read */
	HINT_BYTES = 64 << 20,	 /* what the store takes of a hint */
	ALIGN = 512,
	WINDOW = 32, /* MiB of a window, and of the direct reads that end readahead */
};
#define DISK_BYTES (UINT64_C(1) << 46)
#define MS	   UINT64_C(1000000)
#define READ_NS	   (2 * MS) /* of 1 MiB by the faster method on a disk whose methods are compared */

struct world {
	struct ring *ring;
	struct sim_disk *disk;
	struct store *store;
	struct store_queue *queue;
	uint8_t *memory;
	uint64_t read_at; /* the next block that nobody has read */
};

struct waited {
	struct store_part part;
	struct ring_op timer;
	bool done;
	int result;
};

static void world_open_with(struct world *world, struct store_options options, const char *other)
{
	struct error error = { 0 };

	options.path = "disk";
	options.read_mode = STORE_MODE_AUTO;

	*world = (struct world){ 0 };
	sim_start(&(struct sim_options){ .seed = 1 });
	world->disk = sim_disk_create("disk",
		&(struct sim_disk_options){
			.size = DISK_BYTES, .direct_offset_align = ALIGN, .keeps_cache = true });
	if (other != NULL) {
		stores_set(&options, other, "off");
	}
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &world->ring, &error), 0);
	assert_int_equal(store_open(&options, &world->store, &error), 0);
	assert_int_equal(store_queue_create(world->store, world->ring, &world->queue, &error), 0);
	store_options_fini(&options);
	world->memory = aligned_alloc(4096, 2 * MIB);
	assert_non_null(world->memory);
}

static void world_open(struct world *world, enum store_mode write_mode, const char *other)
{
	world_open_with(world, (struct store_options){ .write_mode = write_mode }, other);
}

static void world_close(struct world *world)
{
	store_queue_destroy(world->queue);
	store_close(world->store);
	ring_destroy(world->ring);
	free(world->memory);
	sim_stop();
}

static void part_done(struct store_part *part, int result)
{
	struct waited *waited = container_of(part, struct waited, part);

	waited->done = true;
	waited->result = result;
}

static void run(struct world *world, enum store_op op, uint64_t offset, uint64_t length)
{
	struct waited waited = { .part = { .op = op,
					 .offset = offset,
					 .length = length,
					 .memory = op == STORE_CACHE ? MEM_NONE
								     : mem_of(world->memory),
					 .done = part_done } };

	store_submit(world->queue, &waited.part);
	while (!waited.done) {
		assert_true(sim_step());
	}
	assert_int_equal(waited.result, 0);
}

static void time_up(struct ring_op *op, int result)
{
	container_of(op, struct waited, timer)->done = true;
}

static void sleep_ns(struct world *world, uint64_t ns)
{
	struct waited waited = { 0 };

	ring_timer(world->ring, &waited.timer, ns, time_up);
	while (!waited.done) {
		assert_true(sim_step());
	}
}

static uint64_t counter(const struct world *world, const char *name)
{
	const struct counter_table *table;
	const uint8_t *counters = store_queue_counters(world->queue, &table);

	for (uint32_t i = 0; i < table->count; i++) {
		if (strcmp(table->counters[i].name, name) == 0) {
			uint64_t value;

			memcpy(&value, counters + table->counters[i].offset, sizeof(value));
			return value;
		}
	}
	fail_msg("there is no counter %s", name);
	return 0;
}

/* True when this read went around the page cache. */
static bool reads_direct(struct world *world, uint64_t offset, uint64_t length)
{
	uint64_t before = counter(world, "direct_transfers");

	run(world, STORE_READ, offset, length);
	return counter(world, "direct_transfers") > before;
}

/* --- single reads ---------------------------------------------------------------------------- */

TEST(test_what_is_read_once_goes_around_the_cache)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	for (uint64_t at = 0; at < 8 * MIB; at += BLOCK_BYTES) {
		assert_true(reads_direct(&world, at, BLOCK_BYTES));
	}
	assert_int_equal(counter(&world, "auto_direct_bytes"), 8 * MIB);
	/* Reads that follow each other at no particular place, too. */
	for (uint64_t at = 64 * MIB + ALIGN; at < 72 * MIB; at += BLOCK_BYTES + ALIGN) {
		assert_true(reads_direct(&world, at, BLOCK_BYTES + ALIGN));
	}
	assert_int_equal(counter(&world, "auto_again_bytes"), 0);
	assert_false(reads_direct(&world, 100 * MIB, BLOCK_BYTES - ALIGN)); /* small */
	assert_false(reads_direct(&world, 110 * MIB + 1, MIB));		    /* unaligned */
	world_close(&world);
}

TEST(test_what_is_read_again_stays_in_the_cache)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	assert_true(reads_direct(&world, MIB, MIB));
	assert_false(reads_direct(&world, MIB + BLOCK_BYTES, BLOCK_BYTES));
	assert_int_equal(counter(&world, "auto_again_bytes"), BLOCK_BYTES);
	assert_true(reads_direct(&world, 3 * MIB, MIB));
	world_close(&world);
}

TEST(test_a_hint_is_a_first_read)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	run(&world, STORE_CACHE, 16 * MIB, 2 * MIB);
	assert_false(reads_direct(&world, 17 * MIB, MIB));
	assert_true(reads_direct(&world, 18 * MIB, MIB));
	world_close(&world);
}

TEST(test_what_is_in_the_cache_is_read_there)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	memset(world.memory, 7, MIB);
	run(&world, STORE_WRITE, MIB, MIB);
	assert_false(reads_direct(&world, MIB, MIB));
	assert_int_equal(counter(&world, "auto_again_bytes"), 0);
	assert_int_equal(world.memory[MIB - 1], 7);
	/* Of what is only partly there, the disk gets what is dirty first. */
	run(&world, STORE_WRITE, 8 * MIB + BLOCK_BYTES, 4096);
	memset(world.memory, 0, MIB);
	assert_true(reads_direct(&world, 8 * MIB, MIB));
	assert_int_equal(world.memory[BLOCK_BYTES], 7);
	assert_int_equal(world.memory[BLOCK_BYTES + 4095], 7);
	assert_int_equal(world.memory[BLOCK_BYTES + 4096], 0);
	world_close(&world);
}

/* What was read longer ago than the memory could have kept it is new again. */
TEST(test_the_oldest_are_forgotten)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t at = HINT_BYTES;
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	run(&world, STORE_CACHE, 0, BLOCK_BYTES);
	for (; at < memory / 4; at += HINT_BYTES) {
		run(&world, STORE_CACHE, at, HINT_BYTES);
	}
	assert_false(reads_direct(&world, 0, BLOCK_BYTES));
	run(&world, STORE_CACHE, 0, BLOCK_BYTES);
	/* At least 8 GiB, which is what the smallest generation has. */
	for (uint64_t end = at + 2 * MAX(memory, UINT64_C(8) << 30); at < end; at += HINT_BYTES) {
		run(&world, STORE_CACHE, at, HINT_BYTES);
	}
	assert_true(reads_direct(&world, 0, BLOCK_BYTES));
	world_close(&world);
}

TEST(test_other_options_do_not_matter)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, "page-cache-send");
	assert_true(reads_direct(&world, 0, MIB));
	world_close(&world);
	world_open(&world, STORE_MODE_DIRECT, NULL);
	assert_true(reads_direct(&world, 0, MIB));
	assert_false(reads_direct(&world, 0, MIB));
	assert_string_equal(store_page_cache_refusal(world.store), "write-mode=direct");
	world_close(&world);
}

/* The base of overlays: other exports read it, too, and find in the cache what this one has read.
 */
TEST(test_what_many_exports_read_stays_in_the_cache)
{
	static const struct store_options base = { .read_only = true, .frozen = true };
	struct world world;

	world_open_with(&world, base, NULL);
	assert_false(reads_direct(&world, 0, MIB));
	assert_int_equal(counter(&world, "auto_again_bytes"), 0);
	assert_null(store_page_cache_refusal(world.store));
	world_close(&world);
}

/* --- which way is faster --------------------------------------------------------------------- */

/* Reads so many MiB that nobody has read; a read takes that long. Returns how many went direct. */
static uint64_t stream(struct world *world, uint64_t mib, uint64_t direct_ns, uint64_t cached_ns)
{
	uint64_t direct_count = 0;

	for (uint64_t i = 0; i < mib; i++) {
		bool direct = reads_direct(world, world->read_at, MIB);

		world->read_at += MIB;
		direct_count += direct;
		sleep_ns(world, direct ? direct_ns : cached_ns);
	}
	return direct_count;
}

TEST(test_the_faster_way_is_found)
{
	static const struct {
		uint64_t direct_ns;
		uint64_t cached_ns;
		bool prefers_direct;
	} disks[] = {
		{ READ_NS, 2 * READ_NS, true },
		{ 2 * READ_NS, READ_NS, false },
		{ READ_NS + READ_NS / 10, READ_NS, false },
		{ READ_NS, READ_NS + READ_NS / 4, true },
		{ READ_NS, READ_NS + READ_NS / 32, true },
		/* Clients that pause: readahead can use it. */
		{ 21 * MS, 20 * MS, false },
		{ 20 * MS, 21 * MS, false },
	};
	struct world world;

	for (size_t i = 0; i < ARRAY_COUNT(disks); i++) {
		uint64_t direct;

		world_open(&world, STORE_MODE_CACHED, NULL);
		(void)stream(&world, 2 * WINDOW, disks[i].direct_ns, disks[i].cached_ns);
		direct = stream(&world, 64, disks[i].direct_ns, disks[i].cached_ns);
		assert_int_equal(direct, disks[i].prefers_direct ? 64 : 0);
		world_close(&world);
	}
}

/* Direct reads of at least 1 GB/s are not compared with cached reads, until they are slower. */
TEST(test_fast_direct_reads_are_not_compared)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	assert_int_equal(stream(&world, 4 * WINDOW, MS / 2, MS / 8), 4 * WINDOW);
	(void)stream(&world, 3 * WINDOW, 2 * READ_NS, READ_NS);
	assert_int_equal(stream(&world, 64, 2 * READ_NS, READ_NS), 0);
	world_close(&world);
}

/* Bursts between pauses, of which only a part counts, do not show that the disk is fast. */
TEST(test_bursts_are_compared)
{
	struct world world;
	uint64_t cached = 0;

	world_open(&world, STORE_MODE_CACHED, NULL);
	for (int i = 0; i < 8; i++) {
		(void)stream(&world, WINDOW / 2 - 1, 0, 0);
		cached += 1 - stream(&world, 1, 80 * MS, 80 * MS);
	}
	assert_true(cached > 0);
	world_close(&world);
}

TEST(test_a_disk_that_changes_is_tried_again)
{
	struct world world;
	uint64_t direct;

	world_open(&world, STORE_MODE_CACHED, NULL);
	(void)stream(&world, 2 * WINDOW, 2 * READ_NS, READ_NS);
	assert_int_equal(stream(&world, 64, 2 * READ_NS, READ_NS), 0);
	/* Only a trial shows it: after 64 windows at the latest. */
	(void)stream(&world, UINT64_C(66) * WINDOW, READ_NS / 4, READ_NS);
	direct = stream(&world, 64, READ_NS / 4, READ_NS);
	assert_int_equal(direct, 64);
	world_close(&world);
}

/* The parts of a very large request arrive at the same time. They say nothing about the disk before
 * the next request. */
TEST(test_a_burst_is_not_fast)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	assert_int_equal(stream(&world, WINDOW, 0, 0), WINDOW);
	(void)stream(&world, UINT64_C(24) * WINDOW, 2 * READ_NS, READ_NS);
	assert_int_equal(stream(&world, 64, 2 * READ_NS, READ_NS), 0);
	world_close(&world);
}

/* A client that rests says nothing about the disk. */
TEST(test_pauses_do_not_count)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	for (int i = 0; i < 8; i++) {
		/* Half a window; reads that go direct are followed by the pause. */
		(void)stream(&world, WINDOW / 2 - 1, READ_NS, 2 * READ_NS);
		(void)stream(&world, 1, UINT64_C(10000) * MS, 2 * READ_NS);
	}
	(void)stream(&world, WINDOW, READ_NS, 2 * READ_NS);
	assert_int_equal(stream(&world, 64, READ_NS, 2 * READ_NS), 64);
	world_close(&world);
}

/* After a window through the cache, what the kernel has read ahead is left there: else it would go
 * on doing so for as long as it is faster than the client. */
TEST(test_readahead_ends_with_the_window)
{
	struct world world;
	uint64_t at;

	world_open(&world, STORE_MODE_CACHED, NULL);
	(void)stream(&world, WINDOW, READ_NS, 2 * READ_NS);
	assert_int_equal(stream(&world, WINDOW, READ_NS, 2 * READ_NS), 0);
	/* As the kernel has done: the next ones are in the cache already. */
	at = world.read_at;
	memset(world.memory, 1, MIB);
	for (uint64_t i = 0; i < WINDOW + 8; i++) {
		run(&world, STORE_WRITE, at + i * MIB, MIB);
	}
	assert_int_equal(stream(&world, WINDOW, READ_NS, 2 * READ_NS), WINDOW);
	assert_int_equal(stream(&world, 8, READ_NS, 2 * READ_NS), 0);
	world_close(&world);
}

/* True when a read there was sent from the page cache. */
static bool is_sent(struct world *world, uint64_t offset, uint64_t length)
{
	struct waited waited = {
		.part = { .op = STORE_READ, .offset = offset, .length = length, .done = part_done }
	};

	if (!store_page_cache_ref(world->queue, &waited.part)) {
		return false;
	}
	while (!waited.done) {
		assert_true(sim_step());
	}
	return true;
}

/* After a window through the cache, only the reads that go around it leave it alone. */
TEST(test_other_reads_are_sent_from_the_cache)
{
	struct world world;

	world_open(&world, STORE_MODE_CACHED, NULL);
	(void)stream(&world, 2 * WINDOW, READ_NS, 2 * READ_NS);
	memset(world.memory, 1, 2 * MIB);
	run(&world, STORE_WRITE, world.read_at, 2 * MIB);
	assert_false(is_sent(&world, world.read_at, MIB));
	assert_true(is_sent(&world, world.read_at + 1, MIB));
	world_close(&world);
}
