// SPDX-License-Identifier: Apache-2.0
/*
 * A program that is bound by memory: the triad of STREAM, a[i] = b[i] + q * c[i], over arrays that
 * no cache holds. bench/neighbour runs it beside servers.
 *
 *   triad BYTES     the size of the three arrays together; prints "ready", then runs for as many
 *                   seconds as each line of its standard input says and prints one JSON object
 *
 * Bytes are counted as STREAM does: two reads and a write for each element.
 *
 * Threading: one thread. Ownership: none. Errors: exit status 1 or 2 and a line on standard error.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

enum { ELEMENTS_PER_LOOK = 64 << 10, BYTES_MIN = 1 << 20, BYTES_PER_ELEMENT = 3 * sizeof(double) };
#define BYTES_MAX (UINT64_C(4) << 30)

struct arrays {
	double *a;
	double *b;
	double *c;
	uint64_t count;
};

/* On huge pages where there are some, so that it is memory that limits and not the page tables. */
static double *array_of(uint64_t count, double value)
{
	double *array =
		aligned_alloc(2 << 20, (count * sizeof(double) + (2 << 20) - 1) >> 21 << 21);

	if (array == NULL) {
		fprintf(stderr, "triad: no memory\n");
		exit(1);
	}
	for (uint64_t i = 0; i < count; i++) {
		array[i] = value;
	}
	return array;
}

static void triad(double *restrict a, const double *restrict b, const double *restrict c,
	double factor, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		a[i] = b[i] + factor * c[i];
	}
}

static void run(const struct arrays *arrays, double seconds)
{
	double begin = control_now_s();
	double cpu = control_cpu_s();
	double now = begin;
	uint64_t done = 0;
	uint64_t at = 0;

	while (now < begin + seconds) {
		uint64_t count = arrays->count - at < ELEMENTS_PER_LOOK ? arrays->count - at
									: ELEMENTS_PER_LOOK;

		triad(arrays->a + at, arrays->b + at, arrays->c + at, 3, count);
		/* The result counts: no compiler may leave the work out. */
		__asm__ volatile("" : : "r"(arrays->a) : "memory");
		done += count;
		at = at + count == arrays->count ? 0 : at + count;
		now = control_now_s();
	}
	printf("{ \"seconds\": %.6f, \"bytes_per_second\": %.1f, \"cpu_seconds\": %.6f }\n",
		now - begin, (double)done * BYTES_PER_ELEMENT / (now - begin),
		control_cpu_s() - cpu);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct arrays arrays;
	uint64_t bytes = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
	char line[64];

	if (bytes < BYTES_MIN || bytes > BYTES_MAX) {
		fprintf(stderr, "usage: triad BYTES (1 MiB to 4 GiB)\n");
		return 2;
	}
	arrays.count = bytes / BYTES_PER_ELEMENT;
	arrays.a = array_of(arrays.count, 0);
	arrays.b = array_of(arrays.count, 1);
	arrays.c = array_of(arrays.count, 2);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		char *end;
		double seconds = strtod(line, &end);

		if (end == line || !(seconds > 0)) {
			fprintf(stderr, "triad: not a time: %s", line);
			return 2;
		}
		run(&arrays, seconds);
	}
	free(arrays.a);
	free(arrays.b);
	free(arrays.c);
	return 0;
}
