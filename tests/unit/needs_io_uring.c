// SPDX-License-Identifier: Apache-2.0
/*
 * Linked into the tests that use rings of the kernel: where it refuses io_uring, as in many
 * containers that build packages, such a test is skipped before it begins, and prints the reason.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "ring/ring.h"

enum { EXIT_SKIP = 77 };

__attribute__((constructor)) static void skip_without_io_uring(void)
{
	const struct ring_options options = { .entries = 8, .files_max = 8, .buffers_max = 8 };
	struct error error;
	struct ring *ring;
	int result = ring_create(&options, &ring, &error);

	if (result == 0) {
		ring_destroy(ring);
	} else if (result == -ENOSYS || result == -EPERM || result == -EACCES) {
		fprintf(stderr, "skip: %s\n", error.text);
		_exit(EXIT_SKIP);
	}
}
