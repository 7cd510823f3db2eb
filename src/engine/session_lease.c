// SPDX-License-Identifier: Apache-2.0
/* How sessions take leases, use them and leave them. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/lease_private.h"

/* --- holders ---------------------------------------------------------------------------------- */

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

static int refuse(struct session *session, const char *format, ...) GMB_PRINTF(2, 3);

/* Sets session->lease_text. Returns -EACCES. */
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

/* --- taking a lease --------------------------------------------------------------------------- */

/* Formats how a holder has the lease, and who it is. */
static const char *holder_text(
	const struct lease_holder *holder, uint64_t now_ns, char out[LEASE_TEXT_BYTES / 2])
{
	uint64_t left_ns = holder->session_count == 0 ? holder->expires_ns - now_ns : 0;
	bool has_node = holder->node_name[0] != '\0';
	int used;

	used = snprintf(out, LEASE_TEXT_BYTES / 2, "%.120s%s%s%s has %s lease", holder->name,
		has_node ? " of node '" : "", holder->node_name, has_node ? "'" : "",
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
	const struct lease_holder *other = lease_find_conflict(lease, LEASE_EXCLUSIVE, NULL);
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
	struct lease_holder *other = lease_find_conflict(lease, mode, NULL);
	char name[LEASE_NAME_BYTES];
	char shown[LEASE_NAME_BYTES];
	bool is_offered =
		mode == LEASE_EXCLUSIVE && node[0] != '\0' && strcmp(lease->offered_to, node) == 0;
	struct lease_holder *holder;

	if (other != NULL && !want->preempt && !is_offered) {
		return refuse_for(session, other, now_ns);
	}
	/* Allocated before others lose their leases: without memory, they keep them. */
	holder = lease_holder_add(lease, owner, mode, want->preempt);
	if (holder == NULL) {
		return refuse(session,
			LEASE_REFUSAL "the server is out of memory, or the export has more than %d "
				      "leases",
			LEASE_HOLDERS_MAX - 1);
	}
	session_name(session, name, sizeof(name));
	log_escape(shown, sizeof(shown), name, strlen(name));
	if (want->preempt) {
		char reason[LEASE_NAME_BYTES + 64];

		snprintf(reason, sizeof(reason), "%s has taken it (--preempt)", shown);
		lease_lose_others(lease, mode, holder, reason);
	}
	if (mode == LEASE_EXCLUSIVE) {
		lease_lose_readers(lease);
	}
	holder->ms = want->ms;
	memcpy(holder->name, shown, sizeof(holder->name));
	snprintf(holder->node_name, sizeof(holder->node_name), "%s", node);
	if (other != NULL && !want->preempt) {
		holder->state = LEASE_PENDING; /* its first state, like LEASE_HOLDS */
	}
	lease_holder_changed(holder);
	return 0;
}

/* Returns 0 if the session can have what its holder has, or -EAGAIN. */
static int holder_settle(struct lease_holder *holder)
{
	if ((holder->state == LEASE_HOLDS && lease_is_losing(holder->lease)) ||
		!lease_holder_is_recorded(holder)) {
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
		lease_holder_free(holder);
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
	holder = lease_holder_of(lease, &owner);
	if (holder == NULL && comes_too_late(lease, &session->lease_want)) {
		return refuse_lost(session, lease, now_ns);
	}
	if (holder == NULL) {
		rc = holder_begin(lease, session, &owner, node, now_ns);
		holder = rc == 0 ? lease_holder_of(lease, &owner) : NULL;
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
		lease_holder_changed(holder);
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
		holder = lease_holder_of(lease, &owner);
		rc = holder == NULL ? holder_begin(lease, session, &owner, node, now_ns) : 0;
		holder = rc == 0 ? lease_holder_of(lease, &owner) : NULL;
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
		lease_holder_set_state(holder, LEASE_HOLDS);
		lease_lose_others(lease, LEASE_EXCLUSIVE, holder, reason);
		lease_holder_changed(holder);
		lease->offered_to[0] = '\0';
	}
	if (holder->state == LEASE_LOST) {
		leave_locked(session, now_ns); /* it has not changed the disk, so it is not ended */
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
