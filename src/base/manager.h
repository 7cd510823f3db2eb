// SPDX-License-Identifier: Apache-2.0
/*
 * The service manager that started the program, if there is one. Status goes to it by the protocol
 * that sd_notify(3) documents for programs without libsystemd, and sockets are received from it
 * like with sd_listen_fds(3).
 *
 * Supported: $NOTIFY_SOCKET with the path of a datagram socket ("/...") or an abstract name
 * ("@..."). Not supported: vsock addresses ("vsock:..."), which reach the host of a virtual
 * machine; messages for other processes or with descriptors; names of sockets ($LISTEN_FDNAMES),
 * because a socket is identified by its address.
 *
 * Threading: one thread; manager_take_sockets() changes the environment, so it is called before
 * other threads exist. Ownership: the caller owns the sockets that it takes. Errors: the program
 * does not depend on the manager, so a message that cannot be sent is only logged at level debug.
 */
#pragma once

#include "base/compiler.h"

enum {
	/* descriptor of the first passed socket; the others have the next numbers */
	MANAGER_FD_FIRST = 3,
	MANAGER_TEXT_BYTES = 4096, /* the service manager does not read longer messages */
};

/* Opens a socket to the manager and keeps it open, for a program that will not be allowed to create
 * one later. If this fails, each message tries to connect again. */
void manager_open(void);
/* Sends "KEY=value" lines to the manager; text beyond MANAGER_TEXT_BYTES is cut off. Does not
 * change the environment. Blocks while the manager's queue is full. */
void manager_tell(const char *format, ...) GMB_PRINTF(1, 2);

/*
 * Returns the number of sockets passed to this process; 0 if there are none, or if they are meant
 * for another process. The sockets become close-on-exec and the variables are removed, so that no
 * child process mistakes them for its own. Returns -EINVAL for malformed variables (a manager
 * without sockets to pass does not set them), and -EBADF if one of the descriptors is not open.
 */
GMB_MUST_CHECK int manager_take_sockets(void);
