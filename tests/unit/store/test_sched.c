// SPDX-License-Identifier: Apache-2.0
/*
 * The scheduler on a paced disk that seeks, in simulated time: throughput of several streams with
 * and without it, waiting times beside them, fairness, and that no part is lost whatever the
 * order of arrivals, nor if the disk holds parts back.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"
#include "store/kind.h"
#include "unit.h"

enum {
	KIB = 1024,
	RING_COUNT = 2,
	CLIENTS_MAX = 80,
	DEPTH_MAX = 4,
	LATENCIES_MAX = 1 << 16,
	GAP_NS = 50000, /* of a client on the same machine */
};

#define MIB	  (UINT64_C(1) << 20)
#define GIB	  (UINT64_C(1) << 30)
#define SECOND_NS UINT64_C(1000000000)
#define DISK	  "150M:seek=8ms"

static void set_key(struct store_options *options, const char *key, const char *value)
{
	struct error error;

	assert_int_equal(store_options_set(options, key, value, &error), 0);
}

enum pattern { PATTERN_STREAM, PATTERN_RANDOM };

struct client;

struct request {
	struct store_part part;
	struct client *client;
	uint64_t begin_ns;
	bool is_busy;
};

struct client {
	struct world *world;
	enum pattern pattern;
	enum store_op op;
	uint32_t flags;
	uint32_t bytes;
	uint32_t depth;
	uint64_t gap_ns;
	uint32_t ring;	     /* index */
	uint64_t file_bytes; /* 0, or the client goes on elsewhere after so many bytes */
	uint64_t next_offset;
	uint64_t done_bytes;
	uint64_t latencies_ns[LATENCIES_MAX];
	uint32_t latency_count;
	struct request requests[DEPTH_MAX];
};

struct world {
	struct ring *rings[RING_COUNT];
	struct store *store;
	struct store_queue *queues[RING_COUNT];
	struct client *clients;
	uint32_t client_count;
	bool is_ending;
};

static uint8_t payload[4 << 20];

/* --- a disk that holds parts back ------------------------------------------------------------ */

/* A filter below the scheduler that can hold back the next part at random places. */
static struct {
	bool is_wanted;
	struct store_part *part;
} held;

static void hold_submit(struct store_queue *queue, struct store_part *part)
{
	if (held.is_wanted && part->length == 4 * KIB) {
		held.is_wanted = false;
		held.part = part;
	} else {
		store_forward(part);
	}
}

static bool hold_wraps(const struct store_info *info, const void *config)
{
	return info->read_seeks;
}

static int hold_open(struct store *store, const struct store_options *options, const void *config,
	struct error *error)
{
	return 0;
}

static const struct store_ops hold_ops = { .name = "hold", .submit = hold_submit };

static const struct store_kind hold_kind = {
	.name = "hold",
	.is_filter = true,
	.wraps = hold_wraps,
	.store_bytes = sizeof(struct store),
	.ops = &hold_ops,
	.open = hold_open,
};

/* --- clients --------------------------------------------------------------------------------- */

/* delay: NULL for none. */
static void world_open_delayed(
	struct world *world, uint64_t seed, const char *pace, const char *delay, const char *sched)
{
	struct store_options options = { .path = "null:64G" };
	struct error error;

	memset(world, 0, sizeof(*world));
	sim_start(&(struct sim_options){ .seed = seed });
	set_key(&options, "pace", pace);
	set_key(&options, "sched", sched);
	if (delay != NULL) {
		set_key(&options, "delay", delay);
	}
	if (store_open(&options, &world->store, &error) != 0) {
		fail_msg("%s", error.text);
	}
	store_options_fini(&options);
	for (uint32_t i = 0; i < RING_COUNT; i++) {
		if (ring_create(&(struct ring_options){ 0 }, &world->rings[i], &error) != 0 ||
			store_queue_create(
				world->store, world->rings[i], &world->queues[i], &error) != 0) {
			fail_msg("%s", error.text);
		}
	}
	world->clients = calloc(CLIENTS_MAX, sizeof(*world->clients));
	assert_non_null(world->clients);
}

static void world_open(struct world *world, uint64_t seed, const char *pace, const char *sched)
{
	world_open_delayed(world, seed, pace, NULL, sched);
}

static void world_close(struct world *world)
{
	world->is_ending = true;
	while (sim_step()) {
	}
	for (uint32_t i = 0; i < world->client_count; i++) {
		for (uint32_t k = 0; k < DEPTH_MAX; k++) {
			assert_false(world->clients[i].requests[k].is_busy);
		}
	}
	for (uint32_t i = 0; i < RING_COUNT; i++) {
		store_queue_destroy(world->queues[i]);
		ring_destroy(world->rings[i]);
	}
	store_close(world->store);
	free(world->clients);
	sim_stop();
}

static void request_done(struct store_part *part, int result);

static void request_begin(void *context)
{
	struct request *request = context;
	struct client *client = request->client;

	if (client->world->is_ending) {
		return;
	}
	if (client->pattern == PATTERN_RANDOM) {
		client->next_offset = sim_between(0, 60 * GIB / client->bytes) * client->bytes;
	}
	if (client->file_bytes > 0 && client->next_offset % client->file_bytes == 0) {
		client->next_offset =
			sim_between(0, 60 * GIB / client->file_bytes) * client->file_bytes;
	}
	memset(&request->part, 0, sizeof(request->part));
	request->part.op = client->op;
	request->part.flags = client->flags;
	request->part.offset = client->next_offset;
	request->part.length = client->bytes;
	request->part.memory = mem_of(payload);
	request->part.requester = 1 + (uint64_t)(client - client->world->clients);
	request->part.done = request_done;
	request->begin_ns = sim_now_ns();
	request->is_busy = true;
	client->next_offset = (client->next_offset + client->bytes) % (60 * GIB);
	store_submit(client->world->queues[client->ring], &request->part);
}

static void request_done(struct store_part *part, int result)
{
	struct request *request = container_of(part, struct request, part);
	struct client *client = request->client;

	assert_int_equal(result, 0);
	assert_true(request->is_busy);
	request->is_busy = false;
	client->done_bytes += client->bytes;
	if (client->latency_count < LATENCIES_MAX) {
		client->latencies_ns[client->latency_count++] = sim_now_ns() - request->begin_ns;
	}
	sim_after(client->gap_ns, request_begin, request);
}

static struct client *add(struct world *world, const struct client *like)
{
	uint32_t i = world->client_count++;
	struct client *client = &world->clients[i];

	client->world = world;
	client->pattern = like->pattern;
	client->op = like->op;
	client->flags = like->flags;
	client->bytes = like->bytes;
	client->file_bytes = like->file_bytes;
	client->depth = MAX(like->depth, UINT32_C(1));
	client->gap_ns = like->gap_ns > 0 ? like->gap_ns : GAP_NS;
	client->ring = i % RING_COUNT;
	client->next_offset = i * GIB / 2;
	for (uint32_t k = 0; k < client->depth; k++) {
		client->requests[k].client = client;
		sim_after(sim_between(0, 1000000), request_begin, &client->requests[k]);
	}
	return client;
}

/* Runs for so long, after a second of warming up. */
static void run(struct world *world, uint64_t seconds)
{
	uint64_t end_ns = sim_now_ns() + SECOND_NS;

	for (int phase = 0; phase < 2; phase++) {
		while (sim_now_ns() < end_ns) {
			assert_true(sim_step());
		}
		if (phase == 0) {
			for (uint32_t i = 0; i < world->client_count; i++) {
				world->clients[i].done_bytes = 0;
				world->clients[i].latency_count = 0;
			}
			end_ns = sim_now_ns() + seconds * SECOND_NS;
		}
	}
}

/* Runs until that time. */
static void run_until(uint64_t end_ns)
{
	while (sim_now_ns() < end_ns) {
		assert_true(sim_step());
	}
}

static uint64_t streams_bytes(const struct world *world)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < world->client_count; i++) {
		bytes += world->clients[i].pattern == PATTERN_STREAM ? world->clients[i].done_bytes
								     : 0;
	}
	return bytes;
}

/* Jain's index of the streams' shares: 1 when all are equal. */
static double fairness(const struct world *world)
{
	double sum = 0;
	double squares = 0;
	uint32_t count = 0;

	for (uint32_t i = 0; i < world->client_count; i++) {
		double share = (double)world->clients[i].done_bytes;

		if (world->clients[i].pattern == PATTERN_STREAM) {
			sum += share;
			squares += share * share;
			count++;
		}
	}
	return sum * sum / (squares * count);
}

static int compare_ns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static double latency_ms(struct client *client, double share)
{
	assert_true(client->latency_count > 0);
	qsort(client->latencies_ns, client->latency_count, sizeof(uint64_t), compare_ns);
	return (double)client->latencies_ns[(uint32_t)(share * (client->latency_count - 1))] / 1e6;
}

struct load {
	uint32_t streams;
	uint32_t kib;
	uint32_t depth;
	bool with_random;
	double gain_min;
	uint64_t gap_ns;  /* 0: GAP_NS */
	const char *disk; /* NULL: DISK */
	uint64_t file_bytes;
};

static double load_run(const struct load *load, const char *sched, double *p99_ms, double *jain)
{
	struct client stream = { .op = STORE_READ,
		.bytes = load->kib * KIB,
		.depth = load->depth,
		.gap_ns = load->gap_ns,
		.file_bytes = load->file_bytes };
	struct client random = { .op = STORE_READ, .pattern = PATTERN_RANDOM, .bytes = 4 * KIB };
	struct client *reader = NULL;
	struct world world;
	double rate;

	world_open(&world, 1, load->disk ?: DISK, sched);
	for (uint32_t i = 0; i < load->streams; i++) {
		add(&world, &stream);
	}
	if (load->with_random) {
		reader = add(&world, &random);
	}
	run(&world, 30);
	rate = (double)streams_bytes(&world) / 30e6;
	*p99_ms = reader != NULL ? latency_ms(reader, 0.99) : 0;
	*jain = fairness(&world);
	world_close(&world);
	return rate;
}

TEST(several_streams_gain)
{
	static const struct load loads[] = {
		{ 4, 512, 1, true, 2.2 },
		{ 4, 512, 1, false, 1.66 },
		{ 4, 512, 4, true, 1.66 },
		{ 8, 512, 4, false, 1.66 },
		{ 4, 1024, 1, true, 1.4 },
		{ 8, 1024, 4, true, 1.4 },
		/* Far clients: the disk waits for their next request as long as a seek takes. If
		 * it cannot wait, they lose nothing. */
		{ 4, 512, 1, false, 1.2, 5000000 },
		{ 4, 512, 1, true, 1.1, 5000000 },
		{ 4, 512, 1, false, 0.97, 20000000 },
		{ 4, 512, 1, true, 0.97, 20000000 },
		{ 4, 512, 2, false, 0.97, 20000000 },
		/* A large request is transferred in half the time of a seek, or in twice that. */
		{ 4, 1024, 1, false, 2.5, 0, "300M:seek=8ms" },
		{ 4, 1024, 1, false, 1.3, 0, "60M:seek=8ms" },
		/* Clients that read one file after the other. */
		{ 4, 512, 1, false, 2.5, 0, NULL, 10 * MIB },
		{ 4, 512, 1, true, 2.2, 0, NULL, 10 * MIB },
	};

	for (size_t i = 0; i < ARRAY_COUNT(loads); i++) {
		double p99_off;
		double p99_ms;
		double jain_off;
		double jain;
		double off = load_run(&loads[i], "off", &p99_off, &jain_off);
		double on = load_run(&loads[i], "auto", &p99_ms, &jain);

		print_message("%u x %u KiB, depth %u, gap %.1f ms%s: %.1f, off %.1f MB/s; random "
			      "reader p99 %.1f, off "
			      "%.1f ms; fairness %.3f, off %.3f\n",
			loads[i].streams, loads[i].kib, loads[i].depth,
			(double)MAX(loads[i].gap_ns, (uint64_t)GAP_NS) / 1e6,
			loads[i].with_random ? ", random reader" : "", on, off, p99_ms, p99_off,
			jain, jain_off);
		assert_true(on >= loads[i].gain_min * off);
		assert_true(p99_ms <= 60);
		assert_true(jain >= 0.95);
	}
}

/* A node of a cluster writes a sign of life every half second, durable, and must never be late. */
TEST(durable_writes_do_not_wait)
{
	struct client stream = { .op = STORE_READ, .bytes = 512 * KIB, .depth = 4 };
	struct client random = { .op = STORE_READ, .pattern = PATTERN_RANDOM, .bytes = 4 * KIB };
	struct client heartbeat = { .op = STORE_WRITE,
		.pattern = PATTERN_RANDOM,
		.flags = STORE_FUA,
		.bytes = 512,
		.gap_ns = SECOND_NS / 2 };
	struct client *written;
	struct world world;

	world_open(&world, 1, DISK, "auto");
	for (int i = 0; i < 4; i++) {
		add(&world, &stream);
	}
	add(&world, &random);
	written = add(&world, &heartbeat);
	run(&world, 900);
	assert_true(written->latency_count > 1500);
	assert_true(latency_ms(written, 1) <= 100);
	world_close(&world);
}

/* Clients with small requests are found before they have read 1 MiB. */
TEST(small_requests_soon_make_a_stream)
{
	struct client stream = { .op = STORE_READ, .bytes = 64 * KIB };
	struct world world;

	world_open(&world, 1, DISK, "auto");
	for (int i = 0; i < 4; i++) {
		add(&world, &stream);
	}
	run_until(sim_now_ns() + SECOND_NS);
	print_message(
		"4 x 64 KiB, the first second: %.1f MB\n", (double)streams_bytes(&world) / 1e6);
	assert_true(streams_bytes(&world) >= 90000000);
	world_close(&world);
}

/* A far client among near ones gets no less of the disk than without the scheduler. */
TEST(a_far_client_keeps_its_share)
{
	static const char *const ways[] = { "off", "auto" };
	struct client near = { .op = STORE_READ, .bytes = 512 * KIB };
	struct client far = { .op = STORE_READ, .bytes = 512 * KIB, .gap_ns = 5000000 };
	uint64_t bytes[ARRAY_COUNT(ways)];

	for (size_t way = 0; way < ARRAY_COUNT(ways); way++) {
		struct client *client;
		struct world world;

		world_open(&world, 1, DISK, ways[way]);
		for (int i = 0; i < 3; i++) {
			add(&world, &near);
		}
		client = add(&world, &far);
		run(&world, 30);
		bytes[way] = client->done_bytes;
		world_close(&world);
	}
	print_message("the far client: %.1f, off %.1f MB/s\n", (double)bytes[1] / 30e6,
		(double)bytes[0] / 30e6);
	assert_true(bytes[1] >= bytes[0]);
}

/* With many streams, each has the disk for a shorter time, so that a request waits a few seconds at
 * most. */
TEST(many_streams_wait_no_longer)
{
	static const char *const ways[] = { "off", "auto" };
	struct client stream = { .op = STORE_READ, .bytes = 512 * KIB };
	uint64_t bytes[ARRAY_COUNT(ways)];
	double longest_ms = 0;

	for (size_t way = 0; way < ARRAY_COUNT(ways); way++) {
		struct world world;

		world_open(&world, 1, DISK, ways[way]);
		for (int i = 0; i < 60; i++) {
			add(&world, &stream);
		}
		run(&world, 60);
		bytes[way] = streams_bytes(&world);
		for (int i = 0; i < 60 && way == 1; i++) {
			longest_ms = MAX(longest_ms, latency_ms(&world.clients[i], 1));
		}
		world_close(&world);
	}
	print_message("60 streams: gain %.2f, longest request %.0f ms\n",
		(double)bytes[1] / (double)bytes[0], longest_ms);
	assert_true(bytes[1] * 100 >= bytes[0] * 166);
	assert_true(longest_ms <= 2500);
}

/* Nothing waits where there is no stream, or only one. */
TEST(nothing_waits_alone)
{
	static const struct client loads[] = {
		{ .op = STORE_READ, .bytes = 512 * KIB, .depth = 4 },
		{ .op = STORE_WRITE, .bytes = 512 * KIB, .depth = 4 },
		{ .op = STORE_READ, .pattern = PATTERN_RANDOM, .bytes = 4 * KIB, .depth = 4 },
	};

	for (size_t i = 0; i < ARRAY_COUNT(loads); i++) {
		uint64_t done[2];

		for (int with = 0; with < 2; with++) {
			struct world world;

			world_open(&world, 1, DISK, with ? "auto" : "off");
			add(&world, &loads[i]);
			run(&world, 20);
			done[with] = world.clients[0].done_bytes;
			world_close(&world);
		}
		assert_true(done[1] * 100 >= done[0] * 99);
	}
}

/* Large requests at random offsets are no stream, although each of them is as long as one: a reader
 * of small blocks gets as much beside them as without the scheduler. So they are if the client was
 * a stream before. */
TEST(large_random_requests_are_no_stream)
{
	static const uint64_t stream_seconds[] = { 0, 2 };

	for (size_t i = 0; i < ARRAY_COUNT(stream_seconds); i++) {
		struct client large = { .op = STORE_READ, .bytes = MIB };
		struct client small = {
			.op = STORE_READ, .pattern = PATTERN_RANDOM, .bytes = 4 * KIB
		};
		uint32_t reads[2];

		for (int with = 0; with < 2; with++) {
			struct world world;
			struct client *turns;
			struct client *reader;

			world_open(&world, 1, DISK, with ? "auto" : "off");
			turns = add(&world, &large);
			reader = add(&world, &small);
			run_until(sim_now_ns() + stream_seconds[i] * SECOND_NS);
			turns->pattern = PATTERN_RANDOM;
			run(&world, 20);
			reads[with] = reader->latency_count;
			world_close(&world);
		}
		print_message("small reads beside large ones: %u, off %u\n", reads[1], reads[0]);
		assert_true(reads[1] * 100 >= reads[0] * 98);
	}
}

/* A disk that only says that it seeks, as those of virtual machines do. */
TEST(nothing_waits_on_fast_disks)
{
	struct client stream = { .op = STORE_READ, .bytes = 512 * KIB, .depth = 4 };
	struct client random = { .op = STORE_READ, .pattern = PATTERN_RANDOM, .bytes = 4 * KIB };
	uint64_t bytes[2];
	double p99_ms[2];

	for (int with = 0; with < 2; with++) {
		struct world world;
		struct client *reader;

		world_open(&world, 1, "500M:seek=500us", with ? "auto" : "off");
		for (int i = 0; i < 4; i++) {
			add(&world, &stream);
		}
		reader = add(&world, &random);
		run(&world, 20);
		bytes[with] = streams_bytes(&world);
		p99_ms[with] = latency_ms(reader, 0.99);
		world_close(&world);
	}
	assert_true(bytes[1] * 100 >= bytes[0] * 99);
	assert_true(p99_ms[1] <= 1.02 * p99_ms[0]);
}

/* A disk that needs 10 ms for each request, wherever it begins, and works on many at the same time.
 */
TEST(nothing_waits_on_parallel_disks)
{
	struct client stream = { .op = STORE_READ, .bytes = 64 * KIB };
	uint64_t bytes[2];

	for (int with = 0; with < 2; with++) {
		struct world world;

		world_open_delayed(&world, 1, "10G:seek=1us", "read:10ms", with ? "auto" : "off");
		for (int i = 0; i < 3; i++) {
			add(&world, &stream);
		}
		run(&world, 20);
		bytes[with] = streams_bytes(&world);
		world_close(&world);
	}
	assert_true(bytes[1] * 100 >= bytes[0] * 99);
}

/* More streams than the table holds, in both directions, that pause and end at any time. */
TEST(all_parts_are_done)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world world;

		world_open(&world, seed, seed % 2 == 0 ? "1G:seek=1ms" : DISK, "auto");
		for (int i = 0; i < CLIENTS_MAX; i++) {
			struct client client = { .op = sim_between(0, 2) == 0 ? STORE_WRITE
									      : STORE_READ,
				.pattern = sim_between(0, 3) == 0 ? PATTERN_RANDOM : PATTERN_STREAM,
				.bytes = (uint32_t)(4 * KIB << sim_between(0, 9)),
				.depth = (uint32_t)sim_between(1, DEPTH_MAX),
				.gap_ns = UINT64_C(1) << sim_between(10, 27) };

			if (client.op == STORE_WRITE && sim_between(0, 3) == 0) {
				client.flags = STORE_FUA;
			}
			add(&world, &client);
		}
		/* Each stream has its turn after as many runs as there are streams. */
		run(&world, 20);
		for (uint32_t i = 0; i < world.client_count; i++) {
			assert_true(world.clients[i].latency_count > 0);
		}
		world_close(&world);
	}
}

/* While the disk holds a part back, the parts of the others wait for a second, and then no longer.
 * When the part is done, the streams have the disk in turns again. */
TEST(a_stuck_disk_stops_nobody)
{
	struct client stream = { .op = STORE_READ, .bytes = 512 * KIB };
	struct client random = { .op = STORE_READ, .pattern = PATTERN_RANDOM, .bytes = 4 * KIB };
	struct client *reader;
	struct client *streams[4];
	struct store_part *part;
	struct world world;
	uint64_t begin_ns;

	world_open(&world, 1, DISK, "auto");
	for (int i = 0; i < 4; i++) {
		streams[i] = add(&world, &stream);
	}
	reader = add(&world, &random);
	run(&world, 5);
	for (int times = 0; times < 3; times++) {
		held.is_wanted = true;
		held.part = NULL;
		while (held.part == NULL) {
			assert_true(sim_step());
		}
		begin_ns = sim_now_ns();
		run_until(begin_ns + 11 * SECOND_NS / 10);
		for (int i = 0; i < 4; i++) {
			streams[i]->done_bytes = 0;
		}
		reader->latency_count = 0;
		run_until(begin_ns + 61 * SECOND_NS / 10);
		assert_true(streams_bytes(&world) >= 5 * UINT64_C(30000000));
		assert_int_equal(reader->latency_count, 0);
		part = held.part;
		store_forward(part);
		/* The parts that were passed on have to be done before the turns begin. */
		run_until(sim_now_ns() + SECOND_NS);
		for (int i = 0; i < 4; i++) {
			streams[i]->done_bytes = 0;
		}
		run_until(sim_now_ns() + 5 * SECOND_NS);
		assert_true(streams_bytes(&world) >= 5 * UINT64_C(80000000));
		assert_true(reader->latency_count > 50);
	}
	world_close(&world);
}

/* The members of a stripe work at the same time, also if only the user says that it is one. */
TEST(stripes_are_left_alone)
{
	struct store *store;
	struct error error;

	for (int with = 0; with < 2; with++) {
		struct store_options options = { .path = "null:64G" };

		set_key(&options, "pace", DISK);
		if (with) {
			set_key(&options, "stripe", "64K:4");
		}
		if (store_open(&options, &store, &error) != 0) {
			fail_msg("%s", error.text);
		}
		assert_int_equal(strcmp(store->ops->name, "sched") == 0, !with);
		assert_int_equal(store_info(store)->stripe_members, with ? 4 : 0);
		store_close(store);
		store_options_fini(&options);
	}
}

int main(void)
{
	static const struct store_kind *const kinds[] = { &null_store_kind, &pace_store_kind,
		&delay_store_kind, &hold_kind, &sched_store_kind };
	for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
		store_register(kinds[i]);
	}
	return unit_run(NULL, NULL);
}
