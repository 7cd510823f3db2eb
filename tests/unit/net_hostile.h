// SPDX-License-Identifier: Apache-2.0
/*
 * A peer of a world's listener that is no libclan, for tests that break the rules of
 * docs/protocol/clan.md §12: it sends the frames that a test makes. There is one for each
 * transport.
 *
 * Threading: one thread. Ownership: hostile_create() to hostile_destroy(), hostile_open() to
 * hostile_close(). Errors: a test fails.
 */
#pragma once

#include "clan/net.h"
#include "clan_world.h"

extern const char *const hostile_scheme;  /* of addresses */
extern const char *const hostile_network; /* where its worlds listen */
extern const uint64_t hostile_magic;	  /* of its HELLO */
extern const bool hostile_has_put;	  /* the record PUT */

struct hostile {
	/* The frame to be sent. */
	uint8_t frame[NET_FRAME_BYTES];
	struct net_frame_head head;
	size_t bytes;
	bool ended; /* the world has closed the connection */
	void *carrier;
};

/* --- test_clan_net.c -------------------------------------------------------------------------- */

extern const struct world_kind *const hostile_world; /* of the transport */

void frame_begin(struct hostile *hostile);
/* Appends a record with a head of that length, and as many bytes of payload. */
void frame_record(
	struct hostile *hostile, uint32_t class, uint32_t type, const void *payload, size_t bytes);
/* Sends the frame, and gives the server some turns. */
void frame_send(struct hostile *hostile, struct world *world);
/* Opens a hostile whose connection the world has accepted. */
struct clan_conn *hostile_accepted(struct hostile *hostile, struct world *world);
/* The world's own connection still works. */
void honest_works(struct world *world);

/* --- the carrier's file, which also has tests of its own
 * ----------------------------------------------------------------------- */

struct hostile *hostile_create(void);
void hostile_destroy(struct hostile *hostile);
/* Connects to the world's listener, whose server takes its turns meanwhile. */
void hostile_open(struct hostile *hostile, struct world *world);
void hostile_close(struct hostile *hostile);
/* Takes what has come, and forgets it. */
void hostile_look(struct hostile *hostile);
/* Sends bytes of frame; another can be made in the same memory when the world has had its turn. */
void hostile_send(struct hostile *hostile);
