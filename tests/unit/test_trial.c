// SPDX-License-Identifier: Apache-2.0
#include "base/trial.h"
#include "unit.h"

#define MIB UINT64_C(1048576)
#define MS  UINT64_C(1000000)

/* More than half of them use the better way, whatever windows are tries. */
enum { USED_WINDOWS = 5 };

static const struct trial_rule rule = {
	.first_windows = 2, .try_first = 4, .try_every = 16, .margin = 8
};

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

/* Returns the way that most windows use as long as the throughput of both ways stays the same. */
static uint32_t used_way(struct trial trial)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < USED_WINDOWS; i++) {
		count += trial.way;
		trial_end_window(&trial, &rule, trial.rates[trial.way] << 10, 1000 * MS);
	}
	return count > USED_WINDOWS / 2;
}

TEST(both_ways_take_turns_first)
{
	struct trial trial = { .way = 1 };

	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(trial.way, i % 2 == 0);
		trial_end_window(&trial, &rule, MIB, MS);
	}
	assert_int_equal(trial.way, 0);
}

TEST(the_better_way_is_used_and_the_other_one_tried)
{
	struct trial trial = { 0 };

	(void)run(&trial, 4, 2 * MS, MS);
	assert_int_equal(run(&trial, 160, 2 * MS, MS), 149);
	assert_int_equal(used_way(trial), 1);
	/* The ways have changed: the next try shows it. */
	(void)run(&trial, 17, MS / 4, MS);
	assert_int_equal(used_way(trial), 0);
	assert_int_equal(run(&trial, 160, MS / 4, MS), 10);
}

/* Runs windows up to the next one with the slower way. Returns how many, with that one. */
static uint32_t until_try(struct trial *trial, uint32_t better, uint64_t ns_0, uint64_t ns_1)
{
	uint32_t windows = 1;

	while (run(trial, 1, ns_0, ns_1) == better) {
		windows++;
	}
	return windows;
}

TEST(tries_become_rare)
{
	static const uint32_t periods[] = { 4, 8, 16, 16 };
	struct trial trial = { 0 };

	(void)run(&trial, 4, 2 * MS, MS);
	for (size_t i = 0; i < ARRAY_COUNT(periods); i++) {
		assert_int_equal(until_try(&trial, 1, 2 * MS, MS), periods[i]);
	}
	/* The next try shows that the ways have changed. */
	assert_int_equal(until_try(&trial, 1, MS / 4, MS), 16);
	for (size_t i = 0; i < ARRAY_COUNT(periods); i++) {
		assert_int_equal(until_try(&trial, 0, MS / 4, MS), periods[i]);
	}
}

/* Windows that something else has slowed down make the worse way look better. */
TEST(a_wrong_first_decision_is_corrected_soon)
{
	struct trial trial = { 0 };

	for (uint32_t i = 0; i < 4; i++) {
		trial_end_window(&trial, &rule, 16 * MIB, trial.way == 0 ? 2 * MS : 4 * MS);
	}
	assert_int_equal(used_way(trial), 0);
	(void)run(&trial, 4, 2 * MS, MS);
	assert_int_equal(used_way(trial), 1);
}

TEST(a_small_gain_is_none)
{
	struct trial trial = { 0 };

	(void)run(&trial, 100, 109 * MS, 100 * MS);
	assert_int_equal(used_way(trial), 0);
	(void)run(&trial, 100, 118 * MS, 100 * MS);
	assert_int_equal(used_way(trial), 1);
}

/* Another program took the processor for a while. */
TEST(one_slow_window_changes_nothing)
{
	for (uint32_t better = 0; better < 2; better++) {
		struct trial trial = { 0 };
		uint64_t ns[] = { 100 * MS, 100 * MS };

		(void)state;
		ns[!better] = 130 * MS;
		(void)run(&trial, 20, ns[0], ns[1]);
		trial_end_window(&trial, &rule, 16 * MIB, 1000 * MS);
		assert_int_equal(used_way(trial), better);
	}
}

TEST(no_throughput_is_too_low_or_too_high)
{
	struct trial trial = { 0 };

	trial_end_window(&trial, &rule, 0, 0);
	trial_end_window(&trial, &rule, UINT64_C(1) << 40, 0);
	trial_end_window(&trial, &rule, 0, UINT64_MAX);
	trial_end_window(&trial, &rule, UINT64_C(1) << 40, 1);
	assert_true(trial.rates[1] >= UINT64_C(1) << 40);
}
