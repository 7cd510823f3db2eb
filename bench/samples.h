// SPDX-License-Identifier: Apache-2.0
/*
 * What the small programs share: clocks, random blocks, samples of requests and their report.
 *
 * A sample is one request, from its start to its end. The rate is bytes over the time that the
 * program says it measured for, so that what lies between requests counts as well. Threading: one
 * thread. Ownership: the caller's struct, which keeps its samples until the program ends. Errors:
 * ends the program with status 1 when there is no memory or nothing to report.
 */
#pragma once

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SAMPLES_NS_PER_S UINT64_C(1000000000)

enum { SAMPLES_MAX = 1 << 20 };

struct samples {
	uint64_t elapsed_ns;
	uint64_t count;
	uint64_t *latency_ns; /* of the first SAMPLES_MAX */
};

static inline uint64_t samples_clock_ns(clockid_t clock)
{
	struct timespec now;

	if (clock_gettime(clock, &now) != 0) {
		perror("a clock");
		exit(1);
	}
	return (uint64_t)now.tv_sec * SAMPLES_NS_PER_S + (uint64_t)now.tv_nsec;
}

static inline uint64_t samples_now_ns(void)
{
	return samples_clock_ns(CLOCK_MONOTONIC);
}

/* SplitMix64, scaled to 0 … below - 1: the same numbers as "gmblock bench" draws. */
static inline uint64_t samples_draw(uint64_t *state, uint64_t below)
{
	uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);

	mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
	mixed ^= mixed >> 31;
	return (uint64_t)(((unsigned __int128)mixed * below) >> 64);
}

static inline uint64_t samples_time_of(const char *seconds)
{
	double value = strtod(seconds, NULL);

	if (!(value >= 0) || value > 3600) {
		fprintf(stderr, "a time is out of range\n");
		exit(2);
	}
	return (uint64_t)(value * 1e9);
}

static inline void samples_init(struct samples *samples)
{
	*samples = (struct samples){ .latency_ns = malloc(SAMPLES_MAX * sizeof(uint64_t)) };
	if (samples->latency_ns == NULL) {
		fprintf(stderr, "no memory\n");
		exit(1);
	}
}

static inline void samples_add(struct samples *samples, uint64_t latency_ns)
{
	if (samples->count < SAMPLES_MAX) {
		samples->latency_ns[samples->count] = latency_ns;
	}
	samples->count++;
}

static inline int samples_compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left;
	uint64_t b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

/* Members of a JSON object, without its braces. */
static inline void samples_print(struct samples *samples, uint64_t bytes)
{
	uint64_t kept = samples->count < SAMPLES_MAX ? samples->count : SAMPLES_MAX;
	double seconds = (double)samples->elapsed_ns / 1e9;
	double sum = 0;

	if (kept == 0 || samples->elapsed_ns == 0) {
		fprintf(stderr, "no request was completed in the time\n");
		exit(1);
	}
	for (uint64_t i = 0; i < kept; i++) {
		sum += (double)samples->latency_ns[i];
	}
	qsort(samples->latency_ns, kept, sizeof(uint64_t), samples_compare);
	printf("\"requests\": %" PRIu64 ", \"seconds\": %.6f, \"bytes_per_s\": %.1f, "
	       "\"latency_mean_us\": %.3f, \"latency_p50_us\": %.3f, \"latency_p99_us\": %.3f",
		samples->count, seconds, (double)samples->count * (double)bytes / seconds,
		sum / (double)kept / 1e3, (double)samples->latency_ns[kept / 2] / 1e3,
		(double)samples->latency_ns[kept * 99 / 100] / 1e3);
}
