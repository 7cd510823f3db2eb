// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/fence/fencing_private.h"

static const uint32_t fencing_edges[FENCING_STATE_COUNT] = {
	[FENCING_WANTED] = BIT(FENCING_FENCED) | BIT(FENCING_FAILED),
	[FENCING_FENCED] = BIT(FENCING_ENDED) | BIT(FENCING_UNWANTED) | BIT(FENCING_FENCED),
	[FENCING_ENDED] = BIT(FENCING_FENCED) | BIT(FENCING_UNWANTED),
	[FENCING_UNWANTED] = BIT(FENCING_FENCED),
	[FENCING_FAILED] = 0,
};

void fencing_set_state(struct fencing_entry *entry, enum fencing_state state)
{
	GMB_ASSERT((fencing_edges[entry->state] & BIT(state)) != 0);
	entry->state = state;
}

/* --- entries; with the lock held -------------------------------------------------------------- */

struct fencing_entry *fencing_find(const struct fencing *fencing, const char *node)
{
	for (uint32_t i = 0; i < fencing->entry_count; i++) {
		if (strcmp(fencing->entries[i]->record.name, node) == 0) {
			return fencing->entries[i];
		}
	}
	return NULL;
}

static void fenced_free(struct fencing_entry *entry)
{
	server_access_fini(&entry->record.rules);
	free(entry);
}

void fencing_remove(struct fencing *fencing, struct fencing_entry *entry)
{
	uint32_t at = 0;

	while (fencing->entries[at] != entry) {
		at++;
	}
	fencing->entry_count--;
	memmove(&fencing->entries[at], &fencing->entries[at + 1],
		(fencing->entry_count - at) * sizeof(struct fencing_entry *));
	fenced_free(entry);
}

struct fencing_entry *fencing_add(struct fencing *fencing, const char *node)
{
	struct fencing_entry *entry =
		fencing->entry_count < FENCE_NODES_MAX ? calloc(1, sizeof(*entry)) : NULL;

	if (entry == NULL) {
		return NULL;
	}
	snprintf(entry->record.name, sizeof(entry->record.name), "%s", node);
	entry->record.since_s = (uint64_t)time(NULL);
	entry->state = FENCING_WANTED;
	entry->unwritten = true;
	if (fence_rules_add(&entry->record.rules, &fencing->nodes, node, NULL) < 0) {
		fenced_free(entry);
		return NULL;
	}
	fencing->entries[fencing->entry_count++] = entry;
	return entry;
}

static const struct access_condition *name_at(const struct fencing *fencing, uint32_t idx)
{
	return access_condition_find(&fencing->nodes.rules[idx], ACCESS_NODE);
}

bool fencing_is_configured(const struct fencing *fencing, const char *node)
{
	for (uint32_t i = 0; i < fencing->nodes.rule_count; i++) {
		const struct access_condition *name = name_at(fencing, i);

		if (name->bytes == strlen(node) && memcmp(name->data, node, name->bytes) == 0) {
			return true;
		}
	}
	return false;
}

bool fencing_name(const struct fencing *fencing, uint32_t idx, char out[FENCE_NAME_BYTES])
{
	const struct access_condition *name = name_at(fencing, idx);

	for (uint32_t i = 0; i < idx; i++) {
		const struct access_condition *other = name_at(fencing, i);

		if (other->bytes == name->bytes &&
			memcmp(other->data, name->data, name->bytes) == 0) {
			return false;
		}
	}
	snprintf(out, FENCE_NAME_BYTES, "%.*s", (int)name->bytes, (const char *)name->data);
	return true;
}

void fencing_look_again(struct fencing_entry *entry, uint64_t serial)
{
	entry->serial = serial;
	entry->clear = 0;
	entry->barriers_open = false;
	snprintf(entry->text, sizeof(entry->text),
		"the server has not yet seen the end of its connections");
	if (entry->state != FENCING_UNWANTED) {
		fencing_set_state(entry, FENCING_FENCED);
	}
}

int fencing_take_records(struct fencing *fencing, struct fence_list *list)
{
	while (fencing->entry_count > 0) {
		fencing_remove(fencing, fencing->entries[0]);
	}
	for (uint32_t i = 0; i < list->count; i++) {
		struct fencing_entry *entry = calloc(1, sizeof(*entry));

		if (entry == NULL) {
			return -ENOMEM;
		}
		entry->record = list->records[i];
		list->records[i].rules = (struct server_access){ 0 };
		entry->state = FENCING_FENCED;
		fencing_look_again(entry, fencing->serial + 1);
		fencing->entries[fencing->entry_count++] = entry;
	}
	return 0;
}

/* --- what the engines use; with the lock held --------------------------------------------------
 */

struct fence_nodes *fencing_in_force(const struct fencing *fencing)
{
	struct fence_nodes *nodes = fence_nodes_create(fencing->entry_count);

	for (uint32_t i = 0; nodes != NULL && i < fencing->entry_count; i++) {
		const struct fencing_entry *entry = fencing->entries[i];
		struct fence_node *node = &nodes->nodes[nodes->count];

		if (!fencing_is_in_force(entry)) {
			continue;
		}
		memcpy(node->name, entry->record.name, sizeof(node->name));
		if (access_create(entry->record.rules.rules, entry->record.rules.rule_count,
			    &node->rules) < 0) {
			fence_nodes_put(nodes);
			return NULL;
		}
		nodes->count++;
	}
	return nodes;
}

void fencing_publish(struct fencing *fencing)
{
	struct fence_nodes *nodes = fencing_in_force(fencing);

	fencing->unpublished = nodes == NULL;
	if (nodes != NULL) {
		fence_set_fenced(fencing->fence, nodes);
		fencing->serial++;
	}
}

/* --- the configuration ------------------------------------------------------------------------ */

int fencing_grow(struct fencing *fencing)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < fencing->entry_count; i++) {
		struct fencing_entry *entry = fencing->entries[i];
		bool grown = false;

		rc = fence_rules_add(
			&entry->record.rules, &fencing->nodes, entry->record.name, &grown);
		if (grown) {
			fencing->grown = true;
			entry->unwritten = true;
			entry->drafted = DRAFTED_NOT; /* a write in progress lacks the rules */
		}
		if (grown && fencing_is_in_force(entry)) {
			fencing_look_again(entry, fencing->serial + 1);
		}
	}
	return rc;
}

/* Returns the nodes of the configuration, for statistics. NULL: no memory. */
static struct fence_nodes *all_nodes(const struct fencing *fencing)
{
	struct fence_nodes *nodes = fence_nodes_create(fencing->nodes.rule_count);

	for (uint32_t i = 0; nodes != NULL && i < fencing->nodes.rule_count; i++) {
		struct fence_node *node = &nodes->nodes[nodes->count];
		struct server_access rules = { 0 };
		int rc;

		if (!fencing_name(fencing, i, node->name)) {
			continue;
		}
		rc = fence_rules_add(&rules, &fencing->nodes, node->name, NULL);
		rc = rc ?: access_create(rules.rules, rules.rule_count, &node->rules);
		server_access_fini(&rules);
		if (rc < 0) {
			fence_nodes_put(nodes);
			return NULL;
		}
		nodes->count++;
	}
	return nodes;
}

int fencing_configure(struct fencing *fencing, const struct server_config *config, bool keeps,
	struct error *error)
{
	struct server_access nodes = { 0 };
	struct access *rights = NULL;
	struct fence_nodes *all;
	uint32_t count;
	int rc;

	if (fencing == NULL) {
		return 0;
	}
	rc = server_access_common(config, &rights, error);
	if (rc < 0) {
		return rc;
	}
	fence_set_rights(fencing->fence, rights);
	rc = fence_rules_add(&nodes, &config->nodes, NULL, NULL);
	count = nodes.rule_count;
	/* Only this thread changes fencing->nodes. */
	if (rc == 0 && keeps) {
		rc = fence_rules_add(&nodes, &fencing->nodes, NULL, NULL);
	}
	if (rc < 0) {
		server_access_fini(&nodes);
		return error_oom_for(error, "the nodes");
	}
	pthread_mutex_lock(&fencing->lock);
	server_access_fini(&fencing->nodes);
	fencing->nodes = nodes;
	fencing->previous_count = nodes.rule_count - count;
	rc = fencing_grow(fencing);
	fencing_publish(fencing);
	all = rc == 0 ? all_nodes(fencing) : NULL;
	fencing_wake(fencing);
	pthread_mutex_unlock(&fencing->lock);
	if (all == NULL) {
		return error_oom_for(error, "the nodes");
	}
	fence_set_nodes(fencing->fence, all);
	return 0;
}

void fencing_settle(struct fencing *fencing)
{
	struct fence_nodes *all;

	if (fencing == NULL || fencing->previous_count == 0) {
		return;
	}
	pthread_mutex_lock(&fencing->lock);
	while (fencing->previous_count > 0) {
		fencing->previous_count--;
		fencing->nodes.rule_count--;
		access_rule_fini(&fencing->nodes.rules[fencing->nodes.rule_count]);
	}
	all = all_nodes(fencing);
	pthread_mutex_unlock(&fencing->lock);
	if (all != NULL) { /* otherwise sessions belong to their previous nodes, too */
		fence_set_nodes(fencing->fence, all);
	}
}
