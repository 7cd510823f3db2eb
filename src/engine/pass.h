// SPDX-License-Identifier: Apache-2.0
/*
 * Sessions on their way to another process, which serves in the place of this one:
 * docs/design/0019-upgrade.md.
 *
 *              ┌──────── engine_serve() ◀── a peer does not receive
 *              ▼                            │
 *   here:   engine_pause() ─▶ engine_look(): at rest ─▶ engine_pass() ─┬▶ engine_let_go()
 *                                                                      └▶ engine_resume()
 *   there:  engine_pause() ─▶ engine_adopt() for each ─▶ engine_resume()
 *
 * A session that is paused begins no request and receives nothing; what has begun is finished and
 * answered, but for a request whose payload has not all come: that is passed as it is. Sessions of
 * kinds, or in states, that cannot be passed are drained as when the server stops.
 *
 * A peer that does not receive an answer may wait for that of another connection of its own, so the
 * others go on meanwhile (engine_serve()): only who was waited for stays paused.
 *
 * Threading: the ring's thread. Ownership: what a state refers to is borrowed for the call; the
 * descriptor stays the session's until engine_let_go(), which closes it and leaves the connection
 * as it is. Errors: a negative errno.
 */
#pragma once

#include "engine/engine.h"

enum {
	ENGINE_PASS_BYTES_MAX = 24 << 10, /* what a kind tells of a session; secret */
	/* And what it has received of a request; in at most so many pieces. */
	ENGINE_PASS_LATER_BYTES_MAX = 4 << 20,
	ENGINE_PASS_LATER_PIECES = 2,
	/* How long a peer may receive nothing, from the pause on, while the others are served. */
	ENGINE_PASS_STALL_MS = 10000,
};

struct session_piece {
	const uint8_t *bytes;
	uint32_t count;
};

/* One session. */
struct session_record {
	uint64_t id;	  /* of its peer, while it is told */
	const char *kind; /* its name, without a terminator, as are the next two */
	uint32_t kind_bytes;
	const char *export;
	uint32_t export_bytes;
	const uint8_t *token; /* its name for takeovers; 0 bytes: it has none */
	uint32_t token_bytes;
	const uint8_t *bytes; /* what the kind knows of it */
	uint32_t byte_count;
	struct session_piece later[ENGINE_PASS_LATER_PIECES]; /* what follows that; or no bytes */
	int fd;
};

/* How far engines are, as a sum: at rest when nothing is busy and nobody waits. */
struct engine_rest {
	uint32_t busy;		    /* sessions with something in the store */
	uint32_t waiting;	    /* for their peers, or that end and have requests */
	uint32_t ended;		    /* as their peers did not receive */
	char peer[PEER_TEXT_BYTES]; /* of one that waits */
};

/* What engine_pause() would make of sessions, as a sum over engines of the same kinds. */
struct engine_fate {
	uint32_t pass;
	uint32_t handshakes; /* they are drained, unless they have an export by then */
	struct {
		const struct session_kind *kind; /* NULL: there are no more */
		uint32_t count;
	} end[ENGINE_KINDS_MAX];
};

/* Adds to the sum. Sessions that are ending anyhow do not count. */
void engine_foresee(const struct engine *engine, struct engine_fate *fate);
/* Until engine_resume(); also after engine_serve(). Returns how many sessions are drained now, as
 * they cannot be passed. */
uint32_t engine_pause(struct engine *engine);
/* Paused: adds how far it is. Requests of connections that have ended count; sessions that go on
 * after engine_serve(), or have come since, do not. may_end: ends sessions whose peers do not
 * receive. */
void engine_look(struct engine *engine, struct engine_rest *rest, bool may_end);
/* Paused: all sessions go on but those that wait for their peers. */
void engine_serve(struct engine *engine);
/* Everything goes on, but for what is drained. */
void engine_resume(struct engine *engine);

/* At rest: calls take() for each session that can be passed, and for which it has not returned 0
 * yet, until it returns a negative errno, which is returned. */
GMB_MUST_CHECK int engine_pass(struct engine *engine,
	int (*take)(void *context, const struct session_record *record), void *context);
/* A store that settles (store_settles()) on its way to another process: a flush on one engine. */
struct engine_settle {
	/* Set by the caller, and held until done, as the struct is. done comes on the engine's
	 * thread, with the result of the flush. */
	struct export *export;
	void (*done)(struct engine_settle *settle, int result);

	/* Private. */
	struct engine_export *entry;
	struct store_part part;
};
/* last: nothing is in flight on any engine; else clients may go on meanwhile, and it is to leave
 * little to do for the last one. -ENOENT: the engine does not serve the export. */
GMB_MUST_CHECK int engine_settle(struct engine *engine, struct engine_settle *settle, bool last);
/* They were passed: forgets them, without a word to their peers. */
void engine_let_go(struct engine *engine);

/* Paused: takes the endpoint, on every path, as a session in the state that another process has
 * told, which is parsed as hostile; later is one piece. A session that its export refuses ends at
 * once. */
void engine_adopt(struct engine *engine, const struct endpoint *endpoint,
	const struct session_record *record);
/* For kinds, after session_init(): the session works on the export of the state, and has its name.
 * As session_choose(): after -EAGAIN, kind->resume() is called when it is to be called again, which
 * may be when the engine is not paused any more. */
GMB_MUST_CHECK int session_adopt(struct session *session, const struct session_record *record);
