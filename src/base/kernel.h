// SPDX-License-Identifier: Apache-2.0
/* The version of the running kernel. */
#pragma once

#include "base/compiler.h"

/* Returns whether the kernel is Linux major.minor or later; false if its version is unknown. Any
 * thread. */
bool kernel_is_at_least(uint32_t major, uint32_t minor);
