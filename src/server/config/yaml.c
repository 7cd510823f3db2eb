// SPDX-License-Identifier: Apache-2.0
#include "server/config/yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum {
	FILE_BYTES_MAX = 16 << 20,
	PATH_SHOWN_BYTES = 256,
	DEPTH_MAX = 16,
	NAME_BYTES = 384,
};

struct config_yaml {
	char path[PATH_SHOWN_BYTES]; /* path of the file, escaped for messages */
	uint8_t *text;
	size_t text_bytes;
	yaml_document_t document;
	bool has_document;
	bool has_content;
	bool has_blamed; /* the error already contains its position */
};

/* --- the file's bytes ------------------------------------------------------------------------ */

static int yaml_read_all(struct config_yaml *yaml, int fd, size_t size, struct error *error)
{
	yaml->text = malloc(size + 1);
	if (yaml->text == NULL) {
		return error_set(error, -ENOMEM, "%s: no memory to read the file", yaml->path);
	}
	while (yaml->text_bytes < size) {
		ssize_t n = read(fd, yaml->text + yaml->text_bytes, size - yaml->text_bytes);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0) {
			return error_set(error, -errno, "%s: cannot read the file: %s", yaml->path,
				strerror(errno));
		}
		if (n == 0) {
			break;
		}
		yaml->text_bytes += (size_t)n;
	}
	return 0;
}

static int yaml_read_file(struct config_yaml *yaml, const char *path, struct error *error)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	int rc;

	if (fd < 0) {
		return error_set(error, -errno, "%s: cannot open the configuration file: %s",
			yaml->path, strerror(errno));
	}
	if (fstat(fd, &st) < 0) {
		rc = error_set(error, -errno, "%s: %s", yaml->path, strerror(errno));
	} else if (S_ISDIR(st.st_mode)) {
		rc = error_set(error, -EISDIR, "%s: the path is a directory; --config needs a file",
			yaml->path);
	} else if (S_ISREG(st.st_mode) && st.st_size > FILE_BYTES_MAX) {
		rc = error_set(error, -EFBIG, "%s: larger than %d MiB; is this the right file?",
			yaml->path, FILE_BYTES_MAX >> 20);
	} else if (!S_ISREG(st.st_mode)) {
		rc = error_set(error, -EINVAL, "%s: not a regular file", yaml->path);
	} else {
		rc = yaml_read_all(yaml, fd, (size_t)st.st_size, error);
	}
	close(fd);
	return rc;
}

/* --- the tree with positions ----------------------------------------------------------------- */

static int complain_at(struct config_yaml *yaml, const yaml_mark_t *mark, struct error *error,
	const char *sentence)
{
	return error_set(error, -EINVAL, "%s:%zu:%zu: %s", yaml->path, mark->line + 1,
		mark->column + 1, sentence);
}

/* Returns whether the parser has stopped at a tab in the indentation of a line. libyaml has no
 * message for this. */
static bool has_tab(const struct config_yaml *yaml, const yaml_mark_t *mark)
{
	const uint8_t *at = yaml->text;
	const uint8_t *end = at + yaml->text_bytes;

	for (size_t line = 0; line < mark->line && at != NULL; line++) {
		at = memchr(at, '\n', (size_t)(end - at));
		at = at != NULL ? at + 1 : NULL;
	}
	for (size_t column = 0; column < mark->column; column++, at++) {
		if (at == NULL || at == end || *at != ' ') {
			return false;
		}
	}
	return at != NULL && at < end && *at == '\t';
}

static int syntax_error(struct config_yaml *yaml, const yaml_parser_t *parser, struct error *error)
{
	const char *problem = parser->problem != NULL ? parser->problem : "unreadable text";

	if (parser->error == YAML_MEMORY_ERROR) {
		return error_set(error, -ENOMEM, "%s: no memory to parse the file", yaml->path);
	}
	if (parser->error == YAML_READER_ERROR) {
		return error_set(error, -EINVAL, "%s: byte %zu: not YAML text: %s", yaml->path,
			parser->problem_offset, problem);
	}
	if (has_tab(yaml, &parser->problem_mark)) {
		return complain_at(yaml, &parser->problem_mark, error,
			"invalid YAML: the line is indented with a tab, and YAML takes spaces "
			"only; replace the tab by spaces");
	}
	return error_set(error, -EINVAL, "%s:%zu:%zu: invalid YAML: %s%s%s", yaml->path,
		parser->problem_mark.line + 1, parser->problem_mark.column + 1, problem,
		parser->context != NULL ? ", " : "",
		parser->context != NULL ? parser->context : "");
}

/* Rejects zero bytes, because values end at their terminator and would be cut silently. */
static int check_scalars(struct config_yaml *yaml, struct error *error)
{
	const yaml_node_t *end = yaml->document.nodes.top;

	for (const yaml_node_t *node = yaml->document.nodes.start; node < end; node++) {
		if (node->type == YAML_SCALAR_NODE &&
			memchr(node->data.scalar.value, '\0', node->data.scalar.length) != NULL) {
			return complain_at(
				yaml, &node->start_mark, error, "a value contains a zero byte");
		}
	}
	return 0;
}

static int parse_document(struct config_yaml *yaml, yaml_parser_t *parser, struct error *error)
{
	yaml_document_t second;
	const yaml_node_t *root;
	int rc = 0;

	if (!yaml_parser_load(parser, &yaml->document)) {
		return syntax_error(yaml, parser, error);
	}
	yaml->has_document = true;
	root = yaml_document_get_root_node(&yaml->document);
	/* The file is empty, or has no content after "---". */
	if (root == NULL || (root->type == YAML_SCALAR_NODE && root->data.scalar.length == 0)) {
		return 0;
	}
	yaml->has_content = true;
	if (root->type != YAML_MAPPING_NODE) {
		return complain_at(yaml, &root->start_mark, error,
			"a configuration file consists of keys, such as \"exports:\"");
	}
	if (!yaml_parser_load(parser, &second)) {
		return syntax_error(yaml, parser, error);
	}
	root = yaml_document_get_root_node(&second);
	if (root != NULL) {
		rc = complain_at(yaml, &root->start_mark, error,
			"a second YAML document starts here; write a single document");
	}
	yaml_document_delete(&second);
	return rc < 0 ? rc : check_scalars(yaml, error);
}

static bool has_anchor(const yaml_event_t *event)
{
	switch (event->type) {
	case YAML_ALIAS_EVENT:
		return true;
	case YAML_SCALAR_EVENT:
		return event->data.scalar.anchor != NULL;
	case YAML_SEQUENCE_START_EVENT:
		return event->data.sequence_start.anchor != NULL;
	case YAML_MAPPING_START_EVENT:
		return event->data.mapping_start.anchor != NULL;
	case YAML_NO_EVENT:
	case YAML_STREAM_START_EVENT:
	case YAML_STREAM_END_EVENT:
	case YAML_DOCUMENT_START_EVENT:
	case YAML_DOCUMENT_END_EVENT:
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT:
		break;
	}
	return false;
}

/* Checks nesting and anchors before the document is built, because the time that libyaml needs
 * grows with the square of both. No valid file nests this deep. Anchors serve only aliases, which
 * are not supported. */
static int check_shape(struct config_yaml *yaml, yaml_parser_t *parser, struct error *error)
{
	uint32_t depth = 0;
	bool at_end = false;
	int rc = 0;

	while (!at_end && rc == 0) {
		yaml_event_t event;

		if (!yaml_parser_parse(parser, &event)) {
			return syntax_error(yaml, parser, error);
		}
		if (event.type == YAML_SEQUENCE_START_EVENT ||
			event.type == YAML_MAPPING_START_EVENT) {
			depth++;
		} else if (event.type == YAML_SEQUENCE_END_EVENT ||
			   event.type == YAML_MAPPING_END_EVENT) {
			depth--;
		}
		if (has_anchor(&event)) {
			rc = complain_at(yaml, &event.start_mark, error,
				"anchors (&name) and aliases (*name) are not supported; write out "
				"the value");
		} else if (depth > DEPTH_MAX) {
			rc = complain_at(
				yaml, &event.start_mark, error, "the value is nested too deeply");
		}
		at_end = event.type == YAML_STREAM_END_EVENT;
		yaml_event_delete(&event);
	}
	return rc;
}

/* Runs one pass over the text, with a new parser. */
static int parse_pass(struct config_yaml *yaml,
	int (*pass)(struct config_yaml *yaml, yaml_parser_t *parser, struct error *error),
	struct error *error)
{
	yaml_parser_t parser;
	int rc;

	if (!yaml_parser_initialize(&parser)) {
		return error_set(error, -ENOMEM, "%s: no memory to parse the file", yaml->path);
	}
	yaml_parser_set_input_string(&parser, yaml->text, yaml->text_bytes);
	rc = pass(yaml, &parser, error);
	yaml_parser_delete(&parser);
	return rc;
}

static int parse_tree(struct config_yaml *yaml, struct error *error)
{
	int rc = parse_pass(yaml, check_shape, error);

	return rc < 0 ? rc : parse_pass(yaml, parse_document, error);
}

static const yaml_node_t *node_at(const struct config_yaml *yaml, int index)
{
	/* libyaml's accessors take a non-const pointer, but do not write through it. */
	return yaml_document_get_node((yaml_document_t *)(uintptr_t)&yaml->document, index);
}

static const char *key_text(const yaml_node_t *key)
{
	return key->type == YAML_SCALAR_NODE ? (const char *)key->data.scalar.value : "";
}

/* --- positions ------------------------------------------------------------------------------- */

/* Returns the position of the node: the key's position if the value is missing or a group,
 * otherwise the value's. */
static const yaml_mark_t *mark_of(const struct config_node *node)
{
	return node->key == NULL || node->value->type == YAML_SCALAR_NODE ? &node->value->start_mark
									  : &node->key->start_mark;
}

/* Writes the path to the node, such as "exports entry 2, access entry 1, psk"; "" for the file. */
static void node_name(const struct config_node *node, char out[NAME_BYTES])
{
	size_t used;

	out[0] = '\0';
	if (node->outer == NULL) {
		return;
	}
	node_name(node->outer, out);
	used = strlen(out);
	if (node->key == NULL) {
		snprintf(out + used, NAME_BYTES - used, " entry %u", node->entry + 1);
	} else {
		snprintf(out + used, NAME_BYTES - used, "%s%s", used > 0 ? ", " : "",
			key_text(node->key));
	}
}

/* Prefixes the error with "FILE:LINE:COLUMN: NODE: ", unless it has a position already. */
static int blame(const struct config_node *node, const yaml_mark_t *mark, struct error *error)
{
	char name[NAME_BYTES];

	if (!node->yaml->has_blamed) {
		node_name(node, name);
		if (name[0] != '\0') {
			error_prefix(error, "%s", name);
		}
		error_prefix(
			error, "%s:%zu:%zu", node->yaml->path, mark->line + 1, mark->column + 1);
		node->yaml->has_blamed = true;
	}
	return error->code;
}

const char *config_yaml_origin(const struct config_node *node, char out[CONFIG_ORIGIN_BYTES])
{
	snprintf(out, CONFIG_ORIGIN_BYTES, "%s:%zu", node->yaml->path, mark_of(node)->line + 1);
	return out;
}

/* --- reading --------------------------------------------------------------------------------- */

/* Rejects a key that is unknown, or that also occurs in an earlier pair of the group. first: the
 * group's first pair. */
static int check_key(const struct config_node *group, field_at *at, const yaml_node_pair_t *first,
	const yaml_node_t *key, struct error *error)
{
	if (field_find(at, key_text(key)) == NULL) {
		field_unknown(at, key_text(key), error);
		return blame(group, &key->start_mark, error);
	}
	for (; node_at(group->yaml, first->key) != key; first++) {
		if (strcmp(key_text(node_at(group->yaml, first->key)), key_text(key)) == 0) {
			error_set(error, -EINVAL, "the key '%s' is given twice", key_text(key));
			return blame(group, &key->start_mark, error);
		}
	}
	return 0;
}

int config_yaml_group(const struct config_node *group, field_at *at, config_read *read,
	void *context, struct error *error)
{
	const yaml_node_pair_t *first = group->value->data.mapping.pairs.start;
	const yaml_node_pair_t *end = group->value->data.mapping.pairs.top;
	int rc = 0;

	if (group->value->type != YAML_MAPPING_NODE) {
		error_set(error, -EINVAL, "the value must be a group of keys, as in 'name: value'");
		return blame(group, mark_of(group), error);
	}
	for (const yaml_node_pair_t *pair = first; pair < end && rc == 0; pair++) {
		struct config_node node = { group->yaml, group, node_at(group->yaml, pair->key),
			node_at(group->yaml, pair->value), 0 };

		rc = check_key(group, at, first, node.key, error);
		rc = rc ?: read(context, &node, field_find(at, key_text(node.key)), error);
		rc = rc < 0 ? blame(&node, mark_of(&node), error) : 0;
	}
	return rc;
}

int config_yaml_list(
	const struct config_node *list, config_read *read, void *context, struct error *error)
{
	const yaml_node_item_t *first = list->value->data.sequence.items.start;
	const yaml_node_item_t *end = list->value->data.sequence.items.top;
	int rc = 0;

	if (list->value->type != YAML_SEQUENCE_NODE) {
		error_set(error, -EINVAL,
			"the value must be a list: [ONE, TWO], or one line each after '- '");
		return blame(list, mark_of(list), error);
	}
	for (const yaml_node_item_t *item = first; item < end && rc == 0; item++) {
		struct config_node node = { list->yaml, list, NULL, node_at(list->yaml, *item),
			(uint32_t)(item - first) };

		rc = read(context, &node, NULL, error);
		rc = rc < 0 ? blame(&node, mark_of(&node), error) : 0;
	}
	return rc;
}

int config_yaml_text(const struct config_node *node, const char **text_out, struct error *error)
{
	if (node->value->type != YAML_SCALAR_NODE) {
		error_set(error, -EINVAL, "a single value is required, not a list or a group");
		return blame(node, mark_of(node), error);
	}
	*text_out = (const char *)node->value->data.scalar.value;
	return 0;
}

bool config_yaml_is_group(const struct config_node *node)
{
	return node->value->type == YAML_MAPPING_NODE;
}

int config_yaml_open(const char *path, struct config_yaml **yaml_out, struct config_node *root_out,
	struct error *error)
{
	struct config_yaml *yaml = calloc(1, sizeof(*yaml));
	int rc;

	if (yaml == NULL) {
		return error_oom_for(error, "the configuration file");
	}
	log_escape(yaml->path, sizeof(yaml->path), path, strlen(path));
	rc = yaml_read_file(yaml, path, error) ?: parse_tree(yaml, error);
	if (rc < 0) {
		config_yaml_close(yaml);
		return rc;
	}
	*root_out = (struct config_node){ .yaml = yaml };
	if (yaml->has_content) {
		root_out->value = node_at(yaml, 1);
	}
	*yaml_out = yaml;
	return 0;
}

void config_yaml_close(struct config_yaml *yaml)
{
	if (yaml->has_document) {
		yaml_document_delete(&yaml->document);
	}
	free(yaml->text);
	free(yaml);
}
