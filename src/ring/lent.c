// SPDX-License-Identifier: Apache-2.0
#include "ring/lent.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring/calls.h"

int ring_lent_create(struct ring_lent *lent, uint32_t slot_bytes, uint32_t slot_count)
{
	void *base = mmap(NULL, (size_t)slot_bytes * slot_count, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int fd = base != MAP_FAILED ? open("/dev/zero", O_RDONLY | O_CLOEXEC) : -1;
	int rc = fd >= 0 ? 0 : -errno;

	*lent = (struct ring_lent){ 0 };
	if (rc != 0 && base != MAP_FAILED) {
		munmap(base, (size_t)slot_bytes * slot_count);
	} else if (rc == 0) {
		*lent = (struct ring_lent){ .base = base,
			.slot_bytes = slot_bytes,
			.slot_count = slot_count,
			.zero_fd = fd };
	}
	return rc;
}

void ring_lent_destroy(struct ring_lent *lent)
{
	if (lent->base != NULL) {
		munmap(lent->base, (size_t)lent->slot_bytes * lent->slot_count);
		close(lent->zero_fd);
		lent->base = NULL;
	}
}

/* Makes an entry transfer to or from a range of a slot instead of memory with an address: the
 * kernel counts from the beginning of the slot's pages. */
static void use_slot(
	struct io_uring_sqe *sqe, const struct ring_lent *lent, const void *address, size_t len)
{
	uint64_t at = (uintptr_t)address - (uintptr_t)lent->base;

	GMB_ASSERT(ring_lent_has(lent, address));
	GMB_ASSERT(at % lent->slot_bytes + len <= lent->slot_bytes);
	sqe->addr = at % lent->slot_bytes;
	sqe->buf_index = (uint16_t)(at / lent->slot_bytes);
}

static void use_file(struct io_uring_sqe *sqe, struct ring_file file)
{
	if (file.slot >= 0) {
		sqe->fd = file.slot;
		sqe->flags |= IOSQE_FIXED_FILE;
	}
}

/* Completes a prepared transfer between a socket and lent pages. */
static void use_pages(struct io_uring_sqe *sqe, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len)
{
	sqe->ioprio |= IORING_RECVSEND_FIXED_BUF;
	use_slot(sqe, lent, address, len);
	use_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_lent_recv(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_RECV, done);

	io_uring_prep_recv(sqe, file.fd, NULL, len, MSG_WAITALL);
	use_pages(sqe, op, file, lent, address, len);
}

void ring_lent_send(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct ring_lent *lent, const void *address, size_t len, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_SEND, done);

	io_uring_prep_send(sqe, file.fd, NULL, len, MSG_NOSIGNAL);
	use_pages(sqe, op, file, lent, address, len);
}

void ring_lent_zero(struct ring *ring, struct ring_op *op, const struct ring_lent *lent,
	const void *address, size_t len, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_READ, done);

	io_uring_prep_read_fixed(sqe, lent->zero_fd, NULL, (unsigned)len, 0, 0);
	use_slot(sqe, lent, address, len);
	io_uring_sqe_set_data(sqe, op);
}

void ring_command(struct ring *ring, struct ring_op *op, struct ring_file file, uint32_t command,
	const uint8_t parameters[16], uint64_t addr, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_COMMAND, done);

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = file.fd;
	sqe->cmd_op = command;
	sqe->addr = addr;
	memcpy(sqe->cmd, parameters, 16);
	use_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

/* --- the probe ----------------------------------------------------------------------------- */

struct probe {
	struct ring_op op;
	int result;
};

static void probe_done(struct ring_op *op, int result)
{
	container_of(op, struct probe, op)->result = result;
}

/* Sends a byte through a socket pair into the second half of a page, and returns whether it is
 * there. */
static bool probe_receive(struct ring *ring, uint8_t *page, int32_t slot)
{
	struct probe probe = { .result = -EINVAL };
	struct io_uring_sqe *sqe;
	int pair[2];
	bool ok = false;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
		return false;
	}
	if (send(pair[0], "L", 1, MSG_NOSIGNAL) == 1) {
		sqe = ring_sqe(ring, &probe.op, RING_RECV, probe_done);
		io_uring_prep_recv(sqe, pair[1], page + 2048, 1, MSG_WAITALL | MSG_DONTWAIT);
		sqe->ioprio |= IORING_RECVSEND_FIXED_BUF;
		sqe->buf_index = (uint16_t)slot;
		io_uring_sqe_set_data(sqe, &probe.op);
		while (probe.op.in_flight) {
			(void)ring_turn(ring, true);
		}
		ok = probe.result == 1 && page[2048] == 'L';
	}
	close(pair[0]);
	close(pair[1]);
	return ok;
}

bool ring_lent_probe(struct ring *ring)
{
	uint8_t *page =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct mem_region region = { .base = page, .bytes = 4096, .rights = MEM_RAM };
	bool ok = false;

	if (page == MAP_FAILED) {
		return false;
	}
	if (ring_memory_add(ring, &region) == 0) {
		ok = probe_receive(ring, page, region.fixed_idx);
		ring_memory_remove(ring, &region);
	}
	munmap(page, 4096);
	return ok;
}
