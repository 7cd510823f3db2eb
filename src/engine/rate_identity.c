// SPDX-License-Identifier: Apache-2.0
#include "engine/rate_identity.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
	BUCKETS = 1024,
	/* When an identity becomes idle, this many idle ones are checked and freed if possible. It
	 * is more than one, so that they cannot accumulate. */
	LOOKS = 2,
};

struct rate_rules {
	/* the conditions of all rules, as access rules; the "rights" of each are the index of the
	 * rule in `rules`, plus 1 */
	struct access *conditions;
	pthread_mutex_t lock; /* protects the following members */
	uint32_t count;
	struct rate_rule *rules;
	uint32_t *identity_counts; /* number of identities of each rule */
	struct list_node identities[BUCKETS];
	struct list_node idle; /* identities without sessions that may still have bookings */
};

static int copy_rules(struct rate_rules *rules, const struct access_rule *conditions,
	const struct rate_rule *from)
{
	struct access_rule *numbered = calloc(MAX(rules->count, 1U), sizeof(*numbered));
	int rc = numbered != NULL ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < rules->count && rc == 0; i++) {
		/* shallow copy: access_create() only reads the values */
		numbered[i] = conditions[i];
		numbered[i].rights = i + 1;
		rules->rules[i] = from[i];
		rules->rules[i].origin = strdup(from[i].origin);
		rc = rules->rules[i].origin != NULL ? 0 : -ENOMEM;
	}
	if (rc == 0) {
		rc = access_create(numbered, rules->count, &rules->conditions);
	}
	free(numbered);
	return rc;
}

int rate_rules_create(const struct access_rule *conditions, const struct rate_rule *from,
	uint32_t count, struct rate_rules **rules_out)
{
	struct rate_rules *rules = calloc(1, sizeof(*rules));
	int rc;

	if (rules == NULL) {
		return -ENOMEM;
	}
	pthread_mutex_init(&rules->lock, NULL);
	list_init(&rules->idle);
	for (int i = 0; i < BUCKETS; i++) {
		list_init(&rules->identities[i]);
	}
	rules->count = count;
	rules->rules = calloc(MAX(count, 1U), sizeof(*rules->rules));
	rules->identity_counts = calloc(MAX(count, 1U), sizeof(*rules->identity_counts));
	rc = rules->rules != NULL && rules->identity_counts != NULL
		     ? copy_rules(rules, conditions, from)
		     : -ENOMEM;
	if (rc < 0) {
		rate_rules_destroy(rules);
		return rc;
	}
	*rules_out = rules;
	return 0;
}

static void rate_identity_forget(struct rate_identity *identity)
{
	list_remove(&identity->idle_node);
	list_remove(&identity->node);
	free(identity);
}

void rate_rules_destroy(struct rate_rules *rules)
{
	struct list_node *node;

	if (rules == NULL) {
		return;
	}
	while ((node = list_first(&rules->idle)) != NULL) {
		rate_identity_forget(list_entry(node, struct rate_identity, idle_node));
	}
	for (int i = 0; i < BUCKETS; i++) {
		GMB_ASSERT(list_is_empty(&rules->identities[i]));
	}
	for (uint32_t i = 0; rules->rules != NULL && i < rules->count; i++) {
		free(rules->rules[i].origin);
	}
	free(rules->rules);
	free(rules->identity_counts);
	access_put(rules->conditions);
	pthread_mutex_destroy(&rules->lock);
	free(rules);
}

/* FNV-1a. If a client can choose principals whose hashes collide, it can also choose many different
 * ones, so a stronger hash would not help. */
static struct list_node *rate_identity_bucket_of(
	struct rate_rules *rules, const struct takeover_principal *principal)
{
	uint32_t hash = 2166136261U;

	for (size_t i = 0; i < sizeof(principal->bytes); i++) {
		hash = (hash ^ principal->bytes[i]) * 16777619U;
	}
	return &rules->identities[hash % BUCKETS];
}

/* Returns the identity, or NULL if there is none. Called under the lock. */
static struct rate_identity *rate_identity_find(
	struct rate_rules *rules, const struct takeover_principal *principal, uint32_t rule)
{
	list_for_each(node, rate_identity_bucket_of(rules, principal))
	{
		struct rate_identity *identity = list_entry(node, struct rate_identity, node);

		if (identity->rule == rule &&
			memcmp(&identity->principal, principal, sizeof(*principal)) == 0) {
			return identity;
		}
	}
	return NULL;
}

/* Adds an identity. Called under the lock. Returns NULL if there is no memory. */
static struct rate_identity *rate_identity_add(
	struct rate_rules *rules, const struct takeover_principal *principal, uint32_t rule)
{
	struct rate_identity *identity = calloc(1, sizeof(*identity));

	if (identity != NULL) {
		identity->principal = *principal;
		identity->rule = rule;
		list_init(&identity->idle_node);
		rate_set(&identity->rate, &rules->rules[rule].limits, 0);
		atomic_init(&identity->memory_max, rules->rules[rule].memory_max);
		list_push_front(rate_identity_bucket_of(rules, principal), &identity->node);
	}
	return identity;
}

int rate_identity_get(struct rate_rules *rules, const struct access_subject *subject,
	const struct takeover_principal *principal, bool is_part,
	struct rate_identity **identity_out)
{
	struct rate_identity *identity;
	uint32_t connections_max;
	uint32_t rule;
	int rc = 0;

	*identity_out = NULL;
	rule = rules != NULL ? access_look(rules->conditions, subject).rights : 0;
	if (rule == 0) {
		return 0;
	}
	pthread_mutex_lock(&rules->lock);
	connections_max = rules->rules[rule - 1].connections_max;
	identity = rate_identity_find(rules, principal, rule - 1);
	if (identity == NULL) {
		identity = rate_identity_add(rules, principal, rule - 1);
	}
	if (identity == NULL) {
		rc = -ENOMEM;
	} else if (!is_part && connections_max != 0 &&
		   identity->session_count - identity->part_count >= connections_max) {
		rc = -EUSERS;
	} else {
		rules->identity_counts[rule - 1] += identity->session_count == 0;
		list_remove(&identity->idle_node);
		identity->session_count++;
		identity->part_count += is_part;
		*identity_out = identity;
	}
	pthread_mutex_unlock(&rules->lock);
	return rc;
}

/* Frees idle identities whose whole burst is available. Called under the lock. */
static void forget_some(struct rate_rules *rules, uint64_t now_ns)
{
	for (int i = 0; i < LOOKS && !list_is_empty(&rules->idle); i++) {
		struct rate_identity *identity =
			list_entry(list_first(&rules->idle), struct rate_identity, idle_node);

		if (rate_has_rested(&identity->rate, now_ns)) {
			rate_identity_forget(identity);
		} else {
			list_remove(&identity->idle_node);
			list_push_back(&rules->idle, &identity->idle_node);
		}
	}
}

void rate_identity_put(
	struct rate_rules *rules, struct rate_identity *identity, bool is_part, uint64_t now_ns)
{
	if (identity == NULL) {
		return;
	}
	pthread_mutex_lock(&rules->lock);
	GMB_ASSERT(identity->session_count > 0);
	identity->part_count -= is_part;
	if (--identity->session_count == 0) {
		rules->identity_counts[identity->rule]--;
		list_push_back(&rules->idle, &identity->idle_node);
		forget_some(rules, now_ns);
	}
	pthread_mutex_unlock(&rules->lock);
}

uint32_t rate_rules_count(const struct rate_rules *rules)
{
	return rules != NULL ? rules->count : 0;
}

void rate_rules_look(struct rate_rules *rules, uint32_t index, struct rate_rule *rule_out,
	uint32_t *identities_out)
{
	GMB_ASSERT(index < rules->count);
	pthread_mutex_lock(&rules->lock);
	*rule_out = rules->rules[index];
	*identities_out = rules->identity_counts[index];
	pthread_mutex_unlock(&rules->lock);
}

/* Gives all identities of a changed rule its new limits. Called under the lock. limits: the new
 * rates; NULL: only memory_max has changed, so rate_set(), which removes bookings, is not
 * called. */
static void rate_identity_tell_identities(
	struct rate_rules *rules, uint32_t index, const struct rate_limits *limits, uint64_t now_ns)
{
	for (int i = 0; i < BUCKETS; i++) {
		list_for_each(node, &rules->identities[i])
		{
			struct rate_identity *identity =
				list_entry(node, struct rate_identity, node);

			if (identity->rule != index) {
				continue;
			}
			atomic_store_explicit(&identity->memory_max, rules->rules[index].memory_max,
				memory_order_relaxed);
			if (limits != NULL) {
				rate_set(&identity->rate, limits, now_ns);
			}
		}
	}
}

void rate_rules_set(
	struct rate_rules *rules, uint32_t index, const struct rate_limits *limits, uint64_t now_ns)
{
	GMB_ASSERT(index < rules->count);
	pthread_mutex_lock(&rules->lock);
	rules->rules[index].limits = *limits;
	rate_identity_tell_identities(rules, index, limits, now_ns);
	pthread_mutex_unlock(&rules->lock);
}

void rate_rules_set_memory(struct rate_rules *rules, uint32_t index, uint64_t memory_max)
{
	GMB_ASSERT(index < rules->count);
	pthread_mutex_lock(&rules->lock);
	rules->rules[index].memory_max = memory_max;
	rate_identity_tell_identities(rules, index, NULL, 0);
	pthread_mutex_unlock(&rules->lock);
}
