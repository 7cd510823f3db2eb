// SPDX-License-Identifier: Apache-2.0
/*
 * A flush of a disk before it is detached, in a process of its own, with a thread that waits for
 * it: an fsync() that waits for a server can be neither cancelled nor limited, and the disk stays
 * usable meanwhile.
 *
 * Threading: one thread calls these. Ownership: disk_flush_begin() gives; disk_flush_end() and
 * disk_flush_leave() take. Errors: negative errno with a sentence.
 */
#pragma once

#include "attach/attach.h"

struct disk_flush;

/* Begins to flush the disk at path, unless check() finds it in use. check: may be NULL. */
GMB_MUST_CHECK int disk_flush_begin(const char *path,
	int (*check)(const char *path, struct error *error), struct disk_flush **flush_out,
	struct error *error);

/* Polls readable when it is over. */
int disk_flush_fd(const struct disk_flush *flush);

/* Waits until it is over. -EBUSY: the disk is in use, and was not flushed. Any other error: what
 * was written may be lost; the sentence says so of a disk that is detached after it. */
GMB_MUST_CHECK int disk_flush_end(struct disk_flush *flush, struct error *error);

/* Does not wait for it. NULL is a no-op. */
void disk_flush_leave(struct disk_flush *flush);
