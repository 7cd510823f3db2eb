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

static int parse_delay(const char *text, struct store_rule *rule, struct error *error)
{
	const char *rest = text;
	struct parse_field field;
	int result = parse_rule_op(parse_field_next(&rest), &rule->ops, error);

	if (result < 0) {
		return result;
	}
	if (rest == NULL) {
		return error_set(error, -EINVAL,
			"the time is missing: expected OP:TIME, for example read:10ms");
	}
	field = parse_field_next(&rest);
	if (!parse_time(field.text, field.len, &rule->delay_ns) ||
		rule->delay_ns > PARSE_TIME_NS_MAX) {
		return error_set(error, -EINVAL,
			"'%.*s' is not a time: expected a whole number with a unit, at most one "
			"hour, for example 500us, 10ms or 1s",
			(int)field.len, field.text);
	}
	while (rest != NULL && result == 0) {
		struct parse_field key = { 0 };
		struct parse_field value;

		field = parse_field_next(&rest);
		if (parse_field_split(field, &key, &value) && parse_field_is(key, "range")) {
			result = parse_rule_range(value, rule, error);
		} else {
			result = error_set(error, -EINVAL,
				"unknown setting '%.*s': expected range=OFFSET+LENGTH",
				(int)field.len, field.text);
		}
	}
	return result;
}

int store_delay_parse(const char *text, struct store_rule *rule, struct error *error)
{
	struct store_rule parsed = { .probability = 1.0 };
	int result = parse_delay(text, &parsed, error);

	if (result < 0) {
		return parse_refused(text, result, error);
	}
	*rule = parsed;
	return 0;
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

	GMB_UNUSED(store_options);
	GMB_UNUSED(error);
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
