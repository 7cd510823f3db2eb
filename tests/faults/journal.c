// SPDX-License-Identifier: Apache-2.0
/*
 * journal URI JOURNAL CONNECTIONS
 *
 * Writes numbered versions of blocks through libgmblock until its standard input says "stop", reads
 * some back, and keeps a journal of every version that was acknowledged as durable (by FUA, or by a
 * FLUSH after it). At the end every block is read and must hold its last acknowledged version:
 * neither an older one (lost, or carried out again late) nor anything else.
 *
 * Standard output, line by line: "acked COUNT", "lost REASON", "reconnected", "gave up REASON",
 * "verified COUNT". Exit status: 0, or 1 with the reason on standard error.
 *
 * Threading: one. Ownership, errors: of the program.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gmblock/gmblock.h>

enum {
	BLOCK_BYTES = 4096,
	BLOCKS = 256,
	DEPTH = 16,
	ACKED_TOLD_EVERY = 64,
	FLUSH_EVERY = 50,
	CONNECT_MS = 2000,
	REQUEST_MS = 700,
	RECONNECT_MS = 120000,
};

struct block {
	uint64_t acked;	  /* the last version whose write was done */
	uint64_t durable; /* the last one in the journal */
	bool busy;
};

struct slot {
	struct gmb_request request;
	uint32_t block;
	uint64_t version;
	uint64_t words[BLOCK_BYTES / 8];
};

struct flush {
	struct gmb_request request;
	uint64_t covers[BLOCKS];
	bool busy;
};

static struct gmb_client *client;
static struct block blocks[BLOCKS];
static struct slot slots[DEPTH];
static struct flush flusher;
static FILE *journal;
static uint64_t version_last;
static uint64_t acked_count;
static uint32_t busy_count;
static uint64_t random_state = 1;
static bool stopping;

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "journal: %s: %s\n", what, why);
	exit(1);
}

static uint64_t random_number(void)
{
	random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return random_state >> 33;
}

static void fill(uint64_t *words, uint32_t block, uint64_t version)
{
	for (uint64_t i = 0; i < BLOCK_BYTES / 8; i++) {
		words[i] = version ^ (uint64_t)block << 48 ^ i << 32;
	}
}

static void check(const uint64_t *words, uint32_t block, uint64_t version)
{
	char text[200];

	for (uint64_t i = 0; i < BLOCK_BYTES / 8; i++) {
		uint64_t want = version == 0 ? 0 : version ^ (uint64_t)block << 48 ^ i << 32;

		if (words[i] != want) {
			snprintf(text, sizeof(text),
				"word %" PRIu64 " is %016" PRIx64 " instead of %016" PRIx64
				" (version %" PRIu64 ")",
				i, words[i], want, version);
			snprintf((char *)slots[0].words, 64, "block %u", block);
			fail((const char *)slots[0].words, text);
		}
	}
}

static void submit_next(struct slot *slot);

static void write_down(uint32_t block, uint64_t version)
{
	if (version > blocks[block].durable) {
		blocks[block].durable = version;
		fprintf(journal, "%u %" PRIu64 "\n", block, version);
	}
}

static void flush_done(struct gmb_request *request)
{
	char text[512];

	flusher.busy = false;
	busy_count--;
	if (request->result != 0) {
		fail("flush", gmb_explain(client, request, text, sizeof(text)));
	}
	for (uint32_t i = 0; i < BLOCKS; i++) {
		write_down(i, flusher.covers[i]);
	}
	fflush(journal);
}

static void submit_flush(void)
{
	if (flusher.busy) {
		return;
	}
	flusher.busy = true;
	busy_count++;
	for (uint32_t i = 0; i < BLOCKS; i++) {
		flusher.covers[i] = blocks[i].acked;
	}
	gmb_prepare(&flusher.request, GMB_FLUSH, 0, 0);
	flusher.request.done = flush_done;
	gmb_submit(client, &flusher.request);
}

static void slot_done(struct gmb_request *request)
{
	struct slot *slot = request->context;
	char text[512];

	blocks[slot->block].busy = false;
	busy_count--;
	if (request->result != 0) {
		fail("request", gmb_explain(client, request, text, sizeof(text)));
	}
	if (request->operation == GMB_READ) {
		check(slot->words, slot->block, blocks[slot->block].acked);
	} else {
		blocks[slot->block].acked = slot->version;
		if ((request->flags & GMB_FUA) != 0) {
			write_down(slot->block, slot->version);
			fflush(journal);
		}
	}
	if (++acked_count % ACKED_TOLD_EVERY == 0) {
		printf("acked %" PRIu64 "\n", acked_count);
		fflush(stdout);
	}
	if (acked_count % FLUSH_EVERY == 0) {
		submit_flush();
	}
	submit_next(slot);
}

static void submit_next(struct slot *slot)
{
	if (stopping) {
		return;
	}
	do {
		slot->block = (uint32_t)(random_number() % BLOCKS);
	} while (blocks[slot->block].busy);
	blocks[slot->block].busy = true;
	busy_count++;
	slot->request.done = slot_done;
	slot->request.context = slot;
	if (random_number() % 3 == 0) {
		gmb_prepare_read(&slot->request, slot->words, BLOCK_BYTES,
			(uint64_t)slot->block * BLOCK_BYTES);
	} else {
		slot->version = ++version_last;
		fill(slot->words, slot->block, slot->version);
		gmb_prepare_write(&slot->request, slot->words, BLOCK_BYTES,
			(uint64_t)slot->block * BLOCK_BYTES);
		slot->request.flags = random_number() % 8 == 0 ? GMB_FUA : 0;
	}
	gmb_submit(client, &slot->request);
}

static void on_event(void *context, enum gmb_event event, const char *text)
{
	static const char *const names[] = {
		[GMB_EVENT_LOST] = "lost",
		[GMB_EVENT_RECONNECTED] = "reconnected",
		[GMB_EVENT_GAVE_UP] = "gave up",
		[GMB_EVENT_RESIZED] = "resized",
		[GMB_EVENT_RETRYING] = "retrying",
		[GMB_EVENT_SILENT] = "silent",
	};

	printf("%s %s\n", names[event], text);
	fflush(stdout);
}

/* Requests go on until the first byte, or the end, of standard input. */
static void work(struct gmb_queue *queue)
{
	struct pollfd entries[2] = {
		{ .fd = gmb_queue_fd(queue), .events = POLLIN },
		{ .fd = STDIN_FILENO, .events = POLLIN },
	};

	for (uint32_t i = 0; i < DEPTH; i++) {
		submit_next(&slots[i]);
	}
	gmb_queue_wait(queue, 0);
	while (!stopping) {
		if (poll(entries, 2, -1) < 0 && errno != EINTR) {
			fail("poll", strerror(errno));
		}
		stopping = entries[1].revents != 0;
		gmb_queue_wait(queue, 0);
	}
	while (busy_count > 0) {
		gmb_queue_wait(queue, -1);
	}
}

static void verify(void)
{
	static uint64_t words[BLOCK_BYTES / 8];
	int err = gmb_flush(client);

	if (err != 0) {
		fail("the last flush", strerror(-err));
	}
	for (uint32_t i = 0; i < BLOCKS; i++) {
		write_down(i, blocks[i].acked);
		err = gmb_pread(client, words, BLOCK_BYTES, (uint64_t)i * BLOCK_BYTES);
		if (err != 0) {
			fail("the last read", strerror(-err));
		}
		check(words, i, blocks[i].acked);
	}
	printf("verified %d\n", BLOCKS);
}

int main(int argc, char **argv)
{
	struct gmb_options options = {
		.size = sizeof(options),
		.connect_timeout_ms = CONNECT_MS,
		.request_timeout_ms = REQUEST_MS,
		.reconnect_timeout_ms = RECONNECT_MS,
		.event = on_event,
	};
	struct gmb_queue *queue;
	struct gmb_error error;

	if (argc != 4) {
		fail("usage", "journal URI JOURNAL CONNECTIONS");
	}
	options.connections = (uint32_t)strtoul(argv[3], NULL, 10);
	journal = fopen(argv[2], "we");
	if (journal == NULL) {
		fail(argv[2], strerror(errno));
	}
	if (gmb_queue_create(NULL, &queue, &error) != 0 ||
		gmb_open(queue, argv[1], &options, &client, &error) != 0) {
		fail("cannot open", error.text);
	}
	work(queue);
	verify();
	gmb_close(client);
	gmb_queue_destroy(queue);
	return fclose(journal) == 0 ? 0 : 1;
}
