// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/trial.h"

#define MIB UINT64_C(1048576)
#define MS  UINT64_C(1000000)

static const struct trial_rule rule = { .first_windows = 2, .try_every = 16, .margin = 8 };

/* Ends so many windows, each of which takes as long as its way needs. Returns how many used way 1.
 */
static uint32_t run(struct trial *trial, uint32_t windows, uint64_t ns_0, uint64_t ns_1)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < windows; i++) {
		count += trial->way;
		trial_end_window(trial, &rule, 16 * MIB, trial->way == 0 ? ns_0 : ns_1);
	}
	return count;
}

static void both_ways_take_turns_first(void **state)
{
	struct trial trial = { .way = 1 };

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(trial.way, i % 2 == 0);
		trial_end_window(&trial, &rule, MIB, MS);
	}
	assert_int_equal(trial.way, 0);
}

static void the_better_way_is_used_and_the_other_one_tried(void **state)
{
	struct trial trial = { 0 };

	(void)state;
	(void)run(&trial, 4, 2 * MS, MS);
	assert_int_equal(run(&trial, 160, 2 * MS, MS), 150);
	assert_int_equal(trial_better(&trial, &rule), 1);
	/* The ways have changed: the next try shows it. */
	(void)run(&trial, 17, MS / 4, MS);
	assert_int_equal(trial_better(&trial, &rule), 0);
	assert_int_equal(run(&trial, 160, MS / 4, MS), 10);
}

static void a_small_gain_is_none(void **state)
{
	struct trial trial = { 0 };

	(void)state;
	(void)run(&trial, 100, 109 * MS, 100 * MS);
	assert_int_equal(trial_better(&trial, &rule), 0);
	(void)run(&trial, 100, 118 * MS, 100 * MS);
	assert_int_equal(trial_better(&trial, &rule), 1);
}

/* Another program took the processor for a while. */
static void one_slow_window_changes_nothing(void **state)
{
	for (uint32_t better = 0; better < 2; better++) {
		struct trial trial = { 0 };
		uint64_t ns[] = { 100 * MS, 100 * MS };

		(void)state;
		ns[!better] = 130 * MS;
		(void)run(&trial, 20, ns[0], ns[1]);
		trial_end_window(&trial, &rule, 16 * MIB, 1000 * MS);
		assert_int_equal(trial_better(&trial, &rule), better);
	}
}

static void no_throughput_is_too_low_or_too_high(void **state)
{
	struct trial trial = { 0 };

	(void)state;
	trial_end_window(&trial, &rule, 0, 0);
	trial_end_window(&trial, &rule, UINT64_C(1) << 40, 0);
	trial_end_window(&trial, &rule, 0, UINT64_MAX);
	trial_end_window(&trial, &rule, UINT64_C(1) << 40, 1);
	assert_true(trial.rates[1] >= UINT64_C(1) << 40);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_ways_take_turns_first),
		cmocka_unit_test(the_better_way_is_used_and_the_other_one_tried),
		cmocka_unit_test(a_small_gain_is_none),
		cmocka_unit_test(one_slow_window_changes_nothing),
		cmocka_unit_test(no_throughput_is_too_low_or_too_high),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
