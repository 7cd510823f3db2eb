// SPDX-License-Identifier: Apache-2.0
/*
 * Monotonic time and random numbers for code without an event loop. Code that has one uses
 * ring_now_ns() and ring_random(), which the simulation controls.
 *
 * Threading: any; each random state has one owner. Ownership: none. Errors: none.
 */
#pragma once

#include <stdint.h>
#include <time.h>

#include "base/compiler.h"

/* Signals within this time of the first one are the same request to stop. One request can cause
 * several signals: Ctrl-C reaches the whole process group, timeout(1) signals its child and then
 * that group, and a wrapper script may add a SIGTERM. */
#define CLOCK_SAME_SIGNAL_NS UINT64_C(1000000000)

/* Returns the CLOCK_MONOTONIC time in nanoseconds. Async-signal-safe. */
static inline uint64_t clock_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now); /* served by the vDSO, without a system call */
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Returns the CPU time that the calling thread has used, in nanoseconds. */
static inline uint64_t clock_thread_cpu_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * UINT64_C(1000000000) + (uint64_t)used.tv_nsec;
}

/* Tells the processor that this thread is in a loop that waits without sleeping. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Converts nanoseconds to milliseconds for interfaces that take an int. The result is rounded up
 * and is at most INT32_MAX. */
static inline uint32_t clock_milliseconds(uint64_t ns)
{
	return (uint32_t)MIN(ns / 1000000 + (ns % 1000000 != 0), (uint64_t)INT32_MAX);
}

/* Returns the next number of a SplitMix64 sequence; any initial state is valid. The numbers are
 * predictable: not for secrets. */
static inline uint64_t random_next(uint64_t *state)
{
	uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);

	mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
	return mixed ^ (mixed >> 31);
}
