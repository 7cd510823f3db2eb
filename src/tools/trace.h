// SPDX-License-Identifier: Apache-2.0
/*
 * "gmblock trace": reads from a disk while a second thread watches the memory that is read into,
 * and tells when each piece of the data got there.
 *
 *   buffer │ chunk 0        M│ chunk 1        M│ chunk 2        M│   M: marker, its last 8 bytes
 *            ▲ the disk writes, in its own order    ▲ trace_run()'s thread looks from the end on
 *
 * Each chunk ends in a marker that is written before the read and is gone once the disk's data are
 * there. What is watched is shown, never used: a disk may write a place twice, or a chunk's last
 * bytes first.
 *
 * Threading: trace_run() makes and joins its threads; everything else is the main thread's.
 * Ownership: as said. Errors: 0, or a negative errno with a sentence.
 */
#pragma once

#include <stdio.h>

#include "base/error.h"
#include "disk/disk.h"
#include "tools/trace_arrival.h"

/* The limits of the options. */
enum {
	TRACE_SIZES_MAX = 8,
	TRACE_COUNT_MAX = 1000,
	TRACE_BYTES_MAX = 64 << 20,
	TRACE_UNIT_BYTES = 512, /* what all sizes are multiples of */
	TRACE_PARTS_MAX = 1024,
	TRACE_CHUNKS_MAX = 4 << 20, /* of all reads together */
};

/* What to do. */
struct trace_work {
	const char *path;
	uint32_t sizes[TRACE_SIZES_MAX];
	uint32_t size_count;
	uint32_t count; /* reads of each size */
	uint32_t chunk_bytes;
	uint32_t part_bytes; /* 0: each read in one piece */
	uint64_t offset;
	uint64_t marker;
	bool random;
	bool together; /* all parts in one system call */
	bool cached;   /* through the page cache */
};

/* All reads of one size. */
struct trace_group {
	uint32_t bytes;
	uint32_t count; /* at least 1 */
	struct trace_read *reads;
	struct trace_analysis *analyses;
	uint32_t typical; /* the read with the median time: the one to draw */
};

struct trace_result {
	struct disk_info disk;
	struct trace_group groups[TRACE_SIZES_MAX];
	uint32_t group_count;
	uint32_t read_count; /* of all groups */
	bool interrupted;    /* SIGINT or SIGTERM ended it before its last read */
};

/*
 * Does the reads. Never writes to the disk. Errors: those of opening and reading; -EOPNOTSUPP when
 * the file cannot be read directly, -EINVAL when a size or place is no multiple of the disk's
 * block, -ERANGE when the disk is too small. *result can be freed in any case.
 *
 * SIGINT and SIGTERM end it after the read under way, with a result (-EINTR: before the first
 * read); a second one ends the program. To be called by one thread at a time.
 */
GMB_MUST_CHECK int trace_run(
	const struct trace_work *work, struct trace_result *result, struct error *error);
void trace_result_fini(struct trace_result *result);

/* Prints the result. */
GMB_MUST_CHECK int trace_show_text(
	const struct trace_work *work, const struct trace_result *result, struct error *error);
GMB_MUST_CHECK int trace_show_json(
	const struct trace_work *work, const struct trace_result *result, struct error *error);

/* "1M in parts of 64K, one by one" */
enum { TRACE_TITLE_BYTES = 120 };
const char *trace_title(char out[TRACE_TITLE_BYTES], const struct trace_work *work, uint32_t bytes);

/* Draws a read in at most 80 columns: time to the right, offset upwards. */
void trace_chart(FILE *out, const struct trace_read *read);
