// SPDX-License-Identifier: Apache-2.0
/*
 * Sets of rules of access: the index finds what reading the rules one by one finds.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/access.h"
#include "unit.h"

enum { RW = ENGINE_RIGHT_READ | ENGINE_RIGHT_WRITE, RO = ENGINE_RIGHT_READ, VALUES = 4 };

/* --- rules and peers in few words --------------------------------------------------------------
 */

static void add(struct access_rule *rule, uint32_t kind, const void *data, size_t bytes)
{
	assert_int_equal(access_rule_add(rule, kind, data, (uint32_t)bytes), 0);
}

static void begin(struct access_rule *rule, uint32_t rights, const char *origin)
{
	*rule = (struct access_rule){ .rights = rights, .origin = strdup(origin) };
	assert_non_null(rule->origin);
}

static struct access *build(struct access_rule *rules, uint32_t count)
{
	struct access *access;

	assert_int_equal(access_create(rules, count, &access), 0);
	for (uint32_t i = 0; i < count; i++) {
		access_rule_fini(&rules[i]);
	}
	return access;
}

union person {
	struct identity identity;
	uint8_t room[sizeof(struct identity) + VALUES * sizeof(struct identity_value)];
};

static void has(union person *person, enum identity_kind kind, const char *value)
{
	person->identity.is_proved = true;
	person->identity.values[person->identity.value_count++] =
		(struct identity_value){ kind, (uint32_t)strlen(value), (const uint8_t *)value };
}

static uint32_t rights_of(const struct access *access, const struct access_subject *subject)
{
	return access_look(access, subject).rights;
}

/* --- what a rule means --------------------------------------------------------------------------
 */

TEST(the_first_rule_decides)
{
	struct access_subject subject = { 0 };
	union person alice = { 0 };
	struct access_rule rules[4];
	struct access_verdict verdict;
	struct access *access;

	has(&alice, IDENTITY_PSK, "alice");
	subject.proved = &alice.identity;
	begin(&rules[0], RO, "first");
	add(&rules[0], IDENTITY_PSK, "bob", 3);
	begin(&rules[1], RW, "second");
	add(&rules[1], IDENTITY_PSK, "alice", 5);
	begin(&rules[2], RO, "third");
	begin(&rules[3], RW, "fourth");
	access = build(rules, 4);
	verdict = access_look(access, &subject);
	assert_int_equal(verdict.rights, RW);
	assert_string_equal(verdict.origin, "second");
	subject.proved = NULL;
	verdict = access_look(access, &subject);
	assert_int_equal(verdict.rights, RO);
	assert_string_equal(verdict.origin, "third");
	access_put(access);
}

TEST(nobody_matches_no_rule)
{
	const struct access_subject subject = { 0 };
	struct access *access = build(NULL, 0);
	struct access_verdict verdict = access_look(access, &subject);

	assert_int_equal(verdict.rights, 0);
	assert_null(verdict.origin);
	access_put(access);
}

TEST(a_kind_occurs_once)
{
	struct access_rule rule;

	begin(&rule, RW, "x");
	add(&rule, IDENTITY_PSK, "a", 1);
	assert_int_equal(access_rule_add(&rule, IDENTITY_PSK, "b", 1), -EEXIST);
	access_rule_fini(&rule);
	assert_int_equal(rule.condition_count, 0);
}

/* Whether a rule with that condition lets the peer in. */
static bool admits(uint32_t kind, const void *data, size_t bytes, const struct access_subject *peer)
{
	struct access_rule rule;
	struct access *access;
	bool admitted;

	begin(&rule, RW, "x");
	add(&rule, kind, data, bytes);
	access = build(&rule, 1);
	admitted = rights_of(access, peer) == RW;
	access_put(access);
	return admitted;
}

TEST(names_are_no_prefixes)
{
	union person person = { 0 };
	struct access_subject peer = { .proved = &person.identity };

	has(&person, IDENTITY_PSK, "alice");
	has(&person, IDENTITY_CERT_DNS, "host-a.example");
	assert_true(admits(IDENTITY_PSK, "alice", 5, &peer));
	assert_false(admits(IDENTITY_PSK, "alic", 4, &peer));
	assert_false(admits(IDENTITY_PSK, "alice2", 6, &peer));
	assert_false(admits(IDENTITY_PSK, "alice", 6, &peer)); /* with its terminator */
	assert_false(admits(IDENTITY_PSK, "Alice", 5, &peer));
	assert_false(admits(IDENTITY_PSK, "", 0, &peer));
	/* The same bytes as another kind of name are another name. */
	assert_false(admits(IDENTITY_CERT_CN, "alice", 5, &peer));
	assert_false(admits(IDENTITY_PSK, "host-a.example", 14, &peer));
	assert_true(admits(IDENTITY_CERT_DNS, "host-a.example", 14, &peer));
	assert_false(admits(IDENTITY_CERT_DNS, "*.example", 9, &peer));
}

TEST(users_and_tls)
{
	const uint32_t root = 0;
	const uint32_t user = 64055;
	const uint8_t yes = 1;
	const uint8_t no = 0;
	union person nobody = { 0 };
	struct access_subject peer = { .uid = &user };
	struct access_subject stranger = { .proved = &nobody.identity };

	assert_true(admits(ACCESS_UID, &user, sizeof(user), &peer));
	assert_false(admits(ACCESS_UID, &root, sizeof(root), &peer));
	assert_false(admits(ACCESS_UID, &root, sizeof(root), &stranger)); /* unknown is not root */
	assert_true(admits(ACCESS_TLS, &no, 1, &peer));
	assert_false(admits(ACCESS_TLS, &yes, 1, &peer));
	assert_true(admits(ACCESS_TLS, &yes, 1, &stranger));
	assert_false(admits(ACCESS_TLS, &no, 1, &stranger));
}

struct network {
	uint8_t bytes[ACCESS_NETWORK_BYTES];
};

/* IPv4 from four bytes, mapped; prefix of IPv4. */
static struct network ipv4(uint32_t address, uint32_t prefix)
{
	struct network network = { { [10] = 0xff, [11] = 0xff } };

	for (uint32_t i = 0; i < 4; i++) {
		network.bytes[12 + i] = (uint8_t)(address >> (24 - 8 * i));
	}
	network.bytes[ACCESS_ADDRESS_BYTES] = (uint8_t)(ACCESS_MAPPED_BITS + prefix);
	return network;
}

static bool network_admits(struct network network, struct network address)
{
	const struct access_subject peer = { .address = address.bytes };

	return admits(ACCESS_NETWORK, network.bytes, sizeof(network.bytes), &peer);
}

TEST(networks)
{
	const struct network everybody6 = { { 0 } };
	const struct network global6 = { { 0x20, [ACCESS_ADDRESS_BYTES] = 3 } };
	const struct network host6 = { { 0x20, 0x01, [15] = 7 } };
	const struct network other6 = { { 0xfe, 0x80, [15] = 7 } };

	assert_true(network_admits(ipv4(0x0a010000, 16), ipv4(0x0a01ffff, 32)));
	assert_true(network_admits(ipv4(0x0a010000, 16), ipv4(0x0a010000, 32)));
	/* As text, "10.1" is where 10.10.0.0 begins. */
	assert_false(network_admits(ipv4(0x0a010000, 16), ipv4(0x0a0a0000, 32)));
	assert_false(network_admits(ipv4(0x0a010000, 16), ipv4(0x0a020000, 32)));
	assert_true(network_admits(ipv4(0x0a010200, 23), ipv4(0x0a010301, 32)));
	assert_false(network_admits(ipv4(0x0a010200, 23), ipv4(0x0a010401, 32)));
	assert_true(network_admits(ipv4(0x0a010203, 32), ipv4(0x0a010203, 32)));
	assert_false(network_admits(ipv4(0x0a010203, 32), ipv4(0x0a010202, 32)));
	assert_true(network_admits(ipv4(0, 0), ipv4(0xffffffff, 32)));
	assert_false(network_admits(ipv4(0, 0), host6));
	assert_true(network_admits(everybody6, host6));
	assert_false(network_admits(everybody6, ipv4(0x0a010203, 32)));
	assert_true(network_admits(global6, host6));
	assert_false(network_admits(global6, other6));
}

/* --- many of them, at random --------------------------------------------------------------------
 */

static uint32_t next(uint64_t *seed, uint32_t below)
{
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*seed >> 33) % below;
}

static const char *const words[] = { "", "a", "b", "aa", "ab" };

/* Of few values, so that rules and peers often meet. */
static void add_any(struct access_rule *rule, uint64_t *seed)
{
	static const uint8_t prefixes[] = { 0, 8, 15, 16, 31, 32 };
	uint32_t kind = next(seed, 6);
	const char *word = words[next(seed, ARRAY_COUNT(words))];
	uint32_t uid = next(seed, 3);
	uint8_t tls = (uint8_t)next(seed, 2);
	uint32_t prefix = prefixes[next(seed, ARRAY_COUNT(prefixes))];
	uint32_t bits = prefix == 0 ? 0 : next(seed, UINT32_MAX) & UINT32_MAX << (32 - prefix);
	struct network network = ipv4(bits & 0x01010101, prefix);
	int rc;

	if (kind == 0) {
		rc = access_rule_add(rule, ACCESS_UID, &uid, sizeof(uid));
	} else if (kind == 1) {
		rc = access_rule_add(rule, ACCESS_TLS, &tls, 1);
	} else if (kind == 2) {
		rc = access_rule_add(rule, ACCESS_NETWORK, network.bytes, sizeof(network.bytes));
	} else {
		rc = access_rule_add(rule, IDENTITY_PSK + kind - 3, word, (uint32_t)strlen(word));
	}
	assert_true(rc == 0 || rc == -EEXIST);
}

static bool plainly_holds(
	const struct access_condition *condition, const struct access_subject *peer)
{
	if (condition->kind == ACCESS_UID) {
		return peer->uid != NULL && memcmp(peer->uid, condition->data, 4) == 0;
	}
	if (condition->kind == ACCESS_TLS) {
		return condition->data[0] == (peer->proved != NULL);
	}
	if (condition->kind == ACCESS_NETWORK) {
		for (uint32_t i = 0; i < condition->data[ACCESS_ADDRESS_BYTES]; i++) {
			uint32_t mask = 0x80U >> i % 8;

			if (peer->address == NULL ||
				(peer->address[i / 8] & mask) != (condition->data[i / 8] & mask)) {
				return false;
			}
		}
		return true;
	}
	for (uint32_t i = 0; peer->proved != NULL && i < peer->proved->value_count; i++) {
		const struct identity_value *value = &peer->proved->values[i];

		if (value->kind == condition->kind && value->bytes == condition->bytes &&
			memcmp(value->data, condition->data, value->bytes) == 0) {
			return true;
		}
	}
	return false;
}

static const char *plainly_decides(
	const struct access_rule *rules, uint32_t count, const struct access_subject *peer)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t k = 0;

		while (k < rules[i].condition_count &&
			plainly_holds(&rules[i].conditions[k], peer)) {
			k++;
		}
		if (k == rules[i].condition_count) {
			return rules[i].origin;
		}
	}
	return "";
}

TEST(the_index_finds_what_reading_finds)
{
	enum { SETS = 400, RULES = 48, PEERS = 50 };
	uint64_t seed = 1;
	uint32_t decided = 0;

	for (uint32_t set = 0; set < SETS; set++) {
		struct access_rule rules[RULES];
		uint32_t count = next(&seed, RULES);
		struct access *access;

		for (uint32_t i = 0; i < count; i++) {
			char origin[16];

			snprintf(origin, sizeof(origin), "%u", i);
			begin(&rules[i], next(&seed, 4), origin);
			/* Seldom none: what is behind it never decides. */
			for (uint32_t k = next(&seed, 60) == 0 ? 4 : next(&seed, 4); k < 4; k++) {
				add_any(&rules[i], &seed);
			}
		}
		assert_int_equal(access_create(rules, count, &access), 0);
		for (uint32_t peer_idx = 0; peer_idx < PEERS; peer_idx++) {
			uint32_t uid = next(&seed, 3);
			struct network address = ipv4(next(&seed, UINT32_MAX) & 0x01010101, 32);
			union person person = { 0 };
			struct access_subject peer = {
				.proved = next(&seed, 3) > 0 ? &person.identity : NULL,
				.uid = next(&seed, 2) > 0 ? &uid : NULL,
				.address = next(&seed, 3) > 0 ? address.bytes : NULL,
			};
			struct access_verdict verdict;
			const char *wanted;

			for (uint32_t i = next(&seed, VALUES + 1); i < VALUES; i++) {
				has(&person, (enum identity_kind)next(&seed, 3),
					words[next(&seed, ARRAY_COUNT(words))]);
			}
			wanted = plainly_decides(rules, count, &peer);
			verdict = access_look(access, &peer);
			assert_string_equal(verdict.origin != NULL ? verdict.origin : "", wanted);
			decided += wanted[0] != '\0';
		}
		for (uint32_t i = 0; i < count; i++) {
			access_rule_fini(&rules[i]);
		}
		access_put(access);
	}
	/* Both happen often, or this shows nothing. */
	assert_in_range(decided, SETS * PEERS / 4, SETS * PEERS * 3 / 4);
}
