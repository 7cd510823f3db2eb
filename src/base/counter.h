// SPDX-License-Identifier: Apache-2.0
/*
 * Descriptions of counters. A module that counts keeps a plain struct of uint64_t and describes it
 * once, in a table; whatever sums, shows or exports counters goes by the table, so that all of them
 * have the same ones.
 *
 * Threading: tables are constant; the owner of a struct says which thread may read it. Ownership:
 * static data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum counter_kind {
	COUNTER_TOTAL, /* since the start; never becomes less */
	COUNTER_NOW,   /* a level, which rises and falls */
};

enum counter_unit { COUNTER_ITEMS, COUNTER_BYTES, COUNTER_NS };

struct counter {
	const char *name; /* of JSON members and metrics */
	const char *help; /* a sentence without its full stop */
	enum counter_kind kind;
	enum counter_unit unit;
	size_t offset; /* of a uint64_t in the struct */
};

struct counter_table {
	const char *name;   /* what is counted: "server", "export", "operation" */
	const char *labels; /* by which there are several, separated by commas; "": one */
	const struct counter *counters;
	size_t count;
};

static inline uint64_t counter_value(const struct counter *counter, const void *values)
{
	return *(const uint64_t *)((const char *)values + counter->offset);
}

/* Adds each counter of from to that of into. */
static inline void counter_table_add(
	const struct counter_table *table, void *into, const void *from)
{
	for (size_t i = 0; i < table->count; i++) {
		uint64_t *sum = (uint64_t *)((char *)into + table->counters[i].offset);

		*sum += counter_value(&table->counters[i], from);
	}
}
