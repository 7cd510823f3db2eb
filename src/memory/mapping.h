// SPDX-License-Identifier: Apache-2.0
/*
 * Mappings of memory that another process shares: a memfd, or a file on tmpfs or hugetlbfs. The
 * other process can truncate the file or use up the memory of its file system, and an access of
 * this process then causes SIGBUS. A signal handler replaces such a mapping with zeroed memory of
 * this process and marks it as broken, so that the access continues. System calls on a truncated
 * mapping fail with EFAULT and do not mark it.
 *
 * Threading: mapping_create() and mapping_destroy() from any thread; a mapping is used by any
 * number of threads. SIGBUS must not be blocked in threads that access mappings. Ownership: the
 * caller owns the mapping and the descriptor, which can be closed after mapping_create(). Errors: a
 * negative errno.
 */
#pragma once

#include "base/compiler.h"

/* Limits of the whole process. A sparse file costs its owner nothing, but uses up addresses: a
 * process has 128 TiB on x86-64. */
enum { MAPPINGS_MAX = 4096 };
#define MAPPINGS_BYTES_MAX (UINT64_C(1) << 46)

struct mapping {
	uint8_t *base; /* NULL: no mapping */
	uint64_t bytes;
	/* Private members. */
	uint8_t *start; /* page-aligned */
	uint64_t start_bytes;
	uint32_t slot;
};

/*
 * Maps bytes of a file from offset on, which need not be aligned. Never blocks on the file. Errors:
 * - -EPERM: the file is not a memfd and not on tmpfs or hugetlbfs. Others are rejected, because
 *   the file system (FUSE) could block each access.
 * - -ERANGE: the range extends beyond the end of the file, or is empty.
 * - -ENOSPC: the process would have more than MAPPINGS_MAX mappings, or MAPPINGS_BYTES_MAX.
 * - -ENOMEM, and other errors of mmap(2).
 */
GMB_MUST_CHECK int mapping_create(
	int fd, uint64_t offset, uint64_t bytes, struct mapping *mapping_out);
/* Unmaps the memory, in a worker thread if that can take long. No thread may use it any more. No-op
 * without a mapping. */
void mapping_destroy(struct mapping *mapping);
/* Returns the number of mappings of the process. Another thread can change it at any time. */
uint32_t mapping_count(void);
/* Returns whether an access has failed, so that the contents are not the other process's. */
bool mapping_is_broken(const struct mapping *mapping);
