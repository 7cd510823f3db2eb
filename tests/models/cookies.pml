// SPDX-License-Identifier: Apache-2.0
/*
 * Cookies and their revocation, docs/protocol/clan.md, section 8.2. The granter lends two places of a
 * region in turn through one slot of its table; the holder puts with the newest cookie, or with one that
 * was revoked. After a revocation nothing of the holder's may land in the place.
 *
 * mutant: NO_HOLDER_FENCE      no fence between busy and the look at the generation
 * mutant: NO_GRANTER_FENCE     no fence between the generation and the look at busy
 * mutant: NO_WAIT              a revocation does not wait for a holder that is busy
 * mutant: CHECK_FIRST          the holder looks at the generation before it is busy
 * mutant: EARLY_EVEN           the holder is no longer busy before it has copied
 * mutant: SAME_GENERATION      a slot is granted again with the same generation
 */
#define WORDS	8
#define BUFFER	4

/* Words of the holder. */
#define BUSY	0
/* The region: the holder puts, and the granter uses a place that is not lent. */
#define PLACE	1 /* and 2 */
/* Words of the granter. */
#define GENERATION 3
#define OFFSET	4
#define MESSAGE 5 /* the newest cookie: its number */

#include "tso.pml"

#define GRANTS	3
#define PUTS	3
#define OWN	99 /* what the granter keeps in a place that is not lent */

#ifdef SAME_GENERATION
#define GENERATION_OF(cookie) 1
#else
#define GENERATION_OF(cookie) (cookie)
#endif
#define OFFSET_OF(cookie) ((cookie) & 1)

proctype granter()
{
	byte cookie = 1, busy;

	do
	:: cookie > GRANTS -> break
	:: cookie <= GRANTS ->
		buffer1!OFFSET, OFFSET_OF(cookie);
		buffer1!GENERATION, GENERATION_OF(cookie);
		buffer1!MESSAGE, cookie;
		/* Any time later. */
		buffer1!GENERATION, 0;
#ifndef NO_GRANTER_FENCE
		FENCE(buffer1);
#endif
		busy = memory[BUSY];
#ifndef NO_WAIT
		if
		:: busy & 1 -> memory[BUSY] != busy
		:: else
		fi;
#endif
		/* Revoked: the place is the granter's own until it is lent again. */
		buffer1!PLACE + OFFSET_OF(cookie), OWN;
		FENCE(buffer1);
		assert(memory[PLACE + OFFSET_OF(cookie)] == OWN);
		if
		:: cookie > 1 -> assert(memory[PLACE + OFFSET_OF(cookie - 1)] == OWN)
		:: else
		fi;
		atomic { cookie++; busy = 0 }
	od;
	/* Now, and at any time later. */
end:	do
	:: atomic { (memory[PLACE] != OWN || memory[PLACE + 1] != OWN) -> assert(false) }
	od
}

proctype holder()
{
	byte puts = PUTS, cookie, busy = 0, generation, offset;

	do
	:: puts == 0 -> break
	:: puts > 0 ->
		if
		:: cookie = memory[MESSAGE]
		:: cookie != 0 /* keeps to an older one */
		fi;
		if
		:: cookie == 0 -> memory[MESSAGE] != 0
		:: else ->
#ifdef CHECK_FIRST
			generation = memory[GENERATION];
			offset = memory[OFFSET];
#endif
			atomic { puts--; busy++; buffer0!BUSY, busy }
#ifndef NO_HOLDER_FENCE
			FENCE(buffer0);
#endif
#ifndef CHECK_FIRST
			generation = memory[GENERATION];
			offset = memory[OFFSET];
#endif
#ifdef EARLY_EVEN
			busy++;
			buffer0!BUSY, busy;
#endif
			if
			:: generation == GENERATION_OF(cookie) ->
				assert(offset == OFFSET_OF(cookie));
				buffer0!PLACE + offset, cookie
			:: else
			fi;
#ifndef EARLY_EVEN
			busy++;
			buffer0!BUSY, busy;
#endif
			atomic { generation = 0; offset = 0 }
		fi
	od
}

init {
	atomic { run drain(buffer0); run drain(buffer1); run granter(); run holder() }
}
