// SPDX-License-Identifier: Apache-2.0
#include "base/growth.h"
#include "unit.h"

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

TEST(a_gain_is_kept)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;

	begin_trial(&growth, &now_ns, 100);
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_STAY);
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_STAY);
	assert_int_equal(growth.state, GROWTH_MEASURE);
	/* The next one is tried at once. */
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_STAY);
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_ADD);
}

TEST(a_gain_of_one_window_is_chance)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;

	begin_trial(&growth, &now_ns, 100);
	assert_int_equal(window(&growth, &now_ns, 150), GROWTH_STAY);
	assert_int_equal(window(&growth, &now_ns, 110), GROWTH_REMOVE);
}

TEST(a_rise_is_no_gain)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;
	uint64_t rate = 100;

	for (int i = 0; i < 10; i++) {
		assert_int_equal(window(&growth, &now_ns, rate), GROWTH_STAY);
		rate += rate / 5;
	}
	begin_trial(&growth, &now_ns, rate);
	assert_int_equal(window(&growth, &now_ns, rate), GROWTH_REMOVE);
}

TEST(pauses_double)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;
	uint64_t pause_ns = 0;

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

TEST(an_invalid_window_ends_a_trial)
{
	struct growth growth = { 0 };
	uint64_t now_ns = 1;

	assert_int_equal(growth_cancel(&growth), GROWTH_STAY);
	begin_trial(&growth, &now_ns, 100);
	assert_int_equal(growth_cancel(&growth), GROWTH_REMOVE);
	assert_int_equal(window(&growth, &now_ns, 100), GROWTH_STAY);
}

TEST(nothing_is_added_in_vain)
{
	struct growth growth = { 0 };

	for (uint64_t i = 1; i < 10; i++) {
		assert_int_equal(
			growth_window_end(&growth, i * growth_window_ns, 100, false), GROWTH_STAY);
	}
}
