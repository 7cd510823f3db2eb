// SPDX-License-Identifier: Apache-2.0
/*
 * The event queue of docs/protocol/clan.md, section 7: sources that are enabled, queued or blocked. A
 * peer raises two sources; the program takes an event, does all or a part of the work, and rearms the
 * source. No event may be lost, and no source may be in the queue twice.
 *
 * mutant: NO_LOOK              rearming does not look at the source again
 * mutant: NO_FENCE             no fence between want and that look
 * mutant: STAYS_ENABLED        a source that was queued can fire again
 * mutant: ENABLED_WHEN_GIVEN   a source is enabled when its event is given, and fires no more then
 * mutant: EARLY_LOOK           the source is looked at before it is enabled
 */
#define WORDS	6
#define BUFFER	4

/* Words of the peer. */
#define WRITE	0 /* and 1 */
#define READY	2 /* and 3: the number of the want that was answered */
/* Words of the queue. */
#define WANT	4 /* and 5 */

#include "tso.pml"

#define CHANGES	4

mtype = { ENABLED, QUEUED, BLOCKED };

proctype peer()
{
	byte left = CHANGES, c, w, write[2], answered[2];

	do
	:: left == 0 -> break
	:: left > 0 ->
		atomic {
			if
			:: c = 0
			:: c = 1
			fi;
			left--;
			write[c]++
		}
		buffer0!WRITE + c, write[c];
		FENCE(buffer0);
		w = memory[WANT + c];
		if
		:: w != answered[c] -> atomic { answered[c] = w; buffer0!READY + c, w }
		:: else
		fi;
		atomic { c = 0; w = 0 }
	od
}

inline fire(c)
{
	if
	:: state[c] == ENABLED ->
		assert(nfull(queue)); /* it has a place for every source */
		queue!c;
#ifndef STAYS_ENABLED
		state[c] = QUEUED
#endif
	:: else
	fi
}

/* What clan_rearm(), or a receive that found nothing, does. */
inline enable(c)
{
#ifdef EARLY_LOOK
	found = (memory[WRITE + c] != taken[c]);
#endif
	atomic {
		state[c] = ENABLED;
		if
		:: number[c] == seen[c] -> number[c]++; buffer1!WANT + c, number[c]
		:: else
		fi
	}
#ifndef NO_FENCE
	FENCE(buffer1);
#endif
#ifndef EARLY_LOOK
	found = (memory[WRITE + c] != taken[c]);
#endif
#ifndef NO_LOOK
	atomic {
		if
		:: found -> fire(c)
		:: else
		fi;
		found = false
	}
#endif
}

proctype program()
{
	chan queue = [2] of { byte };
	mtype state[2] = BLOCKED;
	byte total = 0, number[2], seen[2], taken[2], c;
	bool found;

	enable(0);
	enable(1);
	do
	:: total == CHANGES -> break
	:: total < CHANGES && nempty(queue) ->
		queue?c;
#ifndef ENABLED_WHEN_GIVEN
		state[c] = BLOCKED;
#else
		state[c] = ENABLED;
#endif
		if
		:: memory[WRITE + c] != taken[c] -> atomic { total++; taken[c]++ }
		:: atomic {
			total = total + memory[WRITE + c] - taken[c];
			taken[c] = memory[WRITE + c]
		   }
		fi;
#ifndef ENABLED_WHEN_GIVEN
		enable(c)
#endif
	:: total < CHANGES && (empty(queue) || memory[READY] != seen[0] ||
		memory[READY + 1] != seen[1]) ->
		/* The library sees an answer of the peer, or sleeps until there is one. */
		atomic {
			if
			:: memory[READY] != seen[0] -> c = 0
			:: memory[READY + 1] != seen[1] -> c = 1
			fi;
			seen[c] = memory[READY + c]
		}
		found = (memory[WRITE + c] != taken[c]);
		atomic {
			if
			:: found -> fire(c)
			:: else -> skip
			fi;
			found = false
		}
		if
		:: state[c] == ENABLED -> enable(c)
		:: else
		fi
	od
}

init {
	atomic { run drain(buffer0); run drain(buffer1); run peer(); run program() }
}
