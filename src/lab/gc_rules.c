// SPDX-License-Identifier: Apache-2.0
#include "lab/gc_rules.h"

static const struct gc_rule paper = { .name = "paper", .knows_cache = true, .cold_percent = 30 };
static const struct gc_rule plain = { .name = "plain", .cost_benefit = true, .cold_percent = 80 };
static const struct gc_rule greedy = { .name = "greedy", .cold_percent = 80 };

const struct gc_rule *const gc_rules[GC_POLICY_COUNT] = {
	[GC_AUTO] = &gc_rule_auto,
	[GC_PAPER] = &paper,
	[GC_PLAIN] = &plain,
	[GC_GREEDY] = &greedy,
};
