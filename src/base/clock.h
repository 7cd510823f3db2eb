// SPDX-License-Identifier: Apache-2.0
/*
 * The time that never goes back, for those who have no event loop to ask. Who has one asks that
 * (ring_now_ns()): in a simulation its time is another.
 *
 * Threading: any. Ownership: none. Errors: none.
 */
#pragma once

#include <time.h>

#include "base/compiler.h"

/* Ctrl-C reaches the whole process group, timeout(1) signals its child and then that group, and a
 * wrapper script may add a SIGTERM of its own: signals this close to the first are the same wish.
 */
#define CLOCK_SAME_SIGNAL_NS UINT64_C(1000000000)

/* Nanoseconds of CLOCK_MONOTONIC. Also for signal handlers. */
static inline uint64_t clock_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now); /* vDSO: no system call */
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* For interfaces that count milliseconds: rounded up, and at most what an int holds. */
static inline uint32_t clock_milliseconds(uint64_t ns)
{
	return (uint32_t)MIN(ns / 1000000 + (ns % 1000000 != 0), (uint64_t)INT32_MAX);
}
