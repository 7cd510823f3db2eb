// SPDX-License-Identifier: Apache-2.0
/*
 * send-file URI FILE [BYTES]: writes a file, or its beginning, to an export, durably.
 *
 *   cc send-file.c $(pkg-config --cflags --libs gmblock) -o send-file
 *
 * With a gmb+unix URI, the server writes to its disk from the memory that the file was read into.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT */
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmblock/gmblock.h>

static int send(struct gmb_client *client, int fd, const char *text)
{
	struct gmb_stats stats = { .size = sizeof(stats) };
	struct stat status;
	uint64_t bytes;
	uint32_t crc;
	int err;

	if (fstat(fd, &status) != 0) {
		perror("send-file");
		return 1;
	}
	bytes = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)status.st_size;
	err = gmb_send_file(client, fd, 0, bytes, 0, GMB_FLUSH_AFTER, &crc);
	if (err != 0) {
		fprintf(stderr, "send-file: %s\n", strerror(-err));
		return 1;
	}
	gmb_get_stats(client, &stats);
	printf("%" PRIu64 " bytes, CRC-32C %08" PRIx32 ", %" PRIu64 " copied on the way\n", bytes,
		crc, stats.bytes_moved);
	return 0;
}

int main(int argc, char **argv)
{
	struct gmb_queue *queue;
	struct gmb_client *client;
	struct gmb_error error;
	int status = 1;
	int fd;

	if (argc != 3 && argc != 4) {
		fprintf(stderr, "usage: send-file URI FILE [BYTES]\n");
		return 2;
	}
	fd = open(argv[2], O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (fd < 0 && errno == EINVAL) { /* the filesystem does not support O_DIRECT */
		fd = open(argv[2], O_RDONLY | O_CLOEXEC);
	}
	if (fd < 0) {
		perror(argv[2]);
		return 1;
	}
	if (gmb_queue_create(NULL, &queue, &error) != 0) {
		fprintf(stderr, "%s\n", error.text);
		close(fd);
		return 1;
	}
	if (gmb_open(queue, argv[1], NULL, &client, &error) == 0) {
		status = send(client, fd, argv[3]);
		gmb_close(client);
	} else {
		fprintf(stderr, "%s\n", error.text);
	}
	gmb_queue_destroy(queue);
	close(fd);
	return status;
}
