// SPDX-License-Identifier: Apache-2.0
#include <errno.h>

#include "path/stats.h"
#include "unit.h"

/* A request that spent the given times in INIT, READ, SEND_INIT and SEND; a negative one: the state
 * was skipped. */
static void add(struct path_stats *stats, const int64_t times_ns[4], bool failed)
{
	uint64_t edges[PATH_STATE_COUNT] = { 0 };
	uint64_t now = 1000;

	for (int state = 0; state < 4; state++) {
		if (times_ns[state] >= 0) {
			edges[state] = now;
			now += (uint64_t)times_ns[state];
		}
	}
	edges[PATH_STATE_DONE] = now;
	path_stats_add(stats, edges, 4096, failed);
}

TEST(states_are_summed)
{
	struct path_stats stats = { 0 };

	add(&stats, (const int64_t[]){ 10, 20, 30, 40 }, false);
	add(&stats, (const int64_t[]){ 1, 2, -1, 4 }, true);
	assert_int_equal(stats.count, 2);
	assert_int_equal(stats.errors, 1);
	assert_int_equal(stats.bytes, 4096);
	assert_int_equal(stats.state_ns[PATH_STATE_WAIT], 11);
	assert_int_equal(stats.state_ns[PATH_STATE_DISK], 22);
	assert_int_equal(stats.state_ns[PATH_STATE_OVERLAP], 30);
	assert_int_equal(stats.state_ns[PATH_STATE_NETWORK], 44);
	assert_int_equal(stats.total_ns, 107);
	assert_int_equal(stats.max_ns, 100);
}

/* Every duration is told back at most an eighth (and a unit of 1024 ns) too long, never too short.
 */
TEST(quantiles_bound_the_error)
{
	for (uint64_t ns = 1; ns < UINT64_C(60000000000); ns += ns / 13 + 1) {
		struct path_stats stats = { 0 };
		uint64_t told;

		add(&stats, (const int64_t[]){ (int64_t)ns, 0, 0, 0 }, false);
		/* A longer one, so that the maximum does not help. */
		add(&stats, (const int64_t[]){ (int64_t)ns * 4 + 100000, 0, 0, 0 }, false);
		told = path_stats_quantile_ns(&stats, 500000);
		assert_true(told >= ns);
		assert_true(told <= ns + ns / PATH_LATENCY_PARTS + 1024);
		assert_int_equal(path_stats_quantile_ns(&stats, 1000000), stats.max_ns);
	}
}

TEST(quantiles_of_nothing_and_of_the_longest)
{
	struct path_stats stats = { 0 };

	assert_int_equal(path_stats_quantile_ns(&stats, 990000), 0);
	add(&stats, (const int64_t[]){ INT64_C(1000000000000), 0, 0, 0 }, false);
	assert_int_equal(path_stats_quantile_ns(&stats, 990000), UINT64_C(1000000000000));
}

/* Each state has a histogram of its own, of the requests that were in it; a bucket has its limit.
 */
TEST(phases_are_counted_apart)
{
	static struct path_operation operation;
	static struct path_operation twice;
	uint64_t edges[PATH_STATE_COUNT] = { 1000, 2024, 0, 4073, 1004073 };
	uint32_t slow = 0;

	path_operation_add(&operation, edges, 5000, false);
	assert_int_equal(operation.classes[1].count, 1);
	assert_int_equal(operation.phases[PATH_STATE_WAIT][0], 1); /* 1024 ns */
	assert_int_equal(operation.phases[PATH_STATE_DISK][2], 1); /* 2049 ns */
	while (path_latency_limit_ns(slow) < 1000000) {
		slow++;
	}
	assert_int_equal(operation.phases[PATH_STATE_NETWORK][slow], 1);
	for (uint32_t i = 0; i < PATH_LATENCY_BUCKETS; i++) {
		assert_int_equal(operation.phases[PATH_STATE_OVERLAP][i], 0);
	}
	path_operation_merge(&twice, &operation);
	path_operation_merge(&twice, &operation);
	assert_int_equal(twice.classes[1].count, 2);
	assert_int_equal(twice.phases[PATH_STATE_NETWORK][slow], 2);
}

TEST(limits_grow)
{
	assert_int_equal(path_latency_limit_ns(0), 1024);
	assert_int_equal(path_latency_limit_ns(PATH_LATENCY_PARTS - 1), 8 * 1024);
	assert_int_equal(path_latency_limit_ns(2 * PATH_LATENCY_PARTS - 1), 16 * 1024);
	for (uint32_t i = 1; i < PATH_LATENCY_BUCKETS; i++) {
		assert_true(path_latency_limit_ns(i) > path_latency_limit_ns(i - 1));
	}
	assert_true(path_latency_limit_ns(PATH_LATENCY_BUCKETS - 1) == UINT64_MAX);
}

TEST(errors_have_places)
{
	assert_string_equal(path_error_name(path_error_slot(-EIO)), "EIO");
	assert_string_equal(path_error_name(path_error_slot(-ENOSPC)), "ENOSPC");
	assert_string_equal(path_error_name(path_error_slot(-ESHUTDOWN)), "other");
}

TEST(merging_is_adding)
{
	struct path_stats one = { 0 };
	struct path_stats other = { 0 };
	struct path_stats both = { 0 };

	for (int64_t i = 1; i < 1000; i++) {
		const int64_t times[] = { i * 7, i * 1000, i * i, i };

		add(i % 3 == 0 ? &one : &other, times, i % 10 == 0);
		add(&both, times, i % 10 == 0);
	}
	path_stats_merge(&one, &other);
	assert_memory_equal(&one, &both, sizeof(one));
}

TEST(size_classes)
{
	assert_int_equal(path_size_class(0), 0);
	assert_int_equal(path_size_class(4096), 0);
	assert_int_equal(path_size_class(4097), 1);
	assert_int_equal(path_size_class(16 << 10), 1);
	assert_int_equal(path_size_class(1 << 20), 4);
	assert_int_equal(path_size_class(16 << 20), 6);
	assert_int_equal(path_size_class((16 << 20) + 1), 7);
	assert_int_equal(path_size_class(UINT64_MAX), 7);
	assert_true(path_size_class_limit(7) == UINT64_MAX);
}
