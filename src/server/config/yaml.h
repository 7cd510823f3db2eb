// SPDX-License-Identifier: Apache-2.0
/*
 * A YAML file read by a schema, whose errors name file, line, column and key. The text is parsed
 * twice: once into a tree that knows where everything stands, once by libcyaml into the caller's
 * structs.
 *
 * Threading: one thread. Ownership: config_yaml_open() gives, config_yaml_close() frees, the loaded
 * structs included. Errors: -EINVAL, or what opening and reading the file gave; the sentence starts
 * with the file's name.
 */
#pragma once

#include <cyaml/cyaml.h>

#include "base/error.h"

struct config_yaml;

/* Loads path by the schema, whose top is a mapping. *data gets NULL when the file has no content.
 */
GMB_MUST_CHECK int config_yaml_open(const char *path, const struct cyaml_schema_value *schema,
	struct config_yaml **yaml_out, void **data_out, struct error *error);
void config_yaml_close(struct config_yaml *yaml);

/* One thing in the file: top-level key, entry of the list there (from 0, or -1 for none), key
 * inside (or NULL), entry of the list there (or -1), key inside that (or NULL). */
struct config_place {
	const char *key;
	int entry;
	const char *inner_key;
	int inner_entry;
	const char *leaf_key;
};

/* Puts "FILE:LINE:COLUMN: KEY: " of the place (or of what encloses it) in front of *error. */
void config_yaml_blame(
	const struct config_yaml *yaml, const struct config_place *place, struct error *error);

enum { CONFIG_KEYS_MAX = 16 };

/*
 * A list of groups of single values, whose entries may also be a single value alone, which stands
 * for a group of the first key: libcyaml has no schema for that (give it CYAML_FIELD_IGNORE). list:
 * its place, a top-level key or one inside of an entry. Calls take for each entry with the values
 * of its keys, NULL for those that it has not; it always has the first one. Of keys only the names
 * count. What take returns below 0 ends it. 1: the list is there; 0: it is not.
 */
GMB_MUST_CHECK int config_yaml_groups(struct config_yaml *yaml, const struct config_place *list,
	const struct cyaml_schema_field *keys,
	int (*take)(void *context, int entry, const char *const *values), void *context,
	struct error *error);

enum { CONFIG_ORIGIN_BYTES = 512 };

/* Writes "FILE:LINE" of the place. Returns out. */
const char *config_yaml_origin(const struct config_yaml *yaml, const struct config_place *place,
	char out[CONFIG_ORIGIN_BYTES]);
