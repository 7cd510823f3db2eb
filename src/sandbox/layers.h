// SPDX-License-Identifier: Apache-2.0
/*
 * The layers of a sandbox as the kernel has them. Each returns 0 or a negative errno, and binds
 * the calling thread and its later children; no_new_privs is set before.
 */
#pragma once

#include "sandbox/sandbox.h"

/* Version of the interface, 0: not in this kernel, or switched off. */
uint32_t landlock_version(void);
GMB_MUST_CHECK int landlock_enter(const struct sandbox *sandbox);

bool seccomp_works(void);
GMB_MUST_CHECK int seccomp_enter(const struct sandbox *sandbox);
/* After seccomp_enter(), for all threads. */
GMB_MUST_CHECK int seccomp_seal(bool connects, bool loads_code);

/* Gives up what root can beyond serving; nothing for others. */
GMB_MUST_CHECK int capabilities_drop(const struct sandbox *sandbox);
