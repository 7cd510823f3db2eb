// SPDX-License-Identifier: Apache-2.0
/*
 * Checks that only root and the user of this process can change a file. A privileged process must
 * check this before it trusts the contents of a file.
 *
 * Threading: pure functions of the file system. Ownership: none. Errors: -EPERM with an error
 * message that names the file or folder that other users can change; another negative errno, such
 * as -ENOENT, if the path cannot be resolved.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"

/*
 * Checks the file, each folder above it and each symbolic link on the way. Each must be owned by
 * root or this user, and not be writable by others. Entries of a sticky folder such as /tmp are
 * safe from users other than their owner. The user's own group can have write permission, because
 * groups with one member are common; root's group may not.
 */
GMB_MUST_CHECK int trust_path(const char *path, struct error *error);
