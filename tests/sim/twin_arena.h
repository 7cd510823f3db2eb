// SPDX-License-Identifier: Apache-2.0
/*
 * A source of an arena that is like a device: a memfd that is mapped twice. The program gets the
 * mapping that nobody may touch; the simulated disk and network use the other one
 * (sim_memory_alias). So every instruction of the program that reads or writes payload in it ends
 * the process.
 *
 *   path, session, store ──▶ PROT_NONE mapping ─┐
 *                                               ├─ memfd
 *   simulated disk and network ──▶ real mapping ┘
 *
 * Threading: the ring's thread. Ownership: as memory/arena.h. Errors: model_fail().
 */
#pragma once

#include "memory/arena.h"

struct scenario;
struct scenario_service;

enum { TWIN_SLABS_MAX = 4 };

/* What is mapped. */
struct twin_source {
	void *closed[TWIN_SLABS_MAX];
	void *real[TWIN_SLABS_MAX];
	uint32_t count;
};

/* For one arena of at most TWIN_SLABS_MAX slabs, as long as twin. */
struct arena_source twin_arena_source(struct twin_source *twin);

/* Whether a life of the scenario has such memory: as little as devices have, or a few slabs, of
 * which the last is not whole. */
void twin_choose(struct scenario *scenario);
/* At the end: what asks for device memory has had it, or it is counted why not; and nobody else has
 * had any. */
void twin_check(struct scenario *scenario, struct scenario_service *service);
