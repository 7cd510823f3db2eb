// SPDX-License-Identifier: Apache-2.0
/*
 * An arena over a memfd that is mapped twice. The program gets the mapping that nobody may touch;
 * the simulated disk and network use the other one (sim_memory_alias). So every instruction of the
 * program that reads or writes payload in it ends the process.
 *
 *   path, session, store ──▶ PROT_NONE mapping ─┐
 *                                               ├─ memfd
 *   simulated disk and network ──▶ real mapping ┘
 *
 * Threading: the ring's thread. Ownership: as memory/arena.h. Errors: model_fail().
 */
#pragma once

#include "memory/arena.h"

struct arena *twin_arena_create(struct ring *ring, uint64_t limit_bytes);
/* How many buffers it has given. */
uint64_t twin_arena_gets(struct arena *arena);
