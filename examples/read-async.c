// SPDX-License-Identifier: Apache-2.0
/*
 * read-async URI FILE [DEPTH]: copies an export into a file, with DEPTH reads in flight.
 *
 *   cc read-async.c $(pkg-config --cflags --libs gmblock) -o read-async
 *
 * Each slot is a request with its buffer. When a read is done, its callback writes the block to the
 * file and submits the same request again for the next block, until none is left. So DEPTH reads
 * stay in flight without further bookkeeping.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gmblock/gmblock.h>

enum { BLOCK_BYTES = 256 << 10, DEPTH_DEFAULT = 16, DEPTH_MAX = 1024 };

struct copy {
	struct gmb_client *client;
	int fd;
	uint64_t bytes; /* size of the export */
	uint64_t next;	/* offset of the next read */
	unsigned int in_flight;
	int failure;
};

struct slot {
	struct gmb_request request;
	struct copy *copy;
	char *buffer;
};

static void read_done(struct gmb_request *request);

static void read_next(struct slot *slot)
{
	struct copy *copy = slot->copy;
	uint64_t left = copy->bytes - copy->next;
	size_t bytes = left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;

	if (bytes == 0 || copy->failure != 0) {
		return;
	}
	gmb_prepare_read(&slot->request, slot->buffer, bytes, copy->next);
	slot->request.done = read_done;
	slot->request.context = slot;
	copy->next += bytes;
	copy->in_flight++;
	gmb_submit(copy->client, &slot->request);
}

static void read_done(struct gmb_request *request)
{
	struct slot *slot = request->context;
	struct copy *copy = slot->copy;

	copy->in_flight--;
	if (request->result != 0) {
		char text[512];

		fprintf(stderr, "%s\n", gmb_explain(copy->client, request, text, sizeof(text)));
		copy->failure = request->result;
	} else if (pwrite(copy->fd, slot->buffer, request->length, (off_t)request->offset) !=
		   (ssize_t)request->length) {
		perror("write");
		copy->failure = -EIO;
	}
	read_next(slot);
}

static int copy_all(struct gmb_queue *queue, struct copy *copy, unsigned int depth)
{
	struct slot *slots = calloc(depth, sizeof(*slots));
	char *buffers = malloc((size_t)depth * BLOCK_BYTES);

	if (slots == NULL || buffers == NULL) {
		copy->failure = -ENOMEM;
		depth = 0;
	}
	for (unsigned int i = 0; i < depth; i++) {
		slots[i].copy = copy;
		slots[i].buffer = buffers + (size_t)i * BLOCK_BYTES;
		read_next(&slots[i]);
	}
	while (copy->in_flight > 0) {
		gmb_queue_wait(queue, -1);
	}
	free(buffers);
	free(slots);
	return copy->failure;
}

int main(int argc, char **argv)
{
	struct gmb_options options = { .size = sizeof(options), .flags = GMB_OPEN_READ_ONLY };
	struct gmb_info info = { .size = sizeof(info) };
	struct copy copy = { .fd = -1 };
	struct gmb_queue *queue = NULL;
	struct gmb_error error;
	unsigned long depth = argc > 3 ? strtoul(argv[3], NULL, 10) : DEPTH_DEFAULT;

	if (argc < 3 || argc > 4 || depth < 1 || depth > DEPTH_MAX) {
		fprintf(stderr, "usage: read-async URI FILE [DEPTH]\n");
		return 2;
	}
	if (gmb_queue_create(NULL, &queue, &error) != 0 ||
		gmb_open(queue, argv[1], &options, &copy.client, &error) != 0) {
		fprintf(stderr, "%s\n", error.text);
		gmb_queue_destroy(queue);
		return 1;
	}
	gmb_get_info(copy.client, &info);
	copy.bytes = info.bytes;
	copy.fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (copy.fd < 0) {
		perror(argv[2]);
		copy.failure = -errno;
	} else if (copy_all(queue, &copy, (unsigned int)depth) == 0) {
		printf("%llu bytes\n", (unsigned long long)copy.bytes);
	}
	gmb_close(copy.client);
	gmb_queue_destroy(queue);
	if (copy.fd >= 0 && close(copy.fd) != 0 && copy.failure == 0) {
		perror(argv[2]);
		copy.failure = -EIO;
	}
	return copy.failure == 0 ? 0 : 1;
}
