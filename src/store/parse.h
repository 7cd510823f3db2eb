// SPDX-License-Identifier: Apache-2.0
/*
 * The rules and paces of the filters fault, delay and pace, and sizes in the paths of disks.
 *
 * Threading: pure functions. Errors: a negative errno and a message; the out parameter is set only
 * on success.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"
#include "base/schema.h"
#include "store/store.h"

/* One hour: longer than anyone needs, and short enough that sums of times cannot overflow. */
#define STORE_TIME_NS_MAX UINT64_C(3600000000000)

/* Parses the size in a path such as "memory:SIZE": 1 to 2^63 - 1 bytes. */
GMB_MUST_CHECK int parse_path_size(const char *path, uint64_t *bytes, struct error *error);

/* A fault or delay rule, see gmblock-serve(1). */
struct store_rule {
	uint32_t ops;	   /* bit set of BIT(enum store_op) */
	int error;	   /* fault rules: negative errno */
	uint64_t delay_ns; /* delay rules */
	/* the rule applies only to the nth matching part, counted from 1; 0 = off */
	uint32_t nth;
	uint32_t every;	    /* the rule applies to every nth matching part; 0 = off */
	double probability; /* above 0 and up to 1; 0 = off */
	/* the rule applies only to parts that overlap this range; range_length 0 = all */
	uint64_t range_offset;
	uint64_t range_length;
};

enum { STORE_RULES_MAX = 16 };

struct store_rules {
	struct store_rule rules[STORE_RULES_MAX];
	uint32_t count;
};

/* The settings that fault and delay rules have, as rows of a table for store_rule_parse(). */
#define STORE_RULE_OP                                                                              \
	{                                                                                          \
		"operation", "OP", .flags = FIELD_PLACE, .set = store_rule_set_op                  \
	}
#define STORE_RULE_RANGE                                                                           \
	{                                                                                          \
		"range", "OFFSET+LENGTH", .set = store_rule_set_range                              \
	}
int store_rule_set_op(void *rule, const char *text, struct error *error);
int store_rule_set_range(void *rule, const char *text, struct error *error);
/* Sets a rule, which is zero, with field_set_parts(). */
GMB_MUST_CHECK int store_rule_parse(const struct field *settings, uint32_t count, const char *text,
	struct store_rule *rule, struct error *error);

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
	uint64_t chunk;	  /* consecutive bytes on one member of a stripe; 0 with one member */
	uint32_t members; /* 1 to STORE_PACE_MEMBERS_MAX */
};

/* Parses "RATE[:latency=TIME][:seek=TIME][:members=K][:chunk=SIZE]" (pace.c). */
GMB_MUST_CHECK int store_pace_parse(const char *text, struct store_pace *pace, struct error *error);
