// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a program under test (LD_PRELOAD): a disk that hangs. Whoever writes to a file at
 * the offset STUCK_OFFSET never comes back, after a byte to the descriptor STUCK_FD has told of it.
 * With STUCK_UNTIL_FD, it comes back when there is something to read from that, or its end.
 * With STUCK_POLL_FD, a poll() that has a limit does not wait for it: the limit is written there, a
 * line in milliseconds, and has passed.
 *
 * Threading: any. Errors: without the variables nothing hangs, and the test notices.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
	const char *stuck_offset = getenv("STUCK_OFFSET");
	const char *stuck_fd = getenv("STUCK_FD");
	const char *until_fd = getenv("STUCK_UNTIL_FD");
	struct iovec part = { .iov_len = bytes };
	char byte;

	if (stuck_offset != NULL && stuck_fd != NULL && offset == strtoll(stuck_offset, NULL, 10) &&
		write((int)strtol(stuck_fd, NULL, 10), "", 1) == 1) {
		while (until_fd == NULL || read((int)strtol(until_fd, NULL, 10), &byte, 1) < 0) {
			pause();
		}
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
