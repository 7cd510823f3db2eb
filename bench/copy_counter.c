// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a client (LD_PRELOAD): counts the bytes that the program and its libraries copy
 * with memcpy(), memmove(), mempcpy() and their checked twins, by size of the copy, and writes one
 * JSON object to the file COPY_COUNTER_FILE at the end. A payload that is copied in user space
 * shows as bytes in copies of at least SMALL_BYTES; message headers are shorter.
 *
 * Threading: any. Errors: a file that cannot be written is silently left out; the reader notices.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))

enum { SMALL_BYTES = 512 };

static _Atomic uint64_t small_bytes;
static _Atomic uint64_t large_bytes;
static _Atomic uint64_t large_copies;

EXPORTED void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
EXPORTED void *memmove(void *to, const void *from, size_t bytes);
EXPORTED void *mempcpy(void *restrict to, const void *restrict from, size_t bytes);
EXPORTED void *__memcpy_chk(
	void *restrict to, const void *restrict from, size_t bytes, size_t room);
EXPORTED void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room);

__attribute__((destructor)) static void report(void)
{
	const char *path = getenv("COPY_COUNTER_FILE");
	FILE *out = path != NULL ? fopen(path, "w") : NULL;

	if (out != NULL) {
		fprintf(out,
			"{ \"small_bytes\": %llu, \"large_bytes\": %llu, \"large_copies\": %llu "
			"}\n",
			(unsigned long long)small_bytes, (unsigned long long)large_bytes,
			(unsigned long long)large_copies);
		fclose(out);
	}
}

static void count(size_t bytes)
{
	if (bytes < SMALL_BYTES) {
		atomic_fetch_add_explicit(&small_bytes, bytes, memory_order_relaxed);
	} else {
		atomic_fetch_add_explicit(&large_bytes, bytes, memory_order_relaxed);
		atomic_fetch_add_explicit(&large_copies, 1, memory_order_relaxed);
	}
}

/* By hand: every function of the library that copies is one of those replaced here. */
static void copy_up(unsigned char *to, const unsigned char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		((volatile unsigned char *)to)[i] = from[i];
	}
}

static void copy_down(unsigned char *to, const unsigned char *from, size_t bytes)
{
	while (bytes-- > 0) {
		((volatile unsigned char *)to)[bytes] = from[bytes];
	}
}

void *memmove(void *to, const void *from, size_t bytes)
{
	count(bytes);
	if ((uintptr_t)to - (uintptr_t)from >= bytes) {
		copy_up(to, from, bytes);
	} else {
		copy_down(to, from, bytes);
	}
	return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
	count(bytes);
	copy_up(to, from, bytes);
	return to;
}

void *mempcpy(void *restrict to, const void *restrict from, size_t bytes)
{
	return (unsigned char *)memcpy(to, from, bytes) + bytes;
}

void *__memcpy_chk(void *restrict to, const void *restrict from, size_t bytes, size_t room)
{
	if (bytes > room) {
		abort();
	}
	return memcpy(to, from, bytes);
}

void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room)
{
	if (bytes > room) {
		abort();
	}
	return memmove(to, from, bytes);
}
