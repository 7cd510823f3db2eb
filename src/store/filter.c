// SPDX-License-Identifier: Apache-2.0
#include "store/filter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int filter_open(struct store *inner, const struct store_ops *ops, const struct store_rule *rules,
	uint32_t rule_count, struct store **store_out, struct error *error)
{
	struct filter_store *store = calloc(1, sizeof(*store));

	GMB_ASSERT(rule_count <= STORE_RULES_MAX);
	if (store == NULL) {
		store_close(inner);
		return error_set(error, -ENOMEM, "not enough memory for fault and delay rules");
	}
	store->base.ops = ops;
	store->base.info = inner->info;
	store->inner = inner;
	store->rule_count = rule_count;
	memcpy(store->rules, rules, rule_count * sizeof(*rules));
	*store_out = &store->base;
	return 0;
}

void filter_close(struct store *base)
{
	struct filter_store *store = container_of(base, struct filter_store, base);

	store_close(store->inner);
	free(store);
}

int filter_queue_create(
	struct store *base, struct ring *ring, struct store_queue **queue_out, struct error *error)
{
	struct filter_store *store = container_of(base, struct filter_store, base);
	struct filter_queue *queue = calloc(1, sizeof(*queue));
	int result;

	if (queue == NULL) {
		return error_set(error, -ENOMEM, "not enough memory for a queue");
	}
	result = store_queue_create(store->inner, ring, &queue->inner, error);
	if (result < 0) {
		free(queue);
		return result;
	}
	*queue_out = &queue->base;
	return 0;
}

void filter_queue_destroy(struct store_queue *base)
{
	struct filter_queue *queue = container_of(base, struct filter_queue, base);

	store_queue_destroy(queue->inner);
	free(queue);
}

uint64_t filter_size(struct store *base)
{
	return store_size(container_of(base, struct filter_store, base)->inner);
}

bool filter_matches(const struct store_rule *rule, const struct store_part *part)
{
	uint32_t does = BIT(part->op);

	if ((part->flags & STORE_FUA) != 0) {
		does |= BIT(STORE_FLUSH); /* a part that must be durable flushes, too */
	}
	if ((rule->ops & does) == 0) {
		return false;
	}
	if (rule->range_length == 0) {
		return true;
	}
	/* Neither sum overflows: the wrapper and the parser saw to it. A flush touches no range. */
	return part->length > 0 && part->offset < rule->range_offset + rule->range_length &&
	       rule->range_offset < part->offset + part->length;
}

static void passed_done(struct store_part *part, int result)
{
	store_finish(part, result);
}

void filter_pass(struct store_queue *queue, struct store_part *part)
{
	store_forward(
		queue, container_of(queue, struct filter_queue, base)->inner, part, passed_done);
}
