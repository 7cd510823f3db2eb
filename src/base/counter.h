// SPDX-License-Identifier: Apache-2.0
/*
 * Descriptions of counters. A module that counts keeps a plain struct of uint64_t and describes it
 * once, in a table. Statistics, metrics, their text for people and the lists in the manual pages
 * are generated from the tables. A new counter therefore takes a member of the struct, an entry in
 * its table and an increment.
 *
 * Threading: tables are constant; the owner of a struct defines which thread may read it.
 * Ownership: static data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum counter_kind {
	COUNTER_TOTAL, /* counted since the start; never decreases */
	COUNTER_NOW,   /* a current level, which rises and falls */
};

enum counter_unit {
	COUNTER_ITEMS,
	COUNTER_BYTES,
	COUNTER_NS,
	COUNTER_BYTES_PER_SECOND,
	COUNTER_PERMILLE, /* a ratio; reported as 0 to 1 */
	COUNTER_BOOL,
};

/* Value of a COUNTER_NOW that does not exist, such as a limit that is not set or a rate that is not
 * known. */
#define COUNTER_NONE UINT64_MAX

struct counter {
	const char *name; /* name of the JSON member */
	const char *help; /* for people: a phrase without its full stop */
	enum counter_kind kind;
	enum counter_unit unit;
	size_t offset; /* offset of a uint64_t in the struct */
	/* Name of the metric, without "gmblock_" and "_total"; NULL: the table's prefix and the
	 * name; COUNTER_NO_METRIC: none. Counters of one metric are adjacent in the table, labels
	 * distinguish them, and the help of the first one is the help of the metric. */
	const char *metric;
	const char *labels; /* 'reason="idle"', or NULL */
	const char *family;
};

/* One entry of a counter table. Optional members (.metric = , .labels = , .family = ) can follow
 * the help. */
#define COUNTER(type, field, kind_, unit_, name_, help_, ...)                                      \
	{                                                                                          \
		.name = (name_), .help = (help_), .kind = COUNTER_##kind_,                         \
		.unit = COUNTER_##unit_, .offset = offsetof(type, field), __VA_ARGS__              \
	}

/* The .metric of a counter that is not exported as a metric. */
#define COUNTER_NO_METRIC ""

struct counter_table {
	const char *name; /* object that is counted: "server", "export", "operation" */
	/* comma-separated labels if there are several objects; "" if there is one */
	const char *labels;
	const char *prefix; /* prefix of metric names */
	const struct counter *counters;
	size_t count;
};

enum { COUNTER_METRIC_BYTES = 96 };

/* Returns out, with the name of a counter's metric without "gmblock_" and "_total"; empty if the
 * counter is not a metric. */
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

/* Adds the counters in from to the counters in into. */
static inline void counter_table_add(
	const struct counter_table *table, void *into, const void *from)
{
	for (size_t i = 0; i < table->count; i++) {
		const struct counter *counter = &table->counters[i];

		counter_set(
			counter, into, counter_value(counter, into) + counter_value(counter, from));
	}
}
