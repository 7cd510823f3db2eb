// SPDX-License-Identifier: Apache-2.0
/*
 * Copies within the server, from an export or a range of it to the export that a session uses. The
 * data does not cross the client's connection.
 *
 *                        ┌─ clone   both files share the blocks (FICLONERANGE)
 *   copy ─▶ next piece ──┼─ zero    for a hole of the source
 *    ▲                   ├─ range   the kernel copies (copy_file_range)
 *    │                   └─ moved   path: read ─▶ arena ─▶ write, COPY_PIECES at a time
 *    └── a piece is done ◀── path
 *
 * Each piece uses the first possible method. If the stores reject a method, this
 * copy does not try it again. Moved pieces use the engine's payload memory: device memory if both
 * stores bypass the page cache and can use it, otherwise RAM. Clone and range run on one worker
 * thread at a time, and only between stores without filters.
 *
 * The rates of the identity and of both exports count a range or moved piece as a read of the
 * source and a write of the target. They count a zero piece as a write if the target has to write
 * the zeroes, and do not count a clone. For memory and queues, a piece is like a request of the
 * session. The whole copy uses one request slot of the session.
 *
 * Without STORE_FUA, the copy is durable only after a flush of the target. If a range of the source
 * changes during the copy, the copied contents of the range are undefined. The reasons are in
 * docs/design/0016-copies-within-a-server.md.
 *
 * Threading: the engine's. Ownership: the session's kind owns a copy from session_copy_start() to
 * session_copy_end(); the copy holds its source. Errors: a negative errno and an error message.
 */
#pragma once

#include "base/counter.h"
#include "engine/engine.h"

struct session_copy;

enum { COPY_PIECES = 8, COPY_PIECE_BYTES = 256 << 10, COPY_EXTENTS = 128 };

struct session_copy_options {
	const void *source_name; /* name of the source export; used only during the call */
	uint32_t source_name_bytes;
	/* The source's epoch that the client knows. If the epoch has changed, the source might have
	 * lost writes or all of its contents. */
	uint64_t source_epoch;
	uint64_t source_offset;
	uint64_t offset; /* in the session's export; checked by session_admit() */
	uint64_t length; /* > 0 */
	uint32_t flags;	 /* STORE_FUA or 0 */
	/* Called once, when the copy has ended, or when it becomes idle after
	 * session_copy_abandon() has returned false. Never called inside session_copy_start() or
	 * session_copy_abandon(). */
	void (*done)(void *context);
	void *context;
};

/*
 * Starts a copy. Errors, after which no copy is running:
 * - -ENOENT: the source does not exist, or the session has no right to read it.
 * - -EINVAL: the range extends past the end of the source, or both ranges overlap on one disk.
 * - -ESTALE: the source has another epoch.
 * - -ENOMEM.
 */
GMB_MUST_CHECK int session_copy_start(struct session *session,
	const struct session_copy_options *options, struct session_copy **copy_out,
	const char **text);
/* Called after done(): returns 0 or a negative errno. *done_bytes: how many bytes from the
 * beginning were copied. */
int session_copy_result(const struct session_copy *copy, uint64_t *done_bytes);
/* Called after done(): returns the numbers of bytes copied, by enum copy_method. */
const uint64_t *session_copy_bytes(const struct session_copy *copy);
/* Called after session->stopping was set. If further pieces would have to start, the copy ends with
 * -ESHUTDOWN. done() can be called before this function returns. */
void session_copy_drain(struct session_copy *copy);
/* Called when the session ends: starts no further pieces. Returns true if the copy is idle;
 * otherwise done() is called when the copy is idle. */
bool session_copy_abandon(struct session_copy *copy);
bool session_copy_is_idle(const struct session_copy *copy);
/* Frees an idle copy. */
void session_copy_end(struct session_copy *copy);
