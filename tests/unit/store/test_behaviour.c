// SPDX-License-Identifier: Apache-2.0
/*
 * One suite over every kind of store, named by the first argument: each random operation is also
 * done on a plain array of bytes, and both must agree, whatever the alignment.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../stores.h"
#include "base/bytes.h"
#include "harness.h"
#include "unit.h"

enum {
	IMAGE_BYTES = (3 << 20) + 789, /* not a multiple of anything */
	DEVICE_BYTES = (3 << 20) + 3 * 512,
	LANES = 8, /* operations in flight together */
	ROUNDS = 400,
	LENGTH_MAX = 96 << 10,
	EXTENTS_MAX = 64,
};

static struct variant {
	const char *name;
	bool loop;
	uint32_t loop_block;
	bool memory;
	bool filtered;
	const char *overlay; /* "discard", or the name of a file */
	enum store_mode read_mode;
	enum store_mode write_mode;
} variants[] = {
	{ .name = "file-cached" },
	{ .name = "file-direct", .read_mode = STORE_MODE_DIRECT, .write_mode = STORE_MODE_DIRECT },
	{ .name = "file-read-direct", .read_mode = STORE_MODE_DIRECT },
	{ .name = "file-write-direct", .write_mode = STORE_MODE_DIRECT },
	{ .name = "file-filtered", .filtered = true },
	{ .name = "loop-cached", .loop = true, .loop_block = 512 },
	{ .name = "loop-direct",
		.loop = true,
		.loop_block = 512,
		.read_mode = STORE_MODE_DIRECT,
		.write_mode = STORE_MODE_DIRECT },
	{ .name = "loop-write-direct",
		.loop = true,
		.loop_block = 512,
		.write_mode = STORE_MODE_DIRECT },
	{ .name = "loop-4k-direct",
		.loop = true,
		.loop_block = 4096,
		.read_mode = STORE_MODE_DIRECT,
		.write_mode = STORE_MODE_DIRECT },
	{ .name = "memory", .memory = true },
	{ .name = "overlay-file", .overlay = "changes" },
	{ .name = "overlay-direct",
		.overlay = "changes",
		.read_mode = STORE_MODE_DIRECT,
		.write_mode = STORE_MODE_DIRECT },
	{ .name = "overlay-discard", .overlay = "discard" },
};

static const struct variant *variant;
static char store_path[512];
static char file_path[512];
static uint64_t store_bytes;

struct lane {
	struct waited_part waited;
	uint8_t *memory; /* page-aligned, one page more than LENGTH_MAX */
	uint8_t *data;
	struct store_extent extents[EXTENTS_MAX];
};

struct world {
	struct bench bench;
	uint8_t *oracle;
	struct lane lanes[LANES];
	uint64_t seed;
};

/* --- the world ----------------------------------------------------------------------------- */

static void prepare(void)
{
	static int loop_fd = -1;

	store_bytes = variant->loop ? DEVICE_BYTES : IMAGE_BYTES;
	if (variant->loop && variant->loop_block == 4096) {
		store_bytes = align_down(store_bytes, 4096);
	}
	if (variant->memory) {
		snprintf(store_path, sizeof(store_path), "memory:%d", IMAGE_BYTES);
		return;
	}
	snprintf(file_path, sizeof(file_path), "%s", scratch_file("image", store_bytes));
	snprintf(store_path, sizeof(store_path), "%s", file_path);
	if (!variant->loop) {
		if ((variant->read_mode == STORE_MODE_DIRECT ||
			    variant->write_mode == STORE_MODE_DIRECT) &&
			!scratch_has_direct()) {
			exit(scratch_skip("no O_DIRECT in the temporary directory"));
		}
		return;
	}
	loop_fd = loop_open(file_path, variant->loop_block, store_path, sizeof(store_path));
	if (loop_fd < 0) {
		exit(scratch_skip("no loop device to be had"));
	}
}

static int world_open(void **state)
{
	struct world *world = calloc(1, sizeof(*world));
	struct store_options options = {
		.path = store_path,
		.read_mode = variant->read_mode,
		.write_mode = variant->write_mode,
	};

	if (variant->filtered) {
		/* Rules that match but never strike: parts must pass all filters unchanged. */
		stores_set(&options, "fault", "any:EIO:nth=4294967295");
		stores_set(&options, "delay", "write:1us");
		stores_set(&options, "pace", "4G:latency=1us:members=3:chunk=4K");
	}
	if (variant->overlay != NULL) {
		stores_set(&options, "overlay",
			strcmp(variant->overlay, "discard") == 0 ? variant->overlay
								 : scratch_path(variant->overlay));
	}
	assert_non_null(world);
	bench_open(&world->bench, &options);
	store_options_fini(&options);
	assert_int_equal(store_size(world->bench.store), store_bytes);
	world->oracle = calloc(1, store_bytes);
	for (int i = 0; i < LANES; i++) {
		world->lanes[i].memory = aligned_bytes(LENGTH_MAX + 4096);
	}
	/* Whatever a test before has left is the beginning for this one. */
	for (uint64_t offset = 0; offset < store_bytes; offset += LENGTH_MAX) {
		uint64_t length = MIN(store_bytes - offset, (uint64_t)LENGTH_MAX);

		assert_int_equal(
			bench_read(&world->bench, offset, length, world->oracle + offset), 0);
	}
	*state = world;
	return 0;
}

static int world_close(void **state)
{
	struct world *world = *state;

	bench_close(&world->bench);
	for (int i = 0; i < LANES; i++) {
		free(world->lanes[i].memory);
	}
	free(world->oracle);
	free(world);
	return 0;
}

/* Reads all of it in pieces of odd sizes. */
static void verify_all(struct world *world)
{
	uint64_t offset = 0;

	while (offset < store_bytes) {
		uint64_t length =
			MIN(1 + random_below(&world->seed, LENGTH_MAX), store_bytes - offset);
		uint8_t *data = world->lanes[0].memory;

		memset(data, 0xee, length);
		assert_int_equal(bench_read(&world->bench, offset, length, data), 0);
		assert_memory_equal(data, world->oracle + offset, length);
		offset += length;
	}
}

/* --- random work --------------------------------------------------------------------------- */

static uint64_t pick_alignment(uint64_t *seed)
{
	static const uint64_t alignments[] = { 1, 1, 512, 512, 4096, 4096, 4096, 65536 };

	return alignments[random_below(seed, ARRAY_COUNT(alignments))];
}

static void fill(uint64_t *seed, uint8_t *data, uint64_t length)
{
	uint8_t first = (uint8_t)random_next(seed);

	for (uint64_t i = 0; i < length; i++) {
		data[i] = (uint8_t)(first + i * 7 + (i >> 8));
	}
}

static enum store_op pick_op(uint64_t *seed)
{
	static const enum store_op ops[] = { STORE_READ, STORE_READ, STORE_READ, STORE_READ,
		STORE_WRITE, STORE_WRITE, STORE_WRITE, STORE_WRITE, STORE_TRIM, STORE_ZERO,
		STORE_ZERO, STORE_CACHE, STORE_EXTENTS, STORE_FLUSH };

	return ops[random_below(seed, ARRAY_COUNT(ops))];
}

static uint32_t pick_flags(uint64_t *seed, enum store_op op)
{
	uint32_t flags = 0;

	if (random_below(seed, 8) == 0) {
		flags |= STORE_FUA;
	}
	if (op == STORE_ZERO) {
		flags |= random_below(seed, 2) == 0 ? STORE_NO_HOLE : 0;
		flags |= random_below(seed, 4) == 0 ? STORE_FAST_ZERO : 0;
	}
	return flags;
}

/* Starts something inside [start, end), which belongs to this lane alone. Lanes meet inside pages,
 * never inside bytes. */
static void lane_start(struct world *world, struct lane *lane, uint64_t start, uint64_t end)
{
	enum store_op op = pick_op(&world->seed);
	uint64_t alignment = pick_alignment(&world->seed);
	uint64_t offset = align_up(start + random_below(&world->seed, end - start), alignment);
	uint64_t length;

	if (offset >= end) {
		offset = start;
	}
	length = MIN(1 + random_below(&world->seed, end - offset), (uint64_t)LENGTH_MAX);
	if (length > alignment) {
		length = align_down(length, alignment);
	}
	lane->data = lane->memory;
	if (random_below(&world->seed, 4) == 0) {
		lane->data += random_below(&world->seed, 4096);
	}
	if (op == STORE_WRITE) {
		fill(&world->seed, lane->data, length);
	} else if (op == STORE_READ) {
		memset(lane->data, 0xee, length);
	} else if (op == STORE_FLUSH) {
		offset = 0;
		length = 0;
	}
	lane->waited.part.extents = lane->extents;
	lane->waited.part.extent_max = 1 + (uint32_t)random_below(&world->seed, EXTENTS_MAX);
	bench_start(&world->bench, &lane->waited, op, pick_flags(&world->seed, op), offset, length,
		lane->data);
}

static void check_trimmed(struct world *world, const struct store_part *part)
{
	uint8_t *now = malloc(part->length);

	assert_non_null(now);
	assert_int_equal(bench_read(&world->bench, part->offset, part->length, now), 0);
	for (uint64_t i = 0; i < part->length; i++) {
		uint8_t *expected = &world->oracle[part->offset + i];

		assert_true(now[i] == *expected || now[i] == 0);
		*expected = now[i];
	}
	free(now);
}

/* What is said to be zero must be; extents cover a piece of what was asked, and differ. */
static void check_extents(struct world *world, const struct store_part *part)
{
	uint64_t offset = part->offset;

	assert_in_range(part->extent_count, 1, part->extent_max);
	for (uint32_t i = 0; i < part->extent_count; i++) {
		const struct store_extent *extent = &part->extents[i];

		assert_true(extent->length > 0);
		assert_true(extent->length <= part->offset + part->length - offset);
		if (i > 0) {
			assert_int_not_equal(extent->flags, part->extents[i - 1].flags);
		}
		if ((extent->flags & STORE_EXTENT_ZERO) != 0) {
			for (uint64_t j = 0; j < extent->length; j++) {
				assert_int_equal(world->oracle[offset + j], 0);
			}
		}
		offset += extent->length;
	}
}

static void lane_check(struct world *world, struct lane *lane)
{
	const struct store_part *part = &lane->waited.part;
	int result = bench_wait(&world->bench, &lane->waited);

	if (part->op == STORE_ZERO && result == -EOPNOTSUPP) {
		/* A fast zero may be refused, and then must not have done anything. */
		assert_true((part->flags & STORE_FAST_ZERO) != 0);
		return;
	}
	assert_int_equal(result, 0);
	switch (part->op) {
	case STORE_READ:
		assert_memory_equal(lane->data, world->oracle + part->offset, part->length);
		break;
	case STORE_WRITE:
		memcpy(world->oracle + part->offset, lane->data, part->length);
		break;
	case STORE_ZERO:
		memset(world->oracle + part->offset, 0, part->length);
		break;
	case STORE_TRIM:
		check_trimmed(world, part);
		break;
	case STORE_EXTENTS:
		check_extents(world, part);
		break;
	case STORE_FLUSH:
	case STORE_CACHE:
	case STORE_COPY:
	case STORE_OP_COUNT:
		break;
	}
}

TEST(test_random_operations_match_an_array_of_bytes)
{
	struct world *world = *state;

	for (world->seed = 1; world->seed <= 3; world->seed++) {
		uint64_t seed = world->seed;

		for (int round = 0; round < ROUNDS; round++) {
			uint64_t bounds[LANES + 1];

			/* Lanes are neighbours with odd borders in a window that wanders. */
			bounds[0] = random_below(&world->seed, store_bytes - LANES);
			for (int i = 1; i <= LANES; i++) {
				bounds[i] = bounds[i - 1] + 1 +
					    random_below(&world->seed, 2 * LENGTH_MAX / LANES);
				bounds[i] = MIN(bounds[i], store_bytes - (uint64_t)(LANES - i));
			}
			for (int i = 0; i < LANES; i++) {
				lane_start(world, &world->lanes[i], bounds[i], bounds[i + 1]);
			}
			for (int i = 0; i < LANES; i++) {
				lane_check(world, &world->lanes[i]);
			}
		}
		verify_all(world);
		world->seed = seed;
	}
}

/* What another program sees, and what remains when all is closed. */
TEST(test_bytes_are_in_the_file_after_flush)
{
	struct world *world = *state;
	uint8_t *data;
	int fd;

	if (variant->memory || variant->overlay != NULL) {
		skip();
	}
	fill(&world->seed, world->oracle, store_bytes);
	for (uint64_t offset = 0; offset < store_bytes; offset += LENGTH_MAX) {
		uint64_t length = MIN(store_bytes - offset, (uint64_t)LENGTH_MAX);

		assert_int_equal(
			bench_write(&world->bench, offset, length, world->oracle + offset), 0);
	}
	assert_int_equal(bench_flush(&world->bench), 0);
	data = malloc(store_bytes);
	fd = open(file_path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(pread(fd, data, store_bytes, 0), (ssize_t)store_bytes);
	assert_memory_equal(data, world->oracle, store_bytes);
	close(fd);
	free(data);
}

TEST(test_tail_of_odd_size_is_exact)
{
	struct world *world = *state;
	uint8_t tail[1000];
	uint8_t back[1000];

	fill(&world->seed, tail, sizeof(tail));
	assert_int_equal(
		bench_write(&world->bench, store_bytes - sizeof(tail), sizeof(tail), tail), 0);
	assert_int_equal(
		bench_read(&world->bench, store_bytes - sizeof(back), sizeof(back), back), 0);
	assert_memory_equal(tail, back, sizeof(tail));
	assert_int_equal(bench_do(&world->bench, STORE_ZERO, 0, store_bytes - 10, 10, NULL), 0);
	assert_int_equal(bench_do(&world->bench, STORE_TRIM, 0, 0, store_bytes, NULL), 0);
	assert_int_equal(store_size(world->bench.store), store_bytes);
	memset(tail, 0, sizeof(tail));
	assert_int_equal(bench_read(&world->bench, store_bytes - 10, 10, back), 0);
	assert_memory_equal(tail, back, 10);
	/* One byte more does not exist. */
	assert_int_equal(bench_read(&world->bench, store_bytes - 10, 11, back), -EIO);
	assert_int_equal(bench_write(&world->bench, store_bytes - 10, 11, back), -EIO);
	assert_int_equal(bench_do(&world->bench, STORE_ZERO, 0, store_bytes - 10, 11, NULL), -EIO);
	assert_int_equal(store_size(world->bench.store), store_bytes);
}

static void check_zeroed(struct world *world, uint32_t flags)
{
	const uint64_t start = 4096 + 17;
	const uint64_t length = (1 << 20) + 1234;
	uint8_t *data = malloc(length + 2);
	int result;

	memset(data, 0xab, length + 2);
	assert_int_equal(bench_write(&world->bench, start - 1, length + 2, data), 0);
	result = bench_do(&world->bench, STORE_ZERO, flags, start, length, NULL);
	if (result == -EOPNOTSUPP && (flags & STORE_FAST_ZERO) != 0) {
		assert_int_equal(bench_read(&world->bench, start - 1, length + 2, data), 0);
		for (uint64_t i = 0; i < length + 2; i++) {
			assert_int_equal(data[i], 0xab);
		}
		free(data);
		return;
	}
	assert_int_equal(result, 0);
	assert_int_equal(bench_read(&world->bench, start - 1, length + 2, data), 0);
	assert_int_equal(data[0], 0xab);
	assert_int_equal(data[length + 1], 0xab);
	for (uint64_t i = 1; i <= length; i++) {
		assert_int_equal(data[i], 0);
	}
	free(data);
}

TEST(test_zero_is_exact_at_its_edges_with_all_flags)
{
	for (uint32_t flags = 0; flags < 8; flags++) {
		check_zeroed(*state, flags);
	}
}

/* A write of less than a page beside one of whole sectors, many times: one page, two writers. */
TEST(test_neighbours_in_one_page_do_not_undo_each_other)
{
	struct world *world = *state;
	uint8_t *first = aligned_bytes(4096);
	uint8_t *second = aligned_bytes(4096);
	uint8_t *back = aligned_bytes(4096);

	for (int round = 1; round <= 200; round++) {
		struct waited_part one = { 0 };
		struct waited_part two = { 0 };

		memset(first, round, 4096);
		memset(second, round + 100, 4096);
		bench_start(&world->bench, &one, STORE_WRITE, 0, 8192, 2048, first);
		bench_start(&world->bench, &two, STORE_WRITE, 0, 8192 + 2048 + 1, 2047, second);
		assert_int_equal(bench_wait(&world->bench, &one), 0);
		assert_int_equal(bench_wait(&world->bench, &two), 0);
		assert_int_equal(bench_read(&world->bench, 8192, 4096, back), 0);
		assert_memory_equal(back, first, 2048);
		assert_memory_equal(back + 2049, second, 2047);
	}
	free(first);
	free(second);
	free(back);
}

TEST(test_many_flushes_at_once_all_finish)
{
	struct world *world = *state;
	struct waited_part flushes[20];

	for (unsigned i = 0; i < ARRAY_COUNT(flushes); i++) {
		memset(&flushes[i], 0, sizeof(flushes[i]));
		bench_start(&world->bench, &flushes[i], STORE_FLUSH, 0, 0, 0, NULL);
	}
	for (unsigned i = 0; i < ARRAY_COUNT(flushes); i++) {
		assert_int_equal(bench_wait(&world->bench, &flushes[i]), 0);
	}
}

TEST(test_info_describes_the_store)
{
	struct world *world = *state;
	const struct store_info *info = store_info(world->bench.store);
	const char *kind = variant->memory	      ? "memory"
			   : variant->overlay != NULL ? "overlay"
			   : variant->loop	      ? "block device"
						      : "file";

	assert_string_equal(info->kind, kind);
	assert_true((info->caps & STORE_CAP_WRITE) != 0);
	assert_int_equal(info->read_direct, variant->read_mode == STORE_MODE_DIRECT);
	assert_int_equal(info->write_direct, variant->write_mode == STORE_MODE_DIRECT);
	assert_int_equal((info->caps & STORE_CAP_EXTENTS) != 0, !variant->loop);
	if (!info->write_direct) {
		assert_int_equal(info->block_min, 1);
	} else if (variant->loop) {
		assert_int_equal(info->block_min, variant->loop_block);
	}
}

int main(int argc, char **argv)
{
	int failed;

	for (unsigned i = 0; argc == 2 && i < ARRAY_COUNT(variants); i++) {
		if (strcmp(argv[1], variants[i].name) == 0) {
			variant = &variants[i];
		}
	}
	if (variant == NULL) {
		fprintf(stderr, "usage: %s VARIANT\n", argv[0]);
		return 2;
	}
	scratch_create();
	prepare();
	failed = unit_run(world_open, world_close);
	scratch_remove();
	return failed;
}
