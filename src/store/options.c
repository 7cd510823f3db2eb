// SPDX-License-Identifier: Apache-2.0
/*
 * The registry of kinds and filters, and their options. Options that apply to all kinds are defined
 * here, the options of one kind in its own file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "store/kind.h"
#include "store/parse.h"

enum {
	STRIPE_STEP = 4096,
	STRIPE_CHUNK_MAX = 1 << 30,
	STRIPE_MEMBERS_MAX = 1024,
	OPTIONS_MAX = 64, /* keys_given has one bit per option */
};

/* The registry of the process, filled before other threads exist. */
static const struct store_kind *kinds[STORE_KINDS_MAX];
static uint32_t kind_count;

/* --- options of all kinds -------------------------------------------------------------------- */

static int parse_mode(const char *value, bool read, enum store_mode *mode, struct error *error)
{
	if (strcmp(value, "cached") == 0) {
		*mode = STORE_MODE_CACHED;
	} else if (strcmp(value, "direct") == 0) {
		*mode = STORE_MODE_DIRECT;
	} else if (strcmp(value, "device") == 0) {
		*mode = STORE_MODE_DEVICE;
	} else if (read && strcmp(value, "auto") == 0) {
		*mode = STORE_MODE_AUTO;
	} else {
		return error_set(error, -EINVAL,
			"'%s' is not a mode; use cached (through the page cache), direct (direct "
			"I/O)%s device (direct I/O into memory of a PCI device)%s",
			quote(value), read ? "," : " or",
			read ? " or auto (chosen for each read)" : "");
	}
	return 0;
}

enum { OPTION_MODE, OPTION_WRITE_MODE };

static enum store_mode write_mode_of(enum store_mode mode)
{
	return store_mode_is_direct(mode) ? mode : STORE_MODE_AUTO;
}

static int set_mode(void *config, const char *value, struct error *error)
{
	struct store_options *options = config;
	int result = parse_mode(value, true, &options->read_mode, error);

	if (result == 0 && (options->keys_given & BIT(OPTION_WRITE_MODE)) == 0) {
		options->write_mode = write_mode_of(options->read_mode);
	}
	return result;
}

static int set_write_mode(void *config, const char *value, struct error *error)
{
	struct store_options *options = config;

	int result = parse_mode(value, false, &options->write_mode, error);

	options->write_mode = write_mode_of(options->write_mode);
	return result;
}

static const char *const auto_words[] = { "auto", "off", NULL };

/* Parses CHUNK:MEMBERS. */
static int set_stripe(void *config, const char *value, struct error *error)
{
	struct store_options *options = config;
	const char *colon = strchr(value, ':');
	char chunk_text[UNITS_TEXT_BYTES];
	uint64_t chunk = 0;

	if (colon != NULL && (size_t)(colon - value) < sizeof(chunk_text)) {
		memcpy(chunk_text, value, (size_t)(colon - value));
		chunk_text[colon - value] = '\0';
		if (units_parse_bytes(chunk_text, &chunk, NULL) < 0) {
			chunk = 0;
		}
	}
	if (chunk == 0 || chunk > STRIPE_CHUNK_MAX || chunk % STRIPE_STEP != 0 ||
		units_parse_count(
			colon + 1, 2, STRIPE_MEMBERS_MAX, &options->stripe_members, NULL) < 0) {
		return error_set(error, -EINVAL,
			"'%s' is not a stripe; write CHUNK:MEMBERS, such as 64K:4, with a chunk "
			"from 4K to 1G in steps of 4K and 2 to %d members",
			quote(value), STRIPE_MEMBERS_MAX);
	}
	options->stripe_chunk = (uint32_t)chunk;
	return 0;
}

#define AT(first, last) FIELD_AT(struct store_options, first, last)

static const struct field common_options[] = {
	[OPTION_MODE] = { "mode", "auto|cached|direct|device",
		"method of reading the disk: auto (default; chosen for each read), cached (through "
		"the page cache), direct (direct I/O) or device (direct I/O into memory of a PCI "
		"device, see --arena)",
		"cached", .set = set_mode, AT(read_mode, read_mode) },
	[OPTION_WRITE_MODE] = { "write-mode", "cached|direct|device",
		"method of writing the disk: cached (through the page cache), direct (direct I/O) "
		"or device (direct I/O from memory of a PCI device); default: the same as mode=, "
		"but cached if that is auto",
		"direct", .set = set_write_mode, AT(write_mode, write_mode) },
	{ "readonly", NULL, "refuse writes", "yes", .type = FIELD_FLAG, .flags = FIELD_BARE,
		AT(read_only, read_only) },
	{ "page-cache-send", NULL, "send large cached reads directly from the page cache", "off",
		.type = FIELD_WORD, .words = auto_words,
		AT(page_cache_send_off, page_cache_send_off) },
	{ "stripe", "CHUNK:MEMBERS",
		"layout of a striped disk as chunk size and number of members, such as 64K:4",
		"64K:4", .set = set_stripe, AT(stripe_chunk, stripe_members) },
};

/* --- the registry ---------------------------------------------------------------------------- */

const struct store_kind *store_kind_at(uint32_t idx)
{
	return idx < kind_count ? kinds[idx] : NULL;
}

uint32_t store_kind_of_path(const char *path)
{
	uint32_t found = STORE_KINDS_MAX;

	for (uint32_t i = 0; i < kind_count; i++) {
		const char *prefix = kinds[i]->prefix;

		if (!kinds[i]->is_filter && prefix == NULL) {
			found = i;
		} else if (!kinds[i]->is_filter && strncmp(path, prefix, strlen(prefix)) == 0) {
			return i;
		}
	}
	GMB_ASSERT(found < STORE_KINDS_MAX);
	return found;
}

/* Returns the idx-th option, and in *kind_idx the index of its kind, or STORE_KINDS_MAX for options
 * of all kinds. */
static const struct field *option_find(uint32_t idx, uint32_t *kind_idx)
{
	*kind_idx = STORE_KINDS_MAX;
	if (idx < ARRAY_COUNT(common_options)) {
		return &common_options[idx];
	}
	idx -= ARRAY_COUNT(common_options);
	for (uint32_t i = 0; i < kind_count; i++) {
		if (idx < kinds[i]->option_count) {
			*kind_idx = i;
			return &kinds[i]->options[idx];
		}
		idx -= kinds[i]->option_count;
	}
	return NULL;
}

const struct field *store_option_at(uint32_t idx)
{
	uint32_t kind_idx;

	return option_find(idx, &kind_idx);
}

void store_register(const struct store_kind *kind)
{
	const struct field *option;
	uint32_t count = 0;

	GMB_ASSERT(kind_count < STORE_KINDS_MAX);
	GMB_ASSERT(kind->open != NULL && kind->ops->submit != NULL);
	GMB_ASSERT(kind->is_filter || kind->ops->size != NULL);
	GMB_ASSERT(kind->store_bytes >= sizeof(struct store));
	GMB_ASSERT(kind->ops->scratch_bytes % 8 == 0);
	GMB_ASSERT(kind->ops->start == NULL || !kind->is_filter);
	GMB_ASSERT(!kind->ops->has_owner ||
		   (kind->ops->start != NULL && kind->ops->queue_bytes == 0 &&
			   kind->ops->queue_init == NULL && kind->ops->page_cache_ref == NULL));
	for (uint32_t i = 0; i < kind_count; i++) {
		GMB_ASSERT(strcmp(kinds[i]->name, kind->name) != 0);
	}
	for (; (option = store_option_at(count)) != NULL; count++) {
		for (uint32_t i = 0; i < kind->option_count; i++) {
			GMB_ASSERT(strcmp(option->key, kind->options[i].key) != 0);
		}
	}
	for (uint32_t i = 0; i < kind->option_count; i++) {
		const struct field *field = &kind->options[i];

		GMB_ASSERT(field->type != FIELD_OWN || field->bytes > 0);
		/* A kind's options must not be FIELD_TEXT, because such values would have to be
		 * freed. */
		GMB_ASSERT(field->type < FIELD_TEXT);
		GMB_ASSERT(field->offset + field->bytes <= kind->config_bytes);
	}
	GMB_ASSERT(count + kind->option_count <= OPTIONS_MAX);
	kinds[kind_count++] = kind;
}

/* --- setting options ------------------------------------------------------------------------- */

/* Returns the struct that the set functions of a kind's options receive, and allocates it if
 * needed. NULL: no memory. */
static void *config_of(struct store_options *options, uint32_t kind_idx)
{
	if (kind_idx == STORE_KINDS_MAX) {
		return options;
	}
	if (options->configs[kind_idx] == NULL) {
		options->configs[kind_idx] = calloc(1, kinds[kind_idx]->config_bytes);
		if (options->configs[kind_idx] != NULL && kinds[kind_idx]->defaults != NULL) {
			memcpy(options->configs[kind_idx], kinds[kind_idx]->defaults,
				kinds[kind_idx]->config_bytes);
		}
	}
	return options->configs[kind_idx];
}

int store_options_set(
	struct store_options *options, const char *key, const char *value, struct error *error)
{
	const struct field *option;
	uint32_t kind_idx;
	void *config;
	int result;

	for (uint32_t i = 0; (option = option_find(i, &kind_idx)) != NULL; i++) {
		bool given = (options->keys_given & UINT64_C(1) << i) != 0;

		if (strcmp(option->key, key) != 0) {
			continue;
		}
		result = field_check(option, given, value, error);
		if (result < 0) {
			return result;
		}
		options->keys_given |= UINT64_C(1) << i;
		config = config_of(options, kind_idx);
		if (config == NULL) {
			return error_oom_for(error, "an option");
		}
		return field_set(option, config, value, error);
	}
	return error_set(error, -ENOENT, "unknown key");
}

/* --- comparing ------------------------------------------------------------------------------- */

/* Returns the values that the options of a kind have set, or its defaults. */
static const void *values_of(const struct store_options *options, uint32_t kind_idx)
{
	return options->configs[kind_idx] != NULL ? options->configs[kind_idx]
						  : kinds[kind_idx]->defaults;
}

bool store_options_same(
	const struct store_options *a, const struct store_options *b, const struct field *option)
{
	for (uint32_t i = 0; i < kind_count; i++) {
		if (option >= kinds[i]->options &&
			option < kinds[i]->options + kinds[i]->option_count) {
			return field_same(option, values_of(a, i), values_of(b, i));
		}
	}
	return field_same(option, a, b);
}

bool store_path_same(const char *a, const char *b)
{
	const struct store_kind *kind = kinds[store_kind_of_path(a)];
	uint64_t size_a;
	uint64_t size_b;

	return strcmp(a, b) == 0 ||
	       (kind == kinds[store_kind_of_path(b)] && kind->names_size &&
		       parse_path_size(a, &size_a, NULL) == 0 &&
		       parse_path_size(b, &size_b, NULL) == 0 && size_a == size_b);
}

int store_path_check(const char *path, struct error *error)
{
	uint64_t size;

	return kinds[store_kind_of_path(path)]->names_size ? parse_path_size(path, &size, error)
							   : 0;
}

/* --- the given options ----------------------------------------------------------------------- */

static bool is_useless(const struct store_kind *kind, const char *key)
{
	for (uint32_t i = 0; kind->useless != NULL && kind->useless[i] != NULL; i++) {
		if (strcmp(kind->useless[i], key) == 0) {
			return true;
		}
	}
	return false;
}

/* Returns why an option for all kinds has no effect on this kind, or NULL if it has an effect. */
static const char *useless_reason(const struct store_options *options,
	const struct store_kind *kind, const struct field *option)
{
	bool is_mode = option == &common_options[OPTION_MODE] ||
		       option == &common_options[OPTION_WRITE_MODE];

	if (is_useless(kind, option->key)) {
		return kind->useless_reason;
	}
	return is_mode && kind->names_size && !store_mode_is_direct(options->read_mode) &&
			       !store_mode_is_direct(options->write_mode)
		       ? "memory and null disks do not use the page cache"
		       : NULL;
}

static int check_common(
	const struct store_options *options, const struct store_kind *kind, struct error *error)
{
	for (uint32_t i = 0; i < ARRAY_COUNT(common_options); i++) {
		bool given = (options->keys_given & UINT64_C(1) << i) != 0;
		const char *reason =
			given ? useless_reason(options, kind, &common_options[i]) : NULL;

		if (reason != NULL) {
			return error_set(error, -EINVAL,
				"'%s': the key %s has no effect here: %s; omit the key",
				options->path, common_options[i].key, reason);
		}
	}
	return 0;
}

int store_options_fit(
	const struct store_options *options, const struct store_kind *kind, struct error *error)
{
	const struct field *option;
	uint32_t owner;
	int rc = check_common(options, kind, error);

	if (rc < 0) {
		return rc;
	}
	for (uint32_t i = 0; (option = option_find(i, &owner)) != NULL; i++) {
		if ((options->keys_given & UINT64_C(1) << i) == 0 || owner == STORE_KINDS_MAX ||
			kinds[owner]->is_filter || kinds[owner] == kind) {
			continue;
		}
		if (kinds[owner]->prefix == NULL) {
			return error_set(error, -EINVAL,
				"'%s': the key %s is only for files and block devices",
				options->path, option->key);
		}
		return error_set(error, -EINVAL,
			"'%s': the key %s is only for disks whose path begins with %s",
			options->path, option->key, kinds[owner]->prefix);
	}
	for (uint32_t i = 0; i < kind_count && rc == 0; i++) {
		if (options->configs[i] != NULL && kinds[i]->fits != NULL) {
			rc = kinds[i]->fits(options, error);
		}
	}
	return rc;
}

bool store_path_has_kind(const char *path)
{
	return kinds[store_kind_of_path(path)]->prefix != NULL;
}

bool store_path_needs_start(const char *path)
{
	return kinds[store_kind_of_path(path)]->ops->start != NULL;
}

const char *store_path_file(const char *path)
{
	const struct store_kind *kind = kinds[store_kind_of_path(path)];

	return kind->is_on_file ? path + strlen(kind->prefix) : path;
}

const char *store_options_file(const struct store_options *options, uint32_t idx)
{
	for (uint32_t i = 0; i < kind_count; i++) {
		const char *file = options->configs[i] != NULL && kinds[i]->file != NULL
					   ? kinds[i]->file(options->configs[i])
					   : NULL;

		if (file != NULL && idx-- == 0) {
			return file;
		}
	}
	return NULL;
}

const char *store_options_memory_folder(const struct store_options *options)
{
	uint32_t idx = store_kind_of_path(options->path);

	return options->read_only || kinds[idx]->memory_folder == NULL
		       ? NULL
		       : kinds[idx]->memory_folder(options->configs[idx]);
}

bool store_options_freezes(const struct store_options *options)
{
	for (uint32_t i = 0; i < kind_count; i++) {
		if (kinds[i]->freezes_inner && options->configs[i] != NULL) {
			return true;
		}
	}
	return false;
}

bool store_options_reads_only(const struct store_options *options)
{
	return options->read_only || store_options_freezes(options);
}

void store_options_fini(struct store_options *options)
{
	for (uint32_t i = 0; i < STORE_KINDS_MAX; i++) {
		free(options->configs[i]);
		options->configs[i] = NULL;
	}
}
