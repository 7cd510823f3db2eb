// SPDX-License-Identifier: Apache-2.0
#include "store/parse.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/text.h"

enum { QUANTITY_BYTES = 32 }; /* longer ones do not fit 64 bits */

bool store_parse_count(const char *text, size_t len, uint64_t *value)
{
	uint64_t sum = 0;

	if (len == 0) {
		return false;
	}
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9') {
			return false;
		}
		if (!checked_mul_u64(sum, 10, &sum) ||
			!checked_add_u64(sum, (uint64_t)(text[i] - '0'), &sum)) {
			return false;
		}
	}
	*value = sum;
	return true;
}

/* A terminated copy for the parsers of base/text.h. False when no quantity has such bytes. */
static bool copy_quantity(char out[QUANTITY_BYTES], const char *text, size_t len)
{
	if (len >= QUANTITY_BYTES || memchr(text, '\0', len) != NULL) {
		return false;
	}
	memcpy(out, text, len);
	out[len] = '\0';
	return true;
}

bool store_parse_size(const char *text, size_t len, uint64_t *bytes)
{
	char copy[QUANTITY_BYTES];

	return copy_quantity(copy, text, len) && units_parse_bytes(copy, bytes, NULL) == 0;
}

bool store_parse_time(const char *text, size_t len, uint64_t *ns)
{
	char copy[QUANTITY_BYTES];

	return copy_quantity(copy, text, len) && units_parse_time(copy, ns, NULL) == 0;
}

int store_parse_spec_size(
	const char *spec, const char *size_text, uint64_t *bytes, struct error *error)
{
	uint64_t size;

	if (!store_parse_size(size_text, strlen(size_text), &size)) {
		return error_set(error, -EINVAL,
			"'%s': expected a size behind the colon, in bytes or with K, M, G, T, P or "
			"E, "
			"for example 64M (a file of that name: write ./%s)",
			spec, spec);
	}
	if (size == 0 || size > INT64_MAX) {
		return error_set(error, -EINVAL,
			"'%s': the size must be at least 1 byte and less than 8E", spec);
	}
	*bytes = size;
	return 0;
}
