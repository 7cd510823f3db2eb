// SPDX-License-Identifier: Apache-2.0
/*
 * Open files that a peer sends along over a Unix socket (SCM_RIGHTS). Who receives them, or closes
 * a socket that holds some, closes what was sent, and waits as the sender likes: for a TCP socket
 * that lingers, or a FUSE server. So sockets that need none refuse them (Linux 6.16); where that
 * cannot be, what comes is received, and closed by a worker (work.h).
 *
 * Threading: any; nothing here has state. Ownership: descriptors are the caller's. Errors: none.
 */
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/compiler.h"

enum {
	RIGHTS_MAX = 253, /* the kernel's limit of one message */
	RIGHTS_CONTROL_BYTES = 1088,
};

/* Nothing can be sent along to the socket from now on, nor, if it listens, to those who connect
 * from now on. Other sockets, and kernels before 6.16: nothing happens. */
void rights_refuse(int fd);
/* Whether something may come: a Unix socket that has not refused it since it was connected. */
bool rights_may_come(int fd);
/* The same, of a socket that will be received from: what comes with an urgent byte (MSG_OOB) is
 * received then, too. The kernel would skip that byte, and close what came with it. */
bool rights_guard(int fd);
/* The user at the other end; -1: not known. */
uid_t rights_owner(int fd);
/* Another user than root and our own, who cannot harm us more than by its memory and descriptors.
 */
static inline bool rights_is_stranger(uid_t uid)
{
	return uid != 0 && uid != geteuid();
}
/* What came with a message that was received with RIGHTS_CONTROL_BYTES of room; how many. */
uint32_t rights_collect(struct msghdr *message, int fds[RIGHTS_MAX]);
