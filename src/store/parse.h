// SPDX-License-Identifier: Apache-2.0
/*
 * Parsers shared by the options of kinds and filters: numbers with the usual units (base/text.h)
 * inside a longer text, fields between colons, and the rules of the fault and delay filters.
 * Parsing is strict: no text before or after a number, no sign, no fraction, no overflow.
 *
 * Threading: pure functions. Ownership: fields point into the text. Errors: false, and no value is
 * stored; or -EINVAL with a sentence.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"
#include "store/store.h"

/* One hour: far beyond any use, and small enough that sums of times cannot overflow. */
#define PARSE_TIME_NS_MAX UINT64_C(3600000000000)

/* Decimal digits only. text need not be terminated. */
bool parse_count(const char *text, size_t len, uint64_t *value);

/* As units_parse_bytes(). */
bool parse_size(const char *text, size_t len, uint64_t *bytes);

/* As units_parse_time(). */
bool parse_time(const char *text, size_t len, uint64_t *ns);

/* The size in a path such as "memory:SIZE": 1 to 2^63 - 1 bytes. */
GMB_MUST_CHECK int parse_path_size(const char *path, uint64_t *bytes, struct error *error);

/* The text between two colons. */
struct parse_field {
	const char *text;
	size_t len;
};

bool parse_field_is(struct parse_field field, const char *word);
/* Removes the next field from *rest, which becomes NULL after the last. */
struct parse_field parse_field_next(const char **rest);
/* Splits "key=value". False if there is no "=". */
bool parse_field_split(
	struct parse_field field, struct parse_field *key, struct parse_field *value);
/* Completes the error message about one field of text, which may contain any bytes: if text has
 * several fields, the whole text is put in front. Returns code. */
int parse_refused(const char *text, int code, struct error *error);

/* A fault or delay rule, see gmblock-serve(1). */
struct store_rule {
	uint32_t ops;	       /* bit set of BIT(enum store_op) */
	int error;	       /* negative errno (fault) */
	uint64_t delay_ns;     /* delay */
	uint64_t nth;	       /* the nth matching part only (1-based), 0 = off */
	uint64_t every;	       /* every nth matching part, 0 = off */
	double probability;    /* 0..1; used if nth and every are 0; default 1 */
	uint64_t range_offset; /* only parts that overlap the range; length 0 = all */
	uint64_t range_length;
};

enum { STORE_RULES_MAX = 16 };

struct store_rules {
	struct store_rule rules[STORE_RULES_MAX];
	uint32_t count;
};

int parse_rule_op(struct parse_field field, uint32_t *ops, struct error *error);
/* "OFFSET+LENGTH" */
int parse_rule_range(struct parse_field value, struct store_rule *rule, struct error *error);

/* True if the rule applies to this part, by operation and range. */
bool store_rule_matches(const struct store_rule *rule, const struct store_part *part);

/* "OP:ERRNO[:nth=N|every=N|prob=P][:range=OFF+LEN]" (fault.c) */
GMB_MUST_CHECK int store_fault_parse(
	const char *text, struct store_rule *rule, struct error *error);
/* "OP:TIME[:range=OFF+LEN]" (delay.c) */
GMB_MUST_CHECK int store_delay_parse(
	const char *text, struct store_rule *rule, struct error *error);

enum { STORE_PACE_MEMBERS_MAX = 64 };

/* Simulates the speed of a disk, or of a stripe of several; see gmblock-serve(1). */
struct store_pace {
	uint64_t rate;	     /* bytes per second of one member */
	uint64_t latency_ns; /* of a member, before each part */
	uint32_t members;    /* 1 to STORE_PACE_MEMBERS_MAX */
	/* Bytes on one member before the next; only with more than one member. */
	uint32_t chunk;
};

/* "RATE[:latency=TIME][:members=K][:chunk=SIZE]" (pace.c) */
GMB_MUST_CHECK int store_pace_parse(const char *text, struct store_pace *pace, struct error *error);
