// SPDX-License-Identifier: Apache-2.0
/*
 * The marker source of progress: a filter that is put in place by progress=marker. A program whose
 * main() does not register it has no such source.
 *
 * Threading, ownership and errors: see store/kind.h; -ENOTSUP for all but raw disks.
 */
#pragma once

#include "store/kind.h"

enum {
	MARKER_CHUNK_BYTES = 4096, /* one marker at the end of each */
};
/* Between two looks while reads are in flight. */
#define MARKER_LOOK_NS UINT64_C(50000)

extern const struct store_kind marker_store_kind;
/* For tests: does not look whether the store below is a disk it can work with. */
extern const struct store_kind marker_unchecked_kind;
