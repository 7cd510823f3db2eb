// SPDX-License-Identifier: Apache-2.0
/* Setup of an io_uring: finds the available features. */
#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ring/calls.h"

/* Not in the headers of Debian 12; part of the kernel ABI. */
#ifndef IORING_FEAT_MIN_TIMEOUT
#define IORING_FEAT_MIN_TIMEOUT (1U << 15)
#endif

enum { CQ_FACTOR = 4 };

static int setup_uring(
	struct io_uring *uring, const struct ring_options *options, struct ring_features *features)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE | IORING_SETUP_SINGLE_ISSUER |
			 IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		.cq_entries = options->entries * CQ_FACTOR,
	};
	int result;

	if (options->is_restricted) { /* disabled until restrict_ring() */
		params.flags |= IORING_SETUP_R_DISABLED;
	}
	result = io_uring_queue_init_params(options->entries, uring, &params);
	features->min_timeout = result == 0 && (params.features & IORING_FEAT_MIN_TIMEOUT) != 0;
	return result;
}

/* Tries to register and unregister one page: only this reveals whether the locked-memory limit and
 * the kernel permit it. */
static void probe_buffers(struct io_uring *uring, struct ring_features *features, uint32_t count)
{
	void *page;
	struct iovec iov;
	int result = io_uring_register_buffers_sparse(uring, count);

	if (result == 0) {
		page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED) {
			features->buffer_error = ENOMEM;
			return;
		}
		iov = (struct iovec){ .iov_base = page, .iov_len = 4096 };
		result = io_uring_register_buffers_update_tag(uring, 0, &iov, NULL, 1);
		if (result > 0) {
			iov = (struct iovec){ 0 };
			result = io_uring_register_buffers_update_tag(uring, 0, &iov, NULL, 1);
		}
		munmap(page, 4096);
	}
	features->registered_buffers = result >= 0;
	features->buffer_error = result < 0 ? (uint32_t)-result : 0;
}

/* Operations that uring.c submits to a restricted ring. These operations do not open files,
 * connect, or name addresses. */
static const uint8_t permitted_operations[] = {
	IORING_OP_ACCEPT,
	IORING_OP_ASYNC_CANCEL,
	IORING_OP_FADVISE,
	IORING_OP_FALLOCATE,
	IORING_OP_FSYNC,
	IORING_OP_POLL_ADD,
	IORING_OP_READ,
	IORING_OP_READ_FIXED,
	IORING_OP_RECV,
	IORING_OP_RECVMSG,
	IORING_OP_TIMEOUT,
	IORING_OP_TIMEOUT_REMOVE,
	IORING_OP_WRITE,
	IORING_OP_WRITEV,
	IORING_OP_WRITE_FIXED,
};

static const uint8_t permitted_registrations[] = {
	IORING_REGISTER_BUFFERS_UPDATE,
	IORING_REGISTER_EVENTFD,
	IORING_REGISTER_FILES_UPDATE,
	IORING_UNREGISTER_RING_FDS,
};

/* Registers with the ring. For restrict_ring(): liburing 2.3 declares functions for its two
 * registrations, but does not export them. */
static int register_here(
	struct io_uring *uring, unsigned operation, const void *argument, uint32_t count)
{
	return syscall(SYS_io_uring_register, uring->ring_fd, operation, argument, count) < 0
		       ? -errno
		       : 0;
}

/* Restricts a ring, which must still be disabled, to the permitted operations, and enables it. */
static int restrict_ring(struct io_uring *uring)
{
	struct io_uring_restriction list[ARRAY_COUNT(permitted_operations) +
					 ARRAY_COUNT(permitted_registrations) + 1] = { 0 };
	uint32_t count = 0;
	int result;

	for (size_t i = 0; i < ARRAY_COUNT(permitted_operations); i++) {
		list[count].opcode = IORING_RESTRICTION_SQE_OP;
		list[count++].sqe_op = permitted_operations[i];
	}
	for (size_t i = 0; i < ARRAY_COUNT(permitted_registrations); i++) {
		list[count].opcode = IORING_RESTRICTION_REGISTER_OP;
		list[count++].register_op = permitted_registrations[i];
	}
	list[count].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
	list[count++].sqe_flags = IOSQE_FIXED_FILE;
	result = register_here(uring, IORING_REGISTER_RESTRICTIONS, list, count);
	return result < 0 ? result : register_here(uring, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
}

int ring_setup(
	struct io_uring *uring, const struct ring_options *options, struct ring_features *features)
{
	int result;

	*features = (struct ring_features){ 0 };
	result = setup_uring(uring, options, features);
	if (result < 0) {
		return result;
	}
	features->available = true;
	features->registered_ring = io_uring_register_ring_fd(uring) == 1;
	features->registered_files = io_uring_register_files_sparse(uring, options->files_max) == 0;
	probe_buffers(uring, features, options->buffers_max);
	result = options->is_restricted ? restrict_ring(uring) : 0;
	if (result < 0) {
		io_uring_queue_exit(uring);
	}
	return result;
}

void ring_probe(struct ring_features *features)
{
	const struct ring_options options = { .entries = 8, .files_max = 8, .buffers_max = 8 };
	struct io_uring uring;

	if (ring_setup(&uring, &options, features) == 0) {
		io_uring_queue_exit(&uring);
	}
}

int ring_setup_explain(int code, struct error *error)
{
	switch (code) {
	case -ENOSYS:
	case -EINVAL: /* Linux before 6.1 does not know all flags */
		return error_set(error, code,
			"no io_uring: gmblock requires Linux 6.1 or newer built with "
			"CONFIG_IO_URING, and in a container a seccomp profile that allows it");
	case -EPERM:
	case -EACCES:
		return error_set(error, code,
			"io_uring is forbidden here: allow it with \"sysctl "
			"kernel.io_uring_disabled=0\" "
			"or in the container's seccomp profile");
	case -ENOMEM:
		return error_set(error, code,
			"not enough memory for an io_uring: raise the locked-memory limit "
			"(ulimit -l, LimitMEMLOCK=)");
	case -EMFILE:
	case -ENFILE:
		return error_set(error, code,
			"no file descriptor left for an io_uring: raise ulimit -n (LimitNOFILE=)");
	default:
		return error_set(error, code, "cannot set up an io_uring: %s", strerror(-code));
	}
}
