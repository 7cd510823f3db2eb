// SPDX-License-Identifier: Apache-2.0
/*
 * libclan in the simulated world, chosen at link time: this file's provider and waiter stand for
 * src/clan/shm*.c and src/clan/waiter.c, under the calls, queues and regions of src/clan itself.
 *
 *   clan_connect() ─▶ network ─▶ a simulated socket per connection ─▶ clan_adopt()
 *   messages, credits, regions: records on that socket; memory: the real memfds, mapped twice
 *
 * Connections take time, are refused, held, cut and reset as the world decides; what was published
 * before the end can still be received. Rings have little room. A region is known to the program
 * some time after its peer has heard that it is taken, and may be named in a message before that.
 * Control messages arrive before or behind bulk. Not simulated, since gmb does not use them:
 * streams, cookies, puts and gets, tripwires; a call of one ends the run.
 *
 * Threading: one. Ownership: as <gmblock/clan.h>. Errors: a mistake of the test aborts.
 */
#pragma once

#include "connector_sim.h"

/* Where connections lead; borrowed until the next call. NULL: nowhere, and nothing is left. */
void clan_sim_use(const struct connector_network *network);
