// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a program under test (LD_PRELOAD): a monotonic clock that a test can move forward.
 * The first eight bytes of the file LATE_CLOCK are the nanoseconds that it is ahead.
 *
 * Threading: any. Errors: without the file the clock is the real one, and the test notices.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static const _Atomic uint64_t *ahead_ns;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("LATE_CLOCK");
	int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *page =
		fd >= 0 ? mmap(NULL, sizeof(*ahead_ns), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

	if (page != MAP_FAILED) {
		ahead_ns = page;
	}
}

EXPORTED int clock_gettime(clockid_t clock, struct timespec *now)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, now);

	if (rc == 0 && clock == CLOCK_MONOTONIC && ahead_ns != NULL) {
		uint64_t ns = (uint64_t)now->tv_nsec + *ahead_ns;

		now->tv_sec += (time_t)(ns / 1000000000);
		now->tv_nsec = (long)(ns % 1000000000);
	}
	return rc;
}
