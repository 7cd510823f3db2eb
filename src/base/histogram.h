// SPDX-License-Identifier: Apache-2.0
/*
 * Histograms of 64-bit values (durations in nanoseconds, for example), with buckets that get wider
 * as the values grow: one row of buckets for each power of two, divided into equal parts.
 *
 *   0 1 2 … 255 | 256 257 … 511 | 512-513 514-515 … | 1024-1027 … | …
 *      exact    |     exact     |   256 buckets     | 256 buckets |
 *
 * Every 64-bit value has a bucket. Recording is O(1), without a branch that depends on the value. A
 * quantile is never below the recorded value and at most 1/256 (0.4 %) above it. Minimum, maximum,
 * sum and count are exact.
 *
 * Threading: one owner; threads count separately and merge. Ownership: self-contained, 114 KiB,
 * no memory to free; zeroed memory is an empty histogram. Errors: none; counters do not wrap in
 * practice.
 */
#pragma once

#include "base/compiler.h"

enum {
	HISTOGRAM_BITS = 8,
	HISTOGRAM_PARTS = 1 << HISTOGRAM_BITS,
	HISTOGRAM_BUCKETS = (64 - HISTOGRAM_BITS + 1) * HISTOGRAM_PARTS,
};

struct histogram {
	uint64_t count;
	uint64_t minimum; /* valid if count > 0, like maximum */
	uint64_t maximum;
	unsigned __int128 sum;
	uint64_t buckets[HISTOGRAM_BUCKETS];
};

/* Returns the bucket of a value. */
static inline uint32_t histogram_index(uint64_t value)
{
	/* The number of dropped low bits: HISTOGRAM_BITS + 1 bits remain. 0 for values that are
	 * stored exactly. */
	uint32_t shift = 63 - HISTOGRAM_BITS - (uint32_t)__builtin_clzll(value | HISTOGRAM_PARTS);

	return (shift << HISTOGRAM_BITS) + (uint32_t)(value >> shift);
}

static inline void histogram_record(struct histogram *histogram, uint64_t value)
{
	histogram->minimum = histogram->count == 0 ? value : MIN(histogram->minimum, value);
	histogram->maximum = MAX(histogram->maximum, value);
	histogram->count++;
	histogram->sum += value;
	histogram->buckets[histogram_index(value)]++;
}

/* Empties the histogram. */
void histogram_reset(struct histogram *histogram);

/* Adds all values of the histogram `from` to the histogram `into`. */
void histogram_merge(struct histogram *into, const struct histogram *from);

/* Return the smallest and the largest value of a bucket. index < HISTOGRAM_BUCKETS. */
uint64_t histogram_lowest(uint32_t index);
uint64_t histogram_highest(uint32_t index);

/*
 * Returns the value that parts_per_million of all values do not exceed (990000: the 99th
 * percentile). The result is the upper end of the value's bucket, or the maximum if that is less.
 * If the quantile falls on the smallest value, the result is the minimum. Returns 0 if the
 * histogram is empty.
 */
uint64_t histogram_quantile(const struct histogram *histogram, uint32_t parts_per_million);

/* Return the exact mean, and the standard deviation estimated from the buckets; 0 if the histogram
 * is empty. */
double histogram_mean(const struct histogram *histogram);
double histogram_deviation(const struct histogram *histogram);

/* Returns the number of values in the buckets whose lowest value is at least low and less than
 * high. */
uint64_t histogram_between(const struct histogram *histogram, uint64_t low, uint64_t high);
