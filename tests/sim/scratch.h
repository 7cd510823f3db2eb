// SPDX-License-Identifier: Apache-2.0
/*
 * A large buffer that is used many times. AddressSanitizer gives each large allocation back to the
 * kernel, and then page faults take more time than the test. A scratch buffer keeps its memory, and
 * the sanitizer finds accesses behind its end and after scratch_put() nevertheless.
 *
 * Threading: one thread. Ownership: the caller's struct owns the memory, until the process ends.
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "base/compiler.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

struct scratch {
	uint8_t *bytes;
	size_t room;
	size_t used; /* 0: not in use; the rest is poisoned */
};

/* Returns len bytes (at least 1) with any contents. One user at a time. */
static inline uint8_t *scratch_get(struct scratch *scratch, size_t len)
{
	GMB_ASSERT(len > 0 && scratch->used == 0);
	scratch->used = len;
	if (scratch->bytes == NULL || len > scratch->room) {
		free(scratch->bytes);
		scratch->room = MAX(len, 2 * scratch->room);
		scratch->bytes = malloc(scratch->room);
		GMB_ASSERT(scratch->bytes != NULL);
		ASAN_POISON_MEMORY_REGION(scratch->bytes, scratch->room);
	}
	ASAN_UNPOISON_MEMORY_REGION(scratch->bytes, len);
	return scratch->bytes;
}

/* Ends the use of the bytes. */
static inline void scratch_put(struct scratch *scratch)
{
	ASAN_POISON_MEMORY_REGION(scratch->bytes, scratch->used);
	scratch->used = 0;
}
