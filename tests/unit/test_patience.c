// SPDX-License-Identifier: Apache-2.0
/*
 * The policy against a model of a client that keeps some number of requests in flight: it takes
 * CLIENT_NS for each, the server SERVER_NS, and a wake-up of a sleeping server costs the client
 * WAKE_NS more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "nbd/patience.h"

enum { CLIENT_NS = 9000, SERVER_NS = 4000, WAKE_NS = 4000, LATENCY_NS = 25000 };

struct model {
	struct patience patience;
	uint64_t now_ns;
	uint32_t depth;
	uint64_t done;
	uint64_t waited; /* turns that waited */
	uint64_t turns;
};

/* One turn: the server sleeps until the first request, or through its patience, takes what the
 * client had time to send, and answers. */
static void turn(struct model *model, uint64_t wait_ns, uint64_t *next_wait_ns)
{
	uint64_t sleep_ns = wait_ns > LATENCY_NS ? wait_ns : LATENCY_NS;
	uint64_t cost_ns = CLIENT_NS + (wait_ns > 0 ? 0 : WAKE_NS / 4);
	uint64_t taken = sleep_ns / cost_ns;

	if (taken >= model->depth) { /* the client has nothing more to do: it waits for us */
		taken = model->depth;
		model->now_ns += sleep_ns + taken * SERVER_NS + LATENCY_NS;
	} else {
		taken = taken == 0 ? 1 : taken;
		model->now_ns += taken * cost_ns;
	}
	model->done += taken;
	model->turns++;
	model->waited += wait_ns > 0;
	*next_wait_ns = patience_turn(&model->patience, model->now_ns, (uint32_t)taken);
}

static double waiting_share(uint32_t depth)
{
	struct model model = { .now_ns = 1, .depth = depth };
	uint64_t wait_ns = 0;

	patience_init(&model.patience);
	while (model.done < 2000000) {
		turn(&model, wait_ns, &wait_ns);
	}
	return (double)model.waited / (double)model.turns;
}

static void one_request_in_flight_never_waits(void **state)
{
	(void)state;
	assert_true(waiting_share(1) == 0.0);
}

static void few_requests_in_flight_hardly_wait(void **state)
{
	(void)state;
	for (uint32_t depth = 2; depth <= 4; depth++) {
		assert_true(waiting_share(depth) < 0.1);
	}
}

static void many_requests_in_flight_mostly_wait(void **state)
{
	(void)state;
	assert_true(waiting_share(32) > 0.8);
	assert_true(waiting_share(64) > 0.8);
}

static void a_pause_in_the_traffic_ends_waiting(void **state)
{
	struct model model = { .now_ns = 1, .depth = 64 };
	uint64_t wait_ns = 0;

	(void)state;
	patience_init(&model.patience);
	while (model.patience.state != PATIENCE_PATIENT) {
		turn(&model, wait_ns, &wait_ns);
		assert_true(model.done < 1000000);
	}
	assert_int_equal(patience_turn(&model.patience, model.now_ns, 0), PATIENCE_WAIT_NS);
	model.now_ns += UINT64_C(1000000000);
	assert_int_equal(patience_turn(&model.patience, model.now_ns, 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_request_in_flight_never_waits),
		cmocka_unit_test(few_requests_in_flight_hardly_wait),
		cmocka_unit_test(many_requests_in_flight_mostly_wait),
		cmocka_unit_test(a_pause_in_the_traffic_ends_waiting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
