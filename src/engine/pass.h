// SPDX-License-Identifier: Apache-2.0
/*
 * Sessions on their way to another process, which serves in the place of this one:
 * docs/design/0019-upgrade.md.
 *
 *   here:   engine_pause() ─▶ engine_busy() == 0 ─▶ engine_pass() ─┬▶ engine_let_go()
 *                                                                 └▶ engine_resume(): all goes on
 *   there:  engine_pause() ─▶ engine_adopt() for each ─▶ engine_resume()
 *
 * While an engine is paused, its sessions begin no request and receive nothing beyond the one they
 * are in the middle of; what has begun is finished and answered. Sessions of kinds, or in states,
 * that cannot be passed are drained as when the server stops.
 *
 * Threading: the ring's thread. Ownership: what a state refers to is borrowed for the call; the
 * descriptor stays the session's until engine_let_go(), which closes it and leaves the connection
 * as it is. Errors: a negative errno.
 */
#pragma once

#include "engine/engine.h"

enum {
	ENGINE_PASS_BYTES_MAX = 24 << 10, /* what a kind tells of a session; secret */
	/* How long a peer may stand still in the middle of a request. */
	ENGINE_PASS_STALL_MS = 1000,
};

/* One session. */
struct session_record {
	const char *kind; /* its name, without a terminator, as are the next two */
	uint32_t kind_bytes;
	const char *export;
	uint32_t export_bytes;
	const uint8_t *token; /* its name for takeovers; 0 bytes: it has none */
	uint32_t token_bytes;
	const uint8_t *bytes; /* what the kind knows of it */
	uint32_t byte_count;
	int fd;
};

/* Until engine_resume(). Returns how many sessions are drained, as they cannot be passed. */
uint32_t engine_pause(struct engine *engine);
/* Paused: 0 when everything is at rest, requests of connections that have ended included. Ends
 * sessions whose peers stand still, and adds them to *ended. */
uint32_t engine_busy(struct engine *engine, uint32_t *ended);
/* Everything goes on, but for what is drained. */
void engine_resume(struct engine *engine);

/* At rest: calls take() for each session that can be passed, until it returns a negative errno,
 * which is returned. */
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
 * told, which is parsed as hostile. A session that its export refuses ends at once. */
void engine_adopt(struct engine *engine, const struct endpoint *endpoint,
	const struct session_record *record);
/* For kinds, after session_init(): the session works on the export of the state, and has its name.
 * As session_choose(). */
GMB_MUST_CHECK int session_adopt(struct session *session, const struct session_record *record);
