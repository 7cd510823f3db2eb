// SPDX-License-Identifier: Apache-2.0
/*
 * Counts values (durations in nanoseconds, say) in buckets whose width grows with the value: log
 * buckets, each cut into equal parts.
 *
 *   0 1 2 … 255 | 256 257 … 511 | 512-513 514-515 … | 1024-1027 … | …
 *      exact    |     exact     |   256 of them     | 256 of them |
 *
 * Every 64-bit value has a bucket, recording is O(1) without a branch on the value, and what is
 * read back is never below the value and at most 1/256 (0.4 %) above it. Minimum, maximum, sum and
 * number are exact.
 *
 * Threading: one owner; threads count apart and merge. Ownership: self-contained, 114 KiB, nothing
 * to free; zeroed memory is an empty histogram. Errors: none; counters do not wrap in practice.
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
	uint64_t minimum; /* valid while count > 0, as is the maximum */
	uint64_t maximum;
	unsigned __int128 sum;
	uint64_t buckets[HISTOGRAM_BUCKETS];
};

/* The bucket of a value. */
static inline uint32_t histogram_index(uint64_t value)
{
	/* Bits above the HISTOGRAM_BITS + 1 that are kept: 0 for the exact values. */
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

/* Forgets everything. */
void histogram_reset(struct histogram *histogram);

/* Adds what another one counted. */
void histogram_merge(struct histogram *into, const struct histogram *from);

/* The smallest and the largest value of a bucket. index < HISTOGRAM_BUCKETS. */
uint64_t histogram_lowest(uint32_t index);
uint64_t histogram_highest(uint32_t index);

/*
 * The value that parts_per_million of all values do not exceed (990000: the 99th percentile): the
 * upper end of its bucket, or the maximum if that is less. 0 when empty.
 */
uint64_t histogram_quantile(const struct histogram *histogram, uint32_t parts_per_million);

/* Mean, and standard deviation as the buckets tell it; 0 when empty. */
double histogram_mean(const struct histogram *histogram);
double histogram_deviation(const struct histogram *histogram);

/* How many values are in the buckets that begin at low or above and below high. */
uint64_t histogram_between(const struct histogram *histogram, uint64_t low, uint64_t high);
