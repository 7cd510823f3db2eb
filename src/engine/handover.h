// SPDX-License-Identifier: Apache-2.0
/*
 * Handing sessions over to another process that replaces this one: docs/design/0019-upgrade.md.
 *
 *              ┌──────── engine_serve() ◀── a peer does not receive
 *              ▼                            │
 *   here:   engine_pause() ─▶ engine_look(): at rest ─▶ engine_hand_over() ─┬▶ engine_let_go()
 *                                                                           └▶ engine_resume()
 *   there:  engine_pause() ─▶ engine_adopt() for each ─▶ engine_resume()
 *
 * A paused session starts no requests and receives nothing. Its requests in flight are finished
 * and answered. The exception is a request whose payload has arrived only in part: it is handed
 * over in that state. Sessions whose kind or state cannot be handed over are drained, as when the
 * server stops.
 *
 * A peer that does not receive a reply might first wait for a reply on another connection of its
 * own. So engine_serve() lets all other sessions continue; only the sessions with such a peer stay
 * paused.
 *
 * Threading: the ring's thread. Ownership: the pointers in a record are borrowed for the call. The
 * descriptor belongs to the session until engine_let_go(), which closes it without shutting down
 * the connection. Errors: a negative errno.
 */
#pragma once

#include "engine/engine.h"

enum {
	ENGINE_HANDOVER_BYTES_MAX = 24 << 10, /* size of a kind's state of a session; secret */
	/* Size of what a session has received of a request, in at most this many pieces. */
	ENGINE_HANDOVER_LATER_BYTES_MAX = 4 << 20,
	ENGINE_HANDOVER_LATER_PIECES = 2,
	/* Time for which a peer can stall, from the pause on, while the other sessions are
	 * served. */
	ENGINE_HANDOVER_STALL_MS = 10000,
};

struct session_piece {
	const uint8_t *bytes;
	uint32_t count;
};

/* The state of one session. */
struct session_record {
	uint64_t id;	  /* number of its connection */
	const char *kind; /* name of its kind; like the next two without a terminator */
	uint32_t kind_bytes;
	const char *export;
	uint32_t export_bytes;
	const uint8_t *token; /* its takeover token; 0 bytes: none */
	uint32_t token_bytes;
	const uint8_t *bytes; /* the kind's state */
	uint32_t byte_count;
	/* Received payload, after bytes; can be empty. */
	struct session_piece later[ENGINE_HANDOVER_LATER_PIECES];
	int fd;
};

/* Progress towards rest, summed over engines. Engines are at rest when busy and waiting are 0. */
struct engine_rest {
	uint32_t busy; /* sessions with a request in the store, and requests of engine_snapshot */
	uint32_t waiting; /* sessions that wait for their peers, and ending ones with requests */
	uint32_t ended;	  /* sessions ended because their peers stalled */
	char peer[PEER_TEXT_BYTES]; /* one of the waiting ones */
};

/* Predicted result of engine_pause(), summed over engines of the same kinds. */
struct engine_fate {
	uint32_t handed_over;
	uint32_t handshakes; /* drained, unless they have chosen an export by then */
	struct {
		const struct session_kind *kind; /* NULL: end of the list */
		uint32_t count;
	} end[ENGINE_KINDS_MAX];
};

/* Adds the engine's sessions to the sum. Sessions that are already ending do not count. */
void engine_foresee(const struct engine *engine, struct engine_fate *fate);
/* Pauses the sessions until engine_resume(). Can be called again after engine_serve(). Returns the
 * number of sessions that it starts to drain because they cannot be handed over. */
uint32_t engine_pause(struct engine *engine);
/* Paused: adds the engine's progress. Requests of ended connections count. Sessions that continue
 * after engine_serve(), or were accepted since, do not. may_end: ends sessions whose peers have
 * stalled. */
void engine_look(struct engine *engine, struct engine_rest *rest, bool may_end);
/* Paused: lets all sessions continue, except those that wait for their peers. */
void engine_serve(struct engine *engine);
/* Lets all sessions continue, except those that are drained. */
void engine_resume(struct engine *engine);

/* At rest: calls take() for each session that can be handed over and for which take() has not
 * returned 0 yet. Stops at the first negative errno of take(), and returns it. */
GMB_MUST_CHECK int engine_hand_over(struct engine *engine,
	int (*take)(void *context, const struct session_record *record), void *context);
/* A flush that quiesces a store for its handover (store_needs_quiesce()), on one engine. */
struct engine_quiesce {
	/* The caller sets the next two, and holds the export and this struct until done. done is
	 * called on the engine's thread with the result of the flush. */
	struct export *export;
	void (*done)(struct engine_quiesce *quiesce, int result);

	/* Private. */
	struct engine_export *entry;
	struct store_part part;
};
/* last: no request is in flight on any engine. Otherwise clients can continue, and the flush
 * leaves little to do for the last one. -ENOENT: the engine does not serve the export. */
GMB_MUST_CHECK int engine_quiesce(struct engine *engine, struct engine_quiesce *quiesce, bool last);
/* Releases the sessions that were handed over, without sending anything to their peers. */
void engine_let_go(struct engine *engine);

/* Paused: takes the endpoint, on every path, as a session in the state that another process has
 * sent. The state is parsed as hostile input. later has at most one piece. A session that its
 * export rejects ends immediately. */
void engine_adopt(struct engine *engine, const struct endpoint *endpoint,
	const struct session_record *record);
/* For kinds, after session_init(): chooses the export in the record and sets the session's
 * takeover token. Returns as session_choose(): after -EAGAIN, kind->resume() is called when this
 * function must be called again, possibly after the engine has left the paused state. */
GMB_MUST_CHECK int session_adopt(struct session *session, const struct session_record *record);
