// SPDX-License-Identifier: Apache-2.0
/*
 * One disk in every mode at once, and a program of this machine beside them: whoever writes,
 * everybody reads it. One operation at a time: what concurrent ones must not do to each other is
 * for test_gate.c.
 *
 * The argument names where the bytes lie: "file" or "loop" (a block device, where the page cache
 * gets no help from the filesystem).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../stores.h"
#include "base/bytes.h"
#include "harness.h"
#include "unit.h"

enum {
	IMAGE_BYTES = 8 << 20,
	READ_BYTES = 512 << 10, /* large enough for mode=auto to choose */
	SMALL_BYTES_MAX = 8192,
	REOPENINGS = 12,
	STEPS = 24,
};

static const struct mode {
	const char *name;
	enum store_mode read_mode;
	enum store_mode write_mode;
} modes[] = {
	{ "cached", STORE_MODE_CACHED, STORE_MODE_CACHED },
	{ "direct", STORE_MODE_DIRECT, STORE_MODE_DIRECT },
	{ "auto", STORE_MODE_AUTO, STORE_MODE_CACHED },
	{ "auto, write-mode=direct", STORE_MODE_AUTO, STORE_MODE_DIRECT },
	{ "cached, write-mode=direct", STORE_MODE_CACHED, STORE_MODE_DIRECT },
};

enum { STORES = ARRAY_COUNT(modes), LOCAL = STORES, WHO_COUNT };

static char store_path[512];
static int loop_fd = -1;

struct world {
	struct bench benches[STORES];
	int fd; /* of the program beside them */
	uint8_t *shadow;
	uint8_t *memory;
	uint64_t random;
	uint64_t auto_direct_bytes;
	uint64_t auto_again_bytes;
};

static uint64_t counter(struct bench *bench, const char *name)
{
	const struct counter_table *table;
	const uint8_t *counters = store_queue_counters(bench->queue, &table);
	uint64_t value = 0;

	for (uint32_t i = 0; i < table->count; i++) {
		if (strcmp(table->counters[i].name, name) == 0) {
			memcpy(&value, counters + table->counters[i].offset, sizeof(value));
		}
	}
	return value;
}

static void open_all(struct world *world, bool with_direct_writers)
{
	for (size_t i = 0; i < STORES; i++) {
		struct store_options options = { .path = store_path,
			.read_mode = modes[i].read_mode,
			.write_mode =
				with_direct_writers ? modes[i].write_mode : STORE_MODE_CACHED };

		bench_open(&world->benches[i], &options);
	}
}

static void close_all(struct world *world)
{
	for (size_t i = 0; i < STORES; i++) {
		world->auto_direct_bytes += counter(&world->benches[i], "auto_direct_bytes");
		world->auto_again_bytes += counter(&world->benches[i], "auto_again_bytes");
		bench_close(&world->benches[i]);
	}
}

static void write_as(struct world *world, unsigned who, uint64_t offset, uint64_t length)
{
	const uint8_t *bytes = world->shadow + offset;

	for (uint64_t i = 0; i < length; i++) {
		world->shadow[offset + i] = (uint8_t)random_next(&world->random);
	}
	memcpy(world->memory, bytes, length);
	if (who == LOCAL) {
		assert_int_equal(pwrite(world->fd, world->memory, length, (off_t)offset), length);
	} else {
		assert_int_equal(
			bench_write(&world->benches[who], offset, length, world->memory), 0);
	}
}

static void read_as(struct world *world, unsigned who, unsigned writer, uint64_t offset)
{
	memset(world->memory, 0, READ_BYTES);
	if (who == LOCAL) {
		assert_int_equal(
			pread(world->fd, world->memory, READ_BYTES, (off_t)offset), READ_BYTES);
	} else {
		assert_int_equal(
			bench_read(&world->benches[who], offset, READ_BYTES, world->memory), 0);
	}
	if (memcmp(world->memory, world->shadow + offset, READ_BYTES) != 0) {
		fail_msg("%s does not read what %s has written",
			who == LOCAL ? "the program" : modes[who].name,
			writer == LOCAL ? "the program" : modes[writer].name);
	}
}

/* Clean pages leave the cache, and dirty ones may. */
static void evict(struct world *world)
{
	assert_int_equal(posix_fadvise(world->fd, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static void step(struct world *world, unsigned writer)
{
	uint64_t place = random_below(&world->random, IMAGE_BYTES / READ_BYTES) * READ_BYTES;
	uint64_t offset = place;
	uint64_t length = READ_BYTES;

	if (random_below(&world->random, 2) == 0) {
		length = 1 + random_below(&world->random, SMALL_BYTES_MAX);
		offset = place + random_below(&world->random, READ_BYTES - length + 1);
	}
	if (random_below(&world->random, 2) == 0) {
		evict(world);
	}
	write_as(world, writer, offset, length);
	if (random_below(&world->random, 3) == 0) {
		evict(world);
	}
	for (unsigned i = 0; i < WHO_COUNT; i++) {
		read_as(world, (unsigned)((i + world->random) % WHO_COUNT), writer, place);
	}
}

static void run(bool with_direct_writers)
{
	struct world world = { .random = 11 };

	world.fd = open(store_path, O_RDWR | O_CLOEXEC);
	assert_true(world.fd >= 0);
	/* Who reads ahead on a block device that is written directly asks for old bytes. */
	assert_int_equal(posix_fadvise(world.fd, 0, 0, POSIX_FADV_RANDOM), 0);
	world.shadow = aligned_bytes(IMAGE_BYTES);
	world.memory = aligned_bytes(READ_BYTES);
	assert_int_equal(pread(world.fd, world.shadow, IMAGE_BYTES, 0), IMAGE_BYTES);
	/* Stores that are open for long have read everything before. */
	for (int i = 0; i < REOPENINGS; i++) {
		open_all(&world, with_direct_writers);
		for (unsigned n = 0; n < STEPS; n++) {
			step(&world, n % WHO_COUNT);
		}
		close_all(&world);
	}
	assert_true(world.auto_direct_bytes > 0);
	assert_true(world.auto_again_bytes > 0);
	free(world.memory);
	free(world.shadow);
	close(world.fd);
}

TEST(test_everybody_reads_what_anybody_has_written)
{
	run(false);
}

TEST(test_also_beside_direct_writers)
{
	run(true);
}

/* The size of a device's blocks changes below the store: what cannot be read directly any more is
 * read through the page cache, because nobody has asked for direct I/O. */
TEST(test_a_disk_that_refuses_direct_reads)
{
	struct store_options options = {
		.path = store_path, .read_only = true, .read_mode = STORE_MODE_AUTO
	};
	struct bench bench;
	uint8_t *memory;
	int result;

	if (loop_fd < 0) {
		skip();
	}
	memory = aligned_bytes(READ_BYTES);
	bench_open(&bench, &options);
	evict(&(struct world){ .fd = loop_fd });
	result = ioctl(loop_fd, LOOP_SET_BLOCK_SIZE, 4096UL);
	if (result == 0) {
		assert_int_equal(bench_read(&bench, 512, READ_BYTES, memory), 0);
		assert_int_equal(counter(&bench, "auto_direct_bytes"), READ_BYTES);
	}
	bench_close(&bench);
	free(memory);
	if (result != 0) {
		print_message("the block size cannot be changed: %s\n", strerror(errno));
		skip();
	}
}

int main(int argc, char **argv)
{
	bool loop = argc == 2 && strcmp(argv[1], "loop") == 0;
	int result;

	scratch_create();
	if (!scratch_has_direct()) {
		return scratch_skip("no O_DIRECT in the temporary directory");
	}
	snprintf(store_path, sizeof(store_path), "%s", scratch_file("image", IMAGE_BYTES));
	if (loop) {
		char backing[sizeof(store_path)];

		snprintf(backing, sizeof(backing), "%s", store_path);
		loop_fd = loop_open(backing, 512, store_path, sizeof(store_path));
		if (loop_fd < 0) {
			return scratch_skip("no loop device to be had");
		}
	}
	result = unit_run(NULL, NULL);
	if (loop_fd >= 0) {
		loop_close(loop_fd);
	}
	scratch_remove();
	return result;
}
