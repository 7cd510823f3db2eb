// SPDX-License-Identifier: Apache-2.0
#include "store/parse.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"

enum { QUANTITY_BYTES = 32 }; /* longer numbers do not fit into 64 bits */

bool parse_count(const char *text, size_t len, uint64_t *value)
{
	uint64_t sum = 0;

	if (len == 0) {
		return false;
	}
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9') {
			return false;
		}
		if (!checked_mul_u64(sum, 10, &sum) ||
			!checked_add_u64(sum, (uint64_t)(text[i] - '0'), &sum)) {
			return false;
		}
	}
	*value = sum;
	return true;
}

/* Makes a terminated copy for the parsers of base/text.h. Returns false if the text is too long or
 * contains a zero byte. */
static bool copy_quantity(char out[QUANTITY_BYTES], const char *text, size_t len)
{
	if (len >= QUANTITY_BYTES || memchr(text, '\0', len) != NULL) {
		return false;
	}
	memcpy(out, text, len);
	out[len] = '\0';
	return true;
}

bool parse_size(const char *text, size_t len, uint64_t *bytes)
{
	char copy[QUANTITY_BYTES];

	return copy_quantity(copy, text, len) && units_parse_bytes(copy, bytes, NULL) == 0;
}

bool parse_time(const char *text, size_t len, uint64_t *ns)
{
	char copy[QUANTITY_BYTES];

	return copy_quantity(copy, text, len) && units_parse_time(copy, ns, NULL) == 0;
}

int parse_path_size(const char *path, uint64_t *bytes, struct error *error)
{
	const char *size_text = strchr(path, ':') + 1;
	uint64_t size;

	if (!parse_size(size_text, strlen(size_text), &size)) {
		return error_set(error, -EINVAL,
			"'%s': expected a size after the colon, in bytes or with K, M, G, T, P or "
			"E, for example 64M (for a file with that name, write ./%s)",
			path, path);
	}
	if (size == 0 || size > INT64_MAX) {
		return error_set(error, -EINVAL,
			"'%s': the size must be at least 1 byte and less than 8E", path);
	}
	*bytes = size;
	return 0;
}

/* --- fields ---------------------------------------------------------------------------------- */

bool parse_field_is(struct parse_field field, const char *word)
{
	return strlen(word) == field.len && memcmp(field.text, word, field.len) == 0;
}

struct parse_field parse_field_next(const char **rest)
{
	struct parse_field field = { .text = *rest, .len = strcspn(*rest, ":") };

	*rest = field.text[field.len] == ':' ? field.text + field.len + 1 : NULL;
	return field;
}

bool parse_field_split(struct parse_field field, struct parse_field *key, struct parse_field *value)
{
	const char *equals = memchr(field.text, '=', field.len);

	if (equals == NULL) {
		return false;
	}
	*key = (struct parse_field){ .text = field.text, .len = (size_t)(equals - field.text) };
	*value = (struct parse_field){ .text = equals + 1, .len = field.len - key->len - 1 };
	return true;
}

int parse_refused(const char *text, int code, struct error *error)
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

/* --- rules ----------------------------------------------------------------------------------- */

int parse_rule_op(struct parse_field field, uint32_t *ops, struct error *error)
{
	if (parse_field_is(field, "any")) {
		*ops = (uint32_t)(BIT(STORE_OP_COUNT) - 1);
		return 0;
	}
	for (uint32_t op = 0; op < STORE_COPY; op++) { /* filters never receive STORE_COPY */
		if (parse_field_is(field, store_op_name((enum store_op)op))) {
			*ops = BIT(op);
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"'%.*s' is not an operation: expected read, write, flush, trim, zero, cache, "
		"extents or any",
		(int)field.len, field.text);
}

int parse_rule_range(struct parse_field value, struct store_rule *rule, struct error *error)
{
	const char *plus = memchr(value.text, '+', value.len);
	uint64_t end;

	if (rule->range_length != 0) {
		return error_set(error, -EINVAL, "range= is given twice");
	}
	if (plus == NULL ||
		!parse_size(value.text, (size_t)(plus - value.text), &rule->range_offset) ||
		!parse_size(plus + 1, value.len - (size_t)(plus + 1 - value.text),
			&rule->range_length)) {
		return error_set(error, -EINVAL,
			"'%.*s' is not a range: expected OFFSET+LENGTH, for example 1M+64K",
			(int)value.len, value.text);
	}
	if (rule->range_length == 0 ||
		!checked_add_u64(rule->range_offset, rule->range_length, &end)) {
		return error_set(error, -EINVAL, "the range '%.*s' is empty or extends past 2^64",
			(int)value.len, value.text);
	}
	if (rule->ops == BIT(STORE_FLUSH)) {
		return error_set(
			error, -EINVAL, "a flush has no range: omit range= in a rule for flush");
	}
	return 0;
}

bool store_rule_matches(const struct store_rule *rule, const struct store_part *part)
{
	uint32_t does = BIT(part->op);

	if ((part->flags & STORE_FUA) != 0) {
		does |= BIT(STORE_FLUSH); /* a durable part also flushes */
	}
	if ((rule->ops & does) == 0) {
		return false;
	}
	if (rule->range_length == 0) {
		return true;
	}
	/* The sums do not overflow: store_submit() has checked the part, and the parser has checked
	 * the rule. A flush has no range. */
	return part->length > 0 && part->offset < rule->range_offset + rule->range_length &&
	       rule->range_offset < part->offset + part->length;
}
