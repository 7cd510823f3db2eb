// SPDX-License-Identifier: Apache-2.0
#include "server/fence/list.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/log.h"

const char fence_list_file[] = "fenced";
static const char head[] = "gmblock-fenced 1\n";

enum { SHORT_BYTES = 96, END_BYTES = 32 };

/* Names of the conditions in the file, and the lengths of their values. */
static const struct {
	const char *name;
	uint32_t bytes_min;
	uint32_t bytes_max;
} kinds[ACCESS_KIND_COUNT] = {
	[IDENTITY_PSK] = { "psk", 1, IDENTITY_STRING_BYTES_MAX },
	[IDENTITY_CERT_DN] = { "cert-dn", 1, IDENTITY_VALUE_BYTES_MAX },
	[IDENTITY_CERT_CN] = { "cert-cn", 1, IDENTITY_STRING_BYTES_MAX },
	[IDENTITY_CERT_DNS] = { "dns", 1, IDENTITY_STRING_BYTES_MAX },
	[IDENTITY_CERT_EMAIL] = { "email", 1, IDENTITY_STRING_BYTES_MAX },
	[IDENTITY_CERT_URI] = { "uri", 1, IDENTITY_STRING_BYTES_MAX },
	[IDENTITY_CERT_IP] = { "ip", ACCESS_ADDRESS_BYTES, ACCESS_ADDRESS_BYTES },
	[IDENTITY_CERT_FINGERPRINT] = { "certificate", IDENTITY_DIGEST_BYTES,
		IDENTITY_DIGEST_BYTES },
	[IDENTITY_KEY_FINGERPRINT] = { "key", IDENTITY_DIGEST_BYTES, IDENTITY_DIGEST_BYTES },
	[ACCESS_UID] = { "uid", sizeof(uint32_t), sizeof(uint32_t) },
	[ACCESS_NETWORK] = { "network", ACCESS_NETWORK_BYTES, ACCESS_NETWORK_BYTES },
	[ACCESS_TLS] = { "encrypted", 1, 1 },
};

/* --- rules ------------------------------------------------------------------------------------ */

bool fence_rules_has(const struct server_access *access, const struct access_rule *rule)
{
	for (uint32_t i = 0; i < access->rule_count; i++) {
		if (access_rule_same(&access->rules[i], rule)) {
			return true;
		}
	}
	return false;
}

/* Appends a rule, whose memory then belongs to the list. */
static int keep_rule(struct server_access *into, struct access_rule *rule, const char *name)
{
	rule->origin = strdup(name); /* any text: only matching rules have one */
	if (rule->origin == NULL || array_grow(&into->rules, into->rule_count, sizeof(*rule)) < 0) {
		access_rule_fini(rule);
		return -ENOMEM;
	}
	into->rules[into->rule_count++] = *rule;
	return 0;
}

static bool is_rule_of(const struct access_rule *rule, const char *name)
{
	const struct access_condition *node = access_condition_find(rule, ACCESS_NODE);

	return node != NULL && node->bytes == strlen(name) &&
	       memcmp(node->data, name, node->bytes) == 0;
}

int fence_rules_add(
	struct server_access *into, const struct server_access *from, const char *name, bool *grown)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < from->rule_count; i++) {
		const struct access_rule *rule = &from->rules[i];
		struct access_rule copy = { 0 };

		if (name != NULL && !is_rule_of(rule, name)) {
			continue;
		}
		for (uint32_t k = 0; rc == 0 && k < rule->condition_count; k++) {
			const struct access_condition *condition = &rule->conditions[k];

			if (name == NULL || condition->kind != ACCESS_NODE) {
				rc = access_rule_add(
					&copy, condition->kind, condition->data, condition->bytes);
			}
		}
		if (rc < 0 || fence_rules_has(into, &copy)) {
			access_rule_fini(&copy);
			continue;
		}
		rc = keep_rule(into, &copy, name != NULL ? name : rule->origin);
		if (rc == 0 && grown != NULL) {
			*grown = true;
		}
	}
	return rc;
}

void fence_list_fini(struct fence_list *list)
{
	for (uint32_t i = 0; i < list->count; i++) {
		server_access_fini(&list->records[i].rules);
	}
	free(list->records);
	*list = (struct fence_list){ 0 };
}

/* --- formatting ------------------------------------------------------------------------------- */

static void format_rule(FILE *out, const struct access_rule *rule)
{
	fputs("when", out);
	for (uint32_t i = 0; i < rule->condition_count; i++) {
		const struct access_condition *condition = &rule->conditions[i];

		fprintf(out, " %s:", kinds[condition->kind].name);
		for (uint32_t k = 0; k < condition->bytes; k++) {
			fprintf(out, "%02x", condition->data[k]);
		}
	}
	fputc('\n', out);
}

int fence_list_format(
	const struct fence_list *list, char **text_out, size_t *bytes_out, struct error *error)
{
	FILE *out = open_memstream(text_out, bytes_out);
	bool is_whole;

	if (out == NULL) {
		return error_oom_for(error, "the list of fenced nodes");
	}
	fputs(head, out);
	for (uint32_t i = 0; i < list->count; i++) {
		const struct fence_record *record = &list->records[i];

		fprintf(out, "node %s %" PRIu64 "\n", record->name, record->since_s);
		for (uint32_t k = 0; k < record->rules.rule_count; k++) {
			format_rule(out, &record->rules.rules[k]);
		}
	}
	is_whole = fflush(out) == 0 && ferror(out) == 0;
	if (is_whole) {
		fprintf(out, "end %u %08x\n", list->count, crc32c(0, *text_out, *bytes_out));
	}
	if (fclose(out) != 0 || !is_whole) {
		free(*text_out);
		return error_oom_for(error, "the list of fenced nodes");
	}
	if (*bytes_out > FENCE_FILE_BYTES_MAX) {
		free(*text_out);
		*text_out = NULL;
		return error_set(error, -EFBIG,
			"the list of fenced nodes would be longer than %d bytes; give the nodes "
			"fewer or shorter conditions",
			FENCE_FILE_BYTES_MAX);
	}
	return 0;
}

/* --- parsing ---------------------------------------------------------------------------------- */

struct reader {
	const char *at;
	const char *end;
	struct fence_list *list;
};

/* Returns whether the next line begins with the word, and skips the word. */
static bool list_take(struct reader *reader, const char *word)
{
	size_t bytes = strlen(word);

	if ((size_t)(reader->end - reader->at) < bytes || memcmp(reader->at, word, bytes) != 0) {
		return false;
	}
	reader->at += bytes;
	return true;
}

/* Copies the text up to the stop character, and skips both. Returns false if the text is empty, too
 * long, or contains a zero byte. */
static bool take_word(struct reader *reader, char stop, char *out, size_t out_bytes)
{
	const char *stops = memchr(reader->at, stop, (size_t)(reader->end - reader->at));
	size_t bytes = stops != NULL ? (size_t)(stops - reader->at) : 0;

	if (bytes == 0 || bytes >= out_bytes || memchr(reader->at, '\0', bytes) != NULL) {
		return false;
	}
	memcpy(out, reader->at, bytes);
	out[bytes] = '\0';
	reader->at = stops + 1;
	return true;
}

static bool list_number(struct reader *reader, char stop, int base, uint64_t *number_out)
{
	char text[24];
	char *end;

	/* strtoull() also accepts spaces, signs and "0x". */
	if (!take_word(reader, stop, text, sizeof(text)) ||
		strspn(text, base == 10 ? "0123456789" : "0123456789abcdef") != strlen(text)) {
		return false;
	}
	errno = 0;
	*number_out = strtoull(text, &end, base);
	return errno == 0 && *end == '\0';
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads the hexadecimal bytes up to the next space or the end of the line. */
static bool take_hex(struct reader *reader, uint32_t bytes_max, uint8_t *out, uint32_t *bytes_out)
{
	*bytes_out = 0;
	while (reader->at < reader->end && *reader->at != ' ' && *reader->at != '\n') {
		int high = hex_digit(reader->at[0]);
		int low = reader->end - reader->at > 1 ? hex_digit(reader->at[1]) : -1;

		if (high < 0 || low < 0 || *bytes_out == bytes_max) {
			return false;
		}
		out[(*bytes_out)++] = (uint8_t)(high << 4 | low);
		reader->at += 2;
	}
	return reader->at < reader->end;
}

/* Reads one condition, " NAME:BYTES". Returns 0, -EPROTO or -ENOMEM. */
static int take_condition(struct reader *reader, struct access_rule *rule)
{
	uint8_t value[IDENTITY_VALUE_BYTES_MAX];
	char name[SHORT_BYTES];
	uint32_t bytes;
	uint32_t kind = 0;
	int rc;

	if (!list_take(reader, " ") || !take_word(reader, ':', name, sizeof(name))) {
		return -EPROTO;
	}
	while (kind < ACCESS_KIND_COUNT &&
		(kinds[kind].name == NULL || strcmp(kinds[kind].name, name) != 0)) {
		kind++;
	}
	if (kind == ACCESS_KIND_COUNT || !take_hex(reader, kinds[kind].bytes_max, value, &bytes) ||
		bytes < kinds[kind].bytes_min ||
		(kind == ACCESS_NETWORK &&
			value[ACCESS_ADDRESS_BYTES] > 8 * ACCESS_ADDRESS_BYTES)) {
		return -EPROTO;
	}
	rc = access_rule_add(rule, kind, value, bytes);
	return rc == -EEXIST ? -EPROTO : rc;
}

static int take_rule(struct reader *reader)
{
	struct fence_record *record =
		reader->list->count > 0 ? &reader->list->records[reader->list->count - 1] : NULL;
	struct access_rule rule = { 0 };
	int rc = record != NULL && record->rules.rule_count < ACCESS_RULES_MAX ? 0 : -EPROTO;

	while (rc == 0 && !list_take(reader, "\n")) {
		rc = take_condition(reader, &rule);
	}
	if (rc == 0 && rule.condition_count == 0) {
		rc = -EPROTO;
	}
	if (rc < 0) {
		access_rule_fini(&rule);
		return rc;
	}
	return keep_rule(&record->rules, &rule, record->name);
}

static int take_node(struct reader *reader)
{
	struct fence_list *list = reader->list;
	struct fence_record record = { 0 };

	if (list->count == FENCE_NODES_MAX ||
		!take_word(reader, ' ', record.name, sizeof(record.name)) ||
		!list_number(reader, '\n', 10, &record.since_s) ||
		server_node_check_name(record.name, NULL) < 0) {
		return -EPROTO;
	}
	for (uint32_t i = 0; i < list->count; i++) {
		if (strcmp(list->records[i].name, record.name) == 0) {
			return -EPROTO;
		}
	}
	if (array_grow(&list->records, list->count, sizeof(record)) < 0) {
		return -ENOMEM;
	}
	list->records[list->count++] = record;
	return 0;
}

/* Reads the last line, after the word "end ". crc: of all bytes before this line. */
static int take_end(struct reader *reader, uint32_t crc)
{
	uint64_t count;
	uint64_t found;
	bool is_complete = list_number(reader, ' ', 10, &count) &&
			   list_number(reader, '\n', 16, &found) && reader->at == reader->end;

	for (uint32_t i = 0; i < reader->list->count; i++) {
		is_complete &= reader->list->records[i].rules.rule_count > 0;
	}
	return is_complete && count == reader->list->count && found == crc ? 1 : -EPROTO;
}

int fence_list_parse(const char *text, size_t bytes, struct fence_list *list, struct error *error)
{
	struct reader reader = { .at = text, .end = text + bytes, .list = list };
	uint32_t line = 1;
	int rc = list_take(&reader, head) ? 0 : -EPROTO;

	*list = (struct fence_list){ 0 };
	while (rc == 0) {
		const char *begin = reader.at;

		line++;
		rc = list_take(&reader, "node ")  ? take_node(&reader)
		     : list_take(&reader, "when") ? take_rule(&reader)
		     : list_take(&reader, "end ")
			     ? take_end(&reader, crc32c(0, text, (size_t)(begin - text)))
			     : -EPROTO;
	}
	if (rc < 0) {
		fence_list_fini(list);
		return rc == -ENOMEM ? error_oom_for(error, "the list of fenced nodes")
				     : error_set(error, rc,
					       "line %u is not part of a complete list of fenced "
					       "nodes: the file is damaged",
					       line);
	}
	return 0;
}

/* --- the file --------------------------------------------------------------------------------- */

int fence_list_read(const struct state_folder *folder, struct fence_list *list, struct error *error)
{
	char *text = NULL;
	size_t bytes = 0;
	int rc = state_folder_read(folder, fence_list_file, &text, &bytes);

	*list = (struct fence_list){ 0 };
	if (rc == -ENOENT) {
		return 0;
	}
	if (rc < 0) {
		error_set(error, rc, "%s",
			rc == -EPROTO ? "the file is damaged: it is not a list of fenced nodes"
				      : strerror(-rc));
	} else {
		rc = fence_list_parse(text, bytes, list, error);
	}
	free(text);
	if (rc < 0) {
		error_prefix(error, "%s/%s", quote(folder->path), fence_list_file);
	}
	return rc;
}
