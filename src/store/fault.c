// SPDX-License-Identifier: Apache-2.0
/*
 * The fault filter: chosen parts fail with a chosen error and never reach the store below. The
 * first rule that strikes decides; every rule counts every part that matches it.
 */
#include "store/filter.h"

/* 53 random bits make a double in [0, 1) without bias. */
static double random_unit(struct ring *ring)
{
	return (double)(ring_random(ring) >> 11) * 0x1.0p-53;
}

static bool strikes(struct filter_store *store, uint32_t idx, struct ring *ring)
{
	const struct store_rule *rule = &store->rules[idx];
	/* Relaxed: only the number matters, not what else the reactors do. */
	uint64_t count =
		atomic_fetch_add_explicit(&store->matches[idx], 1, memory_order_relaxed) + 1;

	if (rule->nth != 0) {
		return count == rule->nth;
	}
	if (rule->every != 0) {
		return count % rule->every == 0;
	}
	return rule->probability >= 1.0 || random_unit(ring) < rule->probability;
}

static void fault_submit(struct store_queue *queue, struct store_part *part)
{
	struct filter_store *store = filter_store_of(queue);
	int error = 0;

	for (uint32_t i = 0; i < store->rule_count; i++) {
		if (filter_matches(&store->rules[i], part) && strikes(store, i, queue->ring) &&
			error == 0) {
			error = store->rules[i].error;
		}
	}
	if (error != 0) {
		store_finish_later(part, error);
		return;
	}
	filter_pass(queue, part);
}

static const struct store_ops fault_ops = {
	.name = "fault",
	.close = filter_close,
	.queue_create = filter_queue_create,
	.queue_destroy = filter_queue_destroy,
	.submit = fault_submit,
	.size = filter_size,
};

int fault_store_open(struct store *inner, const struct store_rule *rules, uint32_t rule_count,
	struct store **store_out, struct error *error)
{
	return filter_open(inner, &fault_ops, rules, rule_count, store_out, error);
}
