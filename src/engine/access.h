// SPDX-License-Identifier: Apache-2.0
/*
 * Access rules: which peer has which rights on an export. A set is a list of rules. A rule gives
 * its rights to a peer that meets all of its conditions. The first matching rule decides. A peer
 * that matches no rule has no rights.
 *
 *   { psk: alice, address: 10.1.0.0/16 } -> rw         access_rule_add() ... access_create()
 *        │
 *        ▼
 *   table: (kind, canonical bytes) -> value -> rules indexed by it, in list order
 *
 * Values are compared in their canonical form (base/identity.h): a condition holds if and only if
 * the peer has its value. Each rule is indexed by the rarest of its values. A lookup searches the
 * table for each value of the peer, and for its address with each prefix length that occurs in
 * rules. So its cost depends on the peer and not on the number of rules.
 *
 * Threading: a set never changes and can be used on any thread. Ownership: references are counted.
 * A rule owns its values, and a set has copies. Errors: a negative errno.
 */
#pragma once

#include "base/identity.h"

/* Rights of a peer on an export, combined by OR. */
enum engine_rights {
	ENGINE_RIGHT_READ = 1,
	ENGINE_RIGHT_WRITE = 2,
	/* In rules for all exports: the right to fence nodes. engine_rights() never returns it. */
	ENGINE_RIGHT_FENCE = 4,
};

enum {
	ACCESS_UID = IDENTITY_KIND_COUNT, /* user of a Unix socket's peer: uint32_t in host order */
	ACCESS_NETWORK, /* address (ACCESS_ADDRESS_BYTES), then one byte: prefix length */
	ACCESS_TLS,	/* one byte: 1 encrypted, 0 not encrypted */
	/* Name of a node. A configuration replaces this condition by the conditions of the node
	 * (server/config/nodes.c), so sets never contain it. */
	ACCESS_NODE,
	ACCESS_KIND_COUNT,

	ACCESS_ADDRESS_BYTES = 16, /* an IPv6 address; IPv4 addresses are mapped (::ffff:0:0/96) */
	ACCESS_MAPPED_BITS = 96,
	ACCESS_NETWORK_BYTES = ACCESS_ADDRESS_BYTES + 1,
	ACCESS_RULES_MAX = 1 << 20,
};

struct access_condition {
	uint32_t kind;
	uint32_t bytes;
	uint8_t *data;
};

struct access_rule {
	uint32_t rights; /* bits of enum engine_rights; 0: no rights */
	char *origin;	 /* where the rule is defined, for messages */
	char *text;	 /* the rule in the syntax of --access, for messages; can be NULL */
	uint32_t condition_count;
	struct access_condition conditions[ACCESS_KIND_COUNT]; /* at most one of each kind */
};

/* Returns the rule's condition of a kind, or NULL. */
const struct access_condition *access_condition_find(const struct access_rule *rule, uint32_t kind);
/* Adds a condition with a copy of the value. Returns -EEXIST if the rule already has a condition of
 * this kind, or -ENOMEM. */
GMB_MUST_CHECK int access_rule_add(
	struct access_rule *rule, uint32_t kind, const void *data, uint32_t bytes);
/* Returns whether both rules have the same rights and the same conditions, in any order. */
bool access_rule_same(const struct access_rule *a, const struct access_rule *b);
/* Frees the rule's memory and empties the rule. */
void access_rule_fini(struct access_rule *rule);

struct access;

/* Creates a set with copies of the rules. count: at most ACCESS_RULES_MAX; 0: no peer has any
 * rights. The rules must not contain ACCESS_NODE. Fails with -ENOMEM. */
GMB_MUST_CHECK int access_create(
	const struct access_rule *rules, uint32_t count, struct access **access_out);
void access_get(struct access *access);
/* Drops a reference. NULL is a no-op. */
void access_put(struct access *access);

/* Difference between two rule lists. Equal rules at the beginning and at the end are left out. The
 * texts are from the first differing rules and belong to the sets. NULL: there is no such rule,
 * or it has no text. */
struct access_difference {
	const char *added;
	const char *removed;
	uint32_t added_count;
	uint32_t removed_count;
};

/* Returns whether the lists differ. NULL: no list, which differs from an empty list. */
bool access_differ(const struct access *before, const struct access *after,
	struct access_difference *difference_out);

/* The properties of a peer that rules are compared with. */
struct access_subject {
	const struct identity *proved; /* NULL: no TLS */
	const uint32_t *uid;	       /* NULL: unknown */
	const uint8_t *address;	       /* ACCESS_ADDRESS_BYTES; NULL: none */
};

struct access_verdict {
	uint32_t rights;
	/* where the matching rule is defined; valid while the set exists; NULL: no rule matches */
	const char *origin;
};

struct access_verdict access_look(
	const struct access *access, const struct access_subject *subject);

/* Refers to a set of rules. The set can be replaced at any time, while other threads still use the
 * old one. */
struct access_slot;

/* Creates a slot that owns the set; NULL: no rules. If there is no memory, releases the set and
 * returns NULL. */
struct access_slot *access_slot_create(struct access *access);
/* NULL is a no-op. */
void access_slot_destroy(struct access_slot *slot);
/* Returns the set with a reference for the caller, or NULL. Any thread. */
struct access *access_slot_get(struct access_slot *slot);
/* Replaces the set by another, which the slot owns from then on. Any thread. */
void access_slot_replace(struct access_slot *slot, struct access *access);
