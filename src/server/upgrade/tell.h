// SPDX-License-Identifier: Apache-2.0
/*
 * Sends the state of the old process of an upgrade (upgrade.h) to the new one: sockets and disks
 * before anything stops, then its sessions. It never blocks, because the new process might be
 * stopped.
 *
 * Threading: the main thread; sessions are sent on their reactor's thread. Ownership: borrows all.
 * Errors: a negative errno; upgrade_tell_waits() identifies a lack of room in the socket.
 */
#pragma once

#include "server/change/exports.h"
#include "server/listen/listen.h"
#include "server/upgrade/wire.h"

struct state_folder;
struct leases;

struct upgrade_tell {
	int channel;	     /* socket to the new process, or -1 */
	bool needs_room;     /* the last call stopped because the channel was full */
	uint32_t told_count; /* messages sent by upgrade_tell_all() */
	/* index of the next message in this call of upgrade_tell_all(), which skips the first
	 * told_count messages */
	uint32_t next_index;
	/* The session whose received data (the beginning of a request's payload) is being sent, and
	 * how many bytes of the data were sent. */
	uint64_t telling_id;
	uint32_t later_told;
	uint32_t handed_over_count; /* number of sessions sent */
	/* number of holders of leases that were sent, and index of the next one in this call */
	uint32_t leases_told;
	uint32_t lease_index;
};

/* The sockets to send. control, metrics: NULL if the new process gets none. */
struct upgrade_sockets {
	const struct listener *listeners;
	uint32_t listener_count;
	const struct listener *control;
	const struct listener *metrics;
};

/* Initializes the struct. Must precede all messages of the channel. */
void upgrade_tell_init(struct upgrade_tell *tell, int channel);
/* Returns true if the call that returned rc failed only because the socket was full, or too many
 * descriptors are in flight. The caller then repeats the call, which continues where it stopped. */
bool upgrade_tell_waits(struct upgrade_tell *tell, int rc);
/* Sends all sockets and disks, and the state folder, if it is used. */
GMB_MUST_CHECK int upgrade_tell_all(struct upgrade_tell *tell,
	const struct upgrade_sockets *sockets, const struct exports *exports,
	const struct state_folder *state);
/* Sends the holders of leases, before the first session. */
GMB_MUST_CHECK int upgrade_tell_leases(struct upgrade_tell *tell, struct leases *leases);
/* A callback for engine_hand_over(). */
GMB_MUST_CHECK int upgrade_tell_session(void *tell, const struct session_record *record);
/* Sends the end of the list of sessions. ended_count: number of sessions that were ended because
 * they could not be handed over. */
GMB_MUST_CHECK int upgrade_tell_end(struct upgrade_tell *tell, uint32_t ended_count);
