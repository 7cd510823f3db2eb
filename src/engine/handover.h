// SPDX-License-Identifier: Apache-2.0
/*
 * Handover of sessions to another process that replaces this one: docs/design/0019-upgrade.md.
 *
 *              ┌──────── engine_serve() ◀── a peer does not receive
 *              ▼                            │
 *   here:   engine_pause() ─▶ engine_look(): at rest ─▶ engine_hand_over() ─┬▶ engine_let_go()
 *                                                                           └▶ engine_resume()
 *   there:  engine_pause() ─▶ engine_adopt() for each ─▶ engine_resume()
 *
 * A paused session starts no requests and receives no data. Its requests in flight are finished and
 * answered, except for a request whose payload has arrived only in part, which is handed over in
 * that state. A session that cannot be handed over, because of its kind or state, is drained, as
 * when the server stops.
 *
 * If a peer does not receive its replies, it might be waiting for a reply on another of its
 * connections. So engine_serve() lets all sessions continue, except for those whose peers do not
 * receive.
 *
 * Threading: the ring's thread. Ownership: the pointers in a record are borrowed for the call. The
 * descriptor belongs to the session until engine_let_go(), which closes it without shutting down
 * the connection. Errors: a negative errno.
 */
#pragma once

#include "engine/engine.h"

enum {
	/* Maximum size of the state that a session kind hands over for one session. The state is
	 * secret, because it can contain TLS keys. */
	ENGINE_HANDOVER_BYTES_MAX = 24 << 10,
	/* Maximum size of a request's payload that a session has already received, and maximum
	 * number of pieces in which it is stored. */
	ENGINE_HANDOVER_LATER_BYTES_MAX = 4 << 20,
	ENGINE_HANDOVER_LATER_PIECES = 2,
	/* Maximum number of descriptors of one session, in addition to the connected socket. */
	ENGINE_HANDOVER_FDS_MAX = 240,
	/* How long a peer can stall, counted from the pause, while other sessions are served. */
	ENGINE_HANDOVER_STALL_MS = 10000,
};

struct session_piece {
	const uint8_t *bytes;
	uint32_t count;
};

/* The state of one session. */
struct session_record {
	uint64_t id;	  /* number of the connection */
	const char *kind; /* name of the kind; not terminated, like export and token */
	uint32_t kind_bytes;
	const char *export;
	uint32_t export_bytes;
	const uint8_t *token; /* takeover token; 0 bytes: none */
	uint32_t token_bytes;
	const uint8_t *bytes; /* the kind's state */
	uint32_t byte_count;
	/* The payload of a request that was received so far; can be empty. */
	struct session_piece later[ENGINE_HANDOVER_LATER_PIECES];
	int fd;
	/* Further descriptors that belong to the state. Borrowed: kind->adopt() duplicates those
	 * that it keeps. */
	int fds[ENGINE_HANDOVER_FDS_MAX];
	uint32_t fd_count;
};

/* The paused sessions that are not at rest yet, summed over engines. Engines are at rest when busy
 * and waiting are 0. */
struct engine_rest {
	/* sessions with a request in the store, and requests of struct engine_snapshot */
	uint32_t busy;
	/* sessions that wait for their peers, and ending sessions with requests */
	uint32_t waiting;
	uint32_t ended;		    /* sessions that were ended because their peers stalled */
	char peer[PEER_TEXT_BYTES]; /* the peer of one of the waiting sessions */
};

/* Predicted effect of engine_pause() on the sessions, summed over engines with the same session
 * kinds. */
struct engine_fate {
	uint32_t handed_over;
	/* clients in handshakes; they are ended unless they choose an export before the pause */
	uint32_t handshakes;
	struct {
		const struct session_kind *kind; /* NULL: end of the list */
		uint32_t count;
	} end[ENGINE_KINDS_MAX];
};

/* Predicts how many of the engine's sessions would be handed over or ended, and adds the numbers to
 * *fate. Sessions that are already ending are not counted. */
void engine_foresee(const struct engine *engine, struct engine_fate *fate);
/* Pauses the sessions until engine_resume(). Called again after engine_serve(). Returns how many
 * sessions it starts to drain because they cannot be handed over. */
uint32_t engine_pause(struct engine *engine);
/* On a paused engine: counts the sessions that are not at rest yet, and the requests of connections
 * that have ended, and adds the numbers to *rest. Sessions that continue after engine_serve(), or
 * were accepted since, are not counted. may_end: also ends sessions whose peers have stalled. */
void engine_look(struct engine *engine, struct engine_rest *rest, bool may_end);
/* On a paused engine: lets all sessions continue, except for those that wait for their peers. */
void engine_serve(struct engine *engine);
/* Lets all sessions continue, except for those that are being drained. */
void engine_resume(struct engine *engine);

/* On an engine at rest: calls take() for each session that can be handed over, unless an earlier
 * call for the session has returned 0. If take() returns a negative errno, stops and returns it. */
GMB_MUST_CHECK int engine_hand_over(struct engine *engine,
	int (*take)(void *context, const struct session_record *record), void *context);
/* A flush that makes a store write all its state before a handover (store_needs_quiesce()),
 * submitted by one engine. */
struct engine_quiesce {
	/* Set by the caller, which must keep the export and this struct until done() is called.
	 * done() is called on the engine's thread with the result of the flush. */
	struct export *export;
	void (*done)(struct engine_quiesce *quiesce, int result);

	/* Private members. */
	struct engine_export *entry;
	struct store_part part;
};
/* Starts the flush. last: true if no request is in flight on any engine any more. With false,
 * clients continue their requests; such an early flush leaves less work for the last one. Returns
 * -ENOENT if the engine does not serve the export. */
GMB_MUST_CHECK int engine_quiesce(struct engine *engine, struct engine_quiesce *quiesce, bool last);
/* Closes the sessions that were handed over, without sending anything to their peers. */
void engine_let_go(struct engine *engine);

/* On a paused engine: starts a session with the state that another process has sent, and owns the
 * connection even if this fails. The state is untrusted. record->later has at most one piece. If
 * the export rejects the session, the session ends immediately. */
void engine_adopt(struct engine *engine, const struct endpoint *endpoint,
	const struct session_record *record);
/* Called by kind->adopt() after session_init(): chooses the export in the record and sets the
 * session's takeover token. Returns errors like session_choose(). After -EAGAIN, the session ends,
 * or calls it again from kind->resume(), which may be called when the engine is no longer paused.
 */
GMB_MUST_CHECK int session_adopt(struct session *session, const struct session_record *record);
