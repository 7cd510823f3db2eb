// SPDX-License-Identifier: Apache-2.0
/*
 * CRC-32C (Castagnoli; RFC 3720, appendix B.4), which verifies that data read from a disk is the
 * data that was written. Uses the processor's instructions if there are any.
 *
 * Throughput in GB/s on a 2.6 GHz processor for data in its own cache (in parentheses: for data
 * that another core has just written): tables 2, SSE 4.2 17, AVX-512 with VPCLMULQDQ 100 (28).
 *
 * Threading: pure functions. Ownership: none. Errors: none.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Implementations, in ascending order of speed. A processor that supports one also supports all
 * slower ones. */
enum crc32c_way {
	CRC32C_TABLES,	    /* 8 bytes at a time */
	CRC32C_INSTRUCTION, /* SSE 4.2, or the CRC instructions of ARMv8 */
	CRC32C_FOLDED,	    /* AVX-512 with VPCLMULQDQ */
};

enum crc32c_way crc32c_best_way(void);

/* Returns the checksum of all bytes so far. crc: checksum of the bytes before these; 0 for the
 * first bytes. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t count);
/* Like crc32c(), but with a given implementation, which the processor must support; for tests. */
uint32_t crc32c_by(enum crc32c_way way, uint32_t crc, const void *bytes, size_t count);
