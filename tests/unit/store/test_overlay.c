// SPDX-License-Identifier: Apache-2.0
/*
 * Overlays on real files: what is written where, two of them on one base, what is refused, and two
 * reactors that meet in blocks nobody has written before.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../stores.h"
#include "base/bytes.h"
#include "disk/disk.h"
#include "harness.h"
#include "store/overlay.h"
#include "unit.h"

enum {
	BASE_BYTES = (2 << 20) + 4096 + 777, /* the last block is not whole */
	BLOCK = OVERLAY_BLOCK_BYTES,
	THREADS = 2,
	ROUNDS = 300,
};

static char base_path[512];

/* --- the base and what is on it -------------------------------------------------------------- */

static uint8_t base_byte(uint64_t offset)
{
	return (uint8_t)(1 + (offset * 7 + (offset >> 9)) % 251);
}

static int setup(void **state)
{
	uint8_t *bytes = malloc(BASE_BYTES);
	int fd;

	scratch_create();
	snprintf(base_path, sizeof(base_path), "%s", scratch_file("base", BASE_BYTES));
	for (uint64_t i = 0; i < BASE_BYTES; i++) {
		bytes[i] = base_byte(i);
	}
	fd = open(base_path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(disk_write(fd, bytes, BASE_BYTES, 0), 0);
	close(fd);
	free(bytes);
	return 0;
}

static int teardown(void **state)
{
	scratch_remove();
	return 0;
}

/* A store on path, by default the base. */
static int try_open(const char *path, const char *overlay, bool read_only, struct store **store,
	struct error *error)
{
	struct store_options options = { .path = path != NULL ? path : base_path,
		.read_only = read_only };
	int result;

	if (overlay != NULL) {
		stores_set(&options, "overlay", overlay);
	} else {
		stores_set(&options, "format", "raw"); /* also an overlay's file */
	}
	result = store_open(&options, store, error);
	store_options_fini(&options);
	return result;
}

static void open_overlay(struct bench *bench, const char *overlay)
{
	struct store *store;
	struct error error;

	if (try_open(NULL, overlay, false, &store, &error) < 0) {
		fail_msg("%s", error.text);
	}
	bench_share(bench, store);
	bench->owns_store = true;
}

static void assert_refused(
	const char *path, const char *overlay, bool read_only, int code, const char *reason)
{
	struct store *store;
	struct error error = { 0 };

	assert_int_equal(try_open(path, overlay, read_only, &store, &error), code);
	if (strstr(error.text, reason) == NULL) {
		fail_msg("\"%s\" does not say \"%s\"", error.text, reason);
	}
}

static void assert_base(struct bench *bench, uint64_t from, uint64_t to)
{
	uint8_t *bytes = malloc(to - from);

	assert_int_equal(bench_read(bench, from, to - from, bytes), 0);
	for (uint64_t i = from; i < to; i++) {
		assert_int_equal(bytes[i - from], base_byte(i));
	}
	free(bytes);
}

static void assert_bytes(struct bench *bench, uint64_t from, uint64_t to, uint8_t value)
{
	uint8_t *bytes = malloc(to - from);

	assert_int_equal(bench_read(bench, from, to - from, bytes), 0);
	for (uint64_t i = from; i < to; i++) {
		assert_int_equal(bytes[i - from], value);
	}
	free(bytes);
}

static void write_bytes(struct bench *bench, uint64_t from, uint64_t to, uint8_t value)
{
	uint8_t *bytes = malloc(to - from);

	memset(bytes, value, to - from);
	assert_int_equal(bench_write(bench, from, to - from, bytes), 0);
	free(bytes);
}

static uint64_t counted(struct bench *bench, const char *name)
{
	const struct counter_table *table;
	const void *values = store_queue_counters(bench->queue, &table);

	for (size_t i = 0; i < table->count; i++) {
		if (strcmp(table->counters[i].name, name) == 0) {
			return counter_value(&table->counters[i], values);
		}
	}
	fail_msg("there is no counter called %s", name);
	return 0;
}

/* --- contents -------------------------------------------------------------------------------- */

TEST_WITH(test_two_overlays_share_a_base_and_nothing_else, setup, teardown)
{
	char first_path[512];
	struct bench first;
	struct bench second;

	snprintf(first_path, sizeof(first_path), "%s", scratch_path("first"));
	open_overlay(&first, first_path);
	open_overlay(&second, scratch_path("second"));
	write_bytes(&first, 100, 200, 0xf1);
	write_bytes(&second, 150, 10000, 0xf2);
	write_bytes(&first, BASE_BYTES - 5, BASE_BYTES, 0xf3);
	for (int again = 0; again < 2; again++) {
		assert_base(&first, 0, 100);
		assert_bytes(&first, 100, 200, 0xf1);
		assert_base(&first, 200, BASE_BYTES - 5);
		assert_bytes(&first, BASE_BYTES - 5, BASE_BYTES, 0xf3);
		assert_base(&second, 0, 150);
		assert_bytes(&second, 150, 10000, 0xf2);
		assert_base(&second, 10000, BASE_BYTES);
		bench_close(&first);
		bench_close(&second);
		open_overlay(&first, first_path);
		open_overlay(&second, scratch_path("second"));
	}
	bench_close(&first);
	bench_close(&second);
	/* The base on its own. */
	open_overlay(&first, "discard");
	assert_base(&first, 0, BASE_BYTES);
	bench_close(&first);
}

TEST_WITH(test_what_is_discarded_is_gone, setup, teardown)
{
	struct bench bench;

	open_overlay(&bench, "discard");
	assert_true(store_info(bench.store)->is_volatile);
	write_bytes(&bench, 0, 5000, 0xd1);
	assert_bytes(&bench, 0, 5000, 0xd1);
	assert_int_equal(bench_flush(&bench), 0);
	bench_close(&bench);
	open_overlay(&bench, "discard");
	assert_base(&bench, 0, BASE_BYTES);
	bench_close(&bench);
}

TEST_WITH(test_trim_and_zero_hide_the_base, setup, teardown)
{
	struct bench bench;

	open_overlay(&bench, scratch_path("changes"));
	assert_int_equal(bench_do(&bench, STORE_ZERO, 0, BLOCK - 10, BLOCK + 20, NULL), 0);
	assert_base(&bench, 0, BLOCK - 10);
	assert_bytes(&bench, BLOCK - 10, 2 * BLOCK + 10, 0);
	assert_base(&bench, 2 * BLOCK + 10, 3 * BLOCK);
	/* Parts of blocks stay as they are. */
	assert_int_equal(bench_do(&bench, STORE_TRIM, 0, 5 * BLOCK - 1, 2 * BLOCK, NULL), 0);
	assert_base(&bench, 4 * BLOCK, 5 * BLOCK);
	assert_bytes(&bench, 5 * BLOCK, 6 * BLOCK, 0);
	assert_base(&bench, 6 * BLOCK, 7 * BLOCK);
	assert_int_equal(bench_do(&bench, STORE_TRIM, STORE_FUA, 8 * BLOCK + 1, BLOCK, NULL), 0);
	assert_base(&bench, 8 * BLOCK, 10 * BLOCK);
	bench_close(&bench);
}

/* A killed server leaves bytes in blocks that count as unchanged. No trim brings them back. */
TEST_WITH(test_trim_does_not_show_what_a_killed_server_left, setup, teardown)
{
	uint64_t first = align_down(BASE_BYTES, BLOCK) - BLOCK;
	uint64_t data = overlay_layout_of(BASE_BYTES).data_offset;
	uint8_t left[2 * BLOCK];
	struct bench bench;
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s", scratch_path("changes"));
	open_overlay(&bench, path);
	bench_close(&bench);
	memset(left, 0xee, sizeof(left));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(disk_write(fd, left, BASE_BYTES - first, data + first), 0);
	close(fd);
	open_overlay(&bench, path);
	assert_base(&bench, first, BASE_BYTES);
	assert_int_equal(bench_do(&bench, STORE_TRIM, 0, first, BASE_BYTES - first, NULL), 0);
	assert_bytes(&bench, first, BASE_BYTES, 0);
	bench_close(&bench);
}

/* A whole block needs nothing of the base. */
TEST_WITH(test_only_edges_are_copied, setup, teardown)
{
	struct bench bench;

	open_overlay(&bench, scratch_path("changes"));
	write_bytes(&bench, 10 * BLOCK, 14 * BLOCK, 1);
	assert_int_equal(counted(&bench, "copied_blocks"), 0);
	write_bytes(&bench, 20 * BLOCK + 1, 24 * BLOCK - 1, 1);
	assert_int_equal(counted(&bench, "copied_blocks"), 2);
	write_bytes(&bench, 30 * BLOCK + 1, 30 * BLOCK + 2, 1);
	assert_int_equal(counted(&bench, "copied_blocks"), 3);
	write_bytes(&bench, 30 * BLOCK + 7, 31 * BLOCK, 1); /* present by now */
	assert_int_equal(counted(&bench, "copied_blocks"), 3);
	write_bytes(&bench, align_down(BASE_BYTES, BLOCK), BASE_BYTES, 1); /* the whole last one */
	assert_int_equal(counted(&bench, "copied_blocks"), 3);
	bench_close(&bench);
}

TEST_WITH(test_flush_commits_only_what_is_new, setup, teardown)
{
	struct bench bench;

	open_overlay(&bench, scratch_path("changes"));
	assert_int_equal(bench_flush(&bench), 0);
	assert_int_equal(counted(&bench, "commits"), 0);
	write_bytes(&bench, 0, BLOCK, 1);
	assert_int_equal(bench_flush(&bench), 0);
	assert_int_equal(counted(&bench, "commits"), 1);
	write_bytes(&bench, 0, BLOCK, 2);
	assert_int_equal(bench_flush(&bench), 0);
	assert_int_equal(bench_do(&bench, STORE_ZERO, STORE_FUA, 0, BLOCK, NULL), 0);
	assert_int_equal(counted(&bench, "commits"), 1);
	assert_int_equal(bench_do(&bench, STORE_ZERO, STORE_FUA, BLOCK, BLOCK, NULL), 0);
	assert_int_equal(counted(&bench, "commits"), 2);
	bench_close(&bench);
}

TEST_WITH(test_extents_are_those_of_both, setup, teardown)
{
	struct store_extent extents[8];
	struct bench bench;

	open_overlay(&bench, scratch_path("changes"));
	assert_int_equal(bench_extents(&bench, 0, BASE_BYTES, extents, 8), 1);
	assert_int_equal(extents[0].flags, 0);
	assert_int_equal(extents[0].length, BASE_BYTES);
	write_bytes(&bench, 64 * BLOCK, 80 * BLOCK, 1);
	assert_int_equal(bench_do(&bench, STORE_ZERO, 0, 80 * BLOCK, 16 * BLOCK, NULL), 0);
	assert_int_equal(bench_extents(&bench, 0, 200 * BLOCK, extents, 8), 3);
	assert_int_equal(extents[0].length, 80 * BLOCK);
	assert_int_equal(extents[0].flags, 0);
	assert_int_equal(extents[1].length, 16 * BLOCK);
	assert_int_equal(extents[1].flags, STORE_EXTENT_HOLE | STORE_EXTENT_ZERO);
	assert_int_equal(extents[2].length, 104 * BLOCK);
	assert_int_equal(extents[2].flags, 0);
	/* With room for one, the first; and asking goes on behind it. */
	assert_int_equal(bench_extents(&bench, 0, 200 * BLOCK, extents, 1), 1);
	assert_int_equal(extents[0].length, 64 * BLOCK);
	bench_close(&bench);
}

/* More runs in one read than there are helpers, and several such reads at once. */
TEST_WITH(test_read_of_many_runs, setup, teardown)
{
	enum { RUNS = 100, READS = 6 };
	struct waited_part reads[READS];
	uint8_t *memory[READS];
	struct bench bench;

	open_overlay(&bench, scratch_path("changes"));
	for (uint64_t i = 0; i < RUNS; i += 2) {
		write_bytes(&bench, i * BLOCK, (i + 1) * BLOCK, 0xaa);
	}
	for (int i = 0; i < READS; i++) {
		memset(&reads[i], 0, sizeof(reads[i]));
		memory[i] = aligned_bytes((size_t)RUNS * BLOCK);
		bench_start(&bench, &reads[i], STORE_READ, 0, 0, (uint64_t)RUNS * BLOCK, memory[i]);
	}
	for (int i = 0; i < READS; i++) {
		assert_int_equal(bench_wait(&bench, &reads[i]), 0);
		for (uint64_t at = 0; at < (uint64_t)RUNS * BLOCK; at++) {
			assert_int_equal(memory[i][at], at / BLOCK % 2 == 0 ? 0xaa : base_byte(at));
		}
		free(memory[i]);
	}
	assert_int_equal(counted(&bench, "split_reads"), READS);
	bench_close(&bench);
}

/* --- two reactors ---------------------------------------------------------------------------- */

struct writer {
	struct store *store;
	uint32_t idx;
	pthread_t thread;
};

/* Every block is written by all, each its own bytes of it, and every round in one go. */
static void *write_shares(void *context)
{
	const struct writer *writer = context;
	struct bench bench;
	uint8_t bytes[BLOCK / THREADS];

	bench_share(&bench, writer->store);
	memset(bytes, 0x10 + (int)writer->idx, sizeof(bytes));
	for (uint64_t block = 0; block < ROUNDS; block++) {
		uint64_t offset = block * BLOCK + writer->idx * sizeof(bytes);

		assert_int_equal(bench_write(&bench, offset, sizeof(bytes), bytes), 0);
		if (block % 16 == writer->idx) {
			assert_int_equal(bench_flush(&bench), 0);
		}
		assert_int_equal(bench_do(&bench, STORE_WRITE, block % 8 == 0 ? STORE_FUA : 0,
					 offset, sizeof(bytes), bytes),
			0);
	}
	bench_close(&bench);
	return NULL;
}

TEST_WITH(test_reactors_that_meet_in_a_block, setup, teardown)
{
	struct writer writers[THREADS];
	struct bench bench;

	open_overlay(&bench, scratch_path("changes"));
	for (uint32_t i = 0; i < THREADS; i++) {
		writers[i] = (struct writer){ bench.store, i, 0 };
		assert_int_equal(
			pthread_create(&writers[i].thread, NULL, write_shares, &writers[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(writers[i].thread, NULL);
	}
	for (uint64_t block = 0; block < ROUNDS; block++) {
		for (uint64_t i = 0; i < THREADS; i++) {
			uint64_t from = block * BLOCK + i * (BLOCK / THREADS);

			assert_bytes(&bench, from, from + BLOCK / THREADS, (uint8_t)(0x10 + i));
		}
	}
	assert_base(&bench, (uint64_t)ROUNDS * BLOCK, BASE_BYTES);
	bench_close(&bench);
}

/* --- what is refused ------------------------------------------------------------------------- */

TEST_WITH(test_base_that_has_changed_is_refused, setup, teardown)
{
	const char *changes = scratch_path("changes");
	char path[512];
	struct bench bench;
	struct stat status;
	struct timespec times[2];
	uint8_t byte = 0;
	int fd;

	snprintf(path, sizeof(path), "%s", changes);
	open_overlay(&bench, path);
	bench_close(&bench);
	fd = open(base_path, O_RDWR | O_CLOEXEC);
	assert_int_equal(fstat(fd, &status), 0);
	times[0] = status.st_atim;
	times[1] = status.st_mtim;
	/* Written, with the same bytes. */
	times[1].tv_nsec ^= 1;
	assert_int_equal(futimens(fd, times), 0);
	assert_refused(NULL, path, false, -ESTALE, "the base has been written since");
	assert_refused(NULL, path, true, -ESTALE, "touch -d @");
	times[1] = status.st_mtim;
	assert_int_equal(futimens(fd, times), 0);
	open_overlay(&bench, path);
	bench_close(&bench);
	/* Other bytes, under the same time. */
	assert_int_equal(disk_write(fd, &byte, 1, 5), 0);
	assert_int_equal(futimens(fd, times), 0);
	assert_refused(NULL, path, false, -ESTALE, "contents of the base have changed");
	byte = base_byte(5);
	assert_int_equal(disk_write(fd, &byte, 1, 5), 0);
	assert_int_equal(ftruncate(fd, BASE_BYTES + 512), 0);
	assert_int_equal(futimens(fd, times), 0);
	assert_refused(NULL, path, false, -ESTALE, "bytes and now has");
	close(fd);
}

TEST_WITH(test_others_are_kept_from_base_and_overlay, setup, teardown)
{
	char changes[512];
	struct bench bench;
	struct store *store;
	struct error error;

	snprintf(changes, sizeof(changes), "%s", scratch_path("changes"));
	open_overlay(&bench, changes);
	assert_refused(NULL, NULL, false, -EBUSY, "the base of an overlay");
	assert_refused(NULL, changes, false, -EBUSY, "another export of this server");
	assert_refused(changes, NULL, false, -EBUSY, "another export of this server");
	assert_refused(NULL, changes, true, -EBUSY, "served for writing");
	assert_refused(changes, "discard", false, -EMEDIUMTYPE, "is an overlay");
	/* Reading the base is everybody's right. */
	assert_int_equal(try_open(NULL, NULL, true, &store, &error), 0);
	store_close(store);
	bench_close(&bench);
	assert_int_equal(try_open(NULL, NULL, false, &store, &error), 0);
	assert_refused(NULL, changes, false, -EBUSY, "served for writing");
	assert_refused(NULL, "discard", false, -EBUSY, "served for writing");
	store_close(store);
}

TEST_WITH(test_read_only_overlay, setup, teardown)
{
	char changes[512];
	struct bench bench;
	uint8_t byte = 1;

	snprintf(changes, sizeof(changes), "%s", scratch_path("changes"));
	assert_refused(NULL, changes, true, -ENOENT, "does not exist");
	open_overlay(&bench, changes);
	write_bytes(&bench, 3, 4, 0x77);
	bench_close(&bench);
	{
		struct store *store;
		struct error error;

		assert_int_equal(try_open(NULL, changes, true, &store, &error), 0);
		bench_share(&bench, store);
		bench.owns_store = true;
	}
	assert_bytes(&bench, 3, 4, 0x77);
	assert_base(&bench, 4, BASE_BYTES);
	assert_int_equal(bench_write(&bench, 0, 1, &byte), -EPERM);
	assert_int_equal(bench_flush(&bench), 0);
	bench_close(&bench);
}

static void patch(const char *path, uint64_t offset, const void *bytes, size_t count)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	assert_int_equal(disk_write(fd, bytes, count, offset), 0);
	close(fd);
}

TEST_WITH(test_files_that_are_no_overlays, setup, teardown)
{
	static const uint8_t bits[8] = { [7] = 0x80 };
	struct overlay_layout layout = overlay_layout_of(BASE_BYTES);
	char path[512];
	struct bench bench;

	snprintf(path, sizeof(path), "%s", scratch_file("image", BASE_BYTES));
	assert_refused(NULL, path, false, -EINVAL, "is not an overlay");
	snprintf(path, sizeof(path), "%s", scratch_file("short", 100));
	assert_refused(NULL, path, false, -EINVAL, "is not an overlay");
	assert_refused(NULL, "memory:1M", false, -EINVAL, "not the path of a file");
	assert_refused("memory:1M", path, false, -EINVAL, "overlay=discard");
	snprintf(path, sizeof(path), "%s", scratch_path("changes"));
	open_overlay(&bench, path);
	bench_close(&bench);
	patch(path, OVERLAY_HEAD_BYTES + layout.block_count / 8 + 1, bits, sizeof(bits));
	assert_refused(NULL, path, false, -EINVAL, "beyond the end");
	patch(path, 20, bits, sizeof(bits));
	assert_refused(NULL, path, false, -EINVAL, "checksum is wrong");
	unlink(path);
	open_overlay(&bench, path);
	bench_close(&bench);
	assert_int_equal(truncate(path, (off_t)layout.data_offset), 0);
	assert_refused(NULL, path, false, -EINVAL, "is damaged: it has");
}
