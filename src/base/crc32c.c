// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "base/compiler.h"

#define POLYNOMIAL UINT32_C(0x82f63b78) /* with the lowest bit first */

static uint64_t word_at(const uint8_t *bytes)
{
	uint64_t word;

	memcpy(&word, bytes, sizeof(word));
	return le64toh(word);
}

/* --- tables ---------------------------------------------------------------------------------- */

enum { SLICES = 8 };

/* [n][byte]: what that byte adds to a checksum of which n more bytes follow. */
static uint32_t tables[SLICES][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t state = byte;

		for (int bit = 0; bit < 8; bit++) {
			state = (state >> 1) ^ (POLYNOMIAL & (0 - (state & 1)));
		}
		tables[0][byte] = state;
	}
	for (uint32_t n = 1; n < SLICES; n++) {
		for (uint32_t byte = 0; byte < 256; byte++) {
			uint32_t before = tables[n - 1][byte];

			tables[n][byte] = (before >> 8) ^ tables[0][before & 0xff];
		}
	}
}

static uint32_t by_tables(uint32_t state, const uint8_t *bytes, size_t count)
{
	pthread_once(&tables_once, fill_tables);
	for (; count >= SLICES; count -= SLICES) {
		uint64_t word = word_at(bytes) ^ state;

		state = 0;
#pragma GCC unroll 8
		for (uint32_t n = 0; n < SLICES; n++) {
			state ^= tables[SLICES - 1 - n][(word >> (8 * n)) & 0xff];
		}
		bytes += SLICES;
	}
	for (; count > 0; count--) {
		state = (state >> 8) ^ tables[0][(state ^ *bytes++) & 0xff];
	}
	return state;
}

/* --- the instruction ------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define HAS_INSTRUCTION __attribute__((target("sse4.2")))

HAS_INSTRUCTION static inline uint32_t add_word(uint32_t state, uint64_t word)
{
	return (uint32_t)_mm_crc32_u64(state, word);
}

HAS_INSTRUCTION static inline uint32_t add_byte(uint32_t state, uint8_t byte)
{
	return _mm_crc32_u8(state, byte);
}

__attribute__((target("pclmul"))) static uint64_t multiply(uint32_t a, uint32_t b)
{
	return (uint64_t)_mm_cvtsi128_si64(
		_mm_clmulepi64_si128(_mm_cvtsi64_si128(a), _mm_cvtsi64_si128(b), 0));
}

enum crc32c_way crc32c_best_way(void)
{
	if (!__builtin_cpu_supports("sse4.2")) {
		return CRC32C_TABLES;
	}
	return __builtin_cpu_supports("pclmul") ? CRC32C_MULTIPLIED : CRC32C_INSTRUCTION;
}
#elif defined(__aarch64__)
#ifdef __clang__
#define HAS_INSTRUCTION __attribute__((target("crc")))
#define CRC_WORD	__builtin_arm_crc32cd
#define CRC_BYTE	__builtin_arm_crc32cb
#else
#define HAS_INSTRUCTION __attribute__((target("+crc")))
#define CRC_WORD	__builtin_aarch64_crc32cx
#define CRC_BYTE	__builtin_aarch64_crc32cb
#endif

HAS_INSTRUCTION static inline uint32_t add_word(uint32_t state, uint64_t word)
{
	return CRC_WORD(state, word);
}

HAS_INSTRUCTION static inline uint32_t add_byte(uint32_t state, uint8_t byte)
{
	return CRC_BYTE(state, byte);
}

static uint64_t multiply(uint32_t a, uint32_t b)
{
	GMB_UNUSED(a);
	GMB_UNUSED(b);
	return 0; /* crc32c_best_way() does not choose it */
}

enum crc32c_way crc32c_best_way(void)
{
	return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0 ? CRC32C_INSTRUCTION : CRC32C_TABLES;
}
#endif

#ifdef HAS_INSTRUCTION
/*
 * The instruction takes 2 or 3 cycles and a new one can begin in each, so three stretches are done
 * side by side. To a checksum of what n bytes follow, those bytes add a multiplication by x^8n,
 * without carries and modulo the polynomial. The instruction itself multiplies its 64 bits by x^32
 * and reduces them, and the product of two numbers whose lowest bit stands for the highest power is
 * one bit short: hence x^(8n-33).
 */
enum {
	STRETCH_BYTES = 1360, /* a multiple of 8; three of them are nearly a block of 4 KiB */
	LINE_BYTES = 64,
	/* What a disk or another process has just written is in no cache of this core, and three
	 * streams at once are more than it foresees. */
	AHEAD_BYTES = 2048,
};
#define SHIFT_1 UINT32_C(0x3f70cc6f) /* x^(8 * STRETCH_BYTES - 33) */
#define SHIFT_2 UINT32_C(0x5aa1f3cf) /* x^(16 * STRETCH_BYTES - 33) */

static uint64_t multiply_by_shifts(uint32_t a, uint32_t b)
{
	uint64_t product = 0;

	for (int bit = 0; bit < 32; bit++) {
		product ^= ((uint64_t)b << bit) & (0 - (uint64_t)((a >> bit) & 1));
	}
	return product;
}

HAS_INSTRUCTION static uint32_t three_stretches(
	enum crc32c_way way, uint32_t state, const uint8_t *bytes)
{
	const uint8_t *second = bytes + STRETCH_BYTES;
	const uint8_t *third = second + STRETCH_BYTES;
	uint32_t a = state;
	uint32_t b = 0;
	uint32_t c = 0;
	uint64_t product;

	for (size_t i = 0; i < STRETCH_BYTES; i += sizeof(uint64_t)) {
		if (i % LINE_BYTES == 0) {
			__builtin_prefetch(bytes + i + AHEAD_BYTES);
			__builtin_prefetch(second + i + AHEAD_BYTES);
			__builtin_prefetch(third + i + AHEAD_BYTES);
		}
		a = add_word(a, word_at(bytes + i));
		b = add_word(b, word_at(second + i));
		c = add_word(c, word_at(third + i));
	}
	product = way == CRC32C_MULTIPLIED
			  ? multiply(a, SHIFT_2) ^ multiply(b, SHIFT_1)
			  : multiply_by_shifts(a, SHIFT_2) ^ multiply_by_shifts(b, SHIFT_1);
	return c ^ add_word(0, product);
}

HAS_INSTRUCTION static uint32_t by_instruction(
	enum crc32c_way way, uint32_t state, const uint8_t *bytes, size_t count)
{
	for (; count >= 3 * STRETCH_BYTES; count -= 3 * STRETCH_BYTES) {
		state = three_stretches(way, state, bytes);
		bytes += 3 * STRETCH_BYTES;
	}
	for (; count >= sizeof(uint64_t); count -= sizeof(uint64_t)) {
		state = add_word(state, word_at(bytes));
		bytes += sizeof(uint64_t);
	}
	for (; count > 0; count--) {
		state = add_byte(state, *bytes++);
	}
	return state;
}
#else
enum crc32c_way crc32c_best_way(void)
{
	return CRC32C_TABLES;
}
#endif

/* --- all of them ----------------------------------------------------------------------------- */

uint32_t crc32c_by(enum crc32c_way way, uint32_t crc, const void *bytes, size_t count)
{
#ifdef HAS_INSTRUCTION
	if (way != CRC32C_TABLES) {
		return ~by_instruction(way, ~crc, bytes, count);
	}
#else
	GMB_UNUSED(way);
#endif
	return ~by_tables(~crc, bytes, count);
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t count)
{
	return crc32c_by(crc32c_best_way(), crc, bytes, count);
}
