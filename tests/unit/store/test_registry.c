// SPDX-License-Identifier: Apache-2.0
/*
 * Kinds and filters that only this test has: their options, their order, and the parts that pass
 * through them. Nothing below src knows them.
 */
#include <errno.h>
#include <string.h>

#include "../stores.h"
#include "harness.h"
#include "unit.h"

enum { BLOCK_BYTES = 512, TRACE_BYTES = 16 };

/* What has seen a part, from the outside to the inside and back. */
static char trace[TRACE_BYTES];
static uint32_t trace_count;
static uint32_t closed_count;

static void note(char who)
{
	assert_true(trace_count < TRACE_BYTES - 1);
	trace[trace_count++] = who;
	trace[trace_count] = '\0';
}

/* --- a kind: "ones:" reads as bytes of a value -------------------------------------------------
 */

struct ones_config {
	uint8_t value;
};

struct ones_store {
	struct store base;
	uint8_t value;
};

struct ones_scratch {
	uint64_t magic;
};

static int set_value(void *config, const char *value, struct error *error)
{
	if (strlen(value) != 1) {
		return error_set(error, -EINVAL, "'%s' is not one character", value);
	}
	((struct ones_config *)config)->value = (uint8_t)value[0];
	return 0;
}

static int set_colour(void *config, const char *value, struct error *error)
{
	return 0;
}

static const struct field ones_options[] = {
	{ "value", "CHARACTER", "what all bytes are", "x", .set = set_value,
		FIELD_AT(struct ones_config, value, value) },
	{ "colour", "NAME", "nothing", "red", .flags = FIELD_BARE | FIELD_REPEATS,
		.set = set_colour, FIELD_AT(struct ones_config, value, value) },
};

static int ones_open(struct store *base, const struct store_options *options, const void *config,
	struct error *error)
{
	container_of(base, struct ones_store, base)->value =
		config != NULL ? ((const struct ones_config *)config)->value : '1';
	base->info = (struct store_info){ .kind = "ones",
		.block_min = 1,
		.block_preferred = BLOCK_BYTES,
		.memory_align = 1,
		.offset_align = 1,
		.memory_rights = MEM_CPU };
	return 0;
}

static void ones_close(struct store *base)
{
	closed_count++;
}

static void ones_submit(struct store_queue *queue, struct store_part *part)
{
	struct ones_store *store = container_of(queue->store, struct ones_store, base);

	note('k');
	((struct ones_scratch *)store_scratch(part))->magic = UINT64_MAX;
	memset(mem_cpu_write(part->memory), store->value, part->length);
	store_finish_later(part, 0);
}

static uint64_t ones_size(struct store *store)
{
	return BLOCK_BYTES;
}

static const struct store_ops ones_ops = {
	.name = "ones",
	.scratch_bytes = sizeof(struct ones_scratch),
	.close = ones_close,
	.submit = ones_submit,
	.size = ones_size,
};

static const struct store_kind ones_kind = {
	.name = "ones",
	.prefix = "ones:",
	.options = ones_options,
	.option_count = ARRAY_COUNT(ones_options),
	.config_bytes = sizeof(struct ones_config),
	.store_bytes = sizeof(struct ones_store),
	.ops = &ones_ops,
	.open = ones_open,
};

/* --- two filters ------------------------------------------------------------------------------ */

struct flip_scratch {
	uint64_t length;
};

static int filter_open(struct store *store, const struct store_options *options, const void *config,
	struct error *error)
{
	store->info.has_progress = true;
	return 0;
}

static void flip_submit(struct store_queue *queue, struct store_part *part)
{
	note('f');
	((struct flip_scratch *)store_scratch(part))->length = part->length;
	store_forward(part);
}

static void flip_done(struct store_part *part, int result)
{
	uint8_t *bytes = mem_cpu_write(part->memory);

	note('F');
	assert_int_equal(((struct flip_scratch *)store_scratch(part))->length, part->length);
	for (uint64_t i = 0; i < part->length; i++) {
		bytes[i] ^= 0xff;
	}
	store_finish(part, result);
}

static const struct field flip_options[] = {
	{ "flip", "yes", "flips all bits", "yes", .set = set_colour, .bytes = 1 },
};

static const struct store_ops flip_ops = {
	.name = "flip",
	.scratch_bytes = sizeof(struct flip_scratch),
	.submit = flip_submit,
	.inner_done = flip_done,
};

static const struct store_kind flip_kind = {
	.name = "flip",
	.is_filter = true,
	.options = flip_options,
	.option_count = ARRAY_COUNT(flip_options),
	.config_bytes = 1,
	.store_bytes = sizeof(struct store),
	.ops = &flip_ops,
	.open = filter_open,
};

static void guess_submit(struct store_queue *queue, struct store_part *part)
{
	note('g');
	store_forward(part);
}

static int guess_open(struct store *store, const struct store_options *options, const void *config,
	struct error *error)
{
	if (strcmp(store->inner->info.kind, "ones") != 0) {
		return error_set(error, -ENOTSUP, "guess is for ones");
	}
	return filter_open(store, options, config, error);
}

static const struct field guess_options[] = {
	{ "guess", "yes", "guesses", "yes", .set = set_colour, .bytes = 1 },
};

static const struct store_ops guess_ops = { .name = "guess", .submit = guess_submit };

static const struct store_kind guess_kind = {
	.name = "guess",
	.is_filter = true,
	.options = guess_options,
	.option_count = ARRAY_COUNT(guess_options),
	.config_bytes = 1,
	.store_bytes = sizeof(struct store),
	.ops = &guess_ops,
	.open = guess_open,
};

/* --- options ---------------------------------------------------------------------------------- */

static void check_set(struct store_options *options, const char *key, const char *value, int code,
	const char *sentence)
{
	struct error error = { 0 };

	assert_int_equal(store_options_set(options, key, value, &error), code);
	assert_string_equal(error.text, sentence);
}

TEST(test_wrong_options_say_why)
{
	struct store_options options = { .path = "ones:" };

	check_set(&options, "vlaue", "x", -ENOENT, "unknown key");
	check_set(&options, "value", NULL, -EINVAL, "this key needs a value, such as value=x");
	check_set(&options, "value", "xy", -EINVAL, "'xy' is not one character");
	store_options_fini(&options);
	options = (struct store_options){ .path = "ones:" };
	stores_set(&options, "value", "x");
	check_set(&options, "value", "x", -EINVAL, "this key is given twice");
	assert_int_equal(store_options_set(&options, "colour", NULL, NULL), 0);
	assert_int_equal(store_options_set(&options, "colour", "red", NULL), 0);
	store_options_fini(&options);
}

TEST(test_every_option_is_listed_once_and_documented)
{
	const struct field *option;
	uint32_t count = 0;
	uint32_t found = 0;

	for (; (option = store_option_at(count)) != NULL; count++) {
		assert_true(option->key[0] != '\0' && option->help[0] != '\0');
		assert_true(option->example[0] != '\0');
		assert_true(option->form == NULL || strchr(option->form, ' ') == NULL);
		assert_true(option->type != FIELD_OWN || option->set != NULL);
		found += strcmp(option->key, "value") == 0 || strcmp(option->key, "flip") == 0;
		for (uint32_t i = 0; i < count; i++) {
			assert_string_not_equal(store_option_at(i)->key, option->key);
		}
	}
	assert_int_equal(found, 2);
}

TEST(test_options_of_another_kind_are_refused)
{
	struct store_options options = { .path = "memory:1M" };
	struct store *store = NULL;
	struct error error = { 0 };

	stores_set(&options, "flip", "yes"); /* of a filter */
	stores_set(&options, "value", "x");
	assert_int_equal(store_open(&options, &store, &error), -EINVAL);
	assert_string_equal(error.text,
		"'memory:1M': the key value is only for disks whose path begins with ones:");
	options.path = "ones:";
	assert_int_equal(store_open(&options, &store, &error), 0);
	store_close(store);
	store_options_fini(&options);
}

/* value NULL: the key is not given. */
static void set_one(struct store_options *options, const char *key, const char *value)
{
	*options = (struct store_options){ .path = "x" };
	if (value != NULL) {
		stores_set(options, key, value);
	}
}

static bool is_same(const char *key, const char *a, const char *b)
{
	const struct field *option;
	struct store_options one;
	struct store_options other;
	uint32_t idx = 0;
	bool same;

	while (strcmp((option = store_option_at(idx))->key, key) != 0) {
		idx++;
	}
	set_one(&one, key, a);
	set_one(&other, key, b);
	same = store_options_same(&one, &other, option);
	store_options_fini(&one);
	store_options_fini(&other);
	return same;
}

TEST(test_values_are_compared_and_not_their_text)
{
	static const struct {
		const char *key;
		const char *value;
		const char *same;
		const char *other;
	} cases[] = {
		{ "mode", "auto", NULL, "cached" },
		{ "write-mode", "cached", NULL, "direct" },
		{ "readonly", "yes", "true", "off" },
		{ "page-cache-send", "auto", NULL, "off" },
		{ "stripe", "64K:4", "65536:4", "64K:5" },
		{ "format", "raw", "raw", NULL },
		{ "overlay", "discard", "discard", "/x" },
		{ "fault", "read:EIO:nth=3:range=4K+1K", "read:EIO:range=4096+1024:nth=3",
			"read:EIO:nth=4:range=4K+1K" },
		{ "delay", "any:1ms", "any:1000us", "any:1us" },
		{ "pace", "1M", "1024K:members=1", "1M:members=2" },
		{ "map-memory", "64M", NULL, "65M" },
		{ "on-full", "drop", NULL, "refuse" },
		{ "cache", "1M", "1024K", NULL },
		{ "cache", "0", "0", NULL },
		{ "value", "x", "x", "y" },
	};

	for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
		assert_true(is_same(cases[i].key, cases[i].value, cases[i].same));
		assert_false(is_same(cases[i].key, cases[i].value, cases[i].other));
	}
}

/* The default of a key can depend on another one. */
TEST(test_a_value_that_follows_from_another_key_is_compared_too)
{
	struct store_options one = { .path = "x" };
	struct store_options other = { .path = "x" };
	const struct field *option;

	stores_set(&one, "mode", "direct");
	stores_set(&other, "write-mode", "direct");
	stores_set(&other, "mode", "direct");
	for (uint32_t i = 0; (option = store_option_at(i)) != NULL; i++) {
		assert_true(store_options_same(&one, &other, option));
	}
	store_options_fini(&one);
	store_options_fini(&other);
}

TEST(test_sizes_in_paths_are_compared_as_numbers)
{
	assert_true(store_path_same("memory:1M", "memory:1024K"));
	assert_true(store_path_same("null:1M", "null:1048576"));
	assert_false(store_path_same("memory:1M", "memory:2M"));
	assert_false(store_path_same("memory:1M", "null:1M"));
	assert_false(store_path_same("/x/1M", "/x/1024K"));
}

/* --- stores ------------------------------------------------------------------------------------
 */

TEST(test_filters_wrap_in_the_order_of_registration)
{
	struct store_options options = { .path = "ones:" };
	struct bench bench;
	char data[2] = "ab";

	stores_set(&options, "flip", "yes");
	stores_set(&options, "guess", "yes");
	stores_set(&options, "value", "\xf0");
	bench_open(&bench, &options);
	store_options_fini(&options);
	trace_count = 0;
	closed_count = 0;
	assert_int_equal(bench_read(&bench, 0, 2, data), 0);
	assert_string_equal(trace, "gfkF"); /* flip was registered first */
	assert_memory_equal(data, "\x0f\x0f", 2);
	assert_int_equal(store_size(bench.store), BLOCK_BYTES);
	assert_string_equal(store_info(bench.store)->kind, "ones");
	assert_true(store_info(bench.store)->has_progress);
	assert_string_equal(store_page_cache_refusal(bench.store), "guess");
	bench_close(&bench);
	assert_int_equal(closed_count, 1);
}

TEST(test_our_own_filters_keep_their_order)
{
	static const char *const names[] = { "fault", "delay", "sched", "pace", "memory" };
	struct store_options options = { .path = "memory:1M" };
	struct store *store;

	stores_set(&options, "fault", "read:EIO");
	stores_set(&options, "pace", "1M:seek=1ms");
	stores_set(&options, "delay", "read:1us");
	assert_int_equal(store_open(&options, &store, NULL), 0);
	store_options_fini(&options);
	for (uint32_t i = 0; i < ARRAY_COUNT(names); i++) {
		const struct store *layer = store;

		for (uint32_t k = 0; k < i; k++) {
			layer = layer->inner;
		}
		assert_string_equal(layer->ops->name, names[i]);
	}
	store_close(store);
}

TEST(test_a_filter_that_cannot_be_opened_closes_what_is_below)
{
	struct store_options options = { .path = "memory:1M" };
	struct store *store = NULL;
	struct error error = { 0 };

	stores_set(&options, "guess", "yes");
	assert_int_equal(store_open(&options, &store, &error), -ENOTSUP);
	store_options_fini(&options);
	assert_string_equal(error.text, "guess is for ones");
	assert_null(store);
}

int main(void)
{
	store_register(&ones_kind);
	store_register(&flip_kind);
	store_register(&guess_kind);
	return unit_run(NULL, NULL);
}
