// SPDX-License-Identifier: Apache-2.0
/*
 * Who uses a disk: mounted, swap, part of another block device, or open in a process. Partitions
 * count.
 *
 * Threading: any thread, no state. Ownership: borrows its arguments. Errors: -EBUSY with a sentence
 * that names the first user found; what cannot be looked at is not a user.
 */
#pragma once

#include "base/error.h"

/* name is the kernel's: "ublkb0". Our own process does not count. */
GMB_MUST_CHECK int usage_check_disk(const char *name, struct error *error);

/* Only processes that have the file at path open, and loop devices on it: for the message when an
 * unmount was refused. Always -EBUSY. */
GMB_MUST_CHECK int usage_explain_file(const char *path, struct error *error);
