// SPDX-License-Identifier: Apache-2.0
/*
 * What the fault and delay filters have in common: they wrap a store, look like it, match parts
 * against a list of rules and hand them on.
 *
 * Threading: the counters are shared by all reactors, so "the third write" is the third one of the
 * store. Ownership: filter_open() takes the inner store, also on failure. Errors: -ENOMEM.
 */
#pragma once

#include <stdatomic.h>

#include "store/store_private.h"

struct filter_store {
	struct store base;
	struct store *inner;
	uint32_t rule_count;
	struct store_rule rules[STORE_RULES_MAX];
	_Atomic uint64_t matches[STORE_RULES_MAX];
};

struct filter_queue {
	struct store_queue base;
	struct store_queue *inner;
};

GMB_MUST_CHECK int filter_open(struct store *inner, const struct store_ops *ops,
	const struct store_rule *rules, uint32_t rule_count, struct store **store_out,
	struct error *error);

/* For the filters' tables. */
void filter_close(struct store *store);
int filter_queue_create(struct store *store, struct ring *ring, struct store_queue **queue_out,
	struct error *error);
void filter_queue_destroy(struct store_queue *queue);
uint64_t filter_size(struct store *store);

static inline struct filter_store *filter_store_of(struct store_queue *queue)
{
	return container_of(queue->store, struct filter_store, base);
}

/* True when the rule is for this part, by operation and range. */
bool filter_matches(const struct store_rule *rule, const struct store_part *part);

/* Hands the part to the inner store and finishes it with what comes back. */
void filter_pass(struct store_queue *queue, struct store_part *part);
