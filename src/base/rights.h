// SPDX-License-Identifier: Apache-2.0
/*
 * File descriptors that a peer passes over a Unix socket (SCM_RIGHTS). A process that receives
 * them, or closes a socket that holds some, also closes the files, and closing can block for as
 * long as the sender likes: on a TCP socket that lingers, or on a FUSE server. Sockets that need no
 * descriptors therefore refuse them (Linux 6.16). On older kernels the descriptors are received,
 * and a worker closes them (work.h).
 *
 * Threading: any; there is no state. Ownership: the caller owns the descriptors. Errors: none.
 */
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/compiler.h"

enum {
	RIGHTS_MAX = 253, /* the kernel's limit for one message */
	RIGHTS_CONTROL_BYTES = 1088,
};

/* From now on no descriptors can be passed to the socket, nor, if it listens, to connections made
 * from now on. No effect on other sockets, and on kernels before 6.16. */
void rights_refuse(int fd);
/* Returns whether descriptors can arrive: fd is a Unix socket that has not refused them since it
 * was connected. */
bool rights_may_come(int fd);
/* rights_may_come() for a socket that will be received from. Urgent bytes (MSG_OOB) are then
 * received in line, because the kernel would otherwise skip such a byte and close the descriptors
 * that came with it. */
bool rights_guard(int fd);
/* Returns the user at the other end, or -1 if unknown. */
uid_t rights_owner(int fd);
/* Returns whether uid is neither root nor our own user. Those two cannot harm us beyond their use
 * of memory and descriptors. */
static inline bool rights_is_stranger(uid_t uid)
{
	return uid != 0 && uid != geteuid();
}
/* Stores the descriptors of a message that was received with RIGHTS_CONTROL_BYTES of control space.
 * Returns their number. */
uint32_t rights_collect(struct msghdr *message, int fds[RIGHTS_MAX]);
