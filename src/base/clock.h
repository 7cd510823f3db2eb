// SPDX-License-Identifier: Apache-2.0
/*
 * The time that never goes back, for those who have no event loop to ask. Who has one asks that
 * (ring_now_ns()): in a simulation its time is another.
 *
 * Threading: any. Ownership: none. Errors: none.
 */
#pragma once

#include <stdint.h>
#include <time.h>

/* Nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t clock_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now); /* vDSO: no system call */
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}
