// SPDX-License-Identifier: Apache-2.0
/*
 * The delay filter: parts that match a rule are held back before they are passed to the store
 * below. If several rules match, their times are added.
 */
#include <errno.h>
#include <string.h>

#include "store/kind.h"
#include "store/parse.h"

struct delay_store {
	struct store base;
	struct store_rules config;
};

struct delay_queue {
	struct store_queue base;
	uint64_t delayed; /* counter: delayed parts */
};

static const struct field rule_settings[] = {
	STORE_RULE_OP,
	{ "time", "TIME", .type = FIELD_TIME, .flags = FIELD_PLACE, .max = STORE_TIME_NS_MAX,
		FIELD_IN(struct store_rule, delay_ns) },
	STORE_RULE_RANGE,
};

int store_delay_parse(const char *text, struct store_rule *rule, struct error *error)
{
	return store_rule_parse(rule_settings, ARRAY_COUNT(rule_settings), text, rule, error);
}

static int set_delay(void *config, const char *value, struct error *error)
{
	struct store_rules *rules = config;
	int result;

	if (rules->count == STORE_RULES_MAX) {
		return error_set(
			error, -EINVAL, "an export can have at most %d delays", STORE_RULES_MAX);
	}
	result = store_delay_parse(value, &rules->rules[rules->count], error);
	rules->count += result == 0;
	return result;
}

static const struct field options[] = {
	{ "delay", "OP:TIME[:range=OFF+LEN]",
		"delay requests, for tests; OP is read, write, flush, trim, zero, cache, extents "
		"or any; may be repeated",
		"read:10ms", .flags = FIELD_REPEATS, .set = set_delay,
		FIELD_AT(struct store_rules, rules, count) },
};

static void waited_done(struct ring_op *op, int result)
{
	GMB_UNUSED(result); /* the result is always 0, because the timer is never cancelled */
	store_forward(container_of(op, struct store_part, io));
}

static void delay_submit(struct store_queue *queue, struct store_part *part)
{
	struct delay_store *store = container_of(queue->store, struct delay_store, base);
	uint64_t delay_ns = 0;

	for (uint32_t i = 0; i < store->config.count; i++) {
		if (store_rule_matches(&store->config.rules[i], part)) {
			delay_ns += store->config.rules[i].delay_ns;
		}
	}
	if (delay_ns == 0) {
		store_forward(part);
		return;
	}
	container_of(queue, struct delay_queue, base)->delayed++;
	ring_timer(queue->ring, &part->io, delay_ns, waited_done);
}

static int delay_open(struct store *base, const struct store_options *store_options,
	const void *config, struct error *error)
{
	struct delay_store *store = container_of(base, struct delay_store, base);

	memcpy(&store->config, config, sizeof(store->config));
	return 0;
}

static const struct counter counter_list[] = {
	STORE_COUNTER(struct delay_queue, delayed, ITEMS, "Requests delayed by a delay= rule"),
};

static const struct counter_table counters = { "delay", "export", "store_delay_", counter_list,
	ARRAY_COUNT(counter_list) };

static const struct store_ops delay_ops = {
	.name = "delay",
	.queue_bytes = sizeof(struct delay_queue),
	.submit = delay_submit,
	.counters = &counters,
	.handover = store_handover_nothing,
};

const struct store_kind delay_store_kind = {
	.name = "delay",
	.is_filter = true,
	.options = options,
	.option_count = ARRAY_COUNT(options),
	.config_bytes = sizeof(struct store_rules),
	.store_bytes = sizeof(struct delay_store),
	.ops = &delay_ops,
	.open = delay_open,
};
