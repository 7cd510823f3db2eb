// SPDX-License-Identifier: Apache-2.0
/*
 * A YAML file as a tree that knows where everything stands. Its readers walk it by tables of fields
 * (base/schema.h), and errors name file, line, column and the way to the value:
 *
 *	FILE:5:9: exports entry 1, delay entry 2: 'soon' is not a time
 *
 * Threading: one thread. Ownership: config_yaml_open() gives, config_yaml_close() frees, with all
 * texts; a node lies on the stack of whoever has called its reader. Errors: -EINVAL, or what
 * opening and reading the file gave; the sentence starts with the file's name.
 */
#pragma once

#include <yaml.h>

#include "base/error.h"
#include "base/schema.h"

struct config_yaml;

/* A value, and the way to it. */
struct config_node {
	struct config_yaml *yaml;
	const struct config_node *outer; /* the group or list that it is in; NULL: the file */
	const yaml_node_t *key;		 /* NULL: an entry of a list */
	const yaml_node_t *value;
	uint32_t entry; /* from 0 */
};

/* The root has no value (NULL) when the file has no content; else it is a group. */
GMB_MUST_CHECK int config_yaml_open(const char *path, struct config_yaml **yaml_out,
	struct config_node *root_out, struct error *error);
void config_yaml_close(struct config_yaml *yaml);

/* Reads what a node has for a field; field is NULL for entries of a list. Its errors do not name
 * the place. */
typedef int config_read(void *context, const struct config_node *node, const struct field *field,
	struct error *error);

/* Reads each key of a group: one of those at hand, and each once. */
GMB_MUST_CHECK int config_yaml_group(const struct config_node *group, field_at *at,
	config_read *read, void *context, struct error *error);
/* Reads each entry of a list. */
GMB_MUST_CHECK int config_yaml_list(
	const struct config_node *list, config_read *read, void *context, struct error *error);
/* A single value. */
GMB_MUST_CHECK int config_yaml_text(
	const struct config_node *node, const char **text_out, struct error *error);
bool config_yaml_is_group(const struct config_node *node);

enum { CONFIG_ORIGIN_BYTES = 512 };

/* Writes "FILE:LINE" of the node. Returns out. */
const char *config_yaml_origin(const struct config_node *node, char out[CONFIG_ORIGIN_BYTES]);
