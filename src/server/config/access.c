// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/place.h"
#include "base/text.h"
#include "server/config/config.h"

enum { SHOWN_BYTES = 120, ORIGIN_BYTES = 160, TEXT_BYTES = 400 };

/* --- the values of conditions ------------------------------------------------------------------
 */

static int config_access_add(struct access_rule *rule, uint32_t kind, const void *data,
	uint32_t bytes, struct error *error)
{
	int rc = access_rule_add(rule, kind, data, bytes);

	return rc == -ENOMEM   ? error_set(error, rc, "no memory for a rule of access")
	       : rc == -EEXIST ? error_set(error, -EINVAL, "it is given twice")
			       : 0;
}

static int add_name(
	struct access_rule *rule, enum identity_kind kind, const char *value, struct error *error)
{
	uint8_t bytes[IDENTITY_VALUE_BYTES_MAX];
	uint32_t count = 0;
	int rc = identity_value_parse(kind, value, bytes, &count, error);

	return rc < 0 ? rc : config_access_add(rule, kind, bytes, count, error);
}

static int add_san(struct access_rule *rule, const char *value, struct error *error)
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
	char shown[SHOWN_BYTES];

	for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
		size_t len = strlen(types[i].prefix);

		if (strncmp(value, types[i].prefix, len) == 0) {
			return add_name(rule, types[i].kind, value + len, error);
		}
	}
	return error_set(error, -EINVAL,
		"'%s' does not say of which type it is; write dns:NAME, email:ADDRESS, uri:URI or "
		"ip:ADDRESS",
		log_escape(shown, sizeof(shown), value, strlen(value)));
}

static int add_network(struct access_rule *rule, const char *value, struct error *error)
{
	uint8_t network[NETWORK_BYTES];
	int rc = network_parse(value, network, error);

	_Static_assert((int)NETWORK_BYTES == (int)ACCESS_NETWORK_BYTES, "they are the same");
	return rc < 0 ? rc
		      : config_access_add(rule, ACCESS_NETWORK, network, sizeof(network), error);
}

static int add_uid(struct access_rule *rule, const char *value, struct error *error)
{
	uint32_t uid;
	int rc = units_parse_count(value, 0, UINT32_MAX - 1, &uid, error);

	return rc < 0 ? rc : config_access_add(rule, ACCESS_UID, &uid, sizeof(uid), error);
}

static int add_tls(struct access_rule *rule, const char *value, struct error *error)
{
	uint8_t tls = strcmp(value, "true") == 0;
	char shown[SHOWN_BYTES];

	if (!tls && strcmp(value, "false") != 0) {
		return error_set(error, -EINVAL, "'%s' is neither true nor false",
			log_escape(shown, sizeof(shown), value, strlen(value)));
	}
	return config_access_add(rule, ACCESS_TLS, &tls, sizeof(tls), error);
}

static int config_access_set_rights(
	struct access_rule *rule, const char *value, struct error *error)
{
	char shown[SHOWN_BYTES];

	if (strcmp(value, "rw") == 0) {
		rule->rights = ENGINE_RIGHT_READ | ENGINE_RIGHT_WRITE;
	} else if (strcmp(value, "ro") == 0) {
		rule->rights = ENGINE_RIGHT_READ;
	} else if (strcmp(value, "none") == 0) {
		rule->rights = 0;
	} else {
		return error_set(error, -EINVAL, "'%s' is not one of rw, ro, none",
			log_escape(shown, sizeof(shown), value, strlen(value)));
	}
	return 0;
}

/* --- a rule ------------------------------------------------------------------------------------
 */

/* A rule needs the first one. */
static const struct {
	const char *key;
	int (*set)(struct access_rule *rule, const char *value, struct error *error);
	enum identity_kind kind; /* where set is NULL */
} keys[SERVER_ACCESS_KEYS] = {
	{ "rights", .set = config_access_set_rights },
	{ "psk", .kind = IDENTITY_PSK },
	{ "cert-cn", .kind = IDENTITY_CERT_CN },
	{ "cert-dn", .kind = IDENTITY_CERT_DN },
	{ "cert-san", .set = add_san },
	{ "cert-fingerprint", .kind = IDENTITY_CERT_FINGERPRINT },
	{ "key-fingerprint", .kind = IDENTITY_KEY_FINGERPRINT },
	{ "uid", .set = add_uid },
	{ "address", .set = add_network },
	{ "tls", .set = add_tls },
};

const char *server_access_key(uint32_t idx)
{
	return idx < SERVER_ACCESS_KEYS ? keys[idx].key : NULL;
}

static int set(struct access_rule *rule, uint32_t idx, const char *value, struct error *error)
{
	return keys[idx].set != NULL ? keys[idx].set(rule, value, error)
				     : add_name(rule, keys[idx].kind, value, error);
}

static const struct access_condition *config_access_condition_of(
	const struct access_rule *rule, uint32_t kind)
{
	for (uint32_t i = 0; i < rule->condition_count; i++) {
		if (rule->conditions[i].kind == kind) {
			return &rule->conditions[i];
		}
	}
	return NULL;
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

/* A rule that can never hold is a mistake. */
static int check_rule(const struct access_rule *rule, struct error *error)
{
	const struct access_condition *tls = config_access_condition_of(rule, ACCESS_TLS);
	bool psk = config_access_condition_of(rule, IDENTITY_PSK) != NULL;
	bool certificate = asks_for_certificate(rule);

	if (psk && certificate) {
		return error_set(error, -EINVAL,
			"nobody proves both a pre-shared key and a certificate; make two rules of "
			"it");
	}
	if ((psk || certificate) && tls != NULL && tls->data[0] == 0) {
		return error_set(error, -EINVAL,
			"nobody proves a %s without TLS; leave tls: false out",
			psk ? "pre-shared key" : "certificate");
	}
	if (config_access_condition_of(rule, ACCESS_UID) != NULL &&
		config_access_condition_of(rule, ACCESS_NETWORK) != NULL) {
		return error_set(error, -EINVAL,
			"a user is known on Unix sockets only, which have no address; make two "
			"rules of it");
	}
	return 0;
}

/* Takes the rule, also on failure. */
static int config_access_append(struct server_access *access, struct access_rule *rule,
	const char *origin, const char *text, struct error *error)
{
	uint32_t count = access->rule_count;
	void *bigger = access->rules;
	int rc = check_rule(rule, error);

	if (rc == 0 && count == ACCESS_RULES_MAX) {
		rc = error_set(error, -EINVAL, "more than %d rules of access", ACCESS_RULES_MAX);
	}
	if (rc == 0 && (count & (count - 1)) == 0) { /* capacities are the powers of two */
		bigger = reallocarray(
			access->rules, MAX(2 * (size_t)count, (size_t)1), sizeof(*rule));
	}
	if (rc == 0) {
		access->rules = bigger != NULL ? bigger : access->rules;
		rule->origin = strdup(origin);
		rule->text = strdup(text);
	}
	if (rc == 0 && (bigger == NULL || rule->origin == NULL || rule->text == NULL)) {
		rc = error_set(error, -ENOMEM, "no memory for a rule of access");
	}
	if (rc < 0) {
		access_rule_fini(rule);
		return rc;
	}
	access->rules[access->rule_count++] = *rule;
	return 0;
}

/* Adds " KEY=VALUE" as --access has it; what is too long is left out at the end. */
static void add_word(char text[TEXT_BYTES], const char *key, const char *value)
{
	size_t used = strlen(text);

	used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s%s=", used > 0 ? " " : "", key);
	for (; *value != '\0' && used < TEXT_BYTES - 2; value++) {
		if (*value == ' ' || *value == '\\') {
			text[used++] = '\\';
		}
		text[used++] = *value;
		text[used] = '\0';
	}
}

int server_access_add(struct server_access *access, const char *const values[SERVER_ACCESS_KEYS],
	const char *origin, uint32_t *failed_out, struct error *error)
{
	struct access_rule rule = { 0 };
	char text[TEXT_BYTES] = "";

	*failed_out = SERVER_ACCESS_KEYS;
	for (uint32_t i = 0; i < SERVER_ACCESS_KEYS; i++) {
		int rc = values[i] != NULL ? set(&rule, i, values[i], error) : 0;

		if (rc < 0) {
			*failed_out = i;
			access_rule_fini(&rule);
			return rc;
		}
	}
	for (uint32_t i = 1; i < SERVER_ACCESS_KEYS; i++) {
		if (values[i] != NULL) {
			add_word(text, keys[i].key, values[i]);
		}
	}
	add_word(text, keys[0].key, values[0]);
	return config_access_append(access, &rule, origin, text, error);
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

/* Copies up to one of the stop characters that has no backslash before it; the backslash goes away
 * where it hides one of them or another backslash. Returns where it stopped. */
static const char *copy_until(const char *from, const char *stops, char *out)
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

/* One word of a rule, KEY=VALUE. */
static int parse_word(struct access_rule *rule, char *word, bool *has_rights, struct error *error)
{
	char *value = strchr(word, '=');
	char shown[SHOWN_BYTES];
	char meant[NEAR_TEXT_BYTES];
	struct near near;
	int rc;

	if (value == NULL) {
		return error_set(error, -EINVAL,
			"'%s' has no '='; write KEY=VALUE, and \"\\ \" for a space inside a value",
			log_escape(shown, sizeof(shown), word, strlen(word)));
	}
	*value++ = '\0';
	near_begin(&near, word);
	for (uint32_t i = 0; i < SERVER_ACCESS_KEYS; i++) {
		near_try(&near, keys[i].key);
		if (strcmp(word, keys[i].key) != 0) {
			continue;
		}
		rc = i == 0 && *has_rights ? error_set(error, -EINVAL, "it is given twice")
					   : set(rule, i, value, error);
		*has_rights |= i == 0;
		if (rc < 0) {
			error_prefix(error, "%s", keys[i].key);
		}
		return rc;
	}
	log_escape(shown, sizeof(shown), word, strlen(word));
	return near.name != NULL
		       ? error_set(error, -EINVAL, "unknown key '%s'%s", shown,
				 near_text(&near, "", meant))
		       : error_set(error, -EINVAL,
				 "unknown key '%s'; a rule has rights and any of psk, cert-cn, "
				 "cert-dn, cert-san, cert-fingerprint, key-fingerprint, uid, "
				 "address and tls",
				 shown);
}

/* The name of the export, when the text begins with one: what stands before the first ": ", unless
 * a key comes first. NULL in *name_out: none. Returns where the rule begins. */
static const char *parse_name(const char *text, char *scratch, const char **name_out)
{
	const char *end = copy_until(text, ":=", scratch);
	bool has_name = end[0] == ':' && (end[1] == ' ' || end[1] == '\0');

	*name_out = has_name ? scratch : NULL;
	return has_name ? end + 1 : text;
}

static int parse_rule(
	struct access_rule *rule, const char *text, char *scratch, struct error *error)
{
	bool has_rights = false;

	while (*text != '\0') {
		int rc;

		if (*text == ' ') {
			text++;
			continue;
		}
		text = copy_until(text, " ", scratch);
		rc = parse_word(rule, scratch, &has_rights, error);
		if (rc < 0) {
			return rc;
		}
	}
	return has_rights ? 0
			  : error_set(error, -EINVAL,
				    "it has no rights; end it with rights=rw, rights=ro or "
				    "rights=none");
}

/* The rules of the command line for that export; NULL: for those without their own. NULL: no
 * memory. */
static struct server_access_option *option_for(struct server_config *config, const char *name)
{
	struct server_access_option *options;
	struct server_access_option *option;

	for (uint32_t i = 0; i < config->access_option_count; i++) {
		option = &config->access_options[i];
		if (name == NULL || option->export_name == NULL
				? name == option->export_name
				: strcmp(name, option->export_name) == 0) {
			return option;
		}
	}
	options = reallocarray(
		config->access_options, config->access_option_count + 1, sizeof(*options));
	if (options == NULL) {
		return NULL;
	}
	config->access_options = options;
	option = &options[config->access_option_count];
	*option =
		(struct server_access_option){ .export_name = name != NULL ? strdup(name) : NULL };
	if (name != NULL && option->export_name == NULL) {
		return NULL;
	}
	config->access_option_count++;
	return option;
}

static int add_option(
	struct server_config *config, const char *text, char *scratch, struct error *error)
{
	struct server_access_option *option;
	struct access_rule rule = { 0 };
	char origin[ORIGIN_BYTES];
	char shown[SHOWN_BYTES];
	const char *name;
	int rc;

	snprintf(origin, sizeof(origin), "--access: \"%s\"",
		log_escape(shown, sizeof(shown), text, strlen(text)));
	text = parse_name(text, scratch, &name);
	option = option_for(config, name);
	if (option == NULL) {
		return error_set(error, -ENOMEM, "no memory for a rule of access");
	}
	rc = parse_rule(&rule, text, scratch, error);
	if (rc < 0) {
		access_rule_fini(&rule);
		return rc;
	}
	return config_access_append(
		&option->access, &rule, origin, text + strspn(text, " "), error);
}

int server_config_add_access(struct server_config *config, const char *text, struct error *error)
{
	char *scratch = malloc(strlen(text) + 1);
	char shown[SHOWN_BYTES];
	int rc;

	if (scratch == NULL) {
		return error_set(error, -ENOMEM, "no memory for a rule of access");
	}
	rc = add_option(config, text, scratch, error);
	free(scratch);
	if (rc < 0) {
		error_prefix(error, "\"%s\"", log_escape(shown, sizeof(shown), text, strlen(text)));
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

/* --- all rules together ------------------------------------------------------------------------
 */

static const struct server_export *export_of(const struct server_config *config, const char *name)
{
	for (uint32_t i = 0; i < config->export_count; i++) {
		if (strcmp(config->exports[i].name, name) == 0) {
			return &config->exports[i];
		}
	}
	return NULL;
}

/* In *rule_out, a rule that asks for a certificate, if the list has one. */
static void find_certificate(
	const struct server_access *access, const struct access_rule **rule_out)
{
	for (uint32_t i = 0; i < access->rule_count && *rule_out == NULL; i++) {
		if (asks_for_certificate(&access->rules[i])) {
			*rule_out = &access->rules[i];
		}
	}
}

static int check_certificates(const struct server_config *config, struct error *error)
{
	const struct access_rule *rule = NULL;
	bool verifies =
		config->listen_count == 0 && config->tls.mode != TLS_OFF && config->tls.verify_peer;

	for (uint32_t i = 0; i < config->listen_count; i++) {
		const struct server_tls *tls = &config->listens[i].tls;

		verifies |= tls->mode != TLS_OFF && tls->verify_peer;
	}
	find_certificate(&config->access, &rule);
	find_certificate(&config->rates.conditions, &rule);
	for (uint32_t i = 0; i < config->access_option_count; i++) {
		find_certificate(&config->access_options[i].access, &rule);
	}
	for (uint32_t i = 0; i < config->export_count; i++) {
		find_certificate(&config->exports[i].access, &rule);
	}
	return rule == NULL || verifies
		       ? 0
		       : error_set(error, -EINVAL,
				 "%s: the rule asks for a certificate, and no address asks its "
				 "clients for one; add --tls-verify-peer, or tls-verify-peer: true "
				 "to "
				 "an address with TLS",
				 rule->origin);
}

int server_access_finish(const struct server_config *config, struct error *error)
{
	char shown[SHOWN_BYTES];

	for (uint32_t i = 0; i < config->access_option_count; i++) {
		const struct server_access_option *option = &config->access_options[i];

		if (option->export_name != NULL && export_of(config, option->export_name) == NULL) {
			return error_set(error, -EINVAL,
				"%s: there is no export named \"%s\"; write \\: for a colon that "
				"does not end a name",
				option->access.rules[0].origin,
				log_escape(shown, sizeof(shown), option->export_name,
					strlen(option->export_name)));
		}
	}
	return check_certificates(config, error);
}

static const struct server_access *option_of(const struct server_config *config, const char *name)
{
	for (uint32_t i = 0; i < config->access_option_count; i++) {
		const char *other = config->access_options[i].export_name;

		if (name == NULL || other == NULL ? name == other : strcmp(name, other) == 0) {
			return &config->access_options[i].access;
		}
	}
	return NULL;
}

/* The rules of the command line, then those of the file. NULL: there are none in either. */
static int build(const struct server_access *option, const struct server_access *file,
	struct access **access_out, struct error *error)
{
	uint32_t option_count = option != NULL ? option->rule_count : 0;
	uint64_t count = (uint64_t)option_count + file->rule_count;
	struct access_rule *rules;
	int rc = 0;

	*access_out = NULL;
	if (count == 0) {
		return 0;
	}
	if (count > ACCESS_RULES_MAX) {
		return error_set(error, -EINVAL, "more than %d rules of access", ACCESS_RULES_MAX);
	}
	rules = malloc(count * sizeof(*rules));
	if (rules != NULL) {
		if (option_count > 0) {
			memcpy(rules, option->rules, option_count * sizeof(*rules));
		}
		if (file->rule_count > 0) {
			memcpy(rules + option_count, file->rules,
				file->rule_count * sizeof(*rules));
		}
		rc = access_create(rules, (uint32_t)count, access_out);
	}
	free(rules);
	return rules == NULL || rc < 0
		       ? error_set(error, -ENOMEM, "no memory for %u rules of access",
				 (uint32_t)count)
		       : 0;
}

int server_access_common(
	const struct server_config *config, struct access **access_out, struct error *error)
{
	return build(option_of(config, NULL), &config->access, access_out, error);
}

int server_access_build(
	const struct server_config *config, struct access **sets, struct error *error)
{
	struct access *common;
	int rc = server_access_common(config, &common, error);

	memset(sets, 0, config->export_count * sizeof(*sets));
	for (uint32_t i = 0; i < config->export_count && rc == 0; i++) {
		const struct server_export *entry = &config->exports[i];

		rc = build(option_of(config, entry->name), &entry->access, &sets[i], error);
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
