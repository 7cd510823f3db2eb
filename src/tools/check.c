// SPDX-License-Identifier: Apache-2.0
/* What is in a file of a format of ours, as JSON and for people. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "store/store.h"
#include "tools/show.h"

enum { SHOWN_BYTES = 1024 };

struct findings {
	struct store_check check;
	json_t *root;
	json_t *faults;
};

static void take_fact(struct store_check *check, const char *key, const char *text)
{
	struct findings *findings = container_of(check, struct findings, check);

	json_object_set_new(findings->root, key, print_json_text(text));
}

static void take_amount(struct store_check *check, const char *key, uint64_t bytes)
{
	struct findings *findings = container_of(check, struct findings, check);

	json_object_set_new(findings->root, key, json_integer((json_int_t)bytes));
}

static void take_entry(struct store_check *check, const char *list, const char *text)
{
	struct findings *findings = container_of(check, struct findings, check);

	if (json_object_get(findings->root, list) == NULL) {
		json_object_set_new(findings->root, list, json_array());
	}
	if (text != NULL) {
		json_array_append_new(json_object_get(findings->root, list), print_json_text(text));
	}
}

static void take_fault(struct store_check *check, const char *sentence)
{
	struct findings *findings = container_of(check, struct findings, check);

	json_array_append_new(findings->faults, print_json_text(sentence));
}

json_t *check_file(const char *path, const char *base, struct error *error)
{
	struct findings findings = { .check = { .base = base,
					     .fact = take_fact,
					     .amount = take_amount,
					     .entry = take_entry,
					     .fault = take_fault },
		.root = json_object(),
		.faults = json_array() };

	if (store_check(path, &findings.check, error) < 0) {
		json_decref(findings.root);
		json_decref(findings.faults);
		return NULL;
	}
	json_object_set_new(findings.root, "faults", findings.faults); /* the last */
	return findings.root;
}

static void print_text(const char *name, int columns, const json_t *text)
{
	char shown[SHOWN_BYTES];

	printf("%-*s%s\n", columns, name,
		log_escape_sentence(shown, sizeof(shown), json_string_value(text)));
}

static void print_list(const char *name, int columns, const json_t *list)
{
	json_t *text;
	size_t i;

	json_array_foreach(list, i, text)
	{
		print_text(name, columns, text);
	}
}

void check_print(const json_t *found, int columns)
{
	char human[UNITS_TEXT_BYTES];
	const char *key;
	json_t *value;

	/* Never changed meanwhile. */
	json_object_foreach((json_t *)(uintptr_t)found, key, value)
	{
		if (json_is_integer(value)) {
			uint64_t bytes = (uint64_t)json_integer_value(value);

			units_human_bytes(human, bytes);
			printf("%-*s%s", columns, key, human);
			if (strstr(human, " bytes") == NULL) {
				printf(" (%llu bytes)", (unsigned long long)bytes);
			}
			printf("\n");
		} else if (json_is_string(value)) {
			print_text(key, columns, value);
		} else {
			print_list(strcmp(key, "faults") == 0 ? "wrong" : key, columns, value);
		}
	}
}
