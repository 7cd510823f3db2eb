// SPDX-License-Identifier: Apache-2.0
/*
 * Snapshots of a flash store on a simulated disk that loses its power at any moment, or whose
 * server is killed, while snapshots are made and deleted and the disk is written. A snapshot that
 * was made is there after each crash with the same contents; one that is being made or deleted is
 * there as a whole or not at all; and the counts of every image fit its trees. The arguments are
 * how many crashes there are, and the first seed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flash_world.h"

#include "../stores.h"
#include "base/bytes.h"
#include "store/flash/flash.h"
#include "unit.h"

enum {
	BLOCKS_MAX = 1024,
	TAGS_MAX = 12,
	WRITE_MAX = 12, /* blocks */
	READ_BLOCKS = 64,
	OPERATIONS = 500, /* of one seed */
	CRASH_POINTS = 600,
	SEED_CRASHES_MAX = 60,
	STEPS_MAX = 60, /* from crash to crash */
};

/* What a block may have: the first tag is that of the last flush, the last one the newest. */
struct block {
	uint64_t tags[TAGS_MAX];
	uint32_t count;
};

enum model_state { MODEL_NONE, MODEL_CREATING, MODEL_LIVE, MODEL_DELETING };

struct model_snapshot {
	enum model_state state;
	struct store_snapshot_request request;
	uint64_t tags[BLOCKS_MAX]; /* being made: when it was asked for */
	uint64_t asked;		   /* tags behind it are newer */
	uint32_t history_from;	   /* being made: writes since it was asked for */
	bool is_done;		   /* the request is, and what came of it is to be looked at */
};

static struct block model[BLOCKS_MAX];
static struct model_snapshot snapshots[STORE_SNAPSHOTS_MAX];
static uint64_t found[BLOCKS_MAX];
/* All writes of the run, one after the other. */
static struct {
	uint64_t tag;
	uint32_t first;
	uint32_t count;
} history[OPERATIONS];
static uint32_t history_count;
static uint32_t block_count;
static uint32_t written_count; /* only so many of them are written */
static uint64_t last_tag;
static uint32_t name_count;
static struct {
	uint32_t made;
	uint32_t deleted;
	uint32_t dropped;
	uint32_t compared;
} totals;

static struct {
	struct store_part part;
	bool busy;
	uint32_t first;
	uint32_t count;
	uint64_t tag;
} lane;

static uint8_t lane_memory[WRITE_MAX * FLASH_BLOCK_BYTES];

/* --- reading --------------------------------------------------------------------------------- */

static void block_fill(uint8_t *bytes, uint64_t tag)
{
	for (int i = 0; i < BLOCK_SECTORS; i++) {
		sector_fill(bytes + (size_t)i * SECTOR, tag);
	}
}

static uint64_t block_tag(const uint8_t *bytes)
{
	uint64_t tag = sector_tag(bytes);

	for (int i = 1; i < BLOCK_SECTORS; i++) {
		assert_true(sector_tag(bytes + (size_t)i * SECTOR) == tag);
	}
	return tag;
}

static int read_result;

static void read_done(struct store_part *part, int result)
{
	read_result = result;
	part->op = STORE_OP_COUNT;
}

/* 0, or -ESTALE. */
static int read_all(struct store_queue *queue)
{
	static uint8_t bytes[READ_BLOCKS * FLASH_BLOCK_BYTES];

	for (uint32_t first = 0, count; first < block_count; first += count) {
		struct store_part part = { .op = STORE_READ, .done = read_done };

		count = MIN(block_count - first, (uint32_t)READ_BLOCKS);
		part.offset = (uint64_t)first << FLASH_BLOCK_SHIFT;
		part.length = (uint64_t)count << FLASH_BLOCK_SHIFT;
		part.memory = mem_of(bytes);
		store_submit(queue, &part);
		world_part_await(&part);
		if (read_result == -ESTALE) {
			return read_result;
		}
		assert_int_equal(read_result, 0);
		for (uint32_t i = 0; i < count; i++) {
			found[first + i] = block_tag(bytes + (size_t)i * FLASH_BLOCK_BYTES);
		}
	}
	return 0;
}

/* On the ring that is not the owner's. */
static int read_snapshot(struct world *world, const char *name)
{
	struct store *snapshot;
	struct store_queue *queue;
	struct error error;
	int result;

	if (store_snapshot_open(world->store, name, &snapshot, &error) < 0) {
		fail_msg("%s: %s", world->name, error.text);
	}
	assert_int_equal(store_queue_create(snapshot, world->rings[1], &queue, &error), 0);
	result = read_all(queue);
	store_queue_destroy(queue);
	store_close(snapshot);
	return result;
}

static bool is_listed(struct world *world, const char *name)
{
	struct store_snapshot list[STORE_SNAPSHOTS_MAX];
	uint32_t count = store_snapshots(world->store, list);

	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(list[i].name, name) == 0) {
			return true;
		}
	}
	return false;
}

static bool has_dropped(struct world *world)
{
	return world_counter(world, "snapshots_dropped") > 0;
}

static bool snapshot_allows(const struct model_snapshot *snapshot, uint32_t block)
{
	return found[block] == snapshot->tags[block] ||
	       (snapshot->state == MODEL_CREATING && found[block] > snapshot->asked);
}

/* False: it was dropped meanwhile. */
static bool check_snapshot(struct world *world, const struct model_snapshot *snapshot)
{
	if (read_snapshot(world, snapshot->request.snapshot.name) < 0) {
		assert_true(has_dropped(world));
		return false;
	}
	totals.compared++;
	for (uint32_t i = 0; i < block_count; i++) {
		if (!snapshot_allows(snapshot, i)) {
			fail_msg("%s: block %u of snapshot %s has %llx, not %llx", world->name, i,
				snapshot->request.snapshot.name, (unsigned long long)found[i],
				(unsigned long long)snapshot->tags[i]);
		}
	}
	return true;
}

/* What was found is what the disk had at one moment since the view was asked for; the last write
 * may have been under way. */
static void check_moment(const struct world *world, const struct model_snapshot *snapshot)
{
	uint64_t newest = 0;

	for (uint32_t i = 0; i < block_count; i++) {
		newest = MAX(newest, found[i]);
	}
	for (uint32_t i = 0; i < block_count; i++) {
		uint64_t tag = snapshot->tags[i];

		for (uint32_t k = snapshot->history_from; k < history_count; k++) {
			if (history[k].tag < newest && i >= history[k].first &&
				i < history[k].first + history[k].count) {
				tag = history[k].tag;
			}
		}
		if (found[i] != tag && found[i] != newest) {
			fail_msg("%s: block %u of snapshot %s has %llx, not %llx, and others have "
				 "%llx",
				world->name, i, snapshot->request.snapshot.name,
				(unsigned long long)found[i], (unsigned long long)tag,
				(unsigned long long)newest);
		}
	}
}

/* --- operations ------------------------------------------------------------------------------ */

static void flushed(uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++) {
		model[i].tags[0] = model[i].tags[model[i].count - 1];
		model[i].count = 1;
	}
}

static void lane_done(struct store_part *part, int result)
{
	assert_int_equal(result, 0);
	lane.busy = false;
	for (uint32_t i = lane.first; i < lane.first + lane.count; i++) {
		model[i].tags[model[i].count++] = lane.tag;
	}
	if (part->op == STORE_FLUSH) {
		flushed(0, block_count);
	} else if ((part->flags & STORE_FUA) != 0) {
		flushed(lane.first, lane.count);
	}
}

static bool is_making(void)
{
	return snapshots[0].state == MODEL_CREATING || snapshots[1].state == MODEL_CREATING;
}

static void lane_start(struct world *world)
{
	bool flushes = sim_between(0, 9) == 0;

	lane.first = (uint32_t)sim_between(
		0, sim_between(0, 2) == 0 ? written_count - 1 : written_count / 5);
	lane.count = MIN((uint32_t)sim_between(1, WRITE_MAX), written_count - lane.first);
	for (uint32_t i = lane.first; i < lane.first + lane.count; i++) {
		flushes |= model[i].count == TAGS_MAX;
	}
	lane.part = (struct store_part){
		.op = STORE_WRITE,
		.flags = sim_between(0, 5) == 0 ? STORE_FUA : 0,
		.offset = (uint64_t)lane.first << FLASH_BLOCK_SHIFT,
		.length = (uint64_t)lane.count << FLASH_BLOCK_SHIFT,
		.memory = mem_of(lane_memory),
		.done = lane_done,
	};
	lane.tag = ++last_tag;
	if (flushes) {
		lane.part = (struct store_part){ .op = STORE_FLUSH, .done = lane_done };
		lane.count = 0;
	} else if (!is_making() && sim_between(0, 9) == 0) {
		lane.part.op = STORE_TRIM;
		lane.tag = 0;
	}
	for (uint32_t i = 0; i < lane.count; i++) {
		block_fill(lane_memory + (size_t)i * FLASH_BLOCK_BYTES, lane.tag);
	}
	if (lane.count > 0) {
		history[history_count].tag = lane.tag;
		history[history_count].first = lane.first;
		history[history_count++].count = lane.count;
	}
	lane.busy = true;
	store_submit(world->queues[sim_between(0, WORLD_RINGS - 1)], &lane.part);
}

static void snapshot_done(struct store_snapshot_request *request)
{
	struct model_snapshot *snapshot = container_of(request, struct model_snapshot, request);

	/* With others that had been dropped, whose end a crash has undone, there may be too many.
	 */
	if (request->result == -ENOSPC || (request->result == -EMLINK && totals.dropped > 0) ||
		(request->result == -ENOENT && snapshot->state == MODEL_DELETING)) {
		snapshot->state = MODEL_NONE;
		return;
	}
	if (request->result < 0) {
		fail_msg("%s: %s", request->snapshot.name, request->error.text);
	}
	snapshot->is_done = true;
}

static void snapshot_ask(
	struct world *world, struct model_snapshot *snapshot, enum store_snapshot_action action)
{
	snapshot->request.action = action;
	snapshot->request.done = snapshot_done;
	store_snapshot_ask(world->store, &snapshot->request);
}

/* One that was asked for is there, or has gone. */
static void snapshot_settle(struct world *world, struct model_snapshot *snapshot)
{
	if (snapshot->state == MODEL_DELETING) {
		assert_false(is_listed(world, snapshot->request.snapshot.name));
		snapshot->state = MODEL_NONE;
		totals.deleted++;
		return;
	}
	if (!is_listed(world, snapshot->request.snapshot.name)) {
		assert_true(has_dropped(world));
		snapshot->state = MODEL_NONE;
		return;
	}
	if (!check_snapshot(world, snapshot)) {
		snapshot->state = MODEL_NONE;
		return;
	}
	check_moment(world, snapshot);
	memcpy(snapshot->tags, found, sizeof(found));
	snapshot->state = MODEL_LIVE;
	totals.made++;
}

/* A request is at hand. */
static bool is_asked(void)
{
	bool asked = false;

	for (uint32_t i = 0; i < STORE_SNAPSHOTS_MAX; i++) {
		asked |= snapshots[i].state == MODEL_CREATING ||
			 snapshots[i].state == MODEL_DELETING;
	}
	return asked;
}

static void snapshot_begin(struct world *world, struct model_snapshot *snapshot)
{
	if (snapshot->state == MODEL_LIVE && !is_listed(world, snapshot->request.snapshot.name)) {
		assert_true(has_dropped(world));
		snapshot->state = MODEL_NONE;
		totals.dropped++;
	} else if (snapshot->state == MODEL_LIVE && sim_between(0, 2) == 0) {
		(void)check_snapshot(world, snapshot); /* that it has gone is found the next time */
	} else if (is_asked()) {
		return;
	} else if (snapshot->state == MODEL_LIVE && sim_between(0, 5) == 0) {
		snapshot->state = MODEL_DELETING;
		snapshot_ask(world, snapshot, STORE_SNAPSHOT_DELETE);
	} else if (snapshot->state == MODEL_NONE) {
		for (uint32_t i = 0; i < block_count; i++) {
			snapshot->tags[i] = model[i].tags[model[i].count - 1];
		}
		snapshot->asked = last_tag;
		snapshot->history_from = history_count;
		snprintf(snapshot->request.snapshot.name, sizeof(snapshot->request.snapshot.name),
			"v%u", name_count++);
		snapshot->state = MODEL_CREATING;
		snapshot_ask(world, snapshot, STORE_SNAPSHOT_CREATE);
	}
}

/* --- crashes --------------------------------------------------------------------------------- */

static bool model_allows(const struct block *block, uint64_t tag, bool killed)
{
	for (uint32_t i = killed ? block->count - 1 : 0; i < block->count; i++) {
		if (block->tags[i] == tag) {
			return true;
		}
	}
	return false;
}

static void check_disk(struct world *image, bool killed)
{
	assert_int_equal(read_all(image->queues[0]), 0);
	for (uint32_t i = 0; i < block_count; i++) {
		bool in_flight = lane.busy && i >= lane.first && i < lane.first + lane.count;

		if (!model_allows(&model[i], found[i], killed) &&
			!(in_flight && found[i] == lane.tag)) {
			fail_msg("%s, %s: block %u has %llx, not %llx", image->name,
				killed ? "killed" : "power lost", i, (unsigned long long)found[i],
				(unsigned long long)model[i].tags[0]);
		}
	}
}

/* goes_on: the models become those of the image. */
static void check_image(struct world *world, struct world *image, bool killed, bool goes_on)
{
	struct store_snapshot list[STORE_SNAPSHOTS_MAX];
	uint32_t count = store_snapshots(image->store, list);

	for (uint32_t i = 0; i < STORE_SNAPSHOTS_MAX; i++) {
		struct model_snapshot *snapshot = &snapshots[i];
		const char *name = snapshot->request.snapshot.name;
		bool there = snapshot->state != MODEL_NONE && is_listed(image, name);

		count -= there;
		if (there) {
			assert_true(check_snapshot(image, snapshot));
		} else if (snapshot->state == MODEL_LIVE && is_listed(world, name) &&
			   !has_dropped(image)) {
			fail_msg("%s, %s: snapshot %s has gone", image->name,
				killed ? "killed" : "power lost", name);
		}
		if (goes_on) {
			memcpy(snapshot->tags, found, sizeof(found));
			snapshot->state = there ? MODEL_LIVE : MODEL_NONE;
		}
	}
	/* One that was dropped may come back, as its end was not durable. */
	assert_true(count == 0 || totals.dropped > 0 || has_dropped(world));
	check_disk(image, killed);
	for (uint32_t i = 0; goes_on && i < block_count; i++) {
		model[i] = (struct block){ .tags = { found[i] }, .count = 1 };
	}
}

static void is_fault(const char *sentence)
{
	fail_msg("%s", sentence);
}

static void check_counts(const char *name)
{
	world_check(name, is_fault);
}

static const struct sim_faults faults = {
	.jitter = true, .partial_ppm = 50000, .interrupt_ppm = 20000, .again_ppm = 10000
};

/* True: the run is to go on with the image. */
static bool crash(struct world *world, struct world *image, uint32_t number)
{
	bool killed = number % 2 == 0;
	/* What is in the write cache of a killed server could still be lost with the power. */
	bool goes_on =
		!is_asked() && sim_between(0, 5) == 0 && (!killed || strcmp(world_cache, "0") == 0);
	char name[32];
	char again[32];

	snprintf(name, sizeof(name), "crash-%u", number);
	snprintf(again, sizeof(again), "again-%u", number);
	if (killed) {
		world_kill_copy(world->name, name);
	} else {
		(void)sim_disk_crash_copy(sim_disk_find(world->name), name);
	}
	sim_set_faults(&(struct sim_faults){ 0 });
	world_freeze(world, true);
	check_counts(name);
	world_open(image, name, world_disk == WORLD_ZONED, again);
	if (sim_disk_find(again) != NULL) {
		static struct world other;

		check_counts(again);
		if (!has_dropped(image)) {
			world_open(&other, again, world_disk == WORLD_ZONED, NULL);
			check_image(world, &other, false, false);
			world_close(&other);
		}
		sim_disk_destroy(sim_disk_find(again));
	}
	check_image(world, image, killed, goes_on);
	if (!goes_on) {
		world_close(image);
		check_counts(name);
		sim_disk_destroy(sim_disk_find(name));
	}
	world_freeze(world, false);
	sim_set_faults(&faults);
	return goes_on;
}

/* What the old world has in flight ends, and is forgotten: the model is the image's already. */
static void change_worlds(struct world *world, struct world *image)
{
	static struct block kept[BLOCKS_MAX];

	memcpy(kept, model, sizeof(model));
	world_freeze(image, true);
	while (lane.busy) {
		assert_true(sim_step());
	}
	world_close(world);
	world_freeze(image, false);
	memcpy(model, kept, sizeof(model));
	*world = *image;
	world->store->start = &world->start; /* it has moved */
}

/* --- a run ----------------------------------------------------------------------------------- */

static void fill(struct world *world)
{
	for (uint32_t first = 0, count; first < block_count; first += count) {
		struct store_part part = { .op = STORE_WRITE, .done = world_part_done };

		count = MIN(block_count - first, (uint32_t)WRITE_MAX);
		for (uint32_t i = first; i < first + count; i++) {
			model[i] = (struct block){ .count = 1 };
			if (i < written_count) {
				model[i].tags[0] = 1 + first;
			}
		}
		if (first >= written_count) {
			continue;
		}
		count = MIN(count, written_count - first);
		for (uint32_t i = 0; i < count; i++) {
			block_fill(lane_memory + (size_t)i * FLASH_BLOCK_BYTES, 1 + first);
		}
		part.flags = STORE_FUA;
		part.offset = (uint64_t)first << FLASH_BLOCK_SHIFT;
		part.length = (uint64_t)count << FLASH_BLOCK_SHIFT;
		part.memory = mem_of(lane_memory);
		world_submit(world, &part);
	}
	last_tag = block_count;
}

static void step(struct world *world, uint32_t *started)
{
	for (uint32_t i = 0; i < STORE_SNAPSHOTS_MAX; i++) {
		struct model_snapshot *snapshot = &snapshots[i];

		if (snapshot->is_done) {
			snapshot->is_done = false;
			snapshot_settle(world, snapshot);
		}
	}
	if (!lane.busy && *started < OPERATIONS) {
		(*started)++;
		if (sim_between(0, 7) == 0) {
			snapshot_begin(world, &snapshots[sim_between(0, STORE_SNAPSHOTS_MAX - 1)]);
		}
		lane_start(world);
	}
}

/* Returns how many crashes there were. */
static uint32_t run(uint64_t seed, uint32_t crashes_max)
{
	static struct world world;
	static struct world image;
	uint32_t started = 0;
	uint32_t steps = 0;
	uint32_t crash_at;
	uint32_t crashes = 0;

	memset(snapshots, 0, sizeof(snapshots));
	history_count = 0;
	totals.dropped = 0;
	sim_start(&(struct sim_options){ .seed = seed });
	world_disk = (enum world_disk)(seed % 3);
	world_cache = seed % 2 == 0 ? "0" : "128K";
	world_is_full = true;
	world_make_disk();
	world_open(&world, "disk", world_disk == WORLD_ZONED, NULL);
	block_count = (uint32_t)(store_size(world.store) >> FLASH_BLOCK_SHIFT);
	assert_in_range(block_count, FLASH_NODE_ENTRIES + 1, BLOCKS_MAX);
	/* With a full disk snapshots are dropped soon. */
	written_count = seed % 4 == 0 ? block_count : block_count * 3 / 5;
	fill(&world);
	sim_set_faults(&faults);
	crash_at = (uint32_t)sim_between(1, STEPS_MAX);
	while (lane.busy || started < OPERATIONS || is_asked()) {
		step(&world, &started);
		if (lane.busy || is_asked()) {
			assert_true(sim_step());
		}
		if (++steps >= crash_at && crashes < crashes_max) {
			if (crash(&world, &image, crashes++)) {
				change_worlds(&world, &image);
			}
			crash_at = steps + (uint32_t)sim_between(
						   1, sim_between(0, 1) == 0 ? 4 : STEPS_MAX * 4);
		}
	}
	sim_set_faults(&(struct sim_faults){ 0 });
	world_close(&world);
	/* An end in order loses nothing. */
	check_counts(world.name);
	world_open(&image, world.name, world_disk == WORLD_ZONED, NULL);
	check_image(&image, &image, true, false);
	world_end(&image);
	return crashes;
}

static uint32_t crash_points = CRASH_POINTS;
static uint64_t first_seed = 1;

TEST(test_snapshots_survive_whole_or_not_at_all)
{
	uint32_t crashes = 0;

	for (uint64_t seed = first_seed; crashes < crash_points; seed++) {
		printf("seed %llu\n", (unsigned long long)seed);
		crashes += run(seed, MIN(crash_points - crashes, (uint32_t)SEED_CRASHES_MAX));
	}
	printf("%u crashes, %u snapshots made, %u deleted, %u compared; %llu blocks moved\n",
		crashes, totals.made, totals.deleted, totals.compared,
		(unsigned long long)world_totals.moved_blocks);
	/* Else they were not what this is about. */
	assert_true(totals.made > crashes / 20);
	assert_true(totals.deleted > crashes / 50);
	assert_true(world_totals.moved_blocks > crashes);
}

static void failure_done(struct store_snapshot_request *request)
{
	request->context = request;
}

/* Every request ends, with an error that says why, and leaves what there was. */
TEST(test_a_disk_that_fails_makes_no_snapshot)
{
	static struct world world;
	uint32_t failed = 0;

	for (uint64_t seed = 1; seed <= 30; seed++) {
		struct store_snapshot_request requests[2] = {
			{ .action = STORE_SNAPSHOT_CREATE,
				.snapshot.name = "b",
				.done = failure_done },
			{ .action = STORE_SNAPSHOT_DELETE,
				.snapshot.name = "a",
				.done = failure_done },
		};
		struct store_snapshot_request first = requests[0];

		sim_start(&(struct sim_options){ .seed = seed, .faults = { .jitter = true } });
		world_disk = WORLD_FILE;
		world_cache = "0";
		world_make_disk();
		world_open(&world, "disk", false, NULL);
		block_count = (uint32_t)(store_size(world.store) >> FLASH_BLOCK_SHIFT);
		written_count = block_count / 2;
		fill(&world);
		first.snapshot.name[0] = 'a';
		store_snapshot_ask(world.store, &first);
		while (first.context == NULL) {
			assert_true(sim_step());
		}
		assert_int_equal(first.result, 0);
		for (size_t i = 0; i < ARRAY_COUNT(requests); i++) {
			if (i == seed % 2) {
				sim_set_faults(&(struct sim_faults){
					.jitter = true, .write_error_ppm = 500000 });
			}
			store_snapshot_ask(world.store, &requests[i]);
			while (requests[i].context == NULL) {
				assert_true(sim_step());
			}
			failed += requests[i].result < 0;
			assert_int_equal(requests[i].result < 0, requests[i].error.text[0] != '\0');
		}
		sim_set_faults(&(struct sim_faults){ .jitter = true });
		assert_int_equal(is_listed(&world, "b"), requests[0].result == 0);
		assert_int_equal(is_listed(&world, "a"), requests[1].result < 0);
		if (requests[1].result < 0) {
			assert_int_equal(read_snapshot(&world, "a"), 0);
		}
		sim_set_faults(&(struct sim_faults){ 0 });
		world_end(&world);
	}
	assert_in_range(failed, 30, 60);
}

/* The blocks of a damaged snapshot cannot be moved, so that the store may be full without another
 * one. */
static void full_part_done(struct store_part *part, int result)
{
	assert_true(result == 0 || result == -ENOSPC);
	part->op = STORE_OP_COUNT;
}

/* Those of jobs: they go before others that are older, and none is there after a restart. Requests
 * wait for each other. A damaged snapshot of a user goes before them, unless it has to be kept. */
static void check_temporary(bool refuses, bool damaged)
{
	static struct world world;
	static struct world image;
	struct store_snapshot_request requests[] = {
		{ .action = STORE_SNAPSHOT_CREATE, .snapshot.name = "a", .done = failure_done },
		{ .action = STORE_SNAPSHOT_CREATE,
			.snapshot = { .name = "b", .is_temporary = true },
			.done = failure_done },
		{ .action = STORE_SNAPSHOT_CREATE, .snapshot.name = "c", .done = failure_done },
		{ .action = STORE_SNAPSHOT_DELETE, .snapshot.name = "b", .done = failure_done },
		{ .action = STORE_SNAPSHOT_CREATE,
			.snapshot = { .name = "d", .is_temporary = true },
			.done = failure_done },
	};
	static const int results[] = { 0, 0, -EMLINK, 0, 0 };

	memset(snapshots, 0, sizeof(snapshots));
	sim_start(&(struct sim_options){ .seed = 1, .faults = { .jitter = true } });
	world_disk = WORLD_FILE;
	world_cache = "0";
	world_make_disk();
	world_open(&world, "disk", false, NULL);
	container_of(world.store, struct flash, base)->snapshots.refuses = refuses;
	block_count = (uint32_t)(store_size(world.store) >> FLASH_BLOCK_SHIFT);
	written_count = block_count;
	fill(&world);
	for (size_t i = 0; i < ARRAY_COUNT(requests); i++) {
		store_snapshot_ask(world.store, &requests[i]);
	}
	for (size_t i = 0; i < ARRAY_COUNT(requests); i++) {
		while (requests[i].context == NULL) {
			assert_true(sim_step());
		}
		assert_int_equal(requests[i].result, results[i]);
	}
	assert_true(is_listed(&world, "a") && is_listed(&world, "d"));
	world_kill_copy("disk", "copy");
	world_freeze(&world, true);
	check_counts("copy");
	world_open(&image, "copy", false, NULL);
	assert_true(is_listed(&image, "a") && !is_listed(&image, "d"));
	world_close(&image);
	check_counts("copy");
	sim_disk_destroy(sim_disk_find("copy"));
	world_freeze(&world, false);
	container_of(world.store, struct flash, base)->snapshots.list[0].is_damaged = damaged;
	for (uint32_t writes = 0; !has_dropped(&world); writes++) {
		struct store_part part = { .op = STORE_WRITE,
			.offset = sim_between(0, block_count - 1) << FLASH_BLOCK_SHIFT,
			.length = FLASH_BLOCK_BYTES,
			.memory = mem_of(lane_memory),
			.done = damaged && refuses ? full_part_done : world_part_done };

		assert_true(writes < 100 * block_count);
		world_submit(&world, &part);
	}
	assert_true(is_listed(&world, "a") == (refuses || !damaged));
	assert_true(is_listed(&world, "d") == (damaged && !refuses));
	world_end(&world);
}

TEST(test_temporary_snapshots_go_first_and_with_the_server)
{
	check_temporary(false, false);
	check_temporary(true, false);
	check_temporary(false, true);
	check_temporary(true, true);
}

/* Whoever opens it now is told what has become of it. */
static void expect_dropped(struct world *world, const char *name)
{
	struct store *snapshot;
	struct error error;

	while (is_listed(world, name)) {
		assert_true(sim_step());
	}
	assert_int_equal(store_snapshot_open(world->store, name, &snapshot, &error), -ENOENT);
	assert_non_null(strstr(error.text, "has dropped its snapshot 'a'"));
	assert_int_equal(store_snapshot_open(world->store, "b", &snapshot, &error), -ENOENT);
	assert_non_null(strstr(error.text, "has no snapshot 'b'"));
}

/* What is in the write cache finds no room beside a snapshot when the store is closed: the snapshot
 * goes, and who watched for that is not told, as it may have gone, too. */
TEST(test_a_snapshot_is_dropped_when_the_store_is_closed)
{
	enum { SLOTS = 32, STRIDE = 8 };
	static struct world world;
	uint32_t dropped = 0;
	bool is_over = false;

	memset(snapshots, 0, sizeof(snapshots));
	world_disk = WORLD_FILE;
	world_cache = "128K";
	for (uint32_t changed = 0; !is_over; changed += STRIDE) {
		struct store_snapshot_request request = {
			.action = STORE_SNAPSHOT_CREATE, .snapshot.name = "a", .done = failure_done
		};

		world_start(&world, 1);
		block_count = (uint32_t)(store_size(world.store) >> FLASH_BLOCK_SHIFT);
		written_count = block_count;
		fill(&world);
		store_snapshot_ask(world.store, &request);
		while (request.context == NULL) {
			assert_true(sim_step());
		}
		assert_int_equal(request.result, 0);
		for (uint32_t i = 0; i < changed + SLOTS; i++) {
			struct store_part part = { .op = STORE_WRITE,
				.flags = i < changed ? STORE_FUA : 0,
				.offset = (uint64_t)i << FLASH_BLOCK_SHIFT,
				.length = FLASH_BLOCK_BYTES,
				.memory = mem_of(lane_memory),
				.done = world_part_done };

			world_submit(&world, &part);
		}
		is_over = has_dropped(&world);
		if (is_over) {
			expect_dropped(&world, "a");
		}
		world_close(&world);
		world_open(&world, "disk", false, NULL);
		dropped += !is_over && !is_listed(&world, "a");
		world_end(&world);
	}
	assert_true(dropped > 0);
}

static int last_result;

static void result_done(struct store_part *part, int result)
{
	last_result = result;
	part->op = STORE_OP_COUNT;
}

/* As an image may have it that somebody has made up: writes end, and not the server. */
TEST(test_a_table_that_does_not_fit_a_snapshot_ends_writes)
{
	enum { WRITES_MAX = 5000 };
	static struct world world;
	struct flash *flash;

	memset(snapshots, 0, sizeof(snapshots));
	world_disk = WORLD_FILE;
	world_start(&world, 1);
	flash = container_of(world.store, struct flash, base);
	block_count = (uint32_t)(store_size(world.store) >> FLASH_BLOCK_SHIFT);
	written_count = block_count / 2;
	fill(&world);
	snprintf(snapshots[0].request.snapshot.name, sizeof(snapshots[0].request.snapshot.name),
		"v");
	snapshots[0].state = MODEL_CREATING;
	snapshot_ask(&world, &snapshots[0], STORE_SNAPSHOT_CREATE);
	while (!snapshots[0].is_done) {
		assert_true(sim_step());
	}
	for (uint32_t i = 0; i < WORLD_SEGMENTS; i++) {
		flash->segments[i].snapshot_valid[0] =
			MIN(flash->segments[i].snapshot_valid[0], 1U);
	}
	last_result = 0;
	for (uint32_t i = 0; last_result == 0; i++) {
		struct store_part part = { .op = STORE_WRITE,
			.offset = (uint64_t)(i * 7 % written_count) << FLASH_BLOCK_SHIFT,
			.length = FLASH_BLOCK_BYTES,
			.memory = mem_of(lane_memory),
			.done = result_done };

		assert_true(i < WRITES_MAX);
		world_submit(&world, &part);
	}
	assert_int_equal(last_result, -EUCLEAN);
	world_discard(&world);
	sim_stop();
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		crash_points = (uint32_t)strtoul(argv[1], NULL, 10);
	}
	if (argc > 2) {
		first_seed = strtoull(argv[2], NULL, 10);
	}
	return unit_run(NULL, NULL);
}
