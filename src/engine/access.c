// SPDX-License-Identifier: Apache-2.0
#include "engine/access.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

enum {
	PREFIX_BITS_MAX = 8 * ACCESS_ADDRESS_BYTES,
	/* Maximum number of values that one peer can have: its identity's values, its uid, TLS or
	 * not, and a network of each prefix length. */
	FOUND_MAX = IDENTITY_VALUES_MAX + 2 + PREFIX_BITS_MAX + 1,
};

#define NO_RULE UINT32_MAX

_Static_assert(FOUND_MAX <= 300, "the state of a lookup fits on the stack");
_Static_assert((uint64_t)ACCESS_RULES_MAX *ACCESS_KIND_COUNT * 4 <= UINT32_MAX,
	"table slots are counted in 32 bits");

/* A value of a condition. Each value is stored once, however many rules contain it. */
struct value {
	uint32_t kind;
	uint32_t bytes;
	uint8_t *data;
	uint32_t use_count;
	uint32_t first_rule; /* first rule in the list of this value; NO_RULE: none */
	uint32_t last_rule;
};

struct rule {
	uint32_t rights;
	uint32_t next; /* next rule in the list of the same value */
	uint32_t value_count;
	uint32_t *values;
	char *origin;
	char *text; /* can be NULL */
};

struct access {
	_Atomic uint32_t references;
	struct rule *rules;
	uint32_t rule_count;
	uint32_t any_rule; /* the first rule without conditions; NO_RULE: none */
	struct value *values;
	uint32_t value_count;
	uint32_t *table; /* 1 + index of a value; 0: free; open addressing with linear probing */
	uint32_t table_mask;
	/* prefix lengths that occur in rules, longest first */
	uint8_t prefixes[PREFIX_BITS_MAX + 1];
	uint32_t prefix_count;
};

/* --- building a rule ------------------------------------------------------------------------- */

const struct access_condition *access_condition_find(const struct access_rule *rule, uint32_t kind)
{
	for (uint32_t i = 0; i < rule->condition_count; i++) {
		if (rule->conditions[i].kind == kind) {
			return &rule->conditions[i];
		}
	}
	return NULL;
}

int access_rule_add(struct access_rule *rule, uint32_t kind, const void *data, uint32_t bytes)
{
	struct access_condition *condition = &rule->conditions[rule->condition_count];

	GMB_ASSERT(kind < ACCESS_KIND_COUNT);
	if (access_condition_find(rule, kind) != NULL) {
		return -EEXIST;
	}
	condition->data = malloc(MAX(bytes, 1U));
	if (condition->data == NULL) {
		return -ENOMEM;
	}
	if (bytes > 0) {
		memcpy(condition->data, data, bytes);
	}
	condition->kind = kind;
	condition->bytes = bytes;
	rule->condition_count++;
	return 0;
}

bool access_rule_same(const struct access_rule *a, const struct access_rule *b)
{
	bool same = a->rights == b->rights && a->condition_count == b->condition_count;

	for (uint32_t i = 0; same && i < a->condition_count; i++) {
		const struct access_condition *one = &a->conditions[i];
		const struct access_condition *other = access_condition_find(b, one->kind);

		same = other != NULL && one->bytes == other->bytes &&
		       memcmp(one->data, other->data, one->bytes) == 0;
	}
	return same;
}

void access_rule_fini(struct access_rule *rule)
{
	for (uint32_t i = 0; i < rule->condition_count; i++) {
		free(rule->conditions[i].data);
	}
	free(rule->origin);
	free(rule->text);
	*rule = (struct access_rule){ 0 };
}

/* --- the table ------------------------------------------------------------------------------- */

/* FNV-1a. Clients cannot make values collide, because only the operator writes rules. */
static uint64_t hash_of(uint32_t kind, const uint8_t *data, uint32_t bytes)
{
	uint64_t hash = (UINT64_C(0xcbf29ce484222325) ^ kind) * UINT64_C(0x100000001b3);

	for (uint32_t i = 0; i < bytes; i++) {
		hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
	}
	return hash ^ hash >> 32;
}

/* Returns the slot of the value, or the free slot in which it belongs. */
static uint32_t *engine_access_slot_of(
	const struct access *access, uint32_t kind, const uint8_t *data, uint32_t bytes)
{
	uint32_t at = (uint32_t)hash_of(kind, data, bytes) & access->table_mask;

	while (access->table[at] != 0) {
		const struct value *value = &access->values[access->table[at] - 1];

		if (value->kind == kind && value->bytes == bytes &&
			memcmp(value->data, data, bytes) == 0) {
			break;
		}
		at = (at + 1) & access->table_mask;
	}
	return &access->table[at];
}

/* Returns the index of the value in *index_out, after adding it if it is new. Fails with
 * -ENOMEM. */
static int intern(
	struct access *access, const struct access_condition *condition, uint32_t *index_out)
{
	uint32_t *slot =
		engine_access_slot_of(access, condition->kind, condition->data, condition->bytes);
	struct value *value = &access->values[access->value_count];

	GMB_ASSERT(condition->kind != ACCESS_NODE);
	if (*slot == 0) {
		value->data = malloc(MAX(condition->bytes, 1U));
		if (value->data == NULL) {
			return -ENOMEM;
		}
		memcpy(value->data, condition->data, condition->bytes);
		value->kind = condition->kind;
		value->bytes = condition->bytes;
		value->first_rule = NO_RULE;
		*slot = ++access->value_count;
	}
	*index_out = *slot - 1;
	access->values[*index_out].use_count++;
	return 0;
}

static int copy_rule(struct access *access, const struct access_rule *from)
{
	struct rule *rule = &access->rules[access->rule_count++];

	rule->rights = from->rights;
	rule->next = NO_RULE;
	rule->origin = strdup(from->origin);
	rule->values = calloc(from->condition_count + 1, sizeof(*rule->values));
	rule->text = from->text != NULL ? strdup(from->text) : NULL;
	if (rule->origin == NULL || rule->values == NULL ||
		(rule->text == NULL && from->text != NULL)) {
		return -ENOMEM;
	}
	while (rule->value_count < from->condition_count) {
		int rc = intern(access, &from->conditions[rule->value_count],
			&rule->values[rule->value_count]);

		if (rc < 0) {
			return rc;
		}
		rule->value_count++;
	}
	return 0;
}

/* Appends the rule to the list of its rarest value. If the last rule of this list has no other
 * condition, the new rule is not needed: the last one matches first. */
static void index_rule(struct access *access, uint32_t index)
{
	struct rule *rule = &access->rules[index];
	struct value *rarest = NULL;

	for (uint32_t i = 0; i < rule->value_count; i++) {
		struct value *value = &access->values[rule->values[i]];

		if (rarest == NULL || value->use_count < rarest->use_count) {
			rarest = value;
		}
	}
	if (rarest == NULL) {
		access->any_rule = MIN(access->any_rule, index);
	} else if (rarest->first_rule == NO_RULE) {
		rarest->first_rule = index;
		rarest->last_rule = index;
	} else if (access->rules[rarest->last_rule].value_count > 1) {
		access->rules[rarest->last_rule].next = index;
		rarest->last_rule = index;
	}
}

static void find_prefixes(struct access *access)
{
	bool occurs[PREFIX_BITS_MAX + 1] = { false };

	for (uint32_t i = 0; i < access->value_count; i++) {
		if (access->values[i].kind == ACCESS_NETWORK) {
			occurs[access->values[i].data[ACCESS_ADDRESS_BYTES]] = true;
		}
	}
	for (uint32_t bits = PREFIX_BITS_MAX + 1; bits-- > 0;) {
		if (occurs[bits]) {
			access->prefixes[access->prefix_count++] = (uint8_t)bits;
		}
	}
}

/* --- creation and references ----------------------------------------------------------------- */

static void access_free(struct access *access)
{
	for (uint32_t i = 0; i < access->rule_count; i++) {
		free(access->rules[i].values);
		free(access->rules[i].origin);
		free(access->rules[i].text);
	}
	for (uint32_t i = 0; i < access->value_count; i++) {
		free(access->values[i].data);
	}
	free(access->rules);
	free(access->values);
	free(access->table);
	free(access);
}

/* Allocates memory for all conditions, assuming that their values are all different. At most half
 * of the table's slots will be used. */
static int engine_access_make_room(
	struct access *access, const struct access_rule *rules, uint32_t count)
{
	uint32_t condition_count = 0;
	uint32_t slots = 2;

	for (uint32_t i = 0; i < count; i++) {
		condition_count += rules[i].condition_count;
	}
	while (slots < 2 * condition_count) {
		slots *= 2;
	}
	access->rules = calloc(MAX(count, 1U), sizeof(*access->rules));
	access->values = calloc(condition_count + 1, sizeof(*access->values));
	access->table = calloc(slots, sizeof(*access->table));
	access->table_mask = slots - 1;
	return access->rules == NULL || access->values == NULL || access->table == NULL ? -ENOMEM
											: 0;
}

int access_create(const struct access_rule *rules, uint32_t count, struct access **access_out)
{
	struct access *access = calloc(1, sizeof(*access));
	int rc;

	GMB_ASSERT(count <= ACCESS_RULES_MAX);
	if (access == NULL) {
		return -ENOMEM;
	}
	access->references = 1;
	access->any_rule = NO_RULE;
	rc = engine_access_make_room(access, rules, count);
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		rc = copy_rule(access, &rules[i]);
	}
	if (rc < 0) {
		access_free(access);
		return rc;
	}
	for (uint32_t i = 0; i < count; i++) {
		/* A rule is indexed by its rarest value, which is known only after all rules have
		 * been added. */
		index_rule(access, i);
	}
	find_prefixes(access);
	*access_out = access;
	return 0;
}

void access_get(struct access *access)
{
	/* Relaxed order is enough, because the caller's own reference keeps the set alive. */
	atomic_fetch_add_explicit(&access->references, 1, memory_order_relaxed);
}

void access_put(struct access *access)
{
	/* Acquire-release order: the thread that drops the last reference, and frees the set, must
	 * see that all other threads have finished. */
	if (access != NULL &&
		atomic_fetch_sub_explicit(&access->references, 1, memory_order_acq_rel) == 1) {
		access_free(access);
	}
}

/* --- comparing ------------------------------------------------------------------------------- */

static bool has_value(
	const struct access *access, const struct rule *rule, const struct value *value)
{
	for (uint32_t i = 0; i < rule->value_count; i++) {
		const struct value *own = &access->values[rule->values[i]];

		if (own->kind == value->kind && own->bytes == value->bytes &&
			memcmp(own->data, value->data, own->bytes) == 0) {
			return true;
		}
	}
	return false;
}

static bool same_rule(
	const struct access *a, uint32_t index_a, const struct access *b, uint32_t index_b)
{
	const struct rule *one = &a->rules[index_a];
	const struct rule *other = &b->rules[index_b];
	bool same = one->rights == other->rights && one->value_count == other->value_count;

	for (uint32_t i = 0; same && i < one->value_count; i++) {
		same = has_value(b, other, &a->values[one->values[i]]);
	}
	return same;
}

bool access_differ(const struct access *before, const struct access *after,
	struct access_difference *difference_out)
{
	uint32_t before_count = before != NULL ? before->rule_count : 0;
	uint32_t after_count = after != NULL ? after->rule_count : 0;
	uint32_t first = 0;

	while (first < before_count && first < after_count &&
		same_rule(before, first, after, first)) {
		first++;
	}
	while (before_count > first && after_count > first &&
		same_rule(before, before_count - 1, after, after_count - 1)) {
		before_count--;
		after_count--;
	}
	*difference_out = (struct access_difference){
		.added = after_count > first ? after->rules[first].text : NULL,
		.removed = before_count > first ? before->rules[first].text : NULL,
		.added_count = after_count - first,
		.removed_count = before_count - first,
	};
	return before_count > first || after_count > first || (before == NULL) != (after == NULL);
}

/* --- lookup ---------------------------------------------------------------------------------- */

/* The values of a peer that occur in any rule. */
struct found {
	uint32_t values[FOUND_MAX];
	uint32_t count;
};

static void engine_access_find(const struct access *access, struct found *found, uint32_t kind,
	const void *data, uint32_t bytes)
{
	uint32_t index = *engine_access_slot_of(access, kind, data, bytes);

	if (index != 0) {
		GMB_ASSERT(found->count < FOUND_MAX);
		found->values[found->count++] = index - 1;
	}
}

/* Adds each network in the rules that contains the address. IPv6 networks never contain IPv4
 * addresses, even if their prefix is shorter than the prefix of mapped addresses. */
static void find_networks(const struct access *access, struct found *found, const uint8_t *address)
{
	static const uint8_t mapped[ACCESS_MAPPED_BITS / 8] = { [10] = 0xff, [11] = 0xff };
	bool is_mapped = memcmp(address, mapped, sizeof(mapped)) == 0;
	uint8_t network[ACCESS_NETWORK_BYTES];

	memcpy(network, address, ACCESS_ADDRESS_BYTES);
	for (uint32_t i = 0; i < access->prefix_count; i++) {
		uint32_t bits = access->prefixes[i]; /* prefixes get shorter in each round */
		uint32_t whole = bits / 8;

		if (is_mapped && bits < ACCESS_MAPPED_BITS) {
			return;
		}
		memset(network + whole, 0, ACCESS_ADDRESS_BYTES - whole);
		if (bits % 8 != 0) {
			network[whole] = (uint8_t)(address[whole] & (0xff00U >> bits % 8));
		}
		network[ACCESS_ADDRESS_BYTES] = (uint8_t)bits;
		engine_access_find(access, found, ACCESS_NETWORK, network, sizeof(network));
	}
}

static bool engine_access_holds(const struct rule *rule, const struct found *found)
{
	for (uint32_t i = 0; i < rule->value_count; i++) {
		uint32_t at = 0;

		while (at < found->count && found->values[at] != rule->values[i]) {
			at++;
		}
		if (at == found->count) {
			return false;
		}
	}
	return true;
}

struct access_verdict access_look(const struct access *access, const struct access_subject *subject)
{
	uint8_t tls = subject->proved != NULL;
	uint32_t best = access->any_rule;
	struct found found;

	found.count = 0;
	engine_access_find(access, &found, ACCESS_TLS, &tls, sizeof(tls));
	for (uint32_t i = 0; tls && i < subject->proved->value_count; i++) {
		const struct identity_value *value = &subject->proved->values[i];

		engine_access_find(access, &found, value->kind, value->data, value->bytes);
	}
	if (subject->uid != NULL) {
		engine_access_find(access, &found, ACCESS_UID, subject->uid, sizeof(*subject->uid));
	}
	if (subject->address != NULL) {
		find_networks(access, &found, subject->address);
	}
	for (uint32_t i = 0; i < found.count; i++) {
		uint32_t rule = access->values[found.values[i]].first_rule;

		/* The rules of a value are in the order of the whole list, so the search ends at
		 * the best rule found so far. */
		while (rule < best && !engine_access_holds(&access->rules[rule], &found)) {
			rule = access->rules[rule].next;
		}
		best = MIN(best, rule);
	}
	return best == NO_RULE ? (struct access_verdict){ 0 }
			       : (struct access_verdict){ access->rules[best].rights,
					 access->rules[best].origin };
}

/* --- a replaceable set ----------------------------------------------------------------------- */

struct access_slot {
	pthread_mutex_t lock;
	struct access *access;
};

struct access_slot *access_slot_create(struct access *access)
{
	struct access_slot *slot = calloc(1, sizeof(*slot));

	if (slot == NULL) {
		access_put(access);
		return NULL;
	}
	pthread_mutex_init(&slot->lock, NULL);
	slot->access = access;
	return slot;
}

void access_slot_destroy(struct access_slot *slot)
{
	if (slot != NULL) {
		access_put(slot->access);
		pthread_mutex_destroy(&slot->lock);
		free(slot);
	}
}

struct access *access_slot_get(struct access_slot *slot)
{
	struct access *access;

	pthread_mutex_lock(&slot->lock);
	access = slot->access;
	if (access != NULL) {
		access_get(access);
	}
	pthread_mutex_unlock(&slot->lock);
	return access;
}

void access_slot_replace(struct access_slot *slot, struct access *access)
{
	struct access *before;

	pthread_mutex_lock(&slot->lock);
	before = slot->access;
	slot->access = access;
	pthread_mutex_unlock(&slot->lock);
	access_put(before);
}
