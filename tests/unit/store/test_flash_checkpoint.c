// SPDX-License-Identifier: Apache-2.0
/*
 * Changes go on while a checkpoint of many pages is written, and what is there then is whole: after
 * each write that was answered meanwhile the server is killed, and the power lost, in copies of the
 * disk. The same when the log is moved meanwhile. What has become empty meanwhile stays, and the
 * checkpoint's own nodes are enough to put its map together. Stores of older versions become ones
 * of this. What comes first is told by the order of events, on a disk where everything takes as
 * long as everything else.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "flash_world.h"

#include "../stores.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"
#include "unit.h"

enum {
	SEGMENT_BLOCKS = 64,
	SEGMENTS = 1024,
	PAGES_MAX = 256,
	ANSWERED_MIN = 8, /* writes, while a checkpoint of PAGES_MIN pages is written */
	PAGES_MIN = 64,
	RUN_BLOCKS = 3 * SEGMENT_BLOCKS, /* that fill a segment, wherever they begin */
	ERASE_READS = 1000,		 /* while which all is erased that is to be */
	MOVE_STRIDE = 7,		 /* events: from move to move */
	MOVES_MIN = 8,			 /* while a checkpoint is written */
	LATER_WRITES = 20,		 /* behind a checkpoint */
	HEADER_CRC_END = 8,		 /* see docs/protocol/flash.md */
	NODES_AT_OFFSET = 72,
};

/* Tags of the first block of each page of the map: at first, and now. */
static uint64_t first_tags[PAGES_MAX];
static uint64_t tags[PAGES_MAX];
static uint32_t page_count;
static uint32_t write_count; /* since first_tags */
static uint64_t last_tag;

static uint8_t memory[RUN_BLOCKS * FLASH_BLOCK_BYTES] __attribute__((aligned(FLASH_BLOCK_BYTES)));

static bool direct;
static uint64_t bad_at;	     /* writes there fail; 0: none do */
static uint64_t events_left; /* of writes, until the next record cannot be written */

static struct flash *store_of(const struct world *world)
{
	return container_of(world->store, struct flash, base);
}

/* --- moves ----------------------------------------------------------------------------------- */

/* The next record cannot be written where it is to be. */
static void break_head(const struct world *world)
{
	const struct flash *flash = store_of(world);
	const struct flash_position *head = &flash->log.head;

	bad_at = flash_block_offset(
		flash, flash_segment_at(&flash->anchor.geometry, head->segment) + head->block);
	sim_disk_set_bad(sim_disk_find("disk"), bad_at, FLASH_BLOCK_BYTES, false, true);
}

static void step(const struct world *world)
{
	if (events_left-- == 0) {
		break_head(world);
	}
	assert_true(sim_step());
}

/* --- changes --------------------------------------------------------------------------------- */

static void prepare(struct store_part *part, enum store_op op, uint64_t block, uint32_t count)
{
	*part = (struct store_part){ .op = op,
		.offset = block << FLASH_BLOCK_SHIFT,
		.length = (uint64_t)count * FLASH_BLOCK_BYTES,
		.memory = mem_of(memory),
		.done = world_part_done };
}

static void write_blocks(struct world *world, uint64_t block, uint32_t count)
{
	struct store_part part;

	last_tag++;
	for (uint32_t i = 0; i < count * BLOCK_SECTORS; i++) {
		sector_fill(memory + (size_t)i * SECTOR, last_tag);
	}
	prepare(&part, STORE_WRITE, block, count);
	store_submit(world->queues[0], &part);
	while (part.op != STORE_OP_COUNT) {
		step(world);
	}
}

static uint64_t first_of(uint32_t page)
{
	return (uint64_t)page * FLASH_NODE_ENTRIES;
}

static void write_page(struct world *world, uint32_t page, uint32_t count)
{
	tags[page] = last_tag + 1;
	write_blocks(world, first_of(page), count);
}

/* One that a checkpoint has written, and one that it has still to write, in turn; each once. */
static void write_next(struct world *world)
{
	uint32_t number = write_count++;
	uint32_t page = number % 2 == 0 ? number / 2 : page_count - 1 - number / 2;

	assert_true(number < page_count);
	write_page(world, page, 1);
}

/* All pages are changed, and durable. */
static void change_all(struct world *world)
{
	struct store_part part = { .op = STORE_FLUSH, .done = world_part_done };

	for (uint32_t page = 0; page < page_count; page++) {
		write_page(world, page, 1);
	}
	world_submit(world, &part);
	memcpy(first_tags, tags, sizeof(tags));
	write_count = 0;
}

static void begin(struct world *world)
{
	struct sim_disk_options options = {
		.size = (FLASH_SEGMENTS_AT + SEGMENTS * SEGMENT_BLOCKS) *
			(uint64_t)FLASH_BLOCK_BYTES,
		.direct_offset_align = 512,
		.is_block = true,
	};
	struct store_create create = { .segment_bytes =
					       (uint64_t)SEGMENT_BLOCKS * FLASH_BLOCK_BYTES };
	struct error error;

	sim_start(&(struct sim_options){ .seed = 1 });
	(void)sim_disk_create("disk", &options);
	assert_int_equal(store_create("flash:disk", &create, &error), 0);
	world_open(world, "disk", direct, NULL);
	page_count = (uint32_t)(store_size(world->store) >> FLASH_BLOCK_SHIFT) / FLASH_NODE_ENTRIES;
	assert_in_range(page_count, PAGES_MIN, PAGES_MAX);
	bad_at = 0;
	events_left = UINT64_MAX;
	change_all(world);
}

/* --- checkpoints ----------------------------------------------------------------------------- */

static void snapshot_done(struct store_snapshot_request *request)
{
	assert_int_equal(request->result, 0);
	request->context = request;
}

static struct store_snapshot_request request;

/* A snapshot is made by a checkpoint that begins when it is asked for, and is there when that has
 * ended. */
static void ask(struct world *world)
{
	request = (struct store_snapshot_request){ .action = STORE_SNAPSHOT_CREATE,
		.done = snapshot_done };
	snprintf(request.snapshot.name, sizeof(request.snapshot.name), "v");
	store_snapshot_ask(world->store, &request);
}

static bool is_written(void)
{
	return request.context != NULL;
}

/* --- crashes --------------------------------------------------------------------------------- */

static void check(struct world *world, bool is_killed)
{
	for (uint32_t page = 0; page < page_count; page++) {
		struct store_part part;
		uint64_t tag;

		prepare(&part, STORE_READ, first_of(page), 1);
		world_submit(world, &part);
		tag = sector_tag(memory);
		if (tag != tags[page] && (is_killed || tag != first_tags[page])) {
			fail_msg("page %u has %llu, not %llu", page, (unsigned long long)tag,
				(unsigned long long)tags[page]);
		}
	}
}

static void copy(const struct world *world, bool is_killed)
{
	if (is_killed) {
		world_kill_copy("disk", "copy");
	} else {
		(void)sim_disk_crash_copy(sim_disk_find("disk"), "copy");
	}
	/* What could not be written cannot be read, once the log has left it. */
	sim_disk_set_bad(sim_disk_find("copy"), bad_at, bad_at > 0 ? FLASH_BLOCK_BYTES : 0,
		world_counter(world, "log_moves") > 0, true);
}

/* It is opened with those repairs, and has what it should have. */
static void check_disk(const char *name, uint32_t repairs, bool is_killed)
{
	static struct world image;

	world_repairs = repairs;
	world_open(&image, name, direct, NULL);
	world_repairs = 0;
	check(&image, is_killed);
	world_close(&image);
	sim_disk_destroy(sim_disk_find(name));
}

/* What a crash leaves now. */
static void crash(struct world *world, bool is_killed)
{
	copy(world, is_killed);
	world_freeze(world, true);
	check_disk("copy", 0, is_killed);
	world_freeze(world, false);
}

TEST(test_changes_are_answered_while_a_checkpoint_is_written)
{
	static struct world world;
	uint32_t answered = 0;

	begin(&world);
	ask(&world);
	while (!is_written()) {
		write_next(&world);
		if (!is_written()) {
			answered++;
			crash(&world, answered % 2 == 0);
		}
	}
	print_message("%u writes were answered while a checkpoint of %u pages was written\n",
		answered, page_count);
	assert_true(answered >= ANSWERED_MIN);
	check(&world, true);
	crash(&world, true);
	world_end(&world);
}

/* Changes go on while it is written: they wait for the snapshot's own checkpoint only. */
TEST(test_a_snapshot_waits_for_the_checkpoint_before_it)
{
	static struct world world;
	struct store_part settle = {
		.op = STORE_FLUSH, .flags = STORE_QUIESCE, .done = world_part_done
	};
	uint32_t answered = 0;

	begin(&world);
	store_submit(world.queues[0], &settle);
	while (store_of(&world)->checkpoint.state < FLASH_CHECKPOINT_LEVEL_0) {
		assert_true(sim_step());
	}
	ask(&world);
	while (settle.op != STORE_OP_COUNT) {
		write_next(&world);
		answered += settle.op != STORE_OP_COUNT;
	}
	print_message("%u writes were answered before a snapshot was begun\n", answered);
	assert_true(answered >= ANSWERED_MIN && !is_written());
	while (!is_written()) {
		write_next(&world);
	}
	check(&world, true);
	crash(&world, true);
	world_end(&world);
}

/* --- what has become empty ------------------------------------------------------------------- */

/* Segments that were filled since the checkpoint at hand began, and have nothing any more. */
static uint32_t count_emptied(const struct flash *flash)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < SEGMENTS; i++) {
		count += flash->table.segments[i].state == GC_CLOSED &&
			 flash->segments[i].begin_valid == 0 && !flash->segments[i].was_closed &&
			 flash_segment_is_empty(flash, i);
	}
	return count;
}

/* None of those is to be collected before the next checkpoint has begun. */
static void check_candidates(const struct flash *flash)
{
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		assert_true(flash->table.segments[i].state != GC_CANDIDATE ||
			    flash->segments[i].was_closed);
	}
}

/* What is free is erased while somebody waits for something. */
static void let_erase(struct world *world)
{
	struct store_part part;

	for (uint32_t i = 0; i < ERASE_READS; i++) {
		prepare(&part, STORE_READ, 0, 1);
		world_submit(world, &part);
	}
	assert_int_equal(store_of(world)->table.state_counts[GC_ERASING], 0);
}

/* The log behind the checkpoint goes through it. */
TEST(test_what_was_filled_and_emptied_meanwhile_is_not_erased)
{
	static struct world world;
	uint32_t emptied = 0;

	begin(&world);
	ask(&world);
	while (!is_written()) {
		write_page(&world, 0, RUN_BLOCKS);
		if (!is_written()) {
			emptied = count_emptied(store_of(&world));
		}
	}
	print_message("%u segments were filled and emptied meanwhile\n", emptied);
	assert_true(emptied > 1);
	check_candidates(store_of(&world));
	let_erase(&world);
	crash(&world, true);
	world_end(&world);
}

/* Segments that were full when it began, and have nothing any more. None of them is free. */
static uint32_t count_overwritten(const struct flash *flash)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < SEGMENTS; i++) {
		if (flash->segments[i].was_closed && flash->segments[i].begin_valid > 0 &&
			flash_segment_is_empty(flash, i)) {
			assert_int_not_equal(flash->table.segments[i].state, GC_FREE);
			count++;
		}
	}
	return count;
}

static uint64_t read_tag(struct world *world, uint64_t block)
{
	struct store_part part;

	prepare(&part, STORE_READ, block, 1);
	world_submit(world, &part);
	return sector_tag(memory);
}

/* What the disk of that name has for the block. */
static void check_block(const char *name, uint64_t block, uint64_t tag)
{
	static struct world image;

	world_open(&image, name, direct, NULL);
	assert_int_equal(read_tag(&image, block), tag);
	world_close(&image);
	sim_disk_destroy(sim_disk_find(name));
}

/* A segment that is full has that block, and no other one. Returns the block's tag. */
static uint64_t leave_block(struct world *world, uint32_t block)
{
	struct store_part flush = { .op = STORE_FLUSH, .done = world_part_done };
	uint64_t tag;

	write_blocks(world, 0, RUN_BLOCKS);
	tag = last_tag;
	write_blocks(world, 0, block);
	write_blocks(world, block + 1, RUN_BLOCKS - block - 1);
	world_submit(world, &flush);
	return tag;
}

static void peek(uint64_t block, void *bytes)
{
	sim_disk_peek(sim_disk_find("copy"), block * FLASH_BLOCK_BYTES, bytes, FLASH_BLOCK_BYTES);
}

static void poke(uint64_t block, const void *bytes)
{
	sim_disk_poke(sim_disk_find("copy"), block * FLASH_BLOCK_BYTES, bytes, FLASH_BLOCK_BYTES);
}

static void read_anchor(struct flash_anchor *anchor)
{
	uint8_t block[FLASH_BLOCK_BYTES];
	struct error error;

	peek(0, block);
	assert_int_equal(flash_anchor_decode(block, anchor, &error), 0);
}

/* The copy's log ends before the record that has the block. */
static void lose_record(uint64_t lpn)
{
	static const uint8_t zeroes[FLASH_BLOCK_BYTES];
	struct flash_anchor anchor;
	uint64_t end;

	read_anchor(&anchor);
	end = flash_device_blocks(&anchor.geometry);
	for (uint64_t i = FLASH_SEGMENTS_AT; i < end; i++) {
		uint8_t block[FLASH_BLOCK_BYTES];
		struct flash_record record;

		peek(i, block);
		if (flash_record_look(block, &anchor, &record) && record.at == i &&
			record.seq >= anchor.next.seq && record.entry_count > 0 &&
			record.entries[0].kind == FLASH_DATA && record.entries[0].lpn == lpn) {
			poke(i, zeroes);
		}
	}
}

/* The block is written so many events behind the nodes of a checkpoint. True: that was before the
 * checkpoint had ended. */
static bool overwrite_after(uint32_t events)
{
	static struct world world;
	const uint32_t block = RUN_BLOCKS / 2;
	struct store_part settle = {
		.op = STORE_FLUSH, .flags = STORE_QUIESCE, .done = world_part_done
	};
	uint64_t tag;
	bool meanwhile;

	begin(&world);
	tag = leave_block(&world, block);
	store_submit(world.queues[0], &settle); /* a snapshot would have the block, too */
	while (store_of(&world)->checkpoint.state < FLASH_CHECKPOINT_ANCHOR_FIRST) {
		assert_true(sim_step());
	}
	for (; events > 0 && settle.op != STORE_OP_COUNT; events--) {
		assert_true(sim_step());
	}
	write_blocks(&world, block, 1);
	meanwhile = settle.op != STORE_OP_COUNT;
	assert_true(!meanwhile || count_overwritten(store_of(&world)) > 0);
	world_part_await(&settle);
	let_erase(&world);
	world_freeze(&world, true);
	assert_true(count_overwritten(store_of(&world)) > 0);
	copy(&world, true);
	lose_record(block);
	check_block("copy", block, tag);
	world_freeze(&world, false);
	world_end(&world);
	return meanwhile;
}

/* The checkpoint has it, and needs it when the power takes what was written in its stead. */
TEST(test_what_was_overwritten_meanwhile_is_not_erased)
{
	uint32_t moments = 0;

	while (overwrite_after(moments)) {
		moments++;
	}
	print_message("a segment was emptied at %u moments of the end of a checkpoint\n", moments);
	assert_true(moments > 1);
}

/* --- damage ---------------------------------------------------------------------------------- */

/* The checkpoint made it durable, so that the flush behind it has nothing to do. */
TEST(test_damage_to_what_came_meanwhile_is_told)
{
	static struct world world;
	static struct world image;
	struct store_part flush = { .op = STORE_FLUSH, .done = world_part_done };

	begin(&world);
	ask(&world);
	while (store_of(&world)->checkpoint.state < FLASH_CHECKPOINT_LEVEL_0) {
		assert_true(sim_step());
	}
	write_page(&world, 0, RUN_BLOCKS);
	assert_in_range(store_of(&world)->checkpoint.state, FLASH_CHECKPOINT_LEVEL_0,
		FLASH_CHECKPOINT_LEVEL_2);
	while (!is_written()) {
		assert_true(sim_step());
	}
	world_submit(&world, &flush);
	world_freeze(&world, true);
	copy(&world, true);
	lose_record(0);
	world_begin(&image, "copy", direct, false);
	world_await(&image);
	assert_int_equal(image.start.result, -EUCLEAN);
	assert_non_null(strstr(image.start.error.text, "flushed records from there on are lost"));
	world_discard(&image);
	world_freeze(&world, false);
	world_end(&world);
}

/* --- what a rebuild has ---------------------------------------------------------------------- */

static void write_anchors(const struct flash_anchor *anchor)
{
	uint8_t block[FLASH_BLOCK_BYTES];

	flash_anchor_encode(anchor, block);
	for (uint32_t i = 0; i < FLASH_ANCHORS; i++) {
		poke(i, block);
	}
}

/* Headers that were there when the checkpoint began. */
static void change_headers(
	const struct flash_anchor *anchor, void (*change)(uint8_t block[FLASH_BLOCK_BYTES]))
{
	uint64_t end = flash_device_blocks(&anchor->geometry);

	for (uint64_t i = FLASH_SEGMENTS_AT; i < end; i++) {
		uint8_t block[FLASH_BLOCK_BYTES];
		struct flash_record record;

		peek(i, block);
		if (flash_record_look(block, anchor, &record) && record.at == i &&
			record.seq < anchor->next.seq) {
			change(block);
			poke(i, block);
		}
	}
}

static void forget(uint8_t block[FLASH_BLOCK_BYTES])
{
	memset(block, 0, FLASH_BLOCK_BYTES);
}

/* The anchors do not fit the top node, so that all of the map is lost. */
static void lose_map(struct flash_anchor *anchor)
{
	anchor->top[0].crc ^= htole32(1 << 16); /* entries of lost pages count on from there */
	write_anchors(anchor);
}

TEST(test_a_map_is_rebuilt_from_nodes_behind_the_checkpoint)
{
	static struct world world;
	struct flash_anchor anchor;

	begin(&world);
	ask(&world);
	while (!is_written()) {
		write_next(&world);
	}
	assert_int_equal(store_of(&world)->anchor.next.seq, store_of(&world)->checkpoint.begin.seq);
	copy(&world, true);
	read_anchor(&anchor);
	change_headers(&anchor, forget);
	lose_map(&anchor);
	world_freeze(&world, true);
	check_disk("copy", STORE_REPAIR_MAP, true);
	world_freeze(&world, false);
	world_end(&world);
}

/* --- stores of older versions ---------------------------------------------------------------- */

/* As older programs wrote it: it does not say as of when its nodes are. */
static void make_older(uint8_t block[FLASH_BLOCK_BYTES])
{
	uint32_t crc;

	memset(block + NODES_AT_OFFSET, 0, sizeof(uint64_t));
	crc = htole32(crc32c(0, block + HEADER_CRC_END, FLASH_BLOCK_BYTES - HEADER_CRC_END));
	memcpy(block + HEADER_CRC_END - sizeof(crc), &crc, sizeof(crc));
}

/* A copy of the store as a program of that version leaves it when it is killed. */
static void copy_older(const struct world *world, uint32_t version, struct flash_anchor *anchor)
{
	copy(world, true);
	read_anchor(anchor);
	anchor->version = version;
	write_anchors(anchor);
	change_headers(anchor, make_older);
}

/* Opens the copy, which makes it a store of this version. After so many events the power is lost,
 * in a copy of its own. False: it was open before. */
static bool convert(uint32_t events)
{
	static struct world image;
	bool is_lost = false;

	world_begin(&image, "copy", direct, false);
	for (; !image.started; events--) {
		if (events == 0) {
			(void)sim_disk_crash_copy(sim_disk_find("copy"), "again");
			is_lost = true;
		}
		assert_true(sim_step());
	}
	assert_int_equal(image.start.result, 0);
	assert_int_equal(store_of(&image)->anchor.version, FLASH_ANCHOR_VERSION);
	check(&image, true);
	world_close(&image);
	if (is_lost) {
		check_disk("again", 0, true);
	}
	check_disk("copy", 0, true);
	return is_lost;
}

/* What was flushed is there, from before the last checkpoint and behind it; at any crash, too. */
TEST(test_a_store_of_an_older_version_becomes_one_of_this)
{
	static struct world world;
	struct store_part flush = { .op = STORE_FLUSH, .done = world_part_done };
	struct store_part wait = { .op = STORE_FLUSH, .done = world_part_done };
	struct flash_anchor anchor;
	uint32_t moments = 0;

	begin(&world);
	wait.flags = STORE_QUIESCE;
	world_submit(&world, &wait);
	for (uint32_t i = 0; i < LATER_WRITES; i++) {
		write_next(&world);
	}
	world_submit(&world, &flush);
	world_freeze(&world, true);
	do {
		copy_older(&world, FLASH_OLDEST_VERSION + moments % 2, &anchor);
	} while (convert(moments++));
	print_message("the power was lost at %u moments of a conversion\n", moments - 1);
	assert_true(moments > MOVES_MIN);
	copy_older(&world, FLASH_OLDEST_VERSION, &anchor);
	lose_map(&anchor);
	check_disk("copy", STORE_REPAIR_MAP, true);
	world_freeze(&world, false);
	world_end(&world);
}

/* --- the log is moved ------------------------------------------------------------------------ */

/* Goes on until the log has been moved, and a checkpoint has ended that began behind the move.
 * Crashes after each write that was answered behind it. */
static void go_on(struct world *world)
{
	const struct flash *flash = store_of(world);

	while (flash->counters.log_moves == 0 || flash->anchor.detour_count > 0 ||
		flash_checkpoint_runs(flash)) {
		write_next(world);
		if (flash->counters.log_moves > 0) {
			crash(world, write_count % 2 == 0);
		}
	}
}

/* So many events behind the beginning of a checkpoint. False: that had ended. */
static bool move_after(uint64_t events)
{
	static struct world world;
	bool meanwhile;

	begin(&world);
	ask(&world);
	events_left = events;
	while (bad_at == 0) {
		write_next(&world);
	}
	meanwhile = !is_written();
	go_on(&world);
	assert_int_equal(world_counter(&world, "log_moves"), 1);
	check(&world, true);
	crash(&world, true);
	world_end(&world);
	return meanwhile;
}

TEST(test_the_log_is_moved_while_a_checkpoint_is_written)
{
	uint32_t moves = 0;

	direct = true;
	while (move_after(moves * MOVE_STRIDE)) {
		moves++;
	}
	direct = false;
	print_message("the log was moved at %u moments of a checkpoint\n", moves);
	assert_true(moves >= MOVES_MIN);
}

/* Where the log of whoever opens the copy begins. */
static uint64_t find_first_record(void)
{
	static struct world image;
	const struct flash *flash;
	uint64_t at;

	world_open(&image, "copy", direct, NULL);
	flash = store_of(&image);
	at = flash_block_offset(
		flash, flash_segment_at(&flash->anchor.geometry, flash->checkpoint.begin.segment));
	assert_int_equal(flash->checkpoint.begin.block, 0);
	world_close(&image);
	sim_disk_destroy(sim_disk_find("copy"));
	return at;
}

/* What a kill leaves now, where the place that could not be written cannot be read. */
static void check_moved(const struct world *image)
{
	world_kill_copy("copy", "again");
	world_freeze(image, true);
	sim_disk_set_bad(sim_disk_find("again"), bad_at, FLASH_BLOCK_BYTES, true, true);
	check_disk("again", 0, true);
	world_freeze(image, false);
}

/* Nothing leads to them yet but the anchors that their checkpoint writes. */
TEST(test_the_first_records_of_a_run_are_moved)
{
	static struct world world;
	static struct world image;

	direct = true;
	begin(&world);
	world_freeze(&world, true);
	copy(&world, true);
	bad_at = find_first_record();
	copy(&world, true);
	world_begin(&image, "copy", direct, false);
	while (!image.started) {
		assert_true(sim_step());
		if (store_of(&image)->counters.log_moves > 0) {
			check_moved(&image);
		}
	}
	assert_int_equal(world_counter(&image, "log_moves"), 1);
	write_next(&image);
	check_moved(&image);
	check(&image, true);
	world_close(&image);
	world_freeze(&world, false);
	world_end(&world);
	direct = false;
}

int main(void)
{
	log_set_level(LOG_LEVEL_ERROR); /* each move is a warning */
	return unit_run(NULL, NULL);
}
