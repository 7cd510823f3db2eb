// SPDX-License-Identifier: Apache-2.0
/*
 * The readahead of an attached disk: how much the kernel reads in advance for a program that reads
 * sequentially through the page cache. The kernel's default of 128 KiB is a fraction of what a
 * link with a round trip of a millisecond can carry.
 *
 * READAHEAD_AUTO: a thread with its own connection measures the round trip and the rate of the
 * server, and sets twice their product, within READAHEAD_MIN_BYTES and READAHEAD_MAX_BYTES.
 *
 * Threading: one thread calls these functions. Ownership: readahead_start() allocates,
 * readahead_end() releases; the options must live until the process ends. Errors: only logged,
 * because the disk works with any readahead.
 */
#pragma once

#include "attach/attach.h"

enum {
	READAHEAD_MIN_BYTES = 512 << 10,
	READAHEAD_MAX_BYTES = 8 << 20,
};

struct readahead;

/* Sets the readahead of the options, or starts to measure it. Returns NULL if this process cannot
 * set a readahead for the device. */
struct readahead *readahead_start(const struct attach_options *options, struct device *device);

/* Called before and after the size of the disk changes, because some drivers then reset the
 * readahead. Restores the value that was set before, also if an administrator has set it. NULL is a
 * no-op. */
void readahead_resize_begin(struct readahead *readahead);
void readahead_resize_end(struct readahead *readahead);

/* Ends a measurement in progress. NULL is a no-op. */
void readahead_end(struct readahead *readahead);
