// SPDX-License-Identifier: Apache-2.0
/*
 * Parsers shared by the options of kinds and filters: numbers with the usual units (base/text.h)
 * inside a longer text, fields between colons, and the rules of the fault and delay filters.
 * Parsing is strict: no text before or after a number, no sign, no fraction, no overflow.
 *
 * Threading: pure functions. Ownership: fields point into the text. Errors: functions return false
 * without storing a value, or -EINVAL and a message.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"
#include "store/store.h"

/* One hour: longer than anyone needs, and short enough that sums of times cannot overflow. */
#define PARSE_TIME_NS_MAX UINT64_C(3600000000000)

/* Parses decimal digits. text need not be terminated. */
bool parse_count(const char *text, size_t len, uint64_t *value);

/* Like units_parse_bytes(). */
bool parse_size(const char *text, size_t len, uint64_t *bytes);

/* Like units_parse_time(). */
bool parse_time(const char *text, size_t len, uint64_t *ns);

/* Parses the size in a path such as "memory:SIZE": 1 to 2^63 - 1 bytes. */
GMB_MUST_CHECK int parse_path_size(const char *path, uint64_t *bytes, struct error *error);

/* A field of an option: the text between two colons. */
struct parse_field {
	const char *text;
	size_t len;
};

bool parse_field_is(struct parse_field field, const char *word);
/* Removes and returns the next field of *rest, which becomes NULL after the last. */
struct parse_field parse_field_next(const char **rest);
/* Splits "key=value". Returns false if there is no "=". */
bool parse_field_split(
	struct parse_field field, struct parse_field *key, struct parse_field *value);
/* Completes the error message about a field of text: if text has several fields, puts all of text
 * in front of the message. text may contain any bytes. Returns code. */
int parse_refused(const char *text, int code, struct error *error);

/* A fault or delay rule, see gmblock-serve(1). */
struct store_rule {
	uint32_t ops;	   /* bit set of BIT(enum store_op) */
	int error;	   /* fault rules: negative errno */
	uint64_t delay_ns; /* delay rules */
	/* the rule applies only to the nth matching part, counted from 1; 0 = off */
	uint64_t nth;
	uint64_t every;	    /* the rule applies to every nth matching part; 0 = off */
	double probability; /* 0 to 1, used if nth and every are 0; the default is 1 */
	/* the rule applies only to parts that overlap this range; range_length 0 = all */
	uint64_t range_offset;
	uint64_t range_length;
};

enum { STORE_RULES_MAX = 16 };

struct store_rules {
	struct store_rule rules[STORE_RULES_MAX];
	uint32_t count;
};

int parse_rule_op(struct parse_field field, uint32_t *ops, struct error *error);
/* Parses "OFFSET+LENGTH". */
int parse_rule_range(struct parse_field value, struct store_rule *rule, struct error *error);

/* Returns whether the rule applies to the part's operation and range. */
bool store_rule_matches(const struct store_rule *rule, const struct store_part *part);

/* Parses "OP:ERRNO[:nth=N|every=N|prob=P][:range=OFF+LEN]" (fault.c). */
GMB_MUST_CHECK int store_fault_parse(
	const char *text, struct store_rule *rule, struct error *error);
/* Parses "OP:TIME[:range=OFF+LEN]" (delay.c). */
GMB_MUST_CHECK int store_delay_parse(
	const char *text, struct store_rule *rule, struct error *error);

enum { STORE_PACE_MEMBERS_MAX = 64 };

/* Simulates the speed of a disk, or of a stripe of several; see gmblock-serve(1). */
struct store_pace {
	uint64_t rate;	     /* bytes per second of one member */
	uint64_t latency_ns; /* delay of a member before each part */
	/* average delay before a part that does not begin where the member's last one ended */
	uint64_t seek_ns;
	uint32_t members; /* 1 to STORE_PACE_MEMBERS_MAX */
	/* Stripe chunk: consecutive bytes on one member. Unused with one member. */
	uint32_t chunk;
};

/* Parses "RATE[:latency=TIME][:seek=TIME][:members=K][:chunk=SIZE]" (pace.c). */
GMB_MUST_CHECK int store_pace_parse(const char *text, struct store_pace *pace, struct error *error);
