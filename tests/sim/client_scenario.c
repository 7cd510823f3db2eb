// SPDX-License-Identifier: Apache-2.0
/*
 * One simulated run of the client library: random requests through gmb_submit() against the real
 * server in a world where things go wrong (client_world.c). The rules:
 *
 *   once       each request is told exactly once, and its memory is not touched afterwards
 *   time       no request, open or close takes longer than its time limits add up to
 *   contents   what is read is what was written, by the rule of oracle.h; replays never show.
 *              Copies have their source in the last quarter of the disk, which nobody writes
 *   durability what was flushed survives every power failure; what a power failure may have taken
 *              is never said to be flushed
 *   patience   a request fails for want of a connection only when there was none for long enough,
 *              or when the server's machine forgot what it had acknowledged
 *   ends       no descriptor, operation or memory is left
 *
 * Threading: one. Ownership: the scenario owns everything in it. Errors: model_fail().
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gmblock/gmblock.h>

#include "base/growth.h"
#include "client_world.h"
#include "runner.h"

#define MS_NS		    UINT64_C(1000000)
#define CONNECTIONS_BACK_NS (90000 * MS_NS)

enum {
	REQUESTS_MAX = 32,
	PIECES_MAX = 6,
	EXTENTS_MAX = 16,
	REQUEST_BYTES_MAX = 200000,
	CANARY = 0xa7,
	REOPENS_MAX = 4,
	BUFFERS = 2,
	RENEWALS = 20, /* too many, unless they are given back */
};

struct scenario;

struct test_request {
	struct gmb_request request;
	struct scenario *scenario;
	bool busy;
	uint32_t record; /* of the oracle, or UINT32_MAX */
	uint32_t group;
	uint64_t begin; /* oracle time */
	uint64_t seed;
	uint64_t submitted_ns;
	uint8_t *memory;
	struct iovec iov[PIECES_MAX];
	struct gmb_extent extents[EXTENTS_MAX];
};

struct scenario {
	struct world world;
	struct gmb_queue *queue;
	struct gmb_client *client;
	struct gmb_options options;
	struct gmb_info info;
	struct test_request requests[REQUESTS_MAX];
	uint8_t *buffers[BUFFERS]; /* gmb: memory that the server reaches; else NULL */
	uint64_t placed_bytes;
	uint64_t staged_bytes;
	uint64_t replays;
	char server[64]; /* with --hosts: the host in use */
	uint64_t moves;
	uint64_t copied_bytes;
	uint32_t depth;
	uint32_t budget;
	uint32_t busy;
	bool overlap;
	bool own_loop; /* polls the queue's descriptor instead of waiting inside the library */
	bool gave_up;
	uint64_t limit_ns;    /* what the time limits add up to */
	uint64_t progress_ns; /* when a request was last completed */
	const char *doing;    /* what the watchdog waits for, or NULL */
	uint64_t deadline_ns;
	bool watchdog_pending;
	uint64_t done_count;
	uint64_t error_count;
	bool verbose;
};

/* --- time limits ---------------------------------------------------------------------------- */

static void watchdog_event(void *arg)
{
	struct scenario *scenario = arg;
	uint64_t now_ns = sim_now_ns();

	scenario->watchdog_pending = false;
	if (scenario->doing != NULL && now_ns >= scenario->deadline_ns) {
		model_fail("%s takes longer than its time limits allow (%.3f s); %u requests "
			   "are in flight",
			scenario->doing, (double)scenario->limit_ns / 1e9, scenario->busy);
	}
	if (scenario->doing != NULL) {
		scenario->watchdog_pending = true;
		sim_after(scenario->deadline_ns - now_ns, watchdog_event, scenario);
	}
}

/* Something has to happen within the limit; NULL: nothing has to. */
static void watch(struct scenario *scenario, const char *doing)
{
	scenario->doing = doing;
	scenario->deadline_ns = sim_now_ns() + scenario->limit_ns;
	if (doing != NULL && !scenario->watchdog_pending) {
		scenario->watchdog_pending = true;
		sim_after(scenario->limit_ns, watchdog_event, scenario);
	}
}

/* --- requests ------------------------------------------------------------------------------- */

static bool writes(const struct gmb_request *request)
{
	return request->operation == GMB_WRITE || request->operation == GMB_TRIM ||
	       request->operation == GMB_ZERO || request->operation == GMB_COPY;
}

static bool overlaps_writer(const struct scenario *scenario, uint64_t offset, uint64_t length)
{
	for (uint32_t i = 0; i < scenario->depth; i++) {
		const struct test_request *other = &scenario->requests[i];

		if (other->busy && writes(&other->request) &&
			other->request.offset < offset + length &&
			offset < other->request.offset + other->request.length) {
			return true;
		}
	}
	return false;
}

static uint64_t choose_length(uint64_t room)
{
	uint64_t length;

	switch (world_below(6)) {
	case 0:
		length = 1 + world_below(512);
		break;
	case 1:
	case 2:
		length = 4096;
		break;
	case 3:
		length = 512 * (1 + world_below(40));
		break;
	case 4:
		length = 1 + world_below(REQUEST_BYTES_MAX);
		break;
	default:
		length = 4096 * (1 + world_below(16));
		break;
	}
	length = MIN(length, room);
	return MIN(length, (uint64_t)REQUEST_BYTES_MAX);
}

/* From here on the disk is only read, where there can be copies. */
static uint64_t quiet_offset(const struct scenario *scenario)
{
	uint64_t size = scenario->info.bytes;

	return (scenario->info.capabilities & GMB_CAN_COPY) != 0 ? size - size / 4 : size;
}

static void choose_range(const struct scenario *scenario, struct gmb_request *request)
{
	uint64_t size = writes(request) ? quiet_offset(scenario) : scenario->info.bytes;
	uint64_t offset = world_below(size);

	if (world_percent(50)) {
		offset -= offset % 4096;
	}
	request->offset = offset;
	request->length = choose_length(size - offset);
	if (request->operation == GMB_COPY) {
		uint64_t room = scenario->info.bytes - size;

		request->source = scenario->client;
		request->length = MIN(request->length, room);
		request->source_offset = size + world_below(room - request->length + 1);
		if (world_percent(50)) { /* both are whole blocks, or neither is */
			request->source_offset -= request->source_offset % 512;
			request->source_offset =
				MAX(request->source_offset, size) + request->offset % 512;
			request->source_offset =
				MIN(request->source_offset, scenario->info.bytes - request->length);
		}
	}
}

/* Cuts the memory into pieces of any size, some empty. */
static void lay_out(struct test_request *test)
{
	struct gmb_request *request = &test->request;
	uint64_t length = request->length;
	uint64_t at = 0;

	request->iov = test->iov;
	request->iov_count = 1 + (uint32_t)world_below(PIECES_MAX);
	for (uint32_t i = 0; i < request->iov_count; i++) {
		uint64_t left = length - at;
		uint64_t part = i + 1 == request->iov_count ? left : world_below(left + 1);

		test->iov[i] = (struct iovec){ .iov_base = test->memory + at, .iov_len = part };
		at += part;
	}
}

static void submit_one(struct scenario *scenario, struct test_request *test);

static void check_canary(const struct test_request *test)
{
	for (size_t i = 0; i < REQUEST_BYTES_MAX; i++) {
		if (test->memory[i] != CANARY) {
			model_fail("memory was written after its request was done (byte %zu)", i);
		}
	}
}

static enum gmb_operation choose_operation(const struct scenario *scenario)
{
	static const enum gmb_operation operations[] = { GMB_READ, GMB_READ, GMB_READ, GMB_READ,
		GMB_WRITE, GMB_WRITE, GMB_WRITE, GMB_WRITE, GMB_WRITE, GMB_FLUSH, GMB_FLUSH,
		GMB_TRIM, GMB_ZERO, GMB_CACHE, GMB_STATUS, GMB_COPY, GMB_COPY };
	static const uint32_t needs[] = { [GMB_TRIM] = GMB_CAN_TRIM,
		[GMB_ZERO] = GMB_CAN_ZERO,
		[GMB_CACHE] = GMB_CAN_CACHE,
		[GMB_STATUS] = GMB_CAN_STATUS };
	bool copies = (scenario->info.capabilities & GMB_CAN_COPY) != 0;
	enum gmb_operation operation =
		operations[world_below(ARRAY_COUNT(operations) - (copies ? 0 : 2))];

	return operation != GMB_COPY && (needs[operation] & ~scenario->info.capabilities) != 0
		       ? GMB_READ
		       : operation;
}

static void begin_record(struct scenario *scenario, struct test_request *test)
{
	const struct gmb_request *request = &test->request;
	enum oracle_kind kind = request->operation == GMB_WRITE	 ? ORACLE_DATA
				: request->operation == GMB_ZERO ? ORACLE_ZERO
				: request->operation == GMB_COPY ? ORACLE_COPY
								 : ORACLE_UNDEFINED;

	test->group = scenario->world.flush_group;
	test->record = oracle_begin(scenario->world.oracle, kind, request->offset, request->length,
		kind == ORACLE_COPY ? request->source_offset : test->seed, test->group);
}

/* --- results -------------------------------------------------------------------------------- */

static void check_read(struct test_request *test)
{
	const struct gmb_request *request = &test->request;

	if (!oracle_check_read(test->scenario->world.oracle, test->begin, request->offset,
		    test->memory, request->length)) {
		model_fail("a read of %" PRIu64 " bytes at %" PRIu64 ": %s", request->length,
			request->offset, oracle_message(test->scenario->world.oracle));
	}
}

static void check_status(const struct test_request *test)
{
	const struct gmb_request *request = &test->request;
	uint64_t at = request->offset;

	if (request->extent_count == 0) {
		model_fail("a status without extents");
	}
	for (uint32_t i = 0; i < request->extent_count; i++) {
		if (request->extents[i].offset != at || request->extents[i].bytes == 0) {
			model_fail("extents with gaps");
		}
		at += request->extents[i].bytes;
	}
	if (at > request->offset + request->length) {
		model_fail("extents beyond the range");
	}
}

static void succeeded(struct test_request *test)
{
	struct scenario *scenario = test->scenario;
	struct world *world = &scenario->world;
	struct gmb_request *request = &test->request;
	bool durable = (request->flags & GMB_FUA) != 0;

	switch ((enum gmb_operation)request->operation) {
	case GMB_READ:
		check_read(test);
		break;
	case GMB_WRITE:
	case GMB_TRIM:
	case GMB_ZERO:
	case GMB_COPY:
		if (test->group != world->flush_group && !durable) {
			/* The disk failed a flush meanwhile: not even the next one helps. */
		}
		oracle_end(world->oracle, test->record, durable);
		scenario->copied_bytes += request->operation == GMB_COPY ? request->length : 0;
		break;
	case GMB_FLUSH:
		if (test->group == world->flush_group) {
			oracle_flushed(world->oracle, test->begin, test->group);
		}
		break;
	case GMB_STATUS:
		check_status(test);
		break;
	case GMB_CACHE:
		break;
	}
}

static bool is_disk_error(int result)
{
	return result == -EIO || result == -ENOSPC;
}

static void failed(struct test_request *test)
{
	struct scenario *scenario = test->scenario;
	struct world *world = &scenario->world;
	int result = test->request.result;
	char text[600];

	scenario->error_count++;
	gmb_explain(scenario->client, &test->request, text, sizeof(text));
	if (result == -ENOTCONN && scenario->gave_up) {
		if (test->record != UINT32_MAX) {
			oracle_orphan(world->oracle, test->record, 0);
		}
		return;
	}
	if (!is_disk_error(result)) {
		model_fail("%s", text);
	}
	if (test->record != UINT32_MAX) {
		oracle_fail(world->oracle, test->record);
	}
}

static void request_done(struct gmb_request *request)
{
	struct test_request *test = container_of(request, struct test_request, request);
	struct scenario *scenario = test->scenario;

	if (!test->busy || request->in_flight != 0) {
		model_fail("a request was told twice");
	}
	test->busy = false;
	scenario->busy--;
	scenario->done_count++;
	sim_trace_mix((uint64_t)(uint32_t)request->result);
	if (request->result == 0) {
		succeeded(test);
	} else {
		failed(test);
	}
	if (request->result != -ENOTCONN) {
		scenario->progress_ns = sim_now_ns();
	}
	memset(test->memory, CANARY, REQUEST_BYTES_MAX);
	world_tick(&scenario->world);
	if (scenario->budget > 0 && !scenario->gave_up && world_percent(85)) {
		submit_one(scenario, test);
	}
	watch(scenario, scenario->busy > 0 ? "a request" : NULL);
}

static void submit_one(struct scenario *scenario, struct test_request *test)
{
	struct gmb_request *request = &test->request;
	enum gmb_operation operation = choose_operation(scenario);

	check_canary(test);
	memset(request, 0xee, sizeof(*request));
	memset(request, 0, offsetof(struct gmb_request, private_space));
	test->record = UINT32_MAX;
	test->seed = sim_random();
	gmb_prepare(request, operation, 0, 0);
	request->done = request_done;
	if (operation != GMB_FLUSH) {
		choose_range(scenario, request);
	}
	if (writes(request) && !scenario->overlap &&
		overlaps_writer(scenario, request->offset, request->length)) {
		request->operation = GMB_READ;
	}
	test->begin = oracle_now(scenario->world.oracle);
	test->group = scenario->world.flush_group;
	if (request->operation == GMB_READ || request->operation == GMB_WRITE) {
		lay_out(test);
	}
	if (request->operation == GMB_WRITE) {
		oracle_pattern(test->seed, request->offset, test->memory, request->length);
	}
	if (request->operation == GMB_STATUS) {
		request->extents = test->extents;
		request->extents_max = 1 + (uint32_t)world_below(EXTENTS_MAX);
	}
	if (writes(request)) {
		request->flags = world_percent(20) ? GMB_FUA : 0;
		begin_record(scenario, test);
	}
	test->submitted_ns = sim_now_ns();
	test->busy = true;
	scenario->busy++;
	scenario->budget--;
	gmb_submit(scenario->client, request);
}

/* --- the client ----------------------------------------------------------------------------- */

/* Since when something has not been done: the oldest request, or else the last one's end. */
static uint64_t waiting_since(const struct scenario *scenario)
{
	uint64_t oldest_ns = scenario->progress_ns;

	for (uint32_t i = 0; i < scenario->depth; i++) {
		if (scenario->requests[i].busy) {
			oldest_ns = MIN(oldest_ns, scenario->requests[i].submitted_ns);
		}
	}
	return oldest_ns;
}

static void note_server(struct scenario *scenario)
{
	const char *server;

	if (scenario->client != NULL) {
		server = gmb_server(scenario->client);
		scenario->moves += strcmp(server, scenario->server) != 0;
		snprintf(scenario->server, sizeof(scenario->server), "%s", server);
	}
}

static void client_event(void *context, enum gmb_event event, const char *text)
{
	struct scenario *scenario = context;
	struct world *world = &scenario->world;
	uint64_t patience_ns = scenario->options.reconnect_timeout_ms * MS_NS;

	sim_trace_mix((uint64_t)event);
	if (scenario->verbose) {
		fprintf(stderr, "%12.3f ms  ==== event %d: %s\n", (double)sim_now_ns() / 1e6,
			(int)event, text);
	}
	switch (event) {
	case GMB_EVENT_GAVE_UP:
		scenario->gave_up = true;
		if (world->crashes == 0 && sim_now_ns() - waiting_since(scenario) < patience_ns) {
			model_fail("gave up too early: %s", text);
		}
		break;
	case GMB_EVENT_RESIZED:
		model_fail("the size has not changed: %s", text);
	case GMB_EVENT_LOST:
		if (strstr(text, "broke a rule") != NULL) {
			model_fail("for the client, the server is at fault: %s", text);
		}
		break;
	case GMB_EVENT_RECONNECTED:
		note_server(scenario);
		break;
	case GMB_EVENT_RETRYING:
		if (strstr(text, "cannot continue here") != NULL) {
			model_fail("it is the same disk: %s", text);
		}
		break;
	case GMB_EVENT_SILENT:
		break;
	}
}

static void choose_options(struct scenario *scenario)
{
	static const uint32_t styles[] = { 0, 0, GMB_OPEN_NO_EXTENDED, GMB_OPEN_SIMPLE };
	static const uint32_t connects[] = { 300, 2000, 10000 };
	static const uint32_t requests[] = { 600, 5000, 30000 };
	static const uint32_t slow_factors[] = { 1, 3, 20 };
	static const uint32_t reconnects[] = { 3000, 20000, 120000 };
	static const uint32_t depths[] = { 1, 2, 4, 16, 0 };
	struct gmb_options *options = &scenario->options;
	uint64_t limit_ms;

	*options = (struct gmb_options){
		.size = sizeof(*options),
		.flags = styles[world_below(ARRAY_COUNT(styles))],
		.connections = (uint32_t)world_below(5),
		.connect_timeout_ms = connects[world_below(ARRAY_COUNT(connects))],
		.request_timeout_ms = requests[world_below(ARRAY_COUNT(requests))],
		.reconnect_timeout_ms = reconnects[world_below(ARRAY_COUNT(reconnects))],
		.depth = depths[world_below(ARRAY_COUNT(depths))],
		.event = client_event,
		.context = scenario,
	};
	options->slow_timeout_ms =
		options->request_timeout_ms * slow_factors[world_below(ARRAY_COUNT(slow_factors))];
	/* With 0 the library tries further connections. It gets short windows, so that it does so
	 * while requests are in flight and everything goes wrong. */
	growth_window_ns = MS_NS / 32 << world_below(8);
	/* Each connection may turn out dead only when it gets the commands of another. */
	limit_ms =
		options->slow_timeout_ms * (options->connections != 0 ? options->connections : 8) +
		options->reconnect_timeout_ms +
		MAX(options->connect_timeout_ms + 1000, options->request_timeout_ms);
	scenario->limit_ns = (limit_ms + 2000) * MS_NS;
}

/* The world need not let a client in at the first attempt. */
static bool open_client(struct scenario *scenario)
{
	uint64_t began_ns = sim_now_ns();
	struct gmb_error error;
	int err;

	watch(scenario, "opening");
	err = gmb_open(scenario->queue,
		runner_native  ? "gmb+unix:///disk?socket=/simulated"
		: runner_hosts ? "nbd://simulated,standby/disk"
			       : "nbd://simulated/disk",
		&scenario->options, &scenario->client, &error);
	watch(scenario, NULL);
	if (err == 0) {
		scenario->info.size = sizeof(scenario->info);
		gmb_get_info(scenario->client, &scenario->info);
		if (scenario->info.bytes != scenario->world.size) {
			model_fail("the export has %" PRIu64 " bytes, not %" PRIu64,
				scenario->info.bytes, scenario->world.size);
		}
		scenario->gave_up = false;
		snprintf(scenario->server, sizeof(scenario->server), "%s",
			gmb_server(scenario->client));
		/* Opening waits for further connections, and all may be lost meanwhile. */
		scenario->progress_ns = began_ns;
		return true;
	}
	if (scenario->world.calm) {
		model_fail("cannot open: %s", error.text);
	}
	return false;
}

static void run_requests(struct scenario *scenario)
{
	while (!scenario->gave_up && (scenario->budget > 0 || scenario->busy > 0)) {
		for (uint32_t i = 0; i < scenario->depth && scenario->budget > 0; i++) {
			if (!scenario->requests[i].busy && world_percent(70)) {
				submit_one(scenario, &scenario->requests[i]);
			}
		}
		if (scenario->busy == 0) {
			continue;
		}
		watch(scenario, "a request");
		if (scenario->own_loop) {
			gmb_queue_wait(scenario->queue, 0);
			if (scenario->busy > 0 &&
				!sim_poll(gmb_queue_fd(scenario->queue), UINT64_MAX)) {
				model_fail("the queue's descriptor never becomes readable");
			}
		} else if (world_percent(80)) {
			gmb_queue_wait(scenario->queue, world_percent(50) ? -1 : 20);
		} else {
			gmb_queue_wait(scenario->queue, 0);
			(void)sim_step();
		}
	}
	while (scenario->busy > 0) {
		gmb_queue_wait(scenario->queue, -1);
	}
}

/* Who wants to know that everything is there asks for a flush: one that succeeds has lost nothing,
 * power failure or not. */
static void flush_at_the_end(struct scenario *scenario)
{
	struct world *world = &scenario->world;
	uint64_t begin = oracle_now(world->oracle);
	uint32_t group = world->flush_group;
	int err;

	watch(scenario, "the last flush");
	err = gmb_flush(scenario->client);
	watch(scenario, NULL);
	if (err == 0 && group == world->flush_group) {
		oracle_flushed(world->oracle, begin, group);
		world->crashes_before = world->crashes;
	} else if (err != 0 && err != -EIO && !scenario->gave_up) {
		model_fail("the last flush: %s", strerror(-err));
	}
}

/* Where several connections are possible, all come back once nothing goes wrong any more. */
static void wait_for_connections(struct scenario *scenario)
{
	struct gmb_info info = { .size = sizeof(info) };
	uint64_t end_ns = sim_now_ns() + CONNECTIONS_BACK_NS;

	if ((scenario->info.capabilities & GMB_CAN_MULTI_CONN) == 0) {
		return;
	}
	while (!scenario->gave_up) {
		gmb_get_info(scenario->client, &info);
		if (info.connections >= scenario->options.connections) {
			return;
		}
		if (sim_now_ns() >= end_ns) {
			model_fail("%u of %u connections are back", info.connections,
				scenario->options.connections);
		}
		gmb_queue_wait(scenario->queue, 100);
	}
}

static void count(struct scenario *scenario)
{
	struct gmb_stats stats = { .size = sizeof(stats) };

	gmb_get_stats(scenario->client, &stats);
	scenario->replays += stats.commands_replayed;
	if (runner_native) {
		uint64_t bytes = stats.bytes_read + stats.bytes_written;

		scenario->staged_bytes += stats.bytes_moved;
		scenario->placed_bytes += bytes - MIN(bytes, stats.bytes_moved);
	}
}

static void close_client(struct scenario *scenario)
{
	if (scenario->client != NULL && !scenario->gave_up) {
		flush_at_the_end(scenario);
		wait_for_connections(scenario);
	}
	if (scenario->client != NULL) {
		count(scenario);
		watch(scenario, "closing");
		if (gmb_close(scenario->client) != 0) {
			model_fail("a client cannot be closed");
		}
		watch(scenario, NULL);
		scenario->client = NULL;
	}
	if (!scenario->gave_up) {
		world_check_current(&scenario->world);
	}
	if (scenario->gave_up) {
		/* Nothing of the old server may be left, or it happens later. */
		world_restart(&scenario->world);
		world_check_current(&scenario->world);
		world_new_oracle(&scenario->world);
	}
}

/* Every other request is in memory of the library's. */
static void make_buffers(struct scenario *scenario)
{
	uint64_t end_ns = sim_now_ns() + scenario->limit_ns;
	struct gmb_error error;
	void *base;

	for (uint32_t i = 0; i < BUFFERS; i++) {
		while (gmb_buffer_alloc(scenario->queue,
			       (size_t)REQUESTS_MAX / 4 * REQUEST_BYTES_MAX, 0, &base,
			       &error) != 0) {
			if (error.code != -ENOSPC || sim_now_ns() >= end_ns) {
				model_fail("no buffer: %s", error.text);
			}
			gmb_queue_wait(scenario->queue, 100); /* for those that were freed */
		}
		scenario->buffers[i] = base;
	}
}

static uint8_t *memory_of(const struct scenario *scenario, uint32_t idx)
{
	uint8_t *memory;

	if (runner_native && idx % 2 == 1) {
		return scenario->buffers[idx / 2 % BUFFERS] + (size_t)(idx / 4) * REQUEST_BYTES_MAX;
	}
	memory = malloc(REQUEST_BYTES_MAX);
	GMB_ASSERT(memory != NULL);
	return memory;
}

/* Others, while a server has the old ones. */
static void renew_buffers(struct scenario *scenario)
{
	for (uint32_t i = 0; i < BUFFERS; i++) {
		gmb_buffer_free(scenario->queue, scenario->buffers[i]);
	}
	make_buffers(scenario);
	for (uint32_t i = 1; i < REQUESTS_MAX; i += 2) {
		scenario->requests[i].memory = memory_of(scenario, i);
		memset(scenario->requests[i].memory, CANARY, REQUEST_BYTES_MAX);
	}
}

/* Nothing goes wrong any more: what is freed has to come back. */
static void renew_often(struct scenario *scenario)
{
	uint32_t count = world_percent(25) ? RENEWALS : 2;

	for (uint32_t i = 0; i < count && !scenario->gave_up; i++) {
		renew_buffers(scenario);
		scenario->budget += (uint32_t)world_below(8);
		run_requests(scenario);
	}
}

static void live(struct scenario *scenario)
{
	for (uint32_t life = 0; life < REOPENS_MAX && scenario->budget > 0; life++) {
		choose_options(scenario);
		if (life + 1 == REOPENS_MAX) {
			world_calm(&scenario->world);
			if (scenario->world.server != SERVER_UP) {
				world_restart(&scenario->world);
			}
		}
		if (open_client(scenario)) {
			run_requests(scenario);
			if (!scenario->gave_up) {
				world_calm(&scenario->world);
			}
			if (runner_native) {
				renew_often(scenario);
			}
			close_client(scenario);
		}
	}
}

static void flush_failed(void *context, struct sim_disk *disk, enum sim_fault_kind kind,
	uint64_t offset, uint64_t length, int error)
{
	struct scenario *scenario = context;

	if (kind == SIM_FAULT_FLUSH) {
		scenario->world.flush_group++;
	}
}

static void prepare(struct scenario *scenario)
{
	static const uint32_t depths[] = { 1, 2, 8, REQUESTS_MAX };
	struct gmb_error error;

	scenario->depth = depths[world_below(ARRAY_COUNT(depths))];
	scenario->budget = 50 + (uint32_t)world_below(200);
	scenario->overlap = world_percent(30);
	scenario->own_loop = world_percent(30);
	if (gmb_queue_create(NULL, &scenario->queue, &error) != 0) {
		model_fail("no queue: %s", error.text);
	}
	if (runner_native) {
		make_buffers(scenario);
	}
	for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
		scenario->requests[i].scenario = scenario;
		scenario->requests[i].memory = memory_of(scenario, i);
		memset(scenario->requests[i].memory, CANARY, REQUEST_BYTES_MAX);
	}
}

static void finish(struct scenario *scenario)
{
	for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
		check_canary(&scenario->requests[i]);
		if (!runner_native || i % 2 == 0) {
			free(scenario->requests[i].memory);
		}
	}
	for (uint32_t i = 0; i < BUFFERS; i++) {
		gmb_buffer_free(scenario->queue, scenario->buffers[i]);
	}
	if (gmb_queue_destroy(scenario->queue) != 0) {
		model_fail("the queue cannot be destroyed");
	}
}

struct scenario_result scenario_run(uint64_t seed, bool verbose)
{
	struct scenario *scenario = calloc(1, sizeof(*scenario));
	struct scenario_result result;

	GMB_ASSERT(scenario != NULL);
	scenario->verbose = verbose;
	sim_start(&(struct sim_options){
		.seed = seed,
		.verbose = verbose,
		.fault = flush_failed,
		.context = scenario,
		.faults = { .jitter = true },
		.batch_count = seed % 4 == 0 ? 2 + (uint32_t)(seed / 4 % 63) : 0,
		.batch_wait_ns = 1000 + seed * 7919 % 200000,
	});
	choose_options(scenario);
	world_create(&scenario->world, runner_native, scenario->options.request_timeout_ms * MS_NS,
		verbose);
	prepare(scenario);
	live(scenario);
	finish(scenario);
	world_destroy(&scenario->world);
	result = (struct scenario_result){
		.trace = sim_trace_hash(),
		.events = sim_event_count(),
		.requests = scenario->done_count,
		.errors = scenario->error_count,
		.placed_bytes = scenario->placed_bytes,
		.staged_bytes = scenario->staged_bytes,
		.replays = scenario->replays,
		.moves = scenario->moves,
		.copied_bytes = scenario->copied_bytes,
	};
	sim_stop();
	free(scenario);
	return result;
}
