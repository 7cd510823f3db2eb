// SPDX-License-Identifier: Apache-2.0
#include "path/overlap.h"
#include "store/store.h"
#include "unit.h"

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

/* Returns the part size of a request. others: bytes of other requests in flight. */
static uint32_t choose(struct disk *disk, uint64_t length, uint64_t others, uint32_t chunk)
{
	uint32_t chosen;

	disk->overlap.request_bytes = length + others;
	chosen = overlap_choose(&disk->overlap, disk->rate.bytes_per_second, length, chunk,
		chunk > 0 ? MEMBERS : 0);
	disk->overlap.request_bytes = 0;
	return chosen;
}

TEST(the_disks_rate_is_measured_while_it_works)
{
	struct disk disk;
	uint64_t now_ns = 1;

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

TEST(a_disk_that_is_never_idle_is_measured_too)
{
	struct disk disk;
	uint64_t now_ns = 1;

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

TEST(faster_ends_mean_larger_parts)
{
	uint64_t now_ns = 1;
	struct disk slow;
	struct disk fast;

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

TEST(many_requests_overlap_with_each_other)
{
	struct disk disk = disk_of_rate(3 * MIB);

	assert_int_equal(choose(&disk, MIB, 7 * MIB, 0), OVERLAP_BYTES_MAX);
}

TEST(short_requests_are_not_cut)
{
	uint64_t now_ns = 1;
	struct disk disk;

	disk_init(&disk);
	assert_int_equal(choose(&disk, 4 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	assert_int_equal(choose(&disk, 64 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	work(&disk, 3 * MIB, &now_ns);
	assert_int_equal(choose(&disk, 128 * KIB, 0, 0), OVERLAP_BYTES_MAX);
	assert_int_equal(choose(&disk, 512 * KIB, 0, 0), 128 * KIB);
}

TEST(no_part_is_longer_than_a_chunk)
{
	struct disk disk = disk_of_rate(400 * KIB);

	assert_int_equal(choose(&disk, MIB, 0, 0), 64 * KIB);
	assert_int_equal(choose(&disk, MIB, 0, 16 * KIB), 16 * KIB);
	/* A chunk that is too short for a part of its own is not looked at. */
	assert_int_equal(choose(&disk, MIB, 0, 4 * KIB), 64 * KIB);
	/* On a fast disk so many short parts are not worth it. */
	disk = disk_of_rate(3 * MIB);
	assert_int_equal(choose(&disk, MIB, 0, 16 * KIB), OVERLAP_BYTES_MAX);
}

TEST(nothing_is_cut_before_something_is_known)
{
	struct disk disk;

	disk_init(&disk);
	assert_int_equal(choose(&disk, MIB, 0, 0), OVERLAP_BYTES_MAX);
}

/* Together they have as much unfinished as one disk. */
TEST(members_make_parts_smaller)
{
	struct disk disk = disk_of_rate(400 * KIB);

	assert_int_equal(choose(&disk, MIB, 0, 0), 64 * KIB);
	assert_int_equal(choose(&disk, MIB, 0, 512 * KIB), 32 * KIB);
	assert_int_equal(choose(&disk, MIB, 0, 256 * KIB), 16 * KIB);
	/* A request on one member only is read like from any disk. */
	assert_int_equal(choose(&disk, MIB, 0, 1024 * KIB), 64 * KIB);
}

/* --- requests in parts and whole ones -------------------------------------------------------- */

/* A client that keeps some requests of 1 MiB in flight, each of which takes that long. */
struct client {
	struct overlap overlap;
	uint64_t now_ns;
	uint32_t depth;
	uint64_t whole_ns; /* until the socket has the reply */
	uint64_t cut_ns;
	uint64_t whole_drain_ns; /* after that, until the client has it */
	uint64_t cut_drain_ns;
	uint64_t think_ns; /* after each answer */
};

enum { DEPTH_MAX = 8 };

/* Returns how many of these requests were cut. */
static uint32_t run(struct client *client, uint32_t count)
{
	bool is_cut[DEPTH_MAX];
	uint32_t cuts = 0;

	for (uint32_t i = 0; i < count + client->depth; i++) {
		uint64_t took_ns;
		uint64_t drain_ns;

		if (i >= client->depth) {
			took_ns = is_cut[i % client->depth] ? client->cut_ns : client->whole_ns;
			client->now_ns += took_ns / client->depth;
			drain_ns = is_cut[i % client->depth] ? client->cut_drain_ns
							     : client->whole_drain_ns;
			overlap_end(&client->overlap, MIB, drain_ns, client->now_ns);
			client->now_ns += drain_ns + client->think_ns;
		}
		if (i < count) {
			is_cut[i % client->depth] = overlap_begin(&client->overlap, client->now_ns);
			cuts += is_cut[i % client->depth];
		}
	}
	return cuts;
}

static struct client client_of(uint32_t depth, uint64_t whole_ns, uint64_t cut_ns)
{
	struct client client = {
		.now_ns = 1, .depth = depth, .whole_ns = whole_ns, .cut_ns = cut_ns
	};

	overlap_init(&client.overlap);
	return client;
}

/* A new server does not know disk and network, so it begins with whole requests. */
TEST(the_first_requests_are_whole)
{
	for (uint32_t depth = 1; depth <= DEPTH_MAX; depth *= 8) {
		struct client client = client_of(depth, MS, MS);

		assert_int_equal(run(&client, 2), 0);
	}
}

TEST(parts_that_pay_are_used)
{
	for (uint32_t depth = 1; depth <= DEPTH_MAX; depth *= 2) {
		struct client client = client_of(depth, MS, MS * 3 / 4);

		(void)run(&client, 100);
		assert_in_range(run(&client, 10000), 9700, 9950);
	}
}

/* Where parts take longer, or not clearly less, they are tried rarely, and for a short time first.
 */
TEST(parts_that_do_not_pay_are_given_up)
{
	static const uint64_t cut_ns[] = { MS * 3, MS * 5 / 4, MS, MS * 98 / 100 };

	for (size_t i = 0; i < sizeof(cut_ns) / sizeof(cut_ns[0]); i++) {
		for (uint32_t depth = 1; depth <= DEPTH_MAX; depth *= 2) {
			struct client client = client_of(depth, MS, cut_ns[i]);

			assert_in_range(run(&client, 100), 4, 64);
			assert_in_range(run(&client, 10000), 50, 300);
		}
	}
}

TEST(a_change_of_the_disk_is_noticed)
{
	struct client client = client_of(1, MS, MS * 2);

	(void)run(&client, 1000);
	client.cut_ns = MS / 2;
	(void)run(&client, 1000);
	assert_in_range(run(&client, 1000), 950, 1000);
	client.whole_ns = MS / 4;
	(void)run(&client, 1000);
	assert_in_range(run(&client, 1000), 0, 50);
}

/* A client that thinks longer than its requests take still waits for them. */
TEST(pauses_hide_no_difference)
{
	struct client client = client_of(1, MS, MS * 3 / 4);

	client.think_ns = 50 * MS;
	(void)run(&client, 100);
	assert_in_range(run(&client, 1000), 950, 1000);
}

/* The socket accepts a reply immediately, and a slow network needs as long for it as the disk. With
 * parts, it has hardly anything left when the disk is ready. */
TEST(what_the_network_still_has_counts)
{
	for (uint64_t think_ns = 0; think_ns <= 50 * MS; think_ns += 50 * MS) {
		struct client client = client_of(1, 5 * MS, 5 * MS + MS / 10);

		client.whole_drain_ns = 5 * MS;
		client.cut_drain_ns = MS / 4;
		client.think_ns = think_ns;
		(void)run(&client, 100);
		assert_in_range(run(&client, 1000), 950, 1000);
	}
}
