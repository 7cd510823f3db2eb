// SPDX-License-Identifier: Apache-2.0
/* Access rules and rate rules: conditions about a client, and the rights or limits that follow. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/place.h"
#include "base/rights.h"
#include "base/text.h"
#include "server/config/config.h"

enum { ORIGIN_BYTES = QUOTE_BYTES + 16 };

/* --- conditions ----------------------------------------------------------------------------- */

static int add_condition(
	void *object, uint32_t kind, const void *data, uint32_t bytes, struct error *error)
{
	int rc = access_rule_add(&((struct server_rule *)object)->access, kind, data, bytes);

	return rc == -ENOMEM   ? error_oom_for(error, "an access rule")
	       : rc == -EEXIST ? error_set(error, -EINVAL, "the key is given twice")
			       : 0;
}

static int add_identity(
	void *object, enum identity_kind kind, const char *value, struct error *error)
{
	uint8_t bytes[IDENTITY_VALUE_BYTES_MAX];
	uint32_t count = 0;
	int rc = identity_value_parse(kind, value, bytes, &count, error);

	return rc < 0 ? rc : add_condition(object, kind, bytes, count, error);
}

#define IDENTITY_CONDITION(function, kind)                                                         \
	static int function(void *object, const char *value, struct error *error)                  \
	{                                                                                          \
		return add_identity(object, kind, value, error);                                   \
	}

IDENTITY_CONDITION(add_psk, IDENTITY_PSK)
IDENTITY_CONDITION(add_cert_cn, IDENTITY_CERT_CN)
IDENTITY_CONDITION(add_cert_dn, IDENTITY_CERT_DN)
IDENTITY_CONDITION(add_cert_fingerprint, IDENTITY_CERT_FINGERPRINT)
IDENTITY_CONDITION(add_key_fingerprint, IDENTITY_KEY_FINGERPRINT)

static int add_san(void *object, const char *value, struct error *error)
{
	static const struct {
		const char *prefix;
		enum identity_kind kind;
	} types[] = {
		{ "dns:", IDENTITY_CERT_DNS },
		{ "email:", IDENTITY_CERT_EMAIL },
		{ "uri:", IDENTITY_CERT_URI },
		{ "ip:", IDENTITY_CERT_IP },
	};

	for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
		size_t len = strlen(types[i].prefix);

		if (strncmp(value, types[i].prefix, len) == 0) {
			return add_identity(object, types[i].kind, value + len, error);
		}
	}
	return error_set(error, -EINVAL,
		"the name '%s' has no type; write dns:NAME, email:ADDRESS, uri:URI or ip:ADDRESS",
		quote(value));
}

static int add_network(void *object, const char *value, struct error *error)
{
	uint8_t network[NETWORK_BYTES];
	int rc = network_parse(value, network, error);

	_Static_assert((int)NETWORK_BYTES == (int)ACCESS_NETWORK_BYTES, "the two sizes are equal");
	return rc < 0 ? rc : add_condition(object, ACCESS_NETWORK, network, sizeof(network), error);
}

static int add_uid(void *object, const char *value, struct error *error)
{
	uint32_t uid;
	int rc = units_parse_count(value, 0, UINT32_MAX - 1, &uid, error);

	return rc < 0 ? rc : add_condition(object, ACCESS_UID, &uid, sizeof(uid), error);
}

static int add_node(void *object, const char *value, struct error *error)
{
	int rc = server_node_check_name(value, error);

	return rc < 0 ? rc
		      : add_condition(object, ACCESS_NODE, value, (uint32_t)strlen(value), error);
}

static int add_tls(void *object, const char *value, struct error *error)
{
	uint8_t tls = strcmp(value, "true") == 0;

	if (!tls && strcmp(value, "false") != 0) {
		return error_set(error, -EINVAL, "'%s' is neither true nor false", quote(value));
	}
	return add_condition(object, ACCESS_TLS, &tls, sizeof(tls), error);
}

/* --- rights and limits ---------------------------------------------------------------------- */

static const struct {
	const char *word;
	uint32_t rights;
} rights_words[] = {
	{ "rw", ENGINE_RIGHT_READ | ENGINE_RIGHT_WRITE },
	{ "ro", ENGINE_RIGHT_READ },
	{ "none", 0 },
};

static int set_rights(void *object, const char *value, struct error *error)
{
	struct server_rule *rule = object;

	for (size_t i = 0; i < ARRAY_COUNT(rights_words); i++) {
		if (strcmp(value, rights_words[i].word) == 0) {
			rule->access.rights = rights_words[i].rights;
			return 0;
		}
	}
	return error_set(error, -EINVAL, "'%s' is not one of rw, ro, none", quote(value));
}

static int set_rule_rate(void *object, const char *value, struct error *error)
{
	return rate_parse(value, &((struct server_rule *)object)->rate.limits, error);
}

static int set_rule_memory(void *object, const char *value, struct error *error)
{
	return rate_parse_memory(value, &((struct server_rule *)object)->rate.memory_max, error);
}

/* --- a rule ------------------------------------------------------------------------------------
 */

enum { OF_RATES = 1, OF_ACCESS = 4, OF_FENCE, OF_NODE, OF_CONDITIONS };

/* The name of a node, the keys of rate rules and of access rules, and the conditions of all. */
static const struct field fields[] = {
	{ "name", "NODE", .set = add_node },
	[OF_RATES] = { "rate", "RATE[:requests=N][:burst=TIME]", .set = set_rule_rate },
	{ "connections", "N", .type = FIELD_COUNT, .min = 1, .max = 1000000,
		FIELD_IN(struct server_rule, rate.connections_max) },
	{ "memory", "SIZE", .set = set_rule_memory },
	[OF_ACCESS] = { "rights", "rw|ro|none", .set = set_rights },
	[OF_FENCE] = { "fence", .type = FIELD_FLAG, FIELD_IN(struct server_rule, fence) },
	[OF_NODE] = { "node", "NODE", .set = add_node },
	[OF_CONDITIONS] = { "psk", "NAME", .set = add_psk },
	{ "cert-cn", "NAME", .set = add_cert_cn },
	{ "cert-dn", "DN", .set = add_cert_dn },
	{ "cert-san", "TYPE:VALUE", .set = add_san },
	{ "cert-fingerprint", "HASH", .set = add_cert_fingerprint },
	{ "key-fingerprint", "HASH", .set = add_key_fingerprint },
	{ "uid", "N", .set = add_uid },
	{ "address", "NETWORK", .set = add_network },
	{ "tls", "true|false", .set = add_tls },
};

const struct field *server_access_field(uint32_t idx)
{
	return OF_ACCESS + idx < ARRAY_COUNT(fields) ? &fields[OF_ACCESS + idx] : NULL;
}

static const struct field *condition_field(uint32_t idx)
{
	return server_access_field(OF_CONDITIONS - OF_ACCESS + idx);
}

const struct field *server_node_field(uint32_t idx)
{
	return idx == 0 ? &fields[0] : condition_field(idx - 1);
}

const struct field *server_rate_field(uint32_t idx)
{
	return idx < OF_ACCESS - OF_RATES ? &fields[OF_RATES + idx]
					  : condition_field(idx - (OF_ACCESS - OF_RATES));
}

/* Appends " KEY=VALUE" in the syntax of --access; text that does not fit is cut off. */
static void add_word(char text[SERVER_RULE_BYTES], const char *key, const char *value)
{
	size_t used = strlen(text);

	used += (size_t)snprintf(
		text + used, SERVER_RULE_BYTES - used, "%s%s=", used > 0 ? " " : "", key);
	for (; *value != '\0' && used < SERVER_RULE_BYTES - 2; value++) {
		if (*value == ' ' || *value == '\\') {
			text[used++] = '\\';
		}
		text[used++] = *value;
		text[used] = '\0';
	}
}

int server_rule_set(
	struct server_rule *rule, const struct field *field, const char *value, struct error *error)
{
	int rc = field_set(field, rule, value, error);

	if (rc == 0 && field > &fields[OF_ACCESS]) {
		add_word(rule->text, field->key, value);
	}
	return rc;
}

void server_rule_fini(struct server_rule *rule)
{
	access_rule_fini(&rule->access);
}

static bool asks_for_certificate(const struct access_rule *rule)
{
	for (uint32_t i = 0; i < rule->condition_count; i++) {
		uint32_t kind = rule->conditions[i].kind;

		if (kind < IDENTITY_KIND_COUNT && kind != IDENTITY_PSK) {
			return true;
		}
	}
	return false;
}

int server_access_check_rule(const struct access_rule *rule, struct error *error)
{
	const struct access_condition *tls = access_condition_find(rule, ACCESS_TLS);
	bool psk = access_condition_find(rule, IDENTITY_PSK) != NULL;
	bool certificate = asks_for_certificate(rule);

	if (psk && certificate) {
		return error_set(error, -EINVAL,
			"no client has both a pre-shared key and a certificate; write two rules");
	}
	if ((psk || certificate) && tls != NULL && tls->data[0] == 0) {
		return error_set(error, -EINVAL,
			"no client has a %s without TLS; leave out tls: false",
			psk ? "pre-shared key" : "certificate");
	}
	if (access_condition_find(rule, ACCESS_UID) != NULL &&
		access_condition_find(rule, ACCESS_NETWORK) != NULL) {
		return error_set(error, -EINVAL,
			"a uid is known only on Unix sockets, which have no address; write two "
			"rules");
	}
	return 0;
}

/* Appends a rule. Takes ownership of it, even on failure. */
static int append_rule(struct server_access *access, struct access_rule *rule, const char *origin,
	const char *text, struct error *error)
{
	uint32_t count = access->rule_count;
	int rc = server_access_check_rule(rule, error);

	if (rc == 0 && count == ACCESS_RULES_MAX) {
		rc = error_set(
			error, -EINVAL, "only %d access rules are possible", ACCESS_RULES_MAX);
	}
	if (rc == 0) {
		rule->origin = strdup(origin);
		rule->text = strdup(text);
	}
	if (rc == 0 && (rule->origin == NULL || rule->text == NULL ||
			       array_grow(&access->rules, count, sizeof(*rule)) < 0)) {
		rc = error_oom_for(error, "an access rule");
	}
	if (rc < 0) {
		access_rule_fini(rule);
		return rc;
	}
	access->rules[access->rule_count++] = *rule;
	return 0;
}

int server_access_add(struct server_access *access, struct server_rule *rule, const char *origin,
	struct error *error)
{
	size_t word = 0;

	while (rights_words[word].rights != rule->access.rights) { /* without ENGINE_RIGHT_FENCE */
		word++;
	}
	add_word(rule->text, fields[OF_ACCESS].key, rights_words[word].word);
	rule->access.rights |= rule->fence ? ENGINE_RIGHT_FENCE : 0;
	return append_rule(access, &rule->access, origin, rule->text, error);
}

int server_node_add(struct server_access *nodes, struct server_rule *rule, const char *origin,
	struct error *error)
{
	if (rule->access.condition_count == 1) {
		server_rule_fini(rule);
		return error_set(error, -EINVAL,
			"the node has no condition, so every client would belong to it; add a "
			"condition such as psk or address");
	}
	return append_rule(nodes, &rule->access, origin, rule->text, error);
}

void server_access_fini(struct server_access *access)
{
	for (uint32_t i = 0; i < access->rule_count; i++) {
		access_rule_fini(&access->rules[i]);
	}
	free(access->rules);
	*access = (struct server_access){ 0 };
}

/* --- the command line --------------------------------------------------------------------------
 */

const char *server_unescape(const char *from, const char *stops, char *out)
{
	while (*from != '\0' && strchr(stops, *from) == NULL) {
		if (from[0] == '\\' && from[1] != '\0' &&
			(strchr(stops, from[1]) != NULL || from[1] == '\\')) {
			from++;
		}
		*out++ = *from++;
	}
	*out = '\0';
	return from;
}

/* Parses one word of a rule, KEY=VALUE. */
static int parse_rule_word(
	struct server_rule *rule, char *word, bool *has_rights, struct error *error)
{
	const struct field *field;
	char *value = strchr(word, '=');
	bool is_rights;
	int rc;

	if (value == NULL) {
		return error_set(error, -EINVAL,
			"'%s' has no '='; write KEY=VALUE, such as rights=ro or "
			"address=10.0.0.0/8, and \"\\ \" for a space inside a value",
			quote(word));
	}
	*value++ = '\0';
	field = field_find(server_access_field, word);
	if (field == NULL) {
		return field_unknown(server_access_field, word, error);
	}
	is_rights = field == &fields[OF_ACCESS];
	rc = is_rights && *has_rights ? error_set(error, -EINVAL, "the key is given twice")
				      : server_rule_set(rule, field, value, error);
	*has_rights |= is_rights;
	if (rc < 0) {
		error_prefix(error, "%s", field->key);
	}
	return rc;
}

/* Extracts the export name if the text begins with one: the part before the first ": ", unless a
 * key comes first. *name_out is NULL if there is no name. Returns the start of the rule. */
static const char *parse_name(const char *text, char *scratch, const char **name_out)
{
	const char *end = server_unescape(text, ":=", scratch);
	bool has_name = end[0] == ':' && (end[1] == ' ' || end[1] == '\0');

	*name_out = has_name ? scratch : NULL;
	return has_name ? end + 1 : text;
}

static int parse_rule(
	struct server_rule *rule, const char *text, char *scratch, struct error *error)
{
	bool has_rights = false;

	while (*text != '\0') {
		int rc;

		if (*text == ' ') {
			text++;
			continue;
		}
		text = server_unescape(text, " ", scratch);
		rc = parse_rule_word(rule, scratch, &has_rights, error);
		if (rc < 0) {
			return rc;
		}
	}
	return has_rights ? 0
			  : error_set(error, -EINVAL,
				    "the rule has no rights; end it with rights=rw, rights=ro or "
				    "rights=none");
}

/* Returns the command line's rules for an export; name NULL: for exports without rules of their
 * own. NULL: there are none. */
static struct server_access *option_of(const struct server_config *config, const char *name)
{
	for (uint32_t i = 0; i < config->access_option_count; i++) {
		const char *other = config->access_options[i].export_name;

		if (name == NULL || other == NULL ? name == other : strcmp(name, other) == 0) {
			return &config->access_options[i].access;
		}
	}
	return NULL;
}

/* Like option_of(), but adds an empty list if there are no rules yet. NULL: no memory. */
static struct server_access *option_for(struct server_config *config, const char *name)
{
	struct server_access *found = option_of(config, name);
	struct server_access_option *option;

	if (found != NULL || array_grow(&config->access_options, config->access_option_count,
				     sizeof(*option)) < 0) {
		return found;
	}
	option = &config->access_options[config->access_option_count];
	*option =
		(struct server_access_option){ .export_name = name != NULL ? strdup(name) : NULL };
	if (name != NULL && option->export_name == NULL) {
		return NULL;
	}
	config->access_option_count++;
	return &option->access;
}

static int add_option(
	struct server_config *config, const char *text, char *scratch, struct error *error)
{
	struct server_access *access;
	struct server_rule rule = { 0 };
	char origin[ORIGIN_BYTES];
	const char *name;
	int rc;

	snprintf(origin, sizeof(origin), "--access: \"%s\"", quote(text));
	text = parse_name(text, scratch, &name);
	access = option_for(config, name);
	if (access == NULL) {
		return error_oom_for(error, "an access rule");
	}
	rc = parse_rule(&rule, text, scratch, error);
	if (rc < 0) {
		server_rule_fini(&rule);
		return rc;
	}
	rule.access.rights |= rule.fence ? ENGINE_RIGHT_FENCE : 0;
	return append_rule(access, &rule.access, origin, text + strspn(text, " "), error);
}

int server_config_add_access(struct server_config *config, const char *text, struct error *error)
{
	char *scratch = malloc(strlen(text) + 1);
	int rc;

	if (scratch == NULL) {
		return error_oom_for(error, "an access rule");
	}
	rc = add_option(config, text, scratch, error);
	free(scratch);
	if (rc < 0) {
		error_prefix(error, "\"%s\"", quote(text));
	}
	return rc;
}

void server_access_options_fini(struct server_config *config)
{
	for (uint32_t i = 0; i < config->access_option_count; i++) {
		free(config->access_options[i].export_name);
		server_access_fini(&config->access_options[i].access);
	}
	free(config->access_options);
}

/* --- all rules ------------------------------------------------------------------------------ */

static const struct server_export *export_of(const struct server_config *config, const char *name)
{
	for (uint32_t i = 0; i < config->export_count; i++) {
		if (strcmp(config->exports[i].name, name) == 0) {
			return &config->exports[i];
		}
	}
	return NULL;
}

const struct server_access *server_access_list(const struct server_config *config, uint32_t idx)
{
	if (idx == 0) {
		return &config->access;
	}
	if (--idx < config->access_option_count) {
		return &config->access_options[idx].access;
	}
	idx -= config->access_option_count;
	return idx < config->export_count ? &config->exports[idx].access : NULL;
}

/* Returns whether the rule gives rights to another user on a Unix socket, who has neither an
 * address nor an identity of TLS. */
static bool admits_others(const struct access_rule *rule)
{
	bool admits = (rule->rights & (ENGINE_RIGHT_READ | ENGINE_RIGHT_WRITE)) != 0;

	for (uint32_t i = 0; i < rule->condition_count; i++) {
		const struct access_condition *condition = &rule->conditions[i];
		uint32_t uid;

		if (condition->kind == ACCESS_UID) {
			memcpy(&uid, condition->data, sizeof(uid));
			admits &= rights_is_stranger(uid);
		} else if (condition->kind == ACCESS_TLS) {
			admits &= condition->data[0] == 0;
		} else {
			admits &= condition->kind == ACCESS_NODE;
		}
	}
	return admits;
}

bool server_access_admits_others(const struct server_config *config)
{
	const struct server_access *list;
	bool admits = false;

	for (uint32_t i = 0; (list = server_access_list(config, i)) != NULL; i++) {
		for (uint32_t k = 0; k < list->rule_count; k++) {
			admits |= admits_others(&list->rules[k]);
		}
	}
	return admits;
}

/* Returns the first rule of the list that requires a certificate, or NULL. */
static const struct access_rule *find_certificate(const struct server_access *access)
{
	for (uint32_t i = 0; i < access->rule_count; i++) {
		if (asks_for_certificate(&access->rules[i])) {
			return &access->rules[i];
		}
	}
	return NULL;
}

static int check_certificates(const struct server_config *config, struct error *error)
{
	const struct access_rule *rule =
		find_certificate(&config->nodes) ?: find_certificate(&config->rates.conditions);
	const struct server_access *list;
	bool verifies =
		config->listen_count == 0 && config->tls.mode != TLS_OFF && config->tls.verify_peer;

	for (uint32_t i = 0; i < config->listen_count; i++) {
		const struct server_tls *tls = &config->listens[i].tls;

		verifies |= tls->mode != TLS_OFF && tls->verify_peer;
	}
	for (uint32_t i = 0; rule == NULL && (list = server_access_list(config, i)) != NULL; i++) {
		rule = find_certificate(list);
	}
	return rule == NULL || verifies
		       ? 0
		       : error_set(error, -EINVAL,
				 "%s: the rule requires a certificate, but no address requests one "
				 "from clients; add --tls-verify-peer, or tls-verify-peer: true to "
				 "an address with TLS",
				 rule->origin);
}

/* The right to fence nodes concerns the whole server, so it must not be in the rules of an export.
 */
static int check_fence(const struct server_config *config, struct error *error)
{
	const struct server_access *list;

	for (uint32_t i = 1; (list = server_access_list(config, i)) != NULL; i++) {
		bool is_common = i <= config->access_option_count &&
				 config->access_options[i - 1].export_name == NULL;

		for (uint32_t k = 0; !is_common && k < list->rule_count; k++) {
			if ((list->rules[k].rights & ENGINE_RIGHT_FENCE) != 0) {
				return error_set(error, -EINVAL,
					"%s: fence: yes is for all exports; move the rule to the "
					"rules for exports without rules of their own",
					list->rules[k].origin);
			}
		}
	}
	return 0;
}

int server_access_finish(const struct server_config *config, struct error *error)
{
	for (uint32_t i = 0; i < config->access_option_count; i++) {
		const struct server_access_option *option = &config->access_options[i];

		if (option->export_name != NULL && export_of(config, option->export_name) == NULL) {
			return error_set(error, -EINVAL,
				"%s: there is no export named \"%s\"; write \\: for a colon that "
				"does not end a name",
				option->access.rules[0].origin, quote(option->export_name));
		}
	}
	return check_fence(config, error) ?: server_nodes_finish(config, error)
		?: check_certificates(config, error);
}

/* Builds one list from the command line's rules and the file's rules. *access_out is NULL if both
 * are empty. */
static int build(const struct server_access *nodes, const struct server_access *option,
	const struct server_access *file, struct access **access_out, struct error *error)
{
	static const struct server_access none;
	uint32_t option_count = server_nodes_expand(nodes, option != NULL ? option : &none, NULL);
	uint64_t count = (uint64_t)option_count + server_nodes_expand(nodes, file, NULL);
	struct access_rule *rules;
	int rc = 0;

	*access_out = NULL;
	if (count == 0) {
		return 0;
	}
	if (count > ACCESS_RULES_MAX) {
		return error_set(
			error, -EINVAL, "only %d access rules are possible", ACCESS_RULES_MAX);
	}
	rules = malloc(count * sizeof(*rules));
	if (rules != NULL) {
		(void)server_nodes_expand(nodes, option != NULL ? option : &none, rules);
		(void)server_nodes_expand(nodes, file, rules + option_count);
		rc = access_create(rules, (uint32_t)count, access_out);
	}
	free(rules);
	return rules == NULL || rc < 0 ? error_oom_for(error, "%u access rules", (uint32_t)count)
				       : 0;
}

void server_access_of(const struct server_config *config, const struct server_export *entry,
	const struct server_access *lists[2])
{
	lists[0] = option_of(config, entry->name);
	lists[1] = entry->access.rule_count > 0 ? &entry->access : NULL;
	if (lists[0] == NULL && lists[1] == NULL) {
		lists[0] = option_of(config, NULL);
		lists[1] = config->access.rule_count > 0 ? &config->access : NULL;
	}
}

int server_access_common(
	const struct server_config *config, struct access **access_out, struct error *error)
{
	return build(&config->nodes, option_of(config, NULL), &config->access, access_out, error);
}

int server_access_build(
	const struct server_config *config, struct access **sets, struct error *error)
{
	struct access *common;
	int rc = server_access_common(config, &common, error);

	memset(sets, 0, config->export_count * sizeof(*sets));
	for (uint32_t i = 0; i < config->export_count && rc == 0; i++) {
		const struct server_export *entry = &config->exports[i];

		rc = build(&config->nodes, option_of(config, entry->name), &entry->access, &sets[i],
			error);
		if (rc == 0 && sets[i] == NULL && common != NULL) {
			access_get(common);
			sets[i] = common;
		}
	}
	access_put(common);
	if (rc < 0) {
		server_access_drop(sets, config->export_count);
	}
	return rc;
}

void server_access_drop(struct access **sets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		access_put(sets[i]);
		sets[i] = NULL;
	}
}

/* --- rate rules ----------------------------------------------------------------------------- */

int server_rate_add(struct server_rates *rates, struct server_rule *rule, const char *origin,
	struct error *error)
{
	uint32_t count = rates->conditions.rule_count;
	int rc = 0;

	if (count == RATE_RULES_MAX) {
		rc = error_set(error, -EINVAL, "only %d rate rules are possible", RATE_RULES_MAX);
	} else if (array_grow(&rates->rules, count, sizeof(*rates->rules)) < 0) {
		rc = error_oom_for(error, "a rate rule");
	}
	if (rc < 0) {
		server_rule_fini(rule);
		return rc;
	}
	rc = append_rule(&rates->conditions, &rule->access, origin, rule->text, error);
	if (rc == 0) {
		rates->rules[count] = rule->rate;
		/* The rate rule borrows the origin from its condition. */
		rates->rules[count].origin = rates->conditions.rules[count].origin;
	}
	return rc;
}

int server_rates_build(
	const struct server_rates *rates, struct rate_rules **rules_out, struct error *error)
{
	int rc = 0;

	*rules_out = NULL;
	if (rates->conditions.rule_count > 0) {
		rc = rate_rules_create(rates->conditions.rules, rates->rules,
			rates->conditions.rule_count, rules_out);
	}
	return rc < 0 ? error_set(error, rc, "no memory for rate rules") : 0;
}

bool server_rates_same(const struct server_rates *a, const struct server_rates *b)
{
	bool same = a->conditions.rule_count == b->conditions.rule_count;

	for (uint32_t i = 0; same && i < a->conditions.rule_count; i++) {
		same = access_rule_same(&a->conditions.rules[i], &b->conditions.rules[i]) &&
		       a->rules[i].connections_max == b->rules[i].connections_max;
	}
	return same;
}

void server_rates_fini(struct server_rates *rates)
{
	server_access_fini(&rates->conditions);
	free(rates->rules);
	rates->rules = NULL;
}
