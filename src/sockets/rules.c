// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <fnmatch.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sockets/rules.h"

enum { WORD_BYTES = 256, MAPPED_BITS = 96 };

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

/* Parses an unsigned number, which must be the complete text. */
static bool parse_number(const char *text, uint32_t max, uint32_t *number_out)
{
	char *end;
	unsigned long number;

	if (text[0] < '0' || text[0] > '9') {
		return false;
	}
	errno = 0;
	number = strtoul(text, &end, 10);
	*number_out = (uint32_t)number;
	return errno == 0 && *end == '\0' && number <= max;
}

/* Parses ADDRESS[/BITS], or * for all addresses. */
static bool parse_network(char *text, struct rules_rule *rule)
{
	uint32_t bits = 128;
	char *slash;

	if (strcmp(text, "*") == 0) {
		rule->prefix_bits = 0;
		return true;
	}
	slash = strchr(text, '/');
	if (slash != NULL) {
		*slash++ = '\0';
		if (!parse_number(slash, 128, &bits)) {
			return false;
		}
	}
	if (inet_pton(AF_INET6, text, rule->address.bytes) == 1) {
		rule->prefix_bits = (uint8_t)bits;
		return true;
	}
	memcpy(rule->address.bytes, mapped, sizeof(mapped));
	if (inet_pton(AF_INET, text, rule->address.bytes + sizeof(mapped)) != 1 ||
		(slash != NULL && bits > 32)) {
		return false;
	}
	rule->prefix_bits = (uint8_t)(slash == NULL ? 128 : MAPPED_BITS + bits);
	return true;
}

/* Parses NETWORK:PORT, [NETWORK]:PORT, or *:PORT; the port can be *. */
static bool rules_parse_place(char *text, struct rules_rule *rule)
{
	char *colon = strrchr(text, ':');
	uint32_t port = 0;
	size_t length;

	if (colon == NULL) {
		return false;
	}
	*colon++ = '\0';
	if (strcmp(colon, "*") != 0 && (!parse_number(colon, UINT16_MAX, &port) || port == 0)) {
		return false;
	}
	rule->address.port = (uint16_t)port;
	length = strlen(text);
	if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
		text[length - 1] = '\0';
		text++;
	}
	return parse_network(text, rule);
}

static int rules_add_rule(
	struct rules *rules, enum rules_kind kind, const char *word, struct error *error)
{
	struct rules_rule rule = { .kind = kind };
	char copy[WORD_BYTES];

	if (rules->count == RULES_MAX) {
		return error_set(error, -E2BIG, "more than %d rules", RULES_MAX);
	}
	snprintf(copy, sizeof(copy), "%s", word);
	if (!rules_parse_place(copy, &rule)) {
		return error_set(error, -EINVAL,
			"\"%s\" is not a valid address: write ADDRESS:PORT, ADDRESS/BITS:PORT "
			"or [ADDRESS]:PORT, with * for any address or port",
			word);
	}
	rules->rule[rules->count++] = rule;
	return 0;
}

static int set_number(uint32_t *number, const char *key, const char *word, uint32_t min,
	uint32_t max, struct error *error)
{
	if (!parse_number(word, max, number) || *number < min) {
		return error_set(error, -EINVAL, "%s: \"%s\" is not a number from %u to %u", key,
			word, min, max);
	}
	return 0;
}

static int set_off(bool *is_off, const char *key, const char *word, struct error *error)
{
	*is_off = strcmp(word, "off") == 0;
	if (!*is_off && strcmp(word, "auto") != 0) {
		return error_set(error, -EINVAL, "%s: \"%s\" is neither auto nor off", key, word);
	}
	return 0;
}

static int parse_statement(struct rules *rules, const char *key, const char *word,
	const char *program, struct error *error)
{
	int result;

	if (strcmp(key, "connect") == 0) {
		return rules_add_rule(rules, RULES_CONNECT, word, error);
	}
	if (strcmp(key, "listen") == 0) {
		return rules_add_rule(rules, RULES_LISTEN, word, error);
	}
	if (strcmp(key, "program") == 0) {
		rules->program_named = true;
		rules->program_matches |= fnmatch(word, program, 0) == 0;
		return 0;
	}
	if (strcmp(key, "after") == 0) {
		return set_number(&rules->after, key, word, 1, RULES_AFTER_MAX, error);
	}
	if (strcmp(key, "spin") == 0) {
		return set_off(&rules->no_spin, key, word, error);
	}
	if (strcmp(key, "compare") == 0) {
		return set_off(&rules->no_compare, key, word, error);
	}
	if (strcmp(key, "switch-every") == 0) {
		return set_number(&rules->switch_every, key, word, 1, RULES_AFTER_MAX, error);
	}
	if (strcmp(key, "ring") == 0) {
		result = set_number(
			&rules->ring_bytes, key, word, RULES_RING_MIN, RULES_RING_MAX, error);
		if (result == 0 && (rules->ring_bytes & (rules->ring_bytes - 1)) != 0) {
			return error_set(error, -EINVAL, "ring: %s is not a power of two", word);
		}
		return result;
	}
	return error_set(error, -EINVAL, "unknown statement \"%s\"", key);
}

/* Parses one line: words separated by blanks, up to a #. */
static int rules_parse_line(
	struct rules *rules, char *line, const char *program, struct error *error)
{
	static const char blanks[] = " \t\r";
	char *rest = line;
	char *key;
	char *word;
	uint32_t words = 0;

	line[strcspn(line, "#")] = '\0';
	key = strtok_r(line, blanks, &rest);
	if (key == NULL) {
		return 0;
	}
	if (strcmp(key, "refuse") == 0) {
		rules->refuse = true;
		return strtok_r(NULL, blanks, &rest) == NULL
			       ? 0
			       : error_set(error, -EINVAL, "refuse takes no argument");
	}
	while ((word = strtok_r(NULL, blanks, &rest)) != NULL) {
		int result = strlen(word) < WORD_BYTES
				     ? parse_statement(rules, key, word, program, error)
				     : error_set(error, -EINVAL, "a word is too long");

		if (result != 0) {
			return result;
		}
		words++;
	}
	return words > 0 ? 0 : error_set(error, -EINVAL, "\"%s\" requires a word", key);
}

int rules_parse(struct rules *rules, const char *text, const char *program, struct error *error)
{
	char *copy = strlen(text) > RULES_TEXT_BYTES_MAX ? NULL : strdup(text);
	uint32_t number = 0;
	int result = 0;
	char *rest;

	*rules = (struct rules){
		.after = RULES_AFTER_DEFAULT,
	};
	if (copy == NULL) {
		return error_set(error, -E2BIG, "the rules are too long");
	}
	rest = copy;
	while (result == 0 && rest != NULL) {
		char *line = strsep(&rest, "\n;");

		number++;
		result = rules_parse_line(rules, line, program, error);
	}
	free(copy);
	if (result != 0) {
		error_prefix(error, "rules, statement %u", number);
	}
	return result;
}

bool rules_apply(const struct rules *rules)
{
	return rules->count > 0 && (!rules->program_named || rules->program_matches);
}

bool rules_address_of(const struct sockaddr *from, socklen_t length, struct rules_address *address)
{
	if (from == NULL) {
		return false;
	}
	if (length >= sizeof(struct sockaddr_in) && from->sa_family == AF_INET) {
		struct sockaddr_in in;

		memcpy(&in, from, sizeof(in));
		memcpy(address->bytes, mapped, sizeof(mapped));
		memcpy(address->bytes + sizeof(mapped), &in.sin_addr, sizeof(in.sin_addr));
		address->port = ntohs(in.sin_port);
		return true;
	}
	if (length >= sizeof(struct sockaddr_in6) && from->sa_family == AF_INET6) {
		struct sockaddr_in6 in6;

		memcpy(&in6, from, sizeof(in6));
		memcpy(address->bytes, &in6.sin6_addr, sizeof(in6.sin6_addr));
		address->port = ntohs(in6.sin6_port);
		return true;
	}
	return false;
}

static bool in_network(const struct rules_rule *rule, const struct rules_address *address)
{
	uint32_t whole = rule->prefix_bits / 8;
	uint32_t rest = rule->prefix_bits % 8;
	uint8_t mask = (uint8_t)(0xff00 >> rest);

	return memcmp(rule->address.bytes, address->bytes, whole) == 0 &&
	       (rest == 0 || ((rule->address.bytes[whole] ^ address->bytes[whole]) & mask) == 0);
}

bool rules_match(
	const struct rules *rules, enum rules_kind kind, const struct rules_address *address)
{
	for (uint32_t i = 0; i < rules->count; i++) {
		const struct rules_rule *rule = &rules->rule[i];

		if (rule->kind == kind &&
			(rule->address.port == 0 || rule->address.port == address->port) &&
			in_network(rule, address)) {
			return true;
		}
	}
	return false;
}

bool rules_match_port(const struct rules *rules, enum rules_kind kind, uint16_t port)
{
	for (uint32_t i = 0; i < rules->count; i++) {
		const struct rules_rule *rule = &rules->rule[i];

		if (rule->kind == kind && (rule->address.port == 0 || rule->address.port == port)) {
			return true;
		}
	}
	return false;
}
