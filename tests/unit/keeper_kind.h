// SPDX-License-Identifier: Apache-2.0
/*
 * A store kind of the tests, "keeper:SIZE": its blocks lie in the memory of its budget, it must be
 * started, which takes KEEPER_STEPS steps, has an epoch of its own afterwards, and is worked on by
 * one ring only, without a lock.
 *
 * Threading: as store.h; keeper_gate and keeper_thread are set before a store is opened and
 * started. Ownership: as store.h. Errors: a part on another thread than that of the start fails an
 * assertion.
 */
#pragma once

#include "store/kind.h"

enum { KEEPER_STEPS = 4, KEEPER_STEP_NS = 1000000 };

#define KEEPER_EPOCH UINT64_C(0x6b65657065720001)

/* Pipes by which a test steers the start, or -1: then the steps are taken by themselves. */
struct keeper_gate {
	int go_fd;   /* not blocking: 's' lets it take a step, 'x' makes it fail */
	int said_fd; /* gets '.' at the beginning and after each step */
};

extern struct keeper_gate keeper_gate;
extern const struct store_kind keeper_store_kind;

/* The first bytes only are there from now on, at most those it was opened with. Any thread. */
void keeper_resize(struct store *store, uint64_t size);
/* How many parts it has done: all, those of other rings, those of nobody known. Owner's thread. */
struct keeper_counters {
	uint64_t parts;
	uint64_t sent;
	uint64_t anonymous;
};
const struct keeper_counters *keeper_counters(const struct store_queue *queue);
