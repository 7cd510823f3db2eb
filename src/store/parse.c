// SPDX-License-Identifier: Apache-2.0
#include "store/parse.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"

enum { RANGE_OFFSET_BYTES = 32 };

int parse_path_size(const char *path, uint64_t *bytes, struct error *error)
{
	const char *size_text = strchr(path, ':') + 1;
	uint64_t size;

	if (units_parse_bytes(size_text, &size, NULL) < 0) {
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

/* --- rules ----------------------------------------------------------------------------------- */

int store_rule_set_op(void *object, const char *text, struct error *error)
{
	struct store_rule *rule = object;

	if (strcmp(text, "any") == 0) {
		rule->ops = (uint32_t)(BIT(STORE_OP_COUNT) - 1);
		return 0;
	}
	for (uint32_t op = 0; op < STORE_COPY; op++) { /* filters never receive STORE_COPY */
		if (strcmp(text, store_op_name((enum store_op)op)) == 0) {
			rule->ops = BIT(op);
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"'%s' is not read, write, flush, trim, zero, cache, extents or any", quote(text));
}

int store_rule_set_range(void *object, const char *text, struct error *error)
{
	struct store_rule *rule = object;
	const char *plus = strchr(text, '+');
	char offset[RANGE_OFFSET_BYTES] = "";
	uint64_t end;

	if (plus != NULL && plus - text < RANGE_OFFSET_BYTES) {
		memcpy(offset, text, (size_t)(plus - text));
	}
	if (units_parse_bytes(offset, &rule->range_offset, NULL) < 0 ||
		units_parse_bytes(plus + 1, &rule->range_length, NULL) < 0) {
		return error_set(error, -EINVAL, "'%s' is not OFFSET+LENGTH, for example 1M+64K",
			quote(text));
	}
	return rule->range_length == 0 ||
			       !checked_add_u64(rule->range_offset, rule->range_length, &end)
		       ? error_set(
				 error, -EINVAL, "'%s' is empty or extends past 2^64", quote(text))
		       : 0;
}

int store_rule_parse(const struct field *settings, uint32_t count, const char *text,
	struct store_rule *rule, struct error *error)
{
	struct store_rule parsed = { 0 };
	int result = field_set_parts(settings, count, &parsed, text, error);

	if (result == 0 && parsed.ops == BIT(STORE_FLUSH) && parsed.range_length != 0) {
		result = error_set(
			error, -EINVAL, "a flush has no range: omit range= in a rule for flush");
	}
	if (result == 0) {
		*rule = parsed;
	}
	return result;
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
