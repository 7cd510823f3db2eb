// SPDX-License-Identifier: Apache-2.0
/*
 * What the clients share that "gmblock bench" is compared with. None of it comes from the program,
 * so that a mistake in the program is not in its comparison, too.
 *
 * Threading: one thread. Ownership: none. Errors: none.
 */
#pragma once

#include <sys/resource.h>

#include "samples.h"

static inline double control_now_s(void)
{
	return (double)samples_now_ns() / 1e9;
}

static inline double control_cpu_s(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Which block is read next. */
struct control_blocks {
	bool is_random;
	uint64_t count;
	uint64_t next;
	uint64_t random;
};

static inline uint64_t control_pick(struct control_blocks *blocks)
{
	if (blocks->is_random) {
		return samples_draw(&blocks->random, blocks->count);
	}
	return blocks->next++ % blocks->count;
}

/* The result, as one JSON object. */
static inline void control_print(uint64_t count, double elapsed, double cpu, uint64_t block_bytes)
{
	printf("{ \"requests\": %" PRIu64 ", \"seconds\": %.6f, \"iops\": %.3f, "
	       "\"bytes_per_second\": %.1f, \"cpu_us_per_request\": %.6f }\n",
		count, elapsed, (double)count / elapsed,
		(double)count / elapsed * (double)block_bytes, cpu * 1e6 / (double)count);
}
