// SPDX-License-Identifier: Apache-2.0
/*
 * What main.c needs from a program that runs simulations by seed.
 *
 * Threading: one. Ownership: none. Errors: model_fail() ends the process and names the seed.
 */
#pragma once

#include <stdint.h>

#include "base/compiler.h"
#include "sim/sim.h"

/* A rule was broken. Does not return. */
GMB_NORETURN void model_fail(const char *format, ...) GMB_PRINTF(1, 2);

/* A random number below the limit; 0 if the limit is 0. */
static inline uint64_t below(uint64_t limit)
{
	return limit == 0 ? 0 : sim_random() % limit;
}

static inline bool percent(uint32_t chance)
{
	return below(100) < chance;
}

struct scenario_result {
	uint64_t trace;
	uint64_t events;
	uint64_t requests;
	uint64_t errors;
	uint64_t page_cache_send_bytes; /* sent from the page cache itself */
	uint64_t send_faults;		/* sends from there that found it gone */
	uint64_t device_bytes;		/* in memory that the CPU must not touch */
	uint64_t device_refused;	/* requests that could not have them */
	uint64_t unfinished_bytes;	/* came for reads that failed or were cut later */
	uint64_t placed_bytes;		/* by gmb, to or from the program's own memory */
	uint64_t staged_bytes;		/* not so: they were copied */
	uint64_t replays;		/* of the client's commands */
	uint64_t moves;			/* of the client, to another host */
	uint64_t copied_bytes;		/* within the server */
	uint64_t dripped_bytes;		/* that clients asked for, took or gave one by one */
	uint64_t renewals;		/* of connections that were reset */
	uint64_t hangs;			/* of disks */
	uint64_t tls_handshakes;	/* of sessions that were open then */
	uint64_t place_turns;		/* of clients that waited for a place */
	uint64_t memory_turns;		/* for memory */
	uint64_t flash_moved;		/* blocks that collectors of flash stores moved */
	uint64_t atomic_turns;		/* of clients whose write waited because it is not cut */
	uint64_t atomic_writes;		/* not answered, and found whole or not at all */
	uint64_t flash_cached;		/* blocks that went to their write caches */
	uint64_t flash_kept;	 /* of those that only the cache had when servers were killed */
	uint64_t lease_moves;	 /* from a client that had it to one that took it */
	uint64_t lease_renewals; /* by clients that had lost all of their connections */
};

/* --gmb: the client speaks it instead of NBD. */
extern bool runner_native;
/* --hosts: the server is started at one of two machines that have the disk. */
extern bool runner_hosts;
/* --atomic: the server's clients write to flash stores what these keep as a whole, with little
 * memory, and the power fails often. */
extern bool runner_atomic;

/* Runs one seed to its end. */
struct scenario_result scenario_run(uint64_t seed, bool verbose);
