// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

size_t utf8_sequence(const void *bytes, size_t left)
{
	const uint8_t *p = bytes;
	uint32_t c;
	size_t n;

	if (p[0] < 0x80) {
		return 1;
	}
	n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
	if (p[0] < 0xc2 || p[0] > 0xf4 || left < n) {
		return 0;
	}
	c = p[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80) {
			return 0;
		}
		c = (c << 6) | (p[i] & 0x3f);
	}
	if ((n == 3 && c < 0x800) || (n == 4 && (c < 0x10000 || c > 0x10ffff)) ||
		(c >= 0xd800 && c <= 0xdfff)) {
		return 0;
	}
	return n;
}

bool utf8_valid(const void *bytes, size_t len)
{
	const uint8_t *p = bytes;

	for (size_t i = 0; i < len;) {
		size_t n = utf8_sequence(p + i, len - i);

		if (n == 0) {
			return false;
		}
		i += n;
	}
	return true;
}
