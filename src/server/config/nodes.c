// SPDX-License-Identifier: Apache-2.0
/* A node is a machine of a cluster: a name, and conditions that all connections of the machine
 * meet. So they can be fenced together, whichever protocol and credentials they use. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "server/config/config.h"

int server_node_check_name(const char *name, struct error *error)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789._-";
	size_t bytes = strlen(name);

	return bytes > 0 && bytes <= SERVER_NODE_BYTES_MAX && strspn(name, letters) == bytes &&
			       strchr("._-", name[0]) == NULL
		       ? 0
		       : error_set(error, -EINVAL,
				 "'%s' is not a name for a node; use 1 to %d letters, digits, "
				 "dots, "
				 "hyphens and underscores, with a letter or digit first",
				 quote(name), SERVER_NODE_BYTES_MAX);
}

static bool same_value(const struct access_condition *a, const struct access_condition *b)
{
	return a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
}

/* --- rules that name a node ------------------------------------------------------------------- */

/* Replaces ACCESS_NODE in a copy of the rule by the conditions of the node's rule. The values still
 * belong to the two rules. Returns -EEXIST if both have a condition of one kind, with
 * different values, and -EINVAL if no client can meet all conditions. */
static int node_merge(const struct access_rule *rule, const struct access_rule *of_node,
	struct access_rule *out, struct error *error)
{
	*out = *rule;
	out->condition_count = 0;
	for (uint32_t i = 0; i < rule->condition_count; i++) {
		if (rule->conditions[i].kind != ACCESS_NODE) {
			out->conditions[out->condition_count++] = rule->conditions[i];
		}
	}
	for (uint32_t i = 0; i < of_node->condition_count; i++) {
		const struct access_condition *condition = &of_node->conditions[i];
		const struct access_condition *own = access_condition_find(rule, condition->kind);

		if (condition->kind == ACCESS_NODE || (own != NULL && same_value(own, condition))) {
			continue;
		}
		if (own != NULL) {
			return error_set(error, -EEXIST,
				"the node itself has a condition of that kind (%s); leave it out "
				"of "
				"the rule",
				of_node->origin);
		}
		out->conditions[out->condition_count++] = *condition;
	}
	return server_access_check_rule(out, error);
}

uint32_t server_nodes_expand(const struct server_access *nodes, const struct server_access *access,
	struct access_rule *out)
{
	struct access_rule merged;
	uint32_t count = 0;

	for (uint32_t i = 0; i < access->rule_count; i++) {
		const struct access_rule *rule = &access->rules[i];
		const struct access_condition *node = access_condition_find(rule, ACCESS_NODE);

		for (uint32_t k = 0; node != NULL && k < nodes->rule_count; k++) {
			const struct access_rule *of_node = &nodes->rules[k];

			if (same_value(node, access_condition_find(of_node, ACCESS_NODE)) &&
				node_merge(rule, of_node, &merged, NULL) == 0) {
				if (out != NULL) {
					out[count] = merged;
				}
				count++;
			}
		}
		if (node == NULL) {
			if (out != NULL) {
				out[count] = *rule;
			}
			count++;
		}
	}
	return count;
}

/* Checks an access rule that can name a node. server_nodes_expand() leaves out those rules of the
 * node that no client can meet together with the access rule. It is an error if no rule of the node
 * is left. */
static int check_rule(
	const struct server_access *nodes, const struct access_rule *rule, struct error *error)
{
	const struct access_condition *node = access_condition_find(rule, ACCESS_NODE);
	struct access_rule merged;
	bool fits = node == NULL;
	int rc = fits ? 0
		      : error_set(error, -ENOENT, "there is no node '%s'; list it under nodes",
				quote_bytes(node->data, node->bytes));

	for (uint32_t i = 0; rc != -EEXIST && node != NULL && i < nodes->rule_count; i++) {
		if (same_value(node, access_condition_find(&nodes->rules[i], ACCESS_NODE))) {
			rc = node_merge(rule, &nodes->rules[i], &merged, error);
			fits |= rc == 0;
		}
	}
	if (rc == -EEXIST || !fits) {
		error_prefix(error, "%s", rule->origin);
		return -EINVAL;
	}
	return 0;
}

int server_nodes_finish(const struct server_config *config, struct error *error)
{
	const struct server_access *list;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && (list = server_access_list(config, i)) != NULL; i++) {
		for (uint32_t k = 0; rc == 0 && k < list->rule_count; k++) {
			rc = check_rule(&config->nodes, &list->rules[k], error);
		}
	}
	return rc;
}

/* --- clients that cannot be fenced ------------------------------------------------------------ */

static bool networks_meet(const struct access_condition *a, const struct access_condition *b)
{
	uint32_t a_bits = a->data[ACCESS_ADDRESS_BYTES];
	uint32_t b_bits = b->data[ACCESS_ADDRESS_BYTES];
	uint32_t bits = MIN(a_bits, b_bits);
	uint32_t rest = bits % 8;

	return memcmp(a->data, b->data, bits / 8) == 0 &&
	       (rest == 0 || (a->data[bits / 8] ^ b->data[bits / 8]) >> (8 - rest) == 0);
}

/* Returns whether the first network contains the second. */
static bool contains(const struct access_condition *outer, const struct access_condition *inner)
{
	return outer->data[ACCESS_ADDRESS_BYTES] <= inner->data[ACCESS_ADDRESS_BYTES] &&
	       networks_meet(outer, inner);
}

/* Returns whether a client can meet the conditions of both rules. */
static bool can_meet(const struct access_rule *rule, const struct access_rule *of_node)
{
	struct access_rule both;

	for (uint32_t i = 0; i < rule->condition_count; i++) {
		const struct access_condition *own = &rule->conditions[i];
		const struct access_condition *other = access_condition_find(of_node, own->kind);

		if (other != NULL && own->kind == ACCESS_NETWORK ? !networks_meet(own, other)
			: other != NULL				 ? !same_value(own, other)
								 : false) {
			return false;
		}
	}
	return node_merge(rule, of_node, &both, NULL) != -EINVAL;
}

/* Returns whether each client that meets the rule also meets the node's rule. */
static bool implies(const struct access_rule *rule, const struct access_rule *of_node)
{
	for (uint32_t i = 0; i < of_node->condition_count; i++) {
		const struct access_condition *needed = &of_node->conditions[i];
		const struct access_condition *own = access_condition_find(rule, needed->kind);

		if (needed->kind != ACCESS_NODE &&
			(own == NULL ||
				(needed->kind == ACCESS_NETWORK ? !contains(needed, own)
								: !same_value(needed, own)))) {
			return false;
		}
	}
	return true;
}

/* Writers of an export, over all of its rules. */
struct writers {
	bool nodes;			 /* nodes can write */
	const struct access_rule *other; /* a rule that lets others write, or NULL */
};

static void find_writers(const struct server_access *nodes, const struct server_access *access,
	struct writers *writers)
{
	for (uint32_t i = 0; i < access->rule_count; i++) {
		const struct access_rule *rule = &access->rules[i];
		bool is_of_node = access_condition_find(rule, ACCESS_NODE) != NULL;

		if ((rule->rights & ENGINE_RIGHT_WRITE) == 0) {
			continue;
		}
		writers->nodes |= is_of_node;
		for (uint32_t k = 0; k < nodes->rule_count; k++) {
			writers->nodes |= can_meet(rule, &nodes->rules[k]);
			is_of_node |= implies(rule, &nodes->rules[k]);
		}
		if (!is_of_node && writers->other == NULL) {
			writers->other = rule;
		}
	}
}

/* A fence belongs to a server, and the disk to the next server. */
static void warn_of_failover(const struct server_export *entry)
{
	char failover[32];

	if (*server_settings_text(&entry->settings, "failover", failover, sizeof(failover)) !=
		'\0') {
		log_warning(
			"export \"%s\": with failover, another server of the disk does not know "
			"the nodes that are fenced at this one; fence each node at all servers, "
			"and before a server takes the disk over, see gmblock-cluster(7)",
			quote(entry->name));
	}
}

void server_nodes_warn(const struct server_config *config)
{
	for (uint32_t i = 0; config->nodes.rule_count > 0 && i < config->export_count; i++) {
		const struct server_export *entry = &config->exports[i];
		const struct server_access *lists[2];
		struct writers writers = { 0 };

		warn_of_failover(entry);

		server_access_of(config, entry, lists);
		for (uint32_t k = 0; k < ARRAY_COUNT(lists); k++) {
			if (lists[k] != NULL) {
				find_writers(&config->nodes, lists[k], &writers);
			}
		}
		if (entry->store.read_only) {
			continue;
		}
		if (lists[0] == NULL && lists[1] == NULL) {
			log_warning("export \"%s\" has no access rules: clients that belong to no "
				    "node can write to it, and they cannot be fenced",
				quote(entry->name));
		} else if (writers.nodes && writers.other != NULL) {
			log_warning(
				"export \"%s\": nodes can write to it, and by the rule at %s also "
				"clients that belong to no node; these clients cannot be fenced",
				quote(entry->name), writers.other->origin);
		}
	}
}
