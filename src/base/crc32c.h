// SPDX-License-Identifier: Apache-2.0
/*
 * CRC-32C (Castagnoli; RFC 3720, appendix B.4), by which what comes back from a disk is known to be
 * what was written. Uses the instruction of SSE 4.2 where the processor has it.
 *
 * Threading: pure function. Ownership: none. Errors: none.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Of bytes that follow those whose checksum is crc; 0 to begin. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t count);
