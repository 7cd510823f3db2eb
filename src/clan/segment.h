// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that two processes share: memfds, made by one and mapped by both.
 *
 * Threading: any; nothing here has state. Ownership: the caller's. Descriptors passed in are
 * borrowed. Errors: negative errno.
 */
#pragma once

#include <sys/types.h>

#include "base/compiler.h"

/* The kernel's seals of a file (F_SEAL_...). */
enum {
	SEGMENT_SEALED_SIZE = 0x0002 | 0x0004,			 /* it neither shrinks nor grows */
	SEGMENT_SEALED_READ_ONLY = SEGMENT_SEALED_SIZE | 0x0010, /* and nobody new writes */
	SEGMENT_SEALED_WRITER = 0x0010 | 0x0001, /* nobody new writes, and nothing is unsealed */
};

/* The size of a page. */
size_t segment_page_bytes(void);

/* A memfd of that size that may be sealed. */
GMB_MUST_CHECK int segment_memfd(const char *name, size_t bytes);

/* One that only this process can write from now on: maps it, zeroed and populated, seals
 * everything, and sets *fd_out for passing it on. The mapping is not inherited by fork(). */
GMB_MUST_CHECK int segment_create(const char *name, size_t bytes, uint8_t **base_out, int *fd_out);

/* What a stranger's descriptor is: 0 and its identity, or -EPERM (not a memfd with these seals,
 * F_SEAL_..., or on hugetlbfs). Never blocks. */
struct segment_identity {
	dev_t device;
	ino_t inode;
	uint64_t bytes;
};
GMB_MUST_CHECK int segment_check(int fd, int seals, struct segment_identity *identity);

/* Maps a range of it, populated, not inherited by fork(). offset and bytes are multiples of the
 * page size. */
GMB_MUST_CHECK int segment_map(
	int fd, uint64_t offset, size_t bytes, bool writable, uint8_t **base_out);
