// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/fence/fencing_private.h"

/* --- requests --------------------------------------------------------------------------------- */

static int ask_answer(char text[FENCE_TEXT_BYTES], int rc, const char *format, ...)
	GMB_PRINTF(3, 4);

static int ask_answer(char text[FENCE_TEXT_BYTES], int rc, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, FENCE_TEXT_BYTES, format, args);
	va_end(args);
	return rc;
}

/* Returns whether an engine has not looked for so long that its thread must hang. */
static bool has_hanging_engine(const struct fencing *fencing)
{
	uint64_t now_ns = clock_now_ns();
	bool hangs = false;

	for (uint32_t i = 0; i < fencing->look_count; i++) {
		const struct fencing_look *look = &fencing->looks[i];

		hangs |= look->busy && now_ns - look->begun_ns >= FENCING_HANGING_NS;
	}
	return hangs;
}

/* Removes an entry that has failed. */
static int fencing_take_failure(
	struct fencing *fencing, struct fencing_entry *entry, char text[FENCE_TEXT_BYTES])
{
	int rc = ask_answer(text, -EIO, "%s", entry->text);

	fencing_remove(fencing, entry);
	return rc;
}

/* Answers for a fenced node. */
static int ask_in_force(
	struct fencing *fencing, const struct fencing_entry *entry, char text[FENCE_TEXT_BYTES])
{
	if (entry->state == FENCING_ENDED && !entry->unwritten) {
		return 0;
	}
	if (entry->state == FENCING_ENDED) {
		/* A restarted server would not know all of the fence. */
		fencing_wake(fencing);
		return ask_answer(text, -EINPROGRESS,
			"the list of fenced nodes is being written, or cannot be written (see the "
			"log of the server)");
	}
	return ask_answer(text, -EINPROGRESS, "%s",
		has_hanging_engine(fencing)
			? "a thread of the server does not respond; a disk may hang"
			: entry->text);
}

static int ask_fence(struct fencing *fencing, struct fencing_entry *entry, const char *node,
	char text[FENCE_TEXT_BYTES])
{
	if (entry != NULL && entry->state == FENCING_FAILED) {
		return fencing_take_failure(fencing, entry, text);
	}
	if (entry != NULL && entry->state == FENCING_UNWANTED) {
		return ask_answer(text, -EBUSY, "another request is unfencing the node");
	}
	if (entry != NULL && fencing_is_in_force(entry)) {
		return ask_in_force(fencing, entry, text);
	}
	if (entry == NULL && fencing->held) {
		return ask_answer(text, -EAGAIN, "another process is taking over the server");
	}
	if (entry == NULL && fencing_add(fencing, node) == NULL) {
		return ask_answer(text, -ENOMEM,
			"the server is out of memory, or has more than %d "
			"fenced nodes",
			FENCE_NODES_MAX - 1);
	}
	fencing_wake(fencing);
	return ask_answer(text, -EINPROGRESS, "the list of fenced nodes is being written");
}

static int ask_look(
	struct fencing *fencing, struct fencing_entry *entry, char text[FENCE_TEXT_BYTES])
{
	if (entry == NULL || !fencing_is_in_force(entry)) {
		return ask_answer(text, -ESRCH, "the node is not fenced");
	}
	return ask_in_force(fencing, entry, text);
}

static int ask_release(
	struct fencing *fencing, struct fencing_entry *entry, char text[FENCE_TEXT_BYTES])
{
	if (entry != NULL && entry->state == FENCING_FAILED) {
		fencing_remove(fencing, entry);
		return 0;
	}
	if (entry == NULL) {
		return 0;
	}
	if (entry->state == FENCING_WANTED) {
		return ask_answer(text, -EBUSY, "another request is fencing the node");
	}
	if (entry->has_failed) {
		entry->has_failed = false;
		return ask_answer(text, -EIO, "%s", entry->text);
	}
	if (fencing->held) {
		return ask_answer(text, -EAGAIN, "another process is taking over the server");
	}
	if (entry->state != FENCING_UNWANTED) {
		fencing_set_state(entry, FENCING_UNWANTED);
		fencing_wake(fencing);
	}
	return ask_answer(text, -EINPROGRESS, "the list of fenced nodes is being written");
}

/* Returns whether the session that asks belongs to a node that is being fenced. Two nodes that lose
 * sight of each other fence each other at the same time, and the first request must win. */
static bool asker_is_wanted(const struct fencing *fencing, struct session *session)
{
	for (uint32_t i = 0; session != NULL && i < fencing->entry_count; i++) {
		const struct fencing_entry *entry = fencing->entries[i];

		if (entry->state != FENCING_FAILED &&
			session_is_of_node(session, entry->record.name)) {
			return true;
		}
	}
	return false;
}

int fencing_ask(struct fencing *fencing, struct session *session, enum fence_action action,
	const char *node, char text[FENCE_TEXT_BYTES])
{
	struct fencing_entry *entry;
	int rc;

	if (fencing == NULL) {
		return ask_answer(text, -EINVAL,
			"the server has no nodes; list them under nodes in its configuration, and "
			"restart it");
	}
	text[0] = '\0';
	pthread_mutex_lock(&fencing->lock);
	entry = fencing_find(fencing, node);
	if (fencing->stopped) {
		rc = ask_answer(text, -EAGAIN, "the server is stopping");
	} else if (asker_is_wanted(fencing, session)) {
		rc = ask_answer(text, -EBUSY, "another request is fencing the node that asks");
	} else if (entry == NULL && action == FENCE_RELEASE &&
		   strcmp(fencing->released, node) == 0) {
		rc = 0;
	} else if (entry == NULL && !fencing_is_configured(fencing, node)) {
		rc = ask_answer(text, -EINVAL, "the configuration of the server has no node '%s'",
			quote(node));
	} else {
		rc = action == FENCE_NODE   ? ask_fence(fencing, entry, node, text)
		     : action == FENCE_LOOK ? ask_look(fencing, entry, text)
					    : ask_release(fencing, entry, text);
	}
	pthread_mutex_unlock(&fencing->lock);
	return rc;
}

static int desk_ask(void *context, struct session *session, enum fence_action action,
	const char *node, char text[FENCE_TEXT_BYTES])
{
	return fencing_ask(context, session, action, node, text);
}

/* --- the list of all nodes -------------------------------------------------------------------- */

static void view_entry(
	struct fencing_view *view, const char *name, const struct fencing_entry *entry)
{
	snprintf(view->node, sizeof(view->node), "%s", name);
	view->fenced = entry != NULL && fencing_is_in_force(entry);
	view->ended = view->fenced && entry->state == FENCING_ENDED;
	view->since_s = view->fenced ? entry->record.since_s : 0;
	if (view->fenced && !view->ended) {
		memcpy(view->waits_for, entry->text, sizeof(view->waits_for));
	}
}

struct fencing_view *fencing_views(struct fencing *fencing, uint32_t *count_out)
{
	struct fencing_view *views;
	char name[FENCE_NAME_BYTES];

	*count_out = 0;
	if (fencing == NULL) {
		return calloc(1, sizeof(*views));
	}
	pthread_mutex_lock(&fencing->lock);
	views = calloc(fencing->nodes.rule_count + fencing->entry_count + 1, sizeof(*views));
	for (uint32_t i = 0; views != NULL && i < fencing->nodes.rule_count; i++) {
		if (fencing_name(fencing, i, name)) {
			view_entry(&views[(*count_out)++], name, fencing_find(fencing, name));
		}
	}
	for (uint32_t i = 0; views != NULL && i < fencing->entry_count; i++) {
		const struct fencing_entry *entry = fencing->entries[i];

		if (fencing_is_in_force(entry) &&
			!fencing_is_configured(fencing, entry->record.name)) {
			view_entry(&views[(*count_out)++], entry->record.name, entry);
		}
	}
	pthread_mutex_unlock(&fencing->lock);
	return views;
}

json_t *fencing_list(struct fencing *fencing)
{
	uint32_t count;
	struct fencing_view *views = fencing_views(fencing, &count);
	json_t *list = views != NULL ? json_array() : NULL;

	for (uint32_t i = 0; list != NULL && i < count; i++) {
		const struct fencing_view *view = &views[i];

		json_array_append_new(
			list, json_pack("{s:s, s:b, s:b, s:s*}", "node", view->node, "fenced",
				      view->fenced, "ended", view->ended, "waits_for",
				      view->waits_for[0] != '\0' ? view->waits_for : NULL));
		if (view->fenced) {
			json_object_set_new(json_array_get(list, i), "since",
				json_integer((json_int_t)view->since_s));
		}
	}
	free(views);
	return list;
}

/* --- upgrades --------------------------------------------------------------------------------- */

int fencing_hold(struct fencing *fencing, struct error *error)
{
	int rc = 0;

	if (fencing == NULL) {
		return 0;
	}
	pthread_mutex_lock(&fencing->lock);
	for (uint32_t i = 0; rc == 0 && i < fencing->entry_count; i++) {
		const struct fencing_entry *entry = fencing->entries[i];

		if (entry->state != FENCING_ENDED && entry->state != FENCING_FAILED) {
			rc = error_set(error, -EBUSY, "node '%s' is being %s: %s",
				entry->record.name,
				entry->state == FENCING_UNWANTED ? "unfenced" : "fenced",
				entry->text);
		}
	}
	if (rc == 0 && (fencing->writing || fencing->unpublished || fencing->grown)) {
		fencing_wake(fencing); /* an earlier write can have failed */
		rc = error_set(error, -EBUSY, "the list of fenced nodes is being written");
	}
	fencing->held = rc == 0;
	pthread_mutex_unlock(&fencing->lock);
	return rc;
}

void fencing_release(struct fencing *fencing)
{
	if (fencing != NULL) {
		pthread_mutex_lock(&fencing->lock);
		fencing->held = false;
		fencing_wake(fencing);
		pthread_mutex_unlock(&fencing->lock);
	}
}

int fencing_read(struct fencing *fencing, struct error *error)
{
	struct fence_list list;
	int rc;

	if (fencing == NULL) {
		return 0;
	}
	rc = fence_list_read(fencing->folder, &list, error);
	if (rc < 0) {
		return rc;
	}
	pthread_mutex_lock(&fencing->lock);
	rc = fencing_take_records(fencing, &list) ?: fencing_grow(fencing);
	fencing_publish(fencing);
	rc = rc < 0 || fencing->unpublished ? error_oom_for(error, "the list of fenced nodes") : 0;
	fencing_wake(fencing);
	pthread_mutex_unlock(&fencing->lock);
	fence_list_fini(&list);
	return rc;
}

void fencing_take_over(struct fencing *fencing)
{
	if (fencing != NULL) {
		pthread_mutex_lock(&fencing->lock);
		fencing_wake(fencing);
		pthread_mutex_unlock(&fencing->lock);
	}
}

/* --- life ------------------------------------------------------------------------------------- */

int fencing_open(const struct server_config *config, const struct state_folder *folder,
	bool is_taking, struct fencing **fencing_out, struct error *error)
{
	struct fencing *fencing;
	struct fence_desk desk = { .ask = desk_ask };
	int rc;

	*fencing_out = NULL;
	if (folder->fd < 0) {
		return 0;
	}
	fencing = calloc(1, sizeof(*fencing));
	if (fencing == NULL) {
		return error_oom_for(error, "the nodes");
	}
	pthread_mutex_init(&fencing->lock, NULL);
	fencing->folder = folder;
	fencing->fence = fence_create();
	rc = fencing->fence == NULL ? error_oom_for(error, "the nodes") : 0;
	if (rc == 0) {
		desk.context = fencing;
		fence_set_desk(fencing->fence, &desk);
		rc = fencing_read(fencing, error)
			     ?: fencing_configure(fencing, config, false, error);
	}
	if (rc < 0) {
		fencing_destroy(fencing);
		return rc;
	}
	if (config->nodes.rule_count == 0 && fencing->entry_count == 0 && !is_taking) {
		fencing_destroy(fencing);
		return 0;
	}
	if (config->nodes.rule_count == 0 && fencing->entry_count > 0) {
		log_warning("the configuration has no nodes, but %u nodes are fenced in %s/%s; "
			    "they stay fenced until 'gmblock unfence'",
			fencing->entry_count, quote(folder->path), fence_list_file);
	}
	*fencing_out = fencing;
	return 0;
}

struct fence *fencing_fence(struct fencing *fencing)
{
	return fencing != NULL ? fencing->fence : NULL;
}

int fencing_start(struct fencing *fencing, struct reactor *const *reactors, uint32_t reactor_count,
	struct error *error)
{
	int rc;

	if (fencing == NULL) {
		return 0;
	}
	fencing->reactors = reactors;
	fencing->look_count = reactor_count;
	rc = fencing_thread_start(fencing, error);
	if (rc == 0) {
		pthread_mutex_lock(&fencing->lock);
		fencing_wake(fencing);
		pthread_mutex_unlock(&fencing->lock);
	}
	return rc;
}

void fencing_stop(struct fencing *fencing)
{
	if (fencing != NULL) {
		pthread_mutex_lock(&fencing->lock);
		fencing->stopped = true;
		pthread_mutex_unlock(&fencing->lock);
	}
}

void fencing_destroy(struct fencing *fencing)
{
	if (fencing == NULL) {
		return;
	}
	if (fencing->thread != NULL) {
		ring_thread_stop(fencing->thread);
	}
	while (fencing->entry_count > 0) {
		fencing_remove(fencing, fencing->entries[0]);
	}
	for (uint32_t i = 0; i < fencing->look_count; i++) {
		if (fencing->looks[i].busy) { /* its reactor has ended before it could look */
			fence_nodes_put(fencing->looks[i].nodes);
			free(fencing->looks[i].sights);
		}
	}
	free(fencing->looks);
	server_access_fini(&fencing->nodes);
	fence_destroy(fencing->fence);
	pthread_mutex_destroy(&fencing->lock);
	free(fencing);
}
