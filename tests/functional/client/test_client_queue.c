// SPDX-License-Identifier: Apache-2.0
/* Queues and clients: rules, waking, event loops, threads; and what a server does to a range. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include "cases.h"

/* --- rules --------------------------------------------------------------------------------- */

CASE(queue_rules)
{
	struct gmb_queue_options options = { .size = sizeof(options), .entries = 4097 };
	struct gmb_queue *queue = NULL;
	struct gmb_error error = { 0 };

	CHECK_EQUAL(gmb_queue_create(&options, &queue, &error), -EINVAL);
	CHECK_EQUAL(error.code, -EINVAL);
	CHECK(strstr(error.text, "4096") != NULL);
	CHECK_EQUAL(gmb_queue_create(&options, &queue, NULL), -EINVAL);
	CHECK(queue == NULL);
	options.entries = 1;
	CHECK_EQUAL(gmb_queue_create(&options, &queue, NULL), 0);
	CHECK_EQUAL(gmb_queue_destroy(queue), 0);
	CHECK_EQUAL(gmb_queue_destroy(NULL), 0);
	CHECK_EQUAL(gmb_close(NULL), 0);
	CHECK_EQUAL(gmb_queue_destroy(run->queue), -EBUSY);
	/* It stays as it was. */
	CHECK_EQUAL(gmb_pread(run->client, &options, 1, 0), 0);
	CHECK_EQUAL(gmb_queue_wait(run->queue, 0), 0);
	CHECK_EQUAL(gmb_queue_wait(run->queue, 20), 0);
}

CASE(open_errors)
{
	static const struct {
		const char *uri;
		int code;
	} rows[] = {
		{ "", -EINVAL },
		{ "http://localhost/", -EINVAL },
		{ "nbd+unix:///", -EINVAL },
		{ "nbd://localhost:0/", -EINVAL },
		{ "nbd+unix:///?socket=/nonexistent/socket", -ENOENT },
		{ "nbds+unix:///?socket=/s", -EINVAL },
		{ "nbds://localhost/?tls-certificates=/", -EPERM },
	};
	struct gmb_options options = { .size = sizeof(options), .connections = 17 };
	struct gmb_client *client = NULL;
	struct gmb_error error;
	char missing[512];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		memset(&error, 0, sizeof(error));
		CHECK_EQUAL(gmb_open(run->queue, rows[i].uri, NULL, &client, &error), rows[i].code);
		CHECK_EQUAL(error.code, rows[i].code);
		CHECK(error.text[0] != '\0');
	}
	/* The URI ends in ?socket=...: an export that is not there comes before. */
	snprintf(missing, sizeof(missing), "nbd+unix:///none%s", strchr(run->uri, '?'));
	CHECK_EQUAL(gmb_open(run->queue, missing, NULL, &client, &error), -ENOENT);
	CHECK(strstr(error.text, "none") != NULL);
	CHECK_EQUAL(gmb_open(run->queue, run->uri, &options, &client, &error), -EINVAL);
	options.connections = 0;
	options.depth = 1025;
	CHECK_EQUAL(gmb_open(run->queue, run->uri, &options, &client, &error), -EINVAL);
	CHECK(client == NULL);
}

static int inside_count;

static void inside_done(struct gmb_request *request)
{
	struct run *run = request->context;
	struct gmb_request other = { 0 };
	struct gmb_client *client = NULL;
	struct gmb_extent extent;
	uint32_t count = 1;
	char byte;

	inside_count++;
	CHECK_EQUAL(gmb_queue_wait(run->queue, -1), -EDEADLK);
	CHECK_EQUAL(gmb_queue_wait(run->queue, 0), -EDEADLK);
	CHECK_EQUAL(gmb_open(run->queue, run->uri, NULL, &client, NULL), -EDEADLK);
	CHECK_EQUAL(gmb_close(run->client), -EDEADLK);
	CHECK_EQUAL(gmb_queue_destroy(run->queue), -EBUSY);
	CHECK_EQUAL(gmb_pread(run->client, &byte, 1, 0), -EDEADLK);
	CHECK_EQUAL(gmb_pwrite(run->client, &byte, 1, 0, 0), -EDEADLK);
	CHECK_EQUAL(gmb_flush(run->client), -EDEADLK);
	CHECK_EQUAL(gmb_trim(run->client, 0, 1, 0), -EDEADLK);
	CHECK_EQUAL(gmb_zero(run->client, 0, 1, 0), -EDEADLK);
	CHECK_EQUAL(gmb_cache(run->client, 0, 1), -EDEADLK);
	CHECK_EQUAL(gmb_block_status(run->client, 0, 1, &extent, &count), -EDEADLK);
	gmb_prepare(&other, GMB_FLUSH, 0, 0);
	CHECK_EQUAL(gmb_run(run->client, &other), -EDEADLK);
	CHECK_EQUAL(other.in_flight, 0);
}

CASE(inside_callbacks)
{
	struct gmb_request good = { .done = inside_done, .context = run };
	struct gmb_request bad = { .done = inside_done, .context = run };
	char byte;

	gmb_prepare_read(&good, &byte, 1, 0);
	gmb_prepare_read(&bad, &byte, 1, UINT64_MAX);
	gmb_submit(run->client, &good);
	gmb_submit(run->client, &bad);
	while (inside_count < 2) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	/* From inside a blocking call it is the same. */
	gmb_submit(run->client, &good);
	while (inside_count < 3) {
		CHECK_EQUAL(gmb_pread(run->client, &byte, 1, 1), 0);
	}
	CHECK_EQUAL(stats_of(run->client).connections_lost, 0);
}

/* A caller that knows less than the library, and one that knows more. */
CASE(struct_sizes)
{
	struct {
		struct gmb_options known;
		uint8_t later[64];
	} options = { .known = { .size = sizeof(options), .depth = 3, .connections = 1 } };
	struct {
		struct gmb_request known;
		uint8_t later[64];
	} request = { 0 };
	struct gmb_options early = { .size = offsetof(struct gmb_options, depth), .depth = 9999 };
	struct gmb_queue_options queue_options = { .entries = 8 };
	struct gmb_request wrong = { .reserved = { 0, 0, 1 } };
	struct gmb_client *client;
	struct gmb_queue *queue;
	struct gmb_info info;
	struct gmb_stats stats;

	memset(options.later, 0xff, sizeof(options.later));
	memset(request.later, 0xff, sizeof(request.later));
	client = open_or_die(run->queue, run->uri, &options.known);
	gmb_prepare(&request.known, GMB_FLUSH, 0, 0);
	CHECK_EQUAL(gmb_run_sized(client, &request.known, sizeof(request)), 0);
	memset(&info, 0xee, sizeof(info));
	info.size = sizeof(info);
	gmb_get_info(client, &info);
	CHECK_EQUAL(info.depth, 3);
	CHECK_EQUAL(gmb_close(client), 0);
	/* The options of 0.1.0 are the fewest, and none that is forgotten is ignored. */
	CHECK_EQUAL(gmb_open(run->queue, run->uri, &early, &client, NULL), -EINVAL);
	early.size = 0;
	CHECK_EQUAL(gmb_open(run->queue, run->uri, &early, &client, NULL), -EINVAL);
	early = (struct gmb_options){ .size = sizeof(early), .reserved = 1 };
	CHECK_EQUAL(gmb_open(run->queue, run->uri, &early, &client, NULL), -EINVAL);
	CHECK_EQUAL(gmb_queue_create(&queue_options, &queue, NULL), -EINVAL);
	queue_options = (struct gmb_queue_options){ .size = sizeof(queue_options), .flags = 2 };
	CHECK_EQUAL(gmb_queue_create(&queue_options, &queue, NULL), -EINVAL);
	queue_options.flags = GMB_QUEUE_NO_SPIN;
	CHECK_EQUAL(gmb_queue_create(&queue_options, &queue, NULL), 0);
	client = open_or_die(queue, run->uri, NULL);
	CHECK_EQUAL(gmb_run_sized(client, &request.known, sizeof(request)), 0);
	CHECK_EQUAL(gmb_close(client), 0);
	CHECK_EQUAL(gmb_queue_destroy(queue), 0);
	client = open_or_die(run->queue, run->uri, NULL);
	gmb_prepare(&wrong, GMB_FLUSH, 0, 0);
	CHECK_EQUAL(gmb_run(run->client, &wrong), -EINVAL);
	memset(&info, 0xee, sizeof(info));
	info.size = offsetof(struct gmb_info, capabilities);
	gmb_get_info(client, &info);
	CHECK_EQUAL(info.bytes, run->info.bytes);
	CHECK_EQUAL(info.size, offsetof(struct gmb_info, capabilities));
	CHECK_EQUAL(info.capabilities, 0xeeeeeeee);
	memset(&stats, 0xee, sizeof(stats));
	stats.size = offsetof(struct gmb_stats, commands);
	gmb_get_stats(client, &stats);
	CHECK_EQUAL(stats.requests, 0);
	CHECK_EQUAL(stats.commands, INT64_C(-0x1111111111111112));
	CHECK_EQUAL(gmb_close(client), 0);
}

/* --- waking and event loops ------------------------------------------------------------------- */

static void *wake_later(void *context)
{
	gmb_queue_wake(context);
	return NULL;
}

CASE(wake_from_thread)
{
	for (int i = 0; i < 200; i++) {
		pthread_t thread;

		CHECK_EQUAL(pthread_create(&thread, NULL, wake_later, run->queue), 0);
		CHECK_EQUAL(gmb_queue_wait(run->queue, -1), 0);
		CHECK_EQUAL(pthread_join(thread, NULL), 0);
	}
	/* Before the wait, and several times: one wait returns. */
	gmb_queue_wake(run->queue);
	gmb_queue_wake(run->queue);
	CHECK_EQUAL(gmb_queue_wait(run->queue, -1), 0);
	CHECK_EQUAL(gmb_queue_wait(run->queue, 1), 0);
	gmb_queue_wake(run->queue);
	CHECK_EQUAL(gmb_flush(run->client), 0); /* takes the wake-up, and keeps it for the wait */
	CHECK_EQUAL(gmb_queue_wait(run->queue, -1), 0);
	gmb_queue_wake(run->queue); /* destroyed with the wake-up on its way */
}

static struct gmb_queue *signal_queue;
static pthread_t signal_target;

static void on_signal(int number)
{
	gmb_queue_wake(signal_queue);
}

static void *kill_target(void *context)
{
	CHECK_EQUAL(pthread_kill(signal_target, SIGUSR1), 0);
	return NULL;
}

CASE(wake_from_signal_handler)
{
	struct sigaction action = { .sa_handler = on_signal };

	signal_queue = run->queue;
	signal_target = pthread_self();
	CHECK_EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	for (int i = 0; i < 200; i++) {
		pthread_t thread;

		CHECK_EQUAL(pthread_create(&thread, NULL, kill_target, NULL), 0);
		CHECK_EQUAL(gmb_queue_wait(run->queue, -1), 0);
		CHECK_EQUAL(pthread_join(thread, NULL), 0);
	}
}

static int poll_queue(struct run *run, int timeout_ms)
{
	struct pollfd entry = { .fd = gmb_queue_fd(run->queue), .events = POLLIN };

	return poll(&entry, 1, timeout_ms);
}

struct loop_request {
	struct counted counted;
	uint32_t left;
	uint8_t buffer[4096];
};

static void loop_done(struct gmb_request *request)
{
	struct loop_request *loop = request->context;

	loop->counted.done_count++;
	if (loop->left-- > 0) {
		/* Every eighth needs no server: nothing but us makes the descriptor readable. */
		uint64_t offset = loop->left % 8 == 0 ? UINT64_MAX : loop->left * UINT64_C(512);

		gmb_prepare_read(request, loop->buffer, sizeof(loop->buffer), offset);
		gmb_submit(loop->counted.run->client, request);
	}
}

/* The program sleeps in poll() only. */
CASE(event_loop)
{
	enum { COUNT = 20, LENGTH = 300 };
	struct loop_request *loops = calloc(COUNT, sizeof(*loops));
	int done = 0;

	CHECK(loops != NULL);
	CHECK(gmb_queue_fd(run->queue) >= 0);
	CHECK_EQUAL(gmb_queue_fd(run->queue), gmb_queue_fd(run->queue));
	for (int i = 0; i < COUNT; i++) {
		counted_init(run, &loops[i].counted);
		loops[i].counted.request.done = loop_done;
		loops[i].counted.request.context = &loops[i];
		loops[i].left = LENGTH;
		gmb_prepare_read(&loops[i].counted.request, loops[i].buffer, 4096, 0);
		gmb_submit(run->client, &loops[i].counted.request);
	}
	while (done < COUNT * (LENGTH + 1)) {
		int count = gmb_queue_wait(run->queue, 0);

		CHECK(count >= 0);
		done += count;
		if (done < COUNT * (LENGTH + 1)) {
			CHECK(poll_queue(run, 60000) == 1);
		}
	}
	/* With nothing to do it falls silent, and a wake-up is something to do. */
	do {
		CHECK_EQUAL(gmb_queue_wait(run->queue, 0), 0);
	} while (poll_queue(run, 0) > 0);
	gmb_queue_wake(run->queue);
	CHECK_EQUAL(poll_queue(run, 60000), 1);
	CHECK_EQUAL(gmb_queue_wait(run->queue, -1), 0);
	free(loops);
}

/* A chain that never ends must not keep gmb_queue_wait(queue, 0) for ever. */
CASE(endless_chain)
{
	static struct loop_request loop;
	int rounds = 0;

	counted_init(run, &loop.counted);
	loop.counted.request.done = loop_done;
	loop.counted.request.context = &loop;
	loop.left = UINT32_MAX - UINT32_MAX % 8;
	gmb_prepare_read(&loop.counted.request, loop.buffer, 4096, UINT64_MAX);
	gmb_submit(run->client, &loop.counted.request);
	while (rounds < 100) {
		CHECK(gmb_queue_wait(run->queue, 0) >= 0);
		CHECK_EQUAL(poll_queue(run, 60000), 1);
		rounds++;
	}
	CHECK(loop.counted.done_count > 0);
	loop.left = 0;
}

static void fail_again_done(struct gmb_request *request)
{
	struct loop_request *loop = request->context;

	loop->counted.done_count++;
	if (loop->left-- > 0) {
		gmb_submit(loop->counted.run->client, request);
	}
}

/* The same with requests that fail without a server: they are ready in every turn. */
CASE(endless_failures)
{
	static struct loop_request loop;

	counted_init(run, &loop.counted);
	loop.counted.request.done = fail_again_done;
	loop.counted.request.context = &loop;
	loop.left = UINT32_MAX;
	gmb_prepare_read(&loop.counted.request, loop.buffer, 4096, UINT64_MAX);
	gmb_submit(run->client, &loop.counted.request);
	for (int rounds = 0; rounds < 100; rounds++) {
		int before = loop.counted.done_count;

		CHECK(gmb_queue_wait(run->queue, 0) > 0);
		CHECK(loop.counted.done_count > before);
		CHECK_EQUAL(poll_queue(run, 60000), 1); /* there is more to tell */
	}
	loop.left = 0;
}

/* --- many ------------------------------------------------------------------------------------ */

CASE(several_clients)
{
	enum { CLIENTS = 5, BYTES_MAX = 100000 };
	struct gmb_client *clients[CLIENTS];
	static struct counted counted[CLIENTS];
	static uint8_t bytes[CLIENTS][BYTES_MAX];
	static uint8_t back[BYTES_MAX];
	size_t count = whole_blocks(run, BYTES_MAX);

	for (int i = 0; i < CLIENTS; i++) {
		clients[i] = open_or_die(run->queue, run->uri, NULL);
		fill(bytes[i], count, (uint64_t)i);
		counted_init(run, &counted[i]);
		gmb_prepare_write(&counted[i].request, bytes[i], count, (uint64_t)i * count);
		gmb_submit(clients[i], &counted[i].request);
	}
	for (int i = 0; i < CLIENTS; i++) {
		/* gmb_open() of the next ones may have told of it. */
		while (counted[i].request.in_flight != 0) {
			CHECK(gmb_queue_wait(run->queue, -1) > 0);
		}
	}
	for (int i = 0; i < CLIENTS; i++) {
		CHECK_EQUAL(counted[i].done_count, 1);
		CHECK_EQUAL(counted[i].request.result, 0);
		CHECK_EQUAL(gmb_queue_destroy(run->queue), -EBUSY);
		CHECK_EQUAL(
			gmb_pread(clients[(i + 1) % CLIENTS], back, count, (uint64_t)i * count), 0);
		CHECK(memcmp(back, bytes[i], count) == 0);
	}
	for (int i = 0; i < CLIENTS; i++) {
		CHECK(strcmp(gmb_uri(clients[i]), run->uri) == 0);
		CHECK_EQUAL(gmb_close(clients[i]), 0);
	}
}

static void *use_own_queue(void *context)
{
	const struct run *run = context;
	struct gmb_queue *queue = queue_or_die();
	struct gmb_client *client = open_or_die(queue, run->uri, NULL);
	uint8_t bytes[4096];

	for (uint64_t i = 0; i < 300; i++) {
		CHECK_EQUAL(gmb_pread(client, bytes, sizeof(bytes), i * 512), 0);
	}
	CHECK_EQUAL(gmb_close(client), 0);
	CHECK_EQUAL(gmb_queue_destroy(queue), 0);
	return NULL;
}

CASE(queues_in_threads)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++) {
		CHECK_EQUAL(pthread_create(&threads[i], NULL, use_own_queue, run), 0);
	}
	for (int i = 0; i < 4; i++) {
		CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
	}
}

/* argument: how many connections four wishes get. */
CASE(four_connections)
{
	uint32_t expected = (uint32_t)strtoul(run->argument, NULL, 10);

	reopen(run, (struct gmb_options){ .connections = 4, .depth = 8 });
	CHECK_EQUAL(run->info.connections, expected);
	CHECK_EQUAL((run->info.capabilities & GMB_CAN_MULTI_CONN) != 0, expected > 1);
	CHECK_EQUAL(run->info.depth, 8 * expected);
	several_clients(run);
	CHECK_EQUAL(gmb_flush(run->client), 0);
}

/* --- what a server does to a range ---------------------------------------------------------- */

/* FUA where the server has only FLUSH: a flush after it. argument: commands for one write. */
CASE(fua)
{
	uint64_t per_write = strtoull(run->argument, NULL, 10);
	uint64_t commands = stats_of(run->client).commands;
	uint8_t bytes[512] = { 1 };

	CHECK_EQUAL((run->info.capabilities & GMB_CAN_FUA) != 0, per_write == 1);
	CHECK_EQUAL(gmb_pwrite(run->client, bytes, 512, 0, GMB_FUA), 0);
	CHECK_EQUAL(stats_of(run->client).commands - commands, per_write);
	CHECK_EQUAL(gmb_zero(run->client, 0, 512, GMB_FUA), 0);
	CHECK_EQUAL(gmb_trim(run->client, 0, 512, GMB_FUA), 0);
	CHECK_EQUAL(stats_of(run->client).commands - commands, 3 * per_write);
	CHECK_EQUAL(gmb_pwrite(run->client, bytes, 512, 0, 0), 0);
	CHECK_EQUAL(stats_of(run->client).commands - commands, 3 * per_write + 1);
}

/* The flush that stands in for FUA fails: so does the write. */
CASE(fua_flush_fails)
{
	uint8_t bytes[512] = { 1 };

	CHECK_EQUAL(run->info.capabilities & GMB_CAN_FUA, 0);
	CHECK_EQUAL(gmb_pwrite(run->client, bytes, 512, 0, 0), 0);
	CHECK_EQUAL(gmb_pwrite(run->client, bytes, 512, 0, GMB_FUA), -EIO);
}

static uint64_t walk(struct run *run, uint32_t room, uint32_t flags, uint64_t *data_bytes)
{
	struct gmb_extent extents[64];
	struct gmb_request request = { 0 };
	uint64_t offset = 0;
	uint64_t data = 0;
	uint64_t calls = 0;

	while (offset < run->info.bytes) {
		gmb_prepare_status(&request, extents, room, offset, run->info.bytes - offset);
		request.flags = flags;
		CHECK_EQUAL(gmb_run(run->client, &request), 0);
		CHECK(request.extent_count >= 1 && request.extent_count <= room);
		CHECK(flags == 0 || request.extent_count == 1);
		for (uint32_t i = 0; i < request.extent_count; i++) {
			CHECK_EQUAL(extents[i].offset, offset);
			CHECK(extents[i].bytes > 0);
			CHECK(extents[i].bytes <= run->info.bytes - offset);
			CHECK(i == 0 || extents[i].flags != extents[i - 1].flags);
			offset += extents[i].bytes;
			data += extents[i].flags == 0 ? extents[i].bytes : 0;
		}
		calls++;
	}
	*data_bytes = data;
	return calls;
}

/* argument: bytes of the export that are data. */
CASE(block_status)
{
	static const uint32_t rooms[] = { 1, 2, 3, 64 };
	uint64_t expected = strtoull(run->argument, NULL, 10);
	uint64_t data;

	for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
		walk(run, rooms[i], 0, &data);
		CHECK_EQUAL(data, expected);
		walk(run, rooms[i], GMB_STATUS_ONE, &data);
		CHECK_EQUAL(data, expected);
	}
}

/* Reads everything: what is reported as a hole is zero. argument: bytes of all holes. */
CASE(read_holes)
{
	struct gmb_extent extents[16] = { { 0 } };
	struct gmb_request request = { 0 };
	uint8_t *bytes = malloc(run->info.bytes);
	uint64_t holes = 0;

	CHECK(bytes != NULL);
	memset(bytes, 0xee, run->info.bytes);
	gmb_prepare_read(&request, bytes, run->info.bytes, 0);
	request.extents = extents;
	request.extents_max = 16;
	CHECK_EQUAL(gmb_run(run->client, &request), 0);
	for (uint32_t i = 0; i < request.extent_count; i++) {
		CHECK_EQUAL(extents[i].flags, GMB_EXTENT_HOLE | GMB_EXTENT_ZERO);
		CHECK(extents[i].offset <= run->info.bytes);
		CHECK(extents[i].bytes <= run->info.bytes - extents[i].offset);
		for (uint64_t at = 0; at < extents[i].bytes; at++) {
			CHECK(bytes[extents[i].offset + at] == 0);
		}
		holes += extents[i].bytes;
	}
	/* The server says it in pieces of its own; what is data in a piece makes it one of data. */
	CHECK(holes <= strtoull(run->argument, NULL, 10));
	CHECK(holes > strtoull(run->argument, NULL, 10) / 2);
	CHECK_EQUAL(fwrite(bytes, 1, run->info.bytes, stdout), run->info.bytes);
	free(bytes);
}

/* A crowd of reads and writes that do not touch each other, each checked. */
static void crowd(struct run *run)
{
	enum { COUNT = 200, BYTES = 8192 };
	static struct counted counted[COUNT];
	static uint8_t memory[COUNT][BYTES];
	static uint8_t expected[BYTES];
	int done = 0;

	for (int turn = 0; turn < 2; turn++) {
		for (int i = 0; i < COUNT; i++) {
			uint64_t offset = UINT64_C(2) * 1024 * 1024 + (uint64_t)i * BYTES;

			counted_init(run, &counted[i]);
			if (turn == 0) {
				fill(memory[i], BYTES, (uint64_t)i);
				gmb_prepare_write(&counted[i].request, memory[i], BYTES, offset);
			} else {
				memset(memory[i], 0xee, BYTES);
				gmb_prepare_read(&counted[i].request, memory[i], BYTES, offset);
			}
			gmb_submit(run->client, &counted[i].request);
		}
		for (done = 0; done < COUNT;) {
			done += gmb_queue_wait(run->queue, -1);
		}
		CHECK_EQUAL(done, COUNT);
	}
	for (int i = 0; i < COUNT; i++) {
		CHECK_EQUAL(counted[i].done_count, 1);
		CHECK_EQUAL(counted[i].request.result, 0);
		fill(expected, BYTES, (uint64_t)i);
		CHECK(memcmp(memory[i], expected, BYTES) == 0);
	}
}

/* Everything an export offers, with checks of what it does. argument: flags of gmb_options. */
CASE(exercise)
{
	enum { BYTES = 256 << 10 };
	static uint8_t out[BYTES];
	static uint8_t in[BYTES];
	uint32_t flags = (uint32_t)strtoul(run->argument, NULL, 10);
	struct gmb_extent extent;
	uint32_t count = 1;
	uint32_t can;

	reopen(run, (struct gmb_options){ .flags = flags });
	can = run->info.capabilities;
	CHECK(can & GMB_CAN_WRITE);
	CHECK((flags & GMB_OPEN_SIMPLE) == 0 || run->info.replies == GMB_REPLIES_SIMPLE);
	CHECK((flags & GMB_OPEN_NO_EXTENDED) == 0 || run->info.replies != GMB_REPLIES_EXTENDED);
	fill(out, BYTES, 77);
	CHECK_EQUAL(gmb_pwrite(run->client, out, BYTES, 65536, 0), 0);
	CHECK_EQUAL(gmb_pread(run->client, in, BYTES, 65536), 0);
	CHECK(memcmp(in, out, BYTES) == 0);
	if (can & GMB_CAN_FLUSH) {
		CHECK_EQUAL(gmb_flush(run->client), 0);
	}
	if (can & GMB_CAN_ZERO) {
		CHECK_EQUAL(gmb_zero(run->client, 65536 + 4096, 8192, GMB_NO_HOLE), 0);
		memset(out + 4096, 0, 8192);
		CHECK_EQUAL(gmb_pread(run->client, in, BYTES, 65536), 0);
		CHECK(memcmp(in, out, BYTES) == 0);
	}
	if (can & GMB_CAN_TRIM) {
		CHECK_EQUAL(gmb_trim(run->client, 1 << 20, 65536, 0), 0);
	}
	if (can & GMB_CAN_CACHE) {
		CHECK_EQUAL(gmb_cache(run->client, 0, 65536), 0);
	}
	if (can & GMB_CAN_STATUS) {
		CHECK_EQUAL(gmb_block_status(run->client, 65536, 4096, &extent, &count), 0);
		CHECK_EQUAL(count, 1);
		CHECK_EQUAL(extent.offset, 65536);
		CHECK_EQUAL(extent.bytes, 4096);
		CHECK_EQUAL(extent.flags & GMB_EXTENT_ZERO, 0);
	}
	crowd(run);
	CHECK_EQUAL(stats_of(run->client).connections_lost, 0);
	printf("%s %x\n",
		run->info.replies == GMB_REPLIES_SIMPLE	      ? "simple"
		: run->info.replies == GMB_REPLIES_STRUCTURED ? "structured"
							      : "extended",
		can);
}

int main(int argc, char **argv)
{
	return run_cases(argc, argv);
}
