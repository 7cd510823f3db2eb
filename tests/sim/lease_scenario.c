// SPDX-License-Identifier: Apache-2.0
/*
 * One simulated run of leases: clients with several connections each want the exclusive lease of an
 * export, and take it from each other, while servers are killed and restarted and the network and
 * the disk hang (client_world.c). The rules:
 *
 *   one writer  once a client has opened the export, no operation of another client is in progress
 *               on the server or on the disk, and no request that another client submits later
 *               succeeds
 *   contents    what is read is what was written, by the rule of oracle.h: no write that was
 *               acknowledged to any client is lost
 *   loss        a client loses its lease only if another client tries to take it, or if it is not
 *               connected for longer than the lease lasts
 *   progress    in a calm world, a client that takes the lease from others gets it
 *
 * Threading: one. Ownership: the scenario owns everything in it. Errors: model_fail().
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gmblock/gmblock.h>

#include "base/export_uri.h"
#include "client_world.h"
#include "engine/lease.h"
#include "runner.h"

#define MS_NS UINT64_C(1000000)

enum {
	CLIENTS = 3,
	DEPTH = 8,
	REQUEST_BYTES_MAX = 16384,
	TURNS = 400,
	ATTEMPTS_MAX = 50, /* to open the export in a calm world */
	RECORDS_MAX = 16,
	LEASE_LONG_MS = 3600000,
	CALM_MS = 300000,   /* all time limits of a client */
	ROBBERY_MS = 10000, /* of a client that has given up: the server's limit for a handshake */
};

struct scenario;
struct contender;

struct test_request {
	struct gmb_request request;
	struct contender *contender;
	bool busy;
	bool is_late;	 /* submitted after another client had got the lease */
	uint32_t record; /* of the oracle, or UINT32_MAX */
	uint64_t begin;	 /* oracle time */
	struct iovec iov;
	uint8_t memory[REQUEST_BYTES_MAX];
};

struct contender {
	struct scenario *scenario;
	uint32_t index;
	struct gmb_client *client; /* NULL: it has not opened the export */
	uint32_t lease_ms;
	uint64_t robberies; /* scenario->robberies when it began to open the export */
	bool gave_up;
	bool is_cut_off; /* it has lost all connections */
	uint32_t busy;
	struct test_request requests[DEPTH];
};

/* What a server has recorded of a holder. */
struct lease_record {
	struct lease_view view;
	char name[LEASE_NAME_BYTES];
};

struct scenario {
	struct world world;
	struct gmb_queue *queue;
	struct contender contenders[CLIENTS];
	struct contender *holder; /* who was the last to open the export */
	struct lease_record records[RECORDS_MAX];
	uint32_t record_count;
	uint64_t robberies; /* attempts to take the lease from others */
	/* until then, an attempt that a client has given up can reach the server */
	uint64_t late_robbery_ns;
	bool verbose;
	struct scenario_result result;
};

/* --- the record of leases -------------------------------------------------------------------- */

static int note_holder(void *context, const struct lease_view *view)
{
	struct scenario *scenario = context;
	struct lease_record *record = &scenario->records[scenario->record_count];

	if (view->state == LEASE_LOST) {
		return 0;
	}
	GMB_ASSERT(scenario->record_count < RECORDS_MAX && view->owner.is_named);
	record->view = *view;
	snprintf(record->name, sizeof(record->name), "%s", view->name);
	scenario->record_count++;
	return 0;
}

static int record_leases(void *context, struct lease_book *book)
{
	struct scenario *scenario = context;

	if (world_percent(10)) {
		return -EIO;
	}
	scenario->record_count = 0;
	return lease_book_each(book, sim_now_ns(), note_holder, scenario);
}

static struct lease_book *open_leases(struct world *world)
{
	struct scenario *scenario = container_of(world, struct scenario, world);
	const struct lease_desk desk = { .record = record_leases, .context = scenario };
	struct lease_book *book = lease_book_create();

	GMB_ASSERT(book != NULL);
	lease_book_set_desk(book, &desk, false);
	for (uint32_t i = 0; i < scenario->record_count; i++) {
		struct lease_record *record = &scenario->records[i];

		record->view.export = "disk";
		record->view.name = record->name;
		record->view.node = "";
		record->view.offered_to = "";
		record->view.connection_count = 0;
		if (lease_book_restore(book, &record->view, sim_now_ns()) != 0) {
			model_fail("a recorded lease cannot be restored");
		}
	}
	return book;
}

/* --- requests --------------------------------------------------------------------------------- */

static void succeeded(struct test_request *test)
{
	struct gmb_request *request = &test->request;
	struct oracle *oracle = test->contender->scenario->world.oracle;

	if (test->is_late) {
		model_fail("client %u has lost the lease to client %u, and its request succeeds",
			test->contender->index, test->contender->scenario->holder->index);
	}
	if (test->record != UINT32_MAX) {
		oracle_end(oracle, test->record, false);
	}
	if (request->operation == GMB_READ &&
		!oracle_check_read(
			oracle, test->begin, request->offset, test->memory, request->length)) {
		model_fail("a read of %" PRIu64 " bytes at %" PRIu64 " by client %u: %s",
			request->length, request->offset, test->contender->index,
			oracle_message(oracle));
	}
}

static void failed(struct test_request *test)
{
	struct contender *contender = test->contender;
	struct oracle *oracle = contender->scenario->world.oracle;
	int result = test->request.result;

	contender->scenario->result.errors++;
	if (result == -ENOTCONN ? !contender->gave_up : result != -EIO && result != -ENOSPC) {
		char text[600];

		gmb_explain(contender->client, &test->request, text, sizeof(text));
		model_fail("%s", text);
	}
	if (test->record == UINT32_MAX) {
		return;
	}
	if (result == -ENOTCONN) {
		oracle_orphan(oracle, test->record, contender->index);
	} else {
		oracle_fail(oracle, test->record);
	}
}

static void request_done(struct gmb_request *request)
{
	struct test_request *test = container_of(request, struct test_request, request);
	struct scenario *scenario = test->contender->scenario;

	GMB_ASSERT(test->busy);
	test->busy = false;
	test->contender->busy--;
	test->contender->is_cut_off = false;
	scenario->result.requests++;
	sim_trace_mix((uint64_t)(uint32_t)request->result);
	if (request->result == 0) {
		succeeded(test);
	} else {
		failed(test);
	}
	world_tick(&scenario->world);
}

static void submit(struct contender *contender, struct test_request *test)
{
	struct scenario *scenario = contender->scenario;
	uint32_t choice = (uint32_t)world_below(10);
	struct gmb_request *request = &test->request;
	uint64_t seed = sim_random();

	memset(request, 0, sizeof(*request));
	gmb_prepare(request, choice < 4 ? GMB_READ : choice < 9 ? GMB_WRITE : GMB_FLUSH, 0, 0);
	request->done = request_done;
	if (request->operation != GMB_FLUSH) {
		request->offset = world_below(scenario->world.size);
		request->length = MIN(
			1 + world_below(REQUEST_BYTES_MAX), scenario->world.size - request->offset);
		test->iov = (struct iovec){ test->memory, request->length };
		request->iov = &test->iov;
		request->iov_count = 1;
	}
	test->record = UINT32_MAX;
	test->is_late = scenario->holder != contender;
	test->begin = oracle_now(scenario->world.oracle);
	if (request->operation == GMB_WRITE) {
		oracle_pattern(seed, request->offset, test->memory, request->length);
		test->record = oracle_begin(scenario->world.oracle, ORACLE_DATA, request->offset,
			request->length, seed, 0);
	}
	test->busy = true;
	contender->busy++;
	gmb_submit(contender->client, request);
}

/* --- clients ---------------------------------------------------------------------------------- */

static void client_event(void *context, enum gmb_event event, const char *text)
{
	struct contender *contender = context;
	struct scenario *scenario = contender->scenario;

	sim_trace_mix((uint64_t)event);
	if (scenario->verbose) {
		fprintf(stderr, "%12.3f ms  ==== client %u, event %d: %s\n",
			(double)sim_now_ns() / 1e6, contender->index, (int)event, text);
	}
	switch (event) {
	case GMB_EVENT_GAVE_UP:
		contender->gave_up = true;
		if (strstr(text, EXPORT_URI_LEASE_TEXT) != NULL &&
			contender->lease_ms == LEASE_LONG_MS &&
			contender->robberies == scenario->robberies &&
			sim_now_ns() >= scenario->late_robbery_ns) {
			model_fail("client %u has lost its lease, and nobody wanted it: %s",
				contender->index, text);
		}
		break;
	case GMB_EVENT_LOST:
		if (strstr(text, "broke a rule") != NULL) {
			model_fail("for the client, the server is at fault: %s", text);
		}
		break;
	case GMB_EVENT_RETRYING:
		contender->is_cut_off = true;
		break;
	case GMB_EVENT_RECONNECTED:
		scenario->result.lease_renewals += contender->is_cut_off;
		contender->is_cut_off = false;
		break;
	case GMB_EVENT_RESIZED:
	case GMB_EVENT_SILENT:
		break;
	}
}

/* The client has no request itself yet. */
static void check_quiet(const struct contender *contender)
{
	const struct world *world = &contender->scenario->world;

	for (uint32_t i = 0; world->server == SERVER_UP && i < world->service_count; i++) {
		if (world->services[i].engine->counters.inflight != 0) {
			model_fail("client %u has the lease, and operations of others go on",
				contender->index);
		}
	}
	if (world->server == SERVER_UP && sim_disk_has_late_operations(world->disk)) {
		model_fail("client %u has the lease, and a killed server's operations go on",
			contender->index);
	}
}

/* No write of another client, or of an earlier life of this one, can change the disk any more. */
static void client_has_lease(struct contender *contender)
{
	struct scenario *scenario = contender->scenario;
	struct oracle *oracle = scenario->world.oracle;

	check_quiet(contender);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		struct contender *other = &scenario->contenders[i];

		for (uint32_t k = 0; k < DEPTH; k++) {
			struct test_request *test = &other->requests[k];

			if (other != contender && test->busy && test->record != UINT32_MAX) {
				oracle_fail(oracle, test->record);
				test->record = UINT32_MAX;
			}
		}
		oracle_settle(oracle, i);
		scenario->result.lease_moves +=
			other != contender && other->client != NULL && !other->gave_up;
	}
	scenario->holder = contender;
}

static void disk_goes_on(void *arg)
{
	sim_disk_set_stalled(arg, false);
}

/* The operations of the others last a little longer. */
static void delay_disk(struct world *world)
{
	sim_disk_set_stalled(world->disk, true);
	sim_after(world_below(100 * MS_NS), disk_goes_on, world->disk);
}

static void open_client(struct contender *contender, bool robs)
{
	static const uint32_t connects[] = { 300, 2000, 10000 };
	static const uint32_t reconnects[] = { 3000, 20000, 120000 };
	struct scenario *scenario = contender->scenario;
	struct gmb_options options = {
		.size = sizeof(options),
		.flags = robs ? GMB_OPEN_PREEMPT : 0,
		.connections = 1 + (uint32_t)world_below(4),
		.connect_timeout_ms = connects[world_below(ARRAY_COUNT(connects))],
		.reconnect_timeout_ms = reconnects[world_below(ARRAY_COUNT(reconnects))],
		.lease = GMB_LEASE_EXCLUSIVE,
		.lease_ms = world_percent(70) ? (uint32_t)LEASE_LONG_MS : 1000,
		.event = client_event,
		.context = contender,
	};
	struct gmb_error error;

	contender->lease_ms = options.lease_ms;
	contender->gave_up = false;
	contender->is_cut_off = false;
	scenario->robberies += robs;
	if (robs && world_percent(50)) {
		delay_disk(&scenario->world);
	}
	contender->robberies = scenario->robberies;
	if (gmb_open(scenario->queue,
		    runner_native ? "gmb+unix:///disk?socket=/simulated" : "nbd://simulated/disk",
		    &options, &contender->client, &error) == 0) {
		client_has_lease(contender);
		return;
	}
	contender->client = NULL;
	if (robs && strstr(error.text, EXPORT_URI_LEASE_TEXT) != NULL &&
		sim_now_ns() >= scenario->late_robbery_ns) {
		model_fail("client %u cannot take the lease: %s", contender->index, error.text);
	}
	if (robs) {
		scenario->late_robbery_ns = sim_now_ns() + ROBBERY_MS * MS_NS;
	}
}

static void close_client(struct contender *contender)
{
	uint64_t end_ns = sim_now_ns() + CALM_MS * MS_NS;

	while (contender->busy > 0) {
		gmb_queue_wait(contender->scenario->queue, 100);
		if (contender->scenario->world.calm && sim_now_ns() >= end_ns) {
			model_fail("%u requests of client %u never end", contender->busy,
				contender->index);
		}
	}
	if (gmb_close(contender->client) != 0) {
		model_fail("a client cannot be closed");
	}
	contender->client = NULL;
}

/* --- the run ---------------------------------------------------------------------------------- */

static void take_turn(struct scenario *scenario)
{
	struct contender *contender = &scenario->contenders[world_below(CLIENTS)];

	if (contender->client == NULL) {
		if (world_percent(40)) {
			open_client(contender, world_percent(50));
		}
	} else if (contender->gave_up || world_percent(2)) {
		close_client(contender);
	} else {
		for (uint32_t i = 0; i < DEPTH; i++) {
			if (!contender->requests[i].busy && world_percent(50)) {
				submit(contender, &contender->requests[i]);
			}
		}
	}
	gmb_queue_wait(scenario->queue, (int)world_below(10));
}

/* The last client reads everything. */
static void read_all(struct contender *contender)
{
	struct scenario *scenario = contender->scenario;
	struct oracle *oracle = scenario->world.oracle;
	uint8_t *memory = contender->requests[0].memory;

	for (uint64_t at = 0; at < scenario->world.size && !contender->gave_up;
		at += REQUEST_BYTES_MAX) {
		uint64_t bytes = MIN((uint64_t)REQUEST_BYTES_MAX, scenario->world.size - at);
		uint64_t begin = oracle_now(oracle);
		int err = gmb_pread(contender->client, memory, bytes, at);

		if (err != 0) {
			model_fail("the disk cannot be read in a calm world: %s", strerror(-err));
		}
		if (!oracle_check_read(oracle, begin, at, memory, bytes)) {
			model_fail("at the end: %s", oracle_message(oracle));
		}
	}
}

static void live(struct scenario *scenario)
{
	struct contender *last = &scenario->contenders[world_below(CLIENTS)];

	for (uint32_t i = 0; i < TURNS; i++) {
		take_turn(scenario);
	}
	world_calm(&scenario->world);
	if (scenario->world.server != SERVER_UP) {
		world_restart(&scenario->world);
	}
	if (last->client != NULL) {
		close_client(last);
	}
	for (uint32_t i = 0; last->client == NULL; i++) {
		if (i == ATTEMPTS_MAX) {
			model_fail("client %u never gets the lease in a calm world", last->index);
		}
		open_client(last, true);
	}
	read_all(last);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		if (scenario->contenders[i].client != NULL) {
			close_client(&scenario->contenders[i]);
		}
	}
	world_check_current(&scenario->world);
}

struct scenario_result scenario_run(uint64_t seed, bool verbose)
{
	struct scenario *scenario = calloc(1, sizeof(*scenario));
	struct scenario_result result;
	struct gmb_error error;

	GMB_ASSERT(scenario != NULL);
	scenario->verbose = verbose;
	scenario->world.open_leases = open_leases;
	scenario->world.keeps_power = true;
	sim_start(&(struct sim_options){
		.seed = seed, .verbose = verbose, .faults = { .jitter = true } });
	world_create(&scenario->world, runner_native, 2000 * MS_NS, verbose);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		scenario->contenders[i].scenario = scenario;
		scenario->contenders[i].index = i;
		for (uint32_t k = 0; k < DEPTH; k++) {
			scenario->contenders[i].requests[k].contender = &scenario->contenders[i];
		}
	}
	if (gmb_queue_create(NULL, &scenario->queue, &error) != 0) {
		model_fail("no queue: %s", error.text);
	}
	live(scenario);
	if (gmb_queue_destroy(scenario->queue) != 0) {
		model_fail("the queue cannot be destroyed");
	}
	world_destroy(&scenario->world);
	result = scenario->result;
	result.trace = sim_trace_hash();
	result.events = sim_event_count();
	sim_stop();
	free(scenario);
	return result;
}
