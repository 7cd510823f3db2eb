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
 * Control messages arrive before or behind bulk. Where regions are not mapped, the bytes of a put
 * are read as late as can be, most puts and all gets end later, and what has not ended when the
 * connection is lost ends with it. Not simulated, since gmb does not use them: streams, notifying
 * puts, revocation, tripwires, cookie queues; a call of one ends the run.
 *
 * Threading: one. Ownership: as <gmblock/clan.h>. Errors: a mistake of the test aborts.
 */
#pragma once

#include <stdbool.h>

#include "connector_sim.h"

/* Where connections lead; borrowed until the next call. NULL: nowhere, and nothing is left.
 * can_map: they have CLAN_CAN_MAP. */
void clan_sim_use(const struct connector_network *network, bool can_map);
