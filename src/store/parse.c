// SPDX-License-Identifier: Apache-2.0
#include "store/parse.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"

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

/* The length of the leading digits. */
static size_t digits(const char *text, size_t len)
{
	size_t count = 0;

	while (count < len && text[count] >= '0' && text[count] <= '9') {
		count++;
	}
	return count;
}

bool store_parse_size(const char *text, size_t len, uint64_t *bytes)
{
	static const char units[] = "KMGTPE";
	static const char units_small[] = "kmgtpe";
	size_t count = digits(text, len);
	uint64_t value;
	const char *unit;
	unsigned power;

	if (!store_parse_count(text, count, &value)) {
		return false;
	}
	if (count == len) {
		*bytes = value;
		return true;
	}
	if (count + 1 != len || text[count] == '\0') {
		return false;
	}
	unit = strchr(units, text[count]);
	if (unit != NULL) {
		power = (unsigned)(unit - units) + 1;
	} else {
		unit = strchr(units_small, text[count]);
		if (unit == NULL) {
			return false;
		}
		power = (unsigned)(unit - units_small) + 1;
	}
	if (!checked_mul_u64(value, UINT64_C(1) << (10 * power), &value)) {
		return false;
	}
	*bytes = value;
	return true;
}

bool store_parse_time(const char *text, size_t len, uint64_t *ns)
{
	static const struct {
		const char *name;
		uint64_t ns;
	} units[] = {
		{ "ns", 1 },
		{ "us", UINT64_C(1000) },
		{ "ms", UINT64_C(1000000) },
		{ "s", UINT64_C(1000000000) },
	};
	size_t count = digits(text, len);
	uint64_t scale = 0;
	uint64_t value;

	if (!store_parse_count(text, count, &value)) {
		return false;
	}
	for (size_t i = 0; i < ARRAY_COUNT(units); i++) {
		if (strlen(units[i].name) == len - count &&
			memcmp(text + count, units[i].name, len - count) == 0) {
			scale = units[i].ns;
		}
	}
	if (scale == 0 || !checked_mul_u64(value, scale, &value)) {
		return false;
	}
	*ns = value;
	return true;
}

int store_parse_spec_size(
	const char *spec, const char *size_text, uint64_t *bytes, struct error *error)
{
	uint64_t size;

	if (!store_parse_size(size_text, strlen(size_text), &size)) {
		return error_set(error, -EINVAL,
			"'%s': expected a size behind the colon, in bytes or with K, M, G or T, "
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
