// SPDX-License-Identifier: Apache-2.0
/*
 * /dev/ublk-control: makes, starts and removes ublk devices. Commands go through a small io_uring
 * of their own and are waited for.
 *
 * Threading: one thread at a time. Ownership: the caller's struct. Errors: -ENOSYS the kernel has
 * no ublk driver, -EPERM, and what the driver answers, with a sentence.
 */
#pragma once

#include <liburing.h>

#include "attach/ublk_abi.h"
#include "base/error.h"

enum ublk_command {
	UBLK_ADD,
	UBLK_SET_PARAMS,
	UBLK_START,
	UBLK_STOP,
	UBLK_TRY_STOP, /* only with UBLK_F_SAFE_STOP_DEV */
	UBLK_DELETE,
	UBLK_GET_INFO,
	UBLK_START_RECOVERY,
	UBLK_END_RECOVERY,
};

struct ublk_control {
	int fd;
	struct io_uring ring;
	bool encoded;	      /* commands by their encoded numbers, here and on the device */
	uint64_t features;    /* UBLK_F_; 0 where the driver does not tell (before 6.5) */
	uint32_t patience_ms; /* of the next commands; 0 = as long as it takes */
};

/* Loads the module if it is missing. */
GMB_MUST_CHECK int ublk_control_open(struct ublk_control *control, struct error *error);
void ublk_control_close(struct ublk_control *control);

/* A command about a device (UINT32_MAX: a new one) with its argument; the driver's answer.
 * -ETIMEDOUT: patience is over; wait for the answer later, or close the control, which abandons the
 * command. */
GMB_MUST_CHECK int ublk_control_command(struct ublk_control *control, enum ublk_command command,
	uint32_t device, void *buffer, uint16_t buffer_bytes, uint64_t data);

/* The answer to a command that patience was too short for, however long it takes. */
GMB_MUST_CHECK int ublk_control_wait(struct ublk_control *control);
