// SPDX-License-Identifier: Apache-2.0
/*
 * What ring.h promises, asked of both rings: the suite is linked once with io_uring and once with
 * the simulation. Counts may be short on either, as ring.h allows, and times are lower limits only.
 * Here: completions, waiting, timers, calls and messages.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ring_contract.h"

/* --- an operation that remembers ------------------------------------------------------------- */

static unsigned completions;

void waiter_done(struct ring_op *op, int result)
{
	struct waiter *waiter = container_of(op, struct waiter, op);

	waiter->calls++;
	waiter->result = result;
	waiter->order = completions++;
	waiter->was_in_flight = op->in_flight;
	if (waiter->ring != NULL) {
		waiter->at_ns = ring_now_ns(waiter->ring);
	}
}

struct ring *contract_ring(const struct ring_options *options)
{
	struct ring_options own = options != NULL ? *options : (struct ring_options){ 0 };
	struct ring *ring = NULL;
	struct error error;

	own.is_restricted = world_is_restricted;
	assert_int_equal(ring_create(&own, &ring, &error), 0);
	return ring;
}

int wait_for(struct ring *ring, struct waiter *waiter)
{
	int calls = waiter->calls;

	while (waiter->calls == calls) {
		(void)ring_turn(ring, true);
	}
	assert_int_equal(waiter->calls, calls + 1);
	assert_false(waiter->was_in_flight);
	assert_false(waiter->op.in_flight);
	return waiter->result;
}

void settle(struct ring *ring)
{
	for (int i = 0; i < 20; i++) {
		(void)ring_turn_limited(ring, MS_NS);
	}
}

/* --- completions ----------------------------------------------------------------------------- */

static int return_seven(struct ring_op *op)
{
	return 7;
}

CONTRACT(done_comes_later_and_once)
{
	struct waiter waiters[3] = { 0 };

	ring_timer(ring, &waiters[0].op, 0, waiter_done);
	ring_defer(ring, &waiters[1].op, 42, waiter_done);
	ring_call(ring, &waiters[2].op, return_seven, waiter_done);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(waiters[i].calls, 0);
		assert_true(waiters[i].op.in_flight);
	}
	while (waiters[0].calls + waiters[1].calls + waiters[2].calls < 3) {
		(void)ring_turn(ring, true);
	}
	settle(ring);
	assert_int_equal(waiters[0].result, 0);
	assert_int_equal(waiters[1].result, 42);
	assert_int_equal(waiters[2].result, 7);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(waiters[i].calls, 1);
		assert_false(waiters[i].was_in_flight);
	}
}

CONTRACT(deferred_operations_complete_in_order)
{
	struct waiter waiters[50] = { 0 };

	for (int i = 0; i < 50; i++) {
		ring_defer(ring, &waiters[i].op, -i, waiter_done);
	}
	assert_int_equal(ring_turn(ring, true) > 0, 1);
	for (int i = 0; i < 50; i++) {
		while (waiters[i].calls == 0) {
			(void)ring_turn(ring, true);
		}
		assert_int_equal(waiters[i].result, -i);
		assert_int_equal(waiters[i].order, (unsigned)i);
	}
}

CONTRACT(an_operation_in_two_steps_completes_after_the_second)
{
	struct waiter waiter = { 0 };

	ring_op_begin(&waiter.op, waiter_done);
	assert_true(waiter.op.in_flight);
	settle(ring);
	assert_int_equal(waiter.calls, 0);
	ring_op_complete(ring, &waiter.op, 5);
	assert_int_equal(waiter.calls, 0);
	assert_int_equal(wait_for(ring, &waiter), 5);
}

struct chain {
	struct ring_op op;
	struct ring *ring;
	int left;
	int depth;
};

static void chain_done(struct ring_op *op, int result)
{
	struct chain *chain = container_of(op, struct chain, op);

	assert_int_equal(chain->depth, 0);
	chain->depth++;
	if (--chain->left > 0) {
		ring_defer(chain->ring, op, 0, chain_done);
	}
	chain->depth--;
}

/* No recursion, and what a callback submits does not run in the same batch. */
CONTRACT(what_a_callback_submits_runs_in_a_later_batch)
{
	struct chain chain = { .ring = ring, .left = 10 };
	int turns = 0;

	ring_defer(ring, &chain.op, 0, chain_done);
	while (chain.left > 0) {
		int before = chain.left;

		(void)ring_turn(ring, true);
		assert_in_range(before - chain.left, 0, 1);
		turns++;
	}
	assert_true(turns >= 10);
}

struct batch_watch {
	struct ring_batch_end end;
	struct waiter *waiter;
	int seen; /* the result when it was called last */
};

static void batch_ended(struct ring_batch_end *end)
{
	struct batch_watch *watch = container_of(end, struct batch_watch, end);
	struct waiter *waiter = watch->waiter;

	/* The completion of this batch has run, and what is submitted here is on its way. */
	watch->seen = waiter->result;
	if (waiter->result == 1) {
		waiter->result = 2;
		ring_defer(waiter->ring, &waiter->op, 3, waiter_done);
	}
}

CONTRACT(the_end_of_a_batch_comes_after_its_completions)
{
	struct waiter waiter = { .ring = ring };
	struct batch_watch first = { .end = { .call = batch_ended }, .waiter = &waiter };
	struct batch_watch second = { .end = { .call = batch_ended }, .waiter = &waiter };

	ring_batch_end_add(ring, &first.end);
	ring_batch_end_add(ring, &second.end);
	ring_defer(ring, &waiter.op, 1, waiter_done);
	assert_int_equal(ring_turn(ring, true), 1);
	assert_int_equal(first.seen, 1);
	assert_int_equal(second.seen, 2); /* in the order in which they were added */
	assert_int_equal(wait_for(ring, &waiter), 3);
	assert_int_equal(second.seen, 3);
	ring_batch_end_remove(&first.end);
	ring_batch_end_remove(&second.end);
	ring_defer(ring, &waiter.op, 1, waiter_done);
	assert_int_equal(wait_for(ring, &waiter), 1);
	assert_int_equal(first.seen, 3);
}

/* More than fits into its queues. */
CONTRACT(any_number_can_be_in_flight)
{
	struct ring *small = contract_ring(&(struct ring_options){ .entries = 4 });
	struct waiter *waiters = calloc(500, sizeof(waiters[0]));

	assert_non_null(waiters);
	for (int i = 0; i < 500; i++) {
		ring_timer(small, &waiters[i].op, 1000, waiter_done);
	}
	for (int i = 0; i < 500; i++) {
		if (waiters[i].calls == 0) {
			assert_int_equal(wait_for(small, &waiters[i]), 0);
		}
	}
	assert_true(ring_counters(small)->enters > 0);
	free(waiters);
	ring_destroy(small);
}

/* --- waiting --------------------------------------------------------------------------------- */

CONTRACT(a_turn_that_does_not_wait_returns_at_once)
{
	struct waiter hour = { 0 };

	ring_timer(ring, &hour.op, 3600000 * MS_NS, waiter_done);
	settle(ring);
	assert_int_equal(ring_turn(ring, false), 0);
	assert_int_equal(ring_turn_limited(ring, 0), 0);
	assert_int_equal(hour.calls, 0);
	ring_cancel(ring, &hour.op);
	assert_int_equal(wait_for(ring, &hour), -ECANCELED);
}

CONTRACT(a_limited_turn_waits_for_its_limit)
{
	uint64_t from_ns;
	struct waiter hour = { 0 };
	struct waiter soon = { .ring = ring };

	ring_timer(ring, &hour.op, 3600000 * MS_NS, waiter_done);
	settle(ring);
	from_ns = ring_now_ns(ring);
	assert_int_equal(ring_turn_limited(ring, 5 * MS_NS), 0);
	assert_true(ring_now_ns(ring) - from_ns >= 5 * MS_NS);
	/* An hour: it ends with the first completion. */
	ring_timer(ring, &soon.op, MS_NS, waiter_done);
	assert_int_equal(ring_turn_limited(ring, 3600000 * MS_NS), 1);
	assert_int_equal(soon.calls, 1);
	ring_cancel(ring, &hour.op);
	(void)wait_for(ring, &hour);
}

static void count_stop(struct ring_op *op, int result)
{
	struct waiter *waiter = container_of(op, struct waiter, op);

	waiter_done(op, result);
	if (waiter->calls < 3) {
		ring_timer(waiter->ring, op, 1000, count_stop);
	} else {
		ring_stop(waiter->ring);
	}
}

CONTRACT(it_runs_until_it_is_stopped)
{
	struct waiter waiter = { .ring = ring };

	ring_timer(ring, &waiter.op, 1000, count_stop);
	ring_run(ring);
	assert_int_equal(waiter.calls, 3);
	waiter.calls = 0;
	ring_timer(ring, &waiter.op, 1000, count_stop);
	ring_run(ring); /* again */
	assert_int_equal(waiter.calls, 3);
}

CONTRACT(time_passes)
{
	struct waiter waiter = { .ring = ring };
	uint64_t from_ns = ring_now_ns(ring);

	ring_timer(ring, &waiter.op, 3 * MS_NS, waiter_done);
	(void)wait_for(ring, &waiter);
	assert_true(waiter.at_ns - from_ns >= 3 * MS_NS);
	/* The batch began after what it runs, and before what it does. */
	assert_true(ring_batch_ns(ring) >= from_ns + 3 * MS_NS);
	assert_true(ring_batch_ns(ring) <= waiter.at_ns);
	assert_true(ring_now_ns(ring) >= waiter.at_ns);
}

CONTRACT(random_numbers_differ)
{
	uint64_t numbers[16];

	for (int i = 0; i < 16; i++) {
		numbers[i] = ring_random(ring);
		for (int k = 0; k < i; k++) {
			assert_true(numbers[i] != numbers[k]);
		}
	}
}

/* Seen while it spins, and after it gave up and sleeps. */
CONTRACT(spinning_loses_nothing)
{
	static const uint64_t spins_ns[] = { 10000 * MS_NS, 1 };

	for (size_t i = 0; i < ARRAY_COUNT(spins_ns); i++) {
		struct waiter waiter = { 0 };
		uint64_t waits = ring_counters(ring)->waits;
		uint64_t crowded = ring_counters(ring)->crowded;

		ring_set_spin(ring, spins_ns[i]);
		ring_timer(ring, &waiter.op, MS_NS, waiter_done);
		assert_int_equal(wait_for(ring, &waiter), 0);
		if (i == 0) {
			/* It did not sleep, unless another thread took the CPU. */
			assert_true(ring_counters(ring)->waits - waits <=
				    ring_counters(ring)->crowded - crowded);
		} else {
			assert_true(ring_counters(ring)->waits > waits);
		}
	}
	ring_set_spin(ring, 0);
}

struct instant {
	struct ring *ring;
	struct ring_op op;
	struct waiter timer;
	int turns;
};

static void instant_done(struct ring_op *op, int result)
{
	struct instant *instant = container_of(op, struct instant, op);

	assert_int_equal(result, 0);
	if (instant->timer.calls == 0) {
		ring_defer(instant->ring, op, 0, instant_done);
	}
}

/* Work that needs no kernel comes in every turn; what does need it must pass all the same. */
CONTRACT(instant_work_does_not_keep_a_timer_waiting)
{
	static const struct {
		uint32_t count;
		uint64_t wait_ns;
		uint64_t spin_ns;
	} ways[] = { { 1, 0, 0 }, { 64, 60000, 0 }, { 1, 0, 50000 } };

	for (size_t i = 0; i < ARRAY_COUNT(ways); i++) {
		struct instant instant = { .ring = ring };

		ring_set_batch(ring, ways[i].count, ways[i].wait_ns);
		ring_set_spin(ring, ways[i].spin_ns);
		ring_timer(ring, &instant.timer.op, MS_NS, waiter_done);
		ring_defer(ring, &instant.op, 0, instant_done);
		while (instant.timer.calls == 0 || instant.op.in_flight) {
			assert_true(instant.turns++ < 10000000);
			(void)ring_turn(ring, world_kind == WORLD_URING);
		}
	}
	ring_set_batch(ring, 1, 0);
	ring_set_spin(ring, 0);
}

/* --- timers, calls, messages ----------------------------------------------------------------- */

CONTRACT(timers_end_in_the_order_of_their_times)
{
	struct waiter waiters[3] = { 0 };

	ring_timer(ring, &waiters[0].op, 30 * MS_NS, waiter_done);
	ring_timer(ring, &waiters[1].op, 2 * MS_NS, waiter_done);
	ring_timer(ring, &waiters[2].op, 15 * MS_NS, waiter_done);
	(void)wait_for(ring, &waiters[0]);
	assert_true(waiters[1].order < waiters[2].order);
	assert_true(waiters[2].order < waiters[0].order);
}

CONTRACT(a_timer_can_be_cancelled)
{
	struct waiter waiter = { 0 };

	ring_timer(ring, &waiter.op, 3600000 * MS_NS, waiter_done);
	ring_cancel(ring, &waiter.op); /* in the same turn */
	assert_int_equal(wait_for(ring, &waiter), -ECANCELED);
	ring_timer(ring, &waiter.op, 3600000 * MS_NS, waiter_done);
	(void)ring_turn(ring, false);
	ring_cancel(ring, &waiter.op); /* later */
	assert_int_equal(wait_for(ring, &waiter), -ECANCELED);
	ring_cancel(ring, &waiter.op); /* not in flight */
	settle(ring);
	assert_int_equal(waiter.calls, 2);
}

struct caller {
	struct waiter waiter;
	int argument;
};

static int twice(struct ring_op *op)
{
	return 2 * container_of(op, struct caller, waiter.op)->argument;
}

/* More than there are threads. */
CONTRACT(calls_run_elsewhere_and_return_their_results)
{
	struct caller callers[40] = { 0 };

	for (int i = 0; i < 40; i++) {
		callers[i].argument = i - 20;
		ring_call(ring, &callers[i].waiter.op, twice, waiter_done);
	}
	for (int i = 0; i < 40; i++) {
		while (callers[i].waiter.calls == 0) {
			(void)ring_turn(ring, true);
		}
		assert_int_equal(callers[i].waiter.result, 2 * (i - 20));
		assert_int_equal(callers[i].waiter.calls, 1);
	}
}

struct post {
	struct ring_message message;
	int number;
};

struct ring *mail_ring;
int mail_delivered;
static struct post posts[100];

static void post_delivered(struct ring *ring, struct ring_message *message)
{
	struct post *post = container_of(message, struct post, message);

	assert_ptr_equal(ring, mail_ring);
	assert_int_equal(post->number, mail_delivered);
	mail_delivered++;
}

void mail_post_all(void *context)
{
	for (int i = 0; i < 100; i++) {
		posts[i].number = i;
		posts[i].message.deliver = post_delivered;
		ring_post(mail_ring, &posts[i].message);
	}
}

CONTRACT(messages_wake_a_ring_and_arrive_in_order)
{
	struct waiter hour = { 0 };

	mail_ring = ring;
	mail_delivered = 0;
	ring_timer(ring, &hour.op, 3600000 * MS_NS, waiter_done);
	world_later(mail_post_all, NULL);
	while (mail_delivered < 100) {
		(void)ring_turn(ring, true);
	}
	world_join(); /* it may have to wake the ring yet */
	assert_int_equal(hour.calls, 0);
	assert_int_equal(ring_counters(ring)->messages, 100);
	/* From its own thread as well. */
	mail_delivered = 0;
	mail_post_all(NULL);
	assert_int_equal(mail_delivered, 0);
	while (mail_delivered < 100) {
		(void)ring_turn(ring, true);
	}
	ring_cancel(ring, &hour.op);
	(void)wait_for(ring, &hour);
}

void contract_run(void (*run)(struct ring *ring))
{
	for (unsigned round = 0; round < world_rounds; round++) {
		struct ring *ring;

		world_start(round);
		completions = 0;
		ring = contract_ring(&(struct ring_options){ .seed = 1 + round });
		run(ring);
		ring_destroy(ring);
		world_stop();
	}
}
