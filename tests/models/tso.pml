// SPDX-License-Identifier: Apache-2.0
/*
 * The memory of two processes on x86-64 (total store order).
 *
 * A store goes into the first-in-first-out store buffer of its process, and reaches memory later, at
 * any time. A load takes the value in memory: in the clan protocol no process loads a shared word
 * that it writes itself, so a load is never answered from the process's own buffer. A fence, and every
 * system call that wakes somebody, waits until the buffer is empty.
 *
 * The includer defines WORDS, the number of shared words, and BUFFER, the depth of a store buffer.
 */
byte memory[WORDS];
chan buffer0 = [BUFFER] of { byte, byte };
chan buffer1 = [BUFFER] of { byte, byte };

proctype drain(chan buffer)
{
	byte word, value;
end:	do
	:: atomic { buffer?word, value -> memory[word] = value; word = 0; value = 0 }
	od
}

#define FENCE(buffer)	empty(buffer)
