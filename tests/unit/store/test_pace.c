// SPDX-License-Identifier: Apache-2.0
/*
 * A paced store takes the time of the disk it stands for, to the nanosecond on a simulated clock:
 * one member and several, queues at the members, latency, what is told meanwhile, and failures.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../stores.h"
#include "sim/sim.h"
#include "store/store.h"
#include "unit.h"

enum {
	KIB = 1024,
	REPORTED_MAX = 128,
	STORE_BYTES = 16 << 20,
	/* What the simulated machine itself takes: an operation 1 us, a look at the clock 40 ns. */
	SLACK_NS = 3000,
};

#define SECOND_NS UINT64_C(1000000000)
/* Of 64 KiB at 1 MiB/s. */
#define CHUNK_NS (SECOND_NS / 16)

struct paced {
	struct ring *ring;
	struct store *store;
	struct store_queue *queue;
	uint64_t begin_ns;
};

struct timed_part {
	struct store_part part;
	bool is_done;
	int result;
	uint64_t done_ns;
	uint32_t progress_count;
	uint64_t reported[REPORTED_MAX];
	uint64_t progress_ns[REPORTED_MAX];
};

static uint8_t memory[STORE_BYTES];
static uint32_t done_count;

static void queue_open(struct paced *paced)
{
	struct error error;

	if (ring_create(&(struct ring_options){ 0 }, &paced->ring, &error) != 0 ||
		store_queue_create(paced->store, paced->ring, &paced->queue, &error) != 0) {
		fail_msg("%s", error.text);
	}
	paced->begin_ns = sim_now_ns();
}

static void paced_open(struct paced *paced, const char *path, const char *pace)
{
	struct store_options options = { .path = path };
	struct error error;

	sim_start(&(struct sim_options){ .seed = 1 });
	stores_set(&options, "pace", pace);
	if (store_open(&options, &paced->store, &error) != 0) {
		fail_msg("%s", error.text);
	}
	store_options_fini(&options);
	done_count = 0;
	queue_open(paced);
}

static void paced_close(struct paced *paced)
{
	store_queue_destroy(paced->queue);
	ring_destroy(paced->ring);
	store_close(paced->store);
	sim_stop();
}

static void timed_done(struct store_part *part, int result)
{
	struct timed_part *timed = container_of(part, struct timed_part, part);

	assert_false(timed->is_done);
	timed->is_done = true;
	timed->result = result;
	timed->done_ns = sim_now_ns();
	done_count++;
}

static void timed_progressed(struct store_part *part, uint64_t bytes)
{
	struct timed_part *timed = container_of(part, struct timed_part, part);

	assert_false(timed->is_done);
	assert_true(bytes < part->length);
	assert_true(timed->progress_count < REPORTED_MAX);
	assert_true(
		timed->progress_count == 0 || bytes > timed->reported[timed->progress_count - 1]);
	timed->reported[timed->progress_count] = bytes;
	timed->progress_ns[timed->progress_count] = sim_now_ns();
	timed->progress_count++;
}

static void begin(struct paced *paced, struct timed_part *timed, enum store_op op, uint64_t offset,
	uint64_t length)
{
	memset(timed, 0, sizeof(*timed));
	timed->part.op = op;
	timed->part.offset = offset;
	timed->part.length = length;
	timed->part.memory = mem_of(memory);
	timed->part.done = timed_done;
	timed->part.progressed = op == STORE_READ ? timed_progressed : NULL;
	store_submit(paced->queue, &timed->part);
	assert_false(timed->is_done);
}

static void finish(struct timed_part *timed)
{
	while (!timed->is_done) {
		assert_true(sim_step());
	}
}

static void read_whole(
	struct paced *paced, struct timed_part *timed, uint64_t offset, uint64_t length)
{
	begin(paced, timed, STORE_READ, offset, length);
	finish(timed);
	assert_int_equal(timed->result, 0);
}

static void check_at(uint64_t at_ns, uint64_t expected_ns)
{
	if (at_ns < expected_ns || at_ns > expected_ns + SLACK_NS) {
		fail_msg("at %llu ns instead of %llu", (unsigned long long)at_ns,
			(unsigned long long)expected_ns);
	}
}

/* Ended successfully, so long after the beginning. */
static void check_done(const struct paced *paced, const struct timed_part *timed, uint64_t after_ns)
{
	assert_true(timed->is_done);
	assert_int_equal(timed->result, 0);
	check_at(timed->done_ns, paced->begin_ns + after_ns);
}

static void check_progress(const struct paced *paced, const struct timed_part *timed, uint32_t idx,
	uint64_t bytes, uint64_t after_ns)
{
	assert_true(idx < timed->progress_count);
	assert_int_equal(timed->reported[idx], bytes);
	check_at(timed->progress_ns[idx], paced->begin_ns + after_ns);
}

/* --- time ---------------------------------------------------------------------------------- */

TEST(test_bytes_take_time_at_the_rate)
{
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M");
	read_whole(&paced, &timed, 4096, 64 * KIB);
	check_done(&paced, &timed, CHUNK_NS);
	paced.begin_ns = sim_now_ns();
	read_whole(&paced, &timed, 77, 1);
	check_done(&paced, &timed, 954); /* a nanosecond that has begun counts */
	paced_close(&paced);
}

TEST(test_latency_comes_before_each_part)
{
	struct timed_part timed[2];
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M:latency=10ms");
	begin(&paced, &timed[0], STORE_READ, 0, 64 * KIB);
	begin(&paced, &timed[1], STORE_WRITE, 0, 64 * KIB);
	finish(&timed[1]);
	check_done(&paced, &timed[0], CHUNK_NS + 10000000);
	check_done(&paced, &timed[1], 2 * CHUNK_NS + 20000000);
	check_progress(&paced, &timed[0], 0, 16 * KIB, CHUNK_NS / 4 + 10000000);
	paced_close(&paced);
}

TEST(test_a_member_serves_in_order_of_arrival)
{
	struct timed_part timed[3];
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M");
	begin(&paced, &timed[0], STORE_READ, 1 << 20, 256 * KIB);
	begin(&paced, &timed[1], STORE_READ, 0, 64 * KIB);
	begin(&paced, &timed[2], STORE_WRITE, 5 << 20, 128 * KIB);
	finish(&timed[2]);
	check_done(&paced, &timed[0], 4 * CHUNK_NS);
	check_done(&paced, &timed[1], 5 * CHUNK_NS);
	check_done(&paced, &timed[2], 7 * CHUNK_NS);
	/* Nothing of a part comes before its turn. */
	check_progress(&paced, &timed[1], 0, 16 * KIB, 4 * CHUNK_NS + CHUNK_NS / 4);
	paced_close(&paced);
}

TEST(test_an_idle_member_starts_at_once)
{
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M");
	read_whole(&paced, &timed, 0, 64 * KIB);
	paced.begin_ns = sim_now_ns();
	read_whole(&paced, &timed, 0, 64 * KIB);
	check_done(&paced, &timed, CHUNK_NS);
	paced_close(&paced);
}

TEST(test_members_work_side_by_side)
{
	struct timed_part timed[5];
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M:members=4");
	read_whole(&paced, &timed[0], 0, 1 << 20);
	check_done(&paced, &timed[0], 4 * CHUNK_NS);
	paced.begin_ns = sim_now_ns();
	for (uint64_t i = 0; i < 5; i++) { /* the fifth is on the first member again */
		begin(&paced, &timed[i], STORE_READ, i * 64 * KIB, 64 * KIB);
	}
	finish(&timed[4]);
	for (int i = 0; i < 4; i++) {
		check_done(&paced, &timed[i], CHUNK_NS);
	}
	check_done(&paced, &timed[4], 2 * CHUNK_NS);
	paced_close(&paced);
}

TEST(test_a_part_is_cut_at_the_chunks)
{
	struct timed_part timed[4];
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M:chunk=4K:members=3:latency=1ms");
	/* 1 KiB on member 2, 4 KiB on member 0, 2 KiB on member 1. */
	begin(&paced, &timed[0], STORE_READ, (11 + 12 * 100) * KIB, 7 * KIB);
	begin(&paced, &timed[1], STORE_READ, 8 * KIB, 1 * KIB);		 /* member 2 */
	begin(&paced, &timed[2], STORE_READ, 12 * KIB, 1 * KIB);	 /* member 0 */
	begin(&paced, &timed[3], STORE_READ, (16 + 120) * KIB, 1 * KIB); /* member 1 */
	finish(&timed[2]);
	check_done(&paced, &timed[0], 1000000 + SECOND_NS / 256);
	check_done(&paced, &timed[1], 2000000 + SECOND_NS / 512);
	check_done(&paced, &timed[2], 2000000 + SECOND_NS / 256 + SECOND_NS / 1024);
	check_done(&paced, &timed[3], 2000000 + 3 * SECOND_NS / 1024);
	paced_close(&paced);
}

struct late_begin {
	struct paced *paced;
	struct timed_part *timed;
	uint64_t offset;
};

static void begin_late(void *arg)
{
	struct late_begin *late = arg;

	begin(late->paced, late->timed, STORE_WRITE, late->offset, 64 * KIB);
}

TEST(test_what_comes_earlier_is_not_held_up)
{
	struct timed_part slow;
	struct timed_part quick = { .is_done = false };
	struct paced paced;
	struct late_begin late = { &paced, &quick, 1 << 20 };

	paced_open(&paced, "memory:16M", "1M:members=2:chunk=1M");
	begin(&paced, &slow, STORE_WRITE, 0, 1 << 20);
	/* When the timer is set for the slow one already. */
	sim_after(CHUNK_NS, begin_late, &late);
	finish(&quick);
	assert_false(slow.is_done);
	check_done(&paced, &quick, 2 * CHUNK_NS);
	finish(&slow);
	check_done(&paced, &slow, 16 * CHUNK_NS);
	paced_close(&paced);
}

TEST(test_many_parts_do_not_drift)
{
	enum { COUNT = 3000, BYTES = 512 }; /* more than a queue has slots */
	struct timed_part *timed = calloc(COUNT, sizeof(*timed));
	struct paced paced;

	assert_non_null(timed);
	paced_open(&paced, "memory:16M", "1M:latency=1us");
	for (uint64_t i = 0; i < COUNT; i++) {
		begin(&paced, &timed[i], STORE_READ, i * BYTES, BYTES);
	}
	finish(&timed[COUNT - 1]);
	assert_int_equal(done_count, COUNT);
	for (uint64_t i = 0; i < COUNT; i++) {
		check_done(&paced, &timed[i],
			(i + 1) * ((BYTES * SECOND_NS + (1 << 20) - 1) / (1 << 20) + 1000));
	}
	paced_close(&paced);
	free(timed);
}

TEST(test_queues_share_the_members)
{
	struct timed_part timed[2];
	struct paced first;
	struct paced second;

	paced_open(&first, "memory:16M", "1M");
	second = first;
	queue_open(&second);
	begin(&first, &timed[0], STORE_READ, 0, 64 * KIB);
	begin(&second, &timed[1], STORE_READ, 0, 64 * KIB);
	finish(&timed[0]);
	finish(&timed[1]);
	/* Whoever was first, one came after the other. */
	check_at(MIN(timed[0].done_ns, timed[1].done_ns), first.begin_ns + CHUNK_NS);
	check_at(MAX(timed[0].done_ns, timed[1].done_ns), first.begin_ns + 2 * CHUNK_NS);
	store_queue_destroy(second.queue);
	ring_destroy(second.ring);
	paced_close(&first);
}

TEST(test_the_slowest_and_the_largest_do_not_overflow)
{
	struct timed_part timed[2];
	struct paced paced;
	void *data = malloc(1 << 30);

	assert_non_null(data);
	paced_open(&paced, "null:1E", "1K:latency=1h");
	for (int i = 0; i < 2; i++) {
		memset(&timed[i], 0, sizeof(timed[i]));
		timed[i].part.op = STORE_WRITE; /* the null store does not look at it */
		timed[i].part.offset = (UINT64_C(1) << 60) - (1 << 30);
		timed[i].part.length = 1 << 30;
		timed[i].part.memory = mem_of(data);
		timed[i].part.done = timed_done;
		store_submit(paced.queue, &timed[i].part);
	}
	finish(&timed[1]);
	check_done(&paced, &timed[0], (3600 + (1 << 20)) * SECOND_NS);
	check_done(&paced, &timed[1], 2 * (3600 + (1 << 20)) * SECOND_NS);
	paced_close(&paced);
	free(data);
}

TEST(test_a_fast_disk_tells_in_larger_steps)
{
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1G");
	read_whole(&paced, &timed, 0, 1 << 20);
	check_done(&paced, &timed, SECOND_NS / 1024);
	assert_int_equal(timed.progress_count, 15);
	check_progress(&paced, &timed, 0, 64 * KIB, SECOND_NS / 16384);
	paced_close(&paced);
	paced_open(&paced, "memory:16M", "1T");
	read_whole(&paced, &timed, 0, 8 << 20);
	assert_int_equal(timed.progress_count, 0);
	paced_close(&paced);
}

/* --- progress ------------------------------------------------------------------------------ */

TEST(test_progress_is_told_as_the_bytes_come)
{
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M");
	read_whole(&paced, &timed, 100, 80 * KIB);
	assert_int_equal(timed.progress_count, 4); /* never the whole */
	for (uint32_t i = 0; i < 4; i++) {
		check_progress(&paced, &timed, i, (i + 1) * 16 * KIB, (i + 1) * CHUNK_NS / 4);
	}
	check_done(&paced, &timed, 5 * CHUNK_NS / 4);
	paced.begin_ns = sim_now_ns();
	read_whole(&paced, &timed, 0, 16 * KIB);
	assert_int_equal(timed.progress_count, 0);
	read_whole(&paced, &timed, 0, 16 * KIB + 1);
	assert_int_equal(timed.progress_count, 1);
	paced_close(&paced);
}

TEST(test_progress_of_a_stripe_is_the_longest_prefix)
{
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M:members=4");
	read_whole(&paced, &timed, 0, 320 * KIB);
	/* The other three members' chunks come together with the first, and count with its end. */
	assert_int_equal(timed.progress_count, 7);
	check_progress(&paced, &timed, 0, 16 * KIB, CHUNK_NS / 4);
	check_progress(&paced, &timed, 2, 48 * KIB, 3 * CHUNK_NS / 4);
	check_progress(&paced, &timed, 3, 256 * KIB, CHUNK_NS);
	check_progress(&paced, &timed, 4, 272 * KIB, CHUNK_NS + CHUNK_NS / 4);
	check_progress(&paced, &timed, 6, 304 * KIB, CHUNK_NS + 3 * CHUNK_NS / 4);
	check_done(&paced, &timed, 2 * CHUNK_NS);
	paced_close(&paced);
}

TEST(test_progress_waits_for_a_busy_member)
{
	struct timed_part busy;
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M:members=2");
	begin(&paced, &busy, STORE_READ, 64 * KIB, 60 * KIB); /* member 1 */
	begin(&paced, &timed, STORE_READ, 0, 256 * KIB);
	finish(&timed);
	check_done(&paced, &busy, 15 * CHUNK_NS / 16);
	check_progress(&paced, &timed, 3, 64 * KIB, CHUNK_NS);
	check_progress(&paced, &timed, 4, 80 * KIB, 19 * CHUNK_NS / 16);
	/* When member 1 brings the end of its first chunk, most of member 0's second is there. */
	check_progress(&paced, &timed, 7, 176 * KIB, 31 * CHUNK_NS / 16);
	check_progress(&paced, &timed, 8, 192 * KIB, 2 * CHUNK_NS);
	assert_int_equal(timed.progress_count, 12);
	check_done(&paced, &timed, 47 * CHUNK_NS / 16);
	paced_close(&paced);
}

TEST(test_who_does_not_want_progress_gets_none)
{
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M");
	memset(&timed, 0, sizeof(timed));
	timed.part = (struct store_part){
		.op = STORE_READ, .length = 256 * KIB, .memory = mem_of(memory), .done = timed_done
	};
	store_submit(paced.queue, &timed.part);
	finish(&timed);
	check_done(&paced, &timed, 4 * CHUNK_NS);
	assert_int_equal(timed.progress_count, 0);
	paced_close(&paced);
}

/* --- what is not time ---------------------------------------------------------------------- */

TEST(test_a_failed_part_fails_at_once_and_takes_no_turn)
{
	struct timed_part failed;
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1M:latency=1s");
	begin(&paced, &failed, STORE_READ, (16 << 20) - 1024, 64 * KIB);
	begin(&paced, &timed, STORE_READ, 0, 64 * KIB);
	finish(&failed);
	assert_int_equal(failed.result, -EIO);
	check_at(failed.done_ns, paced.begin_ns);
	assert_int_equal(failed.progress_count, 0);
	finish(&timed);
	check_done(&paced, &timed, SECOND_NS + CHUNK_NS);
	paced_close(&paced);
}

TEST(test_other_operations_pass)
{
	static const enum store_op ops[] = { STORE_FLUSH, STORE_TRIM, STORE_ZERO, STORE_CACHE };
	struct timed_part busy;
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "1K");
	begin(&paced, &busy, STORE_WRITE, 0, 64 * KIB);
	for (size_t i = 0; i < ARRAY_COUNT(ops); i++) {
		begin(&paced, &timed, ops[i], 0, ops[i] == STORE_FLUSH ? 0 : 4096);
		finish(&timed);
		assert_int_equal(timed.result, 0);
	}
	assert_false(busy.is_done);
	check_at(sim_now_ns(), paced.begin_ns);
	finish(&busy);
	check_done(&paced, &busy, 64 * SECOND_NS);
	paced_close(&paced);
}

TEST(test_bytes_are_the_right_ones)
{
	struct timed_part timed;
	struct paced paced;

	paced_open(&paced, "memory:16M", "16M:members=4:chunk=4K:latency=1ms");
	for (size_t i = 0; i < 1 << 20; i++) {
		memory[i] = (uint8_t)(i * 7 + i / 4096);
	}
	begin(&paced, &timed, STORE_WRITE, 12345, 1 << 20);
	finish(&timed);
	assert_int_equal(timed.result, 0);
	memset(memory, 0, sizeof(memory));
	read_whole(&paced, &timed, 12345, 1 << 20);
	for (size_t i = 0; i < 1 << 20; i++) {
		assert_int_equal(memory[i], (uint8_t)(i * 7 + i / 4096));
	}
	paced_close(&paced);
}

TEST(test_the_store_tells_what_it_is)
{
	struct store_options options = { .path = "memory:16M" };
	struct paced paced;
	struct error error;

	paced_open(&paced, "memory:16M", "1M");
	assert_true(store_info(paced.store)->has_progress);
	assert_int_equal(store_info(paced.store)->stripe_members, 0);
	assert_int_equal(store_size(paced.store), 16 << 20);
	assert_string_equal(store_info(paced.store)->kind, "memory");
	paced_close(&paced);
	paced_open(&paced, "memory:16M", "1M:members=3:chunk=8K");
	assert_int_equal(store_info(paced.store)->stripe_chunk, 8 * KIB);
	assert_int_equal(store_info(paced.store)->stripe_members, 3);
	paced_close(&paced);
	/* A stripe that is given explicitly goes over it. */
	stores_set(&options, "pace", "1M:members=3");
	options.stripe_chunk = 128 * KIB;
	options.stripe_members = 5;
	assert_int_equal(store_open(&options, &paced.store, &error), 0);
	store_options_fini(&options);
	assert_int_equal(store_info(paced.store)->stripe_chunk, 128 * KIB);
	assert_int_equal(store_info(paced.store)->stripe_members, 5);
	store_close(paced.store);
}

TEST(test_faults_and_delays_come_on_top)
{
	struct store_options options = { .path = "memory:16M" };
	struct timed_part timed;
	struct paced paced;
	struct error error;

	sim_start(&(struct sim_options){ .seed = 1 });
	stores_set(&options, "pace", "1M");
	stores_set(&options, "fault", "read:EIO:nth=2");
	stores_set(&options, "delay", "read:5ms");
	assert_int_equal(store_open(&options, &paced.store, &error), 0);
	store_options_fini(&options);
	queue_open(&paced);
	begin(&paced, &timed, STORE_READ, 0, 64 * KIB);
	finish(&timed);
	check_done(&paced, &timed, CHUNK_NS + 5000000);
	assert_int_equal(timed.progress_count, 3);
	paced.begin_ns = sim_now_ns();
	begin(&paced, &timed, STORE_READ, 0, 64 * KIB);
	finish(&timed);
	assert_int_equal(timed.result, -EIO);
	check_at(timed.done_ns, paced.begin_ns); /* it never reached the disk */
	paced_close(&paced);
}
