// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "flash_world.h"

#include "../stores.h"
#include "base/bytes.h"
#include "disk/disk.h"

enum {
	START_STEPS_MAX = 15,
	PART_STEPS_MAX = 1000 * 1000, /* far more than any part takes */
	ZONE_BYTES = 2 * WORLD_SEGMENT_BLOCKS * FLASH_BLOCK_BYTES,
	CONVENTIONAL_ZONES = 2,
	BAD_BLOCKS_MAX = 3 * WORLD_SEGMENT_BLOCKS,
};

void sector_fill(uint8_t *bytes, uint64_t tag)
{
	for (int i = 0; i < SECTOR; i += 8) {
		memcpy(bytes + i, &tag, sizeof(tag));
	}
}

uint64_t sector_tag(const uint8_t *bytes)
{
	uint8_t whole[SECTOR];
	uint64_t tag;

	memcpy(&tag, bytes, sizeof(tag));
	sector_fill(whole, tag);
	assert_int_equal(memcmp(bytes, whole, SECTOR), 0); /* assert_memory_equal() is slow */
	return tag;
}

enum world_disk world_disk;
bool world_lacks_direct;
bool world_direct_uses_cache;
bool world_keeps_cache;

struct sim_disk_options world_disk_options(void)
{
	if (world_disk == WORLD_ZONED) {
		return (struct sim_disk_options){ .size = (CONVENTIONAL_ZONES + FLASH_ANCHORS +
								  WORLD_SEGMENTS) *
							  (uint64_t)ZONE_BYTES,
			.direct_offset_align = 512,
			.is_block = true,
			.zone_bytes = ZONE_BYTES,
			.zone_capacity = WORLD_SEGMENT_BLOCKS * FLASH_BLOCK_BYTES,
			.conventional_zones = CONVENTIONAL_ZONES,
			.active_zones_max = 3 };
	}
	return (struct sim_disk_options){ .size = (FLASH_SEGMENTS_AT +
							  WORLD_SEGMENTS * WORLD_SEGMENT_BLOCKS) *
						  (uint64_t)FLASH_BLOCK_BYTES,
		.direct_offset_align = world_lacks_direct ? 0 : 512,
		.direct_uses_cache = world_direct_uses_cache,
		.is_block = world_disk == WORLD_DEVICE,
		.keeps_cache = world_keeps_cache };
}

static bool closes;

/* Who watches may have gone when the store is closed. */
static void snapshot_dropped(void *context)
{
	assert_false(closes);
}

static void start_done(struct store_start *start)
{
	container_of(start, struct world, start)->started = true;
}

void world_prepare(struct world *world, const char *name, bool direct, bool read_only)
{
	enum store_mode mode =
		direct && !world_lacks_direct ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
	char path[64];
	char folder[64];
	struct store_options options = {
		.path = path,
		.read_only = read_only,
		.read_mode = mode,
		.write_mode = mode,
		.repairs = world_repairs,
	};
	struct error error;

	memset(world, 0, sizeof(*world));
	snprintf(world->name, sizeof(world->name), "%s", name);
	snprintf(path, sizeof(path), "flash:%s", name);
	snprintf(folder, sizeof(folder), "/%s", name);
	stores_set(&options, "cache", world_cache);
	stores_set(&options, "cache-dir", folder);
	stores_set(&options, "cache-file", world_cache_file);
	stores_set(&options, "on-full", world_on_full);
	if (store_open(&options, &world->store, &error) < 0) {
		fail_msg("%s", error.text);
	}
	store_options_fini(&options);
	store_snapshots_watch(world->store, snapshot_dropped, NULL);
	for (int i = 0; i < WORLD_RINGS; i++) {
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
}

void world_begin(struct world *world, const char *name, bool direct, bool read_only)
{
	world_prepare(world, name, direct, read_only);
	store_start(world->store, &world->start);
}

void world_open(struct world *world, const char *name, bool direct, const char *again)
{
	uint64_t steps = sim_between(0, START_STEPS_MAX);

	world_begin(world, name, direct, false);
	while (!world->started) {
		if (again != NULL && steps-- == 0) {
			world->again_killed =
				strcmp(world_cache, "0") != 0 && sim_between(0, 1) == 0;
			if (world->again_killed) {
				world_kill_copy(name, again);
			} else {
				(void)sim_disk_crash_copy(sim_disk_find(name), again);
			}
		}
		assert_true(sim_step());
	}
	if (world->start.result < 0) {
		fail_msg("%s: %s", name, world->start.error.text);
	}
}

void world_start(struct world *world, uint64_t seed)
{
	sim_start(&(struct sim_options){ .seed = seed });
	world_make_disk();
	world_open(world, "disk", false, NULL);
}

void world_await(struct world *world)
{
	while (!world->started) {
		assert_true(sim_step());
	}
}

struct world_totals world_totals;
const char *world_cache = "0";
const char *world_cache_file = "refuse";
const char *world_on_full = "drop";
bool world_is_full;
uint32_t world_repairs;

uint64_t world_counter(const struct world *world, const char *name)
{
	const struct counter_table *table;
	const void *values = store_queue_counters(world->queues[0], &table);

	for (size_t i = 0; i < table->count; i++) {
		if (strcmp(table->counters[i].name, name) == 0) {
			return counter_value(&table->counters[i], values);
		}
	}
	fail_msg("no counter %s", name);
	return 0;
}

static void snapshot_done(struct store_snapshot_request *request)
{
	request->context = request;
}

int world_snapshot(struct world *world, enum store_snapshot_action action, const char *name)
{
	struct store_snapshot_request request = { .action = action, .done = snapshot_done };

	snprintf(request.snapshot.name, sizeof(request.snapshot.name), "%s", name);
	store_snapshot_ask(world->store, &request);
	for (uint32_t steps = 0; request.context == NULL; steps++) {
		if (steps == PART_STEPS_MAX || !sim_step()) {
			fail_msg("a request for a snapshot does not end");
		}
	}
	return request.result;
}

static void count(const struct world *world)
{
	static const struct {
		const char *name;
		uint64_t *sum;
	} sums[] = {
		{ "moved_blocks", &world_totals.moved_blocks },
		{ "checkpoints", &world_totals.checkpoints },
		{ "erased_segments", &world_totals.erased_segments },
		{ "log_moves", &world_totals.log_moves },
		{ "evicted_blocks", &world_totals.evicted_blocks },
		{ "flushed_blocks", &world_totals.flushed_blocks },
		{ "written_back_blocks", &world_totals.written_back_blocks },
		{ "cache_moved_blocks", &world_totals.cache_moved_blocks },
	};
	const struct counter_table *table;
	const void *values = store_queue_counters(world->queues[0], &table);

	for (size_t i = 0; i < table->count; i++) {
		uint64_t value = counter_value(&table->counters[i], values);

		const char *name = table->counters[i].name;

		for (size_t k = 0; k < ARRAY_COUNT(sums); k++) {
			if (strcmp(name, sums[k].name) == 0) {
				*sums[k].sum += value;
			}
		}
		if (strcmp(name, "checksum_errors") == 0) {
			assert_int_equal(value, 0);
		}
	}
}

void world_discard(struct world *world)
{
	uint64_t budget = store_budget(world->store);

	for (int i = 0; i < WORLD_RINGS; i++) {
		store_queue_destroy(world->queues[i]);
		ring_destroy(world->rings[i]);
	}
	closes = true;
	store_close(world->store);
	closes = false;
	(void)munmap(world->budget, budget);
}

void world_close(struct world *world)
{
	char folder[40];
	uint64_t size;

	count(world);
	world_discard(world);
	snprintf(folder, sizeof(folder), "/%s/", world->name);
	if (!world_is_full) {
		assert_null(sim_shared_find(folder, &size)); /* all of it is on the disk */
	}
}

void world_end(struct world *world)
{
	world_close(world);
	sim_stop();
}

void world_freeze(const struct world *world, bool frozen)
{
	for (int i = 0; i < WORLD_RINGS; i++) {
		sim_freeze(world->rings[i], frozen);
	}
}

void world_part_done(struct store_part *part, int result)
{
	assert_int_equal(result, 0);
	part->op = STORE_OP_COUNT;
}

void world_submit(struct world *world, struct store_part *part)
{
	store_submit(world->queues[0], part);
	world_part_await(part);
}

void world_part_await(struct store_part *part)
{
	for (uint64_t steps = 0; part->op != STORE_OP_COUNT; steps++) {
		assert_true(steps < PART_STEPS_MAX);
		assert_true(sim_step());
	}
}

void world_give_cache(const char *name)
{
	struct disk_info info;
	struct error error;
	char folder[40];
	uint64_t size;
	uint8_t *file;
	int fd;

	snprintf(folder, sizeof(folder), "/%s/", name);
	file = sim_shared_find(folder, &size);
	if (file != NULL && size > 0) {
		assert_int_equal(disk_open(name, true, false, &fd, &error), 0);
		assert_int_equal(disk_info(fd, &info), 0);
		disk_close(fd);
		flash_cache_head_give(file, info.identity);
	}
}

void world_kill_copy(const char *from, const char *name)
{
	char from_folder[40];
	char folder[40];

	(void)sim_disk_kill_copy(sim_disk_find(from), name);
	snprintf(from_folder, sizeof(from_folder), "/%s/", from);
	snprintf(folder, sizeof(folder), "/%s/", name);
	sim_shared_copy(from_folder, folder);
	world_give_cache(name); /* the copy stands for the disk that the server had */
}

void world_vary_bad_places(const char *name)
{
	uint64_t segment = sim_between(0, WORLD_SEGMENTS - 1);
	uint64_t blocks = sim_between(1, BAD_BLOCKS_MAX);

	if (sim_between(0, 2) == 0) {
		blocks = 0;
	}
	sim_disk_set_bad(sim_disk_find(name),
		(FLASH_SEGMENTS_AT + segment * WORLD_SEGMENT_BLOCKS) * FLASH_BLOCK_BYTES,
		blocks * FLASH_BLOCK_BYTES, false, true);
}

void world_make_disk(void)
{
	struct sim_disk_options options = world_disk_options();
	struct store_create create = { .segment_bytes =
					       (uint64_t)WORLD_SEGMENT_BLOCKS * FLASH_BLOCK_BYTES };
	struct error error;

	(void)sim_disk_create("disk", &options);
	if (store_create("flash:disk", &create, &error) < 0) {
		fail_msg("%s", error.text);
	}
}

static void check_fact(struct store_check *check, const char *key, const char *value)
{
}

static void check_amount(struct store_check *check, const char *key, uint64_t bytes)
{
}

static void check_entry(struct store_check *check, const char *list, const char *text)
{
}

static void (*check_tell)(const char *text);

static void check_fault(struct store_check *check, const char *text)
{
	check_tell(text);
}

void world_check(const char *name, void (*fault)(const char *text))
{
	struct store_check check = { .fact = check_fact,
		.amount = check_amount,
		.entry = check_entry,
		.fault = check_fault };
	struct error error;

	check_tell = fault;
	assert_int_equal(store_check(name, &check, &error), 0);
}
