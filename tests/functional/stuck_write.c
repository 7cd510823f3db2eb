// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a program under test (LD_PRELOAD): a disk that hangs. Whoever writes to a file at
 * the offset STUCK_OFFSET never comes back, after a byte to the descriptor STUCK_FD has told of it.
 *
 * Threading: any. Errors: without the two variables nothing hangs, and the test notices.
 */
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
	const char *stuck_offset = getenv("STUCK_OFFSET");
	const char *stuck_fd = getenv("STUCK_FD");
	struct iovec part = { .iov_len = bytes };

	if (stuck_offset != NULL && stuck_fd != NULL && offset == strtoll(stuck_offset, NULL, 10) &&
		write((int)strtol(stuck_fd, NULL, 10), "", 1) == 1) {
		for (;;) {
			pause();
		}
	}
	part.iov_base = (void *)(size_t)data;
	return pwritev(fd, &part, 1, offset);
}
