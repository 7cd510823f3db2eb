// SPDX-License-Identifier: Apache-2.0
/*
 * Parts of sessions. A session can have some of its requests executed by other engines of the
 * server, on other threads. There it has parts: a struct session each, with its own request slots,
 * turn, shares of rates and memory, and store queue. Requests are counted for the same client.
 *
 *   session's engine:  READY ──────── messages between both threads ───────▶ end of the parts
 *   part's engine:        engine_part_begin() ─▶ READY ─▶ session_terminate() ─▶ kind->close()
 *
 * A part is not a connection: limits on connections, rights, leases, fences, takeover, stops and
 * upgrades concern its session only. So the session must not end (session_kind.join()) or rest
 * (rest(), is_away()) before its parts have ended, and ends them when it has to. The engine ends a
 * part only if the export's store is lost, before refused requests are finished.
 *
 * Threading: session_part_engine() on the session's thread, engine_part_begin() on the thread of
 * the other engine, to which the part then belongs. Ownership: the kind owns the part until
 * engine_part_begin(), and again when kind->close() is called. Errors: a negative errno.
 */
#pragma once

#include "engine/engine.h"

/* Returns the engine for part number `part` (1, 2, ...) of the session, or NULL: the session can
 * have no part with this number or a higher one. A kind can post messages to the ring of this
 * engine while the session exists. */
struct engine *session_part_engine(const struct session *session, uint32_t part);
/*
 * Begins a part, in state READY. The caller has zeroed the part and set kind, peer, rights and
 * export as they are in the session, which keeps the export in use. kind needs the functions
 * resume, flush, abort, join and close, and need not be registered. If this fails, the part does
 * not exist:
 * - -ENOENT: the engine does not serve the export (any more).
 * - -ESHUTDOWN: the engine drains.
 * - -ESTALE: the store is lost (store_is_lost()).
 * - -EUSERS: it has the maximum number of parts.
 * - -ENOMEM.
 */
GMB_MUST_CHECK int engine_part_begin(struct engine *engine, struct session *part);
