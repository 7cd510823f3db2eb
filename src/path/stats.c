// SPDX-License-Identifier: Apache-2.0
#include "path/stats.h"

/* The unit of the buckets: about a microsecond. */
enum { UNIT_SHIFT = 10, PART_BITS = 3 };

_Static_assert(PATH_LATENCY_PARTS == 1 << PART_BITS, "parts");

uint32_t path_size_class(uint64_t length)
{
	uint32_t size_class = 0;

	while (size_class < PATH_SIZE_CLASS_COUNT - 1 &&
		length > path_size_class_limit(size_class)) {
		size_class++;
	}
	return size_class;
}

uint64_t path_size_class_limit(uint32_t size_class)
{
	return size_class < PATH_SIZE_CLASS_COUNT - 1 ? UINT64_C(4096) << 2 * size_class
						      : UINT64_MAX;
}

/* 0 to 7 exact, then 8 for each doubling. */
static uint32_t bucket_of(uint64_t ns)
{
	uint64_t units = ns >> UNIT_SHIFT;
	uint32_t bucket;

	if (units < PATH_LATENCY_PARTS) {
		return (uint32_t)units;
	}
	uint32_t shift = 63 - PART_BITS - (uint32_t)__builtin_clzll(units);

	bucket = (shift << PART_BITS) + (uint32_t)(units >> shift);
	return MIN(bucket, (uint32_t)PATH_LATENCY_BUCKETS - 1);
}

/* The first value that is above the bucket. */
static uint64_t bucket_end_ns(uint32_t bucket)
{
	uint32_t shift = bucket < PATH_LATENCY_PARTS ? 0 : (bucket >> PART_BITS) - 1;
	uint64_t units = bucket - ((uint64_t)shift << PART_BITS);

	return ((units + 1) << shift) << UNIT_SHIFT;
}

void path_stats_add(struct path_stats *stats, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t bytes, bool failed)
{
	uint64_t end_ns = edge_ns[PATH_STATE_FIN];
	uint64_t total_ns = end_ns - edge_ns[PATH_STATE_INIT];

	for (int state = PATH_STATE_SEND; state >= PATH_STATE_INIT; state--) {
		if (edge_ns[state] != 0) {
			stats->state_ns[state] += end_ns - edge_ns[state];
			end_ns = edge_ns[state];
		}
	}
	stats->count++;
	stats->bytes += failed ? 0 : bytes;
	stats->errors += failed;
	stats->total_ns += total_ns;
	stats->max_ns = MAX(stats->max_ns, total_ns);
	stats->latency[bucket_of(total_ns)]++;
}

void path_stats_merge(struct path_stats *into, const struct path_stats *from)
{
	into->count += from->count;
	into->errors += from->errors;
	into->bytes += from->bytes;
	for (int state = 0; state < PATH_STATE_COUNT; state++) {
		into->state_ns[state] += from->state_ns[state];
	}
	into->total_ns += from->total_ns;
	into->max_ns = MAX(into->max_ns, from->max_ns);
	for (int bucket = 0; bucket < PATH_LATENCY_BUCKETS; bucket++) {
		into->latency[bucket] += from->latency[bucket];
	}
}

uint64_t path_stats_quantile_ns(const struct path_stats *stats, uint32_t parts_per_million)
{
	/* As many requests are in buckets up to the answer; rounded up, so that 100 % is all. */
	uint64_t wanted =
		(uint64_t)(((unsigned __int128)stats->count * parts_per_million + 999999) /
			   1000000);
	uint64_t seen = 0;

	for (uint32_t bucket = 0; bucket < PATH_LATENCY_BUCKETS && stats->count > 0; bucket++) {
		seen += stats->latency[bucket];
		if (seen >= wanted && seen > 0) {
			/* The last bucket has no end. */
			return bucket == PATH_LATENCY_BUCKETS - 1
				       ? stats->max_ns
				       : MIN(bucket_end_ns(bucket), stats->max_ns);
		}
	}
	return stats->max_ns;
}
