// SPDX-License-Identifier: Apache-2.0
/* The configuration file: the tables of fields of its groups, and the functions that store their
 * values. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/config/config.h"
#include "server/config/yaml.h"

enum { ORIGIN_BYTES = CONFIG_ORIGIN_BYTES + 64 };

static int missing(const char *key, struct error *error)
{
	return error_set(error, -EINVAL, "the key '%s' is missing", key);
}

/* --- addresses ------------------------------------------------------------------------------- */

static int read_listen_key(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	struct server_listen *entry = context;
	const char *text = NULL;
	int rc = config_yaml_text(node, &text, error) ?: field_set(field, entry, text, error);

	if (rc == 0) {
		entry->given |= BIT(field - server_listen_field(0));
	}
	return rc;
}

/* Reads an address: a group with TLS keys, or a URI alone. */
static int read_listen(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	struct server_listen entry = { 0 };
	char origin[CONFIG_ORIGIN_BYTES];
	int rc;

	rc = config_yaml_is_group(node)
		     ? config_yaml_group(node, server_listen_field, read_listen_key, &entry, error)
		     : read_listen_key(&entry, node, server_listen_field(0), error);
	if (rc == 0 && entry.text == NULL) {
		rc = missing("uri", error);
	}
	if (rc < 0) {
		server_listen_fini(&entry);
		return rc;
	}
	return server_config_add_listen(context, &entry, config_yaml_origin(node, origin), error);
}

/* --- rules ----------------------------------------------------------------------------------- */

/* A rule being read. */
struct rule_reader {
	struct server_rule rule;
	const struct field *first; /* the required key: rights, rate or name */
	bool has_first;
	bool is_alone; /* the rule is only the value of the required key, without a group */
};

static int read_rule_key(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	struct rule_reader *reader = context;
	const char *text = NULL;
	int rc = config_yaml_text(node, &text, error);

	reader->has_first |= field == reader->first;
	if (rc < 0) {
		return rc;
	}
	rc = server_rule_set(&reader->rule, field, text, error);
	if (rc < 0 && reader->is_alone) {
		error_prefix(error, "%s", field->key);
	}
	return rc;
}

/* Reads a rule: a group of keys, or only the value of the required key. */
static int read_rule(
	const struct config_node *node, field_at *at, struct server_rule *rule, struct error *error)
{
	struct rule_reader reader = { .first = at(0), .is_alone = !config_yaml_is_group(node) };
	int rc = reader.is_alone ? read_rule_key(&reader, node, reader.first, error)
				 : config_yaml_group(node, at, read_rule_key, &reader, error);

	if (rc == 0 && !reader.has_first) {
		rc = missing(reader.first->key, error);
	}
	if (rc < 0) {
		server_rule_fini(&reader.rule);
		return rc;
	}
	*rule = reader.rule;
	return 0;
}

static int read_access_rule(void *context, const struct config_node *node,
	const struct field *field, struct error *error)
{
	struct server_rule rule;
	char origin[CONFIG_ORIGIN_BYTES];
	int rc = read_rule(node, server_access_field, &rule, error);

	return rc < 0 ? rc
		      : server_access_add(context, &rule, config_yaml_origin(node, origin), error);
}

static int read_node(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	struct server_rule rule;
	char origin[CONFIG_ORIGIN_BYTES];
	int rc = read_rule(node, server_node_field, &rule, error);

	return rc < 0 ? rc
		      : server_node_add(context, &rule, config_yaml_origin(node, origin), error);
}

/* Rejects an empty list: it would count as no list, but its author may want to deny all access. */
static int read_access(
	const struct config_node *list, struct server_access *access, struct error *error)
{
	int rc = config_yaml_list(list, read_access_rule, access, error);

	return rc == 0 && access->rule_count == 0
		       ? error_set(error, -EINVAL,
				 "the list of access rules is empty; leave out the list, or deny "
				 "all access with [{rights: none}]")
		       : rc;
}

static int read_rate_rule(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	struct server_rule rule;
	char origin[CONFIG_ORIGIN_BYTES];
	int rc = read_rule(node, server_rate_field, &rule, error);

	return rc < 0 ? rc
		      : server_rate_add(context, &rule, config_yaml_origin(node, origin), error);
}

/* --- exports --------------------------------------------------------------------------------- */

static int set_name(void *object, const char *text, struct error *error)
{
	return server_export_set_name(object, text, error);
}

static int set_path(void *object, const char *text, struct error *error)
{
	return server_export_set_path(object, text, error);
}

static const struct field *export_key(uint32_t idx)
{
	static const struct field fields[] = {
		{ "name", .set = set_name },
		{ "path", .set = set_path },
		{ "access" },
	};

	return idx < ARRAY_COUNT(fields) ? &fields[idx]
					 : server_export_field(idx - ARRAY_COUNT(fields));
}

/* Context of read_export_value(), which is called for each element in the list of a key's
 * values. */
struct export_reader {
	struct server_export *entry;
	const struct field *field;
};

static int read_export_value(void *context, const struct config_node *node,
	const struct field *unused, struct error *error)
{
	const struct export_reader *reader = context;
	const char *text = NULL;
	int rc = config_yaml_text(node, &text, error);

	return rc < 0 ? rc : server_export_set(reader->entry, reader->field->key, text, error);
}

static int read_export_key(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	struct server_export *entry = context;
	struct export_reader reader = { entry, field };
	const char *text = NULL;
	int rc;

	if (field == export_key(2)) {
		return read_access(node, &entry->access, error);
	}
	if ((field->flags & FIELD_REPEATS) != 0) {
		return config_yaml_list(node, read_export_value, &reader, error);
	}
	if (field != export_key(0) && field != export_key(1)) {
		return read_export_value(&reader, node, NULL, error);
	}
	rc = config_yaml_text(node, &text, error);
	return rc < 0 ? rc : field_set(field, entry, text, error);
}

static int read_export(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	struct server_export entry;
	char origin[CONFIG_ORIGIN_BYTES];
	int rc;

	server_export_init(&entry);
	entry.syntax = SERVER_SYNTAX_FILE;
	rc = config_yaml_group(node, export_key, read_export_key, &entry, error);
	if (rc == 0 && entry.name == NULL) {
		rc = error_set(error, -EINVAL,
			"the key 'name' is missing; the default export has the name \"\"");
	} else if (rc == 0 && entry.path == NULL) {
		rc = missing("path", error);
	}
	if (rc < 0) {
		server_export_fini(&entry);
		return rc;
	}
	return server_config_add_export(context, &entry, config_yaml_origin(node, origin), error);
}

/* --- the file as a whole --------------------------------------------------------------------- */

/* Returns the idx-th option that has one of the flags. */
static const struct field *option_with(uint32_t idx, uint32_t flags)
{
	const struct field *field;

	for (uint32_t i = 0; (field = server_config_field(i)) != NULL; i++) {
		if ((field->flags & flags) != 0 && idx-- == 0) {
			return field;
		}
	}
	return NULL;
}

static const struct field *limit(uint32_t idx)
{
	return option_with(idx, FIELD_LIMIT);
}

static int read_option(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	bool is_limit = (field->flags & FIELD_LIMIT) != 0;
	char where[CONFIG_ORIGIN_BYTES];
	char origin[ORIGIN_BYTES];
	const char *text = NULL;
	int rc = config_yaml_text(node, &text, error);

	snprintf(origin, sizeof(origin), "%s: %s%s", config_yaml_origin(node, where),
		is_limit ? "limits, " : "", field->key);
	return rc < 0 ? rc : server_config_file_option(context, field, text, origin, error);
}

/* Sections of the file that are not options of the command line. */
static const struct section {
	struct field field;
	/* Reads each entry of a list. NULL: the section is the group of limits. */
	config_read *read;
	size_t offset; /* of the context of read() in struct server_config */
} sections[] = {
	{ { "listen" }, read_listen, 0 },
	{ { "limits" }, NULL, 0 },
	{ { "exports" }, read_export, 0 },
	{ { "access" }, read_access_rule, offsetof(struct server_config, access) },
	{ { "nodes" }, read_node, offsetof(struct server_config, nodes) },
	{ { "rates" }, read_rate_rule, offsetof(struct server_config, rates) },
};

static int read_section(const struct section *section, const struct config_node *node,
	struct server_config *config, struct error *error)
{
	void *into = (char *)config + section->offset;

	if (section->read == NULL) {
		return config_yaml_group(node, limit, read_option, config, error);
	}
	return section->read == read_access_rule
		       ? read_access(node, into, error)
		       : config_yaml_list(node, section->read, into, error);
}

static const struct field *top_key(uint32_t idx)
{
	return idx < ARRAY_COUNT(sections)
		       ? &sections[idx].field
		       : option_with(idx - ARRAY_COUNT(sections), FIELD_IN_FILE);
}

/* Context of read_option_value(), which is called for each element in the list of an option's
 * values. */
struct option_reader {
	struct server_config *config;
	const struct field *field;
};

static int read_option_value(void *context, const struct config_node *node,
	const struct field *unused, struct error *error)
{
	const struct option_reader *reader = context;

	return read_option(reader->config, node, reader->field, error);
}

static int read_top_key(void *context, const struct config_node *node, const struct field *field,
	struct error *error)
{
	struct option_reader reader = { context, field };

	for (uint32_t i = 0; i < ARRAY_COUNT(sections); i++) {
		if (field == &sections[i].field) {
			return read_section(&sections[i], node, context, error);
		}
	}
	return (field->flags & FIELD_REPEATS) != 0
		       ? config_yaml_list(node, read_option_value, &reader, error)
		       : read_option(context, node, field, error);
}

int server_config_load(struct server_config *config, const char *path, struct error *error)
{
	struct config_yaml *yaml;
	struct config_node root;
	int rc;

	config->file_path = strdup(path);
	if (config->file_path == NULL) {
		return error_oom_for(error, "a path");
	}
	rc = config_yaml_open(path, &yaml, &root, error);
	if (rc < 0) {
		return rc;
	}
	if (root.value != NULL) {
		rc = config_yaml_group(&root, top_key, read_top_key, config, error);
	}
	config_yaml_close(yaml);
	return rc;
}
