// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the server's side of src/push: one connection, and what those of an engine share.
 *
 * clan_service ─▶ service.c: events ─┬▶ control.c  what a coordinator asks for; tickets
 *                                    ├▶ source.c   START (start.c): reads pieces, puts them to
 *                                    │             the other server by a connection of its own;
 *                                    │             nbd.c: to one that has no push
 *                                    └▶ sink.c     USE: lends slots, writes what comes there
 *
 * A coordinator's session becomes the source's with START, and stays when the coordinator has left
 * a job that is detached: so rights, limits and statistics of the job are those of who has asked
 * for it. A session that shows a ticket becomes a destination's, with the rights of who has asked
 * for the ticket. The states of a session are the engine's: engine/engine.h.
 *
 * Threading: the ring's thread. Ownership: a session owns its connections, slots and
 * requests. Errors: push_session_fail() ends a session whose peer broke a
 * rule; a job that fails says so in the table of jobs.
 */
#pragma once

#include <gmblock/clan.h>

#include "clan_service/clan_service.h"
#include "engine/engine.h"
#include "push/server.h"
#include "push/table.h"
#include "push/wire.h"

/* How often a job looks around: it tells how far it is, and learns that it was cancelled. */
#define PUSH_TICK_NS UINT64_C(100000000)
/* Staging memory of all jobs of the process, and which part of what is free one may have. */
enum { PUSH_STAGED_SLOTS_MAX = 64, PUSH_STAGING_DIVISOR = 4 };

struct push_session;

/* A connection; events come by it. */
struct push_link {
	struct push_session *session;
	struct clan_conn *conn; /* NULL: never had, or closed */
	bool is_closing;	/* clan_close() was called */
};

struct push_source;
struct push_sink;

struct push_session {
	struct session base;
	struct push_service *service;
	struct push_link in;  /* the peer's */
	struct push_link out; /* of a source: to the destination */
	/* What waits for the store (session_choose()): its type, or 0. */
	uint32_t held_type;
	uint32_t held_bytes;
	uint8_t *held;
	struct push_source *source; /* or NULL */
	struct push_sink *sink;	    /* or NULL */
	uint32_t rights;	    /* enum engine_rights: without them the job ends */
	bool detached;		    /* the job goes on without its coordinator */
	bool is_opening;	    /* START is not answered yet */
	/* Of both: the job, whose end was not told. */
	uint64_t job; /* its serial; 0: none, or it has ended */
	enum push_job_state job_state;
	struct push_progress progress;
	struct ring_op tick;
	uint64_t heard_ns;   /* from the other end of the job; or when that was over */
	uint64_t said_ns;    /* ALIVE */
	uint64_t silence_ns; /* so long it may say nothing */
	uint64_t ticked_ns;  /* the last look around */
	bool has_begun;	     /* USED was said: both give signs of life */
	bool note_due;	     /* a coordinator is to be told of the end */
	uint64_t noted_job;
};

struct push_nbd_hub;

struct push_service {
	struct clan_service base;
	struct push_nbd_hub *nbd; /* NULL before the first destination without push */
	uint8_t message[PUSH_MESSAGE_BYTES_MAX];
};

/* --- service.c: connections, and how sessions end ------------------------------------------- */

void push_session_fail(struct push_session *session, const char *rule);
/* Closes it; its last event comes later. */
void push_link_close(struct push_link *link);
/* A job begins: its session is READY. */
GMB_MUST_CHECK int push_session_job(
	struct push_session *session, struct push_job *job, const char **text);
/* USED was said. */
void push_session_begun(struct push_session *session, uint32_t silence_ms);
/* It ends, if it has not: status 0, or a negative errno and why. */
void push_session_job_end(struct push_session *session, int status, const char *text);
/* It fails, and the session ends, or goes on as a coordinator's. */
void push_session_job_fail(struct push_session *session, int status, const char *text);
/* Staging memory for a job: so many slots, at most slots_max, and down to slots_min where others
 * have much of it. 0: there are not as many. */
GMB_MUST_CHECK uint32_t push_staging_take(uint32_t slots_min, uint32_t slots_max);
void push_staging_give(uint32_t slots);
struct push_viewer push_viewer_of(const struct push_session *session);

/* --- control.c ------------------------------------------------------------------------------- */

void push_control_take(
	struct push_session *session, uint32_t type, const uint8_t *bytes, uint32_t len);
void push_control_answer(struct push_session *session, int status, const char *text);
/* Fills in the lengths. */
void push_control_send(struct push_session *session, struct push_answer *answer, const char *text);
/* Tells the coordinator how far the job is, if that is due (again: it is), when there is room; and
 * ends the session once it has told of the end. */
void push_control_note(struct push_session *session, bool again);

/* --- start.c and source.c --------------------------------------------------------------------- */

void push_source_begin(struct push_session *session, const uint8_t *bytes, uint32_t len);
void push_source_event(struct push_session *session, const struct clan_event *event);
/* Goes on as far as it may. */
void push_source_advance(struct push_session *session);
void push_source_tick(struct push_session *session);
/* Nothing more is begun. */
void push_source_abort(struct push_session *session);
/* The job has ended: what it was read from goes. */
void push_source_ended(struct push_session *session);
/* True when nothing is in flight. */
bool push_source_join(struct push_session *session);
void push_source_free(struct push_session *session);

/* --- nbd.c ----------------------------------------------------------------------------------- */

/* The sessions are gone. NULL: no-op. */
void push_nbd_hub_destroy(struct push_nbd_hub *hub);

/* --- sink.c ---------------------------------------------------------------------------------- */

void push_sink_begin(struct push_session *session, const uint8_t *bytes, uint32_t len);
/* Goes on after the ticket. */
void push_sink_choose(struct push_session *session);
/* Tells the source. */
void push_sink_failed(struct push_session *session, int status, const char *text);
void push_sink_event(struct push_session *session, const struct clan_event *event);
void push_sink_take(
	struct push_session *session, const struct clan_message *message, const uint8_t *bytes);
void push_sink_advance(struct push_session *session);
void push_sink_abort(struct push_session *session);
bool push_sink_join(struct push_session *session);
void push_sink_free(struct push_session *session);
