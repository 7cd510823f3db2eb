// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "base/text.h"
#include "unit.h"

typedef int parse_fn(const char *text, uint64_t *value, struct error *error);

static void check(parse_fn *parse, const char *text, uint64_t wanted)
{
	struct error error = { 0 };
	uint64_t value = 77;

	if (parse(text, &value, &error) != 0) {
		fail_msg("%s: %s", text, error.text);
	}
	assert_true(value == wanted);
}

static void refuse(parse_fn *parse, const char *text, int code)
{
	struct error error = { 0 };
	uint64_t value = 77;

	assert_int_equal(parse(text, &value, &error), code);
	assert_int_equal(error.code, code);
	assert_non_null(strstr(error.text, text));
	assert_true(value == 77);
}

TEST(bytes)
{
	check(units_parse_bytes, "0", 0);
	check(units_parse_bytes, "123456789", 123456789);
	check(units_parse_bytes, "007", 7);
	check(units_parse_bytes, "1B", 1);
	check(units_parse_bytes, "4k", 4096);
	check(units_parse_bytes, "64M", UINT64_C(64) << 20);
	check(units_parse_bytes, "64MiB", UINT64_C(64) << 20);
	check(units_parse_bytes, "1gb", UINT64_C(1) << 30);
	check(units_parse_bytes, "3T", UINT64_C(3) << 40);
	check(units_parse_bytes, "15E", UINT64_C(15) << 60);
	check(units_parse_bytes, "18446744073709551615", UINT64_MAX);
	refuse(units_parse_bytes, "18446744073709551616", -ERANGE);
	refuse(units_parse_bytes, "16E", -ERANGE);
	refuse(units_parse_bytes, "99999999999999999999999999G", -ERANGE);
	refuse(units_parse_bytes, "", -EINVAL);
	refuse(units_parse_bytes, "M", -EINVAL);
	refuse(units_parse_bytes, "-1", -EINVAL);
	refuse(units_parse_bytes, "+1", -EINVAL);
	refuse(units_parse_bytes, " 1", -EINVAL);
	refuse(units_parse_bytes, "1 M", -EINVAL);
	refuse(units_parse_bytes, "1.5G", -EINVAL);
	refuse(units_parse_bytes, "0x10", -EINVAL);
	refuse(units_parse_bytes, "1MM", -EINVAL);
	refuse(units_parse_bytes, "1Mi", -EINVAL);
	refuse(units_parse_bytes, "1Q", -EINVAL);
}

TEST(times)
{
	check(units_parse_time, "0", 0);
	check(units_parse_time, "0ms", 0);
	check(units_parse_time, "5ns", 5);
	check(units_parse_time, "500us", 500000);
	check(units_parse_time, "10ms", 10000000);
	check(units_parse_time, "1s", 1000000000);
	check(units_parse_time, "2min", UINT64_C(120000000000));
	check(units_parse_time, "1h", UINT64_C(3600000000000));
	check(units_parse_time, "9223372036s", UINT64_C(9223372036000000000));
	check(units_parse_time, "9223372036854775807ns", INT64_MAX);
	refuse(units_parse_time, "9223372036854775808ns", -ERANGE);
	refuse(units_parse_time, "9223372037s", -ERANGE);
	refuse(units_parse_time, "5000000h", -ERANGE);
	refuse(units_parse_time, "99999999999999999999ns", -ERANGE);
	refuse(units_parse_time, "10", -EINVAL);
	refuse(units_parse_time, "", -EINVAL);
	refuse(units_parse_time, "ms", -EINVAL);
	refuse(units_parse_time, "10 ms", -EINVAL);
	refuse(units_parse_time, "10MS", -EINVAL);
	refuse(units_parse_time, "10m", -EINVAL);
	refuse(units_parse_time, "-1s", -EINVAL);
	refuse(units_parse_time, "1.5s", -EINVAL);
}

TEST(seconds)
{
	check(units_parse_seconds, "0", 0);
	check(units_parse_seconds, "2", UINT64_C(2000000000));
	check(units_parse_seconds, "0.5", 500000000);
	check(units_parse_seconds, ".25", 250000000);
	check(units_parse_seconds, "1.000000001", 1000000001);
	check(units_parse_seconds, "2s", UINT64_C(2000000000));
	check(units_parse_seconds, "500ms", 500000000);
	refuse(units_parse_seconds, "", -EINVAL);
	refuse(units_parse_seconds, ".", -EINVAL);
	refuse(units_parse_seconds, "1.2.3", -EINVAL);
	refuse(units_parse_seconds, "-1", -EINVAL);
	refuse(units_parse_seconds, "+1", -EINVAL);
	refuse(units_parse_seconds, "1e3", -EINVAL);
	refuse(units_parse_seconds, "inf", -EINVAL);
	refuse(units_parse_seconds, " 1", -EINVAL);
	refuse(units_parse_seconds, "1.5s", -EINVAL);
	refuse(units_parse_seconds, "9223372037", -ERANGE);
	refuse(units_parse_seconds, "5000000h", -ERANGE);
}

TEST(counts)
{
	struct error error = { 0 };
	uint32_t count = 77;

	assert_int_equal(units_parse_count("1", 1, 64, &count, &error), 0);
	assert_int_equal(count, 1);
	assert_int_equal(units_parse_count("4294967295", 0, UINT32_MAX, &count, &error), 0);
	assert_int_equal(count, UINT32_MAX);
	count = 77;
	assert_int_equal(units_parse_count("0", 1, 64, &count, &error), -ERANGE);
	assert_non_null(strstr(error.text, "from 1 to 64"));
	assert_int_equal(units_parse_count("65", 1, 64, &count, &error), -ERANGE);
	assert_int_equal(units_parse_count("4294967296", 0, UINT32_MAX, &count, &error), -ERANGE);
	assert_int_equal(
		units_parse_count("99999999999999999999", 0, UINT32_MAX, &count, &error), -ERANGE);
	assert_int_equal(units_parse_count("", 1, 64, &count, &error), -EINVAL);
	assert_int_equal(units_parse_count("4k", 1, 64, &count, &error), -EINVAL);
	assert_int_equal(units_parse_count("-1", 1, 64, &count, &error), -EINVAL);
	assert_int_equal(count, 77);
}

TEST(formatted_sizes_read_back)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{ 0, "0" },
		{ 1, "1" },
		{ 1000, "1000" },
		{ 1024, "1K" },
		{ 1536, "1536" },
		{ UINT64_C(64) << 20, "64M" },
		{ UINT64_C(1) << 60, "1E" },
		{ UINT64_MAX, "18446744073709551615" },
	};
	char text[UNITS_TEXT_BYTES];

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		assert_string_equal(units_format_bytes(text, cases[i].bytes), cases[i].text);
		check(units_parse_bytes, text, cases[i].bytes);
	}
}
