// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a program under test (LD_PRELOAD): sockets have no option SO_PASSRIGHTS, as before
 * Linux 6.16, so what the program does there is tested with any kernel.
 *
 * Threading: any. Errors: as the kernel's.
 */
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
#define EXPORTED __attribute__((visibility("default")))

EXPORTED int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
	if (level == SOL_SOCKET && name == SO_PASSRIGHTS) {
		errno = ENOPROTOOPT;
		return -1;
	}
	return (int)syscall(SYS_setsockopt, fd, level, name, value, bytes);
}

EXPORTED int getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
	if (level == SOL_SOCKET && name == SO_PASSRIGHTS) {
		errno = ENOPROTOOPT;
		return -1;
	}
	return (int)syscall(SYS_getsockopt, fd, level, name, value, bytes);
}
