// SPDX-License-Identifier: Apache-2.0
/*
 * Push on the server: a session kind of the engine (docs/protocol/push.md). Its endpoints are
 * connected Unix sockets of the type SOCK_SEQPACKET, and its own listeners at network addresses.
 */
#pragma once

#include "engine/engine.h"

extern const struct session_kind push_session_kind;
