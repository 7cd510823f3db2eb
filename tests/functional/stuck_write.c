// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a program under test (LD_PRELOAD): a disk that hangs. Whoever writes to a file at
 * the offset STUCK_OFFSET never comes back, after a byte to the descriptor STUCK_FD has told of it.
 * With STUCK_UNTIL_FD, it comes back when there is something to read from that, or its end. Until
 * then, limits of waits for the thread that hangs are over at once: it will not come.
 * With STUCK_POLL_FD, a poll() that has a limit does not wait for it: the limit is written there, a
 * line in milliseconds, and has passed.
 * With STUCK_OPEN, whoever opens this file tells STUCK_FD of it, and waits for a byte from
 * STUCK_UNTIL_FD. Whoever waits for the end of that thread tells STUCK_FD of it, and has no limit;
 * the thread must then wait for no other one.
 *
 * Threading: any. Errors: without the variables nothing hangs, and the test notices.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define SOON_NS	 10000000

static _Atomic bool hangs;
static _Atomic bool ends;
static pthread_t opener;

static int fd_of(const char *variable)
{
	const char *text = getenv(variable);

	return text != NULL ? (int)strtol(text, NULL, 10) : -1;
}

EXPORTED ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
	const char *stuck_offset = getenv("STUCK_OFFSET");
	int until_fd = fd_of("STUCK_UNTIL_FD");
	struct iovec part = { .iov_len = bytes };
	char byte;

	if (stuck_offset != NULL && offset == strtoll(stuck_offset, NULL, 10)) {
		hangs = true;
		(void)!write(fd_of("STUCK_FD"), "", 1);
		while (until_fd < 0 || read(until_fd, &byte, 1) < 0) {
			pause();
		}
		hangs = false;
	}
	part.iov_base = (void *)(size_t)data;
	return pwritev(fd, &part, 1, offset);
}

EXPORTED int poll(struct pollfd *fds, nfds_t count, int limit_ms)
{
	const char *poll_fd = getenv("STUCK_POLL_FD");
	struct timespec limit = { .tv_sec = limit_ms / 1000 };
	int ready;

	limit.tv_nsec = (long)(limit_ms % 1000) * 1000000;
	if (poll_fd == NULL || limit_ms <= 0) {
		return ppoll(fds, count, limit_ms < 0 ? NULL : &limit, NULL);
	}
	limit = (struct timespec){ 0 };
	ready = ppoll(fds, count, &limit, NULL);
	if (ready == 0) {
		dprintf((int)strtol(poll_fd, NULL, 10), "%d\n", limit_ms);
	}
	return ready;
}

/* A call to another thread is waited for with this. */
EXPORTED int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *end)
{
	int (*wait)(sem_t * semaphore, clockid_t clock, const struct timespec *end);

	if (!hangs) {
		*(void **)&wait = dlsym(RTLD_NEXT, "sem_clockwait");
		return wait(semaphore, clock, end);
	}
	if (sem_trywait(semaphore) == 0) {
		return 0;
	}
	errno = ETIMEDOUT;
	return -1;
}

/* Answers of several threads are waited for with this. It gives others the lock for a moment. */
EXPORTED int pthread_cond_clockwait(
	pthread_cond_t *changed, pthread_mutex_t *lock, clockid_t clock, const struct timespec *end)
{
	int (*wait)(pthread_cond_t * changed, pthread_mutex_t * lock, clockid_t clock,
		const struct timespec *end);
	struct timespec soon;

	if (ends && pthread_equal(pthread_self(), opener)) {
		abort();
	}
	*(void **)&wait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
	if (!hangs) {
		return wait(changed, lock, clock, end);
	}
	clock_gettime(clock, &soon);
	soon.tv_nsec += SOON_NS;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	return wait(changed, lock, clock, &soon);
}

EXPORTED int open64(const char *path, int flags, ...)
{
	const char *stuck_path = getenv("STUCK_OPEN");
	va_list args;
	mode_t mode;
	char byte;

	va_start(args, flags);
	mode = va_arg(args, mode_t); /* unused without O_CREAT */
	va_end(args);
	if (stuck_path != NULL && strcmp(path, stuck_path) == 0) {
		opener = pthread_self();
		(void)!write(fd_of("STUCK_FD"), "", 1);
		(void)!read(fd_of("STUCK_UNTIL_FD"), &byte, 1);
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

EXPORTED int pthread_timedjoin_np(pthread_t thread, void **result, const struct timespec *end)
{
	int (*join)(pthread_t thread, void **result, const struct timespec *end);

	if (getenv("STUCK_OPEN") != NULL) {
		ends = true;
		(void)!write(fd_of("STUCK_FD"), "", 1);
		return pthread_join(thread, result);
	}
	*(void **)&join = dlsym(RTLD_NEXT, "pthread_timedjoin_np");
	return join(thread, result, end);
}
