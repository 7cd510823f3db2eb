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

#include "base/log.h"
#include "store/kind.h"
#include "store/parse.h"

enum { ERRNO_MAX = 133 };

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

static int set_errno(void *object, const char *text, struct error *error)
{
	for (int number = 1; number <= ERRNO_MAX; number++) {
		const char *name = strerrorname_np(number);

		if (name != NULL && strcmp(text, name) == 0) {
			((struct store_rule *)object)->error = -number;
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"'%s' is not the name of an error, for example EIO, ENOSPC or ETIMEDOUT",
		quote(text));
}

/* strtod() also accepts signs, spaces, exponents and words, so the characters are checked too. */
static int set_probability(void *object, const char *text, struct error *error)
{
	char *end;
	double value = strtod(text, &end);

	if (strspn(text, "0123456789.") != strlen(text) || *end != '\0' || value <= 0.0 ||
		value > 1.0) {
		return error_set(error, -EINVAL,
			"'%s' is not a number above 0 and up to 1, for example 0.01", quote(text));
	}
	((struct store_rule *)object)->probability = value;
	return 0;
}

static const struct field rule_settings[] = {
	STORE_RULE_OP,
	{ "errno", "ERRNO", .flags = FIELD_PLACE, .set = set_errno },
	{ "nth", "N", .type = FIELD_COUNT, .min = 1, .max = UINT32_MAX,
		FIELD_IN(struct store_rule, nth) },
	{ "every", "N", .type = FIELD_COUNT, .min = 1, .max = UINT32_MAX,
		FIELD_IN(struct store_rule, every) },
	{ "prob", "P", .set = set_probability },
	STORE_RULE_RANGE,
};

int store_fault_parse(const char *text, struct store_rule *rule, struct error *error)
{
	struct store_rule parsed = { 0 };
	int result =
		store_rule_parse(rule_settings, ARRAY_COUNT(rule_settings), text, &parsed, error);

	if (result == 0 && (parsed.nth > 0) + (parsed.every > 0) + (parsed.probability > 0) > 1) {
		result = error_set(
			error, -EINVAL, "only one of nth=, every= and prob= can be given");
	}
	if (result == 0) {
		*rule = parsed;
	}
	return result;
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
	return rule->probability == 0 || random_unit(ring) < rule->probability;
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
