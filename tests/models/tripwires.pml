// SPDX-License-Identifier: Apache-2.0
/*
 * Tripwires, docs/protocol/clan.md, section 9. One process puts into the memory of another, which sleeps
 * until its tripwire trips. Every put must be seen.
 *
 * mutant: NO_PUT_FENCE         no fence between the copy and the look at arm
 * mutant: NO_ARM_FENCE         no fence between arm and the look at the memory
 * mutant: NO_LOOK              the owner does not look at the memory after it has armed
 * mutant: EARLY_LOOK           the owner looks at the memory before it arms
 * mutant: SAME_NUMBER          a tripwire is armed again with the same number
 */
#define WORDS	3
#define BUFFER	3

/* Words of the putter: the memory of the owner, and the newest record TRIPPED: count << 4 | arm. */
#define DATA	0
#define TRIPPED 1
/* Word of the owner. */
#define ARM	2

#include "tso.pml"

#define PUTS	5

proctype putter()
{
	byte put = 0, records = 0, arm, answered = 0;

	do
	:: put == PUTS -> break
	:: put < PUTS ->
		put++;
		buffer0!DATA, put;
#ifndef NO_PUT_FENCE
		FENCE(buffer0);
#endif
		arm = memory[ARM];
		if
		:: arm != 0 && arm != answered -> atomic { answered = arm; records++; buffer0!TRIPPED, records << 4 | arm }
		:: else
		fi
	od
}

proctype owner()
{
	byte number = 0, seen = 0, record = 0;

	do
	:: seen == PUTS -> break
	:: seen < PUTS ->
#ifdef EARLY_LOOK
		seen = memory[DATA];
#endif
#ifdef SAME_NUMBER
		number = 1;
#else
		number++;
#endif
		buffer1!ARM, number;
#ifndef NO_ARM_FENCE
		FENCE(buffer1);
#endif
#if !defined NO_LOOK && !defined EARLY_LOOK
		seen = memory[DATA];
#endif
		if
		:: seen == PUTS -> break
		:: else
		fi;
		/* Waits for the trip of this arming, switches it off, and looks. */
		do
		:: memory[TRIPPED] != record ->
			record = memory[TRIPPED];
			if
			:: (record & 15) == number -> break
			:: else /* of an earlier arming */
			fi
		od;
		buffer1!ARM, 0;
		seen = memory[DATA]
	od
}

init {
	atomic { run drain(buffer0); run drain(buffer1); run putter(); run owner() }
}
