// SPDX-License-Identifier: Apache-2.0
/*
 * SplitMix64: small, fast, and good enough for choices; not for secrets. Who has an event loop asks
 * that for numbers (ring_random()), so that a simulation can repeat them.
 *
 * Threading: one owner for each state. Ownership: the caller's. Errors: none.
 */
#pragma once

#include <stdint.h>

/* The next number of the sequence that any first state begins. */
static inline uint64_t random_next(uint64_t *state)
{
	uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);

	mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
	return mixed ^ (mixed >> 31);
}
