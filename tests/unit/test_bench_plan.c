// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>
#include <stdlib.h>

#include "tools/bench_plan.h"
#include "unit.h"

#define NS_PER_S UINT64_C(1000000000)

static void check_covers(uint64_t blocks, uint64_t seed)
{
	bool *seen = calloc(blocks, sizeof(*seen));
	struct bench_order order;

	assert_non_null(seen);
	bench_order_init(&order, blocks, seed);
	for (uint64_t i = 0; i < blocks; i++) {
		uint64_t block = bench_order_at(&order, i);

		assert_true(block < blocks);
		assert_false(seen[block]);
		seen[block] = true;
	}
	free(seen);
}

TEST(test_each_block_comes_once)
{
	for (uint64_t blocks = 1; blocks <= 1100; blocks++) {
		check_covers(blocks, blocks * 7);
	}
	for (uint32_t bits = 11; bits <= 18; bits++) {
		check_covers((UINT64_C(1) << bits) - 1, bits);
		check_covers(UINT64_C(1) << bits, bits);
		check_covers((UINT64_C(1) << bits) + 1, bits);
	}
}

/* Nothing can be marked there: places far apart differ and stay inside. */
TEST(test_the_largest_ranges)
{
	static const uint64_t sizes[] = { (UINT64_C(1) << 40) + 1, (UINT64_C(1) << 62) + 1,
		UINT64_C(1) << 63 };

	for (size_t i = 0; i < ARRAY_COUNT(sizes); i++) {
		struct bench_order order;
		uint64_t last;

		bench_order_init(&order, sizes[i], 1);
		last = bench_order_at(&order, sizes[i] - 1);
		assert_true(last < sizes[i]);
		for (uint64_t index = 0; index < 1000; index++) {
			uint64_t block = bench_order_at(&order, index);

			assert_true(block < sizes[i]);
			assert_true(block != last);
		}
	}
}

enum { BLOCKS = 100000 };

/* How often the next block is a neighbour on the disk, and how many
 * lie in the first half, among the first half of the order: what a disk would call random. */
TEST(test_the_order_is_not_regular)
{
	struct bench_order order;
	uint64_t neighbours = 0;
	uint64_t low = 0;
	uint64_t fixed = 0;

	bench_order_init(&order, BLOCKS, 42);
	for (uint64_t i = 0; i < BLOCKS / 2; i++) {
		uint64_t block = bench_order_at(&order, i);
		uint64_t next = bench_order_at(&order, i + 1);

		neighbours += next - block + 8 <= 16;
		low += block < BLOCKS / 2;
		fixed += block == i;
	}
	/* Of a random permutation: 8.5 neighbours, 25000 ± 56, and half a fixed point. */
	assert_in_range(neighbours, 0, 40);
	assert_in_range(low, 24300, 25700);
	assert_in_range(fixed, 0, 8);
}

TEST(test_a_seed_gives_one_order)
{
	struct bench_order one;
	struct bench_order same;
	struct bench_order other;
	uint64_t equal = 0;

	bench_order_init(&one, BLOCKS, 1);
	bench_order_init(&same, BLOCKS, 1);
	bench_order_init(&other, BLOCKS, 2);
	for (uint64_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(bench_order_at(&one, i), bench_order_at(&same, i));
		equal += bench_order_at(&one, i) == bench_order_at(&other, i);
	}
	assert_in_range(equal, 0, 20);
}

TEST(test_times_do_not_drift)
{
	struct bench_schedule thirds = { .begin_ns = 1000, .per_second = 3, .cost = 1, .step = 1 };
	struct bench_schedule fast = {
		.begin_ns = 5, .per_second = UINT64_C(1) << 40, .cost = 4096, .step = 1
	};

	assert_int_equal(bench_schedule_due_ns(&thirds, 0), 1000);
	assert_int_equal(bench_schedule_due_ns(&thirds, 1), 1000 + 333333333);
	assert_int_equal(bench_schedule_due_ns(&thirds, 3), 1000 + NS_PER_S);
	assert_int_equal(
		bench_schedule_due_ns(&thirds, 3 * 86400 * 365), 1000 + 86400 * 365 * NS_PER_S);
	assert_int_equal(bench_schedule_due_ns(&fast, UINT64_C(1) << 28), 5 + NS_PER_S);
}

TEST(test_workers_share_a_rate)
{
	struct bench_schedule whole = { .per_second = 1000, .cost = 7, .step = 1 };

	for (uint32_t worker = 0; worker < 3; worker++) {
		struct bench_schedule part = {
			.per_second = 1000, .cost = 7, .first = worker, .step = 3
		};

		for (uint64_t i = 0; i < 100; i++) {
			assert_int_equal(bench_schedule_due_ns(&part, i),
				bench_schedule_due_ns(&whole, 3 * i + worker));
		}
	}
}
