// SPDX-License-Identifier: Apache-2.0
/*
 * CRC-32C (Castagnoli; RFC 3720, appendix B.4), by which what comes back from a disk is known to be
 * what was written. Uses the instructions of SSE 4.2 or ARMv8 and of PCLMULQDQ where the processor
 * has them: 24 GB/s of what is in its cache, against 10 with one instruction after the other, and
 * 2 from tables.
 *
 * Threading: pure functions. Ownership: none. Errors: none.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* How it is computed. A processor has all ways up to its best one. */
enum crc32c_way {
	CRC32C_TABLES,	    /* 8 bytes at a time */
	CRC32C_INSTRUCTION, /* SSE 4.2, or the CRC instructions of ARMv8 */
	CRC32C_MULTIPLIED,  /* the same with PCLMULQDQ */
};

enum crc32c_way crc32c_best_way(void);

/* Of bytes that follow those whose checksum is crc; 0 to begin. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t count);
/* The same, in a way that the processor has; for tests. */
uint32_t crc32c_by(enum crc32c_way way, uint32_t crc, const void *bytes, size_t count);
