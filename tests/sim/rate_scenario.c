// SPDX-License-Identifier: Apache-2.0
/*
 * One seed of rates (engine/rate.h): up to four engines share the rates of an export and of a few
 * identities. Their sessions ask for requests of all sizes, all the time or now and then, come and
 * go, and give up while they wait; the rates are changed meanwhile.
 *
 * The rules: in no interval of length t more begins than rate * t + burst, but for one request of
 * each engine (of each session that waits for two rates); when more is asked for all the time, no
 * less than 95 % begins; sessions that ask for the same get the same: of one peer, of the peers of
 * one engine, and engines among each other; a session that waits has its turn some time; nobody
 * waits for a rate that was taken away.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rate.h"
#include "runner.h"
#include "sim/sim.h"

enum {
	ENGINES_MAX = 4,
	IDENTITIES_MAX = 3,
	SESSIONS_MAX = 24,
	PEERS_MAX = 4,
	AT_ONCE = 32, /* requests that a session takes out of one message */
};

#define SECOND_NS UINT64_C(1000000000)
#define MS_NS	  UINT64_C(1000000)

/* Measures by how much at most an interval that ends now has exceeded the rate: a leaky bucket. */
struct meter {
	double level[RATE_UNIT_COUNT];
	uint64_t at_ns;
};

struct shared_rate {
	struct rate rate;
	struct rate_limits limits;
	struct meter meter;
	uint32_t untold; /* engines that go by the limits before */
	double slack[RATE_UNIT_COUNT];
	double moved[RATE_UNIT_COUNT]; /* since the phase began */
};

struct scenario;

struct engine_twin {
	struct scenario *scenario;
	struct ring *ring;
	struct rate_room room;
	struct rate_queue export;
	struct rate_queue identities[IDENTITIES_MAX];
	struct ring_op told_op;
	double moved;
};

struct session_twin {
	struct rate_member member;
	struct scenario *scenario;
	struct engine_twin *engine;
	struct shared_rate *identity; /* or NULL */
	uint32_t peer;
	bool joined;
	bool greedy;
	bool has_request;
	uint64_t bytes;
	uint64_t begun;
	uint64_t since_ns; /* it waits */
	struct ring_op op;
};

struct scenario {
	struct engine_twin engines[ENGINES_MAX];
	uint32_t engine_count;
	struct shared_rate export;
	struct shared_rate identities[IDENTITIES_MAX];
	uint32_t identity_count;
	struct session_twin sessions[SESSIONS_MAX];
	uint32_t session_count;
	uint64_t bytes_max; /* of a request */
	bool same_size;
	bool over;
	uint64_t changed_ns; /* the export's rate */
	uint64_t requests;
};

static uint32_t any_peer[PEERS_MAX]; /* whose addresses are the peers' */

/* --- the rules ------------------------------------------------------------------------------- */

static void meter_begin(struct shared_rate *shared)
{
	shared->meter = (struct meter){ .at_ns = sim_now_ns() };
	memset(shared->moved, 0, sizeof(shared->moved));
}

static void meter_add(struct shared_rate *shared, uint64_t bytes)
{
	const double amounts[RATE_UNIT_COUNT] = {
		[RATE_REQUESTS] = 1, [RATE_BYTES] = (double)bytes
	};
	struct meter *meter = &shared->meter;
	double passed_s = (double)(sim_now_ns() - meter->at_ns) / 1e9;

	meter->at_ns = sim_now_ns();
	for (int unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		double rate = (double)shared->limits.per_second[unit];
		double burst = rate * (double)shared->limits.burst_ns / 1e9;

		shared->moved[unit] += amounts[unit];
		if (rate == 0 || shared->untold > 0) {
			meter->level[unit] = 0;
			continue;
		}
		meter->level[unit] = fmax(0, meter->level[unit] - rate * passed_s) + amounts[unit];
		if (meter->level[unit] > burst + shared->slack[unit]) {
			model_fail("%.0f %s more than %.0f a second have begun; the burst is %.0f",
				meter->level[unit], unit == RATE_BYTES ? "bytes" : "requests", rate,
				burst);
		}
	}
}

/* --- sessions -------------------------------------------------------------------------------- */

static void step(struct ring_op *op, int result);

static void again_in(struct session_twin *session, uint64_t delay_ns)
{
	if (!session->op.in_flight) {
		ring_timer(session->engine->ring, &session->op, delay_ns, step);
	}
}

static void begin(struct session_twin *session)
{
	rate_begun(&session->member);
	session->has_request = false;
	session->begun++;
	session->engine->moved += (double)session->bytes;
	session->scenario->requests++;
	meter_add(&session->scenario->export, session->bytes);
	if (session->identity != NULL) {
		meter_add(session->identity, session->bytes);
	}
}

/* Takes requests as long as they may begin. */
static void go_on(struct session_twin *session)
{
	const struct scenario *scenario = session->scenario;

	for (int i = 0; i < AT_ONCE && session->joined && !scenario->over; i++) {
		if (!session->has_request) {
			session->bytes = scenario->same_size ? scenario->bytes_max
					 : percent(10)	     ? 0
							     : below(scenario->bytes_max) + 1;
			session->has_request = true;
			session->since_ns = sim_now_ns();
		}
		if (!rate_ask(&session->member, session->bytes)) {
			if (!session->greedy && percent(20)) { /* it gives up */
				again_in(session, below(10 * MS_NS) + 1);
			}
			return; /* ready() follows */
		}
		begin(session);
		if (!session->greedy && percent(20)) {
			again_in(session, below(100 * MS_NS) + 1);
			return;
		}
	}
	if (session->joined && !scenario->over) {
		again_in(session, below(MS_NS / 10) + 1);
	}
}

static void ready(struct rate_member *member)
{
	go_on(container_of(member, struct session_twin, member));
}

static void join(struct session_twin *session)
{
	struct scenario *scenario = session->scenario;
	int rc = rate_join(
		&session->member, RATE_EXPORT, &session->engine->export, &any_peer[session->peer]);

	if (rc == 0 && session->identity != NULL) {
		rc = rate_join(&session->member, RATE_IDENTITY,
			&session->engine->identities[session->identity - scenario->identities],
			&any_peer[session->peer]);
	}
	GMB_ASSERT(rc == 0);
	session->joined = true;
}

static void step(struct ring_op *op, int result)
{
	struct session_twin *session = container_of(op, struct session_twin, op);

	if (session->scenario->over) {
		return;
	}
	if (!session->joined) {
		join(session);
	} else if (!session->greedy && (rate_waits(&session->member) || percent(2))) {
		rate_leave(&session->member);
		session->joined = false;
		session->has_request = false;
		again_in(session, below(200 * MS_NS) + 1);
		return;
	}
	if (!rate_waits(&session->member)) {
		go_on(session);
	}
}

/* --- changes --------------------------------------------------------------------------------- */

static void told(struct ring_op *op, int result)
{
	struct engine_twin *engine = container_of(op, struct engine_twin, told_op);
	struct shared_rate *shared = &engine->scenario->export;

	rate_queue_changed(&engine->export);
	if (--shared->untold == 0) {
		meter_begin(shared);
	}
}

static struct rate_limits any_limits(const struct scenario *scenario)
{
	struct rate_limits limits = { .burst_ns = sim_between(10, 500) * MS_NS };

	if (percent(70)) { /* from one request in 5 s on */
		limits.per_second[RATE_BYTES] =
			MAX((scenario->bytes_max << below(12) >> below(4)) + below(4096),
				RATE_BYTES_MIN);
	}
	if (limits.per_second[RATE_BYTES] == 0 || percent(30)) {
		limits.per_second[RATE_REQUESTS] = sim_between(4, UINT64_C(8) << below(14));
	}
	return limits;
}

static void set_slack(struct scenario *scenario, struct shared_rate *shared, uint32_t sessions)
{
	for (int unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		double most = unit == RATE_BYTES ? (double)scenario->bytes_max : 1;

		shared->slack[unit] = most * (scenario->engine_count + 1 + sessions);
	}
}

static void change(struct scenario *scenario, const struct rate_limits *limits)
{
	struct shared_rate *shared = &scenario->export;

	scenario->changed_ns = sim_now_ns();
	shared->limits = *limits;
	shared->untold = scenario->engine_count;
	rate_set(&shared->rate, limits, sim_now_ns());
	for (uint32_t i = 0; i < scenario->engine_count; i++) {
		ring_timer(scenario->engines[i].ring, &scenario->engines[i].told_op,
			below(5 * MS_NS) + 1, told);
	}
}

/* --- phases ---------------------------------------------------------------------------------- */

static void run_for(uint64_t ns)
{
	uint64_t end_ns = sim_now_ns() + ns;

	while (sim_now_ns() < end_ns && sim_step()) {
	}
}

/* Engines take turns, in each of them peers, and the sessions of each peer: nobody waits for longer
 * than all those turns take. */
static void check_waiting(const struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->session_count; i++) {
		const struct session_twin *session = &scenario->sessions[i];
		uint64_t since_ns = MAX(session->since_ns, scenario->changed_ns);
		double longest_s = 0;

		for (int k = 0; k < 2; k++) {
			const struct shared_rate *shared =
				k == 0 ? &scenario->export : session->identity;

			for (int unit = 0; shared != NULL && unit < RATE_UNIT_COUNT; unit++) {
				double most = unit == RATE_BYTES ? (double)scenario->bytes_max : 1;
				double rate = (double)shared->limits.per_second[unit];

				longest_s += rate > 0 ? most / rate : 0;
			}
		}
		longest_s *= scenario->engine_count * PEERS_MAX * scenario->session_count;
		longest_s += 1;
		if (rate_waits(&session->member) &&
			(double)(sim_now_ns() - since_ns) > longest_s * 1e9) {
			model_fail("session %u has waited for %.1f s", i,
				(double)(sim_now_ns() - since_ns) / 1e9);
		}
	}
}

static bool differ(double a, double b, double slack)
{
	return fabs(a - b) > 0.05 * fmax(a, b) + slack;
}

/* All sessions have asked for requests of one size all the time, and no identity has a rate. */
static void check_shares(const struct scenario *scenario, uint64_t ns)
{
	const struct rate_limits *limits = &scenario->export.limits;
	double peers[ENGINES_MAX][PEERS_MAX] = { 0 };
	double slack = 3 + (double)limits->per_second[RATE_REQUESTS] * 0.05;
	double most_s = 0;

	for (int unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		double rate = (double)limits->per_second[unit];

		most_s = fmax(most_s,
			rate > 0 ? (unit == RATE_BYTES ? (double)scenario->bytes_max : 1) / rate
				 : 0);
	}
	/* As much as the tighter one allows; a request that is about to begin apart. */
	if ((double)scenario->export.moved[RATE_REQUESTS] * most_s <
		0.95 * (double)ns / 1e9 - (scenario->engine_count + 1) * (most_s + 0.002)) {
		model_fail("only %.0f requests in %.1f s: each needs %.6f s",
			scenario->export.moved[RATE_REQUESTS], (double)ns / 1e9, most_s);
	}
	slack = 3 + 0.002 / most_s;
	for (uint32_t i = 0; i < scenario->session_count; i++) {
		const struct session_twin *session = &scenario->sessions[i];

		peers[session->engine - scenario->engines][session->peer] += (double)session->begun;
		for (uint32_t k = 0; k < i; k++) {
			const struct session_twin *other = &scenario->sessions[k];

			if (other->engine == session->engine && other->peer == session->peer &&
				differ((double)other->begun, (double)session->begun, slack)) {
				model_fail("sessions %u and %u of one peer: %llu and %llu requests",
					k, i, (unsigned long long)other->begun,
					(unsigned long long)session->begun);
			}
		}
	}
	for (uint32_t e = 0; e < scenario->engine_count; e++) {
		double first = 0;

		for (uint32_t p = 0; p < PEERS_MAX; p++) {
			if (first > 0 && peers[e][p] > 0 &&
				differ(first, peers[e][p], slack * SESSIONS_MAX)) {
				model_fail("peers of one engine: %.0f and %.0f requests", first,
					peers[e][p]);
			}
			first = first > 0 ? first : peers[e][p];
		}
		for (uint32_t k = 0; k < e; k++) {
			double mine = scenario->engines[e].moved / (double)scenario->bytes_max;
			double others = scenario->engines[k].moved / (double)scenario->bytes_max;

			if (mine > 0 && others > 0 && differ(mine, others, slack * SESSIONS_MAX)) {
				model_fail("two engines: %.0f and %.0f requests", mine, others);
			}
		}
	}
}

static void all_want_the_same(struct scenario *scenario)
{
	struct rate_limits limits = any_limits(scenario);
	uint64_t ns;

	scenario->same_size = true;
	for (uint32_t i = 0; i < scenario->session_count; i++) {
		scenario->sessions[i].greedy = true;
	}
	change(scenario, &limits);
	run_for(SECOND_NS); /* what was taken before has begun */
	for (uint32_t i = 0; i < scenario->session_count; i++) {
		scenario->sessions[i].begun = 0;
	}
	for (uint32_t i = 0; i < scenario->engine_count; i++) {
		scenario->engines[i].moved = 0;
	}
	meter_begin(&scenario->export);
	ns = sim_now_ns();
	run_for(4 * SECOND_NS);
	check_shares(scenario, sim_now_ns() - ns);
	check_waiting(scenario);
}

static void end(struct scenario *scenario)
{
	const struct rate_limits off = { .burst_ns = RATE_BURST_NS_DEFAULT };

	scenario->over = true;
	change(scenario, &off);
	run_for(20 * MS_NS);
	for (uint32_t i = 0; i < scenario->session_count; i++) {
		struct session_twin *session = &scenario->sessions[i];

		if (rate_waits(&session->member) && session->identity == NULL) {
			model_fail("session %u waits for a rate that was taken away", i);
		}
		rate_leave(&session->member);
	}
	for (uint32_t i = 0; i < scenario->engine_count; i++) {
		rate_room_stop(&scenario->engines[i].room);
	}
	if (!sim_run_until_idle(100000)) {
		model_fail("the engines do not sleep");
	}
	for (uint32_t i = 0; i < scenario->engine_count; i++) {
		struct engine_twin *engine = &scenario->engines[i];

		rate_queue_fini(&engine->export);
		for (uint32_t k = 0; k < scenario->identity_count; k++) {
			rate_queue_fini(&engine->identities[k]);
		}
		ring_destroy(engine->ring);
	}
}

static void create(struct scenario *scenario)
{
	uint32_t greedy = (uint32_t)below(101);
	struct error error;

	scenario->engine_count = (uint32_t)sim_between(1, ENGINES_MAX);
	scenario->bytes_max = UINT64_C(512) << below(14);
	scenario->session_count = (uint32_t)sim_between(1, SESSIONS_MAX);
	scenario->identity_count = (uint32_t)below(IDENTITIES_MAX + 1);
	for (uint32_t i = 0; i < scenario->identity_count; i++) {
		struct shared_rate *identity = &scenario->identities[i];

		identity->limits = any_limits(scenario);
		set_slack(scenario, identity, scenario->session_count);
		rate_set(&identity->rate, &identity->limits, 0);
		meter_begin(identity);
	}
	scenario->export.limits = any_limits(scenario);
	set_slack(scenario, &scenario->export, 0);
	rate_set(&scenario->export.rate, &scenario->export.limits, 0);
	meter_begin(&scenario->export);
	for (uint32_t i = 0; i < scenario->engine_count; i++) {
		struct engine_twin *engine = &scenario->engines[i];

		engine->scenario = scenario;
		if (ring_create(&(struct ring_options){ 0 }, &engine->ring, &error) < 0) {
			model_fail("no ring: %s", error.text);
		}
		rate_room_init(&engine->room, engine->ring);
		rate_queue_init(&engine->export, &engine->room, &scenario->export.rate);
		for (uint32_t k = 0; k < scenario->identity_count; k++) {
			rate_queue_init(&engine->identities[k], &engine->room,
				&scenario->identities[k].rate);
		}
	}
	for (uint32_t i = 0; i < scenario->session_count; i++) {
		struct session_twin *session = &scenario->sessions[i];

		session->scenario = scenario;
		session->engine = &scenario->engines[below(scenario->engine_count)];
		session->peer = (uint32_t)below(PEERS_MAX);
		session->greedy = percent(greedy);
		if (scenario->identity_count > 0 && percent(70)) {
			session->identity = &scenario->identities[below(scenario->identity_count)];
		}
		rate_member_init(&session->member, ready);
		again_in(session, below(100 * MS_NS) + 1);
	}
}

struct scenario_result scenario_run(uint64_t seed, bool verbose)
{
	struct scenario *scenario = calloc(1, sizeof(*scenario));
	struct scenario_result result;

	GMB_ASSERT(scenario != NULL);
	sim_start(&(struct sim_options){ .seed = seed, .verbose = verbose });
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	create(scenario);
	for (uint64_t i = below(4) + 1; i > 0; i--) {
		run_for(sim_between(100, 2000) * MS_NS);
		check_waiting(scenario);
		if (percent(50)) {
			struct rate_limits limits = any_limits(scenario);

			change(scenario, &limits);
			run_for(10 * MS_NS); /* all engines are told */
		}
	}
	if (scenario->identity_count == 0) {
		all_want_the_same(scenario);
	}
	end(scenario);
	result = (struct scenario_result){
		.trace = sim_trace_hash(),
		.events = sim_event_count(),
		.requests = scenario->requests,
	};
	sim_stop();
	free(scenario);
	return result;
}
