// SPDX-License-Identifier: Apache-2.0
/*
 * Whether a path leads to something that only root and the user of this process can change. What a
 * privileged process does because a file says so must be nobody else's choice.
 *
 * Threading: pure functions of the file system. Ownership: none. Errors: -EPERM with a sentence
 * that names the file or folder that somebody else can change; the errno of a path that leads
 * nowhere.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"

/*
 * Checks the file, each folder above it and each symbolic link on the way: root or this user owns
 * it, and nobody else may write it. Entries of a sticky folder such as /tmp belong to their owners.
 * A user's own group may write, as groups of one person are common; root's may not.
 */
GMB_MUST_CHECK int trust_path(const char *path, struct error *error);
