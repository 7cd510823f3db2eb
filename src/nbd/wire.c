// SPDX-License-Identifier: Apache-2.0
#include "nbd/wire.h"

#include <errno.h>

const char *nbd_option_name(uint32_t option)
{
	static const char *const names[] = {
		[NBD_OPT_EXPORT_NAME] = "EXPORT_NAME",
		[NBD_OPT_ABORT] = "ABORT",
		[NBD_OPT_LIST] = "LIST",
		[NBD_OPT_PEEK_EXPORT] = "PEEK_EXPORT",
		[NBD_OPT_STARTTLS] = "STARTTLS",
		[NBD_OPT_INFO] = "INFO",
		[NBD_OPT_GO] = "GO",
		[NBD_OPT_STRUCTURED_REPLY] = "STRUCTURED_REPLY",
		[NBD_OPT_LIST_META_CONTEXT] = "LIST_META_CONTEXT",
		[NBD_OPT_SET_META_CONTEXT] = "SET_META_CONTEXT",
		[NBD_OPT_EXTENDED_HEADERS] = "EXTENDED_HEADERS",
	};

	return option < ARRAY_COUNT(names) && names[option] != NULL ? names[option] : "unknown";
}

const char *nbd_command_name(uint32_t command)
{
	static const char *const names[] = {
		[NBD_CMD_READ] = "READ",
		[NBD_CMD_WRITE] = "WRITE",
		[NBD_CMD_DISC] = "DISC",
		[NBD_CMD_FLUSH] = "FLUSH",
		[NBD_CMD_TRIM] = "TRIM",
		[NBD_CMD_CACHE] = "CACHE",
		[NBD_CMD_WRITE_ZEROES] = "WRITE_ZEROES",
		[NBD_CMD_BLOCK_STATUS] = "BLOCK_STATUS",
		[NBD_CMD_RESIZE] = "RESIZE",
	};

	return command < ARRAY_COUNT(names) ? names[command] : "unknown";
}

const char *nbd_error_name(uint32_t error)
{
	switch (error) {
	case NBD_SUCCESS:
		return "success";
	case NBD_EPERM:
		return "EPERM";
	case NBD_EIO:
		return "EIO";
	case NBD_ENOMEM:
		return "ENOMEM";
	case NBD_EINVAL:
		return "EINVAL";
	case NBD_ENOSPC:
		return "ENOSPC";
	case NBD_EOVERFLOW:
		return "EOVERFLOW";
	case NBD_ENOTSUP:
		return "ENOTSUP";
	case NBD_ESHUTDOWN:
		return "ESHUTDOWN";
	default:
		return "unknown";
	}
}

uint32_t nbd_error_from_errno(int code)
{
	switch (code) {
	case 0:
		return NBD_SUCCESS;
	case -EPERM:
	case -EACCES:
	case -EROFS:
		return NBD_EPERM;
	case -EINVAL:
		return NBD_EINVAL;
	case -ENOSPC:
	case -EDQUOT:
	case -EFBIG:
		return NBD_ENOSPC;
	case -EOVERFLOW:
		return NBD_EOVERFLOW;
	case -EOPNOTSUPP:
		return NBD_ENOTSUP;
	case -ESHUTDOWN:
		return NBD_ESHUTDOWN;
	default: /* ENOMEM too: it should not be sent, and says nothing that a client could use */
		return NBD_EIO;
	}
}

int nbd_error_to_errno(uint32_t error)
{
	switch (error) {
	case NBD_SUCCESS:
		return 0;
	case NBD_EPERM:
		return -EPERM;
	case NBD_EIO:
		return -EIO;
	case NBD_ENOMEM:
		return -ENOMEM;
	case NBD_ENOSPC:
		return -ENOSPC;
	case NBD_EOVERFLOW:
		return -EOVERFLOW;
	case NBD_ENOTSUP:
		return -EOPNOTSUPP;
	case NBD_ESHUTDOWN:
		return -ESHUTDOWN;
	default:
		return -EINVAL;
	}
}
