// SPDX-License-Identifier: Apache-2.0
/*
 * What it costs to ask the rules of access for the rights of a peer, once for each connection and
 * export, by the number of rules and by who asks. One rule holds, the last one, but for the peer
 * for whom none does.
 *
 *   access_rate LOOKUPS
 *
 * Prints one JSON array. Threading: one thread. Errors: exit status 1 and a line on standard error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/access.h"

enum { RULES_MAX = 10000, NAMES_MAX = 64, NAME_BYTES = 32 };

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "access_rate: %s\n", what);
	exit(1);
}

static void add(struct access_rule *rule, uint32_t kind, const void *data, uint32_t bytes)
{
	if (access_rule_add(rule, kind, data, bytes) < 0) {
		fail("out of memory");
	}
}

static void add_name(struct access_rule *rule, uint32_t kind, const char *format, uint32_t number)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), format, number);
	add(rule, kind, name, (uint32_t)strlen(name));
}

/* 10.x.y.0/24, mapped. */
static void add_network(struct access_rule *rule, uint32_t number)
{
	uint8_t network[ACCESS_NETWORK_BYTES] = { [10] = 0xff, [11] = 0xff, [12] = 10 };

	network[13] = (uint8_t)(number >> 8);
	network[14] = (uint8_t)number;
	network[ACCESS_ADDRESS_BYTES] = ACCESS_MAPPED_BITS + 24;
	add(rule, ACCESS_NETWORK, network, sizeof(network));
}

/* Of four kinds in turn; the last four are of the peers that ask. */
static struct access *make(uint32_t count)
{
	static struct access_rule rules[RULES_MAX];
	struct access *access;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t number = count - 1 - i;

		rules[i] = (struct access_rule){ .rights = ENGINE_RIGHT_READ,
			.origin = strdup("bench") };
		if (number % 4 == 0) {
			add_name(&rules[i], IDENTITY_PSK, "user-%u", number / 4);
		} else if (number % 4 == 1) {
			add_network(&rules[i], number / 4);
		} else if (number % 4 == 2) {
			add_name(&rules[i], IDENTITY_CERT_DNS, "host-%u.example", number / 4);
		} else {
			add_name(&rules[i], IDENTITY_PSK, "guest-%u", number / 4);
			add_network(&rules[i], number / 4 + 1);
		}
	}
	if (access_create(rules, count, &access) < 0) {
		fail("out of memory");
	}
	for (uint32_t i = 0; i < count; i++) {
		access_rule_fini(&rules[i]);
	}
	return access;
}

static double ns_per_look(
	const struct access *access, const struct access_subject *peer, uint32_t looks, bool wanted)
{
	uint64_t begin_ns = clock_now_ns();

	for (uint32_t i = 0; i < looks; i++) {
		if ((access_look(access, peer).rights != 0) != wanted) {
			fail("the rules say something else");
		}
	}
	return (double)(clock_now_ns() - begin_ns) / looks;
}

int main(int argc, char **argv)
{
	static const uint32_t counts[] = { 10, 100, 1000, RULES_MAX };
	static const uint8_t address[ACCESS_ADDRESS_BYTES] = { [10] = 0xff, 0xff, 10, 0, 0, 7 };
	static const uint8_t nowhere[ACCESS_ADDRESS_BYTES] = { [10] = 0xff, 0xff, 192, 0, 2, 7 };
	static char names[NAMES_MAX][NAME_BYTES];
	struct identity *psk = calloc(1, sizeof(*psk) + sizeof(psk->values[0]));
	struct identity *certificate =
		calloc(1, sizeof(*certificate) + NAMES_MAX * sizeof(certificate->values[0]));
	uint32_t looks = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;

	if (looks == 0 || psk == NULL || certificate == NULL) {
		fail("give the number of look-ups");
	}
	psk->value_count = 1;
	psk->values[0] = (struct identity_value){ IDENTITY_PSK, 6, (const uint8_t *)"user-0" };
	certificate->value_count = NAMES_MAX; /* of which one is the host's */
	for (uint32_t i = 0; i < NAMES_MAX; i++) {
		snprintf(names[i], NAME_BYTES, i == 0 ? "host-0.example" : "alias-%u.example", i);
		certificate->values[i] = (struct identity_value){ IDENTITY_CERT_DNS,
			(uint32_t)strlen(names[i]), (const uint8_t *)names[i] };
	}
	for (uint32_t i = 0; i < ARRAY_COUNT(counts); i++) {
		struct access *access = make(counts[i]);
		const struct access_subject by_psk = { .proved = psk, .address = nowhere };
		const struct access_subject by_certificate = { .proved = certificate,
			.address = nowhere };
		const struct access_subject by_address = { .address = address };
		const struct access_subject nobody = { .address = nowhere };

		printf("%s{\"rules\": %u, \"psk\": %.1f, \"certificate\": %.1f, \"address\": %.1f, "
		       "\"nobody\": %.1f}%s",
			i == 0 ? "[" : " ", counts[i], ns_per_look(access, &by_psk, looks, true),
			ns_per_look(access, &by_certificate, looks, true),
			ns_per_look(access, &by_address, looks, true),
			ns_per_look(access, &nobody, looks, false),
			i + 1 == ARRAY_COUNT(counts) ? "]\n" : ",\n");
		access_put(access);
	}
	free(psk);
	free(certificate);
	return 0;
}
