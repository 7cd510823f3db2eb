// SPDX-License-Identifier: Apache-2.0
/*
 * The late switch: where the bytes of a connection travel, decided by position in the stream.
 *
 * Each direction begins on TCP. A reader that waits at both places says MAY; the writer then says
 * GO, with the position from which its bytes come by ring, and at the end SWITCH, with the
 * position from which they come by TCP again:
 *
 *   position  0 ......... go_from ......... switch_from .........
 *   place         TCP     |      ring       |        TCP
 *
 * A SWITCH is answered with a SWITCH. When both directions have ended, and what the ring held has
 * been read, the connection is plain again. Nothing is sent twice, no mark lies in the TCP stream,
 * and nobody waits for an answer.
 *
 * Threading: no state of its own; the caller's lock. Ownership: the caller's memory.
 * Errors: -EPROTO when the peer broke a rule.
 */
#pragma once

#include <stdatomic.h>

#include "base/compiler.h"

enum switch_type {
	SWITCH_MAY = 1,
	SWITCH_GO = 2,
	SWITCH_BACK = 3,
};

/* A message between the two libraries; its type is the message type of clan. Little-endian. */
struct switch_message {
	uint64_t from; /* a position, of GO and SWITCH; 0 in MAY */
};

#define SWITCH_NOWHERE UINT64_MAX

/* Where the bytes that the program writes go. */
enum switch_out { SWITCH_OUT_TCP, SWITCH_OUT_RING, SWITCH_OUT_LEFT };

struct switch_side {
	_Atomic(uint64_t) out; /* bytes that the program has written since it was connected */
	_Atomic(uint64_t) in;  /* bytes that it has read */
	enum switch_out out_place;
	bool may;	  /* the peer's reader waits at both places */
	bool may_said;	  /* ours does, and we have said so */
	uint64_t go_from; /* of the peer's bytes; SWITCH_NOWHERE: not said yet */
	uint64_t switch_from;
};

enum switch_place { SWITCH_TCP, SWITCH_RING };

/* The connection is about to be carried. The counts stay. */
void switch_begin(struct switch_side *side);

/* May the next byte written be the first on the ring? */
bool switch_can_go(const struct switch_side *side);
/* The writer changes its place, and has this to say. */
struct switch_message switch_go(struct switch_side *side);
/* False: it has been said. */
bool switch_leave(struct switch_side *side, struct switch_message *message);

/* The peer said something. Returns 1 when SWITCH has to be answered, 0, or -EPROTO. */
GMB_MUST_CHECK int switch_received(
	struct switch_side *side, uint32_t type, const struct switch_message *message);

/* Where the next byte is, and how many bytes from here on come from there (UINT64_MAX: no end is
 * known). */
enum switch_place switch_place(const struct switch_side *side, uint64_t *bytes_out);

/* The peer may go, and has not told of it yet: bytes that TCP has may be behind bytes of the ring.
 * Who reads counts them first, then takes the messages, and then reads no more than it counted. */
bool switch_may_turn(const struct switch_side *side);

/* The ring has ended with its last byte at the present position: the peer has gone. */
void switch_ring_ended(struct switch_side *side);

/* Both directions are on TCP for good, and the ring has been read. */
bool switch_is_over(const struct switch_side *side);
