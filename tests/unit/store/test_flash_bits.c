// SPDX-License-Identifier: Apache-2.0
/*
 * One bit is flipped in each block of metadata of a small flash store in turn: anchors, the nodes
 * of each level and their second copies, the table of segments, headers. The store then opens
 * whole; or it is refused for writing, can be read but for holes that a check names, and is whole
 * after a repair. The arguments are how many stores there are, and the first seed.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flash_world.h"

#include "../stores.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "unit.h"

enum {
	BLOCKS_MAX = WORLD_SEGMENTS * WORLD_SEGMENT_BLOCKS,
	WRITES = 400,
	LOG_WRITES = 12, /* behind the last checkpoint, of a store whose server is killed */
	RUN_MAX = 12,	 /* blocks */
	TOLD_BLOCKS = 72,
	CONTROLS_MAX = 4096,
	FLYING = 8,
	STEPS_MAX = 60,
};

static uint64_t expected[BLOCKS_MAX];
static uint64_t now;
static uint32_t blocks;
static uint32_t changed_from; /* the first one that is changed */

static uint32_t stores = 3;
static uint64_t first_seed = 1;

/* --- a store --------------------------------------------------------------------------------- */

static void submit(struct world *world, enum store_op op, uint32_t first, uint32_t count)
{
	static uint8_t bytes[RUN_MAX * FLASH_BLOCK_BYTES];
	struct store_part part = { .done = world_part_done, .op = op, .memory = mem_of(bytes) };

	part.offset = (uint64_t)first * FLASH_BLOCK_BYTES;
	part.length = (uint64_t)count * FLASH_BLOCK_BYTES;
	now++;
	for (uint32_t i = 0; op != STORE_FLUSH && i < count * BLOCK_SECTORS; i++) {
		sector_fill(bytes + (size_t)i * SECTOR, now);
		expected[first + i / BLOCK_SECTORS] = op == STORE_ZERO ? 0 : now;
	}
	world_submit(world, &part);
}

static void change(struct world *world, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t run = (uint32_t)sim_between(1, RUN_MAX);
		bool zeroes = sim_between(0, 9) == 0;

		submit(world, zeroes ? STORE_ZERO : STORE_WRITE,
			(uint32_t)sim_between(changed_from, blocks - run), run);
	}
	submit(world, STORE_FLUSH, 0, 0);
}

/* The disk "rot": of a store that was closed, or with a log behind the checkpoint. */
static void make(uint64_t seed, bool killed)
{
	static struct world world;

	sim_start(&(struct sim_options){ .seed = seed });
	memset(expected, 0, sizeof(expected));
	world_disk = (enum world_disk)(seed % 2); /* a file, or a device that may lose discards */
	world_make_disk();
	world_open(&world, "disk", false, NULL);
	blocks = (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES);
	change(&world, WRITES);
	world_close(&world);
	if (!killed) {
		(void)sim_disk_kill_copy(sim_disk_find("disk"), "rot");
		return;
	}
	world_open(&world, "disk", false, NULL);
	change(&world, LOG_WRITES);
	for (uint32_t i = 0; i < TOLD_BLOCKS; i += RUN_MAX) { /* the log then tells its end */
		submit(&world, STORE_WRITE, i, RUN_MAX);
	}
	submit(&world, STORE_FLUSH, 0, 0);
	world_kill_copy("disk", "rot");
	world_close(&world);
}

/* The same of a store that was closed, and whose log was moved at the end: the headers of what
 * could not be written where it was first are there, too. */
static void make_moved(uint64_t seed)
{
	static struct world world;

	sim_start(&(struct sim_options){ .seed = seed });
	memset(expected, 0, sizeof(expected));
	world_disk = WORLD_FILE;
	world_make_disk();
	world_open(&world, "disk", true, NULL);
	blocks = (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES);
	change(&world, WRITES);
	while (world_counter(&world, "log_moves") == 0) {
		world_vary_bad_places("disk");
		change(&world, 1);
	}
	sim_disk_set_bad(sim_disk_find("disk"), 0, 0, false, false);
	world_close(&world);
	(void)sim_disk_kill_copy(sim_disk_find("disk"), "rot");
}

/* The disk "rot", of a store that was closed. In a snapshot most blocks are as they were before,
 * and the collector has moved many of those. */
static void make_with_snapshot(uint64_t seed)
{
	static struct world world;

	sim_start(&(struct sim_options){ .seed = seed });
	memset(expected, 0, sizeof(expected));
	world_disk = WORLD_FILE;
	world_make_disk();
	world_open(&world, "disk", false, NULL);
	blocks = (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES) / 2; /* room for both */
	change(&world, WRITES);
	assert_int_equal(world_snapshot(&world, STORE_SNAPSHOT_CREATE, "before"), 0);
	for (uint32_t i = 0; i < blocks; i += RUN_MAX) {
		submit(&world, STORE_WRITE, i, MIN((uint32_t)RUN_MAX, blocks - i));
	}
	change(&world, WRITES);
	world_close(&world);
	(void)sim_disk_kill_copy(sim_disk_find("disk"), "rot");
}

/* As many writes as may be on their way when a server crashes. */
static void submit_some(struct world *world, struct store_part parts[FLYING])
{
	static uint8_t bytes[FLYING][RUN_MAX * FLASH_BLOCK_BYTES];

	now++;
	for (uint32_t i = 0; i < FLYING; i++) {
		uint32_t run = (uint32_t)sim_between(1, RUN_MAX);

		parts[i] = (struct store_part){ .done = world_part_done,
			.op = STORE_WRITE,
			.offset = sim_between(changed_from, blocks - run) * FLASH_BLOCK_BYTES,
			.length = (uint64_t)run * FLASH_BLOCK_BYTES,
			.memory = mem_of(bytes[i]) };
		for (uint32_t k = 0; k < run * BLOCK_SECTORS; k++) {
			sector_fill(bytes[i] + (size_t)k * SECTOR, now);
		}
		store_submit(world->queues[0], &parts[i]);
	}
}

/* What there is of them in a crash is what the disk has from then on. */
static void learn(struct world *world)
{
	static uint8_t bytes[FLASH_BLOCK_BYTES];

	for (uint32_t i = 0; i < blocks; i++) {
		struct store_part part = { .done = world_part_done,
			.op = STORE_READ,
			.offset = (uint64_t)i * FLASH_BLOCK_BYTES,
			.length = sizeof(bytes),
			.memory = mem_of(bytes) };

		world_submit(world, &part);
		expected[i] = sector_tag(bytes);
	}
}

/* Its server has crashed several times, at any moment. Most changes behind a crash are those of a
 * single page, so that what the crash has cut off stays where it is, and not the headers of the run
 * behind it. */
static void make_crashed(uint64_t seed)
{
	static const char *const names[] = { "disk", "one", "two", "three", "four", "five" };
	static struct world world;

	sim_start(&(struct sim_options){ .seed = seed, .faults = { .jitter = true } });
	memset(expected, 0, sizeof(expected));
	world_disk = (enum world_disk)(seed % 2);
	world_make_disk();
	world_open(&world, "disk", false, NULL);
	blocks = (uint32_t)(store_size(world.store) / FLASH_BLOCK_BYTES);
	for (size_t i = 1; i < ARRAY_COUNT(names); i++) {
		struct store_part parts[FLYING];

		changed_from = i % 3 == 1 ? 0 : FLASH_NODE_ENTRIES;
		change(&world, (uint32_t)sim_between(0, i % 3 == 2 ? 3 : WRITES));
		submit_some(&world, parts);
		for (uint64_t steps = sim_between(0, STEPS_MAX); steps > 0; steps--) {
			(void)sim_step();
		}
		(void)sim_disk_crash_copy(sim_disk_find(names[i - 1]), names[i]);
		for (uint32_t k = 0; k < FLYING; k++) {
			while (parts[k].op != STORE_OP_COUNT) {
				assert_true(sim_step());
			}
		}
		world_close(&world);
		sim_disk_destroy(sim_disk_find(names[i - 1]));
		world_open(&world, names[i], false, NULL);
		learn(&world);
	}
	changed_from = 0;
	world_close(&world);
	(void)sim_disk_kill_copy(sim_disk_find(names[ARRAY_COUNT(names) - 1]), "rot");
}

/* --- its metadata ---------------------------------------------------------------------------- */

enum kind { ANCHOR, UPPER, TWIN, TABLE, PAGE, HEADER, KIND_COUNT };

struct control {
	uint32_t block;
	enum kind kind;
};

static struct control controls[CONTROLS_MAX];
static uint32_t control_count;

static void add(uint32_t block, enum kind kind)
{
	assert_true(control_count < CONTROLS_MAX);
	controls[control_count++] = (struct control){ block, kind };
}

static void peek(const char *name, uint32_t block, void *bytes)
{
	sim_disk_peek(
		sim_disk_find(name), (uint64_t)block * FLASH_BLOCK_BYTES, bytes, FLASH_BLOCK_BYTES);
}

static void flip(const char *name, uint32_t block)
{
	uint8_t bytes[FLASH_BLOCK_BYTES];

	peek(name, block, bytes);
	bytes[sim_between(0, sizeof(bytes) - 1)] ^= (uint8_t)(1U << sim_between(0, 7));
	sim_disk_poke(
		sim_disk_find(name), (uint64_t)block * FLASH_BLOCK_BYTES, bytes, sizeof(bytes));
}

static uint32_t find_twin(uint32_t block)
{
	uint8_t first[FLASH_BLOCK_BYTES];
	uint8_t other[FLASH_BLOCK_BYTES];

	peek("rot", block, first);
	for (uint32_t i = block + 1; i < block + WORLD_SEGMENT_BLOCKS; i++) {
		peek("rot", i, other);
		if (memcmp(first, other, sizeof(first)) == 0) {
			return i;
		}
	}
	fail_msg("node %u has no second copy", block);
	return 0;
}

static void add_below(const struct flash_anchor *anchor, const struct flash_entry *entries,
	uint32_t level, uint32_t first)
{
	for (uint32_t i = 0;
		i < anchor->geometry.node_counts[level] - first && i < FLASH_NODE_ENTRIES; i++) {
		uint32_t block = le32toh(entries[i].block);
		struct flash_node node;

		if (block == 0) {
			continue;
		}
		if (level == 0) {
			add(block, first + i < anchor->geometry.leaf_count ? PAGE : TABLE);
			continue;
		}
		add(block, UPPER);
		add(find_twin(block), TWIN);
		peek("rot", block, &node);
		add_below(anchor, node.entries, level - 1, (first + i) * FLASH_NODE_ENTRIES);
	}
}

static void read_anchor(const char *name, struct flash_anchor *anchor)
{
	uint8_t block[FLASH_BLOCK_BYTES];
	struct error error;

	peek(name, 0, block);
	assert_int_equal(flash_anchor_decode(block, anchor, &error), 0);
}

/* All headers; but not those of the log behind which so little follows that no later record says
 * that they were durable. */
static void add_headers(const struct flash_anchor *anchor)
{
	static uint64_t seqs[CONTROLS_MAX];
	uint32_t first = control_count;
	uint32_t kept = first;
	uint64_t durable = 0;

	for (uint32_t i = FLASH_SEGMENTS_AT; i < flash_device_blocks(&anchor->geometry); i++) {
		uint8_t block[FLASH_BLOCK_BYTES];
		struct flash_record record;

		peek("rot", i, block);
		if (flash_record_look(block, anchor, &record)) {
			seqs[control_count] = record.seq;
			durable = MAX(durable, record.durable);
			add(i, HEADER);
		}
	}
	for (uint32_t i = first; i < control_count; i++) {
		if (seqs[i] < MAX(durable, anchor->next.seq)) {
			controls[kept++] = controls[i];
		}
	}
	control_count = kept;
}

static void find_controls(void)
{
	struct flash_anchor anchor;

	read_anchor("rot", &anchor);
	control_count = 0;
	add(0, ANCHOR);
	add(1, ANCHOR);
	add_below(&anchor, anchor.top, FLASH_LEVELS - 1, 0);
	add_headers(&anchor);
}

/* --- what is left of it ---------------------------------------------------------------------- */

static int read_result;

static void read_done(struct store_part *part, int result)
{
	read_result = result;
	part->op = STORE_OP_COUNT;
}

struct found {
	uint32_t errors;
	uint32_t wrong;
	uint32_t zeroed; /* wrong, but zeroes were expected */
};

static void read_all(struct world *world, struct found *found)
{
	static uint8_t bytes[FLASH_BLOCK_BYTES];

	*found = (struct found){ 0 };
	for (uint32_t i = 0; i < blocks; i++) {
		struct store_part part = { .done = read_done,
			.offset = (uint64_t)i * FLASH_BLOCK_BYTES,
			.length = FLASH_BLOCK_BYTES,
			.memory = mem_of(bytes) };

		store_submit(world->queues[0], &part);
		while (part.op == STORE_READ) {
			assert_true(sim_step());
		}
		if (read_result < 0) {
			found->errors++;
		} else if (sector_tag(bytes) != expected[i]) {
			found->wrong++;
			found->zeroed += expected[i] == 0;
		}
	}
}

/* 0, or why it was refused. */
static int open_try(bool read_only, uint32_t repairs, struct found *found, char *why)
{
	static struct world world;
	int result;

	world_repairs = repairs;
	world_begin(&world, "try", false, read_only);
	world_await(&world);
	world_repairs = 0;
	result = world.start.result;
	if (result == 0) {
		read_all(&world, found);
	} else {
		snprintf(why, ERROR_TEXT_BYTES, "%s", world.start.error.text);
	}
	world_discard(&world);
	return result;
}

static bool is_hole_named;
static uint32_t fault_count;

static void take_fault(const char *text)
{
	fault_count++;
	is_hole_named |= strncmp(text, "bytes ", 6) == 0;
}

static void check(void)
{
	fault_count = 0;
	is_hole_named = false;
	world_check("try", take_fault);
}

static bool is_whole(const struct found *found)
{
	return found->errors == 0 && found->wrong == 0;
}

static void try_again(void)
{
	if (sim_disk_find("try") != NULL) {
		sim_disk_destroy(sim_disk_find("try"));
	}
	(void)sim_disk_kill_copy(sim_disk_find("rot"), "try");
}

/* Holes, which a check names, are all that a reader misses; a repair leaves nothing wrong but what
 * was zeroed. */
static void expect_repair(const char *what, uint32_t block)
{
	struct found found;
	char why[ERROR_TEXT_BYTES];

	check();
	if (!is_hole_named) {
		fail_msg("%s at block %u: no hole is named", what, block);
	}
	if (open_try(true, 0, &found, why) < 0 || found.errors == 0 || found.wrong > 0) {
		fail_msg("%s at block %u: read-only: %u errors, %u wrong", what, block,
			found.errors, found.wrong);
	}
	if (open_try(false, STORE_REPAIR_MAP, &found, why) < 0 || found.errors > 0 ||
		found.wrong > found.zeroed) {
		fail_msg("%s at block %u: repaired: %u errors, %u wrong, %u zeroed", what, block,
			found.errors, found.wrong, found.zeroed);
	}
	check();
	if (fault_count > 0) {
		fail_msg("%s at block %u: %u faults after the repair", what, block, fault_count);
	}
}

/* The log ends there, or seems to. */
static void expect_loss(const char *what, uint32_t block, const char *why)
{
	struct found before;
	struct found after;
	char text[ERROR_TEXT_BYTES];

	if (strstr(why, "--accept-loss") == NULL) {
		fail_msg("%s at block %u: %s", what, block, why);
	}
	assert_int_equal(open_try(true, 0, &before, text), 0);
	assert_int_equal(open_try(false, STORE_REPAIR_LOSS, &after, text), 0);
	if (before.errors + after.errors > 0 || before.wrong != after.wrong) {
		fail_msg("%s at block %u: %u and %u wrong", what, block, before.wrong, after.wrong);
	}
	assert_int_equal(open_try(false, 0, &after, text), 0);
	check();
	assert_int_equal(fault_count, 0);
}

static void try_control(const struct control *control, bool killed, uint32_t *counts)
{
	static const char *const names[] = { "anchor", "node", "second copy", "table", "page",
		"header" };
	struct found found = { 0 };
	char why[ERROR_TEXT_BYTES] = "";
	int result;

	try_again();
	flip("try", control->block);
	result = open_try(false, 0, &found, why);
	counts[control->kind]++;
	if (result == 0 && is_whole(&found)) {
		return;
	}
	try_again();
	flip("try", control->block);
	if (control->kind == HEADER && killed && result < 0) {
		expect_loss(names[control->kind], control->block, why);
		return;
	}
	if (control->kind != PAGE) {
		fail_msg("%s at block %u: %s, %u errors, %u wrong", names[control->kind],
			control->block, why, found.errors, found.wrong);
	}
	expect_repair(names[control->kind], control->block);
}

static void try_all(bool killed)
{
	for (uint64_t seed = first_seed; seed < first_seed + stores; seed++) {
		uint32_t counts[KIND_COUNT] = { 0 };

		make(seed, killed);
		find_controls();
		for (uint32_t i = 0; i < control_count; i++) {
			try_control(&controls[i], killed, counts);
		}
		for (int i = 0; i < KIND_COUNT; i++) {
			assert_true(counts[i] > 0);
		}
		print_message("%u blocks, %u headers\n", control_count, counts[HEADER]);
		sim_stop();
	}
}

TEST(test_a_flipped_bit_loses_no_disk)
{
	try_all(false);
}

TEST(test_a_flipped_bit_of_a_killed_store_loses_no_disk)
{
	try_all(true);
}

/* What the collector has moved for a snapshot alone is older than what the disk has. */
TEST(test_a_repair_takes_nothing_from_snapshots)
{
	for (uint64_t seed = first_seed; seed < first_seed + 20 * stores; seed++) {
		uint32_t counts[KIND_COUNT] = { 0 };

		make_with_snapshot(seed);
		find_controls();
		for (uint32_t i = 0; i < control_count; i++) {
			if (controls[i].kind == PAGE) {
				try_control(&controls[i], false, counts);
			}
		}
		assert_true(counts[PAGE] > 0);
		sim_stop();
	}
}

/* Of two records with one number the one that was moved is followed. */
TEST(test_a_log_that_was_moved_is_followed)
{
	uint64_t moves = world_totals.log_moves;

	for (uint64_t seed = first_seed; seed < first_seed + 20 * stores; seed++) {
		uint32_t counts[KIND_COUNT] = { 0 };

		make_moved(seed);
		find_controls();
		for (uint32_t i = 0; i < control_count; i++) {
			if (controls[i].kind == PAGE) {
				try_control(&controls[i], false, counts);
			}
		}
		assert_true(counts[PAGE] > 0);
		sim_stop();
	}
	assert_in_range(world_totals.log_moves - moves, 20 * stores, UINT64_MAX);
}

/* Both copies of a node, with all that is below: only the headers tell where it is. */
TEST(test_lost_nodes_are_found_by_headers)
{
	for (uint64_t seed = first_seed; seed < first_seed + 2 * stores; seed++) {
		make(seed, seed % 4 < 2);
		find_controls();
		for (uint32_t i = 0; i + 1 < control_count; i++) {
			struct found found;
			char why[ERROR_TEXT_BYTES];

			if (controls[i].kind != UPPER) {
				continue;
			}
			try_again();
			flip("try", controls[i].block);
			flip("try", controls[i + 1].block);
			assert_int_equal(open_try(false, 0, &found, why), -EUCLEAN);
			assert_non_null(strstr(why, "gmblock check --rebuild"));
			expect_repair("both copies", controls[i].block);
		}
		sim_stop();
	}
}

/* What its crashes have cut off is in headers, too. */
TEST(test_what_crashes_have_cut_off_stays_void)
{
	for (uint64_t seed = first_seed; seed < first_seed + 20 * stores; seed++) {
		make_crashed(seed);
		find_controls();
		try_again();
		for (uint32_t i = 0; i < control_count; i++) {
			if (controls[i].kind == UPPER || controls[i].kind == TWIN) {
				flip("try", controls[i].block);
			}
		}
		expect_repair("all nodes", (uint32_t)seed);
		sim_stop();
	}
}

/* No header of the last run is left, as if its segments had been written over. Returns its number.
 */
static uint64_t drop_last_run(const struct flash_anchor *anchor)
{
	static const uint8_t zeroes[FLASH_BLOCK_BYTES];
	uint64_t run = anchor->next.seq >> FLASH_SEQ_SHIFT;
	uint32_t count = 0;

	for (uint32_t i = FLASH_SEGMENTS_AT; i < flash_device_blocks(&anchor->geometry); i++) {
		uint8_t block[FLASH_BLOCK_BYTES];
		struct flash_record record;

		peek("rot", i, block);
		if (flash_record_look(block, anchor, &record) &&
			record.seq >> FLASH_SEQ_SHIFT == run) {
			sim_disk_poke(sim_disk_find("rot"), (uint64_t)i * FLASH_BLOCK_BYTES, zeroes,
				sizeof(zeroes));
			count++;
		}
	}
	assert_true(count > 0);
	return run;
}

/* The header of a write to the block of the disk, without the block, in a segment without headers.
 * False: there is none. */
static bool tear_record(const struct flash_anchor *anchor, uint64_t seq, uint64_t lpn)
{
	struct flash_record other;
	struct flash_record record = { .seq = seq,
		.durable = seq,
		.next_segment = FLASH_NO_SEGMENT,
		.entry_count = 1,
		.block_count = 2,
		.entries = { { .lpn = lpn, .crc = 1, .kind = FLASH_DATA } } };
	uint8_t block[FLASH_BLOCK_BYTES];
	uint32_t segment = anchor->geometry.segment_count;
	bool is_empty = false;

	while (!is_empty) {
		if (segment-- == 0) {
			return false;
		}
		record.at = flash_segment_at(&anchor->geometry, segment);
		is_empty = true;
		for (uint32_t i = 0; i < WORLD_SEGMENT_BLOCKS; i++) {
			peek("rot", record.at + i, block);
			is_empty &= !flash_record_look(block, anchor, &other);
		}
	}
	(void)flash_record_encode(&record, anchor->uuid, block);
	sim_disk_poke(sim_disk_find("rot"), (uint64_t)record.at * FLASH_BLOCK_BYTES, block,
		sizeof(block));
	return true;
}

/* Where the run before the last one ended is in no header any more. */
TEST(test_a_torn_record_that_nothing_tells_of_stays_void)
{
	static struct world world;
	uint32_t torn = 0;

	for (uint64_t seed = first_seed; seed < first_seed + 2 * stores; seed++) {
		struct flash_anchor anchor;
		struct found found;
		char why[ERROR_TEXT_BYTES];
		uint32_t empty = 0;
		uint32_t full = 0;
		uint64_t run;

		make(seed, false);
		while (expected[empty] != 0) {
			empty++;
		}
		while (expected[full] == 0) {
			full++;
		}
		world_open(&world, "rot", false, NULL);
		submit(&world, STORE_ZERO, empty, 1);
		world_close(&world);
		find_controls();
		read_anchor("rot", &anchor);
		run = drop_last_run(&anchor);
		if (!tear_record(&anchor, ((run - 1) << FLASH_SEQ_SHIFT) + (1U << 20), full)) {
			sim_stop();
			continue;
		}
		torn++;
		try_again();
		for (uint32_t i = 0; i < control_count; i++) {
			if (controls[i].kind == UPPER || controls[i].kind == TWIN) {
				flip("try", controls[i].block);
			}
		}
		assert_int_equal(open_try(false, STORE_REPAIR_MAP, &found, why), 0);
		assert_int_equal(found.errors + found.wrong, 0);
		sim_stop();
	}
	assert_true(torn > 0);
}

/* A page of the map in place of the top node, with its checksum: it is no page of what is below. */
TEST(test_a_node_of_another_level_is_lost)
{
	for (uint64_t seed = first_seed; seed < first_seed + stores; seed++) {
		struct flash_anchor anchor;
		struct flash_node node;
		uint8_t block[FLASH_BLOCK_BYTES];

		make(seed, false);
		read_anchor("rot", &anchor);
		for (int level = FLASH_LEVELS - 1; level > 0; level--) {
			peek("rot", le32toh(anchor.top[0].block), &node);
			anchor.top[0] = node.entries[0];
		}
		flash_anchor_encode(&anchor, block);
		for (uint32_t i = 0; i < FLASH_ANCHORS; i++) {
			sim_disk_poke(sim_disk_find("rot"), (uint64_t)i * FLASH_BLOCK_BYTES, block,
				sizeof(block));
		}
		try_again();
		expect_repair("a page of the map", 0);
		sim_stop();
	}
}

/* All nodes and the table at once. What was put together is written on like any other store. */
TEST(test_a_repaired_store_goes_on)
{
	static struct world world;
	struct found found;

	for (uint64_t seed = first_seed; seed < first_seed + 2 * stores; seed++) {
		char why[ERROR_TEXT_BYTES];

		make(seed, false);
		find_controls();
		try_again();
		for (uint32_t i = 0; i < control_count; i++) {
			if (controls[i].kind != HEADER && controls[i].kind != ANCHOR) {
				flip("try", controls[i].block);
			}
		}
		assert_int_equal(open_try(false, 0, &found, why), -EUCLEAN);
		assert_int_equal(
			open_try(false, STORE_REPAIR_MAP | STORE_REPAIR_LOSS, &found, why), 0);
		assert_int_equal(found.errors, 0);
		assert_int_equal(found.wrong, found.zeroed);
		world_open(&world, "try", false, NULL);
		for (uint32_t i = 0; i < blocks; i += RUN_MAX) { /* zeroed ones as well */
			submit(&world, STORE_WRITE, i, MIN((uint32_t)RUN_MAX, blocks - i));
		}
		change(&world, WRITES);
		read_all(&world, &found);
		assert_true(is_whole(&found));
		world_close(&world);
		check();
		assert_int_equal(fault_count, 0);
		sim_stop();
	}
}

/* A device that lied at a power failure: the anchors are there, and nothing else of what was
 * written since some moment before. All that there was at that moment comes back. */
TEST(test_a_device_that_lied)
{
	static struct world world;
	static uint64_t then[BLOCKS_MAX];

	for (uint64_t seed = first_seed; seed < first_seed + 2 * stores; seed++) {
		struct found found;
		uint8_t block[FLASH_BLOCK_BYTES];
		char why[ERROR_TEXT_BYTES];

		make(seed, true);
		memcpy(then, expected, sizeof(then));
		world_open(&world, "disk", false, NULL);
		change(&world, LOG_WRITES * 4);
		world_close(&world);
		memcpy(expected, then, sizeof(then));
		for (uint32_t i = 0; i < FLASH_ANCHORS; i++) {
			peek("disk", i, block);
			sim_disk_poke(sim_disk_find("rot"), (uint64_t)i * FLASH_BLOCK_BYTES, block,
				sizeof(block));
		}
		try_again();
		assert_int_equal(open_try(false, 0, &found, why), -EUCLEAN);
		assert_int_equal(open_try(true, 0, &found, why), 0);
		assert_true(found.errors > 0 && found.wrong == 0);
		assert_int_equal(
			open_try(false, STORE_REPAIR_MAP | STORE_REPAIR_LOSS, &found, why), 0);
		if (found.errors > 0 || found.wrong > found.zeroed) {
			fail_msg("seed %llu: %u errors, %u wrong, %u zeroed",
				(unsigned long long)seed, found.errors, found.wrong, found.zeroed);
		}
		sim_stop();
	}
}

/* A store of a format that is too old, or newer than the program, is refused with a sentence. */
static void check_refused(uint32_t version)
{
	uint32_t wire = htole32(version);
	struct store_options options = { .path = "flash:disk" };
	uint8_t block[FLASH_BLOCK_BYTES];
	struct store *store;
	struct error error;
	char says[32];

	sim_start(&(struct sim_options){ .seed = 1 });
	world_disk = WORLD_FILE;
	world_make_disk();
	for (uint32_t i = 0; i < FLASH_ANCHORS; i++) {
		uint32_t crc;

		peek("disk", i, block);
		memcpy(block + 8, &wire, sizeof(wire));
		crc = htole32(crc32c(0, block, sizeof(block) - 4));
		memcpy(block + sizeof(block) - 4, &crc, sizeof(crc));
		sim_disk_poke(sim_disk_find("disk"), i * FLASH_BLOCK_BYTES, block, sizeof(block));
	}
	assert_true(store_open(&options, &store, &error) < 0);
	snprintf(says, sizeof(says), "format version %u ", version);
	assert_non_null(strstr(error.text, says));
	assert_non_null(strstr(
		error.text, "copy the disk with the gmblock version that created the store"));
	sim_stop();
}

TEST(test_another_version_is_refused)
{
	check_refused(FLASH_OLDEST_VERSION - 1);
	check_refused(FLASH_ANCHOR_VERSION + 1);
}

int main(int argc, char **argv)
{
	stores = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : stores;
	first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
	return unit_run(NULL, NULL);
}
