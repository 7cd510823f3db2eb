// SPDX-License-Identifier: Apache-2.0
/*
 * Fault and delay rules, paces, sizes and times as users write them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../stores.h"
#include "harness.h"
#include "store/parse.h"

/* A rule of several fields is quoted first, and only such a one. */
static void check_names_rule(const char *text, const char *sentence)
{
	char quoted[256];
	int length = snprintf(quoted, sizeof(quoted), "'%s': ", text);

	assert_in_range(length, 1, sizeof(quoted) - 1);
	assert_int_equal(strncmp(sentence, quoted, (size_t)length) == 0, strchr(text, ':') != NULL);
}

static void check_refused(
	int (*parse)(const char *text, struct store_rule *rule, struct error *error),
	const char *text, const char *reason)
{
	struct store_rule rule = { .ops = 12345 };
	struct error error = { 0 };

	if (parse(text, &rule, &error) != -EINVAL) {
		fail_msg("'%s' was not refused", text);
	}
	assert_int_equal(error.code, -EINVAL);
	assert_int_equal(rule.ops, 12345); /* untouched */
	if (strstr(error.text, reason) == NULL) {
		fail_msg("'%s': \"%s\" does not say \"%s\"", text, error.text, reason);
	}
	check_names_rule(text, error.text);
}

static struct store_rule fault(const char *text)
{
	struct store_rule rule = { 0 };
	struct error error;

	if (store_fault_parse(text, &rule, &error) != 0) {
		fail_msg("%s", error.text);
	}
	return rule;
}

static struct store_rule delay(const char *text)
{
	struct store_rule rule = { 0 };
	struct error error;

	if (store_delay_parse(text, &rule, &error) != 0) {
		fail_msg("%s", error.text);
	}
	return rule;
}

static void test_fault_names_operation_and_error(void **state)
{
	static const struct {
		const char *text;
		uint32_t ops;
		int error;
	} cases[] = {
		{ "read:EIO", BIT(STORE_READ), -EIO },
		{ "write:ENOSPC", BIT(STORE_WRITE), -ENOSPC },
		{ "flush:EIO", BIT(STORE_FLUSH), -EIO },
		{ "trim:EPERM", BIT(STORE_TRIM), -EPERM },
		{ "zero:EOPNOTSUPP", BIT(STORE_ZERO), -EOPNOTSUPP },
		{ "cache:ENOMEM", BIT(STORE_CACHE), -ENOMEM },
		{ "extents:ETIMEDOUT", BIT(STORE_EXTENTS), -ETIMEDOUT },
		{ "any:EIO", BIT(STORE_OP_COUNT) - 1, -EIO },
	};

	GMB_UNUSED(state);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct store_rule rule = fault(cases[i].text);

		assert_int_equal(rule.ops, cases[i].ops);
		assert_int_equal(rule.error, cases[i].error);
		assert_int_equal(rule.nth, 0);
		assert_int_equal(rule.every, 0);
		assert_int_equal(rule.range_length, 0);
		assert_true(rule.probability == 1.0);
	}
}

static void test_fault_options_in_any_order(void **state)
{
	struct store_rule rule = fault("read:EIO:nth=3:range=1M+64K");

	GMB_UNUSED(state);
	assert_int_equal(rule.nth, 3);
	assert_int_equal(rule.range_offset, 1 << 20);
	assert_int_equal(rule.range_length, 64 << 10);
	rule = fault("any:EIO:range=0+512:every=10");
	assert_int_equal(rule.every, 10);
	assert_int_equal(rule.range_offset, 0);
	assert_int_equal(rule.range_length, 512);
	rule = fault("write:EIO:prob=0.25");
	assert_true(rule.probability == 0.25);
	assert_true(fault("write:EIO:prob=1").probability == 1.0);
	assert_true(fault("write:EIO:prob=.5").probability == 0.5);
}

static void test_fault_refuses_nonsense_with_the_reason(void **state)
{
	static const struct {
		const char *text;
		const char *reason;
	} cases[] = {
		{ "", "not an operation" },
		{ ":", "not an operation" },
		{ "read", "the error is missing" },
		{ "read:", "not an error name" },
		{ "Read:EIO", "not an operation" },
		{ " read:EIO", "not an operation" },
		{ "reads:EIO", "not an operation" },
		{ "rea:EIO", "not an operation" },
		{ "read:5", "not an error name" },
		{ "read:eio", "not an error name" },
		{ "read:EIOO", "not an error name" },
		{ "read:EI", "not an error name" },
		{ "read:EIO:", "unknown setting" },
		{ "read:EIO:nth", "unknown setting" },
		{ "read:EIO:nth=", "at least 1" },
		{ "read:EIO:nth=0", "at least 1" },
		{ "read:EIO:nth=-1", "at least 1" },
		{ "read:EIO:nth=1x", "at least 1" },
		{ "read:EIO:nth=1K", "at least 1" },
		{ "read:EIO:nth=99999999999999999999", "at least 1" },
		{ "read:EIO:every=0", "at least 1" },
		{ "read:EIO:every=2:nth=1", "only one of" },
		{ "read:EIO:prob=0.5:prob=0.5", "only one of" },
		{ "read:EIO:prob=0", "not a probability" },
		{ "read:EIO:prob=1.01", "not a probability" },
		{ "read:EIO:prob=nan", "not a probability" },
		{ "read:EIO:prob=.", "not a probability" },
		{ "read:EIO:prob=0.1.2", "not a probability" },
		{ "read:EIO:prob=1e-3", "not a probability" },
		{ "read:EIO:prob=", "not a probability" },
		{ "read:EIO:prob=0.0000000000000000000000000000000001", "not a probability" },
		{ "read:EIO:range=5", "not a range" },
		{ "read:EIO:range=+5", "not a range" },
		{ "read:EIO:range=5+", "not a range" },
		{ "read:EIO:range=5-10", "not a range" },
		{ "read:EIO:range=5+0", "is empty" },
		{ "read:EIO:range=1+18446744073709551615", "past 2^64" },
		{ "read:EIO:range=1+1:range=2+2", "given twice" },
		{ "flush:EIO:range=1+1", "a flush has no range" },
		{ "read:EIO:delay=5ms", "unknown setting" },
	};

	GMB_UNUSED(state);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		check_refused(store_fault_parse, cases[i].text, cases[i].reason);
	}
}

static void test_delay_names_operation_and_time(void **state)
{
	struct store_rule rule = delay("read:10ms");

	GMB_UNUSED(state);
	assert_int_equal(rule.ops, BIT(STORE_READ));
	assert_int_equal(rule.delay_ns, 10000000);
	assert_int_equal(delay("flush:500us").delay_ns, 500000);
	assert_int_equal(delay("any:1s").delay_ns, 1000000000);
	assert_int_equal(delay("any:7ns").delay_ns, 7);
	assert_int_equal(delay("any:0s").delay_ns, 0);
	assert_int_equal(delay("any:3600s").delay_ns, UINT64_C(3600000000000));
	rule = delay("write:1ms:range=4K+1");
	assert_int_equal(rule.range_offset, 4096);
	assert_int_equal(rule.range_length, 1);
}

static void test_delay_refuses_nonsense_with_the_reason(void **state)
{
	static const struct {
		const char *text;
		const char *reason;
	} cases[] = {
		{ "read", "the time is missing" },
		{ "read:", "not a time" },
		{ "read:10", "not a time" },
		{ "read:ms", "not a time" },
		{ "read:10 ms", "not a time" },
		{ "read:10m", "not a time" },
		{ "read:-1ms", "not a time" },
		{ "read:1.5ms", "not a time" },
		{ "read:3601s", "not a time" },
		{ "read:99999999999999999s", "not a time" },
		{ "write:1ms:nth=2", "unknown setting" },
		{ "writ:1ms", "not an operation" },
	};

	GMB_UNUSED(state);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		check_refused(store_delay_parse, cases[i].text, cases[i].reason);
	}
}

static void test_pace_is_a_rate_and_options_in_any_order(void **state)
{
	static const struct {
		const char *text;
		struct store_pace pace;
	} cases[] = {
		{ "1K", { .rate = 1024, .members = 1 } },
		{ "1T", { .rate = UINT64_C(1) << 40, .members = 1 } },
		{ "123456789", { .rate = 123456789, .members = 1 } },
		{ "100M:latency=0", { .rate = 100 << 20, .members = 1 } },
		{ "100M:latency=1h", { .rate = 100 << 20,
					     .latency_ns = UINT64_C(3600000000000),
					     .members = 1 } },
		{ "100M:members=1", { .rate = 100 << 20, .members = 1 } },
		{ "1G:members=2", { .rate = 1 << 30, .members = 2, .chunk = 65536 } },
		{ "1G:chunk=4K:latency=7us:members=64",
			{ .rate = 1 << 30, .latency_ns = 7000, .members = 64, .chunk = 4096 } },
		{ "1G:members=3:chunk=1G", { .rate = 1 << 30, .members = 3, .chunk = 1 << 30 } },
	};

	GMB_UNUSED(state);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct store_pace pace = { 0 };
		struct error error;

		if (store_pace_parse(cases[i].text, &pace, &error) != 0) {
			fail_msg("%s", error.text);
		}
		assert_int_equal(pace.rate, cases[i].pace.rate);
		assert_int_equal(pace.latency_ns, cases[i].pace.latency_ns);
		assert_int_equal(pace.members, cases[i].pace.members);
		assert_int_equal(pace.chunk, cases[i].pace.chunk);
	}
}

static void test_pace_refuses_nonsense_with_the_reason(void **state)
{
	static const struct {
		const char *text;
		const char *reason;
	} cases[] = {
		{ "", "not a rate" },
		{ "fast", "not a rate" },
		{ "0", "not a rate" },
		{ "1023", "not a rate" },
		{ "1099511627777", "not a rate" },
		{ "99999999999999999999", "not a rate" },
		{ "-1M", "not a rate" },
		{ "1M/s", "not a rate" },
		{ "100M,", "not a rate" },
		{ ":latency=1ms", "not a rate" },
		{ "1M:", "unknown setting" },
		{ "1M:latency", "unknown setting" },
		{ "1M:speed=3", "unknown setting" },
		{ "1M:latency=", "not a latency" },
		{ "1M:latency=5", "not a latency" },
		{ "1M:latency=3601s", "not a latency" },
		{ "1M:latency=1ms:latency=1ms", "latency= is given twice" },
		{ "1M:members=", "not a number of members" },
		{ "1M:members=0", "not a number of members" },
		{ "1M:members=65", "not a number of members" },
		{ "1M:members=18446744073709551617", "not a number of members" },
		{ "1M:members=2:members=2", "members= is given twice" },
		{ "1M:members=2:chunk=", "not a chunk" },
		{ "1M:members=2:chunk=0", "not a chunk" },
		{ "1M:members=2:chunk=2K", "not a chunk" },
		{ "1M:members=2:chunk=5000", "not a chunk" },
		{ "1M:members=2:chunk=2G", "not a chunk" },
		{ "1M:members=2:chunk=4K:chunk=4K", "chunk= is given twice" },
		{ "1M:chunk=64K", "only with members=2" },
		{ "1M:members=1:chunk=64K", "only with members=2" },
	};

	GMB_UNUSED(state);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct store_pace pace = { .rate = 12345 };
		struct error error = { 0 };

		if (store_pace_parse(cases[i].text, &pace, &error) != -EINVAL) {
			fail_msg("'%s' was not refused", cases[i].text);
		}
		assert_int_equal(error.code, -EINVAL);
		assert_int_equal(pace.rate, 12345); /* untouched */
		check_names_rule(cases[i].text, error.text);
		if (strstr(error.text, cases[i].reason) == NULL) {
			fail_msg("'%s': \"%s\" does not say \"%s\"", cases[i].text, error.text,
				cases[i].reason);
		}
	}
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		bool good;
		uint64_t bytes;
	} cases[] = {
		{ "0", true, 0 },
		{ "123456789", true, 123456789 },
		{ "1K", true, 1024 },
		{ "64M", true, UINT64_C(64) << 20 },
		{ "1g", true, UINT64_C(1) << 30 },
		{ "2T", true, UINT64_C(2) << 40 },
		{ "3p", true, UINT64_C(3) << 50 },
		{ "15E", true, UINT64_C(15) << 60 },
		{ "18446744073709551615", true, UINT64_MAX },
		{ "18446744073709551616", false, 0 },
		{ "16E", false, 0 },
		{ "", false, 0 },
		{ "K", false, 0 },
		{ "1KB", true, 1024 },
		{ "2MiB", true, UINT64_C(2) << 20 },
		{ "1KK", false, 0 },
		{ "1 K", false, 0 },
		{ "-1", false, 0 },
		{ "+1", false, 0 },
		{ "0x10", false, 0 },
		{ "1.5G", false, 0 },
	};

	GMB_UNUSED(state);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		uint64_t bytes = 77;

		assert_int_equal(
			parse_size(cases[i].text, strlen(cases[i].text), &bytes), cases[i].good);
		assert_int_equal(bytes, cases[i].good ? cases[i].bytes : 77);
	}
	/* The length decides, not a terminator. */
	{
		uint64_t bytes = 0;

		assert_true(parse_size("12345", 2, &bytes));
		assert_int_equal(bytes, 12);
		assert_false(parse_size("1\0", 2, &bytes));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fault_names_operation_and_error),
		cmocka_unit_test(test_fault_options_in_any_order),
		cmocka_unit_test(test_fault_refuses_nonsense_with_the_reason),
		cmocka_unit_test(test_delay_names_operation_and_time),
		cmocka_unit_test(test_delay_refuses_nonsense_with_the_reason),
		cmocka_unit_test(test_pace_is_a_rate_and_options_in_any_order),
		cmocka_unit_test(test_pace_refuses_nonsense_with_the_reason),
		cmocka_unit_test(test_sizes),
	};

	stores_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
