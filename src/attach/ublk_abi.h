// SPDX-License-Identifier: Apache-2.0
/*
 * The kernel's ublk interface: its header, and what headers older than the kernel lack. Numbers as
 * in linux/ublk_cmd.h of Linux 6.16.
 *
 * Threading: constants only. Ownership: none. Errors: none.
 */
#pragma once

#include <linux/ublk_cmd.h>
#include <sys/ioctl.h>

#include "base/compiler.h"

/* Since 6.5 the driver tells its features; it knows the encoded numbers of commands then, which are
 * the only ones that a kernel without CONFIG_BLKDEV_UBLK_LEGACY_OPCODES takes. */
#ifndef UBLK_U_CMD_GET_FEATURES
#define UBLK_U_CMD_GET_FEATURES _IOR('u', 0x13, struct ublksrv_ctrl_cmd)
#define UBLK_FEATURES_LEN	8
#endif
#ifndef UBLK_U_CMD_ADD_DEV
#define UBLK_U_CMD_GET_DEV_INFO _IOR('u', UBLK_CMD_GET_DEV_INFO, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_ADD_DEV	_IOWR('u', UBLK_CMD_ADD_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_DEL_DEV	_IOWR('u', UBLK_CMD_DEL_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_START_DEV	_IOWR('u', UBLK_CMD_START_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_STOP_DEV	_IOWR('u', UBLK_CMD_STOP_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_SET_PARAMS	_IOWR('u', UBLK_CMD_SET_PARAMS, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_START_USER_RECOVERY                                                             \
	_IOWR('u', UBLK_CMD_START_USER_RECOVERY, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_END_USER_RECOVERY _IOWR('u', UBLK_CMD_END_USER_RECOVERY, struct ublksrv_ctrl_cmd)
#endif
#ifndef UBLK_U_CMD_TRY_STOP_DEV
#define UBLK_U_CMD_TRY_STOP_DEV _IOWR('u', 0x17, struct ublksrv_ctrl_cmd)
#endif
#ifndef UBLK_F_SAFE_STOP_DEV
#define UBLK_F_SAFE_STOP_DEV (1ULL << 17)
#endif
#ifndef UBLK_U_IO_FETCH_REQ
#define UBLK_U_IO_FETCH_REQ _IOWR('u', UBLK_IO_FETCH_REQ, struct ublksrv_io_cmd)
#define UBLK_U_IO_COMMIT_AND_FETCH_REQ                                                             \
	_IOWR('u', UBLK_IO_COMMIT_AND_FETCH_REQ, struct ublksrv_io_cmd)
#endif

_Static_assert(sizeof(struct ublksrv_ctrl_cmd) == 32, "control command");
_Static_assert(sizeof(struct ublksrv_ctrl_dev_info) == 64, "device info");
_Static_assert(sizeof(struct ublksrv_io_desc) == 24, "request descriptor");
_Static_assert(sizeof(struct ublksrv_io_cmd) == 16, "I/O command");
