// SPDX-License-Identifier: Apache-2.0
/*
 * A YAML file as a tree of nodes with their positions. Readers process it by tables of fields
 * (base/schema.h), and errors name the file, line, column and path to the value:
 *
 * FILE:5:9: exports entry 1, delay entry 2: 'soon' is not a time
 *
 * Threading: one thread. Ownership: config_yaml_open() creates the tree; config_yaml_close() frees
 * it with all texts. A node lies on the stack of the function that called its reader. Errors:
 * -EINVAL, or the error of opening and reading the file; the message starts with the file's name.
 */
#pragma once

#include <yaml.h>

#include "base/error.h"
#include "base/schema.h"

struct config_yaml;

/* A value and the path to it. */
struct config_node {
	struct config_yaml *yaml;
	const struct config_node *outer; /* the group or list that contains it; NULL: the file */
	const yaml_node_t *key;		 /* NULL: the node is an entry of a list */
	const yaml_node_t *value;
	uint32_t entry; /* index in the list, from 0 */
};

/* Reads the file. The root node's value is a group, or NULL when the file has no content. */
GMB_MUST_CHECK int config_yaml_open(const char *path, struct config_yaml **yaml_out,
	struct config_node *root_out, struct error *error);
void config_yaml_close(struct config_yaml *yaml);

/* Reads the value of a node for a field; field is NULL for entries of a list. An error message does
 * not contain the position, which the caller adds. */
typedef int config_read(void *context, const struct config_node *node, const struct field *field,
	struct error *error);

/* Reads a group's keys. Every key must be a field of the table, and occur once. */
GMB_MUST_CHECK int config_yaml_group(const struct config_node *group, field_at *at,
	config_read *read, void *context, struct error *error);
/* Reads each entry of a list. */
GMB_MUST_CHECK int config_yaml_list(
	const struct config_node *list, config_read *read, void *context, struct error *error);
/* Sets *text_out to the text of a node that is a single value. */
GMB_MUST_CHECK int config_yaml_text(
	const struct config_node *node, const char **text_out, struct error *error);
bool config_yaml_is_group(const struct config_node *node);

enum { CONFIG_ORIGIN_BYTES = 512 };

/* Writes the node's position as "FILE:LINE". Returns out. */
const char *config_yaml_origin(const struct config_node *node, char out[CONFIG_ORIGIN_BYTES]);
