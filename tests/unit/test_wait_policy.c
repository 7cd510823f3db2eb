// SPDX-License-Identifier: Apache-2.0
/*
 * The policy against a model of a client that keeps some number of requests in flight: it takes
 * CLIENT_NS for each, the server SERVER_NS. A wake-up of a sleeping server costs the client WAKE_NS
 * more, and takes wake_idle_ns when the client waits for it. Each wake-up costs the server
 * wake_cpu_ns of its CPU time.
 */

#include "base/wait_policy.h"
#include "unit.h"

enum { CLIENT_NS = 9000, SERVER_NS = 4000, WAKE_NS = 4000, LATENCY_NS = 25000 };

struct model {
	struct wait_policy wait_policy;
	enum wait_way way;
	uint64_t now_ns;
	uint64_t wake_idle_ns;
	uint64_t wake_cpu_ns;
	uint32_t depth;
	bool by_source;
	bool was_crowded;
	bool takes_all; /* the client sends all requests of the depth at once */
	uint64_t done;
	uint64_t turns;
	uint64_t turns_by_way[WAIT_WAY_COUNT];
};

static uint64_t server_cpu_ns; /* CPU time of the server */

static uint64_t cpu_ns(void)
{
	return server_cpu_ns;
}

static void model_start(struct model *model, uint32_t depth, uint64_t wake_idle_ns)
{
	*model = (struct model){
		.now_ns = 1, .depth = depth, .wake_idle_ns = wake_idle_ns, .wake_cpu_ns = 40000
	};
	wait_policy_init(&model->wait_policy, true, true, cpu_ns);
}

static void report(struct model *model, uint32_t requests)
{
	const struct wait_turn turn = {
		.now_ns = model->now_ns,
		.requests = requests,
		.by_source = model->by_source,
		.was_crowded = model->was_crowded,
	};

	model->way = wait_policy_turn(&model->wait_policy, &turn);
}

/* One turn: the server waits, takes what the client had time to send, and answers. */
static void turn(struct model *model)
{
	uint64_t sleep_ns = model->way == WAIT_BATCH ? WAIT_BATCH_NS : LATENCY_NS;
	uint64_t cost_ns = CLIENT_NS + (model->way == WAIT_BATCH ? 0 : WAKE_NS / 4);
	uint64_t taken = model->way == WAIT_SPIN ? 1 : sleep_ns / cost_ns;
	uint64_t begin_ns = model->now_ns;

	model->turns++;
	model->turns_by_way[model->way]++;
	if (model->takes_all ||
		taken >= model->depth) { /* the client has nothing more to do: it waits for us */
		taken = model->depth;
		model->now_ns += sleep_ns + taken * SERVER_NS + LATENCY_NS;
		model->now_ns += model->way == WAIT_BLOCK ? model->wake_idle_ns : 0;
	} else {
		taken = taken == 0 ? 1 : taken;
		model->now_ns += taken * cost_ns;
	}
	model->done += taken;
	server_cpu_ns += model->way == WAIT_SPIN ? model->now_ns - begin_ns
						 : taken * SERVER_NS + model->wake_cpu_ns;
	report(model, (uint32_t)taken);
}

static void run(struct model *model, uint64_t requests)
{
	uint64_t end = model->done + requests;

	model->turns = 0;
	for (int way = 0; way < WAIT_WAY_COUNT; way++) {
		model->turns_by_way[way] = 0;
	}
	while (model->done < end) {
		turn(model);
	}
}

static double share(const struct model *model, enum wait_way way)
{
	return (double)model->turns_by_way[way] / (double)model->turns;
}

TEST(one_request_in_flight_never_gathers)
{
	static const uint64_t wakes_ns[] = { 0, 5000, 30000 };

	for (size_t i = 0; i < ARRAY_COUNT(wakes_ns); i++) {
		struct model model;

		model_start(&model, 1, wakes_ns[i]);
		run(&model, 2000000);
		assert_int_equal(model.turns_by_way[WAIT_BATCH], 0);
	}
}

TEST(one_request_in_flight_spins_where_waking_is_dear)
{
	struct model model;

	model_start(&model, 1, 30000);
	run(&model, 10000);
	assert_true(share(&model, WAIT_SPIN) > 0.85);
	run(&model, 1000000);
	assert_true(share(&model, WAIT_SPIN) > 0.98);
}

TEST(one_request_in_flight_sleeps_where_waking_is_cheap)
{
	struct model model;

	model_start(&model, 1, 2000);
	run(&model, 2000000);
	assert_true(share(&model, WAIT_SPIN) < 0.02);
}

TEST(a_lost_trial_is_void_when_waking_becomes_dear)
{
	struct model model;

	model_start(&model, 1, 0);
	run(&model, 1000000);
	assert_true(share(&model, WAIT_SPIN) < 0.02);
	model.wake_idle_ns = 60000;
	run(&model, 5000);
	assert_true(share(&model, WAIT_SPIN) > 0.8);
}

TEST(who_may_not_spin_sleeps_or_gathers)
{
	struct model model;

	model_start(&model, 1, 30000);
	model.wait_policy.may_spin = false;
	run(&model, 1000000);
	assert_int_equal(model.turns_by_way[WAIT_BLOCK], model.turns);
	model.depth = 64;
	run(&model, 1000000);
	assert_int_equal(model.turns_by_way[WAIT_SPIN], 0);
	assert_true(share(&model, WAIT_BATCH) > 0.5);
	model.depth = 1;
	run(&model, 1000000); /* what was held is given up */
	assert_int_equal(model.turns_by_way[WAIT_SPIN], 0);
	run(&model, 1000000);
	assert_int_equal(model.turns_by_way[WAIT_BLOCK], model.turns);
}

TEST(polling_must_be_worth_its_cpu_time)
{
	struct model model;

	model_start(&model, 1, 30000);
	model.wake_cpu_ns = 1000; /* a wake-up takes long, but the CPU is free meanwhile */
	run(&model, 1000000);
	assert_true(share(&model, WAIT_SPIN) < 0.02);
}

TEST(several_requests_in_flight_spin_if_they_come_through_memory)
{
	static const uint32_t depths[] = { 2, 16, 64 };

	for (size_t i = 0; i < ARRAY_COUNT(depths); i++) {
		struct model model;

		model_start(&model, depths[i], 1000000);
		model.by_source = true;
		model.takes_all = true;
		run(&model, 10000000);
		assert_true(share(&model, WAIT_SPIN) > 0.95);
		assert_int_equal(model.turns_by_way[WAIT_BATCH], 0);
	}
}

/* Runs until the policy has chosen the method after a trial. */
static void run_until_held(struct model *model, enum wait_way way)
{
	while (model->wait_policy.is_trying || model->wait_policy.way != way) {
		turn(model);
		assert_true(model->done < 100000000);
	}
}

/* No turn polls after one in which another thread took the CPU. The next time is later and later.
 */
TEST(another_thread_on_the_cpu_ends_polling)
{
	uint64_t blocked_max = 0;
	struct model model;

	model_start(&model, 1, 30000);
	for (int i = 0; i < 6; i++) {
		uint64_t done;

		if (i % 2 == 0) {
			run_until_held(&model, WAIT_SPIN);
		}
		while (model.way != WAIT_SPIN) {
			turn(&model);
		}
		model.was_crowded = true;
		turn(&model);
		model.was_crowded = false;
		assert_int_equal(model.way, WAIT_BLOCK);
		done = model.done;
		while (model.way == WAIT_BLOCK) {
			turn(&model);
		}
		assert_true(model.done - done > blocked_max);
		blocked_max = model.done - done;
	}
}

/* A crowded CPU says nothing against waiting for a batch. */
TEST(a_crowded_cpu_leaves_batches)
{
	struct model model;

	model_start(&model, 64, 30000);
	for (int i = 0; i < 2000000; i++) {
		model.was_crowded = model.way == WAIT_SPIN;
		turn(&model);
	}
	assert_int_equal(model.wait_policy.way, WAIT_BATCH);
}

/* Pauses between bursts that are shorter than a trial neither begin it anew nor end it. */
TEST(short_bursts_are_judged)
{
	struct model model;

	model_start(&model, 1, 2000); /* polling gains nothing */
	for (int burst = 0; burst < 1000; burst++) {
		uint64_t end_ns = model.now_ns + 20000000;

		while (model.now_ns < end_ns) {
			turn(&model);
		}
		model.now_ns += 300000000;
	}
	assert_true(share(&model, WAIT_SPIN) < 0.05);
	assert_true(model.wait_policy.backoff_windows > WAIT_BACKOFF_WINDOWS_MIN);
}

/* A few requests through memory do not keep the others from waiting for a batch. */
TEST(batches_beside_requests_through_memory)
{
	struct model model;

	model_start(&model, 64, 30000);
	for (int i = 0; i < 200000; i++) {
		model.by_source = i % 10 == 0;
		turn(&model);
	}
	assert_true(share(&model, WAIT_BATCH) > 0.8);
}

TEST(other_traffic_ends_polling)
{
	static const uint64_t pauses_ns[] = { 200000, 2000 }; /* much slower, much faster */

	for (size_t i = 0; i < ARRAY_COUNT(pauses_ns); i++) {
		struct model model;
		uint32_t turns = 0;

		model_start(&model, 1, 30000);
		run_until_held(&model, WAIT_SPIN);
		while (!model.wait_policy.is_trying) {
			model.now_ns += pauses_ns[i];
			report(&model, 1);
			turns++;
		}
		assert_true(turns <= (WAIT_CHANGED_WINDOWS + 1) * WAIT_WINDOW_NS / pauses_ns[1]);
	}
}

/* Who comes after those who had many in flight does not wait for their company. */
TEST(gathering_ends_when_there_is_nothing_to_gather)
{
	static const struct {
		bool is_trying;
		bool may_spin;
	} cases[] = { { false, true }, { false, false }, { true, true }, { true, false } };

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct model model;

		model_start(&model, 64, 2000);
		model.wait_policy.may_spin = cases[i].may_spin;
		while (model.wait_policy.is_trying != cases[i].is_trying ||
			model.way != WAIT_BATCH) {
			turn(&model);
			assert_true(model.done < 1000000);
		}
		model.depth = 1;
		/* One window may have begun with the others, and a trial's next ones are without.
		 */
		run(&model, 4 * WAIT_WINDOW_REQUESTS);
		assert_int_not_equal(model.way, WAIT_BATCH);
		run(&model, 1000000);
		assert_int_equal(model.turns_by_way[WAIT_BATCH], 0);
	}
}

TEST(few_requests_in_flight_hardly_gather)
{
	for (uint32_t depth = 2; depth <= 4; depth++) {
		struct model model;

		model_start(&model, depth, 0);
		run(&model, 2000000);
		assert_true(share(&model, WAIT_BATCH) < 0.1);
	}
}

TEST(many_requests_in_flight_mostly_gather)
{
	for (uint32_t depth = 32; depth <= 64; depth += 32) {
		struct model model;

		model_start(&model, depth, 30000);
		run(&model, 2000000);
		assert_true(share(&model, WAIT_BATCH) > 0.8);
	}
}

TEST(a_pause_in_the_traffic_is_slept_through)
{
	static const struct {
		uint32_t depth;
		enum wait_way way;
	} ways[] = { { 64, WAIT_BATCH }, { 1, WAIT_SPIN } };

	for (size_t i = 0; i < ARRAY_COUNT(ways); i++) {
		struct model model;

		model_start(&model, ways[i].depth, 30000);
		while (model.wait_policy.is_trying || model.wait_policy.way != ways[i].way) {
			turn(&model);
			assert_true(model.done < 1000000);
		}
		/* A turn without requests changes nothing, unless there were none for long. */
		report(&model, 0);
		assert_int_equal(model.way, ways[i].way);
		model.now_ns += UINT64_C(1000000000);
		report(&model, 0);
		assert_int_equal(model.way, WAIT_BLOCK);
		report(&model, 1); /* the traffic goes on */
		assert_int_equal(model.way, ways[i].way);
	}
}

/* With 30 requests a second no window is ever whole: a trial or a result from busier times ends. */
TEST(few_requests_a_second_are_slept_for)
{
	static const uint32_t depths[] = { 1, 64 };

	for (size_t i = 0; i < ARRAY_COUNT(depths); i++) {
		for (int is_trying = 0; is_trying <= 1; is_trying++) {
			struct model model;

			model_start(&model, depths[i], 30000);
			while (model.wait_policy.is_trying != is_trying ||
				model.way == WAIT_BLOCK) {
				turn(&model);
				assert_true(model.done < 1000000);
			}
			for (int request = 0; request < 30; request++) {
				model.now_ns += 33000000;
				report(&model, 1);
			}
			assert_false(model.wait_policy.is_trying);
			assert_int_equal(model.way, WAIT_BLOCK);
		}
	}
}
