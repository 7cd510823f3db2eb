// SPDX-License-Identifier: Apache-2.0
/*
 * Rules of access: who may do what with an export. A set is a list of rules, each of which has
 * conditions and the rights of a peer for whom all of them hold. The first such rule decides; a
 * peer without one has no rights.
 *
 *   { psk: alice, address: 10.1.0.0/16 } -> rw         access_rule_add() ... access_create()
 *        │
 *        ▼
 *   table: (kind, canonical bytes) -> value -> the rules that are indexed by it, lowest first
 *
 * Values are compared as canonical bytes (base/identity.h), so a condition holds exactly when its
 * value is one of the peer's. Each rule is indexed by the rarest of its values. A look-up asks the
 * table for each value of the peer, and for its address with each length of a prefix that occurs:
 * what it costs depends on the peer, not on how many rules there are.
 *
 * Threading: a set never changes, and may be used on any thread. Ownership: counted references; a
 * rule owns its values, and a set has copies. Errors: a negative errno.
 */
#pragma once

#include "base/identity.h"

/* What a peer may do with an export: a set of these. */
enum engine_rights { ENGINE_RIGHT_READ = 1, ENGINE_RIGHT_WRITE = 2 };

enum {
	/* Kinds of conditions, beside those of enum identity_kind. */
	ACCESS_UID = IDENTITY_KIND_COUNT, /* of a Unix socket's peer: uint32_t, as it is */
	ACCESS_NETWORK,			  /* ACCESS_ADDRESS_BYTES, and a byte: length of prefix */
	ACCESS_TLS,			  /* a byte: 1 encrypted, 0 not */
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
	char *origin;	 /* where it stands, for messages */
	char *text;	 /* as --access would have it, for messages; or NULL */
	uint32_t condition_count;
	struct access_condition conditions[ACCESS_KIND_COUNT]; /* one of a kind at most */
};

/* The value is copied. -EEXIST: the rule has such a condition; -ENOMEM. */
GMB_MUST_CHECK int access_rule_add(
	struct access_rule *rule, uint32_t kind, const void *data, uint32_t bytes);
/* Whether both have the same rights and conditions, in whatever order. */
bool access_rule_same(const struct access_rule *a, const struct access_rule *b);
/* Frees what the rule owns, and empties it. */
void access_rule_fini(struct access_rule *rule);

struct access;

/* -ENOMEM. count: at most ACCESS_RULES_MAX; 0: nobody has any right. */
GMB_MUST_CHECK int access_create(
	const struct access_rule *rules, uint32_t count, struct access **access_out);
void access_get(struct access *access);
/* NULL is a no-op. */
void access_put(struct access *access);

/* Where two lists differ, between what both begin and end with. The texts are those of the first
 * rules there, which the sets own; NULL: there is none, or it has none. */
struct access_difference {
	const char *added;
	const char *removed;
	uint32_t added_count;
	uint32_t removed_count;
};

/* Whether they differ. NULL: no rules. */
bool access_differ(const struct access *before, const struct access *after,
	struct access_difference *difference_out);

/* Who asks. */
struct access_subject {
	const struct identity *proved; /* NULL: no TLS */
	const uint32_t *uid;	       /* NULL: unknown */
	const uint8_t *address;	       /* ACCESS_ADDRESS_BYTES; NULL: none */
};

struct access_verdict {
	uint32_t rights;
	const char *origin; /* of the rule, as long as the set exists; NULL: none matches */
};

struct access_verdict access_look(
	const struct access *access, const struct access_subject *subject);

/* A set that others look at while it is replaced. */
struct access_slot;

/* Takes the set, also on failure; NULL: there are no rules. NULL: no memory. */
struct access_slot *access_slot_create(struct access *access);
/* NULL is a no-op. */
void access_slot_destroy(struct access_slot *slot);
/* With a reference for the caller, or NULL. Any thread. */
struct access *access_slot_get(struct access_slot *slot);
/* Takes the set. Any thread. */
void access_slot_replace(struct access_slot *slot, struct access *access);
