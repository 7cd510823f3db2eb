// SPDX-License-Identifier: Apache-2.0
#include "attach/timings.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"

static const char *const names[TIMINGS_STEPS] = {
	[TIMINGS_START] = "start",
	[TIMINGS_ARGUMENTS] = "arguments",
	[TIMINGS_FORK] = "fork",
	[TIMINGS_PROTECT] = "protect",
	[TIMINGS_DRIVER] = "driver",
	[TIMINGS_FILE] = "file",
	[TIMINGS_CONNECT] = "connect",
	[TIMINGS_LOOK] = "look",
	[TIMINGS_ADD] = "add",
	[TIMINGS_PARAMS] = "params",
	[TIMINGS_NODE] = "node",
	[TIMINGS_QUEUES] = "queues",
	[TIMINGS_DISK] = "disk",
	[TIMINGS_LIMITS] = "limits",
	[TIMINGS_WATCH] = "watch",
	[TIMINGS_STATE] = "state",
	[TIMINGS_TELL] = "tell",
};

static void keep(struct timings *timings, enum timings_step step, uint64_t ns)
{
	if (timings->count < TIMINGS_MAX) {
		timings->steps[timings->count].step = step;
		timings->steps[timings->count].ns = ns;
		timings->count++;
	}
}

void timings_begin(struct timings *timings)
{
	struct timespec used;

	*timings = (struct timings){ .last_ns = clock_now_ns() };
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	keep(timings, TIMINGS_START,
		(uint64_t)used.tv_sec * UINT64_C(1000000000) + (uint64_t)used.tv_nsec);
}

void timings_mark(struct timings *timings, enum timings_step step)
{
	uint64_t now;

	if (timings != NULL) {
		now = clock_now_ns();
		keep(timings, step, now - timings->last_ns);
		timings->last_ns = now;
	}
}

static const char *name_of(uint32_t step)
{
	/* It came through a pipe, from ourselves. */
	GMB_ASSERT(step < TIMINGS_STEPS);
	return names[step];
}

static uint64_t sum_ns(const struct timings *timings)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < timings->count; i++) {
		sum += timings->steps[i].ns;
	}
	return sum;
}

static int print_lines(const struct timings *timings)
{
	for (uint32_t i = 0; i < timings->count; i++) {
		fprintf(stderr, "%-10s %10.1f us\n", name_of(timings->steps[i].step),
			(double)timings->steps[i].ns / 1e3);
	}
	return fprintf(stderr, "%-10s %10.1f us\n", "all", (double)sum_ns(timings) / 1e3) < 0 ? -EIO
											      : 0;
}

static int print_json(const struct timings *timings, const char *path)
{
	json_t *steps = json_array();
	json_t *root = json_pack("{s:s, s:f, s:o}", "device", path, "us",
		(double)sum_ns(timings) / 1e3, "steps", steps);
	int rc = root == NULL ? -ENOMEM : 0;

	for (uint32_t i = 0; rc == 0 && i < timings->count; i++) {
		rc = json_array_append_new(
			     steps, json_pack("{s:s, s:f}", "step", name_of(timings->steps[i].step),
					    "us", (double)timings->steps[i].ns / 1e3)) == 0
			     ? 0
			     : -ENOMEM;
	}
	if (rc == 0 && (json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) != 0 ||
			       putchar('\n') == EOF)) {
		rc = -EIO;
	}
	json_decref(root);
	return rc;
}

int timings_print(const struct timings *timings, const char *path, bool json, struct error *error)
{
	int rc = json ? print_json(timings, path) : print_lines(timings);

	if (rc == -ENOMEM) {
		return error_set(error, rc, "out of memory");
	}
	return rc == 0 ? 0 : error_set(error, rc, "cannot print the times");
}
