// SPDX-License-Identifier: Apache-2.0
/*
 * Garbage collection rules that can be compared with the flash store's own rule, which is the first
 * one here. store/flash/gc_policy.h defines the terms in the scores.
 *
 *   policy   score                                      knows the cache   cold part
 *   auto     (blocks - net) * age / (2 * net)           yes               80 %
 *   paper    -(valid - cold_dirty)                      yes               30 %
 *   plain    (blocks - valid) * age / (2 * valid)       no                80 %
 *   greedy   -valid                                     no                80 %
 *
 * The policy "paper" is the rule of uSendfile's garbage collector (IEEE CLOUD 2019). Threading:
 * constant data.
 */
#pragma once

#include "store/flash/gc_policy.h"

enum gc_policy {
	GC_AUTO,
	GC_PAPER,
	GC_PLAIN,
	GC_GREEDY,
	GC_POLICY_COUNT,
};

extern const struct gc_rule *const gc_rules[GC_POLICY_COUNT];
