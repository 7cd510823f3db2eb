// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "unit.h"

static void check_distance(const char *a, const char *b, uint32_t wanted)
{
	assert_int_equal(near_distance(a, b), wanted);
	assert_int_equal(near_distance(b, a), wanted);
}

TEST(distance)
{
	check_distance("", "", 0);
	check_distance("", "copy", 4);
	check_distance("copy", "copy", 0);
	check_distance("copy", "coy", 1);
	check_distance("copy", "coppy", 1);
	check_distance("copy", "cody", 1);
	check_distance("copy", "cpoy", 1); /* neighbours swapped */
	check_distance("copy", "yocp", 3);
	check_distance("sevre", "serve", 1);
	check_distance("list", "info", 4);
	check_distance("kitten", "sitting", 3);
}

TEST(long_words)
{
	char longest[64];
	char other[64];
	char too_long[65];

	memset(longest, 'a', sizeof(longest) - 1);
	longest[63] = '\0';
	memset(other, 'b', sizeof(other) - 1);
	other[63] = '\0';
	memset(too_long, 'a', sizeof(too_long) - 1);
	too_long[64] = '\0';
	check_distance(longest, longest, 0);
	check_distance(longest, other, 63);
	check_distance(longest, too_long, UINT32_MAX);
}

static const char *nearest(const char *word)
{
	static const char *const names[] = { "serve", "list", "info", "stats", "attach", "detach",
		"destination-is-zero", "mode", "write-mode" };
	struct near near;

	near_begin(&near, word);
	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		near_try(&near, names[i]);
	}
	return near.name;
}

TEST(near_enough)
{
	assert_string_equal(nearest("sevre"), "serve");
	assert_string_equal(nearest("lst"), "list");
	assert_string_equal(nearest("detatch"), "detach");
	assert_string_equal(nearest("atach"), "attach");
	assert_string_equal(nearest("destination-zero"), "destination-is-zero");
	assert_string_equal(nearest("moed"), "mode");
	/* Its beginning. */
	assert_string_equal(nearest("dest"), "destination-is-zero");
	assert_string_equal(nearest("sta"), "stats");
}

TEST(not_near)
{
	static const char *const words[] = { "", "s", "ls", "de", "cp", "xyz", "evresse",
		"listen-on", "stats-of-all-servers-everywhere-and-at-all-times-that-there-were" };

	for (size_t i = 0; i < ARRAY_COUNT(words); i++) {
		assert_null(nearest(words[i]));
	}
}

TEST(text)
{
	struct near near;
	char out[NEAR_TEXT_BYTES];

	near_begin(&near, "jsno");
	assert_string_equal(near_text(&near, "--", out), "");
	near_try(&near, "json");
	assert_string_equal(near_text(&near, "--", out), "; did you mean '--json'?");
}
