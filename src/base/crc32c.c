// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <stdbool.h>
#include <string.h>
#ifdef __x86_64__
#include <nmmintrin.h>
#include <wmmintrin.h>
#endif

#include "base/compiler.h"

#define POLYNOMIAL UINT32_C(0x82f63b78) /* with the lowest bit first */

static uint32_t by_bits(uint32_t state, const uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		state ^= bytes[i];
		for (int bit = 0; bit < 8; bit++) {
			state = (state >> 1) ^ (POLYNOMIAL & (0 - (state & 1)));
		}
	}
	return state;
}

#ifdef __x86_64__
/*
 * The instruction takes 3 cycles and a new one can begin in each, so three stretches are done side
 * by side. To a checksum of what n bytes follow, those bytes add a multiplication by x^8n, without
 * carries and modulo the polynomial. The instruction itself multiplies its 64 bits by x^32 and
 * reduces them, and the product of two numbers whose lowest bit stands for the highest power is one
 * bit short: hence x^(8n-33).
 */
enum {
	STRETCH_BYTES = 1360, /* a multiple of 8; three of them are nearly a block of 4 KiB */
	LINE_BYTES = 64,
	/* What a disk or another process has just written is in no cache of this core, and three
	 * streams at once are more than it foresees. */
	AHEAD_BYTES = 2048,
};
#define SHIFT_1 UINT64_C(0x3f70cc6f) /* x^(8 * STRETCH_BYTES - 33) */
#define SHIFT_2 UINT64_C(0x5aa1f3cf) /* x^(16 * STRETCH_BYTES - 33) */

static uint64_t word_at(const uint8_t *bytes)
{
	uint64_t word;

	memcpy(&word, bytes, sizeof(word));
	return word;
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t three_stretches(
	uint32_t state, const uint8_t *bytes)
{
	const uint8_t *second = bytes + STRETCH_BYTES;
	const uint8_t *third = second + STRETCH_BYTES;
	uint64_t a = state;
	uint64_t b = 0;
	uint64_t c = 0;
	__m128i product;

	for (size_t i = 0; i < STRETCH_BYTES; i += sizeof(uint64_t)) {
		if (i % LINE_BYTES == 0) {
			__builtin_prefetch(bytes + i + AHEAD_BYTES);
			__builtin_prefetch(second + i + AHEAD_BYTES);
			__builtin_prefetch(third + i + AHEAD_BYTES);
		}
		a = _mm_crc32_u64(a, word_at(bytes + i));
		b = _mm_crc32_u64(b, word_at(second + i));
		c = _mm_crc32_u64(c, word_at(third + i));
	}
	product = _mm_xor_si128(_mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a),
					_mm_cvtsi64_si128(SHIFT_2), 0),
		_mm_clmulepi64_si128(
			_mm_cvtsi64_si128((long long)b), _mm_cvtsi64_si128(SHIFT_1), 0));
	return (uint32_t)(c ^ _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product)));
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t by_instruction(
	uint32_t state, const uint8_t *bytes, size_t count)
{
	uint64_t wide;

	for (; count >= 3 * STRETCH_BYTES; count -= 3 * STRETCH_BYTES) {
		state = three_stretches(state, bytes);
		bytes += 3 * STRETCH_BYTES;
	}
	wide = state;
	for (; count >= sizeof(uint64_t); count -= sizeof(uint64_t)) {
		wide = _mm_crc32_u64(wide, word_at(bytes));
		bytes += sizeof(uint64_t);
	}
	state = (uint32_t)wide;
	for (; count > 0; count--) {
		state = _mm_crc32_u8(state, *bytes++);
	}
	return state;
}

static bool has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0;
}
#else
static uint32_t by_instruction(uint32_t state, const uint8_t *bytes, size_t count)
{
	return by_bits(state, bytes, count);
}

static bool has_instruction(void)
{
	return false;
}
#endif

uint32_t crc32c(uint32_t crc, const void *bytes, size_t count)
{
	return has_instruction() ? ~by_instruction(~crc, bytes, count)
				 : ~by_bits(~crc, bytes, count);
}
