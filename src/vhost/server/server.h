// SPDX-License-Identifier: Apache-2.0
/*
 * The vhost-user-blk server: a session kind of the engine for virtual machines. Its endpoints are
 * connected Unix sockets of type SOCK_STREAM with the export of their listener.
 */
#pragma once

#include "engine/engine.h"

extern const struct session_kind vhost_session_kind;
