// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "path/overlap.h"
#include "store/store.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)
#define MS  UINT64_C(1000000)

/* What is known of a disk and of how it is asked. */
struct disk {
	struct store_rate rate;
	struct overlap overlap;
};

static void disk_init(struct disk *disk)
{
	disk->rate = (struct store_rate){ 0 };
	overlap_init(&disk->overlap);
}

/* Lets the disk work at a rate for a while, one transfer after the other. */
static void work(struct disk *disk, uint64_t bytes_per_ms, uint64_t *now_ns)
{
	for (int i = 0; i < 100; i++) {
		store_rate_begin(&disk->rate, *now_ns);
		*now_ns += MS;
		store_rate_end(&disk->rate, bytes_per_ms, *now_ns);
	}
}

/* What is known of a disk of that rate once it has worked for a while. */
static struct disk disk_of_rate(uint64_t bytes_per_ms)
{
	uint64_t now_ns = 1;
	struct disk disk;

	disk_init(&disk);
	work(&disk, bytes_per_ms, &now_ns);
	return disk;
}

enum { MEMBERS = 8 };

static uint32_t ask(struct disk *disk, uint64_t length, uint64_t others, uint32_t chunk)
{
	uint32_t chosen;

	disk->overlap.request_bytes = length + others;
	chosen = overlap_choose(&disk->overlap, disk->rate.bytes_per_second, length, chunk,
		chunk > 0 ? MEMBERS : 0);
	disk->overlap.request_bytes = 0;
	return chosen;
}

/* The answer to a request that is none of those which are left whole to compare with. */
static uint32_t choose(struct disk *disk, uint64_t length, uint64_t others, uint32_t chunk)
{
	disk->overlap.cuts = 8;
	return ask(disk, length, others, chunk);
}

static void the_disks_rate_is_measured_while_it_works(void **state)
{
	struct disk disk;
	uint64_t now_ns = 1;

	(void)state;
	disk_init(&disk);
	work(&disk, 200 * KIB, &now_ns);
	assert_in_range(disk.rate.bytes_per_second, 200 * KIB * 990, 200 * KIB * 1010);
	/* Idle time does not count, nor do two at the same time count twice. */
	now_ns += 1000 * MS;
	for (int i = 0; i < 100; i++) {
		store_rate_begin(&disk.rate, now_ns);
		store_rate_begin(&disk.rate, now_ns);
		now_ns += MS;
		store_rate_end(&disk.rate, 100 * KIB, now_ns);
		store_rate_end(&disk.rate, 100 * KIB, now_ns);
		now_ns += 7 * MS;
	}
	assert_in_range(disk.rate.bytes_per_second, 200 * KIB * 990, 200 * KIB * 1010);
}

static void a_disk_that_is_never_idle_is_measured_too(void **state)
{
	struct disk disk;
	uint64_t now_ns = 1;

	(void)state;
	disk_init(&disk);
	store_rate_begin(&disk.rate, now_ns);
	for (int i = 0; i < 100; i++) {
		store_rate_begin(&disk.rate, now_ns);
		now_ns += MS;
		store_rate_end(&disk.rate, 300 * KIB, now_ns);
	}
	assert_in_range(disk.rate.bytes_per_second, 300 * KIB * 990, 300 * KIB * 1010);
	store_rate_end(&disk.rate, 0, now_ns);
}

static void faster_ends_mean_larger_parts(void **state)
{
	uint64_t now_ns = 1;
	struct disk slow;
	struct disk fast;

	(void)state;
	disk_init(&slow);
	disk_init(&fast);
	work(&slow, 100 * KIB, &now_ns); /* 100 MB/s */
	work(&fast, 3 * MIB, &now_ns);	 /* 3 GB/s */
	assert_int_equal(choose(&slow, MIB, 0, 0), 32 * KIB);
	assert_int_equal(choose(&fast, MIB, 0, 0), 256 * KIB);
	/* Only the faster end matters: the other one hides it. */
	overlap_learn_network(&slow.overlap, 300 * MIB, 100 * MS); /* 3 GB/s */
	assert_int_equal(choose(&slow, MIB, 0, 0), 256 * KIB);
	/* Longer requests are cut into larger parts. */
	assert_true(choose(&fast, 16 * MIB, 0, 0) > 256 * KIB);
}

static void many_requests_overlap_with_each_other(void **state)
{
	struct disk disk = disk_of_rate(3 * MIB);

	(void)state;
	assert_int_equal(choose(&disk, MIB, 7 * MIB, 0), OVERLAP_BYTES_MAX);
}

static void short_requests_are_not_cut(void **state)
{
	uint64_t now_ns = 1;
	struct disk disk;

	(void)state;
	disk_init(&disk);
	assert_int_equal(choose(&disk, 4 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	assert_int_equal(choose(&disk, 64 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	work(&disk, 3 * MIB, &now_ns);
	assert_int_equal(choose(&disk, 128 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	assert_int_equal(choose(&disk, 512 * KIB, 0, 0), 128 * KIB);
}

static void no_part_is_longer_than_a_chunk(void **state)
{
	struct disk disk = disk_of_rate(400 * KIB);

	(void)state;
	assert_int_equal(choose(&disk, MIB, 0, 0), 64 * KIB);
	assert_int_equal(choose(&disk, MIB, 0, 16 * KIB), 16 * KIB);
	/* A chunk that is too short for a part of its own is not looked at. */
	assert_int_equal(choose(&disk, MIB, 0, 4 * KIB), 64 * KIB);
	/* On a fast disk so many short parts are not worth it. */
	disk = disk_of_rate(3 * MIB);
	assert_int_equal(choose(&disk, MIB, 0, 16 * KIB), OVERLAP_BYTES_MAX);
}

static void nothing_is_cut_before_something_is_known(void **state)
{
	struct disk disk;

	(void)state;
	disk_init(&disk);
	assert_int_equal(choose(&disk, MIB, 0, 0), OVERLAP_BYTES_MAX);
}

/* Together they have as much unfinished as one disk. */
static void members_make_parts_smaller(void **state)
{
	struct disk disk = disk_of_rate(400 * KIB);

	(void)state;
	assert_int_equal(choose(&disk, MIB, 0, 0), 64 * KIB);
	assert_int_equal(choose(&disk, MIB, 0, 512 * KIB), 32 * KIB);
	assert_int_equal(choose(&disk, MIB, 0, 256 * KIB), 16 * KIB);
	/* A request on one member only is read like from any disk. */
	assert_int_equal(choose(&disk, MIB, 0, 1024 * KIB), 64 * KIB);
}

/* A disk that completes all parts together is asked for whole requests, with a try now and then:
 * when it has changed its ways, that is found out. */
static void parts_that_come_together_are_given_up(void **state)
{
	struct disk disk = disk_of_rate(3 * MIB);
	int tries = 0;

	(void)state;
	assert_false(disk.overlap.early_measured);
	for (int i = 0; i < 64; i++) {
		overlap_learn_early(&disk.overlap, 350000, 350000);
	}
	assert_true(disk.overlap.early_measured);
	assert_int_equal(disk.overlap.early, 0);
	for (int i = 0; i < 6400; i++) {
		tries += ask(&disk, MIB, 0, 0) < OVERLAP_BYTES_MAX;
	}
	assert_in_range(tries, 50, 200);
	for (int i = 0; i < 64; i++) {
		overlap_learn_early(&disk.overlap, 200000, 350000);
	}
	assert_int_equal(choose(&disk, MIB, 0, 0), 256 * KIB);
}

/* On a disk where every part pays a latency, many take longer than one: whole requests then, until
 * a try shows that it has changed. */
static void parts_that_take_longer_are_given_up(void **state)
{
	struct disk disk = disk_of_rate(400 * KIB);
	int tries = 0;

	(void)state;
	overlap_learn_request(&disk.overlap, MIB, 6 * MS, false);
	assert_int_equal(choose(&disk, MIB, 0, 0), 64 * KIB);
	/* A little longer is no harm: what the network hides is not seen here. */
	overlap_learn_request(&disk.overlap, MIB, 7 * MS, true);
	assert_int_equal(choose(&disk, MIB, 0, 0), 64 * KIB);
	for (int i = 0; i < 64; i++) {
		overlap_learn_request(&disk.overlap, MIB, 18 * MS, true);
	}
	for (int i = 0; i < 6400; i++) {
		tries += ask(&disk, MIB, 0, 0) < OVERLAP_BYTES_MAX;
	}
	assert_in_range(tries, 50, 200);
	for (int i = 0; i < 64; i++) {
		overlap_learn_request(&disk.overlap, MIB, 4 * MS, true);
	}
	assert_int_equal(choose(&disk, MIB, 0, 0), 64 * KIB);
}

/* Where parts are fine, whole requests are rare, but there are some to compare with. */
static void whole_requests_are_tried_now_and_then(void **state)
{
	struct disk disk = disk_of_rate(400 * KIB);
	int whole = 0;

	(void)state;
	for (int i = 0; i < 10000; i++) {
		whole += ask(&disk, MIB, 0, 0) == OVERLAP_BYTES_MAX;
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
