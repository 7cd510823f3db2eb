// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "server/config/config.h"

enum { KEY_RATE, KEY_CONNECTIONS, KEY_MEMORY, OWN_KEYS, RIGHTS = 0 };

_Static_assert((int)SERVER_RATE_KEYS == (int)OWN_KEYS + (int)SERVER_ACCESS_KEYS - 1,
	"a rule has conditions in the place of rights");

/* The key of a rule of access in that place. */
static uint32_t config_rate_condition_of(uint32_t idx)
{
	return idx - OWN_KEYS + RIGHTS + 1;
}

const char *server_rate_key(uint32_t idx)
{
	static const char *const own_keys[OWN_KEYS] = { "rate", "connections", "memory" };

	if (idx >= OWN_KEYS) {
		return idx < SERVER_RATE_KEYS ? server_access_key(config_rate_condition_of(idx))
					      : NULL;
	}
	return own_keys[idx];
}

static int set_limits(struct rate_rule *rule, const char *const values[SERVER_RATE_KEYS],
	uint32_t *failed_out, struct error *error)
{
	const char *connections = values[KEY_CONNECTIONS];
	int rc = rate_parse(values[KEY_RATE], &rule->limits, error);

	*failed_out = KEY_RATE;
	if (rc == 0 && connections != NULL) {
		*failed_out = KEY_CONNECTIONS;
		rc = units_parse_count(connections, 1, 1000000, &rule->connections_max, error);
	}
	if (rc == 0 && values[KEY_MEMORY] != NULL) {
		*failed_out = KEY_MEMORY;
		rc = rate_parse_memory(values[KEY_MEMORY], &rule->memory_max, error);
	}
	return rc;
}

static int add_conditions(struct server_rates *rates, const char *const values[SERVER_RATE_KEYS],
	const char *origin, uint32_t *failed_out, struct error *error)
{
	const char *conditions[SERVER_ACCESS_KEYS] = { [RIGHTS] = "none" };
	uint32_t failed;
	int rc;

	for (uint32_t i = OWN_KEYS; i < SERVER_RATE_KEYS; i++) {
		conditions[config_rate_condition_of(i)] = values[i];
	}
	rc = server_access_add(&rates->conditions, conditions, origin, &failed, error);
	*failed_out = failed < SERVER_ACCESS_KEYS ? failed - RIGHTS - 1 + OWN_KEYS
						  : (uint32_t)SERVER_RATE_KEYS;
	return rc;
}

int server_rate_add(struct server_rates *rates, const char *const values[SERVER_RATE_KEYS],
	const char *origin, uint32_t *failed_out, struct error *error)
{
	uint32_t count = rates->conditions.rule_count;
	struct rate_rule rule = { 0 };
	void *bigger;
	int rc = set_limits(&rule, values, failed_out, error);

	if (rc < 0) {
		return rc;
	}
	*failed_out = SERVER_RATE_KEYS;
	if (count == RATE_RULES_MAX) {
		return error_set(error, -EINVAL, "more than %d rules of rates", RATE_RULES_MAX);
	}
	bigger = reallocarray(rates->rules, (size_t)count + 1, sizeof(rule));
	if (bigger == NULL) {
		return error_set(error, -ENOMEM, "no memory for a rule of rates");
	}
	rates->rules = bigger;
	rc = add_conditions(rates, values, origin, failed_out, error);
	if (rc == 0) {
		rule.origin = rates->conditions.rules[count].origin; /* whose it stays */
		rates->rules[count] = rule;
	}
	return rc;
}

int server_rates_build(
	const struct server_rates *rates, struct rate_rules **rules_out, struct error *error)
{
	int rc = 0;

	*rules_out = NULL;
	if (rates->conditions.rule_count > 0) {
		rc = rate_rules_create(rates->conditions.rules, rates->rules,
			rates->conditions.rule_count, rules_out);
	}
	return rc < 0 ? error_set(error, rc, "no memory for rates of identities") : 0;
}

void server_rates_fini(struct server_rates *rates)
{
	server_access_fini(&rates->conditions);
	free(rates->rules);
	rates->rules = NULL;
}
