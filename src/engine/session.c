// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "engine/clients.h"
#include "engine/lease.h"
#include "engine/part.h"

static const uint32_t session_edges[SESSION_STATE_COUNT] = {
	[SESSION_NEGOTIATING] =
		BIT(SESSION_READY) | BIT(SESSION_DRAINING) | BIT(SESSION_TERMINATING),
	[SESSION_READY] = BIT(SESSION_DRAINING) | BIT(SESSION_LINGERING) | BIT(SESSION_TERMINATING),
	[SESSION_DRAINING] = BIT(SESSION_LINGERING) | BIT(SESSION_TERMINATING),
	[SESSION_LINGERING] = BIT(SESSION_TERMINATING),
	/* final state; the session is freed at the end of the ring's batch */
	[SESSION_TERMINATING] = 0,
};

enum {
	WHO_BYTES = PEER_TEXT_BYTES + IDENTITY_TEXT_BYTES + 8,
	SHOWN_BYTES = 128,
	ORIGIN_BYTES = QUOTE_BYTES + 32
};

/* Kinds of principals, see struct takeover_principal. */
enum { PRINCIPAL_CLEAR = 1, PRINCIPAL_ENCRYPTED, PRINCIPAL_PROVED };

/* Formats a peer for the log: "127.0.0.1:4711 (psk alice)" or "unix:pid 4711 (uid 1000)". Returns
 * out. */
static const char *who(char out[WHO_BYTES], const struct peer *peer)
{
	if (peer->proved != NULL) {
		snprintf(out, WHO_BYTES, "%s (%s)", peer->text, peer->proved->text);
	} else if (peer->has_credentials) {
		snprintf(out, WHO_BYTES, "%s (uid %u)", peer->text, peer->credentials.uid);
	} else {
		snprintf(out, WHO_BYTES, "%s", peer->text);
	}
	return out;
}

void session_name(const struct session *session, char *out, size_t bytes)
{
	char text[WHO_BYTES];

	snprintf(out, bytes, "%s", who(text, &session->peer));
}

void session_log(struct session *session, const char *what)
{
	const struct export *export = session->export;
	char name[SHOWN_BYTES];
	char peer[WHO_BYTES];
	const struct log_about about = {
		.message_id = LOG_ID_CLIENT, .export = name, .client = peer
	};

	if (export == NULL || !log_enabled(LOG_LEVEL_INFO)) {
		return;
	}
	log_escape(name, sizeof(name), export->name, export->name_bytes);
	log_limited_about(session_connect_limit(session), ring_batch_ns(session->engine->ring),
		LOG_LEVEL_INFO, &about, "client %s %s export \"%s\"%s", who(peer, &session->peer),
		what, name, session->rights == ENGINE_RIGHT_READ ? " (read only)" : "");
}

void session_set_state(struct session *session, enum session_state state)
{
	GMB_ASSERT((session_edges[session->state] & BIT(state)) != 0);
	if (state == SESSION_READY) {
		session->was_ready = true;
		session_log(session, "uses");
	}
	list_remove(&session->deadline_node);
	if (session->state == SESSION_NEGOTIATING) {
		session->engine->counters.handshakes--;
		session->of_peer->handshake_count--;
		list_remove(&session->handshake_node);
	}
	session->state = state;
}

/* --- identity of the peer -------------------------------------------------------------------- */

/* Returns the principal (owner) of a connection: the proved identity, or without one the user or
 * host. */
static struct takeover_principal principal_of(const struct peer *peer)
{
	struct takeover_principal principal = { 0 };

	if (peer->proved != NULL && peer->proved->is_proved) {
		principal.bytes[0] = PRINCIPAL_PROVED;
		memcpy(principal.bytes + 1, peer->proved->principal,
			sizeof(peer->proved->principal));
	} else {
		principal.bytes[0] = peer->proved != NULL ? PRINCIPAL_ENCRYPTED : PRINCIPAL_CLEAR;
		memcpy(principal.bytes + 1, peer->identity.bytes, sizeof(peer->identity.bytes));
	}
	return principal;
}

static void newcomer_advance(struct session *session, enum newcomer to)
{
	if (session->newcomer < to) {
		session->newcomer = to;
		list_remove(&session->handshake_node);
		list_push_back(&session->of_peer->newcomers[to], &session->handshake_node);
	}
}

/* Leaves the takeover group of an export, with the token. */
static void session_takeover_quit(struct session *session)
{
	takeover_give_up(&session->member);
	takeover_leave(&session->member);
	if (takeover_may_go(&session->member)) {
		session->member.takeover = NULL;
		if (session->takeover_export != NULL) {
			export_put_async(session->takeover_export, session->engine);
		}
		session->takeover_export = NULL;
	}
}

/* A client that was refused on one export can use another one on the same connection. It must not
 * keep the first one open. */
static void leave_group_of_other(struct session *session, const struct export *export)
{
	if (session->takeover_export != NULL && session->takeover_export != export) {
		session_takeover_quit(session);
	}
}

void session_leave_export(struct session *session)
{
	GMB_ASSERT(session->chosen == NULL);
	session_lease_give_up(session);
	session_takeover_quit(session);
}

void session_identify(struct session *session, struct identity *identity)
{
	GMB_ASSERT(session->state == SESSION_NEGOTIATING && session->peer.proved == NULL);
	identity_get(identity);
	session->peer.proved = identity;
	newcomer_advance(session, NEWCOMER_IDENTIFIED);
	/* A takeover token that the client has sent without TLS is no longer valid. */
	session_takeover_quit(session);
	session->member.principal = principal_of(&session->peer);
}

void session_has_spoken(struct session *session)
{
	GMB_ASSERT(session->state == SESSION_NEGOTIATING);
	newcomer_advance(session, NEWCOMER_SPOKEN);
}

static void member_end(struct takeover_member *member)
{
	session_terminate(container_of(member, struct session, member), NULL);
}

static void member_wake(struct takeover_member *member)
{
	struct session *session = container_of(member, struct session, member);

	if (session->state != SESSION_TERMINATING) {
		session->kind->resume(session);
	}
}

static void rate_ready(struct rate_member *member)
{
	struct session *session = container_of(member, struct session, rate);

	if (session->state != SESSION_TERMINATING) {
		session->kind->resume(session);
	}
}

/* Initializes the members that do not depend on how the session begins. */
static void session_prepare(
	struct session *session, struct engine *engine, struct engine_peer *of_peer)
{
	session->engine = engine;
	session->member = (struct takeover_member){
		.ring = engine->ring,
		.principal = principal_of(&session->peer),
		.end = member_end,
		.wake = member_wake,
	};
	list_init(&session->dirty_node);
	session->of_peer = of_peer;
	session->export_inflight_count = &engine->inflight_without_export;
	turn_init(&session->blocked_turn, &of_peer->blocked);
	rate_member_init(&session->rate, rate_ready);
	path_client_init(&session->client, engine->path, &of_peer->path);
	list_init(&session->node);
	list_init(&session->deadline_node);
	list_init(&session->ending_node);
	list_init(&session->barred_node);
	list_init(&session->lease_node);
	list_init(&session->review_node);
	session->progress_ns = ring_now_ns(engine->ring);
}

void session_init(struct session *session, struct engine *engine, const struct endpoint *endpoint)
{
	session->kind = endpoint->kind;
	session->peer = endpoint->peer;
	session->tls = endpoint->tls;
	engine->accepted_peer->session_count++;
	session_prepare(session, engine, engine->accepted_peer);
	session->deadline_ns = session->progress_ns + engine->limits.handshake_timeout_ns;
	session->state = SESSION_NEGOTIATING;
	list_push_back(&engine->sessions, &session->node);
	list_push_back(&engine->handshakes, &session->deadline_node);
	session->of_peer->handshake_count++;
	list_push_back(&session->of_peer->newcomers[NEWCOMER_SILENT], &session->handshake_node);
	engine->counters.sessions_accepted++;
	engine->counters.sessions++;
	engine->counters.handshakes++;
}

/* --- rights ---------------------------------------------------------------------------------- */

struct access_subject session_subject(const struct session *session)
{
	const struct peer *peer = &session->peer;

	return (struct access_subject){
		.proved = peer->proved,
		.uid = peer->has_credentials ? &peer->credentials.uid : NULL,
		.address = peer->has_address ? peer->address : NULL,
	};
}

/* The rights of a session on an export, and their origin. */
struct decision {
	char text[ORIGIN_BYTES];
	const char *reason; /* one word, for the journal */
};

/* Returns the rights, and stores the reason in origin unless it is NULL. access: the rules, or
 * NULL. */
static uint32_t decide(const struct session *session, const struct export *export,
	const struct access *access, struct decision *origin)
{
	const struct peer *peer = &session->peer;
	struct access_verdict verdict = { .rights = ENGINE_RIGHT_READ | ENGINE_RIGHT_WRITE };
	struct access_subject subject = session_subject(session);

	if (access != NULL) {
		verdict = access_look(access, &subject);
		verdict.rights &= ENGINE_RIGHT_READ | ENGINE_RIGHT_WRITE;
	} else if (session->kind->maps_memory && peer->family == AF_UNIX &&
		   !peer_is_trusted(peer)) {
		verdict.rights = 0;
		verdict.origin = "different user, and no access rules";
	}
	if (origin != NULL) {
		origin->reason = access != NULL && verdict.origin != NULL ? "rule"
				 : access != NULL			  ? "no_rule"
									  : "other_user";
		snprintf(origin->text, ORIGIN_BYTES, "%s%s",
			access != NULL && verdict.origin != NULL ? "rule " : "",
			verdict.origin != NULL ? verdict.origin : "no access rule matches");
	}
	if (atomic_load_explicit(&export->read_only, memory_order_relaxed)) {
		verdict.rights &= ~(uint32_t)ENGINE_RIGHT_WRITE;
	}
	return verdict.rights;
}

/* Like decide(), with the current rules of the export. */
static uint32_t engine_session_look_up(
	const struct session *session, const struct export *export, struct decision *origin)
{
	struct access *access = access_slot_get(export->access);
	uint32_t rights = decide(session, export, access, origin);

	access_put(access);
	return rights;
}

uint32_t engine_rights_with(
	const struct session *session, const struct export *export, struct access *access)
{
	return decide(session, export, access, NULL);
}

uint32_t engine_rights(const struct session *session, const struct export *export)
{
	return engine_session_look_up(session, export, NULL);
}

struct engine_export *session_export_find(struct session *session, const void *name, uint32_t bytes)
{
	struct engine_export *entry = engine_export_find(session->engine, name, bytes);
	struct decision origin;
	char shown[SHOWN_BYTES];
	char peer[WHO_BYTES];
	struct log_about about = { .message_id = LOG_ID_HIDDEN, .export = shown, .client = peer };

	if (entry == NULL || engine_session_look_up(session, entry->export, &origin) != 0) {
		return entry;
	}
	about.reason = origin.reason;
	log_escape(shown, sizeof(shown), name, bytes);
	log_limited_about(session_log_limit(session), ring_batch_ns(session->engine->ring),
		LOG_LEVEL_WARNING, &about,
		"client %s: export \"%s\" is hidden from the client (%s)",
		who(peer, &session->peer), shown, origin.text);
	return NULL;
}

struct engine_export *session_export_from(struct session *session, uint64_t serial)
{
	struct engine_export *entry = engine_export_from(session->engine, serial);

	while (entry != NULL && engine_rights(session, entry->export) == 0) {
		entry = engine_export_from(session->engine, entry->serial + 1);
	}
	return entry;
}

/* --- rates and memory ------------------------------------------------------------------------ */

_Static_assert(RATE_MEMORY_MIN >= PATH_WINDOW_BYTES, "an engine can hold a window");

uint64_t engine_quota_bytes(const struct engine *engine, uint64_t memory_max)
{
	return memory_max == 0
		       ? PATH_QUOTA_NONE
		       : MAX(memory_max / engine->limits.engine_count, (uint64_t)PATH_WINDOW_BYTES);
}

/* Returns this engine's entry for an identity. The entry takes over the caller's reference to the
 * identity. If there is no memory, drops the reference and returns NULL. A linear search is
 * sufficient, because the list is not longer than the list of sessions, and is searched once per
 * connection. */
static struct engine_identity *identity_entry(
	const struct session *session, struct rate_identity *identity)
{
	struct engine *engine = session->engine;
	struct engine_identity *entry;

	list_for_each(node, &engine->rate_identities)
	{
		entry = list_entry(node, struct engine_identity, node);
		if (entry->identity == identity) {
			entry->session_count++;
			return entry;
		}
	}
	entry = calloc(1, sizeof(*entry));
	if (entry == NULL) {
		rate_identity_put(engine->options.rate_rules, identity, session->is_part,
			ring_batch_ns(engine->ring));
		return NULL;
	}
	entry->identity = identity;
	entry->session_count = 1;
	rate_queue_init(&entry->rate, &engine->rates, &identity->rate);
	path_quota_init(&entry->memory, engine_quota_bytes(engine, rate_identity_memory(identity)));
	list_push_front(&engine->rate_identities, &entry->node);
	return entry;
}

void session_rates_leave(struct session *session)
{
	struct engine_identity *entry = session->of_identity;
	struct rate_identity *identity = entry != NULL ? entry->identity : NULL;

	rate_leave(&session->rate);
	if (entry != NULL && --entry->session_count == 0) {
		session->engine->counters.identity_memory_waits += entry->memory.waits;
		rate_queue_fini(&entry->rate);
		list_remove(&entry->node);
		free(entry);
	}
	rate_identity_put(session->engine->options.rate_rules, identity, session->is_part,
		ring_batch_ns(session->engine->ring));
	session->of_identity = NULL;
}

/* Returns the principal for limits and statistics. Without a proved identity, TLS makes no
 * difference: otherwise a client could double its limits by using TLS for half of its
 * connections. */
static struct takeover_principal counted_principal(const struct peer *peer)
{
	struct takeover_principal principal = principal_of(peer);

	if (principal.bytes[0] == PRINCIPAL_ENCRYPTED) {
		principal.bytes[0] = PRINCIPAL_CLEAR;
	}
	return principal;
}

void engine_counters_add(const struct engine *engine, struct engine_counters *sum)
{
	counter_table_add(&engine_counter_table, sum, &engine->counters);
	sum->polls += engine->waiter.counters->looks;
	list_for_each(node, &engine->rate_identities)
	{
		sum->identity_memory_waits +=
			list_entry(node, struct engine_identity, node)->memory.waits;
	}
}

static int engine_session_join_rates(struct session *session, struct engine_export *entry,
	const struct takeover_principal *principal)
{
	struct engine *engine = session->engine;
	struct access_subject subject = session_subject(session);
	struct rate_identity *identity;
	int rc;

	rc = rate_identity_get(
		engine->options.rate_rules, &subject, principal, session->is_part, &identity);
	if (rc == 0 && identity != NULL) {
		session->of_identity = identity_entry(session, identity);
		rc = session->of_identity == NULL
			     ? -ENOMEM
			     : rate_join(&session->rate, RATE_IDENTITY, &session->of_identity->rate,
				       session->of_peer);
	}
	if (rc == 0) {
		rc = rate_join(&session->rate, RATE_EXPORT, &entry->rate, session->of_peer);
	}
	if (rc < 0) {
		session_rates_leave(session);
	}
	return rc;
}

const char *session_choose_text(const struct session *session, int result)
{
	switch (-result) {
	case ENOENT:
		return "there is no such export";
	case EACCES:
		return session->lease_text != NULL ? session->lease_text : FENCE_REFUSAL;
	case ETIMEDOUT:
		return session->lease_want.mode == LEASE_NONE ? ENGINE_BARRIER_TEXT
			       "; try again later"
							      : ENGINE_BARRIER_TEXT
			       ", or the server cannot record the lease (see its log); try again "
			       "later";
	case ESTALE:
		return "taken over: another server has the disk";
	case EBUSY:
		return "the export has reached its connection limit";
	case EUSERS:
		return "you have reached your connection limit";
	case ENOMEM:
	default:
		return "the server is out of memory";
	}
}

const char *session_export_lack(struct session *session, const void *name, uint32_t bytes)
{
	const char *at = memrchr(name, '@', bytes);
	struct engine_export *parent = at == NULL ? NULL
						  : session_export_find(session, name,
							    (uint32_t)(at - (const char *)name));

	return parent != NULL && store_has_snapshots(parent->export->store)
		       ? ": " ENGINE_SNAPSHOT_DELETED_TEXT ", or does not exist yet"
		       : "";
}

const char *session_stop_text(const struct session *session)
{
	GMB_ASSERT(session->stopping);
	return session->engine->draining ? "the server is stopping"
	       : session->engine->paused ? "another process is taking over the server"
	       : session->chosen != NULL && session->chosen->removed
		       ? session->chosen->export->store->is_snapshot
				 ? ENGINE_SNAPSHOT_DELETED_TEXT
				 : "the export is no longer served"
		       : "the server has revoked the access rights of this connection";
}

/* Returns 0 if the session may use the export now, or an error of session_choose(). */
static int choose_check(struct session *session, struct engine_export *entry, uint32_t rights)
{
	if (session_is_fenced(session)) {
		free(session->lease_text);
		session->lease_text = NULL;
		return -EACCES;
	}
	return rights == 0			     ? -ENOENT
	       : store_is_lost(entry->export->store) ? -ESTALE
						     : engine_export_barrier(entry, session);
}

/* Takes the lease. This is the last check, so a client that is refused for another reason does not
 * take the lease from its holder. */
static int choose_lease(struct session *session, struct engine_export *entry, uint32_t rights)
{
	int rc = session_lease_take(session, entry->export, rights);

	return rc == -EAGAIN ? engine_export_wait(entry, session) : rc;
}

/* Counts the session as one of the export's, and joins what limits it. */
static int choose_join(struct session *session, struct engine_export *entry,
	const struct takeover_principal *principal)
{
	struct export *export = entry->export;
	uint32_t connections_max;
	uint32_t before;
	int rc;

	/* Counts the connection before checking the limit, so that two reactors cannot both accept
	 * the last one. Relaxed order: the numbers publish no other data. */
	connections_max = atomic_load_explicit(&export->connections_max, memory_order_relaxed);
	before = atomic_fetch_add_explicit(&export->connections, 1, memory_order_relaxed);
	rc = connections_max != 0 && before >= connections_max
		     ? -EBUSY
		     : engine_session_join_rates(session, entry, principal);
	if (rc < 0) {
		atomic_fetch_sub_explicit(&export->connections, 1, memory_order_relaxed);
	}
	return rc;
}

static void choose_quit(struct session *session, struct engine_export *entry)
{
	session_rates_leave(session);
	atomic_fetch_sub_explicit(&entry->export->connections, 1, memory_order_relaxed);
}

/* Makes the session, which has joined the rates, one of the users of the export. */
static void session_use(struct session *session, struct engine_export *entry,
	const struct takeover_principal *principal, uint32_t rights)
{
	engine_client_join(session, principal);
	engine_node_join(session);
	path_client_join(&session->client, PATH_QUOTA_EXPORT, &entry->memory);
	if (session->of_identity != NULL) {
		path_client_join(
			&session->client, PATH_QUOTA_IDENTITY, &session->of_identity->memory);
	}
	entry->session_count++;
	session->chosen = entry;
	session->export_inflight_count = &entry->inflight_count;
	session->export = entry->export;
	session->path_export = &entry->path;
	session->rights = rights;
	session->export_bytes = store_size(entry->export->store);
}

int session_choose(struct session *session, struct engine_export *entry)
{
	struct export *export = entry->export;
	uint32_t rights = engine_rights(session, export);
	struct takeover_principal principal = counted_principal(&session->peer);
	int rc;

	GMB_ASSERT(session->chosen == NULL);
	leave_group_of_other(session, export);
	rc = choose_check(session, entry, rights) ?: choose_join(session, entry, &principal);
	if (rc == 0) {
		rc = choose_lease(session, entry, rights);
		if (rc < 0) {
			choose_quit(session, entry);
		}
	}
	if (rc < 0) {
		if (rc != -EAGAIN) {
			session_lease_give_up(session);
		}
		return rc;
	}
	session_use(session, entry, &principal, rights);
	return 0;
}

struct engine *session_part_engine(const struct session *session, uint32_t part)
{
	const struct engine_options *options = &session->engine->options;

	return options->part_engine != NULL ? options->part_engine(options->context, part) : NULL;
}

int engine_part_begin(struct engine *engine, struct session *part)
{
	const struct export *export = part->export;
	struct engine_export *entry = engine_export_find(engine, export->name, export->name_bytes);
	struct takeover_principal principal = counted_principal(&part->peer);
	struct engine_peer *of_peer;
	int rc;

	if (engine->draining) {
		return -ESHUTDOWN;
	}
	if (entry == NULL || entry->export != export) {
		return -ENOENT;
	}
	if (store_is_lost(export->store)) {
		return -ESTALE;
	}
	if (engine->part_count >= engine_parts_max(&engine->limits)) {
		return -EUSERS;
	}
	of_peer = engine_peer_get(engine, &part->peer.identity);
	if (of_peer == NULL) {
		return -ENOMEM;
	}
	part->is_part = true;
	session_prepare(part, engine, of_peer);
	rc = engine_session_join_rates(part, entry, &principal);
	if (rc < 0) {
		path_client_fini(&part->client);
		engine_peer_put(of_peer);
		return rc;
	}
	session_use(part, entry, &principal, part->rights);
	part->state = SESSION_READY; /* the first state of a part */
	list_push_back(&engine->parts, &part->node);
	engine->part_count++;
	return 0;
}

const char session_lease_text[] = "leased: another client is the writer of the export";

int session_admit(struct session *session, const struct path_request *request, const char **text)
{
	bool moves = request->op == STORE_READ || request->op == STORE_WRITE;

	if ((BIT(request->op) & STORE_CHANGES) != 0 &&
		(session->rights & ENGINE_RIGHT_WRITE) == 0) {
		*text = "the export is read-only";
		return -EPERM;
	}
	if ((BIT(request->op) & STORE_CHANGES) != 0 && unlikely(session->lease_checked)) {
		*text = session_lease_text;
		return -EPERM;
	}
	if (request->op == STORE_FLUSH) {
		return 0;
	}
	if (moves && request->length > session->engine->limits.payload_bytes_max) {
		*text = "the request is longer than this server's limit for one request";
		return -EOVERFLOW;
	}
	if (request->op == STORE_EXTENTS && request->length == 0) {
		*text = "a block status request for zero bytes";
		return -EINVAL;
	}
	if (unlikely(!range_inside(request->offset, request->length, session->export_bytes))) {
		/* Another reactor might already have announced a larger size to its clients. */
		session->export_bytes =
			MAX(session->export_bytes, store_size(session->export->store));
	}
	if (!range_inside(request->offset, request->length, session->export_bytes)) {
		*text = "the range extends past the end of the export";
		return request->op == STORE_WRITE || request->op == STORE_ZERO ||
				       request->op == STORE_COPY
			       ? -ENOSPC
			       : -EINVAL;
	}
	return 0;
}

uint64_t engine_request_bytes(const struct session *session, enum store_op op, uint32_t flags,
	uint64_t offset, uint64_t length)
{
	uint32_t caps = store_info(session->export->store)->caps;
	bool leaves_hole = (flags & STORE_FAST_ZERO) != 0 ||
			   ((flags & STORE_NO_HOLE) == 0 && (caps & STORE_CAP_FAST_ZERO) != 0);

	switch (op) {
	case STORE_READ:
	case STORE_WRITE:
		return length <= session->engine->limits.payload_bytes_max ? length : 0;
	case STORE_ZERO:
	case STORE_CACHE:
		return (op == STORE_ZERO && leaves_hole) ||
				       !range_inside(offset, length, session->export_bytes)
			       ? 0
			       : length;
	case STORE_FLUSH:
	case STORE_TRIM:
	case STORE_EXTENTS:
	case STORE_COPY: /* copy.c counts each piece of a copy */
	case STORE_OP_COUNT:
	default:
		return 0;
	}
}

/* --- takeover ------------------------------------------------------------------------------ */

/* Adds a reference to the export that contains the session's takeover group. */
static void hold_group(struct session *session, struct export *export)
{
	if (session->takeover_export == NULL && session->member.takeover == &export->takeover) {
		export_get(export);
		session->takeover_export = export;
	}
}

void session_takeover_join(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes)
{
	leave_group_of_other(session, export);
	takeover_join(&export->takeover, &session->member, token, bytes);
	hold_group(session, export);
}

void session_takeover_enter(struct session *session, struct export *export)
{
	takeover_enter(&export->takeover, &session->member);
	hold_group(session, export);
}

bool session_takeover_replace(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes)
{
	enum takeover_found found;
	char peer[WHO_BYTES];

	leave_group_of_other(session, export);
	found = takeover_replace(&export->takeover, &session->member, token, bytes);
	hold_group(session, export);
	if (found == TAKEOVER_OTHERS) {
		log_limited(session_log_limit(session), ring_batch_ns(session->engine->ring),
			LOG_LEVEL_WARNING,
			"client %s: request to replace a connection of another client ignored",
			who(peer, &session->peer));
	}
	return found == TAKEOVER_OWN;
}

/* --- ending a session ------------------------------------------------------------------------ */

static void log_end(
	struct session *session, const char *message_id, const char *word, const char *reason)
{
	const struct export *export = session->export;
	char peer[WHO_BYTES];
	const struct log_about about = {
		.message_id = message_id,
		.export = export != NULL ? quote_bytes(export->name, export->name_bytes) : NULL,
		.client = who(peer, &session->peer),
		.reason = word,
	};

	log_limited_about(session_log_limit(session), ring_batch_ns(session->engine->ring),
		LOG_LEVEL_WARNING, &about, "client %s: connection ended: %s", session->peer.text,
		reason);
}

static void terminate(struct session *session)
{
	session_set_state(session, SESSION_TERMINATING);
	takeover_give_up(&session->member);
	turns_remove(&session->blocked_turn);
	rate_give_up(&session->rate);
	list_remove(&session->barred_node);
	list_remove(&session->dirty_node);
	list_push_back(&session->engine->ending, &session->ending_node);
	session->kind->abort(session);
}

void session_terminate(struct session *session, const char *reason)
{
	if (session->state == SESSION_TERMINATING) {
		return;
	}
	if (reason != NULL) {
		session->engine->counters.sessions_failed++;
		log_end(session, LOG_ID_CLIENT_END, NULL, reason);
	}
	terminate(session);
}

void session_tls_failed(struct session *session, enum engine_tls_failure why, const char *reason)
{
	/* These words are also used in the names of the counters. */
	static const char *const words[ENGINE_TLS_FAILURE_COUNT] = {
		[ENGINE_TLS_CLIENT_REFUSED] = "client_refused",
		[ENGINE_TLS_SERVER_REFUSED] = "server_refused",
		[ENGINE_TLS_PROTOCOL] = "protocol",
		[ENGINE_TLS_CONNECTION] = "connection",
		[ENGINE_TLS_OTHER] = "other",
	};
	struct engine_counters *counters = &session->engine->counters;

	counters->tls_failed++;
	counters->tls_failures[why]++;
	if (session->state != SESSION_TERMINATING) {
		counters->sessions_failed++;
		log_end(session, LOG_ID_TLS, words[why], reason);
		terminate(session);
	}
}

void session_linger(struct session *session)
{
	struct engine *engine = session->engine;

	session_set_state(session, SESSION_LINGERING);
	turns_remove(&session->blocked_turn);
	rate_give_up(&session->rate);
	session->deadline_ns = ring_now_ns(engine->ring) +
			       (session->stopping ? ENGINE_LINGER_STOPPING_NS : ENGINE_LINGER_NS);
	list_push_back(&engine->lingering, &session->deadline_node);
	engine_timer_arm(engine);
}
