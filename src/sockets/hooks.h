// SPDX-License-Identifier: Apache-2.0
/*
 * The names of the C library that libclan-sockets.so defines; see sockets.h.
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

/* connect() succeeded, or is under way. */
void hooks_connected(int fd, const struct sockaddr *address, socklen_t length);
/* For who moves bytes without a call that we see: leaves the connection to the kernel for good.
 * False: it cannot (yet), since the program has not read what is in the ring. */
bool hooks_leave(int fd);

/* What vfork() is. */
extern pid_t (*hooks_vfork)(void);

/* What the headers declare only for programs that are compiled with checks. */
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
