// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/schema.h"
#include "unit.h"

enum colour { RED, GREEN, BLUE };

struct object {
	bool flag;
	uint32_t count;
	uint64_t bytes;
	uint64_t time_ns;
	enum colour colour;
	char *text;
	const char *argument;
	char own[4];
};

static int set_own(void *object, const char *text, struct error *error)
{
	struct object *into = object;

	if (text != NULL && strlen(text) >= sizeof(into->own)) {
		return error_set(error, -EINVAL, "too long");
	}
	memset(into->own, 0, sizeof(into->own));
	snprintf(into->own, sizeof(into->own), "%s", text != NULL ? text : "?");
	return 0;
}

static int check_text(void *object, const char *text, struct error *error)
{
	return text[0] == '!' ? error_set(error, -EINVAL, "it begins with !") : 0;
}

static bool same_count(const void *a, const void *b)
{
	return ((const struct object *)a)->count / 10 == ((const struct object *)b)->count / 10;
}

#define AT(member) FIELD_IN(struct object, member)

static const struct field *field_of(uint32_t idx)
{
	static const char *const colours[] = { "red", "green", "blue", NULL };
	static const char *const switches[] = { "auto", "off", NULL };
	static const struct field fields[] = {
		{ "flag", NULL, "a flag", "yes", .type = FIELD_FLAG, AT(flag) },
		{ "count", "N", "a number", "3", .type = FIELD_COUNT, .min = 1, .max = 50,
			AT(count), .same = same_count },
		{ "bytes", "SIZE", "a size", "4K", .type = FIELD_BYTES, .min = 4096, .max = 1 << 20,
			AT(bytes) },
		{ "time", "TIME", "a time", "1s", .type = FIELD_TIME, .min = 1, AT(time_ns) },
		{ "patience", "TIME", "a time", "1s", .type = FIELD_TIME, .min = 1, AT(time_ns),
			.low = "somebody waits" },
		{ "colour", NULL, "a colour", "red", .type = FIELD_WORD, .words = colours,
			AT(colour) },
		{ "switch", NULL, "a colour of two", "off", .type = FIELD_WORD, .words = switches,
			AT(colour) },
		{ "text", "TEXT", "a text", "x", .type = FIELD_TEXT, AT(text),
			.check = check_text },
		{ "file", "FILE", "the path of a file that has a name which does not fit one line",
			"x", .type = FIELD_TEXT, AT(text), .letter = 'f' },
		{ "argument", "TEXT", "a text", "x", .type = FIELD_ARGUMENT,
			.flags = FIELD_NOT_EMPTY, AT(argument) },
		{ "own", "TEXT", "a text", "x", .flags = FIELD_BARE | FIELD_REPEATS | FIELD_LIVE,
			.set = set_own, AT(own) },
	};

	return idx < sizeof(fields) / sizeof(fields[0]) ? &fields[idx] : NULL;
}

static const struct field *named(const char *key)
{
	const struct field *field = field_find(field_of, key);

	assert_non_null(field);
	return field;
}

static void set(struct object *object, const char *key, const char *text)
{
	struct error error = { 0 };

	assert_int_equal(field_set(named(key), object, text, &error), 0);
}

static void refused(const char *key, const char *text, const char *sentence)
{
	struct object object = { 0 };
	struct error error = { 0 };

	assert_true(field_set(named(key), &object, text, &error) < 0);
	assert_string_equal(error.text, sentence);
	field_clear(named(key), &object);
}

TEST(values)
{
	static const char argument[] = "abc";
	struct object object = { 0 };

	set(&object, "flag", NULL);
	assert_true(object.flag);
	set(&object, "flag", "off");
	assert_false(object.flag);
	set(&object, "count", "50");
	assert_int_equal(object.count, 50);
	set(&object, "bytes", "8K");
	assert_int_equal(object.bytes, 8192);
	set(&object, "time", "2ms");
	assert_int_equal(object.time_ns, 2000000);
	set(&object, "colour", "blue");
	assert_int_equal(object.colour, BLUE);
	set(&object, "text", "one");
	set(&object, "text", "two"); /* the first is freed */
	assert_string_equal(object.text, "two");
	set(&object, "argument", argument);
	assert_ptr_equal(object.argument, argument);
	set(&object, "own", NULL);
	assert_string_equal(object.own, "?");
	set(&object, "text", ""); /* as none */
	assert_null(object.text);
	set(&object, "text", "three");
	field_clear(named("text"), &object);
	assert_null(object.text);
}

TEST(refusals)
{
	refused("flag", "2", "'2' is neither yes nor no");
	refused("count", "0", "0 is out of range; it must be from 1 to 50");
	refused("count", "x", "'x' is not a whole number from 1 to 50");
	refused("bytes", "1K", "the value must be at least 4K");
	refused("bytes", "2M", "the value must be at most 1M");
	refused("time", "0", "the value must not be 0");
	refused("patience", "0", "somebody waits");
	refused("colour", "pink\x1b", "'pink\\x1b' is not one of red, green, blue");
	refused("switch", "on", "'on' is neither auto nor off");
	refused("text", "!", "it begins with !");
	refused("file", "", "the path is empty");
	refused("argument", "", "the value is empty");
	refused("own", "long", "too long");
}

TEST(missing_and_repeated)
{
	struct error error = { 0 };

	assert_int_equal(field_check(named("count"), false, "1", &error), 0);
	assert_int_equal(field_check(named("flag"), false, NULL, &error), 0);
	assert_int_equal(field_check(named("own"), true, NULL, &error), 0);
	assert_int_equal(field_check(named("count"), false, NULL, &error), -EINVAL);
	assert_string_equal(error.text, "this key needs a value, such as count=3");
	assert_int_equal(field_check(named("count"), true, "1", &error), -EINVAL);
	assert_string_equal(error.text, "this key is given twice");
}

TEST(comparing)
{
	struct object a = { 0 };
	struct object b = { 0 };
	const struct field *field;

	for (uint32_t i = 0; (field = field_of(i)) != NULL; i++) {
		assert_true(field_same(field, &a, &b));
	}
	set(&a, "bytes", "8K");
	assert_false(field_same(named("bytes"), &a, &b));
	assert_false(field_same(named("bytes"), &a, NULL)); /* zeroes */
	set(&b, "bytes", "8192");
	assert_true(field_same(named("bytes"), &a, &b));
	set(&a, "text", "x");
	assert_false(field_same(named("text"), &a, &b));
	assert_int_equal(field_copy(named("text"), &b, &a, NULL), 0);
	assert_true(field_same(named("text"), &a, &b) && a.text != b.text);
	set(&a, "count", "11");
	set(&b, "count", "12");
	assert_true(field_same(named("count"), &a, &b)); /* by its own comparison */
	set(&a, "own", "x");
	assert_false(field_same(named("own"), &a, &b));
	set(&b, "own", "xy");
	set(&b, "own", "x");
	assert_true(field_same(named("own"), &a, &b));
	field_clear(named("text"), &a);
	field_clear(named("text"), &b);
}

TEST(unknown_keys)
{
	struct error error = { 0 };

	assert_null(field_find(field_of, "nothing"));
	assert_int_equal(field_unknown(field_of, "coluor", &error), -EINVAL);
	assert_string_equal(error.text, "unknown key 'coluor'; did you mean 'colour'?");
	assert_int_equal(field_unknown(field_of, "nothing\n", &error), -EINVAL);
	assert_string_equal(error.text,
		"unknown key 'nothing\\x0a'; use one of flag, count, bytes, time, patience, "
		"colour, switch, text, file, argument, own");
}

TEST(help)
{
	char form[FIELD_FORM_BYTES];
	char words[24];
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_string_equal(field_form(named("colour"), form), "red|green|blue");
	assert_string_equal(field_form(named("flag"), form), "");
	assert_true(field_is_path(named("file")) && !field_is_path(named("text")));
	assert_string_equal(
		field_summary(named("file"), words, sizeof(words)), "the path of a file that");
	field_help_option(out, named("file"));
	field_help_option(out, named("own"));
	field_help_key(out, named("colour"));
	field_help_key(out, named("own"));
	field_help_line(out, "a name that is as long as its column", "b");
	fclose(out);
	assert_string_equal(text,
		"  -f, --file FILE             the path of a file that has a name which does not\n"
		"                              fit one line\n"
		"      --own[=TEXT]            a text\n"
		"        colour=red|green|blue a colour\n"
		"        own=TEXT              a text (live)\n"
		"a name that is as long as its column\n"
		"                              b\n");
	free(text);
}
