// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "lab/lab.h"
#include "unit.h"

enum { CHUNK = 4096, COUNT = 16, LOOK_NS = 100, MANY = 300 };

/* A read of made-up arrivals: chunk i is seen in look looks[i], which ends at LOOK_NS times that;
 * look 0: never. */
struct made_up {
	struct trace_read read;
	struct trace_arrival arrivals[MANY];
	struct trace_analysis analysis;
};

static void make(struct made_up *made, const uint32_t *looks, uint32_t count, uint64_t total_ns)
{
	*made = (struct made_up){
		.read = {
			.bytes = count * CHUNK,
			.chunk_bytes = CHUNK,
			.chunk_count = count,
			.total_ns = total_ns,
			.arrivals = made->arrivals,
		},
	};
	for (uint32_t i = 0; i < count; i++) {
		uint64_t time_ns = (uint64_t)looks[i] * LOOK_NS;

		made->arrivals[i].look = looks[i];
		made->arrivals[i].how = TRACE_EARLY;
		if (looks[i] == 0 || time_ns > total_ns) {
			made->arrivals[i].how = looks[i] == 0 ? TRACE_UNSEEN : TRACE_AT_COMPLETION;
			time_ns = total_ns;
		}
		made->arrivals[i].time_ns = time_ns;
	}
}

static void analyse(struct made_up *made)
{
	assert_int_equal(trace_analyse(&made->read, &made->analysis), 0);
}

static void make_and_analyse(
	struct made_up *made, const uint32_t *looks, uint32_t count, uint64_t total_ns)
{
	make(made, looks, count, total_ns);
	analyse(made);
}

/* COUNT chunks, of which each look sees the next one. */
static void make_in_order(struct made_up *made)
{
	uint32_t looks[COUNT];

	for (uint32_t i = 0; i < COUNT; i++) {
		looks[i] = i + 1;
	}
	make(made, looks, COUNT, COUNT * LOOK_NS);
}

static void assert_near(double value, double expected)
{
	if (value < expected - 1e-9 || value > expected + 1e-9) {
		fail_msg("%.9f is not %.9f", value, expected);
	}
}

TEST(one_disk_is_one_stream)
{
	struct made_up made;

	make_in_order(&made);
	made.arrivals[COUNT - 1].how = TRACE_AT_COMPLETION;
	analyse(&made);
	assert_int_equal(made.analysis.early, COUNT - 1);
	assert_int_equal(made.analysis.at_completion, 1);
	assert_int_equal(made.analysis.unseen, 0);
	assert_int_equal(made.analysis.runs, 1);
	assert_int_equal(made.analysis.streams, 1);
	assert_near(made.analysis.largest_stream, 1);
	assert_near(made.analysis.reordered, 0);
	assert_int_equal(made.analysis.first_ns, LOOK_NS);
	assert_near(made.analysis.arrived[0], 0.25);
	assert_near(made.analysis.arrived[1], 0.5);
	assert_near(made.analysis.arrived[2], 0.75);
	/* All but the last chunk is sent while the disk works. */
	assert_near(made.analysis.hidden_any, 15.0 / 16);
	assert_near(made.analysis.hidden_ascending, 15.0 / 16);
	assert_int_equal(made.arrivals[0].stream, 1);
	assert_int_equal(made.arrivals[COUNT - 1].stream, 0);
}

/* Both halves fill at the same time: one sender in order can only use the first. */
TEST(two_disks_are_two_streams)
{
	uint32_t looks[COUNT];
	struct made_up made;

	for (uint32_t i = 0; i < COUNT; i++) {
		looks[i] = 2 * (i % (COUNT / 2)) + 2;
	}
	make_and_analyse(&made, looks, COUNT, COUNT * LOOK_NS);
	assert_int_equal(made.analysis.runs, 2);
	assert_int_equal(made.analysis.streams, 2);
	assert_near(made.analysis.largest_stream, 0.5);
	assert_near(made.analysis.reordered, 7.0 / 16);
	assert_int_equal(made.analysis.reordered_distance, 7 * CHUNK);
	assert_near(made.analysis.hidden_any, 0.875);
	assert_near(made.analysis.hidden_ascending, 0.4375);
	assert_int_equal(made.arrivals[7].stream, 1);
	assert_int_equal(made.arrivals[8].stream, 2);
}

/* Four members, two chunks on each in turn: a member goes on above, in the same stream. */
TEST(a_stripe_has_as_many_streams_as_members)
{
	uint32_t looks[2 * COUNT];
	struct made_up made;

	for (uint32_t i = 0; i < 2 * COUNT; i++) {
		looks[i] = i / 8 * 2 + i % 2 + 1;
	}
	make_and_analyse(&made, looks, 2 * COUNT, 2 * COUNT * LOOK_NS);
	assert_int_equal(made.analysis.streams, 4);
	assert_near(made.analysis.largest_stream, 0.25);
	assert_true(made.analysis.runs > 4);
	for (uint32_t i = 0; i < 2 * COUNT; i += 2) {
		assert_int_equal(made.arrivals[i].stream, made.arrivals[i + 1].stream);
	}
}

TEST(what_one_look_sees_has_no_order)
{
	static const uint32_t looks[] = { 3, 3, 3, 3, 3, 3, 3, 3 };
	struct made_up made;

	make_and_analyse(&made, looks, ARRAY_COUNT(looks), 600);
	assert_int_equal(made.analysis.runs, 1);
	assert_int_equal(made.analysis.streams, 1);
	assert_near(made.analysis.reordered, 0);
	assert_near(made.analysis.arrived[0], 0);
	assert_near(made.analysis.arrived[1], 1);
	assert_near(made.analysis.hidden_any, 0.5);
}

TEST(a_late_chunk_is_reordered_once)
{
	static const uint32_t looks[] = { 1, 9, 2, 3, 4, 5, 6, 7 };
	struct made_up made;

	make_and_analyse(&made, looks, ARRAY_COUNT(looks), 1000);
	assert_near(made.analysis.reordered, 1.0 / 8);
	assert_int_equal(made.analysis.reordered_distance, 6 * CHUNK);
	/* 0 and 1 with a pause, in which 2 to 7 came. */
	assert_int_equal(made.analysis.runs, 2);
	assert_int_equal(made.analysis.streams, 2);
	assert_int_equal(made.arrivals[1].stream, made.arrivals[0].stream);
	assert_int_not_equal(made.arrivals[2].stream, made.arrivals[0].stream);
	assert_near(made.analysis.largest_stream, 0.75);
}

TEST(from_the_end_every_chunk_is_a_stream)
{
	uint32_t looks[COUNT];
	struct made_up made;

	for (uint32_t i = 0; i < COUNT; i++) {
		looks[i] = COUNT - i;
	}
	make_and_analyse(&made, looks, COUNT, COUNT * LOOK_NS);
	assert_int_equal(made.analysis.streams, COUNT);
	assert_near(made.analysis.reordered, 15.0 / 16);
	assert_int_equal(made.analysis.reordered_distance, 15 * CHUNK);
	assert_near(made.analysis.hidden_ascending, 0);
	assert_near(made.analysis.hidden_any, 15.0 / 16);
}

TEST(the_number_of_streams_has_a_limit)
{
	uint32_t looks[MANY];
	struct made_up made;
	uint32_t in_last = 0;

	for (uint32_t i = 0; i < MANY; i++) {
		looks[i] = MANY - i;
	}
	make_and_analyse(&made, looks, MANY, MANY * LOOK_NS);
	assert_int_equal(made.analysis.runs, MANY);
	assert_int_equal(made.analysis.streams, TRACE_STREAMS_MAX);
	for (uint32_t i = 0; i < MANY; i++) {
		assert_in_range(made.arrivals[i].stream, 1, TRACE_STREAMS_MAX);
		in_last += made.arrivals[i].stream == TRACE_STREAMS_MAX;
	}
	assert_int_equal(in_last, MANY - TRACE_STREAMS_MAX + 1);
}

TEST(nothing_early_is_no_stream)
{
	static const uint32_t looks[] = { 99, 99, 0, 99 };
	struct made_up made;

	make_and_analyse(&made, looks, ARRAY_COUNT(looks), 800);
	assert_int_equal(made.analysis.early, 0);
	assert_int_equal(made.analysis.at_completion, 3);
	assert_int_equal(made.analysis.unseen, 1);
	assert_int_equal(made.analysis.runs, 0);
	assert_int_equal(made.analysis.streams, 0);
	assert_near(made.analysis.largest_stream, 0);
	assert_int_equal(made.analysis.first_ns, 800);
	assert_near(made.analysis.arrived[2], 0);
	assert_near(made.analysis.hidden_any, 0);
}

/* Data equal to the marker: a gap in the run, not a place that comes last. */
TEST(an_unseen_chunk_is_not_reordered)
{
	static const uint32_t looks[] = { 1, 2, 0, 3, 4 };
	struct made_up made;

	make_and_analyse(&made, looks, ARRAY_COUNT(looks), 500);
	assert_int_equal(made.analysis.unseen, 1);
	assert_int_equal(made.analysis.runs, 2);
	assert_int_equal(made.analysis.streams, 1);
	assert_near(made.analysis.reordered, 0);
	assert_int_equal(made.arrivals[2].stream, 0);
	/* An early sender in order waits there for the completion. */
	assert_near(made.analysis.hidden_ascending, 0.4);
	assert_near(made.analysis.hidden_any, 0.8);
}

TEST(a_chunk_seen_only_at_completion_is_reordered)
{
	static const uint32_t looks[] = { 1, 99, 2, 3 };
	struct made_up made;

	make_and_analyse(&made, looks, ARRAY_COUNT(looks), 500);
	assert_near(made.analysis.reordered, 0.25);
	assert_int_equal(made.analysis.reordered_distance, 2 * CHUNK);
}

TEST(a_short_last_chunk_counts_its_bytes)
{
	static const uint32_t looks[] = { 1, 2, 3 };
	struct made_up made;

	make(&made, looks, ARRAY_COUNT(looks), 400);
	made.read.bytes = 2 * CHUNK + CHUNK / 2;
	analyse(&made);
	assert_int_equal(trace_chunk_bytes(&made.read, 2), CHUNK / 2);
	assert_near(made.analysis.arrived[0], 0.4);
	assert_near(made.analysis.arrived[1], 0.8);
	assert_near(made.analysis.arrived[2], 1);
}

/* Random arrivals: what must hold for all of them. */
TEST(chance_breaks_no_rule)
{
	struct made_up made;
	uint32_t looks[MANY];

	srandom(7);
	for (int round = 0; round < 300; round++) {
		uint32_t count = 1 + (uint32_t)random() % MANY;
		uint32_t held[TRACE_STREAMS_MAX + 1] = { 0 };
		struct trace_analysis *analysis = &made.analysis;

		for (uint32_t i = 0; i < count; i++) {
			looks[i] = (uint32_t)random() % (1 + (uint32_t)random() % 50);
		}
		make_and_analyse(&made, looks, count, 1 + (uint32_t)random() % 6000);
		assert_int_equal(
			analysis->early + analysis->at_completion + analysis->unseen, count);
		assert_true(analysis->streams <= analysis->runs);
		assert_true(analysis->arrived[0] <= analysis->arrived[1]);
		assert_true(analysis->arrived[1] <= analysis->arrived[2]);
		assert_true(analysis->hidden_ascending <= analysis->hidden_any + 1e-9);
		assert_true(analysis->hidden_any < 1 && analysis->hidden_ascending >= 0);
		for (uint32_t i = 0; i < count; i++) {
			const struct trace_arrival *arrival = &made.arrivals[i];

			assert_int_equal(arrival->stream == 0, arrival->how != TRACE_EARLY);
			assert_true(arrival->stream <= analysis->streams);
			held[arrival->stream]++;
		}
		for (uint32_t i = 1; i <= analysis->streams; i++) {
			assert_true(held[i] > 0);
		}
	}
}
