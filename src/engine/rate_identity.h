// SPDX-License-Identifier: Apache-2.0
/*
 * Rates, connection limits and memory limits of identities. A rule has conditions, like an access
 * rule, and limits. The limits apply separately to each identity that meets the conditions: to its
 * sessions on all exports and engines together. The first matching rule decides. An identity
 * without a rule has no limits.
 *
 *   { address: 10.1.0.0/16, rate: 50M }      rate_rules (of the server)
 *         │                                    └─ rate_identity 10.1.0.7 ◀── queues of two engines
 *         ▼                                    └─ rate_identity 10.1.0.9 ◀── queue of one
 *   session of 10.1.0.7 ─▶ rate_identity_get() ... session ends ─▶ rate_identity_put()
 *
 * Threading: any thread. A lock is taken when a session starts and ends, and when a rule changes.
 * Ownership: the rules own their identities and must exist longer than the engines. Errors: a
 * negative errno.
 */
#pragma once

#include "engine/access.h"
#include "engine/rate.h"
#include "engine/takeover.h"

enum { RATE_RULES_MAX = 65536 };

struct rate_rules;

struct rate_rule {
	struct rate_limits limits;
	uint32_t connections_max; /* maximum sessions that have chosen an export; 0 = no limit */
	uint64_t memory_max;	  /* payload memory in bytes, over all engines; 0 = no limit */
	char *origin;		  /* where the rule is defined, for messages */
};

/* An identity that has sessions, or had some recently. An identity without sessions is kept until
 * its whole burst is available, so that a client cannot get rid of its bookings by reconnecting. */
struct rate_identity {
	struct rate rate;

	/* Private members. */
	struct list_node node;
	struct list_node idle_node; /* in rules->idle while the identity has no sessions */
	struct takeover_principal principal;
	_Atomic uint64_t memory_max; /* memory_max of the identity's rule */
	uint32_t rule;
	uint32_t session_count; /* with parts of sessions */
	uint32_t part_count;
};

/* Creates rules with copies of all arguments. conditions: one for each rule; the rights in them are
 * ignored. Fails with -ENOMEM. */
GMB_MUST_CHECK int rate_rules_create(const struct access_rule *conditions,
	const struct rate_rule *rules, uint32_t count, struct rate_rules **rules_out);
/* Frees the rules, when no identity has sessions. NULL is a no-op. */
void rate_rules_destroy(struct rate_rules *rules);

/* Called for a session that has chosen an export: sets *identity_out to its identity, or to NULL if
 * no rule matches. rules can be NULL. is_part: it is a part of a session, which is not counted as a
 * connection. Returns 0, -EUSERS if the identity has reached its connection limit, or -ENOMEM. */
GMB_MUST_CHECK int rate_identity_get(struct rate_rules *rules, const struct access_subject *subject,
	const struct takeover_principal *principal, bool is_part,
	struct rate_identity **identity_out);
/* Called when a session of the identity has ended. If no session of the identity is left on that
 * engine, the engine must already have destroyed the identity's queue. NULL is a no-op. */
void rate_identity_put(
	struct rate_rules *rules, struct rate_identity *identity, bool is_part, uint64_t now_ns);

/* Returns the number of rules; 0 if rules is NULL. */
uint32_t rate_rules_count(const struct rate_rules *rules);
/* Copies a rule with its current limits, and stores the number of its identities that have
 * sessions. The rules still own the origin. */
void rate_rules_look(struct rate_rules *rules, uint32_t index, struct rate_rule *rule_out,
	uint32_t *identities_out);
/* Changes the rates of a rule like rate_set(). engine_identity_limits_changed() must then be called
 * on each engine. */
void rate_rules_set(struct rate_rules *rules, uint32_t index, const struct rate_limits *limits,
	uint64_t now_ns);
/* Changes the memory limit of a rule. engine_identity_limits_changed() must then be called on each
 * engine. */
void rate_rules_set_memory(struct rate_rules *rules, uint32_t index, uint64_t memory_max);

/* Returns the current memory limit of the identity's rule. */
static inline uint64_t rate_identity_memory(const struct rate_identity *identity)
{
	return atomic_load_explicit(&identity->memory_max, memory_order_relaxed);
}
