// SPDX-License-Identifier: Apache-2.0
#include "server/config/yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "base/log.h"
#include "base/text.h"

enum {
	FILE_BYTES_MAX = 16 << 20,
	PATH_SHOWN_BYTES = 256,
	LOG_LINE_BYTES = 512,
	STEPS_MAX = 6,
	DEPTH_MAX = 16,
	NAME_BYTES = 96,
};

/* One line of libcyaml's way to an error, innermost first. */
struct step {
	char key[NAME_BYTES]; /* "" for an entry of a list */
	int entry;
};

struct config_yaml {
	char path[PATH_SHOWN_BYTES]; /* printable */
	uint8_t *text;
	size_t text_bytes;
	yaml_document_t document;
	bool has_document;
	bool has_content;
	const struct cyaml_schema_value *schema;
	void *data;

	/* Collected from libcyaml's log while it loads. */
	char complaint[LOG_LINE_BYTES];
	struct step steps[STEPS_MAX];
	int step_count;
};

/* --- the file's bytes ------------------------------------------------------------------------ */

static int yaml_read_all(struct config_yaml *yaml, int fd, size_t size, struct error *error)
{
	yaml->text = malloc(size + 1);
	if (yaml->text == NULL) {
		return error_set(error, -ENOMEM, "%s: no memory to read it", yaml->path);
	}
	while (yaml->text_bytes < size) {
		ssize_t n = read(fd, yaml->text + yaml->text_bytes, size - yaml->text_bytes);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0) {
			return error_set(error, -errno, "%s: cannot read it: %s", yaml->path,
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
		rc = error_set(error, -EISDIR, "%s: this is a directory; --config needs a file",
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

/* --- the tree that knows where everything stands --------------------------------------------- */

static int complain_at(struct config_yaml *yaml, const yaml_mark_t *mark, struct error *error,
	const char *sentence)
{
	return error_set(error, -EINVAL, "%s:%zu:%zu: %s", yaml->path, mark->line + 1,
		mark->column + 1, sentence);
}

static int syntax_error(struct config_yaml *yaml, const yaml_parser_t *parser, struct error *error)
{
	const char *problem = parser->problem != NULL ? parser->problem : "unreadable text";

	if (parser->error == YAML_MEMORY_ERROR) {
		return error_set(error, -ENOMEM, "%s: no memory to parse it", yaml->path);
	}
	if (parser->error == YAML_READER_ERROR) {
		return error_set(error, -EINVAL, "%s: byte %zu: this is not YAML text: %s",
			yaml->path, parser->problem_offset, problem);
	}
	return error_set(error, -EINVAL, "%s:%zu:%zu: invalid YAML: %s%s%s", yaml->path,
		parser->problem_mark.line + 1, parser->problem_mark.column + 1, problem,
		parser->context != NULL ? ", " : "",
		parser->context != NULL ? parser->context : "");
}

/* libcyaml takes strings by their terminator, so a zero byte would cut one silently. */
static int check_scalars(struct config_yaml *yaml, struct error *error)
{
	const yaml_node_t *end = yaml->document.nodes.top;

	for (const yaml_node_t *node = yaml->document.nodes.start; node < end; node++) {
		if (node->type == YAML_SCALAR_NODE &&
			memchr(node->data.scalar.value, '\0', node->data.scalar.length) != NULL) {
			return complain_at(
				yaml, &node->start_mark, error, "the value contains a zero byte");
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
	/* Nothing at all, or nothing after "---". */
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
			"a second document starts here; put everything in one");
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

/* Looks at nesting and anchors alone: libyaml's time grows with the square of both. No schema goes
 * this deep, and there is no use for an anchor without aliases. */
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
				"anchors (&name) and aliases (*name) are not supported; write the "
				"value out");
		} else if (depth > DEPTH_MAX) {
			rc = complain_at(yaml, &event.start_mark, error,
				"this is nested deeper than any configuration");
		}
		at_end = event.type == YAML_STREAM_END_EVENT;
		yaml_event_delete(&event);
	}
	return rc;
}

/* One pass over the text with a parser of its own. */
static int parse_pass(struct config_yaml *yaml,
	int (*pass)(struct config_yaml *yaml, yaml_parser_t *parser, struct error *error),
	struct error *error)
{
	yaml_parser_t parser;
	int rc;

	if (!yaml_parser_initialize(&parser)) {
		return error_set(error, -ENOMEM, "%s: no memory to parse it", yaml->path);
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

static yaml_node_t *node_at(const struct config_yaml *yaml, int index)
{
	/* libyaml's reader functions take a pointer that they do not write through. */
	return yaml_document_get_node((yaml_document_t *)(uintptr_t)&yaml->document, index);
}

/* The nth pair (from 0) with that key in a mapping, or NULL. */
static const yaml_node_pair_t *find_pair(
	const struct config_yaml *yaml, const yaml_node_t *mapping, const char *key, int nth)
{
	const yaml_node_pair_t *pair;

	if (mapping == NULL || mapping->type != YAML_MAPPING_NODE) {
		return NULL;
	}
	for (pair = mapping->data.mapping.pairs.start; pair < mapping->data.mapping.pairs.top;
		pair++) {
		const yaml_node_t *node = node_at(yaml, pair->key);

		if (node->type == YAML_SCALAR_NODE &&
			strcmp((const char *)node->data.scalar.value, key) == 0 && nth-- == 0) {
			return pair;
		}
	}
	return NULL;
}

static const yaml_node_t *yaml_find_entry(
	const struct config_yaml *yaml, const yaml_node_t *list, int entry)
{
	if (list == NULL || list->type != YAML_SEQUENCE_NODE ||
		list->data.sequence.items.start + entry >= list->data.sequence.items.top) {
		return NULL;
	}
	return node_at(yaml, list->data.sequence.items.start[entry]);
}

/* Where the place is: the key itself for a missing or grouped value, else the value. */
static yaml_mark_t find_mark(const struct config_yaml *yaml, const struct config_place *place)
{
	const char *keys[] = { place->key, place->inner_key, place->leaf_key };
	const int entries[] = { place->entry, place->inner_entry, -1 };
	const yaml_node_t *node = node_at(yaml, 1);
	yaml_mark_t mark = { 0 };

	for (int i = 0; i < 3 && keys[i] != NULL; i++) {
		const yaml_node_pair_t *pair = find_pair(yaml, node, keys[i], 0);

		if (pair == NULL) {
			break;
		}
		mark = node_at(yaml, pair->key)->start_mark;
		node = node_at(yaml, pair->value);
		if (entries[i] >= 0) {
			node = yaml_find_entry(yaml, node, entries[i]);
		}
		if (node == NULL) {
			break;
		}
		if (node->type == YAML_SCALAR_NODE || entries[i] >= 0) {
			mark = node->start_mark;
		}
	}
	return mark;
}

/* "exports entry 2, access entry 1, psk". */
static void name_place(const struct config_place *place, char *out, size_t out_bytes)
{
	char entry[32] = "";
	char inner_entry[32] = "";
	bool has_inner = place->inner_key != NULL;

	if (place->entry >= 0) {
		snprintf(entry, sizeof(entry), " entry %d", place->entry + 1);
	}
	if (has_inner && place->inner_entry >= 0) {
		snprintf(inner_entry, sizeof(inner_entry), " entry %d", place->inner_entry + 1);
	}
	snprintf(out, out_bytes, "%s%s%s%s%s%s%s", place->key, entry, has_inner ? ", " : "",
		has_inner ? place->inner_key : "", inner_entry, place->leaf_key != NULL ? ", " : "",
		place->leaf_key != NULL ? place->leaf_key : "");
}

void config_yaml_blame(
	const struct config_yaml *yaml, const struct config_place *place, struct error *error)
{
	yaml_mark_t mark = find_mark(yaml, place);
	char name[4 * NAME_BYTES];

	name_place(place, name, sizeof(name));
	error_prefix(error, "%s:%zu:%zu: %s", yaml->path, mark.line + 1, mark.column + 1, name);
}

const char *config_yaml_origin(const struct config_yaml *yaml, const struct config_place *place,
	char out[CONFIG_ORIGIN_BYTES])
{
	yaml_mark_t mark = find_mark(yaml, place);

	snprintf(out, CONFIG_ORIGIN_BYTES, "%s:%zu", yaml->path, mark.line + 1);
	return out;
}

/* --- the schema ------------------------------------------------------------------------------ */

/* Takes libcyaml's report apart: first the complaint, then the way to it. */
static void collect_log(cyaml_log_t level, void *context, const char *format, va_list args)
{
	struct config_yaml *yaml = context;
	char line[LOG_LINE_BYTES];
	struct step step = { .entry = -1 };
	unsigned int entry;

	GMB_UNUSED(level);
	vsnprintf(line, sizeof(line), format, args);
	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, " in sequence entry '%u'", &entry) == 1) {
		step.entry = (int)entry - 1;
	} else if (sscanf(line, " in mapping field '%95[^']'", step.key) != 1) {
		if (yaml->complaint[0] == '\0' && strstr(line, "Backtrace") == NULL) {
			const char *text = strstr(line, "Load: ");

			snprintf(yaml->complaint, sizeof(yaml->complaint), "%s",
				text != NULL ? text + 6 : line);
		}
		return;
	}
	if (yaml->step_count < STEPS_MAX) {
		yaml->steps[yaml->step_count++] = step;
	}
}

/* The steps, outermost first, as a place; *drop innermost steps are left out. */
static struct config_place steps_to_place(const struct config_yaml *yaml, int drop)
{
	struct config_place place = { .entry = -1, .inner_entry = -1 };

	for (int i = yaml->step_count - 1; i >= drop; i--) {
		const struct step *step = &yaml->steps[i];

		if (step->key[0] != '\0' && place.key == NULL) {
			place.key = step->key;
		} else if (step->key[0] != '\0') {
			place.inner_key = step->key;
		} else if (place.inner_key == NULL) {
			place.entry = step->entry;
		} else {
			place.inner_entry = step->entry;
		}
	}
	return place;
}

/* The mapping that the place leads to: the root, a group, or an entry of a list of groups, which
 * may lie inside of one. */
static const yaml_node_t *yaml_find_mapping(
	const struct config_yaml *yaml, const struct config_place *place)
{
	const yaml_node_t *node = node_at(yaml, 1);
	const yaml_node_pair_t *pair;

	if (place->key == NULL) {
		return node;
	}
	pair = find_pair(yaml, node, place->key, 0);
	node = pair != NULL ? node_at(yaml, pair->value) : NULL;
	node = place->entry >= 0 ? yaml_find_entry(yaml, node, place->entry) : node;
	if (place->inner_key != NULL && place->inner_entry >= 0) {
		pair = find_pair(yaml, node, place->inner_key, 0);
		node = pair != NULL ? yaml_find_entry(
					      yaml, node_at(yaml, pair->value), place->inner_entry)
				    : NULL;
	}
	return node;
}

/* The keys that the schema knows at the place. */
static const cyaml_schema_field_t *known_keys(
	const struct config_yaml *yaml, const struct config_place *place)
{
	const cyaml_schema_field_t *field = yaml->schema->mapping.fields;

	if (place->key == NULL) {
		return field;
	}
	while (field->key != NULL && strcmp(field->key, place->key) != 0) {
		field++;
	}
	return field->value.type == CYAML_SEQUENCE ? field->value.sequence.entry->mapping.fields
						   : field->value.mapping.fields;
}

/* Those keys as "a, b, c". */
static void list_keys(const cyaml_schema_field_t *field, char *out, size_t out_bytes)
{
	size_t used = 0;

	out[0] = '\0';
	for (; field->key != NULL && used < out_bytes; field++) {
		used += (size_t)snprintf(
			out + used, out_bytes - used, "%s%s", used > 0 ? ", " : "", field->key);
	}
}

/* Blames one key of the mapping at the place: its nth occurrence. */
static int blame_key(struct config_yaml *yaml, const struct config_place *place, const char *key,
	int nth, struct error *error)
{
	const yaml_node_pair_t *pair = find_pair(yaml, yaml_find_mapping(yaml, place), key, nth);
	yaml_mark_t mark =
		pair != NULL ? node_at(yaml, pair->key)->start_mark : find_mark(yaml, place);
	char where[4 * NAME_BYTES] = "";

	if (place->key != NULL) {
		name_place(place, where, sizeof(where));
		error_prefix(error, "%s", where);
	}
	error_prefix(error, "%s:%zu:%zu", yaml->path, mark.line + 1, mark.column + 1);
	return -EINVAL;
}

/* known: the keys are what counts of it. */
static void set_unknown_key(const char *key, const cyaml_schema_field_t *known, struct error *error)
{
	char meant[NEAR_TEXT_BYTES];
	char names[256];
	char shown[NAME_BYTES];
	struct near near;

	log_escape(shown, sizeof(shown), key, strlen(key));
	near_begin(&near, key);
	for (const cyaml_schema_field_t *field = known; field->key != NULL; field++) {
		near_try(&near, field->key);
	}
	if (near.name != NULL) {
		error_set(error, -EINVAL, "unknown key '%s'%s", shown, near_text(&near, "", meant));
	} else {
		list_keys(known, names, sizeof(names));
		error_set(error, -EINVAL, "unknown key '%s'; it can be one of %s", shown, names);
	}
}

static int yaml_unknown_key(struct config_yaml *yaml, const char *key, struct error *error)
{
	struct config_place place = steps_to_place(yaml, 0);
	const cyaml_schema_field_t *known = known_keys(yaml, &place);

	set_unknown_key(key, known, error);
	return blame_key(yaml, &place, key, 0, error);
}

static int repeated_key(struct config_yaml *yaml, struct error *error)
{
	struct config_place place = steps_to_place(yaml, 1);
	const char *key = yaml->steps[0].key;

	error_set(error, -EINVAL, "the key '%s' is given twice", key);
	return blame_key(yaml, &place, key, 1, error);
}

static int missing_key(struct config_yaml *yaml, const char *key, struct error *error)
{
	int drop = 0;
	struct config_place place;

	/* libcyaml names the last field it saw as the innermost step. */
	while (drop < yaml->step_count && yaml->steps[drop].key[0] != '\0') {
		drop++;
	}
	place = steps_to_place(yaml, drop);
	error_set(error, -EINVAL, "the key '%s' is missing", key);
	config_yaml_blame(yaml, &place, error);
	return -EINVAL;
}

static int wrong_value(struct config_yaml *yaml, cyaml_err_t code, struct error *error)
{
	static const struct {
		const char *start;
		const char *sentence;
	} known[] = {
		{ "Expecting STRING", "this must be a single value, not a list or a group" },
		{ "Expecting SEQUENCE",
			"this must be a list: [ONE, TWO], or one line each after '- '" },
		{ "Expecting MAPPING", "this must be a group of keys, such as 'name: value'" },
	};
	struct config_place place = steps_to_place(yaml, 0);
	const char *sentence = yaml->complaint[0] != '\0' ? yaml->complaint : cyaml_strerror(code);
	char shown[LOG_LINE_BYTES];

	for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
		if (strncmp(yaml->complaint, known[i].start, strlen(known[i].start)) == 0) {
			sentence = known[i].sentence;
		}
	}
	error_set(
		error, -EINVAL, "%s", log_escape(shown, sizeof(shown), sentence, strlen(sentence)));
	if (place.key == NULL) {
		error_prefix(error, "%s", yaml->path);
	} else {
		config_yaml_blame(yaml, &place, error);
	}
	return -EINVAL;
}

static int schema_error(struct config_yaml *yaml, cyaml_err_t code, struct error *error)
{
	static const char unexpected[] = "Unexpected key: ";
	static const char missing[] = "Missing required mapping field: ";
	static const char repeated[] = "Mapping field already seen: ";
	const char *complaint = yaml->complaint;

	if (code == CYAML_ERR_OOM) {
		return error_set(error, -ENOMEM, "%s: no memory to load it", yaml->path);
	}
	if (strncmp(complaint, unexpected, sizeof(unexpected) - 1) == 0) {
		return yaml_unknown_key(yaml, complaint + sizeof(unexpected) - 1, error);
	}
	if (strncmp(complaint, missing, sizeof(missing) - 1) == 0) {
		return missing_key(yaml, complaint + sizeof(missing) - 1, error);
	}
	if (strncmp(complaint, repeated, sizeof(repeated) - 1) == 0 && yaml->step_count > 0) {
		return repeated_key(yaml, error);
	}
	return wrong_value(yaml, code, error);
}

/* --- lists that have no schema --------------------------------------------------------------- */

static int yaml_take_value(struct config_yaml *yaml, const struct config_place *place,
	const yaml_node_t *node, const char **value_out, struct error *error)
{
	if (node->type != YAML_SCALAR_NODE) {
		error_set(error, -EINVAL, "this must be a single value, not a list or a group");
		config_yaml_blame(yaml, place, error);
		return -EINVAL;
	}
	*value_out = (const char *)node->data.scalar.value;
	return 0;
}

static int take_pair(struct config_yaml *yaml, struct config_place *place,
	const yaml_node_pair_t *pair, const cyaml_schema_field_t *keys, const char **values,
	struct error *error)
{
	const yaml_node_t *name = node_at(yaml, pair->key);
	const char *key =
		name->type == YAML_SCALAR_NODE ? (const char *)name->data.scalar.value : "";
	uint32_t idx = 0;

	while (keys[idx].key != NULL && strcmp(keys[idx].key, key) != 0) {
		idx++;
	}
	if (keys[idx].key == NULL) {
		set_unknown_key(key, keys, error);
		return blame_key(yaml, place, key, 0, error);
	}
	if (values[idx] != NULL) {
		error_set(error, -EINVAL, "the key '%s' is given twice", key);
		return blame_key(yaml, place, key, 1, error);
	}
	*(place->inner_key == NULL ? &place->inner_key : &place->leaf_key) = keys[idx].key;
	return yaml_take_value(yaml, place, node_at(yaml, pair->value), &values[idx], error);
}

static int take_group(struct config_yaml *yaml, const struct config_place *group_place,
	const yaml_node_t *group, const cyaml_schema_field_t *keys, const char **values,
	struct error *error)
{
	const yaml_node_pair_t *end = group->data.mapping.pairs.top;

	for (const yaml_node_pair_t *pair = group->data.mapping.pairs.start; pair < end; pair++) {
		struct config_place place = *group_place;
		int rc = take_pair(yaml, &place, pair, keys, values, error);

		if (rc < 0) {
			return rc;
		}
	}
	if (values[0] == NULL) {
		error_set(error, -EINVAL, "the key '%s' is missing", keys->key);
		config_yaml_blame(yaml, group_place, error);
		return -EINVAL;
	}
	return 0;
}

int config_yaml_groups(struct config_yaml *yaml, const struct config_place *list,
	const struct cyaml_schema_field *keys,
	int (*take)(void *context, int entry, const char *const *values), void *context,
	struct error *error)
{
	bool is_inner = list->inner_key != NULL;
	const struct config_place outer = { is_inner ? list->key : NULL,
		is_inner ? list->entry : -1, NULL, -1, NULL };
	const char *key = is_inner ? list->inner_key : list->key;
	const yaml_node_t *mapping = yaml_find_mapping(yaml, &outer);
	const yaml_node_pair_t *pair = find_pair(yaml, mapping, key, 0);
	const yaml_node_t *entries = pair != NULL ? node_at(yaml, pair->value) : NULL;
	const yaml_node_t *entry;
	int rc = 0;

	if (find_pair(yaml, mapping, key, 1) != NULL) {
		error_set(error, -EINVAL, "the key '%s' is given twice", key);
		return blame_key(yaml, &outer, key, 1, error);
	}
	if (entries != NULL && entries->type != YAML_SEQUENCE_NODE) {
		error_set(error, -EINVAL,
			"this must be a list: [ONE, TWO], or one line each after '- '");
		config_yaml_blame(yaml, list, error);
		return -EINVAL;
	}
	for (int i = 0; rc >= 0 && (entry = yaml_find_entry(yaml, entries, i)) != NULL; i++) {
		const char *values[CONFIG_KEYS_MAX] = { NULL };
		struct config_place place = *list;

		*(is_inner ? &place.inner_entry : &place.entry) = i;
		rc = entry->type == YAML_MAPPING_NODE
			     ? take_group(yaml, &place, entry, keys, values, error)
			     : yaml_take_value(yaml, &place, entry, &values[0], error);
		if (rc == 0) {
			rc = take(context, i, values);
		}
	}
	return rc < 0 ? rc : entries != NULL;
}

static cyaml_config_t loader_config(struct config_yaml *yaml)
{
	return (cyaml_config_t){
		.log_fn = collect_log,
		.log_ctx = yaml,
		.log_level = CYAML_LOG_ERROR,
		.mem_fn = cyaml_mem,
		.flags = CYAML_CFG_NO_ALIAS,
	};
}

int config_yaml_open(const char *path, const struct cyaml_schema_value *schema,
	struct config_yaml **yaml_out, void **data_out, struct error *error)
{
	struct config_yaml *yaml = calloc(1, sizeof(*yaml));
	cyaml_config_t config;
	cyaml_err_t code;
	int rc;

	if (yaml == NULL) {
		return error_set(error, -ENOMEM, "no memory for the configuration file");
	}
	log_escape(yaml->path, sizeof(yaml->path), path, strlen(path));
	yaml->schema = schema;
	rc = yaml_read_file(yaml, path, error);
	if (rc == 0) {
		rc = parse_tree(yaml, error);
	}
	if (rc == 0 && yaml->has_content) {
		config = loader_config(yaml);
		code = cyaml_load_data(
			yaml->text, yaml->text_bytes, &config, schema, &yaml->data, NULL);
		rc = code == CYAML_OK ? 0 : schema_error(yaml, code, error);
	}
	if (rc < 0) {
		config_yaml_close(yaml);
		return rc;
	}
	*data_out = yaml->data;
	*yaml_out = yaml;
	return 0;
}

void config_yaml_close(struct config_yaml *yaml)
{
	cyaml_config_t config;

	if (yaml == NULL) {
		return;
	}
	if (yaml->data != NULL) {
		config = loader_config(yaml);
		cyaml_free(&config, yaml->schema, yaml->data, 0);
	}
	if (yaml->has_document) {
		yaml_document_delete(&yaml->document);
	}
	free(yaml->text);
	free(yaml);
}
