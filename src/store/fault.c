// SPDX-License-Identifier: Apache-2.0
/*
 * The fault filter: parts that match a rule fail with the rule's error and never reach the store
 * below. If several rules apply, the first one determines the error, but every rule counts all
 * parts that match it. The counters are shared by all reactors: nth=3 for writes means the third
 * write to the store on any reactor.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/kind.h"
#include "store/parse.h"

enum { ERRNO_MAX = 133, PROBABILITY_TEXT_BYTES = 32 };

struct fault_store {
	struct store base;
	struct store_rules config;
	_Atomic uint64_t matches[STORE_RULES_MAX];
};

struct fault_queue {
	struct store_queue base;
	uint64_t failed; /* counter: failed parts */
};

/* --- options ------------------------------------------------------------------------------- */

static int parse_errno(struct parse_field field, int *code, struct error *error)
{
	for (int number = 1; number <= ERRNO_MAX; number++) {
		const char *name = strerrorname_np(number);

		if (name != NULL && parse_field_is(field, name)) {
			*code = -number;
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"'%.*s' is not an error name: expected for example EIO, ENOSPC or ETIMEDOUT",
		(int)field.len, field.text);
}

/* Parses a number such as "0.25", "1" or ".5": digits and at most one point, greater than 0, at
 * most 1. */
static bool parse_probability(struct parse_field value, double *probability)
{
	char text[PROBABILITY_TEXT_BYTES];
	size_t points = 0;
	size_t digit_count = 0;

	if (value.len >= sizeof(text)) {
		return false;
	}
	for (size_t i = 0; i < value.len; i++) {
		if (value.text[i] == '.') {
			points++;
		} else if (value.text[i] >= '0' && value.text[i] <= '9') {
			digit_count++;
		} else {
			return false;
		}
	}
	if (points > 1 || digit_count == 0) {
		return false;
	}
	memcpy(text, value.text, value.len);
	text[value.len] = '\0';
	*probability = strtod(text, NULL);
	return *probability > 0.0 && *probability <= 1.0;
}

static int parse_choice(struct parse_field key, struct parse_field value, struct store_rule *rule,
	bool *chosen, struct error *error)
{
	bool good;

	if (*chosen) {
		return error_set(error, -EINVAL, "only one of nth=, every= and prob= can be given");
	}
	*chosen = true;
	if (parse_field_is(key, "prob")) {
		if (parse_probability(value, &rule->probability)) {
			return 0;
		}
		return error_set(error, -EINVAL,
			"'%.*s' is not a probability: expected a number above 0 and up to 1, for "
			"example 0.01",
			(int)value.len, value.text);
	}
	if (parse_field_is(key, "nth")) {
		good = parse_count(value.text, value.len, &rule->nth) && rule->nth > 0;
	} else {
		good = parse_count(value.text, value.len, &rule->every) && rule->every > 0;
	}
	if (good) {
		return 0;
	}
	return error_set(error, -EINVAL,
		"'%.*s' is not valid for %.*s=: expected a whole number of at least 1",
		(int)value.len, value.text, (int)key.len, key.text);
}

/* Parses the conditions after OP:ERRNO. */
static int parse_conditions(const char *rest, struct store_rule *rule, struct error *error)
{
	bool chosen = false;
	int result = 0;

	while (rest != NULL && result == 0) {
		struct parse_field field = parse_field_next(&rest);
		struct parse_field key = { 0 };
		struct parse_field value;
		bool split = parse_field_split(field, &key, &value);

		if (split && parse_field_is(key, "range")) {
			result = parse_rule_range(value, rule, error);
		} else if (split && (parse_field_is(key, "nth") || parse_field_is(key, "every") ||
					    parse_field_is(key, "prob"))) {
			result = parse_choice(key, value, rule, &chosen, error);
		} else {
			result = error_set(error, -EINVAL,
				"unknown setting '%.*s': expected nth=N, every=N, prob=P or "
				"range=OFFSET+LENGTH",
				(int)field.len, field.text);
		}
	}
	return result;
}

static int parse_fault(const char *text, struct store_rule *rule, struct error *error)
{
	const char *rest = text;
	int result = parse_rule_op(parse_field_next(&rest), &rule->ops, error);

	if (result < 0) {
		return result;
	}
	if (rest == NULL) {
		return error_set(error, -EINVAL,
			"the error is missing: expected OP:ERRNO, for example read:EIO");
	}
	result = parse_errno(parse_field_next(&rest), &rule->error, error);
	if (result < 0) {
		return result;
	}
	return parse_conditions(rest, rule, error);
}

int store_fault_parse(const char *text, struct store_rule *rule, struct error *error)
{
	struct store_rule parsed = { .probability = 1.0 };
	int result = parse_fault(text, &parsed, error);

	if (result < 0) {
		return parse_refused(text, result, error);
	}
	*rule = parsed;
	return 0;
}

static int set_fault(void *config, const char *value, struct error *error)
{
	struct store_rules *rules = config;
	int result;

	if (rules->count == STORE_RULES_MAX) {
		return error_set(
			error, -EINVAL, "an export can have at most %d faults", STORE_RULES_MAX);
	}
	result = store_fault_parse(value, &rules->rules[rules->count], error);
	rules->count += result == 0;
	return result;
}

static const struct field options[] = {
	{ "fault", "OP:ERRNO[:nth=N|every=N|prob=P][:range=OFF+LEN]",
		"fail requests, for tests; OP is read, write, flush, trim, zero, cache, extents or "
		"any; may be repeated",
		"read:EIO", .flags = FIELD_REPEATS, .set = set_fault,
		FIELD_AT(struct store_rules, rules, count) },
};

/* --- parts --------------------------------------------------------------------------------- */

/* Returns a number in [0, 1), uniformly distributed, made of 53 random bits. */
static double random_unit(struct ring *ring)
{
	return (double)(ring_random(ring) >> 11) * 0x1.0p-53;
}

static bool strikes(struct fault_store *store, uint32_t idx, struct ring *ring)
{
	const struct store_rule *rule = &store->config.rules[idx];
	/* Relaxed order: only the number is needed, not its order relative to other memory
	 * accesses. */
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
	struct fault_store *store = container_of(queue->store, struct fault_store, base);
	int error = 0;

	for (uint32_t i = 0; i < store->config.count; i++) {
		if (store_rule_matches(&store->config.rules[i], part) &&
			strikes(store, i, queue->ring) && error == 0) {
			error = store->config.rules[i].error;
		}
	}
	if (error != 0) {
		container_of(queue, struct fault_queue, base)->failed++;
		store_finish_later(part, error);
		return;
	}
	store_forward(part);
}

static int fault_open(struct store *base, const struct store_options *store_options,
	const void *config, struct error *error)
{
	struct fault_store *store = container_of(base, struct fault_store, base);

	GMB_UNUSED(store_options);
	GMB_UNUSED(error);
	memcpy(&store->config, config, sizeof(store->config));
	return 0;
}

static const struct counter counter_list[] = {
	STORE_COUNTER(
		struct fault_queue, failed, ITEMS, "Requests that failed because of a fault= rule"),
};

static const struct counter_table counters = { "fault", "export", "store_fault_", counter_list,
	ARRAY_COUNT(counter_list) };

static const struct store_ops fault_ops = {
	.name = "fault",
	.queue_bytes = sizeof(struct fault_queue),
	.submit = fault_submit,
	.counters = &counters,
	.handover = store_handover_nothing,
};

const struct store_kind fault_store_kind = {
	.name = "fault",
	.is_filter = true,
	.options = options,
	.option_count = ARRAY_COUNT(options),
	.config_bytes = sizeof(struct store_rules),
	.store_bytes = sizeof(struct fault_store),
	.ops = &fault_ops,
	.open = fault_open,
};
