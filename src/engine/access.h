// SPDX-License-Identifier: Apache-2.0
/*
 * Access rules: which peer has which rights on an export. A set is a list of rules. Each rule has
 * conditions, and the rights of a peer that meets all of them. The first matching rule decides. A
 * peer that matches no rule has no rights.
 *
 *   { psk: alice, address: 10.1.0.0/16 } -> rw         access_rule_add() ... access_create()
 *        │
 *        ▼
 *   table: (kind, canonical bytes) -> value -> rules indexed by it, in list order
 *
 * Values are compared as canonical bytes (base/identity.h), so a condition holds exactly when its
 * value is one of the peer's. Each rule is indexed by the rarest of its values. A lookup searches
 * the table for each value of the peer, and for its address with each prefix length that occurs.
 * So its cost depends on the peer and not on the number of rules.
 *
 * Threading: a set never changes and can be used on any thread. Ownership: references are counted.
 * A rule owns its values, and a set has copies. Errors: a negative errno.
 */
#pragma once

#include "base/identity.h"

/* Rights of a peer on an export, as bits of a set. */
enum engine_rights { ENGINE_RIGHT_READ = 1, ENGINE_RIGHT_WRITE = 2 };

enum {
	/* Kinds of conditions, in addition to enum identity_kind. */
	ACCESS_UID = IDENTITY_KIND_COUNT, /* user of a Unix socket's peer: uint32_t in host order */
	ACCESS_NETWORK,			  /* ACCESS_ADDRESS_BYTES, then a byte: prefix length */
	ACCESS_TLS,			  /* a byte: 1 encrypted, 0 in clear */
	ACCESS_KIND_COUNT,

	ACCESS_ADDRESS_BYTES = 16, /* IPv6; IPv4 is mapped (::ffff:0:0/96) */
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
	uint32_t rights; /* enum engine_rights; 0: none */
	char *origin;	 /* where it is defined, for messages */
	char *text;	 /* in the syntax of --access, for messages; can be NULL */
	uint32_t condition_count;
	struct access_condition conditions[ACCESS_KIND_COUNT]; /* at most one of each kind */
};

/* Adds a condition with a copy of the value. -EEXIST: the rule has a condition of this kind;
 * -ENOMEM. */
GMB_MUST_CHECK int access_rule_add(
	struct access_rule *rule, uint32_t kind, const void *data, uint32_t bytes);
/* Returns whether both have the same rights and conditions, in any order. */
bool access_rule_same(const struct access_rule *a, const struct access_rule *b);
/* Frees the rule's memory and empties the rule. */
void access_rule_fini(struct access_rule *rule);

struct access;

/* count: at most ACCESS_RULES_MAX; 0: no peer has any rights. -ENOMEM. */
GMB_MUST_CHECK int access_create(
	const struct access_rule *rules, uint32_t count, struct access **access_out);
void access_get(struct access *access);
/* NULL is a no-op. */
void access_put(struct access *access);

/* Difference between two lists, between their common beginning and end. The texts are those of the
 * first differing rules. They belong to the sets; NULL: there is no such rule, or it has no
 * text. */
struct access_difference {
	const char *added;
	const char *removed;
	uint32_t added_count;
	uint32_t removed_count;
};

/* Returns whether the lists differ. NULL: no rules. */
bool access_differ(const struct access *before, const struct access *after,
	struct access_difference *difference_out);

/* The peer in a lookup. */
struct access_subject {
	const struct identity *proved; /* NULL: no TLS */
	const uint32_t *uid;	       /* NULL: unknown */
	const uint8_t *address;	       /* ACCESS_ADDRESS_BYTES; NULL: none */
};

struct access_verdict {
	uint32_t rights;
	/* Where the rule is defined; valid while the set exists; NULL: no match. */
	const char *origin;
};

struct access_verdict access_look(
	const struct access *access, const struct access_subject *subject);

/* A reference to a set that can be replaced while others use the set. */
struct access_slot;

/* Takes the set, also on failure; NULL: no rules. Returns NULL if out of memory. */
struct access_slot *access_slot_create(struct access *access);
/* NULL is a no-op. */
void access_slot_destroy(struct access_slot *slot);
/* Returns the set with a reference for the caller, or NULL. Can be called on any thread. */
struct access *access_slot_get(struct access_slot *slot);
/* Takes the set. Can be called on any thread. */
void access_slot_replace(struct access_slot *slot, struct access *access);
