// SPDX-License-Identifier: Apache-2.0
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

enum { TESTS_MAX = 100, KINDS_MAX = 8, NAME_BYTES = 100 };

static struct CMUnitTest tests[TESTS_MAX];
static size_t test_count;

void unit_add(const struct CMUnitTest *test)
{
	if (test_count == TESTS_MAX) {
		abort();
	}
	tests[test_count++] = *test;
}

int unit_run(CMFixtureFunction begin, CMFixtureFunction finish)
{
	return _cmocka_run_group_tests("tests", tests, test_count, begin, finish);
}

int unit_run_kinds(const void *kinds, size_t kind_bytes, size_t kind_count)
{
	static struct CMUnitTest all[KINDS_MAX * TESTS_MAX];
	static char names[KINDS_MAX * TESTS_MAX][NAME_BYTES];
	size_t count = 0;

	if (kind_count > KINDS_MAX) {
		abort();
	}
	for (const char *kind = kinds; count < kind_count * test_count; kind += kind_bytes) {
		for (size_t i = 0; i < test_count; i++) {
			all[count] = tests[i];
			all[count].name = names[count];
			all[count].initial_state = (void *)(uintptr_t)kind;
			snprintf(names[count], NAME_BYTES, "%s: %s",
				*(const char *const *)(const void *)kind, tests[i].name);
			count++;
		}
	}
	return _cmocka_run_group_tests("tests", all, count, NULL, NULL);
}
