// SPDX-License-Identifier: Apache-2.0
#include "engine/lease.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct lease {
	struct list_node node; /* in book->leases */
	struct lease_book *book;
	char *export; /* not terminated */
	uint32_t export_bytes;
	uint32_t references; /* exports */
	struct list_node holders;
	uint32_t granted; /* BIT(enum lease_mode): what clients have had at this server */
	char offered_to[FENCE_NAME_BYTES];
};

struct lease_holder {
	struct list_node node; /* in lease->holders */
	struct lease *lease;
	struct lease_owner owner;
	enum lease_mode mode;
	enum lease_state state;
	bool granted;	     /* a session has got the lease */
	bool is_reader;	     /* its client has no right to write */
	uint64_t change;     /* number of the change that must be recorded before that */
	uint32_t ms;	     /* see lease_view */
	uint64_t expires_ns; /* valid without sessions */
	struct list_node sessions;
	uint32_t session_count;
	uint64_t *connections; /* peer.previous_id of the sessions to be adopted */
	uint32_t connection_count;
	char name[LEASE_NAME_BYTES];
	char node_name[FENCE_NAME_BYTES];
};

struct lease_book {
	pthread_mutex_t lock;	     /* protects all members, and all leases and holders */
	pthread_mutex_t record_lock; /* held during lease_desk.record() */
	struct list_node leases;
	struct lease_desk desk;
	uint64_t changes;  /* number of changes of named holders */
	uint64_t recorded; /* number of recorded changes */
	bool held;
};

static const uint32_t lease_edges[LEASE_STATE_COUNT] = {
	[LEASE_HOLDS] = BIT(LEASE_LOST),
	[LEASE_PENDING] = BIT(LEASE_HOLDS) | BIT(LEASE_LOST),
	[LEASE_LOST] = 0,
};

static void holder_set_state(struct lease_holder *holder, enum lease_state state)
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

/* Notes that the record of leases has to change. The holder waits for all changes so far. A holder
 * without a name is not in the record, but must not write before the loss of an earlier holder is
 * recorded. */
static void book_change(struct lease_book *book, struct lease_holder *holder)
{
	book->changes += holder->owner.is_named;
	holder->change = book->changes;
}

static void lease_free_if_unused(struct lease *lease)
{
	if (lease->references == 0 && list_is_empty(&lease->holders)) {
		list_remove(&lease->node);
		free(lease->export);
		free(lease);
	}
}

static void holder_free(struct lease_holder *holder)
{
	book_change(holder->lease->book, holder);
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
			holder_free(list_entry(entry, struct lease_holder, node));
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

static struct lease *lease_of(const struct export *export)
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

/* Removes the holders whose time without a session is over. None while another process gets the
 * holders: it gives them their full time again, and receives their indices. */
static void lease_expire(struct lease *lease, uint64_t now_ns)
{
	if (lease->book->held) {
		return;
	}
	list_for_each(entry, &lease->holders)
	{
		struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

		if (holder->session_count == 0 && now_ns >= holder->expires_ns) {
			log_info("the lease of %s has expired", holder->name);
			holder_free(holder);
		}
	}
}

/* --- owners ----------------------------------------------------------------------------------- */

static struct lease_owner owner_of(const struct session *session)
{
	const struct peer *peer = &session->peer;
	struct lease_owner owner = {
		.is_named = session->lease_want.mode != LEASE_NONE,
		.principal = session->member.principal,
	};

	if (owner.is_named) {
		memcpy(owner.id, session->lease_want.id, sizeof(owner.id));
		return owner;
	}
	if (peer->has_address) {
		memcpy(owner.address, peer->address, sizeof(owner.address));
	}
	owner.pid = peer->has_credentials ? (int32_t)peer->credentials.pid : 0;
	return owner;
}

static bool owner_same(const struct lease_owner *a, const struct lease_owner *b)
{
	return a->is_named == b->is_named && a->pid == b->pid &&
	       memcmp(a->id, b->id, sizeof(a->id)) == 0 &&
	       memcmp(&a->principal, &b->principal, sizeof(a->principal)) == 0 &&
	       memcmp(a->address, b->address, sizeof(a->address)) == 0;
}

static struct lease_holder *holder_of(const struct lease *lease, const struct lease_owner *owner)
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

/* Returns the holder to which this connection of a previous process belonged, or NULL. */
static struct lease_holder *holder_of_connection(const struct lease *lease, uint64_t id)
{
	list_for_each(entry, &lease->holders)
	{
		struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

		for (uint32_t i = 0; i < holder->connection_count; i++) {
			if (holder->connections[i] == id) {
				return holder;
			}
		}
	}
	return NULL;
}

static struct lease_holder *holder_add(
	struct lease *lease, const struct lease_owner *owner, enum lease_mode mode)
{
	struct lease_holder *holder = NULL;
	uint32_t count = 0;

	list_for_each(entry, &lease->holders)
	{
		count += list_entry(entry, struct lease_holder, node)->state != LEASE_LOST;
	}
	if (count < LEASE_HOLDERS_MAX) {
		holder = calloc(1, sizeof(*holder));
	}
	if (holder != NULL) {
		holder->lease = lease;
		holder->owner = *owner;
		holder->mode = mode;
		list_init(&holder->sessions);
		list_push_back(&lease->holders, &holder->node);
	}
	return holder;
}

static int refuse(struct session *session, const char *format, ...) GMB_PRINTF(2, 3);

/* A session becomes one of the holder's. Returns 0, or -EACCES with session->lease_text. */
static int holder_join(struct lease_holder *holder, struct session *session, struct export *export)
{
	if (holder->session_count >= LEASE_SESSIONS_MAX) {
		return refuse(session, LEASE_REFUSAL "a lease has at most %d connections",
			LEASE_SESSIONS_MAX);
	}
	session->lease_holder = holder;
	list_push_back(&holder->sessions, &session->lease_node);
	holder->session_count++;
	session_takeover_enter(session, export);
	return 0;
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

/* Returns a holder because of which `self`, which can be NULL, cannot have a lease of this mode, or
 * NULL. */
static struct lease_holder *find_conflict(
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

/* Returns whether operations of a holder that has lost the lease can be in progress. One that never
 * got the lease has none. */
static bool is_losing(const struct lease *lease)
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
	holder_set_state(holder, LEASE_LOST);
	book_change(holder->lease->book, holder);
	list_for_each(entry, &holder->sessions)
	{
		/* Otherwise the session waits for the lease, and is refused when it tries again. */
		if (holder->granted) {
			takeover_end(&list_entry(entry, struct session, lease_node)->member);
		}
	}
	if (holder->session_count == 0) {
		holder_free(holder);
	}
}

/* All holders but self lose their leases, as far as they conflict with this mode. */
static void lose_others(struct lease *lease, enum lease_mode mode, const struct lease_holder *self,
	const char *reason)
{
	struct lease_holder *holder;

	while ((holder = find_conflict(lease, mode, self)) != NULL) {
		holder_lose(holder, reason);
	}
}

/* Ends the leases of clients that may only read and are not connected, for an exclusive one. */
static void lose_readers(struct lease *lease)
{
	list_for_each(entry, &lease->holders)
	{
		struct lease_holder *holder = list_entry(entry, struct lease_holder, node);

		if (holder_yields(holder)) {
			holder_lose(holder, "it may only read, and was not connected");
		}
	}
}

/* --- taking a lease --------------------------------------------------------------------------- */

static int refuse(struct session *session, const char *format, ...)
{
	char text[LEASE_TEXT_BYTES];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	free(session->lease_text);
	session->lease_text = strdup(text);
	log_limited(session_log_limit(session), ring_batch_ns(session->engine->ring),
		LOG_LEVEL_WARNING, "client %s: no lease: %s", session->peer.text,
		text + strlen(LEASE_REFUSAL));
	return -EACCES;
}

/* Formats how a holder has the lease, and who it is. */
static const char *holder_text(
	const struct lease_holder *holder, uint64_t now_ns, char out[LEASE_TEXT_BYTES / 2])
{
	uint64_t left_ns = holder->session_count == 0 ? holder->expires_ns - now_ns : 0;
	bool has_node = holder->node_name[0] != '\0';
	int used;

	used = snprintf(out, LEASE_TEXT_BYTES / 2, "%.120s%s%s%s has %s lease", holder->name,
		has_node ? " (node '" : "", holder->node_name, has_node ? "')" : "",
		holder->mode == LEASE_EXCLUSIVE ? "the exclusive" : "a shared");
	if (holder->session_count == 0 && used > 0 && used < LEASE_TEXT_BYTES / 2) {
		snprintf(out + used, (size_t)(LEASE_TEXT_BYTES / 2 - used),
			"; it is not connected, and its lease ends in %llu s",
			(unsigned long long)(left_ns / UINT64_C(1000000000) + 1));
	}
	return out;
}

static int refuse_for(struct session *session, const struct lease_holder *other, uint64_t now_ns)
{
	char text[LEASE_TEXT_BYTES / 2];

	return refuse(session, LEASE_REFUSAL "%s", holder_text(other, now_ns, text));
}

static int refuse_lost(struct session *session, const struct lease *lease, uint64_t now_ns)
{
	const struct lease_holder *other = find_conflict(lease, LEASE_EXCLUSIVE, NULL);
	char text[LEASE_TEXT_BYTES / 2];

	return refuse(session, LEASE_REFUSAL "this client has lost its lease%s%s",
		other != NULL ? "; " : "", other != NULL ? holder_text(other, now_ns, text) : "");
}

/* Adds a holder for a session without a lease. node: the node of its peer, or "". */
static int holder_begin(struct lease *lease, struct session *session,
	const struct lease_owner *owner, const char *node, uint64_t now_ns)
{
	const struct lease_want *want = &session->lease_want;
	enum lease_mode mode = owner->is_named ? want->mode : LEASE_EXCLUSIVE;
	struct lease_holder *other = find_conflict(lease, mode, NULL);
	char name[LEASE_NAME_BYTES];
	char shown[LEASE_NAME_BYTES];
	bool is_offered =
		mode == LEASE_EXCLUSIVE && node[0] != '\0' && strcmp(lease->offered_to, node) == 0;
	struct lease_holder *holder;

	if (other != NULL && !want->preempt && !is_offered) {
		return refuse_for(session, other, now_ns);
	}
	session_name(session, name, sizeof(name));
	log_escape(shown, sizeof(shown), name, strlen(name));
	if (want->preempt) {
		char reason[LEASE_NAME_BYTES + 64];

		snprintf(reason, sizeof(reason), "%s has taken it (--preempt)", shown);
		lose_others(lease, mode, NULL, reason);
	}
	if (mode == LEASE_EXCLUSIVE) {
		lose_readers(lease);
	}
	holder = holder_add(lease, owner, mode);
	if (holder == NULL) {
		return refuse(session,
			LEASE_REFUSAL "the server is out of memory, or the export has more than %d "
				      "leases",
			LEASE_HOLDERS_MAX - 1);
	}
	holder->ms = want->ms;
	memcpy(holder->name, shown, sizeof(holder->name));
	snprintf(holder->node_name, sizeof(holder->node_name), "%s", node);
	if (other != NULL && !want->preempt) {
		holder->state = LEASE_PENDING; /* its first state, like LEASE_HOLDS */
	}
	book_change(lease->book, holder);
	return 0;
}

static bool holder_is_recorded(const struct lease_holder *holder)
{
	const struct lease_book *book = holder->lease->book;

	return book->desk.record == NULL || holder->change <= book->recorded;
}

/* Returns 0 if the session can have what its holder has, or -EAGAIN. */
static int holder_settle(struct lease_holder *holder)
{
	if ((holder->state == LEASE_HOLDS && is_losing(holder->lease)) ||
		!holder_is_recorded(holder)) {
		return -EAGAIN;
	}
	holder->granted = true;
	holder->lease->granted |= BIT(holder->mode);
	return 0;
}

/* Removes the session from its holder, and the holder if it is no longer needed. */
static void leave_locked(struct session *session, uint64_t now_ns)
{
	struct lease_holder *holder = session->lease_holder;
	struct lease *lease = holder->lease;
	bool is_over = holder->state == LEASE_LOST || !holder->owner.is_named || !holder->granted ||
		       session->lease_done;

	list_remove(&session->lease_node);
	session->lease_holder = NULL;
	holder->session_count--;
	if (holder->session_count > 0 || session->handed_over) {
		return;
	}
	holder->expires_ns = is_over ? now_ns : now_ns + holder->ms * UINT64_C(1000000);
	/* While another process receives the holders, their indices must not change. */
	if (is_over && !lease->book->held) {
		holder_free(holder);
		lease_free_if_unused(lease);
	}
}

/* Returns whether a client that has had the lease, and is not a holder, must not get it again,
 * because another client can have changed the disk since then. */
static bool comes_too_late(const struct lease *lease, const struct lease_want *want)
{
	uint32_t conflicts = want->mode == LEASE_SHARED ? BIT(LEASE_EXCLUSIVE) : UINT32_MAX;

	return want->renew || (want->moves && (lease->granted & conflicts) != 0);
}

static int take_locked(struct lease *lease, struct session *session, struct export *export,
	bool is_reader, const char *node, uint64_t now_ns)
{
	struct lease_owner owner = owner_of(session);
	struct lease_holder *holder = session->lease_holder;
	int rc = 0;

	lease_expire(lease, now_ns);
	if (holder != NULL) { /* another attempt, after waiting */
		return holder->state == LEASE_LOST ? refuse_lost(session, lease, now_ns)
						   : holder_settle(holder);
	}
	if (lease->book->held) {
		return -EAGAIN;
	}
	holder = holder_of(lease, &owner);
	if (holder == NULL && comes_too_late(lease, &session->lease_want)) {
		return refuse_lost(session, lease, now_ns);
	}
	if (holder == NULL) {
		rc = holder_begin(lease, session, &owner, node, now_ns);
		holder = rc == 0 ? holder_of(lease, &owner) : NULL;
	}
	if (rc == 0 && holder->state == LEASE_LOST) {
		rc = refuse_lost(session, lease, now_ns);
	}
	if (rc == 0 && holder->mode != session->lease_want.mode) {
		rc = refuse(
			session, LEASE_REFUSAL "this client already has a lease of another kind");
	}
	if (rc == 0 && holder->is_reader != is_reader) {
		holder->is_reader = is_reader;
		book_change(lease->book, holder);
	}
	if (rc == 0) {
		rc = holder_join(holder, session, export);
	}
	return rc < 0 ? rc : holder_settle(holder);
}

/* Makes a session that another process had one of its holder's again. */
static void rejoin_locked(struct lease *lease, struct session *session, struct export *export)
{
	struct lease_holder *holder = holder_of_connection(lease, session->peer.previous_id);

	if (holder != NULL && holder->state != LEASE_LOST &&
		holder_join(holder, session, export) == 0) {
		holder->granted = true;
	}
}

/* Sets whether changes of the session need session_lease_admit(). */
static void set_checked(struct session *session, const struct export *export)
{
	const struct lease_holder *holder = session->lease_holder;

	session->lease_checked =
		holder != NULL ? holder->state == LEASE_PENDING : export->one_writer;
}

int session_lease_take(struct session *session, struct export *export, uint32_t rights)
{
	struct lease *lease = lease_of(export);
	uint64_t now_ns = ring_now_ns(session->engine->ring);
	bool wants = session->lease_want.mode != LEASE_NONE;
	bool is_reader = (rights & ENGINE_RIGHT_WRITE) == 0;
	char node[FENCE_NAME_BYTES];
	int rc = 0;

	if (lease == NULL) {
		return wants ? refuse(session, LEASE_REFUSAL "the server has no leases") : 0;
	}
	if (is_reader &&
		(session->lease_want.mode == LEASE_EXCLUSIVE || session->lease_want.preempt)) {
		return refuse(session, LEASE_REFUSAL "the client has no right to write");
	}
	if (session->lease_want.mode == LEASE_SHARED && export->one_writer) {
		return refuse(session,
			LEASE_REFUSAL "the export has writers=one, so only exclusive leases are "
				      "possible");
	}
	session_node_name(session, node);
	pthread_mutex_lock(&lease->book->lock);
	if (wants) {
		rc = take_locked(lease, session, export, is_reader, node, now_ns);
	} else if (session->lease_holder == NULL && session->peer.previous_id != 0) {
		rejoin_locked(lease, session, export);
	}
	if (rc == 0) {
		set_checked(session, export);
	}
	pthread_mutex_unlock(&lease->book->lock);
	return rc;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* The session wants to write and has no permission yet. Returns 0 if it has it now, -EAGAIN, or
 * -EACCES. */
static int admit_locked(
	struct lease *lease, struct session *session, const char *node, uint64_t now_ns)
{
	struct lease_owner owner = owner_of(session);
	struct lease_holder *holder = session->lease_holder;
	int rc = 0;

	lease_expire(lease, now_ns);
	if (lease->book->held) {
		return -EAGAIN;
	}
	if (holder == NULL) {
		holder = holder_of(lease, &owner);
		rc = holder == NULL ? holder_begin(lease, session, &owner, node, now_ns) : 0;
		holder = rc == 0 ? holder_of(lease, &owner) : NULL;
		if (holder == NULL) {
			return rc;
		}
		if (holder->state == LEASE_LOST) {
			return -EAGAIN; /* its own earlier sessions have not ended */
		}
		rc = holder_join(holder, session, session->export);
		if (rc < 0) {
			return rc;
		}
	}
	if (holder->state == LEASE_PENDING) {
		char reason[LEASE_NAME_BYTES + 64];

		snprintf(reason, sizeof(reason), "it was offered, and %s has begun to write",
			holder->name);
		holder_set_state(holder, LEASE_HOLDS);
		lose_others(lease, LEASE_EXCLUSIVE, holder, reason);
		book_change(lease->book, holder);
		lease->offered_to[0] = '\0';
	}
	if (holder->state == LEASE_LOST) {
		leave_locked(session, now_ns); /* it has changed nothing, so it does not end */
		return -EACCES;
	}
	return holder_settle(holder);
}

bool session_lease_admit(struct session *session)
{
	struct lease *lease = lease_of(session->export);
	char node[FENCE_NAME_BYTES];
	int rc;

	if (lease == NULL) { /* without a book there are no leases */
		session->lease_checked = false;
	}
	if (lease == NULL || (session->rights & ENGINE_RIGHT_WRITE) == 0) {
		return true; /* session_admit() refuses the change, so it takes no lease */
	}
	session_node_name(session, node);
	pthread_mutex_lock(&lease->book->lock);
	rc = admit_locked(lease, session, node, ring_now_ns(session->engine->ring));
	pthread_mutex_unlock(&lease->book->lock);
	if (rc == -EAGAIN) {
		return engine_export_wait(session->chosen, session) != -EAGAIN;
	}
	session->lease_checked = rc != 0;
	return true;
}

/* --- the end ---------------------------------------------------------------------------------- */

void session_lease_give_up(struct session *session)
{
	struct lease_book *book;

	if (session->lease_holder != NULL) {
		book = session->lease_holder->lease->book;
		pthread_mutex_lock(&book->lock);
		leave_locked(session, ring_now_ns(session->engine->ring));
		pthread_mutex_unlock(&book->lock);
	}
}

void session_lease_leave(struct session *session)
{
	bool had = session->lease_holder != NULL && session->lease_holder->owner.is_named;

	session_lease_give_up(session);
	free(session->lease_text);
	session->lease_text = NULL;
	if (had && session->chosen != NULL && !session->handed_over) {
		engine_export_check(session->chosen);
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

/* Returns whether a holder of the lease waits to be recorded. Not if only other exports have such
 * holders: clients that wait for something else need not wait for these. */
static bool is_unrecorded(const struct lease *lease)
{
	list_for_each(entry, &lease->holders)
	{
		if (!holder_is_recorded(list_entry(entry, struct lease_holder, node))) {
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
	waits = is_losing(lease) || is_unrecorded(lease) || lease->book->held;
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
	struct lease_holder *holder = NULL;

	if (lease != NULL && holder_of(lease, &view->owner) == NULL) {
		holder = holder_add(lease, &view->owner, view->mode);
	}
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
	snprintf(holder->name, sizeof(holder->name), "%s", view->name);
	snprintf(holder->node_name, sizeof(holder->node_name), "%s", view->node);
	snprintf(lease->offered_to, sizeof(lease->offered_to), "%s", view->offered_to);
	if (view->connection_count > 0) {
		holder->connections = calloc(view->connection_count, sizeof(uint64_t));
		if (holder->connections == NULL) {
			holder_free(holder);
			return -ENOMEM;
		}
		holder->connection_count = view->connection_count;
		memcpy(holder->connections, view->connections,
			view->connection_count * sizeof(uint64_t));
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
		if (find_conflict(lease, LEASE_EXCLUSIVE, NULL) != NULL) {
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
