// SPDX-License-Identifier: Apache-2.0
/* The functions of fuse_device.c in a build without FUSE. */
#include <errno.h>

#include "attach/attach.h"

int fuse_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error)
{
	*device_out = NULL;
	return error_set(error, -EOPNOTSUPP, "--fuse: this program was built without FUSE");
}

int fuse_device_remove(const char *path, bool force, struct error *error)
{
	return error_set(error, -EOPNOTSUPP, "%s: this program was built without FUSE", path);
}
