// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "store/parse.h"
#include "store/store.h"

enum {
	ERRNO_MAX = 133,
	PROBABILITY_TEXT_BYTES = 32,
	PACE_CHUNK_DEFAULT = 64 << 10,
	PACE_CHUNK_STEP = 4096,
	PACE_CHUNK_MAX = 1 << 30,
};

#define PACE_RATE_MIN (UINT64_C(1) << 10)
#define PACE_RATE_MAX (UINT64_C(1) << 40)

/* An hour is far beyond any use, and keeps sums of times far from overflow. */
#define TIME_NS_MAX UINT64_C(3600000000000)

#define RULE_OPS_ALL (BIT(STORE_OP_COUNT) - 1)

/* One field of a rule: between two colons. */
struct field {
	const char *text;
	size_t len;
};

static bool field_is(struct field field, const char *word)
{
	return strlen(word) == field.len && memcmp(field.text, word, field.len) == 0;
}

/* Takes the next field off *rest, which becomes NULL behind the last. */
static struct field field_next(const char **rest)
{
	struct field field = { .text = *rest, .len = strcspn(*rest, ":") };

	*rest = field.text[field.len] == ':' ? field.text + field.len + 1 : NULL;
	return field;
}

/* Splits "key=value". False when there is no "=". */
static bool field_split(struct field field, struct field *key, struct field *value)
{
	const char *equals = memchr(field.text, '=', field.len);

	if (equals == NULL) {
		return false;
	}
	*key = (struct field){ .text = field.text, .len = (size_t)(equals - field.text) };
	*value = (struct field){ .text = equals + 1, .len = field.len - key->len - 1 };
	return true;
}

static int parse_op(struct field field, uint32_t *ops, struct error *error)
{
	if (field_is(field, "any")) {
		*ops = RULE_OPS_ALL;
		return 0;
	}
	for (uint32_t op = 0; op < STORE_OP_COUNT; op++) {
		if (field_is(field, store_op_name((enum store_op)op))) {
			*ops = BIT(op);
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"'%.*s' is not an operation: expected read, write, flush, trim, zero, cache, "
		"extents or any",
		(int)field.len, field.text);
}

static int parse_errno(struct field field, int *code, struct error *error)
{
	for (int number = 1; number <= ERRNO_MAX; number++) {
		const char *name = strerrorname_np(number);

		if (name != NULL && field_is(field, name)) {
			*code = -number;
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"'%.*s' is not the name of an error: expected for example EIO, ENOSPC or "
		"ETIMEDOUT",
		(int)field.len, field.text);
}

static int parse_range(struct field value, struct store_rule *rule, struct error *error)
{
	const char *plus = memchr(value.text, '+', value.len);
	uint64_t end;

	if (rule->range_length != 0) {
		return error_set(error, -EINVAL, "range= is given twice");
	}
	if (plus == NULL ||
		!store_parse_size(value.text, (size_t)(plus - value.text), &rule->range_offset) ||
		!store_parse_size(plus + 1, value.len - (size_t)(plus + 1 - value.text),
			&rule->range_length)) {
		return error_set(error, -EINVAL,
			"'%.*s' is not a range: expected OFFSET+LENGTH, for example 1M+64K",
			(int)value.len, value.text);
	}
	if (rule->range_length == 0 ||
		!checked_add_u64(rule->range_offset, rule->range_length, &end)) {
		return error_set(error, -EINVAL, "the range '%.*s' is empty or goes past 2^64",
			(int)value.len, value.text);
	}
	if (rule->ops == BIT(STORE_FLUSH)) {
		return error_set(error, -EINVAL,
			"a flush has no range: leave range= out of a rule for flush");
	}
	return 0;
}

/* "0.25", "1", ".5": digits and at most one point, more than 0 and at most 1. */
static bool parse_probability(struct field value, double *probability)
{
	char text[PROBABILITY_TEXT_BYTES];
	size_t points = 0;
	size_t digit_count = 0;

	if (value.len >= sizeof(text)) {
		return false;
	}
	for (size_t i = 0; i < value.len; i++) {
		if (value.text[i] == '.') {
			points++;
		} else if (value.text[i] >= '0' && value.text[i] <= '9') {
			digit_count++;
		} else {
			return false;
		}
	}
	if (points > 1 || digit_count == 0) {
		return false;
	}
	memcpy(text, value.text, value.len);
	text[value.len] = '\0';
	*probability = strtod(text, NULL);
	return *probability > 0.0 && *probability <= 1.0;
}

static int parse_choice(struct field key, struct field value, struct store_rule *rule, bool *chosen,
	struct error *error)
{
	bool good;

	if (*chosen) {
		return error_set(error, -EINVAL, "only one of nth=, every= and prob= can be given");
	}
	*chosen = true;
	if (field_is(key, "prob")) {
		if (parse_probability(value, &rule->probability)) {
			return 0;
		}
		return error_set(error, -EINVAL,
			"'%.*s' is not a probability: expected a number above 0 and up to 1, for "
			"example 0.01",
			(int)value.len, value.text);
	}
	if (field_is(key, "nth")) {
		good = store_parse_count(value.text, value.len, &rule->nth) && rule->nth > 0;
	} else {
		good = store_parse_count(value.text, value.len, &rule->every) && rule->every > 0;
	}
	if (good) {
		return 0;
	}
	return error_set(error, -EINVAL,
		"'%.*s' cannot be the number of %.*s=: expected a whole number of at least 1",
		(int)value.len, value.text, (int)key.len, key.text);
}

/* What follows OP:ERRNO or OP:TIME. may_choose: nth, every and prob mean something. */
static int parse_options(
	const char *rest, bool may_choose, struct store_rule *rule, struct error *error)
{
	bool chosen = false;

	while (rest != NULL) {
		struct field field = field_next(&rest);
		struct field key;
		struct field value;
		int result;

		if (!field_split(field, &key, &value)) {
			key = field;
		}
		if (key.len != field.len && field_is(key, "range")) {
			result = parse_range(value, rule, error);
		} else if (key.len != field.len && may_choose &&
			   (field_is(key, "nth") || field_is(key, "every") ||
				   field_is(key, "prob"))) {
			result = parse_choice(key, value, rule, &chosen, error);
		} else {
			result = error_set(error, -EINVAL,
				"'%.*s' is not understood: expected %srange=OFFSET+LENGTH",
				(int)field.len, field.text,
				may_choose ? "nth=N, every=N, prob=P or " : "");
		}
		if (result < 0) {
			return result;
		}
	}
	return 0;
}

static int parse_fault(const char *text, struct store_rule *rule, struct error *error)
{
	const char *rest = text;
	int result = parse_op(field_next(&rest), &rule->ops, error);

	if (result < 0) {
		return result;
	}
	if (rest == NULL) {
		return error_set(error, -EINVAL,
			"the error is missing: expected OP:ERRNO, for example read:EIO");
	}
	result = parse_errno(field_next(&rest), &rule->error, error);
	if (result < 0) {
		return result;
	}
	return parse_options(rest, true, rule, error);
}

static int parse_delay(const char *text, struct store_rule *rule, struct error *error)
{
	const char *rest = text;
	struct field field;
	int result = parse_op(field_next(&rest), &rule->ops, error);

	if (result < 0) {
		return result;
	}
	if (rest == NULL) {
		return error_set(error, -EINVAL,
			"the time is missing: expected OP:TIME, for example read:10ms");
	}
	field = field_next(&rest);
	if (!store_parse_time(field.text, field.len, &rule->delay_ns) ||
		rule->delay_ns > TIME_NS_MAX) {
		return error_set(error, -EINVAL,
			"'%.*s' is not a time: expected a whole number with a unit of at most one "
			"hour, for example 500us, 10ms or 1s",
			(int)field.len, field.text);
	}
	return parse_options(rest, false, rule, error);
}

/* The sentence tells what is wrong with one field: where there are more, all of them stand before
 * it. Whoever asked knows what kind of rule it is. The text may hold any bytes. */
static int refused(const char *text, int code, struct error *error)
{
	char raw[ERROR_TEXT_BYTES];

	if (error == NULL) {
		return code;
	}
	if (strchr(text, ':') != NULL) {
		error_prefix(error, "'%s'", text);
	}
	memcpy(raw, error->text, sizeof(raw));
	log_escape_sentence(error->text, sizeof(error->text), raw);
	return code;
}

int store_fault_parse(const char *text, struct store_rule *rule, struct error *error)
{
	struct store_rule parsed = { .probability = 1.0 };
	int result = parse_fault(text, &parsed, error);

	if (result < 0) {
		return refused(text, result, error);
	}
	*rule = parsed;
	return 0;
}

int store_delay_parse(const char *text, struct store_rule *rule, struct error *error)
{
	struct store_rule parsed = { .probability = 1.0 };
	int result = parse_delay(text, &parsed, error);

	if (result < 0) {
		return refused(text, result, error);
	}
	*rule = parsed;
	return 0;
}

static int parse_pace_members(struct field value, struct store_pace *pace, struct error *error)
{
	uint64_t count;

	if (!store_parse_count(value.text, value.len, &count) || count == 0 ||
		count > STORE_PACE_MEMBERS_MAX) {
		return error_set(error, -EINVAL,
			"'%.*s' is not a number of members: expected 1 to %d", (int)value.len,
			value.text, STORE_PACE_MEMBERS_MAX);
	}
	pace->members = (uint32_t)count;
	return 0;
}

static int parse_pace_chunk(struct field value, struct store_pace *pace, struct error *error)
{
	uint64_t bytes;

	if (!store_parse_size(value.text, value.len, &bytes) || bytes == 0 ||
		bytes > PACE_CHUNK_MAX || bytes % PACE_CHUNK_STEP != 0) {
		return error_set(error, -EINVAL,
			"'%.*s' is not a chunk: expected a size from 4K to 1G in steps of 4K",
			(int)value.len, value.text);
	}
	pace->chunk = (uint32_t)bytes;
	return 0;
}

static int parse_pace_latency(struct field value, struct store_pace *pace, struct error *error)
{
	if (!store_parse_time(value.text, value.len, &pace->latency_ns) ||
		pace->latency_ns > TIME_NS_MAX) {
		return error_set(error, -EINVAL,
			"'%.*s' is not a latency: expected a whole number with a unit of at most "
			"one hour, for example 500us or 10ms",
			(int)value.len, value.text);
	}
	return 0;
}

static int parse_pace_option(
	struct field field, uint32_t *given, struct store_pace *pace, struct error *error)
{
	static const struct {
		const char *name;
		int (*parse)(struct field value, struct store_pace *pace, struct error *error);
	} options[] = {
		{ "latency", parse_pace_latency },
		{ "members", parse_pace_members },
		{ "chunk", parse_pace_chunk },
	};
	struct field key;
	struct field value;

	for (uint32_t i = 0; i < ARRAY_COUNT(options); i++) {
		if (!field_split(field, &key, &value) || !field_is(key, options[i].name)) {
			continue;
		}
		if ((*given & BIT(i)) != 0) {
			return error_set(error, -EINVAL, "%s= is given twice", options[i].name);
		}
		*given |= BIT(i);
		return options[i].parse(value, pace, error);
	}
	return error_set(error, -EINVAL,
		"'%.*s' is not understood: expected latency=TIME, members=N or chunk=SIZE",
		(int)field.len, field.text);
}

static int parse_pace(const char *text, struct store_pace *pace, struct error *error)
{
	const char *rest = text;
	struct field field = field_next(&rest);
	uint32_t given = 0;

	if (!store_parse_size(field.text, field.len, &pace->rate) || pace->rate < PACE_RATE_MIN ||
		pace->rate > PACE_RATE_MAX) {
		return error_set(error, -EINVAL,
			"'%.*s' is not a rate: expected bytes a second, from 1K to 1T, for example "
			"100M",
			(int)field.len, field.text);
	}
	while (rest != NULL) {
		int result = parse_pace_option(field_next(&rest), &given, pace, error);

		if (result < 0) {
			return result;
		}
	}
	if (pace->members == 1 && pace->chunk != 0) {
		return error_set(
			error, -EINVAL, "chunk= means something only with members=2 or more");
	}
	if (pace->members > 1 && pace->chunk == 0) {
		pace->chunk = PACE_CHUNK_DEFAULT;
	}
	return 0;
}

int store_pace_parse(const char *text, struct store_pace *pace, struct error *error)
{
	struct store_pace parsed = { .members = 1 };
	int result = parse_pace(text, &parsed, error);

	if (result < 0) {
		return refused(text, result, error);
	}
	*pace = parsed;
	return 0;
}
