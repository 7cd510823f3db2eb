// SPDX-License-Identifier: Apache-2.0
/*
 * The marker source of progress (marker.c), or its absence (marker_absent.c) in a build without it.
 *
 * Threading: marker_store_open() as store_open(). Ownership: it takes the inner store, also on
 * failure. Errors: -ENOMEM; -ENOTSUP in a build without it.
 */
#pragma once

#include "store/store.h"

enum {
	MARKER_CHUNK_BYTES = 4096, /* one marker at the end of each */
};
/* Between two looks while reads are in flight. */
#define MARKER_LOOK_NS UINT64_C(50000)

/* inner: a store that passed file_check_marker(); nothing of that is checked here. */
GMB_MUST_CHECK int marker_store_open(
	struct store *inner, const char *path, struct store **store_out, struct error *error);
