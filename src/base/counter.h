// SPDX-License-Identifier: Apache-2.0
/*
 * Descriptions of counters. A module that counts keeps a plain struct of uint64_t and describes it
 * once, in a table. Statistics, metrics, their text for people and the lists in the manual pages
 * are made from the tables, so a new counter is a member of the struct, an entry of its table and
 * an increment.
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

enum counter_unit {
	COUNTER_ITEMS,
	COUNTER_BYTES,
	COUNTER_NS,
	COUNTER_BYTES_PER_SECOND,
	COUNTER_PERMILLE, /* a ratio, from 0 to 1 outside */
	COUNTER_BOOL,
};

/* The value of a level that does not exist: a limit that is not set, a rate that is not known. */
#define COUNTER_NONE UINT64_MAX

struct counter {
	const char *name; /* of the JSON member */
	const char *help; /* for people: a phrase without its full stop */
	enum counter_kind kind;
	enum counter_unit unit;
	size_t offset; /* of a uint64_t in the struct */
	/* Its metric, without "gmblock_" and "_total"; NULL: the table's prefix and the name.
	 * Counters of one metric stand together; labels tell them apart, and the first has the help
	 * of all. */
	const char *metric;
	const char *labels; /* 'reason="idle"', or NULL */
	const char *family;
};

/* An entry of a table; after help may follow .metric = , .labels = and .family = . */
#define COUNTER(type, field, kind_, unit_, name_, help_, ...)                                      \
	{                                                                                          \
		.name = (name_), .help = (help_), .kind = COUNTER_##kind_,                         \
		.unit = COUNTER_##unit_, .offset = offsetof(type, field), __VA_ARGS__              \
	}

/* A counter without a metric of its own. */
#define COUNTER_NO_METRIC ""

struct counter_table {
	const char *name;   /* what is counted: "server", "export", "operation" */
	const char *labels; /* by which there are several, separated by commas; "": one */
	const char *prefix; /* of metrics */
	const struct counter *counters;
	size_t count;
};

enum { COUNTER_METRIC_BYTES = 96 };

/* The name of a counter's metric without "gmblock_" and "_total"; empty: it has none. Returns out.
 */
const char *counter_metric(char out[COUNTER_METRIC_BYTES], const struct counter_table *table,
	const struct counter *counter);

static inline uint64_t counter_value(const struct counter *counter, const void *values)
{
	return *(const uint64_t *)((const char *)values + counter->offset);
}

static inline void counter_set(const struct counter *counter, void *values, uint64_t value)
{
	*(uint64_t *)((char *)values + counter->offset) = value;
}

/* Adds each counter of from to that of into. */
static inline void counter_table_add(
	const struct counter_table *table, void *into, const void *from)
{
	for (size_t i = 0; i < table->count; i++) {
		const struct counter *counter = &table->counters[i];

		counter_set(
			counter, into, counter_value(counter, into) + counter_value(counter, from));
	}
}
