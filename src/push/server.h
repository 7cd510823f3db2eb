// SPDX-License-Identifier: Apache-2.0
/*
 * Push on the server (docs/protocol/push.md), as a session kind of the engine. Its endpoints are
 * connected Unix sockets of the type SOCK_SEQPACKET. Peers on the network connect to push's own
 * listeners instead.
 */
#pragma once

#include "engine/engine.h"

extern const struct session_kind push_session_kind;
