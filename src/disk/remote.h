// SPDX-License-Identifier: Apache-2.0
/*
 * Whether a file's system is somebody else: another machine, or a program of a user. There asking
 * for the size, or a page of the cache, may need an answer from outside, and how much of what the
 * kernel promises for files of its own is kept differs.
 *
 * Threading: any thread; the call may block. Ownership: none. Errors: what cannot be asked is
 * remote.
 */
#pragma once

#include "base/compiler.h"

bool disk_is_remote(int fd);
