// SPDX-License-Identifier: Apache-2.0
/*
 * event-loop URI: prints the 16 bytes at every offset that is typed on standard input.
 *
 *   cc event-loop.c $(pkg-config --cflags --libs gmblock) -o event-loop
 *
 * One poll() watches standard input and the queue. Lines are accepted while reads are in flight.
 * Results are printed as they arrive, each with its offset. The same works in any event loop that
 * can watch a file descriptor. (This file is also valid C++.)
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gmblock/gmblock.h>

#define PEEK_BYTES 16

struct peek {
	struct gmb_request request;
	struct gmb_client *client;
	unsigned char bytes[PEEK_BYTES];
};

static unsigned int in_flight;
static int failures;

static void peek_done(struct gmb_request *request)
{
	struct peek *peek = (struct peek *)request->context;

	if (request->result != 0) {
		char text[512];

		fprintf(stderr, "%s\n", gmb_explain(peek->client, request, text, sizeof(text)));
		failures++;
	} else {
		printf("%llu:", (unsigned long long)request->offset);
		for (int i = 0; i < PEEK_BYTES; i++) {
			printf(" %02x", peek->bytes[i]);
		}
		printf("\n");
		fflush(stdout);
	}
	in_flight--;
	free(peek);
}

static void peek_at(struct gmb_client *client, const char *line)
{
	struct peek *peek = (struct peek *)calloc(1, sizeof(*peek));

	if (peek == NULL) {
		abort();
	}
	peek->client = client;
	peek->request.done = peek_done;
	peek->request.context = peek;
	gmb_prepare_read(&peek->request, peek->bytes, PEEK_BYTES, strtoull(line, NULL, 0));
	in_flight++;
	gmb_submit(client, &peek->request);
}

/* Handles the lines that were typed. Returns false at the end of the input. */
static bool take_input(struct gmb_client *client)
{
	static char line[256];
	static size_t len;
	ssize_t got = read(STDIN_FILENO, line + len, sizeof(line) - 1 - len);
	char *end;

	if (got <= 0) {
		return got < 0 && errno == EINTR;
	}
	len += (size_t)got;
	line[len] = '\0';
	while ((end = strchr(line, '\n')) != NULL) {
		*end = '\0';
		peek_at(client, line);
		len -= (size_t)(end + 1 - line);
		memmove(line, end + 1, len + 1);
	}
	if (len == sizeof(line) - 1) {
		len = 0; /* discard the line: no number is that long */
	}
	return true;
}

static void run(struct gmb_queue *queue, struct gmb_client *client)
{
	struct pollfd entries[2];
	bool typing = true;

	while (typing || in_flight > 0) {
		/* Sends submitted requests, and calls done for those that have completed. */
		gmb_queue_wait(queue, 0);
		if (!typing && in_flight == 0) {
			break;
		}
		entries[0].fd = gmb_queue_fd(queue);
		entries[0].events = POLLIN;
		entries[1].fd = typing ? STDIN_FILENO : -1;
		entries[1].events = POLLIN;
		entries[1].revents = 0;
		if (poll(entries, 2, -1) > 0 && entries[1].revents != 0) {
			typing = take_input(client);
		}
	}
}

int main(int argc, char **argv)
{
	struct gmb_queue *queue = NULL;
	struct gmb_client *client = NULL;
	struct gmb_error error;

	if (argc != 2) {
		fprintf(stderr, "usage: event-loop URI < OFFSETS\n");
		return 2;
	}
	if (gmb_queue_create(NULL, &queue, &error) != 0 ||
		gmb_open(queue, argv[1], NULL, &client, &error) != 0) {
		fprintf(stderr, "%s\n", error.text);
		gmb_queue_destroy(queue);
		return 1;
	}
	run(queue, client);
	gmb_close(client);
	gmb_queue_destroy(queue);
	return failures == 0 ? 0 : 1;
}
