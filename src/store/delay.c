// SPDX-License-Identifier: Apache-2.0
/*
 * The delay filter: chosen parts wait before they go to the store below. Times of all rules that
 * match a part add up.
 */
#include "store/filter.h"

static void waited_done(struct ring_op *op, int result)
{
	struct store_part *part = container_of(op, struct store_part, io);

	GMB_UNUSED(result); /* nobody cancels it */
	filter_pass(part->queue, part);
}

static void delay_submit(struct store_queue *queue, struct store_part *part)
{
	struct filter_store *store = filter_store_of(queue);
	uint64_t delay_ns = 0;

	for (uint32_t i = 0; i < store->rule_count; i++) {
		if (filter_matches(&store->rules[i], part)) {
			delay_ns += store->rules[i].delay_ns;
		}
	}
	if (delay_ns == 0) {
		filter_pass(queue, part);
		return;
	}
	ring_timer(queue->ring, &part->io, delay_ns, waited_done);
}

static const struct store_ops delay_ops = {
	.name = "delay",
	.close = filter_close,
	.queue_create = filter_queue_create,
	.queue_destroy = filter_queue_destroy,
	.submit = delay_submit,
	.size = filter_size,
};

int delay_store_open(struct store *inner, const struct store_rule *rules, uint32_t rule_count,
	struct store **store_out, struct error *error)
{
	return filter_open(inner, &delay_ops, rules, rule_count, store_out, error);
}
