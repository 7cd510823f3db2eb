// SPDX-License-Identifier: Apache-2.0
#include "engine/lease_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static const uint32_t lease_edges[LEASE_STATE_COUNT] = {
	[LEASE_HOLDS] = BIT(LEASE_LOST),
	[LEASE_PENDING] = BIT(LEASE_HOLDS) | BIT(LEASE_LOST),
	[LEASE_LOST] = 0,
};

void lease_holder_set_state(struct lease_holder *holder, enum lease_state state)
{
	GMB_ASSERT((lease_edges[holder->state] & BIT(state)) != 0);
	holder->state = state;
}

/* --- books and leases ------------------------------------------------------------------------- */

struct lease_book *lease_book_create(void)
{
	struct lease_book *book = calloc(1, sizeof(*book));

	if (book != NULL) {
		pthread_mutex_init(&book->lock, NULL);
		pthread_mutex_init(&book->record_lock, NULL);
		list_init(&book->leases);
	}
	return book;
}

void lease_book_set_desk(struct lease_book *book, const struct lease_desk *desk, bool is_outdated)
{
	book->desk = *desk;
	book->changes += is_outdated;
}

void lease_holder_changed(struct lease_holder *holder)
{
	struct lease_book *book = holder->lease->book;

	book->changes += holder->owner.is_named;
	holder->change = book->changes;
}

void lease_free_if_unused(struct lease *lease)
{
	if (lease->references == 0 && list_is_empty(&lease->holders)) {
		list_remove(&lease->node);
		free(lease->export);
		free(lease);
	}
}

void lease_holder_free(struct lease_holder *holder)
{
	lease_holder_changed(holder);
	list_remove(&holder->node);
	if (list_is_empty(&holder->lease->holders)) {
		holder->lease->offered_to[0] = '\0';
	}
	free(holder->connections);
	free(holder);
}

void lease_book_destroy(struct lease_book *book)
{
	struct list_node *entry;

	if (book == NULL) {
		return;
	}
	while ((entry = list_first(&book->leases)) != NULL) {
		struct lease *lease = list_entry(entry, struct lease, node);

		while ((entry = list_first(&lease->holders)) != NULL) {
			lease_holder_free(list_entry(entry, struct lease_holder, node));
		}
		lease->references = 0;
		lease_free_if_unused(lease);
	}
	pthread_mutex_destroy(&book->record_lock);
	pthread_mutex_destroy(&book->lock);
	free(book);
}

static struct lease *lease_find(struct lease_book *book, const char *export, uint32_t bytes)
{
	list_for_each(entry, &book->leases)
	{
		struct lease *lease = list_entry(entry, struct lease, node);

		if (lease->export_bytes == bytes && memcmp(lease->export, export, bytes) == 0) {
			return lease;
		}
	}
	return NULL;
}

/* Returns the lease of an export's name, which is created if there is none. NULL: no memory. */
static struct lease *lease_get(struct lease_book *book, const char *export, uint32_t bytes)
{
	struct lease *lease = lease_find(book, export, bytes);

	if (lease != NULL) {
		return lease;
	}
	lease = calloc(1, sizeof(*lease));
	if (lease != NULL) {
		lease->export = malloc(MAX(bytes, 1U));
	}
	if (lease == NULL || lease->export == NULL) {
		free(lease);
		return NULL;
	}
	memcpy(lease->export, export, bytes);
	lease->export_bytes = bytes;
	lease->book = book;
	list_init(&lease->holders);
	list_push_back(&book->leases, &lease->node);
	return lease;
}

int lease_attach(struct lease_book *book, struct export *export)
{
	struct lease *lease;

	if (book == NULL) {
		return 0;
	}
	pthread_mutex_lock(&book->lock);
	lease = atomic_load_explicit(&export->lease, memory_order_relaxed);
	if (lease == NULL) {
		lease = lease_get(book, export->name, export->name_bytes);
		if (lease != NULL) {
			lease->references++;
			/* Release order: pairs with the acquire in lease_of(). */
			atomic_store_explicit(&export->lease, lease, memory_order_release);
		}
	}
	pthread_mutex_unlock(&book->lock);
	return lease != NULL ? 0 : -ENOMEM;
}

struct lease *lease_of(const struct export *export)
{
	return atomic_load_explicit(&export->lease, memory_order_acquire);
}

void lease_detach(struct export *export)
{
	struct lease *lease = lease_of(export);
	struct lease_book *book = lease != NULL ? lease->book : NULL;

	if (lease != NULL) {
		pthread_mutex_lock(&book->lock);
		lease->references--;
		lease_free_if_unused(lease);
		pthread_mutex_unlock(&book->lock);
	}
}

void lease_expire(struct lease *lease, uint64_t now_ns)
{
	if (lease->book->held) {
		return;
	}
	list_for_each(entry, &lease->holders)
	{
		struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

		holder->connection_count = now_ns < holder->adopt_ns ? holder->connection_count : 0;
		if (holder->session_count == 0 && now_ns >= holder->expires_ns) {
			log_info("the lease of %s has expired", holder->name);
			lease_holder_free(holder);
		}
	}
}

/* --- owners ----------------------------------------------------------------------------------- */

static bool owner_same(const struct lease_owner *a, const struct lease_owner *b)
{
	return a->is_named == b->is_named && a->pid == b->pid &&
	       memcmp(a->id, b->id, sizeof(a->id)) == 0 &&
	       memcmp(&a->principal, &b->principal, sizeof(a->principal)) == 0 &&
	       memcmp(a->address, b->address, sizeof(a->address)) == 0;
}

struct lease_holder *lease_holder_of(const struct lease *lease, const struct lease_owner *owner)
{
	list_for_each(entry, &lease->holders)
	{
		struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

		if (owner_same(&holder->owner, owner)) {
			return holder;
		}
	}
	return NULL;
}

/* Returns whether the holder excludes no other client. Otherwise clients that may only read could
 * keep writers out when they have gone. After an upgrade, its sessions may not be adopted yet. */
static bool holder_yields(const struct lease_holder *holder)
{
	return holder->is_reader && holder->session_count == 0 && holder->connection_count == 0;
}

static bool is_in_conflict(const struct lease_holder *holder, enum lease_mode mode)
{
	return holder->state != LEASE_LOST && !holder_yields(holder) &&
	       (mode == LEASE_EXCLUSIVE || holder->mode == LEASE_EXCLUSIVE);
}

/* Returns whether the holder keeps its lease when a new holder, which can preempt, gets one. */
static bool holder_stays(const struct lease_holder *holder, enum lease_mode mode, bool preempts)
{
	return holder->state != LEASE_LOST && !(mode == LEASE_EXCLUSIVE && holder_yields(holder)) &&
	       !(preempts && is_in_conflict(holder, mode));
}

struct lease_holder *lease_holder_add(
	struct lease *lease, const struct lease_owner *owner, enum lease_mode mode, bool preempts)
{
	struct lease_holder *holder;
	uint32_t count = 0;

	list_for_each(entry, &lease->holders)
	{
		count += holder_stays(list_entry(entry, struct lease_holder, node), mode, preempts);
	}
	holder = count < LEASE_HOLDERS_MAX ? calloc(1, sizeof(*holder)) : NULL;
	if (holder != NULL) {
		holder->lease = lease;
		holder->owner = *owner;
		holder->mode = mode;
		list_init(&holder->sessions);
		list_push_back(&lease->holders, &holder->node);
	}
	return holder;
}

struct lease_holder *lease_find_conflict(
	const struct lease *lease, enum lease_mode mode, const struct lease_holder *self)
{
	list_for_each(entry, &lease->holders)
	{
		struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

		if (holder != self && is_in_conflict(holder, mode)) {
			return holder;
		}
	}
	return NULL;
}

bool lease_is_losing(const struct lease *lease)
{
	list_for_each(entry, &lease->holders)
	{
		const struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

		if (holder->state == LEASE_LOST && holder->granted) {
			return true;
		}
	}
	return false;
}

/* --- loss ------------------------------------------------------------------------------------- */

static void holder_lose(struct lease_holder *holder, const char *reason)
{
	char export[FENCE_NAME_BYTES];

	log_escape(export, sizeof(export), holder->lease->export, holder->lease->export_bytes);
	log_warning(
		"client %s has lost its lease of export \"%s\": %s", holder->name, export, reason);
	lease_holder_set_state(holder, LEASE_LOST);
	lease_holder_changed(holder);
	list_for_each(entry, &holder->sessions)
	{
		/* Otherwise the session waits for the lease, and is refused when it tries again. */
		if (holder->granted) {
			takeover_end(&list_entry(entry, struct session, lease_node)->member);
		}
	}
	if (holder->session_count == 0) {
		lease_holder_free(holder);
	}
}

void lease_lose_others(struct lease *lease, enum lease_mode mode, const struct lease_holder *self,
	const char *reason)
{
	struct lease_holder *holder;

	while ((holder = lease_find_conflict(lease, mode, self)) != NULL) {
		holder_lose(holder, reason);
	}
}

void lease_lose_readers(struct lease *lease)
{
	list_for_each(entry, &lease->holders)
	{
		struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

		if (holder_yields(holder)) {
			holder_lose(holder, "it may only read, and was not connected");
		}
	}
}

/* --- the record ------------------------------------------------------------------------------- */

int lease_book_record(struct lease_book *book)
{
	uint64_t changes;
	bool is_needed;
	int rc = 0;

	pthread_mutex_lock(&book->record_lock);
	pthread_mutex_lock(&book->lock);
	changes = book->changes;
	is_needed = book->desk.record != NULL && !book->held && changes > book->recorded;
	pthread_mutex_unlock(&book->lock);
	if (is_needed) {
		rc = book->desk.record(book->desk.context, book);
	}
	if (is_needed && rc == 0) {
		pthread_mutex_lock(&book->lock);
		book->recorded = changes;
		pthread_mutex_unlock(&book->lock);
	}
	pthread_mutex_unlock(&book->record_lock);
	return rc;
}

bool lease_holder_is_recorded(const struct lease_holder *holder)
{
	const struct lease_book *book = holder->lease->book;

	return book->desk.record == NULL || holder->change <= book->recorded;
}

/* Returns whether a holder of the lease waits to be recorded. Not if only other exports have such
 * holders: clients that wait for something else need not wait for these. */
static bool is_unrecorded(const struct lease *lease)
{
	list_for_each(entry, &lease->holders)
	{
		if (!lease_holder_is_recorded(list_entry(entry, struct lease_holder, node))) {
			return true;
		}
	}
	return false;
}

bool lease_waits(const struct export *export)
{
	struct lease *lease = lease_of(export);
	bool waits;

	if (lease == NULL) {
		return false;
	}
	(void)!lease_book_record(lease->book);
	pthread_mutex_lock(&lease->book->lock);
	waits = lease_is_losing(lease) || is_unrecorded(lease) || lease->book->held;
	pthread_mutex_unlock(&lease->book->lock);
	return waits;
}

static struct lease_view describe_holder(const struct lease_holder *holder, uint64_t now_ns,
	const uint64_t *connections, uint32_t connection_count)
{
	uint64_t left_ns = holder->expires_ns > now_ns ? holder->expires_ns - now_ns : 0;

	return (struct lease_view){
		.export = holder->lease->export,
		.export_bytes = holder->lease->export_bytes,
		.owner = holder->owner,
		.mode = holder->mode,
		.state = holder->state,
		.ms = holder->ms,
		.is_reader = holder->is_reader,
		.left_ms = holder->session_count > 0 ? UINT32_MAX
						     : (uint32_t)(left_ns / UINT64_C(1000000)),
		.name = holder->name,
		.node = holder->node_name,
		.offered_to = holder->lease->offered_to,
		.connections = connections,
		.connection_count = connection_count,
	};
}

static int look_at(const struct lease_holder *holder, uint64_t now_ns,
	int (*look)(void *context, const struct lease_view *view), void *context)
{
	uint64_t *ids = calloc(MAX(holder->session_count, 1U), sizeof(*ids));
	struct lease_view view;
	uint32_t count = 0;
	int rc;

	if (ids == NULL) {
		return -ENOMEM;
	}
	list_for_each(entry, &holder->sessions)
	{
		ids[count++] = list_entry(entry, struct session, lease_node)->peer.id;
	}
	view = describe_holder(holder, now_ns, ids, count);
	rc = look(context, &view);
	free(ids);
	return rc;
}

int lease_book_each(struct lease_book *book, uint64_t now_ns,
	int (*look)(void *context, const struct lease_view *view), void *context)
{
	int rc = 0;

	pthread_mutex_lock(&book->lock);
	list_for_each(entry, &book->leases)
	{
		struct lease *lease = list_entry(entry, struct lease, node);

		lease_expire(lease, now_ns);
		list_for_each(node, &lease->holders)
		{
			rc = rc
				     ?: look_at(list_entry(node, struct lease_holder, node), now_ns,
						look, context);
		}
	}
	pthread_mutex_unlock(&book->lock);
	return rc;
}

static int restore_locked(struct lease_book *book, const struct lease_view *view, uint64_t now_ns)
{
	struct lease *lease = lease_get(book, view->export, view->export_bytes);
	uint32_t adopt_ms = view->connection_count > 0 ? LEASE_ADOPT_MS : 0;
	bool is_new = lease != NULL && lease_holder_of(lease, &view->owner) == NULL;
	struct lease_holder *holder =
		is_new ? lease_holder_add(lease, &view->owner, view->mode, false) : NULL;

	if (holder == NULL) {
		return lease == NULL ? -ENOMEM : -EINVAL;
	}
	holder->state = view->state; /* its first state */
	holder->granted = true;
	lease->granted |= BIT(view->mode);
	holder->ms = view->ms;
	holder->is_reader = view->is_reader;
	/* It gets all of its time, because it could not come while no server was there. Its
	 * sessions are adopted by several reactors, one of which can serve other clients before. */
	holder->expires_ns = now_ns + MAX(view->ms, adopt_ms) * UINT64_C(1000000);
	holder->adopt_ns = now_ns + adopt_ms * UINT64_C(1000000);
	snprintf(holder->name, sizeof(holder->name), "%s", view->name);
	snprintf(holder->node_name, sizeof(holder->node_name), "%s", view->node);
	snprintf(lease->offered_to, sizeof(lease->offered_to), "%s", view->offered_to);
	holder->connections = calloc(MAX(view->connection_count, 1U), sizeof(uint64_t));
	if (holder->connections == NULL) {
		lease_holder_free(holder);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < view->connection_count; i++) {
		holder->connections[holder->connection_count++] = view->connections[i];
	}
	return 0;
}

int lease_book_restore(struct lease_book *book, const struct lease_view *view, uint64_t now_ns)
{
	int rc;

	if (view->mode == LEASE_NONE || view->state >= LEASE_LOST || view->ms > LEASE_MS_MAX) {
		return -EINVAL;
	}
	pthread_mutex_lock(&book->lock);
	rc = restore_locked(book, view, now_ns);
	pthread_mutex_unlock(&book->lock);
	return rc;
}

void lease_book_hold(struct lease_book *book)
{
	/* Waits for lease_desk.record(), if it is being called. */
	pthread_mutex_lock(&book->record_lock);
	pthread_mutex_lock(&book->lock);
	book->held = true;
	pthread_mutex_unlock(&book->lock);
	pthread_mutex_unlock(&book->record_lock);
}

void lease_book_go_on(struct lease_book *book)
{
	pthread_mutex_lock(&book->lock);
	book->held = false;
	pthread_mutex_unlock(&book->lock);
}

/* --- commands --------------------------------------------------------------------------------- */

int lease_book_offer(struct lease_book *book, const char *export, uint32_t export_bytes,
	const char *node, uint64_t now_ns)
{
	struct lease *lease;
	int rc;

	pthread_mutex_lock(&book->lock);
	rc = book->held ? -EAGAIN : -ESRCH;
	lease = book->held ? NULL : lease_find(book, export, export_bytes);
	if (lease != NULL) {
		lease_expire(lease, now_ns);
		if (lease_find_conflict(lease, LEASE_EXCLUSIVE, NULL) != NULL) {
			snprintf(lease->offered_to, sizeof(lease->offered_to), "%s", node);
			rc = 0;
		}
	}
	pthread_mutex_unlock(&book->lock);
	return rc;
}

int lease_book_release(struct lease_book *book, const char *export, uint32_t export_bytes,
	const char *node, uint64_t now_ns)
{
	struct lease *lease;
	int rc = -EAGAIN;
	int count = 0;

	pthread_mutex_lock(&book->lock);
	lease = book->held ? NULL : lease_find(book, export, export_bytes);
	if (lease != NULL) {
		lease_expire(lease, now_ns);
		list_for_each(entry, &lease->holders)
		{
			struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

			if (holder->state != LEASE_LOST &&
				(node[0] == '\0' || strcmp(holder->node_name, node) == 0)) {
				count++;
				holder_lose(holder, "an administrator has ended it");
			}
		}
		if (node[0] == '\0' || strcmp(lease->offered_to, node) == 0) {
			count += lease->offered_to[0] != '\0';
			lease->offered_to[0] = '\0';
		}
		lease_free_if_unused(lease);
	}
	if (!book->held) {
		rc = count > 0 ? count : -ESRCH;
	}
	pthread_mutex_unlock(&book->lock);
	return rc;
}
