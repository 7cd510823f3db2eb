// SPDX-License-Identifier: Apache-2.0
/*
 * The comparison of connections by rings with the same by TCP, for round trips of given durations.
 */
#include "sockets/compare.h"
#include "unit.h"

enum { FAST_NS = 100000, SLOW_NS = 200000, ROUNDS_MAX = 100000 };

struct model {
	struct compare compare;
	struct compare_costs costs;
	uint64_t now_ns;
	uint32_t bells_in_10; /* round trips of 10 that wake the peer */
	uint32_t sleeps_in_10;
	uint32_t rounds;
};

static struct model model_of(uint32_t carried, uint32_t bells_in_10, uint32_t sleeps_in_10)
{
	struct model model = {
		.now_ns = 1, .bells_in_10 = bells_in_10, .sleeps_in_10 = sleeps_in_10
	};

	for (uint32_t i = 0; i < carried; i++) {
		compare_carried(&model.compare);
	}
	return model;
}

static void round_trip(struct model *model, enum compare_place place, uint64_t ns)
{
	compare_sample(&model->compare, place, model->now_ns, model->now_ns + ns);
	model->now_ns += ns;
	model->rounds++;
}

static enum compare_verdict by_ring(struct model *model, uint64_t ns)
{
	model->costs.reads++;
	model->costs.sleeps += model->rounds % 10 < model->sleeps_in_10;
	if (!compare_is_due(&model->compare)) {
		model->rounds++;
		return COMPARE_GOES_ON;
	}
	round_trip(model, COMPARE_RING, ns);
	return compare_judge(
		&model->compare, &model->costs, model->rounds % 10 < model->bells_in_10);
}

/* Returns the first verdict, or that there is none when the rings are kept. */
static enum compare_verdict verdict_of(struct model *model, uint64_t ns)
{
	enum compare_verdict verdict = COMPARE_GOES_ON;

	for (uint32_t i = 0; i < ROUNDS_MAX && verdict == COMPARE_GOES_ON; i++) {
		verdict = by_ring(model, ns);
	}
	return verdict;
}

/* All connections return to TCP, are measured there, and are carried again. */
static void by_tcp(struct model *model, uint32_t rounds, uint64_t ns)
{
	uint32_t carried = atomic_load(&model->compare.carried);

	for (uint32_t i = 0; i < carried; i++) {
		round_trip(model, COMPARE_TCP, 50 * SLOW_NS); /* not counted: others are carried */
		compare_returned(&model->compare);
	}
	for (uint32_t i = 0; i < rounds; i++) {
		round_trip(model, COMPARE_TCP, ns);
	}
	for (uint32_t i = 0; i < carried; i++) {
		compare_carried(&model->compare);
	}
}

TEST(who_seldom_wakes_is_never_compared)
{
	struct model model = model_of(3, 4, 4);

	assert_int_equal(verdict_of(&model, FAST_NS), COMPARE_GOES_ON);
}

TEST(who_often_wakes_or_sleeps_is_compared)
{
	static const uint32_t in_10[][2] = { { 10, 0 }, { 0, 10 }, { 6, 6 } };

	for (size_t i = 0; i < ARRAY_COUNT(in_10); i++) {
		struct model model = model_of(1, in_10[i][0], in_10[i][1]);

		assert_int_equal(verdict_of(&model, FAST_NS), COMPARE_UNKNOWN);
		assert_int_equal(model.rounds, COMPARE_NS / FAST_NS);
	}
}

/* The wake-ups of a program change: they are counted again. */
TEST(who_begins_to_wake_is_compared)
{
	struct model model = model_of(1, 0, 0);

	while (model.compare.pause == 0) {
		assert_int_equal(by_ring(&model, FAST_NS), COMPARE_GOES_ON);
	}
	model.bells_in_10 = 10;
	assert_int_equal(verdict_of(&model, FAST_NS), COMPARE_UNKNOWN);
	assert_true(model.rounds < 2 * COMPARE_NS / FAST_NS + COMPARE_PAUSE + 1);
}

TEST(the_faster_place_wins)
{
	struct model model = model_of(8, 10, 10);

	by_tcp(&model, 1000, FAST_NS);
	assert_int_equal(verdict_of(&model, SLOW_NS), COMPARE_SLOW);
	/* Its times are those since it last returned. */
	by_tcp(&model, 1000, SLOW_NS);
	assert_int_equal(verdict_of(&model, FAST_NS), COMPARE_GOES_ON);
	assert_int_equal(model.compare.settled, 8);
}

/* The mean is compared: a quarter of the round trips by rings takes very long. */
TEST(a_few_long_round_trips_are_slow)
{
	struct model model = model_of(8, 10, 10);
	enum compare_verdict verdict = COMPARE_GOES_ON;

	by_tcp(&model, 1000, SLOW_NS);
	while (verdict == COMPARE_GOES_ON) {
		verdict = by_ring(&model, model.rounds % 4 == 0 ? 20 * FAST_NS : FAST_NS);
		assert_int_equal(model.compare.settled, 0);
	}
	assert_int_equal(verdict, COMPARE_SLOW);
}

TEST(a_short_time_by_tcp_decides_only_if_it_is_clear)
{
	static const struct {
		uint64_t ring_ns;
		enum compare_verdict verdict;
	} cases[] = { { SLOW_NS * 2, COMPARE_SLOW }, { SLOW_NS * 9 / 10, COMPARE_UNKNOWN },
		{ FAST_NS, COMPARE_GOES_ON } };

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct model model = model_of(1, 10, 10);

		by_tcp(&model, COMPARE_TCP_MIN, SLOW_NS);
		assert_int_equal(verdict_of(&model, cases[i].ring_ns), cases[i].verdict);
		by_tcp(&model, COMPARE_TCP_MIN - 1, SLOW_NS);
		model.compare.settled = 0;
		assert_int_equal(verdict_of(&model, cases[i].ring_ns), COMPARE_UNKNOWN);
	}
}

/* Threads get in each other's way: what was better for one connection is compared again for three.
 */
TEST(more_connections_are_compared_again)
{
	struct model model = model_of(1, 10, 10);

	by_tcp(&model, 1000, SLOW_NS);
	assert_int_equal(verdict_of(&model, FAST_NS), COMPARE_GOES_ON);
	assert_int_equal(model.compare.settled, 1);
	compare_carried(&model.compare);
	assert_int_equal(model.compare.settled, 1);
	compare_carried(&model.compare);
	assert_int_equal(model.compare.settled, 0);
	assert_int_equal(verdict_of(&model, SLOW_NS + 1), COMPARE_SLOW);
}
