// SPDX-License-Identifier: Apache-2.0
/*
 * bench/cluster's client: several nodes of a cluster read one export, each over a connection of its
 * own, one request at a time.
 *
 *   cluster_client parts|rounds|files NODES BYTES TOTAL SECONDS SEED URI
 *
 * parts: the nodes read the first TOTAL bytes together, each one its part, in requests of BYTES.
 * rounds: the same, but no node begins its next request before all have received the last one, as
 * the processes of a collective read. files: each node reads whole files of FILE_BYTES, one after
 * the other, chosen at random from those in the first TOTAL bytes. The program ends when everything
 * has been read, or after SECONDS.
 *
 * Prints a JSON object; finished tells whether all parts were read. Threading: one thread. Errors:
 * exit status 1 and a sentence.
 */
#include <errno.h>
#include <gmblock/gmblock.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samples.h"

enum {
	ARGUMENTS = 8,
	NODES_MAX = 16,
	ALIGNMENT = 4096,
	BYTES_MAX = 32 << 20,
	TEXT_BYTES = 512,
	FILE_BYTES = 10 << 20,
};

enum pattern { PATTERN_PARTS, PATTERN_ROUNDS, PATTERN_FILES };

struct work;

struct node {
	struct gmb_client *gmb;
	struct gmb_request request;
	struct work *work;
	uint8_t *buffer;
	uint64_t start_ns;
	uint64_t next;	/* offset */
	uint64_t end;	/* of what it reads now */
	uint64_t bytes; /* that it has read */
	uint64_t files;
};

struct work {
	struct gmb_queue *queue;
	enum pattern pattern;
	uint64_t bytes;
	uint64_t total;
	uint64_t end_ns;
	uint64_t random;
	uint32_t in_flight;
	struct samples samples;
	uint32_t node_count;
	struct node nodes[NODES_MAX];
};

static _Noreturn void fail(const char *what, const char *why)
{
	fprintf(stderr, "cluster_client: %s: %s\n", what, why);
	exit(1);
}

/* Submits the next request of a node, if there is one and the time is not over. */
static void submit(struct node *node)
{
	struct work *work = node->work;

	node->start_ns = samples_now_ns();
	if (node->next == node->end && work->pattern == PATTERN_FILES) {
		node->next = samples_draw(&work->random, work->total / FILE_BYTES) * FILE_BYTES;
		node->end = node->next + FILE_BYTES;
	}
	if (node->next == node->end || node->start_ns >= work->end_ns) {
		return;
	}
	gmb_prepare_read(&node->request, node->buffer, work->bytes, node->next);
	node->next += work->bytes;
	work->in_flight++;
	gmb_submit(node->gmb, &node->request);
}

static void read_done(struct gmb_request *request)
{
	struct node *node = request->context;
	struct work *work = node->work;

	if (request->result != 0) {
		char text[TEXT_BYTES];

		fail("a request failed", gmb_explain(node->gmb, request, text, sizeof(text)));
	}
	samples_add(&work->samples, samples_now_ns() - node->start_ns);
	node->bytes += work->bytes;
	node->files += work->pattern == PATTERN_FILES && node->next == node->end;
	work->in_flight--;
	if (work->pattern != PATTERN_ROUNDS) {
		submit(node);
	} else if (work->in_flight == 0) {
		for (uint32_t i = 0; i < work->node_count; i++) {
			submit(&work->nodes[i]);
		}
	}
}

static void run(struct work *work, uint64_t duration_ns)
{
	uint64_t begin_ns = samples_now_ns();

	work->end_ns = begin_ns + duration_ns;
	for (uint32_t i = 0; i < work->node_count; i++) {
		submit(&work->nodes[i]);
	}
	while (work->in_flight > 0) {
		int result = gmb_queue_wait(work->queue, -1);

		if (result < 0) {
			fail("waiting", strerror(-result));
		}
	}
	work->samples.elapsed_ns = samples_now_ns() - begin_ns;
}

static void node_open(struct work *work, uint32_t index, const char *uri)
{
	struct node *node = &work->nodes[index];
	struct gmb_options options = { .size = sizeof(options),
		.connections = 1,
		.flags = GMB_OPEN_READ_ONLY | GMB_OPEN_NO_RECONNECT };
	struct gmb_info info = { .size = sizeof(info) };
	struct gmb_error error;

	if (gmb_open(work->queue, uri, &options, &node->gmb, &error) != 0) {
		fail("cannot connect", error.text);
	}
	gmb_get_info(node->gmb, &info);
	if (info.bytes < work->total) {
		fail("the export", "it is smaller than what is to be read");
	}
	node->work = work;
	node->buffer =
		aligned_alloc(ALIGNMENT, (work->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
	if (node->buffer == NULL) {
		fail("memory", strerror(errno));
	}
	memset(node->buffer, 1, work->bytes);
	node->request.context = node;
	node->request.done = read_done;
	if (work->pattern != PATTERN_FILES) {
		node->next = work->total / work->node_count * index;
		node->end = node->next + work->total / work->node_count;
	}
}

static void print(struct work *work)
{
	bool finished = work->pattern != PATTERN_FILES;
	uint64_t files = 0;

	printf("{ \"node_bytes\": [");
	for (uint32_t i = 0; i < work->node_count; i++) {
		struct node *node = &work->nodes[i];

		printf("%s%" PRIu64, i > 0 ? ", " : "", node->bytes);
		files += node->files;
		finished = finished && node->next == node->end;
		gmb_close(node->gmb);
	}
	printf("], \"files\": %" PRIu64 ", \"finished\": %s, ", files, finished ? "true" : "false");
	samples_print(&work->samples, work->bytes);
	printf(" }\n");
}

static enum pattern pattern_of(const char *name)
{
	static const char *const names[] = { "parts", "rounds", "files" };

	for (int i = 0; i < 3; i++) {
		if (strcmp(name, names[i]) == 0) {
			return (enum pattern)i;
		}
	}
	fail(name, "this is not a pattern");
}

static void options_read(struct work *work, char **argv)
{
	uint64_t piece;

	work->pattern = pattern_of(argv[1]);
	work->node_count = (uint32_t)strtoul(argv[2], NULL, 10);
	work->bytes = strtoull(argv[3], NULL, 10);
	work->total = strtoull(argv[4], NULL, 10);
	work->random = strtoull(argv[6], NULL, 10);
	if (work->node_count == 0 || work->node_count > NODES_MAX || work->bytes == 0 ||
		work->bytes > BYTES_MAX) {
		fail("an argument", "it is out of range");
	}
	piece = work->pattern == PATTERN_FILES ? FILE_BYTES : work->total / work->node_count;
	if (work->total < piece || piece % work->bytes != 0) {
		fail("TOTAL", "it is too small, or a file or part is no multiple of BYTES");
	}
}

int main(int argc, char **argv)
{
	static struct work work;
	struct gmb_error error;

	if (argc != ARGUMENTS) {
		fprintf(stderr, "Usage: cluster_client parts|rounds|files NODES BYTES TOTAL "
				"SECONDS SEED URI\n");
		return 2;
	}
	options_read(&work, argv);
	samples_init(&work.samples);
	if (gmb_queue_create(NULL, &work.queue, &error) != 0) {
		fail("the queue", error.text);
	}
	for (uint32_t i = 0; i < work.node_count; i++) {
		node_open(&work, i, argv[ARGUMENTS - 1]);
	}
	run(&work, samples_time_of(argv[5]));
	print(&work);
	gmb_queue_destroy(work.queue);
	return 0;
}
