// SPDX-License-Identifier: Apache-2.0
/* In place of marker.c in a build without the marker source (-Dmarker=false). */
#include <errno.h>

#include "store/marker.h"

bool store_has_markers(void)
{
	return false;
}

int marker_store_open(
	struct store *inner, const char *path, struct store **store_out, struct error *error)
{
	GMB_UNUSED(store_out);
	store_close(inner);
	return error_set(error, -ENOTSUP,
		"progress=marker does not work with '%s': this build has no marker source", path);
}
