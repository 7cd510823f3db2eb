// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/fence/fencing_private.h"

#define LOOK_NS	    UINT64_C(5000000)	/* first pause between two looks at the engines */
#define LOOK_MAX_NS UINT64_C(100000000) /* longest pause */

#define WRITE_NS     UINT64_C(1000000000) /* first pause after a failed write of the list */
#define WRITE_MAX_NS UINT64_C(5000000000) /* longest pause */

/* --- looks ------------------------------------------------------------------------------------ */

/* Called on the reactor's thread. */
static void look_run(struct engine *engine, void *context)
{
	struct fencing_look *look = context;

	engine_fence_look(engine, look->nodes, look->sights);
	/* All engines share the disks, so one engine is asked. */
	look->barriers = look->index == 0 ? engine_fence_barriers(engine, look->barred) : 0;
	ring_post(look->fencing->ring, &look->back);
}

static void look_judge(
	struct fencing_look *look, struct fencing_entry *entry, const struct fence_sight *sight)
{
	if (look->index == 0 && look->barriers == 0) {
		entry->barriers_open = true;
	}
	if (sight->sessions == 0) {
		entry->clear |= UINT64_C(1) << look->index;
	}
	if (sight->sessions > 0) {
		snprintf(entry->text, sizeof(entry->text),
			"the node still has %u connection%s with %u request%s in flight, such as "
			"%s at export \"%s\"",
			sight->sessions, sight->sessions == 1 ? "" : "s", sight->requests,
			sight->requests == 1 ? "" : "s", sight->peer, sight->export);
	} else if (look->barriers > 0) {
		snprintf(entry->text, sizeof(entry->text),
			"operations of a killed server on the disks of %u export%s are still in "
			"progress, such as \"%s\"",
			look->barriers, look->barriers == 1 ? "" : "s", look->barred);
	}
}

static uint64_t all_reactors(const struct fencing *fencing)
{
	return fencing->look_count == 64 ? UINT64_MAX : (UINT64_C(1) << fencing->look_count) - 1;
}

static void fencing_work(struct fencing *fencing);

/* Called on the thread when a reactor has looked. */
static void look_back(struct ring *ring, struct ring_message *message)
{
	struct fencing_look *look = container_of(message, struct fencing_look, back);
	struct fencing *fencing = look->fencing;

	pthread_mutex_lock(&fencing->lock);
	for (uint32_t i = 0; i < look->nodes->count; i++) {
		struct fencing_entry *entry = fencing_find(fencing, look->nodes->nodes[i].name);

		if (entry == NULL || entry->state != FENCING_FENCED ||
			look->serial < entry->serial) {
			continue;
		}
		look_judge(look, entry, &look->sights[i]);
		if (entry->clear == all_reactors(fencing) && entry->barriers_open) {
			fencing_set_state(entry, FENCING_ENDED);
			log_info("node '%s' is fenced, and its last operation has ended",
				entry->record.name);
		}
	}
	fence_nodes_put(look->nodes);
	free(look->sights);
	look->busy = false;
	pthread_mutex_unlock(&fencing->lock);
	fencing_work(fencing);
}

/* Starts a look at each reactor that is not busy. The reactors exist, because the lock is held and
 * fencing_stop() was not called. */
static void look_begin(struct fencing *fencing)
{
	struct fence_nodes *nodes = fencing_in_force(fencing);

	for (uint32_t i = 0; nodes != NULL && i < fencing->look_count; i++) {
		struct fencing_look *look = &fencing->looks[i];

		if (look->busy) {
			continue;
		}
		look->sights = calloc(nodes->count, sizeof(*look->sights));
		if (look->sights == NULL) {
			break; /* the next look tries again */
		}
		fence_nodes_get(nodes);
		look->nodes = nodes;
		look->serial = fencing->serial;
		look->begun_ns = clock_now_ns();
		look->busy = true;
		reactor_post(fencing->reactors[i], &look->task);
	}
	fence_nodes_put(nodes);
}

/* --- the list on disk ------------------------------------------------------------------------- */

/* A request is executed immediately. Other changes wait after a failed write. */
static bool needs_write(const struct fencing *fencing)
{
	bool needs = fencing->grown && clock_now_ns() >= fencing->write_ns;

	for (uint32_t i = 0; i < fencing->entry_count; i++) {
		needs |= fencing->entries[i]->state == FENCING_WANTED ||
			 fencing->entries[i]->state == FENCING_UNWANTED;
	}
	return needs && !fencing->held && !fencing->stopped && state_folder_serves(fencing->folder);
}

/* Formats the next list: the entries that are fenced or shall be. Called with the lock held. */
static int draft_make(struct fencing *fencing, char **text, size_t *bytes, struct error *error)
{
	struct fence_record records[FENCE_NODES_MAX];
	struct fence_list list = { .records = records };

	for (uint32_t i = 0; i < fencing->entry_count; i++) {
		struct fencing_entry *entry = fencing->entries[i];

		entry->drafted = entry->state == FENCING_UNWANTED ? DRAFTED_OUT
				 : entry->state == FENCING_FAILED ? DRAFTED_NOT
								  : DRAFTED_IN;
		if (entry->drafted == DRAFTED_IN) {
			records[list.count++] = entry->record;
		}
	}
	fencing->grown = false;
	return fence_list_format(&list, text, bytes, error);
}

/* The list is durable: puts it into force. Called with the lock held. */
static void draft_done(struct fencing *fencing)
{
	fencing->write_pause_ns = 0;
	for (uint32_t i = fencing->entry_count; i-- > 0;) {
		struct fencing_entry *entry = fencing->entries[i];

		entry->unwritten &= entry->drafted != DRAFTED_IN;
		if (entry->drafted == DRAFTED_IN && entry->state == FENCING_WANTED) {
			log_info("node '%s' is fenced: its connections are being ended",
				entry->record.name);
			fencing_look_again(entry, fencing->serial + 1);
		} else if (entry->drafted == DRAFTED_OUT && entry->state == FENCING_UNWANTED) {
			log_info("node '%s' is no longer fenced", entry->record.name);
			memcpy(fencing->released, entry->record.name, sizeof(fencing->released));
			fencing_remove(fencing, entry);
		}
	}
	fencing_publish(fencing);
}

/* The list could not be written. Called with the lock held. */
static void draft_failed(struct fencing *fencing, const struct error *error)
{
	char shown[4 * ERROR_TEXT_BYTES];

	log_error("%s", log_escape_sentence(shown, sizeof(shown), error->text));
	fencing->grown = true;
	fencing->write_pause_ns = fencing->write_pause_ns == 0
					  ? WRITE_NS
					  : MIN(2 * fencing->write_pause_ns, WRITE_MAX_NS);
	fencing->write_ns = clock_now_ns() + fencing->write_pause_ns;
	for (uint32_t i = 0; i < fencing->entry_count; i++) {
		struct fencing_entry *entry = fencing->entries[i];

		if (entry->drafted == DRAFTED_IN && entry->state == FENCING_WANTED) {
			fencing_set_state(entry, FENCING_FAILED);
		} else if (entry->drafted == DRAFTED_OUT && entry->state == FENCING_UNWANTED) {
			fencing_set_state(entry, FENCING_FENCED);
			fencing_look_again(entry, fencing->serial);
			entry->unwritten = true; /* the file can be the new one */
			entry->has_failed = true;
		} else {
			continue;
		}
		snprintf(entry->text, sizeof(entry->text), "%.*s", FENCE_TEXT_BYTES - 1,
			error->text);
	}
}

/* Writes the list. Called with the lock held, and releases it during the write. */
static void fencing_write(struct fencing *fencing)
{
	struct error error = { 0 };
	char *text = NULL;
	size_t bytes = 0;
	int rc = draft_make(fencing, &text, &bytes, &error);

	fencing->writing = true;
	pthread_mutex_unlock(&fencing->lock);
	rc = rc ?: state_folder_replace(fencing->folder, fence_list_file, text, bytes, &error);
	free(text);
	pthread_mutex_lock(&fencing->lock);
	fencing->writing = false;
	if (rc == 0) {
		draft_done(fencing);
	} else {
		draft_failed(fencing, &error);
	}
}

/* --- the thread ------------------------------------------------------------------------------- */

static bool is_pending(const struct fencing *fencing)
{
	bool pending = fencing->unpublished ||
		       (fencing->grown && !fencing->held && state_folder_serves(fencing->folder));

	for (uint32_t i = 0; i < fencing->entry_count; i++) {
		pending |= fencing->entries[i]->state == FENCING_FENCED;
	}
	return pending && !fencing->stopped;
}

static void timer_done(struct ring_op *op, int result)
{
	struct fencing *fencing = container_of(op, struct fencing, timer);

	pthread_mutex_lock(&fencing->lock);
	if (is_pending(fencing)) {
		look_begin(fencing);
	}
	pthread_mutex_unlock(&fencing->lock);
	fencing_work(fencing);
}

/* Does what is to be done, on the thread. */
static void fencing_work(struct fencing *fencing)
{
	pthread_mutex_lock(&fencing->lock);
	if (needs_write(fencing)) {
		fencing->pause_ns = 0;
		fencing_write(fencing);
	}
	if (fencing->unpublished) {
		fencing_publish(fencing);
	}
	if (!is_pending(fencing)) {
		fencing->pause_ns = 0;
	} else if (!fencing->timer.in_flight) {
		ring_timer(fencing->ring, &fencing->timer, MAX(fencing->pause_ns, UINT64_C(1)),
			timer_done);
		fencing->pause_ns =
			fencing->pause_ns == 0 ? LOOK_NS : MIN(2 * fencing->pause_ns, LOOK_MAX_NS);
	}
	pthread_mutex_unlock(&fencing->lock);
}

static void woken(struct ring *ring, struct ring_message *message)
{
	struct fencing *fencing = container_of(message, struct fencing, wake);

	pthread_mutex_lock(&fencing->lock);
	fencing->wakes = false;
	fencing->pause_ns = 0;
	pthread_mutex_unlock(&fencing->lock);
	fencing_work(fencing);
}

void fencing_wake(struct fencing *fencing)
{
	if (!fencing->wakes && fencing->ring != NULL) {
		fencing->wakes = true;
		ring_post(fencing->ring, &fencing->wake);
	}
}

static int thread_begin(void *context, struct ring **ring_out, struct error *error)
{
	const struct ring_options options = { .is_restricted = true };
	struct fencing *fencing = context;
	int rc = ring_create(&options, &fencing->ring, error);

	*ring_out = fencing->ring;
	return rc;
}

static void thread_end(void *context)
{
	struct fencing *fencing = context;

	if (fencing->timer.in_flight) {
		ring_cancel(fencing->ring, &fencing->timer);
	}
	while (fencing->timer.in_flight) {
		ring_turn(fencing->ring, true);
	}
	ring_destroy(fencing->ring);
}

int fencing_thread_start(struct fencing *fencing, struct error *error)
{
	const struct ring_thread_options options = { .name = "gmblock/fence",
		.begin = thread_begin,
		.end = thread_end,
		.context = fencing };

	fencing->looks = calloc(fencing->look_count, sizeof(*fencing->looks));
	if (fencing->looks == NULL) {
		return error_oom_for(error, "the nodes");
	}
	for (uint32_t i = 0; i < fencing->look_count; i++) {
		struct fencing_look *look = &fencing->looks[i];

		look->fencing = fencing;
		look->index = i;
		look->task.run = look_run;
		look->task.context = look;
		look->back.deliver = look_back;
	}
	fencing->wake.deliver = woken;
	return ring_thread_start(&options, &fencing->thread, error);
}
