// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/compiler.h"
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

int text_hex_digit(char c)
{
	if (c >= '0' && c <= '9') {
		return c - '0';
	}
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool text_same(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Parses decimal digits; *rest is set to the text after them. Returns -EINVAL without digits,
 * -ERANGE if the number is too large. */
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

/* Returns the binary logarithm of the suffix's factor, or -1. */
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
	const char *suffix;
	uint64_t value;
	int rc = parse_digits(text, &value, &suffix);
	int shift = rc == 0 ? byte_unit_shift(suffix) : 0;

	if (rc == -EINVAL || shift < 0) {
		return error_set(error, -EINVAL,
			"'%s' is not a size; write a number of bytes, or a number with K, M, G, T, "
			"P or E, such as 64M",
			quote(text));
	}
	if (rc < 0 || !checked_mul_u64(value, UINT64_C(1) << shift, &value)) {
		return error_set(error, -ERANGE, "the size '%s' is too large", quote(text));
	}
	*bytes = value;
	return 0;
}

int units_parse_time(const char *text, uint64_t *time_ns, struct error *error)
{
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
		return error_set(error, -ERANGE, "the time '%s' is too long", quote(text));
	}
	return error_set(error, -EINVAL,
		"'%s' is not a time; write a number with ns, us, ms, s, min or h, such as 10ms",
		quote(text));
}

int units_parse_seconds(const char *text, uint64_t *time_ns, struct error *error)
{
	double seconds;
	char *end;
	int rc = units_parse_time(text, time_ns, error);

	if (rc != -EINVAL) {
		return rc;
	}
	/* strtod() also accepts signs, spaces, exponents and words, so the characters are checked
	 * too. */
	seconds = strtod(text, &end);
	if (text[0] == '\0' || strspn(text, "0123456789.") != strlen(text) || *end != '\0') {
		return error_set(error, -EINVAL,
			"'%s' is neither a number of seconds nor a time such as 500ms",
			quote(text));
	}
	if (seconds * 1e9 >= (double)INT64_MAX) {
		return error_set(error, -ERANGE, "the time '%s' is too long", quote(text));
	}
	*time_ns = (uint64_t)(seconds * 1e9 + 0.5);
	return 0;
}

int units_parse_count(
	const char *text, uint32_t min, uint32_t max, uint32_t *count, struct error *error)
{
	const char *rest;
	uint64_t value;
	int rc = parse_digits(text, &value, &rest);

	if (rc == -EINVAL || (rc == 0 && *rest != '\0')) {
		return error_set(error, -EINVAL, "'%s' is not a whole number from %u to %u",
			quote(text), min, max);
	}
	if (rc < 0 || value < min || value > max) {
		return error_set(error, -ERANGE, "%s is out of range; it must be from %u to %u",
			quote(text), min, max);
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

const char *units_human_bytes(char out[UNITS_TEXT_BYTES], uint64_t bytes)
{
	static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 1023.5 && unit + 1 < ARRAY_COUNT(units)) {
		value /= 1024;
		unit++;
	}
	snprintf(out, UNITS_TEXT_BYTES, value < 9.95 && unit > 0 ? "%.1f %s" : "%.0f %s", value,
		units[unit]);
	return out;
}

enum { WORD_BYTES_MAX = 63, MISTAKES_MAX = 3, PREFIX_BYTES_MIN = 3 };

void near_begin(struct near *near, const char *word)
{
	*near = (struct near){ .word = word, .distance = UINT32_MAX };
}

/*
 * rows[i][k] is the distance between the first i letters of a and the first k letters of b (optimal
 * string alignment). Only the last three rows are kept in memory.
 */
uint32_t near_distance(const char *a, const char *b)
{
	uint32_t rows[3][WORD_BYTES_MAX + 1];
	size_t a_bytes = strlen(a);
	size_t b_bytes = strlen(b);

	if (a_bytes > WORD_BYTES_MAX || b_bytes > WORD_BYTES_MAX) {
		return UINT32_MAX;
	}
	for (size_t i = 0; i <= a_bytes; i++) {
		uint32_t *row = rows[i % 3];
		const uint32_t *above = rows[(i + 2) % 3];
		const uint32_t *before = rows[(i + 1) % 3];

		for (size_t k = 0; k <= b_bytes; k++) {
			if (i == 0 || k == 0) {
				row[k] = (uint32_t)(i + k);
				continue;
			}
			row[k] = MIN(above[k], row[k - 1]) + 1;
			row[k] = MIN(row[k], above[k - 1] + (a[i - 1] != b[k - 1]));
			if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1]) {
				row[k] = MIN(row[k], before[k - 2] + 1);
			}
		}
	}
	return rows[a_bytes % 3][b_bytes];
}

void near_try(struct near *near, const char *name)
{
	size_t word_bytes = strlen(near->word);
	size_t longer = MAX(word_bytes, strlen(name));
	uint32_t mistakes_max = (uint32_t)MIN(longer / 3, (size_t)MISTAKES_MAX);
	uint32_t distance = near_distance(near->word, name);

	if (word_bytes >= PREFIX_BYTES_MIN && strncmp(near->word, name, word_bytes) == 0) {
		mistakes_max = UINT32_MAX - 1;
	}
	if (distance <= mistakes_max && distance < near->distance) {
		near->name = name;
		near->distance = distance;
	}
}

const char *near_text(const struct near *near, const char *prefix, char out[NEAR_TEXT_BYTES])
{
	out[0] = '\0';
	if (near->name != NULL) {
		snprintf(out, NEAR_TEXT_BYTES, "; did you mean '%s%s'?", prefix, near->name);
	}
	return out;
}

size_t utf8_decode(const void *bytes, size_t left, uint32_t *code)
{
	const uint8_t *p = bytes;
	uint32_t c;
	size_t n;

	*code = p[0];
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
	*code = c;
	return n;
}

size_t utf8_sequence(const void *bytes, size_t left)
{
	uint32_t code;

	return utf8_decode(bytes, left, &code);
}

bool utf8_is_hidden(uint32_t code)
{
	/* Controls, Default_Ignorable_Code_Point, Bidi_Control, Zl, Zp and the remaining Cf
	 * characters of the Unicode character database. */
	static const struct {
		uint32_t first;
		uint32_t last;
	} ranges[] = {
		{ 0x0000, 0x001f },
		{ 0x007f, 0x009f },
		{ 0x00ad, 0x00ad },
		{ 0x034f, 0x034f },
		{ 0x0600, 0x0605 },
		{ 0x061c, 0x061c },
		{ 0x06dd, 0x06dd },
		{ 0x070f, 0x070f },
		{ 0x115f, 0x1160 },
		{ 0x17b4, 0x17b5 },
		{ 0x180b, 0x180f },
		{ 0x200b, 0x200f },
		{ 0x2028, 0x202e },
		{ 0x2060, 0x206f },
		{ 0x3164, 0x3164 },
		{ 0xfe00, 0xfe0f },
		{ 0xfeff, 0xfeff },
		{ 0xffa0, 0xffa0 },
		{ 0xfff0, 0xfffb },
		{ 0x1bca0, 0x1bca3 },
		{ 0x1d173, 0x1d17a },
		{ 0xe0000, 0xe0fff },
	};

	for (size_t i = 0; i < ARRAY_COUNT(ranges); i++) {
		if (code >= ranges[i].first && code <= ranges[i].last) {
			return true;
		}
	}
	return false;
}

/* untrusted text */

bool text_print_json(FILE *out, const char *json)
{
	size_t len = strlen(json);
	size_t n;

	for (size_t i = 0; i < len; i += n) {
		uint32_t code;

		n = utf8_decode(json + i, len - i, &code);
		if (n == 0 || (json[i] != '\n' && utf8_is_hidden(code))) {
			n = n == 0 ? 1 : n;
			if (code > 0xffff) {
				fprintf(out, "\\u%04X", 0xd7c0 + (code >> 10));
				code = 0xdc00 + (code & 0x3ff);
			}
			fprintf(out, "\\u%04X", code);
		} else {
			(void)fwrite(json + i, 1, n, out);
		}
	}
	return ferror(out) == 0;
}

bool text_print_metrics(FILE *out, const char *text, size_t len)
{
	size_t n;

	for (size_t i = 0; i < len; i += n) {
		uint32_t code;

		n = utf8_decode(text + i, len - i, &code);
		if (n == 0 || (text[i] != '\n' && utf8_is_hidden(code))) {
			fprintf(out, "\\\\x%02x", (uint8_t)text[i]);
			n = 1;
		} else {
			(void)fwrite(text + i, 1, n, out);
		}
	}
	return ferror(out) == 0;
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
