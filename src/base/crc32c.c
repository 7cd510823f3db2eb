// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <stdbool.h>
#include <string.h>

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
__attribute__((target("sse4.2"))) static uint32_t by_instruction(
	uint32_t state, const uint8_t *bytes, size_t count)
{
	uint64_t wide = state;

	for (; count >= sizeof(uint64_t); count -= sizeof(uint64_t)) {
		uint64_t word;

		memcpy(&word, bytes, sizeof(word));
		wide = __builtin_ia32_crc32di(wide, word);
		bytes += sizeof(word);
	}
	state = (uint32_t)wide;
	for (; count > 0; count--) {
		state = __builtin_ia32_crc32qi(state, *bytes++);
	}
	return state;
}

static bool has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2") != 0;
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
