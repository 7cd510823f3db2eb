// SPDX-License-Identifier: Apache-2.0
/*
 * The NBD server: a session kind that speaks NBD on connected sockets until they are closed. It
 * supports newstyle negotiation, TLS, and simple, structured and extended replies.
 * docs/man/gmblock-serve.1 describes what users see, and session.h the parts of the code.
 *
 * Threading and ownership: as struct session_kind. Errors: a protocol violation by a peer ends its
 * session, with one rate-limited log line that names the rule.
 */
#pragma once

#include "engine/engine.h"

extern const struct session_kind nbd_session_kind;
