// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/log.h"

static const char byte_units[] = "KMGTPE";

static const struct {
	const char *name;
	uint64_t ns;
} time_units[] = {
	{ "ns", UINT64_C(1) },
	{ "us", UINT64_C(1000) },
	{ "ms", UINT64_C(1000000) },
	{ "s", UINT64_C(1000000000) },
	{ "min", UINT64_C(60000000000) },
	{ "h", UINT64_C(3600000000000) },
};

/* The text as it is shown in messages. */
struct shown {
	char text[96];
};

static const char *show(struct shown *shown, const char *text)
{
	return log_escape(shown->text, sizeof(shown->text), text, strlen(text));
}

/* Reads decimal digits; *rest is what follows them. -EINVAL without digits, -ERANGE too large. */
static int parse_digits(const char *text, uint64_t *value, const char **rest)
{
	uint64_t v = 0;
	const char *c = text;

	for (; *c >= '0' && *c <= '9'; c++) {
		if (!checked_mul_u64(v, 10, &v) || !checked_add_u64(v, (uint64_t)(*c - '0'), &v)) {
			return -ERANGE;
		}
	}
	*value = v;
	*rest = c;
	return c == text ? -EINVAL : 0;
}

/* The power of two that the suffix stands for, or -1. */
static int byte_unit_shift(const char *suffix)
{
	const char *unit;

	if (suffix[0] == '\0' || strcasecmp(suffix, "B") == 0) {
		return 0;
	}
	for (unit = byte_units; *unit != '\0'; unit++) {
		if (suffix[0] == *unit || suffix[0] == (*unit | 0x20)) {
			break;
		}
	}
	if (*unit == '\0' || (suffix[1] != '\0' && strcasecmp(suffix + 1, "iB") != 0 &&
				     strcasecmp(suffix + 1, "B") != 0)) {
		return -1;
	}
	return 10 * (int)(unit - byte_units + 1);
}

int units_parse_bytes(const char *text, uint64_t *bytes, struct error *error)
{
	struct shown shown;
	const char *suffix;
	uint64_t value;
	int rc = parse_digits(text, &value, &suffix);
	int shift = rc == 0 ? byte_unit_shift(suffix) : 0;

	if (rc == -EINVAL || shift < 0) {
		return error_set(error, -EINVAL,
			"'%s' is not a size; write bytes or a number with K, M, G, T, P or E, such "
			"as 64M",
			show(&shown, text));
	}
	if (rc < 0 || !checked_mul_u64(value, UINT64_C(1) << shift, &value)) {
		return error_set(error, -ERANGE, "the size '%s' is too large", show(&shown, text));
	}
	*bytes = value;
	return 0;
}

int units_parse_time(const char *text, uint64_t *time_ns, struct error *error)
{
	struct shown shown;
	const char *suffix;
	uint64_t value;
	int rc = parse_digits(text, &value, &suffix);

	if (rc == 0 && value == 0 && *suffix == '\0') {
		*time_ns = 0;
		return 0;
	}
	for (size_t i = 0; rc == 0 && i < ARRAY_COUNT(time_units); i++) {
		if (strcmp(suffix, time_units[i].name) != 0) {
			continue;
		}
		if (!checked_mul_u64(value, time_units[i].ns, &value) || value > INT64_MAX) {
			rc = -ERANGE;
			break;
		}
		*time_ns = value;
		return 0;
	}
	if (rc == -ERANGE) {
		return error_set(error, -ERANGE, "the time '%s' is too long", show(&shown, text));
	}
	return error_set(error, -EINVAL,
		"'%s' is not a time; write a number with ns, us, ms, s, min or h, such as 10ms",
		show(&shown, text));
}

int units_parse_seconds(const char *text, uint64_t *time_ns, struct error *error)
{
	struct shown shown;
	double seconds;
	char *end;
	int rc = units_parse_time(text, time_ns, error);

	if (rc != -EINVAL) {
		return rc;
	}
	/* strtod() also knows signs, spaces, exponents and words. */
	seconds = strtod(text, &end);
	if (text[0] == '\0' || strspn(text, "0123456789.") != strlen(text) || *end != '\0') {
		return error_set(error, -EINVAL,
			"'%s' is not a number of seconds, nor a time such as 500ms",
			show(&shown, text));
	}
	if (seconds * 1e9 >= (double)INT64_MAX) {
		return error_set(error, -ERANGE, "the time '%s' is too long", show(&shown, text));
	}
	*time_ns = (uint64_t)(seconds * 1e9 + 0.5);
	return 0;
}

int units_parse_count(
	const char *text, uint32_t min, uint32_t max, uint32_t *count, struct error *error)
{
	struct shown shown;
	const char *rest;
	uint64_t value;
	int rc = parse_digits(text, &value, &rest);

	if (rc == -EINVAL || (rc == 0 && *rest != '\0')) {
		return error_set(error, -EINVAL, "'%s' is not a whole number from %u to %u",
			show(&shown, text), min, max);
	}
	if (rc < 0 || value < min || value > max) {
		return error_set(error, -ERANGE, "%s is out of range; it can be from %u to %u",
			show(&shown, text), min, max);
	}
	*count = (uint32_t)value;
	return 0;
}

const char *units_format_bytes(char out[UNITS_TEXT_BYTES], uint64_t bytes)
{
	int unit = -1;

	while (bytes != 0 && (bytes & 1023) == 0 && byte_units[unit + 1] != '\0') {
		bytes >>= 10;
		unit++;
	}
	snprintf(out, UNITS_TEXT_BYTES, "%llu%.*s", (unsigned long long)bytes, unit >= 0,
		&byte_units[unit >= 0 ? unit : 0]);
	return out;
}
