// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/growth.h"

/* One window, of the usual duration. */
static enum growth_step window(struct growth *growth, uint64_t *now_ns, uint64_t rate)
{
	*now_ns += growth_window_ns;
	return growth_window_end(growth, *now_ns, rate, true);
}

/* The windows up to a trial, which begins after two that are alike. */
static void begin_trial(struct growth *growth, uint64_t *now_ns, uint64_t rate)
{
	uint32_t count = 0;

	while (window(growth, now_ns, rate) == GROWTH_STAY) {
		assert_true(++count < 10000);
	}
	assert_int_equal(growth->state, GROWTH_CONNECT);
	assert_int_equal(window(growth, now_ns, rate), GROWTH_STAY);
}

static void a_gain_is_kept(void **state)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;

	(void)state;
	begin_trial(&growth, &now_ns, 100);
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_STAY);
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_STAY);
	assert_int_equal(growth.state, GROWTH_MEASURE);
	/* The next one is tried at once. */
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_STAY);
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_ADD);
}

static void a_gain_of_one_window_is_chance(void **state)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;

	(void)state;
	begin_trial(&growth, &now_ns, 100);
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_STAY);
	assert_int_equal(window(&growth, &now_ns, 110), GROWTH_REMOVE);
}

static void a_rise_is_no_gain(void **state)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;
	uint64_t rate = 100;

	(void)state;
	for (int i = 0; i < 10; i++) {
		assert_int_equal(window(&growth, &now_ns, rate), GROWTH_STAY);
		rate += rate / 5;
	}
	begin_trial(&growth, &now_ns, rate);
	assert_int_equal(window(&growth, &now_ns, rate), GROWTH_REMOVE);
}

static void pauses_double(void **state)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;
	uint64_t pause_ns = 0;

	(void)state;
	for (int i = 0; i < 5; i++) {
		uint64_t end_ns;

		begin_trial(&growth, &now_ns, 100);
		assert_int_equal(window(&growth, &now_ns, 100), GROWTH_REMOVE);
		end_ns = growth.not_before_ns;
		assert_true(end_ns > now_ns);
		assert_true(pause_ns == 0 || end_ns - now_ns == 2 * pause_ns);
		pause_ns = end_ns - now_ns;
	}
}

static void an_invalid_window_ends_a_trial(void **state)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;

	(void)state;
	assert_int_equal(growth_cancel(&growth), GROWTH_STAY);
	begin_trial(&growth, &now_ns, 100);
	assert_int_equal(growth_cancel(&growth), GROWTH_REMOVE);
	assert_int_equal(window(&growth, &now_ns, 100), GROWTH_STAY);
}

static void nothing_is_added_in_vain(void **state)
{
	struct growth growth = { 0 };

	(void)state;
	for (uint64_t i = 1; i < 10; i++) {
		assert_int_equal(
			growth_window_end(&growth, i * growth_window_ns, 100, false), GROWTH_STAY);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_gain_is_kept),
		cmocka_unit_test(a_gain_of_one_window_is_chance),
		cmocka_unit_test(a_rise_is_no_gain),
		cmocka_unit_test(pauses_double),
		cmocka_unit_test(an_invalid_window_ends_a_trial),
		cmocka_unit_test(nothing_is_added_in_vain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
