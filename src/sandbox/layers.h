// SPDX-License-Identifier: Apache-2.0
/* The layers of a sandbox, one for each mechanism of the kernel. Each function returns 0 or a
 * negative errno, and applies to the calling thread and the threads it starts later. The caller has
 * set no_new_privs. */
#pragma once

#include "sandbox/sandbox.h"

/* Returns the version of Landlock's interface; 0: the kernel does not have Landlock, or it is
 * off. */
uint32_t landlock_version(void);
GMB_MUST_CHECK int landlock_enter(const struct sandbox *sandbox);

bool seccomp_works(void);
GMB_MUST_CHECK int seccomp_enter(const struct sandbox *sandbox);
/* Called after seccomp_enter(); applies to all threads. Uses only the flags of the sandbox. */
GMB_MUST_CHECK int seccomp_seal(const struct sandbox *sandbox);

/* Drops capabilities of root that serving does not need. No-op for other users. */
GMB_MUST_CHECK int capabilities_drop(const struct sandbox *sandbox);
