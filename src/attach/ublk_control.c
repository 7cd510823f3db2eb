// SPDX-License-Identifier: Apache-2.0
#include "attach/ublk_control.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "attach/process.h"

static const char control_path[] = "/dev/ublk-control";

/* Opcodes: before 6.4, and since. */
static const struct {
	uint32_t legacy;
	uint32_t encoded;
} opcodes[] = {
	[UBLK_ADD] = { UBLK_CMD_ADD_DEV, UBLK_U_CMD_ADD_DEV },
	[UBLK_SET_PARAMS] = { UBLK_CMD_SET_PARAMS, UBLK_U_CMD_SET_PARAMS },
	[UBLK_START] = { UBLK_CMD_START_DEV, UBLK_U_CMD_START_DEV },
	[UBLK_STOP] = { UBLK_CMD_STOP_DEV, UBLK_U_CMD_STOP_DEV },
	[UBLK_TRY_STOP] = { 0, UBLK_U_CMD_TRY_STOP_DEV },
	[UBLK_DELETE] = { UBLK_CMD_DEL_DEV, UBLK_U_CMD_DEL_DEV },
	[UBLK_GET_INFO] = { UBLK_CMD_GET_DEV_INFO, UBLK_U_CMD_GET_DEV_INFO },
	[UBLK_START_RECOVERY] = { UBLK_CMD_START_USER_RECOVERY, UBLK_U_CMD_START_USER_RECOVERY },
	[UBLK_END_RECOVERY] = { UBLK_CMD_END_USER_RECOVERY, UBLK_U_CMD_END_USER_RECOVERY },
};

static int take_answer(struct ublk_control *control)
{
	struct __kernel_timespec patience = {
		.tv_sec = control->patience_ms / 1000,
		.tv_nsec = control->patience_ms % 1000 * 1000000LL,
	};
	struct io_uring_cqe *cqe;
	int rc;

	do {
		rc = control->patience_ms == 0
			     ? io_uring_wait_cqe(&control->ring, &cqe)
			     : io_uring_wait_cqe_timeout(&control->ring, &cqe, &patience);
	} while (rc == -EINTR);
	if (rc == 0) {
		rc = cqe->res;
		io_uring_cqe_seen(&control->ring, cqe);
	}
	return rc == -ETIME ? -ETIMEDOUT : rc;
}

int ublk_control_wait(struct ublk_control *control)
{
	control->patience_ms = 0;
	return take_answer(control);
}

/* Sends one command and waits for its result. */
static int run(
	struct ublk_control *control, uint32_t opcode, const struct ublksrv_ctrl_cmd *command)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&control->ring);
	int rc;

	GMB_ASSERT(sqe != NULL);
	/* An entry has 128 bytes here, twice what its type says. */
	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = control->fd;
	sqe->cmd_op = opcode;
	memcpy(sqe->cmd, command, sizeof(*command));
	do {
		rc = io_uring_submit(&control->ring);
	} while (rc == -EINTR);
	return rc < 0 ? rc : take_answer(control);
}

int ublk_control_command(struct ublk_control *control, enum ublk_command command, uint32_t device,
	void *buffer, uint16_t buffer_bytes, uint64_t data)
{
	struct ublksrv_ctrl_cmd argument = {
		.dev_id = device,
		.queue_id = UINT16_MAX,
		.len = buffer_bytes,
		.addr = (uintptr_t)buffer,
	};

	memcpy((char *)&argument + offsetof(struct ublksrv_ctrl_cmd, data), &data, sizeof(data));
	return run(control, control->encoded ? opcodes[command].encoded : opcodes[command].legacy,
		&argument);
}

static void probe_features(struct ublk_control *control)
{
	uint64_t features = 0;
	struct ublksrv_ctrl_cmd argument = {
		.dev_id = UINT32_MAX,
		.queue_id = UINT16_MAX,
		.len = UBLK_FEATURES_LEN,
		.addr = (uintptr_t)&features,
	};

	control->encoded = run(control, UBLK_U_CMD_GET_FEATURES, &argument) == 0;
	control->features = control->encoded ? features : 0;
}

static int open_device(void)
{
	int fd = open(control_path, O_RDWR | O_CLOEXEC);

	if (fd < 0 && (errno == ENOENT || errno == ENODEV || errno == ENXIO)) {
		process_load_module("ublk_drv");
		fd = open(control_path, O_RDWR | O_CLOEXEC);
	}
	return fd >= 0 ? fd : -errno;
}

int ublk_control_open(struct ublk_control *control, struct error *error)
{
	int rc;

	*control = (struct ublk_control){ .fd = open_device() };
	if (control->fd == -ENOENT || control->fd == -ENODEV || control->fd == -ENXIO) {
		return error_set(error, -ENOSYS,
			"there is no %s: this kernel has no ublk driver, or its module ublk_drv is "
			"not installed",
			control_path);
	}
	if (control->fd == -EACCES || control->fd == -EPERM) {
		return error_set(error, -EPERM, "only root can make block devices");
	}
	if (control->fd < 0) {
		rc = control->fd;
		return error_set(error, rc, "cannot open %s: %s", control_path, strerror(-rc));
	}
	rc = io_uring_queue_init(4, &control->ring, IORING_SETUP_SQE128);
	if (rc < 0) {
		close(control->fd);
		return error_set(error, rc, "ublk needs io_uring with long entries (Linux 6.0): %s",
			strerror(-rc));
	}
	probe_features(control);
	return 0;
}

void ublk_control_close(struct ublk_control *control)
{
	io_uring_queue_exit(&control->ring);
	close(control->fd);
}
