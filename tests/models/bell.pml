// SPDX-License-Identifier: Apache-2.0
/*
 * The two-level wake-up of docs/protocol/clan.md, section 6: want and ready ring of a connection, arm
 * and bell of a group. One process changes two connections, the other sleeps until it has taken every
 * change. A wake-up that is lost leaves it asleep: spin reports an invalid end state.
 *
 * model:  ONE_CONNECTION       one connection and more changes
 * mutant: NO_CHANGE_FENCE      no fence between the change and the look at want
 * mutant: NO_PUSH_FENCE        no fence between the push and the look at arm
 * mutant: NO_WANT_FENCE        no fence between want and the second look at the connection
 * mutant: NO_ARM_FENCE         no fence between arm and the look at the ready ring
 * mutant: NO_SECOND_LOOK       the reader does not look at the connection again
 * mutant: NO_READY_LOOK        the queue does not look at the ready ring before it sleeps
 * mutant: LATE_SEEN            the bell is read after the look at the ready ring
 * mutant: SAME_NUMBER          a want that was answered keeps its number
 * mutant: SHORT_RING           a ready ring with fewer than two entries per connection
 * mutant: EAGER_NUMBERS        new numbers without taking entries of the ready ring in between
 */
#define WORDS	16
#define BUFFER	4

/* Words of the changer. */
#define WRITE	0 /* and 1: one per connection */
#define READY_WRITE 2
#define BELL	3
#define READY	4 /* to 7 */
/* Words of the reader. */
#define ARM	8
#define WANT	9 /* and 10 */
#define READY_READ 11

#include "tso.pml"

#if defined SHORT_RING || defined EAGER_NUMBERS
#define ONE_CONNECTION
#endif
#ifdef ONE_CONNECTION
#define CONNECTIONS 1
#define CHANGES	4
#else
#define CONNECTIONS 2
#define CHANGES	3
#endif
#ifdef SHORT_RING
#define SLOTS	CONNECTIONS
#else
#define SLOTS	(2 * CONNECTIONS)
#endif
#define RENEWALS 2 /* changes of what the reader wants to hear of */

bool asleep; /* in FUTEX_WAIT */

proctype changer()
{
	byte left = CHANGES, push = 0, rung = 0, bell = 0, c, w, a;
	byte write[2], answered[2];
	bool touched[2], pushed;

	do
	:: left == 0 -> break
	:: left > 0 ->
		/* One or more changes, of one connection or both, are told with one procedure. */
		do
		:: left > 0 ->
			atomic {
				if
				:: c = 0
				:: CONNECTIONS == 2 -> c = 1
				fi;
				left--;
				write[c]++;
				touched[c] = true;
			}
			atomic { buffer0!WRITE + c, write[c] }
		:: touched[0] || touched[1] -> break
		od;
#ifndef NO_CHANGE_FENCE
		FENCE(buffer0);
#endif
		c = 0;
		do
		:: c == CONNECTIONS -> break
		:: c < CONNECTIONS && !touched[c] -> c++
		:: c < CONNECTIONS && touched[c] ->
			atomic { w = memory[WANT + c]; touched[c] = false }
			if
			:: w != 0 && w != answered[c] ->
				/* K17: a reader that keeps the rules always leaves room. */
				atomic { assert(push - memory[READY_READ] < SLOTS); answered[c] = w }
				atomic { buffer0!READY + push % SLOTS, c + 1; push++ }
				atomic { buffer0!READY_WRITE, push; pushed = true }
			:: else
			fi;
			c++
		od;
		if
		:: !pushed -> a = 0
		:: pushed ->
#ifndef NO_PUSH_FENCE
			FENCE(buffer0);
#endif
			atomic { a = memory[ARM]; pushed = false }
		fi;
		if
		:: a != 0 && a != rung ->
			rung = a;
			bell++;
			buffer0!BELL, bell;
			/* FUTEX_WAKE: a full barrier, then the waiters. */
			atomic { FENCE(buffer0) -> asleep = false }
		:: else
		fi;
		c = 0; w = 0; a = 0
	od
}

proctype reader()
{
	byte taken[2], number[2];
	bool want_stands[2]; /* a number was published that no entry has answered */
	byte total = 0, renewals = RENEWALS, entries = 0, armings = 0, seen = 0, c, w;
	bool armed = false, found;

	do
	:: total == CHANGES -> break
	:: total < CHANGES ->
		/* Connections with nothing to do say what they want to hear of, and are looked at
		 * again. */
		c = 0;
		do
		:: c == CONNECTIONS -> break
		:: c < CONNECTIONS ->
			if
			:: !want_stands[c] ->
#ifdef SAME_NUMBER
				atomic { number[c] = 1; want_stands[c] = true }
#else
				atomic { number[c]++; want_stands[c] = true }
#endif
				buffer1!WANT + c, number[c]
			:: want_stands[c] && renewals > 0 ->
				/* It wants to hear of something else, too: a new number. */
				atomic { renewals--; number[c]++ }
				buffer1!WANT + c, number[c]
			:: want_stands[c]
			fi;
			c++
		od;
#ifndef NO_WANT_FENCE
		FENCE(buffer1);
#endif
#ifndef NO_SECOND_LOOK
		c = 0;
		do
		:: c == CONNECTIONS -> break
		:: c < CONNECTIONS ->
			atomic {
				w = memory[WRITE + c];
				total = total + w - taken[c];
				taken[c] = w;
				c++
			}
		od;
#endif
		if
		:: total == CHANGES -> break
		:: else
		fi;
		/* The queue goes to sleep, or finds entries. */
#ifndef LATE_SEEN
		if
		:: armed && memory[BELL] == seen
		:: else -> atomic { seen = memory[BELL]; armings++; armed = true }
			buffer1!ARM, armings
		fi;
#else
		if
		:: armed
		:: !armed -> atomic { armings++; armed = true }
			buffer1!ARM, armings
		fi;
#endif
#ifndef NO_ARM_FENCE
		FENCE(buffer1);
#endif
#ifdef NO_READY_LOOK
		found = false;
#else
		found = (memory[READY_WRITE] != entries);
#endif
		if
		:: found -> buffer1!ARM, 0; armed = false
		:: else ->
#ifdef LATE_SEEN
			seen = memory[BELL];
#endif
			atomic {
				/* FUTEX_WAIT compares and queues in one step. */
				if
				:: memory[BELL] == seen -> asleep = true
				:: else
				fi
			}
			!asleep;
#ifdef LATE_SEEN
			buffer1!ARM, 0; armed = false
#endif
		fi;
		/* It is awake and takes the entries. */
#ifdef EAGER_NUMBERS
		if
		:: renewals > 0 -> skip
		:: true -> goto take
		fi;
		atomic { renewals--; number[0]++ }
		buffer1!WANT, number[0];
		FENCE(buffer1);
		number[0]++;
		buffer1!WANT, number[0];
		FENCE(buffer1);
take:
#endif
		w = memory[READY_WRITE];
		assert(w - entries <= SLOTS); /* K18 */
		do
		:: entries == w -> break
		:: entries != w ->
			atomic {
				c = memory[READY + entries % SLOTS] - 1;
				assert(c < CONNECTIONS); /* K19 */
				entries++;
				want_stands[c] = false;
				total = total + memory[WRITE + c] - taken[c];
				taken[c] = memory[WRITE + c]
			}
		od;
		buffer1!READY_READ, entries;
		atomic { c = 0; w = 0; found = false }
	od
}

init {
	atomic { run drain(buffer0); run drain(buffer1); run changer(); run reader() }
}
