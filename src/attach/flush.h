// SPDX-License-Identifier: Apache-2.0
/*
 * Flushes a disk before it is detached, in a separate process with a thread that waits for it. An
 * fsync() that waits for a server can be neither cancelled nor limited in time. In another process
 * it does not keep the daemon from serving the disk.
 *
 * Threading: one thread calls these functions. Ownership: disk_flush_begin() allocates;
 * disk_flush_end() and disk_flush_leave() release. Errors: negative errno with an error message.
 */
#pragma once

#include "attach/attach.h"

struct disk_flush;

/* Starts to flush the disk at path, unless check() reports that it is in use. check may be NULL. */
GMB_MUST_CHECK int disk_flush_begin(const char *path,
	int (*check)(const char *path, struct error *error), struct disk_flush **flush_out,
	struct error *error);

/* Returns a descriptor that is readable when the flush has ended. */
int disk_flush_fd(const struct disk_flush *flush);

/* Waits for the end of the flush, and releases it. -EBUSY: the disk is in use and was not flushed.
 * After any other error written data may be lost; the error message assumes that the disk is then
 * detached. */
GMB_MUST_CHECK int disk_flush_end(struct disk_flush *flush, struct error *error);

/* Releases the flush without waiting for it. NULL is a no-op. */
void disk_flush_leave(struct disk_flush *flush);
