// SPDX-License-Identifier: Apache-2.0
/*
 * Rates, connections and memory of identities. A rule has conditions, as a rule of access has, and
 * limits; each identity for which the conditions hold has the limits for itself, over all exports
 * and engines. The first rule that holds decides; who has none has no limits.
 *
 *   { address: 10.1.0.0/16, rate: 50M }      rate_rules (of the server)
 *         │                                    └─ rate_identity 10.1.0.7 ◀── queues of two engines
 *         ▼                                    └─ rate_identity 10.1.0.9 ◀── queue of one
 *   session of 10.1.0.7 ─▶ rate_identity_get() ... rate_identity_put() ◀─ its end
 *
 * Threading: any thread; a lock is taken when a session begins and ends, and when a rule changes.
 * Ownership: the rules own their identities and outlive the engines. Errors: a negative errno.
 */
#pragma once

#include "engine/access.h"
#include "engine/rate.h"
#include "engine/takeover.h"

enum { RATE_RULES_MAX = 65536 };

struct rate_rules;

struct rate_rule {
	struct rate_limits limits;
	uint32_t connections_max; /* that have chosen an export; 0 = no limit */
	uint64_t memory_max;	  /* payload memory in bytes, of all engines; 0 = no limit */
	char *origin;		  /* where it stands, for people */
};

/* An identity that has sessions, or had some lately: who comes back soon finds what was booked. */
struct rate_identity {
	struct rate rate;

	/* Private. */
	struct list_node node;
	struct list_node idle_node; /* in rules->idle: it has no sessions */
	struct takeover_principal principal;
	_Atomic uint64_t memory_max; /* of its rule */
	uint32_t rule;
	uint32_t session_count;
};

/* conditions: as many as rules, whose rights are not looked at. All is copied. -ENOMEM. */
GMB_MUST_CHECK int rate_rules_create(const struct access_rule *conditions,
	const struct rate_rule *rules, uint32_t count, struct rate_rules **rules_out);
/* No identity has sessions. NULL is a no-op. */
void rate_rules_destroy(struct rate_rules *rules);

/* The identity of a session that has chosen an export, or NULL in *identity_out: no rule holds for
 * it. -EUSERS: it has as many as it may have; -ENOMEM. rules may be NULL. */
GMB_MUST_CHECK int rate_identity_get(struct rate_rules *rules, const struct access_subject *subject,
	const struct takeover_principal *principal, struct rate_identity **identity_out);
/* That session has ended, and its engine's queue is gone if it was the last there. NULL is a no-op.
 */
void rate_identity_put(struct rate_rules *rules, struct rate_identity *identity, uint64_t now_ns);

/* How many there are; NULL: none. */
uint32_t rate_rules_count(const struct rate_rules *rules);
/* A copy of one rule as it is now, with the rules' origin, and how many identities go by it. */
void rate_rules_look(struct rate_rules *rules, uint32_t index, struct rate_rule *rule_out,
	uint32_t *identities_out);
/* From now on, as rate_set(): each engine has to be told by
 * engine_identity_limits_changed(). */
void rate_rules_set(struct rate_rules *rules, uint32_t index, const struct rate_limits *limits,
	uint64_t now_ns);
/* The same for its memory_max. */
void rate_rules_set_memory(struct rate_rules *rules, uint32_t index, uint64_t memory_max);

/* How much it may hold, as its rule is now. */
static inline uint64_t rate_identity_memory(const struct rate_identity *identity)
{
	return atomic_load_explicit(&identity->memory_max, memory_order_relaxed);
}
