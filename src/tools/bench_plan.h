// SPDX-License-Identifier: Apache-2.0
/*
 * The order and the timing of the requests of "gmblock bench": a permutation of the blocks, and, if
 * the user has set a rate, the time at which each request is due.
 *
 *   order     index 0 1 2 3 …  ─▶  block, by a keyed network of Feistel rounds over the next power
 *             of two; a result outside the range is permuted again. Nothing is stored per block,
 *             and any part of the indices can be processed independently.
 *   schedule  request n of the worker `first` of `step` workers is due at
 *             begin_ns + (n * step + first) * cost / per_second seconds
 *
 * Threading: pure functions. Ownership: plain values. Errors: none.
 */
#pragma once

#include <stdint.h>

#include "base/compiler.h"

/* A permutation of 0 to blocks - 1. */
struct bench_order {
	uint64_t blocks;
	uint64_t key;
	uint32_t low_bits; /* bits of a block's number; the halves differ by at most one bit */
	uint32_t high_bits;
};

/* blocks: 1 to 2^63. The same seed gives the same order. */
void bench_order_init(struct bench_order *order, uint64_t blocks, uint64_t seed);

/* Returns the block at an index of the order; index < blocks. */
uint64_t bench_order_at(const struct bench_order *order, uint64_t index);

struct bench_schedule {
	uint64_t begin_ns;
	uint64_t per_second; /* units of cost per second; 0: everything is due immediately */
	uint32_t cost;	     /* cost of one request */
	uint32_t first;
	uint32_t step;
};

/* Returns the time at which a request is due; number starts at 0. per_second > 0. Rounds down to
 * nanoseconds, and does not drift. */
static inline uint64_t bench_schedule_due_ns(const struct bench_schedule *schedule, uint64_t number)
{
	unsigned __int128 before = (unsigned __int128)number * schedule->step + schedule->first;

	return schedule->begin_ns +
	       (uint64_t)(before * schedule->cost * UINT64_C(1000000000) / schedule->per_second);
}
