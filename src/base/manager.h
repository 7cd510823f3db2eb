// SPDX-License-Identifier: Apache-2.0
/*
 * The service manager that started the program, if one did: told how the program is doing as
 * sd_notify(3) documents it for programs that speak the protocol themselves, and asked for the
 * sockets that it handed over, as sd_listen_fds(3) does.
 *
 * Supported: $NOTIFY_SOCKET with the path of a datagram socket ("/...") or an abstract name
 * ("@..."). Not supported: vsock addresses ("vsock:..."), which reach the host of a virtual
 * machine; other processes' messages, and descriptors sent along; the names of sockets
 * ($LISTEN_FDNAMES): a socket is known by its address.
 *
 * Threading: one thread, and manager_take_sockets(), which changes the environment, before there
 * are others. Ownership: what is taken belongs to the caller. Errors: being heard is never what a
 * program depends on. What cannot be told is a debug line.
 */
#pragma once

#include "base/compiler.h"

enum {
	MANAGER_FD_FIRST = 3, /* the number of the first socket handed over; the rest follow it */
	MANAGER_TEXT_BYTES = 4096, /* longer ones are not read at the other end */
};

/* Keeps a socket to the manager: for who may make none later. A manager that cannot be reached now
 * is tried again with each message. */
void manager_open(void);
/* Tells the manager "KEY=value" lines; what does not fit is cut from the end of the last one. The
 * environment stays as it is. Blocks while the manager's queue is full. */
void manager_tell(const char *format, ...) GMB_PRINTF(1, 2);

/*
 * How many sockets were handed over to this process, 0 if none were or they were meant for another
 * one. They are close-on-exec now, and the variables are gone, so that nothing that the program
 * starts takes them for its own. -EINVAL for variables that make no sense (a manager that has none
 * to hand over does not set them), -EBADF when one of the descriptors is not open.
 */
GMB_MUST_CHECK int manager_take_sockets(void);
