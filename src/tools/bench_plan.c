// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_plan.h"

#include "base/clock.h"

enum { ROUND_PAIRS = 2, BITS_MIN = 2 };

void bench_order_init(struct bench_order *order, uint64_t blocks, uint64_t seed)
{
	uint32_t bits = BITS_MIN;

	GMB_ASSERT(blocks > 0 && blocks <= UINT64_C(1) << 63);
	while (bits < 63 && blocks > UINT64_C(1) << bits) {
		bits++;
	}
	order->blocks = blocks;
	order->key = random_next(&seed);
	order->low_bits = bits / 2;
	order->high_bits = bits - bits / 2;
}

/* The round function of permute(): mixes one half of a number. The caller uses as many bits of the
 * result as it needs. */
static uint64_t mix(const struct bench_order *order, uint64_t half, uint64_t round)
{
	uint64_t state = order->key ^ (half << 3 | round);

	return random_next(&state);
}

/* Permutes all numbers with the bits of a block number. Each step combines one half with a function
 * of the other and is reversible, so different numbers have different results. */
static uint64_t permute(const struct bench_order *order, uint64_t number)
{
	uint64_t low_mask = (UINT64_C(1) << order->low_bits) - 1;
	uint64_t high_mask = (UINT64_C(1) << order->high_bits) - 1;
	uint64_t low = number & low_mask;
	uint64_t high = number >> order->low_bits;

	for (uint64_t round = 0; round < ROUND_PAIRS; round++) {
		low ^= mix(order, high, 2 * round) & low_mask;
		high ^= mix(order, low, 2 * round + 1) & high_mask;
	}
	return high << order->low_bits | low;
}

uint64_t bench_order_at(const struct bench_order *order, uint64_t index)
{
	GMB_ASSERT(index < order->blocks);
	/* Repeats until the result is inside the range. That is less than two steps on average,
	 * because the range has more than half of the numbers. The loop ends, because a permutation
	 * consists of cycles: at the latest it returns to the start, which is inside. */
	do {
		index = permute(order, index);
	} while (index >= order->blocks);
	return index;
}
