// SPDX-License-Identifier: Apache-2.0
/*
 * Reasons that are added to a want, docs/protocol/clan.md, section 6.2. One connection, two kinds of
 * changes: the reader wants to hear of the first kind, later of both, while the changer may be answering
 * it. The number of a want stays until it is answered. A change that nobody takes leaves the reader
 * asleep, and a ready ring with more than two entries breaks K17.
 *
 * mutant: NEW_NUMBERS          reasons that are added get a new number each time
 * mutant: NO_CHANGE_FENCE      no fence between the change and the look at want
 * mutant: NO_WANT_FENCE        no fence between want and the second look
 * mutant: NO_SECOND_LOOK       the reader does not look again when it has added a reason
 * mutant: SAME_NUMBER          a want that was answered keeps its number
 */
#define WORDS	8
#define BUFFER	4

/* Words of the changer. */
#define WRITE	0 /* and 1: one per kind */
#define READY_WRITE 2
/* Words of the reader. */
#define WANT	3 /* number << 2 | kinds */
#define READY_READ 4

#include "tso.pml"

#define CHANGES	4
#define SLOTS	2

proctype changer()
{
	byte left = CHANGES, push = 0, answered = 0, kind, w, write[2];

	do
	:: left == 0 -> break
	:: left > 0 ->
		atomic {
			if
			:: kind = 0
			:: kind = 1
			fi;
			left--;
			write[kind]++
		}
		buffer0!WRITE + kind, write[kind];
#ifndef NO_CHANGE_FENCE
		FENCE(buffer0);
#endif
		w = memory[WANT];
		if
		:: (w & (1 << kind)) != 0 && w >> 2 != answered ->
			atomic {
				answered = w >> 2;
				assert(push - memory[READY_READ] < SLOTS); /* K17 */
				push++
			}
			buffer0!READY_WRITE, push
		:: else
		fi;
		atomic { kind = 0; w = 0 }
	od
}

proctype reader()
{
	byte taken[2], number = 0, kinds = 0, entries = 0, total = 0, w;
	bool answered = true;

	do
	:: total == CHANGES -> break
	:: else ->
		/* As in shm_want(): the first kind at least; before it sleeps, both. */
		if
		:: answered ->
#ifdef SAME_NUMBER
			number = 1;
#else
			number++;
#endif
			answered = false;
			if
			:: kinds = 1
			:: kinds = 3
			fi
		:: !answered && kinds == 1 ->
			kinds = 3;
#ifdef NEW_NUMBERS
			number++
#endif
		:: else -> goto sleep
		fi;
		buffer1!WANT, number << 2 | kinds;
#ifndef NO_WANT_FENCE
		FENCE(buffer1);
#endif
#ifdef NO_SECOND_LOOK
		goto next;
#endif
		goto look;
sleep:		memory[READY_WRITE] != entries;
		atomic {
			entries = memory[READY_WRITE];
			answered = true
		}
		buffer1!READY_READ, entries;
		/* What it does not want to hear of yet, it does not look at, either. */
look:		atomic {
			total = total + memory[WRITE] - taken[0];
			taken[0] = memory[WRITE];
			if
			:: kinds == 3 ->
				total = total + memory[WRITE + 1] - taken[1];
				taken[1] = memory[WRITE + 1]
			:: else
			fi
		}
next:		skip
	od
}

init {
	atomic { run drain(buffer0); run drain(buffer1); run changer(); run reader() }
}
