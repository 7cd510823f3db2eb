// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the server's side of src/push: one connection, and the state that the connections of
 * an engine share.
 *
 *   clan_service ─▶ service.c: events ─┬▶ control.c  requests of a coordinator; tickets
 *                                      ├▶ source.c   START (start.c): reads pieces, puts them to
 *                                      │             the other server over connections (flow.c);
 *                                      │             nbd.c: to a server without push
 *                                      └▶ sink.c     USE, JOIN (sink_start.c): lends slots,
 *                                                    writes the pieces in them
 *
 * START turns a coordinator's session into a source's session. If the job is detached, the session
 * remains when the coordinator has left. So the job keeps the rights, limits and statistics of its
 * requester. A session that presents a ticket becomes a destination's session, with the rights of
 * the ticket's requester. The states of a session are the engine's: engine/engine.h.
 *
 * Threading: the ring's thread. Ownership: a session owns its connections, slots and requests.
 * Errors: push_session_fail() ends a session whose peer broke a rule; a failed job is recorded in
 * the table of jobs.
 */
#pragma once

#include <gmblock/clan_memory.h>

#include "clan_service/clan_service.h"
#include "engine/engine.h"
#include "push/server.h"
#include "push/table.h"
#include "push/wire.h"

/* Interval at which a job updates the table and checks for cancellation. */
#define PUSH_TICK_NS UINT64_C(100000000)
/* Limit on the staging slots of all jobs of the process. One job gets at most
 * 1/PUSH_STAGING_DIVISOR of the free slots, unless that is less than its minimum. */
enum { PUSH_STAGED_SLOTS_MAX = 64, PUSH_STAGING_DIVISOR = 4 };

struct push_session;

/* A connection. Its address is the context of the connection's events. */
struct push_link {
	struct push_session *session;
	struct clan_conn *conn; /* NULL: not connected, or closed */
	bool is_closing;	/* clan_close() was called */
};

struct push_source;
struct push_sink;

struct push_session {
	struct session base;
	struct push_service *service;
	struct push_link in; /* the peer's connection */
	/* source only: the connections to the destination, see flow.c */
	struct push_link out[PUSH_FLOWS_MAX];
	/* A message that waits until the store is open (session_choose()): its type, or 0. */
	uint32_t held_type;
	uint32_t held_bytes;
	uint8_t *held;
	struct push_source *source; /* or NULL */
	struct push_sink *sink;	    /* or NULL */
	uint32_t rights;	    /* enum engine_rights: the job ends if one is revoked */
	bool detached;		    /* the job continues without its coordinator */
	bool is_opening;	    /* START has not been answered */
	/* an additional connection of a destination: the job belongs to another session */
	bool is_extra;
	/* The job of a source or destination. */
	/* serial number of the job (is_extra: any number); 0: none, or it has ended */
	uint64_t job;
	enum push_job_state job_state;
	struct push_progress progress;
	struct ring_op tick;
	/* time of the last message from the other end of the job; after the end of the job, the
	 * time of its end */
	uint64_t heard_ns;
	uint64_t said_ns;    /* last ALIVE sent */
	uint64_t silence_ns; /* longest permitted time without a message */
	uint64_t ticked_ns;  /* last tick */
	/* push_session_begun() was called; if the destination has push, both ends now send ALIVE */
	bool has_begun;
	bool note_due; /* a JOB message to the coordinator is due */
	uint64_t noted_job;
};

struct push_nbd_hub;

struct push_service {
	struct clan_service base;
	struct push_nbd_hub *nbd; /* NULL until the first destination without push */
	uint8_t message[PUSH_MESSAGE_BYTES_MAX];
};

/* --- service.c: connections, and how sessions end ------------------------------------------- */

void push_session_fail(struct push_session *session, const char *rule);
/* Closes the connection. Its event CLOSED comes later. */
void push_link_close(struct push_link *link);
/* Sends ALIVE. */
void push_link_say_alive(struct push_link *link);
/* Starts a job: enters it in the table and makes its session READY. *text: the reason for a
 * failure. */
GMB_MUST_CHECK int push_session_job(
	struct push_session *session, struct push_job *job, const char **text);
/* Makes the session READY and starts its timer. job: see struct push_session. */
void push_session_run(struct push_session *session, uint64_t job);
/* Called when the slots are lent, so that pieces can move. The destination calls it before it sends
 * USED, the source after it has received USED. For an NBD destination the source calls it after it
 * has allocated its own slots. */
void push_session_begun(struct push_session *session, uint32_t silence_ms);
/* Ends the job, if it has not ended. status is 0, or a negative errno with a text. */
void push_session_job_end(struct push_session *session, int status, const char *text);
/* Ends the job with an error, and terminates the session. */
void push_session_job_fail(struct push_session *session, int status, const char *text);
/* Reserves staging memory for a job. Returns the number of slots: slots_max, or fewer if most of
 * the memory is in use, or 0 if not even slots_min are available. */
GMB_MUST_CHECK uint32_t push_staging_take(uint32_t slots_min, uint32_t slots_max);
void push_staging_give(uint32_t slots);
struct push_viewer push_viewer_of(const struct push_session *session);

/* --- control.c ------------------------------------------------------------------------------- */

void push_control_take(
	struct push_session *session, uint32_t type, const uint8_t *bytes, uint32_t len);
void push_control_answer(struct push_session *session, int status, const char *text);
/* Sends an answer; fills in its lengths. */
void push_control_send(struct push_session *session, struct push_answer *answer, const char *text);
/* Sends a JOB message to the coordinator, if it is due and the connection has room. again: a JOB
 * message is due from now on. After a JOB message that reports the end of the job, terminates the
 * session. */
void push_control_note(struct push_session *session, bool again);

/* --- start.c and source.c --------------------------------------------------------------------- */

void push_source_begin(struct push_session *session, const uint8_t *bytes, uint32_t len);
void push_source_event(
	struct push_session *session, struct push_link *link, const struct clan_event *event);
/* Sends ALIVE on each connection to the destination. */
void push_source_say_alive(struct push_session *session);
/* Continues the job as far as possible. */
void push_source_advance(struct push_session *session);
void push_source_tick(struct push_session *session);
/* Stops the source; no new operations are started. */
void push_source_abort(struct push_session *session);
/* Called when the job has ended: deletes the snapshot that it read. */
void push_source_ended(struct push_session *session);
/* Returns true if the session is the source of a job whose destination is an NBD server that has
 * not answered all requests. In nbd.c. */
bool push_source_is_away(struct session *base);
/* Returns true if no operation is in flight. */
bool push_source_join(struct push_session *session);
void push_source_free(struct push_session *session);

/* --- nbd.c ----------------------------------------------------------------------------------- */

/* Destroys the hub, after all sessions have ended. NULL is a no-op. */
void push_nbd_hub_destroy(struct push_nbd_hub *hub);

/* --- sink.c ---------------------------------------------------------------------------------- */

void push_sink_begin(struct push_session *session, const uint8_t *bytes, uint32_t len);
/* JOIN: one more connection of a job that has begun with USE. */
void push_sink_join_job(struct push_session *session, const uint8_t *bytes, uint32_t len);
/* Continues a USE or JOIN that waited for the store. */
void push_sink_choose(struct push_session *session);
/* Sends FAILED to the source. */
void push_sink_failed(struct push_session *session, int status, const char *text);
void push_sink_event(struct push_session *session, const struct clan_event *event);
void push_sink_take(
	struct push_session *session, const struct clan_message *message, const uint8_t *bytes);
void push_sink_advance(struct push_session *session);
/* Called at each tick of a running job. Returns false if the session has ended. */
bool push_sink_tick(struct push_session *session);
/* Called when the session's part of the job ends; status is 0, or a negative errno with a text. */
void push_sink_ended(struct push_session *session, int status, const char *text);
void push_sink_abort(struct push_session *session);
bool push_sink_join(struct push_session *session);
void push_sink_free(struct push_session *session);
