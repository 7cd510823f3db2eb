// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/fence.h"
#include "gmb/server/session.h"

enum {
	/* Limit on consecutive messages of a client, after which other connections get a turn. */
	MESSAGES_MAX = 256,
	/* The same while the thread polls: the client then has the first replies while the server
	 * still works on the other requests (0005, few messages per turn). */
	MESSAGES_SPINNING_MAX = 8,
};

static struct native_session *gmb_session_of(struct session *base)
{
	return container_of(base, struct native_session, base);
}

void native_session_fail(struct native_session *session, const char *rule)
{
	char reason[160];

	if (session->base.state != SESSION_TERMINATING) {
		snprintf(reason, sizeof(reason), "the client broke a gmb rule: %s", rule);
		session_terminate(&session->base, reason);
	}
}

/* --- the client's regions -------------------------------------------------------------------- */

void native_region_add(struct native_session *session, uint32_t number, uint32_t generation)
{
	struct native_service *service = session->service;
	struct clan_peer_region info = { .size = sizeof(info) };
	struct native_region *region = &session->regions[number];
	void *base;
	int result;

	GMB_ASSERT(number < NATIVE_REGIONS_MAX); /* guaranteed by peer_regions_max */
	if (region->memory.base != NULL) {
		return;
	}
	result = clan_peer_region_get(session->conn, number, generation, 0, 0, 0, &base);
	if (result == -ENOTCONN) {
		session_terminate(&session->base, NULL); /* the connection is lost */
	}
	if (result != 0) {
		return; /* the client has withdrawn the region already */
	}
	(void)clan_peer_region_info(session->conn, number, &info);
	*region = (struct native_region){
		.generation = generation,
		.rights = info.rights,
		.bytes = info.bytes,
		.memory = {
			.base = base,
			.bytes = info.bytes,
			.rights = MEM_RAM &
				  ~(MEM_STABLE |
					  ((info.rights & CLAN_WRITE) != 0 ? 0 : MEM_CPU_WRITE)),
		},
	};
	service->region_bytes += info.bytes;
	/* The registration only speeds up access. It fails if the limit on locked memory forbids
	 * it. */
	if (info.bytes <= NATIVE_FIXED_BYTES_MAX) {
		(void)!ring_memory_add(service->base.engine->ring, &region->memory);
	}
	if (service->region_bytes > NATIVE_SERVICE_REGION_BYTES_MAX) {
		session_terminate(&session->base,
			"the total size of all clients' regions exceeds the server's limit (G12)");
	}
}

void native_region_unused(struct native_session *session, uint32_t number)
{
	struct native_region *region = &session->regions[number];
	bool wanted = session->base.state != SESSION_TERMINATING && !region->ending;

	if (region->memory.base == NULL || region->users > 0 || wanted) {
		return;
	}
	ring_memory_remove(session->base.engine->ring, &region->memory);
	session->service->region_bytes -= region->memory.bytes;
	*region = (struct native_region){ 0 };
	clan_peer_region_put(session->conn, number);
}

static void region_ending(struct native_session *session, uint32_t number)
{
	session->regions[number].ending = true;
	native_region_unused(session, number);
}

/* Processes REGION from a client whose memory is not mapped. The cookie alone describes the
 * region. */
static void take_region(struct native_session *session, const uint8_t *bytes, uint32_t len)
{
	struct clan_cookie cookie;
	const char *rule = native_parse(NATIVE_REGION, bytes, len, &cookie);

	if (rule == NULL && session->regions[cookie.region].users > 0) {
		rule = "G18: REGION for a region that requests are using";
	}
	if (rule != NULL) {
		native_session_fail(session, rule);
		return;
	}
	session->regions[cookie.region] = (struct native_region){
		.generation = cookie.generation,
		.rights = cookie.rights,
		.bytes = cookie.bytes,
		.cookie = cookie,
	};
}

/* --- LIST and OPEN --------------------------------------------------------------------------- */

/* Sends the answer to LIST or OPEN that is in the handshake state. Returns false if the ring is
 * full. The handshake state is freed after the last answer. */
static bool answer_send(struct native_session *session)
{
	struct native_handshake *handshake = session->handshake;

	if (handshake->answer_bytes > 0) {
		int result = clan_send(session->conn, CLAN_BULK, NATIVE_EXPORT, handshake->answer,
			handshake->answer_bytes);

		if (result != 0) {
			/* the ring is full; or the connection is lost, which an event will
			 * report */
			return false;
		}
		handshake->answer_bytes = 0;
	}
	if (session->base.state == SESSION_READY) {
		free(handshake);
		session->handshake = NULL;
	}
	return true;
}

/* identity: of the disk, or NULL */
static void answer_text(struct native_session *session, struct native_wire_export *head,
	const char *text, const uint8_t *identity)
{
	struct native_handshake *handshake = session->handshake;
	size_t used = sizeof(*head) + head->name_bytes;
	size_t bytes = text != NULL ? strlen(text) : 0;
	size_t end_bytes = identity != NULL ? (size_t)NATIVE_DISK_BYTES : 0;

	if (bytes <= sizeof(handshake->answer) - used -
			     end_bytes) { /* a text that does not fit is left out */
		head->text_bytes = (uint16_t)bytes;
		memcpy(handshake->answer + used, text != NULL ? text : "", bytes);
		used += bytes;
	}
	if (identity != NULL) {
		head->flags |= NATIVE_EXPORT_DISK;
		memcpy(handshake->answer + used, identity, end_bytes);
		used += end_bytes;
	}
	memcpy(handshake->answer, head, sizeof(*head));
	handshake->answer_bytes = (uint32_t)used;
	(void)answer_send(session);
}

static void answer_error(struct native_session *session, int code, const char *text)
{
	struct native_wire_export head = { .status = native_status_from_errno(code) };

	answer_text(session, &head, text, NULL);
}

static void answer_unknown(struct native_session *session, struct message_text name)
{
	char shown[NATIVE_TEXT_BYTES_MAX - 32];
	char text[NATIVE_TEXT_BYTES_MAX];

	snprintf(text, sizeof(text), "no export named '%s'%s",
		log_escape(shown, sizeof(shown), name.bytes, name.length),
		session_export_lack(&session->base, name.bytes, name.length));
	answer_error(session, -ENOENT, text);
}

static uint32_t export_flags(const struct session *session, const struct export *export)
{
	bool writes = (engine_rights(session, export) & ENGINE_RIGHT_WRITE) != 0;
	bool rotates = (store_info(export->store)->caps & STORE_CAP_ROTATIONAL) != 0;
	/* EXPORT_ENDS guarantees that the requests of a lost connection end before a new connection
	 * is answered. After a restart of the server this is true only if the store marks its
	 * operations, because the new server then waits for these (store_barrier()). */
	bool ends = store_barrier(export->store, false) == STORE_BARRIER_OPEN;

	return (ends ? (uint32_t)NATIVE_EXPORT_ENDS : 0) |
	       (writes ? (uint32_t)NATIVE_EXPORT_WRITABLE : 0) |
	       (rotates ? (uint32_t)NATIVE_EXPORT_ROTATIONAL : 0) |
	       (export->is_volatile ? (uint32_t)NATIVE_EXPORT_VOLATILE : 0);
}

static void answer_export(struct native_session *session, const struct engine_export *entry)
{
	const struct export *export = entry->export;
	uint32_t payload_max = session->base.engine->limits.payload_bytes_max;
	struct native_wire_export head = {
		.flags = export_flags(&session->base, export),
		.bytes = session->base.export != NULL ? session->base.export_bytes
						      : store_size(export->store),
		.epoch = export->epoch,
		.cursor = session->handshake->cursor,
		.payload_max = payload_max,
		.block_preferred = store_info(export->store)->block_preferred,
		.name_bytes = (uint16_t) export->name_bytes,
	};

	if (session->version >= NATIVE_VERSION_ATOMIC &&
		(head.flags & NATIVE_EXPORT_WRITABLE) != 0) {
		head.atomic_bytes = MIN(entry->path.atomic_bytes, payload_max);
	}
	memcpy(session->handshake->answer + sizeof(head), export->name, export->name_bytes);
	answer_text(session, &head, export_description(export),
		session->version >= NATIVE_VERSION_DISK ? store_identity(export->store) : NULL);
}

static void take_list(struct native_session *session, const uint8_t *bytes, uint32_t len)
{
	const struct engine_export *entry;
	struct native_wire_list list;
	const char *rule = native_parse(NATIVE_LIST, bytes, len, &list);

	if (rule != NULL) {
		native_session_fail(session, rule);
		return;
	}
	if (session_is_fenced(&session->base)) {
		answer_error(session, -EACCES, FENCE_REFUSAL);
		return;
	}
	if (list.cursor != 0 && list.cursor != session->handshake->cursor) {
		native_session_fail(session, "G4: invalid cursor in LIST");
		return;
	}
	if (list.cursor == 0) {
		session->handshake->cursor = 0;
		session->handshake->serial = 0;
	}
	entry = session_export_from(&session->base, session->handshake->serial);
	if (entry == NULL) {
		answer_error(session, -ENOENT, NULL);
	} else {
		session->handshake->cursor++;
		session->handshake->serial = entry->serial + 1;
		answer_export(session, entry);
	}
}

/* Takes over from the connections that this one replaces. Returns false while a replaced connection
 * has not ended. */
static bool gmb_session_take_over(
	struct native_session *session, struct export *export, const struct native_open *open)
{
	const uint8_t *replaces = open->tokens.bytes;

	if (open->token.length > 0) {
		session_takeover_join(
			&session->base, export, open->token.bytes, open->token.length);
	}
	for (uint32_t i = 0; i < open->head.replaces_count; i++) {
		struct message_text token = native_open_next(&replaces);

		if (session_takeover_replace(&session->base, export, token.bytes, token.length)) {
			return false;
		}
	}
	return true;
}

/* Chooses the export. Returns false if OPEN has to wait for the store. */
static bool gmb_session_choose(
	struct native_session *session, struct engine_export *entry, const struct native_open *open)
{
	int result = session_choose(&session->base, entry);

	if (result == -EAGAIN) {
		return false;
	}
	if (result == -ENOENT) {
		answer_unknown(session, open->name);
		return true;
	}
	if (result != 0) {
		answer_error(session,
			result == -EACCES   ? -EACCES
			: result == -ESTALE ? -ESHUTDOWN
					    : -EBUSY,
			session_choose_text(&session->base, result));
		return true;
	}
	session->alive_ns = (uint64_t)open->head.alive_units * NATIVE_ALIVE_UNIT_MS * 1000000;
	session_set_state(&session->base, SESSION_READY);
	log_debug("gmb: connection %llu: %s opened", (unsigned long long)session->base.peer.id,
		session->base.peer.text);
	answer_export(session, entry);
	return true;
}

/* The lease that the client wants when it sends OPEN. */
static void take_lease(struct native_session *session, const uint8_t *bytes, uint32_t len)
{
	struct lease_want want;

	if (lease_want_parse(bytes, len, &want)) {
		session->base.lease_want = want;
	} else {
		native_session_fail(session, "G22: invalid LEASE");
	}
}

static void take_open(struct native_session *session, const uint8_t *bytes, uint32_t len)
{
	struct native_handshake *handshake = session->handshake;
	struct engine_export *entry;
	struct native_open open;
	const char *rule = native_parse(NATIVE_OPEN, bytes, len, &open);

	if (rule != NULL) {
		native_session_fail(session, rule);
		return;
	}
	if (session_is_fenced(&session->base)) {
		answer_error(session, -EACCES, FENCE_REFUSAL);
		return;
	}
	entry = session_export_find(&session->base, open.name.bytes, open.name.length);
	if (session->base.stopping) {
		answer_error(session, -ESHUTDOWN, session_stop_text(&session->base));
	} else if (entry == NULL) {
		answer_unknown(session, open.name);
	} else if ((open.head.flags & NATIVE_OPEN_LOOK) != 0) {
		answer_export(session, entry);
	} else if (!gmb_session_take_over(session, entry->export, &open) ||
		   !gmb_session_choose(session, entry, &open)) {
		memmove(handshake->open, bytes, len);
		handshake->open_bytes = len;
	}
}

/* --- messages -------------------------------------------------------------------------------- */

static void gmb_session_take_message(
	struct native_session *session, const struct clan_message *message, const uint8_t *bytes)
{
	bool ready = session->base.state == SESSION_READY;

	if (message->cls != CLAN_BULK) {
		native_session_fail(session, "G2: a message of the wrong class");
	} else if (ready && (message->type == NATIVE_REQUEST ||
				    (message->type == NATIVE_COPY &&
					    session->version >= NATIVE_VERSION_COPY))) {
		native_request_take(session, message->type, bytes, message->bytes);
	} else if (ready && message->type == NATIVE_REGION && session->mover != NULL) {
		take_region(session, bytes, message->bytes);
	} else if (ready && message->type == NATIVE_LEAVE &&
		   session->version >= NATIVE_VERSION_LEASE && message->bytes == 0) {
		session->base.lease_done = true;
	} else if (!ready && message->type == NATIVE_LEASE &&
		   session->version >= NATIVE_VERSION_LEASE) {
		take_lease(session, bytes, message->bytes);
	} else if (!ready && message->type == NATIVE_LIST) {
		take_list(session, bytes, message->bytes);
	} else if (!ready && message->type == NATIVE_OPEN) {
		take_open(session, bytes, message->bytes);
	} else {
		native_session_fail(session, "G2: an unexpected message");
	}
}

static bool may_take(struct native_session *session)
{
	switch (session->base.state) {
	case SESSION_NEGOTIATING:
		return session->handshake->answer_bytes == 0 && session->handshake->open_bytes == 0;
	case SESSION_READY:
		return engine_request_may(&session->base);
	case SESSION_DRAINING:
	case SESSION_LINGERING:
	case SESSION_TERMINATING:
	case SESSION_STATE_COUNT:
	default:
		return false;
	}
}

/* Processes the request that waited for its rate limit. Returns false if it still waits. */
static bool take_held(struct native_session *session)
{
	struct native_held *held = session->held;

	if (held == NULL) {
		return true;
	}
	if (session_waits_to_move(&session->base) || !may_take(session)) {
		return false;
	}
	session->held = NULL;
	native_request_take(session, held->type, held->message, held->bytes);
	free(held);
	return true;
}

void native_session_take(struct native_session *session)
{
	struct native_service *service = session->service;
	int messages_max = service->base.engine->waiter.way == WAIT_SPIN ? MESSAGES_SPINNING_MAX
									 : MESSAGES_MAX;
	struct clan_message message;

	turns_remove(&session->base.blocked_turn);
	list_remove(&session->hungry_node);
	if (!take_held(session)) {
		return;
	}
	for (int i = 0; i < messages_max; i++) {
		if (session->held != NULL || !may_take(session) ||
			clan_recv(session->conn, CLAN_ANY, &message, service->message,
				sizeof(service->message)) != 0) {
			/* an event reports further messages, or the end of the connection */
			return;
		}
		session->base.progress_ns = ring_batch_ns(service->base.engine->ring);
		if (session->base.state == SESSION_NEGOTIATING) {
			session_has_spoken(&session->base);
		}
		gmb_session_take_message(session, &message, service->message);
	}
	list_push_back(&service->base.hungry, &session->hungry_node);
}

void native_session_resume(struct session *base)
{
	struct native_session *session = gmb_session_of(base);

	if (base->state == SESSION_NEGOTIATING && session->handshake->open_bytes > 0) {
		uint32_t len = session->handshake->open_bytes;

		session->handshake->open_bytes = 0;
		take_open(session, session->handshake->open, len);
	}
	native_session_take(session);
}

static void event_send(struct native_session *session)
{
	struct native_wire_event event = {
		.flags = export_flags(&session->base, session->base.export),
		.bytes = store_size(session->base.export->store),
	};

	session->event_due =
		clan_send(session->conn, CLAN_BULK, NATIVE_EVENT, &event, sizeof(event)) == -EAGAIN;
}

/* --- signs of life --------------------------------------------------------------------------- */

static void gmb_session_alive_done(struct ring_op *op, int result)
{
	struct native_session *session = container_of(op, struct native_session, alive_op);

	if (session->base.state == SESSION_TERMINATING ||
		(list_is_empty(&session->requests) && session->held == NULL)) {
		return; /* the next request sets the timer again */
	}
	if (!session->has_sent) {
		/* If the ring is full, the client has unread messages, which are signs of life as
		 * well. */
		(void)!clan_send(session->conn, CLAN_BULK, NATIVE_ALIVE, NULL, 0);
	}
	session->has_sent = false;
	ring_timer(session->base.engine->ring, op, session->alive_ns, gmb_session_alive_done);
}

void native_session_watch(struct native_session *session)
{
	if (session->alive_ns != 0 && !session->alive_op.in_flight) {
		session->has_sent = false;
		ring_timer(session->base.engine->ring, &session->alive_op, session->alive_ns,
			gmb_session_alive_done);
	}
}

void native_session_export_changed(struct session *base, enum export_change change)
{
	if (change != EXPORT_REMOVED) {
		gmb_session_of(base)->event_due = true;
		session_mark_dirty(base);
	}
}

/* Sends what waits for room in the client's ring: the answer to LIST or OPEN, an event, and
 * replies. Clan makes these messages visible to the client when the service's queue next waits for
 * events, so one wake-up covers all messages. */
void native_session_flush(struct session *base, bool alone)
{
	struct native_session *session = gmb_session_of(base);

	if (session->handshake != NULL && session->handshake->answer_bytes > 0) {
		if (!answer_send(session)) {
			return;
		}
		/* processes the messages that were left while the answer waited */
		native_session_take(session);
	}
	if (session->event_due) {
		event_send(session);
	}
	if (native_requests_answer(session) && base->stopping && base->state == SESSION_READY &&
		list_is_empty(&session->requests)) {
		session_terminate(base, NULL); /* closing publishes the messages sent before */
	}
}

/* --- life cycle ------------------------------------------------------------------------------- */

int native_session_accept(void *context, const struct endpoint *endpoint)
{
	struct native_service *service = context;
	struct native_session *session;
	struct clan_error reason;
	struct error error;
	int result = clan_service_start(&service->base, &error);

	if (result < 0) {
		return result;
	}
	session = calloc(1, sizeof(*session));
	if (session != NULL) {
		session->handshake = malloc(sizeof(*session->handshake));
	}
	if (session == NULL || session->handshake == NULL) {
		free(session);
		return -ENOMEM;
	}
	session->handshake->open_bytes = 0;
	session->handshake->answer_bytes = 0;
	session->handshake->cursor = 0;
	session->handshake->serial = 0;
	session->service = service;
	list_init(&session->hungry_node);
	list_init(&session->requests);
	list_init(&session->done);
	session_init(&session->base, service->base.engine, endpoint);
	result = clan_service_accept(&service->base, endpoint, &session->conn, &reason);
	if (result < 0) {
		session->is_closed = true;
		session_terminate(&session->base, reason.text);
	} else {
		clan_conn_set_context(session->conn, session);
	}
	return 0;
}

static void gmb_session_take_hello(struct native_session *session)
{
	struct {
		struct native_wire_welcome head;
		struct native_wire_instance instance;
	} welcome = { .head.magic = NATIVE_MAGIC };
	char versions[48];
	uint16_t version;
	size_t bytes;
	const void *hello = clan_conn_hello(session->conn, &bytes);
	const char *rule = native_hello_parse(hello, bytes, &version);

	if (rule == NULL && version == 0) {
		snprintf(versions, sizeof(versions), "this server speaks gmb versions %d to %d",
			NATIVE_VERSION_MIN, NATIVE_VERSION);
		rule = versions;
	}
	if (rule == NULL && (clan_conn_caps(session->conn) & CLAN_CAN_MAP) == 0) {
		welcome.head.flags = NATIVE_WELCOME_MOVES;
		rule = native_mover_create(session) != 0 ? "the server is out of memory" : NULL;
	}
	session->version = version;
	welcome.head.version = version;
	memcpy(welcome.instance.bytes, session->base.engine->options.instance,
		sizeof(welcome.instance.bytes));
	session->is_closing = rule != NULL;
	if (clan_service_welcome(&session->base, session->conn, rule, &welcome,
		    version >= NATIVE_VERSION_COPY ? sizeof(welcome) : sizeof(welcome.head))) {
		native_session_take(session);
	}
}

void native_session_event(struct native_session *session, const struct clan_event *event)
{
	if (event->type == CLAN_EVENT_CLOSED) {
		session->is_closed = true; /* native_session_join() frees the session */
		session->conn = NULL;
		return;
	}
	if (session->base.state == SESSION_TERMINATING) {
		return; /* the session began to close earlier in this batch of events */
	}
	switch ((enum clan_event_type)event->type) {
	case CLAN_EVENT_CONNECT:
		gmb_session_take_hello(session);
		break;
	case CLAN_EVENT_READY:
		session_mark_dirty(&session->base);
		native_session_take(session);
		break;
	case CLAN_EVENT_LOST:
		session_terminate(&session->base,
			event->status == -EPROTO ? clan_conn_reason(session->conn) : NULL);
		break;
	case CLAN_EVENT_REGION:
		if (session->mover == NULL) {
			native_region_add(session, event->number, event->generation);
		}
		break;
	case CLAN_EVENT_REGION_ENDING:
		if (session->mover == NULL) {
			region_ending(session, event->number);
		}
		break;
	case CLAN_EVENT_DONE:
		native_move_done(session, event->op, event->status);
		break;
	case CLAN_EVENT_ARRIVED:
	case CLAN_EVENT_CONNECTED:
	case CLAN_EVENT_CLOSED:
	case CLAN_EVENT_SHARED:
	case CLAN_EVENT_UNSHARED:
	case CLAN_EVENT_REVOKED:
	case CLAN_EVENT_TRIPPED:
	default:
		break; /* events that only clients receive */
	}
}

void native_session_drain(struct session *base)
{
	list_for_each(node, &gmb_session_of(base)->requests)
	{
		struct native_request *request = list_entry(node, struct native_request, node);

		if (request->copy != NULL) {
			session_copy_drain(request->copy);
		}
	}
	session_mark_dirty(base); /* later requests, and OPEN, are answered with ESHUTDOWN */
}

/* Returns whether the client delays the session: it does not read its answers, or clan_put() or
 * clan_get() of its memory is in progress. */
bool native_session_stalled(struct session *base)
{
	const struct native_session *session = gmb_session_of(base);

	return !list_is_empty(&session->done) ||
	       (session->mover != NULL && session->mover->busy_bytes > 0);
}

void native_session_abort(struct session *base)
{
	struct native_session *session = gmb_session_of(base);

	list_remove(&session->hungry_node);
	list_for_each(node, &session->requests)
	{
		native_request_abandon(list_entry(node, struct native_request, node));
	}
	ring_cancel(session->base.engine->ring, &session->alive_op);
	if (session->conn != NULL && !session->is_closing) {
		session->is_closing = true;
		clan_close(session->conn);
	}
	for (uint32_t i = 0; i < NATIVE_REGIONS_MAX; i++) {
		native_region_unused(session, i);
	}
}

bool native_session_join(struct session *base)
{
	struct native_session *session = gmb_session_of(base);

	/* Transfers of payload end only when the connection is closed, because until then the
	 * network may access their memory. */
	if (session->is_closed && session->mover != NULL) {
		native_moves_drop(session);
	}
	list_for_each(node, &session->requests)
	{
		struct native_request *request = list_entry(node, struct native_request, node);

		if (native_request_is_idle(request)) {
			native_request_end(request);
		}
	}
	return list_is_empty(&session->requests) && session->is_closed &&
	       !session->alive_op.in_flight;
}

void native_session_close(struct session *base)
{
	free(gmb_session_of(base)->handshake);
	free(gmb_session_of(base)->mover);
	free(gmb_session_of(base)->held);
	free(gmb_session_of(base));
}
