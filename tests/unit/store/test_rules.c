// SPDX-License-Identifier: Apache-2.0
/*
 * Fault and delay rules, and paces, as users write them.
 */
#include <errno.h>
#include <string.h>

#include "../stores.h"
#include "harness.h"
#include "store/parse.h"
#include "unit.h"

static void check_refused(
	int (*parse)(const char *text, struct store_rule *rule, struct error *error),
	const char *text, const char *reason)
{
	struct store_rule rule = { .ops = 12345 };
	struct error error = { 0 };

	if (parse(text, &rule, &error) >= 0) {
		fail_msg("'%s' was not refused", text);
	}
	assert_int_equal(rule.ops, 12345); /* untouched */
	if (strstr(error.text, reason) == NULL) {
		fail_msg("'%s': \"%s\" does not say \"%s\"", text, error.text, reason);
	}
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

TEST(test_fault_names_operation_and_error)
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

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct store_rule rule = fault(cases[i].text);

		assert_int_equal(rule.ops, cases[i].ops);
		assert_int_equal(rule.error, cases[i].error);
		assert_int_equal(rule.nth, 0);
		assert_int_equal(rule.every, 0);
		assert_int_equal(rule.range_length, 0);
		assert_true(rule.probability == 0);
	}
}

TEST(test_fault_options_in_any_order)
{
	struct store_rule rule = fault("read:EIO:nth=3:range=1M+64K");

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

TEST(test_fault_refuses_nonsense_with_the_reason)
{
	static const struct {
		const char *text;
		const char *reason;
	} cases[] = {
		{ "", "is not read, write" },
		{ ":", "is not read, write" },
		{ "read", "'read' has no errno" },
		{ "read:", "not the name of an error" },
		{ "Read:EIO", "is not read, write" },
		{ " read:EIO", "is not read, write" },
		{ "reads:EIO", "is not read, write" },
		{ "rea:EIO", "is not read, write" },
		{ "read:5", "not the name of an error" },
		{ "read:eio", "not the name of an error" },
		{ "read:EIOO", "not the name of an error" },
		{ "read:EI", "not the name of an error" },
		{ "read:EIO:", "unknown setting" },
		{ "read:EIO:nth", "unknown setting" },
		{ "read:EIO:nth=", "nth: '' is not a whole number" },
		{ "read:EIO:nth=0", "must be from 1" },
		{ "read:EIO:nth=-1", "not a whole number" },
		{ "read:EIO:nth=1x", "not a whole number" },
		{ "read:EIO:nth=1K", "not a whole number" },
		{ "read:EIO:nth=99999999999999999999", "must be from 1" },
		{ "read:EIO:every=0", "must be from 1" },
		{ "read:EIO:every=2:nth=1", "only one of" },
		{ "read:EIO:prob=0.5:prob=0.5", "prob= is given twice" },
		{ "read:EIO:prob=0", "above 0 and up to 1" },
		{ "read:EIO:prob=1.01", "above 0 and up to 1" },
		{ "read:EIO:prob=nan", "above 0 and up to 1" },
		{ "read:EIO:prob=.", "above 0 and up to 1" },
		{ "read:EIO:prob=0.1.2", "above 0 and up to 1" },
		{ "read:EIO:prob=1e-3", "above 0 and up to 1" },
		{ "read:EIO:prob=", "above 0 and up to 1" },
		{ "read:EIO:range=5", "is not OFFSET+LENGTH" },
		{ "read:EIO:range=+5", "is not OFFSET+LENGTH" },
		{ "read:EIO:range=5+", "is not OFFSET+LENGTH" },
		{ "read:EIO:range=5-10", "is not OFFSET+LENGTH" },
		{ "read:EIO:range=5+0", "is empty" },
		{ "read:EIO:range=1+18446744073709551615", "past 2^64" },
		{ "read:EIO:range=1+1:range=2+2", "given twice" },
		{ "flush:EIO:range=1+1", "a flush has no range" },
		{ "read:EIO:delay=5ms", "unknown setting" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		check_refused(store_fault_parse, cases[i].text, cases[i].reason);
	}
}

TEST(test_delay_names_operation_and_time)
{
	struct store_rule rule = delay("read:10ms");

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

TEST(test_delay_refuses_nonsense_with_the_reason)
{
	static const struct {
		const char *text;
		const char *reason;
	} cases[] = {
		{ "read", "'read' has no time" },
		{ "read:", "not a time" },
		{ "read:10", "not a time" },
		{ "read:ms", "not a time" },
		{ "read:10 ms", "not a time" },
		{ "read:10m", "not a time" },
		{ "read:-1ms", "not a time" },
		{ "read:1.5ms", "not a time" },
		{ "read:3601s", "at most 3600 s" },
		{ "read:99999999999999999s", "too long" },
		{ "write:1ms:nth=2", "unknown setting" },
		{ "writ:1ms", "is not read, write" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		check_refused(store_delay_parse, cases[i].text, cases[i].reason);
	}
}

TEST(test_pace_is_a_rate_and_options_in_any_order)
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

TEST(test_pace_refuses_nonsense_with_the_reason)
{
	static const struct {
		const char *text;
		const char *reason;
	} cases[] = {
		{ "", "not a size" },
		{ "fast", "not a size" },
		{ "0", "at least 1K" },
		{ "1023", "at least 1K" },
		{ "1099511627777", "at most 1T" },
		{ "99999999999999999999", "too large" },
		{ "-1M", "not a size" },
		{ "1M/s", "not a size" },
		{ "100M,", "not a size" },
		{ ":latency=1ms", "not a size" },
		{ "1M:", "unknown setting" },
		{ "1M:latency", "unknown setting" },
		{ "1M:speed=3", "unknown setting" },
		{ "1M:latency=", "not a time" },
		{ "1M:latency=5", "not a time" },
		{ "1M:latency=3601s", "at most 3600 s" },
		{ "1M:latency=1ms:latency=1ms", "latency= is given twice" },
		{ "1M:members=", "members: '' is not a whole number" },
		{ "1M:members=0", "must be from 1 to 64" },
		{ "1M:members=65", "must be from 1 to 64" },
		{ "1M:members=18446744073709551617", "must be from 1 to 64" },
		{ "1M:members=2:members=2", "members= is given twice" },
		{ "1M:members=2:chunk=", "not a size" },
		{ "1M:members=2:chunk=0", "at least 4K" },
		{ "1M:members=2:chunk=2K", "at least 4K" },
		{ "1M:members=2:chunk=5000", "multiple of 4K" },
		{ "1M:members=2:chunk=2G", "at most 1G" },
		{ "1M:members=2:chunk=4K:chunk=4K", "chunk= is given twice" },
		{ "1M:chunk=64K", "only with members=2" },
		{ "1M:members=1:chunk=64K", "only with members=2" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct store_pace pace = { .rate = 12345 };
		struct error error = { 0 };

		if (store_pace_parse(cases[i].text, &pace, &error) >= 0) {
			fail_msg("'%s' was not refused", cases[i].text);
		}
		assert_int_equal(pace.rate, 12345); /* untouched */
		if (strstr(error.text, cases[i].reason) == NULL) {
			fail_msg("'%s': \"%s\" does not say \"%s\"", cases[i].text, error.text,
				cases[i].reason);
		}
	}
}
