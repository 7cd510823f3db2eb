// SPDX-License-Identifier: Apache-2.0
#include "engine/export.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/lease.h"

/* --- the export ---------------------------------------------------------------------------- */

/* Entry of the list export_use.replaced_by: an export that replaces the owner of the list. */
struct export_wait {
	struct export_wait *next;
	struct export_use *use;
};

static struct export_use *use_create(void)
{
	struct export_use *use = calloc(1, sizeof(*use));

	if (use != NULL) {
		atomic_init(&use->references, 1);
	}
	return use;
}

void export_use_put(struct export_use *use)
{
	/* Acquire-release order: the thread that drops the last reference, and frees the struct,
	 * must see that all other threads have finished. */
	if (use != NULL &&
		atomic_fetch_sub_explicit(&use->references, 1, memory_order_acq_rel) == 1) {
		GMB_ASSERT(use->replaced_by == NULL); /* otherwise the export would be in use */
		free(use);
	}
}

/* Ends one use of an export. Each engine that serves the export uses it, and so does each older
 * export that it replaces. When the last use ends, the exports that replace this one stop waiting
 * for it, and these uses end as well. */
static void use_end(struct export_use *use)
{
	struct export_wait *next;

	/* Acquire-release order: a thread that sees that the count is 0, as in export_waits(), also
	 * sees everything that the engines have done to the disk. */
	if (atomic_fetch_sub_explicit(&use->engines, 1, memory_order_acq_rel) > 1) {
		return;
	}
	while ((next = use->replaced_by) != NULL) {
		use->replaced_by = next->next;
		/* The release order pairs with the acquire in export_waits(). */
		atomic_fetch_sub_explicit(&next->use->waits_for, 1, memory_order_release);
		use_end(next->use);
		export_use_put(next->use);
		free(next);
	}
}

struct export_use *export_use_get(struct export *export)
{
	/* Relaxed order is enough, because the caller's reference to the export keeps `use`
	 * alive. */
	atomic_fetch_add_explicit(&export->use->references, 1, memory_order_relaxed);
	return export->use;
}

bool export_use_is_over(const struct export_use *use)
{
	/* Acquire order: the caller sees everything that the engines have done to the disk. */
	return atomic_load_explicit(&use->engines, memory_order_acquire) == 0;
}

static void export_free(struct export *export)
{
	void (*closed)(void *context) = export->closed;
	void *context = export->closed_context;

	lease_detach(export);
	late_writes_fini(&export->late);
	if (export->budget.base != NULL) {
		(void)munmap(export->budget.base, export->budget.bytes);
	}
	access_slot_destroy(export->access);
	export_use_put(export->use);
	free(export->name);
	free(export_set_description(export, NULL));
	free(export);
	if (closed != NULL) {
		closed(context);
	}
}

int export_create(
	const struct export_options *options, struct export **export_out, struct error *error)
{
	struct export *export = calloc(1, sizeof(*export));

	GMB_ASSERT(options->name_bytes <= EXPORT_NAME_BYTES_MAX);
	GMB_ASSERT(options->description == NULL ||
		   strlen(options->description) <= EXPORT_NAME_BYTES_MAX);
	if (export == NULL) {
		access_put(options->access);
	} else {
		late_writes_init(&export->late);
		export->access = access_slot_create(options->access);
		export->name = strndup(options->name, options->name_bytes);
		export->use = use_create();
		atomic_init(&export->description,
			options->description != NULL ? strdup(options->description) : NULL);
	}
	if (export == NULL || export->name == NULL || export->access == NULL ||
		export->use == NULL ||
		(options->description != NULL && export_description(export) == NULL)) {
		store_close(options->store);
		if (export != NULL) {
			export_free(export);
		}
		return error_oom_for(error, "an export");
	}
	export->name_bytes = options->name_bytes;
	export->store = options->store;
	export->parent = options->parent;
	if (export->parent != NULL) {
		export_get(export->parent);
	}
	export->overlap = options->overlap;
	if (export->overlap == PATH_OVERLAP_AUTO && store_info(export->store)->part_bytes > 0) {
		export->overlap = store_info(export->store)->part_bytes;
	}
	export->one_writer = options->one_writer;
	export_set_read_only(export, options->read_only);
	atomic_init(&export->connections_max, options->connections_max);
	rate_set(&export->rate, &options->rate, 0); /* the whole burst is available */
	atomic_init(&export->memory_max, options->memory_max);
	atomic_init(&export->atomic_bytes, EXPORT_ATOMIC_UNKNOWN);
	export->epoch = options->epoch;
	export->is_volatile = options->is_volatile;
	export->references = 1;
	*export_out = export;
	return 0;
}

void export_set_read_only(struct export *export, bool read_only)
{
	bool can_write = (store_info(export->store)->caps & STORE_CAP_WRITE) != 0;

	/* Relaxed order: each engine reads the value after it has received a message, see
	 * engine_export_rights(). */
	atomic_store_explicit(&export->read_only, read_only || !can_write, memory_order_relaxed);
}

void export_set_access(struct export *export, struct access *access)
{
	access_slot_replace(export->access, access);
}

char *export_set_description(struct export *export, char *description)
{
	return atomic_exchange_explicit(&export->description, description, memory_order_acq_rel);
}

int export_replaces(struct export *export, struct export_use *old, struct error *error)
{
	struct export_wait *wait = malloc(sizeof(*wait));
	uint32_t engines = atomic_load_explicit(&old->engines, memory_order_acquire);

	if (wait == NULL) {
		return error_oom_for(error, "an export");
	}
	/* Count the new export as a user of the old one until it is in old->replaced_by, so that
	 * the old one's last use cannot end in between. If the old one is no longer in use, the new
	 * one need not wait. */
	do {
		if (engines == 0) {
			free(wait);
			return 0;
		}
	} while (!atomic_compare_exchange_weak_explicit(
		&old->engines, &engines, engines + 1, memory_order_acquire, memory_order_acquire));
	/* Relaxed order: no other thread uses the new export yet. */
	atomic_fetch_add_explicit(&export->use->engines, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&export->use->waits_for, 1, memory_order_relaxed);
	wait->use = export_use_get(export);
	wait->next = old->replaced_by;
	old->replaced_by = wait;
	use_end(old);
	return 0;
}

bool export_waits(const struct export *export)
{
	/* Acquire order: if no export is in use any more, the caller sees everything that was done
	 * to their disks. */
	return atomic_load_explicit(&export->use->waits_for, memory_order_acquire) > 0;
}

void export_get(struct export *export)
{
	/* Relaxed order is enough, because the caller's own reference keeps the export alive. */
	atomic_fetch_add_explicit(&export->references, 1, memory_order_relaxed);
}

/* Drops a reference, and returns true if it was the last one. Acquire-release order: the thread
 * that drops the last one sees the effects of all other uses. */
static bool drop_reference(struct export *export)
{
	uint32_t before = atomic_fetch_sub_explicit(&export->references, 1, memory_order_acq_rel);

	GMB_ASSERT(before > 0);
	return before == 1;
}

static void close_store(struct export *export)
{
	store_close(export->store);
	export_put(export->parent);
}

void export_put(struct export *export)
{
	if (export != NULL && drop_reference(export)) {
		close_store(export);
		export_free(export);
	}
}

int export_start(struct export *export, struct engine *engine)
{
	uint64_t bytes = store_budget(export->store);
	struct store_start *start = &export->start;

	if (bytes > 0) {
		void *base = mmap(
			NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (base == MAP_FAILED) {
			return error_set(&start->error, -ENOMEM,
				"out of memory: the disk needs a work area of %llu bytes",
				(unsigned long long)bytes);
		}
		export->budget =
			(struct mem_region){ .base = base, .bytes = bytes, .rights = MEM_RAM };
		start->memory = mem_at(&export->budget, 0);
	}
	start->ring = engine->ring;
	store_start(export->store, start);
	return 0;
}

static int close_call(struct ring_op *op)
{
	close_store(container_of(op, struct export, close_op));
	return 0;
}

static void close_done(struct ring_op *op, int result)
{
	struct export *export = container_of(op, struct export, close_op);

	export->closing_engine->closing_count--;
	export_free(export);
}

void export_put_async(struct export *export, struct engine *engine)
{
	if (drop_reference(export)) {
		export->closing_engine = engine;
		engine->closing_count++;
		ring_call(engine->ring, &export->close_op, close_call, close_done);
	}
}

/* --- the exports of an engine -------------------------------------------------------------- */

static int engine_export_make_room(struct engine *engine, struct error *error)
{
	uint32_t room = MAX(engine->export_room * 2, 8U);
	struct engine_export **grown;

	if (engine->export_count < engine->export_room) {
		return 0;
	}
	grown = reallocarray(engine->exports, room, sizeof(struct engine_export *));
	if (grown == NULL) {
		return error_oom_for(error, "the table of exports");
	}
	engine->exports = grown;
	engine->export_room = room;
	return 0;
}

static void store_has_resized(struct store_watch *watch)
{
	struct engine_export *entry = container_of(watch, struct engine_export, watch);

	engine_export_resized(entry->engine, entry->export);
}

/* Ends the sessions of a list that use the export. */
static void end_users(
	struct list_node *sessions, const struct engine_export *entry, const char *reason)
{
	list_for_each(node, sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (session->chosen == entry) {
			session_terminate(session, reason);
		}
	}
}

/* Parts end here, too: the message that their session posts to end them is perhaps delivered after
 * the requests that the disk has refused. */
static void store_was_lost(struct store_watch *watch)
{
	struct engine_export *entry = container_of(watch, struct engine_export, watch);

	end_users(&entry->engine->sessions, entry, "another server has taken over the disk");
	end_users(&entry->engine->parts, entry, NULL);
}

/* Called when the store no longer uses entry->watch. Until then the entry could not be freed. */
static void watch_removed(struct store_watch *watch)
{
	struct engine_export *entry = container_of(watch, struct engine_export, watch);

	entry->engine->closing_count--;
	export_put_async(entry->export, entry->engine);
	free(entry);
}

/* Returns this engine's share of the export's memory limit. Relaxed order is enough, because each
 * engine receives a message after the limit has changed. */
static uint64_t export_quota_bytes(const struct engine *engine, const struct export *export)
{
	return engine_quota_bytes(
		engine, atomic_load_explicit(&export->memory_max, memory_order_relaxed));
}

static uint32_t engine_export_index_of(const struct engine *engine, const struct export *export)
{
	uint32_t index = 0;

	while (index < engine->export_count && engine->exports[index]->export != export) {
		index++;
	}
	return index;
}

static void join_path(struct engine *engine, struct export *export, struct path_export *path_export)
{
	uint32_t unknown = EXPORT_ATOMIC_UNKNOWN;
	uint32_t bytes = path_atomic_bytes(engine->path, export->store);

	/* Relaxed order: the number does not publish other data. */
	if (!atomic_compare_exchange_strong_explicit(&export->atomic_bytes, &unknown, bytes,
		    memory_order_relaxed, memory_order_relaxed)) {
		bytes = unknown; /* another engine has already set a value, which all engines use */
	}
	path_export_join(engine->path, path_export, bytes);
}

int engine_export_prepare(struct engine *engine, struct export *export, struct error *error)
{
	struct engine_export *entry;
	int rc = engine_export_make_room(engine, error);

	if (rc < 0) {
		return rc;
	}
	entry = calloc(1, sizeof(*entry));
	if (entry == NULL) {
		return error_oom_for(error, "an export");
	}
	list_init(&entry->barred);
	entry->path.store = export->store;
	path_export_init(&entry->path, export->overlap, &export->late, engine->ring);
	entry->path.name = export->name;
	entry->path.name_bytes = export->name_bytes;
	entry->path.device_error = export->device_error;
	rc = lease_attach(engine->options.leases, export) < 0
		     ? error_oom_for(error, "an export")
		     : store_queue_create(export->store, engine->ring, &entry->path.queue, error);
	if (rc < 0) {
		free(entry);
		return rc;
	}
	join_path(engine, export, &entry->path);
	export_get(export);
	entry->engine = engine;
	entry->export = export;
	rate_queue_init(&entry->rate, &engine->rates, &export->rate);
	path_quota_init(&entry->memory, export_quota_bytes(engine, export));
	entry->watch = (struct store_watch){
		.ring = engine->ring,
		.resized = store_has_resized,
		.lost = store_was_lost,
		.removed = watch_removed,
	};
	store_watch_add(export->store, &entry->watch);
	entry->prepared = true;
	entry->serial = engine->export_serial++;
	engine->exports[engine->export_count++] = entry;
	/* Relaxed order: no other export can wait for this one before it is served. */
	atomic_fetch_add_explicit(&export->use->engines, 1, memory_order_relaxed);
	return 0;
}

void engine_export_show(struct engine *engine, const struct export *export)
{
	uint32_t index = engine_export_index_of(engine, export);

	GMB_ASSERT(index < engine->export_count && engine->exports[index]->prepared);
	engine->exports[index]->prepared = false;
}

int engine_export_add(struct engine *engine, struct export *export, struct error *error)
{
	int rc;

	if (engine_export_find(engine, export->name, export->name_bytes) != NULL) {
		return error_set(error, -EEXIST, "an export with this name already exists");
	}
	rc = engine_export_prepare(engine, export, error);
	if (rc == 0) {
		engine_export_show(engine, export);
	}
	return rc;
}

/* Frees an entry that is not in the table and not in use. */
static void entry_free(struct engine *engine, struct engine_export *entry)
{
	store_queue_destroy(entry->path.queue);
	path_export_leave(engine->path, &entry->path);
	path_export_fini(&entry->path);
	rate_queue_fini(&entry->rate);
	engine->closing_count++;
	use_end(entry->export->use);
	store_watch_remove(entry->export->store, &entry->watch);
}

void engine_export_leave(struct engine *engine, struct engine_export *entry)
{
	GMB_ASSERT(entry->session_count > 0);
	if (--entry->session_count == 0 && entry->removed) {
		entry_free(engine, entry);
	}
}

/* --- the barrier of a store ------------------------------------------------------------------ */

/* Returns whether the time for the handshake is nearly over. Later the client's requests wait. */
static bool has_waited_enough(const struct session *session, uint64_t now_ns)
{
	uint64_t reply_ns = session->engine->limits.handshake_timeout_ns / ENGINE_BARRIER_SHARE;

	return session->state == SESSION_NEGOTIATING && now_ns + reply_ns >= session->deadline_ns;
}

static int barrier_call(struct ring_op *op)
{
	struct engine_export *entry = container_of(op, struct engine_export, barrier_op);

	entry->barrier_found = export_waits(entry->export) || lease_waits(entry->export)
				       ? STORE_BARRIER_CLOSED
				       : store_barrier(entry->path.store, true);
	return 0;
}

/* Checks the store's barrier again after a pause, as long as sessions wait for it. */
static void barrier_again(struct ring_op *op, int result);

static void barrier_done(struct ring_op *op, int result)
{
	struct engine_export *entry = container_of(op, struct engine_export, barrier_op);
	struct engine *engine = entry->engine;
	bool over = entry->barrier_found != STORE_BARRIER_CLOSED || entry->removed;
	uint64_t pause_ns = MAX(ENGINE_BARRIER_PAUSE_NS,
		engine->limits.handshake_timeout_ns / ENGINE_BARRIER_PAUSE_SHARE);
	struct list_node waiting;
	struct list_node *node;

	list_init(&waiting);
	list_move_all(&waiting, &entry->barred);
	/* A session that has to wait again, because leases have changed in the meantime, is not in
	 * this list. */
	while ((node = list_pop_front(&waiting)) != NULL) {
		struct session *session = list_entry(node, struct session, barred_node);

		if (over || has_waited_enough(session, ring_now_ns(engine->ring))) {
			if (entry->removed && session->chosen == NULL) {
				session_leave_export(session);
			}
			session->kind->resume(session);
		} else {
			list_push_back(&entry->barred, node);
		}
	}
	entry->watched &= !over && !engine->draining;
	if (!list_is_empty(&entry->barred) || entry->watched) {
		ring_timer(engine->ring, op, entry->barrier_pause_ns, barrier_again);
		entry->barrier_pause_ns = MIN(2 * entry->barrier_pause_ns, pause_ns);
		return;
	}
	entry->asking = false;
	engine->closing_count--;
	engine_export_leave(engine, entry);
}

static void barrier_again(struct ring_op *op, int result)
{
	struct engine_export *entry = container_of(op, struct engine_export, barrier_op);

	ring_call(entry->engine->ring, op, barrier_call, barrier_done);
}

/* Begins to check the barrier repeatedly, unless this is in progress. */
static void barrier_ask(struct engine_export *entry)
{
	if (!entry->asking) {
		entry->asking = true;
		entry->barrier_pause_ns = ENGINE_BARRIER_PAUSE_NS;
		entry->session_count++;
		entry->engine->closing_count++;
		ring_call(entry->engine->ring, &entry->barrier_op, barrier_call, barrier_done);
	}
}

bool engine_export_watch_barrier(struct engine_export *entry)
{
	bool closed = store_barrier(entry->path.store, false) == STORE_BARRIER_CLOSED;

	entry->watched = closed && !entry->engine->draining;
	if (entry->watched) {
		barrier_ask(entry);
	}
	return closed;
}

void engine_export_check(struct engine_export *entry)
{
	barrier_ask(entry);
}

int engine_export_barrier(struct engine_export *entry, struct session *session)
{
	return likely(!export_waits(entry->export) &&
		       store_barrier(entry->path.store, false) != STORE_BARRIER_CLOSED)
		       ? 0
		       : engine_export_wait(entry, session);
}

int engine_export_wait(struct engine_export *entry, struct session *session)
{
	struct engine *engine = session->engine;

	if (has_waited_enough(session, ring_now_ns(engine->ring))) {
		log_limited(session_log_limit(session), ring_batch_ns(engine->ring),
			LOG_LEVEL_WARNING, "client %s: gave up: " ENGINE_BARRIER_TEXT,
			session->peer.text);
		return -ETIMEDOUT;
	}
	list_push_back(&entry->barred, &session->barred_node);
	barrier_ask(entry);
	return -EAGAIN;
}

static void engine_export_tell(struct session *session, enum export_change change)
{
	if (session->kind->export_changed != NULL) {
		session->kind->export_changed(session, change);
	}
}

void engine_export_remove(struct engine *engine, struct export *export, uint64_t deadline_ns)
{
	uint32_t index = engine_export_index_of(engine, export);
	struct engine_export *entry;

	GMB_ASSERT(index < engine->export_count);
	entry = engine->exports[index];
	engine->export_count--;
	memmove(&engine->exports[index], &engine->exports[index + 1],
		(engine->export_count - index) * sizeof(struct engine_export *));
	entry->removed = true;
	if (entry->session_count == 0) {
		entry_free(engine, entry);
		return;
	}
	list_for_each(node, &engine->sessions)
	{
		struct session *session = list_entry(node, struct session, node);

		if (session->chosen == entry && session->state != SESSION_TERMINATING) {
			engine_export_tell(session, EXPORT_REMOVED);
			engine_stop_session(session, deadline_ns);
		}
	}
}

/* Returns the session of a list node, or NULL if it uses another export or is terminating. export
 * NULL: sessions of any export. */
static struct session *user_of(const struct export *export, struct list_node *node)
{
	struct session *session = list_entry(node, struct session, node);
	bool uses = export != NULL ? session->export == export : session->export != NULL;

	return uses && session->state != SESSION_TERMINATING ? session : NULL;
}

void engine_export_resized(struct engine *engine, const struct export *export)
{
	list_for_each(node, &engine->sessions)
	{
		struct session *session = user_of(export, node);

		if (session != NULL) {
			/* A session's size of the export never decreases. If the disk shrinks, a
			 * range that no longer exists is therefore not rejected as out of range;
			 * the store returns EIO. */
			session->export_bytes =
				MAX(session->export_bytes, store_size(export->store));
			engine_export_tell(session, EXPORT_RESIZED);
		}
	}
}

void engine_export_limits_changed(struct engine *engine, const struct export *export)
{
	uint32_t index = engine_export_index_of(engine, export);

	if (index < engine->export_count) {
		rate_queue_changed(&engine->exports[index]->rate);
		path_quota_set(&engine->exports[index]->memory, engine->path,
			export_quota_bytes(engine, export));
	}
}

void engine_identity_limits_changed(struct engine *engine)
{
	list_for_each(node, &engine->rate_identities)
	{
		struct engine_identity *entry = list_entry(node, struct engine_identity, node);

		rate_queue_changed(&entry->rate);
		path_quota_set(&entry->memory, engine->path,
			engine_quota_bytes(engine, rate_identity_memory(entry->identity)));
	}
}

uint32_t engine_export_rights(struct engine *engine, const struct export *export)
{
	uint32_t ended = 0;

	engine->rights_serial++;
	list_for_each(node, &engine->sessions)
	{
		struct session *session = user_of(export, node);
		uint32_t rights = session != NULL ? engine_rights(session, session->export) : 0;

		if (session == NULL || session->rights == rights) {
			continue;
		}
		session->rights = rights;
		if (rights == 0) {
			ended += !session->stopping;
			session_log(session, "has lost its access rights on");
			engine_stop_session(session, ENGINE_RIGHTS_STOP_NS);
		} else {
			session_log(session, "now has different access rights on");
			engine_export_tell(session, EXPORT_RIGHTS);
		}
	}
	return ended;
}

void engine_each_session(struct engine *engine,
	void (*look)(void *context, const struct session *session), void *context)
{
	list_for_each(node, &engine->sessions)
	{
		const struct session *session = list_entry(node, struct session, node);

		if (!session->stopping && session->state != SESSION_TERMINATING) {
			look(context, session);
		}
	}
}

struct engine_export *engine_export_find(struct engine *engine, const void *name, uint32_t bytes)
{
	for (uint32_t i = 0; i < engine->export_count; i++) {
		const struct export *export = engine->exports[i]->export;

		if (!engine->exports[i]->prepared && export->name_bytes == bytes &&
			memcmp(export->name, name, bytes) == 0) {
			return engine->exports[i];
		}
	}
	return NULL;
}

struct engine_export *engine_export_from(struct engine *engine, uint64_t serial)
{
	uint32_t from = 0;
	uint32_t to = engine->export_count;

	while (from < to) {
		uint32_t middle = from + (to - from) / 2;

		if (engine->exports[middle]->serial < serial) {
			from = middle + 1;
		} else {
			to = middle;
		}
	}
	while (from < engine->export_count && engine->exports[from]->prepared) {
		from++;
	}
	return from < engine->export_count ? engine->exports[from] : NULL;
}

const struct path_export *engine_export_measured(
	const struct engine *engine, const struct export *export)
{
	uint32_t index = engine_export_index_of(engine, export);

	return index < engine->export_count ? &engine->exports[index]->path : NULL;
}

const struct engine_export *engine_export_entry(
	const struct engine *engine, const struct export *export, uint32_t *hint_inout)
{
	uint32_t index = *hint_inout;

	if (index >= engine->export_count || engine->exports[index]->export != export) {
		index = engine_export_index_of(engine, export);
	}
	if (index == engine->export_count) {
		return NULL;
	}
	*hint_inout = index + 1;
	return engine->exports[index];
}
