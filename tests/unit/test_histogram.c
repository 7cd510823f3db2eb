// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "base/histogram.h"
#include "unit.h"

enum { VALUES = 20000 };

static struct histogram *fresh(void)
{
	struct histogram *histogram = calloc(1, sizeof(*histogram));

	assert_non_null(histogram);
	return histogram;
}

static uint64_t draw(uint64_t *state)
{
	uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);

	mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
	return mixed ^ (mixed >> 31);
}

static void check_bucket(uint64_t value)
{
	uint32_t index = histogram_index(value);
	uint64_t lowest;
	uint64_t highest;

	assert_true(index < HISTOGRAM_BUCKETS);
	lowest = histogram_lowest(index);
	highest = histogram_highest(index);
	assert_true(lowest <= value && value <= highest);
	assert_true(highest - lowest <= lowest / HISTOGRAM_PARTS);
	assert_int_equal(histogram_index(lowest), index);
	assert_int_equal(histogram_index(highest), index);
}

TEST(buckets_bound_the_error)
{
	uint64_t random = 1;

	for (uint64_t value = 0; value < 5000; value++) {
		check_bucket(value);
	}
	for (uint32_t bit = 0; bit < 64; bit++) {
		uint64_t power = UINT64_C(1) << bit;

		check_bucket(power);
		check_bucket(power - 1);
		check_bucket(power + 1);
		check_bucket(UINT64_MAX >> bit);
	}
	for (int i = 0; i < 100000; i++) {
		uint64_t value = draw(&random);

		check_bucket(value >> (value & 63));
	}
}

TEST(buckets_leave_no_gap)
{
	assert_true(histogram_lowest(0) == 0);
	for (uint32_t i = 1; i < HISTOGRAM_BUCKETS; i++) {
		assert_true(histogram_lowest(i) == histogram_highest(i - 1) + 1);
	}
	assert_true(histogram_highest(HISTOGRAM_BUCKETS - 1) == UINT64_MAX);
	assert_int_equal(histogram_index(UINT64_MAX), HISTOGRAM_BUCKETS - 1);
}

static int compare(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a;
	uint64_t right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

/* Against the sorted list of what was recorded. */
TEST(quantiles_agree_with_sorting)
{
	static const uint32_t parts[] = { 0, 1, 100000, 500000, 900000, 990000, 999000, 999900,
		999950, 1000000 };
	struct histogram *histogram = fresh();
	uint64_t *values = calloc(VALUES, sizeof(*values));
	uint64_t random = 2;
	uint64_t sum = 0;

	assert_non_null(values);
	for (int i = 0; i < VALUES; i++) {
		values[i] = 1000 + (draw(&random) >> (24 + draw(&random) % 30));
		sum += values[i];
		histogram_record(histogram, values[i]);
	}
	qsort(values, VALUES, sizeof(*values), compare);
	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		uint64_t rank = ((uint64_t)parts[i] * VALUES + 999999) / 1000000;
		uint64_t exact = values[rank == 0 ? 0 : rank - 1];
		uint64_t told = histogram_quantile(histogram, parts[i]);

		assert_true(told >= exact);
		assert_true(told - exact <= exact / HISTOGRAM_PARTS);
	}
	assert_true(histogram->minimum == values[0]);
	assert_true(histogram->maximum == values[VALUES - 1]);
	assert_true(histogram_quantile(histogram, 0) == values[0]);
	assert_true(histogram_quantile(histogram, 1000000) == values[VALUES - 1]);
	assert_true(histogram->sum == sum);
	assert_true(histogram->count == VALUES);
	free(values);
	free(histogram);
}

/* 99.99 % of 10,000 values is the last but one, not the last: no rounding in the rank. */
TEST(ranks_are_exact)
{
	struct histogram *histogram = fresh();

	for (int i = 0; i < 9999; i++) {
		histogram_record(histogram, 5);
	}
	histogram_record(histogram, 100);
	assert_true(histogram_quantile(histogram, 999900) == 5);
	assert_true(histogram_quantile(histogram, 999901) == 100);
	free(histogram);
}

TEST(an_empty_one_tells_zero)
{
	struct histogram *histogram = fresh();

	assert_true(histogram_quantile(histogram, 500000) == 0);
	assert_true(histogram_mean(histogram) == 0);
	assert_true(histogram_deviation(histogram) == 0);
	assert_true(histogram_between(histogram, 0, UINT64_MAX) == 0);
	free(histogram);
}

TEST(extremes_are_kept)
{
	struct histogram *histogram = fresh();

	histogram_record(histogram, 0);
	histogram_record(histogram, UINT64_MAX);
	histogram_record(histogram, UINT64_MAX);
	assert_true(histogram->minimum == 0);
	assert_true(histogram->maximum == UINT64_MAX);
	assert_true(histogram_quantile(histogram, 500000) == UINT64_MAX);
	assert_true(histogram_quantile(histogram, 100000) == 0);
	assert_true(histogram_mean(histogram) > 1.2e19 && histogram_mean(histogram) < 1.3e19);
	histogram_reset(histogram);
	assert_true(histogram->count == 0 && histogram->sum == 0);
	assert_true(histogram_quantile(histogram, 1000000) == 0);
	free(histogram);
}

TEST(the_deviation_is_right)
{
	struct histogram *histogram = fresh();

	for (int i = 0; i < 100; i++) {
		histogram_record(histogram, 100);
		histogram_record(histogram, 200);
	}
	assert_true(histogram_mean(histogram) == 150);
	assert_true(histogram_deviation(histogram) == 50);
	histogram_reset(histogram);
	/* A bucket is wide, and one value alone deviates from nothing. */
	histogram_record(histogram, 123456789);
	assert_true(histogram_deviation(histogram) == 0);
	free(histogram);
}

TEST(merging_is_recording_everything_in_one)
{
	struct histogram *one = fresh();
	struct histogram *parts[3] = { fresh(), fresh(), fresh() };
	uint64_t random = 3;

	for (int i = 0; i < VALUES; i++) {
		uint64_t value = draw(&random) >> (draw(&random) % 60);

		histogram_record(one, value);
		/* The last stays empty. */
		histogram_record(parts[value % 2], value);
	}
	histogram_merge(parts[0], parts[2]);
	histogram_merge(parts[2], parts[1]);
	histogram_merge(parts[0], parts[2]);
	assert_memory_equal(parts[0], one, sizeof(*one));
	for (int i = 0; i < 3; i++) {
		free(parts[i]);
	}
	free(one);
}

TEST(ranges_split_the_count)
{
	static const uint64_t borders[] = { 0, 1, 2, 5, 10, 20, 50, 100, 1000, 10000, 100000,
		UINT64_MAX };
	struct histogram *histogram = fresh();
	uint64_t random = 4;
	uint64_t total = 0;

	for (int i = 0; i < VALUES; i++) {
		histogram_record(histogram, draw(&random) % 200000);
	}
	for (size_t i = 0; i + 1 < ARRAY_COUNT(borders); i++) {
		total += histogram_between(histogram, borders[i], borders[i + 1]);
	}
	assert_true(total == VALUES);
	assert_true(histogram_between(histogram, 10, 10) == 0);
	free(histogram);
}
