// SPDX-License-Identifier: Apache-2.0
/*
 * The shortest way to keep requests in flight with libnbd, to compare gmblock's client with
 * (bench/README.md): one connection, buffers used again, no checks that libnbd lets one leave out,
 * no clearing of buffers before a read, and no poll(2) while answers keep coming. It measures less
 * than "gmblock bench" does: no clock is read for a request.
 *
 *   libnbd_loop URI read|randread BLOCK_BYTES DEPTH SECONDS SEED simple|structured
 *
 * Prints one JSON object. Threading: one thread. Errors: exit status 1 and libnbd's words.
 */
#include <errno.h>
#include <libnbd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

enum { ARGUMENTS = 8, DEPTH_MAX = 1024, ALIGNMENT = 4096 };

struct loop;

struct slot {
	struct loop *loop;
	void *buffer;
};

struct loop {
	struct nbd_handle *nbd;
	struct control_blocks blocks;
	size_t block_bytes;
	unsigned in_flight;
	uint64_t completed;
	struct slot slots[DEPTH_MAX];
	struct slot *ready[DEPTH_MAX]; /* to be submitted; a callback must not do it itself */
	unsigned ready_count;
};

static _Noreturn void fail(void)
{
	fprintf(stderr, "libnbd_loop: %s\n", nbd_get_error());
	exit(1);
}

static int slot_done(void *context, int *error)
{
	struct slot *slot = context;
	struct loop *loop = slot->loop;

	if (*error != 0) {
		fprintf(stderr, "libnbd_loop: a request failed: %s\n", strerror(*error));
		exit(1);
	}
	loop->in_flight--;
	loop->completed++;
	loop->ready[loop->ready_count++] = slot;
	return 1;
}

static void submit_ready(struct loop *loop)
{
	while (loop->ready_count > 0) {
		struct slot *slot = loop->ready[--loop->ready_count];
		nbd_completion_callback done = { .callback = slot_done, .user_data = slot };
		uint64_t offset = control_pick(&loop->blocks) * loop->block_bytes;

		loop->in_flight++;
		if (nbd_aio_pread(loop->nbd, slot->buffer, loop->block_bytes, offset, done, 0) ==
			-1) {
			fail();
		}
	}
}

/* One round: reads as long as that ends requests, else waits for the socket. */
static void turn(struct loop *loop)
{
	unsigned direction = nbd_aio_get_direction(loop->nbd);
	uint64_t before = loop->completed;
	struct pollfd fd = { .fd = nbd_aio_get_fd(loop->nbd) };

	if ((direction & LIBNBD_AIO_DIRECTION_READ) != 0) {
		if (nbd_aio_notify_read(loop->nbd) == -1) {
			fail();
		}
		if (loop->completed != before) {
			return;
		}
		direction = nbd_aio_get_direction(loop->nbd);
	}
	fd.events = (short)(((direction & LIBNBD_AIO_DIRECTION_READ) != 0 ? POLLIN : 0) |
			    ((direction & LIBNBD_AIO_DIRECTION_WRITE) != 0 ? POLLOUT : 0));
	if (poll(&fd, 1, -1) == -1 && errno != EINTR) {
		perror("libnbd_loop: poll");
		exit(1);
	}
	if ((fd.revents & POLLOUT) != 0 && nbd_aio_notify_write(loop->nbd) == -1) {
		fail();
	}
	if ((fd.revents & (POLLERR | POLLNVAL)) != 0) {
		fprintf(stderr, "libnbd_loop: the connection was lost\n");
		exit(1);
	}
}

static void prepare(struct loop *loop, char **argv, unsigned depth)
{
	int64_t size;

	loop->nbd = nbd_create();
	if (loop->nbd == NULL || nbd_set_strict_mode(loop->nbd, 0) == -1 ||
		nbd_set_pread_initialize(loop->nbd, false) == -1 ||
		nbd_set_uri_allow_local_file(loop->nbd, true) == -1 || /* keys and certificates */
		nbd_set_request_structured_replies(loop->nbd, strcmp(argv[7], "structured") == 0) ==
			-1 ||
		nbd_connect_uri(loop->nbd, argv[1]) == -1) {
		fail();
	}
	size = nbd_get_size(loop->nbd);
	if (size < (int64_t)loop->block_bytes) {
		fprintf(stderr, "libnbd_loop: the export is smaller than a block\n");
		exit(1);
	}
	loop->blocks.count = (uint64_t)size / loop->block_bytes;
	for (unsigned i = 0; i < depth; i++) {
		loop->slots[i].loop = loop;
		loop->slots[i].buffer = aligned_alloc(
			ALIGNMENT, (loop->block_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
		if (loop->slots[i].buffer == NULL) {
			fprintf(stderr, "libnbd_loop: out of memory\n");
			exit(1);
		}
		memset(loop->slots[i].buffer, 1, loop->block_bytes);
		loop->ready[loop->ready_count++] = &loop->slots[i];
	}
}

int main(int argc, char **argv)
{
	static struct loop loop;
	unsigned depth;
	double seconds;
	double begin;
	double begin_cpu;
	double elapsed;
	double cpu;
	uint64_t count;

	if (argc != ARGUMENTS) {
		fprintf(stderr, "Usage: libnbd_loop URI read|randread BLOCK_BYTES DEPTH SECONDS "
				"SEED simple|structured\n");
		return 2;
	}
	loop.blocks.is_random = strcmp(argv[2], "randread") == 0;
	loop.block_bytes = strtoul(argv[3], NULL, 10);
	depth = (unsigned)strtoul(argv[4], NULL, 10);
	seconds = strtod(argv[5], NULL);
	loop.blocks.random = strtoull(argv[6], NULL, 10);
	if (loop.block_bytes == 0 || depth == 0 || depth > DEPTH_MAX || !(seconds > 0)) {
		fprintf(stderr, "libnbd_loop: an argument is out of range\n");
		return 2;
	}
	prepare(&loop, argv, depth);
	begin = control_now_s();
	begin_cpu = control_cpu_s();
	do {
		submit_ready(&loop);
		turn(&loop);
		elapsed = control_now_s() - begin;
	} while (elapsed < seconds || loop.completed == 0);
	cpu = control_cpu_s() - begin_cpu;
	count = loop.completed;
	while (loop.in_flight > 0) {
		turn(&loop);
	}
	nbd_shutdown(loop.nbd, 0);
	nbd_close(loop.nbd);
	control_print(count, elapsed, cpu, loop.block_bytes);
	return 0;
}
