// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "base/text.h"

static void check_bytes(const char *text, uint64_t wanted)
{
	struct error error = { 0 };
	uint64_t bytes = 77;

	if (units_parse_bytes(text, &bytes, &error) != 0) {
		fail_msg("%s: %s", text, error.text);
	}
	assert_true(bytes == wanted);
}

static void refuse_bytes(const char *text, int code)
{
	struct error error = { 0 };
	uint64_t bytes = 77;

	assert_int_equal(units_parse_bytes(text, &bytes, &error), code);
	assert_int_equal(error.code, code);
	assert_non_null(strstr(error.text, text));
	assert_true(bytes == 77);
}

static void bytes(void **state)
{
	(void)state;
	check_bytes("0", 0);
	check_bytes("123456789", 123456789);
	check_bytes("007", 7);
	check_bytes("1B", 1);
	check_bytes("4k", 4096);
	check_bytes("64M", UINT64_C(64) << 20);
	check_bytes("64MiB", UINT64_C(64) << 20);
	check_bytes("1gb", UINT64_C(1) << 30);
	check_bytes("3T", UINT64_C(3) << 40);
	check_bytes("15E", UINT64_C(15) << 60);
	check_bytes("18446744073709551615", UINT64_MAX);
	refuse_bytes("18446744073709551616", -ERANGE);
	refuse_bytes("16E", -ERANGE);
	refuse_bytes("99999999999999999999999999G", -ERANGE);
	refuse_bytes("", -EINVAL);
	refuse_bytes("M", -EINVAL);
	refuse_bytes("-1", -EINVAL);
	refuse_bytes("+1", -EINVAL);
	refuse_bytes(" 1", -EINVAL);
	refuse_bytes("1 M", -EINVAL);
	refuse_bytes("1.5G", -EINVAL);
	refuse_bytes("0x10", -EINVAL);
	refuse_bytes("1MM", -EINVAL);
	refuse_bytes("1Mi", -EINVAL);
	refuse_bytes("1Q", -EINVAL);
}

static void check_time(const char *text, uint64_t wanted_ns)
{
	struct error error = { 0 };
	uint64_t ns = 77;

	if (units_parse_time(text, &ns, &error) != 0) {
		fail_msg("%s: %s", text, error.text);
	}
	assert_true(ns == wanted_ns);
}

static void refuse_time(const char *text, int code)
{
	struct error error = { 0 };
	uint64_t ns = 77;

	assert_int_equal(units_parse_time(text, &ns, &error), code);
	assert_int_equal(error.code, code);
	assert_true(ns == 77);
}

static void times(void **state)
{
	(void)state;
	check_time("0", 0);
	check_time("0ms", 0);
	check_time("5ns", 5);
	check_time("500us", 500000);
	check_time("10ms", 10000000);
	check_time("1s", 1000000000);
	check_time("2min", UINT64_C(120000000000));
	check_time("1h", UINT64_C(3600000000000));
	check_time("9223372036s", UINT64_C(9223372036000000000));
	check_time("9223372036854775807ns", INT64_MAX);
	refuse_time("9223372036854775808ns", -ERANGE);
	refuse_time("9223372037s", -ERANGE);
	refuse_time("5000000h", -ERANGE);
	refuse_time("99999999999999999999ns", -ERANGE);
	refuse_time("10", -EINVAL);
	refuse_time("", -EINVAL);
	refuse_time("ms", -EINVAL);
	refuse_time("10 ms", -EINVAL);
	refuse_time("10MS", -EINVAL);
	refuse_time("10m", -EINVAL);
	refuse_time("-1s", -EINVAL);
	refuse_time("1.5s", -EINVAL);
}

static void check_seconds(const char *text, uint64_t wanted_ns)
{
	struct error error = { 0 };
	uint64_t ns = 77;

	if (units_parse_seconds(text, &ns, &error) != 0) {
		fail_msg("%s: %s", text, error.text);
	}
	assert_true(ns == wanted_ns);
}

static void refuse_seconds(const char *text, int code)
{
	struct error error = { 0 };
	uint64_t ns = 77;

	assert_int_equal(units_parse_seconds(text, &ns, &error), code);
	assert_int_equal(error.code, code);
	assert_non_null(strstr(error.text, text));
	assert_true(ns == 77);
}

static void seconds(void **state)
{
	(void)state;
	check_seconds("0", 0);
	check_seconds("2", UINT64_C(2000000000));
	check_seconds("0.5", 500000000);
	check_seconds(".25", 250000000);
	check_seconds("1.000000001", 1000000001);
	check_seconds("2s", UINT64_C(2000000000));
	check_seconds("500ms", 500000000);
	refuse_seconds("", -EINVAL);
	refuse_seconds(".", -EINVAL);
	refuse_seconds("1.2.3", -EINVAL);
	refuse_seconds("-1", -EINVAL);
	refuse_seconds("+1", -EINVAL);
	refuse_seconds("1e3", -EINVAL);
	refuse_seconds("inf", -EINVAL);
	refuse_seconds(" 1", -EINVAL);
	refuse_seconds("1.5s", -EINVAL);
	refuse_seconds("9223372037", -ERANGE);
	refuse_seconds("5000000h", -ERANGE);
}

static void counts(void **state)
{
	struct error error = { 0 };
	uint32_t count = 77;

	(void)state;
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

static void formatted_sizes_read_back(void **state)
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

	(void)state;
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		assert_string_equal(units_format_bytes(text, cases[i].bytes), cases[i].text);
		check_bytes(text, cases[i].bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes),
		cmocka_unit_test(times),
		cmocka_unit_test(seconds),
		cmocka_unit_test(counts),
		cmocka_unit_test(formatted_sizes_read_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
