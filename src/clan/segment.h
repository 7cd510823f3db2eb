// SPDX-License-Identifier: Apache-2.0
/*
 * Memory shared by two processes: memfds that one process creates and both map. Used for the
 * segments of the shm provider and for regions.
 *
 * Threading: any thread; the functions have no state. Ownership: mappings and new descriptors
 * belong to the caller. Descriptors passed in are borrowed. Errors: negative errno.
 */
#pragma once

#include <sys/types.h>

#include "base/compiler.h"

/* Sets of seals, as the kernel numbers them (F_SEAL_...). */
enum {
	SEGMENT_SEALED_SIZE = 0x0002 | 0x0004, /* the size is fixed */
	/* like SEGMENT_SEALED_SIZE; also no new writable mappings */
	SEGMENT_SEALED_READ_ONLY = SEGMENT_SEALED_SIZE | 0x0010,
	SEGMENT_SEALED_WRITER = 0x0010 | 0x0001, /* no new writable mappings and no further seals */
};

/* Returns the size of a page in bytes. */
size_t segment_page_bytes(void);

/* Returns a memfd of this size that can be sealed, or a negative errno. */
GMB_MUST_CHECK int segment_memfd(const char *name, size_t bytes);

/* Creates a segment that only this process can write: maps it, zeroed and populated, seals it
 * completely, and returns in *fd_out a descriptor to pass to the peer. fork() does not inherit the
 * mapping. */
GMB_MUST_CHECK int segment_create(const char *name, size_t bytes, uint8_t **base_out, int *fd_out);

/* Two descriptors with the same identity refer to the same memfd. */
struct segment_identity {
	dev_t device;
	ino_t inode;
	uint64_t bytes;
};
/* Identifies a descriptor from an untrusted process. Returns 0, or -EPERM if it is not a memfd with
 * these seals (F_SEAL_...) or is on hugetlbfs. Never blocks. */
GMB_MUST_CHECK int segment_check(int fd, int seals, struct segment_identity *identity);

/* Maps a range of a memfd, populated; fork() does not inherit the mapping. offset and bytes are
 * multiples of the page size. */
GMB_MUST_CHECK int segment_map(
	int fd, uint64_t offset, size_t bytes, bool writable, uint8_t **base_out);
