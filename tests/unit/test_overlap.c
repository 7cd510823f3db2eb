// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "path/overlap.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)
#define MS  UINT64_C(1000000)

/* Lets the disk work at a rate for a while, one transfer after the other. */
static void work(struct overlap *overlap, uint64_t bytes_per_ms, uint64_t *now_ns)
{
	for (int i = 0; i < 100; i++) {
		overlap_disk_begin(overlap, *now_ns);
		*now_ns += MS;
		overlap_disk_end(overlap, bytes_per_ms, *now_ns);
	}
}

/* What is known of a disk of that rate once it has worked for a while. */
static struct overlap overlap_of_disk(uint64_t bytes_per_ms)
{
	uint64_t now_ns = 1;
	struct overlap overlap;

	overlap_init(&overlap);
	work(&overlap, bytes_per_ms, &now_ns);
	return overlap;
}

enum { MEMBERS = 8 };

static uint32_t ask(struct overlap *overlap, uint64_t length, uint64_t others, uint32_t chunk)
{
	uint32_t chosen;

	overlap->request_bytes = length + others;
	chosen = overlap_choose(overlap, length, chunk, chunk > 0 ? MEMBERS : 0);
	overlap->request_bytes = 0;
	return chosen;
}

/* The answer to a request that is none of those which are left whole to compare with. */
static uint32_t choose(struct overlap *overlap, uint64_t length, uint64_t others, uint32_t chunk)
{
	overlap->cuts = 8;
	return ask(overlap, length, others, chunk);
}

static void the_disks_rate_is_measured_while_it_works(void **state)
{
	struct overlap overlap;
	uint64_t now_ns = 1;

	(void)state;
	overlap_init(&overlap);
	work(&overlap, 200 * KIB, &now_ns);
	assert_in_range(overlap.disk_rate, 200 * KIB * 990, 200 * KIB * 1010);
	/* Idle time does not count, nor do two at the same time count twice. */
	now_ns += 1000 * MS;
	for (int i = 0; i < 100; i++) {
		overlap_disk_begin(&overlap, now_ns);
		overlap_disk_begin(&overlap, now_ns);
		now_ns += MS;
		overlap_disk_end(&overlap, 100 * KIB, now_ns);
		overlap_disk_end(&overlap, 100 * KIB, now_ns);
		now_ns += 7 * MS;
	}
	assert_in_range(overlap.disk_rate, 200 * KIB * 990, 200 * KIB * 1010);
}

static void a_disk_that_is_never_idle_is_measured_too(void **state)
{
	struct overlap overlap;
	uint64_t now_ns = 1;

	(void)state;
	overlap_init(&overlap);
	overlap_disk_begin(&overlap, now_ns);
	for (int i = 0; i < 100; i++) {
		overlap_disk_begin(&overlap, now_ns);
		now_ns += MS;
		overlap_disk_end(&overlap, 300 * KIB, now_ns);
	}
	assert_in_range(overlap.disk_rate, 300 * KIB * 990, 300 * KIB * 1010);
	overlap_disk_end(&overlap, 0, now_ns);
}

static void faster_ends_mean_larger_parts(void **state)
{
	uint64_t now_ns = 1;
	struct overlap slow;
	struct overlap fast;

	(void)state;
	overlap_init(&slow);
	overlap_init(&fast);
	work(&slow, 100 * KIB, &now_ns); /* 100 MB/s */
	work(&fast, 3 * MIB, &now_ns);	 /* 3 GB/s */
	assert_int_equal(choose(&slow, MIB, 0, 0), 32 * KIB);
	assert_int_equal(choose(&fast, MIB, 0, 0), 256 * KIB);
	/* Only the faster end matters: the other one hides it. */
	overlap_learn_network(&slow, 300 * MIB, 100 * MS); /* 3 GB/s */
	assert_int_equal(choose(&slow, MIB, 0, 0), 256 * KIB);
	/* Longer requests are cut into larger parts. */
	assert_true(choose(&fast, 16 * MIB, 0, 0) > 256 * KIB);
}

static void many_requests_overlap_with_each_other(void **state)
{
	struct overlap overlap = overlap_of_disk(3 * MIB);

	(void)state;
	assert_int_equal(choose(&overlap, MIB, 7 * MIB, 0), OVERLAP_BYTES_MAX);
}

static void short_requests_are_not_cut(void **state)
{
	uint64_t now_ns = 1;
	struct overlap overlap;

	(void)state;
	overlap_init(&overlap);
	assert_int_equal(choose(&overlap, 4 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	assert_int_equal(choose(&overlap, 64 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	work(&overlap, 3 * MIB, &now_ns);
	assert_int_equal(choose(&overlap, 128 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	assert_int_equal(choose(&overlap, 512 * KIB, 0, 0), 128 * KIB);
}

static void no_part_is_longer_than_a_chunk(void **state)
{
	struct overlap overlap = overlap_of_disk(400 * KIB);

	(void)state;
	assert_int_equal(choose(&overlap, MIB, 0, 0), 64 * KIB);
	assert_int_equal(choose(&overlap, MIB, 0, 16 * KIB), 16 * KIB);
	/* A chunk that is too short for a part of its own is not looked at. */
	assert_int_equal(choose(&overlap, MIB, 0, 4 * KIB), 64 * KIB);
	/* On a fast disk so many short parts are not worth it. */
	overlap = overlap_of_disk(3 * MIB);
	assert_int_equal(choose(&overlap, MIB, 0, 16 * KIB), OVERLAP_BYTES_MAX);
}

static void nothing_is_cut_before_something_is_known(void **state)
{
	struct overlap overlap;

	(void)state;
	overlap_init(&overlap);
	assert_int_equal(choose(&overlap, MIB, 0, 0), OVERLAP_BYTES_MAX);
}

/* Together they have as much unfinished as one disk. */
static void members_make_parts_smaller(void **state)
{
	struct overlap overlap = overlap_of_disk(400 * KIB);

	(void)state;
	assert_int_equal(choose(&overlap, MIB, 0, 0), 64 * KIB);
	assert_int_equal(choose(&overlap, MIB, 0, 512 * KIB), 32 * KIB);
	assert_int_equal(choose(&overlap, MIB, 0, 256 * KIB), 16 * KIB);
	/* A request on one member only is read like from any disk. */
	assert_int_equal(choose(&overlap, MIB, 0, 1024 * KIB), 64 * KIB);
}

/* A disk that completes all parts together is asked for whole requests, with a try now and then:
 * when it has changed its ways, that is found out. */
static void parts_that_come_together_are_given_up(void **state)
{
	struct overlap overlap = overlap_of_disk(3 * MIB);
	int tries = 0;

	(void)state;
	assert_false(overlap.early_measured);
	for (int i = 0; i < 64; i++) {
		overlap_learn_early(&overlap, 350000, 350000);
	}
	assert_true(overlap.early_measured);
	assert_int_equal(overlap.early, 0);
	for (int i = 0; i < 6400; i++) {
		tries += ask(&overlap, MIB, 0, 0) < OVERLAP_BYTES_MAX;
	}
	assert_in_range(tries, 50, 200);
	for (int i = 0; i < 64; i++) {
		overlap_learn_early(&overlap, 200000, 350000);
	}
	assert_int_equal(choose(&overlap, MIB, 0, 0), 256 * KIB);
}

/* On a disk where every part pays a latency, many take longer than one: whole requests then, until
 * a try shows that it has changed. */
static void parts_that_take_longer_are_given_up(void **state)
{
	struct overlap overlap = overlap_of_disk(400 * KIB);
	int tries = 0;

	(void)state;
	overlap_learn_request(&overlap, MIB, 6 * MS, false);
	assert_int_equal(choose(&overlap, MIB, 0, 0), 64 * KIB);
	/* A little longer is no harm: what the network hides is not seen here. */
	overlap_learn_request(&overlap, MIB, 7 * MS, true);
	assert_int_equal(choose(&overlap, MIB, 0, 0), 64 * KIB);
	for (int i = 0; i < 64; i++) {
		overlap_learn_request(&overlap, MIB, 18 * MS, true);
	}
	for (int i = 0; i < 6400; i++) {
		tries += ask(&overlap, MIB, 0, 0) < OVERLAP_BYTES_MAX;
	}
	assert_in_range(tries, 50, 200);
	for (int i = 0; i < 64; i++) {
		overlap_learn_request(&overlap, MIB, 4 * MS, true);
	}
	assert_int_equal(choose(&overlap, MIB, 0, 0), 64 * KIB);
}

/* Where parts are fine, whole requests are rare, but there are some to compare with. */
static void whole_requests_are_tried_now_and_then(void **state)
{
	struct overlap overlap = overlap_of_disk(400 * KIB);
	int whole = 0;

	(void)state;
	for (int i = 0; i < 10000; i++) {
		whole += ask(&overlap, MIB, 0, 0) == OVERLAP_BYTES_MAX;
	}
	assert_in_range(whole, 20, 60);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_disks_rate_is_measured_while_it_works),
		cmocka_unit_test(a_disk_that_is_never_idle_is_measured_too),
		cmocka_unit_test(faster_ends_mean_larger_parts),
		cmocka_unit_test(many_requests_overlap_with_each_other),
		cmocka_unit_test(short_requests_are_not_cut),
		cmocka_unit_test(nothing_is_cut_before_something_is_known),
		cmocka_unit_test(no_part_is_longer_than_a_chunk),
		cmocka_unit_test(members_make_parts_smaller),
		cmocka_unit_test(parts_that_take_longer_are_given_up),
		cmocka_unit_test(whole_requests_are_tried_now_and_then),
		cmocka_unit_test(parts_that_come_together_are_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
