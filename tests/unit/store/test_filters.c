// SPDX-License-Identifier: Apache-2.0
/*
 * Faults strike exactly the parts they are meant for, delays delay, and a broken promise stays
 * broken; over memory and null stores, whose own special cases are here too.
 */
#include <errno.h>
#include <string.h>

#include "../stores.h"
#include "harness.h"
#include "unit.h"

static void open_with(struct bench *bench, const char *path, const char *fault, const char *delay)
{
	struct store_options options = { .path = path };

	if (fault != NULL) {
		stores_set(&options, "fault", fault);
	}
	if (delay != NULL) {
		stores_set(&options, "delay", delay);
	}
	bench_open(bench, &options);
	store_options_fini(&options);
}

TEST(test_nth_strikes_once)
{
	struct bench bench;
	char data[8] = "old";

	open_with(&bench, "memory:1M", "write:ENOSPC:nth=3", NULL);
	assert_int_equal(bench_write(&bench, 0, 8, data), 0);
	assert_int_equal(bench_read(&bench, 0, 8, data), 0); /* does not count */
	assert_int_equal(bench_write(&bench, 0, 8, data), 0);
	memcpy(data, "newest", 7);
	assert_int_equal(bench_write(&bench, 0, 8, data), -ENOSPC);
	assert_int_equal(bench_read(&bench, 0, 8, data), 0);
	assert_string_equal(data, "old"); /* it did not reach the store */
	for (int i = 0; i < 10; i++) {
		assert_int_equal(bench_write(&bench, 0, 8, data), 0);
	}
	bench_close(&bench);
}

TEST(test_nth_counts_over_all_queues)
{
	struct bench first;
	struct bench second;
	char data[8] = { 0 };

	open_with(&first, "memory:1M", "any:EIO:nth=4", NULL);
	bench_share(&second, first.store);
	assert_int_equal(bench_read(&first, 0, 8, data), 0);
	assert_int_equal(bench_read(&second, 0, 8, data), 0);
	assert_int_equal(bench_read(&first, 0, 8, data), 0);
	assert_int_equal(bench_read(&second, 0, 8, data), -EIO);
	assert_int_equal(bench_read(&first, 0, 8, data), 0);
	bench_close(&second);
	bench_close(&first);
}

TEST(test_every_strikes_again_and_again)
{
	struct bench bench;
	char data[8];

	open_with(&bench, "null:1M", "read:ETIMEDOUT:every=3", NULL);
	for (int i = 1; i <= 12; i++) {
		assert_int_equal(bench_read(&bench, 0, 8, data), i % 3 == 0 ? -ETIMEDOUT : 0);
	}
	bench_close(&bench);
}

TEST(test_probability_strikes_about_as_often)
{
	struct bench bench;
	char data[8];
	int count = 0;

	open_with(&bench, "null:1M", "read:EIO:prob=0.25", NULL);
	for (int i = 0; i < 4000; i++) {
		int result = bench_read(&bench, 0, 8, data);

		assert_true(result == 0 || result == -EIO);
		count += result != 0;
	}
	/* 1000 expected, standard deviation 27: a dozen of them is not chance. */
	assert_in_range(count, 700, 1300);
	bench_close(&bench);
}

TEST(test_range_strikes_parts_that_touch_it)
{
	struct bench bench;
	char data[64];

	open_with(&bench, "memory:1M", "any:EIO:range=100+10", NULL);
	assert_int_equal(bench_read(&bench, 90, 10, data), 0);
	assert_int_equal(bench_read(&bench, 90, 11, data), -EIO);
	assert_int_equal(bench_read(&bench, 105, 1, data), -EIO);
	assert_int_equal(bench_read(&bench, 80, 64, data), -EIO);
	assert_int_equal(bench_read(&bench, 109, 20, data), -EIO);
	assert_int_equal(bench_read(&bench, 110, 20, data), 0);
	assert_int_equal(bench_flush(&bench), 0); /* touches no range */
	bench_close(&bench);
}

TEST(test_failed_flush_stays_failed)
{
	struct bench first;
	struct bench second;
	char data[8] = "bytes";

	open_with(&first, "memory:1M", "flush:EIO:nth=2", NULL);
	bench_share(&second, first.store);
	assert_int_equal(bench_flush(&first), 0);
	assert_int_equal(bench_flush(&first), -EIO);
	assert_int_equal(bench_flush(&first), -EIO);
	assert_int_equal(bench_flush(&second), -EIO);
	assert_int_equal(bench_do(&first, STORE_WRITE, STORE_FUA, 0, 8, data), -EIO);
	assert_int_equal(bench_do(&first, STORE_ZERO, STORE_FUA, 0, 8, NULL), -EIO);
	assert_int_equal(bench_do(&second, STORE_TRIM, STORE_FUA, 0, 8, NULL), -EIO);
	assert_int_equal(bench_write(&second, 0, 8, data), 0); /* promises nothing */
	assert_int_equal(bench_do(&second, STORE_READ, STORE_FUA, 0, 8, data), 0);
	bench_close(&second);
	bench_close(&first);
	open_with(&first, "memory:1M", NULL, NULL);
	assert_int_equal(bench_flush(&first), 0); /* opened anew */
	bench_close(&first);
}

TEST(test_failed_durable_write_breaks_later_flushes)
{
	struct bench bench;
	char data[8] = "bytes";

	open_with(&bench, "memory:1M", "write:EIO:nth=1", NULL);
	assert_int_equal(bench_do(&bench, STORE_WRITE, STORE_FUA, 0, 8, data), -EIO);
	assert_int_equal(bench_flush(&bench), -EIO);
	bench_close(&bench);
	open_with(&bench, "memory:1M", "write:EIO:nth=1", NULL);
	assert_int_equal(bench_write(&bench, 0, 8, data), -EIO);
	assert_int_equal(bench_flush(&bench), 0); /* nobody was promised anything */
	bench_close(&bench);
	open_with(&bench, "memory:1M", "write:ENOSPC:nth=1", NULL);
	assert_int_equal(bench_do(&bench, STORE_WRITE, STORE_FUA, 0, 8, data), -ENOSPC);
	assert_int_equal(bench_flush(&bench), 0); /* full is not broken */
	bench_close(&bench);
}

TEST(test_delayed_part_takes_its_time)
{
	struct bench bench;
	char data[8] = "bytes";
	char back[8];
	uint64_t start;

	open_with(&bench, "memory:1M", NULL, "write:20ms:range=0+4096");
	start = ring_now_ns(bench.ring);
	assert_int_equal(bench_write(&bench, 0, 8, data), 0);
	/* Not sooner than told; how much later is the machine's business. */
	assert_true(ring_now_ns(bench.ring) - start >= UINT64_C(20000000));
	assert_int_equal(bench_read(&bench, 0, 8, back), 0);
	assert_memory_equal(back, data, 8);
	bench_close(&bench);
}

TEST(test_fault_and_delay_together)
{
	struct bench bench;
	char data[8] = "bytes";

	open_with(&bench, "memory:1M", "write:EIO:every=2", "any:1ms");
	for (int i = 1; i <= 6; i++) {
		assert_int_equal(bench_write(&bench, 0, 8, data), i % 2 == 0 ? -EIO : 0);
		assert_int_equal(bench_read(&bench, 0, 8, data), 0);
	}
	bench_close(&bench);
}

TEST(test_too_many_rules_are_refused)
{
	struct store_options options = { .path = "null:1M" };
	struct error error;

	for (uint32_t i = 0; i < 16; i++) {
		stores_set(&options, "fault", "read:EIO");
		stores_set(&options, "delay", "read:1us");
	}
	assert_int_equal(store_options_set(&options, "fault", "read:EIO", &error), -EINVAL);
	assert_non_null(strstr(error.text, "at most 16 faults"));
	assert_int_equal(store_options_set(&options, "delay", "read:1us", &error), -EINVAL);
	assert_non_null(strstr(error.text, "at most 16 delays"));
	store_options_fini(&options);
}

TEST(test_read_only_refuses_changes)
{
	struct store_options options = { .path = "memory:1M", .read_only = true };
	struct bench bench;
	char data[8];

	bench_open(&bench, &options);
	assert_int_equal(store_info(bench.store)->caps & STORE_CAP_WRITE, 0);
	assert_int_equal(bench_read(&bench, 0, 8, data), 0);
	assert_int_equal(bench_write(&bench, 0, 8, data), -EPERM);
	assert_int_equal(bench_do(&bench, STORE_WRITE, STORE_FUA, 0, 8, data), -EPERM);
	assert_int_equal(bench_do(&bench, STORE_TRIM, 0, 0, 8, NULL), -EPERM);
	assert_int_equal(bench_do(&bench, STORE_ZERO, 0, 0, 8, NULL), -EPERM);
	assert_int_equal(bench_flush(&bench), 0);
	bench_close(&bench);
}

TEST(test_memory_and_null_sizes)
{
	static const char *const bad[] = { "memory:", "memory:x", "memory:0", "memory:8E",
		"memory:1M ", "memory: 1M", "memory:-1", "null:", "null:0",
		"null:9223372036854775808", "memory:1.5G" };
	struct store_options options = { 0 };
	struct store *store = NULL;
	struct error error;

	for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
		options.path = bad[i];
		assert_int_equal(store_open(&options, &store, &error), -EINVAL);
		assert_null(store);
		assert_non_null(strstr(error.text, bad[i]));
	}
	options.path = "null:9223372036854775807";
	assert_int_equal(store_open(&options, &store, &error), 0);
	assert_int_equal(store_size(store), INT64_MAX);
	store_close(store);
	options.path = "memory:123456789";
	assert_int_equal(store_open(&options, &store, &error), 0);
	assert_int_equal(store_size(store), 123456789);
	store_close(store);
	/* More than any machine has addresses for. */
	options.path = "memory:1E";
	store = NULL;
	assert_int_equal(store_open(&options, &store, &error), -ENOMEM);
	assert_null(store);
	assert_non_null(strstr(error.text, "smaller size"));
}

TEST(test_memory_extents_follow_what_was_written)
{
	struct store_extent extents[8];
	struct bench bench;
	char byte = 1;

	open_with(&bench, "memory:10M", NULL, NULL);
	assert_int_equal(bench_extents(&bench, 0, 10 << 20, extents, 8), 1);
	assert_int_equal(extents[0].length, 10 << 20);
	assert_int_equal(extents[0].flags, STORE_EXTENT_HOLE | STORE_EXTENT_ZERO);
	assert_int_equal(bench_write(&bench, (1 << 20) + 5, 1, &byte), 0);
	assert_int_equal(bench_extents(&bench, 3, (10 << 20) - 3, extents, 8), 3);
	assert_int_equal(extents[0].length, (1 << 20) - 3);
	assert_int_equal(extents[1].length, 64 << 10);
	assert_int_equal(extents[1].flags, 0);
	assert_int_equal(extents[2].flags, STORE_EXTENT_HOLE | STORE_EXTENT_ZERO);
	assert_int_equal(bench_extents(&bench, 0, 10 << 20, extents, 1), 1); /* stops early */
	assert_int_equal(extents[0].length, 1 << 20);
	/* Trimming whole chunks gives them back; provisioning takes them. */
	assert_int_equal(bench_do(&bench, STORE_TRIM, 0, 1 << 20, 64 << 10, NULL), 0);
	assert_int_equal(bench_extents(&bench, 0, 10 << 20, extents, 8), 1);
	assert_int_equal(bench_do(&bench, STORE_ZERO, STORE_NO_HOLE, 0, 9 << 20, NULL), 0);
	assert_int_equal(bench_extents(&bench, 0, 10 << 20, extents, 8), 2);
	assert_int_equal(extents[0].length, 9 << 20);
	assert_int_equal(extents[0].flags, 0);
	bench_close(&bench);
}

TEST(test_huge_memory_ranges_are_quick_enough_to_do)
{
	struct store_extent extents[2];
	struct bench bench;
	char data[8] = "far out";
	const uint64_t size = UINT64_C(1) << 40;

	open_with(&bench, "memory:1T", NULL, NULL);
	assert_int_equal(bench_write(&bench, size - 8, 8, data), 0);
	assert_int_equal(bench_do(&bench, STORE_ZERO, STORE_FAST_ZERO, 1, size - 2, NULL), 0);
	assert_int_equal(bench_read(&bench, size - 8, 8, data), 0);
	assert_memory_equal(data, "\0\0\0\0\0\0\0\0", 8); /* its last byte was zero before */
	assert_int_equal(bench_extents(&bench, 0, size, extents, 2), 1);
	assert_true(extents[0].length <= size);
	bench_close(&bench);
}

TEST(test_null_reads_zeroes_and_forgets)
{
	struct store_extent extents[2];
	struct bench bench;
	char data[8] = "bytes";

	open_with(&bench, "null:1G", NULL, NULL);
	assert_int_equal(bench_write(&bench, 100, 8, data), 0);
	assert_int_equal(bench_read(&bench, 100, 8, data), 0);
	assert_memory_equal(data, "\0\0\0\0\0\0\0\0", 8);
	assert_int_equal(bench_extents(&bench, 0, 1 << 30, extents, 2), 1);
	assert_int_equal(extents[0].length, 1 << 30);
	assert_int_equal(extents[0].flags, STORE_EXTENT_HOLE | STORE_EXTENT_ZERO);
	assert_int_equal(bench_read(&bench, (1 << 30) - 4, 8, data), -EIO);
	assert_string_equal(store_info(bench.store)->kind, "null");
	bench_close(&bench);
}

/* What the kernel gets in one call it may complete as one. */
TEST(test_parts_kept_apart_share_a_call_by_twos)
{
	enum { PARTS = 5 };
	static const uint32_t flags[] = { STORE_APART, 0 };
	static char data[PARTS][512];
	struct waited_part parts[PARTS];
	struct bench bench;

	open_with(&bench, "null:1M", NULL, NULL);
	for (size_t k = 0; k < 2 * ARRAY_COUNT(flags); k++) {
		uint32_t flag = flags[k % ARRAY_COUNT(flags)];
		uint64_t before = ring_counters(bench.ring)->enters;

		for (uint32_t i = 0; i < PARTS; i++) {
			bench_start(&bench, &parts[i], STORE_READ, flag, i * sizeof(data[i]),
				sizeof(data[i]), data[i]);
		}
		assert_int_equal(
			ring_counters(bench.ring)->enters - before, flag != 0 ? PARTS / 2 : 0);
		for (uint32_t i = 0; i < PARTS; i++) {
			assert_int_equal(bench_wait(&bench, &parts[i]), 0);
		}
	}
	bench_close(&bench);
}
