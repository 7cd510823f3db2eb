// SPDX-License-Identifier: Apache-2.0
#include "sockets/sockets.h"

const char *const stats_reason_names[REASON_COUNT] = {
	[REASON_NOBODY] = "nobody",
	[REASON_REFUSED] = "refused",
	[REASON_REMOTE] = "remote",
	[REASON_IDENTITY] = "identity",
	[REASON_NAME] = "name",
	[REASON_COUNTS] = "counts",
	[REASON_RESOURCES] = "resources",
	[REASON_OPTION] = "option",
	[REASON_CALL] = "call",
	[REASON_EPOLL] = "epoll",
	[REASON_FULL] = "full",
	[REASON_BULK] = "bulk",
	[REASON_COMPARE] = "compare",
	[REASON_SLOW] = "slow",
	[REASON_SHUTDOWN] = "shutdown",
	[REASON_FORK] = "fork",
	[REASON_EXEC] = "exec",
	[REASON_PASSED] = "passed",
	[REASON_PEER] = "peer",
	[REASON_BROKEN] = "broken",
	[REASON_ASKED] = "asked",
};
