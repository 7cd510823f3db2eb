// SPDX-License-Identifier: Apache-2.0
#include "base/histogram.h"

#include <math.h>
#include <string.h>

enum { MILLION = 1000000 };

void histogram_reset(struct histogram *histogram)
{
	memset(histogram, 0, sizeof(*histogram));
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
	if (from->count == 0) {
		return;
	}
	into->minimum = into->count == 0 ? from->minimum : MIN(into->minimum, from->minimum);
	into->maximum = MAX(into->maximum, from->maximum);
	into->count += from->count;
	into->sum += from->sum;
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		into->buckets[i] += from->buckets[i];
	}
}

/* The first two rows of HISTOGRAM_PARTS buckets are exact. Each further row starts at the next
 * power of two, and its buckets are twice as wide as in the row before. */
static uint32_t index_shift(uint32_t index)
{
	return index < 2 * HISTOGRAM_PARTS ? 0 : index / HISTOGRAM_PARTS - 1;
}

uint64_t histogram_lowest(uint32_t index)
{
	uint32_t shift = index_shift(index);

	GMB_ASSERT(index < HISTOGRAM_BUCKETS);
	return (uint64_t)(index - shift * HISTOGRAM_PARTS) << shift;
}

uint64_t histogram_highest(uint32_t index)
{
	return histogram_lowest(index) + ((UINT64_C(1) << index_shift(index)) - 1);
}

/* Rounds the number of values up, so that at least the requested share of all values is not above
 * the result. */
uint64_t histogram_quantile(const struct histogram *histogram, uint32_t parts_per_million)
{
	unsigned __int128 product = (unsigned __int128)histogram->count * parts_per_million;
	uint64_t rank = (uint64_t)((product + MILLION - 1) / MILLION);
	uint64_t seen = 0;

	GMB_ASSERT(parts_per_million <= MILLION);
	if (histogram->count == 0) {
		return 0;
	}
	if (rank <= 1) {
		return histogram->minimum;
	}
	for (uint32_t i = histogram_index(histogram->minimum); i < HISTOGRAM_BUCKETS; i++) {
		seen += histogram->buckets[i];
		if (seen >= rank) {
			return MIN(histogram_highest(i), histogram->maximum);
		}
	}
	return histogram->maximum;
}

double histogram_mean(const struct histogram *histogram)
{
	return histogram->count == 0 ? 0 : (double)histogram->sum / (double)histogram->count;
}

/* Assumes that each value is in the middle of its bucket, limited to the minimum and maximum. */
double histogram_deviation(const struct histogram *histogram)
{
	double mean = histogram_mean(histogram);
	double squares = 0;

	if (histogram->count == 0) {
		return 0;
	}
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		double middle;

		if (histogram->buckets[i] == 0) {
			continue;
		}
		middle = ((double)MAX(histogram_lowest(i), histogram->minimum) +
				 (double)MIN(histogram_highest(i), histogram->maximum)) /
			 2;
		squares += (middle - mean) * (middle - mean) * (double)histogram->buckets[i];
	}
	return sqrt(squares / (double)histogram->count);
}

uint64_t histogram_between(const struct histogram *histogram, uint64_t low, uint64_t high)
{
	uint64_t count = 0;

	if (low >= high) {
		return 0;
	}
	for (uint32_t i = histogram_index(low); i < HISTOGRAM_BUCKETS; i++) {
		uint64_t lowest = histogram_lowest(i);

		if (lowest >= high) {
			break;
		}
		if (lowest >= low) {
			count += histogram->buckets[i];
		}
	}
	return count;
}
