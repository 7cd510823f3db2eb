// SPDX-License-Identifier: Apache-2.0
/*
 * The functions of the C library that our names replace. They are looked up when the library is
 * loaded, because the loader must not be called in a signal handler. A function that is called
 * before that is looked up at its first call.
 *
 * Threading: any thread. Ownership: none. Errors: as the functions themselves. Calling a function
 * that the C library does not have aborts the program.
 */
#pragma once

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/compiler.h"

void *real_find(const char *name);
void real_find_all(void);

#define REAL_LIST(X)                                                                               \
	X(int, close, (int))                                                                       \
	X(int, close_range, (unsigned int, unsigned int, int))                                     \
	X(int, socket, (int, int, int))                                                            \
	X(int, accept4, (int, struct sockaddr *, socklen_t *, int))                                \
	X(int, accept, (int, struct sockaddr *, socklen_t *))                                      \
	X(int, connect, (int, const struct sockaddr *, socklen_t))                                 \
	X(int, shutdown, (int, int))                                                               \
	X(int, setsockopt, (int, int, int, const void *, socklen_t))                               \
	X(int, dup, (int))                                                                         \
	X(int, dup2, (int, int))                                                                   \
	X(int, dup3, (int, int, int))                                                              \
	X(int, fcntl64, (int, int, ...))                                                           \
	X(int, ioctl, (int, unsigned long, ...))                                                   \
	X(ssize_t, read, (int, void *, size_t))                                                    \
	X(ssize_t, readv, (int, const struct iovec *, int))                                        \
	X(ssize_t, recv, (int, void *, size_t, int))                                               \
	X(ssize_t, recvfrom, (int, void *, size_t, int, struct sockaddr *, socklen_t *))           \
	X(ssize_t, recvmsg, (int, struct msghdr *, int))                                           \
	X(int, recvmmsg, (int, struct mmsghdr *, unsigned int, int, struct timespec *))            \
	X(ssize_t, write, (int, const void *, size_t))                                             \
	X(ssize_t, writev, (int, const struct iovec *, int))                                       \
	X(ssize_t, send, (int, const void *, size_t, int))                                         \
	X(ssize_t, sendto, (int, const void *, size_t, int, const struct sockaddr *, socklen_t))   \
	X(ssize_t, sendmsg, (int, const struct msghdr *, int))                                     \
	X(int, sendmmsg, (int, struct mmsghdr *, unsigned int, int))                               \
	X(ssize_t, sendfile64, (int, int, off_t *, size_t))                                        \
	X(ssize_t, splice, (int, off_t *, int, off_t *, size_t, unsigned int))                     \
	X(int, poll, (struct pollfd *, nfds_t, int))                                               \
	X(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))        \
	X(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *))                      \
	X(int, pselect,                                                                            \
		(int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *))    \
	X(int, epoll_create, (int))                                                                \
	X(int, epoll_create1, (int))                                                               \
	X(int, epoll_ctl, (int, int, int, struct epoll_event *))                                   \
	X(int, epoll_wait, (int, struct epoll_event *, int, int))                                  \
	X(int, epoll_pwait, (int, struct epoll_event *, int, int, const sigset_t *))               \
	X(int, epoll_pwait2,                                                                       \
		(int, struct epoll_event *, int, const struct timespec *, const sigset_t *))       \
	X(int, eventfd, (unsigned int, int))                                                       \
	X(int, timerfd_create, (int, int))                                                         \
	X(int, memfd_create, (const char *, unsigned int))                                         \
	X(int, pipe2, (int *, int))                                                                \
	X(FILE *, fdopen, (int, const char *))                                                     \
	X(pid_t, fork, (void))                                                                     \
	X(pid_t, vfork, (void))                                                                    \
	X(int, execve, (const char *, char *const *, char *const *))                               \
	X(int, execvpe, (const char *, char *const *, char *const *))                              \
	X(int, fexecve, (int, char *const *, char *const *))                                       \
	X(int, execveat, (int, const char *, char *const *, char *const *, int))                   \
	X(int, posix_spawn,                                                                        \
		(pid_t *, const char *, const posix_spawn_file_actions_t *,                        \
			const posix_spawnattr_t *, char *const *, char *const *))                  \
	X(int, posix_spawnp,                                                                       \
		(pid_t *, const char *, const posix_spawn_file_actions_t *,                        \
			const posix_spawnattr_t *, char *const *, char *const *))                  \
	X(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t *, int, int))         \
	X(int, system, (const char *))                                                             \
	X(FILE *, popen, (const char *, const char *))                                             \
	X(int, sigaction, (int, const struct sigaction *, struct sigaction *))                     \
	X(sighandler_t, signal, (int, sighandler_t))                                               \
	X(sighandler_t, __sysv_signal, (int, sighandler_t))                                        \
	X(sighandler_t, sigset, (int, sighandler_t))                                               \
	X(int, siginterrupt, (int, int))

#define REAL_DECLARE(type, name, arguments)                                                        \
	extern type(*real_pointer_##name) arguments;                                               \
	static inline __typeof__(real_pointer_##name) real_get_##name(void)                        \
	{                                                                                          \
		if (unlikely(real_pointer_##name == NULL)) {                                       \
			real_pointer_##name =                                                      \
				(__typeof__(real_pointer_##name))(uintptr_t)real_find(#name);      \
		}                                                                                  \
		return real_pointer_##name;                                                        \
	}
REAL_LIST(REAL_DECLARE)

/* The C library's function with that name. */
#define REAL(name) (real_get_##name())
