// SPDX-License-Identifier: Apache-2.0
/*
 * The late switch: the route of the bytes of a connection, decided by their position in the stream.
 *
 * Each direction starts on TCP. A reader that accepts bytes from both TCP and the ring sends MAY.
 * The writer then sends GO, with the position from which its bytes come by the ring, and at the end
 * SWITCH (SWITCH_BACK), with the position from which they come by TCP again:
 *
 *   position  0 ......... go_from ......... switch_from .........
 *   place         TCP     |      ring       |        TCP
 *
 * A SWITCH is answered with a SWITCH. When both directions have sent it, and the bytes in the ring
 * have been read, the connection is plain again. No byte is sent twice, there are no marks in the
 * TCP stream, and no side waits for an answer.
 *
 * Called by conn.c, meet.c and data.c. Threading: stateless; the caller's lock.
 * Ownership: the caller's memory. Errors: -EPROTO if the peer broke a rule.
 */
#pragma once

#include <stdatomic.h>

#include "base/compiler.h"

enum switch_type {
	SWITCH_MAY = 1,
	SWITCH_GO = 2,
	SWITCH_BACK = 3,
	SWITCH_BACK_SLOW = 4, /* SWITCH_BACK, because the ring is not faster than TCP */
};

/* A message between the two libraries; its type is the message type of clan. Little-endian. */
struct switch_message {
	uint64_t from; /* position in the stream from which GO or SWITCH holds; 0 in MAY */
};

#define SWITCH_NOWHERE UINT64_MAX

/* The route of the bytes that the program writes. */
enum switch_out { SWITCH_OUT_TCP, SWITCH_OUT_RING, SWITCH_OUT_LEFT };

struct switch_side {
	/* bytes that the program has written since the connection was established */
	_Atomic(uint64_t) out;
	_Atomic(uint64_t) in; /* bytes that the program has read */
	enum switch_out out_place;
	bool may;      /* the peer's reader accepts both routes */
	bool may_said; /* we have sent MAY */
	/* position from which the peer's bytes come by the ring; SWITCH_NOWHERE until GO is
	 * received */
	uint64_t go_from;
	uint64_t switch_from;
};

enum switch_place { SWITCH_TCP, SWITCH_RING };

/* Called when the connection moves to CONN_CARRIED. Resets everything except the byte counts. */
void switch_begin(struct switch_side *side);

/* Returns true if the writer can move to the ring: it is on TCP, and the peer has sent MAY. */
bool switch_can_go(const struct switch_side *side);
/* Moves the writer to the ring. Returns the message GO, which the caller sends. */
struct switch_message switch_go(struct switch_side *side);
/* Moves the writer back to TCP, and fills in the message SWITCH, which the caller sends. Returns
 * false if SWITCH was sent before. */
bool switch_leave(struct switch_side *side, struct switch_message *message);

/* Processes a message of the peer. Returns 1 if a SWITCH must be sent in answer, 0, or -EPROTO. */
GMB_MUST_CHECK int switch_received(
	struct switch_side *side, uint32_t type, const struct switch_message *message);

/* Returns from where the next byte comes, TCP or the ring, and in *bytes_out the number of bytes
 * that come from there (UINT64_MAX: no end is known). */
enum switch_place switch_place(const struct switch_side *side, uint64_t *bytes_out);

/* Returns true if the peer is permitted to switch and has not sent GO. Such a peer can send GO,
 * write to the ring, and return to TCP at any time. Then TCP has bytes that come after those in the
 * ring. So a reader counts the bytes in TCP, then processes the messages, and then reads from TCP
 * no more than it counted. */
bool switch_may_turn(const struct switch_side *side);

/* Called when the peer is gone and all bytes in the ring have been read. Any further bytes come by
 * TCP. */
void switch_ring_ended(struct switch_side *side);

/* Returns true if both directions are on TCP for good and the ring has been read. */
bool switch_is_over(const struct switch_side *side);
