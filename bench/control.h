// SPDX-License-Identifier: Apache-2.0
/*
 * What the clients share that "gmblock bench" is compared with. Nothing of it comes from the
 * program: a mistake there must not be in what it is measured against.
 *
 * Threading: one thread. Ownership: none. Errors: none.
 */
#pragma once

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

static inline double control_now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
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

/* The same numbers as "gmblock bench" draws. */
static inline uint64_t control_draw(uint64_t *state)
{
	uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);

	mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
	return mixed ^ (mixed >> 31);
}

static inline uint64_t control_pick(struct control_blocks *blocks)
{
	if (blocks->is_random) {
		return (uint64_t)(((unsigned __int128)control_draw(&blocks->random) *
					  blocks->count) >>
				  64);
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
