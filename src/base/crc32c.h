// SPDX-License-Identifier: Apache-2.0
/*
 * CRC-32C (Castagnoli; RFC 3720, appendix B.4), by which what comes back from a disk is known to be
 * what was written. Uses what the processor has. Measured on one of 2.6 GHz, of what is in its
 * cache (and of what another core has just written): tables 2 GB/s, SSE 4.2 17, with PCLMULQDQ 24
 * (18), with VPCLMULQDQ 100 (28).
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
	CRC32C_FOLDED,	    /* AVX-512 with VPCLMULQDQ */
};

enum crc32c_way crc32c_best_way(void);

/* Of bytes that follow those whose checksum is crc; 0 to begin. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t count);
/* The same, in a way that the processor has; for tests. */
uint32_t crc32c_by(enum crc32c_way way, uint32_t crc, const void *bytes, size_t count);
