// SPDX-License-Identifier: Apache-2.0
/*
 * bench/overlap's client: keeps a number of reads in flight on one connection of libgmblock, for
 * each of several ways in turn. A way is an export, and whether its reads may come in fragments of
 * any order (many streams) or in one piece (the "don't fragment" flag: a single stream).
 *
 *   overlap_client read|randread|once BYTES DEPTH SECONDS SLICE WARMUP SEED COMPARE
 *                  URI any|df PID [URI any|df PID ...]
 *
 * The ways take turns of SLICE seconds each, within one process and in turn on the same processors,
 * until each had SECONDS after a first turn of WARMUP that does not count: what disturbs the
 * machine disturbs them all. read walks through the export and ends early at its end, once does so
 * in an order by chance, randread picks blocks by chance and never ends early. PID is that of a
 * way's server, whose processor time is then reported, or 0. COMPARE is a file that every read is
 * compared with (such a run measures no time), or empty.
 *
 * Prints one JSON object for each way; turns are the rates of its turns. Threading: one thread.
 * Errors: exit status 1 and a sentence.
 */
#include <errno.h>
#include <fcntl.h>
#include <gmblock/gmblock.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "samples.h"

enum {
	ARGUMENTS = 9, /* before the ways */
	WAY_ARGUMENTS = 3,
	WAYS_MAX = 16,
	DEPTH_MAX = 128,
	ALIGNMENT = 4096,
	BYTES_MAX = 32 << 20,
	TEXT_BYTES = 512,
	TURNS_MAX = 4096,
};

enum pattern { PATTERN_READ, PATTERN_RANDREAD, PATTERN_ONCE };

struct client;

struct slot {
	struct gmb_request request;
	struct gmb_extent hole;
	struct client *client;
	uint8_t *buffer;
	uint64_t start_ns;
};

struct way {
	const char *uri;
	uint32_t flags;
	clockid_t server_clock; /* CLOCK_MONOTONIC: none */
	struct gmb_client *gmb;
	struct samples samples;
	uint64_t blocks;
	uint64_t block_next;
	uint64_t random;
	uint32_t *order; /* of PATTERN_ONCE */
	uint64_t hole_reads;
	uint64_t client_cpu_ns;
	uint64_t server_cpu_ns;
	uint32_t turn_count; /* that count */
	double turn_rates[TURNS_MAX];
	bool over;
};

struct client {
	struct gmb_queue *queue;
	enum pattern pattern;
	uint64_t bytes;
	uint32_t depth;
	uint64_t duration_ns;
	uint64_t slice_ns;
	uint64_t warmup_ns;
	int compare_fd; /* -1: no comparison */
	uint8_t *compare;
	struct slot slots[DEPTH_MAX];

	/* The turn. */
	struct way *way;
	uint64_t turn_end_ns;
	bool counts;
	uint32_t in_flight;

	uint32_t way_count;
	struct way ways[WAYS_MAX];
};

static _Noreturn void fail(const char *what, const char *why)
{
	fprintf(stderr, "overlap_client: %s: %s\n", what, why);
	exit(1);
}

static uint8_t *buffer_of(uint64_t bytes)
{
	uint8_t *buffer = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);

	if (buffer == NULL) {
		fail("memory", strerror(errno));
	}
	memset(buffer, 1, bytes);
	return buffer;
}

/* --- which block --------------------------------------------------------------------------- */

static void order_make(struct way *way)
{
	if (way->blocks > UINT32_MAX / sizeof(uint32_t)) {
		fail("once", "the export has too many blocks");
	}
	way->order = malloc(way->blocks * sizeof(uint32_t));
	if (way->order == NULL) {
		fail("memory", strerror(errno));
	}
	for (uint32_t i = 0; i < way->blocks; i++) {
		uint64_t other = samples_draw(&way->random, (uint64_t)i + 1);

		way->order[i] = way->order[other];
		way->order[other] = i;
	}
}

/* False: every block was read. */
static bool block_pick(enum pattern pattern, struct way *way, uint64_t *block)
{
	if (pattern == PATTERN_RANDREAD) {
		*block = samples_draw(&way->random, way->blocks);
		return true;
	}
	way->over = way->block_next == way->blocks;
	if (!way->over) {
		*block = pattern == PATTERN_ONCE ? way->order[way->block_next] : way->block_next;
		way->block_next++;
	}
	return !way->over;
}

/* --- requests ------------------------------------------------------------------------------ */

static void slot_check(struct slot *slot)
{
	struct client *client = slot->client;
	const struct gmb_request *request = &slot->request;

	if (pread(client->compare_fd, client->compare, client->bytes, (off_t)request->offset) !=
		(ssize_t)client->bytes) {
		fail("cannot read what to compare with", strerror(errno));
	}
	if (memcmp(slot->buffer, client->compare, client->bytes) != 0) {
		fprintf(stderr, "overlap_client: %" PRIu64 " bytes at %" PRIu64 " are wrong\n",
			client->bytes, request->offset);
		exit(1);
	}
	/* What is left from here must not pass for an answer. */
	memset(slot->buffer, 0xa5, client->bytes);
}

static void slot_submit(struct slot *slot)
{
	struct client *client = slot->client;
	uint64_t block;

	if (!block_pick(client->pattern, client->way, &block)) {
		return;
	}
	gmb_prepare_read(&slot->request, slot->buffer, client->bytes, block * client->bytes);
	slot->request.flags = client->way->flags;
	slot->request.extents = &slot->hole;
	slot->request.extents_max = 1;
	client->in_flight++;
	slot->start_ns = samples_now_ns();
	gmb_submit(client->way->gmb, &slot->request);
}

static void slot_done(struct gmb_request *request)
{
	struct slot *slot = request->context;
	struct client *client = slot->client;
	struct way *way = client->way;
	uint64_t now = samples_now_ns();

	if (request->result != 0) {
		char text[TEXT_BYTES];

		fail("a request failed", gmb_explain(way->gmb, request, text, sizeof(text)));
	}
	if (client->counts) {
		samples_add(&way->samples, now - slot->start_ns);
	}
	way->hole_reads += request->extent_count > 0;
	client->in_flight--;
	if (client->compare_fd >= 0) {
		slot_check(slot);
	}
	if (now < client->turn_end_ns) {
		slot_submit(slot);
	}
}

/* --- turns --------------------------------------------------------------------------------- */

/* One way for so long, from nothing in flight to nothing in flight. */
static void turn(struct client *client, struct way *way, uint64_t slice_ns, bool counts)
{
	uint64_t begin_ns = samples_now_ns();
	uint64_t own_ns = samples_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	uint64_t server_ns = samples_clock_ns(way->server_clock);
	uint64_t before = way->samples.count;

	client->way = way;
	client->counts = counts;
	client->turn_end_ns = begin_ns + slice_ns;
	for (uint32_t i = 0; i < client->depth; i++) {
		slot_submit(&client->slots[i]);
	}
	while (client->in_flight > 0) {
		int result = gmb_queue_wait(client->queue, -1);

		if (result < 0) {
			fail("waiting", strerror(-result));
		}
	}
	if (counts) {
		uint64_t elapsed_ns = samples_now_ns() - begin_ns;

		way->samples.elapsed_ns += elapsed_ns;
		if (way->turn_count < TURNS_MAX) {
			way->turn_rates[way->turn_count++] =
				(double)((way->samples.count - before) * client->bytes) /
				((double)elapsed_ns / 1e9);
		}
		way->client_cpu_ns += samples_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - own_ns;
		way->server_cpu_ns += samples_clock_ns(way->server_clock) - server_ns;
	}
	way->over = way->over || way->samples.elapsed_ns >= client->duration_ns;
}

static void run(struct client *client)
{
	bool going = true;

	for (uint32_t i = 0; client->warmup_ns > 0 && i < client->way_count; i++) {
		turn(client, &client->ways[i], client->warmup_ns, false);
	}
	while (going) {
		going = false;
		for (uint32_t i = 0; i < client->way_count; i++) {
			if (!client->ways[i].over) {
				turn(client, &client->ways[i], client->slice_ns, true);
				going = true;
			}
		}
	}
}

/* --- beginning and end --------------------------------------------------------------------- */

static enum pattern pattern_of(const char *name)
{
	static const char *const names[] = { "read", "randread", "once" };

	for (int i = 0; i < 3; i++) {
		if (strcmp(name, names[i]) == 0) {
			return (enum pattern)i;
		}
	}
	fail(name, "this is not a pattern");
}

static void way_open(struct client *client, struct way *way, uint64_t seed)
{
	struct gmb_options options = { .size = sizeof(options),
		.connections = 1,
		.flags = GMB_OPEN_READ_ONLY | GMB_OPEN_NO_RECONNECT };
	struct gmb_info info = { .size = sizeof(info) };
	struct gmb_error error;

	if (gmb_open(client->queue, way->uri, &options, &way->gmb, &error) != 0) {
		fail("cannot connect", error.text);
	}
	gmb_get_info(way->gmb, &info);
	if ((way->flags & GMB_DF) != 0 && (info.capabilities & GMB_CAN_DF) == 0) {
		fail("df", "the server does not offer it");
	}
	way->blocks = info.bytes / client->bytes;
	if (way->blocks == 0) {
		fail("the export", "it is smaller than a request");
	}
	way->random = seed;
	samples_init(&way->samples);
	if (client->pattern == PATTERN_ONCE) {
		order_make(way);
	}
}

static void way_print(const struct client *client, struct way *way)
{
	bool timed = way->server_clock != CLOCK_MONOTONIC;

	printf("{ \"hole_reads\": %" PRIu64 ", \"client_cpu_s\": %.6f, \"server_cpu_s\": %.6f, "
	       "\"turns\": [",
		way->hole_reads, (double)way->client_cpu_ns / 1e9,
		timed ? (double)way->server_cpu_ns / 1e9 : 0.0);
	for (uint32_t i = 0; i < way->turn_count; i++) {
		printf("%s%.0f", i > 0 ? ", " : "", way->turn_rates[i]);
	}
	printf("], ");
	samples_print(&way->samples, client->bytes);
	printf(" }\n");
	gmb_close(way->gmb);
	free(way->order);
}

static void options_read(struct client *client, char **argv)
{
	client->pattern = pattern_of(argv[1]);
	client->bytes = strtoull(argv[2], NULL, 10);
	client->depth = (uint32_t)strtoul(argv[3], NULL, 10);
	client->duration_ns = samples_time_of(argv[4]);
	client->slice_ns = samples_time_of(argv[5]);
	client->warmup_ns = samples_time_of(argv[6]);
	if (client->bytes == 0 || client->bytes > BYTES_MAX || client->depth == 0 ||
		client->depth > DEPTH_MAX || client->duration_ns == 0 || client->slice_ns == 0) {
		fail("an argument", "it is out of range");
	}
	client->compare_fd = -1;
	if (argv[8][0] != '\0') {
		client->compare_fd = open(argv[8], O_RDONLY | O_CLOEXEC);
		if (client->compare_fd < 0) {
			fail(argv[8], strerror(errno));
		}
		client->compare = buffer_of(client->bytes);
	}
	for (uint32_t i = 0; i < client->depth; i++) {
		struct slot *slot = &client->slots[i];

		slot->client = client;
		slot->buffer = buffer_of(client->bytes);
		slot->request.context = slot;
		slot->request.done = slot_done;
	}
}

/* A way from its three arguments. */
static void way_read(struct client *client, struct way *way, char **words, uint64_t seed)
{
	pid_t server = (pid_t)strtol(words[2], NULL, 10);

	way->uri = words[0];
	way->flags = strcmp(words[1], "df") == 0 ? GMB_DF : 0;
	way->server_clock = CLOCK_MONOTONIC;
	if (server > 0 && clock_getcpuclockid(server, &way->server_clock) != 0) {
		fail("the server's clock", "there is no such process");
	}
	way_open(client, way, seed);
}

int main(int argc, char **argv)
{
	static struct client client;
	struct gmb_error error;

	client.way_count = (uint32_t)(argc - ARGUMENTS) / WAY_ARGUMENTS;
	if (argc < ARGUMENTS + WAY_ARGUMENTS || (argc - ARGUMENTS) % WAY_ARGUMENTS != 0 ||
		client.way_count > WAYS_MAX) {
		fprintf(stderr, "Usage: overlap_client read|randread|once BYTES DEPTH SECONDS "
				"SLICE WARMUP SEED COMPARE URI any|df PID ...\n");
		return 2;
	}
	options_read(&client, argv);
	if (gmb_queue_create(NULL, &client.queue, &error) != 0) {
		fail("the queue", error.text);
	}
	for (uint32_t i = 0; i < client.way_count; i++) {
		way_read(&client, &client.ways[i], &argv[ARGUMENTS + WAY_ARGUMENTS * i],
			strtoull(argv[7], NULL, 10));
	}
	run(&client);
	for (uint32_t i = 0; i < client.way_count; i++) {
		way_print(&client, &client.ways[i]);
	}
	gmb_queue_destroy(client.queue);
	return 0;
}
