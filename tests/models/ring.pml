// SPDX-License-Identifier: Apache-2.0
/*
 * A message ring of docs/protocol/clan.md, section 4: messages of one and four slots, half the ring, pads, indices that
 * wrap, publishing in batches. The reader must get every message whole and in order; neither side may
 * wait for ever.
 *
 * mutant: PUBLISH_FIRST        write is stored before the slots
 * mutant: EARLY_READ           read is stored before the message is copied
 * mutant: NO_PAD_ROOM          the room that a pad takes is not counted
 * mutant: LAZY_READ            read is stored only when half the ring has been taken
 * mutant: LATE_PUBLISH         the writer waits for room with messages that it has not published
 */
#define WORDS	10
#define BUFFER	5

#define SLOT	0 /* to 7: sequence << 2 | kind */
#define WRITE	8
#define READ	9

#define PAD	0
#define SHORT	1
#define LONG	2
#define BODY	3 /* of a long message the head and the last slot are looked at */

#include "tso.pml"

#define SLOTS	 8
#define MESSAGES 4
#define INDEX(x) ((x) & 15) /* the counts wrap, at 16 instead of 2^32 */
#define PLACE(x) ((x) & 7)

proctype writer(byte start)
{
	byte sent = 0, write = start, published = start, read_seen = start, sequence = 0, size, pad, need;

	do
	:: sent == MESSAGES -> break
	:: sent < MESSAGES ->
		atomic {
			if
			:: size = 1
			:: size = 4
			fi;
			if
			:: PLACE(write) + size > SLOTS -> pad = SLOTS - PLACE(write)
			:: else -> pad = 0
			fi;
#ifdef NO_PAD_ROOM
			need = size;
#else
			need = size + pad;
#endif
		}
		do
		:: SLOTS - INDEX(write - read_seen) >= need -> break
		:: else ->
#ifndef LATE_PUBLISH
			if
			:: published != write -> buffer0!WRITE, write; published = write
			:: else
			fi;
#endif
			/* Waits for a change of read. */
			atomic {
				memory[READ] != read_seen;
				assert(INDEX(memory[READ] - read_seen) <= INDEX(write - read_seen)); /* K12 */
				read_seen = memory[READ]
			}
		od;
#ifdef PUBLISH_FIRST
		published = INDEX(write + pad + size);
		buffer0!WRITE, published;
#endif
		if
		:: pad > 0 ->
			atomic { buffer0!SLOT + PLACE(write), sequence << 2 | PAD;
				 sequence++; write = INDEX(write + pad) }
		:: else
		fi;
		if
		:: size == 1 ->
			atomic { buffer0!SLOT + PLACE(write), sequence << 2 | SHORT }
		:: size == 4 ->
			atomic { buffer0!SLOT + PLACE(write), sequence << 2 | LONG }
			atomic { buffer0!SLOT + PLACE(write + 3), sequence << 2 | BODY }
		fi;
		atomic { write = INDEX(write + size); sequence++; sent++ }
		if
		:: published != write -> buffer0!WRITE, write; published = write
		:: sent < MESSAGES /* in a batch with the next */
		fi
	od
}

proctype reader(byte start)
{
	byte got = 0, read = start, published = start, write_seen = start, sequence = 0, head;

	do
	:: got == MESSAGES -> break
	:: got < MESSAGES && read == write_seen ->
		if
		:: memory[WRITE] == write_seen ->
#ifndef LAZY_READ
			if
			:: published != read -> buffer1!READ, read; published = read
			:: else
			fi;
#endif
			memory[WRITE] != write_seen
		:: else
		fi;
		atomic {
			assert(INDEX(memory[WRITE] - read) <= SLOTS); /* K13 */
			write_seen = memory[WRITE]
		}
	:: got < MESSAGES && read != write_seen ->
		head = memory[SLOT + PLACE(read)];
		assert(head >> 2 == sequence); /* K15 */
		if
		:: (head & 3) == PAD -> atomic { read = INDEX(read + SLOTS - PLACE(read)) }
		:: (head & 3) == SHORT -> atomic { read = INDEX(read + 1); got++ }
		:: (head & 3) == LONG ->
#ifdef EARLY_READ
			published = INDEX(read + 4);
			buffer1!READ, published;
#endif
			atomic { assert(memory[SLOT + PLACE(read + 3)] == (sequence << 2 | BODY));
				 read = INDEX(read + 4); got++ }
		:: else -> assert(false)
		fi;
		atomic { sequence++; head = 0 }
		if
		:: INDEX(read - published) >= SLOTS / 2 -> buffer1!READ, read; published = read
		:: else
		fi
	od
}

init {
	byte start;

	/* At any place of the ring, and of the counts. */
	select(start : 0 .. 15);
	atomic {
		memory[WRITE] = start;
		memory[READ] = start;
		run drain(buffer0);
		run drain(buffer1);
		run writer(start);
		run reader(start)
	}
}
