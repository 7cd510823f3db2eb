// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "base/compiler.h"

#define POLYNOMIAL UINT32_C(0x82f63b78) /* bit-reversed: the lowest bit first */

/* Prefetch distance. Data that a disk or another process has just written is not in this core's
 * caches, and the checksum loop reads it faster than the hardware prefetcher can fetch it. */
enum { AHEAD_BYTES = 2048 };

static uint64_t word_at(const uint8_t *bytes)
{
	uint64_t word;

	memcpy(&word, bytes, sizeof(word));
	return le64toh(word);
}

/* --- tables ---------------------------------------------------------------------------------- */

enum { SLICES = 8 };

/* tables[n][byte] is the contribution of this byte to a checksum if n more bytes follow it. */
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

/* --- CRC instruction ------------------------------------------------------------------------- */

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

/*
 * Sixteen pieces of 128 bits are folded side by side. Folding multiplies a piece by x^n and adds it
 * to the piece that lies n bits later. The older half of a piece is multiplied by x^(n+32) modulo
 * the polynomial, the newer half by x^(n-32). The constants lie in the lower half of a word of 64
 * bits, where the highest powers are, which multiplies by another x^32. They are shifted by one
 * bit, because a carry-less product is one bit short. The last piece that remains has the same
 * checksum as all of the data.
 */
enum { FOLD_BYTES = 256, FOLD_LINE_BYTES = 64 };

#define FOLDS __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

FOLDS static inline __m512i fold_four(__m512i from, __m512i by, __m512i into)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(from, by, 0x00),
		_mm512_clmulepi64_epi128(from, by, 0x11), into, 0x96);
}

FOLDS static inline __m128i fold_one(__m128i from, __m128i by, __m128i into)
{
	return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(from, by, 0x00),
				     _mm_clmulepi64_si128(from, by, 0x11)),
		into);
}

/* Folds count bytes into state. count: a multiple of FOLD_BYTES, not 0. */
FOLDS static uint32_t fold(uint32_t state, const uint8_t *bytes, size_t count)
{
	const __m128i by_128 = _mm_set_epi64x(0x14cd00bd6, 0x0f20c0dfe);
	const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x09e4addf8, 0x0740eef02));
	const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0b9e02b86, 0x0dcb17aa4));
	__m512i lanes[FOLD_BYTES / FOLD_LINE_BYTES];
	__m128i last;

	for (int i = 0; i < FOLD_BYTES / FOLD_LINE_BYTES; i++) {
		lanes[i] = _mm512_loadu_si512(bytes + (size_t)i * FOLD_LINE_BYTES);
	}
	lanes[0] =
		_mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
	for (size_t at = FOLD_BYTES; at < count; at += FOLD_BYTES) {
#pragma GCC unroll 4
		for (int i = 0; i < FOLD_BYTES / FOLD_LINE_BYTES; i++) {
			const uint8_t *line = bytes + at + (size_t)i * FOLD_LINE_BYTES;

			__builtin_prefetch(line + AHEAD_BYTES);
			lanes[i] = fold_four(lanes[i], by_2048, _mm512_loadu_si512(line));
		}
	}
	for (int i = 1; i < FOLD_BYTES / FOLD_LINE_BYTES; i++) {
		lanes[0] = fold_four(lanes[0], by_512, lanes[i]);
	}
	last = _mm512_castsi512_si128(lanes[0]);
	last = fold_one(last, by_128, _mm512_extracti32x4_epi32(lanes[0], 1));
	last = fold_one(last, by_128, _mm512_extracti32x4_epi32(lanes[0], 2));
	last = fold_one(last, by_128, _mm512_extracti32x4_epi32(lanes[0], 3));
	state = (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(last, 0));
	return (uint32_t)_mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(last, 1));
}

enum crc32c_way crc32c_best_way(void)
{
	if (!__builtin_cpu_supports("sse4.2")) {
		return CRC32C_TABLES;
	}
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
			       __builtin_cpu_supports("vpclmulqdq")
		       ? CRC32C_FOLDED
		       : CRC32C_INSTRUCTION;
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

enum { FOLD_BYTES = 1 };

static uint32_t fold(uint32_t state, const uint8_t *bytes, size_t count)
{
	return state;
}

enum crc32c_way crc32c_best_way(void)
{
	return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0 ? CRC32C_INSTRUCTION : CRC32C_TABLES;
}
#endif

#ifdef HAS_INSTRUCTION
/*
 * The instruction has a latency of 2 or 3 cycles, and one can start in each cycle. So three
 * stretches are computed side by side. If n bytes follow a stretch, its checksum must be multiplied
 * by x^8n modulo the polynomial. First it is multiplied by x^(8n-33), without carries. The lowest
 * bit of a word is its highest power, so the product, which has 63 bits, is already multiplied by x
 * if it is read as a word of 64 bits. The instruction then multiplies the word by x^32 and reduces
 * it.
 */
enum {
	STRETCH_BYTES = 1360, /* a multiple of 8; three stretches are nearly a block of 4 KiB */
	LINE_BYTES = 64,
};
#define SHIFT_1 UINT32_C(0x3f70cc6f) /* x^(8 * STRETCH_BYTES - 33) */
#define SHIFT_2 UINT32_C(0x5aa1f3cf) /* x^(16 * STRETCH_BYTES - 33) */

static uint64_t multiply(uint32_t a, uint32_t b)
{
	uint64_t product = 0;

	for (int bit = 0; bit < 32; bit++) {
		product ^= ((uint64_t)b << bit) & (0 - (uint64_t)((a >> bit) & 1));
	}
	return product;
}

HAS_INSTRUCTION static uint32_t three_stretches(uint32_t state, const uint8_t *bytes)
{
	const uint8_t *second = bytes + STRETCH_BYTES;
	const uint8_t *third = second + STRETCH_BYTES;
	uint32_t a = state;
	uint32_t b = 0;
	uint32_t c = 0;

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
	return c ^ add_word(0, multiply(a, SHIFT_2) ^ multiply(b, SHIFT_1));
}

HAS_INSTRUCTION static uint32_t by_instruction(
	enum crc32c_way way, uint32_t state, const uint8_t *bytes, size_t count)
{
	if (way == CRC32C_FOLDED && count >= FOLD_BYTES) {
		size_t folded = count - count % FOLD_BYTES;

		state = fold(state, bytes, folded);
		bytes += folded;
		count -= folded;
	}
	for (; count >= 3 * STRETCH_BYTES; count -= 3 * STRETCH_BYTES) {
		state = three_stretches(state, bytes);
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

/* --- selection -------------------------------------------------------------------------------- */

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
