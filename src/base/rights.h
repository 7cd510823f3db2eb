// SPDX-License-Identifier: Apache-2.0
/*
 * File descriptors that a peer passes over a Unix socket (SCM_RIGHTS). A process that receives
 * descriptors, or closes a socket whose queue contains some, also has to close the files. Closing
 * can block for as long as the sender likes: on a TCP socket that lingers, or on a FUSE server.
 * Sockets that need no descriptors therefore refuse them (Linux 6.16), and so do listening sockets:
 * their connections permit descriptors only once they have been accepted and the limits of work.h
 * have been checked. On older kernels the descriptors are received, and a worker closes them
 * (work.h).
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

/* Makes a socket refuse descriptors from now on: the peer's sendmsg() fails with EPERM. Connections
 * made later to a listener also refuse them. No effect on sockets that are not Unix sockets, and on
 * kernels before 6.16. */
void rights_refuse(int fd);
/* Makes a connection permit descriptors, if it has refused them because its listener does. */
void rights_permit(int fd);
/* Returns whether descriptors can arrive or have arrived: fd is a Unix socket that has not refused
 * them from the beginning of its connection, or has permitted them since. */
bool rights_may_come(int fd);
/* Like rights_may_come(), for a socket that will be received from. Urgent bytes (MSG_OOB) are then
 * received in line, because the kernel would otherwise skip such a byte and close the descriptors
 * that came with it. */
bool rights_guard(int fd);
/* Returns the user at the other end, or -1 if unknown. */
uid_t rights_owner(int fd);
/* Returns whether uid is neither root nor our own user. Root and our own user are trusted, except
 * for limits on their use of memory and descriptors. */
static inline bool rights_is_stranger(uid_t uid)
{
	return uid != 0 && uid != geteuid();
}
/* Copies the descriptors out of a message that was received with a control buffer of
 * RIGHTS_CONTROL_BYTES. Returns their number. */
uint32_t rights_collect(struct msghdr *message, int fds[RIGHTS_MAX]);
