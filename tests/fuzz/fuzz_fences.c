// SPDX-License-Identifier: Apache-2.0
/*
 * The file of the fenced nodes. The first byte of the input says whether the last line, with the
 * number of nodes and the checksum, is added to the text, so that more than the checksum is tried.
 */
#include <stdio.h>

#include "base/crc32c.h"
#include "fuzz.h"
#include "server/fence/list.h"

enum { END_ROOM = 64 };

/* The input with a last line that is right. */
static size_t add_end(char *text, size_t bytes)
{
	uint32_t count = 0;

	for (size_t i = 0; i + 5 <= bytes; i++) {
		count += (i == 0 || text[i - 1] == '\n') && memcmp(text + i, "node ", 5) == 0;
	}
	return bytes + (size_t)snprintf(text + bytes, END_ROOM, "end %u %08x\n", count,
			       crc32c(0, text, bytes));
}

static void check_records(const struct fence_list *list)
{
	GMB_ASSERT(list->count <= FENCE_NODES_MAX);
	for (uint32_t i = 0; i < list->count; i++) {
		const struct fence_record *record = &list->records[i];

		GMB_ASSERT(server_node_check_name(record->name, NULL) == 0);
		GMB_ASSERT(record->rules.rule_count > 0);
		for (uint32_t k = 0; k < record->rules.rule_count; k++) {
			GMB_ASSERT(record->rules.rules[k].condition_count > 0);
			GMB_ASSERT(access_condition_find(&record->rules.rules[k], ACCESS_NODE) ==
				   NULL);
			GMB_ASSERT(fence_rules_has(&record->rules, &record->rules.rules[k]));
		}
	}
}

/* What is written of a list is the same list again, and the same text. */
static void check_again(const struct fence_list *list)
{
	struct fence_list same;
	struct error error = { 0 };
	char *texts[2];
	size_t bytes[2];

	GMB_ASSERT(fence_list_format(list, &texts[0], &bytes[0], &error) == 0);
	GMB_ASSERT(fence_list_parse(texts[0], bytes[0], &same, &error) == 0);
	GMB_ASSERT(same.count == list->count);
	for (uint32_t i = 0; i < list->count; i++) {
		const struct fence_record *record = &list->records[i];

		GMB_ASSERT(strcmp(record->name, same.records[i].name) == 0 &&
			   record->since_s == same.records[i].since_s &&
			   record->rules.rule_count == same.records[i].rules.rule_count);
		for (uint32_t k = 0; k < record->rules.rule_count; k++) {
			GMB_ASSERT(access_rule_same(
				&record->rules.rules[k], &same.records[i].rules.rules[k]));
		}
	}
	GMB_ASSERT(fence_list_format(&same, &texts[1], &bytes[1], &error) == 0);
	GMB_ASSERT(bytes[0] == bytes[1] && memcmp(texts[0], texts[1], bytes[0]) == 0);
	fence_list_fini(&same);
	free(texts[0]);
	free(texts[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t bytes = size - 1;
	struct fence_list list;
	struct error error = { 0 };
	char *room;
	char *text;
	int rc;

	if (size == 0) {
		return 0;
	}
	room = malloc(bytes + END_ROOM);
	GMB_ASSERT(room != NULL);
	memcpy(room, data + 1, bytes);
	if ((data[0] & 1) != 0) {
		bytes = add_end(room, bytes);
	}
	text = fuzz_text((const uint8_t *)room, bytes);
	rc = fence_list_parse(text, bytes, &list, &error);
	if (rc == 0) {
		check_records(&list);
		check_again(&list);
		fence_list_fini(&list);
	} else {
		GMB_ASSERT(rc < 0 && error.code == rc && error.text[0] != '\0');
		GMB_ASSERT(list.records == NULL && list.count == 0);
	}
	free(text);
	free(room);
	return 0;
}
