// SPDX-License-Identifier: Apache-2.0
/*
 * The gmb server: a session kind of the engine (docs/protocol/gmb.md). Its endpoints are connected
 * Unix sockets of type SOCK_SEQPACKET, and the connections of the network listeners of this kind.
 */
#pragma once

#include "engine/engine.h"

extern const struct session_kind native_session_kind;
