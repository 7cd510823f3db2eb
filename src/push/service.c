// SPDX-License-Identifier: Apache-2.0
/*
 * Connections and sessions of push on the server, and the end of jobs. Events of clan come in here
 * and are dispatched to control.c, source.c and sink.c; the functions at the end are called by the
 * engine through push_session_kind.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/fence.h"
#include "push/session.h"

enum {
	/* Limit on the messages processed in one batch. A source never has that many in flight, and
	 * a coordinator has one. */
	MESSAGES_MAX = 64,
};

_Static_assert((int)MESSAGES_MAX > 2 * (int)PUSH_SLOTS + (int)PUSH_ZEROES_MAX + 1,
	"a source has fewer messages in flight");

static _Atomic uint32_t staged_slots;

static struct push_session *push_service_of(struct session *base)
{
	return container_of(base, struct push_session, base);
}

uint32_t push_staging_take(uint32_t slots_min, uint32_t slots_max)
{
	/* Relaxed: the counter protects no other data. */
	uint32_t used = atomic_load_explicit(&staged_slots, memory_order_relaxed);
	uint32_t slots;

	do {
		uint32_t left = PUSH_STAGED_SLOTS_MAX - used;

		slots = MAX(left / PUSH_STAGING_DIVISOR, slots_min);
		slots = slots <= left ? MIN(slots, slots_max) : 0;
	} while (!atomic_compare_exchange_weak_explicit(
		&staged_slots, &used, used + slots, memory_order_relaxed, memory_order_relaxed));
	return slots;
}

void push_staging_give(uint32_t slots)
{
	atomic_fetch_sub_explicit(&staged_slots, slots, memory_order_relaxed);
}

/* --- jobs ------------------------------------------------------------------------------------ */

struct push_viewer push_viewer_of(const struct push_session *session)
{
	const struct peer *peer = &session->base.peer;

	return (struct push_viewer){
		.identity = peer->identity,
		.all = peer->has_credentials &&
		       (peer->credentials.uid == 0 || peer->credentials.uid == geteuid()),
	};
}

/* Called when the peer or the other end of the job has been silent for too long. Ends the job, so
 * that its memory and its entry in the table are released. */
static void end_silent(struct push_session *session)
{
	if (session->is_extra) {
		/* The job goes on. Its source sends lost pieces on other connections. */
		session->job = 0;
		session_terminate(&session->base, "the source does not respond");
	} else if (session->job == 0) {
		/* The job has ended, but the peer does not read the message about it, or does not
		 * close. */
		session_terminate(&session->base, NULL);
	} else {
		push_session_job_fail(session, -ETIMEDOUT,
			session->source != NULL ? "the destination does not respond"
						: "the source does not respond");
	}
}

/* If there is no room, the other end still has messages to read. These messages also show that we
 * are alive, so ALIVE is not needed. */
void push_link_say_alive(struct push_link *link)
{
	if (link->conn != NULL && !link->is_closing) {
		(void)!clan_send(link->conn, CLAN_BULK, PUSH_ALIVE, NULL, 0);
	}
}

static void say_alive(struct push_session *session, uint64_t now_ns)
{
	if (!session->has_begun ||
		now_ns - session->said_ns < session->silence_ns / PUSH_ALIVE_DIVISOR) {
		return;
	}
	session->said_ns = now_ns;
	if (session->source != NULL) {
		push_source_say_alive(session);
	} else {
		push_link_say_alive(&session->in);
	}
}

/* Called every PUSH_TICK_NS: reports progress, checks for cancellation and silence, and sends
 * ALIVE. */
static void tick_done(struct ring_op *op, int result)
{
	struct push_session *session = container_of(op, struct push_session, tick);
	uint64_t now_ns = ring_now_ns(session->base.engine->ring);

	if (session->base.state == SESSION_TERMINATING) {
		return;
	}
	if (session->job != 0 && session->sink != NULL && !push_sink_tick(session)) {
		return;
	}
	if (session->job != 0 && !session->is_extra &&
		!push_job_tell(session->job, session->job_state, &session->progress)) {
		push_session_job_fail(session, -ECANCELED, "the job was cancelled");
		return;
	}
	if (now_ns - session->ticked_ns >= 10 * PUSH_TICK_NS) {
		/* This process itself was stalled. Messages that arrived during this time are still
		 * unread, so the time does not count as silence of the peer. */
		session->heard_ns = MIN(now_ns, session->heard_ns + (now_ns - session->ticked_ns));
	}
	session->ticked_ns = now_ns;
	if (now_ns - session->heard_ns >= session->silence_ns) {
		end_silent(session);
		return;
	}
	ring_timer(session->base.engine->ring, op, PUSH_TICK_NS, tick_done);
	if (session->job != 0) {
		say_alive(session, now_ns);
		if (session->source != NULL) {
			push_source_tick(session);
		}
	}
}

void push_session_begun(struct push_session *session, uint32_t silence_ms)
{
	session->has_begun = true;
	session->silence_ns = silence_ms * UINT64_C(1000000);
	session->job_state = PUSH_JOB_MOVES;
}

/* Until the peer has announced how long it can be silent, the limit is the handshake timeout. */
void push_session_run(struct push_session *session, uint64_t job)
{
	struct ring *ring = session->base.engine->ring;

	session->job = job;
	session->job_state = PUSH_JOB_BEGINS;
	session->heard_ns = ring_now_ns(ring);
	session->ticked_ns = session->heard_ns;
	session->silence_ns = session->base.engine->limits.handshake_timeout_ns;
	session_set_state(&session->base, SESSION_READY);
	ring_timer(ring, &session->tick, PUSH_TICK_NS, tick_done);
}

int push_session_job(struct push_session *session, struct push_job *job, const char **text)
{
	int result = push_job_add(job, ring_now_ns(session->base.engine->ring), text);

	if (result == 0) {
		push_session_run(session, job->serial);
	}
	return result;
}

/* First deletes the snapshot, then answers START if that is due, and sends JOB to the coordinator
 * last, because the coordinator might then start the next job. */
void push_session_job_end(struct push_session *session, int status, const char *text)
{
	struct engine *engine = session->base.engine;

	if (session->job == 0) {
		return;
	}
	if (session->source != NULL) {
		push_source_ended(session);
	} else if (session->sink != NULL) {
		push_sink_ended(session, status, text);
	}
	if (session->is_extra) {
		session->job = 0;
		return;
	}
	if (session->is_opening) {
		session->is_opening = false;
		push_control_answer(session, status, text);
	}
	push_job_end(session->job, &session->progress, status, text, ring_now_ns(engine->ring));
	engine->counters.pushes_done += status == 0;
	engine->counters.pushes_failed += status != 0;
	if (status != 0 && text != NULL) {
		log_limited(session_log_limit(&session->base), ring_batch_ns(engine->ring),
			LOG_LEVEL_WARNING, "push %s %s: %s",
			session->source != NULL ? "for" : "from", session->base.peer.text, text);
	}
	session->noted_job = session->job;
	session->job = 0;
	/* From now on the peer has as much time as the silence limit to read the message about the
	 * end. */
	session->heard_ns = ring_now_ns(engine->ring);
	push_control_note(session, true);
}

void push_session_job_fail(struct push_session *session, int status, const char *text)
{
	if (session->base.state == SESSION_TERMINATING) {
		return;
	}
	if (session->sink != NULL) {
		push_sink_failed(session, status, text);
	}
	push_session_job_end(session, status, text);
	session_terminate(&session->base, NULL); /* closing publishes the messages sent before */
}

/* --- connections ----------------------------------------------------------------------------- */

void push_session_fail(struct push_session *session, const char *rule)
{
	char reason[160];

	if (session->base.state != SESSION_TERMINATING) {
		snprintf(reason, sizeof(reason), "the peer broke a push rule: %s", rule);
		push_session_job_end(session, -EPROTO, reason);
		session_terminate(&session->base, reason);
	}
}

void push_link_close(struct push_link *link)
{
	if (link->conn != NULL && !link->is_closing) {
		link->is_closing = true;
		clan_close(link->conn);
	}
}

/* Answers the peer, the source of a job or a coordinator, and ends the session. */
static void push_service_refuse(struct push_session *session, uint32_t type)
{
	if (type == PUSH_USE || type == PUSH_JOIN) {
		push_sink_failed(session, -EACCES, FENCE_REFUSAL);
	} else {
		push_control_answer(session, -EACCES, FENCE_REFUSAL);
	}
	session_terminate(&session->base, NULL); /* closing publishes the message */
}

/* Dispatches a message. Before USE, JOIN or START, the session is a coordinator's; afterwards only
 * a destination receives messages. */
static void push_service_take_message(
	struct push_session *session, const struct clan_message *message, const uint8_t *bytes)
{
	if (session->sink != NULL && session->base.state == SESSION_READY) {
		push_sink_take(session, message, bytes);
	} else if (message->cls != CLAN_BULK || message->type == CLAN_TYPE_NOTIFY) {
		push_session_fail(session, "H2: a message of the wrong class");
	} else if (session->base.state != SESSION_NEGOTIATING || session->held_type != 0) {
		push_session_fail(session, "H2: an unexpected message");
	} else if (session_is_fenced(&session->base)) {
		push_service_refuse(session, message->type);
	} else if (message->type == PUSH_USE) {
		push_sink_begin(session, bytes, message->bytes);
	} else if (message->type == PUSH_JOIN) {
		push_sink_join_job(session, bytes, message->bytes);
	} else if (message->type == PUSH_START) {
		push_source_begin(session, bytes, message->bytes);
	} else {
		push_control_take(session, message->type, bytes, message->bytes);
	}
}

static void push_service_take_messages(struct push_session *session)
{
	struct push_service *service = session->service;
	struct clan_message message;

	for (int i = 0; i < MESSAGES_MAX; i++) {
		if (session->base.state == SESSION_TERMINATING || session->in.conn == NULL ||
			session->in.is_closing ||
			clan_recv(session->in.conn, CLAN_ANY, &message, service->message,
				sizeof(service->message)) != 0) {
			/* No message is left, or the session is ending. An event reports the next
			 * message, or the end of the connection. */
			return;
		}
		session->base.progress_ns = ring_batch_ns(service->base.engine->ring);
		session->heard_ns = session->base.progress_ns;
		if (session->base.state == SESSION_NEGOTIATING) {
			session_has_spoken(&session->base);
		}
		push_service_take_message(session, &message, service->message);
	}
	push_session_fail(session, "H2: more messages than may be in flight");
}

static void push_service_take_hello(struct push_session *session)
{
	struct push_wire_welcome welcome = { .magic = PUSH_MAGIC, .version = PUSH_VERSION };
	bool known = false;
	size_t bytes;
	const void *hello = clan_conn_hello(session->in.conn, &bytes);
	const char *rule = push_hello_parse(hello, bytes, &known);

	if (rule == NULL && !known) {
		rule = "this server speaks push version 1";
	}
	memcpy(welcome.instance, session->base.engine->options.instance, sizeof(welcome.instance));
	session->in.is_closing = rule != NULL;
	if (clan_service_welcome(
		    &session->base, session->in.conn, rule, &welcome, sizeof(welcome))) {
		push_service_take_messages(session);
	}
}

/* Called when the connection to the peer is lost. The job of a detached source continues without
 * its coordinator, and a job does not need its additional connections. Any other job ends. */
static void peer_lost(struct push_session *session, const struct clan_event *event)
{
	const char *reason = event->status == -EPROTO ? clan_conn_reason(session->in.conn) : NULL;

	if (session->source != NULL && session->job != 0 && session->detached) {
		push_link_close(&session->in);
		return;
	}
	if (session->is_extra) {
		session->job = 0;
	}
	push_session_job_end(session, -ECONNRESET,
		session->source != NULL
			? "the command that requested the job has exited or disconnected"
			: "the source disconnected");
	session_terminate(&session->base, reason);
}

static void in_event(struct push_session *session, const struct clan_event *event)
{
	if (event->type == CLAN_EVENT_CONNECT) {
		push_service_take_hello(session);
	} else if (event->type == CLAN_EVENT_LOST) {
		/* processes the messages sent before the end of the connection */
		push_service_take_messages(session);
		if (session->base.state != SESSION_TERMINATING) {
			peer_lost(session, event);
		}
	} else if (event->type == CLAN_EVENT_READY) {
		push_control_note(session, false);
		push_service_take_messages(session);
		if (session->sink != NULL && session->base.state == SESSION_READY) {
			push_sink_advance(session);
		}
	} else if (session->sink != NULL) {
		push_sink_event(session, event);
	}
}

static void push_service_event(void *context, const struct clan_event *event)
{
	struct push_link *link = context;
	struct push_session *session = link->session;

	if (event->type == CLAN_EVENT_CLOSED) {
		link->conn = NULL; /* session_join() frees the session */
		if (session->base.state != SESSION_TERMINATING && link != &session->in) {
			push_source_event(session, link, event);
		}
		return;
	}
	if (session->base.state == SESSION_TERMINATING || link->is_closing) {
		return; /* the connection began to close earlier in this batch of events */
	}
	if (link == &session->in) {
		in_event(session, event);
	} else {
		push_source_event(session, link, event);
	}
}

/* --- the life of a session -------------------------------------------------------------------- */

/* After session_init() the session owns the endpoint. Later errors therefore end the session
 * instead of being returned. */
static int session_accept(void *context, const struct endpoint *endpoint)
{
	struct push_service *service = context;
	struct push_session *session;
	struct clan_error reason;
	struct error error;
	int result = clan_service_start(&service->base, &error);

	if (result < 0) {
		return result;
	}
	session = calloc(1, sizeof(*session));
	if (session == NULL) {
		return -ENOMEM;
	}
	session->service = service;
	session->in.session = session;
	for (uint32_t i = 0; i < PUSH_FLOWS_MAX; i++) {
		session->out[i].session = session;
	}
	session_init(&session->base, service->base.engine, endpoint);
	result = clan_service_accept(&service->base, endpoint, &session->in.conn, &reason);
	if (result < 0) {
		session->in.conn = NULL;
		session_terminate(&session->base, reason.text);
	} else {
		clan_conn_set_context(session->in.conn, &session->in);
	}
	return 0;
}

/* Called when the session no longer has to wait. A message that waited for the store is processed
 * now; otherwise the job continues. */
static void session_resume(struct session *base)
{
	struct push_session *session = push_service_of(base);
	uint32_t type = session->held_type;

	if (type != 0) {
		uint8_t *bytes = session->held;

		session->held_type = 0;
		session->held = NULL;
		if (type == PUSH_USE) {
			push_sink_choose(session);
		} else {
			push_source_begin(session, bytes, session->held_bytes);
		}
		free(bytes);
	} else if (session->source != NULL) {
		push_source_advance(session);
	} else if (session->sink != NULL) {
		push_sink_advance(session);
	}
}

/* A no-op, because clan makes sent messages visible to the peer when the service's queue next
 * waits for events. */
static void session_flush(struct session *base, bool alone)
{
}

static void session_drain(struct session *base)
{
	push_session_job_fail(push_service_of(base), -ESHUTDOWN, session_stop_text(base));
}

static void session_export_changed(struct session *base, enum export_change change)
{
	struct push_session *session = push_service_of(base);

	if (change == EXPORT_RIGHTS && (base->rights & session->rights) != session->rights) {
		push_session_job_fail(
			session, -EPERM, "the user who requested the job no longer has permission");
	}
}

static void session_abort(struct session *base)
{
	struct push_session *session = push_service_of(base);

	push_session_job_end(session, -ECONNABORTED, "the connection of the job was closed");
	ring_cancel(session->base.engine->ring, &session->tick);
	if (session->source != NULL) {
		push_source_abort(session);
	}
	if (session->sink != NULL) {
		push_sink_abort(session);
	}
	push_link_close(&session->in);
	for (uint32_t i = 0; i < PUSH_FLOWS_MAX; i++) {
		push_link_close(&session->out[i]);
	}
}

static bool session_join(struct session *base)
{
	struct push_session *session = push_service_of(base);
	bool idle = session->source == NULL || push_source_join(session);

	idle &= session->sink == NULL || push_sink_join(session);
	for (uint32_t i = 0; i < PUSH_FLOWS_MAX; i++) {
		idle &= session->out[i].conn == NULL;
	}
	return idle && session->in.conn == NULL && !session->tick.in_flight;
}

static void session_close(struct session *base)
{
	struct push_session *session = push_service_of(base);

	push_source_free(session);
	push_sink_free(session);
	free(session->held);
	free(session);
}

/* --- the service ----------------------------------------------------------------------------- */

/* Called with the first connection, so a server without push has no table. */
static int push_service_start(struct clan_service *service, struct error *error)
{
	int result = push_table_init(service->engine->ring);

	return result != 0 ? error_set(error, result,
				     "push needs random secrets, but the system provides no random "
				     "numbers")
			   : 0;
}

static const struct clan_service_ops push_service_ops = {
	.kind = &push_session_kind,
	.cookies = PUSH_SLOTS,
	.peer_regions_max = 1,
	.peer_region_bytes_max = 4096, /* peers do not share regions with a server */
	.start = push_service_start,
	.event = push_service_event,
};

static int push_service_create(struct engine *engine, void **service_out, struct error *error)
{
	struct push_service *service = calloc(1, sizeof(*service));

	if (service == NULL) {
		return error_set(error, -ENOMEM, "out of memory for push");
	}
	clan_service_init(&service->base, &push_service_ops, engine);
	*service_out = service;
	return 0;
}

static void push_service_destroy(void *context)
{
	struct push_service *service = context;

	clan_service_fini(&service->base);
	push_nbd_hub_destroy(service->nbd);
	free(service);
}

static bool is_yes(const char *text)
{
	return text != NULL && strcmp(text, "yes") == 0;
}

static int push_service_listen(void *service, struct export_uri *uri,
	const struct engine_door *door, void **listener_out, struct error *error)
{
	int result = clan_service_listen(service, uri, door, listener_out, error);

	if (result == 0) {
		push_scope_extend(
			is_yes(uri->insecure_network) ? PUSH_SCOPE_NETWORK : PUSH_SCOPE_LOOPBACK);
	}
	return result;
}

static const char *const schemes[] = { "push", "push+unix", NULL };

const struct session_kind push_session_kind = {
	.name = "push",
	.schemes = schemes,
	.keeps_messages = true,
	.maps_memory = true,
	.create = push_service_create,
	.destroy = push_service_destroy,
	.listen = push_service_listen,
	.listen_end = clan_service_listen_end,
	.accept = session_accept,
	.resume = session_resume,
	.flush = session_flush,
	.drain = session_drain,
	.export_changed = session_export_changed,
	/* without .stalled: slots are separate memory, no request waits for the peer, and a tick
	 * ends the job of a silent peer */
	.is_away = push_source_is_away,
	.abort = session_abort,
	.join = session_join,
	.close = session_close,
};
