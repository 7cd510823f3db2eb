// SPDX-License-Identifier: Apache-2.0
#include "base/schema.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

enum {
	LIST_BYTES = 400,
	PARTS_BYTES = 256, /* text of field_set_parts() */
	HELP_BYTES = 1000,
	HELP_COLUMN = 30,
	HELP_COLUMNS = 80,
};

const struct field *field_find(field_at *at, const char *key)
{
	const struct field *field;
	uint32_t idx = 0;

	do {
		field = at(idx++);
	} while (field != NULL && strcmp(field->key, key) != 0);
	return field;
}

/* --- values ---------------------------------------------------------------------------------- */

static size_t field_bytes(const struct field *field)
{
	static const uint8_t bytes[] = {
		[FIELD_FLAG] = sizeof(bool),
		[FIELD_COUNT] = sizeof(uint32_t),
		[FIELD_BYTES] = sizeof(uint64_t),
		[FIELD_TIME] = sizeof(uint64_t),
		[FIELD_WORD] = sizeof(uint32_t), /* size of an enum without negative values */
		[FIELD_TEXT] = sizeof(char *),
		[FIELD_ARGUMENT] = sizeof(char *),
	};

	GMB_ASSERT(field->type == FIELD_OWN || field->bytes == bytes[field->type] ||
		   (field->type == FIELD_WORD && field->bytes == sizeof(bool)));
	return field->bytes;
}

static void *field_value(const struct field *field, void *object)
{
	(void)field_bytes(field); /* asserts that the size fits the type */
	return (char *)object + field->offset;
}

static const char *field_text(const struct field *field, const void *object)
{
	return object != NULL ? *(char *const *)((const char *)object + field->offset) : NULL;
}

static int parse_flag(const char *text, bool *value, struct error *error)
{
	static const char *const words[] = { "no", "yes", "false", "true", "off", "on" };

	for (size_t i = 0; i < ARRAY_COUNT(words); i++) {
		if (strcmp(text, words[i]) == 0) {
			*value = i % 2 == 1;
			return 0;
		}
	}
	return error_set(error, -EINVAL, "'%s' is neither yes nor no", quote(text));
}

static int parse_word(const struct field *field, const char *text, void *value, struct error *error)
{
	const char *const *words = field->words;
	char list[LIST_BYTES] = "";
	size_t used = 0;

	for (uint32_t i = 0; words[i] != NULL; i++) {
		if (strcmp(text, words[i]) == 0) {
			if (field->bytes == sizeof(bool)) {
				*(bool *)value = i == 1;
			} else {
				*(uint32_t *)value = i;
			}
			return 0;
		}
		if (used < sizeof(list)) {
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
				i == 0 ? "" : ", ", words[i]);
		}
	}
	return words[1] != NULL && words[2] == NULL
		       ? error_set(error, -EINVAL, "'%s' is neither %s nor %s", quote(text),
				 words[0], words[1])
		       : error_set(error, -EINVAL, "'%s' is not one of %s", quote(text), list);
}

/* Parses a size or time and checks its limits. */
static int parse_amount(
	const struct field *field, const char *text, uint64_t *value, struct error *error)
{
	bool is_time = field->type == FIELD_TIME;
	int (*parse)(const char *text, uint64_t *value, struct error *error) =
		is_time ? units_parse_time : units_parse_bytes;
	char shown[UNITS_TEXT_BYTES];
	int rc = parse(text, value, error);

	if (rc == 0 && *value < field->min) {
		rc = field->low != NULL ? error_set(error, -ERANGE, "%s", field->low)
		     : field->min == 1	? error_set(error, -ERANGE, "the value must not be 0")
		     : is_time ? error_set(error, -ERANGE, "the value must be at least %llu ms",
					 (unsigned long long)field->min / 1000000)
			       : error_set(error, -ERANGE, "the value must be at least %s",
					 units_format_bytes(shown, field->min));
	}
	if (rc == 0 && field->max != 0 && *value > field->max) {
		rc = is_time ? error_set(error, -ERANGE, "the value must be at most %llu s",
				       (unsigned long long)field->max / 1000000000)
			     : error_set(error, -ERANGE, "the value must be at most %s",
				       units_format_bytes(shown, field->max));
	}
	return rc;
}

static int check_text(const struct field *field, const char *text, struct error *error)
{
	bool is_path = field_is_path(field);

	return text[0] != '\0' || (!is_path && (field->flags & FIELD_NOT_EMPTY) == 0)
		       ? 0
		       : error_set(error, -EINVAL, "the %s is empty", is_path ? "path" : "value");
}

static int field_replace_text(char **value, const char *text, struct error *error)
{
	char *copy = text != NULL ? strdup(text) : NULL;

	if (copy == NULL && text != NULL) {
		return error_oom_for(error, "a value");
	}
	free(*value);
	*value = copy;
	return 0;
}

int field_check(const struct field *field, bool given, const char *text, struct error *error)
{
	if (text == NULL && field->type != FIELD_FLAG && (field->flags & FIELD_BARE) == 0) {
		return error_set(error, -EINVAL, "this key needs a value, such as %s=%s",
			field->key, field->example);
	}
	return given && (field->flags & FIELD_REPEATS) == 0
		       ? error_set(error, -EINVAL, "this key is given twice")
		       : 0;
}

/* Calls field->check() before parsing, because parsing stores the value, and check() can reject
 * text that the type accepts. */
int field_set(const struct field *field, void *object, const char *text, struct error *error)
{
	void *value = field_value(field, object);
	int rc = field->check != NULL ? field->check(object, text, error) : 0;

	if (rc < 0) {
		return rc;
	}
	switch (field->type) {
	case FIELD_OWN:
		return field->set(object, text, error);
	case FIELD_FLAG:
		return parse_flag(text != NULL ? text : "yes", value, error);
	case FIELD_COUNT:
		return units_parse_count(
			text, (uint32_t)field->min, (uint32_t)field->max, value, error);
	case FIELD_BYTES:
	case FIELD_TIME:
		return parse_amount(field, text, value, error);
	case FIELD_WORD:
		return parse_word(field, text, value, error);
	case FIELD_TEXT:
		rc = check_text(field, text, error);
		return rc < 0 ? rc
			      : field_replace_text(value, text[0] != '\0' ? text : NULL, error);
	case FIELD_ARGUMENT:
		rc = check_text(field, text, error);
		*(const char **)value = text;
		break;
	}
	return rc;
}

/* Returns whether the part of a text belongs to the field. value: the text after the "=", or NULL.
 */
static bool is_part_of(
	const struct field *field, const char *part, const char *value, bool is_given)
{
	size_t key_bytes = value != NULL ? (size_t)(value - part) - 1 : 0;

	return (field->flags & FIELD_PLACE) != 0 ? value == NULL && !is_given
						 : key_bytes == strlen(field->key) &&
							   memcmp(part, field->key, key_bytes) == 0;
}

static int part_unknown(
	const struct field *fields, uint32_t count, const char *part, struct error *error)
{
	const char *separator = "; use one of ";

	error_set(error, -EINVAL, "unknown setting '%s'", quote(part));
	for (uint32_t i = 0; i < count; i++) {
		if ((fields[i].flags & FIELD_PLACE) == 0) {
			error_add(error, "%s%s=%s", separator, fields[i].key, fields[i].form);
			separator = ", ";
		}
	}
	return -EINVAL;
}

static int set_part(const struct field *fields, uint32_t count, void *object, const char *part,
	uint32_t *given, struct error *error)
{
	const char *equals = strchr(part, '=');
	const char *value = equals != NULL ? equals + 1 : NULL;
	uint32_t i = 0;
	int rc;

	while (i < count && !is_part_of(&fields[i], part, value, (*given & BIT(i)) != 0)) {
		i++;
	}
	if (i == count) {
		return part_unknown(fields, count, part, error);
	}
	if ((*given & BIT(i)) != 0) {
		return error_set(error, -EINVAL, "%s= is given twice", fields[i].key);
	}
	*given |= BIT(i);
	rc = field_set(&fields[i], object, value != NULL ? value : part, error);
	if (rc < 0 && value != NULL) {
		error_prefix(error, "%s", fields[i].key);
	}
	return rc;
}

/* Rejects a text without a required part. */
static int parts_check(const struct field *fields, uint32_t count, uint32_t given, const char *text,
	struct error *error)
{
	uint32_t i = 0;

	while (i < count && ((fields[i].flags & (FIELD_PLACE | FIELD_BARE)) != FIELD_PLACE ||
				    (given & BIT(i)) != 0)) {
		i++;
	}
	if (i == count) {
		return 0;
	}
	error_set(error, -EINVAL, "'%s' has no %s: expected %s", quote(text), fields[i].key,
		fields[0].form);
	for (uint32_t k = 1; k <= i; k++) {
		error_add(error, ":%s", fields[k].form);
	}
	return -EINVAL;
}

int field_set_parts(const struct field *fields, uint32_t count, void *object, const char *text,
	struct error *error)
{
	char copy[PARTS_BYTES];
	char *rest = copy;
	const char *part;
	uint32_t given = 0;
	int rc = 0;

	if (strlen(text) >= sizeof(copy)) {
		return error_set(
			error, -EINVAL, "the text is longer than %d bytes", PARTS_BYTES - 1);
	}
	memcpy(copy, text, strlen(text) + 1);
	while (rc == 0 && (part = strsep(&rest, ":")) != NULL) {
		rc = set_part(fields, count, object, part, &given, error);
	}
	return rc ?: parts_check(fields, count, given, text, error);
}

int field_copy(const struct field *field, void *to, const void *from, struct error *error)
{
	GMB_ASSERT(field->type != FIELD_OWN);
	if (field->type == FIELD_TEXT) {
		return field_replace_text(field_value(field, to), field_text(field, from), error);
	}
	memcpy(field_value(field, to), (const char *)from + field->offset, field_bytes(field));
	return 0;
}

void field_clear(const struct field *field, void *object)
{
	if (field->type == FIELD_TEXT) {
		free(*(char **)field_value(field, object));
	}
	if (field->type != FIELD_OWN) {
		memset(field_value(field, object), 0, field_bytes(field));
	}
}

bool field_same(const struct field *field, const void *a, const void *b)
{
	size_t bytes = field_bytes(field);

	if (field->same != NULL) {
		return field->same(a, b);
	}
	if (field->type == FIELD_TEXT || field->type == FIELD_ARGUMENT) {
		return text_same(field_text(field, a), field_text(field, b));
	}
	GMB_ASSERT(bytes > 0);
	for (size_t i = field->offset; i < field->offset + bytes; i++) {
		uint8_t byte_a = a != NULL ? ((const uint8_t *)a)[i] : 0;
		uint8_t byte_b = b != NULL ? ((const uint8_t *)b)[i] : 0;

		if (byte_a != byte_b) {
			return false;
		}
	}
	return true;
}

/* --- messages and help texts ----------------------------------------------------------------- */

const char *field_form(const struct field *field, char out[FIELD_FORM_BYTES])
{
	size_t used = 0;

	snprintf(out, FIELD_FORM_BYTES, "%s", field->form != NULL ? field->form : "");
	for (uint32_t i = 0; field->form == NULL && field->words != NULL && field->words[i] != NULL;
		i++) {
		used += (size_t)snprintf(out + used, FIELD_FORM_BYTES - used, "%s%s",
			i == 0 ? "" : "|", field->words[i]);
		GMB_ASSERT(used < FIELD_FORM_BYTES);
	}
	return out;
}

bool field_is_path(const struct field *field)
{
	static const char *const paths[] = { "FILE", "PATH", "FOLDER" };
	size_t bytes = field->form != NULL ? strcspn(field->form, "|") : 0;

	for (size_t i = 0; i < ARRAY_COUNT(paths); i++) {
		if (bytes == strlen(paths[i]) && strncmp(field->form, paths[i], bytes) == 0) {
			return true;
		}
	}
	return false;
}

int field_unknown(field_at *at, const char *key, struct error *error)
{
	const struct field *field;
	char meant[NEAR_TEXT_BYTES];
	char keys[LIST_BYTES] = "";
	size_t used = 0;
	struct near near;

	near_begin(&near, key);
	for (uint32_t i = 0; (field = at(i)) != NULL; i++) {
		near_try(&near, field->key);
		if (used < sizeof(keys)) {
			used += (size_t)snprintf(keys + used, sizeof(keys) - used, "%s%s",
				i == 0 ? "" : ", ", field->key);
		}
	}
	return near.name != NULL ? error_set(error, -EINVAL, "unknown key '%s'%s", quote(key),
					   near_text(&near, "", meant))
				 : error_set(error, -EINVAL, "unknown key '%s'; use one of %s",
					   quote(key), keys);
}

const char *field_summary(const struct field *field, char *out, size_t out_bytes)
{
	size_t len = strlen(field->help);

	if (len >= out_bytes) {
		len = out_bytes - 1;
		while (len > 0 && field->help[len] != ' ') {
			len--;
		}
	}
	snprintf(out, out_bytes, "%.*s", (int)len, field->help);
	return out;
}

void field_help_line(FILE *out, const char *name, const char *help)
{
	int column = fprintf(out, "%s", name);

	if (column >= HELP_COLUMN) {
		fputc('\n', out);
		column = 0;
	}
	fprintf(out, "%*s", HELP_COLUMN - column, "");
	column = HELP_COLUMN;
	while (*help != '\0') {
		size_t len = strcspn(help, " \n");

		if (column > HELP_COLUMN && column + 1 + (int)len > HELP_COLUMNS) {
			fprintf(out, "\n%*s", HELP_COLUMN, "");
			column = HELP_COLUMN;
		}
		column += fprintf(out, "%s%.*s", column > HELP_COLUMN ? " " : "", (int)len, help);
		help += len;
		help += strspn(help, " \n");
	}
	fputc('\n', out);
}

void field_help_option(FILE *out, const struct field *field)
{
	char form[FIELD_FORM_BYTES];
	char name[2 * FIELD_FORM_BYTES];
	const char *open = "";
	const char *close = "";
	char letter[] = "    ";

	if (field->letter != '\0') {
		snprintf(letter, sizeof(letter), "-%c, ", field->letter);
	}
	field_form(field, form);
	if ((field->flags & FIELD_BARE) != 0) {
		open = "[=";
		close = "]";
	} else if (form[0] != '\0') {
		open = " ";
	}
	snprintf(name, sizeof(name), "  %s--%s%s%s%s", letter, field->key, open, form, close);
	field_help_line(out, name, field->help);
}

void field_help_key(FILE *out, const struct field *field)
{
	char form[FIELD_FORM_BYTES];
	char name[2 * FIELD_FORM_BYTES];
	char help[HELP_BYTES];

	field_form(field, form);
	snprintf(
		name, sizeof(name), "        %s%s%s", field->key, form[0] != '\0' ? "=" : "", form);
	snprintf(help, sizeof(help), "%s%s", field->help,
		(field->flags & FIELD_LIVE) != 0 ? " (live)" : "");
	field_help_line(out, name, help);
}
