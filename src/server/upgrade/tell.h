// SPDX-License-Identifier: Apache-2.0
/*
 * What the old process of an upgrade (upgrade.h) tells the new one: sockets and disks before
 * anything stops, then its sessions. It never waits: the new process may have been stopped.
 *
 * Threading: the main thread; sessions are told on their reactor's. Ownership: borrows all.
 * Errors: a negative errno; upgrade_tell_waits() says which ones are a lack of room.
 */
#pragma once

#include "server/change/exports.h"
#include "server/listen/listen.h"
#include "server/upgrade/wire.h"

struct upgrade_tell {
	int channel;	     /* to the new process, or -1 */
	bool needs_room;     /* there: the last call stopped for want of it */
	uint32_t told_count; /* messages of upgrade_tell_all() */
	uint32_t next_index; /* of the message that comes next */
	uint64_t telling_id; /* of the session of which later_told bytes were told */
	uint32_t later_told;
	uint32_t passed_count; /* sessions */
};

/* What there is besides the disks. control, metrics: NULL when the new process gets none. */
struct upgrade_sockets {
	const struct listener *listeners;
	uint32_t listener_count;
	const struct listener *control;
	const struct listener *metrics;
};

/* Nothing was told over the channel. */
void upgrade_tell_init(struct upgrade_tell *tell, int channel);
/* True: the call is to be repeated, and goes on where it has stopped. */
bool upgrade_tell_waits(struct upgrade_tell *tell, int rc);
/* All sockets and disks. */
GMB_MUST_CHECK int upgrade_tell_all(struct upgrade_tell *tell,
	const struct upgrade_sockets *sockets, const struct exports *exports);
/* For engine_pass(). */
GMB_MUST_CHECK int upgrade_tell_session(void *tell, const struct session_record *record);
/* That was all; so many have ended. */
GMB_MUST_CHECK int upgrade_tell_end(struct upgrade_tell *tell, uint32_t ended_count);
