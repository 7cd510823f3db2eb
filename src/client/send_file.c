// SPDX-License-Identifier: Apache-2.0
/*
 * gmb_send_file(): reads a file into memory that the server can access, and submits writes from
 * there.
 *
 *   file ── pread ──▶ piece of a buffer ── WRITE ──▶ disk of the server ── done ──▶ piece is idle
 *
 * While one piece is being read, the others are being written.
 */
#include <errno.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "client/client_private.h"

enum {
	PIECES = 8,
	PIECE_BYTES = 1 << 20,
	ALL_IDLE = (1 << PIECES) - 1,
	/* Alignment of reads from files opened with O_DIRECT. Such a read may extend beyond the
	 * part of the file that is sent. */
	READ_ALIGN = 4096,
};

struct sending {
	uint8_t *memory; /* PIECES pieces */
	uint32_t idle;	 /* bit mask of idle pieces */
	int err;
	struct gmb_request requests[PIECES];
};

static void send_file_written(struct gmb_request *request)
{
	struct sending *sending = request->context;

	sending->idle |= BIT(request - sending->requests);
	sending->err = sending->err != 0 ? sending->err : request->result;
}

/* Reads `bytes` bytes, or returns a negative errno: -ENODATA if the file ends before. The buffer
 * has room up to a multiple of READ_ALIGN. */
static int send_file_read_all(int fd, uint8_t *buffer, size_t bytes, uint64_t offset)
{
	size_t room = align_up(bytes, READ_ALIGN);
	size_t done = 0;

	while (done < bytes) {
		size_t begin = align_down(done, READ_ALIGN);
		ssize_t count = pread(fd, buffer + begin, room - begin, (off_t)(offset + begin));

		if (count < 0 && errno != EINTR) {
			return -errno;
		}
		if (count >= 0 && begin + (size_t)count <= done) {
			return -ENODATA;
		}
		done = count >= 0 ? begin + (size_t)count : done;
	}
	return 0;
}

/* Waits until a piece is idle. all: until all pieces are idle. */
static void wait_idle(struct gmb_queue *queue, const struct sending *sending, bool all)
{
	while (all ? sending->idle != ALL_IDLE : sending->idle == 0) {
		queue_round(queue, UINT64_MAX);
	}
}

int gmb_send_file(struct gmb_client *client, int fd, uint64_t fd_offset, uint64_t bytes,
	uint64_t offset, uint32_t flags, uint32_t *crc_out)
{
	struct gmb_queue *queue = client->queue;
	struct sending sending = { .idle = ALL_IDLE };
	uint32_t crc = 0;
	void *memory;

	if (queue->inside) {
		return -EDEADLK;
	}
	if ((flags & ~(uint32_t)GMB_FLUSH_AFTER) != 0 || fd_offset > INT64_MAX ||
		bytes > INT64_MAX - fd_offset || offset > INT64_MAX || bytes > INT64_MAX - offset) {
		return -EINVAL;
	}
	sending.err = gmb_buffer_alloc(queue, (size_t)PIECES * PIECE_BYTES, 0, &memory, NULL);
	if (sending.err != 0) {
		return sending.err;
	}
	sending.memory = memory;
	for (uint64_t done = 0; done < bytes && sending.err == 0;) {
		uint32_t i = (uint32_t)__builtin_ctz(sending.idle);
		uint8_t *piece = sending.memory + (size_t)i * PIECE_BYTES;
		size_t length = (size_t)MIN(bytes - done, (uint64_t)PIECE_BYTES);

		sending.err = send_file_read_all(fd, piece, length, fd_offset + done);
		if (sending.err != 0) {
			break;
		}
		if (crc_out != NULL) {
			crc = crc32c(crc, piece, length);
		}
		gmb_prepare_write(&sending.requests[i], piece, length, offset + done);
		sending.requests[i].done = send_file_written;
		sending.requests[i].context = &sending;
		sending.idle &= ~BIT(i);
		gmb_submit(client, &sending.requests[i]);
		done += length;
		queue_round(queue, 0); /* sends the request */
		wait_idle(queue, &sending, false);
	}
	wait_idle(queue, &sending, true);
	gmb_buffer_free(queue, memory);
	if (sending.err == 0 && (flags & GMB_FLUSH_AFTER) != 0) {
		sending.err = gmb_flush(client);
	}
	if (sending.err == 0 && crc_out != NULL) {
		*crc_out = crc;
	}
	return sending.err;
}
