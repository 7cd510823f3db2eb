// SPDX-License-Identifier: Apache-2.0
/*
 * The NBD server side: a session kind that speaks NBD on connected sockets until they close.
 *
 * What: newstyle negotiation, TLS, simple, structured and extended replies. See
 * docs/man/gmblock-serve.1 for what a user sees and session.h for the parts.
 * Threading and ownership: as struct session_kind. Errors: a peer's violation ends that session
 * with one rate-limited log line naming the rule.
 */
#pragma once

#include "engine/engine.h"

extern const struct session_kind nbd_session_kind;
