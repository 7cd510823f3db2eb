// SPDX-License-Identifier: Apache-2.0
/*
 * Copies within the server: from an export, or a place of it, to the export that a session works
 * on. The bytes do not cross the client's connection.
 *
 *                        ┌─ clone   both files share the blocks (FICLONERANGE)
 *   copy ─▶ next piece ──┼─ zero    a hole of the source
 *    ▲                   ├─ range   the kernel copies (copy_file_range)
 *    │                   └─ moved   path: read ─▶ arena ─▶ write, COPY_PIECES at a time
 *    └── a piece is done ◀── path
 *
 * Each piece takes the first way that is left: one that the stores refuse is not tried again by
 * this copy. Pieces that are moved use the memory that the engine has for payload: memory of a
 * device, where both stores go around the page cache and can use it, else RAM. Clone and range are
 * made by one worker thread at a time, and only between stores without filters.
 *
 * A piece counts by the rates of the identity and of both exports as what it is: a read of the
 * source and a write of the target. It shares memory and turns as the session's requests do. The
 * copy as a whole has one place among the session's requests in flight.
 *
 * Nothing is durable before a flush of the target, but for STORE_FUA. The source must not change
 * meanwhile: what is copied of a range that does is undefined.
 * docs/design/0016-copies-within-a-server.md has the reasons.
 *
 * Threading: the engine's. Ownership: the session's kind owns a copy from session_copy_start() to
 * session_copy_end(); the copy holds its source. Errors: a negative errno and a sentence.
 */
#pragma once

#include "base/counter.h"
#include "engine/engine.h"

struct session_copy;

enum { COPY_PIECES = 8, COPY_PIECE_BYTES = 256 << 10, COPY_EXTENTS = 128 };

struct session_copy_options {
	const void *source_name; /* of an export; not kept */
	uint32_t source_name_bytes;
	/* Of the source, as whoever asks knows it: another one has lost writes, or all of it. */
	uint64_t source_epoch;
	uint64_t source_offset;
	uint64_t offset; /* on the session's export; session_admit() was asked */
	uint64_t length; /* > 0 */
	uint32_t flags;	 /* STORE_FUA or 0 */
	/* It has ended, or after session_copy_abandon() it is idle. Called once, not from inside
	 * the calls. */
	void (*done)(void *context);
	void *context;
};

/*
 * Begins to copy. Otherwise nothing has begun: -ENOENT there is no such export, or it is hidden
 * from the session; -EINVAL the range runs past the end of the source, or both ranges overlap in
 * one export; -ESTALE another epoch; -ENOMEM.
 */
GMB_MUST_CHECK int session_copy_start(struct session *session,
	const struct session_copy_options *options, struct session_copy **copy_out,
	const char **text);
/* After done: 0 or a negative errno. *done_bytes: so many from the beginning were copied. */
int session_copy_result(const struct session_copy *copy, uint64_t *done_bytes);
/* After done: bytes by enum copy_method. */
const uint64_t *session_copy_bytes(const struct session_copy *copy);
/* session->stopping was set: a copy that is not nearly done ends with -ESHUTDOWN. done may be
 * called from inside. */
void session_copy_drain(struct session_copy *copy);
/* The session ends: no more pieces. True when it is idle, else done is called when it is. */
bool session_copy_abandon(struct session_copy *copy);
bool session_copy_is_idle(const struct session_copy *copy);
/* Frees a copy that is idle. */
void session_copy_end(struct session_copy *copy);
