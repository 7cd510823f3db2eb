// SPDX-License-Identifier: Apache-2.0
/*
 * Names of the C library that libclan-sockets.so defines; see sockets.h.
 *
 * Threading, ownership, errors: as in the C library.
 */
#pragma once

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

/* Called when connect() has succeeded or is in progress. */
void hooks_connected(int fd, const struct sockaddr *address, socklen_t length);
/* Returns the connection to TCP for good, because calls that the library does not see will move its
 * bytes. Returns false if the ring still has bytes that the program has not read. */
bool hooks_leave(int fd);

/* The function to which vfork() jumps. */
extern pid_t (*hooks_vfork)(void);

/* Functions that the headers declare only for programs compiled with _FORTIFY_SOURCE. */
ssize_t __read_chk(int fd, void *buffer, size_t bytes, size_t room);
ssize_t __recv_chk(int fd, void *buffer, size_t bytes, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *buffer, size_t bytes, size_t room, int flags,
	struct sockaddr *address, socklen_t *length);
int __poll_chk(struct pollfd *fds, nfds_t count, int timeout_ms, size_t room);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
	const sigset_t *mask, size_t room);
int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments);
int __dprintf_chk(int fd, int flag, const char *format, ...);
int __sigaction(int number, const struct sigaction *action, struct sigaction *old);
sighandler_t bsd_signal(int number, sighandler_t new);
int fcntl64(int fd, int command, ...);
